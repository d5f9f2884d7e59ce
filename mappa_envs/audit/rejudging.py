"""A second coach judges stored episodes again, and is compared with the first.

The second coach is told what it would have been told at play: the turn, those before it, and the
right answer if it asks for it. Nothing is played and no program runs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from mappa_envs.audit.estimates import Estimate, estimate
from mappa_envs.audit.remade import Env
from mappa_envs.audit.stored import Record, StoredEpisode, StoredRun, outcome_of, stored_episodes
from mappa_envs.audit.stored import turns_of as stored_turns
from mappa_envs.audit.weighted import correlation, kappa, mean
from mappa_envs.coach.contexts import context_of
from mappa_envs.coach.judging import Question, judge
from mappa_envs.errors import AuditError
from mappa_envs.types import Task, Turn
from mappa_envs.waiting import in_thread

AT_ONCE: Final = 16
"""Episodes whose actions are judged together."""


@dataclass(frozen=True, slots=True)
class Rejudged:
    """One action with both scores."""

    episode: int
    role: str
    first: float
    second: float | None
    """None where the second coach gave none."""
    failure: str | None
    """Why."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a second coach's scores of a role go with the first one's."""

    role: str
    first_coach: str
    second_coach: str
    actions: int
    """That the first coach scored."""
    failures: Mapping[str, int]
    """Those that the second did not score, by the reason."""
    correlation: Estimate
    """By rank."""
    difference: Estimate
    """Mean points: the second less the first."""
    distance: Estimate
    """Mean points, whichever is higher."""
    kappa: Estimate
    """Of scores rounded to whole points, with quadratic weights."""


def task_of(env: Env, stored: StoredEpisode) -> Task:
    """Return the task of a stored episode, with its text.

    Raises:
        AuditError: the environment has another task in its place now.
        TaskError: it has none.
    """
    seed, options, name = stored.read(
        lambda row: (row["seed"], dict(row["options"]), row["task"]["id"])
    )
    env.reset(seed=seed, options=options)
    task: Task = env.unwrapped.task
    if task.id != name:
        raise AuditError(
            f"{stored.place}: was played on task {name!r}, and its options {options} lead to "
            f"{task.id!r} now; restore the task files or packages"
        )
    return task


def question_of(
    coach: Any, task: Task, row: Record, turns: tuple[Turn, ...], step: int
) -> Question:
    """Return what a coach is asked about a stored action."""
    is_last = step + 1 == len(turns)
    outcome = outcome_of(row) if is_last else None
    return Question(turns[step], context_of(coach, task, turns[: step + 1], outcome))


async def rejudge(
    run: StoredRun, env: Env, tell: Callable[[int], None] = lambda _: None
) -> list[Rejudged]:
    """Have the coach of an environment judge every action that has a first score.

    Args:
        run: The episodes.
        env: With the second coach, see `remade_env`.
        tell: Called with how many episodes are done.

    Raises:
        AuditError: a row is damaged, or of tasks that are no longer there.
    """
    found: list[Rejudged] = []
    stored = itertools.chain.from_iterable(map(stored_episodes, run.scored_files))
    numbered = enumerate(stored)
    while batch := list(itertools.islice(numbered, AT_ONCE)):
        asked = [each for number, episode in batch for each in _asked(number, episode, env)]
        said = await asyncio.gather(
            *(judge(env.coach, question, in_thread) for *_, question in asked)
        )
        for (number, first, question), judgement in zip(asked, said, strict=True):
            role = question.turn.role
            found.append(Rejudged(number, role, first, judgement.score, judgement.failure))
        tell(batch[-1][0] + 1)
    return found


def agreements(actions: Sequence[Rejudged], first_coach: str, second_coach: str) -> list[Agreement]:
    """Compare the scores of two coaches, for each role."""
    roles = dict.fromkeys(action.role for action in actions)
    return [
        _agreement(role, [a for a in actions if a.role == role], first_coach, second_coach)
        for role in roles
    ]


def _asked(number: int, stored: StoredEpisode, env: Env) -> Iterator[tuple[int, float, Question]]:
    turns = stored.read(stored_turns)
    if turns is None:
        raise AuditError(f"{stored.place}: its environment told of no turns; none can be judged")
    task = task_of(env, stored)
    entries = stored.read(lambda row: [action["ledger"] or {} for action in row["actions"]])
    for step, entry in enumerate(entries):
        if (score := entry.get("score")) is not None:
            ask = partial(question_of, env.coach, task, turns=turns, step=step)
            yield number, float(score), stored.read(ask)


def _agreement(role: str, actions: Sequence[Rejudged], first: str, second: str) -> Agreement:
    both = [(a.episode, a.first, a.second) for a in actions if a.second is not None]
    episodes = [episode for episode, _, _ in both]
    one = np.array([score for _, score, _ in both], dtype=np.float64)
    other = np.array([score for _, _, score in both], dtype=np.float64)
    nothing = "the second coach scored nothing" if not both else "a coach's scores are all equal"
    return Agreement(
        role=role,
        first_coach=first,
        second_coach=second,
        actions=len(actions),
        failures=dict(Counter(str(a.failure) for a in actions if a.second is None)),
        correlation=estimate(partial(correlation, x=one, y=other), episodes, nothing),
        difference=estimate(partial(mean, values=other - one), episodes, nothing),
        distance=estimate(partial(mean, values=np.abs(other - one)), episodes, nothing),
        kappa=estimate(
            partial(kappa, one=np.floor(one + 0.5), other=np.floor(other + 0.5)),
            episodes,
            nothing,
        ),
    )
