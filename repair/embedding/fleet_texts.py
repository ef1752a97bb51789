"""The texts of a fleet that lack a vector: first a file for each library, then all of them together, each once.

A file of a library is written where its task is done; the rest is done by the process that leads the fleet. Both lie
in the work folder beside the results, and go when the run ends: they hold the user's texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import embedders, errors, identity
from regraft.disk import durable, links, sqlite, untrusted_sqlite, writable
from regraft.embedders import Embedder
from regraft.embedders.settings import PROVIDERS, EmbedderSettings
from regraft.errors import STOPPED, BackfillStopped
from regraft.fleet import jobs as fleet
from regraft.fleet.engine import TaskResult
from regraft.fleet.results import ResultRow
from regraft.language import tr
from repair.changes.store import Store
from repair.embedding import answers, probing
from repair.embedding.answers import StopReason
from repair.embedding.filling import ExpectedTexts, TokenCounter
from repair.embedding.run import EmbedderSource
from repair.embedding.survey import BackfillSurvey, SurveyedTarget

#: Below the work folder: what each library wants, and what is given to a cluster.
WANTED_FOLDER, PARTS_FOLDER = "wanted", "parts"
#: How many texts are written or read at once, and how many bytes of text before that.
_ROWS, _BYTES = 1000, 8 << 20


class BaseSample(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of a base with their vectors, to be compared; there are none where it has no vector yet.

    ``scope`` is what the store calls the base, ``base`` what a person does.
    """

    scope: str
    base: str
    dimensions: int | None
    #: As :func:`raw` writes texts.
    raw: list[tuple[bytes, bytes]]

    @property
    def known(self) -> list[tuple[str, bytes]]:
        """Return the texts with their vectors."""
        return [(decode_text(text), vector) for text, vector in self.raw]


class WantedText(msgspec.Struct, frozen=True):
    """A text, its key, and its tokens."""

    key: str
    text: str
    tokens: int

    @classmethod
    def of(cls, text: str, tokens: int) -> WantedText:
        """Return a text with its key: whatever a store calls it, equal texts have one."""
        return cls(identity.text_hash(text), text, tokens)


def encode_text(text: str) -> bytes:
    """Return a text as it is written down: one that a strange program cut in the middle of a character, too."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(written: bytes) -> str:
    """Return the text that :func:`raw` wrote."""
    return written.decode("utf-8", "surrogatepass")


# --- of one library --------------------------------------------------------------------------------------------------


def write_wanted(work: Path, library: int, rows: Iterable[WantedText], samples: list[BaseSample]) -> int:
    """Write what a library wants, and return how many texts that are; one that an earlier try left is written over.

    Raises:
        OSError: it cannot be written.
    """
    texts_file, samples_file = _files(work, library)
    count = 0
    with writable.allow_writes(work):
        durable.make_folders(texts_file.parent)
        durable.put_bytes(samples_file, msgspec.json.encode(samples))
        with ExitStack() as stack:
            file = stack.enter_context(durable.open_binary(texts_file, "wb"))
            writer = stack.enter_context(_writer(file))
            for chunk in text_chunks(rows):
                writer.write_table(_table(chunk))
                count += len(chunk)
    return count


def _files(work: Path, library: int) -> tuple[Path, Path]:
    folder = work / WANTED_FOLDER
    return folder / f"{library:06}.parquet", folder / f"{library:06}.json"


def _require(name: str) -> Any:
    return errors.import_optional(name, tr("Parquet files"), "parquet")


def _schema() -> Any:
    pa = _require("pyarrow")
    return pa.schema([("key", pa.string()), ("text", pa.binary()), ("tokens", pa.int64())])


def _writer(file: Any) -> Any:
    return _require("pyarrow.parquet").ParquetWriter(file, _schema(), compression="zstd")


def _table(rows: list[WantedText]) -> Any:
    found = [{"key": row.key, "text": encode_text(row.text), "tokens": row.tokens} for row in rows]
    return _require("pyarrow").Table.from_pylist(found, _schema())


def text_chunks(rows: Iterable[WantedText]) -> Iterator[list[WantedText]]:
    """Yield rows, some at a time: fewer where they are large."""
    chunk: list[WantedText] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row.text)
        if len(chunk) == _ROWS or size >= _BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def read_wanted(work: Path, library: int) -> Iterator[WantedText]:
    """Yield the texts that a library wants.

    Raises:
        OSError, ValueError: they cannot be read.
    """
    with _require("pyarrow.parquet").ParquetFile(_files(work, library)[0]) as file:
        for batch in file.iter_batches(batch_size=_ROWS):
            for row in batch.to_pylist():
                yield WantedText(row["key"], decode_text(row["text"]), row["tokens"])


def read_samples(work: Path, library: int) -> list[BaseSample]:
    """Return what a library's bases are compared by.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    return msgspec.json.decode(links.read_bytes(_files(work, library)[1]), type=list[BaseSample])


