"""The texts that the libraries of a fleet lack vectors for, and the job that collects them or fills one library.

Each library's job writes its texts to a :class:`TextFile` in the work folder, with a sample of texts with vectors. The
process that runs the fleet merges them into another one. The files hold the user's texts and are removed when the run
ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import embedders, identity
from regraft.disk import durable, sqlite, untrusted_sqlite, writable
from regraft.embedders import Embedder
from regraft.embedders.settings import EmbedderSettings
from regraft.fleet.engine import LibrarySummary
from regraft.fleet.jobs import LibraryJob
from repair.changes.store import Store
from repair.embedding import answers, probing
from repair.embedding.report import BackfillReport, ScopeReport
from repair.embedding.reuse import Canary
from repair.embedding.run import EmbedderSource
from repair.embedding.survey import BackfillSurvey, ExpectedTexts, SurveyedTarget, TokenCounter

#: The folder in the work folder for the parts that a cluster reads.
_PARTS_FOLDER = "parts"
#: A text as it is stored: its key, the text as UTF-8, and its tokens.
_TextRow = tuple[str, bytes, int]
#: Texts written or read at a time, and the bytes after which fewer are.
_ROWS, _BYTES = 1000, 8 << 20
#: Texts held in memory at a time.
_CHUNK = 256


class BaseSample(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of a base with their vectors, to compare the embedder by; empty if the base has no vectors.

    ``scope`` is the base's id in the store, ``base`` its display name. ``source``: the vectors are those of the base
    ``source_base`` in another store, which are taken for ``base`` if they are the embedder's.
    """

    scope: str
    base: str
    dimensions: int | None
    #: Texts encoded by :func:`encode_text`.
    raw: list[tuple[bytes, bytes]]
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

    @property
    def known(self) -> list[tuple[str, bytes]]:
        """The texts with their vectors."""
        return [(decode_text(text), vector) for text, vector in self.raw]


