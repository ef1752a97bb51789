"""Audit v2 data: an index file, the folder of a base, a library, a profile or an archive of one.

Findings: ``docs/findings.md``, "v2 data".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import apsw
import msgspec

from checks.audit import sqlite_checks
from checks.audit.collector import CheckOptions, CommandLine, FindingCollector, Level, OutOfTime, display_text
from checks.audit.findings import Audit, BaseStatistics, Statistics
from checks.audit.rolling import RollingPart
from checks.cherry_v2 import advice, catalog_rows, raw_files
from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import schema as v2_schema
from checks.cherry_v2.advice import add_commands, find_only_candidate
from checks.cherry_v2.findings import BACKUP_SLIM
from checks.cherry_v2.index_file import ExpectedIndex, IndexFacts, audit_index, audit_part
from checks.cherry_v2.installed import may_be_vector_file
from regraft.disk import file_paths, links, sqlite
from regraft.disk.trees import FolderTree
from regraft.errors import PackUnreadable, RegraftError, SourceUnreadable
from regraft.formats import json_text
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v2 import pack
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, StoredCatalog, base_id_text, read_catalog
from regraft.formats.cherry_v2.index.schema import catalog_dimensions, choose_vector_length
from regraft.formats.cherry_v2.layout import CATALOG_FILE, StoreFile, is_uuid, read_report_bytes
from regraft.formats.cherry_v2.pack import PackedFile
from regraft.formats.cherry_v2.settings import read_base_settings, unescape_separator
from regraft.identity import replace, utc_datetime
from regraft.kinds import V2_STORES, Kind
from regraft.language import format_count, tr
from regraft.ledger.ledger import INSERT_BASE, read_runs
from regraft.ledger.values import RecordedAction
from regraft.report.notices import FILE_WITHOUT_ROWS, ROWS_LOST
from regraft.report.progress import stage
from regraft.stores.locate import INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER, Located, is_unchanged_pack
from regraft.stores.write_checks import find_pending_change
from regraft.text import format_bytes, path_text

# --- archives: slim backups, members that cannot be read, files that differ from their checksums --------------------


def report_slim_backup(base_ids: Collection[str], chosen: Collection[str] | None, findings: FindingCollector) -> None:
    """Report that a backup has the rows of its bases, but no indexes and no files.

    ``chosen`` are the ids of the bases to check; None: all.
    """
    count = len([base for base in base_ids if chosen is None or base in chosen])
    message = tr(
        "a slim backup: the rows of {bases} are in it, their indexes and files are not; "
        "restoring it leaves those of the profile as they are",
        bases=format_count(count, "base"),
    )
    findings.add(BACKUP_SLIM, message)


def report_unreadable_members(archive: Located, findings: FindingCollector) -> None:
    """Report the members of an archive that could not be extracted."""
    for name, reason in archive.damaged.items():
        base = _base_of_member(archive, name)
        findings.add(
            v2.CORRUPT, tr("a member of the archive cannot be read: {reason}", reason=reason), base=base, sample=name
        )


def check_pack(store: Located, chosen: Collection[str] | None, findings: FindingCollector) -> None:
    """Compare the files of a pack with its checksums. A pack that regraft changed after unpacking is skipped.

    ``chosen`` are the ids of the bases to check; None: all.
    """
    if not is_unchanged_pack(store.tree.path):
        return
    try:
        manifest = pack.read_manifest(store.tree)
    except PackUnreadable as error:
        findings.add(
            v2.CORRUPT,
            tr("{manifest} cannot be read: {reason}", manifest=pack.MANIFEST, reason=error.facts["reason"]),
            sample=pack.MANIFEST,
        )
        return
    if manifest is None:
        return
    for packed in manifest.files:
        base = _base_of_member(store, packed.path)
        if packed.path in store.damaged or not _is_chosen(base, chosen):
            continue
        try:
            findings.check_time()
        except OutOfTime:
            findings.not_checked.append("checksums")
            return
        _check_packed_file(store, packed, base, findings)
    _report_unpacked_files(store, {packed.path for packed in manifest.files}, chosen, findings)


def _is_chosen(base: str | None, chosen: Collection[str] | None) -> bool:
    """Whether a base is to be checked. None, for files of no base, always is; ``chosen`` None means all bases."""
    return chosen is None or base is None or base in chosen


def _report_unpacked_files(
    store: Located, packed_names: Collection[str], chosen: Collection[str] | None, findings: FindingCollector
) -> None:
    """Report files in the folders of bases that the pack's manifest does not list: ``install`` refuses such bases.

    ``packed_names`` are the listed paths; ``chosen`` are the ids of the bases to check, None: all.
    """
    root = store.tree.path
    for place in sorted((root / KNOWLEDGE_FOLDER).glob("*")):
        for path in (place / INDEX_FILE, *sorted((place / RAW_FOLDER).rglob("*"))):
            name = path.relative_to(root).as_posix()
            if _is_chosen(place.name, chosen) and name not in packed_names and path.is_file() and not path.is_symlink():
                findings.add(
                    v2.CORRUPT,
                    tr("it is not listed in the manifest of the pack"),
                    base=place.name,
                    sample=path_text(name),
                )


def _check_packed_file(store: Located, packed: PackedFile, base: str | None, findings: FindingCollector) -> None:
    """Compare a file of a pack with its manifest: by hash, or at the quick level by size.

    ``base`` is for the finding.
    """
    path = store.tree.path / packed.path
    if ".." in PurePosixPath(packed.path).parts or PurePosixPath(packed.path).is_absolute():
        findings.add(
            v2.CORRUPT, tr("{manifest} names a file outside of the pack", manifest=pack.MANIFEST), sample=packed.path
        )
        return
    try:
        if findings.level >= Level.DEFAULT:
            problem = pack.find_file_problem(path, packed, store.digests.get(packed.path))
        else:
            problem = None if path.is_file() and path.stat().st_size == packed.bytes else tr("its size differs")
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem is not None:
        findings.add(
            v2.CORRUPT, tr("differs from what was packed: {problem}", problem=problem), base=base, sample=packed.path
        )


def _base_of_member(archive: Located, name: str) -> str | None:
    """Return the id of the base whose folder contains the member ``name`` of an archive; None if no base's does."""
    parts = PurePosixPath(name).parts
    above = PurePosixPath(archive.stores.bases).parts
    return parts[len(above)] if parts[: len(above)] == above and len(parts) > len(above) + 1 else None


