"""What a row of a v1 vector file says for itself, and what it looks like (``docs/salvage.md``, "What proves a row")."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from regraft.formats import json_text
from regraft.formats.cherry_v1.embedjs import chunk_number
from regraft.formats.sqlite_pages import Class, FoundRow, Shape, Text, Value
from regraft.formats.vector_proof import NO_MEASURES, Measures, measures_of
from regraft.report import salvage_notices
from regraft.text import decode_utf8, is_blank

#: Names of indexes that SQLite makes for the keys of the table, by what they are on.
ID_INDEX, TEXT_INDEX = "sqlite_autoindex_vectors_1", "sqlite_autoindex_vectors_2"
_ROW_ID = re.compile(rb"(?s)(.+)_(0|[1-9][0-9]{0,14})")
_LOADER_ID = re.compile(rb"[A-Z][A-Za-z]*Loader_[0-9a-f]{32}")
_IMAGE = b"ImageLoader_"
_HASH_BYTES = 16
#: A part of a text is taken for a filling from twice this length on, where it repeats no more than so many bytes.
_WINDOW, _MOST_PERIOD = 128, 16


def _is_row(values: Sequence[Value]) -> bool:
    row_id, loader = values[0], values[2]
    return isinstance(row_id, Text) and isinstance(loader, Text) and chunk_number(row_id, loader) >= 0


def is_row_id(value: Value) -> bool:
    """Tell whether a value has the form of a row's id, ``<loader id>_<n>`` of a loader that hashes what it read."""
    found = _ROW_ID.fullmatch(value) if isinstance(value, Text) else None
    return found is not None and _LOADER_ID.fullmatch(found[1]) is not None


#: The table and its two indexes as v1's writer makes them; their roots are where it puts them.
_OPTIONAL_TEXT = Class.TEXT | Class.NULL
SHAPES = (
    Shape(
        name="vectors",
        columns=(Class.TEXT, Class.TEXT, Class.TEXT, Class.TEXT, Class.BLOB | Class.NULL, _OPTIONAL_TEXT),
        accepts=_is_row,
        root=2,
    ),
    Shape(name=ID_INDEX, columns=(Class.TEXT,), accepts=lambda key: is_row_id(key[0]), is_index=True, root=3),
    Shape(name=TEXT_INDEX, columns=(Class.TEXT,), accepts=lambda key: not is_row_id(key[0]), is_index=True, root=4),
)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A row as it was found, and what it says for itself.

    Attributes:
        reason: why it does not prove itself, None where it does as far as it alone can tell.
        needs_key: whether only the index on the texts can prove its text, which does not look like one.
        is_named: whether its last column names the row: then its overflow chain is its own.
        measures: of its vector, as far as it is one.
    """

    row_id: bytes | None
    loader: bytes | None
    source: bytes | None
    text: bytes | None
    vector: bytes | None
    metadata: bytes | None
    reason: str | None = None
    needs_key: bool = False
    is_named: bool = False
    measures: Measures = NO_MEASURES

    @property
    def digest(self) -> bytes:
        """Return a hash over all values."""
        values = (self.row_id, self.loader, self.source, self.text, self.vector, self.metadata)
        return hash_of(b"".join(b"-" if one is None else b"%d:%s" % (len(one), one) for one in values))


def hash_of(raw: bytes) -> bytes:
    """Return a short hash, by which texts are compared."""
    return blake2b(raw, digest_size=_HASH_BYTES).digest()


def loader_of(row_id: bytes) -> bytes:
    """Return the loader id in a row's id."""
    return row_id.rpartition(b"_")[0]


def claim_of(row: FoundRow, known: Collection[bytes]) -> Claim:
    """Return what a row says for itself.

    Args:
        row: a row of the table, whose chain is not broken.
        known: loader ids that the state of v1 names.
    """
    row_id, text, loader, source, vector, metadata = (
        bytes(value) if isinstance(value, bytes) else None for value in row.values
    )
    said = _said(metadata, row_id, loader, source)
    reason = None
    if said is None or not _is_form(row_id, loader, source, known):
        reason = salvage_notices.ROW_UNPROVEN
    measures = measures_of(vector) or NO_MEASURES
    # Zeros are written too, and left by damage: only what stands around them tells that it is none.
    if measures is NO_MEASURES or (not measures.norm and not said):
        reason = reason or salvage_notices.VECTOR_UNPROVEN
    return Claim(
        row_id=row_id,
        loader=loader,
        source=source,
        text=text,
        vector=vector,
        metadata=metadata,
        reason=reason,
        needs_key=text is None or not _is_text(text),
        is_named=bool(said),
        measures=measures,
    )


def _is_form(row_id: bytes | None, loader: bytes | None, source: bytes | None, known: Collection[bytes]) -> bool:
    """Tell whether id, loader id and source are as v1 writes them."""
    if row_id is None or loader is None or source is None or not is_plain(source):
        return False
    found = _ROW_ID.fullmatch(row_id)
    if found is None or found[1] != loader:
        return False
    if loader in known or _LOADER_ID.fullmatch(loader):
        return True
    # An EPUB's loader id is its path, an image's holds it.
    return bool(source) and loader in (source, _IMAGE + source)


def is_plain(raw: bytes) -> bool:
    """Tell whether a text is UTF-8 without the character NUL, which damage leaves."""
    if b"\0" in raw:
        return False
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_text(raw: bytes) -> bool:
    return is_plain(raw) and not is_blank(raw.decode()) and not _is_filled_in(raw)


def _is_filled_in(raw: bytes) -> bool:
    """Tell whether a part of a text is one short pattern over and over, as copies of broken disks are filled."""
    windows = (raw[at : at + _WINDOW] for at in range(0, len(raw) - _WINDOW + 1, _WINDOW))
    return any(one[period:] == one[:-period] for one in windows for period in range(1, _MOST_PERIOD + 1))


def _said(metadata: bytes | None, row_id: bytes | None, loader: bytes | None, source: bytes | None) -> bool | None:
    """Return whether the last column names the row; None where it names another one, or is no JSON object."""
    if metadata is None:
        return False
    if b"\0" in metadata:
        return None
    try:
        found: Any = json_text.loads(metadata)
    except json_text.JsonProblem:
        return None
    if not isinstance(found, dict):
        return None
    for key, value in (("id", row_id), ("uniqueLoaderId", loader), ("source", source)):
        said = found.get(key)
        if isinstance(said, str) and said != (None if value is None else decode_utf8(value)):
            # What is half a character there is U+FFFD in the column.
            whole = said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if value is None or whole != decode_utf8(value):
                return None
    return isinstance(found.get("id"), str)
