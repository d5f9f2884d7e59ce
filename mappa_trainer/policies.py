"""Who plays in an evaluation: a checkpoint, the base model, an endpoint, or a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa_trainer.checkpoint import iteration_of, latest_checkpoint, players_of
from mappa_trainer.engines.endpoint import EndpointPolicy
from mappa_trainer.errors import CheckpointError, PolicyError, RecipeError
from mappa_trainer.lookup import find
from mappa_trainer.policy import Conversation, Policy
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory
from mappa_trainer.team import load_base_policies, load_policies
from mappa_trainer.types import Reply, Sampling

Script = Callable[[str, Conversation], str]
"""A function of an agent and what it sees that returns what it says."""

_FORMS = "base, checkpoint:PATH, URL#MODEL, or package.module:function"


@dataclass(frozen=True)
class Chosen:
    """A team that was chosen and is not loaded yet."""

    name: str
    """Part of the name of an episode file, e.g. `"after-0012"`."""
    title: str
    """What the user is told, e.g. `"iteration-0012"`."""
    load: Callable[[], Mapping[str, Policy]]
    """Returns a policy for each agent."""
    trained_in: RunDirectory | None = None
    """The run whose training made it; None where this package did not train it."""


class ScriptedPolicy:
    """A `Policy` that is a function of the user's own, for one agent."""

    def __init__(self, agent: str, function: Script, name: str) -> None:
        self._agent = agent
        self._function = function
        self._name = name

    def act(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], sampling: Sampling
    ) -> list[Reply]:
        """Return what the function says to each conversation; see `Policy.act`.

        Raises:
            PolicyError: the function fails, or says no text.
        """
        return [Reply(self._say(conversation)) for conversation in conversations]

    def _say(self, conversation: Conversation) -> str:
        try:
            text = self._function(self._agent, conversation)
        except Exception as error:  # whatever a function of the user's raises
            raise PolicyError(
                f"policy {self._name!r} failed for {self._agent}: {type(error).__name__}: {error}; "
                "mend the function"
            ) from error
        if not isinstance(text, str):
            raise PolicyError(
                f"policy {self._name!r} said {text!r:.80} for {self._agent}; it must return a text"
            )
        return text


def choose(
    policy: str | None, recipe: Recipe, agents: list[str], run: RunDirectory | None
) -> Chosen:
    """Return the team that is to play; nothing is loaded or asked yet.

    Args:
        policy: `"base"`, `"checkpoint:PATH"`, `"URL#MODEL"` or `"package.module:function"`; None
            for the newest checkpoint of the run, or the base model where there is no run.
        recipe: What is played.
        agents: The seats.
        run: The run that is evaluated, if it is one.

    Raises:
        RecipeError: `policy` is none of these.
        CheckpointError: there is no such checkpoint, or it is of another team.
        PolicyError: an endpoint cannot be asked at all.
    """
    if policy is None and run is not None:
        path, _ = latest_checkpoint(run.path)
        return _checkpoint(path, path.name, recipe, agents, run)
    if policy is None or policy == "base":
        title = f"the base {recipe.model.base}"
        return Chosen("base", title, lambda: load_base_policies(recipe, agents))
    if policy.startswith("checkpoint:"):
        path = Path(policy.removeprefix("checkpoint:")).absolute()
        iteration_of(path)
        trained = RunDirectory.open(path.parents[1])
        if run is not None and trained.path.resolve() == run.path.resolve():
            return _checkpoint(path, path.name, recipe, agents, run)
        return _checkpoint(
            path, f"{trained.path.name}/{path.name}", trained.recipe(), agents, trained
        )
    if "://" in policy:
        return _endpoint(policy, agents)
    if ":" in policy:
        function: Script = find(policy, {}, "policy")
        scripted = {agent: ScriptedPolicy(agent, function, policy) for agent in agents}
        return Chosen(_slug(policy), policy, lambda: scripted)
    raise RecipeError(f"--policy is {policy!r}; give {_FORMS}")


def _checkpoint(
    path: Path, title: str, recipe: Recipe, agents: list[str], run: RunDirectory
) -> Chosen:
    """Return the team of a checkpoint of a run.

    Args:
        path: The checkpoint.
        title: Of the team; it names the run where that is another than the evaluated one.
        recipe: Says which base and which adapters the weights are of.
        agents: The seats.
        run: That the checkpoint is of.
    """
    players = players_of(path)
    if set(players) != set(agents):
        raise CheckpointError(
            f"{path}: is of the agents {', '.join(players)}, and those that play are "
            f"{', '.join(agents)}; give a checkpoint of the same team"
        )
    name = _slug(title.replace("iteration-", "after-"))
    return Chosen(name, title, lambda: load_policies(recipe, agents, path), trained_in=run)


def _endpoint(policy: str, agents: list[str]) -> Chosen:
    url, _, model = policy.partition("#")
    if not model:
        raise RecipeError(f"--policy is {policy!r}; say which model: URL#MODEL")
    asked = EndpointPolicy(url, model)
    return Chosen(_slug(model), f"{model} at {url}", lambda: dict.fromkeys(agents, asked))


def _slug(text: str) -> str:
    """Return a text as part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")
