"""Which reward teaches a team with the fewest tokens, and what does training one role do to others?

Arms differ from the recipe by a few settings. `process` pays each action the coach's score;
`outcome` pays every action of an agent the task's outcome, and `outcome_last` its last action
alone, which is the same where each agent acts once, as in this recipe; `mix` pays half of each.
`only_solver` and its like train one role by `process` and freeze the others. Held-out problems are
played before, during and after training. What the method promises is said to be borne out,
contradicted or open; whatever comes out, the exit code is 0.

    python benchmarks/ablation.py                # hours on two cores; run it again to go on
    python benchmarks/ablation.py --table-only   # from the runs that are finished
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean

from experiment import AGENTS, MODES, Job, default_jobs, run_all, team_score

from mappa_trainer.evaluate import Measure, change, coach_score, measure, outcome
from mappa_trainer.runlog import RunDirectory
from mappa_trainer.statistics import Interval, bootstrap

COMMON = ("eval.every=4",)
REWARDS: Mapping[str, tuple[str, ...]] = {
    "process": (),
    "outcome": ("coach.process_weight=0.0", "coach.outcome_weight=1.0"),
    "outcome_last": (
        "coach.process_weight=0.0",
        "coach.outcome_weight=1.0",
        "coach.credit=last_action",
    ),
    "mix": ("coach.process_weight=0.5", "coach.outcome_weight=0.5"),
}
ROLES: Mapping[str, tuple[str, ...]] = {
    f"only_{agent.removesuffix('_0')}": tuple(
        f"agents.{other}.tuning=frozen" for other in AGENTS if other != agent
    )
    for agent in AGENTS
}
ARMS = {**REWARDS, **ROLES}
DEFAULT_ARMS = ("process", "outcome", "mix", *ROLES)
REFERENCE = "process"

Curve = Sequence[tuple[float, float]]
"""Points (tokens, value), tokens rising."""


@dataclass(frozen=True)
class Point:
    """One evaluation of a run."""

    tokens: int
    """Sampled by all agents in training so far."""
    per_problem: Mapping[str, float]


def points(job: Job, mode: str, value: Measure) -> list[Point]:
    """Return every evaluation of a run, each with the rollout tokens spent before it."""
    run, iterations = RunDirectory.open(job.path), job.recipe.train.iterations
    spent = [
        sum(action["tokens"] for episode in run.episodes(name) for action in episode["actions"])
        for name in run.training_names()
    ]
    tokens = [0, *accumulate(spent)]
    every = job.recipe.eval.every
    return [
        Point(tokens[i], measure(job.evaluation(i, mode), "", value).per_problem)
        for i in sorted({*range(0, iterations, every), iterations})
    ]


def area(curve: Curve, budget: float) -> float:
    """Return the mean value of a curve between its first point and `budget` tokens.

    The curve is linear between its points, and ends at `budget` or after it.
    """
    total, (start, _) = 0.0, curve[0]
    for (left, low), (right, high) in pairwise(curve):
        end = min(right, budget)
        if end <= left:
            break
        at_end = low + (high - low) * (end - left) / (right - left)
        total += (end - left) * (low + at_end) / 2
    return total / (budget - start)


def reached(curve: Curve, level: float) -> float | None:
    """Return after how many tokens a curve first reaches a level; None when it never does."""
    if curve[0][1] >= level:
        return curve[0][0]
    for (left, low), (right, high) in pairwise(curve):
        if low < level <= high:
            return left + (right - left) * (level - low) / (high - low)
    return None


def areas(found: Sequence[Point], budget: float) -> dict[str, float]:
    """Return the area of each problem's own curve; their mean is the area of the mean curve."""
    problems = set.intersection(*(set(point.per_problem) for point in found))
    return {
        problem: area([(point.tokens, point.per_problem[problem]) for point in found], budget)
        for problem in problems
    }


def over_seeds(per_seed: Sequence[Mapping[str, float]]) -> Interval:
    """Bootstrap the mean over problems, each problem being the mean over its seeds."""
    problems = sorted(set.intersection(*(set(values) for values in per_seed)))
    return bootstrap([fmean(values[problem] for values in per_seed) for problem in problems])


