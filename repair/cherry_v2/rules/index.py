"""Mending one index file: all its findings in one order, in one transaction (``docs/findings.md``, "v2 data").

Contents come first, then the places of units in them, then bodies, then ids, which follow from all these, then the
full-text index. Everything is worked out in temporary tables (:mod:`repair.cherry_v2.rules.rows`): the planner
does that over the file as it is, the change does it again over the file that it writes to, and both have to come to the
same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec

from checks.cherry_v2 import detect
from checks.cherry_v2 import findings as v2
from regraft import identity
from regraft.disk import sqlite, untrusted_sqlite
from regraft.errors import PlanOutdated
from regraft.formats import table_integrity
from regraft.formats.cherry_v2.index import SCHEMA_VERSION, schema
from regraft.language import format_count, tr
from repair.changes.plan import Action, RowsChange, Unresolved
from repair.cherry_v2.rules import rows as rules_rows
from repair.cherry_v2.rules import rows as rules_texts
from repair.cherry_v2.rules.rows import RowRepair, create_tables, write_back

#: Findings of an index file that are mended.
NAMES = (
    *(v2.HOT_JOURNAL, v2.META_MISSING, v2.CONTENT_HASH, v2.NO_CONTENT, v2.PATH_UNSAFE, v2.UNIT_OFFSETS, v2.UNIT_ID),
    *(v2.UNIT_GAP, v2.NO_BODY, v2.BODY_ID, v2.BODY_HASH, v2.BODY_ROWID, v2.FTS_DESYNC, v2.VECTOR_LENGTH),
    *(v2.VECTOR_NON_FINITE, v2.VECTOR_ZERO),
)
#: Findings with which nobody can tell what the rows of a file mean.
BLOCKING = {v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING, v2.SCHEMA_VERSION}
#: Findings whose repair deletes vectors.
FLAWS = (v2.VECTOR_LENGTH, v2.VECTOR_NON_FINITE, v2.VECTOR_ZERO)
#: Of each action: the finding that it mends, what it says with the number of things, the thing, the tables it changes.
_ACTIONS = {
    "settle-journal": (v2.HOT_JOURNAL, tr("take {n} back"), "unfinished transaction", ()),
    "write-identity": (v2.META_MISSING, tr("write {n} with the base's id"), "identity row", ("meta",)),
    "restore-contents": (v2.CONTENT_HASH, tr("give {n} back what its hash says"), "text", ("content",)),
    "rekey-contents": (
        v2.CONTENT_HASH,
        tr("store {n} under its true hash"),
        "text",
        ("content", "material", "search_unit", "search_text"),
    ),
    "link-contents": (v2.NO_CONTENT, tr("have {n} name the text of its units"), "material", ("material",)),
    "rename-materials": (v2.PATH_UNSAFE, tr("give {n} a path below raw/"), "material", ("material",)),
    "place-units": (v2.UNIT_OFFSETS, tr("place {n} where the text holds its body"), "unit", ("search_unit",)),
    "number-units": (v2.UNIT_GAP, tr("number {n} anew"), "unit", ("search_unit",)),
    "link-bodies": (v2.NO_BODY, tr("give {n} back to its unit"), "body", ("search_text",)),
    "write-bodies": (v2.NO_BODY, tr("write {n} from the text of its unit"), "body", ("search_text",)),
    "restore-bodies": (v2.BODY_HASH, tr("give {n} back what was embedded"), "body", ("search_text",)),
    "rehash-bodies": (v2.BODY_HASH, tr("give {n} its true hash"), "body", ("search_text",)),
    "rekey-units": (v2.UNIT_ID, tr("give {n} the id that follows"), "unit", ("search_unit", "search_text")),
    "rekey-bodies": (v2.BODY_ID, tr("give {n} the id that follows"), "body", ("search_text",)),
    "number-bodies": (v2.BODY_ROWID, tr("number {n} for the full-text index"), "body", ("search_text",)),
    "rebuild-full-text": (v2.FTS_DESYNC, tr("build {n} anew"), "full-text index", ()),
}
_ROWS_OF = ("meta", "content", "material", "search_unit", "search_text", "embedding")
#: Actions after which the full-text index is built anew.
_CHANGE_TEXTS = {"write-bodies", "restore-bodies", "number-bodies"}
#: What lets a full-text index be built anew whose own data are damaged.
_EMPTY_FULL_TEXT = (
    """INSERT OR REPLACE INTO search_text_fts_config (k, v) SELECT 'version', 4
        WHERE NOT EXISTS (SELECT 1 FROM search_text_fts_config WHERE k = 'version' AND v IN (4, 5))""",
    "INSERT INTO search_text_fts (search_text_fts) VALUES ('delete-all')",
)
#: Bytes that the columns of a row take besides a text.
_ROW_BYTES = 400


class IndexRepair(msgspec.Struct, frozen=True, kw_only=True):
    """An index file that is to be mended, and what lies around it."""

    base: str
    #: Below the store's root.
    path: str
    #: The id that the file's folder gives the base; None where no folder does.
    folder: str | None
    #: Whether the base has a model, and its dimensions by the catalog; None where that is not known.
    has_model: bool | None
    dimensions: int | None
    #: What the audit found, how often, and what of it is to be mended.
    found: Mapping[str, int]
    wanted: frozenset[str]
    now_ms: int
    #: Whether the user named the findings that are to be mended.
    is_partial: bool = False
    #: Materials by their row numbers, with their new paths.
    renamed: tuple[tuple[int, str], ...] = ()


class IndexRepairOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What mending a file comes to."""

    actions: tuple[Action, ...]
    left: tuple[Unresolved, ...]
    #: About how much the rows hold that are changed, in bytes.
    bytes: int
    rebuilds: bool

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the tables whose rows change."""
        named = [table for action in self.actions for table in _tables(action.action)]
        return tuple(dict.fromkeys(named))


def _tables(action: str) -> Sequence[str]:
    return ("embedding",) if action == "delete-embeddings" else _ACTIONS[action][3]


def plan_index(root: Path, target: IndexRepair) -> tuple[RowsChange | None, tuple[Unresolved, ...]]:
    """Return what mends an index file, None where nothing can be mended, and what stays as it is.

    Raises:
        apsw.Error, OSError: it cannot be read.
    """
    path = root / target.path
    with sqlite.open_readonly(path, vectors=True) as db:
        broken = table_integrity.find_inconsistency(db, _ROWS_OF)
        if broken is not None:
            reason = tr("SQLite itself finds the file damaged ({broken}): a backup of it helps", broken=broken)
            return None, tuple(
                _left(target, name, reason, target.found[name])
                for name in sorted(target.wanted.intersection(target.found))
            )
        db.execute("PRAGMA query_only = 0")
        planned = _repair_rows(db, target)
    if planned is None:
        reason = tr("two rows would have one id afterwards: a person has to look at them")
        names = sorted(target.wanted.intersection(target.found))
        return None, tuple(_left(target, name, reason, 1) for name in names)
    if not planned.actions:
        return None, planned.left

    def apply(db: apsw.Connection) -> None:
        sqlite.load_vector_extension(db)
        if _repair_rows(db, target) != planned:
            raise PlanOutdated(path=path, reason=tr("other rows would be mended now than were planned"))
        _write(db, target)

    made = RowsChange(
        path=target.path,
        actions=planned.actions,
        apply=apply,
        tables=planned.tables,
        bytes=planned.bytes,
        bodies=planned.rebuilds,
    )
    return made, planned.left


def _write(db: apsw.Connection, target: IndexRepair) -> None:
    if v2.META_MISSING in target.wanted.intersection(target.found) and target.folder is not None:
        times = "typeof(created_at) = 'integer'"
        db.execute(
            f"INSERT INTO meta SELECT 1, ?1, ?2, ifnull((SELECT min(created_at) FROM material WHERE {times}), ?3), ?3",
            (SCHEMA_VERSION, target.folder, target.now_ms),
        )
    rows = ((path, rid) for rid, path in target.renamed)
    db.executemany("UPDATE material SET relative_path = ? WHERE rowid = ?", rows)
    write_back(db)
    if target.wanted.intersection(target.found, (v2.FTS_DESYNC, v2.BODY_ROWID)):
        with untrusted_sqlite.allow_schema_writes(db):
            for statement in _EMPTY_FULL_TEXT:
                db.execute(statement)


def _repair_rows(db: apsw.Connection, target: IndexRepair) -> IndexRepairOutcome | None:
    """Mend the rows in the temporary tables; None where two of them would have one id."""
    job = RowRepair(db, target.wanted, frozenset(target.found))
    create_tables(db)
    # Numbers prove bodies and texts; they are gone over again by the places that are right then.
    rules_rows.order_units(job)
    rules_rows.link_bodies(job)
    rules_texts.repair_contents(job)
    rules_rows.link_contents(job)
    rules_texts.repair_offsets(job)
    rules_rows.number_units(job)
    rules_texts.write_bodies(job)
    rules_rows.rekey_units(job)
    rules_rows.rekey_bodies(job)
    rebuilds = any(job.done[action] for action in _CHANGE_TEXTS) or job.wants(v2.FTS_DESYNC) or job.wants(v2.BODY_ROWID)
    if rebuilds:
        rules_rows.number_bodies(job)
        job.done["rebuild-full-text"] += 1
    if rules_rows.has_id_clash(job):
        return None
    vectors_gone = list(_drop_vectors(job, target))
    _count_other_repairs(job, target)
    actions = (*_actions(job, target), *vectors_gone)
    left = [*(_left(target, name, reason, count) for (name, reason), count in job.left.items())]
    left += _find_consequences(job, target) if actions else []
    return IndexRepairOutcome(actions=actions, left=tuple(left), bytes=_size(job), rebuilds=rebuilds)


def _count_other_repairs(job: RowRepair, target: IndexRepair) -> None:
    if job.wants(v2.META_MISSING):
        if target.folder is None:
            job.leave(v2.META_MISSING, tr("the file is in no base's folder, so that nobody knows the base's id"))
        else:
            job.done["write-identity"] += 1
    job.done["settle-journal"] += int(job.wants(v2.HOT_JOURNAL))
    job.done["rename-materials"] += len(target.renamed)


def _actions(job: RowRepair, target: IndexRepair) -> Iterator[Action]:
    for name, (finding, message, noun, _) in _ACTIONS.items():
        count = job.done[name]
        if count:
            mended = finding if job.wants(finding) else None
            if name == "rebuild-full-text" and job.wants(v2.BODY_ROWID) and not job.done["number-bodies"]:
                mended = v2.BODY_ROWID
            yield Action(
                action=name,
                message=message.format(n=format_count(count, noun)),
                base=target.base,
                subject=None,
                count=count,
                bytes=0,
                finding=mended,
            )


def _left(target: IndexRepair, finding: str, reason: str, count: int) -> Unresolved:
    return Unresolved.registered(finding, reason, base=target.base, count=count)


# --- vectors ---------------------------------------------------------------------------------------------------------


def _drop_vectors(job: RowRepair, target: IndexRepair) -> Iterator[Action]:
    """Drop vectors that can never be right, so that they are embedded anew; what may be right stays."""
    wanted = {flaw for flaw in FLAWS if job.wants(flaw)}
    if not wanted:
        return
    db = job.db
    lengths = schema.count_vector_lengths(db)
    # The catalog gets the dimensions that all vectors have: no vector is of a wrong length then.
    is_corrected = len(lengths) == 1 and job.wants(v2.BASE_DIMENSIONS)
    dimensions = None if is_corrected else target.dimensions
    reason = _why_lengths_are_kept(lengths, dimensions, is_chosen=target.is_partial)
    for one in detect.classify_vectors(db, schema.choose_vector_length(lengths, dimensions)):
        if one.finding in wanted:
            db.execute(
                "INSERT INTO temp.m_vector SELECT rowid, ?1, ifnull(length(CAST(vector_blob AS BLOB)), 0)"
                " FROM main.embedding WHERE rowid = ?2 AND (?3 OR typeof(vector_blob) <> 'blob'"
                " OR length(vector_blob) = 0 OR length(vector_blob) % 4 <> 0)",
                (one.finding, one.rowid, reason is None or one.finding != v2.VECTOR_LENGTH),
            )
            if not db.changes():
                job.leave(v2.VECTOR_LENGTH, str(reason))
    for flaw, count, size in db.execute(
        "SELECT flaw, count(*), sum(bytes) FROM temp.m_vector GROUP BY flaw ORDER BY flaw"
    ):
        message = tr(
            "delete {vectors} that can never be right, to be embedded anew", vectors=format_count(count, "vector")
        )
        yield Action(
            action="delete-embeddings",
            message=message,
            base=target.base,
            subject=None,
            count=count,
            bytes=size,
            finding=flaw,
        )


def _why_lengths_are_kept(lengths: Counter[int], dimensions: int | None, *, is_chosen: bool) -> str | None:
    """Return why vectors of an unexpected length are kept; None where they can never be right, or were chosen by name.

    Args:
        lengths: the vectors by their length in bytes.
        dimensions: those of the catalog; None where it has none.
        is_chosen: whether the user named the finding.
    """
    if dimensions is None:
        usual = schema.choose_vector_length(lengths, None)
        return None if 2 * lengths[usual] > lengths.total() else tr("which of the lengths is the base's is not known")
    if is_chosen or not schema.lengths_contradict(lengths, dimensions):
        return None
    return tr(
        "most vectors do not have the {dimensions} dimensions of the catalog, so that all are kept; --only "
        "embedding.length removes those without",
        dimensions=dimensions,
    )


#: What mends can bring to light or settle besides what they are for: name, noun, reason, and how many rows.
_CONSEQUENCES = (
    (
        v2.UNIT_CONTENT,
        "unit",
        tr("of another text than the material, or of no material"),
        """SELECT count(*) FROM temp.m_unit u LEFT JOIN temp.m_material m ON m.id = u.material WHERE m.rid IS NULL
             OR (ifnull(m.new_content, m.content) IS NOT NULL
                 AND u.content IS NOT ifnull(m.new_content, m.content))""",
    ),
    (
        v2.CONTENT_ORPHAN,
        "text",
        tr("that neither a material nor a unit names"),
        """SELECT count(*) FROM temp.m_known k WHERE NOT EXISTS (SELECT 1 FROM temp.m_unit u WHERE u.content = k.key)
              AND k.key NOT IN (SELECT ifnull(new_content, content) FROM temp.m_material
                                 WHERE ifnull(new_content, content) IS NOT NULL)""",
    ),
    (v2.BODY_ORPHAN, "body", tr("whose unit is gone"), "SELECT count(*) FROM temp.m_body WHERE unit IS NULL"),
    (
        v2.VECTOR_MISSING,
        "body",
        tr("without a vector: to be embedded anew"),
        """SELECT count(*) FROM temp.m_body b WHERE NOT EXISTS (SELECT 1 FROM main.embedding e
            WHERE e.embedding_text_hash = ifnull(b.new_hash, b.hash)
              AND NOT EXISTS (SELECT 1 FROM temp.m_vector v WHERE v.rid = e.rowid))""",
    ),
    (
        v2.VECTOR_ORPHAN,
        "vector",
        tr("that no body names"),
        """SELECT count(*) FROM main.embedding e WHERE NOT EXISTS (SELECT 1 FROM temp.m_vector v WHERE v.rid = e.rowid)
              AND NOT EXISTS (SELECT 1 FROM temp.m_body b WHERE ifnull(b.new_hash, b.hash) = +e.embedding_text_hash)""",
    ),
)
#: Findings of other commands that are said as they are after the mends.
CONSEQUENCES = frozenset(name for name, *_ in _CONSEQUENCES)


def _find_consequences(job: RowRepair, target: IndexRepair) -> Iterator[Unresolved]:
    """Return what of other commands' findings is left after the mends, or comes to light by them."""
    job.db.execute("CREATE INDEX temp.m_body_hash ON m_body (ifnull(new_hash, hash))")
    has_model = job.count("SELECT count(*) FROM main.embedding") if target.has_model is None else target.has_model
    for name, noun, which, sql in _CONSEQUENCES:
        if name == v2.VECTOR_MISSING and not has_model:
            continue
        count = job.count(sql)
        if count > target.found.get(name, 0) or (count and not target.is_partial):
            yield _left(target, name, f"{format_count(count, noun)} {which}", count)


