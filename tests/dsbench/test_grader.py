from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mappa_envs.errors import MappaEnvError, TaskError
from mappa_envs.outcomes import table_grader
from mappa_envs.outcomes.grade import Figures, Grade, grade_of, relative_performance_gap
from mappa_envs.outcomes.grading import Grading, check_grading
from mappa_envs.outcomes.metrics import METRICS
from mappa_envs.outcomes.table_grader import TableGrader

sklearn_metrics = pytest.importorskip("sklearn.metrics", reason="needs the datascience extra")

DEADLINE_S = 60.0
PRICES = Grading("regression", "rmse", "id", ("y",), b"id,y\na,1\nb,2\nc,3\nd,5\n", baseline=2.0)
RISKS = Grading("classification", "roc_auc", "id", ("y",), b"id,y\na,1\nb,0\nc,1\nd,0\n")
COLOURS = Grading(
    "classification",
    "accuracy",
    "id",
    ("y",),
    b"id,y\na,red\nb,red\nc,NA\nd,dark blue\n",
    labels=("red", "NA", "dark blue"),
    baseline=0.5,
)
SLOW = b"\n" * 40_000_000
"""Blank lines: every one is looked at, which takes seconds."""


@pytest.fixture(scope="module")
def grader() -> Iterator[TableGrader]:
    grader = TableGrader(DEADLINE_S)
    yield grader
    grader.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[TableGrader]:
    """A grader with a short deadline."""
    grader = TableGrader(deadline_s=0.5)
    yield grader
    grader.close()


