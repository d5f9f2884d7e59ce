from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pettingzoo
import pytest
from pettingzoo import AECEnv
from pettingzoo.test import parallel_api_test, parallel_seed_test
from pettingzoo.utils.wrappers import OrderEnforcingWrapper
from team import code, make_env, printed

from mappa_envs.coach.ledger import Payment
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import ActionError, CoachError, SandboxError, TaskError
from mappa_envs.registry import make_pipeline
from mappa_envs.sandbox.protocol import ExecResult
from mappa_envs.tasks.math_generated import GeneratedMath
from mappa_envs.testing import FakeSandbox, ScriptedCoach, play
from mappa_envs.views.parallel import TurnBasedParallelEnv

PROGRAM = code("print(5)")
TURNS = [
    ("solver_0", "2 + 3 = 5"),
    ("coder_0", PROGRAM),
    ("coder_0", "It is 5."),
    ("verifier_0", r"\boxed{5}"),
]
ACTIONS = {
    "solver_0": ["2 + 3 = 5"],
    "coder_0": [PROGRAM, "It is 5."],
    "verifier_0": [r"\boxed{5}"],
}


def team(*results: ExecResult | SandboxError, **settings: Any) -> PipelineEnv:
    """The team on generated problems; its programs print 5 unless `results` says otherwise."""
    return make_env(*(results or [printed("5\n")]), tasks=GeneratedMath(), **settings)


def coached(env: AECEnv[str, Any, Any], deferred: bool = False) -> CoachWrapper:
    return CoachWrapper(
        env,
        ScriptedCoach(7.0, CoachError("busy"), 0.1, 9.9, 3.3),
        Payment(process_weight=0.3, outcome_weight=0.7),
        deferred=deferred,
    )


STACKS: dict[str, Callable[[], AECEnv[str, Any, Any]]] = {
    "bare": team,
    "ordered": lambda: OrderEnforcingWrapper(team()),
    "coached": lambda: coached(team()),
    "coached later": lambda: coached(team(), deferred=True),
    "coached outside ordered": lambda: coached(OrderEnforcingWrapper(team())),
    "ordered outside coached": lambda: OrderEnforcingWrapper(coached(team())),
    "made with the rubric coach": lambda: make_pipeline(
        "mathchat", coach={"process_weight": 0.3, "outcome_weight": 0.7}
    ),
}


def parallel(*results: ExecResult | SandboxError) -> TurnBasedParallelEnv:
    env = TurnBasedParallelEnv(team(*results))
    env.reset(seed=3)
    return env


def play_turns(env: TurnBasedParallelEnv, seed: int | None = None) -> list[Any]:
    """Play `TURNS`; return what `reset` and every `step` gave."""
    given: list[Any] = [env.reset(seed=seed)]
    for agent, text in TURNS:
        given.append(env.step({agent: text}))
    return given


# --- one turn per step ------------------------------------------------------------------------


def test_reset_shows_every_agent_and_names_who_acts() -> None:
    env = TurnBasedParallelEnv(team())
    assert (env.agents, env.active_agent) == ([], None)
    observations, infos = env.reset(seed=3)
    assert env.agents == env.possible_agents == ["solver_0", "coder_0", "verifier_0"]
    assert env.active_agent == "solver_0"
    prompt = observations["solver_0"]["messages"][-1]["content"]
    assert prompt == f"Solve: {env.unwrapped.task.prompt}"
    assert observations["coder_0"] == observations["verifier_0"] == {"messages": ()}
    assert [(infos[agent]["role"], infos[agent]["active_agent"]) for agent in env.agents] == [
        ("solver", "solver_0"),
        ("coder", "solver_0"),
        ("verifier", "solver_0"),
    ]


def test_a_step_is_one_turn_of_the_active_agent_and_all_others_are_ignored() -> None:
    env = parallel()
    actions: dict[str, Any] = {"solver_0": "a", "coder_0": "ignored", "verifier_0": None}
    observations, rewards, terminations, truncations, infos = env.step(actions)
    assert [(turn.agent, turn.action) for turn in env.unwrapped.turns] == [("solver_0", "a")]
    assert observations["coder_0"]["messages"][-1]["content"].endswith(" Solver: a")
    assert observations["verifier_0"]["messages"] == ()
    assert rewards == dict.fromkeys(env.possible_agents, 0.0)
    assert terminations == truncations == dict.fromkeys(env.possible_agents, False)
    assert {info["active_agent"] for info in infos.values()} == {"coder_0"}
    assert env.active_agent == "coder_0"


def test_an_agent_that_keeps_its_turn_stays_active() -> None:
    env = parallel()
    env.step({"solver_0": "a"})
    infos = env.step({"coder_0": PROGRAM})[4]
    assert env.active_agent == infos["solver_0"]["active_agent"] == "coder_0"


# --- the end ----------------------------------------------------------------------------------


