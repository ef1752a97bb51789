"""The base that is restored: its rows in the catalog, and the texts that its index and its files have."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.cherry_v2.catalog_rows import find_folder_problem
from regraft import identity
from regraft.disk import durable, file_paths, links, sqlite, untrusted_sqlite
from regraft.errors import NotChanged, NotRestored, UnitRefused, WrongUsage
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2.catalog_reader import DATA_FIELDS, Row, base_id_text, find_data_problem
from regraft.formats.cherry_v2.index.opening import READ_ERRORS
from regraft.formats.cherry_v2.index.schema import cut_units
from regraft.formats.cherry_v2.layout import DATA_FOLDER, INDEX_FILE, RAW_FOLDER
from regraft.identity import resolve_base
from regraft.kinds import KIND_NAMES
from regraft.language import join_list, to_english, tr
from regraft.stores.locate import KNOWLEDGE_FOLDER
from regraft.text import decode_utf8, is_blank, path_text, printable
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import read_store_catalog
from repair.cherry_v2.item_texts import Span
from repair.cherry_v2.rules.catalog import INTERRUPTED


class RestoreSource(msgspec.Struct, frozen=True, kw_only=True):
    """A base of a library or profile, with its items (without what they hold) in their order."""

    store: Store
    row: Row
    items: list[Row]
    #: Ids of all bases, of all models, and of those providers that are there; None where there is no such table.
    bases: frozenset[str]
    models: dict[Any, Row]
    providers: frozenset[Any]

    @property
    def key(self) -> str:
        """Return the base's id."""
        return base_id_text(self.row)

    @property
    def catalog(self) -> Path:
        """Return where the catalog is."""
        return self.store.root / str(self.store.catalog)

    def folder(self, base: str) -> str:
        """Return where the folder of a base is, below the store's root."""
        inside = f"{DATA_FOLDER}/{KNOWLEDGE_FOLDER}" if self.store.is_profile else KNOWLEDGE_FOLDER
        return f"{self.store.bases or inside}/{base}"

    @property
    def raw(self) -> Path:
        """Return the folder of its raw files."""
        return self.store.root / self.folder(self.key) / RAW_FOLDER

    @property
    def index(self) -> Path:
        """Return where its index is, if it has one."""
        one = self.store.stores.get(self.key)
        return self.store.root / (f"{self.folder(self.key)}/{INDEX_FILE}" if one is None else one.name)

    def mark(self) -> str:
        """Return what tells whether anything of it was changed since: a hash of its rows, and of its files' times."""
        digest = hashlib.sha256()
        with sqlite.open_readonly(self.catalog) as db:
            for table, key in (("knowledge_base", "id"), ("knowledge_item", "base_id")):
                columns = [str(row[1]) for row in db.execute(f"PRAGMA table_info('{table}')")]
                for row in untrusted_sqlite.read_lenient_rows(
                    db, columns, f"{table} WHERE {key} = ? ORDER BY rowid", (self.key,)
                ):
                    digest.update(repr(row).encode("utf-8", "replace"))
        files = [
            self.index,
            *(untrusted_sqlite.find_companions(links.real_path(self.index)) if self.index.exists() else ()),
        ]
        for file in (*files, *_files(self.raw)):
            with suppress(OSError):
                status = file.stat()
                name = path_text(os.path.relpath(file, self.store.root))
                digest.update(repr((name, status.st_size, status.st_mtime_ns)).encode())
        return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in file_paths.walk(folder, durable.raise_unless_missing):
        folders.sort()
        yield from (Path(place) / name for name in sorted(names))


