"""Check the rows of a KB: documents, chunks, jobs and ledger entries, in a mirror of its tables in SQLite.

The mirror is a temporary copy, so the checks are SQL queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import msgspec

from checks.audit.collector import FindingCollector, Level, display_text
from checks.audit.findings import SAMPLES
from checks.rsclaw import findings as kb
from checks.rsclaw.findings import ADVICE
from regraft.disk import links
from regraft.formats.redb import RedbFile
from regraft.formats.rsclaw import database
from regraft.formats.rsclaw.chunks import resolve_kb_file
from regraft.formats.rsclaw.database import (
    ACTIVE,
    CLEANUP,
    DONE,
    INDEXED,
    PENDING,
    TOMBSTONED,
    UPDATING,
    JobStatus,
    Mirror,
)
from regraft.formats.rsclaw.documents import canonical_url, chunk_id, latest_version_sql, likely_page_key
from regraft.formats.rsclaw.vectors import VectorFlaw
from regraft.language import format_count, insert_at_mark, join_list, tr
from regraft.report.notices import Severity

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
#: SQL for the title and id of a document; ``d`` is its row.
TITLED = "d.title || ' (' || d.id || ')'"
#: The same if the row ``d`` can be missing.
NAMED = f"coalesce({TITLED}, {{id}})"


class KbAudit(msgspec.Struct, kw_only=True):
    """State of the audit of one KB (knowledge base of rsclaw)."""

    #: The folder of the KB, and its database.
    root: Path
    path: Path
    mirror: Mirror
    findings: FindingCollector
    checked: dict[str, int] = msgspec.field(default_factory=dict)
    #: Names of checks whose data cannot be read.
    unread: list[str] = msgspec.field(default_factory=list)

    @property
    def db(self) -> apsw.Connection:
        """The connection to the temporary copy of the KB's tables."""
        return self.mirror.db

    @property
    def now_ms(self) -> int:
        """The time to which ages are relative, in ms."""
        return self.findings.now_ms

    @property
    def level(self) -> Level:
        """The level of the audit."""
        return self.findings.level

    def report(
        self,
        name: str,
        message: str,
        noun: str,
        samples: Iterable[str],
        *,
        severity: Severity | None = None,
        is_beyond_repair: bool = False,
    ) -> int:
        """Report one finding for all ``samples``, if there are any, and return their number.

        Args:
            name: the name of the finding.
            message: ``{n}`` in it becomes the count with ``noun``, ``{named}`` the first samples.
            noun: what is counted, in the singular.
            samples: a text that identifies each instance; read once, can be long.
            severity: the severity of this message; None: that of the registry.
            is_beyond_repair: whether no command fixes the finding.
        """
        first: list[str] = []
        count = 0
        for one in samples:
            if count < SAMPLES:
                first.append(display_text(one))
            if count % 1000 == 0:
                self.findings.check_time()
            count += 1
        if count:
            more = ["…"] if count > len(first) else []
            text = insert_at_mark(
                insert_at_mark(message, "{n}", format_count(count, noun)), "{named}", join_list([*first, *more])
            )
            if severity != "note" and name in ADVICE:
                text = tr("{what}; {advice}", what=text, advice=ADVICE[name])
            for place, one in enumerate(first):
                self.findings.add(
                    name,
                    text,
                    sample=one,
                    count=count - len(first) + 1 if place == 0 else 1,
                    severity=severity,
                    is_beyond_repair=is_beyond_repair,
                )
        return count

    def texts(self, query: str, *values: object) -> Iterator[str]:
        """Yield the first column of a query as text; ``values`` are the parameters of the query."""
        for text, *_ in self.db.execute(query, values):
            yield str(text)


# --- documents: versions, visibility, duplicate pages, collections --------------------------------------------------


#: How long rsclaw keeps removed documents.
KEPT_MS = 30 * DAY_MS
_VISIBILITIES = ("global", "private", "agent", "channel")


def create_current_table(mirror: Mirror) -> None:
    """Create the temporary table ``current`` with the active documents that are the latest version of their source."""
    mirror.db.execute("CREATE TEMP TABLE current (id TEXT PRIMARY KEY) WITHOUT ROWID")
    mirror.db.execute(
        f"INSERT INTO current SELECT d.id FROM doc d WHERE d.status = ? AND {latest_version_sql(mirror)}", (ACTIVE,)
    )


