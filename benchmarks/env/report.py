"""What the end of a run prints: each group's rows, beside the group's first row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_benchmark.fixture import BenchmarkFixture


@dataclass(frozen=True)
class Spread:
    """Seconds of many rounds."""

    min: float
    median: float
    upper_quartile: float
    max: float


GROUPS: dict[str, dict[str, Spread]] = {}
"""The rows of each group; the first one is what the others are compared with."""
NOTES: dict[str, list[str]] = {}
"""What is to be said below each group."""


def keep(benchmark: BenchmarkFixture, group: str, row: str) -> None:
    """Put what was just measured into a group; a smoke run measures nothing."""
    if benchmark.stats is not None:
        stats = benchmark.stats.stats
        GROUPS.setdefault(group, {})[row] = Spread(stats.min, stats.median, stats.q3, stats.max)


def keep_constant(group: str, row: str, seconds: float) -> None:
    """Put a row that is known and not measured into a group."""
    GROUPS.setdefault(group, {})[row] = Spread(seconds, seconds, seconds, seconds)


def note(group: str, line: str) -> None:
    """Say something below a group, once."""
    if line not in NOTES.setdefault(group, []):
        NOTES[group].append(line)


def lines() -> Iterator[str]:
    """Return the report, line by line."""
    for group in dict.fromkeys((*GROUPS, *NOTES)):
        yield ""
        rows = GROUPS.get(group, {})
        yield from _table(group, rows) if rows else [group]
        yield from (f"  {line}" for line in NOTES.get(group, []))


def _table(group: str, rows: dict[str, Spread]) -> Iterator[str]:
    first = next(iter(rows.values()))
    unit, factor = ("µs", 1e6) if first.median < 1e-2 else ("ms", 1e3)
    columns = ("min", "median", "quartile", "max", "ratio", "+ min", "+ median")
    yield f"{group} ({unit}; ratio and + to the first row)".ljust(52) + _cells(columns)
    for name, row in rows.items():
        times = (row.min, row.median, row.upper_quartile, row.max)
        more = (row.min - first.min, row.median - first.median)
        yield f"  {name}".ljust(52) + _cells(
            [
                *(f"{factor * seconds:.1f}" for seconds in times),
                f"{row.median / first.median:.2f}",
                *(f"{factor * seconds:.1f}" for seconds in more),
            ]
        )


def _cells(texts: tuple[str, ...] | list[str]) -> str:
    return "".join(text.rjust(10) for text in texts)
