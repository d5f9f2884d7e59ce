"""Checkpoints: everything a run needs to go on exactly as if it had not stopped.

    checkpoints/iteration-0004/
        solver_0/            a Hugging Face folder, loadable by plain transformers
        state/solver_0.pt    optimiser state and step count
        complete.json        written last; a folder without it is no checkpoint

A checkpoint is written beside its final name and renamed, so a crash leaves the previous one.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from mappa_trainer.errors import CheckpointError
from mappa_trainer.learner import Learner

_NAME = re.compile(r"iteration-(\d{4,})")
_MANIFEST = "complete.json"


def save_checkpoint(
    run: Path,
    iteration: int,
    learners: Mapping[str, Learner],
    tokenizer: PreTrainedTokenizerBase,
    keep: int,
) -> Path:
    """Write the checkpoint after `iteration` iterations and drop all but the newest `keep`."""
    root = run / "checkpoints"
    final = root / f"iteration-{iteration:04d}"
    partial = root / f".partial-{iteration:04d}"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "state").mkdir(parents=True)
    for agent, learner in learners.items():
        learner.save_pretrained(partial / agent, tokenizer)
        torch.save(learner.state_dict(), partial / "state" / f"{agent}.pt")
    manifest = {"iteration": iteration, "agents": list(learners)}
    (partial / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    for old in _complete(run)[:-keep]:
        shutil.rmtree(old)
    return final


def latest_checkpoint(run: Path) -> tuple[Path, int]:
    """Return the newest complete checkpoint of a run and its number of iterations.

    Raises:
        CheckpointError: there is none.
    """
    complete = _complete(run)
    if not complete:
        root = run / "checkpoints"
        found = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
        what = f"only incomplete ones ({', '.join(found)})" if found else "none"
        raise CheckpointError(
            f"{root}: no complete checkpoint, {what}; start a new run, this one has not "
            "reached its first checkpoint"
        )
    return complete[-1], _iteration(complete[-1])


def load_state(checkpoint: Path, agent: str, learner: Learner) -> None:
    """Load an agent's optimiser state; its weights are loaded with the model.

    Raises:
        CheckpointError: the state file is missing or unreadable.
    """
    path = checkpoint / "state" / f"{agent}.pt"
    try:
        learner.load_state_dict(torch.load(path, weights_only=True))
    except Exception as error:  # the reader raises whatever a damaged file makes it raise
        raise CheckpointError(
            f"{path}: the optimiser state cannot be loaded: {type(error).__name__}; "
            f"delete {checkpoint} to resume from an earlier checkpoint"
        ) from error


def _complete(run: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    found = [
        path
        for path in (run / "checkpoints").glob("iteration-*")
        if _NAME.fullmatch(path.name) and (path / _MANIFEST).is_file()
    ]
    return sorted(found, key=_iteration)


def _iteration(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])
