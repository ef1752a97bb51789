"""The audit of v2 data: an index file, a base's folder, a library, a profile (``docs/findings.md``, "v2 data")."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.audit import foreign_schema
from checks.audit.collector import FindingCollector, named
from checks.audit.findings import Audit, Finding
from checks.audit.options import CheckOptions, CommandLine
from checks.cherry_v2 import catalog_rows, packs, raw_files, sample_names
from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import foreign_schema as v2_schema
from checks.cherry_v2.attaching import only_candidate
from checks.cherry_v2.index_file import Expected, Index, audit_index, rows_of
from checks.cherry_v2.installed import may_be_vectors
from checks.cherry_v2.repairs import with_commands
from checks.cherry_v2.statistics import statistics_of
from regraft import links, long_paths, sqlite
from regraft.errors import SourceUnreadable
from regraft.formats import json_text
from regraft.formats.cherry_preview.libsql import Layout
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, StoredCatalog, base_key, read_catalog
from regraft.formats.cherry_v2.index.vector_lengths import expected_length, stated_dimensions
from regraft.formats.cherry_v2.layout import CATALOG_FILE, INDEX_FILE, RAW_FOLDER, Store, is_uuid
from regraft.formats.cherry_v2.library_report import report_bytes
from regraft.formats.cherry_v2.settings import read_base_settings, unescaped_separator
from regraft.kinds import V2_STORES, Kind
from regraft.language import tr
from regraft.locate import Located
from regraft.pending import pending_in
from regraft.report.notices import FILE_WITHOUT_ROWS
from regraft.report.progress import human_bytes, stage
from regraft.text import counted
from regraft.tree import FolderTree


class _Seen(msgspec.Struct):
    """What an audit has seen of a whole store."""

    ledger: FindingCollector
    #: Whether indexes and files lie elsewhere.
    is_slim: bool = False
    #: Files that could not be read out of an archive.
    damaged: Collection[str] = ()
    #: The folder of all bases.
    bases: str = ""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    indexes: dict[str, Index] = msgspec.field(default_factory=dict)
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
    store: Store | None


def audit(found: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Check v2 data without writing anything.

    Args:
        found: files and folders; an archive is unpacked first (:mod:`regraft.unpacking`).
        options: what to look at.
        command_line: gives the command lines that mend what is found; without it, none is given.

    Never raises for what is in the data.
    """
    root = found.tree.path
    seen = _nothing_seen(found, options)
    packs.name_damaged(found, seen.ledger)
    seen.without_rows = _recorded_without_rows(root, found)
    catalog = _catalog(root, found, seen.ledger)
    _check_schema(root, found, seen.ledger)
    _check_profile(root, found, seen.ledger)
    stores = _stores_by_base(found)
    chosen = _chosen(found, options, stores)
    rows = _rows_by_base(catalog)
    if catalog is not None:
        _check_rows(catalog, chosen, profile.sign_of_life(root) is not None, seen)
    if found.is_slim:
        packs.name_slim(rows, chosen, seen.ledger)
    bases = list(_bases(catalog, stores, chosen))
    with stage(options.progress, "Checking", sum(base.store is not None for base in bases), "bases"):
        for base in bases:
            name = base.key if base.row is None else str(base.row.get("name"))
            options.progress.at(name)
            _check_base(root, base, seen)
    if found.stores.is_whole and chosen is None:
        _check_folder(root / seen.bases, None if catalog is None else rows, stores, seen, found.kind)
    if found.kind in (Kind.PACK, Kind.LIBRARY) and not found.stores.is_copy:
        packs.check(found, chosen, seen.ledger)
    audited = _audit(found, seen, root)
    # While a restore or reset is pending every command refuses, and a copy of a catalog is never changed.
    if command_line is None or found.stores.is_copy or seen.ledger.count(v2.PENDING, None):
        return audited
    orphans = _unnamed(found, catalog, stores)
    return with_commands(
        audited,
        command_line,
        is_whole=found.stores.is_whole,
        orphans=orphans,
        is_salvaged=found.kind in V2_STORES,
        attachable=_attachable(seen, catalog),
    )


