"""Settings of an embedder: one table of fields, from which a configuration file is read, checked, documented and
suggested.

The meaning of a field is in its ``Meta``: errors quote it, and ``docs/embedders.md``, "All fields" is generated from
it. API keys are never shown: :func:`redact` removes them from texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from regraft.language import format_count, join_list, tr
from regraft.report.document import Suggestion
from regraft.text import one_line, path_argument

#: A URL without user, password, query and fragment, each of which might contain a key.
_ADDRESS = r"^https?://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:\d{1,5})?(/[^\s?#]*)?(?<!/embeddings)$"


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Maximum size of one request."""

    texts: Annotated[int, Meta(ge=1, le=10_000, description=tr("the most texts of one request"), examples=[64])] = 64
    tokens: Annotated[int, Meta(ge=1, description=tr("the most tokens of one request"), examples=[8000])] = 8000


class EmbedderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every embedder. ``name`` is the value of ``--embedder``."""

    name: str
    model: str
    model_ids: Annotated[
        tuple[Annotated[str, Meta(pattern=r".::.")], ...],
        Meta(
            description=tr("further ids of this model in bases (`provider::model`), besides any `…::model`"),
            examples=[["silicon::BAAI/bge-m3"]],
        ),
    ] = ()
    prefix: Annotated[str, Meta(description=tr("text that is put before every text"), examples=["passage: "])] = ""
    query_prefix: Annotated[
        str, Meta(description=tr("text that is put before every query of a search"), examples=["query: "])
    ] = ""
    batch: Annotated[Batch, Meta(description=tr("how much goes into one request"), examples=[{"texts": 64}])] = Batch()
    parallel: Annotated[int, Meta(ge=1, le=64, description=tr("requests at the same time"), examples=[4])] = 4
    tokenizer: Annotated[
        Path | None,
        Meta(
            description=tr("a `tokenizer.json` that counts tokens exactly; without one they are estimated"),
            examples=["bge-m3/tokenizer.json"],
        ),
    ] = None
    price_per_million_tokens: Annotated[
        Annotated[float, Meta(ge=0, le=1e6)] | None,
        Meta(description=tr("what a million tokens cost"), examples=[0.02]),
    ] = None
    currency: Annotated[
        str, Meta(pattern=r"^[A-Z]{3}$", description=tr("currency of the price, three letters"), examples=["USD"])
    ] = "USD"

    def serves(self, model_id: str) -> bool:
        """Whether the model of a base (``provider::model``) is this one; other systems name no provider."""
        return model_id in (*self.model_ids, self.model) or model_id.partition("::")[2] == self.model


class ServerSettings(EmbedderSettings, frozen=True, kw_only=True):
    """An embedder on a server with OpenAI's API."""

    model: Annotated[str, Meta(min_length=1, description=tr("the model's name on the server"), examples=["bge-m3"])]
    base_url: Annotated[
        str,
        Meta(
            pattern=_ADDRESS,
            description=tr("the server's address up to `/v1`, without user, password and `?`"),
            examples=["http://127.0.0.1:11434/v1"],
        ),
    ] = "https://api.openai.com/v1"
    api_key_env: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Z_][A-Z0-9_]*$")] | None,
        Meta(
            description=tr("the environment variable that holds the key, in capitals; without it no key is sent"),
            examples=["OPENAI_API_KEY"],
        ),
    ] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(
            description=tr("length of the vectors, for models that can make shorter ones; sent with each request"),
            examples=[1024],
        ),
    ] = None
    encoding: Annotated[
        Literal["base64", "float"],
        Meta(
            description=tr("how the server encodes the vectors; servers without base64 return numbers anyway"),
            examples=["float"],
        ),
    ] = "base64"
    timeout: Annotated[
        float,
        Meta(gt=0, le=86_400, description=tr("seconds without any data after which a request fails"), examples=[60]),
    ] = 60
    retries: Annotated[
        int, Meta(ge=0, le=100, description=tr("how often a failing request is sent again"), examples=[5])
    ] = 5


