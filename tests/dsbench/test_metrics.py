from __future__ import annotations

import math

import numpy as np
import pytest

from mappa_envs.outcomes import metrics
from mappa_envs.outcomes.metrics import METRICS

sklearn_metrics = pytest.importorskip("sklearn.metrics", reason="needs the datascience extra")
stats = pytest.importorskip("scipy.stats", reason="needs the datascience extra")

RANDOM = np.random.default_rng(0)
TRUE = RANDOM.gamma(2.0, size=(60, 2))
GUESSED = TRUE + RANDOM.normal(scale=0.3, size=(60, 2))
CLASSES = RANDOM.integers(4, size=60)
GUESSED_CLASSES = np.where(RANDOM.random(60) < 0.6, CLASSES, RANDOM.integers(4, size=60))
BINARY = RANDOM.integers(2, size=(60, 2))
SCORES = np.round(BINARY * 0.3 + RANDOM.random((60, 2)), 1)
"""Rounded, so there are ties."""


@pytest.mark.parametrize(
    ("name", "official"),
    [
        ("mse", sklearn_metrics.mean_squared_error),
        ("mae", sklearn_metrics.mean_absolute_error),
        ("medae", sklearn_metrics.median_absolute_error),
        ("r2", sklearn_metrics.r2_score),
        ("rmse", sklearn_metrics.root_mean_squared_error),
        ("mcrmse", sklearn_metrics.root_mean_squared_error),
        ("rmsle", sklearn_metrics.root_mean_squared_log_error),
        ("mcrmsle", sklearn_metrics.root_mean_squared_log_error),
        ("pearson", lambda t, p: stats.pearsonr(t, p).statistic),
        ("spearman", lambda t, p: stats.spearmanr(t, p).statistic),
    ],
)
def test_a_regression_metric_is_the_official_one_and_the_mean_over_columns(name, official) -> None:
    compute = METRICS[name].compute
    guessed = np.abs(GUESSED)
    single = [official(TRUE[:, column], guessed[:, column]) for column in (0, 1)]
    assert compute(TRUE[:, 0], guessed[:, 0]) == pytest.approx(single[0], abs=1e-12)
    assert compute(TRUE, guessed) == pytest.approx(np.mean(single), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "official"),
    [
        ("accuracy", sklearn_metrics.accuracy_score),
        ("f1_macro", lambda t, p: sklearn_metrics.f1_score(t, p, average="macro")),
        ("f1_micro", lambda t, p: sklearn_metrics.f1_score(t, p, average="micro")),
        (
            "quadratic_weighted_kappa",
            lambda t, p: sklearn_metrics.cohen_kappa_score(t, p, weights="quadratic"),
        ),
    ],
)
def test_a_metric_on_labels_is_the_official_one(name, official) -> None:
    value = METRICS[name].compute(CLASSES, GUESSED_CLASSES)
    assert 0.2 < value < 0.9
    assert value == pytest.approx(official(CLASSES, GUESSED_CLASSES), abs=1e-12)


def test_f1_is_that_of_the_positive_label_and_the_mean_over_columns() -> None:
    guessed = (SCORES > 0.5).astype(int)
    single = [sklearn_metrics.f1_score(BINARY[:, c], guessed[:, c]) for c in (0, 1)]
    assert metrics.f1(BINARY, guessed) == pytest.approx(np.mean(single), abs=1e-12)
    assert metrics.f1(np.zeros(3), np.zeros(3)) == 0.0


def test_f1_by_hand() -> None:
    # 2 true positives, 1 false positive, 1 false negative: 2*2 / (2*2 + 1 + 1)
    truth, guess = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 1, 0])
    assert metrics.f1(truth, guess) == pytest.approx(4 / 6)


def test_auc_is_the_mean_over_columns_and_counts_ties_half() -> None:
    single = [sklearn_metrics.roc_auc_score(BINARY[:, c], SCORES[:, c]) for c in (0, 1)]
    assert metrics.roc_auc(BINARY, SCORES) == pytest.approx(np.mean(single), abs=1e-12)
    # of the four pairs (positive, negative) two are right, one is tied, one is wrong
    truth, scores = np.array([1, 1, 0, 0]), np.array([0.9, 0.4, 0.4, 0.5])
    assert metrics.roc_auc(truth, scores) == 0.625


def test_auc_leaves_out_a_column_of_one_class_and_refuses_when_none_is_left() -> None:
    truth = np.array([[0, 1], [0, 0], [0, 1]])
    scores = np.array([[0.1, 0.9], [0.2, 0.1], [0.3, 0.8]])
    assert metrics.roc_auc(truth, scores) == 1.0
    with pytest.raises(ValueError, match="one value only"):
        metrics.roc_auc(truth[:, 0], scores[:, 0])


def test_normalized_gini_is_the_ratio_of_lorenz_areas() -> None:
    def gini(truth: np.ndarray, order: np.ndarray) -> float:
        lorenz = np.cumsum(truth[np.argsort(-order)]) / truth.sum()
        return float(lorenz.sum() - (len(truth) + 1) / 2)

    truth, scores = BINARY[:, 0], RANDOM.random(60)  # no ties: their order would matter
    expected = gini(truth, scores) / gini(truth, truth)
    assert metrics.normalized_gini(truth, scores) == pytest.approx(expected, abs=1e-12)
    assert metrics.normalized_gini(truth, np.full(60, 0.3)) == 0.0


