"""Memory and time of log-probabilities and entropies at a vocabulary of 151,936, as Qwen's.

Ours is `Likelihood.of`, whose head sees chunks of positions that are computed again in the backward
pass; the other has the logits of all positions at once. Both run the same random model in float32,
whose body is one narrow layer, so that nearly all is the head, and go backward. Memory is what a
process of its own needs at its peak beyond what it has before the pass. The gradient of the head's
weights is in it on both sides, and twice in ours: a chunk's is added to the sum of those before.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import side_by_side
from big_head import PASSES, Case, make, make_model
from pytest_benchmark.fixture import BenchmarkFixture
from side_by_side import Side, compare

PROGRAM = Path(__file__).with_name("big_head.py")
SMALL = Case(vocabulary=60_000, positions=1024, width=64)


def test_head_time(benchmark: BenchmarkFixture) -> None:
    """Both compute the same values and gradients, and how long each takes."""
    case = SMALL if benchmark.disabled else Case()
    model = make_model(case)
    works = {name: make(model, name, case) for name in PASSES}
    full, ours = (work() for work in works.values())
    assert ours == pytest.approx(full, rel=1e-4)
    title = f"head, {case.positions:,} positions, vocabulary of {case.vocabulary:,}"
    sides = {name: Side(work, case.positions) for name, work in works.items()}
    compare(benchmark, title, "positions", sides, rounds=3)


@pytest.mark.parametrize("positions", [2048, 4096])
def test_head_memory(benchmark: BenchmarkFixture, positions: int) -> None:
    """Ours needs a fraction of the memory; 4,096 is the default of `model.token_budget`."""
    case = SMALL if benchmark.disabled else Case(positions=positions)
    full, ours = benchmark.pedantic(lambda: [peak(name, case) for name in PASSES])
    assert ours < full / 2
    if benchmark.enabled:
        side_by_side.NOTES.append(
            f"head, {positions:,} positions: {full / 1e9:.2f} GB with all logits, "
            f"{ours / 1e9:.2f} GB ours, which is {ours / full:.2f} of it"
        )


def peak(name: str, case: Case) -> int:
    """Return the bytes that a pass needs in a process of its own."""
    sizes = map(str, (case.vocabulary, case.positions, case.width))
    command = [sys.executable, str(PROGRAM), name, *sizes]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
