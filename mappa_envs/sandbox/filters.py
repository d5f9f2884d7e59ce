"""Which system calls programs may not make: the kernel's doors that no agent code needs."""

from __future__ import annotations

import errno
import functools
import struct
import tempfile
from typing import Any

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.jail.worker import PID_PLACEHOLDER

_FORBIDDEN = (
    # other roots, mounts and namespaces
    *("chroot", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr"),
    *("move_mount", "open_tree", "pivot_root", "setns", "umount2", "unshare"),
    # other processes' memory and descriptors
    *("kcmp", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace"),
    # the machine
    *("acct", "adjtimex", "clock_adjtime", "clock_settime", "delete_module", "finit_module"),
    *("init_module", "ioperm", "iopl", "kexec_file_load", "kexec_load", "quotactl"),
    *("quotactl_fd", "reboot", "sethostname", "setdomainname", "settimeofday", "swapoff", "swapon"),
    *("syslog", "vhangup", "personality"),
    # where most of the kernel's holes were
    *("add_key", "bpf", "io_uring_enter", "io_uring_register", "io_uring_setup", "keyctl"),
    *("name_to_handle_at", "open_by_handle_at", "perf_event_open", "request_key", "userfaultfd"),
    *("fanotify_init", "lookup_dcookie", "modify_ldt", "vmsplice"),
    # memory that no limit of a process counts
    *("memfd_create", "memfd_secret"),
    # what outlives the program, and what of that other programs have
    *("mq_open", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget"),
    *("semop", "semtimedop", "shmat", "shmctl", "shmget"),
    # what Landlock leaves open of other users' and programs' things
    *("fsetxattr", "lsetxattr", "setxattr", "fremovexattr", "lremovexattr", "removexattr"),
    *("mknod", "mknodat"),
)
_NEW_NAMESPACE_FLAGS = (
    0x20000,
    0x2000000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_FIRST_UNREVIEWED = 450
"""What the kernel has got since then does not exist for programs; numbers are the same on all
architectures from 424 on."""
_CHANGE_OF_OWNER = ("chown", "fchown", "fchownat", "lchown")
_CHANGE_OF_ATTRIBUTES = (
    *("chmod", "fchmod", "fchmodat", "futimesat", "utime", "utimensat", "utimes"),
)
_WATCH = ("inotify_init", "inotify_init1")
_CHANGE_OF_FLAGS = (0x40086602, 0x401C5820, 0x40806685)
"""FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_ENABLE_VERITY: they need no more than reading."""
_SIGNAL = ("kill", "tgkill", "tkill", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
_SCHEDULING = ("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")
_ITSELF = 0
"""Stands for the calling process in calls that take a process."""
_NO_NEW_LIMIT = 0
_LOCAL_SOCKETS = 1  # AF_UNIX
_SOCKETS_FOR_ANY_PEER = (2, 3)  # SOCK_DGRAM, SOCK_RAW
_FILE_OWNERS = (("fcntl", 8), ("fcntl", 15), ("ioctl", 0x8901), ("ioctl", 0x8902))
"""F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP: whom the kernel signals when a file is ready."""
_TERMINAL_INPUT = 0x5412  # TIOCSTI
_UNKNOWN = -1
_REFUSE_UNREVIEWED = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x20, 0, 0, 0),  # load the number
        (0x35, 0, 1, _FIRST_UNREVIEWED),  # if it is below this, skip one instruction
        (0x06, 0, 0, 0x0005_0000 | errno.ENOSYS),  # return SECCOMP_RET_ERRNO
    )
)


@functools.cache
def system_call_filter(*, paths: bool, own_signals: bool) -> bytes:
    """Return the filter as a BPF program.

    Args:
        paths: The program still sees the host's files (`landlock`): ignore changes of mode and
            times, refuse those of owners, watching folders, and sockets, whose paths and UDP
            Landlock does not check; of pairs of sockets, those that could send to others.
        own_signals: Let the program signal no process but itself; its id is to be put in place
            of `PID_PLACEHOLDER`.

    Raises:
        SandboxError: libseccomp is missing or too old.
    """
    try:
        import pyseccomp  # type: ignore[import-untyped] # it loads the C library
    except (OSError, RuntimeError, AttributeError) as error:
        raise SandboxError(f"libseccomp cannot be used: {error}; install libseccomp2") from error
    rules = _Rules(pyseccomp)
    refused = pyseccomp.ERRNO(errno.EPERM)
    for name in _FORBIDDEN:
        rules.add(refused, name)
    rules.add(pyseccomp.ERRNO(errno.ENOSYS), "clone3")  # its flags are out of sight; try `clone`
    for flag in _NEW_NAMESPACE_FLAGS:
        rules.add(refused, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    terminal_input = pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFF_FFFF, _TERMINAL_INPUT)
    rules.add(refused, "ioctl", terminal_input)
    for request in _CHANGE_OF_FLAGS:
        rules.add(refused, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFF_FFFF, request))
    if paths:
        for name in _CHANGE_OF_OWNER:
            rules.add(refused, name)
        for name in _CHANGE_OF_ATTRIBUTES:
            rules.add(pyseccomp.ERRNO(0), name)
        for name in _WATCH:
            rules.add(refused, name)
        rules.add(refused, "socket")
        for kind in _SOCKETS_FOR_ANY_PEER:
            rules.add(refused, "socketpair", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xF, kind))
    else:
        rules.add(refused, "socket", pyseccomp.Arg(0, pyseccomp.NE, _LOCAL_SOCKETS))
    other = pyseccomp.Arg(0, pyseccomp.NE, _ITSELF)
    for name in _SCHEDULING:
        rules.add(refused, name, other)
    rules.add(refused, "prlimit64", other, pyseccomp.Arg(2, pyseccomp.NE, _NO_NEW_LIMIT))
    for name, one_process in (("setpriority", 0), ("ioprio_set", 1)):
        rules.add(refused, name, pyseccomp.Arg(0, pyseccomp.NE, one_process))
        rules.add(refused, name, pyseccomp.Arg(1, pyseccomp.NE, _ITSELF))
    if own_signals:
        for name in _SIGNAL:
            rules.add(refused, name, pyseccomp.Arg(0, pyseccomp.NE, PID_PLACEHOLDER))
        for name, request in _FILE_OWNERS:
            value = pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFF_FFFF, request)
            rules.add(refused, name, value)
    return rules.program()


class _Rules:
    """A filter that allows what no rule refuses."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._filter = library.SyscallFilter(library.ALLOW)

    def add(self, action: int, name: str, *conditions: Any) -> None:
        if self._library.resolve_syscall(self._library.Arch.NATIVE, name) == _UNKNOWN:
            raise SandboxError(
                f"libseccomp does not know the system call {name!r}; 2.5.3 or newer is needed"
            )
        self._filter.add_rule(action, name, *conditions)

    def program(self) -> bytes:
        """Return the rules, after one that looks at the number alone."""
        with tempfile.TemporaryFile() as file:
            self._filter.export_bpf(file)
            file.seek(0)
            return _REFUSE_UNREVIEWED + file.read()
