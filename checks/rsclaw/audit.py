"""The audit of a knowledge base of rsclaw, without a trace (``docs/findings.md``, "rsclaw")."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import apsw

from checks.audit.collector import CheckOptions, CommandLine, FindingCollector, Level, OutOfTime, add_commands
from checks.audit.findings import Audit
from checks.rsclaw import files
from checks.rsclaw import findings as kb
from checks.rsclaw import tables as rsclaw_tables
from checks.rsclaw.tables import KbAudit
from regraft.formats.redb import NotRedb, PageDamage, RedbDamaged, RedbSlotsDamaged, RedbTooShort, read_redb
from regraft.formats.rsclaw import database
from regraft.formats.rsclaw.database import Mirror
from regraft.language import format_count, join_list, tr
from regraft.report.progress import stage
from regraft.stores.systems import Located

#: What says that a database is damaged as a whole: nothing of it can be read.
DAMAGED = (NotRedb, RedbDamaged, RedbSlotsDamaged, RedbTooShort)
#: How often time is looked at while rows are read.
_EVERY = 256


def audit(found: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Check a KB without writing anything.

    Args:
        found: of the kind ``rsclaw``.
        options: how deep to look, how long, and the time that ages are relative to.
        command_line: gives the command lines that mend what is found; without it, none is given.

    Raises:
        RedbError: the database is in use, or of a format that is not known. Damage is a finding.
    """
    ledger = FindingCollector(options.level, options.max_duration, now_ms=options.now_ms)
    checked = dict.fromkeys(("documents", "chunks", "files", "bytes"), 0)
    unread: list[str] = []
    try:
        with database.mirrored(found.path, go_on=_make_timer(ledger)) as mirror:
            seen = KbAudit(
                root=found.tree.path,
                path=found.path,
                mirror=mirror,
                ledger=ledger,
                checked=checked,
                unread=unread,
            )
            _check(seen, options)
    except DAMAGED as error:
        ledger.add(kb.UNREADABLE, str(error), sample=found.path.name)
        unread += (name for name, _ in _steps(options))
    except OutOfTime:
        ledger.not_checked.append(found.path.name)
    audited = Audit(
        findings=ledger.findings(),
        checked=checked,
        names={},
        closing=_closing(ledger, unread),
        not_checked=(*ledger.missing(), *unread),
        level=ledger.level.name.lower(),
    )
    return audited if command_line is None else add_commands(audited, command_line)


def _closing(ledger: FindingCollector, unread: list[str]) -> str:
    said = ledger.closing(tr("files and texts"), tr("all pages of the database and the hashes of files"))
    if not unread:
        return said
    missing = tr("Not checked, because it cannot be read: {names}.", names=join_list(unread))
    return f"{said} {missing}" if ledger.missing() else missing


def _make_timer(ledger: FindingCollector) -> Callable[[int], None]:
    """Return what ends the reading of rows when time is over."""
    count = 0

    def go_on(_: int) -> None:
        nonlocal count
        count += 1
        if count % _EVERY == 1:
            ledger.check_time()

    return go_on


def _steps(options: CheckOptions) -> list[tuple[str, Callable[[KbAudit], None]]]:
    """Return the checks, each with what a person calls it."""
    steps: list[tuple[str, Callable[[KbAudit], None]]] = [
        (tr("documents"), rsclaw_tables.check_documents),
        (tr("jobs"), rsclaw_tables.check_jobs),
        (tr("files of documents"), files.check_named_files),
        (tr("chunks"), rsclaw_tables.check_chunks),
        (tr("other files"), files.check_loose_files),
        (tr("caches"), files.check_caches),
    ]
    if options.level is Level.DEEP:
        steps.append((tr("pages and ids"), _check_pages))
    return steps


