"""What an ordinary user can take from a program without namespaces: paths, TCP, signals.

Constants and struct layouts are those of `linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from .kernel import landlock

OLDEST_ABI: Final = 3
"""Before it (Linux 6.2) a program could empty any file that its user may write."""
SIGNALS_ABI: Final = 6
"""From it on (Linux 6.12) a program can be kept from signalling others."""

_VERSION: Final = 1
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _DEVICE_CONTROL = 1 << 13, 1 << 14, 1 << 15
_EVERYTHING_ABI_3: Final = (1 << 15) - 1
_NODES: Final = (1 << 6) | (1 << 10) | (1 << 11)
"""Making character devices, FIFOs and block devices."""
_OF_FILES: Final = _EXECUTE | _WRITE | _READ | _TRUNCATE | _DEVICE_CONTROL
_LOOK: Final = _EXECUTE | _READ | _LIST
_CHANGE: Final = _EVERYTHING_ABI_3 & ~_NODES & ~_EXECUTE | _LOOK
_TCP: Final = 0b11
_SIGNALS_AND_ABSTRACT_SOCKETS: Final = 0b11
_BELOW_PATH: Final = 1


def supported_abi() -> int:
    """Return the version of Landlock here.

    Raises:
        OSError: the kernel has none.
    """
    return landlock(0, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))


def around(visible: Iterable[str], hidden: Iterable[str]) -> Iterator[str]:
    """Yield paths that hold all that `visible` do and nothing of the folders `hidden`.

    A rule is for all that is below a path and takes nothing back, so the neighbours of what is
    hidden are named one by one; links are not, since what counts is where a file really is.
    """
    left_out = [folder for folder in hidden if os.path.isdir(folder)]
    for path in sorted({os.path.realpath(path) for path in visible}):
        if path in left_out:
            continue
        if any(folder.startswith(f"{path}/") for folder in left_out):
            entries = [entry.path for entry in os.scandir(path) if not entry.is_symlink()]
            yield from around(entries, left_out)
        else:
            yield path


def restrict(*, list_only: Iterable[str] = (), look: Iterable[str], change: Iterable[str]) -> None:
    """Leave this process, for good, only some paths to look at and some to change.

    Args:
        list_only: Folders whose names may be listed, with all below them, whatever else holds.
        look: Files and folders to read.
        change: Files and folders to read and to change.

    Nothing outside it can be traced or signalled, and no TCP used, as far as the kernel's
    version of Landlock goes. Paths that do not exist are passed over.

    Raises:
        OSError: the kernel has no Landlock, or one that is too old.
    """
    abi = supported_abi()
    if abi < OLDEST_ABI:
        raise OSError(f"Landlock here is version {abi}; version {OLDEST_ABI} (Linux 6.2) is needed")
    handled = _EVERYTHING_ABI_3 | (_DEVICE_CONTROL if abi >= 5 else 0)
    sizes = {3: 8, 4: 16, 5: 16}
    attributes = struct.pack(
        "QQQ",
        handled,
        _TCP if abi >= 4 else 0,
        _SIGNALS_AND_ABSTRACT_SOCKETS if abi >= SIGNALS_ABI else 0,
    )[: sizes.get(abi, 24)]
    rules = landlock(0, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for paths, allowed in ((list_only, _LIST), (look, _LOOK), (change, _CHANGE)):
            for path in paths:
                _allow(rules, path, allowed & handled)
        landlock(2, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _allow(rules: int, path: str, allowed: int) -> None:
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            allowed &= _OF_FILES
        if not allowed:  # a file has no names to list
            return
        rule = struct.pack("=Qi", allowed, target)
        landlock(1, ctypes.c_int(rules), ctypes.c_int(_BELOW_PATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(target)
