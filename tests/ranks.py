"""What one process and two ranks must do alike: steps of the tiny model on uneven actions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import TCPStore
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from mappa_trainer.adapters import add_adapter
from mappa_trainer.batching import Pair
from mappa_trainer.errors import TrainingError
from mappa_trainer.learner import Learner, LearningRate
from mappa_trainer.losses import TokenBatch, TokenLoss, ppo_clip
from mappa_trainer.models import load_model, load_tokenizer
from mappa_trainer.objective import Objective
from mappa_trainer.recipe_tables import LoraTable
from mappa_trainer.sharding import ALONE, Ranks, join_ranks
from mappa_trainer.types import Sample, UpdateMetrics

CLIP = Objective(partial(ppo_clip, clip_low=0.2, clip_high=0.2))
EVERYTHING = Objective(
    CLIP.loss, "seq_mean", kl_coef=0.1, entropy_coef=0.05, importance_cap=2.0, kl_estimator="k3"
)
ADAPTER = "solver"

T = TypeVar("T")


@dataclass(frozen=True)
class Scenario:
    """Optimiser steps, each on pairs of so many prompt ids and sampled ids."""

    steps: Sequence[Sequence[tuple[int, int]]]
    objective: Objective = CLIP
    settings: Mapping[str, Any] = field(default_factory=dict)


SCENARIOS = {
    "even": Scenario([[(5, 7), (30, 1), (12, 12), (3, 20), (8, 2), (40, 9)]] * 3),
    "one action": Scenario([[(5, 7)], [(9, 3)]]),
    "three actions, many passes": Scenario([[(4, 9), (6, 2), (3, 3)]] * 2, settings={"budget": 1}),
    "one very long": Scenario([[(30, 400), (5, 2), (6, 3), (7, 1)]], settings={"budget": 16}),
    "nothing, then something": Scenario([[], [(4, 0), (3, 0)], [(5, 7), (4, 0)]]),
    "everything in the loss": Scenario(
        [[(5, 7), (30, 1), (12, 12)]] * 2, EVERYTHING, {"gradient_checkpointing": True}
    ),
    "bfloat16": Scenario([[(5, 7), (30, 1), (12, 12)]], settings={"precision": "bfloat16"}),
    "adapter": Scenario([[(5, 7), (30, 1), (12, 12)]] * 2, settings={"adapter": ADAPTER}),
}


@dataclass(frozen=True)
class Outcome:
    """What came of a scenario; `weights` are those of rank 0."""

    logprobs: list[list[Tensor]]
    metrics: list[UpdateMetrics]
    weights: dict[str, Tensor]


def make_learner(
    folder: Path,
    ranks: Ranks = ALONE,
    budget: int = 4096,
    adapter: str | None = None,
    **changes: Any,
) -> Learner:
    model = load_model(folder)
    if adapter:
        model.requires_grad_(False)
        add_adapter(model, adapter, LoraTable(rank=2), seed=0)
    settings = {"precision": "float32", "learning_rate": LearningRate(1e-4)} | changes
    return Learner(model, token_budget=budget, adapter=adapter, ranks=ranks, **settings)


def make_pairs(shapes: Sequence[tuple[int, int]], seed: int) -> list[Pair]:
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(3, 259, (sum(shape),), generator=generator).tolist() for shape in shapes]
    return [(i[:prompt], i[prompt:]) for i, (prompt, _) in zip(ids, shapes, strict=True)]


def make_samples(pairs: Sequence[Pair], old: Sequence[Tensor], seed: int) -> list[Sample]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Sample(
            tuple(prompt),
            tuple(ids),
            values,
            torch.randn(len(ids), generator=generator),
            ref_logprobs=values - 0.1,
            sampler_logprobs=values + 0.05,
        )
        for (prompt, ids), values in zip(pairs, old, strict=True)
    ]


def take_steps(learner: Learner, scenario: Scenario) -> Outcome:
    logprobs, metrics = [], []
    for seed, shapes in enumerate(scenario.steps):
        pairs = make_pairs(shapes, seed)
        old = learner.logprobs(pairs)
        logprobs.append(old)
        metrics.append(learner.update(make_samples(pairs, old, seed), scenario.objective))
    return Outcome(logprobs, metrics, learner.weights())


def play(folder: Path, ranks: Ranks = ALONE) -> dict[str, Outcome]:
    return {
        name: take_steps(make_learner(folder, ranks, **scenario.settings), scenario)
        for name, scenario in SCENARIOS.items()
    }


def say_error(folder: Path, ranks: Ranks) -> str:
    """What a learner says to an advantage that is no number, which one rank alone has."""
    learner = make_learner(folder, ranks)
    pairs = make_pairs([(5, 7), (3, 2)], 0)
    good, bad = make_samples(pairs, learner.logprobs(pairs), 0)
    bad.advantages[0] = torch.nan
    try:
        learner.update([good, bad], CLIP)
    except TrainingError as error:
        return str(error)
    return "no error"


def save(learner: Learner, folder: Path, model: Path) -> None:
    learner.save_pretrained(folder, load_tokenizer(model))
    learner.save_state(folder / "state")


def go_on(folder: Path, ranks: Ranks = ALONE) -> Outcome:
    """Load what another number of ranks saved, and take the steps that come next."""
    learner = make_learner(folder, ranks)
    learner.load_state(folder / "state")
    assert learner.step == 3
    return take_steps(learner, SCENARIOS["one action"])


@dataclass(frozen=True)
class Found:
    """What a rank found, so that processes can be compared."""

    outcomes: dict[str, Outcome]
    error: str
    resumed: Outcome
    reference: tuple[list[Tensor], list[Tensor]]


def reference(folder: Path, ranks: Ranks = ALONE) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probabilities after a step of an adapter, with it and without."""
    learner = make_learner(folder, ranks, adapter=ADAPTER)
    pairs = make_pairs([(5, 7), (30, 1), (12, 12)], 0)
    learner.update(make_samples(pairs, learner.logprobs(pairs), 0), CLIP)
    return learner.logprobs(pairs), learner.likelihood.without_adapter().logprobs(pairs)


