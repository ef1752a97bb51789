"""What a run can say about a base, an item or rows: one code for each thing, registered here.

Codes are part of the output contract and never change. ``docs/codes.md`` is generated from this registry.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
#: What a code speaks of; those of ``row``, ``item`` and ``base`` are also reasons for not carrying one.
Subject = Literal["run", "base", "item", "row"]

_SEVERITIES: dict[Severity, int] = {"note": 0, "warning": 1, "error": 2}


@dataclass(frozen=True, kw_only=True)
class Code:
    """A registered code: what it is about, how grave it is, and what it means in the user's words."""

    name: str
    subject: Subject
    severity: Severity
    meaning: str


#: What a migration can say.
CODES: dict[str, Code] = {}
#: What only an import can say (``docs/codes.md``, "An import").
IMPORT_CODES: dict[str, Code] = {}
EVERY_CODE = ChainMap(CODES, IMPORT_CODES)


def _register(subject: Subject, severity: Severity, name: str, meaning: str) -> str:
    CODES[name] = Code(name=name, subject=subject, severity=severity, meaning=meaning)
    return name


def _imported(subject: Subject, severity: Severity, name: str, meaning: str) -> str:
    IMPORT_CODES[name] = Code(name=name, subject=subject, severity=severity, meaning=meaning)
    return name


# Bases that are not migrated.
INVALID_BASE = _register(
    "base", "warning", "invalid_knowledge_base_identity", "The base has no id, or no name. It is not migrated."
)
DUPLICATE_BASE = _register(
    "base",
    "warning",
    "duplicate_knowledge_base",
    "A base with this id came before; this one and its items are skipped.",
)
PENDING_DELETE = _register(
    "base",
    "note",
    "pending_delete",
    "v1 was going to delete this base at its next start; it does not come back to life.",
)

# Bases that are migrated without their vectors.
MISSING_MODEL = _register(
    "base",
    "error",
    "missing_embedding_model",
    "The base's embedding model no longer exists. The base migrates as failed with its items, without its rows. "
    "`--map-model` or `--recreate-model` carries them.",
)
MISSING_STORE = _register(
    "base",
    "error",
    "missing_vector_store",
    "The base's vector file is missing, cannot be read, or has no usable vector. The base migrates as failed with its "
    "items, without an index.",
)

CURRENT_LAYOUT = _register(
    "base",
    "note",
    "current_layout",
    "The base is in the v2 layout already. It needs no migration and stays where it is.",
)

# Items that are not migrated.
NO_ID_OR_TYPE = _register("item", "warning", "knowledge_item_missing_id_or_type", "The item has no id or no type.")
UNSUPPORTED_TYPE = _register(
    "item", "warning", "knowledge_item_unsupported_type", "v2 has no place for items of this type (memory, video…)."
)
DUPLICATE_ITEM = _register("item", "warning", "duplicate_knowledge_item", "An item with this id was migrated before.")
INVALID_FILE = _register(
    "item",
    "warning",
    "knowledge_item_invalid_file",
    "The file's metadata is incomplete and `files` cannot complete it.",
)
INVALID_URL = _register("item", "warning", "knowledge_item_invalid_url", "The url is blank or not text.")
INVALID_SITEMAP = _register("item", "warning", "knowledge_item_invalid_sitemap", "The address is blank or not text.")
INVALID_NOTE = _register("item", "warning", "knowledge_item_invalid_note", "The note has neither text nor source URL.")
INVALID_DIRECTORY = _register(
    "item", "warning", "knowledge_item_invalid_directory", "The folder's path is blank or not text."
)

ITEM_DELETING = _register(
    "item", "note", "item_deleting", "You deleted the item, and the application had not cleared it away yet."
)

# Rows that are not carried. MISSING_MODEL and MISSING_STORE are reasons too.
UNMAPPED_LOADER = _register(
    "row", "note", "unmapped_loader", "No item owns the row: it was left of an item that is gone."
)
NON_INDEXABLE = _register(
    "row",
    "note",
    "non_indexable_container",
    "The row belongs to a folder that stayed one item, which holds no vectors.",
)
MISSING_PAYLOAD = _register(
    "row",
    "warning",
    "missing_vector_payload",
    "The row has no vector (NULL or empty). `--carry-text` carries its text, if any.",
)
UNSUPPORTED_ENCODING = _register(
    "row",
    "warning",
    "unsupported_vector_encoding",
    "The vector is text, a number, or not a whole number of float32. `--carry-text` carries the text, if any.",
)
DIMENSION_MISMATCH = _register(
    "row",
    "warning",
    "dimension_mismatch",
    "The vector has another length than most of the base's vectors. `--carry-text` carries the text, if any.",
)
NON_FINITE = _register(
    "row",
    "warning",
    "non_finite_vector",
    "The vector holds a NaN or an infinity: with it in a base, the application fails on every search there. "
    "`--carry-text` carries the text, if any.",
)
CONTENT_TOO_LARGE = _register(
    "row",
    "error",
    "content_too_large",
    "The item's whole text is over SQLite's limit of 1 GB; the item has no material.",
)

