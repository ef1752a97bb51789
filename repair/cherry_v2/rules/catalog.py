"""Plan the repair of catalog rows: bases, items, and foreign triggers and views (``docs/findings.md``, "v2 data").

Correct values are derived from other rows, from the base's index, and from its files (``docs/formats/catalog.md``,
"What follows from what"). A profile's database has dozens of other tables and columns, so only named columns are
updated.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import apsw
import msgspec

from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import schema
from checks.cherry_v2.catalog_rows import (
    ACTIVE,
    find_folder_problem,
    find_status_problem,
    get_indexed_path,
    has_newer_type,
)
from checks.cherry_v2.raw_files import find_stored_path_problem
from regraft.disk import durable, file_paths, links, sqlite, untrusted_sqlite
from regraft.disk.file_paths import RESERVED_NAME, FreeNames, fold_name, sanitize_material_name
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v2.catalog_reader import (
    DATA_FIELDS,
    CatalogProblem,
    Row,
    base_id_text,
    find_data_problem,
    parse_item_data,
    read_catalog,
)
from regraft.language import format_count, insert_at_mark, join_list, tr
from regraft.text import decode_utf8, is_blank
from repair.changes import schema_objects
from repair.changes.plan import Action, FileChange, FindingsByBase, ResolvedFindings, RowsChange, Unresolved
from repair.changes.schema_objects import plan_drops, split_repairable
from repair.changes.store import Store
from repair.cherry_v2 import evidence as rules_evidence
from repair.cherry_v2.catalog_changes import INTERRUPTED
from repair.cherry_v2.evidence import Evidence, open_evidence
from repair.cherry_v2.item_paths import is_safe_path

# --- items: status and folder ---------------------------------------------------------------------------------------
#
# An item that was being processed becomes ``failed`` with ``indexing_interrupted``, as in the application after a
# crash.


#: Error of a failed item that has no error.
NO_REASON = "No reason was recorded for this failure."
#: Statuses that are kept, each with the error that belongs to it.
_FINAL: dict[Any, tuple[str, str | None]] = {"deleting": ("deleting", None), "failed": ("failed", NO_REASON)}
#: Statuses of a folder that follow from its children.
_FOLLOWING = ("processing", "completed")

#: Whether an item is indexed; None if unknown.
IsIndexed = Callable[[str], bool | None]


class ItemRepairs(msgspec.Struct):
    """The items of one base while they are repaired: their rows are changed in place."""

    rows: list[Row]
    #: By index in ``rows``: the finding for which the status changes.
    statuses: dict[int, str] = msgspec.field(default_factory=dict)
    #: By index in ``rows``: what is wrong with the folder of the item.
    moves: dict[int, str] = msgspec.field(default_factory=dict)
    #: Items that cannot be repaired: finding, reason, and id.
    left: list[tuple[str, str, str]] = msgspec.field(default_factory=list)

    def leave(self, finding: str, reason: str, row: Row) -> None:
        """Record that a finding about the item of a row cannot be repaired, and why."""
        self.left.append((finding, reason, str(row.get("id"))))


def repair_statuses(items: ItemRepairs, is_running: bool, is_indexed: IsIndexed) -> None:
    """Give each item with an invalid status one that fits its error and type.

    ``is_running``: the application is running. ``is_indexed`` tells by id whether an item is indexed.
    """
    children = _children_by_folder(items.rows)
    for number, row in enumerate(items.rows):
        if find_status_problem(row, is_running) is None:
            continue
        inside = [child.get("status") for child in children.get(row.get("id"), ())]
        found = _derive_status(row, any(status != "deleting" for status in inside), is_indexed)
        if found is None:
            reason = (
                tr("its type is {get}", get=row.get("type"))
                if row.get("type") not in DATA_FIELDS
                else tr("its index cannot be read")
            )
            items.leave(v2.ITEM_STATUS, tr("{reason}, so its status is unknown", reason=reason), row)
            continue
        row["status"], row["error"] = found
        items.statuses[number] = v2.ITEM_STATUS


def _derive_status(row: Row, has_children: bool, is_indexed: IsIndexed) -> tuple[str, str | None] | None:
    """Return the status and error that an item should have; None if they cannot be derived.

    ``has_children``: a folder contains items. ``is_indexed`` tells by id whether an item is indexed.
    """
    status, kind = row.get("status"), row.get("type")
    error = None if is_blank(row.get("error")) else str(row.get("error"))
    if kind not in DATA_FIELDS:
        return None
    if status in _FINAL:
        return _FINAL[status]
    if error is None and (status in ("idle", "completed") or (status, kind) == ("processing", "directory")):
        return str(status), None
    is_done = _is_done(row, has_children, is_indexed)
    if is_done:
        # The status of a folder is derived from its children later.
        return "completed", None
    return None if is_done is None else ("failed", error or INTERRUPTED)


def _is_done(row: Row, has_children: bool, is_indexed: IsIndexed) -> bool | None:
    """Whether the application completed the item; None if unknown.

    The parameters are those of :func:`_derive_status`.
    """
    status = row.get("status")
    if row.get("type") == "directory":
        return has_children and status != "preparing"
    return False if status in ACTIVE else is_indexed(str(row.get("id")))


def repair_folders(items: ItemRepairs) -> None:
    """Move items whose folder is missing, or no folder, to the top level. Break cycles of folders at the oldest one."""
    by_id = {row.get("id"): row for row in items.rows}
    inside_itself: list[Row] = []
    for number, row in enumerate(items.rows):
        problem = None if row.get("group_id") is None else find_folder_problem(row, by_id)
        if problem is None:
            continue
        above = by_id.get(row.get("group_id"))
        if above is not None and above.get("type") not in DATA_FIELDS:
            items.leave(v2.ITEM_CONTAINER, tr("the item that it is in is of type {get}", get=above.get("type")), row)
        elif above is not None and above.get("type") == "directory":
            inside_itself.append(row)
        else:
            row["group_id"] = None
            items.moves[number] = problem
    _break_cycles(items, inside_itself, by_id)


def _break_cycles(items: ItemRepairs, inside_itself: list[Row], by_id: dict[Any, Row]) -> None:
    """Move the oldest folder of each cycle to the top level.

    ``inside_itself`` are the rows of items in such cycles, ``by_id`` all rows by id.
    """
    places = {row.get("id"): number for number, row in enumerate(items.rows)}
    for row in inside_itself:
        circle = _find_cycle(row, by_id)
        if any(one.get("type") not in DATA_FIELDS for one in circle):
            items.leave(v2.ITEM_CONTAINER, tr("a folder that contains it is of an unknown type"), row)
        elif circle:
            # Item ids begin with their creation time, and a folder is created before its children.
            oldest = min(circle, key=lambda one: str(one.get("id")))
            oldest["group_id"] = None
            items.moves[places[oldest.get("id")]] = tr("inside itself")


def _find_cycle(row: Row, by_id: dict[Any, Row]) -> list[Row]:
    """Return the rows of the cycle that the folders above an item form; empty without a cycle.

    ``by_id``: rows by id.
    """
    way: list[Row] = []
    seen: dict[Any, int] = {}
    above: Row | None = row
    while above is not None:
        key = above.get("id")
        if key in seen:
            return way[seen[key] :]
        seen[key] = len(way)
        way.append(above)
        above = by_id.get(above.get("group_id")) if above.get("group_id") is not None else None
    return []


def update_folder_statuses(items: ItemRepairs, changed: Iterable[int] | None) -> None:
    """Give folders the status that follows from their items.

    Args:
        items: the items.
        changed: indexes of rows that have changed: their folders are updated, and they themselves if they are folders.
            None: every folder is updated.
    """
    children = _children_by_folder(items.rows)
    places = {row.get("id"): number for number, row in enumerate(items.rows)}
    waiting = list(range(len(items.rows)) if changed is None else _with_folders(items.rows, changed, places))
    while waiting:
        number = waiting.pop()
        row = items.rows[number]
        if row.get("type") != "directory" or row.get("status") not in _FOLLOWING:
            continue
        own = children.get(row.get("id"), ())
        if any(map(has_newer_type, own)):
            continue  # How a newer application counts such a child is unknown.
        inside = {child.get("status") for child in own}
        wanted = "processing" if ACTIVE.intersection(inside) else "completed"
        if row.get("status") != wanted:
            row["status"] = wanted
            items.statuses.setdefault(number, v2.ITEM_CONTAINER)
            waiting += _with_folders(items.rows, [number], places)


def _with_folders(rows: list[Row], numbers: Iterable[int], places: dict[Any, int]) -> Iterator[int]:
    """Yield row indexes, each followed by that of the item's folder; ``places`` maps item ids to row indexes."""
    for number in numbers:
        yield number
        folder = places.get(rows[number].get("group_id"))
        if folder is not None:
            yield folder


