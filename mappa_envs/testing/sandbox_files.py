"""Checks of a sandbox: its workspace, who may do what there, and what the caller gets of it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import get_args

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.protocol import (
    TASK_AUTHOR,
    Access,
    Actor,
    ExecResult,
    FileChanges,
    FileRecord,
    Level,
    Limits,
    Sandbox,
    Snapshot,
)
from mappa_envs.testing.expect import equal, refused
from mappa_envs.testing.sandbox_programs import LIMITS

_EMPTY = FileChanges()


def the_protocol_is_followed(sandbox: Sandbox) -> None:
    """It has every verb, and a level that is one."""
    equal(isinstance(sandbox, Sandbox), True, "a Sandbox")
    equal(sandbox.level in get_args(Level), True, f"one of the levels instead of {sandbox.level}")


def files_outlive_a_program(sandbox: Sandbox) -> None:
    """The next program finds what the last one left, also as a module."""
    sandbox.exec("open('a.txt', 'w').write('kept')\nopen('solver.py', 'w').write('x = 42')", LIMITS)
    source = "import solver\nprint(open('a.txt').read(), solver.x)"
    equal(sandbox.exec(source, LIMITS), ExecResult.of("kept 42\n"), source)


def temporary_files_do_not_outlive_a_program(sandbox: Sandbox) -> None:
    """What a program leaves outside the workspace is gone: it has no author and no quota."""
    path = "import os, tempfile\npath = os.path.join(tempfile.gettempdir(), 'left')\n"
    result = sandbox.exec(f"{path}open(path, 'x').write('a'); print('written')", LIMITS)
    equal(result, ExecResult.of("written\n"), "a program that writes a temporary file")
    seen = sandbox.exec(f"{path}print(os.path.exists(path))", LIMITS).stdout
    equal(seen, "False\n", "whether the next program sees it")


def caller_and_programs_share_files(sandbox: Sandbox) -> None:
    """Each sees what the other wrote."""
    sandbox.write_file("data/in.txt", b"one")
    source = "s = open('data/in.txt').read()\nopen('data/in.txt', 'w').write(s + ' two')"
    expected = replace(ExecResult.of(), files=FileChanges(changed=("data/in.txt",)))
    equal(sandbox.exec(source, LIMITS), expected, source)
    equal(sandbox.read_file("data/in.txt", 100), b"one two", "what the caller reads")
    sandbox.write_file("data/in.txt", b"three")
    equal(sandbox.read_file("data/in.txt", 5), b"three", "what the caller wrote")
    refused(ValueError, sandbox.read_file, "data/in.txt", 4)
    refused(ValueError, sandbox.read_file, "data", 4)
    for name in ("none", "no/such"):
        refused(FileNotFoundError, sandbox.read_file, name, 9)


def names_that_lead_out_are_refused(sandbox: Sandbox) -> None:
    """The caller cannot be talked into a file outside the workspace."""
    for name in (
        *("", ".", "..", "../a", "a/../../b", "/etc/passwd", "a//b", "a/", "./a"),
        *("a\nb", "a\0b", "a\x1b[0m", "\ud800"),
    ):
        refused(ValueError, sandbox.read_file, name, 9)
        refused(ValueError, sandbox.write_file, name, b"")


_ODD = """
import os, socket
open("plain", "w").write("plain")
def attempt(function, *arguments):
    try:
        function(*arguments)
    except OSError:
        pass