def encode_text(text: str) -> bytes:
    """Encode a text as UTF-8; lone surrogates, which some applications store, are kept."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(written: bytes) -> str:
    """Decode what :func:`encode_text` encoded."""
    return written.decode("utf-8", "surrogatepass")


# --- files of texts --------------------------------------------------------------------------------------------------


class TextFile:
    """Distinct texts in the order in which they were added, and the samples of a library: a SQLite file in the work
    folder.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def add(self, texts: Iterable[tuple[str, int]], known: apsw.Connection | None = None) -> int:
        """Add texts, with their tokens, that are new and have no known answer; returns how many were given."""
        return self._insert(((identity.text_hash(text), encode_text(text), tokens) for text, tokens in texts), known)

    def merge(self, other: TextFile, known: apsw.Connection | None = None) -> None:
        """Add the texts of another file that are new and have no known answer."""
        self._insert(other._rows(), known)

    def _insert(self, rows: Iterable[_TextRow], known: apsw.Connection | None = None) -> int:
        count = 0
        for chunk in _chunks(rows, _ROWS):
            count += len(chunk)
            answered = answers.answered_keys(known, [key for key, _, _ in chunk])
            with sqlite.transaction(self._db):
                self._db.executemany(
                    "INSERT OR IGNORE INTO text VALUES (?, ?, ?)", (row for row in chunk if row[0] not in answered)
                )
        return count

    def _rows(self) -> Iterator[_TextRow]:
        rows: Any = self._db.execute("SELECT key, text, tokens FROM text ORDER BY rowid")
        yield from rows

    def clear(self) -> None:
        """Remove all texts."""
        self._db.execute("DELETE FROM text")

    @property
    def count(self) -> int:
        """The number of distinct texts."""
        found: Any = self._db.execute("SELECT count(*) FROM text").get
        return int(found)

    def sized(self) -> Iterator[tuple[str, int]]:
        """Yield the key and the tokens of every text."""
        rows: Any = self._db.execute("SELECT key, tokens FROM text ORDER BY rowid")
        yield from rows

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield every key with its text."""
        for key, text, _ in self._rows():
            yield key, decode_text(text)

    def add_samples(self, samples: list[BaseSample]) -> None:
        """Add samples of bases."""
        self._db.executemany("INSERT INTO sample VALUES (?)", ((msgspec.json.encode(one),) for one in samples))

    def samples(self) -> list[BaseSample]:
        """Return the samples."""
        rows: Any = self._db.execute("SELECT json FROM sample ORDER BY rowid")
        return [msgspec.json.decode(one, type=BaseSample) for (one,) in rows]

    def split(self, work: Path, limit: int) -> list[Path]:
        """Write the texts to files of up to ``limit`` texts, for other processes; returns the files.

        Raises:
            apsw.Error, OSError: they cannot be written.
        """
        with writable.allow_writes(work):
            durable.remove_tree(work / _PARTS_FOLDER)
        paths: list[Path] = []
        for chunk in _chunks(self._rows(), min(limit, _ROWS)):
            paths.append(work / _PARTS_FOLDER / f"{len(paths):06}.sqlite")
            with create_texts(work, paths[-1]) as part:
                part._insert(chunk)
        return paths


def _chunks(rows: Iterable[_TextRow], most: int) -> Iterator[list[_TextRow]]:
    """Group rows into lists of a limited length and size."""
    chunk: list[_TextRow] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row[1])
        if len(chunk) == most or size >= _BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


@contextmanager
def create_texts(work: Path, path: Path) -> Iterator[TextFile]:
    """Create an empty file of texts in the work folder, in the place of one that a killed run has left.

    Raises:
        apsw.Error, OSError: it cannot be written.
    """
    with writable.allow_writes(work):
        durable.make_folders(path.parent, flush=False)
        for ending in ("", *untrusted_sqlite.COMPANION_SUFFIXES):
            durable.remove(path.with_name(f"{path.name}{ending}"), missing_ok=True)
        with sqlite.open_writable(path, create=True) as db:
            # No durability needed: the next run creates it again.
            db.execute("PRAGMA journal_mode = OFF")
            db.execute("PRAGMA synchronous = OFF")
            db.execute("CREATE TABLE text (key TEXT PRIMARY KEY, text BLOB NOT NULL, tokens INTEGER NOT NULL)")
            db.execute("CREATE TABLE sample (json BLOB NOT NULL)")
            yield TextFile(db)


@contextmanager
def read_texts(path: Path) -> Iterator[TextFile]:
    """Open a file of texts for reading. apsw.Error, OSError: it cannot be read."""
    with sqlite.open_readonly(path) as db:
        yield TextFile(db)


def library_file(work: Path, library: int) -> Path:
    """Return the file with the texts and samples of a library."""
    return work / "wanted" / f"{library:06}.sqlite"


def read_samples(work: Path, library: int) -> list[BaseSample]:
    """Return the samples of a library's bases; raises as :func:`read_texts` does."""
    with read_texts(library_file(work, library)) as own:
        return own.samples()


# --- collecting ------------------------------------------------------------------------------------------------------


