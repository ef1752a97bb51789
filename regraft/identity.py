"""Hashes of the index layout, and ids derived from those of v1 or of a base that is restored.

Rules: ``docs/formats/index.md``, "Identities" (hashes); ``docs/rules.md``, "Identity", and ``docs/restore.md`` (ids).
Every derived id is a SHA-256 under a fixed name, shaped as a UUID: another machine, another kind of source, another
year give the same one. The names below can therefore never change.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import uuid
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
_MAX_MILLISECONDS = (1 << 48) - 1


def text_hash(text: str) -> str:
    """Return ``content_hash`` or ``embedding_text_hash``: SHA-256 of the UTF-8 text, lower-case hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def unit_id(material_id: str, content_hash: str, unit_index: int, char_start: int, char_end: int) -> str:
    """Return the id of a chunk unit; offsets count UTF-16 units."""
    key = f"{material_id} {content_hash} chunk {unit_index} {char_start} {char_end}"
    return hashlib.sha256(key.encode()).hexdigest()


def body_id(unit: str) -> str:
    """Return the ``search_text_id`` of a unit's body."""
    return hashlib.sha256(f"search_unit {unit} body".encode()).hexdigest()


def _digest(name: str, *parts: str) -> bytes:
    """Hash length-prefixed parts under a name, so that no two lists of parts read the same."""
    hasher = hashlib.sha256(name.encode())
    for part in parts:
        # An id of JSON may have half a character in it.
        encoded = part.encode("utf-8", "surrogatepass")
        hasher.update(len(encoded).to_bytes(8, "big") + encoded)
    return hasher.digest()


def _shaped(raw: bytes, version: int) -> str:
    number = int.from_bytes(raw[:16], "big")
    number = number & ~(0xF << 76) | version << 76  # version
    number = number & ~(0x3 << 62) | 0x2 << 62  # variant of RFC 9562
    return str(uuid.UUID(int=number))


def _shaped_v7(milliseconds: int | None, raw: bytes) -> str:
    time = min(max(milliseconds or 0, 0), _MAX_MILLISECONDS)
    return _shaped(time.to_bytes(6, "big") + raw[6:16], 7)


def uuid7_time(item: str) -> int | None:
    """Return when an item was made (ms), which its UUID v7 begins with; None for any other id, and where it is 0."""
    try:
        found = uuid.UUID(item)
    except ValueError:
        return None
    return (found.int >> 80 or None) if found.version == 7 else None


def base_id(legacy_id: str) -> str:
    """Return the UUID v4 of a v1 base."""
    return _shaped(_digest(_BASE_NAME, legacy_id), 4)


def item_id(legacy_base_id: str, legacy_item_id: str, created_at: int | None) -> str:
    """Return the UUID v7 of a v1 item; its time is ``created_at`` in ms, 0 where v1 has no usable one."""
    stamp = "" if created_at is None else str(created_at)
    return _shaped_v7(created_at, _digest(_ITEM_NAME, legacy_base_id, legacy_item_id, stamp))


def child_id(container_id: str, loader_id: str, place: int, created_at: int | None) -> str:
    """Return the UUID v7 of a directory's child; ``place`` is its position among the container's children."""
    return _shaped_v7(created_at, _digest(_CHILD_NAME, container_id, loader_id, str(place)))


def restored_base_id(base: str, model: str, dimensions: int, name: str | None) -> str:
    """Return the UUID v4 of what a base becomes with another model; ``name`` is the one that the user gives it."""
    return _shaped(_digest(_RESTORED_BASE_NAME, base, model, str(dimensions), *([] if name is None else [name])), 4)


def copied_base_id(base: str) -> str:
    """Return the UUID v4 of what a base becomes where it comes as a new one beside the one of its id."""
    return _shaped(_digest(_COPIED_BASE_NAME, base), 4)


