"""`mappa audit --counterfactual`: do a coach's scores rank actions as what they changed does?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from pettingzoo import AECEnv  # type: ignore[import-untyped]
from rich.console import Console
from rich.progress import Progress

from mappa_envs.audit.counterfactual import Agreement, Credit, agreement, episode_credits
from mappa_envs.audit.recorded import StoredEpisode, stored_credits
from mappa_envs.bench import Job, Result, choose_tasks, make_jobs
from mappa_envs.bench_file import ResultsFile, version_of
from mappa_envs.commands.coach_option import coach_table
from mappa_envs.commands.screen import Screen
from mappa_envs.commands.seats import named_team, team_names
from mappa_envs.commands.stored_runs import StoredRun, is_run
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
    seed: int = 0
    """Of the bootstrap."""
    coach: tuple[str, ...] = ()
    """Its table, see `coach_table`; the rubric where it is empty. Of a run, scores are stored."""
    episodes: str = ""
    """Of a run: the name of a file of episodes; by default the last one of training."""
    out: Path | None = None
    resume: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    """All episodes, each with what gives its credits."""

    env: AECEnv[str, Any, Any]
    versions: Mapping[str, str]
    """What results depend on, by team."""
    episodes: Mapping[Job, Callable[[], tuple[Credit, ...]]]


def audit_counterfactual(request: CounterfactualRequest, *, as_json: bool) -> tuple[Agreement, ...]:
    """Play the episodes and their alternatives, print what was found, and return it.

    Raises:
        MappaEnvError: something that was asked for is not there, or a stored episode goes
            elsewhere when it is played again.
    """
    if request.resume and request.out is None:
        raise CommandError("--resume needs the file to go on with; name it with --out")
    if request.samples is not None and request.samples < 1:
        raise CommandError(f"--samples is {request.samples}; give at least 1")
    plan = _plan_of_run(request) if is_run(request.source) else _plan_of_scenario(request)
    try:
        results = _play_all(plan, request)
    finally:
        plan.env.close()
    credits = [Credit.of(record) for result in results for record in result["credits"]]
    found = agreement(credits, request.seed)
    undecided = sum(not result["decided"] for result in results)
    if as_json:
        rows = [asdict(each) for each in found]
        summary = {"source": request.source, "episodes": len(results), "undecided": undecided}
        typer.echo(json.dumps({**summary, "roles": rows}, indent=2))
    else:
        show_agreement(found, Screen())
        if undecided:
            Screen().say(f"episodes without a decided outcome, left out: {undecided}")
    return found


def show_agreement(found: Sequence[Agreement], screen: Screen) -> None:
    """Print a table of credits and rank correlations."""
    heads = ("role", "actions", "episodes", "mean credit", "no credit", "rank correlation", "95 %")
    screen.table(heads, map(_cells, found))
    unscored, undecided = (sum(getattr(a, n) for a in found[:1]) for n in ("unscored", "undecided"))
    if unscored or undecided:
        screen.say(f"left out: {unscored} actions without a score, {undecided} without a credit")


def _cells(row: Agreement) -> tuple[str, ...]:
    interval = "" if row.interval is None else f"{row.interval[0]:.2f} to {row.interval[1]:.2f}"
    return (
        row.role,
        str(row.actions),
        str(row.episodes),
        _number(row.mean_credit, ".3f"),
        _number(row.zero_share, ".0%"),
        "not measurable" if row.correlation is None else f"{row.correlation:.2f}",
        interval,
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _plan_of_scenario(request: CounterfactualRequest) -> _Plan:
    if request.episodes:
        raise CommandError(
            f"--from is {request.episodes!r}, and {request.source!r} is no run; leave it out"
        )
    folder = scenario_folder(request.source)
    names = team_names(folder, request.teams or "scripted")
    others = team_names(folder, request.resample, "--resample")
    tasks = choose_tasks(task_source(load_scenario(folder)), request.tasks, ("train",))
    env = make_pipeline(folder, coach=coach_table(request.coach))
    policies = {n: ScenarioTeam(env, named_team(folder, n, env)) for n in {*names, *others}}
    resample = [policies[name] for name in others]
    samples = request.samples or len(others)

    def credits_of(job: Job) -> tuple[Credit, ...]:
        play = Play(job.seed, {"split": job.split, "task": job.task})
        policy = policies[job.team]
        return episode_credits(env, policy, resample, play, samples, episode=_name(job))

    return _Plan(
        env,
        {name: _version(folder, [name, *others], env, samples, request.coach) for name in names},
        {job: _later(credits_of, job) for job in make_jobs(names, tasks, request.seeds)},
    )


def _plan_of_run(request: CounterfactualRequest) -> _Plan:
    if request.coach:
        raise CommandError("--coach is for scenarios; the scores of a run are stored: leave it out")
    run = StoredRun(Path(request.source))
    others = team_names(run.folder, request.resample, "--resample")
    onward_name = request.teams or STORED
    if onward_name != STORED:
        team_names(run.folder, onward_name)
    if not request.tasks.isdecimal():
        raise CommandError(f"--tasks is {request.tasks!r}; for a run give a number of episodes")
    name, rows = run.episodes(request.episodes, int(request.tasks))
    env = run.make_env()

    def team(name: str) -> ScenarioTeam:
        return ScenarioTeam(env, named_team(run.folder, name, env))

    resample = [team(other) for other in others]
    onward = None if onward_name == STORED else team(onward_name)
    samples = request.samples or len(others)
    stored = {
        Job(name, str(number), "train", 0): StoredEpisode.of(row, place)
        for number, (place, row) in enumerate(rows)
    }

    def credits_of(job: Job) -> tuple[Credit, ...]:
        return stored_credits(
            env, stored[job], resample, samples, episode=_name(job), onward=onward
        )

    played = [] if onward is None else [onward_name]
    version = _version(run.folder, [*played, *others], env, samples, (request.source,))
    return _Plan(env, {name: version}, {job: _later(credits_of, job) for job in stored})


def _later(
    credits_of: Callable[[Job], tuple[Credit, ...]], job: Job
) -> Callable[[], tuple[Credit, ...]]:
    return lambda: credits_of(job)


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


def _play_all(plan: _Plan, request: CounterfactualRequest) -> list[Result]:
    """Play what has no result yet, and return all results in the order of the jobs."""
    jobs = list(plan.episodes)
    if request.out is None:
        results: list[Result] = []
        _play(plan, jobs, results.append)
        return results
    with ResultsFile(request.out, plan.versions, resume=request.resume) as file:
        try:
            _play(plan, file.open_jobs(jobs), file.add)
        except KeyboardInterrupt:
            done = len(file.results(jobs))
            typer.echo(
                f"stopped: {done} of {len(jobs)} episodes are in {request.out}; go on with "
                "--resume",
                err=True,
            )
            raise
        return file.results(jobs)


def _play(plan: _Plan, jobs: Sequence[Job], keep: Callable[[Result], None]) -> None:
    console = Console(stderr=True)
    total = len(plan.episodes)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("episodes", total=total, completed=total - len(jobs))
        for job in jobs:
            keep(_result(job, plan.episodes[job]()))
            progress.advance(bar)


def _result(job: Job, credits: Sequence[Credit]) -> Result:
    return {
        "team": job.team,
        "task": job.task,
        "split": job.split,
        "seed": job.seed,
        "decided": bool(credits),
        "credits": [credit.record() for credit in credits],
    }
