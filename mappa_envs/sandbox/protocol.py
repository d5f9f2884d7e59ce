"""What every sandbox does: its verbs, its records, and what each verb does when something fails."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Literal, Protocol, runtime_checkable

Level = Literal["docker", "namespace", "landlock", "process"]
"""How programs are held, strongest first; `SECURITY.md` says what each promises."""
Limit = Literal["wall_clock", "cpu", "output", "memory", "files"]
_LARGEST = 2**62
_LEAST_MEMORY = 64_000_000
"""Bytes: a bare interpreter takes some 20 million, and a little more is needed to do anything."""
TASK_AUTHOR = "task"
"""The author of files that the task laid into the workspace."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one execution and on the workspace."""

    timeout_s: float = 10.0
    """Wall-clock deadline of one execution."""
    memory_bytes: int = 1 << 30
    """Address space of each process; where a cgroup can be had, also the memory of them all.

    It is 64 million at least. Programs begin with what their sandbox has imported for them: some
    400 million with the modules that it imports by itself.
    """
    output_bytes: int = 20_000
    """Bytes kept of each stream, head and tail; what lies between is cut with a mark."""
    total_output_bytes: int = 10_000_000
    """Bytes a program may write to its streams before it is killed."""
    file_bytes: int = 100_000_000
    """Largest file a program may write."""
    workspace_bytes: int = 1_000_000_000
    """Sum of the sizes of the workspace's files."""
    workspace_files: int = 2_000
    """Number of files and folders in the workspace."""
    processes: int = 64
    """Processes and threads of one execution, where the kernel can count them."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            if problem := limit_problem(limit.name, getattr(self, limit.name)):
                raise ValueError(f"{limit.name} {problem}")


def limit_problem(name: str, value: object) -> str | None:
    """Return what is wrong with one of the `Limits`, e.g. `"is -1; ..."`; None if it is fine.

    Args:
        name: The limit's.
        value: What it is to be.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"is {value!r:.80}; a limit is a number above 0"
    if not 0 < value < math.inf:
        return f"is {value}; a limit is a number above 0"
    if name != "timeout_s" and not (isinstance(value, int) and value < _LARGEST):
        return f"is {value}; it must be a whole number below 2**62"
    if name == "memory_bytes" and value < _LEAST_MEMORY:
        return f"is {value}; no program can live with less than {_LEAST_MEMORY} bytes, so give more"
    return None


@dataclass(frozen=True, slots=True)
class Access:
    """Which files of the workspace an action may read, and which it may change.

    Patterns are shell-style, matched against the whole path (`*` crosses folders), e.g.
    `Access(write=("*.pkl",))`. A new file may have any name; one's own files may be changed.
    """

    read: tuple[str, ...] = ("*",)
    """Files that are there for the action; the others are out of its reach while it runs."""
    write: tuple[str, ...] = ("*",)
    """Files of other authors that the action may change or delete."""

    def __post_init__(self) -> None:
        for name, patterns in (("read", self.read), ("write", self.write)):
            if not isinstance(patterns, tuple) or not all(isinstance(p, str) for p in patterns):
                raise ValueError(
                    f"{name} is {patterns!r:.80}; give a tuple of patterns, e.g. ('*.csv',)"
                )

    def may_read(self, path: str) -> bool:
        """Whether a file is there for the action."""
        return any(fnmatchcase(path, pattern) for pattern in self.read)

    def may_change(self, path: str) -> bool:
        """Whether a file of another author may be changed or deleted."""
        return any(fnmatchcase(path, pattern) for pattern in self.write)


@dataclass(frozen=True, slots=True)
class Actor:
    """On whose behalf a program runs."""

    agent: str = "agent"
    """The author of the files that the program leaves."""
    step: int = 0
    """The index of the action in its episode."""
    seed: int = 0
    """Seeds `random` and `numpy.random` in the program."""
    access: Access = Access()


def program_seed(episode_seed: int, agent: str, step: int, call: int) -> int:
    """Return what seeds one program's generators: another for every call of every action."""
    name = f"{episode_seed}/{agent}/{step}/{call}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of the workspace, and who wrote it."""

    path: str
    """Relative to the workspace, with `/` between its parts."""
    size: int
    """In bytes."""
    sha256: str
    """Of the content, in hexadecimal."""
    author: str
    """The agent that last changed the content, or `"task"`."""
    step: int
    """The index of the action that last changed it; -1 for the task's files."""


