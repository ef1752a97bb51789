"""Findings of v1 data (``docs/findings.md``).

The codes of :mod:`regraft.report.notices` name their findings.
"""

from __future__ import annotations

from checks.audit.findings import register
from regraft.language import tr

_DAMAGED = tr(
    "If the file is truncated or damaged, `regraft migrate --salvage` migrates every row that can be verified; "
    "a source in which it is intact has all of them."
)
_ANOTHER = tr("Use another source that contains it intact: a different backup, or a full one instead of a slim one.")
_ADD_AGAIN = tr("Add it again in the application after the upgrade.")
_INDEX_AGAIN = tr("Index the item again in the application after the upgrade.")
_NOTHING = tr("Nothing needs to be fixed.")
_TEXT_ALONE = tr(
    "Run `regraft migrate --carry-text` to keep the texts without vectors, and then `regraft "
    "backfill`; or index the items again in the application after the upgrade."
)

UNREADABLE = register(
    "error",
    "v1.unreadable",
    tr(
        "A base's vector file exists but cannot be read: it is damaged, truncated, a folder, or lacks "
        "its table. The base would be migrated as failed, without its texts and vectors."
    ),
    tr(
        "{damaged} {another} If missing permissions or another program cause this, fix that and check again.",
        damaged=_DAMAGED,
        another=_ANOTHER,
    ),
)
NO_VECTORS = register(
    "error",
    "v1.no-vectors",
    tr(
        "A base's vector file is missing or empty, or none of its vectors can be used. The base would "
        "be migrated as failed."
    ),
    tr(
        "{damaged} {another} Otherwise restore the base in the application, which embeds everything again, or, if "
        "texts exist, run `regraft migrate --carry-text` and then `regraft restore`.",
        damaged=_DAMAGED,
        another=_ANOTHER,
    ),
)
MODEL = register(
    "error",
    "v1.model",
    tr(
        "Error: the model that made a base's vectors is unknown; the base would be migrated as failed. "
        "Warning: the source does not list models, a rerank model is missing, a provider is retired, or "
        "an option matched no base. Note: a model is recreated or mapped."
    ),
    tr(
        "For an error, name the model: the finding shows the command. If you do not know it, run "
        "`regraft migrate --carry-text` and then `regraft restore`. For a warning, check the base's "
        "models in the application."
    ),
)
DISK_SPACE = register(
    "error",
    "v1.disk-space",
    tr("There is not enough room for the library on the disk that holds the source."),
    tr(
        "Free some space, or choose a folder on another disk with `--to`; `regraft migrate` checks the "
        "space there itself."
    ),
)
TOO_LARGE = register(
    "error",
    "v1.too-large",
    tr(
        "The texts of one item exceed 1 GB (error: it would have no text after the upgrade), or a note is longer "
        "than v2 allows (warning: it is cut)."
    ),
    tr("Split the file or the note before the upgrade."),
)
SLIM = register(
    "warning",
    "v1.slim",
    tr("The source is a slim backup or a profile without `Data/`: it contains no vectors and no uploads."),
    tr("Use a full backup, or the folder that contains `Data/`."),
)
UNNAMED = register(
    "warning",
    "v1.unnamed-file",
    tr(
        "Vector files that belong to no base in v1's state, left over from deleted bases. They are not "
        "read. Warning: a vector file named with `--adopt-orphans` cannot be made into a base."
    ),
    tr("`regraft migrate --adopt-orphans` creates a base from the rows of each file."),
)
RUNNING = register(
    "warning",
    "v1.running",
    tr(
        "The application is running on this profile. Unsaved changes are not visible, and files may change at any time."
    ),
    tr("Quit the application. `regraft migrate` refuses to read a profile in use."),
)
STATE = register(
    "warning",
    "v1.state",
    tr(
        "Part of the application's state is missing or cannot be read: a table, the catalog, the list "
        "of deleted bases, part of its storage, or all knowledge bases. Note: folders of an even older "
        "layout, which nothing reads."
    ),
    tr(
        "{another} For a profile, start and quit the application once. If vector files exist but the "
        "state lists no base for them, use `regraft migrate --adopt-orphans`.",
        another=_ANOTHER,
    ),
)
BASE = register(
    "warning",
    "v1.base",
    tr(
        "A base cannot be migrated: it has no id or no name, or an earlier base has the same id. The "
        "severity is note if the base already has the v2 layout."
    ),
    tr("Use a backup that contains the base intact."),
)
SETTINGS = register(
    "warning",
    "v1.settings",
    tr("A base has an invalid setting or name; the default is used instead."),
    tr("Set it again in the application after the upgrade."),
)
ITEM = register(
    "warning",
    "v1.item",
    tr(
        "An item, or a base's whole list of items, cannot be migrated: it is incomplete, blank, a "
        "duplicate, or of a type that v2 does not support. Or an item of a preview build lacks data "
        "that v2 needs."
    ),
    _ADD_AGAIN,
)
FOLDER = register(
    "warning",
    "v1.folder",
    tr(
        "A folder, or some of its files, have no rows to migrate. They become failed items, or are left "
        "out. Note: files are not in the folder that v1 recorded, so their paths consist of the file "
        "name alone."
    ),
    tr("After the upgrade, delete the folder in the application and add it again while it still exists on disk."),
)
NO_TEXT = register(
    "note",
    "v1.no-text",
    tr("Completed files have no rows: v1 could not read them, or stored nothing. They are kept as items without text."),
    _INDEX_AGAIN,
)
MISSING_UPLOAD = register(
    "warning",
    "v1.missing-upload",
    tr("An uploaded file is not in the source. Its text can be searched, but the file cannot be indexed again."),
    tr("Use a full backup. The text itself is not lost; the file is needed only for indexing it again."),
)
LINK = register(
    "warning",
    "v1.link",
    tr("A link in the source points outside the source. Its target is not read."),
    tr("Use `--follow-links` if you made the link yourself; otherwise a source that contains the files themselves."),
)
MIXED_DIMENSIONS = register(
    "warning",
    "v1.mixed-dimensions",
    tr(
        "Vectors of one base disagree: some have a different length than most, or come from a different "
        "model. Those rows are skipped."
    ),
    _TEXT_ALONE,
)
UNUSABLE_VECTOR = register(
    "warning",
    "v1.unusable-vector",
    tr(
        "Rows have no vector, an invalid value in its place, or a vector with NaN or infinity, which "
        "makes every search of the base fail in the application. Those rows are skipped."
    ),
    _TEXT_ALONE,
)
DEGENERATE = register(
    "warning",
    "v1.degenerate",
    tr(
        "Vectors have no direction: they are all zeros, or their norm is too large or too small for "
        "single precision. They are copied unchanged; their texts are found by keyword search only."
    ),
    _INDEX_AGAIN,
)
SHARED_LOADER = register(
    "warning",
    "v1.shared-loader",
    tr(
        "v1 stored two items, or files of folders, under one internal id and kept the text of only one. "
        "It is assigned to one of them; the other has no text."
    ),
    tr("Usually nothing. Otherwise index the item without rows again."),
)
DEDUPLICATED = register(
    "note",
    "v1.deduplicated",
    tr(
        "v1 stored equal texts of a base only once, so some chunks, or whole files, were never stored. "
        "A file without any rows gets the chunks of the file with the same content."
    ),
    _NOTHING,
)
UNMAPPED = register(
    "note",
    "v1.unmapped",
    tr("Rows belong to no item; they are left over from a deleted one. They are skipped."),
    _NOTHING,
)
PENDING_DELETE = register(
    "note",
    "v1.pending-delete",
    tr("A base or an item that you deleted and the application had not removed yet. It is not migrated."),
    tr("To get a v1 base back, remove its id from `knowledge_pending_delete.json` in a copy of the source."),
)
RENAMED = register(
    "note", "v1.renamed", tr("Uploaded files are renamed because their names are already taken."), _NOTHING
)
DROPPED_FIELD = register(
    "note",
    "v1.dropped-field",
    tr("A description or remark that v2 cannot store. Its text is kept in the report."),
    _NOTHING,
)
MOVED = register(
    "note",
    "v1.moved",
    tr("The application's settings specify a different data folder; that folder was read."),
    _NOTHING,
)
