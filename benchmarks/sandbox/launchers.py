"""Ways to run a program, from a bare process to a warm worker."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median

from pytest_benchmark.fixture import BenchmarkFixture

from mappa_envs.sandbox import Limits, LocalSandbox, Sandbox

LIMITS = Limits(timeout_s=60.0, memory_bytes=4 << 30)
Launcher = Callable[[str], str]
"""Runs a program and returns what it printed."""

FIRST_OUTPUT: dict[tuple[str, str], list[float]] = {}
"""Seconds from the call to the program's own first line, by program and launcher."""


def plain_subprocess() -> Iterator[Launcher]:
    """A fresh interpreter, not isolated."""

    def launch(source: str) -> str:
        command = [sys.executable, "-s", "-c", source]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    yield launch


def cold_isolated_process() -> Iterator[Launcher]:
    """The same isolation, with nothing imported ahead."""
    yield from _launched(LocalSandbox(preload=()))


def warm_worker() -> Iterator[Launcher]:
    """What a `LocalSandbox` does."""
    yield from _launched(LocalSandbox())


def docker_run() -> Iterator[Launcher]:
    """A container for every action."""
    sandbox = _docker()
    sandbox.close()

    def launch(source: str) -> str:
        sandbox = _docker()
        try:
            return sandbox.exec(source, LIMITS).stdout
        finally:
            sandbox.close()

    yield launch


def docker_exec() -> Iterator[Launcher]:
    """A fresh interpreter in one running container, with nothing imported ahead."""
    yield from _launched(_docker(preload=()))


def docker_warm() -> Iterator[Launcher]:
    """What a `DockerSandbox` does."""
    yield from _launched(_docker())


LAUNCHERS = {
    launcher.__name__: launcher
    for launcher in (
        plain_subprocess,
        cold_isolated_process,
        warm_worker,
        docker_run,
        docker_exec,
        docker_warm,
    )
}


def _docker(**options: object) -> Sandbox:
    from mappa_envs.sandbox.docker import DockerSandbox

    return DockerSandbox(**options)


def _launched(sandbox: Sandbox) -> Iterator[Launcher]:
    def launch(source: str) -> str:
        result = sandbox.exec(source, LIMITS)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    try:
        yield launch
    finally:
        sandbox.close()


def timed(
    benchmark: BenchmarkFixture, name: str, launcher: tuple[str, Launcher], source: str
) -> None:
    """Time whole actions; the program's clock says when its first line was reached."""
    which, launch = launcher
    starts = FIRST_OUTPUT.setdefault((name, which), [])
    program = f"{source}\nimport time\nprint(time.monotonic())"

    def action() -> None:
        called = time.monotonic()
        starts.append(float(launch(program)) - called)

    benchmark.group = name
    benchmark.pedantic(action, rounds=15, warmup_rounds=2)
    benchmark.extra_info["first_output_ms"] = 1000 * median(starts)
