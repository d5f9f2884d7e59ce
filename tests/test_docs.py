"""Every relative link of the documentation leads somewhere, and pages are found from the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def text_of(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchor_of(heading: str) -> str:
    """What GitHub makes of a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor_of(heading) for heading in HEADING.findall(text_of(page))}


def links(page: Path) -> list[str]:
    return [link for link in LINK.findall(text_of(page)) if "://" not in link]


def broken(page: Path) -> list[str]:
    found = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# What it *does*, and `why`\n```\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#what-it-does-and-why) [c](#here) [d](https://x.y/z)\n"
        "[e](none.md) [f](other.md#no-heading) [g](#there)\n```\n[h](none.md)\n```\n"
    )
    assert broken(page) == ["none.md", "other.md#no-heading", "#there"]


def test_every_page_is_found_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in links(ROOT / "README.md")}
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked


def test_the_page_of_the_coach_leads_to_both_pages_of_its_audit() -> None:
    text = text_of(ROOT / "docs" / "coach.md")
    _, _, last = text.rpartition("\n## ")
    assert {"audit.md", "audit_probes.md#probes", "audit_probes.md#counterfactuals"} <= set(
        LINK.findall(last)
    )
