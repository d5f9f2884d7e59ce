"""The agent's code, run as `__main__` in a process that has given up everything else."""

from __future__ import annotations

import _thread
import linecache
import mmap
import os
import random
import sys
import tempfile
import types
from typing import Any

FILENAME = "<action>"
"""The file name the agent's code has in its tracebacks."""

_RUNNER = os.path.dirname(__file__)


def seed_generators(seed: int) -> None:
    """Give the program's global random generators a state of their own."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def run(source: str, memory_error: mmap.mmap) -> None:
    """Run `source`; exceptions and `SystemExit` take Python's own way out.

    Args:
        source: The program.
        memory_error: One shared byte, set to 1 by an uncaught `MemoryError`.
    """

    def show_uncaught(
        kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
    ) -> None:
        memory_error[0] = issubclass(kind, MemoryError)
        _show(kind, error, trace)

    sys.excepthook = show_uncaught
    setattr(_thread, "_excepthook", _show_in_thread)  # noqa: B010 - unknown to type checkers
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a kill loses no line
    lines = source.splitlines(keepends=True)
    linecache.cache[FILENAME] = (len(source), None, lines, FILENAME)
    tempfile.tempdir = None
    sys.path.insert(0, os.getcwd())
    sys.argv = [FILENAME]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(source, FILENAME, "exec", dont_inherit=True), module.__dict__)


def _show(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Print a traceback without the runner's frames and without paths of the host."""
    import traceback

    while trace and _is_runner(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    report = traceback.TracebackException(kind, error, trace)
    pending: list[traceback.TracebackException | None] = [report]
    while pending:
        part = pending.pop()
        if part is None:
            continue
        for frame in part.stack:
            frame.filename = _shorten(frame.filename)
        if getattr(part, "filename", None):  # of a SyntaxError
            part.filename = _shorten(part.filename)
        pending += [part.__cause__, part.__context__, *(part.exceptions or ())]
    print("".join(report.format()), end="", file=sys.stderr)  # noqa: T201


def _is_runner(filename: str) -> bool:
    return filename == "<string>" or os.path.dirname(filename) == _RUNNER


def _show_in_thread(details: Any) -> None:
    if details.exc_type is not SystemExit:
        name = details.thread.name if details.thread else _thread.get_ident()
        print(f"Exception in thread {name}:", file=sys.stderr)  # noqa: T201
        _show(details.exc_type, details.exc_value, details.exc_traceback)


def _shorten(filename: str) -> str:
    folders = [f"{folder.rstrip('/')}/" for folder in sys.path if folder]
    inside = [folder for folder in folders if filename.startswith(folder)]
    return filename.removeprefix(max(inside, key=len, default=""))
