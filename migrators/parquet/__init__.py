"""From a Parquet file of units back to a library (``docs/formats/parquet.md``, "The way back").

The files are read, each base is planned, its index is built, and it is published.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec.structs import fields

from migrators.parquet.index_builder import ImportedIndex, verify_index
from migrators.pipeline import preflight, publication, report
from migrators.pipeline.base_writer import COPY_SHARE, ROWS_PER_REPORT, IndexingProgress
from migrators.pipeline.publication import CATALOG_SUBJECT, REPORT_SUBJECT, BaseEntry, is_present, read_entry
from migrators.pipeline.report import BaseOutcome, index_path
from migrators.pipeline.session import Migration, Session, session
from migrators.pipeline.source import Options
from migrators.pipeline.survey import keep_completed, keep_for_vectors
from regraft import identity
from regraft.disk import durable, sqlite
from regraft.disk.file_paths import fold_name, is_folder_name
from regraft.disk.trees import stream_crc32
from regraft.errors import BaseUnknown, Declined, SourceNotMigratable, SourceUnreadable, WrongUsage
from regraft.formats import json_text
from regraft.formats.cherry_v2 import catalog
from regraft.formats.cherry_v2.catalog import EMBEDDING, RERANK, BaseRecord, BaseRow, ItemRow, ProviderRow
from regraft.formats.cherry_v2.catalog_generation import read_model
from regraft.formats.cherry_v2.catalog_reader import find_data_damage
from regraft.formats.cherry_v2.settings import Settings
from regraft.formats.parquet import unit_file
from regraft.formats.parquet.unit_file import BaseMetadata, BaseTotals, FileMetadata, UnitRow
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.ledger.ledger import LedgerEntry
from regraft.report import notices
from regraft.report.document import Run
from regraft.report.migration import BaseReport, IndexReport, MigrationReport, RowsReport
from regraft.report.notices import Notice
from regraft.report.progress import Progress, stage
from regraft.stores.locate import INDEX_FILE
from regraft.stores.systems import StoredVectors, TextVector
from regraft.text import decode_utf8, printable, replace_surrogates

# --- files ---------------------------------------------------------------------------------------------------------


class UnitsFile(msgspec.Struct):
    """A Parquet file of units. :meth:`survey` reads its rows."""

    path: Path
    metadata: FileMetadata
    #: Size and modification time (ns) when the file was opened.
    looked_at: tuple[int, int]
    #: Totals of its rows by base id; None before the survey.
    totals: dict[Any, BaseTotals] | None = None

    def content_mark(self) -> list[int]:
        """Return size and CRC-32 of the file, which identify its content.

        Raises:
            SourceUnreadable: the file cannot be read, or has changed since it was opened.
        """
        try:
            with self.path.open("rb") as file:
                found = [self.looked_at[0], stream_crc32(file)]
            stamp = _file_stamp(self.path)
        except OSError as error:
            raise SourceUnreadable(path=self.path, reason=error.strerror or error) from error
        if stamp != self.looked_at:
            raise SourceUnreadable(path=self.path, reason=tr("it changed while it was read"))
        return found

    def survey(self, watch: Callable[[float], None]) -> None:
        """Count the rows of each base by reading the whole file once.

        ``watch`` is called with the share of the file read since its last call.

        Raises:
            SourceUnreadable: the file is damaged.
        """
        self.totals = unit_file.survey_file(self.path, watch)

    def totals_of(self, base: BaseMetadata) -> BaseTotals:
        """Return the counts of a base's rows; empty for a base without an index."""
        return (self.totals or {}).get(base.id, BaseTotals()) if base.index else BaseTotals()

    def strays(self) -> int:
        """Count the rows whose base the file does not describe."""
        described = {base.id for base in self.metadata.bases if base.index}
        return sum(totals.rows for base, totals in (self.totals or {}).items() if base not in described)

    def rows(self, base: BaseMetadata) -> Iterator[UnitRow]:
        """Yield the rows of one base, from the row groups that hold them.

        Raises:
            SourceUnreadable: the file is damaged, or has changed since the survey.
        """
        try:
            for row in unit_file.read_rows(self.path, self.totals_of(base).groups):
                if row.base == base.id:
                    yield row
        except SourceUnreadable:
            # A read error in a file that is being written is reported as a change, not as damage.
            if _file_stamp(self.path) == self.looked_at:
                raise
        if _file_stamp(self.path) != self.looked_at:
            raise SourceUnreadable(path=self.path, reason=tr("it changed while it was read"))