def _size(job: RowRepair) -> int:
    """Return about how many bytes the rows hold that are changed."""
    bodies = "new_id IS NOT NULL OR new_target IS NOT NULL OR new_hash IS NOT NULL OR new_number IS NOT NULL"
    texts = job.count(
        "SELECT sum(length(CAST(t.text AS BLOB))) FROM temp.m_body b JOIN main.search_text t ON t.rowid = b.rid"
        f" WHERE {bodies} OR b.text IS NOT NULL"
    )
    contents = job.count(
        "SELECT sum(2 * length(CAST(c.text AS BLOB))) FROM temp.m_content m JOIN main.content c ON c.rowid = m.rid"
    )
    rows = job.count("SELECT count(*) FROM temp.m_unit WHERE touched OR new_id IS NOT NULL")
    rows += job.count(f"SELECT count(*) FROM temp.m_body WHERE {bodies}")
    vectors_gone = job.count("SELECT sum(bytes) FROM temp.m_vector")
    return 2 * texts + contents + _ROW_BYTES * rows + vectors_gone


# Writing units again that are gone while their bodies are still there (``docs/findings.md``, ``body.orphan``).
#
# A body names its unit by an id that is the hash of the unit's material, content, number and offsets. Where the text of a
# material holds the body, and its offsets with one of the missing numbers give that id, the unit is proven.


