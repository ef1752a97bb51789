"""The texts that the libraries of a fleet lack vectors for, and the job that collects them or fills one library.

Each library's job writes its texts to a file in the work folder, with a sample of texts with vectors. The process that
runs the fleet merges them into another one. The files hold the user's texts and are removed when the run ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import embedders, identity
from regraft.disk import durable, sqlite, writable
from regraft.embedders import Embedder
from regraft.embedders.settings import EmbedderSettings
from regraft.fleet.engine import LibrarySummary
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.results import to_json
from regraft.formats import json_text
from repair.changes.store import Store
from repair.embedding import answers, probing
from repair.embedding.report import BackfillReport, ScopeReport
from repair.embedding.reuse import Canary
from repair.embedding.run import EmbedderSource
from repair.embedding.survey import BackfillSurvey, ExpectedTexts, SurveyedTarget, TokenCounter

#: A text with its key and its tokens.
CountedText = tuple[str, str, int]
#: Texts held in memory at a time.
_CHUNK = 256
#: Counts of a scope's report that are summed up for its library.
_COUNTS = ("eligible", "skipped_ready", "newly_ready", "shared", "reused", "ready", "failed")


class BaseSample(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of a base with their vectors, to compare the embedder by; empty if the base has no vectors.

    ``scope`` is the base's id in the store, ``base`` its display name. ``source``: the vectors are those of the base
    ``source_base`` in another store, which are taken for ``base`` if they are the embedder's.
    """

    scope: str
    base: str
    dimensions: int | None
    known: list[tuple[str, bytes]] = []
    source: str | None = None
    source_base: str = ""

    def compare(self, embedder: Embedder) -> None:
        """Compare the embedder with these vectors, or with itself if there are none; raises as the comparison does."""
        if self.source is None:
            probing.compare_with_base(embedder, self.base, self.known, self.dimensions)
            return
        size, source = self.dimensions or 0, Path(self.source)
        Canary(
            source=source, base=self.source_base, store=self.base, dimensions=size, sample=tuple(self.known)
        ).compare(embedder)


# --- files of texts --------------------------------------------------------------------------------------------------


def write_texts(path: Path, texts: Iterable[CountedText], samples: Iterable[BaseSample] = ()) -> int:
    """Write the distinct ones of texts, in their order, and samples to a file in an existing folder.

    A file that a killed run has left is replaced. The file is closed at the end, so that other machines can read it.
    Returns how many texts were given. apsw.Error, OSError: it cannot be written.
    """
    count = 0
    with writable.allow_writes(path.parent):
        durable.remove(path, missing_ok=True)
        with sqlite.open_writable(path, create=True) as db:
            # No durability needed: the next run creates it again.
            db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
            db.execute("CREATE TABLE text (key TEXT PRIMARY KEY, text BLOB NOT NULL, tokens INTEGER NOT NULL)")
            db.execute("CREATE TABLE sample (json TEXT NOT NULL)")
            with sqlite.transaction(db):
                for key, text, tokens in texts:
                    count += 1
                    # Lone surrogates, which some applications store, are kept, here and in JSON.
                    row = key, text.encode("utf-8", "surrogatepass"), tokens
                    db.execute("INSERT OR IGNORE INTO text VALUES (?, ?, ?)", row)
                for sample in samples:
                    db.execute("INSERT INTO sample VALUES (?)", (json.dumps(msgspec.to_builtins(sample)),))
    return count


