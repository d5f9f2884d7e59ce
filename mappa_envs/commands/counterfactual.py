"""`mappa audit --counterfactual`: do a coach's scores rank actions as what they changed does?"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.audit.counterfactual import Credit, CreditReport, episode_credits, role_credits
from mappa_envs.audit.recorded import Recording, recorded_credits
from mappa_envs.audit.remade import remade_env
from mappa_envs.audit.stored import StoredRun, stored_episodes
from mappa_envs.bench import Job, Result, choose_tasks, make_jobs
from mappa_envs.bench_file import version_of
from mappa_envs.commands.coach_option import coach_table
from mappa_envs.commands.kept import check_resume, kept_results
from mappa_envs.commands.seats import named_team, team_names
from mappa_envs.commands.stored_runs import folder_of, is_run
from mappa_envs.errors import CommandError
from mappa_envs.play import Play
from mappa_envs.registry import make_pipeline
from mappa_envs.scenario import load_scenario, scenario_folder
from mappa_envs.tasks.sources import task_source
from mappa_envs.teams import ScenarioTeam

STORED = "stored"
"""Who plays on in a run's episodes unless a team is named: everybody says what is stored."""


@dataclass(frozen=True, slots=True)
class CounterfactualRequest:
    """Whose actions are replaced, by what, and where the credits are kept."""

    source: str
    """A scenario, or the folder of a run."""
    teams: str = ""
    """Names with commas between them: who plays the episodes of a scenario, by default
    `scripted`. For a run one name: who plays on, by default `stored`.
    """
    resample: str = "noop"
    """Names of teams, with commas: each in turn says what it would say in an action's place."""
    samples: int | None = None
    """Alternatives to each action; by default one of each of those teams."""
    tasks: str = "2"
    """A number of training tasks, or ids with commas between them; for a run, a number of
    episodes.
    """
    seeds: int = 1
    coach: tuple[str, ...] = ()
    """Its table, see `coach_table`; the rubric where it is empty. Of a run, scores are stored."""
    episodes: str = ""
    """Of a run: the name of a file of episodes; by default the last one of training."""
    out: Path | None = None
    resume: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    """All episodes, and what gives the credits of one."""

    jobs: Sequence[Job]
    versions: Mapping[str, str]
    """What results depend on, by team."""
    credits_of: Callable[[Job], Sequence[Credit]]


def audit_counterfactual(request: CounterfactualRequest) -> CreditReport:
    """Play episodes and their alternatives, and sum up the credit of each role.

    Raises:
        MappaEnvError: something that was asked for is not there, or a stored episode goes
            elsewhere when it is played again.
    """
    check_resume(request.out, request.resume)
    if request.samples is not None and request.samples < 1:
        raise CommandError(f"--samples is {request.samples}; give at least 1")
    planned = _plan_of_run if is_run(request.source) else _plan_of_scenario
    with planned(request) as plan:

        def play(jobs: Sequence[Job], tell: Callable[[Result], None]) -> None:
            for job in jobs:
                tell(_result(job, plan.credits_of(job)))

        results = kept_results(plan.jobs, plan.versions, request.out, request.resume, play)
    credits = [Credit.of(record) for result in results for record in result["credits"]]
    undecided = sum(not result["decided"] for result in results)
    return CreditReport(request.source, len(results), undecided, role_credits(credits))


@contextmanager
def _plan_of_scenario(request: CounterfactualRequest) -> Iterator[_Plan]:
    folder = scenario_folder(request.source)
    names = team_names(folder, request.teams or "scripted")
    others = team_names(folder, request.resample, "--resample")
    tasks = choose_tasks(task_source(load_scenario(folder)), request.tasks, ("train",))
    samples = request.samples or len(others)
    with closing(make_pipeline(folder, coach=coach_table(request.coach))) as env:
        policies = {n: ScenarioTeam(env, named_team(folder, n, env)) for n in {*names, *others}}
        resample = [policies[name] for name in others]

        def credits_of(job: Job) -> Sequence[Credit]:
            play = Play(job.seed, {"split": job.split, "task": job.task})
            policy = policies[job.team]
            return episode_credits(env, policy, resample, play, samples, episode=_name(job))

        yield _Plan(
            make_jobs(names, tasks, request.seeds),
            {n: _version(folder, [n, *others], env, samples, request.coach) for n in names},
            credits_of,
        )


@contextmanager
def _plan_of_run(request: CounterfactualRequest) -> Iterator[_Plan]:
    run = StoredRun.open(Path(request.source), request.episodes)
    folder = folder_of(run)
    others = team_names(folder, request.resample, "--resample")
    onward_name = request.teams or STORED
    if onward_name != STORED:
        team_names(folder, onward_name)
    recordings = _recordings(run, request.tasks)
    samples = request.samples or len(others)
    with remade_env(run) as env:

        def team(name: str) -> ScenarioTeam:
            return ScenarioTeam(env, named_team(folder, name, env))

        resample = [team(name) for name in others]
        onward = None if onward_name == STORED else team(onward_name)

        def credits_of(job: Job) -> Sequence[Credit]:
            recording = recordings[job]
            return recorded_credits(
                env, recording, resample, samples, episode=_name(job), onward=onward
            )

        played = [] if onward is None else [onward_name]
        version = _version(folder, [*played, *others], env, samples, (request.source,))
        yield _Plan(list(recordings), {job.team: version for job in recordings}, credits_of)


def _recordings(run: StoredRun, count: str) -> dict[Job, Recording]:
    """Return the first episodes of the last file of training, or of the one that was named."""
    if not count.isdecimal():
        raise CommandError(f"--tasks is {count!r}; for a run give a number of episodes")
    file = run.scored_files[-1]
    return {
        Job(file.name, str(stored.number), "train", 0): Recording.of(stored)
        for stored in itertools.islice(stored_episodes(file), int(count))
    }


def _version(
    folder: Path,
    teams: Sequence[str],
    env: AECEnv[str, Any, Any],
    samples: int,
    settings: Sequence[str],
) -> str:
    """Return a digest of everything that credits and scores depend on."""
    parts = [version_of(folder, named_team(folder, name, env)) for name in teams]
    text = json.dumps([parts, list(teams), samples, list(settings)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _name(job: Job) -> str:
    return f"{job.team}, task {job.task}, seed {job.seed}"


def _result(job: Job, credits: Sequence[Credit]) -> Result:
    return {
        "team": job.team,
        "task": job.task,
        "split": job.split,
        "seed": job.seed,
        "decided": bool(credits),
        "credits": [credit.record() for credit in credits],
    }
