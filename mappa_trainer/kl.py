"""Estimates of the KL divergence between two policies from log-probabilities of sampled tokens.

All take log p and log q of tokens drawn from p, (T,) each, and estimate KL(p ‖ q) per token;
see http://joschu.net/blog/kl-approx.html. `delta = log p - log q`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from torch import Tensor

KLName = Literal["k1", "k2", "k3"]

K3_BOUND = 20.0
"""The largest exponent of `k3`, which would overflow where q finds a token far likelier than p."""


def k1(logp: Tensor, logq: Tensor) -> Tensor:
    """Return delta: unbiased, and negative for single tokens.

    As a loss it is useless: its gradient is the score function, whose mean is 0.
    """
    return logp - logq


def k2(logp: Tensor, logq: Tensor) -> Tensor:
    """Return delta² / 2: a biased value whose gradient is that of the KL divergence."""
    return (logp - logq).square() / 2


def k3(logp: Tensor, logq: Tensor) -> Tensor:
    """Return exp(-delta) - 1 + delta: unbiased and never negative.

    The exponent is bounded by 20; beyond it the estimate grows no further.
    """
    delta = (logp - logq).clamp(min=-K3_BOUND)
    return (-delta).exp() - 1 + delta


ESTIMATORS: Mapping[KLName, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
