"""What a configuration file says of an embedder: one table of fields, from which it is read, checked and documented.

A field's meaning stands in its ``Meta``: errors quote it and ``docs/embedders.md``, "All fields" is generated from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from regraft.language import joined, tr

#: An address without user, password, query and fragment, any of which might hold a key.
_ADDRESS = r"^https?://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:\d{1,5})?(/[^\s?#]*)?(?<!/embeddings)$"


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """How much goes into one request."""

    texts: Annotated[int, Meta(ge=1, le=10_000, description="the most texts of one request", examples=[64])] = 64
    tokens: Annotated[int, Meta(ge=1, description="the most tokens of one request", examples=[8000])] = 8000


class EmbedderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every embedder has. ``name`` is what ``--embedder`` says."""

    name: str
    model: str
    model_ids: Annotated[
        tuple[Annotated[str, Meta(pattern=r".::.")], ...],
        Meta(
            description="models of bases (`provider::model`) that are this one too, besides any `…::model`",
            examples=[["silicon::BAAI/bge-m3"]],
        ),
    ] = ()
    prefix: Annotated[str, Meta(description="put before every text", examples=["passage: "])] = ""
    query_prefix: Annotated[str, Meta(description="put before every query of a search", examples=["query: "])] = ""
    batch: Annotated[Batch, Meta(description="how much goes into one request", examples=[{"texts": 64}])] = Batch()
    parallel: Annotated[int, Meta(ge=1, le=64, description="requests at the same time", examples=[4])] = 4
    tokenizer: Annotated[
        Path | None,
        Meta(
            description="a `tokenizer.json` that counts tokens exactly; without one they are estimated",
            examples=["bge-m3/tokenizer.json"],
        ),
    ] = None
    price_per_million_tokens: Annotated[
        Annotated[float, Meta(ge=0, le=1e6)] | None,
        Meta(description="what a million tokens cost", examples=[0.02]),
    ] = None
    currency: Annotated[
        str, Meta(pattern=r"^[A-Z]{3}$", description="of the price, as three letters", examples=["USD"])
    ] = "USD"

    def serves(self, model_id: str) -> bool:
        """Tell whether a base's model, as ``provider::model``, is this one; other systems name no provider."""
        return model_id in (*self.model_ids, self.model) or model_id.partition("::")[2] == self.model


class ServerSettings(EmbedderSettings, frozen=True, kw_only=True):
    """An embedder behind any server that speaks as OpenAI's does."""

    model: Annotated[str, Meta(min_length=1, description="what the server calls the model", examples=["bge-m3"])]
    base_url: Annotated[
        str,
        Meta(
            pattern=_ADDRESS,
            description="the server's address up to `/v1`, without user, password and `?`",
            examples=["http://127.0.0.1:11434/v1"],
        ),
    ] = "https://api.openai.com/v1"
    api_key_env: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Z_][A-Z0-9_]*$")] | None,
        Meta(
            description="the environment variable that holds the key, in capitals; without it no key is sent",
            examples=["OPENAI_API_KEY"],
        ),
    ] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(description="numbers of a vector, for models that can make shorter ones; sent along", examples=[1024]),
    ] = None
    encoding: Annotated[
        Literal["base64", "float"],
        Meta(
            description="how vectors come back; servers that know no base64 answer numbers anyway", examples=["float"]
        ),
    ] = "base64"
    timeout: Annotated[
        float,
        Meta(gt=0, le=86_400, description="seconds without a byte after which a request is given up", examples=[60]),
    ] = 60
    retries: Annotated[
        int, Meta(ge=0, le=100, description="how often a failing request is sent again", examples=[5])
    ] = 5


class LocalSettings(EmbedderSettings, frozen=True, kw_only=True):
    """An embedder in this process, from a model on disk."""

    path: Annotated[Path, Meta(description="the model's folder; nothing is downloaded", examples=["models/bge-small"])]
    model: Annotated[
        str,
        Meta(description="what the model is called; without this its folder's name", examples=["bge-small"]),
    ] = ""
    library: Annotated[
        Literal["model2vec", "sentence-transformers"] | None,
        Meta(description="what loads it; without this its files tell", examples=["model2vec"]),
    ] = None
    parallel: Annotated[
        int, Meta(ge=1, le=64, description="requests at the same time; the library itself uses all cores", examples=[1])
    ] = 1

    def __post_init__(self) -> None:
        """Call the model after its folder where it has no name."""
        if not self.model:
            msgspec.structs.force_setattr(self, "model", self.path.name)


PROVIDERS: dict[str, type[EmbedderSettings]] = {"openai": ServerSettings, "local": LocalSettings}


_FORMS: dict[type[msgspec.inspect.Type], str] = {
    msgspec.inspect.VarTupleType: tr("a list of texts"),
    msgspec.inspect.StructType: "a mapping",
    msgspec.inspect.CustomType: "a path",
}


class Field(msgspec.Struct, frozen=True):
    """A field as a person reads it; ``example`` and ``default`` are values, the latter None where there is none."""

    name: str
    form: str
    meaning: str
    example: Any
    default: Any
    required: bool


def fields(kind: type[msgspec.Struct]) -> dict[str, Field]:
    """Return the fields of settings by their names, in order, as one writes them in the file."""
    found = {}
    described = msgspec.inspect.type_info(kind)
    assert isinstance(described, msgspec.inspect.StructType)
    for field in described.fields:
        meta = field.type
        if not isinstance(meta, msgspec.inspect.Metadata):
            continue
        schema = meta.extra_json_schema or {}
        default = None if field.default is msgspec.NODEFAULT else field.default
        found[field.name] = Field(
            name=field.name,
            form=_form(meta.type),
            meaning=schema["description"],
            example=schema["examples"][0],
            default=default,
            required=field.required,
        )
    return found


def _but_none(kind: msgspec.inspect.UnionType) -> msgspec.inspect.Type:
    return next(one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType))


def _form(kind: msgspec.inspect.Type) -> str:
    """Return what a value looks like."""
    match kind:
        case msgspec.inspect.Metadata():
            return _form(kind.type)
        case msgspec.inspect.UnionType():
            return _form(_but_none(kind))
        case msgspec.inspect.IntType():
            return tr(
                "a whole number from {ge}{value}",
                ge=kind.ge,
                value="" if kind.le is None else tr(" to {le}", le=kind.le),
            )
        case msgspec.inspect.FloatType():
            return (
                tr("a number from {ge}", ge=kind.ge) if kind.ge is not None else tr("a number above {gt}", gt=kind.gt)
            )
        case msgspec.inspect.LiteralType():
            return joined((f"`{value}`" for value in kind.values), tr(" or "))
        case _:
            return _FORMS.get(type(kind), "text")
