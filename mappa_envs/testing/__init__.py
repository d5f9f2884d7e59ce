"""Fakes and a loop for tests; checks that any environment, sandbox and coach can be put through."""

from __future__ import annotations

from mappa_envs.teams import ScriptedTeam
from mappa_envs.testing.coach import COACH_CHECKS, check_coach, run_coach_check
from mappa_envs.testing.env import ENV_CHECKS, check_env, run_env_check
from mappa_envs.testing.fakes import FakeSandbox, ScriptedCoach
from mappa_envs.testing.play import play
from mappa_envs.testing.sandbox import SANDBOX_CHECKS, check_sandbox, run_sandbox_check

__all__ = [
    "COACH_CHECKS",
    "ENV_CHECKS",
    "SANDBOX_CHECKS",
    "FakeSandbox",
    "ScriptedCoach",
    "ScriptedTeam",
    "check_coach",
    "check_env",
    "check_sandbox",
    "play",
    "run_coach_check",
    "run_env_check",
    "run_sandbox_check",
]