def _children_by_folder(rows: list[Row]) -> dict[Any, list[Row]]:
    """Group item rows by the id of their folder; those without a folder are left out."""
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row.get("group_id") is not None:
            found[row["group_id"]].append(row)
    return found


#: Findings that are repaired.
NAMES = (v2.ITEM_STATUS, v2.ITEM_DATA, v2.ITEM_CONTAINER, v2.BASE_STATUS, v2.BASE_DIMENSIONS)
_TABLES = ("knowledge_base", "knowledge_item")
_ITEM = ("id", "group_id", "type", "status", "error")


def plan_catalog(
    store: Store, findings: FindingsByBase, only: frozenset[str], *, model: str | None = None
) -> tuple[list[RowsChange], list[Unresolved], ResolvedFindings]:
    """Plan the repair of the catalog.

    Args:
        store: the store; nothing is written.
        findings: what the audit found, by base.
        only: names of findings; empty: all.
        model: the model that the user named for bases that have vectors and no model.

    Returns:
        At most one change, reports about what cannot be repaired, and the findings that the change resolves.
    """
    wanted = _findings_to_repair(findings, (only or frozenset(NAMES)).intersection(NAMES))
    if store.catalog is None or not wanted:
        return [], [], set()
    made = _CatalogRepair(
        store, findings, store.root / store.catalog, drops_lengths=v2.VECTOR_LENGTH in only, model=model
    )
    try:
        made.derive_values(wanted)
    except (CatalogProblem, apsw.Error, OSError, UnicodeDecodeError) as problem:
        reason = problem.reason if isinstance(problem, CatalogProblem) else problem
        message = tr("the catalog cannot be read as a whole: {problem}", problem=reason)
        stays = ((name, base) for base, names in wanted.items() for name in sorted(names))
        return [], [Unresolved.registered(name, message, base=base) for name, base in stays], set()
    return made.changes(store.catalog), made.left(), made.resolves(wanted)


