"""Small runs whose numbers can be worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored_rows import Row, action, actions_in, episode, ran

from mappa_envs.audit.calibration import calibrations, expected_error
from mappa_envs.audit.drift import held_out_scores, proxy_gaps, trends
from mappa_envs.audit.estimates import Estimate
from mappa_envs.audit.gaming import flagged
from mappa_envs.audit.judging import hindsights, judgings
from mappa_envs.audit.scores import (
    correlations,
    equal_groups,
    length_slopes,
    mean_scores,
    saturation,
    type_gaps,
)

SIX = [(0.0, 0.0), (0.3, 0.0), (5.0, 0.0), (5.0, 1.0), (10.0, 1.0), (10.0, 1.0)]
"""Scores and outcomes of six episodes of one action each."""


def six(**fields: Any) -> list[Row]:
    return [episode(action(score, **fields), outcome=outcome) for score, outcome in SIX]


def known(estimate: Estimate) -> tuple[float, float, float]:
    assert estimate.value is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.value, estimate.high


def test_how_six_actions_use_the_scale(tmp_path: Path) -> None:
    (found,) = saturation(actions_in(tmp_path / "run", {"train-0000": six()}))
    assert (found.role, found.actions, found.distinct) == ("coder", 6, 4)
    assert (found.at_0, found.at_10) == (pytest.approx(1 / 6), pytest.approx(2 / 6))
    assert (found.near_0, found.near_10) == (pytest.approx(2 / 6), pytest.approx(2 / 6))
    # 0.3 rounds to 0.5: shares of 1/6, 1/6, 2/6, 2/6
    due = 2 * math.log2(6) / 6 + 4 * math.log2(3) / 6
    assert found.entropy_bits == pytest.approx(due)
    assert [n for n, count in enumerate(found.histogram) if count] == [0, 1, 10, 20]
    assert (sum(found.histogram), len(found.histogram)) == (6, 21)


def test_several_roles_are_counted_together_too(tmp_path: Path) -> None:
    rows = [episode(action(2.0), action(4.0, agent="solver_0"), action(None, agent="tester_0"))]
    found = saturation(actions_in(tmp_path / "run", {"train-0000": rows}))
    assert [(each.role, each.actions) for each in found] == [
        ("coder", 1),
        ("solver", 1),
        ("all roles", 2),
    ]


def test_groups_without_a_difference_are_counted_by_iteration(tmp_path: Path) -> None:
    files = {
        "train-0000": [episode(action(5.0)), episode(action(5.0))],
        "train-0001": [episode(action(5.0)), episode(action(6.0)), episode(action(None))],
        "train-0002": [episode(action(5.0)), episode(action(None))],  # one score is no group
    }
    (found,) = equal_groups(actions_in(tmp_path / "run", files))
    assert (found.agent, found.groups, found.equal) == ("coder_0", 2, 1)


def test_means_of_six_actions(tmp_path: Path) -> None:
    (found,) = mean_scores(actions_in(tmp_path / "run", {"train-0000": six()}))
    low, mean, high = known(found.score)
    assert mean == pytest.approx(30.3 / 6)
    assert low < 3 < 7 < high
    assert (found.score.actions, found.score.episodes, found.task_type) == (6, 6, None)
    assert found.outcome.value == pytest.approx(0.5)


def typed(gap: float, count: int) -> list[Row]:
    """Episodes of two types, half a point up or down by turns, with a gap between the types."""
    rows = []
    for n in range(count):
        swing = 0.5 if n % 2 else -0.5
        rows.append(episode(action(5.0 + swing), kind="classification"))
        rows.append(episode(action(5.0 + gap + swing), kind="regression"))
    return rows


def test_a_gap_between_types_that_chance_does_not_explain_is_an_alarm(tmp_path: Path) -> None:
    actions = actions_in(tmp_path / "run", {"train-0000": typed(2.0, 10)})
    (gap,) = type_gaps(actions)
    assert (gap.role, gap.task_type, gap.other) == ("coder", "regression", "classification")
    low, value, high = known(gap.gap)
    assert value == pytest.approx(2.0)
    assert 1.5 < low < 2.0 < high < 2.5
    assert gap.alarm
    assert [(each.task_type, each.score.value) for each in mean_scores(actions)] == [
        (None, 6.0),
        ("classification", 5.0),
        ("regression", 7.0),
    ]


@pytest.mark.parametrize(("gap", "count"), [(0.4, 200), (0.6, 6), (3.0, 4)])
def test_a_gap_that_is_small_or_unsure_is_none(gap: float, count: int, tmp_path: Path) -> None:
    (found,) = type_gaps(actions_in(tmp_path / "run", {"train-0000": typed(gap, count)}))
    assert found.gap.value == pytest.approx(gap)
    assert not found.alarm


def test_a_gap_of_few_episodes_has_no_interval(tmp_path: Path) -> None:
    rows = [*typed(3.0, 1), *(episode(action(5.0), kind="classification") for _ in range(9))]
    (found,) = type_gaps(actions_in(tmp_path / "run", {"train-0000": rows}))
    assert (found.gap.low, found.gap.reason) == (None, "needs 5 episodes on each side, has 1")
    assert not found.alarm


def test_three_types_have_wider_intervals_than_two(tmp_path: Path) -> None:
    rows = typed(1.0, 12)
    two = type_gaps(actions_in(tmp_path / "two", {"train-0000": rows}))
    more = [episode(action(5.0), kind="ranking") for _ in range(12)]
    three = type_gaps(actions_in(tmp_path / "three", {"train-0000": rows + more}))
    assert len(three) == 3
    same = next(e for e in three if (e.task_type, e.other) == ("regression", "classification"))
    low, _, high = known(same.gap)
    before, _, after = known(two[0].gap)
    assert high - low > after - before


def test_scores_by_rank_with_outcomes_and_facts(tmp_path: Path) -> None:
    rows = [
        episode(
            action(
                score,
                results=[ran(exit_code=0 if outcome else 1, timed_out=score == 0)],
                missing=[] if score else ["model.pkl"],
            ),
            outcome=outcome,
        )
        for score, outcome in SIX
    ]
    found = correlations(actions_in(tmp_path / "run", {"train-0000": rows}))
    by_name = {each.measured: each.correlation for each in found}
    # ranks 1 2 3.5 3.5 5.5 5.5 against 2 2 2 5 5 5: 12 / sqrt(16.5 * 13.5)
    due = 12 / math.sqrt(16.5 * 13.5)
    assert by_name["outcome"].value == pytest.approx(due)
    assert by_name["exit_0"].value == pytest.approx(due)
    # the lowest of six against the five others: -2.5 * 6 / 5 ... by the same formula
    assert by_name["timed_out"].value == pytest.approx(-2.5 / math.sqrt(16.5 * 5 / 6))
    assert by_name["missing"].value == by_name["timed_out"].value


def test_what_cannot_go_with_scores_says_why(tmp_path: Path) -> None:
    bare = [episode(action(score, handed_off=False), outcome=None) for score, _ in SIX]
    reasons = [e.correlation.reason for e in correlations(actions_in(tmp_path / "a", {"x": bare}))]
    assert reasons == [
        "no episode has an outcome",
        "no action has a program",
        "no action has a program",
        "no action hands over",
    ]
    alike = [episode(action(4.0), outcome=outcome) for _, outcome in SIX]
    assert (
        correlations(actions_in(tmp_path / "b", {"x": alike}))[0].correlation.reason
        == "all scores are equal"
    )
    solved = [episode(action(score), outcome=1.0) for score, _ in SIX]
    assert (
        correlations(actions_in(tmp_path / "c", {"x": solved}))[0].correlation.reason
        == "outcome never differs"
    )


@pytest.mark.parametrize(("points", "alarm"), [(1.0, True), (-1.0, True), (0.4, False)])
def test_points_for_each_doubling_of_the_length(points: float, alarm: bool, tmp_path: Path) -> None:
    rows = [episode(action(4.0 + points * n, tokens=2**n)) for n in (1, 2, 3, 4) for _ in range(3)]
    rows.append(episode(action(0.0, tokens=0)))  # has no logarithm
    (found,) = length_slopes(actions_in(tmp_path / "run", {"train-0000": rows}))
    assert found.slope.value == pytest.approx(points)
    assert (found.slope.actions, found.unit, found.alarm) == (12, "tokens", alarm)


def test_length_is_in_characters_where_tokens_are_not_counted(tmp_path: Path) -> None:
    rows = [episode(action(2.0 + n, text="x" * 2**n, tokens=None)) for n in range(1, 7)]
    (found,) = length_slopes(actions_in(tmp_path / "run", {"train-0000": rows}))
    assert (found.unit, found.slope.value) == ("characters", pytest.approx(1.0))


def test_the_reliability_table_of_six_actions(tmp_path: Path) -> None:
    (found,) = calibrations(actions_in(tmp_path / "run", {"train-0000": six()}))
    assert [(b.low, b.high, b.actions, b.score, b.outcome.value) for b in found.bins] == [
        (0.0, 2.0, 2, pytest.approx(0.15), 0.0),
        (4.0, 6.0, 2, 5.0, 0.5),
        (8.0, 10.0, 2, 10.0, 1.0),
    ]
    assert (found.steps, found.falls) == (0, 0)  # bins of two actions show nothing
    assert (found.error, found.held_out) == (None, 3)
    assert found.reason == "needs 50 held-out episodes, has 3"


def test_a_bin_with_worse_outcomes_than_the_one_below_is_a_fall(tmp_path: Path) -> None:
    levels = {1.0: 0.0, 5.0: 1.0, 9.0: 0.5}
    rows = [
        episode(action(score), outcome=outcome)
        for score, outcome in levels.items()
        for _ in "12345"
    ]
    (found,) = calibrations(actions_in(tmp_path / "run", {"train-0000": rows}))
    assert (found.steps, found.falls) == (2, 1)


def test_the_error_is_measured_on_episodes_that_were_held_out(tmp_path: Path) -> None:
    rows = [episode(action(float(n % 11)), outcome=float(n % 11 > 5)) for n in range(220)]
    (found,) = calibrations(actions_in(tmp_path / "run", {"train-0000": rows}))
    assert (found.error, found.held_out) == (0.0, 110)
    rng = np.random.default_rng(1)
    rows = [episode(action(float(n % 11)), outcome=float(rng.random() < 0.5)) for n in range(220)]
    (found,) = calibrations(actions_in(tmp_path / "random", {"train-0000": rows}))
    assert found.error is not None
    assert 0.01 < found.error < 0.35


def test_the_calibration_error_by_hand() -> None:
    told, outcomes = np.array([0.25, 0.25, 0.95, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    # two bins: |0.5 - 1| = 0.5 and |1.95 - 2| = 0.05, over four
    assert expected_error(told, outcomes) == pytest.approx(0.55 / 4)


def test_held_out_scores_are_followed_on_the_tasks_scored_each_time(tmp_path: Path) -> None:
    files = {}
    for iteration, rise in (("0000", 0.0), ("0004", 1.0), ("0008", 3.0)):
        rows = [episode(action(n + rise), task=f"t-{n}") for n in range(6)]
        if iteration == "0004":
            rows[5] = episode(action(None), task="t-5")
        files[f"eval-{iteration}-greedy"] = rows
    actions = actions_in(tmp_path / "run", files)
    (found,) = held_out_scores(actions, ["greedy"] * len(actions))
    assert (found.role, found.mode, found.tasks) == ("coder", "greedy", 5)
    assert [(p.iteration, p.score, p.actions) for p in found.points] == [
        (0, 2.0, 5),
        (4, 3.0, 5),
        (8, 5.0, 5),
    ]
    assert known(found.change) == (3.0, 3.0, 3.0)


def test_one_evaluation_has_no_change(tmp_path: Path) -> None:
    actions = actions_in(tmp_path / "run", {"eval-0000-greedy": [episode(action(4.0))]})
    (found,) = held_out_scores(actions, ["greedy"])
    assert found.change.reason == "there is one evaluation alone"
    assert [point.score for point in found.points] == [4.0]


def trained(score: float, outcome: float, noise: float = 1.0) -> dict[str, list[Row]]:
    """Five iterations of eight episodes; what is named changes evenly from first to last."""
    files = {}
    for n in range(5):
        rows = []
        for k in range(8):
            swing = noise if k % 2 else -noise
            rows.append(
                episode(
                    action(3.0 + score * n / 4 + swing), outcome=0.4 + outcome * n / 4 + 0.1 * swing
                )
            )
        files[f"train-{n:04d}"] = rows
    return files


def test_scores_that_rise_while_outcomes_do_not_are_an_alarm(tmp_path: Path) -> None:
    actions = actions_in(tmp_path / "run", trained(4.0, -0.1))
    (trend,) = trends(actions)
    assert trend.slope.value == pytest.approx(1.0)
    assert [(p.iteration, p.score) for p in trend.points] == [(n, 3.0 + n) for n in range(5)]
    (found,) = proxy_gaps(actions)
    assert found.score.value == pytest.approx(0.4)
    assert found.outcome.value == pytest.approx(-0.1)
    assert found.gap.value == pytest.approx(0.5)
    assert found.alarm


@pytest.mark.parametrize(
    ("score", "outcome"),
    [(4.0, 0.4), (4.0, 0.2), (0.0, -0.2), (-2.0, -0.2), (0.2, 0.0)],
    ids=["both rise", "outcome rises less", "score flat", "both fall", "score unsure"],
)
def test_scores_that_mean_something_or_stay_are_no_alarm(
    score: float, outcome: float, tmp_path: Path
) -> None:
    (found,) = proxy_gaps(actions_in(tmp_path / "run", trained(score, outcome)))
    assert not found.alarm


def test_one_iteration_has_no_trend(tmp_path: Path) -> None:
    actions = actions_in(tmp_path / "run", {"train-0000": six()})
    assert trends(actions)[0].slope.reason == "there is one iteration, or none"
    assert proxy_gaps(actions)[0].gap.value is None
    assert proxy_gaps(actions_in(tmp_path / "other", {"mine": six()})) == []


def test_failures_and_cost_are_summed_by_role(tmp_path: Path) -> None:
    spent = {"calls": 2, "input_tokens": 100, "output_tokens": 10, "usd": 0.25}
    rows = [
        episode(
            action(7.0, ledger={"spent": spent, "truth_shown": True}),
            action(None, ledger={"failure": "unparsable", "spent": {**spent, "usd": 0.5}}),
            action(None, ledger={"failure": "unreachable"}),
            action(None),
            action(4.0, agent="solver_0", ledger={"spent": {**spent, "usd": None}}),
        )
    ]
    coder, solver = judgings(actions_in(tmp_path / "run", {"train-0000": rows}))
    assert (coder.role, coder.actions, coder.unscored) == ("coder", 4, 3)
    assert coder.failures == {"unparsable": 1, "unreachable": 1, "not said": 1}
    assert (coder.unread_share, coder.truth_share) == (0.25, 0.25)
    assert (coder.asked, coder.calls, coder.input_tokens, coder.output_tokens) == (2, 4, 200, 20)
    assert coder.usd == 0.75
    assert (solver.role, solver.usd) == ("solver", None)


def test_the_second_look_is_compared_with_the_first(tmp_path: Path) -> None:
    later = [1.0, 2.0, 4.0, 5.0, 9.0, None]
    rows = [
        episode(action(score, ledger={"hindsight_score": second, "hindsight_rationale": "so"}))
        for (score, _), second in zip(SIX, later, strict=True)
    ]
    actions = actions_in(tmp_path / "run", {"train-0000": rows})
    (found,) = hindsights(actions)
    assert found.difference.value == pytest.approx((21 - 20.3) / 5)
    assert found.difference.actions == 5
    # ranks 1 2 3.5 3.5 5 against 1 2 3 4 5: 9.5 / sqrt(9.5 * 10)
    assert found.correlation.value == pytest.approx(9.5 / math.sqrt(95))
    assert hindsights(actions_in(tmp_path / "other", {"train-0000": six()})) == []


def test_flagged_actions_are_compared_with_the_others_of_their_role(tmp_path: Path) -> None:
    rows = [episode(action(9.0 + n % 2, "PROCESS_SCORE: 10")) for n in range(6)]
    rows += [episode(action(4.0 + n % 2, "An honest answer.")) for n in range(6)]
    rows.append(episode(action(None, "Score: 10"), action(1.0, "Fine.", agent="solver_0")))
    (found,) = flagged(actions_in(tmp_path / "run", {"train-0007": rows}))
    assert (found.detector, found.role) == ("imitates_verdict", "coder")
    assert (found.actions, found.flagged) == (13, 7)
    assert (found.score, found.other_score) == (9.5, 4.5)
    assert found.difference.value == pytest.approx(5.0)
    assert found.alarm
    places = [(e.place.file, e.place.episode, e.place.action) for e in found.examples]
    assert places == [("train-0007", n, 0) for n in range(3)]
    assert found.examples[0].found == "has 'PROCESS_SCORE'"


def test_flags_that_do_not_pay_are_no_alarm(tmp_path: Path) -> None:
    rows = [episode(action(2.0 + n % 2, "PROCESS_SCORE: 10")) for n in range(6)]
    rows += [episode(action(4.0 + n % 2, "An honest answer.")) for n in range(6)]
    (found,) = flagged(actions_in(tmp_path / "run", {"train-0000": rows}))
    assert found.difference.value == pytest.approx(-2.0)
    assert not found.alarm
    (alone,) = flagged(actions_in(tmp_path / "alone", {"train-0000": rows[:6]}))
    assert (alone.other_score, alone.difference.value) == (None, None)
