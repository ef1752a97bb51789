"""Plan and write the missing index rows of texts, without vectors (``docs/indexing.md``).

Covers contents without units, completed items without a material, and the missing index of a completed base. In a base
with a model, the new texts are embedded by ``backfill`` later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, starmap
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import apsw
import msgspec

from checks.audit.collector import Level
from checks.audit.findings import Finding
from checks.cherry_v2 import detect
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import get_indexed_path
from checks.cherry_v2.raw_files import find_path_problem
from regraft import identity
from regraft.disk import durable, file_paths, links, sqlite
from regraft.disk.file_paths import FreeNames
from regraft.errors import PlanOutdated, WrongUsage
from regraft.formats import okf
from regraft.formats.cherry_v2 import layout
from regraft.formats.cherry_v2.catalog_reader import Row, base_id_text, parse_item_data
from regraft.formats.cherry_v2.index import schema, store
from regraft.formats.cherry_v2.index.bulk import IndexBuilder
from regraft.formats.cherry_v2.settings import Settings, read_base_settings
from regraft.language import format_count, tr
from regraft.text import decode_utf8, is_blank, replace_surrogates
from repair.changes.plan import Action, Change, FileChange, Plan, RowsChange, Unresolved, group_by_base
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import CatalogStatements, make_catalog_change, read_store_catalog
from repair.cherry_v2.evidence import DAMAGE
from repair.cherry_v2.item_paths import find_snapshot_name, named_paths
from repair.cherry_v2.item_texts import (
    BLANK,
    FormerUnits,
    NoText,
    Span,
    cut_text,
    find_raw_file,
    get_unit_separator,
    read_item_text,
)

# --- writing texts --------------------------------------------------------------------------------------------------


#: Reads a text again when it is written, from the open index or elsewhere; None if it is gone.
ReadText = Callable[[apsw.Connection], str | None]


class NewText(msgspec.Struct, frozen=True, kw_only=True):
    """A text to index: the id and path of its material, its hash, and the spans of its units in UTF-16 units."""

    finding: str
    material: str
    path: str
    content_hash: str
    spans: tuple[Span, ...]
    bytes: int
    read: ReadText
    #: Whether the text comes from another index.
    is_donated: bool = False
    #: The time of the material; None: that of the run.
    updated_at: int | None = None


class DonatedText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of an item that another index gives, with the UTF-16 spans of its units there."""

    text: str
    spans: list[Span]
    read: ReadText


class TextDonor(Protocol):
    """Other indexes from which the texts of a base can be taken."""

    def text(self, item: Row, raw: Path) -> DonatedText | None:
        """Return the text of an item of the base, or None; ``raw`` is the base's folder of raw files."""

    def listed_text(self, item: Row) -> DonatedText | None:
        """Return the text that an item has in a copy of the same base, or None."""

    def listed_snapshot(self, item: Row) -> tuple[str, str] | None:
        """Return path and content of the snapshot that an item has in a copy of the same base, or None."""

    def spans(self, content_hash: str) -> list[Span]:
        """Return the unit spans of the text with this hash; empty if it is unknown."""


def write_index(
    path: Path,
    base_id: str,
    texts: Iterable[NewText],
    now_ms: int,
    then: Callable[[apsw.Connection], None] = lambda _: None,
) -> None:
    """Write a new index file with texts and their units, without vectors.

    Args:
        path: where no file is yet.
        base_id: the id of the base.
        texts: in the order in which their rows are numbered.
        now_ms: the time of the run.
        then: writes more rows, in a transaction of its own.

    Raises:
        PlanOutdated: a text was changed since it was planned.
        apsw.Error, OSError: the file cannot be written.
    """
    with sqlite.open_writable(path, create=True) as db:
        index = IndexBuilder(db, base_id, now_ms)
        for one in texts:
            index.add_units(one.material, one.path, _read_unchanged(db, path, one), one.spans)
        index.finish()
        with sqlite.transaction(db):
            then(db)


