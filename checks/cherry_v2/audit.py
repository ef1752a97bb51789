"""The audit of v2 data: an index file, a base's folder, a library, a profile (``docs/findings.md``, "v2 data")."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import apsw
import msgspec

from checks.audit import sqlite_checks
from checks.audit.collector import CheckOptions, CommandLine, FindingCollector, Level, OutOfTime, display_text
from checks.audit.findings import Audit, BaseStatistics, Finding, Statistics
from checks.cherry_v2 import advice, catalog_rows, raw_files
from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import schema as v2_schema
from checks.cherry_v2.advice import add_commands, find_only_candidate
from checks.cherry_v2.findings import BACKUP_SLIM
from checks.cherry_v2.index_file import ExpectedIndex, IndexFacts, audit_index, count_rows
from checks.cherry_v2.installed import may_be_vector_file
from regraft.disk import file_paths, links, sqlite
from regraft.disk.trees import FolderTree
from regraft.errors import PackUnreadable, SourceUnreadable
from regraft.formats import json_text
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v2 import pack
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, StoredCatalog, base_id_text, read_catalog
from regraft.formats.cherry_v2.index.schema import catalog_dimensions, choose_vector_length
from regraft.formats.cherry_v2.layout import CATALOG_FILE, StoreFile, is_uuid, read_report_bytes
from regraft.formats.cherry_v2.pack import PackedFile
from regraft.formats.cherry_v2.settings import read_base_settings, unescape_separator
from regraft.kinds import V2_STORES, Kind
from regraft.language import format_count, tr
from regraft.report.notices import FILE_WITHOUT_ROWS
from regraft.report.progress import stage
from regraft.stores.locate import INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER, Located, is_unchanged_pack
from regraft.stores.write_checks import find_pending_change
from regraft.text import format_bytes, path_text

# What an audit says of archives: slim backups, members that cannot be read, files that are not as they were packed.


def report_slim_backup(bases: Collection[str], chosen: Collection[str] | None, ledger: FindingCollector) -> None:
    """Say that a backup is a slim one, and what that means for its bases."""
    count = len([base for base in bases if chosen is None or base in chosen])
    message = tr(
        "a slim backup: the rows of {bases} are in it, their indexes and files are not; "
        "restoring it leaves those of the profile as they are",
        bases=format_count(count, "base"),
    )
    ledger.add(BACKUP_SLIM, message)


def report_unreadable_members(found: Located, ledger: FindingCollector) -> None:
    """Name the members of an archive that could not be extracted."""
    for name, reason in found.damaged.items():
        base = _base_of_member(found, name)
        ledger.add(
            v2.CORRUPT, tr("a member of the archive cannot be read: {reason}", reason=reason), base=base, sample=name
        )


def check_pack(found: Located, chosen: Collection[str] | None, ledger: FindingCollector) -> None:
    """Hold the files of a pack against their checksums; an unpacked one only while regraft has not changed it."""
    if not is_unchanged_pack(found.tree.path):
        return
    try:
        manifest = pack.read_manifest(found.tree)
    except PackUnreadable as error:
        ledger.add(
            v2.CORRUPT,
            tr("{manifest} cannot be read: {reason}", manifest=pack.MANIFEST, reason=error.facts["reason"]),
            sample=pack.MANIFEST,
        )
        return
    if manifest is None:
        return
    for packed in manifest.files:
        base = _base_of_member(found, packed.path)
        if packed.path in found.damaged or not _is_chosen(base, chosen):
            continue
        try:
            ledger.check_time()
        except OutOfTime:
            ledger.not_checked.append("checksums")
            return
        _check_packed_file(found, packed, base, ledger)
    _report_unpacked_files(found, {packed.path for packed in manifest.files}, chosen, ledger)


def _is_chosen(base: str | None, chosen: Collection[str] | None) -> bool:
    """Tell whether what is of a base is looked at; what is of none always is."""
    return chosen is None or base is None or base in chosen


def _report_unpacked_files(
    found: Located, packed: Collection[str], chosen: Collection[str] | None, ledger: FindingCollector
) -> None:
    """Name files of bases that nobody packed: no base with one is installed."""
    root = found.tree.path
    for place in sorted((root / KNOWLEDGE_FOLDER).glob("*")):
        for path in (place / INDEX_FILE, *sorted((place / RAW_FOLDER).rglob("*"))):
            name = path.relative_to(root).as_posix()
            if _is_chosen(place.name, chosen) and name not in packed and path.is_file() and not path.is_symlink():
                ledger.add(v2.CORRUPT, tr("no part of the pack"), base=place.name, sample=path_text(name))


def _check_packed_file(found: Located, packed: PackedFile, base: str | None, ledger: FindingCollector) -> None:
    path = found.tree.path / packed.path
    if ".." in PurePosixPath(packed.path).parts or PurePosixPath(packed.path).is_absolute():
        ledger.add(
            v2.CORRUPT, tr("{manifest} names a file outside of the pack", manifest=pack.MANIFEST), sample=packed.path
        )
        return
    try:
        if ledger.level >= Level.DEFAULT:
            problem = pack.find_file_problem(path, packed, found.digests.get(packed.path))
        else:
            problem = None if path.is_file() and path.stat().st_size == packed.bytes else tr("its size is another")
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem is not None:
        ledger.add(v2.CORRUPT, tr("not what was packed: {problem}", problem=problem), base=base, sample=packed.path)


def _base_of_member(found: Located, name: str) -> str | None:
    """Return the id of the base whose folder a file lies in."""
    parts = PurePosixPath(name).parts
    above = PurePosixPath(found.stores.bases).parts
    return parts[len(above)] if parts[: len(above)] == above and len(parts) > len(above) + 1 else None


# Numbers of an audit that a page can be drawn from: no text, no vector, no path.


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _ReportedRows(msgspec.Struct):
    read: _Count = 0
    carried: _Count = 0
    without_vector: _Count = 0
    v1_deduplicated: _Count = 0
    restored_duplicate: _Count = 0
    skipped: dict[str, _Count] = msgspec.field(default_factory=dict)


class _ReportedBase(msgspec.Struct):
    id: str
    rows: _ReportedRows | None = None


class _LibraryReport(msgspec.Struct):
    bases: list[_ReportedBase] = msgspec.field(default_factory=list)


def collect_statistics(indexes: dict[str, IndexFacts], names: dict[str, str], report: bytes) -> Statistics:
    """Return what was counted in every base, and where v1's rows went if a run's report says so.

    Args:
        indexes: what was seen, by the base's id.
        names: what a person calls each base.
        report: what the report of a library holds; nothing where there is none.
    """
    rows = _migrated_rows(report)
    return Statistics(
        bases=[_base_statistics(key, name, indexes.get(key) or IndexFacts(), rows) for key, name in names.items()]
    )


def _base_statistics(key: str, name: str, index: IndexFacts, rows: dict[str, _ReportedRows]) -> BaseStatistics:
    return BaseStatistics(
        id=key,
        name=name,
        units=index.counts.get("units"),
        bodies=index.counts.get("bodies"),
        covered=index.counts.get("covered"),
        embeddings=index.counts.get("embeddings"),
        lengths={str(size // 4): count for size, count in sorted(index.lengths.items())},
        norms=index.norms,
        rows=rows.get(key),
    )


def _migrated_rows(report: bytes) -> dict[str, _ReportedRows]:
    try:
        found = msgspec.json.decode(report, type=_LibraryReport)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # another program's file of that name
    return {base.id: base.rows for base in found.bases if base.rows is not None}


class _StoreAudit(msgspec.Struct):
    """What an audit has seen of a whole store."""

    ledger: FindingCollector
    #: Whether indexes and files lie elsewhere.
    is_slim: bool = False
    #: Files that could not be read out of an archive.
    damaged: Collection[str] = ()
    #: The folder of all bases.
    bases: str = ""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    indexes: dict[str, IndexFacts] = msgspec.field(default_factory=dict)
    #: What brought the bases to v2, for a person.
    carried_by: str = "upgrade"
    #: Of how many files of each base it is recorded that v1 had no rows.
    without_rows: dict[str, int] = msgspec.field(default_factory=dict)
    items: int = 0
    bytes: int = 0
    raw_files: int = 0


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """One base, as the catalog and the folder of bases have it; None is what they do not have."""

    key: str
    row: Row | None
    items: list[Row] | None
    store: StoreFile | None


def audit(found: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Check v2 data without writing anything.

    Args:
        found: files and folders; an archive is unpacked first (:mod:`regraft.stores.locate`).
        options: what to look at.
        command_line: gives the command lines that mend what is found; without it, none is given.

    Never raises for what is in the data.
    """
    root = found.tree.path
    seen = _nothing_seen(found, options)
    report_unreadable_members(found, seen.ledger)
    seen.without_rows = _recorded_without_rows(root, found)
    catalog = _catalog(root, found, seen.ledger)
    _check_schema(root, found, seen.ledger)
    _check_profile(root, found, seen.ledger)
    stores = _stores_by_base(found)
    chosen = _chosen(found, options, stores)
    rows = _rows_by_base(catalog)
    if catalog is not None:
        _check_rows(catalog, chosen, profile.detect_running_app(root) is not None, seen)
    if found.is_slim:
        report_slim_backup(rows, chosen, seen.ledger)
    bases = list(_bases(catalog, stores, chosen))
    with stage(options.progress, "Checking", sum(base.store is not None for base in bases), "bases"):
        for base in bases:
            name = base.key if base.row is None else str(base.row.get("name"))
            options.progress.at(name)
            _check_base(root, base, seen)
    if found.stores.is_whole and chosen is None:
        _check_folder(root / seen.bases, None if catalog is None else rows, stores, seen, found.kind)
    if found.kind in (Kind.PACK, Kind.LIBRARY) and not found.stores.is_copy:
        check_pack(found, chosen, seen.ledger)
    audited = _audit(found, seen, root)
    # While a restore or reset is pending every command refuses, and a copy of a catalog is never changed.
    if command_line is None or found.stores.is_copy or seen.ledger.count(v2.PENDING, None):
        return audited
    orphans = _unnamed(found, catalog, stores)
    return add_commands(
        audited,
        command_line,
        is_whole=found.stores.is_whole,
        orphans=orphans,
        is_salvaged=found.kind in V2_STORES,
        attachable=_attachable(seen, catalog),
    )


