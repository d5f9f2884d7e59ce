"""What programs and their sandboxes could leave on this machine."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from mappa_envs.sandbox.cgroups import make

_NEW_USER = 0x10000000


def survivors(marker: str) -> list[int]:
    """Processes with `marker` in their name, command line or first environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        for file in ("comm", "cmdline", "environ"):
            try:
                if marker.encode() in (folder / file).read_bytes():
                    found.append(int(folder.name))
                    break
            except OSError:
                continue
    return sorted(found)


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


def mounts() -> list[str]:
    """Mount points and roots of this process's mounts that have to do with sandboxes."""
    rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for _, _, _, root, place, *_ in rows if "mappa-" in root + place]


def cgroups(prefix: str) -> list[Path]:
    return [Path(folder) for folder, *_ in os.walk("/sys/fs/cgroup") if _is_one(folder, prefix)]


def _is_one(folder: str, prefix: str) -> bool:
    return os.path.basename(folder).startswith(prefix)


def eventually(holds: Callable[[], bool], give_up_s: float = 60.0) -> bool:
    """Wait until something holds, for what the kernel does a moment after its cause."""
    deadline = time.monotonic() + give_up_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> list[str]:
    """Children of this process, running or not yet reaped."""
    return sorted(path.read_text() for path in Path("/proc/self/task").glob("*/children"))


def namespaces_for_everybody() -> bool:
    """Whether an unprivileged program of this user can have a user namespace."""
    child = os.fork()
    if child == 0:
        os._exit(int(ctypes.CDLL(None).unshare(_NEW_USER) != 0))
    return os.waitpid(child, 0)[1] == 0


def memory_of_all_is_bounded() -> bool:
    """Whether this process may make cgroups that bound memory."""
    cgroup = make(f"mappa-probe-{os.getpid()}")
    try:
        return any(member.controller == "memory" for member in cgroup.members)
    finally:
        cgroup.remove()