def forks(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_fork(grader: TableGrader) -> int:
    """Return the grading process that is busy with a slow submission."""
    for _ in range(2_000):
        if grader.pid is not None and forks(grader.pid):
            time.sleep(0.3)  # until it has begun to read
            return forks(grader.pid)[0]
        time.sleep(0.005)
    raise AssertionError("no grading process was forked")


def wait_for_no_fork(pid: int) -> None:
    for _ in range(2_000):
        if not forks(pid):
            return
        time.sleep(0.005)
    raise AssertionError("a grading process goes on after its deadline")


def table(header: str, *rows: str) -> bytes:
    return "\n".join((header, *rows, "")).encode()


# What a valid submission gets


def test_a_regression_is_graded_by_hand(grader) -> None:
    grade = grader.grade(PRICES, b"id,y\nd,5\nc,3\nb,2\na,3\n")
    assert (grade.verdict, grade.success, grade.decided) == ("valid", True, True)
    assert grade.figures == Figures("valid", 1.0, value=1.0, rmse=1.0, rmse_percent=25.0)
    assert (grade.metric, grade.direction, grade.score) == ("rmse", "lower", 0.5)
    assert (grade.fair_rmse_percent, grade.fair_accuracy, grade.fair_f1) == (25.0, None, None)


def test_scores_are_graded_by_their_order_and_above_one_half_they_are_the_label(grader) -> None:
    grade = grader.grade(RISKS, b"id,y\na,0.4\nb,0.3\nc,7\nd,0.6\n")
    # three of four pairs are in order; a is missed, d is a false alarm
    assert grade.figures == Figures("valid", 1.0, value=0.75, accuracy=0.5, f1=0.5)
    assert grade.score == 0.5
    assert (grade.fair_accuracy, grade.fair_f1, grade.fair_rmse_percent) == (0.5, 0.5, None)


def test_labels_may_be_any_text_even_na(grader) -> None:
    grade = grader.grade(COLOURS, b"id,y\na,red\nb,dark blue\nc,NA\nd,dark blue\n")
    truth, guess = ["red", "red", "NA", "dark blue"], ["red", "dark blue", "NA", "dark blue"]
    f1 = sklearn_metrics.f1_score(truth, guess, average="weighted")
    assert (grade.figures.value, grade.figures.accuracy) == (0.75, 0.75)
    assert grade.figures.f1 == pytest.approx(f1)
    assert grade.score == 0.5


def test_of_two_labels_the_second_is_the_positive_one(grader) -> None:
    rule = replace(RISKS, truth_csv=b"id,y\na,yes\nb,no\nc,yes\nd,no\n", labels=("no", "yes"))
    submission = b"id,y\na,0.9\nb,0.1\nc,0.8\nd,0.2\n"
    assert grader.grade(rule, submission).figures.value == 1.0
    assert grader.grade(replace(rule, labels=("yes", "no")), submission).figures.value == 0.0
    binary = replace(rule, metric="f1")
    grade = grader.grade(binary, b"id,y\na,yes\nb,no\nc,no\nd,no\n")
    assert grade.figures.value == grade.figures.f1 == pytest.approx(2 / 3)


def test_several_targets_are_all_graded(grader) -> None:
    rule = replace(PRICES, targets=("y", "z"), truth_csv=b"id,z,y\na,0,1\nb,10,2\n")
    grade = grader.grade(rule, b"id,y,z\nb,2,10\na,1,4\n")
    # the error of z is 4 in one of two rows; the ranges are 1 and 10
    assert grade.figures.rmse == grade.figures.value == pytest.approx(8**0.5 / 2)
    assert grade.figures.rmse_percent == pytest.approx(100 * 8**0.5 / 10 / 2)


def test_classes_in_columns_are_graded_by_the_likeliest(grader) -> None:
    rule = Grading(
        "classification",
        "log_loss",
        "id",
        ("p", "q", "r"),
        b"id,p,q,r\na,1,0,0\nb,0,0,1\n",
        baseline=np.log(3),
    )
    grade = grader.grade(rule, b"id,p,q,r\na,2,1,1\nb,0,0,1\n".replace(b"2,1,1", b"0.6,0.3,0.3"))
    assert grade.figures.value == pytest.approx(np.log(2) / 2)
    assert (grade.figures.accuracy, grade.figures.f1) == (1.0, 1.0)
    assert grade.score == pytest.approx(1 - np.log(2) / 2 / np.log(3))


def test_rankings_and_texts_are_graded(grader) -> None:
    ranking = replace(
        COLOURS, metric="map_at_3", labels=("red", "NA", "blue"), truth_csv=b"id,y\na,red\nb,NA\n"
    )
    grade = grader.grade(ranking, b"id,y\na,blue red NA\nb,NA\n")
    assert (grade.figures.value, grade.figures.accuracy) == (0.75, 0.5)
    text = replace(COLOURS, metric="jaccard", labels=(), baseline=0.0)
    grade = grader.grade(text, b'id,y\na,red\nb,red wine\nc,"x\ny"\nd,dark blue\n')
    assert (grade.figures.value, grade.figures.accuracy) == (0.625, 0.5)


@pytest.mark.parametrize("rule", [PRICES, RISKS, COLOURS], ids=["rmse", "auc", "accuracy"])
def test_the_order_of_rows_never_matters(grader, rule) -> None:
    rows = {
        "rmse": ["a,2", "b,1", "c,4", "d,5"],
        "roc_auc": ["a,.3", "b,.1", "c,.4", "d,.35"],
        "accuracy": ["a,red", "b,red", "c,NA", "d,red"],
    }[rule.metric]
    straight = grader.grade(rule, table("id,y", *rows))
    assert straight.success
    assert straight.score not in (0.0, 1.0)
    for seed in range(3):
        shuffled = np.random.default_rng(seed).permutation(rows)
        assert grader.grade(rule, table("id,y", *shuffled)) == straight


@pytest.mark.parametrize("name", METRICS)
def test_the_grading_process_knows_every_metric(grader, name) -> None:
    metric = METRICS[name]
    truth, labels = b"id,y\na,1\nb,0\nc,1\nd,0\n", ()
    if metric.content in ("labels", "ranking"):
        labels = ("0", "1")
    kind = "regression" if metric.content == "numbers" else "classification"
    baseline = 9.0 if metric.direction == "lower" else None
    rule = Grading(kind, name, "id", ("y",), truth, labels, baseline)
    grader.check(rule)
    grade = grader.grade(rule, b"id,y\nd,0\na,1\nc,1\nb,0\n")
    assert (grade.verdict, grade.score) == ("valid", pytest.approx(1.0))
    assert grade.figures.value == pytest.approx(metric.best, abs=1e-9)


# The scale


def test_the_score_runs_from_the_baseline_to_the_best_and_not_beyond() -> None:
    def score(rule: Grading, value: float) -> float:
        return grade_of(rule, Figures("valid", 1.0, value=value)).score

    assert [score(PRICES, value) for value in (0.0, 0.5, 2.0, 1e90)] == [1.0, 0.75, 0.0, 0.0]
    assert [score(RISKS, value) for value in (1.0, 0.75, 0.5, 0.1)] == [1.0, 0.5, 0.0, 0.0]
    assert score(replace(RISKS, baseline=0.75), 0.875) == 0.5
    assert score(RISKS, 1.0 + 1e-12) == 1.0


def test_a_failed_run_has_the_fair_metrics_of_the_authors() -> None:
    failed = grade_of(RISKS, Figures("no_submission"))
    assert (failed.fair_accuracy, failed.fair_f1, failed.fair_rmse_percent) == (0.5, 0.0, None)
    assert (failed.score, failed.success, failed.fair_value) == (0.0, False, 0.5)
    failed = grade_of(PRICES, Figures("not_a_file"))
    assert (failed.fair_accuracy, failed.fair_f1, failed.fair_rmse_percent) == (None, None, 50.0)
    assert (failed.score, failed.fair_value, failed.figures.value) == (0.0, 2.0, None)


def test_only_our_own_failures_leave_it_open_what_the_submission_is_worth() -> None:
    open_ones = ("late", "grader_failed")
    assert not any(grade_of(RISKS, Figures(verdict)).decided for verdict in open_ones)
    assert grade_of(RISKS, Figures("missing_ids")).decided


def test_the_gap_of_the_benchmark_by_hand() -> None:
    assert relative_performance_gap(0.75, baseline=0.5, best=1.0) == 0.5
    assert relative_performance_gap(1.5, baseline=2.0, best=0.0) == 0.25
    assert relative_performance_gap(3.0, baseline=2.0, best=0.0) == 0.0
    assert relative_performance_gap(-1.0, baseline=2.0, best=0.0) == 1.5
    assert relative_performance_gap(None, baseline=2.0, best=0.0) == 0.0
    assert relative_performance_gap(float("nan"), baseline=2.0, best=0.0) == 0.0


# What a bad submission gets


@pytest.mark.parametrize(
    ("submission", "expected"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"id,y\n", "no_rows", id="header"),
        pytest.param(b"id,y\na,1\n", "missing_ids", id="one row"),
        pytest.param(b"id,y\na,1\nb,0\nc,1\nd,1e309\n", "not_finite", id="1e309"),
        pytest.param(b"id,y\na,1\nb,0\nc,1\nd,1e200\n", "out_of_range", id="1e200"),
        pytest.param(b",id,y\n0,a,1\n", "extra_columns", id="index"),
        pytest.param(b"id,y\na," + b"1" * 50_000_000, "not_csv", id="giant cell"),
        pytest.param(b"id,y\n" + b'"' + b"\n" * 20_000_000, "not_csv", id="open quote"),
        pytest.param(
            b"id,y" + b",c" * 3_000_000 + b"\na,1\n", "extra_columns", id="3000000 columns"
        ),
        pytest.param(b"id,y\na,1" + b",1" * 3_000_000 + b"\n", "ragged_rows", id="3000000 fields"),
        pytest.param(b"id,y\n" + b"a,1\n" * 3_000_000, "duplicate_ids", id="3000000 rows"),
        pytest.param(os.urandom(1 << 20), "not_text", id="noise"),
    ],
)
def test_a_hostile_submission_gets_its_verdict_in_time(grader, submission, expected) -> None:
    before = time.monotonic()
    grade = grader.grade(RISKS, submission)
    assert grade.verdict == expected
    assert (grade.score, grade.figures.value) == (0.0, None)
    assert time.monotonic() - before < DEADLINE_S / 2


