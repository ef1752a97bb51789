"""Plan the bases of a run: compare each with what an earlier run wrote, and survey and plan the ones that changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from migrators.pipeline.accounting import REASONS_THAT_KEEP_TEXT
from migrators.pipeline.losses import SalvageRequest, check_for_damage, salvage_file, salvage_member
from migrators.pipeline.plan import BasePlan, PlannedRows, plan_base
from migrators.pipeline.publication import BaseEntry, BaseState, base_folder, base_state, read_entry
from migrators.pipeline.source import BaseDraft, FoundOnDisk, Hints, LibraryDraft, Options, Pipeline
from migrators.pipeline.source_files import (
    base_fingerprint,
    find_upload,
    missing_upload_notice,
    upload_problem,
    vector_file_in_tree,
    vector_file_names,
)
from regraft.disk import sqlite
from regraft.disk.trees import ZipTree
from regraft.errors import SourceUnreadable
from regraft.formats.vector_survey import StoreProblem, VectorSurvey
from regraft.formats.vector_table import VectorTable
from regraft.identity import replace, resolve_base
from regraft.language import format_count, tr
from regraft.ledger.ledger import LedgerEntry
from regraft.report import notices
from regraft.report.migration import RowsReport
from regraft.report.notices import Notice
from regraft.report.progress import Progress, stage
from regraft.stores.locate import RAW_FOLDER, Located

logger = logging.getLogger(__name__)

#: Reasons why a row is not migrated although its base is: a part of it is missing or damaged.
_UNUSABLE = REASONS_THAT_KEEP_TEXT | {notices.ROW_UNREADABLE, notices.NO_DOCUMENT}


class BaseJob(msgspec.Struct, frozen=True):
    """One base of the run: either unchanged, with its ledger entry, or planned.

    ``vectors`` is the vector file on disk (extracted from an archive), or None without a file to read.
    """

    position: int
    draft: BaseDraft
    fingerprint: str
    unchanged: BaseEntry | None = None
    plan: BasePlan | None = None
    vectors: Path | None = None
    #: The table in ``vectors`` if it differs from the layout's usual one.
    table: VectorTable | None = None
    #: The vector file in the source (``vectors`` may be a copy of it), and its state before the survey.
    origin: Path | None = None
    origin_mark: sqlite.FileState = ()
    #: The name of the vector file, if it is damaged in an archive.
    unread: frozenset[str] = frozenset()
    #: Whether the source is an archive of which only the intact members are read.
    is_archive_damaged: bool = False
    #: The ledger entry of what an earlier run wrote and is still in place, also if the base is migrated again.
    existing: BaseEntry | None = None
    #: Whether the index in the target is damaged, so that it is written again.
    is_damaged: bool = False
    #: Size of the uploads to copy.
    upload_bytes: int = 0

    @property
    def base_id(self) -> str:
        """Id of the base in the target."""
        return self.draft.id

    @property
    def has_index(self) -> bool:
        """Whether the base has an index in the target, or gets one."""
        if self.unchanged is not None and self.unchanged.index_mark is not None:
            return True
        return self.plan is not None and self.plan.has_index

    @property
    def has_changed(self) -> bool:
        """Whether the vector file was written to since it was surveyed."""
        return self.origin is not None and sqlite.read_file_state(self.origin) != self.origin_mark

    def entry_to_keep(self, plan: BasePlan, lost: int | None = None) -> BaseEntry | None:
        """Return the entry of the existing base, with a notice, if ``plan`` would replace it with less; else None.

        A failed base never replaces a completed one, nor a base without texts one with texts. If the source is damaged
        or rows have no usable vector any more, no vector is taken away: ``lost`` is the number of vectors that only the
        existing base has, or None before the new index is written, when only counts of rows are known.
        """
        if self.existing is None:
            return None
        if plan.error is None:
            return None if self.is_damaged else self._keep_if_source_damaged(self.existing, plan, lost)
        is_completed = self.existing.record.base.status == "completed"
        if is_completed or (self.existing.has_texts_without_vectors and not plan.has_index):
            return keep_completed(self.existing, plan.error, self.draft.legacy_id)
        return None

    def has_lost_rows(self, plan: BasePlan) -> bool:
        """Whether the source is damaged, or has more rows without a usable vector than when the existing base was made.

        Then the vectors of the existing base may be their last copies.
        """
        return self.existing is not None and (
            plan.salvage is not None
            or self.is_archive_damaged
            or any(notice.code == notices.PAGES_DAMAGED for notice in plan.notices)
            or _unusable_rows(plan.rows) > _unusable_rows(self.existing.report.rows)
        )

    def _keep_if_source_damaged(self, existing: BaseEntry, plan: BasePlan, lost: int | None) -> BaseEntry | None:
        """Return the existing entry with a notice if the source is damaged now and would give fewer rows; else None."""
        if existing.record.base.status != "completed" or not self.has_lost_rows(plan):
            return None
        tally, fewer = plan.salvage, existing.report.rows.carried - plan.rows.carried
        is_worse = bool(lost) or (fewer >= 0 if tally is not None else fewer > 0)
        if not is_worse:
            return None
        if tally is not None:
            error = tr("{rows:,} of about {about:,} rows can be salvaged", rows=tally.rows, about=tally.about)
            message = tr("its vector file is damaged now ({error}); the base from an earlier run is kept", error=error)
        elif self.is_archive_damaged:
            # The log of the vector file may be among the members that are left out.
            rows = format_count(plan.rows.carried, "row")
            message = tr("the damaged archive has only {rows} of it; the base from an earlier run is kept", rows=rows)
        else:
            return keep_for_vectors(existing, self.draft.legacy_id)
        return _add_notice(existing, notices.KEPT_COMPLETED, message, self.draft.legacy_id)


def _add_notice(existing: BaseEntry, code: str, message: str, base: str) -> BaseEntry:
    """Return the entry of an existing base with one more notice; ``base`` is the id in the source."""
    notice = Notice(code=code, message=message, base=base)
    return msgspec.structs.replace(existing, notices=[*existing.notices, notice])


def _unusable_rows(rows: PlannedRows | RowsReport) -> int:
    """Count the rows that are not migrated, or not with their vector, because a part of them is unusable."""
    skipped = sum(count for reason, count in rows.skipped.items() if reason in _UNUSABLE)
    return skipped + (rows.without_vector or 0)


def select_bases(library: LibraryDraft, options: Options) -> list[tuple[int, BaseDraft]]:
    """Return the bases that the user asked for, with their positions in the source.

    Raises:
        BaseUnknown, BaseAmbiguous: a name in ``options.bases`` matches no base, or several.
    """
    numbered = list(enumerate(library.bases))
    if not options.bases:
        return numbered
    names = {base.id: base.name for base in library.bases}
    legacy = {base.legacy_id: base.id for base in library.bases}
    legacy = {word: legacy[key] for word, key in library.words.items() if key in legacy} | legacy
    wanted = {resolve_base(one, names, legacy) for one in options.bases}
    return [(at, base) for at, base in numbered if base.id in wanted]


class _Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a vector file or why it cannot be used, with its path and its state before it was read."""

    found: VectorSurvey | StoreProblem
    vectors: Path | None = None
    table: VectorTable | None = None
    origin: Path | None = None
    mark: sqlite.FileState = ()
    unread: frozenset[str] = frozenset()


