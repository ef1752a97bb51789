"""Findings of AngelMemory's data folder (``docs/findings.md``, "AngelMemory")."""

from __future__ import annotations

from checks.audit.findings import register
from regraft.language import tr

_BACKUP = tr(
    "Restore the file from a backup. AngelMemory rebuilds the index of files, and a collection, if they are missing."
)
_PERSON = tr("Needs your decision. The message shows the options.")
_RECONCILE = tr("`regraft reconcile` updates the collection to match the records.")
_REPAIR = tr("`regraft repair` updates the records to match the files in `raw/`.")
_GC = tr("`regraft gc`.")

UNREADABLE = register(
    "error",
    "angel.unreadable",
    tr(
        "A database in the data folder, or `raw/`, is missing, damaged, or has an unknown layout. "
        "Anything that could not be read was not checked."
    ),
    _BACKUP,
)
STATE = register(
    "error",
    "angel.state",
    tr("The state file is missing or cannot be read: AngelMemory would embed everything again at its next sync."),
    tr("`regraft reconcile` writes a state file that names the provider whose vectors exist."),
    "reconcile",
)
SHORT_ID_SEQUENCE = register(
    "error",
    "angel.short-id-sequence",
    tr(
        "The counter for short ids points at an id that is already in use: the system cannot store new "
        "notes, or assigns an id twice."
    ),
    tr("`regraft repair` sets the counter above the highest id in use."),
    "repair",
)
SHORT_ID_DOUBLE = register(
    "error",
    "angel.short-id-double",
    tr("Several records have the same short id, so it does not identify a note."),
    tr("`regraft repair` keeps the id on the oldest record and assigns new ids to the others."),
    "repair",
)
FILE_OUTSIDE = register(
    "error",
    "angel.file-outside",
    tr("A record's path points outside `raw/`. The system refuses to read it."),
    _PERSON,
)
FILE_MISSING = register(
    "error",
    "angel.file-missing",
    tr("A file that has records is missing from `raw/`, or the system would not read it."),
    tr("Put the file back, or let `regraft repair` remove its records."),
    "repair",
)
FILE_UNREADABLE = register(
    "warning", "angel.file-unreadable", tr("A file in `raw/` cannot be read, so its records were not checked."), _PERSON
)
RECORD_CHANGED = register(
    "error",
    "angel.record-changed",
    tr("A file and its records disagree: source ids, tags, leaf headings or number of lines."),
    _REPAIR,
    "repair",
)
RECORD_MISSING = register("warning", "angel.record-missing", tr("A file in `raw/` has no record."), _REPAIR, "repair")
PROVIDER_CHANGED = register(
    "error",
    "angel.provider-changed",
    tr("The configured provider is not the one in the state file, and its vectors have not been made yet."),
    _RECONCILE,
    "reconcile",
)
VECTOR_MISSING = register(
    "error",
    "angel.vector-missing",
    tr("A record with tags has no vector: vector search does not find it."),
    _RECONCILE,
    "reconcile",
)
DOCUMENT_STALE = register(
    "error",
    "angel.document-stale",
    tr(
        "A vector was made from a different text than the record's current tags. The system's own sync "
        "compares only ids and does not notice."
    ),
    _RECONCILE,
    "reconcile",
)
DIMENSION = register(
    "error",
    "angel.dimension",
    tr("A vector's length differs from its collection's dimensions."),
    _RECONCILE,
    "reconcile",
)
VECTOR_UNUSABLE = register(
    "error",
    "angel.vector-unusable",
    tr(
        "A vector is all zeros, contains NaN or infinity, has a norm too large for single precision, or "
        "was lost with the files of its segment."
    ),
    _RECONCILE,
    "reconcile",
)
VECTOR_ORPHAN = register(
    "warning",
    "angel.vector-orphan",
    tr("A vector belongs to no record, or to a record without tags."),
    _RECONCILE,
    "reconcile",
)
METADATA = register(
    "warning",
    "angel.metadata",
    tr("A vector's metadata does not match its record's source id."),
    tr("`regraft reconcile` updates the collection to match the records, without embedding anything."),
    "reconcile",
)
FULL_TEXT = register(
    "error",
    "angel.full-text",
    tr(
        "The full-text index in a provider's `chroma.sqlite3` is damaged, or does not contain the texts "
        "of all documents. Chroma then fails on every write to the database."
    ),
    tr("`regraft repair` rebuilds the index from the documents. Nothing is embedded or deleted."),
    "repair",
)
RELATION_DANGLING = register(
    "warning", "angel.relation-dangling", tr("A note or memory refers to a tag that does not exist."), _GC, "gc"
)
RELATION_ORPHAN = register(
    "warning", "angel.relation-orphan", tr("A tag refers to a note or memory that does not exist."), _GC, "gc"
)
TAG_UNUSED = register("warning", "angel.tag-unused", tr("A tag is not used by any note or memory."), _GC, "gc")
PROVIDER_LEFTOVER = register(
    "warning",
    "angel.provider-leftover",
    tr("The folder belongs to a provider that is not in use. The system never removes such folders."),
    tr(
        "Keep it if the provider may be used again. Otherwise `regraft gc --only "
        "angel.provider-leftover` moves it to the trash."
    ),
)
