"""From a recipe to the functions that it names, with everything that must fit together checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mappa_trainer import advantages, losses
from mappa_trainer.advantages import Estimator
from mappa_trainer.errors import RecipeError
from mappa_trainer.learner import LearningRate
from mappa_trainer.objective import Objective
from mappa_trainer.recipe import Recipe


def advantage_of(recipe: Recipe, agent: str) -> Estimator:
    """Return the advantage estimator of an agent."""
    return advantages.find(_advantage_name(recipe, agent))


def objective_of(recipe: Recipe) -> Objective:
    """Return what every optimiser step minimises."""
    table = recipe.algorithm
    return Objective(
        loss=partial(losses.find(table.loss), clip_low=table.clip_low, clip_high=table.clip_high),
        aggregation=table.aggregation,
        divisor=table.token_sum_divisor,
        kl_coef=table.kl_coef if table.kl_in == "loss" else 0.0,
        kl_estimator=table.kl_estimator,
        entropy_coef=table.entropy_coef,
        importance_cap=table.importance_cap,
    )


def learning_rate_of(recipe: Recipe) -> LearningRate:
    """Return the learning rate of every step; the schedule ends with the recipe's last step."""
    table, train = recipe.algorithm, recipe.train
    return LearningRate(
        peak=table.learning_rate,
        warmup_steps=table.warmup_updates,
        schedule=table.schedule,
        total_steps=train.iterations * train.updates,
    )


def check_algorithms(recipe: Recipe, agents: Sequence[str]) -> None:
    """Check the algorithms of a recipe before a run.

    Raises:
        RecipeError: an algorithm is unknown, an agent is not there, or settings do not go together.
    """
    if unknown := set(recipe.agents) - set(agents):
        raise RecipeError(
            f"[agents] names {', '.join(sorted(unknown))}; the agents are {', '.join(agents)}"
        )
    losses.find(recipe.algorithm.loss)
    _check_kl(recipe)
    _check_samples(recipe)
    for agent in agents:
        _check_groups(recipe, agent)


def _advantage_name(recipe: Recipe, agent: str) -> str:
    own = recipe.agents.get(agent)
    return (own and own.advantage) or recipe.algorithm.advantage


def _check_kl(recipe: Recipe) -> None:
    table = recipe.algorithm
    if table.kl_in == "loss" and table.kl_estimator == "k1":
        raise RecipeError(
            "algorithm.kl_estimator is 'k1' with algorithm.kl_in = 'loss': the mean of its "
            "gradient is 0, so it would hold nothing back; use 'k2' or 'k3' in the loss"
        )


def _check_samples(recipe: Recipe) -> None:
    table = recipe.train
    if table.episodes % table.samples:
        raise RecipeError(
            f"train.episodes is {table.episodes} and train.samples {table.samples}; every task is "
            "played train.samples times, so give a multiple of it"
        )


def _check_groups(recipe: Recipe, agent: str) -> None:
    name = _advantage_name(recipe, agent)
    if advantages.scope_of(advantages.find(name)) is None:
        return
    if recipe.train.samples < 2:
        raise RecipeError(
            f"{agent}: the advantage {name!r} compares samples of one task, and train.samples is "
            f"{recipe.train.samples}; give at least 2, or use an estimator such as 'reinforce++'"
        )
    if recipe.algorithm.gamma != 1:
        raise RecipeError(
            f"{agent}: the advantage {name!r} compares whole actions, and algorithm.gamma is "
            f"{recipe.algorithm.gamma:g}; it must be 1"
        )
