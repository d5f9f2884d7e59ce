from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.baseline import naive_baseline
from mappa_envs.outcomes.grading import Grading

pytest.importorskip("sklearn", reason="needs the datascience extra")

PRICES = Grading("regression", "rmse", "id", ("y",), b"id,y\na,1\nb,5\n")
CLASSES = Grading(
    "classification",
    "accuracy",
    "id",
    ("y",),
    b"id,y\na,x\nb,x\nc,z\nd,w\n",
    labels=("w", "x", "z"),
)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("rmse", np.sqrt((9 + 1) / 2)),  # the mean of 0, 1 and 11 is 4
        ("mse", 5.0),
        ("r2", 1 - 10 / 8),
        ("mae", 2.0),  # the median is 1
        ("medae", 2.0),
        ("smape", 100 * (0 + 4 / 3) / 2),
        (
            "rmsle",
            np.sqrt((np.log(2) - np.log(24) / 3) ** 2 / 2 + (np.log(6) - np.log(24) / 3) ** 2 / 2),
        ),
        ("pearson", 0.0),
        ("spearman", 0.0),
    ],
)
def test_the_constant_for_numbers_is_fitted_on_the_training_table(metric, expected) -> None:
    train = {"y": ["0", "1", "11", "", "unknown"]}
    value = naive_baseline(replace(PRICES, metric=metric), train)
    assert value == pytest.approx(expected)


def test_each_target_has_a_constant_of_its_own() -> None:
    rule = replace(PRICES, metric="mcrmse", targets=("y", "z"), truth_csv=b"id,y,z\na,1,10\n")
    assert naive_baseline(rule, {"y": ["3"], "z": ["10", "12"]}) == pytest.approx((2 + 1) / 2)


def test_the_most_frequent_label_of_the_training_table_is_the_guess() -> None:
    assert naive_baseline(CLASSES, {"y": ["x", "w", "x", "z"]}) == 0.5
    assert naive_baseline(CLASSES, {"y": ["x", "w", "w", "z"]}) == 0.25
    assert naive_baseline(replace(CLASSES, metric="quadratic_weighted_kappa"), {"y": ["x"]}) == 0.0


def test_of_two_labels_the_one_that_the_metric_prefers_is_the_guess() -> None:
    rule = replace(CLASSES, metric="f1", labels=("no", "yes"), truth_csv=b"id,y\na,no\nb,yes\n")
    # "no" is more frequent, but only "yes" earns an F1: 2 * 1 / (2 * 1 + 1)
    assert naive_baseline(rule, {"y": ["no", "no", "yes"]}) == pytest.approx(2 / 3)


def test_the_three_most_frequent_labels_are_the_ranking() -> None:
    rule = replace(CLASSES, metric="map_at_3")
    value = naive_baseline(rule, {"y": ["z", "z", "z", "x", "x", "w"]})
    assert value == pytest.approx((1 / 2 + 1 / 2 + 1 + 1 / 3) / 4)
    assert naive_baseline(rule, {"y": ["w"]}) == 0.25


def test_frequencies_are_the_probabilities() -> None:
    rule = replace(CLASSES, metric="log_loss", labels=("x", "z"), truth_csv=b"id,y\na,z\nb,x\n")
    value = naive_baseline(rule, {"y": ["x", "x", "x", "z"]})
    assert value == pytest.approx(-(np.log(0.25) + np.log(0.75)) / 2)


def test_the_most_frequent_text_is_the_guess() -> None:
    rule = replace(CLASSES, metric="jaccard", labels=(), truth_csv=b"id,y\na,so good\nb,bad\n")
    assert naive_baseline(rule, {"y": ["good", "bad day", "good"]}) == 0.25


def test_a_constant_ranks_nothing() -> None:
    rule = replace(CLASSES, metric="roc_auc", labels=())
    assert naive_baseline(rule, {"y": ["0", "1"]}) == 0.5
    assert naive_baseline(replace(rule, metric="normalized_gini"), {"y": ["0"]}) == 0.0


def test_a_training_column_without_a_value_is_an_error_that_shows_it() -> None:
    with pytest.raises(TaskError, match=r"'y' .* no value that can be read, e\.g\. \['a', ''\]"):
        naive_baseline(PRICES, {"y": ["a", ""]})


def test_a_truth_that_cannot_be_used_is_an_error() -> None:
    with pytest.raises(TaskError, match="the truth is unknown_label; correct truth_csv"):
        naive_baseline(replace(CLASSES, truth_csv=b"id,y\na,green\n"), {"y": ["x"]})
