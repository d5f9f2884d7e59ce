"""What every sandbox does: four verbs, and what each does when something fails."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, Protocol, runtime_checkable

Limit = Literal["wall_clock", "output", "memory"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one execution and on the workspace."""

    timeout_s: float = 10.0
    """Wall-clock deadline of one execution."""
    memory_bytes: int = 1 << 30
    """Address space of each process."""
    output_bytes: int = 20_000
    """Bytes kept of each stream, head and tail; what lies between is cut with a mark."""
    total_output_bytes: int = 10_000_000
    """Bytes a program may write to its streams before it is killed."""
    file_bytes: int = 100_000_000
    """Largest file a program may write."""
    processes: int = 64
    """Processes and threads of one execution, where the kernel can count them."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise ValueError(f"{field.name} is {value}; a limit is a number above 0")


@dataclass(frozen=True, slots=True)
class ExecResult:
    r"""How one execution ended, e.g. `ExecResult(0, "5\n", "", None)`.

    A failing, crashing or timed-out program is a result, never an exception.
    """

    exit_code: int
    """The exit status; negative is the signal that ended the program."""
    stdout: str
    """Decoded with replacement, bounded, with a mark that says how many bytes were cut."""
    stderr: str
    limit_hit: Limit | None
    """The limit that ended the program, or None."""

    @property
    def timed_out(self) -> bool:
        """Whether the wall-clock deadline ended the program."""
        return self.limit_hit == "wall_clock"


@runtime_checkable
class Sandbox(Protocol):
    """A private workspace in which hostile Python code may run.

    The workspace's files outlive an execution; processes do not. Implementations state in their
    docstring what they do *not* protect against.
    """

    def exec(self, source: str, limits: Limits) -> ExecResult:
        """Run Python `source` in the workspace, to its end or to its first limit.

        Never raises for anything the program does. After it returns no process of the program
        is left.

        Raises:
            SandboxError: the sandbox is closed, or could not start the program at all.
        """
        ...

    def read_file(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a regular file of the workspace.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: `name` leaves the workspace, is no regular file, or is over `max_bytes`.
            SandboxError: the sandbox is closed.
        """
        ...

    def write_file(self, name: str, content: bytes) -> None:
        """Create or replace a file of the workspace.

        Raises:
            ValueError: `name` leaves the workspace.
            SandboxError: the sandbox is closed.
        """
        ...

    def close(self) -> None:
        """End every process and delete the workspace; a second call does nothing."""
        ...
