"""An audit as one self-contained page: no script, nothing fetched."""

from __future__ import annotations

from mappa_envs.audit.document import Document, Section
from mappa_envs.audit.markup import Markup, element

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin-bottom: 1.5rem }
th, td { text-align: left; vertical-align: top; padding: .15rem .9rem .15rem 0 }
th { border-bottom: 1px solid #999 }
td { overflow-wrap: anywhere; border-bottom: 1px solid #ddd }
figure { display: inline-block; margin: 0 1.5rem 1rem 0 }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(document: Document) -> str:
    """Return the whole page as HTML."""
    body = [element("h1", document.title), element("p", document.summary)]
    body.append(element("div", *document.charts))
    body += [part for section in document.sections for part in _section(section)]
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        element("title", document.title),
        element("style", Markup(_STYLE)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', *body), lang='en')}\n"


def _section(section: Section) -> list[Markup]:
    title, note = element("h2", section.title), element("p", section.note)
    if not section.rows:
        return [title, element("p", section.otherwise)]
    heads = element("tr", *(element("th", column) for column in section.columns))
    rows = (element("tr", *(element("td", cell) for cell in row)) for row in section.rows)
    return [title, note, element("table", heads, *rows)]
