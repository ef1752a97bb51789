"""What a survey of a vector file keeps: rows by loader and by kind of vector (:mod:`regraft.formats.vector_table`)."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec

from regraft.language import tr
from regraft.text import decode_utf8, is_blank

# What a salvage of a damaged vector file comes to, in numbers (``docs/salvage.md``, "What is said").


#: The option that asks for it.
SALVAGE_OPTION = "--salvage"


class SalvageTally(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a damaged vector file.

    Attributes:
        problem: why SQLite does not read it, for a person.
        rows: rows that prove themselves.
        about: rows that there were, as far as what is left tells.
        is_exact: whether an index that is whole tells all rows: then holes in the numbers of a loader are no losses.
        refused: rows that do not prove themselves, by the code of the reason.
        weaker: rows that prove themselves and are not reached from the root of their table, by how they were found.
        deleted: rows that were left of what had been deleted.
        pages: pages of the file; ``pages_read`` are those of which it is known what they hold.
        page_bytes: the length of a page.
        is_carried: whether the rows are wanted, and not only counted.
    """

    problem: str = ""
    rows: int
    about: int
    is_exact: bool = False
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    weaker: dict[str, int] = msgspec.field(default_factory=dict)
    deleted: int = 0
    pages: int = 0
    pages_read: int = 0
    page_bytes: int = 0
    is_carried: bool = False

    @property
    def offer(self) -> str:
        """Return what to say to who did not ask for it, or asked in vain."""
        if not self.rows:
            return tr("none of about {about:,} rows can be salvaged", about=self.about)
        return tr(
            "{rows:,} of about {about:,} rows can be salvaged with {option}",
            rows=self.rows,
            about=self.about,
            option=SALVAGE_OPTION,
        )


T = TypeVar("T")
#: Row ids kept as examples for each loader and kind of vector.
MAX_SAMPLES = 3
#: Different sources of one loader that are told apart; of a file there is one, of a sitemap one for every page.
MAX_SOURCES = 1_000

#: The digests of a row: with its vector, and with its text alone.
RowDigests: TypeAlias = tuple[int, int]

#: Kinds of a row's vector: the length in bytes of a usable one, that of one with a NaN or an infinity
#: (:func:`non_finite`), or one of these.
MISSING = -1
UNSUPPORTED = -2


def non_finite_kind(length: int) -> int:
    """Return the kind of a vector of ``length`` bytes that holds a NaN or an infinity."""
    return -length


class StoreProblem(Exception):
    """A vector file that cannot be used; the text says why, for a person.

    ``vector_bytes`` is the length of its vectors where that is known all the same. ``is_damage`` tells that it was one
    and is damaged, ``may_be_damage`` that only its rows tell whether it is another kind of file, or its schema is
    damaged. ``salvage`` is what is left of it, where somebody looked.
    """

    def __init__(
        self,
        why: str,
        vector_bytes: int | None = None,
        *,
        is_damage: bool = False,
        may_be_damage: bool = False,
        salvage: SalvageTally | None = None,
    ) -> None:
        super().__init__(why)
        self.vector_bytes = vector_bytes
        self.is_damage = is_damage
        self.may_be_damage = may_be_damage
        self.salvage = salvage


class RowTally(msgspec.Struct):
    """Rows of one loader whose vectors are of one kind."""

    count: int = 0
    first_rowid: int = 0
    degenerate: int = 0
    #: Bytes of the bodies.
    body_bytes: int = 0
    #: Over the rows with their vectors, and with their texts alone (:mod:`regraft.formats.table_integrity`). The latter only
    #: where texts were asked for.
    digest: int = 0
    text_digest: int = 0
    samples: list[str] = msgspec.field(default_factory=list)
    #: Those of these rows that have no text: NULL, empty or white space only. Only known where it was asked for.
    blank: RowTally | None = None
    #: The first row that has one; likewise.
    first_text: int | None = None

    def add(self, body_bytes: int, digests: RowDigests) -> None:
        """Count one row."""
        self.count += 1
        self.body_bytes += body_bytes
        self.digest += digests[0]
        self.text_digest += digests[1]

    @property
    def with_text(self) -> RowTally:
        """Return the rows of these that have a text."""
        if self.blank is None:
            return self
        return RowTally(
            count=self.count - self.blank.count,
            first_rowid=self.first_rowid if self.first_text is None else self.first_text,
            degenerate=self.degenerate - self.blank.degenerate,
            body_bytes=self.body_bytes - self.blank.body_bytes,
            digest=self.digest - self.blank.digest,
            text_digest=self.text_digest - self.blank.text_digest,
            samples=[sample for sample in self.samples if sample not in self.blank.samples],
        )

    @property
    def without_text(self) -> RowTally:
        """Return the rows of these that have none."""
        return RowTally() if self.blank is None else self.blank


