"""The folders that the documentation has its reader write are written and checked here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mappa_envs import make_pipeline
from mappa_envs.commands.checking import check_scenario
from mappa_envs.play import play
from mappa_envs.teams import ScenarioTeam

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
FILE = re.compile(r"^`([\w./-]+)`\n\n(`{3,})\w+\n(.*?)^\2$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^```\n\$ mappa scenario check my-debate\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with every file of the page."""
    for name, _, text in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_page_names_every_file_of_both_folders(written: Path) -> None:
    assert {str(p.relative_to(written)) for p in written.rglob("*.*")} == {
        "my-debate/scenario.toml",
        "my-debate/pro.md",
        "my-debate/pro-again.md",
        "my-debate/con.md",
        "my-pipeline/scenario.toml",
        "my-pipeline/planner.md",
        "my-pipeline/coder.md",
        "my-pipeline/tester.md",
        "my-pipeline/reporter.md",
    }


def test_the_debate_checks_out_as_the_page_shows(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_scenario(str(written / "my-debate"), {})
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    found = SHOWN.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    shown = [line for line in found[1].splitlines() if line != "..."]
    assert len(shown) == 8
    assert [line for line in shown if line not in printed] == []


def test_the_pipeline_checks_out(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_scenario(str(written / "my-pipeline"), {})
    shown = capsys.readouterr().out
    assert "no coach, for a role has no rubric" in shown
    assert "ended: completed\noutcome: 1 (correct)" in shown


def test_the_pipelines_prompts_list_files_as_the_page_says(written: Path) -> None:
    env = make_pipeline(written / "my-pipeline")
    play(env, ScenarioTeam(env), seed=0)
    turns = env.unwrapped.turns
    prompts = {turn.role: turn.messages[-1]["content"] for turn in turns if turn.index == 0}
    env.close()
    assert "numbers.txt (4 bytes, by planner_0)" in PAGE.read_text(encoding="utf-8")
    listed = r"There are these files:\nnumbers\.txt \(4 bytes, by planner_0\)\n"
    assert re.search(rf"{listed}\n", prompts["coder"])
    assert re.search(rf"{listed}total\.py \(\d+ bytes, by coder_0\)\n", prompts["tester"])
