"""Which items of a salvaged base lost rows, and what is said of it (``docs/salvage.md``, "What is said")."""

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
from regraft.formats.vector_survey import LoaderRows, SalvageTally, StoreProblem, VectorSurvey
from regraft.formats.vector_table import VectorTable
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import utf16_cut, utf16_len

# What v1 never stored because it had the same text already: told by file, and given back where a whole file was lost.
#
# A file that equals another one byte for byte has no row of its own in v1; it gets the rows of that other file. Rules:
# ``docs/rules.md``, "Rows" and "Duplicates".


#: Files named in one message; the rest is counted.
MAX_NAMED = 5
#: The longest name in a message, in UTF-16 units: an address or a snippet can be long.
MAX_NAME_UNITS = 100


class RestoredDuplicate(msgspec.Struct, frozen=True, kw_only=True):
    """A file without rows that can have those of its twin: the item ``owner``, whose ``rows`` are carried.

    ``item`` is the file's own item, or the folder that it is told of.
    """

    twin: Duplicate
    item: ItemDraft
    owner: str
    rows: int
    #: Whether v1 kept only a part of the twin.
    partial: bool


class MissingChunks(msgspec.Struct, frozen=True, kw_only=True):
    """An item of which v1 did not store some chunks: at least ``chunks``, with ``rows`` that it has stored."""

    name: str
    legacy_id: str | None
    chunks: int
    rows: int


def count_missing_chunks(rows: LoaderRows) -> int:
    """Return how many chunks of a loader v1 never stored, as far as its numbering tells."""
    return max(0, rows.highest_number + 1 - rows.rows) if rows.highest_number >= 0 else 0


def folder_read_times(draft: BaseDraft) -> dict[str, int]:
    """Return when v1 read each file of a base's completed folders (ms), by loader id.

    That is the time of its folder, of several the earliest. A file of a folder without a time has none.
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
    """Tells of twins who gets the rows and who has them. What does not fit any more counts for nothing."""

    def __init__(self, draft: BaseDraft, owners: LoaderOwners) -> None:
        folders = [item for item in draft.folders if item.status == "completed"]
        self._owners = owners
        self._times = folder_read_times(draft)
        self._files = {item.id: item for item in draft.items if item.type == "file"}
        self._alone = {loader for item in draft.items if item.type != "directory" for loader in item.loader_ids}
        self._listed = {entry: item for item in folders for entry in item.entries}

    def taker(self, twin: Duplicate) -> ItemDraft | None:
        """Return the completed standalone file that gets the rows, or the folder whose file does.

        A standalone file has to own the loader, so that of several with one loader it is the last, as with rows, and
        it has to be the one whose upload was compared. A file of a folder must not be a standalone item's too.
        """
        loader = twin.loader_id
        if twin.item:
            item = self._files.get(twin.item)
            owns = item is not None and loader in item.loader_ids and self._owners.owner(loader) == item.id
            return item if owns and item is not None and item.status == "completed" else None
        fits = twin.path and loader not in self._alone and self._as_read(loader, twin.read_at)
        return self._listed.get(loader) if fits else None

    def giver(self, twin: Duplicate) -> str | None:
        """Return the id of the file that has the rows, if that is the one whose bytes were compared."""
        owner = self._owners.owner(twin.like)
        if twin.like_item:
            return owner if owner == twin.like_item and owner in self._files else None
        child = self._owners.children.get(twin.like)
        is_child = child is not None and child.id == owner
        return owner if is_child and self._as_read(twin.like, twin.like_read_at) else None

    def _as_read(self, loader: str, read_at: int | None) -> bool:
        """Tell whether v1 read a file of a folder when a twin says, and not again later."""
        return self._times.get(loader) == read_at


def files_without_rows(
    draft: BaseDraft, survey: VectorSurvey, owners: LoaderOwners, told: Collection[str]
) -> list[ItemDraft]:
    """Return the completed files of which v1 has no row at all, but for those that are told of already.

    ``told`` are the ids of duplicates; a file whose loader went to a later item is told of too.
    """
    found = []
    for item in draft.items:
        if item.type == "file" and item.status == "completed" and item.id not in told:
            own = all(owners.owner(loader) == item.id for loader in item.loader_ids)
            if own and not any(loader in survey.loaders for loader in item.loader_ids):
                found.append(item)
    return found


def duplicate_notice(one: RestoredDuplicate, base: str, *, restored: bool) -> Notice:
    """Say that a file is a duplicate, and that it was given the chunks of its twin, or is not by the user's word."""
    twin, item = one.twin, one.item.legacy_id
    part = tr(", as far as v1 kept it") if one.partial else ""
    why = tr("since {short} has the same bytes", short=_short(twin.like_name))
    if twin.changed:
        why = tr(
            "and {short} has the same bytes today, though one of them was changed since v1 read it",
            short=_short(twin.like_name),
        )
    lost = tr("{short}: v1 kept nothing of it, {why}", short=_short(twin.name), why=why)
    if restored:
        message = tr(
            "{lost}; it gets the same {chunks}{part}", lost=lost, chunks=format_count(one.rows, "chunk"), part=part
        )
        return Notice(code=notices.RESTORED_DUPLICATE, message=message, base=base, item=item, count=one.rows)
    message = tr(
        "{lost}; without --no-restore-duplicates it would get the same {chunks}{part}",
        lost=lost,
        chunks=format_count(one.rows, "chunk"),
        part=part,
    )
    return Notice(code=notices.LOST_DUPLICATE, message=message, base=base, item=item, count=one.rows)


