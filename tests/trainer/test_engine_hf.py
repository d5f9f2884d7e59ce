from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from mappa_trainer.engines import Completion
from mappa_trainer.engines.hf import HFEngine, LMPolicy, sample
from mappa_trainer.errors import TrainingError
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.models import load_model, load_tokenizer
from mappa_trainer.types import Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

EOS = 2
MANY_EOS = range(3, 33)
"""Enough ends of turn that rows of a random model stop at many different steps."""
PROMPTS = [[1, *range(40, 40 + length)] for length in (3, 17, 9, 1, 30, 9, 22, 5)]
SEEDS = [11, 12, 13, 14, 15, 16, 17, 18]


def make_engine(model: PreTrainedModel, **changes: object) -> HFEngine:
    settings: dict[str, object] = {"eos_ids": MANY_EOS, "pad_id": 0}
    return HFEngine(model, **(settings | changes))  # type: ignore[arg-type]


def ids_of(completions: list[Completion]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in completions]


def test_rows_do_not_depend_on_each_other(model: PreTrainedModel) -> None:
    engine, sampling = make_engine(model), Sampling(0.8, 20)
    together = engine.generate(PROMPTS, SEEDS, sampling)
    alone = [engine.generate([p], [s], sampling)[0] for p, s in zip(PROMPTS, SEEDS, strict=True)]
    assert ids_of(together) == ids_of(alone)
    assert len({len(ids) for ids in ids_of(together)}) >= 4  # rows did stop apart
    for a, b in zip(together, alone, strict=True):
        assert a.finish_reason == b.finish_reason
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
    small = make_engine(model, max_batch=3).generate(PROMPTS, SEEDS, sampling)
    assert ids_of(small) == ids_of(together)


def test_a_completion_ends_with_the_first_end_of_turn(model: PreTrainedModel) -> None:
    for completion in make_engine(model).generate(PROMPTS, SEEDS, Sampling(1.0, 20)):
        *before, last = completion.token_ids
        assert not set(before) & set(MANY_EOS)
        assert completion.finish_reason == ("stop" if last in MANY_EOS else "length")
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 20
        assert len(completion.logprobs) == len(completion.token_ids)


def test_seeds_decide_all_of_their_bits(model: PreTrainedModel) -> None:
    engine, sampling = make_engine(model, eos_ids=[EOS]), Sampling(1.0, 12)
    seeds = [5, 5, 6, 5 + 2**32, 5 + 2**80]
    first, again, other, high, higher = ids_of(engine.generate([[1, 50]] * 5, seeds, sampling))
    assert first == again
    assert len({first, other, high, higher}) == 4


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampler_and_learner_agree_at_the_same_temperature(
    model: PreTrainedModel, temperature: float
) -> None:
    found = make_engine(model).generate(PROMPTS, SEEDS, Sampling(temperature, 16))
    pairs = [(p, c.token_ids) for p, c in zip(PROMPTS, found, strict=True)]
    sampler = torch.cat([torch.tensor(c.logprobs) for c in found])

    def gap(at: float) -> float:
        likelihood = Likelihood(model, temperature=at, precision="float32")
        return float((torch.cat(likelihood.logprobs(pairs)) - sampler).abs().max())

    assert gap(temperature) < 1e-5
    assert gap(temperature * 1.5) > 0.05


def test_sampling_settings_in_the_models_own_file_are_not_used(model: PreTrainedModel) -> None:
    before = make_engine(model).generate(PROMPTS, SEEDS, Sampling(1.0, 8))
    model.generation_config.update(do_sample=True, temperature=0.2, top_k=1, top_p=0.1)
    assert make_engine(model).generate(PROMPTS, SEEDS, Sampling(1.0, 8)) == before


def test_temperature_zero_is_greedy_and_reports_temperature_one(model: PreTrainedModel) -> None:
    engine = make_engine(model, eos_ids=[EOS])
    first, second = (engine.generate(PROMPTS, s, Sampling(0.0, 8)) for s in (SEEDS, SEEDS[::-1]))
    assert first == second
    for prompt, completion in zip(PROMPTS, first, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=8,
            eos_token_id=EOS,
            pad_token_id=0,
        )
        assert completion.token_ids == tuple(expected[0, len(prompt) :].tolist())
    pairs = [(p, c.token_ids) for p, c in zip(PROMPTS, first, strict=True)]
    for values, completion in zip(
        Likelihood(model, precision="float32").logprobs(pairs), first, strict=True
    ):
        assert completion.logprobs == pytest.approx(values.tolist(), abs=1e-5)


def test_nothing_that_old_weights_computed_outlives_them(model: PreTrainedModel) -> None:
    engine, sampling = make_engine(model), Sampling(1.0, 8)
    before = engine.generate(PROMPTS, SEEDS, sampling)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    engine.sync(model, 0)
    after = engine.generate(PROMPTS, SEEDS, sampling)
    assert after != before
    assert after == make_engine(model).generate(PROMPTS, SEEDS, sampling)


