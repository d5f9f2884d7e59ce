"""What a person sees of a run: the phase it is in, one line per iteration, and the tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import rich
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from mappa_trainer.coaching import (
    coach_line,
    cost,
    cost_of,
    in_words,
    run_cost_lines,
    unscored,
    unscored_of,
)
from mappa_trainer.evaluate import Measurement, change, report
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import Record, RunDirectory
from mappa_trainer.statistics import Interval, bootstrap
from mappa_trainer.update import Metrics


class Console:
    """Writes to the terminal; where there is none, phases are left out and lines stay."""

    def __init__(self) -> None:
        self._console = rich.get_console()
        self._spinner = Spinner("dots")
        self._live: Live | None = None
        self._began = time.monotonic()
        self._total = 0

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show that something is being waited for."""
        with self._console.status(text):
            yield

    def begin(self, recipe: Recipe, path: Path, first: int) -> None:
        """Say what starts and where its files are."""
        self._total = recipe.train.iterations
        verb = f"resumes after {first} iterations" if first else "starts"
        self.say(f"run {recipe.name} {verb}: {self._total} iterations in {path}")

    def phase(self, name: str, check: Callable[[], None]) -> Callable[[str], None]:
        """Return a callback that shows progress within a phase and stops where asked to."""

        def progress(text: str) -> None:
            check()
            self.show(f"{name}: {text}")

        return progress

    def show(self, text: str) -> None:
        """Show what is going on at the moment."""
        if not self._console.is_terminal:
            return
        if self._live is None:
            self._live = Live(self._spinner, console=self._console, transient=True)
            self._live.start()
        elapsed = time.monotonic() - self._began
        self._spinner.update(text=f"{text}  ({elapsed / 60:.1f} min)")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table that stays."""
        self._console.print(table)

    def iteration(self, iteration: int, metrics: Metrics) -> None:
        """Print one iteration in a line."""
        scores = "  ".join(
            f"{name.removesuffix('/score')} {value:.2f}"
            for name, value in metrics.items()
            if name.endswith("/score") and name.count("/") == 1
        )
        phases = ("collect", "logprobs", "update", "sync")
        took = sum(metrics.get(f"seconds/{phase}", 0.0) for phase in phases)
        outcome = metrics.get("outcome", float("nan"))
        said = [
            f"iteration {iteration + 1:>3}/{self._total}",
            f"coach score: {scores}",
            f"outcome {outcome:.2f}",
            in_words(unscored_of(metrics)),
            coach_line(cost_of(metrics)),
            f"({took:.0f} s)",
        ]
        self.say("  ".join(filter(None, said)))

    def evaluation(
        self, run: RunDirectory, iteration: int, modes: Sequence[str], agents: Sequence[str]
    ) -> None:
        """Print the evaluation after `iteration`, beside the one before training."""
        played: list[Record] = []
        for mode in modes:
            before = report(run.episodes(f"eval-0000-{mode}"), agents)
            now = run.episodes(f"eval-{iteration:04d}-{mode}")
            title = f"held-out problems, {mode}, "
            if iteration == 0:
                table = measurement_table(title + "before training", before)
            else:
                title += f"after {iteration} iterations"
                table = comparison_table(title, before, report(now, agents))
            self.table(table)
            if missing := in_words(unscored(now).failures):
                self.say(missing)
            played += now
        if line := coach_line(cost(played)):
            self.say(line)

    def finished(self, run: RunDirectory) -> None:
        """Say what the coach cost in all, where everything is, and how to look at it."""
        self._total_cost(run)
        path = run.path
        self.say(f"done. The run is in {path}; look into it with: mappa show {path} --episode 0")

    def stopped(self, run: RunDirectory, done: int) -> None:
        """Say what the coach cost so far, and how to go on."""
        self._total_cost(run)
        self.say(f"stopped after {done} iterations; go on with: mappa train --resume {run.path}")

    def _total_cost(self, run: RunDirectory) -> None:
        for line in run_cost_lines(run.costs()):
            self.say(line)

    def close(self) -> None:
        """End the live display."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def comparison_table(
    title: str, before: Sequence[Measurement], after: Sequence[Measurement]
) -> Table:
    """Return a table of two evaluations of the same problems with the change between them.

    What one of them could not measure, e.g. how good submissions are before there is any, has a
    dash there.
    """
    table = Table(title=title, title_justify="left")
    for column in ("", "before", "after", "change [95 %]"):
        table.add_column(column, justify="left" if not column else "right", overflow="fold")
    olds = {one.name: one for one in before}
    news = {one.name: one for one in after}
    for name in dict.fromkeys((*news, *olds)):
        old = olds.get(name, Measurement(name, {}))
        new = news.get(name, Measurement(name, {}))
        both = old.per_problem.keys() & new.per_problem.keys()
        difference = str(change(old, new)) if both else "-"
        table.add_row(name, _mean(old), _mean(new), difference)
    return table


def measurement_table(title: str, measured: Sequence[Measurement]) -> Table:
    """Return a table of one evaluation."""
    table = Table(title=title, title_justify="left")
    for column in ("", "mean [95 %]", "problems"):
        table.add_column(column, justify="left" if not column else "right", overflow="fold")
    for one in measured:
        values = list(one.per_problem.values())
        table.add_row(one.name, _level(bootstrap(values)) if values else "-", str(len(values)))
    return table


def _mean(measurement: Measurement) -> str:
    return f"{measurement.mean:.2f}" if measurement.per_problem else "-"


def _level(interval: Interval) -> str:
    return f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
