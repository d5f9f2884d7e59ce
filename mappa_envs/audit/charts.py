"""The charts of an audit, as pictures that are part of a page."""

from __future__ import annotations

from collections.abc import Sequence

from mappa_envs.audit.drift import HeldOut, Point
from mappa_envs.audit.markup import Markup, element
from mappa_envs.audit.scores import Saturation

_WIDTH, _HEIGHT = 210, 80


def histogram(saturation: Saturation) -> Markup:
    """Return how many scores there are of each half point, as bars from 0 to 10."""
    width = _WIDTH / len(saturation.histogram)
    most = max(saturation.histogram)
    bars = [
        element(
            "rect",
            element("title", f"{place / 2:g}: {count}"),
            x=f"{place * width:.1f}",
            y=f"{_HEIGHT * (1 - count / most):.1f}",
            width=f"{width - 1:.1f}",
            height=f"{_HEIGHT * count / most:.1f}",
            fill="#36c",
        )
        for place, count in enumerate(saturation.histogram)
    ]
    return _figure(f"{saturation.role}: scores from 0 to 10, at most {most} alike", bars)


def curve(held_out: HeldOut) -> Markup:
    """Return the mean score over the iterations, from 0 at the bottom to 10 at the top."""
    line = element(
        "polyline", points=_places(held_out.points), fill="none", stroke="#36c", stroke_width=2
    )
    last = held_out.points[-1].iteration
    caption = f"{held_out.role}, {held_out.mode}: mean held-out score to iteration {last}"
    return _figure(caption, [line])


def _places(points: Sequence[Point]) -> str:
    span = max(points[-1].iteration - points[0].iteration, 1)
    return " ".join(
        f"{_WIDTH * (point.iteration - points[0].iteration) / span:.1f},"
        f"{_HEIGHT * (1 - point.score / 10):.1f}"
        for point in points
    )


def _figure(caption: str, shapes: Sequence[Markup]) -> Markup:
    frame = element("rect", width=_WIDTH, height=_HEIGHT, fill="none", stroke="#ccc")
    drawn = element(
        "svg", frame, *shapes, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", width=_WIDTH, height=_HEIGHT
    )
    return element("figure", drawn, element("figcaption", caption))
