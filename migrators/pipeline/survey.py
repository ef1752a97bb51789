"""The bases of a run: which are unchanged since an earlier one, and the plan of every other."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import structs

from migrators.pipeline.accounting import WITHOUT_VECTOR
from migrators.pipeline.drafts import BaseDraft, ItemDraft, LibraryDraft
from migrators.pipeline.options import Options
from migrators.pipeline.plan import BasePlan, plan_base
from migrators.pipeline.published import BaseEntry, Standing, base_folder, read_entry, standing
from migrators.pipeline.salvage import Wish, demand_sound, look_into
from migrators.pipeline.source import Found, Hints, Pipeline
from migrators.pipeline.uploads import missing_upload, upload_name, upload_problem
from regraft import steady
from regraft.base_names import meant
from regraft.errors import SourceUnreadable
from regraft.formats.vector_survey import StoreProblem, Survey
from regraft.formats.vector_table import VectorTable
from regraft.language import tr
from regraft.ledger.ledger import Entry
from regraft.locate import RAW_FOLDER, Located
from regraft.records import replace
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.report.progress import Progress, stage
from regraft.tree import join
from regraft.tree_files import UNREADABLE, mark

logger = logging.getLogger(__name__)

#: Changes when the same input makes different output: an earlier run's bases are then carried anew.
WRITER = 4


class BaseJob(msgspec.Struct, frozen=True):
    """One base of the run: unchanged, with what the ledger has of it, or planned.

    ``vectors`` is the vector file on disk (an archive's is extracted), None where there is none to read.
    """

    position: int
    draft: BaseDraft
    fingerprint: str
    unchanged: BaseEntry | None = None
    plan: BasePlan | None = None
    vectors: Path | None = None
    #: How ``vectors`` is read, where that is not as the layout's other files.
    table: VectorTable | None = None
    #: The vector file as the source has it, which ``vectors`` may be a copy of, and its state before it was surveyed.
    origin: Path | None = None
    origin_mark: steady.Mark = ()
    #: What an earlier run wrote of the base and what still stands, whether unchanged or not.
    stands: BaseEntry | None = None
    #: Whether the index that stands is damaged: it is written anew.
    is_damaged: bool = False

    @property
    def base_id(self) -> str:
        """Return the base's id in the target."""
        return self.draft.id

    @property
    def has_moved(self) -> bool:
        """Tell whether the vector file was written to since the base was looked at."""
        return self.origin is not None and steady.mark_of(self.origin) != self.origin_mark

    def kept(self, plan: BasePlan) -> BaseEntry | None:
        """Return what an earlier run wrote and still stands, with a notice, where a plan for the base is poorer.

        A completed base is never replaced by a failed one, nor one with texts by one without.
        """
        if self.stands is None:
            return None
        if plan.error is None:
            return None if self.is_damaged else _kept_whole(self.stands, plan, self.draft.legacy_id)
        is_completed = self.stands.record.base.status == "completed"
        if is_completed or (self.stands.has_bare_texts and not plan.has_index):
            return kept_completed(self.stands, plan.error, self.draft.legacy_id)
        return None


def chosen(library: LibraryDraft, options: Options) -> list[tuple[int, BaseDraft]]:
    """Return the bases that the run is about, with their positions.

    Raises:
        BaseUnknown, BaseAmbiguous: one of ``options.bases`` is none of them, or may be several.
    """
    numbered = list(enumerate(library.bases))
    if not options.bases:
        return numbered
    names = {base.id: base.name for base in library.bases}
    legacy = {base.legacy_id: base.id for base in library.bases}
    wanted = {meant(one, names, legacy) for one in options.bases}
    return [(at, base) for at, base in numbered if base.id in wanted]


def vector_name(source: Located, draft: BaseDraft) -> str:
    """Return the name of a base's vector file in the source's tree."""
    return "" if source.places.vectors is None else join(source.places.vectors, draft.vector_file)


class _NamedDraft(ItemDraft, frozen=True, kw_only=True, array_like=False):
    """A draft that is written with the names of its fields, as fingerprints have always had it."""


class FileMarks(NamedTuple):
    """What tells whether files of a base changed: of the vector file with what lies beside it, and of its uploads."""

    vectors: list[object]
    uploads: list[object]


def vector_names(source: Located, draft: BaseDraft) -> list[str]:
    """Return the names of a base's vector file and of what may lie beside it."""
    vectors = vector_name(source, draft)
    return [vectors, f"{vectors}-wal", f"{vectors}-journal"] if vectors else []


def _file_marks(source: Located, draft: BaseDraft, unread: frozenset[str]) -> FileMarks:
    """Read a base's files whole and return their marks."""
    uploads = (item.upload for item in draft.items if item.upload is not None)
    names = (upload_name(source.tree, source.places.uploads, upload) for upload in uploads)
    return FileMarks(
        [mark(source.tree, name) for name in vector_names(source, draft)],
        [UNREADABLE if name in unread else mark(source.tree, name) for name in names],
    )


def fingerprint(
    source: Located, draft: BaseDraft, unread: frozenset[str] = frozenset(), marks: FileMarks | None = None
) -> str:
    """Return a hash over everything that a base is made from: its draft, its vector file and its uploads.

    Files count by size and CRC-32, so that a backup and the same backup unpacked are the same source. Options that make
    a difference to few bases only are not part of it (:func:`_other_wish`).

    Args:
        source: where they are.
        draft: the base.
        unread: names of uploads that could not be read when they were copied: if they can be the next time, that is
            another source.
        marks: of the files, where they have been read.
    """
    if marks is None:
        marks = _file_marks(source, draft, unread)
    hasher = hashlib.blake2b(digest_size=20)
    for part in (WRITER, replace(draft, items=()), marks.vectors, marks.uploads):
        hasher.update(_coded(part) + b"\n")
    for item in draft.items:
        hasher.update(_coded(_NamedDraft(**structs.asdict(item))) + b"\n")
    return hasher.hexdigest()


def _coded(part: object) -> bytes:
    try:
        return msgspec.json.encode(part, order="deterministic")
    except UnicodeEncodeError:
        # A name on the disk that is not UTF-8, which JSON has no way to write.
        return repr(part).encode("utf-8", "surrogatepass")


class _Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """What a vector file holds, or why it cannot be used; where it is on disk, and what it was before the survey."""

    found: Survey | StoreProblem
    vectors: Path | None = None
    table: VectorTable | None = None
    origin: Path | None = None
    mark: steady.Mark = ()


class BasePlanner:
    """Looks at the bases of a source: which are unchanged, and what becomes of every other.

    Vector files of an archive are extracted below ``work`` and stay there until ``keep`` closes.
    """

    def __init__(
        self, pipeline: Pipeline, source: Located, target: Path, options: Options, keep: ExitStack, work: Path | None
    ) -> None:
        self.pipeline = pipeline
        self.source = source
        self._target = target
        self._options = options
        self._keep = keep
        self._work = work

    def works(
        self, bases: list[tuple[int, BaseDraft]], entries: dict[str, Entry], progress: Progress
    ) -> Iterator[BaseJob]:
        """Look at every chosen base: compare it with the ledger, else survey its vector file and plan it."""
        with stage(progress, "Reading", sum(vector_bytes(self.source, draft) for _, draft in bases), "bytes"):
            for position, draft in bases:
                progress.at(draft.name)
                yield self._look(position, draft, entries.get(draft.id))
                size = vector_bytes(self.source, draft)
                progress.step(size, 0)

    def _look(self, position: int, draft: BaseDraft, entry: Entry | None) -> BaseJob:
        if entry is None:
            logger.info("base %s: no earlier run of this target carried it", draft.id)
            # Without an earlier run to compare with, files need not be read whole: that waits until there is room.
            return self._plan(position, draft, "", None, self._options)
        mark, known = fingerprint(self.source, draft), read_entry(entry)
        is_same = entry.fingerprint == mark
        stands = standing(self._target, draft.id, known, verify=self._options.verify)
        if stands is Standing.GONE:
            logger.info("base %s: what an earlier run wrote is gone; it is carried anew", draft.id)
            return self._plan(position, draft, mark, known, self._options)
        if stands is Standing.CHANGED:
            known = msgspec.structs.replace(known, notices=[*known.notices, _changed_since(draft)])
        is_same = is_same and not _other_wish(known, self._options)
        # A vector file on disk that could not be read is tried again: what was in the way may be gone.
        is_again = known.record.base.error == notices.MISSING_STORE and not self.source.is_archive
        if is_same and not is_again and stands is not Standing.DAMAGED:
            logger.info("base %s: unchanged since an earlier run", draft.id)
            return BaseJob(position, draft, mark, unchanged=known)
        logger.info("base %s: carried anew; what an earlier run wrote is %s", draft.id, stands.value)
        # Texts that came along once are not taken away again.
        carry_text = self._options.carry_text or known.has_bare_texts
        planned = self._plan(position, draft, mark, known, replace(self._options, carry_text=carry_text))
        planned = replace(planned, stands=known, is_damaged=stands is Standing.DAMAGED)
        return _not_poorer(planned, same=is_same)

    def _plan(self, position: int, draft: BaseDraft, mark: str, known: BaseEntry | None, options: Options) -> BaseJob:
        surveyed = self._survey(draft, texts=options.carry_text)
        found = surveyed.found
        hints = Hints()
        if isinstance(found, Survey) and (draft.embedding.id is not None or options.carry_text):
            hints = self.pipeline.hints(self.source, draft, found, options)
            hints = hints.with_earlier(Found() if known is None else known.found)
        plan = plan_base(draft, found, hints, carry_text=options.carry_text)
        missing = _missing_uploads(self.source, plan, base_folder(self._target, draft.id))
        return BaseJob(
            position,
            draft,
            mark,
            plan=replace(plan, notices=(*plan.notices, *missing)),
            vectors=surveyed.vectors,
            table=surveyed.table,
            origin=surveyed.origin,
            origin_mark=surveyed.mark,
        )

    def _survey(self, draft: BaseDraft, *, texts: bool) -> _Surveyed:
        """Survey a base's vector file; one that was written to meanwhile cannot be used, whatever it held."""
        name = vector_name(self.source, draft)
        if not name:
            return _Surveyed(found=StoreProblem(tr("does not exist (the source holds no vector files)")))
        try:
            origin = self._keep.enter_context(self.source.tree.local(name, self._work))
        except SourceUnreadable as problem:
            return _Surveyed(found=StoreProblem(tr("cannot be read: {reason}", reason=problem.facts["reason"])))
        mark = steady.mark_of(origin)
        try:
            vectors = self._keep.enter_context(self.pipeline.opened(origin, self._work, self._options))
            found = _Surveyed(
                found=self.pipeline.table.survey(vectors, self._work, texts=texts),
                vectors=vectors,
                origin=origin,
                mark=mark,
            )
            demand_sound(self.pipeline.salvager, vectors, self._work, is_wanted=self._options.salvage)
        except StoreProblem as problem:
            wish = Wish(is_wanted=self._options.salvage, work=self._work, texts=texts)
            left = look_into(self.pipeline.salvager, origin, draft, problem, wish, self._keep)
            found = _Surveyed(found=left.found, vectors=left.vectors, table=left.table, origin=origin, mark=mark)
        except SourceUnreadable as problem:
            found = _Surveyed(found=StoreProblem(tr("cannot be read: {reason}", reason=problem.facts["reason"])))
        if steady.mark_of(origin) != mark:
            return _Surveyed(found=StoreProblem(tr("cannot be read: {moved}", moved=steady.MOVED)))
        return found


def _changed_since(draft: BaseDraft) -> Notice:
    message = tr("it was changed in the target since it was migrated, and is left as it is")
    return Notice(code=notices.CHANGED_SINCE, message=message, base=draft.legacy_id)


def _other_wish(stands: BaseEntry, options: Options) -> bool:
    """Tell whether there is something in a base about which the user wants the other thing now.

    These are duplicates, and texts without a vector; such texts stay once they are there.
    """
    left = stands.report.salvage
    if options.salvage and stands.record.base.error == notices.MISSING_STORE and left and left.rows:
        return True
    if options.carry_text and not stands.carry_text and WITHOUT_VECTOR & stands.report.rows.skipped.keys():
        return True
    if options.restore_duplicates:
        return any(notice.code == notices.LOST_DUPLICATE for notice in stands.notices)
    return bool(stands.report.rows.restored_duplicate)


def _not_poorer(work: BaseJob, *, same: bool) -> BaseJob:
    """Keep a base that stands in the target where the source would now only give a failed one."""
    if work.stands is None or work.plan is None:
        return work
    kept = work.kept(work.plan) or (work.stands if same and work.plan.error is not None else None)
    return work if kept is None else replace(work, plan=None, unchanged=kept)


def _kept_whole(stands: BaseEntry, plan: BasePlan, base: str) -> BaseEntry | None:
    """Return an entry with the notice that it is kept where the source is damaged by now and would give less."""
    tally = plan.salvage
    if tally is None or stands.record.base.status != "completed" or stands.report.rows.carried < plan.rows.carried:
        return None
    error = tr("{rows:,} of about {about:,} rows can be salvaged", rows=tally.rows, about=tally.about)
    message = tr("its vector file is damaged now ({error}); the base of an earlier run is kept as it is", error=error)
    return msgspec.structs.replace(
        stands, notices=[*stands.notices, Notice(code=notices.KEPT_COMPLETED, message=message, base=base)]
    )


def kept_completed(stands: BaseEntry, error: str, base: str) -> BaseEntry:
    """Return an entry with the notice that it is kept although the base fails now.

    ``base`` is the id that the source has for it.
    """
    kept = tr("completed base") if stands.record.base.status == "completed" else tr("base with the texts")
    message = tr("it would fail now ({error}); the {kept} of an earlier run is kept as it is", error=error, kept=kept)
    return msgspec.structs.replace(
        stands, notices=[*stands.notices, Notice(code=notices.KEPT_COMPLETED, message=message, base=base)]
    )


def vector_bytes(source: Located, draft: BaseDraft) -> int:
    """Return how long the vector file of a base is; 0 where nobody knows."""
    name = vector_name(source, draft)
    try:
        return source.tree.size(name) if name and source.tree.kind(name) == "file" else 0
    except OSError:
        return 0


def _missing_uploads(source: Located, plan: BasePlan, earlier: Path) -> Iterator[Notice]:
    """Say which uploads are neither in the source nor in the base that an earlier run wrote."""
    for item in plan.items:
        if item.upload is None or upload_name(source.tree, source.places.uploads, item.upload) is not None:
            continue
        path = item.data["relativePath"]
        if not (earlier / RAW_FOLDER / path).is_file():
            problem = upload_problem(source.tree, source.places.uploads, item.upload)
            yield missing_upload(path, problem, plan.draft.legacy_id, item.legacy_id)
