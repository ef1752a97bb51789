"""Findings of a folder of Chroma (``docs/findings.md``, "Chroma")."""

from __future__ import annotations

from checks.audit.findings import register
from regraft.language import tr

_BACKUP = tr("Restore the file from a backup that was made while the application was not running.")
_REBUILD = tr("`regraft repair`, which rebuilds the segment from its own vectors and the queue; nothing is embedded.")
_EMBED = tr("Nothing in the folder has a usable vector. Let the application embed the text again.")

UNREADABLE = register(
    "error",
    "chroma.unreadable",
    tr("`chroma.sqlite3` is missing, damaged, or of an unknown layout. What could not be read was not checked."),
    _BACKUP,
)
COLLECTION_INCOMPLETE = register(
    "error",
    "chroma.collection-incomplete",
    tr("A collection has no segment for its vectors, or none for its metadata. Chroma cannot open it."),
    _BACKUP,
)
SEGMENT_MISSING = register(
    "error",
    "chroma.segment-missing",
    tr("The files of a vector segment are missing or cannot be used, although Chroma had written vectors to them."),
    tr("`regraft repair`, which rebuilds the segment from the queue. Vectors that only the files had are lost."),
    "repair",
)
LABELS_MISSING = register(
    "error",
    "chroma.labels-missing",
    tr(
        "`index_metadata.pickle` of a segment is missing or cannot be read: nothing else tells which vector belongs to "
        "which id."
    ),
    tr(
        "`regraft repair`: vectors that the queue proves are kept. `--unproven` also keeps those that the order of "
        "insertion suggests."
    ),
    "repair",
)
LABELS_HOSTILE = register(
    "error",
    "chroma.labels-hostile",
    tr(
        "`index_metadata.pickle` of a segment has instructions that Chroma never writes. Chroma 0.6 and earlier would "
        "execute them. regraft never does."
    ),
    tr("`regraft repair`, as for `chroma.labels-missing`. Find out who wrote the file."),
    "repair",
)
LABELS_INCONSISTENT = register(
    "error",
    "chroma.labels-inconsistent",
    tr("The label map of a segment contradicts itself, or names elements that do not exist or were deleted."),
    _REBUILD,
    "repair",
)
HEADER = register(
    "error",
    "chroma.header",
    tr("`header.bin` of a segment is damaged, or contradicts the sizes of the other files or the collection."),
    _REBUILD,
    "repair",
)
NORMS = register(
    "error",
    "chroma.norms",
    tr("`length.bin` of a segment with cosine distance is too short or damaged: the lengths of its vectors are lost."),
    tr(
        "`regraft repair`, which leaves such vectors out, since Chroma returns wrong ones for them. `--unproven` keeps "
        "them with length 1: the same for searches by cosine. `regraft backfill` embeds their texts."
    ),
    "repair",
)
GRAPH = register(
    "error",
    "chroma.graph",
    tr("The graph of a segment (`link_lists.bin`, or the links of its elements) is damaged: Chroma fails or crashes."),
    _REBUILD,
    "repair",
)
RECALL = register(
    "warning",
    "chroma.recall",
    tr("Chroma's index misses nearest neighbors that a comparison with every vector finds."),
    tr("`regraft repair --only chroma.recall`, which rebuilds the graph from the same vectors."),
    "repair",
)
QUEUE_UNAPPLIED = register(
    "error",
    "chroma.queue-unapplied",
    tr("The queue has the vector of an entry, and the segment should have it and does not: Chroma lost the operation."),
    _REBUILD,
    "repair",
)
QUEUE_BEHIND = register(
    "warning",
    "chroma.queue-behind",
    tr(
        "More operations wait in the queue than Chroma collects before it writes a segment: writing it may have failed."
    ),
    tr("Start the application: Chroma applies the operations. If this finding comes back, look at Chroma's log."),
)
QUEUE_ORPHAN = register(
    "note",
    "chroma.queue-orphan",
    tr("Operations in the queue belong to a collection that does not exist."),
    tr("Nothing has to be done: Chroma ignores them."),
)
VECTOR_MISSING = register(
    "error",
    "chroma.vector-missing",
    tr("An entry has text or metadata, and no vector anywhere in the folder."),
    tr(
        "`regraft backfill`, which embeds the documents of such entries, and nothing else. The ids are in the report "
        "of `regraft repair`."
    ),
    "backfill",
)
VECTOR_ORPHAN = register(
    "warning",
    "chroma.vector-orphan",
    tr("A vector has neither text nor metadata. Chroma returns its id from searches, and nothing else."),
    tr("`regraft repair --only chroma.vector-orphan`, which rebuilds the segment without it."),
)
DIMENSION = register("error", "chroma.dimension", tr("A vector has another length than its collection's."), _EMBED)
DIMENSION_WRONG = register(
    "error",
    "chroma.dimension-wrong",
    tr(
        "The row of a collection has another number of dimensions than all of its vectors. Chroma refuses queries, and "
        "versions from 1.0 on return shortened vectors."
    ),
    tr("`regraft repair`, which corrects the number; the vectors stay as they are."),
    "repair",
)
VECTOR_UNUSABLE = register(
    "error",
    "chroma.vector-unusable",
    tr("A vector is all zeros, holds NaN or infinity, or has a norm too large for single precision."),
    _EMBED,
)
NORM_OUTLIER = register(
    "note",
    "chroma.norm-outlier",
    tr("The norm of a vector is more than ten times larger or smaller than that of most vectors of its collection."),
    tr("Nothing to do if the model returns such vectors; otherwise let the application embed these texts again."),
)
VECTOR_SHARED = register(
    "warning",
    "chroma.vector-shared",
    tr("Entries with different texts have the same vector, so at least one of the vectors is of another text."),
    tr("Let the application embed these texts again, unless the model cuts long texts."),
)
FULL_TEXT = register(
    "error",
    "chroma.full-text",
    tr(
        "The full-text index in `chroma.sqlite3` is damaged, or lacks tables or texts of documents. Chroma fails on "
        "every write to the database."
    ),
    tr("`regraft repair`, which rebuilds the index from the documents; nothing is embedded or deleted for it."),
    "repair",
)
SEQ_ID_MIXED = register(
    "warning",
    "chroma.seq-id-mixed",
    tr(
        "Sequence numbers are stored partly as integers and partly as bytes, since versions before and after 1.0 wrote "
        "to the folder. Searches work; Chroma's maintenance can fail."
    ),
    tr(
        "`regraft repair`, which stores all of them as integers; as bytes, if no version from 1.0 on has opened the "
        "folder."
    ),
    "repair",
)
SEGMENT_ORPHAN = register(
    "warning",
    "chroma.segment-orphan",
    tr("The folder of a segment that no row refers to, or the row of a segment without a collection."),
    tr("`regraft gc --only chroma.segment-orphan`, which moves such folders to the trash."),
)
COLLECTION_ORPHAN = register(
    "warning",
    "chroma.collection-orphan",
    tr("Open WebUI has no knowledge base, file or user for this collection."),
    tr(
        "Needs your decision: leave it, which only takes up space; keep its texts and vectors with `regraft export` or "
        "`regraft migrate`; or delete it with Chroma. regraft deletes no collection."
    ),
)
COLLECTION_MISSING = register(
    "note",
    "chroma.collection-missing",
    tr("A knowledge base of Open WebUI has no collection. That is normal as long as it has no file."),
    tr("Let Open WebUI index its files again, if it has any."),
)