def test_kappa_knows_the_distance_of_labels_that_nobody_used() -> None:
    # nobody used 2: one minus the mean squared distance over that of independent draws
    truth, guess = np.array([0, 0, 1, 3]), np.array([0, 3, 0, 3])
    observed = np.mean((truth - guess) ** 2)
    expected = np.mean((truth[:, None] - guess[None, :]) ** 2)
    kappa = metrics.quadratic_weighted_kappa(truth, guess)
    assert kappa == pytest.approx(1 - observed / expected, abs=1e-12)


def test_kappa_of_a_constant_guess_is_zero_and_of_equal_constants_one() -> None:
    assert metrics.quadratic_weighted_kappa(CLASSES, np.full(60, 2)) == pytest.approx(0.0)
    assert metrics.quadratic_weighted_kappa(np.full(3, 1), np.full(3, 1)) == 1.0


def test_map_at_3_by_hand() -> None:
    truth = np.array([4, 4, 4, 4])
    ranked = np.array([[4, 1, 2], [1, 4, 4], [1, 2, 4], [1, -1, -1]])
    assert metrics.map_at_3(truth, ranked) == pytest.approx((1 + 1 / 2 + 1 / 3 + 0) / 4)


def test_log_loss_of_one_column_is_that_of_the_positive_class() -> None:
    truth, guess = np.array([1, 0]), np.array([0.8, 0.4])
    by_hand = -(math.log(0.8) + math.log(0.6)) / 2
    assert metrics.log_loss(truth, guess) == pytest.approx(by_hand, abs=1e-12)
    assert metrics.log_loss(np.array([1, 1]), guess) == pytest.approx(
        -(math.log(0.8) + math.log(0.4)) / 2
    )


def test_log_loss_of_several_columns_divides_each_row_by_its_sum() -> None:
    truth = np.eye(3)[[0, 2, 1]]
    guess = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.2], [1.0, 1.0, 1.0]])
    by_hand = -(math.log(0.5) + math.log(0.5) + math.log(1 / 3)) / 3
    assert metrics.log_loss(truth, guess) == pytest.approx(by_hand, abs=1e-12)


def test_log_loss_of_a_sure_mistake_is_finite() -> None:
    assert 30 < metrics.log_loss(np.array([1, 0]), np.array([0.0, 0.0])) * 2 < 40


def test_smape_by_hand_with_nothing_over_nothing() -> None:
    truth, guess = np.array([0.0, 100.0, 0.0]), np.array([0.0, 50.0, 3.0])
    assert metrics.smape(truth, guess) == pytest.approx(100 * (0 + 50 / 75 + 2) / 3)


def test_rmsle_by_hand_also_between_minus_one_and_zero() -> None:
    truth, guess = np.array([0.0, math.e - 1]), np.array([-0.5, 0.0])
    assert metrics.rmsle(truth, guess) == pytest.approx(math.sqrt((math.log(2) ** 2 + 1) / 2))


def test_jaccard_over_words_ignores_case_and_repeats() -> None:
    truth = np.array(["so very Good", "never", " "], dtype=object)
    guess = np.array(["very good good day", "always", ""], dtype=object)
    assert metrics.jaccard(truth, guess) == pytest.approx((2 / 4 + 0 + 1) / 3)


@pytest.mark.parametrize("correlate", [metrics.pearson, metrics.spearman])
def test_a_constant_guess_correlates_zero_and_a_constant_truth_is_left_out(correlate) -> None:
    truth = np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    assert correlate(truth, np.ones((3, 2))) == 0.0
    assert correlate(truth, truth) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="one value only"):
        correlate(truth[:, 1], truth[:, 0])


def test_spearman_averages_the_ranks_of_ties() -> None:
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    truth, guess = np.array([1.0, 2.0, 2.0, 9.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert metrics.spearman(truth, guess) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_the_right_answers_get_the_best_value_and_others_do_not(metric) -> None:
    truths = {
        "labels": BINARY[:, 0],
        "scores": BINARY,
        "probabilities": BINARY[:, 0],
        "numbers": TRUE,
        "text": np.array([["a b"], ["c"]], dtype=object),
        "ranking": CLASSES.reshape(-1, 1),
    }
    truth = truths[metric.content]
    assert metric.compute(truth, truth) == pytest.approx(metric.best, abs=1e-9)
    worse = metric.compute(truth, truth[::-1])
    assert worse < metric.best if metric.direction == "higher" else worse > metric.best


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_the_fallback_is_worse_than_the_best_and_only_errors_have_none(metric) -> None:
    if metric.direction == "lower":
        assert metric.fallback is None
    else:
        assert metric.fallback < metric.best


@pytest.mark.parametrize("name", [n for n, m in METRICS.items() if m.content == "numbers"])
def test_the_largest_numbers_that_are_let_in_give_a_finite_value(name) -> None:
    metric = METRICS[name]
    guess = np.array([metric.maximum, max(metric.minimum, -1.0), 0.0])
    assert math.isfinite(metric.compute(np.array([1.0, 2.0, 3.0]), guess))
    assert math.isfinite(metric.compute(np.array([1.0, 2.0, 3.0]), np.full(3, metric.minimum)))
