from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
