"""Findings of databases of codex-mem (``docs/findings.md``, "codex-mem")."""

from __future__ import annotations

from checks.audit.findings import register
from regraft.language import tr

_PERSON = tr("Needs your decision. The message shows the options.")
_WORDS = tr("`regraft repair` rebuilds the full-text index from the searchable notes only.")
_RECONCILE = tr("`regraft reconcile`.")

SCHEMA = register(
    "error",
    "codex.schema",
    tr("A table or column of codex-mem's own migrations is missing. The parts that depend on it were not checked."),
    tr("Start the application once, which applies its migrations; otherwise restore a backup."),
)
TRIGGER = register(
    "error",
    "codex.trigger",
    tr(
        "A trigger that maintains the full-text index, or the index itself, is missing or has a "
        "different definition: new notes are not found, or excluded ones are."
    ),
    _PERSON,
)
FTS_MISSING = register(
    "error",
    "codex.fts-missing",
    tr("A searchable note is not in the full-text index: keyword search does not find it."),
    _WORDS,
    "repair",
)
FTS_EXTRA = register(
    "error",
    "codex.fts-extra",
    tr("The full-text index has an entry for a deleted or excluded note: excluded text can be found."),
    _WORDS,
    "repair",
)
FTS_SKEWED = register(
    "error",
    "codex.fts-skewed",
    tr(
        "The row and word counts of the full-text index are wrong, as after an update of an excluded "
        "note: ranks are wrong."
    ),
    _WORDS,
    "repair",
)
FTS_WORDS = register(
    "error",
    "codex.fts-words",
    tr("The full-text index does not match the words of the notes."),
    _WORDS,
    "repair",
)
EXCLUSION = register(
    "note",
    "codex.exclusion-reason",
    tr("A note or handoff is excluded without a reason, which the application never writes."),
    _PERSON,
)
SCOPE = register(
    "error",
    "codex.scope",
    tr(
        "A note, a handoff or a scope entry refers to a session, workspace, project or system that is "
        "missing, or that belongs to a different one."
    ),
    _PERSON,
)
MIGRATION = register(
    "error",
    "codex.migration",
    tr(
        "Migration 006 is partly applied: columns without a record of it, a record without columns, "
        "only some of the columns, or vectors without columns that refer to them. Or a different "
        "migration has that number."
    ),
    tr("`regraft backfill` adds the missing parts first. There is no fix if a different migration has that number."),
    "backfill",
)
INDEX_MISSING = register(
    "error",
    "codex.index-missing",
    tr(
        "Notes are marked as having a vector, but the vector file is missing or cannot be read: only "
        "keyword search works."
    ),
    tr("`regraft rebuild`."),
    "rebuild",
)
INDEX_INCOMPATIBLE = register(
    "error",
    "codex.index-incompatible",
    tr(
        "The vector file has a different layout, model or vector length, or is not a vector file: only "
        "keyword search works."
    ),
    tr("`regraft rebuild`."),
    "rebuild",
)
REBUILDING = register(
    "warning",
    "codex.rebuilding",
    tr("A rebuild of the vectors was started and has not finished: only keyword search works until then."),
    tr("`regraft rebuild` resumes it, unless it is still running."),
    "rebuild",
)
ORPHAN = register(
    "warning",
    "codex.orphan",
    tr(
        "A vector belongs to no note, to a note that must not have one, or to a note that is not marked "
        "as having one, as after a crash between two writes."
    ),
    tr(
        "{reconcile} Valid vectors are kept, and nothing is embedded again. The vector of a note that "
        "must not have one is deleted only with `--only codex.orphan`.",
        reconcile=_RECONCILE,
    ),
    "reconcile",
)
EXCLUDED_VECTOR = register(
    "error",
    "codex.excluded-vector",
    tr("An excluded note has a vector. Searches do not return it, but its text was embedded."),
    tr(
        "Keep it if the note may be included again. Otherwise `regraft reconcile --only "
        "codex.excluded-vector` deletes it."
    ),
)
VECTOR = register(
    "error",
    "codex.vector",
    tr("A vector has the wrong length, is not finite or is all zeros: searches cannot use it."),
    tr("{reconcile} Its note is embedded again.", reconcile=_RECONCILE),
    "reconcile",
)
METADATA = register(
    "error",
    "codex.metadata",
    tr("The vector status in a note's row is wrong: marked as ready without a vector, an unknown status, and so on."),
    _RECONCILE,
    "reconcile",
)
STALE = register(
    "error",
    "codex.stale",
    tr(
        "A note was changed after its vector was made, or its vector comes from a different model: only "
        "keyword search finds it."
    ),
    tr("{reconcile} If an embedder is configured, it is embedded again.", reconcile=_RECONCILE),
    "reconcile",
)
FAILED = register(
    "warning",
    "codex.failed",
    tr("A note could not be embedded: only keyword search finds it."),
    tr(
        "Once the cause is fixed (the message has the error code), run `regraft clear-failed` and then "
        "`regraft backfill`."
    ),
    "clear-failed",
)
PENDING = register(
    "warning",
    "codex.pending",
    tr("A note has no vector yet: only keyword search finds it."),
    tr("`regraft backfill` embeds it."),
    "backfill",
)
