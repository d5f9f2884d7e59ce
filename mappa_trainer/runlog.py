"""A run is a directory; everything that reads a run reads these files and nothing else.

    config.json            the effective recipe
    tasks.json             the ids of the training and the test tasks, where there is a fixed set;
                           fingerprints of what is trained on, where the environment tells texts
    metrics.jsonl          one row of numbers for each iteration
    costs.jsonl            what judging cost, one row for each agent of each phase that was played
    episodes/NAME.jsonl    one row for each episode: train-0003, eval-0005-greedy, ...
    episodes/NAME.unfinished
                           an evaluation that was stopped: what it is of, then its episodes so far
    tensorboard/           the same numbers as events
    checkpoints/           see `mappa_trainer.checkpoint`

Rows are appended to metrics.jsonl; every other file is written as a whole.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mappa_trainer.errors import RecipeError, RunDirectoryError
from mappa_trainer.recipe import Recipe, parse_recipe
from mappa_trainer.types import Episode, Transition

Record = Mapping[str, Any]
TaskIds = Mapping[str, Sequence[str]]
"""The ids of the tasks of each split."""

_TRAINED_ON = "trained_on"
_TASKS: TypeAdapter[dict[str, list[str] | dict[str, str]]] = TypeAdapter(
    dict[str, list[str] | dict[str, str]]
)
_TRAINING = re.compile(r"train-(\d{4,})")
_UNFINISHED = "config.json.partial"


class RunDirectory:
    """Writes and reads the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> RunDirectory:
        """Make a new run directory.

        Raises:
            RunDirectoryError: the path holds something already, or cannot be written.
        """
        check_free(path)
        try:
            (path / "episodes").mkdir(parents=True, exist_ok=True)
            text = recipe.model_dump_json(indent=2)
            (path / _UNFINISHED).write_text(text + "\n", encoding="utf-8")
            os.replace(path / _UNFINISHED, path / "config.json")
        except OSError as error:
            raise RunDirectoryError(
                f"{path}: cannot be written: {error.strerror}; name another place with --out"
            ) from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open an existing run directory.

        Raises:
            RunDirectoryError: there is no run at the path.
        """
        if not (path / "config.json").is_file() or not (path / "episodes").is_dir():
            raise RunDirectoryError(
                f"{path}: is no run directory, it lacks config.json or episodes"
            )
        return cls(path)

    def recipe(self) -> Recipe:
        """Return the recipe the run was started with.

        Raises:
            RecipeError: config.json is damaged.
        """
        path = self.path / "config.json"
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RecipeError(f"{path}: cannot be read: {error}") from None
        return parse_recipe(table, str(path))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training the run for the length of a `with` block.

        Raises:
            RunDirectoryError: one is at it.
        """
        with (self.path / "config.json").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunDirectoryError(
                    f"{self.path}: another process is training this run; wait for it, or end it"
                ) from None
            yield

    def is_evaluation(self) -> bool:
        """Return whether `mappa eval` made the directory, and nothing was ever trained in it."""
        names = self.episode_names()
        trained = any(name.startswith(("eval-", "train-")) for name in names)
        kept = any((self.path / "episodes").glob("*.unfinished"))
        return not trained and not self.metrics() and (bool(names) or kept)

    def write_task_ids(self, ids: TaskIds) -> None:
        """Write tasks.json: the ids of the tasks of each split."""
        self._write_tasks(dict(ids))

    def check_task_ids(self, ids: TaskIds) -> None:
        """Compare the tasks of each split with those that the run began with.

        Raises:
            RunDirectoryError: they are others, so that test tasks may have been trained on, or
                tasks.json is damaged.
        """
        path = self.path / "tasks.json"
        began_with = {key: own for key, own in self._tasks().items() if key != _TRAINED_ON}
        for split in sorted(began_with.keys() | ids.keys()):
            if moved := set(began_with.get(split, ())) ^ set(ids.get(split, ())):
                raise RunDirectoryError(
                    f"{path}: the {split} tasks are no longer those that the run began with: "
                    f"{', '.join(sorted(moved))} came or went; restore the task files or packages"
                )

    def write_trained_on(self, fingerprints: Mapping[str, str]) -> None:
        """Keep what tells the text of each training task, by id, in tasks.json."""
        self._write_tasks({**self._tasks(), _TRAINED_ON: dict(fingerprints)})

    def trained_on(self) -> dict[str, str] | None:
        """Return what tells the text of each training task, by id; None where nobody kept it.

        Raises:
            RunDirectoryError: tasks.json is damaged.
        """
        found = self._tasks().get(_TRAINED_ON)
        return found if isinstance(found, dict) else None

    def _tasks(self) -> dict[str, Any]:
        path = self.path / "tasks.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            return _TASKS.validate_python(found)
        except (OSError, ValueError) as error:
            problem = str(error).replace("\n", " ")
            raise RunDirectoryError(f"{path}: cannot be read: {problem}") from None

    def _write_tasks(self, tasks: Mapping[str, Any]) -> None:
        (self.path / "tasks.json").write_text(json.dumps(tasks, indent=2) + "\n", encoding="utf-8")

    def forget_after(self, iterations: int) -> None:
        """Drop what was logged beyond `iterations` iterations, before they are done again."""
        rows = [row for row in self.metrics() if row["iteration"] < iterations]
        _write_atomically(self.path / "metrics.jsonl", rows)
        for iteration, name in self._training_episodes():
            if iteration >= iterations:
                (self.path / "episodes" / f"{name}.jsonl").unlink()

    def add_metrics(self, row: Record) -> None:
        """Append one row to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl, oldest first."""
        path = self.path / "metrics.jsonl"
        rows = list(_read_rows(path)) if path.is_file() else []
        for place, row in rows:
            if not isinstance(row.get("iteration"), int):
                raise RunDirectoryError(f"{place}: has no number of its iteration; delete the line")
        return [row for _, row in rows]

    def add_costs(self, rows: Sequence[Record]) -> None:
        """Add rows to costs.jsonl, from which nothing is ever dropped: what is spent is spent."""
        if rows:
            _write_atomically(self.path / "costs.jsonl", [*self.costs(), *rows])

    def costs(self) -> list[dict[str, Any]]:
        """Return the rows of costs.jsonl, oldest first; a phase played anew is there twice."""
        path = self.path / "costs.jsonl"
        return [row for _, row in _read_rows(path)] if path.is_file() else []

    def write_episodes(self, name: str, episodes: Iterable[Episode]) -> None:
        """Write episodes/NAME.jsonl as a whole."""
        rows = map(episode_record, episodes)
        _write_atomically(self.path / "episodes" / f"{name}.jsonl", rows)

    def unfinished(self, name: str, what: Record) -> list[Record]:
        """Return the first episodes of an evaluation that was stopped; none where there are none.

        Args:
            name: Of the episode file.
            what: What decides the evaluation.

        Raises:
            RunDirectoryError: what was stopped is another evaluation, or is damaged.
        """
        path = self._unfinished(name)
        if not path.is_file():
            return []
        rows = [row for _, row in _read_rows(path)]
        if rows[:1] != [what]:
            raise RunDirectoryError(
                f"{path}: is an evaluation of the same name that was stopped, with other settings; "
                "go on with those, or delete the file"
            )
        return list(rows[1:])

    def keep_unfinished(self, name: str, what: Record, records: Sequence[Record]) -> None:
        """Keep the episodes of an evaluation so far; see `unfinished`."""
        _write_atomically(self._unfinished(name), [what, *records])

    def finish(self, name: str, records: Sequence[Record]) -> None:
        """Write episodes/NAME.jsonl as a whole, in place of what was unfinished."""
        _write_atomically(self.path / "episodes" / f"{name}.jsonl", records)
        self._unfinished(name).unlink(missing_ok=True)

    def _unfinished(self, name: str) -> Path:
        return self.path / "episodes" / f"{name}.unfinished"

    def episodes(self, name: str) -> list[dict[str, Any]]:
        """Return the episodes of episodes/NAME.jsonl.

        Raises:
            RunDirectoryError: there is no such file, or a line of it is no JSON table.
        """
        return [row for _, row in self.episodes_with_places(name)]

    def episodes_with_places(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the episodes of episodes/NAME.jsonl, each with its file and line for errors.

        Raises:
            RunDirectoryError: see `episodes`.
        """
        name = name.removesuffix(".jsonl")
        if name not in self.episode_names():
            known = ", ".join(self.episode_names()) or "none"
            raise RunDirectoryError(f"{self.path}: no episodes {name!r}; there are: {known}")
        return list(_read_rows(self.path / "episodes" / f"{name}.jsonl"))

    def episode_names(self) -> list[str]:
        """Return the names of the episode files, e.g. `["eval-0000-greedy", "train-0000"]`."""
        return sorted(path.stem for path in (self.path / "episodes").glob("*.jsonl"))

    def training_names(self) -> list[str]:
        """Return the names of the files that training wrote, earliest iteration first."""
        return [name for _, name in self._training_episodes()]

    def _training_episodes(self) -> list[tuple[int, str]]:
        found = [_TRAINING.fullmatch(name) for name in self.episode_names()]
        return sorted((int(match[1]), match[0]) for match in found if match)


def check_free(path: Path) -> None:
    """Check that a run may be made at a path.

    Raises:
        RunDirectoryError: something is there already, or nobody may look.
    """
    try:
        free = not path.exists() or _is_free(path)
    except OSError as error:
        raise RunDirectoryError(
            f"{path}: cannot be read: {error.strerror}; name another place with --out"
        ) from None
    if not free:
        raise RunDirectoryError(
            f"{path}: exists already and is not empty; name another with --out, or "
            f"continue it with --resume {path}"
        )


def _is_free(path: Path) -> bool:
    """Whether a directory is empty, or holds what a crash left of one that was being made."""
    if not path.is_dir():
        return False
    left = {entry.name for entry in path.iterdir()} <= {"episodes", _UNFINISHED}
    return left and not any((path / "episodes").glob("*"))


def episode_record(episode: Episode) -> dict[str, Any]:
    """Return an episode as JSON-ready data."""
    return {
        "index": episode.index,
        "seed": episode.seed,
        "options": dict(episode.options),
        "task": dict(episode.task),
        "outcome": episode.outcome,
        "returns": dict(episode.returns),
        "end_reasons": dict(episode.end_reasons),
        "truncated": episode.truncated,
        "actions": [_action_record(transition) for transition in episode.transitions],
    }


def _action_record(transition: Transition) -> dict[str, Any]:
    generation = transition.generation
    return {
        "agent": transition.agent,
        "index": transition.index,
        "messages": [dict(message) for message in transition.messages],
        "action": generation.text,
        "finish_reason": generation.finish_reason,
        "prompt_tokens": generation.prompt_tokens,
        "tokens": generation.tokens,
        "weight_version": generation.weight_version,
        "reward": transition.reward,
        "ledger": transition.ledger,
        "turn": transition.turn,
    }


def _read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a JSON-lines file, each with its place, e.g. `"a.jsonl, line 3"`.

    A last line cut short by a crash is left out.
    """
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return
            raise RunDirectoryError(f"{place}: is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise RunDirectoryError(f"{place}: is {row!r:.80}; it must be a table")
        yield place, row


def _write_atomically(path: Path, rows: Iterable[Record]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    os.replace(partial, path)
