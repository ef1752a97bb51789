"""The findings of v2 data that an audit can report (``docs/findings.md``, "v2 data")."""

from __future__ import annotations

from checks.audit import findings as audit_findings
from checks.audit.findings import register
from regraft.language import tr

UNREADABLE = audit_findings.UNREADABLE
CORRUPT = audit_findings.CORRUPT
HOT_JOURNAL = audit_findings.HOT_JOURNAL
SCHEMA_MISSING = audit_findings.SCHEMA_MISSING
SCHEMA_VERSION = audit_findings.SCHEMA_VERSION
SCHEMA_PREVIEW = audit_findings.SCHEMA_PREVIEW
FOREIGN_TRIGGER = audit_findings.FOREIGN_TRIGGER
FOREIGN_VIEW = audit_findings.FOREIGN_VIEW
FOREIGN_COLUMN = audit_findings.FOREIGN_COLUMN
FOREIGN_INDEX = audit_findings.FOREIGN_INDEX
FOREIGN_TEXT_INDEX = audit_findings.FOREIGN_TEXT_INDEX

_REINDEX = tr("Index the item again in the application.")
_PERSON = tr("Needs your decision. The message shows the options.")

META_MISSING = register(
    "error",
    "meta.missing",
    tr("The identity row is missing: the application would create an empty index."),
    tr("`regraft repair` takes the id from the name of the folder."),
    "repair",
)
META_BASE = register(
    "error",
    "meta.base-id",
    tr("The identity row names another base: the application refuses to open it."),
    tr(
        "Nothing repairs it, because the index may be the other base's. If the folder is a copy, or was renamed, move "
        "it away or give it its name again. If its base is in the catalog, restore the index file from a backup."
    ),
)
CONTENT_HASH = register(
    "error",
    "content.hash",
    tr("A text does not match its hash, or the stored value is not text."),
    tr(
        "`regraft repair` reassembles the text from its chunks if the result has the stored hash; "
        "otherwise it updates the hash."
    ),
    "repair",
)
CONTENT_ORPHAN = register(
    "warning",
    "content.orphan",
    tr("A text that no material and no unit refers to."),
    tr("`regraft gc`. The row takes up space but does not affect searches."),
    "gc",
)
NO_CONTENT = register(
    "error",
    "material.no-content",
    tr("A material with units refers to no text, or to one that is missing."),
    tr(
        "`regraft repair --from SOURCE` if another copy of the data has the text; otherwise `regraft "
        "repair` if all units refer to the same existing text."
    ),
    "repair",
)
PATH_UNSAFE = register(
    "error",
    "material.path-unsafe",
    tr(
        "A path in `raw/` is invalid: it is absolute, contains `..`, a backslash or NUL, is inside "
        "`.cherry`, is not normalized, or is not UTF-8."
    ),
    tr("`regraft repair` renames the material and its item."),
    "repair",
)
PATH_CLASH = register(
    "warning",
    "material.path-clash",
    tr("Two paths are the same on disks that ignore letter case or Unicode normalization."),
    tr("Rename one of the files in the application before the base is moved to such a disk."),
)
NO_UNITS = register(
    "warning",
    "material.no-units",
    tr("A material has a text but no units: searches do not find it."),
    tr(
        "`regraft repair --from SOURCE` if another copy of the data has its units; otherwise `regraft "
        "backfill`, which restores the former units if all of their bodies still exist, and splits the "
        "text again if not."
    ),
    "backfill",
)
UNIT_OFFSETS = register(
    "error",
    "unit.offsets",
    tr("A unit's offsets (in UTF-16 units) do not match its body, or are beyond the end of the text."),
    tr("`regraft repair`, if the body occurs exactly once in the text."),
    "repair",
)
UNIT_ID = register(
    "error",
    "unit.id",
    tr("A unit's id is not the hash of the unit's fields."),
    tr("`regraft repair`."),
    "repair",
)
UNIT_GAP = register(
    "warning",
    "unit.gap",
    tr("The units of a material are not numbered 0, 1, 2, …."),
    tr("`regraft repair` renumbers them."),
    "repair",
)
UNIT_MISSING = register(
    "warning",
    "unit.missing",
    tr(
        "Part of a material's text is not covered by any of its units, or is missing because rows were lost, as can "
        "happen in a salvage. Searches do not find that part."
    ),
    tr(
        "Index the item again in the application. Rows that were lost in a salvage come back with `regraft repair "
        "--from` an undamaged copy of the data, or if that is migrated into the same library."
    ),
)
UNIT_CONTENT = register(
    "error",
    "unit.content",
    tr("A unit refers to a different text than its material, or its material is missing."),
    _REINDEX,
)
NO_BODY = register(
    "error",
    "unit.no-body",
    tr("A unit has no body: no search finds it."),
    tr("`regraft repair` cuts the body from the text."),
    "repair",
)
BODY_ID = register(
    "error",
    "body.id",
    tr("A body's id is not the hash of the body's fields."),
    tr("`regraft repair`."),
    "repair",
)
BODY_HASH = register(
    "error",
    "body.hash",
    tr("A body does not match its hash: its vector belongs to another text."),
    tr(
        "`regraft repair`: if the slice of the text has the stored hash, the body is restored from it "
        "and its vector is kept; otherwise the hash is updated, and the vector has to be made again."
    ),
    "repair",
)
BODY_ORPHAN = register(
    "warning",
    "body.orphan",
    tr("A body's unit is missing, but searches still find the body."),
    tr(
        "`regraft repair --only body.orphan` restores the unit if the ids prove what it was; otherwise "
        "`regraft gc` removes the body."
    ),
    "gc",
)
BODY_ROWID = register(
    "error",
    "body.rowid",
    tr("A body's row number in the full-text index is missing, duplicated, or not in that index."),
    tr("`regraft repair`."),
    "repair",
)
FTS_DESYNC = register(
    "error",
    "fts.desync",
    tr("The full-text index does not match the stored texts: keyword searches give wrong results."),
    tr("`regraft repair` rebuilds the full-text index."),
    "repair",
)
VECTOR_MISSING = register(
    "error",
    "embedding.missing",
    tr("A body has no vector although the base has a model: vector search does not find it."),
    tr(
        "`regraft repair --from SOURCE` if another copy of the data has the vector; otherwise `regraft "
        "backfill`, which embeds the body."
    ),
    "backfill",
)
VECTOR_ORPHAN = register(
    "warning",
    "embedding.orphan",
    tr("A vector is not referenced by any indexed text."),
    tr("`regraft gc`. The row takes up space but does not affect searches."),
    "gc",
)
VECTOR_UNEXPECTED = register(
    "warning",
    "embedding.unexpected",
    tr("A base without a model has vectors. It is searched by keywords only."),
    tr(
        "`regraft repair --only embedding.unexpected --model ID` sets the model of the base to the one "
        "that made the vectors, and keeps them. If searching by words is enough, `regraft gc --only "
        "embedding.unexpected` removes them."
    ),
    "repair --only embedding.unexpected --model",
)
VECTOR_LENGTH = register(
    "error",
    "embedding.length",
    tr(
        "A stored value is not a vector, or a vector's length differs from the dimensions in the "
        "catalog (if the catalog has none: from the length of most vectors in the file)."
    ),
    tr(
        "`regraft repair --from SOURCE` if another copy of the data has the right vector; otherwise "
        "`regraft backfill`, which embeds the text again. `regraft repair` alone only removes the "
        "vector. If most vectors contradict the catalog, fix `base.dimensions` first."
    ),
    "backfill",
)
VECTOR_NON_FINITE = register(
    "error",
    "embedding.non-finite",
    tr(
        "A vector contains NaN or infinity, which makes every vector query of the base fail in the "
        "released application; or its norm is too large for single precision, so that no search can "
        "rank it."
    ),
    tr(
        "`regraft repair --from SOURCE` if another copy of the data has the right vector; otherwise "
        "`regraft backfill`, which embeds the text again. `regraft repair` alone only removes the "
        "vector."
    ),
    "backfill",
)
VECTOR_ZERO = register(
    "warning",
    "embedding.zero",
    tr("A vector is all zeros: vector search never finds its text."),
    tr(
        "`regraft repair --from SOURCE` if another copy of the data has the right vector; otherwise "
        "`regraft backfill`, which embeds the text again. `regraft repair` alone only removes the "
        "vector."
    ),
    "backfill",
)
VECTOR_CHANGED = register(
    "error",
    "vector.changed",
    tr(
        "A vector differs from what an earlier run of `check --part` recorded, and neither the hash of its text nor "
        "the time of its row changed: the disk or a copy altered it, or another program wrote it without a new time. "
        "Reported by `check --part`."
    ),
    tr(
        "Find out which vector is right: `regraft certify PATH COPY` compares with another copy of the data. Then "
        "restore the index from a backup made before. `regraft repair --from` does not replace a vector that can be "
        "used. See `regraft explain rolling-check`."
    ),
)
VECTOR_DUPLICATE = register(
    "note",
    "embedding.duplicate",
    tr("Three or more texts have bit-identical vectors: the embedder may have failed without reporting an error."),
    tr("Compare the texts. If they differ in meaning, index their items again."),
)
ITEM_NO_MATERIAL = register(
    "warning",
    "item.no-material",
    tr(
        "A completed item of a completed base (a file, or a url or note with a path) has no material, "
        "so searches do not find it. The severity is note if the records say that v1 had no rows for it."
    ),
    tr(
        "`regraft rescue` if v1's vector file still has its rows; `regraft repair --from SOURCE` if "
        "another copy of the data has its text; `regraft backfill` if its text can be read from `raw/`; "
        "otherwise index the item again in the application."
    ),
    "backfill",
)
ITEM_NOT_INDEXED = register(
    "warning",
    "item.not-indexed",
    tr(
        "A completed URL or note was never indexed, or its rows were not migrated. The severity is note unless a "
        "salvage may have lost its rows."
    ),
    tr(
        "`regraft repair --from SOURCE` if a salvage lost its rows and another copy of the data has them; "
        "`regraft backfill` for a note. Otherwise a URL has to be indexed again in the application, because "
        "regraft does not fetch anything."
    ),
    "backfill",
)
ITEM_NO_BASE = register(
    "error",
    "item.no-base",
    tr("An item refers to a base that does not exist. The application does not show it."),
    _PERSON,
)
ITEM_STATUS = register(
    "error",
    "item.status",
    tr(
        "Status, error and type of an item contradict each other, or it is in progress although the application "
        "is not running, or its type is not text."
    ),
    tr("`regraft repair`."),
    "repair",
)
ITEM_DATA = register(
    "error",
    "item.data",
    tr(
        "An item's data lacks a field that its type requires, or has a field that its type does not "
        "allow. The application then refuses to load the base's list."
    ),
    tr("`regraft repair` if the missing values can be derived; otherwise restore the catalog from a backup."),
    "repair",
)
ITEM_CONTAINER = register(
    "warning",
    "item.container",
    tr(
        "A folder's status contradicts its children, or an item's folder is missing, is not a folder, "
        "or is inside itself."
    ),
    tr("`regraft repair`."),
    "repair",
)
ITEM_PATH_IS_ID = register(
    "note",
    "item.path-is-id",
    tr(
        "A file in a folder has its own id as its path, as written by releases 2.0.0 to 2.0.3 and "
        "earlier builds. The application shows the id instead of a name. Searches are not affected."
    ),
    tr(
        "`regraft repair --only item.path-is-id` gives folders and their files readable paths. `regraft "
        "repair` without that option does not change them."
    ),
    "repair",
)
ITEM_FOREIGN = register(
    "note",
    "item.foreign-type",
    tr(
        "An item of a type that a newer version of the application introduced, such as `external`. No "
        "command changes it."
    ),
    tr("Nothing needs to be fixed."),
)
ITEM_TOMBSTONE = register(
    "error",
    "item.tombstone",
    tr(
        "A folder failed in the application's upgrade. An error if its rows can still be recovered, "
        "otherwise a warning."
    ),
    tr(
        "`regraft rescue` if v1's vector file has its rows; otherwise delete the folder in the "
        "application and add it again."
    ),
)
ITEM_SOURCE_MISSING = register(
    "note",
    "item.source-missing",
    tr(
        "The original of a file or folder is not at its path any more, so the application refuses to index the item "
        "again. Searches are not affected. regraft looks only for originals in a home folder or on a drive that this "
        "computer has."
    ),
    tr(
        "`regraft repair --moved OLD=NEW` if the folder was moved or renamed; otherwise nothing, or add the file again "
        "in the application. `regraft sync` compares the originals of a base with its texts: there the same item is "
        "`source.gone` or `source.unreachable`, and `sync --delete` removes it."
    ),
)
CATALOG_VALUE = register(
    "error",
    "catalog.value",
    tr(
        "A base or an item has a value of the wrong type for its column, such as bytes for a name: the "
        "application cannot read the row."
    ),
    tr("Needs your decision: remove or correct the row, or restore the catalog from a backup."),
)
BASE_STATUS = register(
    "error",
    "base.status",
    tr("Status, error, model, dimensions and search mode of a base contradict each other."),
    tr(
        "`regraft repair` if the vectors show what is right; `regraft repair --model ID` if only you "
        "know which model made them."
    ),
    "repair",
)
BASE_MODEL = register(
    "error",
    "base.model",
    tr("A base refers to a model that does not exist."),
    tr(
        "Add the model in the application under the same id. While a base is migrated or installed, "
        "`--map-model OLD=NEW` gives it another model of the profile, and `--recreate-model` and `regraft install "
        "--recreate-provider` add the missing one."
    ),
)
BASE_EXISTS = register(
    "error",
    "base.exists",
    tr("The profile already has a base, folder or item with the same id and different content. Reported by `install`."),
    tr(
        "`regraft install --as-new` installs the base under new ids, next to the existing one; `--name "
        "NAME` renames it. The existing base is never changed: see `regraft explain move`."
    ),
)
MODEL_INCOMPLETE = register(
    "error",
    "model.incomplete",
    tr(
        "A custom model lacks its name, its capabilities, or its streaming flag. The application then "
        "reads no models at all."
    ),
    tr("Complete or delete the model's row, or restore the database from a backup."),
)
BASE_DIMENSIONS = register(
    "error",
    "base.dimensions",
    tr("The dimensions in the catalog differ from the length of most vectors."),
    tr(
        "`regraft repair` if all vectors have the same length. Otherwise you have to decide which "
        "length is right: if the catalog is right, `regraft repair --only embedding.length` removes the "
        "other vectors so that they can be embedded again."
    ),
    "repair",
)
BASE_FAILED = register(
    "error",
    "base.failed",
    tr(
        "A base failed in the upgrade or in a migration. An error if `regraft rescue` can recover it, "
        "otherwise a warning."
    ),
    tr(
        "`regraft rescue` if v1's vector file has its rows; `regraft repair --only base.failed` if its "
        "index is complete (nothing is embedded). Otherwise `regraft restore`, or restoring it in the "
        "application: both create a new base and embed everything again."
    ),
    "repair",
)
BASE_NO_INDEX = register(
    "error",
    "base.no-index",
    tr("A completed base has no index file."),
    tr(
        "`regraft repair --from SOURCE` if another copy of the data has its texts and vectors (in a "
        "profile that still has v1's vector file: `regraft rescue`); otherwise `regraft backfill`, "
        "which rebuilds the index from raw files and notes and embeds it. The base keeps its id."
    ),
    "backfill",
)
INDEX_ORPHAN = register(
    "warning",
    "index.orphan",
    tr("A base's folder is not listed in the catalog."),
    tr(
        "`regraft repair --only index.orphan --adopt` lists the base again, with the details that its "
        "index and files provide. The folder takes up space but does not affect searches; `gc` removes "
        "it only with `--only index.orphan`."
    ),
    "repair --only index.orphan --adopt",
)
MATERIAL_ORPHAN = register(
    "warning",
    "material.orphan",
    tr("A material has no item, or its item is being deleted."),
    tr(
        "`regraft repair --only material.orphan --adopt` lists the item again. Otherwise the material "
        "is kept: `reconcile` deletes it only with `--only material.orphan`."
    ),
    "repair --only material.orphan --adopt",
)
MATERIAL_PATH = register(
    "error",
    "material.path",
    tr("The index and the item have different paths."),
    tr("`regraft reconcile` updates the index to match the catalog."),
    "reconcile",
)
RAW_MISSING = register(
    "warning",
    "raw.missing",
    tr(
        "A material's file is missing. Its text can be searched, but the file cannot be indexed again. "
        "Virtual paths of files in folders (their own id, or a path below the folder's prefix) do not "
        "count."
    ),
    tr("Restore the file from a full backup, or add it again."),
)
RAW_CHANGED = register(
    "warning",
    "raw.changed",
    tr("The snapshot of a URL or note differs from the text that was indexed."),
    tr("Index the item again; the current snapshot is used."),
)
RAW_ORPHAN = register(
    "warning",
    "raw.orphan",
    tr("A file in `raw/`, older than an hour, belongs to no item."),
    tr(
        "`regraft gc` if another file or an indexed text has the same content. The file only takes up "
        "space; if it may be the only copy, `gc` removes it only with `--only raw.orphan`."
    ),
    "gc",
)
LEFTOVER = register(
    "note",
    "v1.leftover",
    tr(
        "Vector files of v1 are still on disk. The application's clean-up of old data deletes them, "
        "including those of failed bases, even while something could still be rescued from them."
    ),
    tr(
        "`regraft gc --v1-leftovers` removes the files whose vectors are all in v2. `regraft check "
        "--deep` shows the command if that applies to every file."
    ),
)
STALE_COPY = register(
    "note",
    "catalog.stale-copy",
    tr(
        "The profile's root contains a `cherrystudio.sqlite` in addition to the live one in `Data/`, "
        "left over from a beta. The application does not open it, and regraft does not read it."
    ),
    tr("Nothing needs to be fixed. The application's own clean-up of old data deletes it."),
)
PENDING = register(
    "error",
    "catalog.pending",
    tr(
        "The application will restore a backup at its next start, or a restore or reset is not finished: anything "
        "written now is discarded at the next start. A record of either that cannot be read counts as pending. "
        "Every command that writes refuses to run."
    ),
    tr("Start the application once, let it finish, and quit it. Before a reset, copy what you want to keep."),
)


