"""Vectors that a base lacks: which another index has, whether it may give them, and writing them.

Rules: ``docs/repair-from.md``, "When vectors are taken".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import apsw
import msgspec

from regraft import sqlite
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.index.vector_lengths import USABLE
from regraft.language import tr
from repair.cherry_v2.from_source.donors import Donor

#: Texts that are looked up at once.
_AT_ONCE = 500
#: Texts whose vectors are compared before any is taken.
COMPARED = 8
#: Bodies of units; others are waste. The signs before columns keep SQLite from the indexes of these.
_IS_BODY = """t.embedding_text_hash > :after AND +t.target_type = 'search_unit' AND +t.kind = 'body'
   AND typeof(t.embedding_text_hash) = 'text'
   AND EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)"""
_LACKING = f"""SELECT DISTINCT t.embedding_text_hash FROM search_text t
   LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
   WHERE {_IS_BODY} AND (e.embedding_text_hash IS NULL OR NOT {USABLE}) ORDER BY 1 LIMIT {_AT_ONCE}"""
_READY = f"""SELECT e.embedding_text_hash, e.vector_blob FROM embedding e
   WHERE e.embedding_text_hash > :after AND {USABLE}
     AND EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = e.embedding_text_hash AND {_IS_BODY})
   ORDER BY 1 LIMIT {_AT_ONCE}"""
_PUT = """INSERT INTO embedding (embedding_text_hash, vector_blob, created_at) VALUES (?, ?, ?)
   ON CONFLICT (embedding_text_hash) DO UPDATE SET vector_blob = excluded.vector_blob,
     created_at = excluded.created_at"""


class Model(msgspec.Struct, frozen=True):
    """The model of a base and the number of dimensions of its vectors; None: the base has none."""

    id: str | None
    dimensions: int | None

    @classmethod
    def of(cls, row: Row | None) -> Model:
        """Return the model that a row of the catalog names."""
        model, dimensions = (row or {}).get("embedding_model_id"), (row or {}).get("dimensions")
        is_length = isinstance(dimensions, int) and dimensions > 0
        return cls(model if isinstance(model, str) else None, dimensions if is_length else None)

    @property
    def bytes(self) -> int:
        """The size of a vector."""
        return 4 * (self.dimensions or 0)


def lacking(db: apsw.Connection, size: int) -> Iterator[list[str]]:
    """Yield the hashes of the texts of an open index that have no usable vector, ascending, some at once.

    Rows may be written between two steps.
    """
    sqlite.load_vectors(db)
    after = ""
    while keys := [str(key) for (key,) in db.execute(_LACKING, {"after": after, "length": size}).fetchall()]:
        yield keys
        after = keys[-1]


def without_vector(db: apsw.Connection, keys: Collection[str], size: int) -> list[str]:
    """Return those of some text hashes for which an open index has no usable vector."""
    sqlite.load_vectors(db)
    query = f"""SELECT e.embedding_text_hash FROM embedding e
       WHERE e.embedding_text_hash IN (SELECT value FROM json_each(:keys)) AND {USABLE}"""
    wanted = {"keys": msgspec.json.encode(list(keys)).decode(), "length": size}
    ready = {key for (key,) in db.execute(query, wanted)}
    return [key for key in keys if key not in ready]


def disagreement(model: Model, donor: Donor, index: Path | None) -> str | None:
    """Return why no vector of a donor may be taken; None where model, dimensions and compared vectors agree.

    Args:
        model: that of the base that is repaired.
        donor: an index of the source.
        index: the index of the base, or what is left of it; None: it is missing. Where it has no usable vector,
            nothing can be compared.

    Raises:
        apsw.Error, OSError: one of both cannot be read.
    """
    other = Model.of(donor.row)
    if other.id != model.id:
        return tr("its model is {model}, and there it is {other}", model=model.id, other=other.id or tr("none"))
    if other.dimensions != model.dimensions:
        return tr(
            "its vectors have {dimensions} dimensions, and there they have {other}",
            dimensions=model.dimensions,
            other=other.dimensions,
        )
    return None if index is None else _differing(model, donor, index)


def _differing(model: Model, donor: Donor, index: Path) -> str | None:
    compared, has_any, after = 0, False, ""
    with sqlite.reading(index, vectors=True) as db:
        while rows := db.execute(_READY, {"after": after, "length": model.bytes}).fetchall():
            after, has_any = str(rows[-1][0]), True
            there = donor.vectors([str(key) for key, _ in rows], model.bytes)
            for key, vector in rows:
                if key in there and compared < COMPARED:
                    compared += 1
                    if there[key] != vector:
                        return tr("a text of both has another vector there ({key})", key=key)
            if compared == COMPARED:
                break
    if has_any and not compared:
        return tr("both have no text with a vector in common, so that no vectors can be compared")
    return None


class Wanted:
    """The hashes of texts of one base that lack a vector, in a temporary database."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        db.execute("CREATE TABLE wanted (hash TEXT PRIMARY KEY) WITHOUT ROWID")

    def add(self, keys: Iterable[str]) -> None:
        """Add hashes; each counts once."""
        self._db.executemany("INSERT INTO wanted VALUES (?) ON CONFLICT DO NOTHING", ((key,) for key in keys))

    def add_all(self, pages: Iterable[Collection[str]]) -> None:
        """Add hashes that come some at once."""
        for keys in pages:
            self.add(keys)

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._db.execute("SELECT count(*) FROM wanted").get)

    def pages(self) -> Iterator[list[str]]:
        """Yield the hashes, ascending, some at once."""
        after = ""
        query = f"SELECT hash FROM wanted WHERE hash > ? ORDER BY 1 LIMIT {_AT_ONCE}"
        while keys := [str(key) for (key,) in self._db.execute(query, (after,)).fetchall()]:
            yield keys
            after = keys[-1]

    def is_known_to(self, donor: Donor) -> bool:
        """Whether a donor has a vector for one of them."""
        return any(donor.has_any(keys) for keys in self.pages())

    def found_in(self, donors: Sequence[Donor], size: int) -> int:
        """Return how many have a vector of ``size`` bytes in one of the donors."""
        return sum(len(found(donors, keys, size)) for keys in self.pages())


def found(donors: Sequence[Donor], keys: Collection[str], size: int) -> dict[str, bytes]:
    """Return the vectors of text hashes, each from the first donor that has it."""
    vectors: dict[str, bytes] = {}
    for donor in donors:
        missing = [key for key in keys if key not in vectors]
        if missing:
            vectors.update(donor.vectors(missing, size))
    return vectors


def fill(db: apsw.Connection, *, path: Path, donors: Sequence[Donor], model: Model, count: int, now_ms: int) -> None:
    """Write the vectors that an open index lacks and the donors have.

    Raises:
        PlanOutdated: there are not as many as planned.
    """
    written = 0
    for keys in lacking(db, model.bytes) if count else ():
        vectors = found(donors, keys, model.bytes)
        db.executemany(_PUT, ((key, vector, now_ms) for key, vector in vectors.items()))
        written += len(vectors)
    if written != count:
        raise PlanOutdated(path=path, reason=tr("it was written to meanwhile"))
