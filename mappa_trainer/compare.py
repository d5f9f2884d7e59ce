"""`mappa compare`: two stored evaluations of the same problems, with the change between them."""

from __future__ import annotations

from pathlib import Path

import rich

from mappa_trainer.console import comparison_table
from mappa_trainer.errors import RunDirectoryError
from mappa_trainer.evaluate import problem_key, report
from mappa_trainer.runlog import Record, RunDirectory


def compare(one: Path, other: Path) -> None:
    """Print what two evaluations measured, paired by problem, with 95 % intervals of the change.

    Args:
        one: A run directory, of which the last evaluation is taken, or an episode file of a run.
        other: The same, for what it is compared with.

    Raises:
        RunDirectoryError: there is no such evaluation, or the two played other problems.
    """
    (name, before), (other_name, after) = _evaluation(one), _evaluation(other)
    problems, others = ({problem_key(record) for record in of} for of in (before, after))
    if problems != others:
        raise RunDirectoryError(
            f"{name} and {other_name} did not play the same problems: {len(problems - others)} are "
            f"only in the first, {len(others - problems)} only in the second; evaluate both on the "
            "same split with the same --problems"
        )
    agents = list(dict.fromkeys(a["agent"] for r in (*before, *after) for a in r["actions"]))
    title = f"{name}, then {other_name}, {len(problems)} problems"
    rich.print(comparison_table(title, report(before, agents), report(after, agents)))


def _evaluation(path: Path) -> tuple[str, list[Record]]:
    """Return the name and the episodes of an evaluation."""
    if path.suffix == ".jsonl":
        run, name = RunDirectory.open(path.parent.parent), path.stem
    else:
        run = RunDirectory.open(path)
        names = [n for n in run.episode_names() if n.startswith(("eval-", "test-"))]
        if not names:
            raise RunDirectoryError(f"{path}: no evaluation is stored; make one with mappa eval")
        name = max(names, key=lambda n: (run.path / "episodes" / f"{n}.jsonl").stat().st_mtime_ns)
    return f"{run.path.name}/{name}", list(run.episodes(name))