def _findings_to_repair(findings: FindingsByBase, names: frozenset[str]) -> dict[str, set[str]]:
    """Return, by base id, which of the findings with these ``names`` the audit found."""
    wanted = {
        base: {finding.name for finding in found if finding.name in names}
        for base, found in findings.items()
        if base is not None
    }
    return {base: of_base for base, of_base in wanted.items() if of_base}


class _RowEdit(msgspec.Struct, frozen=True, kw_only=True):
    """New values for some columns of a row of a table, with the present ones, which are compared when it is written."""

    table: str
    rowid: int
    old: dict[str, Any]
    new: dict[str, Any]


class _DataEdits(msgspec.Struct):
    """Items of a base whose ``data`` is derived again when it is written, so that a plan holds no texts."""

    base: str
    #: By row number: the hash of the derived data.
    digests: dict[int, bytes] = msgspec.field(default_factory=dict)


class _CatalogRepair:
    """Repairs the catalog at ``path``: call :meth:`derive_values`, then read the results."""

    def __init__(
        self, store: Store, findings: FindingsByBase, path: Path, *, drops_lengths: bool, model: str | None
    ) -> None:
        """Prepare the repair of the catalog at ``path``.

        Args:
            store: the store.
            findings: what the audit found, by base.
            path: the catalog.
            drops_lengths: whether the same run deletes vectors of an unexpected length.
            model: the model that the user named for bases that have vectors and no model.
        """
        self._store = store
        self._model = model
        #: Whether the same run deletes vectors of an unexpected length.
        self._drops_lengths = drops_lengths
        self._findings = findings
        self._path = path
        self._edits: list[_RowEdit] = []
        self._data: list[_DataEdits] = []
        self._actions: Counter[tuple[str, str, str, str, str]] = Counter()
        self._left: dict[tuple[str, str, str], list[str]] = {}
        self._bytes = 0

    # --- result ------------------------------------------------------------------------------------------------------

    def changes(self, path: str) -> list[RowsChange]:
        """Return the change of the catalog in a list; empty if nothing changes.

        ``path``: the catalog, relative to the root.
        """
        actions = tuple(
            Action(
                action=action,
                message=insert_at_mark(message, "{n}", format_count(count, noun)),
                base=base,
                count=count,
                finding=finding,
            )
            for (action, message, noun, base, finding), count in self._actions.items()
        )
        tables = tuple(dict.fromkeys(edit.table for edit in self._edits)) or _TABLES[1:]
        tables = _TABLES if self._data and tables == _TABLES[:1] else tables
        if not actions:
            return []
        return [RowsChange(path=path, actions=actions, apply=self._apply, tables=tuple(tables), bytes=self._bytes)]

    def left(self) -> list[Unresolved]:
        """Return the reports about findings that cannot be repaired."""
        return [
            Unresolved.registered(
                name, reason, base=base, subject=subjects[0] if len(subjects) == 1 else None, count=len(subjects)
            )
            for (name, reason, base), subjects in self._left.items()
        ]

    def resolves(self, wanted: Mapping[str, set[str]]) -> ResolvedFindings:
        """Return the ``wanted`` findings, by base, that the change resolves."""
        stays = {(name, base) for name, _, base in self._left}
        return {(name, base) for base, names in wanted.items() for name in names if (name, base) not in stays}

    # --- planning ----------------------------------------------------------------------------------------------------

    def derive_values(self, wanted: Mapping[str, set[str]]) -> None:
        """Derive new values for the rows of bases that have ``wanted`` findings, by base id."""
        catalog = read_catalog(self._path, data=False)
        is_running = profile.detect_running_app(self._store.root) is not None
        models = None if catalog.models is None else {row.get("id") for row in catalog.models}
        with sqlite.open_readonly(self._path) as db:
            for row in catalog.bases:
                base = base_id_text(row)
                names = wanted.get(base, set())
                if not names:
                    continue
                with self._evidence(base) as evidence:
                    self._repair_base(db, row, models, names, evidence)
                    if names.intersection((v2.ITEM_STATUS, v2.ITEM_CONTAINER)):
                        self._repair_items(db, row, names, is_running, evidence)
                    if v2.ITEM_DATA in names:
                        self._repair_data(db, row, evidence)

    def _evidence(self, base: str) -> AbstractContextManager[Evidence]:
        """Open the index and raw files of a base, which prove the right values."""
        return open_evidence(self._store, base, self._findings.get(base, ()), drops_lengths=self._drops_lengths)

    def _leave(self, name: str, reason: str, base: str, subject: object) -> None:
        """Record that a finding (``name``) about the item or base ``subject`` cannot be repaired, and why.

        Findings with the same reason are reported together.
        """
        self._left.setdefault((name, reason, base), []).append(str(subject))

    def _repair_base(
        self, db: apsw.Connection, row: Row, models: set[Any] | None, names: set[str], evidence: Evidence
    ) -> None:
        """Correct status, model and dimensions in the row of a base.

        Args:
            db: the open catalog.
            row: the base's row, changed in place.
            models: ids of the existing models; None: unknown.
            names: the findings to repair.
            evidence: the base's index and files.
        """
        base = base_id_text(row)
        resolves: dict[str, Callable[[], rules_evidence.Columns | str]] = {
            v2.BASE_STATUS: lambda: rules_evidence.repair_base(row, models, evidence, self._model),
            v2.BASE_DIMENSIONS: lambda: rules_evidence.repair_dimensions(evidence),
        }
        for name, mend in resolves.items():
            found = mend() if name in names else {}
            if isinstance(found, str):
                self._leave(name, found, base, base)
            elif found:
                rowid = db.execute("SELECT rowid FROM knowledge_base WHERE id IS ?", (row.get("id"),)).get
                self._edits.append(
                    _RowEdit(table="knowledge_base", rowid=rowid, old={key: row[key] for key in found}, new=found)
                )
                row.update(found)
                values = join_list(f"{key} {'NULL' if value is None else value}" for key, value in found.items())
                self._actions["update-bases", tr("set {values}", values=values), "base", base, name] += 1

    def _repair_items(
        self, db: apsw.Connection, base_row: Row, names: set[str], is_running: bool, evidence: Evidence
    ) -> None:
        """Correct the statuses and folders of the items of a base.

        Args:
            db: the open catalog.
            base_row: the base's row.
            names: the findings to repair.
            is_running: whether the application is running.
            evidence: the base's index and files.
        """
        base = base_id_text(base_row)
        rowids, items = self._items(db, base_row.get("id"))
        before = list(map(dict, items.rows))
        if v2.ITEM_STATUS in names:
            repair_statuses(items, is_running, evidence.has_material)
        if v2.ITEM_CONTAINER in names:
            repair_folders(items)
        update_folder_statuses(items, None if v2.ITEM_CONTAINER in names else list(items.statuses))
        for finding, reason, subject in items.left:
            self._leave(finding, reason, base, subject)
        for number in sorted({*items.statuses, *items.moves}):
            row, old = items.rows[number], before[number]
            new = {name: value for name, value in row.items() if value != old[name]}
            if not new:
                continue  # it came out as it was
            self._edits.append(
                _RowEdit(table="knowledge_item", rowid=rowids[number], old={name: old[name] for name in new}, new=new)
            )
            self._count_item(base, row, items.statuses.get(number), items.moves.get(number))

    def _count_item(self, base: str, row: Row, finding: str | None, problem: str | None) -> None:
        """Count a changed item for the report: for ``finding``, its new status; for a folder ``problem``, its move."""
        noun = "folder" if row["type"] == "directory" else "item"
        if finding is not None:
            error = f" ({row['error']})" if row["error"] in (INTERRUPTED, NO_REASON) else ""
            self._actions[
                "update-items",
                tr("set {{n}} to {status}{error}", status=row["status"], error=error),
                noun,
                base,
                finding,
            ] += 1
        if problem is not None:
            message = tr("move {{n}} to the top: {problem}", problem=problem)
            self._actions["move-items", message, noun, base, v2.ITEM_CONTAINER] += 1

    def _items(self, db: apsw.Connection, base: Any) -> tuple[list[int], ItemRepairs]:
        """Read the items of a base from the open catalog; also return their row numbers."""
        rowids: list[int] = []
        rows: list[Row] = []
        for rowid, *values in untrusted_sqlite.read_lenient_rows(db, ("rowid", *_ITEM), _OF_BASE, (base,)):
            rowids.append(rowid)
            rows.append(dict(zip(_ITEM, values, strict=True)))
        return rowids, ItemRepairs(rows)

    def _repair_data(self, db: apsw.Connection, base_row: Row, evidence: Evidence) -> None:
        """Derive the ``data`` of items that the application cannot read, from the base's index and files."""
        base = base_id_text(base_row)
        made = _DataEdits(base)
        for rowid, item in _with_data(db, _OF_BASE, base_row.get("id")):
            problem = find_data_problem(item)
            if problem is None:
                continue
            text = rules_evidence.repair_item_data(item, evidence)
            if text is None:
                self._leave(
                    v2.ITEM_DATA,
                    tr("{problem}, and no other data shows the right value", problem=problem),
                    base,
                    item["id"],
                )
                continue
            made.digests[rowid] = _digest(text)
            self._bytes += len(text) + len(str(item["data"]))
            self._actions["update-items", tr("rewrite the data of {n}"), str(item["type"]), base, v2.ITEM_DATA] += 1
        if made.digests:
            self._data.append(made)

    # --- writing -----------------------------------------------------------------------------------------------------

    def _apply(self, db: apsw.Connection) -> None:
        """Write the planned values to the open catalog; raises PlanOutdated if a row has changed since the plan."""
        for edit in self._edits:
            where = untrusted_sqlite.unchanged_condition(db, edit.old)
            columns = ", ".join(f'"{name}" = ?' for name in edit.new)
            values = (*edit.new.values(), edit.rowid, *edit.old.values())
            db.execute(f"UPDATE {edit.table} SET {columns} WHERE rowid = ? AND {where}", values)
            self._demand(db.changes() == 1)
        for data in self._data:
            with self._evidence(data.base) as evidence:
                for rowid, digest in data.digests.items():
                    found = next(_with_data(db, "knowledge_item WHERE rowid = ?", rowid), None)
                    text = None if found is None else rules_evidence.repair_item_data(found[1], evidence)
                    self._demand(text is not None and _digest(text) == digest)
                    db.execute("UPDATE knowledge_item SET data = ? WHERE rowid = ?", (text, rowid))

    def _demand(self, condition: bool) -> None:
        """Raise PlanOutdated unless the condition holds."""
        if not condition:
            raise PlanOutdated(path=self._path, reason=tr("its rows changed since the plan"))


