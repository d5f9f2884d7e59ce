from __future__ import annotations

import math

import pytest
import torch

from mappa_trainer import losses
from mappa_trainer.losses import TokenBatch, TokenLoss, gspo, ppo_clip

RATIOS = [1.0, 1.5, 0.5, 1.5, 0.5, 1.1]
ADVANTAGES = [2.0, 2.0, 2.0, -2.0, -2.0, -2.0]
# Only two regimes are cut: a good token already likelier, a bad one already less likely.
LOSS = [-2.0, -2.0 * 1.2, -1.0, 3.0, 2.0 * 0.8, 2.2]
CLIPPED = [False, True, False, False, True, False]


def clip(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor) -> TokenLoss:
    """PPO's clip at 0.2 on both sides; each token is an action of its own."""
    tokens = TokenBatch(new, old, advantages, torch.arange(len(new)))
    return ppo_clip(tokens, clip_low=0.2, clip_high=0.2)


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    old = torch.full((6,), -3.0)
    new = old + torch.tensor(RATIOS).log()
    return new.requires_grad_(), old, torch.tensor(ADVANTAGES)


def test_the_six_regimes_by_hand() -> None:
    loss, clipped = clip(*inputs())
    assert loss.tolist() == pytest.approx(LOSS)
    assert clipped.tolist() == CLIPPED


def test_clipped_tokens_have_no_gradient_and_the_others_minus_ratio_times_advantage() -> None:
    new, old, advantages = inputs()
    clip(new, old, advantages).loss.sum().backward()
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
    tokens = TokenBatch(new, old, advantages, torch.arange(2))
    wide_above = ppo_clip(tokens, clip_low=0.1, clip_high=0.3)
    assert wide_above.clipped.tolist() == [False, True]
    assert wide_above.loss.tolist() == pytest.approx([-1.25, 0.9])


def test_at_ratio_one_the_gradient_is_the_policy_gradient() -> None:
    old = torch.tensor([-1.0, -2.0])
    new = old.clone().requires_grad_()
    advantages = torch.tensor([0.5, -1.5])
    loss, clipped = clip(new, old, advantages)
    loss.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [-0.5, 1.5]
    assert not clipped.any()


def test_a_huge_ratio_on_a_good_token_stays_finite() -> None:
    new = torch.tensor([200.0], requires_grad=True)
    loss, clipped = clip(new, torch.zeros(1), torch.ones(1))
    loss.sum().backward()
    assert loss.item() == pytest.approx(-1.2)
    assert clipped.item()
    assert new.grad is not None
    assert math.isfinite(new.grad.item())


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"'logprobs': \(2,\), 'old_logprobs': \(1,\)"):
        TokenBatch(torch.zeros(2), torch.zeros(1), torch.zeros(2), torch.arange(2))


# Two actions: ratios 1.2 and 0.9 on two tokens, whose geometric mean is 1.0392; and 2 on one token.
SEQUENCE = torch.tensor([0, 0, 1])
SEQUENCE_RATIO = math.sqrt(1.2 * 0.9)


def sequence_tokens(advantages: list[float]) -> tuple[torch.Tensor, TokenBatch]:
    new = torch.tensor([1.2, 0.9, 2.0]).log().requires_grad_()
    return new, TokenBatch(new, torch.zeros(3), torch.tensor(advantages), SEQUENCE)


def test_gspo_has_one_ratio_for_all_tokens_of_an_action() -> None:
    new, tokens = sequence_tokens([2.0, 2.0, -1.0])
    loss, clipped = gspo(tokens, clip_low=0.1, clip_high=0.1)
    assert loss.tolist() == pytest.approx([-2 * SEQUENCE_RATIO] * 2 + [2.0])
    assert clipped.tolist() == [False, False, False]
    loss.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-2 * SEQUENCE_RATIO] * 2 + [2.0])


def test_gspo_moves_every_token_by_its_own_advantage() -> None:
    """Tokens of an action differ where the KL is in the reward."""
    new, tokens = sequence_tokens([2.0, 1.0, -1.0])
    gspo(tokens, clip_low=0.1, clip_high=0.1).loss.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-2 * SEQUENCE_RATIO, -SEQUENCE_RATIO, 2.0])


def test_gspo_clips_whole_actions() -> None:
    new, tokens = sequence_tokens([2.0, 2.0, 1.0])
    loss, clipped = gspo(tokens, clip_low=0.02, clip_high=0.02)
    assert loss.tolist() == pytest.approx([-2.04, -2.04, -1.02])
    assert clipped.tolist() == [True, True, True]
    loss.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [0.0, 0.0, 0.0]


def test_gspo_of_actions_of_one_token_is_ppo() -> None:
    new, old, advantages = inputs()
    tokens = TokenBatch(new, old, advantages, torch.arange(6))
    found = gspo(tokens, clip_low=0.2, clip_high=0.2)
    assert found.loss.tolist() == pytest.approx(LOSS)
    assert found.clipped.tolist() == CLIPPED


def test_find_by_name_and_by_path() -> None:
    assert losses.find("ppo_clip") is ppo_clip
    assert losses.find("mappa_trainer.losses:ppo_clip") is ppo_clip
