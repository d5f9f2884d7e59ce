"""Run agent code on this machine, each program in a process tree of its own."""

from __future__ import annotations

import functools
import itertools
import logging
import marshal
import os
import secrets
import stat
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.execution import Execution, end
from mappa_envs.sandbox.protocol import ExecResult, Limits

logger = logging.getLogger(__name__)

Isolation = Literal["files", "network", "pids", "user"]

_CHILD: Final = Path(__file__).with_name("child.py")
_HOME: Final = "/tmp/workspace"
_TRANSIENT_UIDS: Final = range(61_184, 65_184)
"""User ids that Linux distributions set aside for users without an account."""
_LADDER: Final[tuple[frozenset[Isolation], ...]] = (
    frozenset({"files", "network", "pids", "user"}),
    frozenset({"files", "network", "pids"}),
    frozenset({"network", "pids", "user"}),
    frozenset({"network", "pids"}),
    frozenset({"network", "user"}),
    frozenset({"network"}),
    frozenset({"user"}),
    frozenset(),
)


@functools.cache
def available_isolation() -> frozenset[Isolation]:
    """Return the strongest isolation this process can give, found once by trying it.

    Raises:
        SandboxError: not even an unisolated program could be started.
    """
    failure: SandboxError | None = None
    for isolation in _LADDER:
        if "user" in isolation and os.geteuid() != 0:
            continue
        try:
            with closing(LocalSandbox(isolation=isolation)) as sandbox:
                sandbox.exec("", Limits())
            return _reported(isolation)
        except SandboxError as error:
            failure = error
    raise SandboxError(f"no program can be started on this machine: {failure}")


def _reported(isolation: frozenset[Isolation]) -> frozenset[Isolation]:
    """Warn where programs of agents are not kept from the network or from this host's files."""
    missing = {"network", "files"} - isolation
    if missing:
        logger.warning(
            "agent code is not kept from: %s; this system allows no more without root",
            ", ".join(sorted(missing)),
        )
    return isolation


