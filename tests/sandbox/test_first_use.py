"""What a process does once, when it makes its first sandbox."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import best_level

PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
from mappa_envs.sandbox import Limits, LocalSandbox

def play(number):
    sandbox = LocalSandbox()
    try:
        return sandbox.exec(f"print({number})", Limits(timeout_s=60)).stdout.strip()
    finally:
        sandbox.close()

with ThreadPoolExecutor(8) as pool:
    print(*pool.map(play, range(8)))
"""


def test_many_threads_may_make_their_first_sandbox_at_once() -> None:
    try:
        best_level(())
    except SandboxError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("0 1 2 3 4 5 6 7\n", "")
