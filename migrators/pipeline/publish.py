"""Moving finished bases, the catalog and the report into place, through the ledger."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from migrators.pipeline.entries import CATALOG, REPORT, CatalogMark, base_entries, catalog_mark_of, items_of
from migrators.pipeline.published import BaseEntry, base_folder, read_entry
from regraft import sqlite
from regraft.formats.cherry_v2.catalog import ItemRow, write_catalog
from regraft.formats.cherry_v2.library_report import REPORT_FILE, REPORT_PAGE
from regraft.ledger import durable
from regraft.ledger.ledger import FOLDER, Entry, Ledger, Step
from regraft.locate import CATALOG_FILE
from regraft.tree_files import file_hash

logger = logging.getLogger(__name__)

PUBLISH = "publish"
#: Publishing where an earlier base of the same id stands, which waits aside until its successor is recorded.
REPLACE = "replace"


#: The folders below ``.regraft`` in which something is made or waits while a run is at work.
STAGING, REPLACED, WORK = "staging", "replaced", "work"


class Target:
    """The folders of a target and the moves between them.

    What a run builds lies in folders of its own: what still lives of a killed one cannot write into them.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.own = path / FOLDER
        #: Where bases are built.
        self.staging = self.own / STAGING / run_id
        #: Where a base that is carried anew waits until its successor stands.
        self.replaced = self.own / REPLACED
        #: Where vector files of an archive are extracted.
        self.work = self.own / WORK / run_id

    def clean(self) -> None:
        """Remove what this run, and every unfinished one before it, left beside the target; needs its lock."""
        for name in (STAGING, REPLACED, WORK):
            durable.remove_remains(self.own / name)

    def make_staging(self) -> None:
        """Make the folder in which bases are built."""
        durable.make_folders(self.staging)

    @property
    def catalog(self) -> Path:
        """Return where the catalog is."""
        return self.path / CATALOG_FILE

    def is_catalog_as_written(self, ledger: Ledger) -> bool:
        """Whether the catalog in place has the bytes that a run wrote, whatever its path and times are now."""
        entries = ledger.entries()
        known = catalog_mark_of(entries)
        if known is None or sqlite.companions(self.catalog):
            return False
        if known.sha256:
            return file_hash(self.catalog) == known.sha256
        if sqlite.file_mark(self.catalog) == (known.size, known.changed_ns):
            return True
        # The record has no hash: the catalog follows from the bases that it was written of, where these are the same.
        if entries[CATALOG].fingerprint != catalog_mark(entries):
            return False
        with durable.temporary_folder() as folder:
            again = folder / CATALOG_FILE
            _write_catalog(again, ledger)
            return _without_versions(again) == _without_versions(self.catalog)

    def throw_away(self) -> None:
        """Remove what was being built, without a word to the ledger: open intents can still be settled after this."""
        for name in (STAGING, WORK):
            durable.remove_remains(self.own / name)

    def recover(self, ledger: Ledger) -> None:
        """Finish or give up every intent of an earlier run that was killed, end that run, and remove what it left."""
        for step in ledger.open_steps():
            logger.info("an earlier run was stopped while it wrote %s; that is settled", step.subject)
            if step.subject == REPORT:
                ledger.drop(step)
            elif step.subject == CATALOG:
                self._recover_catalog(ledger, step)
            else:
                self._recover_base(ledger, step)
        ledger.stop_runs()
        self.clean()

    def _recover_catalog(self, ledger: Ledger, step: Step) -> None:
        """Settle the catalog: it was moved into place if what stands there is what was to be moved."""
        mark = catalog_mark_of({CATALOG: step.entry})
        if mark is not None and mark.sha256:
            moved = sqlite.is_database(self.catalog) and file_hash(self.catalog) == mark.sha256
        else:
            moved = msgspec.json.encode(sqlite.file_mark(self.catalog)) == step.entry.detail
        (ledger.done if moved else ledger.drop)(step)

    def _recover_base(self, ledger: Ledger, step: Step) -> None:
        """Settle one base: the move into place is one step, so it either happened or did not.

        What it replaces is moved aside first and removed last, after the step is recorded as done: an earlier base that
        is still in its place has no successor yet.
        """
        final, old = base_folder(self.path, step.subject), self.replaced / step.subject
        has_files = read_entry(step.entry).has_files
        if (final.exists() or not has_files) and (step.action != REPLACE or old.exists()):
            ledger.done(step)
            return
        if old.exists():
            durable.replace(old, final)
        ledger.drop(step)

    def publish_base(self, ledger: Ledger, base: BaseEntry, fingerprint: str, items: Iterable[ItemRow]) -> None:
        """Move a staged base into place and record it; an earlier one of the same id makes room first."""
        base_id = base.record.base.id
        final, old = base_folder(self.path, base_id), self.replaced / base_id
        action = REPLACE if final.exists() else PUBLISH
        logger.info("base %s: %s", base_id, action)
        step = ledger.intend(base_id, action, pack(base, fingerprint), (msgspec.json.encode(item) for item in items))
        if step.action == REPLACE:
            durable.make_folders(self.replaced)
            durable.replace(final, old)
        if base.has_files:
            durable.make_folders(final.parent)
            durable.replace(self.staging / base_id, final)
            durable.sync_folder(self.path)
        ledger.done(step)
        durable.remove_tree(old)

    def move_in_order(self, ledger: Ledger, base_id: str, position: int) -> None:
        """Record that a base which stands unchanged has another place in v1's order now."""
        moved = msgspec.structs.replace(read_entry(ledger.entries()[base_id]), position=position)
        ledger.amend(base_id, pack(moved, "").detail)

    def catalog_is_current(self, entries: dict[str, Entry]) -> bool:
        """Tell whether the catalog in place is that of these entries."""
        known = entries.get(CATALOG)
        return known is not None and known.fingerprint == catalog_mark(entries) and sqlite.is_database(self.catalog)

    def publish_catalog(self, ledger: Ledger) -> None:
        """Write the catalog of every base in the target, in v1's order."""
        self.make_staging()
        staged = self.staging / CATALOG_FILE
        durable.remove_tree(staged)
        _write_catalog(staged, ledger)
        durable.sync_file(staged)
        status = staged.stat()
        mark = CatalogMark(status.st_size, status.st_mtime_ns, file_hash(staged))
        step = ledger.intend(CATALOG, PUBLISH, Entry(catalog_mark(ledger.entries()), msgspec.json.encode(mark)))
        durable.replace(staged, self.catalog)
        ledger.done(step)

    def report_is_current(self, entries: dict[str, Entry]) -> bool:
        """Tell whether a report of these bases is in place."""
        known = entries.get(REPORT)
        there = all((self.path / name).is_file() for name in (REPORT_FILE, REPORT_PAGE))
        return known is not None and known.fingerprint == catalog_mark(entries) and there

    def publish_report(self, ledger: Ledger, document: str, page: str) -> None:
        """Write ``report.json`` and ``report.html``."""
        self.make_staging()
        step = ledger.intend(REPORT, PUBLISH, Entry(catalog_mark(ledger.entries()), b""))
        for name, text in ((REPORT_FILE, document), (REPORT_PAGE, page)):
            durable.write_text(self.path / name, text, self.staging / name)
        ledger.done(step)


