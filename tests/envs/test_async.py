"""Many episodes share an event loop; none holds up another, and none leaves anything behind."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from pettingzoo.utils.wrappers import OrderEnforcingWrapper
from team import SILENT, bare_sandbox, code, make_env, printed, trace

from mappa_envs.coach.protocol import CoachContext
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import ActionError, CoachError
from mappa_envs.play import Play, aplay, play, play_many
from mappa_envs.sandbox import ExecResult
from mappa_envs.sandbox.local import LocalSandbox
from mappa_envs.sandbox.scratch import scratch_folder
from mappa_envs.teams import ScriptedTeam
from mappa_envs.testing import FakeSandbox, ScriptedCoach
from mappa_envs.types import Assessment, Turn
from mappa_envs.waiting import finish, in_thread

TEXTS = {
    "solver_0": ["2 + 3 = 5"],
    "coder_0": [code("print(2 + 3)"), "It is 5."],
    "verifier_0": [r"\boxed{5}"],
}


def awaited(policy: Callable[..., str]) -> Callable[..., Awaitable[str]]:
    async def act(agent: str, observation: Any) -> str:
        await asyncio.sleep(0)
        return policy(agent, observation)

    return act


class AsyncScripted(ScriptedCoach):
    """A scripted coach that is awaited, and notes in which way it was asked."""

    def __init__(self, *scores: Any) -> None:
        super().__init__(*scores)
        self.ways: list[str] = []

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        self.ways.append("assess")
        return super().assess(turn, context)

    async def aassess(self, turn: Turn, context: CoachContext) -> Assessment:
        await asyncio.sleep(0)
        self.ways.append("aassess")
        return super().assess(turn, context)


class Gate:
    """Something slow: it goes on when the test says so."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.opened.wait(60)


class SlowSandbox(FakeSandbox):
    def __init__(self, gate: Gate) -> None:
        super().__init__(printed("5"))
        self.gate = gate

    def exec(self, *arguments: Any) -> ExecResult:
        self.gate.wait()
        return super().exec(*arguments)


class SlowCoach(ScriptedCoach):
    def __init__(self, gate: Gate, *scores: Any) -> None:
        super().__init__(*scores)
        self.gate = gate

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        self.gate.wait()
        return super().assess(turn, context)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("kind", [ScriptedCoach, AsyncScripted])
def test_an_awaited_episode_is_the_same_as_a_plain_one(kind: Any, deferred: bool) -> None:
    def make() -> CoachWrapper:
        return CoachWrapper(
            make_env(printed("5")), kind(6.0, CoachError("busy")), deferred=deferred
        )

    plain, other = make(), make()
    expected = play(plain, ScriptedTeam(TEXTS), seed=1)
    assert asyncio.run(aplay(other, awaited(ScriptedTeam(TEXTS)), seed=1)) == expected
    assert expected.infos["verifier_0"]["outcome"]["answer"] == "5"


def test_an_order_enforced_environment_can_be_awaited() -> None:
    env = OrderEnforcingWrapper(CoachWrapper(make_env(printed("5")), ScriptedCoach(6.0)))
    played = asyncio.run(aplay(env, awaited(ScriptedTeam(TEXTS))))
    assert played.rewards["solver_0"] == (0.0, env.ledger[0].reward)


def test_a_coach_that_can_be_awaited_is() -> None:
    coach = AsyncScripted(6.0)
    env = CoachWrapper(make_env(printed("5")), coach)
    asyncio.run(aplay(env, awaited(ScriptedTeam(TEXTS))))
    play(env, ScriptedTeam(TEXTS))
    assert coach.ways == ["aassess"] * 4 + ["assess"] * 4


@pytest.mark.parametrize("slow", ["tool", "coach"])
def test_what_is_slow_holds_up_nobody_else(slow: str) -> None:
    """Another episode is played to its end while the first one waits."""
    gate = Gate()
    held = make_env(sandbox=lambda: SlowSandbox(gate) if slow == "tool" else FakeSandbox())
    first = CoachWrapper(held, SlowCoach(gate, 6.0) if slow == "coach" else ScriptedCoach(6.0))
    second = CoachWrapper(make_env(printed("5")), ScriptedCoach(6.0))

    async def both() -> None:
        slow_one = asyncio.create_task(aplay(first, awaited(ScriptedTeam(TEXTS))))
        await in_thread(gate.reached.wait, 60)
        played = await aplay(second, awaited(ScriptedTeam(TEXTS)))
        assert played.infos["solver_0"]["end_reason"] == "completed"
        assert not slow_one.done()
        gate.opened.set()
        await slow_one

    asyncio.run(both())