def difference(
    ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]
) -> Interval:
    """Return ours minus theirs, paired by seed and problem."""
    paired = [
        {problem: own[problem] - other[problem] for problem in own.keys() & other.keys()}
        for own, other in zip(ours, theirs, strict=True)
    ]
    return over_seeds(paired)


def level(interval: Interval) -> str:
    """Show an interval that is no change."""
    return f"{interval.mean:z.2f} [{interval.low:z.2f}, {interval.high:z.2f}]"


def learning_table(jobs: Mapping[str, list[Job]], mode: str) -> Iterator[str]:
    """Yield outcome and coach score of each arm at each evaluation."""
    yield "| arm | seeds | rollout tokens | outcome [95 %] | by seed | team's coach score [95 %] |"
    yield "|" + "---|" * 6
    for arm, own in jobs.items():
        outcomes = [points(job, mode, outcome) for job in own]
        scores = [points(job, mode, team_score) for job in own]
        for place in range(len(outcomes[0])):
            here = [found[place] for found in outcomes]
            means = ", ".join(f"{fmean(point.per_problem.values()):.2f}" for point in here)
            cells = (
                arm,
                ", ".join(str(job.seed) for job in own),
                f"{fmean(point.tokens for point in here):,.0f}",
                level(over_seeds([point.per_problem for point in here])),
                means,
                level(over_seeds([found[place].per_problem for found in scores])),
            )
            yield "| " + " | ".join(cells) + " |"


def efficiency_table(jobs: Mapping[str, list[Job]], mode: str) -> Iterator[str]:
    """Yield what each arm has over the same number of tokens, and against the reference arm."""
    found, budget = outcomes_of(jobs, mode)
    yield (
        f"| arm | mean outcome over the first {budget:,} tokens [95 %] | by seed "
        f"| less that of {REFERENCE} | tokens to half right, by seed "
        f"| outcome at the end less that of {REFERENCE} |"
    )
    yield "|" + "---|" * 6
    for arm, runs in found.items():
        own = [areas(run, budget) for run in runs]
        halves = [reached(_mean_curve(run), 0.5) for run in runs]
        cells = (
            arm,
            level(over_seeds(own)),
            ", ".join(f"{fmean(per_problem.values()):.2f}" for per_problem in own),
            _cell(against(found, jobs, arm, lambda run: areas(run, budget))),
            ", ".join("never" if half is None else f"{half:,.0f}" for half in halves),
            _cell(against(found, jobs, arm, lambda run: run[-1].per_problem)),
        )
        yield "| " + " | ".join(cells) + " |"


def outcomes_of(
    jobs: Mapping[str, list[Job]], mode: str
) -> tuple[dict[str, list[list[Point]]], int]:
    """Return each run's outcomes, and the number of tokens that all of the runs reached."""
    found = {arm: [points(job, mode, outcome) for job in own] for arm, own in jobs.items()}
    return found, min(run[-1].tokens for runs in found.values() for run in runs)


def _cell(interval: Interval | None) -> str:
    return "-" if interval is None else str(interval)


def _mean_curve(run: Sequence[Point]) -> Curve:
    return [(point.tokens, fmean(point.per_problem.values())) for point in run]


def against(
    found: Mapping[str, list[list[Point]]],
    jobs: Mapping[str, list[Job]],
    arm: str,
    value: Callable[[list[Point]], Mapping[str, float]],
) -> Interval | None:
    """Return an arm less the reference on the seeds that both have; None where there are none."""
    if arm == REFERENCE or REFERENCE not in found:
        return None
    runs = {
        name: {job.seed: run for job, run in zip(jobs[name], found[name], strict=True)}
        for name in (arm, REFERENCE)
    }
    seeds = sorted(runs[arm].keys() & runs[REFERENCE].keys())
    if not seeds:
        return None
    ours, theirs = ([value(runs[name][seed]) for seed in seeds] for name in (arm, REFERENCE))
    return difference(ours, theirs)