def _attachable(seen: _Seen, catalog: StoredCatalog | None) -> dict[str, str]:
    """Return the one model that may be that of a base's vectors, by the base, where the base has no model."""
    found: dict[str, str] = {}
    for base, index in seen.indexes.items():
        if catalog is not None and index.lengths and seen.ledger.count(v2.VECTOR_UNEXPECTED, base):
            model = only_candidate(expected_length(index.lengths, None) // 4, catalog, base)
            if model is not None:
                found[base] = model
    return found


def _nothing_seen(found: Located, options: CheckOptions) -> _Seen:
    is_library = found.stores.catalog is not None and Path(found.stores.catalog).name == CATALOG_FILE
    return _Seen(
        FindingCollector(options.level, options.max_duration, options.progress, now_ms=options.now_ms),
        is_slim=found.is_slim,
        damaged=found.damaged,
        bases=found.stores.bases,
        carried_by="migration" if is_library else "upgrade",
    )


def _stores_by_base(found: Located) -> dict[str, Store]:
    return {str(store.base_id or store.name): store for store in (*found.stores.current, *found.stores.preview)}


def _chosen(found: Located, options: CheckOptions, stores: Collection[str]) -> set[str] | None:
    """Return the ids of the only bases to check; None: all that there are, and what lies beside them."""
    if options.bases:
        return set(options.bases)
    return set(stores) if found.kind in (Kind.BASE, Kind.INDEX) else None


def _unnamed(found: Located, catalog: StoredCatalog | None, stores: dict[str, Store]) -> Collection[str]:
    """Return the ids of the bases that have a folder and are not in the catalog."""
    if catalog is None or not found.stores.is_whole:
        return ()
    return stores.keys() - _rows_by_base(catalog).keys()


def _rows_by_base(catalog: StoredCatalog | None) -> dict[str, Row]:
    return {} if catalog is None else {base_key(row): row for row in catalog.bases}


def _bases(catalog: StoredCatalog | None, stores: dict[str, Store], chosen: set[str] | None) -> Iterator[_Base]:
    """Yield the chosen bases of the catalog, then those that only have an index."""
    rows = _rows_by_base(catalog)
    for key in [*rows, *(key for key in stores if key not in rows)]:
        if chosen is None or key in chosen:
            items = None if catalog is None or catalog.items is None else catalog.items.get(key, [])
            yield _Base(key=key, row=rows.get(key), items=items, store=stores.get(key))


def unreadable(path: Path, reason: str) -> Audit:
    """Return the audit of an index file that nobody can even recognise."""
    ledger = FindingCollector()
    ledger.add(v2.UNREADABLE, tr("{named} cannot be read: {reason}", named=named(path.name), reason=reason))
    return _audit(None, _Seen(ledger), path)


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
        with suppress(apsw.Error, OSError, UnicodeDecodeError), sqlite.reading(root / name) as db:
            foreign_schema.add(v2_schema.of_catalog(db), ledger, None)


def _report_of(root: Path) -> bytes:
    try:
        return report_bytes(FolderTree(root))
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
    reason = None if found.kind is Kind.V2_BACKUP or found.stores.is_copy else pending_in(root)
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


def _check_rows(catalog: StoredCatalog, chosen: set[str] | None, is_running: bool, seen: _Seen) -> None:
    models = None if catalog.models is None else {row.get("id") for row in catalog.models}
    for row in catalog.bases:
        key = base_key(row)
        if chosen is None or key in chosen:
            seen.names[key] = str(row.get("name", key))
            catalog_rows.check_base(row, models, seen.ledger, seen.carried_by)
    if chosen is None:
        used = {row.get(name) for row in catalog.bases for name in ("embedding_model_id", "rerank_model_id")}
        catalog_rows.check_models(catalog.models or (), used, seen.ledger)
    catalog_rows.check_items(catalog, chosen, is_running, seen.ledger)


def _check_base(root: Path, base: _Base, seen: _Seen) -> None:
    """Check what belongs to one base: its index, its raw files, and its items against both."""
    key, store = base.key, base.store
    seen.names.setdefault(key, key)
    seen.items += len(base.items or ())
    if store is None:
        _check_without_index(root, base, seen)
        return
    if store.look.layout is Layout.PREVIEW or store.look.leaves_rows:
        message = tr("its rows are in the table of a preview build, which the application does not read")
        seen.ledger.add(v2.SCHEMA_PREVIEW, message, base=key, sample=store.name)
    if store.look.layout is Layout.PREVIEW:
        return
    path = root / store.name
    index = _audited(path, _expected(key, store, base.row), store, seen.ledger)
    seen.indexes[key] = index
    with contextlib.suppress(OSError):
        seen.bytes += long_paths.stat(path).st_size
    raw = root / store.raw
    if links.leads_out(root, raw):
        message = tr("its files are behind a link: {where_to}", where_to=_where_to(root, raw))
        seen.ledger.add(v2.RAW_MISSING, message, base=key, sample=store.raw)
        return
    # Of an index file by itself nobody knows where the base's files are.
    _check_files(raw, base, index, seen, is_beside=path.parent.parent == raw.parent)


def _check_without_index(root: Path, base: _Base, seen: _Seen) -> None:
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
    elif base.items is not None and is_name(key) and not links.leads_out(root, folder / RAW_FOLDER):
        seen.raw_files += raw_files.check(folder / RAW_FOLDER, key, base.items, None, seen.ledger)


def _check_files(raw: Path, base: _Base, index: Index, seen: _Seen, *, is_beside: bool) -> None:
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
    if is_beside or long_paths.is_folder(raw):
        seen.raw_files += raw_files.check(raw, base.key, base.items, materials, seen.ledger)


def _audited(path: Path, expected: Expected, store: Store, ledger: FindingCollector) -> Index:
    index = audit_index(path, expected, ledger)
    if store.look.by_system and index.is_readable:
        # Whoever goes by that first look has passed over the file.
        message = tr(
            "{named} could not be read when it was looked for: {problem}",
            named=named(path.name),
            problem=store.look.problem,
        )
        ledger.add(v2.UNREADABLE, message, base=expected.base)
        index.is_readable = False
    return index


def _where_to(root: Path, path: Path) -> str:
    try:
        links.checked(root, path)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _why_missing(root: Path, folder: Path) -> str:
    """Say why a base has no index: there is no file, or it is behind a link that is not followed."""
    try:
        links.checked(root, folder / INDEX_FILE)
    except (links.LeadsOut, ValueError) as error:
        return tr("is behind a link: {getattr}", getattr=getattr(error, "strerror", None) or error)
    except OSError:
        pass
    return tr("is missing")


def is_name(key: str) -> bool:
    """Tell whether a base's id can be a folder's name: one with a path in it leads out of the store."""
    return "\0" not in key and key not in (".", "..", "") and Path(key).name == key


def _is_completed(row: Row | None) -> bool:
    return row is not None and row.get("status") == "completed"


def _expected(key: str, store: Store, row: Row | None) -> Expected:
    folder = key if store.name.endswith(INDEX_FILE) and store.base_id is not None else None
    if row is None or not _is_completed(row):
        return Expected(base=key, folder=folder)
    has_model = row.get("embedding_model_id") is not None
    return Expected(
        base=key,
        folder=folder,
        has_model=has_model,
        separator=unescaped_separator(read_base_settings(row)[0]),
        dimensions=stated_dimensions(row),
    )


def _check_folder(bases: Path, rows: dict[str, Row] | None, stores: dict[str, Store], seen: _Seen, kind: Kind) -> None:
    """Look for folders of bases that the catalog does not name, and for what v1 left."""
    leftovers: list[tuple[str, int]] = []
    for finding, path in strays(bases, rows or {}, stores):
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
        size = human_bytes(sum(size for _, size in leftovers))
        message = tr(
            "{vector_files} of v1 still there, {size}{hint}",
            vector_files=counted(len(leftovers), "vector file"),
            size=size,
            hint=hint,
        )
        for name, _ in leftovers:
            seen.ledger.add(v2.LEFTOVER, message, sample=name)


def strays(bases: Path, named: Collection[str], stores: Collection[str]) -> Iterator[tuple[str, Path]]:
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
        elif path.name not in stores and may_be_vectors(path):
            yield v2.LEFTOVER, path


def is_base_folder(path: Path, stores: Collection[str]) -> bool:
    """Tell whether a folder beside those of bases is one of a base: it has an index, or is called like one."""
    return path.name in stores or (is_uuid(path.name) and any(path.iterdir()))


def _audit(found: Located | None, seen: _Seen, root: Path) -> Audit:
    rows = [dict(rows_of(index)) for index in seen.indexes.values()]
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
        statistics=statistics_of(seen.indexes, seen.names, b"" if found is None else _report_of(root)),
        not_checked=ledger.missing(),
        level=ledger.level.name.lower(),
    )


def _named_findings(found: Located | None, seen: _Seen, root: Path) -> tuple[Finding, ...]:
    """Return all that was found, with the names of items."""
    findings = seen.ledger.findings()
    if found is None or found.stores.catalog is None:
        return findings
    indexes = {base: root / store.name for base, store in _stores_by_base(found).items()}
    return sample_names.with_names(findings, root / found.stores.catalog, indexes)


def base_names(found: Located) -> dict[str, str]:
    """Return the names of the bases that a store has by their ids; of one that only has a folder, its id."""
    ledger = FindingCollector()
    catalog = _catalog(found.tree.path, found, ledger)
    rows = [] if catalog is None else catalog.bases
    named_there = {base_key(row): str(row.get("name")) for row in rows}
    return {**named_there, **{base: base for base in _stores_by_base(found) if base not in named_there}}
