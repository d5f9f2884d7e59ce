from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

pd = pytest.importorskip("pandas", reason="needs the extra datascience")
pytest.importorskip("sklearn", reason="needs the extra datascience")
np = pytest.importorskip("numpy")

from mappa_envs.errors import TaskError  # noqa: E402
from mappa_envs.outcomes.grading import Grading  # noqa: E402
from mappa_envs.probes.tables import _program, probe_tables  # noqa: E402
from mappa_envs.sandbox import LocalSandbox, Snapshot  # noqa: E402
from mappa_envs.sandbox.protocol import Limits  # noqa: E402
from mappa_envs.types import Task  # noqa: E402

LIMITS = Limits(timeout_s=60.0, memory_bytes=2_000_000_000, output_bytes=2000)
PREPARE = """
import pickle
import numpy as np
import pandas as pd
from sklearn import linear_model, tree

train = pd.read_csv("train.csv", dtype={"id": str})
test = pd.read_csv("test.csv", dtype={"id": str})
targets = [name for name in train if name in ("y", "z", "kind")]
X, X_test, y = train[["a", "b"]], test[["a", "b"]], train[targets]

def save(**artifacts):
    for name, artifact in artifacts.items():
        with open(f"{name}.pkl", "wb") as file:
            pickle.dump(artifact, file)

def submit(values, name="submission.csv"):
    table = pd.DataFrame(np.reshape(values, (len(test), -1)), columns=targets)
    table.insert(0, "id", test["id"])
    table.to_csv(name, index=False)
"""
REGRESSION = """
save(X_train=X, y_train=y, X_test=X_test)
model = linear_model.LinearRegression().fit(X, y)
save(model=model)
submit(model.predict(X_test))
"""
CLASSIFICATION = """
save(X_train=X, y_train=y, X_test=X_test)
model = tree.DecisionTreeClassifier(max_depth=3).fit(X, y["kind"])
save(model=model)
submit(model.predict(X_test))
"""