def test_hundreds_of_slow_coach_calls_wait_at_the_same_time() -> None:
    """Each call returns when all have begun, so they cannot be made one after another."""
    count, begun = 200, 0
    everybody = asyncio.Event()

    class Meeting(ScriptedCoach):
        async def aassess(self, turn: Turn, context: CoachContext) -> Assessment:
            nonlocal begun
            begun += 1
            if begun == count:
                everybody.set()
            await everybody.wait()
            return self.assess(turn, context)

    def make() -> CoachWrapper:
        return CoachWrapper(make_env(), Meeting(6.0))

    async def policy(agent: str, observation: Any) -> str:
        return "text"

    played = asyncio.run(
        play_many(make, policy, [Play(seed) for seed in range(count)], at_once=count)
    )
    assert [len(one.infos["solver_0"]["ledger"]) for one in played] == [1] * count


def test_many_episodes_come_back_in_order() -> None:
    def make() -> CoachWrapper:
        return CoachWrapper(make_env(), ScriptedCoach(6.0))

    async def policy(agent: str, observation: Any) -> str:
        await asyncio.sleep(secrets.randbelow(3) / 1000)
        return observation["messages"][-1]["content"]

    plays = [Play(seed, {"task": ("sum", "product")[seed % 2]}) for seed in range(9)]
    played = asyncio.run(play_many(make, policy, plays, at_once=4))
    tasks = [one.infos["solver_0"]["task"]["id"] for one in played]
    assert tasks == ["sum", "product"] * 4 + ["sum"]
    for one, asked in zip(played, plays, strict=True):
        env = make()
        again = play(
            env, lambda _, seen: seen["messages"][-1]["content"], asked.seed, asked.options
        )
        assert again == one


def test_no_episode_at_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="at_once is 0"):
        asyncio.run(play_many(make_env, awaited(ScriptedTeam({})), [Play()], at_once=0))


def test_a_failing_episode_ends_all_and_closes_their_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []
    monkeypatch.setattr(PipelineEnv, "close", lambda env: closed.append(env))

    async def policy(agent: str, observation: Any) -> str:
        if agent == "coder_0":
            raise LookupError("no text for the coder")
        return "text"

    with pytest.raises(LookupError, match="no text for the coder"):
        asyncio.run(play_many(make_env, policy, [Play(seed) for seed in range(5)], at_once=3))
    assert len(set(map(id, closed))) == len(closed) == 3


def test_only_one_action_runs_at_a_time() -> None:
    gate = Gate()
    for env in (
        make_env(sandbox=lambda: SlowSandbox(gate)),
        CoachWrapper(make_env(printed("5")), SlowCoach(gate, 6.0)),
    ):
        gate.opened.clear()
        gate.reached.clear()

        async def at_once(env: Any = env) -> None:
            env.reset(seed=0)
            if isinstance(env, CoachWrapper):
                running = asyncio.create_task(env.astep("a"))
            else:
                env.step("a")
                running = asyncio.create_task(env.astep(code("print(5)")))
            await in_thread(gate.reached.wait, 60)
            agent = env.agent_selection
            for call in (lambda: env.step("b"), env.reset, env.snapshot):
                with pytest.raises(ActionError, match=r"while an action of .*_0 is running"):
                    call()
            with pytest.raises(ActionError, match="while an action of"):
                await env.astep("b")
            gate.opened.set()
            await running
            assert env.turns[-1].agent in (agent, "solver_0")

        asyncio.run(at_once())


# --- cancellation -----------------------------------------------------------------------------


