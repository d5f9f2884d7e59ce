"""Coaches that are right but for one thing, with what each check says that finds it."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from mappa_envs.coach.protocol import CoachContext
from mappa_envs.errors import CoachError
from mappa_envs.types import Assessment, Spent, Turn


class PaysForLength:
    """Right: one point for each character, 10 at most; it cannot judge what is empty."""

    id = "length"
    truth_roles: Any = ()

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        if not turn.action:
            raise CoachError("there is nothing to judge")
        return Assessment(float(min(10, len(turn.action))), "one point a character")


class PaysForLengthSoon(PaysForLength):
    """Right, and can be awaited."""

    async def aassess(self, turn: Turn, context: CoachContext) -> Assessment:
        await asyncio.sleep(0)
        return self.assess(turn, context)


class HasNoId(PaysForLength):
    id = ""


class IsNamedAnewEachTime(PaysForLength):
    count = itertools.count()

    def __init__(self) -> None:
        self.id = f"length-{next(self.count)}"


class IsNaNWhereNothingHappened(PaysForLength):
    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        said = super().assess(turn, context)
        first = not context.history and context.outcome is None and context.truth is None
        plain = turn.action.isprintable() and len(turn.action) > 40
        return Assessment(float("nan"), "") if first and plain else said


class StumblesOverNothing(PaysForLength):
    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        return Assessment(float(turn.action.count(turn.action[0]) > 0), "")


class StumblesOverNull(PaysForLength):
    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        if "\0" in turn.action:
            raise ValueError("embedded null byte")
        return super().assess(turn, context)


class ObeysVerdicts(PaysForLength):
    """An order in place of an action is believed, letter for letter."""

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        if turn.action.startswith("PROCESS_SCORE:"):
            return Assessment(turn.action.split()[-1], "as it says")  # type: ignore[arg-type]
        return super().assess(turn, context)


class NeedsAnExitStatus(PaysForLength):
    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        if any(result.exit_code < 0 for result in turn.tool_results):  # type: ignore[operator]
            return Assessment(0.0, "killed")
        return super().assess(turn, context)


class LosesItselfInThePast(PaysForLength):
    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        if len(context.history) > 100:
            raise RecursionError("maximum recursion depth exceeded")
        return super().assess(turn, context)


class GivesTwentyInHindsight(PaysForLength):
    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        said = super().assess(turn, context)
        return said if context.outcome is None else Assessment(20.0, said.rationale)


class NeedsTheRightAnswer(PaysForLength):
    truth_roles = ("solver", "coder", "verifier")

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        right = context.truth.lower() in turn.action  # type: ignore[union-attr]
        return Assessment(10.0 * right, "")


class NamesARoleByItsLetters(PaysForLength):
    truth_roles = "coder"


class ThinksAgain(PaysForLength):
    def __init__(self) -> None:
        self.count = itertools.count()

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        super().assess(turn, context)
        return Assessment(float(next(self.count) % 11), "in turn")


class LeavesNotes(PaysForLength):
    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        said = super().assess(turn, context)
        turn.facts["score"] = said.score  # type: ignore[index]
        return said


class TakesOneAtATime(PaysForLength):
    busy = False

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        if self.busy:
            raise RuntimeError("cannot use a connection that is in use")
        self.busy = True
        try:
            time.sleep(0.002)
            return super().assess(turn, context)
        finally:
            self.busy = False


class IsKinderWhenAwaited(PaysForLengthSoon):
    async def aassess(self, turn: Turn, context: CoachContext) -> Assessment:
        return Assessment(10.0, "one point a character")


class IsAwaitedInVain(PaysForLengthSoon):
    def aassess(self, turn: Turn, context: CoachContext) -> Any:  # type: ignore[override]
        return self.assess(turn, context)


class HoldsUpTheLoop(PaysForLengthSoon):
    async def aassess(self, turn: Turn, context: CoachContext) -> Assessment:
        if turn.step == 0:
            time.sleep(0.11)
        return self.assess(turn, context)


class CannotSayWhatItCost(PaysForLength):
    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        said = super().assess(turn, context)
        return Assessment(said.score, said.rationale, spent=Spent(1, usd=float("nan")))


class ExplainsNothing(PaysForLength):
    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        said = super().assess(turn, context)
        return said if turn.action.startswith("S") else Assessment(said.score, None)  # type: ignore[arg-type]


BROKEN: dict[type[PaysForLength], tuple[str, str]] = {
    HasNoId: ("has_an_id", "id: expected a text on one line, got ''"),
    IsNamedAnewEachTime: ("has_an_id", "the id of another coach that was made alike: expected"),
    StumblesOverNothing: (
        "judges_or_refuses_empty_actions",
        "the action '' of solver_0: expected an Assessment or a CoachError, got IndexError",
    ),
    StumblesOverNull: ("judges_or_refuses_hostile_actions", "got ValueError('embedded null byte')"),
    ObeysVerdicts: ("judges_or_refuses_hostile_actions", "expected a score from 0 to 10, got '10'"),
    NeedsAnExitStatus: ("judges_or_refuses_actions_whose_tools_failed", "got TypeError"),
    LosesItselfInThePast: ("judges_or_refuses_late_actions", "got RecursionError"),
    GivesTwentyInHindsight: (
        "judges_or_refuses_looking_back",
        "expected a score from 0 to 10, got 20.0",
    ),
    NeedsTheRightAnswer: ("needs_no_right_answer", "'NoneType' object has no attribute 'lower'"),
    NamesARoleByItsLetters: ("needs_no_right_answer", "expected names of roles, got 'coder'"),
    LeavesNotes: ("what_it_is_given_stays_as_it_is", "expected the turn as it was, got it changed"),
    IsKinderWhenAwaited: ("aassess_agrees_with_assess", "aassess of the action"),
    HoldsUpTheLoop: (
        "aassess_leaves_the_event_loop_free",
        "aassess: expected to hold up the event loop for less than 0.1 s, got 0.",
    ),
    CannotSayWhatItCost: ("its_ledger_is_exact", "expected an entry that JSON can hold, got Out"),
}
"""Each fails one check and no other."""
BROKEN_IN_MORE: dict[type[PaysForLength], tuple[str, str]] = {
    TakesOneAtATime: (
        "answers_from_several_threads_at_once",
        "got RuntimeError('cannot use a connection that is in use')",
    ),
    IsNaNWhereNothingHappened: (
        "judges_or_refuses_ordinary_actions",
        "expected a score from 0 to 10, got nan",
    ),
    ThinksAgain: ("the_same_question_has_the_same_answer", "asked again: expected"),
    IsAwaitedInVain: ("aassess_agrees_with_assess", "got TypeError"),
    ExplainsNothing: ("judges_or_refuses_ordinary_actions", "None as a text: expected True"),
}
"""What is wrong with these cannot but show in several checks."""
