"""Changes a folder of Chroma at random, in place: files, label maps, rows, and logs (``chroma_mutations.py``)."""

from __future__ import annotations

import os
import pickle
import pickletools
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

DATABASE, LABELS = "chroma.sqlite3", "index_metadata.pickle"
#: Offsets and formats of the fields of a header.
_FIELDS = ((0, "<i"), (52, "<i"), (56, "<I"), *((at, "<Q") for at in (*range(4, 52, 8), 60, 68, 92)))
_NUMBERS = (0, 1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1)
_PICKLES = (
    b"cos\nsystem\n(S'touch pickled'\ntR.",
    pickle.dumps([1]),
    pickle.dumps({"id_to_label": {"id1": 1}}),
    pickle.dumps({"id_to_label": [], "label_to_id": None}),
    b"\x80\x04" + b"(" * 5000 + b".",
    b"\x80\x04}\x94" + b"h\0" * 5000 + b".",
    b"\x80\x04X\xff\xff\xff\xff.",
    b"\x80\x04\x8a\xff" + b"\xff" * 255 + b".",
)
_TABLES = (
    *("embeddings", "embeddings", "embedding_metadata", "embeddings_queue", "embeddings_queue", "max_seq_id"),
    *("collections", "collection_metadata", "segments", "segment_metadata", "migrations"),
    *("embedding_fulltext_search_data", "embedding_fulltext_search_content", "embedding_fulltext_search_docsize"),
)
_VALUES: tuple[Any, ...] = (
    *(None, 0, 1, -1, 3, 1 << 62, (1 << 63) - 1, -(1 << 63), 0.5, float("inf"), "", "text", "id5", "\0", "知识\u202e"),
    *(b"", b"\0", b"\xff" * 8, bytes(7), bytes(64), b"\xff" * 64, bytes(63), "x" * 100_000, b"\0\0\xc0\x7f" * 16),
)
_STATEMENTS = (
    "DROP TABLE {table}",
    "ALTER TABLE {table} RENAME TO elsewhere",
    "DELETE FROM {table}",
    "CREATE TRIGGER foreign_trigger AFTER INSERT ON {table} BEGIN DELETE FROM embeddings; END",
    "CREATE INDEX foreign_index ON {table} (1)",
    "PRAGMA user_version = 99",
    "PRAGMA application_id = 99",
)


def change(root: Path, numbers: random.Random) -> list[str]:
    """Change a folder in one to three ways, and describe them. What links lead to is beside the folder."""
    return [numbers.choice(_CHANGES)(root, numbers) for _ in range(numbers.choice((1, 1, 2, 3)))]


def _pick(root: Path, numbers: random.Random, name: str = "*") -> Path | None:
    """Choose a file of a segment, or the database; None if there is none."""
    found = sorted(path for path in root.rglob(name) if path.is_file() and not path.is_symlink())
    return numbers.choice(found) if found else None


def _change_bytes(root: Path, numbers: random.Random) -> str:
    """Change bytes of a file."""
    path = _pick(root, numbers)
    if path is None:
        return "nothing"
    raw = bytearray(path.read_bytes())
    at, size = numbers.randrange(len(raw) + 1), numbers.choice((1, 4, 8, 64, 204, 512, 4096))
    kind = numbers.choice(("bits", "cut", "swap", "zero", "noise", "insert", "remove"))
    match kind:
        case "bits":
            for _ in range(numbers.randrange(1, 20) if raw else 0):
                raw[numbers.randrange(len(raw))] ^= 1 << numbers.randrange(8)
        case "cut":
            del raw[at:]
        case "swap":
            other = numbers.randrange(len(raw) + 1) // size * size
            at = at // size * size
            if abs(other - at) >= size and max(other, at) + size <= len(raw):
                raw[at : at + size], raw[other : other + size] = raw[other : other + size], raw[at : at + size]
        case "zero":
            raw[at : at + size] = bytes(len(raw[at : at + size]))
        case "noise":
            raw[at : at + size] = numbers.randbytes(len(raw[at : at + size]))
        case _:
            raw[at : at + (size if kind == "remove" else 0)] = b"" if kind == "remove" else numbers.randbytes(size)
    path.write_bytes(raw)
    return f"{path.name}: {kind} at {at}, {size}"


