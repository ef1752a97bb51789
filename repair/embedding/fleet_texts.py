"""The texts that the libraries of a fleet lack vectors for, and the job that collects them or fills one library.

Each library's job writes its texts to a file of JSON lines in the work folder, with a sample of texts with vectors.
The process that runs the fleet merges them into :class:`DistinctTexts`. The files hold the user's texts and are removed
when the run ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import embedders, identity
from regraft.disk import durable, links, sqlite, untrusted_sqlite, writable
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

#: Folders in the work folder: the texts of each library, and the parts that a cluster reads.
WANTED_FOLDER, PARTS_FOLDER = "wanted", "parts"
#: Texts written or read at a time, and the characters after which fewer are.
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

    def canary(self) -> Canary | None:
        """Return the vectors of another store to compare; None if they are the base's own."""
        if self.source is None:
            return None
        return Canary(
            source=Path(self.source),
            base=self.source_base,
            store=self.base,
            dimensions=self.dimensions or 0,
            sample=tuple(self.known),
        )

    @property
    def known(self) -> list[tuple[str, bytes]]:
        """The texts with their vectors."""
        return [(decode_text(text), vector) for text, vector in self.raw]


class WantedText(msgspec.Struct, frozen=True):
    """A text that lacks a vector, with its key and its tokens."""

    key: str
    text: str
    tokens: int

    @classmethod
    def of(cls, text: str, tokens: int) -> WantedText:
        """Make the key from the text, so that equal texts of all stores have one key."""
        return cls(identity.text_hash(text), text, tokens)


def encode_text(text: str) -> bytes:
    """Encode a text as UTF-8; lone surrogates, which some applications store, are kept."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(written: bytes) -> str:
    """Decode what :func:`encode_text` encoded."""
    return written.decode("utf-8", "surrogatepass")


# --- the files of one library ----------------------------------------------------------------------------------------


def write_wanted(work: Path, library: int, texts: Iterable[WantedText], samples: list[BaseSample]) -> int:
    """Write the texts and samples of a library, replacing those of an earlier attempt; returns the number of texts.

    Raises:
        OSError: the files cannot be written.
    """
    texts_file, samples_file = _files(work, library)
    count = 0
    with writable.allow_writes(work):
        durable.make_folders(texts_file.parent)
        durable.put_bytes(samples_file, msgspec.json.encode(samples))
        with durable.open_binary(texts_file, "wb") as file:
            for one in texts:
                file.write(_encode_line(one))
                count += 1
    return count


def _files(work: Path, library: int) -> tuple[Path, Path]:
    folder = work / WANTED_FOLDER
    return folder / f"{library:06}.jsonl", folder / f"{library:06}.json"


#: A line of a file of texts: the key, the text as UTF-8, and the tokens.
_LINE = msgspec.json.Decoder(tuple[str, bytes, int])


def _encode_line(one: WantedText) -> bytes:
    return msgspec.json.encode((one.key, encode_text(one.text), one.tokens)) + b"\n"


def _read_lines(path: Path) -> Iterator[WantedText]:
    with links.open_for_reading(path) as file:
        for line in file:
            key, text, tokens = _LINE.decode(line)
            yield WantedText(key, decode_text(text), tokens)


def text_chunks(texts: Iterable[WantedText]) -> Iterator[list[WantedText]]:
    """Group texts into lists of a limited length and size."""
    chunk: list[WantedText] = []
    size = 0
    for one in texts:
        chunk.append(one)
        size += len(one.text)
        if len(chunk) == _ROWS or size >= _BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def read_wanted(work: Path, library: int) -> Iterator[WantedText]:
    """Yield the texts of a library.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    yield from _read_lines(_files(work, library)[0])


def read_samples(work: Path, library: int) -> list[BaseSample]:
    """Return the samples of a library's bases.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    return msgspec.json.decode(links.read_bytes(_files(work, library)[1]), type=list[BaseSample])


# --- the texts of all libraries --------------------------------------------------------------------------------------


class DistinctTexts:
    """Distinct texts in the order in which they were added, in a temporary SQLite file."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        #: The number of texts given to :meth:`add`, duplicates included.
        self.added = 0

    def add(self, texts: Iterable[WantedText], known: apsw.Connection | None) -> None:
        """Add texts that are new and have no known answer."""
        for chunk in text_chunks(texts):
            self.added += len(chunk)
            answered = answers.answered_keys(known, [one.key for one in chunk])
            with sqlite.transaction(self._db):
                self._db.executemany(
                    "INSERT OR IGNORE INTO text VALUES (?, ?, ?)",
                    ((one.key, encode_text(one.text), one.tokens) for one in chunk if one.key not in answered),
                )

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

    def keyed(self) -> Iterator[tuple[str, str]]:
        """Yield every key with its text."""
        rows: Any = self._db.execute("SELECT key, text FROM text ORDER BY rowid")
        for key, text in rows:
            yield key, decode_text(text)

    def parts(self, work: Path, limit: int) -> list[Path]:
        """Write the texts to files of up to ``limit`` texts, for other processes; returns the files.

        Raises:
            OSError: they cannot be written.
        """
        found: list[Path] = []
        with writable.allow_writes(work):
            durable.remove_tree(work / PARTS_FOLDER)
            durable.make_folders(work / PARTS_FOLDER)
            texts = (WantedText(key, text, 0) for key, text in self.keyed())
            for chunk in text_chunks(texts):
                rest = iter(chunk)
                while part := list(islice(rest, limit)):
                    found.append(work / PARTS_FOLDER / f"{len(found):06}.jsonl")
                    durable.put_bytes(found[-1], b"".join(map(_encode_line, part)))
        return found


