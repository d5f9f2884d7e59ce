"""Following one program: what it writes, when it must stop, and how it ended."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import Final

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.protocol import ExecResult, Limit, Limits

_START_S: Final = 30.0
_GRACE_S: Final = 10.0
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

    def text(self) -> str:
        cut = self._total - len(self._head) - len(self._tail)
        if not cut:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = (part.decode(errors="replace") for part in (self._head, self._tail))
        return f"{head}\n[... {cut} bytes cut ...]\n{tail}"


class Execution:
    """One program as its caller sees it: what it wrote and what its launcher reported."""

    def __init__(self, process: subprocess.Popen[bytes], report: int, limits: Limits) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._report_fd = report
        self._report = b""
        self._limits = limits
        self._stdout = _Stream(limits.output_bytes)
        self._stderr = _Stream(limits.output_bytes)
        self._streams = {
            process.stdout.fileno(): self._stdout,
            process.stderr.fileno(): self._stderr,
        }
        self._written = 0
        self._limit: Limit | None = None
        self._stopping = False
        self._deadline = time.monotonic() + _START_S

    def result(self) -> ExecResult:
        """Follow the program to its end and say how it ended."""
        self._follow()
        started, *ended = self._report.decode().splitlines() or [""]
        if started != "started":
            why = started.removeprefix("error ") or self._stderr.text() or "no sign of life"
            raise SandboxError(f"the sandbox could not start a program: {why}")
        exit_code = -int(signal.SIGKILL)
        if ended:
            _, code, memory_error = ended[0].split()
            exit_code = int(code)
            if self._limit is None and exit_code == 1 and memory_error == "1":
                self._limit = "memory"
            if self._limit == "wall_clock" and exit_code != -signal.SIGKILL:
                self._limit = None  # it ended while the deadline passed
        return ExecResult(exit_code, self._stdout.text(), self._stderr.text(), self._limit)

    def _follow(self) -> None:
        """Read until the launcher is gone, then what is left; never wait for a pipe to close."""
        with selectors.DefaultSelector() as selector:
            for fd in (self._report_fd, *self._streams):
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)
            while self._report_fd in selector.get_map():
                if time.monotonic() >= self._deadline and not self._expire():
                    return
                for key, _ in selector.select(max(0.0, self._deadline - time.monotonic())):
                    if not self._read(key.fd):
                        selector.unregister(key.fd)
        for fd in self._streams:
            with suppress(BlockingIOError):
                while self._limit != "output" and self._read(fd):
                    pass

    def _read(self, fd: int) -> bool:
        """Take what a descriptor has to give; return False at its end."""
        chunk = os.read(fd, _CHUNK_BYTES)
        if fd == self._report_fd:
            if not self._report and chunk:
                self._deadline = time.monotonic() + self._limits.timeout_s
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
            self._process.kill()
            return False
        self._stop("wall_clock")
        return True

    def _stop(self, limit: Limit) -> None:
        self._limit = limit
        self._deadline = time.monotonic() + _GRACE_S
        self._stopping = True
        self._process.terminate()


def end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher and with it its tree, unless it has ended already."""
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
