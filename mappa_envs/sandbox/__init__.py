"""Where agent code runs: the protocol every sandbox follows, and the local one."""

from __future__ import annotations

from mappa_envs.sandbox.local import Isolation, LocalSandbox, available_isolation
from mappa_envs.sandbox.protocol import ExecResult, Limit, Limits, Sandbox

__all__ = [
    "ExecResult",
    "Isolation",
    "Limit",
    "Limits",
    "LocalSandbox",
    "Sandbox",
    "available_isolation",
]
