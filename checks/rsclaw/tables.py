"""What an audit of a KB has at hand, and how it names what it finds."""

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
from regraft.formats.rsclaw.chunks import inside
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
    canonical_url,
    chunk_id,
    same_page,
)
from regraft.formats.rsclaw.selection import is_latest
from regraft.formats.rsclaw.vectors import Flaw
from regraft.language import format_count, insert_at_mark, join_list, tr
from regraft.report.notices import Severity

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
#: How a person calls a document in SQL: by its title and id. ``d`` is its row.
TITLED = "d.title || ' (' || d.id || ')'"
#: The same where ``d`` may be missing and only an id is known.
NAMED = f"coalesce({TITLED}, {{id}})"


class KbAudit(msgspec.Struct, kw_only=True):
    """A KB that is being audited."""

    #: The folder, and the database in it.
    root: Path
    path: Path
    mirror: Mirror
    ledger: FindingCollector
    checked: dict[str, int] = msgspec.field(default_factory=dict)
    #: Checks of what cannot be read, as a person calls them.
    unread: list[str] = msgspec.field(default_factory=list)

    @property
    def db(self) -> apsw.Connection:
        """Return the tables."""
        return self.mirror.db

    @property
    def now_ms(self) -> int:
        """Return what ages are relative to."""
        return self.ledger.now_ms

    @property
    def level(self) -> Level:
        """Return how deep to look."""
        return self.ledger.level

    def say(
        self,
        name: str,
        message: str,
        noun: str,
        samples: Iterable[str],
        *,
        severity: Severity | None = None,
        is_beyond_repair: bool = False,
    ) -> int:
        """Add one finding for all that ``samples`` name, and return how many that are; none where they are none.

        Args:
            name: the finding.
            message: ``{n}`` in it becomes the number with its noun, ``{named}`` the first few samples.
            noun: what is counted.
            samples: what names each instance; it may be long, and is read once.
            severity: that of the message, where it is not the gravest that the finding can be.
            is_beyond_repair: whether no command mends what it says.
        """
        first: list[str] = []
        count = 0
        for one in samples:
            if count < SAMPLES:
                first.append(display_text(one))
            if count % 1000 == 0:
                self.ledger.check_time()
            count += 1
        if count:
            more = ["…"] if count > len(first) else []
            said = insert_at_mark(
                insert_at_mark(message, "{n}", format_count(count, noun)), "{named}", join_list([*first, *more])
            )
            if severity != "note" and name in ADVICE:
                said = tr("{what}; {advice}", what=said, advice=ADVICE[name])
            for place, one in enumerate(first):
                self.ledger.add(
                    name,
                    said,
                    sample=one,
                    count=count - len(first) + 1 if place == 0 else 1,
                    severity=severity,
                    is_beyond_repair=is_beyond_repair,
                )
        return count

    def texts(self, query: str, *values: object) -> Iterator[str]:
        """Yield the first column of what a query gives."""
        for text, *_ in self.db.execute(query, values):
            yield str(text)


# Documents of a KB: versions, visibility, pages that are there twice, and collections.


#: How long the system keeps what was removed.
KEPT_MS = 30 * DAY_MS
_VISIBILITIES = ("global", "private", "agent", "channel")


def create_current_table(mirror: Mirror) -> None:
    """Make the temporary table ``current``: the documents that are active and the latest of their source."""
    mirror.db.execute("CREATE TEMP TABLE current (id TEXT PRIMARY KEY) WITHOUT ROWID")
    mirror.db.execute(
        f"INSERT INTO current SELECT d.id FROM doc d WHERE d.status = ? AND {is_latest(mirror)}", (ACTIVE,)
    )


def check_documents(seen: KbAudit) -> None:
    """Look at the documents."""
    _check_statuses(seen)
    if seen.mirror.is_whole(database.DOCS, database.LATEST):
        _check_latest(seen)
        _check_superseded(seen)
    _check_visibility(seen)
    _check_tombstones(seen)
    _check_url_twins(seen)
    _check_collections(seen)