#: Places of one body in one text that are tried, and tries in all: what is not proven by then stays as it is.
_MOST_PLACES = 20
_MOST_TRIES = 2_000_000
_ORPHANS = """SELECT t.target_id, t.text, t.created_at FROM search_text t
  WHERE t.target_type = 'search_unit' AND t.kind = 'body' AND typeof(t.text) = 'text' AND typeof(t.target_id) = 'text'
    AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id) ORDER BY t.rowid"""
_TEXTS = """SELECT m.material_id, c.content_hash, CAST(c.text AS BLOB) FROM material m
  JOIN content c ON c.content_hash = m.current_content_hash WHERE typeof(m.material_id) = 'text' ORDER BY m.rowid"""
_NUMBERS = "SELECT unit_index FROM search_unit WHERE material_id = ? AND unit_type = 'chunk'"
_INSERT = """INSERT INTO search_unit
  (unit_id, material_id, content_hash, unit_type, unit_index, title, char_start, char_end, locator_json, created_at)
  VALUES (?, ?, ?, 'chunk', ?, NULL, ?, ?, NULL, ?)"""


class LostUnit(NamedTuple):
    """A unit that is gone, with the columns that follow from its body and its material."""

    unit: str
    material: str
    content: str
    number: int
    start: int
    end: int
    created_at: int


