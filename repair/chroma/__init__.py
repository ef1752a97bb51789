"""Plan ``repair`` of a folder of Chroma: rebuild damaged segments and the full-text index. Nothing is embedded.

A segment is rebuilt in a folder beside the old one, which it replaces in one step. The
database keeps its rows: ids, texts and metadata are never deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from checks.audit import sqlite_checks
from checks.audit.collector import Level
from checks.audit.findings import Finding
from checks.chroma import audit
from checks.chroma import findings as chroma
from regraft.disk import sqlite
from regraft.errors import SourceUnreadable
from regraft.formats.chroma import database
from regraft.formats.chroma.collection import CollectionState, Origin, open_collection
from regraft.formats.chroma.database import ChromaProblem
from regraft.language import format_count, tr
from regraft.text import one_line
from repair.changes import schema_objects, undo
from repair.changes.files import copy_database
from repair.changes.options import GcOptions, RepairOptions
from repair.changes.plan import Action, FileChange, Plan, Unresolved, group_by_name, move_to_trash, other_warnings
from repair.changes.store import Store
from repair.chroma import full_text
from repair.chroma.rebuild import ChromaFiller, Rebuild, plan_new_segment
from repair.systems import Repairs

#: Findings that a rebuilt segment resolves.
_REBUILT = (
    chroma.SEGMENT_MISSING,
    chroma.LABELS_MISSING,
    chroma.LABELS_HOSTILE,
    chroma.LABELS_INCONSISTENT,
    chroma.HEADER,
    chroma.GRAPH,
    chroma.QUEUE_UNAPPLIED,
)
#: Findings that a rebuilt segment resolves only if the user names them: vectors are dropped, or the level is deep.
_REBUILT_IF_NAMED = (chroma.VECTOR_ORPHAN, chroma.RECALL)
_OF_DATABASE = (chroma.FULL_TEXT, chroma.SEQ_ID_MIXED)
#: Findings that this module repairs.
NAMES = (*_REBUILT, *_REBUILT_IF_NAMED, *_OF_DATABASE)
#: Lost vectors that the report names one by one, each with the beginning of its text.
_MAX_NAMED = 1000
_LONGEST_TEXT = 60


def plan(store: Store, options: RepairOptions) -> Plan:
    """Plan the repair of the chosen findings.

    Raises:
        SourceUnreadable: the database cannot be read.
    """
    level = Level.DEEP if chroma.RECALL in options.only else Level.DEFAULT
    found = group_by_name(store.findings(level))
    usual = (*_REBUILT, *_OF_DATABASE, *((chroma.NORMS,) if options.unproven else ()))
    wanted = options.wanted(usual).intersection((*NAMES, chroma.NORMS), found)
    made = Plan(level=level)
    foreign = {database.FILE: partial(sqlite_checks.find_foreign_on_tables, tables=audit.TABLES)}
    made.changes += _plan_database(store, wanted)
    made.resolves |= {(name, None) for name in wanted.intersection(_OF_DATABASE)}
    if chroma.NORMS in found and not options.only:
        # Without --unproven, the entries are named only.
        wanted |= {chroma.NORMS}
    _plan_segments(made, store, options, {name: found[name] for name in wanted if name not in _OF_DATABASE})
    made = schema_objects.add_drops(made, store, found, options.only, foreign)
    if not options.only:
        rest = (*usual, *schema_objects.NAMES, chroma.VECTOR_MISSING, chroma.NORMS)
        made.left += [Unresolved.with_remedy(one) for one in other_warnings(found, rest)]
    return made


# --- segments --------------------------------------------------------------------------------------------------------


def _plan_segments(made: Plan, store: Store, options: RepairOptions, wanted: dict[str, list[Finding]]) -> None:
    """Plan the rebuild of each collection that has a wanted finding."""
    bases = sorted({str(one.base) for findings in wanted.values() for one in findings if one.base is not None})
    path = store.root / database.FILE
    try:
        with database.open_chroma(path) as db:
            collections = {one.id: one for one in database.list_collections(db)}
            for base in bases:
                with open_collection(db, collections[base], store.root) as state:
                    names = [name for name, every in wanted.items() if any(one.base == base for one in every)]
                    _plan_segment(made, db, state, names, options)
    except (ChromaProblem, apsw.Error, OSError) as error:
        raise SourceUnreadable(path=path, reason=error) from error


def _plan_segment(
    made: Plan, db: apsw.Connection, state: CollectionState, names: list[str], options: RepairOptions
) -> None:
    """Plan to rebuild the vector segment of a collection, or report why nothing is changed."""
    of = state.of
    if names == [chroma.NORMS] and not options.unproven:
        reason = tr("the length of its vector is lost; --unproven keeps it with length 1")
        made.left += _name_entries(db, state, state.ids_of(Origin.UNPROVEN), chroma.NORMS, reason)
        return
    job = Rebuild(
        root=state.root,
        of=of,
        keeps_unproven=options.unproven,
        keeps_orphans=chroma.VECTOR_ORPHAN not in names,
    )
    kept = sum(1 for _ in job.rows(state))
    lost = list(_lost(db, state, options))
    if not kept or of.vectors is None or state.folder is None:
        reason = tr("neither the segment nor the queue has a vector that is proven; nothing was changed")
        for name in names:
            made.left.append(Unresolved.registered(name, reason, base=of.id))
        made.left += lost
        return
    message = tr(
        "rebuild the vector segment of {name} from its {vectors}",
        name=of.name,
        vectors=format_count(kept, "vector"),
    )
    actions = (
        Action(action="rebuild-segment", message=message, base=of.id, subject=of.vectors, count=kept, finding=names[0]),
    )
    made.changes += plan_new_segment(state, job, actions, kept)
    made.resolves |= {(name, of.id) for name in names}
    made.left += lost


def _lost(db: apsw.Connection, state: CollectionState, options: RepairOptions) -> Iterator[Unresolved]:
    """Name every entry whose vector the new segment does not have, with the beginning of its text."""
    missing = tr("no file in the folder has its vector")
    yield from _name_entries(db, state, state.missing_ids(), chroma.VECTOR_MISSING, missing)
    if not options.unproven:
        unproven = tr("nothing proves that its vector is of this text; --unproven keeps it")
        yield from _name_entries(db, state, state.ids_of(Origin.UNPROVEN), chroma.VECTOR_MISSING, unproven)


def _name_entries(
    db: apsw.Connection, state: CollectionState, ids: Iterator[str], finding: str, reason: str
) -> Iterator[Unresolved]:
    """Name entries with the beginning of their text; beyond the first ones, only their number."""
    base, more = state.of.id, 0
    for at, key in enumerate(ids):
        if at >= _MAX_NAMED:
            more += 1
            continue
        document = database.read_document(db, state.of, key)
        text = tr("no text") if document is None else one_line(document, _LONGEST_TEXT)
        said = tr("{id} ({text}): {reason}", id=key, text=text, reason=reason)
        yield Unresolved.registered(finding, said, base=base, subject=key)
    if more:
        said = tr("{ids} more: {reason}", ids=format_count(more, "id"), reason=reason)
        yield Unresolved.registered(finding, said, base=base, count=more)


# --- the database ----------------------------------------------------------------------------------------------------


def _plan_database(store: Store, wanted: Collection[str]) -> Iterator[FileChange]:
    """Plan the rebuild of the full-text index and of mixed sequence numbers, in one copy of the database."""
    actions = []
    if chroma.FULL_TEXT in wanted:
        message = tr("rebuild the full-text index of {name} from its documents", name=database.FILE)
        actions.append(
            Action(action="rebuild-full-text", message=message, subject=database.FILE, finding=chroma.FULL_TEXT)
        )
    if chroma.SEQ_ID_MIXED in wanted:
        with database.open_chroma(store.root / database.FILE) as db:
            as_bytes = database.stores_numbers_as_bytes(db)
        message = (
            tr("store all sequence numbers of {name} as bytes, as versions before 1.0 do", name=database.FILE)
            if as_bytes
            else tr("store all sequence numbers of {name} as integers", name=database.FILE)
        )
        actions.append(
            Action(action="convert-numbers", message=message, subject=database.FILE, finding=chroma.SEQ_ID_MIXED)
        )
    if actions:
        path = store.root / database.FILE
        make = partial(_rewrite, path, texts=chroma.FULL_TEXT in wanted, numbers=chroma.SEQ_ID_MIXED in wanted)
        yield FileChange(path=database.FILE, actions=tuple(actions), make=make, bytes=2 * path.stat().st_size)


def _rewrite(path: Path, new: Path, *, texts: bool, numbers: bool) -> None:
    """Copy the database, and change the copy.

    Raises:
        FullTextNotRebuilt: FTS5 cannot rebuild the index.
    """
    if texts:
        full_text.rebuild_in_copy(path, new)
    else:
        copy_database(path, new)
    if numbers:
        with sqlite.open_writable(new) as db, sqlite.transaction(db):
            as_bytes = database.stores_numbers_as_bytes(db)
            db.create_scalar_function("regraft_number", _to_bytes if as_bytes else _to_integer, 1, deterministic=True)
            for table in ("embeddings", "max_seq_id"):
                db.execute(
                    f"UPDATE {table} SET seq_id = regraft_number(seq_id) WHERE typeof(seq_id) = ?",
                    ("integer" if as_bytes else "blob",),
                )


def _to_integer(*values: Any) -> Any:
    """Convert the 8 bytes of a version before 1.0, big-endian."""
    (value,) = values
    return int.from_bytes(value, "big") if isinstance(value, bytes) and len(value) == 8 else value


def _to_bytes(*values: Any) -> Any:
    """Encode an operation number as versions before 1.0 do; other values are unchanged."""
    (value,) = values
    return value.to_bytes(8, "big") if isinstance(value, int) and value >= 0 else value


# --- unused folders --------------------------------------------------------------------------------------------------


def plan_gc(store: Store, options: GcOptions) -> Plan:
    """Plan to move folders of segments that no row refers to to the trash, if the user names their finding."""
    made = Plan()
    if chroma.SEGMENT_ORPHAN in options.only:
        with database.open_chroma(store.root / database.FILE) as db:
            folders = audit.orphan_folders(db, store.root)
            known = "SELECT CAST(id AS TEXT) FROM collections"
            query = f"SELECT 1 FROM segments WHERE CAST(collection AS TEXT) NOT IN ({known})"
            has_rows = db.execute(query).get is not None
        for name in folders:
            message = tr("move {name}, a segment that no row refers to, to the trash", name=name)
            made.changes.append(
                move_to_trash(store, store.root / name, "trash-segment", chroma.SEGMENT_ORPHAN, message, as_is=True)
            )
        # Rows of segments without a collection have the same finding, and are left.
        if folders and not has_rows:
            made.resolves.add((chroma.SEGMENT_ORPHAN, None))
    return undo.add_expired_runs(made, store, options)


REPAIRS = Repairs(repair=plan, repaired=NAMES, gc=plan_gc, collected=(chroma.SEGMENT_ORPHAN,), filler=ChromaFiller())
