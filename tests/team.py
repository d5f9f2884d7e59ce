"""A team of three with stand-ins for everything that costs time, for tests of environments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pettingzoo import AECEnv

from mappa_envs.env import PipelineEnv
from mappa_envs.errors import SandboxError, TaskError
from mappa_envs.outcomes.math_answers import MathAnswerScorer
from mappa_envs.outcomes.protocol import Workspace
from mappa_envs.sandbox import ExecResult, LocalSandbox, Sandbox
from mappa_envs.scenario import Scenario
from mappa_envs.testing import FakeSandbox, ScriptedTeam
from mappa_envs.types import Outcome, Split, Task

TEAM: dict[str, Any] = {
    "name": "team",
    "outcome": "math_answer",
    "roles": {
        "solver": {"prompt": "Solve: {{ problem }}", "system": "You solve."},
        "coder": {
            "prompt": "Code: {{ problem }} Solver: {{ solver.message }}",
            "max_turns": 2,
            "tools": ["python"],
        },
        "verifier": {
            "prompt": "Check: {{ problem }} Coder: {{ coder.message }} Output: {{ coder.output }}"
        },
    },
}
SUM = Task("sum", "What is 2 + 3?", ("5",), {"family": "sum"})
PRODUCT = Task("product", "What is 7 * 8?", ("56", "56.0"))
HELD_OUT = Task("held-out", "What is 9 - 5?", ("4",), split="test")
SILENT = {"solver_0": ["a"], "coder_0": ["b"], "verifier_0": ["c"]}


class Problems:
    """Two problems to train on and one to test with."""

    def __init__(self, train: Sequence[Task] = (SUM, PRODUCT)) -> None:
        self.tasks: dict[str, Sequence[Task]] = {"train": train, "test": (HELD_OUT,)}

    def size(self, split: Split) -> int:
        return len(self.tasks[split])

    def get(self, split: Split, index: int) -> Task:
        return self.tasks[split][index % len(self.tasks[split])]

    def find(self, task_id: str) -> Task:
        for task in (*self.tasks["train"], *self.tasks["test"]):
            if task.id == task_id:
                return task
        raise TaskError(f"no task is called {task_id!r}")


def bare_sandbox() -> LocalSandbox:
    """A real sandbox whose programs find nothing imported, so that they start fast."""
    return LocalSandbox(preload=())


class OneTask:
    def __init__(self, task: Task) -> None:
        self.task = task

    def size(self, split: Split) -> int:
        return 1

    def get(self, split: Split, index: int) -> Task:
        return self.task

    def find(self, task_id: str) -> Task:
        return self.task


class FixedOutcome:
    """Every episode scores the same."""

    def __init__(self, score: float) -> None:
        self.outcome = Outcome(score, "correct", "as the test says", None)

    def score(self, task: Task, text: str, workspace: Workspace | None = None) -> Outcome:
        return self.outcome

    def close(self) -> None:
        pass


def scenario(**roles: Mapping[str, Any]) -> Scenario:
    """The team with some keys of its roles, or of the scenario itself, replaced."""
    table = copy.deepcopy(TEAM)
    table.update(roles.pop("top", {}))
    for role, changes in roles.items():
        table["roles"][role].update(changes)
    return Scenario.model_validate(table)


def make_env(
    *results: ExecResult | SandboxError,
    started: list[FakeSandbox] | None = None,
    sandbox: Callable[[], Sandbox] | None = None,
    tasks: Any = None,
    render_mode: str | None = None,
    **roles: Mapping[str, Any],
) -> PipelineEnv:
    """The team with a sandbox that answers with `results`; `started` collects the sandboxes."""

    def fake() -> FakeSandbox:
        made = FakeSandbox(*results)
        if started is not None:
            started.append(made)
        return made

    return PipelineEnv(
        scenario(**roles),
        tasks=tasks or Problems(),
        outcome=MathAnswerScorer(),
        sandbox=sandbox or fake,
        render_mode=render_mode,
    )


def code(source: str) -> str:
    return f"```python\n{source}\n```"


def printed(text: str) -> ExecResult:
    return ExecResult.of(text)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def to_coder(env: AECEnv[str, Any, Any], solver: str = "2 + 3 = 5") -> None:
    """Play up to the coder's first turn."""
    env.reset(options={"task": "sum"})
    env.step(solver)
    assert env.agent_selection == "coder_0"


def to_verifier(env: AECEnv[str, Any, Any], *coder: str) -> str:
    """Play up to the verifier's turn; return what it is asked."""
    to_coder(env)
    for action in coder:
        env.step(action)
    assert env.agent_selection == "verifier_0"
    return env.observe("verifier_0")["messages"][-1]["content"]


def trace(
    env: AECEnv[str, Any, Any], actions: Any, seed: int | None = None, options: Any = None
) -> list[tuple[Any, ...]]:
    """Play an episode; return everything that was observable, as it was at the time."""
    policy = ScriptedTeam(actions) if isinstance(actions, Mapping) else actions
    seen: list[tuple[Any, ...]] = []
    env.reset(seed=seed, options=options)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        seen.append((agent, observation, reward, terminated, truncated, copy.deepcopy(info)))
        env.step(None if terminated or truncated else policy(agent, observation))
    return seen
