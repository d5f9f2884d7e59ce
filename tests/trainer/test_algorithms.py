from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mappa_trainer import train
from mappa_trainer.advantages import ADVANTAGES, grpo, reinforce_plus_plus, rloo
from mappa_trainer.algorithms import (
    advantage_of,
    check_algorithms,
    learning_rate_of,
    objective_of,
)
from mappa_trainer.console import Console
from mappa_trainer.errors import RecipeError
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory

AGENTS = ["solver_0", "coder_0", "verifier_0"]
PAGE = Path(__file__).parents[2] / "docs" / "training.md"
MakeRecipe = Callable[..., Recipe]


def test_an_agent_may_have_an_estimator_of_its_own(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(agents={"solver_0": {"advantage": "rloo"}})
    assert advantage_of(recipe, "solver_0") is rloo
    assert advantage_of(recipe, "coder_0") is reinforce_plus_plus


def test_the_kl_is_in_the_reward_or_in_the_loss_and_never_in_both(make_recipe: MakeRecipe) -> None:
    rewarded = make_recipe(algorithm={"kl_coef": 0.3})
    lost = make_recipe(algorithm={"kl_coef": 0.3, "kl_in": "loss", "kl_estimator": "k3"})
    assert objective_of(rewarded).kl_coef == 0.0
    assert (objective_of(lost).kl_coef, objective_of(lost).kl_estimator) == (0.3, "k3")


def test_the_schedule_is_as_long_as_the_run(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(
        algorithm={"learning_rate": 1.0, "schedule": "cosine"},
        train={"iterations": 4, "updates": 3},
    )
    rate = learning_rate_of(recipe)
    assert rate.total_steps == 12
    assert rate.at(11) == pytest.approx(0.1)
    assert rate.at(10) > 0.1


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"agents": {"sovler_0": {}}}, r"\[agents\] names sovler_0; the agents are solver_0, "),
        ({"algorithm": {"advantage": "gae"}}, "advantage estimator 'gae' is not known"),
        ({"agents": {"coder_0": {"advantage": "gae"}}}, "advantage estimator 'gae'"),
        ({"algorithm": {"loss": "dpo"}}, "loss 'dpo' is not known; use one of: gspo, ppo_clip"),
        ({"algorithm": {"kl_in": "loss"}}, "the mean of its gradient is 0"),
        ({"train": {"samples": 2}}, "train.episodes is 3 and train.samples 2"),
        ({"algorithm": {"advantage": "grpo"}}, r"solver_0: .* 'grpo' .* train.samples is 1"),
        (
            {"algorithm": {"advantage": "rloo", "gamma": 0.5}, "train": {"samples": 3}},
            r"solver_0: .*algorithm.gamma is 0.5; it must be 1",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_run(
    make_recipe: MakeRecipe, tables: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        check_algorithms(make_recipe(**tables), AGENTS)


def test_groups_are_needed_only_where_an_agent_compares(make_recipe: MakeRecipe) -> None:
    check_algorithms(make_recipe(), AGENTS)
    check_algorithms(make_recipe(algorithm={"advantage": "grpo"}, train={"samples": 3}), AGENTS)
    assert advantage_of(make_recipe(algorithm={"advantage": "grpo"}), "coder_0") is grpo


FIRST_AGENT_ALONE = {agent: {"advantage": "reinforce++"} for agent in AGENTS[1:]}


@pytest.mark.parametrize("advantage", sorted(ADVANTAGES))
@pytest.mark.parametrize("loss", ["ppo_clip", "gspo"])
@pytest.mark.slow
def test_every_algorithm_trains(
    make_recipe: MakeRecipe, tmp_path: Path, advantage: str, loss: str
) -> None:
    recipe = make_recipe(
        algorithm={"advantage": advantage, "loss": loss},
        train={"iterations": 2, "episodes": 4, "samples": 2},
        agents={} if advantage == "magrpo" else FIRST_AGENT_ALONE,
    )
    assert train.start(recipe, tmp_path / "run", Console())
    rows = RunDirectory.open(tmp_path / "run").metrics()
    assert len(rows) == 2
    for row in rows:
        assert all(row[f"{agent}/actions"] == 4 for agent in AGENTS)
        assert all(row[f"{agent}/updates"] == 2 for agent in AGENTS)


def test_samples_of_a_task_start_alike_and_differ(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe(train={"iterations": 1, "episodes": 4, "samples": 2})
    assert train.start(recipe, tmp_path / "run", Console())
    episodes = RunDirectory.open(tmp_path / "run").episodes("train-0000")
    tasks = [episode["options"]["task"] for episode in episodes]
    assert tasks == [0, 1, 0, 1]
    first = [episode["actions"][0] for episode in episodes]
    assert first[0]["messages"] == first[2]["messages"] != first[1]["messages"]
    assert first[0]["action"] != first[2]["action"]


def test_an_agent_that_saw_others_cannot_be_compared(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    from mappa_trainer.errors import TrainingError

    recipe = make_recipe(
        algorithm={"advantage": "grpo"}, train={"iterations": 1, "episodes": 4, "samples": 2}
    )
    with pytest.raises(TrainingError, match=r"coder_0: at turn 1 .* different prompts"):
        train.start(recipe, tmp_path / "run", Console())


def test_the_algorithm_of_the_page_trains(
    make_recipe: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = re.search(r"```python\n# (my_algorithm)\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    assert len(block[2].splitlines()) <= 20
    (tmp_path / "my_algorithm.py").write_text(block[2])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_algorithm", raising=False)
    recipe = make_recipe(
        algorithm={
            "advantage": "my_algorithm:above_median",
            "loss": "my_algorithm:policy_gradient",
        },
        train={"iterations": 1},
    )
    assert train.start(recipe, tmp_path / "run", Console())
    (row,) = RunDirectory.open(tmp_path / "run").metrics()
    assert row["coder_0/updates"] == 2
