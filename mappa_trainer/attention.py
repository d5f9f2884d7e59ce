"""Scaled dot-product attention for CPUs, around two slow paths of PyTorch's own kernel.

Both are slow in bfloat16, measured with PyTorch 2.13 at 130 positions, 9 heads and 3 KV heads:

- One query per row, as in decoding: 4 ms per layer for 32 rows. Queries that share a KV head are
  put in the place of query positions, which is the same sum in another order: 0.7 ms.
- The backward pass: 28 ms per layer for 8 rows, against 12 ms in float32. Only the projections
  stay in bfloat16, where the time is; scores and softmax gain precision.

On other devices this is the `sdpa` of transformers. Importing this module makes it known there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "mappa_sdpa"
"""What the implementation is called in a model's configuration."""


def use_fast_attention(model: PreTrainedModel) -> None:
    """Switch a model from `sdpa` to this module; one with another attention is left alone."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' `sdpa_attention_forward` does.

    Args:
        module: The attention layer.
        query: (B, heads, Q, D)
        key: (B, KV heads, K, D)
        value: (B, KV heads, K, D)
        attention_mask: (B, 1, Q, K), True where a query attends; None for causal.
        scaling: Multiplies the scores; 1/√D when None.
        options: Passed on to `sdpa_attention_forward`.

    Returns:
        (B, Q, heads, D), and None for the attention weights.
    """
    if query.device.type != "cpu":
        return _sdpa(module, query, key, value, attention_mask, scaling=scaling, **options)
    if query.shape[2] == 1:
        return _one_query(query, key, value, attention_mask, scaling), None
    with torch.autocast("cpu", enabled=False):
        output, _ = _sdpa(
            module,
            query.float(),
            key.float(),
            value.float(),
            attention_mask,
            scaling=scaling,
            **options,
        )
    return output.to(query.dtype), None


def _one_query(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
) -> Tensor:
    batch, heads, _, width = query.shape
    sharing = query.view(batch, key.shape[1], -1, width)
    output = scaled_dot_product_attention(sharing, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(batch, 1, heads, width)


def _sdpa(*args: Any, **options: Any) -> tuple[Tensor, None]:
    return sdpa_attention_forward(*args, **options)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