def read_part(path: Path) -> list[tuple[str, str]]:
    """Return the texts of a file of :meth:`DistinctTexts.parts`, with their keys.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    return [(one.key, one.text) for one in _read_lines(path)]


@contextmanager
def open_distinct_texts(work: Path, name: str) -> Iterator[DistinctTexts]:
    """Create an empty file of distinct texts in the work folder; it is removed at the end.

    Raises:
        apsw.Error, OSError: it cannot be written.
    """
    path = work / f"{name}.sqlite"
    with writable.allow_writes(work):
        for file in (path, *(path.with_name(f"{path.name}{ending}") for ending in untrusted_sqlite.COMPANION_SUFFIXES)):
            durable.remove(file, missing_ok=True)
        try:
            with sqlite.open_writable(path, create=True) as db:
                # No durability needed: the next run creates it again.
                db.execute("PRAGMA journal_mode = OFF")
                db.execute("PRAGMA synchronous = OFF")
                db.execute("CREATE TABLE text (key TEXT PRIMARY KEY, text BLOB NOT NULL, tokens INTEGER NOT NULL)")
                yield DistinctTexts(db)
        finally:
            durable.remove(path, missing_ok=True)


# --- collecting ------------------------------------------------------------------------------------------------------


class TextCollector:
    """Writes the texts that a backfill of one library would send (:attr:`repair.embedding.run.EmbedderSource.looked`).

    Args:
        work: the fleet's work folder.
        library: the library's number.
        settings: the embedder's.
    """

    def __init__(self, work: Path, library: int, settings: EmbedderSettings) -> None:
        self._work = work
        self._library = library
        self._settings = settings
        #: The number of texts; None if the library needs nothing, or was not surveyed.
        self.texts: int | None = None

    def __call__(self, store: Store, survey: BackfillSurvey) -> None:
        """Write the texts and samples if there is anything to do.

        Raises:
            apsw.Error, OSError, ValueError: a base cannot be read, or the file cannot be written.
        """
        if survey.is_needed:
            tokens_of = embedders.counter(self._settings)
            wanted = (
                WantedText.of(text, tokens)
                for one in survey.targets
                for text, tokens in _texts_to_send(store, survey, one, tokens_of)
            )
            self.texts = write_wanted(self._work, self._library, wanted, self._collect_samples(survey))

    def _collect_samples(self, survey: BackfillSurvey) -> list[BaseSample]:
        count_tokens, settings = embedders.counter(self._settings), self._settings

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
        if self.fills:
            opened = partial(answers.open_known_embedder, work, why=self.why)
            return EmbedderSource(
                choose=lambda _: settings, opened=opened, sampled=partial(compared_sample, work, self.library)
            )
        collector = TextCollector(work, self.library, settings)
        return EmbedderSource(choose=lambda _: settings, looked=collector, opened=_refuse_to_open)


class BackfillSummary(LibrarySummary, frozen=True, kw_only=True):
    """The summary of a backfill, with its scopes. ``collected`` texts lack a vector; None: none were collected."""

    scopes: tuple[ScopeReport, ...]
    collected: int | None = None

    @classmethod
    def of(cls, summary: LibrarySummary, report: BackfillReport, source: EmbedderSource) -> BackfillSummary:
        """Add what a backfill reports, and what its source of vectors has collected, to a summary."""
        looked = source.looked
        return cls(
            **msgspec.structs.asdict(summary),
            scopes=tuple(report.scopes),
            collected=looked.texts if isinstance(looked, TextCollector) else None,
        )


def compared_sample(work: Path, library: int, one: SurveyedTarget) -> list[tuple[str, bytes]] | None:
    """Return the sample by which a target was compared before anything was sent, or None if it was not.

    A second attempt to fill a library must not take a new sample: there may be no answers to its texts.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    samples = read_samples(work, library)
    found = (sample for sample in samples if sample.scope == one.outcome.scope and sample.source is None)
    sample = next(found, None)
    return None if sample is None else sample.known


def _refuse_to_open(settings: EmbedderSettings) -> AbstractContextManager[Embedder]:
    """Raise: a job that collects texts must not send any."""
    raise AssertionError(f"{settings.name} was opened to collect texts")