attempt(os.symlink, OUTSIDE, "folder")
attempt(os.symlink, OUTSIDE + "/secret", "link")
attempt(os.link, OUTSIDE + "/secret", "second")
attempt(os.link, "plain", "hard")
attempt(os.mkfifo, "pipe")
attempt(lambda: socket.socket(socket.AF_UNIX).bind("socket"))
"""


def links_and_pipes_do_not_stay(sandbox: Sandbox) -> None:
    """What is no regular file is gone after the program, and no link is followed by the caller."""
    with tempfile.TemporaryDirectory() as outside:
        secret = Path(outside, "secret")
        secret.write_text("host")
        sandbox.exec(f"OUTSIDE = {outside!r}\n{_ODD}", LIMITS)
        for name in ("link", "second", "hard", "pipe", "socket", "folder/secret"):
            refused((OSError, ValueError), sandbox.read_file, name, 9)
        sandbox.write_file("link", b"new")
        sandbox.write_file("folder/secret", b"new")
        equal(secret.read_text(), "host", "a file of the host that a link pointed to")
        equal(os.listdir(outside), ["secret"], "a folder of the host that a link pointed to")
    names = {record.path for record in sandbox.manifest()} - {"plain"}
    equal(names, {"link", "folder/secret"}, "what the caller wrote in place of links")


def the_manifest_knows_authors(sandbox: Sandbox) -> None:
    """Each file has the author and the step of its last change of content."""
    sandbox.write_file("task.csv", b"1,2\n")
    open_a = "open('a', 'w').write"
    first = sandbox.exec(f"{open_a}('one')\nopen('b', 'w')", LIMITS, Actor("solver", 0))
    equal(first.files, FileChanges(created=("a", "b")), "the first program's changes")
    source = f"{open_a}('two')\nimport os; os.utime('b'); os.remove('task.csv')"
    second = sandbox.exec(source, LIMITS, Actor("coder", 1))
    expected = FileChanges(changed=("a",), deleted=("task.csv",))
    equal(second.files, expected, "the second program's changes")
    sandbox.write_file("c/d", b"task")
    rows = (("a", b"two", "coder", 1), ("b", b"", "solver", 0), ("c/d", b"task", TASK_AUTHOR, -1))
    manifest = tuple(
        FileRecord(path, len(content), hashlib.sha256(content).hexdigest(), author, step)
        for path, content, author, step in rows
    )
    equal(sandbox.manifest(), manifest, "the manifest")


def protected_files_are_put_back(sandbox: Sandbox) -> None:
    """Only files of one's own and those that one may write can be changed or deleted."""
    sandbox.write_file("train.csv", b"train")
    sandbox.write_file("notes.txt", b"task")
    sandbox.exec("open('own', 'w').write('1')", LIMITS, Actor("solver"))
    source = (
        "import os\nopen('train.csv', 'a').write('!')\nos.remove('notes.txt')\n"
        "open('own', 'w').write('2')"
    )
    access = Access(write=("*.txt",))
    changes = sandbox.exec(source, LIMITS, Actor("solver", access=access)).files
    expected = FileChanges(changed=("own",), deleted=("notes.txt",), restored=("train.csv",))
    equal(changes, expected, "a program that may change its own files and *.txt")
    equal(sandbox.read_file("train.csv", 99), b"train", "the protected file")
    equal(sandbox.read_file("own", 99), b"2", "the program's own file")


def unreadable_files_are_out_of_reach(sandbox: Sandbox) -> None:
    """What an actor may not read is not there while it runs, and back afterwards."""
    sandbox.write_file("data/train.csv", b"train")
    sandbox.write_file("data/truth.csv", b"truth")
    before = sandbox.manifest()
    access = Access(read=("*train*",))
    source = "import os\nprint(os.listdir('data'))\nopen('data/truth.csv', 'w').write('mine')"
    result = sandbox.exec(source, LIMITS, Actor("solver", access=access))
    equal(result.stdout, "['train.csv']\n", "what a program sees that may read *train*")
    equal(sandbox.manifest(), before, "the files after it")
    equal(sandbox.read_file("data/truth.csv", 99), b"truth", "the hidden file")


def a_snapshot_brings_everything_back(sandbox: Sandbox) -> None:
    """Contents and authors are as they were, as often as one likes."""
    sandbox.write_file("data/in.txt", b"one")
    sandbox.exec("open('a', 'w').write('a')", LIMITS, Actor("solver", 3))
    before, snapshot = sandbox.manifest(), sandbox.snapshot()
    for _ in range(2):
        source = (
            "import os, shutil\nshutil.rmtree('data'); open('a', 'a').write('b'); open('c', 'w')"
        )
        sandbox.exec(source, LIMITS, Actor("coder", 4))
        equal(sandbox.manifest() == before, False, "whether the program changed nothing")
        sandbox.restore(snapshot)
        equal(sandbox.manifest(), before, "the manifest after restore")
        look = "print(open('data/in.txt').read(), open('a').read())"
        equal(sandbox.exec(look, LIMITS).stdout, "one a\n", "the contents after restore")


def large_files_are_refused(sandbox: Sandbox) -> None:
    """A file ends at the limit, and the program is told."""
    source = "f = open('a', 'wb', buffering=0)\nprint(f.write(b'x' * 1001))\nf.write(b'x')"
    result = sandbox.exec(source, Limits(timeout_s=30.0, file_bytes=1000))
    equal((result.exit_code, result.stdout), (1, "1000\n"), source)
    equal("File too large" in result.stderr, True, f"'File too large' in {result.stderr!r}")
    equal([record.size for record in sandbox.manifest()], [1000], "the sizes of the files")


