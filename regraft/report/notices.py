"""The registry of notices: every code that a migration or an import can report, with its severity and meaning.

Codes are part of the output contract and never change. ``docs/codes.md`` is generated from this registry.
"""

from __future__ import annotations

from collections import ChainMap
from typing import Literal

import msgspec

from regraft.language import tr

Severity = Literal["error", "warning", "note"]
#: What a code is about. Codes about rows, items and bases are also the reasons for which one is not migrated.
Subject = Literal["run", "base", "item", "row"]

_SEVERITIES: dict[Severity, int] = {"note": 0, "warning": 1, "error": 2}


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """A registered code."""

    name: str
    subject: Subject
    severity: Severity
    meaning: str
    #: The finding that ``check`` reports for it in a source (``docs/findings.md``); empty: none.
    finding: str = ""


#: Codes of a migration, by name.
CODES: dict[str, Code] = {}
#: Codes that only an import has, by name.
IMPORT_CODES: dict[str, Code] = {}
EVERY_CODE = ChainMap(CODES, IMPORT_CODES)


def register(subject: Subject, severity: Severity, name: str, finding: str, meaning: str) -> str:
    """Register a code of migrations, and the finding that ``check`` reports for it; return its name."""
    CODES[name] = Code(name=name, subject=subject, severity=severity, finding=finding, meaning=meaning)
    return name


def register_import(subject: Subject, severity: Severity, name: str, meaning: str) -> str:
    """Register a code that only imports have; return its name."""
    IMPORT_CODES[name] = Code(name=name, subject=subject, severity=severity, meaning=meaning)
    return name


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One notice of a run; ``base`` and ``item`` are v1 ids, ``count`` is the number of items or rows it is about.

    ``samples`` names some of the rows. ``model`` is a missing model that the user may replace.
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
        """The severity of the notice's code."""
        return EVERY_CODE[self.code].severity


def is_at_least(severity: Severity, line: Severity) -> bool:
    """Whether a severity is as grave as ``line``, or graver."""
    return _SEVERITIES[severity] >= _SEVERITIES[line]


# Vector files that the state does not name.


LOST_STATE = register(
    "run",
    "warning",
    "lost_state",
    "v1.state",
    tr(
        "The state names no base for any of the vector files: it was lost, or belongs to another "
        "installation. `--adopt-orphans` makes bases of the files."
    ),
)
DAMAGED_STATE = register(
    "run",
    "warning",
    "damaged_state",
    "v1.state",
    tr(
        "The application's state is damaged, so names of bases, items and models are not known. With "
        "`--adopt-orphans`, bases are made of the vector files alone."
    ),
)
UNNAMED_VECTORS = register(
    "run",
    "note",
    "unnamed_vector_files",
    "v1.unnamed-file",
    tr(
        "Vector files of bases that are no longer in v1's state. They are not read; `--adopt-orphans` "
        "makes bases of them."
    ),
)
ADOPTED = register(
    "base",
    "note",
    "adopted",
    "v1.unnamed-file",
    tr("The base was made from its vector file alone (`--adopt-orphans`): v1's state has no base for it."),
)
NOT_ADOPTED = register(
    "run",
    "warning",
    "not_adopted",
    "v1.unnamed-file",
    tr("A file among the vector files is not a v1 vector file, or has no rows: no base is made of it."),
)


# Chroma: rows that are not migrated.
NO_DOCUMENT = register(
    "row",
    "warning",
    "no_document",
    "",
    tr(
        "The entry has no document. A base keeps one vector for each text, so vectors without a text cannot be kept "
        "apart. `regraft export` writes them to Parquet."
    ),
)