def test_the_last_step_holds_the_last_rewards_and_infos_and_ends_the_episode() -> None:
    env = TurnBasedParallelEnv(CoachWrapper(team(), ScriptedCoach(1.0, 2.0, 4.0, 8.0)))
    observations, rewards, terminations, truncations, infos = play_turns(env)[-1]
    agents = env.possible_agents
    assert rewards == {"solver_0": 0.0, "coder_0": 0.0, "verifier_0": pytest.approx(0.8)}
    assert terminations == dict.fromkeys(agents, True)
    assert truncations == dict.fromkeys(agents, False)
    assert observations["verifier_0"]["messages"][-1]["content"] == r"\boxed{5}"
    assert (env.agents, env.active_agent, env.num_agents) == ([], None, 0)
    assert env.aec_env.agents == []
    assert [infos[agent]["active_agent"] for agent in agents] == [None] * 3
    assert [infos[agent]["end_reason"] for agent in agents] == ["completed"] * 3
    assert [len(infos[agent]["turns"]) for agent in agents] == [1, 2, 1]
    assert [[entry["score"] for entry in infos[agent]["ledger"]] for agent in agents] == [
        [1.0],
        [2.0, 4.0],
        [8.0],
    ]


def test_the_outcome_of_a_bare_team_is_paid_to_everybody_in_the_last_step() -> None:
    env = TurnBasedParallelEnv(team())
    env.reset(seed=3)
    answer = env.unwrapped.task.answers[0]
    env.step({"solver_0": "a"})
    env.step({"coder_0": "b"})
    rewards = env.step({"verifier_0": rf"\boxed{{{answer}}}"})[1]
    assert rewards == dict.fromkeys(env.possible_agents, 1.0)


def test_steps_after_the_end_return_five_empty_dictionaries() -> None:
    env = TurnBasedParallelEnv(team())
    play_turns(env)
    assert env.step({"solver_0": "a"}) == env.step({}) == ({}, {}, {}, {}, {})
    env.reset()
    assert env.active_agent == "solver_0"


def test_an_episode_may_end_in_the_middle_of_a_round() -> None:
    env = parallel(SandboxError("gone"))
    env.step({"solver_0": "a"})
    _, rewards, terminations, truncations, infos = env.step({"coder_0": PROGRAM})
    assert rewards == dict.fromkeys(env.possible_agents, 0.0)
    assert terminations == dict.fromkeys(env.possible_agents, False)
    assert truncations == dict.fromkeys(env.possible_agents, True)
    assert {info["end_reason"] for info in infos.values()} == {"sandbox_dead"}
    assert (env.agents, env.active_agent) == ([], None)


# --- rewards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", STACKS)
def test_the_rewards_add_up_to_what_last_pays(stack: str) -> None:
    aec = STACKS[stack]()
    paid = play(aec, ACTIONS, seed=5)
    aec.close()
    env = TurnBasedParallelEnv(STACKS[stack]())
    rewards = [step[1] for step in play_turns(env, seed=5)[1:]]
    sums = {agent: sum(step[agent] for step in rewards) for agent in env.possible_agents}
    assert sums == {agent: sum(own) for agent, own in paid.items()}
    assert all(type(reward) is float for step in rewards for reward in step.values())
    ledger = getattr(env.aec_env, "ledger", None)
    if ledger is not None:
        assert sums == {
            agent: sum(entry.reward for entry in ledger if entry.agent == agent)
            for agent in env.possible_agents
        }
        assert any(sums.values())
    env.close()


# --- wrong input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (
            {"coder_0": "b", "verifier_0": "c"},
            "the action of 'solver_0', whose turn it is, is missing; actions given: 'coder_0', "
            "'verifier_0'; add one under 'solver_0'",
        ),
        (
            {},
            "the action of 'solver_0', whose turn it is, is missing; actions given: none; add one "
            "under 'solver_0'",
        ),
        ("solver_0", "actions are 'solver_0'; give a table such as {'solver_0': 'text'}"),
        (None, "actions are None; give a table such as {'solver_0': 'text'}"),
    ],
)
def test_the_active_agents_action_must_be_there(actions: Any, words: str) -> None:
    env = parallel()
    with pytest.raises(ActionError) as caught:
        env.step(actions)
    assert str(caught.value) == words
    assert env.unwrapped.turns == ()
    env.step({"solver_0": "a"})
    assert env.active_agent == "coder_0"


@pytest.mark.parametrize("action", [None, b"a", "\ud800", 1])
def test_an_action_that_is_no_text_changes_nothing(action: Any) -> None:
    env = parallel()
    with pytest.raises(ActionError, match="solver_0"):
        env.step({"solver_0": action})
    assert env.unwrapped.turns == ()
    env.step({"solver_0": ""})
    assert env.active_agent == "coder_0"


@pytest.mark.parametrize("stack", STACKS)
def test_a_step_before_reset_says_what_to_do(stack: str) -> None:
    env = TurnBasedParallelEnv(STACKS[stack]())
    with pytest.raises(ActionError, match=r"step\(\) before reset\(\).*call reset\(\)"):
        env.step({"solver_0": "a"})
    assert env.agents == []
    env.reset()
    env.step({"solver_0": "a"})


def test_wrong_options_are_refused_and_unknown_ones_ignored() -> None:
    env = TurnBasedParallelEnv(team())
    with pytest.raises(TaskError, match="split is 'tset'"):
        env.reset(options={"split": "tset"})
    infos = env.reset(options={"split": "test", "task": 4, "colour": 1})[1]
    assert infos["coder_0"]["task"]["id"] == "test-4"