def missing_chunk_notices(base: str, missing: Sequence[MissingChunks]) -> Iterator[Notice]:
    """Say which chunks v1 never stored: in one notice for the base, and in one for each item."""
    if not missing:
        return
    total = sum(one.chunks for one in missing)
    largest = sorted(missing, key=lambda one: -one.chunks)
    names = join_names([f"{_short(one.name)} ({one.chunks:,})" for one in largest])
    message = tr(
        "{chunks} never stored by v1, which had the text already: {names}",
        chunks=format_count(total, "chunk"),
        names=names,
    )
    yield Notice(code=notices.DEDUPLICATED, message=message, base=base, count=total)
    for one in missing:
        chunks = tr(
            "{chunks:,} of its {chunks2}", chunks=one.chunks, chunks2=format_count(one.chunks + one.rows, "chunk")
        )
        message = tr(
            "{short}: at least {chunks} never stored by v1, which had the text already",
            short=_short(one.name),
            chunks=chunks,
        )
        yield Notice(code=notices.DEDUPLICATED_ITEM, message=message, base=base, item=one.legacy_id, count=one.chunks)


def files_without_rows_notices(base: str, files: Sequence[ItemDraft]) -> Iterator[Notice]:
    """Say in one notice which completed files have no text."""
    if files:
        names = join_names([_short(item.data["relativePath"]) for item in files])
        message = tr(
            "{completed_files} without any text, as there are no rows: {names}",
            completed_files=format_count(len(files), "completed file"),
            names=names,
        )
        yield Notice(code=notices.FILE_WITHOUT_ROWS, message=message, base=base, count=len(files))


def join_names(names: Sequence[str]) -> str:
    """Return a few names as text, the rest counted."""
    more = len(names) - MAX_NAMED
    return join_list(names[:MAX_NAMED]) + (tr(" and {more:,} more", more=more) if more > 0 else "")


def name_in_folder(folder: str, source: str) -> str:
    """Return what a person calls a file of a folder: its path in the folder, else its ``source``."""
    rest = source.removeprefix(folder)
    return rest.lstrip("/\\") if rest != source and rest[:1] in ("/", "\\") else source


def _short(name: str) -> str:
    line = " ".join(name.split())
    return line if utf16_len(line) <= MAX_NAME_UNITS else utf16_cut(line, MAX_NAME_UNITS - 1) + "…"


