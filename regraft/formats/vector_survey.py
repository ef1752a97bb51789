"""Results of a survey of a vector file: rows grouped by loader and by vector kind, and totals of a salvage.

:mod:`regraft.formats.vector_table` makes the surveys. A loader is one ingestion run of one v1 item; in the preview
layout it is the item itself. Salvage: ``docs/salvage.md``.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec

from regraft.language import tr
from regraft.text import decode_utf8, is_blank

#: The command-line option that enables salvage.
SALVAGE_OPTION = "--salvage"


class SalvageTally(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the salvage of a damaged vector file.

    Attributes:
        problem: error that SQLite reports for the file.
        rows: rows that were verified.
        about: estimated number of rows before the damage.
        is_exact: an intact index lists all rows, so gaps in the numbering of a loader's rows are not losses.
        refused: rows that could not be verified, by reason code.
        weaker: verified rows that the tree of the table does not reach, by how they were found.
        deleted: remains of rows that had been deleted.
        pages: pages of the file; ``pages_read`` counts those whose content is known.
        page_bytes: size of a page in bytes.
        is_carried: the rows are migrated, not only counted.
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
        """Message that says how many rows ``--salvage`` can recover."""
        if not self.rows:
            return tr("none of its rows (about {about:,}) can be salvaged", about=self.about)
        return tr(
            "{option} can salvage {rows:,} of about {about:,} rows",
            rows=self.rows,
            about=self.about,
            option=SALVAGE_OPTION,
        )


T = TypeVar("T")
#: Row ids kept as examples for each loader and vector kind.
MAX_SAMPLES = 3
#: Distinct sources tracked per loader. A file has one source, a sitemap has one per page.
MAX_SOURCES = 1_000

#: Digests of a row: with its vector, and of its text alone.
RowDigests: TypeAlias = tuple[int, int]

#: Kinds of a row's vector: its length in bytes, minus its length if it contains a NaN or an infinity
#: (:func:`non_finite_kind`), or one of these two.
MISSING = -1
UNSUPPORTED = -2


def non_finite_kind(length: int) -> int:
    """Return the kind of a vector of ``length`` bytes that contains a NaN or an infinity."""
    return -length


class StoreProblem(Exception):
    """A vector file that cannot be used. The message gives the reason.

    Attributes:
        vector_bytes: length of its vectors, if known.
        is_damage: the file was a vector file and is damaged.
        may_be_damage: either the schema is damaged or this is another kind of file; only the rows can tell.
        salvage: what can be salvaged, if that was determined.
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
    """Totals of the rows of one loader that have the same vector kind or the same reason."""

    count: int = 0
    first_rowid: int = 0
    degenerate: int = 0
    #: Total bytes of the texts.
    body_bytes: int = 0
    #: Sums of row digests (:mod:`regraft.formats.table_integrity`): with vectors, and of the texts alone. The second
    #: one is computed only on request.
    digest: int = 0
    text_digest: int = 0
    samples: list[str] = msgspec.field(default_factory=list)
    #: Rows whose text is NULL, empty or white space. Only counted on request.
    blank: RowTally | None = None
    #: Row id of the first row with a text. Only determined on request.
    first_text: int | None = None

    def add(self, body_bytes: int, digests: RowDigests) -> None:
        """Count one row with the size of its text and its digests: with its vector, and of its text alone."""
        self.count += 1
        self.body_bytes += body_bytes
        self.digest += digests[0]
        self.text_digest += digests[1]

    @property
    def with_text(self) -> RowTally:
        """Totals of the rows that have a text."""
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
        """Totals of the rows that have no text."""
        return RowTally() if self.blank is None else self.blank


class LoaderRows(msgspec.Struct):
    """Rows of one loader in a vector file."""

    rows: int = 0
    #: The last distinct source, in row order, that is a text and not blank: of A, B, A it is B.
    source: str | None = None
    #: Highest n of the row ids ``<loader id>_<n>``, or -1.
    highest_number: int = -1
    #: By vector kind: a length in bytes, a negative length if numbers are not finite, :data:`MISSING` or
    #: :data:`UNSUPPORTED`.
    kinds: dict[int, RowTally] = msgspec.field(default_factory=dict)
    #: By reason code: rows that are not migrated, whatever their vector.
    refused: dict[str, RowTally] = msgspec.field(default_factory=dict)
    #: First and last row id of each run of consecutive rows of this loader, as a flat array.
    runs: array[int] = msgspec.field(default_factory=lambda: array("q"))
    _last_source: bytes | None = None
    #: Hashes of earlier sources, kept only from the second source on: there may be a million loaders.
    _sources: set[bytes] | None = None

    def update_source(self, raw: bytes | None) -> None:
        """Update ``source`` with the raw source of the next row. Repeating the previous bytes costs nothing."""
        if raw is None or raw == self._last_source:
            return
        before, self._last_source = self._last_source, raw
        if before is not None:
            if self._sources is None:
                self._sources = {_source_hash(before)}
            key = _source_hash(raw)
            if key in self._sources:
                return
            if len(self._sources) < MAX_SOURCES:
                self._sources.add(key)
        text = decode_utf8(raw)
        if not is_blank(text):
            self.source = text


def _source_hash(source: bytes) -> bytes:
    """Return a short hash of a source, to recognize it again."""
    return hashlib.blake2b(source, digest_size=16).digest()