def write_text(db: apsw.Connection, path: Path, new: NewText, now_ms: int) -> None:
    """Write a planned text with its material and units to the open index at ``path``.

    Raises:
        PlanOutdated: the text was changed since it was planned.
    """
    text = _read_unchanged(db, path, new)
    units = schema.cut_units(new.material, text, new.spans)
    # Bodies of former units are written again; their vectors stay.
    db.executemany(
        "DELETE FROM search_text WHERE target_type = 'search_unit' AND target_id = ?",
        ((unit.unit_id,) for unit in units),
    )
    store.replace_material(
        db,
        store.NewMaterial(
            material_id=new.material,
            relative_path=new.path,
            content_hash=new.content_hash,
            content=text,
            units=units,
            embeddings={},
            now_ms=now_ms if new.updated_at is None else new.updated_at,
            has_model=False,
        ),
    )


def _read_unchanged(db: apsw.Connection, path: Path, planned: NewText) -> str:
    """Read a planned text again; raises PlanOutdated if it was changed.

    ``db`` is the index at ``path`` that gets it.
    """
    text = planned.read(db)
    if text is None or identity.text_hash(text) != planned.content_hash:
        raise PlanOutdated(
            path=path, reason=tr("the text of {material} changed in the meantime", material=planned.material)
        )
    return text


# --- planning -------------------------------------------------------------------------------------------------------


#: Findings that are resolved.
NAMES = (v2.BASE_NO_INDEX, v2.NO_UNITS, v2.ITEM_NO_MATERIAL, v2.ITEM_NOT_INDEXED)
#: With these findings, an index is not changed: it is damaged, or its full-text index is out of date.
BLOCKING = {*DAMAGE, v2.META_MISSING, v2.FTS_DESYNC, v2.BODY_ROWID}
#: Approximate bytes of the rows of a unit, without its text.
_ROW_BYTES = 800
#: Approximate bytes of an empty index.
_EMPTY_BYTES = 128 << 10
#: The time at which an index was made, if a material with this id and path was not updated since.
_AS_CREATED = """SELECT updated_at FROM material WHERE material_id = ? AND relative_path = ?
   AND updated_at = (SELECT created_at FROM meta ORDER BY id LIMIT 1)"""
_BODIES = """SELECT t.text FROM search_unit u LEFT JOIN search_text t
   ON t.target_type = 'search_unit' AND t.target_id = u.unit_id WHERE u.material_id = ? ORDER BY u.unit_index"""
_TABLES = ("content", "material", "search_unit", "search_text")


def plan(store: Store, now_ms: int, bases: Collection[str] | None = None) -> Plan:
    """Plan which texts without units are indexed, in the selected bases, or only in those with the ids ``bases``.

    Without a catalog, the items are unknown, and texts are cut with the application's default settings.

    Raises:
        SourceUnreadable: the catalog cannot be read.
        WrongUsage: a library that reads or cuts texts is not installed.
        ProfileUnknown: the profile is of a generation that this release does not know.
    """
    made = Plan()
    wanted = _findings_by_base(store.findings(Level.QUICK), bases)
    statements = CatalogStatements.of(store)
    indexes: list[Change] = []
    for row, items in _indexable_bases(store) if wanted else ():
        key = base_id_text(row)
        if key in wanted:
            base = BaseTexts(store=store, row=row, items=items, now_ms=now_ms)
            made.add(base.plan(wanted[key]))
            made.bodies[key] = base.bodies
            indexes += base.index()
            statements.actions += base.update(statements)
    if statements.actions:
        made.changes.append(make_catalog_change(statements, ("knowledge_item",)))
    # If the run stops here, the next one finds items with a path and no text.
    made.changes += indexes
    return made


def _findings_by_base(findings: Iterable[Finding], bases: Collection[str] | None) -> dict[str | None, list[Finding]]:
    """Group the findings that indexing resolves, and those that block it, by base.

    Bases without a finding to resolve are left out. ``bases``: ids of the bases that count; None: all.
    """
    relevant = (one for one in findings if one.base is not None and one.name in (*NAMES, *BLOCKING))
    found = group_by_base(one for one in relevant if bases is None or one.base in bases)
    return {base: every for base, every in found.items() if any(one.name in NAMES for one in every)}


