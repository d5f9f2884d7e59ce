"""Bounds on the memory and the processes of a whole execution, where the kernel lets us set them.

Version 1 keeps each controller in a tree of its own, version 2 has one tree; a machine may mount
both. What this process may not write to is simply not used: resource limits hold without it.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mappa_envs.sandbox.jail.processes import kills_for_memory

_LIMIT_FILES: Final = {
    ("memory", 1): "memory.limit_in_bytes",
    ("memory", 2): "memory.max",
    ("pids", 1): "pids.max",
    ("pids", 2): "pids.max",
}
_SPARE_BYTES: Final = 64 << 20
"""For the processes around the program, which share the imports with it."""
_SPARE_PROCESSES: Final = 3
_MOMENT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Tree:
    """Where one controller can be had."""

    controller: str
    version: int
    folder: Path
    """Of this process's own cgroup."""
    root: Path
    """Of all cgroups."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup of one worker in each tree that could be used; without any, nothing is bounded."""

    members: tuple[_Tree, ...]

    @property
    def folders(self) -> list[str]:
        """The folders whose `cgroup.procs` a worker is to join."""
        return sorted({str(member.folder) for member in self.members})

    def bound(self, memory_bytes: int, processes: int) -> None:
        """Set the bounds."""
        values = {"memory": memory_bytes + _SPARE_BYTES, "pids": processes + _SPARE_PROCESSES}
        for member in self.members:
            name = _LIMIT_FILES[member.controller, member.version]
            (member.folder / name).write_text(str(values[member.controller]))

    def kills(self) -> int:
        """Return how many processes were killed in it for want of memory."""
        for member in self.members:
            if member.controller == "memory":
                name = "memory.oom_control" if member.version == 1 else "memory.events"
                return kills_for_memory(str(member.folder / name))
        return 0

    def remove(self) -> None:
        """Delete it; its processes must be gone."""
        for folder in self.folders:
            with suppress(OSError):
                os.rmdir(folder)


def make(name: str) -> Cgroup:
    """Make a cgroup below this process's own ones, as far as that is allowed."""
    members = []
    for tree in _trees():
        folder = tree.folder / name
        with suppress(OSError):
            _offer(tree)
            folder.mkdir(exist_ok=True)
            member = replace(tree, folder=folder)
            if os.access(folder / _LIMIT_FILES[member.controller, member.version], os.W_OK):
                members.append(member)
            else:
                folder.rmdir()
    return Cgroup(tuple(members))


def remove_all(prefix: str, *, anywhere: bool = False) -> None:
    """Delete the cgroups whose name starts with `prefix`.

    The kernel may take a moment to see that their processes are gone.

    Args:
        prefix: The start of their names.
        anywhere: They may lie elsewhere than below this process's own cgroups.
    """
    deadline = time.monotonic() + _MOMENT_S
    places = [tree.root.rglob if anywhere else tree.folder.glob for tree in _trees()]
    folders = [folder for find in places for folder in find(f"{prefix}*")]
    while folders := [folder for folder in folders if not _is_removed(folder)]:
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)


def _is_removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        return error.errno != errno.EBUSY
    return True


def _offer(tree: _Tree) -> None:
    """Let the cgroups below have the controller; version 1 always does."""
    if tree.version == 2:
        with suppress(OSError):
            (tree.folder / "cgroup.subtree_control").write_text(f"+{tree.controller}")


def _trees() -> list[_Tree]:
    """Return where memory and pids can be bounded, from `/proc/self/cgroup` and the mounts."""
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return []
    found = []
    for line in own:
        _, controllers, path = line.split(":", 2)
        for controller in ("memory", "pids"):
            version = 1 if controllers else 2
            if controllers and controller not in controllers.split(","):
                continue
            for _, place, kind, options, *_ in mounts:
                matches_1 = kind == "cgroup" and controller in options.split(",")
                if matches_1 if version == 1 else kind == "cgroup2":
                    found.append(_Tree(controller, version, Path(place + path), Path(place)))
    return found
