"""Salvage damaged index files: recover every row that can be verified (``docs/formats/index.md``, "Salvage").

The file is read page by page into a temporary database (:mod:`.found_rows`). A content is proven by its hash, a unit by
its id, a body by being its unit's slice of the content, a vector by the hash of a proven text and by resembling the
others (:mod:`.proof`, :mod:`.units`). What was lost but follows from proven rows is derived. :mod:`.writing` counts the
results and writes a new index.
"""

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


class Refused(Exception):
    """A damaged index cannot be salvaged. The message gives the reason."""


class Salvaged(msgspec.Struct, frozen=True, kw_only=True):
    """The proven rows of an index file, in a temporary database."""

    proven: Path
    base_id: str
    tally: Tally

    def write(self, new: Path, now_ms: int) -> None:
        """Write the proven rows to a new index of the current version.

        Raises:
            VerificationFailed: the new file differs from what was proven.
            apsw.Error, OSError: the file cannot be written.
        """
        writing.write_index(self.proven, new, self.base_id, now_ms)


@contextmanager
def salvage_index(path: Path, expected: Expected, work: Path | None = None) -> Iterator[Salvaged]:
    """Read a damaged index page by page and provide what is proven while the context is active.

    Args:
        path: the file. It is only read.
        expected: facts from the catalog and the path.
        work: folder for temporary files (default: the system's).

    Raises:
        Refused: nothing can be salvaged.
        WorkFolderTooSmall: there is not enough room for the rows.
        apsw.Error, OSError: the file cannot be read, or the temporary files cannot be written.
    """
    with durable.temporary_folder(work) as folder:
        require_free_space(folder, 2 * file_paths.stat(path).st_size)
        proven = folder / "proven.sqlite"
        try:
            file = PageFile(path)
        except ValueError as error:
            raise Refused(tr("is not a SQLite file in any part")) from error
        with file, sqlite.open_writable(proven, create=True) as db, sqlite.transaction(db):
            tally, base_id = _prove_rows(db, Reading(file, (*found_rows.TABLES, *found_rows.INDEXES)), expected)
        yield Salvaged(proven=proven, base_id=base_id, tally=tally)


def _prove_rows(db: apsw.Connection, reading: Reading, expected: Expected) -> tuple[Tally, str]:
    """Decide about every row; return the totals and the base id."""
    found_rows.load_rows(db, reading)
    materials = MaterialProof(db, expected)
    materials.choose_materials()
    materials.derive_materials()
    materials.choose_contents()
    materials.join_contents()
    materials.assign_contents()
    materials.drop_unreferenced()
    UnitProof(db).choose()
    VectorProof(db, expected.dimensions).choose()
    settle_remaining(db)
    repair_times(db, expected.now_ms)
    writing.number_bodies(db)
    base_id = _determine_identity(db, expected)
    tally = count_results(db, reading, materials.unnamed)
    if not any(table.there for table in tally.rows.values()):
        raise Refused(tr("none of its remaining rows can be verified"))
    return tally, base_id


def _determine_identity(db: apsw.Connection, expected: Expected) -> str:
    """Store the times of the identity row and return the base id.

    Raises:
        Refused: the base is unknown, or the index has a later version.
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
        if schema.SCHEMA_VERSION < version < _MAX_VERSION:
            raise Refused(tr("it has version {version}, which this regraft does not support", version=version))
        stated = decode_utf8(bytes(base)) if isinstance(base, bytes) else None
    else:
        created, updated = db.execute("SELECT min(created), max(updated) FROM material WHERE fate = 'kept'").fetchall()[
            0
        ]
    db.execute("INSERT INTO identity VALUES (?, ?)", (created, updated))
    base_id = expected.base_id or stated
    if not base_id:
        raise Refused(tr("the base that it belongs to is unknown"))
    return base_id


#: A higher version number is damage.
_MAX_VERSION = 1000


__all__ = ["Expected", "PagesTally", "Refused", "Salvaged", "TableTally", "Tally", "salvage_index"]
