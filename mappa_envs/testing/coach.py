"""What every coach must do, as small checks that any one can be put through."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType

from mappa_envs.coach.protocol import Coach
from mappa_envs.registry import make_pipeline
from mappa_envs.testing import coach_answers, coach_calls
from mappa_envs.testing.coach_questions import CoachSubject
from mappa_envs.testing.env_traces import EnvFn
from mappa_envs.testing.kit import Kit

Check = Callable[[CoachSubject], None]
"""Raises `AssertionError` if the coaches that a function makes are not as they should be."""
MATHCHAT: EnvFn = partial(make_pipeline, "mathchat")

COACH_CHECKS: Mapping[str, Check] = MappingProxyType(
    {check.__name__: check for check in (*coach_answers.CHECKS, *coach_calls.CHECKS)}
)
"""Every check by its name, which says what must hold."""


def run_coach_check(
    name: str,
    make_coach: Callable[[], Coach],
    env_fn: EnvFn = MATHCHAT,
    *,
    steady: bool = True,
    known_gap: bool = False,
) -> None:
    """Put one check to new coaches.

    Args:
        name: A key of `COACH_CHECKS`.
        make_coach: Makes a new coach, see `check_coach`.
        env_fn: As there.
        steady: As there.
        known_gap: The check is to fail.

    Raises:
        AssertionError: the check failed, or is a known gap and did not.
        SandboxError: there is no sandbox to be had.
    """
    _KIT.run(name, CoachSubject(make_coach, env_fn, steady), known_gap=known_gap)


def check_coach(
    make_coach: Callable[[], Coach],
    env_fn: EnvFn = MATHCHAT,
    *,
    steady: bool = True,
    known_gaps: Collection[str] = (),
) -> None:
    """Put every check to a coach; not while an event loop runs.

    For example, in a test of a coach of your own:

        check_coach(MyCoach)

    The actions that are judged are those of the scenario's script, and odd, empty, huge and failing
    ones in their place. A coach that costs money is asked some hundred questions.

    Args:
        make_coach: Makes a new coach each time, all alike.
        env_fn: Makes what is played, without a coach; its roles are those that the coach is asked
            about.
        steady: Whether the same question always has the same answer. If not, answers are checked
            one by one and never compared.
        known_gaps: Names of checks that are to fail, so that the list stays true.

    Raises:
        AssertionError: checks failed, or known gaps did not; the message says of each what was
            expected.
        ValueError: a known gap is the name of no check.
        SandboxError: there is no sandbox to be had.
    """
    _KIT.run_all(CoachSubject(make_coach, env_fn, steady), known_gaps)


_KIT = Kit(COACH_CHECKS, nullcontext)
