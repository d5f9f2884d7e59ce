from __future__ import annotations

import copy
import json
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from team import code, make_env, printed

from mappa_envs.coach.ledger import Payment
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import ActionError, SandboxError, ScenarioError, TaskError
from mappa_envs.outcomes.math_answers import MathAnswerScorer
from mappa_envs.sandbox.protocol import ExecResult
from mappa_envs.sandbox.scratch import scratch_folder
from mappa_envs.scenario import Scenario
from mappa_envs.tasks.math_generated import GeneratedMath
from mappa_envs.teams import NOTHING_TO_SAY
from mappa_envs.testing import FakeSandbox, ScriptedCoach, ScriptedTeam, play
from mappa_envs.views.seat import SeatEnv

PROGRAM = code("print(5)")
AGENTS = ("solver_0", "coder_0", "verifier_0")


def team(*results: ExecResult | SandboxError, **settings: Any) -> PipelineEnv:
    """The team on generated problems; the solver has a script, and programs print 5."""
    return make_env(
        *(results or [printed("5\n")]),
        tasks=GeneratedMath(),
        solver={"script": ["It is {{ problem }}"]},
        coder={"max_turns": 3},
        **settings,
    )


def coached(*scores: float, payment: Payment | None = None) -> CoachWrapper:
    return CoachWrapper(team(), ScriptedCoach(*scores), payment)


def made(seat: str = "verifier_0", **tables: Any) -> gymnasium.Env[Any, str]:
    tables = {"sandbox": {"preload": []}, **tables}
    return gymnasium.make("mappa/MathChat-v0", seat=seat, **tables)


def last_message(observation: Mapping[str, Any]) -> str:
    return str(observation["messages"][-1]["content"])


def an_opinion(agent: str, observation: Mapping[str, Any]) -> str:
    return f"{agent} saw {len(observation['messages'])}"


def a_programmer(agent: str, observation: Mapping[str, Any]) -> str:
    """Leaves a file behind, and looks whether there was one."""
    if agent != "coder_0":
        return "Compute it."
    return "```python\nimport os\nprint(os.path.exists('left'))\nopen('left', 'w')\n```"


# --- playing one seat -------------------------------------------------------------------------


def test_teammates_play_up_to_the_seats_turn() -> None:
    env = SeatEnv(team(), "verifier_0", an_opinion)
    observation, info = env.reset(seed=3)
    assert [(turn.agent, turn.action) for turn in env.aec_env.turns] == [
        ("solver_0", "solver_0 saw 2"),
        ("coder_0", "coder_0 saw 1"),
    ]
    problem = env.aec_env.task.prompt
    assert last_message(observation).startswith(f"Check: {problem} Coder: coder_0 saw 1 Output: ")
    assert info == {"role": "verifier", "task": info["task"]}
    assert set(info["task"]) >= {"id", "split"}


def test_the_first_seat_acts_at_once_and_the_others_finish_the_episode() -> None:
    env = SeatEnv(team(), "solver_0", an_opinion)
    observation, _ = env.reset(seed=3)
    assert last_message(observation).startswith("Solve: ")
    assert env.aec_env.turns == ()
    observation, reward, terminated, truncated, info = env.step("hello")
    assert [turn.agent for turn in env.aec_env.turns] == list(AGENTS)
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info["end_reason"] == "completed"
    assert info["outcome"]["verdict"] == "no_answer"
    assert [turn["step"] for turn in info["turns"]] == [0]
    assert observation in env.observation_space
    assert last_message(observation) == "hello"


def test_a_seat_whose_turn_comes_several_times() -> None:
    env = SeatEnv(coached(1.0, 2.0, 3.0, 4.0), "coder_0", an_opinion)
    env.reset(seed=3)
    observation, reward, terminated, truncated, _ = env.step(PROGRAM)
    assert last_message(observation) == "Output of your program:\n5"
    assert (round(reward, 9), terminated, truncated) == (0.2, False, False)
    _, reward, terminated, truncated, info = env.step("It is 5.")
    assert (round(reward, 9), terminated, truncated) == (0.3, True, False)
    assert [(entry["index"], entry["score"]) for entry in info["ledger"]] == [(0, 2.0), (1, 3.0)]
    assert len(info["turns"]) == 2


