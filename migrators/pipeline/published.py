"""What the ledger keeps of a base that was published, and how that stands now (``docs/upgrade.md``)."""

from __future__ import annotations

import hashlib
from enum import Enum
from pathlib import Path

import apsw
import msgspec

from migrators.pipeline.source import Found
from regraft import long_paths, sqlite
from regraft.formats.cherry_v2.catalog import BaseRecord
from regraft.ledger.ledger import Entry
from regraft.locate import INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER
from regraft.report.migration import BaseReport
from regraft.report.notices import Notice
from regraft.tree_files import file_hash, folder_hash


class BaseEntry(msgspec.Struct, frozen=True):
    """What the ledger keeps of a migrated base besides its items: its catalog rows and its part of the report."""

    position: int
    record: BaseRecord
    report: BaseReport
    items: dict[str, str]
    children: dict[str, str]
    notices: list[Notice]
    has_files: bool
    #: What tells whether the published index was written to since: its size and time of change (ns).
    index_mark: tuple[int, int] | None
    #: The same for the files under ``raw/``.
    raw_mark: str
    #: What was found on disk; nothing in entries of versions that did not keep it.
    found: Found = Found()
    #: The command that wrote it; entries of versions that had one only do not say.
    command: str = "migrate"
    #: Whether texts were to come along whose vector could not.
    carry_text: bool = False
    #: SHA-256 of the index, and of the names and bytes under ``raw/``; empty in entries of versions that kept none.
    index_hash: str = ""
    raw_hash: str = ""

    @property
    def has_bare_texts(self) -> bool:
        """Tell whether there are texts that came along without a vector."""
        return bool(self.report.rows.without_vector)


def read_entry(entry: Entry) -> BaseEntry:
    """Return what an entry of the ledger says of a base."""
    return msgspec.json.decode(entry.detail, type=BaseEntry)


class Standing(Enum):
    """How a base stands."""

    #: Its index, or its folder of files, is not there.
    GONE = "gone"
    #: Its index is not what was written, and is damaged.
    DAMAGED = "damaged"
    #: Somebody has changed its index or its files.
    CHANGED = "changed"
    #: Every file is what was written, by its bytes; times do not count.
    WHOLE = "whole"


def standing(target: Path, base_id: str, known: BaseEntry, *, verify: bool = False) -> Standing:
    """Return how a base stands that an earlier run published.

    Args:
        target: the library.
        base_id: the base's id.
        known: what the ledger has of it.
        verify: read every byte, also of files whose size and time are what they were.
    """
    folder = base_folder(target, base_id)
    if not still_there(target, base_id, known):
        return Standing.GONE
    is_changed = False
    if known.index_mark is not None and (verify or index_mark(folder) != known.index_mark):
        index = folder / INDEX_FILE
        is_changed = bool(sqlite.companions(index)) or not known.index_hash or file_hash(index) != known.index_hash
        if is_changed and _is_damaged(index):
            return Standing.DAMAGED
    if known.raw_mark and (verify or raw_mark(folder) != known.raw_mark):
        is_changed = is_changed or not known.raw_hash or raw_hash(folder) != known.raw_hash
    return Standing.CHANGED if is_changed else Standing.WHOLE


def still_there(target: Path, base_id: str, known: BaseEntry) -> bool:
    """Tell whether what an earlier run published of a base is still in its place."""
    folder = base_folder(target, base_id)
    index_stands = known.index_mark is None or sqlite.is_database(folder / INDEX_FILE)
    return index_stands and (not known.raw_mark or long_paths.is_folder(folder / RAW_FOLDER))


def base_folder(target: Path, base_id: str) -> Path:
    """Return the folder of a base in a library."""
    return target / KNOWLEDGE_FOLDER / base_id


def _is_damaged(index: Path) -> bool:
    # A full-text table whose own settings are damaged is no error of the file, but of the statement.
    try:
        with sqlite.reading(index) as db:
            return str(db.execute("PRAGMA integrity_check(1)").get) != "ok"
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, UnicodeDecodeError):
        return True


def index_mark(folder: Path) -> tuple[int, int] | None:
    """Return what tells whether a published index was written to since; None where none stands any more."""
    return sqlite.file_mark(folder / INDEX_FILE)


def index_hash(folder: Path) -> str:
    """Return the SHA-256 of a base's index; "" where there is none."""
    index = folder / INDEX_FILE
    return file_hash(index) if long_paths.is_file(index) else ""


def raw_mark(folder: Path) -> str:
    """Return what tells whether a file under a base's ``raw/`` was added, changed or removed; "" without ``raw/``."""
    hasher = hashlib.blake2b(digest_size=16)
    for path in _raw_files(folder):
        status = long_paths.lstat(path)
        hasher.update(f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return hasher.hexdigest() if long_paths.is_folder(folder / RAW_FOLDER) else ""


def raw_hash(folder: Path) -> str:
    """Return the SHA-256 of the names and bytes of all files under a base's ``raw/``; "" without ``raw/``."""
    return folder_hash(folder, RAW_FOLDER)


def _raw_files(folder: Path) -> list[Path]:
    return sorted(long_paths.below(folder / RAW_FOLDER))
