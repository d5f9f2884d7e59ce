"""The training loop: MAPPA's REINFORCE++ from per-action rewards (arXiv 2601.23228, 2501.03262).

Each iteration plays the team on new tasks, reads one reward for each action, and takes the same
number of optimiser steps for every agent on that agent's own actions. Left out on purpose: a
critic, a group baseline, and any summing of rewards over an agent's actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from torch.utils.tensorboard import SummaryWriter

from mappa_trainer.checkpoint import latest_checkpoint, save_checkpoint, was_saved
from mappa_trainer.coaching import (
    check_budget,
    check_share,
    cost_metrics,
    cost_rows,
    unscored,
    unscored_metrics,
)
from mappa_trainer.collect import Env, Play, plays
from mappa_trainer.console import Console
from mappa_trainer.environment import check_recipe, make_env, task_ids
from mappa_trainer.errors import AlarmError, RunDirectoryError, TrainingError, UnjudgedError
from mappa_trainer.evaluate import report, unplayed
from mappa_trainer.health import alarms
from mappa_trainer.leakage import check_splits
from mappa_trainer.phases import Phases, speeds
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import Record, RunDirectory, check_free, episode_record
from mappa_trainer.stop import Stopped, StopSignal
from mappa_trainer.team import Team, build_team, sampling_of
from mappa_trainer.types import Episode
from mappa_trainer.update import Metrics, frozen_metrics, update_learner


@dataclass(frozen=True)
class Session:
    """A run in progress: everything the steps of the loop share."""

    recipe: Recipe
    run: RunDirectory
    envs: Sequence[Env]
    team: Team
    console: Console
    phases: Phases = field(default_factory=Phases)

    @property
    def agents(self) -> list[str]:
        """The seats, in the order in which they act."""
        return list(self.envs[0].possible_agents)


def start(recipe: Recipe, path: Path, console: Console) -> bool:
    """Start a run in a new directory; see `train`.

    Raises:
        LeakageError: the run would be evaluated on what it trains on.
    """
    check_free(path)  # before models are loaded
    envs = _make_envs(recipe)
    trained_on, allowed = check_splits(recipe, envs[0])
    if allowed:
        console.say(allowed)
    with console.status("loading the models"):
        team = build_team(recipe, envs[0].possible_agents)
    run = RunDirectory.create(path, recipe)
    if ids := task_ids(envs[0]):
        run.write_task_ids(ids)
    if trained_on is not None:
        run.write_trained_on(trained_on)
    with run.held():
        return train(Session(recipe, run, envs, team, console), 0)


def resume(path: Path, console: Console) -> bool:
    """Continue a run from its newest complete checkpoint; see `train`.

    Raises:
        RunDirectoryError: another process trains it, or it is an evaluation.
    """
    run = RunDirectory.open(path)
    if run.is_evaluation():
        raise RunDirectoryError(
            f"{path}: holds evaluations alone; train in a directory of its own, with mappa train "
            "RECIPE"
        )
    with run.held():
        return _resume(run, console)


def _resume(run: RunDirectory, console: Console) -> bool:
    path, recipe = run.path, run.recipe()
    checkpoint, iteration = None, 0
    past_the_first = len(run.metrics()) > recipe.train.save_every
    if past_the_first or was_saved(path):
        checkpoint, iteration = latest_checkpoint(path)  # else nothing is lost by starting over
    envs = _make_envs(recipe)
    run.check_task_ids(task_ids(envs[0]))
    if _is_finished(run, recipe, iteration):
        console.say(f"{path} is finished: all {iteration} iterations and the last evaluation")
        for env in envs:
            env.close()
        return True
    with console.status("loading the models"):
        team = build_team(recipe, envs[0].possible_agents, checkpoint)
    run.forget_after(iteration)
    return train(Session(recipe, run, envs, team, console), iteration)


def _is_finished(run: RunDirectory, recipe: Recipe, iteration: int) -> bool:
    last = {f"eval-{iteration:04d}-{mode}" for mode in recipe.eval_modes}
    return iteration == recipe.train.iterations and last <= set(run.episode_names())


def train(session: Session, first: int) -> bool:
    """Run iterations `first` to the recipe's last; return whether the last was reached.

    Ctrl-C stops at the next safe point: an iteration whose updates have begun is finished, one
    that is still collecting is given up, and a checkpoint is written.

    Raises:
        UnjudgedError: the coach left too much unscored, or its budget is spent; as after Ctrl-C,
            a checkpoint is written.
        AlarmError: an alarm is raised whose rule is to stop; a checkpoint is written.
        TrainingError: a whole iteration gave nothing to train on, or the numbers are wrong.
    """
    table, run, console = session.recipe.train, session.run, session.console
    done, saved = first, first if first else None
    with StopSignal(console) as stop, _events(run, first) as events:
        console.begin(session.recipe, run.path, first)
        try:
            session.team.open(run.path / "engines", console.phase("the engines", stop.check))
            for iteration in range(first, table.iterations):
                if iteration % session.recipe.eval.every == 0:
                    _evaluate(session, iteration, events, stop.check)
                metrics = _iterate(session, iteration, stop.check)
                done = iteration + 1
                _log(run, events, iteration, metrics)
                console.iteration(iteration, metrics)
                if done % table.save_every == 0 or done == table.iterations:
                    saved = _save(session, done)
                _heed_alarms(session)
            _evaluate(session, done, events, stop.check)
            _add_events(events, session.phases.take(), done)
            console.finished(run)
        except (Stopped, UnjudgedError, AlarmError) as reason:
            if saved != done:
                _save(session, done)
            console.stopped(run, done)
            if isinstance(reason, Stopped):
                return False
            raise
        finally:
            console.close()
            session.team.close()
            for env in session.envs:
                env.close()
    return True


def _heed_alarms(session: Session) -> None:
    """Show the alarms that the last iteration raised.

    Raises:
        AlarmError: one of them stops the run.
    """
    rows = session.run.metrics()
    raised = alarms(rows, session.agents, session.recipe.alarms)
    new = [alarm for alarm in raised if alarm.iteration == rows[-1]["iteration"]]
    for alarm in new:
        session.console.say(str(alarm))
    if stopping := [alarm for alarm in new if alarm.stops]:
        raise AlarmError(
            f"{stopping[0]}; look at the episodes in {session.run.path / 'episodes'}. The run goes "
            f"on past the alarm with --resume, and without it with alarms.{stopping[0].name}.rule "
            "set to 'warn' or 'off'"
        )


def _iterate(session: Session, iteration: int, check: Callable[[], None]) -> Metrics:
    """Collect, update every agent, sync; return the iteration's metrics."""
    recipe, team, console = session.recipe, session.team, session.console
    todo = _plays(recipe, iteration)
    phase, temperature = f"train-{iteration:04d}", recipe.sampling.temperature
    progress = console.phase(f"iteration {iteration + 1}", check)
    with session.phases.of("collect"):
        episodes, records = _play(session, phase, todo, temperature, progress)
    check_share(unscored(records), recipe.train.max_unscored, phase, session.run.path)
    metrics = _team_metrics(records, session.agents)
    check()
    for weights in team.weights:
        if weights.name not in team.learners:
            metrics |= frozen_metrics(episodes, weights.agents)
            continue
        console.show(f"iteration {iteration + 1}: {', '.join(weights.agents)} learns")
        metrics |= update_learner(
            recipe, team.worker(weights.name), episodes, weights.agents, iteration, session.phases
        )
        with session.phases.of("sync"):
            metrics |= team.sync(weights.name)
    _check_trained(metrics, session.agents, iteration)
    return metrics | _time_metrics(session, episodes, metrics)


