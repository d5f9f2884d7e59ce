"""The contents that files of workspaces ever had, kept while anything may want them back."""

from __future__ import annotations

import hashlib
import os
import shutil
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

from mappa_envs.sandbox import tree


class Store:
    """A private folder of contents, each under its SHA-256.

    It lives as long as a workspace or a snapshot refers to it; then its folder is deleted. A
    content is never written to again once it is there, so stores may share one by a link.
    """

    def __init__(self, folder: Path) -> None:
        """Make the folder, which must not exist."""
        folder.mkdir(mode=0o700)
        self._folder = folder
        self._held: set[str] = set()
        weakref.finalize(self, _delete, folder, os.getpid())

    def keep(self, chunks: Iterable[bytes]) -> tuple[str, int]:
        """Take in a content; return its hash and its size."""
        new, content, size = self._folder / "new", hashlib.sha256(), 0
        with open(new, "wb") as file:
            for chunk in chunks:
                content.update(chunk)
                size += file.write(chunk)
        new.rename(self._folder / content.hexdigest())
        self._held.add(content.hexdigest())
        return content.hexdigest(), size

    def open(self, sha256: str) -> BinaryIO:
        """Open a content to read."""
        return open(self._folder / sha256, "rb")

    def adopt(self, other: Store, hashes: Iterable[str]) -> None:
        """Take in contents of another store, without copying them where a link can be made.

        Raises:
            FileNotFoundError: the other store does not hold one of them.
        """
        for sha256 in set(hashes) - self._held:
            source, new = other._folder / sha256, self._folder / "new"
            try:
                os.link(source, new)
            except FileNotFoundError:
                raise
            except OSError:  # e.g. another file system, or one without links
                shutil.copyfile(source, new)
            new.rename(self._folder / sha256)
            self._held.add(sha256)

    def __deepcopy__(self, memo: object) -> Store:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("the contents of a workspace stay in this process; they are not pickled")


def _delete(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a fork of the caller must not delete what is the caller's
        with suppress(FileNotFoundError):
            tree.delete(str(folder))
