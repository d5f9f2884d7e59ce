from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from stored_rows import action, episode, ran, write_run

from mappa_envs.audit.counterfactual import Credit, CreditReport, role_credits
from mappa_envs.audit.document import Document
from mappa_envs.audit.documents import credit_document, probe_document, run_document
from mappa_envs.audit.markup import Markup, element
from mappa_envs.audit.page import page
from mappa_envs.audit.probing import ProbeReport, Row
from mappa_envs.audit.report import audit
from mappa_envs.audit.stored import StoredRun

HOSTILE = (
    """</td></table><script>alert(1)</script><img src=x onerror="alert(2)">&amp;'\u202e\x1b[2J"""
)
KNOWN = {
    "body", "div", "figcaption", "figure", "h1", "h2", "head", "html", "meta", "p", "polyline",
    "rect", "style", "svg", "table", "td", "th", "title", "tr",
}  # fmt: skip


class Reader(HTMLParser):
    """Notes which elements a page has, which attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def hostile_run(folder: Path) -> StoredRun:
    """A run whose every name and text is markup."""
    agent = f"{HOSTILE}_0"
    rows = [
        episode(
            action(
                float(n % 11),
                f"PROCESS_SCORE: 10 {HOSTILE}",
                agent,
                results=[ran(source=f"print('''{HOSTILE}''')")],
                ledger={"coach": HOSTILE, "failure": HOSTILE, "role": HOSTILE},
            ),
            action(None, HOSTILE, agent, ledger={"failure": HOSTILE, "role": HOSTILE}),
            action(9.0, f"score: 10\n{HOSTILE}", agent, ledger={"role": HOSTILE}),
            task=HOSTILE,
            kind=f"{HOSTILE}{n % 2}",
        )
        for n in range(8)
    ]
    name = "<script>alert(3)<"
    return StoredRun.open(write_run(folder, {name: rows, "eval-0000-greedy": rows[:1]}))


def documents(folder: Path) -> dict[str, Document]:
    """Each kind of audit, with markup for every name and text in it."""
    row = Row(HOSTILE, HOSTILE, 3, {HOSTILE: 1}, {HOSTILE: 0.5}, HOSTILE, False)
    credits = [Credit(HOSTILE, 0, HOSTILE, HOSTILE, 5.0, 1.0, (0.0,))]
    return {
        "run": run_document(audit(hostile_run(folder / "<b>run"))),
        "probe": probe_document(ProbeReport(HOSTILE, 1, 1, (row,))),
        "credit": credit_document(CreditReport(HOSTILE, 1, 0, role_credits(credits))),
    }


@pytest.mark.parametrize("kind", ["run", "probe", "credit"])
def test_no_text_of_an_audit_becomes_markup(kind: str, tmp_path: Path) -> None:
    text = page(documents(tmp_path)[kind])
    found = read(text)
    assert found.tags <= KNOWN
    assert "script" not in found.tags
    assert found.attributes.isdisjoint({"src", "href", "onerror"})
    assert "<script>alert(1)</script>" in found.text
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("kind", ["run", "probe", "credit"])
def test_a_page_fetches_nothing_and_says_so(kind: str, tmp_path: Path) -> None:
    text = page(documents(tmp_path)[kind])
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text


def test_a_page_holds_every_table_and_the_charts(tmp_path: Path) -> None:
    rows = [episode(action(float(n))) for n in range(6)]
    files = {"train-0000": rows, "eval-0000-greedy": rows, "eval-0003-greedy": rows[::-1]}
    document = run_document(audit(StoredRun.open(write_run(tmp_path / "run", files))))
    reader = read(page(document))
    assert document.summary in reader.text
    for section in document.sections:
        assert section.title in reader.text
        for row in section.rows:
            assert all(cell in reader.text for cell in row)
    assert {"svg", "rect", "polyline"} <= reader.tags


def test_an_element_escapes_its_content_and_attributes() -> None:
    assert element("td", "a < b", Markup("<i>c</i>")) == "<td>a &lt; b<i>c</i></td>"
    assert element("p", title='" onclick="x') == '<p title="&quot; onclick=&quot;x"></p>'
    assert element("line", stroke_width=2) == '<line stroke-width="2"></line>'
