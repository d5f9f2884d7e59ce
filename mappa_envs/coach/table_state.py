"""What the environment knows of a team's artifacts, read from turns.

Facts come from a probe that loads what agents pickled, so anything may stand in them or be absent:
they are read with care here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mappa_envs.coach.protocol import CoachContext
from mappa_envs.types import Turn

X_TRAIN, Y_TRAIN, X_TEST = "X_train.pkl", "y_train.pkl", "X_test.pkl"
MODEL, SUBMISSION = "model.pkl", "submission.csv"
FRAMES: Final = (X_TRAIN, Y_TRAIN, X_TEST)
LEAST_ROWS: Final = 0.7
"""The share of the training rows that must be left: duplicates may be taken out."""
LEAST_ORDER: Final = 5.0
"""Below it, rows have nothing to do with those of the table in the same places."""
LEAST_SKILL: Final = 0.02
"""The share of a constant guess's error that a model must remove on training rows."""


@dataclass(frozen=True, slots=True)
class State:
    """The workspace at one moment."""

    authors: Mapping[str, str]
    """Who wrote each file, by path."""
    facts: Mapping[str, Any]

    @classmethod
    def after(cls, turn: Turn | None) -> State:
        """Return the state after a turn; None is the start of an episode."""
        if turn is None:
            return cls({}, {})
        return cls({file.path: file.author for file in turn.files}, turn.facts)

    def of(self, name: str) -> Mapping[str, Any]:
        """Return the facts about an artifact; none where it could not be looked at."""
        known = self.facts.get(name)
        return known if isinstance(known, Mapping) else {}

    def number(self, name: str, key: str) -> float | None:
        """Return a fact that is a number."""
        value = self.of(name).get(key)
        return value if isinstance(value, int | float) else None

    def unreadable(self, name: str) -> str | None:
        """Return why an artifact that is there could not be looked at."""
        problem = self.facts.get("problem", self.of(name).get("problem"))
        return None if problem is None else f"{name} cannot be looked at: {problem}"

    def has_leak(self) -> str | None:
        """Return which columns of the features give the answers away."""
        leaks = self.facts.get("leaks")
        if not isinstance(leaks, list) or not leaks:
            return None
        return f"{X_TRAIN} gives the answers away in {', '.join(map(str, leaks[:3]))}"

    def incomplete(self, name: str) -> str | None:
        """Return what a frame lacks in rows."""
        rows, due = self.number(name, "rows"), self.number(name, "rows_due")
        if rows is None or due is None or rows == due:
            return None
        beside = self.number(Y_TRAIN if name == X_TRAIN else X_TRAIN, "rows")
        if name != X_TEST and LEAST_ROWS * due <= rows < due and rows == beside:
            return None
        return f"{name} has {rows:g} rows, {due:g} are due"

    def unusable(self, name: str) -> str | None:
        """Return what in a frame no model can use."""
        kinds = ["missing_values", "infinite_values"]
        for kind in [*kinds, "not_numeric"] if name != Y_TRAIN else kinds:
            if count := self.number(name, kind):
                return f"{name}: {count:g} {kind.replace('_', ' ')}"
        return None

    def unlike(self) -> str | None:
        """Return how the test features differ from those for training."""
        if self.of(X_TEST).get("same_columns") is False:
            return f"{X_TEST} has other columns than {X_TRAIN}"
        return None

    def other_targets(self) -> str | None:
        """Return how the targets differ from those that were given."""
        if self.of(Y_TRAIN).get("as_given") is False:
            return f"{Y_TRAIN} does not hold the targets as they stand in train.csv"
        return None

    def disordered(self, name: str) -> str | None:
        """Return whether a frame's rows seem to be in another order than the table's."""
        order = self.number(name, "order_kept")
        if order is None or order >= LEAST_ORDER:
            return None
        return f"the rows of {name} have nothing to do with those of the table"

    def idle_model(self) -> str | None:
        """Return why the model predicts nothing."""
        if self.of(MODEL).get("fitted") is False:
            return f"{MODEL} is not fitted"
        if self.of(MODEL).get("predicts") is False:
            return f"{MODEL} does not predict from {X_TEST}"
        return None

    def knows_nothing(self, least_skill: float) -> str | None:
        """Return how little the model removes of the error of a constant guess."""
        skill = self.number(MODEL, "skill")
        if skill is None or skill >= least_skill:
            return None
        return f"{MODEL} removes {skill:.3g} of the error of a constant guess on {X_TRAIN}"

    def unfit_submission(self) -> str | None:
        """Return why the submission, as it stands, cannot be graded."""
        verdict = self.of(SUBMISSION).get("verdict")
        if verdict == "valid":
            return None
        due, usable = (self.number(SUBMISSION, f"ids_{kind}") for kind in ("due", "usable"))
        if due is None or usable is None:
            return f"{SUBMISSION}: {verdict!s:.80}"
        return f"{SUBMISSION}: {verdict!s:.80}; {usable:g} of {due:g} ids have one usable row"

    def constant(self) -> str | None:
        """Return whether the submission has one answer for all rows, and not from the model."""
        if not self.of(SUBMISSION).get("constant") or self.number(MODEL, "agreement") == 1:
            return None
        return f"{SUBMISSION} has the same values in each row"

    def copied(self) -> str | None:
        """Return whether the submission is the sample."""
        if not self.of(SUBMISSION).get("as_the_sample"):
            return None
        return f"{SUBMISSION} has the values of sample_submission.csv"

    def unsound(self, name: str) -> str | None:
        """Return what is wrong with an artifact, in whatever way, for those who build on it."""
        if name not in self.authors:
            return f"{name} is not there"
        problem = self.unreadable(name)
        if name in FRAMES:
            problem = problem or self.incomplete(name) or self.unusable(name)
            problem = problem or self.disordered(name)
        if name == X_TRAIN:
            problem = problem or self.has_leak()
        if name == Y_TRAIN:
            problem = problem or self.other_targets()
        if name == X_TEST:
            problem = problem or self.unlike()
        if name == MODEL:
            problem = problem or self.idle_model() or self.knows_nothing(LEAST_SKILL)
        return problem


def tampering(turn: Turn, history: Sequence[Turn]) -> tuple[str, str] | None:
    """Return the first file of another author that an action changed or deleted, and whose it was.

    What was put back counts too: the action tried.
    """
    before = State.after(history[-1] if history else None).authors
    own = {path for path, author in before.items() if author == turn.agent}
    for result in turn.tool_results:
        files = result.files
        for path in (*files.restored, *files.changed, *files.deleted):
            if path not in own:
                return path, before.get(path, "the task")
        own |= set(files.created)
    return None


def given_state(turn: Turn, context: CoachContext) -> State:
    """Return the workspace as the agent of a turn was given it, when its visit began."""
    others = [earlier for earlier in context.history if earlier.agent != turn.agent]
    return State.after(others[-1] if others else None)


def excuse(turn: Turn, context: CoachContext, needs: str) -> str | None:
    """Return which of the artifacts that an agent needs was missing or unsound when it began."""
    given = given_state(turn, context)
    problems = (given.unsound(name) for name in needs.split())
    return next((f"not its fault: {problem}" for problem in problems if problem), None)
