from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from mappa_trainer.errors import TrainingError
from mappa_trainer.learner import Learner, LearningRate
from mappa_trainer.losses import TokenBatch, TokenLoss, ppo_clip
from mappa_trainer.models import load_model
from mappa_trainer.objective import (
    Aggregation,
    Objective,
    StepLoss,
    StepSize,
    importance_weights,
)
from mappa_trainer.types import Sample

NEW = torch.tensor([-1.0, -2.0, -0.5])
CLIP = partial(ppo_clip, clip_low=0.2, clip_high=0.2)


def minus_logprob(tokens: TokenBatch) -> TokenLoss:
    return TokenLoss(-tokens.logprobs, torch.zeros_like(tokens.logprobs, dtype=torch.bool))


def token_losses(objective: Objective, new: torch.Tensor = NEW) -> torch.Tensor:
    tokens = TokenBatch(new, torch.tensor([-1.0, -1.0, -1.0]), torch.ones(3), torch.arange(3))
    entropies = torch.tensor([0.5, 1.0, 2.0])
    ref, sampler = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, -3.0, -0.5])
    return objective.token_losses(tokens, entropies, ref, sampler).loss


def test_as_it_is_nothing_is_added_to_the_loss() -> None:
    assert token_losses(Objective(minus_logprob)).tolist() == [1.0, 2.0, 0.5]


def test_the_kl_is_added_with_its_gradient() -> None:
    new = NEW.clone().requires_grad_()
    found = token_losses(Objective(minus_logprob, kl_coef=0.5, kl_estimator="k2"), new)
    assert found.tolist() == pytest.approx([1.0, 2.0 + 0.25, 0.5 + 0.0625])  # delta 0, -1, 0.5
    found.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-1.0, -1.5, -0.75])


def test_k3_in_the_loss_by_hand() -> None:
    found = token_losses(Objective(minus_logprob, kl_coef=1.0, kl_estimator="k3"))
    assert found[1].item() == pytest.approx(2.0 + math.e - 2)


def test_entropy_is_rewarded() -> None:
    found = token_losses(Objective(minus_logprob, entropy_coef=0.1))
    assert found.tolist() == pytest.approx([0.95, 1.9, 0.3])


def test_the_importance_weight_is_truncated_and_multiplies_the_loss_alone() -> None:
    weights = importance_weights(torch.full((3,), -1.0), torch.tensor([-1.0, -3.0, -0.5]), 2.0)
    assert weights.tolist() == pytest.approx([1.0, 2.0, math.exp(-0.5)])
    found = token_losses(Objective(minus_logprob, importance_cap=2.0, entropy_coef=0.1))
    assert found.tolist() == pytest.approx([0.95, 4.0 - 0.1, 0.5 * math.exp(-0.5) - 0.2])


def average(tokens: TokenBatch) -> TokenLoss:
    return TokenLoss(-tokens.logprobs.mean(), torch.zeros(3, dtype=torch.bool))


def flag_once(tokens: TokenBatch) -> TokenLoss:
    return TokenLoss(-tokens.logprobs, torch.tensor(False))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (average, r"of shape \(3,\) the loss has shape \(\) and its clipped tokens \(3,\)"),
        (flag_once, r"of shape \(3,\) the loss has shape \(3,\) and its clipped tokens \(\)"),
    ],
)
def test_a_loss_must_have_a_value_for_each_token(loss: StepLoss, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        token_losses(Objective(loss))


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", [1 / 8] * 4),
        ("seq_mean", [1 / 9] * 3 + [1 / 3]),
        ("token_sum", [1 / 10] * 4),
    ],
)
def test_weights_of_tokens_by_hand(aggregation: Aggregation, expected: list[float]) -> None:
    """Actions of 3 and 1 tokens, in a step of 8 tokens and 3 actions."""
    objective = Objective(CLIP, aggregation=aggregation, divisor=10.0)
    found = objective.weights(torch.tensor([3, 1]), StepSize(tokens=8, actions=3))
    assert found.tolist() == pytest.approx(expected)


PAIRS = [((5, 6, 7), (8, 9, 10, 11)), ((5, 6), (12,)), ((9, 8, 7, 6), (13, 14))]


@pytest.fixture
def model(tiny_model) -> PreTrainedModel:  # type: ignore[no-untyped-def]
    return load_model(tiny_model)


def gradient(
    model: PreTrainedModel, objective: Objective, token_budget: int
) -> tuple[float, torch.Tensor]:
    learner = Learner(
        model, learning_rate=LearningRate(1e-30), precision="float32", token_budget=token_budget
    )
    old = learner.logprobs(PAIRS)
    samples = [
        Sample(*pair, values, torch.linspace(-1, 1, len(values)), values - 0.3, values + 0.2)
        for pair, values in zip(PAIRS, old, strict=True)
    ]
    loss = learner.update(samples, objective).loss
    return loss, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_the_learner_tells_the_reference_from_the_engine(model: PreTrainedModel) -> None:
    """The reference's values are 0.3 below the learner's, and the engine's 0.2 above."""
    objective = Objective(minus_logprob, kl_coef=0.5, kl_estimator="k2", importance_cap=9.0)
    plain, _ = gradient(model, Objective(minus_logprob), 4096)
    found, _ = gradient(model, objective, 4096)
    assert found == pytest.approx(plain * math.exp(-0.2) + 0.5 * 0.3**2 / 2, rel=1e-5)


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean", "token_sum"])
def test_the_cut_into_micro_batches_changes_nothing(
    model: PreTrainedModel, aggregation: Aggregation
) -> None:
    objective = Objective(
        CLIP, aggregation, 7.0, kl_coef=0.1, entropy_coef=0.05, importance_cap=1.5
    )
    whole, expected = gradient(model, objective, 4096)
    single, found = gradient(model, objective, 1)
    assert single == pytest.approx(whole, abs=1e-6)
    assert torch.allclose(found, expected, atol=1e-6, rtol=1e-4)
    assert expected.abs().max() > 1e-3


def test_aggregations_weigh_long_actions_differently(model: PreTrainedModel) -> None:
    def loss(aggregation: Aggregation) -> float:
        return gradient(model, Objective(minus_logprob, aggregation, 7.0), 4096)[0]

    found = Learner(model, precision="float32").logprobs(PAIRS)
    sums = [-float(values.sum()) for values in found]
    assert loss("token_mean") == pytest.approx(sum(sums) / 7, rel=1e-5)
    assert loss("token_sum") == pytest.approx(sum(sums) / 7, rel=1e-5)
    means = [total / len(values) for total, values in zip(sums, found, strict=True)]
    assert loss("seq_mean") == pytest.approx(sum(means) / 3, rel=1e-5)


def no_keyword(tokens: TokenBatch) -> TokenLoss:
    raise KeyError("clip")


def bare(tokens: TokenBatch) -> object:
    return -tokens.logprobs


def detached(tokens: TokenBatch) -> TokenLoss:
    return minus_logprob(replace(tokens, logprobs=tokens.logprobs.detach()))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (no_keyword, "the loss failed: KeyError: 'clip'; it takes"),
        (bare, "the loss returned a Tensor; it must return a TokenLoss"),
        (detached, "the loss has no gradient"),
    ],
)
def test_a_loss_of_the_users_own_that_is_wrong_is_told_so(loss: Any, words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        token_losses(Objective(loss), NEW.clone().requires_grad_())