def open_files(paths: tuple[Path, ...]) -> list[UnitsFile]:
    """Open the files of an import and read their metadata. Each base must be in one file only.

    Raises:
        SourceUnreadable, SourceUnrecognised, SourceNotMigratable: a file is damaged, of another kind, or a table of v1.
        WrongUsage: two files hold the same base, or pyarrow is missing.
    """
    owners: dict[str, Path] = {}
    files = []
    for path in paths:
        if path.is_dir():
            advice = tr("import reads files of regraft export; for a store, use regraft migrate")
            raise SourceNotMigratable(path=path, what=tr("a folder"), advice=advice)
        if not path.is_file():
            raise SourceUnreadable(path=path, reason=tr("no such file"))
        stamp, metadata = _file_stamp(path), unit_file.read_metadata(path)
        if metadata.layout not in ("v2", "chroma"):
            advice = tr("migrate the source that it was exported from, with regraft migrate")
            is_v1 = metadata.layout == "v1"
            what = tr("the rows of v1 vector files") if is_v1 else tr("the chunks of an rsclaw knowledge base")
            raise SourceNotMigratable(path=path, what=what, advice=advice)
        for base in metadata.bases:
            if fold_name(base.id) in owners:
                problem = tr(
                    "base {id} is in {owners} and in {path}", id=base.id, owners=owners[fold_name(base.id)], path=path
                )
                raise WrongUsage(problem=problem, hint=tr("give each base in one file only"))
            if not is_folder_name(base.id) or fold_name(base.id) in (CATALOG_SUBJECT, REPORT_SUBJECT):
                raise SourceUnreadable(
                    path=path, reason=tr("the id of its base {id!r} is not a valid folder name", id=base.id)
                )
            owners[fold_name(base.id)] = path
        files.append(UnitsFile(path, metadata, stamp))
    return files


def select_bases(files: list[UnitsFile], wanted: tuple[str, ...]) -> list[tuple[int, UnitsFile, BaseMetadata]]:
    """Return the bases to import, each with its position and file. Empty ``wanted`` means all.

    Raises:
        BaseUnknown: an id of ``wanted`` is not in the files.
    """
    every = [(file, base) for file in files for base in file.metadata.bases]
    known = [base.id for _, base in every]
    for one in wanted:
        if one not in known:
            raise BaseUnknown(base=one, known=join_list(known) or tr("no bases"))
    return [(at, file, base) for at, (file, base) in enumerate(every) if not wanted or base.id in wanted]


def _file_stamp(path: Path) -> tuple[int, int]:
    """Return size and modification time (ns) of a file, to notice later changes."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


# --- catalog rows --------------------------------------------------------------------------------------------------
#
# From the metadata of the file or, if it has none, from the index.


#: Error of a base whose file does not name the model of its vectors.
MODEL_UNKNOWN = "missing_embedding_model"


def make_base_record(file: Path, metadata: FileMetadata, base: BaseMetadata, now_ms: int) -> BaseRecord:
    """Make a base's catalog rows, without its items, from the metadata of a file.

    Raises:
        SourceUnreadable: the metadata are not valid rows of a catalog.
    """
    try:
        row = msgspec.convert(_base_row(base, now_ms), BaseRow)
        named = {row.embedding_model_id: EMBEDDING}
        named.setdefault(row.rerank_model_id, RERANK)
        listed = {one["id"]: one for one in metadata.models}
        models = []
        for model_id, capabilities in named.items():
            if model_id is not None:
                provider, _, name = model_id.partition("::")
                from_id = {"id": model_id, "provider_id": provider, "model_id": name or provider}
                described = msgspec.convert(listed.get(model_id, from_id), _ModelMetadata, strict=False)
                models.append(read_model(msgspec.structs.asdict(described), capabilities))
        known = {one["provider_id"]: msgspec.convert(one, ProviderRow, strict=False) for one in metadata.providers}
        keys = dict.fromkeys(model.provider_id for model in models)
        providers = [known.get(key) or ProviderRow(key, key, is_enabled=False) for key in keys]
    except (msgspec.MsgspecError, KeyError) as error:
        raise SourceUnreadable(
            path=file, reason=tr("the metadata of base {id} are invalid: {error}", id=base.id, error=error)
        ) from error
    return BaseRecord(base=row, models=tuple(models), providers=tuple(providers), now_ms=now_ms)


class _ModelMetadata(msgspec.Struct):
    """A model in the metadata. Fields that inherit the application's defaults are null."""

    id: str
    provider_id: str
    model_id: str
    name: str | None = None
    group: str | None = None
    capabilities: str | list[str] | None = None
    supports_streaming: bool | None = None


