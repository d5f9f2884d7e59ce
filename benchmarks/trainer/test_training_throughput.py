"""How many tokens a second an optimiser step trains on, over those of plain PyTorch.

Ours is `Learner.update`: packing, the chunked head, loss, metrics, gradient norm, AdamW. Plain is
what one would write first: rows of equal length as one batch without padding or mask, so that
PyTorch's own causal attention runs, logits at all positions, cross entropy, AdamW. Both run in
float32. The tokens of a row are all that the model is fed, prompt and action; both sides count them
in full, also where ours computes a shared prefix once. The pass for the log-probabilities before
the step is on neither side.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from actions import (
    PLAIN_LOSS,
    RATE,
    UNBOUNDED,
    adamw,
    distance,
    gradients,
    ids,
    samples_of,
    share_weights,
)
from pytest_benchmark.fixture import BenchmarkFixture
from side_by_side import Side, compare
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from mappa_trainer.batching import Pair
from mappa_trainer.learner import Learner, LearningRate
from mappa_trainer.models import load_model


@dataclass(frozen=True, slots=True)
class Shape:
    """The rows of a step, e.g. 4 of 128 tokens, the first 64 of which are a prompt."""

    prompt: int
    fed: int = 128
    rows: int = 4
    shared: bool = False
    """Whether all have the same prompt."""


SHAPES = {
    "nothing but actions": Shape(prompt=1),
    "half prompts, none shared": Shape(prompt=64),
    "half prompts, one for all": Shape(prompt=64, shared=True),
}


def rows_of(shape: Shape, vocabulary: int) -> list[Pair]:
    """Draw the rows; the last token of an action is not fed, so there is one more."""
    rng = random.Random(0)
    common = ids(rng, shape.prompt, vocabulary)
    return [
        (
            common if shape.shared else ids(rng, shape.prompt, vocabulary),
            ids(rng, shape.fed - shape.prompt + 1, vocabulary),
        )
        for _ in range(shape.rows)
    ]


def plain_step(model: PreTrainedModel, pairs: Sequence[Pair]) -> Callable[[], float]:
    """Return a step of plain PyTorch that returns the mean cross entropy of the actions' tokens."""
    optimizer = adamw(model)
    whole = torch.tensor([(*prompt, *sampled) for prompt, sampled in pairs])
    fed, targets = whole[:, :-1], whole[:, 1:].clone()
    targets[:, : len(pairs[0][0]) - 1] = -100

    def step() -> float:
        optimizer.zero_grad()
        logits = model(input_ids=fed, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.item()

    return step


@pytest.mark.parametrize("name", SHAPES)
def test_training_throughput(benchmark: BenchmarkFixture, folder: Path, name: str) -> None:
    """Both take the same step, and how often each takes it."""
    shape = SHAPES[name]
    model = load_model(folder)
    learner = Learner(
        model,
        learning_rate=LearningRate(RATE),
        max_grad_norm=UNBOUNDED,
        precision="float32",
        token_budget=shape.rows * shape.fed,
    )
    pairs = rows_of(shape, model.config.vocab_size)
    samples = samples_of(learner, pairs)
    stock = AutoModelForCausalLM.from_pretrained(folder).eval()
    share_weights(stock, model)
    plain = plain_step(stock, pairs)

    loss = plain()
    expected = gradients(model)
    learner.update(samples, PLAIN_LOSS)
    assert distance(gradients(model), expected) < 1e-4
    mean = -float(torch.cat([sample.old_logprobs for sample in samples]).mean())
    assert mean == pytest.approx(loss, rel=1e-5)

    tokens = shape.rows * shape.fed
    compare(
        benchmark,
        f"a step on {tokens} tokens, {name}",
        "tokens",
        {
            "plain PyTorch": Side(plain, tokens),
            "ours": Side(lambda: learner.update(samples, PLAIN_LOSS), tokens),
        },
        rounds=3,
    )