class LoaderRows(msgspec.Struct):
    """What a vector file holds of one loader."""

    rows: int = 0
    #: The last that came up of the different sources, in row order, that are text and not blank (A, B, A: B).
    source: str | None = None
    #: The highest number in a row id ``<loader id>_<n>``, -1 where there is none.
    highest_number: int = -1
    #: By kind: a usable length in bytes, one below 0 where the numbers are not finite, :data:`MISSING` or
    #: :data:`UNSUPPORTED`.
    kinds: dict[int, RowTally] = msgspec.field(default_factory=dict)
    #: By reason: rows that are not carried, whatever their vector.
    refused: dict[str, RowTally] = msgspec.field(default_factory=dict)
    #: First and last rowid of every run of rows without another loader's between them, flat.
    runs: array[int] = msgspec.field(default_factory=lambda: array("q"))
    _last_source: bytes | None = None
    #: Marks of the sources before, once there is more than one: there may be a million loaders.
    _sources: set[bytes] | None = None

    def see_source(self, raw: bytes | None) -> None:
        """Take a row's source into account; the same bytes as the row before cost nothing."""
        if raw is None or raw == self._last_source:
            return
        before, self._last_source = self._last_source, raw
        if before is not None:
            if self._sources is None:
                self._sources = {_mark(before)}
            mark = _mark(raw)
            if mark in self._sources:
                return
            if len(self._sources) < MAX_SOURCES:
                self._sources.add(mark)
        text = decode_utf8(raw)
        if not is_blank(text):
            self.source = text


def _mark(source: bytes) -> bytes:
    return hashlib.blake2b(source, digest_size=16).digest()


class VectorSurvey(msgspec.Struct):
    """What a vector file holds: rows by loader, and the lengths of all usable vectors."""

    rows: int = 0
    #: By loader id; None for rows whose loader id is no text.
    loaders: dict[str | None, LoaderRows] = msgspec.field(default_factory=dict)
    #: Usable vectors by length in bytes, whatever their numbers, in the order of their first rows.
    lengths: dict[int, int] = msgspec.field(default_factory=dict)
    body_bytes: int = 0
    #: What was salvaged of a damaged file, None of one that SQLite reads.
    salvage: SalvageTally | None = None

    @property
    def vector_bytes(self) -> int | None:
        """Return the length in bytes that most usable vectors have (a tie goes to the first row), or None."""
        return max(self.lengths, key=self.lengths.__getitem__) if self.lengths else None


class Surveyor:
    """Takes one row after the other into a survey."""

    def __init__(self, found: VectorSurvey, number: Callable[[bytes, bytes], int] | None) -> None:
        self._found = found
        self._number = number
        self._by_key: dict[bytes | None, LoaderRows] = {}
        self._key: bytes | None = None
        self._loader: LoaderRows | None = None
        self._row_id: bytes | None = None
        #: Below every row number.
        self._last = -(1 << 63) - 1

    def row(self, rowid: int, key: bytes | None, source: bytes | None, row_id: bytes | None) -> None:
        """Count a row; its vector follows."""
        if self._loader is None or key != self._key:
            self._key = key
            self._loader = self._loader_of(key)
            self._loader.runs.extend((rowid, rowid))
        if rowid <= self._last:
            # Ranges of rowids would then name other rows than these.
            raise StoreProblem(tr("cannot be read: its rows are out of order"), is_damage=True)
        self._last = rowid
        self._row_id = row_id
        loader = self._loader
        loader.runs[-1] = rowid
        loader.rows += 1
        loader.see_source(source)
        if self._number is not None and row_id is not None and key is not None:
            loader.highest_number = max(loader.highest_number, self._number(row_id, key))
        self._found.rows += 1

    def vector(self, rowid: int, kind: int, body_bytes: int, degenerate: bool, digests: RowDigests) -> RowTally:
        """Count the row's vector, and return where."""
        assert self._loader is not None
        tally = self._counted(self._loader.kinds, kind, rowid, body_bytes, digests)
        tally.degenerate += degenerate
        if kind not in (MISSING, UNSUPPORTED):
            self._found.lengths[abs(kind)] = self._found.lengths.get(abs(kind), 0) + 1
        return tally

    def refused(self, rowid: int, reason: str, body_bytes: int, digests: RowDigests) -> RowTally:
        """Count a row that is not carried, and return where."""
        assert self._loader is not None
        return self._counted(self._loader.refused, reason, rowid, body_bytes, digests)

    def _counted(
        self, tallies: dict[T, RowTally], key: T, rowid: int, body_bytes: int, digests: RowDigests
    ) -> RowTally:
        tally = tallies.get(key)
        if tally is None:
            tally = tallies[key] = RowTally(first_rowid=rowid)
        tally.add(body_bytes, digests)
        if len(tally.samples) < MAX_SAMPLES:
            tally.samples.append(self._name(rowid))
        self._found.body_bytes += body_bytes
        return tally

    def text(
        self, tally: RowTally, rowid: int, body_bytes: int, degenerate: bool, digests: RowDigests, *, is_there: bool
    ) -> None:
        """Tell rows without a text from the others."""
        if is_there:
            tally.first_text = rowid if tally.first_text is None else tally.first_text
            return
        blank = tally.blank = tally.blank or RowTally(first_rowid=rowid)
        blank.add(body_bytes, digests)
        blank.degenerate += degenerate
        if len(blank.samples) < MAX_SAMPLES:
            blank.samples.append(self._name(rowid))

    def _name(self, rowid: int) -> str:
        """Return what a person calls the row."""
        return decode_utf8(self._row_id) if self._row_id else f"rowid {rowid}"

    def _loader_of(self, key: bytes | None) -> LoaderRows:
        if key not in self._by_key:
            # Two ids of invalid UTF-8 may decode to one text: their rows then count as one loader's.
            text = None if key is None else decode_utf8(key)
            self._by_key[key] = self._found.loaders.setdefault(text, LoaderRows())
        return self._by_key[key]
