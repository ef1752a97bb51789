"""Ids and times: hashes of the index layout, ids derived from v1 ids, finding a base by id or name, run ids.

Every derived id is a SHA-256 under a fixed name, formatted as a UUID: another machine, another kind of source or
another year give the same id, so the names below must never change. Rules: ``docs/formats/index.md``, "Identities"
(hashes); ``docs/rules.md``, "Identity", and ``docs/restore.md`` (ids). Times are whole milliseconds since the epoch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from regraft.errors import BaseAmbiguous, BaseUnknown
from regraft.language import join_list
from regraft.text import one_line

_BASE_NAME = "regraft/v1-base"
_ITEM_NAME = "regraft/v1-item"
_CHILD_NAME = "regraft/v1-directory-child"
_RESTORED_BASE_NAME = "regraft/restored-base"
_RESTORED_ITEM_NAME = "regraft/restored-item"
_COPIED_BASE_NAME = "regraft/copied-base"
_SYNCED_ITEM_NAME = "regraft/synced-item"
_MAX_MILLISECONDS = (1 << 48) - 1


def text_hash(text: str) -> str:
    """Return the ``content_hash`` or ``embedding_text_hash`` of a text: SHA-256 of its UTF-8, lower-case hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def unit_id(material_id: str, content_hash: str, unit_index: int, char_start: int, char_end: int) -> str:
    """Return the id of a chunk unit: a piece of the text of a material, at these offsets (in UTF-16 units)."""
    key = f"{material_id} {content_hash} chunk {unit_index} {char_start} {char_end}"
    return hashlib.sha256(key.encode()).hexdigest()


def body_id(unit: str) -> str:
    """Return the ``search_text_id`` of the row with a unit's text; ``unit`` is the unit's id."""
    return hashlib.sha256(f"search_unit {unit} body".encode()).hexdigest()


def _digest(name: str, *parts: str) -> bytes:
    """Return the SHA-256 of a fixed name and texts.

    Each text follows its length, so that no two lists hash the same input.
    """
    hasher = hashlib.sha256(name.encode())
    for part in parts:
        # An id read from JSON may contain an unpaired surrogate.
        encoded = part.encode("utf-8", "surrogatepass")
        hasher.update(len(encoded).to_bytes(8, "big") + encoded)
    return hasher.digest()


def _format_uuid(raw: bytes, version: int) -> str:
    """Format the first 16 bytes of a hash as a UUID of this version."""
    number = int.from_bytes(raw[:16], "big")
    number = number & ~(0xF << 76) | version << 76  # version
    number = number & ~(0x3 << 62) | 0x2 << 62  # variant of RFC 9562
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _format_uuid_v7(milliseconds: int | None, raw: bytes) -> str:
    """Format a time (in ms; None: 0) and bytes 6 to 15 of a hash as a UUID v7."""
    time = min(max(milliseconds or 0, 0), _MAX_MILLISECONDS)
    return _format_uuid(time.to_bytes(6, "big") + raw[6:16], 7)


def uuid7_time(item: str) -> int | None:
    """Return the time (ms) in a UUID v7; None for any other id, or if the time is 0."""
    import uuid  # noqa: PLC0415 - slow to import, and few commands need it

    try:
        found = uuid.UUID(item)
    except ValueError:
        return None
    return (found.int >> 80 or None) if found.version == 7 else None


def base_id(legacy_id: str) -> str:
    """Return the id (UUID v4) in v2 of the base that had the id ``legacy_id`` in v1."""
    return _format_uuid(_digest(_BASE_NAME, legacy_id), 4)


def item_id(legacy_base_id: str, legacy_item_id: str, created_at: int | None) -> str:
    """Return the id (UUID v7) in v2 of a v1 item; its time is ``created_at`` (ms), or 0 if v1 has no valid one."""
    stamp = "" if created_at is None else str(created_at)
    return _format_uuid_v7(created_at, _digest(_ITEM_NAME, legacy_base_id, legacy_item_id, stamp))


def child_id(container_id: str, loader_id: str, place: int, created_at: int | None) -> str:
    """Return the UUID v7 of a directory's child; its time is ``created_at`` (ms; None: 0).

    ``place`` is its position among the children of the container.
    """
    return _format_uuid_v7(created_at, _digest(_CHILD_NAME, container_id, loader_id, str(place)))


def restored_base_id(base: str, model: str, dimensions: int, name: str | None) -> str:
    """Return the UUID v4 of the base that ``restore`` makes of base ``base`` with another model.

    ``name`` is the new name, if the user gave one.
    """
    return _format_uuid(
        _digest(_RESTORED_BASE_NAME, base, model, str(dimensions), *([] if name is None else [name])), 4
    )