def rank_main(model: Path, saved_alone: Path, saved_by_two: Path) -> Found:
    """What each of two ranks does."""
    torch.set_num_threads(1)
    with join_ranks(timeout=timedelta(minutes=2)) as ranks:
        learner = make_learner(model, ranks)
        take_steps(learner, SCENARIOS["even"])
        save(learner, saved_by_two, model)
        return Found(
            play(model, ranks),
            say_error(model, ranks),
            go_on(saved_alone, ranks),
            reference(model, ranks),
        )


def fragile(tokens: TokenBatch) -> TokenLoss:
    """A loss that fails on one action, which one rank alone has."""
    if float(tokens.advantages[0]) == 7:
        raise ValueError("no loss for this one")
    return CLIP.loss(tokens)


def fail_apart(model: Path) -> None:
    """Fail on one rank in the middle of a step, while the other one waits for it."""
    torch.set_num_threads(1)
    with join_ranks() as ranks:
        learner = make_learner(model, ranks)
        pairs = make_pairs([(5, 7), (3, 2)], 0)
        good, bad = make_samples(pairs, learner.logprobs(pairs), 0)
        bad.advantages[:] = 7
        learner.update([good, bad], Objective(fragile))


def be_silent(done: Path) -> str:
    """Wait for a rank that takes no part."""
    torch.set_num_threads(1)
    try:
        with join_ranks(timeout=timedelta(seconds=15)) as ranks:
            if ranks.rank == 0:
                ranks.sum(torch.zeros(1))
            while not done.exists():
                time.sleep(0.1)
    except TrainingError as error:
        return str(error)
    finally:
        done.touch()
    return "no error"


def launch(main: Callable[..., T], *args: Any) -> list[T]:
    """Run a function in two processes, as torchrun does, and return what each returned."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="spawn",
    )
    found: dict[int, T] = elastic_launch(config, main)(*args)
    return [found[rank] for rank in range(2)]


def errors_of(main: str, *args: str) -> list[str]:
    """Run a function of this module in two processes without a launcher; return what they said."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    group = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, main, *args],
            env=os.environ | group | {"RANK": str(rank), "TORCHELASTIC_USE_AGENT_STORE": "True"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [process.communicate()[1] for process in processes]


if __name__ == "__main__":
    globals()[sys.argv[1]](*map(Path, sys.argv[2:]))
