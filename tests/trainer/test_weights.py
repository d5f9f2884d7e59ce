from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from mappa_trainer import train
from mappa_trainer.adapters import select
from mappa_trainer.checkpoint import latest_checkpoint, players_of, save_checkpoint
from mappa_trainer.collect import collect, plays
from mappa_trainer.console import Console
from mappa_trainer.environment import make_env
from mappa_trainer.errors import CheckpointError, ModelError, RecipeError
from mappa_trainer.export import export
from mappa_trainer.models import load_model
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory
from mappa_trainer.team import Team, build_team, load_policies, sampling_of
from mappa_trainer.update import update_learner
from mappa_trainer.weights import Weights, plan_weights

AGENTS = ["solver_0", "coder_0", "verifier_0"]
LORA = {"tuning": "lora", "lora": {"rank": 4, "alpha": 8}}
MIXED = {
    "solver_0": {"tuning": "lora"},
    "coder_0": {"tuning": "full"},
    "verifier_0": {"tuning": "frozen"},
}
MakeRecipe = Callable[..., Recipe]
Parameters = dict[str, torch.Tensor]


def parameters(model: torch.nn.Module) -> Parameters:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def base_of(model: torch.nn.Module) -> Parameters:
    """The parameters that are no adapter's, by the names they have without adapters."""
    found = parameters(model)
    return {n.replace(".base_layer", ""): p for n, p in found.items() if ".lora_" not in n}


def same(one: Parameters, other: Parameters) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(value, other[name]) for name, value in one.items())


def step(team: Team, recipe: Recipe, iteration: int = 0) -> dict[str, float]:
    """Play three episodes and train everything that is trained."""
    env = make_env(recipe)
    sampling = sampling_of(recipe, AGENTS, 1.0)
    todo = plays(0, "train", 3 * iteration, 3, "train")
    episodes = collect([env], todo, team.policies, sampling)
    env.close()
    metrics: dict[str, float] = {}
    for weights in team.weights:
        if weights.name in team.learners:
            metrics |= update_learner(
                recipe,
                team.worker(weights.name),
                episodes,
                weights.agents,
                iteration,
            )
            team.sync(weights.name)
    return metrics


def test_every_agent_has_weights_of_its_own(make_recipe: MakeRecipe) -> None:
    assert plan_weights(make_recipe(), AGENTS) == [Weights(a, (a,), "full") for a in AGENTS]


