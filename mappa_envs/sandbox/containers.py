"""One container, and the programs that run in it one after another."""

from __future__ import annotations

import json
import marshal
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import engine
from mappa_envs.sandbox.attachment import Attachment
from mappa_envs.sandbox.execution import GRACE_S, START_S, QuotaWatch
from mappa_envs.sandbox.filters import system_call_filter
from mappa_envs.sandbox.jail.view import WORKSPACE
from mappa_envs.sandbox.protocol import ExecResult, Limit, Limits, Output

_CPUS: Final = 2
_CPU_PERIOD_US: Final = 100_000
_SPARE_BYTES: Final = 256 << 20
"""For the supervisor with its imports."""
_SPARE_PROCESSES: Final = 1
_SMALL_MESSAGE_BYTES: Final = 1 << 16
_BYTES_IN_JSON: Final = 6
"""One byte of output may become as many."""
_EVENTS_S: Final = 1.0
"""How much later than the end of a container its reason may become known."""
_MARSHAL_VERSION: Final = 4
"""Every Python that may be in an image reads it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a container is started with."""

    image: str
    command: tuple[str, ...]
    environment: dict[str, str]
    shown: dict[str, str]
    """Files and folders of the host, and where the container has them, read-only."""
    workspace: Path
    user: str
    """As `uid:gid`."""
    preload: tuple[str, ...]
    memory_bytes: int
    processes: int
    tmp_bytes: int


class Container:
    """A container that waits for programs."""

    def __init__(self, plan: Plan) -> None:
        """Start it.

        Raises:
            SandboxError: the daemon cannot, or the supervisor in it does not come to life.
        """
        self.usable = True
        """Whether another program may run in it."""
        self._client = engine.connect()
        with engine.explained(f"cannot start a container of the image {plan.image!r}"):
            self._container = self._client.containers.create(**_options(plan))
            try:
                streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
                self._attachment = Attachment(self._container.attach_socket(params=streams))
                self._container.start()
            except BaseException:
                self._remove()
                raise
        try:
            system_calls = system_call_filter(paths=False, own_signals=False)
            self._send({"preload": list(plan.preload), "filter": system_calls})
            self._expect("ready")
        except BaseException:
            self.end()
            raise

    def run(self, job: dict[str, Any], limits: Limits, is_over: Callable[[], bool]) -> ExecResult:
        """Run a program to its end; whoever gets an error must end the container.

        Args:
            job: What the supervisor needs to know, see `jail/container.py`.
            limits: Those of the program.
            is_over: Looks at the size of the workspace.

        Raises:
            SandboxError: the program was never started, or something else ended the container.
        """
        began = time.time()
        self._send(job)
        self._expect("started")
        message, limit = self._follow(limits, is_over, began)
        if message is None:
            self.usable = False
            return ExecResult(-signal.SIGKILL, limit_hit=limit)
        try:
            result, self.usable = parse(message, limits, limit)
        except ValueError as error:
            raise self._broken(f"how its program ended makes no sense: {error}") from error
        return result

    def stop(self) -> None:
        """Have the running program ended; called from any thread."""
        with suppress(OSError):
            self._attachment.send(marshal.dumps({}, _MARSHAL_VERSION))

    def end(self) -> None:
        """Remove the container with all that runs in it; a second call does nothing.

        Raises:
            SandboxError: the daemon does not do it.
        """
        self._attachment.close()
        self._remove()

    def _follow(
        self, limits: Limits, is_over: Callable[[], bool], began: float
    ) -> tuple[bytes | None, Limit | None]:
        """Wait for the message that a program has ended, and see to the size of its workspace.

        Returns:
            The message, and `"files"` if the program was stopped for its files. No message, and
            the limit that was hit, if the container had to be given up.
        """
        watch = QuotaWatch(is_over)
        watch.start()
        limit: Limit | None = None
        most = _SMALL_MESSAGE_BYTES + 2 * _BYTES_IN_JSON * limits.output_bytes
        deadline = time.monotonic() + limits.timeout_s + GRACE_S
        while True:
            try:
                message = self._attachment.receive(min(deadline, watch.next_look), most)
            except (EOFError, ValueError) as error:
                if self._ran_out_of_memory(began):
                    return None, "memory"
                raise self._broken(str(error)) from error
            if message is not None:
                return message, limit
            if time.monotonic() >= deadline:  # too many busy processes may starve the supervisor
                return None, limit or "wall_clock"
            if watch.sees_too_much():
                watch.stop()
                self.stop()
                limit, deadline = "files", time.monotonic() + GRACE_S

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._attachment.send(marshal.dumps(message, _MARSHAL_VERSION))
        except OSError as error:
            raise self._broken(str(error)) from error

    def _expect(self, word: str) -> None:
        """Wait until the supervisor says that something is so."""
        try:
            message = self._attachment.receive(time.monotonic() + START_S, _SMALL_MESSAGE_BYTES)
            answer = json.loads(message or b"null")
        except (EOFError, ValueError, RecursionError) as error:
            raise self._broken(str(error)) from error
        if message is None:
            raise self._broken(f"it was not {word} within {START_S:.0f} s")
        if answer != {word: True}:
            why = answer.get("error") if isinstance(answer, dict) else None
            raise self._broken(f"it was not {word}: {str(why or answer)[:2000]}")

    def _broken(self, why: str) -> SandboxError:
        said = self._attachment.complaints
        return SandboxError(
            f"the container of the sandbox failed: {why}; it said: {said or 'nothing'}"
        )

    def _ran_out_of_memory(self, began: float) -> bool:
        """Whether, in a container that has ended, the kernel killed something for its memory."""
        wanted = {"container": self._container.id, "event": "oom"}
        until = f"{time.time() + _EVENTS_S:.6f}"
        with (
            engine.explained("cannot ask why the container of the sandbox ended"),
            closing(
                self._client.events(since=f"{began:.6f}", until=until, filters=wanted, decode=True)
            ) as events,
        ):
            return next(events, None) is not None

    def _remove(self) -> None:
        with engine.explained("cannot remove the container of the sandbox"):
            engine.remove(self._container)


