"""What an update costs as there is more to train on, and as there are more agents.

An update is `update_learner` with a tiny model, so that whatever is not the model's work shows:
selection, packing, advantages, metrics. Its cost per token and per agent is to stay the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from actions import RATE, ids
from pytest_benchmark.fixture import BenchmarkFixture
from side_by_side import Side, compare

from mappa_trainer.cluster.worker import LearnerWorker
from mappa_trainer.learner import Learner, LearningRate
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.models import load_model
from mappa_trainer.recipe import Recipe, parse_recipe
from mappa_trainer.types import Episode, Generation, Transition
from mappa_trainer.update import update_learner

EPISODES, FEW = 32, 2
"""In each iteration; few in a smoke run."""
PROMPT, LENGTH = 32, 64
ROWS_OF_A_MICRO_BATCH = 8


def recipe_of(folder: Path) -> Recipe:
    """Return the defaults, REINFORCE++, as a recipe."""
    table = {
        "name": "linear",
        "env": {"module": "none", "id": "none"},
        "model": {"base": str(folder), "precision": "float32"},
        "train": {"iterations": 1, "episodes": EPISODES},
    }
    return parse_recipe(table, "the benchmark")


def learner_of(folder: Path) -> Learner:
    """Load weights to train."""
    return Learner(
        load_model(folder),
        learning_rate=LearningRate(RATE),
        precision="float32",
        token_budget=ROWS_OF_A_MICRO_BATCH * (PROMPT + LENGTH),
    )


def episodes_of(learner: Learner, agents: list[str], count: int) -> list[Episode]:
    """Let every agent act once in each episode, after a prompt that no other action has."""
    rng = random.Random(0)
    vocabulary = learner.model.config.vocab_size
    pairs = [
        (ids(rng, PROMPT, vocabulary), ids(rng, LENGTH, vocabulary))
        for _ in range(count * len(agents))
    ]
    actions = [
        Generation(prompt, sampled, tuple(known.tolist()), "", "stop")
        for (prompt, sampled), known in zip(pairs, learner.logprobs(pairs), strict=True)
    ]
    return [
        Episode(
            index,
            index,
            {},
            tuple(
                Transition(agent, 0, (), actions.pop(), rng.random(), None, None)
                for agent in agents
            ),
            None,
            {},
            {},
            {},
        )
        for index in range(count)
    ]


def update_of(folder: Path, agents: list[str], count: int) -> Callable[[], None]:
    """Return an update of every agent, each with weights of its own."""
    recipe, learners = recipe_of(folder), [learner_of(folder) for _ in agents]
    reference = Likelihood(load_model(folder), precision="float32")
    episodes = episodes_of(learners[0], agents, count)

    def update() -> None:
        for agent, learner in zip(agents, learners, strict=True):
            metrics = update_learner(
                recipe, LearnerWorker(learner, reference), episodes, [agent], 0
            )
            assert metrics[f"{agent}/trained_tokens"] == count * LENGTH

    return update


def test_tokens(benchmark: BenchmarkFixture, tiny_folder: Path) -> None:
    """Twice as many actions of the same length are twice the tokens."""
    count = FEW if benchmark.disabled else EPISODES
    sides = {
        f"{factor} times {count} actions": Side(
            update_of(tiny_folder, ["agent"], factor * count), factor * count * LENGTH
        )
        for factor in (1, 2, 4)
    }
    compare(benchmark, "an update, by tokens", "tokens", sides)


def test_agents(benchmark: BenchmarkFixture, tiny_folder: Path) -> None:
    """Each of the agents acts once in each episode and has weights of its own."""
    count = FEW if benchmark.disabled else EPISODES
    sides = {
        f"{team} agents": Side(
            update_of(tiny_folder, [f"agent_{i}" for i in range(team)], count), team
        )
        for team in (1, 2, 4, 8)
    }
    compare(benchmark, "updates of a team, by agents", "agents", sides)
