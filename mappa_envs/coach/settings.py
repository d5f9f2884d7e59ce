"""How a model that coaches is asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Which model judges, how it is asked, and what that may take."""

    model: str
    base_url: str | None = None
    """Where it is; None for `OPENAI_BASE_URL`, or OpenAI itself."""
    api_key_env: str = "OPENAI_API_KEY"
    """The name of the environment variable that holds the key."""
    temperature: float = 0.0
    max_tokens: int = 1024
    """Of an answer."""
    json_schema: bool | None = None
    """Whether to ask for JSON by a schema; None to ask unless the server refuses that."""
    timeout_s: float = 60.0
    """Seconds for one request."""
    deadline_s: float = 300.0
    """Seconds for one judgement, with its waits and retries."""
    concurrency: int = 16
    """Requests that run at a time in this process."""
    repairs: int = 1
    """How often one judgement asks again after an answer without a verdict."""
    cache: str | None = None
    """The folder of `ReplyCache`; None for none."""
    prices: str | None = None
    """A TOML file laid over the shipped prices."""
    budget_usd: float | None = None
    """What may be spent through the cache's folder or, without one, by this process."""
