"""The environment of a recipe: building it, and checking the recipe against it."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from typing import Any

import pettingzoo  # type: ignore[import-untyped]
from pettingzoo.env_registry.exceptions import PettingZooRegistryError  # type: ignore[import-untyped]
from pettingzoo.env_registry.registration import aec_registry  # type: ignore[import-untyped]

from mappa_trainer.algorithms import check_algorithms
from mappa_trainer.collect import Env
from mappa_trainer.engines.serving import check_engine
from mappa_trainer.errors import RecipeError
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import TaskIds
from mappa_trainer.weights import plan_weights


def make_env(recipe: Recipe) -> Env:
    """Build one environment of the recipe.

    Raises:
        RecipeError: the module or the environment id is unknown, or the environment takes no
            such tables. What the environment says about the tables' contents passes through.
    """
    table = recipe.env
    if not all(map(str.isidentifier, table.module.split("."))):
        raise RecipeError(f"env.module {table.module!r} cannot be imported: it is no module name")
    try:
        importlib.import_module(table.module)
    except ImportError as error:
        raise RecipeError(f"env.module {table.module!r} cannot be imported: {error}") from None
    tables: dict[str, Any] = {
        name: value
        for name, value in (
            ("scenario", recipe.scenario),
            ("coach", recipe.coach),
            ("sandbox", recipe.sandbox),
        )
        if value is not None
    }
    try:
        return pettingzoo.make("aec", table.id, **tables)
    except PettingZooRegistryError as error:
        close = difflib.get_close_matches(table.id, aec_registry, n=3, cutoff=0.3)
        raise RecipeError(
            f"env.id {table.id!r} is registered neither by PettingZoo nor by {table.module!r}; "
            f"the closest are: {', '.join(close) or 'none'}"
        ) from error
    except TypeError as error:
        raise RecipeError(f"env.id {table.id!r} does not take these tables: {error}") from None


def without_coach(recipe: Recipe) -> Recipe:
    """Return the recipe of the bare environment, in which no coach is asked."""
    return recipe.model_copy(update={"coach": None})


def check_recipe(recipe: Recipe, env: Env) -> None:
    """Check what of a recipe can be checked once an environment is there, before a run.

    Raises:
        RecipeError: an algorithm is unknown, a key names an agent that is not there, or the
            episodes of an iteration are no whole number of batches of tasks.
    """
    check_algorithms(recipe, env.possible_agents)
    check_seats(recipe, env.possible_agents)
    check_engine(recipe, plan_weights(recipe, env.possible_agents))
    batch = env.metadata.get("task_batch", 1)
    tasks = recipe.train.episodes // recipe.train.samples
    if tasks % batch:
        raise RecipeError(
            f"an iteration has {tasks} tasks (train.episodes by train.samples), and they are dealt "
            f"out in batches of {batch}; give a multiple of it, or change the size of the batches "
            "in [scenario]"
        )


def check_seats(recipe: Recipe, agents: Sequence[str]) -> None:
    """Check that every key that names an agent names one that is there.

    Raises:
        RecipeError: one does not.
    """
    plan_weights(recipe, list(agents))
    if unknown := set(recipe.sampling.max_new_tokens_of) - set(agents):
        raise RecipeError(
            f"sampling.max_new_tokens_of names {sorted(unknown)}; the agents are "
            f"{', '.join(agents)}"
        )


def task_ids(env: Env) -> TaskIds:
    """Return the ids of the tasks of each split; none where the environment lists none."""
    ids: TaskIds = env.metadata.get("task_ids", {})
    return ids
