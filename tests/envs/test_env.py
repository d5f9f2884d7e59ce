"""The rules of a turn that are pinned here:

1.  An action with a tool call runs it; the same agent acts again and sees the output.
2.  An action without a tool call hands off to the next role.
3.  The last turn of `max_turns` hands off, code or not, and the feedback says so.
4.  Several tool calls of an action run in their order, in one workspace.
5.  A role without tools hands off; its code is not run.
6.  An unknown tool and a malformed call are feedback and cost a turn; nothing is run.
7.  Thinking blocks are no place for code; `strip_thinking` hides them from later roles.
8.  A role sees what its prompt names and nothing else of the others.
9.  A long output is cut with a mark that says how much is missing.
10. A dead sandbox truncates the episode with a reason and pays nothing.
11. After the last role the outcome is paid once, to every agent, at its dead turn.
"""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pettingzoo
import pytest
from pettingzoo import AECEnv
from pettingzoo.test import api_test, render_test, seed_test
from pettingzoo.utils.wrappers import OrderEnforcingWrapper
from team import (
    SILENT,
    Problems,
    assistant,
    code,
    make_env,
    printed,
    to_coder,
    to_verifier,
    trace,
    user,
)

from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.errors import ActionError, SandboxError, TaskError
from mappa_envs.feedback import LAST_TURN, NO_PROGRAM, SANDBOX_DIED
from mappa_envs.sandbox import ExecResult, FileChanges, Sandbox
from mappa_envs.sandbox.protocol import Limit
from mappa_envs.sandbox.scratch import scratch_folder
from mappa_envs.tasks.math_files import FileMath
from mappa_envs.tasks.math_generated import GeneratedMath
from mappa_envs.testing import FakeSandbox, ScriptedCoach, ScriptedTeam, play
from mappa_envs.types import Task

# --- turns ------------------------------------------------------------------------------------


def test_the_first_agent_sees_its_prompt_and_nothing_was_paid() -> None:
    env = make_env()
    env.reset(options={"task": "sum"})
    assert env.agents == env.possible_agents == ["solver_0", "coder_0", "verifier_0"]
    messages = ({"role": "system", "content": "You solve."}, user("Solve: What is 2 + 3?"))
    info = {"role": "solver", "task": {"id": "sum", "split": "train", "family": "sum"}}
    assert env.last() == ({"messages": messages}, 0.0, False, False, info)
    assert env.observe("coder_0") == env.observe("verifier_0") == {"messages": ()}


def test_a_tool_call_gives_the_same_agent_another_turn_with_the_output() -> None:
    env = make_env(printed("5\n"))
    to_coder(env)
    env.step(code("print(2 + 3)"))
    assert env.agent_selection == "coder_0"
    assert env.observe("coder_0")["messages"] == (
        user("Code: What is 2 + 3? Solver: 2 + 3 = 5"),
        assistant(code("print(2 + 3)")),
        user("Output of your program:\n5"),
    )
    turn = env.turns[1]
    assert (turn.step, turn.agent, turn.role, turn.index) == (1, "coder_0", "coder", 0)
    assert turn.messages == (user("Code: What is 2 + 3? Solver: 2 + 3 = 5"),)
    assert turn.tool_results[0].ok
    assert not turn.handed_off


def test_an_action_without_a_tool_call_hands_off() -> None:
    started: list[FakeSandbox] = []
    env = make_env(started=started)
    question = to_verifier(env, "It is 5.")
    assert question == f"Check: What is 2 + 3? Coder: It is 5. Output: {NO_PROGRAM}"
    assert env.turns[1].handed_off
    assert env.turns[1].feedback is None
    assert env.observe("coder_0")["messages"][-1] == assistant("It is 5.")
    assert started == []


def test_the_last_turn_runs_its_code_and_hands_off_and_says_so() -> None:
    env = make_env(printed("4\n"), printed("5\n"))
    question = to_verifier(env, code("print(4)"), code("print(5)"))
    assert question == f"Check: What is 2 + 3? Coder: {code('print(5)')} Output: 5"
    feedback = f"Output of your program:\n5\n{LAST_TURN}"
    assert env.turns[2].feedback == feedback
    assert env.turns[2].handed_off
    assert env.observe("coder_0")["messages"][-1] == user(feedback)
    assert LAST_TURN not in str(env.turns[1].feedback)


