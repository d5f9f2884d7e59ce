"""Teams of a scenario as data: what each role says, in a file of the folder `teams`.

A team file holds texts by role, templates like those of a role's `script`. A role that it leaves
out says what it says in the file's `base`, so a team with one faulty role is a short file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mappa_envs.errors import ScenarioError, did_you_mean
from mappa_envs.mistakes import table_mistakes
from mappa_envs.prompt_files import read_text, script_problems

if TYPE_CHECKING:
    from mappa_envs.scenario import Scenario

RESERVED = ("person", "scripted")
"""What commands call other teams."""


def _hold_a_text(texts: tuple[str, ...]) -> tuple[str, ...]:
    if not texts:
        raise ValueError("is empty; give a text, or leave the role out")
    return texts


_Texts = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_hold_a_text)]


@dataclass(frozen=True, slots=True)
class TeamScript:
    """A team that says texts given in advance."""

    name: str
    about: str
    """What the team does, in a sentence; may be empty."""
    culprit: str
    """The role that spoils the work on purpose; empty where there is none."""
    texts: Mapping[str, tuple[str, ...]]
    """What each role says, action by action; the last text repeats."""


class _TeamFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    about: str = ""
    base: str = ""
    culprit: str = ""
    texts: dict[str, _Texts]


def scenario_teams(folder: Path) -> tuple[str, ...]:
    """Return the names of a scenario's teams, sorted.

    Args:
        folder: The scenario's; a team `weak` is its file `teams/weak.toml`.
    """
    return tuple(sorted(path.stem for path in (folder / "teams").glob("*.toml")))


def load_team(folder: Path, name: str, scenario: Scenario) -> TeamScript:
    """Read a team, and check it against its scenario.

    Args:
        folder: The scenario's.
        name: One of `scenario_teams(folder)`.
        scenario: As it is played; it decides which fields the texts may have.

    Raises:
        ScenarioError: there is no such team, or its file is wrong; `problems` names every mistake.
    """
    own = _read(folder, name)
    path = _path(folder, name)
    problems = list(_mistakes(path, own, scenario))
    texts: Mapping[str, tuple[str, ...]] = {}
    try:
        texts = _base_texts(folder, own)
    except ScenarioError as error:
        problems += [f"{path}: base: {line}" for line in error.problems]
    else:
        silent = [role for role in scenario.roles if role not in texts and role not in own.texts]
        problems += [f"{path}: texts.{role}: is missing; add it, or a base" for role in silent]
    if problems:
        raise ScenarioError(*problems)
    return TeamScript(name, own.about, own.culprit, {**texts, **own.texts})


def scripts_of(folder: Path, scenario: Scenario, place: str) -> dict[str, tuple[str, ...]]:
    """Return what each role says in a scripted play: its `script`, or else the `scripted` team's.

    Args:
        folder: The scenario's.
        scenario: With the roles as their tables have them.
        place: How problems name the scenario file.

    Raises:
        ScenarioError: there is no such team, or its file is wrong.
    """
    scripts = {name: role.script for name, role in scenario.roles.items()}
    if not scenario.scripted:
        return scripts
    try:
        texts = load_team(folder, scenario.scripted, scenario).texts
    except ScenarioError as error:
        raise ScenarioError(*(f"{place}: scripted: {line}" for line in error.problems)) from None
    return {name: script or texts[name] for name, script in scripts.items()}


def team_problems(folder: Path, scenario: Scenario) -> list[str]:
    """Return everything that is wrong with a scenario's teams, one line for each mistake."""
    problems: list[str] = []
    for name in scenario_teams(folder):
        try:
            load_team(folder, name, scenario)
        except ScenarioError as error:
            problems += error.problems
    return problems


def _path(folder: Path, name: str) -> Path:
    return folder / "teams" / f"{name}.toml"


def _read(folder: Path, name: str) -> _TeamFile:
    """Return a team file, with its keys and values checked."""
    known = scenario_teams(folder)
    if name not in known:
        raise ScenarioError(f"there is no team {name!r}; {did_you_mean(name, known, 'teams')}")
    path = _path(folder, name)
    try:
        table = tomllib.loads(read_text(path))
        return _TeamFile.model_validate(table)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path}: is not TOML: {error}") from None
    except ValidationError as error:
        lines = table_mistakes(error, _TeamFile, table)
        raise ScenarioError(*(f"{path}: {line}" for line in lines)) from None


def _base_texts(folder: Path, team: _TeamFile) -> Mapping[str, tuple[str, ...]]:
    if not team.base:
        return {}
    base = _read(folder, team.base)
    if base.base:
        raise ScenarioError(
            f"{team.base!r} has a base itself, {base.base!r}; name a team that has none"
        )
    return base.texts


def _mistakes(path: Path, team: _TeamFile, scenario: Scenario) -> Iterator[str]:
    roles = scenario.roles
    if path.stem in RESERVED:
        yield f"{path}: a team cannot be called {path.stem!r}, which is what --team means otherwise"
    if team.culprit and team.culprit not in roles:
        hint = did_you_mean(team.culprit, roles, "roles")
        yield f"{path}: culprit: there is no role {team.culprit!r}; {hint}"
    for name, texts in team.texts.items():
        if name not in roles:
            hint = did_you_mean(name, roles, "roles")
            yield f"{path}: texts.{name}: there is no role {name!r}; {hint}"
            continue
        for line in script_problems(name, texts, roles[name].max_turns, scenario.visits):
            yield f"{path}: texts.{name}.{line}"
