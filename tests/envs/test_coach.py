from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import AECEnv
from pettingzoo.utils.wrappers import OrderEnforcingWrapper
from team import FixedOutcome, OneTask

from mappa_envs.coach.arithmetic import Equation, equations, evaluate, numbers, single_number
from mappa_envs.coach.checks import CHECKS, MATH_CHECKS
from mappa_envs.coach.ledger import GRID, Credit, Payment, credit_outcome, on_grid
from mappa_envs.coach.protocol import Coach, CoachContext
from mappa_envs.coach.rubric import RubricCoach
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import ActionError, CoachError, SandboxError
from mappa_envs.sandbox import ExecResult, Sandbox
from mappa_envs.sandbox.protocol import Limit
from mappa_envs.scenario import Scenario, load_scenario, scenario_folder
from mappa_envs.testing import FakeSandbox, ScriptedCoach, play
from mappa_envs.types import LedgerEntry, Task, ToolCall, ToolResult, Turn

SCENARIO = Scenario.model_validate(
    {
        "name": "team",
        "outcome": "math_answer",
        "roles": {
            "solver": {
                "prompt": "{{ problem }}",
                "rubric": {
                    "states_equation": {"points": 3},
                    "uses_given_numbers": {"points": 2},
                    "equations_hold": {"points": 3},
                    "concise": {"points": 2, "max_words": 8},
                },
            },
            "coder": {
                "prompt": "{{ solver.message }}",
                "max_turns": 2,
                "tools": ["python"],
                "rubric": {
                    "one_program": {"points": 1},
                    "program_ran": {"points": 2},
                    "printed_one_number": {"points": 1},
                },
            },
            "verifier": {
                "prompt": "{{ coder.output }}",
                "rubric": {
                    "one_box": {"points": 3},
                    "box_equals_output": {"points": 3},
                    "states_output": {"points": 0.5},
                    "concise": {"points": 1, "max_words": 5},
                },
            },
        },
    }
)
TASK = Task("t", "What is 35 + 29?", ("64",))
CODE = "```python\nprint(35 + 29)\n```"
TEXTS = {"solver_0": ["a"], "coder_0": [CODE, "b"], "verifier_0": ["c"]}
"""Four actions: solver, coder, coder, verifier."""


def make_env(
    *results: ExecResult | SandboxError, outcome: float = 0.0, task: Task = TASK
) -> PipelineEnv:
    def sandbox() -> Sandbox:
        return FakeSandbox(*(results or (ExecResult.of("64\n"),)))

    return PipelineEnv(
        SCENARIO, tasks=OneTask(task), outcome=FixedOutcome(outcome), sandbox=sandbox
    )


def coached(*scores: Any, outcome: float = 0.0, **payment: Any) -> CoachWrapper:
    return CoachWrapper(make_env(outcome=outcome), ScriptedCoach(*scores), Payment(**payment))


def statuses(env: CoachWrapper) -> list[str]:
    return [entry.status for entry in env.ledger]


def dead_infos(env: AECEnv[str, Any, Any]) -> dict[str, dict[str, Any]]:
    """Play to the end; return each agent's info at its dead turn, and check the live ones."""
    texts = iter(["a", CODE, "b", "c"])
    env.reset(seed=0)
    infos = {}
    for agent in env.agent_iter():
        _, _, terminated, truncated, info = env.last()
        if terminated or truncated:
            infos[agent] = info
            env.step(None)
        else:
            assert set(info) == {"role", "task"}
            env.step(next(texts))
    return infos


# --- payment ----------------------------------------------------------------------------------


def test_a_reward_arrives_at_the_agents_next_last() -> None:
    paid = play(coached(7.5, 5.0, 2.5, 10.0), TEXTS)
    assert paid == {
        "solver_0": [0.0, 0.75],
        "coder_0": [0.0, 0.5, 0.25],
        "verifier_0": [0.0, 1.0],
    }


def test_the_sparse_outcome_is_replaced() -> None:
    paid = play(coached(0.0, outcome=1.0), TEXTS)
    assert [sum(rewards) for rewards in paid.values()] == [0.0, 0.0, 0.0]


def test_rewards_are_those_of_the_step() -> None:
    env = coached(7.5, 5.0, 2.5, 10.0, outcome=1.0, outcome_weight=0.5)
    env.reset(seed=0)
    nothing = {"solver_0": 0.0, "coder_0": 0.0, "verifier_0": 0.0}
    assert env.rewards == nothing
    seen = []
    for text in ("a", CODE, "b", "c"):
        env.step(text)
        seen.append(env.rewards)
    assert seen == [
        {**nothing, "solver_0": 0.75},
        {**nothing, "coder_0": 0.5},
        {**nothing, "coder_0": 0.25},
        {"solver_0": 0.5, "coder_0": 1.0, "verifier_0": 1.5},
    ]
    env.step(None)
    assert env.rewards == {"coder_0": 0.0, "verifier_0": 0.0}


