"""`mappa show`: one stored episode as a readable conversation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from mappa_trainer.coaching import coach_line, cost, run_cost_lines
from mappa_trainer.errors import RunDirectoryError
from mappa_trainer.evaluate import is_solved
from mappa_trainer.health import alarms
from mappa_trainer.runlog import Record, RunDirectory

_CONTROLS = (*range(9), *range(11, 32), *range(127, 160))
_TURNS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_COMMANDS = dict.fromkeys((*_CONTROLS, *_TURNS), "\N{REPLACEMENT CHARACTER}")
"""What a terminal would obey, or read in another order; tabs and line ends stay."""


def show_episode(path: Path, number: int, source: str | None) -> None:
    """Print an episode.

    Args:
        path: The run directory.
        number: The episode's place in the file, or without one among all training episodes, or
            among all there are where nothing was trained.
        source: The name of an episode file, e.g. `"eval-0000-greedy"`.

    Raises:
        RunDirectoryError: there is no such run, file or episode, or its row is damaged.
    """
    run = RunDirectory.open(path)
    name, place, record = _find(run, number, source)
    try:
        shown = list(_render(name, record))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else f"is damaged: {error}"
        raise RunDirectoryError(f"{place}: the row {what}; mend it or show another") from None
    shown += [_plain(line) for line in (*_alarms(run), *run_cost_lines(run.costs()))]
    rich.print(Group(*shown))


def _alarms(run: RunDirectory) -> list[str]:
    """Return the alarms that the run raised so far."""
    rows = run.metrics()
    agents = dict.fromkeys(name.partition("/")[0] for row in rows for name in row if "/" in name)
    return [str(alarm) for alarm in alarms(rows, list(agents), run.recipe().alarms)]


def _find(run: RunDirectory, number: int, source: str | None) -> tuple[str, str, Record]:
    """Return the name of the episode's file, the place of its row, and the row."""
    names = [source] if source else run.training_names() or run.episode_names()
    left = number
    for name in names:
        records = run.episodes_with_places(name)
        if left < len(records):
            return name, *records[left]
        left -= len(records)
    raise RunDirectoryError(
        f"{run.path}: no episode {number}, there are {number - left}; files: "
        f"{', '.join(run.episode_names()) or 'none'}"
    )


def _render(name: str, record: Record) -> Iterator[RenderableType]:
    yield _plain(f"{name}, episode {record['index']}, task {record['task'].get('id')}", "bold")
    for action in record["actions"]:
        yield _panel(action)
    outcome = record["outcome"]
    if outcome is None:
        yield _plain(f"no outcome: {record['end_reasons']}", "red")
    else:
        style = "green" if is_solved(outcome) else "red"
        yield _plain(f"outcome {outcome['score']:g}: {outcome['reason']}", style)
        if accepted := outcome.get("accepted"):
            yield _plain(f"accepted answer: {' or '.join(accepted)}")
    if line := coach_line(cost([record])):
        yield _plain(f"this episode: {line}")


def _plain(text: str, style: str = "") -> Text:
    """Return what an agent may have written: no markup or control character in it is followed."""
    return Text(text.translate(_COMMANDS), style)


def _panel(action: dict[str, Any]) -> Panel:
    parts: list[RenderableType] = [
        _plain(f"{message['role']}: {message['content']}", "dim") for message in action["messages"]
    ]
    parts.append(_plain(f"{action['agent']} acts:\n{action['action'] or '(empty action)'}"))
    for result in (action["turn"] or {}).get("tool_results", []):
        parts.append(_plain(f"output: {result['output']}", "cyan"))
    parts.append(_plain(_verdict(action), "yellow"))
    length = "" if action["tokens"] is None else f", {action['tokens']} tokens"
    title = f"{action['agent']}, action {action['index'] + 1}{length}"
    return Panel(Group(*parts), title=title, title_align="left")


def _verdict(action: dict[str, Any]) -> str:
    entry = action["ledger"]
    if entry is None or "score" not in entry:
        return f"reward {action['reward']}"
    lines = [
        f"{_first_look(entry)}, reward {entry['reward']:.4f} ({entry['coach']})",
        entry["rationale"],
        *_second_look(entry),
    ]
    return "\n".join(lines)


def _first_look(entry: dict[str, Any]) -> str:
    paying = entry.get("paid_by", "first") == "first"
    return _score(entry["score"], entry.get("failure") if paying else None)


def _second_look(entry: dict[str, Any]) -> Iterator[str]:
    """Yield what the coach said in hindsight; nothing where it did not look back."""
    score, why = entry.get("hindsight_score"), entry.get("hindsight_rationale")
    if score is None and not why:
        return
    paying = entry["paid_by"] == "hindsight"
    said = _score(score, entry.get("failure") if paying else None)
    yield f"in hindsight: {said}{', which pays' if paying else ''}"
    yield str(why)


def _score(score: float | None, failure: str | None) -> str:
    if score is not None:
        return f"score {score:.2f} of 10"
    return f"unscored: {failure}" if failure else "unscored"