@dataclass(frozen=True, slots=True)
class FileChanges:
    """What an action did to the workspace; paths are sorted."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    """Files that the action changed or deleted without the right to; they are as before."""
    removed: tuple[str, ...] = ()
    """Links, pipes, sockets, devices and unprintable names that it left; they are gone."""


@dataclass(frozen=True, slots=True)
class Output:
    """The first and the last part of what a program wrote to one stream."""

    head: str
    """Decoded with replacement."""
    tail: str = ""
    """Empty unless something lies between the two."""
    total_bytes: int = 0
    """How many bytes there were."""
    cut_bytes: int = 0
    """How many of them lie between head and tail, and are lost."""

    @property
    def truncated(self) -> bool:
        """Whether bytes were cut."""
        return self.cut_bytes > 0

    @property
    def text(self) -> str:
        """Head and tail, with a mark that says how many bytes were cut between them."""
        if not self.truncated:
            return self.head
        return f"{self.head}\n[... {self.cut_bytes} bytes cut ...]\n{self.tail}"


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How one execution ended.

    A failing, crashing or timed-out program is a result, never an exception.
    """

    exit_code: int = 0
    """The exit status; negative is the signal that ended the program."""
    output: Output = Output("")
    """What the program wrote to its standard output."""
    errors: Output = Output("")
    """What it wrote to its standard error, where tracebacks go."""
    limit_hit: Limit | None = None
    """The limit that ended the program, or None."""
    files: FileChanges = field(default=FileChanges())
    """What became of the workspace."""

    @classmethod
    def of(
        cls,
        stdout: str = "",
        stderr: str = "",
        *,
        exit_code: int = 0,
        limit_hit: Limit | None = None,
    ) -> ExecResult:
        r"""Build the result of a program from whole texts, e.g. `ExecResult.of("5\n")`."""
        output, errors = (Output(text, total_bytes=len(text.encode())) for text in (stdout, stderr))
        return cls(exit_code, output, errors, limit_hit)

    @property
    def stdout(self) -> str:
        """Standard output, bounded, with a mark where bytes were cut."""
        return self.output.text

    @property
    def stderr(self) -> str:
        """Standard error, bounded, with a mark where bytes were cut."""
        return self.errors.text

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended the program, or None."""
        return -self.exit_code if self.exit_code < 0 else None

    @property
    def timed_out(self) -> bool:
        """Whether the wall-clock deadline ended the program."""
        return self.limit_hit == "wall_clock"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a workspace at one moment.

    It outlives the sandbox that took it, and can be restored in any of the same kind, in this
    process.
    """

    files: tuple[FileRecord, ...]
    folders: tuple[str, ...] = ()
    contents: object = field(default=None, compare=False, repr=False)
    """Where the kind of sandbox finds the contents; they are kept while it is referred to."""


@runtime_checkable
class Sandbox(Protocol):
    """A private workspace in which hostile Python code may run.

    The workspace's files outlive an execution; processes do not. One execution runs at a time;
    a second caller waits. Implementations state in their docstring what they do *not* protect
    against.
    """

    @property
    def level(self) -> Level:
        """How programs are held."""
        ...

    def exec(self, source: str, limits: Limits, actor: Actor = Actor()) -> ExecResult:
        """Run Python `source` in the workspace, to its end or to its first limit.

        Never raises for anything the program does. After it returns no process of the program
        is left. A program that leaves more than the workspace may hold has limit `"files"`, and
        the workspace is as before it ran.

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
        """Create or replace a file of the workspace, as its task.

        Raises:
            ValueError: `name` leaves the workspace.
            SandboxError: the sandbox is closed.
        """
        ...

    def manifest(self) -> tuple[FileRecord, ...]:
        """Return the files of the workspace, sorted by path.

        Raises:
            SandboxError: the sandbox is closed.
        """
        ...

    def snapshot(self) -> Snapshot:
        """Remember the workspace as it is.

        Raises:
            SandboxError: the sandbox is closed.
        """
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Bring the workspace to what was remembered, here or by another sandbox.

        Raises:
            ValueError: the snapshot is of another kind of sandbox.
            SandboxError: the sandbox is closed.
        """
        ...

    def close(self) -> None:
        """End every process and delete the workspace; a second call does nothing."""
        ...
