"""Compare the items of a base, the materials of its index, and the files below its ``raw/`` folder."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from checks.audit.collector import FindingCollector, Level, OutOfTime
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import find_virtual_prefixes, get_indexed_path, has_newer_type
from regraft import identity
from regraft.disk import file_paths, links
from regraft.disk.file_paths import NO_TEXT_EXTENSIONS
from regraft.formats import okf
from regraft.formats.cherry_v2.catalog_reader import Row, list_paths, parse_item_data
from regraft.language import tr
from regraft.report.labels import label_of
from regraft.report.notices import Severity
from regraft.text import decode_utf8, is_blank, replace_surrogates


class IndexMaterial(msgspec.Struct):
    """A row of ``material`` in an index."""

    id: str
    path: str
    content_hash: str | None
    #: Whether the index has neither its content nor a unit of it.
    is_empty: bool = False
    #: Whether it has not changed since the index was created.
    is_as_created: bool = False
    #: Its row number, if planners need it.
    row: int | None = None


def find_stored_path_problem(raw: bytes | None) -> str | None:
    """Say why a path that is stored in an index is not valid; None if it is. An unpaired surrogate counts as U+FFFD."""
    try:
        (raw or b"").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return find_path_problem(raw)
    return find_path_problem(decode_utf8(raw or b"").encode())


def find_path_problem(raw: bytes | str | None) -> str | None:  # noqa: PLR0911 - one rule each
    """Say why a path below ``raw/`` is not valid; None if it is. A path with unpaired surrogates is not UTF-8.

    Rules: ``docs/formats/index.md``, "What always holds".
    """
    stored = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
    if not stored:
        return label_of("empty")
    try:
        path = stored.decode()
    except UnicodeDecodeError:
        return tr("not UTF-8")
    if "\0" in path or "\\" in path:
        return tr("it has a NUL or a backslash")
    if path.startswith("/") or (len(path) > 1 and path[1] == ":" and path[0].isascii() and path[0].isalpha()):
        return label_of("absolute")
    parts = path.split("/")
    if ".." in parts:
        return tr("it has ..")
    if parts[0].lower() == ".cherry":
        return label_of("inside .cherry")
    return tr("not normalized") if "" in parts or "." in parts else None


#: Seconds. A younger file may belong to an item that is being added.
YOUNG_SECONDS = 3600
#: Maximum number of files below ``raw/`` that are checked.
_MOST_FILES = 1_000_000
#: In bytes. The longest snapshot is a note of a million UTF-16 units with its front matter.
_LARGEST_SNAPSHOT = 64 << 20


def check_materials(
    base: str,
    items: list[Row],
    materials: list[IndexMaterial],
    raw: Path,
    findings: FindingCollector,
    *,
    is_completed: bool,
    without_rows: int = 0,
    lost_rows: Collection[str] = (),
) -> None:
    """Report materials of an index that do not agree with the items of the base, and items without a material.

    Args:
        base: the id of the base.
        items: its rows in the catalog.
        materials: the materials of its index.
        raw: its folder of raw files.
        findings: collects what is wrong.
        is_completed: whether the base is completed; items of a failed base have no material.
        without_rows: number of its files of which the migration report says that v1 had no rows.
        lost_rows: ids of items of which the migration report says that a salvage lost rows, or may have.
    """
    by_id = {str(item.get("id")): item for item in items}
    for material in materials:
        disagreement = _find_disagreement(material, by_id.get(material.id))
        if disagreement is not None:
            name, message = disagreement
            findings.add(name, f"{{n}} {message}", base=base, noun="material", sample=material.id, row=material.row)
        # Otherwise the application has indexed the item again.
        if material.is_as_created and not material.is_empty and material.id in by_id and material.id in lost_rows:
            message = tr(
                "{n} with a part of the text missing, or perhaps missing: not all of the rows could be salvaged"
            )
            findings.add(v2.UNIT_MISSING, message, base=base, noun="item", sample=material.id)
    if is_completed:
        there = {material.id for material in materials if not material.is_empty}
        lacking = {key: item for key, item in by_id.items() if key not in there and _is_done(item)}
        files = sum(item.get("type") == "file" and key not in lost_rows for key, item in lacking.items())
        for key, item in lacking.items():
            _report_item_without_material(
                item, base, raw, findings, is_lost=key in lost_rows, never_stored=files <= without_rows
            )


def _find_disagreement(material: IndexMaterial, item: Row | None) -> tuple[str, str] | None:
    """Return the finding and its message for a material that does not agree with its item; None if it does."""
    if item is None:
        return v2.MATERIAL_ORPHAN, tr("without an item")
    if has_newer_type(item):
        return None
    if item.get("status") == "deleting":
        return v2.MATERIAL_ORPHAN, tr("of an item that is being deleted")
    path = get_indexed_path(item)
    # Unpaired surrogates are U+FFFD in paths read from the index.
    if path is not None and replace_surrogates(path) != material.path:
        return v2.MATERIAL_PATH, tr("with a different path than its item")
    return None


def _is_done(item: Row) -> bool:
    """Whether an item is completed, and of a type that has a text of its own."""
    return item.get("status") == "completed" and item.get("type") in ("file", "url", "note")


def _report_item_without_material(
    item: Row, base: str, raw: Path, findings: FindingCollector, *, is_lost: bool, never_stored: bool
) -> None:
    """Report a completed item that has no material in the index.

    Args:
        item: its row in the catalog.
        base: the id of the base.
        raw: the base's folder of raw files.
        findings: collects the finding.
        is_lost: whether the migration report says that a salvage lost rows of the item, or may have.
        never_stored: whether the report explains all such files by v1, which had no rows of them.
    """
    is_file = item.get("type") == "file"
    is_indexed = is_file or get_indexed_path(item) is not None
    had_text = is_indexed or is_lost
    message = tr("{n} completed but without a text in the index") if had_text else tr("{n} completed but never indexed")
    lacks = _find_obstacle(item, raw)
    if lacks is not None:
        message = tr("{what}, and {lacks}", what=message, lacks=lacks)
    severity: Severity = "warning" if had_text else "note"
    if is_lost:
        message = tr("{what}: the rows may have been among those that could not be salvaged", what=message)
    elif is_file and never_stored:
        severity, message = "note", tr("{what}: v1 had no rows", what=message)
    findings.add(
        v2.ITEM_NO_MATERIAL if is_indexed else v2.ITEM_NOT_INDEXED,
        message,
        base=base,
        noun="item",
        sample=item.get("id"),
        is_beyond_repair=lacks is not None,
        severity=severity,
    )


def _find_obstacle(item: Row, raw: Path) -> str | None:
    """Say why an item cannot be indexed without the application; None if nothing is known to prevent it."""
    data = parse_item_data(item)
    if item.get("type") == "note" and not is_blank(data.get("content")):
        return None
    # The processed copy of a file first.
    safe = (path for path in reversed(list_paths(data)) if find_path_problem(path) is None)
    file = next((path for path in safe if _is_file(raw / path)), None)
    if file is not None:
        is_plain = PurePosixPath(file).suffix.lower() not in NO_TEXT_EXTENSIONS
        return None if is_plain else tr("with a file that is not plain text")
    return tr("with no text in the note") if item.get("type") == "note" else tr("with no file to read it from")


def check_raw_files(
    raw: Path, base: str, items: list[Row] | None, materials: list[IndexMaterial] | None, findings: FindingCollector
) -> int:
    """Compare the files below ``raw/`` with materials and items, and return the number of files.

    Without a catalog, ``items`` must be None; without an index, ``materials`` must be None. ``base`` is the base's id.
    """
    count = 0
    is_orphan = make_orphan_test(items, findings.now_ms) if items is not None else None
    try:
        findings.check_time()
        _check_material_files(raw, base, items, materials or [], findings)
        for name, changed_at in walk_files(raw):
            findings.check_time()
            count += 1
            if is_orphan is not None and is_orphan(name, changed_at):
                findings.add(v2.RAW_ORPHAN, tr("{n} not referenced by any item"), base=base, noun="file", sample=name)
    except OutOfTime:
        findings.not_checked.append(tr("{base}: raw files", base=base))
        return 0
    return count


def _check_material_files(
    raw: Path, base: str, items: list[Row] | None, materials: list[IndexMaterial], findings: FindingCollector
) -> None:
    """Report materials whose file is missing, or, at the deep level, differs from the indexed text.

    ``items`` are the catalog's rows of the base's items; None: unknown.
    """
    snapshots = {str(item.get("id")) for item in items or () if item.get("type") in ("url", "note")}
    has_file = _make_file_test(items)
    for material in materials:
        findings.check_time()
        if not has_file(material):
            continue
        path = raw / material.path
        if file_paths.is_hidden_by_length(path):
            findings.not_checked.append(
                tr("{base}: {path}: its path is too long for this system", base=base, path=material.path)
            )
        elif not _is_file(path):
            message = tr("{n} whose file is missing")
            findings.add(v2.RAW_MISSING, message, base=base, noun="material", sample=material.path, row=material.row)
        elif material.id in snapshots and findings.level >= Level.DEEP and _is_changed(path, material):
            message = tr("{n} different from the text that was indexed")
            findings.add(v2.RAW_CHANGED, message, base=base, noun="snapshot", sample=material.path)


def _make_file_test(items: list[Row] | None) -> Callable[[IndexMaterial], bool]:
    """Return a predicate that tells whether a material should have a file below ``raw/``, as far as is known.

    ``items`` are the catalog's rows of the base's items; None: unknown.
    """
    prefixes = find_virtual_prefixes(items or ())
    foreign = {str(item.get("id")) for item in items or () if has_newer_type(item)}

    def has_file(material: IndexMaterial) -> bool:
        """Whether a material has a file of its own, so that it can be missing."""
        # Without a catalog, the folder items are unknown.
        prefix = prefixes.get(material.id) if items is not None else material.path.rpartition("/")[0]
        # A virtual path, which is the item's id or lies below its folder's prefix, has no file by design.
        if material.path == material.id or (prefix and material.path.startswith(prefix)):
            return False
        return material.id not in foreign and find_path_problem(material.path.encode("utf-8", "replace")) is None

    return has_file


def _is_file(path: Path) -> bool:
    """Whether a path is that of a file; False for a name that no disk takes."""
    try:
        return file_paths.is_file(path)
    except OSError:
        return False  # a name that no disk takes


def _is_changed(path: Path, material: IndexMaterial) -> bool:
    """Whether the file of a material differs from the text that was indexed, or cannot be read."""
    try:
        if file_paths.stat(path).st_size > _LARGEST_SNAPSHOT:
            return True
        text = decode_utf8(links.read_bytes(path))
    except OSError:
        return True
    return material.content_hash not in (identity.text_hash(okf.strip_block(text)), identity.text_hash(text))


def find_orphan_files(raw: Path, items: list[Row], now_ms: int) -> Iterator[str]:
    """Yield the files below ``raw/`` that no item names and that are older than an hour at ``now_ms``."""
    is_orphan = make_orphan_test(items, now_ms)
    return (name for name, changed_at in walk_files(raw) if is_orphan(name, changed_at))


def make_orphan_test(items: list[Row], now_ms: int) -> Callable[[str, float], bool]:
    """Return a predicate of a path below ``raw/`` and its modification time in seconds.

    It tells whether no item names the path and the file is older than an hour at ``now_ms``.
    """
    known: set[str] = set()
    folders: set[str] = set()
    for item in items:
        data = parse_item_data(item)
        known.update(list_paths(data))
        if has_newer_type(item):
            # Any text in an item of a newer application can be a path.
            texts = {text for text in _texts_in(data) if text}
            known |= texts
            folders |= texts
        elif item.get("type") == "directory" and isinstance(data.get("relativePath"), str):
            # A folder item names the prefix of its files' paths.
            folders.add(data["relativePath"])
    prefixes = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    latest = now_ms / 1000 - YOUNG_SECONDS
    return lambda name, changed_at: name not in known and not name.startswith(prefixes) and changed_at < latest


def _texts_in(value: Any) -> Iterator[str]:
    """Yield every string in the data of an item."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()


def _raise_if_disk_fails(error: OSError) -> None:
    """Raise an error of a failing disk, because files that it does not list are not missing."""
    if error.errno == errno.EIO:
        raise error


def walk_files(raw: Path) -> Iterator[tuple[str, float]]:
    """Yield the relative path and modification time (seconds) of each file below a folder; links are not followed."""
    left = _MOST_FILES
    for folder, _, names in file_paths.walk(raw, onerror=_raise_if_disk_fails):
        path = Path(folder)
        below = "" if path == raw else f"{path.relative_to(raw).as_posix()}/"
        for name in names:
            left -= 1
            if left < 0:
                return
            try:
                yield f"{below}{name}", file_paths.lstat(path / name).st_mtime
            except OSError:
                continue
