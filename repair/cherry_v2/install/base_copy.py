"""Copy the folder of a base into a profile, verified by reading it back; as a new base, with new ids.

New ids are derived from the old ones (``docs/rules.md``, "Install"), so that a second run gives the same. Texts and
vectors stay as they are, because they are keyed by content.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import identity
from regraft.disk import durable, file_paths, links, sqlite, untrusted_sqlite
from regraft.errors import CopyDiffers, PlanOutdated, RegraftError
from regraft.formats import json_text
from regraft.formats.cherry_v2.catalog_reader import PATH_FIELDS, Row, dump_item_data
from regraft.formats.cherry_v2.index.opening import check_identity
from regraft.language import format_count, tr
from regraft.stores.locate import INDEX_FILE, RAW_FOLDER
from regraft.text import one_line
from repair.changes import files
from repair.changes.files import CHUNK_BYTES, FileDigest, copy_database
from repair.changes.plan import Action
from repair.cherry_v2.index_vectors import IndexScope, open_index_scope
from repair.cherry_v2.source import BaseSource
from repair.embedding.report import FillCounts, ReusedVectors, ScopeOutcome, empty_estimate
from repair.embedding.reuse import Reuse, Supply
from repair.embedding.survey import estimate_outcome, unnamed_embedder


@dataclass(frozen=True)
class CopyIds:
    """New ids for a copy of the base ``origin`` and its items, derived from old ids and times of creation.

    ``created`` are these times in ms, by the old id of the item.
    """

    origin: str
    created: Mapping[str, int | None]

    @cached_property
    def base(self) -> str:
        """Id of the copy."""
        return identity.copied_base_id(self.origin)

    def item(self, old: Any) -> Any:
        """Return the new id for the id of an item or material; other values are returned as they are."""
        if not isinstance(old, str):
            return old
        return identity.restored_item_id(self.base, old, self.created.get(old))

    def row(self, row: Row) -> Row:
        """Return the row of an item with new ids. A path that is the item's old id is replaced as well."""
        new = {"id": self.item(row.get("id")), "base_id": self.base, "group_id": self.item(row.get("group_id"))}
        return {**row, **new, "data": self._data(row.get("data"), row.get("id"))}

    def _data(self, data: Any, old: Any) -> Any:
        """Return an item's ``data`` with the new id in paths that are the ``old`` id of the item."""
        if not isinstance(data, str) or not isinstance(old, str) or old not in data:
            return data
        try:
            fields = json_text.loads(data)
        except (ValueError, RecursionError):
            return data
        # The paths of files of folders that 2.0.0 to 2.0.3 migrated are the ids of their items.
        own = [name for name in PATH_FIELDS if isinstance(fields, dict) and fields.get(name) == old]
        if not own:
            return data
        return dump_item_data({**fields, **dict.fromkeys(own, self.item(old))})


def rekey_index(index: Path, ids: CopyIds) -> None:
    """Replace the ids of base, materials, units and bodies in the index file of a copy.

    Raises:
        apsw.Error: the index cannot be read or written.
    """
    with sqlite.open_writable(index) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        functions: dict[str, Callable[..., Any]] = {
            "new_item": ids.item,
            "new_unit": identity.unit_id,
            "new_body": identity.body_id,
        }
        for name, function in functions.items():
            db.create_scalar_function(name, function, deterministic=True)
        with sqlite.transaction(db), untrusted_sqlite.change_only(db, index, _TABLES):
            for statement in _STATEMENTS:
                db.execute(statement)
            db.execute("UPDATE meta SET base_id = ?", (ids.base,))


_TABLES = ("material", "search_unit", "search_text", "meta")
_STATEMENTS = (
    "CREATE TEMP TABLE renamed (old TEXT PRIMARY KEY, new TEXT NOT NULL) WITHOUT ROWID",
    """INSERT INTO renamed
       SELECT unit_id, new_unit(new_item(material_id), content_hash, unit_index, char_start, char_end)
         FROM search_unit""",
    """UPDATE search_text
          SET target_id = (SELECT new FROM renamed WHERE old = target_id),
              search_text_id = new_body((SELECT new FROM renamed WHERE old = target_id))
        WHERE target_id IN (SELECT old FROM renamed)""",
    """UPDATE search_unit
          SET unit_id = (SELECT new FROM renamed WHERE old = unit_id), material_id = new_item(material_id)""",
    "UPDATE material SET relative_path = new_item(material_id) WHERE relative_path = material_id",
    "UPDATE material SET material_id = new_item(material_id)",
    "DROP TABLE renamed",
)


