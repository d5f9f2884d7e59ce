"""Checks of an environment: PettingZoo's own tests, with warnings as failures."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from pettingzoo.test import api_test, render_test, seed_test  # type: ignore[import-untyped]
from pettingzoo.utils.wrappers import OrderEnforcingWrapper  # type: ignore[import-untyped]

from mappa_envs.testing.env_traces import Env, EnvFn

UNAVOIDABLE_WARNINGS = (
    "Observation space for each agent probably should be gymnasium.spaces.box or",
    "Action space for each agent probably should be gymnasium.spaces.box or",
    "Observation is not a NumPy array",
)
"""How the warnings begin that PettingZoo gives for any text: its observations are no arrays."""


def pettingzoo_api_test_passes(env_fn: EnvFn) -> None:
    """Attributes, keys, rewards, spaces and turns follow the AEC interface."""

    def test(make: EnvFn) -> None:
        with closing(make()) as env:
            api_test(env, num_cycles=300)

    _in_both_orders(env_fn, test)


def pettingzoo_seed_test_passes(env_fn: EnvFn) -> None:
    """Two seeded environments agree until the first agent has finished."""
    _in_both_orders(env_fn, lambda make: seed_test(make, num_cycles=60))


def pettingzoo_render_test_passes(env_fn: EnvFn) -> None:
    """Each of the render modes gives what it promises."""
    _in_both_orders(env_fn, render_test)


def _in_both_orders(env_fn: EnvFn, test: Callable[[EnvFn], None]) -> None:
    """Put a test to the environment as it is and inside an `OrderEnforcingWrapper`."""

    def ordered(**options: Any) -> Env:
        return OrderEnforcingWrapper(env_fn(**options))

    for make in (env_fn, ordered):
        with _without_warnings():
            test(make)


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # These come when garbage is collected, of whatever others left open.
        warnings.simplefilter("ignore", ResourceWarning)
        yield
    known = re.compile("|".join(map(re.escape, UNAVOIDABLE_WARNINGS)))
    others = {str(each.message) for each in caught if not known.match(str(each.message))}
    if others:
        raise AssertionError(f"expected no avoidable warnings, got {sorted(others)}")


CHECKS: tuple[Callable[[EnvFn], None], ...] = (
    pettingzoo_api_test_passes,
    pettingzoo_seed_test_passes,
    pettingzoo_render_test_passes,
)
