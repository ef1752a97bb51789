"""Chromium's storage, read and never written: Local Storage and IndexedDB, both in LevelDB.

``docs/formats/chromium.md`` states the format. :func:`read_key` and :func:`read_stores` are all that a reader of a
profile needs; whatever the bytes, they return or raise :class:`StorageDamaged` (or OSError, for a disk that fails).
"""

from regraft.formats.chromium.indexed_db import StoreRows, read_stores
from regraft.formats.chromium.leveldb import Found, StorageChanged, StorageDamaged
from regraft.formats.chromium.local_storage import StoredText, read_key

__all__ = ["Found", "StorageChanged", "StorageDamaged", "StoreRows", "StoredText", "read_key", "read_stores"]