#: Files to copy, with their sizes and modification times (ns).
ListedFiles = tuple[tuple[Path, tuple[int, int]], ...]


def list_files(paths: tuple[Path, ...]) -> ListedFiles:
    """Pair each file with its present size and modification time."""
    return tuple((path, _size_and_time(path)) for path in paths)


def _size_and_time(path: Path) -> tuple[int, int]:
    """Return the size and the modification time (ns) of a file."""
    status = file_paths.lstat(path)
    return status.st_size, status.st_mtime_ns


class _CopiedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A copied file, and what the copy is verified against: a digest, a CRC-32, or the rows of the original."""

    path: Path
    target: Path
    exact: str | None = None
    crc32: int | None = None

    def read_back(self) -> FileDigest:
        """Read the copy, compare it with the original, and return its digest.

        Raises:
            CopyDiffers
            OSError, apsw.Error: the copy cannot be read.
        """
        digest, crc = FileDigest(), 0
        with links.open_for_reading(self.target, buffering=0) as file, digest.updating(self.target) as update:
            while chunk := file.read(CHUNK_BYTES):
                update(chunk)
                crc = crc if self.crc32 is None else zlib.crc32(chunk, crc)
        if self.exact is not None:
            is_same = digest.exact == self.exact
        elif self.crc32 is not None:
            is_same = crc == self.crc32
        else:
            is_same = files.fingerprint(self.path) == files.fingerprint(self.target)
        if not is_same:
            raise CopyDiffers(path=self.target, reason=tr("it differs from {path}", path=self.path))
        return digest


# --- vectors of other stores -----------------------------------------------------------------------------------------


class FilledBase(msgspec.Struct, frozen=True, kw_only=True):
    """A base for whose texts vectors are looked for: its id in the source, its copy's id, its models and dimensions."""

    origin: str
    id: str
    label: str
    models: tuple[str, ...]
    dimensions: int | None


class BaseVectors(msgspec.Struct, kw_only=True):
    """Vectors of other stores for the copy of a base.

    No text is sent to an embedder. So another store is used only if texts that have a vector in both have the same one.
    """

    supply: Supply
    outcome: ScopeOutcome

    @property
    def missing(self) -> int:
        """The number of texts without a vector for which no other store has a proven one."""
        return self.outcome.survey.lacking - self.outcome.planned.reused

    def actions(self) -> Iterator[Action]:
        """Yield an action for the report for each base of other stores that vectors are taken from."""
        for one in self.outcome.reused_from:
            if one.planned:
                vectors = format_count(one.planned, "vector")
                message = tr("take {vectors} from {place}", vectors=vectors, place=_describe_origin(one))
                size = 4 * one.planned * (self.outcome.dimensions or 0)
                yield Action(
                    action="reuse-vectors",
                    message=message,
                    base=self.outcome.scope,
                    subject=one.source,
                    count=one.planned,
                    bytes=size,
                )

    def describe_missing(self) -> str:
        """Say how many texts stay without a vector, and why bases of other stores are not used."""
        texts = format_count(self.missing, "text")
        reason = tr("{texts} left without a vector: no source has one that is proven", texts=texts)
        for one in self.outcome.reused_from:
            if one.reason is not None:
                place = _describe_origin(one)
                reason = tr("{first}; no vectors from {place}: {reason}", first=reason, place=place, reason=one.reason)
        return reason

    def write(self, index: Path) -> None:
        """Write the vectors to the index file of the copy, and record the result in :attr:`outcome`.

        Raises:
            SchemaForeign: its vectors cannot be written without changing other rows.
            apsw.Error: it cannot be read or written.
        """
        outcome = self.outcome
        outcome.started_at, outcome.reused, outcome.filled = identity.now_ms(), 0, FillCounts()
        for one in outcome.reused_from:
            one.reused = 0
        with sqlite.open_writable(index) as db:
            sqlite.load_vector_extension(db)
            untrusted_sqlite.refuse_foreign_rules(db, index, ("embedding",))
            scope = IndexScope(db, name=outcome.scope, label=outcome.name, dimensions=outcome.dimensions, growing=None)
            self.supply.copy_to(scope, outcome)
            outcome.ready = scope.survey().ready
        outcome.completed_at = identity.now_ms()


