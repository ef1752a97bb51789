"""Text that v1 never stored and rows that damage took: identical files, and the salvage of damaged vector files.

v1 stores equal text once per base, so a file that is byte for byte equal to another one has no rows of its own. It gets
the rows of the other file. Rules: ``docs/rules.md``, "Rows" and "Duplicates"; ``docs/salvage.md``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import apsw
import msgspec

from migrators.pipeline.accounting import LoaderOwners
from migrators.pipeline.source import BaseDraft, Duplicate, ItemDraft, Salvager
from regraft.disk.durable import NO_ROOM
from regraft.disk.trees import Tree, ZipTree
from regraft.errors import SourceUnreadable
from regraft.formats.vector_survey import LoaderRows, SalvageTally, StoreProblem, VectorSurvey
from regraft.formats.vector_table import VectorTable
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import utf16_cut, utf16_len

# --- identical files -----------------------------------------------------------------------------------------------


#: Maximum number of files named in one message; the rest is counted.
MAX_NAMED = 5
#: Maximum length of a name in a message, in UTF-16 units. Addresses and snippets can be long.
MAX_NAME_UNITS = 100


class RestoredDuplicate(msgspec.Struct, frozen=True, kw_only=True):
    """A file without rows that can get the ``rows`` of the item ``owner``, which has the same bytes.

    ``item`` is the file's own item, or the folder that lists the file.
    """

    twin: Duplicate
    item: ItemDraft
    owner: str
    rows: int
    #: Whether v1 stored only a part of the identical file.
    partial: bool


class MissingChunks(msgspec.Struct, frozen=True, kw_only=True):
    """An item with ``rows`` chunks stored by v1 and at least ``chunks`` others left out."""

    name: str
    legacy_id: str | None
    chunks: int
    rows: int


def count_missing_chunks(rows: LoaderRows) -> int:
    """Count the chunks of a loader id that v1 never stored, according to the numbers in its row ids."""
    return max(0, rows.highest_number + 1 - rows.rows)


def folder_read_times(draft: BaseDraft) -> dict[str, int]:
    """Return when v1 read each file of a base's completed folders (ms), by loader id.

    This is the time of its folder, or of the earliest one if several list the file. Files of a folder without a time
    are left out.
    """
    times: dict[str, int] = {}
    unknown: set[str] = set()
    for item in draft.folders:
        if item.status == "completed":
            time = item.created_at if item.updated_at is None else item.updated_at
            for entry in item.entries:
                if time is None:
                    unknown.add(entry)
                else:
                    times[entry] = min(time, times.get(entry, time))
    return {entry: time for entry, time in times.items() if entry not in unknown}


class DuplicateRules:
    """Checks for each pair of identical files whether it still applies, and which items it connects."""

    def __init__(self, draft: BaseDraft, owners: LoaderOwners) -> None:
        folders = [item for item in draft.folders if item.status == "completed"]
        self._owners = owners
        self._times = folder_read_times(draft)
        self._files = {item.id: item for item in draft.items if item.type == "file"}
        self._alone = {loader_id for item in draft.items if item.type != "directory" for loader_id in item.loader_ids}
        self._listed = {entry: item for item in folders for entry in item.entries}

    def receiving_item(self, pair: Duplicate) -> ItemDraft | None:
        """Return the item that gets the rows of a pair of identical files; None if the pair is outdated.

        The item is the completed file without rows, or the folder that lists it. A standalone file must own the loader
        id and be the item whose upload was compared. A file of a folder must not be a standalone item too.
        """
        loader_id = pair.loader_id
        if pair.item:
            item = self._files.get(pair.item)
            owns = item is not None and loader_id in item.loader_ids and self._owners.item_of(loader_id) == item.id
            return item if owns and item is not None and item.status == "completed" else None
        applies = pair.path and loader_id not in self._alone and self._is_read_at(loader_id, pair.read_at)
        return self._listed.get(loader_id) if applies else None

    def donor_id(self, pair: Duplicate) -> str | None:
        """Return the item id of the file that has the rows of a pair.

        None if v1 read that file again after the comparison.
        """
        owner = self._owners.item_of(pair.like)
        if pair.like_item:
            return owner if owner == pair.like_item and owner in self._files else None
        child = self._owners.children.get(pair.like)
        is_child = child is not None and child.id == owner
        return owner if is_child and self._is_read_at(pair.like, pair.like_read_at) else None

    def _is_read_at(self, loader_id: str, read_at: int | None) -> bool:
        """Whether v1 last read the file of a loader id at this time (ms).

        Only files in folders have times; for other files the time is None.
        """
        return self._times.get(loader_id) == read_at


def items_without_rows(
    draft: BaseDraft, survey: VectorSurvey, owners: LoaderOwners, reported_ids: Collection[str]
) -> list[ItemDraft]:
    """List the completed items of a base that have no rows in its vector file. Folders are left out.

    Also left out are ``reported_ids``, which other notices name, and items whose loader id belongs to a later item.
    """
    found = []
    for item in draft.items:
        if item.type != "directory" and item.status == "completed" and item.id not in reported_ids:
            owns_all = all(owners.item_of(loader_id) == item.id for loader_id in item.loader_ids)
            if owns_all and not any(loader_id in survey.loaders for loader_id in item.loader_ids):
                found.append(item)
    return found


def duplicate_notice(duplicate: RestoredDuplicate, base_id: str, *, restored: bool) -> Notice:
    """Make the notice that a file gets the chunks of an identical file.

    With ``restored`` False, it says that the file would get them without ``--no-restore-duplicates``.
    """
    twin, item = duplicate.twin, duplicate.item.legacy_id
    part = tr(", as far as v1 stored it") if duplicate.partial else ""
    why = tr("because {short} has the same bytes", short=_shorten_name(twin.like_name))
    if twin.changed:
        why = tr(
            "and {short} has the same bytes now, but one of the two was changed after v1 read it",
            short=_shorten_name(twin.like_name),
        )
    lost = tr("{short}: v1 stored no chunks of it, {why}", short=_shorten_name(twin.name), why=why)
    if restored:
        message = tr(
            "{lost}; it gets the same {chunks}{part}",
            lost=lost,
            chunks=format_count(duplicate.rows, "chunk"),
            part=part,
        )
        return Notice(code=notices.RESTORED_DUPLICATE, message=message, base=base_id, item=item, count=duplicate.rows)
    message = tr(
        "{lost}; it would get the same {chunks}{part} if --no-restore-duplicates were left out",
        lost=lost,
        chunks=format_count(duplicate.rows, "chunk"),
        part=part,
    )
    return Notice(code=notices.LOST_DUPLICATE, message=message, base=base_id, item=item, count=duplicate.rows)


def missing_chunk_notices(base: str, missing: Sequence[MissingChunks]) -> Iterator[Notice]:
    """Make notices about chunks that v1 never stored: one for the base with this v1 id, and one for each item."""
    if not missing:
        return
    total = sum(one.chunks for one in missing)
    largest = sorted(missing, key=lambda one: -one.chunks)
    names = join_names([f"{_shorten_name(one.name)} ({one.chunks:,})" for one in largest])
    message = tr(
        "{chunks} never stored by v1 because the same text was stored already: {names}",
        chunks=format_count(total, "chunk"),
        names=names,
    )
    yield Notice(code=notices.DEDUPLICATED, message=message, base=base, count=total)
    for one in missing:
        chunks = tr(
            "{chunks:,} of its {chunks2}", chunks=one.chunks, chunks2=format_count(one.chunks + one.rows, "chunk")
        )
        message = tr(
            "{short}: at least {chunks} never stored by v1 because the same text was stored already",
            short=_shorten_name(one.name),
            chunks=chunks,
        )
        yield Notice(code=notices.DEDUPLICATED_ITEM, message=message, base=base, item=one.legacy_id, count=one.chunks)


def files_without_rows_notices(base: str, files: Sequence[ItemDraft]) -> Iterator[Notice]:
    """Name the completed ``files`` of a base that have no text, in one notice. Yield nothing without such files."""
    if files:
        names = join_names([_shorten_name(item.data["relativePath"]) for item in files])
        message = tr(
            "{completed_files} without rows, and so without any text: {names}",
            completed_files=format_count(len(files), "completed file"),
            names=names,
        )
        yield Notice(code=notices.FILE_WITHOUT_ROWS, message=message, base=base, count=len(files))


def join_names(names: Sequence[str]) -> str:
    """Join the first :data:`MAX_NAMED` names and count the rest."""
    more = len(names) - MAX_NAMED
    return join_list(names[:MAX_NAMED]) + (tr(" and {more:,} more", more=more) if more > 0 else "")


def name_in_folder(folder: str, source: str) -> str:
    """Return the display name of a file in a folder: its path relative to the folder, else its ``source``."""
    rest = source.removeprefix(folder)
    return rest.lstrip("/\\") if rest != source and rest[:1] in ("/", "\\") else source


def _shorten_name(name: str) -> str:
    line = " ".join(name.split())
    return line if utf16_len(line) <= MAX_NAME_UNITS else utf16_cut(line, MAX_NAME_UNITS - 1) + "…"


class SalvageLosses(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a salvaged base, by what the damage did to their rows.

    ``lost`` counts unusable rows by item id. ``open`` are ids of items with gaps in their row numbers, which may be
    rows lost to the damage or duplicates that v1 left out. ``absent`` are ids of completed items of which no row was
    found, although v1 may have had some. ``whole`` counts the other items.
    """

    lost: Counter[str]
    open: frozenset[str]
    absent: frozenset[str]
    whole: int

    @property
    def damaged(self) -> int:
        """Number of items that lost rows, or may have."""
        return len(self.lost.keys() | self.open | self.absent)


