"""Runs the program that looks at tables, and reads what it prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from mappa_envs.sandbox.protocol import Actor, Limits, Sandbox

_FOLDER: Final = Path(__file__).parent
_FACTS: Final = "mappa_envs.probes.tables_facts"
_MARK: Final = "mappa-facts "
_SECONDS: Final = 12.0
"""More than what the processes take that load pickles."""
_OUTPUT_BYTES: Final = 200_000


def probe_tables(sandbox: Sandbox, limits: Limits) -> Mapping[str, Any]:
    """Return what is in the artifacts of the workspace, e.g. `{"model.pkl": {"fitted": True}}`.

    Each artifact that is there has an entry; `tables_main.py` says what is in it. An artifact that
    cannot be looked at has the entry `problem`. What loading them does to the workspace is undone.

    Raises:
        SandboxError: the sandbox is dead.
    """
    bounds = replace(limits, timeout_s=min(_SECONDS, limits.timeout_s), output_bytes=_OUTPUT_BYTES)
    before = sandbox.snapshot()
    try:
        result = sandbox.exec(_program(), bounds, Actor(agent="probe"))
    finally:
        sandbox.restore(before)
    lines = [line for line in result.stdout.splitlines() if line.startswith(_MARK)]
    try:
        facts = json.loads(lines[-1].removeprefix(_MARK))
    except (IndexError, ValueError, RecursionError):
        ended = result.limit_hit or f"exit code {result.exit_code}"
        return {"problem": f"the artifacts could not be looked at ({ended})"}
    return facts if isinstance(facts, dict) else {"problem": "the artifacts gave no facts"}


def _program() -> str:
    """Return the program; it brings its functions along, since sandboxes lack the package."""
    functions = (_FOLDER / "tables_facts.py").read_text(encoding="utf-8")
    main = (_FOLDER / "tables_main.py").read_text(encoding="utf-8")
    return f"""
import sys, types
for name in ("mappa_envs", "mappa_envs.probes", {_FACTS!r}):
    sys.modules[name] = types.ModuleType(name)
sys.modules["mappa_envs.probes"].tables_facts = sys.modules[{_FACTS!r}]
exec({functions!r}, sys.modules[{_FACTS!r}].__dict__)
exec(compile({main!r}, "probe", "exec"), globals())
"""
