"""Whether a fleet's embedder is the model of each base, before anything but a few texts is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from regraft import identity
from regraft.embedders import Embedder, ServerFailing, Unanswered
from regraft.errors import STOPPED, AnswerUnfit, BackfillStopped, EmbedderUnsteady, ProbeRefused, RegraftError
from repair.backfill import probing
from repair.backfill.budget import LimitReached, Meter
from repair.backfill.fleet import wanted
from repair.backfill.fleet.answers import Answer
from repair.backfill.fleet.keeper import Keeping, Stop
from repair.backfill.fleet.sender import status_of, stop_of
from repair.backfill.fleet.wanted import Row


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why a library is not filled: its backfill would say so."""

    code: str
    message: str
    exit_status: int


def compared(work: Path, libraries: Iterable[int]) -> Iterator[Row]:
    """Yield the texts that bases are compared by."""
    for library in libraries:
        for sample in wanted.samples_of(work, library):
            yield from (Row.of(text, 0) for text, _ in sample.known)


def has_new(work: Path, libraries: Iterable[int]) -> bool:
    """Tell whether a base has no vector yet, so that the embedder is compared with itself."""
    return any(not sample.raw for library in libraries for sample in wanted.samples_of(work, library))


def steadiness(embedder: Embedder, keeper: Keeping) -> Verdict | None:
    """Return what is wrong with an embedder that gives one text several vectors; None: it gives one.

    What it sends is counted, and its answers are kept. Where it cannot be asked, the keeper lets nothing more leave.
    """
    came: dict[str, bytes] = {}
    settings, meter = embedder.settings, Meter(embedder, keeper.leave("probes"))

    def embed(texts: Sequence[str]) -> list[bytes]:
        vectors = probing.in_batches(embedder, meter.embedded)(texts)
        came.update(zip(texts, vectors, strict=True))
        return list(vectors)

    try:
        probing.probe(settings.name, settings.name, [], None, embed)
    except (EmbedderUnsteady, ProbeRefused, AnswerUnfit) as error:
        return _verdict(error)
    except (RegraftError, ServerFailing, LimitReached) as error:
        keeper.stop(stop_of(error, settings))
        return None
    keeper.keep({identity.text_hash(text): Answer(vector=vector) for text, vector in came.items()}, "probes")
    return None


def judged(work: Path, library: int, embedder: Embedder, unsteady: Verdict | None, stop: Stop | None) -> Verdict | None:
    """Return why a library is not filled by an embedder that answers what is known; None: it is.

    Args:
        work: the fleet's work folder.
        library: the library's number.
        embedder: has the answers to all texts that bases are compared by.
        unsteady: what is said of a base without vectors, if anything.
        stop: why there is not an answer to all of them, if that is so.
    """
    for sample in wanted.samples_of(work, library):
        if not sample.raw and unsteady is not None:
            return unsteady
        try:
            probing.proof(embedder, sample.base, sample.known, sample.dimensions)
        except Unanswered as unanswered:
            reason = str(unanswered) if stop is None else stop.reason
            code = BackfillStopped.__name__ if stop is None or stop.code is None else stop.code
            status = STOPPED if stop is None or stop.code is None else stop.exit_status
            return Verdict(code=code, message=reason, exit_status=status)
        except RegraftError as error:
            return _verdict(error)
    return None


def _verdict(error: RegraftError) -> Verdict:
    return Verdict(code=error.code, message=str(error), exit_status=status_of(error))
