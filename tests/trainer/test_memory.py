from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from programs import MAPPA

from mappa_trainer.errors import ModelError
from mappa_trainer.models import SMOLLM2, resolve_model

RECIPE = Path(__file__).parents[2] / "scenarios" / "recipes" / "mathchat-cpu.toml"
SETTINGS = (
    "model.tuning=lora",
    "model.gradient_checkpointing=true",
    "train.iterations=1",
    "eval.problems=2",
    "eval.greedy=false",
)
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


@pytest.mark.slow  # a minute
def test_three_adapters_of_the_real_model_train_in_3_gb(tmp_path: Path) -> None:
    try:
        resolve_model(SMOLLM2)
    except ModelError as error:
        pytest.skip(str(error))
    flags = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [
        sys.executable,
        "-c",
        MAPPA,
        "train",
        str(RECIPE),
        "--out",
        str(tmp_path / "run"),
        *flags,
    ]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *command], check=True, stdout=subprocess.PIPE, text=True
    )
    assert int(done.stdout) < 3_000_000_000
