"""The runs of an experiment, each in a process of its own, resumed and never run twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from mappa_trainer.checkpoint import latest_checkpoint
from mappa_trainer.errors import CheckpointError
from mappa_trainer.evaluate import coach_score
from mappa_trainer.recipe import Recipe, load_recipe
from mappa_trainer.runlog import Record, RunDirectory

RECIPE = Path(__file__).parent.parent / "scenarios" / "recipes" / "mathchat-cpu.toml"
AGENTS = ("solver_0", "coder_0", "verifier_0")
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
    """Changes of the recipe, e.g. `eval.problems=64`."""

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
        last = list(self.recipe.eval_modes)[-1]
        return f"eval-{self.recipe.train.iterations:04d}-{last}" in run.episode_names()

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

    def evaluation(self, iteration: int, mode: str) -> list[Record]:
        """Return the held-out episodes that were played after `iteration` iterations."""
        return list(RunDirectory.open(self.path).episodes(f"eval-{iteration:04d}-{mode}"))

    def _command(self) -> list[str]:
        train = [sys.executable, "-c", "from mappa_envs.cli import main; main()", "train"]
        try:
            latest_checkpoint(self.path)
        except CheckpointError:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            return [*train, "--resume", str(self.path)]
        flags = [part for setting in self._settings() for part in ("--set", setting)]
        return [*train, str(RECIPE), "--out", str(self.path), *flags]

    def _settings(self) -> list[str]:
        return [f"train.seed={self.seed}", *self.settings]


def run_all(jobs: Sequence[Job], at_a_time: int) -> None:
    """Run what has not run yet; a run that fails is told, and the others go on."""
    for root in {job.root for job in jobs}:
        root.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(_run, jobs))


def _run(job: Job) -> None:
    try:
        job.run()
    except subprocess.CalledProcessError as error:
        log = job.path.with_suffix(".log")
        print(f"failed: {job.path}, exit code {error.returncode}, see {log}", flush=True)


def team_score(record: Record) -> float | None:
    """Return the mean of the agents' coach scores; None where one of them has none."""
    scores = [coach_score(agent)(record) for agent in AGENTS]
    return None if None in scores else fmean(score for score in scores if score is not None)


def default_jobs() -> int:
    """One run for each core, as far as memory goes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, memory // MEMORY_PER_RUN_BYTES))
