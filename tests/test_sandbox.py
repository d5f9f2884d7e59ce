from __future__ import annotations

import gc
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import (
    ExecResult,
    Isolation,
    Limits,
    LocalSandbox,
    Sandbox,
    available_isolation,
)

LIMITS = Limits(timeout_s=20.0)
SHORT = Limits(timeout_s=0.5)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@pytest.fixture
def sandbox() -> Iterator[LocalSandbox]:
    sandbox = LocalSandbox()
    yield sandbox
    sandbox.close()


@pytest.fixture(params=["isolated", "bare"])
def either(request: pytest.FixtureRequest) -> Iterator[LocalSandbox]:
    """The best sandbox to be had here, and the one without any help from the kernel."""
    sandbox = LocalSandbox(isolation=None if request.param == "isolated" else frozenset())
    yield sandbox
    sandbox.close()


def needs(isolation: Isolation) -> None:
    if isolation not in available_isolation():
        pytest.skip(f"no {isolation!r} isolation on this machine")


def survivors(marker: str) -> list[str]:
    """Processes whose command line holds `marker`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def workspaces() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("mappa-*"))


# --- what a program prints and how it ends ----------------------------------------------------


def test_it_follows_the_protocol(sandbox: LocalSandbox) -> None:
    assert isinstance(sandbox, Sandbox)


def test_output_of_both_streams(either: LocalSandbox) -> None:
    source = "import sys\nprint(2 + 3)\nprint('oops', file=sys.stderr)"
    assert either.exec(source, LIMITS) == ExecResult(0, "5\n", "oops\n", None)


@pytest.mark.parametrize(
    ("source", "exit_code", "stderr"),
    [
        ("", 0, ""),
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit('why')", 1, "why\n"),
        ("import os; os._exit(7)", 7, ""),
        ("import os; os.kill(os.getpid(), 15)", -15, ""),
        ("import os; os.abort()", -6, ""),
        ("import ctypes; ctypes.string_at(0)", -11, ""),
    ],
)
def test_exit_codes(sandbox: LocalSandbox, source: str, exit_code: int, stderr: str) -> None:
    assert sandbox.exec(source, LIMITS) == ExecResult(exit_code, "", stderr, None)


def test_an_exit_code_passes_through_without_isolation() -> None:
    sandbox = LocalSandbox(isolation=frozenset())
    assert sandbox.exec("raise SystemExit(3)", LIMITS).exit_code == 3
    assert sandbox.exec("import os; os.kill(os.getpid(), 15)", LIMITS).exit_code == -15
    sandbox.close()


def test_a_traceback_holds_the_action_and_nothing_else(sandbox: LocalSandbox) -> None:
    source = "def half(x):\n    raise ValueError(x)\n\nhalf(3)\n"
    assert sandbox.exec(source, LIMITS) == ExecResult(
        1,
        "",
        "Traceback (most recent call last):\n"
        '  File "<action>", line 4, in <module>\n'
        "    half(3)\n"
        '  File "<action>", line 2, in half\n'
        "    raise ValueError(x)\n"
        "ValueError: 3\n",
        None,
    )


def test_a_syntax_error_shows_its_line(sandbox: LocalSandbox) -> None:
    result = sandbox.exec("x = 1\nx = = 2", LIMITS)
    assert result.exit_code == 1
    assert result.stderr == (
        '  File "<action>", line 2\n    x = = 2\n        ^\nSyntaxError: invalid syntax\n'
    )


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.loads('{')",
        "try:\n    import json; json.loads('{')\nexcept ValueError:\n    raise KeyError",
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()",
        "open('bad.py', 'w').write('x = = 1')\nimport bad",
        "def f(): f()\nf()",
        "raise ExceptionGroup('all', [ValueError(1)])",
        "x = '\\ud800'\nraise ValueError(x)",
        "\0",
    ],
)
def test_tracebacks_hold_no_path_of_the_host(sandbox: LocalSandbox, source: str) -> None:
    first, second = (sandbox.exec(source, LIMITS).stderr for _ in range(2))
    assert first == second
    assert "Error" in first
    assert re.findall(r'File "/', first) == []
    assert "child.py" not in first


def test_input_is_at_its_end(sandbox: LocalSandbox) -> None:
    result = sandbox.exec("input()", LIMITS)
    assert result.stderr.endswith("EOFError: EOF when reading a line\n")


@pytest.mark.parametrize(
    ("source", "stdout"),
    [
        ("print('\\ud800')", "\\ud800\n"),
        ("print('é€')", "é€\n"),
        ("import sys; sys.stdout.buffer.write(b'a\\xff\\n')", "a\N{REPLACEMENT CHARACTER}\n"),
        ("print(__name__, __import__('sys').argv)", "__main__ ['<action>']\n"),
        ("import os; print(os.read(0, 1))", "b''\n"),
    ],
)
def test_odd_output_arrives(sandbox: LocalSandbox, source: str, stdout: str) -> None:
    assert sandbox.exec(source, LIMITS) == ExecResult(0, stdout, "", None)


def test_equal_programs_print_equal_things(sandbox: LocalSandbox) -> None:
    source = "print(hash('a'), {'a', 'b', 'c'}, sorted(__import__('os').environ))"
    first = sandbox.exec(source, LIMITS)
    assert first.exit_code == 0
    assert sandbox.exec(source, LIMITS) == first


def test_installed_packages_can_be_imported(sandbox: LocalSandbox) -> None:
    result = sandbox.exec("import numpy; print(numpy.arange(3).sum())", LIMITS)
    assert result == ExecResult(0, "3\n", "", None)


def test_classes_of_the_program_can_be_pickled(sandbox: LocalSandbox) -> None:
    source = "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)"
    assert sandbox.exec(source, LIMITS).stdout == "True\n"


# --- limits -----------------------------------------------------------------------------------

DAEMON = """
import os, signal, subprocess, sys, time
print("before")
subprocess.Popen(
    [sys.executable, "-c", "import os, time; os.fork() or time.sleep(60)", "MARKER"],
    start_new_session=True,
)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", "MARKER"])
    os._exit(0)
