"""Changes input of every kind by chance: bytes, cells of SQLite files, values in JSON, members of archives, files.

A mutation takes a :class:`random.Random`, so that the same seed gives the same input. What a mutation did is returned
as a few words, which a bad case is reported with.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import shutil
import socket
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import apsw

_SQLITE_HEAD = b"SQLite format 3\0"
_ZIP_HEAD = b"PK\x03\x04"

# --- values ----------------------------------------------------------------------------------------------------------

#: Texts that readers stumble over: nothing, odd names and paths, control characters, changes of direction, markup.
TEXTS = (
    *("", " ", "\0", "a\0b", "\ufeff", "\x85", "\u2028", "..", ".", "/", "\\", "../../victim", "/etc/passwd", "C:\\x"),
    *("CON", "con.txt", "a" * 300, "🎉" * 100, "x" * 5000, "\x1b[2J", "\x1b]0;t\x07", "\r\nregraft: done", "\u202eabc"),
    *("e\u0301", "%s%n", "{0}", "[red]", "<script>alert(1)</script>", "' OR 1=1 --", '"', "NaN", "null", "1e999"),
    *("-1", "9" * 30, "true", "🎉\ud83d".encode("utf-8", "replace").decode(), "completed", "failed", "--yes", "-"),
    *("00000000-0000-4000-8000-000000000000", "aaaaaaaa-0000-4000-8000-000000000001", "kb", "file:///etc/passwd"),
)
_NUMBERS = (0, 1, -1, 2, 255, 1 << 31, -(1 << 31), 1 << 53, (1 << 63) - 1, -(1 << 63), 1_795_262_400_000)
_FLOATS = (0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"))


def blob(random: Random) -> bytes:
    """Return bytes of any size, of which many are a vector's."""
    size = random.choice([0, 1, 3, 4, 8, 12, 16, 16, 16, 17, 32, 4096, 40_000])
    if random.random() < 0.3:
        number = random.choice(_FLOATS)
        return struct.pack("<f", number if abs(number) < 3e38 else float("inf")) * (size // 4)
    return random.randbytes(size)


def cell(random: Random) -> Any:
    """Return any value of SQLite; bytes under ``raw`` are stored as TEXT that is no UTF-8."""
    kind = random.randrange(7)
    if kind == 0:
        return None
    if kind == 1:
        return random.choice(_NUMBERS)
    if kind == 2:
        return random.choice(_FLOATS)
    if kind == 3:
        return blob(random)
    if kind == 4:
        return RawText(random.choice([b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80x", b"x\xf4\x90\x80\x80", b"\x00\xff"]))
    if kind == 5:
        return text_of(random, junk(random, 3))
    return random.choice(TEXTS)


class RawText(bytes):
    """Bytes that are stored as TEXT, though they may be no UTF-8."""


def _plain_junk(random: Random, kind: int) -> Any:
    if kind == 0:
        return None
    if kind == 1:
        return random.random() < 0.5
    if kind == 2:
        return random.choice([*_NUMBERS, 1 << 64, 10**400, -(10**25)])
    if kind == 3:
        return random.choice([0.5, -0.5, 1e300, 1e-300, 3.0])
    return random.choice(TEXTS)


def junk(random: Random, depth: int = 2) -> Any:
    """Return any value of JSON."""
    kind = random.randrange(9 if depth else 6)
    if kind < 6:
        return _plain_junk(random, kind)
    if kind == 6:
        return [junk(random, depth - 1) for _ in range(random.randrange(4))]
    if kind == 7:
        return {random.choice([*TEXTS, "id", "type", "content"]): junk(random, depth - 1) for _ in range(3)}
    return []


# --- bytes -----------------------------------------------------------------------------------------------------------


def flip(random: Random, data: bytearray) -> str:
    """Flip some bits."""
    for _ in range(random.choice([1, 1, 1, 2, 8, 64])):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return "bits flipped"


def overwrite(random: Random, data: bytearray) -> str:
    """Write other bytes over some."""
    at = random.randrange(len(data))
    size = random.choice([1, 2, 4, 8, 64, 512])
    fill = random.choice([bytes(size), b"\xff" * size, random.randbytes(size)])
    data[at : at + size] = fill[: len(data) - at]
    return f"{size} bytes overwritten at {at}"


def truncate(random: Random, data: bytearray) -> str:
    """Cut the end off."""
    at = random.choice([0, 1, len(data) - 1, len(data) // 2, random.randrange(len(data))])
    del data[at:]
    return f"cut off at {at}"


def splice(random: Random, data: bytearray) -> str:
    """Put bytes of one place, or new ones, in between at another."""
    at, source = random.randrange(len(data)), random.randrange(len(data))
    size = random.choice([1, 4, 16, 512, 4096])
    data[at:at] = random.choice([data[source : source + size], random.randbytes(size), bytes(size)])
    return f"bytes put in at {at}"


def move(random: Random, data: bytearray) -> str:
    """Exchange two blocks."""
    size = random.choice([16, 64, 512, 4096])
    blocks = max(1, len(data) // size)
    one, other = random.randrange(blocks) * size, random.randrange(blocks) * size
    first, second = bytes(data[one : one + size]), bytes(data[other : other + size])
    data[one : one + len(second)], data[other : other + len(first)] = second, first
    return f"blocks of {size} exchanged"


def cut_out(random: Random, data: bytearray) -> str:
    """Take some bytes out."""
    at = random.randrange(len(data))
    size = random.choice([1, 2, 7, 64, 512, 4096])
    del data[at : at + size]
    return f"{size} bytes taken out at {at}"


def resize(random: Random, data: bytearray) -> str:
    """Write a number where a length may stand, in any of its codings."""
    number = random.choice([0, 1, 0x7F, 0x80, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, len(data), len(data) * 2])
    form = random.choice(["<I", ">I", "<H", ">H", "<Q", ">Q", "B"])
    packed = struct.pack(form, number & ((1 << 8 * struct.calcsize(form)) - 1))
    # Lengths stand at beginnings and ends more than elsewhere.
    places = [random.randrange(len(data)), random.randrange(min(len(data), 120)), -random.randrange(1, 120) % len(data)]
    at = random.choice(places)
    data[at : at + len(packed)] = packed[: len(data) - at]
    return f"length {number} written at {at}"


_BYTES: tuple[Callable[[Random, bytearray], str], ...] = (
    *(flip, flip, overwrite, truncate, splice, move, cut_out, resize, resize),
)


def in_bytes(random: Random, data: bytes) -> tuple[bytes, str]:
    """Change bytes that may be anything."""
    changed = bytearray(data or b"\0")
    done = [
        random.choice(_BYTES)(random, changed) if changed else "nothing left" for _ in range(random.choice([1, 1, 2]))
    ]
    return bytes(changed), ", ".join(done)


# --- JSON ------------------------------------------------------------------------------------------------------------


def text_of(random: Random, value: Any) -> str:
    """Return JSON text, with what no encoder writes where chance wants it."""
    text = json.dumps(value, ensure_ascii=random.random() < 0.5)
    kind = random.randrange(14)
    if kind == 0:
        return text.replace('"', '"\\ud83d', 1)
    if kind == 1:
        return "\ufeff" + text
    if kind == 2:
        return text.replace(":", ": " + "9" * 5000 + ', "x":', 1)
    if kind == 3:
        return text.replace(":", ": " + "[" * random.choice([50, 3000, 100_000]), 1)
    if kind == 4:
        return text.replace(":", random.choice([': NaN, "x":', ': 1e999, "x":', ': -0, "x":']), 1)
    if kind == 5:
        return text + random.choice(["x", "{}", "\0", "]"])
    return text


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return where values stand; text that is JSON itself is looked into, under ``None``."""
    yield place
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _places(part, (*place, key))
    elif isinstance(value, list):
        for key, part in enumerate(value):
            yield from _places(part, (*place, key))
    elif isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            yield from _places(json.loads(value), (*place, None))


def _replaced(value: Any, place: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not place:
        return change(value)
    key, rest = place[0], place[1:]
    if key is None:
        return json.dumps(_replaced(json.loads(value), rest, change))
    value[key] = _replaced(value[key], rest, change)
    return value


def in_json(random: Random, text: str) -> tuple[str, str]:
    """Change values of a JSON text.

    Raises:
        ValueError: it is none.
    """
    value = json.loads(text)
    done = []
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        place = random.choice(list(_places(value)))
        done.append(".".join(map(str, place)) or "all")
        value = _replaced(value, place, lambda old: _other(random, old))
    return text_of(random, value), f"JSON changed at {', '.join(done)}"


def _other(random: Random, old: Any) -> Any:
    kind = random.randrange(6)
    if kind == 3:
        return [old]
    if isinstance(old, dict):
        return _other_object(random, kind, old)
    if isinstance(old, list):
        return _other_list(random, kind, old)
    if kind == 2 and isinstance(old, str):
        return random.choice([old + random.choice(TEXTS), random.choice(TEXTS) + old, old[: len(old) // 2]])
    if kind == 4 and isinstance(old, (int, float)) and not isinstance(old, bool):
        third = old / 3 if abs(old) < 1 << 900 else old // 3
        return random.choice([-old, old + 1, old * 1000, str(old), third])
    return junk(random)


def _other_object(random: Random, kind: int, old: dict[str, Any]) -> Any:
    if kind == 0 and old:
        old.pop(random.choice(list(old)))
        return old
    if kind == 1:
        old[random.choice([*TEXTS, "id", "type"])] = junk(random)
        return old
    return junk(random)


def _other_list(random: Random, kind: int, old: list[Any]) -> Any:
    if kind == 0 and old:
        return [*old, random.choice(old)]
    if kind == 1:
        random.shuffle(old)
        return [*old, junk(random)]
    return junk(random)


# --- SQLite ----------------------------------------------------------------------------------------------------------


def in_sqlite(random: Random, path: Path) -> str:
    """Change cells, rows, tables or the schema of a SQLite file, as a program that knows no rules would.

    Raises:
        apsw.Error: it is none, or does not take it.
    """
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        # An endless view must not hold up who put it there.
        db.set_progress_handler(lambda: True, 5_000_000)
        with suppress(apsw.Error):
            db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, int(random.random() < 0.5))
        tables = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        tables = [name for name in tables if not name.startswith("sqlite_")]
        if not tables:
            return "no table"
        return ", ".join(_sqlite_step(random, db, tables) for _ in range(random.choice([1, 1, 2, 3])))


def _sqlite_step(random: Random, db: apsw.Connection, tables: list[str]) -> str:
    table = random.choice(tables)
    try:
        return random.choices([_cell, _rows, _schema, _wording], [12, 3, 2, 1])[0](random, db, table)
    except (apsw.Error, IndexError, ValueError) as error:
        return f"{table} refused ({type(error).__name__})"


def _columns(db: apsw.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in db.execute(f"PRAGMA table_info({_quoted(table)})")]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cell(random: Random, db: apsw.Connection, table: str) -> str:
    column = random.choice(_columns(db, table))
    name, of = _quoted(column), _quoted(table)
    old = db.execute(f"SELECT {name} FROM {of} ORDER BY random() LIMIT 1").get if random.random() < 0.2 else None
    value = cell(random)
    if isinstance(old, str) and old[:1] in ("{", "["):
        with suppress(ValueError):
            value = in_json(random, old)[0]
    mark = "CAST(? AS TEXT)" if isinstance(value, RawText) else "?"
    plain = (
        value.encode("utf-8", "surrogatepass")
        if isinstance(value, str)
        else bytes(value)
        if isinstance(value, bytes)
        else value
    )
    if isinstance(value, str):
        mark = "CAST(? AS TEXT)"
    which = "" if random.random() < 0.2 else _one_row(random, db, table)
    force = random.choice(["", "OR REPLACE ", "OR IGNORE "])
    db.execute(f"UPDATE {force}{of} SET {name} = {mark}{which}", (plain,))
    return f"{table}.{column} = {str(value)[:40]!r}{which and ' in one row'}"


def _one_row(random: Random, db: apsw.Connection, table: str) -> str:
    count = int(db.execute(f"SELECT count(*) FROM {_quoted(table)}").get or 0)
    with suppress(apsw.Error):
        row: Any = db.execute(
            f"SELECT rowid FROM {_quoted(table)} LIMIT 1 OFFSET {random.randrange(max(1, count))}"
        ).get
        return f" WHERE rowid = {row}" if isinstance(row, int) else ""
    return ""


def _rows(random: Random, db: apsw.Connection, table: str) -> str:
    name, which = _quoted(table), _one_row(random, db, table)
    columns = _columns(db, table)
    kind = random.randrange(4)
    if kind == 0:
        db.execute(f"DELETE FROM {name}{which}")
        return f"rows of {table} deleted"
    if kind == 1:
        db.execute(f"DELETE FROM {name}")
        return f"{table} emptied"
    if kind == 2:
        chosen = ", ".join(_quoted(column) for column in columns[1:])
        db.execute(f"INSERT OR IGNORE INTO {name} ({chosen}) SELECT {chosen} FROM {name}{which}")
        return f"rows of {table} doubled"
    values = [cell(random) for _ in columns]
    plain = [value.encode("utf-8", "replace") if isinstance(value, str) else value for value in values]
    db.execute(f"INSERT OR REPLACE INTO {name} VALUES ({', '.join('?' * len(columns))})", plain)
    return f"a row of {table} of any values"


_ENDLESS = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"


def _schema(random: Random, db: apsw.Connection, table: str) -> str:
    name, column = _quoted(table), _quoted(random.choice(_columns(db, table)))
    choices = (
        f"DROP TABLE {name}",
        f"ALTER TABLE {name} RENAME TO renamed",
        f"ALTER TABLE {name} DROP COLUMN {column}",
        f"ALTER TABLE {name} RENAME COLUMN {column} TO {random.choice(['other', 'rowid', 'oid', '_rowid_', 'x y'])}",
        f"ALTER TABLE {name} ADD COLUMN {random.choice(['extra', 'rowid', 'oid', '_rowid_'])} DEFAULT 7",
        f"ALTER TABLE {name} ADD COLUMN made TEXT AS ({column} || 'x')",
        f"CREATE TABLE extra AS SELECT * FROM {name}",
        f"CREATE TRIGGER foreign_one AFTER UPDATE ON {name} BEGIN DELETE FROM {name}; END",
        f"CREATE TRIGGER foreign_one AFTER DELETE ON {name} BEGIN SELECT RAISE(ABORT, 'no'); END",
        f"CREATE INDEX foreign_index ON {name} ({column} COLLATE NOCASE)",
        f"CREATE TABLE copied AS SELECT * FROM {name}; DROP TABLE {name}; CREATE VIEW {name} AS SELECT * FROM copied",
        f"DROP TABLE {name}; CREATE VIEW {name} AS {_ENDLESS}",
        f"PRAGMA user_version = {random.choice(_NUMBERS[:6])}",
        f"PRAGMA application_id = {random.choice(_NUMBERS[:6])}",
        random.choice(
            ["PRAGMA journal_mode = WAL", "PRAGMA encoding = 'UTF-16le'", "VACUUM", "PRAGMA auto_vacuum = 1; VACUUM"]
        ),
    )
    chosen = random.choice(choices)
    db.execute(chosen)
    return chosen


def _wording(random: Random, db: apsw.Connection, table: str) -> str:
    """Change the words of the schema itself, which SQLite believes."""
    version = int(db.execute("PRAGMA schema_version").get or 0)
    db.execute("PRAGMA writable_schema = ON")
    old, new = random.choice(
        [
            ("TEXT", "BLOB"),
            ("NOT NULL", ""),
            ("PRIMARY KEY", "UNIQUE"),
            ("INTEGER", "REAL"),
            ("CREATE", "CREATE "),
            ("(", "(("),
        ]
    )
    column = random.choice(["sql", "sql", "rootpage", "name", "tbl_name", "type"])
    value = "replace(sql, ?1, ?2)" if column == "sql" else "abs(random() % 20)" if column == "rootpage" else "?1 || ?2"
    db.execute(f"UPDATE sqlite_schema SET {column} = {value} WHERE tbl_name = ?3", (old, new, table))
    db.execute(f"PRAGMA schema_version = {version + 1}")
    return f"schema of {table}: {column}, {old} → {new}"


# --- archives --------------------------------------------------------------------------------------------------------

_NAMES = (
    *(
        "../x",
        "/abs",
        "a/../../x",
        "data.json",
        "Data/",
        "Data",
        "..\\x",
        "C:\\x",
        "a\0b",
        "\x1b[2J",
        "x" * 300,
        "é",
        "",
    ),
    *("Data/KnowledgeBase/kb", "Data/KnowledgeBase/KB", "metadata.json", "/".join("a" * 300), "Data/Files/con.txt"),
)


def in_zip(random: Random, path: Path) -> str:
    """Pack an archive anew with other members: other content, names, kinds, sizes, order.

    Raises:
        zipfile.BadZipFile: it is none.
        OSError, ValueError, LookupError, RuntimeError, EOFError, zlib.error, lzma.LZMAError: a member cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    kind = random.randrange(8)
    at = random.randrange(len(members))
    info, content = members[at]
    done = f"member {info.filename}: "
    extra = ()
    if kind < 3:
        content, what = in_content(random, content)
        members[at] = (info, content)
        done += what
    elif kind == 3:
        info.filename = random.choice(_NAMES)
        done += f"called {info.filename[:20]!r}"
    elif kind == 4:
        info.external_attr = random.choice([stat.S_IFLNK, stat.S_IFIFO, stat.S_IFDIR, stat.S_IFCHR, 0]) << 16
        members[at] = (info, random.choice([content, b"../../victim", b"/etc/passwd"]))
        done += "of another kind"
    elif kind == 5:
        members.pop(at)
        done += "gone"
    elif kind == 6:
        extra = ((random.choice(_NAMES), random.randbytes(random.randrange(40))), (info.filename, content))
        done += "comes twice"
    else:
        random.shuffle(members)
        done = "members in another order"
    _pack(random, path, members, extra)
    if random.random() < 0.3:
        data, what = _in_headers(random, path.read_bytes())
        path.write_bytes(data)
        done += f"; {what}"
    return done


def _pack(random: Random, path: Path, members: list[tuple[zipfile.ZipInfo, bytes]], extra: Any) -> None:
    how = random.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    used = how if random.random() < 0.2 else None
    import warnings

    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        for info, content in members:
            packed = zipfile.ZipInfo(info.filename, info.date_time)
            packed.external_attr, packed.compress_type = (
                info.external_attr,
                info.compress_type if used is None else used,
            )
            archive.writestr(packed, content)
        for name, content in extra:
            archive.writestr(name, content)


def _in_headers(random: Random, data: bytes) -> tuple[bytes, str]:
    """Change one field of one header: flags, method, checksum, sizes, counts, offsets."""
    changed = bytearray(data)
    fields = {
        b"PK\x03\x04": (6, 8, 14, 18, 22, 26, 28),
        b"PK\x01\x02": (8, 10, 16, 20, 24, 28, 30, 32, 38, 42),
        b"PK\x05\x06": (4, 8, 10, 12, 16, 20),
    }
    head = random.choice(list(fields))
    places = [at for at in range(len(data)) if data.startswith(head, at)] if len(data) < 200_000 else []
    if not places:
        return in_bytes(random, data)
    at = random.choice(places) + random.choice(fields[head])
    size = random.choice([2, 4])
    changed[at : at + size] = random.choice(
        [bytes(size), b"\xff" * size, random.randbytes(size), b"\x01\x00\x00\x00"[:size]]
    )
    return bytes(changed[: len(data)]), f"header field at {at}"


# --- content of any kind ---------------------------------------------------------------------------------------------


def in_content(random: Random, data: bytes) -> tuple[bytes, str]:
    """Change content by what it is: SQLite, JSON, an archive, or bytes."""
    if data.startswith((_SQLITE_HEAD, _ZIP_HEAD)) and random.random() < 0.8:
        return _in_copy(random, data)
    if data[:1] in (b"{", b"[") and random.random() < 0.85:
        with suppress(ValueError, RecursionError):
            text, what = in_json(random, data.decode())
            return text.encode("utf-8", "surrogatepass"), what
    return in_bytes(random, data)


def _in_copy(random: Random, data: bytes) -> tuple[bytes, str]:
    """Change a file that a library has to open."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "copy"
        path.write_bytes(data)
        what = in_file(random, path)
        with suppress(OSError):
            return path.read_bytes(), what
        return b"", what


def in_file(random: Random, path: Path) -> str:
    """Change one file by what it is."""
    data = path.read_bytes()
    if data.startswith(_SQLITE_HEAD) and random.random() < 0.75:
        with suppress(apsw.Error, UnicodeEncodeError):
            return in_sqlite(random, path)
    if data.startswith(_ZIP_HEAD) and random.random() < 0.7:
        with suppress(
            zipfile.BadZipFile, OSError, ValueError, LookupError, RuntimeError, EOFError, zlib.error, lzma.LZMAError
        ):
            return in_zip(random, path)
    data, what = in_content(random, data) if not data.startswith((_SQLITE_HEAD, _ZIP_HEAD)) else in_bytes(random, data)
    path.write_bytes(data)
    return what


# --- folders ---------------------------------------------------------------------------------------------------------


def in_folder(random: Random, folder: Path, victim: Path) -> str:
    """Change what stands at one place of a folder: gone, moved, of another kind, a link to somewhere else.

    Args:
        random: decides.
        folder: where; it is changed.
        victim: a folder of the user's outside, to which links lead.
    """
    places = sorted(folder.rglob("*"))
    if not places:
        return "an empty folder"
    path = random.choice(places)
    name = path.relative_to(folder).as_posix()
    kind = random.randrange(9)
    if kind < 3:
        return _put_aside(random, path, name)
    if kind < 6:
        return _of_another_kind(random, path, name)
    if kind == 6:
        beside = random.choice([f"{path.name}-wal", f"{path.name}-journal", "copy", f"{path.name}.bak"])
        with suppress(OSError):
            if path.is_symlink():
                path.with_name(beside).symlink_to(path.readlink())
            elif path.is_dir():
                shutil.copytree(path, path.with_name(beside), symlinks=True)
            else:
                shutil.copy(path, path.with_name(beside))
        return f"{name} copied beside itself"
    if kind == 7:
        other = random.choice(places)
        if path.is_file() and other.is_file():
            first, second = path.read_bytes(), other.read_bytes()
            path.write_bytes(second)
            other.write_bytes(first)
        return f"{name} exchanged with {other.name}"
    return link(random, path, victim)


_ODD_NAMES = ("X", "x" * 200, "\x1b[2J", "é", "e\u0301", "\u202etxt", os.fsdecode(b"\xff\xfe"), " ", "-rf")


def _put_aside(random: Random, path: Path, name: str) -> str:
    if random.random() < 0.4:
        remove(path)
        return f"{name} is gone"
    with suppress(OSError):
        path.rename(path.with_name(random.choice(_ODD_NAMES)))
    return f"{name} renamed"


def _of_another_kind(random: Random, path: Path, name: str) -> str:
    remove(path)
    kind = random.randrange(4)
    if kind == 0:
        path.mkdir()
        return f"a folder in the place of {name}"
    if kind == 1:
        path.write_bytes(random.choice([b"", b"x", b"{}", _SQLITE_HEAD, random.randbytes(100)]))
        return f"a file in the place of {name}"
    if kind == 2:
        os.mkfifo(path)
        return f"a pipe in the place of {name}"
    return f"a socket in the place of {name}" if bind(path) else f"{name} is gone"


def link(random: Random, path: Path, victim: Path) -> str:
    """Put a link where ``path`` is: to something outside, to nothing, to itself."""
    was_folder = path.is_dir()
    remove(path)
    ends = [victim, victim / "docs"] if was_folder else [victim / "letter.txt", victim / "database.sqlite"]
    end = random.choice([*ends, *ends, victim / "not there", path, path.parent, Path("..")])
    path.symlink_to(end)
    return f"a link in the place of {path.name} to {end.name}"


def bind(path: Path) -> bool:
    """Make a socket; not where its path is too long."""
    with closing(socket.socket(socket.AF_UNIX)) as one:
        try:
            one.bind(str(path))
        except OSError:
            return False
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder, and no end of a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def mutate(random: Random, folder: Path, victim: Path, prefer: tuple[str, ...] = (), *, moves: bool = True) -> str:
    """Change something in a folder of input.

    Args:
        random: decides.
        folder: the input; it is changed.
        victim: a folder of the user's outside of it.
        prefer: patterns of those files that are changed in nine of ten cases.
        moves: whether files may also be moved, replaced by links, pipes and so on.
    """
    done = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        if moves and random.random() < 0.12:
            done.append(in_folder(random, folder, victim))
            continue
        path = _any_file(random, folder, prefer)
        if path is not None:
            done.append(f"{path.relative_to(folder)}: {in_file(random, path)}")
    return "; ".join(done)


def _any_file(random: Random, folder: Path, prefer: tuple[str, ...]) -> Path | None:
    """Return a file to change, None where there is none."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    wanted = [path for path in files if any(path.match(pattern) for pattern in prefer)]
    chosen = wanted if wanted and random.random() < 0.9 else files
    return random.choice(chosen) if chosen else None


def zipped(folder: Path) -> bytes:
    """Return a folder's files as an archive."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder).as_posix())
    return made.getvalue()