def test_a_visit_later_on_is_a_step_too() -> None:
    table: dict[str, Any] = {
        "name": "debate",
        "outcome": "math_answer",
        "order": ["pro", "con", "pro"],
        "roles": {"pro": {"prompt": "Pro: {{ problem }}"}, "con": {"prompt": "{{ pro.message }}?"}},
    }
    table["roles"]["pro"]["again"] = "Con said {{ con.message }}"
    env = SeatEnv(
        PipelineEnv(
            Scenario.model_validate(table),
            tasks=GeneratedMath(),
            outcome=MathAnswerScorer(),
            sandbox=FakeSandbox,
        ),
        "pro_0",
        an_opinion,
    )
    env.reset(seed=3)
    observation, reward, terminated, truncated, _ = env.step("yes")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert last_message(observation) == "Con said con_0 saw 1"
    answer = env.aec_env.task.answers[0]
    _, reward, terminated, truncated, _ = env.step(rf"\boxed{{{answer}}}")
    assert (reward, terminated, truncated) == (1.0, True, False)


@pytest.mark.parametrize("seat", AGENTS)
@pytest.mark.parametrize("credit", ["every_action", "last_action"])
def test_the_rewards_are_what_last_pays_the_seat(seat: str, credit: Any) -> None:
    scores = (7.0, 0.1, 9.9, 3.3)
    payment = Payment(process_weight=0.3, outcome_weight=0.7, credit=credit)
    aec = coached(*scores, payment=payment)
    aec.reset(seed=5)
    texts = {
        "solver_0": ["a"],
        "coder_0": [PROGRAM, "b"],
        "verifier_0": [rf"\boxed{{{aec.unwrapped.task.answers[0]}}}"],
    }
    paid = play(aec, texts, seed=5)[seat]
    env = SeatEnv(coached(*scores, payment=payment), seat, ScriptedTeam(texts))
    env.reset(seed=5)
    rewards = []
    for text in texts[seat]:
        _, reward, terminated, _, info = env.step(text)
        rewards.append(reward)
    assert terminated
    assert rewards == paid[1:]
    assert paid[0] == 0.0
    assert sum(rewards) == sum(entry["reward"] for entry in info["ledger"]) > 0.7
    assert all(type(reward) is float for reward in rewards)


def test_a_dead_sandbox_truncates() -> None:
    env = SeatEnv(team(SandboxError("gone")), "coder_0", an_opinion)
    env.reset(seed=3)
    observation, reward, terminated, truncated, info = env.step(PROGRAM)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["end_reason"] == "sandbox_dead"
    assert "outcome" not in info
    assert observation in env.observation_space


def test_a_sandbox_that_dies_in_a_teammates_turn_truncates() -> None:
    env = SeatEnv(team(SandboxError("gone")), "solver_0", lambda agent, _: PROGRAM)
    env.reset(seed=3)
    assert env.step("a")[1:4] == (0.0, False, True)


def test_an_episode_that_ends_before_the_seats_first_turn_is_an_error() -> None:
    programs = iter([PROGRAM, "no program"])
    env = SeatEnv(
        team(SandboxError("gone")),
        "verifier_0",
        lambda agent, _: next(programs) if agent == "coder_0" else "a",
    )
    with pytest.raises(SandboxError) as caught:
        env.reset(options={"task": "test-4", "split": "test"})
    assert str(caught.value) == (
        "the episode of task 'test-4' ended (sandbox_dead) before 'verifier_0' had a turn; call "
        "reset() for another one"
    )
    with pytest.raises(ActionError, match="'verifier_0' has no turn"):
        env.step("a")
    env.reset()
    assert env.step("a")[2:4] == (True, False)


# --- teammates --------------------------------------------------------------------------------


def test_teammates_say_their_scripts_unless_told_otherwise() -> None:
    env = SeatEnv(team(), "verifier_0")
    for seed in (3, 4):
        env.reset(seed=seed)
        assert [turn.action for turn in env.aec_env.turns] == [
            f"It is {env.aec_env.task.prompt}",
            NOTHING_TO_SAY,
        ]


def test_a_table_of_teammates_leaves_the_others_their_scripts() -> None:
    env = SeatEnv(team(), "verifier_0", {"coder_0": an_opinion})
    env.reset(seed=3)
    assert [turn.action for turn in env.aec_env.turns] == [
        f"It is {env.aec_env.task.prompt}",
        "coder_0 saw 1",
    ]


