from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from mappa_envs.sandbox import Limits, LocalSandbox
from mappa_envs.sandbox.pickles import PickleReport, describe_pickle

LIMITS = Limits(timeout_s=20.0)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    sandbox = LocalSandbox()
    yield sandbox
    sandbox.close()


class Payload:
    """Unpickling it runs `program`."""

    def __init__(self, program: str) -> None:
        self.program = program

    def __reduce__(self) -> tuple[object, ...]:
        return exec, (self.program,)


def test_a_plain_object(sandbox: LocalSandbox) -> None:
    sandbox.write_file("x.pkl", pickle.dumps({"a": 1}))
    assert describe_pickle(sandbox, "x.pkl", LIMITS) == PickleReport(
        loads=True, kind="builtins.dict", fitted=None, problem=None
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "EOFError"),
        (b"no pickle", "Error: "),
        (b"cnowhere\nThing\n.", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_what_does_not_load(sandbox: LocalSandbox, content: bytes, problem: str) -> None:
    sandbox.write_file("x.pkl", content)
    report = describe_pickle(sandbox, "x.pkl", LIMITS)
    assert (report.loads, report.kind, report.fitted) == (False, None, None)
    assert report.problem is not None
    assert problem in report.problem


def test_a_missing_file(sandbox: LocalSandbox) -> None:
    report = describe_pickle(sandbox, "missing.pkl", LIMITS)
    assert not report.loads
    assert report.problem is not None
    assert report.problem.startswith("FileNotFoundError")


@pytest.mark.parametrize("fitted", [True, False])
def test_whether_an_estimator_is_fitted(sandbox: LocalSandbox, fitted: bool) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    train = "model.fit([[0.0], [1.0]], [0, 1]); " if fitted else ""
    source = (
        "import joblib; from sklearn.linear_model import LinearRegression; "
        f"model = LinearRegression(); {train}joblib.dump(model, 'model.pkl')"
    )
    assert sandbox.exec(source, LIMITS).exit_code == 0
    report = describe_pickle(sandbox, "model.pkl", LIMITS)
    assert report == PickleReport(
        loads=True,
        kind="sklearn.linear_model._base.LinearRegression",
        fitted=fitted,
        problem=None,
    )


def test_a_payload_runs_in_the_sandbox_and_leaves_nothing(
    sandbox: LocalSandbox, tmp_path: Path
) -> None:
    program = (
        "import os\n"
        "open('mine.txt', 'w').write('x')\n"
        "os.remove('x.pkl')\n"
        f"open({str(tmp_path / 'host')!r}, 'w')\n"
    )
    content = pickle.dumps(Payload(program))
    sandbox.write_file("x.pkl", content)
    before = sandbox.manifest()
    describe_pickle(sandbox, "x.pkl", LIMITS)
    assert list(tmp_path.iterdir()) == []
    assert sandbox.manifest() == before
    assert sandbox.read_file("x.pkl", 10_000) == content


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("import os; os._exit(3)", "exit code 3"),
        ("import os; print('{\"loads\": 1}'); os._exit(0)", "exit code 0"),
        ("import os; print('[' * 100_000); os._exit(0)", "exit code 0"),
        ("while True: print('x' * 1000)", "output"),
    ],
)
def test_an_answer_that_makes_no_sense_is_no_report(
    sandbox: LocalSandbox, program: str, ended: str
) -> None:
    sandbox.write_file("x.pkl", pickle.dumps(Payload(program)))
    assert describe_pickle(sandbox, "x.pkl", LIMITS) == PickleReport(
        loads=False, kind=None, fitted=None, problem=f"loading it gave no report ({ended})"
    )