def read_source(store: Store, wanted: str | None) -> RestoreSource:
    """Find the base that is meant; ``wanted`` is its id in v2, or the one that it had in v1.

    Raises:
        NotChanged: there is no catalog, which says what the base is.
        SourceUnreadable: the catalog cannot be read.
        BaseUnknown, WrongUsage: no base of the id is there, or it is not said which one of several is meant.
        NotRestored: its texts are in the table of a preview build.
    """
    if store.catalog is None:
        what, advice = (
            tr("{names} without a catalog", names=KIND_NAMES[store.found.kind]),
            tr("give the library or profile that it is of"),
        )
        raise NotChanged(path=store.path, what=what, command="restore", advice=advice)
    catalog = read_store_catalog(store, data=False)
    rows = {base_id_text(row): row for row in catalog.bases}
    key = _chosen(store, rows, wanted)
    one = store.stores.get(key)
    if one is not None and one.look.layout is IndexLayout.PREVIEW:
        reason = tr(
            "its texts are in the table of a preview build; regraft upgrade brings them to the current layout first"
        )
        raise NotRestored(path=store.path, base=key, reason=reason)
    return RestoreSource(
        store=store,
        row=rows[key],
        items=(catalog.items or {}).get(key, []),
        bases=frozenset(rows),
        models={row.get("id"): row for row in catalog.models or ()},
        providers=frozenset(row.get("provider_id") for row in catalog.providers or ()),
    )


def _chosen(store: Store, rows: dict[str, Row], wanted: str | None) -> str:
    if wanted is None and len(rows) == 1:
        return next(iter(rows))
    if wanted is None:
        problem = tr("{path} has {rows} bases", path=printable(store.path), rows=len(rows))
        raise WrongUsage(problem=problem, hint=tr("give --base, one of {rows}", rows=join_list(rows)))
    return resolve_base(wanted, {base: str(row.get("name")) for base, row in rows.items()})


# --- texts -----------------------------------------------------------------------------------------------------------

#: Texts as bytes: the application stores halves of surrogate pairs, which are no UTF-8.
_UNITS = """SELECT u.char_start, u.char_end, CASE typeof(t.text) WHEN 'text' THEN CAST(t.text AS BLOB) END
  FROM search_unit u
  CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id AND t.kind = 'body'
 WHERE u.material_id = ? ORDER BY u.unit_index, u.unit_id"""
_CONTENT = """SELECT c.content_hash, CASE typeof(c.text) WHEN 'text' THEN CAST(c.text AS BLOB) END
  FROM material m JOIN content c ON c.content_hash = m.current_content_hash
 WHERE m.material_id = ?"""


class OldText(msgspec.Struct, frozen=True):
    """A text of an index, and where its units begin and end (None: not as they are stored)."""

    text: str
    spans: list[Span] | None
    #: Whether it is what its hash says.
    is_right: bool


class OldIndex:
    """The index of the base that is restored, as far as it can be read; what cannot is not there."""

    def __init__(self, db: apsw.Connection | None, problem: str | None) -> None:
        self._db = db
        #: Why it cannot be read, or not all of it; None where it can.
        self.problem = problem

    def text(self, item: str) -> OldText | None:
        """Return the text of an item; None where there is none."""
        if self._db is None:
            return None
        try:
            key, text = next(self._db.execute(_CONTENT, (item,)), (None, None))
            units = self._db.execute(_UNITS, (item,)).fetchall()
        except READ_ERRORS as error:
            self.problem = str(error)
            return None
        text = None if text is None else decode_utf8(text)
        if text is None or is_blank(text):
            return None
        return OldText(text, _proven(text, units), identity.text_hash(text) == key)


def _proven(text: str, units: list[Any]) -> list[Span] | None:
    try:
        spans = [(int(start), int(end)) for start, end, _ in units]
        bodies = [unit.text for unit in cut_units("", text, spans)]
    except (UnitRefused, TypeError, ValueError):
        return None
    return spans if spans and bodies == [None if body is None else decode_utf8(body) for _, _, body in units] else None


@contextmanager
def open_old_index(source: RestoreSource) -> Iterator[OldIndex]:
    """Open the index of the base that is restored, if it has one that can be read."""
    with ExitStack() as stack:
        db, problem = None, None
        if source.index.exists():
            try:
                db = stack.enter_context(sqlite.open_readonly(source.index))
                db.execute(f"{_CONTENT} LIMIT 0", ("",))
                db.execute(f"{_UNITS} LIMIT 0", ("",))
            except READ_ERRORS as error:
                db, problem = None, str(error)
        yield OldIndex(db, problem)


# What becomes of the items of a base that is restored: their ids, folders, paths and statuses.


