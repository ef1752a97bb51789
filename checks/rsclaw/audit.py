"""Audit a knowledge base (KB) of rsclaw without writing (``docs/findings.md``, "rsclaw")."""

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

#: Errors of a database that is damaged as a whole, so that nothing can be read.
DAMAGED = (NotRedb, RedbDamaged, RedbSlotsDamaged, RedbTooShort)
#: Interval at which the time limit is checked, in rows.
_EVERY = 256


def audit(found: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Audit a KB without writing.

    Args:
        found: a store of the kind ``rsclaw``.
        options: level, time limit, and the time to which ages are relative.
        command_line: makes the command lines that fix findings; None: findings get no command.

    Raises:
        RedbError: the database is in use, or its format is unknown. Damage is a finding.
    """
    findings = FindingCollector(options.level, options.max_duration, now_ms=options.now_ms)
    checked = dict.fromkeys(("documents", "chunks", "files", "bytes"), 0)
    unread: list[str] = []
    try:
        with database.open_mirror(found.path, go_on=_make_timer(findings)) as mirror:
            state = KbAudit(
                root=found.tree.path,
                path=found.path,
                mirror=mirror,
                findings=findings,
                checked=checked,
                unread=unread,
            )
            _check(state, options)
    except DAMAGED as error:
        findings.add(kb.UNREADABLE, str(error), sample=found.path.name)
        unread += (name for name, _ in _steps(options))
    except OutOfTime:
        findings.not_checked.append(found.path.name)
    audited = Audit(
        findings=findings.to_findings(),
        checked=checked,
        names={},
        closing=_closing(findings, unread),
        not_checked=(*findings.missing(), *unread),
        level=findings.level.name.lower(),
    )
    return audited if command_line is None else add_commands(audited, command_line)


def _closing(findings: FindingCollector, unread: list[str]) -> str:
    said = findings.closing(tr("files and texts"), tr("all pages of the database and the hashes of files"))
    if not unread:
        return said
    missing = tr("Not checked, because it cannot be read: {names}.", names=join_list(unread))
    return f"{said} {missing}" if findings.missing() else missing


def _make_timer(findings: FindingCollector) -> Callable[[int], None]:
    """Return a callback for each row that raises when time is over."""
    count = 0

    def go_on(_: int) -> None:
        nonlocal count
        count += 1
        if count % _EVERY == 1:
            findings.check_time()

    return go_on


def _steps(options: CheckOptions) -> list[tuple[str, Callable[[KbAudit], None]]]:
    """Return the name and function of each check."""
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


def _check(state: KbAudit, options: CheckOptions) -> None:
    steps = _steps(options)
    for table, name in ((database.DOCS, "documents"), (database.CHUNKS, "chunks")):
        state.checked[name] = state.mirror.tables[table].rows
    rsclaw_tables.create_current_table(state.mirror)
    query = "SELECT tbl, key, reason FROM broken ORDER BY tbl, key"
    told = (f"{table}, {key}: {reason}" for table, key, reason in state.db.execute(query))
    state.say(kb.ROW, tr("{n} not in the format that rsclaw writes: {named}"), noun="row", samples=told)
    with stage(options.progress, "Checking", len(steps), "parts"):
        for name, step in steps:
            options.progress.at(name)
            _guarded(state, name, partial(step, state))
            options.progress.step(1, 0)
    # Report the damaged pages of each table, with the number of lost rows.
    for damaged in sorted({one.table for one in state.mirror.damage}, key=str):
        pages = {(one.offset, one.length): one for one in state.mirror.damage if one.table == damaged}
        first = next(iter(pages.values()))
        message = _damage_message(damaged, len(pages), first, state.mirror)
        for one in pages.values():
            sample = tr("{page} at byte {offset:,}: {reason}", page=one.page, offset=one.offset, reason=one.reason)
            state.findings.add(kb.PAGE, message, sample=sample)
    _guarded(state, tr("counts"), partial(_report_missing_rows, state))


def _guarded(state: KbAudit, name: str, step: Callable[[], None]) -> None:
    """Run one check; damage in its data does not stop the others."""
    try:
        state.findings.check_time()
        with state.findings.watched(state.db, state.path.stat().st_size):
            step()
    except OutOfTime:
        state.findings.not_checked.append(name)
    except apsw.InterruptError:
        # The tables are a private copy, so only the time limit interrupts a statement.
        state.findings.not_checked.append(name)
    except OSError as error:
        reason = error.strerror or str(error)
        state.unread.append(name)
        state.findings.add(kb.UNREADABLE, tr("{name} cannot be read: {error}", name=name, error=reason), sample=name)


# --- the database itself ---------------------------------------------------------------------------------------------


def _check_pages(state: KbAudit) -> None:
    """Read every page of every table again, and compare the ids of chunks with their texts."""
    again = Mirror(db=state.db)
    go_on = _make_timer(state.findings)
    with read_redb(state.path, on_damage=again.see, state=state.mirror.state) as file:
        for name in file.tables:
            for _ in file.rows(name):
                go_on(0)
        rsclaw_tables.check_ids(state, file)
    known = {(one.table, one.offset) for one in state.mirror.damage}
    for one in again.damage:
        if (one.table, one.offset) not in known:
            known.add((one.table, one.offset))
            state.mirror.see(one)


def _report_missing_rows(state: KbAudit) -> None:
    """Report tables that state more rows than their intact pages have."""
    if None in state.mirror.damaged_tables:
        return
    tables = ((name, one) for name, one in state.mirror.tables.items() if name not in state.mirror.damaged_tables)
    samples = (f"{name}: {one.stated:,} − {one.rows + one.broken:,}" for name, one in tables if one.lost)
    state.say(kb.PAGE, tr("{n} with fewer rows than recorded: {named}"), noun="table", samples=samples)


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
