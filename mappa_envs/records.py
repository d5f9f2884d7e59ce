"""Turns and episodes as plain data for other programs, and as text for people."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mappa_envs.episode import Episode
from mappa_envs.types import LedgerEntry, ToolResult, Turn


def agent_info(episode: Episode, agent: str) -> dict[str, Any]:
    """Return what an environment tells of an agent besides its observation, as plain data."""
    metadata = copy.deepcopy(dict(episode.task.metadata))
    task = {**metadata, "id": episode.task.id, "split": episode.task.split}
    info: dict[str, Any] = {"role": episode.scenario.role_of(agent), "task": task}
    if episode.end_reason is not None:
        info["end_reason"] = episode.end_reason
        info["turns"] = [turn_record(turn) for turn in episode.own(agent)]
        info["outcome"] = outcome_record(episode)
    return info


def turn_record(turn: Turn) -> dict[str, Any]:
    """Return what came of a turn as JSON-ready data; the messages and the action are left out.

    A player has those from its own loop; this is what it cannot know otherwise.
    """
    return {
        "step": turn.step,
        "index": turn.index,
        "handed_off": turn.handed_off,
        "feedback": turn.feedback,
        "missing": list(turn.missing),
        "files": [asdict(file) for file in turn.files],
        "facts": copy.deepcopy(dict(turn.facts)),
        "tool_results": [
            {
                "tool": result.call.tool,
                "source": result.call.source,
                "error": result.call.error,
                "output": result.output,
                "stdout": result.stdout,
                "exit_code": result.exit_code,
                "timed_out": result.timed_out,
                "limit_hit": result.limit_hit,
                "files": asdict(result.files),
            }
            for result in turn.tool_results
        ],
    }


def outcome_record(episode: Episode) -> dict[str, Any] | None:
    """Return an episode's outcome, with the accepted answers, as JSON-ready data."""
    if (outcome := episode.outcome) is None:
        return None
    return {
        "score": outcome.score,
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "answer": outcome.answer,
        "accepted": list(episode.task.answers),
        **({"details": copy.deepcopy(dict(outcome.details))} if outcome.details else {}),
    }


def is_decided(outcome: Mapping[str, Any] | None) -> bool:
    """Whether an outcome, as `outcome_record` returns it, is a verdict on the team.

    Otherwise the sandbox or the judge failed, and its score says nothing.
    """
    if outcome is None:
        return False
    details = outcome.get("details", {})
    return bool(details.get("decided", outcome["verdict"] != "undecided"))


def show(episode: Episode, entries: Sequence[LedgerEntry], render_mode: str | None) -> str | None:
    """Return an episode as a conversation, or print it where `render_mode` is `"human"`.

    Args:
        episode: What is shown.
        entries: The coach's ledger; empty without a coach.
        render_mode: Of the environment.
    """
    transcript = render_transcript(episode, entries)
    if render_mode != "human":
        return transcript
    from rich import print as rich_print
    from rich.text import Text

    rich_print(Text(printable(transcript)))
    return None


def render_transcript(episode: Episode, entries: Sequence[LedgerEntry] = ()) -> str:
    """Return an episode as a readable conversation: actions, output, files, scores, outcome."""
    judged = {entry.step: entry for entry in entries}
    lines = [f"task {episode.task.id}: {episode.task.prompt}"]
    for turn in episode.turns:
        lines += ["", *turn_lines(turn, judged.get(turn.step))]
    if (outcome := episode.outcome) is not None:
        lines += ["", f"=== outcome {outcome.score:g} ({outcome.verdict}): {outcome.reason}"]
    elif episode.end_reason is not None:
        lines += ["", f"=== ended: {episode.end_reason}"]
    return "\n".join(lines)


def turn_lines(turn: Turn, entry: LedgerEntry | None = None) -> Iterator[str]:
    """Yield one action as lines for people, with its score if there is one."""
    yield f"--- {turn.agent}, action {turn.index + 1}"
    yield turn.action
    for result in turn.tool_results:
        yield f"[output]\n{result.output}"
        yield from _file_lines(result)
    if entry is not None:
        score = entry.status if entry.score is None else f"score {entry.score:.4g} of 10"
        yield f"[{score}] {entry.rationale}".rstrip()


def printable(text: str) -> str:
    """Return a text without what would command a terminal or turn the order of its letters."""
    return text.translate(_COMMANDS)


def _file_lines(result: ToolResult) -> Iterator[str]:
    for kind in ("created", "changed", "deleted"):
        if paths := getattr(result.files, kind):
            yield f"[{kind}] {', '.join(paths)}"


_CONTROLS = (*range(9), *range(11, 32), *range(127, 160))
_TURNS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_COMMANDS: Mapping[int, str] = dict.fromkeys((*_CONTROLS, *_TURNS), "\N{REPLACEMENT CHARACTER}")
