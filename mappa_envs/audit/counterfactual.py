"""What an action changed: the episode is played on from the same moment with other actions instead.

The credit of an action is the outcome of the episode as it was, minus the mean outcome of the
episodes in which an alternative took its place and everybody else went on by the same policy. A
coach whose scores say what matters gives much where the credit is high.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.audit.estimates import Estimate, estimate
from mappa_envs.audit.weighted import correlation, mean
from mappa_envs.env import EnvSnapshot, PipelineEnv
from mappa_envs.play import Play, Policy
from mappa_envs.records import is_decided, outcome_record

ALL = "all"
"""What stands for every role together."""


@dataclass(frozen=True, slots=True)
class Credit:
    """What one action changed, and what the coach said of it."""

    episode: str
    """Tells the episodes of an audit apart."""
    step: int
    agent: str
    role: str
    score: float | None
    """The coach's 0 to 10; None where it gave none."""
    outcome: float
    """Of the episode with the action, 0 to 1."""
    alternatives: tuple[float, ...]
    """Outcomes of the episodes with alternatives, those that were decided."""

    @property
    def credit(self) -> float | None:
        """The outcome minus the alternatives' mean, -1 to 1; None without an alternative."""
        if not self.alternatives:
            return None
        return fmean(self.outcome - alternative for alternative in self.alternatives)

    def record(self) -> dict[str, Any]:
        """Return this as JSON-ready data."""
        return asdict(self)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Credit:
        """Return what `record` described.

        Raises:
            TypeError: it is no record of a credit.
        """
        return cls(**{**record, "alternatives": tuple(record["alternatives"])})


@dataclass(frozen=True, slots=True)
class RoleCredit:
    """What a role's actions changed, and how far the coach's scores rank them as their credit."""

    role: str
    """`"all"` stands for every role together."""
    actions: int
    """Actions with a credit."""
    unscored: int
    """Of those, actions that the coach gave no score."""
    undecided: int
    """Actions without a credit: all their alternatives were undecided."""
    credit: Estimate
    """The mean."""
    unchanged: float | None
    """The share of actions that changed nothing; None without a credit."""
    correlation: Estimate
    """Of score and credit, by rank."""