@pytest.fixture
def clean() -> Iterator[None]:
    """After the test there is no folder that was not there before it."""
    before = set(scratch_folder().iterdir())
    yield
    assert set(scratch_folder().iterdir()) == before


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("clean")
def test_a_cancelled_step_did_not_happen() -> None:
    """The program is ended, its workspace is as before, and the episode goes on from there."""
    env = make_env(sandbox=bare_sandbox, coder={"max_turns": 4})
    first = code("open('note', 'w').write('kept')\nprint('ok')")
    hang = code("open('note', 'w').write('lost'); open('begun', 'w')\nimport time\ntime.sleep(600)")

    async def cancelled() -> None:
        env.reset(seed=0)
        await env.astep("a")
        await env.astep(first)
        before = env.turns, env.files, env.observe("coder_0"), dict(env.rewards)
        task = asyncio.create_task(env.astep(f"{first}\n{hang}"))
        await in_thread(until, lambda: bool(list(scratch_folder().glob("*/files/begun"))))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (env.turns, env.files, env.observe("coder_0"), env.rewards) == before
        assert list(scratch_folder().glob("*/files/begun")) == []
        await env.astep(code("import os\nprint(open('note').read(), os.listdir())"))
        assert env.turns[-1].tool_results[0].output == "kept ['note']"

    with closing(env):
        asyncio.run(cancelled())


@pytest.mark.usefixtures("clean")
def test_an_interrupted_step_did_not_happen() -> None:
    class Interrupted(LocalSandbox):
        def __init__(self) -> None:
            super().__init__(preload=())

        def exec(self, source: str, *arguments: Any) -> ExecResult:
            if "interrupt" in source:
                raise KeyboardInterrupt
            return super().exec(source, *arguments)

    with closing(make_env(sandbox=Interrupted)) as env:
        env.reset(seed=0)
        env.step("a")
        with pytest.raises(KeyboardInterrupt):
            env.step(f"{code('open(chr(97), chr(119))')}\n{code('interrupt')}")
        assert (env.agent_selection, len(env.turns), env.files) == ("coder_0", 1, ())
        env.step(code("import os\nprint(os.listdir())"))
        assert env.turns[-1].tool_results[0].output == "[]"


@pytest.mark.usefixtures("clean")
def test_cancelling_many_episodes_leaves_no_process_and_no_folder() -> None:
    hang = code("open('begun', 'w')\nimport time\ntime.sleep(600)")

    async def policy(agent: str, observation: Any) -> str:
        return hang if agent == "coder_0" else "text"

    async def cancelled() -> None:
        def make() -> CoachWrapper:
            return CoachWrapper(make_env(sandbox=bare_sandbox), ScriptedCoach(6.0), deferred=True)

        plays = [Play(seed) for seed in range(6)]
        task = asyncio.create_task(play_many(make, policy, plays, at_once=6))
        await in_thread(until, lambda: len(list(scratch_folder().glob("*/files/begun"))) == 6)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


def test_a_step_that_is_cancelled_while_the_coach_thinks_did_not_happen() -> None:
    gate = Gate()
    coach = SlowCoach(gate, 6.0)
    env = CoachWrapper(make_env(printed("5")), coach)

    async def cancelled() -> None:
        env.reset(seed=0)
        task = asyncio.create_task(env.astep("a"))
        await in_thread(gate.reached.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.opened.set()
        assert (env.agent_selection, env.turns, env.ledger) == ("solver_0", (), ())
        assert env.infos == {agent: env.env.infos[agent] for agent in env.agents}
        played = await aplay(env, awaited(ScriptedTeam(TEXTS)))
        assert [entry["score"] for entry in played.infos["coder_0"]["ledger"]] == [6.0, 6.0]

    asyncio.run(cancelled())


def test_a_coach_with_a_fault_undoes_the_step_and_says_so() -> None:
    class Broken(ScriptedCoach):
        def assess(self, turn: Turn, context: CoachContext) -> Assessment:
            raise ZeroDivisionError("a fault of the coach")

    env = CoachWrapper(make_env(), Broken(6.0))
    env.reset(seed=0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="a fault of the coach"):
            env.step("a")
        assert (env.agent_selection, env.turns, env.ledger) == ("solver_0", (), ())
    env.coach = ScriptedCoach(6.0)
    assert trace(env, SILENT)[-1][5]["end_reason"] == "completed"


def test_what_suspends_cannot_be_run_in_place() -> None:
    async def suspends() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        finish(suspends())
