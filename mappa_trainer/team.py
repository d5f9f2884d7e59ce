"""The models of a run: a learner for each set of weights, and a policy for each agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mappa_trainer.adapters import add_adapter, load_adapter
from mappa_trainer.algorithms import learning_rate_of
from mappa_trainer.checkpoint import load_state
from mappa_trainer.cluster.worker import LearnerWorker
from mappa_trainer.collect import Env, Play, collect
from mappa_trainer.collect_async import collect_async
from mappa_trainer.engines import Engine, SyncedEngine
from mappa_trainer.engines.hf import AsyncLMPolicy, HFEngine, LMPolicy, copy_as
from mappa_trainer.engines.probe import check_gap, probe_gap
from mappa_trainer.engines.serving import Serving, serve
from mappa_trainer.errors import CheckpointError, ModelError
from mappa_trainer.learner import Learner
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.models import find_device, load_model, load_tokenizer, resolve_model
from mappa_trainer.recipe import Recipe
from mappa_trainer.seeds import derive_seed
from mappa_trainer.sharding import ALONE, Ranks
from mappa_trainer.types import Episode, Sampling
from mappa_trainer.weights import Weights, plan_weights


@dataclass(frozen=True)
class Team:
    """Everything with weights; learners and engines are keyed by the names of the weights."""

    tokenizer: PreTrainedTokenizerBase
    weights: list[Weights]
    learners: dict[str, Learner]
    """Of the weights that are trained."""
    engines: Mapping[str, SyncedEngine]
    policies: Mapping[str, LMPolicy]
    """For each agent; with servers, those that take conversations as they come."""
    reference: Likelihood
    """The base without any adapter, frozen, shared by all: every set of weights starts from it."""
    serving: Serving | None = None
    """The servers of the engines, where these need any."""
    max_sync_gap: float = 0.1
    """See `EngineTable`."""

    @property
    def players(self) -> dict[str, str | None]:
        """For each agent the name of its weights, or None where it plays the base."""
        return {
            agent: None if weights.tuning == "frozen" else weights.name
            for weights in self.weights
            for agent in weights.agents
        }

    def worker(self, name: str) -> LearnerWorker:
        """Return what trains a set of weights."""
        return LearnerWorker(self.learners[name], self.reference)

    def play(
        self,
        envs: Sequence[Env],
        todo: Sequence[Play],
        sampling: Mapping[str, Sampling],
        progress: Callable[[str], None],
    ) -> list[Episode]:
        """Play episodes, each by itself where servers generate, and else in lockstep."""
        alone = {a: p for a, p in self.policies.items() if isinstance(p, AsyncLMPolicy)}
        if len(alone) == len(self.policies):
            return collect_async(envs, todo, alone, sampling, progress)
        return collect(envs, todo, self.policies, sampling, progress)

    def open(self, logs: Path, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start the servers, if there are any, and give every engine its learner's weights.

        Args:
            logs: A folder for what the servers say.
            progress: Called with a few words while servers start; may raise to stop.

        Raises:
            EngineError: a server does not start.
            TrainingError: see `sync`.
        """
        if self.serving:
            self.serving.open(logs, progress)
        for name in self.learners:
            self.sync(name)

    def sync(self, name: str) -> dict[str, float]:
        """Give the engine of a set of weights its learner's weights.

        Returns:
            For an engine in a server, `<agent>/sync_gap`: how far its log-probabilities of a probe
            are from the learner's, for each agent that plays the weights.

        Raises:
            EngineError: the server does not take the weights.
            TrainingError: the gap is above the limit.
        """
        learner, engine = self.learners[name], self.engines[name]
        engine.sync(learner.model, learner.step)
        if not self.serving:
            return {}
        vocabulary = learner.model.config.get_text_config().vocab_size
        gap = probe_gap(engine, learner.logprobs, vocabulary, self.reference.temperature)
        check_gap(name, learner.step, gap, self.max_sync_gap)
        players = next(weights.agents for weights in self.weights if weights.name == name)
        return {f"{agent}/sync_gap": gap for agent in players}

    def close(self) -> None:
        """End the servers."""
        if self.serving:
            self.serving.close()


