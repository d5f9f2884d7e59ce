"""Does the team learn from the coach alone? Three seeds, each with a control.

For every seed the recipe runs twice from the same start: once as it is, once with each agent's
rewards dealt out at random among its actions, so that nothing can be learned from them. Held-out
problems are played before and after, sampled and greedy, and compared problem by problem.

    python benchmarks/learning.py            # over an hour on two cores; run it again to go on
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from mappa_trainer.checkpoint import latest_checkpoint
from mappa_trainer.errors import CheckpointError
from mappa_trainer.evaluate import (
    Measure,
    Measurement,
    change,
    coach_score,
    measure,
    outcome,
    report,
)
from mappa_trainer.recipe import Recipe, load_recipe
from mappa_trainer.runlog import Record, RunDirectory
from mappa_trainer.statistics import Interval

RECIPE = Path(__file__).parent.parent / "scenarios" / "recipes" / "mathchat-cpu.toml"
AGENTS = ("solver_0", "coder_0", "verifier_0")
ARMS = ("coach", "shuffled")
MODES = ("sampled", "greedy")
MEMORY_PER_RUN_BYTES = 11 << 30
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Job:
    """One training run of the experiment."""

    root: Path
    seed: int
    arm: str
    settings: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.root / f"seed{self.seed}-{self.arm}"

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe with the settings of this run."""
        return load_recipe(RECIPE, self._settings())

    def finished(self) -> bool:
        """Whether the evaluation after the last iteration is there.

        Raises:
            SystemExit: the run on disk was made by another recipe.
        """
        if not (self.path / "config.json").is_file():
            return False
        run = RunDirectory.open(self.path)
        if run.recipe() != self.recipe:
            sys.exit(f"{self.path} was made by another recipe; delete it, or name another --out")
        return f"eval-{self.recipe.train.iterations:04d}-greedy" in run.episode_names()

    def run(self) -> None:
        """Run, or go on with, this job in a process of its own with one thread."""
        if not self.finished():
            log = self.path.with_suffix(".log")
            environment = os.environ | ONE_THREAD
            with log.open("a") as file:
                subprocess.run(
                    self._command(), check=True, stdout=file, stderr=file, env=environment
                )
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)  # 5 GB that nothing reads
        print(f"done: {self.path}", flush=True)

    def _command(self) -> list[str]:
        train = [str(Path(sys.executable).parent / "mappa"), "train"]
        try:
            latest_checkpoint(self.path)
        except CheckpointError:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            return [*train, "--resume", str(self.path)]
        flags = [part for setting in self._settings() for part in ("--set", setting)]
        return [*train, str(RECIPE), "--out", str(self.path), *flags]

    def _settings(self) -> list[str]:
        return [
            f"train.seed={self.seed}",
            "eval.problems=64",
            "eval.every=1000",  # before and after are enough here
            *(["algorithm.shuffle_rewards=true"] if self.arm == "shuffled" else []),
            *self.settings,
        ]


def evaluations(job: Job, mode: str) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return the held-out episodes before and after training."""
    run = RunDirectory.open(job.path)
    last = job.recipe.train.iterations
    return run.episodes(f"eval-0000-{mode}"), run.episodes(f"eval-{last:04d}-{mode}")


def changed(job: Job, mode: str, value: Measure) -> Interval:
    """Return the change of a quantity on the held-out problems."""
    return change(*(measure(records, "", value) for records in evaluations(job, mode)))


def team_score(record: Record) -> float | None:
    """Return the mean of the agents' coach scores; None where one of them has none."""
    scores = [coach_score(agent)(record) for agent in AGENTS]
    return None if None in scores else fmean(score for score in scores if score is not None)


def caught_up(job: Job, agent: str) -> str:
    """Say how much of the sampled gain only brings sampling to where greedy was before."""
    sampled, after = (
        measure(r, agent, coach_score(agent)).mean for r in evaluations(job, "sampled")
    )
    greedy = measure(evaluations(job, "greedy")[0], agent, coach_score(agent)).mean
    if after <= sampled:
        return "no gain"
    return f"{max(0.0, min(greedy, after) - sampled) / (after - sampled):.0%}"


def rows(jobs: list[Job]) -> Iterator[str]:
    """Yield the Markdown table: one row for each seed, arm, mode and agent."""
    yield (
        "| seed | rewards | actions | agent | coach score | change [95 %] | tokens "
        "| well-formed calls | team correct |"
    )
    yield "|" + "---|" * 9
    for job in jobs:
        for mode in MODES:
            before, after = (by_name(report(r, AGENTS)) for r in evaluations(job, mode))
            for agent in AGENTS:
                cells = (
                    str(job.seed),
                    job.arm,
                    mode,
                    agent,
                    arrow(before, after, f"{agent}/score"),
                    str(changed(job, mode, coach_score(agent))),
                    arrow(before, after, f"{agent}/tokens", ".0f"),
                    arrow(before, after, f"{agent}/tool_calls") if agent == "coder_0" else "-",
                    arrow(before, after, "outcome"),
                )
                yield "| " + " | ".join(cells) + " |"


def by_name(measured: list[Measurement]) -> dict[str, Measurement]:
    """Key measurements by name."""
    return {one.name: one for one in measured}


def arrow(
    before: dict[str, Measurement], after: dict[str, Measurement], name: str, form: str = ".2f"
) -> str:
    """Show a quantity before and after."""
    return f"{before[name].mean:{form}} → {after[name].mean:{form}}"


def findings(job: Job) -> Iterator[tuple[bool, str]]:
    """Yield each claim about a run with whether the run bears it out.

    To rise or fall is to have an interval of the change that lies above or below zero.
    The control's one question is whether the team's mean coach score rises: asked of each agent in
    each mode, some of the many 95 % intervals would be above zero by chance.
    """
    name = f"seed {job.seed}, {job.arm}"
    risen = {m: [a for a in AGENTS if changed(job, m, coach_score(a)).low > 0] for m in MODES}
    team = {mode: changed(job, mode, team_score) for mode in MODES}
    if job.arm == "shuffled":
        for mode in MODES:
            alone = ", ".join(risen[mode]) or "none"
            yield (
                team[mode].low <= 0,
                f"{name}, {mode}: the team's coach score does not rise: {team[mode]}; "
                f"single agents that rose: {alone}",
            )
        return
    both = [agent for agent in AGENTS if all(agent in risen[mode] for mode in MODES)]
    yield len(both) >= 2, f"{name}: coach score rises, sampled and greedy: {', '.join(both)}"
    for mode in MODES:
        gain = changed(job, mode, outcome)
        yield gain.high >= 0, f"{name}, {mode}: correctness does not fall: {gain}"
    shares = ", ".join(f"{agent} {caught_up(job, agent)}" for agent in AGENTS)
    yield True, f"{name}: share of the sampled gain that only catches up with greedy: {shares}"


def main() -> int:
    """Run what has not run yet and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/learn"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="runs at a time")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    jobs = [
        Job(arguments.out, seed, arm, tuple(arguments.settings))
        for seed in arguments.seeds
        for arm in ARMS
    ]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(Job.run, jobs))
    claims = [claim for job in jobs for claim in findings(job)]
    text = [*rows(jobs), "", *(f"- {'yes' if ok else 'NO'}: {claim}" for ok, claim in claims)]
    (arguments.out / "table.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))
    return 0 if all(ok for ok, _ in claims) else 1


def default_jobs() -> int:
    """One run for each core, as far as memory goes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, memory // MEMORY_PER_RUN_BYTES))


if __name__ == "__main__":
    sys.exit(main())
