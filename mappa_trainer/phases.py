"""Where a run's time goes: seconds of each phase, and tokens a second."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """A stopwatch for each phase, e.g. `with phases.of("collect"): ...`.

    A phase that is entered several times counts the sum. Phases do not nest.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        """Count the time of the block, also when an error leaves it."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[phase] += time.monotonic() - began

    def take(self) -> dict[str, float]:
        """Return `seconds/<phase>` of all phases since the last call, and begin anew."""
        taken, self._seconds = self._seconds, defaultdict(float)
        return {f"seconds/{phase}": seconds for phase, seconds in taken.items()}


def speeds(seconds: dict[str, float], tokens: dict[str, int]) -> dict[str, float]:
    """Return `tokens_per_second/<phase>` for each phase of `tokens` that took time.

    Args:
        seconds: As `Phases.take` returns them.
        tokens: How many tokens each phase dealt with.
    """
    return {
        f"tokens_per_second/{phase}": count / seconds[f"seconds/{phase}"]
        for phase, count in tokens.items()
        if seconds.get(f"seconds/{phase}")
    }