#: The items of a base by row number, without an index, which could be damaged.
_OF_BASE = "knowledge_item NOT INDEXED WHERE base_id IS ? ORDER BY rowid"


def _with_data(db: apsw.Connection, where: str, value: Any) -> Iterator[tuple[int, Row]]:
    """Yield items with their row numbers; ``where`` is SQL that selects them, with one placeholder for ``value``."""
    for rowid, *values in untrusted_sqlite.read_lenient_rows(db, ("rowid", "id", "type", "data"), where, (value,)):
        yield rowid, dict(zip(("id", "type", "data"), values, strict=True))


def _digest(text: str) -> bytes:
    """Return the SHA-256 digest of a text, which may have unpaired surrogates."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


# --- foreign triggers and views -------------------------------------------------------------------------------------


def plan_definitions(
    store: Store, findings: FindingsByBase, only: frozenset[str]
) -> tuple[list[RowsChange], list[Unresolved], ResolvedFindings]:
    """Plan to drop foreign triggers and views from the catalog.

    Args:
        store: the store; nothing is written.
        findings: what the audit found, by base; findings about the catalog's schema are under None.
        only: names of the findings to repair.

    Returns:
        At most one change, reports about what stays, and the findings that the change resolves.
    """
    found = [one for one in findings.get(None, ()) if one.name in schema_objects.NAMES and one.name in only]
    wanted, left = split_repairable(found)
    if store.catalog is None or not wanted:
        return [], left, set()
    made = plan_drops(store.root, store.catalog, wanted, None, schema.find_foreign_in_catalog)
    return [] if made is None else [made], left, {(name, None) for name in wanted}


# --- paths that lead out of a base's ``raw/`` ------------------------------------------------------------------------
#
# They are repaired in the index, in the catalog, and on disk. A material gets the path of its item if that is safe,
# else a safe form of its own. The order of changes is: new files, the catalog, old files, the index. If a run is
# killed, the next one finds the item's path and finishes. If no item has the path, the old file is removed last.
# Rules: ``docs/formats/index.md``, "What always holds".


_SEPARATORS = re.compile(r"[/\\]+")


class ItemPath(msgspec.Struct, frozen=True, kw_only=True):
    """A new path for an item; ``key`` is the field of the item's data that holds it."""

    item: str
    key: str
    old: str
    new: str