@dataclass(frozen=True, slots=True)
class CreditReport:
    """What actions changed, and how far the coach's scores agree."""

    source: str
    """The scenario or the run."""
    episodes: int
    undecided: int
    """Episodes without a decided outcome; they are left out."""
    roles: tuple[RoleCredit, ...]

    def record(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Moment:
    """The episode before an action, the action, and what was said in its place."""

    before: EnvSnapshot
    action: str
    alternatives: tuple[str, ...]


def counterfactual(
    env: AECEnv[str, Any, Any],
    policy: Policy,
    resample: Sequence[Policy],
    plays: Iterable[Play],
    samples: int,
) -> tuple[Credit, ...]:
    """Play episodes, and return the credit of each of their actions.

    Episodes without a decided outcome have no credits.

    Args:
        env: A coached environment; without a coach there are credits and no scores.
        policy: Plays the episodes, and plays on after an alternative.
        resample: Propose the alternatives, in turn.
        plays: Seeds and options of the episodes; no two may be equal.
        samples: Alternatives to each action, at least 1.
    """
    return tuple(
        credit
        for play in plays
        for credit in episode_credits(
            env, policy, resample, play, samples, episode=f"{dict(play.options)}, seed {play.seed}"
        )
    )


def episode_credits(
    env: AECEnv[str, Any, Any],
    policy: Policy,
    resample: Sequence[Policy],
    play: Play,
    samples: int,
    *,
    episode: str = "",
    onward: Policy | None = None,
) -> tuple[Credit, ...]:
    """Play one episode, and return the credit of each of its actions; see `counterfactual`.

    Alternatives are played without the coach, so they cost no judgements. A text that was said
    from the same moment before, by the policy itself or as an alternative, is not played again.
    The environment is left amid an alternative: reset it.

    Args:
        env: As there.
        policy: Plays the episode.
        resample: As there.
        play: Seed and options of the episode.
        samples: As there.
        episode: How the credits name it.
        onward: Plays on, where that is not `policy`; also after the action itself, so that the
            difference is due to the action.

    Raises:
        ValueError: there is nothing to take the place of an action.
    """
    if samples < 1 or not resample:
        raise ValueError(f"samples is {samples} and policies to resample {len(resample)}; give 1")
    moments = _play_through(env, policy, resample, play, samples)
    bare: PipelineEnv = env.unwrapped
    turns, scores = bare.turns, {e.step: e.paying_score for e in getattr(env, "ledger", ())}
    outcome = _outcome(bare)
    if outcome is None:
        return ()
    credits = []
    for moment, turn in zip(moments, turns, strict=True):
        known: dict[str, float | None] = {} if onward else {moment.action: outcome}
        for text in (moment.action, *moment.alternatives):
            if text not in known:
                known[text] = _play_on(bare, moment.before, text, onward or policy)
        own = known[moment.action]
        others = [known[text] for text in moment.alternatives] if own is not None else []
        credits.append(
            Credit(
                episode=episode,
                step=turn.step,
                agent=turn.agent,
                role=turn.role,
                score=scores.get(turn.step),
                outcome=outcome if own is None else own,
                alternatives=tuple(other for other in others if other is not None),
            )
        )
    return tuple(credits)


def role_credits(credits: Sequence[Credit]) -> tuple[RoleCredit, ...]:
    """Sum up credits, and how far scores agree with them: over all actions, then role by role.

    Args:
        credits: Of any number of episodes; `Credit.episode` says which belong together.
    """
    roles = dict.fromkeys(credit.role for credit in credits)
    groups = {ALL: list(credits)} | {
        role: [credit for credit in credits if credit.role == role] for role in roles
    }
    return tuple(_role_credit(role, group) for role, group in groups.items())


def _play_through(
    env: AECEnv[str, Any, Any],
    policy: Policy,
    resample: Sequence[Policy],
    play: Play,
    samples: int,
) -> list[_Moment]:
    bare: PipelineEnv = env.unwrapped
    moments = []
    env.reset(seed=play.seed, options=dict(play.options))
    while bare.end_reason is None:
        agent = env.agent_selection
        seen = env.observe(agent)
        others = tuple(resample[i % len(resample)](agent, seen) for i in range(samples))
        moments.append(_Moment(bare.snapshot(), policy(agent, seen), others))
        env.step(moments[-1].action)
    return moments


def _play_on(bare: PipelineEnv, before: EnvSnapshot, text: str, onward: Policy) -> float | None:
    """Return the outcome of the episode that goes on from a moment with a text."""
    bare.restore(before)
    bare.step(text)
    while bare.end_reason is None:
        agent = bare.agent_selection
        bare.step(onward(agent, bare.observe(agent)))
    return _outcome(bare)


def _outcome(bare: PipelineEnv) -> float | None:
    """Return an episode's outcome; None where it was not decided."""
    if bare.outcome is None or not is_decided(outcome_record(bare.episode)):
        return None
    return bare.outcome.score


def _role_credit(role: str, credits: Sequence[Credit]) -> RoleCredit:
    known = [(each, each.credit) for each in credits if each.credit is not None]
    scored = [(each, each.score, credit) for each, credit in known if each.score is not None]
    values = np.array([credit for _, credit in known], dtype=np.float64)
    return RoleCredit(
        role=role,
        actions=len(known),
        unscored=len(known) - len(scored),
        undecided=len(credits) - len(known),
        credit=estimate(
            partial(mean, values=values),
            _episodes([each for each, _ in known]),
            "no action has a credit",
        ),
        unchanged=float((values == 0).mean()) if known else None,
        correlation=estimate(
            partial(
                correlation,
                x=np.array([score for _, score, _ in scored], dtype=np.float64),
                y=np.array([credit for _, _, credit in scored], dtype=np.float64),
            ),
            _episodes([each for each, _, _ in scored]),
            "scores or credits are all equal" if scored else "no action has a score and a credit",
        ),
    )


def _episodes(credits: Sequence[Credit]) -> list[int]:
    """Return a number for the episode of each credit."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(each.episode, len(numbers)) for each in credits]