@pytest.mark.parametrize(
    ("credit", "coder_end"),
    [("every_action", 0.5 * 0.25 + 2 * 1.5), ("last_action", 0.5 * 0.25 + 1.5)],
)
def test_both_weights_and_both_credit_rules(credit: Credit, coder_end: float) -> None:
    weights = {"process_weight": 0.5, "outcome_weight": 2.0, "credit": credit}
    env = coached(7.5, 5.0, 2.5, 10.0, outcome=0.75, **weights)
    paid = play(env, TEXTS)
    assert paid == {
        "solver_0": [0.0, 0.5 * 0.75 + 1.5],
        "coder_0": [0.0, 0.5 * 0.5, coder_end],
        "verifier_0": [0.0, 0.5 * 1.0 + 1.5],
    }
    first = None if credit == "last_action" else 0.75
    assert [entry.outcome for entry in env.ledger] == [0.75, first, 0.75, 0.75]


def test_without_an_outcome_weight_no_outcome_is_credited() -> None:
    env = coached(5.0, outcome=1.0)
    play(env, TEXTS)
    assert [entry.outcome for entry in env.ledger] == [None] * 4


def test_the_default_payment() -> None:
    env = CoachWrapper(make_env(), ScriptedCoach(5.0))
    assert env.payment == Payment(1.0, 0.0, "every_action")


@pytest.mark.parametrize("score", [0.1, 1.0, 3.0, 7.0, 9.999])
def test_payment_is_the_formula_to_the_grid(score: float) -> None:
    payment = Payment(process_weight=0.7, outcome_weight=0.3)
    assert payment.process(score) == pytest.approx(0.7 * score / 10, abs=GRID / 2, rel=0)
    assert payment.outcome(score / 10) == pytest.approx(0.3 * score / 10, abs=GRID / 2, rel=0)
    assert (payment.process(score) / GRID).is_integer()


def test_the_grid() -> None:
    assert GRID == 2.0**-40
    assert on_grid(0.5) == 0.5
    assert on_grid(-0.1) == -on_grid(0.1)
    assert on_grid(GRID / 4) == 0.0
    assert on_grid(0.1) == Fraction(round(Fraction(0.1) * 2**40), 2**40)


def entry(step: int, agent: str, reward: float) -> LedgerEntry:
    return LedgerEntry(
        *(step, agent, agent[:-2], 0, "scored", 5.0, 1.0, 1.0, None, reward, "", "c", 0.0)
    )


def test_credit_touches_only_the_agent() -> None:
    entries = [entry(0, "a_0", 0.5), entry(1, "b_0", 0.5), entry(2, "a_0", 0.25)]
    payment = Payment(outcome_weight=0.5)
    every = credit_outcome(entries, "a_0", 1.0, payment)
    assert [e.reward for e in every] == [1.0, 0.5, 0.75]
    assert [e.outcome for e in every] == [1.0, None, 1.0]
    last = credit_outcome(entries, "a_0", 1.0, dataclasses.replace(payment, credit="last_action"))
    assert [e.reward for e in last] == [0.5, 0.5, 0.75]
    assert credit_outcome(entries, "nobody_0", 1.0, payment) == entries
    assert [e.reward for e in entries] == [0.5, 0.5, 0.25]


weights = st.floats(0, 4)


@settings(max_examples=80, deadline=None)
@given(
    scores=st.lists(
        st.one_of(st.floats(0, 10), st.just(CoachError("busy"))), min_size=4, max_size=4
    ),
    process_weight=weights,
    outcome_weight=weights,
    outcome=st.floats(0, 1),
    credit=st.sampled_from(["every_action", "last_action"]),
    wrapped=st.sampled_from(["bare", "inside", "outside"]),
    order=st.randoms(use_true_random=False),
)
def test_what_last_paid_is_the_ledgers_sum_exactly(
    scores: list[Any],
    process_weight: float,
    outcome_weight: float,
    outcome: float,
    credit: Credit,
    wrapped: str,
    order: random.Random,
) -> None:
    inner: Any = make_env(outcome=outcome)
    if wrapped == "inside":
        inner = OrderEnforcingWrapper(inner)
    payment = Payment(process_weight, outcome_weight, credit)
    wrapper = CoachWrapper(inner, ScriptedCoach(*scores), payment)
    env: Any = OrderEnforcingWrapper(wrapper) if wrapped == "outside" else wrapper
    paid = play(env, TEXTS)
    ledger = list(wrapper.ledger)
    order.shuffle(ledger)
    for agent in env.possible_agents:
        assert sum(paid[agent]) == sum(e.reward for e in ledger if e.agent == agent)
    assert sum(map(sum, paid.values())) == sum(e.reward for e in ledger)
    for e, score in zip(wrapper.ledger, scores, strict=True):
        process = 0.0 if isinstance(score, CoachError) else process_weight * score / 10
        credited = 0.0 if e.outcome is None else outcome_weight * outcome
        assert e.reward == pytest.approx(process + credited, abs=GRID, rel=0)