def check_documents(state: KbAudit) -> None:
    """Report problems of documents: unknown states, versions, visibility, expiry, duplicate pages, and collections."""
    query = f"SELECT {TITLED} || ': ' || d.status FROM doc d WHERE d.status NOT IN (?, ?, ?) ORDER BY d.id"
    message = tr("{n} with an unknown state: {named}")
    state.report(kb.ROW, message, noun="document", samples=state.texts(query, ACTIVE, TOMBSTONED, UPDATING))
    if state.mirror.is_whole(database.DOCS, database.LATEST):
        _check_latest(state)
        _check_superseded(state)
    _check_visibility(state)
    query = f"SELECT {TITLED} FROM doc d WHERE d.status = ? AND d.updated_at < ? ORDER BY d.updated_at, d.id"
    removed = state.texts(query, TOMBSTONED, state.now_ms - KEPT_MS)
    message = tr("{n} removed more than 30 days ago, but still stored: {named}")
    state.report(kb.TOMBSTONE_EXPIRED, message, noun="document", samples=removed)
    _check_url_twins(state)
    _check_collections(state)


def _check_latest(state: KbAudit) -> None:
    """Report wrong pointers from sources to the latest version of their document."""
    lost = """SELECT l.lsid || ' → ' || l.doc_id FROM latest l
               WHERE l.doc_id NOT IN (SELECT id FROM doc) ORDER BY l.lsid"""
    message = tr("{n} whose latest version is missing, so that searches do not find it: {named}")
    state.report(kb.LATEST, message, noun="source", samples=state.texts(lost))
    foreign = f"""SELECT l.lsid || ' → ' || {TITLED} FROM latest l JOIN doc d ON d.id = l.doc_id AND d.lsid <> l.lsid
                   ORDER BY l.lsid"""
    message = tr("{n} whose latest-version pointer refers to a document of a different source: {named}")
    state.report(kb.LATEST, message, noun="source", samples=state.texts(foreign))
    # After a rollback, an older active version is the latest. That is not damage.
    other = f"""SELECT {TITLED} FROM latest l JOIN doc d ON d.id = l.doc_id AND d.lsid = l.lsid
                 WHERE l.version <> d.version
                    OR (d.status <> ? AND l.version < (SELECT max(version) FROM doc every WHERE every.lsid = l.lsid))
                 ORDER BY d.id"""
    message = tr("{n} marked as the latest with a wrong version, or inactive and older than another version: {named}")
    state.report(kb.LATEST, message, noun="document", samples=state.texts(other, ACTIVE))
    unlisted = f"""SELECT {TITLED} FROM doc d WHERE d.lsid NOT IN (SELECT lsid FROM latest) ORDER BY d.id"""
    state.report(
        kb.LATEST,
        tr("{n} of a source whose latest version is unknown: {named}"),
        noun="document",
        samples=state.texts(unlisted),
    )


def _check_superseded(state: KbAudit) -> None:
    """Report active documents that no search finds: older versions, and newer ones after a rollback.

    In use is the version that the pointer of a source names; if it names none, the highest one.
    """
    unused = f"SELECT {TITLED} FROM doc d WHERE d.status = ? AND d.id NOT IN (SELECT id FROM current)"
    named = """FROM latest l JOIN doc named ON named.id = l.doc_id AND named.lsid = l.lsid WHERE l.lsid = d.lsid"""
    older = f"""{unused} AND d.version < CASE WHEN EXISTS (SELECT 1 {named}) THEN (SELECT named.version {named})
                  ELSE (SELECT max(version) FROM doc every WHERE every.lsid = d.lsid) END ORDER BY d.id"""
    message = tr("{n} in an older version that is still active: {named}")
    state.report(kb.SUPERSEDED, message, noun="document", samples=state.texts(older, ACTIVE))
    newer = f"{unused} AND d.version >= (SELECT named.version {named} AND named.status = '{ACTIVE}') ORDER BY d.id"
    message = tr(
        "{n} not in use because the latest-version pointer refers to a different version, as after a rollback: {named}"
    )
    state.report(kb.ROLLED_BACK, message, noun="document", samples=state.texts(newer, ACTIVE))