os.wait()
"""
BUSY = "while True: pass"
DEAF = "import signal\nfor s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)\n"


@pytest.mark.parametrize(
    "source",
    [BUSY, DEAF + BUSY, "import time; time.sleep(60)", "while True: print('more', flush=True)"],
    ids=["busy", "deaf", "asleep", "chatty"],
)
def test_the_deadline_ends_a_program(either: LocalSandbox, source: str) -> None:
    result = either.exec(f"print('before')\n{source}", SHORT)
    assert result.stdout.startswith("before\n")
    assert (result.exit_code, result.limit_hit, result.timed_out) == (-9, "wall_clock", True)


@pytest.mark.parametrize("ending", ["", BUSY], ids=["at its end", "at the deadline"])
def test_no_process_outlives_the_program(either: LocalSandbox, ending: str) -> None:
    marker = uuid.uuid4().hex
    result = either.exec(DAEMON.replace("MARKER", marker) + ending, SHORT if ending else LIMITS)
    assert result.stdout == "before\n"
    assert result.timed_out == bool(ending)
    assert survivors(marker) == []


def test_children_are_seen_while_the_program_runs(sandbox: LocalSandbox) -> None:
    """Without this the survivor tests could pass because nothing was ever started."""
    marker = uuid.uuid4().hex
    source = DAEMON.replace("MARKER", marker) + "time.sleep(60)"
    thread = threading.Thread(target=sandbox.exec, args=(source, LIMITS))
    thread.start()
    give_up = time.monotonic() + 20
    while len(survivors(marker)) < 2 and time.monotonic() < give_up:
        time.sleep(0.02)
    seen = len(survivors(marker))
    sandbox.close()
    thread.join()
    assert seen >= 2
    assert survivors(marker) == []


def test_a_memory_bomb_hits_its_limit(either: LocalSandbox) -> None:
    limits = Limits(timeout_s=20.0, memory_bytes=200_000_000)
    result = either.exec("x = []\nwhile True: x.append(bytearray(10**7))", limits)
    assert (result.exit_code, result.limit_hit) == (1, "memory")
    assert result.stderr.endswith("MemoryError\n")


def test_a_handled_memory_error_is_no_limit(sandbox: LocalSandbox) -> None:
    source = "try: bytearray(10**12)\nexcept MemoryError: print('small')"
    assert sandbox.exec(source, LIMITS) == ExecResult(0, "small\n", "", None)


def test_long_output_is_cut_in_the_middle(sandbox: LocalSandbox) -> None:
    result = sandbox.exec("print('a' * 30 + 'b' * 40 + 'c' * 29)", Limits(output_bytes=40))
    assert result == ExecResult(0, f"{'a' * 20}\n[... 60 bytes cut ...]\n{'c' * 19}\n", "", None)


def test_output_that_just_fits_is_whole(sandbox: LocalSandbox) -> None:
    assert sandbox.exec("print('a' * 39)", Limits(output_bytes=40)).stdout == "a" * 39 + "\n"


def test_an_output_flood_ends_the_program(either: LocalSandbox) -> None:
    limits = Limits(timeout_s=20.0, output_bytes=100, total_output_bytes=1_000_000)
    result = either.exec("import os\nwhile True: os.write(1, b'x' * 65536)", limits)
    assert (result.exit_code, result.limit_hit) == (-9, "output")
    assert result.stdout == f"{'x' * 50}\n[... 999900 bytes cut ...]\n{'x' * 50}"


def test_files_are_bounded(sandbox: LocalSandbox) -> None:
    limits = Limits(file_bytes=1000)
    source = "f = open('a', 'wb', buffering=0)\nprint(f.write(b'x' * 1001))\nf.write(b'x')"
    result = sandbox.exec(source, limits)
    assert result.stdout == "1000\n"
    assert "File too large" in result.stderr


def test_processes_are_bounded(sandbox: LocalSandbox) -> None:
    needs("pids")
    if os.geteuid() == 0:
        needs("user")
    source = (
        "import os, time\nn = 0\ntry:\n    while n < 50:\n        if os.fork() == 0: "
        "time.sleep(60)\n        n += 1\nexcept BlockingIOError:\n    print(n)"
    )
    result = sandbox.exec(source, Limits(timeout_s=20.0, processes=8))
    assert int(result.stdout) <= 8


# --- isolation --------------------------------------------------------------------------------


def test_the_environment_is_not_inherited(
    either: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cr3t-value")
    source = (
        "import os\nprint(os.environ, open('/proc/self/environ').read())\n"
        "print(open('/proc/self/cmdline').read())"
    )
    result = either.exec(source, LIMITS)
    assert result.exit_code == 0
    assert "PYTHONHASHSEED" in result.stdout
    assert "s3cr3t-value" not in result.stdout
    assert os.environ["HOME"] not in result.stdout.replace("/tmp", "")


def test_descriptors_are_not_inherited(either: LocalSandbox) -> None:
    with tempfile.TemporaryFile() as secret:
        os.set_inheritable(secret.fileno(), True)
        result = either.exec(
            "import os\nfor fd in range(3, 256):\n"
            "    try: os.fstat(fd); print(fd)\n    except OSError: pass",
            LIMITS,
        )
    assert result == ExecResult(0, "", "", None)


def test_there_is_no_network(sandbox: LocalSandbox) -> None:
    needs("network")
    source = "import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=5)"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        result = sandbox.exec(source.format(port=port), LIMITS)
    assert result.exit_code == 1
    assert "OSError: [Errno 101] Network is unreachable" in result.stderr


def test_other_processes_are_out_of_sight(sandbox: LocalSandbox) -> None:
    needs("pids")
    needs("files")
    source = "import os; print(sorted(p for p in os.listdir('/proc') if p.isdigit()))"
    assert sandbox.exec(source, LIMITS).stdout == "['1', '2']\n"


def test_killing_everything_kills_only_the_program(sandbox: LocalSandbox) -> None:
    needs("pids")
    bystander = os.fork()
    if bystander == 0:
        signal.pause()
        os._exit(0)
    try:
        source = (
            "import os\nfor pid in (-1, 1, os.getppid(), 0):\n"
            "    try: os.kill(pid, 9)\n    except OSError: pass\n"
        )
        assert sandbox.exec(source + BUSY, LIMITS) == ExecResult(-9, "", "", None)
        assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
    finally:
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)


def test_killing_the_own_group_ends_only_the_program(either: LocalSandbox) -> None:
    result = either.exec("import os; os.kill(0, 9)", LIMITS)
    assert result == ExecResult(-9, "", "", None)


def test_the_host_cannot_be_written(sandbox: LocalSandbox) -> None:
    needs("files")
    source = (
        "import os\nfor folder in ('/', '/etc', '/usr', '/var', '/proc/sys/kernel'):\n"
        "    try: open(f'{folder}/mappa-probe', 'w'); print(folder)\n    except OSError: pass"
    )
    assert sandbox.exec(source, LIMITS) == ExecResult(0, "", "", None)


def test_private_places_of_the_host_are_hidden(sandbox: LocalSandbox) -> None:
    needs("files")
    with tempfile.NamedTemporaryFile(dir="/tmp") as secret:
        os.fchmod(secret.fileno(), 0o644)
        result = sandbox.exec(f"import os; print(os.path.exists({secret.name!r}))", LIMITS)
    assert result.stdout == "False\n"
    scratch = "open('/tmp/scratch', 'x').write('a'); print('written')"
    assert [sandbox.exec(scratch, LIMITS).stdout for _ in range(2)] == ["written\n"] * 2


@pytest.mark.parametrize("left_out", ["user", None])
def test_privileges_cannot_be_won_back(left_out: Isolation | None) -> None:
    needs("files")
    sandbox = LocalSandbox(isolation=available_isolation() - {left_out})
    source = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "print(libc.mount(b'none', b'/', None, 0x1000 | 0x20, None))\n"
        "print([l.split()[1] for l in open('/proc/self/status') if l[:6] in ('CapEff', 'NoNewP')])"
    )
    assert sandbox.exec(source, LIMITS).stdout == "-1\n['0000000000000000', '1']\n"
    sandbox.close()


def test_root_is_given_up(sandbox: LocalSandbox) -> None:
    needs("user")
    result = sandbox.exec("import os; print(0 in os.getresuid() + os.getresgid())", LIMITS)
    assert result.stdout == "False\n"


def test_isolation_that_cannot_be_had_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = LocalSandbox(isolation=frozenset())
    monkeypatch.setattr(sandbox, "isolation", frozenset({"files", "pids"}))
    monkeypatch.setattr(sandbox, "_path", Path("/nowhere"))
    with pytest.raises(SandboxError, match=r"could not start a program: .*'/nowhere'"):
        sandbox.exec("print(1)", LIMITS)
    monkeypatch.undo()
    sandbox.close()


def test_a_missing_interpreter_is_an_error(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SandboxError, match="cannot start '/nowhere/python'"):
        sandbox.exec("print(1)", LIMITS)


# --- the workspace ----------------------------------------------------------------------------


def test_files_outlive_an_execution_but_stay_in_their_sandbox(either: LocalSandbox) -> None:
    assert either.exec("open('a.txt', 'w').write('kept')", LIMITS).exit_code == 0
    assert either.exec("print(open('a.txt').read())", LIMITS).stdout == "kept\n"
    other = LocalSandbox(isolation=either.isolation)
    assert other.exec("import os; print(os.listdir())", LIMITS).stdout == "[]\n"
    other.close()


def test_modules_of_the_workspace_can_be_imported(either: LocalSandbox) -> None:
    either.exec("open('solver.py', 'w').write('answer = 42')", LIMITS)
    result = either.exec("import solver, os; print(solver.answer, os.listdir())", LIMITS)
    assert result.stdout == "42 ['solver.py']\n"


def test_host_and_program_share_files(either: LocalSandbox) -> None:
    either.write_file("data/in.txt", b"one")
    source = "s = open('data/in.txt').read()\nopen('data/in.txt', 'w').write(s + ' two')"
    assert either.exec(source, LIMITS) == ExecResult(0, "", "", None)
    assert either.read_file("data/in.txt", 100) == b"one two"
    either.write_file("data/in.txt", b"three")
    assert either.read_file("data/in.txt", 5) == b"three"


def test_a_missing_file_is_not_found(sandbox: LocalSandbox) -> None:
    for name in ("none", "no/such"):
        with pytest.raises(FileNotFoundError, match=f"'{name}' is not in the workspace"):
            sandbox.read_file(name, 10)


BAD_NAMES = ["", ".", "..", "../a", "a/../../b", "/etc/passwd", "a//b", "a/", "a\nb", "a\0b"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "a\x1b[0m", "\ud800"])
def test_names_that_lead_out_are_refused(sandbox: LocalSandbox, name: str) -> None:
    with pytest.raises(ValueError, match="no file name of the workspace"):
        sandbox.read_file(name, 10)
    with pytest.raises(ValueError, match="no file name of the workspace"):
        sandbox.write_file(name, b"")


@pytest.mark.parametrize(
    "source",
    [
        "os.symlink('/etc/passwd', 'a')",
        "open('b', 'w'); os.symlink('b', 'a')",
        "os.symlink('/etc', 'f'); os.symlink('f/passwd', 'a')",
        "os.mkfifo('a')",
        "os.mkdir('a')",
        "import socket; socket.socket(socket.AF_UNIX).bind('a')",
        "open('b', 'w'); os.link('b', 'a')",
        "open('a', 'w').write('x' * 11)",
        "os.truncate(os.open('a', os.O_CREAT | os.O_WRONLY), 10**7)",
    ],
)
def test_only_small_regular_files_are_read(sandbox: LocalSandbox, source: str) -> None:
    assert sandbox.exec(f"import os; {source}", LIMITS) == ExecResult(0, "", "", None)
    with pytest.raises(ValueError, match=r"'a' is (no regular file|larger than the 10 bytes)"):
        sandbox.read_file("a", 10)


def test_no_link_is_followed(sandbox: LocalSandbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("old")
    source = f"import os; os.symlink({str(tmp_path)!r}, 'd'); os.symlink({str(outside)!r}, 'a')"
    assert sandbox.exec(source, LIMITS).exit_code == 0
    sandbox.write_file("a", b"new")
    for verb in (lambda: sandbox.write_file("d/b", b""), lambda: sandbox.read_file("d/outside", 9)):
        with pytest.raises(ValueError, match="is no regular file"):
            verb()
    assert sandbox.read_file("a", 10) == b"new"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


# --- the end ----------------------------------------------------------------------------------


def test_a_closed_sandbox_is_dead(sandbox: LocalSandbox) -> None:
    sandbox.close()
    sandbox.close()
    for verb in (
        lambda: sandbox.exec("", LIMITS),
        lambda: sandbox.read_file("a", 1),
        lambda: sandbox.write_file("a", b""),
    ):
        with pytest.raises(SandboxError, match="closed"):
            verb()


HARD_TO_DELETE = """
import os
os.makedirs("locked/inner"); open("locked/inner/file", "w"); os.symlink("/etc", "locked/etc")
os.chmod("locked/inner", 0); os.chmod("locked", 0)
for _ in range(3000):
    os.mkdir("deep"); os.chdir("deep")
