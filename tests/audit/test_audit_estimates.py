from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from mappa_envs.audit import estimates
from mappa_envs.audit.estimates import Estimate, estimate
from mappa_envs.audit.weighted import Floats, correlation, mean


def mean_of(*values: float) -> partial[Floats]:
    return partial(mean, values=np.array(values, dtype=np.float64))


def test_an_interval_holds_the_mean_and_the_ends_of_what_is_drawn() -> None:
    found = estimate(mean_of(*range(10)), range(10))
    assert (found.value, found.actions, found.episodes) == (4.5, 10, 10)
    assert found.low is not None
    assert found.high is not None
    # the standard error of ten draws of 0 to 9 is 0.91; 1.96 of them to each side
    assert found.low == pytest.approx(4.5 - 1.96 * 0.91, abs=0.15)
    assert found.high == pytest.approx(4.5 + 1.96 * 0.91, abs=0.15)


def test_the_same_data_give_the_same_interval() -> None:
    assert estimate(mean_of(1, 2, 3, 4, 9), range(5)) == estimate(mean_of(1, 2, 3, 4, 9), range(5))


def test_actions_of_one_episode_are_drawn_together() -> None:
    values = np.repeat([0.0, 2.0, 5.0, 7.0, 8.0, 10.0], 50)
    apart = estimate(mean_of(*values), range(300))
    together = estimate(mean_of(*values), np.repeat(range(6), 50).tolist())
    assert apart.value == together.value
    width = (together.high or 0) - (together.low or 0)
    narrow = (apart.high or 0) - (apart.low or 0)
    assert width == pytest.approx(50**0.5 * narrow, rel=0.2)


def test_few_episodes_have_a_number_and_no_interval() -> None:
    found = estimate(mean_of(1, 2, 3, 4, 5, 6), [0, 0, 1, 1, 2, 3])
    assert found == Estimate(3.5, None, None, 6, 4, "needs 5 episodes, has 4")
    assert str(found) == "3.50 (no interval: needs 5 episodes, has 4)"
    assert not found.above_zero


def test_what_is_not_defined_has_a_reason_and_no_number() -> None:
    equal = np.array([5.0] * 6)
    measure = partial(correlation, x=equal, y=np.arange(6.0))
    found = estimate(measure, range(6), "all scores are equal")
    assert found == Estimate(None, None, None, 6, 6, "all scores are equal")
    assert str(found) == "not measurable: all scores are equal"
    assert estimate(mean_of(), [], "no score") == Estimate(reason="no score")


def test_what_is_undefined_in_many_draws_has_no_interval() -> None:
    one_differs = np.array([5.0] * 9 + [6.0])  # it is missing in a third of the draws
    found = estimate(partial(correlation, x=one_differs, y=np.arange(10.0)), range(10))
    assert found.value is not None
    assert found.low is None
    assert found.reason == "too few episodes differ"


def test_a_number_that_rounds_to_nothing_has_no_sign() -> None:
    assert str(Estimate(-0.001, -0.004, 0.004)) == "0.00 [0.00, 0.00]"


def test_drawing_in_parts_gives_what_drawing_at_once_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = estimate(mean_of(1, 2, 3, 4, 9), range(5))
    monkeypatch.setattr(estimates, "_MOST_CELLS", 5 * 7)
    assert estimate(mean_of(1, 2, 3, 4, 9), range(5)) == whole