def _check_visibility(state: KbAudit) -> None:
    """Report documents that are not visible to anyone."""
    visible = f"SELECT {TITLED} FROM doc d WHERE d.status <> '{TOMBSTONED}' AND"
    private = f"{visible} d.visibility = 'private' AND coalesce(d.owner, '') = '' ORDER BY d.id"
    message = tr("{n} not visible to anyone: private without an owner: {named}")
    state.report(kb.UNREACHABLE, message, noun="document", samples=state.texts(private))
    bare = f"{visible} d.visibility IN ('agent', 'channel') AND coalesce(d.visible_to, '') = '' ORDER BY d.id"
    message = tr("{n} not visible to anyone: limited to an agent or channel that is not named: {named}")
    state.report(kb.UNREACHABLE, message, noun="document", samples=state.texts(bare))
    known = ", ".join("?" * len(_VISIBILITIES))
    other = f"{visible} d.visibility NOT IN ({known}) ORDER BY d.id"
    message = tr("{n} not visible to anyone: its visibility is unknown: {named}")
    state.report(kb.UNREACHABLE, message, noun="document", samples=state.texts(other, *_VISIBILITIES))


# --- pages that are there twice --------------------------------------------------------------------------------------

_PAGES = """CREATE TEMP TABLE page (doc_id TEXT PRIMARY KEY, lsid TEXT, address TEXT, likely TEXT) WITHOUT ROWID"""
#: Groups of documents with the same key.
_TWINS = f"""
    SELECT {{key}} || ': ' || group_concat({TITLED}, ', ')
      FROM page p JOIN doc d ON d.id = p.doc_id
     GROUP BY {{key}} HAVING count(DISTINCT p.lsid) > 1 {{more}} ORDER BY {{key}}"""


def _check_url_twins(state: KbAudit) -> None:
    """Report web pages that are documents of several sources, by address and by similar address."""
    state.db.execute(_PAGES)
    query = """SELECT d.id, d.lsid, coalesce(nullif(d.url, ''), substr(d.lsid, 5)) FROM doc d JOIN current USING (id)
                WHERE d.url <> '' OR d.lsid LIKE 'url:%' ORDER BY d.id"""
    pages = []
    for doc, lsid, url in state.db.execute(query):
        state.findings.check_time()
        address, likely = canonical_url(str(url)), likely_page_key(str(url))
        if address is not None and likely is not None:
            pages.append((str(doc), str(lsid), address, likely))
    state.db.executemany("INSERT INTO page VALUES (?, ?, ?, ?)", pages)
    message = tr("{n} used as the source of several documents: {named}")
    state.report(kb.URL_TWINS, message, noun="web page", samples=state.texts(_TWINS.format(key="p.address", more="")))
    similar = _TWINS.format(key="p.likely", more="AND count(DISTINCT p.address) > 1")
    message = tr("{n} probably used as the source of several documents with different addresses: {named}")
    state.report(kb.URL_TWINS, message, noun="web page", samples=state.texts(similar), severity="note")


# --- collections -----------------------------------------------------------------------------------------------------


def _check_collections(state: KbAudit) -> None:
    """Report collections whose entry by name is missing or wrong."""
    if not state.mirror.is_whole(database.COLLECTIONS, database.COLLECTIONS_BY_NAME):
        return
    lost = """SELECT n.name || ' → ' || n.id FROM collection_name n LEFT JOIN collection c ON c.id = n.id
               WHERE c.id IS NULL OR c.name <> n.name ORDER BY 1"""
    message = tr("{n} for a collection that is missing or has a different name: {named}")
    state.report(kb.COLLECTION, message, noun="name", samples=state.texts(lost))
    unlisted = """SELECT c.name || ' (' || c.id || ')' FROM collection c
                   WHERE NOT EXISTS (SELECT 1 FROM collection_name n WHERE n.name = c.name AND n.id = c.id)
                   ORDER BY c.id"""
    state.report(kb.COLLECTION, tr("{n} not found by name: {named}"), noun="collection", samples=state.texts(unlisted))


