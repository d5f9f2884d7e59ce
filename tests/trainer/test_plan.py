from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import run_mappa

from mappa_trainer.capacity import TrainingMemory, read_shape
from mappa_trainer.errors import ModelError, RecipeError
from mappa_trainer.placement import (
    Devices,
    Group,
    Placement,
    SetMemory,
    TeamMemory,
    longest_prompt,
    parse_devices,
    place_sharded,
    place_today,
    team_memory,
)
from mappa_trainer.plan import find_shape, plan_run, verdict, without_missing_files
from mappa_trainer.recipe import Recipe

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "scenarios" / "recipes"
AGENTS = ["solver_0", "coder_0", "verifier_0"]
MakeRecipe = Callable[..., Recipe]


def one_set(name: str, weights: int = 8, **changes: int) -> SetMemory:
    """Weights and gradients of 8, moments of 16, casts of 2, activations of 3, a copy of 4."""
    return SetMemory(
        name=name,
        agents=(name,),
        tuning="full",
        training=TrainingMemory(1, weights, weights, 2 * weights, 2, 3),
        copy=changes.get("copy", 4),
        gathered=1,
        cache=changes.get("cache", 2),
        row=1,
    )


def team(*sets: SetMemory, offload: bool = False, rows: int = 4) -> TeamMemory:
    return TeamMemory(sets, base=8, base_copy=0, offload=offload, rows=rows)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("8x80GB", Devices(8, 80_000_000_000)),
        ("1x24GiB", Devices(1, 24 * 2**30)),
        ("80GB", Devices(1, 80_000_000_000)),
        (" 2x1.5gb ", Devices(2, 1_500_000_000)),
    ],
)
def test_devices(text: str, devices: Devices) -> None:
    assert parse_devices(text) == devices


