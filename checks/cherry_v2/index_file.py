"""Audit one index file: its schema, its identity, and the rows that :mod:`checks.cherry_v2.detect` reports.

The file is opened read-only and leaves no trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.audit import sqlite_checks
from checks.audit.collector import FindingCollector, Level, display_text
from checks.audit.rolling import BaseRows, RollingPart
from checks.audit.sqlite_checks import find_open_problem
from checks.cherry_v2 import detect
from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import schema as v2_schema
from checks.cherry_v2.detect import (
    CONTENT_QUERY,
    IS_SMALL,
    PLACES,
    DetectedRow,
    UniformVectors,
    VectorDetector,
    WordCheck,
    is_valid_span,
    matches_hash,
)
from checks.cherry_v2.raw_files import IndexMaterial, find_stored_path_problem
from checks.cherry_v2.schema import FULL_TEXT, SchemaShape, compare_schema
from regraft.disk import file_paths, links, sqlite, untrusted_sqlite
from regraft.disk.file_paths import fold_name
from regraft.formats.cherry_v2.index import SCHEMA_VERSION, schema
from regraft.formats.large_text import LARGE_BYTES
from regraft.language import tr
from regraft.text import decode_utf8, is_blank

#: SQLite's page cache. Pages are read in their order, which is faster while the cache fits into the processor's own.
_CACHE_KIB = 2_000
#: That of SQLite's own check, which looks up the keys of every row, hashes, in random order.
_INTEGRITY_CACHE_KIB = 16_000


class ExpectedIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from the catalog and the folder that an index file must agree with; None if unknown."""

    #: The base under which findings are reported.
    base: str | None
    #: The name of the base's folder, which the identity row must state.
    folder: str | None = None
    has_model: bool | None = None
    #: Text that may separate two units, in addition to blanks.
    separator: str | None = None
    #: The dimensions of the vectors (:func:`regraft.formats.cherry_v2.index.schema.catalog_dimensions`).
    dimensions: int | None = None
    #: The id of the base's model, empty for none; None: unknown.
    model: str | None = None


class IndexFacts(msgspec.Struct):
    """Counts and materials of an index file, for checks that compare it with the catalog and for statistics."""

    counts: dict[str, int] = msgspec.field(default_factory=dict)
    #: None: the table cannot be read.
    materials: list[IndexMaterial] | None = None
    #: Number of vectors by length in bytes.
    lengths: Counter[int] = msgspec.field(default_factory=Counter)
    #: Number of vectors by norm, in steps; None: not read.
    norms: dict[str, int] | None = None
    is_readable: bool = True


def audit_part(path: Path, expected: ExpectedIndex, findings: FindingCollector, part: RollingPart) -> IndexFacts:
    """Check the structure of one index file, and the rows that a rolling check reads. Data never makes this raise.

    Args:
        path: the index file.
        expected: facts that it must agree with.
        findings: collects what is wrong.
        part: the run of the rolling check.
    """
    with part.open_base(expected.base or "", expected.model) as (rows, drop):
        index = audit_index(path, expected, findings, rows)
        if not index.is_readable:
            drop()
            findings.discard(v2.VECTOR_CHANGED, expected.base)
    return index


def audit_index(
    path: Path, expected: ExpectedIndex, findings: FindingCollector, rows: BaseRows | None = None
) -> IndexFacts:
    """Check one index file, and return its counts and materials. Data never makes this raise.

    Args:
        path: the index file.
        expected: facts that it must agree with.
        findings: collects what is wrong.
        rows: chooses the only rows to read, in a rolling check; None: all that the level of ``findings`` includes.
    """
    index = IndexFacts()

    def report_unreadable(problem: object) -> None:
        """Report that the file cannot be read, and mark the result as such."""
        message = tr("{named} cannot be read: {problem}", named=display_text(path.name), problem=problem)
        findings.add(v2.UNREADABLE, message, base=expected.base)
        index.is_readable = False

    problem = find_open_problem(path)
    if problem is not None:
        report_unreadable(problem)
        return index
    try:
        companions = untrusted_sqlite.find_companions(links.real_path(path))
    except OSError:
        companions = []
    if any(one.name.endswith("-journal") for one in companions):
        message = tr("the index has the journal of an unfinished transaction")
        findings.add(v2.HOT_JOURNAL, message, base=expected.base)
    state = sqlite.read_file_state(path)
    try:
        size = file_paths.stat(path).st_size
        with sqlite.open_readonly(path, vectors=True) as db, findings.limit_statements(db, size):
            # This also reads the schema: without one, the file is unreadable as a whole.
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            audit = _IndexAudit(path, size, db, expected, findings, index, rows)
            # A file with a log or journal is read from a temporary copy; a second copy would cost more than it saves.
            audit.run(in_parallel=not companions)
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        if sqlite.is_write_failure(error):
            raise
        report_unreadable(error)
    if sqlite.read_file_state(path) != state:
        # The other findings may mix two states of the file.
        report_unreadable(sqlite.CHANGED_DURING_READ)
    return index


