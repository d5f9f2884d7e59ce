"""What an environment finds out about the workspace itself, by programs of its own.

A probe runs in the sandbox, beside what agents wrote, and is undone. Where it loads a pickle it
runs the code of the agent that wrote it, which may tell it anything: facts are good for feedback
and for a coach, and no proof against an agent that sets out to deceive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mappa_envs.probes.tables import probe_tables
from mappa_envs.sandbox.protocol import Limits, Sandbox
from mappa_envs.types import Task

Probe = Callable[[Sandbox, Limits, Task], Mapping[str, Any]]
"""Returns what it found, as plain data; the workspace is as before."""

PROBES: Mapping[str, Probe] = {"tables": probe_tables}