def test_a_role_with_one_turn_runs_its_code_and_hands_off() -> None:
    env = make_env(printed("5\n"), coder={"max_turns": 1})
    assert to_verifier(env, code("print(5)")).endswith("Output: 5")
    assert str(env.turns[1].feedback).endswith(LAST_TURN)


def test_the_coders_message_is_its_last_and_the_output_its_last_output() -> None:
    env = make_env(printed("5\n"))
    question = to_verifier(env, code("print(5)"), "So it is five.")
    assert question == "Check: What is 2 + 3? Coder: So it is five. Output: 5"


def test_several_blocks_run_in_order_in_one_workspace() -> None:
    started: list[FakeSandbox] = []
    env = make_env(printed("1\n"), printed("2\n"), printed("3\n"), started=started)
    action = f"First\n{code('a')}\nthen\n{code('b')}"
    question = to_verifier(env, action, code("c"))
    assert [sandbox.sources for sandbox in started] == [["a", "b", "c"]]
    assert env.turns[1].feedback == "Output of your program:\n[program 1]\n1\n[program 2]\n2"
    assert question.endswith("Output: 3")


def test_output_of_several_programs_reaches_the_next_role() -> None:
    env = make_env(printed("1\n"), printed("2\n"), coder={"max_turns": 1})
    question = to_verifier(env, code("a") + "\n" + code("b"))
    assert question.endswith("Output: [program 1]\n1\n[program 2]\n2")


def test_a_role_without_tools_runs_no_code() -> None:
    started: list[FakeSandbox] = []
    env = make_env(started=started)
    to_coder(env, solver=code("print(1)"))
    assert started == []
    assert env.turns[0].tool_results == ()
    assert env.turns[0].feedback is None
    assert env.turns[0].handed_off


@pytest.mark.parametrize(
    ("action", "feedback"),
    [
        (
            '<tool_call>{"name": "sql", "arguments": {"code": "select 1"}}</tool_call>',
            "[not run: no tool 'sql'; there is: python]",
        ),
        ("```python\nprint(1)", "[not run: the code block is not closed]"),
        ("```python\n```", "[not run: the code is empty]"),
        ("<tool_call>print(1)</tool_call>", "[not run: the tool call is not valid JSON"),
        ('<tool_call>{"name": "python"}</tool_call>', "[not run: the tool call has no text under"),
    ],
)
def test_a_wrong_tool_call_is_feedback(action: str, feedback: str) -> None:
    started: list[FakeSandbox] = []
    env = make_env(started=started)
    to_coder(env)
    env.step(action)
    assert env.agent_selection == "coder_0"
    assert env.observe("coder_0")["messages"][-1]["content"].startswith(
        f"Output of your program:\n{feedback}"
    )
    assert started == []
    assert env.turns[1].tool_results[0].exit_code is None
    assert not env.turns[1].tool_results[0].ok
    env.step(action)
    assert env.agent_selection == "verifier_0"


def test_a_wrong_call_does_not_keep_the_right_one_from_running() -> None:
    started: list[FakeSandbox] = []
    env = make_env(printed("5\n"), started=started)
    to_coder(env)
    env.step(code("print(5)") + "\n```python\nprint(6)")
    assert started[0].sources == ["print(5)"]
    assert env.turns[1].feedback == (
        "Output of your program:\n[program 1]\n5\n"
        "[program 2]\n[not run: the code block is not closed]"
    )


