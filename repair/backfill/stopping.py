"""What is said where something stops a run that has written vectors: these stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from regraft.embedders import ServerFailing, Unanswered
from regraft.errors import REFUSED, BackfillInterrupted, BackfillStopped, RegraftError
from regraft.language import tr
from regraft.ledger import interrupts
from regraft.system import SidecarProblem
from regraft.system_errors import SidecarUnfit
from repair.changes.session import at_damage, is_of_the_store


@contextmanager
def stops_whole(
    path: Path, embedder: str, written: Callable[[], int], is_begun: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Say how many vectors were written where something stops the run.

    Args:
        path: what the user named.
        embedder: what the user calls the embedder.
        written: returns how many vectors were.
        is_begun: tells whether something else was.

    Raises:
        BackfillInterrupted, BackfillStopped: it was stopped.
        StoppedAtDamage: a file is damaged where it has to be read or written, and something was written before.
        StoreDamaged, SidecarUnfit: a file is damaged where it has to be read or written, and nothing was.
        RegraftError: it was refused before anything was written, or the embedder does not do.
    """
    try:
        with _stop_is_said(written):
            yield
    except ServerFailing as error:
        reason = tr("embedder {embedder} does not answer: {reason}", embedder=embedder, reason=error.reason)
        raise BackfillStopped(path=path, reason=reason, written=written()) from error
    except Unanswered as error:
        raise BackfillStopped(path=path, reason=str(error), written=written()) from error
    except RegraftError as error:
        if (written() or is_begun()) and error.exit_status == REFUSED:
            raise BackfillStopped(path=path, reason=str(error).rstrip("."), written=written()) from error
        raise
    except (SidecarProblem, OSError, apsw.Error, UnicodeDecodeError) as error:
        raise _of_a_file(path, error, written, is_begun) from error


@contextmanager
def _stop_is_said(written: Callable[[], int]) -> Iterator[None]:
    """Say of a stop that it was one, also where it tore something that then failed in its own way."""
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if interrupts.is_behind(error):
            raise BackfillInterrupted(written=written()) from error
        raise


def _of_a_file(path: Path, error: Exception, written: Callable[[], int], is_begun: Callable[[], bool]) -> RegraftError:
    """Return what is said where a file is damaged, or the system does not let it be read or written."""
    reason = getattr(error, "strerror", None) or str(error)
    stays = tr("vectors: {written}", written=written()) if written() or is_begun() else None
    if isinstance(error, SidecarProblem):
        if stays is None and not isinstance(error.__cause__, apsw.IOError):
            return SidecarUnfit(path=path, reason=error)
        reason = tr("the file of the vectors: {error}", error=error)
    elif is_of_the_store(error):
        return at_damage(path, reason, stays)
    return BackfillStopped(path=path, reason=reason, written=written())
