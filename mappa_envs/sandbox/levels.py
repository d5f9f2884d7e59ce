"""What each level of local isolation consists of, and which of them this machine can give."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.filters import system_call_filter
from mappa_envs.sandbox.jail import landlock
from mappa_envs.sandbox.jail.worker import Jail
from mappa_envs.sandbox.scratch import scratch_folder

logger = logging.getLogger(__name__)

LocalLevel = Literal["namespace", "landlock", "process"]

_SYSTEM: Final = (
    *("/bin", "/lib", "/lib32", "/lib64", "/sbin", "/usr"),
    *("/etc/alternatives", "/etc/fonts", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types"),
)


def jail_for(level: LocalLevel, hidden: tuple[str, ...] = ()) -> Jail:
    """Return what workers of a level are held by.

    Args:
        level: What must hold.
        hidden: Folders of this machine, by their real paths, of which programs see nothing.

    Raises:
        SandboxError: something that the level needs is missing.
    """
    user = ("user",) if os.geteuid() == 0 and level != "process" else ()
    isolation: dict[LocalLevel, tuple[str, ...]] = {
        "namespace": ("files", "network", "pids", "filter", *user),
        "landlock": ("landlock", "filter", *user),
        "process": (),
    }
    return Jail(
        isolation=isolation[level],
        visible=tuple(visible()),
        hidden=hidden,
        workspaces=str(scratch_folder()),
        filter=_filter(level),
    )


def _filter(level: LocalLevel) -> bytes:
    if level == "process":
        return b""
    if level == "namespace":
        return system_call_filter(paths=False, own_signals=False)
    try:
        abi = landlock.supported_abi()
    except OSError as error:
        raise SandboxError(f"the kernel has no Landlock: {error}") from error
    return system_call_filter(paths=True, own_signals=abi < landlock.SIGNALS_ABI)


def visible() -> Iterator[str]:
    """Yield what Python needs to see of the host, no path inside another."""
    shown: list[Path] = []
    for name in (*_SYSTEM, *sorted({sys.base_prefix, sys.prefix})):
        path = Path(name)
        if path.exists() and not any(path.is_relative_to(other) for other in shown):
            shown.append(path)
            yield str(path)
