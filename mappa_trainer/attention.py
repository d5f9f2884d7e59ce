"""Scaled dot-product attention for CPUs, around two slow paths of PyTorch's own kernel.

Both are slow in bfloat16, measured with PyTorch 2.13 at 130 positions, 9 heads and 3 KV heads:

- One query per row, as in decoding: 4 ms per layer for 32 rows. Queries that share a KV head are
  put in the place of query positions, which is the same sum in another order: 0.7 ms.
- The backward pass: 28 ms per layer for 8 rows, against 12 ms in float32. Only the projections
  stay in bfloat16, where the time is; scores and softmax gain precision.

On other devices this is the `sdpa` of transformers, which takes the fastest kernel there is. On all
of them it also attends within packed rows. Importing this module makes it known to transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mappa_trainer.packing import Packing, Siblings

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
    sliding_window: int | None = None,
    packing: Packing | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' `sdpa_attention_forward` does, or through a packed row.

    Args:
        module: The attention layer.
        query: (B, heads, Q, D)
        key: (B, KV heads, K, D)
        value: (B, KV heads, K, D)
        attention_mask: (B, 1, Q, K), True where a query attends; None for causal. Not read with
            a `packing`.
        scaling: Multiplies the scores; 1/√D when None.
        sliding_window: How many tokens back a token sees, itself included; the mask holds it
            already, and so it is read with a `packing` alone.
        packing: How to attend within a packed row; B is 1 then.
        options: Passed on to `sdpa_attention_forward`.

    Returns:
        (B, Q, heads, D), and None for the attention weights.
    """
    slow = query.device.type == "cpu"
    if packing is None and not slow:
        return _sdpa(module, query, key, value, attention_mask, scaling=scaling, **options)
    if packing is None and query.shape[2] == 1:
        return _one_query(query, key, value, attention_mask, scaling), None
    dtype = query.dtype
    kind = (
        torch.float32 if slow else value.dtype
    )  # rotary embeddings may have made the others wider
    query, key, value = query.to(kind), key.to(kind), value.to(kind)
    with torch.autocast(query.device.type, enabled=False):
        if packing is None:
            output, _ = _sdpa(module, query, key, value, attention_mask, scaling=scaling, **options)
        else:
            output = _packed(query, key, value, packing, scaling, sliding_window)
    return output.to(dtype), None


def _packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packing: Packing,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Attend from each group of siblings to what is above it and to itself."""
    # (1, heads, L, D) to (L, heads, D), in which tokens are picked by rows
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    outputs = []
    for group in packing.groups:
        count, width = group.tokens.shape
        flat = group.tokens.flatten()
        q = query[flat].view(count, width, *query.shape[1:]).transpose(1, 2)
        k, v = (_with_prefix(tensor, group).transpose(1, 2) for tensor in (key, value))
        prefix = len(group.prefix)
        mask = _causal(width, prefix, window, query.device)
        if mask is not None and query.device.type != "cpu":
            # a GPU's fast kernels take a mask, or fewer heads of keys than of queries, not both
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        attended = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[packing.places][None]


def _with_prefix(tensor: Tensor, group: Siblings) -> Tensor:
    """Pick the tokens that siblings may attend to: (L, heads, D) to (G, P + M, heads, D)."""
    count, width = group.tokens.shape
    own = tensor[group.tokens.flatten()].view(count, width, *tensor.shape[1:])
    if not len(group.prefix):
        return own
    return torch.cat([tensor[group.prefix].expand(count, -1, -1, -1), own], dim=1)


def _causal(width: int, prefix: int, window: int | None, device: torch.device) -> Tensor | None:
    """Return the mask (M, P + M) of tokens after a prefix; None where it is plainly causal."""
    reach = prefix + width if window is None else window
    if not prefix and reach >= width:
        return None
    own = torch.arange(prefix, prefix + width, device=device)[:, None]
    other = torch.arange(prefix + width, device=device)
    return (other <= own) & (other > own - reach)


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
