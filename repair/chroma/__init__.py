"""Plan ``repair`` of a folder of Chroma: rebuild damaged segments and the full-text index. Nothing is embedded.

A segment is rebuilt in a folder beside the old one, which it replaces in one step. The
database keeps its rows: ids, texts and metadata are never deleted.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np
from msgspec import structs

from checks.audit import sqlite_checks
from checks.audit.collector import Level
from checks.audit.findings import Finding
from checks.chroma import audit
from checks.chroma import findings as chroma
from regraft.disk import file_paths, links, sqlite
from regraft.errors import SourceUnreadable
from regraft.formats.chroma import database
from regraft.formats.chroma.collection import (
    KEPT_FILE,
    CollectionState,
    KeptPositions,
    Origin,
    measure_dimension,
    open_collection,
)
from regraft.formats.chroma.database import ChromaCollection, ChromaProblem
from regraft.language import format_count, tr
from regraft.text import join_command, one_line, path_argument
from repair.changes import schema_objects, undo
from repair.changes.files import copy_database
from repair.changes.options import GcOptions, RepairOptions
from repair.changes.plan import Action, FileChange, Plan, Unresolved, group_by_name, move_to_trash, other_warnings
from repair.changes.store import Store
from repair.chroma import full_text
from repair.chroma.rebuild import (
    ChromaFiller,
    NewVector,
    Rebuild,
    keep_segment,
    list_kept_names,
    no_new_vectors,
    plan_new_segment,
    stored_bytes,
)
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
    chroma.NORMS,
)
#: Findings about files with which Chroma cannot open a collection, or returns wrong vectors.
_OF_FILES = frozenset(_REBUILT) - {chroma.QUEUE_UNAPPLIED}
#: Findings that a rebuilt segment resolves only if the user names them: vectors are dropped, or the level is deep.
_REBUILT_IF_NAMED = (chroma.VECTOR_ORPHAN, chroma.RECALL)
_OF_DATABASE = (chroma.FULL_TEXT, chroma.SEQ_ID_MIXED, chroma.DIMENSION_WRONG)
#: Findings that this module repairs.
NAMES = (*_REBUILT, *_REBUILT_IF_NAMED, *_OF_DATABASE)
#: Lost vectors that the report names one by one, each with the beginning of its text.
_MAX_NAMED = 1000
_LONGEST_TEXT = 60
#: Longest file about a kept segment.
_MAX_NOTE = 1000
#: Vectors that are compared to find out whether kept files fit, and the cosine from which two are of the same text.
_MAX_COMPARED, _LEAST_COSINE = 2000, 0.99
#: Kept files of a segment, the last ones first.
_Kept = list[tuple[KeptPositions, CollectionState]]


def plan(store: Store, options: RepairOptions) -> Plan:
    """Plan the repair of the chosen findings.

    Raises:
        SourceUnreadable: the database cannot be read.
    """
    level = Level.DEEP if chroma.RECALL in options.only else Level.DEFAULT
    found = group_by_name(store.findings(level))
    # Kept files may have such a vector, which nothing proves. Otherwise only the entries are named.
    usual = (*_REBUILT, *_OF_DATABASE, chroma.VECTOR_MISSING)
    wanted = options.wanted(usual).intersection((*NAMES, chroma.VECTOR_MISSING), found)
    made = Plan(level=level)
    foreign = {database.FILE: partial(sqlite_checks.find_foreign_on_tables, tables=audit.TABLES)}
    segments = {name: found[name] for name in wanted if name not in _OF_DATABASE}
    ignored = _plan_segments(made, store, options, segments)
    of_database = {name: found[name] for name in wanted.intersection(_OF_DATABASE)}
    _plan_database(made, store, of_database, ignored)
    made = schema_objects.add_drops(made, store, found, options.only, foreign)
    if not options.only:
        rest = (*usual, *schema_objects.NAMES)
        made.left += [Unresolved.with_remedy(one) for one in other_warnings(found, rest)]
    return made


# --- segments --------------------------------------------------------------------------------------------------------


def _plan_segments(made: Plan, store: Store, options: RepairOptions, wanted: dict[str, list[Finding]]) -> list[int]:
    """Add the new segments to the plan ``made``.

    ``wanted`` has the findings about segments to repair, by name. Returns the numbers of operations in the queue that
    must not have an effect on the new segments.
    """
    names_by_base: dict[str, list[str]] = {}
    for name, findings in wanted.items():
        for base in {one.base for one in findings} - {None}:
            names_by_base.setdefault(str(base), []).append(name)
    path = store.root / database.FILE
    ignored: list[int] = []
    try:
        with database.open_chroma(path) as db:
            collections = {one.id: one for one in database.list_collections(db)}
            for base, names in sorted(names_by_base.items()):
                with open_collection(db, collections[base], store.root) as state, ExitStack() as opened:
                    kept = opened.enter_context(_open_kept(db, state)) if options.unproven else []
                    changes = len(made.changes)
                    _plan_segment(made, store, db, state, names, kept, keeps_unproven=options.unproven)
                    if len(made.changes) > changes:
                        ignored += state.ignored_operations(keeps_unproven=options.unproven)
    except (ChromaProblem, apsw.Error, OSError) as error:
        raise SourceUnreadable(path=path, reason=error) from error
    return ignored


def _plan_segment(
    made: Plan,
    store: Store,
    db: apsw.Connection,
    state: CollectionState,
    names: list[str],
    kept: _Kept,
    *,
    keeps_unproven: bool,
) -> None:
    """Add to the plan ``made`` how the segment of one collection is rebuilt or removed, or why it is left as it is.

    Args:
        made: the plan.
        store: the folder of Chroma.
        db: its database.
        state: the collection.
        names: the findings about the collection to resolve.
        kept: files of the segment that earlier repairs kept, whose vectors can be used.
        keeps_unproven: whether vectors are kept that nothing proves to be of their entry.
    """
    of, folder = state.of, state.folder
    foreign = _find_special_file(folder)
    if foreign is not None:
        reason = tr("{name} is a link or a pipe, and left as it is; replace it by a file or a folder", name=foreign)
        named = [name for name in names if name != chroma.VECTOR_MISSING]
        made.left += [Unresolved.registered(name, reason, base=of.id) for name in named]
        return
    job = Rebuild(
        root=state.root,
        of=of,
        keeps_unproven=keeps_unproven,
        keeps_orphans=chroma.VECTOR_ORPHAN not in names,
        new=_read_kept_vectors if kept else no_new_vectors,
    )
    added = sum(1 for key in state.missing_ids() if _find_kept(state, kept, key) is not None)
    left = list(_report_lost_vectors(db, state, kept, keeps_unproven=keeps_unproven))
    if left:
        left[0] = structs.replace(left[0], repair=join_command(("regraft", "backfill", path_argument(store.path))))
    made.left += left
    if names == [chroma.VECTOR_MISSING] and not added:
        return
    count = sum(1 for _ in job.rows(state)) + added
    lost = sum(one.count for one in left)
    names = [name for name in names if name != chroma.VECTOR_MISSING or not lost]
    if count and folder is not None and of.vectors is not None:
        made.changes += plan_new_segment(state, job, (_describe_rebuild(of, names, count, lost),), count)
    elif _is_damaged(state, names):
        assert folder is not None
        made.changes += _remove_segment(state, folder, names[0])
        # Chroma makes a new folder with the next vectors that it gets.
        names = [name for name in names if name != chroma.SEGMENT_MISSING]
    else:
        reason = tr("neither the segment nor the queue proves which vector belongs to an entry; nothing was changed")
        made.left += [Unresolved.registered(name, reason, base=of.id) for name in names]
        return
    made.resolves |= {(name, of.id) for name in names}


def _remove_segment(state: CollectionState, folder: Path, finding: str) -> Iterator[FileChange]:
    """Plan to remove a segment none of whose vectors is proven to be of its entry, and to keep a copy of it.

    ``finding`` is the finding that this resolves.
    """
    message = tr(
        "remove the vector segment of {name}, because nothing proves any of its vectors; searches do not find its "
        "entries until regraft backfill embeds them",
        name=state.of.name,
    )
    action = Action(
        action="remove-segment", message=message, base=state.of.id, subject=state.of.vectors, finding=finding
    )
    yield from keep_segment(state, folder)
    yield FileChange(path=str(state.of.vectors), actions=(action,), make=None)


def _find_special_file(folder: Path | None) -> str | None:
    """Return the name of the first link or special file: a segment's folder or something in it; else None."""
    if folder is None or not os.path.lexists(file_paths.extended_path(folder)):
        return None
    paths = sorted(folder.iterdir()) if file_paths.is_folder(folder) and not file_paths.is_link(folder) else [folder]
    for path in paths:
        if file_paths.is_link(path) or not (file_paths.is_file(path) or file_paths.is_folder(path)):
            return path.name
    return None


