"""What one library wants of a fleet: the texts that its backfill would send, and what its bases are compared by."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from regraft import embedders
from regraft.embedders.settings import EmbedderSettings
from repair.backfill import probing
from repair.backfill.expected import Counter, Expected
from repair.backfill.fleet import wanted
from repair.backfill.fleet.wanted import Row, Sample
from repair.backfill.survey import BackfillSurvey, SurveyedTarget
from repair.changes.store import Store

#: How many texts are held at once.
_AT_ONCE = 256


class Collector:
    """Is told what a backfill is going to do in one library (:attr:`repair.backfill.run.Supply.looked`).

    Args:
        work: the fleet's work folder.
        library: the library's number.
        settings: the embedder's.
    """

    def __init__(self, work: Path, library: int, settings: EmbedderSettings) -> None:
        self._work = work
        self._library = library
        self._settings = settings
        #: How many texts it wants; None where it was not asked, or needs nothing done.
        self.texts: int | None = None

    def __call__(self, store: Store, seen: BackfillSurvey) -> None:
        """Write down what is wanted, where anything is to be done.

        Raises:
            apsw.Error, OSError, ValueError: a base cannot be read, or the file not be written.
        """
        if seen.is_needed:
            self.texts = wanted.write(self._work, self._library, self._rows(store, seen), self._samples(seen))

    def _rows(self, store: Store, seen: BackfillSurvey) -> Iterator[Row]:
        tokens_of = embedders.counter(self._settings)
        for one in seen.seen:
            for text, tokens in _texts(store, seen, one, tokens_of):
                yield Row.of(text, tokens)

    def _samples(self, seen: BackfillSurvey) -> list[Sample]:
        counted, settings = embedders.counter(self._settings), self._settings
        found = []
        for one in seen.seen:
            if one.sample is not None:
                known = probing.fitting(one.sample, lambda text: counted(settings.prefix + text), settings.batch)
                raw = [(wanted.raw(text), vector) for text, vector in known]
                found.append(
                    Sample(scope=one.outcome.scope, base=one.outcome.name, dimensions=one.outcome.dimensions, raw=raw)
                )
        return found


def _texts(store: Store, seen: BackfillSurvey, one: SurveyedTarget, tokens_of: Counter) -> Iterator[tuple[str, int]]:
    """Yield the texts of a target that are sent, with their tokens: those of units that are still to be made, too."""
    planned = one.expected
    expected = Expected(coming=planned.coming, free=set(planned.there), shares_with_itself=planned.shares_with_itself)
    coming: dict[str, int] = {}
    with one.target.opened(store.root) as scope:
        sized = expected.sized(scope, tokens_of)
        while chunk := dict(islice(sized, _AT_ONCE)):
            found = scope.texts(list(chunk))
            for key, lacking in found.items():
                yield lacking.text or "", chunk[key]
            coming.update((key, tokens) for key, tokens in chunk.items() if key not in found)
    if not coming:
        return
    for key, text in seen.first.bodies[one.target.base_id]():
        if key in coming:
            yield text, coming.pop(key)