class _IndexAudit:
    """The checks of one open index file."""

    def __init__(
        self,
        path: Path,
        size: int,
        db: apsw.Connection,
        expected: ExpectedIndex,
        findings: FindingCollector,
        index: IndexFacts,
        rows: BaseRows | None,
    ) -> None:
        self._path = path
        self._rows = rows
        self._size = size
        self._db = db
        self._expected = expected
        self._findings = findings
        self._index = index
        self._shape = SchemaShape()
        self._words: WordCheck | None = None
        self._in_parallel = False
        #: Whether FTS5 found the full-text index intact and equal to the bodies.
        self._words_agree = False
        #: Rows of the table of bodies itself, whose indexes can lack some; None: not counted.
        self._bodies: int | None = None
        #: All vectors, if none of them has a finding.
        self._vectors: UniformVectors | None = None
        #: What SQLite's own check says of all but the full-text index; None: it has not run.
        self._complaints: list[str] | None = None

    def run(self, *, in_parallel: bool) -> None:
        """Run the checks that the level includes and the caller needs.

        Args:
            in_parallel: whether the words of the full-text index are compared in a thread beside the other checks.
        """
        self._in_parallel = in_parallel
        name = "index" if self._expected.base is None else self._expected.base
        try:
            self._findings.run(name, self._choose_steps(), self._expected.base)
        finally:
            if self._words is not None:
                self._words.stop()

    def _choose_steps(self) -> list[tuple[str, Callable[[], None]]]:
        """Return name and function of each check that the level includes and the wanted findings need."""
        # From which level on a step is made, and of which findings one must be wanted; none given: always.
        steps: tuple[tuple[Level, Collection[str], str, Callable[[], None]], ...] = (
            (Level.SHAPE, (), "structure", self._check_structure),
            (Level.SHAPE, (), "identity", self._check_meta_row),
            (Level.QUICK, (), "counts", self._count_rows),
            (Level.SHAPE, (), "materials", self._check_materials),
            (Level.QUICK, _RELATIONS, "relations", self._check_relations),
            (Level.QUICK, _COVERAGE, "coverage", self._check_coverage),
            (Level.DEFAULT, _TEXTS, "texts", self._check_texts),
            (Level.DEFAULT, _VECTORS, "vectors", self._check_vectors),
            (Level.QUICK, _FULL_TEXT, tr("full text"), self._check_full_text),
            (Level.DEEP, (v2.CORRUPT,), "integrity", self._check_integrity),
        )
        chosen = [
            (name, step)
            for level, findings, name, step in steps
            if self._findings.level >= level and (not findings or self._findings.may_report(*findings))
        ]
        if self._rows is not None:
            tables = ("content", "search_unit", "search_text", "embedding")
            chosen += [(table, partial(self._check_part, self._rows, table)) for table in tables]
        return chosen

    def _add(self, name: str, message: str, **more: Any) -> None:
        """Add a finding of this base; ``more`` are further arguments of :meth:`FindingCollector.add`."""
        self._findings.add(name, message, base=self._expected.base, **more)

    def _add_rows(self, rows: Iterable[DetectedRow]) -> int:
        """Add each detected row as an instance of its finding, and return the number of rows."""
        count = 0
        for finding, message, noun, rowid, sample, is_beyond_repair in rows:
            count += 1
            self._add(finding, message, noun=noun, sample=sample, is_beyond_repair=is_beyond_repair, row=rowid)
        return count

    # --- structure and identity --------------------------------------------------------------------------------------

    def _check_structure(self) -> None:
        """Compare the tables with the layout, report foreign objects, and begin to compare the full-text index."""
        self._shape = compare_schema(self._db, self._findings)
        for what in self._shape.missing:
            self._add(v2.SCHEMA_MISSING, tr("missing or different: {n} of the layout"), noun="part", sample=what)
        foreign = v2_schema.find_foreign_in_index(self._db)
        sqlite_checks.add_foreign_objects(foreign, self._findings, self._expected.base)
        has_tables = self._shape.has("search_text", FULL_TEXT)
        if has_tables and self._findings.level >= Level.DEFAULT and self._findings.may_report(*_FULL_TEXT):
            self._words = WordCheck(self._path, self._size, self._shape, self._findings)
            if self._in_parallel:
                self._words.start()

    def _check_meta_row(self) -> None:
        """Check the identity row of the index: its version, and that it names the expected base."""
        if not self._shape.has("meta"):
            return
        rows = self._db.execute("SELECT schema_version, CAST(base_id AS BLOB) FROM meta ORDER BY id LIMIT 2").fetchall()
        if not rows:
            self._add(v2.META_MISSING, tr("the index has no identity row"))
            return
        version, base = rows[0][0], display_text(rows[0][1])
        if version != SCHEMA_VERSION or not isinstance(version, int):
            message = tr(
                "the index says that it is of version {named}, not {schema_version}: the application would empty it",
                named=display_text(version),
                schema_version=SCHEMA_VERSION,
            )
            is_newer = isinstance(version, int) and version > SCHEMA_VERSION
            self._add(v2.SCHEMA_VERSION, message, is_beyond_repair=is_newer)
        if self._expected.folder is not None and base != self._expected.folder:
            self._add(v2.META_BASE, tr("the index belongs to base {base}", base=base), sample=base)

    def _count_rows(self) -> None:
        """Count rows by table, and vectors by length in bytes."""
        counts = self._index.counts
        for name, table in (("materials", "material"), ("units", "search_unit"), ("bodies", "search_text")):
            if self._shape.has(table):
                counts[name] = self._db.execute(f"SELECT count(*) FROM {table}").get
        if not self._shape.has("embedding"):
            return
        findings = self._findings
        # If all data are read without a time limit, one pass may serve several checks.
        if findings.level >= Level.DEFAULT and findings.max_duration is None and findings.may_report(*_VECTORS):
            self._vectors = detect.read_uniform_vectors(self._db, self._expected.dimensions)
        if self._vectors is not None:
            counts["embeddings"] = self._vectors.count
            self._index.lengths = Counter({self._vectors.length: self._vectors.count})
        else:
            # GROUP BY would sort whole vectors; here SQLite reads their lengths alone.
            kinds = Counter(self._db.execute("SELECT typeof(vector_blob), length(vector_blob) FROM embedding"))
            counts["embeddings"] = kinds.total()
            lengths = {length: count for (kind, length), count in kinds.items() if kind == "blob" and length}
            self._index.lengths = Counter({one: lengths[one] for one in sorted(lengths) if one % 4 == 0})

    # --- rows that contradict other rows -----------------------------------------------------------------------------

    def _check_relations(self) -> None:
        """Report rows whose references to other tables are broken."""
        if self._shape.has("search_text"):
            self._bodies = self._db.execute("SELECT count(*) FROM search_text NOT INDEXED").get
        self._add_rows(detect.detect_relations(self._db, self._shape, self._bodies))

    def _check_coverage(self) -> None:
        """Report bodies without a vector, vectors without a body, and vectors of a base that has no model."""
        if not self._shape.has("search_text", "embedding"):
            return
        counts = self._index.counts
        vectors = counts.get("embeddings", 0)
        has_model = vectors > 0 if self._expected.has_model is None else self._expected.has_model
        orphans = self._add_rows(detect.ORPHAN_VECTOR.detect(self._db))
        if has_model:
            missing = self._add_rows(detect.BODY_WITHOUT_VECTOR.detect(self._db, self._bodies))
            # Bodies of one text have one hash, and so one vector.
            counts["duplicates"] = max(0, counts.get("bodies", missing) - missing - (vectors - orphans))
            length = self._expected_length()
            if self._index.lengths[length] != vectors:
                missing += schema.count_bodies_of_other_length(self._db, length)
            counts["covered"] = counts.get("bodies", missing) - missing
        elif vectors:
            message = tr(
                "{n} in a base without a model: regraft repair --only embedding.unexpected --model ID gives it its "
                "model again, regraft gc --only embedding.unexpected removes them"
            )
            self._add(v2.VECTOR_UNEXPECTED, message, noun="vector", count=vectors)
        self._check_dimensions()

    def _expected_length(self) -> int:
        """Return the length in bytes that vectors should have: by the catalog, or else that of most vectors."""
        return schema.choose_vector_length(self._index.lengths, self._expected.dimensions)

    def _check_dimensions(self) -> None:
        """Report dimensions in the catalog that are not those of most vectors."""
        stated, lengths = self._expected.dimensions, self._index.lengths
        if stated is None or not schema.lengths_contradict(lengths, stated):
            return
        if len(lengths) == 1:
            usual = next(iter(lengths)) // 4
            message = tr("the catalog says {stated} dimensions, the vectors have {usual}", stated=stated, usual=usual)
            self._add(v2.BASE_DIMENSIONS, message)
            return
        message = tr(
            "the catalog says {stated} dimensions, and {others} of {all} vectors have others: find out which "
            "are right; if the catalog is right, regraft repair --only embedding.length removes the others",
            stated=stated,
            others=lengths.total() - lengths[4 * stated],
            all=lengths.total(),
        )
        self._add(v2.BASE_DIMENSIONS, message, is_beyond_repair=True)

    # --- materials and their paths -----------------------------------------------------------------------------------

    def _check_materials(self) -> None:
        """Read the materials, and report paths that are not valid or that differ only in letter case."""
        if not self._shape.has("material"):
            return
        materials = []
        folded_paths: set[str] = set()
        has_rows = self._shape.has("content", "search_unit")
        is_empty = f"NOT {detect.HAS_CONTENT} AND NOT {detect.HAS_UNITS}" if has_rows else "0"
        created = "(SELECT created_at FROM meta ORDER BY id LIMIT 1)" if self._shape.has("meta") else "NULL"
        for rowid, key, raw, content, empty, is_as_created in self._db.execute(
            "SELECT rowid, CAST(material_id AS BLOB), CAST(relative_path AS BLOB), CAST(current_content_hash AS BLOB),"
            f" {is_empty}, updated_at = {created} FROM material ORDER BY rowid"
        ):
            problem = find_stored_path_problem(raw)
            if problem is not None:
                message = tr("a path that is not valid: {problem}", problem=problem)
                self._add(v2.PATH_UNSAFE, message, sample=raw, row=rowid)
            path = decode_utf8(raw) if raw is not None else ""
            # Paths of a folder's files can share a long prefix, so all of the path is compared.
            folded = fold_name(path)
            if folded in folded_paths:
                message = tr(
                    "{n} with a path that differs from another one only in letter case or Unicode normalization"
                )
                sample = display_text(b"" if raw is None else raw)
                self._add(v2.PATH_CLASH, message, noun="material", sample=sample, row=rowid)
            folded_paths.add(folded)
            content_hash = None if content is None else display_text(content)
            materials.append(
                IndexMaterial(
                    id=display_text(key),
                    path=path,
                    content_hash=content_hash,
                    is_empty=bool(empty),
                    is_as_created=bool(is_as_created),
                    row=rowid,
                )
            )
        self._index.materials = materials

    # --- checks that read all data -----------------------------------------------------------------------------------

    def _check_texts(self) -> None:
        """Report wrong hashes, ids and offsets of texts. A fast pass first rules out what it can."""
        separator, check_time = self._expected.separator, self._findings.check_time
        ruled_out: frozenset[str] = frozenset()
        if not self._findings.count(v2.CORRUPT, self._expected.base):
            # An earlier step has searched the indexes that the pass does not.
            ruled_out = rule_out_findings(self._db, self._shape, separator, check_time)
        self._add_rows(detect.detect_texts(self._db, self._shape, separator, check_time, ruled_out))

    def _check_vectors(self) -> None:
        """Report unusable and duplicate vectors, and keep the histogram of the norms."""
        if self._vectors is not None:
            self._index.norms = self._vectors.norms
        elif self._shape.has("embedding"):
            is_stated = self._expected.dimensions is not None
            vectors = VectorDetector(self._db, self._expected_length(), is_stated=is_stated)
            self._add_rows(vectors.detect())
            self._index.norms = vectors.norms()

    def _check_part(self, rows: BaseRows, table: str) -> None:
        """Check the rows of one table that ``rows`` chooses in a rolling check."""
        if not self._shape.has(table):
            return
        db, check_time = self._db, self._findings.check_time
        if self._shape.has("meta"):
            made = db.execute("SELECT CAST(created_at AS BLOB) FROM meta ORDER BY id LIMIT 1").get
            rows.set_creation_time(display_text(made) if made is not None else None)
        key = {"content": "content_hash", "search_unit": "unit_id", "search_text": "search_text_id"}
        keys = db.execute(f"SELECT rowid, CAST({key.get(table, 'embedding_text_hash')} AS BLOB) FROM {table}")
        with rows.choose(table, keys) as chosen:
            if table == "content":
                separator = self._expected.separator
                self._add_rows(detect.detect_contents(db, self._shape, separator, check_time, chosen))
            elif table == "search_unit":
                self._add_rows(detect.detect_unit_ids(db, chosen))
            elif table == "search_text":
                self._add_rows(detect.detect_bodies(db, check_time, chosen))
            else:
                self._check_part_of_vectors(rows, chosen)

    def _check_part_of_vectors(self, rows: BaseRows, chosen: Iterable[int]) -> None:
        """Check the vectors of the chosen row numbers, and report those that changed since an earlier run."""
        query = "SELECT octet_length(vector_blob) FROM embedding WHERE typeof(vector_blob) = 'blob'"
        lengths = Counter(
            length for (length,) in detect.read_rows(self._db, query, chosen) if length and length % 4 == 0
        )
        length = schema.choose_vector_length(lengths, self._expected.dimensions)
        is_stated = self._expected.dimensions is not None
        self._add_rows(VectorDetector(self._db, length, is_stated=is_stated, rows=chosen).detect())
        for row in rows.find_changed(detect.digest_vectors(self._db, chosen)):
            key = self._db.execute(
                "SELECT CAST(embedding_text_hash AS BLOB) FROM embedding WHERE rowid = ?", (row,)
            ).get
            message = tr("{n} that changed since an earlier run of check --part, though the text did not")
            self._add(v2.VECTOR_CHANGED, message, noun="vector", sample=key, row=row)

    def _check_full_text(self) -> None:
        """Report bodies with a wrong number in the full-text index, and an index without the words of the bodies."""
        if not self._shape.has("search_text", FULL_TEXT):
            return
        self._add_rows(detect.detect_full_text_numbers(self._db, self._shape, self._bodies))
        if self._words is None or self._findings.count(v2.FTS_DESYNC, self._expected.base):
            return
        if self._in_parallel and self._findings.level >= Level.DEEP and self._findings.may_report(v2.CORRUPT):
            with suppress(apsw.Error):  # the step "integrity" runs it again
                self._complaints = list(self._find_complaints(with_words=False))
        self._words_agree = self._words.agrees()
        if not self._words_agree:
            self._add(v2.FTS_DESYNC, tr("the full-text index does not hold the words of the stored texts"))

    def _check_integrity(self) -> None:
        """Report complaints of SQLite's integrity check, and foreign keys to missing rows that no other check reports.

        Complaints that :meth:`_check_full_text` has collected are used if the full-text index is right; otherwise, the
        integrity check runs, and covers that index only if it is wrong or was not compared.
        """
        complaints: Iterable[str] | None = self._complaints if self._words_agree else None
        for message in self._find_complaints(with_words=not self._words_agree) if complaints is None else complaints:
            self._add(v2.CORRUPT, tr("SQLite's integrity check reports {n}"), noun="complaint", sample=message)
        with_units = f"SELECT EXISTS (SELECT 1 FROM material WHERE rowid = ? AND {detect.HAS_UNITS})"
        for table, row, *_ in self._db.execute("PRAGMA foreign_key_check"):
            # Units, and materials with units, have findings of their own, which can be repaired.
            is_reported = table == "search_unit" or (table == "material" and self._db.execute(with_units, (row,)).get)
            if not is_reported:
                self._add(
                    v2.CORRUPT, tr("{n} with a foreign key to a missing row"), noun="row", sample=f"{table} {row}"
                )

    def _find_complaints(self, *, with_words: bool) -> Iterator[str]:
        """Yield the complaints of SQLite's integrity check, with or without those of the full-text index."""
        with sqlite.open_readonly(self._path) as db, self._findings.limit_statements(db, self._size):
            db.execute(f"PRAGMA cache_size = -{_INTEGRITY_CACHE_KIB}")
            if not with_words:
                # SQLite passes over virtual tables whose module it does not know.
                db.drop_modules([])
            for (message,) in db.execute("PRAGMA integrity_check(20)"):
                if message != "ok":
                    yield message


