from __future__ import annotations

import os

import pytest
from backends import Backend
from traces import namespaces_for_everybody

from mappa_envs.sandbox import Level, LocalSandbox
from mappa_envs.testing import SANDBOX_CHECKS, FakeSandbox, check_sandbox, run_sandbox_check


def known_gaps(level: Level) -> set[str]:
    """What a level does not promise, and so must not seem to hold."""
    gaps: dict[Level, set[str]] = {
        "docker": set(),
        "namespace": set(),
        "landlock": {"names_of_host_files_are_hidden"},
        "process": {
            "there_is_no_network",
            "other_processes_are_out_of_sight",
            "other_processes_cannot_be_signalled",
            "host_files_are_out_of_reach",
            "names_of_host_files_are_hidden",
        },
    }
    if level == "process" and os.geteuid() == 0:
        gaps["process"] |= {"the_interpreter_cannot_be_changed", "programs_are_not_root"}
    if level == "process" and namespaces_for_everybody():
        gaps["process"] |= {"namespaces_cannot_be_nested"}
    return gaps[level]


@pytest.mark.parametrize("name", SANDBOX_CHECKS)
def test_every_sandbox_holds_what_its_level_promises(backend: Backend, name: str) -> None:
    run_sandbox_check(name, backend.make, known_gap=name in known_gaps(backend.level))


# --- the suite itself -------------------------------------------------------------------------


def test_a_sandbox_that_runs_nothing_fails_and_each_failure_says_what_was_expected() -> None:
    with pytest.raises(AssertionError) as failure:
        check_sandbox(FakeSandbox)
    message = str(failure.value)
    assert "output_of_both_streams_arrives: import sys" in message
    assert "expected output=Output(head='5\\n'" in message
    assert "a_closed_sandbox_is_an_error" not in message


def test_a_known_gap_must_be_one() -> None:
    name = "the_protocol_is_followed"
    with pytest.raises(AssertionError, match=f"{name}: it holds; take it from the known gaps"):
        run_sandbox_check(name, FakeSandbox, known_gap=True)
    run_sandbox_check("output_of_both_streams_arrives", FakeSandbox, known_gap=True)


def test_a_known_gap_is_the_name_of_a_check() -> None:
    with pytest.raises(ValueError, match="no checks: typo; there are "):
        check_sandbox(FakeSandbox, known_gaps=["typo"])


def test_the_callers_environment_is_as_before() -> None:
    before = dict(os.environ)
    run_sandbox_check("the_protocol_is_followed", lambda: LocalSandbox("process"))
    assert dict(os.environ) == before
