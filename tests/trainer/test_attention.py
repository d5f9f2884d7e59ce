from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mappa_trainer.attention import NAME, attention, use_fast_attention
from mappa_trainer.models import load_model
from mappa_trainer.testing import make_tiny_model


class Layer(nn.Module):
    num_key_value_groups = 3
    is_causal = True


def inputs(queries: int, keys: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(queries)
    shapes = [(4, 6, queries, 8), (4, 2, keys, 8), (4, 2, keys, 8)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def padding(queries: int, keys: int) -> torch.Tensor:
    """Hide the first keys of each row but the first, as left padding does."""
    real = torch.arange(keys) >= torch.arange(4)[:, None]
    return real[:, None, None, :].expand(4, 1, queries, keys).contiguous()


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("queries", "masked"), [(1, True), (1, False), (9, True), (9, False)])
def test_it_is_the_attention_of_transformers(
    queries: int, masked: bool, dtype: torch.dtype, atol: float
) -> None:
    query, key, value = inputs(queries, 9, dtype)
    mask = padding(queries, 9) if masked else None
    found, _ = attention(Layer(), query, key, value, mask, scaling=0.3)
    exact = [tensor.float() for tensor in (query, key, value)]
    expected, _ = sdpa_attention_forward(Layer(), *exact, mask, scaling=0.3)
    assert found.dtype == dtype
    assert found.shape == expected.shape == (4, queries, 6, 8)
    assert torch.allclose(found.float(), expected, atol=atol, rtol=0)


def test_autocast_does_not_lower_the_precision_of_scores() -> None:
    query, key, value = inputs(9, 9, torch.float32)
    expected, _ = sdpa_attention_forward(Layer(), query, key, value, None, scaling=0.3)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = attention(Layer(), query, key, value, None, scaling=0.3)
    assert torch.equal(found, expected)


def test_loaded_models_use_it_and_saved_ones_do_not_name_it(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path / "tiny"))
    assert model.config._attn_implementation == NAME
    model.save_pretrained(tmp_path / "saved")
    assert NAME not in json.dumps(json.loads((tmp_path / "saved" / "config.json").read_text()))


def test_another_attention_is_left_alone(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path / "tiny"))
    model.set_attn_implementation("eager")
    use_fast_attention(model)
    assert model.config._attn_implementation == "eager"
