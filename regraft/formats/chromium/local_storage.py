"""Reads Local Storage: texts by origin and key (``docs/formats/chromium.md``, "Local Storage")."""

from __future__ import annotations

from pathlib import Path

import msgspec

from regraft.disk.trees import Tree
from regraft.formats.chromium.leveldb import (
    LevelDb,
    MalformedStorage,
    Record,
    StorageDamaged,
    StorageResult,
    read_leveldb,
)
from regraft.language import tr

COMPARATOR = "leveldb.BytewiseComparator"
_UTF_16, _LATIN_1 = 0, 1
#: First byte of entry keys, and the byte that follows it in key order.
_ENTRY, _AFTER_ENTRIES = b"_", b"`"
#: Origin of pages that an application loads from its own files.
FILE_ORIGIN = "file://"


class StoredText(msgspec.Struct, frozen=True):
    """A value of Local Storage. ``text`` may contain lone surrogates; a higher ``sequence`` was written later."""

    origin: str
    text: str
    sequence: int


def read_key(
    tree: Tree, folder: str, key: str, work: Path, origin: str = FILE_ORIGIN
) -> StorageResult[list[StoredText]]:
    """Return the value of ``key`` for each origin, the most recent first.

    ``folder`` is the LevelDB directory in ``tree`` (``Local Storage/leveldb``). Copies are made below ``work``. Origins
    whose value was deleted are omitted. ``origin`` is the most important one: if its value was found, unreadable older
    tables are skipped, together with values of other origins that those tables may replace. Damaged values of other
    origins are skipped as long as one value is left.

    Raises:
        StorageDamaged: a file that may hold a newer value of ``origin`` is missing or damaged, or its value is, or no
            origin has a value that is not.
        StorageChanged: a running application kept changing the files.
        OSError: I/O error.
    """
    return read_leveldb(tree, folder, COMPARATOR, work, lambda database: _read_texts(database, key, origin))


class _Entries:
    """Selects the entries with one key, of any origin and in either encoding."""

    def __init__(self, key: str) -> None:
        wide = bytes([_UTF_16]) + key.encode("utf-16-le", "surrogatepass")
        self._names = [wide]
        if all(ord(unit) < 0x100 for unit in key):
            self._names.append(bytes([_LATIN_1]) + key.encode("latin-1"))

    def origin(self, key: bytes) -> bytes | None:
        """Return the origin of a selected key, or None."""
        origin, nul, name = key[1:].partition(b"\0")
        return origin if key.startswith(_ENTRY) and nul and name in self._names else None

    def holds(self, key: bytes) -> bool:
        return self.origin(key) is not None

    def may_hold(self, low: bytes | None, high: bytes | None) -> bool:
        low = max(low or b"", _ENTRY)
        high = _AFTER_ENTRIES if high is None else min(high, _AFTER_ENTRIES)
        if low > high:
            return False
        # Within one origin, the possible keys are known exactly.
        origin, nul, _ = low.partition(b"\0")
        if nul and high.startswith(origin + nul):
            return any(low <= origin + nul + name <= high for name in self._names)
        return True


def _read_texts(database: LevelDb, key: str, own: str) -> list[StoredText]:
    found: list[StoredText] = []
    problems: dict[str, StorageDamaged] = {}
    for origin, record in _newest_by_origin(database, key, own).items():
        try:
            found.append(StoredText(origin, _decode_text(record.value or b""), record.sequence))
        except MalformedStorage as error:
            problems[origin] = StorageDamaged(
                tr(
                    "{folder}: the value of {key} of {origin} {error}",
                    folder=database.folder,
                    key=key,
                    origin=origin,
                    error=error,
                )
            )
    if own in problems or (problems and not found):
        raise problems.get(own) or next(iter(problems.values()))
    for origin in problems:
        database.pass_over(tr("the value of {origin}", origin=origin))
    return sorted(found, key=lambda stored: -stored.sequence)


def _newest_by_origin(database: LevelDb, key: str, own: str) -> dict[str, Record]:
    """Return the newest record of each origin. Once the value of ``own`` is known, older files may be unreadable."""
    wanted = _Entries(key)

    def origin_of(record: Record) -> str:
        return (wanted.origin(record.key) or b"").decode("latin-1")

    def settles(record: Record) -> bool:
        return record.value is not None and origin_of(record) == own

    newest: dict[str, Record] = {}
    for record in database.scan(wanted, settles=settles).values():
        origin = origin_of(record)
        if record.value is not None and (origin not in newest or newest[origin].sequence < record.sequence):
            newest[origin] = record
    return newest


def _decode_text(value: bytes) -> str:
    coding, coded = value[:1], value[1:]
    if coding == bytes([_LATIN_1]):
        return coded.decode("latin-1")
    if coding != bytes([_UTF_16]):
        raise MalformedStorage(tr("has an unknown encoding"))
    if len(coded) % 2:
        raise MalformedStorage(tr("ends with half a character"))
    return coded.decode("utf-16-le", "surrogatepass")
