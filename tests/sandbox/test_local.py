"""What is true of the local sandbox alone."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from traces import eventually, survivors

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import (
    ExecResult,
    Limits,
    LocalSandbox,
    Sandbox,
    best_level,
    filters,
    levels,
    local,
)
from mappa_envs.sandbox.jail import landlock
from mappa_envs.sandbox.levels import LocalLevel, jail_for
from mappa_envs.sandbox.scratch import scratch_folder
from mappa_envs.sandbox.warm import Worker, Zygote, zygote_for
from mappa_envs.testing import run_sandbox_check

LIMITS = Limits(timeout_s=30.0)
SHORT = Limits(timeout_s=0.2)


@pytest.fixture
def sandbox(level: LocalLevel) -> Iterator[LocalSandbox]:
    with closing(LocalSandbox(level)) as sandbox:
        yield sandbox


@pytest.fixture
def bare(level: LocalLevel) -> Iterator[LocalSandbox]:
    """One whose programs start without imports."""
    with closing(LocalSandbox(level, preload=())) as sandbox:
        yield sandbox


@pytest.fixture
def zygote(level: LocalLevel, bare: LocalSandbox) -> Zygote:
    """What forks the bare sandbox's workers."""
    bare.exec("", LIMITS)
    return zygote_for(jail_for(level), ())


def workspaces() -> set[str]:
    """The workspaces of which the files, or the contents kept of them, are there."""
    names = {path.name for path in scratch_folder().iterdir()} - {"lock", "root"}
    return {name.removesuffix(".store") for name in names}


# --- which level ------------------------------------------------------------------------------