# --- the ledger -------------------------------------------------------------------------------


def test_the_ledger_has_one_entry_for_each_action() -> None:
    env = coached(7.5, 5.0, 2.5, 10.0, process_weight=2.0)
    env.reset(seed=0)
    assert env.ledger == ()
    env.step("a")
    assert len(env.ledger) == 1
    play(env, TEXTS)
    rows = [(e.step, e.agent, e.role, e.index, e.score, e.reward, e.coach) for e in env.ledger]
    assert rows == [
        (0, "solver_0", "solver", 0, 5.0, 1.0, "scripted"),
        (1, "coder_0", "coder", 0, 2.5, 0.5, "scripted"),
        (2, "coder_0", "coder", 1, 10.0, 2.0, "scripted"),
        (3, "verifier_0", "verifier", 0, 7.5, 1.5, "scripted"),
    ]
    assert statuses(env) == ["scored"] * 4
    assert all(e.latency_s >= 0 for e in env.ledger)
    assert [e.process_weight for e in env.ledger] == [2.0] * 4


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_agent_gets_its_own_entries_at_its_dead_turn(wrapped: bool) -> None:
    env = coached(7.5, 5.0, 2.5, 10.0, outcome=1.0, outcome_weight=0.5)
    infos = dead_infos(OrderEnforcingWrapper(env) if wrapped else env)
    assert {agent: [e["step"] for e in info["ledger"]] for agent, info in infos.items()} == {
        "solver_0": [0],
        "coder_0": [1, 2],
        "verifier_0": [3],
    }
    assert infos["solver_0"]["ledger"] == [
        {
            "step": 0,
            "agent": "solver_0",
            "role": "solver",
            "index": 0,
            "status": "scored",
            "score": 7.5,
            "process_weight": 1.0,
            "outcome_weight": 0.5,
            "outcome": 1.0,
            "reward": 1.25,
            "rationale": "scripted 7.5",
            "coach": "scripted",
            "failure": None,
            "truth_shown": False,
            "hindsight_score": None,
            "hindsight_rationale": "",
            "hindsight_failure": None,
            "paid_by": "first",
            "env_reward": 1.0,
            "prompt_hash": None,
        }
    ]
    assert infos["solver_0"]["end_reason"] == "completed"
    json.dumps(infos)


def test_infos_do_not_depend_on_clocks() -> None:
    class Slow(ScriptedCoach):
        def assess(self, turn: Turn, context: CoachContext) -> Any:
            time.sleep(0.01)
            return super().assess(turn, context)

    slow = CoachWrapper(make_env(), Slow(3.0))
    assert dead_infos(slow) == dead_infos(coached(3.0))
    assert all(e.latency_s >= 0.01 for e in slow.ledger)


# --- what the coach cannot judge --------------------------------------------------------------


def test_a_coach_error_leaves_the_action_unscored() -> None:
    env = coached(7.5, CoachError("no answer in time"), 2.5, 10.0)
    paid = play(env, TEXTS)
    assert paid["coder_0"] == [0.0, 0.0, 0.25]
    assert statuses(env) == ["scored", "unscored", "scored", "scored"]
    unscored = env.ledger[1]
    assert (unscored.score, unscored.reward, unscored.outcome) == (None, 0.0, None)
    assert unscored.rationale == "no answer in time"
    assert sum(status == "unscored" for status in statuses(env)) == 1
    assert dead_infos(coached(CoachError("busy")))["coder_0"]["ledger"][0]["status"] == "unscored"


@pytest.mark.parametrize("credit", ["every_action", "last_action"])
def test_an_unscored_action_is_paid_nothing_for_the_outcome_either(credit: Credit) -> None:
    env = coached(CoachError("busy"), outcome=1.0, outcome_weight=0.5, credit=credit)
    paid = play(env, TEXTS)
    assert paid["verifier_0"] == [0.0, 0.0]
    assert statuses(env) == ["unscored"] * 4
    assert [entry.outcome for entry in env.ledger] == [None] * 4


def test_the_lowest_score_is_a_score() -> None:
    env = coached(0.0, 0, 10, 10.0)
    paid = play(env, TEXTS)
    assert statuses(env) == ["scored"] * 4
    assert [e.score for e in env.ledger] == [0.0, 0.0, 10.0, 10.0]
    assert paid["coder_0"] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "score",
    [11, 10.000001, -1, -0.001, math.nan, math.inf, -math.inf, None, "8", "8/10", [8], True, 3j],
    ids=repr,
)
def test_what_is_no_score_from_0_to_10_leaves_the_action_unscored(score: Any) -> None:
    env = coached(5.0, score, 5.0, 5.0)
    paid = play(env, TEXTS)
    assert statuses(env) == ["scored", "unscored", "scored", "scored"]
    assert paid == {"solver_0": [0.0, 0.5], "coder_0": [0.0, 0.0, 0.5], "verifier_0": [0.0, 0.5]}
    assert env.ledger[1].score is None
    expected = f"coach 'scripted' gave {score!r}; a score is a number from 0 to 10"
    assert env.ledger[1].rationale == expected


