"""Walk, clean and delete folders that hostile programs filled.

Nothing here follows a link, opens a pipe or a device, or recurses deeper than `MAX_DEPTH`. Names
are looked up one by one relative to open folders, so what a path means cannot change on the way.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

MAX_DEPTH: Final = 16
"""Levels of folders that `clean` leaves, and that `Found.files` may therefore lie in."""
_NOT_A_FILE: Final = frozenset(
    {
        errno.EACCES,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.ENXIO,
        errno.EPERM,
    }
)
_MAX_HELD: Final = 64
_PIECE_BYTES: Final = 1 << 20
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HANDLE: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """What `clean` left, by path relative to the folder it cleaned, and what it removed."""

    files: dict[str, os.stat_result] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    """Made printable; of a removed folder only itself."""
    linked: set[int] = field(default_factory=set)
    """The inodes of removed files with a second name: that one must go too."""


def split(name: str) -> list[str]:
    """Split a file name of the workspace, refusing what could lead out of it."""
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"{name!r} is no file name of the workspace; use a relative path of printable "
            "characters without '..', e.g. 'data/train.csv'"
        )
    if len(parts) > MAX_DEPTH + 1:
        raise ValueError(
            f"{name!r} lies in {len(parts) - 1} folders; at most {MAX_DEPTH} may be nested"
        )
    return parts


def above(paths: Iterable[str]) -> frozenset[str]:
    """Return every folder that one of the paths lies in."""
    return frozenset(
        path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"
    )


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Say of the file of that name what the operating system found wrong with it."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{name!r} is not in the workspace") from None
    except OSError as error:
        if error.errno not in _NOT_A_FILE:
            raise
        raise ValueError(
            f"{name!r} is no regular file of the workspace: {error.strerror}"
        ) from error


def open_folder(name: str, folder: int | None = None, uid: int | None = None) -> int:
    """Open a folder and make it usable, see `make_usable`.

    Raises:
        NotADirectoryError: it is something else, e.g. a link to a folder.
    """
    fd = _open(name, _FOLDER, folder)
    try:
        make_usable(fd, uid)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def open_path(root: Path, parts: Sequence[str], uid: int | None) -> Iterator[BinaryIO]:
    """Open a regular file that has no second name, for reading, and make it usable.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it is something else, with `ENXIO` for a pipe, a device, or a second name.
    """
    with (
        folder_of(root, parts) as folder,
        open(parts[-1], "rb", opener=lambda name, _: _open(name, _FILE, folder)) as file,
    ):
        if not _is_plain(os.fstat(file.fileno())):
            raise OSError(errno.ENXIO, "a pipe, a device, or a file with a second name")
        make_usable(file.fileno(), uid)
        yield file


def pieces(file: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    """Yield the content of a file, no more than so much of it."""
    while max_bytes > 0 and (piece := file.read(min(_PIECE_BYTES, max_bytes))):
        max_bytes -= len(piece)
        yield piece


@contextmanager
def folder_of(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Yield the open folder that the last of `parts` lies in.

    Raises:
        FileNotFoundError: there is no such folder.
        NotADirectoryError: one of the parts is something else.
    """
    fd = open_folder(str(root))
    try:
        for part in parts[:-1]:
            parent, fd = fd, open_folder(part, fd)
            os.close(parent)
        yield fd
    finally:
        os.close(fd)


def make_folders(root: Path, parts: Sequence[str], uid: int | None) -> None:
    """Make the folders that the last of `parts` lies in, where they are missing."""
    for depth in range(1, len(parts)):
        with folder_of(root, parts[:depth]) as folder:
            try:
                os.mkdir(parts[depth - 1], 0o755, dir_fd=folder)
            except FileExistsError:
                continue
            os.close(open_folder(parts[depth - 1], folder, uid))


def make_usable(fd: int, uid: int | None) -> None:
    """Let the owner read and write a file or folder, take set-id bits away, and set its owner."""
    found = os.fstat(fd)
    if uid is not None and (found.st_uid, found.st_gid) != (uid, uid):
        os.fchown(fd, uid, uid)
    if (mode := _usable_mode(found.st_mode)) != stat.S_IMODE(found.st_mode):
        os.fchmod(fd, mode)


