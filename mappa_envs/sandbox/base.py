"""What sandboxes whose workspace is a folder of this machine have in common."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.protocol import Actor, ExecResult, FileRecord, Limits, Snapshot
from mappa_envs.sandbox.scratch import scratch_folder
from mappa_envs.sandbox.workspace import Workspace

_TRANSIENT_UIDS: Final = range(61_184, 65_184)
"""User ids that Linux distributions set aside for users without an account."""
_numbers = itertools.count()


class WorkspaceSandbox(ABC):
    """All of a sandbox but the running of programs."""

    def __init__(self, *, other_user: bool) -> None:
        """Make an empty workspace.

        Args:
            other_user: Give its files to a user without an account, for programs to run as.

        Raises:
            SandboxError: it cannot be made.
        """
        self._lock = threading.RLock()
        self._root = scratch_folder() / f"{next(_numbers)}"
        try:
            self._root.mkdir(mode=0o711)
            inode = self._root.stat().st_ino
            self._uid: int | None = None
            if other_user:
                self._uid = _TRANSIENT_UIDS[inode % len(_TRANSIENT_UIDS)]
            self._workspace = Workspace(self._root, self._uid)
        except OSError as error:
            raise SandboxError(f"cannot make a workspace in {self._root}: {error}") from error
        self._is_closing = False
        self._closing = ExitStack()
        self._closing.callback(self._workspace.close)
        self._finalizer = weakref.finalize(self, _dispose, self._closing, os.getpid())

    def exec(self, source: str, limits: Limits, actor: Actor = Actor()) -> ExecResult:
        """Run Python `source` in the workspace, to its end or to its first limit.

        Raises:
            SandboxError: the sandbox is closed, or could not start the program at all.
        """
        with self._opened() as workspace:
            before = workspace.snapshot()
            try:
                with _disk_errors():
                    workspace.begin(actor)
                result = self._run(source, limits, actor)
                with _disk_errors():
                    files, over = workspace.finish(actor, limits)
            except BaseException:  # an interrupt too: what did not come to its end did not happen
                with _disk_errors():
                    workspace.restore(before)
                del before  # or whoever keeps the exception keeps the contents on disk
                raise
            if over:
                return replace(result, limit_hit="files")
            if result.limit_hit == "files":  # it had too much, and then deleted some of it
                workspace.restore(before)
                return result
            return replace(result, files=files)

    def read_file(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a regular file of the workspace.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: `name` leaves the workspace, is no regular file, or is over `max_bytes`.
            SandboxError: the sandbox is closed.
        """
        with self._opened() as workspace:
            return workspace.read_file(name, max_bytes)

    def write_file(self, name: str, content: bytes) -> None:
        """Create or replace a file of the workspace, as its task.

        Raises:
            ValueError: `name` leaves the workspace.
            SandboxError: the sandbox is closed.
        """
        with self._opened() as workspace:
            workspace.write_file(name, content)

    def manifest(self) -> tuple[FileRecord, ...]:
        """Return the files of the workspace, sorted by path.

        Raises:
            SandboxError: the sandbox is closed.
        """
        with self._opened() as workspace:
            return workspace.manifest()

    def snapshot(self) -> Snapshot:
        """Remember the workspace as it is.

        Raises:
            SandboxError: the sandbox is closed.
        """
        with self._opened() as workspace:
            return workspace.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Bring the workspace to what was remembered, here or by another sandbox.

        Raises:
            ValueError: the snapshot is of another kind of sandbox.
            SandboxError: the sandbox is closed.
        """
        with self._opened() as workspace:
            workspace.restore(snapshot)

    def close(self) -> None:
        """End every process and delete the workspace; a second call does nothing."""
        self._is_closing = True  # before the interrupt, for a program that is only about to run
        self._interrupt()
        with self._lock:
            self._finalizer()

    @contextmanager
    def _opened(self) -> Iterator[Workspace]:
        with self._lock:
            self._check_open()
            yield self._workspace

    def _check_open(self) -> None:
        """Raise a `SandboxError` if the sandbox is closed, or about to be."""
        if self._is_closing or not self._finalizer.alive:
            raise SandboxError("this sandbox is closed; make a new one")

    @abstractmethod
    def _run(self, source: str, limits: Limits, actor: Actor) -> ExecResult:
        """Run a program; on return, and when this raises, no process of it is left.

        Whatever `_interrupt` ends must be in its reach before `_check_open` is asked once more.
        """

    @abstractmethod
    def _interrupt(self) -> None:
        """Have the running program ended, if there is one; called from any thread."""


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Say of an error of this machine's disk that the sandbox cannot go on."""
    try:
        yield
    except OSError as error:
        raise SandboxError(f"the workspace cannot be kept in order: {error}") from error


def _dispose(closing: ExitStack, owner: int) -> None:
    if os.getpid() == owner:  # a fork of the caller must not delete the caller's workspace
        closing.close()
