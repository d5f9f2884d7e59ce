"""Plays scripted teams on many tasks, and sums up what came of it.

A result is one episode as plain data, and everything that is reported is computed from results, so
that a stopped run can be gone on with.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.errors import TaskError
from mappa_envs.play import Observation, Played, aplay
from mappa_envs.records import is_decided
from mappa_envs.tasks.source import BatchedTasks, TaskSource, no_such
from mappa_envs.team_files import TeamScript
from mappa_envs.teams import ScenarioTeam
from mappa_envs.types import Split

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to be played."""

    team: str
    task: str
    split: Split
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from all others of a scenario."""
        return self.team, self.task, self.seed


def choose_tasks(source: TaskSource, wanted: str, splits: Sequence[Split]) -> dict[str, Split]:
    """Return ids of tasks, each with its split.

    Args:
        source: Where they come from.
        wanted: `"all"`, a number, which is how many are taken of each split, or ids with commas
            between them, from either split.
        splits: The splits that the first two are taken from.

    Raises:
        TaskError: there is no such task, no end of them, or none at all. It names the option
            `--tasks`, which is what they are chosen with.
    """
    if wanted == "all" or (wanted.isascii() and wanted.isdigit()):
        most = None if wanted == "all" else int(wanted)
        if most == 0:
            raise TaskError("--tasks is 0; give at least 1")
        chosen = {name: split for split in splits for name in _first(source, split, most)}
        if not chosen:
            raise TaskError(f"{wanted} of split {' and '.join(splits)} is no task; choose others")
        return chosen
    names = [name.strip() for name in wanted.split(",")]
    if not isinstance(source, BatchedTasks):
        return {name: source.find(name).split for name in names}
    known = {name: split for split, ids in source.splits.items() for name in ids}
    for name in names:
        if name not in known:
            raise no_such("task", name, known)
    return {name: known[name] for name in names}


def make_jobs(teams: Sequence[str], tasks: Mapping[str, Split], seeds: int) -> list[Job]:
    """Return every team's episodes: all teams on the first task, then all on the next."""
    return [
        Job(team, task, split, seed)
        for task, split in tasks.items()
        for seed in range(seeds)
        for team in teams
    ]


async def run_jobs(
    env: AECEnv[str, Any, Any],
    teams: Mapping[str, TeamScript | None],
    jobs: Sequence[Job],
    tell: Callable[[Result], None],
    *,
    at_once: int,
) -> None:
    """Play episodes, several at a time, and tell of each when it has ended.

    When it is cancelled, or one episode fails, all that are under way end untold.

    Args:
        env: What is played; the others are copies of it, which are closed in the end.
        teams: By name; None says the roles' `script`.
        jobs: The episodes.
        tell: Called with each result.
        at_once: Episodes under way at a time. Programs share the cores: keep it small.
    """
    waiting = iter(jobs)

    async def one_after_another(own: AECEnv[str, Any, Any]) -> None:
        for job in waiting:
            tell(await _play(own, ScenarioTeam(own, teams[job.team]), job))

    with ExitStack() as closing:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(one_after_another(env))
                for _ in range(1, min(at_once, len(jobs))):
                    other = copy.deepcopy(env)
                    closing.callback(other.close)
                    group.create_task(one_after_another(other))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """Return each team's figures, and those of each type of task where tasks have types.

    Means are over the episodes that were decided; `undecided` counts the others, in which the
    sandbox or the judge failed. `details` has the means of what an outcome's details call
    `comparable`.
    """
    return {
        team: {
            **_figures(own),
            "task_types": {kind: _figures(part) for kind, part in _grouped(own, "task_type")},
        }
        for team, own in _grouped(results, "team")
    }


async def _play(env: AECEnv[str, Any, Any], team: ScenarioTeam, job: Job) -> Result:
    async def policy(agent: str, observation: Observation) -> str:
        return team(agent, observation)

    started = time.perf_counter()
    played = await aplay(env, policy, job.seed, {"split": job.split, "task": job.task})
    return _result(job, played, time.perf_counter() - started)


def _result(job: Job, played: Played, seconds: float) -> Result:
    """Return an episode as plain data."""
    infos = played.infos
    any_info = next(iter(infos.values()))
    outcome = any_info["outcome"] or {}
    details = outcome.get("details", {})
    return {
        "team": job.team,
        "task": job.task,
        "split": job.split,
        "seed": job.seed,
        "task_type": any_info["task"].get("task_type"),
        "end_reason": any_info["end_reason"],
        "decided": is_decided(any_info["outcome"]),
        "outcome": outcome.get("score"),
        "verdict": outcome.get("verdict"),
        "reason": outcome.get("reason"),
        "details": details,
        "scores": {
            agent: [entry["score"] for entry in info["ledger"]]
            for agent, info in infos.items()
            if "ledger" in info
        },
        "paid": {agent: sum(own) for agent, own in played.rewards.items()},
        "seconds": round(seconds, 3),
    }


def _first(source: TaskSource, split: Split, most: int | None) -> list[str]:
    """Return the first ids of a split, each once."""
    if isinstance(source, BatchedTasks):
        return list(source.splits[split][:most])
    size = source.size(split)
    if most is None and size is None:
        raise TaskError(f"the tasks of split {split!r} have no end; say how many with --tasks")
    count = min(n for n in (most, size) if n is not None)
    return list(dict.fromkeys(source.get(split, index).id for index in range(count)))


def _grouped(results: Sequence[Result], key: str) -> Iterator[tuple[str, list[Result]]]:
    """Yield the results of each value of a key, in order of appearance; those without one not."""
    for value in dict.fromkeys(result[key] for result in results):
        if value is not None:
            yield value, [result for result in results if result[key] == value]


def _figures(results: Sequence[Result]) -> dict[str, Any]:
    decided = [result for result in results if result["decided"]]
    figures: dict[str, Any] = {
        "episodes": len(results),
        "undecided": len(results) - len(decided),
        "outcome": _mean([result["outcome"] for result in decided]),
    }
    figures["details"] = dict(_details([result["details"] for result in decided]))
    agents = results[0]["paid"]
    figures["paid"] = {agent: _mean([r["paid"][agent] for r in decided]) for agent in agents}
    figures["seconds"] = _mean([result["seconds"] for result in results])
    return figures


def _details(details: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float | None]]:
    """Yield the means of what outcomes call comparable, of those that have it.

    Whether they are decided is not among it: what is averaged is.
    """
    names = dict.fromkeys(name for own in details for name in own.get("comparable", ()))
    for name in names:
        values = [own[name] for own in details if own.get(name) is not None]
        if values and name != "decided":
            yield name, _mean(values)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
