"""Local Storage: the texts that pages keep by origin and key (``docs/formats/chromium.md``, "Local Storage")."""

from __future__ import annotations

from pathlib import Path

import msgspec

from regraft.disk.trees import Tree
from regraft.formats.chromium.leveldb import Found, LevelDb, Malformed, Record, StorageDamaged, read_leveldb
from regraft.language import tr

COMPARATOR = "leveldb.BytewiseComparator"
_UTF_16, _LATIN_1 = 0, 1
#: Before every origin, and what comes after it in the order of bytes.
_ENTRY, _AFTER_ENTRIES = b"_", b"`"
#: What pages have as their origin that an application loads from its own files.
FILE_ORIGIN = "file://"


class StoredText(msgspec.Struct, frozen=True):
    """A value of Local Storage: ``text`` may hold lone surrogates; the higher ``sequence`` was written later."""

    origin: str
    text: str
    sequence: int


def read_key(tree: Tree, folder: str, key: str, work: Path, origin: str = FILE_ORIGIN) -> Found[list[StoredText]]:
    """Return the value that each origin has for ``key``, the one that was written last first.

    ``folder`` is the LevelDB's in ``tree`` (``Local Storage/leveldb``). Copies are made below ``work``. An origin
    whose value was deleted is left out. ``origin`` is the one that matters most: where its value was found, older
    tables that cannot be read are passed over, with the values of other origins that they may have had newer ones of;
    and so are damaged values of other origins, as long as any value is left.

    Raises:
        StorageDamaged: a file that may hold a newer value of ``origin`` is missing or damaged, or its value is, or no
            origin has a value that is not.
        StorageChanged: a running application kept changing the files.
        OSError: the disk fails.
    """
    return read_leveldb(tree, folder, COMPARATOR, work, lambda database: _texts(database, key, origin))


class _Entries:
    """The keys of one name, of any origin, in either coding."""

    def __init__(self, key: str) -> None:
        wide = bytes([_UTF_16]) + key.encode("utf-16-le", "surrogatepass")
        self._names = [wide]
        if all(ord(unit) < 0x100 for unit in key):
            self._names.append(bytes([_LATIN_1]) + key.encode("latin-1"))

    def origin(self, key: bytes) -> bytes | None:
        """Return the origin of a wanted key, None where it is another key."""
        origin, nul, name = key[1:].partition(b"\0")
        return origin if key.startswith(_ENTRY) and nul and name in self._names else None

    def holds(self, key: bytes) -> bool:
        return self.origin(key) is not None

    def may_hold(self, low: bytes | None, high: bytes | None) -> bool:
        low = max(low or b"", _ENTRY)
        high = _AFTER_ENTRIES if high is None else min(high, _AFTER_ENTRIES)
        if low > high:
            return False
        # Within one origin the wanted keys are known: damage between others does no harm.
        origin, nul, _ = low.partition(b"\0")
        if nul and high.startswith(origin + nul):
            return any(low <= origin + nul + name <= high for name in self._names)
        return True


def _texts(database: LevelDb, key: str, own: str) -> list[StoredText]:
    found: list[StoredText] = []
    problems: dict[str, StorageDamaged] = {}
    for origin, record in _newest(database, key, own).items():
        try:
            found.append(StoredText(origin, _text(record.value or b""), record.sequence))
        except Malformed as error:
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


def _newest(database: LevelDb, key: str, own: str) -> dict[str, Record]:
    """Return the newest record of each origin; once that of ``own`` is known, older files need not be read."""
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


def _text(value: bytes) -> str:
    coding, coded = value[:1], value[1:]
    if coding == bytes([_LATIN_1]):
        return coded.decode("latin-1")
    if coding != bytes([_UTF_16]):
        raise Malformed(tr("is in no known coding"))
    if len(coded) % 2:
        raise Malformed(tr("has half a character at its end"))
    return coded.decode("utf-16-le", "surrogatepass")
