"""TorchRL's own PettingZoo wrapper plays a whole team.

TorchRL has to be told three things: that the two spaces of texts are data without tensors, that
such data is indexed by agent, and that infos are tables and texts, which it would make tensors of.
Then `rollout` gives tensordicts as from any other environment.

    python examples/torchrl_team.py --seed 0
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pettingzoo
import torch
from pettingzoo.utils.wrappers import BaseWrapper
from tensordict import TensorDictBase
from torchrl.data import NonTensor
from torchrl.envs import PettingZooWrapper, register_gym_spec_conversion

import mappa_envs  # noqa: F401 (registers the environments)
from mappa_envs.play import Policy
from mappa_envs.spaces import Messages, Utf8Text
from mappa_envs.teams import ScenarioTeam


class TextSpec(NonTensor):
    """Texts, one for each agent of a group."""

    def to_numpy(self, val: TensorDictBase, safe: bool | None = None) -> np.ndarray:
        """Return the texts as an array that can be indexed by agent."""
        return np.array(val.tolist(), dtype=object)


@register_gym_spec_conversion(Utf8Text)
def convert_text(space: Utf8Text, **_: Any) -> TextSpec:
    """Return the spec of an action."""
    return TextSpec((), example_data="")


@register_gym_spec_conversion(Messages)
def convert_messages(space: Messages, **_: Any) -> NonTensor:
    """Return the spec of a conversation."""
    return NonTensor((), example_data=())


class WithoutInfos(BaseWrapper):
    """An environment whose infos are empty; the ledger stays within reach."""

    @property
    def infos(self) -> dict[str, dict[str, Any]]:
        """An empty table for each agent."""
        return {agent: {} for agent in self.env.agents}


class TensorDictTeam:
    """Lets the agent whose turn it is say what a policy says; the others' texts do not matter."""

    def __init__(self, policy: Policy, agents: list[str]) -> None:
        self.policy = policy
        self.agents = agents

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Set the action of every agent."""
        for agent in self.agents:
            text = ""
            if tensordict[agent, "mask"].item():
                messages = tensordict[agent, "observation", "messages"][0]
                text = self.policy(agent, {"messages": messages})
            tensordict[agent, "action"] = [text]
        return tensordict


def main() -> None:
    """Play episodes, and compare what TorchRL was paid with the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=3)
    arguments = parser.parse_args()
    team = pettingzoo.make("aec", "mappa/MathChat-v0", coach={"kind": "rubric"})
    env = PettingZooWrapper(WithoutInfos(team), use_mask=True)
    env.set_seed(arguments.seed)
    policy = TensorDictTeam(ScenarioTeam(team), team.possible_agents)
    print("episode  agent       TorchRL   ledger")
    for episode in range(arguments.episodes):
        rollout = env.rollout(100, policy)
        assert rollout["next", "done"][-1].item(), "the episode was not played to its end"
        for agent in team.possible_agents:
            paid = rollout["next", agent, "reward"].double().sum().item()
            own = [entry.reward for entry in team.ledger if entry.agent == agent]
            own_as_kept = torch.tensor(own, dtype=torch.float32)  # TorchRL keeps float32 rewards
            earned = own_as_kept.double().sum().item()
            print(f"{episode:7}  {agent:10}  {paid:7.4f}  {earned:7.4f}")
            assert paid == earned, f"{agent} was paid {paid}, the ledger says {earned}"
    env.close()


if __name__ == "__main__":
    main()
