from __future__ import annotations

import math

import pytest
import torch

from mappa_trainer.kl import k1, k2, k3

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
EXACT = float((P * (P / Q).log()).sum())


def test_values_by_hand() -> None:
    logp, logq = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])  # delta 0.5 and -1
    assert k1(logp, logq).tolist() == [0.5, -1.0]
    assert k2(logp, logq).tolist() == pytest.approx([0.125, 0.5])
    assert k3(logp, logq).tolist() == pytest.approx([math.exp(-0.5) - 0.5, math.e - 2])


@pytest.mark.parametrize("estimate", [k1, k3])
def test_k1_and_k3_are_unbiased(estimate: object) -> None:
    assert float((P * estimate(P.log(), Q.log())).sum()) == pytest.approx(EXACT)  # type: ignore[operator]


def test_k3_is_never_negative_and_never_overflows() -> None:
    delta = torch.linspace(-200, 5, 999)
    found = k3(delta, torch.zeros(999))
    assert (found >= 0).all()
    assert found.isfinite().all()


def gradient(estimate: object) -> torch.Tensor:
    """The gradient in the logits of the expected estimate over samples drawn beforehand."""
    logits = P.log().requires_grad_()
    logp = logits.log_softmax(-1)
    (P * estimate(logp, Q.log())).sum().backward()  # type: ignore[operator]
    assert logits.grad is not None
    return logits.grad


def test_the_gradient_of_k2_is_that_of_the_divergence_and_that_of_k1_is_nothing() -> None:
    logits = P.log().requires_grad_()
    p = logits.softmax(-1)
    (p * (p / Q).log()).sum().backward()
    assert logits.grad is not None
    assert torch.allclose(gradient(k2), logits.grad)
    assert torch.allclose(gradient(k1), torch.zeros(3, dtype=torch.float64), atol=1e-12)