class TextFile:
    """A file of texts that is open for reading; iterating yields every key with its text."""

    def __init__(self, path: Path, db: apsw.Connection) -> None:
        self.path, self._db = path, db

    @property
    def count(self) -> int:
        """The number of distinct texts."""
        found: Any = self._db.execute("SELECT count(*) FROM text").get
        return int(found)

    def read(self, first: int = 0, count: int = -1) -> Iterator[CountedText]:
        """Yield all texts, or up to ``count`` of them from the index ``first`` on."""
        rows: Any = self._db.execute(
            "SELECT key, text, tokens FROM text WHERE rowid > ? ORDER BY rowid LIMIT ?", (first, count)
        )
        return ((key, text.decode("utf-8", "surrogatepass"), tokens) for key, text, tokens in rows)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield every key with its text."""
        return ((key, text) for key, text, _ in self.read())


@contextmanager
def read_texts(path: Path) -> Iterator[TextFile]:
    """Open a file of texts for reading. apsw.Error, OSError: it cannot be read."""
    with sqlite.open_readonly(path) as db:
        yield TextFile(path, db)


def library_file(work: Path, library: int) -> Path:
    """Return the file with the texts and samples of a library."""
    return work / f"{library:06}.sqlite"


def read_samples(work: Path, library: int) -> list[BaseSample]:
    """Return the samples of a library's bases. apsw.Error, OSError: its file cannot be read."""
    with sqlite.open_readonly(library_file(work, library)) as db:
        rows: Any = db.execute("SELECT json FROM sample ORDER BY rowid")
        return [msgspec.convert(json_text.loads(one), BaseSample) for (one,) in rows]


# --- collecting ------------------------------------------------------------------------------------------------------


class WantedTexts(msgspec.Struct, frozen=True, kw_only=True):
    """How many texts of a library lack a vector, and the vector lengths of their bases (None: unknown for one of them).

    ``reused`` texts more get a vector of another store.
    """

    count: int
    dimensions: frozenset[int | None]
    reused: int


class TextCollector(msgspec.Struct):
    """Writes the texts that a backfill of one library would send (:attr:`repair.embedding.run.EmbedderSource.looked`).

    ``work`` is the fleet's work folder, ``library`` the library's number. ``wanted`` is None if nothing was written:
    the library needs nothing, or was not surveyed.
    """

    work: Path
    library: int
    settings: EmbedderSettings
    wanted: WantedTexts | None = None

    def __call__(self, store: Store, survey: BackfillSurvey) -> None:
        """Write the texts and samples if there is anything to do. apsw.Error, OSError, ValueError: a file is damaged,
        or cannot be written.
        """
        if survey.is_needed:
            tokens_of = embedders.counter(self.settings)
            texts = (_texts_to_send(store, survey, one, tokens_of) for one in survey.targets)
            samples = (_samples_of(one, self.settings, tokens_of) for one in survey.targets)
            path = library_file(self.work, self.library)
            count = write_texts(path, chain.from_iterable(texts), chain.from_iterable(samples))
            outcomes = [one.outcome for one in survey.targets]
            self.wanted = WantedTexts(
                count=count,
                dimensions=frozenset(one.dimensions for one in outcomes if one.planned.texts),
                reused=sum(one.planned.reused for one in outcomes),
            )


