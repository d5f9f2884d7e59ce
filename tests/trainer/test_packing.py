from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mappa_trainer.attention import use_fast_attention
from mappa_trainer.batching import Pair, micro_batches
from mappa_trainer.errors import ModelError
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.packing import MIN_SHARED, common_prefixes, pack, packed_size

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),  # type: ignore[no-untyped-call]
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SIZES,
            head_dim=8,
            sliding_window=24,
            layer_types=["sliding_attention", "full_attention"],
        )
    ),
}
PREFIX = tuple(range(3, 3 + MIN_SHARED + 4))


def make(name: str) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = MODELS[name]()
    use_fast_attention(model)
    return model.eval()


def pairs() -> list[Pair]:
    """Siblings, one that goes on after another's end as a later turn does, and strangers."""
    return [
        ((*PREFIX, 40), (50, 51, 52)),
        ((*PREFIX, 41, 42), (53,)),
        ((*PREFIX, 40, 50, 51, 52, 60, *range(20, 40)), (54, 55)),
        ((*PREFIX, 40, 50, 51, 52, 60, *range(20, 38)), (56, 57, 58)),
        (PREFIX, (59, 60)),
        ((9, 8, 7), (61, 62, 63)),
        ((9, 8, 7), (61, 62, 63)),
        (tuple(range(30, 90)), (1, 2)),
    ]


def test_a_row_of_two_siblings_by_hand() -> None:
    row = pack([[7] * 16 + [1, 2], [7] * 16 + [3]])
    assert row.input_ids.tolist() == [[7] * 16 + [1, 2, 3]]
    assert row.position_ids.tolist() == [[*range(18), 16]]
    assert row.places[0].tolist() == list(range(18))
    assert row.places[1].tolist() == [*range(16), 18]
    root, leaves = row.packing.groups
    assert root.tokens.tolist() == [list(range(16))]
    assert root.prefix.tolist() == []
    assert leaves.tokens.tolist() == [[16, 17], [18, 18]]
    assert leaves.prefix.tolist() == list(range(16))
    assert row.packing.places.tolist() == [*range(16), 16, 17, 18]


def test_short_common_prefixes_are_not_shared() -> None:
    row = pack([[7] * 15 + [1], [7] * 15 + [2]])
    assert row.input_ids.shape == (1, 32)


def test_a_sequence_that_is_a_prefix_of_another_takes_no_room() -> None:
    row = pack([[7] * 20, [7] * 20 + [1], [7] * 20])
    assert row.input_ids.shape == (1, 21)
    assert row.places[0].tolist() == row.places[2].tolist() == list(range(20))


def test_siblings_of_very_different_length_are_not_filled_up() -> None:
    row = pack([[1] * 40, [2] * 30, [3] * 5])
    assert [tuple(group.tokens.shape) for group in row.packing.groups] == [(2, 40), (1, 5)]


TOKENS = st.integers(0, 1)
SHARED = st.lists(TOKENS, min_size=MIN_SHARED, max_size=MIN_SHARED + 2)
TAILS = st.lists(TOKENS, min_size=1, max_size=3)


@given(st.lists(st.tuples(SHARED, st.lists(TOKENS, max_size=20), TAILS), min_size=1, max_size=8))
def test_every_sequence_is_found_in_the_row(parts: list[tuple[list[int], ...]]) -> None:
    sequences = [[token for part in parts for token in part] for parts in parts]
    row = pack(sequences)
    for sequence, places in zip(sequences, row.places, strict=True):
        assert row.input_ids[0, places].tolist() == sequence
        assert row.position_ids[0, places].tolist() == list(range(len(sequence)))
    ordered = sorted(map(tuple, sequences))
    size = packed_size(list(map(len, ordered)), common_prefixes(ordered))
    assert row.input_ids.numel() == size <= sum(map(len, sequences))
    assert sorted(row.packing.places.unique().tolist()) == sorted(row.packing.places.tolist())


def separate(model: PreTrainedModel, pair: Pair) -> Tensor:
    prompt, sampled = pair
    logits = model(torch.tensor([[*prompt, *sampled]]), use_cache=False).logits[0]
    values = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return values.gather(1, torch.tensor(sampled)[:, None]).squeeze(1)


def gradient(model: PreTrainedModel, values: Sequence[Tensor]) -> Tensor:
    model.zero_grad()
    weights = torch.linspace(-1, 1, sum(map(len, values)))
    (torch.cat(list(values)) * weights).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("token_budget", [1, 60, 4096])
def test_packed_is_separate_with_its_gradient(name: str, token_budget: int) -> None:
    model = make(name)
    likelihood = Likelihood(model, precision="float32", token_budget=token_budget)
    batches = micro_batches(pairs(), token_budget)
    found: dict[int, Tensor] = {}
    for batch in batches:
        found |= dict(batch.split(likelihood.of(batch).logprobs))
    expected = [separate(model, pair) for pair in pairs()]
    values = [found[row] for row in range(len(expected))]
    assert all(torch.allclose(f, e, atol=1e-5) for f, e in zip(values, expected, strict=True))
    assert torch.allclose(gradient(model, values), gradient(model, expected), atol=1e-5)


def test_what_is_shared_is_computed_once() -> None:
    (batch,) = micro_batches(pairs(), 4096)
    raw = sum(len(prompt) + len(sampled) - 1 for prompt, sampled in pairs())
    # 20 that five share, 23 more that two of them share, and what each has for itself.
    assert batch.packed.input_ids.numel() == 20 + 23 + (3 + 2 + 3 + 2 + 1) + 5 + 5 + 61
    assert raw == 23 + 22 + 46 + 45 + 21 + 5 + 5 + 61


def test_gradient_checkpointing_changes_nothing_but_what_is_kept() -> None:
    model = make("llama")
    plain, thrifty = (
        Likelihood(model, precision="float32", gradient_checkpointing=flag)
        for flag in (False, True)
    )
    (batch,) = micro_batches(pairs(), 4096)
    layers: list[int] = []
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: layers.append(1))
    expected = gradient(model, [plain.of(batch).logprobs])
    assert len(layers) == 1
    assert torch.equal(gradient(model, [thrifty.of(batch).logprobs]), expected)
    assert len(layers) == 3  # once forwards, and again in the backward pass


def test_a_model_that_is_more_than_attention_is_refused() -> None:
    config = MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=4)
    with pytest.raises(ModelError, match="MambaForCausalLM cannot compute packed"):
        Likelihood(MambaForCausalLM(config), precision="float32")


def test_an_attention_that_cannot_pack_is_refused() -> None:
    model = make("llama")
    model.set_attn_implementation("eager")
    with pytest.raises(ModelError, match="attn_implementation='sdpa'"):
        Likelihood(model, precision="float32")