# --- chunks: documents, vectors, offsets, ids -----------------------------------------------------------------------


#: SQL for a chunk with its document.
_CHUNK = f"{NAMED.format(id='c.doc_id')} || ', ' || c.id"
#: SQL for the chunks that a search can find.
SEARCHED = f"chunk c JOIN current ON current.id = c.doc_id JOIN doc d ON d.id = c.doc_id AND c.status = '{ACTIVE}'"
_MESSAGES = {
    VectorFlaw.EMPTY: tr("{n} without a vector: {named}"),
    VectorFlaw.NOT_NUMBERS: tr("{n} with a vector that is not numeric: {named}"),
    VectorFlaw.NOT_FINITE: tr("{n} with a vector that is not finite: {named}"),
    VectorFlaw.OVERFLOW: tr("{n} with a vector whose norm is too large for single precision: {named}"),
    VectorFlaw.ZERO: tr("{n} with a vector of all zeros: {named}"),
}


def check_chunks(state: KbAudit) -> None:
    """Report problems of chunks. Needs the table ``body`` of :func:`checks.rsclaw.files.check_named_files`."""
    _check_owners(state)
    _check_source_lists(state)
    _check_vectors(state)
    # Ranges that are not valid, or exceed the text of the document if that is unchanged.
    query = f"""SELECT {_CHUNK} || ': ' || c.first || '-' || c.last
                  FROM chunk c JOIN doc d ON d.id = c.doc_id LEFT JOIN body b ON b.doc_id = c.doc_id
                 WHERE c.first < 0 OR c.last < c.first OR c.last > coalesce(b.size, c.last)
                 ORDER BY d.id, c.seq, c.id"""
    message = tr("{n} whose range is outside the text: {named}")
    state.report(kb.CHUNK_RANGE, message, noun="chunk", samples=state.texts(query))
    if state.mirror.is_whole(database.CHUNKS, database.ENTITIES):
        mentions = """SELECT m.entity_id || ', ' || m.chunk_id FROM mention m
                       WHERE m.chunk_id NOT IN (SELECT id FROM chunk) OR m.entity_id NOT IN (SELECT id FROM entity)
                       ORDER BY 1"""
        message = tr("{n} referring to a missing chunk or entity: {named}")
        state.report(kb.ENTITY, message, noun="mention", samples=state.texts(mentions))


def _check_owners(state: KbAudit) -> None:
    """Report chunks whose document is missing, or has another version or source."""
    if state.mirror.is_whole(database.DOCS):
        lost = (
            """SELECT c.doc_id || ', ' || c.id FROM chunk c WHERE c.doc_id NOT IN (SELECT id FROM doc) ORDER BY c.id"""
        )
        state.report(
            kb.CHUNK_ORPHAN, tr("{n} belonging to a missing document: {named}"), noun="chunk", samples=state.texts(lost)
        )
    other = f"""SELECT {_CHUNK} FROM chunk c JOIN doc d ON d.id = c.doc_id
                 WHERE c.doc_version <> d.version OR c.lsid <> d.lsid ORDER BY d.id, c.seq, c.id"""
    message = tr("{n} with a different version or source than its document: {named}")
    state.report(kb.CHUNK_ORPHAN, message, noun="chunk", samples=state.texts(other))


def _check_source_lists(state: KbAudit) -> None:
    """Report chunks for which the lists of chunks by source are wrong."""
    if not state.mirror.is_whole(database.CHUNKS, database.CHUNKS_BY_SOURCE):
        return
    lost = """SELECT s.chunk_id FROM by_source s LEFT JOIN chunk c ON c.id = s.chunk_id AND c.lsid = s.lsid
               WHERE c.id IS NULL ORDER BY 1"""
    state.report(
        kb.CHUNK_INDEX,
        tr("{n} listed under a source, but not existing as a chunk: {named}"),
        noun="id",
        samples=state.texts(lost),
    )
    unlisted = f"""SELECT {_CHUNK} FROM chunk c LEFT JOIN doc d ON d.id = c.doc_id
                    WHERE NOT EXISTS (SELECT 1 FROM by_source s WHERE s.lsid = c.lsid AND s.chunk_id = c.id)
                    ORDER BY c.doc_id, c.seq, c.id"""
    message = tr("{n} not listed under the source: {named}")
    state.report(kb.CHUNK_INDEX, message, noun="chunk", samples=state.texts(unlisted))