def _write_catalog(path: Path, ledger: Ledger) -> None:
    """Write the catalog of every base that the ledger has, in v1's order."""
    known = sorted(base_entries(ledger.entries()).values(), key=lambda entry: (entry.position, entry.record.base.id))
    write_catalog(path, ((entry.record, _items(ledger, entry)) for entry in known))


def _without_versions(path: Path) -> bytes:
    """Return the bytes of a catalog without the counters and versions of the SQLite that wrote it."""
    content = bytearray(path.read_bytes())
    for part in (slice(24, 28), slice(92, 100)):
        content[part] = bytes(len(content[part]))
    return bytes(content)


def _items(ledger: Ledger, entry: BaseEntry) -> Iterator[ItemRow]:
    base_id = entry.record.base.id
    return items_of(ledger.parts(base_id), base_id)


def catalog_mark(entries: dict[str, Entry]) -> str:
    """Return a hash over the entries of all bases: the catalog's content follows from them."""
    hasher = hashlib.blake2b(digest_size=20)
    for subject, entry in sorted(entries.items()):
        if subject not in (CATALOG, REPORT):
            hasher.update(f"{subject} {entry.fingerprint} {len(entry.detail)}\n".encode())
            hasher.update(entry.detail)
    return hasher.hexdigest()


def pack(entry: BaseEntry, fingerprint: str) -> Entry:
    """Return the ledger's entry of a base."""
    return Entry(fingerprint, msgspec.json.encode(entry, order="deterministic"))
