"""How long one action takes, from the call to its result with everything cleaned up.

    pip install -e '.[dev,datascience,docker]'
    pytest benchmarks/sandbox --benchmark-only

Launchers are timed side by side in one run, so ratios can be trusted where times cannot. A
launcher that this machine does not have is skipped with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import pytest
from launchers import FIRST_OUTPUT, LAUNCHERS, Launcher

from mappa_envs.errors import SandboxError


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> Iterator[tuple[str, Launcher]]:
    """Each launcher in turn, warmed up."""
    try:
        launches = LAUNCHERS[request.param]()
        launch = next(launches)
    except (SandboxError, ImportError) as error:
        pytest.skip(f"{request.param}: {error}")
    launch("print(0)")
    yield request.param, launch
    next(launches, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many times faster to its first output the warm worker is."""
    for (name, which), starts in FIRST_OUTPUT.items():
        warm = FIRST_OUTPUT.get((name, "warm_worker"))
        if warm:
            ours, theirs = median(warm), median(starts)
            terminalreporter.write_line(
                f"{name}: {which:24} first output after {1000 * theirs:8.1f} ms, "
                f"{theirs / ours:7.1f} times the warm worker's"
            )
