"""Reading the verdict out of a model's reply, or saying why there is none.

A verdict is a JSON object with a `score`, or a line such as `PROCESS_SCORE: 8`. Whichever stands
last counts, and only where nothing follows it: when that one cannot be read nothing else is looked
for, so that no example, quotation or number in the prose is ever taken for it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from mappa_envs.actions import strip_thinking
from mappa_envs.coach.requests import Answer
from mappa_envs.errors import CoachError
from mappa_envs.types import Failure

_OPENING: Final = r"[ \t*_`~\[({]"
_AROUND: Final = r"[ \t\r*_`~\[\](){}]"
_LABEL: Final = r"PROCESS(?:\\?_|[ \t])SCORE"
_NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]+|,[0-9]{1,2})?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"

_LABELLED = re.compile(
    rf"(?:^[ \t>#*_~+\-•\[({{`]*+(?:{_LABEL}|SCORE)|(?<![\w\\\"'`“‘]){_LABEL})"
    rf"{_AROUND}*+[:=：](?P<value>[^\n]*+)",
    re.MULTILINE | re.IGNORECASE,
)
"""A label begins its line; the long one may also stand behind text, though not in quotes."""
_VALUE = re.compile(
    rf"{_OPENING}*+(?P<number>{_NUMBER}){_AROUND}*+"
    rf"(?:(?:/|out of){_OPENING}*+(?P<scale>{_NUMBER}){_AROUND}*+)?\.?{_AROUND}*+"
)
_OPEN_END = re.compile(r"[\d.,]\Z")
"""A number may go on here."""
_OBJECT = re.compile(r'\{\s*+"')
_MOST_BROKEN: Final = 100
"""Each costs a pass over the text, so a reply of nothing else would take very long."""
_REST_OF_LINE = re.compile(r"[ \t\r`*_.)\]]*+(?:\n|\Z)")
_ENDS: Final = " \t\r\n`*_~.)]"
"""What may follow a verdict: the ends of a layout."""
_DECODER = json.JSONDecoder(parse_int=float, strict=False)
_SCORE_KEYS: Final = ("score", "process_score")
_REASON_KEYS: Final = ("reasons", "reason", "rationale")


@dataclass(frozen=True, slots=True)
class _Found:
    """A verdict's place in the text, with its value as it was written and its reasons."""

    start: int
    end: int
    value: Any
    reasons: str = ""


def parse_verdict(reply: str, scale: float = 10.0) -> tuple[float, str]:
    r"""Return the score of a reply, from 0 to `scale`, and the reasons for it.

    Thinking blocks are no part of a reply. A score is never clamped, rescaled or guessed.

    Raises:
        CoachError: with `failure` `"truncated"`, the reply ends inside a thinking block;
            `"unparsable"`, it has no verdict, or one that is no single number;
            `"out_of_range"`, the score is not from 0 to `scale`, or is given on another scale.

    >>> parse_verdict("The sum is right.\n**PROCESS_SCORE:** 8/10")
    (8.0, 'The sum is right.')
    >>> parse_verdict('{"reasons": "The sum is right.", "score": 8}')
    (8.0, 'The sum is right.')
    """
    text, found = reply, _whole_object(reply)
    if found is None:
        if reply.rfind("<think>") > reply.rfind("</think>"):
            _fail("truncated", "the reply ends inside a thinking block")
        text = strip_thinking(reply)
        found = _last_verdict(text)
    around = f"{text[: found.start].rstrip()}\n{text[found.end :].lstrip()}".strip()
    return _score(found.value, scale), found.reasons or around


def read_answer(answer: Answer, scale: float) -> tuple[float, str]:
    """Return the score, from 0 to `scale`, and the reasons in a model's answer.

    Raises:
        CoachError: there is none, as `parse_verdict` says, or with `failure` `"refused"` the
            model would not answer, `"truncated"` it was cut off.
    """
    if answer.refusal is not None:
        raise CoachError(f"the model refused: {answer.refusal!r:.200}", failure="refused")
    if answer.finish_reason == "content_filter":
        raise CoachError("the answer was held back by a content filter", failure="refused")
    if answer.finish_reason != "length":
        return parse_verdict(answer.text, scale)
    try:
        if not _OPEN_END.search(answer.text):
            return parse_verdict(answer.text, scale)
    except CoachError:
        pass
    _fail("truncated", "the answer was cut off before its verdict; raise max_tokens")


def _whole_object(text: str) -> _Found | None:
    """Return the verdict of a reply that is one object; what its reasons quote is theirs."""
    start = len(text) - len(text.lstrip())
    if not text.startswith("{", start):
        return None
    decoded, end = _decode(text, start)
    return _verdict_of(decoded, start, len(text)) if not text[end:].strip() else None


def _last_verdict(text: str) -> _Found:
    """Return the last verdict of a text, readable or not."""
    last = _last_object(text)
    for line in _LABELLED.finditer(text, last.end if last else 0):
        last = _Found(line.start(), line.end(), line["value"].strip())
    if last is None:
        _fail("unparsable", f"the reply has no verdict; it ends in {text[-60:]!r}")
    if after := text[last.end :].strip(_ENDS):
        _fail("unparsable", f"the reply goes on after its last readable verdict: {after[:60]!r}")
    return last


def _last_object(text: str) -> _Found | None:
    """Return the last object with a score that ends a line."""
    found = None
    end = broken = 0
    while opening := _OBJECT.search(text, end):
        decoded, end = _decode(text, opening.start())
        broken += decoded is None
        if broken > _MOST_BROKEN:
            _fail("unparsable", f"the reply has over {_MOST_BROKEN} objects that are no JSON")
        if decoded is not None and _REST_OF_LINE.match(text, end):
            found = _verdict_of(decoded, opening.start(), end) or found
    return found


def _decode(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """Return the object that starts here, or None, and where to read on."""
    try:
        decoded, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        return None, max(error.pos, start + 1)
    except RecursionError:
        _fail("unparsable", "the reply has an object that is nested too deeply")
    return decoded, end


def _verdict_of(decoded: Mapping[str, Any] | None, start: int, end: int) -> _Found | None:
    table = {key.lower(): value for key, value in (decoded or {}).items()}
    scores = [table[key] for key in _SCORE_KEYS if key in table]
    if not scores:
        return None
    reasons = next((table[key] for key in _REASON_KEYS if key in table), "")
    if isinstance(reasons, list):
        reasons = "\n".join(line for line in reasons if isinstance(line, str))
    return _Found(start, end, scores[-1], reasons if isinstance(reasons, str) else "")


def _score(value: Any, scale: float) -> float:
    """Return a verdict's value as a number from 0 to `scale`."""
    number, given_scale = _numbers(value) if isinstance(value, str) else (value, None)
    if not isinstance(number, float) or not math.isfinite(number):
        _fail("unparsable", f"the score is {value!r:.60}; it must be one number")
    if given_scale is not None and given_scale != scale:
        _fail("out_of_range", f"the score is {value!r:.60}, and the scale ends at {scale:g}")
    if not 0 <= number <= scale:
        _fail("out_of_range", f"the score is {value!r:.60}; it must be from 0 to {scale:g}")
    return abs(number)  # -0.0 is 0


def _numbers(value: str) -> tuple[float | None, float | None]:
    """Return the number in a value, and the scale it names, each None where there is none."""
    read = _VALUE.fullmatch(value)
    if read is None:
        return None, None
    number, scale = (part.replace(",", ".") if part else None for part in read.group(1, 2))
    return (float(number) if number else None), (float(scale) if scale else None)


def _fail(failure: Failure, message: str) -> NoReturn:
    raise CoachError(message, failure=failure)