class PathRepairs(msgspec.Struct):
    """New paths for the materials of one base with unsafe paths, for their items, and changes of their files."""

    #: Row numbers of materials, with their new paths.
    materials: list[tuple[int, str]] = msgspec.field(default_factory=list)
    items: list[ItemPath] = msgspec.field(default_factory=list)
    made: list[FileChange] = msgspec.field(default_factory=list)
    removed: list[FileChange] = msgspec.field(default_factory=list)
    removed_last: list[FileChange] = msgspec.field(default_factory=list)
    left: list[Unresolved] = msgspec.field(default_factory=list)


class _Material(msgspec.Struct, frozen=True):
    """A material with an invalid path: its row number and id, and the path as bytes."""

    rowid: int
    id: str
    raw: bytes


def plan_paths(root: Path, base: str, index: str, raw: str, items: Sequence[Row] | None) -> PathRepairs:
    """Choose new paths for the materials of one base whose paths are unsafe, and plan the moves of their files.

    Args:
        root: the store's root.
        base: the base's id.
        index: its index file, relative to the root.
        raw: its folder of raw files, relative to the root.
        items: its item rows; None without a catalog.

    Raises:
        apsw.Error, OSError: the index cannot be read.
    """
    by_id = {str(item.get("id")): item for item in items or ()}
    unsafe, taken = _read_materials(root / index)
    found = PathRepairs()
    files = FileRenames(root, raw, base)
    names = set(filter(None, map(get_indexed_path, by_id.values())))
    for material in unsafe:
        item = by_id.get(material.id, {})
        path = get_indexed_path(item)
        if path is None or not is_safe_path(path):
            new = files.free_name(material.raw, taken | names)
            if path is not None:
                is_processed = bool(parse_item_data(item).get("indexedRelativePath"))
                key = "indexedRelativePath" if is_processed else "relativePath"
                found.items.append(ItemPath(item=material.id, key=key, old=path, new=new))
        elif path in taken:
            reason = tr("another material has the path of its item, {path}", path=path)
            found.left.append(Unresolved.registered(v2.PATH_UNSAFE, reason, base=base, subject=material.id))
            continue
        else:
            new = path
        taken.add(new)
        found.materials.append((material.rowid, new))
        files.move(material.raw, new, found, found.removed_last if path is None else found.removed)
    return found


