from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_envs.audit.weighted import (
    Floats,
    correlation,
    entropy_bits,
    gap,
    isotonic,
    kappa,
    mean,
    ranks,
    slope,
)

POINTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30)


def of(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def ones(count: int) -> Floats:
    return np.ones((1, count))


def test_a_mean_counts_weights() -> None:
    weights = np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 1.0], [0.0, 0.0, 0.0]])
    found = mean(weights, of(2, 4, 9))
    assert found[:2].tolist() == [5.0, 5.25]
    assert np.isnan(found[2])


def test_a_gap_is_the_mean_of_the_chosen_less_that_of_the_others() -> None:
    chosen = np.array([True, True, False])
    assert gap(ones(3), of(6, 8, 3), chosen).tolist() == [4.0]
    assert np.isnan(gap(np.array([[1.0, 1.0, 0.0]]), of(6, 8, 3), chosen)[0])


def test_a_slope_is_that_of_least_squares() -> None:
    assert slope(ones(4), of(0, 1, 2, 3), of(1, 3, 5, 7))[0] == pytest.approx(2.0)
    assert slope(ones(3), of(0, 1, 2), of(0, 0, 3))[0] == pytest.approx(1.5)
    assert np.isnan(slope(ones(2), of(4, 4), of(1, 2))[0])


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks(ones(5), of(3, 1, 3, 7, 3)).tolist() == [[3.0, 1.0, 3.0, 5.0, 3.0]]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_ranks_are_those_of_scipy(values: list[int]) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert ranks(ones(len(values)), of(*values))[0].tolist() == stats.rankdata(values).tolist()


def test_a_value_of_weight_two_is_ranked_as_if_it_were_there_twice() -> None:
    weighted = ranks(np.array([[2.0, 1.0, 1.0]]), of(1, 1, 5))
    assert weighted.tolist() == [[2.0, 2.0, 4.0]]  # of 1, 1, 1, 5


def test_a_rank_correlation_by_hand() -> None:
    # ranks 1 2 3 4 against 2 1 4 3: 1 - 6 * (1 + 1 + 1 + 1) / (4 * 15)
    assert correlation(ones(4), of(1, 2, 3, 4), of(20, 10, 40, 30))[0] == pytest.approx(0.6)
    assert correlation(ones(3), of(1, 2, 9), of(3, 2, 1))[0] == pytest.approx(-1.0)
    assert np.isnan(correlation(ones(3), of(1, 2, 3), of(5, 5, 5))[0])


@given(POINTS)
@settings(max_examples=50, deadline=None)
def test_rank_correlations_are_those_of_scipy(points: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    x, y = (of(*column) for column in zip(*points, strict=True))
    found = correlation(ones(len(x)), x, y)[0]
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(stats.spearmanr(x, y).statistic)


@given(POINTS, st.data())
@settings(max_examples=50, deadline=None)
def test_weights_do_what_repeating_does(points: list[tuple[int, int]], data: st.DataObject) -> None:
    times = data.draw(
        st.lists(st.integers(0, 3), min_size=len(points), max_size=len(points)).filter(any)
    )
    x, y = (of(*column) for column in zip(*points, strict=True))
    for measure in (slope, correlation, kappa):
        weighted = measure(np.array([times], dtype=np.float64), x, y)
        repeated = measure(ones(sum(times)), np.repeat(x, times), np.repeat(y, times))
        np.testing.assert_allclose(weighted, repeated, atol=1e-9)


def test_kappa_by_hand() -> None:
    # distances 0 0 1: mean 1/3. By chance, all nine pairs of 0 1 2 and 0 1 1: 9/9
    assert kappa(ones(3), of(0, 1, 2), of(0, 1, 1))[0] == pytest.approx(1 - 1 / 3)
    assert kappa(ones(3), of(0, 5, 9), of(0, 5, 9))[0] == pytest.approx(1.0)
    assert np.isnan(kappa(ones(2), of(5, 5), of(5, 5))[0])


@given(POINTS)
@settings(max_examples=50, deadline=None)
def test_kappa_is_that_of_scikit_learn(points: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    one, other = (of(*column) for column in zip(*points, strict=True))
    if len({*one, *other}) > 1:
        due = metrics.cohen_kappa_score(one, other, weights="quadratic", labels=range(10))
        assert kappa(ones(len(one)), one, other)[0] == pytest.approx(due, abs=1e-9)


def test_entropy_by_hand() -> None:
    assert entropy_bits(of(5, 5, 5)) == 0.0
    assert entropy_bits(of(1, 2, 3, 4)) == 2.0
    assert entropy_bits(of(1, 1, 2, 3)) == 1.5


def test_neighbours_that_fall_are_pooled() -> None:
    places, heights = isotonic(of(1, 2, 3, 4), of(0, 1, 0, 1))
    assert places.tolist() == [1, 2, 3, 4]
    assert heights.tolist() == [0.0, 0.5, 0.5, 1.0]


def test_points_in_one_place_are_pooled_first() -> None:
    places, heights = isotonic(of(5, 5, 1, 5), of(1, 0, 0.25, 0.5))
    assert places.tolist() == [1, 5]
    assert heights.tolist() == [0.25, 0.5]


@given(POINTS)
@settings(max_examples=50, deadline=None)
def test_the_rising_curve_is_that_of_scikit_learn(points: list[tuple[int, int]]) -> None:
    learn = pytest.importorskip("sklearn.isotonic")
    x, y = (of(*column) for column in zip(*points, strict=True))
    places, heights = isotonic(x, y)
    due = learn.IsotonicRegression().fit(x, y).predict(places)
    np.testing.assert_allclose(heights, due, atol=1e-9)