@pytest.mark.parametrize(
    "text", ["", "8", "8x80", "x80GB", "0x80GB", "8x0GB", "-1x8GB", "9999x1GB"]
)
def test_other_devices_are_refused(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_devices(text)
    assert f"--gpus is {text!r}; write" in str(caught.value)


def test_a_tenth_of_a_device_is_left_alone() -> None:
    assert Devices(1, 1_000).usable == 900


def test_on_one_device_what_rests_adds_up_and_what_passes_takes_turns() -> None:
    placed = place_today(team(one_set("a"), one_set("b", weights=10)), Devices(8, 1_000))
    # weights and moments of 24 and 30, two copies of 4 and the base of 8; then b trains
    resident = 24 + 30 + 4 + 4 + 8
    group = Group((0,), ("a", "b"), resident, resident + 10 + 2 + 3, resident + 4 * 3)
    assert placed == Placement(1, 4, (group,), 900)
    assert (placed.peak, placed.excess, placed.fits) == (85, 85 - 900, True)


def test_moments_that_are_offloaded_are_there_while_their_set_trains() -> None:
    placed = place_today(team(one_set("a"), one_set("b"), offload=True), Devices(1, 1_000))
    (group,) = placed.groups
    assert group.resident == 8 + 8 + 4 + 4 + 8
    assert group.training - group.resident == 8 + 16 + 2 + 3


def test_a_group_divides_what_is_trained_and_shares_the_rows() -> None:
    placed = place_sharded(team(one_set("a")), Devices(2, 40))
    resident = 24 / 2 + 4 + 8 / 2
    assert resident + 8 / 2 + 1 + 3 <= 36 < 24 + 4 + 8 + 8
    assert placed.divided == 2
    assert placed.rows == 2
    (group,) = placed.groups
    assert group == Group((0, 1), ("a",), resident, resident + 4 + 1 + 3, resident + 2 * 3)


def test_the_largest_goes_first_and_to_the_first_that_has_room() -> None:
    """With b, that takes 81 of 108, there is room for c, 97 together, but not for a, 109."""
    sets = one_set("a", 8), one_set("b", 16), one_set("c", 4)
    placed = place_sharded(team(*sets, rows=1), Devices(2, 120))
    assert placed.divided == 1
    assert placed.fits
    assert [group.sets for group in placed.groups] == [("b", "c"), ("a",)]


def test_of_placements_that_fit_the_one_with_most_rows_is_taken() -> None:
    """Apart each has room for 12 rows on its device; together it has as many on two devices."""
    apart = place_sharded(team(one_set("a"), one_set("b"), rows=2), Devices(2, 80))
    assert (apart.divided, apart.rows) == (1, 2)
    together = place_sharded(team(one_set("a"), one_set("b"), rows=100), Devices(2, 80))
    assert (together.divided, together.rows) == (2, 12)


def test_where_nothing_fits_the_plan_says_by_how_much_and_for_whom() -> None:
    placed = place_sharded(team(one_set("a", 8_000_000_000)), Devices(2, 10_000_000_000))
    assert not placed.fits
    assert placed.divided == 2
    resident = 24e9 / 2 + 4 + 4
    assert placed.excess == resident + 4e9 + 4 - 9e9
    assert verdict(placed) == "it does not fit: 7.0 GB too much on each device of a, to train"
    crowded = place_today(team(one_set("a", cache=4_000_000_000)), Devices(1, 10_000_000_000))
    assert verdict(crowded).endswith("7.0 GB too much on each device of a, to generate")


def test_adapters_and_frozen_agents_share_the_base(
    make_recipe: MakeRecipe, tiny_model: Path
) -> None:
    recipe = make_recipe(
        model={"tuning": "lora", "sampler_precision": "bfloat16", "lora": {"rank": 2, "alpha": 4}},
        agents={"verifier_0": {"tuning": "frozen"}},
    )
    shape = read_shape(tiny_model)
    found = team_memory(recipe, AGENTS, shape, prompt=100)
    assert (found.base, found.base_copy) == (4 * shape.parameters, 2 * shape.parameters)
    solver, _, verifier = found.sets
    assert solver.training.weights == 4 * shape.adapter(2)
    assert solver.copy == 2 * shape.adapter(2)
    assert (verifier.training.total, verifier.copy, verifier.gathered) == (0, 0, 0)
    assert verifier.cache == solver.cache


def test_an_engine_in_float32_has_no_copy(make_recipe: MakeRecipe, tiny_model: Path) -> None:
    found = team_memory(make_recipe(), AGENTS, read_shape(tiny_model), prompt=100)
    assert [one.copy for one in found.sets] == [0, 0, 0]
    assert found.base_copy == 0


def test_rows_are_the_episodes_up_to_what_an_engine_decodes_together(
    make_recipe: MakeRecipe, tiny_model: Path
) -> None:
    shape = read_shape(tiny_model)
    for episodes, problems, rows in ((3, 2, 3), (3, 9, 9), (100, 9, 64)):
        recipe = make_recipe(train={"episodes": episodes}, eval={"problems": problems})
        assert team_memory(recipe, AGENTS, shape, 100).rows == rows


def test_the_longest_prompt_is_what_the_budget_or_the_context_leaves(
    make_recipe: MakeRecipe, tiny_model: Path
) -> None:
    shape = read_shape(tiny_model)
    sampling = {"max_new_tokens": 14, "max_new_tokens_of": {"coder_0": 30}}
    for budget, prompt in ((1_000, 970), (20_000, 8_192 - 30), (20, 1)):
        recipe = make_recipe(sampling=sampling, model={"token_budget": budget})
        assert longest_prompt(recipe, shape, AGENTS) == prompt


def test_a_shape_is_looked_for_in_three_places(
    make_recipe: MakeRecipe, tiny_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.toml"
    shape = read_shape(tiny_model)
    assert find_shape(make_recipe(), file, None) == (shape, tiny_model)
    gone = make_recipe(model={"base": "far/away"})
    with pytest.raises(ModelError) as caught:
        find_shape(gone, file, None)
    beside = tmp_path / "shapes" / "away.json"
    assert f"model.base 'far/away' is no folder on this machine, and {beside}" in str(caught.value)
    assert "--model-config" in str(caught.value)
    config = tiny_model / "config.json"
    assert find_shape(gone, file, config) == (shape, config)
    beside.parent.mkdir()
    shutil.copy(config, beside)
    assert find_shape(gone, file, None) == (shape, beside)


def test_only_files_that_are_not_here_are_left_out(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    here = tmp_path / "here.json"
    here.touch()
    scenario = {"tasks": "gone.json", "test_tasks": str(here), "name": "generated"}
    recipe, left_out = without_missing_files(make_recipe(scenario=scenario))
    assert left_out == ["scenario.tasks = 'gone.json'"]
    assert recipe.scenario is not None
    assert "tasks" not in recipe.scenario
    assert {"test_tasks", "name", "roles"} <= set(recipe.scenario)


def test_a_plan_of_a_recipe_on_devices_that_have_room(recipe_file: Path) -> None:
    report = plan_run(recipe_file, (), "1x1GB")
    assert report.today.fits
    assert report.choices == ()
    # 12 episodes to train on and 3 evaluations of 2; one action of each agent of up to 14 tokens
    assert report.tokens == dict.fromkeys(AGENTS, (12 + 6) * 14)
    assert report.left_out == ()


def test_settings_that_take_less_are_offered_with_what_comes_of_them(recipe_file: Path) -> None:
    report = plan_run(recipe_file, ("model.token_budget=4000",), "1x0.06GB")
    assert not report.today.fits
    named = {setting for choice in report.choices for setting in choice.settings}
    assert {"model.gradient_checkpointing=true", "model.tuning=lora"} <= named
    *single, together = report.choices
    assert all(choice.today.peak != report.today.peak for choice in single)
    assert together.settings == tuple(one.settings[0] for one in single)
    assert together.today.peak < report.today.peak


def plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    monkeypatch.setenv("COLUMNS", "160")
    code = run_mappa(monkeypatch, "plan", *arguments)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_paper_s_run_is_planned_without_its_model_and_its_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES / "mathchat-qwen3-4b.toml"
    code, text, error = plan(monkeypatch, capsys, recipe, "--gpus", "8x80GB")
    assert (code, error) == (0, "")
    for words in (
        "4,022,468,096 parameters",
        "scenario.tasks = 'AIME_1983_2024.json' is not here",
        "a prompt of 24,576 tokens",
        "of solver_0, coder_0, verifier_0, to generate",
        "a plan, not in this version: each set over 8 devices, 6 rows on each",
        "model.tuning=lora",
        "coder_0 generates at most 75,218,944 tokens",
        "128 iterations, 8,192 episodes to train on",
        "the coach asks no model and costs nothing",
    ):
        assert words in text
    assert list(tmp_path.iterdir()) == []


def test_a_plan_as_json(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = plan(monkeypatch, capsys, recipe_file, "--gpus", "2x1GB", "--json")
    document: dict[str, Any] = json.loads(text)
    assert code == 0
    assert document["devices"] == {"count": 2, "size": 10**9}
    assert [one["name"] for one in document["team"]["sets"]] == AGENTS
    assert document["today"]["fits"] is True
    assert document["today"]["excess"] < 0
    assert document["survey"]["planned"]["episodes"] == 12
    assert document["tokens"]["coder_0"] == 252


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{0} --gpus many", "--gpus is 'many'"),
        ("{0}.none --gpus 80GB", "cannot be read"),
        ("{0} --gpus 80GB --set model.base=none", "model.base 'none' is no folder"),
        ("{0} --gpus 80GB --model-config {0}", "cannot be read as a model's configuration"),
        ("{0} --gpus 80GB --prompt-tokens 9000", "are more than the model's context of 8,192"),
        ("{0} --gpus 80GB --set scenario.roles.coder.max_trns=2", "did you mean 'max_turns'?"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: str,
    words: str,
    recipe_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, error = plan(monkeypatch, capsys, *arguments.format(recipe_file).split())
    assert code == 2
    assert words in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
