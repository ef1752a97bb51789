"""Migration of an rsclaw KB: the latest versions of its documents become the items of one base.

Rules: ``docs/rsclaw.md``, "Migrating"; ``docs/formats/rsclaw.md``, "What is carried". The chunks are presented to the
shared stages as a table of rows (:mod:`regraft.formats.rsclaw.chunks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from migrators.pipeline.source import (
    INTERRUPTED_TEXT,
    BaseDraft,
    DraftedItems,
    ItemDraft,
    LibraryDraft,
    Options,
    Pipeline,
    SkippedBase,
    SkippedItem,
    Upload,
)
from regraft import identity
from regraft.disk.file_paths import sanitize_name
from regraft.errors import RegraftError, SourceUnreadable
from regraft.formats.cherry_v2.models import ModelChoice, ModelOverrides, ModelResolver
from regraft.formats.cherry_v2.settings import Settings
from regraft.formats.redb import RedbError
from regraft.formats.rsclaw import chunks, database, documents
from regraft.formats.rsclaw import chunks as rsclaw_chunks
from regraft.formats.rsclaw.database import Mirror
from regraft.formats.rsclaw.documents import ExclusionReason, Scope, parse_scope
from regraft.formats.vector_survey import StoreProblem
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.systems import Located
from regraft.text import is_blank, trim, without_nul

#: Provider of the models that the KB's embedders become, name of the base, and its id in the source.
PROVIDER, NAME, LEGACY_ID = chunks.PROVIDER, chunks.NAME, chunks.LEGACY_ID
#: SQL for the documents that are migrated.
_MIGRATED_DOCUMENTS = "doc d JOIN verdict v ON v.doc_id = d.id WHERE v.reason IS NULL"
#: Maximum number of collections named in the report.
_MAX_COLLECTIONS = 20


def visible_scope(options: Options) -> Scope:
    """Return the users whose documents are migrated in addition to public ones (``--visible-to``).

    Raises:
        WrongUsage: a user is not in the form that rsclaw uses.
    """
    return parse_scope(options.visible_to, "--visible-to")


def draft_library(source: Located, options: Options) -> LibraryDraft:
    """Draft the one base of an rsclaw knowledge base. A knowledge base without documents gives no base.

    Raises:
        RedbError, SourceUnreadable: the database cannot be read.
    """
    scope = visible_scope(options)
    try:
        with database.open_mirror(source.path, (*chunks.TABLES, database.COLLECTIONS)) as mirror:
            return _Drafter(mirror, source.path, options, scope).library()
    except RegraftError:
        raise
    except OSError as error:
        raise SourceUnreadable(path=source.path, reason=error.strerror or error) from error


class _Drafter:
    """Drafts the base of one rsclaw knowledge base. Single use."""

    def __init__(self, mirror: Mirror, file: Path, options: Options, scope: Scope) -> None:
        self._mirror = mirror
        self._db = mirror.db
        self._root, self._file = file.parent, file.name
        self._options = options
        self._scope = scope
        self._drafted = DraftedItems()
        self._notices: list[Notice] = []

    def library(self) -> LibraryDraft:
        """Draft the base and add the notices about the source."""
        self._note_unreadable()
        if not self._count("SELECT count(*) FROM doc"):
            return LibraryDraft((), (), tuple(replace(one, base=None) for one in self._notices))
        choice = chunks.choose_chunks(self._mirror, self._root, self._scope)
        hidden = self._count("SELECT count(*) FROM verdict WHERE reason = ?", ExclusionReason.NOT_VISIBLE)
        if hidden == self._count("SELECT count(*) FROM verdict"):
            documents = format_count(hidden, "document")
            message = tr("{documents}, none of them visible to the given users", documents=documents)
            self._note(notices.NOTHING_VISIBLE, message, hidden)
            return LibraryDraft((), (SkippedBase(LEGACY_ID, notices.NOTHING_VISIBLE, hidden),), tuple(self._notices))
        models = ModelResolver(
            [{"id": PROVIDER, "name": PROVIDER, "models": []}],
            _with_provider(self._options.model_overrides, choice.embedder),
        )
        embedding = _resolve_embedding(models, choice.embedder)
        restricted = self._count(f"SELECT count(*) FROM {_MIGRATED_DOCUMENTS} AND d.visibility <> 'global'")
        if restricted:
            message = tr(
                "{documents} visible to {scope} only: now, anyone who opens the base can read such a text",
                documents=format_count(restricted, "document"),
                scope=str(self._scope),
            )
            self._note(notices.VISIBILITY_DROPPED, message, restricted)
        self._draft_items()
        self._note_dropped_fields()
        return LibraryDraft((self._draft_base(embedding, choice.dimensions),), (), tuple(models.unused_overrides()))

    def _count(self, query: str, *values: object) -> int:
        """Return the number that an SQL query gives for these parameters."""
        return int(str(self._db.execute(query, values).get))

    def _draft_base(self, embedding: ModelChoice, dimensions: int | None) -> BaseDraft:
        """Draft the only base, with this model and the items drafted so far.

        ``dimensions`` are those of the migrated vectors; None: there are none.
        """
        query = f"SELECT min(created_at), max(updated_at) FROM {_MIGRATED_DOCUMENTS}"
        times: Any = self._db.execute(query).fetchone()
        created_at, updated_at = (None if time is None else _time(time) for time in times)
        return BaseDraft(
            legacy_id=LEGACY_ID,
            id=chunks.BASE_ID,
            name=NAME,
            embedding=embedding,
            rerank=ModelChoice(),
            stated_dimensions=dimensions,
            file_processor_id=None,
            settings=Settings(),
            created_at=created_at,
            updated_at=updated_at,
            items=self._drafted.items,
            skipped_items=tuple(self._drafted.skipped),
            taken_names=frozenset(),
            vector_file=self._file,
            notices=(*self._notices, *embedding.notices, *self._drafted.notices),
        )

    # --- items -----------------------------------------------------------------------------------------------------

    def _draft_items(self) -> None:
        """Draft an item for each document, and add notices on documents without chunks or changed since."""
        text_only_reasons = chunks.VECTOR_REASONS if self._options.carry_text else frozenset()
        for doc in _read_documents(self._db, text_only_reasons):
            if doc.reason is not None:
                self._drafted.skipped.append(SkippedItem(None, doc.reason))
                continue
            self._drafted.items.append(_draft_item(doc, self._root))
            if not doc.rows:
                self._note_item(doc, notices.NOT_INDEXED, tr("{title} is migrated without text", title=doc.title))
            if doc.is_changed:
                message = tr("the file of {title} has changed since its chunks were made", title=doc.title)
                self._note_item(doc, notices.DOCUMENT_CHANGED, message)
        broken = self._mirror.tables[database.DOCS].broken
        self._drafted.skipped += [SkippedItem(None, notices.ROW_UNREADABLE)] * broken

    def _note_item(self, doc: _Document, code: str, message: str) -> None:
        """Add a notice about a document."""
        self._drafted.notices.append(Notice(code=code, message=message, base=LEGACY_ID, item=doc.id))

    # --- notices ---------------------------------------------------------------------------------------------------

    def _note(self, code: str, message: str, count: int) -> None:
        """Add a notice about the base."""
        self._notices.append(Notice(code=code, message=message, base=LEGACY_ID, count=count))

    def _note_unreadable(self) -> None:
        """Add notices on damaged pages and on documents that cannot be decoded."""
        mirror = self._mirror
        if mirror.damaged_pages:
            lost = {table: read.lost for table, read in mirror.tables.items() if read.lost}
            named = join_list(f"{count:,} {table}" for table, count in lost.items())
            message = tr(
                "{file}: {pages} damaged; rows lost: {named}",
                pages=format_count(mirror.damaged_pages, "page"),
                file=self._file,
                named=named or tr("none that matters for the migration"),
            )
            self._note(notices.PAGES_DAMAGED, message, sum(lost.values()) or 1)
        broken = mirror.tables[database.DOCS].broken
        if broken:
            message = tr("{rows} of documents in an unknown form", rows=format_count(broken, "row"))
            self._note(notices.ROW_UNREADABLE, message, broken)

    def _note_dropped_fields(self) -> None:
        """Add notices on collections and tags, which are not migrated."""
        names = self._db.execute("SELECT name FROM collection ORDER BY id LIMIT ?", (_MAX_COLLECTIONS,))
        listed = [str(name) for (name,) in names]
        tagged = self._count(f"SELECT count(*) FROM {_MIGRATED_DOCUMENTS} AND d.tags > 0")
        for count, message in (
            (len(listed), tr("collections: {names}", names=join_list(listed))),
            (tagged, tr("tags of {documents}", documents=format_count(tagged, "document"))),
        ):
            if count:
                self._note(notices.DROPPED_FIELD, message, count)


def _with_provider(overrides: ModelOverrides, embedder: str | None) -> ModelOverrides:
    """Add the provider to the embedder id in the user's options for models, if they name it without.

    ``embedder`` is the id in the database, or None.
    """
    if embedder is None:
        return overrides
    whole = f"{PROVIDER}::{embedder}"

    def named(old: str) -> str:
        """Return the full id of the embedder if the user names it without provider; else the name as it is."""
        return whole if old == embedder else old

    mapped = {named(old): new for old, new in overrides.mapped.items()}
    return replace(overrides, mapped=mapped, recreated=frozenset(map(named, overrides.recreated)))


def _resolve_embedding(models: ModelResolver, embedder: str | None) -> ModelChoice:
    """Choose the model for the embedder id in the database. It is blank if no chunk that can be migrated names one."""
    if is_blank(embedder):
        return replace(
            models.embedding(None, LEGACY_ID),
            problem=tr("no chunk that can be migrated names the embedder of its vector"),
        )
    return models.embedding({"provider": PROVIDER, "id": embedder}, LEGACY_ID)


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """A document, why it is not migrated, and the number of its chunks that are."""

    id: str
    title: str
    source: str
    md_path: str
    created_at: int
    updated_at: int
    reason: str | None
    rows: int
    #: Whether its file has a different text than its chunks.
    is_changed: bool


def _read_documents(db: apsw.Connection, text_only_reasons: frozenset[str]) -> Iterator[_Document]:
    """Yield the documents with the reason not to migrate them, and their number of chunks.

    Chunks without a usable vector count if their reason is in ``text_only_reasons``.
    """
    reasons = ", ".join("?" * len(text_only_reasons))
    query = f"""
        SELECT d.id, d.title, {documents.SOURCE_SQL}, d.md_path, d.created_at, d.updated_at, v.reason,
               (SELECT count(*) FROM chunk c JOIN placed p ON p.id = c.id
                 WHERE c.doc_id = d.id AND (p.reason IS NULL OR p.reason IN ({reasons}))),
               EXISTS (SELECT 1 FROM body b WHERE b.doc_id = d.id AND NOT b.is_same)
          FROM doc d JOIN verdict v ON v.doc_id = d.id ORDER BY v.place"""
    for key, title, source, md_path, created_at, updated_at, reason, count, is_changed in db.execute(
        query, tuple(text_only_reasons)
    ):
        yield _Document(
            id=str(key),
            title=trim(without_nul(str(title))),
            source=str(source),
            md_path=str(md_path),
            created_at=int(str(created_at)),
            updated_at=int(str(updated_at)),
            reason=None if reason is None else str(reason),
            rows=int(str(count)),
            is_changed=bool(is_changed),
        )


def _draft_item(doc: _Document, root: Path) -> ItemDraft:
    """Draft the file item of a document. ``root`` is the folder of the database."""
    folder, _, name = doc.md_path.rpartition("/")
    is_inside = chunks.resolve_kb_file(root, doc.md_path) is not None
    created_at = _time(doc.created_at)
    return ItemDraft(
        legacy_id=doc.id,
        id=identity.item_id(LEGACY_ID, doc.id, created_at),
        type="file",
        data={"source": without_nul(doc.source)},
        status="completed" if doc.rows else "failed",
        error=None if doc.rows else INTERRUPTED_TEXT,
        created_at=created_at,
        updated_at=_time(doc.updated_at),
        loader_ids=(doc.id,),
        # A path that leads out of the KB counts as a missing file.
        upload=Upload(name, folder) if is_inside else Upload(doc.md_path),
        file_name=sanitize_name(f"{doc.title or PROVIDER}.md"),
    )


def _time(value: int) -> int | None:
    """Return a time in ms if a catalog can store it, else None."""
    return value if 0 < value < 1 << 52 else None


@contextmanager
def _open_source(path: Path, work: Path | None, options: Options, _: BaseDraft) -> Iterator[Path]:
    """Write the chunks of a database to a temporary table and yield its path."""
    try:
        with rsclaw_chunks.write_chunk_table(path, work, visible_scope(options)) as chunks:
            yield chunks.path
    except RedbError as error:
        raise StoreProblem(tr("cannot be read: {error}", error=error)) from error


PIPELINE = Pipeline(
    table=rsclaw_chunks.TABLE,
    read=draft_library,
    opened=_open_source,
    has_visibility=True,
    shares_ids=True,
)
