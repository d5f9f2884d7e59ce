"""Calls of an OpenAI-compatible server: in bounded number, retried where that can help.

This is the one module that imports the client (extra `coach`).
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import re
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import openai
from pydantic import BaseModel, Field, ValidationError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_before_delay,
    wait_random_exponential,
)

from mappa_envs.coach.background import SharedCalls
from mappa_envs.coach.requests import Answer, Attempts, CallFailed, Request
from mappa_envs.types import Spent

if TYPE_CHECKING:
    from mappa_envs.coach.budget import Budget, Price
    from mappa_envs.coach.settings import Settings

FIRST_WAIT_S = 0.5
"""The longest wait before the first retry; it doubles with each, up to `LONGEST_WAIT_S`."""
LONGEST_WAIT_S: Final = 30.0
_TRANSIENT: Final = ("unreachable", "rate_limited")
_SHORTEST_KEY: Final = 8
"""What is shorter is no secret, and may be part of any text."""
_ADAPTABLE: Final = ("response_format", "max_tokens", "temperature")


class Line:
    """One process's line to one endpoint: its client, its slots and what the server takes.

    Made and used on one event loop.
    """

    def __init__(
        self, settings: Settings, url: str, key: str, price: Price | None, budget: Budget
    ) -> None:
        self._client = openai.AsyncOpenAI(
            api_key=key,
            base_url=url,
            max_retries=0,
            timeout=settings.timeout_s,
        )
        finalizer = weakref.finalize(self, _close, self._client, asyncio.get_running_loop())
        finalizer.atexit = False
        self._key = key
        self._settings = settings
        self._price = price
        self._budget = budget
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._refused: frozenset[str] = frozenset()
        self.spent = Spent()
        self.shared: SharedCalls[Answer] = SharedCalls()
        """Equal requests on their way to a cache."""

    async def ask(self, request: Request, attempts: Attempts) -> Answer:
        """Return the answer to a request, trying again while that can help and time is left.

        Raises:
            CallFailed: there is none.
            CoachError: the request does not fit the budget.
        """
        left = attempts.deadline - asyncio.get_running_loop().time()
        retrying = AsyncRetrying(
            retry=retry_if_exception(_can_pass),
            wait=_wait,
            stop=stop_before_delay(left),
            sleep=asyncio.sleep,
            reraise=True,
        )
        return await retrying(self._adapted, request, attempts)

    async def _adapted(self, request: Request, attempts: Attempts) -> Answer:
        """Ask without what this server does not take, which is found out.

        It is remembered where the server named it; what is only guessed is left out once.
        """
        refused, named = self._refused, frozenset[str]()
        while True:
            try:
                answer = await self._paid(request, refused, attempts)
            except CallFailed as failed:
                attempts.last = failed
                more = failed.refused & self._adaptable(request, refused)
                if not more:
                    raise
                refused |= more
                named |= more if failed.names_refused else frozenset()
            else:
                self._refused |= named
                return answer

    def _adaptable(self, request: Request, refused: frozenset[str]) -> frozenset[str]:
        """Return what may be left out of a request besides what is left out already."""
        fixed = {"response_format"} if self._settings.json_schema or not request.json_schema else ()
        return frozenset(_ADAPTABLE) - refused - set(fixed)

    async def _paid(self, request: Request, refused: frozenset[str], attempts: Attempts) -> Answer:
        """Ask once, in a slot, within the budget."""
        cost = Spent(calls=1, usd=None if self._price is None else 0.0)
        most = self._cost(request.most_input_tokens, request.max_tokens) or 0.0
        async with self._slots, self._budget.reserved(most) as spend:
            try:
                answer = await self._once(request, refused)
                spend(most if answer.usd is None else answer.usd)
                cost = Spent(1, answer.input_tokens, answer.output_tokens, answer.usd)
                return answer
            finally:
                attempts.spent += cost
                self.spent += cost

    async def _once(self, request: Request, refused: frozenset[str]) -> Answer:
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                response = await self._client.chat.completions.with_raw_response.create(
                    **request.body(refused)
                )
        except TimeoutError:
            raise _timed_out(self._settings.timeout_s) from None
        except openai.OpenAIError as error:
            raise _failed(error, self._settings.timeout_s) from None
        text = response.content.decode(errors="replace")
        return self._read(self._without_key(text))  # some servers echo all

    def _without_key(self, text: str) -> str:
        return text if len(self._key) < _SHORTEST_KEY else text.replace(self._key, "[key]")

    def _read(self, text: str) -> Answer:
        try:
            completion = _Completion.model_validate_json(text)
        except ValidationError:
            raise CallFailed("unreachable", f"the body is no completion: {text!r:.120}") from None
        choice, counted = completion.choices[0], completion.tokens
        tokens = counted or (0, 0)
        return Answer(
            text=choice.message.text,
            finish_reason=choice.finish_reason or "stop",
            refusal=choice.message.refusal or None,
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            usd=self._cost(*tokens) if counted else None,
        )

    def _cost(self, input_tokens: int, output_tokens: int) -> float | None:
        return None if self._price is None else self._price.cost(input_tokens, output_tokens)


def _close(client: openai.AsyncOpenAI, loop: asyncio.AbstractEventLoop) -> None:
    """Close a client on its own loop; left alone it would do so on that of whoever drops it."""
    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(client.close(), loop)


def _can_pass(error: BaseException) -> bool:
    return isinstance(error, CallFailed) and error.failure in _TRANSIENT


def _wait(state: RetryCallState) -> float:
    """Return how long to wait: as long as the server asks, and a random time on top."""
    failed = state.outcome.exception() if state.outcome else None
    asked = failed.wait_s if isinstance(failed, CallFailed) else 0.0
    return asked + wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)(state)


def _timed_out(seconds: float) -> CallFailed:
    return CallFailed("unreachable", f"no answer within {seconds:g} s")


def _failed(error: openai.OpenAIError, timeout_s: float) -> CallFailed:
    """Return what an error of the client means."""
    if isinstance(error, openai.APITimeoutError):
        return _timed_out(timeout_s)
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__
        return CallFailed("unreachable", f"no connection: {type(cause).__name__}: {cause}")
    if not isinstance(error, openai.APIStatusError):
        return CallFailed("refused", str(error))
    status = error.status_code
    wait_s = retry_after_s(error.response.headers.get("retry-after", ""))
    if status == 429 and error.code != "insufficient_quota":
        return CallFailed("rate_limited", error.message, wait_s=wait_s)
    if status in (408, 409) or status >= 500:
        return CallFailed("unreachable", error.message, wait_s=wait_s)
    named = _named_parameters(error) if status in (400, 422) else []
    guessed = ["response_format"] if status in (400, 422) else []
    refused = frozenset(named or guessed)
    return CallFailed("refused", error.message, refused=refused, names_refused=bool(named))


def _named_parameters(error: openai.APIStatusError) -> list[str]:
    """Return the parameter that the server says it does not take, if it says so.

    Where it names none it may still be the schema: servers that do not know it say all kinds of
    things.
    """
    said = f"{error.param} {error.message}"
    return [name for name in _ADAPTABLE if re.search(rf"\b{name}\b", said)][-1:]


def retry_after_s(header: str, now: Callable[[], float] = time.time) -> float:
    """Return the seconds that a Retry-After header asks to wait; 0 where it says nothing clear.

    >>> retry_after_s("2")
    2.0
    >>> retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", now=lambda: 50)
    10.0
    """
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - now()
        except (ValueError, OverflowError):
            return 0.0
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


_Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    text: str = ""


class _Message(BaseModel):
    content: str | list[_Part] | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        """The content, which some servers send in parts."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None


class _Completion(BaseModel):
    """What is read of a completion; what else servers put into it is ignored."""

    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None

    @property
    def tokens(self) -> tuple[int, int] | None:
        """How many were read and written; None where the server does not say both."""
        read = self.usage.prompt_tokens if self.usage else None
        written = self.usage.completion_tokens if self.usage else None
        return None if read is None or written is None else (read, written)