def _attachable(seen: _StoreAudit, catalog: StoredCatalog | None) -> dict[str, str]:
    """Return the one model that may be that of a base's vectors, by the base, where the base has no model."""
    found: dict[str, str] = {}
    for base, index in seen.indexes.items():
        if catalog is not None and index.lengths and seen.ledger.count(v2.VECTOR_UNEXPECTED, base):
            model = find_only_candidate(choose_vector_length(index.lengths, None) // 4, catalog, base)
            if model is not None:
                found[base] = model
    return found


def _nothing_seen(found: Located, options: CheckOptions) -> _StoreAudit:
    is_library = found.stores.catalog is not None and Path(found.stores.catalog).name == CATALOG_FILE
    return _StoreAudit(
        FindingCollector(options.level, options.max_duration, options.progress, now_ms=options.now_ms),
        is_slim=found.is_slim,
        damaged=found.damaged,
        bases=found.stores.bases,
        carried_by="migration" if is_library else "upgrade",
    )


def _stores_by_base(found: Located) -> dict[str, StoreFile]:
    return {str(store.base_id or store.name): store for store in (*found.stores.current, *found.stores.preview)}


def _chosen(found: Located, options: CheckOptions, stores: Collection[str]) -> set[str] | None:
    """Return the ids of the only bases to check; None: all that there are, and what lies beside them."""
    if options.bases:
        return set(options.bases)
    return set(stores) if found.kind in (Kind.BASE, Kind.INDEX) else None


def _unnamed(found: Located, catalog: StoredCatalog | None, stores: dict[str, StoreFile]) -> Collection[str]:
    """Return the ids of the bases that have a folder and are not in the catalog."""
    if catalog is None or not found.stores.is_whole:
        return ()
    return stores.keys() - _rows_by_base(catalog).keys()


def _rows_by_base(catalog: StoredCatalog | None) -> dict[str, Row]:
    return {} if catalog is None else {base_id_text(row): row for row in catalog.bases}


def _bases(catalog: StoredCatalog | None, stores: dict[str, StoreFile], chosen: set[str] | None) -> Iterator[_Base]:
    """Yield the chosen bases of the catalog, then those that only have an index."""
    rows = _rows_by_base(catalog)
    for key in [*rows, *(key for key in stores if key not in rows)]:
        if chosen is None or key in chosen:
            items = None if catalog is None or catalog.items is None else catalog.items.get(key, [])
            yield _Base(key=key, row=rows.get(key), items=items, store=stores.get(key))


def audit_unreadable_file(path: Path, reason: str) -> Audit:
    """Return the audit of an index file that nobody can even recognise."""
    ledger = FindingCollector()
    ledger.add(v2.UNREADABLE, tr("{named} cannot be read: {reason}", named=display_text(path.name), reason=reason))
    return _audit(None, _StoreAudit(ledger), path)


def _catalog(root: Path, found: Located, ledger: FindingCollector) -> StoredCatalog | None:
    name = found.stores.catalog
    if name is None:
        return None
    try:
        return read_catalog(root / name)
    except CatalogProblem as problem:
        ledger.add(v2.UNREADABLE, tr("the catalog {problem}", problem=problem), sample=name)
        return None


def _check_schema(root: Path, found: Located, ledger: FindingCollector) -> None:
    """Find what the catalog has on the tables of knowledge that is nobody's business."""
    name = found.stores.catalog
    # What cannot be read at all is said already.
    if name is not None:
        with suppress(apsw.Error, OSError, UnicodeDecodeError), sqlite.open_readonly(root / name) as db:
            sqlite_checks.add_foreign_objects(v2_schema.find_foreign_in_catalog(db), ledger, None)


def _report_of(root: Path) -> bytes:
    try:
        return read_report_bytes(FolderTree(root))
    except SourceUnreadable:
        return b""  # what is told of it is told without


def _recorded_without_rows(root: Path, found: Located) -> dict[str, int]:
    """Return of how many files of each base a library's own record says that v1 had no rows."""
    if found.kind is not Kind.LIBRARY or found.stores.is_copy:
        return {}
    try:
        record: Any = json_text.loads(_report_of(root))
        ids = {base["legacy_id"]: str(base["id"]) for base in record["bases"]}
        message = [one for one in record["warnings"] if one["code"] == FILE_WITHOUT_ROWS and one["base"] in ids]
        counts = [(ids[one["base"]], one["count"]) for one in message]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}  # it may be anybody's file
    return {base: count for base, count in counts if isinstance(count, int)}


