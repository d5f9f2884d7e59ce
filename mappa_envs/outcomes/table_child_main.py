"""The program of the grading process: `python -m mappa_envs.outcomes.table_child_main`.

It imports what grading needs, then waits on the socket that is its standard input. Each message is
one byte and a socket on which one request comes: a JSON line, the truth, and the submission up to
the end. A fork of this process with limits of its own says that it is there, reads the request,
answers with one JSON line, and is gone. So no submission can influence another, and this process
itself never reads any.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import warnings
from dataclasses import asdict
from typing import Any, NoReturn

from mappa_envs.outcomes.grade import Figures
from mappa_envs.outcomes.grading import Grading
from mappa_envs.outcomes.table_grader import ACCEPTED
from mappa_envs.outcomes.table_judge import check_truth, judge

_OPEN_FILES = 32
"""scikit-learn looks for plug-ins, and imports some of its own modules, at their first use."""
IMPORTED_AHEAD = ("scipy.stats", "sklearn.metrics")


def serve(requests: socket.socket, deadline_s: float, memory_bytes: int) -> None:
    """Fork for each request until the other side is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
        if not message:
            return
        for descriptor in descriptors:
            if os.fork() == 0:
                requests.close()
                _answer(socket.socket(fileno=descriptor), deadline_s, memory_bytes)
            os.close(descriptor)


def _answer(connection: socket.socket, deadline_s: float, memory_bytes: int) -> NoReturn:
    """Answer one request and end this process."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, deadline_s)
        connection.sendall(ACCEPTED)
        _limit(deadline_s, memory_bytes)
        try:
            reply = _reply(_received(connection))
        except MemoryError:
            reply = asdict(Figures("too_large"))
        connection.sendall(json.dumps(reply).encode() + b"\n")
    finally:
        os._exit(0)


def _limit(deadline_s: float, memory_bytes: int) -> None:
    """Let this process write no file, start no other, and use bounded memory and time."""
    seconds = int(deadline_s) + 1
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        lower = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lower, lower))


def _received(connection: socket.socket) -> bytes:
    content = bytearray()
    while chunk := connection.recv(1 << 20):
        content += chunk
    return bytes(content)


def _reply(request: bytes) -> dict[str, Any]:
    start = request.index(b"\n") + 1
    header = json.loads(request[:start])
    middle = start + header["truth_bytes"]
    rule = header["rule"] | {key: tuple(header["rule"][key]) for key in ("targets", "labels")}
    grading = Grading(**rule, truth_csv=request[start:middle])
    if header["truth_only"]:
        return _problem(grading)
    return asdict(_figures(grading, request[middle:]))


def _figures(grading: Grading, submission: bytes) -> Figures:
    try:
        return judge(grading, submission)
    except MemoryError:
        raise
    except Exception:
        return Figures("grader_failed")


def _problem(grading: Grading) -> dict[str, Any]:
    try:
        check_truth(grading)
    except ValueError as error:
        return {"problem": str(error)}
    return {"problem": None}


def main() -> None:
    """Serve until the other side of the socket is closed; arguments: seconds and bytes."""
    warnings.simplefilter("ignore")
    gc.disable()  # imports make no garbage, and a fork is gone before there is anything to collect
    for name in IMPORTED_AHEAD:
        importlib.import_module(name)
    requests = socket.socket(fileno=os.dup(0))
    requests.sendall(ACCEPTED)
    serve(requests, float(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
