"""What an audit of v2 data can say: the registry of its findings (``docs/findings.md``, "v2 data")."""

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

_REINDEX = tr("Indexing the item again in the application.")
_PERSON = tr("You have to decide; the message says what about.")

META_MISSING = register(
    "error",
    "meta.missing",
    tr("The identity row is missing: the application would start an empty index."),
    tr("`regraft repair`: the id is the name of the folder."),
    "repair",
)
META_BASE = register(
    "error", "meta.base-id", tr("The identity row names another base: the application refuses to open it."), _PERSON
)
CONTENT_HASH = register(
    "error",
    "content.hash",
    tr("A text does not match its hash, or what is stored is not text."),
    tr(
        "`regraft repair`: the text is put together from its bodies where that gives the hash; "
        "else it gets its own hash."
    ),
    "repair",
)
CONTENT_ORPHAN = register(
    "warning",
    "content.orphan",
    tr("A text that no material and no unit refers to."),
    tr("`regraft gc`. It costs space, and no search goes wrong."),
    "gc",
)
NO_CONTENT = register(
    "error",
    "material.no-content",
    tr("A material with units refers to no text, or to a missing one."),
    tr(
        "`regraft repair --from SOURCE`, where another copy of the data has the text; else `regraft repair`, where all "
        "units name one text that is there."
    ),
    "repair",
)
PATH_UNSAFE = register(
    "error",
    "material.path-unsafe",
    tr(
        "A path below `raw/` that is not valid: absolute, with `..`, a backslash or NUL, inside "
        "`.cherry`, not normalised, or not UTF-8."
    ),
    tr("`regraft repair`, which gives the material and its item a new name."),
    "repair",
)
PATH_CLASH = register(
    "warning",
    "material.path-clash",
    tr("Two paths that are one where letter case or Unicode normalisation is ignored."),
    tr("Renaming one of the files in the application, before the base moves to such a disk."),
)
NO_UNITS = register(
    "warning",
    "material.no-units",
    tr("A material has a text and no unit: nothing finds it."),
    tr(
        "`regraft repair --from SOURCE`, where another copy of the data has its units; else `regraft backfill`, which "
        "gives the text its former units back where bodies of all of them are left, and cuts it again where not."
    ),
    "backfill",
)
UNIT_OFFSETS = register(
    "error",
    "unit.offsets",
    tr(
        "The place that a unit names in its text (in UTF-16 units) does not hold the unit's "
        "body, or lies beyond the text."
    ),
    tr("`regraft repair`, where the body is found once in the text."),
    "repair",
)
UNIT_ID = register(
    "error",
    "unit.id",
    tr("A unit's id is wrong: it has to be the hash of the unit's own fields."),
    tr("`regraft repair`."),
    "repair",
)
UNIT_GAP = register(
    "warning",
    "unit.gap",
    tr("The units of a material are not numbered 0, 1, 2, …."),
    tr("`regraft repair`, which renumbers them."),
    "repair",
)
UNIT_MISSING = register(
    "warning",
    "unit.missing",
    tr("Part of the text of a material is in none of its units, as after a salvage: no search finds that part."),
    _REINDEX,
)
UNIT_CONTENT = register(
    "error", "unit.content", tr("A unit is of another text than its material, or of a material that is gone."), _REINDEX
)
NO_BODY = register(
    "error",
    "unit.no-body",
    tr("A unit has no body: no search finds it."),
    tr("`regraft repair`: the body is cut from the text."),
    "repair",
)
BODY_ID = register(
    "error",
    "body.id",
    tr("A body's id is wrong: it has to be the hash of the body's own fields."),
    tr("`regraft repair`."),
    "repair",
)
BODY_HASH = register(
    "error",
    "body.hash",
    tr("A body does not match its hash: its vector belongs to another text."),
    tr(
        "`regraft repair`: where the place in the text has that hash, the body is cut from it "
        "and its vector is right; else the body gets its own hash, and its vector has to be "
        "made."
    ),
    "repair",
)
BODY_ORPHAN = register(
    "warning",
    "body.orphan",
    tr("A body whose unit is gone; searches still find it."),
    tr("`regraft repair --only body.orphan`, where the ids prove the unit, which is written again; else `regraft gc`."),
    "gc",
)
BODY_ROWID = register(
    "error",
    "body.rowid",
    tr("The number of a body in the full-text index is missing, duplicated, or not in that index."),
    tr("`regraft repair`."),
    "repair",
)
FTS_DESYNC = register(
    "error",
    "fts.desync",
    tr("The full-text index does not hold what the bodies say: word searches go wrong."),
    tr("`regraft repair`, which rebuilds the full-text index."),
    "repair",
)
VECTOR_MISSING = register(
    "error",
    "embedding.missing",
    tr("A body without a vector, in a base with a model: no vector search finds it."),
    tr(
        "`regraft repair --from SOURCE`, where another copy of the data has the vector; else `regraft backfill`, "
        "which embeds the body."
    ),
    "backfill",
)
VECTOR_ORPHAN = register(
    "warning",
    "embedding.orphan",
    tr("A vector that no body names."),
    tr("`regraft gc`. It costs space, and no search goes wrong."),
    "gc",
)
VECTOR_UNEXPECTED = register(
    "warning",
    "embedding.unexpected",
    tr("Vectors in a base without a model, which is searched by words alone."),
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
        "A stored value is not a vector, or a vector does not have the dimensions of the catalog. Where the catalog "
        "has none: another length than most vectors of the file."
    ),
    tr(
        "`regraft repair --from SOURCE`, where another copy of the data has the right vector; else `regraft backfill`, "
        "which embeds its text again; `regraft repair` only removes the vector. Where most vectors contradict the "
        "catalog: `base.dimensions` first."
    ),
    "backfill",
)
VECTOR_NON_FINITE = register(
    "error",
    "embedding.non-finite",
    tr(
        "A vector with NaN or infinity: the released application throws on every vector query "
        "of the base, so that no search with a model answers. Or one whose norm is too large for single precision, "
        "so that no search can rank it."
    ),
    tr(
        "`regraft repair --from SOURCE`, where another copy of the data has the right vector; else `regraft backfill`, "
        "which embeds its text again; `regraft repair` only drops the vector."
    ),
    "backfill",
)
VECTOR_ZERO = register(
    "warning",
    "embedding.zero",
    tr("A vector of zeros: vector search never finds it."),
    tr(
        "`regraft repair --from SOURCE`, where another copy of the data has the right vector; else `regraft backfill`, "
        "which embeds its text again; `regraft repair` only drops the vector."
    ),
    "backfill",
)
VECTOR_DUPLICATE = register(
    "note",
    "embedding.duplicate",
    tr("Three or more texts share one vector bit for bit: the embedder may have failed without saying so."),
    tr("A look at the texts; if they differ in meaning, indexing their items again."),
)
ITEM_NO_MATERIAL = register(
    "warning",
    "item.no-material",
    tr(
        "A completed item of a completed base (a file, or a url or note with a path) has no material, "
        "so searches do not find it. The severity is note if the records say that v1 had no rows for it."
    ),
    tr(
        "`regraft rescue`, where its rows are still in the vector file of v1; `regraft repair --from SOURCE`, where "
        "another copy of the data has its text; else `regraft backfill`, where its text can be read from `raw/`; else "
        "indexing the item again in the application."
    ),
    "backfill",
)
ITEM_NOT_INDEXED = register(
    "note",
    "item.not-indexed",
    tr("A completed url or note that was never indexed, or whose rows were not carried."),
    tr("`regraft backfill` for a note. A url has to be indexed again in the application: nothing is fetched here."),
    "backfill",
)
ITEM_NO_BASE = register(
    "error", "item.no-base", tr("An item of a base that does not exist. The application does not show it."), _PERSON
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
        "An item's data is not what its type needs, or has what its type does not have: the "
        "application refuses the base's whole list."
    ),
    tr("`regraft repair`, where what is missing can be derived; else a backup of the catalog."),
    "repair",
)
ITEM_CONTAINER = register(
    "warning",
    "item.container",
    tr(
        "A folder's status is not what its children make it, or an item's folder is missing, not a folder, or "
        "inside itself."
    ),
    tr("`regraft repair`."),
    "repair",
)
ITEM_PATH_IS_ID = register(
    "note",
    "item.path-is-id",
    tr(
        "A folder's file whose path is its own id, as releases 2.0.0 to 2.0.3 and earlier "
        "builds gave it: the application shows that id for its name. It is searched like any "
        "other."
    ),
    tr(
        "`regraft repair --only item.path-is-id`, which gives folders and their files readable "
        "paths; never `regraft repair` by itself."
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
        "A folder that the upgrade left behind: an error where its rows are still there to be "
        "brought back, else a warning."
    ),
    tr(
        "`regraft rescue`, where the vector file of v1 has its rows; else deleting the folder "
        "in the application and adding it again."
    ),
)
CATALOG_VALUE = register(
    "error",
    "catalog.value",
    tr(
        "A base or an item has a value of a type that its column does not hold, such as bytes "
        "for its name: the application cannot read the row."
    ),
    tr("You have to decide: remove or correct the row, or restore a backup of the catalog."),
)
BASE_STATUS = register(
    "error",
    "base.status",
    tr("Status, error, model, dimensions and search mode of a base do not go together."),
    tr(
        "`regraft repair`, where the vectors tell what is right; `regraft repair --model ID`, "
        "where only a person knows whose they are."
    ),
    "repair",
)
BASE_MODEL = register(
    "error",
    "base.model",
    tr("A base names a model that does not exist."),
    tr(
        "Add the model in the application under the same id. While a base is migrated or installed, "
        "`--map-model OLD=NEW` gives it another model of the profile, and `--recreate-model` and `regraft install "
        "--recreate-provider` add the missing one."
    ),
)
BASE_EXISTS = register(
    "error",
    "base.exists",
    tr("The profile has a base, folder or item of the same id already, with other content. `install` says so."),
    tr(
        "`regraft install --as-new` installs the base beside it under new ids, and `--name NAME` gives it another "
        "name. The base that is there is never changed: `regraft explain move`."
    ),
)
MODEL_INCOMPLETE = register(
    "error",
    "model.incomplete",
    tr(
        "A model of the user's own lacks its name, what it can do, or whether it streams: the "
        "application reads no model at all then."
    ),
    tr("Completing or deleting the model's row; a backup of the database."),
)
BASE_DIMENSIONS = register(
    "error",
    "base.dimensions",
    tr("The catalog gives another number of dimensions than most vectors have."),
    tr(
        "`regraft repair`, where all vectors have the same number. Else a person has to find out which are right: "
        "where the catalog is, `regraft repair --only embedding.length` removes the others, to be embedded again."
    ),
    "repair",
)
BASE_FAILED = register(
    "error",
    "base.failed",
    tr(
        "A base that failed at the upgrade or at a migration: an error where `regraft rescue` "
        "can bring it back, else a warning."
    ),
    tr(
        "`regraft rescue`, where the vector file of v1 has its rows; `regraft repair --only base.failed`, where its "
        "index is complete: nothing is embedded. Else `regraft restore`, or restoring it in the application: both make "
        "a new base and embed everything again."
    ),
    "repair",
)
BASE_NO_INDEX = register(
    "error",
    "base.no-index",
    tr("A completed base has no index file."),
    tr(
        "`regraft repair --from SOURCE`, where another copy of the data has its texts and vectors (in a profile that "
        "still has the vector file of v1: `regraft rescue`); else `regraft backfill`, which builds the index again "
        "from raw files and notes and embeds it. The base keeps its id."
    ),
    "backfill",
)
INDEX_ORPHAN = register(
    "warning",
    "index.orphan",
    tr("A base's folder that no row of the catalog names."),
    tr(
        "`regraft repair --only index.orphan --adopt`, which lists the base again with what its index and files tell. "
        "It costs space, and no search goes wrong: `gc` removes it only with `--only index.orphan`."
    ),
    "repair --only index.orphan --adopt",
)
MATERIAL_ORPHAN = register(
    "warning",
    "material.orphan",
    tr("A material without an item, or of an item that is being deleted."),
    tr(
        "`regraft repair --only material.orphan --adopt`, which lists the item again. It is kept otherwise: "
        "`reconcile` deletes it only with `--only material.orphan`."
    ),
    "repair --only material.orphan --adopt",
)
MATERIAL_PATH = register(
    "error",
    "material.path",
    tr("Index and item do not give the same path."),
    tr("`regraft reconcile`: the index follows the catalog."),
    "reconcile",
)
RAW_MISSING = register(
    "warning",
    "raw.missing",
    tr(
        "A material's file is gone. Its text is found; it cannot be indexed again. The virtual "
        "paths of folders' files do not count: their own id, or below their folder's prefix."
    ),
    tr("A full backup, or adding the file again."),
)
RAW_CHANGED = register(
    "warning",
    "raw.changed",
    tr("The snapshot of a url or note is not the text that was indexed."),
    tr("Indexing the item again, which takes the snapshot as it is now."),
)
RAW_ORPHAN = register(
    "warning",
    "raw.orphan",
    tr("A file in `raw/`, older than an hour, that no item names."),
    tr(
        "`regraft gc`, where another file or an indexed text is the same. It costs space, and nothing else: where it "
        "may be the only copy, `gc` removes it only with `--only raw.orphan`."
    ),
    "gc",
)
LEFTOVER = register(
    "note",
    "v1.leftover",
    tr(
        "Vector files of v1 are still on disk. While something can be rescued from them: the "
        "application's own clean-up of old data deletes them, those of failed bases, too."
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
        "A `cherrystudio.sqlite` in the profile's root beside the live one in `Data/`: a "
        "left-over of a beta. The application does not open it, and it is never read here."
    ),
    tr("Nothing needs to be fixed. The application's own clean-up of old data deletes it."),
)
PENDING = register(
    "error",
    "catalog.pending",
    tr(
        "A restore is staged or being put into place, or a reset waits: what is written now is "
        "thrown away at the next start. A record of either that cannot be read counts as "
        "pending. Every command that writes refuses."
    ),
    tr(
        "Starting the application once, letting it finish, and quitting it. Before a reset: "
        "copying what you want to keep."
    ),
)


BACKUP_SLIM = register(
    "note",
    "backup.slim",
    tr("A slim backup has only the database: the rows of its bases, but not their indexes and files."),
    tr("Nothing is wrong. A full backup, or the profile that it was made of, has the rest."),
)
