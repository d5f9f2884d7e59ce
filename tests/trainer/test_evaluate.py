from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mappa_trainer import evaluate_run as evaluation
from mappa_trainer import policies
from mappa_trainer.compare import _differences
from mappa_trainer.console import comparison_table, measurement_table
from mappa_trainer.evaluate import Measurement, change, measure, outcome, report, unplayed
from mappa_trainer.evaluate_run import Wanted
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory
from mappa_trainer.statistics import Interval, bootstrap, pass_at_k
from mappa_trainer.types import Episode, Generation, Transition


@pytest.mark.parametrize(
    ("samples", "correct", "k", "expected"),
    [
        (4, 1, 2, 0.5),  # 1 - C(3, 2) / C(4, 2) = 1 - 3 / 6
        (4, 1, 1, 0.25),
        (4, 2, 2, 5 / 6),  # 1 - C(2, 2) / C(4, 2)
        (5, 2, 3, 0.9),  # 1 - C(3, 3) / C(5, 3)
        (4, 1, 4, 1.0),
        (4, 0, 3, 0.0),
        (4, 4, 1, 1.0),
        (10, 8, 5, 1.0),  # fewer wrong ones than tries
    ],
)
def test_pass_at_k_by_hand(samples: int, correct: int, k: int, expected: float) -> None:
    assert pass_at_k(samples, correct, k) == pytest.approx(expected)


@pytest.mark.parametrize("k", [0, 5, -1])
def test_pass_at_k_refuses_tries_that_were_not_made(k: int) -> None:
    with pytest.raises(ValueError, match="k must be 1 to 4"):
        pass_at_k(4, 1, k)


def test_bootstrap_of_constant_differences_has_no_width() -> None:
    assert bootstrap([0.5] * 7) == Interval(0.5, 0.5, 0.5)
    assert bootstrap([3.0]) == Interval(3.0, 3.0, 3.0)


def test_a_change_that_rounds_to_nothing_has_no_minus_sign() -> None:
    assert str(Interval(-0.0, -0.004, 0.004)) == "+0.00 [+0.00, +0.00]"
    assert str(Interval(-0.5, -1.0, 0.0)) == "-0.50 [-1.00, +0.00]"


def test_bootstrap_interval_is_that_of_the_mean() -> None:
    values = np.random.default_rng(4).normal(2.0, 3.0, size=400).tolist()
    found = bootstrap(values)
    half_width = 1.96 * float(np.std(values)) / math.sqrt(400)
    assert found.mean == pytest.approx(float(np.mean(values)))
    assert found.low == pytest.approx(found.mean - half_width, abs=0.03)
    assert found.high == pytest.approx(found.mean + half_width, abs=0.03)
    assert bootstrap(values) == found


def test_bootstrap_of_two_values_by_hand() -> None:
    # Resampled means are 0, 1/2 and 1 with chances 1/4, 1/2 and 1/4.
    assert bootstrap([0.0, 1.0]) == Interval(0.5, 0.0, 1.0)
    # One 1 among 20: 0 ones with chance 0.36, and at most 3 with chance 0.98.
    assert bootstrap([1.0] + [0.0] * 19) == Interval(0.05, 0.0, pytest.approx(0.15))


def test_bootstrap_needs_values() -> None:
    with pytest.raises(ValueError, match="no values"):
        bootstrap([])


def test_an_interval_shows_signs() -> None:
    assert str(Interval(0.5, -0.25, 1.256)) == "+0.50 [-0.25, +1.26]"


def action(
    agent: str, score: float | None, tokens: int, exits: Sequence[int | None] = ()
) -> dict[str, Any]:
    return {
        "agent": agent,
        "tokens": tokens,
        "ledger": {"status": "unscored" if score is None else "scored", "score": score},
        "turn": {"tool_results": [{"exit_code": code} for code in exits]},
    }


def record(problem: int, verdict: float | None, *actions: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "task": {"id": f"test-{problem}"},
        "options": {"split": "test", "task": problem},
        "outcome": None if verdict is None else {"score": verdict},
        "actions": list(actions),
    }