def a_full_workspace_is_as_before(sandbox: Sandbox) -> None:
    """A program that leaves too many files, or too much in them, leaves nothing."""
    sandbox.write_file("in.txt", b"one")
    before = sandbox.manifest()
    few, small = (
        Limits(timeout_s=30.0, workspace_files=50),
        Limits(timeout_s=30.0, workspace_bytes=10_000),
    )
    for limits, source in (
        (few, "for n in range(100): open(f'{n}', 'w')"),
        (few, "import os\nfor n in range(100): os.makedirs(f'f/{n}')"),
        (small, "for n in range(20): open(f'{n}', 'w').write('x' * 1000)"),
        (small, "import os; os.truncate(os.open('sparse', os.O_CREAT | os.O_WRONLY), 20_000)"),
    ):
        result = sandbox.exec(f"import os; os.remove('in.txt')\n{source}", limits)
        equal((result.limit_hit, result.files), ("files", _EMPTY), source)
        equal(sandbox.manifest(), before, "the files after it")
        equal(sandbox.read_file("in.txt", 9), b"one", "the content after it")


def workspaces_are_apart(factory: Callable[[], Sandbox]) -> None:
    """A sandbox sees none of the files of another."""
    with closing(factory()) as one, closing(factory()) as other:
        one.exec("open('a', 'w').write('mine')", LIMITS)
        equal(other.exec("import os; print(os.listdir())", LIMITS).stdout, "[]\n", "the files")
        equal(other.manifest(), (), "the manifest")


def a_snapshot_serves_another_sandbox(factory: Callable[[], Sandbox]) -> None:
    """It brings all files there, also after its own sandbox is closed; then each goes its way."""
    look = "print(open('a').read())"
    with closing(factory()) as one, closing(factory()) as other:
        one.exec("open('a', 'w').write('mine')", LIMITS, Actor("solver", 3))
        snapshot, files = one.snapshot(), one.manifest()
        other.exec("open('b', 'w').write('gone')", LIMITS)
        other.restore(snapshot)
        equal(other.manifest(), files, "the files in the other sandbox")
        other.exec("open('a', 'a').write(' and more')", LIMITS)
        equal(one.exec(look, LIMITS).stdout, "mine\n", "the file in its own sandbox")
        one.close()
        other.restore(snapshot)
        equal(other.exec(look, LIMITS).stdout, "mine\n", "the file after its sandbox was closed")
        equal(other.manifest(), files, "the files after their sandbox was closed")
    refused(ValueError, _restored, factory, replace(snapshot, contents=None))


def _restored(factory: Callable[[], Sandbox], snapshot: Snapshot) -> None:
    with closing(factory()) as sandbox:
        sandbox.restore(snapshot)


def a_closed_sandbox_is_an_error(factory: Callable[[], Sandbox]) -> None:
    """After `close`, which may be called again, every verb raises `SandboxError`."""
    sandbox = factory()
    snapshot = sandbox.snapshot()
    sandbox.close()
    sandbox.close()
    refused(SandboxError, sandbox.exec, "", LIMITS)
    refused(SandboxError, sandbox.read_file, "a", 1)
    refused(SandboxError, sandbox.write_file, "a", b"")
    refused(SandboxError, sandbox.manifest)
    refused(SandboxError, sandbox.snapshot)
    refused(SandboxError, sandbox.restore, snapshot)


CHECKS: tuple[Callable[[Sandbox], None], ...] = (
    the_protocol_is_followed,
    files_outlive_a_program,
    temporary_files_do_not_outlive_a_program,
    caller_and_programs_share_files,
    names_that_lead_out_are_refused,
    links_and_pipes_do_not_stay,
    the_manifest_knows_authors,
    protected_files_are_put_back,
    unreadable_files_are_out_of_reach,
    a_snapshot_brings_everything_back,
    large_files_are_refused,
    a_full_workspace_is_as_before,
)
CHECKS_OF_TWO: tuple[Callable[[Callable[[], Sandbox]], None], ...] = (
    workspaces_are_apart,
    a_snapshot_serves_another_sandbox,
    a_closed_sandbox_is_an_error,
)