# --- nothing is shared ------------------------------------------------------------------------


def test_infos_and_observations_are_fresh_copies() -> None:
    expected = play_turns(TurnBasedParallelEnv(coached(team())), seed=4)
    env = TurnBasedParallelEnv(coached(team()))

    def spoil(value: Any) -> None:
        if isinstance(value, Mapping):
            for inner in value.values():
                spoil(inner)
            value.clear()  # type: ignore[attr-defined]
        elif isinstance(value, list | tuple):
            for inner in value:
                spoil(inner)

    given = [env.reset(seed=4)]
    assert given[0] == expected[0]
    spoil(given[0])
    for (agent, text), wanted in zip(TURNS, expected[1:], strict=True):
        step = env.step({agent: text})
        assert step == wanted
        spoil(step)


def test_instances_share_nothing_that_can_change() -> None:
    first, second = TurnBasedParallelEnv(team()), TurnBasedParallelEnv(team())
    first.metadata["name"] = "changed"
    first.possible_agents.clear()
    assert second.metadata["name"] == first.aec_env.metadata["name"] == "team_v0"
    assert second.possible_agents == second.aec_env.possible_agents != []


# --- copies and snapshots ---------------------------------------------------------------------


@pytest.mark.parametrize("stack", STACKS)
def test_forks_and_deep_copies_go_on_alike_and_apart(stack: str) -> None:
    for make_copy in (TurnBasedParallelEnv.fork, copy.deepcopy):
        env = TurnBasedParallelEnv(STACKS[stack]())
        env.reset(seed=3)
        env.step({"solver_0": "a"})
        other = make_copy(env)
        assert type(other.aec_env) is type(env.aec_env)
        assert other.step({"coder_0": "b"})[0] == env.step({"coder_0": "b"})[0]
        other.step({"verifier_0": "c"})
        assert (env.active_agent, other.active_agent) == ("verifier_0", None)
        assert len(env.unwrapped.turns) == 2
        env.close()
        other.close()


@pytest.mark.parametrize("stack", ["bare", "ordered", "made with the rubric coach"])
def test_a_snapshot_brings_an_episode_back_also_after_its_end(stack: str) -> None:
    env = TurnBasedParallelEnv(STACKS[stack]())
    env.reset(seed=3)
    env.step({"solver_0": "a"})
    snapshot = env.snapshot()
    rest = [env.step({"coder_0": "b"}), env.step({"verifier_0": "c"})]
    assert env.agents == []
    env.restore(snapshot)
    assert env.active_agent == "coder_0"
    assert [env.step({"coder_0": "b"}), env.step({"verifier_0": "c"})] == rest
    env.close()


def test_other_copies_are_refused() -> None:
    for make_copy in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match=r"fork|make"):
            make_copy(parallel())


# --- what is passed through -------------------------------------------------------------------


def test_what_the_view_passes_through() -> None:
    aec = coached(team(render_mode="ansi"))
    env = TurnBasedParallelEnv(aec)
    assert env.metadata == aec.metadata
    assert env.render_mode == "ansi"
    assert env.unwrapped is aec.unwrapped
    assert str(env) == "team_v0"
    for agent in env.possible_agents:
        assert env.action_space(agent) is aec.action_space(agent)
        assert env.observation_space(agent) is aec.observation_space(agent)
    env.reset(seed=3)
    env.step({"solver_0": "hello"})
    assert env.render() == aec.render()
    assert "hello" in str(env.render())


def test_closing_deletes_the_workspace_and_may_be_repeated() -> None:
    started: list[FakeSandbox] = []
    env = TurnBasedParallelEnv(team(started=started))
    env.reset()
    env.step({"solver_0": "a"})
    env.step({"coder_0": PROGRAM})
    assert [sandbox.closed for sandbox in started] == [False]
    env.close()
    env.close()
    assert [sandbox.closed for sandbox in started] == [True]


# --- determinism and PettingZoo's own tests ---------------------------------------------------


def test_seed_and_actions_determine_the_whole_episode() -> None:
    first, second = (TurnBasedParallelEnv(coached(team())) for _ in range(2))
    assert play_turns(first, seed=7) == play_turns(second, seed=7)
    assert play_turns(first) == play_turns(second)
    assert first.reset(seed=8) != first.reset(seed=9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("stack", STACKS)
def test_the_parallel_interface(stack: str) -> None:
    env = TurnBasedParallelEnv(STACKS[stack]())
    parallel_api_test(env, num_cycles=60)
    env.close()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("stack", STACKS)
def test_parallel_seeding(stack: str) -> None:
    parallel_seed_test(lambda: TurnBasedParallelEnv(STACKS[stack]()), num_cycles=20)


@pytest.mark.filterwarnings("error")
def test_the_registered_parallel_environment() -> None:
    env = pettingzoo.make("parallel", "mappa/MathChat-v0", coach={})
    assert type(env) is TurnBasedParallelEnv
    parallel_api_test(env, num_cycles=60)
    env.close()
