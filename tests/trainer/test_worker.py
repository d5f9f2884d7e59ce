from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mappa_trainer.cluster.worker import LearnerWorker
from mappa_trainer.collect import collect, plays
from mappa_trainer.environment import make_env
from mappa_trainer.recipe import Recipe
from mappa_trainer.sharding import Ranks, join_ranks
from mappa_trainer.team import Team, build_team, build_worker, sampling_of
from mappa_trainer.types import Episode
from mappa_trainer.update import Metrics, update_learner
from mappa_trainer.weights import Weights

AGENTS = ["solver_0", "coder_0", "verifier_0"]
MakeRecipe = Callable[..., Recipe]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """A group of this process alone, whose weights are sharded all the same."""
    surroundings = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    with join_ranks() as ranks:
        yield ranks


def play(recipe: Recipe, team: Team) -> list[Episode]:
    env = make_env(recipe)
    sampling = sampling_of(recipe, AGENTS, 1.0)
    episodes = collect([env], plays(0, "train", 0, 3, "train"), team.policies, sampling)
    env.close()
    return episodes


def train(recipe: Recipe, worker: LearnerWorker, episodes: Sequence[Episode]) -> Metrics:
    return update_learner(recipe, worker, episodes, ["coder_0"], 0)


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_worker_of_a_group_does_what_the_one_of_the_team_does(
    make_recipe: MakeRecipe, group: Ranks, tmp_path: Path, tuning: str
) -> None:
    # with a smaller rate, rounding that Adam blows up where a gradient is all but 0 is small too
    recipe = make_recipe(model={"tuning": tuning}, algorithm={"learning_rate": 1e-4})
    team = build_team(recipe, AGENTS)
    episodes = play(recipe, team)
    weights = Weights("coder_0", ("coder_0",), tuning)  # type: ignore[arg-type]
    worker = build_worker(recipe, weights, ranks=group)
    wanted = train(recipe, team.worker("coder_0"), episodes)
    assert train(recipe, worker, episodes) == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert wanted["coder_0/grad_norm"] > 0
    saved = []
    for name, one in (("group", worker), ("alone", team.worker("coder_0"))):
        folder = tmp_path / name / "coder_0"
        one.save(folder, tmp_path / name / "state" / "coder_0", team.tokenizer)
        (file,) = folder.glob("*.safetensors")
        saved.append(load_file(file))
    assert saved[0].keys() == saved[1].keys()
    for name, value in saved[1].items():
        torch.testing.assert_close(saved[0][name], value, atol=1e-6, rtol=0)
    again = build_worker(recipe, weights, tmp_path / "group")
    assert train(recipe, again, []) == {"coder_0/actions": 0, "coder_0/dropped": 0}
    whole = again.weights()
    assert all(torch.equal(value, whole[name]) for name, value in worker.weights().items())
