from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pettingzoo
import pytest
from stored_rows import Row, action_of, write_run

from mappa_envs.audit.rejudging import Rejudged, agreements, rejudge
from mappa_envs.audit.remade import remade_env
from mappa_envs.audit.stored import StoredRun
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.commands.coach_option import coach_table
from mappa_envs.errors import AuditError, CoachError, CommandError, ScenarioError
from mappa_envs.play import play
from mappa_envs.records import outcome_record
from mappa_envs.teams import ScenarioTeam
from mappa_envs.types import Assessment, Turn

CONFIG: Mapping[str, Any] = {"env": {"id": "mappa/MathChat-v0", "module": "mappa_envs"}}


class Seen:
    """A coach that notes what it is told."""

    id = "seen"

    def __init__(self, truth_roles: tuple[str, ...] = ()) -> None:
        self.truth_roles = truth_roles
        self.told: list[tuple[Turn, CoachContext]] = []

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        self.told.append((turn, context))
        if turn.role == "coder":
            raise CoachError("no", failure="refused")
        return Assessment(float(len(context.history)), "so")


def played(coach: Any, seed: int) -> tuple[Row, list[tuple[Turn, CoachContext]]]:
    """A scripted episode as it is stored, and what its coach was told."""
    env = pettingzoo.make("aec", "mappa/MathChat-v0", coach=coach)
    options = {"split": "train", "task": seed}
    play(env, ScenarioTeam(env), seed=seed, options=options)
    base = env.unwrapped
    row = {
        "index": 0,
        "seed": seed,
        "options": options,
        "task": {"id": base.task.id},
        "outcome": outcome_record(base.episode),
        "actions": [action_of(turn, score=2.0) for turn in base.turns],
    }
    env.close()
    return json.loads(json.dumps(row)), coach.told


def stored(folder: Path, rows: list[Row], config: Mapping[str, Any] = CONFIG) -> StoredRun:
    run = write_run(folder, {"train-0000": rows})
    (run / "config.json").write_text(json.dumps(config))
    return StoredRun.open(run)


def in_order(told: list[tuple[Turn, CoachContext]]) -> list[tuple[Turn, CoachContext]]:
    return sorted(told, key=lambda each: each[0].step)


@pytest.mark.parametrize("truth_roles", [(), ("verifier", "solver")])
def test_a_second_coach_is_told_what_it_would_have_been_told_at_play(
    truth_roles: tuple[str, ...], tmp_path: Path
) -> None:
    row, at_play = played(Seen(truth_roles), seed=3)
    run = stored(tmp_path / "run", [row])
    with remade_env(run, {"kind": "rubric"}) as env:
        env.coach = again = Seen(truth_roles)
        found = asyncio.run(rejudge(run, env))
    assert in_order(again.told) == at_play
    assert [(each.episode, each.role, each.first, each.second, each.failure) for each in found] == [
        (0, "solver", 2.0, 0.0, None),
        (0, "coder", 2.0, None, "refused"),
        (0, "coder", 2.0, None, "refused"),
        (0, "verifier", 2.0, 3.0, None),
    ]


def test_unscored_actions_are_not_judged_again(tmp_path: Path) -> None:
    row, _ = played(Seen(), seed=3)
    row["actions"][0]["ledger"] = {"status": "unscored", "score": None}
    run = stored(tmp_path / "run", [row])
    done: list[int] = []
    with remade_env(run, {"kind": "rubric"}) as env:
        found = asyncio.run(rejudge(run, env, done.append))
    assert [each.role for each in found] == ["coder", "coder", "verifier"]
    assert done == [1]


def test_a_task_that_is_another_one_now_is_named(tmp_path: Path) -> None:
    row, _ = played(Seen(), seed=3)
    row["task"]["id"] = "train-99"
    run = stored(tmp_path / "run", [row])
    with (
        remade_env(run, {"kind": "rubric"}) as env,
        pytest.raises(AuditError, match=r"line 1: was played on task 'train-99'.*'train-3' now"),
    ):
        asyncio.run(rejudge(run, env))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "names no env.id"),
        ({"env": {"id": "mappa/Chess-v0"}}, "'mappa/Chess-v0' of .* cannot be made"),
        ({"env": {"id": "mappa/MathChat-v0", "module": "no_such"}}, "cannot be made: No module"),
    ],
)
def test_an_environment_that_cannot_be_made_is_named(
    config: Mapping[str, Any], words: str, tmp_path: Path
) -> None:
    run = stored(tmp_path / "run", [], config)
    with pytest.raises(AuditError, match=words), remade_env(run, {"kind": "rubric"}):
        pass


def test_an_unknown_coach_is_named(tmp_path: Path) -> None:
    run = stored(tmp_path / "run", [])
    with (
        pytest.raises(ScenarioError, match=r"coach.kind is 'rubrik'"),
        remade_env(run, {"kind": "rubrik"}),
    ):
        pass


def test_a_coach_is_named_by_its_kind_or_by_a_file(tmp_path: Path) -> None:
    assert coach_table(["rubric"]) == {"kind": "rubric"}
    path = tmp_path / "coach.toml"
    path.write_text('[coach]\nkind = "rubric"\nprocess_weight = 2.0\n')
    assert coach_table([str(path)]) == {"kind": "rubric", "process_weight": 2.0}
    assert coach_table([str(path), "process_weight=3"])["process_weight"] == 3


@pytest.mark.parametrize("text", [None, "kind =", 'kind = "rubric"', "coach = 3"])
def test_a_file_without_a_coach_is_named(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "coach.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CommandError, match=r"coach\.toml (cannot be read|has no table \[coach\])"):
        coach_table([str(path)])


def test_agreement_by_hand() -> None:
    pairs = [(0.0, 1.0), (2.0, 2.4), (4.0, 3.0), (6.0, 8.0), (8.0, 7.6), (5.0, None)]
    both = [
        Rejudged(n, "coder", first, second, None if second is not None else "refused")
        for n, (first, second) in enumerate(pairs)
    ]
    (found,) = agreements(both, "rubric", "llm")
    assert (found.role, found.first_coach, found.second_coach) == ("coder", "rubric", "llm")
    assert (found.actions, found.failures) == (6, {"refused": 1})
    assert found.difference.value == pytest.approx((1 + 0.4 - 1 + 2 - 0.4) / 5)
    assert found.distance.value == pytest.approx((1 + 0.4 + 1 + 2 + 0.4) / 5)
    assert found.correlation.value == pytest.approx(0.9)  # the last two change places
    # rounded 1 2 3 8 8: squares 1 0 1 4 0; variances 8 and 9.04, means 4 and 4.4
    assert found.kappa.value == pytest.approx(1 - 1.2 / (8 + 9.04 + 0.4**2))
    assert found.kappa.low is not None


def test_a_second_coach_that_scores_nothing_agrees_in_nothing() -> None:
    (found,) = agreements([Rejudged(0, "coder", 3.0, None, "unreachable")], "rubric", "llm")
    assert found.kappa.reason == "the second coach scored nothing"
