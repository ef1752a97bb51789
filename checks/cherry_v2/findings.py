"""What an audit of v2 data can say: the registry of its findings (``docs/findings.md``, "v2 data")."""

from __future__ import annotations

from checks.audit import file_findings
from checks.audit.findings import register

UNREADABLE = file_findings.UNREADABLE
CORRUPT = file_findings.CORRUPT
HOT_JOURNAL = file_findings.HOT_JOURNAL
SCHEMA_MISSING = file_findings.SCHEMA_MISSING
SCHEMA_VERSION = file_findings.SCHEMA_VERSION
SCHEMA_PREVIEW = file_findings.SCHEMA_PREVIEW
FOREIGN_TRIGGER = file_findings.FOREIGN_TRIGGER
FOREIGN_VIEW = file_findings.FOREIGN_VIEW
FOREIGN_COLUMN = file_findings.FOREIGN_COLUMN
FOREIGN_INDEX = file_findings.FOREIGN_INDEX
FOREIGN_TEXT_INDEX = file_findings.FOREIGN_TEXT_INDEX

_REINDEX = "Indexing the item again in the application."
_PERSON = "A person has to decide; the message says about what."

META_MISSING = register(
    "error",
    "meta.missing",
    "The identity row is missing: the application would start an empty index.",
    "`regraft repair`: the id is the name of the folder.",
    "repair",
)
META_BASE = register(
    "error", "meta.base-id", "The identity row names another base: the application refuses to open it.", _PERSON
)
CONTENT_HASH = register(
    "error",
    "content.hash",
    "A text does not match its hash, or is no text.",
    "`regraft repair`: the text is put together from its bodies where that gives the hash; else it gets its own hash.",
    "repair",
)
CONTENT_ORPHAN = register(
    "warning",
    "content.orphan",
    "A text that neither a material nor a unit names.",
    "`regraft gc`. It costs space, and no search goes wrong.",
    "gc",
)
NO_CONTENT = register(
    "error",
    "material.no-content",
    "A material with units names no text, or one that is not there.",
    "`regraft repair`, where all units name one text that is there.",
    "repair",
)
PATH_UNSAFE = register(
    "error",
    "material.path-unsafe",
    "A path below `raw/` that is none: absolute, with `..`, a backslash or NUL, inside `.cherry`, not "
    "normalised, or not UTF-8.",
    "`regraft repair`, which gives the material and its item a new name.",
    "repair",
)
PATH_CLASH = register(
    "warning",
    "material.path-clash",
    "Two paths that are one where letter case or Unicode normalisation is ignored.",
    "Renaming one of the files in the application, before the base moves to such a disk.",
)
NO_UNITS = register(
    "warning",
    "material.no-units",
    "A material has a text and no unit: nothing finds it.",
    "`regraft backfill`, which gives the text its former units back where bodies of all of them are left, and cuts it"
    " anew where not.",
    "backfill",
)
UNIT_OFFSETS = register(
    "error",
    "unit.offsets",
    "The place that a unit names in its text (in UTF-16 units) does not hold the unit's body, or lies beyond the text.",
    "`regraft repair`, where the body is found once in the text.",
    "repair",
)
UNIT_ID = register(
    "error",
    "unit.id",
    "A unit's id does not follow from its fields.",
    "`regraft repair`.",
    "repair",
)
UNIT_GAP = register(
    "warning",
    "unit.gap",
    "The units of a material are not numbered 0, 1, 2, ….",
    "`regraft repair`, which numbers them anew.",
    "repair",
)
UNIT_CONTENT = register(
    "error", "unit.content", "A unit is of another text than its material, or of a material that is gone.", _REINDEX
)
NO_BODY = register(
    "error",
    "unit.no-body",
    "A unit has no body: no search finds it.",
    "`regraft repair`: the body is cut from the text.",
    "repair",
)
BODY_ID = register(
    "error",
    "body.id",
    "A body's id does not follow from its fields.",
    "`regraft repair`.",
    "repair",
)
BODY_HASH = register(
    "error",
    "body.hash",
    "A body does not match its hash: its vector belongs to another text.",
    "`regraft repair`: where the place in the text has that hash, the body is cut from it and its vector is "
    "right; else the body gets its own hash, and its vector has to be made.",
    "repair",
)
BODY_ORPHAN = register(
    "warning",
    "body.orphan",
    "A body whose unit is gone; searches still find it.",
    "`regraft gc`.",
    "gc",
)
BODY_ROWID = register(
    "error",
    "body.rowid",
    "The number of a body in the full-text index is missing, double, or out of step with that index.",
    "`regraft repair`.",
    "repair",
)
FTS_DESYNC = register(
    "error",
    "fts.desync",
    "The full-text index does not hold what the bodies say: word searches go wrong.",
    "`regraft repair`, which builds the full-text index anew.",
    "repair",
)
VECTOR_MISSING = register(
    "error",
    "embedding.missing",
    "A body without a vector, in a base with a model: no vector search finds it.",
    "`regraft backfill`, which embeds it.",
    "backfill",
)
VECTOR_ORPHAN = register(
    "warning",
    "embedding.orphan",
    "A vector that no body names.",
    "`regraft gc`. It costs space, and no search goes wrong.",
    "gc",
)
VECTOR_UNEXPECTED = register(
    "warning",
    "embedding.unexpected",
    "Vectors in a base without a model, which is searched by words alone.",
    "A person has to decide: `regraft gc --only embedding.unexpected` removes them.",
    "gc",
)
VECTOR_LENGTH = register(
    "error",
    "embedding.length",
    "A vector is no vector, or has another length than most of the file's.",
    "`regraft backfill`, which embeds its text again; `regraft repair` only drops the vector.",
    "backfill",
)
VECTOR_NON_FINITE = register(
    "error",
    "embedding.non-finite",
    "A vector with NaN or infinity: the released application throws on every vector query of the base, so that no"
    " search with a model answers.",
    "`regraft backfill`, which embeds its text again; `regraft repair` only drops the vector.",
    "backfill",
)
VECTOR_ZERO = register(
    "warning",
    "embedding.zero",
    "A vector of no length: vector search never gives it.",
    "`regraft backfill`, which embeds its text again; `regraft repair` only drops the vector.",
    "backfill",
)
VECTOR_DUPLICATE = register(
    "note",
    "embedding.duplicate",
    "Three or more texts share one vector bit for bit: the embedder may have failed without saying so.",
    "A look at the texts; if they differ in meaning, indexing their items again.",
)
ITEM_NO_MATERIAL = register(
    "warning",
    "item.no-material",
    "In a completed base, a completed file, or a completed url or note that has a path, has no material: nothing finds"
    " it. A note where it is recorded that v1 had no rows of it.",
    "`regraft rescue`, where its rows are still in the vector file of v1; else `regraft backfill`, where its text can"
    " be read from `raw/`; else indexing the item again in the application.",
    "backfill",
)
ITEM_NOT_INDEXED = register(
    "note",
    "item.not-indexed",
    "A completed url or note that was never indexed, or whose rows were not carried.",
    "`regraft backfill` for a note. A url has to be indexed again in the application: nothing is fetched here.",
    "backfill",
)
ITEM_NO_BASE = register("error", "item.no-base", "An item of a base that does not exist: nobody sees it.", _PERSON)
ITEM_STATUS = register(
    "error",
    "item.status",
    "Status, error and type of an item do not go together, or it is being worked on and nobody is working. Or its type"
    " is no text.",
    "`regraft repair`.",
    "repair",
)
ITEM_DATA = register(
    "error",
    "item.data",
    "An item's data is not what its type needs, or has what its type does not have: the application refuses the base's"
    " whole list.",
    "`regraft repair`, where what is missing can be derived; else a backup of the catalog.",
    "repair",
)
ITEM_CONTAINER = register(
    "warning",
    "item.container",
    "A folder's status does not follow from its children, or an item's folder is missing, no folder, or inside itself.",
    "`regraft repair`.",
    "repair",
)
ITEM_PATH_IS_ID = register(
    "note",
    "item.path-is-id",
    "A folder's file whose path is its own id, as releases 2.0.0 to 2.0.3 and earlier builds gave it: the application"
    " shows that id for its name. It is searched like any other.",
    "`regraft repair --only item.path-is-id`, which gives folders and their files readable paths; never `regraft"
    " repair` by itself.",
    "repair",
)
ITEM_FOREIGN = register(
    "note",
    "item.foreign-type",
    "An item of a type that a newer application has, such as `external`, or one of these that is being deleted. Every"
    " command leaves it alone.",
    "Nothing has to be mended.",
)
ITEM_TOMBSTONE = register(
    "error",
    "item.tombstone",
    "A folder that the upgrade left behind: an error where its rows are still there to be brought back, else a"
    " warning.",
    "`regraft rescue`, where the vector file of v1 has its rows; else deleting the folder in the application"
    " and adding it again.",
)
CATALOG_VALUE = register(
    "error",
    "catalog.value",
    "A base or an item has a value of a type that its column does not hold, such as bytes for its name: the application"
    " cannot read the row.",
    "A person has to decide: the row can be removed or set right; else a backup of the catalog.",
)
BASE_STATUS = register(
    "error",
    "base.status",
    "Status, error, model, dimensions and search mode of a base do not go together.",
    "`regraft repair`, where the vectors tell what is right; else a person has to decide.",
    "repair",
)
BASE_MODEL = register(
    "error",
    "base.model",
    "A base names a model that does not exist.",
    "Adding the model in the application under the same id.",
)
MODEL_INCOMPLETE = register(
    "error",
    "model.incomplete",
    "A model of the user's own lacks its name, what it can do, or whether it streams: the application reads no model"
    " at all then.",
    "Completing or deleting the model's row; a backup of the database.",
)
BASE_DIMENSIONS = register(
    "error",
    "base.dimensions",
    "The catalog gives another length of vectors than all vectors have.",
    "`regraft repair`, where all vectors are of one length.",
    "repair",
)
BASE_FAILED = register(
    "error",
    "base.failed",
    "A base that failed at the upgrade or at a migration: an error where `regraft rescue` can bring it back, else a"
    " warning.",
    "`regraft rescue`, where the vector file of v1 has its rows; else `regraft restore`, or restoring it in the"
    " application: both make a new base and embed everything anew.",
)
BASE_NO_INDEX = register(
    "error",
    "base.no-index",
    "A completed base has no index file.",
    "`regraft rescue`, where the vector file of v1 is still there; else a backup of the file.",
)
INDEX_ORPHAN = register(
    "warning",
    "index.orphan",
    "A base's folder that no row of the catalog names.",
    "`regraft gc`. It costs space, and no search goes wrong.",
    "gc",
)
MATERIAL_ORPHAN = register(
    "warning",
    "material.orphan",
    "A material without an item, or of an item that is being deleted.",
    "`regraft reconcile`.",
    "reconcile",
)
MATERIAL_PATH = register(
    "error",
    "material.path",
    "Index and item do not give the same path.",
    "`regraft reconcile`: the index follows the catalog.",
    "reconcile",
)
RAW_MISSING = register(
    "warning",
    "raw.missing",
    "A material's file is gone. Its text is found; it cannot be indexed again. The virtual paths of folders' files do"
    " not count: their own id, or below their folder's prefix.",
    "A full backup, or adding the file again.",
)
RAW_CHANGED = register(
    "warning",
    "raw.changed",
    "The snapshot of a url or note is not the text that was indexed.",
    "Indexing the item again, which takes the snapshot as it is now.",
)
RAW_ORPHAN = register(
    "warning",
    "raw.orphan",
    "A file in `raw/`, older than an hour, that no item names.",
    "`regraft gc`. It costs space, and nothing else.",
    "gc",
)
LEFTOVER = register(
    "note",
    "v1.leftover",
    "Vector files of v1 are still on disk. While something can be rescued from them: the application's own clean-up of"
    " old data deletes them, those of failed bases, too.",
    "`regraft gc --v1-leftovers`, which removes those whose every vector is in v2; `regraft check --deep` gives the"
    " command where that is all of them.",
)
STALE_COPY = register(
    "note",
    "catalog.stale-copy",
    "A `cherrystudio.sqlite` in the profile's root beside the live one in `Data/`: a left-over of a beta. The"
    " application does not open it, and it is never read here.",
    "Nothing has to be mended; the application's own clean-up of old data deletes it.",
)
PENDING = register(
    "error",
    "catalog.pending",
    "A restore is staged or being put into place, or a reset waits: what is written now is thrown away at the next"
    " start. A record of either that cannot be read counts as pending. Every command that writes refuses.",
    "Starting the application once, letting it finish, and quitting it. Before a reset: copying what you want to keep.",
)
