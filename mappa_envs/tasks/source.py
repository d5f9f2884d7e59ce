"""What a source of tasks must be able to do.

`check_position`, `is_index` and `no_such` are for those who write one: every source refuses alike.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, get_args

import numpy as np

from mappa_envs.errors import TaskError, did_you_mean
from mappa_envs.types import Split, Task

SPLITS: tuple[Split, ...] = get_args(Split)


class TaskSource(Protocol):
    """Problems in two splits that share no problem text.

    A source is a pure function of how it was built: the same split and index give the same task
    in every process.
    """

    def size(self, split: Split) -> int | None:
        """Return how many tasks a split holds; None where there is no end.

        Raises:
            TaskError: there is no such split.
        """
        ...

    def get(self, split: Split, index: int) -> Task:
        """Return the task at `index`, from 0; a finite split starts over at its end.

        Raises:
            TaskError: there is no such split, or `index` is no index from 0.
        """
        ...

    def find(self, task_id: str) -> Task:
        """Return the task of that id, from either split.

        Raises:
            TaskError: no task has that id.
        """
        ...


def is_index(value: object) -> bool:
    """Whether `value` is a whole number from 0; a bool is no number."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return bool(value >= 0)


def check_position(split: str, index: int = 0) -> None:
    """Raise a `TaskError` unless `split` is one of `SPLITS` and `index` is an index from 0."""
    if split not in SPLITS:
        raise no_such("split", split, SPLITS)
    if not is_index(index):
        raise TaskError(f"task index {index!r} of split {split!r} must be a whole number from 0")


def no_such(kind: str, name: str, known: Collection[str]) -> TaskError:
    """Return the error for an unknown name, with the close match or the names there are."""
    return TaskError(f"no {kind} is called {name!r}; {did_you_mean(name, known, 'there are')}")