def _samples_of(one: SurveyedTarget, settings: EmbedderSettings, tokens_of: TokenCounter) -> Iterator[BaseSample]:
    """Yield the texts by which the embedder is compared with a target, and with each source of vectors for it."""

    def fitting(sample: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        return probing.texts_for_probe(list(sample), lambda text: tokens_of(settings.prefix + text), settings.batch)

    outcome, supply = one.outcome, one.expected.supply
    own = BaseSample(scope=outcome.scope, base=outcome.name, dimensions=outcome.dimensions)
    if one.sample is not None:
        yield msgspec.structs.replace(own, known=fitting(one.sample))
    for canary in () if supply is None else supply.canaries:
        known, source = fitting(canary.sample), str(canary.source.absolute())
        yield msgspec.structs.replace(own, known=known, source=source, source_base=canary.base)


def _texts_to_send(
    store: Store, survey: BackfillSurvey, one: SurveyedTarget, tokens_of: TokenCounter
) -> Iterator[CountedText]:
    """Yield the texts of a target that are sent, including those of units created first."""
    planned = one.expected
    expected = ExpectedTexts(
        coming=planned.coming,
        free=set(planned.there),
        shares_with_itself=planned.shares_with_itself,
        supply=planned.supply,
    )
    coming: dict[str, int] = {}
    with one.target.opened(store.root) as scope:
        sized = expected.sized(scope, tokens_of)
        while chunk := dict(islice(sized, _CHUNK)):
            found = {key: lacking.text or "" for key, lacking in scope.texts(list(chunk)).items()}
            yield from ((identity.text_hash(text), text, chunk[key]) for key, text in found.items())
            coming.update((key, tokens) for key, tokens in chunk.items() if key not in found)
    if not coming:
        return
    for key, text in survey.first.bodies[one.target.base_id]():
        if key in coming:
            yield identity.text_hash(text), text, coming.pop(key)


# --- the job of one library ------------------------------------------------------------------------------------------


class EmbeddingJob(msgspec.Struct, frozen=True, kw_only=True):
    """Collect the texts of one library, or, if it ``fills`` the library, write known answers to it.

    ``line`` is the library's ``backfill`` command, ``work`` the fleet's work folder, and ``why`` the error message for
    a text without an answer. ``settles``: the library is filled later, so what a killed run left in it is settled.
    """

    library: int
    line: LibraryJob
    work: str
    embedder: EmbedderSettings
    fills: bool = False
    why: str = ""
    settles: bool = False

    def embedder_source(self) -> EmbedderSource:
        """Return where the command gets its vectors from."""
        settings, work = self.embedder, Path(self.work)
        if not self.fills:
            collector = TextCollector(work, self.library, settings)
            return EmbedderSource(
                choose=lambda _: settings, looked=collector, opened=_refuse_to_open, settles=self.settles
            )
        return EmbedderSource(
            choose=lambda _: settings,
            opened=partial(answers.open_known_embedder, work, why=self.why),
            sampled=partial(compared_sample, work, self.library),
        )


class BackfillSummary(LibrarySummary, frozen=True, kw_only=True):
    """The summary of a backfill: what was collected, if anything, and why not all texts of a base have a vector."""

    wanted: WantedTexts | None
    stopped: str | None

    @classmethod
    def of(cls, summary: LibrarySummary, report: BackfillReport, source: EmbedderSource) -> BackfillSummary:
        """Add what a backfill reports, and what its source of vectors has collected, to a summary."""
        more: dict[str | None, dict[str, str | None]] = {
            one.scope: {"outcome": one.stopped and "stopped", "message": one.stopped, "totals": _sum_counts([one])}
            for one in report.scopes
        }
        bases = [msgspec.structs.replace(base, **more.get(base.base, {})) for base in summary.bases]
        totals = _sum_counts(report.scopes) if report.scopes else None
        return cls(
            **msgspec.structs.asdict(summary) | {"bases": tuple(bases), "totals": totals},
            wanted=source.looked.wanted if isinstance(source.looked, TextCollector) else None,
            stopped=next((one.stopped for one in report.scopes if one.stopped), None),
        )


def _sum_counts(scopes: Iterable[ScopeReport]) -> str | None:
    """Sum the counts of scopes; returns a JSON object."""
    return to_json({name: sum(getattr(scope, name) for scope in scopes) for name in _COUNTS})


def compared_sample(work: Path, library: int, one: SurveyedTarget) -> list[tuple[str, bytes]] | None:
    """Return the sample by which a target was compared before anything was sent, or None if it was not.

    A second attempt to fill a library must not take a new sample: there may be no answers to its texts.
    """
    own = (sample for sample in read_samples(work, library) if sample.source is None)
    return next((sample.known for sample in own if sample.scope == one.outcome.scope), None)


def _refuse_to_open(settings: EmbedderSettings) -> AbstractContextManager[Embedder]:
    """Raise: a job that collects texts must not send any."""
    raise AssertionError(f"{settings.name} was opened to collect texts")
