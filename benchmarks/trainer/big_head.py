"""Passes through a model that is nearly all head; as a program, tells how much memory one needs.

For instance `big_head.py "all logits" 151936 2048 576`: vocabulary, positions and width.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from mappa_trainer.attention import use_fast_attention
from mappa_trainer.batching import micro_batches
from mappa_trainer.likelihood import Likelihood

ROWS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """How large the head is, and how many positions it sees, in 8 rows."""

    vocabulary: int = 151_936
    positions: int = 2048
    width: int = 576


Result = tuple[float, float, float]
"""Means of log-probabilities and entropies, and the norm of the gradient of the former."""


def make_model(case: Case) -> LlamaForCausalLM:
    """Make a random model with one narrow layer; all but the body and the head is frozen."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=case.vocabulary,
        hidden_size=case.width,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    use_fast_attention(model)
    model.get_input_embeddings().requires_grad_(False)
    return model


def all_logits(model: LlamaForCausalLM, rows: Tensor) -> Callable[[], Result]:
    """Return a pass over rows that has the logits of all positions at once."""

    def run() -> Result:
        every = model(input_ids=rows[:, :-1], use_cache=False).logits.log_softmax(-1)
        with torch.no_grad():
            entropy = -(every.exp() * every).sum(-1).mean()
        mean = every.gather(2, rows[:, 1:, None]).mean()
        del every
        return _finish(model, mean, entropy)

    return run


def chunked(model: LlamaForCausalLM, rows: Tensor) -> Callable[[], Result]:
    """Return our pass over the same rows."""
    pairs = [(row[:1], row[1:]) for row in rows.tolist()]
    likelihood = Likelihood(model, precision="float32")
    (batch,) = micro_batches(pairs, rows.numel())

    def run() -> Result:
        scores = likelihood.of(batch)
        return _finish(model, scores.logprobs.mean(), scores.entropies.mean())

    return run


def _finish(model: LlamaForCausalLM, mean: Tensor, entropy: Tensor) -> Result:
    model.zero_grad()
    torch.autograd.backward(mean)
    head = model.get_output_embeddings().weight.grad
    return mean.item(), entropy.item(), head.norm().item()


PASSES = {"all logits": all_logits, "ours": chunked}


def make(model: LlamaForCausalLM, name: str, case: Case) -> Callable[[], Result]:
    """Return a pass by its name; the ids are drawn at random."""
    rng = random.Random(0)
    length = case.positions // ROWS + 1
    rows = [[rng.randrange(case.vocabulary) for _ in range(length)] for _ in range(ROWS)]
    return PASSES[name](model, torch.tensor(rows))


def memory(field: str) -> int:
    """Return a field of `/proc/self/status` in bytes.

    The peak that `getrusage` tells may be that of the process that started this one.
    """
    (kilobytes,) = re.findall(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(kilobytes)


def main() -> None:
    """Print how many bytes a pass needs beyond what there is before it."""
    name, *sizes = sys.argv[1:]
    case = Case(*map(int, sizes))
    run = make(make_model(case), name, case)
    before = memory("VmRSS")
    run()
    print(memory("VmHWM") - before)


if __name__ == "__main__":
    main()
