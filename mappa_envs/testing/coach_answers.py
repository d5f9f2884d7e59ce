"""Checks of a coach: whatever it is asked, it judges, or says that it cannot."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, get_args

from mappa_envs.coach.judging import Question
from mappa_envs.coach.protocol import Coach
from mappa_envs.errors import CoachError
from mappa_envs.testing.coach_questions import CoachSubject
from mappa_envs.testing.expect import equal
from mappa_envs.types import Assessment, Failure

Said = Assessment | CoachError


def has_an_id(subject: CoachSubject) -> None:
    """A text on one line names the coach in the ledger; coaches that are made alike have one id."""
    name: Any = subject.make_coach().id
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise AssertionError(f"id: expected a text on one line, got {name!r:.100}")
    equal(subject.make_coach().id, name, "the id of another coach that was made alike")


def judges_or_refuses_ordinary_actions(subject: CoachSubject) -> None:
    """Each action of an episode gets a score from 0 to 10, or a `CoachError`."""
    _ask_all(subject, subject.ordinary)


def judges_or_refuses_empty_actions(subject: CoachSubject) -> None:
    """So does an action without a word, of a task without one, after nobody."""
    _ask_all(subject, subject.empty)


def judges_or_refuses_hostile_actions(subject: CoachSubject) -> None:
    """So does a huge text, one of control characters, one that is nothing but a verdict."""
    _ask_all(subject, subject.hostile)


def judges_or_refuses_actions_whose_tools_failed(subject: CoachSubject) -> None:
    """So does one whose programs failed, hit a limit, or could not be read at all."""
    _ask_all(subject, subject.failing)


def judges_or_refuses_late_actions(subject: CoachSubject) -> None:
    """So does one that comes after hundreds of others."""
    _ask_all(subject, subject.late)


def judges_or_refuses_looking_back(subject: CoachSubject) -> None:
    """So does each action when the outcome, and what came later, is known."""
    _ask_all(subject, subject.looking_back)


def needs_no_right_answer(subject: CoachSubject) -> None:
    """A coach that may be told the right answer works where it is not told."""
    roles: Any = getattr(subject.make_coach(), "truth_roles", ())
    if isinstance(roles, str) or not all(isinstance(role, str) for role in roles):
        raise AssertionError(f"truth_roles: expected names of roles, got {roles!r:.100}")
    _ask_all(subject, subject.without_truth)


def the_same_question_has_the_same_answer(subject: CoachSubject) -> None:
    """Asked again, and another one that was made alike; a coach that is not steady passes."""
    coach, other = subject.make_coach(), subject.make_coach()
    for question in subject.ordinary(coach):
        first = ask(coach, question)
        same_answer(subject, ask(coach, question), first, f"{name_of(question)}, asked again")
        same_answer(subject, ask(other, question), first, f"{name_of(question)}, another coach")


def what_it_is_given_stays_as_it_is(subject: CoachSubject) -> None:
    """The coach changes neither the turn nor what it is told besides."""
    coach = subject.make_coach()
    for question in (*subject.ordinary(coach), *subject.looking_back(coach)):
        before = copy.deepcopy(question)
        with suppress(Exception):  # what it says is not looked at here
            coach.assess(question.turn, question.context)
        for part in ("turn", "context"):
            if getattr(question, part) != getattr(before, part):
                raise AssertionError(
                    f"{name_of(question)}: expected the {part} as it was, got it changed"
                )


def ask(coach: Coach, question: Question) -> Said:
    """Return what a coach says, a `CoachError` that it raises included.

    Raises:
        AssertionError: it says, or raises, anything else.
    """
    try:
        said = coach.assess(question.turn, question.context)
    except CoachError as error:
        said = error  # type: ignore[assignment]
    except Exception as error:
        raise AssertionError(
            f"{name_of(question)}: expected an Assessment or a CoachError, got {error!r:.300}"
        ) from error
    return checked(said, name_of(question))


def checked(said: Any, what: str) -> Said:
    """Return an answer.

    Raises:
        AssertionError: it is none.
    """
    if isinstance(said, CoachError):
        equal(said.failure in get_args(Failure), True, f"{what}: {said.failure!r} as a Failure")
        return said
    if not isinstance(said, Assessment):
        raise AssertionError(f"{what}: expected an Assessment, got {said!r:.100}")
    score: Any = said.score
    number = isinstance(score, numbers.Real) and not isinstance(score, bool)
    if not number or not math.isfinite(score) or not 0 <= score <= 10:
        raise AssertionError(f"{what}: expected a score from 0 to 10, got {score!r:.100}")
    equal(isinstance(said.rationale, str), True, f"{what}: {said.rationale!r:.60} as a text")
    return said


def same_answer(subject: CoachSubject, said: Said, expected: Said, what: str) -> None:
    """Raise an `AssertionError` if a steady coach gives two answers to one question."""
    if subject.steady:
        equal(_gist(said), _gist(expected), what)


def name_of(question: Question) -> str:
    """Name the action of a question in messages."""
    return f"the action {question.turn.action!a:.60} of {question.turn.agent}"


def _ask_all(subject: CoachSubject, questions: Callable[[Coach], Iterable[Question]]) -> None:
    coach = subject.make_coach()
    for question in questions(coach):
        ask(coach, question)


def _gist(said: Said) -> tuple[object, ...]:
    """Return what must not change of an answer; its cost may."""
    if isinstance(said, CoachError):
        return ("failure", said.failure)
    return (float(said.score), said.rationale, said.coach)


CHECKS: tuple[Callable[[CoachSubject], None], ...] = (
    has_an_id,
    judges_or_refuses_ordinary_actions,
    judges_or_refuses_empty_actions,
    judges_or_refuses_hostile_actions,
    judges_or_refuses_actions_whose_tools_failed,
    judges_or_refuses_late_actions,
    judges_or_refuses_looking_back,
    needs_no_right_answer,
    the_same_question_has_the_same_answer,
    what_it_is_given_stays_as_it_is,
)
