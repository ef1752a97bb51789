"""Crews of threads of this process, where a test wants no other processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from regraft.processes import pool
from regraft.processes.pool import ProcessPool


@contextmanager
def of_threads(count: int) -> Iterator[ProcessPool]:
    """Give a crew of so many threads, which are started with its first job, and end them afterwards."""
    pipes = [Pipe() for _ in range(count)]
    threads = [threading.Thread(target=serve, args=(there,)) for _, there in pipes]

    def start() -> list[Connection]:
        for thread in threads:
            thread.start()
        return [here for here, _ in pipes]

    try:
        yield ProcessPool(start)
    finally:
        for here, _ in pipes:
            here.close()
        for thread in threads:
            if thread.is_alive():
                thread.join()


def serve(there: Connection) -> None:
    """Do jobs until the pipe is closed."""
    try:
        pool.serve_jobs(there)
    except (EOFError, OSError):
        there.close()
