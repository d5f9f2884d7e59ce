from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mappa_trainer.errors import MappaTrainerError
from mappa_trainer.runlog import RunDirectory

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def scaling() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("scaling")
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_jobs_are_served_first_come_first_served(scaling: ModuleType) -> None:
    assert scaling.play([[("a", 2.0)]] * 3, {"a": 1}) == 6
    assert scaling.play([[("a", 2.0)]] * 3, {"a": 2}) == 4
    # a: 0-2, 2-4, 4-6; b: 2-5, 5-8, 8-11
    assert scaling.play([[("a", 2.0), ("b", 3.0)]] * 3, {"a": 1, "b": 1}) == 11
    # the second waits for a until 1, and the third until 5
    jobs = [[("a", 1.0), ("b", 10.0)], [("a", 4.0)], [("a", 1.0), ("b", 1.0)]]
    assert scaling.play(jobs, {"a": 1, "b": 1}) == 12
    assert scaling.play([], {"a": 1}) == 0


def test_in_lockstep_rounds_add_up(scaling: ModuleType) -> None:
    """Two episodes on one device with two rows: each agent takes 10 + 2 + 4, for one coach."""
    times = scaling.Times(generation=10, tool=2, coach=2, train=5, sync=1)
    setup = scaling.Setup(2, 1, episodes=2, rows=2, workers=2, calls=1, spread=0)
    result = scaling.simulate(times, setup, lockstep=True)
    assert result.seconds == 2 * (10 + 2 + 4) + 2 * (5 + 1)
    assert result.alone == {"generation": 20, "tool": 4, "coach": 8, "train": 10, "sync": 2}
    assert result.bottleneck == "generation"
    assert result.used("generation") == 20 / 44
    assert result.busy == (20 + 10) / 44


def test_asynchronously_an_episode_does_not_wait_for_the_others(scaling: ModuleType) -> None:
    """One row: 0-10 first, 10-20 second, while the first is judged; then 20-30 and 30-40, +4."""
    times = scaling.Times(generation=10, tool=2, coach=2, train=5, sync=1)
    setup = scaling.Setup(2, 1, episodes=2, rows=1, workers=1, calls=1, spread=0)
    assert scaling.simulate(times, setup, lockstep=False).seconds == 44 + 12
    # in lockstep a round is 20 s, then tools until 2 and 4, the coach until 4 and 6
    assert scaling.simulate(times, setup, lockstep=True).seconds == 2 * 26 + 12


def test_agents_on_devices_of_their_own_train_at_the_same_time(scaling: ModuleType) -> None:
    times = scaling.Times(generation=0, tool=0, coach=0, train=6, sync=1)
    spent = {
        devices: scaling.simulate(times, scaling.Setup(3, devices), lockstep=True).seconds
        for devices in (1, 2, 3, 9)
    }
    assert spent == {1: 21, 2: 14, 3: 7, 9: 6 / 3 + 1}


def test_devices_are_dealt_out(scaling: ModuleType) -> None:
    few, many = scaling.Setup(3, 2), scaling.Setup(3, 8)
    assert [few.devices_of(agent) for agent in range(3)] == [[0], [1], [0]]
    assert [many.devices_of(agent) for agent in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_lengths_vary_around_their_mean(scaling: ModuleType) -> None:
    times = scaling.Times(generation=10, tool=0, coach=0, train=0, sync=0)
    setup = scaling.Setup(1, 1, episodes=1000, rows=1000, spread=0.5)
    result = scaling.simulate(times, setup, lockstep=True)
    assert result.seconds == pytest.approx(15, rel=0.01)  # the longest
    assert result.alone["generation"] == pytest.approx(10, rel=0.01)  # the mean


def test_a_few_calls_of_a_slow_coach_are_the_bottleneck(scaling: ModuleType) -> None:
    times = scaling.Times(generation=10, coach=30)
    result = scaling.simulate(times, scaling.Setup(1, 1, calls=2), lockstep=False)
    assert result.bottleneck == "coach"
    assert result.alone["coach"] == 64 * 30 / 2


def test_times_of_a_run(scaling: ModuleType, finished_run: Path) -> None:
    rows = RunDirectory.open(finished_run).metrics()[1:]
    times, episodes = scaling.measured(finished_run, scaling.Times())

    def mean(phase: str) -> float:
        return float(sum(row[f"seconds/{phase}"] for row in rows)) / len(rows) / 3

    assert times.generation == pytest.approx(mean("collect"))
    assert times.train == pytest.approx(mean("logprobs") + mean("update"))
    assert times.sync == pytest.approx(mean("sync"))
    assert (times.tool, times.coach, episodes) == (0, 0, 3)


def test_a_run_that_is_not_there(scaling: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(MappaTrainerError, match="is no run directory"):
        scaling.measured(tmp_path / "none", scaling.Times())


def test_the_table_of_the_page_is_what_the_command_prints(scaling: ModuleType) -> None:
    page = (BENCHMARKS.parent / "docs" / "scaling.md").read_text(encoding="utf-8")
    printed = scaling.table(scaling.Times(), scaling.Setup(1, 1), [1, 3, 8], [1, 2, 8])
    assert "\n".join(printed) in page


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--agents", "0"], "0 is below 1"),
        (["--coach", "-1"], "-1 is no time"),
        (["--spread", "2"], "2 is no share"),
        (["--run", "none"], "error: none: is no run directory"),
    ],
)
def test_wrong_flags_are_refused(
    scaling: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    words: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["scaling.py", *flags])
    with pytest.raises(SystemExit) as ended:
        scaling.main()
    assert words in capsys.readouterr().err + str(ended.value)
