from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import MAPPA, run_mappa

from mappa_envs import load_scenario, make_pipeline
from mappa_envs.bench import Job, Result, choose_tasks, make_jobs, run_jobs, summarise
from mappa_envs.bench_file import ResultsFile, version_of
from mappa_envs.errors import CommandError, TaskError
from mappa_envs.scenario import scenario_folder
from mappa_envs.tasks.math_generated import GeneratedMath
from mappa_envs.team_files import load_team
from mappa_envs.types import Split

Mappa = Callable[..., int]
Capture = pytest.CaptureFixture[str]
MATH = GeneratedMath(seed=0)


class Fruit:
    """A fixed set of tasks that is dealt out in batches; none of them can be had."""

    def __init__(self) -> None:
        self.splits: dict[Split, tuple[str, ...]] = {
            "train": ("apple", "pear", "plum"),
            "test": ("fig",),
        }
        self.batch_size = 2

    def size(self, split: str) -> int:
        return 4

    def get(self, split: str, index: int) -> Any:
        raise AssertionError("ids are enough")

    find = get


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the debate with a team that is always wrong."""
    folder = Path(shutil.copytree(scenario_folder("debate"), tmp_path / "debate"))
    (folder / "teams").mkdir()
    (folder / "teams" / "wrong.toml").write_text(
        "[texts]\nproponent = ['\\boxed{-1}']\nopponent = ['No.']\n"
    )
    return folder


@pytest.fixture
def mappa(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mappa:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> int:
        return run_mappa(monkeypatch, *arguments)

    return run


def timeless(results: list[Result]) -> list[Result]:
    return [{**result, "seconds": 0, "version": ""} for result in results]


def lines_of(path: Path) -> list[Result]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- what is played ---------------------------------------------------------------------------


def test_a_number_takes_the_first_tasks_of_each_split() -> None:
    expected = {"train-0": "train", "train-1": "train", "test-0": "test", "test-1": "test"}
    assert choose_tasks(MATH, "2", ("train", "test")) == expected
    assert choose_tasks(Fruit(), "2", ("train", "test")) == {
        "apple": "train",
        "pear": "train",
        "fig": "test",
    }


def test_all_takes_every_task_once() -> None:
    assert list(choose_tasks(Fruit(), "all", ("train", "test"))) == ["apple", "pear", "plum", "fig"]
    assert list(choose_tasks(Fruit(), "all", ("test",))) == ["fig"]


def test_ids_are_found_in_either_split() -> None:
    assert choose_tasks(MATH, "test-3, train-1", ("train",)) == {
        "test-3": "test",
        "train-1": "train",
    }
    assert choose_tasks(Fruit(), "fig,plum", ("train",)) == {"fig": "test", "plum": "train"}


def test_tasks_that_are_not_there_are_refused() -> None:
    with pytest.raises(TaskError, match="have no end; say how many with --tasks"):
        choose_tasks(MATH, "all", ("train",))
    with pytest.raises(TaskError, match="no task is called 'pare'; did you mean 'pear'"):
        choose_tasks(Fruit(), "pare", ("train",))
    nothing = Fruit()
    nothing.splits["test"] = ()
    with pytest.raises(TaskError, match="all of split test is no task; choose others"):
        choose_tasks(nothing, "all", ("test",))
    with pytest.raises(TaskError, match="trian-0"):
        choose_tasks(MATH, "trian-0", ("train",))


def test_every_team_plays_every_task_with_every_seed() -> None:
    jobs = make_jobs(["a", "b"], {"x": "train", "y": "test"}, 2)
    assert len({job.key for job in jobs}) == len(jobs) == 8
    assert jobs[:3] == [
        Job("a", "x", "train", 0),
        Job("b", "x", "train", 0),
        Job("a", "x", "train", 1),
    ]


def test_episodes_at_once_come_to_what_they_come_to_one_by_one(folder: Path) -> None:
    teams = {"scripted": None, "wrong": load_team(folder, "wrong", load_scenario(folder))}
    jobs = make_jobs(list(teams), choose_tasks(MATH, "3", ("train",)), 1)

    def results(at_once: int) -> list[Result]:
        found: list[Result] = []
        env = make_pipeline(folder, coach={})
        asyncio.run(run_jobs(env, teams, jobs, found.append, at_once=at_once))
        env.close()
        return sorted(timeless(found), key=lambda result: (result["task"], result["team"]))

    one_by_one = results(1)
    assert results(4) == one_by_one
    assert [result["outcome"] for result in one_by_one] == [1.0, 0.0] * 3
    assert one_by_one[0]["scores"] == {"proponent_0": [10.0] * 3, "opponent_0": [10.0] * 2}
    assert one_by_one[0]["paid"] == {"proponent_0": 3.0, "opponent_0": 2.0}
    assert one_by_one[1]["verdict"] == "wrong"


# --- what is reported -------------------------------------------------------------------------


def result_of(outcome: float | None, **more: Any) -> Result:
    return {
        "team": "a",
        "task": "x",
        "seed": 0,
        "task_type": None,
        "decided": outcome is not None,
        "outcome": outcome,
        "details": {},
        "paid": {"one_0": 2.0},
        "seconds": 1.0,
        **more,
    }


def test_means_are_over_decided_episodes() -> None:
    results = [result_of(1.0), result_of(0.5, paid={"one_0": 1.0}), result_of(None)]
    assert summarise(results) == {
        "a": {
            "episodes": 3,
            "undecided": 1,
            "outcome": 0.75,
            "details": {},
            "paid": {"one_0": 1.5},
            "seconds": 1.0,
            "task_types": {},
        }
    }


def details(**comparable: object) -> dict[str, object]:
    """Details of an outcome, those given being comparable."""
    return {"value": 812.5, **comparable, "comparable": list(comparable)}


def test_figures_of_each_type_of_task_are_apart() -> None:
    results = [
        result_of(0.2, task_type="c", details=details(success=True, decided=True, f1=0.8)),
        result_of(0.0, task_type="c", details=details(success=False, decided=True, f1=0.5)),
        result_of(0.4, task_type="r", details=details(success=True, rmse_percent=10.0, f1=None)),
        result_of(None, task_type="r", details=details(rmse_percent=90.0)),
        result_of(0.6, team="b", task_type="r", details=details(success=True)),
    ]
    summary = summarise(results)
    types = summary["a"]["task_types"]
    assert list(summary) == ["a", "b"]
    assert summary["a"]["outcome"] == pytest.approx(0.2)
    assert summary["a"]["details"] == {
        "success": pytest.approx(2 / 3),
        "f1": pytest.approx(0.65),
        "rmse_percent": 10.0,
    }
    assert types["c"]["details"] == {"success": 0.5, "f1": pytest.approx(0.65)}
    assert types["c"]["outcome"] == pytest.approx(0.1)
    assert types["r"]["details"] == {"success": 1.0, "rmse_percent": 10.0}


def test_what_no_outcome_calls_comparable_is_not_averaged() -> None:
    assert summarise([result_of(1.0, details={"value": 3.0})])["a"]["details"] == {}


def test_nothing_decided_has_no_mean() -> None:
    assert summarise([result_of(None)])["a"]["outcome"] is None


# --- the file of results ----------------------------------------------------------------------


def test_a_last_line_that_was_cut_short_is_played_again(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    jobs = make_jobs(["a"], {"x": "train", "y": "train"}, 1)
    with ResultsFile(path, {"a": "1"}, resume=False) as file:
        file.add(result_of(1.0))
        file.add(result_of(0.5, task="y"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with ResultsFile(path, {"a": "1"}, resume=True) as file:
        assert file.open_jobs(jobs) == jobs[1:]
        assert file.results(jobs) == [result_of(1.0)]
        file.add(result_of(0.5, task="y"))
        assert file.open_jobs(jobs) == []
    assert path.read_bytes() == whole


def test_an_undecided_episode_is_played_again(tmp_path: Path) -> None:
    jobs = make_jobs(["a"], {"x": "train"}, 1)
    with ResultsFile(tmp_path / "results", {"a": "1"}, resume=False) as file:
        file.add(result_of(None))
        assert file.open_jobs(jobs) == jobs
        file.add(result_of(1.0))
        assert file.results(jobs) == [result_of(1.0)]


@pytest.mark.parametrize("line", ["3", "{", '{"version": "1"}', '{"team": "a"}'])
def test_a_line_that_is_no_result_is_named_and_kept(tmp_path: Path, line: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(CommandError, match="line 1 is no result of an episode"):
        ResultsFile(path, {"a": "1"}, resume=True)
    assert path.read_text() == f"{line}\n"


def test_results_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsFile(path, {"a": "1"}, resume=False) as file:
        file.add(result_of(1.0))
    with pytest.raises(CommandError, match=r"line 1 is of another version .* team 'a'"):
        ResultsFile(path, {"a": "2"}, resume=True)
    with ResultsFile(path, {"b": "2"}, resume=True) as file:  # what is not asked for does not harm
        assert file.results(make_jobs(["b"], {"x": "train"}, 1)) == []


def test_a_version_is_that_of_the_scenario_and_of_the_team(folder: Path) -> None:
    scenario = load_scenario(folder)
    team = load_team(folder, "wrong", scenario)
    before = version_of(folder, None), version_of(folder, team)
    assert before[0] != before[1]
    file = folder / "teams" / "wrong.toml"
    file.write_text(file.read_text().replace("No.", "Never."))
    assert version_of(folder, None) == before[0]
    assert version_of(folder, load_team(folder, "wrong", scenario)) != before[1]
    prompt = folder / "prompts" / "opponent.md"
    prompt.write_text(prompt.read_text() + "!")
    assert version_of(folder, None) != before[0]


# --- mappa bench ------------------------------------------------------------------------------


def test_a_table_of_the_teams_is_printed(folder: Path, mappa: Mappa, capsys: Capture) -> None:
    assert mappa("bench", folder, "--team", "wrong,scripted", "--tasks", 2, "--split", "test") == 0
    shown = capsys.readouterr()
    rows = [line.split() for line in shown.out.splitlines()]
    assert shown.out.startswith("scenario debate, tasks: 2, seeds: 1\n")
    columns = "team episodes outcome paid proponent_0 paid opponent_0 seconds"
    assert rows[1] == columns.split()
    assert [row[:3] for row in rows[-2:]] == [["wrong", "2", "0.000"], ["scripted", "2", "1.000"]]
    assert shown.err == ""


def test_no_name_or_number_of_the_table_is_cut_short(
    folder: Path, mappa: Mappa, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert mappa("bench", folder, "--team", "wrong", "--tasks", 1, "--split", "test") == 0
    shown = capsys.readouterr().out
    assert "paid proponent_0  paid opponent_0  seconds" in shown
    assert "…" not in shown


def test_stdout_is_nothing_but_json(folder: Path, mappa: Mappa, capsys: Capture) -> None:
    asked = ("--team", "wrong", "--tasks", "test-3", "--seeds", 2, "--json")
    assert mappa("bench", folder, *asked) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["tasks"] == 1
    assert summary["teams"]["wrong"]["episodes"] == 2
    assert summary["teams"]["wrong"]["outcome"] == 0.0


def test_a_stopped_bench_goes_on_to_what_an_unstopped_one_comes_to(
    folder: Path, mappa: Mappa, tmp_path: Path, capsys: Capture
) -> None:
    asked = ("bench", str(folder), "--team", "scripted,wrong", "--tasks", "4", "--json")
    stopped, whole = tmp_path / "stopped.jsonl", tmp_path / "whole.jsonl"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    playing = subprocess.Popen(
        [sys.executable, "-c", MAPPA, *asked, "--at-once", "1", "--out", str(stopped)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    while not stopped.exists() or not stopped.read_bytes():
        assert playing.poll() is None
        time.sleep(0.002)
    playing.send_signal(signal.SIGINT)
    out, errors = playing.communicate(timeout=60)
    done = len(lines_of(stopped))
    assert (playing.returncode, out) == (130, "")
    assert errors == (f"stopped: {done} of 16 episodes are in {stopped}; go on with --resume\n")
    assert 0 < done < 16
    assert os.listdir(temporary) == []
    assert mappa(*asked, "--out", stopped, "--resume") == 0
    resumed = json.loads(capsys.readouterr().out)
    assert mappa(*asked, "--out", whole) == 0
    unstopped = json.loads(capsys.readouterr().out)
    for summary in (resumed, unstopped):
        for team in summary["teams"].values():
            del team["seconds"]
    assert resumed == unstopped

    def by_key(path: Path) -> list[Result]:
        return sorted(timeless(lines_of(path)), key=lambda r: (r["team"], r["task"]))

    assert by_key(stopped) == by_key(whole)
    before = stopped.read_bytes()
    assert mappa(*asked, "--out", stopped, "--resume") == 0  # nothing is left to play
    assert stopped.read_bytes() == before


BAD = {
    "unknown team": ("--team wrnog", "--team names 'wrnog'; did you mean 'wrong'?"),
    "a person": ("--team person", "--team names 'person'; it can be: scripted, wrong"),
    "no end": ("--tasks all", "the tasks of split 'train' have no end; say how many with --tasks"),
    "no tasks": ("--tasks 0", "--tasks is 0; give at least 1"),
    "the other split": (
        "--tasks train-1 --split test",
        "--tasks names train-1, which is a train task; leave --split out or give --split train",
    ),
    "unknown task": ("--tasks trian-1", "no generated task is called 'trian-1'"),
    "unknown split": ("--split tset", "--split is 'tset'; did you mean 'test'?"),
    "nothing to go on with": ("--resume", "--resume needs the file to go on with; name it with"),
    "taken": ("--tasks 1 --out {0}/taken", "taken: exists already; add --resume, or name another"),
    "no folder": (
        "--tasks 1 --out {0}/no/file",
        "no/file: cannot be written (No such file or directory); name",
    ),
    "a folder": (
        "--tasks 1 --resume --out {0}",
        "cannot be written (Is a directory); name a file in a folder",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_input_of_a_bench_is_one_line(
    name: str, folder: Path, mappa: Mappa, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "taken").write_text("keep me")
    options, words = (text.format(tmp_path) for text in BAD[name])
    assert mappa("bench", folder, *options.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert words in shown.err
    assert (tmp_path / "taken").read_text() == "keep me"
