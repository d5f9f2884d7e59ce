"""The models of a run: for each agent a learner and the policy that plays its weights."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pettingzoo  # type: ignore[import-untyped]
import torch
from pettingzoo.env_registry.exceptions import PettingZooRegistryError  # type: ignore[import-untyped]
from pettingzoo.env_registry.registration import aec_registry  # type: ignore[import-untyped]
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mappa_trainer.algorithms import check_algorithms, learning_rate_of
from mappa_trainer.checkpoint import load_state
from mappa_trainer.collect import Env
from mappa_trainer.engines.hf import HFEngine, LMPolicy
from mappa_trainer.errors import RecipeError
from mappa_trainer.learner import Learner
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.models import load_model, load_tokenizer, resolve_model
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import TaskIds
from mappa_trainer.types import Sampling


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


def check_recipe(recipe: Recipe, env: Env) -> None:
    """Check what of a recipe can be checked once an environment is there, before a run.

    Raises:
        RecipeError: an algorithm is unknown, a key names an agent that is not there, or the
            episodes of an iteration are no whole number of batches of tasks.
    """
    check_algorithms(recipe, env.possible_agents)
    if unknown := set(recipe.sampling.max_new_tokens_of) - set(env.possible_agents):
        raise RecipeError(
            f"sampling.max_new_tokens_of names {sorted(unknown)}; the agents are "
            f"{', '.join(env.possible_agents)}"
        )
    batch = env.metadata.get("task_batch", 1)
    tasks = recipe.train.episodes // recipe.train.samples
    if tasks % batch:
        raise RecipeError(
            f"an iteration has {tasks} tasks (train.episodes by train.samples), and they are dealt "
            f"out in batches of {batch}; give a multiple of it, or change the size of the batches "
            "in [scenario]"
        )


def task_ids(env: Env) -> TaskIds:
    """Return the ids of the tasks of each split; none where the environment lists none."""
    ids: TaskIds = env.metadata.get("task_ids", {})
    return ids


@dataclass(frozen=True)
class Team:
    """Everything with weights."""

    tokenizer: PreTrainedTokenizerBase
    learners: dict[str, Learner]
    engines: dict[str, HFEngine]
    policies: dict[str, LMPolicy]
    reference: Likelihood
    """The base weights, frozen, shared by all agents: they all start from them."""

    def sync(self, agent: str) -> None:
        """Give the agent's engine its learner's weights."""
        self.engines[agent].sync(self.learners[agent].model)


def build_team(recipe: Recipe, agents: list[str], checkpoint: Path | None = None) -> Team:
    """Load one set of weights for each agent, from a checkpoint or from the base model.

    Raises:
        ModelError: a model cannot be loaded.
        CheckpointError: the checkpoint's optimiser state cannot be loaded.
    """
    base = resolve_model(recipe.model.base)
    tokenizer = load_tokenizer(base)
    learners, engines = {}, {}
    for agent in agents:
        model = load_model(checkpoint / agent if checkpoint else base)
        learners[agent] = _learner(recipe, model)
        if checkpoint:
            load_state(checkpoint, agent, learners[agent])
        engines[agent] = build_engine(recipe, model, tokenizer)
    return Team(
        tokenizer=tokenizer,
        learners=learners,
        engines=engines,
        policies={agent: LMPolicy(engine, tokenizer) for agent, engine in engines.items()},
        reference=_likelihood(recipe, load_model(base)),
    )


def load_policies(recipe: Recipe, agents: list[str], checkpoint: Path) -> dict[str, LMPolicy]:
    """Load a checkpoint's weights for acting alone."""
    policies = {}
    for agent in agents:
        tokenizer = load_tokenizer(checkpoint / agent)
        engine = build_engine(recipe, load_model(checkpoint / agent), tokenizer)
        policies[agent] = LMPolicy(engine, tokenizer)
    return policies


def build_engine(
    recipe: Recipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> HFEngine:
    """Return the engine that generates with a model's weights."""
    eos = model.generation_config.eos_token_id if model.generation_config else None
    ids = {tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])} - {None}
    pad = tokenizer.pad_token_id
    return HFEngine(
        model,
        eos_ids=ids,
        pad_id=pad if pad is not None else tokenizer.eos_token_id,
        dtype=getattr(torch, recipe.model.sampler_precision),
        share=recipe.model.sampler_precision == "float32",
    )


def sampling_of(recipe: Recipe, agents: list[str], temperature: float) -> dict[str, Sampling]:
    """Return how each agent's actions are drawn."""
    return {agent: Sampling(temperature, recipe.sampling.limit(agent)) for agent in agents}


def _learner(recipe: Recipe, model: PreTrainedModel) -> Learner:
    return Learner(
        model,
        learning_rate=learning_rate_of(recipe),
        max_grad_norm=recipe.algorithm.max_grad_norm,
        temperature=recipe.sampling.temperature,
        precision=recipe.model.precision,
        token_budget=recipe.model.token_budget,
    )


def _likelihood(recipe: Recipe, model: PreTrainedModel) -> Likelihood:
    return Likelihood(
        model.requires_grad_(False),
        temperature=recipe.sampling.temperature,
        precision=recipe.model.precision,
        token_budget=recipe.model.token_budget,
    )
