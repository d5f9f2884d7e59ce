"""Times several ways to do the same work in turn, round by round, and reports their ratios.

A machine that others use too is slow at times. So what counts is the processor's time of this
process, which has one thread; on a machine of one's own that is the time that passes. In a round
the sides run one right after the other, so that what others do to the caches hits all of them, and
the ratios of single rounds are what is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from pytest_benchmark.fixture import BenchmarkFixture

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Side:
    """One way to do the work, with how much of it there is."""

    work: Work
    amount: float


@dataclass(frozen=True, slots=True)
class Timed:
    """What one side took."""

    seconds: tuple[float, ...]
    """Of the processor, in each round."""
    amount: float

    @property
    def speed(self) -> float:
        """Amount per second, by the median."""
        return self.amount / median(self.seconds)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The sides of one comparison, the first of which the others are compared with."""

    unit: str
    sides: Mapping[str, Timed]


COMPARISONS: dict[str, Comparison] = {}
NOTES: list[str] = []


def compare(
    benchmark: BenchmarkFixture,
    name: str,
    unit: str,
    sides: Mapping[str, Side],
    rounds: int = 5,
    clock: Callable[[], float] = time.process_time,
) -> None:
    """Time all sides in each round; a smoke run does each once and measures nothing.

    Args:
        benchmark: Of pytest-benchmark; its own times are those of whole rounds.
        name: Of the comparison.
        unit: Of the sides' amounts, such as `tokens`.
        sides: By name; the first is what the others are compared with.
        rounds: Measured ones, after one that warms up.
        clock: The processor's time, or that of the wall where waiting is what is measured.
    """
    seconds: dict[str, list[float]] = {side: [] for side in sides}

    def one_round() -> None:
        for side, timed in sides.items():
            start = clock()
            timed.work()
            seconds[side].append(clock() - start)

    benchmark.group = benchmark.name = name
    benchmark.pedantic(one_round, rounds=rounds, warmup_rounds=1)
    if not benchmark.disabled:
        taken = {side: Timed(tuple(seconds[side][-rounds:]), sides[side].amount) for side in sides}
        COMPARISONS[name] = Comparison(unit, taken)


def lines() -> Iterator[str]:
    """Return the report, line by line."""
    for name, comparison in COMPARISONS.items():
        yield ""
        columns = ("s, median", f"{comparison.unit}/s", "speed to 1st", "least", "most")
        yield name.ljust(50) + "".join(column.rjust(14) for column in columns)
        first = next(iter(comparison.sides.values()))
        for side, timed in comparison.sides.items():
            ratios = _speed_ratios(timed, first)
            numbers = (
                f"{median(timed.seconds):.3f}",
                f"{timed.speed:.1f}",
                *(f"{ratio:.2f}" for ratio in (median(ratios), min(ratios), max(ratios))),
            )
            yield f"  {side}".ljust(50) + "".join(number.rjust(14) for number in numbers)
    yield from ("", *NOTES)


def _speed_ratios(timed: Timed, first: Timed) -> list[float]:
    """Return how many times as fast as the first side this one was, for each round."""
    scale = timed.amount / first.amount
    pairs = zip(timed.seconds, first.seconds, strict=True)
    return [scale * other / own for own, other in pairs]
