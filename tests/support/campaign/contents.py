"""What a store holds, whatever it is made of: rows of databases, bytes of files, ends of links."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

import apsw

from regraft.disk import sqlite, untrusted_sqlite

_OWN = ".regraft"
#: What says the same in other bytes: the full-text index is built anew from the bodies.
_DERIVED = ("search_text_fts", "memory_items_fts", "sqlite_")
_NUMBERS = frozenset({"fts_rowid"})


def of(folder: Path, *, numbers: bool = False) -> dict[str, str]:
    """Return what every place of a store holds, without regraft's own folder and what SQLite keeps beside a file.

    With ``numbers``, what tells rows of the full-text index counts too, which a run may number anew.
    """
    ignored: Collection[str] = () if numbers else _NUMBERS
    found = {}
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != _OWN)
        for name in [*names, *folders]:
            path = Path(top, name)
            relative = path.relative_to(folder).as_posix()
            if name == _OWN or (
                relative.endswith(untrusted_sqlite.COMPANION_SUFFIXES)
                and _is_database(Path(str(path).rpartition("-")[0]))
            ):
                continue
            found[relative] = _held(path, ignored)
    return found


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return what is other than before, in a few words."""
    return [
        f"{name}: {before.get(name, 'not there'):.40} → {after.get(name, 'not there'):.40}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _held(path: Path, ignored: Collection[str]) -> str:
    kind = path.lstat().st_mode
    if stat.S_ISLNK(kind):
        return f"link to {path.readlink()}"
    if stat.S_ISDIR(kind):
        return "folder"
    if not stat.S_ISREG(kind):
        return f"kind {stat.S_IFMT(kind):o}"
    try:
        return f"rows {_rows(path, ignored)}" if _is_database(path) else _hash(path.read_bytes())
    except (apsw.Error, UnicodeDecodeError, OSError):
        return f"damaged {_hash(path.read_bytes())}"


def _is_database(path: Path) -> bool:
    return not path.is_symlink() and untrusted_sqlite.is_database(path)


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def _rows(path: Path, ignored: Collection[str]) -> str:
    """Return a hash of the schema and of all rows of ordinary tables, in any order."""
    total = 0
    with sqlite.open_readonly(path) as db:
        schema = sorted(db.execute("SELECT type, name, tbl_name, CAST(ifnull(sql, '') AS BLOB) FROM sqlite_schema"))
        for kind, name, _, sql in schema:
            derived = str(name).startswith(_DERIVED) or bytes(sql).upper().startswith(b"CREATE VIRTUAL")
            if kind != "table" or derived:
                continue
            quoted = untrusted_sqlite.quote_name(str(name))
            columns = [str(row[1]) for row in db.execute(f"PRAGMA table_info({quoted})") if row[1] not in ignored]
            chosen = ", ".join(
                f"typeof({untrusted_sqlite.quote_name(one)}), CAST({untrusted_sqlite.quote_name(one)} AS BLOB)"
                for one in columns
            )
            for row in db.execute(f"SELECT {chosen} FROM {quoted}"):
                total += int(_hash(repr((name, row)).encode()), 16)
    return f"{_hash(repr(schema).encode())} {total % (1 << 128):x}"
