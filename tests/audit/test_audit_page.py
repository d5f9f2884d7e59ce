from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from stored_rows import action, episode, ran, write_run

from mappa_envs.audit.page import Markup, element, page
from mappa_envs.audit.report import audit
from mappa_envs.audit.sections import sections
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


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    text = page(audit(hostile_run(tmp_path / "<b>run")))
    found = read(text)
    assert found.tags <= KNOWN
    assert "script" not in found.tags
    assert found.attributes.isdisjoint({"src", "href", "onerror"})
    assert "<script>alert(1)</script>" in found.text
    assert "<b>run" in found.text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_page_fetches_nothing_and_says_so(tmp_path: Path) -> None:
    run = StoredRun.open(write_run(tmp_path / "run", {"train-0000": [episode(action())]}))
    text = page(audit(run))
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text


def test_a_page_holds_every_table_and_the_charts(tmp_path: Path) -> None:
    rows = [episode(action(float(n))) for n in range(6)]
    files = {"train-0000": rows, "eval-0000-greedy": rows, "eval-0003-greedy": rows[::-1]}
    found = audit(StoredRun.open(write_run(tmp_path / "run", files)))
    reader = read(page(found))
    for section in sections(found):
        assert section.title in reader.text
        for row in section.rows:
            assert all(cell in reader.text for cell in row)
    assert {"svg", "rect", "polyline"} <= reader.tags


def test_an_element_escapes_its_content_and_attributes() -> None:
    assert element("td", "a < b", Markup("<i>c</i>")) == "<td>a &lt; b<i>c</i></td>"
    assert element("p", title='" onclick="x') == '<p title="&quot; onclick=&quot;x"></p>'
    assert element("line", stroke_width=2) == '<line stroke-width="2"></line>'
