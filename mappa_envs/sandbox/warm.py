"""Workers forked ahead of need from a process that holds the heavy imports."""

from __future__ import annotations

import atexit
import itertools
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import cgroups, scratch  # noqa: F401 - imported first, it tidies up last
from mappa_envs.sandbox.jail.worker import Jail

PRELOAD: Final = (
    "numpy",
    "pandas",
    "scipy.stats",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "sklearn.metrics",
    "sklearn.model_selection",
    "sklearn.pipeline",
    "sklearn.preprocessing",
    "sympy",
)
"""What is imported ahead, where it is installed."""

_BOOT: Final = """
import sys
sys.path.insert(0, {folder!r})
from jail import {module}
sys.path.remove({folder!r})
for name in [name for name in sys.modules if name.partition(".")[0] == "jail"]:
    del sys.modules[name]
{module}.start()
"""
ENVIRONMENT: Final = {
    "LANG": "C.UTF-8",
    "MKL_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONIOENCODING": "utf-8:backslashreplace",
    "USER": "agent",
}
_WITHOUT_LOCKS: Final = {"JOBLIB_MULTIPROCESSING": "0"}
"""Without `/dev/shm` there are no locks between processes; joblib then does one job at a time."""
_SPARES: Final = 2
"""Workers that wait for a job: while one runs, the next is ready."""
_END_S: Final = 10.0
"""How long workers may take to end with the process that forked them."""


def boot(module: str, folder: str = str(Path(__file__).parent)) -> list[str]:
    """Return the arguments with which an interpreter starts a module of the jail.

    Args:
        module: One with a function `start`.
        folder: The folder that holds the jail's.
    """
    return ["-s", "-P", "-c", _BOOT.format(folder=folder, module=module)]


class Worker:
    """One jailed process tree that waits for a program, runs it, and is gone."""

    def __init__(
        self, ends: tuple[int, int, int, int], cgroup: cgroups.Cgroup, number: int
    ) -> None:
        self._job, self.stdout, self.stderr, self.status = ends
        self.cgroup = cgroup
        self.number = number
        self._launcher = -1
        self._lock = threading.Lock()

    @property
    def is_launched(self) -> bool:
        """Whether it is known by a pidfd, until `close`."""
        return self._launcher >= 0

    def launched(self, launcher: int) -> None:
        """Take over the pidfd of the launcher."""
        self._launcher = launcher

    def start(self, job: dict[str, Any]) -> None:
        """Send the job; a worker that has died meanwhile shows as one without a report."""
        with suppress(BrokenPipeError), open(self._job, "wb") as file:
            self._job = -1
            marshal.dump(job, file)

    def terminate(self) -> None:
        """Have the launcher kill the program."""
        self._signal(signal.SIGTERM)

    def end(self, grace_s: float) -> None:
        """End the whole tree, unless it has ended already, and wait until it has."""
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, None)):
            self._signal(number)
            milliseconds = None if wait_s is None else wait_s * 1000
            poll = select.poll()
            poll.register(self._launcher, select.POLLIN)
            if poll.poll(milliseconds):
                return

    def dismiss(self) -> None:
        """Give it no job, and wait until it has ended: its end of the report is closed."""
        if self._job >= 0:
            os.close(self._job)
            self._job = -1
        poll = select.poll()
        poll.register(self.status, 0)  # which leaves the hang-up
        poll.poll(_END_S * 1000)

    def close(self) -> None:
        """Close the descriptors; what comes after has no effect."""
        with self._lock:
            launcher, self._launcher = self._launcher, -1
        for descriptor in (self._job, self.stdout, self.stderr, self.status, launcher):
            if descriptor >= 0:
                os.close(descriptor)

    def _signal(self, number: int) -> None:
        with self._lock, suppress(ProcessLookupError):
            if self._launcher >= 0:
                signal.pidfd_send_signal(self._launcher, number)


