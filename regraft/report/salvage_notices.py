"""What only the salvage of a damaged vector file can say, one code for each thing (``docs/codes.md``)."""

from __future__ import annotations

from regraft.language import tr
from regraft.report.registry import register

_FINDING = "v1.unreadable"

# Rows that are not carried: they were there, and do not prove themselves.
ROW_LOST = register(
    "row",
    "warning",
    "row_lost",
    _FINDING,
    tr("Of the row only its key is left in the damaged vector file; its text and its vector are gone."),
)
ROW_BROKEN = register(
    "row",
    "warning",
    "row_broken",
    _FINDING,
    tr("Parts of the row are gone or are another row's: the pages that it goes on in do not hold together."),
)
ROW_UNPROVEN = register(
    "row",
    "warning",
    "row_unproven",
    _FINDING,
    tr("Of what is left, the row's id, loader, source, text or metadata is not as v1 writes it, or they disagree."),
)
VECTOR_UNPROVEN = register(
    "row",
    "warning",
    "vector_unproven",
    _FINDING,
    tr("Of what is left, the row's vector is not of the length, or of the norm, that the base's others have."),
)
ROW_CONTRADICTED = register(
    "row",
    "warning",
    "row_contradicted",
    _FINDING,
    tr("The row can be read in two ways, or an index of the damaged file says something else of it."),
)

# What is said of the source, the base and its items.
ARCHIVE_SALVAGED = register(
    "run",
    "warning",
    "archive_salvaged",
    _FINDING,
    tr(
        "The zip archive is damaged. With `--salvage` its members were read by their own headers, and only those that "
        "are whole by their checksums. What the others held is missing."
    ),
)
SALVAGED = register(
    "base",
    "warning",
    "salvaged",
    _FINDING,
    tr(
        "The base's vector file is damaged. With `--salvage` it was read page by page, and every row that proves "
        "itself was carried. A backup may have the others."
    ),
)
ROWS_LOST = register(
    "item",
    "warning",
    "rows_lost",
    _FINDING,
    tr(
        "Rows of the item were lost with the damaged part of the vector file. Indexing it again in v2 brings them back."
    ),
)
