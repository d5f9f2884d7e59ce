"""What every text environment must do, as small checks that any one can be put through."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stdout
from io import StringIO
from types import MappingProxyType

from mappa_envs.testing import (
    env_copies,
    env_errors,
    env_leaks,
    env_looks,
    env_official,
    env_repeats,
    env_rewards,
)
from mappa_envs.testing.env_traces import EnvFn
from mappa_envs.testing.kit import Kit

Check = Callable[[EnvFn], None]
"""Raises `AssertionError` if the environments that a function makes are not as they should be."""

ENV_CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        check.__name__: check
        for module in (
            *(env_official, env_repeats, env_looks, env_rewards),
            *(env_errors, env_copies, env_leaks),
        )
        for check in module.CHECKS
    }
)
"""Every check by its name, which says what must hold."""


def run_env_check(name: str, env_fn: EnvFn, *, known_gap: bool = False) -> None:
    """Put one check to new environments; it closes them, and keeps to itself what they print.

    Args:
        name: A key of `ENV_CHECKS`.
        env_fn: Makes a new environment, see `check_env`.
        known_gap: The check is to fail.

    Raises:
        AssertionError: the check failed, or is a known gap and did not.
        SandboxError: there is no sandbox to be had.
    """
    _KIT.run(name, env_fn, known_gap=known_gap)


def check_env(env_fn: EnvFn, *, known_gaps: Collection[str] = ()) -> None:
    """Put every check to an AEC environment whose observations are messages and actions texts.

    For example, in a test of a scenario of your own:

        check_env(functools.partial(make_pipeline, "my/scenario", coach={"kind": "rubric"}))

    The episodes that are played mix samples of the action spaces, odd texts and programs. What
    only some environments have is checked where it is there: `snapshot`, `restore` and `fork`, a
    `ledger`, and, where there is a `task`, the options that choose one.

    Args:
        env_fn: Makes a new environment each time, wrapped or not; called without arguments or with
            `render_mode=`, which is None, `"ansi"` or `"human"`. It is sent to other processes too,
            so it holds nothing that cannot be pickled.
        known_gaps: Names of checks that are to fail, so that the list stays true.

    Raises:
        AssertionError: checks failed, or known gaps did not; the message says of each what was
            expected.
        ValueError: a known gap is the name of no check.
        SandboxError: there is no sandbox to be had.
    """
    _KIT.run_all(env_fn, known_gaps)


_KIT = Kit(ENV_CHECKS, lambda: redirect_stdout(StringIO()))