def test_the_name_of_an_unknown_tool_is_not_echoed_at_length() -> None:
    env = make_env()
    to_coder(env)
    call = {"name": "x" * 100_000, "arguments": {"code": "1"}}
    env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
    assert len(env.turns[1].tool_results[0].output) < 200


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (ExecResult.of(), "[nothing was printed]"),
        (ExecResult.of("\n"), "[nothing was printed]"),
        (ExecResult.of("5\n", "Error: no\n", exit_code=1), "5\nError: no"),
        (
            ExecResult.of("5\n", exit_code=-9, limit_hit="wall_clock"),
            "5\n[stopped: it ran longer than 10 s]",
        ),
        (
            ExecResult.of(exit_code=-24, limit_hit="cpu"),
            "[stopped: it used up its processor time]",
        ),
        (
            ExecResult.of(exit_code=-9, limit_hit="output"),
            "[stopped: it wrote more than 10000000 bytes]",
        ),
        (
            ExecResult.of("", "MemoryError\n", exit_code=1, limit_hit="memory"),
            "MemoryError\n[stopped: it needed more than 1073741824 bytes of memory]",
        ),
    ],
)
def test_how_a_program_ended_is_shown(result: ExecResult, shown: str) -> None:
    env = make_env(result)
    to_coder(env)
    env.step(code("..."))
    assert env.turns[1].feedback == f"Output of your program:\n{shown}"
    assert env.turns[1].tool_results[0].exit_code == result.exit_code
    assert env.turns[1].tool_results[0].timed_out is (result.limit_hit == "wall_clock")
    assert env.turns[1].tool_results[0].limit_hit == result.limit_hit


@pytest.mark.parametrize("limit", get_args(Limit))
def test_every_limit_has_words(limit: Limit) -> None:
    env = make_env(ExecResult.of(exit_code=-9, limit_hit=limit))
    to_coder(env)
    env.step(code("..."))
    assert "[stopped: it " in str(env.turns[1].feedback)


@pytest.mark.parametrize(
    "thinking", ["<think>{}</think>Five.", "Five.<think>{}", "{}</think>Five."]
)
def test_code_in_thinking_is_not_run(thinking: str) -> None:
    started: list[FakeSandbox] = []
    env = make_env(started=started)
    action = thinking.format("\n" + code("print(1)") + "\n")
    question = to_verifier(env, action)
    assert started == []
    assert question == f"Check: What is 2 + 3? Coder: Five. Output: {NO_PROGRAM}"
    assert env.turns[1].action == action
    assert env.turns[1].visible == "Five."
    assert env.observe("coder_0")["messages"][-1] == assistant(action)


def test_a_scenario_may_show_thinking_to_later_roles() -> None:
    env = make_env(top={"strip_thinking": False})
    question = to_verifier(env, "<think>hm</think>Five.")
    assert "Coder: <think>hm</think>Five. Output" in question


def test_an_answer_in_thinking_is_no_answer() -> None:
    env = make_env()
    play(env, {**SILENT, "verifier_0": [r"<think>\boxed{5}</think>Done."]}, options={"task": "sum"})
    assert env.outcome is not None
    assert env.outcome.verdict == "no_answer"


def test_the_verifier_sees_the_coder_and_not_the_solver() -> None:
    env = make_env(printed("5\n"))
    to_coder(env, solver="words of the solver")
    env.step(code("print(5)"))
    env.step("words of the coder")
    seen = json.dumps(env.observe("verifier_0")["messages"])
    assert "words of the coder" in seen
    assert "words of the solver" not in seen
    assert "words of the solver" in json.dumps(env.observe("coder_0")["messages"])


def test_what_agents_write_is_never_taken_for_a_field() -> None:
    env = make_env()
    to_coder(env, solver="{{ problem }} {{ coder.output }} {problem} \\1 \\g<0>")
    content = env.observe("coder_0")["messages"][0]["content"]
    assert content.endswith("Solver: {{ problem }} {{ coder.output }} {problem} \\1 \\g<0>")


# --- the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "score"), [(r"\boxed{5}", 1.0), (r"\boxed{6}", 0.0)])
def test_the_outcome_is_paid_once_to_every_agent(answer: str, score: float) -> None:
    env = make_env(printed("5\n"))
    actions = {"solver_0": ["5"], "coder_0": [code("print(5)"), "5"], "verifier_0": [answer]}
    paid = play(env, actions, options={"task": "sum"})
    assert paid == {
        "solver_0": [0.0, score],
        "coder_0": [0.0, 0.0, score],
        "verifier_0": [0.0, score],
    }
    assert env.agents == []


