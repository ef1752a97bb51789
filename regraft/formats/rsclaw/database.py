"""The folder of a KB and its database (``docs/formats/rsclaw.md``, "The folder").

:func:`mirrored` reads the database once into temporary tables, of which everything else is asked in SQL: memory does
not grow with rows, and rows that are not of their form are kept apart and counted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote_plus, unquote_to_bytes

import ada_url
import apsw
import msgspec
from msgspec import Meta, Raw, Struct

from regraft.disk import links, sqlite
from regraft.errors import RegraftError
from regraft.formats.redb import PageDamage, RedbFile, read_redb
from regraft.formats.rsclaw.vectors import flaw_of
from regraft.language import tr

# What rsclaw names sources, chunks and files of markdown by (``docs/formats/rsclaw.md``, "Identities").
#
# The system reads a URL with the ``url`` crate, which follows the WHATWG's standard. Here another parser of that standard
# does so; the form of the query is made by :mod:`urllib`.


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Parameters that no canonical form has, whatever the site; names are told apart by case, and exact but for the prefix.
TRACKER_PREFIX = "utm_"
TRACKERS = _names(
    "fbclid gclid msclkid yclid dclid _ga _gl ref ref_src ref_url referrer source mc_cid mc_eid spm share_session_id"
    " share_id"
)
_WEB = frozenset({"http:", "https:"})
_HASH_OF_FILE = re.compile(r"file:sha256:([0-9a-f]{64})")
_MARKDOWN_NAME = re.compile(r"(.*?)--([0-9a-f]{8})(?:--([0-9a-f]{8}))?\.md", re.DOTALL)


# --- URLs ------------------------------------------------------------------------------------------------------------


def canonical_url(url: str) -> str | None:
    """Return the form under which the system knows a URL; None where a text is no URL of http or https.

    The scheme and the host are in lower case, the fragment and trackers are gone, and what is left of the query is
    sorted by name, then by value, and encoded as a form. The standard decides the rest:

    - A default port goes, any other stays. Tabs, line breaks, and blanks at both ends go; ``\\`` is ``/``.
    - Name and password stay.
    - A host becomes ASCII: of an IDN its punycode, of numbers the IPv4 address, of IPv6 the shortest form. Its last dot
      stays.
    - A path loses ``.`` and ``..``, gets an escape for what must have one, and keeps the escapes that it has, in their
      case. Its last slash, and two in a row, stay; no path at all is ``/``.
    - A name or value of the query is decoded first, ``+`` as a blank; what is not UTF-8 becomes U+FFFD. A blank is
      written as ``+``. So a tracker with escapes in its name is one, too, while ``UTM_source`` is none.
    - Parameters may be there twice, and may be blank: ``a`` is ``a=``. A query of nothing but trackers, or of
      nothing, goes with its question mark.

    Parsers of the standard differ in what it changed lately: a ``^`` in a path, or a character new to IDN.
    """
    return _kept(url, lambda name: not _is_tracker(name))


def _kept(url: str, keep: Callable[[str], bool]) -> str | None:
    """Return a URL without its fragment, with the parameters whose names are to be kept, in their order."""
    try:
        parsed = ada_url.URL(url)
    except ValueError:
        # Half a surrogate, which no text of the system can have, is refused with one, too.
        return None
    if parsed.protocol not in _WEB:
        return None
    parsed.hash = ""
    parsed.search = _form(sorted(pair for pair in _parameters(parsed.search) if keep(pair[0])))
    return str(parsed.href)


def _parameters(search: str) -> list[tuple[str, str]]:
    """Return names and values of a query as a form has them."""
    parts = (part.partition("=") for part in search.removeprefix("?").split("&") if part)
    return [(_decoded(name), _decoded(value)) for name, _, value in parts]


def _decoded(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "replace")


def _form(parameters: Iterable[tuple[str, str]]) -> str:
    return "&".join(f"{_encoded(name)}={_encoded(value)}" for name, value in parameters)


def _encoded(text: str) -> str:
    # A form leaves an asterisk, and escapes a tilde.
    return quote_plus(text, safe="*").replace("~", "%7E")


def _is_tracker(name: str) -> bool:
    return name in TRACKERS or name.startswith(TRACKER_PREFIX)


# --- likely twins ----------------------------------------------------------------------------------------------------


class _Site(msgspec.Struct, frozen=True, kw_only=True):
    """Which pages a site has, as a pattern of host and path, and which of their parameters say only who came how."""

    pages: re.Pattern[str]
    session: frozenset[str]


def _site(pages: str, session: str) -> _Site:
    return _Site(pages=re.compile(pages), session=_names(session))


_SITES = (
    _site(
        r"(www\.)?google(\.com?)?\.[a-z]{2,3}/search",
        "ved ei sca_esv sca_upv sxsrf gs_lcp gs_lcrp gs_lp gs_ssp gs_ivs sclient oq aqs sourceid ie oe client uact bih"
        " biw dpr iflsig rlz fbs usg sa sei vet prmd cshid pccc",
    ),
    _site(
        r"(\w+\.)?zhihu\.com/",
        "share_code s_r s_s_i rf ssr_src native hybrid_search_extra hybrid_search_source ivk_sa zhida_source",
    ),
    _site(
        r"github\.com/",
        "notification_referrer_id notifications_query email_source email_token ref_cta ref_loc ref_page",
    ),
    _site(
        r"(www\.|m\.)?bilibili\.com/video/",
        "spm_id_from vd_source from_spmid spmid from from_source share_source share_medium share_plat share_from"
        " share_tag share_times bbid ts timestamp unique_k up_id buvid mid is_story_h5 plat_id seid launch_id"
        " session_id msource bsource trackid track_id",
    ),
    _site(
        r"(\w+\.)?weibo\.(com|cn)/",
        "refer_flag Refer luicode lfid featurecode oid from wm sourcetype jumpfrom launchid uicode _T_WM",
    ),
    _site(r"([\w-]+\.)+wikipedia\.org/", "wprov"),
)


def same_page(url: str) -> str | None:
    """Return a key that addresses of one page are likely to share, though the system tells them apart.

    Nothing is identified by it: it tells a person about likely twins. Beside what :func:`canonical_url` does, the
    parameters go by which some well-known sites tell visits apart, and escapes of a path are in upper case.
    """
    canonical = canonical_url(url)
    if canonical is None:
        return None
    parsed = ada_url.URL(canonical)
    page = f"{parsed.hostname}{parsed.pathname}"
    session = next((site.session for site in _SITES if site.pages.match(page)), frozenset[str]())
    parsed.pathname = re.sub("%[0-9a-f]{2}", lambda escape: escape[0].upper(), parsed.pathname, flags=re.IGNORECASE)
    return _kept(parsed.href, lambda name: name not in session)


# --- sources ---------------------------------------------------------------------------------------------------------


class SourceKind(StrEnum):
    """What a source is; OTHER where its id is of no form that is known, such as ``file:custom:NAME``."""

    FILE = "file"
    URL = "url"
    CHAT = "chat"
    MAIL = "mail"
    OTHER = "other"


class SourceId(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a source in its parts.

    ``value`` is the SHA-256 of a file in hex, a URL, channel and time of a chat, a Message-ID, or a whole id of OTHER.
    """

    kind: SourceKind
    value: str

    def __str__(self) -> str:
        """Return the id as it is stored."""
        prefix = {SourceKind.OTHER: "", SourceKind.FILE: "file:sha256:"}.get(self.kind, f"{self.kind}:")
        return prefix + self.value


