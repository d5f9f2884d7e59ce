"""The agent's code, run as `__main__` in a process that has given up everything else."""

from __future__ import annotations

import atexit
import gc
import io
import linecache
import mmap
import os
import random
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, Final, NoReturn

from . import kernel

FILENAME = "<action>"
"""The file name the agent's code has in its tracebacks."""

_RUNNER: Final = os.path.dirname(__file__)
_LOST_OUTPUT: Final = 120  # as the interpreter says it


def seed_generators(seed: int) -> None:
    """Give the program's global random generators a state of their own."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def run(source: str, memory_error: mmap.mmap) -> NoReturn:
    """Run `source` as a script and end this process as Python would end it.

    What the heavy imports hold is not taken apart at the end, which would take far longer than
    most programs: threads are waited for, exit functions called, the program's own objects
    freed and the streams flushed, and then the process is gone.

    Args:
        source: The program.
        memory_error: One shared byte, set to 1 by an uncaught `MemoryError`.
    """
    _prepare(source, memory_error)
    status = _attempt(lambda: _execute(source))
    for ending in (_end_threads, atexit._run_exitfuncs, _free):
        status = _attempt(ending) or status
    lost = _flush()
    os._exit(status or lost)


def _execute(source: str) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(source, FILENAME, "exec", dont_inherit=True), module.__dict__)


def _end_threads() -> None:
    """Wait for the program's threads, but for daemons, as the interpreter does at its end."""
    threading._shutdown()  # type: ignore[attr-defined]


def _free() -> None:
    """Free the program's objects: files are closed and finalizers called."""
    del sys.modules["__main__"]
    gc.collect()


def _flush() -> int:
    """Write out what is buffered; return the interpreter's status for output that is lost."""
    lost = False
    for stream in (sys.stdout, sys.stderr):
        try:
            if not getattr(stream, "closed", True):
                stream.flush()
        except BaseException:  # the program may have put anything in the stream's place
            lost = True
    kernel.flush_streams()
    return _LOST_OUTPUT if lost else 0


def _attempt(part: Callable[[], None]) -> int:
    """Run a part of the program; return the exit status that it asks for."""
    try:
        part()
    except SystemExit as stop:
        return _wanted(stop.code)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _wanted(code: object) -> int:
    """Return the status for what was given to `sys.exit`."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if abs(code) < 2**63 else 0xFF
    return _attempt(lambda: print(code, file=sys.stderr)) or 1  # noqa: T201


def _prepare(source: str, memory_error: mmap.mmap) -> None:
    """Make this process look like one that was started for the program alone."""

    def show_uncaught(
        kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
    ) -> None:
        memory_error[0] = issubclass(kind, MemoryError)
        _show(kind, error, trace)

    sys.excepthook = show_uncaught
    threading.excepthook = _show_in_thread
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a kill loses no line
    lines = io.StringIO(f"{source}\n", newline=None).readlines()
    linecache.cache[FILENAME] = (len(source), None, lines, FILENAME)
    tempfile.tempdir = None
    sys.path.insert(0, os.getcwd())
    sys.argv = [FILENAME]


def _show(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Print a traceback without the runner's frames and without paths of the host."""
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
        name = details.thread.name if details.thread else threading.get_ident()
        print(f"Exception in thread {name}:", file=sys.stderr)  # noqa: T201
        _show(details.exc_type, details.exc_value, details.exc_traceback)


def _shorten(filename: str) -> str:
    folders = [f"{folder.rstrip('/')}/" for folder in sys.path if folder]
    inside = [folder for folder in folders if filename.startswith(folder)]
    return filename.removeprefix(max(inside, key=len, default=""))