def test_what_a_dead_turn_tells() -> None:
    env = make_env(ExecResult.of("", "Oops\n", exit_code=1))
    actions = {"solver_0": ["a"], "coder_0": [code("x"), "b"], "verifier_0": [r"\boxed{6}"]}
    seen = trace(env, actions, options={"task": "product"})
    assert [step[0] for step in seen] == [
        *("solver_0", "coder_0", "coder_0", "verifier_0"),
        *("solver_0", "coder_0", "verifier_0"),
    ]
    assert [(step[3], step[4]) for step in seen] == [(False, False)] * 4 + [(True, False)] * 3
    assert [set(step[5]) for step in seen[:4]] == [{"role", "task"}] * 4
    assert seen[5][5] == {
        "role": "coder",
        "task": {"id": "product", "split": "train"},
        "end_reason": "completed",
        "outcome": {
            "score": 0.0,
            "verdict": "wrong",
            "reason": "6 equals no accepted answer",
            "answer": "6",
            "accepted": ["56", "56.0"],
        },
        "turns": [
            {
                "step": 1,
                "index": 0,
                "handed_off": False,
                "feedback": "Output of your program:\nOops",
                "missing": [],
                "files": [],
                "facts": {},
                "tool_results": [
                    {
                        "tool": "python",
                        "source": "x",
                        "error": None,
                        "output": "Oops",
                        "stdout": "",
                        "exit_code": 1,
                        "timed_out": False,
                        "limit_hit": None,
                        "files": asdict(FileChanges()),
                    }
                ],
            },
            {
                "step": 2,
                "index": 1,
                "handed_off": True,
                "feedback": None,
                "missing": [],
                "files": [],
                "facts": {},
                "tool_results": [],
            },
        ],
    }
    for step in seen:
        json.dumps(step[5])
    assert env.end_reason == "completed"


@pytest.mark.parametrize("dies", ["running", "starting"])
def test_a_dead_sandbox_truncates_the_episode(dies: str) -> None:
    started: list[FakeSandbox] = []
    failure = SandboxError("the worker is gone")

    def cannot_start() -> Sandbox:
        raise failure

    env = make_env(
        printed("1\n"),
        failure,
        started=started,
        sandbox=cannot_start if dies == "starting" else None,
    )
    action = code("a") + "\n" + code("b")
    seen = trace(env, {"solver_0": ["a"], "coder_0": [action]}, options={"task": "sum"})
    assert [step[0] for step in seen[2:]] == ["solver_0", "coder_0", "verifier_0"]
    assert [(step[3], step[4]) for step in seen[2:]] == [(False, True)] * 3
    assert [step[2] for step in seen] == [0.0] * 5
    for step in seen[2:]:
        assert step[5]["end_reason"] == "sandbox_dead"
        assert step[5]["outcome"] is None
    turn = seen[3][5]["turns"][0]
    assert turn["feedback"] == SANDBOX_DIED  # what broke is for the log, not for the agent
    assert [result["output"] for result in turn["tool_results"]] == (
        [] if dies == "starting" else ["1"]
    )
    assert seen[4][1] == {"messages": ()}
    assert env.end_reason == "sandbox_dead"
    assert env.outcome is None
    assert all(sandbox.closed for sandbox in started)


def test_after_a_dead_sandbox_a_new_episode_has_a_new_one() -> None:
    started: list[FakeSandbox] = []
    env = make_env(SandboxError("gone"), started=started)
    for _ in range(2):
        to_coder(env)
        env.step(code("a"))
        assert env.end_reason == "sandbox_dead"
    assert [sandbox.sources for sandbox in started] == [["a"], ["a"]]


# --- actions that are none --------------------------------------------------------------------


@pytest.mark.parametrize(
    "action", [None, b"bytes", 3, 1.5, ["a"], "half \ud83d", "\udc00"], ids=ascii
)
def test_what_is_no_text_is_an_action_error_and_changes_nothing(action: Any) -> None:
    env = make_env()
    to_coder(env)
    before = (env.last(), env.turns, list(env.agents))
    with pytest.raises(ActionError, match=r"^action of coder_0 is .*: it must be a str that UTF-8"):
        env.step(action)
    assert (env.last(), env.turns, list(env.agents)) == before
    env.step("fine")
    assert env.agent_selection == "verifier_0"


