"""Findings of a knowledge base of rsclaw (``docs/findings.md``, "rsclaw").

regraft never writes the database. Its problems are fixed by rsclaw's own commands, which the remedies name.
"""

from __future__ import annotations

from checks.audit.findings import register
from regraft.language import tr

_BACKUP = tr(
    "Restore a backup of `kb.redb` that was taken while rsclaw was not running; regraft never "
    "writes this file. Files added after the backup then belong to no document: do not run `regraft "
    "gc` until you have added them again."
)
_ADD_AGAIN = tr(
    "Add the document's source again with `rsclaw kb add`. If rsclaw reports that it already "
    "exists, run `rsclaw kb rm DOC` first."
)
_NEVER_WRITTEN = tr("Restore `kb.redb` from a backup in which the rows are correct. regraft never writes this file.")
_START = tr("Start rsclaw: it releases the jobs that a terminated worker had claimed.")

UNREADABLE = register(
    "error",
    "kb.unreadable",
    tr("Part of `kb.redb`, or of a folder of files, cannot be read. Anything that could not be read was not checked."),
    _BACKUP,
)
PAGE = register(
    "error",
    "kb.page",
    tr("A page of `kb.redb` is damaged, and its rows are lost. Data that depends on those rows is not checked."),
    _BACKUP,
)
ROW = register(
    "error",
    "kb.row",
    tr("A row does not have the format that rsclaw writes. Data that depends on it is not checked."),
    _BACKUP,
)
FILE_OUTSIDE = register(
    "error",
    "kb.file-outside",
    tr("The path of a document or of a ledger entry points outside `md/` and `raw/`. It is not followed."),
    tr("Check where the path points, then remove the document with `rsclaw kb rm DOC`."),
)
FILE_MISSING = register(
    "error",
    "kb.file-missing",
    tr(
        "The file of a document is missing or cannot be read. The severity is note if the document was "
        "removed or replaced by a newer version: rsclaw deletes such files itself."
    ),
    tr("Restore the file from a backup; otherwise add the document's source again with `rsclaw kb add`."),
)
FILE_CHANGED = register(
    "error",
    "kb.file-changed",
    tr(
        "A file has changed since rsclaw wrote it: chunks and vectors belong to the old text. Warning "
        "for the source file of a document; note if the document was removed or is an older version."
    ),
    tr(
        "Restore the old file from a backup; or add the new text with `rsclaw kb add` and remove the "
        "old document with `rsclaw kb rm DOC`."
    ),
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
        "Keep it if you want to add its text again; otherwise run `rsclaw kb compact`. `regraft gc "
        "--only kb.file-orphan` moves it to the trash. Notes need no action."
    ),
)
URL_TWINS = register(
    "warning",
    "kb.url-twins",
    tr(
        "Several documents come from the same web page under different sources, so searches find every "
        "version of the page. A note if the addresses differ but probably lead to the same page."
    ),
    tr("Remove outdated documents with `rsclaw kb rm DOC`. You have to decide which ones are outdated."),
)
SUPERSEDED = register(
    "warning",
    "kb.superseded",
    tr("An older version of a document is still active. Searches do not find it, but it takes up space."),
    tr("Remove the older version with `rsclaw kb rm DOC`."),
)
ROLLED_BACK = register(
    "note",
    "kb.rolled-back",
    tr(
        "A source's latest-version pointer refers to an older version than that of another active "
        "document: the source was rolled back. Searches find the version that the pointer refers to."
    ),
    tr(
        "Nothing to do if the rollback is intended. Otherwise `rsclaw kb add` with the newer text makes "
        "it the latest version again."
    ),
)
UNREACHABLE = register(
    "warning",
    "kb.unreachable",
    tr("A document is not visible to anyone: it is private without an owner, or its visibility is unknown."),
    tr("`rsclaw kb visibility DOC …` sets who may see it."),
)
TOMBSTONE_EXPIRED = register(
    "warning",
    "kb.tombstone-expired",
    tr("A document was removed more than 30 days ago, but its row, chunks and vectors still exist."),
    tr("`rsclaw kb compact`, if your version of rsclaw deletes such rows; otherwise they only take up space."),
)
LATEST = register(
    "error",
    "kb.latest",
    tr("A source's latest-version pointer is missing, or refers to a wrong document or version."),
    _ADD_AGAIN,
)
JOB_FAILED = register(
    "error",
    "kb.job-failed",
    tr("rsclaw has given up splitting and embedding a document. Its ledger entry stays pending forever."),
    _ADD_AGAIN,
)
JOB_STALE = register(
    "warning",
    "kb.job-stale",
    tr("A job is marked as running, but its worker's claim has expired or is missing."),
    _START,
)
LEDGER_PENDING = register(
    "warning",
    "kb.ledger-pending",
    tr(
        "A ledger entry is open, but no job exists that would complete it. A note if a job has been "
        "waiting for more than a day."
    ),
    tr(
        "Run `rsclaw kb compact`, which completes the entries of indexed documents; add documents whose "
        "entries are still open with `rsclaw kb add`."
    ),
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
        "A deduplication entry refers to a job that is neither waiting nor running, so the document may "
        "never be indexed again. A note if it refers to no job."
    ),
    _NEVER_WRITTEN,
)
CHUNK_RANGE = register(
    "error",
    "kb.chunk-range",
    tr("A chunk's range is outside its document's text, or ends before it begins."),
    _ADD_AGAIN,
)
CHUNK_ID = register(
    "warning",
    "kb.chunk-id",
    tr("A chunk's id is not the one that rsclaw makes from its source, number and text."),
    _ADD_AGAIN,
)
CHUNK_ORPHAN = register(
    "warning",
    "kb.chunk-orphan",
    tr("A chunk belongs to a missing document, or its version or source differs from its document's."),
    _NEVER_WRITTEN,
)
CHUNK_INDEX = register(
    "error",
    "kb.chunk-index",
    tr("A chunk is not listed under its source, or a listed entry is not a chunk."),
    _ADD_AGAIN,
)
DIMENSIONS = register(
    "error",
    "kb.dimensions",
    tr(
        "Searchable chunks have vectors of different lengths, or vectors that no search can rank: "
        "empty, all zeros, not finite, not numeric, or with a norm too large for single precision."
    ),
    _ADD_AGAIN,
)
EMBEDDERS = register(
    "warning",
    "kb.embedders",
    tr("Searchable chunks were embedded by different embedders, so their vectors cannot be compared."),
    tr("Add the documents of the other embedder again with `rsclaw kb add`, using the current embedder."),
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
        "The snapshot of the vector index does not match the chunks, or cannot be read: vector search "
        "misses some chunks, or returns nothing."
    ),
    tr("`regraft reconcile` moves it to the trash; rsclaw rebuilds it at its next start."),
    "reconcile",
)
FULL_TEXT = register(
    "warning",
    "kb.full-text",
    tr("The number of texts in the full-text index differs from the number of chunks, or the index cannot be read."),
    tr("`regraft reconcile` moves it to the trash; rsclaw rebuilds it at its next start."),
    "reconcile",
)

_AGAIN = tr("rsclaw kb add reads the document again")
#: Advice for messages: rsclaw's own commands, for findings that regraft does not fix.
ADVICE = {
    FILE_OUTSIDE: tr("rsclaw kb rm DOC removes a document"),
    FILE_MISSING: tr("restore it from a backup, or add the document again with rsclaw kb add"),
    FILE_CHANGED: tr("restore it from a backup, or add the new text with rsclaw kb add"),
    URL_TWINS: tr("rsclaw kb rm DOC removes an outdated one"),
    SUPERSEDED: tr("rsclaw kb rm DOC removes it"),
    UNREACHABLE: tr("rsclaw kb visibility DOC sets who may see it"),
    LATEST: _AGAIN,
    JOB_FAILED: _AGAIN,
    JOB_STALE: tr("rsclaw releases it at its next start"),
    LEDGER_PENDING: tr("rsclaw kb compact completes the entries of indexed documents"),
    CHUNK_RANGE: _AGAIN,
    CHUNK_ID: _AGAIN,
    CHUNK_INDEX: _AGAIN,
    DIMENSIONS: _AGAIN,
    EMBEDDERS: tr("rsclaw kb add embeds a document with the current embedder"),
}