def _read_materials(index: Path) -> tuple[list[_Material], set[str]]:
    """Read the materials of an index whose path is invalid, and the set of all valid paths in it."""
    unsafe, taken = [], set()
    with sqlite.open_readonly(index) as db:
        for rowid, key, raw in db.execute(
            "SELECT rowid, CAST(material_id AS BLOB), CAST(relative_path AS BLOB) FROM material ORDER BY rowid"
        ):
            if find_stored_path_problem(raw) is None:
                taken.add(decode_utf8(raw or b""))
            else:
                unsafe.append(_Material(rowid, (key or b"").decode("utf-8", "replace"), raw or b""))
    return unsafe, taken


class FileRenames:
    """The raw files of one base: chooses free names for them, and plans moves.

    ``raw`` is the folder of raw files, relative to ``root``, the store's root.
    """

    def __init__(self, root: Path, raw: str, base: str) -> None:
        self._root = root
        self._raw = raw
        self._folder = root / raw
        self._base = base

    def free_name(self, old: bytes, taken: set[str]) -> str:
        """Return a safe path that resembles the unsafe path ``old``, and that is neither ``taken`` nor used on disk."""
        parts = [part for part in _SEPARATORS.split(old.decode("utf-8", "replace")) if part not in ("", ".", "..")]
        *folders, name = map(sanitize_material_name, parts or ["untitled"])
        prefix = self._prefix(folders)
        source = self._inside(old)
        names = FreeNames()
        for beside in {path[len(prefix) :] for path in taken if path.startswith(prefix)}:
            names.take(beside)
        while True:
            path = f"{prefix}{names.take(name)}"
            if _is_free(self._folder / path, source):
                return path

    def _prefix(self, folders: list[str]) -> str:
        """Return the prefix of paths in these nested folders; "" if they cannot be used."""
        folder = "/".join(folders)
        is_usable = folder and fold_name(folders[0]) != RESERVED_NAME and self._is_inside(self._folder / folder)
        return f"{folder}/" if is_usable else ""

    def move(self, old: bytes, new: str, found: PathRepairs, removed: list[FileChange]) -> None:
        """Plan to move the raw file of a material from the path ``old`` to ``new``.

        The new file is added to ``found``, and the removal of the old one to ``removed``.
        """
        source = self._inside(old)
        target = self._folder / new
        if source is None or _is_one_file(source, target) or not _is_free(target, source):
            return
        size = file_paths.stat(source).st_size
        if not file_paths.lexists(target):
            action = Action(
                action="move-files",
                message=tr("move a file to {new}", new=new),
                base=self._base,
                subject=new,
                bytes=size,
                finding=v2.PATH_UNSAFE,
            )
            found.made.append(
                FileChange(path=f"{self._raw}/{new}", actions=(action,), make=partial(_copy, source), bytes=size)
            )
        name = source.relative_to(self._root).as_posix()
        # A name that is not text cannot be recorded for undo, so the old file stays.
        if name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") == name:
            removed.append(FileChange(path=name, actions=(), make=None))

    def _inside(self, old: bytes) -> Path | None:
        """Return the regular file below ``raw/`` that the stored path ``old`` leads to, or None."""
        path = PurePosixPath(os.fsdecode(old))
        if b"\0" in old or path.is_absolute() or ".." in _SEPARATORS.split(str(path)) or not path.parts:
            return None
        place = self._folder / path
        try:
            return (
                place
                if self._is_inside(place) and file_paths.is_file(place) and not file_paths.is_link(place)
                else None
            )
        except OSError:
            return None

    def _is_inside(self, path: Path) -> bool:
        """Whether a path stays below ``raw/`` after its links are resolved."""
        return links.real_path(path).is_relative_to(links.real_path(self._folder))


