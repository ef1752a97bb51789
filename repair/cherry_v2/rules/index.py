"""Mending one index file: all its findings in one order, in one transaction (``docs/findings.md``, "v2 data").

Contents come first, then the places of units in them, then bodies, then ids, which follow from all these, then the
full-text index. Everything is worked out in temporary tables (:mod:`repair.cherry_v2.rules.workbench`): the planner
does that over the file as it is, the change does it again over the file that it writes to, and both have to come to the
same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import apsw
import msgspec

from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import vectors
from regraft import guarding, sqlite
from regraft.errors import PlanOutdated
from regraft.formats import table_pages
from regraft.formats.cherry_v2.index import SCHEMA_VERSION, vector_lengths
from regraft.language import tr
from regraft.text import counted
from repair.changes.plan import Action, RowsChange, Unresolved
from repair.cherry_v2.rules import keys
from repair.cherry_v2.rules import texts as rules_texts
from repair.cherry_v2.rules.workbench import Job, lay_out, write_back

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


class Target(msgspec.Struct, frozen=True, kw_only=True):
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


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
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


def change(root: Path, target: Target) -> tuple[RowsChange | None, tuple[Unresolved, ...]]:
    """Return what mends an index file, None where nothing can be mended, and what stays as it is.

    Raises:
        apsw.Error, OSError: it cannot be read.
    """
    path = root / target.path
    with sqlite.reading(path, vectors=True) as db:
        broken = table_pages.disagreement(db, _ROWS_OF)
        if broken is not None:
            reason = tr("SQLite itself finds the file damaged ({broken}): a backup of it helps", broken=broken)
            return None, tuple(
                _left(target, name, reason, target.found[name])
                for name in sorted(target.wanted.intersection(target.found))
            )
        db.execute("PRAGMA query_only = 0")
        planned = _worked_out(db, target)
    if planned is None:
        reason = tr("two rows would have one id afterwards: a person has to look at them")
        names = sorted(target.wanted.intersection(target.found))
        return None, tuple(_left(target, name, reason, 1) for name in names)
    if not planned.actions:
        return None, planned.left

    def apply(db: apsw.Connection) -> None:
        sqlite.load_vectors(db)
        if _worked_out(db, target) != planned:
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


def _write(db: apsw.Connection, target: Target) -> None:
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
        with guarding.below_the_surface(db):
            for statement in _EMPTY_FULL_TEXT:
                db.execute(statement)


def _worked_out(db: apsw.Connection, target: Target) -> Outcome | None:
    """Mend the rows in the temporary tables; None where two of them would have one id."""
    job = Job(db, target.wanted, frozenset(target.found))
    lay_out(db)
    # Numbers prove bodies and texts; they are gone over again by the places that are right then.
    keys.order_units(job)
    keys.link_bodies(job)
    rules_texts.mend_contents(job)
    keys.link_contents(job)
    rules_texts.mend_places(job)
    keys.number_units(job)
    rules_texts.write_bodies(job)
    keys.rekey_units(job)
    keys.rekey_bodies(job)
    rebuilds = any(job.done[action] for action in _CHANGE_TEXTS) or job.wants(v2.FTS_DESYNC) or job.wants(v2.BODY_ROWID)
    if rebuilds:
        keys.number_bodies(job)
        job.done["rebuild-full-text"] += 1
    if keys.clashes(job):
        return None
    vectors_gone = list(_drop_vectors(job, target))
    _other_mends(job, target)
    actions = (*_actions(job, target), *vectors_gone)
    left = [*(_left(target, name, reason, count) for (name, reason), count in job.left.items())]
    left += _aside(job, target) if actions else []
    return Outcome(actions=actions, left=tuple(left), bytes=_size(job), rebuilds=rebuilds)


def _other_mends(job: Job, target: Target) -> None:
    if job.wants(v2.META_MISSING):
        if target.folder is None:
            job.leave(v2.META_MISSING, tr("the file is in no base's folder, so that nobody knows the base's id"))
        else:
            job.done["write-identity"] += 1
    job.done["settle-journal"] += int(job.wants(v2.HOT_JOURNAL))
    job.done["rename-materials"] += len(target.renamed)


def _actions(job: Job, target: Target) -> Iterator[Action]:
    for name, (finding, message, noun, _) in _ACTIONS.items():
        count = job.done[name]
        if count:
            mended = finding if job.wants(finding) else None
            if name == "rebuild-full-text" and job.wants(v2.BODY_ROWID) and not job.done["number-bodies"]:
                mended = v2.BODY_ROWID
            yield Action(
                action=name,
                message=message.format(n=counted(count, noun)),
                base=target.base,
                subject=None,
                count=count,
                bytes=0,
                finding=mended,
            )


def _left(target: Target, finding: str, reason: str, count: int) -> Unresolved:
    return Unresolved.registered(finding, reason, base=target.base, count=count)


# --- vectors ---------------------------------------------------------------------------------------------------------


def _drop_vectors(job: Job, target: Target) -> Iterator[Action]:
    """Drop vectors that can never be right, so that they are embedded anew; what may be right stays."""
    wanted = {flaw for flaw in FLAWS if job.wants(flaw)}
    if not wanted:
        return
    db = job.db
    lengths = vector_lengths.lengths_of(db)
    # The catalog gets the dimensions that all vectors have: no vector is of a wrong length then.
    is_corrected = len(lengths) == 1 and job.wants(v2.BASE_DIMENSIONS)
    dimensions = None if is_corrected else target.dimensions
    reason = _why_lengths_are_kept(lengths, dimensions, is_chosen=target.is_partial)
    for one in vectors.judge(db, vector_lengths.expected_length(lengths, dimensions)):
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
        message = tr("delete {vectors} that can never be right, to be embedded anew", vectors=counted(count, "vector"))
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
        usual = vector_lengths.expected_length(lengths, None)
        return None if 2 * lengths[usual] > lengths.total() else tr("which of the lengths is the base's is not known")
    if is_chosen or not vector_lengths.contradicts(lengths, dimensions):
        return None
    return tr(
        "most vectors do not have the {dimensions} dimensions of the catalog, so that all are kept; --only "
        "embedding.length removes those without",
        dimensions=dimensions,
    )


#: What mends can bring to light or settle besides what they are for: name, noun, reason, and how many rows.
_ASIDE = (
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
ASIDE = frozenset(name for name, *_ in _ASIDE)


def _aside(job: Job, target: Target) -> Iterator[Unresolved]:
    """Return what of other commands' findings is left after the mends, or comes to light by them."""
    job.db.execute("CREATE INDEX temp.m_body_hash ON m_body (ifnull(new_hash, hash))")
    has_model = job.count("SELECT count(*) FROM main.embedding") if target.has_model is None else target.has_model
    for name, noun, which, sql in _ASIDE:
        if name == v2.VECTOR_MISSING and not has_model:
            continue
        count = job.count(sql)
        if count > target.found.get(name, 0) or (count and not target.is_partial):
            yield _left(target, name, f"{counted(count, noun)} {which}", count)


def _size(job: Job) -> int:
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