# --- of all libraries ------------------------------------------------------------------------------------------------


class DistinctTexts:
    """Different texts, each once, in the order in which they came; on the disk, however many they are."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        #: How many came, those that were there already included.
        self.came = 0

    def add(self, rows: Iterable[WantedText], known: apsw.Connection | None) -> None:
        """Add those texts that are not there yet, and to which no answer is known."""
        for chunk in text_chunks(rows):
            self.came += len(chunk)
            there = answers.answered_keys(known, [row.key for row in chunk])
            with sqlite.transaction(self._db):
                self._db.executemany(
                    "INSERT OR IGNORE INTO text VALUES (?, ?, ?)",
                    ((row.key, encode_text(row.text), row.tokens) for row in chunk if row.key not in there),
                )

    def clear(self) -> None:
        """Forget all."""
        self._db.execute("DELETE FROM text")

    @property
    def count(self) -> int:
        """Return how many there are."""
        found: Any = self._db.execute("SELECT count(*) FROM text").get
        return int(found)

    def sized(self) -> Iterator[tuple[str, int]]:
        """Yield the key of every text, and its tokens."""
        rows: Any = self._db.execute("SELECT key, tokens FROM text ORDER BY rowid")
        yield from rows

    def keyed(self) -> Iterator[tuple[str, str]]:
        """Yield the key of every text, and the text."""
        rows: Any = self._db.execute("SELECT key, text FROM text ORDER BY rowid")
        for key, text in rows:
            yield key, decode_text(text)

    def parts(self, work: Path, most: int) -> list[Path]:
        """Write them into files of so many texts at most, which anybody can read, and return these.

        Raises:
            OSError: they cannot be written.
        """
        found: list[Path] = []
        with writable.allow_writes(work):
            durable.remove_tree(work / PARTS_FOLDER)
            durable.make_folders(work / PARTS_FOLDER)
            rows = (WantedText(key, text, 0) for key, text in self.keyed())
            for chunk in text_chunks(rows):
                some = iter(chunk)
                while part := list(islice(some, most)):
                    found.append(work / PARTS_FOLDER / f"{len(found):06}.parquet")
                    with durable.open_binary(found[-1], "wb") as file, _writer(file) as writer:
                        writer.write_table(_table(part))
        return found


@contextmanager
def open_distinct_texts(work: Path, name: str) -> Iterator[DistinctTexts]:
    """Give a place for texts in a file of the work folder, anew; it is removed at the end.

    Raises:
        apsw.Error, OSError: it cannot be written.
    """
    path = work / f"{name}.sqlite"
    with writable.allow_writes(work):
        for file in (path, *(path.with_name(f"{path.name}{ending}") for ending in untrusted_sqlite.COMPANION_SUFFIXES)):
            durable.remove(file, missing_ok=True)
        try:
            with sqlite.open_writable(path, create=True) as db:
                # It is made anew by the next run.
                db.execute("PRAGMA journal_mode = OFF")
                db.execute("PRAGMA synchronous = OFF")
                db.execute("CREATE TABLE text (key TEXT PRIMARY KEY, text BLOB NOT NULL, tokens INTEGER NOT NULL)")
                yield DistinctTexts(db)
        finally:
            durable.remove(path, missing_ok=True)


# What one library wants of a fleet: the texts that its backfill would send, and what its bases are compared by.


#: How many texts are held at once.
_AT_ONCE = 256


class TextCollector:
    """Is told what a backfill is going to do in one library (:attr:`repair.embedding.run.EmbedderSource.looked`).

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
            self.texts = write_wanted(self._work, self._library, self._rows(store, seen), self._samples(seen))

    def _rows(self, store: Store, seen: BackfillSurvey) -> Iterator[WantedText]:
        tokens_of = embedders.counter(self._settings)
        for one in seen.seen:
            for text, tokens in _texts(store, seen, one, tokens_of):
                yield WantedText.of(text, tokens)

    def _samples(self, seen: BackfillSurvey) -> list[BaseSample]:
        counted, settings = embedders.counter(self._settings), self._settings
        found = []
        for one in seen.seen:
            if one.sample is not None:
                known = probing.texts_for_probe(
                    one.sample, lambda text: counted(settings.prefix + text), settings.batch
                )
                raw = [(encode_text(text), vector) for text, vector in known]
                found.append(
                    BaseSample(
                        scope=one.outcome.scope, base=one.outcome.name, dimensions=one.outcome.dimensions, raw=raw
                    )
                )
        return found


def _texts(
    store: Store, seen: BackfillSurvey, one: SurveyedTarget, tokens_of: TokenCounter
) -> Iterator[tuple[str, int]]:
    """Yield the texts of a target that are sent, with their tokens: those of units that are still to be made, too."""
    planned = one.expected
    expected = ExpectedTexts(
        coming=planned.coming, free=set(planned.there), shares_with_itself=planned.shares_with_itself
    )
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