def _base_row(base: BaseMetadata, now_ms: int) -> dict[str, Any]:
    """Make the catalog row of a base from the settings in the file, or from defaults."""
    usual: dict[str, Any] = {one.name: getattr(Settings(), one.name) for one in fields(Settings)}
    if base.settings is not None:
        names = [one.name for one in fields(BaseRow)]
        known = {name: base.settings[name] for name in names if name in base.settings}
        defaults = dict.fromkeys(("rerank_model_id", "file_processor_id", "error"))
        times = dict.fromkeys(("created_at", "updated_at"), now_ms)
        return {**usual, **defaults, **times, **known}
    values: dict[str, Any] = {"dimensions": base.dimensions, "embedding_model_id": base.model}
    values |= {"status": "completed", "error": None}
    if base.dimensions is None:
        values |= {"embedding_model_id": None}
    elif base.model is None:
        values |= {"status": "failed", "error": MODEL_UNKNOWN}
    values |= {"created_at": now_ms, "updated_at": now_ms, "rerank_model_id": None, "file_processor_id": None}
    return {"id": base.id, "name": base.name.strip() or base.id, **values, **usual}


def catalog_items(base: BaseMetadata, skipped: Counter[str]) -> Iterator[ItemRow]:
    """Yield the items of a base in the file, each container before its content.

    Invalid and deleted items are left out and counted in ``skipped``, by reason.
    """
    waiting = []
    for stored in base.items or ():
        if stored.get("deleted_at") is not None:
            skipped[notices.ITEM_DELETED] += 1
            continue
        item = _convert_item(stored)
        if item is None or item.base_id != base.id:
            skipped[notices.NOT_AN_ITEM] += 1
        else:
            waiting.append(item)
    placed: set[str | None] = {None}
    while waiting:
        later = []
        for row in waiting:
            if row.group_id in placed:
                yield row
                placed.add(row.id)
            else:
                later.append(row)
        if len(later) == len(waiting):
            # Their container is missing, so the catalog would refuse them.
            skipped[notices.NOT_AN_ITEM] += len(later)
            return
        waiting = later


def _convert_item(row: dict[str, Any]) -> ItemRow | None:
    """Convert a row of ``knowledge_item`` in the file. None if it is invalid or would not survive the ledger's JSON."""
    try:
        data = {
            key: replace_surrogates(one) if isinstance(one, str) else one
            for key, one in json_text.loads(row["data"]).items()
        }
        item = msgspec.convert({**row, "data": data}, ItemRow)
        return (
            item
            if find_data_damage(row) is None and msgspec.json.decode(msgspec.json.encode(item), type=ItemRow) == item
            else None
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, msgspec.MsgspecError):
        return None


def items_from_materials(base_id: str, index: Path, now_ms: int) -> Iterator[ItemRow]:
    """Make a file item for every material of an index, for a base whose items the file does not have."""
    with sqlite.open_readonly(index) as db:
        for material, path in db.execute("SELECT material_id, relative_path FROM material ORDER BY rowid"):
            yield item_from_material(base_id, material, path, now_ms)


