"""Programs that try to break out, to stay, or to break the machine, and what is left of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import pty
import resource
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy
import pytest
from backends import Backend
from traces import memory_of_all_is_bounded, namespaces_for_everybody, survivors

from mappa_envs.sandbox import (
    Access,
    Actor,
    ExecResult,
    FileChanges,
    Level,
    Limits,
    Sandbox,
)
from mappa_envs.sandbox.levels import LocalLevel

LIMITS = Limits(timeout_s=30.0)
SHORT = Limits(timeout_s=0.3)
ENDLESS = Limits(timeout_s=0.1)
HUNGRY = Limits(timeout_s=30.0, memory_bytes=400_000_000)
ANYBODY = Actor()
IS_ROOT = os.geteuid() == 0


# --- what the levels do not hold --------------------------------------------------------------

KNOWN_GAPS: dict[Level, set[str]] = {
    "docker": set(),
    "namespace": set(),
    "landlock": {"names_of_host_files"},
    "process": {
        "files_put_aside",
        "host_files",
        "host_sockets",
        "ipc_left_behind",
        "limits_of_another_process",
        "names_of_host_files",
        "signals_by_way_of_a_file",
    },
}
"""Attacks that succeed; the tests must see them do so."""

HARMFUL: dict[Level, dict[str, str]] = {
    "landlock": {"a_chain_of_forks": "may outrun its being killed"},
    "process": {
        "a_chain_of_forks": "may outrun its being killed",
        "killing": "would end whatever this user runs",
        "other_processes_memory": "depends on the kernel's settings",
        "terminal_input": "depends on the kernel's settings",
        "the_interpreter": "would destroy it",
    },
}
"""Attacks that are not tried, and why."""

if IS_ROOT:
    HARMFUL["process"]["a_fork_bomb"] = "root's processes are not counted"
else:
    KNOWN_GAPS["process"] |= {"a_forged_report"}
if not memory_of_all_is_bounded():
    for gaps in (KNOWN_GAPS[level] for level in get_args(LocalLevel)):
        gaps |= {"memory_of_many_processes"}
if namespaces_for_everybody():
    KNOWN_GAPS["process"] |= {"namespaces"}


@pytest.fixture(autouse=True)
def known_gap(request: pytest.FixtureRequest, backend: Backend) -> None:
    name = request.node.originalname.removeprefix("test_")
    if reason := HARMFUL.get(backend.level, {}).get(name):
        pytest.skip(f"not at {backend.level!r}: {reason}")
    if name in KNOWN_GAPS[backend.level]:
        gap = pytest.mark.xfail(raises=AssertionError, reason=f"{backend.level!r} does not hold it")
        request.applymarker(gap)


# --- the host ---------------------------------------------------------------------------------

NAMED = """
import ctypes as _c
_c.CDLL(None).prctl(15, {marker!r}.encode(), 0, 0, 0)
"""
"""Names the process, and with it all its forks."""


@pytest.fixture(scope="module")
def shared(backend: Backend) -> Iterator[Sandbox]:
    with closing(backend.make()) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(shared: Sandbox) -> Sandbox:
    """An empty one; it may have gone through all other attacks."""
    shared.restore(replace(shared.snapshot(), files=(), folders=()))
    return shared


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder of the host that every user may use, with a file that every user may use."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "secret").write_text("host")
        (folder / "secret").chmod(0o666)
        yield folder


@pytest.fixture
def attack(sandbox: Sandbox, marker: str, outside: Path) -> Callable[..., ExecResult]:
    """Run a program, then look at the host: nothing of it is left, and the sandbox goes on."""

    def run(source: str, limits: Limits = LIMITS, actor: Actor = ANYBODY) -> ExecResult:
        named = NAMED.format(marker=marker)
        result = sandbox.exec(f"{named}OUTSIDE = {str(outside)!r}\n{source}", limits, actor)
        assert survivors(marker) == []
        assert [path.name for path in outside.iterdir()] == ["secret"]
        assert (outside / "secret").read_text() == "host"
        assert sandbox.exec("print(1)", LIMITS).stdout == "1\n"
        return result

    return run


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the caller; it must outlive every attack."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
        alive = process.poll() is None
        process.kill()
    assert alive


def outcome(result: ExecResult) -> tuple[int, str, str, str | None]:
    """How a program ended, and the last line of its complaints."""
    last = result.stderr.splitlines()[-1] if result.stderr else ""
    return result.exit_code, result.stdout, last, result.limit_hit


# --- programs that will not end, or end oddly -------------------------------------------------

DEAF = "import signal\nfor s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)\n"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("while True: pass", id="busy"),
        pytest.param(f"{DEAF}while True: pass", id="deaf"),
        pytest.param("import re; re.match('(a+)+$', 'a' * 60 + 'b')", id="regex"),
        pytest.param("import os; os.kill(os.getpid(), 19)", id="stopped"),
        pytest.param("import os; os.execv('/bin/sleep', ['sleep', '60'])", id="other-program"),
        pytest.param("import time, atexit; atexit.register(time.sleep, 60)", id="atexit"),
        pytest.param("class A:\n    def __del__(self):\n        while 1: pass\na = A()", id="del"),
        pytest.param(
            "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
            id="thread",
        ),
        pytest.param("10 ** 10 ** 10", id="big-number"),
    ],
)
def test_programs_that_will_not_end(attack: Callable[..., ExecResult], source: str) -> None:
    assert outcome(attack(source, ENDLESS)) == (-9, "", "", "wall_clock")


def test_a_program_that_never_stops_talking(attack: Callable[..., ExecResult]) -> None:
    result = attack("while True: print('more', flush=True)", SHORT)
    assert (result.exit_code, result.limit_hit) == (-9, "wall_clock")
    assert result.stdout.startswith("more\nmore\n")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os; os.write(1, b'half'); os._exit(0)", (0, "half", "", None)),
        ("import os; os.abort()", (-6, "", "", None)),
        ("import os; os.kill(0, 9)", (-9, "", "", None)),
        ("import os; os.killpg(os.getpgrp(), 9)", (-9, "", "", None)),
        ("import ctypes; ctypes.string_at(0)", (-11, "", "", None)),
        ("input()", (1, "", "EOFError: EOF when reading a line", None)),
        ("import sys; sys.excepthook = 1; sys.exit(5)", (5, "", "", None)),
        ("import sys; sys.stdout.close(); sys.stderr.close()", (0, "", "", None)),
        ("import os; os.closerange(0, 256); os._exit(4)", (4, "", "", None)),
        ("import os; os.write(1, b'\\0\\xff\\xc3')", (0, "\0\ufffd\ufffd", "", None)),
        ("print('\\ud800')", (0, "\\ud800\n", "", None)),
        ("import sys; print('\\udcff', file=sys.stderr)", (0, "", "\\udcff", None)),
        ("import atexit; atexit.register(print, 'bye')", (0, "bye\n", "", None)),
        ("class A:\n    def __del__(self): print('bye')\na = A()", (0, "bye\n", "", None)),
        (
            "import threading, time\n"
            "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()\n"
            "print('main')",
            (0, "main\nlate\n", "", None),
        ),
        (
            "import sys; sys.setrecursionlimit(10**6)\n"
            "class A:\n    def __getattr__(self, name): return getattr(self, name)\nA().x",
            None,
        ),
    ],
)  # fmt: skip
def test_odd_endings(
    attack: Callable[..., ExecResult],
    source: str,
    expected: tuple[int, str, str, str | None] | None,
) -> None:
    result = outcome(attack(source))
    if expected is None:  # the stack is used up, or Python notices before it is
        assert result[0] in (-11, 1)
    else:
        assert result == expected


def test_every_descriptor_is_written_to(attack: Callable[..., ExecResult]) -> None:
    source = (
        "import os\nfor fd in range(3, 1024):\n"
        "    try: os.write(fd, b'exit 0 0\\n')\n    except OSError: pass\n"
        "raise SystemExit(3)"
    )
    assert outcome(attack(source)) == (3, "", "", None)


def test_a_forged_report(attack: Callable[..., ExecResult]) -> None:
    source = (
        "import os\nparent = f'/proc/{os.getppid()}/fd'\n"
        "try: names = os.listdir(parent)\nexcept OSError: names = range(32)\n"
        "for name in names:\n"
        "    try: open(f'{parent}/{name}', 'wb', buffering=0).write(b'exit 0 0\\n')\n"
        "    except OSError: pass\n"
        "raise SystemExit(3)"
    )
    assert outcome(attack(source)) == (3, "", "", None)


# --- programs that want too much --------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "x = []\nwhile True: x.append(bytearray(10**7))",
        "import numpy\nx = []\nwhile True: x.append(numpy.ones(10**6))",
        "x = 'x' * 10**10",
        "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 10**8))",
    ],
    ids=["bytes", "numpy", "string", "mmap"],
)
def test_memory_bombs(attack: Callable[..., ExecResult], source: str) -> None:
    result = attack(source, HUNGRY)
    if "mmap" in source:
        assert outcome(result) == (1, "", "OSError: [Errno 12] Cannot allocate memory", None)
    else:
        assert (result.exit_code, result.limit_hit) == (1, "memory")
        assert "MemoryError" in result.stderr.splitlines()[-1]


def test_memory_of_many_processes(attack: Callable[..., ExecResult]) -> None:
    # Who was killed may not have ended yet, so each that holds its block is asked to say so.
    source = (
        "import os, time\n"
        "asked, ask = os.pipe()\n"
        "replies = []\n"
        "for _ in range(10):\n"
        "    ours, theirs = os.pipe()\n"
        "    if not os.fork():\n"
        "        os.close(ask)\n"
        "        block = b'x' * 100_000_000\n"
        "        os.write(theirs, b'x')\n"
        "        os.read(asked, 1)\n"
        "        os.write(theirs, b'y')\n"
        "        time.sleep(60)\n"
        "    os.close(theirs)\n"
        "    replies.append(ours)\n"
        "for ours in replies: os.read(ours, 1)\n"
        "os.close(ask)\n"
        "print(sum(os.read(ours, 1) == b'y' for ours in replies))"
    )
    result = attack(source, HUNGRY)
    assert result.limit_hit in (None, "memory")
    fitting = 6  # in the limit and what a container has for its supervisor besides, 668 MB
    assert int(result.stdout or 0) <= fitting


def test_a_flood_on_both_streams(attack: Callable[..., ExecResult]) -> None:
    limits = Limits(timeout_s=30.0, output_bytes=100, total_output_bytes=1_000_000)
    source = "import os\nwhile True: os.write(1, b'x' * 5000); os.write(2, b'y' * 5000)"
    result = attack(source, limits)
    assert (result.exit_code, result.limit_hit) == (-9, "output")
    assert result.output.total_bytes + result.errors.total_bytes == 1_000_000
    assert (len(result.stdout), len(result.stderr)) == (len(result.output.text),) * 2


def test_a_fork_bomb(attack: Callable[..., ExecResult]) -> None:
    source = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    limits = Limits(timeout_s=0.3, processes=32)
    assert outcome(attack(source, limits)) == (-9, "", "", "wall_clock")


def test_a_chain_of_forks(attack: Callable[..., ExecResult]) -> None:
    source = "import os\nwhile True:\n    if os.fork(): os._exit(0)\n    os.setsid()"
    result = attack(source, SHORT)
    assert (result.exit_code, result.limit_hit) in ((0, None), (-9, "wall_clock"))


DAEMON = """
import os, subprocess, sys, time
subprocess.Popen(
    [sys.executable, "-c", "import os, time; os.fork() or time.sleep(60)", MARKER],
    start_new_session=True,
)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", MARKER])
    os._exit(0)
