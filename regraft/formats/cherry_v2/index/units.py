"""Cuts a content into units and says what may be stored: offsets, paths, texts (``docs/formats/index.md``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from regraft import identity
from regraft.errors import MaterialRefused, UnitRefused
from regraft.language import tr
from regraft.names import RESERVED_NAME
from regraft.text import utf16_len

_DRIVE = re.compile("[A-Za-z]:/")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Unit(NamedTuple):
    """A stored unit with its body. Offsets count UTF-16 units of the content; ``text`` is that slice of it."""

    unit_id: str
    unit_index: int
    content_hash: str
    char_start: int
    char_end: int
    text: str
    embedding_text_hash: str


def cut(material_id: str, content: str, units: Iterable[tuple[int, int]]) -> list[Unit]:
    """Cut ``content`` at ``(char_start, char_end)`` and return the units with their ids, numbered from 0.

    Raises:
        UnitRefused: a unit is no slice of the content: it lies beyond it, ends before it begins, or begins or ends
            inside a surrogate pair. Nothing is clamped (``docs/formats/index.md``, "Offsets").
    """
    content_hash = identity.text_hash(content)
    length = utf16_len(content)
    # Encoded once, not for every unit.
    wide = None if content.isascii() else content.encode("utf-16-le")
    found = []
    for index, (start, end) in enumerate(units):
        if not 0 <= start <= end <= length:
            reason = tr("ends before it begins") if end < start else tr("lies beyond the text")
            raise UnitRefused(material=material_id, unit=index, start=start, end=end, reason=reason, length=length)
        body = content[start:end] if wide is None else _narrow(wide[2 * start : 2 * end])
        if body is None:
            reason = tr("begins or ends inside a surrogate pair")
            raise UnitRefused(material=material_id, unit=index, start=start, end=end, reason=reason, length=length)
        unit = identity.unit_id(material_id, content_hash, index, start, end)
        found.append(
            Unit(
                unit_id=unit,
                unit_index=index,
                content_hash=content_hash,
                char_start=start,
                char_end=end,
                text=body,
                embedding_text_hash=identity.text_hash(body),
            )
        )
    return found


def _narrow(wide: bytes) -> str | None:
    try:
        return wide.decode("utf-16-le")
    except UnicodeDecodeError:
        return None


def demand_storable(material_id: str, relative_path: str, content: str) -> None:
    """Refuse an id, a path or a text that the layout does not allow.

    Raises:
        MaterialRefused: the id is empty, the path is not one below ``raw/`` (``docs/formats/index.md``, "What always
            holds"), or one of them has an unpaired surrogate, which UTF-8 cannot hold.
    """
    reason = None
    if not material_id:
        reason = tr("it has no id")
    elif any(_SURROGATE.search(text) for text in (material_id, relative_path, content)):
        reason = tr("its id, path or text has an unpaired surrogate, which cannot be stored")
    elif not is_safe_path(relative_path):
        reason = tr('"{relative_path}" is not a path below raw/', relative_path=relative_path)
    if reason is not None:
        raise MaterialRefused(material=material_id, reason=reason)


def is_safe_path(path: str) -> bool:
    """Tell whether ``path`` may be a ``relative_path``: ``/`` between parts, normalised, not absolute, no ``..``.

    ``.cherry`` is reserved in any case of its letters: a file system may not tell them apart.
    """
    parts = path.split("/")
    if "\\" in path or "\0" in path or _DRIVE.match(path):
        return False
    return {"", ".", ".."}.isdisjoint(parts) and parts[0].lower() != RESERVED_NAME
