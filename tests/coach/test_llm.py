"""The coach that asks a model, with the endpoint replaced by one that says what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from team import make_env, printed, scenario

from mappa_envs import make_pipeline
from mappa_envs.coach.evidence import MOST_CHARACTERS
from mappa_envs.coach.protocol import AsyncCoach, CoachContext
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.errors import CoachError, ScenarioError
from mappa_envs.teams import NOTHING_TO_SAY
from mappa_envs.testing import ScriptedCoach, play
from mappa_envs.types import Message, Spent, Turn

pytest.importorskip("openai", reason="needs the extra 'coach'")

from mappa_envs.coach.endpoint import Verdict
from mappa_envs.coach.llm import LLMCoach
from mappa_envs.coach.settings import Settings

SCENARIO = scenario(verifier={"coach_sees_truth": True})
TURN = Turn(
    step=0,
    agent="solver_0",
    role="solver",
    index=0,
    messages=(Message(role="user", content="Solve: What is 2 + 3?"),),
    action="2 + 3",
    visible="2 + 3",
    tool_results=(),
    feedback=None,
    handed_off=True,
)
CONTEXT = CoachContext("What is 2 + 3?", (), "sum", sample=4)
SPENT = Spent(1, 900, 30, 0.001)


class FakeEndpoint:
    settings = Settings(model="small", max_tokens=500, budget_usd=2.0)
    usd_per_million: ClassVar = {"input": 0.3, "output": 2.5}

    def __init__(self, said: Verdict | CoachError) -> None:
        self.said = said
        self.asked: list[tuple[Sequence[Message], float, int]] = []

    def judge_blocking(self, messages: Sequence[Message], scale: float, sample: int = 0) -> Verdict:
        self.asked.append((messages, scale, sample))
        if isinstance(self.said, CoachError):
            raise self.said
        return self.said

    async def judge(self, messages: Sequence[Message], scale: float, sample: int = 0) -> Verdict:
        await asyncio.sleep(0)
        return self.judge_blocking(messages, scale, sample)


def coach(said: Verdict | CoachError, **more: Any) -> LLMCoach:
    return LLMCoach(SCENARIO, FakeEndpoint(said), **more)


@pytest.mark.parametrize("awaited", [False, True])
def test_the_verdict_is_the_assessment(awaited: bool) -> None:
    asked = coach(Verdict(7.5, "fine", "ab" * 32, SPENT), scale=100)
    said = asyncio.run(asked.aassess(TURN, CONTEXT)) if awaited else asked.assess(TURN, CONTEXT)
    assert (said.score, said.rationale, said.prompt_hash) == (7.5, "fine", "ab" * 32)
    assert (said.spent, said.coach) == (SPENT, None)
    ((messages, scale, sample),) = asked.endpoint.asked
    assert [message["role"] for message in messages] == ["system", "user"]
    assert (scale, sample) == (100, 4)


def test_the_coach_is_named_after_its_model() -> None:
    asked = coach(Verdict(7.5, "fine", "ab" * 32, SPENT))
    assert asked.id == "llm:small"
    assert isinstance(asked, AsyncCoach)


@pytest.mark.parametrize("awaited", [False, True])
def test_a_failure_is_passed_on(awaited: bool) -> None:
    asked = coach(CoachError("busy", failure="rate_limited", spent=SPENT))
    with pytest.raises(CoachError, match="busy") as caught:
        asyncio.run(asked.aassess(TURN, CONTEXT)) if awaited else asked.assess(TURN, CONTEXT)
    assert (caught.value.failure, caught.value.spent) == ("rate_limited", SPENT)


def test_a_spent_budget_leaves_actions_unscored() -> None:
    with pytest.raises(CoachError, match="enough") as caught:
        coach(CoachError("enough", failure="over_budget")).assess(TURN, CONTEXT)
    assert caught.value.failure == "over_budget"


@pytest.mark.parametrize("awaited", [False, True])
def test_a_spent_budget_may_hand_over_to_another_coach(awaited: bool) -> None:
    error = CoachError("enough", failure="over_budget", spent=Spent())
    asked = coach(error, over_budget=ScriptedCoach(3.0))
    said = asyncio.run(asked.aassess(TURN, CONTEXT)) if awaited else asked.assess(TURN, CONTEXT)
    assert (said.score, said.coach, said.spent) == (3.0, "scripted", Spent())


def test_another_failure_is_not_handed_over() -> None:
    asked = coach(CoachError("odd", failure="unparsable"), over_budget=ScriptedCoach(3.0))
    with pytest.raises(CoachError, match="odd"):
        asked.assess(TURN, CONTEXT)


def test_the_right_answer_is_asked_for_by_name_of_the_role_alone() -> None:
    said = Verdict(7.5, "fine", "ab" * 32, SPENT)
    assert coach(said).truth_roles == ()
    assert coach(said, ground_truth=True).truth_roles == ("verifier",)


def test_a_plan_says_what_an_episode_takes() -> None:
    env = CoachWrapper(make_env(printed("5")), coach(Verdict(7.5, "fine", "ab" * 32, SPENT)))
    plan = env.coach_plan()
    assert plan["model"] == "small"
    assert plan["hindsight"] is False
    assert plan["usd_per_million"] == {"input": 0.3, "output": 2.5}
    assert plan["budget_usd"] == 2.0
    assert {name: role["actions"] for name, role in plan["roles"].items()} == {
        "solver": [1, 1, 1],
        "coder": [1, 1, 2],
        "verifier": [1, 1, 1],
    }
    for role in plan["roles"].values():
        assert role["output_tokens"] == [1, 120, 500]
        fewest, expected, most = role["input_tokens"]
        assert 200 < fewest < expected < 1000
        assert most - fewest == sum(MOST_CHARACTERS.values()) // 4
    assert env.coach.endpoint.asked == []


def test_what_is_expected_is_the_mean_prompt_of_a_scripted_episode() -> None:
    env = CoachWrapper(make_env(printed("5")), coach(Verdict(7.5, "fine", "ab" * 32, SPENT)))
    play(env, {name: [NOTHING_TO_SAY] for name in env.possible_agents}, seed=0)
    expected = [plan["input_tokens"][1] for plan in env.coach_plan()["roles"].values()]
    prompts = [messages for messages, _, _ in env.coach.endpoint.asked]
    assert expected == [round(sum(len(m["content"]) for m in p) / 4) for p in prompts]


def test_a_coach_that_asks_no_model_has_no_plan() -> None:
    assert CoachWrapper(make_env(), ScriptedCoach(3.0)).coach_plan() is None


# --- tables -------------------------------------------------------------------------------------

LOCAL = {"kind": "llm", "model": "m", "base_url": "http://127.0.0.1:9/v1"}


def test_a_coach_is_made_from_a_table() -> None:
    table = {**LOCAL, "ground_truth": True, "scale": 5, "deferred": True, "hindsight": True}
    env = make_pipeline("mathchat", coach=table)
    assert isinstance(env, CoachWrapper)
    assert env.coach.id == "llm:m"
    assert env.coach.truth_roles == ("verifier",)
    assert env.coach_plan()["hindsight"] is True
    assert env.deferred


def test_environments_of_one_table_share_an_endpoint() -> None:
    first, second = (make_pipeline("mathchat", coach=LOCAL) for _ in range(2))
    other = make_pipeline("mathchat", coach={**LOCAL, "concurrency": 3})
    assert first.coach.endpoint is second.coach.endpoint
    assert first.coach.endpoint is not other.coach.endpoint


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "lm"}, "coach.kind is 'lm'; known: rubric, llm, replay"),
        ({"kind": "llm"}, "coach.model: is missing; add it"),
        ({**LOCAL, "modell": "x"}, "coach: unknown key 'modell'; did you mean 'model'"),
        ({**LOCAL, "api_key": "secret"}, "coach: unknown key 'api_key'; did you mean 'api_key_e"),
        ({**LOCAL, "temperature": -1}, "coach.temperature: is -1; it should be greater than or e"),
        ({**LOCAL, "concurrency": 0}, "coach.concurrency: is 0; it should be greater than or equ"),
        ({**LOCAL, "over_budget": "stop"}, "coach.over_budget: is 'stop'; it should be 'unscored'"),
        ({**LOCAL, "api_key_env": "sk-123"}, "coach.api_key_env"),
        ({"kind": "rubric", "model": "x"}, "coach: unknown key 'model'"),
    ],
)
def test_a_wrong_table_is_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        make_pipeline("mathchat", coach=table)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
