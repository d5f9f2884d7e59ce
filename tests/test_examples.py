"""The programs of `examples/` and the code of `docs/algorithms.md`, run as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "algorithms.md"
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HELD_OUT = re.compile(r"held-out problems: mean reward ([\d.]+) before, ([\d.]+) after")


def needs(package: str) -> pytest.MarkDecorator:
    """Skip a test where a package is missing."""
    reason = f"{package} is not installed: pip install 'mappa[train,examples]'"
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)


def run(*arguments: str | Path) -> str:
    """Run a Python program, and return what it printed."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(printed: str) -> list[list[str]]:
    """Return the words of each line below the heading."""
    return [line.split() for line in printed.splitlines()[1:]]


def test_the_code_of_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    blocks = PYTHON_BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 5
    page = tmp_path / "page.py"
    page.write_text("\n".join(blocks), encoding="utf-8")
    run(page)


@needs("torch")
@pytest.mark.slow
def test_reinforce_learns_on_problems_that_it_never_saw() -> None:
    printed = run("examples/reinforce_seat.py", "--seed", "0")
    found = HELD_OUT.search(printed)
    assert found is not None, printed
    before, after = map(float, found.groups())
    assert before < 0.8
    assert after - before > 0.5
    assert after > 1.0  # more than the coach alone pays: right answers count
    rows = [float(row[1]) for row in table(printed)[:-1]]
    assert rows[-1] - rows[0] > 0.4


@needs("torch")
@pytest.mark.slow
def test_reinforce_prints_the_same_with_the_same_seed() -> None:
    first, second = (run("examples/reinforce_seat.py", "--batches", "2") for _ in range(2))
    assert first == second


@needs("torchrl")
def test_torchrl_is_paid_what_the_ledger_says() -> None:
    rows = table(run("examples/torchrl_team.py", "--episodes", "2"))
    agents = ["solver_0", "coder_0", "verifier_0"]
    assert [row[:2] for row in rows] == [[e, agent] for e in "01" for agent in agents]
    assert [row[2] for row in rows] == [row[3] for row in rows]
    assert [row[2] for row in rows[:3]] == ["0.2000", "1.0000", "1.0000"]


@needs("trl")
@pytest.mark.slow
def test_trl_is_paid_what_the_environment_pays() -> None:
    rows = table(run("examples/trl_seat.py", "--steps", "2"))
    assert [row[0] for row in rows] == ["1", "2"]
    assert [row[1] for row in rows] == [row[2] for row in rows]
    assert any(float(row[1]) > 0 for row in rows)
