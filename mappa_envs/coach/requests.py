"""What a coach's model is asked, and what it answered, as values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mappa_envs.types import Failure, Message, Spent

RESPONSE_FORMAT: Final = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"reasons": {"type": "string"}, "score": {"type": "number"}},
            "required": ["reasons", "score"],
            "additionalProperties": False,
        },
    },
}
"""The reasons come first, so that the score follows from them."""
CHARACTERS_PER_TOKEN: Final = 3
"""Plain English has more, so that estimates are on the high side; another letter counts as two."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request for a verdict.

    It says what is wanted. What a server turns out not to take of it is left out of what is sent,
    and neither the request nor its hash change by that.
    """

    model: str
    messages: tuple[Message, ...]
    temperature: float
    max_tokens: int
    json_schema: bool
    """Whether the answer is to be JSON by a schema."""

    @property
    def canonical(self) -> str:
        """The request as JSON that is the same wherever and whenever it is written."""
        return json.dumps(self.body(()), sort_keys=True, separators=(",", ":"))

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical form, in hexadecimal."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def most_input_tokens(self) -> int:
        """An estimate on the high side of how many tokens the messages are."""
        text = "".join(message["content"] for message in self.messages)
        plain = sum(character.isascii() for character in text)
        return -(-plain // CHARACTERS_PER_TOKEN) + 2 * (len(text) - plain)

    def body(self, refused: Collection[str]) -> dict[str, Any]:
        """Return what is sent to a server that does not take these parameters."""
        limit = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
        body = {"model": self.model, "messages": list(self.messages), limit: self.max_tokens}
        if "temperature" not in refused:
            body["temperature"] = self.temperature
        if self.json_schema and "response_format" not in refused:
            body["response_format"] = RESPONSE_FORMAT
        return body


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered to one request, and what that cost."""

    text: str
    finish_reason: str = "stop"
    refusal: str | None = None
    """The model's own words for why it does not answer."""
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = None
    """US dollars; None where the price, or the number of tokens, is not known."""


def repaired(request: Request, answer: Answer, why: str, scale: float) -> Request:
    """Return the request again, whole, with the answer that was no good and what is wanted."""
    form = (
        '{"reasons": "...", "score": <number>}, a JSON object and nothing else'
        if request.json_schema
        else "your reasons, and a last line PROCESS_SCORE: <number>"
    )
    wanted = (
        f"That answer cannot be used: {why}. Judge the same action again, by the same rules, and "
        f"answer in this form: {form}. The number is one number from 0 to {scale:g}."
    )
    again: tuple[Message, ...] = (
        {"role": "assistant", "content": answer.text or "(no text)"},
        {"role": "user", "content": wanted},
    )
    return replace(request, messages=request.messages + again)


class CallFailed(Exception):
    """A request without an answer, and why; a `CoachError` is made of it in the end."""

    def __init__(
        self,
        failure: Failure,
        why: str,
        *,
        wait_s: float = 0.0,
        refused: frozenset[str] = frozenset(),
        names_refused: bool = False,
    ) -> None:
        super().__init__(why)
        self.failure = failure
        self.wait_s = wait_s
        """How long the server asks to wait."""
        self.refused = refused
        """Parameters of the request that the server may not take."""
        self.names_refused = names_refused
        """Whether the server said so, and it is no guess."""


@dataclass(slots=True)
class Attempts:
    """What became of the requests of one judgement so far."""

    deadline: float
    """On the clock of the event loop, in seconds."""
    spent: Spent = field(default_factory=Spent)
    last: CallFailed | None = None
