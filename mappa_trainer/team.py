"""The models of a run: a learner for each set of weights, and a policy for each agent."""

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

from mappa_trainer.adapters import add_adapter, load_adapter
from mappa_trainer.algorithms import check_algorithms, learning_rate_of
from mappa_trainer.checkpoint import load_state
from mappa_trainer.collect import Env
from mappa_trainer.engines.hf import HFEngine, LMPolicy, copy_as
from mappa_trainer.errors import RecipeError
from mappa_trainer.learner import Learner
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.models import find_device, load_model, load_tokenizer, resolve_model
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import TaskIds
from mappa_trainer.seeds import derive_seed
from mappa_trainer.types import Sampling
from mappa_trainer.weights import Weights, plan_weights


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
    plan_weights(recipe, env.possible_agents)
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
    """Everything with weights; learners and engines are keyed by the names of the weights."""

    tokenizer: PreTrainedTokenizerBase
    weights: list[Weights]
    learners: dict[str, Learner]
    """Of the weights that are trained."""
    engines: dict[str, HFEngine]
    policies: dict[str, LMPolicy]
    """For each agent."""
    reference: Likelihood
    """The base without any adapter, frozen, shared by all: every set of weights starts from it."""

    @property
    def players(self) -> dict[str, str | None]:
        """For each agent the name of its weights, or None where it plays the base."""
        return {
            agent: None if weights.tuning == "frozen" else weights.name
            for weights in self.weights
            for agent in weights.agents
        }

    def sync(self, name: str) -> None:
        """Give the engine of a set of weights its learner's weights."""
        learner = self.learners[name]
        self.engines[name].sync(learner.model, learner.step)


def build_team(recipe: Recipe, agents: list[str], checkpoint: Path | None = None) -> Team:
    """Load every set of weights of a team, from a checkpoint or from the base model.

    Raises:
        ModelError: a model cannot be loaded.
        CheckpointError: an adapter or the optimiser state of the checkpoint cannot be loaded.
    """
    base_folder = resolve_model(recipe.model.base)
    tokenizer = load_tokenizer(base_folder)
    plan = plan_weights(recipe, agents)
    models = _load_models(recipe, plan, base_folder, checkpoint)
    learners = {}
    for weights in plan:
        if weights.tuning != "frozen":
            learners[weights.name] = _learner(recipe, weights, models.of(weights))
            if checkpoint:
                load_state(checkpoint, weights.name, learners[weights.name])
    engines = _engines(recipe, plan, models, tokenizer)
    return Team(
        tokenizer=tokenizer,
        weights=plan,
        learners=learners,
        engines=engines,
        policies=_policies(plan, engines, tokenizer),
        reference=Likelihood(
            models.base,
            temperature=recipe.sampling.temperature,
            precision=recipe.model.precision,
            token_budget=recipe.model.token_budget,
        ),
    )


def load_policies(recipe: Recipe, agents: list[str], checkpoint: Path) -> dict[str, LMPolicy]:
    """Load a checkpoint's weights for acting alone; see `build_team` for errors."""
    base_folder = resolve_model(recipe.model.base)
    tokenizer = load_tokenizer(base_folder)
    plan = plan_weights(recipe, agents)
    models = _load_models(recipe, plan, base_folder, checkpoint)
    return _policies(plan, _engines(recipe, plan, models, tokenizer), tokenizer)


def load_base_policies(recipe: Recipe, agents: list[str]) -> dict[str, LMPolicy]:
    """Load the base model once, for all agents to act with; see `build_team` for errors."""
    base_folder = resolve_model(recipe.model.base)
    tokenizer = load_tokenizer(base_folder)
    dtype = getattr(torch, recipe.model.sampler_precision)
    model = load_model(base_folder).requires_grad_(False)
    engine = _engine(model, tokenizer, dtype, share=dtype == torch.float32)
    return dict.fromkeys(agents, LMPolicy(engine, tokenizer))


@dataclass(frozen=True)
class _Models:
    """The models of a team: the frozen base with all adapters, and one for each full set."""

    base: PreTrainedModel
    full: dict[str, PreTrainedModel]

    def of(self, weights: Weights) -> PreTrainedModel:
        return self.full.get(weights.name, self.base)


def _load_models(
    recipe: Recipe, plan: list[Weights], base_folder: Path, checkpoint: Path | None
) -> _Models:
    device = find_device(recipe.model.device)
    base = _placed(load_model(base_folder), device).requires_grad_(False)
    full = {}
    for weights in plan:
        folder = checkpoint / weights.name if checkpoint else None
        if weights.tuning == "full":
            full[weights.name] = _placed(load_model(folder or base_folder), device)
        elif weights.tuning == "lora" and folder:
            load_adapter(base, weights.name, folder)
        elif weights.tuning == "lora":
            seed = derive_seed(recipe.train.seed, "lora", weights.name)
            add_adapter(base, weights.name, recipe.model.lora, seed)
    return _Models(base, full)


def _placed(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    placed: PreTrainedModel = model.to(device)  # type: ignore[arg-type]
    return placed


def _engines(
    recipe: Recipe, plan: list[Weights], models: _Models, tokenizer: PreTrainedTokenizerBase
) -> dict[str, HFEngine]:
    """Build an engine for each set of weights; all that are not full share one copy of the base."""
    dtype = getattr(torch, recipe.model.sampler_precision)
    shared = models.base
    if dtype != torch.float32 and any(weights.tuning != "full" for weights in plan):
        shared = copy_as(models.base, dtype)
    return {
        weights.name: _engine(models.of(weights), tokenizer, dtype, share=dtype == torch.float32)
        if weights.tuning == "full"
        else _engine(
            shared,
            tokenizer,
            dtype,
            share=True,
            adapter=weights.name if weights.tuning == "lora" else None,
        )
        for weights in plan
    }


def _policies(
    plan: list[Weights], engines: dict[str, HFEngine], tokenizer: PreTrainedTokenizerBase
) -> dict[str, LMPolicy]:
    return {
        agent: LMPolicy(engines[weights.name], tokenizer)
        for weights in plan
        for agent in weights.agents
    }


def _engine(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
    *,
    share: bool,
    adapter: str | None = None,
) -> HFEngine:
    eos = model.generation_config.eos_token_id if model.generation_config else None
    ids = {tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])} - {None}
    pad = tokenizer.pad_token_id
    return HFEngine(
        model,
        eos_ids=ids,
        pad_id=pad if pad is not None else tokenizer.eos_token_id,
        dtype=dtype,
        share=share,
        adapter=adapter,
    )


def sampling_of(recipe: Recipe, agents: list[str], temperature: float) -> dict[str, Sampling]:
    """Return how each agent's actions are drawn."""
    return {agent: Sampling(temperature, recipe.sampling.limit(agent)) for agent in agents}


def _learner(recipe: Recipe, weights: Weights, model: PreTrainedModel) -> Learner:
    return Learner(
        model,
        learning_rate=learning_rate_of(recipe),
        max_grad_norm=recipe.algorithm.max_grad_norm,
        temperature=recipe.sampling.temperature,
        precision=recipe.model.precision,
        token_budget=recipe.model.token_budget,
        gradient_checkpointing=recipe.model.gradient_checkpointing,
        adapter=weights.name if weights.tuning == "lora" else None,
        offload=recipe.model.offload_optimizer,
    )
