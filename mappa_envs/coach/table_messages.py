"""What an agent's message says about files and about output, whether it is true or not."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CODE = re.compile(r"^```.*?(?:^```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"\b[\w\-]+\.(?:csv|joblib|json|npy|npz|parquet|pickle|pkl|txt)\b")
_SENTENCE = re.compile(r"(?<=[.;!?])\s+|\n")
_DENIED_BEFORE = re.compile(
    r"\b(?:no|not|never|neither|nor|without|missing|lacks?|absent|cannot|unable|fail\w*|should|"
    r"must|will|would|needs?|needed|expected|miss(?:es|ed)?)\b|n't\b",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"(?:[\s,]|\band\b|\bor\b|\bnor\b|\bfiles?\b|\bFILE\b|\bboth\b|\ball\b)*"
    r"(?:\b(?:is|are|was|were|do|does|did|has|have|could|can|would)(?:n't|\s+(?:\w+\s+)?"
    r"(?:not|never|missing|absent|gone|lost|unavailable|nowhere))\b|\b(?:missing|cannot)\b)",
    re.IGNORECASE,
)
_OUTPUT = re.compile(
    r"^(?:Output of (?:my|the|your) program|\[output\]|\[program \d+\]|>>> |Out\[\d+\]|stdout:"
    r"|Traceback \(most recent call last\)|```(?:output|console|stdout|terminal|log)\b"
    r"|\(\d+, ?\d*\)|\[\d+ rows x \d+ columns\]|.*\bdtype: \w+).*",
    re.IGNORECASE | re.MULTILINE,
)


def outside_code(text: str) -> str:
    """Return a text without its fenced blocks."""
    return _CODE.sub("", text)


def named_files(text: str) -> list[str]:
    """Return the files that a text names as there, in order.

    >>> named_files("I wrote model.pkl. There is no X_test.pkl, and y_train.pkl is missing.")
    ['model.pkl']
    """
    found: dict[str, None] = {}
    for sentence in _SENTENCE.split(text):
        for match in _FILE.finditer(sentence):
            before, after = sentence[: match.start()], _FILE.sub("FILE", sentence[match.end() :])
            if not _DENIED_BEFORE.search(before) and not _DENIED_AFTER.match(after):
                found[match[0]] = None
    return list(found)


def invented_files(text: str, paths: Iterable[str]) -> list[str]:
    """Return the files that a text names as there, code left out, and that are none of `paths`.

    >>> invented_files("model.pkl and X_test.pkl are saved.", ["data/model.pkl"])
    ['X_test.pkl']
    """
    there = {path.rpartition("/")[2] for path in paths}
    return [name for name in named_files(outside_code(text)) if name not in there]


def invented_output(text: str, printed: str) -> str | None:
    """Return a line of a text that looks like a program's output and was never printed."""
    for match in _OUTPUT.finditer(text):
        if match[0].strip() not in printed:
            return f"shows output that no program gave: {match[0].strip()[:40]!r}"
    return None