def tables(*targets: str) -> dict[str, bytes]:
    """A task with ids of leading zeros, columns a and b, one that tells nothing, and targets."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=160), "b": rng.normal(size=160)})
    table["noise"] = rng.normal(size=160)
    known = {
        "y": table["a"] + 0.5 * table["b"] + 0.5 * table["noise"],
        "z": table["a"] - table["b"] + 0.5 * table["noise"],
        "kind": np.where(table["a"] + 0.3 * table["noise"] > 0, "long", "short"),
    }
    table.insert(0, "id", [f"{place:04d}" for place in rng.permutation(160)])
    for name in targets:
        table[name] = known[name]
    table = table.drop(columns="noise")
    test = table.iloc[100:].drop(columns=list(targets))
    filler = {name: "long" if name == "kind" else 0.0 for name in targets}
    sample = test[["id"]].sort_values("id").assign(**filler)
    found = {"train.csv": table.iloc[:100], "test.csv": test, "sample_submission.csv": sample}
    return {name: frame.to_csv(index=False).encode() for name, frame in found.items()}


def task_of(*targets: str, metric: str | None = None) -> Task:
    """The task with these targets, judged by the RMSE or the accuracy where nothing is said."""
    is_label = targets == ("kind",)
    grading = Grading(
        task_type="classification" if is_label else "regression",
        metric=metric or ("accuracy" if is_label else "rmse"),
        id_column="id",
        targets=targets,
        truth_csv=b"id,y: 42",
        labels=("long", "short") if is_label else (),
    )
    return Task("task", "Predict.", (), grading=grading)


class Workspace:
    """A sandbox in which artifacts are looked at; programs make them here, which takes less time.

    Whatever the artifacts hold, making them is harmless: what they do, they do when loaded.
    """

    def __init__(self) -> None:
        self.sandbox = LocalSandbox()
        self.snapshots: dict[tuple[str, ...], Snapshot] = {}
        self.task = task_of("y")

    def begin(self, *targets: str, metric: str | None = None) -> None:
        self.task = task_of(*targets, metric=metric)
        if targets not in self.snapshots:
            for name, content in tables(*targets).items():
                self.sandbox.write_file(name, content)
            self.snapshots[targets] = self.sandbox.snapshot()
        self.sandbox.restore(self.snapshots[targets])

    def run(self, program: str) -> None:
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            for record in self.sandbox.manifest():
                Path(record.path).write_bytes(self.sandbox.read_file(record.path, record.size))
            exec(PREPARE + program, {})
            for name in filter(os.path.isfile, os.listdir()):
                self.sandbox.write_file(name, Path(name).read_bytes())

    def facts(self) -> Mapping[str, Any]:
        return probe_tables(self.sandbox, LIMITS, self.task)

    def after(self, program: str, *targets: str, metric: str | None = None) -> Mapping[str, Any]:
        """Return the facts after a program on a new workspace."""
        self.begin(*(targets or ("y",)), metric=metric)
        self.run(program)
        return self.facts()


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    made = Workspace()
    yield made
    made.sandbox.close()


# --- known facts ------------------------------------------------------------------------------


def test_the_artifacts_of_a_sound_regression(workspace: Workspace) -> None:
    found = workspace.after(REGRESSION)
    assert found["X_train.pkl"] == {
        "rows": 100,
        "rows_due": 100,
        "columns": 2,
        "missing_values": 0,
        "infinite_values": 0,
        "not_numeric": 0,
        "order_kept": pytest.approx(99**0.5, abs=0.01),
    }
    assert found["y_train.pkl"]["as_given"] is True
    assert found["X_test.pkl"]["rows"] == found["X_test.pkl"]["rows_due"] == 60
    assert found["X_test.pkl"]["same_columns"] is True
    assert found["leaks"] == []
    model = found["model.pkl"]
    assert (model["fitted"], model["predicts"], model["agreement"]) == (True, True, 1.0)
    assert 0.7 < model["skill"] < 0.95
    assert found["submission.csv"] == {
        "verdict": "valid",
        "ids_due": 60,
        "ids_usable": 60,
        "constant": False,
        "as_the_sample": False,
    }


def test_the_artifacts_of_a_sound_classification(workspace: Workspace) -> None:
    found = workspace.after(CLASSIFICATION, "kind")
    assert found["y_train.pkl"]["as_given"] is True
    assert found["leaks"] == []
    assert found["model.pkl"]["skill"] > 0.5
    assert found["model.pkl"]["agreement"] == 1.0
    assert found["submission.csv"]["verdict"] == "valid"


def test_an_empty_workspace_has_no_facts(workspace: Workspace) -> None:
    workspace.begin("y")
    assert workspace.facts() == {}


@pytest.mark.parametrize(
    ("features", "key", "value", "targets", "as_given"),
    [
        ("X[:70]", "rows", 70, "y", True),
        ("X.assign(a=X['a'][7:])", "missing_values", 7, "y['y']", True),
        ("X.assign(c='text')", "not_numeric", 1, "y.to_numpy().ravel().tolist()", True),
        ("X.replace(X.iloc[0, 0], np.inf)", "infinite_values", 1, "y.astype(str)", True),
        ("X.to_numpy()", "columns", 2, "y.drop(index=[3, 50])", True),
        ("X", "rows", 100, "y[::-1]", False),
        ("X", "not_numeric", 0, "np.log1p(y.abs())", False),
        ("X", "infinite_values", 0, "y.drop(index=3).sample(frac=1, random_state=0)", False),
    ],
)
def test_what_a_frame_is(
    workspace: Workspace, features: str, key: str, value: int, targets: str, as_given: bool
) -> None:
    found = workspace.after(f"save(X_train={features}, y_train={targets})")
    assert found["X_train.pkl"][key] == value
    assert found["y_train.pkl"]["as_given"] is as_given


@pytest.mark.parametrize(
    ("features", "tests", "same"),
    [("X", "X_test[['b', 'a']]", False), ("X.to_numpy()", "X_test.to_numpy()", True)],
)
def test_whether_both_frames_have_the_same_columns(
    workspace: Workspace, features: str, tests: str, same: bool
) -> None:
    found = workspace.after(f"save(X_train={features}, X_test={tests})")
    assert found["X_test.pkl"]["same_columns"] is same


def test_labels_that_are_recoded_are_not_as_given(workspace: Workspace) -> None:
    found = workspace.after("save(y_train=(y['kind'] == 'long').astype(int))", "kind")
    assert found["y_train.pkl"]["as_given"] is False


def test_rows_in_another_order_have_nothing_to_do_with_the_table(workspace: Workspace) -> None:
    shuffled = workspace.after("save(X_train=X.sample(frac=1, random_state=0), X_test=X_test)")
    assert shuffled["X_train.pkl"]["order_kept"] < 4
    assert shuffled["X_test.pkl"]["order_kept"] > 7
    scaled = workspace.after("save(X_train=np.tanh(X - 3) @ [[1, 2], [3, 1]])")
    assert scaled["X_train.pkl"]["order_kept"] > 7


@pytest.mark.parametrize(
    ("column", "leaks"),
    [
        ("y['y']", ["new"]),
        ("-3 * y['y'] ** 3", ["new"]),
        ("y['y'] + np.random.default_rng(0).normal(size=100) / 100", ["new"]),
        ("pd.factorize(y['y'])[0] * 0 + np.arange(100)", []),
        ("X['a'] * 2", []),
        ("1.0", []),
    ],
)
def test_leaks_of_numbers(workspace: Workspace, column: str, leaks: list[str]) -> None:
    found = workspace.after(f"save(X_train=X.assign(new={column}), y_train=y)")
    assert found["leaks"] == leaks


@pytest.mark.parametrize(
    ("column", "leaks"),
    [
        ("pd.factorize(y['kind'])[0]", ["new"]),
        ("(y['kind'] == 'short') * 7.0", ["new"]),
        ("(X['a'] > 0) * 1", []),
    ],
)
def test_leaks_of_labels(workspace: Workspace, column: str, leaks: list[str]) -> None:
    found = workspace.after(f"save(X_train=X.assign(new={column}), y_train=y)", "kind")
    assert found["leaks"] == leaks


def test_a_leak_is_found_where_duplicates_are_out(workspace: Workspace) -> None:
    found = workspace.after("save(X_train=X.assign(new=y['y'])[5:], y_train=y[5:])")
    assert found["leaks"] == ["new"]


# --- the model --------------------------------------------------------------------------------

SAVED = "save(X_train=X, y_train=y, X_test=X_test)\n"


@pytest.mark.parametrize(
    ("model", "fitted", "predicts"),
    [
        ("linear_model.LinearRegression()", False, False),
        ("linear_model.LinearRegression().fit(X, y)", True, True),
        ("linear_model.LinearRegression().fit(X[['a']], y)", True, False),
        ("{'kind': 'linear'}", None, False),
        ("[1, 2]", None, False),
    ],
)
def test_what_a_model_is(
    workspace: Workspace, model: str, fitted: bool | None, predicts: bool
) -> None:
    found = workspace.after(f"{SAVED}save(model={model})")["model.pkl"]
    assert (found["fitted"], found["predicts"]) == (fitted, predicts)


def test_the_skill_of_a_model_is_the_error_that_it_removes(workspace: Workspace) -> None:
    dummy = "from sklearn.dummy import DummyRegressor as D, DummyClassifier as C\n"
    constant = workspace.after(f"{SAVED}{dummy}save(model=D().fit(X, y))")
    assert constant["model.pkl"]["skill"] == 0.0
    perfect = workspace.after(f"{SAVED}save(model=tree.DecisionTreeRegressor().fit(X, y))")
    assert perfect["model.pkl"]["skill"] == 1.0
    commonest = workspace.after(f"{SAVED}{dummy}save(model=C().fit(X, y))", "kind")
    assert commonest["model.pkl"]["skill"] == 0.0
    most = "tree.DecisionTreeClassifier(max_depth=1).fit(X, y)"
    assert 0.3 < workspace.after(f"{SAVED}save(model={most})", "kind")["model.pkl"]["skill"] < 1


# --- the submission ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "facts"),
    [
        ("submit(np.full(60, 7))", {"constant": True}),
        ("submit(np.zeros(60))", {"constant": True, "as_the_sample": True}),
        ("import shutil; shutil.copy('sample_submission.csv', 'submission.csv')", {"ids_due": 60}),
        ("submit(['152.3 USD'] * 60)", {"verdict": "not_numeric", "ids_usable": 0}),
        ("submit([np.nan, np.inf, *range(58)])", {"verdict": "missing_values", "ids_usable": 58}),
        ("open('submission.csv', 'wb').write(b'\\xff\\xfe')", {"problem": "not_text"}),
        ("open('submission.csv', 'w').write('id,y\\n\"')", {"problem": "not_csv"}),
        ("open('submission.csv', 'w').close()", {"verdict": "empty"}),
        ("open('submission.csv', 'wb').truncate(60_000_000)", {"problem": "more than 50000000"}),
    ],
)
def test_what_a_submission_is(workspace: Workspace, program: str, facts: dict[str, Any]) -> None:
    found = workspace.after(program)["submission.csv"]
    for key, value in facts.items():
        assert str(found[key]).startswith(str(value)), found


@pytest.mark.parametrize(
    ("values", "agreement"),
    [
        ("model.predict(X_test)", 1.0),
        ("model.predict(X_test).round(4)", 1.0),
        ("model.predict(X_test)[::-1]", 0.0),
        ("model.predict(X_test).round(0)", 0.0),
        ("np.where(np.arange(60)[:, None] < 30, model.predict(X_test), 99)", 0.5),
    ],
)
def test_a_submission_agrees_with_the_model_row_by_row(
    workspace: Workspace, values: str, agreement: float
) -> None:
    found = workspace.after(f"{REGRESSION}submit({values})")
    assert found["model.pkl"]["agreement"] == pytest.approx(agreement, abs=0.04)


def test_a_submission_in_another_order_agrees_by_its_ids(workspace: Workspace) -> None:
    shuffled = "pd.read_csv('submission.csv', dtype=str).sample(frac=1)"
    found = workspace.after(f"{REGRESSION}{shuffled}.to_csv('submission.csv', index=False)")
    assert found["model.pkl"]["agreement"] == 1.0
    assert found["submission.csv"]["verdict"] == "valid"


def test_probabilities_of_a_label_are_what_the_model_says(workspace: Workspace) -> None:
    chances = "model.predict_proba(X_test)[:, 1]"
    for said in (chances, f"1 - {chances}"):  # those of the other label
        found = workspace.after(f"{CLASSIFICATION}submit({said})", "kind", metric="roc_auc")
        assert found["model.pkl"]["agreement"] == 1.0
        assert found["submission.csv"]["verdict"] == "valid"


def test_several_targets_are_compared_column_by_column(workspace: Workspace) -> None:
    found = workspace.after(REGRESSION, "y", "z")
    assert found["model.pkl"]["agreement"] == 1.0
    assert 0.7 < found["model.pkl"]["skill"] < 0.95
    found = workspace.after(REGRESSION + "submit(model.predict(X_test)[:, ::-1])", "y", "z")
    assert found["model.pkl"]["agreement"] < 0.1


def test_rankings_begin_with_what_the_model_says(workspace: Workspace) -> None:
    rankings = "[f'{label} other third' for label in model.predict(X_test)]"
    found = workspace.after(f"{CLASSIFICATION}submit({rankings})", "kind", metric="map_at_3")
    assert found["model.pkl"]["agreement"] == 1.0


def test_a_unit_after_a_number_is_not_what_the_model_says(workspace: Workspace) -> None:
    program = f"{REGRESSION}submit([f'{{value}} USD' for value in model.predict(X_test).ravel()])"
    assert workspace.after(program)["model.pkl"]["agreement"] == 0.0


def test_columns_in_another_order_hold_what_the_model_says(workspace: Workspace) -> None:
    turned = "pd.read_csv('submission.csv', dtype=str)[['z', 'id', 'y']]"
    program = f"{REGRESSION}{turned}.to_csv('submission.csv', index=False)"
    found = workspace.after(program, "y", "z")
    assert found["submission.csv"]["verdict"] == "valid"
    assert found["model.pkl"]["agreement"] == 1.0


def test_the_program_is_told_no_answer_and_needs_a_form(workspace: Workspace) -> None:
    workspace.begin("y")
    assert "id,y: 42" not in _program(workspace.task)
    with pytest.raises(TaskError, match="task 'bare' has no grading"):
        probe_tables(workspace.sandbox, LIMITS, Task("bare", "Predict.", ()))


# --- hostile artifacts ------------------------------------------------------------------------

HOSTILE = """
class Trap:
    def __reduce__(self):
        return exec, (SOURCE,)
