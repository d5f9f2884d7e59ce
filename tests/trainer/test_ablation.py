from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mappa_trainer.statistics import Interval

Capture = pytest.CaptureFixture[str]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def ablation() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("ablation")
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_the_area_is_the_mean_over_tokens(ablation: ModuleType) -> None:
    curve = [(0, 0.0), (10, 1.0), (30, 0.5)]
    assert ablation.area(curve, 10) == 0.5
    assert ablation.area(curve, 30) == pytest.approx((5 + 15) / 30)
    assert ablation.area(curve, 20) == pytest.approx((5 + 8.75) / 20)  # the value there is 0.75


def test_when_a_level_is_reached(ablation: ModuleType) -> None:
    curve = [(0, 0.2), (10, 0.4), (20, 0.3), (30, 0.9)]
    assert ablation.reached(curve, 0.2) == 0
    assert ablation.reached(curve, 0.3) == pytest.approx(5)
    assert ablation.reached(curve, 0.6) == pytest.approx(25)
    assert ablation.reached(curve, 1.0) is None


def test_arms_are_paired_by_seed_and_problem(ablation: ModuleType) -> None:
    ours = [{"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 1.0}]
    theirs = [{"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 0.0}]
    found = ablation.difference(ours, theirs)
    assert (found.mean, found.low, found.high) == (0.5, 0.5, 0.5)  # each problem gains a half


def test_a_promise_is_kept_only_by_an_interval_above_zero(ablation: ModuleType) -> None:
    above, across, below = Interval(2, 1, 3), Interval(1, 0, 2), Interval(-2, -3, -1)
    assert [ablation.verdict(found) for found in (above, across, below)] == [
        "borne out",
        "open",
        "contradicted",
    ]
    assert [ablation.direction(found) for found in (above, across, below)] == [
        "rises",
        "no clear change",
        "falls",
    ]


def test_the_coach_is_ahead_by_the_area_that_the_other_arm_lacks(
    ablation: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = {
        "process": [(0, 0.0), (10, 1.0)],  # area 0.5 over 10 tokens
        "outcome": [(0, 0.0), (20, 1.0)],  # 0.25 over the same 10
    }
    monkeypatch.setattr(
        ablation,
        "points",
        lambda job, mode, value: [
            ablation.Point(tokens, {"a": right, "b": right}) for tokens, right in curves[job.arm]
        ],
    )
    jobs = {arm: [ablation.Job(Path("x"), 0, arm, ())] for arm in curves}
    (claim,) = ablation.efficiency_claims(jobs, "sampled")
    assert claim == (
        "- borne out: sampled, process gets more right than outcome over the same 10 tokens: "
        "+0.25 [+0.25, +0.25]"
    )
    of_outcome = list(ablation.efficiency_table(jobs, "sampled"))[-1]
    assert of_outcome == (
        "| outcome | 0.25 [0.25, 0.25] | 0.25 | -0.25 [-0.25, -0.25] | 10 | +0.00 [+0.00, +0.00] |"
    )


def test_what_training_one_role_did_is_told_of_every_agent(
    ablation: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def points(job: object, mode: str, value: object) -> list[object]:
        end = 1.0 if value is ablation.outcome else 0.0
        return [ablation.Point(0, {"a": 0.0}), ablation.Point(10, {"a": end})]

    monkeypatch.setattr(ablation, "points", points)
    jobs = {"only_coder": [ablation.Job(Path("x"), 0, "only_coder", ())], "process": []}
    assert list(ablation.role_claims(jobs, "greedy")) == [
        "- no clear change: greedy, only_coder, solver_0: +0.00 [+0.00, +0.00]",
        "- no clear change: greedy, only_coder, coder_0: +0.00 [+0.00, +0.00]",
        "- no clear change: greedy, only_coder, verifier_0: +0.00 [+0.00, +0.00]",
        "- rises: greedy, only_coder, the team's outcome: +1.00 [+1.00, +1.00]",
    ]


def test_a_run_that_fails_does_not_hold_up_the_others(
    ablation: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    ran = []

    def run(job: Any) -> None:
        ran.append(job.arm)
        if job.arm == "process":
            raise subprocess.CalledProcessError(2, "train")

    monkeypatch.setattr(ablation.Job, "run", run)
    ablation.run_all([ablation.Job(tmp_path, 0, arm, ()) for arm in ("process", "mix")], 1)
    assert ran == ["process", "mix"]
    log = tmp_path / "seed0-process.log"
    assert f"exit code 2, see {log}" in capsys.readouterr().out


def test_every_arm_is_a_recipe(ablation: ModuleType) -> None:
    recipes = {
        arm: ablation.Job(Path("x"), 0, arm, settings).recipe
        for arm, settings in ablation.ARMS.items()
    }
    assert len({recipe.model_dump_json() for recipe in recipes.values()}) == len(recipes)


@pytest.mark.slow
def test_the_page_shows_what_is_finished_and_names_what_is_missing(
    ablation: ModuleType, tiny_model: Path, tmp_path: Path
) -> None:
    settings = (
        f"model.base={tiny_model}",
        "model.sampler_precision=float32",
        "train.iterations=2",
        "train.episodes=2",
        "eval.problems=2",
        "eval.every=1",
    )
    jobs = [ablation.Job(tmp_path, 0, arm, settings) for arm in ("process", "mix")]
    ablation.run_all(jobs[:1], 1)
    text = "\n".join(ablation.page(jobs))
    assert text.endswith("Missing: mix (seed 0).")
    rows = [line for line in text.splitlines() if line.startswith("| process | 0 |")]
    assert len(rows) == 6  # three evaluations in each of two modes
    assert rows[0].split("|")[3].strip() == "0"
    tokens = [point.tokens for point in ablation.points(jobs[0], "sampled", ablation.outcome)]
    assert tokens[0] == 0 < tokens[1] < tokens[2]
