"""The concepts of the trainer side, in the order data flows.

`Generation` (one sampled action, tokens and all), or `Reply` (one of which only the text is known)
→ `Transition` (an action with the reward it earned) → `Episode` (all transitions of one play) →
`Sample` (the tensors of one transition) → `UpdateMetrics` (what one optimiser step did).

Token ids are kept from the engine to the loss exactly as they were sent and sampled; nothing is
ever re-tokenised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mappa_trainer.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["stop", "length", "prompt_too_long", "content_filter"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How actions are drawn, e.g. `Sampling(temperature=1.0, max_new_tokens=64)`.

    The distribution is the model's own softmax at `temperature`: top-p and top-k would change it
    and are not offered.
    """

    temperature: float
    """0 takes the most likely token and is for evaluation alone."""
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled action, e.g. `Generation((1, 7), (9, 2), (-0.1, -0.3), "4", "stop")`."""

    prompt_ids: tuple[int, ...]
    """The ids sent to the engine."""
    token_ids: tuple[int, ...]
    """The ids sampled, the end-of-turn id included where it was sampled."""
    sampler_logprobs: tuple[float, ...]
    """The engine's log-probability of each sampled id at the sampling temperature."""
    text: str
    """`token_ids` decoded, special tokens left out."""
    finish_reason: FinishReason
    """`prompt_too_long` means that nothing was sampled and the text is empty."""
    weight_version: int = 0
    """How many optimiser steps the weights that acted had taken."""

    @property
    def prompt_tokens(self) -> int:
        """How many ids were sent."""
        return len(self.prompt_ids)

    @property
    def tokens(self) -> int:
        """How many ids were sampled."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Reply:
    """One action of which only the text is known, e.g. `Reply("4", "stop", 12, 3)`.

    It can be played and measured, and not trained on.
    """

    text: str
    finish_reason: FinishReason = "stop"
    """`content_filter` means that a server held back the text or a part of it."""
    prompt_tokens: int | None = None
    """As the server counts; None where nobody counts."""
    tokens: int | None = None
    """Of the text, and of the thinking that the server kept to itself; None as above."""

    @property
    def weight_version(self) -> None:
        """Nobody knows whose weights acted, or there are none."""
        return None


@dataclass(frozen=True, slots=True)
class Transition:
    """One action of one agent and what it earned."""

    agent: str
    index: int
    """Position among this agent's actions in the episode, from 0."""
    messages: tuple[Mapping[str, str], ...]
    """What the agent saw."""
    generation: Generation | Reply
    reward: float | None
    """The action's reward, or None when it is unscored and must not be trained on."""
    ledger: Mapping[str, Any] | None
    """The environment's ledger entry for the action, as plain data; None without a ledger."""
    turn: Mapping[str, Any] | None
    """The environment's record of the action (tool results, feedback), as plain data."""

    @property
    def sampled(self) -> Generation:
        """The generation with its tokens, to train on.

        Raises:
            TrainingError: only the text of the action is known.
        """
        if isinstance(self.generation, Reply):
            raise TrainingError(
                f"action {self.index + 1} of {self.agent} is a text without tokens, so it cannot "
                "be trained on; play a model of the recipe"
            )
        return self.generation


@dataclass(frozen=True, slots=True)
class Episode:
    """One play of the team, from `reset` to the last agent's dead turn."""

    index: int
    """Position in its iteration or evaluation, from 0."""
    seed: int
    options: Mapping[str, Any]
    transitions: tuple[Transition, ...]
    """In the order the actions were taken."""
    outcome: Mapping[str, Any] | None
    """The task's verdict as the environment reports it, e.g. `{"score": 1.0, ...}`."""
    returns: Mapping[str, float]
    """Per agent, the sum of what `last()` paid."""
    end_reasons: Mapping[str, str]
    task: Mapping[str, Any]
    """The environment's public description of the task, e.g. `{"id": "train-7"}`."""
    truncated: bool = False
    """Whether the episode was cut off, so that what it says of the team is incomplete."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One transition as the learner reads it; T is the number of sampled tokens.

    All T tokens are policy tokens: prompts and tool output are context, never targets.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """(T,)"""
    old_logprobs: Tensor
    """(T,) float32: the learner's own log-probabilities before the first update."""
    advantages: Tensor
    """(T,) float32"""
    ref_logprobs: Tensor | None = None
    """(T,) float32: the reference's; None where the loss has no KL."""
    sampler_logprobs: Tensor | None = None
    """(T,) float32: the engine's; None where the loss has no importance weight."""


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """What one optimiser step did; means are over the policy tokens of the whole step."""

    loss: float
    """What was minimised: everything that the objective adds up, in its aggregation."""
    clip_fraction: float
    """Share of tokens whose gradient the clip cut off."""
    ratio_mean: float
    ratio_max_deviation: float
    """max |ratio - 1|; 0 on the first mini-batch after the old log-probs were taken."""
    entropy: float
    """Of the distributions that the tokens were drawn from, in nats."""
    grad_norm: float
    """Before clipping."""
    tokens: int
