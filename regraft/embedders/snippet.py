"""A ready configuration for the models that vectors are of (``docs/embedders.md``)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from regraft.config import DEFAULT_PATH
from regraft.language import tr
from regraft.suggestion import Suggestion
from regraft.text import argument, counted, one_line


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What vectors somebody needs: of which model, as ``provider::model`` or without a provider, and how long."""

    model_id: str | None
    dimensions: int | None = None
    #: What they are of, as a person calls it.
    label: str = ""


class _Server(msgspec.Struct, frozen=True):
    url: str
    #: The environment variable of its key, None where it takes none.
    key: str | None = None
    #: The most texts of one request, where the server allows fewer than is usual.
    texts: int | None = None


#: Where providers are, by the names that the application gives them.
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
#: What is shown where nothing says which model is meant.
DEFAULT = Need(model_id="ollama::bge-m3")
DEFAULT_MODEL = "bge-m3"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*(:[A-Za-z0-9_.-]+)?")
#: Models that can make shorter vectors, and have to be told how long.
_SHORTENED = re.compile(r"text-embedding-3-")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def snippet(needs: Iterable[Need]) -> str:
    """Return a configuration with an embedder for every model that is needed; for none, an example."""
    return _made(needs)[0]


def suggested(needs: Iterable[Need], place: Path | None, command: str) -> Suggestion:
    """Return what to write into the configuration, and the command that comes then, for each embedder of several."""
    text, names = _made(needs)
    then = [f"{command} --embedder {name}" for name in names] if len(names) > 1 else [command]
    return Suggestion(config=argument(place or DEFAULT_PATH), snippet=text, next=then)


def _made(needs: Iterable[Need]) -> tuple[str, list[str]]:
    """Return the configuration, and the names of its embedders."""
    found: dict[str, list[Need]] = {}
    for need in needs:
        if need.model_id:
            found.setdefault(need.model_id, []).append(need)
    names: list[str] = []
    lines = ["embedders:"]
    for model_id, every in (found or {str(DEFAULT.model_id): [DEFAULT]}).items():
        lines += _embedder(model_id, every, names)
    return "\n".join(lines) + "\n", names


def _embedder(model_id: str, needs: Sequence[Need], names: list[str]) -> list[str]:
    provider, separator, model = model_id.partition("::")
    if not separator or not model:
        provider, model = "", model_id
    known = _SERVERS.get(provider)
    server = known or _SERVERS["ollama"]
    dimensions = {need.dimensions for need in needs if need.dimensions}
    lines = [f"  {_name(provider or 'mine', names)}:"]
    if about := _about(needs, dimensions):
        lines.append(f"    # {about}")
    lines.append("    provider: openai")
    if known is None:
        to_do = tr("write here the address of a server that has this model")
        lines.append(f"    # {to_do}")
    lines += [f"    base_url: {server.url}", f"    model: {_written(model)}"]
    if provider:
        lines.append(f"    model_ids: [{json.dumps(model_id, ensure_ascii=False)}]")
    if server.key is not None:
        lines.append(f"    api_key_env: {server.key}")
    if len(dimensions) == 1 and _SHORTENED.match(model):
        lines.append(f"    dimensions: {min(dimensions)}")
    if server.texts is not None:
        lines.append(f"    batch: {{texts: {server.texts}}}")
    return lines


def _about(needs: Sequence[Need], dimensions: set[int]) -> str:
    labels = [one_line(need.label) for need in needs if need.label]
    parts = []
    if len(labels) == 1:
        parts.append(tr("of {label}", label=labels[0]))
    elif labels:
        parts.append(tr("of {bases}", bases=counted(len(labels), "base")))
    if dimensions:
        parts.append(tr("{number} dimensions", number=", ".join(map(str, sorted(dimensions)))))
    return ", ".join(parts)


def _name(provider: str, names: list[str]) -> str:
    """Return a name of an embedder that none has yet."""
    plain = re.sub(r"[^a-z0-9]+", "-", provider.lower()).strip("-") or "mine"
    free, number = plain, 2
    while free in names or free in _WORDS or free[0].isdigit():
        free, number = f"{'e-' if plain[0].isdigit() else ''}{plain}-{number}", number + 1
    names.append(free)
    return free


def _written(text: str) -> str:
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)