def _check_statuses(seen: KbAudit) -> None:
    query = f"SELECT {TITLED} || ': ' || d.status FROM doc d WHERE d.status NOT IN (?, ?, ?) ORDER BY d.id"
    message = tr("{n} of a state that is not known: {named}")
    seen.say(kb.ROW, message, noun="document", samples=seen.texts(query, ACTIVE, TOMBSTONED, UPDATING))


def _check_latest(seen: KbAudit) -> None:
    """Hold what says which version is the latest against the documents."""
    lost = """SELECT l.lsid || ' → ' || l.doc_id FROM latest l
               WHERE l.doc_id NOT IN (SELECT id FROM doc) ORDER BY l.lsid"""
    message = tr("{n} whose latest version is not there, so that no search finds anything of it: {named}")
    seen.say(kb.LATEST, message, noun="source", samples=seen.texts(lost))
    foreign = f"""SELECT l.lsid || ' → ' || {TITLED} FROM latest l JOIN doc d ON d.id = l.doc_id AND d.lsid <> l.lsid
                   ORDER BY l.lsid"""
    message = tr("{n} whose latest version is said to be a document of another: {named}")
    seen.say(kb.LATEST, message, noun="source", samples=seen.texts(foreign))
    # An older version that is active is the latest after a rollback, which is no damage.
    other = f"""SELECT {TITLED} FROM latest l JOIN doc d ON d.id = l.doc_id AND d.lsid = l.lsid
                 WHERE l.version <> d.version
                    OR (d.status <> ? AND l.version < (SELECT max(version) FROM doc every WHERE every.lsid = l.lsid))
                 ORDER BY d.id"""
    message = tr("{n} said to be the latest under another version, or out of use and older than another: {named}")
    seen.say(kb.LATEST, message, noun="document", samples=seen.texts(other, ACTIVE))
    unlisted = f"""SELECT {TITLED} FROM doc d WHERE d.lsid NOT IN (SELECT lsid FROM latest) ORDER BY d.id"""
    seen.say(
        kb.LATEST,
        tr("{n} of a source whose latest version is not known: {named}"),
        noun="document",
        samples=seen.texts(unlisted),
    )


def _check_superseded(seen: KbAudit) -> None:
    """Report active documents that no search finds: older versions, and newer ones after a rollback.

    The version that the system's pointer names is in use. Where the pointer names none, the highest version is.
    """
    unused = f"SELECT {TITLED} FROM doc d WHERE d.status = ? AND d.id NOT IN (SELECT id FROM current)"
    named = """FROM latest l JOIN doc named ON named.id = l.doc_id AND named.lsid = l.lsid WHERE l.lsid = d.lsid"""
    older = f"""{unused} AND d.version < CASE WHEN EXISTS (SELECT 1 {named}) THEN (SELECT named.version {named})
                  ELSE (SELECT max(version) FROM doc every WHERE every.lsid = d.lsid) END ORDER BY d.id"""
    message = tr("{n} in an older version that is still active: {named}")
    seen.say(kb.SUPERSEDED, message, noun="document", samples=seen.texts(older, ACTIVE))
    newer = f"{unused} AND d.version >= (SELECT named.version {named} AND named.status = '{ACTIVE}') ORDER BY d.id"
    message = tr("{n} not in use, since the latest pointer names another version, as after a rollback: {named}")
    seen.say(kb.ROLLED_BACK, message, noun="document", samples=seen.texts(newer, ACTIVE))


def _check_visibility(seen: KbAudit) -> None:
    visible = f"SELECT {TITLED} FROM doc d WHERE d.status <> '{TOMBSTONED}' AND"
    private = f"{visible} d.visibility = 'private' AND coalesce(d.owner, '') = '' ORDER BY d.id"
    message = tr("{n} that nobody can see, private and without an owner: {named}")
    seen.say(kb.UNREACHABLE, message, noun="document", samples=seen.texts(private))
    bare = f"{visible} d.visibility IN ('agent', 'channel') AND coalesce(d.visible_to, '') = '' ORDER BY d.id"
    message = tr("{n} that nobody can see, for an agent or a channel that is not named: {named}")
    seen.say(kb.UNREACHABLE, message, noun="document", samples=seen.texts(bare))
    known = ", ".join("?" * len(_VISIBILITIES))
    other = f"{visible} d.visibility NOT IN ({known}) ORDER BY d.id"
    message = tr("{n} that nobody can see, of a visibility that is not known: {named}")
    seen.say(kb.UNREACHABLE, message, noun="document", samples=seen.texts(other, *_VISIBILITIES))


