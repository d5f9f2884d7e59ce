from __future__ import annotations

import copy
import errno
import os
import pickle
import resource
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mappa_envs.sandbox import tree, workspace
from mappa_envs.sandbox.protocol import (
    TASK_AUTHOR,
    Access,
    Actor,
    FileChanges,
    FileRecord,
    Limits,
    Snapshot,
)
from mappa_envs.sandbox.workspace import Workspace

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
"""The SHA-256 of `abc`, as FIPS 180-2 prints it."""
READ_ONLY = Access(write=())
LIMITS = Limits()
IS_ROOT = os.geteuid() == 0


NONE = FileChanges()
ANY = Access()


@dataclass
class Outcome:
    changes: FileChanges = NONE
    over: bool = False


@contextmanager
def action(
    space: Workspace,
    agent: str = "solver",
    step: int = 0,
    access: Access = ANY,
    limits: Limits = LIMITS,
) -> Iterator[Outcome]:
    """What the block does to the files is what a program of that actor does."""
    actor, outcome = Actor(agent, step, access=access), Outcome()
    space.begin(actor)
    yield outcome
    outcome.changes, outcome.over = space.finish(actor, limits)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    return root


@pytest.fixture
def space(root: Path) -> Iterator[Workspace]:
    space = Workspace(root)
    yield space
    space.close()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the host that no call may reach into."""
    folder = tmp_path / "outside"
    folder.mkdir(mode=0o750)
    (folder / "secret").write_bytes(b"host")
    (folder / "secret").chmod(0o440)
    return folder


def unharmed(outside: Path) -> bool:
    secret = outside / "secret"
    modes = [stat.S_IMODE(path.lstat().st_mode) for path in (outside, secret)]
    return modes == [0o750, 0o440] and secret.read_bytes() == b"host"


def on_disk(space: Workspace) -> dict[str, bytes | None]:
    """Every path below the workspace with its content; None is a folder."""
    found: dict[str, bytes | None] = {}
    for folder, folders, files in os.walk(space.path):
        base = Path(folder).relative_to(space.path)
        found |= {str(base / name): None for name in folders}
        found |= {str(base / name): (Path(folder) / name).read_bytes() for name in files}
    return found


def authors(space: Workspace) -> dict[str, tuple[str, int]]:
    return {record.path: (record.author, record.step) for record in space.manifest()}


def stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def dig(start: Path, depth: int = 1100, name: str = "dddd") -> None:
    """Make a chain of folders, longer than any path may be and than Python's calls may nest."""
    fd = os.open(start, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def settle() -> None:
    """Wait until what was written is old enough for its stamp to be trusted."""
    time.sleep(0.06)


# --- the host's own reads and writes


def test_a_written_file_is_the_tasks(space: Workspace) -> None:
    space.write_file("data/train.csv", b"abc")
    space.write_file("data-2", b"")
    space.write_file("data/train.csv", b"abc")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert space.manifest() == (
        FileRecord("data-2", 0, empty, "task", -1),
        FileRecord("data/train.csv", 3, ABC, "task", -1),
    )
    assert on_disk(space) == {"data": None, "data-2": b"", "data/train.csv": b"abc"}
    assert space.read_file("data/train.csv", 3) == b"abc"
    assert stat.S_IMODE(space.path.stat().st_mode) == 0o700
    assert space.path.name == "files"


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\nb", "\udcff", "\0"],
)
def test_names_that_lead_out_of_the_workspace(space: Workspace, name: str) -> None:
    with pytest.raises(ValueError, match="use a relative path of printable characters"):
        space.write_file(name, b"abc")
    with pytest.raises(ValueError, match="use a relative path of printable characters"):
        space.read_file(name, 10)
    assert on_disk(space) == {}


def test_written_files_lie_as_deep_as_programs_may_leave_them(space: Workspace) -> None:
    deepest = "d/" * 16 + "file"
    space.write_file(deepest, b"abc")
    with pytest.raises(ValueError, match="lies in 17 folders; at most 16"):
        space.write_file("d/" * 17 + "file", b"abc")
    with action(space) as outcome:
        pass
    assert outcome == Outcome()
    assert space.read_file(deepest, 3) == b"abc"


def test_a_file_cannot_be_written_where_something_else_is(space: Workspace) -> None:
    space.write_file("data/train.csv", b"abc")
    before = space.manifest()
    for name in ("data", "data/train.csv/x", "x" * 256):
        with pytest.raises(ValueError, match="is no regular file of the workspace"):
            space.write_file(name, b"no")
    assert space.manifest() == before
    assert on_disk(space) == {"data": None, "data/train.csv": b"abc"}


