"""What `reset` costs once the tasks are loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report
from pettingzoo import AECEnv
from pytest_benchmark.fixture import BenchmarkFixture
from subjects import COACHED, ENVS, FLOOR, OURS

ROWS = 500
GROUP = "reset, each time another task"


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """A file of problems."""
    path = tmp_path / "problems.json"
    rows = [{"prompt": f"What is {n} + {n}?", "answer": 2 * n} for n in range(ROWS)]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


SOURCES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "generated": lambda _: {},
    "generated, level 3": lambda _: {"generated": {"levels": [3]}},
    f"a file of {ROWS}": lambda path: {"tasks": str(path)},
}


def test_floor(benchmark: BenchmarkFixture) -> None:
    """The environment that has no tasks."""
    _measure(benchmark, ENVS[FLOOR](), FLOOR)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("subject", [OURS, COACHED])
def test_reset(benchmark: BenchmarkFixture, subject: str, source: str, problems: Path) -> None:
    """Another task each time, drawn by the environment."""
    env = ENVS[subject](scenario=SOURCES[source](problems))
    _measure(benchmark, env, f"{subject.removesuffix(', OrderEnforcing')}; {source}")
    env.close()


def _measure(benchmark: BenchmarkFixture, env: AECEnv[str, Any, str], row: str) -> None:
    env.reset(seed=0)
    benchmark.group, benchmark.name = GROUP, row
    benchmark.pedantic(env.reset, rounds=500, warmup_rounds=20)
    report.keep(benchmark, GROUP, row)
