"""The evaluations that ship, and those of the user's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import run_mappa

from mappa_trainer.errors import RecipeError
from mappa_trainer.presets import load_preset, tables_of
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory


def say(agent: str, messages: Any) -> str:
    return r"\boxed{70}"


POLICY = ("--policy", f"{__name__}:say")


def problems(path: Path, count: int) -> None:
    rows = [{"prompt": f"What is {n} plus 69?", "answer": str(n + 69)} for n in range(count)]
    path.write_text(json.dumps(rows), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "count", "file"),
    [("aime-2025", 30, "aime_2025.json"), ("amc-32", 32, "amc_eval_32.json")],
)
def test_the_protocol_of_the_paper_for_math(
    name: str, count: int, file: str, make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    preset = load_preset(name, make_recipe())
    assert (preset.split, preset.problems, preset.samples) == ("test", count, 4)
    assert preset.temperature == 0.6
    (tmp_path / file).touch()
    place = str(tmp_path / file)
    assert tables_of(preset, name, tmp_path) == {
        "scenario": {"tasks": place, "test_tasks": place},
    }


def test_the_protocol_of_the_paper_for_tables(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(env={"id": "mappa/DSBench-v0"})
    preset = load_preset("dsbench-6", recipe)
    assert (preset.split, preset.problems, preset.samples) == ("test", 6, 4)
    assert preset.temperature == 0.6
    texts = ("dsbench_modeling_eval.jsonl", "dsbench_modeling_cleaned_prompts.json")
    for name in ("dsbench", *texts):
        (tmp_path / name).touch()
    monkeypatch.setenv("MAPPA_DATA_DIR", str(tmp_path))
    scenario = tables_of(preset, "dsbench-6", None)["scenario"]
    assert scenario["tasks"] == str(tmp_path / "dsbench")
    assert scenario["tables"]["task_lists"] == [str(tmp_path / texts[0])]
    assert scenario["tables"]["cleaned_prompts"] == str(tmp_path / texts[1])
    from mappa_envs.scenario import scenario_folder
    from mappa_envs.tasks.dsbench_files import load_benchmark

    known = load_benchmark(scenario_folder("dsbench") / "benchmark.toml")
    six = [known[name] for name in scenario["tables"]["only"]]
    assert {each.split for each in six} == {"test"}
    assert sorted(each.task_type for each in six) == ["classification"] * 4 + ["regression"] * 2


def test_a_preset_is_played(
    recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    problems(tmp_path / "aime_2025.json", 30)
    out = tmp_path / "out"
    command = ("eval", recipe_file, "--preset", "aime-2025", "--data", tmp_path, "--out", out)
    assert run_mappa(monkeypatch, *command, *POLICY, "--samples", 2) == 0
    run = RunDirectory.open(out)
    (name,) = run.episode_names()
    assert name == f"test-{__name__}-say-t0.6-30x2-aime-2025"
    episodes = run.episodes(name)
    assert len({episode["task"]["id"] for episode in episodes}) == 30
    assert sum(episode["outcome"]["score"] for episode in episodes) == 2  # 1 + 69, both times
    assert "pass@1  0.033" in capsys.readouterr().out  # 1 of 30


@pytest.mark.parametrize("data", [True, False])
def test_a_missing_file_is_named(
    data: bool,
    recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("MAPPA_DATA_DIR", raising=False)
    where = ("--data", tmp_path) if data else ()
    assert run_mappa(monkeypatch, "eval", recipe_file, "--preset", "amc-32", *where) == 2
    error = capsys.readouterr().err
    assert "--preset 'amc-32' needs amc_eval_32.json" in error
    assert (f"{tmp_path} does not hold it" if data else "name the folder") in error


def test_what_is_no_preset_of_the_environment_is_refused(
    make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = make_recipe()
    with pytest.raises(RecipeError, match=r"'aime' is no file.*: aime-2025, amc-32, dsbench-6"):
        load_preset("aime", recipe)
    with pytest.raises(RecipeError, match="is of mappa/DSBench-v0, and the recipe plays"):
        load_preset("dsbench-6", recipe)
    own = tmp_path / "own.toml"
    own.write_text('env = "mappa/MathChat-v0"\nproblem = 3\nsamples = 1\n', encoding="utf-8")
    with pytest.raises(RecipeError, match="unknown key 'problem'; did you mean 'problems'"):
        load_preset(str(own), recipe)


@pytest.mark.parametrize("name", ["aime-2025", "amc-32"])
def test_the_real_problems_are_all_played(name: str, make_recipe: Callable[..., Recipe]) -> None:
    if not os.environ.get("MAPPA_DATA_DIR"):
        pytest.skip("MAPPA_DATA_DIR does not name a folder with the problem files")
    from mappa_trainer.environment import make_env
    from mappa_trainer.recipe import laid_over

    recipe = make_recipe()
    preset = load_preset(name, recipe)
    env = make_env(laid_over(recipe, tables_of(preset, name, None), ()))
    seen = set()
    for task in range(preset.problems + 1):
        env.reset(seed=0, options={"split": "test", "task": task})
        seen.add(env.last()[4]["task"]["id"])
    env.close()
    assert len(seen) == preset.problems