def _describe_rebuild(of: ChromaCollection, names: list[str], count: int, lost: int) -> Action:
    """Make the action that rebuilds the segment of a collection.

    Args:
        of: the collection.
        names: the findings that the rebuild resolves.
        count: the number of vectors in the new segment.
        lost: the number of entries whose vector is left out.
    """
    message = tr(
        "rebuild the vector segment of {name} from its {vectors}", name=of.name, vectors=format_count(count, "vector")
    )
    if lost:
        message = tr(
            "{what}; {entries} without a proven vector are left out, and searches do not find them until "
            "regraft backfill embeds them",
            what=message,
            entries=format_count(lost, "entry"),
        )
    finding = names[0] if names else chroma.VECTOR_MISSING
    return Action(
        action="rebuild-segment", message=message, base=of.id, subject=of.vectors, count=count, finding=finding
    )


def _is_damaged(state: CollectionState, names: Collection[str]) -> bool:
    """Whether findings (``names``) say that Chroma cannot open the segment's files, or gets wrong vectors from them."""
    folder = state.folder
    is_there = folder is not None and file_paths.is_folder(folder) and not file_paths.is_link(folder)
    return is_there and not set(_OF_FILES).isdisjoint(names)


def _report_lost_vectors(
    db: apsw.Connection, state: CollectionState, kept: _Kept, *, keeps_unproven: bool
) -> Iterator[Unresolved]:
    """Yield a finding for every entry whose vector the new segment does not have, with the beginning of its text.

    Args:
        db: Chroma's database.
        state: the collection.
        kept: files of the segment that earlier repairs kept, whose vectors are used.
        keeps_unproven: whether vectors are kept that nothing proves to be of their entry.
    """
    names = [] if state.folder is None else list_kept_names(state.folder)
    missing = tr("no file in the folder has its vector; regraft backfill embeds its text")
    if names and not keeps_unproven:
        missing = tr(
            "no file shows for certain which vector belongs to it; either accept the uncertain one in {name}, if there "
            "is one (--unproven), or compute a new one from its text (regraft backfill)",
            name=names[-1],
        )
    ids = (key for key in state.missing_ids() if _find_kept(state, kept, key) is None)
    yield from _name_entries(db, state, ids, chroma.VECTOR_MISSING, missing)
    if keeps_unproven:
        return
    unproven = tr(
        "nothing proves that its vector is of this text; --unproven keeps it, and regraft backfill embeds its text"
    )
    lengthless = tr(
        "the length of its vector is lost; --unproven keeps it with length 1, and regraft backfill embeds its text"
    )
    for lacks_length, reason in ((False, unproven), (True, lengthless)):
        ids = (key for key in state.ids_of(Origin.UNPROVEN) if state.lacks_length(key) == lacks_length)
        yield from _name_entries(db, state, ids, chroma.VECTOR_MISSING, reason)