def test_an_action_in_a_dead_sandbox_is_not_judged_and_pays_nothing() -> None:
    coach = ScriptedCoach(5.0)
    env = CoachWrapper(make_env(SandboxError("gone"), outcome=1.0), coach, Payment(1.0, 1.0))
    paid = play(env, TEXTS)
    assert paid == {"solver_0": [0.0, 0.5], "coder_0": [0.0, 0.0], "verifier_0": [0.0]}
    assert statuses(env) == ["scored", "unscored"]
    assert env.ledger[1].rationale == "not judged: the sandbox died during the action"
    assert [turn.step for turn, _ in coach.seen] == [0]
    infos = dead_infos(CoachWrapper(make_env(SandboxError("gone")), coach))
    assert infos["verifier_0"]["ledger"] == []
    assert infos["coder_0"]["end_reason"] == "sandbox_dead"


def test_what_is_no_action_is_not_judged() -> None:
    env = coached(5.0)
    env.reset(seed=0)
    with pytest.raises(ActionError):
        env.step("\ud83d")
    assert env.ledger == ()
    env.step("a")
    assert len(env.ledger) == 1


def test_a_step_after_the_end_is_an_action_error() -> None:
    env = coached(5.0)
    play(env, TEXTS)
    with pytest.raises(ActionError, match="the episode is over"):
        env.step("more")
    assert len(env.ledger) == 4


def test_a_dead_agent_only_takes_none() -> None:
    env = coached(5.0)
    env.reset()
    for text in ("a", "b", "c"):
        env.step(text)
    with pytest.raises(ValueError, match=r"^solver_0 has finished: its action is 'more'; "):
        env.step("more")
    assert env.last()[1] == 0.5
    assert len(env.ledger) == 3


# --- what the coach sees ----------------------------------------------------------------------


def test_the_coach_sees_the_turn_and_all_turns_before_it() -> None:
    coach = ScriptedCoach(5.0)
    env = CoachWrapper(make_env(), coach)
    play(env, TEXTS)
    assert [turn for turn, _ in coach.seen] == list(env.turns)
    for turn, context in coach.seen:
        assert context.problem == TASK.prompt
        assert context.history == env.turns[: turn.step]
    assert coach.seen[1][0].tool_results[0].stdout == "64\n"


def test_no_coach_sees_the_correct_answer() -> None:
    secret = "271828182845"
    task = Task("t", "What is e?", (secret,), {"solution": secret})
    coach = ScriptedCoach(5.0)
    play(CoachWrapper(make_env(task=task), coach), TEXTS)
    assert len(coach.seen) == 4
    assert secret not in repr(coach.seen)
    assert all(context.truth is None for _, context in coach.seen)


def test_a_coach_that_asks_for_it_sees_the_answer_for_the_roles_it_names() -> None:
    coach = ScriptedCoach(5.0)
    coach.truth_roles = ("verifier",)
    env = CoachWrapper(make_env(outcome=1.0), coach)
    play(env, TEXTS)
    assert [context.truth for _, context in coach.seen] == [
        None,
        None,
        None,
        'accepted answers: 64\noutcome: 1 of 1 (correct): "as the test says"',
    ]
    assert [entry.truth_shown for entry in env.ledger] == [False, False, False, True]


def test_the_same_episode_gets_the_same_scores_whatever_the_correct_answer() -> None:
    ledgers = []
    for answer in ("64", "0"):
        task = dataclasses.replace(TASK, answers=(answer,))
        env = CoachWrapper(make_env(task=task), RubricCoach(SCENARIO))
        play(env, {**TEXTS, "verifier_0": [r"\boxed{64}"]})
        ledgers.append([(e.score, e.rationale) for e in env.ledger])
    assert ledgers[0] == ledgers[1]


def test_coaches_follow_the_protocol() -> None:
    assert isinstance(ScriptedCoach(), Coach)
    assert isinstance(RubricCoach(SCENARIO), Coach)


# --- checks -----------------------------------------------------------------------------------


def ran(stdout: str, exit_code: int = 0, limit_hit: Limit | None = None) -> ToolResult:
    output = stdout.strip() or "[nothing was printed]"
    return ToolResult(ToolCall("python", "..."), output, stdout, exit_code, limit_hit)


def unread(error: str) -> ToolResult:
    return ToolResult(ToolCall("python", "", error), f"[not run: {error}]")


