"""What only a migration of a KB of rsclaw can say: one code for each thing, registered here (``docs/codes.md``)."""

from __future__ import annotations

from regraft.language import tr
from regraft.report.registry import register

# Rows that are not carried, and documents of which none is.
NOT_VISIBLE = register(
    "row",
    "note",
    "not_visible",
    "",
    tr("The document is not for those to whom the new base is visible. `--visible-to` names others."),
)
TOMBSTONED = register(
    "row", "note", "tombstoned", "", tr("The document, or the chunk, was deleted in the application.")
)
UPDATING = register(
    "row",
    "warning",
    "updating",
    "",
    tr("The application was at writing the document anew. Start it, let it finish, and migrate again."),
)
SUPERSEDED = register(
    "row",
    "note",
    "superseded",
    "",
    tr("Another version of the document is in use: a later one, or an earlier one after a rollback."),
)
OTHER_EMBEDDER = register(
    "row",
    "warning",
    "other_embedder",
    "",
    tr(
        "The vector is of another embedder than most of the KB's: in one base the two cannot be compared. "
        "`--carry-text` carries the text."
    ),
)
RANGE_OUTSIDE = register(
    "row",
    "warning",
    "range_outside",
    "",
    tr("The chunk's range is not within the text of its document, which is the one that it was cut from."),
)
ROW_UNREADABLE = register(
    "row",
    "error",
    "row_unreadable",
    "",
    tr("The row, or the document's, is not of the form that the application writes."),
)

# Worth saying about what is carried.
PAGES_DAMAGED = register(
    "base",
    "error",
    "pages_damaged",
    "",
    tr("Pages of the database are damaged: their rows cannot be read, and nobody knows them. A backup may have them."),
)
VISIBILITY_DROPPED = register(
    "base",
    "note",
    "visibility_dropped",
    "",
    tr("v2 has no visibility: whoever opens the base sees these documents, which not everybody saw before."),
)
NOTHING_VISIBLE = register(
    "base",
    "warning",
    "nothing_visible",
    "",
    tr("None of the documents is for those to whom the new base would be visible. `--visible-to` names others."),
)
DOCUMENT_CHANGED = register(
    "item",
    "warning",
    "document_changed",
    "",
    tr(
        "The Markdown file was changed after it was cut into texts: file and texts are carried as they are, and differ."
    ),
)
NOT_INDEXED = register(
    "item",
    "warning",
    "document_without_rows",
    "",
    tr("No chunk of the document is carried. Its item is marked failed; indexing it again in the application helps."),
)
