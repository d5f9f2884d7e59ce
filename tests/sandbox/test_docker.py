"""Programs in containers; needs DOCKER_HOST, e.g. the daemon of `scripts/private-dockerd`."""

from __future__ import annotations

import functools
import gc
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mappa_envs.errors import SandboxError
from mappa_envs.registry import make_pipeline
from mappa_envs.sandbox import (
    Access,
    Actor,
    DockerSandbox,
    ExecResult,
    FileChanges,
    Limits,
    engine,
)
from mappa_envs.sandbox.scratch import scratch_folder
from mappa_envs.testing import check_sandbox

NO_DAEMON = "DOCKER_HOST names no Docker daemon; scripts/private-dockerd can start one"
pytestmark = [pytest.mark.docker]
if not os.environ.get("DOCKER_HOST"):
    pytestmark.append(pytest.mark.skip(reason=NO_DAEMON))

LIMITS = Limits(timeout_s=60.0)
FOREVER = "import time\nprint('up', flush=True)\nwhile True:\n    time.sleep(0.01)\n"


@functools.cache
def reason_without_docker() -> str:
    try:
        engine.connect()
    except SandboxError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def docker() -> Any:
    """The client; without a daemon the test is skipped."""
    if reason_without_docker():
        pytest.skip(reason_without_docker())
    return engine.connect()


@pytest.fixture
def sandbox(docker: Any) -> Iterator[DockerSandbox]:
    sandbox = DockerSandbox(preload=())
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[DockerSandbox]:
    """One for the tests that leave it as it is."""
    if reason_without_docker():
        pytest.skip(reason_without_docker())
    sandbox = DockerSandbox(preload=())
    yield sandbox
    sandbox.close()


def containers(owner: Path | None = None) -> list[Any]:
    """The containers, running or not, of a process; of this one without its scratch folder."""
    label = f"mappa.owner={owner or scratch_folder()}"
    found: list[Any] = engine.connect().containers.list(
        all=True, filters={"label": label}, sparse=True
    )
    return found