def test_report_by_hand() -> None:
    records = [
        record(0, 1.0, action("ann", 2.0, 10, [0]), action("ann", 6.0, 20), action("bob", 0.0, 5)),
        record(0, 0.0, action("ann", None, 30, [1, None]), action("bob", 10.0, 7, [1, 0])),
        record(3, None, action("ann", 9.0, 40)),
    ]
    found = {one.name: (dict(one.per_problem), one.mean) for one in report(records, ["ann", "bob"])}
    assert found == {
        "outcome": ({"test-0": 0.5}, 0.5),
        # Problem 0: (2 + 6) / 2 in one sample; the other's only action is unscored.
        "ann/score": ({"test-0": 4.0, "test-3": 9.0}, 6.5),
        "ann/tokens": ({"test-0": (15 + 30) / 2, "test-3": 40.0}, 31.25),
        "ann/tool_calls": ({"test-0": (0.5 + 0.0) / 2, "test-3": 0.0}, 0.125),
        "bob/score": ({"test-0": 5.0}, 5.0),
        "bob/tokens": ({"test-0": 6.0}, 6.0),
        "bob/tool_calls": ({"test-0": 0.5}, 0.5),
    }


def test_report_of_an_environment_without_scores_or_turns() -> None:
    bare = {"agent": "ann", "tokens": 4, "ledger": None, "turn": None}
    paid = {**bare, "ledger": {"status": "scored", "reward": 0.5}}
    found = {
        one.name: dict(one.per_problem) for one in report([record(0, 1.0, bare, paid)], ["ann"])
    }
    assert found == {
        "outcome": {"test-0": 1.0},
        "ann/score": {},
        "ann/tokens": {"test-0": 4.0},
        "ann/tool_calls": {},
    }


def graded(
    problem: int, kind: str, verdict: float | None, *actions: Mapping[str, Any], **details: Any
) -> dict[str, Any]:
    """An episode of a task of a type; its outcome has details, those given being comparable."""
    made = record(problem, verdict, *actions)
    made["task"]["task_type"] = kind
    if verdict is not None:
        made["outcome"]["details"] = {"value": 812.5, **details, "comparable": list(details)}
    return made


GRADED = [
    graded(0, "sorting", 0.8, action("ann", 6.0, 1), success=True, accuracy=0.9, error=None),
    graded(0, "sorting", 0.0, action("ann", 2.0, 1), success=False, accuracy=None, error=None),
    graded(1, "sorting", 0.4, success=True, accuracy=0.5, error=None),
    graded(2, "guessing", 0.1, action("ann", 9.0, 1), success=True, accuracy=None, error=30.0),
    graded(3, "guessing", 0.3, success=False, accuracy=None, error=50.0),
    graded(4, "guessing", None),
]


def test_what_is_comparable_is_reported_by_type_of_task_by_hand() -> None:
    found = {one.name: one.mean for one in report(GRADED, ["ann"])}
    assert {name: value for name, value in found.items() if value == value} == pytest.approx(
        {
            "outcome": (0.4 + 0.4 + 0.1 + 0.3) / 4,  # problem 0: (0.8 + 0) / 2
            "outcome/success": (0.5 + 1 + 1 + 0) / 4,
            "ann/score": (4.0 + 9.0) / 2,
            "ann/tokens": 1.0,
            "ann/tool_calls": 0.0,
            "guessing/outcome": (0.1 + 0.3) / 2,
            "guessing/outcome/success": 0.5,
            "guessing/outcome/error": 40.0,
            "guessing/ann/score": 9.0,
            "sorting/outcome": 0.4,
            "sorting/outcome/success": (0.5 + 1) / 2,
            "sorting/outcome/accuracy": (0.9 + 0.5) / 2,
            "sorting/ann/score": 4.0,
        }
    )


