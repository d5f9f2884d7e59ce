"""Where agent code runs: the protocol every sandbox follows, and the local one."""

from __future__ import annotations

from mappa_envs.sandbox.local import LocalSandbox, best_level, check_level
from mappa_envs.sandbox.protocol import (
    Access,
    Actor,
    ExecResult,
    FileChanges,
    FileRecord,
    Level,
    Limit,
    Limits,
    Output,
    Sandbox,
    Snapshot,
)

__all__ = [
    "Access",
    "Actor",
    "ExecResult",
    "FileChanges",
    "FileRecord",
    "Level",
    "Limit",
    "Limits",
    "LocalSandbox",
    "Output",
    "Sandbox",
    "Snapshot",
    "best_level",
    "check_level",
]
