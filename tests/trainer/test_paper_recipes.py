"""The recipes of the paper's MathChat runs; those of DSBench are tested with DSBench."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mappa_trainer import train
from mappa_trainer.algorithms import check_algorithms, learning_rate_of
from mappa_trainer.console import Console
from mappa_trainer.dry_run import dry_run
from mappa_trainer.recipe import Recipe, load_recipe
from mappa_trainer.runlog import RunDirectory

RECIPES = Path(__file__).parents[2] / "scenarios" / "recipes"
AGENTS = ["solver_0", "coder_0", "verifier_0"]
NAMES = ["mathchat-qwen3-4b", "mathchat-r1-distill-1.5b"]
BASES = {
    "mathchat-qwen3-4b": "Qwen3-4B",
    "mathchat-r1-distill-1.5b": "DeepSeek-R1-Distill-Qwen-1.5B",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_are_those_of_the_paper(name: str) -> None:
    recipe = load_recipe(RECIPES / f"{name}.toml")
    assert recipe.name == name
    assert recipe.model.base == BASES[name]
    assert recipe.model.token_budget == 24_576 + 4_096
    assert (recipe.sampling.temperature, recipe.sampling.max_new_tokens) == (1.0, 4_096)
    assert recipe.scenario == {
        "tasks": "AIME_1983_2024.json",
        "test_tasks": "aime_2025.json",
        "roles": {"coder": {"max_turns": 2}},
        "limits": {"timeout_s": 30.0},
    }
    table, run = recipe.algorithm, recipe.train
    assert (table.advantage, table.loss, table.aggregation) == (
        "reinforce++",
        "ppo_clip",
        "token_mean",
    )
    assert (table.kl_coef, table.kl_in, table.kl_estimator) == (0.01, "reward", "k1")
    assert (table.clip_low, table.clip_high, table.gamma) == (0.2, 0.2, 1.0)
    assert table.mask_truncated
    assert (run.iterations, run.episodes, run.samples, run.updates) == (128, 64, 2, 4)
    assert (recipe.eval.every, recipe.eval.temperature, run.save_every) == (4, 0.6, 32)
    rate = learning_rate_of(recipe)
    assert (rate.peak, rate.total_steps) == (1e-6, 512)
    assert rate.warmup_steps == int(0.03 * 512)
    assert rate.at(511) == pytest.approx(1e-7)
    check_algorithms(recipe, AGENTS)


def with_data(name: str, *settings: str) -> Recipe:
    folder = os.environ.get("MAPPA_DATA_DIR")
    if not folder:
        pytest.skip("MAPPA_DATA_DIR does not name a folder with the problem files")
    files = (
        f"scenario.tasks={folder}/AIME_1983_2024.json",
        f"scenario.test_tasks={folder}/aime_2025.json",
    )
    return load_recipe(RECIPES / f"{name}.toml", (*files, *settings))


@pytest.mark.parametrize("name", NAMES)
def test_a_dry_run_says_what_it_would_do(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    dry_run(with_data(name))
    said = capsys.readouterr().out
    assert "128 iterations, 8,192 episodes to train on" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_iteration_with_a_tiny_model(name: str, tiny_model: Path, tmp_path: Path) -> None:
    recipe = with_data(
        name,
        f"model.base={tiny_model}",
        "sampling.max_new_tokens=16",
        "algorithm.mask_truncated=false",  # a random model hardly ever ends its turn
        "train.iterations=1",
        "train.episodes=8",
        "eval.problems=2",
    )
    assert train.start(recipe, tmp_path / "run", Console())
    (row,) = RunDirectory.open(tmp_path / "run").metrics()
    for agent in AGENTS:
        assert row[f"{agent}/actions"] >= 8
        assert row[f"{agent}/updates"] == 4
