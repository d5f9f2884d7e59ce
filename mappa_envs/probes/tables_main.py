"""Looks at the artifacts in its working folder, and prints what it finds as one line of JSON.

It runs in a sandbox, as a program of the environment's. The first process reads text alone. What
an agent pickled is loaded in processes of their own, one for the frames and one for the model:
neither can print, and where one dies or loops, the facts about the rest are there all the same.
"""

import io
import json
import os
import pickle
import select
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from mappa_envs.outcomes.submissions import Form, Rejected, check_rows, rows_for
from mappa_envs.probes import tables_facts as look

MARK = "mappa-facts "
FRAMES = ("X_train.pkl", "y_train.pkl", "X_test.pkl")
MODEL, SUBMISSION = "model.pkl", "submission.csv"
SECONDS = 4.0
"""Of a process that loads pickles."""
MOST_BYTES = 50_000_000
"""Of a submission."""
UNREADABLE = ("not_text", "not_csv")
"""The verdicts on a submission of which nothing can be told."""


def attempt(find: Any, *arguments: Any) -> Any:
    """Return what is found, or why it could not be."""
    try:
        return find(*arguments)
    except BaseException as error:
        return {"problem": f"{type(error).__name__}: {error}"[:200]}


class Given:
    """The tables of the task, as text, the form that is due, and the bytes of the artifacts."""

    def __init__(self, form: Any) -> None:
        self.sample = text_table("sample_submission.csv")
        self.id_column = form.id_column
        self.targets = [name for name in self.sample.columns if name != self.id_column]
        ids = dict.fromkeys(self.sample[self.id_column])
        self.form = replace(form, targets=tuple(self.targets), ids=tuple(ids))
        self.train = text_table("train.csv", nrows=look.HEAD)
        self.test = text_table("test.csv", nrows=look.HEAD)
        self.truth = text_table("train.csv", usecols=self.known(self.train, self.targets))
        names = self.known(self.test, [self.id_column])
        ids = text_table("test.csv", usecols=names or [0])
        self.ids = ids[self.id_column] if names else self.sample[self.id_column]
        self.rows_due = {"X_train.pkl": len(self.truth), "y_train.pkl": len(self.truth)}
        self.rows_due["X_test.pkl"] = len(ids)
        names = [name for name in (*FRAMES, MODEL, SUBMISSION) if Path(name).is_file()]
        self.bytes = {name: Path(name).read_bytes() for name in names}
        self.loaded: dict[str, Any] = {}

    def known(self, table: Any, names: Any) -> Any:
        """Return those of some columns that a table has."""
        return [name for name in names if name in table.columns]

    def split(self) -> Any:
        """Return the columns of train.csv that tests lack or have empty, and those they have."""
        train = self.train.drop(columns=self.id_column, errors="ignore").replace("", np.nan)
        empty = (self.test == "").all()
        hidden = [n for n in train if n not in self.test.columns or empty[n]]
        return train[hidden], train.drop(columns=hidden)

    def get(self, name: Any) -> Any:
        """Return what is in a pickle, written by pickle, pandas or joblib."""
        if name not in self.loaded:
            self.loaded[name] = load(self.bytes[name])
        return self.loaded[name]


def text_table(name: Any, **options: Any) -> Any:
    """Return a table with its cells as they are written."""
    return pd.read_csv(name, dtype=str, keep_default_na=False, **options)


def load(content: Any) -> Any:
    """Return what is pickled."""
    try:
        import joblib  # type: ignore[import-untyped]
    except ImportError:
        return pickle.loads(content)
    return joblib.load(io.BytesIO(content))


def frames(given: Given) -> Any:
    """Look at the frames of features and targets."""
    found = {name: attempt(frame, given, name) for name in FRAMES if name in given.bytes}
    if "X_train.pkl" in found and "y_train.pkl" in found:
        found["leaks"] = attempt(leaks, given)
    return found


def frame(given: Given, name: Any) -> Any:
    """Look at one frame."""
    table = look.as_frame(given.get(name))
    numeric = table.select_dtypes(["number", "bool"])
    found: dict[str, Any] = {
        "rows": len(table),
        "rows_due": given.rows_due[name],
        "columns": table.shape[1],
        "missing_values": int(table.isna().sum().sum()),
        "infinite_values": int(np.isinf(numeric.astype(float)).sum().sum()),
        "not_numeric": table.shape[1] - numeric.shape[1],
    }
    if name == "y_train.pkl":
        found["as_given"] = look.is_kept(table, given.truth)
        return found
    if len(table) == given.rows_due[name]:
        known = given.train if name == "X_train.pkl" else given.test
        found["order_kept"] = look.order_kept(
            table, known.drop(columns=given.id_column, errors="ignore")
        )
    if name == "X_test.pkl" and "X_train.pkl" in given.bytes:
        other = look.as_frame(given.get("X_train.pkl"))
        found["same_columns"] = list(map(str, table.columns)) == list(map(str, other.columns))
    return found


def leaks(given: Given) -> Any:
    """Return the columns of X_train that give the answers away."""
    features, targets = (look.as_frame(given.get(name)) for name in FRAMES[:2])
    if len(features) == given.rows_due["X_train.pkl"]:
        return look.leaks(features, *given.split())
    return look.leaks(features, targets, targets[[]]) if len(features) == len(targets) else []