# rsclaw: rows that are not migrated, and documents without any migrated row.
NOT_VISIBLE = register(
    "row",
    "note",
    "not_visible",
    "",
    tr("The document is not visible to the users of the new base. `--visible-to` adds users."),
)
TOMBSTONED = register(
    "row", "note", "tombstoned", "", tr("The document, or the chunk, was deleted in the application.")
)
UPDATING = register(
    "row",
    "warning",
    "updating",
    "",
    tr("The application was rewriting the document. Start it, let it finish, and migrate again."),
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
        "The vector was made by another embedder than most of the KB's vectors, and cannot be compared "
        "with them. `--carry-text` migrates the text."
    ),
)
RANGE_OUTSIDE = register(
    "row",
    "warning",
    "range_outside",
    "",
    tr("The chunk's offsets are outside the text of its document, although the text has not changed."),
)
ROW_UNREADABLE = register(
    "row",
    "error",
    "row_unreadable",
    "",
    tr("The row, or its document's row, does not have the format that the application writes."),
)

# Notices on what is migrated.
PAGES_DAMAGED = register(
    "base",
    "error",
    "pages_damaged",
    "",
    tr(
        "Pages of the database are damaged: their rows, and the number of them, cannot be read. A backup may have them."
    ),
)
VISIBILITY_DROPPED = register(
    "base",
    "note",
    "visibility_dropped",
    "",
    tr(
        "v2 has no visibility settings: every user of the base sees these documents, which were visible to "
        "some users only."
    ),
)
NOTHING_VISIBLE = register(
    "base",
    "warning",
    "nothing_visible",
    "",
    tr("None of the documents is visible to the users of the new base. `--visible-to` adds users."),
)
DOCUMENT_CHANGED = register(
    "item",
    "warning",
    "document_changed",
    "",
    tr(
        "The Markdown file was changed after it was split into chunks: file and chunks are migrated as "
        "they are, and differ."
    ),
)
NOT_INDEXED = register(
    "item",
    "warning",
    "document_without_rows",
    "",
    tr("No chunk of the document is migrated. Its item is marked failed; index it again in the application."),
)


# Imports: rows and items of a Parquet file that are not imported, or imported with changes.
NOT_WHOLE = register_import("row", "warning", "not_whole", tr("A row of the file lacks its item, text, hash or index."))
TEXT_CHANGED = register_import(
    "row", "warning", "text_changed", tr("The row's text does not match its hash: the vector belongs to another text.")
)
DUPLICATE_ROW = register_import(
    "row", "warning", "duplicate", tr("An earlier row of the file has the same item and unit_index.")
)
NO_BASE = register_import("row", "warning", "no_base", tr("The row belongs to a base that the file does not describe."))
ITEM_DELETED = register_import("item", "note", "deleted", tr("The item was deleted in the application."))
NOT_AN_ITEM = register_import(
    "item", "warning", "invalid", tr("The item in the file is not valid for a catalog, or its folder is missing.")
)
REMADE = register_import(
    "base",
    "warning",
    "material_made_anew",
    tr("Units of a material were not slices of its content: they get new offsets and ids; each text keeps its vector."),
)
MODEL_NOT_NAMED = register_import(
    "base",
    "warning",
    "model_not_named",
    tr("The file does not name the model of the base's vectors: the base is complete, but marked failed."),
)


_SALVAGE_FINDING = "v1.unreadable"

# Salvage of damaged vector files: rows that cannot be verified and are not migrated.
ROW_LOST = register(
    "row",
    "warning",
    "row_lost",
    _SALVAGE_FINDING,
    tr("Only the key of the row is left in the damaged vector file; its text and vector are lost."),
)
ROW_BROKEN = register(
    "row",
    "warning",
    "row_broken",
    _SALVAGE_FINDING,
    tr("Parts of the row are lost or belong to another row: its overflow pages are inconsistent."),
)
ROW_UNPROVEN = register(
    "row",
    "warning",
    "row_unproven",
    _SALVAGE_FINDING,
    tr(
        "The row's id, loader, source, text or metadata does not have the format that v1 writes, or they "
        "contradict each other."
    ),
)
VECTOR_UNPROVEN = register(
    "row",
    "warning",
    "vector_unproven",
    _SALVAGE_FINDING,
    tr("The row's vector has another length or norm than the base's other vectors."),
)
ROW_CONTRADICTED = register(
    "row",
    "warning",
    "row_contradicted",
    _SALVAGE_FINDING,
    tr("The row was found in several versions that differ, or an index of the damaged file contradicts it."),
)

