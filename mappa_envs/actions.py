"""Read an action's text: what is visible of it, and which tool calls it makes.

Every text parses. What an agent wrote wrongly becomes a `ToolCall` with an `error` in plain
words, which the environment hands back to the agent; whether a tool exists is decided there too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from mappa_envs.spaces import is_text
from mappa_envs.types import ToolCall

_PYTHON = "python"
_ALIASES = {"code_interpreter": _PYTHON}
_INFO_STRINGS = frozenset({"python", "py"})
_OPEN_THINKING = "<think>"
_OPEN_CALL = "<tool_call>"
_CLOSE_CALL = "</tool_call>"
_MARKS = ("```", "~~~", _OPEN_CALL)
"""Without one of them a text holds no tool call."""
_EXAMPLE = '{"name": "python", "arguments": {"code": "print(1)"}}'

_THINKING_TAG = re.compile(r"</?think>")
_OPENING = re.compile(
    r"^(?P<indent>[ \t]*+)"
    r"(?:(?P<ticks>`{3,}+)(?P<info>[^`\n]*+)|(?P<tildes>~{3,}+)(?P<note>[^\n]*+))$"
    rf"|{_OPEN_CALL}",
    re.MULTILINE,
)
_CLOSING = re.compile(r"^(?P<indent>[ \t]*+)(?P<fence>`{3,}+|~{3,}+)[ \t]*+\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """An action, read, e.g. `ParsedAction("Sure.", ())`."""

    visible: str
    """The text without its thinking blocks."""
    calls: tuple[ToolCall, ...]
    """The tool calls in the order they stand in the text."""


def parse_action(text: str) -> ParsedAction:
    r"""Find the tool calls of an action outside its thinking blocks.

    A tool call is a fenced block marked `python` or `py`, or
    `<tool_call>{"name": "python", "arguments": {"code": "..."}}</tool_call>`. What looks like
    either inside the other, or inside a block of another language, is text.

    >>> parse_action("<think>hm</think>~~~py\nprint(1)\n~~~").calls
    (ToolCall(tool='python', source='print(1)', error=None),)
    """
    visible = strip_thinking(text)
    # A single character is found much faster than a word, and a word than the expression below.
    if not any(mark[0] in visible and mark in visible for mark in _MARKS):
        return ParsedAction(visible, ())
    calls: list[ToolCall] = []
    position = 0
    while opening := _OPENING.search(visible, position):
        read = _read_tagged if opening[0] == _OPEN_CALL else _read_fenced
        call, position = read(visible, opening)
        if call is not None:
            calls.append(call)
    return ParsedAction(visible, tuple(calls))


def strip_thinking(text: str) -> str:
    """Remove thinking blocks, and the whitespace this leaves at both ends.

    An unclosed `<think>` reaches to the end of the text. A `</think>` without its `<think>` ends
    a block that began before the text did, so all before it goes.

    >>> strip_thinking("so 2 + 3</think> 5 <think>or")
    '5'
    """
    kept: list[str] = []
    start = 0
    inside = found = False
    for tag in _THINKING_TAG.finditer(text):
        found = True
        if tag[0] == _OPEN_THINKING:
            if not inside:
                kept.append(text[start : tag.start()])
            inside = True
        else:
            if not inside:
                kept.clear()
            inside = False
            start = tag.end()
    if not found:
        return text
    if not inside:
        kept.append(text[start:])
    return "".join(kept).strip()


def _read_fenced(text: str, opening: re.Match[str]) -> tuple[ToolCall | None, int]:
    """Read a fenced block; return its call, if it is one, and where the block ends."""
    fence = opening["ticks"] or opening["tildes"]
    words = (opening["info"] or opening["note"] or "").lower().split()
    is_call = bool(words) and words[0] in _INFO_STRINGS
    indent = len(opening["indent"])
    start = opening.end() + 1
    for closing in _CLOSING.finditer(text, min(start, len(text))):
        if closing["fence"].startswith(fence) and len(closing["indent"]) <= indent + 3:
            break
    else:
        return (_unreadable("the code block is not closed", _PYTHON) if is_call else None), len(
            text
        )
    if not is_call:
        return None, closing.end()
    lines = text[start : closing.start()].replace("\r\n", "\n").removesuffix("\n").split("\n")
    return _call(_PYTHON, "\n".join(_dedent(line, indent) for line in lines)), closing.end()


def _dedent(line: str, width: int) -> str:
    """Remove the indentation of a block's fence from one of its lines."""
    blank = len(line) - len(line.lstrip(" \t"))
    return line[min(blank, width) :]


def _read_tagged(text: str, opening: re.Match[str]) -> tuple[ToolCall, int]:
    """Read a `<tool_call>`; return its call and where it ends."""
    end = text.find(_CLOSE_CALL, opening.end())
    if end < 0:
        return _unreadable(f"the tool call is not closed with {_CLOSE_CALL}"), len(text)
    return _read_json(text[opening.end() : end]), end + len(_CLOSE_CALL)


def _read_json(text: str) -> ToolCall:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        return _unreadable(
            f"the tool call is not valid JSON: {error.msg} at line {error.lineno}, "
            f"column {error.colno}; write {_EXAMPLE}"
        )
    except (ValueError, RecursionError):
        return _unreadable(f"the tool call is not valid JSON; write {_EXAMPLE}")
    name = content.get("name") if isinstance(content, dict) else None
    if not is_text(name):
        return _unreadable(f"the tool call names no tool; write {_EXAMPLE}")
    tool = _ALIASES.get(name, name)
    arguments = content.get("arguments")
    code = arguments.get("code") if isinstance(arguments, dict) else None
    if not isinstance(code, str):
        return _unreadable(f'the tool call has no text under "code"; write {_EXAMPLE}', tool)
    return _call(tool, code)


def _call(tool: str, source: str) -> ToolCall:
    if not source.strip():
        return _unreadable("the code is empty", tool)
    if not is_text(source):
        return _unreadable("the code holds half of a surrogate pair, which is no character", tool)
    return ToolCall(tool, source)


def _unreadable(error: str, tool: str = "") -> ToolCall:
    return ToolCall(tool, "", error)
