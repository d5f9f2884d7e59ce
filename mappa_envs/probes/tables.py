"""Runs the program that looks at tables, and reads what it prints."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.table_judge import form_of
from mappa_envs.sandbox.protocol import Actor, Limits, Sandbox
from mappa_envs.types import Task

_PACKAGE: Final = Path(__file__).parents[1]
_MODULES: Final = (
    "outcomes.verdicts",
    "outcomes.metrics",
    "outcomes.submissions",
    "probes.tables_facts",
    "probes.tables_main",
)
"""What the program brings along, since sandboxes lack the package; each before those it serves.

A submission's form is read by the modules that grade it, so the facts and the outcome agree.
"""
_MARK: Final = "mappa-facts "
_SECONDS: Final = 12.0
"""More than what the processes take that load pickles."""
_OUTPUT_BYTES: Final = 200_000


def probe_tables(sandbox: Sandbox, limits: Limits, task: Task) -> Mapping[str, Any]:
    """Return what is in the artifacts of the workspace, e.g. `{"model.pkl": {"fitted": True}}`.

    Each artifact that is there has an entry; `tables_main.py` says what is in it. An artifact that
    cannot be looked at has the entry `problem`. What loading them does to the workspace is undone.
    Of the task the program is told the form of a submission, as every agent is, and no answer.

    Raises:
        TaskError: the task has no rule for submissions.
        SandboxError: the sandbox is dead.
    """
    bounds = replace(limits, timeout_s=min(_SECONDS, limits.timeout_s), output_bytes=_OUTPUT_BYTES)
    program = _program(task)
    before = sandbox.snapshot()
    try:
        result = sandbox.exec(program, bounds, Actor(agent="probe"))
    finally:
        sandbox.restore(before)
    lines = [line for line in result.stdout.splitlines() if line.startswith(_MARK)]
    try:
        facts = json.loads(lines[-1].removeprefix(_MARK))
    except (IndexError, ValueError, RecursionError):
        ended = result.limit_hit or f"exit code {result.exit_code}"
        return {"problem": f"the artifacts could not be looked at ({ended})"}
    return facts if isinstance(facts, dict) else {"problem": "the artifacts gave no facts"}


def _program(task: Task) -> str:
    """Return the program that looks at the artifacts of a task."""
    if task.grading is None:
        raise TaskError(f"task {task.id!r} has no grading, so no form to look for; add one")
    form = json.dumps(asdict(form_of(task.grading, ids=())))  # the sample has the ids
    return f"{_modules()}\nsys.modules['mappa_envs.probes.tables_main'].main({form!r})\n"


@functools.cache
def _modules() -> str:
    """Return a program that defines the modules."""
    sources = {
        f"mappa_envs.{name}": (_PACKAGE / f"{name.replace('.', '/')}.py").read_text("utf-8")
        for name in _MODULES
    }
    return f"""
import sys, types
for name in ("mappa_envs", "mappa_envs.outcomes", "mappa_envs.probes"):
    sys.modules[name] = types.ModuleType(name)
for name, source in {sources!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    package, _, short = name.rpartition(".")
    setattr(sys.modules[package], short, module)
    exec(compile(source, name, "exec"), module.__dict__)
"""
