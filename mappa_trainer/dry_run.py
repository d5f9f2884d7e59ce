"""`mappa train --dry-run`: what a run will do, and what its coach will cost, before it begins.

An environment whose coach asks a model says what it knows of it by a method `coach_plan()`, which
returns plain data, numbers as `[fewest, expected, most]`:

    {
        "kind": "llm",
        "model": "some-model",
        "hindsight": False,
        "roles": {
            "solver": {
                "actions": [1, 1, 2],
                "input_tokens": [900, 1300, 5200],
                "output_tokens": [1, 120, 1024],
            },
        },
        "usd_per_million": {"input": 0.3, "output": 2.5},
        "budget_usd": 5.0,
    }

`actions` is how many actions a role takes in an episode, and the tokens are those of one call,
which judges one action. Prices that are not known are None, and so is a budget that is not set.
Where there is no such method, or it returns None, the coach asks no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import ceil
from operator import add
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError
from rich.markup import escape
from rich.table import Table

from mappa_trainer.coaching import dollars
from mappa_trainer.console import Console
from mappa_trainer.environment import check_recipe, make_env
from mappa_trainer.errors import RecipeError
from mappa_trainer.leakage import check_splits
from mappa_trainer.recipe import Recipe

NOT_COUNTED = (
    "not counted: requests that are repeated, what a cache already holds, and episodes that are "
    "cut off"
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is expected, with its bounds, e.g. `Estimate(40, 120, 1024)`."""

    fewest: float
    expected: float
    most: float

    def __add__(self, other: Estimate) -> Estimate:
        """Add the fewest to the fewest, and so on."""
        return Estimate(
            self.fewest + other.fewest, self.expected + other.expected, self.most + other.most
        )

    def __mul__(self, other: Estimate | float) -> Estimate:
        """Multiply in the same way; a number is all three."""
        factor = other if isinstance(other, Estimate) else Estimate(other, other, other)
        return Estimate(
            self.fewest * factor.fewest,
            self.expected * factor.expected,
            self.most * factor.most,
        )


