"""Checks of a sandbox: what of the host a program can see, reach and change."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mappa_envs.sandbox.protocol import ExecResult, Sandbox
from mappa_envs.testing.expect import equal
from mappa_envs.testing.sandbox_programs import LIMITS

SECRET = ("MAPPA_SANDBOX_CHECK_SECRET", f"secret-{uuid.uuid4().hex}")
"""Name and value of what is in the caller's environment during every check."""
_NOTHING = ExecResult.of()


def the_environment_is_not_inherited(sandbox: Sandbox) -> None:
    """No process that the program can look at knows the caller's secret."""
    source = (
        "import os\n"
        "found = [repr(dict(os.environ))]\n"
        "try: processes = os.listdir('/proc')\nexcept OSError: processes = ['self']\n"
        "for process in [*processes, 'self']:\n"
        "    try: found.append(open(f'/proc/{process}/environ').read())\n"
        "    except OSError: pass\n"
        f"print([text for text in found if {SECRET[0]!r} in text or {SECRET[1]!r} in text])"
    )
    equal(sandbox.exec(source, LIMITS), ExecResult.of("[]\n"), "who knows the caller's secret")


def descriptors_are_not_inherited(sandbox: Sandbox) -> None:
    """A program has its three streams and nothing else open."""
    source = (
        "import os\nfor fd in range(3, 256):\n"
        "    try: os.fstat(fd); print(fd)\n    except OSError: pass"
    )
    with tempfile.TemporaryFile() as file:
        os.set_inheritable(file.fileno(), True)
        equal(sandbox.exec(source, LIMITS), _NOTHING, "the descriptors above 2")


def there_is_no_network(sandbox: Sandbox) -> None:
    """No program reaches a service of the host, by TCP or UDP."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind(("127.0.0.1", 0))
        tcp, udp = listener.getsockname(), receiver.getsockname()
        source = (
            "import socket\n"
            f"try: socket.create_connection({tcp!r}, timeout=5); print('TCP')\n"
            "except OSError: pass\n"
            f"try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', {udp!r})\n"
            "except OSError: pass"
        )
        equal(sandbox.exec(source, LIMITS), _NOTHING, "a program that looks for the host")
        for service in (listener, receiver):
            service.setblocking(False)
        equal(_has_news(listener.accept), False, "whether a TCP service was reached")
        equal(_has_news(lambda: receiver.recv(1)), False, "whether a UDP service was reached")


def other_processes_are_out_of_sight(sandbox: Sandbox) -> None:
    """No other process's command line can be read."""
    with _bystander() as process:
        marker = process.args[-1]  # type: ignore[index] # it was made from a list
        source = (
            "import os\n"
            "try: names = os.listdir('/proc')\nexcept OSError: names = []\n"
            f"for name in {{*names, '{process.pid}'}}:\n"
            "    try: line = open(f'/proc/{name}/cmdline').read()\n    except OSError: line = ''\n"
            f"    if {marker!r} in line: print(name)"
        )
        equal(sandbox.exec(source, LIMITS), _NOTHING, "the processes of the host in sight")


def other_processes_cannot_be_signalled(sandbox: Sandbox) -> None:
    """A process of the caller survives."""
    with _bystander() as process:
        source = (
            "import os, signal\n"
            f"try: os.kill({process.pid}, 15)\nexcept OSError: pass\n"
            f"try: signal.pidfd_send_signal(os.pidfd_open({process.pid}), 15)\n"
            "except OSError: pass"
        )
        sandbox.exec(source, LIMITS)
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            return
        raise AssertionError("a process of the host: expected to survive, got a signal")


def host_files_are_out_of_reach(sandbox: Sandbox) -> None:
    """What everybody may read and write on the host, a program may not."""
    with _folder_for_everybody() as folder:
        secret = folder / "secret"
        source = (
            "import os, shutil\n"
            f"path = {str(secret)!r}\n"
            "for verb in (lambda: open(path).read(), lambda: open(path, 'a').write('!'),\n"
            "             lambda: os.truncate(path, 0), lambda: os.rename(path, path + '2'),\n"
            "             lambda: os.link(path, 'stolen'), lambda: os.remove(path),\n"
            "             lambda: open(path + '3', 'w')):\n"
            "    try: print(verb())\n    except OSError: pass"
        )
        equal(sandbox.exec(source, LIMITS), _NOTHING, "what a program can do with a host's file")
        equal([path.name for path in folder.iterdir()], ["secret"], "the host's folder after it")
        equal(secret.read_text(), "host", "the host's file after it")


def names_of_host_files_are_hidden(sandbox: Sandbox) -> None:
    """A program cannot ask whether the host has a file."""
    with _folder_for_everybody() as folder:
        source = f"import os\nprint(os.path.exists({str(folder / 'secret')!r}))"
        equal(sandbox.exec(source, LIMITS), ExecResult.of("False\n"), source)


def the_interpreter_cannot_be_changed(sandbox: Sandbox) -> None:
    """Neither the libraries nor the system's folders can be written to."""
    source = (
        "import os, sys, sysconfig\n"
        "libraries = sysconfig.get_paths().values()\n"
        "for folder in ('/', '/etc', '/usr', '/var', sys.prefix, *libraries):\n"
        f"    path = os.path.join(folder, 'probe-{uuid.uuid4().hex}')\n"
        "    try:\n        open(path, 'x').close(); os.remove(path); print(folder)\n"
        "    except OSError: pass"
    )
    equal(sandbox.exec(source, LIMITS), _NOTHING, "the folders that a program can write to")


def namespaces_cannot_be_nested(sandbox: Sandbox) -> None:
    """A program gets no namespace in which it would be root again."""
    source = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "print([hex(flag) for flag in (0x10000000, 0x10020000, 0x50000000, 0x20000)\n"
        "       if libc.unshare(flag) == 0])"
    )
    equal(sandbox.exec(source, LIMITS), ExecResult.of("[]\n"), "the namespaces that can be had")


def privileges_cannot_be_won_back(sandbox: Sandbox) -> None:
    """A program has no capability, and gets none."""
    source = (
        "lines = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print([int(lines[name], 16) for name in ('CapEff', 'CapPrm', 'NoNewPrivs')])"
    )
    equal(sandbox.exec(source, LIMITS), ExecResult.of("[0, 0, 1]\n"), "its capabilities")


def programs_are_not_root(sandbox: Sandbox) -> None:
    """A program's user and group are not 0, and cannot become it."""
    source = (
        "import os\n"
        "for call in (os.setuid, os.setgid, os.seteuid):\n"
        "    try: call(0)\n    except OSError: pass\n"
        "print(0 in os.getresuid() + os.getresgid())"
    )
    equal(sandbox.exec(source, LIMITS), ExecResult.of("False\n"), source)


def _has_news(verb: Callable[[], object]) -> bool:
    try:
        verb()
    except BlockingIOError:
        return False
    return True


@contextmanager
def _bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the caller that has nothing to do with the sandbox."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", uuid.uuid4().hex]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _folder_for_everybody() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "secret").write_text("host")
        (folder / "secret").chmod(0o666)
        yield folder


CHECKS: tuple[Callable[[Sandbox], None], ...] = (
    the_environment_is_not_inherited,
    descriptors_are_not_inherited,
    there_is_no_network,
    other_processes_are_out_of_sight,
    other_processes_cannot_be_signalled,
    host_files_are_out_of_reach,
    names_of_host_files_are_hidden,
    the_interpreter_cannot_be_changed,
    namespaces_cannot_be_nested,
    privileges_cannot_be_won_back,
    programs_are_not_root,
)