class LocalSettings(EmbedderSettings, frozen=True, kw_only=True):
    """An embedder in this process, from a model on disk."""

    path: Annotated[
        Path, Meta(description=tr("the model's folder; nothing is downloaded"), examples=["models/bge-small"])
    ]
    model: Annotated[
        str,
        Meta(description=tr("the model's name; without this, the name of its folder"), examples=["bge-small"]),
    ] = ""
    library: Annotated[
        Literal["model2vec", "sentence-transformers"] | None,
        Meta(description=tr("the library that loads it; without this, its files decide"), examples=["model2vec"]),
    ] = None
    parallel: Annotated[
        int,
        Meta(ge=1, le=64, description=tr("requests at the same time; the library itself uses all cores"), examples=[1]),
    ] = 1

    def __post_init__(self) -> None:
        """Name the model after its folder by default."""
        if not self.model:
            msgspec.structs.force_setattr(self, "model", self.path.name)


PROVIDERS: dict[str, type[EmbedderSettings]] = {"openai": ServerSettings, "local": LocalSettings}


_FORMS: dict[type[msgspec.inspect.Type], str] = {
    msgspec.inspect.VarTupleType: tr("a list of texts"),
    msgspec.inspect.StructType: tr("a mapping"),
    msgspec.inspect.CustomType: tr("a path"),
}


class Field(msgspec.Struct, frozen=True):
    """A field as documented; ``example`` and ``default`` are values, ``default`` may be None."""

    name: str
    form: str
    meaning: str
    example: Any
    default: Any
    required: bool


def settings_fields(kind: type[msgspec.Struct]) -> dict[str, Field]:
    """Map the names of the documented fields of a settings class, in order, to their description."""
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
            form=_describe_type(meta.type),
            meaning=schema["description"],
            example=schema["examples"][0],
            default=default,
            required=field.required,
        )
    return found


def _describe_type(kind: msgspec.inspect.Type) -> str:
    """Describe the values that a setting of this type takes: "a whole number from 1", for example."""
    match kind:
        case msgspec.inspect.Metadata():
            return _describe_type(kind.type)
        case msgspec.inspect.UnionType():
            return _describe_type(next(one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType)))
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
            return join_list(map("`{}`".format, kind.values), tr(" or "))
        case _:
            return _FORMS.get(type(kind), tr("text"))


# API keys: recognizing and removing them


#: Replaces a key.
HIDDEN = "(key)"
#: Formats of providers: a short prefix and a random text; tokens of three parts; anything after Bearer.
_MARKED = re.compile(
    r"\b(?:sk|pk|pa|gsk|hf|xai|nvapi|jina)[-_](?=[\w*.-]*[\d*])[\w*.-]{8,}"
    r"|\bAIza[\w-]{16,}"
    r"|\beyJ[\w-]{8,}\.[\w.-]+"
    r"|(?<=\bbearer )\S{4,}",
    re.IGNORECASE,
)
#: Letters and digits, longer than any word.
_RANDOM = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{20,}(?![A-Za-z0-9])")
_WORD = re.compile(r"[^\s\"'<>(){}\[\],;]+")
#: The characters of a text, as they are or escaped in JSON, URLs and HTML.
_CHARACTERS = re.compile(r"\\[nrtbf]|\\u[0-9a-fA-F]{4}|%[0-9a-fA-F]{2}|&#?[A-Za-z0-9]{1,8};|.", re.DOTALL)
#: A run of this many letters and digits of a key is treated as a part of it; shorter keys than the second number are
#: ignored.
_SPELLED, _LEAST_SPELLED = 8, 5
#: A word that shares this many characters in a row with a key is treated as a part of it.
_PIECE = 6


def looks_like_key(text: str) -> bool:
    """Whether a text contains something that looks like an API key and like nothing else.

    Paths and URLs may contain random letters and digits.
    """
    if _MARKED.search(text) is not None:
        return True
    return _RANDOM.search(text) is not None and not re.search(r"[/\\]", text)