def _check_tombstones(seen: KbAudit) -> None:
    query = f"SELECT {TITLED} FROM doc d WHERE d.status = ? AND d.updated_at < ? ORDER BY d.updated_at, d.id"
    removed = seen.texts(query, TOMBSTONED, seen.now_ms - KEPT_MS)
    message = tr("{n} removed more than 30 days ago, with what belongs to it: {named}")
    seen.say(kb.TOMBSTONE_EXPIRED, message, noun="document", samples=removed)


# --- pages that are there twice --------------------------------------------------------------------------------------

_PAGES = """CREATE TEMP TABLE page (doc_id TEXT PRIMARY KEY, lsid TEXT, address TEXT, likely TEXT) WITHOUT ROWID"""
#: Documents of one key, each group with what names it.
_TWINS = f"""
    SELECT {{key}} || ': ' || group_concat({TITLED}, ', ')
      FROM page p JOIN doc d ON d.id = p.doc_id
     GROUP BY {{key}} HAVING count(DISTINCT p.lsid) > 1 {{more}} ORDER BY {{key}}"""


def _check_url_twins(seen: KbAudit) -> None:
    """Find documents of one page under sources of their own."""
    seen.db.execute(_PAGES)
    seen.db.executemany("INSERT INTO page VALUES (?, ?, ?, ?)", list(_read_addresses(seen)))
    message = tr("{n} that several documents are of: {named}")
    seen.say(kb.URL_TWINS, message, noun="page", samples=seen.texts(_TWINS.format(key="p.address", more="")))
    likely = _TWINS.format(key="p.likely", more="AND count(DISTINCT p.address) > 1")
    message = tr("{n} that several documents are likely of, under addresses of their own: {named}")
    seen.say(kb.URL_TWINS, message, noun="page", samples=seen.texts(likely), severity="note")


def _read_addresses(seen: KbAudit) -> Iterator[tuple[str, str, str, str]]:
    """Yield the document, the source, and the address in both forms, of what is a page and is searched."""
    query = """SELECT d.id, d.lsid, coalesce(nullif(d.url, ''), substr(d.lsid, 5)) FROM doc d JOIN current USING (id)
                WHERE d.url <> '' OR d.lsid LIKE 'url:%' ORDER BY d.id"""
    for doc, lsid, url in seen.db.execute(query):
        seen.ledger.check_time()
        address, likely = canonical_url(str(url)), same_page(str(url))
        if address is not None and likely is not None:
            yield str(doc), str(lsid), address, likely


# --- collections -----------------------------------------------------------------------------------------------------


def _check_collections(seen: KbAudit) -> None:
    if not seen.mirror.is_whole(database.COLLECTIONS, database.COLLECTIONS_BY_NAME):
        return
    lost = """SELECT n.name || ' → ' || n.id FROM collection_name n LEFT JOIN collection c ON c.id = n.id
               WHERE c.id IS NULL OR c.name <> n.name ORDER BY 1"""
    message = tr("{n} of a collection that is not there, or has another name: {named}")
    seen.say(kb.COLLECTION, message, noun="name", samples=seen.texts(lost))
    unlisted = """SELECT c.name || ' (' || c.id || ')' FROM collection c
                   WHERE NOT EXISTS (SELECT 1 FROM collection_name n WHERE n.name = c.name AND n.id = c.id)
                   ORDER BY c.id"""
    seen.say(kb.COLLECTION, tr("{n} not found by name: {named}"), noun="collection", samples=seen.texts(unlisted))


# Chunks of a KB: whether each belongs to a document, can be found, and has the id that it must have.