class TextCollector(msgspec.Struct):
    """Writes the texts that a backfill of one library would send (:attr:`repair.embedding.run.EmbedderSource.looked`).

    ``work`` is the fleet's work folder, ``library`` the library's number. ``texts`` counts what was written; None: the
    library needs nothing, or was not surveyed.
    """

    work: Path
    library: int
    settings: EmbedderSettings
    texts: int | None = None

    def __call__(self, store: Store, survey: BackfillSurvey) -> None:
        """Write the texts and samples if there is anything to do.

        Raises:
            apsw.Error, OSError, ValueError: a base cannot be read, or the file cannot be written.
        """
        if survey.is_needed:
            tokens_of = embedders.counter(self.settings)
            with create_texts(self.work, library_file(self.work, self.library)) as file:
                sent = (_texts_to_send(store, survey, one, tokens_of) for one in survey.targets)
                self.texts = file.add(chain.from_iterable(sent))
                file.add_samples(self._collect_samples(survey))

    def _collect_samples(self, survey: BackfillSurvey) -> list[BaseSample]:
        count_tokens, settings = embedders.counter(self.settings), self.settings

        def fitting(sample: Sequence[tuple[str, bytes]]) -> list[tuple[bytes, bytes]]:
            known = probing.texts_for_probe(sample, lambda text: count_tokens(settings.prefix + text), settings.batch)
            return [(encode_text(text), vector) for text, vector in known] if sample else []

        found = []
        for one in survey.targets:
            outcome, supply = one.outcome, one.expected.supply
            own = BaseSample(scope=outcome.scope, base=outcome.name, dimensions=outcome.dimensions, raw=[])
            if one.sample is not None:
                found.append(msgspec.structs.replace(own, raw=fitting(one.sample)))
            for canary in () if supply is None else supply.canaries:
                raw, source = fitting(canary.sample), str(canary.source.absolute())
                found.append(msgspec.structs.replace(own, raw=raw, source=source, source_base=canary.base))
        return found


def _texts_to_send(
    store: Store, survey: BackfillSurvey, one: SurveyedTarget, tokens_of: TokenCounter
) -> Iterator[tuple[str, int]]:
    """Yield the texts of a target that are sent, with their tokens, including those of units created first."""
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
            found = scope.texts(list(chunk))
            for key, lacking in found.items():
                yield lacking.text or "", chunk[key]
            coming.update((key, tokens) for key, tokens in chunk.items() if key not in found)
    if not coming:
        return
    for key, text in survey.first.bodies[one.target.base_id]():
        if key in coming:
            yield text, coming.pop(key)


# --- the job of one library ------------------------------------------------------------------------------------------


class EmbeddingJob(msgspec.Struct, frozen=True, kw_only=True):
    """Collect the texts of one library, or fill it with known answers.

    Args:
        library: the library's number.
        line: its ``backfill`` command.
        work: the fleet's work folder.
        embedder: the settings of the embedder.
        fills: whether the library is filled; otherwise its texts are collected.
        why: the error message for a text without an answer.
    """

    library: int
    line: LibraryJob
    work: str
    embedder: EmbedderSettings
    fills: bool = False
    why: str = ""

    def embedder_source(self) -> EmbedderSource:
        """Return where the command gets its vectors from."""
        settings, work = self.embedder, Path(self.work)
        if not self.fills:
            collector = TextCollector(work, self.library, settings)
            return EmbedderSource(choose=lambda _: settings, looked=collector, opened=_refuse_to_open)
        return EmbedderSource(
            choose=lambda _: settings,
            opened=partial(answers.open_known_embedder, work, why=self.why),
            sampled=partial(compared_sample, work, self.library),
        )


class BackfillSummary(LibrarySummary, frozen=True, kw_only=True):
    """The summary of a backfill, with its scopes. ``collected`` texts lack a vector; None: none were collected."""

    scopes: tuple[ScopeReport, ...]
    collected: int | None = None

    @classmethod
    def of(cls, summary: LibrarySummary, report: BackfillReport, source: EmbedderSource) -> BackfillSummary:
        """Add what a backfill reports, and what its source of vectors has collected, to a summary."""
        collected = source.looked.texts if isinstance(source.looked, TextCollector) else None
        return cls(**msgspec.structs.asdict(summary), scopes=tuple(report.scopes), collected=collected)


def compared_sample(work: Path, library: int, one: SurveyedTarget) -> list[tuple[str, bytes]] | None:
    """Return the sample by which a target was compared before anything was sent, or None if it was not.

    A second attempt to fill a library must not take a new sample: there may be no answers to its texts.
    """
    own = (sample for sample in read_samples(work, library) if sample.source is None)
    return next((sample.known for sample in own if sample.scope == one.outcome.scope), None)


def _refuse_to_open(settings: EmbedderSettings) -> AbstractContextManager[Embedder]:
    """Raise: a job that collects texts must not send any."""
    raise AssertionError(f"{settings.name} was opened to collect texts")