# Salvage: notices on the source, the base and its items.
ARCHIVE_SALVAGED = register(
    "run",
    "warning",
    "archive_salvaged",
    _SALVAGE_FINDING,
    tr(
        "The zip archive is damaged. With `--salvage`, its members were read from their own headers, and "
        "those with a correct checksum were used, and the beginning of a vector file in which the archive "
        "ends. The others are missing."
    ),
)
SALVAGED = register(
    "base",
    "warning",
    "salvaged",
    _SALVAGE_FINDING,
    tr(
        "The base's vector file is damaged. With `--salvage`, it was read page by page, and every row that "
        "could be verified was migrated. A backup may have the others."
    ),
)
ROWS_LOST = register(
    "item",
    "warning",
    "rows_lost",
    _SALVAGE_FINDING,
    tr(
        "Rows of the item were in the damaged part of the vector file and are lost, or may have been there. "
        "Index the item again in v2."
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
    tr("An earlier base has the same id; this one and its items are skipped."),
)
PENDING_DELETE = register(
    "base",
    "note",
    "pending_delete",
    "v1.pending-delete",
    tr("v1 would have deleted this base at its next start; it is not migrated."),
)

# Bases that are migrated without their vectors.
MISSING_MODEL = register(
    "base",
    "error",
    "missing_embedding_model",
    "v1.model",
    tr(
        "The base's embedding model no longer exists. The base is migrated with its items, marked failed, "
        "without its rows. `--map-model` or `--recreate-model` migrates them."
    ),
)
MISSING_STORE = register(
    "base",
    "error",
    "missing_vector_store",
    "v1.no-vectors",
    tr(
        "The base's vector file is missing, cannot be read, or has no usable vector. The base is migrated "
        "with its items, marked failed, without an index."
    ),
)

CURRENT_LAYOUT = register(
    "base",
    "note",
    "current_layout",
    "v1.base",
    tr("The base already has the v2 layout and needs no migration."),
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
    tr("v2 has no items of this type (memory, video…)."),
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
    tr("You deleted the item, and the application had not removed its data yet."),
)

# Rows that are not migrated. MISSING_MODEL and MISSING_STORE are reasons as well.
UNMAPPED_LOADER = register(
    "row", "note", "unmapped_loader", "v1.unmapped", tr("No item owns the row: its item was deleted.")
)
NON_INDEXABLE = register(
    "row",
    "note",
    "non_indexable_container",
    "v1.folder",
    tr("The row belongs to a folder that is migrated as one item, which has no vectors."),
)
MISSING_PAYLOAD = register(
    "row",
    "warning",
    "missing_vector_payload",
    "v1.unusable-vector",
    tr("The row has no vector (NULL or empty). `--carry-text` migrates its text, if any."),
)
UNSUPPORTED_ENCODING = register(
    "row",
    "warning",
    "unsupported_vector_encoding",
    "v1.unusable-vector",
    tr("The vector is text, a number, or not a whole number of float32. `--carry-text` migrates the text, if any."),
)
DIMENSION_MISMATCH = register(
    "row",
    "warning",
    "dimension_mismatch",
    "v1.mixed-dimensions",
    tr("The vector has another length than most of the base's vectors. `--carry-text` migrates the text, if any."),
)
NON_FINITE = register(
    "row",
    "warning",
    "non_finite_vector",
    "v1.unusable-vector",
    tr(
        "The vector contains NaN or infinity, which makes every search of the application in its base "
        "fail. `--carry-text` migrates the text, if any."
    ),
)
CONTENT_TOO_LARGE = register(
    "row",
    "error",
    "content_too_large",
    "v1.too-large",
    tr("The item's whole text exceeds SQLite's limit of 1 GB; the item has no material."),
)

# Notices on what is migrated.
NO_KNOWLEDGE = register(
    "run", "note", "no_knowledge_state", "v1.state", tr("The source contains no knowledge state, so it has no bases.")
)
MODELS_UNKNOWN = register(
    "run",
    "warning",
    "models_unknown",
    "v1.model",
    tr("The source does not say which models exist: every model that a base names counts as existing."),
)
TABLE_UNREADABLE = register(
    "run",
    "warning",
    "dexie_table_unreadable",
    "v1.state",
    tr("A Dexie table cannot be read; the data in the knowledge state itself are used instead."),
)
STORAGE_DAMAGED = register(
    "run",
    "warning",
    "storage_damaged",
    "v1.state",
    tr("Parts of the application's storage are damaged, as after a crash: the latest changes may be missing."),
)
APPLICATION_RUNNING = register(
    "run",
    "warning",
    "application_running",
    "v1.running",
    tr(
        "The application was running while its profile was read (`--while-running`): changes that it had "
        "not saved yet are missing."
    ),
)
PROFILE_MOVED = register(
    "run",
    "note",
    "profile_moved",
    "v1.moved",
    tr("The application's settings specify a different data folder; that folder was read."),
)
SLIM_BACKUP = register(
    "run",
    "warning",
    "slim_backup",
    "v1.slim",
    tr("This is a slim backup, made without `Data/`: it has bases and items, but no vectors and files."),
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
    tr("Folders of an even older layout are among the vector files; they are not read."),
)
PENDING_UNREADABLE = register(
    "run",
    "warning",
    "pending_delete_unreadable",
    "v1.state",
    tr("The list of bases to be deleted cannot be read; no base is treated as deleted."),
)
OPTION_UNUSED = register(
    "run", "warning", "model_option_unused", "v1.model", tr("No base matches a `--map-model` or `--recreate-model`.")
)
CATALOG_UNREADABLE = register(
    "run",
    "warning",
    "catalog_unreadable",
    "v1.state",
    tr("The catalog, or its table of items, cannot be read; bases and items are taken from their rows alone."),
)
BLANK_NAME = register(
    "base",
    "warning",
    "blank_base_name",
    "v1.settings",
    tr("The name is blank; the base is named after its id."),
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
    tr(
        "Files were renamed because another file has the same name, or one that differs only in case or in "
        "the encoding of accents."
    ),
)
INVALID_ITEMS = register(
    "base", "warning", "invalid_item_list", "v1.item", tr("The base's list of items is not a list, so it has no items.")
)
DROPPED_FIELD = register(
    "base",
    "note",
    "dropped_field",
    "v1.dropped-field",
    tr("v2 lacks this field; its text is kept in the report."),
)
MODEL_RECREATED = register(
    "base",
    "note",
    "model_recreated",
    "v1.model",
    tr("The model was missing, but its provider exists: the model is created again."),
)
MODEL_MAPPED = register("base", "note", "model_mapped", "v1.model", tr("You named the model of the base's vectors."))
PROVIDER_RETIRED = register(
    "base",
    "warning",
    "provider_retired",
    "v1.model",
    tr(
        "The application no longer has the model's provider, or only up to 2.0.8. The base is migrated; "
        "searching it by meaning needs a provider that exists."
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
        "The vector has no direction: it is all zeros, or its norm is too large or too small for single "
        "precision. It is migrated as it is; its text is found by words, never by meaning."
    ),
)
WITHOUT_VECTOR = register(
    "base",
    "warning",
    "carried_without_vector",
    "v1.unusable-vector",
    tr(
        "With `--carry-text`, texts were migrated without their vector. Search by words finds them; search "
        "by meaning does once they have a vector."
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
    tr("Duplicate chunks that v1 never stored. Nothing is lost."),
)
DEDUPLICATED_ITEM = register(
    "item",
    "note",
    "v1_deduplicated_item",
    "v1.deduplicated",
    tr("Duplicate chunks of this item that v1 never stored."),
)
RESTORED_DUPLICATE = register(
    "item",
    "note",
    "restored_duplicate",
    "v1.deduplicated",
    tr("v1 stored no chunks of this file, because another file has the same bytes; it gets the chunks of that file."),
)
LOST_DUPLICATE = register(
    "item",
    "note",
    "lost_duplicate",
    "v1.deduplicated",
    tr(
        "v1 stored no chunks of this file, because another file has the same bytes; with "
        "`--no-restore-duplicates` it stays without chunks."
    ),
)
FILE_WITHOUT_ROWS = register(
    "base",
    "note",
    "file_without_rows",
    "v1.no-text",
    tr("Completed files without any rows: they stay completed, but have no text, and no search finds them."),
)
KEPT_COMPLETED = register(
    "base",
    "warning",
    "completed_base_kept",
    "v1.base",
    tr(
        "The base would fail with this source, or lose vectors that the source lost; the completed base that an earlier"
        " run wrote to the target is kept."
    ),
)
CHANGED_SINCE = register(
    "base",
    "note",
    "base_changed_since",
    "v1.base",
    tr("The base that an earlier run wrote was changed in the target since then. It is not overwritten."),
)
MISSING_UPLOAD = register(
    "item",
    "warning",
    "missing_upload",
    "v1.missing-upload",
    tr("The uploaded file is not in the source: its text can be searched, but not indexed again."),
)
PATH_TOO_LONG = register(
    "item",
    "warning",
    "path_too_long",
    "",
    tr("The path of the item's file is too long for the system: its text can be searched, but not indexed again."),
)
LINK_NOT_FOLLOWED = register(
    "run",
    "warning",
    "link_not_followed",
    "v1.link",
    tr("A link in the source leads out of it and is not followed. `--follow-links` follows links in your own data."),
)
DATA_MENDED = register(
    "item",
    "note",
    "item_data_mended",
    "v1.item",
    tr("The catalog has the item in another format; the fields that v2 needs were derived from it."),
)
DATA_INCOMPLETE = register(
    "item",
    "warning",
    "item_data_incomplete",
    "v1.item",
    tr("Neither the catalog nor the rows of the item name its source. Its rows are migrated."),
)
NOTE_CUT = register(
    "item", "warning", "note_truncated", "v1.too-large", tr("The note is longer than v2 allows; its end is cut.")
)
LOADER_SHARED = register(
    "item",
    "warning",
    "loader_shared",
    "v1.shared-loader",
    tr("A later item has the same loader id and gets the rows; this item has none of them."),
)
ENTRIES_WITHOUT_ROWS = register(
    "item",
    "warning",
    "directory_entries_without_rows",
    "v1.folder",
    tr("Files of the folder that have no rows in v1. They do not become items."),
)
CHILD_OUTSIDE = register(
    "item",
    "note",
    "directory_child_outside",
    "v1.folder",
    tr(
        "Files of the folder whose recorded path in v1 is outside the folder, or is not a path. Each is "
        "named after the last part of what v1 recorded."
    ),
)
NOT_MIGRATED = register(
    "item",
    "warning",
    "directory_not_migrated",
    "v1.folder",
    tr("The folder is migrated as one failed item: none of its files has rows that can be migrated."),
)
CHILD_NOT_MIGRATED = register(
    "item",
    "warning",
    "directory_child_not_migrated",
    "v1.folder",
    tr("Files of the folder whose rows cannot be migrated."),
)
CHILD_CONFLICT = register(
    "item",
    "note",
    "directory_child_loader_conflict",
    "v1.shared-loader",
    tr("A file of the folder was also added by itself: its rows stay with that item."),
)
CHILD_SHARED = register(
    "item",
    "note",
    "directory_child_loader_shared",
    "v1.shared-loader",
    tr("A later file of a folder has the same loader id and gets the rows."),
)