def find_losses(survey: VectorSurvey, owners: LoaderOwners, absent: frozenset[str]) -> SalvageLosses:
    """Find which items of a salvaged base lost rows. The result is empty for a base that was not salvaged.

    ``absent`` are the ids of its completed items of which no row was found, although v1 may have had some.
    """
    tally = survey.salvage
    lost: Counter[str] = Counter()
    seen: set[str] = set()
    unsure: set[str] = set()
    for loader_id, rows in survey.loaders.items() if tally is not None else ():
        owner = owners.item_of(loader_id)
        if owner is None:
            continue
        seen.add(owner)
        lost[owner] += sum(one.count for one in rows.refused.values())
        if count_missing_chunks(rows) and tally is not None and not tally.is_exact:
            unsure.add(owner)
    lost = +lost
    return SalvageLosses(lost=lost, open=frozenset(unsure), absent=absent, whole=len(seen - lost.keys() - unsure))


def _describe_items(losses: SalvageLosses, tally: SalvageTally) -> str:
    """Say how many items a salvage restores completely, and how many in part."""
    whole = format_count(losses.whole, "item")
    if tally.is_exact:
        return tr("{whole} complete, {damaged} damaged", whole=whole, damaged=losses.damaged)
    # Nothing shows that the last rows of an item are missing.
    return tr("{whole} complete as far as row numbers show, {damaged} damaged", whole=whole, damaged=losses.damaged)


