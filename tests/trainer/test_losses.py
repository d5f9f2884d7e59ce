from __future__ import annotations

import math

import pytest
import torch

from mappa_trainer import losses
from mappa_trainer.losses import ppo_clip

RATIOS = [1.0, 1.5, 0.5, 1.5, 0.5, 1.1]
ADVANTAGES = [2.0, 2.0, 2.0, -2.0, -2.0, -2.0]
# Only two regimes are cut: a good token already likelier, a bad one already less likely.
LOSS = [-2.0, -2.0 * 1.2, -1.0, 3.0, 2.0 * 0.8, 2.2]
CLIPPED = [False, True, False, False, True, False]


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    old = torch.full((6,), -3.0)
    new = old + torch.tensor(RATIOS).log()
    return new.requires_grad_(), old, torch.tensor(ADVANTAGES)


def test_the_six_regimes_by_hand() -> None:
    loss, clipped = ppo_clip(*inputs())
    assert loss.tolist() == pytest.approx(LOSS)
    assert clipped.tolist() == CLIPPED


def test_clipped_tokens_have_no_gradient_and_the_others_minus_ratio_times_advantage() -> None:
    new, old, advantages = inputs()
    ppo_clip(new, old, advantages).loss.sum().backward()
    expected = [
        0.0 if clipped else -ratio * advantage
        for ratio, advantage, clipped in zip(RATIOS, ADVANTAGES, CLIPPED, strict=True)
    ]
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx(expected)


def test_low_and_high_are_separate_bounds() -> None:
    old = torch.zeros(2)
    new = torch.tensor([1.25, 0.75]).log()
    advantages = torch.tensor([1.0, -1.0])
    wide_above = ppo_clip(new, old, advantages, clip_low=0.1, clip_high=0.3)
    assert wide_above.clipped.tolist() == [False, True]
    assert wide_above.loss.tolist() == pytest.approx([-1.25, 0.9])


def test_at_ratio_one_the_gradient_is_the_policy_gradient() -> None:
    old = torch.tensor([-1.0, -2.0])
    new = old.clone().requires_grad_()
    advantages = torch.tensor([0.5, -1.5])
    loss, clipped = ppo_clip(new, old, advantages)
    loss.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [-0.5, 1.5]
    assert not clipped.any()


def test_a_huge_ratio_on_a_good_token_stays_finite() -> None:
    new = torch.tensor([200.0], requires_grad=True)
    loss, clipped = ppo_clip(new, torch.zeros(1), torch.ones(1))
    loss.sum().backward()
    assert loss.item() == pytest.approx(-1.2)
    assert clipped.item()
    assert new.grad is not None
    assert math.isfinite(new.grad.item())


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"logprobs \(2,\), old_logprobs \(1,\)"):
        ppo_clip(torch.zeros(2), torch.zeros(1), torch.zeros(2))


def test_find_by_name_and_by_path() -> None:
    assert losses.find("ppo_clip") is ppo_clip
    assert losses.find("mappa_trainer.losses:ppo_clip") is ppo_clip