def turn(text: str = "", *results: ToolResult, role: str = "solver", step: int = 0) -> Turn:
    return Turn(step, f"{role}_0", role, 0, (), text, text, results, None, True)


def context(*history: Turn, problem: str = "What is 35 + 29?") -> CoachContext:
    return CoachContext(problem, history)


PRINTED_64 = turn("", ran("64\n"), role="coder")
FAILED = turn("", ran("9\n", exit_code=1), role="coder")
NOTHING = context()
AFTER_64 = context(PRINTED_64)

CASES: list[tuple[str, dict[str, Any], Turn, CoachContext, bool | None, str]] = [
    ("concise", {"max_words": 3}, turn("one two  three"), NOTHING, True, "3 words, at most 3"),
    ("concise", {"max_words": 3}, turn("one two three 4"), NOTHING, False, "4 words, at most 3"),
    ("concise", {"max_words": 3}, turn("  \n"), NOTHING, False, "0 words"),
    ("states_equation", {}, turn("So 35 + 29 = 54."), NOTHING, True, "states 35 + 29 = 54"),
    ("states_equation", {}, turn("So 64 = 64."), NOTHING, False, "no equation such as"),
    ("states_equation", {}, turn("It is 64."), NOTHING, False, "no equation such as"),
    ("equations_hold", {}, turn("35 + 29 = 64"), NOTHING, True, "all 1 true, recomputed"),
    ("equations_hold", {}, turn("1 + 1 = 2\n2 * 3 = 6"), NOTHING, True, "all 2 true"),
    ("equations_hold", {}, turn("1 + 1 = 2\n2 * 3 = 7"), NOTHING, False, "2 * 3 = 7 is not true"),
    ("equations_hold", {}, turn("It is 64."), NOTHING, False, "no equation to check"),
    ("uses_given_numbers", {}, turn("29 and 35.0"), NOTHING, True, "uses 29, 35"),
    ("uses_given_numbers", {}, turn("35 and 2"), NOTHING, False, "does not use 29"),
    ("uses_given_numbers", {}, turn("none"), NOTHING, False, "does not use 29, 35"),
    ("uses_given_numbers", {}, turn("1" * 6000), NOTHING, False, "does not use 29, 35"),
    ("uses_given_numbers", {}, turn("1"), context(problem="Why?"), None, "names no numbers"),
    ("starts_with_program", {}, turn("\n```python\nprint(1)\n```"), NOTHING, True, "begins with"),
    ("starts_with_program", {}, turn("```py\nprint(1)\n```"), NOTHING, True, "begins with"),
    ("starts_with_program", {}, turn("Sure:\n```python\n1\n```"), NOTHING, False, "words before"),
    ("starts_with_program", {}, turn("```json\n{}\n```"), NOTHING, False, "words before"),
    ("one_program", {}, turn("", ran("1")), NOTHING, True, "one program"),
    ("one_program", {}, turn("", ran("", exit_code=1)), NOTHING, True, "one program"),
    ("one_program", {}, turn(""), NOTHING, False, "no program"),
    ("one_program", {}, turn("", ran("1"), ran("2")), NOTHING, False, "2 programs instead of one"),
    ("one_program", {}, turn("", unread("no end")), NOTHING, False, "no end"),
    ("program_ran", {}, turn("", ran("1"), ran("2")), NOTHING, True, "ended with exit status 0"),
    ("program_ran", {}, turn(""), NOTHING, False, "no program ran"),
    (
        *("program_ran", {}, turn("", ran("1"), ran("a\nNo: b\n", exit_code=1)), NOTHING),
        *(False, "failed: 'No: b'"),
    ),
    (
        "program_ran",
        {},
        turn("", ran("", -9, "wall_clock")),
        NOTHING,
        False,
        "stopped at its time limit",
    ),
    ("program_ran", {}, turn("", unread("no end")), NOTHING, False, "could not be read: no end"),
    ("printed_one_number", {}, turn("", ran("64\n")), NOTHING, True, "printed '64'"),
    ("printed_one_number", {}, turn("", ran(" -1,234.5\n")), NOTHING, True, "printed '-1,234.5'"),
    ("printed_one_number", {}, turn("", ran("it is 64\n")), NOTHING, False, "printed 'it is 64'"),
    ("printed_one_number", {}, turn("", ran("6\n4\n")), NOTHING, False, "printed '6 4'"),
    ("printed_one_number", {}, turn("", ran("6"), ran("4")), NOTHING, False, "printed '6 4'"),
    ("printed_one_number", {}, turn("", ran("9" * 6000)), NOTHING, False, "printed '999"),
    ("printed_one_number", {}, turn("", ran("\n")), NOTHING, False, "nothing was printed"),
    ("printed_one_number", {}, turn(""), NOTHING, False, "nothing was printed"),
    ("one_box", {}, turn(r"so \boxed{64}"), NOTHING, True, "1 boxes, exactly one wanted"),
    ("one_box", {}, turn(r"\boxed{\frac{\sqrt{2}}{3}}"), NOTHING, True, "1 boxes"),
    ("one_box", {}, turn("64"), NOTHING, False, "0 boxes, exactly one wanted"),
    ("one_box", {}, turn(r"\boxed{6} \boxed{4}"), NOTHING, False, "2 boxes, exactly one wanted"),
    ("one_box", {}, turn(r"\boxed{6} \boxed 4"), NOTHING, False, "2 boxes, exactly one wanted"),
    ("one_box", {}, turn(r"\boxed{6"), NOTHING, False, "1 boxes"),
    ("box_is_number", {}, turn(r"\boxed{ 64 }"), NOTHING, True, "the box holds '64'"),
    ("box_is_number", {}, turn(r"\boxed{x}"), NOTHING, False, "the box holds 'x'"),
    ("box_is_number", {}, turn(r"\boxed{6} \boxed{4}"), NOTHING, False, "no single box"),
    ("box_equals_output", {}, turn(r"\boxed{64.0}"), AFTER_64, True, "the program printed 64"),
    ("box_equals_output", {}, turn(r"\boxed{54}"), AFTER_64, False, "the box holds '54'"),
    ("box_equals_output", {}, turn("64"), AFTER_64, False, "no single box to compare"),
    ("box_equals_output", {}, turn(r"\boxed{64}\boxed{64}"), AFTER_64, False, "no single box"),
    ("box_equals_output", {}, turn(r"\boxed{64}"), NOTHING, None, "no program printed a number"),
    ("box_equals_output", {}, turn(r"\boxed{9}"), context(FAILED), None, "no program printed"),
    (
        *("box_equals_output", {}, turn(r"\boxed{64}"), context(PRINTED_64, FAILED)),
        *(True, "the program printed 64"),
    ),
    (
        *("box_equals_output", {}, turn(r"\boxed{8}")),
        *(context(PRINTED_64, turn("", ran("7\nthen 8\n"))), True, "the program printed 8"),
    ),
    ("states_output", {}, turn("It is 64."), AFTER_64, True, "names the printed 64"),
    ("states_output", {}, turn("It is 164."), AFTER_64, False, "does not name the printed 64"),
    ("states_output", {}, turn("64"), NOTHING, None, "no program printed a number to name"),
]


