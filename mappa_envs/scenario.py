"""Scenarios: a team's roles, prompts, tools, limits, rubric and tasks, as data.

A scenario is a folder with a `scenario.toml` and the prompt files it names. `load_scenario` reads
one, lays a table of overrides over it, and checks everything that can be checked without playing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass as checked_dataclass

from mappa_envs.errors import ScenarioError, did_you_mean
from mappa_envs.prompts import check_template
from mappa_envs.sandbox.protocol import Access, Limits

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
"""TOML types its values, so `true` is no 1 and `"3"` no 3; a whole number may be a float.

Fields that hold tuples are lax about that alone, since TOML has lists.
"""
CheckedAccess = checked_dataclass(Access, frozen=True, config=ConfigDict(extra="forbid"))


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class CheckedLimits(Limits):
    """The `[limits]` table. A strict dataclass would refuse tables, so a validator is strict."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_a_number(cls, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("Input should be a valid number")
        return value


class Role(BaseModel):
    """One seat's specification, e.g. the `[roles.coder]` table of a scenario file."""

    model_config = _STRICT

    prompt: str
    """The first user message: a file of the scenario folder, read when the scenario loads."""
    again: str = ""
    """The user message of the role's later visits, a file too; `prompt` again when empty."""
    system: str = ""
    """The system message; none is sent when empty."""
    max_turns: int = Field(default=1, ge=1)
    """Actions the role may take on one visit before it must hand off."""
    tools: tuple[Literal["python"], ...] = Field(default=(), strict=False)
    """Tools whose calls are run for this role."""
    files: CheckedAccess = Field(default_factory=CheckedAccess)  # type: ignore[valid-type]
    """Which files of the workspace its programs may read, and which of others' they may change."""
    script: tuple[str, ...] = Field(default=(), strict=False)
    """What the role says in a scripted play, action by action; fields as in its prompts."""
    rubric: dict[str, dict[str, float | int | str | bool]] = {}
    """Checks of the rubric coach by name, each with its `points` and parameters."""


class Generated(BaseModel):
    """Which problems the generator makes, where `tasks = "generated"`."""

    model_config = _STRICT

    levels: tuple[int, ...] = Field(default=(1,), strict=False)
    families: tuple[str, ...] = Field(default=(), strict=False)
    """Problem families by name; empty means every family of the levels."""


class Scenario(BaseModel):
    """A team and its tasks; see the folders under `scenarios/` for whole examples."""

    model_config = _STRICT

    name: str
    roles: dict[str, Role] = Field(min_length=1)
    """Seats in the order in which they act; the agent of role `solver` is `solver_0`."""
    order: tuple[str, ...] = Field(default=(), strict=False)
    """The roles' visits, e.g. `["pro", "con", "pro"]`; each role once, as listed, when empty."""
    tasks: str = "generated"
    """`"generated"`, or the path of a JSON or JSON-lines file of problems."""
    test_tasks: str | None = None
    """A file of held-out problems; without one a part of `tasks` is held out."""
    task_seed: int = 0
    """Seeds the generator, and the order and the held-out part of files."""
    generated: Generated = Generated()
    outcome: Literal["math_answer"]
    """Which rule gives the task's own verdict."""
    strip_thinking: bool = True
    """Whether `<role>.message` leaves out the role's thinking blocks."""
    limits: CheckedLimits = Field(default_factory=CheckedLimits)
    """Bounds on each run of agent code."""

    @field_validator("roles")
    @classmethod
    def _role_names_make_agent_names(cls, roles: dict[str, Role]) -> dict[str, Role]:
        for name in roles:
            if not (name.isascii() and name.isalpha() and name.islower()):
                raise ValueError(f"role name {name!r} must be lower-case letters only")
        return roles

    @model_validator(mode="after")
    def _order_visits_every_role(self) -> Scenario:
        for name in self.order:
            if name not in self.roles:
                hint = did_you_mean(name, self.roles, "roles")
                raise ValueError(f"order: there is no role {name!r}; {hint}")
        for name in self.roles:
            if self.order and name not in self.order:
                raise ValueError(f"order: role {name!r} never acts; visit it, or delete the role")
        return self

    @model_validator(mode="after")
    def _test_file_needs_a_training_file(self) -> Scenario:
        if self.tasks == "generated" and self.test_tasks is not None:
            raise ValueError(
                "test_tasks is set while tasks is 'generated'; name a file in tasks too, or leave "
                "test_tasks out"
            )
        return self

    @cached_property
    def agents(self) -> tuple[str, ...]:
        """The seats' agent ids in order, e.g. `("solver_0", "coder_0", "verifier_0")`."""
        return tuple(f"{role}_0" for role in self.roles)

    @cached_property
    def visits(self) -> tuple[str, ...]:
        """The roles in the order in which they are visited, e.g. `("pro", "con", "pro")`."""
        return self.order or tuple(self.roles)


