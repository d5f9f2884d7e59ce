"""The far side of `LocalSandbox.exec`: a launcher script, never imported by the package.

It runs in a fresh interpreter, as up to three processes:

    launcher      enters the namespaces; kills what is below it on SIGTERM
    └── init      PID 1 of the new PID namespace, so all below dies with it
        └── program   gives up its privileges and runs the agent's code

Without a PID namespace the launcher itself takes init's place: orphans become its children
(child subreaper) and it sweeps them when the program has ended.

The job arrives on standard input. Two lines go back on the descriptor named in `argv[1]`:
`started`, or `error <why>`, then `exit <status> <0 or 1: an uncaught MemoryError>`.
"""

from __future__ import annotations

import _thread
import ctypes
import linecache
import marshal
import mmap
import os
import resource
import signal
import sys
import types
from collections.abc import Iterable
from typing import Any

FILENAME = "<action>"
"""The file name the agent's code has in its tracebacks."""
HIDDEN = ("/dev/shm", "/home", "/root", "/run", "/tmp", "/var/tmp")
"""Replaced by empty private directories in the program's view of the file system."""

_HERE = __file__  # Python deletes the name when a script has ended but its threads run on
_OPEN_FILES = 256
_NEW_FILES, _NEW_USER = 0x00020000, 0x10000000
_NAMESPACES = {"files": _NEW_FILES, "network": 0x40000000, "pids": 0x20000000 | 0x08000000}
_NO_SUID, _NO_DEVICES, _NO_EXEC, _READ_ONLY = 0x2, 0x4, 0x8, 0x1
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 4, 36, 38
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_linux = sys.platform == "linux"


def main() -> None:
    """Run the job; only the program itself returns, into the interpreter's normal exit."""
    status = int(sys.argv[1])
    job = _read_job()
    isolation: list[str] = job["isolation"]
    memory_error = mmap.mmap(-1, 1)
    try:
        _prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
        _enter_namespaces(isolation)
        if "pids" in isolation and (init := _fork()):
            _wait_for(init)
            os._exit(0)
        _prctl(_SET_SUBREAPER, 1)
        if "files" in isolation:
            _build_view(job)
        if program := _fork():
            exit_code = _wait_for(program)
            if "pids" not in isolation:
                _sweep(program)
            os.write(status, f"exit {exit_code} {memory_error[0]}\n".encode())
            os._exit(0)
        _confine(job)
    except OSError as error:
        os.write(status, f"error {error}\n".encode(errors="replace"))
        os._exit(1)
    os.write(status, b"started\n")
    os.close(status)
    _run(job["source"], memory_error)


def _read_job() -> dict[str, Any]:
    """Read the job from standard input, then put an empty input in its place."""
    with open(0, "rb", closefd=False) as stdin:
        job: dict[str, Any] = marshal.load(stdin)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.umask(0o022)
    return job


# --- processes ------------------------------------------------------------------------------


def _fork() -> int:
    """Fork; the parent's SIGTERM kills the child, and the child dies with its parent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = os.fork()
    if pid:
        signal.signal(signal.SIGTERM, lambda *_: _kill_all([pid]))
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return pid


def _wait_for(pid: int) -> int:
    """Reap every child until `pid` has ended; return its exit code, negative for a signal."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _sweep(program: int) -> None:
    """Kill whatever the program left behind, until this process has no child."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        _kill_all([-program, *_children()])
        try:
            os.wait()
        except ChildProcessError:
            return


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            return [int(pid) for pid in children.read().split()]
    except OSError:
        return []


def _kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


# --- isolation ------------------------------------------------------------------------------


def _enter_namespaces(isolation: list[str]) -> None:
    """Leave the host's namespaces; an ordinary user needs a user namespace to be allowed to."""
    flags = 0
    for name in isolation:
        flags |= _NAMESPACES.get(name, 0)
    if not flags:
        return
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        flags |= _NEW_USER
    _call("unshare", flags)
    if uid != 0:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def _build_view(job: dict[str, Any]) -> None:
    """Make the host read-only, hide its private places, and put the workspace at `job["home"]`.

    The interpreter stays visible even where it lives in a hidden place.
    """
    kept = {
        path: os.open(path, os.O_PATH)
        for path in sorted({sys.base_prefix, sys.prefix})
        if path.startswith(tuple(f"{hidden}/" for hidden in HIDDEN))
    }
    kept[job["home"]] = os.open(job["workspace"], os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    _mount("none", "/", "none", _RECURSIVE | _PRIVATE)
    _change_mount("/", add=_READ_ONLY | _NO_SUID, flags=_AT_RECURSIVE)
    for path in HIDDEN:
        if os.path.isdir(path) and not os.path.islink(path):
            options = f"mode=1777,size={job['file_bytes']},nr_inodes=16384"
            _mount("tmpfs", path, "tmpfs", _NO_SUID | _NO_DEVICES, options)
    for path, descriptor in kept.items():
        os.makedirs(path, mode=0o755, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", path, "none", _BIND | _RECURSIVE)
        os.close(descriptor)
    _change_mount(job["home"], remove=_READ_ONLY)
    _mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_EXEC | _READ_ONLY)


def _confine(job: dict[str, Any]) -> None:
    """Give up every privilege and set the limits; what follows is the agent's."""
    os.setsid()
    os.chdir(job["home"])
    if "user" in job["isolation"]:
        _become(job["uid"])
    if _linux:
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        _call("capset", header, (ctypes.c_uint32 * 6)())
    _prctl(_SET_NO_NEW_PRIVILEGES, 1)
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_AS, job["memory_bytes"])
    _limit(resource.RLIMIT_FSIZE, job["file_bytes"])
    if job["isolation"]:  # otherwise the count includes the caller's own processes
        _limit(resource.RLIMIT_NPROC, job["processes"])


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _prctl(_SET_DUMPABLE, 1)  # the change of user closed /proc/self to the program
    for path in (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__)):
        if not os.access(path, os.R_OK | os.X_OK):
            raise PermissionError(f"an unprivileged user cannot read the interpreter at {path}")


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