class SalvageLosses(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a salvaged base that have rows, or had some.

    ``lost`` counts rows that do not come along, by the id of their item. ``open`` are items whose numbers have holes,
    of which nobody can tell whether v1 left them; ``whole`` counts the others.
    """

    lost: Counter[str]
    open: frozenset[str]
    whole: int

    @property
    def damaged(self) -> int:
        """Return how many items lost rows, or may have."""
        return len(self.lost.keys() | self.open)


def find_losses(survey: VectorSurvey, owners: LoaderOwners) -> SalvageLosses:
    """Return what the items of a base lost; nothing of one that was not salvaged."""
    tally = survey.salvage
    lost: Counter[str] = Counter()
    seen: set[str] = set()
    unsure: set[str] = set()
    for loader, rows in survey.loaders.items() if tally is not None else ():
        owner = owners.owner(loader)
        if owner is None:
            continue
        seen.add(owner)
        lost[owner] += sum(one.count for one in rows.refused.values())
        if count_missing_chunks(rows) and tally is not None and not tally.is_exact:
            unsure.add(owner)
    lost = +lost
    return SalvageLosses(lost=lost, open=frozenset(unsure), whole=len(seen - lost.keys() - unsure))


def _said_of_items(found: SalvageLosses, tally: SalvageTally) -> str:
    whole = format_count(found.whole, "item")
    if tally.is_exact:
        return tr("{whole} whole, {damaged} damaged", whole=whole, damaged=found.damaged)
    # The last rows of an item leave no trace.
    return tr(
        "{whole} whole as far as the numbers of their rows tell, {damaged} damaged", whole=whole, damaged=found.damaged
    )


def loss_notices(
    base: str,
    vector_file: str,
    tally: SalvageTally,
    found: SalvageLosses,
    named: Callable[[], Iterable[tuple[str, str, str | None]]],
) -> Iterator[Notice]:
    """Yield what is said of a salvaged base, and of each of its items that lost rows.

    Args:
        base: the base's id in v1.
        vector_file: its vector file.
        tally: what is left of that.
        found: which items lost rows.
        named: gives for every item its id, what a person calls it, and the id of v1 that it goes by.
    """
    share = 100 * tally.pages_read // max(1, tally.pages)
    parts = [
        tr(
            "its vector file {vector_file} {problem}; {rows:,} of about {about:,} rows are salvaged",
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
        _said_of_items(found, tally),
    ]
    if tally.weaker:
        rows = format_count(sum(tally.weaker.values()), "row")
        parts.append(tr("{rows} found beside the tree of their table", rows=rows))
    yield Notice(
        code=notices.SALVAGED,
        message=join_list(parts, between=tr("; ")),
        base=base,
        count=max(1, tally.about - tally.rows),
    )
    for item, name, legacy_id in named() if found.damaged else ():
        if found.lost[item]:
            said = tr("{rows} of {name} lost with the damage", rows=format_count(found.lost[item], "row"), name=name)
        elif item in found.open:
            said = tr("rows of {name} may be lost: numbers are missing among its rows", name=name)
        else:
            continue
        yield Notice(code=notices.ROWS_LOST, message=said, base=base, item=legacy_id, count=max(1, found.lost[item]))


# Damaged vector files: what is left of them is counted, or surveyed as any other (``docs/salvage.md``).


logger = logging.getLogger(__name__)


class SalvageResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a damaged file gives: a survey of the temporary file ``vectors``, read as ``table``, or why nothing."""

    found: VectorSurvey | StoreProblem
    vectors: Path | None = None
    table: VectorTable | None = None


class SalvageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How damaged files are read: whether their rows are wanted, below which folder, and whether texts are told."""

    is_wanted: bool
    work: Path | None
    texts: bool = False


def check_for_damage(salvager: Salvager | None, vectors: Path, work: Path | None, *, is_wanted: bool) -> None:
    """Refuse a vector file that SQLite reads to its end and that is damaged all the same, where that is asked for.

    Args:
        salvager: what tells.
        vectors: the file, which was surveyed.
        work: folder for temporary files.
        is_wanted: whether rows of damaged files are wanted; else nothing is looked at.

    Raises:
        StoreProblem: it is damaged, or cannot be read.
        apsw.FullError, OSError: there is no room to read it.
    """
    if salvager is None or not is_wanted:
        return
    try:
        said = salvager.doubt(vectors, work)
    except apsw.FullError:
        raise
    except (OSError, apsw.Error) as error:
        if getattr(error, "errno", None) in NO_ROOM:
            raise
        raise StoreProblem(tr("cannot be read: {error}", error=error)) from error
    if said is not None:
        raise StoreProblem(tr("is damaged, although it can be read: {said}", said=said), is_damage=True)


def salvage_file(
    salvager: Salvager | None,
    damaged: Path,
    draft: BaseDraft,
    problem: StoreProblem,
    wish: SalvageRequest,
    keep: ExitStack,
) -> SalvageResult:
    """Return what is left of a vector file that cannot be used, where it is damaged.

    Args:
        salvager: what reads such files page by page.
        damaged: the file.
        draft: the base that it is of.
        problem: why it cannot be used.
        wish: what is wanted of it.
        keep: keeps the temporary file until it closes.

    Raises:
        WorkFolderTooSmall, apsw.FullError, OSError: there is no room for what is left.
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
                return SalvageResult(found=_with(problem, tally))
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


def _with(problem: StoreProblem, tally: SalvageTally) -> StoreProblem:
    said = tr("{problem}; {offer}", problem=problem, offer=tally.offer) if tally.about else str(problem)
    return StoreProblem(said, problem.vector_bytes, is_damage=True, salvage=tally)
