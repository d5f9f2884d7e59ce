"""Makes the coach that a `[coach]` table describes.

What pays (`process_weight`, `credit`, ...) and when (`deferred`, `hindsight`) is the wrapper's part
of that table; here are the keys of each kind of coach.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mappa_envs.coach.protocol import Coach
from mappa_envs.coach.replay import ReplayCoach
from mappa_envs.coach.rubric import RubricCoach
from mappa_envs.errors import ScenarioError, did_you_mean
from mappa_envs.mistakes import table_mistakes
from mappa_envs.scenario import Scenario

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RubricTable(BaseModel):
    """The rubrics of the scenario; no keys of its own."""

    model_config = _STRICT


class LLMTable(BaseModel):
    """A model behind an OpenAI-compatible endpoint."""

    model_config = _STRICT

    model: str = Field(min_length=1)
    base_url: str | None = None
    """Where the endpoint is, e.g. `"http://127.0.0.1:8000/v1"`; OpenAI's, or what the variable
    OPENAI_BASE_URL says, if there is none."""
    api_key_env: str = Field(default="OPENAI_API_KEY", pattern=r"^[A-Za-z_]\w*$")
    """The name of the environment variable that holds the key."""
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=1024, ge=16)
    """The most tokens of a reply, thinking included."""
    json_schema: bool | None = None
    """Whether replies are held to a JSON schema; None finds out whether the server can."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Of one request."""
    deadline_s: float = Field(default=300.0, gt=0)
    """Of one judgement, with all retries and waits."""
    concurrency: int = Field(default=16, ge=1)
    """Requests under way at a time, of all environments of the process together."""
    repairs: int = Field(default=1, ge=0)
    """How often a model is asked again whose reply holds no verdict."""
    cache: str | None = None
    """A folder that keeps every reply."""
    prices: str | None = None
    """A TOML file of prices, laid over those that ship."""
    budget_usd: float | None = Field(default=None, ge=0)
    over_budget: Literal["unscored", "rubric"] = "unscored"
    """What becomes of actions for which the budget is too small."""
    scale: float = Field(default=10.0, gt=0)
    """The best score that the model may give."""
    ground_truth: bool = False
    """Whether the model sees the right answer for roles with `coach_sees_truth`."""


class ReplayTable(BaseModel):
    """A recorded run."""

    model_config = _STRICT

    recording: str = Field(min_length=1)
    """A run directory, or one of its episode files."""
    strict: bool = True
    """Whether a turn that was never recorded ends the run; if not, it is unscored."""


def _rubric(scenario: Scenario, table: RubricTable) -> Coach:
    return RubricCoach(scenario)


def _llm(scenario: Scenario, table: LLMTable) -> Coach:
    from mappa_envs.coach.endpoint import endpoint_of
    from mappa_envs.coach.llm import LLMCoach
    from mappa_envs.coach.settings import Settings

    settings = Settings(**{field.name: getattr(table, field.name) for field in fields(Settings)})
    endpoint = endpoint_of(settings)
    if settings.cache is None or not Path(settings.cache).is_dir():
        endpoint.check()  # where everything may be in a cache, the first call that is not does so
    fallback = RubricCoach(scenario) if table.over_budget == "rubric" else None
    return LLMCoach(
        scenario,
        endpoint,
        scale=table.scale,
        ground_truth=table.ground_truth,
        over_budget=fallback,
    )


def _replay(scenario: Scenario, table: ReplayTable) -> Coach:
    return ReplayCoach(Path(table.recording), strict=table.strict)


KINDS: Mapping[str, tuple[type[BaseModel], Callable[[Scenario, Any], Coach]]] = {
    "rubric": (RubricTable, _rubric),
    "llm": (LLMTable, _llm),
    "replay": (ReplayTable, _replay),
}


def make_coach(table: Mapping[str, Any], scenario: Scenario, others: Collection[str] = ()) -> Coach:
    """Return the coach of a table.

    Args:
        table: With `kind`, `"rubric"` when it is left out, and the keys of that kind.
        scenario: Whose roles are judged.
        others: Keys of the table that are not the coach's own.

    Raises:
        ScenarioError: the kind or a key is unknown, a value is not allowed, a role lacks what the
            coach judges it by, or the coach cannot be used, e.g. for want of a key.
    """
    kind = table.get("kind", "rubric")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ScenarioError(f"coach.kind is {kind!r:.80}; known: {', '.join(KINDS)}")
    model, make = KINDS[kind]
    known = sorted(("kind", *others, *model.model_fields))
    for unknown in table.keys() - set(known):
        hint = did_you_mean(unknown, known)
        raise ScenarioError(f"coach: unknown key {unknown!r}; {hint}")
    own = {key: value for key, value in table.items() if key in model.model_fields}
    try:
        checked = model.model_validate(own)
    except ValidationError as error:
        raise ScenarioError(*(f"coach.{m}" for m in table_mistakes(error, model, own))) from None
    return make(scenario, checked)
