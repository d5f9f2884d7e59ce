"""`mappa compare`: two stored evaluations of the same problems, with the change between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rich

from mappa_trainer.console import comparison_table
from mappa_trainer.errors import RunDirectoryError
from mappa_trainer.evaluate import problem_key, report
from mappa_trainer.runlog import Record, RunDirectory

_MODE = re.compile(r"-(greedy|sampled|t[0-9.e-]+?)(?=-|$)")


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
    for line in _differences(name, before, other_name, after):
        rich.get_console().print(line, highlight=False, markup=False, soft_wrap=True)


def _differences(
    name: str, before: Sequence[Record], other_name: str, after: Sequence[Record]
) -> Iterator[str]:
    """Say in what the two differ besides who played."""
    modes = [_MODE.findall(each)[-1:] for each in (name, other_name)]
    if modes[0] != modes[1]:
        yield f"not alike: actions are {' and '.join(m[0] if m else '?' for m in modes)}"
    counts = [len(records) / len(set(map(problem_key, records))) for records in (before, after)]
    if counts[0] != counts[1]:
        yield f"not alike: {counts[0]:g} and {counts[1]:g} samples of a problem"
    first, second = map(_first_prompts, (before, after))
    if others := sum(first[problem] != second[problem] for problem in first):
        yield (
            f"not alike: the first prompt of {others} of {len(first)} problems is another; they "
            "are other problems with the same names, or other instructions"
        )


def _first_prompts(records: Sequence[Record]) -> dict[str, Any]:
    """Return what the first agent saw first, for each problem."""
    return {problem_key(r): r["actions"][0]["messages"] if r["actions"] else [] for r in records}


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
