"""Scenarios: a team's roles, prompts, tools, limits, rubric and tasks, as data.

A scenario is a folder with a `scenario.toml` and the prompt files it names. `load_scenario` reads
one, lays a table of overrides over it, and checks everything that can be checked without playing.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.dataclasses import dataclass as checked_dataclass

from mappa_envs.errors import ScenarioError, did_you_mean
from mappa_envs.mistakes import table_mistakes
from mappa_envs.prompt_files import PromptFiles, read_text
from mappa_envs.sandbox.protocol import Access, Limits, limit_problem
from mappa_envs.team_files import scripts_of

SCENARIO_FILE = "scenario.toml"
GENERATED, TABLES = "generated", "tables"
"""What `tasks` may be beside a path."""
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
    def _is_a_limit(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"is {value!r:.80}; it should be a valid number")
        if problem := limit_problem(str(info.field_name), value):
            raise ValueError(problem)
        return value


def _makes_an_agent_name(name: str) -> str:
    if not (name.isascii() and name.isalpha() and name.islower()):
        raise ValueError(f"role name {name!r} must be lower-case letters only")
    return name


RoleName = Annotated[str, AfterValidator(_makes_an_agent_name)]


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
    artifacts: tuple[str, ...] = Field(default=(), strict=False)
    """Files that must be there when the role hands off; those that are not are named."""
    script: tuple[str, ...] = Field(default=(), strict=False)
    """What the role says in a scripted play, action by action; the last text repeats.

    The fields are those of the prompt of the visit; after its first action also its own.
    """
    rubric: dict[str, dict[str, float | int | str | bool]] = {}
    """Checks of the rubric coach by name, each with its `points` and parameters."""
    coach: str = ""
    """What a model that coaches is told, a file too; a text that ships when empty."""
    coach_sees_truth: bool = False
    """Whether a coach with `ground_truth` is shown the right answer when it judges this role."""


class Generated(BaseModel):
    """Which problems the generator makes, where `tasks = "generated"`."""

    model_config = _STRICT

    levels: tuple[int, ...] = Field(default=(1,), strict=False)
    families: tuple[str, ...] = Field(default=(), strict=False)
    """Problem families by name; empty means every family of the levels."""


class Tables(BaseModel):
    """Which tables are to be modelled, where the outcome is a submission."""

    model_config = _STRICT

    catalogue: str = ""
    """A file that says which tables of installed packages are tasks."""
    benchmark: str = ""
    """A file with the facts about DSBench's competitions."""
    task_lists: tuple[str, ...] = Field(default=(), strict=False)
    """Files with the competitions' texts, where there is a copy of DSBench."""
    cleaned_prompts: str = ""
    """A file with shorter texts, preferred to those."""
    only: tuple[str, ...] = Field(default=(), strict=False)
    """Ids of the tasks to use; all when empty."""
    level: int = Field(default=1, ge=0, le=3)
    """How much the tables are corrupted, from not at all to heavily."""
    batch_size: int = Field(default=4, ge=1)
    """Tasks that are played together; each batch keeps the ratio of the task types."""


class Scenario(BaseModel):
    """A team and its tasks; see the folders under `scenarios/` for whole examples."""

    model_config = _STRICT

    name: str
    roles: dict[RoleName, Role] = Field(min_length=1)
    """Seats in the order in which they act; the agent of role `solver` is `solver_0`."""
    order: tuple[str, ...] = Field(default=(), strict=False)
    """The roles' visits, e.g. `["pro", "con", "pro"]`; each role once, as listed, when empty."""
    tasks: str = GENERATED
    """`"generated"`, or the path of a JSON or JSON-lines file of problems; with the outcome
    `"submission"`, `"tables"` or the folder of a copy of DSBench.
    """
    test_tasks: str | None = None
    """A file of held-out problems; without one a part of `tasks` is held out, with the same all."""
    task_seed: int = 0
    """Seeds the generator, and the order and the held-out part of files."""
    generated: Generated = Generated()
    tables: Tables = Tables()
    outcome: Literal["math_answer", "submission"]
    """Which rule gives the task's own verdict."""
    probe: Literal["tables"] | None = None
    """What is found out about the workspace after each action that changed it."""
    strip_thinking: bool = True
    """Whether `<role>.message` leaves out the role's thinking blocks."""
    wait_for_artifacts: bool = False
    """Whether a role with a missing artifact stays, while it has turns left."""
    scripted: str = ""
    """A team of the folder `teams`: what roles without a `script` say in a scripted play."""
    limits: CheckedLimits = Field(default_factory=CheckedLimits)
    """Bounds on each run of agent code."""

    @field_validator("test_tasks")
    @classmethod
    def _test_file_needs_a_training_file(
        cls, value: str | None, info: ValidationInfo
    ) -> str | None:
        if value is not None and info.data.get("tasks") == GENERATED:
            raise ValueError(
                "is set while tasks is 'generated'; name a file in tasks too, or leave it out"
            )
        return value

    @cached_property
    def agents(self) -> tuple[str, ...]:
        """The seats' agent ids in order, e.g. `("solver_0", "coder_0", "verifier_0")`."""
        return tuple(f"{role}_0" for role in self.roles)

    def role_of(self, agent: str) -> str:
        """Return the role of an agent, e.g. `"solver"` of `"solver_0"`."""
        return agent.removesuffix("_0")

    @cached_property
    def visits(self) -> tuple[str, ...]:
        """The roles in the order in which they are visited, e.g. `("pro", "con", "pro")`."""
        return self.order or tuple(self.roles)


