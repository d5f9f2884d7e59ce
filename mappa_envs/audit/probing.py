"""Asks a coach about actions as they were and as they were changed, and sums up the difference.

What a coach cannot judge is counted by the kind of failure, and enters no figure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from mappa_envs.audit.blame import blamed
from mappa_envs.audit.bounds import Bound
from mappa_envs.audit.measures import (
    FIGURES,
    Pair,
    mean_spread,
    share_identical,
    slope_per_doubling,
)
from mappa_envs.audit.probes import PROBES, Probe, again
from mappa_envs.coach.judging import Judgement, Question, judge
from mappa_envs.coach.protocol import Coach
from mappa_envs.waiting import in_thread

PADDING: Final = "padding"


@dataclass(frozen=True, slots=True)
class FaultyEpisode:
    """An episode that one role spoilt on purpose, and what the coach is asked of each action."""

    culprit: str
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """What one probe found."""

    probe: str
    variant: str
    count: int
    """How many actions, pairs or episodes were measured."""
    failures: Mapping[str, int]
    """How many times the coach could not judge, by the kind of failure."""
    figures: Mapping[str, float]
    """By name; those that could not be measured are left out."""
    wanted: str
    """What a sound coach keeps to; empty where a figure is neither good nor bad."""
    passed: bool | None
    """None where nothing is wanted, or nothing could be measured."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What all probes of a coach found."""

    coach: str
    actions: int
    """How many actions were changed."""
    asked: int
    """How many judgements were asked for."""
    rows: tuple[Row, ...]

    @property
    def alarms(self) -> tuple[Row, ...]:
        """The rows that did not pass."""
        return tuple(row for row in self.rows if row.passed is False)

    def record(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        return asdict(self)


async def ask_all(
    coach: Coach,
    questions: Sequence[Question],
    *,
    at_once: int,
    tell: Callable[[], None] = lambda: None,
) -> list[Judgement]:
    """Ask a coach many questions, and return its answers in their order.

    Args:
        coach: Awaited where it has `aassess`, else asked in threads.
        questions: Turns, each with what the coach is told.
        at_once: Questions under way at a time.
        tell: Called after each answer.
    """
    free = asyncio.Semaphore(at_once)

    async def ask(question: Question) -> Judgement:
        async with free:
            answered = await judge(coach, question, in_thread)
        tell()
        return answered

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(question)) for question in questions]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