@pytest.fixture
def no_levels(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Levels put into the set cannot be had."""
    missing: set[str] = set()

    def check(level: str, preload: tuple[str, ...]) -> None:
        if level in missing:
            raise SandboxError(f"no {level} here")

    monkeypatch.setattr(local, "check_level", check)
    best_level.cache_clear()
    yield missing
    best_level.cache_clear()


def test_auto_is_the_strongest_level_that_can_be_had(
    no_levels: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mappa_envs")
    assert best_level() == "namespace"
    best_level.cache_clear()
    no_levels.add("namespace")
    assert best_level() == "landlock"
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"agent code runs at sandbox level '{n}'" for n in ("namespace", "landlock")
    ]


def test_auto_never_is_no_isolation(no_levels: set[str]) -> None:
    no_levels.update({"namespace", "landlock"})
    with pytest.raises(SandboxError) as failure:
        LocalSandbox()
    assert str(failure.value) == (
        "this machine isolates no program: no namespace here; no landlock here; use the level "
        "'docker', or, for code that you trust, 'process'"
    )


def test_the_level_is_told(level: LocalLevel, sandbox: LocalSandbox) -> None:
    assert isinstance(sandbox, Sandbox)
    assert sandbox.level == level


def test_no_isolation_warns_each_time(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        LocalSandbox("process").close()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["sandbox level 'process' isolates nothing: only for code you trust"] * 2


def test_a_kernel_without_landlock_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> int:
        raise OSError("landlock_create_ruleset failed: Function not implemented")

    monkeypatch.setattr(levels.landlock, "supported_abi", missing)
    before = workspaces()
    with pytest.raises(SandboxError, match=r"the kernel has no Landlock: .*not implemented"):
        LocalSandbox("landlock")
    gc.collect()
    assert workspaces() == before


@pytest.fixture
def broken_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "pyseccomp":
                raise RuntimeError("Unable to find libseccomp")

    monkeypatch.delitem(sys.modules, "pyseccomp", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    filters.system_call_filter.cache_clear()
    yield
    filters.system_call_filter.cache_clear()


@pytest.mark.parametrize("name", ["namespace", "landlock"])
def test_a_missing_libseccomp_is_an_error(
    broken_library: None, monkeypatch: pytest.MonkeyPatch, name: LocalLevel
) -> None:
    monkeypatch.setattr(levels.landlock, "supported_abi", lambda: 7)
    with pytest.raises(SandboxError, match="Unable to find libseccomp; install libseccomp2"):
        LocalSandbox(name)


def test_a_level_that_does_not_hold_runs_nothing(
    level: LocalLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if level == "process":
        pytest.skip("it holds nothing")
    whole = jail_for(level)
    if level == "namespace":
        broken, why = replace(whole, visible=("/nowhere",)), "mount failed: No such file"
    else:
        broken, why = replace(whole, filter=b"\0" * 8), "prctl failed: Invalid argument"
    monkeypatch.setattr(local, "jail_for", lambda *_: broken)
    with closing(LocalSandbox(level, preload=())) as sandbox:
        for _ in range(2):
            with pytest.raises(SandboxError, match=f"could not start a program: .*{why}"):
                sandbox.exec("open('proof', 'w')", LIMITS)
        assert sandbox.manifest() == ()


def test_an_old_landlock_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "supported_abi", lambda: 2)
    with pytest.raises(OSError, match=r"version 2; version 3 \(Linux 6.2\) is needed"):
        landlock.restrict(look=[], change=[])


def test_a_missing_interpreter_is_an_error(
    level: LocalLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with (
        closing(LocalSandbox(level, preload=("no", "such"))) as sandbox,
        pytest.raises(SandboxError, match="cannot start '/nowhere/python'"),
    ):
        sandbox.exec("print(1)", LIMITS)


# --- warm workers -----------------------------------------------------------------------------


def test_the_environment_is_a_fixed_list(level: LocalLevel, sandbox: LocalSandbox) -> None:
    source = (
        "import os\n"
        "first = [line.split('=')[0] for line in open('/proc/self/environ').read().split('\\0')]\n"
        "print(sorted(filter(None, first)))\n"
        "print(sorted({'HOME', 'TMPDIR', 'SECRET'} & os.environ.keys()))\n"
        "print([os.environ[name] for name in ('PYTHONHASHSEED', 'OMP_NUM_THREADS')])\n"
        "print(os.environ['HOME'] == os.getcwd())"
    )
    names = [
        *("LANG", "MKL_NUM_THREADS", "MPLBACKEND", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
        *("PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONIOENCODING", "USER"),
    ]
    if level == "landlock":
        names.insert(0, "JOBLIB_MULTIPROCESSING")
    expected = f"{names}\n['HOME', 'TMPDIR']\n['0', '1']\nTrue\n"
    assert sandbox.exec(source, LIMITS) == ExecResult.of(expected)


def test_the_callers_first_environment_is_nowhere(level: LocalLevel) -> None:
    """Not in the process with the imports, nor in any that a program can look at."""
    program = (
        "import glob\n"
        "for path in glob.glob('/proc/*/environ'):\n"
        "    try: text = open(path).read()\n    except OSError: continue\n"
        "    if 'sesame' + '-open' in text: print(path)"
    )
    caller = (
        "from mappa_envs.sandbox import Limits, LocalSandbox\n"
        f"sandbox = LocalSandbox({level!r}, preload=())\n"
        f"print(sandbox.exec({program!r}, Limits(timeout_s=30.0)))\n"
        "sandbox.close()"
    )
    environment = {**os.environ, "SOME_API_KEY": "sesame-open"}
    command = [sys.executable, "-c", caller]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    if level == "process" and os.geteuid():  # it sees its caller itself
        assert done.stdout.count("/environ") == 1
    else:
        assert done.stdout == f"{ExecResult.of()!r}\n"


def test_nothing_of_this_package_is_in_the_program(sandbox: LocalSandbox) -> None:
    source = (
        "import sys; print([n for n in sys.modules if n.split('.')[0] in ('mappa_envs', 'jail')])"
    )
    assert sandbox.exec(source, LIMITS) == ExecResult.of("[]\n")


def test_what_is_imported_ahead_is_there_and_the_rest_can_be_imported(
    sandbox: LocalSandbox,
) -> None:
    source = (
        "import sys\n"
        "print([name in sys.modules for name in ('numpy', 'mailbox', 'typer')])\n"
        "import mailbox, typer, numpy.testing\n"
        "print(numpy.arange(3).sum())"
    )
    assert sandbox.exec(source, LIMITS) == ExecResult.of("[True, False, False]\n3\n")


def test_nothing_need_be_imported_ahead(level: LocalLevel) -> None:
    with closing(LocalSandbox(level, preload=("no_such_module",))) as sandbox:
        source = "import sys; print('numpy' in sys.modules); import numpy"
        assert sandbox.exec(source, LIMITS) == ExecResult.of("False\n")


@pytest.mark.parametrize(
    "name", ["tracebacks_hold_no_paths_of_the_host", "seeds_make_programs_repeatable"]
)
def test_whatever_is_imported_ahead(level: LocalLevel, name: str) -> None:
    """Some libraries import what knows the hooks, or have generators, of their own."""
    run_sandbox_check(name, lambda: LocalSandbox(level))


def test_a_program_that_kills_its_group_leaves_the_imports_alone(
    bare: LocalSandbox, zygote: Zygote
) -> None:
    before = zygote._process.pid
    for _ in range(3):
        assert bare.exec("import os; os.kill(0, 9)", LIMITS) == ExecResult.of(exit_code=-9)
    assert zygote.alive
    assert zygote._process.pid == before


def test_boosting_fits(sandbox: LocalSandbox) -> None:
    """OpenMP's threads do not live through a fork, so nothing may start them ahead of it."""
    pytest.importorskip("sklearn")
    source = (
        "import numpy as np\n"
        "from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier\n"
        "X = np.random.default_rng(0).normal(size=(200, 5)); y = X[:, 0] > 0\n"
        "for model in (HistGradientBoostingClassifier(max_iter=5),\n"
        "              RandomForestClassifier(5, n_jobs=2, random_state=0)):\n"
        "    print(model.fit(X, y).score(X, y) > 0.9)"
    )
    limits = Limits(timeout_s=60.0, memory_bytes=2 << 30)
    for _ in range(2):
        assert sandbox.exec(source, limits).stdout == "True\nTrue\n"


def test_locks_between_processes(level: LocalLevel, sandbox: LocalSandbox) -> None:
    source = (
        "import multiprocessing\n"
        "context = multiprocessing.get_context('fork')\n"
        "try:\n"
        "    lock = context.Lock()\n"
        "except OSError as error:\n"
        "    print(type(error).__name__)\n"
        "else:\n"
        "    with context.Pool(2) as pool: print(pool.map(abs, [-1, -2]))"
    )
    stdout = "PermissionError\n" if level == "landlock" else "[1, 2]\n"
    assert sandbox.exec(source, LIMITS) == ExecResult.of(stdout)


def test_event_loops_and_commands_work(sandbox: LocalSandbox) -> None:
    source = (
        "import asyncio, subprocess\n"
        "print(asyncio.run(asyncio.sleep(0, 'slept')))\n"
        "print(subprocess.run(['echo', 'hello'], capture_output=True, text=True).stdout)"
    )
    assert sandbox.exec(source, LIMITS) == ExecResult.of("slept\nhello\n\n")


def test_a_killed_zygote_is_replaced(bare: LocalSandbox, zygote: Zygote) -> None:
    os.kill(zygote._process.pid, signal.SIGKILL)
    with suppress(SandboxError):  # of the workers that ended with it
        assert bare.exec("print(1)", LIMITS) == ExecResult.of("1\n")
    assert bare.exec("print(2)", LIMITS) == ExecResult.of("2\n")


def test_a_zygote_killed_while_a_program_runs(
    bare: LocalSandbox, zygote: Zygote, marker: str
) -> None:
    source = f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'{marker}'); time.sleep(60)"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(bare.exec, source, LIMITS)
        assert eventually(lambda: survivors(marker) != [])
        os.kill(zygote._process.pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="that holds the sandbox's imports was killed"):
            running.result()
    assert survivors(marker) == []
    assert bare.exec("print(2)", LIMITS) == ExecResult.of("2\n")


