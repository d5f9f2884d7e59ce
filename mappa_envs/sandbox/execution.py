"""Following one program: what it writes, when it must stop, and how it ended."""

from __future__ import annotations

import math
import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import Final

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.jail.streams import Streams
from mappa_envs.sandbox.protocol import ExecResult, Limit, Limits, Output
from mappa_envs.sandbox.warm import Worker

GRACE_S: Final = 10.0
"""How long a launcher may take to kill what is below it."""
START_S: Final = 60.0
"""How long a program, and the imports before the first one, may take to start."""
_WATCH_S: Final = 0.1
_CHUNK_BYTES: Final = 1 << 12


class QuotaWatch:
    """Looks at the size of a workspace from time to time, the less often the longer that takes."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self.next_look = math.inf
        """When it is time again, on the monotonic clock."""

    def start(self) -> None:
        """Look from now on."""
        self.next_look = time.monotonic() + _WATCH_S

    def stop(self) -> None:
        """Look no more."""
        self.next_look = math.inf

    def sees_too_much(self) -> bool:
        """Look, if it is time."""
        began = time.monotonic()
        if began < self.next_look:
            return False
        over = self._is_over()
        took = time.monotonic() - began
        self.next_look = time.monotonic() + max(_WATCH_S, 10 * took)
        return over


class Execution:
    """One program as its caller sees it: what it wrote and what its launcher reported."""

    def __init__(self, worker: Worker, limits: Limits, is_over: Callable[[], bool]) -> None:
        """Follow a worker that has got its job; `is_over` looks at the size of the workspace."""
        self._worker = worker
        self._report = b""
        self._limits = limits
        self._watch = QuotaWatch(is_over)
        self._streams = Streams(
            worker.stdout, worker.stderr, limits.output_bytes, limits.total_output_bytes
        )
        self._limit: Limit | None = None
        self._stopping = False
        self._deadline = time.monotonic() + START_S

    def result(self) -> ExecResult:
        """Follow the program to its end and say how it ended.

        Raises:
            SandboxError: the program was never started.
        """
        kills_before = self._worker.cgroup.kills()
        self._follow()
        started, *ended = self._report.decode().splitlines() or [""]
        if started != "started":
            failed = started.startswith("error ")
            why = started.removeprefix("error ") if failed else "it was ended before it began"
            raise SandboxError(f"the sandbox could not start a program: {why}")
        exit_code = -int(signal.SIGKILL)
        memory_error = "0"
        if ended:
            _, code, memory_error = ended[0].split()
            exit_code = int(code)
        if self._limit == "wall_clock" and exit_code != -signal.SIGKILL:
            self._limit = None  # it ended while the deadline passed
        if self._limit is None and self._ran_out_of_memory(exit_code, memory_error, kills_before):
            self._limit = "memory"
        output, errors = (
            Output(*stream.parts()) for stream in (self._streams.stdout, self._streams.stderr)
        )
        return ExecResult(exit_code, output, errors, self._limit)

    def _ran_out_of_memory(self, exit_code: int, memory_error: str, kills_before: int) -> bool:
        if exit_code == 1:
            return memory_error == "1"
        return exit_code == -signal.SIGKILL and self._worker.cgroup.kills() > kills_before

    def _follow(self) -> None:
        """Read until the launcher is gone, then what is left; never wait for a pipe to close."""
        status = self._worker.status
        os.set_blocking(status, False)
        with selectors.DefaultSelector() as selector:
            for fd in (status, *self._streams):
                selector.register(fd, selectors.EVENT_READ)
            while status in selector.get_map():
                if time.monotonic() >= self._deadline and not self._expire():
                    return
                if self._watch.sees_too_much():
                    self._stop("files")
                until = min(self._deadline, self._watch.next_look) - time.monotonic()
                for key, _ in selector.select(max(0.0, until)):
                    if not self._read(key.fd):
                        selector.unregister(key.fd)
        self._streams.drain()
        if self._streams.flooded:
            self._limit = "output"

    def _read(self, fd: int) -> bool:
        """Take what a descriptor has to give; return False at its end."""
        if fd != self._worker.status:
            more = self._streams.read(fd)
            if self._streams.flooded and self._limit != "output":
                self._stop("output")
            return more
        chunk = os.read(fd, _CHUNK_BYTES)
        if not self._report and chunk:
            self._deadline = time.monotonic() + self._limits.timeout_s
            self._watch.start()
        self._report += chunk
        return bool(chunk)

    def _expire(self) -> bool:
        """Act on the deadline; return False when even the launcher does not end."""
        if self._stopping:
            return False
        self._stop("wall_clock")
        return True

    def _stop(self, limit: Limit) -> None:
        self._limit = limit
        self._deadline = time.monotonic() + GRACE_S
        self._watch.stop()
        self._stopping = True
        self._worker.terminate()