def _name_entries(
    db: apsw.Connection, state: CollectionState, ids: Iterator[str], finding: str, reason: str
) -> Iterator[Unresolved]:
    """Yield a finding for each entry (``ids``), with the beginning of its text and the reason.

    Beyond the first thousand, one finding counts the rest.
    """
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


# --- kept files ------------------------------------------------------------------------------------------------------


@contextmanager
def _open_kept(db: apsw.Connection, state: CollectionState) -> Iterator[_Kept]:
    """Context with the files of the segment that earlier repairs kept, if their vectors can still be used."""
    found: _Kept = []
    with ExitStack() as opened:
        for name in reversed([] if state.folder is None else list_kept_names(state.folder)):
            folder = state.root / name
            kept = _read_note(folder)
            if kept is not None:
                old = opened.enter_context(open_collection(db, state.of, state.root, (folder, kept)))
                if old.dimension == state.dimension and not _contradicts(old, state):
                    found.append((kept, old))
        yield found


def _read_note(folder: Path) -> KeptPositions | None:
    """Read the note that a repair left in a folder of kept files: the queue positions at that time. None if missing."""
    path = folder / KEPT_FILE
    if file_paths.is_link(folder) or file_paths.is_link(path) or not file_paths.is_file(path):
        return None
    with links.open_for_reading(path) as file:
        raw = file.read(_MAX_NOTE + 1)
    try:
        kept = msgspec.json.decode(raw, type=KeptPositions)
    except msgspec.MsgspecError:
        return None
    return kept if 0 <= kept.applied <= kept.last < 1 << 63 else None