#: A chunk with its document, for a person.
_CHUNK = f"{NAMED.format(id='c.doc_id')} || ', ' || c.id"
#: Chunks that a search may find.
SEARCHED = f"chunk c JOIN current ON current.id = c.doc_id JOIN doc d ON d.id = c.doc_id AND c.status = '{ACTIVE}'"
_MESSAGES = {
    Flaw.EMPTY: tr("{n} without a vector: {named}"),
    Flaw.NOT_NUMBERS: tr("{n} with a vector that is not made of numbers: {named}"),
    Flaw.NOT_FINITE: tr("{n} with a vector that is not finite: {named}"),
    Flaw.OVERFLOW: tr("{n} with a vector whose norm is too large for single precision: {named}"),
    Flaw.ZERO: tr("{n} with a vector of zeros: {named}"),
}


def check_chunks(seen: KbAudit) -> None:
    """Look at the chunks; what their documents' files are was looked at before."""
    _check_owners(seen)
    _check_source_lists(seen)
    _check_vectors(seen)
    _check_ranges(seen)
    _check_mentions(seen)


def _check_owners(seen: KbAudit) -> None:
    if seen.mirror.is_whole(database.DOCS):
        lost = (
            """SELECT c.doc_id || ', ' || c.id FROM chunk c WHERE c.doc_id NOT IN (SELECT id FROM doc) ORDER BY c.id"""
        )
        seen.say(
            kb.CHUNK_ORPHAN, tr("{n} of a document that is not there: {named}"), noun="chunk", samples=seen.texts(lost)
        )
    other = f"""SELECT {_CHUNK} FROM chunk c JOIN doc d ON d.id = c.doc_id
                 WHERE c.doc_version <> d.version OR c.lsid <> d.lsid ORDER BY d.id, c.seq, c.id"""
    message = tr("{n} of another version or source than the document: {named}")
    seen.say(kb.CHUNK_ORPHAN, message, noun="chunk", samples=seen.texts(other))


def _check_source_lists(seen: KbAudit) -> None:
    """Hold what lists chunks by their sources against the chunks."""
    if not seen.mirror.is_whole(database.CHUNKS, database.CHUNKS_BY_SOURCE):
        return
    lost = """SELECT s.chunk_id FROM by_source s LEFT JOIN chunk c ON c.id = s.chunk_id AND c.lsid = s.lsid
               WHERE c.id IS NULL ORDER BY 1"""
    seen.say(
        kb.CHUNK_INDEX,
        tr("{n} listed under a source that has no such chunk: {named}"),
        noun="id",
        samples=seen.texts(lost),
    )
    unlisted = f"""SELECT {_CHUNK} FROM chunk c LEFT JOIN doc d ON d.id = c.doc_id
                    WHERE NOT EXISTS (SELECT 1 FROM by_source s WHERE s.lsid = c.lsid AND s.chunk_id = c.id)
                    ORDER BY c.doc_id, c.seq, c.id"""
    message = tr("{n} not listed under the source: {named}")
    seen.say(kb.CHUNK_INDEX, message, noun="chunk", samples=seen.texts(unlisted))


# --- vectors ---------------------------------------------------------------------------------------------------------


def usual_dimensions(seen: KbAudit) -> int | None:
    """Return how many numbers the vectors of most chunks have that are searched; None where there are none."""
    query = f"SELECT c.dimensions FROM {SEARCHED} WHERE c.flaw IS NULL GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1"
    for (dimensions,) in seen.db.execute(query):
        return int(str(dimensions))
    return None


def _check_vectors(seen: KbAudit) -> None:
    usual = usual_dimensions(seen)
    order = "ORDER BY d.id, c.seq, c.id"
    other = (
        f"SELECT {_CHUNK} || ': ' || c.dimensions FROM {SEARCHED} WHERE c.flaw IS NULL AND c.dimensions <> ? {order}"
    )
    message = tr("{{n}} with a vector of another length than {dimensions}, as most have: {{named}}", dimensions=usual)
    seen.say(kb.DIMENSIONS, message, noun="chunk", samples=seen.texts(other, usual))
    for flaw, message in _MESSAGES.items():
        flawed = f"SELECT {_CHUNK} FROM {SEARCHED} WHERE c.flaw = ? {order}"
        seen.say(kb.DIMENSIONS, message, noun="chunk", samples=seen.texts(flawed, flaw))
    most = f"SELECT c.embedder FROM {SEARCHED} GROUP BY 1 ORDER BY count(*) DESC, 1"
    first, *others = [*seen.texts(most), ""]
    if len(others) > 1:
        message = tr("{{n}} embedded by another embedder than {first}, as most are: {{named}}", first=first)
        strange = f"SELECT {_CHUNK} || ': ' || c.embedder FROM {SEARCHED} WHERE c.embedder <> ? {order}"
        seen.say(kb.EMBEDDERS, message, noun="chunk", samples=seen.texts(strange, first))


