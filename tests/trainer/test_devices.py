"""Weights on another device than the processor; the device `meta` stands in for a GPU."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mappa_trainer import attention
from mappa_trainer.batching import micro_batches
from mappa_trainer.errors import ModelError, RecipeError
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.losses import TokenBatch, ppo_clip
from mappa_trainer.models import find_device, load_model
from mappa_trainer.objective import Objective
from mappa_trainer.packing import pack
from mappa_trainer.recipe import load_recipe

RECIPE = Path(__file__).parents[2] / "scenarios" / "recipes" / "mathchat-cpu.toml"
ACROSS = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
SHARED = tuple(range(3, 40))
PAIRS = [((*SHARED, 9), (5, 6, 7)), ((*SHARED, 8), (9, 6)), ((4, 5), (3,))]


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices, as a GPU's kernels do."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = {tensor.device.type for tensor in found}
        assert func in ACROSS or len(devices) <= 1, f"{func} got tensors on {devices}"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def elsewhere(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Likelihood:
    likelihood = Likelihood(load_model(tiny_model), precision="float32")
    likelihood.model.to("meta")  # type: ignore[arg-type]
    monkeypatch.setattr(attention.torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    return likelihood


def test_a_training_pass_stays_on_the_device_of_the_weights(elsewhere: Likelihood) -> None:
    objective = Objective(partial(ppo_clip, clip_low=0.2, clip_high=0.2), entropy_coef=0.1)
    (batch,) = micro_batches(PAIRS, 1000)
    with OneDevice():
        scores = elsewhere.of(batch, entropy_gradient=True)
        assert scores.logprobs.device.type == scores.entropies.device.type == "meta"
        value = torch.zeros(sum(batch.lengths), device="meta")
        sequence = torch.zeros(sum(batch.lengths), dtype=torch.int64, device="meta")
        tokens = TokenBatch(scores.logprobs, value, value, sequence)
        losses = objective.token_losses(tokens, scores.entropies, value, value)
        torch.autograd.backward(losses.loss.sum())
    gradients = [p.grad for p in elsewhere.model.parameters()]
    assert all(g is not None and g.device.type == "meta" for g in gradients)


def test_masked_attention_gives_a_gpu_as_many_heads_of_keys_as_of_queries(
    elsewhere: Likelihood, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a mask, none but the slowest of its kernels takes fewer."""
    seen = []
    real = attention.scaled_dot_product_attention

    def spy(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        seen.append((options["attn_mask"] is not None, query.shape[1], key.shape[1]))
        return real(query, key, value, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", spy)
    (batch,) = micro_batches(PAIRS, 1000)
    elsewhere.of(batch)
    assert {(q, k) for with_mask, q, k in seen if with_mask} == {(4, 4)}
    assert {(q, k) for with_mask, q, k in seen if not with_mask} == {(4, 2)}


@pytest.mark.parametrize(("device", "kind"), [("meta", torch.bfloat16), ("cpu", torch.float32)])
def test_packed_attention_computes_in_one_dtype(
    device: str, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotary embeddings widen queries and keys under autocast, and not values."""
    real, seen = attention.scaled_dot_product_attention, []

    def spy(*tensors: Tensor, **options: Any) -> Tensor:
        seen.append({tensor.dtype for tensor in tensors})
        return real(*tensors, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", spy)
    monkeypatch.setattr(attention.torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    packing = pack([SHARED, (*SHARED, 4)]).packing.to(torch.device(device))
    length = len(packing.places)
    wide = torch.zeros(1, 4, length, 8, device=device)
    narrow = torch.zeros(1, 4, length, 8, device=device, dtype=torch.bfloat16)
    found, _ = attention.attention(torch.nn.Identity(), wide, wide, narrow, None, packing=packing)
    assert found.dtype == torch.float32
    assert seen
    assert all(kinds == {kind} for kinds in seen)


def test_the_processor_is_taken_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == find_device("cpu") == torch.device("cpu")


def test_a_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("auto") == torch.device("cuda")
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ModelError, match=r"'cuda:2' is not there: PyTorch sees 2 GPUs"):
        find_device("cuda:2")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=r"model.device 'cuda' is not there: PyTorch sees 0 GPUs"):
        find_device("cuda")


def test_a_device_has_a_name_that_is_known() -> None:
    assert load_recipe(RECIPE, ["model.device=cuda:1"]).model.device == "cuda:1"
    with pytest.raises(RecipeError, match=r"model.device"):
        load_recipe(RECIPE, ["model.device=gpu"])