"""


@pytest.mark.parametrize("isolated", [True, False])
def test_closing_deletes_the_workspace_whatever_is_in_it(
    isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.path.isdir("/dev/shm"):  # deleting thousands of folders on a disk can take long
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    before = workspaces()
    sandbox = LocalSandbox(isolation=None if isolated else frozenset())
    assert sandbox.exec(HARD_TO_DELETE, LIMITS) == ExecResult(0, "", "", None)
    assert len(workspaces() - before) == 1
    sandbox.close()
    assert workspaces() == before
    assert os.listdir("/etc")


def test_a_forgotten_sandbox_deletes_its_workspace() -> None:
    before = workspaces()
    sandbox = LocalSandbox()
    sandbox.write_file("a", b"")
    (made,) = workspaces() - before
    assert made.stat().st_mode & 0o777 == 0o700
    del sandbox
    gc.collect()
    assert not made.exists()


def test_a_fork_of_the_caller_deletes_nothing() -> None:
    sandbox = LocalSandbox()
    sandbox.write_file("a", b"kept")
    child = os.fork()
    if child == 0:
        sandbox.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert sandbox.read_file("a", 10) == b"kept"
    sandbox.close()


def test_sixteen_at_once() -> None:
    def answer(number: int) -> ExecResult:
        sandbox = LocalSandbox()
        try:
            sandbox.write_file("n", str(number).encode())
            return sandbox.exec("print(open('n').read() * 3)", LIMITS)
        finally:
            sandbox.close()

    before = workspaces()
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(answer, range(16)))
    assert results == [ExecResult(0, f"{number}" * 3 + "\n", "", None) for number in range(16)]
    assert workspaces() == before


def test_one_sandbox_from_many_threads(sandbox: LocalSandbox) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda n: sandbox.exec(f"print({n})", LIMITS).stdout, range(8))
        assert list(results) == [f"{n}\n" for n in range(8)]


def test_fifty_runs_leak_nothing(sandbox: LocalSandbox) -> None:
    def held() -> tuple[int, list[str]]:
        children = Path("/proc/self/task").glob("*/children")
        return len(os.listdir("/proc/self/fd")), sorted(path.read_text() for path in children)

    sandbox.exec("", LIMITS)
    before = held()
    for number in range(50):
        sandbox.exec("print(1)" if number % 10 else "import os; os.kill(0, 9)", LIMITS)
        with pytest.raises(FileNotFoundError):
            sandbox.read_file("none", 1)
    assert held() == before  # descriptors, and children: running or zombies
