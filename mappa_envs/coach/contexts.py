"""What a coach is told of an action besides the action itself."""

from __future__ import annotations

from mappa_envs.coach.judging import Question
from mappa_envs.coach.protocol import Coach, CoachContext
from mappa_envs.coach.truth import truth_text
from mappa_envs.episode import Episode
from mappa_envs.types import Outcome, Task, Turn


def context_of(
    coach: Coach, task: Task, turns: tuple[Turn, ...], outcome: Outcome | None
) -> CoachContext:
    """Return what a coach is told of the last of some turns.

    Args:
        coach: Its `truth_roles`, if it has any, decide whether it is told the right answer.
        task: What is being solved.
        turns: The episode's, up to the one that is judged.
        outcome: The task's verdict, where there is one yet.
    """
    shown = turns[-1].role in getattr(coach, "truth_roles", ())
    return CoachContext(
        problem=task.prompt,
        history=turns[:-1],
        task_id=task.id,
        truth=truth_text(task, outcome) if shown else None,
    )


def questions_of(coach: Coach, episode: Episode) -> tuple[Question, ...]:
    """Return what a coach is asked of each action as it is taken, for an episode that has ended."""
    turns = episode.turns
    ends = (None,) * (len(turns) - 1) + (episode.outcome,)
    return tuple(
        Question(turns[step], context_of(coach, episode.task, turns[: step + 1], outcome))
        for step, outcome in enumerate(ends)
    )
