"""Checks of an environment: episodes and environments leave nothing behind."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from mappa_envs.testing.env_process import in_another_process
from mappa_envs.testing.env_traces import EnvFn, MixedScript, moments, new_trace, same, trace

_EPISODES = 5
"""Of a round, in one environment; and as many in environments of their own."""
_RESETS = 50
"""Of a round, beside those."""
_BYTES = 15_000
"""What a round may add to the memory, for caches that fill slowly; its messages are more."""


def nothing_piles_up(env_fn: EnvFn) -> None:
    """More episodes take no more descriptors, processes, threads, files or memory.

    The same episodes are played twice, in a process of their own; what is there after the first
    round stays as it is in the second.
    """
    before, after = in_another_process(_resources_of_two_rounds, env_fn)
    for name, count in after.items():
        grown = count - before[name]
        if grown >= (_BYTES if name == "bytes of memory" else _EPISODES):
            raise AssertionError(
                f"{name}: expected no more after {2 * _EPISODES} further episodes and {_RESETS} "
                f"resets than before, got {grown} more"
            )


def closing_twice_is_fine(env_fn: EnvFn) -> None:
    """`close()` can be called at any time and again, and touches no other environment."""
    expected = new_trace(env_fn)
    with closing(env_fn()) as env:
        env.close()
    with closing(env_fn()) as env, closing(env_fn()) as other:
        env.reset(seed=0)
        other.reset(seed=0)
        next(moments(env))
        env.close()
        env.close()
        same(trace(other), expected, "an episode after another environment was closed")
        other.close()


def _resources_of_two_rounds(env_fn: EnvFn) -> tuple[dict[str, int], dict[str, int]]:
    tracemalloc.start()
    with closing(env_fn()) as env:
        counts = []
        for _ in range(2):
            for seed in range(_EPISODES):
                trace(env, seed, MixedScript(seed % 4))
                new_trace(env_fn, seed, MixedScript(seed % 4))
            for seed in range(_RESETS):
                env.reset(seed=seed)
            counts.append(_resources())
    return counts[0], counts[1]


def _resources() -> dict[str, int]:
    gc.collect()
    return {
        "open descriptors": len(os.listdir("/dev/fd")),
        "processes": _descendants(os.getpid()),
        "threads": threading.active_count(),
        "temporary files": sum(1 for _ in Path(tempfile.gettempdir()).rglob("*")),
        "files in the current folder": len(os.listdir()),
        "bytes of memory": tracemalloc.get_traced_memory()[0],
    }


def _descendants(pid: int) -> int:
    """Return how many processes are there that a process, or one of those, has started."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # one that has just ended
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children[parent].append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found += children[each]
    return len(found) - 1


CHECKS: tuple[Callable[[EnvFn], None], ...] = (nothing_piles_up, closing_twice_is_fine)
