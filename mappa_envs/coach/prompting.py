"""The messages by which a model is asked to judge an action.

A role's template (a Markdown file of the scenario, or the one that ships) says what the role is
judged by and where the evidence goes. What no template may leave out or change is put around it
here: the rules, the marks around what agents wrote, the right answer, and the way back.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from mappa_envs.coach.evidence import evidence, fact_lines, fenced, hindsight_lines, team_lines
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.prompts import render_template
from mappa_envs.scenario import Scenario
from mappa_envs.types import Message, Turn


def coach_messages(
    turn: Turn, context: CoachContext, scenario: Scenario, scale: float = 10
) -> tuple[Message, ...]:
    """Return what a model is asked about an action: the rules, then the evidence.

    Args:
        turn: The action that is judged.
        context: What else is known; with an outcome the question is the one of hindsight.
        scenario: With the template of the turn's role.
        scale: The best score.
    """
    shown = fenced(evidence(turn, context))
    values = shown | {
        "agent": turn.agent,
        "facts": fact_lines(turn, context, scenario),
        "role": turn.role,
        "team": team_lines(scenario),
    }
    values["evidence"] = render_template(shipped("evidence"), values)
    template = scenario.roles[turn.role].coach or shipped("action")
    parts = [render_template(template, values)]
    if context.truth is not None:
        parts.append(f"The right answer, which the team cannot see:\n{context.truth}")
    if context.outcome is not None:
        parts.append(
            "The episode is over. Judge the action by what came of it, and blame no action for "
            f"what another one spoiled:\n{hindsight_lines(context)}"
        )
    rules = {"mark": shown["action"][3:].split(" ", 1)[0], "scale": f"{scale:g}"}
    return (
        Message(role="system", content=render_template(shipped("rules"), rules)),
        Message(role="user", content="\n\n".join(parts)),
    )


@cache
def shipped(name: str) -> str:
    """Return a text that ships.

    Args:
        name: `"rules"`, `"evidence"` (how `{{ evidence }}` lays it out), or `"action"`, the
            template of roles without one.
    """
    return (files(__package__) / "prompts" / f"{name}.md").read_text(encoding="utf-8").strip()
