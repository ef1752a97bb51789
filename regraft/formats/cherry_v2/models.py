"""Resolve the models of bases: which still exist, and what to do about the others (``docs/rules.md``, "Models")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from regraft.formats.cherry_v2.catalog import EMBEDDING, RERANK, ModelRow, ProviderRow
from regraft.identity import replace
from regraft.language import tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import is_blank, join_command, trim

SEPARATOR = "::"
#: Providers that v2 has removed, even if v1 lists them.
RETIRED_PROVIDERS = frozenset({"cephalon", "tokenflux"})
#: Providers that later releases remove.
RETIRING_PROVIDERS = frozenset({"github"})


class ModelOverrides(msgspec.Struct, frozen=True):
    """The user's decisions about models.

    Attributes:
        mapped: model id by old model id or v1 base id (``--map-model``).
        recreated: model ids to re-create (``--recreate-model``).
    """

    mapped: dict[str, str] = msgspec.field(default_factory=dict)
    recreated: frozenset[str] = frozenset()


class ModelChoice(msgspec.Struct, frozen=True):
    """The resolved model of a base and the catalog rows that it needs; ``id`` is None if the base gets no model."""

    id: str | None = None
    model: ModelRow | None = None
    provider: ProviderRow | None = None
    #: Why there is no model, for messages.
    problem: str = ""
    #: Id of the missing model if ``--recreate-model`` would bring it back.
    gone: str | None = None
    notices: tuple[Notice, ...] = ()


def unique_model_id(provider: Any, model: Any) -> str | None:
    """Return ``provider::model`` for the two names in v1's state; None if they do not identify a model.

    A model id that already contains ``::`` is used as it is. A provider that contains it is invalid.
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
    """Trim both parts of a model id, or the whole text if it is not a model id."""
    provider, separator, model = text.partition(SEPARATOR)
    return f"{trim(provider)}{separator}{trim(model)}"


def is_model_id(text: str) -> bool:
    """Whether ``text`` has the form ``provider::model`` with two non-blank parts."""
    provider, separator, model = text.partition(SEPARATOR)
    return bool(separator) and bool(trim(provider)) and bool(trim(model))