def copied_base_id(base: str) -> str:
    """Return the UUID v4 of the copy of a base, for a store that already has the base with the id ``base``."""
    return _format_uuid(_digest(_COPIED_BASE_NAME, base), 4)


def restored_item_id(restored_base: str, item: str, created_at: int | None) -> str:
    """Return the UUID v7 of an item's copy in a restored or copied base; its time is ``created_at`` (ms)."""
    return _format_uuid_v7(created_at, _digest(_RESTORED_ITEM_NAME, restored_base, item))


def synced_item_id(base: str, source: str, number: int) -> str:
    """Return the UUID v7 of an item that ``sync`` adds for a file or folder; ``number`` is raised while it is taken.

    Its time is 0, so that a run that was killed is continued with the same id.
    """
    return _format_uuid_v7(None, _digest(_SYNCED_ITEM_NAME, base, source, str(number)))


# Which base a user means: by its id in v2 or v1, by its name, or by a unique prefix of either.


#: A shorter prefix is more likely a name that does not exist.
_SHORTEST_PREFIX = 4
#: Names may have only two characters.
_SHORTEST_NAME = 2
_NO_LEGACY: Mapping[str, str] = {}


def find_base_id(wanted: str, names: Mapping[str, str], legacy: Mapping[str, str] = _NO_LEGACY) -> str | None:
    """Return the id of the base that has this id in v2 or had it in v1, or None.

    Args:
        wanted: the id.
        names: names of all bases by id.
        legacy: base ids by their v1 ids, as far as the store knows them.
    """
    candidates = (wanted, legacy.get(wanted), base_id(wanted.encode("utf-8", "replace").decode()))
    return next((one for one in candidates if one in names), None)


def resolve_base(wanted: str, names: Mapping[str, str], legacy: Mapping[str, str] = _NO_LEGACY) -> str:
    """Return the id of the base that a user means by an id, a name, or a prefix; arguments as of :func:`find_base_id`.

    Raises:
        BaseUnknown, BaseAmbiguous
    """
    known = find_base_id(wanted, names, legacy)
    if known is not None:
        return known
    matching = [base for base, name in names.items() if name.strip() == wanted.strip()]
    matching = matching or _find_by_prefix(wanted, names, legacy) or _find_by_folded_name(wanted, names)
    if not matching:
        listed = join_list(base if name == base else f"{one_line(name)} ({base})" for base, name in names.items())
        raise BaseUnknown(base=wanted, known=listed or "none")
    if len(matching) > 1:
        raise BaseAmbiguous(base=wanted, known=join_list(matching))
    return matching[0]


def _find_by_prefix(wanted: str, names: Mapping[str, str], legacy: Mapping[str, str]) -> list[str]:
    """Return the ids of the bases whose id, or id in v1, begins with ``wanted``.

    ``names`` are the names of all bases by id, ``legacy`` the ids by those in v1.
    """
    if len(wanted) < _SHORTEST_PREFIX:
        return []
    ids = [*((base, base) for base in names), *legacy.items()]
    return list(dict.fromkeys(base for key, base in ids if key.startswith(wanted) and base in names))


def _find_by_folded_name(wanted: str, names: Mapping[str, str]) -> list[str]:
    """Return the ids of the bases with this name in any letter case, or else of those whose names start with it.

    ``names`` are the names of all bases by id.
    """
    word = wanted.strip().casefold()
    if len(word) < _SHORTEST_NAME:
        return []
    folded = {base: name.strip().casefold() for base, name in names.items()}
    same = [base for base, name in folded.items() if name == word]
    return same or [base for base, name in folded.items() if name.startswith(word)]


# Times


#: The epoch. On Windows, ``datetime.fromtimestamp`` rejects earlier times and times after the year 3000.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_ms() -> int:
    """Return the current time in ms."""
    return int(datetime.now(UTC).timestamp() * 1000)


def utc_datetime(milliseconds: int) -> datetime:
    """Convert a time in ms to a datetime in UTC.

    Raises:
        OverflowError: it is before the year 1 or after the year 9999.
    """
    return _EPOCH + timedelta(milliseconds=milliseconds)


def iso_time(milliseconds: int) -> str:
    """Format a time in ms as ISO 8601 with milliseconds and ``Z``.

    Raises:
        OverflowError: it is before the year 1 or after the year 9999.
    """
    return f"{utc_datetime(milliseconds).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def new_run_id() -> str:
    """Return a new id for a run of a command; run ids sort by start time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"


# Copies of records


Record = TypeVar("Record")


def replace(record: Record, **changes: Any) -> Record:
    """Return a copy of a struct or data class with some fields changed."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]