os.wait()
print("before")
"""


def test_a_daemon_that_holds_the_streams(attack: Callable[..., ExecResult], marker: str) -> None:
    source = f"MARKER = {marker!r}\n{DAEMON}"
    assert outcome(attack(source)) == (0, "before\n", "", None)
    late = attack(f"{source}time.sleep(60)", SHORT)
    assert (late.exit_code, late.limit_hit) == (-9, "wall_clock")


# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "f = open('a', 'wb')\nwhile True: f.write(b'x' * 10**6)",
        "import os; os.truncate(os.open('a', os.O_CREAT | os.O_WRONLY), 10**13)",
        "import os; os.posix_fallocate(os.open('a', os.O_CREAT | os.O_WRONLY), 0, 10**13)",
    ],
    ids=["huge", "sparse", "allocated"],
)
def test_a_file_that_is_too_large(
    attack: Callable[..., ExecResult], sandbox: Sandbox, source: str
) -> None:
    result = attack(source, Limits(timeout_s=30.0, file_bytes=10_000_000))
    assert outcome(result) == (1, "", "OSError: [Errno 27] File too large", None)
    assert sandbox.manifest()[0].size <= 10_000_000


@pytest.mark.parametrize(
    "source",
    [
        "for n in range(1000): open(f'{n}', 'w')",
        "for n in range(300): os.makedirs(f'{n}/{n}')",
        "for n in range(1000): os.symlink('/', f'{n}')",
        "for n in range(100): open(f'{n}', 'wb').write(bytes(10**6))",
    ],
    ids=["files", "folders", "links", "bytes"],
)
def test_a_workspace_that_is_too_full(
    attack: Callable[..., ExecResult], sandbox: Sandbox, source: str
) -> None:
    sandbox.write_file("train.csv", b"train")
    limits = Limits(timeout_s=30.0, workspace_files=500, workspace_bytes=50_000_000)
    result = attack(f"import os, time\nos.remove('train.csv')\n{source}\ntime.sleep(60)", limits)
    assert (outcome(result), result.files) == ((-9, "", "", "files"), FileChanges())
    assert sandbox.read_file("train.csv", 9) == b"train"


def test_a_tree_that_is_too_deep(attack: Callable[..., ExecResult], sandbox: Sandbox) -> None:
    source = "import os\nfor _ in range(300): os.mkdir('d'); os.chdir('d')\nopen('f', 'w')"
    result = attack(source)
    assert outcome(result) == (0, "", "", None)
    assert result.files == FileChanges(removed=("/".join("d" * 17),))
    assert sandbox.manifest() == ()


LEFT = """
import os, socket
def attempt(function, *arguments):
    try: function(*arguments)
    except OSError: pass