def _indexable_bases(store: Store) -> Iterator[tuple[Row, list[Row]]]:
    """Yield the catalog rows of completed bases, each with its items.

    Without a catalog, yield every base, without items.
    """
    if store.catalog is None:
        yield from (({"id": base}, []) for base in store.stores)
        return
    catalog = read_store_catalog(store)
    for row in catalog.bases:
        if row.get("status") == "completed":
            yield row, catalog.items_of(base_id_text(row))


class BaseTexts(msgspec.Struct, kw_only=True):
    """Finds the texts that the index of one base lacks, and plans the changes that index them.

    If there is a ``donor``, its texts are preferred to raw files; an existing index takes only texts of the donor.
    """

    store: Store
    row: Row
    items: list[Row]
    now_ms: int
    donor: TextDonor | None = None
    #: Whether a new index file replaces a damaged one.
    is_replaced: bool = False
    #: Ids of the items that lost rows in a salvage, or may have.
    lost: Collection[str] = ()
    new: list[NewText] = msgspec.field(default_factory=list)
    left: list[Unresolved] = msgspec.field(default_factory=list)
    #: Snapshots to write: paths and items.
    snapshots: dict[str, Row] = msgspec.field(default_factory=dict)
    #: Snapshots that get the whole text of an item: the front matter and the text, by path.
    completed: dict[str, tuple[str, DonatedText]] = msgspec.field(default_factory=dict)
    #: Snapshots that are copied from the donor: their content, by path.
    copied: dict[str, str] = msgspec.field(default_factory=dict)
    #: Guessed encodings, by file.
    guessed: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """The id of the base."""
        return base_id_text(self.row)

    @property
    def is_missing(self) -> bool:
        """Whether a new index file is written."""
        return self.is_replaced or self.key not in self.store.stores

    @property
    def _folder(self) -> str:
        """Path of the base's folder below the root of the store."""
        return f"{self.store.bases}/{self.key}" if self.store.bases else self.key

    @property
    def index_name(self) -> str:
        """Path of the index file below the root of the store."""
        one = self.store.stores.get(self.key)
        return f"{self._folder}/{layout.INDEX_FILE}" if one is None else one.name

    @property
    def _raw_name(self) -> str:
        """Path of the base's folder of raw files below the root of the store."""
        one = self.store.stores.get(self.key)
        return f"{self._folder}/{layout.RAW_FOLDER}" if one is None else one.raw

    @property
    def raw(self) -> Path:
        """The base's folder of raw files."""
        return self.store.root / self._raw_name

    @property
    def settings(self) -> Settings:
        """The settings by which texts of the base are cut into units."""
        return read_base_settings(self.row)[0]

    # --- finding texts -----------------------------------------------------------------------------------------------

    def plan(self, found: list[Finding]) -> Plan:
        """Find the texts, and plan the changes that come before that of the index, which :meth:`index` returns.

        ``found`` are the audit's findings about the base that indexing resolves, or that block it.
        """
        lacking = [one for one in found if one.name in NAMES]
        blocking = next((finding for finding in found if finding.name in BLOCKING), None)
        if self.is_missing:
            return self._plan_new(lacking)
        if blocking is not None:
            reason = tr("the index was not changed: {what}", what=blocking.message)
            return Plan(left=[Unresolved.of(one, reason) for one in lacking])
        self._find(lacking)
        resolved = {one.name for one in lacking}.difference(one.finding for one in self.left)
        snapshots = starmap(self._plan_snapshot, self.snapshots.items())
        return Plan([*snapshots], self.left, {(name, self.key) for name in resolved})

    def _plan_new(self, lacking: list[Finding]) -> Plan:
        """Plan the changes before a new index file. Nothing is written if no item has a text.

        ``lacking`` are the findings to resolve.
        """
        wanted = [item for item in self.items if has_own_text(item) and item.get("status") == "completed"]
        self.find_items({})
        if wanted and not self.new:
            first = next((one.reason for one in self.left), tr("its items have no text"))
            reason = tr("no item has a readable text; for example, {first}", first=first)
            self.snapshots = {}
            return Plan(left=[Unresolved.of(one, tr("{what}: {why}", what=one.message, why=reason)) for one in lacking])
        snapshots = starmap(self._plan_snapshot, self.snapshots.items())
        return Plan([*snapshots], self.left, {(v2.BASE_NO_INDEX, self.key)})

    def _find(self, lacking: list[Finding]) -> None:
        """Collect the texts that the existing index lacks.

        If it cannot be read, only report the findings ``lacking``.
        """
        try:
            with sqlite.open_readonly(self.store.root / self.index_name) as db:
                self.find_materials(db)
                self.find_items({str(key): str(path) for key, path in db.execute(_MATERIALS)})
        except (apsw.Error, UnicodeDecodeError) as error:
            self.new, self.snapshots = [], {}
            reason = tr("the index cannot be read as a whole: {error}", error=error)
            self.left = [
                Unresolved(finding=one.name, reason=reason, base=self.key, severity=one.severity) for one in lacking
            ]

    def _leave(self, finding: str, reason: str, subject: str) -> None:
        """Report that the text of an item or material (``subject``: its id) cannot be indexed, and why."""
        self.left.append(Unresolved.registered(finding, reason, base=self.key, subject=subject))

    def find_materials(self, db: apsw.Connection) -> None:
        """Collect the materials of the open index that have a text and no units."""
        former = FormerUnits({str(unit): str(body) for unit, body, _ in db.execute(_ORPHANS)})
        separator = get_unit_separator(self.settings)
        for material, path, content_hash, text in db.execute(_NO_UNITS):
            key = str(material)
            if not isinstance(text, str) or identity.text_hash(text) != content_hash:
                self._leave(v2.NO_UNITS, tr("its text does not match its hash; run regraft repair first"), key)
                continue
            spans = former.spans(key, str(content_hash), text, separator)
            if not spans and self.donor is not None:
                spans = self.donor.spans(str(content_hash))
                if not spans:
                    continue
            spans = spans or cut_text(text, self.settings)
            if spans:
                read = partial(_read_stored, content_hash=str(content_hash))
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
        updated_at: int | None = None,
    ) -> None:
        """Add a text to the texts to index.

        Args:
            finding: the finding that this resolves.
            material: the id of the material, which is that of the item.
            path: its path below ``raw/``.
            text: the text.
            spans: the UTF-16 spans of its units.
            read: reads the text again when the change is applied, given the open index.
            is_donated: whether another index gave it.
            updated_at: the time of the material; None: that of the run.
        """
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
                updated_at=updated_at,
            )
        )

    def find_partial(self, db: apsw.Connection) -> None:
        """Collect the whole texts of items that lost rows in a salvage, from the donor.

        An item is left as it is if it was indexed again or its snapshot was edited since, or unless its units are a
        part of those of the donor, in the same order and with the same texts.

        ``db`` is the open index.
        """
        for item in self.items:
            key, path = str(item.get("id")), get_indexed_path(item)
            if key not in self.lost or path is None or item.get("status") != "completed" or not has_own_text(item):
                continue
            created: Any = db.execute(_AS_CREATED, (key, path)).get
            donated, front_matter = (None, None) if created is None else self._find_whole_text(db, item, path)
            if donated is None:
                continue
            here = [str(text) for (text,) in db.execute(_BODIES, (key,))]
            there = iter([unit.text for unit in schema.cut_units(key, donated.text, donated.spans)])
            if len(here) >= len(donated.spans) or not all(text in there for text in here):
                continue
            self._add(
                v2.UNIT_MISSING,
                key,
                path,
                donated.text,
                donated.spans,
                donated.read,
                is_donated=True,
                # A material that was not updated counts as one that still lacks rows.
                updated_at=max(self.now_ms, created + 1),
            )
            if front_matter is not None:
                self.completed[path] = front_matter, donated

    def _find_whole_text(self, db: apsw.Connection, item: Row, path: str) -> tuple[DonatedText | None, str | None]:
        """Return the text that the donor has of an item, and the front matter of the snapshot to complete, if any.

        ``db`` is the open index; ``path`` is the path of the item's raw file.
        """
        assert self.donor is not None
        file = find_raw_file(path, self.raw)
        if file is None or item.get("type") == "file":
            return self.donor.text(item, self.raw), None
        snapshot = decode_utf8(links.read_bytes(file))
        text = okf.strip_block(snapshot)
        stored = db.execute("SELECT current_content_hash FROM material WHERE material_id = ?", (item.get("id"),)).get
        if identity.text_hash(replace_surrogates(text)) != stored:
            return None, None
        return self.donor.listed_text(item), snapshot.removesuffix(text)

    def completed_snapshots(self) -> Iterator[FileChange]:
        """Yield the changes that write the whole text of items to their snapshots."""
        for path, (front_matter, donated) in self.completed.items():
            message = tr("complete the snapshot {path}", path=path)
            yield self._snapshot_change(path, front_matter + donated.text, message, v2.UNIT_MISSING)

    def copied_snapshots(self) -> Iterator[FileChange]:
        """Yield the changes that write the snapshots of the donor."""
        for path, content in self.copied.items():
            message = tr("write the snapshot {path}", path=path)
            yield self._snapshot_change(path, content, message, v2.ITEM_NOT_INDEXED)

    def _snapshot_change(self, path: str, content: str, message: str, finding: str) -> FileChange:
        """Make the change that writes ``content`` to a snapshot at ``path`` below ``raw/``, to resolve a finding."""
        name, size = f"{self._raw_name}/{path}", len(content.encode())
        action = Action(
            action="write-snapshot", message=message, base=self.key, subject=name, bytes=size, finding=finding
        )
        return FileChange(path=name, actions=(action,), make=partial(durable.put_text, text=content), bytes=size)

    def leave_out(self, text: NewText, reason: str) -> None:
        """Remove a donated text from the texts to index, and report why its finding stays."""
        self.new.remove(text)
        self.completed.pop(text.path, None)
        self.copied.pop(text.path, None)
        self._leave(text.finding, reason, text.material)

    def find_items(self, materials: dict[str, str]) -> None:
        """Collect the texts of completed items without a material; ``materials`` maps the ids in the index to paths."""
        taken = set(materials.values())
        names = self._names(taken)
        for item in self.items:
            is_wanted = item.get("status") == "completed" and has_own_text(item)
            if is_wanted and str(item.get("id")) not in materials:
                self._find_item(item, names, taken)

    def _find_item(self, item: Row, names: FreeNames, taken: set[str]) -> None:
        """Collect the text of an item from a donor or its raw file, or report why it has no text.

        ``names`` generates free names for snapshots, ``taken`` are the paths of materials.
        """
        key, path = str(item.get("id")), get_indexed_path(item)
        finding = v2.ITEM_NOT_INDEXED if path is None and item.get("type") != "file" else v2.ITEM_NO_MATERIAL
        try:
            if not self._take_donated(item, path, names, taken) and self._may_take_raw(path):
                self._take_raw(item, path, finding, names, taken)
        except WrongUsage as problem:
            if self.donor is None:
                raise
            self._leave(finding, str(problem), key)
        except NoText as reason:
            # In a new index, a note that was never indexed needs no text.
            if finding != v2.ITEM_NOT_INDEXED or not self.is_missing:
                self._leave(finding, str(reason), key)

    def _may_take_raw(self, path: str | None) -> bool:
        """Whether the text of an item that names this path may be read from its raw file.

        If there is a donor, only a new index takes such texts, and only of items that were indexed before.
        """
        return self.donor is None or (self.is_missing and path is not None)

    def _take_raw(self, item: Row, path: str | None, finding: str, names: FreeNames, taken: set[str]) -> None:
        """Collect the text of an item from its raw file or its catalog row.

        Args:
            item: the item's row.
            path: the path below ``raw/`` that the item names, if any.
            finding: the finding that this resolves.
            names: generates free names for snapshots.
            taken: paths of materials; the item's is added.

        Raises:
            NoText: the item has no text.
            WrongUsage: a library that reads or cuts it is not installed.
        """
        found = read_item_text(item, self.raw)
        spans = self._cut(found.text)
        path = self._path(item, path, found.text, names, taken)
        taken.add(path)
        if found.guessed is not None:
            self.guessed[path] = found.guessed
        read = partial(_read_again, item=item, raw=self.raw)
        self._add(finding, str(item.get("id")), path, found.text, spans, read)

    def _take_listed(self, item: Row, names: FreeNames, taken: set[str]) -> bool:
        """Collect the text and the snapshot that a copy of the same base has of an item without a path.

        Only an item that lost its rows in a salvage gets them. Arguments are those of :meth:`_find_item`. Returns False
        if the donor lacks one of the two.
        """
        if self.donor is None or str(item.get("id")) not in self.lost:
            return False
        donated, snapshot = self.donor.listed_text(item), self.donor.listed_snapshot(item)
        if donated is None or snapshot is None or find_path_problem(snapshot[0]) is not None:
            return False
        path, is_there = find_snapshot_name(names, snapshot[0], self.raw, donated.text)
        if not is_there:
            self.copied[path] = snapshot[1]
        taken.add(path)
        key = str(item["id"])
        self._add(v2.ITEM_NOT_INDEXED, key, path, donated.text, donated.spans, donated.read, is_donated=True)
        return True

    def _take_donated(self, item: Row, path: str | None, names: FreeNames, taken: set[str]) -> bool:
        """Collect the text of an item from the donor; returns False without a text.

        ``path`` is what the item names, if anything; it is added to ``taken``. The other arguments are those of
        :meth:`_find_item`.

        Raises:
            NoText: the path of the item cannot be that of a text.
        """
        if path is None:
            return self._take_listed(item, names, taken)
        donated = None if self.donor is None else self.donor.text(item, self.raw)
        if donated is None:
            return False
        self._demand_free(path, taken)
        taken.add(path)
        self._add(
            v2.ITEM_NO_MATERIAL, str(item["id"]), path, donated.text, donated.spans, donated.read, is_donated=True
        )
        return True

    def keep(self, material: str, path: str, donated: DonatedText) -> None:
        """Collect a donated text that no completed item has; it keeps its material's id and path."""
        self._add(v2.MATERIAL_ORPHAN, material, path, donated.text, donated.spans, donated.read, is_donated=True)

    def _cut(self, text: str) -> list[Span]:
        """Cut a text into units with the settings of the base, and return their spans; raises NoText if it is blank."""
        spans = cut_text(text, self.settings)
        if not spans:
            raise NoText(BLANK)
        return spans

    def _names(self, materials: set[str]) -> FreeNames:
        """Make the generator of snapshot names that are free in the base; ``materials`` are the paths in its index."""
        names = FreeNames(reserve_processed=not is_blank(self.row.get("file_processor_id")))
        for path in sorted(materials | named_paths(self.items)):
            names.take(replace_surrogates(path))
        return names

    def _path(self, item: Row, path: str | None, text: str, names: FreeNames, taken: set[str]) -> str:
        """Return the path for the text of an item, and plan its snapshot file if that is missing.

        Args:
            item: the item's row.
            path: the path that the item names, if any.
            text: the text.
            names: generates free names for snapshots.
            taken: paths of materials.

        Raises:
            NoText: the path that the item names is not safe, or taken.
        """
        if path is None:
            path, is_there = find_snapshot_name(names, f"{_note_snapshot(item).stem}.md", self.raw, text)
        else:
            self._demand_free(path, taken)
            is_there = item.get("type") == "file" or file_paths.lexists(self.raw / path)
        if not is_there:
            self.snapshots[path] = item
        return path

    @staticmethod
    def _demand_free(path: str, taken: set[str]) -> None:
        """Raise NoText if a path below ``raw/`` is not safe, or is one of the ``taken`` paths of other texts."""
        problem = find_path_problem(path)
        if problem is not None or path in taken:
            problem = problem or tr("that of another text in the index")
            raise NoText(tr('its path, "{path}", is {problem}', path=path, problem=problem))

    # --- changes -----------------------------------------------------------------------------------------------------

    def _plan_snapshot(self, path: str, item: Row) -> FileChange:
        """Plan to write the text of an item, with front matter, to a new file at ``path`` below ``raw/``."""
        text = read_item_text(item, self.raw).text

        def write(new: Path) -> None:
            """Write the snapshot file."""
            block = _note_snapshot(item).block(identity.iso_time(self.now_ms))
            durable.put_text(new, block + text)

        size = len(text.encode())
        name = f"{self._raw_name}/{path}"
        action = Action(
            action="write-snapshot",
            message=tr("write {path}, the text of a note", path=path),
            base=self.key,
            subject=name,
            bytes=size,
        )
        return FileChange(path=name, actions=(action,), make=write, bytes=size)

    def update(self, statements: CatalogStatements) -> Iterator[Action]:
        """Add statements that record the paths of new snapshots in the catalog, and yield the action for the report."""
        moved = [
            (one, item)
            for one in self.new
            for item in self.items
            if one.finding == v2.ITEM_NOT_INDEXED and item.get("id") == one.material
        ]
        for one, item in moved:
            statements.set_path(self.key, item, one.path)
        if moved:
            message = tr("give {items} the path of the snapshot", items=format_count(len(moved), "item"))
            yield Action(
                action="update-items", message=message, base=self.key, count=len(moved), finding=v2.ITEM_NOT_INDEXED
            )

    def index(self) -> Iterator[Change]:
        """Yield the change that writes the collected texts to the index, if there are any."""
        if not self.is_missing:
            if self.new:
                yield self.rows_change()
        elif self.new or not self.left:
            yield FileChange(
                path=self.index_name,
                actions=tuple(self._list_actions()),
                make=lambda new: write_index(new, self.key, self.new, self.now_ms),
                bytes=sum(one.bytes for one in self.new) + _EMPTY_BYTES,
            )

    def rows_change(self) -> RowsChange:
        """Make the change that adds the collected texts to an existing index."""
        path, new = self.store.root / self.index_name, tuple(self.new)

        def apply(db: apsw.Connection) -> None:
            """Write the collected texts to the open index."""
            with schema.full_text_triggers(db):
                for one in new:
                    write_text(db, path, one, self.now_ms)

        size = sum(one.bytes for one in new)
        return RowsChange(
            path=self.index_name, actions=tuple(self._list_actions()), apply=apply, tables=_TABLES, bytes=size
        )

    def bodies(self, texts: Sequence[NewText] | None = None) -> Iterator[tuple[str, str]]:
        """Yield hash and text of each unit that will be written for some of the collected texts; None: for all."""
        texts = self.new if texts is None else texts
        if not texts:
            return
        with (
            sqlite.open_scratch() if self.is_missing else sqlite.open_readonly(self.store.root / self.index_name) as db
        ):
            for one in texts:
                text = one.read(db)
                for unit in schema.cut_units(one.material, text or "", one.spans if text else ()):
                    yield unit.embedding_text_hash, unit.text

    def _list_actions(self) -> Iterator[Action]:
        """Yield the actions of the index's change, for the report."""
        if self.is_missing:
            yield self._make_action("write-index", v2.BASE_NO_INDEX, self.new)
        for finding in () if self.is_missing else (*NAMES, v2.UNIT_MISSING):
            new = [one for one in self.new if one.finding == finding]
            if new:
                yield self._make_action("cut-texts" if finding == v2.NO_UNITS else "index-items", finding, new)
        for path, encoding in self.guessed.items():
            yield Action(
                action="guess-encoding",
                message=tr("read {path} as {encoding}, guessed from its letters", path=path, encoding=encoding),
                base=self.key,
                subject=path,
            )

    def _make_action(self, name: str, finding: str, texts_to_index: list[NewText]) -> Action:
        """Describe for the report that these texts are indexed."""
        texts, count = format_count(len(texts_to_index), "text"), sum(len(one.spans) for one in texts_to_index)
        units = format_count(count, "unit")
        if name == "write-index":
            message = tr("write the index again: {texts} in {units}", texts=texts, units=units)
        elif finding == v2.UNIT_MISSING:
            message = tr("restore the missing parts of {texts}: {units} in total", texts=texts, units=units)
        else:
            message = tr("cut {texts} into {units}", texts=texts, units=units)
        return Action(
            action=name,
            message=message,
            base=self.key,
            subject=self.index_name,
            count=count,
            bytes=sum(one.bytes for one in texts_to_index),
            finding=finding,
        )


