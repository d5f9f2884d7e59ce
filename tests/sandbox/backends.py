"""The kinds of sandbox that can be had on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import pytest

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import Level, LocalSandbox, Sandbox, check_level
from mappa_envs.sandbox.levels import LocalLevel

LOCAL_LEVELS = get_args(LocalLevel)
PRELOAD = ("numpy",)
"""What the checks and attacks need; programs start the faster."""


@dataclass(frozen=True)
class Backend:
    """A kind of sandbox that can be had here."""

    level: Level
    make: Callable[[], Sandbox]


def local(level: LocalLevel) -> Backend:
    """A level of the local sandbox; skips the test, saying what is missing, without it."""
    try:
        check_level(level, PRELOAD)
    except SandboxError as error:
        pytest.skip(str(error))
    return Backend(level, lambda: LocalSandbox(level, preload=PRELOAD))


def docker() -> Backend:
    module = pytest.importorskip("mappa_envs.sandbox.docker")
    try:
        module.DockerSandbox().close()
    except SandboxError as error:
        pytest.skip(str(error))
    return Backend("docker", lambda: module.DockerSandbox(preload=PRELOAD))
