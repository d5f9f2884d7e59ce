"""What a turn costs when nobody thinks, and what the outcome costs at the end of an episode."""

from __future__ import annotations

import pytest
import report
from pytest_benchmark.fixture import BenchmarkFixture
from subjects import ACTIONS, Play

from mappa_envs.outcomes.math_answers import MathAnswerScorer
from mappa_envs.types import Task

ROUNDS = 300
WHAT_IS_COUNTED = (
    "a whole episode by its turns: reset, dead turns and, at its end, the outcome (see there)",
    "no action calls a tool or has a box, so no child process is asked",
    "TextArena as made cuts actions to 1,000 characters; GEM's game has a single player",
)
TASK = Task("sum", "What is 2 + 3?", ("5",))
MESSAGES = {
    "no box in 11 characters, as above": ACTIONS["11 characters"],
    "no box in 8,000 characters, as above": ACTIONS["8,000 characters"],
    "a wrong number": r"\boxed{7}",
    "a formula, compared by a child process": r"\boxed{2x + 3}",
}


class _TurnClock:
    """A timer that each episode moves on by its own seconds per turn."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Return the time."""
        return self._now

    def play(self, play: Play, action: str) -> None:
        """Play an episode."""
        seconds, turns = play(action)
        self._now += seconds / turns


CLOCK = _TurnClock()


@pytest.mark.benchmark(timer=CLOCK.now)
@pytest.mark.parametrize("length", ACTIONS)
def test_turn(benchmark: BenchmarkFixture, subject: tuple[str, Play], length: str) -> None:
    """A whole episode a round, reset and dead turns included, as seconds per turn."""
    name, play = subject
    group = f"one turn, actions of {length}"
    benchmark.group, benchmark.name = group, name
    benchmark.pedantic(
        CLOCK.play, args=(play, ACTIONS[length]), rounds=ROUNDS, warmup_rounds=ROUNDS // 10
    )
    report.keep(benchmark, group, name)
    for line in WHAT_IS_COUNTED if benchmark.enabled else ():
        report.note(group, line)


@pytest.mark.parametrize("message", MESSAGES)
def test_outcome(benchmark: BenchmarkFixture, message: str) -> None:
    """The rule that judges an episode, once, at its end."""
    scorer = MathAnswerScorer()
    group = "the outcome, once an episode"
    benchmark.group, benchmark.name = group, message
    benchmark.pedantic(scorer.score, args=(TASK, MESSAGES[message]), rounds=ROUNDS, warmup_rounds=3)
    scorer.close()
    report.keep(benchmark, group, message)