def model(given: Given, submitted: Any) -> Any:
    """Look at the model: what it is, what it is good for, and whether the submission is its."""
    fitted_model = given.get(MODEL)
    found: dict[str, Any] = {
        "kind": f"{type(fitted_model).__module__}.{type(fitted_model).__qualname__}"[:200],
        "fitted": fitted(fitted_model),
    }
    for looked in (
        attempt(trained, given, fitted_model),
        attempt(used, given, fitted_model, submitted),
    ):
        found |= {} if "problem" in looked else looked  # a fault of a frame is none of the model
    return found


def trained(given: Given, fitted_model: Any) -> Any:
    """Look at what the model is good for on the rows that it was trained on."""
    if not {"X_train.pkl", "y_train.pkl"} <= given.bytes.keys():
        return {}
    features, targets = given.get("X_train.pkl"), look.as_frame(given.get("y_train.pkl"))
    gained = attempt(look.skill, fitted_model, features, targets)
    return {"skill": None if isinstance(gained, dict) else gained}


def used(given: Given, fitted_model: Any, submitted: Any) -> Any:
    """Look at what the model says of X_test, and whether the submission says it too."""
    if "X_test.pkl" not in given.bytes:
        return {}
    features = given.get("X_test.pkl")
    places = look.spread(features.shape[0])
    said = attempt(lambda: list(look.predictions(fitted_model, look.take(features, places))))
    found = {"predicts": not isinstance(said, dict) and len(said[0]) == len(places)}
    if submitted is not None:
        found["agreement"] = attempt(agreement, given, fitted_model, features, submitted)
    return found


def agreement(given: Given, fitted_model: Any, features: Any, submitted: Any) -> Any:
    """Return the share of the submission that is what the model predicts, or None."""
    place_of = {row_id: place for place, row_id in enumerate(given.ids)}
    rows = submitted[submitted[given.id_column].isin(place_of)]
    if features.shape[0] != len(given.ids) or not len(rows):
        return None
    rows = rows.iloc[look.spread(len(rows))]
    places = rows[given.id_column].map(place_of).to_numpy()
    cells = rows.drop(columns=given.id_column).reset_index(drop=True)
    said = look.predictions(fitted_model, look.take(features, places))
    ranking = given.form.content == "ranking"
    shares = [look.agreement(cells, each, ranking) for each in said]
    return max((share for share in shares if share is not None), default=None)


def fitted(given: Any) -> Any:
    """Tell whether an estimator of scikit-learn is fitted; None of anything else."""
    from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
    from sklearn.exceptions import NotFittedError  # type: ignore[import-untyped]
    from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]

    if not isinstance(given, BaseEstimator):
        return None
    try:
        check_is_fitted(given)
    except NotFittedError:
        return False
    return True


def submission(given: Given) -> Any:
    """Look at the submission: its form, as it is graded, and whether it says anything."""
    content, form = given.bytes[SUBMISSION], given.form
    if len(content) > MOST_BYTES:
        return {"problem": f"more than {MOST_BYTES} bytes"}
    try:
        rows = rows_for(form, content)
    except Rejected as rejected:
        return {"problem" if rejected.verdict in UNREADABLE else "verdict": rejected.verdict}
    checked = check_rows(rows, form)
    table = pd.DataFrame(rows, columns=[form.id_column, *form.targets], dtype=str)
    cells = table[given.targets]
    sample = given.sample.drop_duplicates(given.id_column).set_index(given.id_column)
    due = sample.reindex(table[given.id_column])[given.targets]
    return {
        "verdict": checked.verdict,
        "ids_due": len(form.ids),
        "ids_usable": round(checked.coverage * len(form.ids)),
        "constant": len(cells.drop_duplicates()) == 1 and len(cells) > 1,
        "as_the_sample": all(look.same_cells(cells[n], due[n]).all() for n in given.targets),
        "table": table,
    }


def apart(find: Any, *arguments: Any) -> Any:
    """Return what is found in a process of its own, which cannot print, or why nothing is."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.write(writing, json.dumps(attempt(find, *arguments)).encode()[:60_000])
        os._exit(0)
    os.close(writing)
    told = read_until(reading, time.monotonic() + SECONDS)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    if told is None:
        return {"problem": f"not done after {SECONDS:g} s"}
    return attempt(json.loads, told) if told else {"problem": "loading it ended the process"}


def read_until(reading: Any, deadline: Any) -> Any:
    """Return all that comes through a pipe, or None if it does not end in time."""
    told = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([reading], [], [], left)[0]:
            break
        if not (part := os.read(reading, 65536)):
            return told
        told += part
    return None


def facts(form: Any) -> Any:
    """Look at everything that is there."""
    given = Given(form)
    found: dict[str, Any] = {}
    if any(name in given.bytes for name in FRAMES):
        seen = apart(frames, given)
        names = [name for name in FRAMES if name in given.bytes]
        found |= dict.fromkeys(names, seen) if "problem" in seen else seen
    form = attempt(submission, given) if SUBMISSION in given.bytes else {}
    table = form.pop("table", None)
    if MODEL in given.bytes:
        found[MODEL] = apart(model, given, table)
    if form:
        found[SUBMISSION] = form
    return found


def main(form: str) -> None:
    """Print the facts; `form` is that of a submission without its ids, as JSON."""
    warnings.simplefilter("ignore")
    print("\n" + MARK + json.dumps(attempt(facts, Form(**json.loads(form)))))
