"""The audit of one index file: its identity, what its rows say of each other, and what they say of the catalog.

The file is opened without a trace and read in bulk. Text is read as bytes: a damaged column holds anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.audit import sqlite_checks
from checks.audit.collector import FindingCollector, Level, display_text
from checks.audit.sqlite_checks import find_open_problem
from checks.cherry_v2 import detect
from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import schema as v2_schema
from checks.cherry_v2.raw_files import IndexMaterial, find_stored_path_problem
from checks.cherry_v2.schema import FULL_TEXT, SchemaShape, compare_schema
from regraft.disk import file_paths, links, sqlite, untrusted_sqlite
from regraft.disk.file_paths import fold_name
from regraft.formats.cherry_v2.index import SCHEMA_VERSION, schema
from regraft.language import tr
from regraft.text import decode_utf8

#: Keys are hashes, so that rows are looked up in no order.
_CACHE_KIB = 64_000


class ExpectedIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What lies around an index says of it; None where nothing does."""

    #: What findings are filed under.
    base: str | None
    #: The name of its folder, which its identity row has to give.
    folder: str | None = None
    #: Whether the base has a model; None where there is no catalog.
    has_model: bool | None = None
    #: What may stand between two units and is in none of them, besides blanks; None where no catalog tells it.
    separator: str | None = None
    #: The dimensions of its vectors by the catalog (:func:`vector_lengths.stated_dimensions`).
    dimensions: int | None = None


class IndexFacts(msgspec.Struct):
    """What an audit saw in an index file."""

    counts: dict[str, int] = msgspec.field(default_factory=dict)
    #: None where the table cannot be read.
    materials: list[IndexMaterial] | None = None
    #: How many vectors there are of each length in bytes.
    lengths: Counter[int] = msgspec.field(default_factory=Counter)
    #: How many vectors there are of each norm, in steps; None where that was not looked at.
    norms: dict[str, int] | None = None
    is_readable: bool = True


def audit_index(path: Path, expected: ExpectedIndex, ledger: FindingCollector) -> IndexFacts:
    """Check one index file; what is wrong goes into ``ledger``.

    Never raises for what is in the file.
    """
    index = IndexFacts()
    problem = find_open_problem(path)
    if problem is not None:
        ledger.add(
            v2.UNREADABLE,
            tr("{named} cannot be read: {problem}", named=display_text(path.name), problem=problem),
            base=expected.base,
        )
        index.is_readable = False
        return index
    if _has_journal(path):
        message = tr("the journal of an unfinished transaction lies beside the index")
        ledger.add(v2.HOT_JOURNAL, message, base=expected.base)
    mark = sqlite.read_file_state(path)
    try:
        with sqlite.open_readonly(path, vectors=True) as db, ledger.watched(db, file_paths.stat(path).st_size):
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            _IndexAudit(db, expected, ledger, index).run()
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        if sqlite.is_write_failure(error):
            raise
        ledger.add(
            v2.UNREADABLE,
            tr("{named} cannot be read: {error}", named=display_text(path.name), error=error),
            base=expected.base,
        )
        index.is_readable = False
    if sqlite.read_file_state(path) != mark:
        # What else was found may be of two states at once.
        ledger.add(
            v2.UNREADABLE,
            tr("{named} cannot be read: {moved}", named=display_text(path.name), moved=sqlite.CHANGED_DURING_READ),
            base=expected.base,
        )
        index.is_readable = False
    return index


def _has_journal(path: Path) -> bool:
    try:
        return any(
            beside.name.endswith("-journal") for beside in untrusted_sqlite.find_companions(links.real_path(path))
        )
    except OSError:
        return False


