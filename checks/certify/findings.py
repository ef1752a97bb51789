"""Findings of ``regraft certify`` (``docs/certify.md``), and its suspicions, which are never findings."""

from __future__ import annotations

from checks.audit.findings import register
from regraft.language import tr

_FROM = tr("`regraft repair --from` takes texts and vectors from another copy, if one is intact.")
_CHECK = tr("`regraft check` names the rows and the command that repairs them.")
_EMBED = tr("Embed these texts again: `regraft repair` removes such vectors, and `regraft backfill` fills the gaps.")

UNREADABLE = register(
    "error",
    "certify.unreadable",
    tr("A base cannot be read, so nothing about it is proven."),
    _CHECK,
)
BASE_MISSING = register(
    "error",
    "certify.base-missing",
    tr("A base of A has no counterpart in B."),
    tr("Migrate or install it again, or select the bases with `--base`."),
)
TEXT_MISSING = register(
    "error",
    "certify.text-missing",
    tr("B lacks texts that A has."),
    _FROM,
)
TEXT_ADDED = register(
    "note",
    "certify.text-added",
    tr("B has texts that A lacks: they were added after the copy, or belong to another base."),
    tr("Nothing needs to be fixed if you added them."),
)
VECTOR_MISSING = register(
    "error",
    "certify.vector-missing",
    tr("B has a text of A, but without the usable vector that A has."),
    _FROM,
)
VECTOR_ADDED = register(
    "note",
    "certify.vector-added",
    tr("B has a usable vector for a text that has none in A."),
    tr("Nothing needs to be fixed if you added the vector."),
)
VECTOR_DIFFERS = register(
    "error",
    "certify.vector-differs",
    tr(
        "Error: a text has another vector in B than in A (cosine below 0.99, or another length). Note: the bytes "
        "differ, but every cosine is at least 0.99, as after embedding again with the same model."
    ),
    _FROM,
)
NEIGHBORS_DIFFER = register(
    "warning",
    "certify.neighbors-differ",
    tr(
        "The 10 nearest texts of a text are not the same in A and in B. Note: the two bases have different models or "
        "dimensions, so differences are expected."
    ),
    tr("The findings about texts and vectors show the cause."),
)
VECTOR_UNUSABLE = register(
    "error",
    "certify.vector-unusable",
    tr("A vector is zero, has a NaN or an infinity, or its norm exceeds single precision. No search finds its text."),
    _EMBED,
)
VECTOR_LENGTH = register(
    "error",
    "certify.vector-length",
    tr("A vector has other dimensions than the vectors of its base. No search finds its text."),
    _EMBED,
)
NORM_OUTLIER = register(
    "warning",
    "certify.norm-outlier",
    tr("The norm of a vector is far from the norms of the others: another program or model made it, or it is damaged."),
    _EMBED,
)
VECTOR_SHARED = register(
    "error",
    "certify.vector-shared",
    tr(
        "Texts that differ in their first 120 letters and digits have the same vector. A search by meaning cannot tell "
        "them apart: all but one have the vector of another text, or the model cannot read them."
    ),
    _EMBED,
)
HASH_FOREIGN = register(
    "error",
    "certify.hash-foreign",
    tr("A vector is stored under a hash that is not the hash of its text: it was made from another text."),
    _CHECK,
)
TEXT_WITHOUT_VECTOR = register(
    "warning",
    "certify.text-without-vector",
    tr("A text has no vector, although others of its base have one. It is only found by its words."),
    tr("`regraft backfill` embeds these texts."),
)
UNREACHABLE = register(
    "error",
    "certify.unreachable",
    tr("A text has a vector, but no unit or no item: the search leaves it out."),
    _CHECK,
)
SELF_MISSED = register(
    "error",
    "certify.self-missed",
    tr("The vector of a text, searched for with the search of the product, does not find that text."),
    _CHECK,
)
INDEX_DIFFERS = register(
    "error",
    "certify.index-differs",
    tr(
        "The index does not find what a comparison with every vector finds. Of Chroma: it finds less than 80 % of the "
        "10 nearest vectors, or cannot be searched."
    ),
    tr("Of Chroma, `regraft repair` rebuilds the index from its own vectors. Otherwise run `regraft check`."),
)
WORDS_DIFFER = register(
    "error",
    "certify.words-differ",
    tr("The full-text index does not find a text by its own words, or finds texts that do not have the words."),
    tr("`regraft repair` builds the full-text index again."),
)
MODEL_DIFFERS = register(
    "error",
    "certify.model-differs",
    tr("Texts that were embedded again have other vectors than the stored ones: another model made them, or several."),
    tr("Name the right model, or make a new base with `regraft restore`."),
)
KNOWN_ITEM = register(
    "warning",
    "certify.known-item",
    tr("Less than half of the texts are among the 10 nearest to the vector of their own last third."),
    tr("Compare the prefixes of the embedder with those of the application (`docs/embedders.md`)."),
)

#: Names of suspicions. They are heuristics: a reason to look, not a proof.
TWO_GROUPS, BASE_APART = "two-groups", "base-apart"
#: What each proof is about; the keys of ``proofs`` in the JSON document, in order.
PROOFS = (
    "texts",
    "vectors",
    "coverage",
    "hashes",
    "shared",
    "reachable",
    "self",
    "index",
    "words",
    "sets",
    "neighbors",
    "model",
    "known-item",
)
