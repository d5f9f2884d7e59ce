"""A sandbox that is made when a program first needs it, and an action in it as one whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.protocol import FileRecord, Sandbox, Snapshot


class LazySandbox:
    """A workspace that may not be on disk yet.

    Most actions run no program, so most episodes need no sandbox. Safe from any thread.
    """

    def __init__(self, make: Callable[[], Sandbox]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._content: Snapshot | None = None
        self._action: object = None

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The files of the workspace, sorted by path.

        Raises:
            SandboxError: the sandbox is dead.
        """
        if self._sandbox is not None:
            return self._sandbox.manifest()
        return self._content.files if self._content is not None else ()

    def snapshot(self) -> Snapshot | None:
        """Remember the workspace; None is an empty one that was never used.

        Raises:
            SandboxError: the sandbox is dead.
        """
        return self._content if self._sandbox is None else self._sandbox.snapshot()

    def restore(self, snapshot: Snapshot | None) -> None:
        """Bring the workspace to what was remembered.

        Raises:
            ValueError: the snapshot is of another kind of sandbox.
            SandboxError: the sandbox is dead.
        """
        if self._sandbox is None or snapshot is None:
            self._close_and_keep(snapshot)
        else:
            self._sandbox.restore(snapshot)

    def close(self) -> None:
        """End what runs and empty the workspace; a new one is made when it is needed."""
        self._close_and_keep(None)

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
        if self._content is not None:
            try:
                sandbox.restore(self._content)
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