def parse(message: bytes, limits: Limits, limit: Limit | None) -> tuple[ExecResult, bool]:
    """Read how a program ended, believing no more of it than of the program's output.

    Args:
        message: What came out of the container.
        limits: Those of the program.
        limit: The limit for which it was stopped from outside.

    Returns:
        The result, and whether the container is as it was before.

    Raises:
        ValueError: it does not say.
    """
    try:
        return _parsed(json.loads(message), limits, limit)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{message!r:.200}: {error!r:.200}") from error


def _parsed(record: Any, limits: Limits, limit: Limit | None) -> tuple[ExecResult, bool]:
    code, own_limit = record["exit"], record["limit"]
    if type(code) is not int or not -64 <= code <= 255:
        raise ValueError(f"the exit code is {code!r}")
    if own_limit not in ("wall_clock", "output", "memory", None):
        raise ValueError(f"the limit is {own_limit!r}")
    stdout, stderr = (_output(record[name], limits.output_bytes) for name in ("stdout", "stderr"))
    return ExecResult(code, stdout, stderr, limit or own_limit), record["clean"] is True


def _output(parts: list[Any], keep_bytes: int) -> Output:
    head, tail, total, cut = parts
    for text in (head, tail):
        if not isinstance(text, str) or len(text) > keep_bytes:
            raise ValueError(f"a part of a stream is {text!r}")
    if type(total) is not int or type(cut) is not int or not 0 <= cut <= total:
        raise ValueError(f"{cut!r} of {total!r} bytes are cut")
    head, tail = (text.encode(errors="replace").decode() for text in (head, tail))
    return Output(head, tail, total, cut)


def _options(plan: Plan) -> dict[str, Any]:
    """Return what docker-py is to create."""
    tmpfs = f"rw,exec,nosuid,nodev,mode=1777,size={plan.tmp_bytes},nr_inodes=16384"
    return {
        "image": plan.image,
        "command": list(plan.command),
        "entrypoint": [],
        "environment": plan.environment,
        "working_dir": "/",
        "hostname": "sandbox",
        "labels": engine.labels(),
        "stdin_open": True,
        "auto_remove": True,
        "init": False,
        "user": plan.user,
        "network_mode": "none",
        "ipc_mode": "private",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": plan.memory_bytes + _SPARE_BYTES,
        "memswap_limit": plan.memory_bytes + _SPARE_BYTES,
        "pids_limit": plan.processes + _SPARE_PROCESSES,
        "cpu_period": _CPU_PERIOD_US,
        "cpu_quota": _CPUS * _CPU_PERIOD_US,
        "tmpfs": {"/tmp": tmpfs, "/dev/shm": tmpfs},
        "log_config": {"Type": "none"},
        "mounts": [
            *(engine.mount(source, place, True) for source, place in plan.shown.items()),
            engine.mount(str(plan.workspace), WORKSPACE, False),
        ],
    }
