from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mappa_trainer import train
from mappa_trainer.checkpoint import latest_checkpoint
from mappa_trainer.collect import collect, plays
from mappa_trainer.console import Console
from mappa_trainer.environment import make_env
from mappa_trainer.errors import RecipeError, TrainingError
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory
from mappa_trainer.stop import Stopped, StopSignal
from mappa_trainer.team import build_team, sampling_of
from mappa_trainer.update import update_learner

AGENTS = ["solver_0", "coder_0", "verifier_0"]
MakeRecipe = Callable[..., Recipe]


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_one_agent_leaves_the_others_and_the_reference_alone(
    make_recipe: MakeRecipe, precision: str
) -> None:
    recipe = make_recipe(model={"sampler_precision": precision})
    env = make_env(recipe)
    team = build_team(recipe, AGENTS)
    base = weights(team.reference.model)
    sampling = sampling_of(recipe, AGENTS, 1.0)
    episodes = collect([env], plays(0, "train", 0, 3, "train"), team.policies, sampling)
    env.close()
    metrics = update_learner(recipe, team.worker("coder_0"), episodes, ["coder_0"], 0)
    assert metrics["coder_0/grad_norm"] > 0
    coder = weights(team.learners["coder_0"].model)
    for agent in ("solver_0", "verifier_0"):
        assert same(weights(team.learners[agent].model), base)
    assert same(weights(team.reference.model), base)
    assert not same(coder, base)

    team.sync("coder_0")
    dtype = getattr(torch, precision)
    engine = weights(team.engines["coder_0"].model)
    assert same(engine, {name: value.to(dtype) for name, value in coder.items()})
    engine = weights(team.engines["solver_0"].model)
    assert same(engine, {name: value.to(dtype) for name, value in base.items()})


def test_every_iteration_plays_new_tasks_and_every_agent_takes_the_same_steps(
    finished_run: Path,
) -> None:
    run = RunDirectory.open(finished_run)
    for iteration, row in enumerate(run.metrics()):
        episodes = run.episodes(f"train-{iteration:04d}")
        tasks = [episode["options"] for episode in episodes]
        assert tasks == [{"split": "train", "task": 3 * iteration + i} for i in range(3)]
        assert [episode["index"] for episode in episodes] == [0, 1, 2]
        for agent in AGENTS:
            assert row[f"{agent}/updates"] == 2
            assert row[f"{agent}/actions"] == 3
            assert row[f"{agent}/dropped"] == 0
            assert row[f"{agent}/first_ratio_deviation"] <= 1e-6
            assert row[f"{agent}/logprob_gap"] < 1e-4
    names = [name for name in run.episode_names() if name.startswith("train")]
    assert names == [f"train-{i:04d}" for i in range(4)]
    assert list((finished_run / "tensorboard").glob("events*"))


def test_metrics_are_those_of_the_stored_episodes(finished_run: Path) -> None:
    run = RunDirectory.open(finished_run)
    for row in run.metrics():
        episodes = run.episodes(f"train-{row['iteration']:04d}")
        scores = [
            [a["ledger"]["score"] for e in episodes for a in e["actions"] if a["agent"] == agent]
            for agent in AGENTS
        ]
        for agent, own in zip(AGENTS, scores, strict=True):
            assert row[f"{agent}/score"] == pytest.approx(sum(own) / 3)
            assert row[f"{agent}/reward"] == pytest.approx(sum(own) / 30)
        paid = sum(sum(episode["returns"].values()) for episode in episodes)
        assert row["episode_return"] == pytest.approx(paid / 3)
        assert paid == pytest.approx(sum(map(sum, scores)) / 10)


def test_every_evaluation_plays_the_same_held_out_problems(finished_run: Path) -> None:
    run = RunDirectory.open(finished_run)
    names = [name for name in run.episode_names() if name.startswith("eval")]
    assert names == ["eval-0000-sampled", "eval-0002-sampled", "eval-0004-sampled"]
    played = [
        [(e["seed"], e["options"], e["task"]["id"]) for e in run.episodes(name)] for name in names
    ]
    assert played[0] == played[1] == played[2]
    assert [task for _, _, task in played[0]] == ["test-0", "test-1"]
    trained = {e["seed"] for name in run.training_names() for e in run.episodes(name)}
    assert trained.isdisjoint(seed for seed, _, _ in played[0])
    assert len(trained) == 12


