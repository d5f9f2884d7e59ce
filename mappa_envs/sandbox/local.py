"""Run agent code on this machine, each program in a process tree of its own."""

from __future__ import annotations

import functools
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import tree
from mappa_envs.sandbox.base import WorkspaceSandbox
from mappa_envs.sandbox.execution import GRACE_S, Execution
from mappa_envs.sandbox.jail.view import WORKSPACE
from mappa_envs.sandbox.levels import LocalLevel, jail_for
from mappa_envs.sandbox.protocol import Actor, ExecResult, Limits
from mappa_envs.sandbox.warm import PRELOAD, Worker, zygote_for

logger = logging.getLogger(__name__)


@functools.cache
def best_level(preload: tuple[str, ...] = PRELOAD) -> LocalLevel:
    """Return the strongest level that really isolates here, found once by trying.

    Args:
        preload: Modules that the programs to come find imported; the trial starts what they need.

    Raises:
        SandboxError: neither `namespace` nor `landlock` can be had.
    """
    reasons = []
    levels: tuple[LocalLevel, ...] = ("namespace", "landlock")
    for level in levels:
        try:
            check_level(level, preload)
        except SandboxError as error:
            reasons.append(str(error))
            continue
        logger.info("agent code runs at sandbox level %r", level)
        return level
    raise SandboxError(
        f"this machine isolates no program: {'; '.join(reasons)}; use the level 'docker', or, for "
        "code that you trust, 'process'"
    )


@functools.cache
def check_level(level: LocalLevel, preload: tuple[str, ...] = PRELOAD) -> None:
    """Run one empty program at a level.

    Args:
        level: The level.
        preload: As in `best_level`.

    Raises:
        SandboxError: it cannot be had; the message says what is missing.
    """
    try:
        sandbox = LocalSandbox(level, preload=preload)
        try:
            sandbox.exec("", Limits())
        finally:
            sandbox.close()
    except SandboxError as error:
        raise SandboxError(f"sandbox level {level!r} cannot be had here: {error}") from error


class LocalSandbox(WorkspaceSandbox):
    """A workspace on this machine, and programs that start in it within milliseconds.

    A process with the heavy imports forks jailed workers ahead of need; each `exec` takes one,
    and leaves nothing behind but files. Always: a session of its own, no inherited environment
    or descriptors, an empty standard input, limits on time, memory, files, open files and
    output, and the end of the whole process tree. Beyond that, by `level`:

    - `"namespace"`: no network; a root of its own with the interpreter and the system's
      libraries, read-only, and nothing else of the host; private `/tmp` and `/dev/shm`; no
      process in sight but its own; a filter on system calls.
    - `"landlock"`: paths outside the workspace cannot be opened, except the interpreter and the
      system's libraries to read; no sockets; no signals to others; a filter on system calls.
    - `"process"`: nothing more. It is no isolation; use it for code that you trust.

    With the first two a caller that is root runs programs as a user without an account.

    What it does **not** protect against, at any level: holes of the kernel; slowing the machine
    down within the limits; being recognised (names, sizes and times of the host's system files,
    kernel and package versions). Without a cgroup, memory is bounded for each process and not
    for their sum. At `"landlock"`, also: names and attributes of host files can be asked for;
    and as an ordinary user, a program that keeps forking and ending may outrun its being killed.
    """

    def __init__(
        self,
        level: LocalLevel | Literal["auto"] = "auto",
        *,
        preload: tuple[str, ...] = PRELOAD,
        hidden: tuple[str, ...] = (),
    ) -> None:
        """Make an empty workspace.

        Args:
            level: What must hold for each execution, or else `exec` raises; `"auto"` is
                `best_level(preload)`.
            preload: Modules that programs find imported already, where they are installed.
            hidden: Folders of this machine, by their real paths, of which programs see nothing
                although they lie among what Python needs; not at `"process"`.

        Raises:
            SandboxError: the level cannot be had on this machine.
        """
        if level not in ("auto", *get_args(LocalLevel)):
            raise SandboxError(
                f"sandbox level {level!r} is none of this machine's; there is 'auto', 'namespace', "
                "'landlock' and 'process', and DockerSandbox"
            )
        self.level: LocalLevel = best_level(preload) if level == "auto" else level
        if level == "process":
            logger.warning("sandbox level 'process' isolates nothing: only for code you trust")
        self._preload = preload
        self._running: Worker | None = None
        self._jail = jail_for(self.level, hidden)
        super().__init__(other_user=self._jail.has("user"))

    def _run(self, source: str, limits: Limits, actor: Actor) -> ExecResult:
        zygote = zygote_for(self._jail, self._preload)

        def is_over() -> bool:
            return self._workspace.is_over(limits) or _bytes_in(tmp) > limits.file_bytes

        with self._private_tmp() as tmp:
            worker = self._running = zygote.take()
            try:
                self._check_open()
                worker.cgroup.bound(limits.memory_bytes, limits.processes)
                worker.start(self._job(source, limits, actor, tmp))
                result = Execution(worker, limits, is_over).result()
                killed = result.exit_code == -signal.SIGKILL and result.limit_hit is None
                if killed and not zygote.alive:
                    raise SandboxError("the process that holds the sandbox's imports was killed")
                return result
            finally:
                self._running = None
                worker.end(GRACE_S)
                zygote.give_back(worker)

    def _interrupt(self) -> None:
        if (running := self._running) is not None:
            running.terminate()

    @contextmanager
    def _private_tmp(self) -> Iterator[Path]:
        """Make the folder for temporary files that a program has outside a view of its own."""
        tmp = self._root / "tmp"
        try:
            tmp.mkdir(mode=0o700)
            if self._uid is not None:
                os.chown(tmp, self._uid, self._uid)
        except OSError as error:
            raise SandboxError(f"cannot make a folder in {self._root}: {error}") from error
        try:
            yield tmp
        finally:
            with suppress(FileNotFoundError):
                tree.delete(str(tmp))

    def _job(self, source: str, limits: Limits, actor: Actor, tmp: Path) -> dict[str, Any]:
        path = self._workspace.path
        inside = self._jail.has("files")
        home, temporary = (WORKSPACE, "/tmp") if inside else (str(path), str(tmp))
        return {
            "source": source,
            "workspace": str(path.relative_to(self._jail.workspaces)),
            "home": home,
            "writable": [str(path), str(tmp)],
            "environment": {"HOME": home, "TMPDIR": temporary},
            "uid": self._uid,
            "seed": actor.seed,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "processes": limits.processes,
        }


def _bytes_in(folder: Path) -> int:
    """Return the size of what a program has in a folder, which it may have deleted."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return sum(tree.sizes(folder))
    return 0