# --- ranges and ids --------------------------------------------------------------------------------------------------


def _check_ranges(seen: KbAudit) -> None:
    """Find ranges that no text has; whether one lies in a text is asked where that is the document's own."""
    query = f"""SELECT {_CHUNK} || ': ' || c.first || '-' || c.last
                  FROM chunk c JOIN doc d ON d.id = c.doc_id LEFT JOIN body b ON b.doc_id = c.doc_id
                 WHERE c.first < 0 OR c.last < c.first OR c.last > coalesce(b.size, c.last)
                 ORDER BY d.id, c.seq, c.id"""
    message = tr("{n} whose range does not lie in the text: {named}")
    seen.say(kb.CHUNK_RANGE, message, noun="chunk", samples=seen.texts(query))


class _Indexed(msgspec.Struct, frozen=True):
    """What the id of a chunk follows from, and tells whether its text stands in the body as it is."""

    id: str
    doc_id: str
    logical_source_id: str
    seq: database.Count
    byte_offset: tuple[database.Whole, database.Whole]
    indexed_text: str
    heading_path: list[str] = []


_decode = msgspec.json.Decoder(_Indexed).decode


def check_ids(seen: KbAudit, file: RedbFile) -> None:
    """Hold the ids of chunks against what they follow from, where the body of the file has the chunk's text as it is.

    Raises:
        RedbError: the database cannot be read any more.
    """
    if database.CHUNKS in file.tables:
        seen.db.execute("CREATE TEMP TABLE wrong_id (chunk_id TEXT)")
        seen.db.executemany("INSERT INTO wrong_id VALUES (?)", _wrong_ids(seen, file))
        query = f"""SELECT {_CHUNK} FROM wrong_id w JOIN chunk c ON c.id = w.chunk_id
                      JOIN doc d ON d.id = c.doc_id ORDER BY d.id, c.seq, c.id"""
        message = tr("{n} with an id that does not follow from the text: {named}")
        seen.say(kb.CHUNK_ID, message, noun="chunk", samples=seen.texts(query))


def _wrong_ids(seen: KbAudit, file: RedbFile) -> Iterator[tuple[str]]:
    for _, value in file.raw_rows(database.CHUNKS):
        seen.ledger.check_time()
        with suppress(msgspec.MsgspecError, OSError):
            chunk = _decode(value)
            text = _text_in_body(seen, chunk)
            if text and chunk.seq < 1 << 32 and chunk_id(chunk.logical_source_id, chunk.seq, text) != chunk.id:
                yield (chunk.id,)


def _text_in_body(seen: KbAudit, chunk: _Indexed) -> str | None:
    """Return the text of a chunk where it stands in the body as it was embedded, None where that is not certain."""
    headings = " > ".join(chunk.heading_path)
    if headings and not chunk.indexed_text.startswith(f"{headings}\n\n"):
        return None
    text = chunk.indexed_text[len(headings) + 2 :] if headings else chunk.indexed_text
    (first, last), wanted = chunk.byte_offset, text.encode()
    if first < 0 or last - first != len(wanted):
        return None
    query = "SELECT d.md_path, b.start FROM body b JOIN doc d ON d.id = b.doc_id WHERE d.id = ? AND b.size >= ?"
    for path, start in seen.db.execute(query, (chunk.doc_id, last)):
        place = inside(seen.root, str(path))
        if place is not None and _piece(place, int(str(start)) + first, len(wanted)) == wanted:
            return text
    return None


