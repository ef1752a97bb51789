"""What a run can say about a base, an item or rows: one code for each thing, registered here.

Codes are part of the output contract and never change. ``docs/codes.md`` is generated from this registry.
"""

from __future__ import annotations

from collections import ChainMap
from typing import Literal

import msgspec

from regraft.language import tr

# The registry of what a run can say: codes, how grave each is, and what is said by them (``docs/codes.md``).


Severity = Literal["error", "warning", "note"]
#: What a code speaks of; those of ``row``, ``item`` and ``base`` are also reasons for not carrying one.
Subject = Literal["run", "base", "item", "row"]

_SEVERITIES: dict[Severity, int] = {"note": 0, "warning": 1, "error": 2}


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """A registered code: what it is about, how grave it is, and what it means in the user's words."""

    name: str
    subject: Subject
    severity: Severity
    meaning: str
    #: The finding that it is where a source is checked (``docs/findings.md``); empty: none.
    finding: str = ""


#: What a migration can say.
CODES: dict[str, Code] = {}
#: What only an import can say (``docs/codes.md``, "An import").
IMPORT_CODES: dict[str, Code] = {}
EVERY_CODE = ChainMap(CODES, IMPORT_CODES)


def register(subject: Subject, severity: Severity, name: str, finding: str, meaning: str) -> str:
    """Register what a migration can say, and the finding that it is where a source is checked; return its name."""
    CODES[name] = Code(name=name, subject=subject, severity=severity, finding=finding, meaning=meaning)
    return name


def register_import(subject: Subject, severity: Severity, name: str, meaning: str) -> str:
    """Register what only an import can say; return its name."""
    IMPORT_CODES[name] = Code(name=name, subject=subject, severity=severity, meaning=meaning)
    return name


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a run says: ``base`` and ``item`` are v1 ids, ``count`` counts items or rows.

    ``samples`` names a few of the rows. ``model`` is one that is gone, where the user's word for it would do.
    """

    code: str
    message: str
    base: str | None = None
    item: str | None = None
    count: int = 1
    samples: tuple[str, ...] = ()
    model: str | None = None

    @property
    def severity(self) -> Severity:
        """Return how grave the code is."""
        return EVERY_CODE[self.code].severity


def at_least(severity: Severity, line: Severity) -> bool:
    """Tell whether ``severity`` reaches ``line``."""
    return _SEVERITIES[severity] >= _SEVERITIES[line]


# What a run can say about vector files that no state names: one code for each thing (``docs/codes.md``).


LOST_STATE = register(
    "run",
    "warning",
    "lost_state",
    "v1.state",
    tr(
        "Vector files are there, and the state names no base that they belong to: it is lost, or that of another "
        "place. `--adopt-orphans` makes bases of them."
    ),
)
UNNAMED_VECTORS = register(
    "run",
    "note",
    "unnamed_vector_files",
    "v1.unnamed-file",
    tr(
        "Vector files that belong to no base in v1's state, left over from bases that are gone. They are not read; "
        "`--adopt-orphans` makes bases of them."
    ),
)
ADOPTED = register(
    "base",
    "note",
    "adopted",
    "v1.unnamed-file",
    tr("The base was made of its vector file alone, as `--adopt-orphans` says: no base of v1's state names it."),
)
NOT_ADOPTED = register(
    "run",
    "warning",
    "not_adopted",
    "v1.unnamed-file",
    tr("A file among the vector files is none of v1's, or has no row: no base is made of it."),
)


# What only a migration of a KB of rsclaw can say: one code for each thing, registered here (``docs/codes.md``).


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


# What an import of Parquet files can say: one code for each thing, registered here (``docs/codes.md``).


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


# What only the salvage of a damaged vector file can say, one code for each thing (``docs/codes.md``).


_SALVAGE_FINDING = "v1.unreadable"

# Rows that are not carried: they were there, and do not prove themselves.
ROW_LOST = register(
    "row",
    "warning",
    "row_lost",
    _SALVAGE_FINDING,
    tr("Of the row only its key is left in the damaged vector file; its text and its vector are gone."),
)
ROW_BROKEN = register(
    "row",
    "warning",
    "row_broken",
    _SALVAGE_FINDING,
    tr("Parts of the row are gone or are another row's: the pages that it goes on in do not hold together."),
)
ROW_UNPROVEN = register(
    "row",
    "warning",
    "row_unproven",
    _SALVAGE_FINDING,
    tr("Of what is left, the row's id, loader, source, text or metadata is not as v1 writes it, or they disagree."),
)
VECTOR_UNPROVEN = register(
    "row",
    "warning",
    "vector_unproven",
    _SALVAGE_FINDING,
    tr("Of what is left, the row's vector is not of the length, or of the norm, that the base's others have."),
)
ROW_CONTRADICTED = register(
    "row",
    "warning",
    "row_contradicted",
    _SALVAGE_FINDING,
    tr("The row can be read in two ways, or an index of the damaged file says something else of it."),
)

# What is said of the source, the base and its items.
ARCHIVE_SALVAGED = register(
    "run",
    "warning",
    "archive_salvaged",
    _SALVAGE_FINDING,
    tr(
        "The zip archive is damaged. With `--salvage` its members were read by their own headers, and only those that "
        "are whole by their checksums. What the others held is missing."
    ),
)
SALVAGED = register(
    "base",
    "warning",
    "salvaged",
    _SALVAGE_FINDING,
    tr(
        "The base's vector file is damaged. With `--salvage` it was read page by page, and every row that proves "
        "itself was carried. A backup may have the others."
    ),
)
ROWS_LOST = register(
    "item",
    "warning",
    "rows_lost",
    _SALVAGE_FINDING,
    tr(
        "Rows of the item were lost with the damaged part of the vector file. Indexing it again in v2 brings them back."
    ),
)


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
