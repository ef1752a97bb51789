"""The books of a base: which of its rows are carried, which without a vector, and why the others are not.

Rules: ``docs/rules.md``, "Rows" and "Texts without a vector".
"""

from __future__ import annotations

from collections import Counter

import msgspec

from migrators.pipeline.ownership import Owners
from regraft.formats import vector_survey
from regraft.formats.cherry_v2.index import BODY_SEPARATOR
from regraft.formats.vector_survey import LoaderRows, Survey, Tally
from regraft.report import notices

#: Examples named for each reason why rows are not carried.
EXAMPLES = 3
#: Why a row has no vector that could be carried; its text can come along by itself.
WITHOUT_VECTOR = frozenset(
    {
        notices.MISSING_MODEL,
        notices.MISSING_STORE,
        notices.MISSING_PAYLOAD,
        notices.UNSUPPORTED_ENCODING,
        notices.DIMENSION_MISMATCH,
        notices.OTHER_EMBEDDER,
        notices.NON_FINITE,
    }
)


class Counts(msgspec.Struct):
    """Rows by reason, with a few of them as examples."""

    rows: Counter[str] = msgspec.field(default_factory=Counter)
    examples: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def add(self, reason: str, tally: Tally) -> None:
        """Count the rows of a tally."""
        if tally.count:
            self.rows[reason] += tally.count
            examples = self.examples.setdefault(reason, [])
            examples.extend(tally.samples[: EXAMPLES - len(examples)])


class CarriedRows(msgspec.Struct):
    """The rows of one loader that are carried: ``whole`` with their vector, ``bare`` without one, and why."""

    loader: LoaderRows
    whole: Tally | None = None
    bare: list[tuple[str, Tally]] = msgspec.field(default_factory=list)

    @property
    def tallies(self) -> list[Tally]:
        """Return all that is carried."""
        return [*([self.whole] if self.whole else ()), *(tally for _, tally in self.bare)]

    @property
    def rows(self) -> int:
        """Return how many rows are carried."""
        return sum(tally.count for tally in self.tallies)

    @property
    def digest(self) -> int:
        """Digest of the rows as carrying reads them: those without a vector count with their texts alone."""
        whole = self.whole.digest if self.whole else 0
        return whole + sum(tally.text_digest for _, tally in self.bare)

    @property
    def first_rowid(self) -> int:
        """Return the first row that is carried."""
        return min(tally.first_rowid for tally in self.tallies)

    @property
    def body_bytes(self) -> int:
        """Return the bytes of the bodies that are carried."""
        return sum(tally.body_bytes for tally in self.tallies)


class CarryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What of a base is carried."""

    #: Why it fails, so that no vector is carried.
    error: str | None
    #: The length of its vectors.
    vector_bytes: int
    #: Whether texts come along whose vector cannot.
    carry_text: bool
    #: The largest text of an item, in bytes.
    max_content: int


class RowAccounting:
    """Every row of a survey, booked once."""

    def __init__(self, survey: Survey, owners: Owners, terms: CarryPolicy) -> None:
        self._owners = owners
        self._terms = terms
        #: What is carried, by the id of the item.
        self.carried: dict[str, list[CarriedRows]] = {}
        self.skipped = Counts()
        #: Carried without a vector, by reason.
        self.bare = Counts()
        self.degenerate = 0
        #: Items whose text cannot be stored, with their rows.
        self.too_large: dict[str, int] = {}
        for loader, rows in survey.loaders.items():
            self._book(loader, rows)
        self._drop_too_large()
        for share in (share for shares in self.carried.values() for share in shares):
            self.degenerate += share.whole.degenerate if share.whole else 0
            for reason, tally in share.bare:
                self.bare.add(reason, tally)

    def _book(self, loader: str | None, rows: LoaderRows) -> None:
        owner, share = self._owners.owner(loader), CarriedRows(rows)
        unowned = self._unowned(loader, owner)
        for reason, tally in rows.refused.items():
            self._book_unusable(reason, tally, share, has_owner=unowned is None and reason in WITHOUT_VECTOR)
        for kind, tally in rows.kinds.items():
            unusable = self._terms.error or unowned or self._unusable(kind)
            if unusable is None:
                share.whole = tally
            else:
                self._book_unusable(unusable, tally, share, has_owner=unowned is None)
        if share.tallies and owner is not None:
            self.carried.setdefault(owner, []).append(share)

    def _book_unusable(self, reason: str, tally: Tally, share: CarriedRows, *, has_owner: bool) -> None:
        """Book rows whose vector is not carried: where texts are, those of an item come along without one."""
        if not self._terms.carry_text or not has_owner:
            self.skipped.add(reason, tally)
            return
        # Without a text there is nothing that a vector could be made of.
        self.skipped.add(reason, tally.without_text)
        if tally.with_text.count:
            share.bare.append((reason, tally.with_text))

    def _unowned(self, loader: str | None, owner: str | None) -> str | None:
        if owner is None:
            return self._owners.skipped_reason(loader) or notices.UNMAPPED_LOADER
        return notices.NON_INDEXABLE if owner in self._owners.containers else None

    def _unusable(self, kind: int) -> str | None:
        if kind == vector_survey.MISSING:
            return notices.MISSING_PAYLOAD
        if kind == vector_survey.UNSUPPORTED:
            return notices.UNSUPPORTED_ENCODING
        if abs(kind) != self._terms.vector_bytes:
            return notices.DIMENSION_MISMATCH
        return notices.NON_FINITE if kind < 0 else None

    def _drop_too_large(self) -> None:
        limit = self._terms.max_content
        for owner in [owner for owner, shares in self.carried.items() if self._content_bytes(shares) > limit]:
            shares = self.carried.pop(owner)
            self.too_large[owner] = sum(share.rows for share in shares)
            for tally in (tally for share in shares for tally in share.tallies):
                self.skipped.add(notices.CONTENT_TOO_LARGE, tally)

    @staticmethod
    def _content_bytes(shares: list[CarriedRows]) -> int:
        separators = len(BODY_SEPARATOR) * (sum(share.rows for share in shares) - 1)
        return sum(share.body_bytes for share in shares) + separators
