"""Which sets of weights a team plays, and what is trained of each.

Every agent has weights of its own unless `[agents.NAME] weights` gives several agents one name. Of
each set of weights everything is trained, a LoRA adapter on the base, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mappa_trainer.errors import RecipeError
from mappa_trainer.recipe import Recipe
from mappa_trainer.recipe_tables import AgentTable, Tuning


@dataclass(frozen=True, slots=True)
class Weights:
    """One set of weights, e.g. `Weights("solver_0", ("solver_0",), "full")`."""

    name: str
    """Of its folder in a checkpoint, and of its adapter."""
    agents: tuple[str, ...]
    """Who plays it, in the order in which they act."""
    tuning: Tuning


def plan_weights(recipe: Recipe, agents: Sequence[str]) -> list[Weights]:
    """Return the sets of weights of a team, in the order in which their first agents act.

    Raises:
        RecipeError: agents that share weights want different things trained, or nothing is trained.
    """
    players: dict[str, list[str]] = {}
    for agent in agents:
        players.setdefault(_table(recipe, agent).weights or agent, []).append(agent)
    plan = [
        Weights(name, tuple(own), _tuning_of_all(recipe, name, own))
        for name, own in players.items()
    ]
    if all(weights.tuning == "frozen" for weights in plan):
        raise RecipeError(
            "nothing would be trained: the tuning of every agent is 'frozen'; give model.tuning or "
            "an agent's own tuning the value 'full' or 'lora'"
        )
    return plan


def _table(recipe: Recipe, agent: str) -> AgentTable:
    return recipe.agents.get(agent, AgentTable())


def _tuning_of_all(recipe: Recipe, name: str, agents: Sequence[str]) -> Tuning:
    found = {agent: _table(recipe, agent).tuning or recipe.model.tuning for agent in agents}
    if len(set(found.values())) > 1:
        said = ", ".join(f"{agent} {tuning!r}" for agent, tuning in found.items())
        raise RecipeError(
            f"the agents that share the weights {name!r} differ in tuning: {said}; give all of "
            "them the same"
        )
    return found[agents[0]]