def test_one_right_row_is_no_success(grader) -> None:
    grade = grader.grade(PRICES, b"id,y\nb,2\n")
    assert (grade.success, grade.score, grade.figures.coverage) == (False, 0.0, 0.25)


def test_a_larger_file_than_allowed_is_not_read() -> None:
    grade = TableGrader(max_bytes=10).grade(RISKS, b"id,y\na,1\nb,0\nc,1\nd,0\n")
    assert grade.verdict == "too_large"


def test_the_verdict_of_a_bad_submission_does_not_depend_on_the_truth(grader) -> None:
    other = b"id,y\na,blue\nb,NA\nc,NA\nd,NA\n"  # blue is not even a label
    for submission in (b"id,y\na,red\n", b"id,y\na,blue\nb,NA\nc,NA\nd,NA\n", b"id,y\na,\n"):
        grades = [
            grader.grade(replace(COLOURS, truth_csv=t), submission)
            for t in (COLOURS.truth_csv, other)
        ]
        assert grades[0] == grades[1]
        assert not grades[0].success


def test_a_truth_that_cannot_be_used_is_the_graders_failure(grader) -> None:
    rule = replace(RISKS, truth_csv=b"id,y\na,1\nb,1\n")
    grade = grader.grade(rule, b"id,y\na,1\nb,0\n")
    assert (grade.verdict, grade.decided) == ("grader_failed", False)


