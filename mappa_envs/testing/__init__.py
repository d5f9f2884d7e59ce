"""Fakes and a loop for tests of scenarios, coaches and environments."""

from __future__ import annotations

from mappa_envs.testing.fakes import FakeSandbox, ScriptedCoach
from mappa_envs.testing.play import Policy, ScriptedTeam, play

__all__ = ["FakeSandbox", "Policy", "ScriptedCoach", "ScriptedTeam", "play"]
