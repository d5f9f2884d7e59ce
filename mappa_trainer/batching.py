"""Cutting samples into mini-batches (one optimiser step) and micro-batches (one forward pass)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from mappa_trainer.errors import TrainingError
from mappa_trainer.packing import PackedRow, common_prefixes, pack, packed_size

T = TypeVar("T")

Pair = tuple[Sequence[int], Sequence[int]]
"""Prompt ids and the ids sampled after them."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Pairs that go through the model together; N is the number of their sampled tokens.

    They are one packed row without padding. A pair's last sampled token is only ever a target and
    is not fed: of the pair ([5, 6], [7, 8]) the row holds 5, 6, 7, of which 6 predicts 7 and 7
    predicts 8.
    """

    rows: tuple[int, ...]
    """For each pair, its index in the sequence that was cut."""
    packed: PackedRow
    predictors: Tensor
    """(N,) int64: indices into the packed row, each of which predicts its target."""
    targets: Tensor
    """(N,) int64: the sampled ids, pair after pair."""
    lengths: tuple[int, ...]
    """Sampled tokens per pair; sums to N."""

    def split(self, flat: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield, for each pair, its index in the original sequence and its part of (N,)."""
        return zip(self.rows, torch.split(flat, list(self.lengths)), strict=True)


def micro_batches(
    pairs: Sequence[Pair], token_budget: int, rank: int = 0, ranks: int = 1
) -> list[MicroBatch]:
    """Group a rank's share of pairs so that no group has more than `token_budget` tokens packed.

    Pairs that begin alike come together, and what they share counts once. A pair longer than the
    budget has a micro-batch to itself; a pair with nothing sampled is in none. The result depends
    on the arguments alone.

    Args:
        pairs: Prompt ids and sampled ids; a prompt has at least one id.
        token_budget: The most tokens of a packed row.
        rank: Whose share to group; see `deal`.
        ranks: How many share the pairs.

    Raises:
        TrainingError: a prompt is empty, in whoever's share.
    """
    fed = {row: _fed(row, pair) for row, pair in enumerate(pairs) if len(pair[1])}
    own = deal({row: len(ids) for row, ids in fed.items()}, ranks)[rank]
    order = sorted(own, key=lambda row: fed[row])
    lengths = [len(fed[row]) for row in order]
    common = common_prefixes([fed[row] for row in order])
    groups: list[list[int]] = []
    first = 0
    for place, row in enumerate(order):
        here = [0, *common[first + 1 : place + 1]]
        if groups and packed_size(lengths[first : place + 1], here) <= token_budget:
            groups[-1].append(row)
        else:
            groups.append([row])
            first = place
    return [_collate(pairs, fed, group) for group in groups]


def deal(lengths: Mapping[int, int], ranks: int) -> list[list[int]]:
    """Deal rows out over ranks, the longest first, each to the rank with the fewest tokens so far.

    Args:
        lengths: The tokens of each row.
        ranks: How many there are.

    Returns:
        For each rank its rows, in their order.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for row in sorted(lengths, key=lambda row: (-lengths[row], row)):
        lightest = loads.index(min(loads))
        shares[lightest].append(row)
        loads[lightest] += lengths[row]
    return [sorted(share) for share in shares]


def _fed(row: int, pair: Pair) -> tuple[int, ...]:
    prompt, sampled = pair
    if not len(prompt):
        raise TrainingError(f"sample {row} has an empty prompt; nothing predicts its first id")
    return (*prompt, *sampled[:-1])


def _collate(
    pairs: Sequence[Pair], fed: Mapping[int, tuple[int, ...]], rows: Sequence[int]
) -> MicroBatch:
    packed = pack([fed[row] for row in rows])
    predictors = [
        places[len(pairs[row][0]) - 1 :] for row, places in zip(rows, packed.places, strict=True)
    ]
    return MicroBatch(
        rows=tuple(rows),
        packed=packed,
        predictors=torch.cat(predictors),
        targets=torch.tensor([token for row in rows for token in pairs[row][1]]),
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