class LocalSandbox:
    """A workspace on this machine; each `exec` is a fresh interpreter that leaves nothing behind.

    Always: a session of its own, no inherited environment or descriptors, an empty standard
    input, limits on time, memory, file size, open files and output, and the end of the whole
    process tree. `isolation` names what holds beyond that:

    - `"files"`: the host is read-only and its home, temporary and run-time directories are
      hidden; the workspace is at `/tmp/workspace`.
    - `"network"`: no network, not even the host's loopback.
    - `"pids"`: the program sees and reaches no process but its own, and none outlives it.
    - `"user"`: the caller is root and the program is not.

    What it does **not** protect against:

    - Reading: every file outside the hidden directories that the program's user may read, such
      as task data with answers, stays readable (without `"files"`, and with the caller's own
      user, also the caller's secrets and the environment of the caller's processes).
    - Writing wherever its user may write, without `"files"`.
    - Killing the caller's processes, or leaving a daemon behind by first killing the launcher,
      without `"pids"` and `"user"`.
    - Root's files and devices when the caller is root and `"user"` is missing (an interpreter
      that others cannot read is one reason).
    - Bugs of the kernel: the whole system call interface is open, user namespaces included.
    - Filling the disk: single files are bounded, their number and sum are not. Memory is bounded
      for each process, processes in number only with some isolation; CPU time only by the clock.
    - Being recognised: the program learns the host name, the kernel and the package versions.
    """

    def __init__(self, *, isolation: frozenset[Isolation] | None = None) -> None:
        """Make an empty workspace.

        Args:
            isolation: Exactly what must hold for each execution, or else `exec` raises; the
                default is the strongest that `available_isolation` found.

        Raises:
            SandboxError: no workspace or program can be had on this machine.
        """
        self.isolation = available_isolation() if isolation is None else isolation
        try:
            self._path = Path(tempfile.mkdtemp(prefix="mappa-"))
            self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            self._finalizer = weakref.finalize(self, _dispose, self._path, self._fd, os.getpid())
            self._uid = _TRANSIENT_UIDS[os.fstat(self._fd).st_ino % len(_TRANSIENT_UIDS)]
            self._hand_over(self._fd)
        except OSError as error:
            raise SandboxError(
                f"cannot make a workspace in {tempfile.gettempdir()!r} with isolation "
                f"{sorted(self.isolation)}: {error}; set TMPDIR to a writable folder, and ask for "
                "'user' only as root"
            ) from error
        self._lock = threading.RLock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def exec(self, source: str, limits: Limits) -> ExecResult:
        """Run Python `source` in the workspace, to its end or to its first limit.

        Raises:
            SandboxError: the sandbox is closed, or could not start the program at all.
        """
        with self._launched(source, limits) as execution:
            return execution.result()

    def read_file(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a regular file of the workspace.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: `name` leaves the workspace, is no regular file, or is over `max_bytes`.
            SandboxError: the sandbox is closed.
        """
        flags = os.O_NOFOLLOW | os.O_NONBLOCK
        with (
            self._folder_of(name) as (folder, leaf),
            open(leaf, "rb", opener=_opener(folder, flags)) as file,
        ):
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise ValueError(f"{name!r} is no regular file of the workspace")
            content = file.read(max_bytes + 1) if found.st_size <= max_bytes else None
        if content is None or len(content) > max_bytes:
            raise ValueError(f"{name!r} is larger than the {max_bytes} bytes that may be read")
        return content

    def write_file(self, name: str, content: bytes) -> None:
        """Create or replace a file of the workspace, with the folders it needs.

        Raises:
            ValueError: `name` leaves the workspace.
            SandboxError: the sandbox is closed.
        """
        with self._folder_of(name, create=True) as (folder, leaf):
            with suppress(FileNotFoundError):
                os.unlink(leaf, dir_fd=folder)
            with open(leaf, "xb", opener=_opener(folder, os.O_NOFOLLOW)) as file:
                self._hand_over(file.fileno())
                file.write(content)

    def close(self) -> None:
        """End every process and delete the workspace; a second call does nothing."""
        with self._lock:
            for process in list(self._running):
                end(process)
            self._finalizer()

    @contextmanager
    def _launched(self, source: str, limits: Limits) -> Iterator[Execution]:
        """Start a program; at the end of the block its process tree is gone."""
        report, child_end = os.pipe()
        with open(report, "rb", buffering=0):
            try:
                with self._opened():
                    process = self._start(source, limits, child_end)
                    self._running.add(process)
            finally:
                os.close(child_end)
            with process:
                try:
                    yield Execution(process, report, limits)
                finally:
                    end(process)
                    self._running.discard(process)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        with self._lock:
            if not self._finalizer.alive:
                raise SandboxError("this sandbox is closed; make a new one")
            yield

    @contextmanager
    def _folder_of(self, name: str, create: bool = False) -> Iterator[tuple[int, str]]:
        """Yield an open folder and the last part of `name`, without following any link."""
        *folders, leaf = _parts(name)
        with self._opened():
            fd = os.dup(self._fd)
            try:
                for folder in folders:
                    with suppress(FileExistsError):
                        if create:
                            os.mkdir(folder, 0o755, dir_fd=fd)
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                    parent, fd = fd, os.open(folder, flags, dir_fd=fd)
                    os.close(parent)
                    self._hand_over(fd)
                yield fd, leaf
            except FileNotFoundError:
                raise FileNotFoundError(f"{name!r} is not in the workspace") from None
            except OSError as error:
                raise ValueError(
                    f"{name!r} is no regular file of the workspace: {error.strerror}"
                ) from error
            finally:
                os.close(fd)

    def _hand_over(self, fd: int) -> None:
        """Give a file or folder to the user the programs run as."""
        if "user" in self.isolation:
            os.fchown(fd, self._uid, self._uid)

    @property
    def _home(self) -> str:
        """Where the program finds its workspace."""
        return _HOME if "files" in self.isolation else str(self._path)

    def _start(self, source: str, limits: Limits, report: int) -> subprocess.Popen[bytes]:
        job = {
            "source": source,
            "workspace": str(self._path),
            "home": self._home,
            "isolation": sorted(self.isolation),
            "uid": self._uid,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "processes": limits.processes,
        }
        try:
            os.fchmod(self._fd, 0o700)
            with tempfile.TemporaryFile() as stdin:
                stdin.write(marshal.dumps(job))
                stdin.seek(0)
                return subprocess.Popen(
                    [sys.executable, "-s", "-P", str(_CHILD), str(report)],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    pass_fds=(report,),
                    cwd="/",
                    env=self._environment(),
                    start_new_session=True,
                )
        except OSError as error:
            raise SandboxError(f"cannot start {sys.executable!r}: {error}") from error

    def _environment(self) -> dict[str, str]:
        """Return all that the program finds in `os.environ`."""
        return {
            "HOME": self._home,
            "LANG": "C.UTF-8",
            "MKL_NUM_THREADS": "1",
            "MPLBACKEND": "Agg",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONIOENCODING": "utf-8:backslashreplace",
            "TMPDIR": "/tmp" if "files" in self.isolation else self._home,
        }


def _parts(name: str) -> list[str]:
    """Split a file name of the workspace, refusing what could lead out of it."""
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"{name!r} is no file name of the workspace; use a relative path of printable "
            "characters without '..', e.g. 'data/train.csv'"
        )
    return parts


def _opener(folder: int, extra_flags: int) -> Callable[[str, int], int]:
    """Return what makes `open` look in an open folder."""
    return lambda name, flags: os.open(name, flags | extra_flags, 0o644, dir_fd=folder)


def _dispose(path: Path, fd: int, owner: int) -> None:
    if os.getpid() != owner:  # a fork of the caller must not delete the caller's workspace
        return
    os.close(fd)
    with suppress(FileNotFoundError):
        _delete(path)


def _delete(root: Path) -> None:
    """Delete a folder, however deep it is and whatever its modes are.

    Folders found inside folders are first moved up to the root, so nothing here recurses.
    """
    unused = (root / f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
    root.chmod(0o700)
    while entries := list(os.scandir(root)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for inner in list(os.scandir(entry.path)):
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner.path, 0o700)
                    os.rename(inner.path, next(unused))
                else:
                    os.unlink(inner.path)
            os.rmdir(entry.path)
    root.rmdir()
