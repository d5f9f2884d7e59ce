"""The folder on the host in which this process keeps its workspaces, gone when the process is."""

from __future__ import annotations

import atexit
import fcntl
import os
import tempfile
import threading
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import cgroups
from mappa_envs.sandbox.tree import delete

_PREFIX: Final = "mappa-"
_LOCK: Final = "lock"
_lock = threading.Lock()
_folders: dict[int, tuple[Path, int]] = {}


def scratch_folder() -> Path:
    """Return this process's folder; the first call sweeps away those of crashed processes.

    The owner of a folder holds a lock on a file in it for as long as it lives, so a folder
    whose lock is free is stale. Programs may pass through the folder but not list it.

    Raises:
        SandboxError: the system's folder for temporary files cannot be used.
    """
    with _lock:
        if os.getpid() not in _folders:
            sweep()
            try:
                _folders[os.getpid()] = _make()
                Finalize(None, _remove_own, exitpriority=0)  # workers skip what atexit has
            except OSError as error:
                raise SandboxError(
                    f"cannot make a folder in {tempfile.gettempdir()!r}: {error}; "
                    "set TMPDIR to a writable folder"
                ) from error
        return _folders[os.getpid()][0]


def sweep() -> None:
    """Delete the folders and cgroups that crashed processes of this user have left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.stat(follow_symlinks=False).st_uid == os.geteuid():
                _sweep_one(folder)


def is_stale(folder: Path) -> bool:
    """Whether the process that had this folder, of this user, is gone."""
    try:
        lock = _locked(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    os.close(lock)
    return True


def _sweep_one(folder: Path) -> None:
    lock = _locked(folder)
    try:
        cgroups.remove_all(folder.name, anywhere=True)
        delete(str(folder))
    finally:
        os.close(lock)


def _locked(folder: Path) -> int:
    """Take the lock of a folder.

    Raises:
        OSError: there is none, or its owner lives.
    """
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _make() -> tuple[Path, int]:
    folder, lock = _claim()
    folder.chmod(0o711)
    (folder / "root").mkdir()
    return folder, lock


def _claim() -> tuple[Path, int]:
    """Return a new folder and its lock, held.

    Another process that sweeps may take the lock of a new folder just before its owner does, and
    delete both; then there is nothing to do but to make another.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return folder, lock
        os.close(lock)


@atexit.register
def _remove_own() -> None:
    """Delete the own folder, if this very process, and not one it is a fork of, has one."""
    own = _folders.pop(os.getpid(), None)
    if own is not None:
        folder, lock = own
        cgroups.remove_all(folder.name)
        with suppress(OSError):
            delete(str(folder))
        os.close(lock)
