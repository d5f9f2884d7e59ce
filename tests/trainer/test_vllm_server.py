from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mappa_trainer.engines import vllm_server
from mappa_trainer.engines.vllm_client import VLLMClient, VLLMEngine
from mappa_trainer.engines.vllm_server import (
    Launch,
    VLLMServer,
    command,
    environment,
    find_python,
    scratch_folder,
)
from mappa_trainer.errors import EngineError, RecipeError
from mappa_trainer.types import Sampling

# Answers /health, and starts a child that is to end with it; the argument says how it goes on.
PROGRAM = """
import subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
port, folder, way = int(sys.argv[1]), sys.argv[2], sys.argv[3]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(folder + "/child", "w").write(str(child.pid))
print("INFO [engine.py:7] loading", way, flush=True)
if way == "crash":
    raise SystemExit("no memory for the weights")
if way == "hang":
    time.sleep(600)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def do_POST(self):
        print("the engine died", flush=True)
        import os
        os._exit(7)
    def log_message(self, *said):
        pass
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
Make = Callable[[str], VLLMServer]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Make]:
    """`server(way)` makes a stand-in for vLLM."""
    made: list[VLLMServer] = []

    def make(way: str) -> VLLMServer:
        def words(port: int) -> list[str]:
            return [sys.executable, "-u", "-c", PROGRAM, str(port), str(folder), way]

        made.append(VLLMServer(words, folder))
        return made[-1]

    yield make
    for one in made:
        one.close()


def child_of(folder: Path) -> int:
    path = folder / "child"
    wait_until(lambda: path.exists() and path.read_text() != "")
    return int(path.read_text())


def runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it never held")


def test_a_server_is_waited_for_and_ended_with_all_it_started(
    server: Make, folder: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    with server("serve") as one:
        one.start(tmp_path / "engines" / "base.log")
        one.wait(30, said.append)
        assert one.diagnosis() == ""
        child = child_of(folder)
        assert runs(child)
    wait_until(lambda: not runs(child))
    assert not folder.exists()
    assert all(text.startswith("vLLM starts (") for text in said)
    assert (tmp_path / "engines" / "base.log").read_text() == "INFO [engine.py:7] loading serve\n"


def test_a_server_that_does_not_start_is_told_with_its_last_lines(
    server: Make, folder: Path, tmp_path: Path
) -> None:
    one, log = server("crash"), tmp_path / "base.log"
    log.write_text("of the run before\n")
    one.start(log)
    child = child_of(folder)
    with pytest.raises(EngineError) as raised:
        one.wait(30)
    assert str(raised.value) == (
        f"the vLLM server did not start: it ended with exit code 1; {log} ends with:\n"
        "of the run before\nINFO [engine.py:7] loading crash\nno memory for the weights"
    )
    one.close()
    wait_until(lambda: not runs(child))
    assert not folder.exists()


def test_a_server_that_takes_too_long_is_told(server: Make, folder: Path, tmp_path: Path) -> None:
    one = server("hang")
    one.start(tmp_path / "base.log")
    child_of(folder)
    wait_until(lambda: "loading" in (tmp_path / "base.log").read_text())
    with pytest.raises(EngineError, match=r"within 0\.1 s; .*start_timeout_s(.|\n)*loading hang"):
        one.wait(0.1)


def test_the_wait_can_be_given_up(server: Make, folder: Path, tmp_path: Path) -> None:
    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with server("hang") as one:
        one.start(tmp_path / "base.log")
        with pytest.raises(KeyboardInterrupt):
            one.wait(30, stop)
        child = child_of(folder)
    wait_until(lambda: not runs(child))


def test_a_crash_in_the_middle_is_told_by_the_request(server: Make, tmp_path: Path) -> None:
    with server("serve") as one:
        one.start(tmp_path / "base.log")
        one.wait(30)
        client = VLLMClient(one.url, diagnosis=one.diagnosis, retry_after=(2.0, 2.0))
        with pytest.raises(EngineError, match=r"exit code 7; .*(.|\n)*the engine died"):
            client.load_adapter("solver", str(tmp_path))
        client.close()


TRAINER = """
import sys, time
from pathlib import Path
from mappa_trainer.engines.vllm_server import VLLMServer
program, folder, log = sys.argv[1:]
def words(port):
    return [sys.executable, "-u", "-c", program, str(port), folder, "hang"]
VLLMServer(words, Path(folder)).start(Path(log))
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_a_trainer_that_is_killed(
    folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    words = [sys.executable, "-c", TRAINER, PROGRAM, str(folder), str(tmp_path / "base.log")]
    trainer = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == b"started\n"
    child = child_of(folder)
    trainer.send_signal(number)
    assert trainer.wait() == -number
    trainer.stdout.close()
    wait_until(lambda: not runs(child))
    wait_until(lambda: not folder.exists())


LAUNCH = Launch(Path("/py"), Path("/model"), "bfloat16", cpu=False)


def test_the_command_line_of_full_weights_on_a_gpu() -> None:
    assert command(LAUNCH, 81) == [
        *("/py", "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", "81", "--disable-uvicorn-access-log"),
        *("--model", "/model", "--dtype", "bfloat16"),
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
    ]


@pytest.mark.parametrize(("rank", "room"), [(1, "8"), (8, "8"), (9, "16"), (257, "320")])
def test_adapters_have_one_slot_more_and_room_for_their_rank(rank: int, room: str) -> None:
    launch = Launch(Path("/py"), Path("/m"), "float32", True, 3, rank, ("--seed", "4"))
    assert command(launch, 81)[-9:] == [
        *("--enforce-eager", "--no-enable-chunked-prefill"),
        *("--enable-lora", "--max-loras", "4", "--max-lora-rank", room),
        *("--seed", "4"),
    ]


def test_a_rank_that_vllm_does_not_take_is_refused() -> None:
    launch = Launch(Path("/py"), Path("/m"), "float32", True, 3, 513)
    with pytest.raises(RecipeError, match=r"model\.lora\.rank is 513; .* up to 512"):
        command(launch, 81)


def test_variables_that_are_set_win_but_for_those_that_syncing_needs() -> None:
    given = {"VLLM_CPU_KVCACHE_SPACE": "9", "VLLM_SERVER_DEV_MODE": "0", "PATH": "/bin"}
    found = environment(given)
    assert (found["VLLM_CPU_KVCACHE_SPACE"], found["PATH"]) == ("9", "/bin")
    assert found["VLLM_SERVER_DEV_MODE"] == found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == cores


def test_the_interpreter_is_the_one_named_or_that_of_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vllm_server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="needs vLLM, which is not installed"):
        find_python(None)
    for given in ("nowhere/python", str(tmp_path)):
        with pytest.raises(RecipeError, match=r"engine\.python .* cannot be run"):
            find_python(given)
    assert find_python(sys.executable) == Path(sys.executable)
    venv = tmp_path / ".venv-vllm" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    assert find_python(None) == venv / "python"  # the link itself, or its packages are not found


def test_weights_are_in_memory_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(vllm_server, "_free", lambda folder: 200)
    shared, other = scratch_folder(99), scratch_folder(100)
    shared.rmdir()
    assert (shared.parent, other.parent) == (Path("/dev/shm"), tmp_path)


def test_an_engine_of_a_server_that_never_started_says_so(server: Make) -> None:
    client = VLLMClient(server("serve").url, retry_after=())
    with pytest.raises(EngineError, match="ConnectError"):
        VLLMEngine(client, eos_ids=[2]).generate([[5]], [1], Sampling(1.0, 4))
    client.close()
