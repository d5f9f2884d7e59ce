from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn", reason="needs the extra datascience")

from team import OneTask, code

from mappa_envs.env import PipelineEnv
from mappa_envs.errors import TaskError
from mappa_envs.outcomes import table_grader
from mappa_envs.outcomes.grading import Grading
from mappa_envs.outcomes.submission_scorer import SubmissionScorer
from mappa_envs.outcomes.table_grader import TableGrader
from mappa_envs.outcomes.verdicts import VERDICTS
from mappa_envs.sandbox import LocalSandbox
from mappa_envs.sandbox.protocol import FileRecord, Limits
from mappa_envs.scenario import Scenario
from mappa_envs.types import Outcome, Task

COLOURS = Grading(
    "classification",
    "accuracy",
    "id",
    ("colour",),
    b"id,colour\n1,red\n2,red\n3,blue\n4,red\n5,blue\n",
    labels=("blue", "red"),
    baseline=0.6,
)
TASK = Task("colours", "Which colour?", (), {"task_type": "classification"}, grading=COLOURS)
GOOD = "id,colour\n1,red\n2,red\n3,blue\n4,blue\n5,blue\n"
"""One of five is wrong."""
WRITE_GOOD = f"open('submission.csv', 'w').write({GOOD!r})"
TEAM: dict[str, Any] = {
    "name": "deliver",
    "outcome": "submission",
    "roles": {
        "engineer": {"prompt": "{{ problem }}", "tools": ["python"]},
        "analyst": {
            "prompt": "{{ problem }}",
            "tools": ["python"],
            "artifacts": ["submission.csv"],
        },
    },
}


@pytest.fixture(scope="module")
def scorer() -> Iterator[SubmissionScorer]:
    scorer = SubmissionScorer()
    yield scorer
    scorer.close()


@pytest.fixture
def env(scorer: SubmissionScorer) -> Iterator[PipelineEnv]:
    env = PipelineEnv(
        Scenario.model_validate(TEAM),
        tasks=OneTask(TASK),
        outcome=scorer,
        sandbox=lambda: LocalSandbox(preload=()),
    )
    yield env
    env._stage.clear()


def delivered(env: PipelineEnv, analyst: str, engineer: str = "") -> Outcome:
    """The outcome of an episode in which the agents run these programs."""
    env.reset(seed=0)
    for program in (engineer, analyst):
        env.step(code(program) if program else "Nothing to do.")
    assert env.end_reason == "completed"
    assert env.outcome is not None
    return env.outcome


# --- by hand ----------------------------------------------------------------------------------


def test_a_submission_is_worth_what_its_metric_says(env: PipelineEnv) -> None:
    outcome = delivered(env, WRITE_GOOD)
    assert outcome.score == pytest.approx((0.8 - 0.6) / (1 - 0.6))
    assert (outcome.verdict, outcome.reason) == ("valid", "accuracy is 0.8")
    assert outcome.answer is None
    assert outcome.details == {
        "task_type": "classification",
        "metric": "accuracy",
        "direction": "higher",
        "success": True,
        "decided": True,
        "author": "analyst_0",
        "coverage": 1.0,
        "value": 0.8,
        "accuracy": 0.8,
        "f1": pytest.approx(0.8),  # of red: 2 of 2 found right, 2 of 3 found
        "rmse": None,
        "rmse_percent": None,
        "fair_value": 0.8,
        "fair_accuracy": 0.8,
        "fair_f1": pytest.approx(0.8),
        "fair_rmse_percent": None,
        "performance_gap": None,
        "comparable": [
            *("success", "decided", "coverage", "accuracy", "f1", "rmse_percent"),
            *("fair_accuracy", "fair_f1", "fair_rmse_percent", "performance_gap"),
        ],
    }
    assert env.infos["analyst_0"]["outcome"]["accepted"] == []
    assert env.infos["analyst_0"]["outcome"]["details"] == outcome.details