class Inquiry:
    """All questions of an audit, put together first and asked at one go.

    Args:
        questions: The actions as they were.
        faulty: Episodes for the question of blame.
        repeats: How often each action is judged as it was.
        probes: How actions are changed.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        faulty: Sequence[FaultyEpisode] = (),
        repeats: int = 5,
        probes: Sequence[Probe] = PROBES,
    ) -> None:
        self._questions = questions
        self._faulty = faulty
        self._asked: list[Question] = []
        self._repeats = [self._add(again(q, n) for n in range(repeats)) for q in questions]
        self._changed = {probe: self._add_changed(probe) for probe in probes}
        self._blamed = [self._add(episode.questions) for episode in faulty]

    @property
    def asked(self) -> tuple[Question, ...]:
        """Every question, in the order in which `report` wants the answers."""
        return tuple(self._asked)

    def report(self, coach: str, answers: Sequence[Judgement]) -> ProbeReport:
        """Return what the answers say of the coach.

        Args:
            coach: The id of the coach.
            answers: One for each of `asked`.
        """
        rows = [self._repeatability(answers)]
        padding: list[Pair] = []
        for probe, places in self._changed.items():
            pairs = self._pairs(places, answers)
            rows.append(_paired_row(probe, pairs, [answers[place] for place in places.values()]))
            padding += pairs if probe.name == PADDING else []
        if padding:
            rows.append(_slope_row(padding))
        if self._faulty:
            rows.append(self._blame(answers))
        return ProbeReport(coach, len(self._questions), len(self._asked), tuple(rows))

    def _add(self, questions: Iterable[Question]) -> range:
        """Ask something too, and return the places of the answers."""
        first = len(self._asked)
        self._asked += questions
        return range(first, len(self._asked))

    def _add_changed(self, probe: Probe) -> dict[int, int]:
        """Ask about each changed action; return the places of the answers by action."""
        changed = ((i, probe.change(question)) for i, question in enumerate(self._questions))
        return {i: self._add([question])[0] for i, question in changed if question is not None}

    def _pairs(self, places: Mapping[int, int], answers: Sequence[Judgement]) -> list[Pair]:
        """Return the scores of the actions that were judged both before and after the change."""
        pairs = []
        for i, place in places.items():
            before, after = answers[self._repeats[i][0]].score, answers[place].score
            if before is not None and after is not None:
                longer = len(self._asked[place].turn.action)
                growth = longer / max(1, len(self._questions[i].turn.action))
                pairs.append(Pair(before, after, growth))
        return pairs

    def _repeatability(self, answers: Sequence[Judgement]) -> Row:
        judged = [[answers[place] for place in places] for places in self._repeats]
        scores = [[j.score for j in group if j.score is not None] for group in judged]
        groups = [group for group in scores if len(group) > 1]
        figures = {
            "mean deviation": mean_spread(groups),
            "share identical": share_identical(groups),
        }
        failed = [judgement for group in judged for judgement in group]
        bound = Bound("mean deviation", most=0.5)
        return _row(("repeatability", "asked again"), len(groups), failed, figures, bound)

    def _blame(self, answers: Sequence[Judgement]) -> Row:
        """Measure the episodes in which every action was judged."""
        hits, asked = [], []
        for episode, places in zip(self._faulty, self._blamed, strict=True):
            judged = [answers[place] for place in places]
            asked += judged
            roles = [question.turn.role for question in episode.questions]
            scores = [
                (r, j.score) for r, j in zip(roles, judged, strict=True) if j.score is not None
            ]
            if len(scores) == len(roles):
                hits.append(blamed(scores) == episode.culprit)
        share = sum(hits) / len(hits) if hits else None
        bound = Bound("on the culprit", least=0.95)
        return _row(("blame", "planted faults"), len(hits), asked, {bound.figure: share}, bound)


def probe_coach(
    coach: Coach,
    questions: Sequence[Question],
    faulty: Sequence[FaultyEpisode] = (),
    *,
    repeats: int = 5,
    at_once: int = 8,
) -> ProbeReport:
    """Probe a coach from a program, see `Inquiry`; not while an event loop runs.

    Args:
        coach: Any coach.
        questions: Actions, each with what the coach is told; see `questions_of`.
        faulty: Episodes with a known culprit.
        repeats: How often each action is judged as it was, at least once.
        at_once: Questions under way at a time.
    """
    inquiry = Inquiry(questions, faulty, repeats)
    answers = asyncio.run(ask_all(coach, inquiry.asked, at_once=at_once))
    return inquiry.report(coach.id, answers)


def _paired_row(probe: Probe, pairs: Sequence[Pair], answers: Sequence[Judgement]) -> Row:
    figures = {name: FIGURES[name](pairs) for name in probe.shows}
    return _row((probe.name, probe.variant), len(pairs), answers, figures, probe.bound)


def _slope_row(pairs: Sequence[Pair]) -> Row:
    bound = Bound("slope per doubling", most=0.25)
    figures = {bound.figure: slope_per_doubling(pairs)}
    return _row((PADDING, "all lengths"), len(pairs), (), figures, bound)


def _row(
    names: tuple[str, str],
    count: int,
    answers: Sequence[Judgement],
    figures: Mapping[str, float | None],
    bound: Bound | None,
) -> Row:
    known = {name: value for name, value in figures.items() if value is not None}
    measured = bound is not None and bound.figure in known
    return Row(
        *names,
        count=count,
        failures=dict(Counter(a.failure for a in answers if a.failure is not None)),
        figures=known,
        wanted="" if bound is None else str(bound),
        passed=bound.holds(known[bound.figure]) if bound is not None and measured else None,
    )
