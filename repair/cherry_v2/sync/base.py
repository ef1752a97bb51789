"""Compare the items of one base with their original files, and decide what becomes of each (``docs/sync.md``).

A file is unchanged if its copy below ``raw/`` has the same bytes, or, for files of migrated folders, which have no
copy, if the index has its text. A lost item and a new file of the same content are a renamed file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import get_indexed_path, has_id_as_path, has_newer_type
from regraft import identity
from regraft.disk import file_paths, links, untrusted_sqlite
from regraft.disk.file_paths import NO_TEXT_EXTENSIONS, ChildPaths, FolderPrefixes, sanitize_material_name
from regraft.errors import WrongUsage
from regraft.formats.cherry_v2.catalog_reader import Row, parse_item_data, relative_path
from regraft.formats.cherry_v2.index import schema, store
from regraft.formats.cherry_v2.settings import Settings
from regraft.language import format_count, join_first, tr
from regraft.report.notices import Severity
from regraft.report.progress import Progress, SilentProgress, stage
from regraft.text import is_blank, one_line, replace_surrogates
from repair.changes.plan import Unresolved
from repair.cherry_v2.item_paths import MovedRoot, find_taken_paths, free_snapshot_names, is_safe_path
from repair.cherry_v2.item_texts import BLANK, LARGEST_FILE, ItemText, NoText, Span, cut_text, find_raw_file
from repair.cherry_v2.sync.sources import (
    DOCUMENTS,
    FolderScan,
    SourceReader,
    SourceRoot,
    Unreachable,
    locate,
    path_key,
    scan_folder,
)

#: File types that v1 converted before it indexed them, so that their text in the index differs from the file.
_CONVERTED = frozenset({".html", ".htm", ".xhtml", ".json", ".jsonl", ".csv", ".tsv", ".xml"})
#: Letters by which texts without a copy of the file are looked up.
_PREFIX = 40
#: So many files that are all missing are a sign of another folder, and none is deleted.
_FEWEST_GONE = 3
#: In a larger text with more units, units that are cut at other places are not counted: characters times units.
_MOST_COMPARED = 1 << 31
#: Names in the message about what is left.
_NAMED = 3
_NO_LETTERS = re.compile(r"[\W_]+")


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``sync``. ``now_ms`` is the time of rows that are written."""

    now_ms: int
    reader: SourceReader
    #: Folders that are followed in addition to those of the base.
    sources: tuple[Path, ...] = ()
    #: Old paths, and where they are now.
    moved: tuple[MovedRoot, ...] = ()
    #: Whether to remove items whose file no longer exists.
    delete: bool = False
    progress: Progress = msgspec.field(default_factory=SilentProgress)
    #: Bases whose new texts the same run embeds.
    embedded: frozenset[str] = frozenset()


# --- values ----------------------------------------------------------------------------------------------------------


class NewText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that the index gets: its hash, and the spans of its units in UTF-16 units."""

    content_hash: str
    spans: tuple[Span, ...]
    bytes: int
    #: Units whose text has no vector in the index, by hash.
    lacking: tuple[str, ...]
    guessed: str | None
    #: Former units whose text the file still has, but which no new unit has: it is cut at other places now.
    recut: int = 0


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """An original file as it was read: its size in bytes, and the digest of its bytes."""

    path: Path
    size: int
    digest: str


class SyncedItem(msgspec.Struct, kw_only=True):
    """An item that is added or changed. ``row`` is None for a new one, ``path`` is below ``raw/``."""

    id: str
    row: Row | None
    container: str | None
    source: str
    path: str
    file: SourceFile
    #: The path of the text that is indexed instead, if the item has one.
    processed: str | None = None
    text: NewText | None = None
    #: Whether the file is copied to ``path`` below ``raw/``.
    is_copied: bool = False

    @property
    def indexed_path(self) -> str:
        """The path of the item's material in the index."""
        return self.processed or self.path


class NewFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder item that is added; ``path`` is the prefix of its files below ``raw/``."""

    id: str
    source: str
    path: str


class Material(msgspec.Struct, frozen=True):
    """A material of the index: its path, and the hash of its text; None without a text."""

    path: str
    content_hash: str | None


class IndexReader:
    """Reads materials, bodies and missing vectors of an open index."""

    def __init__(self, db: apsw.Connection) -> None:
        """Read the materials of the open index."""
        self._db = db
        rows = untrusted_sqlite.read_lenient_rows(
            db, ("material_id", "relative_path", "current_content_hash"), "material"
        )
        self.materials = {
            str(key): Material(str(path), None if text is None else str(text)) for key, path, text in rows
        }

    def bodies(self, material: str) -> list[str]:
        """Return the bodies of the material with this id in order."""
        of_material = (
            "search_unit u CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id"
            " AND t.kind = 'body' WHERE u.material_id = ? ORDER BY u.unit_index"
        )
        return [
            str(text) for (text,) in untrusted_sqlite.read_lenient_rows(self._db, ("text",), of_material, (material,))
        ]

    def lacking(self, hashes: Iterable[str]) -> set[str]:
        """Return the text hashes for which the index has no vector."""
        return store.missing_embeddings(self._db, hashes)


# --- equal texts -----------------------------------------------------------------------------------------------------


def _letters(text: str) -> str:
    """Return the letters and digits of a text."""
    return _NO_LETTERS.sub("", text)


def has_same_letters(text: str, bodies: Iterable[str]) -> bool:
    """Whether bodies, which may overlap, have exactly the letters and digits of a text, in its order."""
    whole = _letters(text)
    start = end = 0
    for part in filter(None, map(_letters, bodies)):
        at = whole.find(part, start, end + len(part))
        if at < 0:
            return False
        start, end = at, max(end, at + len(part))
    return end == len(whole)


class LostItems:
    """Items whose file is not at its path. New files with their content are matched with them, one file per item."""

    def __init__(self, items: Mapping[str, Row], index: IndexReader, raw: Path) -> None:
        """Prepare lookups by size and text; ``items`` are rows by id, ``raw`` is the base's folder of raw files."""
        self._items = dict(items)
        self._index = index
        self._raw = raw
        self._by_size: dict[int, list[str]] = defaultdict(list)
        self._by_hash: dict[str, list[str]] = defaultdict(list)
        self._by_letters: dict[str, list[str]] = defaultdict(list)
        self._digests: dict[str, str | None] = {}
        for key, item in items.items():
            material, copy = index.materials.get(key), find_raw_file(parse_item_data(item).get("relativePath"), raw)
            if copy is not None:
                self._by_size[file_paths.stat(copy).st_size].append(key)
            if material is not None and material.content_hash is not None:
                self._by_hash[material.content_hash].append(key)
                if copy is None:
                    first = next(filter(None, map(_letters, index.bodies(key))), "")
                    self._by_letters[first[:_PREFIX]].append(key)

    def take_same_bytes(self, file: SourceFile) -> Row | None:
        """Remove and return an item whose copy below ``raw/`` has the bytes of a file, or return None."""
        same = (key for key in self._by_size.get(file.size, ()) if file.size and self._digest(key) == file.digest)
        return self._take(same, file.path.name)

    def take_same_text(self, text: str, name: str) -> Row | None:
        """Remove and return an item that has this text, preferably one with this file name, or None."""
        found = self._take(self._by_hash.get(identity.text_hash(text), ()), name) if self._items else None
        if found is not None or not self._by_letters:
            return found
        first = _letters(text)
        same = (
            key
            for length in range(min(_PREFIX, len(first)), 0, -1)
            for key in self._by_letters.get(first[:length], ())
            if key in self._items and has_same_letters(text, self._index.bodies(key))
        )
        return self._take(same, name)

    def _digest(self, item_id: str) -> str | None:
        """Return the digest of an item's copy below ``raw/``, which is read once; None if it cannot be read."""
        if item_id not in self._digests:
            copy = find_raw_file(parse_item_data(self._items[item_id]).get("relativePath"), self._raw)
            try:
                self._digests[item_id] = None if copy is None else links.hash_file(copy)
            except OSError:
                self._digests[item_id] = None
        return self._digests[item_id]

    def _take(self, keys: Iterable[str], name: str) -> Row | None:
        """Remove and return the first item with one of these ids whose source ends with ``name``, else the first one.

        None if no item with one of these ids is left.
        """
        there = [key for key in keys if key in self._items]
        if not there:
            return None
        named = (key for key in there if str(parse_item_data(self._items[key]).get("source")).endswith(name))
        return self._items.pop(next(named, there[0]))


