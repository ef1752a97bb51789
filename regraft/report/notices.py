"""What a run can say about a base, an item or rows: one code for each thing, registered here.

Codes are part of the output contract and never change. ``docs/codes.md`` is generated from this registry.
"""

from __future__ import annotations

from regraft.language import tr
from regraft.report import salvage_notices as salvage_notices
from regraft.report.import_notices import DUPLICATE_ROW as DUPLICATE_ROW
from regraft.report.import_notices import ITEM_DELETED as ITEM_DELETED
from regraft.report.import_notices import MODEL_NOT_NAMED as MODEL_NOT_NAMED
from regraft.report.import_notices import NO_BASE as NO_BASE
from regraft.report.import_notices import NOT_AN_ITEM as NOT_AN_ITEM
from regraft.report.import_notices import NOT_WHOLE as NOT_WHOLE
from regraft.report.import_notices import REMADE as REMADE
from regraft.report.import_notices import TEXT_CHANGED as TEXT_CHANGED
from regraft.report.kb_notices import DOCUMENT_CHANGED as DOCUMENT_CHANGED
from regraft.report.kb_notices import NOT_INDEXED as NOT_INDEXED
from regraft.report.kb_notices import NOT_VISIBLE as NOT_VISIBLE
from regraft.report.kb_notices import NOTHING_VISIBLE as NOTHING_VISIBLE
from regraft.report.kb_notices import OTHER_EMBEDDER as OTHER_EMBEDDER
from regraft.report.kb_notices import PAGES_DAMAGED as PAGES_DAMAGED
from regraft.report.kb_notices import RANGE_OUTSIDE as RANGE_OUTSIDE
from regraft.report.kb_notices import ROW_UNREADABLE as ROW_UNREADABLE
from regraft.report.kb_notices import SUPERSEDED as SUPERSEDED
from regraft.report.kb_notices import TOMBSTONED as TOMBSTONED
from regraft.report.kb_notices import UPDATING as UPDATING
from regraft.report.kb_notices import VISIBILITY_DROPPED as VISIBILITY_DROPPED
from regraft.report.orphan_notices import ADOPTED as ADOPTED
from regraft.report.orphan_notices import LOST_STATE as LOST_STATE
from regraft.report.orphan_notices import NOT_ADOPTED as NOT_ADOPTED
from regraft.report.orphan_notices import UNNAMED_VECTORS as UNNAMED_VECTORS
from regraft.report.registry import CODES as CODES
from regraft.report.registry import EVERY_CODE as EVERY_CODE
from regraft.report.registry import IMPORT_CODES as IMPORT_CODES
from regraft.report.registry import Notice as Notice
from regraft.report.registry import Severity as Severity
from regraft.report.registry import at_least as at_least
from regraft.report.registry import register

# Bases that are not migrated.
INVALID_BASE = register(
    "base",
    "warning",
    "invalid_knowledge_base_identity",
    "v1.base",
    tr("The base has no id, or no name. It is not migrated."),
)
DUPLICATE_BASE = register(
    "base",
    "warning",
    "duplicate_knowledge_base",
    "v1.base",
    tr("A base with this id came before; this one and its items are skipped."),
)
PENDING_DELETE = register(
    "base",
    "note",
    "pending_delete",
    "v1.pending-delete",
    tr("v1 was going to delete this base at its next start; it does not come back to life."),
)

# Bases that are migrated without their vectors.
MISSING_MODEL = register(
    "base",
    "error",
    "missing_embedding_model",
    "v1.model",
    tr(
        "The base's embedding model no longer exists. The base migrates as failed with its "
        "items, without its rows. `--map-model` or `--recreate-model` carries them."
    ),
)
MISSING_STORE = register(
    "base",
    "error",
    "missing_vector_store",
    "v1.no-vectors",
    tr(
        "The base's vector file is missing, cannot be read, or has no usable vector. The base "
        "migrates as failed with its items, without an index."
    ),
)

CURRENT_LAYOUT = register(
    "base",
    "note",
    "current_layout",
    "v1.base",
    tr("The base is in the v2 layout already. It needs no migration and stays where it is."),
)