def _time_metrics(session: Session, episodes: Sequence[Episode], metrics: Metrics) -> Metrics:
    """Tell how many tokens were dealt with, and how long the phases since the last row took."""
    played = [t.sampled.tokens for episode in episodes for t in episode.transitions]
    trained = [
        int(metrics.get(f"{weights.agents[0]}/trained_tokens", 0))
        for weights in session.team.weights
    ]
    tokens = {"collect": sum(played), "update": sum(trained)}
    seconds = session.phases.take()
    counts = {"generated_tokens": tokens["collect"], "trained_tokens": tokens["update"]}
    return counts | seconds | speeds(seconds, tokens)


def _plays(recipe: Recipe, iteration: int) -> list[Play]:
    """Return the iteration's tasks, each `train.samples` times."""
    table = recipe.train
    count = table.episodes // table.samples
    return [
        play
        for sample in range(table.samples)
        for play in plays(table.seed, "train", iteration * count, count, "train", sample)
    ]


def _play(
    session: Session,
    phase: str,
    todo: Sequence[Play],
    temperature: float,
    progress: Callable[[str], None],
) -> tuple[list[Episode], list[Record]]:
    """Play the episodes of a phase, and keep them and what judging them cost.

    Raises:
        UnjudgedError: the coach's budget is spent.
    """
    sampling = sampling_of(session.recipe, session.agents, temperature)
    episodes = session.team.play(session.envs, todo, sampling, progress)
    records: list[Record] = [episode_record(episode) for episode in episodes]
    session.run.write_episodes(phase, episodes)
    session.run.add_costs(cost_rows(phase, records))
    check_budget(records, phase, session.run.path)
    return episodes, records