def test_without_types_what_is_comparable_is_reported_for_all_tasks() -> None:
    records = [{**made, "task": {"id": made["task"]["id"]}} for made in GRADED]
    found = {one.name: one.mean for one in report(records, [])}
    assert found == pytest.approx(
        {"outcome": 0.3, "outcome/success": 0.625, "outcome/accuracy": 0.7, "outcome/error": 40.0}
    )


def test_a_comparison_shows_a_dash_for_what_one_side_could_not_measure() -> None:
    before = [Measurement("a", {"1": 0.25}), Measurement("gone", {"1": 1.0})]
    after = [Measurement("a", {"1": 0.75}), Measurement("new", {"1": 3.0}), Measurement("b", {})]
    columns = comparison_table("title", before, after).columns
    assert list(zip(*(list(column.cells) for column in columns), strict=True)) == [
        ("a", "0.25", "0.75", "+0.50 [+0.50, +0.50]"),
        ("new", "-", "3.00", "-"),
        ("b", "-", "-", "-"),
        ("gone", "1.00", "-", "-"),
    ]


def test_a_long_name_is_shown_in_full_however_narrow_the_screen_is() -> None:
    name = "classification/outcome/fair_accuracy_of_something_long"
    measured = [Measurement(name, {"1": 0.25})]
    for table in (measurement_table("title", measured), comparison_table("t", measured, measured)):
        text = io.StringIO()
        Console(file=text, width=60).print(table)
        first = [line.split("│")[1].strip() for line in text.getvalue().splitlines() if "│" in line]
        assert "".join(first) == name


def test_what_no_episode_says_has_no_mean() -> None:
    found = measure([record(0, None)], "outcome", outcome)
    assert found.per_problem == {}
    assert math.isnan(found.mean)


def test_change_is_paired_by_problem() -> None:
    before = Measurement("x", {"test-0": 1.0, 1: 5.0, 2: 3.0, 9: 100.0})
    after = Measurement("x", {2: 5.0, 0: 3.0, 1: 7.0, 8: -100.0})
    assert change(before, after) == Interval(2.0, 2.0, 2.0)


def test_change_needs_a_problem_measured_both_times() -> None:
    with pytest.raises(ValueError, match="no values"):
        change(Measurement("x", {"test-0": 1.0}), Measurement("x", {1: 1.0}))


def played(problem: int, verdict: float | None) -> Episode:
    result = None if verdict is None else {"score": verdict}
    return Episode(0, 0, {"split": "test", "task": problem}, (), result, {}, {}, {})