def restored_item_id(restored_base: str, item: str, created_at: int | None) -> str:
    """Return the UUID v7 of a base's item in what the base was restored or copied to."""
    return _shaped_v7(created_at, _digest(_RESTORED_ITEM_NAME, restored_base, item))


# Which base a user means: by its id in v2 or in v1, by its name, or by the unique beginning of either.


#: A shorter beginning of an id is more likely a name that nothing has.
_SHORTEST_PREFIX = 4
#: A name may have two characters in all.
_SHORTEST_NAME = 2
_NO_LEGACY: Mapping[str, str] = {}


def find_base_id(wanted: str, names: Mapping[str, str], legacy: Mapping[str, str] = _NO_LEGACY) -> str | None:
    """Return the id of the base that an id is of: its own, or that which it had in v1; None where it is of none.

    Args:
        wanted: the id.
        names: the names of all bases by their ids.
        legacy: ids of bases by those that they had in v1, as far as their store knows these.
    """
    candidates = (wanted, legacy.get(wanted), base_id(wanted.encode("utf-8", "replace").decode()))
    return next((one for one in candidates if one in names), None)


def resolve_base(wanted: str, names: Mapping[str, str], legacy: Mapping[str, str] = _NO_LEGACY) -> str:
    """Return the id of the base that a user means; arguments as of :func:`known_id`.

    Raises:
        BaseUnknown, BaseAmbiguous
    """
    known = find_base_id(wanted, names, legacy)
    if known is not None:
        return known
    matching = [base for base, name in names.items() if name.strip() == wanted.strip()]
    matching = matching or _by_prefix(wanted, names, legacy) or _by_name(wanted, names)
    if not matching:
        listed = join_list(base if name == base else f"{one_line(name)} ({base})" for base, name in names.items())
        raise BaseUnknown(base=wanted, known=listed or "none")
    if len(matching) > 1:
        raise BaseAmbiguous(base=wanted, known=join_list(matching))
    return matching[0]


def _by_prefix(wanted: str, names: Mapping[str, str], legacy: Mapping[str, str]) -> list[str]:
    """Return the bases with an id, of v1 too, that begins with what a user wrote."""
    if len(wanted) < _SHORTEST_PREFIX:
        return []
    ids = [*((base, base) for base in names), *legacy.items()]
    return list(dict.fromkeys(base for key, base in ids if key.startswith(wanted) and base in names))


def _by_name(wanted: str, names: Mapping[str, str]) -> list[str]:
    """Return the bases that are called so in other letter case; else those whose name begins so."""
    word = wanted.strip().casefold()
    if len(word) < _SHORTEST_NAME:
        return []
    folded = {base: name.strip().casefold() for base, name in names.items()}
    same = [base for base, name in folded.items() if name == word]
    return same or [base for base, name in folded.items() if name.startswith(word)]


# The present time, and how a time is written: everywhere else times are whole milliseconds since the epoch.


#: Times are counted from here: ``datetime.fromtimestamp`` refuses, on Windows, earlier ones and those after 3000.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_ms() -> int:
    """Return the present time in ms."""
    return int(datetime.now(UTC).timestamp() * 1000)


def utc_datetime(milliseconds: int) -> datetime:
    """Return a time in ms as a datetime in UTC.

    Raises:
        OverflowError: it lies before the year 1 or after the year 9999.
    """
    return _EPOCH + timedelta(milliseconds=milliseconds)


def iso_time(milliseconds: int) -> str:
    """Return a time in ms as ISO 8601 with milliseconds and ``Z``.

    Raises:
        OverflowError: it lies before the year 1 or after the year 9999.
    """
    return f"{utc_datetime(milliseconds).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def new_run_id() -> str:
    """Return an id for a run that sorts by its start."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


# Copies of records with other values, whichever way they are made.
#
# Most records are structs of msgspec: such a class is made, and its objects are, several times as fast as a data class.


Record = TypeVar("Record")


def replace(record: Record, **changes: Any) -> Record:
    """Return a copy of a struct or a data class with some other values."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]
