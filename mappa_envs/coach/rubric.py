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

from mappa_envs.coach.checks import CHECKS, Check, Verdict
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.errors import CoachError, ScenarioError
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
        self._rubrics = {
            name: [_criterion(name, check, dict(table)) for check, table in role.rubric.items()]
            for name, role in scenario.roles.items()
        }
        for name, rubric in self._rubrics.items():
            if not rubric:
                raise ScenarioError(
                    f"scenario {scenario.name!r}: role {name!r} has no rubric; add a table "
                    f"roles.{name}.rubric with checks among: {', '.join(CHECKS)}"
                )

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


def _criterion(role: str, name: str, table: dict[str, Any]) -> Criterion:
    where = f"roles.{role}.rubric.{name}"
    check = CHECKS.get(name)
    if check is None:
        raise ScenarioError(f"{where}: unknown check; known: {', '.join(CHECKS)}")
    points = table.pop("points", None)
    if not isinstance(points, int | float) or isinstance(points, bool) or not 0 < points < 1e6:
        raise ScenarioError(f"{where}: points is {points!r}; give a positive number")
    parameters = list(inspect.signature(check, eval_str=True).parameters.values())[2:]
    wanted = {parameter.name: parameter.annotation for parameter in parameters}
    if set(table) != set(wanted):
        raise ScenarioError(
            f"{where}: parameters are {sorted(table)}; this check takes {sorted(wanted)}"
        )
    for key, value in table.items():
        if type(value) is not wanted[key]:
            raise ScenarioError(
                f"{where}: {key} is {value!r}; it must be of type {wanted[key].__name__}"
            )
    return Criterion(name, check, float(points), table)


def _line(criterion: Criterion, verdict: Verdict) -> str:
    if verdict.passed is None:
        return f"-/{criterion.points:g} {criterion.name}: {verdict.reason}"
    earned = criterion.points if verdict.passed else 0
    return f"{earned:g}/{criterion.points:g} {criterion.name}: {verdict.reason}"
