"""A caller of sandboxes whose episodes go wrong in every way; run as a program of its own.

episodes.py mixed <level> <marker> <count>    print descriptors and children, before and after
episodes.py hang <level> <marker>             run one program, for ever
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import closing

from traces import children, descriptors, eventually, survivors

from mappa_envs.sandbox import Limits, LocalSandbox
from mappa_envs.sandbox.levels import LocalLevel
from mappa_envs.sandbox.scratch import scratch_folder

LIMITS = Limits(timeout_s=60.0)
FAMILY = """
import ctypes, os, subprocess, sys, time
open("left", "w")
if os.fork() == 0:
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", MARKER])
ctypes.CDLL(None).prctl(15, MARKER.encode(), 0, 0, 0)
"""
"""Leaves a daemon; both bear the marker."""
PROGRAMS = (
    ("", LIMITS),
    ("raise ValueError", LIMITS),
    ("while True: pass", Limits(timeout_s=0.2)),
    ("os.kill(0, 9)", LIMITS),
    ("while True: print('x' * 1000)", Limits(timeout_s=60.0, total_output_bytes=100_000)),
    ("for n in range(200): open(f'{n}', 'w')", Limits(timeout_s=60.0, workspace_files=100)),
)


def when_running(marker: str, act: Callable[[], object]) -> threading.Thread:
    """Do something from another thread as soon as a program is there."""

    def wait() -> None:
        if eventually(lambda: survivors(marker) != []):
            act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def interrupted(sandbox: LocalSandbox, family: str, marker: str) -> None:
    thread = when_running(marker, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        sandbox.exec(f"{family}time.sleep(600)", LIMITS)
    except KeyboardInterrupt:
        thread.join()
        return
    raise SystemExit("no KeyboardInterrupt")


def cancelled(sandbox: LocalSandbox, family: str, marker: str) -> None:
    thread = when_running(marker, sandbox.close)
    result = sandbox.exec(f"{family}time.sleep(600)", LIMITS)
    thread.join()
    if result.exit_code != -9:
        raise SystemExit(f"not killed: {result}")


def episode(number: int, level: LocalLevel, marker: str) -> None:
    family = f"MARKER = {marker!r}\n{FAMILY}"
    sandbox = LocalSandbox(level, preload=())
    kind = number % (len(PROGRAMS) + 3)
    if kind < len(PROGRAMS):
        source, limits = PROGRAMS[kind]
        with closing(sandbox):
            sandbox.exec(family + source, limits)
    elif kind == len(PROGRAMS):
        with closing(sandbox):
            interrupted(sandbox, family, marker)
            if sandbox.exec("print(1)", LIMITS).stdout != "1\n":
                raise SystemExit("the sandbox is of no use after an interrupt")
    elif kind == len(PROGRAMS) + 1:
        cancelled(sandbox, family, marker)
    else:
        sandbox.exec(family, LIMITS)
        del sandbox  # forgotten
        gc.collect()
    if left := survivors(marker):
        raise SystemExit(f"episode {number} left {left}")


def mixed(level: LocalLevel, marker: str, count: int) -> None:
    for number in range(min(9, count)):
        episode(number, level, marker)
    before = descriptors(), children()
    for number in range(9, count):
        episode(number, level, marker)
    left = sorted(path.name for path in scratch_folder().iterdir())
    same = (descriptors(), children()) == before
    sys.stdout.write(f"{scratch_folder().name} {same} {left}\n")


def hang(level: LocalLevel, marker: str) -> None:
    with closing(LocalSandbox(level, preload=())) as sandbox:
        sys.stdout.write(f"{scratch_folder().name}\n")
        sys.stdout.flush()
        sandbox.exec(f"MARKER = {marker!r}\n{FAMILY}time.sleep(600)", Limits(timeout_s=600.0))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    what, level, *count = sys.argv[1:]
    marker = sys.stdin.readline().strip()
    if what == "mixed":
        mixed(level, marker, int(count[0]))  # type: ignore[arg-type]
    else:
        hang(level, marker)  # type: ignore[arg-type]
