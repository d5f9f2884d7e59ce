"""Which actions of an iteration are trained on, and which may be compared with each other."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mappa_trainer.advantages import Scope
from mappa_trainer.batching import mini_batches as deal_out
from mappa_trainer.errors import TrainingError
from mappa_trainer.types import Episode, Transition

Group = tuple[int, str, int]
"""The seed of a task, the agent, and the turn: what all samples of an action have in common."""


@dataclass(frozen=True, slots=True)
class Selected:
    """One action that is trained on."""

    transition: Transition
    group: Group
    joint_return: float | None
    """What all agents earned from here to the end; None when one of these actions is unscored."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The selected actions of one set of weights, cut into mini-batches by episode."""

    mini_batches: list[list[Selected]]
    dropped: Mapping[str, Counter[str]]
    """By agent, actions that are not trained on, by reason; nothing is dropped silently."""

    @property
    def selected(self) -> list[Selected]:
        """All actions to train on, in the order of the mini-batches."""
        return [item for batch in self.mini_batches for item in batch]


def make_batch(
    episodes: Sequence[Episode],
    scopes: Mapping[str, Scope | None],
    *,
    mask_truncated: bool,
    count: int,
    seed: int,
) -> Batch:
    """Select the actions of the agents of `scopes`, and deal whole episodes into mini-batches.

    Args:
        episodes: Of one iteration.
        scopes: For each agent, what its estimator compares actions by.
        mask_truncated: Leave out actions that were cut off by the token limit.
        count: The number of mini-batches.
        seed: Decides which episodes go into which mini-batch.

    Raises:
        TrainingError: actions that are to be compared have different prompts.
    """
    for agent, scope in scopes.items():
        if scope == "prompt":
            _check_prompts(episodes, agent)
    rows = [[_look(episode, place) for place in _places(episode, scopes)] for episode in episodes]
    reasons = [[_reason(item, scopes, mask_truncated) for item in row] for row in rows]
    sizes = Counter(
        item.group
        for row, why in zip(rows, reasons, strict=True)
        for item, reason in zip(row, why, strict=True)
        if reason is None
    )
    dropped: dict[str, Counter[str]] = {agent: Counter() for agent in scopes}
    kept: list[list[Selected]] = []
    for row, why in zip(rows, reasons, strict=True):
        kept.append([])
        for item, reason in zip(row, why, strict=True):
            agent = item.transition.agent
            if reason is None and scopes[agent] and sizes[item.group] < 2:
                reason = "alone"
            if reason is None:
                kept[-1].append(item)
            else:
                dropped[agent][reason] += 1
    return Batch(deal_out(kept, count, seed), dropped)


def shuffle_rewards(batch: Batch, seed: int) -> Batch:
    """Deal each agent's rewards out among its actions at random: the control of an experiment.

    The joint return goes with the reward, so that no estimator learns from a true one.
    """
    dealt: dict[str, Iterator[Selected]] = {}
    for agent in {item.transition.agent for item in batch.selected}:
        own = [item for item in batch.selected if item.transition.agent == agent]
        random.Random(seed).shuffle(own)
        dealt[agent] = iter(own)

    def deal(item: Selected) -> Selected:
        other = next(dealt[item.transition.agent])
        transition = replace(item.transition, reward=other.transition.reward)
        return replace(item, transition=transition, joint_return=other.joint_return)

    return replace(
        batch, mini_batches=[[deal(item) for item in mini] for mini in batch.mini_batches]
    )


def _places(episode: Episode, agents: Mapping[str, object]) -> list[int]:
    return [i for i, transition in enumerate(episode.transitions) if transition.agent in agents]


def _look(episode: Episode, place: int) -> Selected:
    transition = episode.transitions[place]
    rewards = [later.reward for later in episode.transitions[place:]]
    known = [reward for reward in rewards if reward is not None]
    return Selected(
        transition,
        group=(episode.seed, transition.agent, transition.index),
        joint_return=sum(known) if len(known) == len(rewards) else None,
    )


def _reason(item: Selected, scopes: Mapping[str, Scope | None], mask_truncated: bool) -> str | None:
    """Say why an action cannot be trained on; None when it can."""
    generation = item.transition.sampled
    if not generation.tokens:
        return generation.finish_reason
    if item.transition.reward is None:
        return "unscored"
    if mask_truncated and generation.finish_reason == "length":
        return "truncated"
    if scopes[item.transition.agent] == "task" and item.joint_return is None:
        return "no_joint_return"
    return None


def _check_prompts(episodes: Sequence[Episode], agent: str) -> None:
    """Refuse to compare actions that were answers to different prompts."""
    prompts: dict[Group, set[tuple[int, ...]]] = defaultdict(set)
    for episode in episodes:
        for transition in episode.transitions:
            if transition.agent == agent:
                group = (episode.seed, agent, transition.index)
                prompts[group].add(transition.sampled.prompt_ids)
    if differing := [group for group, seen in prompts.items() if len(seen) > 1]:
        _, _, turn = differing[0]
        count = len(prompts[differing[0]])
        raise TrainingError(
            f"{agent}: at turn {turn + 1} the samples of a task have {count} different prompts, "
            "because it saw what was written before, so its scores cannot be "
            f"compared; set another estimator for it: [agents.{agent}] advantage = 'reinforce++' "
            "(or 'magrpo', which compares by task)"
        )
