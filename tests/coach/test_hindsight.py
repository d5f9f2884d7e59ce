"""The coach looks back once the outcome is known: both scores stay, and the chosen one pays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from team import FixedOutcome, OneTask, code, printed, scenario

from mappa_envs import make_pipeline
from mappa_envs.coach.ledger import Payment
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import CoachError, SandboxError, ScenarioError
from mappa_envs.play import aplay
from mappa_envs.teams import ScriptedTeam
from mappa_envs.testing import FakeSandbox, ScriptedCoach, play
from mappa_envs.types import Assessment, Spent, Task, Turn

TEXTS = {"solver_0": ["a"], "coder_0": [code("print(5)"), "b"], "verifier_0": ["c"]}
FIRST = (8.0, 6.0, CoachError("busy", failure="unreachable"), 4.0)
SECOND = (2.0, CoachError("odd", failure="unparsable"), 3.0, 10.0)


class TwoMinds(ScriptedCoach):
    """Says one thing at once and another when it looks back, by the action's place."""

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        self.seen.append((turn, context))
        score = (FIRST if context.outcome is None else SECOND)[turn.step]
        if isinstance(score, CoachError):
            raise score
        return Assessment(score, f"{score:g}", spent=Spent(1, 10, 2, 0.5))


def coached(pays: Any = "first", *results: Any, deferred: bool = False) -> CoachWrapper:
    env = PipelineEnv(
        scenario(),
        tasks=OneTask(Task("t", "What is 2 + 3?", ("5",))),
        outcome=FixedOutcome(0.5),
        sandbox=lambda: FakeSandbox(*(results or [printed("5")])),
    )
    return CoachWrapper(env, TwoMinds(), Payment(pays=pays), deferred=deferred, hindsight=True)


def paid(env: CoachWrapper, texts: Any = TEXTS) -> dict[str, float]:
    return {agent: sum(own) for agent, own in play(env, texts).items()}


@pytest.mark.parametrize("deferred", [False, True])
def test_both_scores_stay_and_the_first_pays(deferred: bool) -> None:
    env = coached(deferred=deferred)
    returns = paid(env)
    assert [e.score for e in env.ledger] == [8.0, 6.0, None, 4.0]
    assert [e.hindsight_score for e in env.ledger] == [2.0, None, 3.0, 10.0]
    assert [e.hindsight_rationale for e in env.ledger] == ["2", "odd", "3", "10"]
    assert [e.status for e in env.ledger] == ["scored", "scored", "unscored", "scored"]
    assert [e.failure for e in env.ledger] == [None, None, "unreachable", None]
    assert returns == pytest.approx({"solver_0": 0.8, "coder_0": 0.6, "verifier_0": 0.4})


@pytest.mark.parametrize("deferred", [False, True])
def test_hindsight_pays_where_it_is_chosen(deferred: bool) -> None:
    env = coached("hindsight", deferred=deferred)
    returns = paid(env)
    assert [e.score for e in env.ledger] == [8.0, 6.0, None, 4.0]
    assert [e.status for e in env.ledger] == ["scored", "unscored", "scored", "scored"]
    assert [e.failure for e in env.ledger] == [None, None, "unreachable", None]
    assert [e.hindsight_failure for e in env.ledger] == [None, "unparsable", None, None]
    assert [e.paid_by for e in env.ledger] == ["hindsight"] * 4
    assert returns == pytest.approx({"solver_0": 0.2, "coder_0": 0.3, "verifier_0": 1.0})


def test_until_the_end_nothing_is_paid_in_hindsight() -> None:
    env = coached("hindsight")
    env.reset(seed=0)
    env.step("a")
    assert [(e.status, e.score, e.reward) for e in env.ledger] == [("pending", 8.0, 0.0)]
    assert env.rewards["solver_0"] == 0.0


def test_the_coach_sees_how_it_went_on_and_ended() -> None:
    env = coached()
    paid(env)
    back = [(turn, context) for turn, context in env.coach.seen if context.outcome is not None]
    assert sorted(turn.step for turn, _ in back) == [0, 1, 2, 3]
    for turn, context in back:
        assert context.history == env.turns[: turn.step]
        assert context.later == env.turns[turn.step + 1 :]
        assert context.outcome == env.outcome


def test_what_was_spent_is_the_sum_of_both() -> None:
    env = coached()
    paid(env)
    assert [e.spent for e in env.ledger] == [
        Spent(2, 20, 4, 1.0),
        Spent(1, 10, 2, 0.5),
        Spent(1, 10, 2, 0.5),
        Spent(2, 20, 4, 1.0),
    ]


def test_an_event_loop_gets_the_same_ledger() -> None:
    env, other = coached("hindsight"), coached("hindsight")
    paid(env)
    team = ScriptedTeam(TEXTS)

    async def policy(agent: str, observation: Any) -> str:
        return team(agent, observation)

    asyncio.run(aplay(other, policy))
    assert [replace(e, latency_s=0) for e in env.ledger] == [
        replace(e, latency_s=0) for e in other.ledger
    ]


@pytest.mark.parametrize("pays", ["first", "hindsight"])
def test_without_an_outcome_nobody_looks_back(pays: str) -> None:
    env = coached(pays, SandboxError("gone"))
    paid(env)
    assert [e.hindsight_score for e in env.ledger] == [None, None]
    assert {e.hindsight_rationale for e in env.ledger} == {
        "not judged in hindsight: the sandbox died before the outcome"
    }
    statuses = ["scored", "unscored"] if pays == "first" else ["unscored", "unscored"]
    assert [e.status for e in env.ledger] == statuses
    assert [e.failure for e in env.ledger] == [None, "sandbox_dead"]
    assert [e.hindsight_failure for e in env.ledger] == ["sandbox_dead"] * 2


def test_a_snapshot_is_of_one_way_to_look() -> None:
    env = coached()
    env.reset(seed=0)
    other = CoachWrapper(env.env, env.coach)
    other.reset(seed=0)
    with pytest.raises(ValueError, match="restore it in one that is made alike"):
        other.restore(env.snapshot())


def test_a_fork_looks_back_too() -> None:
    env = coached("hindsight")
    env.reset(seed=0)
    env.step("a")
    fork = env.fork()
    for text in (*TEXTS["coder_0"], "c"):
        fork.step(text)
    assert [e.hindsight_score for e in fork.ledger] == [2.0, None, 3.0, 10.0]
    assert [e.status for e in env.ledger] == ["pending"]


def test_to_pay_in_hindsight_somebody_must_look_back() -> None:
    table = {"kind": "rubric", "pays": "hindsight"}
    with pytest.raises(ScenarioError, match=r"coach.pays is 'hindsight', and hindsight is False"):
        make_pipeline("mathchat", coach=table)
    with pytest.raises(ScenarioError, match=r"coach.hindsight is 1; give true or false"):
        make_pipeline("mathchat", coach={"hindsight": 1})
    with pytest.raises(ScenarioError, match=r"coach.pays is 'last'; it must be 'first' or 'hinds"):
        make_pipeline("mathchat", coach={"pays": "last"})