def _forge_header(root: Path, numbers: random.Random) -> str:
    path = _pick(root, numbers, "header.bin")
    raw = bytearray(path.read_bytes()) if path is not None else bytearray()
    if path is None or len(raw) != 100:
        return "nothing"
    forged = []
    for at, form in numbers.sample(_FIELDS, numbers.choice((1, 1, 2))):
        (old,) = struct.unpack_from(form, raw, at)
        new = numbers.choice((*_NUMBERS, old + 1, abs(old - 1), 2 * old, old // 2))
        struct.pack_into(form, raw, at, new & 0x7FFFFFFF if form == "<i" else new % (1 << 8 * struct.calcsize(form)))
        forged.append(f"{at}: {old} -> {new}")
    path.write_bytes(raw)
    return f"header.bin: {', '.join(forged)}"


def _change_labels(root: Path, numbers: random.Random) -> str:
    """Change instructions of a label map, or put another pickle in its place."""
    path = _pick(root, numbers, LABELS)
    if path is None:
        return "nothing"
    raw = bytearray(path.read_bytes())
    if numbers.random() < 0.3:
        at = numbers.randrange(len(_PICKLES))
        path.write_bytes(_PICKLES[at])
        return f"{LABELS}: pickle {at}"
    try:
        places = [(opcode, at) for opcode, _, at in pickletools.genops(bytes(raw)) if at is not None]
    except Exception:
        return "nothing"
    changed = []
    for _ in range(numbers.choice((1, 1, 2, 5))):
        opcode, at = numbers.choice(places)
        if numbers.random() < 0.5:
            raw[at] = ord(numbers.choice(pickletools.opcodes).code)
        elif at + 1 < len(raw):
            raw[at + 1] = numbers.choice((0, 1, 255, raw[at + 1] ^ 1))
        changed.append(f"{opcode.name} at {at}")
    path.write_bytes(raw)
    return f"{LABELS}: {', '.join(changed)}"


def _replace(root: Path, numbers: random.Random) -> str:
    """Put a link, a folder, another file or nothing in the place of a file or a segment's folder."""
    path = _pick(root, numbers)
    if path is None:
        return "nothing"
    if numbers.random() < 0.2 and path.parent != root:
        path = path.parent
    outside = root.parent / f"outside-{path.name}"
    kind = numbers.choice(("nothing", "nothing", "empty", "folder", "link", "link inside", "dangling", "pipe", "other"))
    others = [one for one in sorted(root.rglob(path.name)) if one != path and one.is_file()]
    if kind == "other" and path.is_file() and others:
        path.write_bytes(numbers.choice(others).read_bytes())
        return f"{path.name}: that of another segment"
    path.rename(outside)
    if kind in _REPLACED:
        _REPLACED[kind](path, outside)
    elif kind == "link inside" and others:
        path.symlink_to(numbers.choice(others))
    if kind not in ("link", "nothing"):
        shutil.rmtree(outside) if outside.is_dir() else outside.unlink()
    return f"{path.name}: {kind}"


#: What is put in the place of a file, which was moved out of the folder.
_REPLACED: dict[str, Callable[[Path, Path], object]] = {
    "empty": lambda path, _: path.write_bytes(b""),
    "folder": lambda path, _: path.mkdir(),
    "link": lambda path, outside: path.symlink_to(outside),
    "dangling": lambda path, _: path.symlink_to(path.parent / "absent"),
    "pipe": lambda path, _: os.mkfifo(path),
}


def _change_rows(root: Path, numbers: random.Random) -> str:
    """Change the database with SQL: values of any type, rows that are deleted or copied, foreign objects."""
    path, done = root / DATABASE, []
    if not path.is_file():
        return "nothing"
    try:
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA ignore_check_constraints = ON")
            for _ in range(numbers.choice((1, 1, 2, 5))):
                table = numbers.choice(_TABLES)
                columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
                rows = [number for (number,) in db.execute(f"SELECT rowid FROM {table}")]
                if not rows:
                    continue
                column, row, kind = numbers.choice(columns), numbers.choice(rows), numbers.random()
                try:
                    done.append(_change_row(db, table, column, row, kind, numbers))
                except sqlite3.Error as error:
                    done.append(f"{table}: {error}")
            db.commit()
    except sqlite3.Error as error:
        done.append(str(error))
    return f"rows: {'; '.join(done)}"


def _change_row(db: sqlite3.Connection, table: str, column: str, row: int, kind: float, numbers: random.Random) -> str:
    if kind < 0.05:
        statement = numbers.choice(_STATEMENTS).format(table=table)
        db.execute(statement)
        return statement
    if kind < 0.15:
        db.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))
        return f"{table} {row} deleted"
    if kind < 0.25:
        other = f"(SELECT {column} FROM {table} WHERE rowid <> {row} LIMIT 1)"
        db.execute(f"UPDATE {table} SET {column} = {other} WHERE rowid = ?", (row,))
        return f"{table} {row}: {column} of another row"
    value = numbers.choice(_VALUES)
    which = "CAST(? AS TEXT)" if isinstance(value, bytes) and numbers.random() < 0.3 else "?"
    where = "1" if numbers.random() < 0.05 else f"rowid = {row}"
    db.execute(f"UPDATE {table} SET {column} = {which} WHERE {where}", (value,))
    return f"{table} {where}: {column} = {which} {str(value)[:20]!r}"


def _leave_log(root: Path, numbers: random.Random) -> str:
    """Leave a write-ahead log beside the database, whole or cut, or a rollback journal of noise."""
    path = root / DATABASE
    if not path.is_file():
        return "nothing"
    if numbers.random() < 0.3:
        start = numbers.choice((b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", b""))
        (root / f"{DATABASE}-journal").write_bytes(start + numbers.randbytes(600))
        return "a journal of noise"
    copy = root.parent / "log"
    copy.mkdir()
    shutil.copy(path, copy)
    try:
        with closing(sqlite3.connect(copy / DATABASE)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA wal_autocheckpoint = 0")
            for at in range(20):
                db.execute("UPDATE embedding_metadata SET string_value = string_value || ? WHERE id = ?", (str(at), at))
                db.commit()
            log = (copy / f"{DATABASE}-wal").read_bytes()
            path.write_bytes((copy / DATABASE).read_bytes())
            end = numbers.choice((len(log), numbers.randrange(len(log) + 1)))
            (root / f"{DATABASE}-wal").write_bytes(log[:end])
    except (sqlite3.Error, OSError) as error:
        return f"no log: {error}"
    finally:
        shutil.rmtree(copy)
    return f"a log of {len(log)} bytes, of which {end} are there"


_CHANGES: tuple[Callable[[Path, random.Random], str], ...] = (
    *(_change_bytes, _change_bytes, _change_bytes, _forge_header, _forge_header, _change_labels, _change_labels),
    *(_replace, _change_rows, _change_rows, _change_rows, _leave_log),
)