# --- vectors ---------------------------------------------------------------------------------------------------------


def usual_dimensions(state: KbAudit) -> int | None:
    """Return the dimensions of most vectors that are searched; None without vectors."""
    query = f"SELECT c.dimensions FROM {SEARCHED} WHERE c.flaw IS NULL GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1"
    for (dimensions,) in state.db.execute(query):
        return int(str(dimensions))
    return None


def _check_vectors(state: KbAudit) -> None:
    """Report searched chunks without a usable vector, and vectors of other dimensions or embedders than most."""
    usual = usual_dimensions(state)
    order = "ORDER BY d.id, c.seq, c.id"
    other = (
        f"SELECT {_CHUNK} || ': ' || c.dimensions FROM {SEARCHED} WHERE c.flaw IS NULL AND c.dimensions <> ? {order}"
    )
    message = tr(
        "{{n}} whose vector has a different length than the {dimensions} of most others: {{named}}", dimensions=usual
    )
    state.report(kb.DIMENSIONS, message, noun="chunk", samples=state.texts(other, usual))
    for flaw, message in _MESSAGES.items():
        flawed = f"SELECT {_CHUNK} FROM {SEARCHED} WHERE c.flaw = ? {order}"
        state.report(kb.DIMENSIONS, message, noun="chunk", samples=state.texts(flawed, flaw))
    most = f"SELECT c.embedder FROM {SEARCHED} GROUP BY 1 ORDER BY count(*) DESC, 1"
    first, *others = [*state.texts(most), ""]
    if len(others) > 1:
        message = tr(
            "{{n}} embedded by a different embedder than {first}, which embedded most others: {{named}}", first=first
        )
        strange = f"SELECT {_CHUNK} || ': ' || c.embedder FROM {SEARCHED} WHERE c.embedder <> ? {order}"
        state.report(kb.EMBEDDERS, message, noun="chunk", samples=state.texts(strange, first))


# --- ranges and ids --------------------------------------------------------------------------------------------------


class _IdentityFields(msgspec.Struct, frozen=True):
    """The fields of a chunk from which its id is derived."""

    id: str
    doc_id: str
    logical_source_id: str
    seq: database.NonNegativeInt64
    byte_offset: tuple[database.Int64, database.Int64]
    indexed_text: str
    heading_path: list[str] = []


_decode = msgspec.json.Decoder(_IdentityFields).decode


def check_ids(state: KbAudit, file: RedbFile) -> None:
    """Report chunks whose id cannot be derived from their text, where the file of the document contains this text.

    ``file`` is the open database, from which the chunks are read again.

    Raises:
        RedbError: the database can no longer be read.
    """
    if database.CHUNKS in file.tables:
        state.db.execute("CREATE TEMP TABLE wrong_id (chunk_id TEXT)")
        state.db.executemany("INSERT INTO wrong_id VALUES (?)", _wrong_ids(state, file))
        query = f"""SELECT {_CHUNK} FROM wrong_id w JOIN chunk c ON c.id = w.chunk_id
                      JOIN doc d ON d.id = c.doc_id ORDER BY d.id, c.seq, c.id"""
        message = tr("{n} whose id is not the one made from its text: {named}")
        state.report(kb.CHUNK_ID, message, noun="chunk", samples=state.texts(query))


def _wrong_ids(state: KbAudit, file: RedbFile) -> Iterator[tuple[str]]:
    """Yield the stored id of each chunk that is not derived from its source, number and text, as a row for SQL."""
    for _, value in file.raw_rows(database.CHUNKS):
        state.findings.check_time()
        with suppress(msgspec.MsgspecError, OSError):
            chunk = _decode(value)
            text = _text_in_body(state, chunk)
            if text and chunk.seq < 1 << 32 and chunk_id(chunk.logical_source_id, chunk.seq, text) != chunk.id:
                yield (chunk.id,)


