"""Recipes: everything that decides a run, as one TOML file.

The tables `[scenario]`, `[coach]` and `[sandbox]` belong to the environment and pass to its
`make` unread. All other keys are checked here, before anything is written or loaded.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from mappa_trainer.errors import RecipeError

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)
"""TOML types its values, so `true` is no 1 and `"3"` no 3; a whole number may be a float."""


class EnvTable(BaseModel):
    """Which environment to play, found through PettingZoo's registry."""

    model_config = _STRICT

    module: str
    """Imported first, so that it can register its environments."""
    id: str


class ModelTable(BaseModel):
    """Which weights every agent starts from."""

    model_config = _STRICT

    base: str
    """A Hugging Face folder, or a name `mappa_trainer.models` knows."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the matrix products in training; weights are always float32."""
    sampler_precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the copy of the weights that generates."""
    token_budget: int = Field(default=4096, ge=1)
    """Positions, padding included, that go through a model at a time in training."""


class SamplingTable(BaseModel):
    """How actions are drawn in training."""

    model_config = _STRICT

    temperature: float = Field(default=1.0, gt=0)
    max_new_tokens: int = Field(default=256, ge=1)
    max_new_tokens_of: dict[str, PositiveInt] = {}
    """Other limits for single agents, e.g. `{solver_0 = 40}`."""

    def limit(self, agent: str) -> int:
        """Return the most tokens of one action of `agent`."""
        return self.max_new_tokens_of.get(agent, self.max_new_tokens)


class AlgorithmTable(BaseModel):
    """REINFORCE++ with a KL penalty in the reward and PPO's clip; arXiv 2501.03262."""

    model_config = _STRICT

    advantage: str = "reinforce++"
    loss: str = "ppo_clip"
    learning_rate: float = Field(default=1e-6, gt=0)
    warmup_updates: int = Field(default=0, ge=0)
    kl_coef: float = Field(default=0.01, ge=0)
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per policy token."""
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.2, gt=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    shuffle_rewards: bool = False
    """A control: deal each agent's rewards out among its actions at random, so that nothing can
    be learned from them."""


class TrainTable(BaseModel):
    """How long to train and what to keep."""

    model_config = _STRICT

    seed: int = 0
    iterations: int = Field(ge=1)
    episodes: int = Field(ge=1)
    """Episodes collected in each iteration."""
    updates: int = Field(default=1, ge=1)
    """Optimiser steps of each agent in each iteration; episodes are dealt out among them."""
    max_logprob_gap: float = Field(default=0.5, gt=0)
    """The run stops when the engine's and the learner's log-probabilities of the same tokens
    differ by more than this on average: then one of them has the wrong weights."""
    max_unscored: float = Field(default=0.5, ge=0, le=1)
    """The run stops before it trains on an iteration when a larger share of the iteration's
    actions is unscored: what is left says too little of the team."""
    save_every: int = Field(default=1, ge=1)
    keep_checkpoints: int = Field(default=1, ge=1)


class EvalTable(BaseModel):
    """The evaluation on held-out tasks before, during and after training."""

    model_config = _STRICT

    problems: int = Field(default=64, ge=2)
    every: int = Field(default=5, ge=1)
    """Iterations between evaluations; the first is before training, the last after."""
    greedy: bool = True
    """Whether to evaluate greedy actions besides sampled ones."""


class Recipe(BaseModel):
    """One training run; `load_recipe` reads it and `save` writes it into the run directory."""

    model_config = _STRICT

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    """Begins the name of the run directory."""
    env: EnvTable
    scenario: dict[str, Any] | None = None
    coach: dict[str, Any] | None = None
    sandbox: dict[str, Any] | None = None
    model: ModelTable
    sampling: SamplingTable = SamplingTable()
    algorithm: AlgorithmTable = AlgorithmTable()
    train: TrainTable
    eval: EvalTable = EvalTable()

    @property
    def eval_modes(self) -> dict[str, float]:
        """How each evaluation is played, with the temperature: `sampled`, and `greedy` if asked."""
        modes = {"sampled": self.sampling.temperature}
        return {**modes, "greedy": 0.0} if self.eval.greedy else modes


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply overrides such as `train.iterations=2`.

    Raises:
        RecipeError: the file is missing or not TOML, a key is unknown, a value is not allowed,
            or an override is not of the form `table.key=value`.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}; give a recipe file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: is not TOML: {error}") from None
    for override in overrides:
        _apply(table, override)
    return parse_recipe(table, f"{path} with --set" if overrides else str(path))


def parse_recipe(table: Mapping[str, Any], where: str) -> Recipe:
    """Check a recipe given as plain data; `where` names it in errors.

    Raises:
        RecipeError: see `load_recipe`.
    """
    try:
        return Recipe.model_validate(table)
    except ValidationError as error:
        raise RecipeError(f"{where}: {_first_problem(error)}") from None


def _apply(table: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise RecipeError(f"--set {override!r}: write it as table.key=value")
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise RecipeError(f"--set {override!r}: {key!r} is a value, not a table")
    table[keys[-1]] = _value(text)


def _value(text: str) -> Any:
    """Read a TOML value; what is none is a plain string, so paths need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _first_problem(error: ValidationError) -> str:
    problems = error.errors()
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    problem = next(unknown, problems[0])  # a misspelt key is the reason why another is missing
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown key {where!r}; {_suggestion(problem['loc'])}"
    if problem["type"] == "missing":
        return f"key {where!r} is missing; add it"
    said = problem["msg"].replace("valid tuple", "list")
    return f"{where!r} is {problem['input']!r}: {said}"


def _suggestion(loc: tuple[int | str, ...]) -> str:
    model: Any = Recipe
    for key in loc[:-1]:
        model = model.model_fields[key].annotation
    known = list(model.model_fields)
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
