"""A recorded run is coached again without its coach; a turn it never saw is no score."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from team import FixedOutcome, OneTask, code, printed, scenario

from mappa_envs import make_pipeline
from mappa_envs.coach.ledger import Payment, entry_of, entry_record
from mappa_envs.coach.replay import ReplayCoach
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import CoachError, ReplayError, ScenarioError
from mappa_envs.records import turn_record
from mappa_envs.testing import FakeSandbox, ScriptedCoach, play
from mappa_envs.types import LedgerEntry, Spent, Task

TEXTS = {"solver_0": ["a"], "coder_0": [code("print(5)"), "b"], "verifier_0": ["c"]}
OTHER = {**TEXTS, "solver_0": ["another start"]}
SCORES = (8.0, CoachError("no answer", failure="unreachable"), 3.5, 10.0)


def coached(coach: Any, *, hindsight: bool = False) -> CoachWrapper:
    env = PipelineEnv(
        scenario(),
        tasks=OneTask(Task("t", "What is 2 + 3?", ("5",))),
        outcome=FixedOutcome(0.5),
        sandbox=lambda: FakeSandbox(printed("5")),
    )
    return CoachWrapper(env, coach, Payment(outcome_weight=0.5), hindsight=hindsight)


def record(env: CoachWrapper) -> dict[str, Any]:
    """The row that a training run keeps of an episode, as far as a replay reads it."""
    actions = [
        {
            "agent": turn.agent,
            "messages": list(turn.messages),
            "action": turn.action,
            "ledger": entry_record(entry),
            "turn": turn_record(turn),
        }
        for turn, entry in zip(env.turns, env.ledger, strict=True)
    ]
    return {"task": {"id": env.task.id}, "actions": actions}


def recorded(path: Path, *plays: tuple[CoachWrapper, Any]) -> Path:
    (path / "episodes").mkdir()
    lines = []
    for env, texts in plays:
        play(env, texts, seed=0)
        lines.append(json.dumps(record(env)))
    (path / "episodes" / "train-0000.jsonl").write_text("\n".join(lines) + "\n")
    return path


def untimed(env: CoachWrapper) -> list[LedgerEntry]:
    return [replace(entry, latency_s=0.0, spent=None) for entry in env.ledger]


@pytest.mark.parametrize("hindsight", [False, True])
def test_a_replay_has_the_ledger_of_the_recording(tmp_path: Path, hindsight: bool) -> None:
    first = coached(ScriptedCoach(*SCORES, *reversed(SCORES)), hindsight=hindsight)
    recorded(tmp_path, (first, TEXTS))
    again = coached(ReplayCoach(tmp_path), hindsight=hindsight)
    paid = play(again, TEXTS, seed=0)
    assert sum(map(sum, paid.values())) == sum(entry.reward for entry in first.ledger)
    assert [e.score for e in again.ledger] == [8.0, None, 3.5, 10.0]
    said = [replace(e, coach="x") for e in untimed(first)]
    assert [replace(e, coach="x") for e in untimed(again)] == said
    assert [e.coach for e in again.ledger] == ["scripted", "replay", "scripted", "scripted"]


def test_a_turn_that_was_judged_twice_is_answered_in_order(tmp_path: Path) -> None:
    first, second = coached(ScriptedCoach(1.0)), coached(ScriptedCoach(2.0))
    recorded(tmp_path, (first, TEXTS), (second, TEXTS))
    again = coached(ReplayCoach(tmp_path))
    found = []
    for _ in range(3):
        play(again, TEXTS, seed=0)
        found.append([entry.score for entry in again.ledger])
    assert found == [[1.0] * 4, [2.0] * 4, [2.0] * 4]


def test_what_led_to_a_turn_tells_it_apart(tmp_path: Path) -> None:
    recorded(tmp_path, (coached(ScriptedCoach(1.0)), TEXTS), (coached(ScriptedCoach(2.0)), OTHER))
    again = coached(ReplayCoach(tmp_path))
    play(again, OTHER, seed=0)
    assert [entry.score for entry in again.ledger] == [2.0] * 4


def test_a_strict_replay_ends_where_the_recording_does(tmp_path: Path) -> None:
    recorded(tmp_path, (coached(ScriptedCoach(1.0)), TEXTS))
    again = coached(ReplayCoach(tmp_path))
    again.reset(seed=0)
    with pytest.raises(ReplayError, match=r"does not hold action 1 of solver_0 on task 't'"):
        again.step("another start")
    assert again.ledger == ()
    again.step("a")
    assert [entry.score for entry in again.ledger] == [1.0]


def test_a_lenient_replay_leaves_what_it_lacks_unscored(tmp_path: Path) -> None:
    recorded(tmp_path, (coached(ScriptedCoach(1.0)), TEXTS))
    again = coached(ReplayCoach(tmp_path, strict=False))
    play(again, OTHER, seed=0)
    assert [(e.status, e.score, e.failure) for e in again.ledger] == [
        ("unscored", None, "unjudged")
    ] * 4


def test_a_replay_is_made_from_a_table(tmp_path: Path) -> None:
    recorded(tmp_path, (coached(ScriptedCoach(1.0)), TEXTS))
    env = make_pipeline("mathchat", coach={"kind": "replay", "recording": str(tmp_path)})
    assert isinstance(env.coach, ReplayCoach)
    file = tmp_path / "episodes" / "train-0000.jsonl"
    make_pipeline("mathchat", coach={"kind": "replay", "recording": str(file)}).close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "has no recorded episodes; give a run directory or one of its files"),
        ("{", r"train-0000.jsonl, line 1: is no JSON"),
        ("{}", r"line 1: is no episode of a coached run \(KeyError\('task'\)\); give the dir"),
        ("[]", "line 1: is no episode of a coached run"),
        ('{"task": {"id": "t"}, "actions": [{"turn": null}]}', "is no episode of a coached run"),
    ],
)
def test_a_damaged_recording_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    (tmp_path / "episodes").mkdir()
    if text is not None:
        (tmp_path / "episodes" / "train-0000.jsonl").write_text(text)
    with pytest.raises(ScenarioError, match=words):
        ReplayCoach(tmp_path)


def test_an_entry_survives_its_record() -> None:
    env = coached(ScriptedCoach(8.0))
    play(env, TEXTS, seed=0)
    entry = replace(env.ledger[0], spent=Spent(2, 30, 4, None), latency_s=0.0)
    assert entry_of({"latency_s": 0.0, **json.loads(json.dumps(entry_record(entry)))}) == entry


def test_a_recording_without_a_second_look_does_not_hold_one(tmp_path: Path) -> None:
    recorded(tmp_path, (coached(ScriptedCoach(1.0)), TEXTS))
    with pytest.raises(ReplayError, match="does not hold action 1 of solver_0"):
        play(coached(ReplayCoach(tmp_path), hindsight=True), TEXTS, seed=0)
    lenient = coached(ReplayCoach(tmp_path, strict=False), hindsight=True)
    play(lenient, TEXTS, seed=0)
    assert [e.score for e in lenient.ledger] == [1.0] * 4
    assert [e.hindsight_failure for e in lenient.ledger] == ["unjudged"] * 4
