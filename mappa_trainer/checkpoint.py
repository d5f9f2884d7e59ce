"""Checkpoints: everything a run needs to go on exactly as if it had not stopped.

    checkpoints/iteration-0004/
        solver_0/            a Hugging Face folder, loadable by plain transformers or, of a LoRA
                             adapter, by peft; one for each set of weights that is trained
        state/solver_0/      optimiser state and step count, as safetensors; one file for each rank
        complete.json        which agent plays which weights; written last, and a folder without
                             it is no checkpoint

A checkpoint is written beside its final name and renamed, so a crash leaves the previous one.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
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
    players: Mapping[str, str | None],
) -> Path:
    """Write the checkpoint after `iteration` iterations and drop all but the newest `keep`.

    Args:
        run: The run directory.
        iteration: How many iterations are done.
        learners: By the names of their weights.
        tokenizer: Of all of them.
        keep: How many checkpoints to keep.
        players: For each agent the name of its weights; None for the base, which is not saved.

    Raises:
        CheckpointError: it cannot be written, for instance because the disk is full.
    """
    root = run / "checkpoints"
    final = root / f"iteration-{iteration:04d}"
    partial = root / f".partial-{iteration:04d}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / "state").mkdir(parents=True)
        for name, learner in learners.items():
            learner.save_pretrained(partial / name, tokenizer)
            learner.save_state(partial / "state" / name)
        manifest = {"iteration": iteration, "agents": dict(players)}
        (partial / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    except (OSError, RuntimeError, SafetensorError) as error:  # torch does not raise OSError
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"{final}: the checkpoint cannot be written: {error}; make room on the disk "
            f"({shutil.disk_usage(root).free / 1e9:.1f} GB are free), then go on with --resume"
        ) from error
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _tidy(run, keep)
    return final


def was_saved(run: Path) -> bool:
    """Return whether a run ever had a checkpoint, complete or damaged since.

    One that was cut short while it was written never had its name.
    """
    return bool(_numbered(run))


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
            f"{root}: no complete checkpoint, {what}; restore one that was removed, or start a new "
            "run: without a checkpoint nothing of this one can be used"
        )
    return complete[-1], _iteration(complete[-1])


def iteration_of(checkpoint: Path) -> int:
    """Return the number of iterations after which a checkpoint was written.

    Raises:
        CheckpointError: the folder is no complete checkpoint.
    """
    if not _NAME.fullmatch(checkpoint.name) or not (checkpoint / _MANIFEST).is_file():
        raise CheckpointError(
            f"{checkpoint}: is no complete checkpoint; give a folder checkpoints/iteration-NNNN of "
            f"a run that has {_MANIFEST} in it"
        )
    return _iteration(checkpoint)


def players_of(checkpoint: Path) -> dict[str, str | None]:
    """Return for each agent the name of its weights, or None where it plays the base.

    Raises:
        CheckpointError: the checkpoint does not say.
    """
    path = checkpoint / _MANIFEST
    try:
        players: dict[str, str | None] = json.loads(path.read_text(encoding="utf-8"))["agents"]
        return dict(players)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: does not say which agent plays which weights: {error!r}; delete {checkpoint} "
            "to use an earlier checkpoint"
        ) from error


def load_state(checkpoint: Path, name: str, learner: Learner) -> None:
    """Load the optimiser state of a set of weights; the weights are loaded with the model.

    Raises:
        CheckpointError: the state is missing, unreadable, or of another model.
    """
    path = checkpoint / "state" / name
    try:
        learner.load_state(path)
    except Exception as error:  # the reader raises whatever a damaged file makes it raise
        raise CheckpointError(
            f"{path}: the optimiser state cannot be loaded: {_in_short(error)}; "
            f"delete {checkpoint} to resume from an earlier checkpoint"
        ) from error


def _in_short(error: Exception) -> str:
    """Say what kind of error it is and the first line of what it says."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def _tidy(run: Path, keep: int) -> None:
    """Drop all but the newest `keep`, and what crashes left half written or half dropped."""
    oldest = _complete(run)[-keep:][0]
    older = [path for path in _numbered(run) if _iteration(path) < _iteration(oldest)]
    for path in (*older, *(run / "checkpoints").glob(".partial-*")):
        shutil.rmtree(path)


def _complete(run: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    return [path for path in _numbered(run) if (path / _MANIFEST).is_file()]


def _numbered(run: Path) -> list[Path]:
    """Return the folders that have the name of a checkpoint, oldest first."""
    found = (run / "checkpoints").glob("iteration-*")
    return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_iteration)


def _iteration(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])
