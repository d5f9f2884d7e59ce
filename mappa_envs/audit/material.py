"""Plays the episodes whose actions a coach is probed with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.audit.blame import play_teams
from mappa_envs.audit.probing import FaultyEpisode
from mappa_envs.coach.contexts import questions_of
from mappa_envs.coach.judging import Question
from mappa_envs.coach.protocol import Coach
from mappa_envs.team_files import TeamScript


def play_material(
    env: AECEnv[str, Any, Any],
    coach: Coach,
    teams: Sequence[TeamScript | None],
    tasks: Iterable[str],
    seed: int = 0,
) -> tuple[list[Question], list[FaultyEpisode]]:
    """Return what a coach is asked of every action, and the episodes with a known culprit.

    Nobody is asked yet. Episodes in which the sandbox died are left out.

    Args:
        env: What is played, without a coach.
        coach: Decides what it is told, see `Coach`.
        teams: Those with a culprit give the second part, the others the first; None says the
            roles' `script`.
        tasks: Ids.
        seed: Passed to `reset`.
    """
    questions: list[Question] = []
    faulty: list[FaultyEpisode] = []
    for task in tasks:
        for team in play_teams(env, teams, seed, {"task": task}):
            if env.unwrapped.end_reason != "completed":
                continue
            asked = questions_of(coach, env.unwrapped.episode)
            if team is not None and team.culprit:
                faulty.append(FaultyEpisode(team.culprit, asked))
            else:
                questions += asked
    return questions, faulty