def has_own_text(item: Row) -> bool:
    """Whether an item is of a type that has a text: a file, URL or note, and no folder."""
    return item.get("type") in ("file", "url", "note")


def _note_snapshot(item: Row) -> okf.Snapshot:
    """Make the snapshot file's name and front matter for a note."""
    return okf.note_snapshot(replace_surrogates(str(parse_item_data(item).get("source"))))


def _read_again(_db: apsw.Connection, item: Row, raw: Path) -> str | None:
    """Read the text of an item from its raw file or row again; None if it has none now. The index is not used."""
    try:
        return read_item_text(item, raw).text
    except NoText:
        return None


def _read_stored(db: apsw.Connection, content_hash: str) -> str | None:
    """Read the text with this hash from the open index; None if it is missing or not text."""
    text: Any = db.execute("SELECT text FROM content WHERE content_hash = ?", (content_hash,)).get
    return text if isinstance(text, str) else None


_MATERIALS = f"SELECT material_id, relative_path FROM material WHERE {detect.HAS_CONTENT} OR {detect.HAS_UNITS}"
_NO_UNITS = f"""SELECT material_id, relative_path, c.content_hash, c.text
  FROM material JOIN content c ON c.content_hash = material.current_content_hash
 WHERE {detect.MATERIAL_WITHOUT_UNITS.condition}"""
