"""Which model may be that of vectors whose base has none: what a catalog says for and against it."""

from __future__ import annotations

from regraft.formats import json_text
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, base_key
from regraft.formats.cherry_v2.index.vector_lengths import stated_dimensions
from regraft.language import joined, tr

_EMBEDDING = "embedding"


def problem_with(model: str, dimensions: int, catalog: StoredCatalog, base: str) -> str | None:
    """Return why a model cannot be that of the vectors of a base; None where nothing speaks against it.

    Args:
        model: the id of the model.
        dimensions: those of the vectors.
        catalog: has the model, and the bases that use it.
        base: the id of the base.
    """
    row = next((one for one in catalog.models or () if one.get("id") == model), None)
    capabilities = None if row is None else _capabilities(row)
    if capabilities and _EMBEDDING not in capabilities:
        return tr("the model {model} is not one for embeddings", model=model)
    others = _dimensions_of(model, catalog, base)
    if others and dimensions not in others:
        return tr(
            "its vectors have {dimensions} dimensions, and those of other bases with the model {model} have {others}",
            dimensions=dimensions,
            model=model,
            others=joined(sorted(others)),
        )
    return None


def only_candidate(dimensions: int, catalog: StoredCatalog, base: str) -> str | None:
    """Return the one model of a catalog that may have made the vectors of a base; None for none or several.

    A model that inherits its capabilities from a preset, which the catalog does not have, may be one for embeddings.
    """
    used = {row.get("embedding_model_id") for row in catalog.bases}
    candidates = []
    for row in catalog.models or ():
        model, capabilities = row.get("id"), _capabilities(row)
        may_embed = model in used or capabilities is None or _EMBEDDING in capabilities
        if isinstance(model, str) and may_embed and problem_with(model, dimensions, catalog, base) is None:
            candidates.append(model)
    return candidates[0] if len(candidates) == 1 else None


def _capabilities(row: Row) -> list[object] | None:
    """Return what a model can do; None where its row does not say."""
    try:
        found = json_text.loads(str(row["capabilities"])) if row.get("capabilities") is not None else None
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _dimensions_of(model: str, catalog: StoredCatalog, base: str) -> set[int]:
    """Return the dimensions of the other bases with a model."""
    rows = (row for row in catalog.bases if base_key(row) != base and row.get("embedding_model_id") == model)
    return {dimensions for row in rows if (dimensions := stated_dimensions(row)) is not None}