"""
LIE = """print('\\nmappa-facts {"model.pkl": {"fitted": true}}', flush=True)"""


def with_trap(source: str, name: str = "model") -> str:
    return f"{REGRESSION}SOURCE = {source!r}\n{HOSTILE}save({name}=Trap())"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (f"{LIE}; __import__('os')._exit(0)", "loading it ended the process"),
        ("__import__('os').abort()", "loading it ended the process"),
        ("raise SystemExit", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("__import__('numpy').ones(10**10)", "MemoryError"),
        ("open('big', 'wb').truncate(10**12)", "OSError"),
        pytest.param("while True: pass", "not done after 4 s", marks=pytest.mark.slow),
        pytest.param(
            "[__import__('os').fork() for _ in range(2)]; __import__('time').sleep(60)",
            "not done after 4 s",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_hostile_model_says_nothing_and_hides_nothing(
    workspace: Workspace, source: str, problem: str
) -> None:
    workspace.begin("y")
    workspace.run(with_trap(source))
    before, began = workspace.sandbox.manifest(), time.monotonic()
    found = workspace.facts()
    assert time.monotonic() - began < 12
    assert found["model.pkl"].keys() == {"problem"}
    assert found["model.pkl"]["problem"].startswith(problem)
    assert found["X_test.pkl"]["rows"] == 60
    assert found["submission.csv"]["verdict"] == "valid"
    assert workspace.sandbox.manifest() == before


def test_what_a_hostile_model_prints_is_no_fact(workspace: Workspace) -> None:
    found = workspace.after(with_trap(LIE))
    assert found["model.pkl"]["kind"] == "builtins.NoneType"
    assert found["model.pkl"]["fitted"] is None


def test_a_probe_that_is_killed_says_so(workspace: Workspace) -> None:
    found = workspace.after(with_trap("__import__('os').kill(__import__('os').getppid(), 9)"))
    assert found == {"problem": "the artifacts could not be looked at (exit code -9)"}


@pytest.mark.parametrize(
    "spoil",
    [
        "open('X_test.pkl', 'wb').write(b'12345')",
        "import pickle; pickle.dump([[1, 2], [3, 4]], open('X_test.pkl', 'wb'))",
    ],
    ids=["no pickle", "no frame"],
)
def test_an_unfit_frame_is_no_fault_of_the_model(workspace: Workspace, spoil: str) -> None:
    model = workspace.after(f"{REGRESSION}\n{spoil}")["model.pkl"]
    assert "problem" not in model
    assert model["fitted"] is True
    assert 0.7 < model["skill"] < 0.95
    assert not {"predicts", "agreement"} & model.keys()


def test_a_hostile_frame_hides_no_model(workspace: Workspace) -> None:
    found = workspace.after(with_trap("__import__('os')._exit(0)", "X_train"))
    assert found["X_train.pkl"] == {"problem": "loading it ended the process"}
    assert "problem" in found["model.pkl"]  # it cannot be tried without the frame
    assert found["submission.csv"]["verdict"] == "valid"


def test_what_artifacts_do_to_the_workspace_is_undone(workspace: Workspace) -> None:
    deletes = "[__import__('os').remove(n) for n in __import__('os').listdir('.')]"
    workspace.begin("y")
    workspace.run(with_trap(deletes, "X_train"))
    before = workspace.sandbox.manifest()
    found = workspace.facts()
    assert workspace.sandbox.manifest() == before
    assert found["submission.csv"]["ids_usable"] == 60


def test_a_folder_in_the_place_of_an_artifact_is_not_there(workspace: Workspace) -> None:
    workspace.begin("y")
    program = "import os; os.mkdir('model.pkl'); os.mkdir('submission.csv')"
    assert workspace.sandbox.exec(program, LIMITS).exit_code == 0
    assert workspace.facts() == {}


def test_tables_that_were_overwritten_are_a_problem_and_no_crash(workspace: Workspace) -> None:
    found = workspace.after("open('train.csv', 'w').close()")
    assert found["problem"].startswith("EmptyDataError")


def test_facts_are_not_cut_like_what_agents_print(workspace: Workspace) -> None:
    wide = (
        "save(X_train=pd.DataFrame({f'a long name for a column {n}': y['y'] for n in range(300)}))"
    )
    found = workspace.after(wide + "\nsave(y_train=y)")
    assert len(found["leaks"]) == 10
