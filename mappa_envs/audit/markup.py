"""Markup whose texts cannot become any.

Agents and tasks wrote some of a page's texts. Every text becomes markup in `element` alone, which
escapes it, so none is obeyed.
"""

from __future__ import annotations

import html

from mappa_envs.records import printable


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


def _escaped(text: str) -> str:
    return html.escape(printable(text))