# Worth saying about what is carried.
NO_KNOWLEDGE = _register(
    "run", "note", "no_knowledge_state", "The source is one, but holds no knowledge state: no bases."
)
MODELS_UNKNOWN = _register(
    "run",
    "warning",
    "models_unknown",
    "The source does not say which models exist (no `llm` state): every model that a base names counts as existing.",
)
TABLE_UNREADABLE = _register(
    "run",
    "warning",
    "dexie_table_unreadable",
    "A Dexie table cannot be read; what the knowledge state itself holds is used instead.",
)
STORAGE_DAMAGED = _register(
    "run",
    "warning",
    "storage_damaged",
    "Places of the application's storage are damaged, as after a crash: what was written or deleted last may not show.",
)
APPLICATION_RUNNING = _register(
    "run",
    "warning",
    "application_running",
    "The application was running while its profile was read, as you allowed: what it had not written yet is missing.",
)
PROFILE_MOVED = _register(
    "run",
    "note",
    "profile_moved",
    "The application's settings name another folder for its data; that one was read.",
)
SLIM_BACKUP = _register(
    "run",
    "warning",
    "slim_backup",
    "A slim backup, made without `Data/`: bases and items are described in it, vectors and files are not.",
)
DATA_MISSING = _register(
    "run",
    "warning",
    "data_missing",
    "The profile holds neither vector files nor uploads: its `Data/` is missing, empty, or on another disk.",
)
LOST_STATE = _register(
    "run",
    "warning",
    "lost_state",
    "Vector files are there, and the state names no base that they belong to: it is lost, or that of another place.",
)
UNNAMED_VECTORS = _register(
    "run",
    "note",
    "unnamed_vector_files",
    "Vector files that no base of the state names: left of bases that are gone. They are not read.",
)
OLDER_LAYOUT = _register(
    "run",
    "note",
    "older_layout",
    "Folders of a still older layout lie among the vector files; nothing reads them any more.",
)
PENDING_UNREADABLE = _register(
    "run",
    "warning",
    "pending_delete_unreadable",
    "The list of bases to be deleted cannot be read; none counts as such.",
)
OPTION_UNUSED = _register("run", "warning", "model_option_unused", "A `--map-model` or `--recreate-model` met no base.")
CATALOG_UNREADABLE = _register(
    "run",
    "warning",
    "catalog_unreadable",
    "The catalog, or its table of items, cannot be read; bases and items are known by their rows alone.",
)
BLANK_NAME = _register(
    "base", "warning", "blank_base_name", "The name is only white space; the base is called by its id."
)
INVALID_CONFIG = _register(
    "base", "warning", "invalid_base_config", "Settings of the base are not valid; defaults replace them."
)
RENAMED = _register(
    "base",
    "note",
    "renamed_files",
    "Files got another name because theirs was taken, also where only case or accents' coding differ.",
)
INVALID_ITEMS = _register(
    "base", "warning", "invalid_item_list", "The base's list of items is no list; it has no items."
)
DROPPED_FIELD = _register(
    "base", "note", "dropped_field", "v2 has no place for this field; its text is kept in the report."
)
MODEL_RECREATED = _register(
    "base", "note", "model_recreated", "The model was gone, its provider is there: an entry for it is created."
)
MODEL_MAPPED = _register("base", "note", "model_mapped", "Your word: the base's vectors are of the model you named.")
PROVIDER_RETIRED = _register(
    "base",
    "warning",
    "provider_retired",
    "The model's provider is one that the application has no more, or only up to 2.0.8. The base is carried; to be "
    "searched by meaning it needs a provider that is there.",
)
RERANK_CLEARED = _register(
    "base", "warning", "rerank_model_cleared", "The rerank model no longer exists; it is cleared."
)
DEGENERATE = _register(
    "base",
    "warning",
    "degenerate_vector",
    "The vector has no direction, as it is all zeros: carried as it is, its text is found by words, never by meaning.",
)
WITHOUT_VECTOR = _register(
    "base",
    "warning",
    "carried_without_vector",
    "By your word (`--carry-text`) the texts of rows came along whose vector could not. Words find them, vector search "
    "does not before they get one.",
)
DIFFERING_VECTOR = _register(
    "base", "warning", "differing_vector", "Equal texts had different vectors; the first one is kept for both."
)
DEDUPLICATED = _register(
    "base",
    "note",
    "v1_deduplicated",
    "Chunks that v1 itself never stored because an equal text was there already. Nothing is lost that v1 had.",
)
DEDUPLICATED_ITEM = _register(
    "item",
    "note",
    "v1_deduplicated_item",
    "Chunks of this item that v1 itself never stored, because an equal text was there already.",
)
RESTORED_DUPLICATE = _register(
    "item",
    "note",
    "restored_duplicate",
    "v1 kept nothing of this file, since another one has the same bytes; it gets the same chunks.",
)
LOST_DUPLICATE = _register(
    "item",
    "note",
    "lost_duplicate",
    "v1 kept nothing of this file, since another one has the same bytes; by your word it stays without chunks.",
)
FILE_WITHOUT_ROWS = _register(
    "base",
    "note",
    "file_without_rows",
    "Completed files without a single row: they stay completed, have no text, and no search finds them.",
)
KEPT_COMPLETED = _register(
    "base",
    "warning",
    "completed_base_kept",
    "From this source the base would fail; what an earlier run wrote to the target stays, completed or with its texts.",
)
MISSING_UPLOAD = _register(
    "item",
    "warning",
    "missing_upload",
    "The uploaded file is not in the source: it is searchable, but cannot be reindexed.",
)
LINK_NOT_FOLLOWED = _register(
    "run",
    "warning",
    "link_not_followed",
    "A link in the source leads out of it: nothing behind it is read. `--follow-links` follows links of your own.",
)
DATA_MENDED = _register(
    "item",
    "note",
    "item_data_mended",
    "The catalog described the item in another shape; what v2 needs follows from what is known of it.",
)
DATA_INCOMPLETE = _register(
    "item",
    "warning",
    "item_data_incomplete",
    "Neither the catalog nor the item's rows say where it came from. Its rows are carried all the same.",
)
NOTE_CUT = _register("item", "warning", "note_truncated", "The note is longer than v2 allows; its end is cut off.")
LOADER_SHARED = _register(
    "item",
    "warning",
    "loader_shared",
    "A later item has the same loader: its rows went there, this item has none of them.",
)
ENTRIES_WITHOUT_ROWS = _register(
    "item", "warning", "directory_entries_without_rows", "Files of the folder have no rows in v1 and become no items."
)
CHILD_OUTSIDE = _register(
    "item",
    "note",
    "directory_child_outside",
    "Files of the folder have no path in it, as far as v1 recorded: a snippet of their text, or another place. They "
    "are called by its last part alone.",
)
NOT_MIGRATED = _register(
    "item",
    "warning",
    "directory_not_migrated",
    "The folder stays one item, failed: none of its files has rows that could be carried.",
)
CHILD_NOT_MIGRATED = _register(
    "item", "warning", "directory_child_not_migrated", "Files of the folder have rows, but none that could be carried."
)
CHILD_CONFLICT = _register(
    "item",
    "note",
    "directory_child_loader_conflict",
    "A file of the folder was also added alone: its rows stay with the item that was added alone.",
)
CHILD_SHARED = _register(
    "item",
    "note",
    "directory_child_loader_shared",
    "A later file of a folder has the same loader: its rows went there.",
)

# Rows and items of a Parquet file that are not imported, and what is imported otherwise than it was.
NOT_WHOLE = _imported("row", "warning", "not_whole", "The row of the file has no item, text, hash or index.")
TEXT_CHANGED = _imported(
    "row",
    "warning",
    "text_changed",
    "The row's text does not match its hash: the vector belongs to another text.",
)
DUPLICATE_ROW = _imported("row", "warning", "duplicate", "An earlier row of the file has the same item and index.")
NO_BASE = _imported("row", "warning", "no_base", "The row is of a base that the file does not describe.")
ITEM_DELETED = _imported("item", "note", "deleted", "The item was deleted in the application.")
NOT_AN_ITEM = _imported(
    "item", "warning", "invalid", "The item in the file is none that a catalog takes, or its folder is missing."
)
REMADE = _imported(
    "base",
    "warning",
    "material_made_anew",
    "Units of a material were not slices of its content: offsets and ids are made anew, each text keeps its vector.",
)
MODEL_NOT_NAMED = _imported(
    "base",
    "warning",
    "model_not_named",
    "The file does not say of which model the base's vectors are: the base is complete and stands as failed.",
)


@dataclass(frozen=True, kw_only=True)
class Notice:
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