class BasePlanner:
    """Finds the bases that are unchanged since an earlier run, and plans the others.

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

    def plan_bases(
        self, bases: list[tuple[int, BaseDraft]], entries: dict[str, LedgerEntry], progress: Progress
    ) -> Iterator[BaseJob]:
        """Compare each base with its ledger entry, and survey and plan it if it changed.

        Bases come with their positions.
        """
        with stage(progress, "Reading", sum(vector_file_bytes(self.source, draft) for _, draft in bases), "bytes"):
            for position, draft in bases:
                progress.at(draft.name)
                yield self._plan_or_keep(position, draft, entries.get(draft.id))
                size = vector_file_bytes(self.source, draft)
                progress.step(size, 0)

    def _plan_or_keep(self, position: int, draft: BaseDraft, entry: LedgerEntry | None) -> BaseJob:
        """Plan a base, or keep what an earlier run wrote (``entry``) if neither source nor target has changed."""
        if entry is None:
            logger.info("base %s: no earlier run wrote it to this target", draft.id)
            # No earlier run to compare with: hashing the files waits until the free space was checked.
            return self._plan_base(position, draft, "", None, self._options)
        known = read_entry(entry)
        mark = self._fingerprint(draft, entry, known)
        is_same = entry.fingerprint == mark
        state = base_state(self._target, draft.id, known, verify=self._options.verify)
        if state is BaseState.GONE:
            logger.info("base %s: the base that an earlier run wrote is missing; it is migrated again", draft.id)
            return self._plan_base(position, draft, mark, known, self._options)
        if state is BaseState.CHANGED:
            message = tr("changed in the target since it was migrated; left unchanged")
            known = _add_notice(known, notices.CHANGED_SINCE, message, draft.legacy_id)
        is_same = is_same and not _options_changed(known, self._options)
        # A missing vector file on disk is tried again: it may be readable now.
        is_retried = known.record.base.error == notices.MISSING_STORE and not self.source.is_archive
        if is_same and not is_retried and state is not BaseState.DAMAGED:
            logger.info("base %s: unchanged since an earlier run", draft.id)
            return BaseJob(position, draft, mark, unchanged=known)
        logger.info("base %s: migrated again; the base that an earlier run wrote is %s", draft.id, state.value)
        # Texts that an earlier run migrated without vectors are not removed again.
        carry_text = self._options.carry_text or known.has_texts_without_vectors
        planned = self._plan_base(position, draft, mark, known, replace(self._options, carry_text=carry_text))
        planned = replace(planned, existing=known, is_damaged=state is BaseState.DAMAGED)
        return _keep_better_base(planned, same=is_same)

    def _fingerprint(self, draft: BaseDraft, entry: LedgerEntry, known: BaseEntry) -> str:
        """Return the present fingerprint of a base, to compare with that of ``entry``, which an earlier run wrote.

        A damaged file in an archive has the same recorded checksum as the intact one. So damaged files are marked in
        the fingerprint, which changes when they can be read. ``known`` is the content of ``entry``.
        """
        mark, tree = base_fingerprint(self.source, draft), self.source.tree
        if entry.fingerprint == mark or not isinstance(tree, ZipTree):
            return mark
        uploads: set[str] = set()
        if any(notice.code == notices.MISSING_UPLOAD for notice in known.notices):
            found = (find_upload(tree, self.source.places.uploads, item.upload) for item in draft.items if item.upload)
            uploads = {name for name in found if name and not tree.is_intact(name)}
            damaged = base_fingerprint(self.source, draft, frozenset(uploads))
            if entry.fingerprint == damaged:
                return damaged
        vectors = vector_file_in_tree(self.source, draft)
        damaged = base_fingerprint(self.source, draft, frozenset({vectors, *uploads}))
        files = [name for name in vector_file_names(self.source, draft) if tree.kind(name) == "file"]
        is_damaged = entry.fingerprint == damaged and not all(map(tree.is_intact, files))
        return damaged if is_damaged else mark

    def _plan_base(
        self, position: int, draft: BaseDraft, mark: str, known: BaseEntry | None, options: Options
    ) -> BaseJob:
        """Survey and plan a base.

        ``known`` is its record from an earlier run, ``mark`` the fingerprint of its source.
        """
        surveyed = self._survey(draft, texts=options.carry_text)
        found = surveyed.found
        hints = Hints()
        if isinstance(found, VectorSurvey) and (draft.embedding.id is not None or options.carry_text):
            hints = self.pipeline.hints(self.source, draft, found, options)
            hints = hints.with_earlier(FoundOnDisk() if known is None else known.found)
        plan = plan_base(draft, found, hints, carry_text=options.carry_text)
        upload_bytes, missing = _check_uploads(self.source, plan, base_folder(self._target, draft.id))
        return BaseJob(
            position,
            draft,
            mark,
            plan=replace(plan, notices=(*plan.notices, *missing)),
            vectors=surveyed.vectors,
            table=surveyed.table,
            origin=surveyed.origin,
            origin_mark=surveyed.mark,
            unread=surveyed.unread,
            is_archive_damaged=any(notice.code == notices.ARCHIVE_SALVAGED for notice in self.source.notices),
            upload_bytes=upload_bytes,
        )

    def _survey(self, draft: BaseDraft, *, texts: bool) -> _Surveyed:
        """Read the rows of a base's vector file, or say why it cannot be used; also if it changes while it is read.

        With ``texts``, rows with text alone are included.
        """
        name = vector_file_in_tree(self.source, draft)
        if not name:
            return _Surveyed(found=StoreProblem(tr("does not exist (the source holds no vector files)")))
        try:
            origin = self._keep.enter_context(self.source.tree.local(name, self._work))
        except SourceUnreadable as problem:
            wish = SalvageRequest(is_wanted=self._options.salvage, work=self._work, texts=texts)
            left = salvage_member(self.pipeline.salvager, self.source.tree, name, draft, problem, wish, self._keep)
            unread = frozenset({name} if self.source.is_archive else ())
            return _Surveyed(found=left.found, vectors=left.vectors, table=left.table, unread=unread)
        mark = sqlite.read_file_state(origin)
        try:
            vectors = self._keep.enter_context(self.pipeline.opened(origin, self._work, self._options, draft))
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


def _options_changed(existing: BaseEntry, options: Options) -> bool:
    """Whether the options ask for something else than the existing base has.

    This concerns salvaged rows, texts without vectors (these are never removed again), and restored duplicates.
    """
    left = existing.report.salvage
    if options.salvage and existing.record.base.error == notices.MISSING_STORE and left and left.rows:
        return True
    if options.carry_text and not existing.carry_text and REASONS_THAT_KEEP_TEXT & existing.report.rows.skipped.keys():
        return True
    if options.restore_duplicates:
        return any(notice.code == notices.LOST_DUPLICATE for notice in existing.notices)
    return bool(existing.report.rows.restored_duplicate)


def _keep_better_base(work: BaseJob, *, same: bool) -> BaseJob:
    """Keep an existing base if the source would now only give a failed one. Return the changed job.

    ``same`` tells that neither the source nor the options changed.
    """
    if work.existing is None or work.plan is None:
        return work
    kept = work.entry_to_keep(work.plan) or (work.existing if same and work.plan.error is not None else None)
    return work if kept is None else replace(work, plan=None, unchanged=kept)


def keep_completed(existing: BaseEntry, error: str, base: str) -> BaseEntry:
    """Return an entry with the notice that the base is kept although it would fail now, because of ``error``.

    ``base`` is the id in the source.
    """
    kept = tr("completed base") if existing.record.base.status == "completed" else tr("base with texts")
    message = tr("it would fail now ({error}); the {kept} from an earlier run is kept", error=error, kept=kept)
    return _add_notice(existing, notices.KEPT_COMPLETED, message, base)


def keep_for_vectors(existing: BaseEntry, base: str) -> BaseEntry:
    """Return an entry with the notice that the base is kept because it has vectors that its source has lost.

    ``base`` is the id in the source.
    """
    message = tr(
        "rows that an earlier run migrated are damaged now, or have no usable vector; the base from that run is kept"
    )
    return _add_notice(existing, notices.KEPT_COMPLETED, message, base)


def vector_file_bytes(source: Located, draft: BaseDraft) -> int:
    """Return the size of a base's vector file, or 0 if it is unknown."""
    name = vector_file_in_tree(source, draft)
    try:
        return source.tree.size(name) if name and source.tree.kind(name) == "file" else 0
    except OSError:
        return 0


def _check_uploads(source: Located, plan: BasePlan, earlier: Path) -> tuple[int, list[Notice]]:
    """Return the total size of a base's uploads in bytes, and a notice for each missing one.

    An upload is missing if it is neither in the source nor in the base that an earlier run wrote to ``earlier``.
    """
    size, missing = 0, []
    for item in plan.items:
        if item.upload is None:
            continue
        name = find_upload(source.tree, source.places.uploads, item.upload)
        path = item.data["relativePath"]
        if name is not None:
            size += source.tree.size(name)
        elif not (earlier / RAW_FOLDER / path).is_file():
            problem = upload_problem(source.tree, source.places.uploads, item.upload)
            missing.append(missing_upload_notice(path, problem, plan.draft.legacy_id, item.legacy_id))
    return size, missing
