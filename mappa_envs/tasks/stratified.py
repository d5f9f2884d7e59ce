"""Orders and splits of tasks that keep the ratio of their types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np

from mappa_envs.errors import TaskError
from mappa_envs.tasks.seeding import generator
from mappa_envs.tasks.source import check_position
from mappa_envs.types import Split, Task


def stratified_order(types: Sequence[Hashable], batch_size: int, seed: int) -> tuple[int, ...]:
    """Return an order of items in which every batch has the ratio of types that all items have.

    A batch holds of each type its share of `batch_size`, rounded, and at least one; what rounding
    leaves over or lacks is made up by the largest type. Each type is dealt out in a shuffled order
    and shuffled anew when it is used up, so items of a type that runs out come twice. The order
    ends with the batch in which the last item has been dealt.

    Args:
        types: The type of each item, e.g. `["classification", "regression", "regression"]`.
        batch_size: Items in one batch; the order's length is a multiple of it.
        seed: Decides the order.

    Returns:
        Positions in `types`, one batch after the other.

    Raises:
        TaskError: the batch has no room for every type.
    """
    kinds = _kinds(types)
    if not kinds:
        return ()
    counts = batch_counts([len(places) for places in kinds.values()], batch_size)
    streams = [_dealt(places, seed, kind) for kind, places in kinds.items()]
    unseen, order = set(range(len(types))), list[int]()
    while unseen:
        batch = [
            next(stream)
            for stream, count in zip(streams, counts, strict=True)
            for _ in range(count)
        ]
        generator(seed, "batch", len(order)).shuffle(batch)
        order += batch
        unseen -= set(batch)
    return tuple(order)


def batch_counts(sizes: Sequence[int], batch_size: int) -> tuple[int, ...]:
    """Return how many items of each type a batch holds.

    >>> batch_counts([30, 34], 8)
    (4, 4)
    >>> batch_counts([3, 9], 3)
    (1, 2)

    Raises:
        TaskError: the batch has no room for every type.
    """
    if batch_size < len(sizes):
        raise TaskError(
            f"batch size is {batch_size}, and there are {len(sizes)} types of tasks; give at least "
            "as many"
        )
    counts = [max(1, round(batch_size * size / sum(sizes))) for size in sizes]
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    counts[largest] = max(1, counts[largest] + batch_size - sum(counts))
    while sum(counts) > batch_size:
        counts[counts.index(max(counts))] -= 1
    return tuple(counts)


def stratified_split(
    types: Sequence[Hashable], share: float, seed: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the positions that are kept and those that are held out, each in order.

    Of each type the `share`, rounded, is held out: at least one item, and never all of them. An
    item that is the only one of its type is kept.
    """
    held = set[int]()
    for kind, places in _kinds(types).items():
        count = min(max(1, round(share * len(places))), len(places) - 1)
        shuffled = generator(seed, "split", kind).permutation(places)
        held.update(int(place) for place in shuffled[:count])
    kept = tuple(place for place in range(len(types)) if place not in held)
    return kept, tuple(sorted(held))


def interleaved(types: Sequence[Hashable], seed: int) -> tuple[int, ...]:
    """Return the positions of all items, each once, with the types spread evenly.

    However few are taken from its beginning, they have the ratio of types that all items have, as
    nearly as whole items can. `seed` decides which item of a type comes first.
    """
    places = []
    for rank, (kind, own) in enumerate(_kinds(types).items()):
        shuffled = generator(seed, "interleave", kind).permutation(own)
        places += [((n + 0.5) / len(own), rank, int(place)) for n, place in enumerate(shuffled)]
    return tuple(place for _, _, place in sorted(places))


def _kinds(types: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    kinds: dict[Hashable, list[int]] = {}
    for place, kind in enumerate(types):
        kinds.setdefault(kind, []).append(place)
    return kinds


def _dealt(places: list[int], seed: int, kind: Hashable) -> Iterator[int]:
    """Deal out places without end, shuffled anew for each round."""
    rng: np.random.Generator = generator(seed, "deal", kind)
    while True:
        yield from (int(place) for place in rng.permutation(places))


class InBatches(ABC):
    """A source of a fixed set of tasks of two types, whose train split is dealt out in batches.

    The test split has each task once, in the order of `interleaved`.

    Args:
        splits: The ids of both splits, each once; a split may be empty.
        types: The type of each task.
        batch_size: Tasks that are played together.
        seed: Decides the orders; that of the train split is a `stratified_order`.
    """

    def __init__(
        self,
        splits: Mapping[Split, tuple[str, ...]],
        types: Mapping[str, str],
        batch_size: int,
        seed: int,
    ) -> None:
        self.batch_size = batch_size
        self._splits = {split: _mixed(ids, types, seed) for split, ids in splits.items()}
        train = splits["train"]
        order = stratified_order([types[name] for name in train], batch_size, seed)
        self._order: dict[Split, tuple[str, ...]] = {
            "train": tuple(train[place] for place in order),
            "test": self._splits["test"],
        }

    @property
    def splits(self) -> dict[Split, tuple[str, ...]]:
        """The ids of both splits, each once and `interleaved`, as a run records them."""
        return dict(self._splits)

    def size(self, split: Split) -> int:
        """Return the number of places in the split's order."""
        check_position(split)
        return len(self._order[split])

    def get(self, split: Split, index: int) -> Task:
        """Return the task at a place, starting over at the end.

        Raises:
            TaskError: the split is empty.
        """
        check_position(split, index)
        order = self._order[split]
        if not order:
            other = next((name for name, ids in self._order.items() if ids), "train")
            raise TaskError(
                f"split {split!r} has no task; use more tasks, or play those of split {other!r}"
            )
        return self.find(order[index % len(order)])

    @abstractmethod
    def find(self, task_id: str) -> Task:
        """Return the task of that id, from either split."""


def _mixed(ids: tuple[str, ...], types: Mapping[str, str], seed: int) -> tuple[str, ...]:
    return tuple(ids[place] for place in interleaved([types[name] for name in ids], seed))