@pytest.mark.parametrize(
    "text",
    ["", " ", "\U0001f600", "e\u0301", "a\x00b", "\r\n", "x" * 1_000_000, "`" * 1_000_000],
    ids=lambda text: ascii(text[:8]),
)
def test_any_text_is_an_action_and_comes_back_as_it_was(text: str) -> None:
    env = make_env()
    to_coder(env, solver=text)
    assert env.turns[0].action == env.turns[0].visible == text
    assert env.observe("solver_0")["messages"][-1] == assistant(text)
    assert env.observe("coder_0")["messages"][0]["content"].endswith(f" Solver: {text}")
    assert env.observe("coder_0") in env.observation_space("coder_0")
    env.step(text)
    env.step(text)
    assert env.outcome is not None
    assert env.outcome.verdict == "no_answer"


def test_a_step_after_the_end_is_an_action_error() -> None:
    env = make_env()
    play(env, SILENT)
    for action in ("more", None):
        with pytest.raises(ActionError, match="the episode is over; call reset"):
            env.step(action)
    env.reset()
    assert env.agent_selection == "solver_0"


def test_a_step_before_reset_is_an_action_error() -> None:
    with pytest.raises(ActionError, match="call reset"):
        make_env().step("a")


def test_before_reset_there_is_no_episode_to_look_at() -> None:
    bare = make_env()
    for env in (bare, CoachWrapper(bare, ScriptedCoach(1.0))):
        words = r"^agent_selection cannot be accessed before reset\(\); call reset\(\) first$"
        with pytest.raises(AttributeError, match=words):
            env.last()
        for name in ("task", "turns", "outcome", "end_reason", "infos", "rewards"):
            assert not hasattr(env, name)
            with pytest.raises(AttributeError, match=f"^{name} cannot be accessed before reset"):
                getattr(env, name)
        with pytest.raises(AssertionError, match=r"needs to be called before render\(\)$"):
            env.render()
        with pytest.raises(AssertionError, match=r"needs to be called before observe\(\)$"):
            env.observe("solver_0")
    with pytest.raises(TaskError):
        bare.reset(options={"task": -1})
    with pytest.raises(AssertionError, match=r"needs to be called before render\(\)$"):
        bare.render()
    with pytest.raises(AttributeError, match="'PipelineEnv' object has no attribute 'tasks'"):
        bare.tasks  # noqa: B018


def test_a_dead_agent_only_takes_none() -> None:
    env = make_env()
    env.reset()
    for text in "abc":
        env.step(text)
    with pytest.raises(
        ActionError, match=r"^solver_0 has finished: its action is 'one more'; pass"
    ):
        env.step("one more")
    assert env.agents == ["solver_0", "coder_0", "verifier_0"]
    env.step(None)
    assert env.agents == ["coder_0", "verifier_0"]


# --- tasks ------------------------------------------------------------------------------------


def test_options() -> None:
    env = make_env()
    for options, task_id, split in [
        ({"task": "product"}, "product", "train"),
        ({"task": 0}, "sum", "train"),
        ({"task": np.int64(1)}, "product", "train"),
        ({"task": 0, "split": "test"}, "held-out", "test"),
        ({"split": "test"}, "held-out", "test"),
        ({"split": "test", "options": 1, "temperature": 0.5}, "held-out", "test"),
    ]:
        env.reset(options=options)
        assert env.task.id == task_id
        assert env.infos["solver_0"]["task"]["id"] == task_id
        assert env.infos["solver_0"]["task"]["split"] == split


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("abc", "options are 'abc'; give a table"),
        (5, "options are 5; give a table"),
        ({"split": "validation"}, "split is 'validation'; it must be 'train' or 'test'"),
        ({"split": None}, "split is None; it must be"),
        (
            {"split": "test", "task": "sum"},
            "sum is a train task, and split is 'test'; leave split out or give 'train'",
        ),
        ({"task": -1}, "task is -1; it must be an id or an index from 0"),
        ({"task": 1.5}, "task is 1.5; it must be an id or an index from 0"),
        ({"task": True}, "task is True; it must be an id or an index from 0"),
        ({"task": ["sum"]}, "task is .'sum'.; it must be an id or an index from 0"),
        ({"task": "nobody"}, "no task is called 'nobody'"),
    ],
)
def test_wrong_options_are_task_errors_and_the_episode_goes_on(options: Any, words: str) -> None:
    env = make_env()
    to_coder(env)
    with pytest.raises(TaskError, match=words):
        env.reset(options=options)
    assert env.agent_selection == "coder_0"
    assert len(env.turns) == 1


