r"""Judge a team's last message against a math problem's gold answers, by rule.

The answer is what the last `\boxed{...}` holds (see `find_answer`). It is correct when, against any
gold answer, it is the same text after tidying, the same rational number, or the same mathematics
by math-verify in a child process. A decimal is an exact number: 0.5 is 1/2 and 0.333 is not 1/3.
What no rule can decide in time is "undecided", scores 0, and says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from mappa_envs.outcomes.math_child import Comparison, MathChild
from mappa_envs.outcomes.math_text import (
    MAX_ANSWER_CHARS,
    canonical,
    contradicts_itself,
    exact_number,
    find_answer,
    readings,
    tidy,
    time_of_day,
)
from mappa_envs.outcomes.protocol import Workspace
from mappa_envs.types import Outcome, Task

_REASONS: dict[Comparison, str] = {
    "unreadable": "one side cannot be read as mathematics",
    "failed": "the comparison failed",
    "died": "the comparing process died",
    "late": "the deadline of {deadline_s:g} s passed",
}


class MathAnswerScorer:
    r"""Scores 1.0 for a correct answer and 0.0 for anything else.

    >>> scorer = MathAnswerScorer()
    >>> scorer.score(Task("t", "What is 2 + 3?", ("5",)), r"It is \boxed{5}.").verdict
    'correct'
    """

    def __init__(self, deadline_s: float = 5.0) -> None:
        self._child = MathChild(deadline_s)

    def score(self, task: Task, text: str, workspace: Workspace | None = None) -> Outcome:
        """Judge a team's last message; thinking blocks in it are ignored, and so are files.

        A message that no rule can decide is no error; its verdict is "undecided". The reason never
        shows a gold answer that the message did not give.

        Raises:
            MappaEnvError: the child process that compares mathematics cannot start.
        """
        return _judge(task.answers, text, self._compare)

    def close(self) -> None:
        """End the child process; a second call does nothing."""
        self._child.close()

    def _compare(self, gold: str, answer: str) -> str | bool:
        verdict = self._child.compare(gold, answer)
        if verdict in ("equal", "different"):
            return verdict == "equal"
        return _REASONS[verdict].format(deadline_s=self._child.deadline_s)


def check_answer(golds: Sequence[str], text: str, deadline_s: float = 5.0) -> Outcome:
    r"""Judge one message; for many, keep a `MathAnswerScorer`.

    >>> check_answer(["80", "81"], r"So \boxed{081}.").verdict
    'correct'

    Raises:
        MappaEnvError: the child process that compares mathematics cannot start.
    """
    scorer = MathAnswerScorer(deadline_s)
    try:
        return scorer.score(Task("", "", tuple(golds)), text)
    finally:
        scorer.close()


def _judge(golds: Sequence[str], text: str, compare: Callable[[str, str], str | bool]) -> Outcome:
    answer = find_answer(text)
    if answer is None:
        return Outcome(0.0, "no_answer", r"the message holds no \boxed{...} answer", None)
    shown = answer if len(answer) <= 80 else answer[:77] + "..."
    if len(answer) > MAX_ANSWER_CHARS:
        why = f"the answer is longer than {MAX_ANSWER_CHARS} characters"
        return Outcome(0.0, "undecided", why, shown)
    doubts = []
    for gold, reading in itertools.product(golds, readings(answer)):
        verdict = _same(tidy(gold), reading, compare)
        if verdict is True:
            return Outcome(1.0, "correct", f"{shown} equals {gold}", answer)
        if isinstance(verdict, str):
            doubts.append(verdict)
    if doubts:
        return Outcome(0.0, "undecided", f"{shown}: {doubts[0]}", answer)
    return Outcome(0.0, "wrong", f"{shown} equals no accepted answer", answer)


def _same(gold: str, answer: str, compare: Callable[[str, str], str | bool]) -> str | bool:
    """Return whether two tidied answers are the same, or why that is not known."""
    if canonical(gold) == canonical(answer):
        return True
    if not answer or contradicts_itself(answer):
        return False
    for read in (_numbers, _times):
        known = read(gold, answer)
        if known is not None:
            return known
    return compare(gold, answer)


def _numbers(gold: str, answer: str) -> bool | None:
    """Compare where the gold is a number, as such or as `x=5`; other equations are no numbers."""
    name, equals, _ = gold.partition("=")
    if equals and ("=" in answer or not name.strip().isalpha()):
        return None
    expected, stated = exact_number(gold), exact_number(answer)
    return None if expected is None or stated is None else expected.equals(stated)


def _times(gold: str, answer: str) -> bool | None:
    expected, stated = time_of_day(gold), time_of_day(answer)
    if expected is None or stated is None:
        return None
    return expected[:2] == stated[:2] and (expected[2] == stated[2] or not expected[2])
