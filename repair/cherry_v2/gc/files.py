"""Files that no item names, and folders of bases that no row of the catalog names: they go to the trash."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import msgspec

from checks.cherry_v2 import audit as checked
from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import raw_files
from regraft import long_paths, sqlite
from regraft.formats.cherry_preview.libsql import Layout
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, base_key
from regraft.formats.cherry_v2.item_data import data_of
from regraft.formats.cherry_v2.layout import RAW_FOLDER
from regraft.language import tr
from regraft.text import counted, path_text, shown
from repair.changes.plan import Plan, Unresolved
from repair.changes.store import Store
from repair.changes.trash import trashed
from repair.cherry_v2.gc.choice import is_wanted
from repair.cherry_v2.gc.copies import Copies
from repair.cherry_v2.protection import Protection
from repair.options import GcOptions

#: Tables of an index that hold texts and vectors, and what they belong to.
_HOLDING = ("material", "content", "search_unit", "search_text", "embedding")


def plan_raw(
    store: Store,
    catalog: StoredCatalog | None,
    options: GcOptions,
    damaged: set[str | None],
    protection: Protection,
) -> Plan:
    """Return what moves the files below ``raw/`` that no item names; without a table of items, nobody can tell.

    A file of which no other copy is known goes only where the finding is named.
    """
    made = Plan()
    if catalog is None or catalog.items is None or not is_wanted(options, v2.RAW_ORPHAN):
        return made
    items = _by_base(catalog)
    for row in catalog.bases:
        base = base_key(row)
        if store.wants(base) and base not in damaged and isinstance(row.get("id"), str):
            raw = _RawFiles(store=store, base=base, items=items.get(base, []), options=options, protection=protection)
            made.add(raw.plan(_raw_folder(store, base, row)))
    return made


def _by_base(catalog: StoredCatalog) -> dict[str, list[Row]]:
    return {str(base): rows for base, rows in (catalog.items or {}).items()}


def why_kept(store: Store, path: Path) -> str | None:
    """Return why a file or folder is not moved, None where nothing speaks against it."""
    try:
        path.relative_to(store.root).as_posix().encode()
        if path.is_symlink():
            return tr("it is a link, and links are not followed")
        if _youngest(path) > store.now_ms / 1000 - raw_files.YOUNG:
            return tr("something in it is younger than an hour") if path.is_dir() else tr("it is younger than an hour")
    except UnicodeEncodeError:
        return tr("its name is not UTF-8")
    except OSError as error:
        return tr("it cannot be looked into: {strerror}", strerror=error.strerror)
    return None


def _youngest(path: Path) -> float:
    """Return the latest time of change of a file, or of a folder and all in it."""

    def fail(error: OSError) -> None:
        raise error

    latest = path.lstat().st_mtime
    if not path.is_dir():
        return latest
    for folder, folders, names in long_paths.walk(path, fail):
        latest = max(latest, *(long_paths.lstat(Path(folder, name)).st_mtime for name in (*folders, *names)), 0)
    return latest


# --- raw files -------------------------------------------------------------------------------------------------------


class _RawFiles(msgspec.Struct, kw_only=True):
    """The raw files of one base."""

    store: Store
    base: str
    items: list[Row]
    options: GcOptions
    protection: Protection

    def plan(self, raw: Path | None) -> Plan:
        """Return what moves the files that no item names."""
        made = Plan()
        names = []
        if raw is not None and raw.is_dir():
            names = sorted(raw_files.orphans(raw, self.items, self.store.now_ms))
        if raw is None or not names:
            return made
        why_not = _why_unknown(raw, self.items) or self.protection.reason(self.base)
        if why_not is not None:
            reason = tr("{files} in raw/: {reason}", files=counted(len(names), "file"), reason=why_not)
            return Plan(left=[Unresolved(finding=v2.RAW_ORPHAN, reason=reason, base=self.base, count=len(names))])
        why = _named_otherwise(self.store, self.base, self.items)
        copies = Copies(self.store, self.base, self.items, raw)
        is_named = v2.RAW_ORPHAN in self.options.only
        for name in names:
            kept = why(name) or why_kept(self.store, raw / name)
            copy = None if is_named or kept is not None else copies.of(name)
            if kept is None and not is_named and copy is None:
                kept = tr("kept: no other copy of it is known; --only {name} removes it", name=v2.RAW_ORPHAN)
            if kept is not None:
                reason = f"raw/{shown(name)}: {kept}"
                left = Unresolved(finding=v2.RAW_ORPHAN, reason=reason, base=self.base, subject=path_text(name))
                made.left.append(left)
            else:
                message = tr("move raw/{name}, which no item names, to the trash", name=name)
                if copy is not None:
                    message = tr("{message_}: {copy} is the same", message_=message, copy=copy)
                made.changes.append(trashed(self.store, raw / name, "trash-file", v2.RAW_ORPHAN, message, self.base))
        if not made.left:
            made.resolves.add((v2.RAW_ORPHAN, self.base))
        return made


def _raw_folder(store: Store, base: str, row: Row) -> Path | None:
    """Return where a base's raw files are; None where its index is missing, so that it is not whole itself."""
    known = store.stores.get(base)
    if known is not None:
        return store.root / known.raw
    if not store.found.stores.is_whole or row.get("status") == "completed" or not checked.is_name(base):
        return None
    return store.root / store.bases / base / RAW_FOLDER


