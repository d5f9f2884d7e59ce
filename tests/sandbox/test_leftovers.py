"""Nothing is left behind: no process, no mount, no cgroup, no folder; however an episode ends."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from traces import cgroups, eventually, mounts, survivors

from mappa_envs.sandbox import cgroups as sandbox_cgroups
from mappa_envs.sandbox import scratch
from mappa_envs.sandbox.levels import LocalLevel

WARNING = "sandbox level 'process' isolates nothing: only for code you trust"
EPISODES = str(Path(__file__).with_name("episodes.py"))


@pytest.fixture
def temp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files of the processes started here; every user may enter it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


@contextmanager
def caller(marker: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process with sandboxes; the marker goes where no search for it finds it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, EPISODES, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{marker}\n")
        process.stdin.flush()
        yield process


def check_all_gone(marker: str, temp: Path, name: str) -> None:
    assert survivors(marker) == []
    assert list(temp.iterdir()) == []
    assert cgroups(name) == []
    assert mounts() == []


@pytest.mark.parametrize("count", [10, pytest.param(300, marks=pytest.mark.slow)])
def test_episodes_that_go_wrong(level: LocalLevel, marker: str, temp: Path, count: int) -> None:
    with caller(marker, "mixed", level, str(count)) as process:
        output, errors = process.communicate()
    warnings = "" if level != "process" else f"{WARNING}\n" * count
    assert (process.returncode, errors) == (0, warnings)
    name, same, left = output.split(maxsplit=2)
    assert (same, left) == ("True", "['lock', 'root']\n")
    check_all_gone(marker, temp, name)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),  # as sudden as SIGKILL
        signal.SIGKILL,
    ],
)
def test_a_caller_that_is_killed(
    level: LocalLevel, marker: str, temp: Path, number: signal.Signals
) -> None:
    with caller(marker, "hang", level) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert eventually(lambda: len(survivors(marker)) == 2)
        assert (temp / name).is_dir()
        process.send_signal(number)
        process.communicate()
    assert process.returncode == -number
    assert eventually(lambda: survivors(marker) == [])
    if number != signal.SIGINT:  # with that it cleans up as it ends
        assert (temp / name).is_dir()
        with caller(marker, "mixed", level, "1") as following:
            following.communicate()
    check_all_gone(marker, temp, name)


def test_only_stale_folders_are_swept(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    stale, foreign, empty = (temp / f"mappa-{secrets.token_hex(4)}" for _ in range(3))
    for folder in (stale, foreign, empty):
        folder.mkdir()
    (stale / "lock").touch()
    (stale / "files").mkdir()
    (stale / "link").symlink_to(foreign)
    (foreign / "file").touch()
    (temp / "mappa-link").symlink_to(foreign)
    (temp / "other").mkdir()
    (temp / "other" / "lock").touch()
    own, lock = scratch._make()
    scratch.sweep()
    left = {path.name for path in temp.iterdir()}
    assert left == {foreign.name, empty.name, "mappa-link", "other", own.name}
    assert (foreign / "file").exists()
    os.close(lock)
    scratch.sweep()
    assert not own.exists()


def test_a_new_folder_that_is_swept_before_it_is_locked_is_made_again(
    temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    lock_file, seen = fcntl.flock, []

    def sweep_first(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not seen:
            seen.extend(temp.iterdir())
            scratch.sweep()
        lock_file(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    folder, lock = scratch._make()
    assert len(seen) == 1
    assert list(temp.iterdir()) == [folder]
    assert folder not in seen
    scratch.sweep()
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "root"]
    os.close(lock)


def test_cgroups_of_a_process_that_had_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "pids"
    own, other = root / "session-2", root / "session-1"
    tree = sandbox_cgroups._Tree("pids", 1, own, root)
    monkeypatch.setattr(sandbox_cgroups, "_trees", lambda: [tree])
    for folder in (own / "mappa-a-1", other / "mappa-a-2", other / "mappa-b-1"):
        folder.mkdir(parents=True)
    sandbox_cgroups.remove_all("mappa-a")
    assert sorted(path.name for path in root.rglob("mappa-*")) == ["mappa-a-2", "mappa-b-1"]
    sandbox_cgroups.remove_all("mappa-a", anywhere=True)
    assert sorted(path.name for path in root.rglob("mappa-*")) == ["mappa-b-1"]
