"""Audit a knowledge base (KB) of rsclaw without writing (``docs/findings.md``, "rsclaw"), and summarize it.

The summary counts documents, chunks, vectors and jobs. No titles are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import apsw
from msgspec import Struct, structs

from checks.audit.collector import CheckOptions, CommandLine, FindingCollector, Level, OutOfTime, add_commands
from checks.audit.findings import Audit
from checks.inspect import HealthSummary, StoreSummary
from checks.rsclaw import files, tables
from checks.rsclaw import findings as kb
from checks.rsclaw.files import MOVED, find_loose_files, list_files
from checks.rsclaw.tables import IS_STALE, SEARCHED, KbAudit
from checks.systems import Checks
from regraft.disk.trees import total_size
from regraft.formats.redb import NotRedb, PageDamage, RedbDamaged, RedbSlotsDamaged, RedbTooShort, read_redb
from regraft.formats.rsclaw import database
from regraft.formats.rsclaw.database import (
    ACTIVE,
    FULL_TEXT,
    HNSW,
    MARKDOWN,
    RAW,
    TOMBSTONED,
    UPDATING,
    JobStatus,
    Mirror,
)
from regraft.language import format_count, join_list, tr
from regraft.report.labels import format_labeled_count
from regraft.report.progress import stage
from regraft.stores.systems import Located
from regraft.text import format_bytes, one_line

#: Errors of a database that is damaged as a whole, so that nothing can be read.
DAMAGED = (NotRedb, RedbDamaged, RedbSlotsDamaged, RedbTooShort)
#: Interval at which the time limit is checked, in rows.
_EVERY = 256


def audit(store: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Audit a KB without writing.

    Args:
        store: a store of the kind ``rsclaw``.
        options: level, time limit, and the time to which ages are relative.
        command_line: makes the command lines that fix findings; None: findings get no command.

    Raises:
        RedbError: the database is in use, or its format is unknown. Damage is a finding.
    """
    findings = FindingCollector(options.level, options.max_duration, now_ms=options.now_ms)
    checked = dict.fromkeys(("documents", "chunks", "files", "bytes"), 0)
    unread: list[str] = []
    try:
        with database.open_mirror(store.path, go_on=_make_timer(findings)) as mirror:
            state = KbAudit(
                root=store.tree.path,
                path=store.path,
                mirror=mirror,
                findings=findings,
                checked=checked,
                unread=unread,
            )
            _run_checks(state, options)
    except DAMAGED as error:
        findings.add(kb.UNREADABLE, str(error), sample=store.path.name)
        unread += (name for name, _ in _choose_steps(options))
    except OutOfTime:
        findings.not_checked.append(store.path.name)
    closing = _format_closing(findings, unread)
    audited = findings.to_audit(checked=checked, names={}, closing=closing, not_checked=unread)
    return add_commands(audited, command_line)


def _format_closing(findings: FindingCollector, unread_checks: list[str]) -> str:
    """Format the last sentence of the report: what was not checked.

    ``unread_checks`` are the names of checks whose data cannot be read.
    """
    message = findings.closing(tr("files and texts"), tr("all pages of the database and the hashes of files"))
    if not unread_checks:
        return message
    missing = tr("Not checked, because it cannot be read: {names}.", names=join_list(unread_checks))
    return f"{message} {missing}" if findings.skipped_checks() else missing


def _make_timer(findings: FindingCollector) -> Callable[[int], None]:
    """Return a function to call for each row, which raises when the time limit has passed. Its argument is ignored."""
    count = 0

    def go_on(_: int) -> None:
        """Check the time limit, once in many calls."""
        nonlocal count
        count += 1
        if count % _EVERY == 1:
            findings.check_time()

    return go_on


def _choose_steps(options: CheckOptions) -> list[tuple[str, Callable[[KbAudit], None]]]:
    """Return the name and function of each check that the level includes."""
    steps: list[tuple[str, Callable[[KbAudit], None]]] = [
        (tr("documents"), tables.check_documents),
        (tr("jobs"), tables.check_jobs),
        (tr("files of documents"), files.check_named_files),
        (tr("chunks"), tables.check_chunks),
        (tr("other files"), files.check_loose_files),
        (tr("caches"), files.check_caches),
    ]
    if options.level is Level.DEEP:
        steps.append((tr("pages and ids"), _check_pages))
    return steps


