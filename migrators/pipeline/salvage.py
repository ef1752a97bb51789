"""Damaged vector files: what is left of them is counted, or surveyed as any other (``docs/salvage.md``)."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

import apsw
import msgspec

from migrators.pipeline.drafts import BaseDraft
from migrators.pipeline.source import Salvager
from regraft.formats.salvage_tally import SalvageTally
from regraft.formats.vector_survey import StoreProblem, Survey
from regraft.formats.vector_table import VectorTable
from regraft.language import tr
from regraft.ledger.durable import NO_ROOM
from regraft.records import replace

logger = logging.getLogger(__name__)


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """What a damaged file gives: a survey of the temporary file ``vectors``, read as ``table``, or why nothing."""

    found: Survey | StoreProblem
    vectors: Path | None = None
    table: VectorTable | None = None


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """How damaged files are read: whether their rows are wanted, below which folder, and whether texts are told."""

    is_wanted: bool
    work: Path | None
    texts: bool = False


def demand_sound(salvager: Salvager | None, vectors: Path, work: Path | None, *, is_wanted: bool) -> None:
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


def look_into(
    salvager: Salvager | None, damaged: Path, draft: BaseDraft, problem: StoreProblem, wish: Wish, keep: ExitStack
) -> Leftover:
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
        return Leftover(found=problem)
    try:
        with ExitStack() as stack:
            path, tally = stack.enter_context(salvager(damaged, wish.work, draft, keep=wish.is_wanted))
            tally = replace(tally, problem=str(problem), is_carried=wish.is_wanted and bool(tally.rows))
            logger.info("base %s: its vector file is damaged: %s of %s rows", draft.id, tally.rows, tally.about)
            if not (problem.is_damage or tally.rows):
                return Leftover(found=problem)
            if path is None or not tally.rows:
                return Leftover(found=_with(problem, tally))
            survey = salvager.table.survey(path, wish.work, texts=wish.texts)
            survey.salvage = tally
            keep.push(stack.pop_all())
    except StoreProblem:
        return Leftover(found=problem)
    except apsw.FullError:
        raise
    except (OSError, apsw.Error) as error:
        if getattr(error, "errno", None) in NO_ROOM:
            raise
        return Leftover(found=problem)
    return Leftover(found=survey, vectors=path, table=salvager.table)


def _with(problem: StoreProblem, tally: SalvageTally) -> StoreProblem:
    said = tr("{problem}; {offer}", problem=problem, offer=tally.offer) if tally.about else str(problem)
    return StoreProblem(said, problem.vector_bytes, is_damage=True, salvage=tally)
