"""The base that is restored: its catalog rows and texts, and what its items become in the new base."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from checks.cherry_v2.catalog_rows import find_folder_problem
from regraft import identity
from regraft.disk import durable, file_paths, links, sqlite, untrusted_sqlite
from regraft.errors import NotRestored, WrongUsage
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2.catalog_reader import DATA_FIELDS, Row, StoredCatalog, base_id_text, find_data_problem
from regraft.formats.cherry_v2.index.opening import READ_ERRORS
from regraft.formats.cherry_v2.layout import DATA_FOLDER, INDEX_FILE, RAW_FOLDER
from regraft.identity import resolve_base
from regraft.language import join_list, to_english, tr
from regraft.stores.locate import KNOWLEDGE_FOLDER
from regraft.text import is_blank, path_text, printable
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import INTERRUPTED, demand_catalog, read_store_catalog
from repair.cherry_v2.donor_indexes import CONTENT_QUERY, UNITS_QUERY, OldIndex


class RestoreSource(msgspec.Struct, frozen=True, kw_only=True):
    """A base of a library or profile that is restored, with its items in catalog order (without their ``data``)."""

    store: Store
    catalog: StoredCatalog
    row: Row
    items: list[Row]

    @property
    def key(self) -> str:
        """The base's id."""
        return base_id_text(self.row)

    @property
    def catalog_path(self) -> Path:
        """Path of the catalog."""
        return self.store.root / str(self.store.catalog)

    def folder(self, base: str) -> str:
        """Return the folder of the base with this id, relative to the store's root."""
        inside = f"{DATA_FOLDER}/{KNOWLEDGE_FOLDER}" if self.store.is_profile else KNOWLEDGE_FOLDER
        return f"{self.store.bases or inside}/{base}"

    @property
    def raw(self) -> Path:
        """The base's folder of raw files."""
        return self.store.root / self.folder(self.key) / RAW_FOLDER

    @property
    def index(self) -> Path:
        """Path of the base's index, which may not exist."""
        one = self.store.stores.get(self.key)
        return self.store.root / (f"{self.folder(self.key)}/{INDEX_FILE}" if one is None else one.name)

    def mark(self) -> str:
        """Hash the base's catalog rows, and the sizes and times of its files, to recognize later changes."""
        digest = hashlib.sha256()
        with sqlite.open_readonly(self.catalog_path) as db:
            for table, key in (("knowledge_base", "id"), ("knowledge_item", "base_id")):
                columns = untrusted_sqlite.list_columns(db, table)
                for row in untrusted_sqlite.read_lenient_rows(
                    db, columns, f"{table} WHERE {key} = ? ORDER BY rowid", (self.key,)
                ):
                    digest.update(repr(row).encode("utf-8", "replace"))
        files = [
            self.index,
            *(untrusted_sqlite.find_companions(links.real_path(self.index)) if self.index.exists() else ()),
        ]
        for file in (*files, *_walk_files(self.raw)):
            with suppress(OSError):
                status = file.stat()
                name = path_text(os.path.relpath(file, self.store.root))
                digest.update(repr((name, status.st_size, status.st_mtime_ns)).encode())
        return digest.hexdigest()


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a directory in a fixed order."""
    for place, folders, names in file_paths.walk(folder, durable.raise_unless_missing):
        folders.sort()
        yield from (Path(place) / name for name in sorted(names))


def read_source(store: Store, wanted: str | None) -> RestoreSource:
    """Find the base to restore by its id, or the id that it had in v1; None: the store's only base.

    Raises:
        NotChanged: there is no catalog, which describes the base.
        SourceUnreadable: the catalog cannot be read.
        BaseUnknown, WrongUsage: no base has the id, or several bases exist and none was chosen.
        NotRestored: its texts are in the table of a preview build.
    """
    demand_catalog(store, "restore")
    catalog = read_store_catalog(store, data=False)
    rows = catalog.rows_by_base
    key = _choose_base(store, rows, wanted)
    one = store.stores.get(key)
    if one is not None and one.look.layout is IndexLayout.PREVIEW:
        reason = tr("its texts are in the layout of a preview build; run regraft upgrade first")
        raise NotRestored(path=store.path, base=key, reason=reason)
    return RestoreSource(
        store=store,
        catalog=catalog,
        row=rows[key],
        items=catalog.items_of(key),
    )


def _choose_base(store: Store, rows: dict[str, Row], wanted: str | None) -> str:
    """Return the id of the base that the user named by id, name or prefix; without a name (None), of the only base.

    ``rows`` are the base rows by id.
    """
    if wanted is None and len(rows) == 1:
        return next(iter(rows))
    if wanted is None:
        if not rows:
            raise WrongUsage(
                problem=tr("{path} has no bases", path=printable(store.path)), hint=tr("see regraft inspect")
            )
        problem = tr("{path} has {rows} bases", path=printable(store.path), rows=len(rows))
        raise WrongUsage(problem=problem, hint=tr("use --base with one of {rows}", rows=join_list(rows)))
    return resolve_base(wanted, {base: str(row.get("name")) for base, row in rows.items()})


# --- texts -----------------------------------------------------------------------------------------------------------


@contextmanager
def open_old_index(source: RestoreSource) -> Iterator[OldIndex]:
    """Open the index of the base that is restored; if it is missing or unreadable, it has no texts."""
    with ExitStack() as stack:
        db, problem = None, None
        if source.index.exists():
            try:
                db = stack.enter_context(sqlite.open_readonly(source.index))
                db.execute(f"{CONTENT_QUERY} LIMIT 0", ("",))
                db.execute(f"{UNITS_QUERY} LIMIT 0", ("",))
            except READ_ERRORS as error:
                db, problem = None, str(error)
        yield OldIndex(db, problem)


# --- items -----------------------------------------------------------------------------------------------------------


class ItemCopy(msgspec.Struct, frozen=True):
    """An item of the new base: its old id and new id, the id of its new folder, and the changed columns of its row."""

    old: str
    id: str
    group: str | None
    status: str
    error: str | None
    #: The path of its indexed text; None if it is unchanged.
    path: str | None = None


class RestoredItem(msgspec.Struct):
    """A file, URL or note to restore: its row, its new id, why it has no text (None: it has one), and its new path."""

    row: Row
    id: str
    missing: str | None = None
    path: str | None = None


def new_item_id(base: str, row: Row) -> str:
    """Return the id that the item with this row gets in the new base ``base``."""
    created = row.get("created_at")
    return identity.restored_item_id(base, str(row.get("id")), created if isinstance(created, int) else None)


def item_problem(row: Row) -> str | None:
    """Return why the item with this row, which includes ``data``, cannot be copied to a new base, or None."""
    if not isinstance(row.get("id"), str):
        return tr("its id is not text")
    if row.get("type") not in DATA_FIELDS:
        return tr("its type is {type}", type=row.get("type"))
    return find_data_problem(row)


def is_being_deleted(row: Row) -> bool:
    """Whether the application is deleting the item."""
    return row.get("status") == "deleting" or row.get("deleted_at") is not None


def copy_items(base: str, rows: Iterable[Row], leaves: Mapping[str, RestoredItem]) -> list[ItemCopy]:
    """Make the items of the new base ``base``, in the order of the old rows.

    Args:
        base: the new base's id.
        rows: the rows of files, URLs, notes and folders.
        leaves: the files, URLs and notes, by their old ids.
    """
    by_id = {row["id"]: row for row in rows}
    groups: dict[Any, Any] = {}
    for key, row in by_id.items():
        group = row.get("group_id")
        groups[key] = None if group is None or find_folder_problem(row, by_id) is not None else group
    inside, with_text = set(groups.values()), _folders_with_text(groups, leaves)
    made = []
    for key, row in by_id.items():
        group, leaf = groups[key], leaves.get(key)
        status, error = _folder_status(row, key in inside, key in with_text) if leaf is None else _leaf_status(leaf)
        path = None if leaf is None else leaf.path
        above = None if group is None else new_item_id(base, by_id[group])
        made.append(ItemCopy(old=key, id=new_item_id(base, row), group=above, status=status, error=error, path=path))
    return made


def _folders_with_text(groups: Mapping[Any, Any], leaves: Mapping[str, RestoredItem]) -> set[Any]:
    """Return the ids of the folder items that contain a text at any depth; ``groups`` maps item ids to folder ids."""
    filled: set[Any] = set()
    for key, leaf in leaves.items():
        above = groups[key] if leaf.missing is None else None
        while above is not None and above not in filled:
            filled.add(above)
            above = groups[above]
    return filled


def _leaf_status(leaf: RestoredItem) -> tuple[str, str | None]:
    """Return the status of a file, URL or note in the new base, and its error if its text is missing."""
    if leaf.missing is None:
        return "completed", None
    status, error = leaf.row.get("status"), leaf.row.get("error")
    if status == "idle":
        return "idle", None
    return "failed", str(error) if status == "failed" and not is_blank(
        error
    ) else f"Not restored: {to_english(leaf.missing)}."


def _folder_status(row: Row, has_items: bool, has_text: bool) -> tuple[str, str | None]:
    """Return status and error that a folder item gets in the new base.

    ``has_items``: it contains items. ``has_text``: it contains a text at any depth.
    """
    status, error = row.get("status"), row.get("error")
    if status == "failed" and not has_text:
        return "failed", str(error) if not is_blank(error) else INTERRUPTED
    if has_items or status == "completed":
        return "completed", None
    return ("idle", None) if status == "idle" else ("failed", INTERRUPTED)


class RestoredBase(msgspec.Struct, frozen=True):
    """The wanted base: its model (``provider::model``), its vectors' dimensions, and its name (None: the old name)."""

    model_id: str
    dimensions: int
    name: str | None = None

    def base_id(self, old: str) -> str:
        """Return the id of the base that is made from the base ``old``; every run derives the same one."""
        return identity.restored_base_id(old, self.model_id, self.dimensions, self.name)