# What is done with one library of a fleet: looking at what it wants, and filling it with what was answered.


#: The outcome of a library that a limit kept from being filled as a whole: the next run goes on with it.
LIMITED = "limit-reached"
#: Where the document of a library says how many texts it wants.
COLLECTED = "collected"


class EmbedderJson(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an embedder as JSON has them, with its provider."""

    provider: str
    said: dict[str, Any]

    @classmethod
    def of(cls, settings: EmbedderSettings) -> EmbedderJson:
        """Return how settings are handed on."""
        provider = next(name for name, kind in PROVIDERS.items() if isinstance(settings, kind))
        return cls(provider=provider, said=msgspec.to_builtins(settings, enc_hook=str))

    @property
    def settings(self) -> EmbedderSettings:
        """Return the settings."""
        return msgspec.convert(self.said, PROVIDERS[self.provider], dec_hook=lambda _, value: Path(value))


class EmbeddingJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with a library, and what it gets its vectors from.

    Args:
        library: its number.
        line: its backfill.
        work: the fleet's work folder.
        embedder: the settings of the embedder.
        fills: whether the library is filled; else only what it wants is written down.
        why: what is said of a text that has no answer.
    """

    library: int
    line: fleet.LibraryJob
    work: str
    embedder: EmbedderJson
    fills: bool = False
    why: str = ""

    def supply(self) -> EmbedderSource:
        """Return where the command gets its vectors from."""
        settings, work = self.embedder.settings, Path(self.work)
        if self.fills:
            opened = partial(answers.open_known_embedder, work, why=self.why)
            return EmbedderSource(
                choose=lambda _: settings, opened=opened, sampled=partial(compared_sample, work, self.library)
            )
        return EmbedderSource(
            choose=lambda _: settings, looked=TextCollector(work, self.library, settings), opened=_never
        )

    def told(self, supply: EmbedderSource, ended: TaskResult) -> TaskResult:
        """Return how a command ended, with what was found out besides."""
        if (
            isinstance(supply.looked, TextCollector)
            and supply.looked.texts is not None
            and "error" not in ended.document
        ):
            document = {**ended.document, COLLECTED: supply.looked.texts}
            return msgspec.structs.replace(ended, document=document)
        return ended


def compared_sample(work: Path, library: int, one: SurveyedTarget) -> list[tuple[str, bytes]] | None:
    """Return what a target of a library was compared by before the fleet sent anything; None: it was not.

    A fill that was stopped and is tried again has other texts with vectors, to which there may be no answer.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    found = (sample for sample in read_samples(work, library) if sample.scope == one.outcome.scope)
    sample = next(found, None)
    return None if sample is None else sample.known


def _never(settings: EmbedderSettings) -> AbstractContextManager[Embedder]:
    """Open no embedder: who only looks must not send anything."""
    raise AssertionError(f"{settings.name} was opened to look")


def filled_library_rows(rows: list[ResultRow], document: dict[str, Any], stop: StopReason | None) -> list[ResultRow]:
    """Return the rows of a library that was filled, with what its bases came to.

    Args:
        rows: as :func:`regraft.fleet.results.result_rows` makes them.
        document: of its backfill.
        stop: why the fleet sent nothing more, if it did not send all.
    """
    own, *bases = rows
    scopes = {scope["scope"]: scope for scope in document.get("scopes") or ()}
    if not scopes:
        return rows
    found = [_of_base(base, scopes[str(base.base)]) if base.base in scopes else base for base in bases]
    reason = next((scope["stopped"] for scope in scopes.values() if scope["stopped"]), None)
    own = msgspec.structs.replace(own, totals=_totals(scopes.values()))
    if reason is not None:
        own = msgspec.structs.replace(own, **_stopped(reason, stop))
    return [own, *found]


def _stopped(reason: str, stop: StopReason | None) -> dict[str, Any]:
    if stop is None:
        # Nothing kept its texts from being sent: they came to it after it was looked at.
        stop = StopReason(reason=reason, code=BackfillStopped.__name__, exit_status=STOPPED)
    if stop.code is None:
        return {"outcome": LIMITED, "message": reason}
    outcome = "stopped" if stop.exit_status == STOPPED else "refused"
    return {"outcome": outcome, "message": reason, "code": stop.code, "exit_status": stop.exit_status}


_COUNTS = ("eligible", "skipped_ready", "newly_ready", "shared", "ready", "failed")


def _of_base(row: ResultRow, scope: dict[str, Any]) -> ResultRow:
    outcome = row.outcome if scope["stopped"] is None else "stopped"
    return msgspec.structs.replace(row, outcome=outcome, message=scope["stopped"], totals=_totals([scope]))


def _totals(scopes: Any) -> str:
    every = list(scopes)
    counts = {name: sum(scope[name] for scope in every) for name in _COUNTS}
    return msgspec.json.encode(counts, order="sorted").decode()
