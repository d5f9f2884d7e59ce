"""Runs a command that ends when the process that started it does, however that ends.

    python guard.py FOLDER COMMAND ...

The guard's standard input is a pipe whose other end the starting process holds. When that closes,
because it was closed or its process died, even of SIGKILL, the command and everything that it
started are ended, and FOLDER is deleted. It needs nothing but the standard library.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

GRACE_S = 10.0
"""Between asking a command to end and ending it."""


def main(folder: str, command: Sequence[str]) -> int:
    """Run the command and return its exit code; 128 and the number of a signal that ended it."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    closed = threading.Event()
    watch = threading.Thread(target=_end_with_stdin, args=(child, folder, closed), daemon=True)
    watch.start()
    code = child.wait()
    if closed.is_set():
        watch.join()  # it ends this process
    return code if code >= 0 else 128 - code


def _end_with_stdin(child: subprocess.Popen[bytes], folder: str, closed: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    closed.set()
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # what is left of the group, this process with it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