def item_from_material(base_id: str, material: str, path: str, now_ms: int) -> ItemRow:
    """Make a file item for the material with this id and path."""
    data = {"source": path, "relativePath": path}
    return ItemRow(
        id=material,
        base_id=base_id,
        group_id=None,
        type="file",
        data=data,
        status="completed",
        error=None,
        created_at=now_ms,
        updated_at=now_ms,
    )


#: Bytes on disk for one byte of an item: in the catalog, in its replacement while that is written, and in the ledger.
ITEM_FACTOR = 3


class BaseImportPlan(msgspec.Struct, frozen=True):
    """The plan of one base. Items made from its materials are not listed: ``items`` = None."""

    metadata: BaseMetadata
    file: UnitsFile
    totals: BaseTotals
    record: BaseRecord
    items: tuple[ItemRow, ...] | None
    skipped_items: Counter[str]
    #: Number of rows without a base, reported with the first base of the file.
    strays: int

    def expected_items(self) -> Iterable[ItemRow]:
        """Return the items of the base. Items that will be made from materials only have their ids."""
        if self.items is not None:
            return self.items
        base, now_ms = self.metadata, self.record.now_ms
        return [item_from_material(base.id, one, one, now_ms) for one in self.materials] if base.index else []

    @property
    def materials(self) -> set[str]:
        """Ids of the materials of the base, including those whose rows may all be refused."""
        return self.totals.items | {one.id for one in self.metadata.bare_materials}

    @property
    def bytes(self) -> int:
        """Estimated size of the base on disk."""
        items = ITEM_FACTOR * len(msgspec.json.encode(self.items or ()))
        if not self.metadata.index:
            return items
        bare = sum(len(one.content or "") for one in self.metadata.bare_materials)
        return items + preflight.estimate_index_bytes(
            self.totals.rows, self.totals.rows, self.totals.vector_bytes, self.totals.text_bytes + bare
        )


# --- report --------------------------------------------------------------------------------------------------------


def planned_outcome(plan: BaseImportPlan) -> BaseOutcome:
    """Describe a planned base for the report, assuming that all its rows are valid."""
    totals = plan.totals
    rows = RowsReport(read=totals.rows, carried=totals.rows, skipped={})
    index = None
    if plan.metadata.index:
        path = index_path(plan.metadata.id)
        index = IndexReport(path=path, materials=len(plan.materials), units=totals.rows, embeddings=None, bytes=None)
    return _make_outcome(plan, plan.expected_items(), rows, index)


def imported_outcome(
    plan: BaseImportPlan, items: Iterable[ItemRow], built: ImportedIndex | None, size: int
) -> BaseOutcome:
    """Describe an imported base for the report.

    ``built`` is its index (None without one), ``size`` the size of the index in bytes.
    """
    if built is None:
        return _make_outcome(plan, items, RowsReport(read=0, carried=0, skipped={}), None)
    rows = RowsReport(read=built.read, carried=built.carried, skipped=dict(sorted(built.skipped.items())))
    index = IndexReport(
        path=index_path(plan.metadata.id),
        materials=built.materials,
        units=built.carried,
        embeddings=built.vectors,
        bytes=size,
    )
    return _make_outcome(plan, items, rows, index, differing=built.differing, remade=built.remade)


def _make_outcome(
    plan: BaseImportPlan,
    items: Iterable[ItemRow],
    rows: RowsReport,
    index: IndexReport | None,
    *,
    differing: int = 0,
    remade: int = 0,
) -> BaseOutcome:
    """Describe a base for the report.

    ``differing`` counts texts with two different vectors, ``remade`` materials that were rebuilt from their units.
    """
    base = plan.record.base
    statuses = Counter(item.status for item in items)
    base_report = BaseReport(
        id=base.id,
        name=base.name,
        status="failed" if base.status == "failed" else "completed",
        error=base.error,
        dimensions=base.dimensions,
        outcome="failed" if base.status == "failed" else "written",
        items=dict(sorted(statuses.items())),
        skipped_items=dict(sorted(plan.skipped_items.items())),
        rows=rows,
        vectors=plan.totals.vectors,
        differing_vectors=differing,
        remade=remade,
        index=index,
    )
    return BaseOutcome(base=base_report, items={}, children={}, notices=tuple(_make_notices(plan, base_report)))