# --- system calls ---------------------------------------------------------------------------


def _call(name: str, *arguments: Any) -> None:
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(f"{name} is not available on {sys.platform}")
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name} failed: {os.strerror(code)}")


def _prctl(option: int, value: int) -> None:
    if _linux:
        unused = ctypes.c_ulong(0)
        _call("prctl", option, ctypes.c_ulong(value), unused, unused, unused)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    data = options.encode() if options else None
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data)


def _change_mount(path: str, add: int = 0, remove: int = 0, flags: int = 0) -> None:
    attributes = (ctypes.c_uint64 * 4)(add, remove, 0, 0)
    number, size = ctypes.c_long(_SYS_MOUNT_SETATTR), ctypes.c_size_t(32)
    _call("syscall", number, _AT_FDCWD, path.encode(), ctypes.c_uint(flags), attributes, size)


# --- the program ----------------------------------------------------------------------------


def _run(source: str, memory_error: mmap.mmap) -> None:
    """Run `source` as `__main__`; exceptions and `SystemExit` take Python's own way out."""

    def show_uncaught(
        kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
    ) -> None:
        memory_error[0] = issubclass(kind, MemoryError)
        _show(kind, error, trace)

    sys.excepthook = show_uncaught
    setattr(_thread, "_excepthook", _show_in_thread)  # noqa: B010 - unknown to type checkers
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a kill loses no line
    lines = source.splitlines(keepends=True)
    linecache.cache[FILENAME] = (len(source), None, lines, FILENAME)
    sys.path.insert(0, os.getcwd())
    sys.argv = [FILENAME]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(source, FILENAME, "exec", dont_inherit=True), module.__dict__)


def _show(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Print a traceback without the launcher's frames and without paths of the host."""
    import traceback

    while trace and trace.tb_frame.f_code.co_filename == _HERE:
        trace = trace.tb_next
    report = traceback.TracebackException(kind, error, trace)
    pending: list[traceback.TracebackException | None] = [report]
    while pending:
        part = pending.pop()
        if part is None:
            continue
        for frame in part.stack:
            frame.filename = _shorten(frame.filename)
        if getattr(part, "filename", None):  # of a SyntaxError
            part.filename = _shorten(part.filename)
        pending += [part.__cause__, part.__context__, *(part.exceptions or ())]
    print("".join(report.format()), end="", file=sys.stderr)  # noqa: T201


def _show_in_thread(details: Any) -> None:
    if details.exc_type is not SystemExit:
        name = details.thread.name if details.thread else _thread.get_ident()
        print(f"Exception in thread {name}:", file=sys.stderr)  # noqa: T201
        _show(details.exc_type, details.exc_value, details.exc_traceback)


def _shorten(filename: str) -> str:
    folders = [f"{folder.rstrip('/')}/" for folder in sys.path if folder]
    inside = [folder for folder in folders if filename.startswith(folder)]
    return filename.removeprefix(max(inside, key=len, default=""))


if __name__ == "__main__":
    main()
