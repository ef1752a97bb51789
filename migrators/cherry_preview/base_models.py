"""The models of bases of preview builds, from their catalog and the user's word (``docs/rules.md``, "Models")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog
from regraft.formats.cherry_v2.models import SEPARATOR, ModelChoice, ModelOverrides, Models, is_model_id, tidy_model_id
from regraft.language import tr
from regraft.records import replace
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import is_blank

#: The problem of a base that names no model; its id goes in.
_NAMES_NONE = tr(
    "the base names no embedding model; its vectors are carried with --map-model "
    "'{base}=PROVIDER::MODEL', or those of all such bases with --recreate-model "
    "'PROVIDER::MODEL'"
)


class BaseModels:
    """Resolves what bases name. ``notices`` are about the whole source."""

    def __init__(self, catalog: StoredCatalog | None, model_overrides: ModelOverrides) -> None:
        providers = None if catalog is None else _providers(catalog)
        self.notices: list[Notice] = []
        if catalog is not None and providers is None:
            message = tr("the catalog has no tables of models: every model that a base names counts as existing")
            self.notices.append(Notice(code=notices.MODELS_UNKNOWN, message=message))
        known = catalog or StoredCatalog()
        self._rows = {row.get("id"): row for row in known.models or ()}
        self._word = model_overrides
        models = [self._raw(row.get("embedding_model_id")) for row in known.bases]
        self._models = Models(providers, model_overrides, models)
        named = set(map(_unique, models))
        only = next(iter(model_overrides.recreated)) if len(model_overrides.recreated) == 1 else None
        #: The one model that is re-created, for a base of which no catalog says a word.
        self._of_unlisted = only
        #: The same where no base of the catalog names it: it must be that of those that name none.
        self._of_unnamed = None if only in named else only

    def embedding(self, model_id: Any, base_id: str, *, is_listed: bool) -> ModelChoice:
        """Resolve the embedding model that a base names, or the one that the user names for bases without one."""
        raw = self._raw(model_id)
        spare = self._of_unnamed if is_listed else self._of_unlisted
        if raw is None and spare is not None and base_id not in self._word.mapped:
            raw = {"id": spare}
        choice = self._models.embedding(raw, base_id)
        if raw is None and choice.id is None:
            return replace(choice, problem=_NAMES_NONE.format(base=base_id))
        return choice

    def rerank(self, model_id: Any, base_id: str) -> ModelChoice:
        """Resolve the rerank model that a base names."""
        return self._models.rerank(self._raw(model_id), base_id)

    def unused_words(self) -> Iterator[Notice]:
        """Say which of the user's words met no base."""
        return self._models.unused_words()

    def _raw(self, model_id: Any) -> dict[str, Any] | None:
        """Return a model as the shared rules read it; None where none is named."""
        return None if is_blank(model_id) else _raw_model(self._rows.get(model_id, {"id": model_id}))


def _providers(catalog: StoredCatalog) -> list[dict[str, Any]] | None:
    """Return providers with their models; None where the catalog has no table of either."""
    if catalog.providers is None and catalog.models is None:
        return None
    found: dict[str, dict[str, Any]] = {}
    for row in catalog.providers or ():
        provider = str(row.get("provider_id"))
        found[provider] = {"id": provider, "name": row.get("name"), "enabled": row.get("is_enabled") != 0, "models": []}
    for row in catalog.models or ():
        raw = _raw_model(row)
        provider = str(row.get("provider_id") or str(raw["id"]).partition(SEPARATOR)[0])
        entry = found.setdefault(provider, {"id": provider, "name": None, "enabled": True, "models": []})
        entry["models"].append(raw)
    return list(found.values())


def _raw_model(row: Row) -> dict[str, Any]:
    whole = str(row.get("id"))
    model = whole if is_model_id(whole) else row.get("model_id") or whole
    return {"id": model, "provider": row.get("provider_id"), "name": row.get("name"), "group": row.get("group")}


def _unique(raw: dict[str, Any] | None) -> str | None:
    if raw is None:
        return None
    model = str(raw["id"])
    return tidy_model_id(model if SEPARATOR in model else f"{raw['provider']}{SEPARATOR}{model}")
