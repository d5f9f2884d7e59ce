"""What every sandbox must do, as small checks that any backend can be put through."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from types import MappingProxyType

from mappa_envs.sandbox.protocol import Sandbox
from mappa_envs.testing import sandbox_files, sandbox_isolation, sandbox_programs
from mappa_envs.testing.kit import Kit

Factory = Callable[[], Sandbox]
"""Makes a sandbox with an empty workspace."""
Check = Callable[[Factory], None]
"""Raises `AssertionError` if the sandboxes that a factory makes are not as they should be."""


def _on_one(check: Callable[[Sandbox], None]) -> Check:
    def on_a_new_sandbox(factory: Factory) -> None:
        with closing(factory()) as sandbox:
            check(sandbox)

    return on_a_new_sandbox


SANDBOX_CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        check.__name__: _on_one(check)
        for check in (*sandbox_programs.CHECKS, *sandbox_files.CHECKS, *sandbox_isolation.CHECKS)
    }
    | {check.__name__: check for check in sandbox_files.CHECKS_OF_TWO}
)
"""Every check by its name, which says what must hold."""


def run_sandbox_check(name: str, factory: Factory, *, known_gap: bool = False) -> None:
    """Put one check to new sandboxes; it closes them.

    Args:
        name: A key of `SANDBOX_CHECKS`.
        factory: Makes a sandbox with an empty workspace.
        known_gap: The check is to fail.

    Raises:
        AssertionError: the check failed, or is a known gap and did not.
        SandboxError: there is no sandbox to be had.
    """
    _KIT.run(name, factory, known_gap=known_gap)


def check_sandbox(factory: Factory, *, known_gaps: Collection[str] = ()) -> None:
    """Put every check to a backend.

    For example, in a test of a backend of your own:

        check_sandbox(MySandbox, known_gaps=["names_of_host_files_are_hidden"])

    Args:
        factory: Makes a sandbox with an empty workspace; it is called for every check.
        known_gaps: Names of checks that are to fail, so that the list stays true.

    Raises:
        AssertionError: checks failed, or known gaps did not; the message says of each what was
            expected.
        ValueError: a known gap is the name of no check.
        SandboxError: there is no sandbox to be had.
    """
    _KIT.run_all(factory, known_gaps)


@contextmanager
def _secret_environment() -> Iterator[None]:
    """Have a secret in the caller's environment, also while the sandbox is made."""
    name, value = sandbox_isolation.SECRET
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


_KIT = Kit(SANDBOX_CHECKS, _secret_environment)
