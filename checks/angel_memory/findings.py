"""Findings of AngelMemory's data folder (``docs/findings.md``, "AngelMemory")."""

from __future__ import annotations

from checks.audit.findings import register
from regraft.language import tr

_BACKUP = tr(
    "Restore the file from a backup. AngelMemory rebuilds the index of files, and a collection, if they are missing."
)
_PERSON = tr("You have to decide; the message says what about.")
_RECONCILE = tr("`regraft reconcile`, which makes the collection follow the records.")
_REPAIR = tr("`regraft repair`, which makes the records follow `raw/`.")
_GC = tr("`regraft gc`.")

UNREADABLE = register(
    "error",
    "angel.unreadable",
    tr(
        "A database of the data folder, or `raw/`, is missing, damaged, or of a layout that is "
        "not known. What could not be read was not checked."
    ),
    _BACKUP,
)
STATE = register(
    "error",
    "angel.state",
    tr("The state file is missing or cannot be read: AngelMemory would embed everything again at its next sync."),
    tr("`regraft reconcile`, which writes the provider whose vectors are there."),
    "reconcile",
)
SHORT_ID_SEQUENCE = register(
    "error",
    "angel.short-id-sequence",
    tr("The next short id is one that a record has: the system cannot store new notes, or gives an id twice."),
    tr("`regraft repair`, which sets it behind the highest."),
    "repair",
)
SHORT_ID_DOUBLE = register(
    "error",
    "angel.short-id-double",
    tr("Several records have the same short id, so it does not identify a note."),
    tr("`regraft repair`: the record that was stored first keeps it, the others get new ones."),
    "repair",
)
FILE_OUTSIDE = register(
    "error",
    "angel.file-outside",
    tr("The path of a record leads out of `raw/`. The system refuses to read it."),
    _PERSON,
)
FILE_MISSING = register(
    "error",
    "angel.file-missing",
    tr("The file of records is gone from `raw/`, or the system would not read it."),
    tr("`regraft repair`, which removes the records; or putting the file back."),
    "repair",
)
FILE_UNREADABLE = register(
    "warning", "angel.file-unreadable", tr("A file below `raw/` cannot be read: its records were not checked."), _PERSON
)
RECORD_CHANGED = register(
    "error",
    "angel.record-changed",
    tr("What a file gives now is not what its records say: source ids, tags, leaf headings, number of lines."),
    _REPAIR,
    "repair",
)
RECORD_MISSING = register(
    "warning", "angel.record-missing", tr("A file below `raw/` has no record."), _REPAIR, "repair"
)
PROVIDER_CHANGED = register(
    "error",
    "angel.provider-changed",
    tr("The provider in use is not the one that the state file names, and its vectors are still to be made."),
    _RECONCILE,
    "reconcile",
)
VECTOR_MISSING = register(
    "error",
    "angel.vector-missing",
    tr("A record with tags has no vector: search by meaning does not find it."),
    _RECONCILE,
    "reconcile",
)
DOCUMENT_STALE = register(
    "error",
    "angel.document-stale",
    tr(
        "A vector is of another text than the record's tags give. The system's own sync compares ids and never sees it."
    ),
    _RECONCILE,
    "reconcile",
)
DIMENSION = register(
    "error", "angel.dimension", tr("A vector has another length than its collection's."), _RECONCILE, "reconcile"
)
VECTOR_UNUSABLE = register(
    "error",
    "angel.vector-unusable",
    tr(
        "A vector is all zeros, holds NaN or infinity, has a norm too large for single precision, or is lost with the "
        "files of its segment."
    ),
    _RECONCILE,
    "reconcile",
)
VECTOR_ORPHAN = register(
    "warning", "angel.vector-orphan", tr("A vector of no record, or of one without tags."), _RECONCILE, "reconcile"
)
METADATA = register(
    "warning",
    "angel.metadata",
    tr("A vector's metadata is not its record's source id."),
    tr("`regraft reconcile`, which makes the collection follow the records; nothing is embedded for it."),
    "reconcile",
)
FULL_TEXT = register(
    "error",
    "angel.full-text",
    tr(
        "The full-text index in a provider's `chroma.sqlite3` is damaged, or lacks the texts of documents. "
        "Chroma fails on every write to the database."
    ),
    tr("`regraft repair`, which rebuilds the index from the documents; nothing is embedded or deleted for it."),
    "repair",
)
RELATION_DANGLING = register(
    "warning", "angel.relation-dangling", tr("A note or a memory has a tag id that no tag has."), _GC, "gc"
)
RELATION_ORPHAN = register(
    "warning", "angel.relation-orphan", tr("A tag refers to a note or memory that does not exist."), _GC, "gc"
)
TAG_UNUSED = register("warning", "angel.tag-unused", tr("A tag that no note and no memory has."), _GC, "gc")
PROVIDER_LEFTOVER = register(
    "warning",
    "angel.provider-leftover",
    tr("The folder of a provider that is not in use. The system never removes one."),
    tr("Nothing, where it may be used again. `gc` moves it to the trash with `--only angel.provider-leftover`."),
)