# --- one base --------------------------------------------------------------------------------------------------------


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """A folder whose files are compared with items: the id of its folder item, its path, and the prefix of its files.

    New files are not added without a prefix.
    """

    id: str
    source: str
    prefix: str
    root: SourceRoot


class BaseComparison(msgspec.Struct, kw_only=True):
    """Compares the items of one base with their original files. Single use: call :meth:`compare`."""

    base: str
    row: Row
    items: list[Row]
    settings: Settings
    raw: Path
    #: The root of the store.
    root: Path
    index: IndexReader
    options: SyncRequest
    #: Where sources of items are now, if that is not where the catalog says.
    sources: dict[str, str]

    # The outcome.
    folders: list[NewFolder] = msgspec.field(default_factory=list)
    changed: list[SyncedItem] = msgspec.field(default_factory=list)
    renamed: list[SyncedItem] = msgspec.field(default_factory=list)
    new: list[SyncedItem] = msgspec.field(default_factory=list)
    gone: list[Row] = msgspec.field(default_factory=list)
    #: Items whose file is unchanged.
    unchanged: int = 0

    _ids: set[str] = msgspec.field(default_factory=set)
    _left: dict[tuple[str, Severity, str], list[str]] = msgspec.field(default_factory=lambda: defaultdict(list))
    #: Ids of folder items of which at least one file is there.
    _containers_there: set[Any] = msgspec.field(default_factory=lambda: {None})
    _lost: dict[str, Row] = msgspec.field(default_factory=dict)
    _unreachable: dict[str, Unreachable] = msgspec.field(default_factory=dict)
    _followed: dict[str, Followed | Unreachable] = msgspec.field(default_factory=dict)
    _parents: dict[Path, SourceRoot | Unreachable] = msgspec.field(default_factory=dict)
    _children: dict[str, ChildPaths] = msgspec.field(default_factory=dict)

    def compare(self) -> None:
        """Decide what becomes of every item and every new file, and record the results in this object.

        Raises:
            WrongUsage: a folder that the user named cannot be followed.
        """
        self._ids = {str(item.get("id")) for item in self.items}
        self._open_folders()
        present = list(self._present())
        new = list(self._new_files())
        progress = self.options.progress
        with stage(progress, tr("Comparing"), len(present) + len(new), "files"):
            for item, path in present:
                progress.at(path.name)
                self._compare_item(item, path)
                progress.step(1, 0)
            lost = LostItems(self._lost, self.index, self.raw)
            for folder, path in new:
                progress.at(path.name)
                self._take_new(folder, path, lost)
                progress.step(1, 0)
        self._assign_paths()
        self._report_lost()

    def left(self) -> Iterator[Unresolved]:
        """Yield the reports about original files that are not followed."""
        for (finding, severity, reason), names in self._left.items():
            shown = join_first([one_line(name) for name in names], _NAMED)
            message = tr("{names}: {reason}", names=shown, reason=reason)
            subject = names[0] if len(names) == 1 else None
            yield Unresolved(
                finding=finding, reason=message, base=self.base, subject=subject, count=len(names), severity=severity
            )

    def leave(self, finding: str, reason: str, name: str, severity: Severity = "warning") -> None:
        """Record that a file or item is not followed, and why, under a finding."""
        self._left[finding, severity, reason].append(name)

    def _skip(self, problem: Unreachable, name: str) -> None:
        """Record that the original ``name`` is not followed because of a problem."""
        if problem.is_note:
            self.leave(v2.SOURCE_SKIPPED, str(problem), name, "note")
        else:
            self.leave(v2.SOURCE_UNREACHABLE, str(problem), name)

    # --- folders and items -------------------------------------------------------------------------------------------

    def _is_named(self, path: Path) -> bool:
        """Whether the user named a path, or a folder above it, on the command line."""
        named = (*self.options.sources, *(Path(one.new) for one in self.options.moved))
        return any(path.is_relative_to(one) for one in named)

    def _open_folders(self) -> None:
        """Open the original folders of the base's folder items, and those that the user adds.

        Raises:
            WrongUsage: a folder that the user named cannot be followed.
        """
        for item in self.items:
            if item.get("type") == "directory" and item.get("status") == "completed":
                self._open_folder(item)
        taken = find_taken_paths(self.items, (one.path for one in self.index.materials.values()), self.raw)
        prefixes = FolderPrefixes({*taken.names, *taken.prefixes.values()})
        for path in self.options.sources:
            if not any(path_key(above) in self._folders_by_path() for above in (path, *path.parents)):
                self._add_folder(path, prefixes)

    def _folders_by_path(self) -> dict[str, Followed]:
        """Return the followed folders by :func:`path_key`; of several with one path, the first."""
        folders = [one for one in self._followed.values() if isinstance(one, Followed)]
        return {path_key(one.root.path): one for one in reversed(folders)}

    def _open_folder(self, item: Row) -> None:
        """Find the original folder of a folder item; if it is unreachable, report it."""
        key, data = str(item.get("id")), parse_item_data(item)
        source = self.sources.get(key) or str(data.get("source"))
        try:
            path = locate(source)
            root = SourceRoot.open(path, self.root, is_named=self._is_named(path))
        except Unreachable as problem:
            self._followed[key] = problem
            self._skip(problem, source)
        else:
            prefix = str(data.get("relativePath") or "")
            if not is_safe_path(prefix):
                reason = tr("it has no valid path in raw/, so that new files are not added: run regraft repair")
                self.leave(v2.SOURCE_UNREACHABLE, reason, source)
                prefix = ""
            self._followed[key] = Followed(id=key, source=source, prefix=prefix, root=root)

    def _add_folder(self, path: Path, prefixes: FolderPrefixes) -> None:
        """Follow a folder that the user adds; raises WrongUsage if it is unreachable.

        ``prefixes`` chooses its prefix.
        """
        try:
            root = SourceRoot.open(path, self.root, is_named=True)
        except Unreachable as problem:
            hint = tr("name the folder with the files")
            raise WrongUsage(problem=f"--source {path}: {problem}", hint=hint) from problem
        folder = NewFolder(id=self._new_id(str(path)), source=str(path), path=prefixes.take(str(path)))
        self.folders.append(folder)
        self._followed[folder.id] = Followed(id=folder.id, source=folder.source, prefix=folder.path, root=root)

    def _new_id(self, source: str) -> str:
        """Return an item id that follows from the path of the original and is not taken."""
        number = 0
        while (key := identity.synced_item_id(self.base, source, number)) in self._ids:
            number += 1
        return key

    def _present(self) -> Iterator[tuple[Row, Path]]:
        """Yield the completed file items whose file exists, with its path; the others are recorded as lost."""
        for item in self.items:
            if item.get("type") != "file" or item.get("status") != "completed" or has_newer_type(item):
                continue
            key = str(item.get("id"))
            source = self.sources.get(key) or parse_item_data(item).get("source")
            try:
                path = locate(source if isinstance(source, str) else "")
                if self._root_of(item, path).examine(path) is not None:
                    self._containers_there.add(item.get("group_id"))
                    yield item, path
                    continue
            except Unreachable as problem:
                self._unreachable[key] = problem
            self._lost[key] = item

    def _root_of(self, item: Row, path: Path) -> SourceRoot:
        """Return the followed folder that the file of an item is in: that of its folder item, else the file's own.

        Raises:
            Unreachable: files in it must not be read, or cannot be.
        """
        folder = self._followed.get(str(item.get("group_id")))
        if isinstance(folder, Unreachable):
            raise folder
        if folder is not None and path.is_relative_to(folder.root.path):
            return folder.root
        parent = path.parent
        if parent not in self._parents:
            try:
                self._parents[parent] = SourceRoot.open(
                    parent, self.root, is_named=self._is_named(parent), is_for_one_file=True
                )
            except Unreachable as problem:
                self._parents[parent] = problem
        found = self._parents[parent]
        if isinstance(found, Unreachable):
            raise found
        return found

    # --- changed files -----------------------------------------------------------------------------------------------

    def _compare_item(self, item: Row, path: Path) -> None:
        """Record whether the file of an item, at ``path``, was changed since it was indexed."""
        try:
            changed = self._read_changed(item, path)
        except Unreachable as problem:
            self._skip(problem, str(path))
        except NoText as problem:
            self.leave(v2.SOURCE_UNREAD, tr("changed, but {reason}", reason=problem), str(path))
        except OSError as problem:
            reason = tr("it cannot be read ({strerror})", strerror=problem.strerror)
            self.leave(v2.SOURCE_UNREACHABLE, reason, str(path))
        else:
            if changed is None:
                self.unchanged += 1
            else:
                self.changed.append(changed)

    def _read_changed(self, item: Row, path: Path) -> SyncedItem | None:
        """Return an item with the new content of its file at ``path``; None if that is unchanged.

        Raises:
            Unreachable, NoText, OSError: the file cannot be compared, or its new text cannot be read.
        """
        key, data = str(item.get("id")), parse_item_data(item)
        relative = data.get("relativePath")
        if not is_safe_path(relative):
            raise Unreachable(tr("its path in raw/ is not valid: run regraft repair"), is_note=True)
        copy, file = find_raw_file(relative, self.raw), _read_source(path)
        is_same_copy = (
            copy is not None and file_paths.stat(copy).st_size == file.size and links.hash_file(copy) == file.digest
        )
        if self._has_text(key) and (is_same_copy or (copy is None and self._is_indexed(item, path))):
            return None
        return SyncedItem(
            id=key,
            row=item,
            container=item.get("group_id"),
            source=self.sources.get(key) or str(data["source"]),
            path=str(relative),
            processed=_processed_path(item),
            file=file,
            text=self._new_text(key, path),
            is_copied=not is_same_copy and not has_id_as_path(item),
        )

    def _has_text(self, item_id: str) -> bool:
        """Whether the index has a text for the item with this id."""
        material = self.index.materials.get(item_id)
        return material is not None and material.content_hash is not None

    def _is_indexed(self, item: Row, path: Path) -> bool:
        """Whether the index has the present text of an item whose file has no copy below ``raw/``."""
        suffix, key = path.suffix.lower(), str(item.get("id"))
        if suffix in NO_TEXT_EXTENSIONS or suffix in _CONVERTED:
            indexed_at = item.get("updated_at")
            if isinstance(indexed_at, int) and file_paths.stat(path).st_mtime_ns // 1_000_000 <= indexed_at:
                return True
        if not self.options.reader.can_read(path):
            # Only the time says whether it was changed.
            raise NoText(tr("only the application reads files of this type"))
        text = self.options.reader.read(path).text
        if identity.text_hash(text) == self.index.materials[key].content_hash:
            return True
        return has_same_letters(text, self.index.bodies(key))

    def _new_text(self, item_id: str, path: Path) -> NewText | None:
        """Read the text of the file of an item; None if the index has the same text.

        Raises:
            NoText: the file has no text, or regraft cannot read it.
        """
        if not self.options.reader.can_read(path):
            raise NoText(tr("only the application reads files of this type"))
        found = self.options.reader.read(path)
        material = self.index.materials.get(item_id)
        if material is not None and material.content_hash == identity.text_hash(found.text):
            return None
        return self._cut(item_id, found)

    def _cut(self, item_id: str, item_text: ItemText) -> NewText:
        """Cut the text of the item with this id into units, and note which of them lack a vector."""
        spans = cut_text(item_text.text, self.settings)
        if not spans:
            raise NoText(BLANK)
        hashes = [unit.embedding_text_hash for unit in schema.cut_units(item_id, item_text.text, spans)]
        former = self.index.bodies(item_id)
        if len(former) * len(item_text.text) > _MOST_COMPARED:
            former = []
        return NewText(
            content_hash=identity.text_hash(item_text.text),
            spans=tuple(spans),
            bytes=2 * len(item_text.text.encode()) + 800 * len(spans),
            lacking=tuple(sorted(self.index.lacking(hashes))),
            guessed=item_text.guessed,
            recut=sum(identity.text_hash(body) not in hashes and body in item_text.text for body in former),
        )

    # --- new and renamed files ---------------------------------------------------------------------------------------

    def _new_files(self) -> Iterator[tuple[Followed, Path]]:
        """Yield the files in followed folders that belong to no item, each with the folder."""
        known = set()
        for item in self.items:
            source = self.sources.get(str(item.get("id"))) or parse_item_data(item).get("source")
            if isinstance(source, str) and item.get("type") != "directory":
                try:
                    known.add(path_key(locate(source)))
                except Unreachable:
                    continue
        yield from ((folder, path) for folder, path in self._files() if path_key(path) not in known)

    def _files(self) -> Iterator[tuple[Followed, Path]]:
        """Yield the files of all followed folders, each with the innermost followed folder that contains it."""
        by_path = self._folders_by_path()

        def innermost(path: Path) -> Followed | None:
            """Return the innermost followed folder that contains a path, or None."""
            return next((by_path[key] for key in map(path_key, path.parents) if key in by_path), None)

        for top in sorted(by_path.values(), key=lambda one: one.source):
            if innermost(top.root.path) is None:
                found = scan_folder(top.root)
                self._report_skipped(top, found)
                inside = ((innermost(path) or top, path) for path in found.files)
                yield from ((one, path) for one, path in inside if one.prefix and not found.is_too_large)

    def _report_skipped(self, folder: Followed, scan: FolderScan) -> None:
        """Report files in a folder that a scan skipped, and a folder with too many files."""
        if scan.is_too_large and folder.id in {one.id for one in self.folders}:
            problem = tr("--source {path}: it has more than {count:,} files", path=folder.source, count=len(scan.files))
            raise WrongUsage(problem=problem, hint=tr("name the folder with the files"))
        if scan.is_too_large:
            reason = tr("it has more than {count:,} files; new ones are not added", count=len(scan.files))
            self.leave(v2.SOURCE_UNREACHABLE, reason, folder.source)
        for reason, name in scan.skipped:
            self.leave(v2.SOURCE_SKIPPED, reason, name, "note")

    def _take_new(self, folder: Followed, path: Path, lost: LostItems) -> None:
        """Add an item for a new file, or record that it is the file of a lost item with the same content."""
        try:
            file = _read_source(path)
            item, found = lost.take_same_bytes(file), None
            if item is None and self.options.reader.can_read(path):
                found = self.options.reader.read(path)
                item = lost.take_same_text(found.text, path.name)
            if item is not None:
                self._rename(item, folder, file)
            elif found is not None:
                self._add_item(folder, file, found)
            elif path.suffix.lower() in DOCUMENTS:
                reason = tr("only the application reads files of this type; --extractor gives regraft their text")
                self.leave(v2.SOURCE_UNREAD, reason, str(path))
        except NoText as problem:
            if path.suffix.lower() in DOCUMENTS:
                self.leave(v2.SOURCE_UNREAD, str(problem), str(path))
            else:
                self.leave(v2.SOURCE_SKIPPED, tr("it has no text"), str(path), "note")
        except Unreachable as problem:
            self._skip(problem, str(path))
        except OSError as problem:
            reason = tr("it cannot be read ({strerror})", strerror=problem.strerror)
            self.leave(v2.SOURCE_UNREACHABLE, reason, str(path))

    def _add_item(self, folder: Followed, file: SourceFile, item_text: ItemText) -> None:
        """Add an item for a new file with the text ``item_text``.

        Raises:
            NoText: the text has no units.
        """
        key = self._new_id(str(file.path))
        material = self.index.materials.get(key)
        # A run that was killed may have indexed it.
        is_indexed = material is not None and material.content_hash == identity.text_hash(item_text.text)
        item = SyncedItem(
            id=key,
            row=None,
            container=folder.id,
            source=str(file.path),
            path="",
            file=file,
            text=None if is_indexed else self._cut(key, item_text),
            is_copied=True,
        )
        self.new.append(item)

    def _rename(self, item: Row, folder: Followed, file: SourceFile) -> None:
        """Record that the file of an item was found in a folder under another name."""
        key, data = str(item["id"]), parse_item_data(item)
        self._lost.pop(key, None)
        self._containers_there.add(item.get("group_id"))
        relative = data.get("relativePath")
        self.renamed.append(
            SyncedItem(
                id=key,
                row=item,
                container=None if item.get("group_id") is None else folder.id,
                source=str(file.path),
                path="",
                processed=_processed_path(item),
                file=file,
                is_copied=find_raw_file(relative, self.raw) is not None,
            )
        )

    # --- paths below raw/ --------------------------------------------------------------------------------------------

    def _assign_paths(self) -> None:
        """Choose the paths of new and renamed items below ``raw/``."""
        waiting = [one for one in (*self.renamed, *self.new) if not one.path]
        ids = {one.id for one in waiting}
        materials = [one.path for key, one in self.index.materials.items() if key not in ids]
        taken = find_taken_paths(self.items, materials, self.raw)
        used = [
            *materials,
            *filter(None, map(relative_path, self.items)),
            *filter(None, map(get_indexed_path, self.items)),
        ]
        prefixes = [folder.path for folder in self.folders]
        reserves = not is_blank(self.row.get("file_processor_id"))
        names = free_snapshot_names(taken, prefixes, reserve_processed=reserves)
        for one in waiting:
            folder = self._followed.get(str(one.container))
            if isinstance(folder, Followed) and folder.prefix:
                one.path = self._child_paths(folder, used).take(one.source)
            else:
                one.path = names.take(sanitize_material_name(replace_surrogates(Path(one.source).name)))

    def _child_paths(self, folder: Followed, used: Iterable[str]) -> ChildPaths:
        """Return the generator of free paths for files of a folder; ``used`` are the paths that are taken."""
        if folder.id not in self._children:
            below = f"{folder.prefix.rstrip('/')}/"
            there = [path for path in used if path.startswith(below)]
            self._children[folder.id] = ChildPaths(folder.source, folder.prefix, there, self.raw)
        return self._children[folder.id]

    # --- lost items --------------------------------------------------------------------------------------------------

    def _report_lost(self) -> None:
        """Sort the lost items: those whose file is gone are removed or reported, the others are unreachable."""
        gone: dict[Any, list[Row]] = defaultdict(list)
        for key, item in self._lost.items():
            source = self.sources.get(key) or str(parse_item_data(item).get("source"))
            problem = self._unreachable.get(key)
            if problem is None:
                gone[item.get("group_id")].append(item)
            elif problem not in self._followed.values():
                # Of a folder that cannot be reached, only the folder is named.
                self._skip(problem, source)
        for container, items in gone.items():
            folder = self._followed.get(str(container))
            if container not in self._containers_there and len(items) >= _FEWEST_GONE and isinstance(folder, Followed):
                reason = tr(
                    "none of its {files} exists; the folder may be a different one",
                    files=format_count(len(items), "file"),
                )
                self.leave(v2.SOURCE_UNREACHABLE, reason, folder.source)
            else:
                self.gone += items


def _processed_path(item: Row) -> str | None:
    """Return the path of the text that a document processor made of an item's file, or None."""
    path = parse_item_data(item).get("indexedRelativePath")
    return path if isinstance(path, str) and is_safe_path(path) else None


def _read_source(path: Path) -> SourceFile:
    """Read the size and the digest of an original file.

    Raises:
        Unreachable: it is too large.
        OSError: it cannot be read.
    """
    size = file_paths.stat(path).st_size
    if size > LARGEST_FILE:
        raise Unreachable(tr("it is larger than {size} MiB", size=LARGEST_FILE >> 20))
    return SourceFile(path=path, size=size, digest=links.hash_file(path))
