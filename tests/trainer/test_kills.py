"""kill -9 at random points of a run, over and over: it ends as if nothing had happened.

`pytest tests/trainer/test_kills.py --kills 20` kills more often than the tests do by themselves.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import MAPPA
from runs import assert_same_run

from mappa_trainer import train
from mappa_trainer.console import Console
from mappa_trainer.recipe import load_recipe

KILLED = """
import os, signal, sys, threading
root, part, left, delay = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
sys.argv = ["mappa", *sys.argv[5:]]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def watch(event, arguments):
    global left
    if event not in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"):
        return
    path = str(arguments[0])
    if path.startswith(root) and part in path:
        left -= 1
        if left == 0:
            threading.Timer(delay, die).start() if delay else die()

sys.addaudithook(watch)
"""
"""Kills itself some time after it has so often touched a file of the run whose path has `part`."""

SETTINGS = ("agents.solver_0.tuning=lora", "agents.verifier_0.tuning=frozen", "train.save_every=1")
"""An adapter, a whole set of weights and none, and a checkpoint for each iteration."""

Kill = tuple[str, int, float]
"""What a path must have in it, how often such a file is touched first, and seconds after that."""


def random_kills(count: int, seed: int) -> list[Kill]:
    """The first one comes while a checkpoint is written, the others anywhere."""
    draw = random.Random(seed)
    first = ("checkpoints/.partial-", draw.randint(4, 12), 0.0)
    delays = [draw.choice((0.0, draw.random() / 2)) for _ in range(count - 1)]
    return [first, *(("", draw.randint(1, 90), delay) for delay in delays)]


def play(path: Path, recipe: Path, kill: Kill) -> int:
    """Start the run, or go on with it, in a process that kills itself; return its exit code."""
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    arguments = ["train", str(recipe), "--out", str(path), *settings]
    if (path / "config.json").exists():
        arguments = ["train", "--resume", str(path)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED + MAPPA, str(path), *map(str, kill), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow  # a process for each kill
def test_a_run_killed_at_random_points_ends_as_the_one_that_was_not(
    recipe_file: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    whole, path = tmp_path / "whole", tmp_path / "run"
    assert train.start(load_recipe(recipe_file, SETTINGS), whole, Console())
    kills = random_kills(pytestconfig.getoption("kills"), seed=0)
    half_written = 0
    while kills:
        if play(path, recipe_file, kills[0]) == 0:  # it was over first: once more
            assert_same_run(path, whole)
            shutil.rmtree(path)
            continue
        kills.pop(0)
        half_written += any(path.glob("checkpoints/.partial-*"))
        if not (path / "config.json").exists():
            shutil.rmtree(path, ignore_errors=True)
    assert half_written
    assert play(path, recipe_file, ("", -1, 0.0)) == 0
    assert_same_run(path, whole)
