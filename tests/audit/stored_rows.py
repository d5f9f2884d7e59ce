"""Stored episodes made by hand: rows as a run directory holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mappa_envs.audit.actions import Action, read_actions
from mappa_envs.audit.stored import StoredRun
from mappa_envs.records import turn_record
from mappa_envs.types import Turn

Row = dict[str, Any]


def entry(score: float | None = 5.0, **fields: Any) -> Row:
    """A ledger entry."""
    status = "unscored" if score is None else "scored"
    return {"status": status, "score": score, "reward": 0.0, "coach": "rubric", **fields}


def ran(exit_code: int | None = 0, timed_out: bool = False, source: str = "print(1 + 1)") -> Row:
    """A tool result."""
    return {
        "tool": "python",
        "source": source,
        "error": None,
        "output": "2",
        "stdout": "2\n",
        "exit_code": exit_code,
        "timed_out": timed_out,
        "limit_hit": "wall_clock" if timed_out else None,
        "files": {name: [] for name in ("created", "changed", "deleted", "restored", "removed")},
    }


def action(
    score: float | None = 5.0,
    text: str = "Two.",
    agent: str = "coder_0",
    *,
    tokens: int | None = 4,
    results: Sequence[Row] = (),
    missing: Sequence[str] = (),
    handed_off: bool = True,
    ledger: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Row:
    """A stored action; its step and index are given by `episode`."""
    return {
        "agent": agent,
        "index": 0,
        "messages": [{"role": "user", "content": "What is 1 + 1?"}],
        "action": text,
        "finish_reason": "stop",
        "prompt_tokens": 9,
        "tokens": tokens,
        "reward": None,
        "ledger": entry(score, **(ledger or {})),
        "turn": {
            "step": 0,
            "index": 0,
            "handed_off": handed_off,
            "feedback": None,
            "missing": list(missing),
            "files": [],
            "facts": {},
            "tool_results": list(results),
        },
        **fields,
    }


def episode(
    *actions: Row, outcome: float | None = 1.0, task: str = "t-0", kind: str | None = None
) -> Row:
    """A stored episode."""
    for step, each in enumerate(actions):
        if each["turn"] is not None:
            each["turn"]["step"] = step
    told = (
        None if outcome is None else {"score": outcome, "verdict": "", "reason": "", "answer": None}
    )
    typed = {} if kind is None else {"task_type": kind}
    return {
        "index": 0,
        "seed": 7,
        "options": {"split": "train", "task": 0},
        "task": {"id": task, "split": "train", **typed},
        "outcome": told,
        "actions": list(actions),
    }


def action_of(turn: Turn, score: float | None = 5.0) -> Row:
    """The stored action of a turn, as it comes back from a file."""
    row = {
        "agent": turn.agent,
        "index": turn.index,
        "messages": [dict(message) for message in turn.messages],
        "action": turn.action,
        "tokens": 4,
        "ledger": entry(score, role=turn.role),
        "turn": turn_record(turn),
    }
    back: Row = json.loads(json.dumps(row))
    return back


def write_run(folder: Path, files: Mapping[str, Sequence[Row]]) -> Path:
    """Write a run directory with episode files; return its path."""
    (folder / "episodes").mkdir(parents=True)
    for name, rows in files.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "episodes" / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return folder


def actions_in(folder: Path, files: Mapping[str, Sequence[Row]]) -> list[Action]:
    """The actions of training, or of all files, as an audit reads them."""
    return list(read_actions(StoredRun.open(write_run(folder, files)).scored_files))


def plain(value: Any) -> Any:
    """A dataclass as plain data."""
    return asdict(value)
