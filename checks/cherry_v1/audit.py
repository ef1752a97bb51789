"""The audit of a source before it is migrated: what a plan without a target says, as findings.

Every code that a plan can say (``docs/codes.md``) is one finding; which, says :data:`FINDING_OF`. What a plan does not
say, the room on the disk and the vector file of a base without a model, is added here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from checks.audit.findings import Audit, Finding, register
from regraft.report import notices
from regraft.report.notices import CODES
from regraft.report.progress import human_bytes

Document = dict[str, Any]

# --- names ---------------------------------------------------------------------------------------------------------

_ANOTHER = "A source in which it is whole: another backup, a full one rather than a slim one."
_ADD_AGAIN = "Adding it again in the application after the upgrade."
_INDEX_AGAIN = "Indexing the item again in the application after the upgrade."
_NOTHING = "Nothing has to be mended."
_TEXT_ALONE = (
    "`regraft migrate --carry-text`, which carries the texts by themselves, and then `regraft backfill`; or indexing "
    "the items again in the application after the upgrade."
)

UNREADABLE = register(
    "error",
    "v1.unreadable",
    "A base's vector file is there and cannot be read: damaged, cut off, without its table, a folder. The base would "
    "migrate as failed, without its texts and vectors.",
    f"{_ANOTHER} If only a permission or another program is in the way, clear that and check again.",
)
NO_VECTORS = register(
    "error",
    "v1.no-vectors",
    "A base's vector file is missing or empty, or no vector in it can be used. The base would migrate as failed.",
    f"{_ANOTHER} Else restoring the base in the application, which embeds everything anew, or, where there are texts, "
    "`regraft migrate --carry-text` and then `regraft restore`.",
)
MODEL = register(
    "error",
    "v1.model",
    "Error: nobody knows which model made a base's vectors; the base would migrate as failed. Warning: the source does "
    "not list models, a rerank model is gone, a provider is retired, or an option met no base. Note: a model is "
    "re-created or mapped.",
    "For an error, your word: the command that the finding gives; if you do not know, `regraft migrate --carry-text` "
    "and then `regraft restore`. For a warning, a look at the base's models in the application.",
)
DISK_SPACE = register(
    "error",
    "v1.disk-space",
    "The library would not fit on the disk that holds the source.",
    "Freeing some space, or `--to` a folder on another disk, which `regraft migrate` measures itself.",
)
TOO_LARGE = register(
    "error",
    "v1.too-large",
    "Error: the texts of one item come to over 1 GB, it would have none. Warning: a note is longer than v2 allows; its "
    "end is cut off.",
    "Splitting the file or the note before the upgrade.",
)
SLIM = register(
    "warning",
    "v1.slim",
    "A slim backup, made without `Data/`, or a profile without it: there are neither vectors nor uploads.",
    "A full backup, or the folder that has `Data/` in it.",
)
UNNAMED = register(
    "note",
    "v1.unnamed-file",
    "Vector files that no base of the state names: left of bases that are gone. They are not read.",
    _NOTHING,
)
RUNNING = register(
    "warning",
    "v1.running",
    "The application is running on this profile: what it has not written yet is not there, and it may write any time.",
    "Quitting the application: `regraft migrate` refuses to read while it runs.",
)
STATE = register(
    "warning",
    "v1.state",
    "Part of the application's own state is missing or cannot be read: a table, the catalog, the list of deleted "
    "bases, places of its storage, or all knowledge. Note: folders of a still older layout, which nothing reads.",
    f"{_ANOTHER} For a profile: starting and quitting the application once.",
)
BASE = register(
    "warning",
    "v1.base",
    "A base cannot be migrated: it has no id or no name, or a base with its id came before. Note: it is in the v2 "
    "layout already.",
    "A backup in which the base is whole.",
)
SETTINGS = register(
    "warning",
    "v1.settings",
    "A setting or the name of a base is not valid; a default takes its place.",
    "Setting it again in the application after the upgrade.",
)
ITEM = register(
    "warning",
    "v1.item",
    "An item, or a base's whole list of items, cannot be migrated: incomplete, blank, of a type that v2 does not have, "
    "or there already. Or an item of a preview build is not described as v2 needs it.",
    _ADD_AGAIN,
)
FOLDER = register(
    "warning",
    "v1.folder",
    "A folder, or files of it, have no rows that could be carried: they become failed items or none. Note: files are "
    "not where their folder is, as far as v1 recorded, and are called by their last name alone.",
    "Deleting the folder in the application after the upgrade and adding it again, while it is still on disk.",
)
NO_TEXT = register(
    "note",
    "v1.no-text",
    "Completed files have no row: v1 could not read them, or stored nothing of them. They stay items without text.",
    _INDEX_AGAIN,
)
MISSING_UPLOAD = register(
    "warning",
    "v1.missing-upload",
    "An uploaded file is not in the source. Its text is searchable; it cannot be reindexed.",
    "A full backup. Nothing of its text is lost: only to be reindexed it needs its file.",
)
LINK = register(
    "warning",
    "v1.link",
    "A link in the source leads out of it: nothing behind it is read, whoever made it.",
    "`--follow-links`, where the link is your own; else a source that has the files themselves.",
)
MIXED_DIMENSIONS = register(
    "warning",
    "v1.mixed-dimensions",
    "Vectors of one base do not agree: rows have one of another length than most, from another model. They are not "
    "carried.",
    _TEXT_ALONE,
)
UNUSABLE_VECTOR = register(
    "warning",
    "v1.unusable-vector",
    "Rows have no vector, something that is none, or one that holds a NaN or an infinity, on which the application "
    "fails at every search of the base. They are not carried.",
    _TEXT_ALONE,
)
DEGENERATE = register(
    "warning",
    "v1.degenerate",
    "Vectors are all zeros: carried as they are, found by words and never by meaning.",
    _INDEX_AGAIN,
)
SHARED_LOADER = register(
    "warning",
    "v1.shared-loader",
    "Two items, or files of folders, have one loader: v1 kept one set of rows, which goes to one of them.",
    "Nothing, as a rule; else indexing the one that is left without rows again.",
)
DEDUPLICATED = register(
    "note",
    "v1.deduplicated",
    "v1 kept equal texts of a base once, so that it never stored some chunks, or a whole file. A file of which it has "
    "nothing gets the chunks of the file that it equals.",
    _NOTHING,
)
UNMAPPED = register(
    "note", "v1.unmapped", "Rows of no item, left over from one that is gone. They are not carried.", _NOTHING
)
PENDING_DELETE = register(
    "note",
    "v1.pending-delete",
    "A base or an item that you had deleted and the application was going to remove. It is not migrated.",
    "To have a base of v1 back: removing its id from `knowledge_pending_delete.json` in a copy of the source.",
)
RENAMED = register("note", "v1.renamed", "Uploads get another name because theirs is taken.", _NOTHING)
DROPPED_FIELD = register(
    "note",
    "v1.dropped-field",
    "A description or remark that v2 has no place for. Its text is kept in the report.",
    _NOTHING,
)
MOVED = register(
    "note", "v1.moved", "The application's settings name another folder for its data; that one was read.", _NOTHING
)

#: The finding that every code is. Of MISSING_STORE, :data:`UNREADABLE` where the vector file is there.
FINDING_OF: dict[str, str] = {
    notices.INVALID_BASE: BASE,
    notices.DUPLICATE_BASE: BASE,
    notices.KEPT_COMPLETED: BASE,
    notices.CURRENT_LAYOUT: BASE,
    notices.PENDING_DELETE: PENDING_DELETE,
    notices.ITEM_DELETING: PENDING_DELETE,
    notices.MISSING_MODEL: MODEL,
    notices.MODELS_UNKNOWN: MODEL,
    notices.MODEL_RECREATED: MODEL,
    notices.MODEL_MAPPED: MODEL,
    notices.OPTION_UNUSED: MODEL,
    notices.RERANK_CLEARED: MODEL,
    notices.PROVIDER_RETIRED: MODEL,
    notices.MISSING_STORE: NO_VECTORS,
    notices.NO_ID_OR_TYPE: ITEM,
    notices.UNSUPPORTED_TYPE: ITEM,
    notices.DUPLICATE_ITEM: ITEM,
    notices.INVALID_FILE: ITEM,
    notices.INVALID_URL: ITEM,
    notices.INVALID_SITEMAP: ITEM,
    notices.INVALID_NOTE: ITEM,
    notices.INVALID_DIRECTORY: ITEM,
    notices.INVALID_ITEMS: ITEM,
    notices.DATA_MENDED: ITEM,
    notices.DATA_INCOMPLETE: ITEM,
    notices.UNMAPPED_LOADER: UNMAPPED,
    notices.MISSING_PAYLOAD: UNUSABLE_VECTOR,
    notices.UNSUPPORTED_ENCODING: UNUSABLE_VECTOR,
    notices.DIMENSION_MISMATCH: MIXED_DIMENSIONS,
    notices.NON_FINITE: UNUSABLE_VECTOR,
    notices.WITHOUT_VECTOR: UNUSABLE_VECTOR,
    notices.DIFFERING_VECTOR: MIXED_DIMENSIONS,
    notices.DEGENERATE: DEGENERATE,
    notices.CONTENT_TOO_LARGE: TOO_LARGE,
    notices.NOTE_CUT: TOO_LARGE,
    notices.NO_KNOWLEDGE: STATE,
    notices.TABLE_UNREADABLE: STATE,
    notices.PENDING_UNREADABLE: STATE,
    notices.CATALOG_UNREADABLE: STATE,
    notices.STORAGE_DAMAGED: STATE,
    notices.OLDER_LAYOUT: STATE,
    notices.SLIM_BACKUP: SLIM,
    notices.DATA_MISSING: SLIM,
    notices.LOST_STATE: STATE,
    notices.UNNAMED_VECTORS: UNNAMED,
    notices.APPLICATION_RUNNING: RUNNING,
    notices.PROFILE_MOVED: MOVED,
    notices.BLANK_NAME: SETTINGS,
    notices.INVALID_CONFIG: SETTINGS,
    notices.RENAMED: RENAMED,
    notices.DROPPED_FIELD: DROPPED_FIELD,
    notices.DEDUPLICATED: DEDUPLICATED,
    notices.DEDUPLICATED_ITEM: DEDUPLICATED,
    notices.RESTORED_DUPLICATE: DEDUPLICATED,
    notices.LOST_DUPLICATE: DEDUPLICATED,
    notices.FILE_WITHOUT_ROWS: NO_TEXT,
    notices.MISSING_UPLOAD: MISSING_UPLOAD,
    notices.LINK_NOT_FOLLOWED: LINK,
    notices.LOADER_SHARED: SHARED_LOADER,
    notices.CHILD_CONFLICT: SHARED_LOADER,
    notices.CHILD_SHARED: SHARED_LOADER,
    notices.NON_INDEXABLE: FOLDER,
    notices.ENTRIES_WITHOUT_ROWS: FOLDER,
    notices.CHILD_OUTSIDE: FOLDER,
    notices.NOT_MIGRATED: FOLDER,
    notices.CHILD_NOT_MIGRATED: FOLDER,
}
#: Codes about a base that speak of its vector file.
_ABOUT_THE_FILE = {notices.MISSING_STORE, notices.DEGENERATE, notices.DIFFERING_VECTOR, notices.DEDUPLICATED}
#: Codes about rows whose text ``--carry-text`` carries. Of a base without a model its vectors are worth more.
_HAS_TEXT = {
    notices.MISSING_STORE,
    notices.MISSING_PAYLOAD,
    notices.UNSUPPORTED_ENCODING,
    notices.DIMENSION_MISMATCH,
    notices.NON_FINITE,
}

# --- the audit -----------------------------------------------------------------------------------------------------


def audit(plan: Document, command: Sequence[str]) -> Audit:
    """Turn a plan into findings.

    A base's sum of chunks that v1 left out is none: every item of them says its own.

    Args:
        plan: what ``migrators.plan_only`` gives of the source.
        command: the words of the command that migrates it, with the options that the plan was made with.
    """
    looked_at = plan["looked_at"]
    told = [warning for warning in plan["warnings"] if warning["code"] != notices.DEDUPLICATED]
    found = [_finding(warning, looked_at.get(warning["base"]), command) for warning in told]
    found += [*_unseen_stores(plan), *_no_room(plan)]
    return Audit(
        findings=tuple(found),
        checked=_checked(plan),
        names={base["legacy_id"]: base["name"] for base in plan["bases"]},
        closing=_closing(found, plan, command),
        statistics={"bases": [_statistics(base, looked_at[base["legacy_id"]]) for base in plan["bases"]]},
    )


def _checked(plan: Document) -> dict[str, int]:
    """Return how much of what the plan looked at."""
    looked_at = plan["looked_at"].values()
    skipped = sum(count for reason, count in plan["skipped"].items() if CODES[reason].subject == "base")
    read = [one for one in looked_at if one["is_read"]]
    return {
        "bases": len(looked_at) + skipped,
        "items": sum(one["items"] for one in looked_at),
        "rows": plan["totals"]["rows"]["read"],
        "uploads": sum(one["uploads"] for one in looked_at),
        "vector_files": len(read),
        "bytes": sum(one["bytes"] for one in read),
    }


def _statistics(base: Document, store: Document) -> Document:
    """Return where the rows of a base would go; None where nobody could read them."""
    rows = base["rows"] if store["is_read"] or base["status"] == "completed" else None
    return {"id": base["legacy_id"], "name": base["name"], "rows": rows}


def _finding(warning: Document, store: Document | None, command: Sequence[str]) -> Finding:
    """Return what a warning of the plan is; ``store`` is what was looked at of its base, if it is about one."""
    code = CODES[warning["code"]]
    name = FINDING_OF[code.name]
    subject = warning["item"]
    if store is not None:
        if code.name == notices.MISSING_STORE:
            name = _store_problem(store)
        if subject is None and (code.subject == "row" or code.name in _ABOUT_THE_FILE):
            subject = store["vector_file"]
    return Finding(
        name=name,
        severity=code.severity,
        message=warning["message"],
        base=warning["base"],
        subject=subject,
        count=warning["count"],
        samples=tuple(warning["samples"]),
        repair=_repair(warning, store, command),
    )


def _store_problem(store: Document) -> str:
    """Return what is wrong with a vector file of which no vector can be carried."""
    is_empty = store["kind"] is None or (store["kind"] == "file" and store["bytes"] == 0)
    return NO_VECTORS if is_empty or store["is_read"] else UNREADABLE


def _repair(warning: Document, store: Document | None, command: Sequence[str]) -> str | None:
    """Return the command that carries a base whose model is gone, or texts whose vector cannot be carried."""
    if store is None or not store["is_read"]:
        return None
    if warning["model"] is not None:
        return shlex.join([*command, "--recreate-model", warning["model"]])
    # Samples are of rows: there are some.
    if warning["code"] in _HAS_TEXT and warning["samples"]:
        return shlex.join([*command, "--carry-text"])
    return None


def _unseen_stores(plan: Document) -> Iterator[Finding]:
    """Find the vector files that a plan says nothing of, as the base has no model that would need them."""
    for base in plan["bases"]:
        store = plan["looked_at"][base["legacy_id"]]
        if base["error"] == notices.MISSING_MODEL and not store["is_read"]:
            name = _store_problem(store)
            why = "cannot be read" if name == UNREADABLE else "is missing or empty"
            said = f"its vector file {store['vector_file']} {why}; knowing its model will not help"
            yield Finding(
                name=name, severity="error", message=said, base=base["legacy_id"], subject=store["vector_file"]
            )


def _no_room(plan: Document) -> Iterator[Finding]:
    needed, free = (plan["preflight"][key] for key in ("bytes_needed", "bytes_free"))
    if needed > free:
        said = (
            f"the library takes about {human_bytes(needed)} and {human_bytes(free)} are free beside the source; "
            "choose a folder on another disk for --to"
        )
        yield Finding(name=DISK_SPACE, severity="error", message=said, subject=plan["source"]["path"])


def _closing(found: Sequence[Finding], plan: Document, command: Sequence[str]) -> str:
    typed = shlex.join(command)
    if not plan["looked_at"]:
        return "There is nothing to migrate."
    if any(finding.name == RUNNING for finding in found):
        return f"Quit the application, then: {typed}"
    if not any(finding.severity == "error" for finding in found):
        return f"Ready: {typed}"
    return f"Mend the errors first, or carry what can be carried: {typed}"
