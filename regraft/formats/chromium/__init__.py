"""Reads Chromium's Local Storage and IndexedDB, both stored in LevelDB (``docs/formats/chromium.md``). Never writes.

:func:`read_key` and :func:`read_stores` are the entry points. For any input they return or raise
:class:`StorageDamaged` (or OSError for an I/O error).
"""

from regraft.formats.chromium.leveldb import StorageChanged, StorageDamaged, StorageResult
from regraft.formats.chromium.storage import StoredText, StoreRows, read_key, read_stores

__all__ = ["StorageChanged", "StorageDamaged", "StorageResult", "StoreRows", "StoredText", "read_key", "read_stores"]
