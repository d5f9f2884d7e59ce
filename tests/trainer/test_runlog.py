from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mappa_trainer.errors import RecipeError, RunDirectoryError
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory, episode_record
from mappa_trainer.types import Episode, Generation, Transition


@pytest.fixture
def run(make_recipe: Callable[..., Recipe], tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", make_recipe())


def episode(index: int = 0) -> Episode:
    generation = Generation((1, 2, 3), (4, 5), (-0.1, -0.2), "four\nfünf", "stop", 6)
    transition = Transition(
        agent="coder_0",
        index=1,
        messages=({"role": "user", "content": "What?"},),
        generation=generation,
        reward=None,
        ledger={"status": "unscored", "score": None},
        turn={"tool_results": []},
    )
    return Episode(
        index=index,
        seed=2**62 + 1,
        options={"split": "train", "task": 7},
        transitions=(transition,),
        outcome={"score": 1.0},
        returns={"coder_0": 0.5},
        end_reasons={"coder_0": "completed"},
        task={"id": "train-7"},
    )


def test_metrics_come_back_in_order(run: RunDirectory) -> None:
    assert run.metrics() == []
    rows: list[dict[str, Any]] = [{"iteration": i, "loss": 0.1 + i} for i in range(3)]
    for row in rows:
        run.add_metrics(row)
    assert run.metrics() == rows
    assert RunDirectory.open(run.path).metrics() == rows


def test_an_episode_comes_back_as_it_was_written(run: RunDirectory) -> None:
    run.write_episodes("train-0000", [episode(0), episode(1)])
    found = run.episodes("train-0000")
    assert found == [episode_record(episode(0)), episode_record(episode(1))]
    assert found[0]["seed"] == 2**62 + 1
    assert found[0]["actions"] == [
        {
            "agent": "coder_0",
            "index": 1,
            "messages": [{"role": "user", "content": "What?"}],
            "action": "four\nfünf",
            "finish_reason": "stop",
            "prompt_tokens": 3,
            "tokens": 2,
            "weight_version": 6,
            "reward": None,
            "ledger": {"status": "unscored", "score": None},
            "turn": {"tool_results": []},
        }
    ]


def test_writing_episodes_again_replaces_them_and_leaves_no_other_file(run: RunDirectory) -> None:
    run.write_episodes("train-0000", [episode(0), episode(1)])
    run.write_episodes("train-0000", [episode(2)])
    assert [row["index"] for row in run.episodes("train-0000")] == [2]
    assert [path.name for path in (run.path / "episodes").iterdir()] == ["train-0000.jsonl"]


@pytest.mark.parametrize("cut", ['{"iteration": 2, "lo', '{"iteration', "{"])
def test_a_last_line_cut_by_a_crash_is_left_out(run: RunDirectory, cut: str) -> None:
    (run.path / "metrics.jsonl").write_text('{"iteration": 0}\n{"iteration": 1}\n' + cut)
    assert [row["iteration"] for row in run.metrics()] == [0, 1]


def test_after_forgetting_a_cut_line_the_file_can_be_appended_to(run: RunDirectory) -> None:
    (run.path / "metrics.jsonl").write_text('{"iteration": 0}\n{"iteration": 1, "l')
    run.forget_after(1)
    run.add_metrics({"iteration": 1, "loss": 3.0})
    assert run.metrics() == [{"iteration": 0}, {"iteration": 1, "loss": 3.0}]


@pytest.mark.parametrize(
    "text",
    ['{"iteration": 0}\n{"itera\n{"iteration": 2}\n', '{"iteration": 0}\n{"itera\n'],
)
def test_a_broken_line_that_no_crash_explains_is_an_error(run: RunDirectory, text: str) -> None:
    (run.path / "metrics.jsonl").write_text(text)
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl, line 2: is not JSON"):
        run.metrics()


def test_forgetting_drops_later_iterations_alone(run: RunDirectory) -> None:
    for iteration in range(4):
        run.add_metrics({"iteration": iteration})
        run.write_episodes(f"train-{iteration:04d}", [episode()])
    kept = ["eval-0000-sampled", "eval-0004-sampled", "train-after-0002-sampled-x1"]
    for name in kept:
        run.write_episodes(name, [episode()])
    run.forget_after(2)
    assert [row["iteration"] for row in run.metrics()] == [0, 1]
    assert run.episode_names() == sorted([*kept, "train-0000", "train-0001"])


def test_training_episodes_are_those_that_training_wrote_in_its_order(run: RunDirectory) -> None:
    for name in ("train-9999", "train-10000", "train-0000", "train-after-0001-greedy-x1"):
        run.write_episodes(name, [episode()])
    run.write_episodes("eval-0000-sampled", [episode()])
    assert run.training_names() == ["train-0000", "train-9999", "train-10000"]


def test_forgetting_everything_of_a_run_without_metrics_is_fine(run: RunDirectory) -> None:
    run.forget_after(0)
    assert run.metrics() == []


TASKS = {"train": ["iris", "wine"], "test": ["cars"]}


def test_a_run_whose_tasks_are_the_same_goes_on(run: RunDirectory) -> None:
    run.check_task_ids({})
    run.write_task_ids(TASKS)
    run.check_task_ids({"test": ("cars",), "train": ("wine", "iris")})
    assert json.loads((run.path / "tasks.json").read_text()) == TASKS


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"train": ["wine", "cars"], "test": ["iris"]}, "the test tasks .*: cars, iris came or"),
        ({"train": ["iris"], "test": ["cars"]}, "the train tasks .*: wine came or went"),
        ({}, "the test tasks are no longer those that the run began with: cars came"),
    ],
)
def test_a_run_whose_tasks_are_others_does_not_go_on(
    run: RunDirectory, now: dict[str, list[str]], words: str
) -> None:
    run.write_task_ids(TASKS)
    with pytest.raises(RunDirectoryError, match=rf"tasks\.json: {words}"):
        run.check_task_ids(now)


