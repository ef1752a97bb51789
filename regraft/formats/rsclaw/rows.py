"""The rows of the tables of ``kb.redb``, as the system writes them (``docs/formats/rsclaw.md``, "Tables").

Fields that no rule of ours needs are not read. A row that is not of its form raises ``msgspec.MsgspecError``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

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
