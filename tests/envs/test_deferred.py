"""A deferred coach is not waited for, and says the same; what it said is exported."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.utils.wrappers import OrderEnforcingWrapper
from team import FixedOutcome, OneTask, code, make_env, printed, scenario

from mappa_envs.coach.ledger import Payment, read_ledger, write_ledger
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import CoachError
from mappa_envs.play import Played, aplay, play
from mappa_envs.teams import ScriptedTeam
from mappa_envs.testing import FakeSandbox, ScriptedCoach
from mappa_envs.types import Assessment, LedgerEntry, Spent, Task, Turn

TEXTS = {"solver_0": ["a"], "coder_0": [code("print(5)"), "b"], "verifier_0": ["c"]}
BY_STEP = (7.0, CoachError("busy"), 0.0, 10.0)


class ByStep(ScriptedCoach):
    """Scores an action by its place in the episode, in whatever order it is asked."""

    def __init__(self, *scores: Any) -> None:
        super().__init__(0.0)
        self._by_step = scores

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        score = self._by_step[turn.step]
        if isinstance(score, CoachError):
            raise score
        return Assessment(
            score, f"step {turn.step}", prompt_hash="ab" * 32, spent=Spent(1, 9, 2, 0.5 + turn.step)
        )


class AwaitedByStep(ByStep):
    async def aassess(self, turn: Turn, context: CoachContext) -> Assessment:
        await asyncio.sleep(0.002 * (4 - turn.step))  # the last action is judged first
        return self.assess(turn, context)


def team(outcome: float = 1.0) -> PipelineEnv:
    return PipelineEnv(
        scenario(),
        tasks=OneTask(Task("t", "What is 2 + 3?", ("5",))),
        outcome=FixedOutcome(outcome),
        sandbox=lambda: FakeSandbox(printed("5")),
    )


def coached(*scores: Any, deferred: bool, kind: Any = ByStep, **payment: Any) -> CoachWrapper:
    return CoachWrapper(team(), kind(*scores), Payment(**payment), deferred=deferred)


def without_clocks(ledger: tuple[LedgerEntry, ...]) -> list[LedgerEntry]:
    return [replace(entry, latency_s=0.0) for entry in ledger]


def in_place(env: CoachWrapper) -> Played:
    return play(env, ScriptedTeam(TEXTS), seed=0)


def awaited(env: CoachWrapper) -> Played:
    team = ScriptedTeam(TEXTS)

    async def policy(agent: str, observation: Any) -> str:
        return team(agent, observation)

    return asyncio.run(aplay(env, policy, seed=0))


@pytest.mark.parametrize("way", [in_place, awaited])
@pytest.mark.parametrize("kind", [ByStep, AwaitedByStep])
@pytest.mark.parametrize("credit", ["every_action", "last_action"])
def test_both_ways_lead_to_the_same_ledger(
    way: Callable[[CoachWrapper], Played], kind: Any, credit: str
) -> None:
    payment = {"process_weight": 0.7, "outcome_weight": 0.3, "credit": credit}
    now = coached(*BY_STEP, deferred=False, kind=kind, **payment)
    later = coached(*BY_STEP, deferred=True, kind=kind, **payment)
    immediate, deferred = way(now), way(later)
    assert without_clocks(later.ledger) == without_clocks(now.ledger)
    assert [entry.status for entry in later.ledger] == ["scored", "unscored", "scored", "scored"]
    assert deferred.infos == immediate.infos
    assert {agent: sum(paid) for agent, paid in deferred.rewards.items()} == {
        agent: sum(paid) for agent, paid in immediate.rewards.items()
    }


def test_everything_is_paid_at_the_dead_turns() -> None:
    env = coached(8.0, 6.0, 4.0, 2.0, deferred=True, process_weight=1.0, outcome_weight=0.5)
    assert in_place(env).rewards == {
        "solver_0": (0.0, env.ledger[0].reward),
        "coder_0": (0.0, 0.0, env.ledger[1].reward + env.ledger[2].reward),
        "verifier_0": (0.0, env.ledger[3].reward),
    }
    assert [entry.reward for entry in env.ledger] == pytest.approx([1.3, 1.1, 0.9, 0.7])


def test_a_step_does_not_wait_and_the_last_one_does() -> None:
    opened, asked = threading.Event(), threading.Semaphore(0)

    class Slow(ByStep):
        def assess(self, turn: Turn, context: CoachContext) -> Assessment:
            asked.release()
            assert opened.wait(60)
            return super().assess(turn, context)

    env = coached(8.0, 6.0, 4.0, 2.0, deferred=True, kind=Slow)
    env.reset(seed=0)
    for number, text in enumerate(["a", code("print(5)"), "b"], start=1):
        env.step(text)
        assert asked.acquire(timeout=60)  # the coach is asked at once
        assert [entry.status for entry in env.ledger] == ["pending"] * number
        assert env.rewards == dict.fromkeys(env.agents, 0.0)
    assert env.render().count("[pending]") == 3
    threading.Timer(0.05, opened.set).start()
    env.step("c")
    assert [entry.score for entry in env.ledger] == [8.0, 6.0, 4.0, 2.0]


def test_what_is_pending_is_asked_again_in_every_branch() -> None:
    env = coached(8.0, 6.0, 4.0, 2.0, deferred=True)
    env.reset(seed=0)
    env.step("a")
    env.step(code("print(5)"))
    with closing(env.fork()) as fork:
        for branch in (fork, env):
            branch.step("b")
            branch.step("c")
        assert without_clocks(fork.ledger) == without_clocks(env.ledger)
        assert [entry.score for entry in fork.ledger] == [8.0, 6.0, 4.0, 2.0]


def test_an_awaited_episode_may_end_in_a_plain_step() -> None:
    env = coached(8.0, 6.0, 4.0, 2.0, deferred=True, kind=AwaitedByStep)

    async def begin() -> None:
        env.reset(seed=0)
        await env.astep("a")
        env.step(code("print(5)"))
        env.step("b")
        env.step("c")

    asyncio.run(begin())
    assert [entry.score for entry in env.ledger] == [8.0, 6.0, 4.0, 2.0]


def test_a_reset_forgets_what_is_pending() -> None:
    env = coached(8.0, 6.0, 4.0, 2.0, deferred=True)
    env.reset(seed=0)
    env.step("a")
    env.reset(seed=0)
    assert env.ledger == ()
    assert [len(in_place(env).infos[agent]["ledger"]) for agent in TEXTS] == [1, 2, 1]


@settings(max_examples=50, deadline=None)
@given(
    scores=st.lists(st.floats(0, 10), min_size=4, max_size=4),
    process=st.floats(0, 1000),
    outcome=st.floats(0, 1000),
    credit=st.sampled_from(["every_action", "last_action"]),
    deferred=st.booleans(),
    order=st.sampled_from(["inside", "outside", "none"]),
)
def test_what_was_paid_is_the_ledgers_sum_to_the_last_bit(
    scores: list[float], process: float, outcome: float, credit: Any, deferred: bool, order: str
) -> None:
    payment = Payment(process, outcome, credit)
    inner = OrderEnforcingWrapper(team(0.3)) if order == "inside" else team(0.3)
    env = CoachWrapper(inner, ByStep(*scores), payment, deferred=deferred)
    stack = OrderEnforcingWrapper(env) if order == "outside" else env
    paid = play(stack, ScriptedTeam(TEXTS), seed=0).rewards
    for agent in TEXTS:
        own = [entry.reward for entry in env.ledger if entry.agent == agent]
        assert sum(paid[agent]) == sum(own) == sum(reversed(own))


# --- export -----------------------------------------------------------------------------------


def test_an_entry_says_what_the_environment_itself_paid_and_what_the_coach_was_asked() -> None:
    env = coached(8.0, CoachError("busy"), 4.0, 2.0, deferred=False)
    in_place(env)
    assert [entry.env_reward for entry in env.ledger] == [1.0, 0.0, 1.0, 1.0]
    assert [entry.prompt_hash for entry in env.ledger] == ["ab" * 32, None, "ab" * 32, "ab" * 32]
    assert [entry.spent and entry.spent.usd for entry in env.ledger] == [0.5, None, 2.5, 3.5]
    for info in in_place(env).infos.values():
        for entry in info["ledger"]:
            assert not {"latency_s", "cost"} & entry.keys()


def test_a_ledger_survives_its_file(tmp_path: Path) -> None:
    env = coached(*BY_STEP, deferred=False, outcome_weight=0.5)
    path = tmp_path / "ledger.jsonl"
    written = []
    for episode in range(2):
        in_place(env)
        write_ledger(path, env.ledger, episode=episode, task="t")
        written += [({"episode": episode, "task": "t"}, entry) for entry in env.ledger]
    assert read_ledger(path) == written
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["status"] for row in rows[:4]] == ["scored", "unscored", "scored", "scored"]
    assert [row["score"] for row in rows[:4]] == [7.0, None, 0.0, 10.0]


def test_a_label_may_not_hide_a_field(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\['step'\] are fields of an entry"):
        write_ledger(tmp_path / "ledger.jsonl", (), step=1)


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"step": 1}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "ledger.jsonl"
    env = coached(8.0, 6.0, 4.0, 2.0, deferred=False)
    in_place(env)
    write_ledger(path, env.ledger)
    with open(path, "a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=r"ledger.jsonl, line 5: is no ledger entry"):
        read_ledger(path)


def test_a_rendered_episode_shows_output_files_and_scores() -> None:
    env = CoachWrapper(make_env(printed("5")), ByStep(*BY_STEP))
    in_place(env)
    text = env.render()
    assert "[output]\n5" in text
    assert "[score 7 of 10] step 0" in text
    assert "[unscored] busy" in text


def test_every_action_may_have_an_event_loop_of_its_own() -> None:
    """What a loop that is gone was to answer is asked again."""
    env = coached(8.0, 6.0, 4.0, 2.0, deferred=True, kind=AwaitedByStep)
    env.reset(seed=0)
    for action in ("a", code("print(5)"), "b", "c"):
        asyncio.run(env.astep(action))
    assert [entry.score for entry in env.ledger] == [8.0, 6.0, 4.0, 2.0]


def test_two_event_loops_may_take_turns() -> None:
    env = coached(8.0, 6.0, 4.0, 2.0, deferred=True, kind=AwaitedByStep)
    env.reset(seed=0)
    loops = asyncio.new_event_loop(), asyncio.new_event_loop()
    for number, action in enumerate(("a", code("print(5)"), "b", "c")):
        loops[number // 2].run_until_complete(env.astep(action))
    assert [entry.score for entry in env.ledger] == [8.0, 6.0, 4.0, 2.0]
    for loop in loops:
        loop.run_until_complete(asyncio.sleep(0))  # what was withdrawn ends
        assert asyncio.all_tasks(loop) == set()
        loop.close()


def test_what_is_no_assessment_is_named_with_its_coach() -> None:
    class Careless(ScriptedCoach):
        def assess(self, turn: Turn, context: CoachContext) -> Any:
            return 7.0

    env = CoachWrapper(team(), Careless(0.0))
    env.reset(seed=0)
    with pytest.raises(TypeError, match=r"coach 'scripted' returned 7.0; it must be an Assessment"):
        env.step("a")
    assert env.turns == ()


@pytest.mark.parametrize(
    ("payment", "words"),
    [
        ({"process_weight": -1.0}, "process_weight is -1.0; give a number from 0 to 1000"),
        ({"outcome_weight": float("nan")}, "outcome_weight is nan"),
        ({"process_weight": True}, "process_weight is True"),
        ({"credit": "first_action"}, "credit is 'first_action'; it must be 'every_action' or"),
    ],
)
def test_a_payment_that_could_not_be_paid_is_refused(payment: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Payment(**payment)


def test_a_ledger_can_be_named_by_its_path_as_text(tmp_path: Path) -> None:
    env = coached(8.0, 6.0, 4.0, 2.0, deferred=False)
    in_place(env)
    write_ledger(f"{tmp_path}/ledger.jsonl", env.ledger)
    assert [entry for _, entry in read_ledger(f"{tmp_path}/ledger.jsonl")] == list(env.ledger)