def _check(seen: KbAudit, options: CheckOptions) -> None:
    steps = _steps(options)
    for table, name in ((database.DOCS, "documents"), (database.CHUNKS, "chunks")):
        seen.checked[name] = seen.mirror.tables[table].rows
    rsclaw_tables.create_current_table(seen.mirror)
    _report_rows(seen)
    with stage(options.progress, "Checking", len(steps), "parts"):
        for name, step in steps:
            options.progress.at(name)
            _guarded(seen, name, partial(step, seen))
            options.progress.step(1, 0)
    _report_damage(seen.mirror, seen.ledger)
    _guarded(seen, tr("counts"), partial(_report_missing_rows, seen))


def _guarded(seen: KbAudit, name: str, step: Callable[[], None]) -> None:
    """Run a check; damage in what it looks at does not end the others."""
    try:
        seen.ledger.check_time()
        with seen.ledger.watched(seen.db, seen.path.stat().st_size):
            step()
    except OutOfTime:
        seen.ledger.not_checked.append(name)
    except apsw.InterruptError:
        # Only time ends a statement over tables of our own.
        seen.ledger.not_checked.append(name)
    except OSError as error:
        reason = error.strerror or str(error)
        seen.unread.append(name)
        seen.ledger.add(kb.UNREADABLE, tr("{name} cannot be read: {error}", name=name, error=reason), sample=name)


# --- the database itself ---------------------------------------------------------------------------------------------


def _check_pages(seen: KbAudit) -> None:
    """Read every page of every table once more, to the last value, and hold ids against texts."""
    again = Mirror(db=seen.db)
    go_on = _make_timer(seen.ledger)
    with read_redb(seen.path, on_damage=again.see, state=seen.mirror.state) as file:
        for name in file.tables:
            for _ in file.rows(name):
                go_on(0)
        rsclaw_tables.check_ids(seen, file)
    known = {(one.table, one.offset) for one in seen.mirror.damage}
    for one in again.damage:
        if (one.table, one.offset) not in known:
            known.add((one.table, one.offset))
            seen.mirror.see(one)


def _report_rows(seen: KbAudit) -> None:
    query = "SELECT tbl, key, reason FROM broken ORDER BY tbl, key"
    told = (f"{table}, {key}: {reason}" for table, key, reason in seen.db.execute(query))
    seen.say(kb.ROW, tr("{n} not of the form that rsclaw writes: {named}"), noun="row", samples=told)


def _report_damage(mirror: Mirror, ledger: FindingCollector) -> None:
    """Add a finding for each table with damaged pages, and say how many rows that costs."""
    for table in sorted({one.table for one in mirror.damage}, key=str):
        pages = {(one.offset, one.length): one for one in mirror.damage if one.table == table}
        first = next(iter(pages.values()))
        message = _damage_message(table, len(pages), first, mirror)
        for one in pages.values():
            sample = tr("{page} at byte {offset:,}: {reason}", page=one.page, offset=one.offset, reason=one.reason)
            ledger.add(kb.PAGE, message, sample=sample)


def _report_missing_rows(seen: KbAudit) -> None:
    """Find tables that say to have more rows than there are, in pages that are all right."""
    if None in seen.mirror.damaged_tables:
        return
    tables = ((name, one) for name, one in seen.mirror.tables.items() if name not in seen.mirror.damaged_tables)
    samples = (f"{name}: {one.stated:,} − {one.rows + one.broken:,}" for name, one in tables if one.lost)
    seen.say(kb.PAGE, tr("{n} with fewer rows than it is said to have: {named}"), noun="table", samples=samples)


def _damage_message(table: str | None, count: int, first: PageDamage, mirror: Mirror) -> str:
    pages = format_count(count, "damaged page")
    if table is None:
        return tr(
            "{pages} of what says which tables there are ({page}, {reason})",
            pages=pages,
            page=first.page,
            reason=first.reason,
        )
    lost = mirror.tables[table].lost if table in mirror.tables else 0
    return tr(
        "{table}: {pages}, {rows} lost ({page}, {reason})",
        table=table,
        pages=pages,
        rows=format_count(lost, "row"),
        page=first.page,
        reason=first.reason,
    )