def test_an_interrupt_mixes_no_workers_up(
    bare: LocalSandbox, zygote: Zygote, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    """If it did, the deadline would end another worker than the one that runs."""

    def interrupted() -> tuple[int, int]:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(zygote, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bare.exec("print(1)", LIMITS)
    for _ in range(3):
        source = f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'{marker}'); time.sleep(60)"
        assert bare.exec(source, SHORT).limit_hit == "wall_clock"
        assert survivors(marker) == []


# --- many at once -----------------------------------------------------------------------------


def test_sixteen_at_once(level: LocalLevel) -> None:
    def answer(number: int) -> ExecResult:
        with closing(LocalSandbox(level, preload=())) as sandbox:
            sandbox.write_file("n", str(number).encode())
            return sandbox.exec("print(open('n').read() * 3)", LIMITS)

    before = workspaces()
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(answer, range(16)))
    assert results == [ExecResult.of(f"{number}" * 3 + "\n") for number in range(16)]
    assert workspaces() == before


def test_one_sandbox_from_many_threads(bare: LocalSandbox) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda n: bare.exec(f"print({n})", LIMITS).stdout, range(8))
        assert list(results) == [f"{n}\n" for n in range(8)]


def test_closing_ends_a_program(level: LocalLevel, marker: str) -> None:
    sandbox = LocalSandbox(level, preload=())
    source = f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'{marker}'); time.sleep(60)"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sandbox.exec, source, LIMITS)
        assert eventually(lambda: survivors(marker) != [])
        sandbox.close()
        assert survivors(marker) == []
        assert running.result() == ExecResult.of(exit_code=-9)


