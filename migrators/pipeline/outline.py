"""Write the outline of a planned library: catalog, report, indexes without rows, and an empty file for one upload.

With it, a later step can be planned as if the library existed, before any vector is written. The path of an item's
snapshot is not known yet; all other catalog rows are those that the migration writes. The one upload of each base is
the one with the longest path, which a file system may refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from migrators.pipeline.base_writer import base_record, planned_rows
from migrators.pipeline.publication import read_items
from regraft.disk import durable
from regraft.formats.cherry_v2 import index
from regraft.formats.cherry_v2.catalog import BaseRecord, ItemRow, write_catalog
from regraft.formats.cherry_v2.layout import REPORT_FILE
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import Ledger, LedgerEntry
from regraft.report import migration
from regraft.report.document import encoded
from regraft.report.migration import MigrationReport
from regraft.stores.locate import CATALOG_FILE, INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER

if TYPE_CHECKING:
    from migrators.pipeline.session import Session
    from migrators.pipeline.survey import BaseJob


def write_outline(folder: Path, jobs: tuple[BaseJob, ...], at: Session, planned: MigrationReport, now_ms: int) -> None:
    """Write the outline of the library that a run is going to write.

    Args:
        folder: an empty folder.
        jobs: the bases of the run.
        at: the target; the rows of unchanged bases are read from its ledger.
        planned: the report of the plan.
        now_ms: the time of the run.

    Raises:
        LedgerUnreadable: the ledger of the target cannot be read.
        OSError, apsw.Error: the folder cannot be written.
    """

    def write(ledger: Ledger) -> dict[str, LedgerEntry]:
        write_catalog(folder / CATALOG_FILE, (_rows(job, ledger, now_ms) for job in jobs))
        return {}

    if at.ledger is not None:
        write(at.ledger)
    elif any(job.unchanged is not None for job in jobs):
        ledgers.read_entries(at.path, write)
    else:
        write_catalog(folder / CATALOG_FILE, (_planned_base(job, now_ms) for job in jobs))
    for job in jobs:
        base = folder / KNOWLEDGE_FOLDER / job.base_id
        if _has_index(job):
            path = base / INDEX_FILE
            durable.make_folders(path.parent, flush=False)
            index.build_index(path, job.base_id, now_ms, (), lambda *_: None, is_flushed=False)
        upload = _longest_upload(job)
        if upload is not None:
            durable.make_folders((base / RAW_FOLDER / upload).parent, flush=False)
            durable.put_bytes(base / RAW_FOLDER / upload, b"")
    text = migration.as_json(encoded(planned))
    durable.write_text_atomically(folder / REPORT_FILE, text, folder / f"{REPORT_FILE}.new")


def _rows(job: BaseJob, ledger: Ledger, now_ms: int) -> tuple[BaseRecord, Iterator[ItemRow]]:
    if job.unchanged is None:
        return _planned_base(job, now_ms)
    return job.unchanged.record, read_items(ledger.parts(job.base_id), job.base_id)


def _planned_base(job: BaseJob, now_ms: int) -> tuple[BaseRecord, Iterator[ItemRow]]:
    assert job.plan is not None
    return base_record(job.plan, now_ms), planned_rows(job.plan, {}, now_ms)


def _has_index(job: BaseJob) -> bool:
    if job.unchanged is not None:
        return job.unchanged.index_mark is not None
    return job.plan is not None and job.plan.has_index


def _longest_upload(job: BaseJob) -> str | None:
    """The longest path of an upload below ``raw/``; of a base that is unchanged, or that has none, None."""
    items = () if job.plan is None else job.plan.items
    paths = (str(item.data["relativePath"]) for item in items if item.upload is not None)
    return max(paths, key=len, default=None)
