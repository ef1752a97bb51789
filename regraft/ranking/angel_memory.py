"""Reading a note of AngelMemory by its short id, from the file itself (``docs/angel-memory.md``, "Recall")."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw
import msgspec

from regraft import links
from regraft.embedders.counting import estimate
from regraft.errors import SourceUnreadable
from regraft.formats.angel_memory import database, notes
from regraft.formats.angel_memory.database import RECORDS, AngelProblem, Record
from regraft.language import joined, tr
from regraft.system_errors import NoteAmbiguous, NoteGone, NoteOutside, NoteUnknown

#: Short ids that are given as the nearest to one that no note has.
_NEAREST = 3


@dataclass(frozen=True)
class Span:
    """Lines that are wanted, from 1 on, both ends included; None: from the first, to the last."""

    first: int | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        if self.first is not None and self.last is not None and self.first > self.last:
            raise ValueError(tr("line {first} comes after line {last}", first=self.first, last=self.last))


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """A note's record, and lines of its file as they are now.

    Of an empty file both lines are 0. If the budget has no room for the first line, that line is cut; if it has no room
    for a single character, the end is before the start.
    """

    record: Record
    total_lines: int
    start: int
    end: int
    content: str
    #: About how many tokens the lines have, and whether lines were left out because there were more.
    tokens: int
    is_cut: bool
    #: Whether the first line alone has more tokens than the budget, so that only its beginning is there.
    is_line_cut: bool


def recall(root: Path, short_id: int, span: Span, token_budget: int | None = None) -> Recalled:
    """Read lines of the file of a note; nothing is written.

    Args:
        root: the data folder.
        short_id: the note's.
        span: which lines; what lies beyond the file is left out.
        token_budget: at most so many tokens; None: as many as there are.

    Raises:
        NoteUnknown, NoteAmbiguous: no note has the short id, or several have it.
        NoteGone, NoteOutside: its file is not there, or not below ``raw/``.
        SourceUnreadable: its file or the database cannot be read.
    """
    record = _record(root, short_id)
    place = notes.inside(root / database.RAW, record.path)
    if place is None:
        raise NoteOutside(path=root, short_id=short_id, file=record.path)
    try:
        lines = notes.lines_of(links.content(place))
    except FileNotFoundError as error:
        raise NoteGone(path=root, short_id=short_id, file=record.path) from error
    except OSError as error:
        raise SourceUnreadable(path=place, reason=error.strerror or error) from error
    start = min(max(1, span.first or 1), len(lines))
    end = min(max(1, len(lines) if span.last is None else span.last), len(lines))
    wanted = lines[max(0, start - 1) : end]
    kept = wanted if token_budget is None else _fitting(wanted, token_budget)
    content = "\n".join(kept)
    is_cut = kept != wanted
    return Recalled(
        record=record,
        total_lines=len(lines),
        start=start,
        end=end - len(wanted) + len(kept),
        content=content,
        tokens=estimate(content),
        is_cut=is_cut,
        is_line_cut=is_cut and kept[:1] != wanted[:1],
    )


def _fitting(lines: Sequence[str], budget: int) -> list[str]:
    """Return the lines from the first on that have no more tokens than ``budget``, joined.

    If the first line alone has more, return its beginning.
    """
    count = bisect_right(range(1, len(lines) + 1), budget, key=lambda count: estimate("\n".join(lines[:count])))
    if count or not lines:
        return list(lines[:count])
    first = lines[0]
    length = bisect_right(range(1, len(first) + 1), budget, key=lambda length: estimate(first[:length]))
    return [first[:length]] if length else []


def _record(root: Path, short_id: int) -> Record:
    try:
        with database.reading(root) as db:
            found = list(database.records(db, "r.note_short_id = ?", (short_id,)))
            if not found:
                raise NoteUnknown(path=root, short_id=short_id, known=_known(db, short_id))
    except (AngelProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=root / database.DATABASE, reason=error) from error
    if len(found) > 1:
        files = joined(record.path for record in found)
        raise NoteAmbiguous(path=root, short_id=short_id, files=files)
    return found[0]


def _known(db: apsw.Connection, short_id: int) -> str:
    """Return the short ids that there are, for a person."""
    highest = database.highest_short_id(db)
    if highest is None:
        return tr("there are no notes")
    nearest = f"SELECT DISTINCT note_short_id FROM {RECORDS} WHERE note_short_id IS NOT NULL"
    rows = db.execute(f"{nearest} ORDER BY abs(note_short_id - ?), 1 LIMIT ?", (short_id, _NEAREST))
    near = joined(str(number) for (number,) in sorted(rows))
    return tr("the nearest are {near}, the highest is {highest}", near=near, highest=highest)
