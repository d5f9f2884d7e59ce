from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pettingzoo import AECEnv
from pettingzoo.test import performance_benchmark
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from mappa_envs.coach.rubric import RubricCoach
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.registry import make_pipeline
from mappa_envs.scenario import scenario_folder
from mappa_envs.testing import ENV_CHECKS, env_official, run_env_check

Env = AECEnv[str, Any, str]
COACH = {"kind": "rubric", "outcome_weight": 0.3}


def bare(folder: str, **options: Any) -> Env:
    return make_pipeline(folder, **options)


def coached(folder: str, **options: Any) -> Env:
    return make_pipeline(folder, coach=COACH, **options)


def deferred(folder: str, **options: Any) -> Env:
    return make_pipeline(folder, coach={**COACH, "deferred": True}, **options)


def coached_outside_ordered(folder: str, **options: Any) -> Env:
    env = bare(folder, **options)
    return CoachWrapper(OrderEnforcingWrapper(env), RubricCoach(env.unwrapped.scenario))


def ordered_outside_coached(folder: str, **options: Any) -> Env:
    return OrderEnforcingWrapper(coached(folder, **options))


def shipped() -> list[str]:
    """The names of the scenarios that ship."""
    root = scenario_folder("mathchat").parent
    return sorted(file.parent.name for file in Path(root).glob("*/scenario.toml"))


FOUR_TABLES = {"tables": {"only": ("wine", "iris", "diabetes", "chicks")}}
OPTIONS: dict[str, dict[str, Any]] = {
    "dsbench": {"scenario": FOUR_TABLES},
    "mathchat": {"sandbox": {"preload": []}},
}
"""What makes the environment of a scenario quick."""
NEEDS = {"dsbench": ("pandas", "sklearn", "sklego")}
"""The packages without which a scenario has no tasks."""


STACKS: dict[str, Callable[..., Env]] = {
    **{
        stack.__name__.replace("_", " "): functools.partial(
            stack, "mathchat", **OPTIONS["mathchat"]
        )
        for stack in (bare, coached, deferred, coached_outside_ordered, ordered_outside_coached)
    },
    **{
        f"{name}, coached": functools.partial(coached, name, **OPTIONS.get(name, {}))
        for name in shipped()
        if name != "mathchat"
    },
}
KNOWN_GAPS = {
    # PettingZoo's own wrapper, not what is in it, is copied.
    "ordered outside coached": {"shallow_copies_go_on_alone_or_are_refused"},
}
QUICK_STACK = "deferred"
"""The one with the most around it."""
OFFICIAL = {check.__name__ for check in env_official.CHECKS}
SLOW_CHECKS = ("another_process_sees_the_same", "nothing_piles_up")


def cases() -> Iterator[Any]:
    """Every check of every stack.

    The slow tier has what takes a process, and the other stacks, but for PettingZoo's own checks.
    """
    for name, stack in itertools.product(ENV_CHECKS, STACKS):
        slow = name in SLOW_CHECKS or (stack != QUICK_STACK and name not in OFFICIAL)
        yield pytest.param(name, stack, marks=pytest.mark.slow if slow else ())


@pytest.mark.parametrize(("name", "stack"), list(cases()))
def test_every_scenario_is_as_an_environment_should_be(name: str, stack: str) -> None:
    for package in NEEDS.get(stack.removesuffix(", coached"), ()):
        pytest.importorskip(package, reason="needs the extra datasets")
    run_env_check(name, STACKS[stack], known_gap=name in KNOWN_GAPS.get(stack, ()))


def test_more_than_one_scenario_ships() -> None:
    assert "mathchat" in shipped()
    assert len(shipped()) > 1


@pytest.mark.slow
@pytest.mark.parametrize("stack", STACKS)
def test_pettingzoos_performance_benchmark_runs(
    stack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(STACKS[stack]()) as env:
        performance_benchmark(env)
    assert "turns per second" in capsys.readouterr().out
