from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedModel

from mappa_trainer import likelihood as likelihood_module
from mappa_trainer.batching import Pair, micro_batches
from mappa_trainer.engines.hf import HFEngine
from mappa_trainer.errors import ModelError, TrainingError
from mappa_trainer.learner import Learner, LearningRate
from mappa_trainer.likelihood import Likelihood, autocast_dtype
from mappa_trainer.losses import TokenBatch, TokenLoss, ppo_clip
from mappa_trainer.models import load_model, load_tokenizer
from mappa_trainer.objective import Objective
from mappa_trainer.testing import byte_tokenizer
from mappa_trainer.types import Sample, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

EOS = 2
RISING = LearningRate(1e-3, warmup_steps=5)
CLIP = Objective(partial(ppo_clip, clip_low=0.2, clip_high=0.2))
SHAPES = [(5, 7), (30, 1), (12, 12), (3, 20), (8, 2), (40, 9)]


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 259, (count,), generator=generator).tolist())

    return [(ids(prompt), ids(sampled)) for prompt, sampled in SHAPES]


def make_learner(model: PreTrainedModel, **changes: object) -> Learner:
    """A learner in float32 whose rate is 1e-3, or `rate`."""
    rate = LearningRate(peak=float(changes.pop("rate", 1e-3)))  # type: ignore[arg-type]
    settings: dict[str, object] = {"learning_rate": rate, "precision": "float32"}
    return Learner(model, **(settings | changes))  # type: ignore[arg-type]


def make_samples(pairs: Sequence[Pair], old: Sequence[Tensor], seed: int = 1) -> list[Sample]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Sample(tuple(prompt), tuple(ids), values, torch.randn(len(ids), generator=generator))
        for (prompt, ids), values in zip(pairs, old, strict=True)
    ]


def plain_logprobs(model: PreTrainedModel, pair: Pair, temperature: float) -> Tensor:
    """One unpadded sequence, full logits: what the learner's shortcuts must equal."""
    prompt, sampled = pair
    logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
    values = (logits / temperature).log_softmax(-1)
    return values.gather(1, torch.tensor(sampled)[:, None]).squeeze(1)


def gradients(model: PreTrainedModel) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def weights(model: PreTrainedModel) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def all_equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("token_budget", [1, 60, 4096])
def test_logprobs_equal_the_plain_forward_pass(
    model: PreTrainedModel, pairs: list[Pair], temperature: float, token_budget: int
) -> None:
    likelihood = Likelihood(
        model, temperature=temperature, precision="float32", token_budget=token_budget
    )
    with torch.no_grad():
        for found, pair in zip(likelihood.logprobs(pairs), pairs, strict=True):
            assert found.dtype == torch.float32
            assert not found.requires_grad
            assert torch.allclose(
                found, plain_logprobs(model, pair, temperature), atol=2e-6, rtol=0
            )


def test_nothing_sampled_gives_an_empty_vector(model: PreTrainedModel, pairs: list[Pair]) -> None:
    found = Likelihood(model, precision="float32").logprobs([([4, 5], []), pairs[0]])
    assert [tuple(values.shape) for values in found] == [(0,), (7,)]


