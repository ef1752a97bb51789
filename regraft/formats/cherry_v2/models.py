"""Which models still exist, and what becomes of a base whose model does not (``docs/rules.md``, "Models")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from regraft.formats.cherry_v2.catalog import EMBEDDING, RERANK, ModelRow, ProviderRow
from regraft.identity import replace
from regraft.language import tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import is_blank, trim

SEPARATOR = "::"
#: Providers that v2 has no more, even where v1 lists them.
RETIRED_PROVIDERS = frozenset({"cephalon", "tokenflux"})
#: Providers that later releases have no more.
RETIRING_PROVIDERS = frozenset({"github"})


class ModelOverrides(msgspec.Struct, frozen=True):
    """The user's word that vectors are of a model.

    ``mapped`` goes from an old model id (or a v1 base id) to a model id, ``recreated`` holds model ids.
    """

    mapped: dict[str, str] = msgspec.field(default_factory=dict)
    recreated: frozenset[str] = frozenset()


class ModelChoice(msgspec.Struct, frozen=True):
    """The model of a base after resolving, with the catalog rows that it needs; ``id`` is None where it has none."""

    id: str | None = None
    model: ModelRow | None = None
    provider: ProviderRow | None = None
    #: Why there is none, for a person.
    problem: str = ""
    #: The model that no longer exists, where the user's word for it would do (``--recreate-model``).
    gone: str | None = None
    notices: tuple[Notice, ...] = ()


def unique_model_id(provider: Any, model: Any) -> str | None:
    """Return ``provider::model`` of v1's names, or None where they name no model.

    A model id that already holds ``::`` stays as it is; a provider that holds it counts as no model.
    """
    if is_blank(model):
        return None
    model = trim(model)
    if SEPARATOR in model:
        return tidy_model_id(model) if is_model_id(model) else None
    if is_blank(provider) or SEPARATOR in provider:
        return None
    return f"{trim(provider)}{SEPARATOR}{model}"


def tidy_model_id(text: str) -> str:
    """Return a model id with both parts trimmed; anything else is trimmed as a whole."""
    provider, separator, model = text.partition(SEPARATOR)
    return f"{trim(provider)}{separator}{trim(model)}"


def is_model_id(text: str) -> bool:
    """Tell whether ``text`` is of the form ``provider::model``, neither part blank."""
    provider, separator, model = text.partition(SEPARATOR)
    return bool(separator) and bool(trim(provider)) and bool(trim(model))


def _objects(values: Any) -> Iterator[dict[str, Any]]:
    return (value for value in values if isinstance(value, dict)) if isinstance(values, list) else iter(())


class ModelResolver:
    """The models of a source, and those re-created for its bases so far.

    Args:
        providers: the providers of the source, with their models; None where it does not tell.
        model_overrides: what the user says of models.
        embedding: what the bases of the source name as their embedding models.
    """

    def __init__(
        self, providers: list[Any] | None, model_overrides: ModelOverrides, embedding: Iterable[Any] = ()
    ) -> None:
        #: Without an `llm` slice every model that a base names counts as existing.
        self._all_exist = providers is None
        self._word = model_overrides
        self._used: set[str] = set()
        self._providers: dict[str, ProviderRow] = {}
        self._models: dict[str, ModelRow] = {}
        named = (unique_model_id(raw.get("provider"), raw.get("id")) for raw in embedding if isinstance(raw, dict))
        self._embeds = {*filter(None, named), *model_overrides.mapped.values()}
        for provider in _objects(providers or []):
            self._read_provider(provider)

    def _read_provider(self, raw: dict[str, Any]) -> None:
        provider = raw.get("id")
        if is_blank(provider):
            return
        provider = trim(str(provider))
        if provider in RETIRED_PROVIDERS:
            return
        name = raw.get("name")
        row = ProviderRow(provider, provider if is_blank(name) else str(name), raw.get("enabled") is not False)
        self._providers.setdefault(provider, row)
        for model in _objects(raw.get("models")):
            unique = unique_model_id(provider, model.get("id"))
            if unique is not None and _provider_of(unique) not in RETIRED_PROVIDERS:
                self._models.setdefault(unique, _model_row(unique, model))

    def embedding(self, raw: Any, legacy_base: str) -> ModelChoice:
        """Resolve the embedding model that a base names."""
        return self._kept(self._embedding(raw, legacy_base), legacy_base)

    def _embedding(self, raw: Any, legacy_base: str) -> ModelChoice:
        named = raw if isinstance(raw, dict) else {}
        unique = unique_model_id(named.get("provider"), named.get("id"))
        mapped = self._mapped(unique, named, legacy_base)
        if mapped is not None:
            return mapped
        if unique is None:
            return ModelChoice(
                problem=tr(
                    "the base names no embedding model; its vectors are carried with --map-model "
                    "'{legacy_base}=PROVIDER::MODEL'",
                    legacy_base=legacy_base,
                )
            )
        is_recreated = unique in self._word.recreated
        self._used.update({unique} & self._word.recreated)
        if unique in self._models or (self._all_exist and not is_recreated):
            return self._exists(unique, named)
        if is_recreated or _provider_of(unique) in self._providers:
            if is_recreated:
                message = tr("{unique} is re-created, as --recreate-model says", unique=unique)
            else:
                message = tr("{unique} is re-created: its provider exists", unique=unique)
            return self._exists(unique, named, Notice(code=notices.MODEL_RECREATED, message=message, base=legacy_base))
        return _gone(unique)

    def _mapped(self, unique: str | None, named: dict[str, Any], legacy_base: str) -> ModelChoice | None:
        """Return the model that the user named for a model or a base, None where for neither."""
        for old in (unique, legacy_base):
            if old is not None and old in self._word.mapped:
                self._used.add(old)
                new = self._word.mapped[old]
                message = tr("{unique} is taken as {new}", unique=unique or tr("no model"), new=new)
                notice = Notice(code=notices.MODEL_MAPPED, message=message, base=legacy_base)
                return self._exists(new, {} if new != unique else named, notice)
        return None

    def rerank(self, raw: Any, legacy_base: str) -> ModelChoice:
        """Resolve the rerank model that a base names; a dangling one is cleared."""
        if not isinstance(raw, dict):
            return ModelChoice()
        unique = unique_model_id(raw.get("provider"), raw.get("id"))
        if unique is not None and (unique in self._models or self._all_exist):
            return self._kept(self._exists(unique, raw, capabilities=self._capabilities_of_rerank(unique)), legacy_base)
        message = Notice(
            code=notices.RERANK_CLEARED,
            message=tr("{unique} does not exist", unique=unique or tr("a model without a name")),
            base=legacy_base,
        )
        return ModelChoice(notices=(message,))

    def _capabilities_of_rerank(self, unique: str) -> tuple[str, ...]:
        """Return what a rerank model can do; without ``embedding`` no base could have it for its embedding model."""
        return EMBEDDING if unique in self._embeds else RERANK

    def _exists(
        self,
        unique: str,
        named: dict[str, Any],
        message: Notice | None = None,
        capabilities: tuple[str, ...] = EMBEDDING,
    ) -> ModelChoice:
        """Return the catalog rows of a model; one that the source does not list is kept for later bases."""
        model = replace(self._models.setdefault(unique, _model_row(unique, named)), capabilities=capabilities)
        provider = _provider_of(unique)
        row = self._providers.get(provider) or ProviderRow(provider, provider, is_enabled=True)
        return ModelChoice(unique, model, row, notices=() if message is None else (message,))

    def _kept(self, choice: ModelChoice, legacy_base: str) -> ModelChoice:
        """Return a choice with a notice where releases have the model's provider no more."""
        provider = "" if choice.model is None else choice.model.provider_id
        if provider not in RETIRED_PROVIDERS | RETIRING_PROVIDERS:
            return choice
        since = (
            tr("has no such provider") if provider in RETIRED_PROVIDERS else tr("has it up to 2.0.8, later ones do not")
        )
        message = tr(
            "the provider {provider} of the model {id} is retired: the application {since}",
            provider=provider,
            id=choice.id,
            since=since,
        )
        return replace(
            choice, notices=(*choice.notices, Notice(code=notices.PROVIDER_RETIRED, message=message, base=legacy_base))
        )

    def unused_overrides(self) -> Iterator[Notice]:
        """Say which of the user's words met no base: a typing error, most likely."""
        for old in (*self._word.mapped, *sorted(self._word.recreated)):
            if old not in self._used:
                yield Notice(
                    code=notices.OPTION_UNUSED, message=tr("no base uses the model {old} or has that id", old=old)
                )


def _gone(unique: str) -> ModelChoice:
    is_retired = _provider_of(unique) in RETIRED_PROVIDERS
    why = tr("as the application has its provider no more") if is_retired else tr("and so is the provider")
    return ModelChoice(
        problem=tr(
            "its embedding model {unique} is gone, {why}; its vectors are carried with --recreate-model '{unique}'",
            unique=unique,
            why=why,
        ),
        gone=unique,
    )


def _provider_of(unique: str) -> str:
    return trim(unique.partition(SEPARATOR)[0])


def _model_row(unique: str, raw: dict[str, Any]) -> ModelRow:
    model = trim(unique.partition(SEPARATOR)[2])
    name, group = raw.get("name"), raw.get("group")
    return ModelRow(
        id=unique,
        provider_id=_provider_of(unique),
        model_id=model,
        name=model if is_blank(name) else trim(str(name)),
        group=None if is_blank(group) else trim(str(group)),
    )