#: The findings that each expensive check can report.
_RELATIONS = (v2.NO_BODY, v2.BODY_ORPHAN, v2.UNIT_GAP, *(rule.finding for rule in detect.CONTENT_RULES))
_COVERAGE = (v2.VECTOR_ORPHAN, v2.VECTOR_MISSING, v2.VECTOR_UNEXPECTED, v2.BASE_DIMENSIONS)
_TEXTS = (v2.BODY_ID, v2.BODY_HASH, v2.UNIT_ID, v2.CONTENT_HASH, v2.UNIT_OFFSETS, v2.UNIT_MISSING)
_VECTORS = (v2.VECTOR_LENGTH, v2.VECTOR_NON_FINITE, v2.VECTOR_ZERO, v2.VECTOR_DUPLICATE)
_FULL_TEXT = (v2.BODY_ROWID, v2.FTS_DESYNC)


# --- one pass over texts ---------------------------------------------------------------------------------------------

# The module ``detect`` has a query for each rule, and reads every body three times. Most files break no rule. This pass
# reads them once, evaluates the same rules, and tells which findings no row can have. The queries of the other findings
# then run and describe the rows.

_RULED_OUT = PLACES | {v2.BODY_ID, v2.BODY_HASH, v2.UNIT_ID}

_HAS_LARGE = f"SELECT EXISTS (SELECT 1 FROM content WHERE NOT {IS_SMALL})"
#: In the order of the unique index, so that a content is read once.
_CONTENTS = f"{CONTENT_QUERY} ORDER BY content_hash"
#: The unary plus keeps SQLite from searching an index: a unit and its body usually have the same row number.
_UNITS = f"""SELECT search_unit.unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end,
       search_text_id, embedding_text_hash, CAST(search_text.text AS BLOB)
  FROM search_unit LEFT JOIN search_text
    ON search_text.rowid = search_unit.rowid AND +search_text.target_id = search_unit.unit_id
   AND +search_text.target_type = 'search_unit' AND +search_text.kind = 'body'
   AND typeof(search_text.text) = 'text' AND octet_length(search_text.text) <= {LARGE_BYTES}
 WHERE search_unit.content_hash = (SELECT c.content_hash FROM content c WHERE c.rowid = ?)"""
