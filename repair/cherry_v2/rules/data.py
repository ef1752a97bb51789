"""Mending what an item holds: a field that is missing, from those that are there, its material and its snapshot.

Rules: ``docs/formats/catalog.md``, "What follows from what". A field that nothing tells is never made up.
"""

from __future__ import annotations

import json
from typing import Any

from regraft import identity
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.item_data import DATA, data_of, data_problem
from regraft.text import is_blank, utf16_cut, utf16_len, whole
from repair.cherry_v2.rules.evidence import Evidence

Data = dict[str, Any]


def mended(item: Row, evidence: Evidence) -> str | None:
    """Return the data of an item as it has to be, as JSON; None where that cannot be derived."""
    stored = item.get("data")
    readable = {**item, "data": stored.decode("utf-8", "replace")} if isinstance(stored, bytes) else item
    data = data_of(readable)
    needed, more = DATA[str(item.get("type"))]
    for name in (*needed, *more):
        # Only what a note holds may be empty.
        if not isinstance(data.get(name), str) or (name != "content" and name in needed and is_blank(data[name])):
            data.pop(name, None)
    _DERIVED[str(item.get("type"))](data, str(item.get("id")), evidence)
    in_order = {name: data[name] for name in (*needed, *more) if name in data} | data
    text = _as_json(in_order)
    return text if data_problem({**item, "data": text}) is None else None


def _as_json(data: Data) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which only JSON can hold
        return json.dumps(data, separators=(",", ":"))
    return text


def _file(data: Data, item: str, evidence: Evidence) -> None:
    path = evidence.path_of(item)
    if path is not None and path != data.get("indexedRelativePath"):
        if "relativePath" not in data:
            # The material may be of what was made of the file: then its path is not the file's.
            if evidence.may_be_processed(path):
                return
            data["relativePath"] = path
        elif path != data["relativePath"]:
            data.setdefault("indexedRelativePath", path)
    # A virtual path tells nothing of where the file came from.
    if data.get("relativePath") not in (None, item):
        data.setdefault("source", data["relativePath"])


def _url(data: Data, item: str, evidence: Evidence) -> None:
    _snapshot_path(data, item, evidence)
    address = data.get("url", data.get("source"))
    if address is None:
        snapshot = evidence.snapshot(data.get("relativePath"))
        address = None if snapshot is None else snapshot.fields.get("resource")
    if address is not None:
        data.setdefault("source", address)
        data.setdefault("url", address)


def _note(data: Data, item: str, evidence: Evidence) -> None:
    _snapshot_path(data, item, evidence)
    snapshot = None
    if "source" not in data or "content" not in data:
        snapshot = evidence.snapshot(data.get("relativePath"))
    if "content" not in data:
        text = evidence.text_of(item)
        text = snapshot.body if text is None and snapshot is not None else text
        if text is None:
            return
        data["content"] = text
    if "source" not in data:
        title = None if snapshot is None else snapshot.fields.get("title")
        data["source"] = data["content"] if is_blank(title) else title
    _shorten(data, item, evidence)


def _shorten(data: Data, item: str, evidence: Evidence) -> None:
    """Cut a note that is too long for the application, where its index has all of it."""
    content = whole(data["content"])
    if utf16_len(content) > MAX_NOTE_UNITS:
        indexed = evidence.text_of(item)
        if indexed is not None and identity.text_hash(indexed) == identity.text_hash(content):
            data["content"] = utf16_cut(content, MAX_NOTE_UNITS)


def _snapshot_path(data: Data, item: str, evidence: Evidence) -> None:
    path = evidence.path_of(item)
    if path not in (None, item):
        data.setdefault("relativePath", path)


def _directory(_data: Data, _item: str, _evidence: Evidence) -> None:
    """Nothing tells where a folder lay: its files may come from folders below it."""


_DERIVED = {"file": _file, "url": _url, "note": _note, "directory": _directory}
