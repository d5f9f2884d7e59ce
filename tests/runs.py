"""What two runs of the tiny recipe must have in common to count as the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from mappa_trainer.checkpoint import latest_checkpoint
from mappa_trainer.runlog import RunDirectory


def assert_same_run(one: Path, other: Path) -> None:
    """Two runs ended with the same bits and have the same history but for the clock."""
    checkpoints = [latest_checkpoint(path) for path in (one, other)]
    assert checkpoints[0][1] == checkpoints[1][1] == 4
    assert_same_checkpoint(checkpoints[0][0], checkpoints[1][0])
    runs = [RunDirectory.open(path) for path in (one, other)]
    assert runs[0].episode_names() == runs[1].episode_names()
    for name in runs[0].episode_names():
        assert runs[0].episodes(name) == runs[1].episodes(name)
    rows, other_rows = ([without_clock(row) for row in run.metrics()] for run in runs)
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    assert rows == other_rows


def assert_same_checkpoint(one: Path, other: Path) -> None:
    """Two checkpoints have the same files, and the same bits in weights and moments."""
    names, theirs = (sorted(p.relative_to(c) for p in c.rglob("*")) for c in (one, other))
    assert names == theirs
    weights = [name for name in names if name.suffix == ".safetensors"]
    states = [name for name in weights if name.parts[0] == "state"]
    assert states
    assert len(weights) == 2 * len(states)
    for name in weights:
        assert_same_state(load_file(one / name), load_file(other / name))


def assert_same_state(state: Any, other: Any) -> None:
    if isinstance(state, dict):
        assert state.keys() == other.keys()
        for key in state:
            assert_same_state(state[key], other[key])
    elif isinstance(state, list):
        assert len(state) == len(other)
        for mine, theirs in zip(state, other, strict=True):
            assert_same_state(mine, theirs)
    elif isinstance(state, torch.Tensor):
        assert torch.equal(state, other)
    else:
        assert state == other


def without_clock(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in row.items()
        if not name.startswith(("seconds/", "tokens_per_second/"))
    }
