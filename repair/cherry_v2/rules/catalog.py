"""Mending rows of the catalog: bases and items, and nothing else of it (``docs/findings.md``, "v2 data").

What a row has to be is derived from other rows, from the base's index and from its files. A profile's database has
dozens of tables and columns that nobody here knows: rows are changed by named columns, one by one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.cherry_v2 import findings as v2
from regraft import sqlite
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, base_key, read_catalog
from regraft.formats.cherry_v2.item_data import data_problem
from regraft.language import joined, put_in, tr
from regraft.text import counted
from repair.changes.found import Findings, Mends
from repair.changes.plan import Action, RowsChange, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.rules import bases
from repair.cherry_v2.rules import data as rules_data
from repair.cherry_v2.rules import items as rules_items
from repair.cherry_v2.rules.evidence import Evidence, evidence_of
from repair.cherry_v2.rules.items import Items

#: Findings that are mended.
NAMES = (v2.ITEM_STATUS, v2.ITEM_DATA, v2.ITEM_CONTAINER, v2.BASE_STATUS, v2.BASE_DIMENSIONS)
_TABLES = ("knowledge_base", "knowledge_item")
_ITEM = ("id", "group_id", "type", "status", "error")


def changes(
    store: Store, findings: Findings, only: frozenset[str], *, model: str | None = None
) -> tuple[list[RowsChange], list[Unresolved], Mends]:
    """Return what resolves the catalog: at most one change, what stays as it is, and what is gone afterwards.

    Args:
        store: the store; nothing is written.
        findings: what the audit found, by base.
        only: names of findings; empty: all.
        model: that of bases with vectors and without a model, as a person says.
    """
    wanted = _wanted(findings, (only or frozenset(NAMES)).intersection(NAMES))
    if store.catalog is None or not wanted:
        return [], [], set()
    made = _Mender(store, findings, store.root / store.catalog, drops_lengths=v2.VECTOR_LENGTH in only, model=model)
    try:
        made.mend(wanted)
    except (CatalogProblem, apsw.Error, OSError, UnicodeDecodeError) as problem:
        message = tr("the catalog cannot be read as a whole: {problem}", problem=problem)
        stays = ((name, base) for base, names in wanted.items() for name in sorted(names))
        return [], [Unresolved.registered(name, message, base=base) for name, base in stays], set()
    return made.changes(store.catalog), made.left(), made.resolves(wanted)


def _wanted(findings: Findings, names: frozenset[str]) -> dict[str, set[str]]:
    """Return which of these findings each base has, where it has any."""
    wanted = {
        base: {finding.name for finding in found if finding.name in names}
        for base, found in findings.items()
        if base is not None
    }
    return {base: of_base for base, of_base in wanted.items() if of_base}


class _Edit(msgspec.Struct, frozen=True, kw_only=True):
    """New values of some columns of a row, with those that are there."""

    table: str
    rowid: int
    old: dict[str, Any]
    new: dict[str, Any]


class _Data(msgspec.Struct):
    """Items of a base whose data are derived when they are written, so that no plan holds the texts of notes."""

    base: str
    #: By the number of the row: the hash of the data as they have to be.
    digests: dict[int, bytes] = msgspec.field(default_factory=dict)


class _Mender:
    def __init__(self, store: Store, findings: Findings, path: Path, *, drops_lengths: bool, model: str | None) -> None:
        self._store = store
        self._model = model
        #: Whether the same run drops vectors of another length than most.
        self._drops_lengths = drops_lengths
        self._findings = findings
        self._path = path
        self._edits: list[_Edit] = []
        self._data: list[_Data] = []
        self._actions: Counter[tuple[str, str, str, str, str]] = Counter()
        self._left: dict[tuple[str, str, str], list[str]] = {}
        self._bytes = 0

    # --- what it came to ---------------------------------------------------------------------------------------------

    def changes(self, path: str) -> list[RowsChange]:
        """Return the one change of the catalog, if there is any."""
        actions = tuple(
            Action(
                action=action,
                message=put_in(message, "{n}", counted(count, noun)),
                base=base,
                subject=None,
                count=count,
                bytes=0,
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
        """Return what stays as it is."""
        return [
            Unresolved.registered(
                name, reason, base=base, subject=subjects[0] if len(subjects) == 1 else None, count=len(subjects)
            )
            for (name, reason, base), subjects in self._left.items()
        ]

    def resolves(self, wanted: Mapping[str, set[str]]) -> Mends:
        """Return what is gone afterwards."""
        stays = {(name, base) for name, _, base in self._left}
        return {(name, base) for base, names in wanted.items() for name in names if (name, base) not in stays}

    # --- planning ----------------------------------------------------------------------------------------------------

    def mend(self, wanted: Mapping[str, set[str]]) -> None:
        """Work out what becomes of the bases with these findings."""
        catalog = read_catalog(self._path, data=False)
        is_running = profile.sign_of_life(self._store.root) is not None
        models = None if catalog.models is None else {row.get("id") for row in catalog.models}
        with sqlite.reading(self._path) as db:
            for row in catalog.bases:
                base = base_key(row)
                names = wanted.get(base, set())
                if not names:
                    continue
                with self._evidence(base) as evidence:
                    self._mend_base(db, row, models, names, evidence)
                    if names.intersection((v2.ITEM_STATUS, v2.ITEM_CONTAINER)):
                        self._mend_items(db, row, names, is_running, evidence)
                    if v2.ITEM_DATA in names:
                        self._mend_data(db, row, evidence)

    def _evidence(self, base: str) -> AbstractContextManager[Evidence]:
        return evidence_of(self._store, base, self._findings.get(base, ()), drops_lengths=self._drops_lengths)

    def _leave(self, name: str, reason: str, base: str, subject: object) -> None:
        self._left.setdefault((name, reason, base), []).append(str(subject))

    def _mend_base(
        self, db: apsw.Connection, row: Row, models: set[Any] | None, names: set[str], evidence: Evidence
    ) -> None:
        base = base_key(row)
        resolves: dict[str, Callable[[], bases.Columns | str]] = {
            v2.BASE_STATUS: lambda: bases.mended(row, models, evidence, self._model),
            v2.BASE_DIMENSIONS: lambda: bases.dimensions(evidence),
        }
        for name, mend in resolves.items():
            found = mend() if name in names else {}
            if isinstance(found, str):
                self._leave(name, found, base, base)
            elif found:
                rowid = db.execute("SELECT rowid FROM knowledge_base WHERE id IS ?", (row.get("id"),)).get
                self._edits.append(
                    _Edit(table="knowledge_base", rowid=rowid, old={key: row[key] for key in found}, new=found)
                )
                row.update(found)
                values = joined(f"{key} {'NULL' if value is None else value}" for key, value in found.items())
                self._actions["update-bases", tr("set {values}", values=values), "base", base, name] += 1

    def _mend_items(
        self, db: apsw.Connection, base_row: Row, names: set[str], is_running: bool, evidence: Evidence
    ) -> None:
        base = base_key(base_row)
        rowids, items = self._items(db, base_row.get("id"))
        before = list(map(dict, items.rows))
        if v2.ITEM_STATUS in names:
            rules_items.mend_statuses(items, is_running, evidence.has_material)
        if v2.ITEM_CONTAINER in names:
            rules_items.mend_folders(items)
        rules_items.follow_children(items, None if v2.ITEM_CONTAINER in names else list(items.statuses))
        for finding, reason, subject in items.left:
            self._leave(finding, reason, base, subject)
        for number in sorted({*items.statuses, *items.moves}):
            row, old = items.rows[number], before[number]
            new = {name: value for name, value in row.items() if value != old[name]}
            if not new:
                continue  # it came out as it was
            self._edits.append(
                _Edit(table="knowledge_item", rowid=rowids[number], old={name: old[name] for name in new}, new=new)
            )
            self._count_item(base, row, items.statuses.get(number), items.moves.get(number))

    def _count_item(self, base: str, row: Row, finding: str | None, problem: str | None) -> None:
        """Count what becomes of an item: another status, for a finding; another folder, for what was wrong with it."""
        noun = "folder" if row["type"] == "directory" else "item"
        if finding is not None:
            error = f" ({row['error']})" if row["error"] in (rules_items.INTERRUPTED, rules_items.NO_REASON) else ""
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

    def _items(self, db: apsw.Connection, base: Any) -> tuple[list[int], Items]:
        rowids: list[int] = []
        rows: list[Row] = []
        for rowid, *values in sqlite.lenient_rows(db, ("rowid", *_ITEM), _OF_BASE, (base,)):
            rowids.append(rowid)
            rows.append(dict(zip(_ITEM, values, strict=True)))
        return rowids, Items(rows)

    def _mend_data(self, db: apsw.Connection, base_row: Row, evidence: Evidence) -> None:
        base = base_key(base_row)
        made = _Data(base)
        for rowid, item in _with_data(db, _OF_BASE, base_row.get("id")):
            problem = data_problem(item)
            if problem is None:
                continue
            text = rules_data.mended(item, evidence)
            if text is None:
                self._leave(
                    v2.ITEM_DATA,
                    tr("{problem}, and nothing else tells what they have to be", problem=problem),
                    base,
                    item["id"],
                )
                continue
            made.digests[rowid] = _digest(text)
            self._bytes += len(text) + len(str(item["data"]))
            self._actions["update-items", tr("write the data of {n} anew"), str(item["type"]), base, v2.ITEM_DATA] += 1
        if made.digests:
            self._data.append(made)

    # --- writing -----------------------------------------------------------------------------------------------------

    def _apply(self, db: apsw.Connection) -> None:
        for edit in self._edits:
            where = sqlite.still(db, edit.old)
            columns = ", ".join(f'"{name}" = ?' for name in edit.new)
            values = (*edit.new.values(), edit.rowid, *edit.old.values())
            db.execute(f"UPDATE {edit.table} SET {columns} WHERE rowid = ? AND {where}", values)
            self._demand(db.changes() == 1)
        for data in self._data:
            with self._evidence(data.base) as evidence:
                self._apply_data(db, data, evidence)

    def _apply_data(self, db: apsw.Connection, data: _Data, evidence: Evidence) -> None:
        for rowid, digest in data.digests.items():
            found = next(_with_data(db, "knowledge_item WHERE rowid = ?", rowid), None)
            text = None if found is None else rules_data.mended(found[1], evidence)
            self._demand(text is not None and _digest(text) == digest)
            db.execute("UPDATE knowledge_item SET data = ? WHERE rowid = ?", (text, rowid))

    def _demand(self, condition: bool) -> None:
        if not condition:
            raise PlanOutdated(path=self._path, reason=tr("its rows are not those that were planned with"))


#: The items of a base in their order; a damaged index on them is of no use.
_OF_BASE = "knowledge_item NOT INDEXED WHERE base_id IS ? ORDER BY rowid"


def _with_data(db: apsw.Connection, where: str, value: Any) -> Iterator[tuple[int, Row]]:
    for rowid, *values in sqlite.lenient_rows(db, ("rowid", "id", "type", "data"), where, (value,)):
        yield rowid, dict(zip(("id", "type", "data"), values, strict=True))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
