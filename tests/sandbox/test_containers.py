"""What the docker level believes of a container, and says of what is missing; without Docker."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import DockerSandbox, ExecResult, Limits, Output
from mappa_envs.sandbox.attachment import Attachment
from mappa_envs.sandbox.containers import parse
from mappa_envs.sandbox.jail.streams import Stream
from mappa_envs.sandbox.warm import boot

LIMITS = Limits(output_bytes=10)
ENDED = {
    "exit": 0,
    "limit": None,
    "stdout": ["5\n", "", 2, 0],
    "stderr": ["", "", 0, 0],
    "clean": True,
}


def message(**changes: Any) -> bytes:
    return json.dumps({**ENDED, **changes}).encode()


def frame(content: bytes, stream: int = 1) -> bytes:
    return struct.pack(">BxxxI", stream, len(content)) + content


def with_length(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


@pytest.fixture
def ends() -> Iterator[tuple[Attachment, socket.socket]]:
    ours, theirs = socket.socketpair()
    attachment = Attachment(ours)
    yield attachment, theirs
    attachment.close()
    theirs.close()


def receive(attachment: Attachment, max_bytes: int = 100) -> bytes | None:
    return attachment.receive(time.monotonic() + 60, max_bytes)


def test_a_message_is_read() -> None:
    assert parse(message(), LIMITS, None) == (ExecResult.of("5\n"), True)


def test_what_stopped_a_program_from_outside_counts() -> None:
    result, clean = parse(message(exit=-9, limit=None, clean=False), LIMITS, "files")
    assert (result.exit_code, result.limit_hit, clean) == (-9, "files", False)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"exit": ' + b"9" * 5000 + b"}",
        message(exit=True),
        message(exit=0.0),
        message(exit="0"),
        message(exit=256),
        message(exit=-65),
        message(limit="files"),
        message(limit=["memory"]),
        message(stdout=None),
        message(stdout=["a"]),
        message(stdout=[1, "", 0, 0]),
        message(stdout=["12345678901", "", 11, 0]),
        message(stdout=["", "12345678901", 11, 0]),
        message(stdout=["", "", 1, 2]),
        message(stdout=["", "", 1, -1]),
        message(stdout=["", "", True, False]),
    ],
)
def test_a_message_that_makes_no_sense(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"^b['\"]"):
        parse(content, LIMITS, None)


def test_output_that_is_no_text_becomes_text() -> None:
    result, _ = parse(message(stdout=["\ud800", "", 3, 0]), LIMITS, None)
    assert result.output == Output("?", "", 3, 0)


def test_messages_come_in_any_pieces(ends: tuple[Attachment, socket.socket]) -> None:
    attachment, theirs = ends
    content = with_length(b"one") + with_length(b"two")
    for byte in content:
        for piece in frame(bytes([byte])):
            theirs.sendall(bytes([piece]))
    assert receive(attachment) == b"one"
    assert receive(attachment) == b"two"
    theirs.sendall(frame(content))
    assert [receive(attachment), receive(attachment)] == [b"one", b"two"]


def test_what_the_supervisor_complains_of_is_kept_apart(
    ends: tuple[Attachment, socket.socket],
) -> None:
    attachment, theirs = ends
    theirs.sendall(frame(b"x" * 3000, 2) + frame(with_length(b"one")) + frame(b"why", 2))
    assert receive(attachment) == b"one"
    theirs.sendall(frame(with_length(b"two")))
    assert receive(attachment) == b"two"
    assert attachment.complaints == "x" * 1997 + "why"


def test_a_message_that_is_too_large(ends: tuple[Attachment, socket.socket]) -> None:
    attachment, theirs = ends
    theirs.sendall(frame(with_length(b"x" * 101)))
    with pytest.raises(ValueError, match="a message of 101 bytes, where 100 are the most"):
        receive(attachment)


def test_a_message_that_does_not_come(ends: tuple[Attachment, socket.socket]) -> None:
    attachment, theirs = ends
    theirs.sendall(frame(with_length(b"one"))[:-1])
    assert attachment.receive(time.monotonic() + 0.05, 100) is None
    theirs.sendall(b"e")
    assert receive(attachment) == b"one"
    theirs.close()
    with pytest.raises(EOFError):
        receive(attachment)


def test_messages_to_the_supervisor(ends: tuple[Attachment, socket.socket]) -> None:
    attachment, theirs = ends
    attachment.send(b"job")
    assert theirs.recv(100) == b"\0\0\0\3job"


@pytest.mark.parametrize(
    ("chunks", "parts"),
    [
        ([], ("", "", 0, 0)),
        ([b"abcdef"], ("abcdef", "", 6, 0)),
        ([b"abc", b"defg"], ("abc", "efg", 7, 1)),
        ([b"a"] * 20, ("aaa", "aaa", 20, 14)),
        ([b"\xff\xc3", b"\xa9"], ("\ufffd\u00e9", "", 3, 0)),
    ],
)
def test_a_stream_keeps_both_ends(chunks: list[bytes], parts: tuple[str, str, int, int]) -> None:
    stream = Stream(6)
    for chunk in chunks:
        stream.add(chunk)
    assert stream.parts() == parts


def test_the_supervisor_refuses_to_run_outside_a_container() -> None:
    command = [sys.executable, *boot("container")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, input="")
    assert done.returncode == 1
    assert done.stderr.startswith("the supervisor runs as the first process of a container")


def test_without_docker_py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/without-docker-py.sock")
    with pytest.raises(
        SandboxError, match=r"needs docker-py: .*; run pip install 'mappa\[docker\]'"
    ):
        DockerSandbox()


def test_without_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker", reason="the docker extra is not installed")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(SandboxError, match="cannot reach a Docker daemon; start one, let this"):
        DockerSandbox()
