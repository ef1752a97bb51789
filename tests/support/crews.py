"""Process pools whose jobs run in threads of this process, for tests that want no other processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from regraft.processes import pool
from regraft.processes.pool import ProcessPool


class PipeWorker:
    """A worker that is only a pipe; something else answers at its other end."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def end(self) -> int | None:
        """Close the pipe."""
        self.pipe.close()
        return None


def of_pipe(pipe: Connection) -> ProcessPool:
    """Return a pool whose only worker is at the other end of a pipe."""
    return ProcessPool(1, jobs_ahead=4, start=lambda: PipeWorker(pipe))


@contextmanager
def of_threads(count: int) -> Iterator[ProcessPool]:
    """Give a pool of so many threads, which are started with its first job, and end them afterwards."""
    threads: list[threading.Thread] = []

    def start() -> PipeWorker:
        here, there = Pipe()
        threads.append(threading.Thread(target=serve, args=(there,)))
        threads[-1].start()
        return PipeWorker(here)

    with ProcessPool(count, jobs_ahead=4, start=start) as made:
        yield made
    for thread in threads:
        thread.join()


def serve(there: Connection) -> None:
    """Do jobs until the pipe is closed."""
    try:
        pool.serve_jobs(there)
    except (EOFError, OSError):
        there.close()