def _make_notices(plan: BaseImportPlan, base_report: BaseReport) -> Iterator[Notice]:
    """Yield the notices of a base: rows and items left out, and texts or vectors that were adjusted."""
    base = plan.record.base

    def notice(code: str, message: str, count: int = 1) -> Notice:
        """Make a notice about the base."""
        return Notice(code=code, message=message, base=base.id, count=count)

    if base.error == MODEL_UNKNOWN and plan.metadata.settings is None:
        yield notice(notices.MODEL_NOT_NAMED, tr("the file does not name the model of its vectors"))
    for reason, count in base_report.rows.skipped.items():
        yield notice(reason, tr("{rows} not imported", rows=format_count(count, "row")), count)
    for reason, count in plan.skipped_items.items():
        yield notice(reason, tr("{items} not imported", items=format_count(count, "item")), count)
    if base_report.remade:
        yield notice(
            notices.REMADE,
            tr("{materials} rebuilt from the units", materials=format_count(base_report.remade, "material")),
            base_report.remade,
        )
    if base_report.differing_vectors:
        count = base_report.differing_vectors
        said = tr("{texts} with two different vectors; the first one was kept", texts=format_count(count, "text"))
        yield notice(notices.DIFFERING_VECTOR, said, count)
    if plan.strays:
        said = tr(
            "{name}: {rows} not imported", rows=format_count(plan.strays, "row"), name=printable(plan.file.path.name)
        )
        yield Notice(code=notices.NO_BASE, message=said, count=plan.strays)


COMMAND = "import"
#: Raise it when the same file gives a different library: bases of earlier runs are then imported again.
WRITER_VERSION = 1


class ImportJob(msgspec.Struct, frozen=True):
    """One base of the run: either unchanged, with its ledger entry, or planned."""

    position: int
    base_id: str
    fingerprint: str
    unchanged: BaseEntry | None = None
    plan: BaseImportPlan | None = None


def import_files(
    paths: tuple[Path, ...],
    target: Path,
    options: Options,
    progress: Progress,
    show_plan: Callable[[MigrationReport], bool] = lambda _: True,
) -> Migration:
    """Import files that ``regraft export`` wrote to ``target``, and return the report.

    Args:
        paths: the files, each with different bases.
        target: folder of the library: new, empty, or written by an earlier run.
        options: time, bases and dry run are used.
        progress: called with rows and bytes.
        show_plan: called with the planned report before anything is written; stops the run by returning False.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    preflight.check_target(target, paths, paths[0])
    run = Run(
        command=COMMAND,
        dry_run=options.dry_run,
        source_kind="parquet",
        source=paths[0],
        target_kind="library",
        target=target,
    )
    bases = select_bases(open_files(paths), options.bases)
    with session(target, run) as at:
        plan = plan_import(bases, at, options, progress)
        outcomes = plan.outcomes()
        planned = build_import_report(run, outcomes)
        if at.is_up_to_date(plan.jobs):
            return at.without_writing(planned)
        planned = at.with_room(planned, plan.bytes)
        if options.dry_run:
            return at.without_writing(planned)
        if not show_plan(planned):
            raise Declined(path=target)
        at.begin(join_list(map(printable, paths)), plan.jobs)
        with stage(progress, "Carrying", plan.rows), _read_errors_stop_run():
            for job, base_plan in _with_fingerprints(plan, progress):
                progress.at(base_plan.metadata.name)
                outcomes[job.base_id] = import_base(at, job, base_plan, progress)
        return at.finish(build_import_report(run, outcomes))


class ImportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an import will do: each base is unchanged or has a plan."""

    jobs: tuple[ImportJob, ...]

    @property
    def planned(self) -> list[BaseImportPlan]:
        """The plans of the bases to import."""
        return [job.plan for job in self.jobs if job.plan is not None]

    @property
    def bytes(self) -> int:
        """Estimated space on the target's disk for the bases to import."""
        planned = self.planned
        around = preflight.estimate_library_bytes(len(planned), sum(len(plan.materials) for plan in planned))
        return around + sum(plan.bytes for plan in planned)

    @property
    def rows(self) -> int:
        """Number of rows to import."""
        return sum(plan.totals.rows for plan in self.planned)

    def outcomes(self) -> dict[str, BaseOutcome]:
        """Map each base id to its outcome, for the report."""
        found = {}
        for job in self.jobs:
            if job.unchanged is not None:
                found[job.base_id] = report.unchanged_outcome(job.unchanged)
            elif job.plan is not None:
                found[job.base_id] = planned_outcome(job.plan)
        return found