def test_greedy_actions_are_evaluated_where_the_recipe_says_so(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    recipe = make_recipe(train={"iterations": 1}, eval={"greedy": True})
    assert train.start(recipe, tmp_path / "run", Console())
    run = RunDirectory.open(tmp_path / "run")
    for after in ("0000", "0001"):
        assert len(run.episodes(f"eval-{after}-sampled")) == 2
        assert len(run.episodes(f"eval-{after}-greedy")) == 2
    assert latest_checkpoint(run.path)[1] == 1


def test_actions_are_trained_on_by_the_weights_that_took_them(finished_run: Path) -> None:
    rows = RunDirectory.open(finished_run).metrics()
    for agent in AGENTS:
        assert max(row[f"{agent}/logprob_gap_max"] for row in rows) < 1e-4
    assert max(abs(rows[-1][f"{agent}/kl"]) for agent in AGENTS) > 0.01  # the weights have moved


def test_an_engine_with_a_copy_of_the_weights_follows_every_update(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    recipe = make_recipe(
        model={"sampler_precision": "bfloat16"},
        algorithm={"learning_rate": 0.01},
        train={"iterations": 2},
    )
    assert train.start(recipe, tmp_path / "run", Console())
    first, second = RunDirectory.open(tmp_path / "run").metrics()
    for agent in AGENTS:
        assert first[f"{agent}/kl"] == pytest.approx(0.0, abs=1e-6)
        assert second[f"{agent}/logprob_gap"] < 0.02
    assert max(abs(second[f"{agent}/kl"]) for agent in AGENTS) > 0.05  # the weights have moved


def test_an_iteration_without_anything_to_train_on_is_an_error(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    recipe = make_recipe(sampling={"max_new_tokens": 8192})  # all of the model's context
    with pytest.raises(TrainingError, match=r"nothing to train on.*coder_0/dropped_prompt_too"):
        train.start(recipe, tmp_path / "run", Console())
    assert RunDirectory.open(tmp_path / "run").metrics() == []


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"sampling": {"max_new_tokens_of": {"codr_0": 5}}}, "names .'codr_0'.; the agents are"),
        ({"algorithm": {"loss": "ppo"}}, "loss 'ppo' is not known"),
        ({"algorithm": {"advantage": "no.such:thing"}}, "advantage estimator 'no.such:thing'"),
        ({"env": {"module": "no_such_module"}}, "env.module 'no_such_module' cannot be imported"),
        ({"env": {"module": ".relative"}}, "env.module '.relative' cannot be imported"),
        ({"env": {"module": ""}}, "env.module '' cannot be imported"),
        ({"env": {"id": "mappa/Chess-v0"}}, "env.id 'mappa/Chess-v0'"),
        ({"env": {"id": "not an id"}}, "env.id 'not an id'"),
    ],
)
def test_what_the_recipe_gets_wrong_is_said_before_anything_is_made(
    make_recipe: MakeRecipe, tmp_path: Path, tables: dict[str, Any], words: str
) -> None:
    with pytest.raises(RecipeError, match=words) as caught:
        train.start(make_recipe(**tables), tmp_path / "run", Console())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def handler() -> Iterator[Any]:
    before = signal.getsignal(signal.SIGINT)
    yield before
    assert signal.getsignal(signal.SIGINT) is before


def test_the_first_interrupt_asks_and_the_second_insists(handler: Any) -> None:
    said = Said()
    with StopSignal(said) as stop:
        stop.check()
        signal.raise_signal(signal.SIGINT)
        assert len(said.lines) == 1
        with pytest.raises(Stopped):
            stop.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(said.lines) == 1
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_iteration_whose_updates_have_begun_is_finished(
    make_recipe: MakeRecipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*arguments: Any) -> Any:
        if arguments[3:5] == (("solver_0",), 0):
            signal.raise_signal(signal.SIGINT)
        return update_learner(*arguments)

    monkeypatch.setattr(train, "update_learner", interrupted)
    path = tmp_path / "run[/x]"
    assert not train.start(make_recipe(), path, Console())
    assert latest_checkpoint(path)[1] == 1
    (row,) = RunDirectory.open(path).metrics()
    assert all(row[f"{agent}/updates"] == 2 for agent in AGENTS)
    assert f"go on with: mappa train --resume {path}\n" in capsys.readouterr().out


def test_a_second_interrupt_ends_training_at_once(
    make_recipe: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: Any
) -> None:
    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(train, "update_learner", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train.start(make_recipe(), tmp_path / "run", Console())
    assert not (tmp_path / "run" / "checkpoints").exists()
