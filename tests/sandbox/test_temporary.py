"""The folder for temporary files: private, bounded, and gone after each program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mappa_envs.sandbox import FileChanges, Limits, LocalSandbox
from mappa_envs.sandbox.levels import LocalLevel

LIMITS = Limits(timeout_s=30.0, file_bytes=1_000_000)


@pytest.fixture
def sandbox(level: LocalLevel) -> Iterator[LocalSandbox]:
    sandbox = LocalSandbox(level, preload=())
    yield sandbox
    sandbox.close()


def test_temporary_files_do_not_outlive_a_program(sandbox: LocalSandbox) -> None:
    left = "import os, tempfile; open(os.path.join(tempfile.gettempdir(), 'x'), 'w').write('x')"
    seen = "import os, tempfile; print('x' in os.listdir(tempfile.gettempdir()))"
    assert sandbox.exec(left, LIMITS).exit_code == 0
    assert sandbox.exec(seen, LIMITS).stdout == "False\n"
    assert sandbox.manifest() == ()


def test_their_sum_is_bounded(sandbox: LocalSandbox) -> None:
    source = (
        "import os, tempfile, time\n"
        "open('kept', 'w').close()\n"
        "for number in range(4):\n"
        "    with open(os.path.join(tempfile.gettempdir(), str(number)), 'wb') as file:\n"
        "        file.write(b'x' * 900_000)\n"
        "time.sleep(60)\n"
    )
    result = sandbox.exec(source, LIMITS)
    if sandbox.level == "namespace":
        assert result.exit_code == 1
        assert result.stderr.endswith("OSError: [Errno 28] No space left on device\n")
    else:
        assert (result.exit_code, result.limit_hit) == (-9, "files")
        assert result.files == FileChanges()
        assert sandbox.manifest() == ()


def test_a_program_may_delete_its_folder(sandbox: LocalSandbox) -> None:
    source = (
        "import os, shutil, tempfile, time\n"
        "shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)\n"
        "time.sleep(0.5)\n"
    )
    assert sandbox.exec(source, LIMITS).exit_code == 0
    assert sandbox.exec("import tempfile; tempfile.TemporaryFile()", LIMITS).exit_code == 0
