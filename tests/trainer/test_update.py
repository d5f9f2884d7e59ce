from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mappa_trainer.advantages import Action, Estimator
from mappa_trainer.batching import Pair
from mappa_trainer.cluster.worker import LearnerWorker
from mappa_trainer.engines.hf import HFEngine
from mappa_trainer.errors import TrainingError
from mappa_trainer.learner import Learner, LearningRate
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.models import load_model
from mappa_trainer.objective import Objective
from mappa_trainer.recipe import Recipe
from mappa_trainer.selection import Batch, make_batch, shuffle_rewards
from mappa_trainer.types import Episode, Generation, Sample, Sampling, Transition, UpdateMetrics
from mappa_trainer.update import Metrics, update_learner

MakeRecipe = Callable[..., Recipe]


class Table:
    """Log-probabilities looked up by sampled ids; as a learner it records what it is given."""

    def __init__(self, values: dict[tuple[int, ...], list[float]]) -> None:
        self.values = values
        self.updates: list[list[Sample]] = []
        self.results = iter([UpdateMetrics(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1)] * 9)

    def logprobs(self, pairs: Sequence[Pair]) -> list[Tensor]:
        return [torch.tensor(self.values[tuple(ids)]) for _, ids in pairs]

    def rest(self) -> None:
        pass

    def update(self, samples: Sequence[Sample], objective: Objective) -> UpdateMetrics:
        self.updates.append(list(samples))
        return next(self.results)


def transition(
    ids: Sequence[int],
    reward: float | None,
    agent: str = "ann",
    sampler: Sequence[float] | None = None,
    reason: str = "stop",
) -> Transition:
    values = tuple(sampler) if sampler is not None else (-1.0,) * len(ids)
    generation = Generation((7, 8), tuple(ids), values, "text", reason)  # type: ignore[arg-type]
    return Transition(agent, 0, (), generation, reward, None, None)


def episode(index: int, *transitions: Transition) -> Episode:
    return Episode(index, index, {}, transitions, None, {}, {}, {})


def run(
    recipe: Recipe,
    episodes: Sequence[Episode],
    old: dict[tuple[int, ...], list[float]],
    ref: dict[tuple[int, ...], list[float]] | None = None,
) -> tuple[Metrics, Table]:
    learner = Table(old)
    reference = Table(ref or old)
    return update(recipe, learner, reference, episodes), learner


def update(recipe: Recipe, learner: Any, reference: Any, episodes: Sequence[Episode]) -> Metrics:
    """The metrics of one agent, by their names alone."""
    metrics = update_learner(recipe, LearnerWorker(learner, reference), episodes, ["ann"], 0)
    return {name.removeprefix("ann/"): value for name, value in metrics.items()}


def batch_of(episodes: Sequence[Episode], count: int, seed: int) -> Batch:
    return make_batch(episodes, {"ann": None}, mask_truncated=False, count=count, seed=seed)


def flat(values: dict[tuple[int, ...], int]) -> dict[tuple[int, ...], list[float]]:
    return {ids: [-1.0] * len(ids) for ids in values}


