"""The child process that compares mathematics, with a deadline that always holds.

An answer such as `9^{9^{9^{9}}}` keeps any symbolic library busy for ever, and no thread or signal
of the parent can stop it safely. So the comparison runs in a child which is killed at the deadline
and started anew at the next call.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import IO, Literal, cast

from mappa_envs.errors import MappaEnvError

Comparison = Literal["equal", "different", "unreadable", "failed", "late", "died"]

_PROGRAM = Path(__file__).with_name("math_child_main.py")
_START_LIMIT_S = 120.0
_COMPARISONS = ("equal", "different", "unreadable", "failed")


class MathChild:
    """Compares LaTeX in a child process; started at the first call, safe from any thread.

    Not protected: the child has this process's rights. It parses text, never runs it, with bounded
    memory, and an alarm of its own ends it should this process be killed meanwhile.
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., MathChild] | None = None
        self._owner = 0

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is no child."""
        return self._process.pid if self._process else None

    def compare(self, gold: str, answer: str) -> Comparison:
        """Return whether both mean the same, or why that is not known.

        `"unreadable"`: a side is no mathematics. `"failed"`: the library gave up. `"late"`: the
        deadline passed. `"died"`: the child ended, e.g. a stack overflow.

        Raises:
            MappaEnvError: the child cannot start.
        """
        line = json.dumps({"gold": gold, "answer": answer}) + "\n"
        with self._lock:
            process = self._running()
            try:
                reply = self._ask(process, line.encode())
            except BaseException:  # an interrupt must not leave a reply for the next question
                self._stop()
                raise
            if reply not in _COMPARISONS:
                self._stop()
            return reply

    def close(self) -> None:
        """End the child and wait for it; a later `compare` starts another."""
        with self._lock:
            self._stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():  # forked since: the child belongs to the other process
            self._process = None
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._process is None:
            self._process = self._start()
        return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        alarm_s = 2 * self.deadline_s + 1
        process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), str(alarm_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end_process, process, self._owner)
        if _read_line(process, _START_LIMIT_S) != "ready":
            self._end()
            raise MappaEnvError(
                f"the process that compares mathematics did not start ({sys.executable} "
                f"{_PROGRAM.name}, exit status {process.returncode}); check that `python -c 'import"
                " math_verify, latex2sympy2_extended'` works, or reinstall this package"
            )
        return process

    def _ask(self, process: subprocess.Popen[bytes], line: bytes) -> Comparison:
        try:
            _pipe(process.stdin).write(line)
            _pipe(process.stdin).flush()
        except BrokenPipeError:
            return "died"
        reply = _read_line(process, self.deadline_s)
        if reply in _COMPARISONS:
            return cast(Comparison, reply)
        return "late" if reply is None else "died"

    def _stop(self) -> None:
        if self._end is not None and self._owner == os.getpid():
            self._end()
        self._process = self._end = None


def _read_line(process: subprocess.Popen[bytes], limit_s: float) -> str | None:
    """Read one reply; empty where the process has ended, None where the limit passed."""
    descriptor = _pipe(process.stdout).fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + limit_s
    received = b""
    while not received.endswith(b"\n"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        chunk = os.read(descriptor, 4096)
        if not chunk:
            return ""
        received += chunk
    return received.decode().strip()


def _end_process(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return
    process.kill()
    for pipe in (process.stdin, process.stdout):
        try:
            _pipe(pipe).close()
        except BrokenPipeError:
            continue
    process.wait()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("the child process was started without pipes")
    return stream
