"""A server that speaks the chat completions API and answers as it is told, for tests.

    python -m mappa_envs.testing.stub_endpoint --port 8000 --fail 0.3

It listens on this machine alone, prints its base URL as the first line, and needs nothing but the
standard library. `GET /stats` tells what it was asked and what it answered.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from mappa_envs.testing.stub_replies import (
    KINDS,
    MIXTURE,
    Behaviour,
    Fail,
    HttpReply,
    bad_request,
    digest,
    text_reply,
    unauthorized,
)

MODEL: Final = "stub"
_BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came; header names are in lower case."""

    body: Mapping[str, Any]
    headers: Mapping[str, str]


class StubEndpoint:
    """The server, for the length of a `with` block.

    >>> with StubEndpoint(score=7, replies=["no verdict", Fail("429")]) as stub:
    ...     stub.base_url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(
        self,
        *,
        port: int = 0,
        delay: float = 0.0,
        replies: Sequence[str | Fail] = (),
        **behaviour: Any,
    ) -> None:
        """Listen at once, so that the address is known; answer from `with` or `serve` on.

        Args:
            port: 0 for any that is free.
            delay: Seconds until an answer.
            replies: The first answers in order, as texts or failures, whoever asks.
            behaviour: The fields of `Behaviour`, for everything after them.

        Raises:
            ValueError: a field of `Behaviour` makes no sense.
            OSError: the port is taken.
        """
        self.delay = delay
        self.requests: list[Asked] = []
        self.most_in_flight = 0
        self.kinds: Counter[str] = Counter()
        self._behaviour = Behaviour(**behaviour)
        self._replies = list(replies)
        self._attempts: Counter[str] = Counter()
        self._last: dict[str, str] = {}
        self._in_flight = 0
        self._lock = threading.Lock()
        self._server = _Server(port, self)

    @property
    def base_url(self) -> str:
        """What a client is given, e.g. `"http://127.0.0.1:8000/v1"`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def outcomes(self) -> Counter[str]:
        """How many requests, the same one counted once, were last answered in each way."""
        return Counter(self._last.values())

    @property
    def stats(self) -> dict[str, Any]:
        """What `GET /stats` answers."""
        with self._lock:
            return {
                "requests": len(self.requests),
                "most_in_flight": self.most_in_flight,
                "kinds": dict(self.kinds),
                "outcomes": dict(self.outcomes),
            }

    def serve(self) -> None:
        """Answer until `close` is called in another thread."""
        self._server.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        """Stop answering, and close the connections."""
        self._server.stop()

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve, name="mappa-stub", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def answer(self, asked: Asked) -> HttpReply:
        """Note a request and return its answer, after the delay."""
        with self._flying():
            kind, reply = self._decide(asked)
            self._server.stopping.wait(self.delay)
        with self._lock:
            self.kinds[kind] += 1
            self._last[digest(asked.body)] = kind
        return reply

    def note_gone(self) -> None:
        """Note that a client did not wait for its answer."""
        with self._lock:
            self.kinds["gone"] += 1

    def _decide(self, asked: Asked) -> tuple[str, HttpReply]:
        """Return an answer with its name."""
        with self._lock:
            self.requests.append(asked)
            fixed = self._replies.pop(0) if self._replies else None
            attempt = self._attempts[digest(asked.body)]
            self._attempts[digest(asked.body)] += 1
        if isinstance(fixed, str):
            return "fixed", text_reply(asked.body, fixed)
        kind = fixed.kind if fixed else self._behaviour.kind_of(asked.body, attempt)
        if kind == "401":
            return kind, unauthorized(asked.headers.get("authorization", "").split(" ")[-1])
        reply = self._behaviour.reply(asked.body, kind)
        return kind or ("answered" if reply.status == 200 else "400"), reply

    @contextmanager
    def _flying(self) -> Iterator[None]:
        with self._lock:
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1


class _Server(ThreadingHTTPServer):
    """A thread for each connection; all are closed when it stops."""

    request_queue_size = _BACKLOG
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, stub: StubEndpoint) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.stub = stub
        self.stopping = threading.Event()
        self._connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that is gone is none
            super().handle_error(request, client_address)

    def stop(self) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_GET(self) -> None:
        """Answer `/stats` and `/v1/models`."""
        if self.path == "/stats":
            self._send(HttpReply(200, json.dumps(self.server.stub.stats).encode()))
        elif self.path == "/v1/models":
            models = [{"id": MODEL, "object": "model", "created": 0, "owned_by": "mappa"}]
            self._send(HttpReply(200, json.dumps({"object": "list", "data": models}).encode()))
        else:
            self._send(HttpReply(404))

    def do_POST(self) -> None:
        """Answer `/v1/chat/completions`."""
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/chat/completions":
            self._send(HttpReply(404))
            return
        body = _chat_request(content)
        if body is None:
            self._send(bad_request("The body is no JSON object with a model and messages."))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.stub.answer(Asked(body, headers))
        if self._client_is_gone():
            self.server.stub.note_gone()
            self.close_connection = True
        else:
            self._send(reply)

    def log_message(self, format: str, *values: object) -> None:
        """Say nothing."""

    def _client_is_gone(self) -> bool:
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _send(self, reply: HttpReply) -> None:
        if reply.status is None:
            self.close_connection = True
            return
        self.send_response(reply.status)
        headers = {"Content-Type": "application/json", **reply.headers}
        for name, value in {**headers, "Content-Length": str(len(reply.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)


def _chat_request(content: bytes) -> dict[str, Any] | None:
    """Return the body of a request for a completion; None if it is none."""
    try:
        body: dict[str, Any] = json.loads(content)
        has_model = isinstance(body["model"], str)
        has_messages = all({"role", "content"} <= set(message) for message in body["messages"])
    except (ValueError, LookupError, TypeError):
        return None
    return body if has_model and has_messages else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="stub_endpoint", description="An endpoint for tests.")
    parser.add_argument("--port", type=int, default=0, help="0 for any that is free")
    parser.add_argument("--fail", type=float, help="the share of requests that fail, 0 to 1")
    parser.add_argument(
        "--fail-kinds",
        type=lambda text: tuple(text.split(",")),
        help=f"how they fail, among: {', '.join(KINDS)}; alone, every request fails",
    )
    parser.add_argument("--permanent", action="store_true", help="what failed once always fails")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds until an answer")
    parser.add_argument("--retry-after", default="0", help="what a 429 asks for, in seconds")
    parser.add_argument("--score", type=float, help="of every verdict; else the prompt decides")
    parser.add_argument("--seed", type=int, default=0, help="of the failures")
    parser.add_argument(
        "--no-json-schema", action="store_true", help="answer 400 to response_format"
    )
    given = parser.parse_args(arguments)
    share = float(given.fail_kinds is not None) if given.fail is None else given.fail
    try:
        stub = StubEndpoint(
            port=given.port,
            delay=given.delay,
            fail=share,
            kinds=given.fail_kinds or MIXTURE,
            permanent=given.permanent,
            seed=given.seed,
            score=given.score,
            refuses=("response_format",) if given.no_json_schema else (),
            retry_after=given.retry_after,
        )
    except (OSError, ValueError) as error:
        parser.error(str(error))
    sys.stdout.write(f"{stub.base_url}\n")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        stub.serve()


if __name__ == "__main__":
    main()