def _run_checks(state: KbAudit, options: CheckOptions) -> None:
    """Run all checks that the level includes, and report rows and pages that cannot be read."""
    steps = _choose_steps(options)
    for table, name in ((database.DOCS, "documents"), (database.CHUNKS, "chunks")):
        state.checked[name] = state.mirror.tables[table].rows
    tables.create_current_table(state.mirror)
    query = "SELECT tbl, key, reason FROM broken ORDER BY tbl, key"
    broken_rows = (f"{table}, {key}: {reason}" for table, key, reason in state.db.execute(query))
    state.report(kb.ROW, tr("{n} not in the format that rsclaw writes: {named}"), noun="row", samples=broken_rows)
    with stage(options.progress, "Checking", len(steps), "parts"):
        for name, step in steps:
            options.progress.at(name)
            _run_check(state, name, partial(step, state))
            options.progress.step(1, 0)
    # Report the damaged pages of each table, with the number of lost rows.
    for damaged in sorted({one.table for one in state.mirror.damage}, key=str):
        pages = {(one.offset, one.length): one for one in state.mirror.damage if one.table == damaged}
        first = next(iter(pages.values()))
        message = _damage_message(damaged, len(pages), first, state.mirror)
        for one in pages.values():
            sample = tr("{page} at byte {offset:,}: {reason}", page=one.page, offset=one.offset, reason=one.reason)
            state.findings.add(kb.PAGE, message, sample=sample)
    _run_check(state, tr("counts"), partial(_report_missing_rows, state))


def _run_check(state: KbAudit, name: str, step: Callable[[], None]) -> None:
    """Run the check ``name`` by calling ``step``; damage and the time limit stop only this check."""
    try:
        state.findings.check_time()
        with state.findings.limit_statements(state.db, state.path.stat().st_size):
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
    """Read every page of every table again to find more damage, and check the ids of chunks."""
    again = Mirror(db=state.db)
    go_on = _make_timer(state.findings)
    with read_redb(state.path, on_damage=again.record_damage, state=state.mirror.state) as file:
        for name in file.tables:
            for _ in file.rows(name):
                go_on(0)
        tables.check_ids(state, file)
    known = {(one.table, one.offset) for one in state.mirror.damage}
    for one in again.damage:
        if (one.table, one.offset) not in known:
            known.add((one.table, one.offset))
            state.mirror.record_damage(one)


def _report_missing_rows(state: KbAudit) -> None:
    """Report tables that record more rows than their intact pages have."""
    if None in state.mirror.damaged_tables:
        return
    tables = ((name, one) for name, one in state.mirror.tables.items() if name not in state.mirror.damaged_tables)
    samples = (f"{name}: {one.stated:,} − {one.rows + one.broken:,}" for name, one in tables if one.lost)
    state.report(kb.PAGE, tr("{n} with fewer rows than recorded: {named}"), noun="table", samples=samples)


