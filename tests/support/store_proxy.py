"""A proxy before an object store that loses, delays and falsifies what passes through it.

with store_proxy("http://127.0.0.1:5000") as proxy:
    proxy.fault = lambda number, request: "lose the answer" if number % 5 == 0 else None
"""

from __future__ import annotations

import http.client
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Literal

Fault = Literal["lose the request", "lose the answer", "delay", "fail", "falsify"] | None
#: Headers that are of one connection.
_OF_CONNECTION = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length"})


class StoreProxy(ThreadingHTTPServer):
    """Passes requests on to a store; ``fault`` says what happens to each, by its number and its line."""

    daemon_threads = True
    fault: Callable[[int, str], Fault] = staticmethod(lambda _, __: None)

    def __init__(self, store: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store.removeprefix("http://")
        self.url = f"http://127.0.0.1:{self.server_port}"
        #: How often each fault has happened.
        self.faults: Counter[str] = Counter()
        self._numbers, self._lock = itertools.count(1), Lock()

    def next_fault(self, line: str) -> Fault:
        """Return what happens to the next request."""
        with self._lock:
            found = self.fault(next(self._numbers), line)
            self.faults.update([found] if found else [])
            return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StoreProxy

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.next_fault(self.requestline)
        if fault == "lose the request":
            self.close_connection = True
            return
        if fault == "fail":
            self._reply(503, {}, b"")
            return
        store = http.client.HTTPConnection(self.server.store)
        store.request(self.command, self.path, body, dict(self.headers))
        answer = store.getresponse()
        content, headers = answer.read(), dict(answer.getheaders())
        store.close()
        if fault == "lose the answer":
            self.close_connection = True
            return
        if fault == "delay":
            time.sleep(0.02)
        if fault == "falsify" and content:
            content = bytes([content[0] ^ 1, *content[1:]])
        self._reply(answer.status, headers, content)

    def _reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
        length = headers.get("Content-Length", len(content)) if self.command == "HEAD" else len(content)
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _OF_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on


@contextmanager
def store_proxy(store: str) -> Iterator[StoreProxy]:
    """Start a proxy before a store on a free port."""
    with StoreProxy(store) as proxy:
        thread = Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
