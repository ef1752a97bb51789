"""Read the folder of a base that has no row in the catalog, and derive the rows of the base and its items.

Identity, materials and vectors come from the index; items without material from the files below ``raw/``
(``docs/findings.md``, "Adopting").
"""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import apsw
import msgspec

from checks.audit.findings import Finding
from checks.cherry_v2 import audit
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.raw_files import find_path_problem, walk_files
from regraft import identity
from regraft.disk import file_paths, sqlite, untrusted_sqlite
from regraft.disk.file_paths import PROCESSED_EXTENSIONS
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, dump_item_data, parse_item_data
from regraft.formats.cherry_v2.settings import Settings
from regraft.language import format_count, join_list, tr
from regraft.report.notices import MISSING_MODEL
from regraft.text import decode_utf8, is_blank, replace_surrogates, utf16_cut
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import INTERRUPTED
from repair.cherry_v2.evidence import DAMAGE, Evidence, Snapshot

#: Bodies without a vector, by their material.
_BARE = """SELECT CAST(u.material_id AS BLOB), count(*)
  FROM search_unit u
  CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id AND t.kind = 'body'
 WHERE NOT EXISTS (SELECT 1 FROM embedding e WHERE e.embedding_text_hash = t.embedding_text_hash)
 GROUP BY 1"""
_LENGTHS = "SELECT DISTINCT length(vector_blob) FROM embedding LIMIT 2"


def find_unnamed_folders(store: Store, catalog: StoredCatalog) -> Iterator[Path]:
    """Yield the folders in a store that have the form of a base and that no row of its catalog names."""
    strays = audit.find_strays(store.root / store.bases, catalog.rows_by_base, store.stores)
    return (path for finding, path in strays if finding == v2.INDEX_ORPHAN)


class FolderUnusable(Exception):
    """A folder or index from which no rows can be derived; the text says why."""


class FoundMaterial(msgspec.Struct, frozen=True, kw_only=True):
    """A material of an index: the id of its item, its path below ``raw/``, and its times in ms."""

    item: str
    path: str
    created_at: int
    updated_at: int


class OrphanFolder(msgspec.Struct, frozen=True, kw_only=True):
    """What the folder of a base without a row contains: materials of its index, vectors, and raw files.

    Times are in ms.
    """

    base: str
    created_at: int
    updated_at: int
    materials: list[FoundMaterial]
    #: Dimensions of the vectors; None without vectors, or if their lengths differ.
    dimensions: int | None
    #: Whether vectors have different lengths.
    is_mixed: bool = False
    #: Number of bodies without a vector, by item.
    bare: dict[str, int]
    #: Files below ``raw/`` with modification times (ms).
    files: dict[str, int] = msgspec.field(default_factory=dict)

    def is_whole(self, item: str) -> bool:
        """Whether every body of the item with this id has its vector, or the base has no vectors at all."""
        return (self.dimensions is None and not self.is_mixed) or not self.bare.get(item)


def read_folder(base: str, index: Path, raw: Path) -> OrphanFolder:
    """Read the folder of a base that has no row in the catalog.

    Args:
        base: the name of the folder, which is the base's id.
        index: its index, which an audit found intact.
        raw: its folder of raw files, which may not exist.

    Raises:
        FolderUnusable: the index belongs to another base, or lacks required values.
        apsw.Error, OSError, UnicodeDecodeError: the index cannot be read.
    """
    with sqlite.open_readonly(index) as db:
        row: Any = db.execute("SELECT base_id, created_at, updated_at FROM meta").fetchone()
        if row is None:
            raise FolderUnusable(tr("its index has no identity row"))
        if row[0] != base:
            raise FolderUnusable(tr("its index belongs to base {other}", other=row[0]))
        dimensions, is_mixed = _dimensions([one for (one,) in db.execute(_LENGTHS)])
        return OrphanFolder(
            base=base,
            created_at=row[1],
            updated_at=row[2],
            materials=list(_read_materials(db)),
            dimensions=dimensions,
            is_mixed=is_mixed,
            bare={decode_utf8(key): int(str(count)) for key, count in db.execute(_BARE) if isinstance(key, bytes)},
            files=dict(_files(raw)),
        )


