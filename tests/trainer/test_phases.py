from __future__ import annotations

from pathlib import Path

import pytest

from mappa_trainer import phases
from mappa_trainer.phases import Phases, speeds
from mappa_trainer.runlog import RunDirectory


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock says, one reading after the other."""
    readings: list[float] = []
    monkeypatch.setattr(phases.time, "monotonic", lambda: readings.pop(0))
    return readings


def test_a_phase_that_is_entered_twice_counts_the_sum(clock: list[float]) -> None:
    clock += [10.0, 12.0, 20.0, 21.0, 30.0, 33.0]
    watch = Phases()
    for name in ("collect", "update", "collect"):
        with watch.of(name):
            pass
    assert watch.take() == {"seconds/collect": 5.0, "seconds/update": 1.0}
    assert watch.take() == {}


def test_a_phase_that_an_error_leaves_is_counted(clock: list[float]) -> None:
    clock += [1.0, 4.0]
    watch = Phases()
    with pytest.raises(KeyError), watch.of("collect"):
        raise KeyError
    assert watch.take() == {"seconds/collect": 3.0}


def test_speeds_leave_out_phases_that_took_no_time() -> None:
    seconds = {"seconds/collect": 4.0, "seconds/update": 0.0}
    found = speeds(seconds, {"collect": 100, "update": 50, "sync": 7})
    assert found == {"tokens_per_second/collect": 25.0}


def test_a_run_says_where_its_time_went(finished_run: Path) -> None:
    run = RunDirectory.open(finished_run)
    rows = run.metrics()
    always = {"collect", "logprobs", "update", "sync"}
    timed = [{k.removeprefix("seconds/") for k in row if k.startswith("seconds/")} for row in rows]
    # Evaluated before iterations 1 and 3, saved after the second; a row has what came before it.
    assert timed == [always | {"evaluate"}, always, always | {"evaluate", "save"}, always]
    for iteration, row in enumerate(rows):
        actions = [a for e in run.episodes(f"train-{iteration:04d}") for a in e["actions"]]
        assert row["generated_tokens"] == sum(action["tokens"] for action in actions)
        assert row["trained_tokens"] == row["generated_tokens"]  # nothing was dropped
        speed = row["generated_tokens"] / row["seconds/collect"]
        assert row["tokens_per_second/collect"] == pytest.approx(speed)
