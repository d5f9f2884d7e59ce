from __future__ import annotations

import functools
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import broken_calls
import broken_episodes
import numpy as np
import pytest
from broken_calls import LEAKS, OneIsToldWhy
from broken_episodes import InfosHoldAHash, RendersNothing
from pettingzoo.utils.wrappers import OrderEnforcingWrapper
from tiny import RichEnv, TinyEnv

from mappa_envs.testing import ENV_CHECKS, check_env, env_leaks, run_env_check
from mappa_envs.testing.env_process import in_another_process

BROKEN = {**broken_episodes.BROKEN, **broken_calls.BROKEN}
IN_ANOTHER_PROCESS = {"another_process_sees_the_same", "nothing_piles_up"}
"""Checks that take as long as Python takes to start."""


def failures(env_fn: Any, checks: set[str]) -> dict[str, str]:
    """What each check says that does not hold."""
    found = {}
    for name in checks:
        try:
            run_env_check(name, env_fn)
        except AssertionError as error:
            found[name] = str(error)
    return found


@pytest.mark.parametrize("env_fn", [TinyEnv, RichEnv])
def test_a_right_environment_passes_every_check(env_fn: type[TinyEnv]) -> None:
    check_env(env_fn)


@pytest.mark.parametrize("env_fn", BROKEN, ids=lambda env_fn: env_fn.__name__)
def test_what_is_wrong_fails_the_check_for_it_alone(env_fn: type[TinyEnv]) -> None:
    expected = BROKEN[env_fn]
    found = failures(env_fn, ENV_CHECKS.keys() - IN_ANOTHER_PROCESS | expected.keys())
    assert found.keys() == expected.keys(), found
    for name, words in expected.items():
        assert words in found[name]


def what_piles_up(env_fns: Sequence[type[TinyEnv]]) -> list[str]:
    """Return what the check says of each environment, in this process instead of one for each."""
    env_leaks.in_another_process = lambda work, env_fn: work(env_fn)
    checks = [failures(env_fn, {"nothing_piles_up"}) for env_fn in env_fns]
    return [found.get("nothing_piles_up", "nothing") for found in checks]


def test_what_piles_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = in_another_process(what_piles_up, [*LEAKS])
    ending = ": expected no more after 10 further episodes and 50 resets than before"
    assert [words.partition(", got")[0] for words in said] == [
        f"{kind}{ending}" for kind in LEAKS.values()
    ]


def test_every_check_has_an_environment_that_fails_it() -> None:
    failed = {name for expected in BROKEN.values() for name in expected}
    assert failed | {"nothing_piles_up"} == set(ENV_CHECKS)


def test_all_failures_are_told_at_once() -> None:
    class Bad(OneIsToldWhy, RendersNothing):
        pass

    with pytest.raises(AssertionError) as failure:
        check_env(Bad, known_gaps=["pettingzoo_api_test_passes"])
    lines = str(failure.value).splitlines()
    assert [name for line in lines if (name := line.partition(":")[0]) in ENV_CHECKS] == [
        *("pettingzoo_api_test_passes", "pettingzoo_render_test_passes"),
        "every_agent_is_told_why_it_ended",
    ]
    assert lines[0].endswith("it holds; take it from the known gaps")


def test_a_known_gap_must_be_one() -> None:
    name = "every_agent_is_told_why_it_ended"
    with pytest.raises(AssertionError, match=f"{name}: it holds; take it from the known gaps"):
        run_env_check(name, TinyEnv, known_gap=True)
    run_env_check(name, OneIsToldWhy, known_gap=True)


def test_a_known_gap_is_the_name_of_a_check() -> None:
    with pytest.raises(ValueError, match="no checks: typo; there are "):
        check_env(TinyEnv, known_gaps=["typo"])


def test_an_environment_made_from_what_cannot_be_sent_is_told_so() -> None:
    lock = threading.Lock()

    def env_fn(**options: Any) -> TinyEnv:
        with lock:
            return TinyEnv(**options)

    words = r"^env_fn: expected what can be sent to another process, got TypeError.*_thread.lock"
    with pytest.raises(AssertionError, match=words):
        run_env_check("another_process_sees_the_same", env_fn)


def test_an_environment_made_in_a_function_is_sent_along() -> None:
    class Local(InfosHoldAHash):
        pass

    with pytest.raises(AssertionError, match="in another process"):
        run_env_check("another_process_sees_the_same", lambda **options: Local(**options))


def test_what_is_raised_in_another_process_is_told() -> None:
    class Fails(TinyEnv):
        def __init__(self, parent: int, render_mode: str | None = None) -> None:
            super().__init__(render_mode)
            if threading.get_native_id() != parent:
                raise RuntimeError("not in this process")

    env_fn = functools.partial(Fails, threading.get_native_id())
    words = r"(?s)^another process: expected no error, got.*RuntimeError: not in this process"
    with pytest.raises(AssertionError, match=words):
        run_env_check("another_process_sees_the_same", env_fn)


def test_a_wrapper_that_ignores_steps_after_the_end_passes() -> None:
    run_env_check("steps_outside_an_episode_are_refused", lambda: OrderEnforcingWrapper(TinyEnv()))


def test_an_episode_without_an_end_is_a_failure() -> None:
    class Endless(TinyEnv):
        turns = 10**9

        def observe(self, agent: str) -> dict[str, Any]:
            return {"messages": tuple(self.conversations[agent][-1:])}  # the rest is long

    words = "an end of the episode within 1000 turns"
    with pytest.raises(AssertionError, match=words):
        run_env_check("every_agent_is_told_why_it_ended", Endless)


def test_the_caller_keeps_its_random_state_and_sees_no_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    random.seed(1)
    np.random.seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist()
    for name in ENV_CHECKS.keys() - IN_ANOTHER_PROCESS:
        run_env_check(name, RichEnv)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    assert capsys.readouterr().out == ""
