"""Following one program: what it writes, when it must stop, and how it ended."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.protocol import ExecResult, Limit, Limits, Output
from mappa_envs.sandbox.warm import Worker

GRACE_S: Final = 10.0
"""How long a launcher may take to kill what is below it."""
_START_S: Final = 60.0
_WATCH_S: Final = 0.1
_CHUNK_BYTES: Final = 1 << 16


class _Stream:
    """The first and last bytes of one stream, and how many there were."""

    def __init__(self, keep_bytes: int) -> None:
        self._head_bytes = keep_bytes // 2
        self._tail_bytes = keep_bytes - self._head_bytes
        self._head = b""
        self._tail = b""
        self._total = 0

    def add(self, chunk: bytes) -> None:
        self._total += len(chunk)
        room = self._head_bytes - len(self._head)
        self._head += chunk[:room]
        tail = self._tail + chunk[room:]
        self._tail = tail[max(0, len(tail) - self._tail_bytes) :]

    def output(self) -> Output:
        cut = self._total - len(self._head) - len(self._tail)
        parts = (self._head, self._tail) if cut else (self._head + self._tail, b"")
        head, tail = (part.decode(errors="replace") for part in parts)
        return Output(head, tail, self._total, cut)


class Execution:
    """One program as its caller sees it: what it wrote and what its launcher reported."""

    def __init__(self, worker: Worker, limits: Limits, is_over: Callable[[], bool]) -> None:
        """Follow a worker that has got its job; `is_over` looks at the size of the workspace."""
        self._worker = worker
        self._report = b""
        self._limits = limits
        self._is_over = is_over
        self._stdout = _Stream(limits.output_bytes)
        self._stderr = _Stream(limits.output_bytes)
        self._streams = {worker.stdout: self._stdout, worker.stderr: self._stderr}
        self._written = 0
        self._limit: Limit | None = None
        self._stopping = False
        self._deadline = time.monotonic() + _START_S
        self._look_at = self._deadline

    def result(self) -> ExecResult:
        """Follow the program to its end and say how it ended.

        Raises:
            SandboxError: the program was never started.
        """
        kills_before = self._worker.cgroup.kills()
        self._follow()
        started, *ended = self._report.decode().splitlines() or [""]
        if started != "started":
            why = started.removeprefix("error ") or "no sign of life"
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
        return ExecResult(exit_code, self._stdout.output(), self._stderr.output(), self._limit)

    def _ran_out_of_memory(self, exit_code: int, memory_error: str, kills_before: int) -> bool:
        if exit_code == 1:
            return memory_error == "1"
        return exit_code == -signal.SIGKILL and self._worker.cgroup.kills() > kills_before

    def _follow(self) -> None:
        """Read until the launcher is gone, then what is left; never wait for a pipe to close."""
        status = self._worker.status
        with selectors.DefaultSelector() as selector:
            for fd in (status, *self._streams):
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)
            while status in selector.get_map():
                if time.monotonic() >= self._deadline and not self._expire():
                    return
                self._watch_files()
                until = min(self._deadline, self._look_at) - time.monotonic()
                for key, _ in selector.select(max(0.0, until)):
                    if not self._read(key.fd):
                        selector.unregister(key.fd)
        for fd in self._streams:
            with suppress(BlockingIOError):
                while self._limit != "output" and self._read(fd):
                    pass

    def _watch_files(self) -> None:
        """Look at the workspace from time to time, the less often the longer that takes."""
        began = time.monotonic()
        if self._stopping or began < self._look_at:
            return
        if self._is_over():
            self._stop("files")
        took = time.monotonic() - began
        self._look_at = time.monotonic() + max(_WATCH_S, 10 * took)

    def _read(self, fd: int) -> bool:
        """Take what a descriptor has to give; return False at its end."""
        chunk = os.read(fd, _CHUNK_BYTES)
        if fd == self._worker.status:
            if not self._report and chunk:
                self._deadline = time.monotonic() + self._limits.timeout_s
                self._look_at = time.monotonic() + _WATCH_S
            self._report += chunk
        elif self._limit != "output":
            room = self._limits.total_output_bytes - self._written
            self._streams[fd].add(chunk[:room])
            self._written += len(chunk)
            if len(chunk) > room:
                self._stop("output")
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
        self._look_at = self._deadline
        self._stopping = True
        self._worker.terminate()
