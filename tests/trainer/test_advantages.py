from __future__ import annotations

import math

import pytest
import torch

from mappa_trainer import advantages
from mappa_trainer.advantages import (
    Action,
    dr_grpo,
    grpo,
    magrpo,
    reinforce,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
    scope_of,
)
from mappa_trainer.errors import RecipeError, TrainingError

# Two groups of scores, 1, 0, 0.5 and 0.8, 0.2; the first action has two tokens and some KL.
KL = torch.tensor([0.2, -0.1])
ACTIONS = [
    Action(1.0, KL, "a", 2.0),
    Action(0.0, torch.zeros(1), "a", 0.5),
    Action(0.8, torch.zeros(1), "b", 1.0),
    Action(0.5, torch.zeros(1), "a", 0.5),
    Action(0.2, torch.zeros(1), "b", 3.0),
]
GROUPED = [reinforce_plus_plus_baseline, grpo, dr_grpo, rloo, magrpo]


def values(estimator: advantages.Estimator, kl_coef: float = 0.0) -> list[list[float]]:
    found = estimator(ACTIONS, kl_coef=kl_coef, gamma=1.0)
    assert all(one.dtype == torch.float32 for one in found)
    return [one.tolist() for one in found]


def approx(*rows: list[float]) -> list[object]:
    return [pytest.approx(row, abs=1e-6) for row in rows]


def test_golden_advantages_of_reinforce_plus_plus() -> None:
    scores = [0.8, 0.3, 0.5]
    kls = [[0.2, -0.1, 0.3], [0.5, 0.1], [0.0, 0.4, -0.2]]
    actions = [Action(s, torch.tensor(k)) for s, k in zip(scores, kls, strict=True)]
    found = reinforce_plus_plus(actions, kl_coef=0.1, gamma=1.0)
    assert [one.tolist() for one in found] == approx(
        [1.101723, 1.201879, 1.151801], [-1.502349, -1.251958], [-0.300470, -0.300470, -0.100157]
    )


def test_reinforce_takes_the_returns_as_they_are() -> None:
    assert values(reinforce) == approx([1.0, 1.0], [0.0], [0.8], [0.5], [0.2])
    assert values(reinforce, kl_coef=0.1)[0] == pytest.approx([0.99, 1.01])
    discounted = reinforce(ACTIONS[:1], kl_coef=0.0, gamma=0.5)
    assert discounted[0].tolist() == [0.5, 1.0]


def test_grpo_standardises_in_each_group() -> None:
    # The first group has mean 0.5 and variance (0.25 + 0.25 + 0) / 3, the second 0.5 and 0.3².
    z = math.sqrt(1.5)
    assert values(grpo) == approx([z, z], [-z], [1.0], [0.0], [-1.0])


def test_dr_grpo_subtracts_the_mean_alone() -> None:
    assert values(dr_grpo) == approx([0.5, 0.5], [-0.5], [0.3], [0.0], [-0.3])


def test_rloo_subtracts_the_mean_of_the_others() -> None:
    assert values(rloo) == approx([0.75, 0.75], [-0.75], [0.6], [0.0], [-0.6])


def test_the_baseline_of_reinforce_plus_plus_comes_before_whitening() -> None:
    # Centred: 0.5 on two tokens, -0.5, 0.3, 0, -0.3; mean 1/12, mean square 0.93 / 6.
    mean, scale = 0.5 / 6, math.sqrt(0.93 / 6 - (0.5 / 6) ** 2)
    centred = ([0.5, 0.5], [-0.5], [0.3], [0.0], [-0.3])
    wanted = [[(x - mean) / scale for x in row] for row in centred]
    assert values(reinforce_plus_plus_baseline) == approx(*wanted)


def test_magrpo_compares_the_teams_returns() -> None:
    # Group a has joint returns 2, 0.5, 0.5 with mean 1, group b 1 and 3 with mean 2.
    assert values(magrpo) == approx([1.0, 1.0], [-0.5], [-1.0], [-0.5], [1.0])


@pytest.mark.parametrize("estimator", [grpo, dr_grpo, rloo, magrpo])
def test_kl_in_the_reward_is_added_token_by_token(estimator: advantages.Estimator) -> None:
    plain, penalised = values(estimator), values(estimator, kl_coef=0.1)
    assert penalised[0] == pytest.approx([plain[0][0] - 0.01, plain[0][1] + 0.01])
    assert penalised[1:] == plain[1:]


@pytest.mark.parametrize("estimator", GROUPED)
def test_equal_scores_leave_nothing_to_learn(estimator: advantages.Estimator) -> None:
    same = [Action(0.3, torch.zeros(2), "a", 0.3) for _ in range(3)]
    for found in estimator(same, kl_coef=0.1, gamma=1.0):
        assert found.tolist() == pytest.approx([0.0, 0.0], abs=1e-9)


def test_scores_that_differ_by_rounding_alone_are_equal() -> None:
    close = [Action(score, torch.zeros(1), "a") for score in (0.1 + 0.2, 0.3)]
    for found in grpo(close, kl_coef=0.0, gamma=1.0):
        assert found.item() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("estimator", GROUPED)
@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_refused(
    estimator: advantages.Estimator, score: float
) -> None:
    group = [Action(value, torch.zeros(1), "a", value) for value in (0.5, score)]
    with pytest.raises(TrainingError, match="must be finite"):
        estimator(group, kl_coef=0.0, gamma=1.0)


@pytest.mark.parametrize("estimator", GROUPED)
def test_an_action_that_is_alone_is_refused(estimator: advantages.Estimator) -> None:
    alone = [*ACTIONS, Action(0.5, torch.zeros(1), "c", 0.5)]
    with pytest.raises(TrainingError, match=r"action 5 is alone in its group 'c'"):
        estimator(alone, kl_coef=0.0, gamma=1.0)


def test_magrpo_needs_joint_returns() -> None:
    with pytest.raises(TrainingError, match="action 0 has no joint return"):
        magrpo([Action(0.5, torch.zeros(1), "a")] * 2, kl_coef=0.0, gamma=1.0)


def test_estimators_say_what_their_groups_have_in_common() -> None:
    assert [scope_of(estimator) for estimator in GROUPED] == [*["prompt"] * 4, "task"]
    assert scope_of(reinforce) is scope_of(reinforce_plus_plus) is None


def test_find_by_name_and_by_path() -> None:
    assert advantages.find("reinforce++") is reinforce_plus_plus
    assert advantages.find("mappa_trainer.advantages:rloo") is rloo


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gae", r"advantage estimator 'gae' is not known; use one of: dr_grpo, grpo, magrpo"),
        (
            "no_such_module_:f",
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_module_'",
        ),
        ("mappa_trainer.advantages:nothing", "has no attribute 'nothing'"),
        ("mappa_trainer.advantages:ADVANTAGES", "is a dict; it must be a function"),
    ],
)
def test_find_says_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        advantages.find(name)
