"""Playing episodes whose results are kept in a file, so that a stopped command can go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import typer

from mappa_envs.bench import Job, Result
from mappa_envs.bench_file import ResultsFile
from mappa_envs.commands.screen import progress
from mappa_envs.errors import CommandError

Play = Callable[[Sequence[Job], Callable[[Result], None]], None]
"""Plays jobs, and calls a function with the result of each."""


def check_resume(out: Path | None, resume: bool) -> None:
    """Raise a `CommandError` if there is no file to go on with."""
    if resume and out is None:
        raise CommandError("--resume needs the file to go on with; name it with --out")


def kept_results(
    jobs: Sequence[Job], versions: Mapping[str, str], out: Path | None, resume: bool, play: Play
) -> list[Result]:
    """Play what has no result yet, show how far it is, and return all results in order.

    Args:
        jobs: The episodes.
        versions: What results depend on, by team; see `ResultsFile`.
        out: The file; None keeps nothing.
        resume: Whether a file that is there is gone on with.
        play: Plays them.

    Raises:
        CommandError: the file is there and is not to be gone on with, or cannot be.
    """
    if out is None:
        results: list[Result] = []
        _play(jobs, len(jobs), results.append, play)
        places = {job.key: place for place, job in enumerate(jobs)}
        return sorted(results, key=lambda r: places[r["team"], r["task"], r["seed"]])
    with ResultsFile(out, versions, resume=resume) as file:
        try:
            _play(file.open_jobs(jobs), len(jobs), file.add, play)
        except KeyboardInterrupt:
            done = len(file.results(jobs))
            typer.echo(
                f"stopped: {done} of {len(jobs)} episodes are in {out}; go on with --resume",
                err=True,
            )
            raise
        return file.results(jobs)


def _play(jobs: Sequence[Job], total: int, keep: Callable[[Result], None], play: Play) -> None:
    with progress() as bars:
        bar = bars.add_task("episodes", total=total, completed=total - len(jobs))

        def tell(result: Result) -> None:
            keep(result)
            bars.advance(bar)

        play(jobs, tell)