def _check_profile(root: Path, found: Located, ledger: FindingCollector) -> None:
    """Say what the application is going to do with the profile, and which of two databases was read."""
    # A backup is a copy: no application starts on it.
    reason = None if found.kind is Kind.V2_BACKUP or found.stores.is_copy else find_pending_change(root)
    if reason is not None:
        message = tr(
            "{reason}. What is written now is thrown away at the next start, so that nothing is mended before it",
            reason=reason,
        )
        ledger.add(v2.PENDING, message)
    stale = found.stores.stale_copy
    if stale is not None:
        message = tr(
            "{stale} is a left-over of a beta, which nothing reads: the live database is {catalog}",
            stale=stale,
            catalog=found.stores.catalog,
        )
        ledger.add(v2.STALE_COPY, message, sample=stale)


def _check_rows(catalog: StoredCatalog, chosen: set[str] | None, is_running: bool, seen: _StoreAudit) -> None:
    models = None if catalog.models is None else {row.get("id") for row in catalog.models}
    for row in catalog.bases:
        key = base_id_text(row)
        if chosen is None or key in chosen:
            seen.names[key] = str(row.get("name", key))
            catalog_rows.check_base(row, models, seen.ledger, seen.carried_by)
    if chosen is None:
        used = {row.get(name) for row in catalog.bases for name in ("embedding_model_id", "rerank_model_id")}
        catalog_rows.check_models(catalog.models or (), used, seen.ledger)
    catalog_rows.check_items(catalog, chosen, is_running, seen.ledger)


