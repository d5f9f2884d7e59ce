"""A server with vLLM's API and a toy for a model, which tells what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

EOS = 2
BASE = "the-base"

Reply = tuple[int, Any]


def toy(body: dict[str, Any]) -> dict[str, Any]:
    """Answer with the last id of the prompt and the seed, so that every answer tells its request.

    An odd seed ends the completion; an even one runs into the limit of tokens.
    """
    if body["seed"] % 2:
        ids, reason = [body["prompt"][-1], body["seed"], EOS], "stop"
    else:
        ids, reason = [body["prompt"][-1], body["seed"]] * body["max_tokens"], "length"
        ids = ids[: body["max_tokens"]]
    if EOS in ids:
        ids, reason = ids[: ids.index(EOS) + 1], "stop"
    return {
        "choices": [
            {
                "prompt_token_ids": body["prompt"],
                "token_ids": ids,
                "logprobs": {"token_logprobs": [-0.5] * len(ids)},
                "finish_reason": reason,
            }
        ]
    }


class StubVLLM:
    """The server, for the length of a `with` block.

    `replies` are given first, in order, whoever asks for a completion: a status with the content.
    """

    def __init__(
        self,
        *replies: Reply,
        delay: Callable[[dict[str, Any]], float] = lambda body: 0.0,
        answer: Callable[[dict[str, Any]], dict[str, Any]] = toy,
        context: int = 4096,
    ) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.most_in_flight = 0
        self._replies = list(replies)
        self._delay = delay
        self._answer = answer
        self._context = context
        self._in_flight = 0
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def completions(self) -> list[dict[str, Any]]:
        return [body for path, body in self.asked if path == "/v1/completions"]

    def reply(self, path: str, body: dict[str, Any]) -> Reply:
        with self._lock:
            self.asked.append((path, body))
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            fixed = self._replies.pop(0) if self._replies and path == "/v1/completions" else None
        try:
            if path != "/v1/completions":
                return 200, self._other(path)
            time.sleep(self._delay(body))
            return fixed or (200, self._answer(body))
        finally:
            with self._lock:
                self._in_flight -= 1

    def _other(self, path: str) -> Any:
        if path != "/v1/models":
            return {}
        adapter = {"id": "solver", "parent": BASE, "max_model_len": None}
        return {"data": [adapter, {"id": BASE, "parent": None, "max_model_len": self._context}]}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def _handler(stub: StubVLLM) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            self._answer(json.loads(self.rfile.read(size)))

        def _answer(self, body: dict[str, Any]) -> None:
            status, content = stub.reply(self.path, body)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *said: object) -> None:
            pass

    return Handler