def test_no_submission_counts_as_the_authors_count_a_failed_run(env: PipelineEnv) -> None:
    outcome = delivered(env, "print('id,colour')")
    assert (outcome.score, outcome.verdict) == (0.0, "no_submission")
    details = outcome.details
    assert (details["success"], details["decided"], details["author"]) == (False, True, None)
    assert (details["coverage"], details["value"], details["accuracy"]) == (0.0, None, None)
    assert (details["fair_accuracy"], details["fair_f1"], details["fair_value"]) == (0.5, 0.0, 0.6)


def test_dsbenchs_own_measure_is_there_where_it_published_a_baseline(
    scorer: SubmissionScorer,
) -> None:
    def gap(submission: str, **published: float | None) -> Any:
        task = replace(TASK, metadata=published)
        workspace = Workspace(len(submission), submission.encode())
        return scorer.score(task, "", workspace).details["performance_gap"]

    assert gap(GOOD, published_baseline=0.3, published_best=1.0) == pytest.approx(5 / 7)
    assert gap("", published_baseline=0.3, published_best=1.0) == 0.0
    assert gap(GOOD, published_baseline=None, published_best=1.0) is None


def test_what_the_analyst_says_does_not_count(env: PipelineEnv) -> None:
    env.reset(seed=0)
    env.step("")
    env.step(f"submission.csv is there:\n{GOOD}")
    assert env.outcome is not None
    assert env.outcome.verdict == "no_submission"


def test_the_file_counts_whoever_wrote_it_and_its_author_is_told(env: PipelineEnv) -> None:
    outcome = delivered(env, "", engineer=WRITE_GOOD)
    assert (outcome.score, outcome.details["author"]) == (pytest.approx(0.5), "engineer_0")
    wrong = WRITE_GOOD.replace("4,blue", "4,green")
    outcome = delivered(env, wrong, engineer=WRITE_GOOD)
    assert (outcome.verdict, outcome.details["author"]) == ("unknown_label", "analyst_0")


def test_half_a_submission_covers_half(env: PipelineEnv) -> None:
    outcome = delivered(env, WRITE_GOOD.replace("3,blue\\n4,blue\\n5,blue\\n", ""))
    assert (outcome.score, outcome.verdict) == (0.0, "missing_ids")
    assert outcome.details["coverage"] == pytest.approx(2 / 5)


# --- what is no file --------------------------------------------------------------------------

NO_FILES = {
    "a pipe": "os.mkfifo('submission.csv')",
    "a link to a file of the machine": "os.symlink('/etc/passwd', 'submission.csv')",
    "a link to a good submission": (
        f"open('good.csv', 'w').write({GOOD!r}); os.symlink('good.csv', 'submission.csv')"
    ),
    "a second name of a good submission": (
        f"open('good.csv', 'w').write({GOOD!r}); os.link('good.csv', 'submission.csv')"
    ),
    "a link to nothing": "os.symlink('nothing', 'submission.csv')",
    "a link to itself": "os.symlink('submission.csv', 'submission.csv')",
    "a socket": "import socket; socket.socket(socket.AF_UNIX).bind('submission.csv')",
    "a good one in another folder": (
        f"os.mkdir('out'); open('out/submission.csv', 'w').write({GOOD!r})"
    ),
    "another name": WRITE_GOOD.replace("submission.csv", "Submission.csv"),
    "a name with a blank": WRITE_GOOD.replace("submission.csv", "submission.csv "),
}


@pytest.mark.parametrize("program", NO_FILES.values(), ids=NO_FILES.keys())
def test_what_is_no_file_of_that_name_is_no_submission(env: PipelineEnv, program: str) -> None:
    outcome = delivered(env, f"import os; {program}")
    assert (outcome.score, outcome.verdict) == (0.0, "no_submission")
    assert env.turns[-1].missing == ("submission.csv",)
    good = delivered(env, WRITE_GOOD)
    assert good.verdict == "valid"  # nothing of it is left


FOLDERS = {
    "empty": "os.mkdir('submission.csv')",
    "with a good submission": (
        f"os.mkdir('submission.csv'); open('submission.csv/submission.csv', 'w').write({GOOD!r})"
    ),
    "with a link": "os.mkdir('submission.csv'); os.symlink('/etc/passwd', 'submission.csv/link')",
}