def _contradicts(old: CollectionState, state: CollectionState) -> bool:
    """Whether kept files (``old``) have other vectors for some ids than the present segment (``state``).

    Ids of kept files without a label map are only guessed from the order of insertion, and are compared by cosine.
    """
    if old.labels is not None:
        return False
    for key in islice(state.vector_ids(), _MAX_COMPARED):
        guessed, known = old.place_of(key), state.place_of(key)
        if guessed is not None and guessed[0] is Origin.UNPROVEN and known is not None and known[0] is Origin.SEGMENT:
            raw = old.stored_vector(guessed[1]), state.stored_vector(known[1])
            one, other = (np.frombuffer(vector, dtype="<f4").astype(np.float64) for vector in raw)
            with np.errstate(all="ignore"):
                if not one @ other >= _LEAST_COSINE * np.linalg.norm(one) * np.linalg.norm(other):
                    return True
    return False


def _find_kept(state: CollectionState, kept: _Kept, key: str) -> NewVector | None:
    """Return the vector that kept files (``kept``) have for an entry without one in the segment; else None.

    ``key`` is the id of the entry, ``state`` its collection.
    """
    for when, old in kept:
        found = old.place_of(key)
        if found is not None and found[0] is Origin.UNPROVEN and not old.is_changed_since(when, key):
            vector = old.vector_at(*found)
            if len(vector) == 4 * (state.dimension or 0):
                return key, vector, *stored_bytes(old, found[1])
    return None


def _read_kept_vectors(db: apsw.Connection, state: CollectionState) -> Iterator[NewVector]:
    """Yield vectors for the entries without one, from files of the segment that earlier repairs kept."""
    with _open_kept(db, state) as kept:
        for key in state.missing_ids():
            found = _find_kept(state, kept, key)
            if found is not None:
                yield found


# --- the database ----------------------------------------------------------------------------------------------------


