"""What an import of Parquet files can say: one code for each thing, registered here (``docs/codes.md``)."""

from __future__ import annotations

from regraft.language import tr
from regraft.report.registry import register_import

# Rows and items of a Parquet file that are not imported, and what is imported otherwise than it was.
NOT_WHOLE = register_import("row", "warning", "not_whole", tr("The row of the file has no item, text, hash or index."))
TEXT_CHANGED = register_import(
    "row", "warning", "text_changed", tr("The row's text does not match its hash: the vector belongs to another text.")
)
DUPLICATE_ROW = register_import(
    "row", "warning", "duplicate", tr("An earlier row of the file has the same item and index.")
)
NO_BASE = register_import("row", "warning", "no_base", tr("The row is of a base that the file does not describe."))
ITEM_DELETED = register_import("item", "note", "deleted", tr("The item was deleted in the application."))
NOT_AN_ITEM = register_import(
    "item", "warning", "invalid", tr("No catalog would take the item that is in the file, or its folder is missing.")
)
REMADE = register_import(
    "base",
    "warning",
    "material_made_anew",
    tr(
        "Units of a material were not slices of its content: offsets and ids are made anew, each text keeps its vector."
    ),
)
MODEL_NOT_NAMED = register_import(
    "base",
    "warning",
    "model_not_named",
    tr("The file does not say of which model the base's vectors are: the base is complete and stands as failed."),
)