@pytest.mark.parametrize("program", FOLDERS.values(), ids=FOLDERS.keys())
def test_a_folder_of_that_name_is_not_a_file(env: PipelineEnv, program: str) -> None:
    outcome = delivered(env, f"import os; {program}")
    assert (outcome.score, outcome.verdict) == (0.0, "not_a_file")
    assert outcome.reason == "submission.csv: not_a_file"
    assert env.turns[-1].missing == ("submission.csv",)
    assert "\nsubmission.csv is a folder; a file is due.\n" in str(env.turns[-1].feedback)
    assert delivered(env, WRITE_GOOD).verdict == "valid"


def test_a_folder_that_was_there_before_anything_ran_is_found(env: PipelineEnv) -> None:
    outcome = delivered(env, "", engineer="import os; os.mkdir('submission.csv')")
    assert outcome.verdict == "not_a_file"
    assert env.turns[-1].feedback == "submission.csv is a folder; a file is due."


REMOVED = "[removed, for only plain files with one name may stay: submission.csv]"
TOLD = {
    "pipe": ("os.mkfifo('submission.csv')", [REMOVED]),
    "link": ("os.symlink('notes', 'submission.csv')", [REMOVED]),
    "own hard link": (
        "open('mine', 'w').write('x'); os.link('mine', 'submission.csv')",
        [REMOVED.replace("submission.csv", "mine, submission.csv")],
    ),
    "hard link of another's file": (
        "os.link('notes', 'submission.csv')",
        ["[put back, for it is not yours to change: notes]", REMOVED],
    ),
}


@pytest.mark.parametrize(("program", "lines"), TOLD.values(), ids=TOLD.keys())
def test_what_became_of_it_is_told_once_and_truly(
    scorer: SubmissionScorer, program: str, lines: list[str]
) -> None:
    roles = {name: {**role, "files": {"write": []}} for name, role in TEAM["roles"].items()}
    env = PipelineEnv(
        Scenario.model_validate({**TEAM, "roles": roles}),
        tasks=OneTask(TASK),
        outcome=scorer,
        sandbox=lambda: LocalSandbox("process", preload=()),  # which lets programs do all of it
    )
    outcome = delivered(env, f"import os; {program}", engineer="open('notes', 'w').write('abc')")
    files = {file.path: file.author for file in env.turns[-1].files}
    env._stage.clear()
    assert outcome.verdict == "no_submission"
    assert str(env.turns[-1].feedback).splitlines() == [
        "Output of your program:",
        *lines,
        "Not there: submission.csv.",
        "That was your last action; your work is handed on.",
    ]
    assert files == {"notes": "engineer_0"}


SPARSE = {
    "truncated": "open('submission.csv', 'wb').truncate(10 << 30)",
    "written far out": (
        "file = open('submission.csv', 'wb'); file.seek(10 << 30); file.write(b'1'); file.flush()"
    ),
}


@pytest.mark.parametrize("program", SPARSE.values(), ids=SPARSE.keys())
def test_a_sparse_file_of_10_gb_does_not_come_to_be(env: PipelineEnv, program: str) -> None:
    outcome = delivered(env, program)
    assert (outcome.score, outcome.verdict) == (0.0, "empty")
    assert not env.turns[-1].tool_results[0].ok
    assert env.turns[-1].files[0].size == 0
    assert "File too large" in str(env.turns[-1].feedback)


def test_a_file_that_a_forgotten_process_was_writing_gets_a_verdict(env: PipelineEnv) -> None:
    program = f"""
import os, time
{WRITE_GOOD}
if os.fork() == 0:
    while True:
        with open("submission.csv", "a") as file:
            file.write("spoilt")
        time.sleep(0.001)
time.sleep(0.05)
open("submission.csv", "w").write({GOOD!r})
os._exit(0)
"""
    assert delivered(env, program).verdict in VERDICTS
    assert delivered(env, WRITE_GOOD).verdict == "valid"  # it writes no more


