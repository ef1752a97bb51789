"""Salvage of damaged index files: every row that is left and proves itself (``docs/formats/index.md``, "Salvage")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from regraft.disk import durable, file_paths, sqlite
from regraft.disk.trees import require_free_space
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.salvage import found_rows, writing
from regraft.formats.cherry_v2.salvage.proof import Expected, MaterialProof, VectorProof, repair_times, settle_remaining
from regraft.formats.cherry_v2.salvage.units import UnitProof
from regraft.formats.cherry_v2.salvage.writing import PagesTally, TableTally, Tally, count_results
from regraft.formats.sqlite_pages import PageFile, Reading
from regraft.language import tr
from regraft.text import decode_utf8

# A damaged index file becomes a whole one: of what is left of it, and of what follows from that.


class Refused(Exception):
    """Nothing can be made of a damaged index; the message says why, for a person."""


class Salvaged(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of an index file, in a temporary database as long as it is wanted."""

    proven: Path
    base_id: str
    tally: Tally

    def write(self, new: Path, now_ms: int) -> None:
        """Write it as a whole file of the present version, where no file is yet.

        Raises:
            VerificationFailed: the new file does not hold what was proven.
            apsw.Error, OSError: it cannot be written.
        """
        writing.write_index(self.proven, new, self.base_id, now_ms)


@contextmanager
def salvaged(path: Path, expected: Expected, work: Path | None = None) -> Iterator[Salvaged]:
    """Read a damaged index page by page, and give what of it proves itself as long as the context is open.

    Args:
        path: the file; it is only read.
        expected: what lies around it.
        work: the folder for temporary files (default: the system's).

    Raises:
        Refused: nothing can be made of it.
        WorkFolderTooSmall: there is no room for the rows.
        apsw.Error, OSError: it cannot be read, or the temporary files cannot be written.
    """
    with durable.temporary_folder(work) as folder:
        require_free_space(folder, 2 * file_paths.stat(path).st_size)
        proven = folder / "proven.sqlite"
        try:
            file = PageFile(path)
        except ValueError as error:
            raise Refused(tr("holds nothing of a SQLite file")) from error
        with file, sqlite.open_writable(proven, create=True) as db, sqlite.transaction(db):
            tally, base_id = _proven(db, Reading(file, (*found_rows.TABLES, *found_rows.INDEXES)), expected)
        yield Salvaged(proven=proven, base_id=base_id, tally=tally)


def _proven(db: apsw.Connection, reading: Reading, expected: Expected) -> tuple[Tally, str]:
    """Decide about every row, and return what that comes to, and whose index it is."""
    found_rows.load_rows(db, reading)
    materials = MaterialProof(db, expected)
    materials.choose()
    UnitProof(db).choose()
    VectorProof(db, expected.dimensions).choose()
    settle_remaining(db)
    repair_times(db, expected.now_ms)
    writing.number_bodies(db)
    base_id = _identity(db, expected)
    tally = count_results(db, reading, materials.unnamed)
    if not any(table.there for table in tally.rows.values()):
        raise Refused(tr("nothing that is left of it proves itself"))
    return tally, base_id


def _identity(db: apsw.Connection, expected: Expected) -> str:
    """Enter the times of the identity row, and return whose index the file is.

    Raises:
        Refused: nothing says it, or it is of a later version.
    """
    db.execute("CREATE TABLE identity (created, updated)")
    found = found_rows.fetch_rows(
        db,
        """SELECT version, base, created, updated FROM meta WHERE typeof(created) = 'integer'
              AND typeof(updated) = 'integer' AND typeof(version) = 'integer' ORDER BY strength, seq LIMIT 1""",
    )
    stated = None
    if found:
        version, base, created, updated = found[0]
        if schema.SCHEMA_VERSION < version < _MOST_VERSION:
            raise Refused(tr("it is of version {version}, which is not known here", version=version))
        stated = decode_utf8(bytes(base)) if isinstance(base, bytes) else None
    else:
        created, updated = db.execute("SELECT min(created), max(updated) FROM material WHERE fate = 'kept'").fetchall()[
            0
        ]
    db.execute("INSERT INTO identity VALUES (?, ?)", (created, updated))
    base_id = expected.base_id or stated
    if not base_id:
        raise Refused(tr("nothing says whose index it is"))
    return base_id


#: No version is that high: what says so is damaged.
_MOST_VERSION = 1000


__all__ = ["Expected", "PagesTally", "Refused", "Salvaged", "TableTally", "Tally", "salvaged"]