def _copy(source: Path, new: Path) -> None:
    """Copy a file with its mode and times."""
    durable.copy_file(source, new)
    durable.copy_mode(source, new)
    durable.copy_times(source, new)


def _is_one_file(source: Path, target: Path) -> bool:
    r"""Whether two paths lead to one file: Windows reads ``a\b`` as ``a/b``, and ignores dots at the end of a name."""
    try:
        return source == target or os.path.samestat(file_paths.lstat(source), file_paths.lstat(target))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_free(place: Path, source: Path | None) -> bool:
    """Whether nothing is at the path ``place``, or only a copy of the file ``source`` that an earlier run made."""
    if not file_paths.lexists(place):
        return True
    is_regular = file_paths.is_file(place) and not file_paths.is_link(place)
    return source is not None and is_regular and links.have_same_bytes(source, place)


# --- the catalog -----------------------------------------------------------------------------------------------------


def plan_item_paths(root: Path, catalog: str, paths: dict[str, list[ItemPath]]) -> RowsChange | None:
    """Plan to give items their new ``paths``, by base id, in the catalog; None if no path changes.

    ``root`` is the store's root, ``catalog`` the catalog's path relative to it.
    """
    actions = tuple(
        Action(
            action="rename-items",
            message=tr("give {items} a path below raw/", items=format_count(len(of_base), "item")),
            base=base,
            count=len(of_base),
            finding=v2.PATH_UNSAFE,
        )
        for base, of_base in paths.items()
        if of_base
    )
    if not actions:
        return None

    def apply(db: apsw.Connection) -> None:
        """Write the new paths to the open catalog; raises PlanOutdated if an item has another path now."""
        for base, path in _flatten(paths):
            db.execute(
                f"UPDATE knowledge_item SET data = json_set(data, '$.{path.key}', ?) WHERE id = ? AND base_id = ?"
                f" AND json_extract(data, '$.{path.key}') = ?",
                (path.new, path.item, base, path.old),
            )
            if db.changes() != 1:
                raise PlanOutdated(
                    path=root / catalog, reason=tr("the path of item {item} changed in the meantime", item=path.item)
                )

    size = 2 * sum(len(path.new) for _, path in _flatten(paths)) + 4096
    return RowsChange(path=catalog, actions=actions, apply=apply, tables=("knowledge_item",), bytes=size)


def _flatten(paths: dict[str, list[ItemPath]]) -> Iterator[tuple[str, ItemPath]]:
    """Yield each of the new paths with the id of its base."""
    return ((base, path) for base, of_base in paths.items() for path in of_base)
