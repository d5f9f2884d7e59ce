"""What the trainer makes of a coach that fails, or runs out of money."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mappa_envs.coach.ledger import Payment
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.errors import CoachError
from mappa_envs.types import Assessment, Failure, Spent, Turn
from mappa_trainer import environment, team, train
from mappa_trainer.checkpoint import latest_checkpoint
from mappa_trainer.collect import Env, collect, plays
from mappa_trainer.console import Console
from mappa_trainer.errors import UnjudgedError
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory
from mappa_trainer.show import show_episode
from mappa_trainer.types import Transition

AGENTS = ["solver_0", "coder_0", "verifier_0"]
CLOCK = ("seconds/", "tokens_per_second/")
MakeRecipe = Callable[..., Recipe]
Coached = Callable[..., None]
PRICE = Spent(calls=1, input_tokens=100, output_tokens=10, usd=0.25)


@dataclass
class Faulty:
    """Scores by the action's length, and fails where it is told to, e.g. `{"train-3": ...}`."""

    failures: Mapping[str, Failure] = field(default_factory=dict)
    """By the id of a task, or by task and role as in `"train-3 coder"`."""
    spent: Spent | None = PRICE
    id: str = "faulty"

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        for place in (context.task_id, f"{context.task_id} {turn.role}"):
            if place in self.failures:
                failure = self.failures[place]
                raise CoachError(f"no luck: {failure}", failure=failure, spent=self.spent)
        score = (len(turn.action) + turn.step) % 11
        if context.outcome is not None:  # in hindsight
            score = 10 - score
        return Assessment(float(score), "by its length", spent=self.spent)


@pytest.fixture
def coached(monkeypatch: pytest.MonkeyPatch) -> Coached:
    """`coached(coach, ...)` has all environments of runs judged by that coach from then on."""

    def use(coach: Any, payment: Payment | None = None, **switches: bool) -> None:
        def make(recipe: Recipe) -> Env:
            bare = environment.make_env(recipe.model_copy(update={"coach": None}))
            return CoachWrapper(bare, coach, payment, **switches)

        monkeypatch.setattr(train, "make_env", make)

    return use


def history(path: Path) -> list[dict[str, Any]]:
    """The metrics of a run but for the clock."""
    return [
        {name: value for name, value in row.items() if not name.startswith(CLOCK)}
        for row in RunDirectory.open(path).metrics()
    ]


def assert_same_run(one: Path, other: Path) -> None:
    assert history(one) == history(other)
    (mine, done), (theirs, also_done) = (latest_checkpoint(path) for path in (one, other))
    assert done == also_done
    for agent in AGENTS:
        weights, others = (load_file(c / agent / "model.safetensors") for c in (mine, theirs))
        assert all(torch.equal(weights[name], others[name]) for name in weights)
    runs = [RunDirectory.open(path) for path in (one, other)]
    assert runs[0].episode_names() == runs[1].episode_names()
    for name in runs[0].episode_names():
        assert runs[0].episodes(name) == runs[1].episodes(name)


