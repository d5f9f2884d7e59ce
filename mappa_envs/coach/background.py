"""One event loop beside the caller's, for all calls of a process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

_END_TIMEOUT_S: Final = 2.0
T = TypeVar("T")


class Background:
    """An event loop in a thread that does not hold up the end of the process.

    At the end of the process, what still runs on the loop is cancelled, so that threads which
    wait for it go on as well.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop; cancelling the future cancels the coroutine."""
        with self._lock:
            if self._thread is None:
                self._start()
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="mappa-background", daemon=True)
        self._thread.start()
        self._started.wait()
        # atexit comes too late: before it, Python waits for every thread of every executor.
        threading._register_atexit(self._stop)  # type: ignore[attr-defined]

    def _run(self) -> None:
        asyncio.run(self._wait())  # which cancels what is left when the wait is over

    async def _wait(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._end.wait()

    def _stop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(_END_TIMEOUT_S)


def background() -> Background:
    """Return the loop of this process; a fork of the process has its own."""
    process = os.getpid()
    return _OF_PROCESS.get(process) or _OF_PROCESS.setdefault(process, Background())


_OF_PROCESS: dict[int, Background] = {}


class SharedCalls(Generic[T]):
    """Makes one call of equal ones that would run at the same time, and gives all its result.

    Used on one event loop.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, _Shared[T]] = {}

    async def result(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the call that runs under this key, or of this one.

        The call is cancelled when nobody waits for it any more.
        """
        shared = self._running.get(key)
        if shared is None:
            shared = self._running[key] = _Shared(asyncio.ensure_future(call()))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if shared.task.done() or not shared.waiting:
                shared.task.cancel()
                if self._running.get(key) is shared:
                    del self._running[key]


@dataclass(slots=True)
class _Shared(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0
