"""What a model that coaches is shown of an action, as texts.

Two kinds never mix. *Facts* come from the environment: numbers, names of its own, and whatever
else stands in them as short JSON strings, so that no file name can begin a line of its own.
*Evidence* is what agents and programs wrote, or what was found in files that they wrote; it is
shown between marks that nobody could have written, see `fenced`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mappa_envs.coach.protocol import CoachContext
from mappa_envs.sandbox.protocol import FileChanges, FileRecord
from mappa_envs.scenario import Scenario
from mappa_envs.types import Message, Outcome, ToolResult, Turn

MOST_CHARACTERS: Mapping[str, int] = {
    "problem": 8_000,
    "seen": 12_000,
    "action": 12_000,
    "tool_result": 6_000,
    "found": 4_000,
}
"""How much of each text is shown; what lies between head and tail is cut with a mark."""
NO_TOOL = "[no program was run]"
NOTHING_FOUND = "[nobody looked into the files]"
_NAME = 80
_FILES = 40
_TASK = "[the task, as above]"


def fenced(texts: Mapping[str, str]) -> dict[str, str]:
    """Return each text between marks that none of the texts can hold.

    The mark is a hash of all the texts, so that whoever would write it had to know a text that
    holds its own hash; and the same texts have the same marks, so that a cache finds them again.

    Args:
        texts: By what they are, e.g. `{"action": "..."}`.
    """
    whole = "\0".join(f"{name}\0{text}" for name, text in texts.items())
    mark, again = _mark(whole, 0), 1
    while mark in whole:
        mark, again = _mark(whole, again), again + 1
    return {name: f"<<<{mark} {name}\n{text}\n{mark} {name}>>>" for name, text in texts.items()}


def head_and_tail(text: str, most: int) -> str:
    """Return a text with its middle cut out, and a mark in its place, if it is too long."""
    if len(text) <= most:
        return text
    head = most // 2
    tail = most - head
    return f"{text[:head]}\n[... {len(text) - most} characters left out ...]\n{text[-tail:]}"


def evidence(turn: Turn, context: CoachContext) -> dict[str, str]:
    """Return what agents and programs wrote, by field of a template, head and tail of each."""
    outputs = (f"[program {n}]\n{r.output}" for n, r in enumerate(turn.tool_results, start=1))
    texts = {
        "problem": context.problem,
        "seen": _without("\n\n".join(map(_said, turn.messages)), context.problem),
        "action": turn.action,
        "tool_result": "\n".join(outputs) or NO_TOOL,
        "found": json.dumps(turn.facts, default=str) if turn.facts else NOTHING_FOUND,
    }
    return {name: head_and_tail(text, MOST_CHARACTERS[name]) for name, text in texts.items()}


def team_lines(scenario: Scenario) -> str:
    """Return the team in the order of its visits: what each role may do and must leave."""
    return "\n".join(f"{n}. {_role(scenario, name)}" for n, name in enumerate(scenario.visits, 1))


def fact_lines(turn: Turn, context: CoachContext, scenario: Scenario) -> str:
    """Return what the environment itself saw of an action and of those before it."""
    role = scenario.roles[turn.role]
    lines = [f"judged: action {turn.index + 1} of {turn.agent}, {_handed(turn)}", *_ran(turn)]
    if role.artifacts:
        lines.append(f"due from {turn.role}: {', '.join(role.artifacts)}")
        lines.append(f"of these not there after the action: {', '.join(turn.missing) or 'none'}")
    lines.append(f"files after the action: {_listed(turn.files)}")
    return "\n".join([*lines, *_trail("earlier actions", context.history)])


def hindsight_lines(context: CoachContext) -> str:
    """Return how the episode went on after the action, and how it ended."""
    assert context.outcome is not None
    return "\n".join([*_trail("later actions", context.later), outcome_line(context.outcome)])


def outcome_line(outcome: Outcome) -> str:
    """Return the task's verdict in a line."""
    verdict = f"outcome: {outcome.score:g} of 1 ({outcome.verdict})"
    return f"{verdict}: {_short(outcome.reason, 300)}"


def _mark(whole: str, again: int) -> str:
    return hashlib.sha256(f"{again}\0{whole}".encode()).hexdigest()[:16]


def _said(message: Message) -> str:
    return f"[{message['role']}]\n{message['content']}"


def _without(seen: str, problem: str) -> str:
    """Return what an agent saw without the task's text, which is shown above it."""
    return seen.replace(problem, _TASK) if problem else seen


def _role(scenario: Scenario, name: str) -> str:
    role = scenario.roles[name]
    parts = [f"{name}: at most {role.max_turns} action{'s' * (role.max_turns > 1)} a visit"]
    if role.tools:
        parts.append(f"tools: {', '.join(role.tools)}")
    if role.artifacts:
        parts.append(f"must leave {', '.join(role.artifacts)}")
    return "; ".join(parts)


def _handed(turn: Turn) -> str:
    return "its last on this visit" if turn.handed_off else "more may follow on this visit"


def _ran(turn: Turn) -> Iterator[str]:
    if not turn.tool_results:
        yield "no program was run"
    for number, result in enumerate(turn.tool_results, start=1):
        yield f"program {number}: {_end(result)}{_changes(result.files)}"


def _end(result: ToolResult) -> str:
    if result.limit_hit is not None:
        return f"stopped at a limit ({result.limit_hit})"
    if result.exit_code is None:
        return "was not run"
    return f"exit status {result.exit_code}"


def _changes(changes: FileChanges) -> str:
    kinds = ("created", "changed", "deleted", "restored", "removed")
    told = ((kind, getattr(changes, kind)) for kind in kinds)
    return "".join(f"; {kind} {_names(paths)}" for kind, paths in told if paths)


def _trail(title: str, turns: Sequence[Turn]) -> Iterator[str]:
    yield f"{title}: {'' if turns else 'none'}".rstrip()
    for turn in turns:
        missing = f"; left without {', '.join(turn.missing)}" if turn.missing else ""
        ended = missing if turn.handed_off else ""
        yield f"- {turn.agent}, action {turn.index + 1}: {', '.join(_ran(turn))}{ended}"


def _listed(files: Sequence[FileRecord]) -> str:
    shown = [f"{_short(f.path, _NAME)} ({f.size} bytes, by {f.author})" for f in files[:_FILES]]
    return ", ".join([*shown, *_more(len(files) - _FILES)]) or "none"


def _names(paths: Sequence[str]) -> str:
    return ", ".join([*(_short(p, _NAME) for p in paths[:_FILES]), *_more(len(paths) - _FILES)])


def _more(count: int) -> Iterable[str]:
    return (f"{count} more",) if count > 0 else ()


def _short(value: Any, most: int) -> str:
    """Return a value as JSON on one line, cut to a length."""
    text = json.dumps(value, default=str)
    return text if len(text) <= most else f"{text[: most - 3]}..."
