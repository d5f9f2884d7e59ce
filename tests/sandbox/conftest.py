from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator

import pytest
from backends import LOCAL_LEVELS, Backend, docker, local
from traces import kill, survivors

from mappa_envs.sandbox.levels import LocalLevel

if sys.platform != "linux":
    collect_ignore_glob = ["*"]


@pytest.fixture(
    scope="session", params=[*LOCAL_LEVELS, pytest.param("docker", marks=pytest.mark.docker)]
)
def backend(request: pytest.FixtureRequest) -> Backend:
    return docker() if request.param == "docker" else local(request.param)


@pytest.fixture(scope="session", params=LOCAL_LEVELS)
def level(request: pytest.FixtureRequest) -> LocalLevel:
    """A level of the local sandbox that can be had here."""
    local(request.param)
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def marker() -> Iterator[str]:
    """A name for processes, short enough for the kernel; those that bear it end with the test."""
    name = f"m{uuid.uuid4().hex[:13]}"
    yield name
    kill(survivors(name))
