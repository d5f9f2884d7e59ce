"""Fakes and a loop for tests of scenarios, coaches and environments; checks for sandboxes."""

from __future__ import annotations

from mappa_envs.teams import ScriptedTeam
from mappa_envs.testing.fakes import FakeSandbox, ScriptedCoach
from mappa_envs.testing.play import Policy, play
from mappa_envs.testing.sandbox import SANDBOX_CHECKS, check_sandbox, run_sandbox_check

__all__ = [
    "SANDBOX_CHECKS",
    "FakeSandbox",
    "Policy",
    "ScriptedCoach",
    "ScriptedTeam",
    "check_sandbox",
    "play",
    "run_sandbox_check",
]