def scenario_folder(name: str) -> Path:
    """Return the folder of a scenario: one that ships with the project, or one at a path.

    Args:
        name: A shipped scenario's name, which wins, or the path of a folder.

    Raises:
        ScenarioError: there is no such scenario.
    """
    package = Path(__file__).parent
    shipped: dict[str, Path] = {}
    for root in (package.parent / "scenarios", package / "scenarios"):
        shipped |= {path.parent.name: path.parent for path in root.glob(f"*/{SCENARIO_FILE}")}
    if name in shipped:
        return shipped[name]
    if Path(name).is_file():
        raise ScenarioError(f"{name}: is a file; give the folder in which it lies")
    if Path(name).is_dir() or os.sep in name:
        return Path(name)
    hint = did_you_mean(name, sorted(shipped), "these ship")
    raise ScenarioError(f"scenario {name!r} does not ship with this package; {hint}")


def load_scenario(folder: Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Read `folder/scenario.toml`, lay `overrides` over it, and check the result.

    Args:
        folder: A scenario folder. Task files that its own file names lie relative to it.
        overrides: Tables like those of the file, merged key by key, e.g.
            `{"tasks": "aime.json", "roles": {"coder": {"max_turns": 1}}}`.

    Raises:
        ScenarioError: a file is missing or unreadable, a key is unknown, a value is out of its
            range, or a prompt or script uses a field its role may not see. Its `problems` name
            every mistake.
    """
    path = folder / SCENARIO_FILE
    place = f"{path}, with the tables laid over it" if overrides else str(path)
    table = merge(read_table(path), overrides or {})
    prompts = PromptFiles(folder, place)
    texts = _read_prompts(prompts, table)
    problems = [f"{place}: {line}" for line in _order_mistakes(table)] + prompts.problems
    try:
        scenario = Scenario.model_validate(table)
    except ValidationError as error:
        lines = table_mistakes(error, Scenario, table)
        raise ScenarioError(*(f"{place}: {line}" for line in lines), *problems) from None
    if problems:
        raise ScenarioError(*problems)
    for name, script in scripts_of(folder, scenario, place).items():
        texts[name]["script"] = script
    roles = {n: role.model_copy(update=texts[n]) for n, role in scenario.roles.items()}
    return scenario.model_copy(update={"roles": roles})


def read_table(path: Path) -> dict[str, Any]:
    """Return the tables of a scenario file, unchecked; task files are named by their paths.

    Raises:
        ScenarioError: there is no such file, or it is not TOML.
    """
    text = read_text(path)
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{path}: is not TOML: {error}") from None
    for key in ("tasks", "test_tasks"):
        if isinstance(table.get(key), str) and table[key] not in (GENERATED, TABLES):
            table[key] = str(path.parent / table[key])
    tables = table.get("tables")
    for key in ("catalogue", "benchmark", "cleaned_prompts"):
        if isinstance(tables, dict) and isinstance(tables.get(key), str):
            tables[key] = str(path.parent / tables[key])
    return table


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with others laid over them, key by key."""
    merged = dict(base)
    for key, value in over.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both_tables else value
    return merged


def _read_prompts(files: PromptFiles, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    roles = role_tables(table)
    visits = _order(table) or tuple(roles)
    return {name: files.read(name, role, visits) for name, role in roles.items()}


def _order_mistakes(table: Mapping[str, Any]) -> list[str]:
    roles, order = role_tables(table), _order(table)
    unknown = [name for name in dict.fromkeys(order) if name not in roles]
    idle = [name for name in roles if order and name not in order]
    return [
        *(f"order: there is no role {n!r}; {did_you_mean(n, roles, 'roles')}" for n in unknown),
        *(f"order: role {n!r} never acts; visit it, or delete the role" for n in idle),
    ]


def role_tables(table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the tables of an unchecked scenario's roles, without what is no table."""
    roles = table.get("roles")
    pairs = roles.items() if isinstance(roles, Mapping) else ()
    return {str(name): role for name, role in pairs if isinstance(role, Mapping)}


def _order(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the visits that the table names; empty where it names none, or no list of names."""
    order = table.get("order")
    is_list = isinstance(order, list | tuple) and all(isinstance(name, str) for name in order)
    return tuple(order) if order and is_list else ()