@pytest.mark.parametrize(
    ("name", "parameters", "judged", "known", "passed", "reason"),
    CASES,
    ids=[f"{case[0]}-{case[4]}-{n}" for n, case in enumerate(CASES)],
)
def test_checks(
    name: str,
    parameters: dict[str, Any],
    judged: Turn,
    known: CoachContext,
    passed: bool | None,
    reason: str,
) -> None:
    verdict = CHECKS[name](judged, known, **parameters)
    assert verdict.passed is passed
    assert reason in verdict.reason


def test_every_check_is_tested_passing_and_failing() -> None:
    found = {(case[0], case[4]) for case in CASES}
    assert {(c.__name__, passed) for c in MATH_CHECKS for passed in (True, False)} <= found


def test_checks_look_at_what_is_visible() -> None:
    hidden = dataclasses.replace(turn(r"<think>\boxed{1}</think>\boxed{64}"), visible=r"\boxed{64}")
    assert CHECKS["one_box"](hidden, NOTHING).passed
    hidden = dataclasses.replace(turn("<think>1 + 1 = 3</think>"), visible="1 + 1 = 2")
    assert CHECKS["equations_hold"](hidden, NOTHING).passed


def test_a_program_that_failed_without_a_word_costs_the_point() -> None:
    silent = ToolResult(ToolCall("python", ""), output="", exit_code=-9, limit_hit="memory")
    verdict = CHECKS["program_ran"](turn("", silent), NOTHING)
    assert (verdict.passed, verdict.reason) == (False, "failed, and printed nothing")


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.sampled_from(r"\boxed{} 0123456789.,-+*/=()x^$" + "\n×÷−"), max_size=80),
    stdout=st.text(max_size=30),
)
def test_no_text_breaks_a_check(text: str, stdout: str) -> None:
    known = context(turn("", ran(stdout)), problem=text)
    for check in MATH_CHECKS:
        parameters = {"max_words": 5} if check.__name__ == "concise" else {}
        assert check(turn(text, ran(stdout)), known, **parameters).reason


# --- the rubric -------------------------------------------------------------------------------


def test_the_score_is_the_share_of_points() -> None:
    coach = RubricCoach(SCENARIO)
    right = coach.assess(turn("35 + 29 = 64"), NOTHING)
    assert right.score == 10.0
    wrong = coach.assess(turn("35 + 29 = 54"), NOTHING)
    assert wrong.score == 7.0  # 3 + 2 + 0 + 2 of 10
    assert wrong.rationale == "\n".join(
        [
            "3/3 states_equation: states 35 + 29 = 54",
            "2/2 uses_given_numbers: uses 29, 35",
            "0/3 equations_hold: 35 + 29 = 54 is not true",
            "2/2 concise: 5 words, at most 8 wanted",
        ]
    )
    assert coach.assess(turn(""), NOTHING).score == 0.0


