"""Texts that are about to be indexed, and writing them into a new or an existing index (``docs/indexing.md``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import apsw
import msgspec

from regraft import identity, sqlite
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.index import rebuild
from regraft.formats.cherry_v2.index import units as index_units
from regraft.formats.cherry_v2.index.bulk import IndexBuilder
from regraft.language import tr
from repair.cherry_v2.indexing.cutting import Span

#: Reads a text again, from the index that is changed or from elsewhere; None where it is gone.
Read = Callable[[apsw.Connection], str | None]


class NewText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that is about to be indexed: its material and path, and where it is cut, in UTF-16 units."""

    finding: str
    material: str
    path: str
    content_hash: str
    spans: tuple[Span, ...]
    bytes: int
    read: Read
    #: Whether it comes from another index.
    is_donated: bool = False


class Donated(msgspec.Struct, frozen=True, kw_only=True):
    """The text of an item from another index, and where its units begin and end there."""

    text: str
    spans: list[Span]
    read: Read


class Donor(Protocol):
    """Other indexes that texts are taken from."""

    def text(self, item: Row, raw: Path) -> Donated | None:
        """Return the text of an item; ``raw`` is the folder of the base's raw files. None: the donor has none."""

    def spans(self, content_hash: str) -> list[Span]:
        """Return the places of the units of a text; empty: the donor does not have the text."""


def write_index(
    path: Path,
    base_id: str,
    texts: Iterable[NewText],
    now_ms: int,
    then: Callable[[apsw.Connection], None] = lambda _: None,
) -> None:
    """Write a new index file, whole and without vectors.

    Args:
        path: where no file is yet.
        base_id: the id of the base.
        texts: in the order in which their rows are numbered.
        now_ms: the time of the run.
        then: writes more rows, in a transaction of its own.

    Raises:
        PlanOutdated: a text is another one now.
        apsw.Error, OSError: the file cannot be written.
    """
    with sqlite.writing(path, create=True) as db:
        index = IndexBuilder(db, base_id, now_ms)
        for one in texts:
            index.add_cut(one.material, one.path, _same_text(db, path, one), one.spans)
        index.finish()
        with sqlite.transaction(db):
            then(db)


def write_text(db: apsw.Connection, path: Path, one: NewText, now_ms: int) -> None:
    """Write a text with its material and units into an open index.

    Raises:
        PlanOutdated: it is another one now.
    """
    text = _same_text(db, path, one)
    units = index_units.cut(one.material, text, one.spans)
    # What is left of units that were there: the bodies come again, and their vectors stay.
    db.executemany(
        "DELETE FROM search_text WHERE target_type = 'search_unit' AND target_id = ?",
        ((unit.unit_id,) for unit in units),
    )
    rebuild.rebuild(
        db,
        rebuild.Rebuild(
            material_id=one.material,
            relative_path=one.path,
            content_hash=one.content_hash,
            content=text,
            units=units,
            embeddings={},
            now_ms=now_ms,
            has_model=False,
        ),
    )


def _same_text(db: apsw.Connection, path: Path, one: NewText) -> str:
    text = one.read(db)
    if text is None or identity.text_hash(text) != one.content_hash:
        raise PlanOutdated(path=path, reason=tr("the text of {material} is another one now", material=one.material))
    return text
