"""The process that grades tables, seen from the caller's side.

A submission is hostile: it can be built to exhaust a parser's memory or time. So it is read in a
process of its own, one for each submission, that can write no file, has bounded memory, and ends
at its deadline whatever it does. They are forks of one process that has imported scikit-learn,
which takes a second; any number of threads and environments share it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref

from pydantic import TypeAdapter, ValidationError

from mappa_envs.errors import MappaEnvError, TaskError
from mappa_envs.outcomes.grade import Figures, Grade, grade_of
from mappa_envs.outcomes.grading import Grading, check_grading

ACCEPTED = b"!"
"""What the child says once it has started, and a grading process before it reads anything."""
_PROGRAM = "mappa_envs.outcomes.table_child_main"
_START_LIMIT_S = 120.0
_ATTEMPTS = 2
_GRACE_S = 2.0
"""How long after its deadline the grading process may still be on its way out."""
_REPLY_BYTES = 1 << 16
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_FIGURES = TypeAdapter(Figures)


class TableGrader:
    """Grades submissions in a child process; started at the first call, safe from any thread.

    Not protected: the child has this process's rights, less what its limits take. It parses text
    and computes, and never runs or unpickles anything of the submission.

    Args:
        deadline_s: For one submission, in seconds.
        memory_bytes: Address space of one grading process, a third of a GiB of which are libraries.
        max_bytes: A larger submission is `too_large`.
    """

    def __init__(
        self, deadline_s: float = 60.0, memory_bytes: int = 2 << 30, max_bytes: int = 128 << 20
    ) -> None:
        self.deadline_s = deadline_s
        self.max_bytes = max_bytes
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process of which all grading processes are forks; None without one."""
        return self._child.process.pid if self._child else None

    def grade(self, grading: Grading, submission: bytes) -> Grade:
        """Judge a submission. Whatever its bytes are, the answer is a grade.

        Raises:
            TaskError: submissions cannot be judged by this rule.
            MappaEnvError: the child process cannot start.
        """
        check_grading(grading)
        if len(submission) > self.max_bytes:
            return grade_of(grading, Figures("too_large"))
        reply = self._ask(_request(grading, submission))
        return grade_of(grading, reply if isinstance(reply, Figures) else _read_figures(reply))

    def check(self, grading: Grading) -> None:
        """Check a rule together with its truth, for those who write tasks.

        Raises:
            TaskError: submissions cannot be judged by it.
            MappaEnvError: the child process cannot start, or failed.
        """
        check_grading(grading)
        reply = self._ask(_request(grading, b"", truth_only=True))
        if isinstance(reply, Figures) or not reply:
            raise MappaEnvError(f"grading by {grading.metric}: the grading process failed")
        problem = json.loads(reply)["problem"]
        if problem is not None:
            raise TaskError(f"grading by {grading.metric}: {problem}; correct truth_csv")

    def close(self) -> None:
        """End the child; a later call starts another."""
        with self._lock:
            self._stop()

    def _ask(self, request: bytes) -> bytes | Figures:
        """Return the reply, or the verdict that stands for there being none."""
        reply = b""
        for _ in range(_ATTEMPTS):
            child, connection = self._connect()
            started = time.monotonic()
            with connection:
                try:
                    reply = _exchange(connection, request, started + self.deadline_s + _GRACE_S)
                except TimeoutError:
                    self._drop(child)
                    return Figures("late")
            if reply:
                break
            self._drop(child)  # it had died before; nothing was read
        if reply.endswith(b"\n"):
            return reply[len(ACCEPTED) :]
        late = time.monotonic() - started >= self.deadline_s
        return Figures("late" if late else "grader_failed")

    def _connect(self) -> tuple[_Child, socket.socket]:
        """Return a connection to a grading process of its own; it is closed if there is none."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            child = self._running()
            with contextlib.suppress(OSError):
                child.hand_over(theirs)
        return child, ours

    def _running(self) -> _Child:
        child = self._child
        if child is not None and child.owner != os.getpid():  # forked since: not our child
            child = None
        if child is not None and child.process.poll() is not None:
            self._stop()
            child = None
        if child is None:
            self._child = child = _Child(self.deadline_s, self._memory_bytes)
        return child

    def _drop(self, child: _Child) -> None:
        with self._lock:
            if self._child is child:
                self._stop()

    def _stop(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None


class _Child:
    """A running child process and the socket that it takes requests from."""

    def __init__(self, deadline_s: float, memory_bytes: int) -> None:
        self.owner = os.getpid()
        self._requests, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM, str(deadline_s), str(memory_bytes)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        self.end = weakref.finalize(self, _end, self.process, self._requests, self.owner)
        self._requests.settimeout(_START_LIMIT_S)
        try:
            ready = self._requests.recv(1)
        except TimeoutError:
            ready = b""
        if not ready:
            self.end()
            raise MappaEnvError(
                f"the process that grades tables did not start (exit status "
                f"{self.process.returncode}); check that `python -c 'import sklearn.metrics'` "
                "works, or install it with: pip install 'mappa[datascience]'"
            )

    def hand_over(self, connection: socket.socket) -> None:
        """Have a grading process forked that serves this connection."""
        socket.send_fds(self._requests, [b"?"], [connection.fileno()])


def _request(grading: Grading, submission: bytes, *, truth_only: bool = False) -> bytes:
    rule = {
        "task_type": grading.task_type,
        "metric": grading.metric,
        "id_column": grading.id_column,
        "targets": grading.targets,
        "labels": grading.labels,
    }
    header = {"rule": rule, "truth_bytes": len(grading.truth_csv), "truth_only": truth_only}
    return json.dumps(header).encode() + b"\n" + grading.truth_csv + submission


def _exchange(connection: socket.socket, request: bytes, deadline: float) -> bytes:
    """Send a request and return all that comes back, however early the other side ends.

    Raises:
        TimeoutError: the deadline passed.
    """
    received = b""
    try:
        connection.settimeout(_seconds_until(deadline))
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
    except ConnectionError:  # what it said before it ended can still be read
        pass
    while len(received) < _REPLY_BYTES:
        connection.settimeout(_seconds_until(deadline))
        try:
            chunk = connection.recv(_REPLY_BYTES)
        except ConnectionError:
            break
        if not chunk:
            break
        received += chunk
    return received


def _seconds_until(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _read_figures(reply: bytes) -> Figures:
    try:
        return _FIGURES.validate_json(reply, strict=True)
    except ValidationError:
        return Figures("grader_failed")


def _environment() -> dict[str, str]:
    """Let the child find the modules where this process does, and compute with one thread."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**os.environ, **_ONE_THREAD, "PYTHONPATH": path}


def _end(process: subprocess.Popen[bytes], requests: socket.socket, owner: int) -> None:
    requests.close()
    if os.getpid() != owner:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
