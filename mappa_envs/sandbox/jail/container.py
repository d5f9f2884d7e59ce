"""PID 1 of a container: it holds the heavy imports and runs one program after another.

A message is its length in four bytes, and then so many bytes. Standard input brings marshalled
dictionaries: first the settings (`preload`, `filter`), then a job for each program; an empty one
ends the program that runs. Standard output takes JSON objects: `{"ready": true}`, and for each job
`{"started": true}` and then how the program ended, see `_Program.follow`; or, in the place of any
of these, `{"error": why}`.

When standard input ends, so does this process, and with it all others of the container. Programs
run as the same user: what keeps them from this process is that it cannot be traced, that the
kernel spares PID 1 their signals, and the filter on system calls.
"""

from __future__ import annotations

import json
import marshal
import mmap
import os
import resource
import selectors
import shutil
import signal
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from . import kernel, processes, program
from .server import import_all
from .streams import Streams
from .view import WORKSPACE
from .worker import OPEN_FILES, Channels

START_S = 30.0
"""How long a program may take to give up its rights."""
PRIVATE_FOLDERS = ("/tmp", "/dev/shm", "/dev/mqueue")
"""Where a program may leave files, besides its workspace; the next one finds none of them."""
_OLDEST_PYTHON = (3, 11)
_MEMORY_FILES = ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events")
_STDIN, _STDOUT = 0, 1


def start() -> NoReturn:
    """Serve until standard input ends."""
    if os.getpid() != 1:  # elsewhere it would kill all that its user has
        raise SystemExit("the supervisor runs as the first process of a container only")
    wakeup = _become_supervisor()
    settings = _receive()
    if why := _missing():
        _send({"error": why})
        os._exit(1)
    import_all(settings["preload"])
    existing = filter(os.path.isdir, PRIVATE_FOLDERS)
    folders = {folder: set(os.listdir(folder)) for folder in existing}
    _send({"ready": True})
    while True:
        spare = _fork(settings["filter"])
        while not (job := _receive()):  # to end a program that has just ended
            continue
        with suppress(BrokenPipeError), open(spare.job, "wb") as file:
            marshal.dump(job, file)
        ended = _Program(spare, wakeup, job).follow()
        for descriptor in (spare.stdout, spare.stderr, spare.status):
            os.close(descriptor)
        _send({**ended, "clean": _clean(folders)})


@dataclass(frozen=True)
class _Spare:
    """A process that waits for its program, and this side's ends of its pipes."""

    pid: int
    job: int
    stdout: int
    stderr: int
    status: int
    memory_error: mmap.mmap


def _fork(system_calls: bytes) -> _Spare:
    """Fork the next program ahead of need: it takes long where much is imported."""
    memory_error = mmap.mmap(-1, 1)
    (job, our_job), (our_out, stdout), (our_err, stderr), (our_status, status) = (
        os.pipe() for _ in range(4)
    )
    pid = os.fork()
    if not pid:
        os.close(our_job)
        source = _become_program(Channels(job, stdout, stderr, status), system_calls)
        program.run(source, memory_error)
    for descriptor in (job, stdout, stderr, status):
        os.close(descriptor)
    return _Spare(pid, our_job, our_out, our_err, our_status, memory_error)


class _Program:
    """One program as its supervisor sees it."""

    def __init__(self, process: _Spare, wakeup: int, job: dict[str, Any]) -> None:
        self._process, self._wakeup = process, wakeup
        self._streams = Streams(
            process.stdout, process.stderr, job["output_bytes"], job["total_output_bytes"]
        )
        self._timeout_s = job["timeout_s"]
        self._deadline = time.monotonic() + START_S
        self._started = self._stopping = False
        self._limit: str | None = None
        self._exit_code: int | None = None
        self._error = ""

    def follow(self) -> dict[str, Any]:
        """Wait for its end, leave no process of it, and say how it ended.

        Returns:
            `exit`, the exit code, negative for a signal; `limit`, one of `wall_clock`, `output`,
            `memory`, or None; `stdout` and `stderr`, each as in `Stream.parts`. If the program
            never started, `error`, the reason.
        """
        kills_before = _kills_for_memory()
        with selectors.DefaultSelector() as selector:
            for fd in (_STDIN, self._wakeup, self._process.status, *self._streams):
                selector.register(fd, selectors.EVENT_READ)
            while self._exit_code is None:
                for key, _ in selector.select(self._patience()):
                    if not self._read(key.fd):
                        selector.unregister(key.fd)
        _kill_others()
        self._streams.drain()
        if not self._started:
            self._hear()
        if not self._started:
            return {"error": self._error or f"it ended with {self._exit_code} before it started"}
        if self._streams.flooded:
            self._limit = "output"
        if self._limit == "wall_clock" and self._exit_code != -signal.SIGKILL:
            self._limit = None  # it ended while the deadline passed
        killed = self._exit_code == -signal.SIGKILL and _kills_for_memory() > kills_before
        raised = self._exit_code == 1 and self._process.memory_error[0]
        if self._limit is None and (killed or raised):
            self._limit = "memory"
        return {
            "exit": self._exit_code,
            "limit": self._limit,
            "stdout": self._streams.stdout.parts(),
            "stderr": self._streams.stderr.parts(),
        }

    def _patience(self) -> float | None:
        """Return for how long there is nothing to do; stop the program at its deadline."""
        left = self._deadline - time.monotonic()
        if left <= 0 and not self._stopping:
            self._stop("wall_clock")
        return None if self._stopping else max(0.0, left)

    def _read(self, fd: int) -> bool:
        """Take what a descriptor has to give; return False at its end."""
        if fd == self._wakeup:
            with suppress(BlockingIOError):
                os.read(fd, 1 << 12)
            self._reap()
        elif fd == _STDIN:
            _receive()
            self._stop(None)
        elif fd == self._process.status:
            return self._hear()
        else:
            more = self._streams.read(fd)
            if self._streams.flooded:
                self._stop("output")
            return more
        return True

    def _hear(self) -> bool:
        """Read the report; the program's time starts with it."""
        text = os.read(self._process.status, 1 << 12).decode(errors="replace").strip()
        if text == "started":
            self._started = True
            self._deadline = time.monotonic() + self._timeout_s
            _send({"started": True})
        elif text:
            self._error = text
        return bool(text)

    def _reap(self) -> None:
        """Reap the program if it has ended, and whatever was orphaned and has ended."""
        with suppress(ChildProcessError):
            while ended := os.waitpid(-1, os.WNOHANG):
                pid, status = ended
                if not pid:
                    return
                if pid == self._process.pid:
                    self._exit_code = os.waitstatus_to_exitcode(status)

    def _stop(self, limit: str | None) -> None:
        if not self._stopping:
            self._limit, self._stopping = limit, True
        processes.kill_all([-1])


