"""Does the rubric's blame fall on the culprit? Teams with one planted fault each, and clean ones.

Every team of `scenarios/dsbench/teams` that names a culprit plays each task with each seed, and the
oracle team plays it too. The seed decides the tables as well: rows, corruptions, splits. An episode
is blamed on the agent of the action with the lowest score; where several have it, on the earliest,
since what goes wrong later may follow from it; and on nobody where every action has full marks.

    python benchmarks/blame.py --tasks wine,diabetes   # two tasks, minutes
    python benchmarks/blame.py                         # all of them; run it again to go on
    python benchmarks/blame.py --report                # what has been played so far
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mappa_envs.audit.blame import NOBODY, blamed, play_teams

HELD_OUT = {
    "engineer-encodes-apart": "engineer encodes X_test with other columns",
    "modeler-shuffles-targets": "modeler saves a model trained on shuffled targets",
    "analyst-rounds-predictions": "analyst rounds or bins predictions so that they disagree with "
    "the model",
}
"""Faults that were left out of the rubric's design: chosen by name before any check was written,
and not played until the checks and their points stood."""
SCENARIO = "dsbench"
CLEAN = "oracle"
"""The team that does nothing wrong."""
GOALS = {"culprit": 0.95, "false blame": 0.02}
OUT = Path("runs/blame.jsonl")
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Verdict:
    """What came of one episode."""

    team: str
    culprit: str
    """The role with the fault; empty in a clean episode."""
    task: str
    task_type: str
    seed: int
    scores: tuple[tuple[str, float], ...]
    """The role and the score of each action that could be scored, oldest first."""
    reasons: tuple[str, ...]
    """The lines of rationales that cost points."""
    outcome: float
    version: str

    @property
    def blamed(self) -> str:
        """The role with the lowest score."""
        return blamed(self.scores)


def version() -> str:
    """Return a hash of what decides scores; episodes of another version are played anew."""
    parts = (
        "mappa_envs/coach/table*.py",
        "mappa_envs/outcomes/submissions.py",
        "mappa_envs/probes/*.py",
        "scenarios/dsbench/**/*.toml",
    )
    found = sorted(path for part in parts for path in ROOT.glob(part))
    return hashlib.sha256(b"".join(path.read_bytes() for path in found)).hexdigest()[:12]


def play_task(task: str, seed: int, teams: Sequence[str], made_by: str) -> list[Verdict]:
    """Play one task with several teams."""
    from mappa_envs import make_pipeline
    from mappa_envs.scenario import scenario_folder
    from mappa_envs.team_files import load_team

    env = make_pipeline(SCENARIO, scenario={"task_seed": seed}, coach={"kind": "rubric"})
    scenario, folder = env.unwrapped.scenario, scenario_folder(SCENARIO)
    names = (CLEAN, *(name for name in teams if name != CLEAN))
    try:
        return [
            _verdict(env, team.name, team.culprit, seed, made_by)
            for team in play_teams(
                env, [load_team(folder, n, scenario) for n in names], seed, {"task": task}
            )
            if team.name in teams
        ]
    finally:
        env.close()


def _verdict(env: Any, team: str, culprit: str, seed: int, made_by: str) -> Verdict:
    task = env.unwrapped.task
    lines = [line for entry in env.ledger for line in entry.rationale.splitlines()]
    return Verdict(
        team=team,
        culprit=culprit,
        task=task.id,
        task_type=task.metadata["task_type"],
        seed=seed,
        scores=tuple((e.role, e.score) for e in env.ledger if e.score is not None),
        reasons=tuple(line for line in lines if line.startswith("0/")),
        outcome=env.unwrapped.outcome.score,
        version=made_by,
    )


def read(path: Path, made_by: str) -> Iterator[Verdict]:
    """Yield the episodes of this version that a file holds."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        row = json.loads(line)
        if row["version"] == made_by:
            row["scores"] = tuple((role, score) for role, score in row["scores"])
            yield Verdict(**{**row, "reasons": tuple(row["reasons"])})