def _text_in_body(state: KbAudit, chunk: _IdentityFields) -> str | None:
    """Return the text of a chunk if the file of its document contains this text at the chunk's offsets.

    Otherwise None.
    """
    headings = " > ".join(chunk.heading_path)
    if headings and not chunk.indexed_text.startswith(f"{headings}\n\n"):
        return None
    text = chunk.indexed_text[len(headings) + 2 :] if headings else chunk.indexed_text
    (first, last), wanted = chunk.byte_offset, text.encode()
    if first < 0 or last - first != len(wanted):
        return None
    query = "SELECT d.md_path, b.start FROM body b JOIN doc d ON d.id = b.doc_id WHERE d.id = ? AND b.size >= ?"
    for path, start in state.db.execute(query, (chunk.doc_id, last)):
        location = resolve_kb_file(state.root, str(path))
        if location is not None:
            with links.open_for_reading(location) as file:
                file.seek(int(str(start)) + first)
                if file.read(len(wanted)) == wanted:
                    return text
    return None


# --- mentions --------------------------------------------------------------------------------------------------------


# --- the outbox: ledger entries, jobs, and the tables that find and claim them --------------------------------------


#: SQL for the subject of a job: its document, else the document's id, else its own id.
_ABOUT = NAMED.format(id="j.doc_id, j.id")
_JOBS = "job j LEFT JOIN doc d ON d.id = j.doc_id"
#: SQL condition: a running job is stale if its claim is missing or has expired.
IS_STALE = """j.status = 'running'
              AND NOT EXISTS (SELECT 1 FROM claim c WHERE c.job_id = j.id AND c.expires_at > {now:d})"""
#: SQL for open ledger entries and their documents.
_ENTRIES = f"""
    SELECT {NAMED.format(id="e.doc_id, e.id")} || ': ' || e.status FROM entry e LEFT JOIN doc d ON d.id = e.doc_id
     WHERE e.status IN ('{PENDING}', '{INDEXED}') AND """
_OF_ENTRY = "EXISTS (SELECT 1 FROM job j WHERE j.doc_id = e.doc_id AND {what})"
_DEDUPE_PREFIX = "chunk_embed:"
_CHUNK_JOB = "chunk_and_embed"
_KNOWN = ", ".join(f"'{one.name.lower()}'" for one in JobStatus)
#: The numbers of job states in the queue.
_NUMBERS = " ".join(f"WHEN '{one.name.lower()}' THEN {one.value}" for one in JobStatus)


def check_jobs(state: KbAudit) -> None:
    """Report problems of jobs, ledger entries, and the tables that find and claim jobs."""
    jobs = f"SELECT j.id || ': ' || j.status FROM job j WHERE j.status NOT IN ({_KNOWN}) ORDER BY j.id"
    state.report(kb.ROW, tr("{n} in an unknown state: {named}"), noun="job", samples=state.texts(jobs))
    entries = "SELECT e.id || ': ' || e.status FROM entry e WHERE e.status NOT IN (?, ?, ?, ?) ORDER BY e.id"
    message = tr("{n} in an unknown state: {named}")
    state.report(kb.ROW, message, noun="ledger entry", samples=state.texts(entries, PENDING, INDEXED, CLEANUP, DONE))
    failed = f"""SELECT {_ABOUT} || coalesce(': ' || j.error, '') FROM {_JOBS}
                  WHERE j.status = 'failed' ORDER BY j.id"""
    state.report(kb.JOB_FAILED, tr("{n} given up by rsclaw: {named}"), noun="job", samples=state.texts(failed))
    if state.mirror.is_whole(database.CLAIMS):
        stale = f"SELECT {_ABOUT} FROM {_JOBS} WHERE {IS_STALE.format(now=state.now_ms)} ORDER BY j.id"
        message = tr("{n} marked as running, but without a valid claim: {named}")
        state.report(kb.JOB_STALE, message, noun="job", samples=state.texts(stale))
    if state.mirror.is_whole(database.JOBS):
        _check_ledger(state)
        _check_dedupe(state)
        _check_queue(state)