BACKUP_SLIM = register(
    "note",
    "backup.slim",
    tr("A slim backup contains only the database: the rows of its bases, but not their indexes and files."),
    tr("Nothing is wrong. A full backup, or the profile that was backed up, has the rest."),
)

# What a base's original files are to ``sync``; an audit does not look for them.

SOURCE_GONE = register(
    "warning",
    "source.gone",
    tr(
        "The original file of an item no longer exists, but its folder does. Reported by `sync`; `check` reports the "
        "same as `item.source-missing`."
    ),
    tr("`regraft sync --delete` removes such items; `regraft sync --moved OLD=NEW` says where their folder is now."),
)
SOURCE_UNREACHABLE = register(
    "warning",
    "source.unreachable",
    tr(
        "An original file or folder cannot be followed: its path is of another operating system, its disk is not "
        "there, it is a link, or it cannot be read. Reported by `sync`; if its folder is gone, `check` reports it as "
        "`item.source-missing`."
    ),
    tr(
        "The message shows the reason. `regraft sync --moved OLD=NEW` says where the files are now; "
        "`regraft repair --moved OLD=NEW` corrects the paths without reading the files."
    ),
)
SOURCE_UNREAD = register(
    "warning",
    "source.unread",
    tr("A new or changed file whose text only the application reads, such as PDF. Reported by `sync`."),
    tr("`regraft sync --extractor COMMAND` gives regraft its text, or index it in the application."),
)
SOURCE_SKIPPED = register(
    "note",
    "source.skipped",
    tr("A file that is not followed: hidden, a link, not text, or without a recorded path. Reported by `sync`."),
    tr("Nothing needs to be done. The message shows the reason."),
)
