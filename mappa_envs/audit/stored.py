"""Reads stored episodes: where they lie, row by row, and as the turns that they were.

A run is a directory with `config.json` and `episodes/*.jsonl`, or one file of episodes. Rows are
read one at a time, so a run may be larger than the memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from mappa_envs.actions import parse_action
from mappa_envs.errors import AuditError, did_you_mean
from mappa_envs.sandbox.protocol import FileChanges, FileRecord
from mappa_envs.types import Message, Outcome, ToolCall, ToolResult, Turn

Record = Mapping[str, Any]
T = TypeVar("T")
_NAME = re.compile(r"(?P<phase>train|eval)-(?P<iteration>\d{4,})(?:-(?P<mode>[a-z]+))?")


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """One file of episodes, e.g. `EpisodeFile(Path("run/episodes/eval-0004-greedy.jsonl"))`."""

    path: Path

    @property
    def name(self) -> str:
        """What `mappa show --from` calls it."""
        return self.path.stem

    @property
    def phase(self) -> Literal["train", "eval", "other"]:
        """What the episodes were played for; any name but a run's own is `"other"`."""
        match = _NAME.fullmatch(self.name)
        if match is None or (match["phase"] == "train") != (match["mode"] is None):
            return "other"
        return "train" if match["phase"] == "train" else "eval"

    @property
    def mode(self) -> str:
        """How actions were drawn in an evaluation, `"sampled"` or `"greedy"`; else empty."""
        match = _NAME.fullmatch(self.name)
        return (match["mode"] or "") if match and self.phase == "eval" else ""

    @property
    def iteration(self) -> int | None:
        """The iteration, counted from 0, or how many came before an evaluation."""
        match = _NAME.fullmatch(self.name)
        return int(match["iteration"]) if match and self.phase != "other" else None


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """One row of a file, with where it stands."""

    file: EpisodeFile
    line: int
    """From 1."""
    number: int
    """Position among the file's episodes, from 0; what `mappa show --episode` counts."""
    row: Record

    @property
    def place(self) -> str:
        """Names the row in errors."""
        return f"{self.file.path}, line {self.line}"

    def read(self, what: Callable[[Record], T]) -> T:
        """Return what a function reads from the row.

        Raises:
            AuditError: the row is damaged.
        """
        try:
            return what(self.row)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            said = f"lacks {error}" if isinstance(error, KeyError) else f"is damaged: {error}"
            raise AuditError(
                f"{self.place}: the row {said}; mend or delete the line, or play the run again"
            ) from None


@dataclass(frozen=True)
class StoredRun:
    """The files of a run that are looked at."""

    path: Path
    files: tuple[EpisodeFile, ...]
    """Earliest iteration first within a phase."""

    @classmethod
    def open(cls, path: Path, source: str = "") -> StoredRun:
        """Find the episode files of a run directory, or take a single file.

        Args:
            path: The directory or the file.
            source: The name of the one file of a directory to take, e.g. `"train-0003"`; all when
                empty.

        Raises:
            AuditError: there are no episodes, or no file of that name.
        """
        if path.is_file():
            if source:
                raise AuditError(f"--from is {source!r}, and {path} is one file; leave out --from")
            return cls(path, (EpisodeFile(path),))
        if not path.is_dir():
            raise AuditError(f"{path}: there is no such run directory, nor a file of episodes")
        found = sorted((path / "episodes").glob("*.jsonl"), key=_order)
        if not found:
            raise AuditError(
                f"{path}: holds no episodes/*.jsonl; give a run directory or a file of episodes"
            )
        files = tuple(map(EpisodeFile, found))
        if not source:
            return cls(path, files)
        name = source.removesuffix(".jsonl")
        names = [file.name for file in files]
        if name not in names:
            hint = did_you_mean(name, names, "there are")
            raise AuditError(f"{path}: no episodes {name!r}; {hint}")
        return cls(path, (files[names.index(name)],))

    @cached_property
    def config(self) -> Record:
        """The recipe that the run was played with; of a file, that of the run it lies in.

        Raises:
            AuditError: there is none, or it cannot be read.
        """
        folder = self.path.parent.parent if self.path.is_file() else self.path
        path = folder / "config.json"
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AuditError(f"{path}: cannot be read: {error}") from None
        if not isinstance(table, dict):
            raise AuditError(f"{path}: is {table!r:.80}; it must be a table")
        return table

    @property
    def scored_files(self) -> tuple[EpisodeFile, ...]:
        """What training learnt from; every file where there is none of training."""
        return tuple(file for file in self.files if file.phase == "train") or self.files

    @property
    def evaluations(self) -> tuple[EpisodeFile, ...]:
        """The evaluations of held-out tasks."""
        return tuple(file for file in self.files if file.phase == "eval")


