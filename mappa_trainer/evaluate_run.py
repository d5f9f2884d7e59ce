"""`mappa eval`: plays the newest checkpoint of a run and prints what it is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import rich

from mappa_trainer.checkpoint import latest_checkpoint
from mappa_trainer.coaching import coach_line, cost, cost_rows, in_words, unscored
from mappa_trainer.collect import collect, plays
from mappa_trainer.console import measurement_table
from mappa_trainer.evaluate import report
from mappa_trainer.rates import rate_line, rates
from mappa_trainer.runlog import RunDirectory, episode_record
from mappa_trainer.team import load_policies, make_env, sampling_of, task_ids, without_coach

AT_A_TIME = 64
"""Episodes played in lockstep."""


def evaluate_run(
    path: Path,
    split: Literal["train", "test"],
    samples: int,
    problems: int | None,
    greedy: bool,
    coach: bool = False,
) -> None:
    """Evaluate and print a table; the episodes are stored in the run directory.

    Without `coach` the environment is made without the recipe's table of that name, so that
    nobody is asked and nothing is spent.

    Raises:
        RunDirectoryError: there is no run at `path`, or its tasks are others now.
        CheckpointError: the run has no checkpoint yet.
    """
    run = RunDirectory.open(path)
    recipe = run.recipe() if coach else without_coach(run.recipe())
    checkpoint, iteration = latest_checkpoint(path)
    count = problems or recipe.eval.problems
    envs = [make_env(recipe) for _ in range(min(AT_A_TIME, count * samples))]
    run.check_task_ids(task_ids(envs[0]))
    agents = envs[0].possible_agents
    seed = recipe.train.seed  # so sample 0 is played as in the evaluation of training
    rounds = [plays(seed, "eval", 0, count, split, sample=sample) for sample in range(samples)]
    todo = [play for group in rounds for play in group]
    sampling = sampling_of(recipe, agents, 0.0 if greedy else recipe.eval_modes["sampled"])
    with rich.get_console().status(f"evaluating {checkpoint.name}") as status:
        policies = load_policies(recipe, agents, checkpoint)
        episodes = collect(envs, todo, policies, sampling, lambda text: status.update(text))
    for env in envs:
        env.close()
    mode = "greedy" if greedy else "sampled"
    name = f"{split}-after-{iteration:04d}-{mode}-{count}x{samples}{'-coached' if coach else ''}"
    run.write_episodes(name, episodes)
    records = [episode_record(episode) for episode in episodes]
    run.add_costs(cost_rows(name, records))
    title = f"{checkpoint.name} on {count} {split} problems, {samples} samples of each"
    rich.print(measurement_table(title, report(records, agents)))
    for line in map(rate_line, rates(records, samples)):
        rich.get_console().print(line, highlight=False, markup=False)
    judging = (in_words(unscored(records).failures), coach_line(cost(records)))
    for line in (*filter(None, judging), f"episodes: {run.path / 'episodes' / name}.jsonl"):
        rich.get_console().print(line, highlight=False, markup=False, soft_wrap=True)
