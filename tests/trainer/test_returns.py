from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mappa_trainer.errors import TrainingError
from mappa_trainer.returns import returns_to_go, whiten

# Three actions; the second token of the third is tool output, with a KL that must not appear.
SCORES = [0.8, 0.3, 0.5]
KLS = [torch.tensor(v) for v in ([0.2, -0.1, 0.3], [0.5, 0.1], [0.0, 9.0, 0.4, -0.2])]
MASKS = [torch.ones(3).bool(), torch.ones(2).bool(), torch.tensor([True, False, True, True])]


def whitened_returns(*scores_and_kls: Any, **settings: Any) -> list[torch.Tensor]:
    """REINFORCE++ in one line."""
    return whiten(returns_to_go(*scores_and_kls, **settings), settings.get("masks"))


def close(found: list[torch.Tensor], expected: list[list[float]], atol: float = 2e-6) -> bool:
    return len(found) == len(expected) and all(
        torch.allclose(f.double(), torch.tensor(e).double(), atol=atol, rtol=0)
        for f, e in zip(found, expected, strict=True)
    )


def test_golden_returns() -> None:
    found = returns_to_go(SCORES, KLS, kl_coef=0.1, masks=MASKS)
    assert close(found, [[0.76, 0.78, 0.77], [0.24, 0.29], [0.48, 0.0, 0.48, 0.52]])


def test_golden_advantages() -> None:
    found = whitened_returns(SCORES, KLS, kl_coef=0.1, masks=MASKS)
    assert close(
        found,
        [
            [1.101723, 1.201879, 1.151801],
            [-1.502349, -1.251958],
            [-0.300470, 0.0, -0.300470, -0.100157],
        ],
    )
    assert all(a.dtype == torch.float32 for a in found)


def test_removing_the_tool_token_changes_nothing_for_the_others() -> None:
    compact = [*KLS[:2], KLS[2][MASKS[2]]]
    for gamma in (1.0, 0.9):
        short = whitened_returns(SCORES, compact, kl_coef=0.1, gamma=gamma)
        long = whitened_returns(SCORES, KLS, kl_coef=0.1, gamma=gamma, masks=MASKS)
        assert torch.equal(short[2], long[2][MASKS[2]])


def test_discount_counts_policy_tokens_not_positions() -> None:
    third = returns_to_go(SCORES, KLS, kl_coef=0.1, gamma=0.9, masks=MASKS)[2]
    assert third[0].item() == pytest.approx(0.3852, abs=1e-6)  # by position it would be 0.34668


def test_non_finite_values_at_masked_tokens_do_no_harm() -> None:
    kls = [*KLS[:2], torch.tensor([0.0, math.nan, 0.4, -0.2])]
    found = whitened_returns(SCORES, kls, kl_coef=0.1, masks=MASKS)
    assert close(found[2:], [[-0.300470, 0.0, -0.300470, -0.100157]])


def test_zero_is_a_score() -> None:
    (found,) = returns_to_go([0.0], [torch.tensor([1.0, 2.0])], kl_coef=0.1)
    assert found.tolist() == pytest.approx([-0.3, -0.2])


def test_whitening_weighs_tokens_and_divides_by_n() -> None:
    long, short = whiten([torch.tensor([1.0, 1.0, 1.0]), torch.tensor([5.0])])
    # mean 2, population variance (1 + 1 + 1 + 9) / 4 = 3
    assert long.tolist() == pytest.approx([-1 / math.sqrt(3)] * 3)
    assert short.tolist() == pytest.approx([math.sqrt(3)])


def test_equal_scores_leave_nothing_to_learn() -> None:
    found = whitened_returns([0.1] * 3, [torch.zeros(n) for n in (1, 3, 7)], kl_coef=0.1)
    assert close(found, [[0.0] * n for n in (1, 3, 7)], atol=1e-9)


def test_equal_scores_with_kl_still_pull_to_the_reference() -> None:
    away, back = whitened_returns(
        [0.5, 0.5], [torch.tensor([1.0]), torch.tensor([-1.0])], kl_coef=0.1
    )
    assert away.item() == pytest.approx(-1.0)
    assert back.item() == pytest.approx(1.0)


def test_one_action_with_one_token_is_finite() -> None:
    (found,) = whitened_returns([0.7], [torch.tensor([0.2])], kl_coef=0.1)
    assert found.tolist() == [0.0]


def test_no_actions_give_no_advantages() -> None:
    assert whitened_returns([], [], kl_coef=0.1) == []


@pytest.mark.parametrize(
    ("scores", "kls"),
    [
        ([math.nan], [torch.zeros(2)]),
        ([math.inf], [torch.zeros(2)]),
        ([1.0], [torch.tensor([0.0, math.nan])]),
        ([1.0], [torch.tensor([-math.inf, 0.0])]),
    ],
)
def test_non_finite_input_is_refused(scores: list[float], kls: list[torch.Tensor]) -> None:
    with pytest.raises(TrainingError, match=r"action 0: score .* must be finite"):
        returns_to_go(scores, kls, kl_coef=0.1)


def test_an_action_without_policy_tokens_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"action 1 has no policy token .* 0\.3"):
        returns_to_go([0.8, 0.3], [torch.zeros(1), torch.zeros(0)], kl_coef=0.1)


def test_whiten_refuses_non_finite_values() -> None:
    with pytest.raises(TrainingError, match="1 of 3 values"):
        whiten([torch.tensor([0.0, math.nan]), torch.tensor([1.0])])


def test_one_score_per_action() -> None:
    with pytest.raises(ValueError, match="longer"):
        returns_to_go([0.8], [torch.zeros(1), torch.zeros(1)], kl_coef=0.1)


def test_whitening_leaves_what_is_masked_out_of_everything() -> None:
    values = [torch.tensor([1.0, math.nan]), torch.tensor([3.0, math.inf])]
    masks = [torch.tensor([True, False])] * 2
    assert [found.tolist() for found in whiten(values, masks)] == [[-1.0, 0.0], [1.0, 0.0]]