def test_task_indices_count_through_a_file_and_start_over(tmp_path: Path) -> None:
    for name, count in (("train", 3), ("test", 2)):
        rows = [{"prompt": f"{name} {n}?", "answer": n} for n in range(count)]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    tasks = FileMath(tmp_path / "train.json", tmp_path / "test.json")
    env = make_env(tasks=tasks)

    def task_ids(split: str, indices: range) -> list[str]:
        found = []
        for index in indices:
            env.reset(options={"split": split, "task": index})
            found.append(env.task.id)
        return found

    first = task_ids("train", range(3))
    assert set(first) == {"train-1", "train-2", "train-3"}
    assert task_ids("train", range(3, 9)) == first * 2
    assert set(task_ids("test", range(2))) == {"test-1", "test-2"}
    for task_id in first:
        env.reset(options={"task": task_id})
        assert env.task == tasks.find(task_id)


def test_keys_of_a_task_row_do_not_hide_its_id_and_split() -> None:
    row = Task("own", "What?", ("1",), {"id": "other", "split": "validation", "year": 2020})
    env = make_env(tasks=Problems([row]))
    env.reset()
    assert env.infos["solver_0"]["task"] == {"id": "own", "split": "train", "year": 2020}


def test_one_task_gives_every_episode_of_a_group_the_same_start() -> None:
    first: list[Any] = []
    env, other = make_env(tasks=GeneratedMath()), make_env(tasks=GeneratedMath())
    for seed in (0, 1, None):
        for each in (env, other):
            each.reset(seed=seed, options={"task": 12, "split": "test"})
            first.append(each.last())
            each.step("something")
    assert all(start == first[0] for start in first)
    assert first[0][4]["task"]["id"] == "test-12"


def test_the_seed_draws_the_tasks() -> None:
    def drawn(seed: int) -> list[str]:
        env = make_env(tasks=GeneratedMath())
        env.reset(seed=seed)
        ids = [env.task.id]
        for _ in range(5):
            env.reset()
            ids.append(env.task.id)
        return ids

    assert drawn(3) == drawn(3)
    assert len(set(drawn(3))) == 6
    assert drawn(3) != drawn(4)


# --- looking ----------------------------------------------------------------------------------


def test_looking_changes_nothing() -> None:
    env = make_env(printed("5\n"))
    to_coder(env)
    env.step(code("print(5)"))
    for agent in env.possible_agents:
        observed = env.observe(agent)
        expected = copy.deepcopy(observed)
        for message in observed["messages"]:
            message["content"] = "changed"
        observed["messages"] = ()
        assert env.observe(agent) == env.observe(agent) == expected
    assert env.last() == env.last()
    assert env.last(observe=False)[0] is None
    assert env.turns[1].messages[0]["content"].startswith("Code: ")


def test_observations_are_always_in_the_space() -> None:
    env = make_env(printed("5\n"), SandboxError("gone"))
    for actions in (SILENT, {"solver_0": ["a"], "coder_0": [code("a"), code("b")]}):
        policy = ScriptedTeam(actions)
        env.reset()
        for agent in env.agent_iter():
            for name in env.possible_agents:
                assert env.observe(name) in env.observation_space(name)
            dead = env.terminations[agent] or env.truncations[agent]
            env.step(None if dead else policy(agent, env.observe(agent)))


def test_spaces_are_always_the_same_objects() -> None:
    env = make_env()
    for agent in env.possible_agents:
        assert env.action_space(agent) is env.action_space(agent)
        assert env.observation_space(agent) is env.observation_space(agent)