def test_pass_rates_are_means_over_problems_judged_every_time(
    finished_run: Path,
    make_recipe: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verdicts = {
        "test-0": (1.0, 0.0),
        1: (0.0, 0.0),
        2: (1.0, None),
        "test-3": (1.0, 1.0),
        4: (0.5, 0.0),
    }
    episodes = [played(problem, v) for problem, both in verdicts.items() for v in both]
    monkeypatch.setattr(evaluation, "collect", lambda *_: episodes)
    monkeypatch.setattr(policies, "load_policies", lambda *_: {})
    run = RunDirectory.create(tmp_path / "run", make_recipe())
    (run.path / "checkpoints").symlink_to(finished_run / "checkpoints")
    evaluation.evaluate_run(run.path, Wanted(samples=2, problems=5))
    shown = capsys.readouterr().out
    assert "(solved: an outcome of 1)" in shown
    # Problem 2 is left out. pass@1: (1/2 + 0 + 1 + 0) / 4; pass@2: (1 + 0 + 1 + 0) / 4.
    assert re.search(r"pass@1 +0\.375\b", shown)
    assert re.search(r"pass@2 +0\.500\b", shown)


def test_an_evaluation_says_what_is_unscored_and_what_the_coach_cost(
    finished_run: Path,
    make_recipe: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spent = {"calls": 1, "input_tokens": 90, "output_tokens": 8, "usd": 0.5}
    ledger = {"status": "unscored", "failure": "unreachable", "score": None, "spent": spent}
    own = Transition(
        "coder_0", 0, (), Generation((1,), (2,), (0.0,), "x", "stop"), None, ledger, None
    )
    episodes = [replace(played("test-0", 1.0), transitions=(own,))]
    monkeypatch.setattr(evaluation, "collect", lambda *_: episodes)
    monkeypatch.setattr(policies, "load_policies", lambda *_: {})
    run = RunDirectory.create(tmp_path / "run", make_recipe())
    (run.path / "checkpoints").symlink_to(finished_run / "checkpoints")
    evaluation.evaluate_run(run.path, Wanted(problems=1, coach=True))
    shown = capsys.readouterr().out
    assert "\n1 unscored: 1 unreachable\n" in shown
    assert "\ncoach $0.50, 1 call\n" in shown
    assert run.costs() == [
        {"phase": "test-after-0004-sampled-1x1-coached", "agent": "coder_0", **spent}
    ]


def test_scores_in_hindsight_are_reported_where_the_coach_looked_back() -> None:
    looked_back = action("ann", 2.0, 10)
    looked_back["ledger"]["hindsight_score"] = 8.0
    records = [record(0, 1.0, looked_back, action("bob", 4.0, 5)), record(1, 1.0)]
    found = {one.name: dict(one.per_problem) for one in report(records, ["ann", "bob"])}
    assert found["ann/score"] == {"test-0": 2.0}
    assert found["ann/hindsight_score"] == {"test-0": 8.0}
    assert "bob/hindsight_score" not in found


def test_nothing_is_said_of_scores_where_no_action_was_judged() -> None:
    bare = {"agent": "ann", "tokens": 4, "ledger": None, "turn": None}
    found = [one.name for one in report([record(0, 1.0, bare)], ["ann"])]
    assert found == ["outcome", "ann/tokens", "ann/tool_calls"]


@pytest.mark.parametrize("coach", [False, True])
def test_a_coach_is_asked_only_where_that_is_wanted(
    coach: bool,
    finished_run: Path,
    make_recipe: Callable[..., Recipe],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = RunDirectory.create(tmp_path / "run", make_recipe())
    (run.path / "checkpoints").symlink_to(finished_run / "checkpoints")
    evaluation.evaluate_run(run.path, Wanted(problems=2, coach=coach))
    shown = capsys.readouterr().out
    (name,) = run.episode_names()
    assert name == f"test-after-0004-sampled-2x1{'-coached' if coach else ''}"
    actions = [action for episode in run.episodes(name) for action in episode["actions"]]
    assert len(actions) == 2 * 3
    assert {action["ledger"] is not None for action in actions} == {coach}
    assert ("solver_0/score" in shown) == coach
    assert "solver_0/tokens" in shown
    assert all(episode["outcome"]["score"] in (0.0, 1.0) for episode in run.episodes(name))


def test_actions_that_could_not_be_taken_are_told() -> None:
    taken = {"agent": "ann", "finish_reason": "stop"}
    not_taken = {"agent": "ann", "finish_reason": "prompt_too_long"}
    assert unplayed([record(0, 1.0, taken)]) == ""
    said = unplayed([record(0, 1.0, taken, not_taken), record(1, 0.0, not_taken)])
    assert said.startswith("2 of 3 actions are empty: the prompt and sampling.max_new_tokens")


def test_evaluations_that_are_not_alike_are_told_apart() -> None:
    def played(problem: int, prompt: str) -> dict[str, Any]:
        action = {"agent": "ann", "messages": [{"role": "user", "content": prompt}]}
        return dict(record(problem, 1.0, action))

    one = [played(0, "2 + 2"), played(1, "3 + 3")]
    other = [played(0, "2 + 2"), played(1, "4 + 4")]
    assert list(_differences("r/eval-0004-greedy", one, "r/eval-0008-greedy", one)) == []
    assert list(_differences("r/eval-0004-sampled", one, "r/test-base-t0.5-2x2", one * 2)) == [
        "not alike: actions are sampled and t0.5",
        "not alike: 1 and 2 samples of a problem",
    ]
    (said,) = _differences("r/eval-0004-greedy", one, "s/eval-0004-greedy", other)
    assert said.startswith("not alike: the first prompt of 1 of 2 problems is another")
