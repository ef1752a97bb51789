"""Summarize a knowledge base of rsclaw for ``inspect``: documents, chunks, vectors and jobs. No titles are shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, structs

from checks.inspect import HealthSummary, StoreSummary
from checks.rsclaw import audit, tables
from checks.rsclaw.audit import DAMAGED
from checks.rsclaw.files import MOVED, find_loose_files, list_files
from checks.rsclaw.tables import IS_STALE, SEARCHED
from checks.systems import Checks
from regraft.disk.trees import total_size
from regraft.formats.rsclaw import database
from regraft.formats.rsclaw import database as rsclaw_database
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
from regraft.report.labels import label_of
from regraft.stores.systems import Located
from regraft.text import format_bytes, one_line

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
        """Return its line of text output."""
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
        """The total size."""
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
        """Yield its lines of text output."""
        if self.format_version is None:
            return
        documents = format_count(sum(self.documents.values()), "document")
        yield tr(
            "{documents} ({by_status}), {chunks}, {size}.",
            documents=documents,
            by_status=_by_name(self.documents),
            chunks=format_count(self.chunks, "chunk"),
            size=format_bytes(self.bytes),
        )
        yield tr("active documents by visibility: {visibility}", visibility=_by_name(self.visibility))
        yield tr("vectors:")
        yield from (one.line() for one in self.vectors)
        yield tr("jobs: {jobs}", jobs=_by_name(self.jobs))
        parts = {"kb.redb": self.sizes.database, f"{MARKDOWN}/": self.sizes.markdown, f"{RAW}/": self.sizes.raw}
        caches = {f"{FULL_TEXT}/": self.sizes.full_text, f"{HNSW}/": self.sizes.vector_index}
        yield join_list(f"{name} {format_bytes(size)}" for name, size in {**parts, **caches}.items())


def _by_name(counts: dict[str, int]) -> str:
    return join_list(f"{count:,} {label_of(name)}" for name, count in counts.items() if count) or tr("none")


def inspect_store(found: Located, now_ms: int) -> StoreSummary:
    """Summarize a KB, which has no bases.

    Args:
        found: a store of the kind ``rsclaw``.
        now_ms: the time to which ages are relative.

    Raises:
        RedbError: the database is in use, or its format is unknown.
    """
    root = found.tree.path
    sizes = KbSizes(
        database=found.path.stat().st_size,
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
        with database.open_mirror(found.path) as mirror:
            tables.create_current_table(mirror)
            return StoreSummary([], _filled(health, mirror, root, now_ms))
    except DAMAGED as error:
        return StoreSummary([], structs.replace(health, problems=[str(error)]))


def _filled(health: KbHealthSummary, mirror: Mirror, root: Path, now_ms: int) -> KbHealthSummary:
    searched = _count(mirror, f"SELECT count(*) FROM {SEARCHED}")
    covered = _count(mirror, f"SELECT count(*) FROM {SEARCHED} WHERE c.flaw IS NULL")
    problems = list(_problems(mirror, now_ms))
    try:
        # Count the files that ``gc`` would move.
        if not mirror.is_whole(rsclaw_database.DOCS, rsclaw_database.LEDGER):
            orphans = 0
        else:
            list_files(mirror, root)
            orphans = sum(one.why in MOVED for one in find_loose_files(mirror.db, now_ms))
    except OSError as error:
        orphans = 0
        problems.append(tr("files cannot be listed: {error}", error=error.strerror or error))
    if mirror.is_whole(rsclaw_database.DOCS):
        orphans += _count(mirror, "SELECT count(*) FROM chunk WHERE doc_id NOT IN (SELECT id FROM doc)")
    return structs.replace(
        health,
        coverage=covered / searched if searched else None,
        orphans=orphans,
        stale=_count(mirror, "SELECT count(*) FROM chunk JOIN doc ON doc.id = doc_id AND doc_id NOT IN current"),
        problems=problems,
        format_version=mirror.format_version,
        clean=mirror.clean,
        documents=_grouped(mirror, "SELECT status, count(*) FROM doc GROUP BY 1", _STATUSES),
        visibility=_grouped(
            mirror,
            f"SELECT visibility, count(*) FROM doc WHERE status = '{ACTIVE}' GROUP BY 1",
            _VISIBILITIES,
        ),
        chunks=mirror.tables[rsclaw_database.CHUNKS].rows,
        vectors=_vectors(mirror),
        jobs=_grouped(
            mirror, "SELECT status, count(*) FROM job GROUP BY 1", tuple(one.name.lower() for one in JobStatus)
        ),
    )


def _count(mirror: Mirror, query: str) -> int:
    return int(str(mirror.db.execute(query).get))


def _grouped(mirror: Mirror, query: str, known: tuple[str, ...]) -> dict[str, int]:
    """Return counts by known name; the others are added up as "other"."""
    counts = dict.fromkeys((*known, _OTHER), 0)
    for name, count in mirror.db.execute(query):
        counts[str(name) if name in known else _OTHER] += int(str(count))
    return {name: count for name, count in counts.items() if count}


def _vectors(mirror: Mirror) -> list[VectorGroup]:
    query = "SELECT embedder, dimensions, count(*) FROM chunk GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT ?"
    return [
        VectorGroup(
            embedder=str(embedder), dimensions=None if size is None else int(str(size)), vectors=int(str(count))
        )
        for embedder, size, count in mirror.db.execute(query, (_MOST_GROUPS,))
    ]


def _problems(mirror: Mirror, now_ms: int) -> Iterator[str]:
    if mirror.damaged_pages:
        yield tr(
            "{pages}, with {rows} lost",
            pages=format_count(mirror.damaged_pages, "damaged page"),
            rows=format_count(mirror.lost_rows, "row"),
        )
    broken = sum(table.broken for table in mirror.tables.values())
    if broken:
        yield tr("{rows} not of the form that rsclaw writes", rows=format_count(broken, "row"))
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
        yield tr("{jobs} said to be running, without a claim that still holds", jobs=format_count(stale, "job"))


CHECKS = Checks(
    inspect=lambda found, asked: inspect_store(found, asked.now_ms),
    audit=audit.audit,
)