def eventually(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("not within a minute")


def sleeps(container: Any) -> bool:
    """Whether the program of `CALLER` runs."""
    return any("sleep" in word for process in container.top()["Processes"] for word in process)


# --- what every sandbox does --------------------------------------------------------------------


@pytest.mark.slow
def test_it_is_a_sandbox() -> None:
    check_sandbox(lambda: DockerSandbox(preload=("numpy",)))


def test_a_program_and_its_files(shared: DockerSandbox) -> None:
    shared.write_file("in.txt", b"7")
    source = "open('out.txt', 'w').write(open('in.txt').read() * 2)\nprint('done')"
    result = shared.exec(source, LIMITS, Actor("coder", 3))
    expected = replace(ExecResult.of("done\n"), files=FileChanges(created=("out.txt",)))
    assert result == expected
    assert shared.read_file("out.txt", 10) == b"77"
    authors = {record.path: (record.author, record.step) for record in shared.manifest()}
    assert authors == {"in.txt": ("task", -1), "out.txt": ("coder", 3)}
    assert shared.level == "docker"


def test_one_container_serves_all_programs(sandbox: DockerSandbox) -> None:
    before = len(containers())
    for _ in range(3):
        assert sandbox.exec("import os; print(os.getppid())", LIMITS).stdout == "1\n"
    assert len(containers()) == before + 1
    sandbox.close()
    eventually(lambda: len(containers()) == before)


def test_other_limits_take_another_container(sandbox: DockerSandbox) -> None:
    before = len(containers())
    sandbox.write_file("x", b"1")
    for memory in (1 << 29, 1 << 30):
        result = sandbox.exec("print(open('x').read())", Limits(memory_bytes=memory))
        assert result.stdout == "1\n"
        assert len(containers()) == before + 1


def test_what_is_imported_ahead(docker: Any) -> None:
    sandbox = DockerSandbox(preload=("colorsys", "there_is_no_such_module"))
    assert sandbox.exec("import sys; print('colorsys' in sys.modules)", LIMITS).stdout == "True\n"
    sandbox.close()


def test_access(sandbox: DockerSandbox) -> None:
    sandbox.write_file("secret.csv", b"1")
    sandbox.write_file("data.csv", b"2")
    source = "import os\nprint(os.listdir())\nopen('data.csv', 'w').write('3')"
    actor = Actor(access=Access(read=("data.csv",), write=()))
    result = sandbox.exec(source, LIMITS, actor)
    assert result.stdout == "['data.csv']\n"
    assert result.files == FileChanges(restored=("data.csv",))
    assert sandbox.read_file("data.csv", 10) == b"2"


# --- limits -------------------------------------------------------------------------------------


def test_the_deadline(shared: DockerSandbox) -> None:
    result = shared.exec(FOREVER, Limits(timeout_s=0.5))
    assert (result.exit_code, result.limit_hit, result.stdout) == (-9, "wall_clock", "up\n")


def test_the_memory_of_one_process(shared: DockerSandbox) -> None:
    result = shared.exec("x = bytearray(2 << 30)", LIMITS)
    assert (result.exit_code, result.limit_hit) == (1, "memory")


def test_the_memory_of_all_processes(sandbox: DockerSandbox) -> None:
    source = """
import os, time
for _ in range(30):
    if not os.fork():
        x = bytearray(64 << 20)
        time.sleep(60)
for _ in range(30):
    if os.WIFSIGNALED(os.wait()[1]):
        os.kill(os.getpid(), 9)
"""
    limits = Limits(timeout_s=60.0, memory_bytes=256 << 20)
    result = sandbox.exec(source, limits)
    assert (result.exit_code, result.limit_hit) == (-9, "memory")
    assert sandbox.exec("print(1)", limits).stdout == "1\n"


@pytest.mark.slow
def test_the_death_of_the_supervisor_for_memory(docker: Any) -> None:
    source = """
import os, subprocess, sys, time
waiting = "x = bytearray(11 << 20); open('/proc/self/oom_score_adj', 'w').write('0'); input()"
children = [
    subprocess.Popen([sys.executable, "-S", "-c", waiting], stdin=subprocess.PIPE)
    for _ in range(60)
]
time.sleep(5)
"""
    source = f"open('/proc/self/oom_score_adj', 'w').write('0')\n{source}"
    limits = Limits(timeout_s=60.0, memory_bytes=400 << 20)
    sandbox = DockerSandbox()  # the imports make the supervisor the largest process
    result = sandbox.exec(source, limits)
    assert result.limit_hit in ("memory", None)
    assert sandbox.exec("print(1)", limits).stdout == "1\n"
    sandbox.close()


def test_the_number_of_processes(sandbox: DockerSandbox) -> None:
    source = """
import os, time
children = 0
try:
    while children < 100:
        if not os.fork():
            time.sleep(60)
        children += 1
except BlockingIOError:
    print(children)
"""
    result = sandbox.exec(source, Limits(timeout_s=60.0, processes=8))
    assert result.stdout == "7\n"


def test_a_flood(shared: DockerSandbox) -> None:
    source = "import sys\nwhile True: sys.stdout.write('x' * 10_000)"
    result = shared.exec(source, Limits(timeout_s=60.0, total_output_bytes=100_000))
    assert (result.exit_code, result.limit_hit) == (-9, "output")
    assert result.output.total_bytes == 100_000
    assert result.output.cut_bytes == 80_000


def test_the_size_of_the_workspace(sandbox: DockerSandbox) -> None:
    limits = Limits(timeout_s=60.0, workspace_bytes=1_000_000)
    sandbox.write_file("x", b"1")
    source = f"open('x', 'w').write('2'); open('big', 'w').write('x' * 2_000_000)\n{FOREVER}"
    result = sandbox.exec(source, limits)
    assert (result.exit_code, result.limit_hit, result.files) == (-9, "files", FileChanges())
    assert [record.path for record in sandbox.manifest()] == ["x"]
    assert sandbox.read_file("x", 10) == b"1"
    assert sandbox.exec("print(open('x').read())", limits).stdout == "1\n"


# --- what a program can reach -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "stdout"),
    [
        ("import os; print(os.getuid() == 0, os.getgid() == 0, os.getgroups())", "False False "),
        ("open('/x', 'w')", "Read-only file system"),
        ("open('/usr/x', 'w')", "Read-only file system"),
        ("open('/mappa/jail/x', 'w')", "Read-only file system"),
        ("open('/proc/sys/kernel/hostname', 'w')", "Read-only file system"),
        ("import os; print(sorted(os.listdir('/sys/class/net')))", "['lo']"),
        ("import socket; socket.socket()", "Operation not permitted"),
        ("open('/dev/x', 'w')", "Permission denied"),
        ("import os; os.mknod('x')", "Operation not permitted"),
        ("import os; os.listdir('/proc/1/fd')", "Permission denied"),
        ("open('/proc/1/mem', 'rb')", "Permission denied"),
        ("import os; os.setpriority(os.PRIO_PROCESS, 1, 19)", "Operation not permitted"),
        ("import resource; resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))", "not permitted"),
        ("print(open('/proc/self/status').read())", "CapEff:\t0000000000000000"),
        ("print(open('/proc/self/status').read())", "NoNewPrivs:\t1"),
        ("print(open('/proc/self/status').read())", "Seccomp:\t2"),
        ("import os; print(sorted(os.listdir('/proc/self/fd')))", "['0', '1', '2', '3']"),
        ("import sys; print(repr(sys.stdin.read()))", "''"),
    ],
)
def test_what_is_there(shared: DockerSandbox, source: str, stdout: str) -> None:
    result = shared.exec(source, LIMITS)
    assert stdout in result.stdout + result.stderr


