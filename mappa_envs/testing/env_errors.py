"""Checks of an environment: odd actions, wrong ones, and wrong calls, which change nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from pettingzoo.utils.wrappers import OrderEnforcingWrapper  # type: ignore[import-untyped]

from mappa_envs.testing.env_traces import (
    ODD_TEXTS,
    SEED,
    Env,
    EnvFn,
    moments,
    new_trace,
    same,
    trace,
)
from mappa_envs.testing.expect import equal

_LONG_TEXTS = ("x" * 1_000_000, "`" * 1_000_000)
_NO_TEXTS: tuple[Any, ...] = (None, b"bytes", 3, ["a list"], "half \ud83d", "\udc00")
_WRONG_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("task", "no such task"),
    ("task", -1),
    ("task", 1.5),
    ("task", ["a list"]),
    ("split", "no such split"),
)


@dataclass(frozen=True, slots=True)
class _Says:
    """Every agent says one text, over and over."""

    text: str

    def __call__(self, env: Env, agent: str, turn: int) -> str:
        return self.text


def any_text_is_an_action(env_fn: EnvFn) -> None:
    """What UTF-8 can encode is taken from any agent: what it says wrongly is no error."""
    with closing(env_fn()) as env:
        for text in (*ODD_TEXTS, *_LONG_TEXTS):
            try:
                trace(env, script=_Says(text))
            except Exception as error:
                what = f"the action {text!a:.40}"
                raise AssertionError(
                    f"{what}: expected no exception, got {error!r:.500}"
                ) from error


def what_is_no_text_is_refused(env_fn: EnvFn) -> None:
    """The error names the agent, and the episode goes on as if nothing had happened."""
    expected = new_trace(env_fn)
    with closing(env_fn()) as env:
        env.reset(seed=SEED)
        actual = []
        for moment in moments(env):
            actual.append(moment)
            for action in () if moment.dead else _NO_TEXTS:
                _refused(partial(env.step, action), f"step({action!a})", moment.agent)
        same(actual, expected, "an episode with refused actions")


def finished_agents_take_only_none(env_fn: EnvFn) -> None:
    """The error names the agent, and the dead turns go on as if nothing had happened."""
    expected = new_trace(env_fn)
    with closing(env_fn()) as env:
        env.reset(seed=SEED)
        actual = []
        for moment in moments(env):
            actual.append(moment)
            if moment.dead:
                what = f"step('text') at the dead turn of {moment.agent}"
                _refused(partial(env.step, "text"), what, moment.agent)
        same(actual, expected, "an episode with texts at dead turns")


def steps_outside_an_episode_are_refused(env_fn: EnvFn) -> None:
    """The error asks for `reset()`.

    As in PettingZoo's `OrderEnforcingWrapper`, a step before the first `reset()` may be an
    `AssertionError`; with that wrapper, one after the end is ignored.
    """
    expected = new_trace(env_fn)
    with closing(env_fn()) as env:
        for action in ("text", None):
            what = f"step({action!r}) before reset()"
            _refused(partial(env.step, action), what, "reset", AssertionError)
        same(trace(env), expected, "an episode after a step before reset()")
        for action in ("text", None):
            if _enforces_order(env):
                env.step(action)
            else:
                what = f"step({action!r}) after the end"
                _refused(partial(env.step, action), what, "reset")
            equal(list(env.agents), [], "agents after a step after the end")
        same(trace(env), expected, "an episode after a step after the end")


def unknown_options_are_ignored(env_fn: EnvFn) -> None:
    """An option of somebody else's is no error and changes nothing."""
    expected = new_trace(env_fn)
    actual = new_trace(env_fn, options={"options": 1, "nobody's": None})
    same(actual, expected, "an episode with unknown options")


def wrong_options_are_refused(env_fn: EnvFn) -> None:
    """The error names the option; the episode and the next ones are as without the call.

    Environments without a `task` pass: they need not know the options `task` and `split`.
    """
    with closing(env_fn()) as env:
        expected, expected_next = trace(env), trace(env, seed=None)
    with closing(env_fn()) as env:
        env.reset(seed=SEED)
        if not hasattr(env.unwrapped, "task"):
            return
        actual = []
        for moment in moments(env):
            actual.append(moment)
            for name, value in _WRONG_OPTIONS:
                _refuses_option(env, name, value)
        same(actual, expected, "an episode with refused resets")
        same(trace(env, seed=None), expected_next, "the next episode after refused resets")


def _refuses_option(env: Env, name: str, value: object) -> None:
    options = {name: value}
    _refused(partial(env.reset, options=options), f"reset(options={options})", name)
    what = f"reset(seed=0, options={options})"
    _refused(partial(env.reset, seed=0, options=options), what, name)


def _refused(call: Callable[[], object], what: str, word: str, *also: type[Exception]) -> None:
    """Make a call that is to raise a `TypeError` or a `ValueError` with a word in its message."""
    kinds: tuple[type[Exception], ...] = (TypeError, ValueError, *also)
    try:
        call()
    except kinds as error:
        if word not in str(error):
            raise AssertionError(
                f"{what}: expected {word!r} in the message, got {error}"
            ) from error
    except Exception as error:
        raise AssertionError(f"{what}: expected TypeError or ValueError, got {error!r}") from error
    else:
        raise AssertionError(f"{what}: expected TypeError or ValueError, got no exception")


def _enforces_order(env: Any) -> bool:
    while env is not env.unwrapped:
        if isinstance(env, OrderEnforcingWrapper):
            return True
        env = env.env
    return False


CHECKS: tuple[Callable[[EnvFn], None], ...] = (
    any_text_is_an_action,
    what_is_no_text_is_refused,
    finished_agents_take_only_none,
    steps_outside_an_episode_are_refused,
    unknown_options_are_ignored,
    wrong_options_are_refused,
)
