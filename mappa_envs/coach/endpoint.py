"""A model behind an OpenAI-compatible endpoint, asked for verdicts.

All calls of a process run on one event loop in the background, so the limit on how many run at a
time holds whether they are awaited, made from threads, or made by hundreds of environments, and no
call holds up the end of the process.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import os
import re
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from mappa_envs.coach.background import background
from mappa_envs.coach.budget import Budget, load_prices
from mappa_envs.coach.cache import ReplyCache
from mappa_envs.coach.replies import read_answer
from mappa_envs.coach.requests import Answer, Attempts, CallFailed, Request, repaired
from mappa_envs.coach.settings import Settings
from mappa_envs.errors import CoachError, ScenarioError
from mappa_envs.types import Message, Spent

if TYPE_CHECKING:
    from mappa_envs.coach.calls import Line

_LARGEST_SCORE: Final = 10.0
_OFFICIAL_URL: Final = "https://api.openai.com/v1"
_PLACEHOLDER_KEY: Final = "no-key-is-set"
_LONGEST_MESSAGE: Final = 500
_KEYLIKE: Final = re.compile(r"\bsk-[\w*.-]{4,}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A model's judgement, e.g. `Verdict(8.0, "The sum is right.", "9f86...", Spent(1))`."""

    score: float
    """0 to 10, whatever scale the model was asked for."""
    rationale: str
    prompt_hash: str
    """SHA-256 of the first request, in hexadecimal."""
    spent: Spent


