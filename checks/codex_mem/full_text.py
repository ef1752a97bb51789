"""Whether codex-mem's full-text index holds the searchable notes, and nothing else (``docs/formats/codex_mem.md``).

FTS5's own check would cry wolf as soon as one note is excluded, and it is a write: it runs on a copy of the index's
data in a temporary table, beside the searchable notes alone, and with right counts: wrong ones are a finding by
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from checks.audit.collector import FindingCollector, Level
from checks.audit.full_text import AVERAGES, words_agree
from checks.codex_mem import findings as codex
from regraft.formats.codex_mem.database import FULL_TEXT, NOTES
from regraft.language import tr

_COLUMNS = 2
_SEARCHABLE = f"EXISTS (SELECT 1 FROM {NOTES} n WHERE n.rowid = d.id AND n.searchable = 1)"
_MISSING = f"""SELECT CAST(n.id AS BLOB) FROM {NOTES} n WHERE n.searchable = 1
   AND NOT EXISTS (SELECT 1 FROM {FULL_TEXT}_docsize d WHERE d.id = n.rowid)"""
_EXTRA = f"""SELECT coalesce((SELECT CAST(n.id AS BLOB) FROM {NOTES} n WHERE n.rowid = d.id), d.id)
  FROM {FULL_TEXT}_docsize d WHERE NOT {_SEARCHABLE}"""


def check(db: apsw.Connection, ledger: FindingCollector, *, with_words: bool = True) -> None:
    """Compare rows and counts; above the quick level the words too.

    Args:
        db: the database.
        ledger: what is wrong goes there.
        with_words: whether the index is made as codex-mem makes it, so that its words can be told.

    Raises:
        apsw.Error: the file is damaged.
    """
    for (note,) in db.execute(_MISSING):
        ledger.add(codex.FTS_MISSING, tr("{n} that no word finds"), noun="searchable note", sample=note)
    for (note,) in db.execute(_EXTRA):
        message = tr("{n} of the full-text index of no searchable note: excluded text can be found")
        ledger.add(codex.FTS_EXTRA, message, noun="entry", sample=note)
    stated, there = _stated(db), _there(db)
    if stated != there:
        message = tr(
            "the full-text index says that it has {said}, and has {said2}: ranks are wrong",
            said=_said(stated),
            said2=_said(there),
        )
        ledger.add(codex.FTS_SKEWED, message)
    whole = not ledger.count(codex.FTS_MISSING, None) and not ledger.count(codex.FTS_EXTRA, None)
    if with_words and ledger.level >= Level.DEFAULT and whole and not _words_agree(db, there):
        ledger.add(codex.FTS_WORDS, tr("the full-text index does not hold the words of the notes"))


def _said(counts: list[int]) -> str:
    rows, *words = counts
    return tr("{rows:,} rows and {words:,} words", rows=rows, words=sum(words))


def _stated(db: apsw.Connection) -> list[int]:
    """Return how many rows the index says that it has, and how many words in each column; none yet is 0."""
    raw = db.execute(f"SELECT block FROM {FULL_TEXT}_data WHERE id = ?", (AVERAGES,)).get
    numbers = list(_numbers(raw)) if isinstance(raw, bytes) else []
    # A count below nothing is a large one as SQLite writes it.
    signed = [number - (1 << 64) if number >= 1 << 63 else number for number in numbers]
    return (signed + [0] * (1 + _COLUMNS))[: 1 + _COLUMNS]


def _there(db: apsw.Connection) -> list[int]:
    """Return how many rows the index has, and how many words in each column, by their own sizes."""
    counts = [0] * (1 + _COLUMNS)
    for (raw,) in db.execute(f"SELECT sz FROM {FULL_TEXT}_docsize"):
        sizes = list(_numbers(raw)) if isinstance(raw, bytes) else []
        for place, number in enumerate((1, *sizes[:_COLUMNS])):
            counts[place] += number
    return counts


def _numbers(raw: bytes) -> Iterator[int]:
    """Yield whole numbers as SQLite packs them: 7 bits in a byte, the highest first; all 8 of a ninth."""
    number = length = 0
    for byte in raw:
        length += 1
        number = number << 8 | byte if length == 9 else number << 7 | byte & 0x7F
        if length == 9 or byte < 0x80:
            yield number
            number = length = 0


def _packed(numbers: list[int]) -> bytes:
    packed = b""
    for number in numbers:
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(number & 0x7F | 0x80)
        packed += bytes(reversed(groups))
    return packed


def _words_agree(db: apsw.Connection, counts: list[int]) -> bool:
    searchable = f"SELECT rowid AS number, title, content FROM main.{NOTES} WHERE searchable = 1"
    return words_agree(db, FULL_TEXT, NOTES, searchable, "title, content", _packed(counts))
