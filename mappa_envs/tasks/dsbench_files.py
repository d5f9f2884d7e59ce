"""DSBench's modelling tasks from a copy of its files that the user has; none of them ship here.

A copy is a folder with, for each competition:

    data_resplit/NAME/train.csv, test.csv, sample_submission.csv
    answers/NAME/test_answer.csv

and maybe `data.json`, one JSON object with a `name` a line: the competitions that the copy is to
have. What is known of each competition is data: `scenarios/dsbench/benchmark.toml`. Texts come from
MAPPA's lists: its `.jsonl` task lists and its JSON file of cleaned prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.grading import TaskType
from mappa_envs.outcomes.metrics import Direction
from mappa_envs.tasks.catalogue import checked_entries
from mappa_envs.tasks.source import SPLITS, no_such
from mappa_envs.tasks.stratified import InBatches
from mappa_envs.types import Split, Task

WORKSPACE_FILES = ("train.csv", "test.csv", "sample_submission.csv")
_MOST_FILES = 5
"""How many files a message lists."""
_COMPLETE = "add them, or name the competitions that you have in tables.only"


class Competition(BaseModel):
    """What is known of one competition; see the head of `benchmark.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    split: Split
    task_type: TaskType
    metric: str
    direction: Direction
    id_column: str
    targets: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    baseline: float | None = None
    """DSBench's published value of a submission that knows nothing; None where there is none."""
    best: float | None = None
    """DSBench's published value of the right answers."""
    prompt: Literal["", "wrong", "missing"] = ""
    """What is amiss with the entry in MAPPA's cleaned prompts."""
    note: str = ""


_COMPETITIONS = TypeAdapter(dict[str, Competition])


def load_benchmark(path: Path) -> dict[str, Competition]:
    """Read what is known of the competitions, by name.

    Raises:
        TaskError: the file cannot be read, or an entry is wrong.
    """
    return checked_entries(path, _COMPETITIONS)


def load_task_list(path: Path) -> dict[str, str]:
    """Read one of MAPPA's task lists, JSON lines: the text of each task by its id.

    Raises:
        TaskError: the file cannot be read, or a line is no task.
    """
    texts = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if line.strip():
            row = _json(f"{path}, line {number}", line)
            try:
                texts[str(row["metadata"]["task_id"])] = str(row["prompt"])
            except (KeyError, TypeError):
                raise TaskError(
                    f"{path}, line {number}: {line!r:.60} lacks prompt or metadata.task_id; "
                    "give a line of a MAPPA task list"
                ) from None
    return texts


def load_cleaned_prompts(path: Path, benchmark: Mapping[str, Competition]) -> dict[str, str]:
    """Read MAPPA's cleaned prompts by task id, without those that are known to be wrong.

    Raises:
        TaskError: the file cannot be read, or is no such table.
    """
    table = _json(str(path), _text(path))
    try:
        texts = {str(name): str(entry["cleaned_prompt"]) for name, entry in table.items()}
    except (AttributeError, KeyError, TypeError):
        raise TaskError(
            f"{path}: is no table of prompts; give an object with a cleaned_prompt for each task id"
        ) from None
    return {
        name: text
        for name, text in texts.items()
        if name in benchmark and not benchmark[name].prompt
    }


def names_in(root: Path, benchmark: Mapping[str, Competition]) -> tuple[str, ...]:
    """Return the competitions that a copy is to have: those of `data.json`, or all without one.

    Raises:
        TaskError: `data.json` cannot be read, has a line that is no object, or names none of them.
    """
    path = root / "data.json"
    if not path.exists():
        return tuple(benchmark)
    lines = enumerate(_text(path).splitlines(), start=1)
    listed = {_name(f"{path}, line {n}", line) for n, line in lines if line.strip()}
    names = tuple(name for name in benchmark if name in listed)
    if not names:
        raise TaskError(f"{path}: names no competition of the benchmark; give its own data.json")
    return names


def check_complete(root: Path, names: Sequence[str]) -> None:
    """Check that a copy has the files of the competitions of those names.

    Raises:
        TaskError: its folder is none, or files are missing. The message names the first five, and
            `problems` has a line for each competition that names all of its own.
    """
    if not root.is_dir():
        what = "is a file" if root.exists() else "there is no such folder"
        raise TaskError(f"{root}: {what}; give the folder of a copy of DSBench")
    missing = {name: own for name in names if (own := missing_files(root, [name]))}
    if not missing:
        return
    faults = [_fault(root, path) for own in missing.values() for path in own]
    are = "1 file is" if len(faults) == 1 else f"{len(faults)} files are"
    more = f" and {len(faults) - _MOST_FILES} more" if len(faults) > _MOST_FILES else ""
    raise TaskError(
        f"{root}: {are} missing: {', '.join(faults[:_MOST_FILES])}{more}; {_COMPLETE}",
        [
            f"{root}: {name}: missing: {', '.join(_fault(root, path) for path in own)}; {_COMPLETE}"
            for name, own in missing.items()
        ],
    )


def missing_files(root: Path, names: Iterable[str]) -> list[Path]:
    """Return the files that a copy lacks, of the competitions of those names."""
    wanted = [path for name in names for path in files_of(root, name).values()]
    return [path for path in wanted if not path.is_file()]


def files_of(root: Path, name: str) -> dict[str, Path]:
    """Return where the files of a competition lie; the answers are `test_answer.csv`."""
    files = {file: root / "data_resplit" / name / file for file in WORKSPACE_FILES}
    return files | {"test_answer.csv": root / "answers" / name / "test_answer.csv"}


class DsbenchFiles(InBatches):
    """A `TaskSource` over a copy of DSBench, with MAPPA's training and held-out tasks.

    A task's files are read when it is asked for, each time anew, since some are hundreds of
    megabytes. The order of the train split is that of `stratified_order`. A split may be empty.

    Args:
        root: The copy's folder.
        benchmark: A file such as `scenarios/dsbench/benchmark.toml`.
        task_lists: MAPPA's task lists.
        cleaned_prompts: MAPPA's cleaned prompts; they are preferred to the texts of the lists.
        only: Names of the competitions to use; those of `names_in` when empty.
        seed: Decides the order of the train split.
        batch_size: Tasks that are played together, e.g. those of a training iteration.

    Raises:
        TaskError: the folder or files in it are missing, see `check_complete`, or cannot be read;
            a name is unknown.
    """

    def __init__(
        self,
        root: Path,
        benchmark: Path,
        *,
        task_lists: Sequence[Path] = (),
        cleaned_prompts: Path | None = None,
        only: Sequence[str] = (),
        seed: int = 0,
        batch_size: int = 4,
    ) -> None:
        known = load_benchmark(benchmark)
        for name in only:
            if name not in known:
                raise TaskError(f"tables.only: {no_such('competition', name, known)}")
        names = tuple(only) or names_in(root, known)
        check_complete(root, names)
        self._root = root
        self._competitions = {name: known[name] for name in names}
        self._texts = _texts(known, task_lists, cleaned_prompts)
        types = {name: each.task_type for name, each in self._competitions.items()}
        super().__init__(_splits(self._competitions), types, batch_size, seed)

    @property
    def answer_folders(self) -> tuple[str, ...]:
        """The copy, which holds the answers: programs of agents must not see it."""
        return (str(self._root.resolve()),)

    def find(self, task_id: str) -> Task:
        """Return the task of that competition, from either split."""
        if task_id not in self._competitions:
            raise no_such("task", task_id, self._competitions)
        from mappa_envs.tasks.dsbench_tables import make_task

        text = self._texts.get(task_id, "")
        return make_task(task_id, self._competitions[task_id], files_of(self._root, task_id), text)


def _fault(root: Path, path: Path) -> str:
    """Return a file's place in its copy, and what is there in its stead."""
    place = str(path.relative_to(root))
    if path.is_dir():
        return f"{place} (it is a folder)"
    if path.is_symlink() and not path.exists():
        return f"{place} (it is a link to nothing)"
    return f"{place} (it is no regular file)" if path.exists() else place


def _texts(
    known: Mapping[str, Competition], task_lists: Sequence[Path], cleaned: Path | None
) -> dict[str, str]:
    texts: dict[str, str] = {}
    for path in task_lists:
        texts |= load_task_list(path)
    return texts | (load_cleaned_prompts(cleaned, known) if cleaned else {})


def _splits(competitions: Mapping[str, Competition]) -> dict[Split, tuple[str, ...]]:
    return {
        split: tuple(name for name, entry in competitions.items() if entry.split == split)
        for split in SPLITS
    }


def _name(where: str, line: str) -> str:
    """Return the name that a line of `data.json` has."""
    match _json(where, line):
        case {"name": str(name)}:
            return name
    raise TaskError(f"{where}: {line!r:.60} is no object with a name; give DSBench's own data.json")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TaskError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: is no JSON ({error}); correct it") from None
