"""Many sequences as one row without padding, in which a prefix that several share is there once.

Sequences form a tree: a node is a run of tokens, and a token attends to the earlier tokens of its
node and to all tokens of the nodes above. A token's place in its own sequence, its position, is
that of the tree too, so every token is computed from exactly what it would be computed from alone.
The role's instructions, the earlier turns of an agent, and the samples of a task are shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

MIN_SHARED = 16
"""Shorter common prefixes are computed again: a node of its own costs more than that."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """G nodes below the same parent, of at most M tokens each, above which are P tokens."""

    tokens: Tensor
    """(G, M) int64: indices into the row; a shorter node is filled up with its last one."""
    prefix: Tensor
    """(P,) int64: indices of all tokens above, in their order."""

    def to(self, device: torch.device) -> Siblings:
        """Return this on a device."""
        return Siblings(self.tokens.to(device), self.prefix.to(device))


@dataclass(frozen=True, slots=True)
class Packing:
    """How attention runs through a packed row of L tokens."""

    groups: tuple[Siblings, ...]
    places: Tensor
    """(L,) int64: where each token is among the tokens of all groups, one after the other."""

    def to(self, device: torch.device) -> Packing:
        """Return this on a device."""
        return Packing(tuple(group.to(device) for group in self.groups), self.places.to(device))


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Sequences in one row of L tokens."""

    input_ids: Tensor
    """(1, L) int64"""
    position_ids: Tensor
    """(1, L) int64: each token's place in its sequences."""
    places: tuple[Tensor, ...]
    """For each sequence, the index in the row of each of its tokens."""
    packing: Packing


def pack(sequences: Sequence[Sequence[int]]) -> PackedRow:
    """Pack sequences into one row; none may be empty.

    For instance `[7] * 16 + [1, 2]` and `[7] * 16 + [3]` become a row of 19 tokens.
    """
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    ordered = [sequences[i] for i in order]
    layout = _Layout(ordered)
    layout.add(_tree(list(map(len, ordered)), common_prefixes(ordered)), [])
    places = dict(zip(order, layout.places, strict=True))
    return PackedRow(
        input_ids=torch.tensor([layout.ids]),
        position_ids=torch.tensor([layout.positions]),
        places=tuple(torch.tensor(places[i]) for i in range(len(sequences))),
        packing=_packing(layout.groups, len(layout.ids)),
    )


def common_prefixes(ordered: Sequence[Sequence[int]]) -> list[int]:
    """Return for each sequence how many tokens it begins with that the one before has, too."""
    return [0, *(_common(one, other) for one, other in pairwise(ordered))][: len(ordered)]


def packed_size(lengths: Sequence[int], common: Sequence[int]) -> int:
    """Return the tokens of the row of some sorted sequences, from `common_prefixes` alone."""
    return sum(node.size for node in _tree(lengths, common))


@dataclass(frozen=True, slots=True)
class _Node:
    """A run of tokens that some sorted sequences share."""

    first: int
    stop: int
    """The sequences `first` to `stop` run through the node."""
    start: int
    end: int
    """The run is tokens `start` to `end` of each of them."""
    children: tuple[_Node, ...] = ()

    @property
    def size(self) -> int:
        """Tokens of the node and of all below it."""
        return self.end - self.start + sum(child.size for child in self.children)


def _tree(
    lengths: Sequence[int],
    common: Sequence[int],
    start: int = 0,
    first: int = 0,
    stop: int | None = None,
) -> tuple[_Node, ...]:
    """Return the nodes below a common prefix of `start` tokens, for sequences `first` to `stop`."""
    stop = len(lengths) if stop is None else stop
    nodes: list[_Node] = []
    while first < stop:
        end = first + 1
        while end < stop and common[end] >= start + MIN_SHARED:
            end += 1
        if end == first + 1:
            if lengths[first] > start:
                nodes.append(_Node(first, end, start, lengths[first]))
        else:
            shared = min(common[first + 1 : end])
            below = _tree(lengths, common, shared, first, end)
            nodes.append(_Node(first, end, start, shared, below))
        first = end
    return tuple(nodes)


class _Layout:
    """The row as it grows, parents before children."""

    def __init__(self, ordered: Sequence[Sequence[int]]) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.places: list[list[int]] = [[] for _ in ordered]
        self.groups: list[tuple[list[list[int]], list[int]]] = []
        self._ordered = ordered

    def add(self, nodes: Sequence[_Node], above: list[int]) -> None:
        """Put siblings into the row, and what is below each of them."""
        runs = [self._put(node) for node in nodes]
        self.groups += ((alike, above) for alike in _of_like_length(runs))
        for node, run in zip(nodes, runs, strict=True):
            if node.children:
                self.add(node.children, above + run)

    def _put(self, node: _Node) -> list[int]:
        run = list(range(len(self.ids), len(self.ids) + node.end - node.start))
        self.ids += self._ordered[node.first][node.start : node.end]
        self.positions += range(node.start, node.end)
        for sequence in range(node.first, node.stop):
            self.places[sequence] += run
        return run


def _of_like_length(runs: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Cut runs into groups in which the shortest has at least half the length of the longest."""
    group: list[list[int]] = []
    for run in sorted(runs, key=len, reverse=True):
        if group and 2 * len(run) < len(group[0]):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _packing(groups: Sequence[tuple[list[list[int]], list[int]]], size: int) -> Packing:
    places = torch.empty(size, dtype=torch.int64)
    siblings, offset = [], 0
    for runs, above in groups:
        width = len(runs[0])
        for number, run in enumerate(runs):
            start = offset + number * width
            places[run] = torch.arange(start, start + len(run))
        offset += len(runs) * width
        filled = [run + run[-1:] * (width - len(run)) for run in runs]
        siblings.append(Siblings(torch.tensor(filled), torch.tensor(above, dtype=torch.int64)))
    return Packing(tuple(siblings), places)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    for length, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return length
    return min(len(one), len(other))
