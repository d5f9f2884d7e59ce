"""What the environment costs by itself, side by side with a floor and with other people's.

    pip install -e '.[dev]'
    pytest benchmarks/env --benchmark-only        # a few minutes; installs two peers once
    pytest benchmarks/env --benchmark-disable     # runs everything once and measures nothing

The peers are installed below `$MAPPA_CACHE_DIR`, or `~/.cache/mappa`; where they cannot be, the
report says why. Nothing here fails because it was slow: a machine that others use too is noisy, so
ratios of one run say more than times, and minima more than maxima.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import report
from peers import PEERS, PeerMissing
from pytest_benchmark.fixture import BenchmarkFixture
from subjects import ENVS, SUBJECTS, Play, play


@pytest.fixture(params=SUBJECTS)
def subject(
    request: pytest.FixtureRequest, benchmark: BenchmarkFixture
) -> Iterator[tuple[str, Play]]:
    """Each environment in turn, ready to be played."""
    name = request.param
    if name in ENVS:
        env = ENVS[name]()
        yield name, lambda action: play(env, action)
        env.close()
        return
    peer = PEERS[name]
    if benchmark.disabled:
        pytest.skip(f"{name}: a smoke run installs nothing")
    try:
        peer.install()
    except PeerMissing as error:
        report.note("left out", f"{name}: {error}")
        pytest.skip(f"{name}: {error}")
    with peer.running() as ask:
        yield name, ask


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the comparison."""
    lines = list(report.lines())
    if lines:
        load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
        terminalreporter.section(f"{os.cpu_count()} cores, load averages at the end {load}")
        terminalreporter.write("\n".join(lines) + "\n")