def _piece(path: Path, start: int, length: int) -> bytes:
    with links.open_for_reading(path) as file:
        file.seek(start)
        return file.read(length)


# --- mentions --------------------------------------------------------------------------------------------------------


def _check_mentions(seen: KbAudit) -> None:
    if not seen.mirror.is_whole(database.CHUNKS, database.ENTITIES):
        return
    query = """SELECT m.entity_id || ', ' || m.chunk_id FROM mention m
                WHERE m.chunk_id NOT IN (SELECT id FROM chunk) OR m.entity_id NOT IN (SELECT id FROM entity)
                ORDER BY 1"""
    message = tr("{n} of a chunk or an entity that is not there: {named}")
    seen.say(kb.ENTITY, message, noun="mention", samples=seen.texts(query))


# The outbox of a KB: its ledger, the jobs, and what is kept beside them to find and to claim these.


#: What a job is about: its document, else what it calls that, else the job itself.
_ABOUT = NAMED.format(id="j.doc_id, j.id")
_JOBS = "job j LEFT JOIN doc d ON d.id = j.doc_id"
#: A job that a worker has is stale where the claim is missing or over.
IS_STALE = """j.status = 'running'
              AND NOT EXISTS (SELECT 1 FROM claim c WHERE c.job_id = j.id AND c.expires_at > {now:d})"""
#: Ledger entries by the documents that they are of; what each has of jobs.
_ENTRIES = f"""
    SELECT {NAMED.format(id="e.doc_id, e.id")} || ': ' || e.status FROM entry e LEFT JOIN doc d ON d.id = e.doc_id
     WHERE e.status IN ('{PENDING}', '{INDEXED}') AND """
_OF_ENTRY = "EXISTS (SELECT 1 FROM job j WHERE j.doc_id = e.doc_id AND {what})"
_DEDUPE_PREFIX = "chunk_embed:"
_CHUNK_JOB = "chunk_and_embed"
_KNOWN = ", ".join(f"'{one.name.lower()}'" for one in JobStatus)
#: The numbers that stand for states of jobs.
_NUMBERS = " ".join(f"WHEN '{one.name.lower()}' THEN {one.value}" for one in JobStatus)


def check_jobs(seen: KbAudit) -> None:
    """Look at jobs and ledger."""
    _check_job_states(seen)
    _check_unfinished_jobs(seen)
    if seen.mirror.is_whole(database.JOBS):
        _check_ledger(seen)
        _check_dedupe(seen)
        _check_queue(seen)


def _check_job_states(seen: KbAudit) -> None:
    jobs = f"SELECT j.id || ': ' || j.status FROM job j WHERE j.status NOT IN ({_KNOWN}) ORDER BY j.id"
    seen.say(kb.ROW, tr("{n} in a state that is not known: {named}"), noun="job", samples=seen.texts(jobs))
    entries = "SELECT e.id || ': ' || e.status FROM entry e WHERE e.status NOT IN (?, ?, ?, ?) ORDER BY e.id"
    message = tr("{n} in a state that is not known: {named}")
    seen.say(kb.ROW, message, noun="ledger entry", samples=seen.texts(entries, PENDING, INDEXED, CLEANUP, DONE))


def _check_unfinished_jobs(seen: KbAudit) -> None:
    failed = f"""SELECT {_ABOUT} || coalesce(': ' || j.error, '') FROM {_JOBS}
                  WHERE j.status = 'failed' ORDER BY j.id"""
    seen.say(kb.JOB_FAILED, tr("{n} that rsclaw has given up: {named}"), noun="job", samples=seen.texts(failed))
    if seen.mirror.is_whole(database.CLAIMS):
        stale = f"SELECT {_ABOUT} FROM {_JOBS} WHERE {IS_STALE.format(now=seen.now_ms)} ORDER BY j.id"
        message = tr("{n} said to be running, without a claim that still holds: {named}")
        seen.say(kb.JOB_STALE, message, noun="job", samples=seen.texts(stale))


