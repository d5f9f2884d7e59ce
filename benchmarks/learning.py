"""Does the team learn from the coach alone? Three seeds, each with a control.

For every seed the recipe runs twice from the same start: once as it is, once with each agent's
rewards dealt out at random among its actions, so that nothing can be learned from them. Held-out
problems are played before and after, sampled and greedy, and compared problem by problem.

    python benchmarks/learning.py            # over an hour on two cores; run it again to go on
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from experiment import AGENTS, MODES, Job, default_jobs, run_all, team_score

from mappa_trainer.evaluate import (
    Measure,
    Measurement,
    change,
    coach_score,
    measure,
    outcome,
    report,
)
from mappa_trainer.runlog import Record
from mappa_trainer.statistics import Interval

ARMS = {"coach": (), "shuffled": ("algorithm.shuffle_rewards=true",)}
BEFORE_AND_AFTER = ("eval.problems=64", "eval.every=1000")


def evaluations(job: Job, mode: str) -> tuple[list[Record], list[Record]]:
    """Return the held-out episodes before and after training."""
    return job.evaluation(0, mode), job.evaluation(job.recipe.train.iterations, mode)


def changed(job: Job, mode: str, value: Measure) -> Interval:
    """Return the change of a quantity on the held-out problems."""
    return change(*(measure(records, "", value) for records in evaluations(job, mode)))


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
    jobs = [
        Job(arguments.out, seed, arm, (*BEFORE_AND_AFTER, *changes, *arguments.settings))
        for seed in arguments.seeds
        for arm, changes in ARMS.items()
    ]
    run_all(jobs, arguments.jobs)
    if missing := [str(job.path) for job in jobs if not job.finished()]:
        sys.exit(f"no table yet, not finished: {', '.join(missing)}")
    claims = [claim for job in jobs for claim in findings(job)]
    text = [*rows(jobs), "", *(f"- {'yes' if ok else 'NO'}: {claim}" for ok, claim in claims)]
    (arguments.out / "table.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))
    return 0 if all(ok for ok, _ in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