def test_a_check_that_does_not_apply_neither_gives_nor_costs_points() -> None:
    coach = RubricCoach(SCENARIO)
    assessment = coach.assess(turn(r"\boxed{64}", role="verifier"), NOTHING)
    assert assessment.score == 10.0  # 3 + 1 of 4
    assert assessment.rationale.splitlines() == [
        "3/3 one_box: 1 boxes, exactly one wanted",
        "-/3 box_equals_output: no program printed a number to compare with",
        "-/0.5 states_output: no program printed a number to name",
        "1/1 concise: 1 words, at most 5 wanted",
    ]
    late = coach.assess(turn(r"\boxed{63} is what it is now", role="verifier"), AFTER_64)
    assert late.score == 10 * 3 / 7.5


def test_roles_have_their_own_rubrics() -> None:
    coach = RubricCoach(SCENARIO)
    assert coach.assess(turn(CODE, ran("64\n"), role="coder"), NOTHING).score == 10.0
    assert coach.assess(turn(CODE, ran("x\n"), role="coder"), NOTHING).score == 7.5
    assert coach.assess(turn(CODE, ran("", 1), role="coder"), NOTHING).score == 2.5
    assert coach.assess(turn("64", role="coder"), NOTHING).score == 0.0


def test_a_turn_that_no_check_applies_to_is_unscored() -> None:
    table = SCENARIO.model_dump()
    table["roles"]["solver"]["rubric"] = {"uses_given_numbers": {"points": 1}}
    coach = RubricCoach(Scenario.model_validate(table))
    with pytest.raises(CoachError, match="no check of the rubric of 'solver' applies"):
        coach.assess(turn("a"), context(problem="Why?"))


@pytest.mark.parametrize("count", [2, 3, 20])
def test_writing_many_boxes_does_not_pay(count: int) -> None:
    def score(boxes: Sequence[str]) -> float:
        text = " ".join(rf"\boxed{{{box}}}" for box in boxes)
        return coach.assess(turn(text, role="verifier"), AFTER_64).score

    coach = RubricCoach(load_scenario(scenario_folder("mathchat")))
    right, wrong = score(["64"]), score(["63"])
    assert right > wrong
    assert score(["64"] * count) < wrong
    assert score([str(n) for n in range(65 - count, 65)]) < wrong


def test_a_coached_episode_pays_what_the_rubric_says() -> None:
    env = CoachWrapper(make_env(), RubricCoach(SCENARIO))
    texts = {
        "solver_0": ["35 + 29 = 54"],
        "coder_0": [CODE, "Done."],
        "verifier_0": [r"It is \boxed{64}"],
    }
    paid = play(env, texts)
    assert [e.score for e in env.ledger] == [7.0, 10.0, 0.0, 10.0]
    assert paid == {
        "solver_0": [0.0, on_grid(0.7)],
        "coder_0": [0.0, 1.0, 0.0],
        "verifier_0": [0.0, 1.0],
    }