def _check_base(root: Path, base: _Base, seen: _StoreAudit) -> None:
    """Check what belongs to one base: its index, its raw files, and its items against both."""
    key, store = base.key, base.store
    seen.names.setdefault(key, key)
    seen.items += len(base.items or ())
    if store is None:
        _check_without_index(root, base, seen)
        return
    if store.look.layout is IndexLayout.PREVIEW or store.look.leaves_rows:
        message = tr("its rows are in the table of a preview build, which the application does not read")
        seen.ledger.add(v2.SCHEMA_PREVIEW, message, base=key, sample=store.name)
    if store.look.layout is IndexLayout.PREVIEW:
        return
    path = root / store.name
    index = _audited(path, _expected(key, store, base.row), store, seen.ledger)
    seen.indexes[key] = index
    with contextlib.suppress(OSError):
        seen.bytes += file_paths.stat(path).st_size
    raw = root / store.raw
    if links.leads_outside(root, raw):
        message = tr("its files are behind a link: {where_to}", where_to=_where_to(root, raw))
        seen.ledger.add(v2.RAW_MISSING, message, base=key, sample=store.raw)
        return
    # Of an index file by itself nobody knows where the base's files are.
    _check_files(raw, base, index, seen, is_beside=path.parent.parent == raw.parent)