# The process


def test_a_submission_that_takes_too_long_is_late_and_the_next_one_is_graded(hasty) -> None:
    grade = hasty.grade(RISKS, SLOW)
    assert (grade.verdict, grade.decided, grade.score) == ("late", False, 0.0)
    parent = hasty.pid
    assert hasty.grade(RISKS, b"").verdict == "empty"
    assert hasty.pid == parent
    wait_for_no_fork(parent)


def test_a_grading_process_ends_at_its_deadline_also_while_it_waits(hasty) -> None:
    _, connection = hasty._connect()
    with connection:
        connection.settimeout(DEADLINE_S)  # no request is sent
        assert connection.recv(1) == table_grader.ACCEPTED
        assert connection.recv(1) == b""


def test_a_submission_that_takes_too_much_memory_is_too_large() -> None:
    grader = TableGrader(DEADLINE_S, memory_bytes=600 << 20)
    columns = b"id,y" + b",column" * 6_000_000 + b"\na,1\n"
    assert grader.grade(RISKS, columns).verdict == "too_large"
    assert grader.grade(RISKS, b"id,y\na,1\nb,0\nc,1\nd,0\n").success
    grader.close()


def test_a_grading_process_that_is_killed_fails_its_submission_only(grader) -> None:
    grades: list[Grade] = []
    thread = threading.Thread(target=lambda: grades.append(grader.grade(RISKS, SLOW)))
    thread.start()
    fork = wait_for_fork(grader)
    assert grader.grade(RISKS, b"").verdict == "empty"  # at the same time
    assert not grades
    os.kill(fork, signal.SIGKILL)
    thread.join()
    assert [grade.verdict for grade in grades] == ["grader_failed"]
    assert grader.grade(RISKS, b"id,y\na,1\nb,0\nc,1\nd,0\n").success


def test_when_all_processes_are_killed_the_next_call_starts_others(grader) -> None:
    grades: list[Grade] = []
    thread = threading.Thread(target=lambda: grades.append(grader.grade(RISKS, SLOW)))
    thread.start()
    wait_for_fork(grader)
    killed = grader.pid
    os.killpg(killed, signal.SIGKILL)
    thread.join()
    assert [grade.verdict for grade in grades] == ["grader_failed"]
    assert grader.grade(RISKS, b"id,y\na,1\nb,0\nc,1\nd,0\n").success
    assert grader.pid != killed


def test_a_process_that_was_killed_between_two_submissions_is_replaced(grader) -> None:
    good = b"id,y\na,1\nb,0\nc,1\nd,0\n"
    assert grader.grade(RISKS, good).success
    os.kill(grader.pid, signal.SIGKILL)
    assert grader.grade(RISKS, good).success