def role_table(jobs: Mapping[str, list[Job]], mode: str) -> Iterator[str]:
    """Yield what training did to each agent, whether it was trained or not."""
    yield "| trained | seed | agent | coach score | change [95 %] | outcome, change [95 %] |"
    yield "|" + "---|" * 6
    for arm, own in jobs.items():
        for job in own:
            before, after = (job.evaluation(i, mode) for i in (0, job.recipe.train.iterations))
            gain = change(measure(before, "", outcome), measure(after, "", outcome))
            for agent in AGENTS:
                first, last = (measure(r, "", coach_score(agent)) for r in (before, after))
                cells = (
                    arm if arm in ROLES else f"all ({arm})",
                    str(job.seed),
                    agent,
                    f"{first.mean:.2f} → {last.mean:.2f}",
                    str(change(first, last)),
                    str(gain),
                )
                yield "| " + " | ".join(cells) + " |"


def verdict(promised: Interval) -> str:
    """Say whether a quantity that is promised to be above 0 is."""
    if promised.low > 0:
        return "borne out"
    return "contradicted" if promised.high < 0 else "open"


def direction(change_of: Interval) -> str:
    """Say whether a quantity changed, and how."""
    if change_of.low > 0:
        return "rises"
    return "falls" if change_of.high < 0 else "no clear change"


def efficiency_claims(jobs: Mapping[str, list[Job]], mode: str) -> Iterator[str]:
    """Yield whether the coach's scores teach with fewer tokens than each other reward."""
    found, budget = outcomes_of(jobs, mode)
    for arm in jobs:
        gap = against(found, jobs, arm, lambda run: areas(run, budget))
        if gap is not None:
            ahead = Interval(-gap.mean, -gap.high, -gap.low)
            yield (
                f"- {verdict(ahead)}: {mode}, {REFERENCE} gets more right than {arm} over the same "
                f"{budget:,} tokens: {ahead}"
            )


def role_claims(jobs: Mapping[str, list[Job]], mode: str) -> Iterator[str]:
    """Yield what training one role did to each agent's coach score and the team's outcome."""
    kinds = {agent: coach_score(agent) for agent in AGENTS} | {"the team's outcome": outcome}
    for arm in sorted(jobs.keys() & ROLES.keys()):
        for name, value in kinds.items():
            runs = [points(job, mode, value) for job in jobs[arm]]
            gain = difference(
                [run[-1].per_problem for run in runs], [run[0].per_problem for run in runs]
            )
            yield f"- {direction(gain)}: {mode}, {arm}, {name}: {gain}"


def page(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield the Markdown of all that is finished, and name what is missing."""
    done = [job for job in jobs if job.finished()]
    by_arm = {
        arm: [job for job in done if job.arm == arm] for arm in dict.fromkeys(j.arm for j in done)
    }
    rewards = {arm: own for arm, own in by_arm.items() if arm in REWARDS}
    roles = {arm: own for arm, own in by_arm.items() if arm in ROLES or arm == REFERENCE}
    for mode in MODES:
        if rewards:
            yield from (f"### Rewards, {mode}", "", *learning_table(rewards, mode), "")
            yield from (*efficiency_table(rewards, mode), "")
            yield from (*efficiency_claims(rewards, mode), "")
        if set(roles) & set(ROLES):
            yield from (f"### One role, {mode}", "", *role_table(roles, mode), "")
            yield from (*role_claims(roles, mode), "")
    missing = [f"{job.arm} (seed {job.seed})" for job in jobs if not job.finished()]
    yield f"Missing: {', '.join(missing)}." if missing else "All runs are finished."


def main() -> int:
    """Run what has not run yet and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--arms", nargs="+", default=DEFAULT_ARMS, choices=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="runs at a time")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    jobs = [
        Job(arguments.out, seed, arm, (*COMMON, *ARMS[arm], *arguments.settings))
        for seed in arguments.seeds
        for arm in arguments.arms
    ]
    if not arguments.table_only:
        run_all(jobs, arguments.jobs)
    text = "\n".join(page(jobs)) + "\n"
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