class _IndexAudit:
    def __init__(
        self, db: apsw.Connection, expected: ExpectedIndex, ledger: FindingCollector, index: IndexFacts
    ) -> None:
        self._db = db
        self._expected = expected
        self._ledger = ledger
        self._index = index
        self._shape = SchemaShape()

    def run(self) -> None:
        steps = [("structure", self._structure), ("identity", self._identity), ("materials", self._materials)]
        if self._ledger.level >= Level.QUICK:
            steps.insert(2, ("counts", self._counts))
            steps += [("relations", self._relations), ("coverage", self._coverage)]
        if self._ledger.level >= Level.DEFAULT:
            steps += [("texts", self._texts), ("vectors", self._vectors)]
        if self._ledger.level >= Level.QUICK:
            steps.append((tr("full text"), self._full_text))
        if self._ledger.level >= Level.DEEP:
            steps.append(("integrity", self._integrity))
        self._ledger.run("index" if self._expected.base is None else self._expected.base, steps, self._expected.base)

    def _add(self, name: str, message: str, **more: Any) -> None:
        self._ledger.add(name, message, base=self._expected.base, **more)

    def _each(self, name: str, message: str, noun: str, sql: str) -> None:
        """Count the rows of a query as one finding; its first column names them."""
        for row in self._db.execute(sql):
            self._add(name, message, noun=noun, sample=row[0])

    # --- structure and identity --------------------------------------------------------------------------------------

    def _structure(self) -> None:
        self._shape = compare_schema(self._db, self._ledger)
        for what in self._shape.missing:
            self._add(v2.SCHEMA_MISSING, tr("missing or different: {n} of the layout"), noun="part", sample=what)
        sqlite_checks.add_foreign_objects(v2_schema.find_foreign_in_index(self._db), self._ledger, self._expected.base)

    def _identity(self) -> None:
        if not self._shape.has("meta"):
            return
        rows = self._db.execute("SELECT schema_version, CAST(base_id AS BLOB) FROM meta ORDER BY id LIMIT 2").fetchall()
        if not rows:
            self._add(v2.META_MISSING, tr("the index has no identity row"))
            return
        version, base = rows[0][0], display_text(rows[0][1])
        if version != SCHEMA_VERSION or not isinstance(version, int):
            message = tr(
                "the index says that it is of version {named}, not {schema_version}: the application would",
                named=display_text(version),
                schema_version=SCHEMA_VERSION,
            )
            is_newer = isinstance(version, int) and version > SCHEMA_VERSION
            self._add(v2.SCHEMA_VERSION, tr("{message_} empty it", message_=message), is_beyond_repair=is_newer)
        if self._expected.folder is not None and base != self._expected.folder:
            self._add(v2.META_BASE, tr("the index says that it is of base {base}", base=base), sample=base)

    def _counts(self) -> None:
        for name, table in (("materials", "material"), ("units", "search_unit"), ("bodies", "search_text")):
            if self._shape.has(table):
                self._index.counts[name] = self._db.execute(f"SELECT count(*) FROM {table}").get
        if self._shape.has("embedding"):
            for kind, length, count in self._db.execute(
                "SELECT typeof(vector_blob), length(vector_blob), count(*) FROM embedding GROUP BY 1, 2"
            ):
                if kind == "blob" and length and length % 4 == 0:
                    self._index.lengths[length] += count
                self._index.counts["embeddings"] = self._index.counts.get("embeddings", 0) + count
            self._index.counts.setdefault("embeddings", 0)

    # --- what rows say of each other ---------------------------------------------------------------------------------

    def _relations(self) -> None:
        if self._shape.has("search_unit", "search_text"):
            for name, message, noun, sql in _UNITS_AND_BODIES:
                self._each(name, message, noun, sql)
        if self._shape.has("search_unit", "material", "content"):
            for name, message, noun, sql in _TEXTS_AND_MATERIALS:
                self._each(name, message, noun, sql)

    def _coverage(self) -> None:
        if not self._shape.has("search_text", "embedding"):
            return
        vectors_there = self._index.counts.get("embeddings", 0)
        has_model = vectors_there > 0 if self._expected.has_model is None else self._expected.has_model
        self._each(v2.VECTOR_ORPHAN, tr("{n} that no body names"), "vector", _VECTOR_ORPHANS)
        if has_model:
            before = self._ledger.count(v2.VECTOR_MISSING, self._expected.base)
            self._each(v2.VECTOR_MISSING, tr("{n} without a vector"), "body", _VECTORS_MISSING)
            missing = self._ledger.count(v2.VECTOR_MISSING, self._expected.base) - before
            missing += schema.count_bodies_of_other_length(self._db, self._length())
            self._index.counts["covered"] = self._index.counts.get("bodies", missing) - missing
        elif vectors_there:
            message = tr(
                "{n} in a base without a model: regraft repair --only embedding.unexpected --model ID gives it its "
                "model again, regraft gc --only embedding.unexpected removes them"
            )
            self._add(v2.VECTOR_UNEXPECTED, message, noun="vector", count=vectors_there)
        self._dimensions()

    def _length(self) -> int:
        return schema.choose_vector_length(self._index.lengths, self._expected.dimensions)

    def _dimensions(self) -> None:
        stated, lengths = self._expected.dimensions, self._index.lengths
        if stated is None or not schema.lengths_contradict(lengths, stated):
            return
        if len(lengths) == 1:
            usual = next(iter(lengths)) // 4
            message = tr("the catalog says {stated} dimensions, the vectors have {usual}", stated=stated, usual=usual)
            self._add(v2.BASE_DIMENSIONS, message)
            return
        message = tr(
            "the catalog says {stated} dimensions, and {others} of {all} vectors have others: find out which are "
            "right; where the catalog is, regraft repair --only embedding.length removes the others",
            stated=stated,
            others=lengths.total() - lengths[4 * stated],
            all=lengths.total(),
        )
        self._add(v2.BASE_DIMENSIONS, message, is_beyond_repair=True)

    # --- materials and their paths -----------------------------------------------------------------------------------

    def _materials(self) -> None:
        if not self._shape.has("material"):
            return
        materials = []
        seen: set[str] = set()
        is_empty = f"{_NO_CONTENT} AND NOT {_HAS_UNITS}" if self._shape.has("content", "search_unit") else "0"
        for key, raw, content, empty in self._db.execute(
            "SELECT CAST(material_id AS BLOB), CAST(relative_path AS BLOB), CAST(current_content_hash AS BLOB),"
            f" {is_empty} FROM material m ORDER BY rowid"
        ):
            problem = find_stored_path_problem(raw)
            if problem is not None:
                message = tr("a path that is not valid: {problem}", problem=problem)
                self._add(v2.PATH_UNSAFE, message, sample=raw)
            path = display_text(b"" if raw is None else raw)
            whole = decode_utf8(raw) if raw is not None else ""
            # Paths of a folder's files can have a long start in common: all of them is compared.
            folded = fold_name(whole)
            if folded in seen:
                message = tr("{n} with a path that another has, but for letter case or Unicode normalisation")
                self._add(v2.PATH_CLASH, message, noun="material", sample=path)
            seen.add(folded)
            content_hash = None if content is None else display_text(content)
            materials.append(
                IndexMaterial(id=display_text(key), path=whole, content_hash=content_hash, is_empty=bool(empty))
            )
        self._index.materials = materials

    # --- what takes time ---------------------------------------------------------------------------------------------

    def _texts(self) -> None:
        detect.check_texts(self._db, self._shape, self._ledger, self._expected.base, self._expected.separator)

    def _vectors(self) -> None:
        if self._shape.has("embedding"):
            is_stated = self._expected.dimensions is not None
            self._index.norms = detect.check_vectors(
                self._db, self._length(), self._ledger, self._expected.base, is_stated=is_stated
            )

    def _full_text(self) -> None:
        if self._shape.has("search_text", FULL_TEXT):
            detect.check_full_text(self._db, self._shape, self._ledger, self._expected.base)

    def _integrity(self) -> None:
        for (message,) in self._db.execute("PRAGMA integrity_check(20)"):
            if message != "ok":
                self._add(v2.CORRUPT, tr("SQLite's own check says {n}"), noun="time", sample=message)
        for table, row, *_ in self._db.execute("PRAGMA foreign_key_check"):
            # Units, and materials with units, are found by what is wrong with them, and that may be mended.
            if not _is_found(self._db, table, row):
                self._add(v2.CORRUPT, tr("{n} with a key that leads nowhere"), noun="row", sample=f"{table} {row}")