def redact(text: str, key: str | None = None) -> str:
    """Replace the API key ``key``, words that share a part with it, and everything that looks like a key in a text."""
    if key:
        text = text.replace(key, HIDDEN)
        size = min(_PIECE, len(key))
        key_pieces = {key.lower()[start : start + size] for start in range(len(key) - size + 1)}

        def hide(word: re.Match[str]) -> str:
            """Return the replacement of a word: :data:`HIDDEN` if it contains a part of the key, else the word."""
            return HIDDEN if any(piece in word[0].lower() for piece in key_pieces) else word[0]

        text = _WORD.sub(hide, text)
        text = _remove_spelled_out(text, key)
    return _RANDOM.sub(HIDDEN, _MARKED.sub(HIDDEN, text))


def _remove_spelled_out(text: str, key: str) -> str:
    """Replace parts of ``key`` in a text whose characters are separated, by blanks for example."""
    sought = "".join(filter(str.isalnum, key.lower()))
    size = min(_SPELLED, len(sought))
    if size < _LEAST_SPELLED:
        return text
    pieces = {sought[start : start + size] for start in range(len(sought) - size + 1)}
    # Only ASCII: lower-casing other letters may change their number.
    places = [found.start() for found in _CHARACTERS.finditer(text) if (one := found[0]).isascii() and one.isalnum()]
    letters = "".join(text[place].lower() for place in places)
    found = [start for start in range(len(letters) - size + 1) if letters[start : start + size] in pieces]
    parts, at = [], 0
    for start in found:
        first, end = places[start], places[start + size - 1] + 1
        if first >= at:
            parts += [text[at:first], HIDDEN]
        at = max(at, end)
    return "".join((*parts, text[at:]))


#: A reason is no longer than this, in characters.
_MAX_REASON_LENGTH = 200


def tidy_message(message: str, key: str | None) -> str:
    """Return a server's message as one line of at most 200 characters, without ``key`` and what looks like a key."""
    line = one_line(redact(message, key))
    return line if len(line) <= _MAX_REASON_LENGTH else f"{line[: _MAX_REASON_LENGTH - 1]}…"


DEFAULT_PATH = Path("regraft.yaml")


# Suggesting a configuration for the models of existing vectors


class ModelNeed(msgspec.Struct, frozen=True, kw_only=True):
    """A model that vectors are needed of (``provider::model`` or without provider), and their dimensions."""

    model_id: str | None
    dimensions: int | None = None
    #: what the vectors are for, as people read it
    label: str = ""


class _Server(msgspec.Struct, frozen=True):
    """A known embedding server."""

    url: str
    #: environment variable of its key, None if it needs none
    key: str | None = None
    #: maximum number of texts per request, if lower than usual
    texts: int | None = None


