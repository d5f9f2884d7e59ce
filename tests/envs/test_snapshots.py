"""An episode can be remembered at any turn, and branched; the branches do not see each other."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from pettingzoo import AECEnv
from pettingzoo.utils.wrappers import OrderEnforcingWrapper
from team import FixedOutcome, Problems, bare_sandbox, code, make_env, printed, scenario

from mappa_envs.coach.ledger import Payment
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import ActionError
from mappa_envs.sandbox.scratch import scratch_folder
from mappa_envs.testing import ScriptedCoach
from mappa_envs.views.seat import SeatEnv

Env = AECEnv[str, Any, Any]
WRITE = code("open('note', 'w').write('first')\nprint('written')")
APPEND = code("open('note', 'a').write(' and more')\nprint(open('note').read())")
READ = code("print(open('note').read())")
ACTIONS = ["2 + 3 = 5", WRITE, READ, r"\boxed{5}"]
"""Solver, coder, coder, verifier."""


def real() -> PipelineEnv:
    """The team with a real sandbox."""
    return make_env(sandbox=bare_sandbox)


def coached(**options: Any) -> CoachWrapper:
    return CoachWrapper(real(), ScriptedCoach(6.0), **options)


KINDS: dict[str, Callable[[], Env]] = {
    "bare": real,
    "coached": coached,
    "deferred": lambda: coached(deferred=True),
    "order enforced inside": lambda: CoachWrapper(
        OrderEnforcingWrapper(real()), ScriptedCoach(6.0)
    ),
    "order enforced outside": lambda: OrderEnforcingWrapper(coached()),
}


ALIKE = ("coached", "order enforced inside")
"""Kinds whose wrappers are in others too; the slow tier has them."""


@pytest.fixture(
    params=[pytest.param(kind, marks=pytest.mark.slow if kind in ALIKE else ()) for kind in KINDS]
)
def make(request: pytest.FixtureRequest) -> Callable[[], Env]:
    return KINDS[request.param]


@pytest.fixture
def env(make: Callable[[], Env]) -> Iterator[Env]:
    with closing(make()) as env:
        env.reset(seed=3)
        yield env


def rest(env: Env, actions: list[str]) -> list[Any]:
    """Everything that is observable from here to the end of the episode, and of the next start."""
    seen: list[Any] = []
    todo = iter(actions)
    while env.agents:
        seen.append((env.agent_selection, copy.deepcopy(env.last()), dict(env.rewards)))
        dead = env.terminations[env.agent_selection] or env.truncations[env.agent_selection]
        env.step(None if dead else next(todo))
    env.reset()
    seen.append(copy.deepcopy(env.last()))
    return seen


def started(env: Env, turns: int) -> None:
    env.reset(seed=3)
    for action in ACTIONS[:turns]:
        env.step(action)


@pytest.mark.parametrize("turns", range(5))
def test_the_same_actions_go_on_alike_from_every_turn(env: Env, turns: int) -> None:
    started(env, turns)
    snapshot = env.snapshot()
    expected = rest(env, ACTIONS[turns:])
    for _ in range(2):  # also after the end, and more than once
        env.restore(snapshot)
        assert rest(env, ACTIONS[turns:]) == expected
    env.restore(snapshot)
    with closing(env.fork()) as fork:
        assert rest(fork, ACTIONS[turns:]) == expected
    with closing(copy.deepcopy(env)) as fork:
        assert type(fork) is type(env)
        assert rest(fork, ACTIONS[turns:]) == expected


def test_branches_do_not_see_each_other(env: Env) -> None:
    started(env, 2)
    snapshot = env.snapshot()
    with closing(env.fork()) as left, closing(env.fork()) as right:
        for branch, action, shown in (
            (left, APPEND, "first and more"),
            (right, READ, "first"),
            (env, READ, "first"),
        ):
            branch.step(action)
            verifier = branch.observe("verifier_0")["messages"][-1]["content"]
            assert verifier.endswith(f"Output: {shown}")
        left.step("wrong")
        assert (left.unwrapped.end_reason, env.unwrapped.end_reason) == ("completed", None)
        left.restore(snapshot)
        assert [record.path for record in left.unwrapped.files] == ["note"]


def test_another_environment_of_the_scenario_takes_a_snapshot(
    make: Callable[[], Env], env: Env
) -> None:
    """Also after the environment that took it was closed."""
    started(env, 2)
    snapshot = env.snapshot()
    expected = rest(env, ACTIONS[2:])
    env.close()
    with closing(make()) as other:
        other.reset()  # which an OrderEnforcingWrapper wants to see first
        other.restore(snapshot)
        assert rest(other, ACTIONS[2:]) == expected


def test_nothing_is_left_when_all_branches_are_closed() -> None:
    before = set(scratch_folder().iterdir())
    env = real()
    started(env, 2)
    fork, snapshot = env.fork(), env.snapshot()
    env.close()
    fork.close()
    assert len(set(scratch_folder().iterdir()) - before) == 1  # the contents, for the snapshot
    del snapshot, fork, env
    assert set(scratch_folder().iterdir()) == before


def test_a_snapshot_of_another_scenario_is_refused() -> None:
    env, other = make_env(), make_env(coder={"max_turns": 3})
    env.reset(seed=0)
    other.reset(seed=0)
    other.step("Let me see.")
    with pytest.raises(ValueError, match="the snapshot is of scenario 'team', with other settings"):
        other.restore(env.snapshot())
    assert other.agent_selection == "coder_0"
    assert len(other.turns) == 1


def test_a_snapshot_of_another_kind_of_sandbox_is_refused() -> None:
    fake = make_env(printed("5"))
    fake.reset(seed=0)
    fake.step("a")
    fake.step(WRITE)
    with closing(real()) as env:
        started(env, 2)
        with pytest.raises(ValueError, match="another kind of sandbox"):
            env.restore(fake.snapshot())
        assert env.agent_selection == "coder_0"
        env.step(READ)
        assert env.turns[-1].tool_results[0].output == "first"


def test_there_is_nothing_to_remember_before_reset() -> None:
    for env in (make_env(), CoachWrapper(make_env(), ScriptedCoach(6.0))):
        with pytest.raises(ActionError, match="call reset"):
            env.snapshot()
        fork = env.fork()
        assert fork.agents == []
        fork.reset(seed=0)
        assert fork.agent_selection == "solver_0"
        assert env.agents == []


def test_what_would_share_or_lose_the_workspace_is_refused(env: Env) -> None:
    inner = env.unwrapped
    with pytest.raises(TypeError, match="would share the workspace"):
        copy.copy(inner)
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(env)


def test_a_fork_goes_on_with_the_same_coach_and_the_ledger_so_far() -> None:
    coach = ScriptedCoach(6.0, 3.0)
    env = CoachWrapper(make_env(), coach)
    env.reset(seed=0)
    env.step("a")
    fork = env.fork()
    fork.step("b")
    assert [entry.score for entry in fork.ledger] == [6.0, 3.0]
    assert [entry.score for entry in env.ledger] == [6.0]
    assert fork.coach is coach


def test_each_action_of_an_order_with_several_visits_can_be_branched() -> None:
    table = {"order": ["pro", "con", "pro"], "roles": {}}
    for role in ("pro", "con"):
        table["roles"][role] = {"prompt": f"You are {role}: {{{{ problem }}}}"}
    debate = scenario(top=table)
    env = PipelineEnv(debate, tasks=Problems(), outcome=FixedOutcome(1.0), sandbox=bare_sandbox)
    env.reset(seed=0)
    actions = ["yes", "no", "yes again"]
    snapshots = []
    for action in actions:
        snapshots.append(env.snapshot())
        env.step(action)
    expected = rest(env, [])
    for turns, snapshot in enumerate(snapshots):
        env.restore(snapshot)
        assert rest(env, actions[turns:])[-len(expected) :] == expected


def test_a_snapshot_of_other_wrappers_is_refused() -> None:
    bare, wrapped = make_env(), CoachWrapper(make_env(), ScriptedCoach(6.0))
    for env in (bare, wrapped):
        env.reset(seed=0)
    for env, snapshot in ((bare, wrapped.snapshot()), (wrapped, bare.snapshot()), (bare, 5)):
        with pytest.raises(TypeError, match=r"restore\(\) wants a \w+Snapshot, not"):
            env.restore(snapshot)
        assert env.agent_selection == "solver_0"


@pytest.mark.parametrize(
    "other",
    [
        lambda: CoachWrapper(make_env(), ScriptedCoach(6.0), Payment(2.0)),
        lambda: CoachWrapper(make_env(), ScriptedCoach(6.0), deferred=True),
    ],
)
def test_a_snapshot_of_another_way_to_pay_is_refused(other: Callable[[], CoachWrapper]) -> None:
    env, alike = other(), CoachWrapper(make_env(), ScriptedCoach(6.0))
    for each in (env, alike):
        each.reset(seed=0)
    env.step("a")
    with pytest.raises(ValueError, match="restore it in one that is made alike"):
        alike.restore(env.snapshot())
    assert alike.ledger == ()


def test_a_seat_goes_back_too() -> None:
    seat = SeatEnv(coached(), "coder_0")
    with closing(seat):
        seat.reset(seed=3)
        seat.step(WRITE)
        snapshot = seat.snapshot()
        expected = seat.step(APPEND)
        for _ in range(2):
            seat.restore(snapshot)
            assert seat.step(APPEND) == expected
