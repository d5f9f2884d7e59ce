"""An audit as one self-contained page: no script, nothing fetched.

Agents and tasks wrote some of its texts. Every text becomes markup in `element` alone, which
escapes it, so none is obeyed.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from mappa_envs.audit.drift import HeldOut, Point
from mappa_envs.audit.report import Audit
from mappa_envs.audit.scores import Saturation
from mappa_envs.audit.sections import Section, sections, summary
from mappa_envs.records import printable

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin-bottom: 1.5rem }
th, td { text-align: left; vertical-align: top; padding: .15rem .9rem .15rem 0 }
th { border-bottom: 1px solid #999 }
td { overflow-wrap: anywhere; border-bottom: 1px solid #ddd }
figure { display: inline-block; margin: 0 1.5rem 1rem 0 }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WIDTH, _HEIGHT = 210, 80


class Markup(str):
    """Text that is markup already; only `element` makes it of what others wrote."""


def element(tag: str, *content: str, **attributes: object) -> Markup:
    """Return an element; content that is no `Markup` is escaped, and so are attributes.

    >>> element("td", "<script>", title='"')
    '<td title="&quot;">&lt;script&gt;</td>'
    """
    inside = "".join(part if isinstance(part, Markup) else _escaped(part) for part in content)
    named = "".join(
        f' {name.replace("_", "-")}="{_escaped(str(value))}"' for name, value in attributes.items()
    )
    return Markup(f"<{tag}{named}>{inside}</{tag}>")


def page(audit: Audit) -> str:
    """Return the whole page as HTML."""
    body = [element("h1", "Audit of a coach"), element("p", summary(audit))]
    body.append(element("div", *map(_histogram, audit.saturation)))
    body.append(element("div", *(_curve(each) for each in audit.held_out if each.points)))
    body += [part for section in sections(audit) for part in _section(section)]
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        element("title", "Audit of a coach"),
        element("style", Markup(_STYLE)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', *body), lang='en')}\n"


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _section(section: Section) -> list[Markup]:
    title, note = element("h2", section.title), element("p", section.note)
    if not section.rows:
        return [title, element("p", section.otherwise)]
    heads = element("tr", *(element("th", column) for column in section.columns))
    rows = (element("tr", *(element("td", cell) for cell in row)) for row in section.rows)
    return [title, note, element("table", heads, *rows)]


def _histogram(saturation: Saturation) -> Markup:
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


def _curve(held_out: HeldOut) -> Markup:
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
