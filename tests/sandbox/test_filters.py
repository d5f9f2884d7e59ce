"""The filter on system calls; part of it stands in for Landlock on kernels before 6.12."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import Limits, LocalSandbox, check_level, levels
from mappa_envs.sandbox.filters import system_call_filter
from mappa_envs.sandbox.jail import landlock
from mappa_envs.sandbox.jail.worker import PID_PLACEHOLDER
from mappa_envs.sandbox.levels import LocalLevel

LIMITS = Limits(timeout_s=20.0)


@pytest.fixture
def old_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSandbox]:
    """A sandbox as it is on a kernel whose Landlock knows no signals."""
    try:
        check_level("landlock", ())
    except SandboxError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(levels.landlock, "supported_abi", lambda: 4)
    sandbox = LocalSandbox("landlock", preload=())
    yield sandbox
    sandbox.close()


def test_the_filter_names_the_process_only_when_asked_to() -> None:
    placeholder = PID_PLACEHOLDER.to_bytes(4, "little")
    with_signals = system_call_filter(paths=True, own_signals=True)
    without = system_call_filter(paths=True, own_signals=False)
    assert placeholder in with_signals
    assert placeholder not in without
    assert len(without) % 8 == len(with_signals) % 8 == 0


@pytest.mark.parametrize(
    ("source", "exit_code"),
    [
        ("import os; os.abort()", -6),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import os, signal; signal.raise_signal(signal.SIGUSR1)", -10),
    ],
)
def test_a_program_may_signal_itself(old_kernel: LocalSandbox, source: str, exit_code: int) -> None:
    assert old_kernel.exec(source, LIMITS).exit_code == exit_code


@pytest.mark.parametrize(
    "send",
    [
        "os.kill(os.getppid(), 0)",
        "os.kill(1, 0)",
        "os.kill(0, 0)",
        "os.kill(-1, 0)",
        "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)",
    ],
)
def test_and_nobody_else(old_kernel: LocalSandbox, send: str) -> None:
    result = old_kernel.exec(
        f"import os, signal\ntry:\n    {send}\nexcept PermissionError:\n    print('refused')",
        LIMITS,
    )
    assert (result.exit_code, result.stdout) == (0, "refused\n")


def test_a_kernel_without_signals_is_told_from_one_with_them() -> None:
    assert (landlock.OLDEST_ABI, landlock.SIGNALS_ABI) == (3, 6)


@pytest.mark.parametrize("level", ["namespace", "landlock"])
@pytest.mark.parametrize(
    "call",
    [
        "resource.prlimit(other, resource.RLIMIT_CPU, (1, 1))",
        "os.setpriority(os.PRIO_PROCESS, other, 19)",
        "os.setpriority(os.PRIO_USER, os.getuid(), 19)",
        "os.sched_setscheduler(other, os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_setaffinity(other, {0})",
        "check(libc.shmget(0, 4096, 0o1600))",
        "check(libc.msgget(0, 0o1600))",
    ],
)
def test_other_processes_keep_what_they_have(level: LocalLevel, call: str) -> None:
    try:
        check_level(level, ())
    except SandboxError as error:
        pytest.skip(str(error))
    sandbox = LocalSandbox(level, preload=())
    result = sandbox.exec(
        f"""
import ctypes, os, resource, time
libc = ctypes.CDLL(None, use_errno=True)
def check(returned):
    if returned < 0:
        raise OSError(ctypes.get_errno(), "refused")
other = os.fork()
if not other:
    time.sleep(60)
try:
    {call}
except PermissionError:
    print("refused")
""",
        LIMITS,
    )
    sandbox.close()
    assert (result.exit_code, result.stdout, result.stderr) == (0, "refused\n", "")


def test_a_program_may_change_itself() -> None:
    sandbox = LocalSandbox(preload=())
    source = (
        "import os, resource\nos.nice(1)\nos.sched_setaffinity(0, os.sched_getaffinity(0))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n"
        "print(resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE))"
    )
    assert sandbox.exec(source, LIMITS).stdout == "(32, 32)\n"
    sandbox.close()
