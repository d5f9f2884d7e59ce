"""Checks of an environment: seed, options and actions determine an episode, wherever it is."""

from __future__ import annotations

import os
import pickle
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np

from mappa_envs.testing.env_process import in_another_process
from mappa_envs.testing.env_traces import (
    OTHER_SCRIPT,
    SCRIPT,
    SEED,
    EnvFn,
    MixedScript,
    Moment,
    moments,
    new_trace,
    same,
    trace,
    unchanged,
)

_THREADS = 4


def equal_seeds_and_actions_give_equal_episodes(env_fn: EnvFn) -> None:
    """Also the episodes that follow without a seed of their own."""
    with closing(env_fn()) as env, closing(env_fn()) as other:
        for script, seed in ((SCRIPT, SEED), (OTHER_SCRIPT, None), (SCRIPT, 0)):
            expected = trace(env, seed, script)
            same(trace(other, seed, script), expected, f"an episode of seed {seed} in a second env")


def another_process_sees_the_same(env_fn: EnvFn) -> None:
    """Equal seeds give equal episodes and samples in a process that hashes differently."""
    episodes, samples = in_another_process(_everything_seeded, env_fn)
    own_episodes, own_samples = _everything_seeded(env_fn)
    for script, expected in own_episodes.items():
        same(episodes[script], expected, f"an episode of {script} in another process")
    unchanged(samples, own_samples, "samples of spaces in another process")


def _everything_seeded(env_fn: EnvFn) -> tuple[dict[MixedScript, list[Moment]], dict[str, Any]]:
    with closing(env_fn()) as env:
        episodes = {script: trace(env, SEED, script) for script in (SCRIPT, OTHER_SCRIPT)}
        samples = {}
        for agent in env.possible_agents:
            for space in (env.action_space(agent), env.observation_space(agent)):
                space.seed(SEED)
                samples[f"{agent} {space}"] = [space.sample() for _ in range(5)]
    return episodes, samples


def threads_see_the_same(env_fn: EnvFn) -> None:
    """Environments that run at once in threads do not disturb each other."""
    play = partial(_each_seeded, env_fn)
    expected = [play(seed) for seed in range(_THREADS)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for seed, actual in enumerate(pool.map(play, range(_THREADS))):
            same(actual, expected[seed], f"an episode of seed {seed} beside others in threads")


def _each_seeded(env_fn: EnvFn, seed: int) -> list[Moment]:
    return new_trace(env_fn, seed, MixedScript(seed))


def environments_share_nothing(env_fn: EnvFn) -> None:
    """Two that are played by turns go as they go alone."""
    expected, other_expected = new_trace(env_fn), new_trace(env_fn, SEED + 1, OTHER_SCRIPT)
    with closing(env_fn()) as env, closing(env_fn()) as other:
        env.reset(seed=SEED)
        other.reset(seed=SEED + 1)
        actual, other_actual = [], []
        other_moments = moments(other, OTHER_SCRIPT)
        for moment in moments(env):
            actual.append(moment)
            other_actual += [seen for seen in [next(other_moments, None)] if seen is not None]
        other_actual += other_moments
    same(actual, expected, "an episode that takes turns with another environment's")
    same(other_actual, other_expected, "the other environment's episode")


def nothing_is_left_of_earlier_episodes(env_fn: EnvFn) -> None:
    """An episode after others, whole and broken off, goes as in a new environment."""
    expected = new_trace(env_fn)
    with closing(env_fn()) as env:
        for _ in range(2):
            env.reset(seed=SEED + 1)
            for _ in zip(range(3), moments(env, OTHER_SCRIPT), strict=False):
                pass
            same(trace(env), expected, "an episode after one broken off")
            trace(env, SEED + 1, OTHER_SCRIPT)
            same(trace(env), expected, "an episode after a whole one")


def infos_hold_no_paths(env_fn: EnvFn) -> None:
    """No info names a file of this machine: it would differ on another."""
    folders = {tempfile.gettempdir(), os.getcwd(), os.path.expanduser("~")} - {"/"}
    path = re.compile("|".join(rf"{re.escape(folder)}/[\w.-]+" for folder in folders))
    for turn, moment in enumerate(new_trace(env_fn)):
        if found := path.search(repr(moment.info)):
            raise AssertionError(
                f"turn {turn}: the info of {moment.agent} holds the path {found[0]}; expected none"
            )


def the_callers_random_state_is_untouched(env_fn: EnvFn) -> None:
    """Nothing draws from, or seeds, the generators of `random` and `numpy.random`."""
    with _known_random_state():
        with _untouched("making an environment"):
            env = env_fn(render_mode="ansi")
        with _untouched("reset()"):
            env.reset(seed=SEED)
        with _untouched("reset() without a seed"):
            env.reset()
        with _untouched("render()"):
            env.render()
        with _untouched("sampling a space"):
            env.observation_space(env.agents[0]).sample()
        with _untouched("an episode"):
            trace(env)
        with _untouched("close()"):
            env.close()


@contextmanager
def _known_random_state() -> Iterator[None]:
    """Let the generators stand where nobody's seed puts them, and afterwards where they stood."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed("known random state")
    np.random.seed(random.randrange(1 << 32))
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


@contextmanager
def _untouched(what: str) -> Iterator[None]:
    before = _random_states()
    yield
    for name, state in _random_states().items():
        if state != before[name]:
            raise AssertionError(f"{what}: expected the state of {name} as before, got another")


def _random_states() -> dict[str, bytes]:
    states = {"random": random.getstate(), "numpy.random": np.random.get_state()}
    return {name: pickle.dumps(state) for name, state in states.items()}


CHECKS: tuple[Callable[[EnvFn], None], ...] = (
    equal_seeds_and_actions_give_equal_episodes,
    another_process_sees_the_same,
    threads_see_the_same,
    environments_share_nothing,
    nothing_is_left_of_earlier_episodes,
    infos_hold_no_paths,
    the_callers_random_state_is_untouched,
)