def _iterate_objects(values: Any) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a list; nothing if the value is not a list."""
    return (value for value in values if isinstance(value, dict)) if isinstance(values, list) else iter(())


class ModelResolver:
    """Resolves the models of a source's bases, and remembers those that it re-creates.

    Args:
        providers: the providers of the source with their models; None if the source does not list them.
        model_overrides: the user's decisions.
        embedding: the values that name an embedding model in any base of the source.
    """

    def __init__(
        self, providers: list[Any] | None, model_overrides: ModelOverrides, embedding: Iterable[Any] = ()
    ) -> None:
        #: Without an `llm` slice, every model that a base refers to counts as existing.
        self._all_exist = providers is None
        self._overrides = model_overrides
        self._used: set[str] = set()
        self._providers: dict[str, ProviderRow] = {}
        self._models: dict[str, ModelRow] = {}
        named = (unique_model_id(raw.get("provider"), raw.get("id")) for raw in embedding if isinstance(raw, dict))
        self._embedding_ids = {*filter(None, named), *model_overrides.mapped.values()}
        for provider in _iterate_objects(providers or []):
            self._read_provider(provider)

    def _read_provider(self, raw: dict[str, Any]) -> None:
        """Add a provider in v1's state and its models, unless v2 has removed the provider."""
        provider = raw.get("id")
        if is_blank(provider):
            return
        provider = trim(str(provider))
        if provider in RETIRED_PROVIDERS:
            return
        name = raw.get("name")
        row = ProviderRow(provider, provider if is_blank(name) else str(name), raw.get("enabled") is not False)
        self._providers.setdefault(provider, row)
        for model in _iterate_objects(raw.get("models")):
            unique = unique_model_id(provider, model.get("id"))
            if unique is not None and _provider_of(unique) not in RETIRED_PROVIDERS:
                self._models.setdefault(unique, _model_row(unique, model))

    def embedding(self, raw: Any, legacy_base: str) -> ModelChoice:
        """Resolve the embedding model of a base, which ``raw`` names in v1's state; ``legacy_base`` is its v1 id."""
        return self._with_retired_notice(self._resolve_embedding(raw, legacy_base), legacy_base)

    def _resolve_embedding(self, raw: Any, legacy_base: str) -> ModelChoice:
        """Choose the embedding model of a base: the one that options map it to, an existing one, or its own."""
        named = raw if isinstance(raw, dict) else {}
        unique = unique_model_id(named.get("provider"), named.get("id"))
        for old in (unique, legacy_base):
            if old is not None and old in self._overrides.mapped:
                self._used.add(old)
                new = self._overrides.mapped[old]
                message = tr("{unique} is replaced by {new}", unique=unique or tr("no model"), new=new)
                notice = Notice(code=notices.MODEL_MAPPED, message=message, base=legacy_base)
                return self._choose_existing(new, {} if new != unique else named, notice)
        if unique is None:
            return ModelChoice(
                problem=tr(
                    "the base has no embedding model; to migrate its vectors, use {option}",
                    option=join_command(["--map-model", f"{legacy_base}=PROVIDER::MODEL"]),
                )
            )
        is_recreated = unique in self._overrides.recreated
        self._used.update({unique} & self._overrides.recreated)
        if unique in self._models or (self._all_exist and not is_recreated):
            return self._choose_existing(unique, named)
        if is_recreated or _provider_of(unique) in self._providers:
            if is_recreated:
                message = tr("{unique} is re-created because of --recreate-model", unique=unique)
            else:
                message = tr("{unique} is re-created because its provider still exists", unique=unique)
            return self._choose_existing(
                unique, named, Notice(code=notices.MODEL_RECREATED, message=message, base=legacy_base)
            )
        return _missing_model(unique)

    def rerank(self, raw: Any, legacy_base: str) -> ModelChoice:
        """Resolve the rerank model of a base, which ``raw`` names in v1's state; a missing one is cleared.

        ``legacy_base`` is the v1 id of the base.
        """
        if not isinstance(raw, dict):
            return ModelChoice()
        unique = unique_model_id(raw.get("provider"), raw.get("id"))
        if unique is not None and (unique in self._models or self._all_exist):
            # Without the capability, no base could use the same model for embedding.
            capabilities = EMBEDDING if unique in self._embedding_ids else RERANK
            return self._with_retired_notice(self._choose_existing(unique, raw, capabilities=capabilities), legacy_base)
        cleared = Notice(
            code=notices.RERANK_CLEARED,
            message=tr("{unique} does not exist", unique=unique or tr("a model without a name")),
            base=legacy_base,
        )
        return ModelChoice(notices=(cleared,))

    def _choose_existing(
        self,
        unique: str,
        named: dict[str, Any],
        notice: Notice | None = None,
        capabilities: tuple[str, ...] = EMBEDDING,
    ) -> ModelChoice:
        """Choose the model with an id; one that the source does not list is added, for later bases too.

        Args:
            unique: id of the model, ``provider::model``.
            named: settings of the model in v1's state, for one that is not listed.
            notice: notice for the report.
            capabilities: capabilities of the model.
        """
        model = replace(self._models.setdefault(unique, _model_row(unique, named)), capabilities=capabilities)
        provider = _provider_of(unique)
        row = self._providers.get(provider) or ProviderRow(provider, provider, is_enabled=True)
        return ModelChoice(unique, model, row, notices=() if notice is None else (notice,))

    def _with_retired_notice(self, choice: ModelChoice, legacy_base: str) -> ModelChoice:
        """Return a choice, with a notice if the application has removed the model's provider."""
        provider = "" if choice.model is None else choice.model.provider_id
        if provider not in RETIRED_PROVIDERS | RETIRING_PROVIDERS:
            return choice
        if provider in RETIRED_PROVIDERS:
            message = tr("the application no longer has the provider of the model {id}", id=choice.id)
        else:
            message = tr("the application has the provider of the model {id} only up to 2.0.8", id=choice.id)
        return replace(
            choice, notices=(*choice.notices, Notice(code=notices.PROVIDER_RETIRED, message=message, base=legacy_base))
        )

    def unused_overrides(self) -> Iterator[Notice]:
        """Report overrides that match no base, which are probably typing errors."""
        for old in (*self._overrides.mapped, *sorted(self._overrides.recreated)):
            if old not in self._used:
                yield Notice(
                    code=notices.OPTION_UNUSED, message=tr("no base uses the model {old} or has that id", old=old)
                )


def _missing_model(unique: str) -> ModelChoice:
    """Make the choice for a model that no longer exists: none, until the user re-creates it."""
    is_retired = _provider_of(unique) in RETIRED_PROVIDERS
    why = tr("and the application has removed its provider") if is_retired else tr("and its provider too")
    return ModelChoice(
        problem=tr(
            "its embedding model {unique} no longer exists, {why}; to migrate its vectors, use {option}",
            unique=unique,
            why=why,
            option=join_command(["--recreate-model", unique]),
        ),
        gone=unique,
    )


def _provider_of(unique: str) -> str:
    """Return the provider in a model id."""
    return trim(unique.partition(SEPARATOR)[0])


def _model_row(unique: str, raw: dict[str, Any]) -> ModelRow:
    """Make the catalog row of a model from its id, ``provider::model``, and its settings in v1's state."""
    model = trim(unique.partition(SEPARATOR)[2])
    name, group = raw.get("name"), raw.get("group")
    return ModelRow(
        id=unique,
        provider_id=_provider_of(unique),
        model_id=model,
        name=model if is_blank(name) else trim(str(name)),
        group=None if is_blank(group) else trim(str(group)),
    )