def find_lost_units(db: apsw.Connection) -> tuple[list[LostUnit], int]:
    """Return the units of an open index that their bodies prove, and how many bodies prove none.

    Raises:
        apsw.Error: the index is damaged.
    """
    orphans = {str(target): (str(text), created_at) for target, text, created_at in db.execute(_ORPHANS)}
    found: list[LostUnit] = []
    tries = _MOST_TRIES
    if not orphans:
        return [], 0
    for material, content, raw in db.execute(_TEXTS):
        text = raw.decode("utf-8", "surrogatepass") if isinstance(raw, bytes) else ""
        inside = {target: body for target, body in orphans.items() if body[0] in text}
        tries -= len(orphans)
        numbers = _find_missing_numbers(db, str(material), len(inside)) if inside else []
        for target, (body, created_at) in inside.items():
            for start, end in islice(_find_offsets(text, body), _MOST_PLACES):
                tries -= len(numbers)
                number = _find_number(target, str(material), str(content), numbers, (start, end))
                if number is not None:
                    unit = LostUnit(
                        unit=target,
                        material=str(material),
                        content=str(content),
                        number=number,
                        start=start,
                        end=end,
                        created_at=created_at,
                    )
                    found.append(unit)
                    del orphans[target]
                    break
        if tries < 0 or not orphans:
            break
    return found, len(orphans)