# Items that are not migrated.
NO_ID_OR_TYPE = register(
    "item", "warning", "knowledge_item_missing_id_or_type", "v1.item", tr("The item has no id or no type.")
)
UNSUPPORTED_TYPE = register(
    "item",
    "warning",
    "knowledge_item_unsupported_type",
    "v1.item",
    tr("v2 has no place for items of this type (memory, video…)."),
)
DUPLICATE_ITEM = register(
    "item", "warning", "duplicate_knowledge_item", "v1.item", tr("An item with this id was migrated before.")
)
INVALID_FILE = register(
    "item",
    "warning",
    "knowledge_item_invalid_file",
    "v1.item",
    tr("The file's metadata is incomplete and `files` cannot complete it."),
)
INVALID_URL = register("item", "warning", "knowledge_item_invalid_url", "v1.item", tr("The url is blank or not text."))
INVALID_SITEMAP = register(
    "item", "warning", "knowledge_item_invalid_sitemap", "v1.item", tr("The address is blank or not text.")
)
INVALID_NOTE = register(
    "item", "warning", "knowledge_item_invalid_note", "v1.item", tr("The note has neither text nor source URL.")
)
INVALID_DIRECTORY = register(
    "item", "warning", "knowledge_item_invalid_directory", "v1.item", tr("The folder's path is blank or not text.")
)

ITEM_DELETING = register(
    "item",
    "note",
    "item_deleting",
    "v1.pending-delete",
    tr("You deleted the item, and the application had not cleared it away yet."),
)

# Rows that are not carried. MISSING_MODEL and MISSING_STORE are reasons too.
UNMAPPED_LOADER = register(
    "row", "note", "unmapped_loader", "v1.unmapped", tr("No item owns the row: it was left of an item that is gone.")
)
NON_INDEXABLE = register(
    "row",
    "note",
    "non_indexable_container",
    "v1.folder",
    tr("The row belongs to a folder that stayed one item, which holds no vectors."),
)
MISSING_PAYLOAD = register(
    "row",
    "warning",
    "missing_vector_payload",
    "v1.unusable-vector",
    tr("The row has no vector (NULL or empty). `--carry-text` carries its text, if any."),
)
UNSUPPORTED_ENCODING = register(
    "row",
    "warning",
    "unsupported_vector_encoding",
    "v1.unusable-vector",
    tr("The vector is text, a number, or not a whole number of float32. `--carry-text` carries the text, if any."),
)
DIMENSION_MISMATCH = register(
    "row",
    "warning",
    "dimension_mismatch",
    "v1.mixed-dimensions",
    tr("The vector has another length than most of the base's vectors. `--carry-text` carries the text, if any."),
)
NON_FINITE = register(
    "row",
    "warning",
    "non_finite_vector",
    "v1.unusable-vector",
    tr(
        "The vector holds a NaN or an infinity: with it in a base, the application fails on "
        "every search there. `--carry-text` carries the text, if any."
    ),
)
CONTENT_TOO_LARGE = register(
    "row",
    "error",
    "content_too_large",
    "v1.too-large",
    tr("The item's whole text is over SQLite's limit of 1 GB; the item has no material."),
)