# --- arithmetic -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 * 8 = 56", [("7 * 8 = 56", True)]),
        ("So 7*8=56, and so on.", [("7*8 = 56", True)]),
        ("35 + 29 = 54", [("35 + 29 = 54", False)]),
        ("7 × 8 = 56", [("7 * 8 = 56", True)]),
        ("7 · 8 = 56", [("7 * 8 = 56", True)]),
        ("56 ÷ 8 = 7", [("56 / 8 = 7", True)]),
        ("5 − 8 = −3", [("5 - 8 = -3", True)]),
        (r"$7 \times 8 = 56$", [("7 * 8 = 56", True)]),
        (r"7 \cdot 8 = 56", [("7 * 8 = 56", True)]),
        (r"\[3 + 4 = 7\]", [("3 + 4 = 7", True)]),
        ("7 x 8 = 56 and 7x8=56", [("7 * 8 = 56", True), ("7*8 = 56", True)]),
        ("1 + 2 = 3 = 3", [("1 + 2 = 3 = 3", True)]),
        ("1 + 2 = 3 + 4 = 7", [("1 + 2 = 3 + 4 = 7", False)]),
        ("1 + 1 = 2\n1 + 2 = 4", [("1 + 1 = 2", True), ("1 + 2 = 4", False)]),
        ("the total = 3 + 4 = 7", [("3 + 4 = 7", True)]),
        ("0.1 + 0.2 = 0.3", [("0.1 + 0.2 = 0.3", True)]),
        ("1/4 = 0.25", [("1/4 = 0.25", True)]),
        ("1/3 = 0.333", [("1/3 = 0.333", False)]),
        ("1,200 + 300 = 1,500", [("1,200 + 300 = 1,500", True)]),
        ("(2 + 3) * 4 = 20", [("(2 + 3) * 4 = 20", True)]),
        ("3 + 4 = 7.", [("3 + 4 = 7", True)]),
        ("-3 + 5 = 2", [("-3 + 5 = 2", True)]),
        ("3 + 4 == 7", [("3 + 4 = 7", True)]),
        ("64 = 35 + 29", [("64 = 35 + 29", True)]),
    ],
)
def test_equations(text: str, expected: list[tuple[str, bool]]) -> None:
    assert equations(text) == [Equation(stated, holds) for stated, holds in expected]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5 = 5",
        "x = 5",
        "3 + 4",
        "3 + 4 =",
        "= 3 + 4",
        "1 / 0 = 3",
        "3 = 1 / (2 - 2)",
        "2**9999 = 3 + 4",
        "2 ** 3 + 1 = 9",
        "2^3 + 1 = 9",
        "3^2 - 1 = 2^3",
        "5 + 4 = 3²",
        "8 - 1 = 7x",
        "3x - 2 = 7",
        "3x - 2 - 1 = 6",
        "x2 - 5 = 3",
        "sqrt(16) + 1 = 5",
        "5! - 20 - 100 = 0",
        "3 + = 7",
        "7 // 2 = 3",
        "2026-07-01 = 2026-07-01",
        "(((1 + 2 = 3",
        " + ".join(map(str, range(1, 101))) + " = 5050",
    ],
)
def test_what_is_no_plain_equation(text: str) -> None:
    assert equations(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "1" * 1_000_000,
        "1" + ",111" * 250_000 + "a",
        "7 * 8 = 56 " * 50_000,
        "7*8=56 a " * 20_000 + "a " * 400_000,
        "3 a " * 100_000,
        "(" * 1_000_000,
        "-" * 1_000_000,
        "=" * 1_000_000,
        " " * 1_000_000,
        "1.1" * 330_000,
        "1x" * 500_000,
        "x\n" * 500_000,
    ],
    ids=lambda text: text[:8],
)
def test_a_very_long_text_is_read_quickly(text: str) -> None:
    start = time.process_time()
    CHECKS["equations_hold"](turn(text), NOTHING)
    CHECKS["uses_given_numbers"](turn(text), NOTHING)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", Fraction(14)),
        ("-(2 - 5) / 2", Fraction(3, 2)),
        ("1,000.5", Fraction(2001, 2)),
        ("0.1", Fraction(1, 10)),
        ("1 / 0", None),
        ("2 ** 9999", None),
        ("9" * 10_000, None),
        ("True", None),
        ("'a'", None),
        ("x", None),
        ("1j", None),
        ("f(1)", None),
        ("(" * 500 + "1" + ")" * 500, None),
        ("", None),
        ("1\x00", None),
    ],
)
def test_evaluation_is_exact_or_nothing(expression: str, value: Fraction | None) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3 of 0.5", [3, Fraction(1, 2)]),
        ("1,234 and 12,34", [1234, 12, 34]),
        ("-5 or 3-5", [-5, 3, 5]),
        ("x2, 2x, v1.2.3", []),
        ("5. Then 6.", [5, 6]),
        ("9" * 6000 + " 1", [1]),
        ("0." + "1" * 6000, []),
    ],
)
def test_numbers(text: str, found: list[Any]) -> None:
    assert numbers(text) == found


@pytest.mark.parametrize(
    ("text", "number"),
    [(" $-64.50$ ", Fraction(-129, 2)), ("6 4", None), ("", None), ("x", None), ("9" * 6000, None)],
)
def test_single_numbers(text: str, number: Fraction | None) -> None:
    assert single_number(text) == number


# --- the fakes --------------------------------------------------------------------------------


def test_the_fake_sandbox() -> None:
    sandbox = FakeSandbox(ExecResult.of("", "no", exit_code=1), SandboxError("gone"))
    assert isinstance(sandbox, Sandbox)
    limits = SCENARIO.limits
    assert sandbox.exec("a", limits).exit_code == 1
    for _ in range(2):
        with pytest.raises(SandboxError, match="gone"):
            sandbox.exec("b", limits)
    assert sandbox.sources == ["a", "b", "b"]
    sandbox.write_file("f", b"12345")
    assert sandbox.read_file("f", 5) == b"12345"
    with pytest.raises(ValueError, match="larger"):
        sandbox.read_file("f", 4)
    with pytest.raises(FileNotFoundError):
        sandbox.read_file("g", 4)
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.read_file("f", 5)
    assert FakeSandbox().exec("a", limits) == ExecResult.of()


def test_a_script_that_is_too_short_says_so() -> None:
    with pytest.raises(LookupError, match="no text left for 'coder_0'"):
        play(make_env(), {"solver_0": ["a"]})
