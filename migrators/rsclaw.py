"""A KB of rsclaw → v2: its latest documents become the items of one base (``docs/rsclaw.md``, "Migrating").

Rules: ``docs/formats/rsclaw.md``, "What is carried". :mod:`.draft` makes the draft; the chunks are laid out as a table
of rows (:mod:`regraft.formats.rsclaw.chunks`); the shared stages do the rest.
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
    Hints,
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
from regraft.formats.rsclaw import chunks, database, selection
from regraft.formats.rsclaw import chunks as rsclaw_chunks
from regraft.formats.rsclaw.database import Mirror
from regraft.formats.rsclaw.selection import Scope, Verdict, parsed
from regraft.formats.vector_survey import StoreProblem, VectorSurvey
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.systems import Located
from regraft.text import is_blank, trim, without_nul

# The draft of the base that a KB becomes: its items, its model, and what is worth saying of both.


#: The provider of the models that a KB's embedders become, and what the base is called.
PROVIDER, NAME, LEGACY_ID = chunks.PROVIDER, chunks.NAME, chunks.LEGACY_ID
#: The documents that are carried.
_CARRIED = "doc d JOIN verdict v ON v.doc_id = d.id WHERE v.reason IS NULL"
#: Names of collections in the report.
_MOST_NAMES = 20


def visible_scope(options: Options) -> Scope:
    """Return for whom is migrated.

    Raises:
        WrongUsage: somebody is named in another form.
    """
    return parsed(options.visible_to, "--visible-to")


def draft_library(source: Located, options: Options) -> LibraryDraft:
    """Draft the one base of a KB; one without documents has none.

    Raises:
        RedbError, SourceUnreadable: the database cannot be read.
    """
    scope = visible_scope(options)
    try:
        with database.mirrored(source.path, (*chunks.TABLES, database.COLLECTIONS)) as mirror:
            return _Drafter(mirror, source.path, options, scope).library()
    except RegraftError:
        raise
    except OSError as error:
        raise SourceUnreadable(path=source.path, reason=error.strerror or error) from error


class _Drafter:
    """Drafts the base of one KB; used once."""

    def __init__(self, mirror: Mirror, file: Path, options: Options, scope: Scope) -> None:
        self._mirror = mirror
        self._db = mirror.db
        self._root, self._file = file.parent, file.name
        self._options = options
        self._scope = scope
        self._drafted = DraftedItems()
        self._said: list[Notice] = []

    def library(self) -> LibraryDraft:
        """Return the draft of all."""
        self._say_unreadable()
        if not self._count("SELECT count(*) FROM doc"):
            return LibraryDraft((), (), tuple(replace(one, base=None) for one in self._said))
        choice = chunks.choose(self._mirror, self._root, self._scope)
        hidden = self._count("SELECT count(*) FROM verdict WHERE reason = ?", Verdict.NOT_VISIBLE)
        if hidden == self._count("SELECT count(*) FROM verdict"):
            return self._nothing_visible(hidden)
        models = ModelResolver(
            [{"id": PROVIDER, "name": PROVIDER, "models": []}],
            _with_provider(self._options.model_overrides, choice.embedder),
        )
        embedding = _embedding(models, choice.embedder)
        self._say_visibility()
        self._draft_items()
        self._say_dropped()
        return LibraryDraft((self._base(embedding, choice.dimensions),), (), tuple(models.unused_overrides()))

    def _nothing_visible(self, hidden: int) -> LibraryDraft:
        message = tr(
            "{documents}, and none is for those for whom is migrated", documents=format_count(hidden, "document")
        )
        self._note(notices.NOTHING_VISIBLE, message, hidden)
        return LibraryDraft((), (SkippedBase(LEGACY_ID, notices.NOTHING_VISIBLE, hidden),), tuple(self._said))

    def _count(self, query: str, *values: object) -> int:
        return int(str(self._db.execute(query, values).get))

    def _base(self, embedding: ModelChoice, dimensions: int | None) -> BaseDraft:
        query = f"SELECT min(created_at), max(updated_at) FROM {_CARRIED}"
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
            notices=(*self._said, *embedding.notices, *self._drafted.notices),
        )

    # --- items -----------------------------------------------------------------------------------------------------

    def _draft_items(self) -> None:
        bare = chunks.OF_VECTOR if self._options.carry_text else frozenset()
        for doc in _docs(self._db, bare):
            if doc.reason is not None:
                self._drafted.skipped.append(SkippedItem(None, doc.reason))
                continue
            self._drafted.items.append(_item(doc, self._root))
            if not doc.rows:
                self._note_item(doc, notices.NOT_INDEXED, tr("{title} is carried without a text", title=doc.title))
            if doc.is_changed:
                message = tr("the file of {title} is not the one that its texts were cut from", title=doc.title)
                self._note_item(doc, notices.DOCUMENT_CHANGED, message)
        broken = self._mirror.tables[database.DOCS].broken
        self._drafted.skipped += [SkippedItem(None, notices.ROW_UNREADABLE)] * broken

    def _note_item(self, doc: _Doc, code: str, message: str) -> None:
        self._drafted.notices.append(Notice(code=code, message=message, base=LEGACY_ID, item=doc.id))

    # --- notices ---------------------------------------------------------------------------------------------------

    def _note(self, code: str, message: str, count: int) -> None:
        self._said.append(Notice(code=code, message=message, base=LEGACY_ID, count=count))

    def _say_unreadable(self) -> None:
        mirror = self._mirror
        if mirror.damaged_pages:
            lost = {table: read.lost for table, read in mirror.tables.items() if read.lost}
            named = join_list(f"{count:,} {table}" for table, count in lost.items())
            message = tr(
                "{pages} of {file} damaged; rows lost with them: {named}",
                pages=format_count(mirror.damaged_pages, "page"),
                file=self._file,
                named=named or tr("none that is needed here"),
            )
            self._note(notices.PAGES_DAMAGED, message, sum(lost.values()) or 1)
        broken = mirror.tables[database.DOCS].broken
        if broken:
            message = tr("{rows} of documents not of their form", rows=format_count(broken, "row"))
            self._note(notices.ROW_UNREADABLE, message, broken)

    def _say_visibility(self) -> None:
        count = self._count(f"SELECT count(*) FROM {_CARRIED} AND d.visibility <> 'global'")
        if count:
            message = tr(
                "{documents} for {scope} alone are in the base, for everybody who opens it",
                documents=format_count(count, "document"),
                scope=str(self._scope),
            )
            self._note(notices.VISIBILITY_DROPPED, message, count)

    def _say_dropped(self) -> None:
        names = self._db.execute("SELECT name FROM collection ORDER BY id LIMIT ?", (_MOST_NAMES,))
        listed = [str(name) for (name,) in names]
        tagged = self._count(f"SELECT count(*) FROM {_CARRIED} AND d.tags > 0")
        for count, message in (
            (len(listed), tr("collections: {names}", names=join_list(listed))),
            (tagged, tr("tags of {documents}", documents=format_count(tagged, "document"))),
        ):
            if count:
                self._note(notices.DROPPED_FIELD, message, count)


def _with_provider(overrides: ModelOverrides, embedder: str | None) -> ModelOverrides:
    """Return what the user says of models, with the provider before an embedder that is named alone."""
    if embedder is None:
        return overrides
    whole = f"{PROVIDER}::{embedder}"

    def named(old: str) -> str:
        return whole if old == embedder else old

    mapped = {named(old): new for old, new in overrides.mapped.items()}
    return replace(overrides, mapped=mapped, recreated=frozenset(map(named, overrides.recreated)))


def _embedding(models: ModelResolver, embedder: str | None) -> ModelChoice:
    if is_blank(embedder):
        return replace(
            models.embedding(None, LEGACY_ID),
            problem=tr("no chunk that could be carried names the embedder that made its vector"),
        )
    return models.embedding({"provider": PROVIDER, "id": embedder}, LEGACY_ID)


class _Doc(msgspec.Struct, frozen=True, kw_only=True):
    """A document, why it is not carried, and how many of its chunks are."""

    id: str
    title: str
    source: str
    md_path: str
    created_at: int
    updated_at: int
    reason: str | None
    rows: int
    #: Whether its file has another text than the one that its chunks were cut from.
    is_changed: bool


def _docs(db: apsw.Connection, bare: frozenset[str]) -> Iterator[_Doc]:
    reasons = ", ".join("?" * len(bare))
    query = f"""
        SELECT d.id, d.title, {selection.SOURCE}, d.md_path, d.created_at, d.updated_at, v.reason,
               (SELECT count(*) FROM chunk c JOIN placed p ON p.id = c.id
                 WHERE c.doc_id = d.id AND (p.reason IS NULL OR p.reason IN ({reasons}))),
               EXISTS (SELECT 1 FROM body b WHERE b.doc_id = d.id AND NOT b.is_same)
          FROM doc d JOIN verdict v ON v.doc_id = d.id ORDER BY v.place"""
    for key, title, source, md_path, created_at, updated_at, reason, count, is_changed in db.execute(
        query, tuple(bare)
    ):
        yield _Doc(
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


def _item(doc: _Doc, root: Path) -> ItemDraft:
    folder, _, name = doc.md_path.rpartition("/")
    is_inside = chunks.inside(root, doc.md_path) is not None
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
        # What its path leads to elsewhere is no file of the KB, and counts as missing.
        upload=Upload(name, folder) if is_inside else Upload(doc.md_path),
        file_name=sanitize_name(f"{doc.title or PROVIDER}.md"),
    )


def _time(value: int) -> int | None:
    """Return a time in ms that a catalog can hold, None for one that is none."""
    return value if 0 < value < 1 << 52 else None


def _hints(source: Located, draft: BaseDraft, survey: VectorSurvey, options: Options) -> Hints:  # noqa: ARG001 - a Pipeline's
    """Return nothing: the database and the documents tell all that there is."""
    return Hints()


@contextmanager
def _opened(path: Path, work: Path | None, options: Options) -> Iterator[Path]:
    try:
        with rsclaw_chunks.written(path, work, visible_scope(options)) as chunks:
            yield chunks.path
    except RedbError as error:
        raise StoreProblem(tr("cannot be read: {error}", error=error)) from error


PIPELINE = Pipeline(
    table=rsclaw_chunks.TABLE, read=draft_library, hints=_hints, opened=_opened, has_visibility=True, shares_ids=True
)