def parse_source_id(text: str) -> SourceId:
    """Return the parts of a source's id; whatever it is, it is of some kind."""
    if found := _HASH_OF_FILE.fullmatch(text):
        return SourceId(kind=SourceKind.FILE, value=found[1])
    kind, _, value = text.partition(":")
    if kind in (SourceKind.URL, SourceKind.CHAT, SourceKind.MAIL) and value:
        return SourceId(kind=SourceKind(kind), value=value)
    return SourceId(kind=SourceKind.OTHER, value=text)


def source_id_of_url(url: str) -> str | None:
    """Return the id of a page; None where a text is no URL of http or https."""
    canonical = canonical_url(url)
    return None if canonical is None else f"url:{canonical}"


def source_id_of_file(raw: bytes | str) -> str:
    """Return the id of a file, by its bytes or by their SHA-256 in hex."""
    digest = raw.lower() if isinstance(raw, str) else hashlib.sha256(raw).hexdigest()
    return f"file:sha256:{digest}"


def source_id_of_chat(channel: str, time: int) -> str:
    """Return the id of a stretch of a channel that begins at a time; a channel may have colons in its name."""
    return f"chat:{channel}:{time}"


def source_id_of_mail(message_id: str) -> str:
    """Return the id of a mail; its Message-ID stays as it is."""
    return f"mail:{message_id}"