# Worth saying about what is carried.
NO_KNOWLEDGE = register(
    "run", "note", "no_knowledge_state", "v1.state", tr("The source is one, but holds no knowledge state: no bases.")
)
MODELS_UNKNOWN = register(
    "run",
    "warning",
    "models_unknown",
    "v1.model",
    tr(
        "The source does not say which models exist (no `llm` state): every model that a base names counts as existing."
    ),
)
TABLE_UNREADABLE = register(
    "run",
    "warning",
    "dexie_table_unreadable",
    "v1.state",
    tr("A Dexie table cannot be read; what the knowledge state itself holds is used instead."),
)
STORAGE_DAMAGED = register(
    "run",
    "warning",
    "storage_damaged",
    "v1.state",
    tr(
        "Places of the application's storage are damaged, as after a crash: what was written "
        "or deleted last may not show."
    ),
)
APPLICATION_RUNNING = register(
    "run",
    "warning",
    "application_running",
    "v1.running",
    tr(
        "The application was running while its profile was read, as you allowed: what it had "
        "not written yet is missing."
    ),
)
PROFILE_MOVED = register(
    "run",
    "note",
    "profile_moved",
    "v1.moved",
    tr("The application's settings name another folder for its data; that one was read."),
)
SLIM_BACKUP = register(
    "run",
    "warning",
    "slim_backup",
    "v1.slim",
    tr("A slim backup, made without `Data/`: bases and items are described in it, vectors and files are not."),
)
DATA_MISSING = register(
    "run",
    "warning",
    "data_missing",
    "v1.slim",
    tr("The profile holds neither vector files nor uploads: its `Data/` is missing, empty, or on another disk."),
)
OLDER_LAYOUT = register(
    "run",
    "note",
    "older_layout",
    "v1.state",
    tr("Folders of a still older layout lie among the vector files; nothing reads them any more."),
)
PENDING_UNREADABLE = register(
    "run",
    "warning",
    "pending_delete_unreadable",
    "v1.state",
    tr("The list of bases to be deleted cannot be read; none counts as such."),
)
OPTION_UNUSED = register(
    "run", "warning", "model_option_unused", "v1.model", tr("A `--map-model` or `--recreate-model` met no base.")
)
CATALOG_UNREADABLE = register(
    "run",
    "warning",
    "catalog_unreadable",
    "v1.state",
    tr("The catalog, or its table of items, cannot be read; bases and items are known by their rows alone."),
)
BLANK_NAME = register(
    "base",
    "warning",
    "blank_base_name",
    "v1.settings",
    tr("The name is only white space; the base is called by its id."),
)
INVALID_CONFIG = register(
    "base",
    "warning",
    "invalid_base_config",
    "v1.settings",
    tr("Settings of the base are not valid; defaults replace them."),
)
RENAMED = register(
    "base",
    "note",
    "renamed_files",
    "v1.renamed",
    tr("Files got another name because theirs was taken, also where only case or accents' coding differ."),
)
INVALID_ITEMS = register(
    "base", "warning", "invalid_item_list", "v1.item", tr("The base's list of items is not a list, so it has no items.")
)
DROPPED_FIELD = register(
    "base",
    "note",
    "dropped_field",
    "v1.dropped-field",
    tr("v2 has no place for this field; its text is kept in the report."),
)
MODEL_RECREATED = register(
    "base",
    "note",
    "model_recreated",
    "v1.model",
    tr("The model was gone, its provider is there: an entry for it is created."),
)
MODEL_MAPPED = register(
    "base", "note", "model_mapped", "v1.model", tr("You said which model the base's vectors are of.")
)
PROVIDER_RETIRED = register(
    "base",
    "warning",
    "provider_retired",
    "v1.model",
    tr(
        "The model's provider is one that the application has no more, or only up to 2.0.8. "
        "The base is carried; to be searched by meaning it needs a provider that is there."
    ),
)
RERANK_CLEARED = register(
    "base", "warning", "rerank_model_cleared", "v1.model", tr("The rerank model no longer exists; it is cleared.")
)
DEGENERATE = register(
    "base",
    "warning",
    "degenerate_vector",
    "v1.degenerate",
    tr(
        "The vector has no direction: it is all zeros, or its norm is too large or too small for single precision. "
        "It is carried as it is; its text is found by words, never by meaning."
    ),
)
WITHOUT_VECTOR = register(
    "base",
    "warning",
    "carried_without_vector",
    "v1.unusable-vector",
    tr(
        "With `--carry-text`, the texts of rows came along whose vector could not. Words find them; "
        "vector search does once they have a vector."
    ),
)
DIFFERING_VECTOR = register(
    "base",
    "warning",
    "differing_vector",
    "v1.mixed-dimensions",
    tr("Equal texts had different vectors; the first one is kept for both."),
)
DEDUPLICATED = register(
    "base",
    "note",
    "v1_deduplicated",
    "v1.deduplicated",
    tr("Chunks that v1 itself never stored because an equal text was there already. Nothing is lost that v1 had."),
)
DEDUPLICATED_ITEM = register(
    "item",
    "note",
    "v1_deduplicated_item",
    "v1.deduplicated",
    tr("Chunks of this item that v1 itself never stored, because an equal text was there already."),
)
RESTORED_DUPLICATE = register(
    "item",
    "note",
    "restored_duplicate",
    "v1.deduplicated",
    tr("v1 kept nothing of this file, since another one has the same bytes; it gets the same chunks."),
)
LOST_DUPLICATE = register(
    "item",
    "note",
    "lost_duplicate",
    "v1.deduplicated",
    tr(
        "v1 kept nothing of this file, since another one has the same bytes; with "
        "--no-restore-duplicates it stays without chunks."
    ),
)
FILE_WITHOUT_ROWS = register(
    "base",
    "note",
    "file_without_rows",
    "v1.no-text",
    tr("Completed files without a single row: they stay completed, have no text, and no search finds them."),
)
KEPT_COMPLETED = register(
    "base",
    "warning",
    "completed_base_kept",
    "v1.base",
    tr(
        "From this source the base would fail; what an earlier run wrote to the target stays, "
        "completed or with its texts."
    ),
)
CHANGED_SINCE = register(
    "base",
    "note",
    "base_changed_since",
    "v1.base",
    tr("What an earlier run wrote to the target was changed there since, and is left as it is."),
)
MISSING_UPLOAD = register(
    "item",
    "warning",
    "missing_upload",
    "v1.missing-upload",
    tr("The uploaded file is not in the source: it is searchable, but cannot be reindexed."),
)
PATH_TOO_LONG = register(
    "item",
    "warning",
    "path_too_long",
    "",
    tr("The path of the item's file is too long for the system: it is searchable, but cannot be reindexed."),
)
LINK_NOT_FOLLOWED = register(
    "run",
    "warning",
    "link_not_followed",
    "v1.link",
    tr("A link in the source leads out of it: nothing behind it is read. `--follow-links` follows links of your own."),
)
DATA_MENDED = register(
    "item",
    "note",
    "item_data_mended",
    "v1.item",
    tr("The catalog described the item in another shape; what v2 needs follows from what is known of it."),
)
DATA_INCOMPLETE = register(
    "item",
    "warning",
    "item_data_incomplete",
    "v1.item",
    tr("Neither the catalog nor the item's rows say where it came from. Its rows are carried all the same."),
)
NOTE_CUT = register(
    "item", "warning", "note_truncated", "v1.too-large", tr("The note is longer than v2 allows; its end is cut off.")
)
LOADER_SHARED = register(
    "item",
    "warning",
    "loader_shared",
    "v1.shared-loader",
    tr("A later item has the same loader: its rows went there, this item has none of them."),
)
ENTRIES_WITHOUT_ROWS = register(
    "item",
    "warning",
    "directory_entries_without_rows",
    "v1.folder",
    tr("Files of the folder have no rows in v1 and become no items."),
)
CHILD_OUTSIDE = register(
    "item",
    "note",
    "directory_child_outside",
    "v1.folder",
    tr(
        "Files of the folder have no path in it, as far as v1 recorded: a snippet of their "
        "text, or another place. They are called by its last part alone."
    ),
)
NOT_MIGRATED = register(
    "item",
    "warning",
    "directory_not_migrated",
    "v1.folder",
    tr("The folder stays one item, failed: none of its files has rows that could be carried."),
)
CHILD_NOT_MIGRATED = register(
    "item",
    "warning",
    "directory_child_not_migrated",
    "v1.folder",
    tr("Files of the folder have rows, but none that could be carried."),
)
CHILD_CONFLICT = register(
    "item",
    "note",
    "directory_child_loader_conflict",
    "v1.shared-loader",
    tr("A file of the folder was also added alone: its rows stay with the item that was added alone."),
)
CHILD_SHARED = register(
    "item",
    "note",
    "directory_child_loader_shared",
    "v1.shared-loader",
    tr("A later file of a folder has the same loader: its rows went there."),
)