def test_nothing_is_carried_into_the_next_episode() -> None:
    env = make_env(printed("5\n"))
    actions = {"solver_0": ["a"], "coder_0": [code("x"), "b"], "verifier_0": ["c"]}
    episodes = [trace(env, actions, options={"task": "sum"}) for _ in range(3)]
    assert episodes[0] == episodes[1] == episodes[2]


def test_environments_share_nothing() -> None:
    first, second = make_env(printed("1\n")), make_env(printed("2\n"))
    alone = trace(make_env(printed("1\n")), SILENT, options={"task": "sum"})
    first.reset(options={"task": "sum"})
    second.reset(options={"task": "product"})
    seen = []
    for text in ("a", "b", "c", None, None, None):
        agent, last = first.agent_selection, first.last()
        seen.append((agent, *last[:4], copy.deepcopy(last[4])))
        first.step(text)
        if text is not None:
            second.step(code("x") if text == "b" else text)
    assert seen == alone


def test_render_as_text() -> None:
    env = make_env(printed("5\n"), render_mode="ansi")
    env.reset(options={"task": "sum"})
    assert env.render() == "task sum: What is 2 + 3?"
    play(
        env,
        {"solver_0": ["a"], "coder_0": [code("x"), "b"], "verifier_0": [r"\boxed{5}"]},
        options={"task": "sum"},
    )
    assert env.render() == "\n".join(
        [
            "task sum: What is 2 + 3?",
            *("", "--- solver_0, action 1", "a"),
            *("", "--- coder_0, action 1", code("x"), "[output]", "5"),
            *("", "--- coder_0, action 2", "b"),
            *("", "--- verifier_0, action 1", r"\boxed{5}"),
            *("", "=== outcome 1 (correct): 5 equals 5"),
        ]
    )


def test_render_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    env = make_env(render_mode="human")
    env.reset(options={"task": "sum"})
    env.step("[bold]kept as it is[/bold]")
    assert env.render() is None
    assert "[bold]kept as it is[/bold]" in capsys.readouterr().out


# --- workspaces -------------------------------------------------------------------------------


def test_the_workspace_goes_with_the_episode() -> None:
    started: list[FakeSandbox] = []
    env = make_env(printed("5\n"), started=started)
    play(env, {"solver_0": ["a"], "coder_0": [code("x"), "b"], "verifier_0": ["c"]})
    assert [sandbox.closed for sandbox in started] == [True]
    to_coder(env)
    env.step(code("x"))
    assert [sandbox.closed for sandbox in started] == [True, False]
    env.reset()
    assert [sandbox.closed for sandbox in started] == [True, True]
    to_coder(env)
    env.step(code("x"))
    env.close()
    env.close()
    assert [sandbox.closed for sandbox in started] == [True, True, True]


def test_random_actions_never_start_a_sandbox() -> None:
    started: list[FakeSandbox] = []
    env = make_env(started=started)
    for index, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(index)
    for _ in range(200):
        play(env, lambda agent, _: env.action_space(agent).sample())
    assert started == []


def test_a_real_episode_end_to_end() -> None:
    before = set(scratch_folder().iterdir())
    env = pettingzoo.make("aec", "mappa/MathChat-v0", scenario={"limits": {"output_bytes": 200}})
    actions = {
        "solver_0": ["Let me see."],
        "coder_0": [
            code("print('x' * 100_000)\nopen('note', 'w').write('5')"),
            code("print(open('note').read())"),
        ],
        "verifier_0": ["I cannot tell."],
    }
    seen = trace(env, actions, seed=0)
    programs = [turn["tool_results"][0] for turn in seen[5][5]["turns"]]
    half = "x" * 100
    assert programs[0]["output"] == f"{half}\n[... 99801 bytes cut ...]\n{half[1:]}"
    assert programs[1]["output"] == "5"
    assert [program["exit_code"] for program in programs] == [0, 0]
    assert set(scratch_folder().iterdir()) == before

    env.reset(seed=0)
    env.step("a")
    env.step(code("open('left behind', 'w')"))
    assert len(set(scratch_folder().iterdir()) - before) == 2  # the files and their contents
    env.close()
    assert set(scratch_folder().iterdir()) == before


