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
def cores(request: pytest.FixtureRequest) -> Iterator[int]:
    """Leave this process, and all that it starts from now on, so many cores."""
    before = os.sched_getaffinity(0)
    if len(before) < request.param:
        pytest.skip(f"this machine has no {request.param} cores")
    os.sched_setaffinity(0, sorted(before)[: request.param])
    yield request.param
    os.sched_setaffinity(0, before)


def test_throughput(benchmark: BenchmarkFixture, cores: int) -> None:
    """The same actions of two episodes at a time, on one core and on two."""
    source = "sum(number * number for number in range(400_000))"
    own_imports = ("numpy", "json")[:cores]  # so that each has workers of its own
    sandboxes = [LocalSandbox(preload=own_imports) for _ in range(2)]

    def play(sandbox: LocalSandbox) -> None:
        for _ in range(ACTIONS // 2):
            assert sandbox.exec(source, LIMITS).exit_code == 0

    def all_actions() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(play, sandboxes))

    benchmark.group = f"{ACTIONS} actions"
    benchmark.name = f"{cores} core{'s' * (cores > 1)}"
    benchmark.pedantic(all_actions, rounds=5, warmup_rounds=1)
    for sandbox in sandboxes:
        sandbox.close()
