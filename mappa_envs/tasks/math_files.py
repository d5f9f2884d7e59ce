"""Math problems from `.json` files (a list of objects) and `.jsonl` files (an object a line).

Each object has `prompt` and `answer`, may have `id`, and keeps its other keys as metadata:

    {"prompt": "What is 2 + 3?", "answer": 5, "id": "easy-1", "year": 2020}
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappa_envs.errors import TaskError
from mappa_envs.tasks.source import check_position, no_such
from mappa_envs.types import Split, Task

logger = logging.getLogger(__name__)

MAX_HELD_OUT = 64
_INTEGER = re.compile(r"-?\d+")
_ALTERNATIVES = re.compile(r"(.+?)\s*\([^()]*\baccepted\b[^()]*\)", re.DOTALL)


def load_math_file(path: Path) -> tuple[Task, ...]:
    """Load the problems of one file, in its order.

    Rows without `id` are called by file and row (the line in `.jsonl`), e.g. `aime_2025-3`. An
    answer such as `080 or 081 (both were accepted)` gives two gold answers; 142.0 gives "142".

    Raises:
        TaskError: the file or a row cannot be used; the message names file, row, value and fix.
    """
    path = Path(path)
    tasks: list[Task] = []
    rows: dict[str, int] = {}
    for number, row in _rows(path, _read(path)):
        where = f"{path}, {'line' if path.suffix == '.jsonl' else 'row'} {number}"
        task = _task(where, row, f"{path.stem}-{number}")
        if task.id in rows:
            raise TaskError(
                f"{where}: id {_short(task.id)} is already that of {rows[task.id]}; ids must differ"
            )
        rows[task.id] = number
        tasks.append(task)
    if not tasks:
        raise TaskError(f"{path}: the file holds no problems; give at least one")
    return tuple(tasks)


class FileMath:
    """A `TaskSource` over files; a seed shuffles each split once, and no problem comes twice.

    Without a test file, a tenth of the rows (1 to 64) is held out; with the same file for both all
    are, and there is nothing to train on. A problem text is in one split
    only: rows of `train` whose text is in `test` too are left out.

    Raises:
        TaskError: a file or row cannot be used, or a split would be empty.
    """

    def __init__(self, train: Path, test: Path | None = None, seed: int = 0) -> None:
        learned = load_math_file(train)
        if test is None:
            learned, held_out = _hold_out(learned, seed, str(train))
        elif test == train:
            learned, held_out = (), learned
        else:
            held_out = load_math_file(test)
            learned = _without(learned, held_out, f"{train} and {test}")
        self._tasks: dict[str, tuple[Task, ...]] = {
            "train": _shuffled(learned, seed),
            "test": tuple(replace(task, split="test") for task in _shuffled(held_out, seed)),
        }
        self._by_id = {task.id: task for tasks in self._tasks.values() for task in tasks}

    def size(self, split: Split) -> int:
        """Return how many problems the split holds."""
        check_position(split)
        return len(self._tasks[split])

    def get(self, split: Split, index: int) -> Task:
        """Return problem `index` of the shuffled split, starting over at its end."""
        check_position(split, index)
        tasks = self._tasks[split]
        if not tasks:
            raise TaskError(
                "split 'train' has no problem: tasks and test_tasks are the same file, which is "
                "all held out; name another in tasks"
            )
        return tasks[index % len(tasks)]

    def find(self, task_id: str) -> Task:
        """Return the problem of that id, from either split."""
        if task_id not in self._by_id:
            raise no_such("task", task_id, self._by_id)
        return self._by_id[task_id]


def _read(path: Path) -> str:
    if path.suffix not in (".json", ".jsonl"):
        raise TaskError(f"{path}: the name ends in {path.suffix!r}; give a .json or .jsonl file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise TaskError(f"{path}: there is no such file; check the path") from None
    except IsADirectoryError:
        raise TaskError(f"{path}: this is a directory; give a .json or .jsonl file") from None
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    except OSError as error:
        raise TaskError(f"{path}: cannot be read ({error.strerror}); check the file") from None


def _rows(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    if not text.strip():
        raise TaskError(f"{path}: the file is empty; give at least one problem")
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield number, _parse(f"{path}, line {number}", line)
        return
    rows = _parse(str(path), text)
    if not isinstance(rows, list):
        raise TaskError(
            f"{path}: holds a JSON {_kind(rows)}; give a list of objects with prompt and answer"
        )
    yield from enumerate(rows, start=1)


def _parse(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        near = _short(text[error.pos :].strip() or "the end")
        raise TaskError(f"{where}: invalid JSON at {place}, near {near}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: JSON that cannot be used ({error}); mend the value") from None


def _task(where: str, row: Any, default_id: str) -> Task:
    if not isinstance(row, dict):
        raise TaskError(
            f"{where}: {_short(row)} is a JSON {_kind(row)}; give an object with prompt and answer"
        )
    for key in ("prompt", "answer"):
        if key not in row:
            raise TaskError(f"{where}: {_short(row)} lacks {key!r}; add it")
    rest = {key: value for key, value in row.items() if key not in ("prompt", "answer", "id")}
    name = _id(where, row.get("id"), default_id)
    return Task(name, _prompt(where, row["prompt"]), _answers(where, row["answer"]), rest)


def _id(where: str, value: Any, default: str) -> str:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise TaskError(f"{where}: id is {_short(value)}; give a text or a whole number, or none")
    return str(value)


def _prompt(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{where}: prompt is {_short(value)}; give the problem's text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        bad = ascii(value[error.start])
        raise TaskError(f"{where}: prompt holds {bad}, half a character; remove it") from None
    return value


def _answers(where: str, value: Any) -> tuple[str, ...]:
    """Return the gold answers one value stands for."""
    if isinstance(value, float) and math.isfinite(value):
        value = int(value) if value.is_integer() else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and math.isfinite(value):
        return (str(value),)
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{where}: answer is {_short(value)}; give a text or a finite number")
    noted = _ALTERNATIVES.fullmatch(value.strip())
    if noted is None:
        several = re.split(r"\s+or\s+", value.strip())
        return tuple(several) if all(map(_INTEGER.fullmatch, several)) else (value.strip(),)
    return tuple(part.strip() for part in re.split(r"\s+or\s+|\s*,\s*", noted[1]) if part.strip())


def _hold_out(
    tasks: Sequence[Task], seed: int, where: str
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Hold out whole groups of rows with the same text, in an order the seed decides."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(_text(task), []).append(task)
    if len(groups) < 2:
        raise TaskError(
            f"{where}: the file holds one problem text only, so none can be held out; "
            "add problems or name a test file"
        )
    room = min(MAX_HELD_OUT, max(1, len(tasks) // 10))
    held: set[str] = set()
    for text in sorted(groups, key=lambda text: _digest(seed, text)):
        if len(groups[text]) <= room:
            held.add(text)
            room -= len(groups[text])
    held = held or {min(groups, key=lambda text: len(groups[text]))}
    return (
        tuple(task for task in tasks if _text(task) not in held),
        tuple(task for task in tasks if _text(task) in held),
    )


def _without(learned: Sequence[Task], held_out: Sequence[Task], where: str) -> tuple[Task, ...]:
    texts, ids = {_text(task) for task in held_out}, {task.id for task in held_out}
    kept = tuple(task for task in learned if _text(task) not in texts)
    if not kept:
        raise TaskError(f"{where}: every training problem is a test problem too; give others")
    for task in kept:
        if task.id in ids:
            raise TaskError(
                f"{where}: id {_short(task.id)} stands for different problems in the two files; "
                "ids must differ"
            )
    if len(kept) < len(learned):
        left_out = len(learned) - len(kept)
        logger.warning("%s: left out %d training rows that are test rows too", where, left_out)
    return kept


def _shuffled(tasks: Sequence[Task], seed: int) -> tuple[Task, ...]:
    return tuple(sorted(tasks, key=lambda task: _digest(seed, task.id)))


def _digest(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}/{text}".encode(errors="surrogatepass")).digest()


def _text(task: Task) -> str:
    return " ".join(task.prompt.split())


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _short(value: Any) -> str:
    shown = ascii(value) if isinstance(value, str) else json.dumps(value, default=str)
    return shown if len(shown) <= 60 else shown[:57] + "..."