def _check_without_index(root: Path, base: _Base, seen: _StoreAudit) -> None:
    key, row = base.key, base.row
    folder = root / seen.bases / key
    if row is None or seen.is_slim or f"{seen.bases}/{key}/{INDEX_FILE}" in seen.damaged:
        return
    if row.get("status") == "completed":
        seen.ledger.add(
            v2.BASE_NO_INDEX,
            tr("completed, and its index file {why_missing}", why_missing=_why_missing(root, folder)),
            base=key,
        )
    elif base.items is not None and is_folder_name(key) and not links.leads_outside(root, folder / RAW_FOLDER):
        seen.raw_files += raw_files.check_raw_files(folder / RAW_FOLDER, key, base.items, None, seen.ledger)


def _check_files(raw: Path, base: _Base, index: IndexFacts, seen: _StoreAudit, *, is_beside: bool) -> None:
    """Hold a base's items, the materials of its index and its raw files against each other."""
    if base.items is not None and index.materials is not None:
        raw_files.check_materials(
            base.key,
            base.items,
            index.materials,
            raw,
            seen.ledger,
            is_completed=_is_completed(base.row),
            without_rows=seen.without_rows.get(base.key, 0),
        )
    materials = index.materials if index.materials is not None else []
    if is_beside or file_paths.is_folder(raw):
        seen.raw_files += raw_files.check_raw_files(raw, base.key, base.items, materials, seen.ledger)


def _audited(path: Path, expected: ExpectedIndex, store: StoreFile, ledger: FindingCollector) -> IndexFacts:
    index = audit_index(path, expected, ledger)
    if store.look.by_system and index.is_readable:
        # Whoever goes by that first look has passed over the file.
        message = tr(
            "{named} could not be read when it was looked for: {problem}",
            named=display_text(path.name),
            problem=store.look.problem,
        )
        ledger.add(v2.UNREADABLE, message, base=expected.base)
        index.is_readable = False
    return index


def _where_to(root: Path, path: Path) -> str:
    try:
        links.check_inside(root, path)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _why_missing(root: Path, folder: Path) -> str:
    """Say why a base has no index: there is no file, or it is behind a link that is not followed."""
    try:
        links.check_inside(root, folder / INDEX_FILE)
    except (links.LinkLeadsOut, ValueError) as error:
        return tr("is behind a link: {getattr}", getattr=getattr(error, "strerror", None) or error)
    except OSError:
        pass
    return tr("is missing")


def is_folder_name(key: str) -> bool:
    """Tell whether a base's id can be a folder's name: one with a path in it leads out of the store."""
    return "\0" not in key and key not in (".", "..", "") and Path(key).name == key


def _is_completed(row: Row | None) -> bool:
    return row is not None and row.get("status") == "completed"


def _expected(key: str, store: StoreFile, row: Row | None) -> ExpectedIndex:
    folder = key if store.name.endswith(INDEX_FILE) and store.base_id is not None else None
    if row is None or not _is_completed(row):
        return ExpectedIndex(base=key, folder=folder)
    has_model = row.get("embedding_model_id") is not None
    return ExpectedIndex(
        base=key,
        folder=folder,
        has_model=has_model,
        separator=unescape_separator(read_base_settings(row)[0]),
        dimensions=catalog_dimensions(row),
    )


