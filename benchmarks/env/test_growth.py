"""What many episodes leave behind: memory, open files and child processes of this process."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import report
from pytest_benchmark.fixture import BenchmarkFixture
from subjects import ACTIONS, play

from mappa_envs.registry import make_pipeline

GROUP = "what episodes leave behind"
SAYS = ACTIONS["8,000 characters"]
COMPUTES = """```python
open("note.txt", "w").write("2 + 3")
print(2 + 3)
```"""
CASES = {"raw episodes": (SAYS, 2000), "episodes with two programs each": (COMPUTES, 200)}


@dataclass(frozen=True)
class _Footprint:
    """What this process holds."""

    memory_mb: float
    descriptors: int
    children: int

    @classmethod
    def now(cls) -> _Footprint:
        """Look, after a collection of garbage."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        tasks = Path("/proc/self/task").iterdir()
        children = [pid for task in tasks for pid in (task / "children").read_text().split()]
        return cls(
            memory_mb=pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
            descriptors=len(os.listdir("/proc/self/fd")),
            children=len(children),
        )

    def __str__(self) -> str:
        return f"{self.memory_mb:.1f} MB, {self.descriptors} descriptors, {self.children} children"


@pytest.mark.parametrize("case", CASES)
def test_growth(benchmark: BenchmarkFixture, case: str) -> None:
    """The same before and after, but for what the first episodes allocate once."""
    action, episodes = CASES[case]
    episodes = 2 if benchmark.disabled else episodes
    env = make_pipeline("mathchat")

    def play_all() -> None:
        for _ in range(episodes):
            play(env, action)

    for _ in range(max(1, episodes // 10)):
        play(env, action)
    before = _Footprint.now()
    benchmark.group, benchmark.name = GROUP, f"{episodes:,} {case}"
    benchmark.pedantic(play_all)
    after = _Footprint.now()
    env.close()
    if not benchmark.disabled:
        report.note(GROUP, f"before {episodes:,} {case}: {before}")
        report.note(GROUP, f"after  {episodes:,} {case}: {after}")
