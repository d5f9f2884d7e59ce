"""Evaluations with a name: which problems, how many samples of each, and at which temperature.

A preset is a TOML file. Those that ship lie beside the scenarios of the package that a recipe's
`env.module` names:

    env = "mappa/MathChat-v0"     # the environment that it is of
    split = "test"                # or "train"
    problems = 30
    samples = 4
    temperature = 0.6             # of a recipe, where it is left out

    [scenario]                    # laid over the recipe's table
    task_seed = 0

    [files]                       # the same for keys that name files of the user's data folder
    tasks = "aime_2025.json"
"""

from __future__ import annotations

import importlib.util
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from mappa_trainer.errors import RecipeError
from mappa_trainer.recipe import Recipe, first_problem, merged
from mappa_trainer.recipe_tables import STRICT

DATA = "MAPPA_DATA_DIR"
"""The environment variable that names the data folder."""


class Preset(BaseModel):
    """One evaluation; see the files under `scenarios/evaluations`."""

    model_config = STRICT

    env: str
    split: Literal["train", "test"] = "test"
    problems: int = Field(ge=1)
    samples: int = Field(ge=1)
    temperature: float | None = Field(default=None, ge=0)
    scenario: dict[str, Any] = {}
    files: dict[str, Any] = {}


def load_preset(name: str, recipe: Recipe) -> Preset:
    """Read a preset that ships with the environments of a recipe, or a file of the user's own.

    Args:
        name: E.g. `"aime-2025"`, or the path of a TOML file.
        recipe: What it is to be laid over.

    Raises:
        RecipeError: there is no such preset, it is wrong, or it is of another environment.
    """
    shipped = _shipped(recipe.env.module)
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise RecipeError(
            f"--preset {name!r} is no file, and none that ships with {recipe.env.module}: "
            f"{', '.join(sorted(shipped)) or 'none does'}"
        )
    try:
        preset = Preset.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: is not TOML: {error}") from None
    except ValidationError as error:
        raise RecipeError(f"{path}: {first_problem(error, Preset)}") from None
    if preset.env != recipe.env.id:
        raise RecipeError(
            f"--preset {name!r} is of {preset.env}, and the recipe plays {recipe.env.id}; give a "
            "recipe or a run of that environment"
        )
    return preset


def tables_of(preset: Preset, name: str, data: Path | None) -> dict[str, Any]:
    """Return the tables that a preset lays over a recipe, with its files in the data folder.

    Args:
        preset: The preset.
        name: Of the preset, for errors.
        data: The folder; None for the one that `MAPPA_DATA_DIR` names.

    Raises:
        RecipeError: a file that the preset needs is not there, or no folder is named.
    """
    return {"scenario": merged(preset.scenario, _located(preset.files, name, data or _data()))}


def _data() -> Path | None:
    return Path(os.environ[DATA]) if os.environ.get(DATA) else None


def _located(files: Mapping[str, Any], name: str, data: Path | None) -> dict[str, Any]:
    """Return a table with the paths of the files that it names."""
    return {key: _place(value, name, data) for key, value in files.items()}


def _place(value: Any, name: str, data: Path | None) -> Any:
    if isinstance(value, Mapping):
        return _located(value, name, data)
    if isinstance(value, list):
        return [_place(one, name, data) for one in value]
    if data is None:
        raise RecipeError(
            f"--preset {name!r} needs {value}, which does not ship; name the folder that it is in "
            f"with --data DIR or {DATA}"
        )
    if not (data / str(value)).exists():
        raise RecipeError(
            f"--preset {name!r} needs {value}, and {data} does not hold it; put it there, or name "
            f"another folder with --data DIR or {DATA}"
        )
    return str(data / str(value))


def _shipped(module: str) -> dict[str, Path]:
    """Return the presets that lie beside the scenarios of a package, by name."""
    found = importlib.util.find_spec(module)
    roots = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    folders = [up / "scenarios" / "evaluations" for root in roots for up in (root.parent, root)]
    return {path.stem: path for folder in folders for path in folder.glob("*.toml")}
