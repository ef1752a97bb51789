"""What is said where something stops a run that has written vectors: these stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from regraft.embedders import ServerFailing
from regraft.errors import REFUSED, BackfillInterrupted, BackfillStopped, RegraftError


@contextmanager
def stops_whole(path: Path, embedder: str, written: Callable[[], int]) -> Iterator[None]:
    """Say how many vectors were written where something stops the run.

    Args:
        path: what the user named.
        embedder: what the user calls the embedder.
        written: returns how many vectors were.

    Raises:
        BackfillInterrupted, BackfillStopped: it was stopped.
        RegraftError: it was refused before anything was written, or the embedder does not do.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise BackfillInterrupted(written=written()) from error
    except ServerFailing as error:
        reason = f"embedder {embedder} does not answer: {error.reason}"
        raise BackfillStopped(path=path, reason=reason, written=written()) from error
    except RegraftError as error:
        if written() and error.exit_status == REFUSED:
            raise BackfillStopped(path=path, reason=str(error).rstrip("."), written=written()) from error
        raise
    except (OSError, apsw.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BackfillStopped(path=path, reason=reason, written=written()) from error
