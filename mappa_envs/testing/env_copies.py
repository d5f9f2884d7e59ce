"""Checks of an environment: copies, snapshots and forks of it in the middle of an episode."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import closing
from typing import Any

from mappa_envs.testing.env_traces import (
    OTHER_SCRIPT,
    SEED,
    Env,
    EnvFn,
    look,
    moments,
    new_trace,
    same,
    trace,
)
from mappa_envs.testing.expect import equal

_REFUSALS = (TypeError, NotImplementedError, pickle.PickleError)


def deep_copies_go_on_alone_or_are_refused(env_fn: EnvFn) -> None:
    """`copy.deepcopy` gives an episode of its own in the same state, or a clear error."""
    _check_copies(env_fn, copy.deepcopy, "copy.deepcopy(env)")


def shallow_copies_go_on_alone_or_are_refused(env_fn: EnvFn) -> None:
    """`copy.copy` gives an episode of its own in the same state, or a clear error."""
    _check_copies(env_fn, copy.copy, "copy.copy(env)")


def pickles_go_on_alone_or_are_refused(env_fn: EnvFn) -> None:
    """`pickle` gives an episode of its own in the same state, or a clear error."""
    _check_copies(env_fn, lambda env: pickle.loads(pickle.dumps(env)), "a pickle of env")


def _check_copies(env_fn: EnvFn, make_copy: Callable[[Env], Env], what: str) -> None:
    expected = new_trace(env_fn)
    turn = len(expected) // 2
    with closing(env_fn()) as env:
        env.reset(seed=SEED)
        steps = moments(env)
        actual = [next(steps) for _ in range(turn + 1)]
        standing = (list(env.agents), env.agent_selection)
        if _can_copy(env, make_copy, what):
            with closing(make_copy(env)) as twin:
                same(list(moments(twin, turn=turn)), expected[turn:], f"{what}, the rest")
            with closing(make_copy(env)) as twin:
                list(moments(twin, OTHER_SCRIPT, turn))
        still = (list(env.agents), env.agent_selection)
        equal(still, standing, f"agents, and who is to act, after {what} went on")
        same(actual + list(steps), expected, f"the episode of which there was {what}")


def _can_copy(env: Env, make_copy: Callable[[Env], Env], what: str) -> bool:
    try:
        twin = make_copy(env)
    except _REFUSALS as error:
        if not str(error) or "cannot pickle" in str(error):
            raise AssertionError(
                f"{what}: expected a copy, or a TypeError that says what to do instead, got {error}"
            ) from error
        return False
    twin.close()
    return True


def snapshots_bring_every_turn_back(env_fn: EnvFn) -> None:
    """From a snapshot of any turn equal actions go on equally, after the end and elsewhere too.

    Environments without `snapshot` pass.
    """
    with closing(env_fn()) as env, closing(env_fn()) as other:
        env.reset(seed=SEED)
        if not hasattr(env, "snapshot"):
            return
        snapshots, expected = [], []
        for moment in moments(env):
            snapshots.append(env.snapshot())
            expected.append(moment)
        snapshots.append(env.snapshot())
        env.reset()
        expected_next = [look(env)]
        trace(other, SEED + 1, OTHER_SCRIPT)
        for turn, snapshot in [*enumerate(snapshots), *reversed(list(enumerate(snapshots)))]:
            which, where = (other, "in another env") if turn % 2 else (env, "in its env")
            which.restore(snapshot)
            what = f"the snapshot of turn {turn}, {where}"
            same(list(moments(which, turn=turn)), expected[turn:], f"from {what}")
            which.reset()
            same([look(which)], expected_next, f"the next episode after {what}")


def forks_do_not_see_each_other(env_fn: EnvFn) -> None:
    """A fork of any turn is an episode of its own that begins in the same state.

    Environments without `fork` pass.
    """
    expected = new_trace(env_fn)
    with closing(env_fn()) as env:
        if not hasattr(env, "fork"):
            return
        env.reset(seed=SEED)
        actual = []
        for turn, moment in enumerate(moments(env)):
            actual.append(moment)
            _check_forks(env, turn, expected[turn:])
        same(actual, expected, "the episode of which there were forks")


def _check_forks(env: Any, turn: int, expected: list[Any]) -> None:
    with closing(env.fork()) as fork, closing(env.fork()) as other:
        steps = moments(fork, turn=turn)
        actual = [next(steps)]
        list(moments(other, OTHER_SCRIPT, turn))
        actual += steps
        same(actual, expected, f"a fork of turn {turn}")


CHECKS: tuple[Callable[[EnvFn], None], ...] = (
    deep_copies_go_on_alone_or_are_refused,
    shallow_copies_go_on_alone_or_are_refused,
    pickles_go_on_alone_or_are_refused,
    snapshots_bring_every_turn_back,
    forks_do_not_see_each_other,
)
