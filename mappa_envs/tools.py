"""What agents can call. Each tool turns a call into a result, whatever the agent wrote."""

from __future__ import annotations

from collections.abc import Callable

from mappa_envs.sandbox.protocol import Actor, ExecResult, Limit, Limits, Sandbox
from mappa_envs.types import ToolCall, ToolResult

_NAMES_SHOWN = 5


def run_python(call: ToolCall, sandbox: Sandbox, limits: Limits, actor: Actor) -> ToolResult:
    """Run `call.source` as one Python program in `sandbox`, on behalf of `actor`.

    Raises:
        SandboxError: the sandbox itself is dead.
    """
    result = sandbox.exec(call.source, limits, actor)
    return ToolResult(
        call=call,
        output=_shown(result, limits),
        stdout=result.stdout,
        exit_code=result.exit_code,
        limit_hit=result.limit_hit,
        files=result.files,
    )


TOOLS: dict[str, Callable[[ToolCall, Sandbox, Limits, Actor], ToolResult]] = {"python": run_python}


def _shown(result: ExecResult, limits: Limits) -> str:
    parts = [part.rstrip("\n") for part in (result.stdout, result.stderr) if part.strip()]
    stopped: dict[Limit, str] = {
        "wall_clock": f"[stopped: it ran longer than {limits.timeout_s:g} s]",
        "cpu": "[stopped: it used up its processor time]",
        "output": f"[stopped: it wrote more than {limits.total_output_bytes} bytes]",
        "memory": f"[stopped: it needed more than {limits.memory_bytes} bytes of memory]",
        "files": f"[stopped: it left more than {limits.workspace_files} files, "
        f"{limits.workspace_bytes} bytes, or {limits.file_bytes} bytes in one file; the files are "
        "as they were before]",
    }
    if result.limit_hit is not None:
        parts.append(stopped[result.limit_hit])
    if result.files.restored:
        parts.append(f"[put back, for it is not yours to change: {_names(result.files.restored)}]")
    if gone := tuple(path for path in result.files.removed if path not in result.files.restored):
        parts.append(f"[removed, for only plain files with one name may stay: {_names(gone)}]")
    return "\n".join(parts) if parts else "[nothing was printed]"


def _names(paths: tuple[str, ...]) -> str:
    shown = ", ".join(paths[:_NAMES_SHOWN])
    more = len(paths) - _NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