class Endpoint:
    """One model at one address, as one set of settings has it; get it from `endpoint_of`.

    An answer without a verdict is asked for again, the whole task repeated, `repairs` times; one
    that was cut off once, with twice the room. What cannot be had ends as a `CoachError` that
    says why. With a cache, equal requests are made once.
    """

    def __init__(self, settings: Settings) -> None:
        """Look up the price; nothing is sent yet.

        Raises:
            ScenarioError: the price file is wrong, there is a budget and no price, the address has
                a password in it, or the cache is no folder.
        """
        self.settings = settings
        _check_address(self._url)
        if settings.cache is not None and Path(settings.cache).is_file():
            raise ScenarioError(f"coach.cache is {settings.cache!r}, a file; name a folder")
        self._price = load_prices(settings.prices).get(settings.model)
        if settings.budget_usd is not None and self._price is None:
            raise ScenarioError(
                f"coach.budget_usd is {settings.budget_usd:g}, and the price of "
                f"{settings.model!r} is not known; name a TOML file in coach.prices with its US "
                f'dollars per million tokens: ["{settings.model}"] input = 0.40 output = 1.60'
            )
        self._cache = None if settings.cache is None else ReplyCache(settings.cache)
        self._lines: dict[int, Line] = {}

    @property
    def spent(self) -> Spent:
        """What this process has spent here so far."""
        line = self._lines.get(os.getpid())
        return line.spent if line else Spent()

    @property
    def usd_per_million(self) -> dict[str, float] | None:
        """US dollars per million tokens, by `"input"` and `"output"`; None where not known."""
        if self._price is None:
            return None
        return {"input": self._price.input, "output": self._price.output}

    def check(self) -> None:
        """See whether the model can be asked at all, without asking it.

        Raises:
            ScenarioError: the client is not installed, or the key is missing.
        """
        for package in ("openai", "tenacity"):
            if importlib.util.find_spec(package) is None:
                raise ScenarioError(f"{package} is not installed; pip install 'mappa[coach]'")
        url = urlsplit(self._url)
        name = self.settings.api_key_env
        if not self._key:
            raise ScenarioError(
                f"the environment variable {name} is not set; {url.hostname} wants a key, so put "
                "it there, or name another variable in coach.api_key_env"
            )
        if not (self._key.isascii() and self._key.isprintable()):
            raise ScenarioError(f"the key in {name} has characters that no key has; set it anew")

    async def judge(self, messages: tuple[Message, ...], scale: float, sample: int = 0) -> Verdict:
        """Return the model's verdict; when this is cancelled, so is the request.

        Args:
            messages: What the model is asked.
            scale: The highest score that the messages declare; the lowest is 0.
            sample: Tells judgements of the same messages apart, also in the cache.

        Raises:
            CoachError: there is no verdict; with its failure and what the attempts cost.
            ScenarioError: the model cannot be asked at all, see `check`.
            OSError: the cache cannot be written.
        """
        return await asyncio.wrap_future(self._begin(messages, scale, sample))

    def judge_blocking(
        self, messages: tuple[Message, ...], scale: float, sample: int = 0
    ) -> Verdict:
        """Return what `judge` returns, from any thread."""
        begun = self._begin(messages, scale, sample)
        try:
            return begun.result()
        finally:
            begun.cancel()

    def _begin(self, messages: tuple[Message, ...], scale: float, sample: int) -> Future[Verdict]:
        return background().submit(self._judge(messages, scale, sample))

    async def _judge(self, messages: tuple[Message, ...], scale: float, sample: int) -> Verdict:
        deadline = asyncio.get_running_loop().time() + self.settings.deadline_s
        attempts = Attempts(deadline)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._verdict(self._request(messages), scale, sample, attempts)
        except TimeoutError:
            error = self._deadline_passed(attempts)
        except CoachError as caught:
            error = caught
        calls = attempts.spent.calls
        made = f"({calls} request{'s' * (calls != 1)} made)"
        message = f"{self.settings.model}: {self._redacted(str(error))[:_LONGEST_MESSAGE]} {made}"
        raise CoachError(message, failure=error.failure, spent=attempts.spent)

    async def _verdict(
        self, request: Request, scale: float, sample: int, attempts: Attempts
    ) -> Verdict:
        prompt_hash, repairs, extensions = request.hash, self.settings.repairs, 1
        while True:
            answer = await self._answer(request, sample, attempts)
            try:
                score, rationale = read_answer(answer, scale)
            except CoachError as error:
                if error.failure == "truncated" and extensions:
                    extensions -= 1
                    request = replace(request, max_tokens=2 * request.max_tokens)
                elif error.failure in ("unparsable", "out_of_range") and repairs:
                    repairs -= 1
                    request = repaired(request, answer, str(error), scale)
                else:
                    raise
            else:
                points = score * (_LARGEST_SCORE / scale)
                return Verdict(min(points, _LARGEST_SCORE), rationale, prompt_hash, attempts.spent)

    async def _answer(self, request: Request, sample: int, attempts: Attempts) -> Answer:
        """Return the answer to a request: the cache's, or the model's."""
        if self._cache is None:
            return await self._asked(request, attempts)
        known = self._cache.get(request, sample)
        if known is not None:
            return known
        return await self._line().shared.result(
            self._cache.path(request, sample), lambda: self._kept(request, sample, attempts)
        )

    async def _kept(self, request: Request, sample: int, attempts: Attempts) -> Answer:
        answer = await self._asked(request, attempts)
        assert self._cache is not None
        self._cache.put(request, sample, answer)
        return answer

    async def _asked(self, request: Request, attempts: Attempts) -> Answer:
        try:
            return await self._line().ask(request, attempts)
        except CallFailed as failed:
            raise CoachError(str(failed), failure=failed.failure) from None

    def _request(self, messages: tuple[Message, ...]) -> Request:
        settings = self.settings
        return Request(
            settings.model,
            messages,
            settings.temperature,
            settings.max_tokens,
            json_schema=settings.json_schema is not False,
        )

    def _line(self) -> Line:
        """Return this process's line; a fork of the process opens its own.

        What a cache holds needs none, and so neither the client nor a key.
        """
        process = os.getpid()
        if process not in self._lines:
            self.check()
            from mappa_envs.coach.calls import Line

            limit = self.settings.budget_usd
            spent = self._cache.usd() if self._cache and limit is not None else 0.0
            budget = Budget(limit, spent)
            self._lines[process] = Line(self.settings, self._url, self._key, self._price, budget)
        return self._lines[process]

    def _deadline_passed(self, attempts: Attempts) -> CoachError:
        last = attempts.last
        said = f"; the last failure: {last}" if last else ""
        return CoachError(
            f"no verdict within {self.settings.deadline_s:g} s (deadline_s){said}",
            failure=last.failure if last else "unreachable",
        )

    @property
    def _url(self) -> str:
        return self.settings.base_url or os.environ.get("OPENAI_BASE_URL") or _OFFICIAL_URL

    @property
    def _secret(self) -> str:
        return os.environ.get(self.settings.api_key_env, "").strip()

    @property
    def _key(self) -> str:
        """The key, or what stands for it on this machine; empty where one is needed and unset."""
        return self._secret or (_PLACEHOLDER_KEY if _is_loopback(self._url) else "")

    def _redacted(self, text: str) -> str:
        """Return a text without the key: servers echo it, whole or in part."""
        without = text.replace(self._secret, "[key]") if self._secret else text
        return _KEYLIKE.sub("[key]", without)


def endpoint_of(settings: Settings) -> Endpoint:
    """Return the one endpoint of this process with these settings.

    Raises:
        ScenarioError: as `Endpoint` does.
    """
    key = (os.getpid(), settings)
    return _ENDPOINTS.get(key) or _ENDPOINTS.setdefault(key, Endpoint(settings))


_ENDPOINTS: dict[tuple[int, Settings], Endpoint] = {}


def _check_address(url: str) -> None:
    """Refuse what is no address, and one with a secret in it, which would be stored and shown."""
    try:
        parts = urlsplit(url)
        secret, is_address = "@" in parts.netloc, bool(parts.hostname) and parts.port != 0
    except ValueError:
        secret, is_address = "@" in url, False
    if secret:
        raise ScenarioError(
            "coach.base_url has a user name or a password in it; leave it out, and put the key "
            "into the environment variable that coach.api_key_env names"
        )
    if not is_address or parts.scheme not in ("http", "https"):
        raise ScenarioError(
            f"coach.base_url is {url!r:.100}; give an address such as 'http://localhost:8000/v1'"
        )


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
