"""What a figure of an audit must keep to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bound:
    """The most or the least that a figure may be, e.g. `Bound("success rate", most=0.05)`."""

    figure: str
    most: float | None = None
    least: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a value is within the bound."""
        if self.most is not None and value > self.most:
            return False
        return self.least is None or value >= self.least

    def __str__(self) -> str:
        """Return the bound in words, e.g. `"success rate at most 0.05"`."""
        limits = (("at most", self.most), ("at least", self.least))
        return f"{self.figure} " + " and ".join(
            f"{words} {limit:g}" for words, limit in limits if limit is not None
        )