class VectorSurvey(msgspec.Struct):
    """Contents of a vector file: rows by loader, and the lengths of its vectors."""

    rows: int = 0
    #: By loader id; None for rows whose loader id is not a text.
    loaders: dict[str | None, LoaderRows] = msgspec.field(default_factory=dict)
    #: Number of vectors by length in bytes, finite or not, in the order of their first rows.
    lengths: dict[int, int] = msgspec.field(default_factory=dict)
    body_bytes: int = 0
    #: Totals of the salvage if the file is damaged, else None.
    salvage: SalvageTally | None = None

    @property
    def vector_bytes(self) -> int | None:
        """The most common vector length in bytes; in a tie, that of the earliest row. None without vectors."""
        return max(self.lengths, key=self.lengths.__getitem__) if self.lengths else None

    @property
    def is_partial(self) -> bool:
        """Whether the file was salvaged, and rows may be lost of which no trace is left."""
        tally = self.salvage
        if tally is None or tally.is_exact:
            return False
        return tally.rows < tally.about or tally.pages_read < tally.pages


class Surveyor:
    """Builds a survey row by row: call :meth:`start_row`, then one of the other methods, for each row.

    Args:
        found: the survey to fill.
        number: parses a chunk number from a row id and its loader id; None if no numbers are wanted.
    """

    def __init__(self, found: VectorSurvey, number: Callable[[bytes, bytes], int] | None) -> None:
        self._found = found
        self._number = number
        self._by_id: dict[bytes | None, LoaderRows] = {}
        self._loader_id: bytes | None = None
        self._loader: LoaderRows | None = None
        self._row_id: bytes | None = None
        #: Less than every row id.
        self._last = -(1 << 63) - 1

    def start_row(self, rowid: int, loader_id: bytes | None, source: bytes | None, row_id: bytes | None) -> None:
        """Begin the next row of the table: update the loader that it belongs to.

        Args:
            rowid: SQLite's row id; must ascend.
            loader_id: id of the loader, or None.
            source: source of the row, or None.
            row_id: the row's own id in the application, or None.

        Raises:
            StoreProblem: the row ids do not ascend.
        """
        if self._loader is None or loader_id != self._loader_id:
            self._loader_id = loader_id
            if loader_id not in self._by_id:
                # Two ids that are invalid UTF-8 may decode to the same text; their rows are counted as one loader's.
                text = None if loader_id is None else decode_utf8(loader_id)
                self._by_id[loader_id] = self._found.loaders.setdefault(text, LoaderRows())
            self._loader = self._by_id[loader_id]
            self._loader.runs.extend((rowid, rowid))
        if rowid <= self._last:
            # Ranges of row ids would no longer select these rows.
            raise StoreProblem(tr("cannot be read: its rows are out of order"), is_damage=True)
        self._last = rowid
        self._row_id = row_id
        loader = self._loader
        loader.runs[-1] = rowid
        loader.rows += 1
        loader.update_source(source)
        if self._number is not None and row_id is not None and loader_id is not None:
            loader.highest_number = max(loader.highest_number, self._number(row_id, loader_id))
        self._found.rows += 1

    def count_vector(self, rowid: int, kind: int, body_bytes: int, degenerate: bool, digests: RowDigests) -> RowTally:
        """Count the current row by the kind of its vector, and return the tally that it was added to.

        Args:
            rowid: SQLite's row id.
            kind: :data:`MISSING`, :data:`UNSUPPORTED`, or a length in bytes, negative if a number is not finite.
            body_bytes: length of the text.
            degenerate: whether the vector has no usable norm.
            digests: digests of the row.
        """
        assert self._loader is not None
        tally = self._count_row(self._loader.kinds, kind, rowid, body_bytes, digests)
        tally.degenerate += degenerate
        if kind not in (MISSING, UNSUPPORTED):
            self._found.lengths[abs(kind)] = self._found.lengths.get(abs(kind), 0) + 1
        return tally

    def count_refused(self, rowid: int, reason: str, body_bytes: int, digests: RowDigests) -> RowTally:
        """Count the current row as not migrated for a reason code, and return the tally that it was added to."""
        assert self._loader is not None
        return self._count_row(self._loader.refused, reason, rowid, body_bytes, digests)

    def _count_row(
        self, tallies: dict[T, RowTally], key: T, rowid: int, body_bytes: int, digests: RowDigests
    ) -> RowTally:
        """Count the current row in the tally for its vector kind or reason code, and keep samples of row names.

        Args:
            tallies: tallies of the loader by vector kind or reason code.
            key: the vector kind or reason code.
            rowid: SQLite's row id.
            body_bytes: length of the text.
            digests: digests of the row.
        """
        tally = tallies.get(key)
        if tally is None:
            tally = tallies[key] = RowTally(first_rowid=rowid)
        tally.add(body_bytes, digests)
        if len(tally.samples) < MAX_SAMPLES:
            tally.samples.append(self._name(rowid))
        self._found.body_bytes += body_bytes
        return tally

    def record_text(
        self, tally: RowTally, rowid: int, body_bytes: int, degenerate: bool, digests: RowDigests, *, is_there: bool
    ) -> None:
        """Record in the tally of the current row whether the row has a text (``is_there``).

        The other arguments are those of :meth:`count_vector`.
        """
        if is_there:
            tally.first_text = rowid if tally.first_text is None else tally.first_text
            return
        blank = tally.blank = tally.blank or RowTally(first_rowid=rowid)
        blank.add(body_bytes, digests)
        blank.degenerate += degenerate
        if len(blank.samples) < MAX_SAMPLES:
            blank.samples.append(self._name(rowid))

    def _name(self, rowid: int) -> str:
        """Name the current row for messages."""
        return decode_utf8(self._row_id) if self._row_id else f"rowid {rowid}"
