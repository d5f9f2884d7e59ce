"""What can be done to files without opening them for writing, which paths alone do not forbid."""

from __future__ import annotations

import os
import platform
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mappa_envs.sandbox import Limits, LocalSandbox
from mappa_envs.sandbox.filters import system_call_filter
from mappa_envs.sandbox.levels import LocalLevel

LIMITS = Limits(timeout_s=20.0)

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="numbers of system calls"
)


@pytest.fixture
def sandbox(level: LocalLevel) -> Iterator[LocalSandbox]:
    if level == "process":
        pytest.skip("it isolates nothing")
    sandbox = LocalSandbox(level, preload=())
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize("number", [450, 452, 463, 466, 469, 600, 0x40000000 + 1])
def test_calls_that_nobody_has_reviewed_do_not_exist(sandbox: LocalSandbox, number: int) -> None:
    source = (
        "import ctypes\n"
        "library = ctypes.CDLL(None, use_errno=True)\n"
        f"print(library.syscall(ctypes.c_long({number}), 0, 0, 0, 0, 0, 0), ctypes.get_errno())"
    )
    assert sandbox.exec(source, LIMITS).stdout == "-1 38\n"


def test_modes_of_what_may_be_read_stay_as_they_are(sandbox: LocalSandbox) -> None:
    config = Path(sys.prefix, "pyvenv.cfg")
    path = config if config.exists() else Path(os.__file__)
    before = path.stat()
    source = (
        "import os\n"
        f"file = os.open({str(path)!r}, os.O_RDONLY)\n"
        "for change in (lambda: os.fchmod(file, 0o4777), lambda: os.fchown(file, 0, 0),\n"
        "    lambda: os.utime(file, (1, 1)), lambda: os.setxattr(file, 'user.x', b'x')):\n"
        "    try:\n"
        "        change()\n"
        "    except OSError:\n"
        "        pass\n"
    )
    assert sandbox.exec(source, LIMITS).exit_code == 0
    after = path.stat()
    assert stat.S_IMODE(after.st_mode) == stat.S_IMODE(before.st_mode)
    assert (after.st_ctime_ns, after.st_mtime_ns) == (before.st_ctime_ns, before.st_mtime_ns)


def test_landlock_changes_no_mode_at_all(sandbox: LocalSandbox) -> None:
    if sandbox.level != "landlock":
        pytest.skip("only there do programs see files of the caller's own user")
    source = (
        "import os\n"
        "file = os.open('x', os.O_CREAT | os.O_RDONLY, 0o644)\n"
        "os.fchmod(file, 0o4777)\n"
        "os.chmod('x', 0o4777)\n"
        "print(oct(os.fstat(file).st_mode))\n"
    )
    assert sandbox.exec(source, LIMITS).stdout == "0o100644\n"


@pytest.mark.parametrize("request_number", [0x40086602, 0x401C5820, 0x40806685])
def test_flags_of_what_may_be_read_stay_too(sandbox: LocalSandbox, request_number: int) -> None:
    source = (
        "import fcntl, os\n"
        f"file = os.open({os.__file__!r}, os.O_RDONLY)\n"
        "try:\n"
        f"    fcntl.ioctl(file, {request_number}, bytes(64))\n"
        "except PermissionError:\n"
        "    print('refused')\n"
    )
    assert sandbox.exec(source, LIMITS).stdout == "refused\n"


def test_memory_that_no_limit_counts_cannot_be_had(sandbox: LocalSandbox) -> None:
    source = (
        "import os\ntry:\n    os.memfd_create('x')\nexcept PermissionError:\n    print('refused')\n"
    )
    assert sandbox.exec(source, LIMITS).stdout == "refused\n"


def test_folders_of_the_host_cannot_be_watched(sandbox: LocalSandbox, tmp_path: Path) -> None:
    source = (
        "import ctypes\n"
        "library = ctypes.CDLL(None, use_errno=True)\n"
        "watch = library.inotify_init()\n"
        f"print(watch < 0 or library.inotify_add_watch(watch, {bytes(tmp_path)!r}, 0xFFF) < 0)"
    )
    assert sandbox.exec(source, LIMITS).stdout == "True\n"


def test_the_filter_begins_with_the_number() -> None:
    program = system_call_filter(paths=True, own_signals=False)
    assert program[:24].hex() == "200000000000000035000001c20100000600000026000500"
