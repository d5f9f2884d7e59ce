"""Work in another process that is sent there by pickle, and its result back."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import cloudpickle  # type: ignore[import-untyped]

from mappa_envs.testing.env_traces import EnvFn

T = TypeVar("T")

_PROGRAM = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "from mappa_envs.testing.env_process import main\n"
    "main(*sys.argv[2:])\n"
)


def in_another_process(work: Callable[[EnvFn], T], env_fn: EnvFn) -> T:
    """Run `work(env_fn)` in a process with other hashes and an empty folder for temporary files.

    Raises:
        AssertionError: `env_fn` cannot be sent there, or something failed there.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)  # sandboxes let other users pass through
        (folder / "tmp").mkdir(mode=0o711)
        (folder / "job").write_bytes(_pickled((work, env_fn)))
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), name],
            env={**os.environ, "PYTHONHASHSEED": _other_hash_seed(), "TMPDIR": f"{name}/tmp"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"another process: expected no error, got\n{done.stderr[-2000:]}")
        result: T = pickle.loads((folder / "result").read_bytes())
        return result


def main(name: str) -> None:
    """Do the job in a folder and leave the result there."""
    folder = Path(name)
    work, env_fn = pickle.loads((folder / "job").read_bytes())
    (folder / "result").write_bytes(cloudpickle.dumps(work(env_fn)))


def _pickled(job: object) -> bytes:
    try:
        content: bytes = cloudpickle.dumps(job)
    except Exception as error:
        raise AssertionError(
            f"env_fn: expected what can be sent to another process, got {error!r}; make the "
            "environment in a function that holds no open files, locks or environments"
        ) from error
    return content


def _other_hash_seed() -> str:
    return "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