def test_agents_that_give_one_name_share_their_weights(make_recipe: MakeRecipe) -> None:
    agents = {"solver_0": {"weights": "thinker"}, "verifier_0": {"weights": "thinker"}}
    assert plan_weights(make_recipe(agents=agents, model=LORA), AGENTS) == [
        Weights("thinker", ("solver_0", "verifier_0"), "lora"),
        Weights("coder_0", ("coder_0",), "lora"),
    ]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"model": {"tuning": "frozen"}}, "nothing would be trained"),
        (
            {
                "agents": {
                    "solver_0": {"weights": "one", "tuning": "lora"},
                    "coder_0": {"weights": "one"},
                }
            },
            "share the weights 'one' differ in tuning: solver_0 'lora', coder_0 'full'",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(
    make_recipe: MakeRecipe, tables: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        plan_weights(make_recipe(**tables), AGENTS)


def test_a_name_of_weights_is_a_folders(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RecipeError, match=r"agents.solver_0.weights"):
        make_recipe(agents={"solver_0": {"weights": "../one"}})


def test_adapters_change_nothing_at_first_and_the_base_never(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(model=LORA)
    team = build_team(recipe, AGENTS)
    base = base_of(team.reference.model)
    assert len({id(learner.model) for learner in team.learners.values()}) == 1
    first = step(team, recipe)
    for agent in AGENTS:
        assert first[f"{agent}/kl"] == pytest.approx(0.0, abs=1e-6)
        assert first[f"{agent}/logprob_gap_max"] < 1e-5
    assert max(first[f"{agent}/grad_norm"] for agent in AGENTS) > 0
    second = step(team, recipe, 1)
    assert max(abs(second[f"{agent}/kl"]) for agent in AGENTS) > 1e-6
    for agent in AGENTS:
        assert second[f"{agent}/logprob_gap_max"] < 1e-5
        assert second[f"{agent}/first_ratio_deviation"] == 0
    assert same(base_of(team.reference.model), base)


def test_nothing_is_drawn_from_the_global_generators(make_recipe: MakeRecipe) -> None:
    def states() -> list[Any]:
        numpy_state = np.random.get_state(legacy=True)
        numbers = [part.tolist() if isinstance(part, np.ndarray) else part for part in numpy_state]
        return [random.getstate(), numbers, torch.get_rng_state().tolist()]

    before = states()
    recipe = make_recipe(agents=MIXED, train={"samples": 3})
    step(build_team(recipe, AGENTS), recipe)
    assert states() == before


def test_adapters_may_be_called_like_layers(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    names = ("q_proj", "norm", "mlp")
    agents = {agent: {"weights": name} for agent, name in zip(AGENTS, names, strict=True)}
    recipe = make_recipe(agents=agents, model={**LORA, "sampler_precision": "bfloat16"})
    team = build_team(recipe, AGENTS)
    step(team, recipe)
    folder = save_checkpoint(tmp_path, 1, team.learners, team.tokenizer, 1, team.players)
    again = build_team(recipe, AGENTS, folder)
    assert same(parameters(again.reference.model), parameters(team.reference.model))
    engine = parameters(again.engines["mlp"].model)
    assert same(engine, parameters(team.engines["mlp"].model))


def test_moments_move_and_the_steps_stay_the_same(
    make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move to another device is a copy, which is all that a processor alone can show."""
    moves: list[str] = []
    to = torch.Tensor.to

    def copied(tensor: torch.Tensor, *target: Any, **options: Any) -> torch.Tensor:
        if tensor.requires_grad or not target or not isinstance(target[0], torch.device):
            return to(tensor, *target, **options)
        moves.append(str(target[0]))
        return to(tensor, *target, **options).clone()

    found = []
    for offload in (False, True):
        recipe = make_recipe(model={"offload_optimizer": offload})
        team = build_team(recipe, AGENTS)
        step(team, recipe)
        moments = team.learners["coder_0"].state()["model.norm.weight.exp_avg"]
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "to", copied)
            team.learners["coder_0"].rest()
        moved = team.learners["coder_0"].state()["model.norm.weight.exp_avg"]
        assert (moved is not moments) == offload
        step(team, recipe, 1)
        found.append(parameters(team.learners["coder_0"].model))
    assert set(moves) == {"cpu"}
    assert same(found[0], found[1])


def test_each_adapter_is_trained_by_its_own_learner_alone(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(model=LORA)
    team = build_team(recipe, AGENTS)
    before = parameters(team.reference.model)
    own = {n for n in before if "<coder_0>" in n}
    env = make_env(recipe)
    episodes = collect(
        [env], plays(0, "train", 0, 3, "train"), team.policies, sampling_of(recipe, AGENTS, 1.0)
    )
    env.close()
    update_learner(recipe, team.worker("coder_0"), episodes, ["coder_0"], 0)
    after = parameters(team.reference.model)
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert own
    assert moved == own


def test_a_bfloat16_engine_shares_one_copy_of_the_base(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(model={**LORA, "sampler_precision": "bfloat16"})
    team = build_team(recipe, AGENTS)
    assert len({id(engine.model) for engine in team.engines.values()}) == 1
    assert team.engines["coder_0"].model is not team.reference.model
    for iteration in range(2):
        metrics = step(team, recipe, iteration)
        assert 0 < metrics["coder_0/logprob_gap"] < 0.05
    engine, learner = (parameters(m) for m in (team.engines["coder_0"].model, team.reference.model))
    for name, value in learner.items():
        assert torch.equal(engine[name], value.bfloat16()), name


def test_agents_that_share_weights_train_them_together(make_recipe: MakeRecipe) -> None:
    shared = {agent: {"weights": "one"} for agent in AGENTS}
    recipe = make_recipe(agents=shared)
    team = build_team(recipe, AGENTS)
    assert list(team.learners) == ["one"]
    assert len({id(policy.engine) for policy in team.policies.values()}) == 1
    metrics = step(team, recipe)
    assert metrics["solver_0/updates"] == metrics["verifier_0/updates"] == 2
    assert metrics["solver_0/loss"] == metrics["verifier_0/loss"]
    assert metrics["solver_0/reward"] != metrics["verifier_0/reward"]
    assert team.learners["one"].step == 2


def run(recipe: Recipe, path: Path) -> Path:
    assert train.start(recipe, path, Console())
    return path


def final(path: Path, recipe: Recipe) -> Parameters:
    checkpoint, _ = latest_checkpoint(path)
    team = build_team(recipe, AGENTS, checkpoint)
    return {
        f"{name}/{key}": value
        for name, learner in team.learners.items()
        for key, value in parameters(learner.model).items()
    }


@pytest.mark.parametrize(
    "tables",
    [
        {"model": LORA},
        {"agents": MIXED},
        {"agents": {agent: {"weights": "one"} for agent in AGENTS}},
        {"model": {"offload_optimizer": True}},
    ],
    ids=["lora", "mixed", "shared", "offload"],
)
@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_weights(
    make_recipe: MakeRecipe, tmp_path: Path, tables: dict[str, Any]
) -> None:
    recipe = make_recipe(**tables)
    whole = run(recipe, tmp_path / "whole")
    half = run(make_recipe(**tables, train={"iterations": 2}), tmp_path / "half")
    config = half / "config.json"
    config.write_text((whole / "config.json").read_text())
    assert train.resume(half, Console())
    assert same(final(half, recipe), final(whole, recipe))
    untrained = build_team(recipe, AGENTS)
    for name, learner in untrained.learners.items():
        start = {f"{name}/{key}": v for key, v in parameters(learner.model).items()}
        assert not same(start, {k: v for k, v in final(whole, recipe).items() if k in start})


@pytest.fixture(scope="module")
def mixed(make_recipe: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = make_recipe(agents=MIXED, train={"iterations": 2})
    return run(recipe, tmp_path_factory.mktemp("mixed") / "run")


def test_a_checkpoint_has_what_is_trained(mixed: Path) -> None:
    checkpoint, _ = latest_checkpoint(mixed)
    assert players_of(checkpoint) == {
        "solver_0": "solver_0",
        "coder_0": "coder_0",
        "verifier_0": None,
    }
    assert sorted(path.name for path in checkpoint.iterdir()) == [
        "coder_0",
        "complete.json",
        "solver_0",
        "state",
    ]
    assert (checkpoint / "solver_0" / "adapter_model.safetensors").stat().st_size < 1_000_000


def test_frozen_actions_are_counted(mixed: Path) -> None:
    row = RunDirectory.open(mixed).metrics()[-1]
    assert row["verifier_0/dropped_frozen"] == row["verifier_0/dropped"] == 3
    assert row["verifier_0/actions"] == 0
    assert row["coder_0/actions"] == 3


def test_an_adapter_loads_with_peft_alone(mixed: Path, tiny_model: Path) -> None:
    checkpoint, _ = latest_checkpoint(mixed)
    found = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_model), checkpoint / "solver_0"
    )
    ids = torch.tensor([[5, 6, 7, 8]])
    policy = load_policies(RunDirectory.open(mixed).recipe(), AGENTS, checkpoint)["solver_0"]
    select(policy.engine.model, "solver_0")  # type: ignore[attr-defined]
    assert torch.allclose(found(ids).logits, policy.engine.model(ids).logits, atol=1e-5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("agent", ["solver_0", "coder_0"])
def test_an_export_is_a_model_of_plain_transformers(
    mixed: Path, tmp_path: Path, agent: str
) -> None:
    folder = export(mixed, agent, tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[5, 6, 7, 8]])
    checkpoint, _ = latest_checkpoint(mixed)
    recipe = RunDirectory.open(mixed).recipe()
    learner = build_team(recipe, AGENTS, checkpoint).learners[agent]
    found = learner.logprobs([((5, 6), (7, 8))])[0]
    wanted = plain(ids).logits.log_softmax(-1)[0, [1, 2], [7, 8]]
    assert torch.allclose(found, wanted, atol=1e-5)
    base = load_model(Path(recipe.model.base))
    assert not torch.allclose(base(ids).logits, plain(ids).logits, atol=1e-5)
    card = (folder / "README.md").read_text()
    assert f"# {agent} of tiny" in card
    assert "| outcome | " in card
    assert "| Coach | rubric |" in card


def test_an_export_says_what_is_wrong(mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'solver'; the agents are solver_0, coder_0"):
        export(mixed, "solver", None)
    with pytest.raises(CheckpointError, match="verifier_0 plays the base as it is"):
        export(mixed, "verifier_0", None)
    with pytest.raises(CheckpointError, match="exists already"):
        export(mixed, "solver_0", tmp_path)
    assert list(tmp_path.iterdir()) == []
    damaged = tmp_path / "damaged"
    shutil.copytree(mixed, damaged)
    (latest_checkpoint(damaged)[0] / "coder_0" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="coder_0: cannot be loaded"):
        export(damaged, "coder_0", tmp_path / "out" / "coder")
    assert list(tmp_path.iterdir()) == [damaged]