def scenario_folder(name: str) -> Path:
    """Return the folder of a scenario that ships with the project.

    Raises:
        ScenarioError: there is no such scenario.
    """
    package = Path(__file__).parent
    for root in (package / "scenarios", package.parent / "scenarios"):
        if (root / name / "scenario.toml").is_file():
            return root / name
    raise ScenarioError(f"scenario {name!r} does not ship with this package")


def load_scenario(folder: Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Read `folder/scenario.toml`, lay `overrides` over it, and check the result.

    Args:
        folder: A scenario folder.
        overrides: Tables like those of the file, merged key by key, e.g.
            `{"tasks": "aime.json", "roles": {"coder": {"max_turns": 1}}}`.

    Raises:
        ScenarioError: a file is missing or unreadable, a key is unknown, a value is out of its
            range, or a prompt uses a field its role may not see.
    """
    path = folder / "scenario.toml"
    table = _merge(_read_toml(path), overrides or {})
    try:
        scenario = Scenario.model_validate(table)
    except ValidationError as error:
        place = f"{path}, with the tables laid over it" if overrides else str(path)
        raise ScenarioError(f"{place}: {_first_problem(error)}") from None
    return scenario.model_copy(update={"roles": _with_prompts(folder, scenario)})


def visible_fields(visits: Sequence[str], visit: int) -> set[str]:
    """Return the prompt fields of a visit: the problem, the files, and what earlier visits left."""
    earlier = set(visits[:visit])
    return {"problem", "files"} | {f"{name}.{k}" for name in earlier for k in ("message", "output")}


def _with_prompts(folder: Path, scenario: Scenario) -> dict[str, Role]:
    read = {}
    for name, role in scenario.roles.items():
        first, *later = (i for i, visited in enumerate(scenario.visits) if visited == name)
        prompt = _template(folder / role.prompt, visible_fields(scenario.visits, first))
        again = prompt
        if role.again:
            again = _template(
                folder / role.again, visible_fields(scenario.visits, min(later, default=first))
            )
        read[name] = role.model_copy(update={"prompt": prompt, "again": again})
    return read


def _template(path: Path, allowed: set[str]) -> str:
    template = _read_text(path).strip()
    check_template(template, allowed, str(path))
    return template


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(f"{path}: cannot be read: {reason}") from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path}: is not TOML: {error}") from None


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both_tables else value
    return merged


def _first_problem(error: ValidationError) -> str:
    """Say the first thing pydantic found in one line: where, what, the value, the fix."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        *_, key = problem["loc"]
        return f"unknown key {where!r}; {did_you_mean(key, _known_keys(problem['loc']))}"
    if problem["type"] == "missing":
        return f"key {where!r} is missing; add it"
    said = problem["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
    return f"{where!r} is {problem['input']!r:.80}: {said}" if where else said


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys of the table in which `loc` lies."""
    tables: dict[str, list[str]] = {
        "roles": list(Role.model_fields),
        "generated": list(Generated.model_fields),
        "limits": list(Limits.__dataclass_fields__),
    }
    return list(Scenario.model_fields) if len(loc) == 1 else tables.get(str(loc[0]), [])