def _check_trained(metrics: Metrics, agents: Sequence[str], iteration: int) -> None:
    if metrics["truncated"] == 1:
        raise TrainingError(
            f"iteration {iteration}: every episode was cut off, see end_reasons in this "
            "iteration's episodes; mend the sandbox, then resume"
        )
    if all(metrics[f"{agent}/actions"] == 0 for agent in agents):
        reasons = {
            name: int(value) for name, value in metrics.items() if "/dropped_" in name and value
        }
        raise TrainingError(
            f"iteration {iteration}: nothing to train on, every action was dropped: {reasons}; "
            "look at the episodes of this iteration, then resume"
        )


def _team_metrics(records: Sequence[Record], agents: Sequence[str]) -> Metrics:
    found = {measurement.name: measurement.mean for measurement in report(records, agents)}
    found["truncated"] = fmean(record["truncated"] for record in records)
    found["episode_return"] = fmean(sum(record["returns"].values()) for record in records)
    found |= unscored_metrics(records, agents) | cost_metrics(records, agents)
    return {name: value for name, value in found.items() if value == value}


def _evaluate(
    session: Session, iteration: int, events: SummaryWriter, check: Callable[[], None]
) -> None:
    """Play the held-out problems, the same ones with the same seeds every time."""
    recipe, agents = session.recipe, session.agents
    played: list[Record] = []
    for mode, temperature in recipe.eval_modes.items():
        progress = session.console.phase(f"evaluation after {iteration}, {mode}", check)
        todo = plays(recipe.train.seed, "eval", 0, recipe.eval.problems, "test")
        phase = f"eval-{iteration:04d}-{mode}"
        with session.phases.of("evaluate"):
            _, records = _play(session, phase, todo, temperature, progress)
        measured = {one.name: one.mean for one in report(records, agents)}
        for name, value in (measured | unscored_metrics(records, agents)).items():
            events.add_scalar(f"eval_{mode}/{name}", value, iteration)
        if said := unplayed(records):
            session.console.say(said)
        played += records
    for name, value in cost_metrics(played, agents).items():
        events.add_scalar(f"eval_{name}", value, iteration)
    session.console.evaluation(session.run, iteration, list(recipe.eval_modes), agents)


def _events(run: RunDirectory, first: int) -> SummaryWriter:
    """Open the event file; what a resumed run does again replaces what was there."""
    return SummaryWriter(str(run.path / "tensorboard"), purge_step=first)


def _log(run: RunDirectory, events: SummaryWriter, iteration: int, metrics: Metrics) -> None:
    run.add_metrics({"iteration": iteration, **metrics})
    _add_events(events, metrics, iteration)


def _add_events(events: SummaryWriter, metrics: Metrics, iteration: int) -> None:
    for name, value in metrics.items():
        events.add_scalar(name, value, iteration)


def _save(session: Session, done: int) -> int:
    session.console.show(f"saving the checkpoint after {done} iterations")
    keep = session.recipe.train.keep_checkpoints
    team = session.team
    with session.phases.of("save"):
        save_checkpoint(
            session.run.path, done, team.learners, team.tokenizer, keep, players=team.players
        )
    return done


def _make_envs(recipe: Recipe) -> list[Env]:
    first = make_env(recipe)
    check_recipe(recipe, first)
    count = max(recipe.train.episodes, recipe.eval.problems)
    return [first, *(make_env(recipe) for _ in range(count - 1))]