attempt(os.symlink, "/etc/passwd", "link")
attempt(os.symlink, OUTSIDE, "folder")
attempt(os.link, OUTSIDE + "/secret", "second")
attempt(os.mkfifo, "pipe")
attempt(os.mknod, "device", 0o20666, 0x103)
attempt(lambda: socket.socket(socket.AF_UNIX).bind("socket"))
attempt(lambda: socket.socketpair()[0].bind("pair"))
attempt(lambda: open(b"\\xff", "w"))
attempt(lambda: open("a\\n\\x1b[2J", "w"))
open("loud", "w"); os.chmod("loud", 0o6777)
os.mkdir("locked"); open("locked/file", "w"); os.chmod("locked", 0)
"""
LEAVES = {
    "docker": {"socket", "pair"},
    "namespace": {"socket", "pair"},
    "landlock": {"pair"},
    "process": {"pipe", "socket", "pair", "second"},
}
"""What a program can make at each level, of what it may not leave."""


def test_what_is_no_file(
    attack: Callable[..., ExecResult], sandbox: Sandbox, backend: Backend
) -> None:
    result = attack(LEFT)
    assert outcome(result) == (0, "", "", None)
    everywhere = {"link", "folder", "\\xff", "a\\n\\x1b[2J"}
    assert set(result.files.removed) == everywhere | LEAVES[backend.level]
    assert result.files.created == ("locked/file", "loud")
    assert [record.path for record in sandbox.manifest()] == ["locked/file", "loud"]
    assert sandbox.exec("import os; print(oct(os.stat('loud').st_mode))", LIMITS).stdout in (
        "0o100777\n",
        "0o100644\n",
    )


def test_a_file_with_two_names(attack: Callable[..., ExecResult], sandbox: Sandbox) -> None:
    result = attack("import os; open('one', 'w'); os.link('one', 'two')")
    assert result.files.removed in (("one",), ("two",), ("one", "two"))
    names = {record.path for record in sandbox.manifest()}
    assert names == {"one", "two"} - set(result.files.removed)


def test_the_workspace_itself(
    attack: Callable[..., ExecResult], sandbox: Sandbox, outside: Path
) -> None:
    sandbox.write_file("train.csv", b"train")
    source = (
        "import os, shutil\n"
        "own = os.getcwd()\n"
        "shutil.rmtree(own, ignore_errors=True)\n"
        "for verb in (lambda: os.rmdir(own), lambda: os.rename(own, own + '2'),\n"
        "             lambda: os.symlink(OUTSIDE, own)):\n"
        "    try: verb()\n    except OSError: pass"
    )
    result = attack(source)
    assert (outcome(result), result.files.deleted) == ((0, "", "", None), ("train.csv",))
    sandbox.write_file("train.csv", b"again")
    assert sandbox.exec("print(open('train.csv').read())", LIMITS).stdout == "again\n"
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_a_protected_file_in_disguise(attack: Callable[..., ExecResult], sandbox: Sandbox) -> None:
    sandbox.write_file("train.csv", b"train")
    sandbox.write_file("data/test.csv", b"test!")
    source = (
        "import mmap, os\n"
        "was = os.stat('train.csv')\n"
        "with open('train.csv', 'r+b') as file, mmap.mmap(file.fileno(), 5) as view:\n"
        "    view[:] = b'brain'\n"
        "os.utime('train.csv', ns=(was.st_atime_ns, was.st_mtime_ns))\n"
        "os.rename('data', 'old')\n"
        "os.mkdir('data'); open('data/test.csv', 'w').write('best!')"
    )
    result = attack(source, actor=Actor("solver", access=Access(write=())))
    assert result.files.restored == ("data/test.csv", "train.csv")
    assert sandbox.read_file("train.csv", 9) == b"train"
    assert sandbox.read_file("data/test.csv", 9) == b"test!"


def test_files_put_aside(attack: Callable[..., ExecResult], sandbox: Sandbox) -> None:
    sandbox.write_file("truth.csv", b"truth")
    source = (
        "import os\n"
        "for folder in ('..', '../hidden', '../store', '../files', '../tmp'):\n"
        "    try: names = os.listdir(folder)\n    except OSError: names = ['0']\n"
        "    for name in names:\n"
        "        try: text = open(f'{folder}/{name}').read()\n        except OSError: continue\n"
        "        if text == 'truth': print(folder)"
    )
    assert attack(source, actor=Actor("solver", access=Access(read=()))).stdout == ""


class Payload:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self.path), "w")


def test_a_pickle_with_a_payload(
    attack: Callable[..., ExecResult], sandbox: Sandbox, outside: Path
) -> None:
    content = pickle.dumps(Payload(outside / "owned"))
    result = attack(f"open('model.pkl', 'wb').write({content!r})")
    assert result.files == FileChanges(created=("model.pkl",))
    snapshot = sandbox.snapshot()
    sandbox.write_file("model.pkl", b"")
    sandbox.restore(snapshot)
    assert sandbox.read_file("model.pkl", 1000) == content
    assert [record.path for record in sandbox.manifest()] == ["model.pkl"]
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_modules_named_like_standard_ones(
    attack: Callable[..., ExecResult], sandbox: Sandbox
) -> None:
    names = (
        "io",
        "json",
        "linecache",
        "numpy",
        "os",
        "random",
        "site",
        "sitecustomize",
        "traceback",
    )
    attack(f"for name in {names}: open(f'{{name}}.py', 'w').write('raise SystemExit(9)')")
    result = sandbox.exec("import os, random\nprint(1)\n1 / 0", LIMITS)
    assert result.stdout == "1\n"
    assert result.stderr == (
        'Traceback (most recent call last):\n  File "<action>", line 3, in <module>\n'
        "    1 / 0\n    ~~^~~\nZeroDivisionError: division by zero\n"
    )


# --- the host's files -------------------------------------------------------------------------


def test_host_files(attack: Callable[..., ExecResult], outside: Path, backend: Backend) -> None:
    """A container has a few of them of its own."""
    with tempfile.NamedTemporaryFile(dir=Path.home()) as at_home:
        os.fchmod(at_home.fileno(), 0o644)
        at_home.write(b"secret")
        at_home.flush()
        proc = f"/proc/{os.getpid()}"
        paths = (
            *("/etc/shadow", "/etc/passwd", "/etc/hostname", "/proc/1/environ", "/proc/kcore"),
            *(f"{proc}/environ", f"{proc}/mem", f"{proc}/maps", f"{proc}/cmdline", f"{proc}/cwd/."),
            *(f"{proc}/root/etc/passwd", f"{proc}/fd/0", "/dev/mem", "/dev/kmsg", "/dev/vda"),
            *("/root/.bashrc", "/var/log", "/run", "/sys/kernel", "/home", "/dev/pts"),
            *(at_home.name, str(outside / "secret"), str(outside), __file__),
        )
        source = (
            f"import os\nfor path in {paths}:\n"
            "    try: os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(1)\n"
            "    except OSError: continue\n"
            "    if os.getpid() != 1 or '/1/' not in path: print(path)"
        )
        result = attack(source)
    own = "/etc/hostname\n/sys/kernel\n/dev/pts\n" if backend.level == "docker" else ""
    assert outcome(result) == (0, own, "", None)


def test_names_of_host_files(attack: Callable[..., ExecResult]) -> None:
    result = attack("import os; print(os.path.exists(OUTSIDE), os.path.exists('/etc/shadow'))")
    assert result.stdout == "False False\n"


def test_the_interpreter(attack: Callable[..., ExecResult]) -> None:
    files = [Path(module.__file__ or "") for module in (os, numpy)]
    before = [(path.read_bytes(), path.stat()) for path in files]
    source = (
        f"import os\nfor path in {[str(path) for path in files]}:\n"
        "    for verb in (lambda: open(path, 'ab').write(b'#'), lambda: os.truncate(path, 0),\n"
        "                 lambda: os.rename(path, path + '2'), lambda: os.remove(path),\n"
        "                 lambda: os.chmod(path, 0o777), lambda: os.utime(path, (1, 1)),\n"
        "                 lambda: os.chown(path, os.getuid(), os.getgid()),\n"
        "                 lambda: os.setxattr(path, 'user.a', b'a'),\n"
        "                 lambda: open(os.path.join(os.path.dirname(path), 'new.py'), 'x')):\n"
        "        try: verb()\n        except OSError: pass"
    )
    assert outcome(attack(source)) == (0, "", "", None)
    for path, (content, status) in zip(files, before, strict=True):
        assert path.read_bytes() == content
        assert path.stat()[:6] + path.stat()[8:] == status[:6] + status[8:]
        assert not (path.parent / "new.py").exists()


# --- the host's processes ---------------------------------------------------------------------


def test_killing(
    attack: Callable[..., ExecResult], bystander: subprocess.Popen[bytes], backend: Backend
) -> None:
    source = (
        "import os, signal\n"
        f"for pid in (-1, 1, os.getppid(), {os.getpid()}, {bystander.pid}, -{os.getpgrp()}):\n"
        "    if pid in (os.getpid(), -os.getpgrp()): continue\n"
        "    for verb in (lambda: os.kill(pid, 9),\n"
        "                 lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 9)):\n"
        "        try: verb()\n        except OSError: pass\n"
        "print('done')"
    )
    assert outcome(attack(source)) == (0, "done\n", "", None)


def test_signals_by_way_of_a_file(
    attack: Callable[..., ExecResult], bystander: subprocess.Popen[bytes]
) -> None:
    """A file can be told whom to signal, with which signal, when there is something to read."""
    source = (
        "import fcntl, os\nours, theirs = os.pipe()\n"
        "try:\n"
        f"    fcntl.fcntl(ours, fcntl.F_SETOWN, {bystander.pid})\n"
        "    fcntl.fcntl(ours, 10, 15)\n"
        "    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)\n"
        "    os.write(theirs, b'x')\n"
        "except OSError: pass"
    )
    attack(source)
    with contextlib.suppress(subprocess.TimeoutExpired):
        bystander.wait(0.2)
    assert bystander.poll() is None


def test_limits_of_another_process(
    attack: Callable[..., ExecResult], bystander: subprocess.Popen[bytes]
) -> None:
    def state() -> tuple[object, ...]:
        return (
            resource.prlimit(bystander.pid, resource.RLIMIT_CORE),
            os.getpriority(os.PRIO_PROCESS, bystander.pid),
            os.sched_getaffinity(bystander.pid),
            os.sched_getscheduler(bystander.pid),
        )

    before = state()
    source = (
        "import ctypes, os, resource\n"
        f"pid = {bystander.pid}\n"
        "for verb in (lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)),\n"
        "             lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),\n"
        "             lambda: os.sched_setaffinity(pid, {max(os.sched_getaffinity(0))}),\n"
        "             lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))):\n"
        "    try: verb()\n    except OSError: pass"
    )
    attack(source)
    assert state() == before


def test_other_processes_memory(
    attack: Callable[..., ExecResult], bystander: subprocess.Popen[bytes]
) -> None:
    numbers = {"x86_64": (101, 310, 312), "aarch64": (117, 270, 272)}[os.uname().machine]
    source = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        f"ptrace, process_vm_readv, kcmp = {numbers}\n"
        "buffer = ctypes.create_string_buffer(8)\n"
        "vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)\n"
        f"for pid in ({bystander.pid}, os.getppid()):\n"
        "    print(libc.syscall(ptrace, 16, pid, 0, 0), libc.syscall(ptrace, 0x4206, pid, 0, 0),\n"
        "          libc.syscall(process_vm_readv, pid, vector, 1, vector, 1, 0),\n"
        "          libc.syscall(kcmp, pid, pid, 0, 0, 0),\n"
        "          libc.syscall(438, libc.syscall(434, pid, 0), 0, 0))"
    )
    assert outcome(attack(source)) == (0, "-1 -1 -1 -1 -1\n" * 2, "", None)


def test_ipc_left_behind(attack: Callable[..., ExecResult]) -> None:
    """Shared memory, semaphores and queues outlive the process that made them."""

    def left() -> set[tuple[str, int]]:
        found = set()
        for kind in ("shm", "sem", "msg"):
            rows = Path("/proc/sysvipc", kind).read_text().splitlines()[1:]
            found |= {(kind, int(row.split()[1])) for row in rows}
        return found | {(name, 0) for name in os.listdir("/dev/shm") if name.startswith(name_left)}

    name_left = f"left-{os.getpid()}"
    before = left()
    attack(
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "libc.shmget(0, 12345, 0o1600); libc.semget(0, 1, 0o1600); libc.msgget(0, 0o1600)\n"
        f"try: open('/dev/shm/{name_left}', 'w')\nexcept OSError: pass"
    )
    new = left() - before
    for kind, number in new:
        if kind == name_left:
            os.remove(f"/dev/shm/{kind}")
        else:
            last = (0, 0) if kind != "sem" else (0, 0, 0)
            getattr(ctypes.CDLL(None), f"{kind}ctl")(number, *last)
    assert new == set()


# --- the network, the kernel and the terminal -------------------------------------------------


def test_host_sockets(attack: Callable[..., ExecResult], outside: Path) -> None:
    """None of the test's own services hears anything, whatever kind of socket it has."""
    places: list[tuple[int, int, object]] = [
        (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        (socket.AF_UNIX, socket.SOCK_STREAM, b"\0mappa-stream-%d" % os.getpid()),
        (socket.AF_UNIX, socket.SOCK_DGRAM, b"\0mappa-datagram-%d" % os.getpid()),
    ]
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        places += [
            (socket.AF_UNIX, socket.SOCK_STREAM, f"{name}/stream"),
            (socket.AF_UNIX, socket.SOCK_DGRAM, f"{name}/datagram"),
        ]
        services = []
        for family, kind, address in places:
            service = stack.enter_context(socket.socket(family, kind))
            service.bind(address)
            service.setblocking(False)
            if kind == socket.SOCK_STREAM:
                service.listen()
            services.append(service)
        for path in Path(name).iterdir():
            path.chmod(0o777)
        addresses = [service.getsockname() for service in services]
        source = (
            "import socket\n"
            f"for address in {addresses}:\n"
            "    family = socket.AF_INET if type(address) is tuple else socket.AF_UNIX\n"
            "    for kind in (1, 2, 3, 5):\n"
            "        for make in (lambda: socket.socket(family, kind),\n"
            "                     lambda: socket.socketpair(family, kind)[0]):\n"
            "            for verb in (lambda own: own.connect(address),\n"
            "                         lambda own: own.sendto(b'x', address)):\n"
            "                try: verb(make())\n                except OSError: pass\n"
        )
        assert outcome(attack(source)) == (0, "", "", None)
        heard = []
        for place, service in zip(places, services, strict=True):
            with contextlib.suppress(BlockingIOError):
                heard.append(
                    (place, service.recv(1) if place[1] == socket.SOCK_DGRAM else service.accept())
                )
    assert heard == []


def test_namespaces(attack: Callable[..., ExecResult]) -> None:
    clone, pivot_root = {"x86_64": (56, 155), "aarch64": (220, 41)}[os.uname().machine]
    flags = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
    source = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "attempts = {\n"
        "    'mount': lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None),\n"
        "    'remount': lambda: libc.mount(b'none', b'/', None, 0x1020, None),\n"
        "    'umount2': lambda: libc.umount2(b'/proc', 2),\n"
        "    'chroot': lambda: libc.chroot(b'.'),\n"
        "    'sethostname': lambda: libc.sethostname(b'owned', 5),\n"
        f"    'pivot_root': lambda: libc.syscall({pivot_root}, b'.', b'.'),\n"
        "    'setns': lambda: libc.setns(os.open('/proc/self/ns/mnt', 0), 0),\n"
        "    'open_tree': lambda: libc.syscall(428, -100, b'/', 1),\n"
        "    'fsopen': lambda: libc.syscall(430, b'tmpfs', 0),\n"
        "    'clone3': lambda: libc.syscall(435, (ctypes.c_uint64 * 8)(0x10000000), 64),\n"
        "}\n"
        f"for flag in {flags}:\n"
        "    attempts[f'unshare {flag:x}'] = lambda flag=flag: libc.unshare(flag)\n"
        f"    attempts[f'clone {{flag:x}}'] = lambda flag=flag: "
        f"libc.syscall({clone}, flag | 17, 0, 0, 0, 0)\n"
        "for name, attempt in attempts.items():\n"
        "    try: done = attempt()\n    except OSError: continue\n"
        "    if done == 0 and 'clone' in name: os._exit(0)\n"
        "    if done >= 0: print(name)"
    )
    assert outcome(attack(source)) == (0, "", "", None)


def test_terminal_input(attack: Callable[..., ExecResult], backend: Backend) -> None:
    """Nobody types into a terminal of the host."""
    ours, theirs = pty.openpty()
    try:
        os.fchmod(theirs, 0o666)
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~termios.ICANON
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        source = (
            "import fcntl, os, termios\n"
            f"for path in ('/dev/tty', {os.ttyname(theirs)!r}, '/dev/console', '/dev/tty1'):\n"
            "    try: fcntl.ioctl(os.open(path, os.O_RDWR), termios.TIOCSTI, b'x'); print(path)\n"
            "    except OSError: pass\n"
            "for request in (termios.TIOCSTI, termios.TIOCSTI | 1 << 32):\n"
            "    for fd in (0, 1, 2):\n"
            "        try: fcntl.ioctl(fd, request & 0xffffffff, b'x'); print(fd)\n"
            "        except OSError: pass"
        )
        result = attack(source)
        os.set_blocking(theirs, False)
        with pytest.raises(BlockingIOError):
            os.read(theirs, 1)
    finally:
        os.close(ours)
        os.close(theirs)
    assert outcome(result) == (0, "", "", None)
