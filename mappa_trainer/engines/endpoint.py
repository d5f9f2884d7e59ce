"""A policy behind an OpenAI-compatible endpoint: chat completions, several at a time.

What cannot be had, after retries where those can help, is an error and never an empty action. Only
what the model itself decides is an action: a text cut off by the token limit, one that the server
held back, and a conversation too long for the model. Needs the extra `coach`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import math
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mappa_trainer.errors import PolicyError
from mappa_trainer.policy import Conversation
from mappa_trainer.types import FinishReason, Reply, Sampling

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAIError
    from openai.types.chat import ChatCompletion
    from tenacity import RetryCallState

KEY: Final = "OPENAI_API_KEY"
"""The environment variable that holds the key; it is never stored or printed."""
PATIENCE_S = 120.0
"""How long a request that fails is tried again."""
FIRST_WAIT_S = 0.5
"""The longest wait before the first retry; it doubles with each, up to `LONGEST_WAIT_S`."""
LONGEST_WAIT_S: Final = 30.0
_PLACEHOLDER_KEY: Final = "no-key-is-set"
_LONGEST_MESSAGE: Final = 300
_KEYLIKE: Final = re.compile(r"\bsk-[\w*.-]{4,}")
_TOO_LONG: Final = re.compile(r"context_length_exceeded|(maximum|exceeds?).{0,40}context", re.I)
_MEND: Final = "mend what it complains of"
_ADAPTABLE: Final = ("max_tokens", "seed")
"""What some servers do not take: the first has another name there, the second is left out."""
_FINISH: Final[dict[str, FinishReason]] = {
    "length": "length",
    "content_filter": "content_filter",
}


class EndpointPolicy:
    """A `Policy` that asks a model behind an endpoint, e.g. `EndpointPolicy(url, "qwen3-4b")`.

    Seeds are passed on; whether equal seeds give equal texts is the server's affair.

    Args:
        base_url: E.g. `"http://127.0.0.1:8000/v1"`.
        model: As the server calls it.
        concurrency: Requests that run at a time.
        timeout_s: Of one request.

    Raises:
        PolicyError: the address is none or has a password in it, the client is not installed, or
            the key is missing.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        concurrency: int = 16,
        timeout_s: float = 600.0,
    ) -> None:
        self._url = base_url
        self.model = model
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._refused: frozenset[str] = frozenset()
        self._secret = os.environ.get(KEY, "").strip()
        _check(base_url, self._secret)

    def act(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], sampling: Sampling
    ) -> list[Reply]:
        """Return one reply for each conversation, in their order; see `Policy.act`.

        Raises:
            PolicyError: one cannot be had; the others are given up.
        """
        return asyncio.run(self._all(conversations, seeds, sampling))

    async def _all(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], sampling: Sampling
    ) -> list[Reply]:
        from openai import AsyncOpenAI

        slots = asyncio.Semaphore(self._concurrency)
        client = AsyncOpenAI(
            api_key=self._secret or _PLACEHOLDER_KEY,
            base_url=self._url,
            max_retries=0,
            timeout=self._timeout_s,
        )
        try:
            async with client, asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._reply(client, slots, conversation, seed, sampling))
                    for conversation, seed in zip(conversations, seeds, strict=True)
                ]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _reply(
        self,
        client: AsyncOpenAI,
        slots: asyncio.Semaphore,
        conversation: Conversation,
        seed: int,
        sampling: Sampling,
    ) -> Reply:
        from openai import OpenAIError
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay

        retrying = AsyncRetrying(
            retry=retry_if_exception(_can_pass),
            wait=_wait,
            stop=stop_after_delay(PATIENCE_S),
            reraise=True,
        )
        try:
            async with slots:
                completion: ChatCompletion = await retrying(
                    self._ask, client, conversation, seed, sampling
                )
        except OpenAIError as error:
            if _is_too_long(error):
                return Reply("", "prompt_too_long")
            raise self._failed(error) from None
        except _NoCompletionError as error:
            raise self._failed(error) from None
        return _read(completion)

    async def _ask(
        self, client: AsyncOpenAI, conversation: Conversation, seed: int, sampling: Sampling
    ) -> ChatCompletion:
        """Ask once, without what this server is known not to take; that is found out."""
        from openai import APIStatusError

        while True:
            refused = self._refused
            body = _body(self.model, conversation, seed, sampling, refused)
            try:
                completion: Any = await client.chat.completions.create(**body)
            except ValueError as error:
                raise _NoCompletionError(f"the body is no completion: {error}") from None
            except APIStatusError as error:
                if not (more := _refusals(error) - refused):
                    raise
                self._refused |= more
            else:
                return _checked(completion)

    def _failed(self, error: Exception) -> PolicyError:
        """Return what the user is told, without the key: servers echo it."""
        text = str(getattr(error, "message", error))
        if self._secret:
            text = text.replace(self._secret, "[key]")
        said = " ".join(_KEYLIKE.sub("[key]", text).split())[:_LONGEST_MESSAGE]
        status = getattr(error, "status_code", None)
        cause = error.__cause__
        if status is None and cause is not None:
            said = f"{said} ({type(cause).__name__}: {cause})"[:_LONGEST_MESSAGE]
        return PolicyError(
            f"model {self.model!r} at {self._url} gave no answer: {said}; {_fix(status)}"
        )