#: Limits: occurrences of a body in one text that are tried, and tries in total.
_MOST_PLACES = 20
_MOST_TRIES = 2_000_000
_ORPHANS = f"""SELECT target_id, text, created_at FROM search_text
  WHERE target_type = 'search_unit' AND kind = 'body' AND typeof(text) = 'text' AND typeof(target_id) = 'text'
    AND {detect.ORPHAN_BODY.condition} ORDER BY rowid"""
_TEXTS = """SELECT m.material_id, c.content_hash, CAST(c.text AS BLOB) FROM material m
  JOIN content c ON c.content_hash = m.current_content_hash WHERE typeof(m.material_id) = 'text' ORDER BY m.rowid"""
_NUMBERS = "SELECT unit_index FROM search_unit WHERE material_id = ? AND unit_type = 'chunk'"


class LostUnit(NamedTuple):
    """A missing unit: the columns of its row, as its body and its material prove them."""

    unit: str
    material: str
    content: str
    number: int
    start: int
    end: int
    created_at: int


def find_lost_units(db: apsw.Connection) -> tuple[list[LostUnit], int]:
    """Find units that are missing from an open index, but whose rows follow from their bodies.

    Returns:
        The units, and the number of bodies that have no unit and from which none can be derived.

    Raises:
        apsw.Error: the index is damaged.
    """
    orphans = {str(target): (str(text), created_at) for target, text, created_at in db.execute(_ORPHANS)}
    found: list[LostUnit] = []
    tries = _MOST_TRIES
    if not orphans:
        return [], 0
    for material, content, raw in db.execute(_TEXTS):
        try:
            text = raw.decode("utf-8", "surrogatepass") if isinstance(raw, bytes) else ""
        except UnicodeDecodeError:
            # A damaged text proves nothing.
            continue
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


def _find_number(unit: str, material: str, content: str, numbers: list[int], span: tuple[int, int]) -> int | None:
    """Return the one of ``numbers`` with which ``unit`` is the id of a unit of this material at this span, or None.

    ``content`` is the hash of the material's text.
    """
    ids = ((number, identity.unit_id(material, content, number, *span)) for number in numbers)
    return next((number for number, unit_id in ids if unit_id == unit), None)


def _find_missing_numbers(db: apsw.Connection, material: str, extra: int) -> list[int]:
    """Return the numbers that missing units of a material can have: gaps, and ``extra`` numbers after the last."""
    there = {number for (number,) in db.execute(_NUMBERS, (material,)) if isinstance(number, int)}
    highest = max(there, default=-1) + extra
    return [number for number in range(highest + 1) if number not in there]


def _find_offsets(text: str, body: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each occurrence of a body in a text, in UTF-16 units."""
    at = text.find(body)
    width = _count_utf16(body)
    while at >= 0:
        start = _count_utf16(text[:at])
        yield start, start + width
        at = text.find(body, at + 1)


def _count_utf16(text: str) -> int:
    """Return the length of a text in UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
