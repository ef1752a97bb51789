"""A small embedding server on loopback that answers as it is told, rightly or wrongly, and logs what it was sent.

with FaultServer() as server:
    server.behave = [rate_limited(after=0), server_error(), right]  # one for each request, then right answers
    server.behave = poisoned("bad")  # or one for all
    ...
    assert server.texts == ["a", "b", "a", "b"]  # every text received, in order, with repetitions
    assert server.paid == ["a", "b"]  # those whose vectors were sent in full
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@cache
def vector_of(text: str, dimensions: int = 8) -> bytes:
    """Return the vector that the server makes of a text: little-endian float32 of length 1, the same every time."""
    raw = hashlib.shake_128(text.encode("utf-8", "surrogatepass")).digest(2 * dimensions)
    numbers = [value - 32767.5 for value in struct.unpack(f"<{dimensions}H", raw)]
    norm = math.hypot(*numbers)
    return struct.pack(f"<{dimensions}f", *(number / norm for number in numbers))


def numbers_of(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


@dataclass(frozen=True)
class Request:
    """A request as it came: its path, its headers by lower-case name, its JSON."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    server: FaultServer

    @property
    def texts(self) -> list[str]:
        found = self.body.get("input", [])
        return [found] if isinstance(found, str) else found

    @property
    def dimensions(self) -> int:
        return self.body.get("dimensions", self.server.dimensions)


@dataclass
class Reply:
    """What goes back: ``keep`` is the share of the body that is sent before the connection is closed."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    keep: float = 1.0
    close: bool = False


Behaviour = Callable[[Request], Reply]


# --- behaviours ------------------------------------------------------------------------------------------------------


def right(request: Request) -> Reply:
    """Answer as one should."""
    return answer(request, vectors_for(request))


def vectors_for(request: Request) -> list[Any]:
    return [vector_of(text, request.dimensions) for text in request.texts]


def answer(request: Request, vectors: list[Any], order: list[Any] | None = None) -> Reply:
    """Return an answer with these vectors, as base64 where that is wanted, or with anything else in their places."""
    encoded = request.body.get("encoding_format") == "base64" and not request.server.ignore_base64
    data = []
    for index, vector in zip(order or range(len(vectors)), vectors, strict=True):
        found = vector
        if isinstance(vector, bytes):
            found = base64.b64encode(vector).decode() if encoded else numbers_of(vector)
        data.append({"object": "embedding", "index": index, "embedding": found})
    tokens = sum(len(text) for text in request.texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Reply(body=json.dumps({"object": "list", "data": data, "model": "m", "usage": usage}).encode())


def failing(status: int, message: Any = "no", *, headers: Mapping[str, str] | None = None, **more: Any) -> Behaviour:
    """Answer with an error as OpenAI writes it: ``code``, ``type`` and ``param`` can be given."""
    body = json.dumps({"error": {"message": message, **more}}).encode()
    return lambda _: Reply(status, body, dict(headers or {}))


def server_error() -> Behaviour:
    return failing(500, "something broke")


def rate_limited(after: object = None) -> Behaviour:
    """Answer 429, with ``Retry-After`` where it is given."""
    return failing(429, "slow down", headers={} if after is None else {"Retry-After": str(after)})


def saying(status: int, body: bytes, **headers: str) -> Behaviour:
    """Answer with any body."""
    return lambda _: Reply(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def half(request: Request) -> Reply:
    """Answer rightly, but close the connection halfway."""
    reply = right(request)
    reply.keep = 0.5
    return reply


def closing(_: Request) -> Reply:
    """Close the connection without a word."""
    return Reply(close=True)


def hanging(request: Request) -> Reply:
    """Answer when the server ends."""
    request.server.ending.wait()
    return right(request)


def slow(seconds: float, then: Behaviour = right) -> Behaviour:
    """Answer late; at once when the server ends."""

    def behave(request: Request) -> Reply:
        request.server.ending.wait(seconds)
        return then(request)

    return behave


def changed(change: Callable[[list[Any]], list[Any]]) -> Behaviour:
    """Answer with other vectors than the right ones, which are raw float32."""
    return lambda request: answer(request, change(vectors_for(request)))


def last(change: Callable[[bytes], Any]) -> Behaviour:
    """Answer with something else for the last vector."""
    return changed(lambda vectors: [*vectors[:-1], change(vectors[-1])])


wrong_count = changed(lambda vectors: vectors[:-1])
wrong_length = last(lambda vector: vector[:-4])
non_finite = last(lambda vector: vector[:-4] + struct.pack("<f", math.nan))
zero = last(lambda vector: bytes(len(vector)))


def wrong_order(request: Request) -> Reply:
    """Answer with all vectors, each with its number, but the last one first."""
    found, order = vectors_for(request), list(range(len(request.texts)))
    return answer(request, [*found[-1:], *found[:-1]], [*order[-1:], *order[:-1]])


def numbered(order: list[Any]) -> Behaviour:
    """Answer with the right vectors, but these numbers."""
    return lambda request: answer(request, vectors_for(request), order)


def poisoned(mark: str, status: int = 400, otherwise: Behaviour = right, **more: Any) -> Behaviour:
    """Refuse batches with a text that has ``mark`` in it."""
    refusal = failing(status, "a text cannot be embedded", **more)
    return lambda request: (refusal if any(mark in text for text in request.texts) else otherwise)(request)


def echo(status: int = 401) -> Behaviour:
    """Say the key back in an error, in every way that servers find."""

    def behave(request: Request) -> Reply:
        said = request.headers.get("authorization", "no key")
        key = said.partition(" ")[2]
        coded = base64.b64encode(said.encode()).decode()
        message = f"Incorrect API key: {key}, that is {key[:9]}***{key[-4:]} ({said}; {coded}; {key.upper()})"
        return failing(status, message, code="invalid_api_key")(request)

    return behave


# --- the server ------------------------------------------------------------------------------------------------------


class FaultServer:
    """A server with a log. ``behave`` is one behaviour for all requests, or a list of which each answers one."""

    def __init__(self, *, dimensions: int = 8, ignore_base64: bool = False) -> None:
        self.dimensions = dimensions
        self.ignore_base64 = ignore_base64
        self.behave: Behaviour | list[Behaviour] = right
        self.requests: list[Request] = []
        self.paid: list[str] = []
        self.ending = threading.Event()
        self._lock = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.owner = self

    @property
    def url(self) -> str:
        """Return the address to configure."""
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    @property
    def texts(self) -> list[str]:
        """Return every text received, in order, with repetitions."""
        with self._lock:
            return [text for request in self.requests for text in request.texts]

    def __enter__(self) -> FaultServer:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self._http.shutdown()
        self._http.server_close()

    def behaviour(self, request: Request) -> Behaviour:
        """Log a request and return what answers it."""
        with self._lock:
            self.requests.append(request)
            if callable(self.behave):
                return self.behave
            return self.behave.pop(0) if self.behave else right

    def count(self, request: Request) -> None:
        """Note that a request was answered in full."""
        with self._lock:
            self.paid += request.texts


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    owner: FaultServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Take no notice of clients that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Http

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, json.loads(self.rfile.read(size)), self.server.owner)
        reply = self.server.owner.behaviour(request)(request)
        if reply.close:
            self._hang_up()
            return
        whole = reply.status == 200 and reply.keep == 1.0
        if whole:
            # Before the last byte leaves: who has the answer finds it in the log.
            self.server.owner.count(request)
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body[: int(len(reply.body) * reply.keep)])
        self.wfile.flush()
        if reply.keep < 1:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