@pytest.mark.parametrize("number", [2, 9, 10, 15, 17, 19, 34])
def test_the_supervisor_bears_every_signal(shared: DockerSandbox, number: int) -> None:
    shared.exec("", LIMITS)
    before = [container.id for container in containers()]
    source = f"import os\nfor _ in range(100): os.kill(1, {number})\nprint('sent')"
    assert shared.exec(source, LIMITS).stdout == "sent\n"
    assert shared.exec("print(1)", LIMITS).stdout == "1\n"
    assert [container.id for container in containers()] == before


def test_nothing_outlives_a_program_but_its_files(shared: DockerSandbox) -> None:
    source = """
import os, time
for folder in ("/tmp", "/dev/shm"):
    os.makedirs(f"{folder}/a/b")
    open(f"{folder}/a/b/c", "w").write("1")
    os.chmod(f"{folder}/a/b", 0o000)
    os.symlink("/usr", f"{folder}/link")
open("/dev/mqueue/queue", "w")
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(600)
    os._exit(0)
os.wait()
"""
    assert shared.exec(source, LIMITS).exit_code == 0
    look = """
import os
print([name for name in os.listdir("/tmp") if name in ("a", "link")])
print(os.listdir("/dev/shm"), os.listdir("/dev/mqueue"))
print(sum(name.isdigit() for name in os.listdir("/proc")))
"""
    assert shared.exec(look, LIMITS).stdout == "[]\n[] []\n2\n"


def test_a_container_that_cannot_be_emptied_is_replaced(sandbox: DockerSandbox) -> None:
    source = """
import os
os.chdir("/tmp")
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
"""
    assert sandbox.exec(source, LIMITS).exit_code == 0
    result = sandbox.exec("import os; print(os.path.exists('/tmp/d'))", LIMITS)
    assert result.stdout == "False\n"


# --- the end ------------------------------------------------------------------------------------


def test_close_ends_the_running_program(sandbox: DockerSandbox) -> None:
    results = []
    source = f"open('started', 'w')\n{FOREVER}"
    before = len(containers())
    runner = threading.Thread(target=lambda: results.append(sandbox.exec(source, LIMITS)))
    runner.start()
    eventually(lambda: os.path.exists(sandbox._workspace.path / "started"))
    sandbox.close()
    runner.join()
    assert [(result.exit_code, result.limit_hit) for result in results] == [(-9, None)]
    assert not sandbox._root.exists()
    eventually(lambda: len(containers()) == before)
    with pytest.raises(SandboxError, match="closed"):
        sandbox.exec("", LIMITS)
    sandbox.close()


def test_a_forgotten_sandbox_takes_its_container_along(docker: Any) -> None:
    before = len(containers())
    sandbox = DockerSandbox(preload=())
    sandbox.exec("", LIMITS)
    del sandbox
    gc.collect()
    eventually(lambda: len(containers()) == before)


def test_a_container_that_somebody_removed(sandbox: DockerSandbox) -> None:
    before = {container.id for container in containers()}
    sandbox.exec("", LIMITS)
    (own,) = (container for container in containers() if container.id not in before)
    own.remove(force=True)
    with pytest.raises(SandboxError, match="the container of the sandbox failed: "):
        sandbox.exec("print(1)", LIMITS)
    assert sandbox.exec("print(2)", LIMITS).stdout == "2\n"


def test_a_container_removed_while_a_program_runs(sandbox: DockerSandbox) -> None:
    before = {container.id for container in containers()}
    sandbox.exec("", LIMITS)
    (own,) = (container for container in containers() if container.id not in before)

    def remove() -> None:
        eventually(lambda: os.path.exists(sandbox._workspace.path / "started"))
        own.remove(force=True)

    thread = threading.Thread(target=remove)
    thread.start()
    with pytest.raises(SandboxError, match="the container of the sandbox failed: "):
        sandbox.exec(f"open('started', 'w')\n{FOREVER}", LIMITS)
    thread.join()


@pytest.mark.slow
def test_a_container_that_stands_still_is_given_up_at_the_deadline(
    sandbox: DockerSandbox,
) -> None:
    before = {container.id for container in containers()}
    sandbox.exec("", LIMITS)
    (own,) = (container for container in containers() if container.id not in before)

    def pause() -> None:
        eventually(lambda: os.path.exists(sandbox._workspace.path / "started"))
        own.pause()

    thread = threading.Thread(target=pause)
    thread.start()
    result = sandbox.exec(f"open('started', 'w')\n{FOREVER}", Limits(timeout_s=3.0))
    thread.join()
    assert (result.exit_code, result.limit_hit) == (-9, "wall_clock")
    assert sandbox.exec("print(1)", LIMITS).stdout == "1\n"
    assert own.id not in {container.id for container in containers()}


