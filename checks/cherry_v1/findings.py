"""Findings of v1 data (``docs/findings.md``).

The codes of :mod:`regraft.report.notices` name their findings.
"""

from __future__ import annotations

from checks.audit.findings import register
from regraft.language import tr

_ANOTHER = tr("A source in which it is whole: another backup, a full one rather than a slim one.")
_ADD_AGAIN = tr("Adding it again in the application after the upgrade.")
_INDEX_AGAIN = tr("Indexing the item again in the application after the upgrade.")
_NOTHING = tr("Nothing needs to be fixed.")
_TEXT_ALONE = tr(
    "`regraft migrate --carry-text`, which carries the texts by themselves, and then "
    "`regraft backfill`; or indexing the items again in the application after the upgrade."
)

UNREADABLE = register(
    "error",
    "v1.unreadable",
    tr(
        "A base's vector file is there and cannot be read: damaged, cut off, without its "
        "table, a folder. The base would migrate as failed, without its texts and vectors."
    ),
    tr(
        "{another} If only a permission or another program is in the way, clear that and check again.", another=_ANOTHER
    ),
)
NO_VECTORS = register(
    "error",
    "v1.no-vectors",
    tr("A base's vector file is missing or empty, or no vector in it can be used. The base would migrate as failed."),
    tr(
        "{another} Otherwise restore the base in the application, which embeds everything again, or, if texts "
        "exist, run `regraft migrate --carry-text` and then `regraft restore`.",
        another=_ANOTHER,
    ),
)
MODEL = register(
    "error",
    "v1.model",
    tr(
        "Error: the model of a base's vectors is unknown; the base would migrate as failed. Warning: the source "
        "does not list models, a rerank model is missing, a provider is retired, or an option matched no base. "
        "Note: a model is re-created or mapped."
    ),
    tr(
        "For an error, you have to name the model: the finding gives the command. If you do not know it, run "
        "`regraft migrate --carry-text` and then `regraft restore`. For a warning, check the base's models in "
        "the application."
    ),
)
DISK_SPACE = register(
    "error",
    "v1.disk-space",
    tr("The library would not fit on the disk that holds the source."),
    tr("Freeing some space, or `--to` a folder on another disk, which `regraft migrate` measures itself."),
)
TOO_LARGE = register(
    "error",
    "v1.too-large",
    tr(
        "Error: the texts of one item come to over 1 GB, it would have none. Warning: a note "
        "is longer than v2 allows; its end is cut off."
    ),
    tr("Splitting the file or the note before the upgrade."),
)
SLIM = register(
    "warning",
    "v1.slim",
    tr("A slim backup or a profile without `Data/`: it has no vectors and no uploads."),
    tr("A full backup, or the folder that has `Data/` in it."),
)
UNNAMED = register(
    "warning",
    "v1.unnamed-file",
    tr(
        "Vector files that belong to no base in v1's state, left over from bases that are gone. They are not read. "
        "Warning: of one that is named, no base can be made."
    ),
    tr("`regraft migrate --adopt-orphans` makes a base of each from its rows alone."),
)
RUNNING = register(
    "warning",
    "v1.running",
    tr(
        "The application is running on this profile: what it has not written yet is not there, "
        "and it may write any time."
    ),
    tr("Quitting the application: `regraft migrate` refuses to read while it runs."),
)
STATE = register(
    "warning",
    "v1.state",
    tr(
        "Part of the application's own state is missing or cannot be read: a table, the "
        "catalog, the list of deleted bases, places of its storage, or all knowledge. Note: "
        "folders of a still older layout, which nothing reads."
    ),
    tr(
        "{another} For a profile: starting and quitting the application once. Where vector files are there and the "
        "state names no base of theirs, `regraft migrate --adopt-orphans`.",
        another=_ANOTHER,
    ),
)
BASE = register(
    "warning",
    "v1.base",
    tr(
        "A base cannot be migrated: it has no id or no name, or a base with its id came "
        "before. Note: it is in the v2 layout already."
    ),
    tr("A backup in which the base is whole."),
)
SETTINGS = register(
    "warning",
    "v1.settings",
    tr("A setting or the name of a base is not valid; a default takes its place."),
    tr("Setting it again in the application after the upgrade."),
)
ITEM = register(
    "warning",
    "v1.item",
    tr(
        "An item, or a base's whole list of items, cannot be migrated: incomplete, blank, of a "
        "type that v2 does not have, or there already. Or an item of a preview build is not "
        "described as v2 needs it."
    ),
    _ADD_AGAIN,
)
FOLDER = register(
    "warning",
    "v1.folder",
    tr(
        "A folder, or files of it, have no rows that could be carried: they become failed "
        "items or none. Note: files are not where their folder is, as far as v1 recorded, and "
        "are called by their last name alone."
    ),
    tr("Deleting the folder in the application after the upgrade and adding it again, while it is still on disk."),
)
NO_TEXT = register(
    "note",
    "v1.no-text",
    tr("Completed files have no row: v1 could not read them, or stored nothing of them. They stay items without text."),
    _INDEX_AGAIN,
)
MISSING_UPLOAD = register(
    "warning",
    "v1.missing-upload",
    tr("An uploaded file is not in the source. Its text is searchable; it cannot be reindexed."),
    tr("A full backup. Nothing of its text is lost: only to be reindexed it needs its file."),
)
LINK = register(
    "warning",
    "v1.link",
    tr("A link in the source points outside of it. Its target is not read."),
    tr("`--follow-links`, where the link is your own; else a source that has the files themselves."),
)
MIXED_DIMENSIONS = register(
    "warning",
    "v1.mixed-dimensions",
    tr(
        "Vectors of one base do not agree: rows have one of another length than most, from "
        "another model. They are not carried."
    ),
    _TEXT_ALONE,
)
UNUSABLE_VECTOR = register(
    "warning",
    "v1.unusable-vector",
    tr(
        "Rows have no vector, something that is not a vector, or one that holds a NaN or an infinity, on which "
        "the application fails at every search of the base. They are not carried."
    ),
    _TEXT_ALONE,
)
DEGENERATE = register(
    "warning",
    "v1.degenerate",
    tr(
        "Vectors have no direction: all zeros, or a norm too large or too small for single precision. They are carried "
        "as they are; their texts are found by words and never by meaning."
    ),
    _INDEX_AGAIN,
)
SHARED_LOADER = register(
    "warning",
    "v1.shared-loader",
    tr("Two items, or files of folders, have one loader: v1 kept one set of rows, which goes to one of them."),
    tr("Nothing, as a rule; else indexing the one that is left without rows again."),
)
DEDUPLICATED = register(
    "note",
    "v1.deduplicated",
    tr(
        "v1 kept equal texts of a base once, so that it never stored some chunks, or a whole "
        "file. A file of which it has nothing gets the chunks of the file that it equals."
    ),
    _NOTHING,
)
UNMAPPED = register(
    "note", "v1.unmapped", tr("Rows of no item, left over from one that is gone. They are not carried."), _NOTHING
)
PENDING_DELETE = register(
    "note",
    "v1.pending-delete",
    tr("A base or an item that you had deleted and the application was going to remove. It is not migrated."),
    tr("To have a base of v1 back: removing its id from `knowledge_pending_delete.json` in a copy of the source."),
)
RENAMED = register("note", "v1.renamed", tr("Uploads get another name because theirs is taken."), _NOTHING)
DROPPED_FIELD = register(
    "note",
    "v1.dropped-field",
    tr("A description or remark that v2 has no place for. Its text is kept in the report."),
    _NOTHING,
)
MOVED = register(
    "note",
    "v1.moved",
    tr("The application's settings name another folder for its data; that folder was read."),
    _NOTHING,
)