def _check_ledger(seen: KbAudit) -> None:
    """Find entries that nothing will settle; a stale job is told by itself."""
    day_ago = seen.now_ms - DAY_MS
    live = _OF_ENTRY.format(what="j.status IN ('ready', 'running')")
    any_job = _OF_ENTRY.format(what="j.status IN ('ready', 'running', 'failed')")
    # What is indexed waits for the next compaction, which takes its time.
    lost = f"{_ENTRIES} NOT {any_job} AND (e.status = '{PENDING}' OR e.updated_at < ?) ORDER BY e.id"
    message = tr("{n} still open, with no job that would settle it: {named}")
    seen.say(kb.LEDGER_PENDING, message, noun="ledger entry", samples=seen.texts(lost, day_ago))
    failed = _OF_ENTRY.format(what="j.status = 'failed'")
    given_up = f"{_ENTRIES} {failed} AND NOT {live} ORDER BY e.id"
    message = tr("{n} pending for ever, as their job was given up: {named}")
    seen.say(kb.LEDGER_PENDING, message, noun="ledger entry", samples=seen.texts(given_up), severity="note")
    alive = f"j.status IN ('ready', 'running') AND NOT ({IS_STALE.format(now=seen.now_ms)})"
    waiting = f"{_ENTRIES} {_OF_ENTRY.format(what=alive)} AND e.updated_at < ? ORDER BY e.id"
    message = tr("{n} whose job has been waiting for more than a day: {named}")
    seen.say(kb.LEDGER_PENDING, message, noun="ledger entry", samples=seen.texts(waiting, day_ago), severity="note")


def _check_dedupe(seen: KbAudit) -> None:
    if not seen.mirror.is_whole(database.JOBS_BY_DEDUPE):
        return
    lost = """SELECT x.key FROM dedupe x LEFT JOIN job j ON j.id = x.job_id
               WHERE j.id IS NULL OR j.status NOT IN ('ready', 'running') ORDER BY x.key"""
    message = tr("{n} of no job that is waiting or running: {named}")
    seen.say(kb.DEDUPE, message, noun="key", samples=seen.texts(lost))
    unlisted = f"""SELECT {_ABOUT} FROM {_JOBS}
                    WHERE j.status IN ('ready', 'running') AND j.kind = '{_CHUNK_JOB}' AND j.doc_id IS NOT NULL
                      AND NOT EXISTS (SELECT 1 FROM dedupe x WHERE x.job_id = j.id
                                         AND x.key = '{_DEDUPE_PREFIX}' || j.doc_id || ':' || j.doc_version) ORDER BY j.id"""
    message = tr("{n} that could be queued twice: {named}")
    seen.say(kb.DEDUPE, message, noun="job", samples=seen.texts(unlisted), severity="note")


def _check_queue(seen: KbAudit) -> None:
    """Hold the order of jobs, and the claims, against the jobs."""
    fits = f"""q.job_id = j.id AND q.status = CASE j.status {_NUMBERS} END
               AND q.priority = j.priority AND q.created_at = j.created_at"""
    if seen.mirror.is_whole(database.JOBS_BY_STATUS):
        lost = f"""SELECT q.job_id FROM queue q WHERE NOT EXISTS (SELECT 1 FROM job j WHERE {fits}) ORDER BY 1"""
        message = tr("{n} in the queue of a job that is not there, or in another state: {named}")
        seen.say(kb.QUEUE, message, noun="entry", samples=seen.texts(lost))
        unlisted = f"""SELECT {_ABOUT} FROM {_JOBS}
                        WHERE j.status IN ({_KNOWN}) AND NOT EXISTS (SELECT 1 FROM queue q WHERE {fits})
                        ORDER BY j.id"""
        seen.say(
            kb.QUEUE,
            tr("{n} not in the queue, or there in another state: {named}"),
            noun="job",
            samples=seen.texts(unlisted),
        )
    if seen.mirror.is_whole(database.CLAIMS):
        claims = """SELECT c.job_id FROM claim c LEFT JOIN job j ON j.id = c.job_id
                     WHERE j.id IS NULL OR j.status <> 'running' ORDER BY 1"""
        seen.say(kb.QUEUE, tr("{n} of no running job: {named}"), noun="claim", samples=seen.texts(claims))