def plan_import(
    bases: list[tuple[int, UnitsFile, BaseMetadata]], at: Session, options: Options, progress: Progress
) -> ImportPlan:
    """Plan all bases.

    Refuse to overwrite what this command did not write, and rows that a catalog does not accept.

    Raises:
        TargetNotOurs, TargetBaseForeign, TargetBaseChanged, TargetHasItem, LinkInStore, SourceUnreadable
    """
    marks = _fingerprints(bases, at.entries)
    existing = {base.id: _unchanged_entry(at.path, base.id, at.entries, marks[base.id]) for _, _, base in bases}
    _survey_files([file for _, file, base in bases if existing[base.id] is None], progress)
    jobs = []
    for position, file, base in bases:
        job = ImportJob(position, base.id, marks[base.id], unchanged=existing[base.id])
        if job.unchanged is None:
            job = _keep_better_base(at, replace(job, plan=_plan_base(file, base, options)))
        jobs.append(job)
    plan = ImportPlan(jobs=tuple(jobs))
    changed = {one.metadata.id for one in plan.planned}
    preflight.check_conflicts(at.path, COMMAND, (base.id for _, _, base in bases), at.entries, changed)
    items = {one.metadata.id: (one.metadata.name, [item.id for item in one.expected_items()]) for one in plan.planned}
    preflight.check_items(at.path, items, at.entries)
    _check_catalog_rows(plan.planned)
    return plan


def build_import_report(run: Run, outcomes: dict[str, BaseOutcome]) -> MigrationReport:
    """Build the report of an import from the outcomes by base id."""
    ordered = list(outcomes.values())
    skipped: Counter[str] = Counter()
    for outcome in ordered:
        skipped.update(outcome.base.skipped_items or {})
        skipped.update({one.code: one.count for one in outcome.notices if one.code == notices.NO_BASE})
    return report.build_report(run, ordered, skipped, ())


def _fingerprints(bases: list[tuple[int, UnitsFile, BaseMetadata]], entries: dict[str, LedgerEntry]) -> dict[str, str]:
    """Return the fingerprint of each base by id; empty for a base that the ledger does not have.

    A fingerprint hashes everything that the base is made from. A file counts by size and CRC-32.
    """
    # A new base has nothing to compare with. Its file is hashed later, after the free space was checked.
    found = {}
    marks: dict[Path, list[int]] = {}
    for _, file, base in bases:
        if base.id in entries and file.path not in marks:
            marks[file.path] = file.content_mark()
        found[base.id] = fingerprint(base.id, marks[file.path]) if base.id in entries else ""
    return found


def _with_fingerprints(plan: ImportPlan, progress: Progress) -> list[tuple[ImportJob, BaseImportPlan]]:
    """Return the jobs of bases to import with their plans. Missing fingerprints are computed now."""
    marks: dict[Path, list[int]] = {}
    found = []
    for job in plan.jobs:
        if job.plan is None:
            continue
        file, mark = job.plan.file, job.fingerprint
        if not mark and file.path not in marks:
            progress.at(file.path.name)
            marks[file.path] = file.content_mark()
        if not mark:
            mark = fingerprint(job.base_id, marks[file.path])
        found.append((replace(job, fingerprint=mark), job.plan))
    return found


def _survey_files(files: list[UnitsFile], progress: Progress) -> None:
    """Count the rows of each file once, even if several bases are in it."""
    unread = {file.path: file for file in files}.values()
    with stage(progress, "Reading", sum(file.looked_at[0] for file in unread), "bytes"):
        for file in unread:
            size = file.looked_at[0]
            progress.at(file.path.name)
            file.survey(lambda share, size=size: progress.step(share * size, 0))  # type: ignore[misc]