def test_advantages_are_those_of_reinforce_plus_plus_by_hand(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(algorithm={"kl_coef": 0.1}, train={"updates": 1})
    old = {(1, 2, 3): [-1.0, -1.0, -1.0], (4, 5): [-1.0, -1.0]}
    ref = {(1, 2, 3): [-1.2, -0.9, -1.3], (4, 5): [-1.5, -1.1]}
    episodes = [episode(0, transition([1, 2, 3], 0.8)), episode(1, transition([4, 5], 0.3))]
    metrics, learner = run(recipe, episodes, old, ref)
    (samples,) = learner.updates
    found = {sample.token_ids: sample.advantages.tolist() for sample in samples}
    # KL 0.2, -0.1, 0.3 and 0.5, 0.1; returns 0.76, 0.78, 0.77 and 0.24, 0.29; mean 0.568.
    sigma = math.sqrt(0.30748 / 5)
    assert found[1, 2, 3] == pytest.approx([x / sigma for x in (0.192, 0.212, 0.202)], abs=1e-5)
    assert found[4, 5] == pytest.approx([x / sigma for x in (-0.328, -0.278)], abs=1e-5)
    assert metrics["kl"] == pytest.approx(0.2)
    assert metrics["reward"] == pytest.approx(0.55)
    assert metrics["reward_std"] == pytest.approx(0.25)


def test_the_ratio_starts_from_the_learners_log_probabilities_not_the_engines(
    make_recipe: MakeRecipe,
) -> None:
    old = {(1, 2): [-2.0, -3.0], (3,): [-1.5]}
    episodes = [
        episode(0, transition([1, 2], 1.0, sampler=[-2.1, -3.2])),
        episode(1, transition([3], 0.0, sampler=[-1.5])),
    ]
    metrics, learner = run(make_recipe(train={"updates": 1}), episodes, old)
    for sample in learner.updates[0]:
        assert sample.old_logprobs.tolist() == old[sample.token_ids]
        assert sample.prompt_ids == (7, 8)
    assert metrics["logprob_gap"] == pytest.approx(0.1)
    assert metrics["logprob_gap_max"] == pytest.approx(0.2)


def test_what_cannot_be_trained_on_is_counted_by_reason(make_recipe: MakeRecipe) -> None:
    episodes = [
        episode(0, transition([1], 0.5), transition([2], None), transition([9], 1.0, agent="bob")),
        episode(1, transition([], 0.5, reason="prompt_too_long"), transition([3], 0.0)),
        episode(2, transition([4], None), transition([5], 1.0, reason="length")),
    ]
    batch = batch_of(episodes, 2, seed=0)
    assert batch.dropped["ann"] == Counter(unscored=2, prompt_too_long=1)
    assert sorted(s.transition.generation.token_ids for s in batch.selected) == [(1,), (3,), (5,)]

    metrics, learner = run(make_recipe(), episodes, {(1,): [-1.0], (3,): [-1.0], (5,): [-1.0]})
    assert metrics["actions"] == 3
    assert metrics["dropped"] == 3
    assert metrics["dropped_unscored"] == 2
    assert metrics["dropped_prompt_too_long"] == 1
    assert metrics["cut_share"] == pytest.approx(1 / 3)
    trained = [sample.token_ids for samples in learner.updates for sample in samples]
    assert sorted(trained) == [(1,), (3,), (5,)]


def test_an_unscored_action_moves_neither_mean_nor_scale(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(algorithm={"kl_coef": 0.0}, train={"updates": 1})
    episodes = [episode(0, transition([1, 2], 1.0)), episode(1, transition([3, 4], 0.5))]
    unscored = [*episodes, episode(2, transition([5, 6, 7], None))]
    old = {(1, 2): [-1.0, -1.0], (3, 4): [-1.0, -1.0], (5, 6, 7): [-1.0] * 3}
    metrics, learner = run(recipe, unscored, old)
    found = {sample.token_ids: sample.advantages.tolist() for sample in learner.updates[0]}
    assert found == {(1, 2): pytest.approx([1.0, 1.0]), (3, 4): pytest.approx([-1.0, -1.0])}
    assert metrics["reward"] == 0.75


def test_a_reward_of_zero_is_a_reward(make_recipe: MakeRecipe) -> None:
    episodes = [episode(0, transition([1], 0.0)), episode(1, transition([2], 1.0))]
    metrics, _ = run(make_recipe(), episodes, {(1,): [-1.0], (2,): [-1.0]})
    assert metrics["actions"] == 2
    assert metrics["reward"] == 0.5


def test_equal_rewards_deviate_by_exactly_nothing(make_recipe: MakeRecipe) -> None:
    """Seven times 0.1 in single precision deviates by 7e-9, and no alarm is raised."""
    episodes = [episode(i, transition([i], 0.1)) for i in range(7)]
    metrics, _ = run(make_recipe(), episodes, {(i,): [-1.0] for i in range(7)})
    assert metrics["reward_std"] == 0.0


def test_without_anything_to_train_on_no_step_is_taken(make_recipe: MakeRecipe) -> None:
    metrics, learner = run(make_recipe(), [episode(0, transition([1], None))], {})
    assert metrics == {"actions": 0, "dropped": 1, "dropped_unscored": 1}
    assert learner.updates == [[], []]  # no tokens, and the schedule goes on


def test_whole_episodes_are_dealt_out_and_every_agent_takes_the_same_steps(
    make_recipe: MakeRecipe,
) -> None:
    episodes = [
        episode(i, transition([10 * i + 1], 0.1 * i), transition([10 * i + 2], 0.5))
        for i in range(5)
    ]
    old = {t.generation.token_ids: [-1.0] for e in episodes for t in e.transitions}
    metrics, learner = run(make_recipe(train={"updates": 2}), episodes, old)
    assert metrics["updates"] == 2
    dealt = [{sample.token_ids[0] // 10 for sample in samples} for samples in learner.updates]
    assert sorted(map(len, dealt)) == [2, 3]
    assert dealt[0].isdisjoint(dealt[1])
    assert [len(samples) for samples in learner.updates] == [2 * len(own) for own in dealt]


def test_metrics_of_updates_are_means_over_tokens(make_recipe: MakeRecipe) -> None:
    learner = Table({(1,): [-1.0], (2, 3, 4): [-1.0] * 3})
    learner.results = iter(
        [
            UpdateMetrics(1.0, 0.0, 1.0, 0.25, 0.5, 2.0, 1),
            UpdateMetrics(5.0, 0.4, 1.0, 0.75, 1.5, 6.0, 3),
        ]
    )
    episodes = [episode(0, transition([1], 0.0)), episode(1, transition([2, 3, 4], 1.0))]
    recipe = make_recipe(train={"updates": 2})
    metrics = update(recipe, learner, learner, episodes)
    assert metrics["loss"] == 4.0
    assert metrics["clip_fraction"] == pytest.approx(0.3)
    assert metrics["grad_norm"] == 5.0
    assert metrics["entropy"] == 1.25
    assert metrics["first_ratio_deviation"] == 0.25


@pytest.mark.parametrize("sampler", [[-1.6, -1.6], [-1.0, math.nan]])
def test_an_engine_that_does_not_have_the_learners_weights_is_an_error(
    make_recipe: MakeRecipe, sampler: list[float]
) -> None:
    episodes = [episode(0, transition([1, 2], 1.0, sampler=sampler))]
    learner = Table({(1, 2): [-1.0, -1.0]})
    with pytest.raises(TrainingError, match=r"ann: .* train.max_logprob_gap = 0.5"):
        update(make_recipe(), learner, learner, episodes)
    assert learner.updates == []


def test_a_gap_within_the_limit_is_not(make_recipe: MakeRecipe) -> None:
    episodes = [episode(0, transition([1, 2], 1.0, sampler=[-1.4, -1.4]))]
    metrics, _ = run(make_recipe(), episodes, {(1, 2): [-1.0, -1.0]})
    assert metrics["logprob_gap"] == pytest.approx(0.4)


def many() -> list[Episode]:
    return [episode(i, transition([i], i / 8), transition([i + 100], 1 - i / 8)) for i in range(8)]


def pairing(episodes: Sequence[Episode], seed: int | None) -> dict[tuple[int, ...], float | None]:
    batch = batch_of(episodes, 3, seed=1)
    shuffled = batch if seed is None else shuffle_rewards(batch, seed)
    assert [len(mini) for mini in shuffled.mini_batches] == [len(m) for m in batch.mini_batches]
    if seed is not None:
        dealt = [Counter(s.transition.reward for s in mini) for mini in shuffled.mini_batches]
        assert dealt != [Counter(s.transition.reward for s in mini) for mini in batch.mini_batches]
    return {s.transition.generation.token_ids: s.transition.reward for s in shuffled.selected}


def test_shuffled_rewards_are_the_same_ones_on_other_actions() -> None:
    before, after = pairing(many(), None), pairing(many(), 5)
    assert before.keys() == after.keys()
    assert Counter(before.values()) == Counter(after.values())
    assert sum(before[ids] != after[ids] for ids in before) >= 8
    assert pairing(many(), 5) == after
    assert pairing(many(), 6) != after


def test_the_recipe_can_shuffle_rewards_across_mini_batches(make_recipe: MakeRecipe) -> None:
    old = {t.generation.token_ids: [-1.0] for e in many() for t in e.transitions}

    def trained(shuffle: bool) -> dict[tuple[int, ...], float]:
        recipe = make_recipe(algorithm={"shuffle_rewards": shuffle, "kl_coef": 0.0})
        metrics, learner = run(recipe, many(), old)
        assert metrics["reward"] == pytest.approx(0.5)
        return {s.token_ids: round(float(s.advantages), 4) for u in learner.updates for s in u}

    plain, shuffled = trained(False), trained(True)
    assert Counter(plain.values()) == Counter(shuffled.values())
    assert plain != shuffled
    assert trained(True) == shuffled


def test_joint_returns_are_dealt_out_with_the_rewards() -> None:
    """Every episode is one action, whose joint return is its reward."""
    batch = batch_of([episode(i, transition([i], i / 8)) for i in range(8)], 2, seed=1)
    shuffled = shuffle_rewards(batch, 5).selected
    assert all(item.joint_return == item.transition.reward for item in shuffled)
    assert [i.joint_return for i in shuffled] != [i.joint_return for i in batch.selected]


def one_too_few(actions: Sequence[Action], *, kl_coef: float, gamma: float) -> list[Tensor]:
    return [torch.zeros_like(action.kl) for action in actions[1:]]


def one_for_all_tokens(actions: Sequence[Action], *, kl_coef: float, gamma: float) -> list[Tensor]:
    return [torch.tensor(action.score) for action in actions]


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (one_too_few, "ann: its advantage estimator returned 1 tensors for 2 actions"),
        (one_for_all_tokens, r"of shape \(\) for action 0, which has 2 tokens"),
    ],
)
def test_an_estimator_must_have_a_value_for_each_token(
    make_recipe: MakeRecipe, estimator: Estimator, message: str
) -> None:
    episodes = [episode(0, transition([1, 2], 1.0)), episode(1, transition([3, 4], 0.5))]
    recipe = make_recipe(algorithm={"advantage": f"{__name__}:{estimator.__name__}"})
    with pytest.raises(TrainingError, match=message):
        run(recipe, episodes, {(1, 2): [-1.0, -1.0], (3, 4): [-1.0, -1.0]})


# Two actions of one token with a KL of 0.5 and 0 to the reference.
OLD = {(1,): [-1.0], (2,): [-1.0]}
REF = {(1,): [-1.5], (2,): [-1.0]}
APART = [episode(0, transition([1], 1.0, sampler=[-1.2])), episode(1, transition([2], 0.0))]


def settled(make_recipe: MakeRecipe, **algorithm: object) -> tuple[Metrics, list[Sample]]:
    """Train on `APART` in one step, with returns as advantages; samples by token id."""
    recipe = make_recipe(
        algorithm={"advantage": "reinforce", "kl_coef": 0.2} | algorithm, train={"updates": 1}
    )
    metrics, learner = run(recipe, APART, OLD, REF)
    return metrics, sorted(learner.updates[0], key=lambda sample: sample.token_ids)


def advantages_of(samples: Sequence[Sample]) -> list[float]:
    return [value for sample in samples for value in sample.advantages.tolist()]


def test_the_kl_in_the_reward_is_of_the_estimator_that_the_recipe_names(
    make_recipe: MakeRecipe,
) -> None:
    _, first = settled(make_recipe)
    _, second = settled(make_recipe, kl_estimator="k2")
    assert advantages_of(first) == pytest.approx([1 - 0.2 * 0.5, 0.0])
    assert advantages_of(second) == pytest.approx([1 - 0.2 * 0.125, 0.0])


def test_the_kl_in_the_loss_leaves_the_advantages_alone(make_recipe: MakeRecipe) -> None:
    metrics, samples = settled(make_recipe, kl_in="loss", kl_estimator="k2")
    assert advantages_of(samples) == [1.0, 0.0]
    assert metrics["kl"] == pytest.approx(0.25)
    assert metrics["kl_share"] == 0.0


def test_a_sample_has_the_references_and_the_engines_log_probabilities(
    make_recipe: MakeRecipe,
) -> None:
    _, samples = settled(make_recipe)
    assert [sample.old_logprobs.tolist() for sample in samples] == [[-1.0], [-1.0]]
    found = [(sample.ref_logprobs, sample.sampler_logprobs) for sample in samples]
    for (ref, sampler), wanted in zip(found, [(-1.5, -1.2), (-1.0, -1.0)], strict=True):
        assert ref is not None
        assert sampler is not None
        assert (ref.item(), sampler.item()) == pytest.approx(wanted)


def test_the_spread_of_returns_and_the_share_of_the_kl_by_hand(make_recipe: MakeRecipe) -> None:
    metrics, _ = settled(make_recipe)
    assert metrics["return_std"] == pytest.approx(0.45)  # of 0.9 and 0
    assert metrics["kl_share"] == pytest.approx(0.1 / 1.1)  # of 0.1 + 0 and 1 + 0


def test_a_truncated_action_moves_neither_mean_nor_scale_where_it_is_masked(
    make_recipe: MakeRecipe,
) -> None:
    cut = episode(2, transition([3, 4], 9.0, reason="length"))
    recipe = make_recipe(algorithm={"kl_coef": 0.0, "mask_truncated": True}, train={"updates": 1})
    metrics, learner = run(recipe, [*APART, cut], OLD)
    found = {sample.token_ids: sample.advantages.tolist() for sample in learner.updates[0]}
    assert found == {(1,): pytest.approx([1.0]), (2,): pytest.approx([-1.0])}
    assert (metrics["actions"], metrics["dropped_truncated"]) == (2, 1)
    assert metrics["reward"] == 0.5


def team_episodes() -> list[Episode]:
    """Ann, then bob, in two samples of one task."""
    rewards = [(1.0, 0.75), (0.0, 0.25)]
    return [
        replace(episode(i, transition([i], ann), transition([i + 10], bob, agent="bob")), seed=4)
        for i, (ann, bob) in enumerate(rewards)
    ]


def train_team(recipe: Recipe) -> tuple[Metrics, dict[tuple[int, ...], float]]:
    """Ann and bob share their weights; the advantage of each sampled id."""
    learner = Table({(i,): [-1.0] for i in (0, 1, 10, 11)})
    worker = LearnerWorker(learner, learner)  # type: ignore[arg-type]
    metrics = update_learner(recipe, worker, team_episodes(), ["ann", "bob"], 0)
    (samples,) = learner.updates
    return metrics, {sample.token_ids: sample.advantages.item() for sample in samples}


def test_agents_that_share_weights_have_estimators_of_their_own(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(agents={"bob": {"advantage": "reinforce"}}, train={"updates": 1})
    metrics, found = train_team(recipe)
    assert found == pytest.approx({(0,): 1.0, (1,): -1.0, (10,): 0.75, (11,): 0.25})
    assert (metrics["ann/actions"], metrics["bob/actions"]) == (2, 2)
    assert (metrics["ann/reward"], metrics["bob/reward"]) == (0.5, 0.5)
    assert metrics["ann/trained_tokens"] == metrics["bob/trained_tokens"]


def test_magrpo_pays_an_agent_for_what_the_team_earns_after_it(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(
        algorithm={"advantage": "magrpo"}, train={"updates": 1, "episodes": 2, "samples": 2}
    )
    metrics, found = train_team(recipe)
    # Ann's joint returns are 1.75 and 0.25, bob's 0.75 and 0.25.
    assert found == pytest.approx({(0,): 0.75, (1,): -0.75, (10,): 0.25, (11,): -0.25})
    assert (metrics["ann/return_std"], metrics["bob/return_std"]) == pytest.approx((0.75, 0.25))


@pytest.fixture(scope="module")
def played(tiny_model: Path) -> list[Episode]:
    """Four episodes of two actions that the tiny model really sampled."""
    engine = HFEngine(load_model(tiny_model), eos_ids={2}, pad_id=0)
    prompts = [tuple(range(5 + i, 25 + 3 * i)) for i in range(8)]
    found = engine.generate(prompts, list(range(8)), Sampling(1.0, 12))
    transitions = [
        Transition(
            agent="ann",
            index=i % 2,
            messages=(),
            generation=Generation(
                prompt, done.token_ids, done.logprobs, "not read", done.finish_reason
            ),
            reward=i / 8,
            ledger=None,
            turn=None,
        )
        for i, (prompt, done) in enumerate(zip(prompts, found, strict=True))
    ]
    return [episode(i, *transitions[2 * i : 2 * i + 2]) for i in range(4)]


class Spy(Learner):
    """A learner that also keeps the samples of each update."""

    updates: list[list[Sample]]

    def update(self, samples: Sequence[Sample], objective: Objective) -> UpdateMetrics:
        self.updates = [*getattr(self, "updates", []), list(samples)]
        return super().update(samples, objective)


def train_once(recipe: Recipe, folder: Path, episodes: Sequence[Episode]) -> tuple[Metrics, Spy]:
    learner = Spy(load_model(folder), learning_rate=LearningRate(1e-3), precision="float32")
    reference = Likelihood(load_model(folder), precision="float32")
    return update(recipe, learner, reference, episodes), learner


def test_what_is_trained_is_what_the_engine_saw_and_sampled(
    make_recipe: MakeRecipe, tiny_model: Path, played: list[Episode]
) -> None:
    metrics, learner = train_once(make_recipe(), tiny_model, played)
    wanted = {
        (t.generation.prompt_ids, t.generation.token_ids) for e in played for t in e.transitions
    }
    trained = [(s.prompt_ids, s.token_ids) for update in learner.updates for s in update]
    assert len(trained) == 8
    assert set(trained) == wanted
    assert metrics["updates"] == len(learner.updates) == 2


def test_the_first_ratio_is_one_and_the_engine_agrees_with_the_learner(
    make_recipe: MakeRecipe, tiny_model: Path, played: list[Episode]
) -> None:
    metrics, learner = train_once(make_recipe(), tiny_model, played)
    assert metrics["first_ratio_deviation"] <= 1e-6
    assert metrics["logprob_gap_max"] < 1e-4
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["grad_norm"] > 0
    advantages = torch.cat([s.advantages for update in learner.updates for s in update])
    assert float(advantages.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(advantages.square().mean()) == pytest.approx(1.0, abs=1e-4)


def test_an_unscored_action_changes_nothing_that_is_learned(
    make_recipe: MakeRecipe, tiny_model: Path, played: list[Episode]
) -> None:
    first, second = played[1].transitions
    unscored = [*played]
    unscored[1] = replace(played[1], transitions=(first, replace(second, reward=None)))
    without = [*played]
    without[1] = replace(played[1], transitions=(first,))
    (seen, a), (told, b) = (
        train_once(make_recipe(), tiny_model, episodes) for episodes in (unscored, without)
    )
    weights = b.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in a.model.state_dict().items())
    assert seen.pop("dropped_unscored") == 1
    assert seen | {"dropped": 0} == told
    _, whole = train_once(make_recipe(), tiny_model, played)
    assert any(
        not torch.equal(value, weights[name]) for name, value in whole.model.state_dict().items()
    )


def test_joint_returns_are_for_estimators_that_compare_by_task(make_recipe: MakeRecipe) -> None:
    metrics, _ = train_team(make_recipe(algorithm={"advantage": "reinforce"}, train={"updates": 1}))
    # Ann's own rewards are 1 and 0, bob's 0.75 and 0.25.
    assert (metrics["ann/return_std"], metrics["bob/return_std"]) == pytest.approx((0.5, 0.25))


def fails(actions: Sequence[Action], *, kl_coef: float, gamma: float) -> list[Tensor]:
    raise KeyError("nowhere")


def returns_floats(actions: Sequence[Action], *, kl_coef: float, gamma: float) -> list[float]:
    return [1.0 for _ in actions]


def returns_nothing(actions: Sequence[Action], *, kl_coef: float, gamma: float) -> None:
    return None


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        ("fails", "ann: its advantage estimator failed: KeyError: 'nowhere'; it takes"),
        ("returns_floats", "ann: its advantage estimator returned 1.0 for action 0; it must"),
        ("returns_nothing", "ann: its advantage estimator failed: TypeError"),
    ],
)
def test_an_estimator_of_the_users_own_that_is_wrong_is_told_so(
    make_recipe: MakeRecipe, estimator: str, words: str
) -> None:
    recipe = make_recipe(algorithm={"advantage": f"{__name__}:{estimator}"}, train={"updates": 1})
    with pytest.raises(TrainingError, match=words):
        train_team(recipe)
