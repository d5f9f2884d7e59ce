"""A folder of answers, so that no request is paid for twice."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mappa_envs.coach.requests import Answer, Request

_Count = Annotated[int, Field(ge=0)]


class _Entry(BaseModel):
    """What a file holds; no header of a request and no key is among it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    request: dict[str, Any]
    sample: int
    text: str
    finish_reason: str
    refusal: str | None
    input_tokens: _Count
    output_tokens: _Count
    usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


class ReplyCache:
    """Keeps every answer under the hash of its request and the number of the sample.

    The address of the server is no part of that: a model of the same name is taken to be the same
    model wherever it runs. Use another folder where that is not so.

    Each answer is a file of its own, `ab/abcd....json`, that appears whole or not at all, so any
    number of processes can share a folder. A file that is damaged counts as absent.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def path(self, request: Request, sample: int) -> Path:
        """Return where the answer to a request is, or would be."""
        key = hashlib.sha256(f"{request.canonical}\n{sample}".encode()).hexdigest()
        return self.folder / key[:2] / f"{key}.json"

    def get(self, request: Request, sample: int) -> Answer | None:
        """Return the answer to a request, or None."""
        entry = _read(self.path(request, sample))
        if entry is None or (entry.request, entry.sample) != (request.body(()), sample):
            return None
        return Answer(**entry.model_dump(exclude={"request", "sample"}))

    def put(self, request: Request, sample: int, answer: Answer) -> None:
        """Keep the answer to a request.

        Raises:
            OSError: it cannot be written.
        """
        entry = _Entry(
            request=request.body(()),
            sample=sample,
            text=answer.text,
            finish_reason=answer.finish_reason,
            refusal=answer.refusal,
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            usd=answer.usd,
        )
        _write(self.path(request, sample), entry.model_dump_json(indent=1))

    def usd(self) -> float:
        """Return what all answers in the folder cost, as far as it is known, in US dollars."""
        return sum(entry.usd or 0.0 for entry in self._entries())

    def _entries(self) -> Iterator[_Entry]:
        for path in self.folder.glob("??/*.json"):
            entry = _read(path)
            if entry is not None:
                yield entry


def _read(path: Path) -> _Entry | None:
    try:
        return _Entry.model_validate_json(path.read_bytes())
    except (FileNotFoundError, IsADirectoryError, ValidationError):
        return None


def _write(path: Path, text: str) -> None:
    """Write a file that other processes see whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
