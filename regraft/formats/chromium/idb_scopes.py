"""What a transaction that was never finished left in an IndexedDB (``docs/formats/chromium.md``, "Transactions")."""

from __future__ import annotations

from regraft.formats.chromium.damage import Bytes, Malformed
from regraft.formats.chromium.idb_coding import Places, Prefix, split_key
from regraft.formats.chromium.leveldb import LevelDb
from regraft.formats.chromium.leveldb_log import Record
from regraft.formats.chromium.leveldb_table import Wanted
from regraft.language import tr

_GLOBAL = (Prefix(0, 0, 0),)
_SCOPES = b"\x32"
_STATES, _TASKS = _SCOPES + b"\x01", _SCOPES + b"\x02"
_UNDO = 0
#: Fields of a scope's state, of an undo task, and of what is in that.
_LOCKS = 1
_PUT, _DELETE = 1, 2
_KEY, _VALUE = 1, 2
_VARINT, _FIXED_64, _SIZED, _FIXED_32 = 0, 1, 2, 5


def open_scopes(database: LevelDb) -> frozenset[int]:
    """Return the numbers of the transactions that were writing when the application ended, without being committed.

    Raises:
        StorageDamaged: their states cannot be read.
    """
    found = set()
    for key, record in database.scan(Places(_GLOBAL, _STATES)).items():
        try:
            if record.value is not None and _LOCKS in _fields(record.value):
                found.add(Bytes(split_key(key)[1], len(_STATES)).number())
        except Malformed:
            continue
    return frozenset(found)


def scan_committed(database: LevelDb, wanted: Wanted, scopes: frozenset[int]) -> dict[bytes, bytes]:
    """Return the value of each wanted key as the last committed transaction left it; deleted keys are left out.

    Raises:
        StorageDamaged: see :meth:`LevelDb.scan`.
    """
    newest = {key: record.value for key, record in database.scan(wanted).items()}
    if scopes:
        newest.update(_undone(database, wanted, scopes))
    return {key: value for key, value in newest.items() if value is not None}


def _undone(database: LevelDb, wanted: Wanted, scopes: frozenset[int]) -> dict[bytes, bytes | None]:
    """Return what the wanted keys were before the open transactions, None for nothing."""

    def keep(_: bytes, task: bytes) -> bytes:
        try:
            change = _change(task)
        except Malformed:
            return b""
        return task if change is not None and wanted.holds(change[0]) else b""

    tasks: list[tuple[int, bytes, Record]] = []
    for key, record in database.scan(Places(_GLOBAL, _TASKS), keep).items():
        try:
            place = Bytes(split_key(key)[1], len(_TASKS))
            scope, kind, order = place.number(), place.byte(), place.take(8)
        except Malformed:
            continue
        if record.value and scope in scopes and kind == _UNDO:
            tasks.append((scope, order, record))
    found: dict[bytes, bytes | None] = {}
    # The number of a task falls with every change: the oldest value of a key comes last, and is the one that counts.
    for _, _, record in sorted(tasks, key=lambda task: task[:2]):
        change = _change(record.value or b"")
        if change is not None:
            found[change[0]] = change[1]
    return found


def _change(task: bytes) -> tuple[bytes, bytes | None] | None:
    """Return the key that an undo task is about and its old value, None where it is about a range of keys."""
    fields = _fields(task)
    if _PUT in fields:
        put = _fields(fields[_PUT])
        return put.get(_KEY, b""), put.get(_VALUE, b"")
    if _DELETE in fields:
        return _fields(fields[_DELETE]).get(_KEY, b""), None
    return None


def _fields(message: bytes) -> dict[int, bytes]:
    """Return the last value of each field of a protocol buffer that has a length; the others are passed over."""
    data = Bytes(message)
    found: dict[int, bytes] = {}
    while data.left:
        tag = data.number()
        if tag & 7 == _SIZED:
            found[tag >> 3] = data.sized()
        elif tag & 7 == _VARINT:
            data.number()
        elif tag & 7 in (_FIXED_64, _FIXED_32):
            data.skip(8 if tag & 7 == _FIXED_64 else 4)
        else:
            raise Malformed(tr("a field of an unknown type"))
    return found
