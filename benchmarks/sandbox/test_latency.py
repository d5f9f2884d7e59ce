"""Latency of single actions and throughput of many; `conftest.py` says how to run it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from launchers import LIMITS, Launcher, timed
from pytest_benchmark.fixture import BenchmarkFixture

from mappa_envs.sandbox import LocalSandbox

DATA_SCIENCE = "import pandas, sklearn.ensemble, sklearn.linear_model"
ACTIONS = 24


def test_trivial_action(benchmark: BenchmarkFixture, launcher: tuple[str, Launcher]) -> None:
    """A program that does nothing."""
    timed(benchmark, "print(1)", launcher, "")


def test_data_science_action(benchmark: BenchmarkFixture, launcher: tuple[str, Launcher]) -> None:
    """A program that imports what most programs import."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pytest.importorskip("pandas", reason="pandas is not installed")
    timed(benchmark, "pandas and scikit-learn", launcher, DATA_SCIENCE)


@pytest.fixture(params=[1, 2])
def sandboxes(request: pytest.FixtureRequest) -> Iterator[list[LocalSandbox]]:
    """One sandbox for each thread."""
    if (os.cpu_count() or 1) < request.param:
        pytest.skip(f"this machine has no {request.param} cores")
    sandboxes = [LocalSandbox() for _ in range(request.param)]
    yield sandboxes
    for sandbox in sandboxes:
        sandbox.close()


def test_throughput(benchmark: BenchmarkFixture, sandboxes: list[LocalSandbox]) -> None:
    """The same number of actions, one after the other and two at a time."""
    source = "sum(number * number for number in range(400_000))"
    share = ACTIONS // len(sandboxes)

    def play(sandbox: LocalSandbox) -> None:
        for _ in range(share):
            assert sandbox.exec(source, LIMITS).exit_code == 0

    def all_actions() -> None:
        with ThreadPoolExecutor(len(sandboxes)) as pool:
            list(pool.map(play, sandboxes))

    benchmark.group = f"{ACTIONS} actions"
    benchmark.name = f"{len(sandboxes)} at a time"
    benchmark.pedantic(all_actions, rounds=5, warmup_rounds=1)
