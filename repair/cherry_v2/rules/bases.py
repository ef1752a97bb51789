"""Mending rows of ``knowledge_base`` from what there is of the base: its index, its vectors, its model.

Rules: ``docs/formats/catalog.md``, "What follows from what". A completed base always has an index; a failed one has one
only where its texts were carried by themselves (``migrate --carry-text``), without a vector.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from checks.cherry_v2.catalog_rows import MODES, base_problem
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.language import tr
from regraft.report.notices import MISSING_MODEL, MISSING_STORE
from regraft.text import is_blank
from repair.cherry_v2.rules.evidence import Evidence

Columns = dict[str, Any]


def mended(row: Row, models: Collection[Any] | None, evidence: Evidence, model: str | None = None) -> Columns | str:
    """Return the columns of a base that have to change, or why that cannot be told.

    Args:
        row: the base.
        models: ids of the models that there are; None where that is not known.
        evidence: what there is of it.
        model: the model of its vectors, as a person says, where it has none.
    """
    new = dict(row)
    reason = _mend_status(new, models, evidence)
    vectors = evidence.vectors()
    if not _is_length(new.get("dimensions")):
        new["dimensions"] = vectors or None
    if reason is None and new["status"] == "completed":
        reason = _mend_model(new, vectors, models, model) or _mend_search(new, vectors)
    if reason is None and base_problem(new) is not None:
        reason = base_problem(new)
    return reason if reason is not None else {name: new[name] for name in new if new[name] != row.get(name)}


def dimensions(evidence: Evidence) -> Columns | str:
    """Return the dimensions that the vectors of a base have, or why that cannot be told."""
    found = evidence.vectors(by_majority=False)
    return {"dimensions": found} if found else tr("its vectors are not all of one length")


def _is_length(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _mend_status(new: Row, models: Collection[Any] | None, evidence: Evidence) -> str | None:
    status, error = new.get("status"), new.get("error")
    if (status == "completed" and error is None) or (status == "failed" and not is_blank(error)):
        return None
    if evidence.is_readable:
        new["status"], new["error"] = "completed", None
    elif not evidence.is_missing:
        return tr("its index cannot be read, so that nobody knows whether it failed")
    else:
        new["status"] = "failed"
        new["error"] = _why_failed(new.get("embedding_model_id"), models) if is_blank(error) else error
    return None


def _why_failed(model: Any, models: Collection[Any] | None) -> str:
    """Return the error of a base without an index, by its model and those that there are."""
    is_gone = model is None or (models is not None and model not in models)
    return MISSING_MODEL if is_gone else MISSING_STORE


def _mend_model(new: Row, vectors: int | None, models: Collection[Any] | None, model: str | None) -> str | None:
    """Give a completed base with vectors the model that a person says they are of."""
    if new.get("embedding_model_id") is not None or vectors == 0:
        return None
    if model is None:
        return tr("it has no model, and which one made its vectors is not known; regraft repair --model ID says it")
    if models is not None and model not in models:
        return tr("the catalog has no model {model}: add it in the application first", model=model)
    if vectors is None:
        return tr("its vectors are not all of one length")
    new["embedding_model_id"], new["dimensions"] = model, vectors
    return None


def _mend_search(new: Row, vectors: int | None) -> str | None:
    """Make model, dimensions and search mode of a completed base go together."""
    if new.get("embedding_model_id") is None:
        new["dimensions"] = None
        if "search_mode" in new:
            new["search_mode"] = "bm25"
    elif new["dimensions"] is None:
        return tr("its vectors are not all of one length") if vectors is None else tr("it has no vectors to tell by")
    # Only a base that is searched in this mode has the share of its two lanes.
    if "search_mode" in new and new["search_mode"] not in MODES and new.get("hybrid_alpha") is not None:
        new["search_mode"] = "hybrid"
    return None
