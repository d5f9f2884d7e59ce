"""Checks of an environment: what can be seen of it, and that looking changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import numpy as np

from mappa_envs.testing.env_traces import (
    OTHER_SCRIPT,
    SCRIPT,
    SEED,
    Env,
    EnvFn,
    moments,
    new_trace,
    same,
    trace,
    unchanged,
)
from mappa_envs.testing.expect import equal


def looking_changes_nothing(env_fn: EnvFn) -> None:
    """`observe()`, `last()` and `render()` can be called at will, for any agent."""
    expected = new_trace(env_fn)
    with closing(env_fn(render_mode="ansi")) as env:
        env.reset(seed=SEED)
        actual = []
        for moment in moments(env):
            actual.append(moment)
            _look_around(env)
        same(actual, expected, "an episode that is looked at")


def _look_around(env: Env) -> None:
    infos = copy.deepcopy(env.infos)
    for agent in env.agents:
        first = copy.deepcopy(env.observe(agent))
        unchanged(env.observe(agent), first, f"observe({agent!r}), called twice")
    last = copy.deepcopy(env.last())
    unchanged(env.last(), last, "last(), called twice")
    equal(env.last(observe=False)[0], None, "the observation of last(observe=False)")
    unchanged(env.render(), env.render(), "render(), called twice")
    unchanged(env.infos, infos, "infos after looking")


def what_was_returned_is_the_callers(env_fn: EnvFn) -> None:
    """The caller may change observations and infos; no agent and no later episode sees it."""
    expected = new_trace(env_fn)
    with closing(env_fn()) as env:
        env.reset(seed=SEED)
        actual = []
        for moment in moments(env):
            actual.append(moment)
            _change_all_that_is_returned(env)
        plain = [moment._replace(info={}) for moment in expected]
        same(
            [moment._replace(info={}) for moment in actual], plain, "after its changes, an episode"
        )
        same(trace(env), expected, "the next episode after changes in infos")


def _change_all_that_is_returned(env: Env) -> None:
    for agent in env.agents:
        observation = env.observe(agent)
        before = copy.deepcopy(observation)
        _scramble(observation)
        unchanged(
            env.observe(agent), before, f"observe({agent!r}) after a change in an earlier one"
        )
    observation, *_, info = env.last()
    _scramble(observation)
    others = {agent: env.infos[agent] for agent in env.agents if agent != env.agent_selection}
    before = copy.deepcopy(others)
    _scramble(info)
    unchanged(others, before, f"infos of others after a change in that of {env.agent_selection}")


def _scramble(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, dict | list | tuple):
        for part in list(value.values() if isinstance(value, dict) else value):
            _scramble(part)
    if isinstance(value, dict):
        value.update(dict.fromkeys(value, "changed"), changed="changed")
    elif isinstance(value, list):
        value[:] = ["changed"]
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        value[...] = 0


def observations_are_in_their_spaces(env_fn: EnvFn) -> None:
    """Those of every agent, at every moment, also after an action that was refused."""
    with closing(env_fn()) as env:
        for script in (SCRIPT, OTHER_SCRIPT):
            env.reset(seed=SEED)
            for moment in moments(env, script):
                _check_containment(env, "")
                with suppress(Exception):
                    env.step("text" if moment.dead else None)
                _check_containment(env, " after a wrong action")


def _check_containment(env: Env, when: str) -> None:
    for agent in env.agents:
        observation, space = env.observe(agent), env.observation_space(agent)
        if observation not in space:
            raise AssertionError(
                f"observe({agent!r}){when}: expected a member of {space}, got {observation!r:.500}"
            )


def spaces_are_always_the_same_objects(env_fn: EnvFn) -> None:
    """Each agent has its two spaces for good, so that seeding them has an effect."""
    with closing(env_fn()) as env:
        before = {agent: _spaces(env, agent) for agent in env.possible_agents}
        for seed in range(2):
            env.reset(seed=seed)
            for moment in moments(env):
                for one, other in zip(
                    _spaces(env, moment.agent), before[moment.agent], strict=True
                ):
                    equal(one is other, True, f"{other} of {moment.agent} as the same object")


def _spaces(env: Env, agent: str) -> tuple[Any, Any]:
    return env.action_space(agent), env.observation_space(agent)


def samples_are_in_their_spaces(env_fn: EnvFn) -> None:
    """What a space draws it contains, and equal seeds draw the same."""
    with closing(env_fn()) as env:
        for agent in env.possible_agents:
            for space in _spaces(env, agent):
                space.seed(SEED)
                samples = [space.sample() for _ in range(100)]
                for sample in samples:
                    equal(sample in space, True, f"{sample!r:.100} as a member of {space}")
                space.seed(SEED)
                again = [space.sample() for _ in samples]
                unchanged(again, samples, f"samples of {space} of {agent} from one seed")


CHECKS: tuple[Callable[[EnvFn], None], ...] = (
    looking_changes_nothing,
    what_was_returned_is_the_callers,
    observations_are_in_their_spaces,
    spaces_are_always_the_same_objects,
    samples_are_in_their_spaces,
)
