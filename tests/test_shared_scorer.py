from __future__ import annotations

from mappa_envs.outcomes.protocol import Workspace
from mappa_envs.outcomes.shared import SharedScorer
from mappa_envs.sandbox.lazy import LazySandbox
from mappa_envs.testing import FakeSandbox
from mappa_envs.types import Outcome, Task

NOTHING = LazySandbox(FakeSandbox)
TASK = Task("t", "What is 2 + 3?", ("5",))


class Counted:
    """A scorer that counts how often it is made and closed."""

    made = 0
    closed = 0

    def __init__(self) -> None:
        type(self).made += 1

    def score(self, task: Task, text: str, workspace: Workspace | None = None) -> Outcome:
        return Outcome(1.0, "correct", text, None)

    def close(self) -> None:
        type(self).closed += 1


def test_the_last_part_closes_the_scorer() -> None:
    class Scorer(Counted):
        pass

    whole = SharedScorer(Scorer)
    first, second, unused = whole.part(), whole.part(), whole.part()
    assert first.score(TASK, "one", NOTHING).reason == "one"
    assert second.score(TASK, "two", NOTHING).reason == "two"
    assert (Scorer.made, Scorer.closed) == (1, 0)
    unused.close()
    first.close()
    first.close()
    assert Scorer.closed == 0
    second.close()
    assert (Scorer.made, Scorer.closed) == (1, 1)
    assert first.score(TASK, "again", NOTHING).reason == "again"
    first.close()
    assert (Scorer.made, Scorer.closed) == (1, 2)


def test_a_part_that_was_dropped_is_not_in_use() -> None:
    class Scorer(Counted):
        pass

    whole = SharedScorer(Scorer)
    dropped, kept = whole.part(), whole.part()
    dropped.score(TASK, "", NOTHING)
    kept.score(TASK, "", NOTHING)
    del dropped
    kept.close()
    assert Scorer.closed == 1
