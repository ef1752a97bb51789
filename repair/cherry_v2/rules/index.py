"""Plan the repair of one index file: all its findings in one transaction (``docs/findings.md``, "v2 data").

Contents are repaired first, then offsets, bodies, and the ids that are derived from them, then the full-text index. The
repair is computed in temporary tables (:mod:`repair.cherry_v2.rules.rows`): once for the plan, and once more for the
change, which is refused if it comes to another result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import apsw
import msgspec

from checks.audit.findings import RowNumbers
from checks.cherry_v2 import detect
from checks.cherry_v2 import findings as v2
from regraft.disk import sqlite, untrusted_sqlite
from regraft.errors import PlanOutdated
from regraft.formats import table_integrity
from regraft.formats.cherry_v2.index import SCHEMA_VERSION, schema
from regraft.language import format_count, tr
from repair.changes.plan import Action, RowsChange, Unresolved
from repair.cherry_v2.indexing import find_lost_units
from repair.cherry_v2.rules import rows as rules_rows
from repair.cherry_v2.rules.rows import RowRepair, create_tables, write_back

#: Findings of an index file that are repaired.
NAMES = (
    *(v2.HOT_JOURNAL, v2.META_MISSING, v2.CONTENT_HASH, v2.NO_CONTENT, v2.PATH_UNSAFE, v2.UNIT_OFFSETS, v2.UNIT_ID),
    *(v2.UNIT_GAP, v2.NO_BODY, v2.BODY_ID, v2.BODY_HASH, v2.BODY_ROWID, v2.FTS_DESYNC, v2.VECTOR_LENGTH),
    *(v2.VECTOR_NON_FINITE, v2.VECTOR_ZERO),
)
#: Findings with which the rows of a file cannot be interpreted.
BLOCKING = {v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING, v2.SCHEMA_VERSION}
#: Findings whose repair deletes vectors.
FLAWS = (v2.VECTOR_LENGTH, v2.VECTOR_NON_FINITE, v2.VECTOR_ZERO)
#: By action: the finding that it repairs, its message, the noun that is counted, and the tables that it changes.
_ACTIONS = {
    "settle-journal": (v2.HOT_JOURNAL, tr("roll back {n}"), "unfinished transaction", ()),
    "write-identity": (v2.META_MISSING, tr("write {n} with the id of the base"), "identity row", ("meta",)),
    "restore-contents": (
        v2.CONTENT_HASH,
        tr("restore {n} from the chunks, as the hash proves"),
        "text",
        ("content",),
    ),
    "rekey-contents": (
        v2.CONTENT_HASH,
        tr("store {n} under the right hash"),
        "text",
        ("content", "material", "search_unit", "search_text"),
    ),
    "link-contents": (v2.NO_CONTENT, tr("link {n} to the text that the units have"), "material", ("material",)),
    "rename-materials": (v2.PATH_UNSAFE, tr("give {n} a path below raw/"), "material", ("material",)),
    "place-units": (
        v2.UNIT_OFFSETS,
        tr("correct the offsets of {n}, from the place of each body in the text"),
        "unit",
        ("search_unit",),
    ),
    "number-units": (v2.UNIT_GAP, tr("renumber {n}"), "unit", ("search_unit",)),
    "link-bodies": (v2.NO_BODY, tr("link {n} to units again"), "body", ("search_text",)),
    "write-bodies": (v2.NO_BODY, tr("write {n} again from the text of the units"), "body", ("search_text",)),
    "restore-bodies": (v2.BODY_HASH, tr("restore {n} to the text that was embedded"), "body", ("search_text",)),
    "rehash-bodies": (v2.BODY_HASH, tr("correct the hash of {n}"), "body", ("search_text",)),
    "rekey-units": (
        v2.UNIT_ID,
        tr("recompute the id of {n} from the fields"),
        "unit",
        ("search_unit", "search_text"),
    ),
    "rekey-bodies": (v2.BODY_ID, tr("recompute the id of {n} from the fields"), "body", ("search_text",)),
    "number-bodies": (v2.BODY_ROWID, tr("give {n} a new row number in the full-text index"), "body", ("search_text",)),
    "rebuild-full-text": (v2.FTS_DESYNC, tr("rebuild {n}"), "full-text index", ()),
}
_ROWS_OF = ("meta", "content", "material", "search_unit", "search_text", "embedding")
#: Actions after which the full-text index is rebuilt.
_CHANGE_TEXTS = {"write-bodies", "restore-bodies", "number-bodies"}
#: Statements that make a damaged full-text index ready for a rebuild.
_EMPTY_FULL_TEXT = (
    """INSERT OR REPLACE INTO search_text_fts_config (k, v) SELECT 'version', 4
        WHERE NOT EXISTS (SELECT 1 FROM search_text_fts_config WHERE k = 'version' AND v IN (4, 5))""",
    "INSERT INTO search_text_fts (search_text_fts) VALUES ('delete-all')",
)
#: Approximate bytes of a row without its text.
_ROW_BYTES = 400


class IndexRepair(msgspec.Struct, frozen=True, kw_only=True):
    """An index file to repair, what the audit found in it, and facts about its base."""

    base: str
    #: The file, below the store's root.
    path: str
    #: The base id that the file's folder states; None without a folder.
    folder: str | None
    #: Whether the base has a model, and the dimensions that the catalog states; None if unknown.
    has_model: bool | None
    dimensions: int | None
    #: The count of each finding of the audit, and the findings to repair.
    found: Mapping[str, int]
    wanted: frozenset[str]
    now_ms: int
    #: Whether the user named the findings to repair.
    is_partial: bool = False
    #: Row numbers of materials, with their new paths.
    renamed: tuple[tuple[int, str], ...] = ()
    #: The affected rows of each finding, if the audit recorded them.
    rows: Mapping[str, Sequence[RowNumbers]] = msgspec.field(default_factory=dict)


class IndexRepairOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the repair of an index file changes, and what it cannot repair."""

    actions: tuple[Action, ...]
    left: tuple[Unresolved, ...]
    #: Approximate bytes of the changed rows.
    bytes: int
    rebuilds: bool

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables whose rows change."""
        named = [table for action in self.actions for table in _tables(action.action)]
        return tuple(dict.fromkeys(named))


def _tables(action: str) -> Sequence[str]:
    """Return the names of the tables that an action changes."""
    return ("embedding",) if action == "delete-embeddings" else _ACTIONS[action][3]


def plan_index(root: Path, target: IndexRepair) -> tuple[RowsChange | None, tuple[Unresolved, ...]]:
    """Return the change that repairs an index file, or None, and reports about what cannot be repaired.

    Raises:
        apsw.Error, OSError: the file cannot be read.
    """
    path = root / target.path
    with sqlite.open_readonly(path, vectors=True) as db:
        broken = table_integrity.find_inconsistency(db, _ROWS_OF)
        if broken is not None:
            reason = tr("SQLite reports damage ({broken}); restore the file from a backup", broken=broken)
            return None, tuple(
                _unresolved(target, name, reason, target.found[name])
                for name in sorted(target.wanted.intersection(target.found))
            )
        db.execute("PRAGMA query_only = 0")
        planned = _repair_rows(db, target)
    if planned is None:
        reason = tr("two rows would get the same id; decide which one is right")
        names = sorted(target.wanted.intersection(target.found))
        return None, tuple(_unresolved(target, name, reason, 1) for name in names)
    if not planned.actions:
        return None, planned.left

    def apply(db: apsw.Connection) -> None:
        """Repair the open index; raises PlanOutdated if the repair has another result than the plan."""
        sqlite.load_vector_extension(db)
        if _repair_rows(db, target) != planned:
            raise PlanOutdated(path=path, reason=tr("the rows to repair are no longer those of the plan"))
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
    """Write the results of the repair from the temporary tables to the open index file."""
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
    """Repair the rows of an open index file in temporary tables; None if two rows would get the same id."""
    job = RowRepair(db, target.wanted, frozenset(target.found), rows=target.rows)
    create_tables(db)
    # Unit numbers help to prove bodies and contents. They are derived again when the offsets are right.
    rules_rows.order_units(job)
    rules_rows.link_bodies(job)
    rules_rows.repair_contents(job)
    rules_rows.link_contents(job)
    rules_rows.repair_bodies_and_offsets(job)
    rules_rows.number_units(job)
    rules_rows.write_bodies(job)
    rules_rows.rekey_units(job)
    rules_rows.rekey_bodies(job)
    rebuilds = any(job.done[action] for action in _CHANGE_TEXTS) or job.wants(v2.FTS_DESYNC) or job.wants(v2.BODY_ROWID)
    if rebuilds:
        rules_rows.number_bodies(job)
        job.done["rebuild-full-text"] += 1
    if rules_rows.has_id_clash(job):
        return None
    vectors_gone = list(_drop_vectors(job, target))
    if job.wants(v2.META_MISSING):
        if target.folder is None:
            job.leave(v2.META_MISSING, tr("the file is not in the folder of a base, so the base's id is unknown"))
        else:
            job.done["write-identity"] += 1
    job.done["settle-journal"] += int(job.wants(v2.HOT_JOURNAL))
    job.done["rename-materials"] += len(target.renamed)
    actions = (*_list_actions(job, target), *vectors_gone)
    left = [*(_unresolved(target, name, reason, count) for (name, reason), count in job.left.items())]
    left += _find_consequences(job, target) if actions else []
    return IndexRepairOutcome(actions=actions, left=tuple(left), bytes=_size(job), rebuilds=rebuilds)


def _list_actions(job: RowRepair, target: IndexRepair) -> Iterator[Action]:
    """Yield the actions for the report, with the numbers of changed rows."""
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
                count=count,
                finding=mended,
            )


def _unresolved(target: IndexRepair, finding: str, reason: str, count: int) -> Unresolved:
    """Report that ``count`` rows of a finding cannot be repaired, and why."""
    return Unresolved.registered(finding, reason, base=target.base, count=count)


# --- vectors ---------------------------------------------------------------------------------------------------------


def _drop_vectors(job: RowRepair, target: IndexRepair) -> Iterator[Action]:
    """Collect vectors that can never be used, to delete them, and yield the actions. They are embedded again later."""
    wanted = {flaw for flaw in FLAWS if job.wants(flaw)}
    if not wanted:
        return
    db = job.db
    lengths = schema.count_vector_lengths(db)
    # The catalog is corrected to the dimensions that all vectors have, so no length is wrong.
    is_corrected = len(lengths) == 1 and job.wants(v2.BASE_DIMENSIONS)
    dimensions = None if is_corrected else target.dimensions
    reason = _why_lengths_are_kept(lengths, dimensions, is_chosen=target.is_partial)
    length = schema.choose_vector_length(lengths, dimensions)
    for rowid, finding in _unusable_vectors(job, wanted, length, is_corrected=is_corrected):
        db.execute(
            "INSERT INTO temp.m_vector SELECT rowid, ?1, ifnull(length(CAST(vector_blob AS BLOB)), 0)"
            " FROM main.embedding WHERE rowid = ?2 AND (?3 OR typeof(vector_blob) <> 'blob'"
            " OR length(vector_blob) = 0 OR length(vector_blob) % 4 <> 0)",
            (finding, rowid, reason is None or finding != v2.VECTOR_LENGTH),
        )
        if not db.changes():
            job.leave(v2.VECTOR_LENGTH, str(reason))
    for flaw, count, size in db.execute(
        "SELECT flaw, count(*), sum(bytes) FROM temp.m_vector GROUP BY flaw ORDER BY flaw"
    ):
        message = tr(
            "delete {vectors} that can never be used, to be embedded again", vectors=format_count(count, "vector")
        )
        yield Action(
            action="delete-embeddings", message=message, base=target.base, count=count, bytes=size, finding=flaw
        )


def _unusable_vectors(
    job: RowRepair, wanted: set[str], length: int, *, is_corrected: bool
) -> Iterator[tuple[int, str]]:
    """Yield row number and finding of each vector that cannot be used.

    The rows that the audit recorded are used, unless it recorded none or assumed another length.

    Args:
        job: the repair.
        wanted: findings about vectors.
        length: the length of the base's vectors in bytes.
        is_corrected: whether the run corrects the catalog's dimensions.
    """
    if is_corrected or any(job.detected(flaw) is None for flaw in wanted):
        yield from (found for found in detect.find_unusable_vectors(job.db, length) if found[1] in wanted)
    else:
        yield from ((rowid, flaw) for flaw in sorted(wanted) for rowid in job.detected(flaw) or ())


def _why_lengths_are_kept(lengths: Counter[int], dimensions: int | None, *, is_chosen: bool) -> str | None:
    """Return why vectors of an unexpected length are kept; None if they are deleted.

    Args:
        lengths: the number of vectors by their length in bytes.
        dimensions: the dimensions that the catalog states, or None.
        is_chosen: whether the user named the finding.
    """
    if dimensions is None:
        usual = schema.choose_vector_length(lengths, None)
        return None if 2 * lengths[usual] > lengths.total() else tr("the right vector length of the base is unknown")
    if is_chosen or not schema.lengths_contradict(lengths, dimensions):
        return None
    return tr(
        "most vectors do not have the {dimensions} dimensions of the catalog, so that all are kept; --only "
        "embedding.length removes those without",
        dimensions=dimensions,
    )


#: Findings that a repair can cause or fix as a side effect: finding, noun, reason, and a query for the count.
_CONSEQUENCES = (
    (
        v2.UNIT_CONTENT,
        "unit",
        tr("referring to a different text than the material, or to no material"),
        """SELECT count(*) FROM temp.m_unit u LEFT JOIN temp.m_material m ON m.id = u.material WHERE m.rid IS NULL
             OR (ifnull(m.new_content, m.content) IS NOT NULL
                 AND u.content IS NOT ifnull(m.new_content, m.content))""",
    ),
    (
        v2.CONTENT_ORPHAN,
        "text",
        tr("not referenced by any material or unit"),
        """SELECT count(*) FROM temp.m_known k WHERE NOT EXISTS (SELECT 1 FROM temp.m_unit u WHERE u.content = k.key)
              AND k.key NOT IN (SELECT ifnull(new_content, content) FROM temp.m_material
                                 WHERE ifnull(new_content, content) IS NOT NULL)""",
    ),
    (v2.BODY_ORPHAN, "body", tr("whose unit is missing"), "SELECT count(*) FROM temp.m_body WHERE unit IS NULL"),
    (
        v2.VECTOR_MISSING,
        "body",
        tr("without a vector: to be embedded again"),
        """SELECT count(*) FROM temp.m_body b WHERE NOT EXISTS (SELECT 1 FROM main.embedding e
            WHERE e.embedding_text_hash = ifnull(b.new_hash, b.hash)
              AND NOT EXISTS (SELECT 1 FROM temp.m_vector v WHERE v.rid = e.rowid))""",
    ),
    (
        v2.VECTOR_ORPHAN,
        "vector",
        tr("not referenced by any indexed text"),
        """SELECT count(*) FROM main.embedding e WHERE NOT EXISTS (SELECT 1 FROM temp.m_vector v WHERE v.rid = e.rowid)
              AND NOT EXISTS (SELECT 1 FROM temp.m_body b WHERE ifnull(b.new_hash, b.hash) = +e.embedding_text_hash)""",
    ),
)
#: Findings of other commands that are reported as they are after the repair.
CONSEQUENCES = frozenset(name for name, *_ in _CONSEQUENCES)


def _find_consequences(job: RowRepair, target: IndexRepair) -> Iterator[Unresolved]:
    """Report findings for other commands that remain in the index after the repair, or that it causes."""
    job.db.execute("CREATE INDEX temp.m_body_hash ON m_body (ifnull(new_hash, hash))")
    has_model = job.count("SELECT count(*) FROM main.embedding") if target.has_model is None else target.has_model
    for name, noun, which, sql in _CONSEQUENCES:
        if name == v2.VECTOR_MISSING and not has_model:
            continue
        count = job.count(sql)
        if count > target.found.get(name, 0) or (count and not target.is_partial):
            yield _unresolved(
                target, name, tr("{counted} {which}", counted=format_count(count, noun), which=which), count
            )


def _size(job: RowRepair) -> int:
    """Return the approximate number of bytes in the changed rows."""
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


# --- lost units (``docs/findings.md``, ``body.orphan``) -------------------------------------------------------------
#
# A body names its unit by an id that is the hash of the unit's material, content, number and offsets. If the text of a
# material contains the body, and its offsets with one of the missing numbers give that id, the unit is proven.


_INSERT = """INSERT INTO search_unit
  (unit_id, material_id, content_hash, unit_type, unit_index, title, char_start, char_end, locator_json, created_at)
  VALUES (?, ?, ?, 'chunk', ?, NULL, ?, ?, NULL, ?)"""


def plan_lost_units(root: Path, name: str, base: str) -> tuple[RowsChange | None, int]:
    """Plan to write missing units again that bodies prove.

    Args:
        root: the store's root.
        name: the index file, relative to it.
        base: the base's id.

    Returns:
        The change, or None, and the number of bodies that have no unit and from which none can be derived.

    Raises:
        apsw.Error, OSError: the index cannot be read.
    """
    path = root / name
    with sqlite.open_readonly(path) as db:
        units, others = find_lost_units(db)
    if not units:
        return None, others

    def apply(db: apsw.Connection) -> None:
        """Write the units to the open index; raises PlanOutdated if its bodies prove others now."""
        if find_lost_units(db)[0] != units:
            raise PlanOutdated(path=path, reason=tr("the units to restore are no longer those of the plan"))
        db.executemany(_INSERT, units)

    message = tr("restore {units}, proven by the ids in their bodies", units=format_count(len(units), "unit"))
    action = Action(action="write-units", message=message, base=base, count=len(units), finding=v2.BODY_ORPHAN)
    return RowsChange(path=name, actions=(action,), apply=apply, tables=("search_unit",)), others
