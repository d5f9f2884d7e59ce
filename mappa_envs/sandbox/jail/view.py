"""The files a program sees in the `namespace` level: a root of its own, built of a few mounts."""

from __future__ import annotations

import os
from collections.abc import Sequence

from . import kernel

WORKSPACES = "/workspaces"
"""Where all workspaces are until the program knows which one is its own."""
WORKSPACE = "/tmp/workspace"
"""Where the program finds its workspace."""

_DEVICES = ("null", "zero", "full", "random", "urandom")
_SAFE = kernel.NO_SUID | kernel.NO_DEVICES
_PRIVATE_FOLDERS = ("/tmp", "/dev/shm")


def build(root: str, visible: Sequence[str], hidden: Sequence[str], workspaces: str) -> None:
    """Replace the file system of this mount namespace by one that holds `visible` and no more.

    Needs a new mount namespace, and to be the first process of a new PID namespace.

    Args:
        root: An empty folder of the host, to build in.
        visible: Files and folders of the host, shown read-only where they are.
        hidden: Folders in those, shown empty.
        workspaces: A folder of the host, shown at `WORKSPACES`.
    """
    kernel.mount("none", "/", "none", kernel.RECURSIVE | kernel.PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", _SAFE, "mode=755,size=1m")
    for path in _PRIVATE_FOLDERS:  # first, since what is visible may lie in them
        os.makedirs(root + path)
        kernel.mount("tmpfs", root + path, "tmpfs", _SAFE, "mode=1777,size=64m,nr_inodes=16384")
    for path in visible:
        _show(path, root)
    for path in hidden:
        _hide(path, root)
    _add_devices(root)
    os.mkdir(root + WORKSPACE)
    os.mkdir(root + WORKSPACES)
    kernel.mount(workspaces, root + WORKSPACES, "none", kernel.BIND)
    os.mkdir(f"{root}/proc")
    flags = _SAFE | kernel.NO_EXEC | kernel.READ_ONLY
    kernel.mount("proc", f"{root}/proc", "proc", flags)
    kernel.change_root(root)
    kernel.change_mount("/", add=kernel.READ_ONLY)


def enter_workspace(name: str, tmp_bytes: int) -> None:
    """Put one of the workspaces at `WORKSPACE` and all of them out of reach."""
    kernel.mount(f"{WORKSPACES}/{name}", WORKSPACE, "none", kernel.BIND)
    kernel.change_mount(WORKSPACE, add=_SAFE)
    kernel.unmount(WORKSPACES)
    for path in _PRIVATE_FOLDERS:
        flags = kernel.REMOUNT | _SAFE
        kernel.mount("tmpfs", path, "tmpfs", flags, f"size={tmp_bytes},nr_inodes=16384")
    os.chdir(WORKSPACE)


def _show(path: str, root: str) -> None:
    place = root + path
    os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), place)
        return
    if os.path.isdir(path):
        os.mkdir(place, 0o755)
    else:
        _touch(place)
    kernel.mount(path, place, "none", kernel.BIND | kernel.RECURSIVE)
    kernel.change_mount(place, add=kernel.READ_ONLY | _SAFE, recursive=True)


def _hide(path: str, root: str) -> None:
    if os.path.isdir(root + path):
        kernel.mount("tmpfs", root + path, "tmpfs", _SAFE | kernel.READ_ONLY, "mode=755,size=4k")


def _add_devices(root: str) -> None:
    for name in _DEVICES:
        _touch(f"{root}/dev/{name}")
        kernel.mount(f"/dev/{name}", f"{root}/dev/{name}", "none", kernel.BIND)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
