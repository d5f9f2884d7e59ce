"""What it costs to remember an episode, to go back to it, and to branch off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import report
from pettingzoo import AECEnv
from pytest_benchmark.fixture import BenchmarkFixture
from subjects import ConstantCoach

from mappa_envs.registry import make_pipeline

REMEMBERING = "remembering an episode"
RUNNING = "a branch that runs a program"
FILES = 20
WRITE_FILES = f"""```python
import os
for number in range({FILES}):
    with open(f"{{number}}.bin", "wb") as file:
        file.write(os.urandom(100_000))
```"""
LOOK = """```python
import os
print(len(os.listdir()))
```"""
WORKSPACES = {"no files": None, f"{FILES} files of 100 kB": WRITE_FILES}

Env = AECEnv[str, Any, str]


@pytest.fixture(params=WORKSPACES)
def episode(request: pytest.FixtureRequest) -> Iterator[tuple[str, Env]]:
    """A coached environment in the coder's visit, with or without files in its workspace."""
    env = make_pipeline(
        "mathchat", scenario={"roles": {"coder": {"max_turns": 9}}}, coach=ConstantCoach()
    )
    env.reset(seed=0)
    env.step("I add them.")
    program = WORKSPACES[request.param]
    if program is not None:
        env.step(program)
        assert len(env.files) == FILES
    yield request.param, env
    env.close()


def test_snapshot(benchmark: BenchmarkFixture, episode: tuple[str, Env]) -> None:
    """Remember the episode."""
    workspace, env = episode
    _measure(benchmark, REMEMBERING, f"snapshot, {workspace}", env.snapshot)


def test_restore(benchmark: BenchmarkFixture, episode: tuple[str, Env]) -> None:
    """Go back, with nothing to undo."""
    workspace, env = episode
    before = env.snapshot()
    _measure(benchmark, REMEMBERING, f"restore, {workspace}", lambda: env.restore(before))


def test_fork(benchmark: BenchmarkFixture, episode: tuple[str, Env]) -> None:
    """Branch off and close the branch; its workspace is made when a program needs it."""
    workspace, env = episode
    row = f"fork and close, {workspace}"
    _measure(benchmark, REMEMBERING, row, lambda: env.fork().close())


def test_program_alone(benchmark: BenchmarkFixture, episode: tuple[str, Env]) -> None:
    """Run a program without a branch, after a restore."""
    workspace, env = episode
    before = env.snapshot()

    def again() -> None:
        env.restore(before)
        env.step(LOOK)

    _measure(benchmark, RUNNING, f"restore, program, {workspace}", again, rounds=15)


def test_fork_that_runs(benchmark: BenchmarkFixture, episode: tuple[str, Env]) -> None:
    """Branch off, run a program in the branch that sees the files, and close it."""
    workspace, env = episode

    def branch() -> None:
        other = env.fork()
        other.step(LOOK)
        other.close()

    _measure(benchmark, RUNNING, f"fork, program, close, {workspace}", branch, rounds=15)


def _measure(
    benchmark: BenchmarkFixture,
    group: str,
    row: str,
    verb: Callable[[], object],
    rounds: int = 200,
) -> None:
    benchmark.group, benchmark.name = group, row
    benchmark.pedantic(verb, rounds=rounds, warmup_rounds=2)
    report.keep(benchmark, group, row)