def events(path: Path) -> dict[str, list[float]]:
    found = EventAccumulator(str(path / "tensorboard"))
    found.Reload()
    return {tag: [e.value for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.slow
def test_a_run_that_learned_too_little_of_an_iteration_stops_before_it_trains_and_can_go_on(
    make_recipe: MakeRecipe, tmp_path: Path, coached: Coached
) -> None:
    recipe = make_recipe(train={"iterations": 3, "updates": 1})
    coached(Faulty())
    assert train.start(recipe, tmp_path / "sound", Console())

    path = tmp_path / "failing"
    coached(
        Faulty({"train-3": "unreachable", "train-4": "unreachable", "train-5 coder": "unparsable"})
    )
    with pytest.raises(UnjudgedError) as caught:
        train.start(recipe, path, Console())
    for words in (
        "train-0001: 78% of 9 actions are unscored, more than train.max_unscored = 0.5",
        "7 unscored: 6 unreachable, 1 unparsable ('no luck: unreachable')",
        f"{path}/episodes/train-0001.jsonl",
        f"mappa train --resume {path}",
    ):
        assert words in str(caught.value)
    assert caught.value.exit_code != 0
    assert latest_checkpoint(path)[1] == 1  # though save_every is 2
    assert history(path) == history(tmp_path / "sound")[:1]
    kept = RunDirectory.open(path).episodes("train-0001")
    assert [a["reward"] is None for a in kept[2]["actions"]] == [False, True, False]

    coached(Faulty())
    assert train.resume(path, Console())
    assert_same_run(path, tmp_path / "sound")
    phases = [row["phase"] for row in RunDirectory.open(path).costs() if row["agent"] == "coder_0"]
    assert phases.count("train-0001") == 2  # what the failed iteration cost is not forgotten
    assert phases.count("train-0002") == 1


def test_a_share_at_the_limit_is_trained_on_and_counted(
    make_recipe: MakeRecipe,
    tmp_path: Path,
    coached: Coached,
    capsys: pytest.CaptureFixture[str],
) -> None:
    coached(Faulty({"train-0": "unreachable", "train-1 verifier": "out_of_range"}))
    recipe = make_recipe(train={"iterations": 1, "max_unscored": 4 / 9})
    assert train.start(recipe, tmp_path / "run", Console())
    (row,) = history(tmp_path / "run")
    assert row["unscored_share"] == 4 / 9
    assert row["unscored/unreachable"] == 3
    assert row["unscored/out_of_range"] == 1
    assert row["solver_0/unscored_share"] == 1 / 3
    assert row["verifier_0/unscored_share"] == 2 / 3
    assert row["verifier_0/actions"] == 1
    assert row["verifier_0/dropped_unscored"] == 2
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("iteration"))
    assert "  4 unscored: 3 unreachable, 1 out_of_range  coach $2.25, 9 calls  (" in line


def test_where_the_limit_is_0_one_unscored_action_stops_the_run(
    make_recipe: MakeRecipe, tmp_path: Path, coached: Coached
) -> None:
    coached(Faulty({"train-0 coder": "refused"}))
    with pytest.raises(UnjudgedError, match="11% of 9 actions are unscored"):
        train.start(make_recipe(train={"max_unscored": 0}), tmp_path / "run", Console())
    assert latest_checkpoint(tmp_path / "run")[1] == 0


def test_one_action_over_budget_stops_the_run_whatever_the_share(
    make_recipe: MakeRecipe, tmp_path: Path, coached: Coached
) -> None:
    coached(Faulty({"train-2 verifier": "over_budget"}))
    path = tmp_path / "run"
    with pytest.raises(UnjudgedError) as caught:
        train.start(make_recipe(train={"max_unscored": 1.0}), path, Console())
    for words in (
        "train-0000: the coach's budget is spent, 1 of 9 actions were not judged for it",
        f"raise coach.budget_usd in {path}/config.json",
        f"mappa train --resume {path}",
    ):
        assert words in str(caught.value)
    assert history(path) == []
    assert latest_checkpoint(path)[1] == 0


def test_a_budget_that_runs_out_in_an_evaluation_stops_the_run_too(
    make_recipe: MakeRecipe, tmp_path: Path, coached: Coached
) -> None:
    coached(Faulty({"test-1 solver": "over_budget"}))
    with pytest.raises(UnjudgedError, match=r"eval-0000-sampled: the coach's budget is spent"):
        train.start(make_recipe(), tmp_path / "run", Console())
    assert RunDirectory.open(tmp_path / "run").episode_names() == ["eval-0000-sampled"]
    assert latest_checkpoint(tmp_path / "run")[1] == 0


def test_an_evaluation_that_nobody_judged_still_has_its_outcomes(
    make_recipe: MakeRecipe,
    tmp_path: Path,
    coached: Coached,
    capsys: pytest.CaptureFixture[str],
) -> None:
    coached(Faulty({"test-0": "unreachable", "test-1": "rate_limited"}))
    assert train.start(make_recipe(train={"iterations": 1}), tmp_path / "run", Console())
    assert "\n6 unscored: 3 unreachable, 3 rate_limited\n" in capsys.readouterr().out
    found = events(tmp_path / "run")
    assert found["eval_sampled/outcome"] == [0.0, 0.0]  # before and after
    assert found["eval_sampled/unscored_share"] == [1.0, 1.0]
    assert found["eval_sampled/unscored/rate_limited"] == [3.0, 3.0]
    assert found["unscored_share"] == [0.0]


def test_what_judging_costs_is_counted_by_agent_iteration_and_run(
    make_recipe: MakeRecipe,
    tmp_path: Path,
    coached: Coached,
    capsys: pytest.CaptureFixture[str],
) -> None:
    coached(Faulty())
    path = tmp_path / "run"
    assert train.start(make_recipe(train={"iterations": 1}), path, Console())
    (row,) = history(path)
    assert row["coach/calls"] == 9
    assert row["coach/input_tokens"] == 900
    assert row["coach/output_tokens"] == 90
    assert row["coach/usd"] == 2.25
    assert row["coder_0/coach_usd"] == 0.75
    assert row["coder_0/coach_input_tokens"] == 300
    assert events(path)["eval_coach/usd"] == [1.5, 1.5]
    first = RunDirectory.open(path).costs()[0]
    assert first == {
        "phase": "eval-0000-sampled",
        "agent": "solver_0",
        "calls": 2,
        "input_tokens": 200,
        "output_tokens": 20,
        "usd": 0.5,
    }
    total = "the whole run: coach $5.25, 21 calls, 2,100 tokens in, 210 out"
    assert total in capsys.readouterr().out
    show_episode(path, 0, None)
    shown = capsys.readouterr().out
    assert "this episode: coach $0.75, 3 calls" in shown
    assert total in shown
    assert "solver_0 $1.75, 7 calls  coder_0 $1.75, 7 calls" in shown


def test_of_a_coach_that_asks_no_model_no_cost_is_told(finished_run: Path) -> None:
    row = history(finished_run)[0]
    assert row["unscored_share"] == row["coder_0/unscored_share"] == 0.0
    assert not [name for name in row if "coach" in name]
    assert RunDirectory.open(finished_run).costs() == []
    assert not (finished_run / "costs.jsonl").exists()


@pytest.mark.parametrize("pays", ["first", "hindsight"])
def test_both_looks_are_measured_and_the_one_that_pays_is_the_reward(
    make_recipe: MakeRecipe, tmp_path: Path, coached: Coached, pays: Any
) -> None:
    coached(Faulty(), Payment(pays=pays), hindsight=True)
    assert train.start(make_recipe(train={"iterations": 1}), tmp_path / "run", Console())
    (row,) = history(tmp_path / "run")
    for agent in AGENTS:
        first, second = row[f"{agent}/score"], row[f"{agent}/hindsight_score"]
        assert second == pytest.approx(10 - first)
        paid = first if pays == "first" else second
        assert row[f"{agent}/reward"] == pytest.approx(paid / 10)
    assert row["coach/calls"] == 18
    assert "eval_sampled/coder_0/hindsight_score" in events(tmp_path / "run")


def test_a_coach_that_is_asked_later_gives_the_same_transitions(
    make_recipe: MakeRecipe, coached: Coached
) -> None:
    recipe = make_recipe()
    policies = team.build_team(recipe, AGENTS).policies
    sampling = team.sampling_of(recipe, AGENTS, 1.0)

    def played(**switches: bool) -> list[Transition]:
        coached(Faulty({"train-1 coder": "truncated"}), Payment(1.0, 0.5), **switches)
        envs = [train.make_env(recipe) for _ in range(2)]
        episodes = collect(envs, plays(0, "train", 0, 3, "train"), policies, sampling)
        for env in envs:
            env.close()
        return [transition for episode in episodes for transition in episode.transitions]

    at_once, later = played(), played(deferred=True)
    assert at_once == later
    lengths = [len(t.generation.text) for t in later]
    scores = [(length + place % 3) % 11 for place, length in enumerate(lengths)]
    rewards = [pytest.approx(score / 10) for score in scores]  # no outcome: noise is never right
    assert [t.reward for t in later] == [*rewards[:4], None, *rewards[5:]]
