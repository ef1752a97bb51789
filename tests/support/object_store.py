"""A real server that speaks as S3 does, on this machine, for tests: ``moto`` in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: What clients find in their environment.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_SERVER = """
import sys
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print("port", server.port, flush=True)
server.serve_forever()
"""


@contextmanager
def object_store(log: Path = Path(os.devnull)) -> Iterator[str]:
    """Start a server on a free port, and yield its URL; it writes a line into the log for each request."""
    with (
        log.open("w") as lines,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SERVER], stdout=subprocess.PIPE, stderr=lines, text=True
        ) as server,
    ):
        try:
            assert server.stdout is not None
            found = re.fullmatch(r"port (\d+)\n", server.stdout.readline())
            assert found is not None, "the server has not started"
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            server.kill()
