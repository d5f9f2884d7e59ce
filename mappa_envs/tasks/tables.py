"""Tasks of tables that ship inside installed packages: half a benchmark that needs no download."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mappa_envs.errors import TaskError
from mappa_envs.tasks.catalogue import EXTRA, TableSpec, load_catalogue
from mappa_envs.tasks.source import no_such
from mappa_envs.tasks.stratified import InBatches, stratified_split
from mappa_envs.types import Split, Task

HELD_OUT = 0.25
"""The share of the tasks of each type that is for tests only."""
LEVELS = (0, 1, 2, 3)
_READERS = {"pandas": "pandas", "sklearn": "scikit-learn"}
"""What reads and judges tables, by module."""


class TableTasks(InBatches):
    """A `TaskSource` of the tables of a catalogue; a table is in one split only.

    The test split has each of its tasks once, the types mixed. The train split is dealt out in
    batches, each with classification and regression in their ratio, so a task of the rarer type can
    come twice in it.
    Files and rules are made when a task is first asked for, and are the same in every process.

    Args:
        catalogue: A file such as `scenarios/dsbench/tables.toml`.
        seed: Decides the splits, the rows and the corruptions.
        level: How corrupt the tables are: 0 (not at all) to 3.
        batch_size: Tasks that are played together, e.g. those of a training iteration.
        only: Ids of the tasks to use; all of them when empty.

    Raises:
        TaskError: the catalogue is wrong, a package is not installed.
    """

    def __init__(
        self,
        catalogue: Path,
        *,
        seed: int = 0,
        level: int = 1,
        batch_size: int = 4,
        only: Sequence[str] = (),
    ) -> None:
        entries = load_catalogue(catalogue)
        for name in only:
            if name not in entries:
                raise TaskError(f"tables.only: {no_such('task', name, entries)}")
        if level not in LEVELS:
            raise TaskError(f"level of the tables is {level!r}; give a number from 0 to 3")
        self._answer_folders = tuple(sorted({f for e in entries.values() for f in _folders(e)}))
        self._specs = {name: entries[name] for name in only or entries}
        check_installed(self._specs)
        self._seed, self._level = seed, level
        types = {name: spec.task_type for name, spec in self._specs.items()}
        super().__init__(_splits(self._specs, seed), types, batch_size, seed)
        self._made: dict[str, Task] = {}
        self._lock = threading.Lock()

    @property
    def answer_folders(self) -> tuple[str, ...]:
        """Where the catalogue's tables are installed: programs of agents must not see that.

        All of them, since one package may hold the table of another's task as well.
        """
        return self._answer_folders

    def find(self, task_id: str) -> Task:
        """Return the task of that id, from either split."""
        if task_id not in self._specs:
            raise no_such("task", task_id, self._specs)
        with self._lock:
            if task_id not in self._made:
                self._made[task_id] = self._make(task_id)
            return self._made[task_id]

    def _make(self, task_id: str) -> Task:
        from mappa_envs.tasks.table_files import make_task

        split: Split = "train" if task_id in self._splits["train"] else "test"
        return make_task(task_id, self._specs[task_id], split, self._level, self._seed)


def check_installed(specs: Mapping[str, TableSpec]) -> None:
    """Check that the packages of entries are there; none of them is imported.

    Raises:
        TaskError: one is not; the message names the first task that needs it, and the extra.
    """
    for name, spec in specs.items():
        for module, package in (*_READERS.items(), (spec.module, spec.package)):
            if importlib.util.find_spec(module) is None:
                raise TaskError(
                    f"task {name!r} needs the package {package}, which is not installed; "
                    f"pip install '{EXTRA}'"
                )


def _folders(spec: TableSpec) -> Iterator[str]:
    """Yield the real path of what has a table in it, if installed: a package, or its data."""
    found = importlib.util.find_spec(spec.module)
    for place in (found.submodule_search_locations or ()) if found else ():
        package = Path(place).resolve()
        yield str(package / "datasets" / "data" if spec.loader else package)


def _splits(specs: Mapping[str, TableSpec], seed: int) -> dict[Split, tuple[str, ...]]:
    names = tuple(specs)
    kept, held = stratified_split([specs[name].task_type for name in names], HELD_OUT, seed)
    return {"train": tuple(names[p] for p in kept), "test": tuple(names[p] for p in held)}
