"""Where agent code runs: the protocol every sandbox follows, and two that do."""

from __future__ import annotations

from mappa_envs.sandbox.docker import DockerSandbox
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
    "DockerSandbox",
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
