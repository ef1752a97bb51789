"""Read the configuration file ``regraft.yaml``, which defines embedders (``docs/embedders.md``) and sources of vectors.

Errors show names of fields and embedders, never values: a value may be a key in the wrong place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import yaml

from regraft.disk import links
from regraft.embedders.settings import (
    DEFAULT_PATH,
    PROVIDERS,
    Batch,
    EmbedderSettings,
    Field,
    looks_like_key,
    redact,
    settings_fields,
)
from regraft.errors import ConfigInvalid, EmbedderUnknown, SourceNotFound, SourceUnreadable
from regraft.language import join_list, tr

_NO_TEXT = tr("it contains a character that is not valid in text")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_KEYS = tr("put it into an environment variable and give its name: `api_key_env: MY_KEY`")
#: Names that people give to a field for a key.
_KEY_FIELDS = {"api_key", "apikey", "api-key", "key", "token", "secret", "password", "authorization"}
#: A larger file is not read: Python takes seconds per megabyte.
_MOST_BYTES = 1 << 20
#: Maximum nesting; a valid file needs four levels.
_DEEPEST = 20
#: Maximum number of values, with aliases resolved.
_MOST = 100_000


class Config(msgspec.Struct, frozen=True):
    """A parsed configuration file. ``there`` is False if the file at the default path does not exist."""

    path: Path
    there: bool = False
    embedders: dict[str, EmbedderSettings] = msgspec.field(default_factory=dict)
    #: Stores, backups and exports whose vectors are taken instead of sending their texts; they are only read.
    reuse: tuple[Path, ...] = ()

    def embedder(self, name: str) -> EmbedderSettings:
        """Return the settings of an embedder.

        Raises:
            EmbedderUnknown
        """
        if name in self.embedders:
            return self.embedders[name]
        known = (
            tr("it has {sorted}", sorted=join_list(sorted(self.embedders)))
            if self.embedders
            else tr("it has no embedders")
        )
        raise EmbedderUnknown(path=self.path, name=name, known=known if self.there else tr("there is no such file"))


def load_config(path: Path | None) -> Config:
    """Read a configuration file; by default ``regraft.yaml`` in the working directory, if it exists.

    Raises:
        SourceNotFound: it does not exist.
        SourceUnreadable: it is not a regular file, not readable, or too large.
        ConfigInvalid: its content is not valid.
    """
    place = DEFAULT_PATH if path is None else path
    try:
        # In an untrusted folder it may be a pipe, a device, or endless.
        with links.open_for_reading(place) as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        if path is None:
            return Config(place)
        raise SourceNotFound(path=place) from error
    except OSError as error:
        raise SourceUnreadable(path=place, reason=error.strerror or type(error).__name__) from error
    if len(raw) > _MOST_BYTES:
        reason = tr("it has more than {most:,} bytes, which is too large for a configuration", most=_MOST_BYTES)
        raise SourceUnreadable(path=place, reason=reason)
    return _Reader(place, raw).config()


class _Bounds:
    """Limits nesting and size, so that parsing stays fast: deeply nested lists, aliases of aliases."""

    def __init__(self) -> None:
        #: anchor of every open collection, and the number of values before it
        self._open: list[tuple[str | None, int]] = []
        #: number of values that an alias of an anchor expands to
        self._anchors: dict[str, int] = {}
        self._values = 0

    def add(self, event: yaml.Event) -> str | None:
        """Count an event of the parser; return which limit it exceeds, for a message, or None."""
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self._values))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self._open.pop()
            if anchor is not None:
                self._anchors[anchor] = self._values - before
        elif isinstance(event, yaml.AliasEvent):
            self._values += self._anchors.get(str(event.anchor), 0)
        self._values += 1
        if len(self._open) > _DEEPEST:
            return tr("lists are nested too deeply")
        return tr("too many values") if self._values > _MOST else None


class _Loader(yaml.SafeLoader):
    """Loads YAML's own types; refuses duplicate keys and marks the position of every error."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the data of a node; raise an invalid value as an error with its position."""
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as error:
            # An invalid number or date.
            raise yaml.constructor.ConstructorError(None, None, tr("an invalid value"), node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the data of a mapping; refuse duplicate keys."""
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = tr("duplicate field `{value}`", value=key.value)
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _Reader:
    """Reads one file: its data, and its nodes for line numbers in errors."""

    def __init__(self, path: Path, raw: bytes) -> None:
        self._path = path
        self._raw = raw

    def config(self) -> Config:
        """Parse and check the whole file. All methods raise ConfigInvalid."""
        parsed = self._parse()
        if parsed is None:
            return Config(self._path, there=True)
        root, data = parsed
        self._require_mapping(root, data, tr("the file"))
        self._refuse_unknown_fields(root, data, ["embedders", "reuse"], tr("the file"))
        node, written = _value_node(root, "embedders"), data.get("embedders", {})
        self._require_mapping(node, written, "`embedders`")
        found = {}
        for name, values in written.items():
            if not isinstance(name, str) or not name.strip():
                self._refuse(_key_node(node, name), tr("an embedder's name must be text"), tr("write it in quotes"))
            self._require_mapping(_key_node(node, name), values, tr("embedder {name}", name=name))
            found[name] = self._embedder(name, _value_node(node, name), values)
        return Config(self._path, there=True, embedders=found, reuse=self._reuse(root, data.get("reuse", [])))

    def _reuse(self, root: yaml.Node, written: Any) -> tuple[Path, ...]:
        """Check the value of the field ``reuse`` of the mapping ``root``, and return its paths.

        Relative paths start at the folder of the file. ``written`` is the value as YAML has it.
        """
        if not isinstance(written, list) or not all(isinstance(one, str) and one.strip() for one in written):
            advice = tr("write, for example, `{written}`", written="reuse: [backups/july.zip]")
            self._refuse(_key_node(root, "reuse"), tr("`reuse` must be a list of paths"), advice)
        folder = self._path.absolute().parent
        return tuple(folder / os.path.expanduser(one) for one in written)  # noqa: PTH111 - an unknown user stays

    def _parse(self) -> tuple[yaml.Node, Any] | None:
        """Return the only document of the file as a YAML node and as data; None for an empty file."""
        try:
            self._check_events()
            loader = _Loader(self._raw)
            root = loader.get_single_node()
            return None if root is None else (root, loader.construct_document(root))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            message = redact(" ".join((error.problem or error.context or "").split()))
        except yaml.reader.ReaderError as error:
            line = self._raw.count(b"\n", 0, error.position) + 1
            message = _NO_TEXT
        except RecursionError:
            line, message = 1, tr("lists are nested too deeply")
        raise ConfigInvalid(
            path=self._path,
            line=line,
            problem=tr("this is not YAML ({what})", what=message),
            advice=tr("correct it there"),
        )

    def _check_events(self) -> None:
        """Refuse a file that is too large, has unpaired surrogates or seems to contain an API key."""
        bounds = _Bounds()
        for event in yaml.parse(self._raw, yaml.SafeLoader):
            if much := bounds.add(event):
                self._refuse(event, tr("this is not a configuration ({much})", much=much), tr("correct it there"))
            if isinstance(event, yaml.ScalarEvent) and _SURROGATE.search(event.value):
                self._refuse(event, tr("this is not YAML ({no_text})", no_text=_NO_TEXT), tr("correct it there"))
            if isinstance(event, yaml.ScalarEvent) and looks_like_key(event.value):
                self._refuse(event, tr("this looks like a key; keys must not be in this file"), _NO_KEYS)

    def _embedder(self, name: str, node: yaml.Node, written: dict[Any, Any]) -> EmbedderSettings:
        """Return the settings of the embedder ``name``; an error names the line of the problem.

        ``written`` has its fields as YAML has them, ``node`` is their node.
        """
        where = tr("embedder {name}", name=name)
        provider = written.get("provider")
        kind = PROVIDERS.get(provider) if isinstance(provider, str) else None
        if kind is None:
            message = tr("is unknown") if "provider" in written else tr("is missing")
            choices = join_list((f"`provider: {one}`" for one in PROVIDERS), tr(" or "))
            self._refuse(
                _key_node(node, "provider"),
                tr("the provider of {where} {what}", where=where, what=message),
                tr("write {choices}", choices=choices),
            )
        known, batch = settings_fields(kind), written.get("batch")
        self._refuse_unknown_fields(node, written, ["provider", *known], where)
        if isinstance(batch, dict):
            self._refuse_unknown_fields(
                _value_node(node, "batch"), batch, list(settings_fields(Batch)), tr("the batch of {where}", where=where)
            )
        for key, one in known.items():
            if one.required and key not in written:
                self._refuse(
                    node,
                    tr("`{key}` of {where} is missing ({meaning})", key=key, where=where, meaning=one.meaning),
                    _show_example(one),
                )
        values = {**written, "name": name}
        del values["provider"]
        return self._convert(kind, values, node)

    def _convert(self, kind: type[EmbedderSettings], values: dict[Any, Any], node: yaml.Node) -> EmbedderSettings:
        """Convert the fields of an embedder to settings of the class ``kind``; refuse a value of the wrong type.

        ``node`` is the YAML node of the fields.
        """
        wrong = next((key for key in values if values[key] is None), None)
        inner = ""
        if wrong is None:
            folder = self._path.absolute().parent
            try:
                # Unlike Path.expanduser, this keeps the name of a user who does not exist.
                return msgspec.convert(
                    values,
                    kind,
                    dec_hook=lambda _, value: folder / os.path.expanduser(value),  # noqa: PTH111
                )
            except msgspec.ValidationError as error:
                # "Expected … - at `$.batch.texts`"
                place = str(error).rpartition("`$.")[2].rstrip("`")
                wrong, _, inner = place.partition("[")[0].partition(".")
        one = settings_fields(Batch)[inner] if inner else settings_fields(kind)[wrong]
        at = _key_node(_value_node(node, wrong), inner) if inner else _key_node(node, wrong)
        problem = tr(
            "`{name}` of embedder {name2} must be {form} ({meaning})",
            name=one.name,
            name2=values["name"],
            form=one.form,
            meaning=one.meaning,
        )
        return self._refuse(at, problem, _show_example(one))

    def _refuse_unknown_fields(self, node: yaml.Node, written: dict[Any, Any], known: list[str], where: str) -> None:
        """Refuse a mapping that has other fields than the ``known`` ones.

        ``written`` is its data and ``node`` its YAML node; ``where`` names it in the error.
        """
        for key in written:
            if key in known:
                continue
            if str(key).lower() in _KEY_FIELDS:
                self._refuse(
                    _key_node(node, key),
                    tr("`{key}` of {where}: keys must not be in this file", key=key, where=where),
                    _NO_KEYS,
                )
            near = get_close_matches(str(key), known, 1, 0.7)
            advice = tr("write `{near}`", near=near[0]) if near else tr("known fields: {known}", known=join_list(known))
            self._refuse(
                _key_node(node, key), tr("`{key}` of {where} is not a known field", key=key, where=where), advice
            )

    def _require_mapping(self, node: yaml.Node, data: Any, where: str) -> None:
        """Refuse ``data`` unless it is a mapping; ``node`` is its YAML node, ``where`` names it in the error."""
        if not isinstance(data, dict):
            self._refuse(
                node,
                tr("{where} must be a mapping", where=where),
                tr("write `name: value` below it, on indented lines"),
            )

    def _refuse(self, at: yaml.Node | yaml.Event, problem: str, advice: str) -> NoReturn:
        """Raise ConfigInvalid for a problem at the line of a YAML node or event, with advice how to correct it."""
        line = at.start_mark.line + 1 if at.start_mark else 1
        raise ConfigInvalid(path=self._path, line=line, problem=problem, advice=advice)


def _pair(node: yaml.Node, key: object) -> tuple[yaml.Node, yaml.Node]:
    """Return the nodes of a key of the mapping ``node`` and of its value; ``node`` twice if the key is missing."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next(((one, value) for one, value in reversed(pairs) if one.value == str(key)), (node, node))


def _key_node(node: yaml.Node, key: object) -> yaml.Node:
    """Return the node of a key of the mapping ``node``, which has its line; ``node`` itself if the key is missing."""
    return _pair(node, key)[0]


def _value_node(node: yaml.Node, key: object) -> yaml.Node:
    """Return the node of the value under a key of the mapping ``node``; ``node`` itself if the key is missing."""
    return _pair(node, key)[1]


def _show_example(field: Field) -> str:
    """Return the advice how to write a field of the configuration, with an example."""
    written = yaml.safe_dump({field.name: field.example}, default_flow_style=True).strip()
    return tr("write, for example, `{written}`", written=written[1:-1])
