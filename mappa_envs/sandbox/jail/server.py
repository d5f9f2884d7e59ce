"""The process that holds the heavy imports and forks workers from them.

It is started with nothing of its caller's: no environment beyond a fixed list, no descriptors
but the two it is given, no data but the jail. It imports and never computes, since threads that a
library starts here would be missing in its forks.

Each request on the control socket carries a number, four descriptors (`worker.Channels`) and the
cgroups to join; the answer carries the number and a descriptor of the worker's launcher.
"""

from __future__ import annotations

import gc
import importlib
import marshal
import os
import selectors
import socket
import sys
from contextlib import suppress

from .worker import Channels, Jail, work

_MESSAGE_BYTES = 1 << 16


def main(control: int, caller: int) -> None:
    """Serve until the caller is gone; what returns is a worker's program.

    Args:
        control: A `SOCK_SEQPACKET` socket; its first message holds the jail and the imports.
        caller: A pidfd of the caller.
    """
    with socket.socket(fileno=control) as channel:
        config = marshal.loads(channel.recv(_MESSAGE_BYTES))
        jail = Jail(**config["jail"])
        import_all(config["preload"])
        while _is_wanted(channel, caller):
            message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 4)
            if not message:
                break
            number, cgroups = marshal.loads(message)
            launcher = os.fork()
            if not launcher:
                channel.close()
                os.close(caller)
                work(jail, Channels(*descriptors), cgroups)
                return
            for descriptor in descriptors:
                os.close(descriptor)
            handle = os.pidfd_open(launcher)  # even if it has ended, it is not reaped yet
            socket.send_fds(channel, [b"%d" % number], [handle])
            os.close(handle)
            _reap()
    os._exit(0)


def import_all(names: list[str]) -> None:
    """Import modules, where they are installed, for good."""
    gc.disable()  # a fifth of the time went into looking through what stays
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


def _reap() -> None:
    """Let go of the workers that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _is_wanted(channel: socket.socket, caller: int) -> bool:
    """Wait for a request; False when the caller has ended instead."""
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        selector.register(caller, selectors.EVENT_READ)
        return not any(key.fileobj == caller for key, _ in selector.select())


def start() -> None:
    """Serve with the descriptors named on the command line."""
    main(int(sys.argv[1]), int(sys.argv[2]))
