"""Chat templates that strip earlier thinking: what was sampled is no prefix of the next prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from mappa_trainer.batching import micro_batches
from mappa_trainer.engines import Completion
from mappa_trainer.engines.hf import LMPolicy
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.models import load_model
from mappa_trainer.testing import byte_tokenizer
from mappa_trainer.types import Generation, Sampling

STRIPPING = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n'"
    " + message['content'].split('</think>')[-1] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THOUGHT = "<think>seven times eight is fifty-six</think>56"


class Recorded:
    """An engine that samples what it is told, and keeps what it was sent."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.tokenizer = byte_tokenizer()
        self.texts = iter(texts)
        self.sent: list[tuple[int, ...]] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        self.sent += [tuple(prompt) for prompt in prompts]
        ids = [*self.tokenizer(next(self.texts)).input_ids, self.tokenizer.eos_token_id]
        return [Completion(tuple(ids), (-1.0,) * len(ids), "stop")]


@pytest.fixture
def turns() -> tuple[list[Generation], Recorded]:
    """Two turns of one agent, the first with a thought."""
    engine = Recorded([THOUGHT, "done"])
    engine.tokenizer.chat_template = STRIPPING
    policy = LMPolicy(engine, engine.tokenizer)
    asked = {"role": "user", "content": "What is 7 * 8? Think, then answer with a number."}
    first = ({"role": "assistant", "content": THOUGHT}, {"role": "user", "content": "Sure?"})
    sampling = Sampling(1.0, 64)
    conversations = ((asked,), (asked, *first))
    return [policy.act([seen], [0], sampling)[0] for seen in conversations], engine


def test_each_action_keeps_the_prompt_that_was_sent(
    turns: tuple[list[Generation], Recorded],
) -> None:
    (first, second), engine = turns
    assert [first.prompt_ids, second.prompt_ids] == engine.sent
    history = first.prompt_ids + first.token_ids
    assert second.prompt_ids[: len(history)] != history
    assert "fifty-six" not in engine.tokenizer.decode(second.prompt_ids)


def test_such_turns_part_where_they_differ_and_are_exact(
    turns: tuple[list[Generation], Recorded], tiny_model: Path
) -> None:
    generations, _ = turns
    pairs = [(one.prompt_ids, one.token_ids) for one in generations]
    (batch,) = micro_batches(pairs, 4096)
    shared = len(pairs[0][0])  # after it one goes on with a thought, the other without
    fed = sum(len(prompt) + len(sampled) - 1 for prompt, sampled in pairs)
    assert batch.packed.input_ids.numel() == fed - shared
    model = load_model(tiny_model)
    found = Likelihood(model, precision="float32").logprobs(pairs)
    for (prompt, sampled), values in zip(pairs, found, strict=True):
        logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(sampled)[:, None]).squeeze(1)
        assert torch.allclose(values, expected, atol=1e-5)