def loss_notices(
    base: str,
    vector_file: str,
    tally: SalvageTally,
    losses: SalvageLosses,
    named: Callable[[], Iterable[tuple[str, str, str | None]]],
) -> Iterator[Notice]:
    """Yield one notice for a salvaged base, and one for each of its items that lost rows or may have.

    Args:
        base: the base's id in v1.
        vector_file: name of its vector file.
        tally: what was salvaged.
        losses: the items that lost rows.
        named: called for the id, the display name and the v1 id of the damaged items.
    """
    share = 100 * tally.pages_read // max(1, tally.pages)
    parts = [
        tr(
            "its vector file {vector_file} {problem}; {rows:,} of about {about:,} rows were salvaged",
            vector_file=vector_file,
            problem=tally.problem,
            rows=tally.rows,
            about=tally.about,
        ),
        tr(
            "{read:,} of its {pages} could be read ({share} %)",
            read=tally.pages_read,
            pages=format_count(tally.pages, "page"),
            share=share,
        ),
        _describe_items(losses, tally),
    ]
    if tally.weaker:
        rows = format_count(sum(tally.weaker.values()), "row")
        parts.append(tr("{rows} found outside the b-tree of the table", rows=rows))
    yield Notice(
        code=notices.SALVAGED,
        message=join_list(parts, between=tr("; ")),
        base=base,
        count=max(1, tally.about - tally.rows),
    )
    for item, name, legacy_id in named() if losses.damaged else ():
        if losses.lost[item]:
            message = tr(
                "{name}: {rows} could not be recovered from the damaged file",
                rows=format_count(losses.lost[item], "row"),
                name=name,
            )
        elif item in losses.open:
            message = tr("{name}: rows may be lost, because numbers are missing among its rows", name=name)
        elif item in losses.absent:
            message = tr("{name}: none of its rows were salvaged, if v1 had any", name=name)
        else:
            continue
        yield Notice(
            code=notices.ROWS_LOST, message=message, base=base, item=legacy_id, count=max(1, losses.lost[item])
        )


# --- damaged vector files ------------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)


class SalvageResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was read from a damaged file: the survey of a temporary file ``vectors``, or why nothing could be read.

    ``table`` describes the table in the temporary file.
    """

    found: VectorSurvey | StoreProblem
    vectors: Path | None = None
    table: VectorTable | None = None


class SalvageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How to treat damaged vector files.

    With ``is_wanted``, their rows are migrated; else they are only counted. ``work`` is the folder for temporary files.
    ``texts`` asks the survey for rows with text alone.
    """

    is_wanted: bool
    work: Path | None
    texts: bool = False


