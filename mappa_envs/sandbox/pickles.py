"""What is in a pickle that an agent wrote, asked where loading it can do no harm."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from mappa_envs.sandbox.protocol import Actor, Limits, Sandbox

_NAME_CHARACTERS = 200
_PROGRAM = """
import json, pickle, sys

def load(path):
    try:
        import joblib
    except ImportError:
        with open(path, "rb") as file:
            return pickle.load(file)
    return joblib.load(path)

def fitted(model):
    try:
        from sklearn.base import BaseEstimator
        from sklearn.exceptions import NotFittedError
        from sklearn.utils.validation import check_is_fitted
    except ImportError:
        return None
    if not isinstance(model, BaseEstimator):
        return None
    try:
        check_is_fitted(model)
    except NotFittedError:
        return False
    return True

try:
    found = load({path!r})
    kind = f"{{type(found).__module__}}.{{type(found).__qualname__}}"
    report = {{"loads": True, "kind": kind, "fitted": fitted(found), "problem": None}}
except BaseException as error:
    problem = f"{{type(error).__name__}}: {{error}}"
    report = {{"loads": False, "kind": None, "fitted": None, "problem": problem}}
for key in ("kind", "problem"):
    report[key] = report[key] and report[key][:{characters}]
print("\\n" + json.dumps(report))
"""


@dataclass(frozen=True, slots=True)
class PickleReport:
    """What a pickle says of itself when it is loaded: a claim of the code that is in it."""

    loads: bool
    kind: str | None
    """The class of the object, e.g. `"sklearn.linear_model._base.LinearRegression"`."""
    fitted: bool | None
    """Whether a scikit-learn estimator is fitted; None for anything else."""
    problem: str | None
    """Why it does not load."""


_REPORT = TypeAdapter(PickleReport)


def describe_pickle(sandbox: Sandbox, name: str, limits: Limits) -> PickleReport:
    """Load a pickle or joblib file of the workspace inside the sandbox, and say what it is.

    The file is never loaded in this process. Whatever loading it does to the workspace is
    undone. What runs on loading is the agent's code and can report anything: use the answer for
    feedback, not as proof.

    Raises:
        SandboxError: the sandbox is dead.
    """
    before = sandbox.snapshot()
    try:
        program = _PROGRAM.format(path=name, characters=_NAME_CHARACTERS)
        result = sandbox.exec(program, limits, Actor(agent="inspector"))
    finally:
        sandbox.restore(before)
    lines = result.stdout.rstrip().splitlines()
    try:
        return _REPORT.validate_json(lines[-1], strict=True)
    except (IndexError, ValidationError):
        ended = result.limit_hit or f"exit code {result.exit_code}"
        return PickleReport(False, None, None, f"loading it gave no report ({ended})")