def build_team(recipe: Recipe, agents: list[str], checkpoint: Path | None = None) -> Team:
    """Load every set of weights of a team, from a checkpoint or from the base model.

    Raises:
        ModelError: a model cannot be loaded.
        CheckpointError: an adapter or the optimiser state of the checkpoint cannot be loaded.
    """
    base_folder = resolve_model(recipe.model.base)
    tokenizer = load_tokenizer(base_folder)
    plan = plan_weights(recipe, agents)
    device = find_device(recipe.model.device)
    models = _load_models(recipe, plan, base_folder, checkpoint, device)
    learners = {}
    for weights in plan:
        if weights.tuning != "frozen":
            learners[weights.name] = _learner(recipe, weights, models.of(weights))
            if checkpoint:
                load_state(checkpoint, weights.name, learners[weights.name])
    serving = None
    engines: Mapping[str, SyncedEngine]
    policies: Mapping[str, LMPolicy]
    if recipe.engine.kind == "vllm":
        by_name = {weights.name: models.of(weights) for weights in plan}
        eos_ids = _eos_ids(models.base, tokenizer)
        serving = serve(recipe, plan, by_name, base_folder, tokenizer, eos_ids)
        engines = serving.engines
        policies = {
            agent: AsyncLMPolicy(serving.engines[weights.name], tokenizer)
            for weights in plan
            for agent in weights.agents
        }
    else:
        engines = own = _engines(recipe, plan, models, tokenizer)
        policies = _policies(plan, own, tokenizer)
    return Team(
        tokenizer=tokenizer,
        weights=plan,
        learners=learners,
        engines=engines,
        policies=policies,
        reference=_reference(recipe, models.base),
        serving=serving,
        max_sync_gap=recipe.engine.max_sync_gap,
    )


def build_worker(
    recipe: Recipe, weights: Weights, checkpoint: Path | None = None, ranks: Ranks = ALONE
) -> LearnerWorker:
    """Load what trains one set of weights, as a rank of a group; see `build_team` for errors."""
    base_folder = resolve_model(recipe.model.base)
    device = torch.device("cpu") if ranks.mesh else find_device(recipe.model.device)
    models = _load_models(recipe, [weights], base_folder, checkpoint, device)
    learner = _learner(recipe, weights, models.of(weights), ranks)
    if checkpoint:
        load_state(checkpoint, weights.name, learner)
    if weights.tuning == "lora":
        return LearnerWorker(learner, learner.likelihood.without_adapter())
    return LearnerWorker(learner, _reference(recipe, models.base, ranks))


def load_policies(recipe: Recipe, agents: list[str], checkpoint: Path) -> dict[str, LMPolicy]:
    """Load a checkpoint's weights for acting in this process; see `build_team` for errors."""
    base_folder = resolve_model(recipe.model.base)
    tokenizer = load_tokenizer(base_folder)
    plan = plan_weights(recipe, agents)
    device = find_device(recipe.model.device)
    models = _load_models(recipe, plan, base_folder, checkpoint, device)
    return _policies(plan, _engines(recipe, plan, models, tokenizer), tokenizer)


def load_base_policies(recipe: Recipe, agents: list[str]) -> dict[str, LMPolicy]:
    """Load the base model once, for all agents to act with; see `build_team` for errors."""
    base_folder = resolve_model(recipe.model.base)
    tokenizer = load_tokenizer(base_folder)
    dtype = getattr(torch, recipe.model.sampler_precision)
    device = find_device(recipe.model.device)
    model = _placed(load_model(base_folder), device).requires_grad_(False)
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
    recipe: Recipe,
    plan: list[Weights],
    base_folder: Path,
    checkpoint: Path | None,
    device: torch.device,
) -> _Models:
    base = _placed(load_model(base_folder), device).requires_grad_(False)
    full = {}
    for weights in plan:
        folder = checkpoint / weights.name if checkpoint else None
        if weights.tuning == "full":
            full[weights.name] = _placed(_load_full(folder, base_folder), device)
        elif weights.tuning == "lora" and folder:
            load_adapter(base, weights.name, folder)
        elif weights.tuning == "lora":
            seed = derive_seed(recipe.train.seed, "lora", weights.name)
            add_adapter(base, weights.name, recipe.model.lora, seed)
    return _Models(base, full)


def _load_full(folder: Path | None, base_folder: Path) -> PreTrainedModel:
    """Load weights from a checkpoint's folder, or from the base where there is none."""
    if folder is None:
        return load_model(base_folder)
    try:
        return load_model(folder)
    except ModelError as error:
        raise CheckpointError(
            f"{error}; or delete {folder.parent} to use an earlier checkpoint"
        ) from error


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
    plan: list[Weights], engines: Mapping[str, Engine], tokenizer: PreTrainedTokenizerBase
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
    pad = tokenizer.pad_token_id
    return HFEngine(
        model,
        eos_ids=_eos_ids(model, tokenizer),
        pad_id=pad if pad is not None else tokenizer.eos_token_id,
        dtype=dtype,
        share=share,
        adapter=adapter,
    )


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    eos = model.generation_config.eos_token_id if model.generation_config else None
    return {tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])} - {None}


def sampling_of(recipe: Recipe, agents: list[str], temperature: float) -> dict[str, Sampling]:
    """Return how each agent's actions are drawn."""
    return {agent: Sampling(temperature, recipe.sampling.limit(agent)) for agent in agents}


def _reference(recipe: Recipe, base: PreTrainedModel, ranks: Ranks = ALONE) -> Likelihood:
    return Likelihood(
        base,
        temperature=recipe.sampling.temperature,
        precision=recipe.model.precision,
        token_budget=recipe.model.token_budget,
        ranks=ranks,
    )


def _learner(
    recipe: Recipe, weights: Weights, model: PreTrainedModel, ranks: Ranks = ALONE
) -> Learner:
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
        ranks=ranks,
    )