def test_reading_what_is_missing_or_too_large(space: Workspace) -> None:
    space.write_file("a/b", b"abc")
    for name in ("x", "a/x", "x/b"):
        with pytest.raises(FileNotFoundError, match=f"'{name}' is not in the workspace"):
            space.read_file(name, 10)
    with pytest.raises(ValueError, match="'a/b' is larger than the 2 bytes"):
        space.read_file("a/b", 2)
    for name in ("a", "a/b/c"):
        with pytest.raises(ValueError, match="is no regular file"):
            space.read_file(name, 10)


def test_reading_never_follows_a_link_or_waits_for_a_pipe(space: Workspace, outside: Path) -> None:
    (space.path / "link").symlink_to(outside / "secret")
    (space.path / "folder").symlink_to(outside)
    os.link(outside / "secret", space.path / "second")
    os.mkfifo(space.path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{(fd := os.open(space.path, os.O_RDONLY))}/socket")
        os.close(fd)
    for name in ("link", "folder/secret", "second", "pipe", "socket"):
        with pytest.raises(ValueError, match="is no regular file of the workspace"):
            space.read_file(name, 100)
    assert unharmed(outside)


def test_writing_never_follows_a_link(space: Workspace, outside: Path) -> None:
    (space.path / "link").symlink_to(outside / "secret")
    (space.path / "folder").symlink_to(outside)
    space.write_file("link", b"abc")
    with pytest.raises(ValueError, match="is no regular file of the workspace"):
        space.write_file("folder/secret", b"abc")
    assert space.read_file("link", 3) == b"abc"
    assert unharmed(outside)


# --- what an action did, and who did it


def test_what_a_program_leaves_gets_its_author_and_step(space: Workspace) -> None:
    for name in ("changed", "deleted", "same", "untouched"):
        space.write_file(name, name.encode())
    with action(space, "solver", 4) as outcome:
        (space.path / "changed").write_bytes(b"abc")
        (space.path / "deleted").unlink()
        (space.path / "same").write_bytes(b"same")
        (space.path / "sub").mkdir()
        (space.path / "sub/new").write_bytes(b"abc")
        (space.path / "another").write_bytes(b"")
    assert outcome == Outcome(
        FileChanges(created=("another", "sub/new"), changed=("changed",), deleted=("deleted",))
    )
    assert authors(space) == {
        "another": ("solver", 4),
        "changed": ("solver", 4),
        "same": ("task", -1),
        "sub/new": ("solver", 4),
        "untouched": ("task", -1),
    }
    assert space.manifest()[1] == FileRecord("changed", 3, ABC, "solver", 4)


def test_the_author_is_who_changed_the_content_last(space: Workspace) -> None:
    with action(space, "solver", 1):
        (space.path / "model").write_bytes(b"1")
        (space.path / "notes").write_bytes(b"1")
    with action(space, "coder", 2) as edit:
        (space.path / "model").write_bytes(b"2")
        (space.path / "notes").write_bytes(b"1")
    with action(space, "solver", 3, READ_ONLY) as revert:
        (space.path / "model").write_bytes(b"1")
        (space.path / "notes").write_bytes(b"3")
    assert edit.changes == FileChanges(changed=("model",))
    assert revert.changes == FileChanges(changed=("notes",), restored=("model",))
    assert authors(space) == {"model": ("coder", 2), "notes": ("solver", 3)}
    assert on_disk(space) == {"model": b"2", "notes": b"3"}


@pytest.mark.parametrize("wait", [True, False])
def test_a_change_that_keeps_size_and_mtime_is_seen(space: Workspace, wait: bool) -> None:
    space.write_file("data", b"abc")
    if wait:
        settle()
    with action(space) as outcome:
        before = (space.path / "data").stat()
        with open(space.path / "data", "r+b") as file:
            file.write(b"xyz")
        os.utime(space.path / "data", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert outcome.changes == FileChanges(changed=("data",))
    assert space.read_file("data", 3) == b"xyz"


def test_a_change_within_one_tick_of_a_coarse_clock_is_seen(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "_stamp", lambda status: (status.st_ino, 0, 0, 0))
    space.write_file("data", b"abc")
    with action(space) as outcome, open(space.path / "data", "r+b") as file:
        file.write(b"xyz")
    assert outcome.changes == FileChanges(changed=("data",))


def test_only_files_that_may_have_changed_are_read_again(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.write_file("data", b"abc")
    space.write_file("touched", b"abc")
    settle()
    opened, open_path = [], tree.open_path

    def spy(root: Path, parts: list[str], uid: int | None) -> object:
        opened.append("/".join(parts))
        return open_path(root, parts, uid)

    monkeypatch.setattr(tree, "open_path", spy)
    with action(space) as outcome:
        (space.path / "data").read_bytes()
        (space.path / "touched").touch()
        (space.path / "new").touch()
    assert outcome.changes == FileChanges(created=("new",))
    assert sorted(opened) == ["new", "touched"]


# --- files of others


@pytest.mark.parametrize("attack", ["write", "append", "truncate", "rename", "delete", "replace"])
def test_files_of_others_are_put_back(space: Workspace, attack: str) -> None:
    space.write_file("data/train.csv", b"abc")
    path, before = space.path / "data/train.csv", space.manifest()
    with action(space, access=READ_ONLY) as outcome:
        if attack == "write":
            path.write_bytes(b"xyz")
        elif attack == "append":
            with path.open("ab") as file:
                file.write(b"d")
        elif attack == "truncate":
            os.truncate(path, 0)
        elif attack == "rename":
            (space.path / "mine").write_bytes(b"xyz")
            os.rename(space.path / "mine", path)
        elif attack == "delete":
            path.unlink()
            path.parent.rmdir()
        else:
            path.unlink()
            path.write_bytes(b"xyz")
    assert outcome.changes == FileChanges(restored=("data/train.csv",))
    assert space.manifest() == before
    assert on_disk(space) == {"data": None, "data/train.csv": b"abc"}


def test_a_file_put_back_can_be_put_back_again(space: Workspace) -> None:
    space.write_file("data", b"abc")
    for _ in range(3):
        with action(space, access=READ_ONLY) as outcome, (space.path / "data").open("r+b") as file:
            file.write(b"xyz")
        assert outcome.changes == FileChanges(restored=("data",))
        assert space.read_file("data", 3) == b"abc"


def test_patterns_say_which_files_of_others_may_change(space: Workspace) -> None:
    for name in ("data.csv", "sub/model.pkl", "model.pkl.txt", "MODEL.PKL"):
        space.write_file(name, b"abc")
    with action(space, access=Access(write=("*.pkl", "nothing"))) as outcome:
        for record in space.manifest():
            (space.path / record.path).unlink()
    assert outcome.changes == FileChanges(
        deleted=("sub/model.pkl",), restored=("MODEL.PKL", "data.csv", "model.pkl.txt")
    )


def test_identical_bytes_are_no_change_of_a_file_of_others(space: Workspace) -> None:
    space.write_file("data", b"abc")
    with action(space, access=READ_ONLY) as outcome:
        (space.path / "copy").write_bytes(b"abc")
        os.rename(space.path / "copy", space.path / "data")
    assert outcome.changes == FileChanges()
    assert authors(space) == {"data": ("task", -1)}


def test_own_files_may_be_renamed_and_deleted(space: Workspace) -> None:
    with action(space, step=1):
        (space.path / "a").write_bytes(b"abc")
        (space.path / "b").write_bytes(b"abc")
    with action(space, step=2, access=READ_ONLY) as outcome:
        os.rename(space.path / "a", space.path / "c")
        (space.path / "b").unlink()
    assert outcome.changes == FileChanges(created=("c",), deleted=("a", "b"))
    assert authors(space) == {"c": ("solver", 2)}


def test_a_file_of_others_replaced_by_a_folder(space: Workspace) -> None:
    space.write_file("data", b"abc")
    with action(space, access=READ_ONLY) as outcome:
        (space.path / "data").unlink()
        (space.path / "data/sub/deeper").mkdir(parents=True)
        (space.path / "data/x").write_bytes(b"x")
        (space.path / "data/sub/y").write_bytes(b"y")
    assert outcome.changes == FileChanges(restored=("data",), removed=("data/sub/y", "data/x"))
    assert on_disk(space) == {"data": b"abc"}
    with action(space, limits=Limits(workspace_files=1)) as outcome:
        (space.path / "more").touch()
    assert outcome.over
    assert on_disk(space) == {"data": b"abc"}


def test_a_folder_of_others_replaced_by_a_file(space: Workspace) -> None:
    space.write_file("a/b/c", b"abc")
    with action(space, access=READ_ONLY) as outcome:
        (space.path / "a/b/c").unlink()
        (space.path / "a/b").rmdir()
        (space.path / "a/b").write_bytes(b"x")
    assert outcome.changes == FileChanges(restored=("a/b/c",), removed=("a/b",))
    assert on_disk(space) == {"a": None, "a/b": None, "a/b/c": b"abc"}


def test_an_own_file_replaced_by_a_folder(space: Workspace) -> None:
    with action(space):
        (space.path / "a").write_bytes(b"abc")
    with action(space) as outcome:
        (space.path / "a").unlink()
        (space.path / "a").mkdir()
        (space.path / "a/b").write_bytes(b"abc")
    assert outcome.changes == FileChanges(created=("a/b",), deleted=("a",))


def test_a_folder_replaced_by_a_link_to_the_host(space: Workspace, outside: Path) -> None:
    space.write_file("data/secret", b"abc")
    space.write_file("etc/passwd", b"abc")
    with action(space, access=READ_ONLY) as outcome:
        for name, target in (("data", outside), ("etc", Path("/etc"))):
            os.rename(space.path / name, space.path / f"moved-{name}")
            (space.path / name).symlink_to(target)
    assert outcome.changes == FileChanges(
        created=("moved-data/secret", "moved-etc/passwd"),
        restored=("data/secret", "etc/passwd"),
        removed=("data", "etc"),
    )
    assert space.read_file("data/secret", 3) == space.read_file("etc/passwd", 3) == b"abc"
    assert unharmed(outside)


# --- what is no content


def test_links_pipes_sockets_and_devices_are_removed(space: Workspace, outside: Path) -> None:
    space.write_file("keep", b"abc")
    expected = ["dangling", "folder", "link", "pipe", "second", "socket"]
    with action(space) as outcome:
        (space.path / "link").symlink_to(outside / "secret")
        (space.path / "folder").symlink_to(outside)
        (space.path / "dangling").symlink_to("nowhere")
        os.link(outside / "secret", space.path / "second")
        os.mkfifo(space.path / "pipe")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{(fd := os.open(space.path, os.O_RDONLY))}/socket")
            os.close(fd)
        if IS_ROOT:
            with suppress(PermissionError):
                os.mknod(space.path / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
                expected = sorted([*expected, "device"])
    assert outcome == Outcome(FileChanges(removed=tuple(expected)))
    assert on_disk(space) == {"keep": b"abc"}
    assert unharmed(outside)


def test_files_with_a_second_name_are_removed(space: Workspace) -> None:
    space.write_file("data", b"abc")
    with action(space):
        (space.path / "own").write_bytes(b"abc")
    with action(space, access=READ_ONLY) as outcome:
        os.link(space.path / "data", space.path / "data-2")
        os.link(space.path / "own", space.path / "own-2")
    assert outcome.changes == FileChanges(
        deleted=("own",), restored=("data",), removed=("data", "data-2", "own", "own-2")
    )
    assert on_disk(space) == {"data": b"abc"}
    assert authors(space) == {"data": ("task", -1)}


def test_a_link_or_a_pipe_in_place_of_a_file(space: Workspace, outside: Path) -> None:
    space.write_file("data", b"abc")
    with action(space):
        (space.path / "own").write_bytes(b"abc")
    with action(space, access=READ_ONLY) as outcome:
        (space.path / "data").unlink()
        (space.path / "data").symlink_to(outside / "secret")
        (space.path / "own").unlink()
        os.mkfifo(space.path / "own")
    assert outcome.changes == FileChanges(
        deleted=("own",), restored=("data",), removed=("data", "own")
    )
    assert on_disk(space) == {"data": b"abc"}


def test_names_that_cannot_be_printed_are_removed(space: Workspace) -> None:
    base = os.fsencode(space.path)
    with action(space) as outcome:
        os.mkdir(base + b"/sub")
        for name in (b"bad\xff", b"new\nline", b"sub/bell\x07", "sub/\u202e".encode()):
            with open(base + b"/" + name, "wb") as file:
                file.write(b"abc")
        os.mkdir(base + b"/folder\xfe")
        with open(base + b"/folder\xfe/inside", "wb") as file:
            file.write(b"abc")
        (space.path / "größe ½").write_bytes(b"abc")
    assert outcome.changes == FileChanges(
        created=("größe ½",),
        removed=("bad\\xff", "folder\\xfe", "new\\nline", "sub/\\u202e", "sub/bell\\x07"),
    )
    assert on_disk(space) == {"größe ½": b"abc", "sub": None}


def test_folders_may_be_nested_sixteen_deep(space: Workspace) -> None:
    with action(space) as outcome:
        os.makedirs(space.path / ("d/" * 17))
        (space.path / ("d/" * 17) / "lost").write_bytes(b"abc")
        (space.path / ("d/" * 16) / "kept").write_bytes(b"abc")
    assert outcome.changes == FileChanges(
        created=("d/" * 16 + "kept",), removed=("/".join("d" * 17),)
    )
    assert len(on_disk(space)) == 17


def test_a_tree_deeper_than_any_path_is_removed(space: Workspace) -> None:
    with action(space, limits=Limits(workspace_files=1200)) as outcome:
        dig(space.path)
    assert outcome == Outcome(FileChanges(removed=("/".join(["dddd"] * 17),)))
    assert len(on_disk(space)) == 16


def test_modes_are_made_usable_for_the_host(space: Workspace) -> None:
    with action(space):
        (space.path / "a/b").mkdir(parents=True)
        (space.path / "a/b/own").write_bytes(b"abc")
        (space.path / "tool").write_bytes(b"abc")
        (space.path / "a/b/own").chmod(0)
        (space.path / "tool").chmod(0o6755)
        (space.path / "a/b").chmod(0)
        (space.path / "a").chmod(0o2000)
        space.path.chmod(0)
    modes = {
        name: stat.S_IMODE((space.path / name).stat().st_mode)
        for name in (".", "a", "a/b", "a/b/own", "tool")
    }
    assert modes == {".": 0o700, "a": 0o700, "a/b": 0o700, "a/b/own": 0o600, "tool": 0o755}
    assert space.read_file("a/b/own", 3) == b"abc"
    assert authors(space) == {"a/b/own": ("solver", 0), "tool": ("solver", 0)}


def test_a_changed_mode_is_no_changed_content(space: Workspace) -> None:
    space.write_file("data", b"abc")
    settle()
    with action(space, access=READ_ONLY) as outcome:
        (space.path / "data").chmod(0)
    assert outcome.changes == FileChanges()
    assert stat.S_IMODE((space.path / "data").stat().st_mode) == 0o600


@pytest.mark.parametrize("instead", ["nothing", "link", "file"])
def test_a_program_may_delete_its_workspace(space: Workspace, outside: Path, instead: str) -> None:
    space.write_file("data", b"abc")
    with action(space, access=READ_ONLY) as outcome:
        (space.path / "data").unlink()
        space.path.rmdir()
        if instead == "link":
            space.path.symlink_to(outside)
        if instead == "file":
            space.path.write_bytes(b"abc")
        assert not space.is_over(LIMITS)
    assert outcome.changes == FileChanges(restored=("data",))
    assert on_disk(space) == {"data": b"abc"}
    assert not space.path.is_symlink()
    assert unharmed(outside)


# --- the quota


def wreck(space: Workspace) -> None:
    """Change, replace and delete all that `filled` made."""
    (space.path / "data/train.csv").write_bytes(b"xyz")
    (space.path / "own").unlink()
    (space.path / "own").mkdir()
    (space.path / "own/x").write_bytes(b"xyz")
    (space.path / "empty/folder").rmdir()
    (space.path / "empty").rmdir()
    (space.path / "empty").symlink_to("/etc")
    (space.path / "extra/folder").mkdir(parents=True)


def filled(space: Workspace) -> tuple[tuple[FileRecord, ...], dict[str, bytes | None]]:
    space.write_file("data/train.csv", b"abc")
    space.write_file("data/test.csv", b"abc")
    with action(space, step=1):
        (space.path / "own").write_bytes(b"abc")
        (space.path / "empty/folder").mkdir(parents=True)
    return space.manifest(), on_disk(space)


@pytest.mark.parametrize("excess", ["bytes", "sparse", "files", "folders", "deep", "file_bytes"])
def test_over_the_quota_all_is_as_before(space: Workspace, excess: str) -> None:
    before = filled(space)
    limits = Limits(workspace_bytes=1000, workspace_files=50, file_bytes=500)
    with action(space, step=2, limits=limits) as outcome:
        wreck(space)
        if excess == "bytes":
            (space.path / "a").write_bytes(b"x" * 499)
            (space.path / "b").write_bytes(b"x" * 499)
        elif excess == "sparse":
            (space.path / "a").touch()
            os.truncate(space.path / "a", 10**12)
        elif excess == "files":
            for number in range(50):
                (space.path / f"{number}").touch()
        elif excess == "folders":
            for number in range(50):
                (space.path / f"{number}").mkdir()
        elif excess == "deep":
            dig(space.path)
        else:
            (space.path / "a").write_bytes(b"x" * 501)
        assert space.is_over(limits) is (excess != "file_bytes")
    assert outcome == Outcome(FileChanges(), over=True)
    assert (space.manifest(), on_disk(space)) == before
    with action(space, step=3, access=READ_ONLY) as outcome:
        (space.path / "own").write_bytes(b"xyz")
        (space.path / "data/test.csv").unlink()
    assert outcome.changes == FileChanges(changed=("own",), restored=("data/test.csv",))


def test_over_the_quota_files_that_nobody_touched_stay(space: Workspace) -> None:
    filled(space)
    settle()
    kept = stamp(space.path / "data/test.csv")
    with action(space, limits=Limits(workspace_files=5)) as outcome:
        (space.path / "x").touch()
        (space.path / "data/train.csv").unlink()
        (space.path / "y").touch()
    assert outcome.over
    assert stamp(space.path / "data/test.csv") == kept


def test_the_quota_may_be_used_up(space: Workspace) -> None:
    space.write_file("data", b"abc")
    exact = Limits(workspace_bytes=10, workspace_files=3, file_bytes=7)
    with action(space, limits=exact) as outcome:
        (space.path / "folder").mkdir()
        (space.path / "folder/x").write_bytes(b"1234567")
        assert not space.is_over(exact)
        assert space.is_over(Limits(workspace_bytes=9))
        assert space.is_over(Limits(workspace_files=2))
    assert outcome == Outcome(FileChanges(created=("folder/x",)))


def test_hidden_files_count(space: Workspace) -> None:
    space.write_file("data", b"abc")
    with action(space, access=Access(read=()), limits=Limits(workspace_bytes=5)) as outcome:
        (space.path / "x").write_bytes(b"123")
        assert space.is_over(Limits(workspace_bytes=5))
        assert not space.is_over(Limits(workspace_bytes=6))
        assert space.is_over(Limits(workspace_files=1))
        assert not space.is_over(Limits(workspace_files=2))
    assert outcome.over
    assert on_disk(space) == {"data": b"abc"}


def test_the_quota_does_not_follow_links(space: Workspace, outside: Path) -> None:
    (space.path / "link").symlink_to(outside)
    (space.path / "file").symlink_to(outside / "secret")
    assert not space.is_over(Limits(workspace_bytes=1, workspace_files=2))
    assert space.is_over(Limits(workspace_files=1))


def test_counting_stops_at_the_quota(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (space.path / f"{number}").touch()
    seen, sizes = [], tree.sizes

    def spy(root: Path) -> Iterator[int]:
        for size in sizes(root):
            seen.append(size)
            yield size

    monkeypatch.setattr(tree, "sizes", spy)
    assert space.is_over(Limits(workspace_files=5))
    assert len(seen) == 6


def test_counting_a_long_chain_holds_few_files_open(space: Workspace) -> None:
    dig(space.path, 500, "d")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, hard))
    try:
        assert not space.is_over(Limits(workspace_files=500))
        assert space.is_over(Limits(workspace_files=499))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_tree_made_to_hold_many_files_open_is_over(space: Workspace) -> None:
    """Each folder holds two that look alike, and only one of them goes on."""
    fd = os.open(space.path, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        for name in ("a", "b"):
            os.mkdir(name, dir_fd=fd)
        last = [entry.name for entry in os.scandir(fd)][-1]
        inner = os.open(last, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    assert space.is_over(Limits(workspace_files=10_000))
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)


def test_files_may_vanish_while_they_are_counted(space: Workspace) -> None:
    done, errors = threading.Event(), []

    def count() -> None:
        while not done.is_set():
            try:
                assert not space.is_over(LIMITS)
            except BaseException as error:
                errors.append(error)
                return

    counter = threading.Thread(target=count)
    counter.start()
    for _ in range(20):
        for number in range(10):
            (space.path / f"{number}").mkdir()
            (space.path / f"{number}/x").touch()
        for number in range(10):
            (space.path / f"{number}/x").unlink()
            (space.path / f"{number}").rmdir()
            (space.path / f"{number}").symlink_to("/")
            (space.path / f"{number}").unlink()
    done.set()
    counter.join()
    assert errors == []


def test_a_folder_that_vanishes_at_the_worst_moment(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One folder is gone, one is a link and one a file by the time they are to be opened."""
    for name in ("gone", "link", "file"):
        (space.path / name).mkdir()
    sizes = tree.sizes(space.path)
    assert [next(sizes) for _ in range(3)] == [0, 0, 0]
    for name in ("gone", "link", "file"):
        (space.path / name).rmdir()
    (space.path / "link").symlink_to("/")
    (space.path / "file").touch()
    assert list(sizes) == []


# --- hidden files


def test_hidden_files_are_out_of_reach_and_come_back(space: Workspace, root: Path) -> None:
    for name in ("data/train.csv", "data/secret.txt", "plan"):
        space.write_file(name, name.encode())
    before = space.manifest(), on_disk(space)
    settle()
    access = Access(read=("*.csv", "none"))
    for _ in range(2):
        with action(space, access=access) as outcome:
            assert on_disk(space) == {"data": None, "data/train.csv": b"data/train.csv"}
        assert outcome == Outcome()
        assert (space.manifest(), on_disk(space)) == before
    assert list((root / "hidden").iterdir()) == []
    with action(space) as outcome:
        (space.path / "plan").write_bytes(b"mine")
    assert outcome.changes == FileChanges(changed=("plan",))


@pytest.mark.parametrize("squat", ["file", "folder", "parent", "link", "twice"])
def test_a_program_cannot_take_a_hidden_files_place(
    space: Workspace, outside: Path, squat: str
) -> None:
    space.write_file("data/secret", b"abc")
    before, path = space.manifest(), space.path / "data/secret"
    with action(space, access=Access(read=("x",), write=("*",))) as outcome:
        if squat in ("file", "twice"):
            path.write_bytes(b"xyz" if squat == "file" else b"abc")
        elif squat == "folder":
            path.mkdir()
            (path / "x").write_bytes(b"xyz")
        elif squat == "parent":
            path.parent.rmdir()
            path.parent.write_bytes(b"xyz")
        else:
            path.symlink_to(outside / "secret")
    expected = {
        "file": FileChanges(restored=("data/secret",)),
        "twice": FileChanges(restored=("data/secret",)),
        "folder": FileChanges(restored=("data/secret",), removed=("data/secret/x",)),
        "parent": FileChanges(removed=("data",)),
        "link": FileChanges(restored=("data/secret",), removed=("data/secret",)),
    }
    assert outcome.changes == expected[squat]
    assert space.manifest() == before
    assert on_disk(space) == {"data": None, "data/secret": b"abc"}
    assert unharmed(outside)


def test_hidden_files_come_back_after_a_broken_quota(space: Workspace, root: Path) -> None:
    space.write_file("data/secret", b"abc")
    before = space.manifest()
    limits = Limits(workspace_bytes=10)
    with action(space, access=Access(read=()), limits=limits) as outcome:
        (space.path / "data/secret").write_bytes(b"x" * 8)
    assert outcome == Outcome(FileChanges(), over=True)
    assert space.manifest() == before
    assert on_disk(space) == {"data": None, "data/secret": b"abc"}
    assert list((root / "hidden").iterdir()) == []


# --- snapshots


def test_restore_brings_back_content_and_authors(space: Workspace) -> None:
    space.write_file("data/train.csv", b"abc")
    with action(space, "solver", 1):
        (space.path / "own").write_bytes(b"abc")
        (space.path / "results").mkdir()
    snapshot, files = space.snapshot(), on_disk(space)
    assert snapshot == Snapshot(space.manifest(), ("data", "results"))
    assert files == {"data": None, "data/train.csv": b"abc", "own": b"abc", "results": None}
    for _ in range(2):
        with action(space, "coder", 2):
            (space.path / "own").write_bytes(b"xyz")
            (space.path / "data/train.csv").unlink()
            (space.path / "data").rmdir()
            (space.path / "results").rmdir()
            (space.path / "data").write_bytes(b"abc")
            (space.path / "new/empty").mkdir(parents=True)
            (space.path / "new/file").write_bytes(b"abc")
        space.restore(snapshot)
        assert space.snapshot() == snapshot
        assert on_disk(space) == files
        assert authors(space) == {"data/train.csv": ("task", -1), "own": ("solver", 1)}


def test_two_forks_of_one_moment(space: Workspace) -> None:
    space.write_file("data", b"0")
    start = space.snapshot()
    forks = []
    for agent, content in (("left", b"1"), ("right", b"2")):
        space.restore(start)
        with action(space, agent, 1) as outcome:
            (space.path / "data").write_bytes(content)
            (space.path / agent).touch()
        assert outcome.changes == FileChanges(created=(agent,), changed=("data",))
        forks.append(space.snapshot())
    for fork, agent, content in ((forks[0], "left", b"1"), (forks[1], "right", b"2")):
        space.restore(fork)
        assert on_disk(space) == {"data": content, agent: b""}
        assert authors(space) == {"data": (agent, 1), agent: (agent, 1)}
    space.restore(replace(start, files=(), folders=()))
    assert on_disk(space) == {}
    assert space.manifest() == ()


def test_restore_touches_only_what_differs(space: Workspace) -> None:
    space.write_file("same", b"abc")
    space.write_file("other", b"abc")
    snapshot = space.snapshot()
    kept, left = stamp(space.path / "same"), stamp(space.path / "other")
    with action(space, "solver", 1):
        (space.path / "other").unlink()
        (space.path / "other").write_bytes(b"xyz")
    space.restore(snapshot)
    assert stamp(space.path / "same") == kept
    assert stamp(space.path / "other") != left
    assert authors(space) == {"other": ("task", -1), "same": ("task", -1)}


def test_restore_changes_an_author_without_touching_the_file(space: Workspace) -> None:
    with action(space, "solver", 1):
        (space.path / "x").write_bytes(b"abc")
    snapshot = space.snapshot()
    space.write_file("x", b"abc")
    before = stamp(space.path / "x")
    assert authors(space) == {"x": ("task", -1)}
    space.restore(snapshot)
    assert authors(space) == {"x": ("solver", 1)}
    assert stamp(space.path / "x") == before


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "other").mkdir()
    other = Workspace(tmp_path / "other")
    yield other
    other.close()


def test_the_snapshot_of_another_workspace(
    space: Workspace, other: Workspace, tmp_path: Path
) -> None:
    other.write_file("shared", b"abc")
    with action(other, "coder", 4):
        (other.path / "data").mkdir()
        (other.path / "data/theirs").write_bytes(b"xyz")
    space.write_file("shared", b"abc")
    space.write_file("mine", b"1")
    snapshot = other.snapshot()
    other.close()
    for _ in range(2):
        space.restore(snapshot)
        assert on_disk(space) == {"shared": b"abc", "data": None, "data/theirs": b"xyz"}
        assert authors(space) == {"shared": (TASK_AUTHOR, -1), "data/theirs": ("coder", 4)}
        with action(space, "solver", 5):
            (space.path / "data/theirs").write_bytes(b"changed")
    assert (tmp_path / "other.store").exists()
    del snapshot
    assert not (tmp_path / "other.store").exists()


def test_contents_are_copied_where_no_link_can_be_made(
    space: Workspace, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_links)
    other.write_file("data", b"abc")
    space.restore(other.snapshot())
    assert on_disk(space) == {"data": b"abc"}


def test_the_snapshot_of_another_kind_of_sandbox(space: Workspace) -> None:
    space.write_file("mine", b"1")
    before = space.manifest(), on_disk(space)
    with pytest.raises(ValueError, match="the snapshot is of another kind of sandbox"):
        space.restore(Snapshot((), contents={}))
    assert (space.manifest(), on_disk(space)) == before


def test_a_snapshot_is_copied_but_not_pickled(space: Workspace) -> None:
    space.write_file("data", b"abc")
    snapshot = copy.deepcopy(space.snapshot())
    with action(space):
        (space.path / "data").unlink()
    space.restore(snapshot)
    assert on_disk(space) == {"data": b"abc"}
    with pytest.raises(TypeError, match="the contents of a workspace stay in this process"):
        pickle.dumps(snapshot)


def test_restore_drops_an_unfinished_action(space: Workspace, root: Path) -> None:
    space.write_file("data/secret", b"abc")
    space.write_file("gone", b"abc")
    gone = space.snapshot()
    space.restore(replace(gone, files=gone.files[:1]))
    space.write_file("another", b"abc")
    for snapshot in (space.snapshot(), gone):
        space.begin(Actor(access=Access(read=())))
        assert on_disk(space) == {"data": None}
        (space.path / "data/secret").write_bytes(b"xyz")
        (space.path / "mine").symlink_to("/etc")
        space.restore(snapshot)
        assert space.snapshot() == snapshot
        assert on_disk(space) == {"data": None} | {file.path: b"abc" for file in snapshot.files}
        assert list((root / "hidden").iterdir()) == []


def test_actions_do_not_nest(space: Workspace) -> None:
    with pytest.raises(RuntimeError, match="no action has begun"):
        space.finish(Actor(), LIMITS)
    space.begin(Actor())
    with pytest.raises(RuntimeError, match="an action has begun already"):
        space.begin(Actor())
    assert space.finish(Actor(), LIMITS) == (FileChanges(), False)


# --- the end


def test_close_deletes_whatever_is_there(root: Path, outside: Path) -> None:
    space = Workspace(root)
    space.write_file("data", b"abc")
    space.begin(Actor(access=Access(read=())))
    dig(space.path)
    os.mkfifo(space.path / "dddd/pipe")
    (space.path / "link").symlink_to(outside)
    os.link(outside / "secret", space.path / "second")
    (space.path / os.fsdecode(b"bad\xff\n")).mkdir()
    for name in ("shut", "shut/inside", "shut/inside/deeper"):
        (space.path / name).mkdir()
    (space.path / "shut/inside/deeper/file").touch()
    for name in ("shut/inside/deeper/file", "shut/inside/deeper", "shut/inside", "shut", "."):
        (space.path / name).chmod(0)
    space.close()
    assert not root.exists()
    assert not root.with_name("root.store").exists()
    assert unharmed(outside)
    space.close()


@pytest.mark.skipif(not IS_ROOT, reason="gives files to another user")
def test_files_are_given_to_the_programs_user(root: Path) -> None:
    uid = 61_200
    space = Workspace(root, uid)

    def owners() -> dict[str, tuple[int, int]]:
        paths = [space.path, *sorted(space.path.rglob("*"))]
        found = {str(path.relative_to(space.path)): path.lstat() for path in paths}
        return {name: (status.st_uid, status.st_gid) for name, status in found.items()}

    assert owners() == {".": (uid, uid)}
    space.write_file("a/b/data", b"abc")
    snapshot = space.snapshot()
    with action(space, access=READ_ONLY) as outcome:  # of root, as after a broken hand-over
        (space.path / "own/folder").mkdir(parents=True)
        (space.path / "own/file").write_bytes(b"abc")
        (space.path / "a/b/data").unlink()
        (space.path / "a/b").rmdir()
    assert outcome.changes == FileChanges(created=("own/file",), restored=("a/b/data",))
    names = (".", "a", "a/b", "a/b/data", "own", "own/file", "own/folder")
    assert owners() == dict.fromkeys(names, (uid, uid))
    space.restore(snapshot)
    assert owners() == dict.fromkeys((".", "a", "a/b", "a/b/data"), (uid, uid))
    for name, group, mode in (
        (".", uid, 0o710),
        ("../root.store", 0, 0o700),
        ("hidden", 0, 0o700),
        ("files", uid, 0o700),
    ):
        status = (root / name).stat()
        assert (status.st_gid, stat.S_IMODE(status.st_mode)) == (group, mode)
    space.close()


def test_the_authors_name_of_the_task_is_no_agents(space: Workspace) -> None:
    space.write_file("data", b"abc")
    with action(space, "agent", access=READ_ONLY) as outcome:
        (space.path / "data").write_bytes(b"xyz")
    assert outcome.changes.restored == ("data",)
    assert authors(space) == {"data": (TASK_AUTHOR, -1)}