CALLER = """
import sys
from mappa_envs.sandbox import DockerSandbox, Limits
from mappa_envs.sandbox.scratch import scratch_folder
sandbox = DockerSandbox(preload=())
sandbox.exec("", Limits())
print(scratch_folder(), flush=True)
program = "import os; os.execvp('sleep', ['sleep', '600'])"
sandbox.exec(program, Limits(timeout_s=float(sys.argv[1])))
"""


def other_caller(timeout_s: float) -> tuple[subprocess.Popen[str], Path]:
    """A process that runs a program with its own sandbox, and its scratch folder."""
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(timeout_s)], stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout
    return caller, Path(caller.stdout.readline().strip())


def test_a_killed_caller_leaves_no_container(docker: Any) -> None:
    caller, owner = other_caller(timeout_s=600.0)
    (container,) = containers(owner)
    eventually(lambda: sleeps(container))
    caller.kill()
    caller.wait()
    eventually(lambda: not containers(owner))


def test_a_caller_that_stands_still_does_not_hold_up_the_deadline(docker: Any) -> None:
    caller, owner = other_caller(timeout_s=3.0)
    (container,) = containers(owner)
    eventually(lambda: sleeps(container))
    caller.send_signal(signal.SIGSTOP)
    eventually(lambda: not sleeps(container))
    caller.kill()
    caller.wait()
    eventually(lambda: not containers(owner))


def test_containers_of_dead_callers_are_swept_and_others_are_not(
    docker: Any, sandbox: DockerSandbox
) -> None:
    sandbox.exec("", LIMITS)
    image = engine.image_of(docker, None)
    labels = engine.labels()
    gone = Path(f"/nowhere/{uuid.uuid4().hex}")
    foreign = {**labels, "mappa.machine": "another", "mappa.owner": str(gone)}
    for made in ({**labels, "mappa.owner": str(gone)}, foreign):
        docker.containers.create(image, ["true"], labels=made, network_mode="none")
    engine.sweep(docker)
    (left,) = containers(gone)
    assert left.attrs["Labels"]["mappa.machine"] == "another"
    left.remove(force=True)
    assert sandbox.exec("print(1)", LIMITS).stdout == "1\n"


# --- images -------------------------------------------------------------------------------------


def test_an_image_that_is_missing(docker: Any) -> None:
    name = f"mappa-test-missing-{uuid.uuid4().hex}"
    with pytest.raises(SandboxError, match=f"no image '{name}'; run docker pull {name}"):
        DockerSandbox(name)


def test_an_image_without_python(docker: Any) -> None:
    sandbox = DockerSandbox(engine.image_of(docker, None), preload=())
    with pytest.raises(SandboxError, match=r"cannot start a container of the image .*python3"):
        sandbox.exec("", LIMITS)
    sandbox.close()


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image with this interpreter, its standard library and what they are linked to."""
    if reason_without_docker():
        pytest.skip(reason_without_docker())
    library = Path(os.__file__).parent
    python = Path(sys.executable).resolve()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(python, "opt/python/bin/python3")
        archive.add(library, f"opt/python/lib/{library.name}", filter=_of_the_standard_library)
        for path in sorted(_linked_to(python, *library.glob("lib-dynload/*.so"))):
            archive.add(Path(path).resolve(), path.removeprefix("/"))
    repository, tag = "mappa-test-python", uuid.uuid4().hex
    client = engine.connect()
    client.api.import_image_from_data(
        content.getvalue(), repository, tag, changes=["ENV PATH=/opt/python/bin"]
    )
    yield f"{repository}:{tag}"
    client.images.remove(f"{repository}:{tag}")


def _of_the_standard_library(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = ("/site-packages", "/test", "/__pycache__", "/ensurepip", "/idlelib", "/config-")
    return None if any(name in entry.name for name in left_out) else entry


def _linked_to(*binaries: Path) -> set[str]:
    command = ["ldd", *map(str, binaries)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {word for word in lines.split() if word.startswith("/") and not word.endswith(":")}


def test_an_image_of_ones_own(image: str) -> None:
    sandbox = DockerSandbox(image)
    source = "import os, sys\nprint(sys.prefix, os.path.exists('/usr/bin'), 6 * 7)"
    assert sandbox.exec(source, LIMITS).stdout == "/opt/python False 42\n"
    sandbox.close()


# --- in an environment --------------------------------------------------------------------------


def test_the_table_of_make(docker: Any) -> None:
    env = make_pipeline("mathchat", sandbox={"level": "docker", "preload": ["colorsys"]})
    env.close()