# --- chunks and files of markdown ------------------------------------------------------------------------------------


def chunk_id(source_id: str, seq: int, body: str) -> str:
    """Return the id of a chunk: ``body`` is its own text, without the headings that its vector has before it.

    Raises:
        OverflowError: ``seq`` does not fit into four bytes.
    """
    key = source_id.encode() + b"\0" + seq.to_bytes(4, "big") + b"\0" + body.encode()
    return hashlib.sha256(key).hexdigest()[:32]


class MarkdownName(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a file of markdown in its parts; older files have no hash of the body in theirs."""

    slug: str
    source_hash: str
    body_hash: str | None = None

    def __str__(self) -> str:
        """Return the name of the file."""
        return "--".join(part for part in (self.slug, self.source_hash, self.body_hash) if part is not None) + ".md"


def markdown_name(slug: str, source_id: str, markdown_sha256: str | None = None) -> MarkdownName:
    """Return the name of the file of a source's text; ``markdown_sha256`` is that of its body, None for an old one."""
    source_hash = hashlib.sha256(source_id.encode()).hexdigest()[:8]
    body_hash = None if markdown_sha256 is None else markdown_sha256[:8]
    return MarkdownName(slug=slug, source_hash=source_hash, body_hash=body_hash)


def parse_markdown_name(name: str) -> MarkdownName | None:
    """Return the parts of a file's name; None where it is not of the form."""
    found = _MARKDOWN_NAME.fullmatch(name)
    if found is None:
        return None
    return MarkdownName(slug=found[1], source_hash=found[2], body_hash=found[3])


# The rows of the tables of ``kb.redb``, as the system writes them (``docs/formats/rsclaw.md``, "Tables").
#
# Fields that no rule of ours needs are not read. A row that is not of its form raises ``msgspec.MsgspecError``.


#: What SQLite, and the system, can hold.
Whole = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Id = Annotated[str, Meta(min_length=1)]

DOCS = "kb_docs"
LATEST = "kb_doc_latest_version"
CHUNKS = "kb_chunks"
CHUNKS_BY_SOURCE = "kb_chunk_by_logical"
ENTITIES = "kb_entities"
ENTITY_INDEX = "kb_entity_index"
SEEN = "kb_seen_items"
SYNC = "kb_sync_state"
LEDGER = "kb_ledger"
JOBS = "kb_jobs_by_id"
JOBS_BY_DEDUPE = "kb_jobs_by_dedupe_active"
JOBS_BY_STATUS = "kb_jobs_by_status_priority"
CLAIMS = "kb_job_claims"
COLLECTIONS = "kb_collections"
COLLECTIONS_BY_NAME = "kb_collection_by_name"
TABLES = (
    DOCS,
    LATEST,
    CHUNKS,
    CHUNKS_BY_SOURCE,
    ENTITIES,
    ENTITY_INDEX,
    SEEN,
    SYNC,
    LEDGER,
    JOBS,
    JOBS_BY_DEDUPE,
    JOBS_BY_STATUS,
    CLAIMS,
    COLLECTIONS,
    COLLECTIONS_BY_NAME,
)

ACTIVE, TOMBSTONED, UPDATING = "active", "tombstoned", "updating"
#: States of a ledger entry, in their order.
PENDING, INDEXED, CLEANUP, DONE = "pending", "indexing_complete", "cleanup_pending", "done"


class JobStatus(IntEnum):
    """The first byte of a key of :data:`JOBS_BY_STATUS`."""

    READY = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3


class Visibility(Struct, frozen=True):
    """Who may see a document."""

    type: str
    agent_id: str | None = None
    channel_id: str | None = None

    @property
    def of(self) -> str | None:
        """Return the id of the agent or the channel."""
        return {"agent": self.agent_id, "channel": self.channel_id}.get(self.type)


class Source(Struct, frozen=True):
    """Where a document came from."""

    type: str = ""
    path: str | None = None
    url: str | None = None


class Doc(Struct, frozen=True):
    """A version of a document; times in ms."""

    id: Id
    logical_source_id: str
    title: str
    markdown_path: str
    created_at: Whole
    updated_at: Whole
    version: Whole
    status: str
    visibility: Visibility
    source: Source = Source()
    source_kind: str = ""
    markdown_sha256: str | None = None
    raw_sha256: str | None = None
    raw_path: str | None = None
    owner_user_id: str | None = None
    tags: list[str] = []


class Chunk(Struct, frozen=True):
    """A piece of a document; its range is in bytes of the document's body."""

    id: Id
    doc_id: str
    logical_source_id: str
    doc_version: Whole
    seq: Count
    byte_offset: tuple[Whole, Whole]
    indexed_text: str
    vector: Raw
    status: str
    embedder_id: str


class Latest(Struct, frozen=True):
    """Which version of a source is its latest."""

    doc_id: str
    version: Whole


class Entity(Struct, frozen=True):
    """A name that texts mention."""

    canonical_id: str


class Mention(Struct, frozen=True):
    """That a chunk mentions an entity."""

    entity_id: str
    chunk_id: str


class Entry(Struct, frozen=True):
    """An entry of the ledger; times in ms."""

    id: Id
    created_at: Whole
    updated_at: Whole
    doc_id: str
    status: str
    op: str = ""
    new_paths: list[str] = []
    old_paths: list[str] = []
    error: str | None = None


class JobKind(Struct, frozen=True):
    """What a job is about."""

    kind: str = ""
    doc_id: str | None = None
    doc_version: Whole | None = None


class Job(Struct, frozen=True):
    """A job of the outbox; times in ms."""

    id: Id
    kind: JobKind
    status: str
    priority: Whole
    created_at: Whole
    attempts: Whole = 0
    last_error: str | None = None


class Claim(Struct, frozen=True):
    """That a worker is at a job; times in ms."""

    worker_id: str
    claimed_at: Whole
    expires_at: Whole
    token: str = ""


class Collection(Struct, frozen=True):
    """A named collection of documents."""

    id: str
    name: str


T = TypeVar("T")


def _decoder(shape: type[T]) -> Callable[[bytes], T]:
    """Return what reads a row of that shape; one that is nested too deep is not of its form."""
    decode = msgspec.json.Decoder(shape).decode

    def decoded(value: bytes) -> T:
        try:
            return decode(value)
        except RecursionError as error:
            raise msgspec.DecodeError("JSON is nested too deep") from error

    return decoded


decode_doc = _decoder(Doc)
decode_chunk = _decoder(Chunk)
decode_latest = _decoder(Latest)
decode_entity = _decoder(Entity)
decode_mention = _decoder(Mention)
decode_entry = _decoder(Entry)
decode_job = _decoder(Job)
decode_claim = _decoder(Claim)
decode_collection = _decoder(Collection)
#: Tables whose rows only have to be JSON objects: nothing else is asked of them.
decode_object = _decoder(dict[str, Raw])


def split_key(key: str) -> tuple[str, str]:
    """Return the two parts of a key that is made of two.

    Raises:
        ValueError: it is not.
    """
    first, separator, second = key.partition("\0")
    if not separator:
        raise ValueError("its key has one part")
    return first, second


def split_job_key(key: bytes) -> tuple[int, int, int, str]:
    """Return status, priority, time (ms) and job of a key of :data:`JOBS_BY_STATUS`.

    Raises:
        ValueError: it is none.
    """
    if len(key) < 11:
        raise ValueError("its key is too short")
    return key[0], key[1], int.from_bytes(key[2:10], "big", signed=True), key[10:].decode()


FILE = "kb.redb"
MARKDOWN, RAW, FULL_TEXT, HNSW = "md", "raw", "idx/tantivy", "hnsw"
SNAPSHOT = f"{HNSW}/snapshot.meta.json"
#: What every file of redb begins with.
MAGIC = b"redb\x1a\n\xa9\r\n"
#: The folder of a KB in the application's own.
_FOLDER = "kb"
#: A database of documents has at least these tables.
_MARKS = frozenset({DOCS, CHUNKS})
_BATCH = 500
#: So many rows of a table that are not of their form are named; the others are counted.
MOST_BROKEN = 10_000
#: Keys of a type with a width may be of no bytes at all: a file of a few kB can claim any number of such rows.
_KEY_TYPES = ("&str", "&[u8]", "String", "Vec<u8>")

SCHEMA = """
CREATE TABLE doc (id TEXT PRIMARY KEY, lsid TEXT, title TEXT, kind TEXT, source_type TEXT, source_path TEXT, url TEXT,
                  md_path TEXT, md_sha TEXT, raw_path TEXT, raw_sha TEXT, owner TEXT, created_at INTEGER,
                  updated_at INTEGER, version INTEGER, status TEXT, visibility TEXT, visible_to TEXT, tags INTEGER)
                  WITHOUT ROWID;
CREATE TABLE latest (lsid TEXT PRIMARY KEY, doc_id TEXT, version INTEGER) WITHOUT ROWID;
CREATE TABLE chunk (id TEXT PRIMARY KEY, doc_id TEXT, lsid TEXT, doc_version INTEGER, seq INTEGER, first INTEGER,
                    last INTEGER, status TEXT, embedder TEXT, dimensions INTEGER, flaw TEXT) WITHOUT ROWID;
CREATE TABLE by_source (lsid TEXT, chunk_id TEXT, PRIMARY KEY (lsid, chunk_id)) WITHOUT ROWID;
CREATE TABLE entity (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE mention (entity_id TEXT, chunk_id TEXT);
CREATE TABLE entry (id TEXT PRIMARY KEY, created_at INTEGER, updated_at INTEGER, doc_id TEXT, op TEXT, status TEXT,
                    error TEXT) WITHOUT ROWID;
CREATE TABLE entry_path (entry_id TEXT, is_new INTEGER, path TEXT);
CREATE TABLE job (id TEXT PRIMARY KEY, kind TEXT, doc_id TEXT, doc_version INTEGER, status TEXT, priority INTEGER,
                  created_at INTEGER, attempts INTEGER, error TEXT) WITHOUT ROWID;
CREATE TABLE dedupe (key TEXT PRIMARY KEY, job_id TEXT) WITHOUT ROWID;
CREATE TABLE queue (status INTEGER, priority INTEGER, created_at INTEGER, job_id TEXT);
CREATE TABLE claim (job_id TEXT PRIMARY KEY, worker TEXT, claimed_at INTEGER, expires_at INTEGER) WITHOUT ROWID;
CREATE TABLE collection (id TEXT PRIMARY KEY, name TEXT) WITHOUT ROWID;
CREATE TABLE collection_name (name TEXT PRIMARY KEY, id TEXT) WITHOUT ROWID;
CREATE TABLE broken (tbl TEXT, key TEXT, reason TEXT);
"""
#: Once the rows are in.
INDEXES = """
CREATE INDEX chunk_of_doc ON chunk (doc_id, seq);
CREATE INDEX doc_of_source ON doc (lsid);
CREATE INDEX path_of_entry ON entry_path (path);
CREATE INDEX job_of_doc ON job (doc_id);
CREATE INDEX job_in_queue ON queue (job_id);
"""


def database_of(path: Path) -> Path | None:
    """Return the database of the KB that a path is, or that lies in it; None where there is none.

    A path may be the database under any name, the folder of the KB, or the one that this lies in.

    Raises:
        OSError: nobody may look there.
    """
    if path.is_file():
        return path if is_database(path) else None
    for folder in (path, path / _FOLDER):
        if (folder / FILE).is_file() and is_database(folder / FILE):
            return folder / FILE
    return None


def is_database(path: Path) -> bool:
    """Tell whether a file is the database of a KB: one of redb, unless it is seen to hold other tables.

    Raises:
        OSError: nobody may read it.
    """
    with links.open_for_reading(path) as file:
        if file.read(len(MAGIC)) != MAGIC:
            return path.name == FILE
    return path.name == FILE or not _is_of_another(path)


def _is_of_another(path: Path) -> bool:
    """Tell whether a file of redb can be read, and holds other tables."""
    damage: list[PageDamage] = []
    try:
        with read_redb(path, on_damage=damage.append) as file:
            return not damage and not file.tables.keys() >= _MARKS
    except RegraftError:
        return False


class Read(msgspec.Struct, kw_only=True):
    """What of one table could be read: rows, those that are not of their form, and how many the table says it has."""

    rows: int = 0
    broken: int = 0
    stated: int = 0
    #: Whether the database has the table at all.
    is_there: bool = False

    @property
    def lost(self) -> int:
        """Return how many rows lie in pages that are damaged."""
        return max(0, self.stated - self.rows - self.broken)


class Mirror(msgspec.Struct, kw_only=True):
    """A database as temporary tables (:data:`SCHEMA`), what of it could be read, and the pages that could not."""

    db: apsw.Connection
    clean: bool = True
    format_version: int = 0
    #: Of the file, for who reads it once more (:func:`regraft.formats.redb.read_redb`).
    state: bytes = b""
    tables: dict[str, Read] = msgspec.field(default_factory=dict)
    damage: list[PageDamage] = msgspec.field(default_factory=list)
    #: How many pages are damaged: no more than some are kept.
    damaged_pages: int = 0
    #: The tables that these are of; None: what says which tables there are.
    damaged_tables: set[str | None] = msgspec.field(default_factory=set)

    def see(self, damage: PageDamage) -> None:
        """Take note of a page that cannot be read."""
        self.damaged_pages += 1
        self.damaged_tables.add(damage.table)
        if len(self.damage) < _BATCH:
            self.damage.append(damage)

    def broken(self, table: str, key: bytes, reason: object) -> None:
        """Take note of a row that is not of its form."""
        self.tables[table].broken += 1
        if self.tables[table].broken <= MOST_BROKEN:
            self.db.execute("INSERT INTO broken VALUES (?, ?, ?)", (table, shown_key(key), str(reason)))

    def is_whole(self, *names: str) -> bool:
        """Tell whether every row of these tables was read: only then does what is not among them not exist."""
        if None in self.damaged_tables or self.damaged_tables.intersection(names):
            return False
        tables = [self.tables[name] for name in names]
        return all(table.is_there and not table.lost and not table.broken for table in tables)

    @property
    def lost_rows(self) -> int:
        """Return how many rows of all tables lie in damaged pages."""
        return sum(one.lost for one in self.tables.values())


def shown_key(key: bytes) -> str:
    """Return what a person calls a row by its key: its text, or, where that is none, its bytes in hex."""
    try:
        return key.decode().replace("\0", " ")
    except UnicodeDecodeError:
        return key.hex()


@contextmanager
def mirrored(
    path: Path,
    only: Iterable[str] = TABLES,
    go_on: Callable[[int], None] = lambda _: None,
) -> Iterator[Mirror]:
    """Read a database into temporary tables, which are forgotten at the end.

    Args:
        path: the database.
        only: the tables that are needed.
        go_on: told of every row that was read, by its length in bytes.

    Raises:
        RedbError: it is in use, of another format, or damaged as a whole.
        OSError: it cannot be read.
    """
    with sqlite.open_scratch() as db:
        db.execute(SCHEMA)
        mirror = Mirror(db=db)
        with read_redb(path, on_damage=mirror.see) as file:
            mirror.clean, mirror.format_version, mirror.state = file.clean, file.format_version, file.state
            for table in only:
                _read_table(file, table, mirror, go_on)
        db.execute(INDEXES)
        yield mirror


def _read_table(file: RedbFile, table: str, mirror: Mirror, go_on: Callable[[int], None]) -> None:
    read = mirror.tables[table] = Read()
    if table not in file.tables:
        return
    read.is_there, read.stated = True, file.tables[table].length
    if file.tables[table].key_type not in _KEY_TYPES:
        reason = tr("its keys are of the type {type}", type=file.tables[table].key_type)
        mirror.see(PageDamage(table=table, page=tr("header"), offset=0, length=0, reason=reason))
        return
    writer = _Writer(mirror, table)
    with sqlite.transaction(mirror.db):
        for key, value in file.raw_rows(table):
            go_on(len(key) + len(value))
            try:
                writer.add(key, value)
            except (msgspec.MsgspecError, ValueError) as error:
                mirror.broken(table, key, error)
            else:
                read.rows += 1
        writer.flush()


class _Writer:
    """Puts the rows of one table into its temporary tables, many at a time."""

    def __init__(self, mirror: Mirror, table: str) -> None:
        self._mirror = mirror
        self._shape = _SHAPES.get(table, _unread)
        self._waiting: dict[str, list[tuple[Any, ...]]] = {}
        self._count = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Take a row.

        Raises:
            msgspec.MsgspecError, ValueError: it is not of its form.
        """
        for name, row in self._shape(key, value):
            self._waiting.setdefault(name, []).append(row)
        self._count += 1
        if self._count % _BATCH == 0:
            self.flush()

    def flush(self) -> None:
        """Write what was taken."""
        for name, waiting in self._waiting.items():
            marks = ", ".join("?" * len(waiting[0]))
            self._mirror.db.executemany(f"INSERT OR IGNORE INTO {name} VALUES ({marks})", waiting)
        self._waiting.clear()


#: Rows of temporary tables, each with the table that it goes into.
_Rows = Iterable[tuple[str, tuple[Any, ...]]]


def _demand_key(key: bytes, *parts: str) -> None:
    if key != "\0".join(parts).encode():
        raise ValueError("its key is another one than its value says")


def doc_row(doc: Doc) -> tuple[Any, ...]:
    """Return a document as a row of the temporary table ``doc``."""
    return (
        *(doc.id, doc.logical_source_id, doc.title, doc.source_kind, doc.source.type, doc.source.path, doc.source.url),
        *(doc.markdown_path, doc.markdown_sha256, doc.raw_path, doc.raw_sha256, doc.owner_user_id, doc.created_at),
        *(doc.updated_at, doc.version, doc.status, doc.visibility.type, doc.visibility.of, len(doc.tags)),
    )


def _doc(key: bytes, value: bytes) -> _Rows:
    doc = decode_doc(value)
    _demand_key(key, doc.id)
    return [("doc", doc_row(doc))]


def _latest(key: bytes, value: bytes) -> _Rows:
    latest = decode_latest(value)
    return [("latest", (key.decode(), latest.doc_id, latest.version))]


def _chunk(key: bytes, value: bytes) -> _Rows:
    chunk = decode_chunk(value)
    _demand_key(key, chunk.id)
    place = (chunk.doc_version, chunk.seq, *chunk.byte_offset)
    more = (chunk.status, chunk.embedder_id, _numbers(chunk.vector), flaw_of(chunk.vector))
    return [("chunk", (chunk.id, chunk.doc_id, chunk.logical_source_id, *place, *more))]


def _numbers(vector: msgspec.Raw) -> int | None:
    """Return how many numbers a vector has; None where it is no array."""
    text = bytes(vector)
    if not text.startswith(b"["):
        return None
    return text.count(b",") + (text[1:-1].strip() != b"")


def _by_source(key: bytes, _value: bytes) -> _Rows:
    return [("by_source", split_key(key.decode()))]


def _entity(key: bytes, value: bytes) -> _Rows:
    entity = decode_entity(value)
    _demand_key(key, entity.canonical_id)
    return [("entity", (entity.canonical_id,))]


def _mention(_key: bytes, value: bytes) -> _Rows:
    mention = decode_mention(value)
    return [("mention", (mention.entity_id, mention.chunk_id))]


def _entry(key: bytes, value: bytes) -> _Rows:
    entry = decode_entry(value)
    _demand_key(key, entry.id)
    yield (
        "entry",
        (entry.id, entry.created_at, entry.updated_at, entry.doc_id, entry.op, entry.status, entry.error),
    )
    for is_new, paths in ((1, entry.new_paths), (0, entry.old_paths)):
        for path in paths:
            yield "entry_path", (entry.id, is_new, path)


def _job(key: bytes, value: bytes) -> _Rows:
    job = decode_job(value)
    _demand_key(key, job.id)
    about = (job.kind.kind, job.kind.doc_id, job.kind.doc_version)
    return [("job", (job.id, *about, job.status, job.priority, job.created_at, job.attempts, job.last_error))]


def _dedupe(key: bytes, value: bytes) -> _Rows:
    return [("dedupe", (key.decode(), value.decode()))]


def _queued(key: bytes, _value: bytes) -> _Rows:
    return [("queue", split_job_key(key))]


def _claim(key: bytes, value: bytes) -> _Rows:
    claim = decode_claim(value)
    return [("claim", (key.decode(), claim.worker_id, claim.claimed_at, claim.expires_at))]


def _collection(key: bytes, value: bytes) -> _Rows:
    collection = decode_collection(value)
    _demand_key(key, collection.id)
    return [("collection", (collection.id, collection.name))]


def _collection_name(key: bytes, value: bytes) -> _Rows:
    return [("collection_name", (key.decode(), value.decode()))]


def _object(_key: bytes, value: bytes) -> _Rows:
    decode_object(value)
    return []


def _unread(_key: bytes, _value: bytes) -> _Rows:
    return []


_SHAPES: dict[str, Callable[[bytes, bytes], _Rows]] = {
    DOCS: _doc,
    LATEST: _latest,
    CHUNKS: _chunk,
    CHUNKS_BY_SOURCE: _by_source,
    ENTITIES: _entity,
    ENTITY_INDEX: _mention,
    SEEN: _object,
    SYNC: _object,
    LEDGER: _entry,
    JOBS: _job,
    JOBS_BY_DEDUPE: _dedupe,
    JOBS_BY_STATUS: _queued,
    CLAIMS: _claim,
    COLLECTIONS: _collection,
    COLLECTIONS_BY_NAME: _collection_name,
}
