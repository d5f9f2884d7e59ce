"""The system calls that Python does not offer."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from typing import Any, Final

NEW_FILES, NEW_USER, NEW_PIDS, NEW_IPC, NEW_NETWORK, NEW_NAMES = (
    0x00020000,
    0x10000000,
    0x20000000,
    0x08000000,
    0x40000000,
    0x04000000,
)
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000
DEATH_SIGNAL, DUMPABLE, NAME, SECCOMP, SUBREAPER, NO_NEW_PRIVILEGES = 1, 4, 15, 22, 36, 38

_SYS_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_SYS_MOUNT_SETATTR, _SYS_LANDLOCK = 442, 444  # the same on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_DETACH: Final = 2
_SECCOMP_MODE_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_linux = sys.platform == "linux"


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library.

    Raises:
        OSError: it failed, or this system has no such function.
    """
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(f"{name} is not available on {sys.platform}")
    result: int = function(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name} failed: {os.strerror(code)}")
    return result


def system_call(what: str, number: int, *arguments: Any) -> int:
    """Make a system call that the C library may not wrap; `what` names it in errors."""
    try:
        return call("syscall", ctypes.c_long(number), *arguments)
    except OSError as error:
        raise OSError(error.errno, f"{what} failed: {os.strerror(error.errno or 0)}") from None


def process_control(option: int, value: int | ctypes.c_void_p, second: Any = None) -> None:
    """Call `prctl`; elsewhere than on Linux there is nothing to do."""
    if not _linux:
        return
    first = ctypes.c_ulong(value) if isinstance(value, int) else value
    unused = ctypes.c_ulong(0)
    call("prctl", option, first, second if second is not None else unused, unused, unused)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system, or change the mount at `target`."""
    data = options.encode() if options else None
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data)


def change_mount(path: str, *, add: int = 0, remove: int = 0, recursive: bool = False) -> None:
    """Add and remove attributes of a mount, or of all mounts below a path."""
    attributes = (ctypes.c_uint64 * 4)(add, remove, 0, 0)
    flags = ctypes.c_uint(_AT_RECURSIVE if recursive else 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    system_call(
        "mount_setattr",
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        path.encode(),
        flags,
        attributes,
        size,
    )


def unmount(path: str) -> None:
    """Take a mount away at once, with all below it."""
    call("umount2", path.encode(), _DETACH)


def change_root(path: str) -> None:
    """Make the mount at `path` the root, and let go of the old one."""
    machine = os.uname().machine
    if machine not in _SYS_PIVOT_ROOT:
        raise OSError(f"no view of the files can be built on {machine}")
    os.chdir(path)
    system_call("pivot_root", _SYS_PIVOT_ROOT[machine], b".", b".")
    unmount(".")
    os.chdir("/")


def leave_namespaces(flags: int) -> None:
    """Get new namespaces; with a new user namespace, keep the own user and group in it."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", flags)
    if flags & NEW_USER:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def drop_capabilities() -> None:
    """Give up every capability, for good."""
    if _linux:
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        call("capset", header, (ctypes.c_uint32 * 6)())
    process_control(NO_NEW_PRIVILEGES, 1)


def filter_system_calls(program: bytes) -> None:
    """Have the kernel check every system call from now on with a BPF program."""
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    )
    address = ctypes.c_void_p(ctypes.addressof(header))
    process_control(SECCOMP, _SECCOMP_MODE_FILTER, address)


def flush_streams() -> None:
    """Write out what C libraries have buffered."""
    call("fflush", None)


def lower_limit(which: int, value: int) -> None:
    """Set a resource limit, soft and hard, unless it is lower already."""
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def landlock(operation: int, *arguments: Any) -> int:
    """Make one of the three Landlock calls: 0 creates a ruleset, 1 adds a rule, 2 applies it."""
    names = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")
    return system_call(names[operation], _SYS_LANDLOCK + operation, *arguments)