def _is_found(db: apsw.Connection, table: str, row: int) -> bool:
    """Tell whether another finding names a row whose key leads nowhere."""
    with_units = f"SELECT EXISTS (SELECT 1 FROM material m WHERE m.rowid = ? AND {_HAS_UNITS})"
    return table == "search_unit" or (table == "material" and bool(db.execute(with_units, (row,)).get))


_NO_CONTENT = "NOT EXISTS (SELECT 1 FROM content c WHERE c.content_hash = m.current_content_hash)"
_HAS_UNITS = "EXISTS (SELECT 1 FROM search_unit u WHERE u.material_id = m.material_id)"

_UNITS_AND_BODIES = (
    (
        v2.NO_BODY,
        tr("{n} without a body"),
        "unit",
        """SELECT CAST(u.unit_id AS BLOB) FROM search_unit u
            WHERE NOT EXISTS (SELECT 1 FROM search_text t WHERE t.target_type = 'search_unit'
                                 AND t.target_id = u.unit_id AND t.kind = 'body')""",
    ),
    (
        v2.BODY_ORPHAN,
        tr("{n} whose unit is gone"),
        "body",
        """SELECT CAST(t.search_text_id AS BLOB) FROM search_text t
            WHERE NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)""",
    ),
    (
        v2.UNIT_GAP,
        tr("{n} whose units are not numbered 0, 1, 2, …"),
        "material",
        """SELECT CAST(material_id AS BLOB) FROM search_unit GROUP BY material_id
           HAVING min(unit_index) IS NOT 0 OR max(unit_index) IS NOT count(*) - 1
               OR count(DISTINCT unit_index) <> count(*)""",
    ),
)
_TEXTS_AND_MATERIALS = (
    (
        v2.CONTENT_ORPHAN,
        tr("{n} that neither a material nor a unit names"),
        "text",
        """SELECT CAST(c.content_hash AS BLOB) FROM content c
            WHERE NOT EXISTS (SELECT 1 FROM material m WHERE m.current_content_hash = c.content_hash)
              AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.content_hash = c.content_hash)""",
    ),
    (
        v2.NO_CONTENT,
        tr("{n} with units and without a text"),
        "material",
        f"SELECT CAST(m.material_id AS BLOB) FROM material m WHERE {_NO_CONTENT} AND {_HAS_UNITS}",
    ),
    (
        v2.NO_UNITS,
        tr("{n} with a text and without a unit"),
        "material",
        f"""SELECT CAST(m.material_id AS BLOB) FROM material m
             WHERE NOT {_HAS_UNITS}
               AND EXISTS (SELECT 1 FROM content c WHERE c.content_hash = m.current_content_hash
                              AND trim(c.text, char(32, 9, 10, 13)) <> '')""",
    ),
    (
        v2.UNIT_CONTENT,
        tr("{n} of another text than the material, or of no material"),
        "unit",
        """SELECT CAST(u.unit_id AS BLOB) FROM search_unit u LEFT JOIN material m USING (material_id)
            WHERE m.material_id IS NULL
               OR (m.current_content_hash IS NOT NULL AND u.content_hash IS NOT m.current_content_hash)""",
    ),
)
_VECTOR_ORPHANS = """SELECT CAST(e.embedding_text_hash AS BLOB) FROM embedding e
     WHERE NOT EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = e.embedding_text_hash)"""
_VECTORS_MISSING = """SELECT CAST(t.search_text_id AS BLOB) FROM search_text t
     WHERE NOT EXISTS (SELECT 1 FROM embedding e WHERE e.embedding_text_hash = t.embedding_text_hash)"""


def count_rows(index: IndexFacts) -> Iterator[tuple[str, int]]:
    """Return how many rows of what an index has, by the names of ``checked``."""
    yield from ((name, index.counts.get(name, 0)) for name in ("materials", "units", "bodies", "embeddings"))
