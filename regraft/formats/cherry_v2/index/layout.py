"""What the rows of the layout's tables keep, and what fills the columns that a file of an older one lacks.

Rules: ``docs/formats/index.md``, "Tables of version 2".
"""

from __future__ import annotations

import msgspec

#: Stands for the time of the file.
TIME = ":time"


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the layout: its columns, what fills those that an older one lacks, and what its rows must keep."""

    columns: tuple[str, ...]
    #: SQL for a column that is not there.
    fill: dict[str, str]
    #: Columns that may be NULL.
    nullable: tuple[str, ...]
    #: Columns that no two rows may share.
    unique: tuple[tuple[str, ...], ...]
    #: What every row must keep.
    checks: tuple[str, ...] = ()
    #: Tables whose rows mean nothing without this one's.
    needed_by: tuple[str, ...] = ()


#: The tables of the layout but for ``meta`` and the full-text index, in the order of their foreign keys.
TABLES = {
    "content": Table(
        columns=("content_hash", "text", "created_at"),
        fill={"created_at": TIME},
        nullable=("content_hash",),
        unique=(("content_hash",),),
        needed_by=("material", "search_unit"),
    ),
    "material": Table(
        columns=("material_id", "relative_path", "current_content_hash", "created_at", "updated_at"),
        fill={"current_content_hash": "only_hash", "created_at": TIME, "updated_at": TIME},
        nullable=("material_id", "current_content_hash"),
        unique=(("material_id",), ("relative_path",)),
        checks=(
            "relative_path <> '' AND relative_path NOT LIKE '/%'",
            "relative_path <> '.cherry' AND relative_path NOT LIKE '.cherry/%'",
        ),
        needed_by=("search_unit",),
    ),
    "search_unit": Table(
        columns=(
            *("unit_id", "material_id", "content_hash", "unit_type", "unit_index", "title", "char_start", "char_end"),
            *("locator_json", "created_at"),
        ),
        fill={"unit_type": "'chunk'", "title": "NULL", "locator_json": "NULL", "created_at": TIME},
        nullable=("unit_id", "title", "locator_json"),
        unique=(("unit_id",), ("material_id", "unit_type", "unit_index")),
        checks=("unit_type IN ('chunk')", "unit_index >= 0", "char_start >= 0", "char_end >= char_start"),
        needed_by=("search_text",),
    ),
    "search_text": Table(
        columns=("search_text_id", "target_type", "target_id", "kind", "text", "embedding_text_hash", "created_at"),
        fill={"target_type": "'search_unit'", "kind": "'body'", "created_at": TIME},
        nullable=("search_text_id",),
        unique=(("search_text_id",), ("target_type", "target_id", "kind")),
        checks=("target_type IN ('search_unit')", "kind IN ('body')"),
        needed_by=("search_unit", "embedding"),
    ),
    "embedding": Table(
        columns=("embedding_text_hash", "vector_blob", "created_at"),
        fill={"created_at": TIME},
        nullable=("embedding_text_hash",),
        unique=(("embedding_text_hash",),),
        needed_by=("search_text",),
    ),
}
