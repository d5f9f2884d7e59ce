"""Cutting samples into mini-batches (one optimiser step) and micro-batches (one forward pass)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from mappa_trainer.errors import TrainingError

T = TypeVar("T")

Pair = tuple[Sequence[int], Sequence[int]]
"""Prompt ids and the ids sampled after them."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that go through the model together; N is the number of their sampled tokens.

    Rows are padded on the right. Under causal attention no real position sees a pad, so the
    model needs no attention mask. A row's last sampled token is only ever a target and is not
    fed: the pairs ([5, 6], [7, 8]) and ([5], [9]) give `input_ids` [[5, 6, 7], [5, 0, 0]],
    `positions` [1, 2, 3] and `targets` [7, 8, 9].
    """

    rows: tuple[int, ...]
    """For each row, its index in the sequence that was cut."""
    input_ids: Tensor
    """(B, L) int64"""
    positions: Tensor
    """(N,) int64: indices into the flat B·L positions, each of which predicts its target."""
    targets: Tensor
    """(N,) int64: the sampled ids, row after row."""
    lengths: tuple[int, ...]
    """Sampled tokens per row; sums to N."""

    def split(self, flat: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield, for each row, its index in the original sequence and its part of (N,)."""
        return zip(self.rows, torch.split(flat, list(self.lengths)), strict=True)


def micro_batches(pairs: Sequence[Pair], token_budget: int, pad_id: int = 0) -> list[MicroBatch]:
    """Group pairs of similar length so that no group has more than `token_budget` positions.

    Padding counts. A pair longer than the budget has a micro-batch to itself; a pair with
    nothing sampled is in none. The result depends on the arguments alone.

    Args:
        pairs: Prompt ids and sampled ids; a prompt has at least one id.
        token_budget: The most positions B·L of a micro-batch.
        pad_id: Any valid id; it is never attended to.
    """
    order = [row for row, (_, sampled) in enumerate(pairs) if len(sampled)]
    order.sort(key=lambda row: -_fed(pairs[row]))
    groups: list[list[int]] = []
    for row in order:
        width = _fed(pairs[groups[-1][0]]) if groups else 0  # the group's first row is its longest
        if groups and width * (len(groups[-1]) + 1) <= token_budget:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [_collate(pairs, group, pad_id) for group in groups]


def _fed(pair: Pair) -> int:
    prompt, sampled = pair
    return len(prompt) + len(sampled) - 1


def _collate(pairs: Sequence[Pair], rows: Sequence[int], pad_id: int) -> MicroBatch:
    width = _fed(pairs[rows[0]])
    input_ids = torch.full((len(rows), width), pad_id)
    positions: list[int] = []
    targets: list[int] = []
    for place, row in enumerate(rows):
        prompt, sampled = pairs[row]
        if not len(prompt):
            raise TrainingError(f"sample {row} has an empty prompt; nothing predicts its first id")
        fed = [*prompt, *sampled[:-1]]
        input_ids[place, : len(fed)] = torch.tensor(fed)
        first = place * width + len(prompt) - 1
        positions.extend(range(first, first + len(sampled)))
        targets.extend(sampled)
    return MicroBatch(
        rows=tuple(rows),
        input_ids=input_ids,
        positions=torch.tensor(positions),
        targets=torch.tensor(targets),
        lengths=tuple(len(pairs[row][1]) for row in rows),
    )


def mini_batches(episodes: Sequence[Sequence[T]], count: int, seed: int) -> list[list[T]]:
    """Deal the items of whole episodes into `count` mini-batches, in an order `seed` decides.

    An episode's items stay together. The numbers of non-empty episodes differ by at most one,
    and with fewer episodes than mini-batches the last mini-batches are empty. Nothing is dropped.
    """
    if count < 1:
        raise ValueError(f"mini_batches needs a count of at least 1, got {count}")
    filled = [episode for episode in episodes if len(episode)]
    random.Random(seed).shuffle(filled)
    return [[item for episode in filled[i::count] for item in episode] for i in range(count)]