def test_sampling_inverts_the_cumulative_distribution() -> None:
    logits = torch.tensor([0.2, 0.3, 0.5]).log().repeat(5, 1)
    draws = torch.tensor([0.0, 0.19, 0.21, 0.49, 0.51], dtype=torch.float64)
    ids, logprobs = sample(logits, draws, 1.0)
    assert ids.tolist() == [0, 0, 1, 1, 2]
    assert logprobs.tolist() == pytest.approx([math.log(p) for p in (0.2, 0.2, 0.3, 0.3, 0.5)])
    # At temperature 0.5 the probabilities are squared: 4/38, 9/38, 25/38.
    ids, logprobs = sample(logits[:2], torch.tensor([0.1, 0.4], dtype=torch.float64), 0.5)
    assert ids.tolist() == [0, 2]
    assert logprobs.exp().tolist() == pytest.approx([4 / 38, 25 / 38])


def test_impossible_tokens_are_never_sampled() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]).repeat(4, 1)
    draws = torch.tensor([0.0, 0.5 - 1e-9, 0.5 + 1e-9, 1 - 2**-53], dtype=torch.float64)
    assert sample(logits, draws, 1.0)[0].tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    logits = torch.tensor([[0.0, 1.0], [0.0, bad]])
    for temperature in (0.0, 1.0):
        with pytest.raises(TrainingError, match="logits are not finite"):
            sample(logits, torch.zeros(2, dtype=torch.float64), temperature)


def test_a_prompt_without_room_is_reported_not_cut(tiny_model: Path) -> None:
    model = load_model(tiny_model)
    model.config.max_position_embeddings = 20
    prompts = [[5] * 12, [5] * 13, [5] * 3]
    found = make_engine(model, eos_ids=[]).generate(prompts, [1, 2, 3], Sampling(1.0, 8))
    assert [c.finish_reason for c in found] == ["length", "prompt_too_long", "length"]
    assert found[1] == Completion((), (), "prompt_too_long")
    assert [len(c.token_ids) for c in found] == [8, 0, 8]
    assert make_engine(model).generate([], [], Sampling(1.0, 8)) == []


def test_one_seed_per_prompt(model: PreTrainedModel) -> None:
    with pytest.raises(ValueError, match="2 prompts but 1 seeds"):
        make_engine(model).generate([[1], [2]], [3], Sampling(1.0, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sync_takes_over_the_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    engine = make_engine(model, dtype=dtype)
    assert engine.model is not model
    assert {p.dtype for p in engine.model.parameters()} == {dtype}
    assert {b.dtype for b in engine.model.buffers()} == {b.dtype for b in model.buffers()}
    before = engine.generate(PROMPTS, SEEDS, Sampling(1.0, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert engine.generate(PROMPTS, SEEDS, Sampling(1.0, 8)) == before
    engine.sync(model, 3)
    after = engine.generate(PROMPTS, SEEDS, Sampling(1.0, 8))
    assert ids_of(after) != ids_of(before)
    fresh = make_engine(model, dtype=dtype).generate(PROMPTS, SEEDS, Sampling(1.0, 8))
    assert after == [replace(completion, weight_version=3) for completion in fresh]
    assert model.dtype == torch.float32


def test_a_shared_model_needs_no_copy(model: PreTrainedModel) -> None:
    assert make_engine(model, share=True).model is model
    assert make_engine(model, share=True, dtype=torch.bfloat16).model is not model


def test_the_policy_keeps_the_ids_that_were_sent_and_sampled(
    tiny_model: Path, model: PreTrainedModel
) -> None:
    tokenizer = load_tokenizer(tiny_model)
    policy = LMPolicy(make_engine(model, eos_ids=[EOS, *range(70, 90)]), tokenizer)
    conversations = [[{"role": "user", "content": text}] for text in ("hello", "Zürich", "")]
    found = policy.act(conversations, [1, 2, 3], Sampling(1.0, 40))
    for conversation, generation in zip(conversations, found, strict=True):
        text = f"<|im_start|>user\n{conversation[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
        assert tokenizer.decode(list(generation.prompt_ids)) == text
        spoken = [token for token in generation.token_ids if token > EOS]
        assert generation.text == tokenizer.decode(spoken)
        assert "<|" not in generation.text
        assert len(generation.sampler_logprobs) == len(generation.token_ids)
    (alone,) = policy.act(conversations[1:2], [2], Sampling(1.0, 40))
    assert (alone.prompt_ids, alone.token_ids) == (found[1].prompt_ids, found[1].token_ids)


def test_special_tokens_stay_in_the_ids_and_out_of_the_text(
    tiny_model: Path, model: PreTrainedModel
) -> None:
    class Fixed:
        def generate(self, prompts: object, seeds: object, sampling: object) -> list[Completion]:
            return [Completion((*hello, EOS), (-1.0,) * (len(hello) + 1), "stop")]

    tokenizer = load_tokenizer(tiny_model)
    hello = tokenizer.encode("hello , world .", add_special_tokens=False)
    policy = LMPolicy(Fixed(), tokenizer)
    (found,) = policy.act([[{"role": "user", "content": "hi"}]], [1], Sampling(1.0, 40))
    assert found.text == "hello , world ."
    assert found.token_ids == (*hello, EOS)