def _plan_base(file: UnitsFile, base: BaseMetadata, options: Options) -> BaseImportPlan:
    """Plan a base of a file whose rows were counted."""
    skipped: Counter[str] = Counter()
    return BaseImportPlan(
        metadata=base,
        file=file,
        totals=file.totals_of(base),
        record=make_base_record(file.path, file.metadata, base, options.now_ms),
        items=None if base.items is None else tuple(catalog_items(base, skipped)),
        skipped_items=skipped,
        strays=file.strays() if base is file.metadata.bases[0] else 0,
    )


def import_base(at: Session, job: ImportJob, plan: BaseImportPlan, progress: Progress) -> BaseOutcome:
    """Build the index of a planned base, verify and publish it, and return the outcome for the report."""
    base, staged = plan.metadata, at.staging / job.base_id
    built, size = None, 0
    if base.index:
        built = _build_index(staged / INDEX_FILE, plan, progress)
        size = (staged / INDEX_FILE).stat().st_size
        durable.sync_tree(staged)
    found = items_from_materials(base.id, staged / INDEX_FILE, plan.record.now_ms) if built else ()
    items = tuple(found) if plan.items is None else plan.items
    outcome = imported_outcome(plan, items, built, size)
    kept = _base_with_lost_vectors(at, outcome.base) if built else None
    if kept is not None:
        durable.remove_tree(staged)
        return report.unchanged_outcome(kept)
    entry = BaseEntry(
        position=job.position,
        record=plan.record,
        report=outcome.base,
        items={item.id: item.id for item in items},
        children={},
        notices=list(outcome.notices),
        has_files=base.index,
        index_mark=publication.index_mark(staged),
        index_hash=publication.index_hash(staged),
        raw_mark="",
        command=COMMAND,
    )
    at.publish(entry, job.fingerprint, items)
    return outcome


def _base_with_lost_vectors(at: Session, found: BaseReport) -> BaseEntry | None:
    """Return the entry of the existing base, with a notice, if it has vectors that the file has lost; else None.

    The file has lost some if more of its rows are damaged or have no vector than of those that the base was made from.
    """
    if found.id not in at.entries:
        return None
    existing = read_entry(at.entries[found.id])
    if not is_present(at.path, found.id, existing) or _unusable_rows(found) <= _unusable_rows(existing.report):
        return None
    is_less = publication.count_lost_vectors(at.path, at.staging / found.id, found.id) > 0
    return keep_for_vectors(existing, found.id) if is_less else None


def _unusable_rows(base: BaseReport) -> int:
    """Count the rows of a file that are damaged, or have no vector."""
    damaged = sum(base.rows.skipped.get(reason, 0) for reason in (notices.TEXT_CHANGED, notices.NOT_WHOLE))
    return damaged + base.rows.read - (base.vectors or 0)


def _build_index(path: Path, plan: BaseImportPlan, progress: Progress) -> ImportedIndex:
    """Write the index of a base at ``path`` from its rows in the file, and verify it."""
    durable.make_folders(path.parent, flush=False)
    base_id, rows = plan.metadata.id, plan.totals.rows
    with sqlite.open_writable(path, create=True) as db:
        built = ImportedIndex(base_id, plan.record.now_ms, db)
        size = (plan.totals.vector_bytes + plan.totals.text_bytes) // max(rows, 1)
        for row in plan.file.rows(plan.metadata):
            built.add(row)
            if built.read % ROWS_PER_REPORT == 0:
                progress.step(ROWS_PER_REPORT * COPY_SHARE, ROWS_PER_REPORT * size)
        if built.read != rows:
            reason = tr(
                "two reads of base {base} gave {rows:,} and {read:,} rows", rows=rows, read=built.read, base=base_id
            )
            raise SourceUnreadable(path=plan.file.path, reason=reason)
        IndexingProgress(rows, progress.step).watch(db)
        built.finish(plan.metadata.bare_materials)
    verify_index(path, base_id, built)
    return built