def _find_number(unit: str, material: str, content: str, numbers: list[int], place: tuple[int, int]) -> int | None:
    """Return the number with which the offsets of a body give the id of its unit; None where none does."""
    ids = ((one, identity.unit_id(material, content, one, *place)) for one in numbers)
    return next((one for one, derived in ids if derived == unit), None)


def _find_missing_numbers(db: apsw.Connection, material: str, more: int) -> list[int]:
    """Return the numbers that units of a material may have had: the gaps, and as many behind as bodies are there."""
    there = {number for (number,) in db.execute(_NUMBERS, (material,)) if isinstance(number, int)}
    highest = max(there, default=-1) + more
    return [number for number in range(highest + 1) if number not in there]


def _find_offsets(text: str, body: str) -> Iterator[tuple[int, int]]:
    """Yield where a text holds a body, in UTF-16 units."""
    at = text.find(body)
    width = _count_utf16(body)
    while at >= 0:
        start = _count_utf16(text[:at])
        yield start, start + width
        at = text.find(body, at + 1)


def _count_utf16(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def plan_lost_units(root: Path, name: str, base: str) -> tuple[RowsChange | None, int]:
    """Return what writes the lost units of an index again, None where none is proven, and how many bodies stay orphans.

    Args:
        root: the store's root.
        name: the index, below it.
        base: the base's id.

    Raises:
        apsw.Error, OSError: it cannot be read.
    """
    path = root / name
    with sqlite.open_readonly(path) as db:
        units, others = find_lost_units(db)
    if not units:
        return None, others

    def apply(db: apsw.Connection) -> None:
        if find_lost_units(db)[0] != units:
            raise PlanOutdated(path=path, reason=tr("other units would be written again now than were planned"))
        db.executemany(_INSERT, units)

    message = tr(
        "write {units} again, which the ids that their bodies name prove", units=format_count(len(units), "unit")
    )
    action = Action(action="write-units", message=message, base=base, count=len(units), finding=v2.BODY_ORPHAN)
    return RowsChange(path=name, actions=(action,), apply=apply, tables=("search_unit",)), others
