from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mappa_trainer.advantages import Scope
from mappa_trainer.errors import TrainingError
from mappa_trainer.selection import Batch, make_batch
from mappa_trainer.types import Episode, Generation, Transition


def action(
    agent: str, reward: float | None, prompt: Sequence[int] = (7,), index: int = 0, **changes: Any
) -> Transition:
    reason = changes.get("reason", "stop")
    generation = Generation(tuple(prompt), (int(100 * (reward or 0)),), (-1.0,), "", reason)
    return Transition(agent, index, (), generation, reward, None, None)


def episode(seed: int, *actions: Transition) -> Episode:
    return Episode(0, seed, {}, actions, None, {}, {}, {})


def select(
    episodes: Sequence[Episode], scopes: Mapping[str, Scope | None], mask: bool = False
) -> Batch:
    return make_batch(episodes, scopes, mask_truncated=mask, count=1, seed=0)


def test_a_group_is_the_task_the_agent_and_the_turn() -> None:
    episodes = [
        episode(seed, action("ann", reward), action("ann", 0.5, (8,), index=1))
        for seed, reward in ((4, 0.0), (4, 1.0), (9, 0.25), (9, 0.75))
    ]
    batch = select(episodes, {"ann": "prompt"})
    groups = Counter(item.group for item in batch.selected)
    assert groups == {(s, "ann", i): 2 for s in (4, 9) for i in (0, 1)}
    assert batch.dropped["ann"].total() == 0


def test_answers_to_different_prompts_are_not_compared() -> None:
    episodes = [episode(4, action("ann", 0.0, (1, 2))), episode(4, action("ann", 1.0, (1, 3)))]
    with pytest.raises(
        TrainingError,
        match=r"ann: at turn 1 .* 2 different prompts, .* \[agents.ann\] advantage = 'reinf",
    ):
        select(episodes, {"ann": "prompt"})
    assert len(select(episodes, {"ann": "task"}).selected) == 2
    assert len(select(episodes, {"ann": None}).selected) == 2


def test_prompts_are_compared_though_an_action_is_dropped() -> None:
    episodes = [
        episode(4, action("ann", 0.0, (1, 2))),
        episode(4, action("ann", 0.5, (1, 2))),
        episode(4, action("ann", None, (1, 3))),
    ]
    with pytest.raises(TrainingError, match="2 different prompts"):
        select(episodes, {"ann": "prompt"})


@pytest.mark.parametrize("scope", ["prompt", "task"])
def test_what_is_left_alone_by_an_unscored_sibling_is_counted(scope: Scope) -> None:
    episodes = [
        episode(4, action("ann", 0.0)),
        episode(4, action("ann", None)),
        episode(5, action("ann", 0.0)),
        episode(5, action("ann", 1.0)),
    ]
    batch = select(episodes, {"ann": scope})
    assert batch.dropped["ann"] == {"unscored": 1, "alone": 1}
    assert [item.group for item in batch.selected] == [(5, "ann", 0)] * 2
    assert select(episodes, {"ann": None}).dropped["ann"] == {"unscored": 1}


def test_the_joint_return_is_what_all_earn_from_here_on() -> None:
    episodes = [
        episode(4, action("ann", 0.5), action("bob", 0.25), action("ann", 1.0, index=1)),
        episode(4, action("ann", 0.0), action("bob", 0.0), action("ann", 0.25, index=1)),
    ]
    batch = select(episodes, {"ann": "task"})
    found = {(i.transition.reward, i.transition.index): i.joint_return for i in batch.selected}
    assert found == {(0.5, 0): 1.75, (1.0, 1): 1.0, (0.0, 0): 0.25, (0.25, 1): 0.25}


def test_a_return_that_nobody_knows_is_no_number() -> None:
    episodes = [
        episode(4, action("ann", 0.5), action("bob", None)),
        episode(4, action("ann", 0.0), action("bob", 1.0)),
        episode(4, action("ann", 1.0), action("bob", 1.0)),
    ]
    batch = select(episodes, {"ann": "task"})
    assert batch.dropped["ann"] == {"no_joint_return": 1}
    assert sorted(item.joint_return or 0 for item in batch.selected) == [1.0, 2.0]
    assert select(episodes, {"ann": None}).dropped["ann"].total() == 0


def test_truncated_actions_are_left_out_where_the_recipe_says_so() -> None:
    episodes = [episode(4, action("ann", 0.5, reason="length"), action("ann", 1.0, index=1))]
    assert len(select(episodes, {"ann": None}).selected) == 2
    batch = select(episodes, {"ann": None}, mask=True)
    assert batch.dropped["ann"] == {"truncated": 1}
    assert [item.transition.reward for item in batch.selected] == [1.0]


def test_agents_that_share_weights_have_their_episodes_together() -> None:
    episodes = [episode(s, action("ann", 0.5), action("bob", 1.0)) for s in range(4)]
    batch = make_batch(episodes, {"ann": None, "bob": None}, mask_truncated=False, count=2, seed=0)
    for mini in batch.mini_batches:
        assert Counter(i.transition.agent for i in mini) == {"ann": 2, "bob": 2}
