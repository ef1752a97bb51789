"""Which model of the profile a base has once it is installed: its own, a mapped one, or one that is re-created."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from regraft.formats.cherry_v2.catalog import EMBEDDING, RERANK, ModelRow
from regraft.formats.cherry_v2.catalog_generation import model_of
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.models import SEPARATOR, ModelOverrides
from regraft.language import joined, tr
from regraft.text import one_line
from repair.cherry_v2.source import BaseSource

#: How many of the profile's models a message names.
_SHOWN = 8


class ModelMissing(Exception):
    """A base whose model the profile has not; the text says why, and what to do."""


class Models(msgspec.Struct, kw_only=True):
    """The models of a profile, and those that come with the bases of a library."""

    library: BaseSource
    model_overrides: ModelOverrides
    there: set[Any]
    #: Providers with their models' own ids: no two models of a provider have the same.
    pairs: set[tuple[Any, Any]]
    #: Ids of the providers that are there.
    providers: set[Any]
    #: Ids of the providers that are made because the user says so.
    recreated: frozenset[str] = frozenset()
    #: Models that are inserted, by their ids.
    new: dict[str, ModelRow] = msgspec.field(default_factory=dict)
    _used: set[str] = msgspec.field(default_factory=set)

    def embedding(self, base: str, named: Any) -> str | None:
        """Return the model that a base gets in place of the one that its row names.

        Raises:
            ModelMissing
        """
        if named is None:
            return None
        for old in self.model_overrides.mapped:
            if old == named or self.library.base_of(old) == base:
                self._used.add(old)
                named = self.model_overrides.mapped[old]
                break
        if self._is_there(named) or self._created(str(named), EMBEDDING):
            return str(named)
        provider = str(named).partition(SEPARATOR)[0]
        mapped = tr("--map-model '{named}=PROVIDER::MODEL' gives one that is there", named=named)
        known = sorted(one for one in self.there if isinstance(one, str))
        if known:
            more = len(known) - _SHOWN
            names = joined([*known[:_SHOWN], *([tr("{more:,} more", more=more)] if more > 0 else [])])
            mapped = tr("{mapped} ({names})", mapped=mapped, names=one_line(names))
        if provider in self.providers or provider in self.recreated:
            again = f"--recreate-model '{named}'"
            raise ModelMissing(
                tr(
                    "its model {named} is neither in the profile nor in the library: {again}, or {mapped}",
                    named=named,
                    again=again,
                    mapped=mapped,
                )
            )
        gone = tr(
            "its model {named} and the provider {provider} are not in the profile", named=named, provider=provider
        )
        made = tr(
            "--recreate-provider '{provider}' makes it as one of your own, disabled and without keys", provider=provider
        )
        raise ModelMissing(tr("{gone}: {made}, or {mapped}", gone=gone, made=made, mapped=mapped))

    def rerank(self, named: Any) -> str | None:
        """Return the rerank model that a base keeps; None where it cannot."""
        if named is None:
            return None
        named = self.model_overrides.mapped.get(named, named)
        return str(named) if self._is_there(named) or self._created(str(named), RERANK) else None

    def unused(self) -> list[str]:
        """Return the user's words that met no base: a typing error, most likely."""
        made = self.there | self.new.keys()
        providers = {model.provider_id for model in self.new.values()} | self.providers
        return [
            *(tr("the model {old}", old=old) for old in self.model_overrides.mapped if old not in self._used),
            *(tr("the model {model}", model=model) for model in sorted(self.model_overrides.recreated - made)),
            *(tr("the provider {provider}", provider=provider) for provider in sorted(self.recreated - providers)),
        ]

    def _is_there(self, named: Any) -> bool:
        return named in self.there or named in self.new

    def _created(self, named: str, capabilities: tuple[str, ...]) -> bool:
        """Re-create a model as the library has it, or as the user's word has it, where its provider is there."""
        provider, _, model = named.partition(SEPARATOR)
        row = self.library.models.get(named)
        if provider not in self.providers | self.recreated or (
            row is None and named not in self.model_overrides.recreated
        ):
            return False
        known: Row = row if row is not None and row.get("provider_id") == provider else {}
        model = known.get("model_id") or model
        if (provider, model) in self.pairs:
            return False
        self.new[named] = model_of({**known, "id": named, "provider_id": provider, "model_id": model}, capabilities)
        self.pairs.add((provider, model))
        return True


def read_models(
    db: apsw.Connection, library: BaseSource, model_overrides: ModelOverrides, recreated: frozenset[str]
) -> Models:
    """Read which models and providers a profile has, of which ``recreated`` are made where it lacks them.

    Keys are never read.

    Raises:
        apsw.Error: it cannot be read.
    """
    pairs = {(row[1], row[2]): row[0] for row in db.execute("SELECT id, provider_id, model_id FROM user_model")}
    providers = {row[0] for row in db.execute("SELECT provider_id FROM user_provider")}
    return Models(
        library=library,
        model_overrides=model_overrides,
        there=set(pairs.values()),
        pairs=set(pairs),
        providers=providers,
        recreated=recreated - providers,
    )
