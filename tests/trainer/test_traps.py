from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")
MUTATIONS = tomllib.loads((ROOT / "scripts" / "mutations.toml").read_text(encoding="utf-8"))
ROWS = re.findall(r"^\| (\d+) \|(.*)\|$", PAGE, re.MULTILINE)


def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_trap_has_a_row() -> None:
    assert sorted(int(number) for number, _ in ROWS) == list(range(1, 43))


@pytest.mark.parametrize(("number", "row"), ROWS)
def test_a_trap_names_tests_that_exist_or_says_why_not(number: str, row: str) -> None:
    named = re.findall(r"`(test_\w+)::(test_\w+)`", row)
    assert named or "Does not apply" in row
    for module, name in named:
        assert name in functions_of(f"tests/trainer/{module}.py"), (
            f"trap {number}: {module}::{name}"
        )


@pytest.mark.parametrize("entry", MUTATIONS["mutation"], ids=lambda e: f"trap {e['trap']}")
def test_a_mutation_finds_its_line_and_its_tests(entry: dict[str, object]) -> None:
    text = (ROOT / str(entry["file"])).read_text(encoding="utf-8")
    assert text.count(str(entry["old"])) == 1
    assert entry["old"] != entry["new"]
    tests = entry["tests"]
    assert isinstance(tests, list)
    for test in tests:
        file, name = str(test).split("::")
        assert name in functions_of(file)


def test_every_trap_with_a_mutation_is_one_of_the_page() -> None:
    traps = {entry["trap"] for entry in MUTATIONS["mutation"]}
    assert traps <= {int(number) for number, _ in ROWS}