def _check_folder(
    bases: Path, rows: dict[str, Row] | None, stores: dict[str, StoreFile], seen: _StoreAudit, kind: Kind
) -> None:
    """Look for folders of bases that the catalog does not name, and for what v1 left."""
    leftovers: list[tuple[str, int]] = []
    for finding, path in find_strays(bases, rows or {}, stores):
        if finding == v2.LEFTOVER:
            leftovers.append((path.name, path.stat().st_size))
        elif rows is not None:
            message = tr(
                "{n} that no row of the catalog names: repair --only index.orphan --adopt lists such bases again, and "
                "gc removes them with --only index.orphan alone"
            )
            seen.ledger.add(v2.INDEX_ORPHAN, message, noun="folder", sample=path.name)
    if leftovers and kind is not Kind.V2_BACKUP:
        hint = tr("; --kind v1-profile checks what v1 left") if kind is Kind.V2_PROFILE else ""
        size = format_bytes(sum(size for _, size in leftovers))
        message = tr(
            "{vector_files} of v1 still there, {size}{hint}",
            vector_files=format_count(len(leftovers), "vector file"),
            size=size,
            hint=hint,
        )
        for name, _ in leftovers:
            seen.ledger.add(v2.LEFTOVER, message, sample=name)


def find_strays(bases: Path, named: Collection[str], stores: Collection[str]) -> Iterator[tuple[str, Path]]:
    """Return what lies beside the folders of bases and is of none of them, in the order of names.

    Args:
        bases: the folder of all bases.
        named: ids of the bases that the catalog names.
        stores: ids of the bases that have an index.

    Returns:
        Folders of bases, as ``index.orphan``, and vector files of v1, as ``v1.leftover``.
    """
    try:
        inside = sorted(bases.iterdir())
    except OSError:
        return
    for path in inside:
        if path.name in named:
            continue
        if path.is_dir() and not path.is_symlink():
            if is_base_folder(path, stores):
                yield v2.INDEX_ORPHAN, path
        elif path.name not in stores and may_be_vector_file(path):
            yield v2.LEFTOVER, path


def is_base_folder(path: Path, stores: Collection[str]) -> bool:
    """Tell whether a folder beside those of bases is one of a base: it has an index, or is called like one."""
    return path.name in stores or (is_uuid(path.name) and any(path.iterdir()))


def _audit(found: Located | None, seen: _StoreAudit, root: Path) -> Audit:
    rows = [dict(count_rows(index)) for index in seen.indexes.values()]
    checked = {name: sum(one[name] for one in rows) for name in ("materials", "units", "bodies", "embeddings")}
    ledger = seen.ledger
    return Audit(
        findings=_named_findings(found, seen, root),
        checked={
            "bases": len(seen.names),
            "items": seen.items,
            **checked,
            "raw_files": seen.raw_files,
            "bytes": seen.bytes,
        },
        names=seen.names,
        closing=ledger.closing(
            tr("texts and vectors"), tr("the structure of the databases and the texts of raw files")
        ),
        statistics=collect_statistics(seen.indexes, seen.names, b"" if found is None else _report_of(root)),
        not_checked=ledger.missing(),
        level=ledger.level.name.lower(),
    )


def _named_findings(found: Located | None, seen: _StoreAudit, root: Path) -> tuple[Finding, ...]:
    """Return all that was found, with the names of items."""
    findings = seen.ledger.findings()
    if found is None or found.stores.catalog is None:
        return findings
    indexes = {base: root / store.name for base, store in _stores_by_base(found).items()}
    return advice.add_item_names(findings, root / found.stores.catalog, indexes)


def read_base_names(found: Located) -> dict[str, str]:
    """Return the names of the bases that a store has by their ids; of one that only has a folder, its id."""
    ledger = FindingCollector()
    catalog = _catalog(found.tree.path, found, ledger)
    rows = [] if catalog is None else catalog.bases
    named_there = {base_id_text(row): str(row.get("name")) for row in rows}
    return {**named_there, **{base: base for base in _stores_by_base(found) if base not in named_there}}
