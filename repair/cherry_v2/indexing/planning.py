"""Plan which texts are added to the index of their base: texts without units, and items without a text.

Rules: ``docs/indexing.md``. No vector is written: in a base with a model these texts wait for theirs. The missing index
of a completed base is built again from its items.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.audit.collector import Level
from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import path_of
from checks.cherry_v2.index_file import path_problem
from regraft import clock, identity, sqlite
from regraft.errors import WrongUsage
from regraft.formats.cherry_v2 import layout, okf
from regraft.formats.cherry_v2.catalog_reader import Row, base_key
from regraft.formats.cherry_v2.defaults import Settings
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.index import units as index_units
from regraft.formats.cherry_v2.item_data import data_of
from regraft.formats.cherry_v2.settings import read_base_settings
from regraft.language import tr
from regraft.ledger import durable
from regraft.names import FreeNames
from regraft.text import counted, is_blank, whole
from repair.changes.found import by_base
from repair.changes.plan import Action, Change, FileChange, Plan, RowsChange, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.catalogs import catalog_of
from repair.cherry_v2.indexing.cutting import Span, cut, separator_of
from repair.cherry_v2.indexing.former import Former
from repair.cherry_v2.indexing.new_texts import Donated, Donor, NewText, write_index, write_text
from repair.cherry_v2.indexing.texts import BLANK, NoText, text_of
from repair.cherry_v2.rescue.carrying import free_name
from repair.cherry_v2.rescue.catalog import Statements, rehearsed
from repair.cherry_v2.rules.evidence import DAMAGE

#: Findings that are fixed.
NAMES = (v2.BASE_NO_INDEX, v2.NO_UNITS, v2.ITEM_NO_MATERIAL, v2.ITEM_NOT_INDEXED)
#: With these nothing is written into an index: its rows may mean something else, or its full-text index is out of step.
BLOCKING = {*DAMAGE, v2.META_MISSING, v2.FTS_DESYNC, v2.BODY_ROWID}
#: Bytes that the rows of a unit take besides its text.
_ROW_BYTES = 800
#: Bytes of an index without rows.
_EMPTY_BYTES = 128 << 10
_TABLES = ("content", "material", "search_unit", "search_text")


def plan(store: Store, now_ms: int, bases: Collection[str] | None = None) -> Plan:
    """Return which texts are going to be indexed, of the chosen bases, or of those ``bases`` alone; nothing is written.

    Without a catalog nobody knows the items, and texts are cut as the application does it unless it is told otherwise.

    Raises:
        SourceUnreadable: nobody can tell what the catalog says.
        WrongUsage: what reads and cuts texts is not installed.
        ProfileUnknown: the profile is of another time than this regraft.
    """
    made = Plan()
    wanted = _lacking(store.findings(Level.QUICK), bases)
    statements, rows = Statements(store.root / (store.catalog or "")), list[Action]()
    indexes: list[Change] = []
    for row, items in _bases(store) if wanted else ():
        key = base_key(row)
        if key in wanted:
            base = BaseTexts(store=store, row=row, items=items, now_ms=now_ms)
            made.add(base.plan(wanted[key]))
            made.bodies[key] = base.bodies
            indexes += base.index()
            rows += base.update(statements)
    if rows and store.catalog is not None:
        made.changes.append(rehearsed(statements, store.catalog, rows, ("knowledge_item",)))
    # An item that has a path and no text is found by the next run, too.
    made.changes += indexes
    return made


def _lacking(findings: Iterable[Finding], bases: Collection[str] | None) -> dict[str | None, list[Finding]]:
    """Return what matters here of each base that is meant and lacks anything."""
    relevant = (one for one in findings if one.base is not None and one.name in (*NAMES, *BLOCKING))
    found = by_base(one for one in relevant if bases is None or one.base in bases)
    return {base: every for base, every in found.items() if any(one.name in NAMES for one in every)}


def _bases(store: Store) -> Iterator[tuple[Row, list[Row]]]:
    """Yield the completed bases with their items."""
    if store.catalog is None:
        yield from (({"id": base}, []) for base in store.stores)
        return
    catalog = catalog_of(store)
    for row in catalog.bases:
        if row.get("status") == "completed":
            yield row, (catalog.items or {}).get(base_key(row), [])


class BaseTexts(msgspec.Struct, kw_only=True):
    """One base whose index lacks texts, or is missing itself.

    With a ``donor``, its texts go before those of raw files; an existing index takes texts of the donor alone.
    """

    store: Store
    row: Row
    items: list[Row]
    now_ms: int
    donor: Donor | None = None
    #: Whether the index is written as a new file although one is there, which is damaged.
    is_replaced: bool = False
    new: list[NewText] = msgspec.field(default_factory=list)
    left: list[Unresolved] = msgspec.field(default_factory=list)
    #: Snapshots that are going to be written: their paths, with the items.
    snapshots: dict[str, Row] = msgspec.field(default_factory=dict)
    #: Encodings that were guessed, by the files that are read so.
    guessed: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """The id of the base."""
        return base_key(self.row)

    @property
    def is_missing(self) -> bool:
        """Whether the index is built as a new file."""
        return self.is_replaced or self.key not in self.store.stores

    @property
    def _folder(self) -> str:
        return f"{self.store.bases}/{self.key}" if self.store.bases else self.key

    @property
    def index_name(self) -> str:
        """The name of the index file below the root of the store."""
        one = self.store.stores.get(self.key)
        return f"{self._folder}/{layout.INDEX_FILE}" if one is None else one.name

    @property
    def _raw_name(self) -> str:
        one = self.store.stores.get(self.key)
        return f"{self._folder}/{layout.RAW_FOLDER}" if one is None else one.raw

    @property
    def raw(self) -> Path:
        """The folder of the raw files of the base."""
        return self.store.root / self._raw_name

    @property
    def settings(self) -> Settings:
        """How its texts are cut."""
        return read_base_settings(self.row)[0]

    # --- what is found -----------------------------------------------------------------------------------------------

    def plan(self, found: list[Finding]) -> Plan:
        """Find the texts, and return what comes before the index; :meth:`index` is the rest."""
        lacking = [one for one in found if one.name in NAMES]
        blocking = next((finding for finding in found if finding.name in BLOCKING), None)
        if self.is_missing:
            return self._plan_new(lacking)
        if blocking is not None:
            reason = tr("nothing of the index is changed: {message_}", message_=blocking.message)
            return Plan(left=[Unresolved.of(one, reason) for one in lacking])
        self._find(lacking)
        resolved = {one.name for one in lacking}.difference(one.finding for one in self.left)
        snapshots = starmap(self._snapshot, self.snapshots.items())
        return Plan([*snapshots], self.left, {(name, self.key) for name in resolved})

    def _plan_new(self, lacking: list[Finding]) -> Plan:
        """Return what comes before the new index; a base none of whose items has a text here gets none."""
        wanted = [item for item in self.items if _is_leaf(item) and item.get("status") == "completed"]
        self.find_items({})
        if wanted and not self.new:
            first = next((one.reason for one in self.left), tr("its items have no text"))
            reason = tr("no item has a text here; for example, {first}", first=first)
            self.snapshots = {}
            return Plan(left=[Unresolved.of(one, tr("{what}: {why}", what=one.message, why=reason)) for one in lacking])
        snapshots = starmap(self._snapshot, self.snapshots.items())
        return Plan([*snapshots], self.left, {(v2.BASE_NO_INDEX, self.key)})

    def _find(self, lacking: list[Finding]) -> None:
        try:
            with sqlite.reading(self.store.root / self.index_name) as db:
                self.find_materials(db)
                self.find_items({str(key): str(path) for key, path in db.execute(_MATERIALS)})
        except (apsw.Error, UnicodeDecodeError) as error:
            self.new, self.snapshots = [], {}
            reason = tr("the index cannot be read as a whole: {error}", error=error)
            self.left = [
                Unresolved(finding=one.name, reason=reason, base=self.key, severity=one.severity) for one in lacking
            ]

    def _leave(self, finding: str, reason: str, subject: str) -> None:
        self.left.append(Unresolved.registered(finding, reason, base=self.key, subject=subject))

    def find_materials(self, db: apsw.Connection) -> None:
        """Find the materials of an index that have a text and no unit."""
        former = Former({str(unit): str(body) for unit, body in db.execute(_ORPHANS)})
        separator = separator_of(self.settings)
        for material, path, content_hash, text in db.execute(_NO_UNITS):
            key = str(material)
            if not isinstance(text, str) or identity.text_hash(text) != content_hash:
                self._leave(v2.NO_UNITS, tr("its text is not what its hash says: regraft repair first"), key)
                continue
            spans = former.spans(key, str(content_hash), text, separator)
            if not spans and self.donor is not None:
                spans = self.donor.spans(str(content_hash))
                if not spans:
                    continue
            spans = spans or cut(text, self.settings)
            if spans:
                read = partial(_stored, content_hash=str(content_hash))
                self._add(v2.NO_UNITS, key, str(path), text, spans, read)
            else:
                self._leave(v2.NO_UNITS, BLANK, key)

    def _add(
        self,
        finding: str,
        material: str,
        path: str,
        text: str,
        spans: list[Span],
        read: Callable[[apsw.Connection], str | None],
        *,
        is_donated: bool = False,
    ) -> None:
        size = 2 * len(text.encode()) + _ROW_BYTES * len(spans)
        self.new.append(
            NewText(
                finding=finding,
                material=material,
                path=path,
                content_hash=identity.text_hash(text),
                spans=tuple(spans),
                bytes=size,
                read=read,
                is_donated=is_donated,
            )
        )

    def find_items(self, materials: dict[str, str]) -> None:
        """Find the texts of completed items that have no material; ``materials`` are the paths of those that have."""
        taken = set(materials.values())
        names = self._names(taken)
        for item in self.items:
            is_wanted = item.get("status") == "completed" and _is_leaf(item)
            if is_wanted and str(item.get("id")) not in materials:
                self._find_item(item, names, taken)

    def _find_item(self, item: Row, names: FreeNames, taken: set[str]) -> None:
        key, path = str(item.get("id")), path_of(item)
        finding = v2.ITEM_NOT_INDEXED if path is None and item.get("type") != "file" else v2.ITEM_NO_MATERIAL
        try:
            if not self._take_donated(item, path, taken) and self._reads_raw_files(path):
                self._take_raw(item, path, finding, names, taken)
        except WrongUsage as problem:
            if self.donor is None:
                raise
            self._leave(finding, str(problem), key)
        except NoText as reason:
            # In a new index, a note that was never indexed lacks nothing.
            if finding != v2.ITEM_NOT_INDEXED or not self.is_missing:
                self._leave(finding, str(reason), key)

    def _reads_raw_files(self, path: str | None) -> bool:
        """Whether the text of an item is read from its file; without a path it was never indexed."""
        return self.donor is None or (self.is_missing and path is not None)

    def _take_raw(self, item: Row, path: str | None, finding: str, names: FreeNames, taken: set[str]) -> None:
        """Take the text of an item from its file, or from its row.

        Raises:
            NoText: there is none.
            WrongUsage: what reads or cuts it is not installed.
        """
        found = text_of(item, self.raw)
        spans = self._cut(found.text)
        path = self._path(item, path, found.text, names, taken)
        taken.add(path)
        if found.guessed is not None:
            self.guessed[path] = found.guessed
        read = partial(_again, item=item, raw=self.raw)
        self._add(finding, str(item.get("id")), path, found.text, spans, read)

    def _take_donated(self, item: Row, path: str | None, taken: set[str]) -> bool:
        """Take the text of an item from the donor; False where the donor has none, or the item has no path yet.

        Raises:
            NoText: the path of the item cannot be that of a text.
        """
        donated = None if self.donor is None or path is None else self.donor.text(item, self.raw)
        if donated is None or path is None:
            return False
        self._demand_free(path, taken)
        taken.add(path)
        self._add(
            v2.ITEM_NO_MATERIAL, str(item["id"]), path, donated.text, donated.spans, donated.read, is_donated=True
        )
        return True

    def keep(self, material: str, path: str, donated: Donated) -> None:
        """Add a text that no completed item has, under the id and path that it had."""
        self._add(v2.MATERIAL_ORPHAN, material, path, donated.text, donated.spans, donated.read, is_donated=True)

    def _cut(self, text: str) -> list[Span]:
        spans = cut(text, self.settings)
        if not spans:
            raise NoText(BLANK)
        return spans

    def _names(self, materials: set[str]) -> FreeNames:
        names = FreeNames(reserve_processed=not is_blank(self.row.get("file_processor_id")))
        data = map(data_of, self.items)
        named = {one.get(key) for one in data for key in ("relativePath", "indexedRelativePath")}
        for path in sorted({*materials, *(path for path in named if isinstance(path, str))}):
            names.take(whole(path))
        return names

    def _path(self, item: Row, path: str | None, text: str, names: FreeNames, taken: set[str]) -> str:
        """Return the path of an item's text; a snapshot that is not there yet is going to be written.

        Raises:
            NoText: it cannot have the one that its item says.
        """
        if path is None:
            path, is_there = free_name(names, f"{_shot(item).stem}.md", self.raw, text)
        else:
            self._demand_free(path, taken)
            is_there = item.get("type") == "file" or os.path.lexists(self.raw / path)
        if not is_there:
            self.snapshots[path] = item
        return path

    @staticmethod
    def _demand_free(path: str, taken: set[str]) -> None:
        problem = path_problem(path.encode("utf-8", "surrogatepass"))
        if problem is not None or path in taken:
            problem = problem or tr("that of another text in the index")
            raise NoText(tr('its path, "{path}", is {problem}', path=path, problem=problem))

    # --- what is changed ---------------------------------------------------------------------------------------------

    def _snapshot(self, path: str, item: Row) -> FileChange:
        text = text_of(item, self.raw).text

        def write(new: Path) -> None:
            block = _shot(item).block(clock.iso_time(self.now_ms))
            durable.put_text(new, block + text)

        size = len(text.encode())
        name = f"{self._raw_name}/{path}"
        action = Action(
            action="write-snapshot",
            message=tr("write {path}, the text of a note", path=path),
            base=self.key,
            subject=name,
            count=1,
            bytes=size,
        )
        return FileChange(path=name, actions=(action,), make=write, bytes=size)

    def update(self, statements: Statements) -> Iterator[Action]:
        """Give the items of new snapshots their paths."""
        moved = [
            (one, item)
            for one in self.new
            for item in self.items
            if one.finding == v2.ITEM_NOT_INDEXED and item.get("id") == one.material
        ]
        for one, item in moved:
            statements.set_path(self.key, item, one.path)
        if moved:
            message = tr("give {items} the path of its snapshot", items=counted(len(moved), "item"))
            yield Action(
                action="update-items",
                message=message,
                base=self.key,
                subject=None,
                count=len(moved),
                bytes=0,
                finding=v2.ITEM_NOT_INDEXED,
            )

    def index(self) -> Iterator[Change]:
        """Yield the change of the index, where there is any."""
        if self.is_missing:
            if self.new or not self.left:
                yield self._new_index()
        elif self.new:
            yield self.rows_change()

    def _new_index(self) -> FileChange:
        size = sum(one.bytes for one in self.new) + _EMPTY_BYTES

        def make(new: Path) -> None:
            write_index(new, self.key, self.new, self.now_ms)

        return FileChange(path=self.index_name, actions=tuple(self._actions()), make=make, bytes=size)

    def rows_change(self) -> RowsChange:
        """Return the change that adds the new texts to an existing index."""
        path, new = self.store.root / self.index_name, tuple(self.new)

        def apply(db: apsw.Connection) -> None:
            with schema.full_text_kept(db):
                for one in new:
                    write_text(db, path, one, self.now_ms)

        size = sum(one.bytes for one in new)
        return RowsChange(path=self.index_name, actions=tuple(self._actions()), apply=apply, tables=_TABLES, bytes=size)

    def bodies(self) -> Iterator[tuple[str, str]]:
        """Read the texts of the units that are going to be made, each with its key."""
        if not self.new:
            return
        with sqlite.scratch() if self.is_missing else sqlite.reading(self.store.root / self.index_name) as db:
            for one in self.new:
                text = one.read(db)
                for unit in index_units.cut(one.material, text or "", one.spans if text else ()):
                    yield unit.embedding_text_hash, unit.text

    def _actions(self) -> Iterator[Action]:
        if self.is_missing:
            yield self._action("write-index", v2.BASE_NO_INDEX, self.new)
        for finding in () if self.is_missing else NAMES:
            new = [one for one in self.new if one.finding == finding]
            if new:
                yield self._action("cut-texts" if finding == v2.NO_UNITS else "index-items", finding, new)
        for path, encoding in self.guessed.items():
            yield Action(
                action="guess-encoding",
                message=tr("read {path} as {encoding}, by its letters", path=path, encoding=encoding),
                base=self.key,
                subject=path,
            )

    def _action(self, name: str, finding: str, new: list[NewText]) -> Action:
        texts, count = counted(len(new), "text"), sum(len(one.spans) for one in new)
        units = counted(count, "unit")
        if name == "write-index":
            message = tr("write the index again: {texts} in {units}", texts=texts, units=units)
        else:
            message = tr("cut {texts} into {units}", texts=texts, units=units)
        return Action(
            action=name,
            message=message,
            base=self.key,
            subject=self.index_name,
            count=count,
            bytes=sum(one.bytes for one in new),
            finding=finding,
        )


def _is_leaf(item: Row) -> bool:
    return item.get("type") in ("file", "url", "note")


def _shot(item: Row) -> okf.Snapshot:
    return okf.note_snapshot(whole(str(data_of(item).get("source"))))


def _again(_db: apsw.Connection, item: Row, raw: Path) -> str | None:
    try:
        return text_of(item, raw).text
    except NoText:
        return None


def _stored(db: apsw.Connection, content_hash: str) -> str | None:
    text: Any = db.execute("SELECT text FROM content WHERE content_hash = ?", (content_hash,)).get
    return text if isinstance(text, str) else None


_MATERIALS = """SELECT material_id, relative_path FROM material m
 WHERE EXISTS (SELECT 1 FROM content c WHERE c.content_hash = m.current_content_hash)
    OR EXISTS (SELECT 1 FROM search_unit u WHERE u.material_id = m.material_id)"""
_NO_UNITS = """SELECT m.material_id, m.relative_path, c.content_hash, c.text
  FROM material m JOIN content c ON c.content_hash = m.current_content_hash
 WHERE NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.material_id = m.material_id)
   AND trim(c.text, char(32, 9, 10, 13)) <> ''"""
_ORPHANS = """SELECT t.target_id, t.text FROM search_text t
 WHERE t.target_type = 'search_unit' AND t.kind = 'body' AND typeof(t.text) = 'text'
   AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)"""
