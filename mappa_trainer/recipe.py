"""Recipes: everything that decides a run, as one TOML file.

The tables `[scenario]`, `[coach]` and `[sandbox]` belong to the environment and pass to its
`make` unread. All other keys are checked here, before anything is written or loaded.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, Field, ValidationError

from mappa_trainer.errors import RecipeError
from mappa_trainer.recipe_tables import (
    STRICT,
    AgentTable,
    AlarmsTable,
    AlgorithmTable,
    EngineTable,
    EnvTable,
    EvalTable,
    ModelTable,
    SamplingTable,
    TrainTable,
)


class Recipe(BaseModel):
    """One training run; `load_recipe` reads it and `save` writes it into the run directory."""

    model_config = STRICT

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    """Begins the name of the run directory."""
    env: EnvTable
    scenario: dict[str, Any] | None = None
    coach: dict[str, Any] | None = None
    sandbox: dict[str, Any] | None = None
    model: ModelTable
    engine: EngineTable = EngineTable()
    sampling: SamplingTable = SamplingTable()
    algorithm: AlgorithmTable = AlgorithmTable()
    train: TrainTable
    eval: EvalTable = EvalTable()
    alarms: AlarmsTable = AlarmsTable()
    agents: dict[str, AgentTable] = {}
    """What is different for single agents, e.g. `[agents.coder_0]`."""

    @property
    def eval_modes(self) -> dict[str, float]:
        """How each evaluation is played, with the temperature: `sampled`, and `greedy` if asked."""
        modes = {"sampled": self.eval.temperature or self.sampling.temperature}
        return {**modes, "greedy": 0.0} if self.eval.greedy else modes


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply overrides such as `train.iterations=2`.

    Raises:
        RecipeError: the file is missing or not TOML, a key is unknown, a value is not allowed,
            or an override is not of the form `table.key=value`.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}; give a recipe file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: is not TOML: {error}") from None
    for override in overrides:
        _apply(table, override)
    return parse_recipe(table, f"{path} with --set" if overrides else str(path))


def laid_over(recipe: Recipe, tables: Mapping[str, Any], overrides: Sequence[str]) -> Recipe:
    """Lay tables over a recipe, key by key, and overrides over those.

    Raises:
        RecipeError: see `load_recipe`.
    """
    table = merged(recipe.model_dump(exclude_none=True), tables)
    for override in overrides:
        _apply(table, override)
    return parse_recipe(table, "the recipe with --set" if overrides else "the recipe")


def parse_recipe(table: Mapping[str, Any], where: str) -> Recipe:
    """Check a recipe given as plain data; `where` names it in errors.

    Raises:
        RecipeError: see `load_recipe`.
    """
    try:
        return Recipe.model_validate(table)
    except ValidationError as error:
        raise RecipeError(f"{where}: {first_problem(error, Recipe)}") from None


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with others laid over them, key by key."""
    both = dict(base)
    for key, value in over.items():
        old = both.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            both[key] = merged(old, value)
        else:
            both[key] = value
    return both


def _apply(table: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise RecipeError(f"--set {override!r}: write it as table.key=value")
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise RecipeError(f"--set {override!r}: {key!r} is a value, not a table")
    table[keys[-1]] = _value(text)


def _value(text: str) -> Any:
    """Read a TOML value; what is none is a plain string, so paths need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """Return what is wrong first with a table that is to be a model."""
    problems = error.errors()
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    problem = next(unknown, problems[0])  # a misspelt key is the reason why another is missing
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown key {where!r}; {_suggestion(problem['loc'], model)}"
    if problem["type"] == "missing":
        return f"key {where!r} is missing; add it"
    said = problem["msg"].replace("valid tuple", "list")
    return f"{where!r} is {problem['input']!r}: {said}"


def _suggestion(loc: tuple[int | str, ...], top: type[BaseModel]) -> str:
    model: Any = top
    for key in loc[:-1]:
        if (fields := getattr(model, "model_fields", None)) is not None:
            model = fields[key].annotation
        else:
            model = get_args(model)[-1]  # of dict[str, Table], whose key is any name
    known = list(model.model_fields)
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
