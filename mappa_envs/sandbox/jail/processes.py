"""Processes that never outlive the one above them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from .kernel import DEATH_SIGNAL, process_control


def fork() -> int:
    """Fork; the parent's SIGTERM kills the child, and the child dies with its parent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = os.fork()
    if pid:
        signal.signal(signal.SIGTERM, lambda *_: kill_all([pid]))
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        process_control(DEATH_SIGNAL, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return pid


def wait_for(pid: int) -> int:
    """Reap every child until `pid` has ended; return its exit code, negative for a signal."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def sweep(program: int) -> None:
    """Kill whatever a program left behind, until this process has no child."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        kill_all([-program, *_children()])
        try:
            os.wait()
        except ChildProcessError:
            return


def kill_all(pids: Iterable[int]) -> None:
    """Send SIGKILL to processes and groups, those that are gone included."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


def kills_for_memory(path: str) -> int:
    """Return how often the kernel killed a process of a cgroup because its memory was used up.

    Args:
        path: The cgroup's `memory.oom_control` (version 1) or `memory.events` (version 2).

    Raises:
        OSError: it cannot be read.
    """
    with open(path) as file:
        words = file.read().split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


def number_of(uid: int) -> int:
    """Return how many processes and threads a user has."""
    total = 0
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdecimal() and entry.stat().st_uid == uid:
                total += len(os.listdir(f"/proc/{entry.name}/task"))
        except OSError:
            continue
    return total


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            return [int(pid) for pid in children.read().split()]
    except OSError:
        return []
