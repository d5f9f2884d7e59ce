"""A set of weights that is trained, as a driver sees it, in this process or on many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mappa_trainer.batching import Pair
from mappa_trainer.learner import Learner
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.objective import Objective
from mappa_trainer.types import Sample, UpdateMetrics


class LearnerWorker:
    """One rank of the group that trains a set of weights; alone, it is the whole group.

    What its verbs take and return can be sent to another process. Every rank of a group is given
    the same call, in the same order, and all return the same, but for `weights`.

    Args:
        learner: The weights, or the rank's part of them.
        reference: The weights that the KL penalty holds to.
    """

    def __init__(self, learner: Learner, reference: Likelihood) -> None:
        self._learner = learner
        self._reference = reference

    def logprobs(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """Return the log-probabilities of sampled ids; see `Likelihood.logprobs`."""
        return self._learner.logprobs(pairs)

    def reference_logprobs(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """Return those of the reference."""
        return self._reference.logprobs(pairs)

    def update(self, samples: Sequence[Sample], objective: Objective) -> UpdateMetrics:
        """Take one optimiser step; see `Learner.update`."""
        return self._learner.update(samples, objective)

    def rest(self) -> None:
        """Give back memory for other weights to train in."""
        self._learner.rest()

    def weights(self) -> dict[str, Tensor]:
        """Return all weights on rank 0, on the processor, and nothing on the others."""
        return self._learner.weights()

    def save(self, weights: Path, state: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write the weights as a Hugging Face folder, and the optimiser's state to another."""
        self._learner.save_pretrained(weights, tokenizer)
        self._learner.save_state(state)