def _why_unknown(raw: Path, items: list[Row]) -> str | None:
    """Return why nobody can tell which files items name, None where that is known."""
    if raw.is_symlink() or raw.parent.is_symlink():
        return tr("the folder is a link, and links are not followed")
    for item in items:
        data = data_of(item)
        paths = (data.get(key) for key in ("relativePath", "indexedRelativePath"))
        if not data or any(not isinstance(path, str | None) for path in paths):
            return tr("what item {get} names cannot be read", get=item.get("id"))
    return None


def _named_otherwise(store: Store, base: str, items: list[Row]) -> Callable[[str], str | None]:
    """Return what tells why a file that no item names may be meant all the same."""
    known: set[str] = set()
    folders: tuple[str, ...] = ()
    for item in items:
        data = data_of(item)
        known |= {_folded(data[key]) for key in ("relativePath", "indexedRelativePath") if data.get(key)}
        if item.get("type") == "directory" and data.get("relativePath"):
            folders += (_folded(data["relativePath"]).rstrip("/") + "/",)
    indexed = {_folded(path) for path in _indexed(store, base, {str(item.get("id")) for item in items})}

    def why(name: str) -> str | None:
        folded = _folded(name)
        if folded in known or folded.startswith(folders):
            return tr("an item names it but for letter case or Unicode normalisation")
        return (
            tr("the index names it for an item that names another path: reconcile first") if folded in indexed else None
        )

    return why


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _indexed(store: Store, base: str, items: set[str]) -> Iterator[str]:
    """Return the paths of the materials of these items."""
    known = store.stores.get(base)
    if known is None:
        return
    with sqlite.reading(store.root / known.name) as db:
        for key, path in db.execute("SELECT CAST(material_id AS BLOB), CAST(relative_path AS BLOB) FROM material"):
            if (key or b"").decode("utf-8", "replace") in items:
                yield (path or b"").decode("utf-8", "replace")


# --- folders ---------------------------------------------------------------------------------------------------------


def plan_folders(store: Store, catalog: StoredCatalog | None, options: GcOptions) -> tuple[Plan, set[str]]:
    """Return what moves the folders of bases that no row of the catalog names, and the names of these."""
    made, gone = Plan(), set[str]()
    if catalog is None or not is_wanted(options, v2.INDEX_ORPHAN) or not store.found.stores.is_whole:
        return made, gone
    found, items = list(_unnamed(store, catalog)), _by_base(catalog)
    for path in found:
        if not store.wants(path.name):
            continue
        kept = _why_claimed(items.get(path.name)) or why_kept(store, path)
        if kept is None and v2.INDEX_ORPHAN not in options.only and _holds_anything(store, path):
            kept = tr("kept: it can be listed again; --only {name} removes it", name=v2.INDEX_ORPHAN)
        if kept is not None:
            reason = tr("the folder {name} stays: {kept}", name=shown(path.name), kept=kept)
            made.left.append(Unresolved(finding=v2.INDEX_ORPHAN, reason=reason, subject=path_text(path.name)))
        else:
            message = tr("move the folder {name}, which no row of the catalog names, to the trash", name=path.name)
            made.changes.append(trashed(store, path, "trash-folder", v2.INDEX_ORPHAN, message))
            gone.add(path.name)
    if gone and len(gone) == len(found):
        made.resolves.add((v2.INDEX_ORPHAN, None))
    return made, gone


def _unnamed(store: Store, catalog: StoredCatalog) -> Iterator[Path]:
    """Yield the folders of bases that no row names; without a table of items, nobody can tell."""
    if catalog.items is None:
        return
    named = {base_key(row) for row in catalog.bases}
    strays = checked.strays(store.root / store.bases, named, store.stores)
    yield from (path for finding, path in strays if finding == v2.INDEX_ORPHAN)


def _why_claimed(items: list[Row] | None) -> str | None:
    """Return why a folder may be of a base all the same: it has ``items``."""
    if items is None:
        return None
    return tr("{items} of the catalog still belong to it", items=counted(len(items), "item"))


def _holds_anything(store: Store, path: Path) -> bool:
    """Whether a base's folder has a text, a vector or a file; what cannot be read counts as one."""
    one = store.stores.get(path.name)
    index = None if one is None else store.root / one.name
    own = set() if index is None else {index, *sqlite.companions(index)}
    has_files = any(file not in own for file in path.rglob("*") if file.is_symlink() or not file.is_dir())
    if has_files or one is None:
        return has_files
    return one.look.layout is not Layout.CURRENT or _has_rows(store.root / one.name)


def _has_rows(index: Path) -> bool:
    try:
        with sqlite.reading(index) as db:
            return any(db.execute(f"SELECT 1 FROM {table} LIMIT 1").get for table in _HOLDING)
    except (apsw.Error, OSError, UnicodeDecodeError):
        return True
