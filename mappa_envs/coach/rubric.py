"""The embedded coach: offline, deterministic, and readable.

Each role's rubric is a list of named checks with points. The score is 10 times the share of
points earned among the checks that apply, and the rationale has one line for each check, so
anyone can read why an action got 6.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappa_envs.coach.checks import CHECKS, MATH_CHECKS
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.coach.table_checks import TABLE_CHECKS
from mappa_envs.coach.verdicts import Check, Verdict
from mappa_envs.errors import CoachError, ScenarioError, did_you_mean
from mappa_envs.scenario import Scenario
from mappa_envs.types import Assessment, Turn


@dataclass(frozen=True, slots=True)
class Criterion:
    """One check with its points, e.g. `Criterion("concise", concise, 2.0, {"max_words": 40})`."""

    name: str
    check: Check
    points: float
    parameters: Mapping[str, Any]

    def judge(self, turn: Turn, context: CoachContext) -> Verdict:
        """Apply the check."""
        return self.check(turn, context, **self.parameters)


class RubricCoach:
    """Scores each role by the rubric of its scenario."""

    id = "rubric"

    def __init__(self, scenario: Scenario) -> None:
        """Compose the rubrics.

        Raises:
            ScenarioError: a role has no rubric, or a rubric names an unknown check, gives it the
                wrong parameters, or no positive points.
        """
        problems = [
            line
            for name, role in scenario.roles.items()
            for line in rubric_problems(name, role.rubric) or _missing(scenario, name)
        ]
        if problems:
            raise ScenarioError(*problems)
        self._rubrics = {
            name: [_criterion(check, table) for check, table in role.rubric.items()]
            for name, role in scenario.roles.items()
        }

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        """Score a turn by the rubric of its role.

        Raises:
            CoachError: no check applies to the turn.
        """
        judged = [(c, c.judge(turn, context)) for c in self._rubrics[turn.role]]
        possible = sum(c.points for c, verdict in judged if verdict.passed is not None)
        if possible == 0:
            raise CoachError(f"no check of the rubric of {turn.role!r} applies to this action")
        earned = sum(c.points for c, verdict in judged if verdict.passed)
        return Assessment(
            score=10 * earned / possible,
            rationale="\n".join(_line(criterion, verdict) for criterion, verdict in judged),
        )


def rubric_problems(role: str, rubric: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with a role's rubric, a line for each mistake."""
    return [line for name, table in rubric.items() for line in _problems(role, name, table)]


def _problems(role: str, name: str, table: Mapping[str, Any]) -> list[str]:
    where = f"roles.{role}.rubric.{name}"
    if name not in CHECKS:
        return [f"{where}: unknown check; {did_you_mean(name, CHECKS, 'known')}"]
    problems = []
    points = table.get("points")
    if not isinstance(points, int | float) or isinstance(points, bool) or not 0 < points < 1e6:
        problems.append(f"{where}: points is {points!r}; give a positive number")
    wanted, given = _parameters(CHECKS[name]), set(table) - {"points"}
    if given != set(wanted):
        problems.append(
            f"{where}: parameters are {sorted(given)}; this check takes {sorted(wanted)}"
        )
    for key in sorted(given & set(wanted)):
        if type(table[key]) is not wanted[key]:
            problems.append(
                f"{where}: {key} is {table[key]!r}; it must be of type {wanted[key].__name__}"
            )
    return problems


def _missing(scenario: Scenario, role: str) -> list[str]:
    if scenario.roles[role].rubric:
        return []
    fitting = TABLE_CHECKS if scenario.outcome == "submission" else MATH_CHECKS
    return [
        f"scenario {scenario.name!r}: role {role!r} has no rubric; add a table "
        f"roles.{role}.rubric with checks among: {', '.join(c.__name__ for c in fitting)}"
    ]


def _parameters(check: Check) -> dict[str, type]:
    """Return the types of a check's own parameters, those after the turn and the context."""
    own = list(inspect.signature(check, eval_str=True).parameters.values())[2:]
    return {parameter.name: parameter.annotation for parameter in own}


def _criterion(name: str, table: Mapping[str, Any]) -> Criterion:
    parameters = {key: value for key, value in table.items() if key != "points"}
    return Criterion(name, CHECKS[name], float(table["points"]), parameters)


def _line(criterion: Criterion, verdict: Verdict) -> str:
    if verdict.passed is None:
        return f"-/{criterion.points:g} {criterion.name}: {verdict.reason}"
    earned = criterion.points if verdict.passed else 0
    return f"{earned:g}/{criterion.points:g} {criterion.name}: {verdict.reason}"
