"""A small embedding server on loopback: the same vector for the same text, at once or after a while.

``python -m benchmarks.embedding_server --latency 0.05 --log FILE`` prints its address and serves until it is killed.
Each request adds a line to the log: the SHA-256 of every text that it was sent.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

MODEL = "text-embedding-3-small"
#: The vectors are windows of one row of numbers, but for the first one: making them takes next to no time.
_PLACES = 60_000


class Server(ThreadingHTTPServer):
    """Answers as OpenAI's server does, with base64."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, dimensions: int, latency: float, log: int | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._size = 4 * dimensions
        self._latency = latency
        self._log = log
        # Whatever the last byte of a float32 says, 0x3d makes it a small number.
        bits = bytearray(Random(1).randbytes(4 * (_PLACES + dimensions)))
        bits[3::4] = b"\x3d" * (len(bits) // 4)
        self._numbers = bytes(bits)

    def handle_error(self, request: object, client_address: object) -> None:
        """Take no notice of clients that were killed."""

    def answer(self, request: bytes) -> bytes:
        """Return the body of the answer to a request, in its time."""
        began = time.monotonic()
        texts = json.loads(request)["input"]
        hashes = [hashlib.sha256(text.encode("utf-8")) for text in texts]
        if self._log is not None:
            os.write(self._log, (" ".join(found.hexdigest() for found in hashes) + "\n").encode())
        data = ",".join(
            f'{{"object":"embedding","index":{index},"embedding":"{self._vector(found.digest())}"}}'
            for index, found in enumerate(hashes)
        )
        tokens = sum(map(len, texts)) // 4
        time.sleep(max(0.0, self._latency - (time.monotonic() - began)))
        return f'{{"object":"list","data":[{data}],"model":"{MODEL}","usage":{{"total_tokens":{tokens}}}}}'.encode()

    def _vector(self, digest: bytes) -> str:
        start = 4 * (int.from_bytes(digest[:4], "big") % _PLACES)
        return base64.b64encode(digest[4:7] + b"\x3d" + self._numbers[start + 4 : start + self._size]).decode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Server

    def do_POST(self) -> None:
        body = self.server.answer(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(dimensions: int, latency: float, log: Path | None = None) -> Iterator[str]:
    """Run a server in a process of its own and give its address."""
    command = [sys.executable, "-m", "benchmarks.embedding_server", "--dimensions", dimensions, "--latency", latency]
    command += [] if log is None else ["--log", log]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dimensions", type=int, default=1024)
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS", help="of each answer")
    parser.add_argument("--log", type=Path)
    asked = parser.parse_args()
    log = None if asked.log is None else os.open(asked.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    server = Server(asked.dimensions, asked.latency, log)
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
