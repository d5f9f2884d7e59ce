"""How a step waits for what takes time: in place for `step`, beside the event loop for `astep`.

A step is written once, as a coroutine that hands every call which may take long to its `Wait`.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

from mappa_envs.errors import ActionError

_THREADS: Final = 256
"""So many calls wait at a time in one process; threads are started when they are needed."""
T = TypeVar("T")


class Wait(Protocol):
    """Makes a call that may take long, and returns what it returns."""

    async def __call__(self, call: Callable[..., T], /, *arguments: Any) -> T:
        """Return `call(*arguments)`."""
        ...


async def in_place(call: Callable[..., T], /, *arguments: Any) -> T:
    """Make the call here and now; a coroutine that waits in this way alone never suspends."""
    return call(*arguments)


async def in_thread(call: Callable[..., T], /, *arguments: Any) -> T:
    """Make the call in another thread, so that the event loop goes on meanwhile.

    When this is cancelled a call that has begun goes on in its thread, and its result is lost:
    whoever cancels must also end what the call waits for.
    """
    return await asyncio.get_running_loop().run_in_executor(threads(), call, *arguments)


class OneAction:
    """Knows whose action is running, and refuses what may not happen meanwhile."""

    def __init__(self) -> None:
        self._agent: str | None = None

    @contextmanager
    def of(self, agent: str) -> Iterator[None]:
        """Have an action of this agent running while the block runs."""
        self._agent = agent
        try:
            yield
        finally:
            self._agent = None

    def check_idle(self, call: str) -> None:
        """Raise an `ActionError` that names the call if an action is running."""
        if self._agent is not None:
            raise ActionError(
                f"{call} while an action of {self._agent} is running; await its astep(), or "
                "cancel it, first"
            )


def finish(step: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end, and return its value."""
    try:
        step.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    step.close()
    raise RuntimeError(f"{step!r} suspended; only what waits in place can be run without a loop")


def threads() -> ThreadPoolExecutor:
    """Return this process's threads for calls that wait; a fork of the process has its own."""
    return _threads_of(os.getpid())


@functools.cache
def _threads_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="mappa-wait")
