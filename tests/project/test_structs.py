"""Which records of the core may be changed after they are made, and which may be made without naming their fields.

What is planned, recorded or reported is passed from module to module, so it must not change on the way. Fields that are
named cannot be mixed up: most records have several texts, ids and counts.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec

PACKAGES = (
    "regraft.disk",
    "regraft.ledger",
    "migrators.pipeline",
    "checks.audit",
    "checks.cherry_v2",
    "repair.changes",
    "repair.cherry_v2.gc",
    "repair.cherry_v2.rules",
)
#: Records that are filled bit by bit, and reports, whose head is filled last.
CHANGEABLE = """
regraft.disk.zip_salvage: ZipSalvage
migrators.pipeline.accounting: FolderFile MigratedRows RowsByReason
migrators.pipeline.publication: _OwnFields
migrators.pipeline.session: Session
migrators.pipeline.source: DraftedItems ItemContent
checks.audit.collector: FindingCollector _Tally
checks.audit.findings: CheckReport
checks.cherry_v2.audit: _LibraryReport _ReportedBase _ReportedRows _StoreAudit
checks.cherry_v2.index_file: IndexFacts
checks.cherry_v2.installed: InstallationsReport
checks.cherry_v2.raw_files: IndexMaterial
checks.cherry_v2.schema: SchemaShape
repair.changes.plan: Plan
repair.changes.run: ChangeReport
repair.changes.undo: HistoryReport
repair.cherry_v2.gc.files: Proof _RawFiles _VectorFile
repair.cherry_v2.gc.rows: IndexGarbage
repair.cherry_v2.rules.catalog: ItemRepairs PathRepairs _DataEdits
repair.cherry_v2.rules.rows: RowRepair
"""
#: Records that may be made from values in the order of their fields.
IN_ORDER = """
regraft.disk.trees: SourceFolder
regraft.disk.writable: WritableRoot
regraft.disk.zip_directory: ZipMember
regraft.ledger.ledger: LedgerEntry
regraft.ledger.values: FileDetail RecordedAction RowsDetail
migrators.pipeline.accounting: FolderFile MigratedRows RowsByReason
migrators.pipeline.base_writer: _WrittenIndex
migrators.pipeline.plan: BasePlan FolderCounts MaterialPlan PlannedRows RawLayout TakenPaths
migrators.pipeline.publication: BaseEntry CatalogMark _OwnFields
migrators.pipeline.session: Migration
migrators.pipeline.source: BaseDraft DraftedItems Duplicate FoundOnDisk Hints ItemContent LibraryDraft Options \
Pipeline SkippedBase SkippedItem Upload
migrators.pipeline.survey: BaseJob
migrators.pipeline.workers: FinishedBase WriteJob
checks.audit.collector: FindingCollector _Tally
checks.audit.sqlite_checks: TriggerTrial
checks.cherry_v2.audit: _LibraryReport _ReportedBase _ReportedRows _StoreAudit
checks.cherry_v2.detect: UniformVectors
checks.cherry_v2.index_file: IndexFacts
checks.cherry_v2.installed: NextStep
checks.cherry_v2.raw_files: IndexMaterial
checks.cherry_v2.schema: SchemaShape
repair.changes.changesets: ApplyResult
repair.changes.plan: Plan Reclaim
repair.cherry_v2.gc.files: Proof _VectorFile
repair.cherry_v2.rules.catalog: ItemRepairs PathRepairs _DataEdits _Material
repair.cherry_v2.rules.rows: RowRepair
"""
#: Records that are stored as lists, without the names of their fields.
AS_LISTS = """
migrators.pipeline.plan: ItemPlan
migrators.pipeline.publication: CatalogMark
migrators.pipeline.source: ItemDraft
"""


def named(text: str) -> set[str]:
    lines = (line.split(": ") for line in text.strip().splitlines())
    return {f"{module}.{name}" for module, names in lines for name in names.split()}


def records() -> Iterator[tuple[str, Any]]:
    """Yield each struct and each dataclass of the core with its full name."""
    for package in map(importlib.import_module, PACKAGES):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for name, kind in inspect.getmembers(module, inspect.isclass):
                is_record = issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
                if is_record and kind.__module__ == module.__name__:
                    yield f"{module.__name__}.{name}", kind


def test_records_are_changed_and_made_in_order_where_that_is_meant() -> None:
    changeable, in_order, as_lists = set(), set(), set()
    for name, kind in records():
        is_struct = issubclass(kind, msgspec.Struct)
        if not (kind.__struct_config__ if is_struct else kind.__dataclass_params__).frozen:
            changeable.add(name)
        if kind.__match_args__:
            in_order.add(name)
        if is_struct and kind.__struct_config__.array_like:
            as_lists.add(name)
    assert changeable == named(CHANGEABLE)
    assert in_order == named(IN_ORDER)
    assert as_lists == named(AS_LISTS)