@contextmanager
def _read_errors_stop_run() -> Iterator[None]:
    """Convert SourceUnreadable into OSError, which stops a run that has begun but keeps its finished bases."""
    try:
        yield
    except SourceUnreadable as error:
        raise OSError(f"{error.facts['path']}: {error.facts['reason']}") from error


def fingerprint(base_id: str, content_mark: list[int]) -> str:
    """Hash everything that a base is made from; ``content_mark`` has the size and checksum of its file."""
    return hashlib.blake2b(msgspec.json.encode([WRITER_VERSION, base_id, content_mark]), digest_size=20).hexdigest()


def _unchanged_entry(target: Path, base_id: str, entries: dict[str, LedgerEntry], mark: str) -> BaseEntry | None:
    """Return the ledger entry of a base that the target already has from the same file, or None.

    ``mark`` is the fingerprint of the base in the file.
    """
    entry = entries.get(base_id)
    if entry is None or entry.fingerprint != mark:
        return None
    known = read_entry(entry)
    stands = publication.base_state(target, base_id, known)
    return known if stands in (publication.BaseState.WHOLE, publication.BaseState.CHANGED) else None


def _keep_better_base(at: Session, job: ImportJob) -> ImportJob:
    """Keep an existing completed base if the file would only give a failed one. Return the changed job."""
    if job.plan is None or job.plan.record.base.error is None or job.base_id not in at.entries:
        return job
    existing = read_entry(at.entries[job.base_id])
    if existing.record.base.error is not None or not is_present(at.path, job.base_id, existing):
        return job
    kept = keep_completed(existing, job.plan.record.base.error, job.base_id)
    return ImportJob(job.position, job.base_id, job.fingerprint, unchanged=kept)


def _find_problem(plan: BaseImportPlan) -> str | None:
    """Describe what contradicts itself in the metadata of a planned base, or return None."""
    if plan.record.base.id != plan.metadata.id:
        return tr("its base {id} has the settings of another base", id=printable(plan.metadata.id))
    if not plan.metadata.index and plan.record.base.status == "completed":
        return tr("its base {id} is completed but has no index", id=printable(plan.metadata.id))
    for row in plan.metadata.items or ():
        problem = None if row.get("deleted_at") is not None else find_data_damage(row)
        # Without the item, its material would be an orphan.
        if problem is not None and row.get("id") in plan.materials:
            return tr("its item {get} has texts, but {problem}", get=printable(row.get("id")), problem=problem)
    return None


def _check_catalog_rows(plans: list[BaseImportPlan]) -> None:
    """Refuse plans with invalid catalog rows of bases and items, before anything is written.

    Raises:
        SourceUnreadable
    """
    for plan in plans:
        problem = _find_problem(plan)
        if problem is not None:
            raise SourceUnreadable(path=plan.file.path, reason=problem)
    try:
        catalog.check_records((plan.record, plan.expected_items()) for plan in plans)
    except (apsw.ConstraintError, TypeError, OverflowError) as error:
        names = join_list(printable(name) for name in dict.fromkeys(plan.file.path for plan in plans))
        raise SourceUnreadable(
            path=names, reason=tr("its bases and items are not valid rows of a catalog: {error}", error=error)
        ) from error


# --- vectors alone ---------------------------------------------------------------------------------------------------


def read_vectors(path: Path) -> Iterator[StoredVectors]:
    """Yield the bases in a file of units, each with its texts' hashes and vectors.

    Raises:
        SourceUnreadable, SourceUnrecognised: the file is damaged, or regraft did not write it.
    """
    for base in unit_file.read_metadata(path).bases:
        if base.dimensions:
            rows = _read_base_vectors(path, base.id)
            yield StoredVectors(name=base.name, model_id=base.model, dimensions=base.dimensions, rows=rows)


def _read_base_vectors(path: Path, base: str) -> Iterator[TextVector]:
    """Yield the text hash and the vector of each row of a base. Rows without text or vector are left out."""
    for row in unit_file.read_rows(path):
        if row.base == base and row.vector is not None and row.text is not None:
            text = row.text if isinstance(row.text, str) else decode_utf8(bytes(row.text))
            yield identity.text_hash(text), row.vector


__all__ = ["import_files", "read_vectors"]
