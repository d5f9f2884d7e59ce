"""`mappa show`: one stored episode as a readable conversation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from mappa_trainer.errors import RunDirectoryError
from mappa_trainer.runlog import Record, RunDirectory


def show_episode(path: Path, number: int, source: str | None) -> None:
    """Print an episode.

    Args:
        path: The run directory.
        number: The episode's place in the file, or among all training episodes without one.
        source: The name of an episode file, e.g. `"eval-0000-greedy"`.

    Raises:
        RunDirectoryError: there is no such run, file or episode.
    """
    run = RunDirectory.open(path)
    name, record = _find(run, number, source)
    rich.print(Group(*_render(name, record)))


def _find(run: RunDirectory, number: int, source: str | None) -> tuple[str, Record]:
    names = [source] if source else [n for n in run.episode_names() if n.startswith("train-0")]
    left = number
    for name in names:
        records = run.episodes(name)
        if left < len(records):
            return name, records[left]
        left -= len(records)
    raise RunDirectoryError(
        f"{run.path}: no episode {number}, there are {number - left}; files: "
        f"{', '.join(run.episode_names()) or 'none'}"
    )


def _render(name: str, record: Record) -> Iterator[RenderableType]:
    """Everything an agent wrote is plain text here: no markup in it is followed."""
    yield Text(f"{name}, episode {record['index']}, task {record['task'].get('id')}", "bold")
    for action in record["actions"]:
        yield _panel(action)
    outcome = record["outcome"]
    if outcome is None:
        yield Text(f"no outcome: {record['end_reasons']}", "red")
    else:
        style = "green" if outcome["score"] == 1.0 else "red"
        accepted = " or ".join(outcome.get("accepted", []))
        yield Text(f"outcome {outcome['score']:g}: {outcome['reason']}", style)
        yield Text(f"accepted answer: {accepted}")


def _panel(action: dict[str, Any]) -> Panel:
    parts: list[RenderableType] = [
        Text(f"{message['role']}: {message['content']}", "dim") for message in action["messages"]
    ]
    parts.append(Text(action["action"] or "(empty action)"))
    for result in (action["turn"] or {}).get("tool_results", []):
        parts.append(Text(f"output: {result['output']}", "cyan"))
    parts.append(Text(_verdict(action), "yellow"))
    title = f"{action['agent']}, action {action['index'] + 1}, {action['tokens']} tokens"
    return Panel(Group(*parts), title=title, title_align="left")


def _verdict(action: dict[str, Any]) -> str:
    entry = action["ledger"]
    if entry is None:
        return f"reward {action['reward']}"
    score = "unscored" if entry["score"] is None else f"score {entry['score']:.2f} of 10"
    return f"{score}, reward {entry['reward']:.4f} ({entry['coach']})\n{entry['rationale']}"