# --- statistics for the HTML page ----------------------------------------------------------------------------------


#: Unix milliseconds of the first day that has no date in Python.
_YEAR_10000_MS = 253_402_300_800_000
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _ReportedRows(msgspec.Struct):
    """Row counts of a base in the report of a migration."""

    read: _Count = 0
    carried: _Count = 0
    without_vector: _Count = 0
    v1_deduplicated: _Count = 0
    restored_duplicate: _Count = 0
    skipped: dict[str, _Count] = msgspec.field(default_factory=dict)


class _ReportedBase(msgspec.Struct):
    """A base in the report of a migration."""

    id: str
    rows: _ReportedRows | None = None


class _LibraryReport(msgspec.Struct):
    """The fields of a migration's report that statistics need."""

    bases: list[_ReportedBase] = msgspec.field(default_factory=list)


def collect_statistics(
    indexes: dict[str, IndexFacts], names: dict[str, str], ages: dict[str, dict[str, int]], report: bytes
) -> Statistics:
    """Return the counts of every base, with the migrated rows of v1 if a library's report has them.

    Args:
        indexes: counts of the index files, by base id.
        names: names of the bases, by id.
        ages: items by the month in which they were added, by base id.
        report: content of the library's report, which can be empty.
    """
    rows: dict[str, _ReportedRows] = {}
    # It may be the file of another program.
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        reported = msgspec.json.decode(report, type=_LibraryReport).bases
        rows = {base.id: base.rows for base in reported if base.rows is not None}
    bases = []
    for key, name in names.items():
        index = indexes.get(key) or IndexFacts()
        bases.append(
            BaseStatistics(
                id=key,
                name=name,
                units=index.counts.get("units"),
                bodies=index.counts.get("bodies"),
                covered=index.counts.get("covered"),
                duplicates=index.counts.get("duplicates"),
                embeddings=index.counts.get("embeddings"),
                lengths={str(size // 4): count for size, count in sorted(index.lengths.items())},
                norms=index.norms,
                ages=ages.get(key),
                rows=rows.get(key),
            )
        )
    return Statistics(bases=bases)


def _count_ages(items: list[Row]) -> dict[str, int]:
    """Count the items of a base by the month (UTC) in which they were added; deleted items are left out."""
    months: Counter[str] = Counter()
    for item in items:
        added = item.get("created_at")
        if item.get("deleted_at") is None and isinstance(added, int) and 0 < added < _YEAR_10000_MS:
            months[f"{utc_datetime(added):%Y-%m}"] += 1
    return dict(sorted(months.items()))


class _StoreAudit(msgspec.Struct):
    """State of the audit of one store."""

    findings: FindingCollector
    #: The part of all rows to read; None: as the level of the findings says.
    part: RollingPart | None = None
    #: Whether the source is a slim backup, which has no indexes and no files.
    is_slim: bool = False
    #: Members of an archive that could not be extracted.
    damaged: Collection[str] = ()
    #: The folder of all bases, below the root.
    bases: str = ""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    indexes: dict[str, IndexFacts] = msgspec.field(default_factory=dict)
    #: Items by the month in which they were added, by base id.
    ages: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    #: The command or upgrade that brought the bases to v2, for messages.
    made_by: str = "upgrade"
    #: Ids of bases of a profile that regraft inserted.
    inserted: Collection[str] = ()
    #: Number of files of each base for which the library's report records that v1 had no rows.
    without_rows: dict[str, int] = msgspec.field(default_factory=dict)
    #: Ids of items for which the library's report records that a salvage lost rows, or may have.
    lost_rows: Collection[str] = ()
    items: int = 0
    bytes: int = 0
    raw_files: int = 0


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """One base as the catalog and the folder of bases have it; None for what is missing."""

    key: str
    row: Row | None
    items: list[Row] | None
    store: StoreFile | None


def audit(store: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Audit v2 data without writing. The data never makes this raise.

    Args:
        store: the store; an archive must be unpacked first (:mod:`regraft.stores.locate`).
        options: what to check.
        command_line: makes the command lines that fix findings; None: findings get no command.
    """
    root = store.tree.path
    state = _begin_audit(store, options)
    report_unreadable_members(store, state.findings)
    state.without_rows, state.lost_rows = recorded_losses(root, store)
    state.inserted = inserted_bases(root, store)
    catalog = _read_catalog(root, store, state.findings)
    _check_schema(root, store, state.findings)
    _check_profile(root, store, state.findings)
    stores = _stores_by_base(store)
    chosen = _choose_bases(store, options, stores)
    rows = _rows_by_base(catalog)
    if catalog is not None:
        _check_rows(catalog, chosen, profile.detect_running_app(root) is not None, state)
    if store.is_slim:
        report_slim_backup(rows, chosen, state.findings)
    bases = list(_bases(catalog, stores, chosen))
    with stage(options.progress, "Checking", sum(base.store is not None for base in bases), "bases"):
        for base in bases:
            name = base.key if base.row is None else str(base.row.get("name"))
            options.progress.at(name)
            _check_base(root, base, state)
            if base.items is not None:
                state.ages[base.key] = _count_ages(base.items)
    if store.stores.is_whole and chosen is None:
        _check_strays(root / state.bases, None if catalog is None else rows, stores, state, store.kind)
    if store.kind in (Kind.PACK, Kind.LIBRARY) and not store.stores.is_copy:
        check_pack(store, chosen, state.findings)
    audited = _make_audit(store, state, root)
    # No command changes a store while a restore or reset is pending, or a copy of a catalog.
    if command_line is None or store.stores.is_copy or state.findings.count(v2.PENDING, None):
        return audited
    return add_commands(
        audited,
        command_line,
        is_whole=store.stores.is_whole,
        orphans=_unlisted_bases(store, catalog, stores),
        is_salvaged=store.kind in V2_STORES,
        attachable=_find_attachable_models(state, catalog),
    )


def _find_attachable_models(state: _StoreAudit, catalog: StoredCatalog | None) -> dict[str, str]:
    """Map the ids of bases with vectors but no model to the only model that can have made the vectors.

    Bases for which there are several such models, or none, are left out.
    """
    found: dict[str, str] = {}
    for base, index in state.indexes.items():
        if catalog is not None and index.lengths and state.findings.count(v2.VECTOR_UNEXPECTED, base):
            model = find_only_candidate(choose_vector_length(index.lengths, None) // 4, catalog, base)
            if model is not None:
                found[base] = model
    return found


def _begin_audit(store: Located, options: CheckOptions) -> _StoreAudit:
    """Return the state of an audit that begins."""
    is_library = store.stores.catalog is not None and Path(store.stores.catalog).name == CATALOG_FILE
    return _StoreAudit(
        FindingCollector(
            options.level, options.max_duration, options.progress, now_ms=options.now_ms, names=options.names
        ),
        part=options.part,
        is_slim=store.is_slim,
        damaged=store.damaged,
        bases=store.stores.bases,
        made_by="migration" if is_library else "upgrade",
    )


def _stores_by_base(store: Located) -> dict[str, StoreFile]:
    """Map the id of each base that has an index file to that file."""
    return {str(one.base_id or one.name): one for one in (*store.stores.current, *store.stores.preview)}


def _choose_bases(store: Located, options: CheckOptions, base_ids: Collection[str]) -> set[str] | None:
    """Return the ids of the bases to check; None: all bases and everything beside them.

    ``base_ids`` are those of the bases that have an index file.
    """
    if options.bases:
        return set(options.bases)
    return set(base_ids) if store.kind in (Kind.BASE, Kind.INDEX) else None


def _unlisted_bases(store: Located, catalog: StoredCatalog | None, stores: dict[str, StoreFile]) -> Collection[str]:
    """Return the ids of bases that have a folder but no row in the catalog."""
    if catalog is None or not store.stores.is_whole:
        return ()
    return stores.keys() - _rows_by_base(catalog).keys()


def _rows_by_base(catalog: StoredCatalog | None) -> dict[str, Row]:
    """Map the id of each base to its row in the catalog; empty without a catalog."""
    return {} if catalog is None else catalog.rows_by_base


def _bases(catalog: StoredCatalog | None, stores: dict[str, StoreFile], chosen: set[str] | None) -> Iterator[_Base]:
    """Yield the chosen bases of the catalog, then those that only have an index file.

    ``stores`` are the index files by base id. ``chosen`` are ids of bases; None: all.
    """
    rows = _rows_by_base(catalog)
    for key in [*rows, *(key for key in stores if key not in rows)]:
        if chosen is None or key in chosen:
            items = None if catalog is None or catalog.items is None else catalog.items.get(key, [])
            yield _Base(key=key, row=rows.get(key), items=items, store=stores.get(key))


def audit_unreadable_file(path: Path, reason: str) -> Audit:
    """Return the audit of an index file that cannot be recognized."""
    findings = FindingCollector()
    findings.add(v2.UNREADABLE, tr("{named} cannot be read: {reason}", named=display_text(path.name), reason=reason))
    return _make_audit(None, _StoreAudit(findings), path)


def _read_catalog(root: Path, store: Located, findings: FindingCollector) -> StoredCatalog | None:
    """Read the catalog of a store. If that is not possible, add a finding and return None; without a catalog, None."""
    name = store.stores.catalog
    if name is None:
        return None
    try:
        return read_catalog(root / name)
    except CatalogProblem as problem:
        findings.add(v2.UNREADABLE, tr("the catalog {problem}", problem=problem), sample=name)
        return None


def _check_schema(root: Path, store: Located, findings: FindingCollector) -> None:
    """Report triggers and views on the catalog's knowledge tables that the application does not define."""
    name = store.stores.catalog
    # A catalog that cannot be read at all has been reported.
    if name is not None:
        with suppress(apsw.Error, OSError, UnicodeDecodeError), sqlite.open_readonly(root / name) as db:
            sqlite_checks.add_foreign_objects(v2_schema.find_foreign_in_catalog(db), findings, None)


def _read_report(root: Path) -> bytes:
    """Read the report of the migration; empty if it cannot be read."""
    try:
        return read_report_bytes(FolderTree(root))
    except SourceUnreadable:
        return b""  # the statistics are made without it


def recorded_losses(root: Path, store: Located) -> tuple[dict[str, int], dict[str, int]]:
    """Read how many rows were lost, from the migration report in a library, or from the ledger of a profile.

    Returns:
        By base id, the number of files that had no rows in v1. By item id, the number of rows that a salvage lost, at
        least one if it may have lost some.
    """
    without_rows: dict[str, int] = {}
    lost_rows: dict[str, int] = {}
    if store.kind is Kind.V2_PROFILE and not store.stores.is_copy:
        return _losses_of_installed_bases(root)
    if store.kind is not Kind.LIBRARY or store.stores.is_copy:
        return without_rows, lost_rows
    try:
        record: Any = json_text.loads(_read_report(root))
        kinds = {FILE_WITHOUT_ROWS: ("base", without_rows), ROWS_LOST: ("item", lost_rows)}
        for one in record["warnings"]:
            if one["code"] in kinds:
                subject, counts = kinds[one["code"]]
                key = record["ids"][f"{subject}s"].get(one[subject])
                if isinstance(key, str) and isinstance(one["count"], int):
                    counts[key] = one["count"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}, {}  # it may be anybody's file
    return without_rows, lost_rows


def texts_without_vector(root: Path, store: Located) -> dict[str, int]:
    """Read from the migration report in a library, by base id, how many texts the source had without a vector."""
    try:
        record: Any = json_text.loads(_read_report(root)) if store.kind is Kind.LIBRARY else {"bases": []}
        counts = {str(one["id"]): one["rows"]["without_vector"] for one in record["bases"]}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}  # it may be anybody's file
    return {base: count for base, count in counts.items() if isinstance(count, int)}


def _losses_of_installed_bases(root: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return what :func:`recorded_losses` does, of the bases that were installed in a profile.

    The last installation of a base that was not undone counts. Each item that lost rows has a count of 1.
    """
    without_rows: dict[str, int] = {}
    lost: dict[str | None, list[str]] = {}
    try:
        for action in _insertions(root):
            lost[action.base] = action.lost or []
            without_rows[str(action.base)] = action.without_rows or 0
    except (RegraftError, OSError):
        return {}, {}
    return without_rows, {item: 1 for items in lost.values() for item in items}


def _insertions(root: Path, without: str | None = None) -> Iterator[RecordedAction]:
    """Yield the actions that inserted bases into a profile and were not undone, oldest first.

    Those of the command ``without`` are left out.

    Raises:
        LedgerUnreadable, OSError: the ledger cannot be read.
    """
    for run in read_runs(root):
        if run.command != without and any(change.state in ("done", "expired") for change in run.changes):
            yield from (action for action in run.actions if action.action == INSERT_BASE)


def inserted_bases(root: Path, store: Located) -> set[str]:
    """Return the ids of the migrated bases that regraft inserted into a profile, as the profile's ledger says.

    Bases that ``repair --adopt`` listed again are left out: they may have any origin.
    """
    if store.kind is not Kind.V2_PROFILE or store.stores.is_copy:
        return set()
    try:
        return {str(action.base) for action in _insertions(root, without="repair")}
    except (RegraftError, OSError):
        return set()


def _check_profile(root: Path, store: Located, findings: FindingCollector) -> None:
    """Report a pending restore or reset of a profile, and a stale copy of its database."""
    # The application never starts on a backup.
    reason = None if store.kind is Kind.V2_BACKUP or store.stores.is_copy else find_pending_change(root)
    if reason is not None:
        message = tr(
            "{reason}. Changes made now are discarded at the next start, so start the application first",
            reason=reason,
        )
        findings.add(v2.PENDING, message)
    stale = store.stores.stale_copy
    if stale is not None:
        message = tr(
            "{stale} is a left-over of a beta, which nothing reads: the live database is {catalog}",
            stale=stale,
            catalog=store.stores.catalog,
        )
        findings.add(v2.STALE_COPY, message, sample=stale)


def _check_rows(catalog: StoredCatalog, chosen: set[str] | None, is_running: bool, state: _StoreAudit) -> None:
    """Check the catalog's rows of bases, models and items.

    ``chosen`` are the ids of the bases to check, None: all. ``is_running``: whether the application runs.
    """
    models = None if catalog.models is None else {row.get("id") for row in catalog.models}
    for row in catalog.bases:
        key = base_id_text(row)
        if _is_chosen(key, chosen):
            state.names[key] = str(row.get("name", key))
            is_migrated = state.made_by == "migration" or key in state.inserted
            made_by = "migration" if is_migrated else "upgrade"
            catalog_rows.check_base(row, models, state.findings, made_by)
    if chosen is None:
        used = {row.get(name) for row in catalog.bases for name in ("embedding_model_id", "rerank_model_id")}
        catalog_rows.check_models(catalog.models or (), used, state.findings)
    catalog_rows.check_items(catalog, chosen, is_running, state.findings, state.made_by)
    if state.findings.level >= Level.DEFAULT:
        catalog_rows.check_sources(catalog, chosen, state.findings)


def _check_base(root: Path, base: _Base, state: _StoreAudit) -> None:
    """Check the index and raw files of a base, and compare its items with both."""
    key, store = base.key, base.store
    state.names.setdefault(key, key)
    state.items += len(base.items or ())
    if store is None:
        _check_without_index(root, base, state)
        return
    if store.look.layout is IndexLayout.PREVIEW or store.look.leaves_rows:
        message = tr("its rows are in the table of a preview build, which the application does not read")
        state.findings.add(v2.SCHEMA_PREVIEW, message, base=key, sample=store.name)
    if store.look.layout is IndexLayout.PREVIEW:
        return
    path = root / store.name
    index = _audit_index(path, _expected_index(key, store, base.row), store, state)
    state.indexes[key] = index
    with suppress(OSError):
        state.bytes += file_paths.stat(path).st_size
    raw = root / store.raw
    if links.leads_outside(root, raw):
        try:
            links.check_inside(root, raw)
            where_to = ""
        except OSError as error:
            where_to = error.strerror or str(error)
        message = tr("its files are behind a link: {where_to}", where_to=where_to)
        state.findings.add(v2.RAW_MISSING, message, base=key, sample=store.raw)
        return
    # If only an index file was given, the location of the base's files is unknown.
    _check_files(raw, base, index, state, is_beside=path.parent.parent == raw.parent)


def _check_without_index(root: Path, base: _Base, state: _StoreAudit) -> None:
    """Check a base that has no index file, which is an error if the base is completed."""
    key, row = base.key, base.row
    folder = root / state.bases / key
    if row is None or state.is_slim or f"{state.bases}/{key}/{INDEX_FILE}" in state.damaged:
        return
    if row.get("status") == "completed":
        state.findings.add(
            v2.BASE_NO_INDEX,
            tr("completed, and its index file {why_missing}", why_missing=_why_missing(root, folder)),
            base=key,
        )
    elif base.items is not None and is_folder_name(key) and not links.leads_outside(root, folder / RAW_FOLDER):
        state.raw_files += raw_files.check_raw_files(folder / RAW_FOLDER, key, base.items, None, state.findings)


def _check_files(raw: Path, base: _Base, index: IndexFacts, state: _StoreAudit, *, is_beside: bool) -> None:
    """Compare the items of a base, the materials of its index, and its raw files.

    Args:
        raw: the folder of raw files.
        base: the base and its items.
        index: has the materials.
        state: the audit.
        is_beside: whether ``raw`` is known to be the folder of this base.
    """
    if base.items is not None and index.materials is not None:
        raw_files.check_materials(
            base.key,
            base.items,
            index.materials,
            raw,
            state.findings,
            is_completed=_is_completed(base.row),
            without_rows=state.without_rows.get(base.key, 0),
            lost_rows=state.lost_rows,
        )
    materials = index.materials if index.materials is not None else []
    if is_beside or file_paths.is_folder(raw):
        state.raw_files += raw_files.check_raw_files(raw, base.key, base.items, materials, state.findings)


def _audit_index(path: Path, expected: ExpectedIndex, store: StoreFile, state: _StoreAudit) -> IndexFacts:
    """Check an index file, or in a rolling check only a part of its rows, and return its counts and materials.

    ``store`` is the file as it was recognized.
    """
    findings = state.findings
    if state.part is not None:
        index = audit_part(path, expected, findings, state.part)
    else:
        index = audit_index(path, expected, findings)
    if store.look.by_system and index.is_readable:
        # The other commands skip this file because it could not be recognized.
        message = tr(
            "{named} could not be read when it was looked for: {problem}",
            named=display_text(path.name),
            problem=store.look.problem,
        )
        findings.add(v2.UNREADABLE, message, base=expected.base)
        index.is_readable = False
    return index


def _why_missing(root: Path, folder: Path) -> str:
    """Return the end of a sentence: the index file in ``folder`` is missing, or behind a link that is not followed."""
    try:
        links.check_inside(root, folder / INDEX_FILE)
    except (links.LinkLeadsOut, ValueError) as error:
        return tr("is behind a link: {getattr}", getattr=getattr(error, "strerror", None) or error)
    except OSError:
        pass
    return tr("is missing")


def is_folder_name(base_id: str) -> bool:
    """Whether the id of a base can be the name of a folder. An id with a path in it would lead out of the store."""
    return "\0" not in base_id and base_id not in (".", "..", "") and Path(base_id).name == base_id


def _is_completed(row: Row | None) -> bool:
    """Whether the catalog's row of a base says that the base is completed."""
    return row is not None and row.get("status") == "completed"


def _expected_index(key: str, store: StoreFile, row: Row | None) -> ExpectedIndex:
    """Collect the facts that the index of a base has to agree with, from the catalog's row of the base.

    ``key`` is the id of the base, ``store`` its index file.
    """
    folder = key if store.name.endswith(INDEX_FILE) and store.base_id is not None else None
    model = None if row is None else str(row.get("embedding_model_id") or "")
    if row is None or not _is_completed(row):
        return ExpectedIndex(base=key, folder=folder, model=model)
    has_model = row.get("embedding_model_id") is not None
    return ExpectedIndex(
        base=key,
        folder=folder,
        has_model=has_model,
        separator=unescape_separator(read_base_settings(row)[0]),
        dimensions=catalog_dimensions(row),
        model=model,
    )


def _check_strays(
    bases: Path, rows: dict[str, Row] | None, stores: dict[str, StoreFile], state: _StoreAudit, kind: Kind
) -> None:
    """Report folders that no row of the catalog names, and vector files that v1 left behind.

    Args:
        bases: the folder of all bases.
        rows: the catalog's rows of bases, by id; None: there is no catalog.
        stores: the index files, by base id.
        state: the audit.
        kind: the kind of the store.
    """
    leftovers: list[tuple[str, int]] = []
    for finding, path in find_strays(bases, rows or {}, stores):
        if finding == v2.LEFTOVER:
            leftovers.append((path.name, path.stat().st_size))
        elif rows is not None:
            message = tr(
                "{n} not listed in the catalog: repair --only index.orphan --adopt lists such bases again; gc "
                "removes them only with --only index.orphan"
            )
            state.findings.add(v2.INDEX_ORPHAN, message, noun="folder", sample=path.name)
    if leftovers and kind is not Kind.V2_BACKUP:
        hint = tr("; --kind v1-profile checks what v1 left") if kind is Kind.V2_PROFILE else ""
        size = format_bytes(sum(size for _, size in leftovers))
        message = tr(
            "{vector_files} of v1 still on disk, {size}{hint}",
            vector_files=format_count(len(leftovers), "vector file"),
            size=size,
            hint=hint,
        )
        for name, _ in leftovers:
            state.findings.add(v2.LEFTOVER, message, sample=name)


def find_strays(bases: Path, listed: Collection[str], indexed: Collection[str]) -> Iterator[tuple[str, Path]]:
    """Yield the entries of the folder of all bases that belong to no base, sorted by name.

    Args:
        bases: the folder of all bases.
        listed: ids of the bases in the catalog.
        indexed: ids of the bases that have an index.

    Yields:
        The name of the finding and the path: ``index.orphan`` for folders of bases, ``v1.leftover`` for vector files.
    """
    try:
        inside = sorted(bases.iterdir())
    except OSError:
        return
    for path in inside:
        if path.name in listed:
            continue
        if path.is_dir() and not file_paths.is_link(path):
            if is_base_folder(path, indexed):
                yield v2.INDEX_ORPHAN, path
        elif path.name not in indexed and may_be_vector_file(path):
            yield v2.LEFTOVER, path


def is_base_folder(path: Path, indexed: Collection[str]) -> bool:
    """Whether a folder is that of a base: the base has an index, or the name is a UUID and the folder is not empty.

    ``indexed`` are the ids of the bases that have an index.
    """
    return path.name in indexed or (is_uuid(path.name) and any(path.iterdir()))


def _make_audit(store: Located | None, state: _StoreAudit, root: Path) -> Audit:
    """Convert the state of the finished checks to the result of the audit. Samples get the names of their items.

    ``store`` is None for an index file that cannot be recognized.
    """
    counts = [index.counts for index in state.indexes.values()]
    checked = {name: sum(one.get(name, 0) for one in counts) for name in ("materials", "units", "bodies", "embeddings")}
    findings = state.findings
    audited = findings.to_audit(
        checked={
            "bases": len(state.names),
            "items": state.items,
            **checked,
            "raw_files": state.raw_files,
            "bytes": state.bytes,
        },
        names=state.names,
        closing=findings.closing(
            tr("texts and vectors"), tr("the structure of the databases and the texts of raw files")
        ),
        statistics=collect_statistics(
            state.indexes, state.names, state.ages, b"" if store is None else _read_report(root)
        ),
    )
    if store is None or store.stores.catalog is None:
        return audited
    indexes = {base: root / store.name for base, store in _stores_by_base(store).items()}
    return replace(audited, findings=advice.add_item_names(audited.findings, root / store.stores.catalog, indexes))


def read_base_names(located: Located) -> dict[str, str]:
    """Map base ids to names. A base that only has a folder is named by its id."""
    findings = FindingCollector()
    catalog = _read_catalog(located.tree.path, located, findings)
    rows = [] if catalog is None else catalog.bases
    named_there = {base_id_text(row): str(row.get("name")) for row in rows}
    return {**named_there, **{base: base for base in _stores_by_base(located) if base not in named_there}}
