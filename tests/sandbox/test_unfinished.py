"""An action that does not come to its end did not happen, and the sandbox goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import Access, Actor, Limits, LocalSandbox
from mappa_envs.sandbox.workspace import Workspace

LIMITS = Limits(timeout_s=20.0)


@pytest.fixture
def sandbox() -> Iterator[LocalSandbox]:
    sandbox = LocalSandbox(preload=())
    sandbox.write_file("data/kept", b"1")
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk"), MemoryError()])
@pytest.mark.parametrize("verb", ["begin", "finish"])
def test_whatever_breaks_an_action_is_undone(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch, verb: str, error: BaseException
) -> None:
    before = sandbox.manifest()
    done = getattr(Workspace, verb)

    def break_off(*arguments: Any) -> None:
        done(*arguments)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, verb, break_off)
        expected = SandboxError if isinstance(error, OSError) else type(error)
        with pytest.raises(expected):
            sandbox.exec("open('new', 'w')", LIMITS, Actor(access=Access(read=())))
    assert sandbox.manifest() == before
    assert sandbox.exec("print(open('data/kept').read())", LIMITS).stdout == "1\n"


@pytest.mark.parametrize("patterns", ["*.csv", ["*"], (1,), None])
def test_patterns_are_a_tuple_of_texts(patterns: Any) -> None:
    with pytest.raises(ValueError, match="give a tuple of patterns"):
        Access(read=patterns)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"memory_bytes": 1.5e9}, "memory_bytes is 1500000000.0; it must be a whole number"),
        ({"file_bytes": 2**64}, "it must be a whole number below"),
        ({"timeout_s": "5"}, "timeout_s is '5'; a limit is a number above 0"),
        ({"processes": True}, "processes is True; a limit is a number above 0"),
    ],
)
def test_limits_are_numbers_that_the_kernel_takes(limits: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**limits)


@pytest.mark.parametrize("level", ["bogus", "docker", None])
def test_an_unknown_level_names_those_there_are(level: Any) -> None:
    with pytest.raises(SandboxError, match="there is 'auto', 'namespace', 'landlock' and"):
        LocalSandbox(level)


def test_a_huge_exit_status_is_no_success(sandbox: LocalSandbox) -> None:
    assert sandbox.exec("import sys; sys.exit(2**70)", LIMITS).exit_code == 255