class _NoCompletionError(Exception):
    """A body without a completion in it."""


def _check(base_url: str, secret: str) -> None:
    url = urlsplit(base_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise PolicyError(f"{base_url!r} is no address; write it as http://HOST:PORT/v1#MODEL")
    if url.username or url.password:
        raise PolicyError(
            f"the address at {url.hostname} has a user or a password in it, which would be stored; "
            f"put the key into the environment variable {KEY} instead"
        )
    for package in ("openai", "tenacity"):
        if importlib.util.find_spec(package) is None:
            raise PolicyError(f"{package} is not installed; pip install 'mappa[coach]'")
    if not secret and not _is_loopback(url.hostname):
        raise PolicyError(
            f"the environment variable {KEY} is not set; {url.hostname} wants a key, put it there"
        )
    if not (secret.isascii() and secret.isprintable()):
        raise PolicyError(f"the key in {KEY} has characters that no key has; set it anew")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _body(
    model: str, conversation: Conversation, seed: int, sampling: Sampling, refused: frozenset[str]
) -> dict[str, Any]:
    limit = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
    body = {
        "model": model,
        "messages": [dict(message) for message in conversation],
        "temperature": sampling.temperature,
        limit: sampling.max_new_tokens,
    }
    return body if "seed" in refused else {**body, "seed": seed}


def _refusals(error: Exception) -> frozenset[str]:
    """Return the parameters that a server says it does not take."""
    if getattr(error, "status_code", None) not in (400, 422):
        return frozenset()
    said = f"{getattr(error, 'param', '')} {getattr(error, 'message', error)}"
    return frozenset(name for name in _ADAPTABLE if re.search(rf"\b{name}\b", said))


def _checked(completion: Any) -> ChatCompletion:
    """Return the completion, if the server sent one: the client does not look."""
    choices = getattr(completion, "choices", None)
    if not isinstance(choices, list) or not choices or getattr(choices[0], "message", None) is None:
        raise _NoCompletionError(f"the body is no completion: {completion!r:.120}")
    return completion  # type: ignore[no-any-return]


def _read(completion: ChatCompletion) -> Reply:
    choice, usage = completion.choices[0], completion.usage
    return Reply(
        text=choice.message.content or choice.message.refusal or "",
        finish_reason=_FINISH.get(choice.finish_reason, "stop"),
        prompt_tokens=usage.prompt_tokens if usage else None,
        tokens=usage.completion_tokens if usage else None,
    )


def _can_pass(error: BaseException) -> bool:
    """Whether trying again can help."""
    from openai import APIConnectionError, APIStatusError

    if isinstance(error, APIStatusError):
        if error.status_code == 429:
            return error.code != "insufficient_quota"
        return error.status_code in (408, 409) or error.status_code >= 500
    return isinstance(error, APIConnectionError | _NoCompletionError)


def _wait(state: RetryCallState) -> float:
    """Return how long to wait: as long as the server asks, and a random time on top."""
    from tenacity import wait_random_exponential

    error = state.outcome.exception() if state.outcome else None
    response = getattr(error, "response", None)
    asked = _seconds(response.headers.get("retry-after", "")) if response is not None else 0.0
    return asked + wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)(state)


def _seconds(header: str) -> float:
    try:
        seconds = float(header)
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT_S) if math.isfinite(seconds) else 0.0


def _is_too_long(error: OpenAIError) -> bool:
    said = f"{getattr(error, 'code', '')} {getattr(error, 'message', error)}"
    return getattr(error, "status_code", None) == 400 and bool(_TOO_LONG.search(said))


def _fix(status: int | None) -> str:
    fixes = {
        401: f"check the key in {KEY}",
        403: f"check what the key in {KEY} may do",
        404: "check the address, which often ends in /v1, and the name of the model",
    }
    return "see that it runs and can be reached" if status is None else fixes.get(status, _MEND)
