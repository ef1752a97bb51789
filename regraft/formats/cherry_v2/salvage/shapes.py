"""What the rows of a v2 index look like, and the keys of its indexes, wherever in a file they are found."""

from __future__ import annotations

import re
from collections.abc import Sequence

from regraft.formats.sqlite_pages import Class, Shape, Value

#: SQLite's limit of a row, in bytes: a content is all of a file's text.
_MOST_BYTES = 1_000_000_000
_HASH = re.compile(rb"[0-9a-f]{64}")
_OPTIONAL_TEXT, _OPTIONAL_INTEGER = Class.TEXT | Class.NULL, Class.INTEGER | Class.NULL

#: Indexes by what their keys tell of a row; the keys that SQLite makes for a table's are those of its first index.
CONTENT_KEY, UNIT_KEY = "sqlite_autoindex_content_1", "sqlite_autoindex_search_unit_1"
BODY_KEY, VECTOR_KEY = "sqlite_autoindex_search_text_1", "sqlite_autoindex_embedding_1"
MATERIAL_KEY, MATERIAL_PATH = "sqlite_autoindex_material_1", "sqlite_autoindex_material_2"
MATERIAL_CONTENT, UNIT_PLACE = "material_content_idx", "search_unit_material_index_idx"
BODY_TARGET, BODY_NUMBER = "search_text_target_kind_idx", "search_text_fts_rowid_uniq"


def is_hash(value: object) -> bool:
    """Tell whether a value has the form of a hash."""
    return isinstance(value, bytes) and _HASH.fullmatch(value) is not None


def _begins_with_hash(values: Sequence[Value]) -> bool:
    return is_hash(values[0])


def _never(_: Sequence[Value]) -> bool:
    """Keys of several indexes look alike: they count only where a tree tells whose they are."""
    return False


def _index(name: str, *columns: Class) -> Shape:
    return Shape(name=name, columns=columns, accepts=_never, is_index=True)


#: The roots are those of files that regraft makes, where no schema tells them.
TABLES = (
    Shape(
        name="meta",
        root=2,
        columns=(Class.INTEGER, Class.INTEGER, Class.TEXT, Class.INTEGER, Class.INTEGER),
        accepts=lambda values: values[0] == 1,
        alias=0,
    ),
    Shape(
        name="content",
        root=3,
        columns=(Class.TEXT, Class.TEXT, Class.INTEGER),
        accepts=_begins_with_hash,
        most_bytes=_MOST_BYTES,
    ),
    Shape(
        name="material",
        root=5,
        columns=(Class.TEXT, Class.TEXT, _OPTIONAL_TEXT, Class.INTEGER, Class.INTEGER),
        accepts=lambda values: values[2] is None or is_hash(values[2]),
    ),
    Shape(
        name="search_unit",
        root=8,
        columns=(
            *(Class.TEXT, Class.TEXT, Class.TEXT, Class.TEXT, Class.INTEGER, _OPTIONAL_TEXT, Class.INTEGER),
            *(Class.INTEGER, _OPTIONAL_TEXT, Class.INTEGER),
        ),
        accepts=_begins_with_hash,
    ),
    # The last two: the number in the full-text index and the time; in a file that was of version 1 the number comes
    # behind the time, or is not there.
    Shape(
        name="search_text",
        root=10,
        columns=(*[Class.TEXT] * 6, _OPTIONAL_INTEGER, _OPTIONAL_INTEGER),
        accepts=_begins_with_hash,
        may_lack=1,
        most_bytes=_MOST_BYTES,
    ),
    Shape(name="embedding", root=12, columns=(Class.TEXT, Class.BLOB, Class.INTEGER), accepts=_begins_with_hash),
)
INDEXES = (
    *(_index(name, Class.TEXT) for name in (CONTENT_KEY, UNIT_KEY, BODY_KEY, VECTOR_KEY, MATERIAL_KEY, MATERIAL_PATH)),
    _index(MATERIAL_CONTENT, _OPTIONAL_TEXT),
    _index(UNIT_PLACE, Class.TEXT, Class.TEXT, Class.INTEGER),
    _index(BODY_TARGET, Class.TEXT, Class.TEXT, Class.TEXT),
    _index(BODY_NUMBER, _OPTIONAL_INTEGER),
)
#: The index whose keys are those of a table's rows, each once.
KEY_OF = {
    "content": CONTENT_KEY,
    "material": MATERIAL_KEY,
    "search_unit": UNIT_KEY,
    "search_text": BODY_KEY,
    "embedding": VECTOR_KEY,
}
