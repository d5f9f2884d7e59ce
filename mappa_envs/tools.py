"""What agents can call. Each tool turns a call into a result, whatever the agent wrote."""

from __future__ import annotations

from collections.abc import Callable

from mappa_envs.sandbox.protocol import ExecResult, Limits, Sandbox
from mappa_envs.types import ToolCall, ToolResult


def run_python(call: ToolCall, sandbox: Sandbox, limits: Limits) -> ToolResult:
    """Run `call.source` as one Python program in `sandbox`.

    Raises:
        SandboxError: the sandbox itself is dead.
    """
    result = sandbox.exec(call.source, limits)
    return ToolResult(
        call=call,
        output=_shown(result, limits),
        stdout=result.stdout,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
    )


TOOLS: dict[str, Callable[[ToolCall, Sandbox, Limits], ToolResult]] = {"python": run_python}


def _shown(result: ExecResult, limits: Limits) -> str:
    parts = [part.rstrip("\n") for part in (result.stdout, result.stderr) if part.strip()]
    stopped = {
        "wall_clock": f"[stopped: it ran longer than {limits.timeout_s:g} s]",
        "output": f"[stopped: it wrote more than {limits.total_output_bytes} bytes]",
        "memory": f"[stopped: it needed more than {limits.memory_bytes} bytes of memory]",
    }
    if result.limit_hit is not None:
        parts.append(stopped[result.limit_hit])
    return "\n".join(parts) if parts else "[nothing was printed]"
