"""Scripted episodes of any text environment, and everything that is seen of them, to compare."""

from __future__ import annotations

import copy
import itertools
import operator
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.teams import ScenarioTeam
from mappa_envs.testing.expect import equal

Env: TypeAlias = AECEnv[str, Any, Any]
EnvFn: TypeAlias = Callable[..., Env]
"""Makes a new environment; called without arguments, or with `render_mode=`."""

SEED = 7
"""Of `reset`, wherever any seed would do."""
MOST_TURNS = 1000
"""An episode that is longer than this is taken for one without an end."""
ODD_TEXTS = (
    "",
    " \r\n\t",
    "a\0b",
    "\U0001f600 \u202e \ufeff",
    "e\u0301 \u00e9",
    "```python\nprint(1)",
    '<tool_call>{"name": "python", "arguments": {"code": ',
    '<tool_call>{"name": "nothing", "arguments": [1]}</tool_call>',
    "{{ problem }} {problem} %s \\1 [bold]",
    "<think>Is it so?",
    "The answer is \\boxed{7}.",
)
"""Texts that are actions like any other, though some environments stumble over them."""
_PROGRAM = """Let me see.
```python
import os, random
with open("notes.txt", "a") as notes:
    notes.write("note {number}\\n")
print(sorted(os.listdir()), random.random())
print(open("notes.txt").read())
```"""


class Moment(NamedTuple):
    """What `last()` told the agent whose turn it was, copied."""

    agent: str
    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def dead(self) -> bool:
        """Whether the agent has finished and may only be stepped with None."""
        return bool(self.terminated or self.truncated)


class Script(Protocol):
    """Says what an agent does in a turn; equal turns get equal actions."""

    def __call__(self, env: Env, agent: str, turn: int) -> str:
        """Return the action of the episode's turn of that number, from 0."""
        ...


@dataclass(frozen=True, slots=True)
class MixedScript:
    """Programs that write and read a file, odd texts, and samples of the action space."""

    seed: int = 0

    def __call__(self, env: Env, agent: str, turn: int) -> str:
        """Return the action of a turn; it depends on the seed and the turn alone."""
        draw = random.Random(f"{self.seed} {turn}")
        if (turn + self.seed) % 4 in (1, 2):
            return _PROGRAM.format(number=draw.randrange(1000))
        if draw.random() < 0.5:
            return draw.choice(ODD_TEXTS)
        space = env.action_space(agent)
        space.seed(draw.randrange(1000))
        return str(space.sample())


@dataclass(frozen=True, slots=True)
class ScenarioScript:
    """What the roles of a scenario say, so that episodes may earn something; else `MixedScript`."""

    def __call__(self, env: Env, agent: str, turn: int) -> str:
        """Return the action of a turn."""
        if not hasattr(env.unwrapped, "scenario"):
            return MixedScript(2)(env, agent, turn)
        return ScenarioTeam(env)(agent, env.observe(agent))


SCRIPT = MixedScript(0)
OTHER_SCRIPT = MixedScript(1)


def look(env: Env) -> Moment:
    """Return what `last()` says now."""
    return Moment(env.agent_selection, *copy.deepcopy(env.last()))


def moments(env: Env, script: Script = SCRIPT, turn: int = 0) -> Iterator[Moment]:
    """Play on to the end, dead turns included; yield each moment before its action is taken.

    Args:
        env: An environment in the middle of an episode.
        script: What the agents do.
        turn: How many actions, those of dead turns included, were taken before.

    Raises:
        AssertionError: the episode has no end.
    """
    for number in itertools.count(turn):
        if not env.agents:
            return
        equal(number < MOST_TURNS, True, f"an end of the episode within {MOST_TURNS} turns")
        moment = look(env)
        yield moment
        env.step(None if moment.dead else script(env, moment.agent, number))


def trace(
    env: Env,
    seed: int | None = SEED,
    script: Script = SCRIPT,
    options: dict[str, Any] | None = None,
) -> list[Moment]:
    """Play an episode and return all its moments."""
    env.reset(seed=seed, options=options)
    return list(moments(env, script))


def new_trace(
    env_fn: EnvFn,
    seed: int | None = SEED,
    script: Script = SCRIPT,
    options: dict[str, Any] | None = None,
) -> list[Moment]:
    """Play an episode in a new environment, and close it."""
    with closing(env_fn()) as env:
        return trace(env, seed, script, options)


def same(actual: list[Moment], expected: list[Moment], what: str) -> None:
    """Compare two episodes, or what is left of them.

    Raises:
        AssertionError: they differ; the message says in which turn, and in what.
    """
    for turn, (one, other) in enumerate(zip(actual, expected, strict=False)):
        unchanged(one._asdict(), other._asdict(), f"{what}: turn {turn}")
    equal(len(actual), len(expected), f"{what}: number of turns")


def unchanged(actual: object, expected: object, what: str) -> None:
    """Compare two values deeply, types included.

    Raises:
        AssertionError: they differ; the message says where.
    """
    found = _difference(actual, expected, "")
    if found is not None:
        raise AssertionError(f"{what}{found}")


def _difference(actual: Any, expected: Any, where: str) -> str | None:
    """Return the place of the first difference and the two values, or None."""
    if type(actual) is not type(expected):
        return f"{where}: expected {_cut(expected)}, got {_cut(actual)}"
    if isinstance(actual, dict) and actual.keys() == expected.keys():
        return _first(actual, expected, actual, where)
    if isinstance(actual, list | tuple) and len(actual) == len(expected):
        return _first(actual, expected, range(len(actual)), where)
    if isinstance(actual, str) and actual != expected:
        start = max(0, _common_length(actual, expected) - 20)
        actual, expected = actual[start:], expected[start:]
    equals = np.array_equal if isinstance(actual, np.ndarray) else operator.eq
    if equals(actual, expected):
        return None
    return f"{where}: expected {_cut(expected)}, got {_cut(actual)}"


def _common_length(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _first(actual: Any, expected: Any, keys: Any, where: str) -> str | None:
    found = (_difference(actual[key], expected[key], f"{where}[{key!r}]") for key in keys)
    return next(filter(None, found), None)


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
