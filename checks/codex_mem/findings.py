"""Findings of databases of codex-mem (``docs/findings.md``, "codex-mem")."""

from __future__ import annotations

from checks.audit.findings import register
from regraft.language import tr

_PERSON = tr("You have to decide; the message says what about.")
_WORDS = tr("`regraft repair`, which rebuilds the full-text index from the searchable notes only.")
_RECONCILE = tr("`regraft reconcile`.")

SCHEMA = register(
    "error",
    "codex.schema",
    tr("A table or a column of codex-mem's own migrations is missing: what it is about was not checked."),
    tr("Starting the application once, which brings its migrations up to date; else a backup."),
)
TRIGGER = register(
    "error",
    "codex.trigger",
    tr(
        "A trigger that keeps the full-text index, or that index itself, is missing or does "
        "something else: notes that are written from now on are not found, or excluded ones "
        "are."
    ),
    _PERSON,
)
FTS_MISSING = register(
    "error",
    "codex.fts-missing",
    tr("A searchable note is not in the full-text index: no word finds it."),
    _WORDS,
    "repair",
)
FTS_EXTRA = register(
    "error",
    "codex.fts-extra",
    tr("The full-text index has an entry of a note that is gone or excluded: excluded text can be found."),
    _WORDS,
    "repair",
)
FTS_SKEWED = register(
    "error",
    "codex.fts-skewed",
    tr(
        "The full-text index counts other rows or words than it has, as after an update of an "
        "excluded note: ranks are wrong."
    ),
    _WORDS,
    "repair",
)
FTS_WORDS = register(
    "error",
    "codex.fts-words",
    tr("The full-text index does not hold the words of the notes."),
    _WORDS,
    "repair",
)
EXCLUSION = register(
    "note",
    "codex.exclusion-reason",
    tr("A note or handoff is excluded without a reason. The application saves none like that."),
    _PERSON,
)
SCOPE = register(
    "error",
    "codex.scope",
    tr(
        "A note, a handoff or a part of the scope names a session, workspace, project or "
        "system that is gone, or that belongs to another one."
    ),
    _PERSON,
)
MIGRATION = register(
    "error",
    "codex.migration",
    tr(
        "Migration 006 is there in part: columns without a record of it, a record without "
        "columns, only some of them, or vectors without columns that name them. Or it is "
        "another migration of that number."
    ),
    tr("`regraft backfill`, which adds what is missing first. There is no fix if it is another migration."),
    "backfill",
)
INDEX_MISSING = register(
    "error",
    "codex.index-missing",
    tr(
        "Notes are said to have their vector, and the file of vectors is missing or cannot be "
        "read: searched by words alone."
    ),
    tr("`regraft rebuild`."),
    "rebuild",
)
INDEX_INCOMPATIBLE = register(
    "error",
    "codex.index-incompatible",
    tr(
        "The file of vectors has another layout, model or length, or is not a file of vectors: searched by words alone."
    ),
    tr("`regraft rebuild`."),
    "rebuild",
)
REBUILDING = register(
    "warning",
    "codex.rebuilding",
    tr("A rebuild of the vectors was begun and is not at its end: searched by words alone until it is."),
    tr("`regraft rebuild`, which resumes, unless it is still running."),
    "rebuild",
)
ORPHAN = register(
    "warning",
    "codex.orphan",
    tr(
        "A vector of no note, of one that is not to have any, or one whose note is not said to "
        "have it, as after a crash between the two writes."
    ),
    tr(
        "{reconcile} A vector that is good is kept, and nothing is embedded again. One of a note that is not to have "
        "any is deleted only with `--only codex.orphan`.",
        reconcile=_RECONCILE,
    ),
    "reconcile",
)
EXCLUDED_VECTOR = register(
    "error",
    "codex.excluded-vector",
    tr("An excluded note has a vector. No search here gives it, but its text was embedded."),
    tr(
        "Nothing, where the note may be included again: the vector is kept for it. `reconcile` deletes it with "
        "`--only codex.excluded-vector`."
    ),
)
VECTOR = register(
    "error",
    "codex.vector",
    tr("A vector is of another length, not finite or all zeros: no search can use it."),
    tr("{reconcile} Its note is embedded again.", reconcile=_RECONCILE),
    "reconcile",
)
METADATA = register(
    "error",
    "codex.metadata",
    tr("What a note's row says of its vector is not so: ready without a vector, an unknown status, and the like."),
    _RECONCILE,
    "reconcile",
)
STALE = register(
    "error",
    "codex.stale",
    tr("A note was changed after its vector was made, or its vector is of another model: it is found by words alone."),
    tr("{reconcile} With an embedder it is embedded again.", reconcile=_RECONCILE),
    "reconcile",
)
FAILED = register(
    "warning",
    "codex.failed",
    tr("A note that could not be embedded: it is found by words alone."),
    tr("`regraft clear-failed` and then `regraft backfill`, once the cause is gone; its code is in the message."),
    "clear-failed",
)
PENDING = register(
    "warning",
    "codex.pending",
    tr("A note has no vector yet: it is found by words alone."),
    tr("`regraft backfill`, which embeds it."),
    "backfill",
)