def run(tasks: Sequence[str], teams: Sequence[str], seeds: int, path: Path, jobs: int) -> None:
    """Play what has not been played, and add it to the file line by line."""
    made_by = version()
    done = {(v.team, v.task, v.seed) for v in read(path, made_by)}
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(jobs) as pool, path.open("a", encoding="utf-8") as file:
        begun = {}
        for seed in range(seeds):
            for task in tasks:
                todo = [name for name in teams if (name, task, seed) not in done]
                if todo:
                    begun[pool.submit(play_task, task, seed, todo, made_by)] = (task, seed)
        for count, future in enumerate(as_completed(begun), start=1):
            for verdict in future.result():
                file.write(json.dumps(asdict(verdict)) + "\n")
            file.flush()
            task, seed = begun[future]
            print(f"{count}/{len(begun)} {task}, seed {seed}", flush=True)


def summary(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the confusion matrix and the shares."""
    faults = [v for v in verdicts if v.culprit]
    clean = [v for v in verdicts if v.team == CLEAN]
    groups = {
        "all": faults,
        "designed": [v for v in faults if v.team not in HELD_OUT],
        "held out": [v for v in faults if v.team in HELD_OUT],
    }
    return {
        "episodes": len(faults),
        "matrix": {
            team: {
                "culprit": rows[0].culprit,
                "held_out": team in HELD_OUT,
                "blamed": dict(Counter(v.blamed for v in rows)),
            }
            for team, rows in _by_team(faults)
        },
        "on the culprit": {n: _share(v.blamed == v.culprit for v in g) for n, g in groups.items()},
        "clean episodes": len(clean),
        "false blame": _share(v.blamed != NOBODY for v in clean),
        "lowest clean score": min((s for v in clean for _, s in v.scores), default=None),
        "tasks": len({v.task for v in verdicts}),
        "seeds": len({v.seed for v in verdicts}),
        "goals": GOALS,
    }


def _by_team(verdicts: Sequence[Verdict]) -> Iterator[tuple[str, list[Verdict]]]:
    for team in sorted({v.team for v in verdicts}):
        yield team, [v for v in verdicts if v.team == team]


def _share(hits: Iterable[bool]) -> float | None:
    found = list(hits)
    return sum(found) / len(found) if found else None


def show(found: dict[str, Any], roles: Sequence[str]) -> None:
    """Print the confusion matrix as a table, and the shares below it."""
    from rich.console import Console
    from rich.table import Table

    table = Table("fault", "culprit", *roles, NOBODY, "on the culprit", title="who is blamed")
    for team, row in found["matrix"].items():
        blamed, culprit = row["blamed"], row["culprit"]
        cells = [str(blamed.get(name, 0) or "") for name in (*roles, NOBODY)]
        share = blamed.get(culprit, 0) / sum(blamed.values())
        mark = " (held out)" if row["held_out"] else ""
        table.add_row(team + mark, culprit, *cells, f"{share:.1%}")
    console = Console()
    console.print(table)
    shares = found["on the culprit"].items()
    text = ", ".join(f"{name} {share:.1%}" for name, share in shares if share is not None)
    console.print(f"on the culprit, of {found['episodes']} episodes: {text}")
    if (false := found["false blame"]) is not None:
        lowest = found["lowest clean score"]
        console.print(
            f"false blame: {false:.1%} of {found['clean episodes']} clean episodes "
            f"(lowest score {lowest:.3g})"
        )


def main() -> None:
    """Play what is asked for, and report."""
    from mappa_envs.scenario import load_scenario, scenario_folder
    from mappa_envs.tasks.sources import task_source
    from mappa_envs.team_files import load_team, scenario_teams

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default="", help="ids, with commas; all when left out")
    parser.add_argument("--faults", default="", help="teams, with commas; all when left out")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--report", action="store_true", help="play nothing")
    given = parser.parse_args()

    folder = scenario_folder(SCENARIO)
    scenario = load_scenario(folder)
    splits = task_source(scenario).splits
    tasks = given.tasks.split(",") if given.tasks else [t for s in splits.values() for t in s]
    planted = [n for n in scenario_teams(folder) if load_team(folder, n, scenario).culprit]
    teams = [CLEAN, *(given.faults.split(",") if given.faults else planted)]
    if not given.report:
        run(tasks, teams, given.seeds, given.out, given.jobs)
    played = [v for v in read(given.out, version()) if v.task in tasks and v.team in teams]
    found = summary([v for v in played if v.seed < given.seeds])
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        show(found, list(scenario.roles))


if __name__ == "__main__":
    main()