class ItemCopy(msgspec.Struct, frozen=True):
    """An item as it comes into the new base: the ids that it had and gets, and what of its row is another now."""

    old: str
    id: str
    group: str | None
    status: str
    error: str | None
    #: The path of what is indexed of it; None where that stays as it is.
    path: str | None = None


class RestoredItem(msgspec.Struct):
    """A file, url or note while it is looked at: what it is called anew, and why it has no text (None: it has)."""

    row: Row
    id: str
    missing: str | None = None
    path: str | None = None


def new_item_id(base: str, row: Row) -> str:
    """Return the id that an item gets in the new base ``base``."""
    created = row.get("created_at")
    return identity.restored_item_id(base, str(row.get("id")), created if isinstance(created, int) else None)


def item_problem(row: Row) -> str | None:
    """Return what keeps an item from being copied; None where nothing does. Its row has what it holds."""
    if not isinstance(row.get("id"), str):
        return tr("its id is not text")
    if row.get("type") not in DATA_FIELDS:
        return tr("its type is {get}", get=row.get("type"))
    return find_data_problem(row)


def is_being_deleted(row: Row) -> bool:
    """Tell whether an item is being deleted."""
    return row.get("status") == "deleting" or row.get("deleted_at") is not None


def copy_items(base: str, rows: Iterable[Row], leaves: Mapping[str, RestoredItem]) -> list[ItemCopy]:
    """Return the items of the new base ``base``: of all rows that are copied, in their order.

    Args:
        base: its id.
        rows: the rows of files, urls, notes and folders.
        leaves: what is known of all that are no folders, by the ids that they had.
    """
    by_id = {row["id"]: row for row in rows}
    groups = {key: _folder(row, by_id) for key, row in by_id.items()}
    inside, filled = set(groups.values()), _filled(groups, leaves)
    made = []
    for key, row in by_id.items():
        group, leaf = groups[key], leaves.get(key)
        status, error = _folder_status(row, key in inside, key in filled) if leaf is None else _leaf_status(leaf)
        path = None if leaf is None else leaf.path
        above = None if group is None else new_item_id(base, by_id[group])
        made.append(ItemCopy(old=key, id=new_item_id(base, row), group=above, status=status, error=error, path=path))
    return made


def _filled(groups: Mapping[Any, Any], leaves: Mapping[str, RestoredItem]) -> set[Any]:
    """Return the ids of the folders that have a text in them, at any depth."""
    filled: set[Any] = set()
    for key, leaf in leaves.items():
        above = groups[key] if leaf.missing is None else None
        while above is not None and above not in filled:
            filled.add(above)
            above = groups[above]
    return filled


def _folder(row: Row, by_id: Mapping[Any, Row]) -> Any:
    """Return the id of the folder that an item is in; None where it is in none that there is."""
    group = row.get("group_id")
    return None if group is None or find_folder_problem(row, by_id) is not None else group


def _leaf_status(leaf: RestoredItem) -> tuple[str, str | None]:
    if leaf.missing is None:
        return "completed", None
    status, error = leaf.row.get("status"), leaf.row.get("error")
    if status == "idle":
        return "idle", None
    return "failed", str(error) if status == "failed" and not is_blank(
        error
    ) else f"Not restored: {to_english(leaf.missing)}."


def _folder_status(row: Row, has_items: bool, has_text: bool) -> tuple[str, str | None]:
    status, error = row.get("status"), row.get("error")
    if status == "failed" and not has_text:
        return "failed", str(error) if not is_blank(error) else INTERRUPTED
    if has_items or status == "completed":
        return "completed", None
    return ("idle", None) if status == "idle" else ("failed", INTERRUPTED)


# What a base is to become: with which model, and under which name.


class RestoredBase(msgspec.Struct, frozen=True):
    """The model of the new base (``provider::model``), the length of its vectors, and its name (None: the old one)."""

    model_id: str
    dimensions: int
    name: str | None = None

    def base_id(self, old: str) -> str:
        """Return the id that a base gets: a second run finds what the first one began."""
        return identity.restored_base_id(old, self.model_id, self.dimensions, self.name)
