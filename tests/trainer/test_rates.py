from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mappa_trainer.compare import compare
from mappa_trainer.errors import RunDirectoryError
from mappa_trainer.rates import majority, rate_line, rates


def outcome(score: float, answer: str | None) -> dict[str, Any]:
    return {"score": score, "answer": answer}


def record(problem: str, *outcome_of: Any) -> dict[str, Any]:
    return {"task": {"id": problem}, "options": {"task": 0}, "outcome": outcome(*outcome_of)}


RECORDS = [
    *(record("a", 1.0, "5"), record("a", 1.0, "5.0"), record("a", 0.0, "6"), record("a", 0.0, "7")),
    *(record("b", 0.0, "1"), record("b", 0.0, " 1 "), record("b", 1.0, "2"), record("b", 0, None)),
]


def test_rates_by_hand() -> None:
    found = {rate.name: dict(rate.per_problem) for rate in rates(RECORDS, 4)}
    assert found == {
        "mean@4": {"a": 0.5, "b": 0.25},
        "pass@1": {"a": 0.5, "b": 0.25},
        "pass@4": {"a": 1.0, "b": 1.0},
        "majority@4": {"a": 1.0, "b": 0.0},
    }


def test_a_problem_with_a_sample_that_was_cut_off_is_left_out() -> None:
    cut = [*RECORDS[:3], {**RECORDS[3], "outcome": None}, *RECORDS[4:]]
    assert all(set(rate.per_problem) == {"b"} for rate in rates(cut, 4))


def test_one_sample_has_no_majority_and_no_answers_have_none() -> None:
    assert [rate.name for rate in rates(RECORDS[:1], 1)] == ["mean@1", "pass@1"]
    silent = [record("a", 0.5, None), record("a", 1.0, None)]
    assert [rate.name for rate in rates(silent, 2)] == ["mean@2", "pass@1", "pass@2"]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([(1.0, "1/2"), (1.0, "0.5"), (0.0, "3")], 1.0),  # right answers are one
        ([(0.0, "X"), (0.0, "x "), (1.0, "2")], 0.0),  # and so are equal wrong ones
        ([(0.0, "3"), (1.0, "2")], 0.5),  # a tie
        ([(0.0, "3"), (0.0, "4"), (1.0, "2")], 1 / 3),
        ([(0.0, None), (0.0, None), (1.0, "2")], 1.0),  # no answer, no vote
        ([(0.0, None)], 0.0),
    ],
)
def test_majority_by_hand(answers: list[tuple[float, str | None]], expected: float) -> None:
    assert majority([outcome(*answer) for answer in answers]) == pytest.approx(expected)


def test_a_line_has_the_interval_over_problems() -> None:
    (mean, *_) = rates([record(str(i), 1.0, "1") for i in range(5)], 1)
    assert rate_line(mean) == "mean@1  1.000 [1.000, 1.000]"


@pytest.fixture
def copy(finished_run: Path, tmp_path: Path) -> Path:
    copied = tmp_path / "copy"
    shutil.copytree(finished_run, copied, ignore=shutil.ignore_patterns("checkpoints"))
    return copied


def test_two_evaluations_are_compared_problem_by_problem(
    finished_run: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copy / "episodes" / "eval-0004-sampled.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row["outcome"]["score"] = 0.75
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    compare(finished_run / "episodes" / "eval-0004-sampled.jsonl", file)
    said = " ".join(capsys.readouterr().out.split())
    assert "2 problems" in said
    assert "+0.75 [+0.75, +0.75]" in said


def test_of_a_run_the_last_evaluation_is_taken(
    finished_run: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(finished_run, copy / "episodes" / "eval-0000-sampled.jsonl")
    assert "eval-0004-sampled, then" in " ".join(capsys.readouterr().out.split())


def test_other_problems_are_not_compared(finished_run: Path, copy: Path) -> None:
    file = copy / "episodes" / "eval-0004-sampled.jsonl"
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    with pytest.raises(RunDirectoryError, match="1 are only in the first, 0 only in the second"):
        compare(finished_run, file)


def test_a_run_without_evaluations_says_so(copy: Path) -> None:
    shutil.rmtree(copy / "episodes")
    (copy / "episodes").mkdir()
    with pytest.raises(RunDirectoryError, match="no evaluation is stored"):
        compare(copy, copy)
