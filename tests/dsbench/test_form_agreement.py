"""The rubric and the grader see the same faults of form in the same submission."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pandas", reason="needs the extra datascience")
pytest.importorskip("sklearn", reason="needs the extra datascience")

from mappa_envs.coach.protocol import CoachContext
from mappa_envs.coach.table_checks import readable, submission_in_form
from mappa_envs.outcomes.grading import Grading, TaskType
from mappa_envs.outcomes.table_judge import judge
from mappa_envs.probes.tables import probe_tables
from mappa_envs.sandbox import LocalSandbox
from mappa_envs.sandbox.protocol import FileRecord, Limits
from mappa_envs.types import Task, Turn

LIMITS = Limits(timeout_s=60.0, memory_bytes=2_000_000_000, output_bytes=2000)
IDS = ("007", "8", "9")
LABELS = ("1", "2", "flu")


def rule(metric: str, kind: TaskType, *truth: str, labels: tuple[str, ...] = ()) -> Grading:
    rows = "".join(f"{name},{value}\n" for name, value in zip(IDS, truth, strict=True))
    return Grading(kind, metric, "id", ("y",), f"id,y\n{rows}".encode(), labels)


RULES = {
    "rmse": rule("rmse", "regression", "0", "1", "1"),
    "rmsle": rule("rmsle", "regression", "0", "1", "1"),
    "log_loss": rule("log_loss", "classification", "0", "1", "1"),
    "roc_auc": rule("roc_auc", "classification", "no", "yes", "yes", labels=("no", "yes")),
    "accuracy": rule("accuracy", "classification", *LABELS, labels=LABELS),
    "map_at_3": rule("map_at_3", "classification", *LABELS, labels=LABELS),
    "jaccard": rule("jaccard", "classification", "a b", "b", "c"),
}
SOUND = b"id,y\n007,1\n8,2\n9,2\n"


def one(cell: str) -> bytes:
    """A submission in which one cell is odd."""
    return f"id,y\n007,1\n8,{cell}\n9,1\n".encode()


CASES: list[tuple[str, bytes, str]] = [
    ("rmse", SOUND, "valid"),
    ("rmse", b"\xef\xbb\xbf" + SOUND, "valid"),
    ("rmse", SOUND.replace(b"\n", b"\r"), "valid"),
    ("rmse", SOUND.replace(b"\n", b"\r\n"), "valid"),
    ("rmse", SOUND.replace(b"\n", b"\n\n"), "valid"),
    ("rmse", b"y,id\n1,007\n2,9\n3,8\n", "valid"),
    ("rmse", b'"id","y"\n"007"," 1 "\n"8","+2.5"\n"9","-3e2"\n', "valid"),
    ("rmse", b"id,y\n007,152.3 USD\n8,9.1 USD\n9,7 USD\n", "not_numeric"),
    ("rmse", one("1e309"), "not_finite"),
    ("rmse", one("nan"), "not_finite"),
    ("rmse", one("1e200"), "out_of_range"),
    ("rmse", one("abc"), "not_numeric"),
    ("rmse", one("NA"), "not_numeric"),
    ("rmse", one("1_0"), "not_numeric"),
    ("rmse", one("1" * 5000), "not_numeric"),
    ("rmse", one(" "), "missing_values"),
    ("rmse", one("a" * 200_000), "not_csv"),
    ("rmse", SOUND + b'"', "not_csv"),
    ("rmse", SOUND + b"\0", "not_text"),
    ("rmse", SOUND + b"\xe9", "not_text"),
    ("rmse", b"", "empty"),
    ("rmse", b"id,y\n", "no_rows"),
    ("rmse", SOUND.replace(b",", b";"), "wrong_separator"),
    ("rmse", SOUND.replace(b"y", b" y"), "wrong_columns"),
    ("rmse", b",id,y\n0,007,1\n1,8,2\n2,9,3\n", "extra_columns"),
    ("rmse", SOUND + b"1,2,3\n", "ragged_rows"),
    ("rmse", SOUND + b"8,2\n", "duplicate_ids"),
    ("rmse", SOUND + b"10,2\n", "extra_ids"),
    ("rmse", SOUND.replace(b"007", b"7"), "extra_ids"),
    ("rmse", b"id,y\n007,1\n8,2\n", "missing_ids"),
    ("rmse", one("-1"), "valid"),
    ("rmsle", one("-0.99"), "valid"),
    ("rmsle", one("-1"), "out_of_range"),
    ("log_loss", one("0.5"), "valid"),
    ("log_loss", one("1.5"), "out_of_range"),
    ("log_loss", one("-0.5"), "out_of_range"),
    ("roc_auc", one("-1.5"), "valid"),
    ("roc_auc", one("yes"), "not_numeric"),
    ("accuracy", one("flu"), "valid"),
    ("accuracy", one("2.0"), "valid"),
    ("accuracy", one("02"), "unknown_label"),
    ("accuracy", one(" flu"), "unknown_label"),
    ("accuracy", one("0.7"), "probability_for_label"),
    ("map_at_3", one("flu 1 2 cold"), "valid"),
    ("map_at_3", one("flu cold"), "unknown_label"),
    ("jaccard", one("nan"), "valid"),
    ("jaccard", one(" "), "missing_values"),
]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    made = LocalSandbox()
    made.write_file("train.csv", b"id,a,y\n1,5,0\n2,6,1\n")
    made.write_file("test.csv", b"id,a\n007,5\n8,6\n9,7\n")
    made.write_file("sample_submission.csv", b"id,y\n007,0\n8,0\n9,0\n")
    yield made
    made.close()


def analyst(sandbox: LocalSandbox, grading: Grading, submission: bytes) -> Turn:
    """The turn that hands a submission on."""
    sandbox.write_file("submission.csv", submission)
    task = Task("task", "Predict y.", (), grading=grading)
    record = FileRecord("submission.csv", len(submission), "", "analyst_0", 0)
    return Turn(
        step=0,
        agent="analyst_0",
        role="analyst",
        index=0,
        messages=(),
        action="Done.",
        visible="Done.",
        tool_results=(),
        feedback=None,
        handed_off=True,
        files=(record,),
        facts=probe_tables(sandbox, LIMITS, task),
    )


@pytest.mark.parametrize(
    ("metric", "submission", "verdict"),
    CASES,
    ids=[f"{place}-{metric}-{verdict}" for place, (metric, _, verdict) in enumerate(CASES)],
)
def test_the_rubric_finds_a_fault_of_form_just_where_the_grader_does(
    sandbox: LocalSandbox, metric: str, submission: bytes, verdict: str
) -> None:
    assert judge(RULES[metric], submission).verdict == verdict
    turn, context = analyst(sandbox, RULES[metric], submission), CoachContext("Predict y.", ())
    found = (
        readable(turn, context, files="submission.csv").passed,
        submission_in_form(turn, context, needs="").passed,
    )
    if verdict == "valid":
        assert found == (None, True)
    elif verdict in ("not_text", "not_csv"):
        assert found == (False, None)
    else:
        assert found == (None, False)