CLOSED = ("this sandbox is closed; make a new one", "it was ended before it began")


def test_closing_at_any_moment(level: LocalLevel) -> None:
    """From another thread, before, while and after programs run."""

    def run(sandbox: LocalSandbox) -> list[Exception]:
        try:
            while True:
                sandbox.exec("", LIMITS)
        except SandboxError as error:
            return [] if str(error).endswith(CLOSED) else [error]
        except Exception as error:
            return [error]

    with ThreadPoolExecutor(1) as pool:
        for number in range(10):
            sandbox = LocalSandbox(level, preload=())
            running = pool.submit(run, sandbox)
            time.sleep(number * 0.004)
            sandbox.close()
            assert running.result() == []


# --- the workspace's folder -------------------------------------------------------------------

HARD_TO_DELETE = """
import os
os.makedirs("locked/inner"); open("locked/inner/file", "w"); os.symlink("/etc", "locked/etc")
os.chmod("locked/inner", 0); os.chmod("locked", 0)
for _ in range(DEEP):
    os.mkdir("deep"); os.chdir("deep")
"""


def test_closing_deletes_the_workspace_whatever_is_in_it(level: LocalLevel) -> None:
    before = workspaces()
    with closing(LocalSandbox(level, preload=())) as sandbox:
        source = HARD_TO_DELETE.replace("DEEP", "300")
        assert sandbox.exec(source, LIMITS).exit_code == 0
        assert len(workspaces() - before) == 1
    assert workspaces() == before
    assert os.listdir("/etc")


def test_programs_of_others_cannot_enter_a_workspace(bare: LocalSandbox) -> None:
    bare.write_file("a", b"")
    (found,) = [path.parent for path in scratch_folder().glob("*/files/a")]
    assert found.stat().st_mode & 0o777 == 0o700
    assert scratch_folder().stat().st_mode & 0o777 == 0o711


def test_a_forgotten_sandbox_deletes_its_workspace(level: LocalLevel) -> None:
    before = workspaces()
    sandbox = LocalSandbox(level, preload=())
    sandbox.exec("open('a', 'w')", LIMITS)
    assert len(workspaces() - before) == 1
    del sandbox
    gc.collect()
    assert workspaces() == before


def test_a_fork_of_the_caller_deletes_nothing(bare: LocalSandbox) -> None:
    bare.write_file("a", b"kept")
    child = os.fork()
    if child == 0:
        bare.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert bare.read_file("a", 10) == b"kept"
    assert bare.exec("print(open('a').read())", LIMITS).stdout == "kept\n"


def test_a_temp_folder_that_cannot_be_used_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = (
        "from mappa_envs.sandbox import LocalSandbox\n"
        "import tempfile; tempfile.tempdir = '/nowhere'\n"
        "LocalSandbox('process')"
    )
    done = subprocess.run(
        [sys.executable, "-c", caller], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("set TMPDIR to a writable folder")


def test_an_interrupt_before_the_program_runs_is_not_lost(
    level: LocalLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing while a worker is being got ready ends the program that it would have run."""
    sandbox = LocalSandbox(level, preload=())
    taking, closing = threading.Event(), threading.Event()
    take = Zygote.take

    def slow_take(zygote: Zygote) -> Worker:
        taking.set()
        assert closing.wait(60)
        return take(zygote)

    monkeypatch.setattr(Zygote, "take", slow_take)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(sandbox.exec, "import time; time.sleep(600)", LIMITS)
        assert taking.wait(60)
        closed = pool.submit(sandbox.close)
        while not sandbox._is_closing:
            time.sleep(0.001)
        closing.set()
        with pytest.raises(SandboxError, match="this sandbox is closed"):
            running.result(60)
        closed.result(60)