def check_for_damage(salvager: Salvager | None, vectors: Path, work: Path | None, *, is_wanted: bool) -> None:
    """Refuse a vector file that SQLite can read but whose content is contradictory. Only with ``is_wanted``.

    Args:
        salvager: checks and reads files of this layout; None if the layout has no salvage.
        vectors: the file, already surveyed.
        work: folder for temporary files.
        is_wanted: whether the user asked for salvage.

    Raises:
        StoreProblem: the file is damaged or cannot be read. apsw.FullError, OSError: not enough space to read it.
    """
    if salvager is None or not is_wanted:
        return
    try:
        doubt = salvager.doubt(vectors, work)
    except apsw.FullError:
        raise
    except (OSError, apsw.Error) as error:
        if getattr(error, "errno", None) in NO_ROOM:
            raise
        raise StoreProblem(tr("cannot be read: {error}", error=error)) from error
    if doubt is not None:
        raise StoreProblem(tr("is damaged, although SQLite can read it: {said}", said=doubt), is_damage=True)


def salvage_file(
    salvager: Salvager | None,
    damaged: Path,
    draft: BaseDraft,
    problem: StoreProblem,
    wish: SalvageRequest,
    keep: ExitStack,
) -> SalvageResult:
    """Read the remaining rows of a damaged vector file.

    Args:
        salvager: reads files of this layout page by page; None if the layout has no salvage.
        damaged: the file.
        draft: the base that it belongs to.
        problem: why the file cannot be used as it is.
        wish: whether its rows are migrated or only counted.
        keep: removes the temporary file with the rows when it closes.

    Raises:
        WorkFolderTooSmall, apsw.FullError, OSError: not enough space for the temporary file.
    """
    if salvager is None or not (problem.is_damage or problem.may_be_damage):
        return SalvageResult(found=problem)
    try:
        with ExitStack() as stack:
            path, tally = stack.enter_context(salvager(damaged, wish.work, draft, keep=wish.is_wanted))
            tally = replace(tally, problem=str(problem), is_carried=wish.is_wanted and bool(tally.rows))
            logger.info("base %s: its vector file is damaged: %s of %s rows", draft.id, tally.rows, tally.about)
            if not (problem.is_damage or tally.rows):
                return SalvageResult(found=problem)
            if path is None or not tally.rows:
                message = tr("{problem}; {offer}", problem=problem, offer=tally.offer) if tally.about else str(problem)
                return SalvageResult(found=StoreProblem(message, problem.vector_bytes, is_damage=True, salvage=tally))
            survey = salvager.table.survey(path, wish.work, texts=wish.texts)
            survey.salvage = tally
            keep.push(stack.pop_all())
    except StoreProblem:
        return SalvageResult(found=problem)
    except apsw.FullError:
        raise
    except (OSError, apsw.Error) as error:
        if getattr(error, "errno", None) in NO_ROOM:
            raise
        return SalvageResult(found=problem)
    return SalvageResult(found=survey, vectors=path, table=salvager.table)


def salvage_member(
    salvager: Salvager | None,
    tree: Tree,
    name: str,
    draft: BaseDraft,
    error: SourceUnreadable,
    wish: SalvageRequest,
    keep: ExitStack,
) -> SalvageResult:
    """Read the remaining rows of a vector file that is damaged in an archive, such as by a wrong checksum.

    Args:
        salvager: as for :func:`salvage_file`, like ``draft``, ``wish`` and ``keep``.
        tree: the source; only in an archive can a part of a file be read.
        name: the name of the file in it.
        error: why the file cannot be read as a whole.

    Raises:
        WorkFolderTooSmall, apsw.FullError, OSError: not enough space for the temporary files.
    """
    reason = error.facts["reason"]
    unread = SalvageResult(found=StoreProblem(tr("cannot be read: {reason}", reason=reason)))
    if salvager is None or not isinstance(tree, ZipTree):
        return unread
    try:
        path = keep.enter_context(tree.local_damaged(name, wish.work))
    except SourceUnreadable:
        return unread
    # A changed bit in a number of a vector is not always found.
    problem = tr("cannot be verified ({reason}), so any of its rows may be altered", reason=reason)
    left = salvage_file(salvager, path, draft, StoreProblem(problem, is_damage=True), wish, keep)
    has_rows = not isinstance(left.found, StoreProblem) or (left.found.salvage and left.found.salvage.rows)
    return left if has_rows else unread