def stored_episodes(file: EpisodeFile) -> Iterator[StoredEpisode]:
    """Yield the episodes of a file; a last line that a crash cut short is left out.

    Raises:
        AuditError: a line is no JSON table.
    """
    number = 0
    with file.path.open("rb") as lines:
        for line, content in enumerate(lines, start=1):
            if not content.strip():
                continue
            try:
                row = json.loads(content)
            except (ValueError, RecursionError) as error:
                if not content.endswith(b"\n"):
                    return
                raise AuditError(f"{file.path}, line {line}: is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise AuditError(f"{file.path}, line {line}: is {row!r:.80}; an episode is a table")
            yield StoredEpisode(file, line, number, row)
            number += 1


def role_of(action: Record) -> str:
    """Return the role of an action: what the ledger says, or the agent's name without its number.

    >>> role_of({"agent": "coder_0", "ledger": None})
    'coder'
    """
    entry = action.get("ledger") or {}
    name, _, number = str(action["agent"]).rpartition("_")
    return str(entry.get("role") or (name if number.isdigit() and name else action["agent"]))


def turns_of(row: Record) -> tuple[Turn, ...] | None:
    """Return the turns of an episode, oldest first; None where its environment told of none.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the row is damaged.
    """
    actions = row["actions"]
    if not actions or any(action.get("turn") is None for action in actions):
        return None
    return tuple(turn_of(action) for action in actions)


def turn_of(action: Record) -> Turn:
    """Return the turn that a stored action is of; equal to the one that was played.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the record is damaged.
    """
    turn = action["turn"]
    text = str(action["action"])
    return Turn(
        step=int(turn["step"]),
        agent=str(action["agent"]),
        role=role_of(action),
        index=int(turn["index"]),
        messages=tuple(
            Message(role=message["role"], content=message["content"])
            for message in action["messages"]
        ),
        action=text,
        visible=parse_action(text).visible,
        tool_results=tuple(map(_result_of, turn["tool_results"])),
        feedback=turn["feedback"],
        handed_off=bool(turn["handed_off"]),
        files=tuple(FileRecord(**file) for file in turn["files"]),
        missing=tuple(turn["missing"]),
        facts=dict(turn["facts"]),
    )


def outcome_of(row: Record) -> Outcome | None:
    """Return the outcome of an episode; None where it was cut off before it.

    Raises:
        KeyError, TypeError, ValueError: the row is damaged.
    """
    if (said := row["outcome"]) is None:
        return None
    return Outcome(
        score=float(said["score"]),
        verdict=said["verdict"],
        reason=said["reason"],
        answer=said["answer"],
        details=dict(said.get("details", {})),
    )


def _result_of(record: Record) -> ToolResult:
    return ToolResult(
        call=ToolCall(record["tool"], record["source"], record["error"]),
        output=record["output"],
        stdout=record["stdout"],
        exit_code=record["exit_code"],
        limit_hit=record["limit_hit"],
        files=FileChanges(**{name: tuple(paths) for name, paths in record["files"].items()}),
    )


def _order(path: Path) -> tuple[str, int, str]:
    file = EpisodeFile(path)
    return file.phase, file.iteration or 0, file.name