class Zygote:
    """A process with imports, and the workers forked from it."""

    def __init__(self, jail: Jail, preload: tuple[str, ...]) -> None:
        """Start it; the imports go on in the background.

        Raises:
            SandboxError: the interpreter cannot be started.
        """
        self._lock = threading.Lock()
        self._asked: deque[Worker] = deque()
        self._free: list[cgroups.Cgroup] = []
        self._made = 0
        self._numbers = itertools.count()
        self._name = Path(jail.workspaces).name
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller = os.pidfd_open(os.getpid())
        try:
            self._process = subprocess.Popen(
                [sys.executable, *boot("server"), str(theirs.fileno()), str(caller)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                pass_fds=(theirs.fileno(), caller),
                cwd="/",
                env=ENVIRONMENT if not jail.has("landlock") else ENVIRONMENT | _WITHOUT_LOCKS,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"cannot start {sys.executable!r}: {error}") from error
        finally:
            os.close(caller)
            theirs.close()
        self._send(marshal.dumps({"jail": asdict(jail), "preload": list(preload)}))

    @property
    def alive(self) -> bool:
        """Whether it can still fork workers."""
        return self._control.fileno() >= 0 and self._process.poll() is None

    def take(self) -> Worker:
        """Return a worker, one that was forked ahead if there is one, and see to the next.

        Raises:
            SandboxError: the process has died.
        """
        with self._lock:
            while len(self._asked) < _SPARES + 1:
                self._ask()
            return self._answered()

    def give_back(self, worker: Worker) -> None:
        """Close a worker that has ended; its cgroup serves another."""
        with self._lock:
            self._free.append(worker.cgroup)
        worker.close()

    def close(self) -> None:
        """End it and its workers, and wait until those that have no program yet are gone."""
        with self._lock:
            self._control.close()
            self._process.terminate()
            self._process.wait()
            self._complaints.close()
            for worker in self._asked:
                worker.dismiss()
                worker.close()
            self._asked.clear()

    def _ask(self) -> None:
        """Have a worker forked, without waiting for it."""
        cgroup = self._free.pop() if self._free else self._new_cgroup()
        (job, our_job), (our_out, out), (our_err, err), (our_status, status) = (
            os.pipe() for _ in range(4)
        )
        worker = Worker((our_job, our_out, our_err, our_status), cgroup, next(self._numbers))
        theirs = [job, out, err, status]
        try:
            self._send(marshal.dumps((worker.number, cgroup.folders)), theirs)
        except BaseException:
            worker.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._asked.append(worker)

    def _answered(self) -> Worker:
        """Return the worker that was asked for first.

        Answers for workers that nobody waits for any more, since an interrupt came in between,
        are passed over; those workers end, for they get no job.
        """
        worker = self._asked.popleft()
        try:
            while not worker.is_launched:
                number, launcher = self._receive()
                if number == worker.number:
                    worker.launched(launcher)
                else:
                    os.close(launcher)
        except BaseException:
            worker.close()
            raise
        return worker

    def _new_cgroup(self) -> cgroups.Cgroup:
        self._made += 1
        return cgroups.make(f"{self._name}-{id(self):x}-{self._made}")

    def _send(self, message: bytes, descriptors: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._control, [message], descriptors or [])
        except OSError as error:
            raise self._dead() from error

    def _receive(self) -> tuple[int, int]:
        """Return the number of a worker and the pidfd of its launcher."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, 64, 1)
        except OSError as error:
            raise self._dead() from error
        if not message:
            raise self._dead()
        return int(message), descriptors[0]

    def _dead(self) -> SandboxError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        said = ""
        if not self._complaints.closed:
            self._complaints.seek(0)
            said = self._complaints.read()[-2000:].decode(errors="replace").strip()
        return SandboxError(
            f"the process that holds the sandbox's imports ended with status "
            f"{self._process.poll()}; it said: {said or 'nothing'}"
        )


_lock = threading.Lock()
_zygotes: dict[tuple[int, Jail, tuple[str, ...]], Zygote] = {}


def zygote_for(jail: Jail, preload: tuple[str, ...]) -> Zygote:
    """Return this process's zygote for a jail; one that has died is replaced.

    Raises:
        SandboxError: it cannot be started.
    """
    key = (os.getpid(), jail, preload)
    with _lock:
        found = _zygotes.get(key)
        if found is None or not found.alive:
            if found is not None:
                found.close()
            found = _zygotes[key] = Zygote(jail, preload)
            Finalize(None, _close_all, exitpriority=1)  # workers skip what atexit has
        return found


@atexit.register
def _close_all() -> None:
    for (owner, *_), zygote in _zygotes.items():
        if owner == os.getpid():
            zygote.close()
