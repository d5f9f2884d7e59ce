"""Checks of an environment: who is paid what, and how agents end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from typing import Any

from mappa_envs.testing.env_traces import (
    OTHER_SCRIPT,
    SCRIPT,
    SEED,
    Env,
    EnvFn,
    Moment,
    ScenarioScript,
    moments,
    new_trace,
    trace,
)
from mappa_envs.testing.expect import equal

_SCRIPTS = (SCRIPT, OTHER_SCRIPT, ScenarioScript())


def every_reward_is_paid_once(env_fn: EnvFn) -> None:
    """What `rewards` says after a step reaches its agent at its next `last()`, exactly."""
    with closing(env_fn()) as env:
        for script in _SCRIPTS:
            env.reset(seed=SEED)
            owed = dict.fromkeys(env.possible_agents, 0.0)
            for turn, moment in enumerate(moments(env, script)):
                for agent, reward in env.rewards.items():
                    owed[agent] += reward
                what = f"turn {turn}: what last() pays to {moment.agent} of its rewards"
                equal(moment.reward, owed[moment.agent], what)
                owed[moment.agent] = 0.0
            lost = {agent: reward for agent, reward in owed.items() if reward}
            equal(lost, {}, "rewards that were never paid")


def the_ledger_is_what_was_paid(env_fn: EnvFn) -> None:
    """One entry for each action, settled before the dead turns, with exactly the rewards paid.

    Environments without a `ledger` pass.
    """
    with closing(env_fn()) as env:
        for script in _SCRIPTS:
            env.reset(seed=SEED)
            if not hasattr(env, "ledger"):
                return
            _check_ledger(env, [_with_settled_ledger(env, each) for each in moments(env, script)])


def _with_settled_ledger(env: Env, moment: Moment) -> Moment:
    if moment.dead:
        pending = [entry for entry in env.ledger if entry.status == "pending"]
        equal(pending, [], f"pending entries at the dead turn of {moment.agent}")
    return moment


def _check_ledger(env: Env, played: list[Moment]) -> None:
    actions = Counter(moment.agent for moment in played if not moment.dead)
    equal(Counter(entry.agent for entry in env.ledger), actions, "ledger entries of each agent")
    paid: dict[str, Fraction] = defaultdict(Fraction)
    for moment in played:
        paid[moment.agent] += Fraction(moment.reward)
        if moment.dead:
            own = [entry.reward for entry in env.ledger if entry.agent == moment.agent]
            what = f"the sum of the ledger's rewards of {moment.agent}, which is what was paid"
            equal(float(sum(map(Fraction, own))), float(paid[moment.agent]), what)
            told = [entry["reward"] for entry in moment.info.get("ledger", ())]
            equal(told, own, f"the rewards in the last info of {moment.agent} under 'ledger'")


def agents_end_once_and_in_one_way(env_fn: EnvFn) -> None:
    """Each agent has one dead turn, at which it is either terminated or truncated."""
    with closing(env_fn()) as env:
        for script in _SCRIPTS:
            played = trace(env, SEED, script)
            for turn, moment in enumerate(played):
                flags = (moment.terminated, moment.truncated)
                what = f"turn {turn}: (terminated, truncated) of {moment.agent}"
                kinds = {type(flag) for flag in flags}
                equal(kinds, {bool}, f"{what}, the types")
                equal(flags == (True, True), False, f"{what}, both at once")
            ends = Counter(moment.agent for moment in played if moment.dead)
            agents = Counter({moment.agent for moment in played})
            equal(ends, agents, "dead turns of each agent that had a turn")


def every_agent_is_told_why_it_ended(env_fn: EnvFn) -> None:
    """Where one agent's last info has an `end_reason`, each has one."""
    infos: dict[str, dict[str, Any]] = {
        moment.agent: moment.info for moment in new_trace(env_fn) if moment.dead
    }
    if any("end_reason" in info for info in infos.values()):
        for agent, info in infos.items():
            reason = info.get("end_reason")
            told = isinstance(reason, str) and reason != ""
            equal(told, True, f"a text under 'end_reason' of {agent} instead of {reason!r}")


CHECKS: tuple[Callable[[EnvFn], None], ...] = (
    every_reward_is_paid_once,
    the_ledger_is_what_was_paid,
    agents_end_once_and_in_one_way,
    every_agent_is_told_why_it_ended,
)