def test_an_error_of_a_teammate_passes_up_and_reset_mends_it() -> None:
    answers: Iterator[Any] = iter([RuntimeError("lost"), "fine", "fine"])

    def moody(agent: str, observation: Mapping[str, Any]) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    env = SeatEnv(team(), "solver_0", moody)
    env.reset(seed=3)
    with pytest.raises(RuntimeError, match=r"^lost$"):
        env.step("a")
    with pytest.raises(ActionError, match=r"'solver_0' has no turn; call reset\(\) first"):
        env.step("not the coder's words")
    assert [turn.agent for turn in env.aec_env.turns] == ["solver_0"]
    env.reset(seed=3)
    assert env.step("a")[2]


def test_a_teammate_that_returns_no_text_is_named() -> None:
    env = SeatEnv(team(), "verifier_0", lambda agent, observation: None)  # type: ignore[arg-type]
    with pytest.raises(ActionError, match="solver_0"):
        env.reset()


@pytest.mark.parametrize(
    ("seat", "teammates", "words"),
    [
        ("verifier", None, "seat is 'verifier'; did you mean 'verifier_0'?"),
        ("judge", None, "seat is 'judge'; seats: solver_0, coder_0, verifier_0"),
        (
            "coder_0",
            {"solver": an_opinion},
            "teammates: there is no teammate 'solver'; did you mean 'solver_0'?",
        ),
        (
            "coder_0",
            {"coder_0": an_opinion},
            "teammates: 'coder_0' is the seat that you play; leave it out",
        ),
        (
            "coder_0",
            {"judge_0": an_opinion},
            "teammates: there is no teammate 'judge_0'; teammates: solver_0, verifier_0",
        ),
        (
            "coder_0",
            {"solver_0": "hello"},
            "teammates: 'solver_0' is played by 'hello'; give a function "
            "policy(agent, observation) that returns a text",
        ),
        (
            "coder_0",
            3,
            "teammates: 'solver_0' is played by 3; give a function policy(agent, observation) "
            "that returns a text",
        ),
    ],
)
def test_a_wrong_seat_or_teammate(seat: str, teammates: Any, words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        SeatEnv(team(), seat, teammates)
    assert str(caught.value) == words


# --- wrong input ------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [None, b"a", "\ud800", 1])
def test_an_action_that_is_no_text_changes_nothing(action: Any) -> None:
    env = SeatEnv(team(), "solver_0", an_opinion)
    env.reset(seed=3)
    with pytest.raises(ActionError, match="solver_0"):
        env.step(action)
    assert env.aec_env.turns == ()
    assert env.step("")[2]


def test_steps_without_an_episode() -> None:
    env = SeatEnv(team(), "solver_0", an_opinion)
    words = r"^step\(\) while 'solver_0' has no turn; call reset\(\) first$"
    with pytest.raises(ActionError, match=words):
        env.step("a")
    env.reset()
    env.step("a")
    with pytest.raises(ActionError, match=words):
        env.step("a")
    env.reset()
    env.step("a")


def test_options() -> None:
    env = SeatEnv(team(), "coder_0", an_opinion)
    _, info = env.reset(options={"split": "test", "task": 4, "colour": 1})
    assert info["task"]["id"] == "test-4"
    with pytest.raises(TaskError, match="split is 'tset'"):
        env.reset(options={"split": "tset"})
    env.reset()


# --- seeds and copies -------------------------------------------------------------------------


def episode(env: gymnasium.Env[Any, str], seed: int | None = None) -> list[Any]:
    """Play one episode; return all that `reset` and `step` gave."""
    given: list[Any] = [env.reset(seed=seed)]
    while len(given) < 2 or not (given[-1][2] or given[-1][3]):
        given.append(env.step(f"thought {len(given)}"))
    return given


def test_seeds_make_episodes_repeatable() -> None:
    first, second = made(coach={}), made(coach={})
    assert episode(first, seed=11) == episode(second, seed=11)
    assert episode(first) == episode(second)
    assert episode(first, seed=11) != episode(second, seed=12)


def test_the_same_seed_draws_the_same_task_as_in_the_teams_environment() -> None:
    aec = pettingzoo.make("aec", "mappa/MathChat-v0")
    env = made()
    for seed in (7, None):
        aec.reset(seed=seed)
        assert env.reset(seed=seed)[1]["task"] == aec.infos["verifier_0"]["task"]


def test_infos_and_observations_are_fresh_copies() -> None:
    expected = episode(SeatEnv(coached(3.0), "coder_0", an_opinion), seed=4)
    env = SeatEnv(coached(3.0), "coder_0", an_opinion)
    observation, info = env.reset(seed=4)
    observation["messages"][0]["content"] = "changed"
    info["task"].clear()
    assert env.step("thought 1") == expected[1]


def test_a_deep_copy_goes_on_alike_and_apart() -> None:
    for teammates in (None, an_opinion):
        env = SeatEnv(coached(3.0), "coder_0", teammates)
        env.reset(seed=3)
        env.step(PROGRAM)
        other = copy.deepcopy(env)
        assert other.np_random.bit_generator.state == env.np_random.bit_generator.state
        assert other.step("b") == env.step("b")
        assert len(env.aec_env.turns) == len(other.aec_env.turns) == 4
        assert other.reset() == env.reset()
        other.step("c")
        assert len(env.aec_env.turns) == 1


def test_other_copies_are_refused() -> None:
    env = SeatEnv(team(), "coder_0")
    for make_copy in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match=r"fork|make"):
            make_copy(env)