def test_a_stopped_process_is_late_and_replaced(grader, monkeypatch) -> None:
    assert grader.grade(RISKS, b"").verdict == "empty"
    os.kill(grader.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(table_grader, "_GRACE_S", 0.2)
        patch.setattr(grader, "deadline_s", 0.3)
        assert grader.grade(RISKS, b"").verdict == "late"
    assert grader.grade(RISKS, b"").verdict == "empty"


def test_many_threads_share_one_grader(grader) -> None:
    def grade(seed: int) -> None:
        values = np.random.default_rng(seed).random(4)
        rows = [f"{name},{value}" for name, value in zip("abcd", values, strict=True)]
        expected = sklearn_metrics.roc_auc_score([1, 0, 1, 0], values)
        results.append(grader.grade(RISKS, table("id,y", *rows)).figures.value == expected)

    results: list[bool] = []
    threads = [threading.Thread(target=grade, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 12


def test_no_submission_influences_the_next(grader) -> None:
    good = b"id,y\na,0.4\nb,0.3\nc,0.9\nd,0.6\n"
    first = grader.grade(RISKS, good)
    for bad in (b"\0", b"id,y\n" + b'"' * 1_000_001, b"id,y" + b",c" * 1_000_000, good * 9):
        assert not grader.grade(RISKS, bad).success
        assert grader.grade(RISKS, good) == first


def test_closing_ends_the_processes_and_a_later_call_starts_another(grader) -> None:
    grader.grade(RISKS, b"")
    ended = grader.pid
    grader.close()
    grader.close()
    assert grader.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(ended, 0)
    assert grader.grade(RISKS, b"").verdict == "empty"


def test_closing_what_was_never_started_starts_nothing() -> None:
    grader = TableGrader(DEADLINE_S)
    grader.close()
    assert grader.pid is None


def test_a_process_that_cannot_start_is_an_error_with_the_fix(monkeypatch) -> None:
    monkeypatch.setattr(table_grader, "_PROGRAM", "mappa_envs.outcomes.nothing_of_this_name")
    with pytest.raises(MappaEnvError, match=r"did not start .* pip install 'mappa\[datascience\]'"):
        TableGrader().grade(RISKS, b"")


# Rules that cannot be graded by


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "auc"}, r"no metric is called 'auc'; did you mean 'roc_auc'\?"),
        ({"metric": "rmse", "task_type": "regression"}, "an error has no size of its own"),
        ({"metric": "rmse", "baseline": 1.0}, "task_type is 'classification'"),
        ({"baseline": 1.0}, "baseline is 1.0; it must be finite and worse than the best"),
        ({"baseline": float("nan")}, "baseline is nan"),
        ({"targets": ()}, "give an id and targets, each once"),
        ({"targets": ("y", "id")}, "give an id and targets, each once"),
        ({"labels": ("a", "b", "c")}, "give none or two"),
        ({"metric": "accuracy"}, "give two or more"),
        ({"metric": "f1", "labels": ("a", "b", "c")}, "take f1_macro or f1_micro"),
        ({"metric": "accuracy", "labels": ("a", "a")}, "each must be there once"),
        ({"metric": "map_at_3", "labels": ("a", "b c")}, "words without spaces"),
        ({"metric": "jaccard", "labels": ("a", "b")}, "a metric on text has none"),
    ],
)
def test_a_rule_that_judges_nothing_is_an_error_that_says_why(change, message) -> None:
    with pytest.raises(TaskError, match=message):
        check_grading(replace(RISKS, **change))


@pytest.mark.parametrize(
    ("rule", "truth", "message"),
    [
        (RISKS, b"id,y\na,1\nb,1\n", "one value only"),
        (RISKS, b"id,y\na,1\nb,2\n", "must be 0 and 1, or two labels"),
        (RISKS, b"id,y\na,1\na,0\n", "an id twice"),
        (RISKS, b"id,z\na,1\nb,0\n", "wrong_columns"),
        (COLOURS, b"id,y\na,red\nb,green\n", "unknown_label"),
        (PRICES, b"id,y\na,1\nb,\n", "missing_values"),
        (
            replace(COLOURS, metric="f1", labels=("no", "yes"), baseline=None),
            b"id,y\na,no\nb,no\n",
            "the right answers themselves get 0, not 1",
        ),
    ],
)
def test_a_truth_that_judges_nothing_is_found_beforehand(grader, rule, truth, message) -> None:
    with pytest.raises(TaskError, match=message):
        grader.check(replace(rule, truth_csv=truth))


def test_truths_that_can_be_used_pass(grader) -> None:
    for rule in (PRICES, RISKS, COLOURS):
        grader.check(rule)


def test_the_callers_side_needs_no_scikit_learn() -> None:
    heavy = {"sklearn", "scipy", "pandas"}
    program = (
        "import sys, mappa_envs.outcomes.table_grader, mappa_envs.outcomes.submissions\n"
        f"print(sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0)
