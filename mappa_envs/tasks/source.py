"""What a source of tasks must be able to do.

`check_position`, `is_index` and `no_such` are for those who write one: every source refuses alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, get_args, runtime_checkable

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


@runtime_checkable
class BatchedTasks(TaskSource, Protocol):
    """A source of a fixed set of tasks whose train split is dealt out in batches."""

    @property
    def splits(self) -> dict[Split, tuple[str, ...]]:
        """The ids of both splits, each once."""
        ...

    @property
    def batch_size(self) -> int:
        """Tasks in one batch; batches begin at the multiples of it."""
        ...


def tasks_metadata(source: TaskSource) -> dict[str, Any]:
    """Return what an environment tells of its tasks before one is played, as plain data."""
    if not isinstance(source, BatchedTasks):
        return {}
    splits = {split: list(ids) for split, ids in source.splits.items()}
    return {"task_ids": splits, "task_batch": source.batch_size}


def task_texts(source: TaskSource, split: Split, count: int) -> dict[str, str]:
    """Return the texts of a split's tasks by their ids, so that tasks can be compared.

    A task of tables has its name for a text: a table is called the same wherever it is played, and
    reading it may take long.

    Args:
        source: Where tasks come from.
        split: Which of them.
        count: How many are told of a split without an end, from its first on.
    """
    if isinstance(source, BatchedTasks):
        return {name: name for name in source.splits[split]}
    size = source.size(split)
    tasks = (source.get(split, index) for index in range(count if size is None else size))
    return {task.id: task.prompt for task in tasks}


def choose_task(source: TaskSource, rng: np.random.Generator, options: Mapping[str, Any]) -> Task:
    """Return the task that the options of a `reset` ask for, or draw one of their split.

    Args:
        source: Where tasks come from.
        rng: Draws an index where the options name no task.
        options: May hold `split`, by default `"train"`, and `task`, an id or an index. A task that
            is named by its id may be of either split, unless `split` is given.

    Raises:
        TaskError: there is no such split or task, or the task is of the other split.
    """
    if not isinstance(options, Mapping):
        raise TaskError(f"options are {options!r:.80}; give a table such as {{'split': 'test'}}")
    split: Split = options.get("split", "train")
    if split not in SPLITS:
        raise TaskError(f"options: split is {split!r:.80}; it must be 'train' or 'test'")
    wanted = options.get("task")
    if isinstance(wanted, str):
        return _of_split(source.find(wanted), options)
    if wanted is None:
        wanted = rng.integers(source.size(split) or 1 << 31)
    if not is_index(wanted):
        raise TaskError(f"options: task is {wanted!r:.80}; it must be an id or an index from 0")
    return source.get(split, int(wanted))


def _of_split(task: Task, options: Mapping[str, Any]) -> Task:
    if options.get("split", task.split) != task.split:
        raise TaskError(
            f"{task.id} is a {task.split} task, and split is {options['split']!r}; leave split out "
            f"or give {task.split!r}"
        )
    return task


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
