"""The bases of a run: which are unchanged since an earlier one, and the plan of every other."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from migrators.pipeline.accounting import REASONS_THAT_KEEP_TEXT
from migrators.pipeline.losses import SalvageRequest, check_for_damage, salvage_file
from migrators.pipeline.plan import BasePlan, plan_base
from migrators.pipeline.publication import BaseEntry, BaseState, base_folder, base_state, read_entry
from migrators.pipeline.source import BaseDraft, FoundOnDisk, Hints, LibraryDraft, Options, Pipeline
from migrators.pipeline.source_files import (
    base_fingerprint,
    find_upload,
    missing_upload_notice,
    upload_problem,
    vector_file_in_tree,
)
from regraft.disk import sqlite
from regraft.errors import SourceUnreadable
from regraft.formats.vector_survey import StoreProblem, VectorSurvey
from regraft.formats.vector_table import VectorTable
from regraft.identity import replace, resolve_base
from regraft.language import tr
from regraft.ledger.ledger import LedgerEntry
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.report.progress import Progress, stage
from regraft.stores.locate import RAW_FOLDER, Located

logger = logging.getLogger(__name__)


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
    origin_mark: sqlite.FileState = ()
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
        return self.origin is not None and sqlite.read_file_state(self.origin) != self.origin_mark

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
            return keep_completed(self.stands, plan.error, self.draft.legacy_id)
        return None


def select_bases(library: LibraryDraft, options: Options) -> list[tuple[int, BaseDraft]]:
    """Return the bases that the run is about, with their positions.

    Raises:
        BaseUnknown, BaseAmbiguous: one of ``options.bases`` is none of them, or may be several.
    """
    numbered = list(enumerate(library.bases))
    if not options.bases:
        return numbered
    names = {base.id: base.name for base in library.bases}
    legacy = {base.legacy_id: base.id for base in library.bases}
    wanted = {resolve_base(one, names, legacy) for one in options.bases}
    return [(at, base) for at, base in numbered if base.id in wanted]


class _Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """What a vector file holds, or why it cannot be used; where it is on disk, and what it was before the survey."""

    found: VectorSurvey | StoreProblem
    vectors: Path | None = None
    table: VectorTable | None = None
    origin: Path | None = None
    mark: sqlite.FileState = ()


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
        self, bases: list[tuple[int, BaseDraft]], entries: dict[str, LedgerEntry], progress: Progress
    ) -> Iterator[BaseJob]:
        """Look at every chosen base: compare it with the ledger, else survey its vector file and plan it."""
        with stage(progress, "Reading", sum(vector_file_bytes(self.source, draft) for _, draft in bases), "bytes"):
            for position, draft in bases:
                progress.at(draft.name)
                yield self._look(position, draft, entries.get(draft.id))
                size = vector_file_bytes(self.source, draft)
                progress.step(size, 0)

    def _look(self, position: int, draft: BaseDraft, entry: LedgerEntry | None) -> BaseJob:
        if entry is None:
            logger.info("base %s: no earlier run of this target carried it", draft.id)
            # Without an earlier run to compare with, files need not be read whole: that waits until there is room.
            return self._plan(position, draft, "", None, self._options)
        mark, known = base_fingerprint(self.source, draft), read_entry(entry)
        is_same = entry.fingerprint == mark
        stands = base_state(self._target, draft.id, known, verify=self._options.verify)
        if stands is BaseState.GONE:
            logger.info("base %s: what an earlier run wrote is gone; it is carried anew", draft.id)
            return self._plan(position, draft, mark, known, self._options)
        if stands is BaseState.CHANGED:
            known = msgspec.structs.replace(known, notices=[*known.notices, _changed_since(draft)])
        is_same = is_same and not _other_wish(known, self._options)
        # A vector file on disk that could not be read is tried again: what was in the way may be gone.
        is_again = known.record.base.error == notices.MISSING_STORE and not self.source.is_archive
        if is_same and not is_again and stands is not BaseState.DAMAGED:
            logger.info("base %s: unchanged since an earlier run", draft.id)
            return BaseJob(position, draft, mark, unchanged=known)
        logger.info("base %s: carried anew; what an earlier run wrote is %s", draft.id, stands.value)
        # Texts that came along once are not taken away again.
        carry_text = self._options.carry_text or known.has_bare_texts
        planned = self._plan(position, draft, mark, known, replace(self._options, carry_text=carry_text))
        planned = replace(planned, stands=known, is_damaged=stands is BaseState.DAMAGED)
        return _not_poorer(planned, same=is_same)

    def _plan(self, position: int, draft: BaseDraft, mark: str, known: BaseEntry | None, options: Options) -> BaseJob:
        surveyed = self._survey(draft, texts=options.carry_text)
        found = surveyed.found
        hints = Hints()
        if isinstance(found, VectorSurvey) and (draft.embedding.id is not None or options.carry_text):
            hints = self.pipeline.hints(self.source, draft, found, options)
            hints = hints.with_earlier(FoundOnDisk() if known is None else known.found)
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
        name = vector_file_in_tree(self.source, draft)
        if not name:
            return _Surveyed(found=StoreProblem(tr("does not exist (the source holds no vector files)")))
        try:
            origin = self._keep.enter_context(self.source.tree.local(name, self._work))
        except SourceUnreadable as problem:
            return _Surveyed(found=StoreProblem(tr("cannot be read: {reason}", reason=problem.facts["reason"])))
        mark = sqlite.read_file_state(origin)
        try:
            vectors = self._keep.enter_context(self.pipeline.opened(origin, self._work, self._options))
            found = _Surveyed(
                found=self.pipeline.table.survey(vectors, self._work, texts=texts),
                vectors=vectors,
                origin=origin,
                mark=mark,
            )
            check_for_damage(self.pipeline.salvager, vectors, self._work, is_wanted=self._options.salvage)
        except StoreProblem as problem:
            wish = SalvageRequest(is_wanted=self._options.salvage, work=self._work, texts=texts)
            left = salvage_file(self.pipeline.salvager, origin, draft, problem, wish, self._keep)
            found = _Surveyed(found=left.found, vectors=left.vectors, table=left.table, origin=origin, mark=mark)
        except SourceUnreadable as problem:
            found = _Surveyed(found=StoreProblem(tr("cannot be read: {reason}", reason=problem.facts["reason"])))
        if sqlite.read_file_state(origin) != mark:
            return _Surveyed(found=StoreProblem(tr("cannot be read: {moved}", moved=sqlite.CHANGED_DURING_READ)))
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
    if options.carry_text and not stands.carry_text and REASONS_THAT_KEEP_TEXT & stands.report.rows.skipped.keys():
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


def keep_completed(stands: BaseEntry, error: str, base: str) -> BaseEntry:
    """Return an entry with the notice that it is kept although the base fails now.

    ``base`` is the id that the source has for it.
    """
    kept = tr("completed base") if stands.record.base.status == "completed" else tr("base with the texts")
    message = tr("it would fail now ({error}); the {kept} of an earlier run is kept as it is", error=error, kept=kept)
    return msgspec.structs.replace(
        stands, notices=[*stands.notices, Notice(code=notices.KEPT_COMPLETED, message=message, base=base)]
    )


def vector_file_bytes(source: Located, draft: BaseDraft) -> int:
    """Return how long the vector file of a base is; 0 where nobody knows."""
    name = vector_file_in_tree(source, draft)
    try:
        return source.tree.size(name) if name and source.tree.kind(name) == "file" else 0
    except OSError:
        return 0


def _missing_uploads(source: Located, plan: BasePlan, earlier: Path) -> Iterator[Notice]:
    """Say which uploads are neither in the source nor in the base that an earlier run wrote."""
    for item in plan.items:
        if item.upload is None or find_upload(source.tree, source.places.uploads, item.upload) is not None:
            continue
        path = item.data["relativePath"]
        if not (earlier / RAW_FOLDER / path).is_file():
            problem = upload_problem(source.tree, source.places.uploads, item.upload)
            yield missing_upload_notice(path, problem, plan.draft.legacy_id, item.legacy_id)
