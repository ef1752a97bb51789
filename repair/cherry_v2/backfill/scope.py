"""The bodies of an index file as texts to be embedded (``docs/formats/index.md``, "Store")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import identity, sqlite, untouched
from regraft.formats.cherry_v2.index import opening
from regraft.formats.cherry_v2.index.vector_lengths import USABLE, contradicts, expected_length, lengths_of
from regraft.formats.vector_table import decoder
from regraft.text import is_blank
from repair.backfill.scope import Lacking, Survey, Written
from repair.changes.incremental import BUSY_MS, IncrementalChange, writer

#: How many keys are read at once: a query that is still open would keep others from writing.
_AT_ONCE = 1000
#: Bodies of units; what is left of others is waste.
_TEXTS = """SELECT DISTINCT t.embedding_text_hash AS hash FROM search_text t
   WHERE t.target_type = 'search_unit' AND t.kind = 'body' AND typeof(t.embedding_text_hash) = 'text'
     AND EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)"""
_JUDGED = f"""SELECT b.hash AS hash, CASE WHEN e.embedding_text_hash IS NULL THEN NULL ELSE {USABLE} END AS usable
   FROM ({_TEXTS}) b LEFT JOIN embedding e ON e.embedding_text_hash = b.hash"""
_SURVEY = f"SELECT count(*), total(usable IS NULL), total(usable = 0) FROM ({_JUDGED})"
#: The signs before columns keep SQLite from going through all bodies: these are the same for each.
_LACKING = f"""SELECT DISTINCT t.embedding_text_hash FROM search_text t
   LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
   WHERE t.embedding_text_hash >= :first AND +t.target_type = 'search_unit' AND +t.kind = 'body'
     AND typeof(t.embedding_text_hash) = 'text'
     AND EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)
     AND (e.embedding_text_hash IS NULL OR NOT {USABLE}) ORDER BY 1 LIMIT {_AT_ONCE}"""
_LACKING_OF = f"""SELECT t.embedding_text_hash, CAST(t.text AS BLOB), e.embedding_text_hash IS NOT NULL
   FROM search_text t
   LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
   WHERE t.embedding_text_hash IN (SELECT value FROM json_each(:keys)) AND +t.kind = 'body'
     AND (e.embedding_text_hash IS NULL OR NOT {USABLE})
   GROUP BY 1"""
_READY_OF = f"""SELECT e.embedding_text_hash, e.vector_blob FROM embedding e
   WHERE e.embedding_text_hash IN (SELECT value FROM json_each(:keys)) AND {USABLE}"""
_SAMPLE = f"""SELECT t.embedding_text_hash, CAST(t.text AS BLOB), e.vector_blob FROM embedding e
   CROSS JOIN search_text t ON t.embedding_text_hash = e.embedding_text_hash AND +t.kind = 'body'
   WHERE e.rowid >= :start AND trim(t.text) <> '' AND {USABLE} ORDER BY e.rowid LIMIT 1"""


class IndexScope:
    """One base's index, opened for reading without a trace, or for writing; see :func:`opened`."""

    def __init__(
        self,
        db: apsw.Connection,
        *,
        name: str,
        label: str,
        dimensions: int | None,
        growing: IncrementalChange | None,
    ) -> None:
        self._db = db
        self._decoded = decoder(db)
        self.name = name
        self.label = label
        self._growing = growing
        lengths = lengths_of(db)
        length = expected_length(lengths, dimensions)
        #: Whether most vectors contradict the catalog's dimensions: which of them are right is then not known.
        self.is_at_odds = contradicts(lengths, dimensions)
        #: The dimensions that most vectors have; None where there are none.
        self.usual_dimensions = expected_length(lengths, None) // 4 if lengths else None
        self.dimensions = length // 4 if lengths or dimensions is not None else None
        self._values: dict[str, Any] = {"length": length}

    def survey(self) -> Survey:
        """See :class:`~repair.backfill.scope.Scope`."""
        row: Any = self._db.execute(_SURVEY, self._values).get
        count, pending, stale = (int(number) for number in row)
        return Survey(ready=count - pending - stale, pending=pending, stale=stale)

    def lacking(self) -> Iterator[str]:
        """See :class:`~repair.backfill.scope.Scope`."""
        first = ""
        while keys := self._db.execute(_LACKING, {**self._values, "first": first}).fetchall():
            yield from (str(key) for (key,) in keys)
            first = f"{keys[-1][0]}\0"  # the next text that there can be

    def vectors(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the good vectors that there are of these keys."""
        rows = self._db.execute(_READY_OF, {**self._values, "keys": msgspec.json.encode(keys).decode()})
        return {str(key): vector for key, vector in rows}

    def texts(self, keys: Sequence[str]) -> dict[str, Lacking]:
        """See :class:`~repair.backfill.scope.Scope`."""
        rows = self._db.execute(_LACKING_OF, {**self._values, "keys": msgspec.json.encode(keys).decode()})
        return {key: Lacking(self._text(raw, key), bool(stale)) for key, raw, stale in rows}

    def _text(self, raw: bytes | None, key: str) -> str | None:
        """Return a text that a key stands for; None for another one, which need not even be UTF-8."""
        text = self._decoded(raw)
        return text if text is not None and identity.text_hash(text) == key else None

    def write(self, vectors: Mapping[str, bytes], now_ms: int) -> Written:
        """See :class:`~repair.backfill.scope.Scope`."""
        growing, db = self._growing, self._db
        with sqlite.transaction(db) if growing is None else growing.transaction(db, ("embedding",)):
            return self._write(vectors, now_ms)

    def _write(self, vectors: Mapping[str, bytes], now_ms: int) -> Written:
        pending = stale = 0
        for key, vector in vectors.items():
            usable = self._db.execute(
                f"SELECT {USABLE} FROM embedding e WHERE e.embedding_text_hash = :key", {**self._values, "key": key}
            ).get
            if usable is None:
                # A text that is gone meanwhile needs none.
                self._db.execute(
                    "INSERT INTO embedding (embedding_text_hash, vector_blob, created_at) SELECT ?1, ?2, ?3"
                    " WHERE EXISTS (SELECT 1 FROM search_text WHERE embedding_text_hash = ?1)",
                    (key, vector, now_ms),
                )
                pending += self._db.changes()
            elif not usable:
                self._db.execute(
                    "UPDATE embedding SET vector_blob = ?, created_at = ? WHERE embedding_text_hash = ?",
                    (vector, now_ms, key),
                )
                stale += 1
        return Written(pending, stale)

    def failed(self, key: str, code: str, now_ms: int) -> None:
        """Do nothing: an index has no place for that."""

    def sample(self, count: int) -> list[tuple[str, bytes]]:
        """See :class:`~repair.backfill.scope.Scope`; they lie all over the file, and are always the same ones."""
        low, high = self._db.execute("SELECT min(rowid), max(rowid) FROM embedding").get or (None, None)
        if low is None:
            return []
        starts = {low + (high - low) * place // count for place in range(count)}
        found = {}
        for start in sorted(starts):
            row: Any = self._db.execute(_SAMPLE, {**self._values, "start": start}).fetchone()
            text = None if row is None else self._text(row[1], row[0])
            if text is not None and not is_blank(text):
                found[text] = row[2]
        return list(found.items())


@contextmanager
def opened(
    path: Path,
    base_id: str,
    *,
    is_placed: bool = True,
    label: str = "",
    dimensions: int | None = None,
    growing: IncrementalChange | None = None,
    writable: bool = False,
) -> Iterator[IndexScope]:
    """Open the index of a base as a scope.

    Args:
        path: the index file.
        base_id: the base's id.
        is_placed: the file lies where that base's index has to, so that it has to give that id too.
        label: what a person calls the base.
        dimensions: those of its vectors, by the catalog or the user.
        growing: what records what takes the vectors back.
        writable: open it for writing; else nothing is left beside it.

    Raises:
        IndexIncomplete, IndexVersionUnknown, IndexForeign: it is not the index of that base in the current layout.
        SchemaForeign: its vectors cannot be written without changing other rows.
        RowsMayBeRefused: a new vector may be refused.
        apsw.Error, OSError, ValueError: it cannot be read, or is damaged.
    """
    with ExitStack() as stack:
        if writable:
            stack.enter_context(opening.writer(path))
            db = stack.enter_context(writer(path))
            sqlite.load_vectors(db)
        else:
            db = stack.enter_context(sqlite.reading(path, vectors=True, beside_writers=True))
            db.set_busy_timeout(BUSY_MS)
        opening.demand_identity(db, path, base_id if is_placed else None)
        # What could not be written is not to be paid for.
        untouched.demand_own_rules(db, path, ("embedding",))
        untouched.demand_open_to_rows(db, path, "embedding")
        yield IndexScope(db, name=base_id, label=label or base_id, dimensions=dimensions, growing=growing)


@contextmanager
def opened_empty(base_id: str, *, label: str, dimensions: int | None) -> Iterator[IndexScope]:
    """Give the scope of an index that is not built yet: it has no text."""
    with sqlite.in_memory() as db:
        sqlite.load_vectors(db)
        opening.create(db, base_id, 0)
        yield IndexScope(db, name=base_id, label=label, dimensions=dimensions, growing=None)