def _describe_origin(vectors: ReusedVectors) -> str:
    """Name the store, and the base in it, that reused vectors came from."""
    return one_line(
        vectors.source if vectors.base is None else tr("{source} ({base})", source=vectors.source, base=vectors.base)
    )


def find_base_vectors(
    reuse: Reuse, source: BaseSource, bases: Sequence[FilledBase], problems: dict[str, str]
) -> dict[str, BaseVectors]:
    """Find the vectors that copies of bases lack and other stores have, by the id of the copy.

    Args:
        reuse: the other stores.
        source: the store of the bases.
        bases: those that are copied.
        problems: gets, by the id of the copy, why vectors for a base cannot be looked for.
    """
    lacking = []
    for base in bases:
        with _report_unfit(base, problems), _open_scope(source, base) as scope:
            if scope.survey().lacking:
                reuse.want(scope, next(iter(base.models), None), unnamed_embedder(base.models))
                lacking.append(base)
    if lacking:
        reuse.load()
    found = {}
    for base in lacking:
        settings = unnamed_embedder(base.models)
        with _report_unfit(base, problems), _open_scope(source, base) as scope:
            supply = reuse.supply(scope, can_embed=False, refuses=False)
            outcome = estimate_outcome(
                scope,
                settings,
                lambda _: 0,
                name=base.label,
                model_id=next(iter(base.models), None),
                dimensions=scope.dimensions,
                supply=supply,
            )
            outcome.scope = base.id
            outcome.planned = msgspec.structs.replace(empty_estimate(settings), reused=outcome.planned.reused)
            found[base.id] = BaseVectors(supply=supply, outcome=outcome)
    return found


@contextmanager
def _open_scope(source: BaseSource, base: FilledBase) -> Iterator[IndexScope]:
    """Open the index that a base has in the source; raises ValueError if most vectors contradict its dimensions."""
    index = source.folder(base.origin) / INDEX_FILE
    with open_index_scope(index, base.origin, label=base.label, dimensions=base.dimensions) as scope:
        if scope.is_at_odds:
            raise ValueError(tr("most vectors do not have the dimensions of the catalog"))
        yield scope


@contextmanager
def _report_unfit(base: FilledBase, problems: dict[str, str]) -> Iterator[None]:
    """Context that catches an error and records it in ``problems`` by the id of the base's copy."""
    try:
        yield
    except (RegraftError, apsw.Error, OSError, ValueError) as error:
        problems[base.id] = str(error)


# --- the copy --------------------------------------------------------------------------------------------------------