def test_an_empty_directory_can_become_a_run(
    make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    RunDirectory.create(tmp_path / "empty", make_recipe())
    assert json.loads((tmp_path / "empty" / "config.json").read_text())["name"] == "tiny"


def test_what_a_crash_left_of_a_new_run_is_in_nobodys_way(
    make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    (tmp_path / "cut" / "episodes").mkdir(parents=True)
    (tmp_path / "cut" / "config.json.partial").write_text('{"na')
    run = RunDirectory.create(tmp_path / "cut", make_recipe())
    assert run.recipe() == make_recipe()
    assert sorted(path.name for path in run.path.iterdir()) == ["config.json", "episodes"]


def test_episodes_without_a_config_are_left_alone(
    make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    (tmp_path / "mine" / "episodes").mkdir(parents=True)
    (tmp_path / "mine" / "episodes" / "train-0000.jsonl").write_text("{}")
    with pytest.raises(RunDirectoryError, match="is not empty; name another with --out"):
        RunDirectory.create(tmp_path / "mine", make_recipe())


def test_a_directory_that_holds_something_is_left_alone(
    make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(RunDirectoryError, match="is not empty; name another with --out"):
        RunDirectory.create(tmp_path / "mine", make_recipe())
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_hold_a_run_is_named(
    make_recipe: Callable[..., Recipe], tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("keep me")
    with pytest.raises(RunDirectoryError) as caught:
        RunDirectory.create(tmp_path / place, make_recipe())
    assert str(tmp_path / place) in str(caught.value)
    assert (tmp_path / "file").read_text() == "keep me"


def test_what_is_no_run_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="is no run directory"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}'])
def test_a_damaged_recipe_is_named(run: RunDirectory, text: str) -> None:
    (run.path / "config.json").write_text(text)
    with pytest.raises(RecipeError, match=r"config\.json"):
        run.recipe()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"[1]", r"is \[1\]; it must be a table"),
        (b"{", "is not JSON: "),
        (b'{"index": "\xff"}', "is not JSON: 'utf-8' codec"),
    ],
)
def test_a_damaged_line_is_named(run: RunDirectory, line: bytes, words: str) -> None:
    run.write_episodes("train-0000", [episode()])
    path = run.path / "episodes" / "train-0000.jsonl"
    path.write_bytes(b"\r\n" + line + b"\n" + path.read_bytes())
    with pytest.raises(RunDirectoryError, match=rf"train-0000\.jsonl, line 2: {words}"):
        run.episodes("train-0000")


def test_unknown_episodes_are_an_error_that_lists_the_known_ones(run: RunDirectory) -> None:
    run.write_episodes("eval-0000-sampled", [episode()])
    with pytest.raises(RunDirectoryError, match="there are: eval-0000-sampled"):
        run.episodes("train-0009")


def test_an_unfinished_evaluation_is_gone_on_with_and_then_gone(run: RunDirectory) -> None:
    what = {"policy": "base", "temperature": 0.6}
    assert run.unfinished("test-x", what) == []
    run.keep_unfinished("test-x", what, [{"index": 0}])
    assert run.episode_names() == []
    assert run.unfinished("test-x", dict(what)) == [{"index": 0}]
    with pytest.raises(RunDirectoryError, match="with other settings; go on with those, or delete"):
        run.unfinished("test-x", {**what, "temperature": 1.0})
    run.finish("test-x", [{"index": 0}, {"index": 1}])
    assert run.episodes("test-x") == [{"index": 0}, {"index": 1}]
    assert run.unfinished("test-x", what) == []
    assert [path.name for path in (run.path / "episodes").iterdir()] == ["test-x.jsonl"]


def test_only_one_process_trains_a_run(run: RunDirectory) -> None:
    words = "another process is training this run"
    with run.held(), pytest.raises(RunDirectoryError, match=words), run.held():
        pass
    with RunDirectory.open(run.path).held():
        pass


def test_a_directory_with_evaluations_alone_is_one(run: RunDirectory) -> None:
    assert not run.is_evaluation()
    run.write_episodes("test-base-t0.5-4x1", [])
    assert run.is_evaluation()
    run.write_episodes("eval-0000-sampled", [])
    assert not run.is_evaluation()


@pytest.mark.parametrize("text", ['{"test": null}', '{"trained_on": 3}', "[1]", "{"])
def test_damaged_tasks_are_told(run: RunDirectory, text: str) -> None:
    (run.path / "tasks.json").write_text(text)
    with pytest.raises(RunDirectoryError, match=r"tasks\.json: cannot be read"):
        run.check_task_ids({})


@pytest.mark.parametrize("row", ["{}", '{"iteration": "x"}'])
def test_a_row_of_metrics_without_its_iteration_is_told(run: RunDirectory, row: str) -> None:
    (run.path / "metrics.jsonl").write_text(row + "\n")
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl, line 1: has no number"):
        run.metrics()