# --- determinism ------------------------------------------------------------------------------

EPISODE = """
import hashlib, json
from mappa_envs.registry import make_pipeline

def digest():
    env = make_pipeline("mathchat", coach={"kind": "rubric", "outcome_weight": 0.5})
    texts = iter(["2 + 3 = 5", "None needed.", "It is \\\\boxed{5}.", "again", "b", "c"])
    seen = []
    for seed in (11, None):
        env.reset(seed=seed)
        for agent in env.agent_iter():
            observation, reward, terminated, truncated, info = env.last()
            seen.append([agent, observation, reward, terminated, truncated, info])
            env.step(None if terminated or truncated else next(texts))
    env.close()
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()
"""


def test_seed_and_actions_determine_everything_in_every_process() -> None:
    space: dict[str, Any] = {}
    exec(EPISODE, space)
    other = subprocess.run(
        [sys.executable, "-c", EPISODE + "print(digest())"],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == space["digest"]() == space["digest"]()


def test_seed_and_actions_determine_the_whole_episode() -> None:
    def episode(seed: int) -> list[tuple[Any, ...]]:
        env = make_env(
            printed("5\n"), ExecResult.of("", "Oops\n", exit_code=1), tasks=GeneratedMath()
        )
        actions = {
            "solver_0": ["<think>2</think> 1 + 1 = 2"],
            "coder_0": [code("a") + code("b"), code("c")],
            "verifier_0": [r"\boxed{5}"],
        }
        return trace(env, actions, seed=seed)

    assert episode(5) == episode(5)
    assert episode(5) != episode(6)


def test_the_callers_random_state_is_left_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist()
    env = make_env(printed("5\n"), tasks=GeneratedMath())
    env.reset(seed=4)
    env.reset()
    play(env, {"solver_0": ["a"], "coder_0": [code("x"), "b"], "verifier_0": ["c"]})
    env.action_space("solver_0").sample()
    env.close()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states


# --- PettingZoo's own tests -------------------------------------------------------------------

# Text has no Box or Discrete space, and its observations are no arrays.
only_text_warnings = pytest.mark.filterwarnings(
    "error",
    "ignore:Observation space for each agent probably should be gymnasium.spaces.box:UserWarning",
    "ignore:Action space for each agent probably should be gymnasium.spaces.box:UserWarning",
    "ignore:Observation is not a NumPy array:UserWarning",
)


def made(**tables: Any) -> AECEnv[str, Any, Any]:
    return pettingzoo.make("aec", "mappa/MathChat-v0", **tables)


def coached(env: AECEnv[str, Any, Any]) -> CoachWrapper:
    return CoachWrapper(env, ScriptedCoach(7.0, 0.1, 9.9, 3.0, 1.0))


STACKS: dict[str, Callable[[], AECEnv[str, Any, Any]]] = {
    "bare": make_env,
    "ordered": lambda: OrderEnforcingWrapper(make_env()),
    "coached": lambda: coached(make_env()),
    "coached outside ordered": lambda: coached(OrderEnforcingWrapper(make_env())),
    "ordered outside coached": lambda: OrderEnforcingWrapper(coached(make_env())),
    "made": made,
    "made with a coach": lambda: made(coach={"kind": "rubric", "outcome_weight": 0.3}),
    "made with a coach, ordered": lambda: OrderEnforcingWrapper(made(coach={})),
}


@only_text_warnings
@pytest.mark.parametrize("stack", STACKS)
def test_the_aec_interface(stack: str) -> None:
    env = STACKS[stack]()
    api_test(env, num_cycles=300)
    env.close()


@only_text_warnings
@pytest.mark.parametrize("stack", STACKS)
def test_seeding(stack: str) -> None:
    seed_test(STACKS[stack], num_cycles=60)


@only_text_warnings
@pytest.mark.parametrize("coach", [None, {"kind": "rubric"}])
def test_rendering(coach: Any) -> None:
    render_test(lambda render_mode: made(render_mode=render_mode, coach=coach))
