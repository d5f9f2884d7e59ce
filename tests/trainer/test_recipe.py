from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mappa_trainer.errors import RecipeError
from mappa_trainer.recipe import Recipe, load_recipe
from mappa_trainer.runlog import RunDirectory

SHIPPED = sorted((Path(__file__).parents[2] / "scenarios" / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_recipes_that_ship_are_valid_and_named_like_their_files(path: Path) -> None:
    assert load_recipe(path).name == path.stem


def test_a_recipe_holds_what_its_file_says_and_defaults_elsewhere(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file)
    assert recipe.train.iterations == 4
    assert recipe.scenario["roles"]["coder"]["max_turns"] == 1
    assert recipe.sandbox is None
    assert recipe.algorithm.gamma == 1.0
    assert recipe.sampling.limit("coder_0") == 14


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("train.iterations=2", ("train", "iterations"), 2),
        ("algorithm.learning_rate=2e-5", ("algorithm", "learning_rate"), 2e-5),
        ("eval.greedy=true", ("eval", "greedy"), True),
        ("model.base=/models/my model", ("model", "base"), "/models/my model"),
        ('model.base="quoted"', ("model", "base"), "quoted"),
        ("algorithm.loss=my.module:loss", ("algorithm", "loss"), "my.module:loss"),
        ("coach.kind=a=b", ("coach", "kind"), "a=b"),
        ("scenario.tasks=data/train.json", ("scenario", "tasks"), "data/train.json"),
        ("scenario.generated.levels=[1, 2]", ("scenario", "generated", "levels"), [1, 2]),
        (
            "scenario.roles.coder.max_turns=2",
            ("scenario", "roles", "coder", "max_turns"),
            2,
        ),
        (
            "scenario.limits.timeout_s=0.5",
            ("scenario", "limits", "timeout_s"),
            0.5,
        ),
        (
            "sampling.max_new_tokens_of={coder_0 = 9}",
            ("sampling", "max_new_tokens_of"),
            {"coder_0": 9},
        ),
        ("sandbox.level=auto", ("sandbox", "level"), "auto"),
    ],
)
def test_set_changes_one_key(
    recipe_file: Path, override: str, path: tuple[str, ...], value: Any
) -> None:
    found: Any = load_recipe(recipe_file, [override]).model_dump()
    for key in path:
        found = found[key]
    assert found == value
    assert type(found) is type(value)


def test_a_whole_number_may_stand_for_a_float(recipe_file: Path) -> None:
    gamma = load_recipe(recipe_file, ["algorithm.gamma=1"]).algorithm.gamma
    assert gamma == 1.0
    assert type(gamma) is float


def test_set_leaves_other_keys_alone_and_the_last_one_wins(recipe_file: Path) -> None:
    plain = load_recipe(recipe_file).model_dump()
    changed = load_recipe(
        recipe_file, ["scenario.roles.coder.max_turns=5", "scenario.roles.coder.max_turns=2"]
    ).model_dump()
    assert changed["scenario"]["roles"]["coder"].pop("max_turns") == 2
    plain["scenario"]["roles"]["coder"].pop("max_turns")
    assert changed == plain


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train=3", "table.key=value"),
        ("train.iterations", "table.key=value"),
        ("=3", "table.key=value"),
        ("train.=3", "table.key=value"),
        ("train..iterations=3", "table.key=value"),
        ("name.first=x", "'name' is a value, not a table"),
        ("train.updates.deep.er=1", "'updates' is a value, not a table"),
        ("train.iteratoins=3", "unknown key 'train.iteratoins'; did you mean 'iterations'?"),
        ("trian.iterations=3", "unknown key 'trian'; did you mean 'train'?"),
        ("eval.zzz=3", "unknown key 'eval.zzz'; known keys: problems, every, temperature, greedy"),
        ("train.iterations=0", "'train.iterations' is 0: "),
        ("train.iterations=many", "'train.iterations' is 'many': "),
        ("sampling.temperature=0", "'sampling.temperature' is 0: "),
        ("sampling.top_p=0.9", "unknown key 'sampling.top_p'"),
        ("algorithm.gamma=1.5", "'algorithm.gamma' is 1.5: "),
        ("model.precision=float16", "'model.precision' is 'float16': "),
        ("train.iterations=true", "'train.iterations' is True: Input should be a valid integer"),
        ("train.iterations='2'", "'train.iterations' is '2': Input should be a valid integer"),
        ("train.seed=false", "'train.seed' is False: Input should be a valid integer"),
        ("train.max_logprob_gap=true", "'train.max_logprob_gap' is True: Input should be"),
        ("train.max_unscored=1.5", "'train.max_unscored' is 1.5: Input should be less than"),
        ("train.max_unscored=-0.1", "'train.max_unscored' is -0.1: Input should be greater"),
        ("algorithm.gamma=true", "'algorithm.gamma' is True: Input should be a valid number"),
        ("eval.problems=true", "'eval.problems' is True: "),
        ("eval.greedy=1", "'eval.greedy' is 1: Input should be a valid boolean"),
        ("sampling.max_new_tokens_of.coder_0=true", "'sampling.max_new_tokens_of.coder_0' is True"),
        ("sampling.max_new_tokens_of.coder_0=x", "'sampling.max_new_tokens_of.coder_0' is 'x': "),
    ],
)
def test_a_bad_set_is_one_line_that_says_what_is_wrong(
    recipe_file: Path, override: str, words: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe_file, [override])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "is not TOML"),
        ("\udcff", "is not TOML"),
        ("name = 'x'", "key 'env' is missing; add it"),
        ("naem = 'x'", "unknown key 'naem'; did you mean 'name'?"),
        ("[env]\nmodule = 'm'", "is missing; add it"),
    ],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["missing.toml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, place: str) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(tmp_path / place)


def test_the_saved_recipe_is_equal_to_the_one_that_was_run(
    make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = make_recipe(
        algorithm={"learning_rate": 0.1 + 0.2, "shuffle_rewards": True},
        sampling={"max_new_tokens_of": {"coder_0": 5}},
        scenario={"tasks": "ünïcode.json", "generated": {"levels": [1, 2]}},
    )
    RunDirectory.create(tmp_path / "run", recipe)
    assert RunDirectory.open(tmp_path / "run").recipe() == recipe