@dataclass(frozen=True, slots=True)
class Judging:
    """What judging takes: calls of a model, tokens, and money."""

    calls: Estimate
    input_tokens: Estimate
    output_tokens: Estimate
    usd: Estimate | None
    """US dollars; None where the price is not known."""

    def __add__(self, other: Judging) -> Judging:
        """Return both together; a price that is not known makes the sum unknown."""
        return Judging(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            None if self.usd is None or other.usd is None else self.usd + other.usd,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do."""

    iterations: int
    episodes: int
    """To train on, of all iterations."""
    evaluations: int
    evaluation_episodes: int
    """Of all evaluations."""
    model: str | None = None
    """Which model judges; None where none does, and the coach costs nothing."""
    judging: Mapping[str, Judging] = field(default_factory=dict)
    """By agent; empty where no model judges."""
    budget_usd: float | None = None
    """US dollars that the coach may spend; None where no limit is set."""

    @property
    def total(self) -> Judging | None:
        """What judging takes of all agents; None where no model judges."""
        return reduce(add, self.judging.values()) if self.judging else None


@dataclass(frozen=True, slots=True)
class Survey:
    """What can be known of a run by looking at its environment."""

    agents: tuple[str, ...]
    planned: Plan
    actions: Mapping[str, tuple[int, int]]
    """The fewest and the most of each agent in an episode; empty where it is not known."""
    allowed: str = ""
    """What there is to say of test problems that are trained on, too; see `check_splits`."""


def survey(recipe: Recipe) -> Survey:
    """Look at the recipe's environment; nothing is written, loaded or asked.

    Raises:
        RecipeError: the recipe does not describe a run; see `make_env` and `check_recipe`.
        LeakageError: the run would be evaluated on what it trains on.
    """
    env = make_env(recipe)
    try:
        check_recipe(recipe, env)
        _, allowed = check_splits(recipe, env)
        coach_plan = getattr(env, "coach_plan", lambda: None)()
        return Survey(
            tuple(env.possible_agents),
            plan(recipe, coach_plan, env.possible_agents),
            {agent: (low, high) for agent, (low, high) in env.metadata.get("actions", {}).items()},
            allowed,
        )
    finally:
        env.close()


def dry_run(recipe: Recipe) -> None:
    """Print what a run of the recipe will do; see `survey`."""
    console = Console()
    found = survey(recipe)
    console.say(f"run {recipe.name}, not started:")
    if found.allowed:
        console.say(found.allowed)
    say_plan(console, found.planned)


def say_plan(console: Console, planned: Plan) -> None:
    """Print what is played, who judges it, and what that costs."""
    for line in work_lines(planned):
        console.say(line)
    if planned.judging:
        console.table(judging_table(planned))
        for line in (NOT_COUNTED, *budget_lines(planned)):
            console.say(line)


def plan(recipe: Recipe, coach_plan: Mapping[str, Any] | None, agents: Sequence[str]) -> Plan:
    """Work out what a run will do.

    Args:
        recipe: Of the run.
        coach_plan: What the environment says of its coach; None for one that asks no model.
        agents: The seats, e.g. `["solver_0", "coder_0"]`.

    Raises:
        RecipeError: `coach_plan` is not as this module describes it, or lacks a role.
    """
    evaluations = ceil(recipe.train.iterations / recipe.eval.every) + 1  # the last, at the end
    episodes = recipe.train.iterations * recipe.train.episodes
    evaluated = evaluations * recipe.eval.problems * len(recipe.eval_modes)
    work = Plan(recipe.train.iterations, episodes, evaluations, evaluated)
    if coach_plan is None:
        return work
    coach = _read(coach_plan)
    judging = {agent: _judging(coach, agent, episodes + evaluated) for agent in agents}
    return replace(work, model=coach.model, judging=judging, budget_usd=coach.budget_usd)


def work_lines(planned: Plan) -> Iterator[str]:
    """Yield what is played, and who judges it."""
    yield f"{planned.iterations} iterations, {planned.episodes:,} episodes to train on in all"
    yield f"{planned.evaluations} evaluations, {planned.evaluation_episodes:,} episodes in all"
    if not planned.judging:
        yield "the coach asks no model and costs nothing"


def judging_table(planned: Plan) -> Table:
    """Return a table of what judging takes, by agent and in all."""
    title = f"what {escape(str(planned.model))} judges: expected, and from the fewest to the most"
    table = Table(title=title, title_justify="left")
    for column in ("", "calls", "input tokens", "output tokens", "USD"):
        table.add_column(column, justify="left" if not column else "right", overflow="fold")
    for name, one in planned.judging.items():
        table.add_row(name, *_cells(one))
    if planned.total is not None:
        table.add_section()
        table.add_row("in all", *_cells(planned.total))
    return table


def budget_lines(planned: Plan) -> Iterator[str]:
    """Yield whether the budget lasts; nothing where it does, or where it cannot be known."""
    budget, total = planned.budget_usd, planned.total
    if budget is None or total is None or total.usd is None:
        return
    bounds = (
        (total.usd.fewest, "the least that the run costs", "it will stop before its end"),
        (total.usd.expected, "what the run is expected to cost", "it is expected to stop early"),
        (total.usd.most, "the most that the run may cost", "it may stop before its end"),
    )
    for bound, what, then in bounds:
        if budget < bound:
            yield (
                f"the budget of {dollars(budget)} is below {what}, {dollars(bound)}: {then}; "
                "raise coach.budget_usd or shorten the run"
            )
            return


_Bounds = Annotated[
    tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat], Field(strict=False)
]
_CHECKED = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class _Role(BaseModel):
    model_config = _CHECKED

    actions: _Bounds
    input_tokens: _Bounds
    output_tokens: _Bounds


class _Prices(BaseModel):
    model_config = _CHECKED

    input: NonNegativeFloat
    output: NonNegativeFloat


class _CoachPlan(BaseModel):
    model_config = _CHECKED

    model: str
    hindsight: bool
    roles: dict[str, _Role]
    usd_per_million: _Prices | None
    budget_usd: NonNegativeFloat | None


def _read(coach_plan: Mapping[str, Any]) -> _CoachPlan:
    try:
        return _CoachPlan.model_validate(coach_plan)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RecipeError(
            f"the environment's coach_plan(), {where!r} is {first['input']!r:.80}: "
            f"{first['msg']}; mend the environment"
        ) from None


def _judging(coach: _CoachPlan, agent: str, episodes: int) -> Judging:
    """Return what it takes to judge an agent's actions in so many episodes."""
    name = agent.rpartition("_")[0]  # PettingZoo's agents are called by their kind and a number
    if name not in coach.roles:
        raise RecipeError(
            f"the environment's coach_plan() says nothing of the role of {agent}; its "
            f"roles are {', '.join(coach.roles) or 'none'}; mend the environment"
        )
    role = coach.roles[name]
    calls = Estimate(*role.actions) * (2 if coach.hindsight else 1) * episodes
    read, written = calls * Estimate(*role.input_tokens), calls * Estimate(*role.output_tokens)
    price = coach.usd_per_million
    usd = None if price is None else read * (price.input / 1e6) + written * (price.output / 1e6)
    return Judging(calls, read, written, usd)


def _cells(one: Judging) -> Iterator[str]:
    for values in (one.calls, one.input_tokens, one.output_tokens):
        yield _text(values, "{:,.0f}".format)
    yield "not known" if one.usd is None else _text(one.usd, dollars)


def _text(values: Estimate, form: Callable[[float], str]) -> str:
    expected, low, high = map(form, (values.expected, values.fewest, values.most))
    return expected if low == high else f"{expected} ({low} to {high})"
