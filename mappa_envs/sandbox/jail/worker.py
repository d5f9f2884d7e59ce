"""One worker: it makes its jail ahead of need, waits for a program, and runs it.

It consists of up to three processes:

    launcher      enters the namespaces; kills what is below it on SIGTERM
    └── init      PID 1 of the new PID namespace, so all below dies with it
        └── program   waits for a job, gives up its privileges and runs the agent's code

Without a PID namespace the launcher itself takes init's place: orphans become its children
(child subreaper) and it sweeps them when the program has ended.

Two lines go back on the status descriptor: `started`, or `error <why>`; then
`exit <status> <0 or 1: an uncaught MemoryError>`.
"""

from __future__ import annotations

import marshal
import mmap
import os
import resource
import signal
import sys
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from . import kernel, landlock, processes, program, view

OPEN_FILES: Final = 256
"""Descriptors a process of the program may have."""
PID_PLACEHOLDER: Final = 0x7ADA7ADA
"""Stands in the system call filter for the program's own process id."""
_NAMESPACES: Final = {
    "files": kernel.NEW_FILES | kernel.NEW_NAMES,
    "network": kernel.NEW_NETWORK,
    "pids": kernel.NEW_PIDS | kernel.NEW_IPC,
}
_HARMLESS_SYSTEM_FILES: Final = (
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
)
_DEVICES: Final = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))


@dataclass(frozen=True)
class Jail:
    """What holds for every worker."""

    isolation: tuple[str, ...]
    """Of `files`, `network`, `pids` (namespaces), `landlock`, `filter`, `user`."""
    visible: tuple[str, ...]
    """What programs see of the host."""
    hidden: tuple[str, ...]
    """Folders in that of which they see nothing."""
    workspaces: str
    """The folder that holds the workspaces."""
    filter: bytes
    """A BPF program that checks system calls."""

    def has(self, name: str) -> bool:
        """Whether a kind of isolation holds."""
        return name in self.isolation


@dataclass(frozen=True)
class Channels:
    """The descriptors of one worker."""

    job: int
    stdout: int
    stderr: int
    status: int


def work(jail: Jail, channels: Channels, cgroups: list[str]) -> NoReturn:
    """Be a worker, to its end."""
    memory_error = mmap.mmap(-1, 1)
    try:
        _launch(jail, channels, cgroups, memory_error)
        job = _read_job(channels.job)
        _confine(jail, job)
    except OSError as error:
        os.write(channels.status, f"error {error}\n".encode(errors="replace"))
        os._exit(1)
    _connect(channels)
    program.seed_generators(job["seed"])
    os.environ.update(job["environment"])
    os.write(channels.status, b"started\n")
    os.close(channels.status)
    program.run(job["source"], memory_error)


def _launch(jail: Jail, channels: Channels, cgroups: list[str], memory_error: mmap.mmap) -> None:
    """Make the jail and return in the process that is to become the program."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    kernel.process_control(kernel.DEATH_SIGNAL, signal.SIGTERM)
    os.umask(0o022)
    for folder in cgroups:
        with open(f"{folder}/cgroup.procs", "w") as members:
            members.write("0")
    _enter_namespaces(jail)
    if jail.has("pids") and (init := processes.fork()):
        _close(channels.job, channels.stdout, channels.stderr)
        processes.wait_for(init)
        os._exit(0)
    kernel.process_control(kernel.SUBREAPER, 1)
    if jail.has("files"):
        view.build(f"{jail.workspaces}/root", jail.visible, jail.hidden, jail.workspaces)
    if child := processes.fork():
        _close(channels.job, channels.stdout, channels.stderr)
        exit_code = processes.wait_for(child)
        if not jail.has("pids"):
            processes.sweep(child)
        os.write(channels.status, f"exit {exit_code} {memory_error[0]}\n".encode())
        os._exit(0)


def _enter_namespaces(jail: Jail) -> None:
    flags = 0
    for name in jail.isolation:
        flags |= _NAMESPACES.get(name, 0)
    if flags:
        kernel.leave_namespaces(flags | (kernel.NEW_USER if os.geteuid() else 0))


def _read_job(channel: int) -> dict[str, Any]:
    with open(channel, "rb") as file:
        content = file.read()
    if not content:  # nobody needs this worker any more
        os._exit(0)
    job: dict[str, Any] = marshal.loads(content)
    return job


def _confine(jail: Jail, job: dict[str, Any]) -> None:
    """Give up every privilege and set the limits; what follows is the agent's."""
    os.setsid()
    processes_before = 0
    if jail.has("files"):
        view.enter_workspace(job["workspace"], job["file_bytes"])
    else:
        os.chdir(job["home"])
        processes_before = 0 if jail.has("user") else processes.number_of(os.getuid())
    if jail.has("user"):
        _become(job["uid"])
    kernel.drop_capabilities()
    kernel.process_control(kernel.DEATH_SIGNAL, signal.SIGKILL)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_AS, job["memory_bytes"]),
        (resource.RLIMIT_FSIZE, job["file_bytes"]),
        (resource.RLIMIT_NPROC, processes_before + job["processes"]),
    ):
        kernel.lower_limit(limit, value)
    if jail.has("landlock"):
        seen = landlock.around(jail.visible, jail.hidden)
        look = (*seen, *_HARMLESS_SYSTEM_FILES, f"/proc/{os.getpid()}")
        change = (*job["writable"], *_DEVICES)
        landlock.restrict(list_only=jail.visible, look=look, change=change)
    if jail.has("filter"):
        pid = os.getpid().to_bytes(4, sys.byteorder)
        own = jail.filter.replace(PID_PLACEHOLDER.to_bytes(4, sys.byteorder), pid)
        kernel.filter_system_calls(own)


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    kernel.process_control(kernel.DUMPABLE, 1)  # the change of user closed /proc/self to it
    for path in (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__)):
        if not os.access(path, os.R_OK | os.X_OK):
            raise PermissionError(f"an unprivileged user cannot read the interpreter at {path}")


def _connect(channels: Channels) -> None:
    """Give the program its streams: an empty input, and the caller's pipes."""
    empty = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((empty, 0), (channels.stdout, 1), (channels.stderr, 2)):
        os.dup2(source, target)
    _close(empty, channels.stdout, channels.stderr)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
