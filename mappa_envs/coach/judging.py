"""Asking a coach for its judgement: now or later, in place or on an event loop.

Whatever a coach answers, a judgement is either a score from 0 to 10 or the reason why there is
none.
"""

from __future__ import annotations

import asyncio
import numbers
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from mappa_envs.coach.protocol import Coach, CoachContext
from mappa_envs.errors import CoachError
from mappa_envs.types import Assessment, Failure, Turn
from mappa_envs.waiting import Wait, finish, in_place, threads


@dataclass(frozen=True, slots=True)
class Question:
    """A turn that is to be judged, with what the coach is told."""

    turn: Turn
    context: CoachContext
    refusal: CoachError | None = None
    """Why the coach is not asked at all."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A coach's answer, or why there is none."""

    answer: Assessment | CoachError
    latency_s: float

    @property
    def score(self) -> float | None:
        """0 to 10; None where there is no answer."""
        return self.answer.score if isinstance(self.answer, Assessment) else None

    @property
    def why(self) -> str:
        """The reasons, or why there is no answer."""
        said = self.answer
        return said.rationale if isinstance(said, Assessment) else str(said)

    @property
    def failure(self) -> Failure | None:
        """Why there is no answer, as the ledger counts it."""
        return self.answer.failure if isinstance(self.answer, CoachError) else None


Answer = Future[Judgement] | asyncio.Task[Judgement]
"""A judgement that may still be on its way."""


async def judge(coach: Coach, question: Question, wait: Wait) -> Judgement:
    """Ask the coach, and wait for its answer in the way that the step waits."""
    if _is_awaited(coach, wait):
        return await _ask(coach, question, awaited=True)
    return await wait(_ask_here, coach, question)


def begin(coach: Coach, question: Question, wait: Wait) -> Answer:
    """Ask the coach without waiting for its answer."""
    if _is_awaited(coach, wait):
        return asyncio.create_task(_ask(coach, question, awaited=True))
    return threads().submit(_ask_here, coach, question)


def is_awaitable(begun: Answer, wait: Wait) -> bool:
    """Whether an answer can be waited for in this way: one of another event loop cannot."""
    if isinstance(begun, Future):
        return True
    if wait is in_place or begun.cancelled():
        return False
    return begun.get_loop() is asyncio.get_running_loop()


async def answer(begun: Answer, wait: Wait) -> Judgement:
    """Wait for an answer that `is_awaitable`."""
    if isinstance(begun, Future):
        if wait is in_place:
            return begun.result()
        return await asyncio.wrap_future(begun)
    return await begun


def withdraw(begun: Answer) -> None:
    """Stop waiting for an answer, from any thread."""
    if isinstance(begun, Future):
        begun.cancel()
    elif not begun.get_loop().is_closed():
        begun.get_loop().call_soon_threadsafe(begun.cancel)


def _is_awaited(coach: Coach, wait: Wait) -> bool:
    return wait is not in_place and hasattr(coach, "aassess")


def _ask_here(coach: Coach, question: Question) -> Judgement:
    return finish(_ask(coach, question, awaited=False))


async def _ask(coach: Any, question: Question, *, awaited: bool) -> Judgement:
    start = time.perf_counter()
    said: Assessment | CoachError
    if question.refusal is not None:
        return Judgement(question.refusal, 0.0)
    ask = coach.aassess if awaited else coach.assess
    try:
        answered = ask(question.turn, question.context)
        said = _checked(await answered if awaited else answered, coach.id)
    except CoachError as error:
        said = error
    return Judgement(said, time.perf_counter() - start)


def _checked(assessment: Assessment, coach: str) -> Assessment:
    if not isinstance(assessment, Assessment):
        raise TypeError(f"coach {coach!r} returned {assessment!r:.80}; it must be an Assessment")
    score: Any = assessment.score
    is_number = isinstance(score, numbers.Real) and not isinstance(score, bool)
    if not is_number or not 0 <= score <= 10:
        raise CoachError(f"coach {coach!r} gave {score!r}; a score is a number from 0 to 10")
    return assessment if type(score) is float else replace(assessment, score=float(score))