def _become_supervisor() -> int:
    """Protect this process; return a descriptor that is readable after a child has ended."""
    kernel.process_control(kernel.DUMPABLE, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    wakeup, write = os.pipe()
    for descriptor in (wakeup, write):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return wakeup


def _become_program(channels: Channels, system_calls: bytes) -> str:
    """Wait for the job, give up every right and connect the streams; return the agent's code."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        os.umask(0o022)
        kernel.process_control(kernel.DUMPABLE, 1)
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # if memory runs out, not the supervisor is to go
        with open(channels.job, "rb") as file:
            job = marshal.load(file)
        os.chdir(WORKSPACE)
        kernel.drop_capabilities()
        for limit, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, OPEN_FILES),
            (resource.RLIMIT_AS, job["memory_bytes"]),
            (resource.RLIMIT_FSIZE, job["file_bytes"]),
        ):
            kernel.lower_limit(limit, value)
        empty = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((empty, 0), (channels.stdout, 1), (channels.stderr, 2)):
            os.dup2(source, target)
        kernel.filter_system_calls(system_calls)
    except (OSError, MemoryError) as error:
        os.write(channels.status, f"{error!r}".encode(errors="replace"))
        os._exit(1)
    program.seed_generators(job["seed"])
    os.environ.update(job["environment"])
    os.write(channels.status, b"started\n")
    os.closerange(3, OPEN_FILES)
    code: str = job["source"]
    return code


def _missing() -> str:
    """Return what keeps programs from running in this container; empty if nothing does."""
    if sys.version_info < _OLDEST_PYTHON:
        needed = ".".join(map(str, _OLDEST_PYTHON))
        return f"python3 in the image is {sys.version.split()[0]}; {needed} or newer is needed"
    if not os.access(WORKSPACE, os.R_OK | os.W_OK | os.X_OK):
        return (
            f"user {os.geteuid()} cannot write to the workspace; use a Docker daemon that is not "
            "rootless and does not remap users"
        )
    return ""


def _kill_others() -> None:
    """Kill all other processes of the container, until there is none."""
    while True:
        processes.kill_all([-1])
        try:
            os.wait()
        except ChildProcessError:
            return


def _kills_for_memory() -> int:
    for path in _MEMORY_FILES:
        with suppress(OSError):
            return processes.kills_for_memory(path)
    return 0


def _clean(folders: dict[str, set[str]]) -> bool:
    """Delete what a program left outside its workspace; say whether nothing of it is left."""
    clean = True
    for folder, before in folders.items():
        for name in set(os.listdir(folder)) - before:
            path = f"{folder}/{name}"
            with suppress(OSError, RecursionError):
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    os.unlink(path)
            clean = clean and not os.path.lexists(path)
    return clean


def _receive() -> dict[str, Any]:
    (size,) = struct.unpack(">I", _read_exactly(4))
    message: dict[str, Any] = marshal.loads(_read_exactly(size))
    return message


def _read_exactly(size: int) -> bytes:
    content = b""
    while len(content) < size:
        piece = os.read(_STDIN, size - len(content))
        if not piece:  # the caller is gone
            os._exit(0)
        content += piece
    return content


def _send(message: dict[str, Any]) -> None:
    content = json.dumps(message).encode()
    content = struct.pack(">I", len(content)) + content
    while content:
        content = content[os.write(_STDOUT, content) :]