def test_no_bytes_of_a_file_are_followed_or_loaded(env: PipelineEnv, tmp_path: Path) -> None:
    target = tmp_path / "planted"
    pickled = f"""
import pickle, pathlib
class Plant:
    def __reduce__(self):
        return (pathlib.Path.touch, (pathlib.Path({str(target)!r}),))
open("submission.csv", "wb").write(pickle.dumps(Plant()))
"""
    assert delivered(env, pickled).verdict in ("not_text", "wrong_columns")
    formula = f"""open("submission.csv", "w").write('id,colour\\n1,"=cmd|touch {target}!A1"\\n')"""
    assert delivered(env, formula).score == 0.0
    assert not target.exists()


# --- a workspace of another kind --------------------------------------------------------------


class Workspace:
    """A workspace with a submission of a size that reads as it is told to."""

    folders: frozenset[str] = frozenset()

    def __init__(self, size: int, content: bytes | Exception) -> None:
        self.files = (FileRecord("submission.csv", size, "", "analyst_0", 3),)
        self._content = content

    def read_file(self, name: str, max_bytes: int) -> bytes:
        assert name == "submission.csv"
        if isinstance(self._content, Exception):
            raise self._content
        return self._content


@pytest.mark.parametrize(
    ("size", "content", "verdict"),
    [
        (99, FileNotFoundError("it went"), "not_a_file"),
        (99, ValueError("it is a pipe"), "not_a_file"),
        (200 << 20, AssertionError("it must not be read"), "too_large"),
        (0, b"", "empty"),
        (len(GOOD), GOOD.encode(), "valid"),
    ],
)
def test_every_workspace_gets_a_verdict(
    scorer: SubmissionScorer, size: int, content: bytes | Exception, verdict: str
) -> None:
    assert scorer.score(TASK, "", Workspace(size, content)).verdict == verdict


def test_a_submission_that_is_too_large_for_the_grader_is_not_read(env: PipelineEnv) -> None:
    assert Limits().file_bytes < TableGrader().max_bytes
    roomy = {**TEAM, "limits": {"file_bytes": 300 << 20}}
    scorer = SubmissionScorer()
    large = PipelineEnv(
        Scenario.model_validate(roomy),
        tasks=OneTask(TASK),
        outcome=scorer,
        sandbox=lambda: LocalSandbox(preload=()),
    )
    outcome = delivered(large, "open('submission.csv', 'wb').truncate(200 << 20)")
    assert (outcome.score, outcome.verdict) == (0.0, "too_large")
    large.close()


def test_a_task_of_another_kind_cannot_be_judged(scorer: SubmissionScorer) -> None:
    with pytest.raises(TaskError, match=r"^task 'sum' cannot be judged by submission.csv: it has"):
        scorer.score(Task("sum", "1 + 1?", ("2",)), "", Workspace(1, b"1"))


# --- the grading process fails ----------------------------------------------------------------


def test_a_submission_whose_grading_never_ends_is_late_and_says_so(
    env: PipelineEnv, scorer: SubmissionScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert delivered(env, WRITE_GOOD).verdict == "valid"
    monkeypatch.setattr(table_grader, "_GRACE_S", 0.2)
    monkeypatch.setattr(scorer._grader, "deadline_s", 0.2)
    assert scorer._grader.pid is not None
    os.kill(scorer._grader.pid, signal.SIGSTOP)
    outcome = delivered(env, WRITE_GOOD)
    assert (outcome.score, outcome.verdict) == (0.0, "late")
    assert (outcome.details["decided"], outcome.details["success"]) == (False, False)
    monkeypatch.undo()
    assert delivered(env, WRITE_GOOD).verdict == "valid"


def test_a_grading_process_that_answers_nonsense_decides_nothing(
    env: PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_grader, "_exchange", lambda *_: b"!nonsense\n")
    outcome = delivered(env, WRITE_GOOD)
    assert (outcome.score, outcome.verdict) == (0.0, "grader_failed")
    assert outcome.details["decided"] is False
    assert outcome.reason == "submission.csv: grader_failed"
