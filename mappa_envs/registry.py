"""Builds environments from plain tables, in each of the interfaces they have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.coach.kinds import make_coach
from mappa_envs.coach.ledger import Payment
from mappa_envs.coach.protocol import Coach
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import ScenarioError, did_you_mean
from mappa_envs.outcomes.math_answers import MathAnswerScorer
from mappa_envs.outcomes.protocol import OutcomeScorer
from mappa_envs.outcomes.shared import SharedScorer
from mappa_envs.outcomes.submission_scorer import SubmissionScorer
from mappa_envs.play import Policy
from mappa_envs.sandbox.docker import DockerSandbox
from mappa_envs.sandbox.local import LocalSandbox
from mappa_envs.sandbox.protocol import Sandbox
from mappa_envs.scenario import load_scenario, scenario_folder
from mappa_envs.tasks.sources import task_source
from mappa_envs.views.parallel import TurnBasedParallelEnv
from mappa_envs.views.seat import SeatEnv

OUTCOMES: dict[str, Callable[[], OutcomeScorer]] = {
    "math_answer": SharedScorer(MathAnswerScorer).part,
    "submission": SharedScorer(SubmissionScorer).part,
}
SANDBOXES: dict[str, Callable[..., Sandbox]] = {
    "auto": LocalSandbox,
    "namespace": functools.partial(LocalSandbox, "namespace"),
    "landlock": functools.partial(LocalSandbox, "landlock"),
    "process": functools.partial(LocalSandbox, "process"),
    "docker": DockerSandbox,
}


def make_pipeline(
    folder: Path | str = "",
    *,
    scenario: Mapping[str, Any] | None = None,
    coach: Mapping[str, Any] | Coach | None = None,
    sandbox: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
) -> AECEnv[str, Any, str]:
    """Build the environment that plays a scenario folder.

    Args:
        folder: A scenario folder, or the name of one that ships with the project.
        scenario: Tables laid over the folder's `scenario.toml`, e.g. `{"tasks": "aime.json"}`.
        coach: None for the bare environment, a `Coach`, or a table with `kind` (`"rubric"`,
            `"llm"` or `"replay"`; see `mappa_envs.coach.kinds` for the keys of each) and
            optionally `process_weight`, `outcome_weight`, `credit`, `pays`, `deferred` and
            `hindsight`.
        sandbox: A table with `level`, one of `"auto"` (if there is none), `"namespace"`,
            `"landlock"`, `"process"` and `"docker"`, and optionally `preload`, the modules that
            programs find imported, and, for `"docker"`, `image`.
        render_mode: None, `"ansi"` or `"human"`.

    Raises:
        ScenarioError: a table has an unknown key or value.
        TaskError: the task files cannot be read.
    """
    for name, table in (("scenario", scenario), ("sandbox", sandbox)):
        if not isinstance(table, Mapping | None):
            raise ScenarioError(f"{name} is {table!r:.80}; give a table")
    if not isinstance(folder, str | Path) or not str(folder):
        raise ScenarioError(
            f"folder is {folder!r:.80}; give a scenario folder, or the name of a shipped scenario"
        )
    if render_mode not in (None, "ansi", "human"):
        raise ScenarioError(f"render_mode is {render_mode!r:.80}; it must be 'ansi' or 'human'")
    where = scenario_folder(folder) if isinstance(folder, str) else folder
    loaded = load_scenario(where, scenario)
    tasks = task_source(loaded)
    env = PipelineEnv(
        loaded,
        tasks=tasks,
        outcome=OUTCOMES[loaded.outcome](),
        sandbox=_sandbox(dict(sandbox or {}), getattr(tasks, "answer_folders", ())),
        render_mode=render_mode,
    )
    if coach is None:
        return env
    if not isinstance(coach, Mapping | Coach):
        raise ScenarioError(f"coach is {coach!r:.80}; give a table such as {{'kind': 'rubric'}}")
    if not isinstance(coach, Mapping):
        return CoachWrapper(env, coach)
    return _coached(env, dict(coach))


def make_parallel(folder: Path | str = "", **tables: Any) -> TurnBasedParallelEnv:
    """Build the parallel view of a scenario; the arguments are those of `make_pipeline`."""
    return TurnBasedParallelEnv(make_pipeline(folder, **tables))


def make_seat(
    folder: Path | str = "",
    *,
    seat: str | None = None,
    teammates: Policy | Mapping[str, Policy] | None = None,
    **tables: Any,
) -> SeatEnv:
    """Build the environment of one seat of a scenario's team.

    Args:
        folder: As of `make_pipeline`.
        seat: The agent to play, e.g. `"verifier_0"`; it must be given.
        teammates: Who plays the other seats, as of `SeatEnv`; their scripts if it is None.
        tables: The other arguments of `make_pipeline`.

    Raises:
        ScenarioError: there is no such seat or teammate, or a table has an unknown key or value.
        TaskError: the task files cannot be read.
    """
    env = make_pipeline(folder, **tables)
    if seat is None:
        seats = ", ".join(env.possible_agents)
        raise ScenarioError(f"no seat is given; add seat=..., one of: {seats}")
    return SeatEnv(env, seat, teammates)


def _coached(env: PipelineEnv, table: dict[str, Any]) -> CoachWrapper:
    coach = make_coach(table, env.scenario, others=(*_PAYMENT_KEYS, *_SWITCHES))
    try:
        payment = Payment(**{key: table[key] for key in _PAYMENT_KEYS if key in table})
    except ValueError as error:
        raise ScenarioError(f"coach.{error}") from None
    for key in _SWITCHES:
        if not isinstance(table.get(key, False), bool):
            raise ScenarioError(f"coach.{key} is {table[key]!r:.80}; give true or false")
    switches = {key: table.get(key, False) for key in _SWITCHES}
    try:
        return CoachWrapper(env, coach, payment, **switches)
    except ValueError as error:
        raise ScenarioError(f"coach.{error}") from None


def _sandbox(table: dict[str, Any], hidden: tuple[str, ...]) -> Callable[[], Sandbox]:
    """Return what makes the sandboxes that a table describes, without the folders `hidden`."""
    others = ("image", "preload")
    make = _choice("sandbox", "level", table, SANDBOXES, default="auto", others=others)
    options: dict[str, Any] = {"hidden": hidden} if hidden else {}
    if "image" in table:
        image = options["image"] = table["image"]
        if not isinstance(image, str) or not image:
            raise ScenarioError(
                f"sandbox.image is {image!r:.80}; give the name of an image, e.g. 'python:3.12'"
            )
        if make is not DockerSandbox:
            raise ScenarioError(f"sandbox.image is {image!r}; it needs sandbox.level = 'docker'")
    if "preload" in table:
        names = table["preload"]
        if not isinstance(names, list | tuple) or not all(map(_is_module, names)):
            raise ScenarioError(
                f"sandbox.preload is {names!r:.80}; give a list of modules, e.g. ['numpy']"
            )
        options["preload"] = tuple(names)
    return functools.partial(make, **options)


def _is_module(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


_PAYMENT_KEYS = tuple(Payment.__dataclass_fields__)
_SWITCHES = ("deferred", "hindsight")


def _choice(
    table_name: str,
    key: str,
    table: dict[str, Any],
    choices: Mapping[str, Callable[..., Any]],
    default: str,
    others: Collection[str] = (),
) -> Callable[..., Any]:
    known = {key, *others}
    for unknown in set(table) - known:
        hint = did_you_mean(unknown, sorted(known))
        raise ScenarioError(f"{table_name}: unknown key {unknown!r}; {hint}")
    chosen = table.get(key, default)
    if not isinstance(chosen, str) or chosen not in choices:
        raise ScenarioError(f"{table_name}.{key} is {chosen!r}; known: {', '.join(choices)}")
    return choices[chosen]