def _plan_database(made: Plan, store: Store, wanted: dict[str, list[Finding]], ignored: Sequence[int]) -> None:
    """Add to the plan ``made`` one rewrite of the database that repairs the ``wanted`` findings, given by name.

    ``ignored`` are the numbers of operations in the queue that must have no effect any more.
    """
    actions = []
    dimensions = _measure_misstated_dimensions(store, {one.base for one in wanted.get(chroma.DIMENSION_WRONG, ())})
    for of, dimension in dimensions.items():
        message = tr(
            "correct the dimensions of {name} in its row from {stated} to {found}",
            name=of.name,
            stated=of.dimension,
            found=dimension,
        )
        actions.append(Action(action="set-dimension", message=message, base=of.id, finding=chroma.DIMENSION_WRONG))
    if ignored:
        message = tr(
            "make {operations} in the queue empty: they had no effect, because the segment already had their ids; "
            "after the rebuild, they would replace its vectors",
            operations=format_count(len(ignored), "operation"),
        )
        actions.append(Action(action="empty-operations", message=message, subject=database.FILE, count=len(ignored)))
    texts = None
    if chroma.FULL_TEXT in wanted:
        texts = full_text.plan_rebuild(store.root / database.FILE, database.FILE, chroma.FULL_TEXT)
        if isinstance(texts, Action):
            actions.append(texts)
        else:
            made.left.append(texts)
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
        make = partial(
            _rewrite,
            path,
            texts=isinstance(texts, Action),
            numbers=chroma.SEQ_ID_MIXED in wanted,
            ignored=ignored,
            dimensions=[(dimension, of.id) for of, dimension in dimensions.items()],
        )
        size = 2 * path.stat().st_size
        made.changes.insert(0, FileChange(path=database.FILE, actions=tuple(actions), make=make, bytes=size))
    left = chroma.FULL_TEXT if isinstance(texts, Unresolved) else None
    made.resolves |= {(name, one.base) for name, findings in wanted.items() if name != left for one in findings}


def _measure_misstated_dimensions(
    store: Store, misstated: Collection[str | None]
) -> dict[ChromaCollection, int | None]:
    """Measure the length of the vectors of each collection in ``misstated`` (ids), whose row states another one."""
    if not misstated:
        return {}
    with database.open_chroma(store.root / database.FILE) as db:
        found = [one for one in database.list_collections(db) if one.id in misstated]
        return {one: measure_dimension(db, one, store.root) for one in found}


def _rewrite(
    path: Path,
    new: Path,
    *,
    texts: bool,
    numbers: bool,
    ignored: Sequence[int],
    dimensions: Sequence[tuple[int | None, str]],
) -> None:
    """Copy the database at ``path`` to ``new``, and repair the copy.

    Args:
        path: the database.
        new: the copy.
        texts: whether to rebuild the full-text index.
        numbers: whether to store all sequence numbers in the same type.
        ignored: numbers of operations in the queue that are emptied.
        dimensions: pairs of a vector length and the id of the collection that gets it.

    Raises:
        FullTextNotRebuilt: FTS5 cannot rebuild the index.
    """
    if texts:
        full_text.rebuild_in_copy(path, new)
    else:
        copy_database(path, new)
    if ignored or dimensions:
        with sqlite.open_writable(new) as db, sqlite.transaction(db):
            db.executemany("UPDATE collections SET dimension = ? WHERE CAST(id AS TEXT) = ?", dimensions)
            # An update of nothing. Without the row, a later operation could get its number, and Chroma would skip it.
            db.executemany(
                "UPDATE embeddings_queue SET operation = ?, vector = NULL, encoding = NULL, metadata = NULL "
                "WHERE seq_id = ?",
                ((database.UPDATE, number) for number in ignored),
            )
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
    """SQL function: decode an operation number that is stored as 8 bytes, big-endian; other values are unchanged."""
    (value,) = values
    return int.from_bytes(value, "big") if isinstance(value, bytes) and len(value) == 8 else value


def _to_bytes(*values: Any) -> Any:
    """SQL function: encode an operation number as 8 bytes, as versions before 1.0 do; other values are unchanged."""
    (value,) = values
    return value.to_bytes(8, "big") if isinstance(value, int) and value >= 0 else value


# --- unused folders --------------------------------------------------------------------------------------------------


def plan_gc(store: Store, options: GcOptions) -> Plan:
    """Plan to move folders of segments that no row refers to to the trash, if the user names their finding."""
    made = Plan()
    if chroma.SEGMENT_ORPHAN in options.only:
        with database.open_chroma(store.root / database.FILE) as db:
            folders = audit.orphan_folders(db, store.root)
            known = "SELECT CAST(id AS TEXT) FROM collections WHERE id IS NOT NULL"
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