def _damage_message(table: str | None, count: int, first: PageDamage, mirror: Mirror) -> str:
    """Describe the damaged pages of a table.

    Args:
        table: the name of the table; None: the list of tables.
        count: the number of damaged pages.
        first: the page that the message names.
        mirror: has the number of lost rows.
    """
    pages = format_count(count, "damaged page")
    if table is None:
        return tr(
            "{pages} in the list of tables ({page}, {reason})",
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


_OTHER = "other"
_STATUSES = (ACTIVE, UPDATING, TOMBSTONED)
_VISIBILITIES = ("global", "private", "agent", "channel")
#: Maximum number of groups of vectors that are listed.
_MOST_GROUPS = 20


class VectorGroup(Struct, frozen=True, kw_only=True):
    """Number of vectors of one embedder and length; values that are not lists have no ``dimensions``."""

    embedder: str
    dimensions: int | None
    vectors: int

    def line(self) -> str:
        """Return the text output's line about these vectors."""
        vectors = format_count(self.vectors, "vector")
        embedder = one_line(self.embedder)
        if self.dimensions is None:
            return tr("  {embedder}: {vectors} that are not valid", embedder=embedder, vectors=vectors)
        return tr(
            "  {embedder}: {vectors} × {dimensions} dimensions",
            embedder=embedder,
            vectors=vectors,
            dimensions=self.dimensions,
        )


class KbSizes(Struct, frozen=True, kw_only=True):
    """Sizes of the parts of a KB, in bytes."""

    database: int = 0
    markdown: int = 0
    raw: int = 0
    full_text: int = 0
    vector_index: int = 0

    @property
    def sum(self) -> int:
        """The total size of all parts."""
        return sum(structs.astuple(self))


class KbHealthSummary(HealthSummary, frozen=True, kw_only=True):
    """Contents and health of a KB.

    ``documents`` and ``jobs`` are counted by status, ``visibility`` counts active documents by who can see them, and
    ``clean`` tells whether the database was closed properly.
    """

    format_version: int | None
    clean: bool | None
    documents: dict[str, int]
    visibility: dict[str, int]
    chunks: int
    vectors: list[VectorGroup]
    jobs: dict[str, int]
    sizes: KbSizes

    def lines(self) -> Iterator[str]:
        """Yield the text output's lines about the contents and sizes of the KB, if its database can be read."""
        if self.format_version is None:
            return
        documents = format_count(sum(self.documents.values()), "document")
        yield tr(
            "{documents} ({by_status}), {chunks}, {size}.",
            documents=documents,
            by_status=_format_counts(self.documents),
            chunks=format_count(self.chunks, "chunk"),
            size=format_bytes(self.bytes),
        )
        yield tr("active documents by visibility: {visibility}", visibility=_format_counts(self.visibility))
        yield tr("vectors:")
        yield from (one.line() for one in self.vectors)
        yield tr("jobs: {jobs}", jobs=_format_counts(self.jobs))
        parts = {"kb.redb": self.sizes.database, f"{MARKDOWN}/": self.sizes.markdown, f"{RAW}/": self.sizes.raw}
        caches = {f"{FULL_TEXT}/": self.sizes.full_text, f"{HNSW}/": self.sizes.vector_index}
        yield join_list(f"{name} {format_bytes(size)}" for name, size in {**parts, **caches}.items())


def _format_counts(counts: dict[str, int]) -> str:
    """Format the counts that are not 0 as a list, by name."""
    return join_list(format_labeled_count(count, name) for name, count in counts.items() if count) or tr("none")


def inspect_store(store: Located, now_ms: int) -> StoreSummary:
    """Summarize a KB, which has no bases.

    Args:
        store: a store of the kind ``rsclaw``.
        now_ms: the time to which ages are relative.

    Raises:
        RedbError: the database is in use, or its format is unknown.
    """
    root = store.tree.path
    sizes = KbSizes(
        database=store.path.stat().st_size,
        markdown=total_size(root / MARKDOWN),
        raw=total_size(root / RAW),
        full_text=total_size(root / FULL_TEXT),
        vector_index=total_size(root / HNSW),
    )
    health = KbHealthSummary(
        orphans=0,
        stale=0,
        bytes=sizes.sum,
        problems=[],
        format_version=None,
        clean=None,
        documents={},
        visibility={},
        chunks=0,
        vectors=[],
        jobs={},
        sizes=sizes,
    )
    try:
        with database.open_mirror(store.path) as mirror:
            tables.create_current_table(mirror)
            return StoreSummary([], _add_table_counts(health, mirror, root, now_ms))
    except DAMAGED as error:
        return StoreSummary([], structs.replace(health, problems=[str(error)]))


def _add_table_counts(health: KbHealthSummary, mirror: Mirror, root: Path, now_ms: int) -> KbHealthSummary:
    """Return the summary with counts of rows and files, and with problems.

    Args:
        health: the summary of the sizes.
        mirror: the tables of the KB.
        root: the folder of the KB.
        now_ms: the time to which ages are relative.
    """
    searched = _count(mirror, f"SELECT count(*) FROM {SEARCHED}")
    covered = _count(mirror, f"SELECT count(*) FROM {SEARCHED} WHERE c.flaw IS NULL")
    problems = list(_describe_problems(mirror, now_ms))
    try:
        # Count the files that ``gc`` would move.
        if not mirror.is_whole(database.DOCS, database.LEDGER):
            orphans = 0
        else:
            list_files(mirror, root)
            orphans = sum(one.why in MOVED for one in find_loose_files(mirror.db, now_ms))
    except OSError as error:
        orphans = 0
        problems.append(tr("files cannot be listed: {error}", error=error.strerror or error))
    if mirror.is_whole(database.DOCS):
        orphans += _count(mirror, "SELECT count(*) FROM chunk WHERE doc_id NOT IN (SELECT id FROM doc)")
    query = "SELECT embedder, dimensions, count(*) FROM chunk GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT ?"
    groups = [
        VectorGroup(
            embedder=str(embedder), dimensions=None if size is None else int(str(size)), vectors=int(str(count))
        )
        for embedder, size, count in mirror.db.execute(query, (_MOST_GROUPS,))
    ]
    return structs.replace(
        health,
        coverage=covered / searched if searched else None,
        orphans=orphans,
        stale=_count(mirror, "SELECT count(*) FROM chunk JOIN doc ON doc.id = doc_id AND doc_id NOT IN current"),
        problems=problems,
        format_version=mirror.format_version,
        clean=mirror.clean,
        documents=_count_by_name(mirror, "SELECT status, count(*) FROM doc GROUP BY 1", _STATUSES),
        visibility=_count_by_name(
            mirror,
            f"SELECT visibility, count(*) FROM doc WHERE status = '{ACTIVE}' GROUP BY 1",
            _VISIBILITIES,
        ),
        chunks=mirror.tables[database.CHUNKS].rows,
        vectors=groups,
        jobs=_count_by_name(
            mirror, "SELECT status, count(*) FROM job GROUP BY 1", tuple(one.name.lower() for one in JobStatus)
        ),
    )


def _count(mirror: Mirror, query: str) -> int:
    """Return the integer that a query computes."""
    return int(str(mirror.db.execute(query).get))


def _count_by_name(mirror: Mirror, query: str, known: tuple[str, ...]) -> dict[str, int]:
    """Return the counts that a query computes by name. Names that are not ``known`` are added up as "other"."""
    counts = dict.fromkeys((*known, _OTHER), 0)
    for name, count in mirror.db.execute(query):
        counts[str(name) if name in known else _OTHER] += int(str(count))
    return {name: count for name, count in counts.items() if count}


def _describe_problems(mirror: Mirror, now_ms: int) -> Iterator[str]:
    """Yield the problems of a KB that its tables show at a glance."""
    if mirror.damaged_pages:
        yield tr(
            "{pages}, with {rows} lost",
            pages=format_count(mirror.damaged_pages, "damaged page"),
            rows=format_count(mirror.lost_rows, "row"),
        )
    broken = sum(table.broken for table in mirror.tables.values())
    if broken:
        yield tr(
            "{rows} in kb.redb are not in the format that rsclaw writes; they are left out",
            rows=format_count(broken, "row"),
        )
    if not mirror.clean:
        yield tr("the database was not closed properly: rsclaw repairs it at its next start")
    bare = _count(mirror, "SELECT count(*) FROM current WHERE id NOT IN (SELECT doc_id FROM chunk)")
    if bare:
        yield tr("{documents} without a text that a search finds", documents=format_count(bare, "document"))
    failed = _count(mirror, "SELECT count(*) FROM job WHERE status = 'failed'")
    if failed:
        yield tr("{jobs} that rsclaw has given up", jobs=format_count(failed, "job"))
    stale = _count(mirror, f"SELECT count(*) FROM job j WHERE {IS_STALE.format(now=now_ms)}")
    if stale:
        yield tr("{jobs} marked as running, without a valid claim", jobs=format_count(stale, "job"))


CHECKS = Checks(
    inspect=lambda found, asked: inspect_store(found, asked.now_ms),
    audit=audit,
)