def _dimensions(lengths: list[Any]) -> tuple[int | None, bool]:
    """Return the dimensions of vectors with these byte lengths (None: unknown), and whether the lengths differ."""
    if len(lengths) > 1 or any(not isinstance(one, int) or one <= 0 or one % 4 for one in lengths):
        return None, True
    return next((length // 4 for length in lengths), None), False


def demand_one_length(folder: OrphanFolder) -> None:
    """Check that all vectors in a base's folder have the same length.

    Raises:
        FolderUnusable
    """
    if folder.is_mixed:
        raise FolderUnusable(tr("its vectors have different lengths"))


def _read_materials(db: apsw.Connection) -> Iterator[FoundMaterial]:
    """Yield the materials of an open index."""
    for item, path, created_at, updated_at in untrusted_sqlite.read_lenient_rows(
        db, ("material_id", "relative_path", "created_at", "updated_at"), "material ORDER BY rowid"
    ):
        if not isinstance(item, str) or not item or not isinstance(path, str):
            raise FolderUnusable(tr("a material in its index has no id or no path"))
        yield FoundMaterial(item=item, path=path, created_at=int(created_at), updated_at=int(updated_at))


def _files(raw: Path) -> Iterator[tuple[str, int]]:
    """Yield the paths below ``raw`` of files with the times of their last change (ms).

    Links and hidden files are left out.
    """
    for name, changed_at in walk_files(raw):
        with suppress(OSError):
            is_hidden = any(part.startswith(".") for part in name.split("/"))
            if not is_hidden and stat.S_ISREG(file_paths.lstat(raw / name).st_mode):
                yield name, int(changed_at * 1000)


# --- checking the index ----------------------------------------------------------------------------------------------

#: Findings that the missing rows themselves cause.
_BY_ROWS = {v2.VECTOR_MISSING, v2.ITEM_NO_BASE}
#: Findings of the catalog's own rows, which say nothing of the index.
_OF_CATALOG = ("base.", "item.", "catalog.", "model.")


def demand_readable_index(index_layout: IndexLayout, findings: Iterable[Finding]) -> None:
    """Check the layout of an index, and that no finding says that it is unreadable or belongs to another base.

    Raises:
        FolderUnusable
    """
    if index_layout is not IndexLayout.CURRENT:
        raise FolderUnusable(tr("its index has an older layout; run regraft upgrade first"))
    _demand_none(findings, lambda one: one.name in DAMAGE | {v2.META_MISSING})


def demand_sound_index(findings: Iterable[Finding]) -> None:
    """Check that no finding of the audit is an error in the index that would affect a search of the base.

    Raises:
        FolderUnusable
    """
    _demand_none(
        findings,
        lambda one: one.severity == "error" and one.name not in _BY_ROWS and not one.name.startswith(_OF_CATALOG),
    )


def _demand_none(findings: Iterable[Finding], is_wrong: Callable[[Finding], bool]) -> None:
    """Raise FolderUnusable if any of the audit's findings is one for which ``is_wrong`` is true."""
    wrong = Counter[str]()
    is_repairable = False
    for finding in filter(is_wrong, findings):
        wrong[finding.name] += finding.count
        is_repairable |= not finding.is_beyond_repair and finding.name != v2.META_BASE
    if wrong:
        listed = join_list(f"{name} ({count:,})" for name, count in wrong.items())
        if not is_repairable:
            raise FolderUnusable(tr("its index has errors that no command repairs ({listed})", listed=listed))
        raise FolderUnusable(tr("its index has errors ({listed}); run regraft repair first", listed=listed))


# --- deriving rows ---------------------------------------------------------------------------------------------------

#: What the block of every snapshot has, so that no other Markdown file is taken for one.
_BLOCK_FIELDS = {"type", "title", "timestamp"}
#: What a person calls the items of each type.
_NOUNS = {"directory": "folder", "file": "file", "url": "url", "note": "note"}
_NUMBERED = re.compile(r"_\d+$")
_ABSOLUTE = re.compile(r"/|\\\\|[A-Za-z]:[/\\]")


class ListedFolder(msgspec.Struct, frozen=True):
    """A folder item of the catalog: its id, and the path of the original folder, if known."""

    item: str
    source: str | None = None

    def source_of(self, rest: str) -> str | None:
        """Return the path of the original of a file at the path ``rest`` in the folder.

        None if the folder's path is not absolute, or if the file name may have got a number to make it unique.
        """
        if self.source is None or _ABSOLUTE.match(self.source) is None or _NUMBERED.search(PurePosixPath(rest).stem):
            return None
        separator = "\\" if "\\" in self.source and "/" not in self.source else "/"
        return f"{self.source.rstrip(separator)}{separator}{rest.replace('/', separator)}"


def make_base_row(folder: OrphanFolder, items: list[Row], model: str | None) -> Row:
    """Derive the catalog row of a base from its folder and its new item rows; ``model`` is what the user named, if any.

    A base with vectors of an unknown model is inserted as failed.
    """
    settings = Settings()
    is_failed = model is None and folder.dimensions is not None
    return {
        "id": folder.base,
        "name": _name(folder, items),
        "dimensions": folder.dimensions,
        "embedding_model_id": model if folder.dimensions is not None else None,
        "status": "failed" if is_failed else "completed",
        "error": MISSING_MODEL if is_failed else None,
        "chunk_size": settings.chunk_size,
        "chunk_overlap": settings.chunk_overlap,
        "chunk_strategy": settings.chunk_strategy,
        "chunk_separator": settings.chunk_separator,
        "created_at": folder.created_at,
        "updated_at": folder.updated_at,
    }


def _name(folder: OrphanFolder, items: list[Row]) -> str:
    """Return the name for a base: that of its only folder item, else the base's id."""
    folders = [parse_item_data(item)["relativePath"] for item in items if item["type"] == "directory"]
    return folders[0] if len(folders) == 1 and not is_blank(folders[0]) else folder.base


def make_item_rows(folder: OrphanFolder, evidence: Evidence) -> Iterator[Row]:
    """Yield new rows for all items of a base: materials in order, then files without a material; folders come first.

    A material gives a completed item if its bodies all have vectors, or if the base has no vectors.
    """
    builder = _Builder(folder, evidence, {}, ())
    for material in folder.materials:
        yield from builder.of_material(material)
    for path, changed_at in sorted(folder.files.items()):
        if path not in builder.used and find_path_problem(path) is None:
            key = identity.item_id(folder.base, path, folder.created_at)
            yield from builder.item(key, path, (folder.created_at, changed_at), is_whole=False)


def count_by_type(items: Iterable[Row]) -> str:
    """Describe the number of items of each type, for a message; empty without items."""
    kinds = Counter(item["type"] for item in items)
    return join_list(format_count(kinds[kind], noun) for kind, noun in _NOUNS.items() if kinds[kind])


def make_material_rows(
    folder: OrphanFolder,
    evidence: Evidence,
    materials: Iterable[FoundMaterial],
    containers: Mapping[str, ListedFolder],
    named: Iterable[str],
) -> Iterator[Row]:
    """Yield new item rows for materials without an item, each after the row of its folder if that is new.

    Args:
        folder: the base.
        evidence: its files.
        materials: the materials without an item.
        containers: folder items of the catalog, by prefix below ``raw/``.
        named: files below ``raw/`` that items of the catalog refer to.
    """
    builder = _Builder(folder, evidence, containers, named)
    for material in materials:
        yield from builder.of_material(material)


class _Builder:
    """Makes item rows for one base; the arguments are those of :func:`make_material_rows`."""

    def __init__(
        self, folder: OrphanFolder, evidence: Evidence, containers: Mapping[str, ListedFolder], named: Iterable[str]
    ) -> None:
        self._folder, self._evidence = folder, evidence
        #: By the first segment of the paths of their files.
        self._containers = dict(containers)
        #: Files below ``raw/`` that an item names.
        self.used: set[str] = {*named, *(material.path for material in folder.materials)}
        self._originals = _originals(folder, self.used)
        self.used.update(self._originals.values())

    def of_material(self, material: FoundMaterial) -> Iterator[Row]:
        """Yield the row of the item of a material, after that of its folder item if that is new."""
        times = identity.uuid7_time(material.item) or material.created_at, material.updated_at
        yield from self.item(material.item, material.path, times, is_whole=self._folder.is_whole(material.item))

    def item(self, key: str, path: str, times: tuple[int, int], *, is_whole: bool) -> Iterator[Row]:
        """Yield the row of an item, after the row of its folder item if that is new.

        Args:
            key: the item's id.
            path: its path below ``raw/``.
            times: when it was created and changed, in ms.
            is_whole: whether it is completed.
        """
        prefix, slash, rest = path.partition("/")
        container = None
        if slash:
            container = self._containers.get(prefix)
            if container is None:
                container = ListedFolder(identity.item_id(self._folder.base, f"{prefix}/", times[0]))
                self._containers[prefix] = container
                data = {"source": prefix, "relativePath": prefix}
                yield self._make_row(container.item, "directory", data, times, is_whole=True)
        kind, data = self._content(path)
        source = None if container is None else container.source_of(rest)
        if source is not None and kind == "file":
            data["source"] = source
        group = None if container is None else container.item
        yield self._make_row(key, kind, data, times, is_whole=is_whole, group=group)

    def _make_row(
        self, key: str, kind: str, data: Row, times: tuple[int, int], *, is_whole: bool, group: str | None = None
    ) -> Row:
        """Make the catalog row of an item.

        Args:
            key: the item's id.
            kind: its type.
            data: its data.
            times: when it was created and changed, in ms.
            is_whole: whether it is completed.
            group: the id of its folder item, if any.
        """
        return {
            "id": key,
            "base_id": self._folder.base,
            "group_id": group,
            "type": kind,
            "data": dump_item_data({name: replace_surrogates(value) for name, value in data.items()}),
            "status": "completed" if is_whole else "failed",
            "error": None if is_whole else INTERRUPTED,
            "created_at": times[0],
            "updated_at": times[1],
        }

    def _content(self, path: str) -> tuple[str, dict[str, Any]]:
        """Return type and data of the item that the file at a path below ``raw/`` belongs to."""
        snapshot = self._evidence.snapshot(path) if "/" not in path and path.endswith(".md") else None
        if snapshot is not None and snapshot.fields.keys() >= _BLOCK_FIELDS:
            found = _of_snapshot(snapshot)
            if found is not None:
                kind, data = found
                return kind, {**data, "relativePath": path}
        original = self._originals.get(path)
        if original is not None:
            return "file", {"source": original, "relativePath": original, "indexedRelativePath": path}
        return "file", {"source": path, "relativePath": path}


def _of_snapshot(snapshot: Snapshot) -> tuple[str, dict[str, str]] | None:
    """Return type and data of the web page or note whose text a snapshot holds; None if it is neither."""
    fields = snapshot.fields
    address = fields.get("resource", "")
    if fields["type"] == "URL" and not is_blank(address):
        return "url", {"source": address, "url": address}
    if fields["type"] != "Note":
        return None
    text = utf16_cut(snapshot.body, MAX_NOTE_UNITS)
    source = next((one for one in (fields["title"], text) if not is_blank(one)), None)
    return None if source is None else ("note", {"source": source, "content": text})


def _originals(folder: OrphanFolder, used: set[str]) -> dict[str, str]:
    """Find uploaded files whose converted copy was indexed instead: their paths, by the path of the copy.

    ``used`` are paths that an item names already.
    """
    materials = {material.path for material in folder.materials}
    originals: dict[str, str] = {}
    for path in folder.files:
        if path in used or PurePosixPath(path).suffix.lower() not in PROCESSED_EXTENSIONS:
            continue
        made = (f"{path.rpartition('.')[0]}.md", f"{path}.md")
        found = next((one for one in made if one in materials), None)
        if found is not None:
            originals.setdefault(found, path)
    return originals