def test_the_head_sees_sampled_positions_alone_in_chunks(
    model: PreTrainedModel, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood_module, "HEAD_CHUNK", 8)
    likelihood = Likelihood(model, precision="float32")
    expected = [plain_logprobs(model, pair, 1.0).detach() for pair in pairs]
    seen: list[int] = []
    model.lm_head.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    found = likelihood.logprobs(pairs)
    assert max(seen) == 8
    assert sum(seen) == sum(sampled for _, sampled in SHAPES)
    assert all(torch.allclose(f, e, atol=2e-6) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("trained", [False, True])
def test_entropies_equal_those_of_the_plain_forward_pass(
    model: PreTrainedModel, pairs: list[Pair], trained: bool
) -> None:
    likelihood = Likelihood(model, temperature=0.8, precision="float32", token_budget=64)
    found: dict[int, Tensor] = {}
    for batch in micro_batches(pairs, 64):
        found |= dict(batch.split(likelihood.of(batch, entropy_gradient=trained).entropies))
    for row, (prompt, sampled) in enumerate(pairs):
        logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
        expected = torch.distributions.Categorical(logits=logits / 0.8).entropy()
        assert torch.allclose(found[row], expected, atol=1e-5)
        assert found[row].requires_grad == trained


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_ratio_is_exactly_one_before_the_first_step_and_not_after(
    model: PreTrainedModel, pairs: list[Pair], precision: str
) -> None:
    learner = make_learner(model, precision=precision, token_budget=64)
    halves = [pairs[:3], pairs[3:]]
    batches = [make_samples(half, learner.logprobs(half)) for half in halves]
    first, second = (learner.update(batch, CLIP) for batch in batches)
    assert first.ratio_max_deviation == 0.0
    assert first.ratio_mean == 1.0
    assert first.clip_fraction == 0.0
    assert second.ratio_max_deviation > 1e-3
    assert learner.step == 2


def test_other_packing_moves_the_ratio_by_rounding_alone(
    model: PreTrainedModel, pairs: list[Pair]
) -> None:
    learner = make_learner(model, token_budget=64)
    old = Likelihood(model, precision="float32", token_budget=1).logprobs(pairs)
    assert learner.update(make_samples(pairs, old), CLIP).ratio_max_deviation < 5e-6


@pytest.mark.parametrize("token_budget", [1, 60, 4096])
def test_one_step_is_the_token_mean_whatever_the_micro_batches(
    model: PreTrainedModel, pairs: list[Pair], token_budget: int
) -> None:
    temperature = 0.8
    learner = make_learner(
        model, token_budget=token_budget, temperature=temperature, max_grad_norm=1e9
    )
    samples = make_samples(pairs, learner.logprobs(pairs))
    losses = [
        -(plain_logprobs(model, pair, temperature) - s.old_logprobs).exp() * s.advantages
        for pair, s in zip(pairs, samples, strict=True)
    ]
    loss = torch.cat(losses).mean()
    loss.backward()
    expected = gradients(model)
    metrics = learner.update(samples, CLIP)
    for found, wanted in zip(gradients(model), expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-6, rtol=1e-4)
    norm = math.sqrt(sum(float((g**2).sum()) for g in expected))
    assert metrics.loss == pytest.approx(loss.item(), abs=1e-6)
    assert metrics.grad_norm == pytest.approx(norm, rel=1e-4)
    assert metrics.tokens == sum(sampled for _, sampled in SHAPES)


def test_bfloat16_takes_nearly_the_same_step(model: PreTrainedModel, pairs: list[Pair]) -> None:
    samples = make_samples(pairs, make_learner(model).logprobs(pairs))
    flat = {}
    for precision in ("float32", "bfloat16"):
        make_learner(model, precision=precision, rate=0.0).update(samples, CLIP)
        flat[precision] = torch.cat([g.flatten() for g in gradients(model)])
    cosine = torch.cosine_similarity(flat["float32"], flat["bfloat16"], dim=0)
    assert cosine > 0.99
    assert not torch.equal(flat["float32"], flat["bfloat16"])


class CastCount(TorchDispatchMode):
    """Counts how often each of a model's weights is copied to another dtype."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self._names = {p.data_ptr(): name for name, p in model.named_parameters()}
        self.casts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten._to_copy.default and args[0].data_ptr() in self._names:
            self.casts[self._names[args[0].data_ptr()]] += 1
        return func(*args, **(kwargs or {}))


def test_a_step_casts_each_weight_once_whatever_the_micro_batches(
    model: PreTrainedModel, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood_module, "HEAD_CHUNK", 8)
    learner = make_learner(model, precision="bfloat16", token_budget=60)
    samples = make_samples(pairs, learner.logprobs(pairs))
    with CastCount(model) as count:
        learner.update(samples, CLIP)
    assert "model.embed_tokens.weight" in count.casts  # tied: it is the head
    assert len(count.casts) == 15  # 7 projections in each of 2 layers, and the head
    assert set(count.casts.values()) == {1}


def test_the_loss_and_its_settings_are_the_callers(
    model: PreTrainedModel, pairs: list[Pair]
) -> None:
    learner = make_learner(model, rate=0.0)
    old = [values - math.log(1.5) for values in learner.logprobs(pairs)]  # every ratio is 1.5
    samples = [
        Sample(s.prompt_ids, s.token_ids, s.old_logprobs, torch.ones(len(s.token_ids)))
        for s in make_samples(pairs, old)
    ]
    tight = learner.update(samples, Objective(partial(ppo_clip, clip_low=0.2, clip_high=0.3)))
    wide = learner.update(samples, Objective(partial(ppo_clip, clip_low=0.2, clip_high=0.6)))
    assert (tight.clip_fraction, wide.clip_fraction) == (1.0, 0.0)
    assert tight.loss == pytest.approx(-1.3, abs=1e-5)
    assert wide.loss == pytest.approx(-1.5, abs=1e-5)
    assert wide.ratio_mean == pytest.approx(1.5, abs=1e-5)
    assert tight.grad_norm == 0.0
    assert wide.grad_norm > 0.0

    def mine(tokens: TokenBatch) -> TokenLoss:
        loss = -tokens.logprobs * tokens.advantages
        return TokenLoss(loss, torch.zeros_like(loss, dtype=torch.bool))

    expected = -torch.cat(learner.logprobs(pairs)).mean().item()
    assert learner.update(samples, Objective(mine)).loss == pytest.approx(expected, abs=1e-5)


def test_the_end_of_turn_is_trained(model: PreTrainedModel) -> None:
    learner = make_learner(model)
    pair = ((10, 11, 12), (EOS,))
    before = plain_logprobs(model, pair, 1.0).item()
    learner.update([Sample(*pair, *learner.logprobs([pair]), torch.ones(1))], CLIP)
    assert plain_logprobs(model, pair, 1.0).item() > before + 1e-3


def test_every_token_moves_by_its_own_advantage(model: PreTrainedModel) -> None:
    learner = make_learner(model, rate=1e-4)
    pair = ((10, 11, 12), (50, 60, 70, EOS))
    (old,) = learner.logprobs([pair])
    learner.update([Sample(*pair, old, torch.tensor([1.0, -1.0, 1.0, -1.0]))], CLIP)
    (new,) = learner.logprobs([pair])
    assert (new - old).sign().tolist() == [1, -1, 1, -1]


def test_a_step_without_tokens_changes_nothing(model: PreTrainedModel) -> None:
    learner, before = make_learner(model), weights(model)
    for samples in ([], [Sample((4,), (), torch.zeros(0), torch.zeros(0))]):
        metrics = learner.update(samples, CLIP)
        assert (metrics.tokens, metrics.loss, metrics.ratio_mean) == (0, 0.0, 1.0)
    assert learner.step == 2  # the schedule goes on
    assert all_equal(weights(model), before)


def test_a_non_finite_gradient_is_refused_and_does_no_harm(
    model: PreTrainedModel, pairs: list[Pair]
) -> None:
    learner, before = make_learner(model), weights(model)
    good = make_samples(pairs, learner.logprobs(pairs))
    bad = [Sample(s.prompt_ids, s.token_ids, s.old_logprobs, s.advantages * math.nan) for s in good]
    with pytest.raises(TrainingError, match="step 0: the gradient norm is nan on 6 samples"):
        learner.update(bad, CLIP)
    assert learner.step == 0
    assert all_equal(weights(model), before)
    assert math.isfinite(learner.update(good, CLIP).grad_norm)


def test_samples_must_have_one_value_per_token(model: PreTrainedModel) -> None:
    sample = Sample((4, 5), (6, 7), torch.zeros(2), torch.zeros(1))
    with pytest.raises(TrainingError, match=r"sample 0 has 2 tokens .* 1 advantages"):
        make_learner(model).update([sample], CLIP)


def test_the_gradient_is_clipped_to_its_norm(model: PreTrainedModel, pairs: list[Pair]) -> None:
    learner = make_learner(model, max_grad_norm=1e-3)
    metrics = learner.update(make_samples(pairs, learner.logprobs(pairs)), CLIP)
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients(model)))
    assert metrics.grad_norm > 0.1
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_parameters_without_gradient_stay(model: PreTrainedModel, pairs: list[Pair]) -> None:
    frozen = model.get_input_embeddings().weight.requires_grad_(False)
    before = weights(model)
    learner = make_learner(model)
    learner.update(make_samples(pairs, learner.logprobs(pairs)), CLIP)
    moved = [not torch.equal(a, b) for a, b in zip(weights(model), before, strict=True)]
    assert moved == [p is not frozen for p in model.parameters()]


def test_the_learning_rate_rises_linearly_and_stays() -> None:
    rate = LearningRate(0.4, warmup_steps=4)
    assert [rate.at(step) for step in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert LearningRate(0.4).at(0) == 0.4


def test_a_cosine_falls_to_a_tenth_at_the_last_step() -> None:
    rate = LearningRate(1.0, warmup_steps=2, schedule="cosine", total_steps=7)
    found = [rate.at(step) for step in range(8)]
    halves = [(1 + math.cos(math.pi * share)) / 2 for share in (0, 0.25, 0.5, 0.75, 1, 1)]
    assert found == pytest.approx([0.5, 1.0, *(0.1 + 0.9 * half for half in halves)])
    assert found[4] == pytest.approx(0.55)
    assert found[6] == found[7] == pytest.approx(0.1)


def test_a_cosine_of_one_step_is_finite() -> None:
    assert LearningRate(1.0, schedule="cosine", total_steps=1).at(0) == pytest.approx(0.1)


def test_the_optimiser_follows_the_learning_rate(model: PreTrainedModel, pairs: list[Pair]) -> None:
    learner = make_learner(model, learning_rate=LearningRate(1e-2, warmup_steps=10))
    before = weights(model)
    learner.update(make_samples(pairs, learner.logprobs(pairs)), CLIP)
    step = max(float((a - b).abs().max()) for a, b in zip(weights(model), before, strict=True))
    assert step == pytest.approx(1e-3, rel=0.01)  # Adam's first step is the learning rate


def test_a_restored_learner_takes_the_same_step_bit_for_bit(
    tiny_model: Path, model: PreTrainedModel, pairs: list[Pair], tmp_path: Path
) -> None:
    def one_update(learner: Learner, seed: int) -> None:
        learner.update(make_samples(pairs, learner.logprobs(pairs), seed), CLIP)

    learner = make_learner(model, learning_rate=RISING)
    for seed in range(2):
        one_update(learner, seed)
    learner.save_state(tmp_path / "state")
    learner.save_pretrained(tmp_path, load_tokenizer(tiny_model))
    one_update(learner, 2)

    restored = make_learner(load_model(tmp_path), learning_rate=RISING)
    restored.load_state(tmp_path / "state")
    assert restored.step == 2
    one_update(restored, 2)
    assert all_equal(weights(restored.model), weights(learner.model))
    one_update(
        make_learner(fresh := load_model(tmp_path), learning_rate=RISING),
        2,
    )
    assert not all_equal(weights(fresh), weights(learner.model))


def test_logits_changed_after_the_head_are_refused() -> None:
    config = Gemma2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=0.05,
    )
    with pytest.raises(ModelError, match="Gemma2ForCausalLM changes its logits after"):
        Likelihood(Gemma2ForCausalLM(config), precision="float32")


def test_only_float32_weights_are_trained(tiny_model: Path) -> None:
    with pytest.raises(ModelError, match=r"has dtype torch\.bfloat16; load it in float32"):
        make_learner(load_model(tiny_model, torch.bfloat16))


def test_temperature_zero_is_refused(model: PreTrainedModel) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        make_learner(model, temperature=0.0)


def test_dropout_is_off(model: PreTrainedModel) -> None:
    model.train()
    make_learner(model)
    assert not model.training


@pytest.mark.parametrize(
    ("capability", "expected"),
    [("avx512_bf16", torch.bfloat16), ("amx_bf16", torch.bfloat16), ("avx2", torch.float32)],
)
def test_automatic_precision_follows_the_processor(
    monkeypatch: pytest.MonkeyPatch, capability: str, expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capability: True})
    cpu = torch.device("cpu")
    assert autocast_dtype("auto", cpu) == expected
    assert autocast_dtype("float32", cpu) == torch.float32
    assert autocast_dtype("bfloat16", cpu) == torch.bfloat16


def test_a_tiny_model_learns_what_is_rewarded(model: PreTrainedModel) -> None:
    """Digits are rewarded; a random model writes one in 26 tokens, a trained one most of them."""
    learner = make_learner(model, rate=1e-3, token_budget=2048)
    engine = HFEngine(model, eos_ids=[EOS], pad_id=0, share=True)
    digits = set(byte_tokenizer().encode("0123456789", add_special_tokens=False))
    sampling = Sampling(temperature=1.0, max_new_tokens=8)
    shares = []
    for step in range(30):
        prompts = [[1, 80 + row % 8, 201] for row in range(32)]
        seeds = [1000 * step + row for row in range(32)]
        actions = engine.generate(prompts, seeds, sampling)
        rewards = [[float(t in digits) for t in action.token_ids] for action in actions]
        flat = torch.tensor([reward for row in rewards for reward in row])
        shares.append(flat.mean().item())
        old = learner.logprobs([(p, a.token_ids) for p, a in zip(prompts, actions, strict=True)])
        samples = [
            Sample(tuple(p), a.token_ids, o, torch.tensor(r) - flat.mean())
            for p, a, o, r in zip(prompts, actions, old, rewards, strict=True)
        ]
        learner.update(samples, CLIP)
    assert shares[0] < 0.1
    assert shares[-1] > 0.8