#: Rows of the table itself: an index can lack some.
_COUNTS = ", ".join(
    f"(SELECT count(*) FROM {table} NOT INDEXED)" for table in ("content", "search_unit", "search_text")
)
#: Maximum number of different blanks between units that are remembered.
_MOST_BLANKS = 1000


def rule_out_findings(
    db: apsw.Connection, shape: SchemaShape, separator: str | None, check_time: Callable[[], None]
) -> frozenset[str]:
    """Return the names of findings that no row of an index file has, by one fast pass over the texts.

    The result is empty if the file cannot be read or has rows that the pass does not reach: large texts, rows without a
    content, bodies with another row number than their unit.

    Args:
        db: an open index file.
        shape: the tables that can be read.
        separator: text that may separate two units in addition to blanks; None: missing parts are not reported.
        check_time: called before each content; raises to stop.
    """
    if shape.missing or not shape.has("content", "material", "search_unit", "search_text"):
        return frozenset()
    try:
        return _RowPass(db, separator, check_time).run()
    except (_NotReached, ValueError, MemoryError, OverflowError):
        return frozenset()
    except apsw.Error as error:
        if sqlite.is_write_failure(error):
            raise
        return frozenset()


class _NotReached(Exception):
    """The file has rows that the pass does not reach."""


class _RowPass:
    """One pass over all contents with their units and bodies."""

    def __init__(self, db: apsw.Connection, separator: str | None, check_time: Callable[[], None]) -> None:
        self._db = db
        self._separator = separator
        self._check_time = check_time
        #: Findings that some row may have.
        self._possible: set[str] = set()
        self._reached = 0
        self._blanks: set[bytes] = set()

    def run(self) -> frozenset[str]:
        """Read all rows, and return the names of findings that no row has.

        Raises:
            _NotReached: the file has rows that the pass does not reach.
            apsw.Error, ValueError: the file is damaged.
        """
        if self._db.execute(_HAS_LARGE).get:
            raise _NotReached
        contents, before = 0, b""
        for rowid, key, kind, text in self._db.execute(_CONTENTS):
            self._check_time()
            # A content that is listed twice could make up for rows that are not reached.
            if key is None or key <= before:
                raise _NotReached
            contents, before = contents + 1, key
            self._check_content(rowid, text if matches_hash(key, kind, text) else None)
        if self._db.execute(f"SELECT {_COUNTS}").fetchall() != [(contents, self._reached, self._reached)]:
            raise _NotReached
        return _RULED_OUT - self._possible

    def _check_content(self, content: int, text: bytes | None) -> None:
        """Note the findings that the units of a content, their ids, hashes or bodies may have.

        ``content`` is the row number of the content; ``text`` its text, or None for a content with a wrong hash.
        """
        possible = self._possible
        if text is None:
            possible |= PLACES
            text = b""
        is_ascii, spans = text.isascii(), []
        whole = text if is_ascii else decode_utf8(text).encode("utf-16-le")
        width = 1 if is_ascii else 2
        length = len(whole) // width
        rows: Iterator[Any] = self._db.execute(_UNITS, (content,))
        for unit, material, key, kind, index, start, end, body_id, body_hash, body in rows:
            if body is None:
                raise _NotReached
            self._reached += 1
            if sha256(f"{material} {key} {kind} {index} {start} {end}".encode()).hexdigest() != unit:
                possible.add(v2.UNIT_ID)
            if sha256(f"search_unit {unit} body".encode()).hexdigest() != body_id:
                possible.add(v2.BODY_ID)
            if sha256(body).hexdigest() != body_hash:
                possible.add(v2.BODY_HASH)
            expected = body if is_ascii else decode_utf8(body).encode("utf-16-le")
            if not is_valid_span(start, end, length) or whole[start * width : end * width] != expected:
                possible |= PLACES
            if self._separator is not None:
                spans.append((material, start, end))
        if self._separator is not None and not possible >= PLACES:
            self._check_coverage(whole, width, sorted(spans))

    def _check_coverage(self, whole: bytes, width: int, spans: list[tuple[str, int, int]]) -> None:
        """Note findings about offsets if a part of a content that is in no unit of a material is not blank.

        Args:
            whole: the text, with ``width`` bytes for each UTF-16 unit.
            width: 1 or 2.
            spans: material, begin and end of each unit, sorted.
        """
        material, covered = None, 0
        for this, start, end in spans:
            if this != material:
                if material is not None:
                    self._check_blank(whole[covered * width :], width)
                material, covered = this, 0
            if start > covered:
                self._check_blank(whole[covered * width : start * width], width)
            covered = max(covered, end)
        if material is not None:
            self._check_blank(whole[covered * width :], width)

    def _check_blank(self, part: bytes, width: int) -> None:
        """Note findings about offsets if a part between two units is not blank; a UTF-16 unit has ``width`` bytes."""
        if part in self._blanks:
            return
        text = part.decode() if width == 1 else part.decode("utf-16-le", "replace")
        if not is_blank(text.replace(self._separator, "") if self._separator else text):
            self._possible |= PLACES
        elif len(self._blanks) < _MOST_BLANKS:
            self._blanks.add(part)