class FolderCopy:
    """Copies the folder of a base into a profile and verifies the copy."""

    def __init__(
        self,
        source: BaseSource,
        base: str,
        own: ListedFiles,
        new_ids: CopyIds | None = None,
        vectors: BaseVectors | None = None,
    ) -> None:
        """Set what to copy.

        Args:
            source: the store of the base.
            base: the base's id there.
            own: the files of its folder.
            new_ids: the ids, if the base becomes a new one.
            vectors: vectors of other stores for its texts, if any.
        """
        self._source = source
        self._base = base
        self._files = own
        self._new_ids = new_ids
        self._vectors = vectors
        self._digests: dict[str, str] = {}

    def make(self, new: Path) -> None:
        """Copy the folder to the path ``new``.

        Raises:
            PlanOutdated: a file was written to since it was listed.
            CopyDiffers: the copy differs from the original.
            RegraftError, OSError, apsw.Error: a file cannot be read or written.
        """
        durable.make_folder(new)
        copies = [self._copy_file(path, mark, new) for path, mark in self._files]
        durable.sync_tree(new)
        self._digests = {copy.target.relative_to(new).as_posix(): copy.read_back().without_counters for copy in copies}
        index = new / INDEX_FILE
        if not file_paths.is_file(index):
            return
        if self._new_ids is not None:
            rekey_index(index, self._new_ids)
        if self._vectors is not None:
            self._vectors.write(index)
        if self._new_ids is not None or self._vectors is not None:
            durable.sync_file(index)
            # Flush the removal of the journal, so that it does not reappear after a power cut.
            durable.sync_folder(index.parent)
            self._digests[INDEX_FILE] = FileDigest.of(index).without_counters
        with sqlite.open_readonly(index) as db:
            check_identity(db, index, self._base if self._new_ids is None else self._new_ids.base)

    def mark(self, _: Path) -> str:
        """Return the fingerprint of the copied folder."""
        return files.folder_fingerprint(self._digests)

    def _copy_file(self, path: Path, mark: tuple[int, int], new: Path) -> _CopiedFile:
        """Copy a file into the folder ``new``; raises PlanOutdated unless its size and time are still ``mark``."""
        if not file_paths.is_file(path) or _size_and_time(path) != mark:
            raise PlanOutdated(path=path, reason=tr("it was changed in the meantime"))
        target = new / path.relative_to(self._source.folder(self._base))
        durable.make_folders(target.parent, flush=False)
        if untrusted_sqlite.has_log(path):
            # Copied as readers see it, with the content of its log.
            copy_database(path, target)
            return _CopiedFile(path=path, target=target)
        if self._source.archive is not None:
            # An extracted file is moved into the copy by a hard link; if that fails, it is copied.
            with suppress(OSError):
                durable.link(path, target)
                return _CopiedFile(path=path, target=target, crc32=self._source.crc32(path))
        digest = _copy_bytes(path, target)
        if _size_and_time(path) != mark:
            raise PlanOutdated(path=path, reason=tr("it was changed in the meantime"))
        return _CopiedFile(path=path, target=target, exact=digest.exact)


def _copy_bytes(path: Path, target: Path) -> FileDigest:
    """Copy the bytes of a file to a new file ``target``, and return their digest."""
    digest = FileDigest()
    with (
        links.open_for_reading(path, buffering=0) as file,
        durable.open_binary(target, "xb") as copy,
        digest.updating(path) as update,
    ):
        while chunk := file.read(CHUNK_BYTES):
            update(chunk)
            copy.write(chunk)
    return digest


def is_same_base_folder(folder: Path, other: Path) -> bool:
    """Whether two folders of a base have the same rows, in any order, and the same files below ``raw/``.

    The index of ``other`` may have further vectors, which it got since, or from other stores.
    """
    names = (INDEX_FILE, RAW_FOLDER)
    try:
        if all(files.bytes_fingerprint(folder / name) == files.bytes_fingerprint(other / name) for name in names):
            return True
        if files.fingerprint(folder / RAW_FOLDER) != files.fingerprint(other / RAW_FOLDER):
            return False
        index, there = folder / INDEX_FILE, other / INDEX_FILE
        return files.fingerprint(index) == files.fingerprint(there) or _has_all_rows(index, there)
    except (OSError, apsw.Error):
        return False


#: Tables of an index whose rows are not vectors.
_ROWS = ("meta", "content", "material", "search_unit", "search_text")


def _has_all_rows(index: Path, other: Path) -> bool:
    """Whether the index ``other`` has the same rows as ``index``, and all of its vectors.

    Raises:
        apsw.Error: one of them cannot be read, or has other columns.
    """
    for path in (index, other):
        with sqlite.open_readonly(path) as db:
            tables = untrusted_sqlite.table_statements(db)
        if any(name not in tables or untrusted_sqlite.is_virtual(tables[name]) for name in (*_ROWS, "embedding")):
            return False
    with sqlite.open_readonly(index) as db, sqlite.attach_readonly(db, other, "other"):
        both = (("main", "other"), ("other", "main"))
        queries = [
            f"SELECT * FROM {one}.{name} EXCEPT SELECT * FROM {two}.{name}" for name in _ROWS for one, two in both
        ]
        vectors = "embedding_text_hash, vector_blob FROM"
        queries.append(f"SELECT {vectors} main.embedding EXCEPT SELECT {vectors} other.embedding")
        return all(db.execute(f"{query} LIMIT 1").get is None for query in queries)