#: Servers by the provider names of the application.
_SERVERS = {
    "openai": _Server("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "ollama": _Server("http://127.0.0.1:11434/v1"),
    "lmstudio": _Server("http://127.0.0.1:1234/v1"),
    "silicon": _Server("https://api.siliconflow.cn/v1", "SILICONFLOW_API_KEY", 32),
    "dashscope": _Server("https://dashscope.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY", 10),
    "zhipu": _Server("https://open.bigmodel.cn/api/paas/v4", "ZHIPU_API_KEY"),
    "doubao": _Server("https://ark.cn-beijing.volces.com/api/v3", "ARK_API_KEY"),
    "gemini": _Server("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "mistral": _Server("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "jina": _Server("https://api.jina.ai/v1", "JINA_API_KEY"),
}
#: Example for an unknown model.
DEFAULT_NEED = ModelNeed(model_id="ollama::bge-m3")
DEFAULT_MODEL = "bge-m3"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*(:[A-Za-z0-9_.-]+)?")
#: Models with variable dimensions, which have to be told the length.
_SHORTENED = re.compile(r"text-embedding-3-")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def make_snippet(needs: Iterable[ModelNeed]) -> str:
    """Return the text of a configuration with an embedder for every model in ``needs``; an example if it is empty."""
    return _make_config(needs)[0]


def suggest_config(needs: Iterable[ModelNeed], path: Path | None, command: str) -> Suggestion:
    """Suggest a configuration for the needed models, and the commands to run next.

    ``path`` is the configuration file (None: the default one), ``command`` the command line that needs it. With
    several embedders, one command for each is suggested.
    """
    text, names = _make_config(needs)
    then = [f"{command} --embedder {name}" for name in names] if len(names) > 1 else [command]
    return Suggestion(config=path_argument(path or DEFAULT_PATH), snippet=text, next=then)


def _make_config(needs: Iterable[ModelNeed]) -> tuple[str, list[str]]:
    """Return the text of a configuration for the needed models, and the names of its embedders."""
    found: dict[str, list[ModelNeed]] = {}
    for need in needs:
        if need.model_id:
            found.setdefault(need.model_id, []).append(need)
    names: list[str] = []
    lines = ["embedders:"]
    for model_id, every in (found or {str(DEFAULT_NEED.model_id): [DEFAULT_NEED]}).items():
        lines += _embedder_lines(model_id, every, names)
    return "\n".join(lines) + "\n", names


def _embedder_lines(model_id: str, needs: Sequence[ModelNeed], names: list[str]) -> list[str]:
    """Return the lines of an embedder for the model ``model_id``, which all ``needs`` have.

    Its name is added to ``names``, those of the embedders before it.
    """
    provider, separator, model = model_id.partition("::")
    if not separator or not model:
        provider, model = "", model_id
    known = _SERVERS.get(provider)
    server = known or _SERVERS["ollama"]
    dimensions = {need.dimensions for need in needs if need.dimensions}
    lines = [f"  {_unused_name(provider or 'mine', names)}:"]
    if about := _comment(needs, dimensions):
        lines.append(f"    # {about}")
    lines.append("    provider: openai")
    if known is None:
        to_do = tr("enter the URL of a server with this model here")
        lines.append(f"    # {to_do}")
    is_plain = _PLAIN.fullmatch(model) and model.lower() not in _WORDS
    quoted = model if is_plain else json.dumps(model, ensure_ascii=False)
    lines += [f"    base_url: {server.url}", f"    model: {quoted}"]
    if provider:
        lines.append(f"    model_ids: [{json.dumps(model_id, ensure_ascii=False)}]")
    if server.key is not None:
        lines.append(f"    api_key_env: {server.key}")
    if len(dimensions) == 1 and _SHORTENED.match(model):
        lines.append(f"    dimensions: {min(dimensions)}")
    if server.texts is not None:
        lines.append(f"    batch: {{texts: {server.texts}}}")
    return lines


def _comment(needs: Sequence[ModelNeed], dimensions: set[int]) -> str:
    """Return a comment that says which bases and dimensions the configured model is for; may be empty."""
    labels = [one_line(need.label) for need in needs if need.label]
    parts = []
    if len(labels) == 1:
        parts.append(tr("of {label}", label=labels[0]))
    elif labels:
        parts.append(tr("of {bases}", bases=format_count(len(labels), "base")))
    if dimensions:
        parts.append(tr("{number} dimensions", number=", ".join(map(str, sorted(dimensions)))))
    return join_list(parts)


def _unused_name(provider: str, names: list[str]) -> str:
    """Choose a name, made from that of the provider, which is not in ``names``, and append it there."""
    plain = re.sub(r"[^a-z0-9]+", "-", provider.lower()).strip("-") or "mine"
    free, number = plain, 2
    while free in names or free in _WORDS or free[0].isdigit():
        free, number = f"{'e-' if plain[0].isdigit() else ''}{plain}-{number}", number + 1
    names.append(free)
    return free
