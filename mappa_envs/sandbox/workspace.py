"""The files that programs see, who wrote each of them, and every content they ever had."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mappa_envs.sandbox import tree
from mappa_envs.sandbox.protocol import (
    TASK_AUTHOR,
    Actor,
    FileChanges,
    FileRecord,
    Limits,
    Snapshot,
)
from mappa_envs.sandbox.store import Store
from mappa_envs.sandbox.tree import above, explained, split

_CLOCK_STEP_NS: Final = 20_000_000
"""Kernels may stamp two changes of a file alike that lie less than this apart."""
_Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Noted:
    """A file as it was when its content was last read or written here."""

    record: FileRecord
    stamp: _Stamp


class Workspace:
    """A folder for programs, with the authors and the contents of its files.

    A program runs between `begin` and `finish`; in that time only `is_over` may be called. No
    two calls may overlap, but for `is_over`.

    Every content a file had at the end of an action is kept until `close`, and longer while a
    snapshot refers to it, so the disk holds up to `Limits.workspace_bytes` more after each
    action. Modes and times are no part of the content: what is put back is a new file of mode
    0644.

    It does not keep programs from its store and its hidden files, which lie beside `path`: that
    takes another user (`uid`), or a view of the file system without them.
    """

    def __init__(self, root: Path, uid: int | None = None) -> None:
        """Make an empty workspace.

        Args:
            root: An existing, empty, private folder; the workspace deletes it at the end. The
                contents are kept in a new folder beside it.
            uid: The user, and group, that the programs run as and that all files are given to;
                only root may name another than itself.
        """
        self.path = root / "files"
        """What programs see."""
        self._root, self._hidden = root, root / "hidden"
        self._uid = uid
        self._hidden.mkdir(mode=0o700)
        if uid is not None:  # the programs must pass through, and nobody else
            os.chown(root, -1, uid)
            root.chmod(0o710)
        self._ready_folder()
        self._store = Store(root.with_name(f"{root.name}.store"))
        self._files: dict[str, _Noted] = {}
        self._folders: frozenset[str] = frozenset()
        self._aside: dict[str, Path] = {}
        self._began_ns: int | None = None

    def read_file(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a regular file.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: `name` leaves the workspace, is no regular file, or is over `max_bytes`.
        """
        parts = split(name)
        with explained(name), tree.open_path(self.path, parts, self._uid) as file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(max_bytes + 1) if size <= max_bytes else None
        if content is None or len(content) > max_bytes:
            raise ValueError(f"{name!r} is larger than the {max_bytes} bytes that may be read")
        return content

    def write_file(self, name: str, content: bytes) -> None:
        """Create or replace a file as the task, with the folders it needs.

        Raises:
            ValueError: `name` leaves the workspace, or lies where something else is.
        """
        split(name)
        sha256, size = self._store.keep([content])
        with explained(name):
            self._files[name] = self._put(FileRecord(name, size, sha256, TASK_AUTHOR, -1))
        self._folders |= above([name])

    def begin(self, actor: Actor) -> None:
        """Make ready for a program: what its actor may not read is out of its reach.

        Raises:
            RuntimeError: the last action was not finished.
        """
        if self._began_ns is not None:
            raise RuntimeError("an action has begun already; call finish() or restore() first")
        self._began_ns = time.time_ns()
        for path in self._files:
            if not actor.access.may_read(path):
                hidden = self._hidden / str(len(self._aside))
                parts = split(path)
                with tree.folder_of(self.path, parts) as folder:
                    os.rename(parts[-1], hidden, src_dir_fd=folder)
                self._aside[path] = hidden

    def is_over(self, limits: Limits) -> bool:
        """Whether files and folders are more, or larger, than the workspace may hold.

        Hidden files count, and so does whatever `finish` would remove. It may be called from
        another thread while a program runs. A folder that its owner may not look into is made
        readable.
        """
        count = len(self._aside)
        total = sum(self._files[path].record.size for path in self._aside)
        with suppress(FileNotFoundError, NotADirectoryError):  # a program may delete its folder
            for size in tree.sizes(self.path):
                count, total = count + 1, total + size
                if count > limits.workspace_files or total > limits.workspace_bytes:
                    return True
        return False

    def finish(self, actor: Actor, limits: Limits) -> tuple[FileChanges, bool]:
        """Take stock after a program whose processes are gone.

        - What is no content is removed, see `tree.clean`.
        - What the actor changed or deleted without the right to is put back; files that it left
          in the place of that, or of a folder that leads there, are removed.
        - What is left is recorded with its author and step. Identical bytes are no change.

        `created`, `changed` and `deleted` are what became of the manifest. A path may be in
        `removed` and also in `deleted` or `restored`: what the program put there is gone, and
        so is the file that it put it in place of, or else that file is back.

        Returns:
            What became of the workspace, and whether it was over the quota, or a changed file
            over `limits.file_bytes`: then nothing became of it, all is as it was at `begin`.

        Raises:
            RuntimeError: no action has begun.
        """
        if self._began_ns is None:
            raise RuntimeError("no action has begun; call begin() before the program runs")
        self._ready_folder()
        changes = None if self.is_over(limits) else self._settled(actor, limits)
        if changes is None:
            self._bring_to({path: file.record for path, file in self._files.items()}, self._folders)
        self._began_ns = None
        return changes or FileChanges(), changes is None

    def manifest(self) -> tuple[FileRecord, ...]:
        """Return all files, sorted by path."""
        return tuple(self._files[path].record for path in sorted(self._files))

    def snapshot(self) -> Snapshot:
        """Remember all files and folders as they are."""
        return Snapshot(self.manifest(), tuple(sorted(self._folders)), self._store)

    def restore(self, snapshot: Snapshot) -> None:
        """Bring all files, with their authors, back to what they were; drop an unfinished action.

        Only files that differ are touched. The snapshot may be another workspace's.

        Raises:
            ValueError: the snapshot's contents are not kept on this machine.
        """
        if not isinstance(snapshot.contents, Store):
            raise ValueError(
                "the snapshot is of another kind of sandbox; restore it in one of its own kind"
            )
        files = {record.path: record for record in snapshot.files}
        self._store.adopt(snapshot.contents, (record.sha256 for record in snapshot.files))
        self._ready_folder()
        self._bring_to(files, frozenset(snapshot.folders))
        self._began_ns = None

    def close(self) -> None:
        """Delete the workspace and all it keeps; a second call does nothing."""
        with suppress(FileNotFoundError):
            tree.delete(str(self._root))
        with suppress(AttributeError):
            del self._store  # the last reference to it, but for those of snapshots

    def _ready_folder(self) -> None:
        """Make the programs' folder, also after they deleted it, and close it to others."""
        if self.path.is_symlink() or not self.path.is_dir():
            with suppress(FileNotFoundError):
                tree.delete(str(self.path))
            self.path.mkdir(mode=0o700)
        fd = tree.open_folder(str(self.path), None, self._uid)
        try:
            os.fchmod(fd, 0o700)
        finally:
            os.close(fd)

    def _settled(self, actor: Actor, limits: Limits) -> FileChanges | None:
        """Make the workspace what the actor may make of it; None if a file is too large."""
        before, hidden = self._files, set(self._aside)
        found = tree.clean(self.path, self._uid)
        touched = {path for path in found.files if not self._is_noted(path, found.files[path])}
        touched -= hidden
        if any(found.files[path].st_size > limits.file_bytes for path in touched):
            return None
        taken = {path: self._take(path, actor, limits) for path in touched & before.keys()}
        changed = {path for path in taken if taken[path].record is not before[path].record}
        deleted = before.keys() - hidden - found.files.keys()
        restored = {p for p in changed | deleted if not self._may_change(p, actor)}
        squatted = hidden & (found.files.keys() | found.folders | found.removed)
        blocking = self._cleared(found, restored | hidden)
        created = touched - before.keys() - blocking
        taken |= {path: self._take(path, actor, limits) for path in created}
        for path in found.files.keys() - touched - hidden:
            taken[path] = before[path]
        self._files = {path: taken[path] for path in taken.keys() - restored}
        self._files |= {path: self._put(before[path].record) for path in restored}
        self._files |= {path: self._shown(before[path].record) for path in hidden}
        self._folders = above(self._files) | found.folders
        return FileChanges(
            created=tuple(sorted(created)),
            changed=tuple(sorted(changed - restored)),
            deleted=tuple(sorted(deleted - restored)),
            restored=tuple(sorted(restored | squatted)),
            removed=tuple(sorted(found.removed | blocking)),
        )

    def _cleared(self, found: tree.Found, paths: set[str]) -> set[str]:
        """Delete what keeps files from being put at `paths`; return which files those were."""
        present = found.files.keys() | found.folders
        inside = {path for path in present if not paths.isdisjoint(above([path]))}
        blocking = found.files.keys() & (above(paths) | inside)
        for path in sorted(blocking | (found.folders & paths)):
            self._delete(path)
        found.folders.difference_update(inside, paths)
        return blocking

    def _bring_to(self, target: Mapping[str, FileRecord], folders: frozenset[str]) -> None:
        """Bring the workspace, whatever it has become, to these files and folders."""
        before, folders = self._files, folders | above(target)
        found = tree.clean(self.path, self._uid)
        same = {
            path
            for path in found.files.keys() & target.keys()
            if self._is_noted(path, found.files[path])
            and before[path].record.sha256 == target[path].sha256
        }
        for path in sorted((found.folders - folders) | (found.files.keys() - same)):
            self._delete(path)
        self._files = {path: _Noted(target[path], before[path].stamp) for path in same}
        for path, record in target.items():
            if path in self._aside and before[path].record.sha256 == record.sha256:
                self._files[path] = self._shown(record)
            elif path not in same:
                self._files[path] = self._put(record)
        for hidden in self._aside.values():
            hidden.unlink()
        self._aside.clear()
        for path in folders:
            tree.make_folders(self.path, [*path.split("/"), ""], self._uid)
        self._folders = folders

    def _may_change(self, path: str, actor: Actor) -> bool:
        author = self._files[path].record.author
        return author == actor.agent or actor.access.may_change(path)

    def _is_noted(self, path: str, status: os.stat_result) -> bool:
        """Whether a file is certain to have the content that was noted for it.

        It is not where the content was noted so shortly before the program ran that a change
        by the program could have the same stamp.
        """
        if path not in self._files or self._files[path].stamp != _stamp(status):
            return False
        return self._began_ns is None or status.st_ctime_ns < self._began_ns - _CLOCK_STEP_NS

    def _take(self, path: str, actor: Actor, limits: Limits) -> _Noted:
        """Keep the content of a file; a change from now on gives the file another stamp."""
        with tree.open_path(self.path, split(path), self._uid) as file:
            stamp = _stamp(os.fstat(file.fileno()))
            sha256, size = self._store.keep(tree.pieces(file, limits.file_bytes))
        if path in self._files and self._files[path].record.sha256 == sha256:
            return _Noted(self._files[path].record, stamp)
        return _Noted(FileRecord(path, size, sha256, actor.agent, actor.step), stamp)

    def _put(self, record: FileRecord) -> _Noted:
        """Make a file with a content of the store, in place of any other file."""
        new = self._hidden / "new"
        with self._store.open(record.sha256) as content, open(new, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            if self._uid is not None:
                os.fchown(file.fileno(), self._uid, self._uid)
            shutil.copyfileobj(content, file)
        return self._moved_in(new, record)

    def _shown(self, record: FileRecord) -> _Noted:
        """Move a hidden file back, in place of any other file."""
        noted = self._moved_in(self._aside[record.path], record)
        del self._aside[record.path]
        return noted

    def _moved_in(self, source: Path, record: FileRecord) -> _Noted:
        parts = split(record.path)
        tree.make_folders(self.path, parts, self._uid)
        with tree.folder_of(self.path, parts) as folder:
            os.rename(source, parts[-1], dst_dir_fd=folder)
            status = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        return _Noted(record, _stamp(status))

    def _delete(self, path: str) -> None:
        """Delete a file or folder, if it did not go with a folder above it."""
        parts = path.split("/")
        with suppress(FileNotFoundError), tree.folder_of(self.path, parts) as folder:
            tree.delete(parts[-1], folder)


def _stamp(status: os.stat_result) -> _Stamp:
    """Return what no program can change a file without changing."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