def sizes(root: Path) -> Iterator[int]:
    """Yield the size of each thing in a tree, 0 for what is no file, while programs change it.

    Yields a size beyond any limit for folders that cannot be looked into: another user's, and
    those below `_MAX_HELD` forks that all hold unseen folders.
    """
    held: list[tuple[int, list[str]]] = [(open_folder(str(root)), [])]
    try:
        yield from _sizes_in(*held[0])
        while held:
            parent, names = held[-1]
            if not names:
                held.pop()
                os.close(parent)
                continue
            try:
                held.append((open_folder(names.pop(), parent), []))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError:
                yield sys.maxsize
                continue
            if not names:  # so that a chain of folders, however long, holds one of them open
                del held[-2]
                os.close(parent)
            yield from _sizes_in(*held[-1])
            if len(held) > _MAX_HELD:
                yield sys.maxsize
                return
    finally:
        for fd, _ in held:
            os.close(fd)


def clean(root: Path, uid: int | None) -> Found:
    """Remove what is no workspace content, make every folder usable, and list what is left.

    Removed are links, pipes, sockets, devices, files with a second name, names that are no
    printable UTF-8, and folders below `MAX_DEPTH` others.
    """
    found = Found()
    fd = open_folder(str(root), None, uid)
    try:
        _clean(fd, "", uid, found)
    finally:
        os.close(fd)
    return found


def delete(name: str, folder: int | None = None) -> None:
    """Delete a file or a whole folder, however deep it is and whatever its modes are.

    Raises:
        FileNotFoundError: there is nothing of that name.
    """
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    fd = open_folder(name, folder)
    try:
        _empty(fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=folder)


def _open(name: str, flags: int, folder: int | None) -> int:
    """Open a file or folder; where its mode forbids that to its owner, change the mode first."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        handle = os.open(name, _HANDLE, dir_fd=folder)
    try:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode) or _is_plain(found):
            os.chmod(f"/proc/self/fd/{handle}", _usable_mode(found.st_mode))
    finally:
        os.close(handle)
    return os.open(name, flags, dir_fd=folder)


def _usable_mode(mode: int) -> int:
    return (mode & 0o777) | (0o700 if stat.S_ISDIR(mode) else 0o600)


def _is_plain(found: os.stat_result) -> bool:
    """Whether it is a regular file under one name; a second one could lie on the host."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _entries(folder: int) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _sizes_in(folder: int, names: list[str]) -> Iterator[int]:
    """Yield the sizes of what lies in a folder, and add the names of its folders to `names`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(found.st_mode):
                names.append(entry.name)
            yield found.st_size if stat.S_ISREG(found.st_mode) else 0


def _clean(folder: int, prefix: str, uid: int | None, found: Found) -> None:
    for entry in sorted(_entries(folder), key=lambda entry: entry.name):
        path, status = prefix + entry.name, entry.stat(follow_symlinks=False)
        is_folder = stat.S_ISDIR(status.st_mode) and path.count("/") < MAX_DEPTH
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            found.linked.add(status.st_ino)
        is_file = _is_plain(status) and status.st_ino not in found.linked
        if not entry.name.isprintable() or not (is_folder or is_file):
            delete(entry.name, folder)
            found.removed.add(prefix + _printable(entry.name))
        elif is_folder:
            found.folders.add(path)
            inner = open_folder(entry.name, folder, uid)
            try:
                _clean(inner, f"{path}/", uid, found)
            finally:
                os.close(inner)
        else:
            found.files[path] = status


def _printable(name: str) -> str:
    r"""Return a name with everything unprintable in it as an escape, e.g. `\n` or `\xff`."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _empty(folder: int) -> None:
    """Delete all that lies in a folder.

    Folders found inside folders are first moved up, so nothing here recurses.
    """
    unused = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
    while entries := _entries(folder):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
                continue
            inner = open_folder(entry.name, folder)
            try:
                _lift(inner, folder, unused)
            finally:
                os.close(inner)
            os.rmdir(entry.name, dir_fd=folder)


def _lift(inner: int, folder: int, unused: Iterator[str]) -> None:
    """Move the folders of one folder into another, and delete its files."""
    for entry in _entries(inner):
        if entry.is_dir(follow_symlinks=False):
            os.close(open_folder(entry.name, inner))  # only a usable folder can be moved
            os.rename(entry.name, next(unused), src_dir_fd=inner, dst_dir_fd=folder)
        else:
            os.unlink(entry.name, dir_fd=inner)
