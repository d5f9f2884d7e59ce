"""Running checks by their names, one or all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from mappa_envs.errors import SandboxError

Subject = TypeVar("Subject")


class Kit(Generic[Subject]):
    """Checks for one kind of thing; each raises `AssertionError` if it is not as it should be."""

    def __init__(
        self,
        checks: Mapping[str, Callable[[Subject], None]],
        surroundings: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Take the checks.

        Args:
            checks: By a name that says what must hold.
            surroundings: What each check runs in.
        """
        self._checks = checks
        self._surroundings = surroundings

    def run(self, name: str, subject: Subject, *, known_gap: bool) -> None:
        """Run one check.

        Args:
            name: Of the check.
            subject: What is checked.
            known_gap: The check is to fail.

        Raises:
            AssertionError: the check failed, or is a known gap and did not.
            SandboxError: there is no sandbox to be had.
        """
        try:
            self._check(name, subject)
        except AssertionError:
            if not known_gap:
                raise
        else:
            if known_gap:
                raise AssertionError(f"{name}: it holds; take it from the known gaps")

    def run_all(self, subject: Subject, known_gaps: Collection[str]) -> None:
        """Run every check.

        Args:
            subject: What is checked.
            known_gaps: Names of checks that are to fail, so that the list stays true.

        Raises:
            AssertionError: checks failed, or known gaps did not; the message says it of each.
            ValueError: a known gap is the name of no check.
            SandboxError: there is no sandbox to be had.
        """
        if unknown := sorted(set(known_gaps) - self._checks.keys()):
            raise ValueError(
                f"no checks: {', '.join(unknown)}; there are {', '.join(self._checks)}"
            )
        failures = []
        for name in self._checks:
            try:
                self.run(name, subject, known_gap=name in known_gaps)
            except AssertionError as error:
                failures.append(f"{name}: {error}")
        if failures:
            raise AssertionError("\n".join(failures))

    def _check(self, name: str, subject: Subject) -> None:
        try:
            with self._surroundings():
                self._checks[name](subject)
        except (AssertionError, SandboxError):
            raise
        except Exception as error:
            raise AssertionError(f"expected no exception, got {error!r}") from error