def _check_ledger(state: KbAudit) -> None:
    """Report ledger entries that no job will complete.

    Entries with a stale job are left out, as the job is reported.
    """
    day_ago = state.now_ms - DAY_MS
    live = _OF_ENTRY.format(what="j.status IN ('ready', 'running')")
    any_job = _OF_ENTRY.format(what="j.status IN ('ready', 'running', 'failed')")
    # Indexed entries wait for the next compaction, which can take a day.
    lost = f"{_ENTRIES} NOT {any_job} AND (e.status = '{PENDING}' OR e.updated_at < ?) ORDER BY e.id"
    message = tr("{n} still open, but without a job that would complete it: {named}")
    state.report(kb.LEDGER_PENDING, message, noun="ledger entry", samples=state.texts(lost, day_ago))
    failed = _OF_ENTRY.format(what="j.status = 'failed'")
    given_up = f"{_ENTRIES} {failed} AND NOT {live} ORDER BY e.id"
    message = tr("{n} pending forever because its job was given up: {named}")
    state.report(kb.LEDGER_PENDING, message, noun="ledger entry", samples=state.texts(given_up), severity="note")
    alive = f"j.status IN ('ready', 'running') AND NOT ({IS_STALE.format(now=state.now_ms)})"
    waiting = f"{_ENTRIES} {_OF_ENTRY.format(what=alive)} AND e.updated_at < ? ORDER BY e.id"
    message = tr("{n} whose job has been waiting for more than a day: {named}")
    state.report(
        kb.LEDGER_PENDING, message, noun="ledger entry", samples=state.texts(waiting, day_ago), severity="note"
    )


def _check_dedupe(state: KbAudit) -> None:
    """Report wrong and missing keys that keep a job from being queued twice."""
    if not state.mirror.is_whole(database.JOBS_BY_DEDUPE):
        return
    lost = """SELECT x.key FROM dedupe x LEFT JOIN job j ON j.id = x.job_id
               WHERE j.id IS NULL OR j.status NOT IN ('ready', 'running') ORDER BY x.key"""
    message = tr("{n} referring to no waiting or running job: {named}")
    state.report(kb.DEDUPE, message, noun="key", samples=state.texts(lost))
    unlisted = f"""SELECT {_ABOUT} FROM {_JOBS}
                    WHERE j.status IN ('ready', 'running') AND j.kind = '{_CHUNK_JOB}' AND j.doc_id IS NOT NULL
                      AND NOT EXISTS (SELECT 1 FROM dedupe x WHERE x.job_id = j.id
                                         AND x.key = '{_DEDUPE_PREFIX}' || j.doc_id || ':' || j.doc_version)
                    ORDER BY j.id"""
    message = tr("{n} that could be queued twice: {named}")
    state.report(kb.DEDUPE, message, noun="job", samples=state.texts(unlisted), severity="note")


def _check_queue(state: KbAudit) -> None:
    """Report entries of the queue and claims that do not fit the jobs."""
    fits = f"""q.job_id = j.id AND q.status = CASE j.status {_NUMBERS} END
               AND q.priority = j.priority AND q.created_at = j.created_at"""
    if state.mirror.is_whole(database.JOBS_BY_STATUS):
        lost = f"""SELECT q.job_id FROM queue q WHERE NOT EXISTS (SELECT 1 FROM job j WHERE {fits}) ORDER BY 1"""
        message = tr("{n} in the queue for a job that is missing or in a different state: {named}")
        state.report(kb.QUEUE, message, noun="entry", samples=state.texts(lost))
        unlisted = f"""SELECT {_ABOUT} FROM {_JOBS}
                        WHERE j.status IN ({_KNOWN}) AND NOT EXISTS (SELECT 1 FROM queue q WHERE {fits})
                        ORDER BY j.id"""
        state.report(
            kb.QUEUE,
            tr("{n} not in the queue, or queued in a different state: {named}"),
            noun="job",
            samples=state.texts(unlisted),
        )
    if state.mirror.is_whole(database.CLAIMS):
        claims = """SELECT c.job_id FROM claim c LEFT JOIN job j ON j.id = c.job_id
                     WHERE j.id IS NULL OR j.status <> 'running' ORDER BY 1"""
        state.report(
            kb.QUEUE, tr("{n} belonging to no running job: {named}"), noun="claim", samples=state.texts(claims)
        )
