"""Findings of a knowledge base of rsclaw (``docs/findings.md``, "rsclaw").

regraft never writes the database. Its problems are fixed by rsclaw's own commands, which the remedies name.
"""

from __future__ import annotations

from checks.audit.findings import register
from regraft.language import tr

_BACKUP = tr(
    "A backup of `kb.redb`, taken while rsclaw was not running; regraft never writes this file. Files that came after "
    "it are of no document then: `regraft gc` must wait until they are added once more."
)
_ADD_AGAIN = tr(
    "`rsclaw kb add` of what the document was made of; where rsclaw says that it is there already, `rsclaw kb rm DOC` "
    "first."
)
_NEVER_WRITTEN = tr("Restore `kb.redb` from a backup in which the rows are correct. regraft never writes this file.")
_START = tr("Starting rsclaw: it takes back what a worker that is gone had claimed.")

UNREADABLE = register(
    "error",
    "kb.unreadable",
    tr("`kb.redb` cannot be read as a whole, or a folder of files cannot. What could not be read was not checked."),
    _BACKUP,
)
PAGE = register(
    "error",
    "kb.page",
    tr("A page of `kb.redb` is damaged: the rows in it are lost. What hangs on those rows is not judged."),
    _BACKUP,
)
ROW = register(
    "error",
    "kb.row",
    tr("A row is not of the form that rsclaw writes. What hangs on it is not judged."),
    _BACKUP,
)
FILE_OUTSIDE = register(
    "error",
    "kb.file-outside",
    tr("The path of a document or of a ledger entry leads out of `md/` and `raw/`. It is not followed."),
    tr("`rsclaw kb rm DOC` of the document, once you have seen where its path leads."),
)
FILE_MISSING = register(
    "error",
    "kb.file-missing",
    tr(
        "The file of a document is missing or cannot be read. The severity is note if the document was "
        "removed or replaced by a newer version: rsclaw deletes such files itself."
    ),
    tr("Putting the file back from a backup; else `rsclaw kb add` of what the document was made of."),
)
FILE_CHANGED = register(
    "error",
    "kb.file-changed",
    tr(
        "A file is not the one that rsclaw wrote: chunks and vectors are of the former text. A warning for the file "
        "that the document was made of; a note where the document was removed, or an older version."
    ),
    tr("Putting the former file back from a backup; or `rsclaw kb add` of the new text, and `rsclaw kb rm DOC`."),
)
FILE_ORPHAN = register(
    "warning",
    "kb.file-orphan",
    tr(
        "A file in `md/` or `raw/` that no document and no open ledger entry refers to. The severity is "
        "note for files younger than an hour, links, and files that a settled entry names. If the "
        "database has no documents, or refers to only a few of the files, they are not treated as "
        "garbage: the database may be new, or older than the files."
    ),
    tr(
        "Nothing, where its text is to be added again; else `rsclaw kb compact`. `gc` moves it to the trash with "
        "`--only kb.file-orphan`. What is a note may stay."
    ),
)
URL_TWINS = register(
    "warning",
    "kb.url-twins",
    tr(
        "Several documents are of one page, each as a source of its own: every version of the page is found beside "
        "the others. A note where the addresses differ, and are likely to lead to one page."
    ),
    tr("Remove outdated documents with `rsclaw kb rm DOC`. You have to decide which ones are outdated."),
)
SUPERSEDED = register(
    "warning",
    "kb.superseded",
    tr("A version older than the one in use is still active. No search finds it, and it takes room."),
    tr("`rsclaw kb rm DOC` of the older version."),
)
ROLLED_BACK = register(
    "note",
    "kb.rolled-back",
    tr(
        "The pointer to the latest version of a source names an older version than another active document has: the "
        "source was rolled back. Searches find the version that the pointer names."
    ),
    tr("Nothing, if the rollback is meant. `rsclaw kb add` of the newer text makes it the latest version again."),
)
UNREACHABLE = register(
    "warning",
    "kb.unreachable",
    tr("A document is not visible to anyone: it is private without an owner, or its visibility is unknown."),
    tr("`rsclaw kb visibility DOC …`, which says who may see it."),
)
TOMBSTONE_EXPIRED = register(
    "warning",
    "kb.tombstone-expired",
    tr("A document was removed more than 30 days ago, and its row, chunks and vectors are still there."),
    tr("`rsclaw kb compact`, if your version of rsclaw lets go of rows; else they do nothing but take room."),
)
LATEST = register(
    "error",
    "kb.latest",
    tr("What says which version of a source is the latest is missing, or names another document or version."),
    _ADD_AGAIN,
)
JOB_FAILED = register(
    "error",
    "kb.job-failed",
    tr("rsclaw has given up cutting and embedding a document. Its ledger entry stays pending for ever."),
    _ADD_AGAIN,
)
JOB_STALE = register(
    "warning",
    "kb.job-stale",
    tr("A job is said to be running, and its worker's claim is over, or missing."),
    _START,
)
LEDGER_PENDING = register(
    "warning",
    "kb.ledger-pending",
    tr(
        "A ledger entry is open, and no job is there that would settle it. A note where a job has been waiting for "
        "more than a day."
    ),
    tr("`rsclaw kb compact`, which settles what is indexed; `rsclaw kb add` of what is still open after that."),
)
QUEUE = register(
    "warning",
    "kb.queue",
    tr("The queue of jobs does not match the jobs, or a claim belongs to no running job."),
    _NEVER_WRITTEN,
)
DEDUPE = register(
    "warning",
    "kb.dedupe",
    tr(
        "What keeps one thing from being done twice names a job that is not waiting or running: the document may "
        "never be indexed again. A note where it lacks a job."
    ),
    _NEVER_WRITTEN,
)
CHUNK_RANGE = register(
    "error",
    "kb.chunk-range",
    tr("The range of a chunk is outside its document's text, or ends before it begins."),
    _ADD_AGAIN,
)
CHUNK_ID = register(
    "warning",
    "kb.chunk-id",
    tr("The id of a chunk does not follow from its source, its number and its text."),
    _ADD_AGAIN,
)
CHUNK_ORPHAN = register(
    "warning",
    "kb.chunk-orphan",
    tr("A chunk belongs to a missing document, or has another version or source than its document."),
    _NEVER_WRITTEN,
)
CHUNK_INDEX = register(
    "error",
    "kb.chunk-index",
    tr("A chunk is not listed under its source, or what is listed there is not a chunk."),
    _ADD_AGAIN,
)
DIMENSIONS = register(
    "error",
    "kb.dimensions",
    tr(
        "Chunks that are searched have vectors of several lengths, or vectors that no search can rank: empty, all "
        "zeros, not finite, with a norm too large for single precision, no numbers."
    ),
    _ADD_AGAIN,
)
EMBEDDERS = register(
    "warning",
    "kb.embedders",
    tr("Chunks that are searched were embedded by several embedders: their vectors do not compare."),
    tr("`rsclaw kb add` of the documents of the other embedder, with the one that is in use."),
)
ENTITY = register(
    "warning",
    "kb.entity",
    tr("A mention refers to a missing chunk or entity."),
    _NEVER_WRITTEN,
)
COLLECTION = register(
    "warning",
    "kb.collection",
    tr("The index of collection names does not match the collections."),
    _NEVER_WRITTEN,
)
SNAPSHOT = register(
    "warning",
    "kb.snapshot",
    tr(
        "The snapshot of the vector index is not of the chunks that there are, or cannot be read: a search by meaning "
        "misses some, or comes to nothing."
    ),
    tr("`regraft reconcile`, which moves it away: rsclaw rebuilds it at its next start."),
    "reconcile",
)
FULL_TEXT = register(
    "warning",
    "kb.full-text",
    tr("The full-text index has another number of texts than there are chunks, or cannot be read."),
    tr("`regraft reconcile`, which moves it away: rsclaw rebuilds it at its next start."),
    "reconcile",
)

_AGAIN = tr("rsclaw kb add reads the document once more")
#: Advice for messages: rsclaw's own commands, for findings that regraft does not fix.
ADVICE = {
    FILE_OUTSIDE: tr("rsclaw kb rm DOC removes a document"),
    FILE_MISSING: tr("put it back from a backup, or add the document once more by rsclaw kb add"),
    FILE_CHANGED: tr("put it back from a backup, or add the new text by rsclaw kb add"),
    URL_TWINS: tr("rsclaw kb rm DOC removes one that is out of date"),
    SUPERSEDED: tr("rsclaw kb rm DOC removes it"),
    UNREACHABLE: tr("rsclaw kb visibility DOC says who may see it"),
    LATEST: _AGAIN,
    JOB_FAILED: _AGAIN,
    JOB_STALE: tr("rsclaw takes it back at its next start"),
    LEDGER_PENDING: tr("rsclaw kb compact settles what is indexed"),
    CHUNK_RANGE: _AGAIN,
    CHUNK_ID: _AGAIN,
    CHUNK_INDEX: _AGAIN,
    DIMENSIONS: _AGAIN,
    EMBEDDERS: tr("rsclaw kb add embeds a document with the embedder that is in use"),
}
