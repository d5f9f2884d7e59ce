"""A sandbox that is made when something first needs it, and an action in it as one whole."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.protocol import TASK_AUTHOR, FileRecord, Sandbox, Snapshot
from mappa_envs.sandbox.tree import above


class LazySandbox:
    """A workspace that may not be on disk yet.

    Most actions run no program, so most episodes need no sandbox. Safe from any thread.
    """

    def __init__(self, make: Callable[[], Sandbox]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._initial: Mapping[str, bytes] = {}
        self._sandbox: Sandbox | None = None
        self._content: Snapshot | None = None
        self._initial_records: tuple[FileRecord, ...] = ()
        self._action: object = None

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The files of the workspace, sorted by path.

        Raises:
            SandboxError: the sandbox is dead.
        """
        if self._sandbox is not None:
            return self._sandbox.manifest()
        return self._content.files if self._content is not None else self._initial_records

    @property
    def folders(self) -> frozenset[str]:
        """The folders of the workspace.

        Raises:
            SandboxError: the sandbox is dead.
        """
        content = self.snapshot()
        return above(self._initial) if content is None else frozenset(content.folders)

    def read_file(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a regular file of the workspace.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: `name` leaves the workspace, is no regular file, or is over `max_bytes`.
            SandboxError: the sandbox is dead.
        """
        with self._lock:
            if self._sandbox is None:
                self._sandbox = self._made()
            sandbox = self._sandbox
        return sandbox.read_file(name, max_bytes)

    def snapshot(self) -> Snapshot | None:
        """Remember the workspace; None is one that is as the task made it.

        Raises:
            SandboxError: the sandbox is dead.
        """
        return self._content if self._sandbox is None else self._sandbox.snapshot()

    def begin(self, files: Mapping[str, bytes]) -> None:
        """End what runs, and have a workspace with the task's files in place of the old one."""
        self._close_and_keep(None)
        self._initial = files
        self._initial_records = tuple(
            FileRecord(name, len(content), hashlib.sha256(content).hexdigest(), TASK_AUTHOR, -1)
            for name, content in sorted(files.items())
        )

    def restore(self, snapshot: Snapshot | None, files: Mapping[str, bytes]) -> None:
        """Bring the workspace to what was remembered.

        Args:
            snapshot: What was remembered.
            files: The files of the task that was played then.

        Raises:
            ValueError: the snapshot is of another kind of sandbox.
            SandboxError: the sandbox is dead.
        """
        if self._sandbox is not None and snapshot is not None:
            self._sandbox.restore(snapshot)
            self._initial = files
        else:
            self.begin(files)
            self._content = snapshot

    @contextmanager
    def action(self) -> Iterator[Callable[[], Sandbox]]:
        """Yield what returns the sandbox, making it at the first call.

        When the block ends by an exception, an interrupt or a cancellation, the action did not
        happen: its programs are ended, also those of other threads, and the workspace is as it
        was before.
        """
        before = self.snapshot()
        token = self._action = object()

        def sandbox() -> Sandbox:
            with self._lock:
                if self._action is not token:
                    raise SandboxError("the action was cancelled")
                if self._sandbox is None:
                    self._sandbox = self._made()
                return self._sandbox

        try:
            yield sandbox
        except BaseException:
            self._close_and_keep(before)
            raise

    def _made(self) -> Sandbox:
        sandbox = self._make()
        try:
            if self._content is not None:
                sandbox.restore(self._content)
            else:
                for name, content in self._initial.items():
                    sandbox.write_file(name, content)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def _close_and_keep(self, content: Snapshot | None) -> None:
        with self._lock:
            self._action, self._content = None, content
            sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()
