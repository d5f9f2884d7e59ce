"""What the stub endpoint answers: verdicts, and every way in which servers and models fail."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Body = Mapping[str, Any]
"""A request's body, decoded."""

MIXTURE: Final = (
    "drop",
    "429",
    "500",
    "bad_json",
    "truncated",
    "refusal",
    "unreadable",
    "out_of_range",
)
"""How requests fail with `--fail`."""
KINDS: Final = (*MIXTURE, "401", "quota", "content_filter")
"""All ways to fail; those that are not in the mixture must be asked for."""
REFUSABLE: Final = ("response_format", "max_tokens", "temperature")
"""Parts of a request that a stub can be told not to take, as some servers do not."""
_CHARS_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class Fail:
    """Stands in a list of fixed replies for a failure, e.g. `Fail("429")`."""

    kind: str

    def __post_init__(self) -> None:
        """Refuse a kind that is not known, with a `ValueError`."""
        _check_known("Fail", (self.kind,), KINDS)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What is sent back; nothing is, and the connection is closed, where `status` is None."""

    status: int | None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a stub answers, e.g. `Behaviour(fail=0.3, kinds=("429", "drop"))`."""

    fail: float = 0.0
    """The share of requests that fail, 0 to 1."""
    kinds: tuple[str, ...] = MIXTURE
    """How they fail, each as often as the others."""
    permanent: bool = False
    """Whether a request that failed fails in the same way whenever it is sent again."""
    seed: int = 0
    score: float | None = None
    """What every verdict says; None for a score from 0 to 10 that the prompt determines."""
    refuses: tuple[str, ...] = ()
    """Which parts of a request are answered with a 400."""
    retry_after: str = "0"
    """The header of that name which comes with a 429, in seconds or as a date."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ValueError: a share outside 0 to 1, or an unknown name.
        """
        if not 0 <= self.fail <= 1:
            raise ValueError(f"fail is {self.fail}; give a share from 0 to 1")
        _check_known("kinds", self.kinds, KINDS)
        _check_known("refuses", self.refuses, REFUSABLE)

    def kind_of(self, body: Body, attempt: int) -> str | None:
        """Return how this request fails the `attempt`-th time it is sent, from 0; None if not.

        The request's content decides, so the order in which requests come does not matter.
        """
        again = 0 if self.permanent else attempt
        draw = random.Random(f"{self.seed}:{digest(body)}:{again}")
        return draw.choice(self.kinds) if draw.random() < self.fail else None

    def reply(self, body: Body, kind: str | None) -> HttpReply:
        """Return the answer to a request that fails in this way, or does not fail."""
        refused = next((name for name in self.refuses if name in body), None)
        if refused is not None:
            message = f"Unsupported parameter: '{refused}' is not supported."
            return _error(400, message, "unsupported_parameter", param=refused)
        if kind is None:
            return self.verdict(body)
        if kind in ("429", "quota"):
            code = "insufficient_quota" if kind == "quota" else "rate_limit_exceeded"
            return _error(429, "Slow down.", code, headers={"Retry-After": self.retry_after})
        return _FAILURES[kind](body)

    def verdict(self, body: Body) -> HttpReply:
        """Return a good answer: as JSON where that was asked for, else with a labelled line."""
        score = score_of(body) if self.score is None else self.score
        return text_reply(body, _verdict_text(body, "The stub says so.", score))


def digest(body: Body) -> str:
    """Return what identifies a request."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def score_of(body: Body) -> float:
    """Return the score that a prompt determines, 0 to 10; a request for repair keeps it."""
    prompt = []
    for message in body["messages"]:
        if message["role"] == "assistant":
            break
        prompt.append(message)
    return int(hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest(), 16) % 21 / 2


def text_reply(body: Body, text: str | None, finish: str = "stop", **message: Any) -> HttpReply:
    """Return an answer of a model with this text, and with tokens at 4 characters each."""
    prompt_tokens = _tokens("".join(str(message["content"]) for message in body["messages"]))
    completion_tokens = _tokens(text or "")
    completion = {
        "id": "chatcmpl-stub",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }
    return HttpReply(200, json.dumps(completion).encode())


def unauthorized(key: str) -> HttpReply:
    """Return what a server says of a wrong key, the key included, as some do."""
    return _error(401, f"Incorrect API key provided: {key}.", "invalid_api_key")


def bad_request(message: str) -> HttpReply:
    """Return what a server says of a request it cannot read."""
    return _error(400, message, "invalid_request_error")


def _check_known(name: str, given: Iterable[str], known: Collection[str]) -> None:
    for unknown in sorted(set(given) - set(known)):
        raise ValueError(f"{name} has {unknown!r}; known: {', '.join(known)}")


def _tokens(text: str) -> int:
    return -(-len(text) // _CHARS_PER_TOKEN)


def _verdict_text(body: Body, reasons: str, score: object) -> str:
    if body.get("response_format"):
        return json.dumps({"reasons": reasons, "score": score})
    return f"{reasons}\nPROCESS_SCORE: {score}"


def _error(
    status: int, message: str, code: str, *, param: str | None = None, headers: Any = None
) -> HttpReply:
    error = {"message": message, "type": code, "param": param, "code": code}
    return HttpReply(status, json.dumps({"error": error}).encode(), headers or {})


_FAILURES: Final = {
    "drop": lambda body: HttpReply(None),
    "500": lambda body: _error(500, "The server had an error.", "server_error"),
    "bad_json": lambda body: HttpReply(200, b'{"choices": [{"message": {"content": "PROC'),
    "truncated": lambda body: text_reply(body, "The solver begins by", "length"),
    "refusal": lambda body: text_reply(body, None, refusal="I cannot help with that."),
    "content_filter": lambda body: text_reply(body, "", "content_filter"),
    "unreadable": lambda body: text_reply(body, _verdict_text(body, "Hm.", "seven")),
    "out_of_range": lambda body: text_reply(body, _verdict_text(body, "Great!", 1_000_000)),
}