def test_instances_share_nothing_that_can_change() -> None:
    first, second = SeatEnv(team(), "coder_0"), SeatEnv(team(), "coder_0")
    first.metadata["render_modes"].append("changed")
    assert second.metadata["render_modes"] == ["ansi", "human"]
    assert first.aec_env.metadata["render_modes"] == ["ansi", "human"]
    assert SeatEnv.metadata == gymnasium.Env.metadata
    first.action_space.seed(1)
    assert second.action_space is not first.action_space


def test_what_the_seat_passes_through() -> None:
    aec = team(render_mode="ansi")
    env = SeatEnv(aec, "coder_0", an_opinion)
    assert env.action_space is aec.action_space("coder_0")
    assert env.observation_space is aec.observation_space("coder_0")
    assert env.render_mode == "ansi"
    env.reset(seed=3)
    assert "solver_0 saw 2" in str(env.render())
    env.close()
    env.close()


# --- Gymnasium's own checks -------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seat", AGENTS)
@pytest.mark.parametrize("coach", [None, {"outcome_weight": 0.5}])
def test_the_gymnasium_interface(seat: str, coach: Any, capsys: pytest.CaptureFixture[str]) -> None:
    env = made(seat, coach=coach)
    check_env(env.unwrapped)
    env.close()


@pytest.mark.filterwarnings("error")
def test_a_spec_makes_the_same_environment_again() -> None:
    tables = {"scenario": {"generated": {"levels": [2]}}, "coach": {"outcome_weight": 0.5}}
    env = made("coder_0", render_mode="ansi", **tables)
    assert env.spec is not None
    specs = (env.spec, gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    for spec in specs:
        again = gymnasium.make(spec)
        assert again.unwrapped.seat == "coder_0"  # type: ignore[attr-defined]
        assert again.render_mode == "ansi"
        assert episode(again, seed=2) == episode(env, seed=2)


@pytest.mark.filterwarnings("error")
def test_a_limit_of_gymnasiums_truncates() -> None:
    env = made("coder_0", max_episode_steps=1)
    env.reset(seed=2)
    assert env.step("```python\n```")[2:4] == (False, True)


# --- vector environments ----------------------------------------------------------------------


def vector(mode: str, count: int = 2, **tables: Any) -> Any:
    kwargs = {"shared_memory": False} if mode == "async" else {}
    tables = {"seat": "verifier_0", "teammates": an_opinion, **tables}
    return gymnasium.make_vec(
        "mappa/MathChat-v0",
        num_envs=count,
        vectorization_mode=mode,
        vector_kwargs=kwargs,
        **tables,
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments_keep_each_environments_text(mode: str) -> None:
    envs = vector(mode, coach={})
    singles = [episode(made(teammates=an_opinion, coach={}), seed=seed) for seed in (5, 6)]
    observations, infos = envs.reset(seed=[5, 6])
    for i, single in enumerate(singles):
        assert observations["messages"][i] == single[0][0]["messages"]
        assert infos["task"]["id"][i] == single[0][1]["task"]["id"]
    texts = ("thought 1", "thought 1")
    observations, rewards, terminations, truncations, infos = envs.step(texts)
    assert terminations.tolist() == [True, True]
    assert truncations.tolist() == [False, False]
    for i, single in enumerate(singles):
        assert observations["messages"][i] == single[1][0]["messages"]
        assert rewards[i] == single[1][1]
        assert infos["ledger"][i] == single[1][4]["ledger"]
        assert infos["turns"][i] == single[1][4]["turns"]
        assert infos["outcome"]["reason"][i] == single[1][4]["outcome"]["reason"]
    observations, rewards, terminations, _, infos = envs.step(("x", "y"))
    assert rewards.tolist() == [0.0, 0.0]
    assert terminations.tolist() == [False, False]
    assert "ledger" not in infos
    assert [len(messages) for messages in observations["messages"]] == [2, 2]
    assert envs.step(("x", "y"))[2].tolist() == [True, True]
    envs.close()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("first", [0, 1])
def test_natural_ends_and_limits_go_together_in_a_vector(first: int) -> None:
    makers: list[Callable[[], SeatEnv]] = [
        lambda: SeatEnv(team(), "coder_0", an_opinion),
        lambda: SeatEnv(team(SandboxError("gone")), "coder_0", an_opinion),
    ]
    envs = SyncVectorEnv([makers[first], makers[1 - first]])
    envs.reset(seed=1)
    actions = ("It is 5.", PROGRAM)
    _, _, terminations, truncations, infos = envs.step((actions[first], actions[1 - first]))
    assert terminations.tolist() == [first == 0, first == 1]
    assert truncations.tolist() == [first == 1, first == 0]
    reasons = ["completed", "sandbox_dead"]
    assert infos["end_reason"].tolist() == [reasons[first], reasons[1 - first]]
    assert infos["_outcome"].tolist() == [first == 0, first == 1]


@pytest.mark.filterwarnings("error")
def test_autoreset_in_the_same_step_keeps_the_last_info() -> None:
    modes = getattr(gymnasium.vector, "AutoresetMode", None)
    if modes is None:
        pytest.skip("this version of Gymnasium has one mode of autoreset")
    envs = SyncVectorEnv(
        [lambda: SeatEnv(coached(3.0), "verifier_0", an_opinion)] * 2,
        autoreset_mode=modes.SAME_STEP,
    )
    envs.reset(seed=1)
    observations, rewards, terminations, _, infos = envs.step(("a", "b"))
    assert terminations.tolist() == [True, True]
    assert np.round(rewards, 9).tolist() == [0.3, 0.3]
    assert [last_message(final) for final in infos["final_obs"]] == ["a", "b"]
    assert [ledger[0]["score"] for ledger in infos["final_info"]["ledger"]] == [3.0, 3.0]
    assert [len(messages) for messages in observations["messages"]] == [1, 1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_without_autoreset_the_caller_resets_what_is_over(mode: str) -> None:
    modes = getattr(gymnasium.vector, "AutoresetMode", None)
    if modes is None:
        pytest.skip("this version of Gymnasium has one mode of autoreset")
    makers = [lambda: SeatEnv(team(), "coder_0", an_opinion)] * 2
    envs: Any = (
        SyncVectorEnv(makers, autoreset_mode=modes.DISABLED)
        if mode == "sync"
        else AsyncVectorEnv(makers, autoreset_mode=modes.DISABLED, shared_memory=False)
    )
    envs.reset(seed=[1, 2])
    _, _, terminations, _, _ = envs.step(("It is 5.", PROGRAM))
    assert terminations.tolist() == [True, False]
    observations, _ = envs.reset(options={"reset_mask": terminations})
    assert len(observations["messages"][0]) == 1
    assert observations["messages"][1][-1]["content"] == "Output of your program:\n5"
    assert envs.step(("It is 6.", "It is 5."))[2].tolist() == [True, True]
    envs.close()


@pytest.fixture
def temp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files of workers forked from here; every user may enter it."""
    scratch_folder()  # the own one lies elsewhere and stays
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def test_asynchronous_workers_run_programs_and_leave_nothing_behind(temp: Path) -> None:
    tables = {"teammates": a_programmer, "sandbox": {"preload": []}}
    alone = made(**tables)
    assert r"\boxed{True}" in last_message(alone.reset(seed=1)[0])
    envs = vector("async", **tables)
    assert isinstance(envs, AsyncVectorEnv)
    for seed in ([1, 2], [3, 4]):
        observations, _ = envs.reset(seed=seed)
        for messages in observations["messages"]:
            assert r"\boxed{True}" in messages[-1]["content"]
    assert len(list(temp.iterdir())) == 2
    envs.close()
    assert list(temp.iterdir()) == []
    assert r"\boxed{True}" in last_message(alone.reset(seed=1)[0])
    alone.close()


def test_shared_memory_is_refused_with_a_reason() -> None:
    with pytest.raises(ValueError, match="shared_memory"):
        gymnasium.make_vec(
            "mappa/MathChat-v0", num_envs=1, vectorization_mode="async", seat="solver_0"
        )


def test_infos_are_plain_data() -> None:
    given = episode(made(coach={}), seed=1)
    assert json.loads(json.dumps(given[-1][4])) == given[-1][4]
