"""Find texts and vectors in other indexes for a base that lacks them, matched by content.

A donor is the index of one base in the source, or what was salvaged of the damaged index itself. Vectors are taken only
from a donor with the same model whose other vectors agree (``docs/repair-from.md``, "What is matched" and "When vectors
are taken").
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

import migrators
from checks.audit.collector import Level
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import get_indexed_path
from regraft import identity
from regraft.disk import file_paths, links, scratch, sqlite
from regraft.errors import PlanOutdated, SourceNotMigratable, UnitRefused, WrongUsage
from regraft.formats import okf
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.index.opening import READ_ERRORS
from regraft.formats.cherry_v2.index.schema import IS_USABLE_SQL, cut_units, stated_dimensions
from regraft.formats.cherry_v2.layout import RAW_FOLDER
from regraft.kinds import BASE_SOURCES, KIND_NAMES, PREVIEW_SOURCES, V1_SOURCES
from regraft.language import tr
from regraft.report import notices
from regraft.report.progress import SilentProgress
from regraft.stores.locate import Located, open_store
from regraft.text import decode_utf8, is_blank, printable
from repair.changes.files import find_damage
from repair.changes.store import Store
from repair.cherry_v2.indexing import DonatedText
from repair.cherry_v2.item_texts import NoText, Span, find_raw_file, read_item_text
from repair.cherry_v2.source import BaseSource, open_base_source
from repair.embedding.vector_sources import is_parquet

#: Texts as bytes: the application stores lone surrogates, which are not valid UTF-8.
UNITS_QUERY = """SELECT u.char_start, u.char_end, CASE typeof(t.text) WHEN 'text' THEN CAST(t.text AS BLOB) END
  FROM search_unit u
  CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id AND t.kind = 'body'
 WHERE u.material_id = ? ORDER BY u.unit_index, u.unit_id"""
CONTENT_QUERY = """SELECT c.content_hash, CASE typeof(c.text) WHEN 'text' THEN CAST(c.text AS BLOB) END
  FROM material m JOIN content c ON c.content_hash = m.current_content_hash
 WHERE m.material_id = ?"""


class OldText(msgspec.Struct, frozen=True):
    """A text from an index, and the UTF-16 spans of its units; None if the stored units do not match the text."""

    text: str
    spans: list[Span] | None
    #: Whether the text matches its hash.
    matches_hash: bool


class OldIndex:
    """The readable part of the index of the base that is restored. It has no texts if ``db`` is None."""

    def __init__(self, db: apsw.Connection | None, problem: str | None) -> None:
        """Wrap an open index; ``db`` None: there is none that can be read, for the reason ``problem``, if any."""
        self._db = db
        #: Why all or part of it cannot be read; None if it can.
        self.problem = problem

    def text(self, item: str) -> OldText | None:
        """Return the indexed text of the item with this id, or None."""
        if self._db is None:
            return None
        try:
            key, text = next(self._db.execute(CONTENT_QUERY, (item,)), (None, None))
            units = self._db.execute(UNITS_QUERY, (item,)).fetchall()
        except READ_ERRORS as error:
            self.problem = str(error)
            return None
        text = None if text is None else decode_utf8(text)
        if text is None or is_blank(text):
            return None
        return OldText(text, _matching_spans(text, units), identity.text_hash(text) == key)


def _matching_spans(text: str, units: list[Any]) -> list[Span] | None:
    """Return the spans of units if each stored body is the slice of the text at its offsets, else None.

    ``units`` are pairs of start and end offsets with the body.
    """
    try:
        spans = [(int(start), int(end)) for start, end, _ in units]
        bodies = [unit.text for unit in cut_units("", text, spans)]
    except (UnitRefused, TypeError, ValueError):
        return None
    return spans if spans and bodies == [None if body is None else decode_utf8(body) for _, _, body in units] else None


_TEXT = "SELECT CAST(text AS BLOB) FROM content WHERE content_hash = ? AND typeof(text) = 'text'"
#: Vectors of hashes for which the index itself has a text, by which the hash is verified.
_VECTORS = """SELECT e.embedding_text_hash, e.vector_blob, CAST(t.text AS BLOB) FROM embedding e
   CROSS JOIN search_text t ON t.embedding_text_hash = e.embedding_text_hash AND +t.kind = 'body'
   WHERE e.embedding_text_hash IN (SELECT value FROM json_each(:keys)) AND typeof(t.text) = 'text' AND {usable}
   GROUP BY e.embedding_text_hash"""


class Donor:
    """The index of a base in the source, which may give texts and vectors to the repaired base.

    ``is_same_base``: both bases have the same id. ``is_own``: it was salvaged from the damaged index of the repaired
    base. ``raw`` is the folder of the donor's raw files, ``row`` its catalog row.
    """

    def __init__(
        self,
        db: apsw.Connection,
        *,
        base: str,
        row: Row | None,
        raw: Path | None,
        is_same_base: bool,
        is_own: bool = False,
    ) -> None:
        """Wrap the open index ``db`` of the base ``base`` in the source."""
        self._db = db
        self._index = OldIndex(db, None)
        self.base = base
        self.row = row
        self._raw = raw
        self.is_same_base = is_same_base
        self.is_own = is_own

    @classmethod
    def of(cls, path: Path, keep: ExitStack, **about: Any) -> Donor:
        """Open an index file as a donor until ``keep`` closes; ``about`` are the other arguments of the class.

        Raises:
            apsw.Error, OSError: the file cannot be read.
        """
        db = keep.enter_context(sqlite.open_readonly(path, vectors=True))
        db.execute(f"{_VECTORS.format(usable=IS_USABLE_SQL)} LIMIT 0", {"keys": "[]", "length": 4})
        return cls(db, **about)

    # --- vectors -----------------------------------------------------------------------------------------------------

    def vectors(self, hashes: Sequence[str], size: int) -> dict[str, bytes]:
        """Read the usable vectors of ``size`` bytes for the given text hashes, by hash. Missing ones are left out."""
        wanted = {"keys": sqlite.json_array(hashes), "length": size}
        rows = self._db.execute(_VECTORS.format(usable=IS_USABLE_SQL), wanted)
        return {str(key): vector for key, vector, text in rows if identity.text_hash(decode_utf8(text)) == key}

    def has_any(self, hashes: Sequence[str]) -> bool:
        """Whether the index has a vector of any length for one of the text hashes."""
        query = "SELECT 1 FROM embedding WHERE embedding_text_hash IN (SELECT value FROM json_each(?)) LIMIT 1"
        return self._db.execute(query, (sqlite.json_array(hashes),)).get is not None

    # --- texts -------------------------------------------------------------------------------------------------------

    def content(self, content_hash: str) -> str | None:
        """Read the text that has this hash; None if it is missing or does not match."""
        raw: Any = self._db.execute(_TEXT, (content_hash,)).get
        text = None if raw is None else decode_utf8(raw)
        return text if text is not None and identity.text_hash(text) == content_hash else None

    def spans(self, content_hash: str) -> list[Span]:
        """Return the spans of the units of the text with this hash; empty if the index has no complete units for it."""
        for (material,) in self._db.execute(
            "SELECT material_id FROM material WHERE current_content_hash = ? ORDER BY material_id", (content_hash,)
        ):
            old = self._index.text(str(material))
            if old is not None and old.matches_hash and old.spans:
                return old.spans
        return []

    def read_donated_text(self, material: str) -> DonatedText | None:
        """Read the text and the unit spans of the material with this id; None if either is missing or damaged."""
        old = self._index.text(material)
        if old is None or not old.matches_hash or not old.spans:
            return None
        read: Callable[[apsw.Connection], str | None] = partial(self._read_again, identity.text_hash(old.text))
        return DonatedText(text=old.text, spans=old.spans, read=read)

    def materials(self) -> list[tuple[str, str]]:
        """Return the ids and paths of all materials."""
        query = "SELECT material_id, relative_path FROM material ORDER BY rowid"
        return [(str(material), str(path)) for material, path in self._db.execute(query)]

    def _read_again(self, content_hash: str, _index: apsw.Connection) -> str | None:
        """Read the text with this hash again when the change is applied; None if it is missing.

        The index that is written is not used.
        """
        return self.content(content_hash)

    # --- items -------------------------------------------------------------------------------------------------------

    def proven_material(self, item: Row, raw: Path) -> str | None:
        """Return the id of the donor's material whose file or text is identical to that of an item, or None.

        ``item`` is a row of the repaired base, ``raw`` that base's folder of raw files.
        """
        file = find_raw_file(get_indexed_path(item), raw)
        if file is not None:
            for material, path in self._candidates(item, file):
                if self._is_same_file(file, path):
                    return material
        try:
            key = identity.text_hash(read_item_text(item, raw).text)
        except (NoText, WrongUsage):
            return None
        found: Any = self._db.execute(
            "SELECT min(material_id) FROM material WHERE current_content_hash = ?", (key,)
        ).get
        return None if found is None else str(found)

    def _candidates(self, item: Row, file: Path) -> Iterator[tuple[str, str]]:
        """Yield ids and paths of materials that may be identical to an item with this file.

        Those with the item's id or path come first, then those whose file has the same size.
        """
        query = "SELECT material_id, relative_path FROM material WHERE material_id = ? OR relative_path = ? ORDER BY 1"
        yield from (
            (str(key), str(path)) for key, path in self._db.execute(query, (item.get("id"), get_indexed_path(item)))
        )
        yield from self._by_size.get(file_paths.stat(file).st_size, ())

    @cached_property
    def _by_size(self) -> dict[int, list[tuple[str, str]]]:
        """Ids and paths of the donor's materials, by the size of their files."""
        found = defaultdict(list)
        for material, path in self._db.execute("SELECT material_id, relative_path FROM material ORDER BY 1"):
            file = None if self._raw is None else find_raw_file(path, self._raw)
            if file is not None:
                found[file_paths.stat(file).st_size].append((str(material), str(path)))
        return dict(found)

    def _is_same_file(self, file: Path, path: str) -> bool:
        """Whether the donor's raw file at ``path`` has the same bytes as ``file``."""
        other = None if self._raw is None else find_raw_file(path, self._raw)
        return other is not None and links.have_same_bytes(file, other)

    def listed_material(self, item: Row, raw: Path) -> str | None:
        """Return the item's id if a copy of the same base has a material with that id; otherwise None.

        Their raw files must have the same bytes, or one of the two files is missing. ``item`` is a row of the repaired
        base, ``raw`` that base's folder of raw files.
        """
        if not self.is_same_base:
            return None
        found: Any = self._db.execute("SELECT relative_path FROM material WHERE material_id = ?", (item.get("id"),)).get
        if found is None:
            return None
        file = find_raw_file(get_indexed_path(item), raw)
        other = None if self._raw is None or self.is_own else find_raw_file(found, self._raw)
        is_other = file is not None and other is not None and not self._is_same_file(file, str(found))
        return None if is_other else str(item.get("id"))

    def listed_snapshot(self, item: Row) -> tuple[str, str] | None:
        """Return path and content of an item's snapshot, in a copy of the same base; None if its text is another."""
        query = "SELECT relative_path, current_content_hash FROM material WHERE material_id = ?"
        for path, content_hash in self._db.execute(query, (item.get("id"),)) if self.is_same_base else ():
            file = None if self._raw is None or self.is_own else find_raw_file(str(path), self._raw)
            content = None if file is None else decode_utf8(links.read_bytes(file))
            if content is not None and identity.text_hash(okf.strip_block(content)) == content_hash:
                return str(path), content
        return None


class Donors:
    """The donors of one base, in order of preference. Implements :class:`repair.cherry_v2.indexing.TextDonor`."""

    def __init__(self, donors: Sequence[Donor]) -> None:
        self.donors = donors
        #: Bases of the source with a file or text identical to the repaired base's, and all that gave a text.
        self.proven: set[str] = set()
        self.used: set[str] = set()

    def text(self, item: Row, raw: Path) -> DonatedText | None:
        """Find the text of an item: in the repaired base's damaged index, then by same content, then by id.

        None if no donor has it.
        """
        for donor in self.donors:
            material = donor.listed_material(item, raw) if donor.is_own else donor.proven_material(item, raw)
            donated = None if material is None else donor.read_donated_text(material)
            if donated is not None:
                self._count_use(donor, is_proven=not donor.is_own)
                return donated
        for donor in self.donors:
            material = donor.listed_material(item, raw)
            donated = None if material is None else donor.read_donated_text(material)
            if donated is not None:
                self._count_use(donor, is_proven=False)
                return donated
        return None

    def listed_text(self, item: Row) -> DonatedText | None:
        """Find the text that an item has in a copy of the same base, whatever its raw file there is; else None."""
        for donor in self.donors:
            donated = donor.read_donated_text(str(item.get("id"))) if donor.is_same_base else None
            if donated is not None:
                return donated
        return None

    def listed_snapshot(self, item: Row) -> tuple[str, str] | None:
        """Find the snapshot of an item in a copy of the same base: its path and its content."""
        found = (donor.listed_snapshot(item) for donor in self.donors)
        return next((one for one in found if one is not None), None)

    def _count_use(self, donor: Donor, *, is_proven: bool) -> None:
        """Record that a donor gave a text, and whether this proves that it is a copy of the repaired base."""
        if not donor.is_own:
            self.used.add(donor.base)
        if is_proven:
            self.proven.add(donor.base)

    def spans(self, content_hash: str) -> list[Span]:
        """Return the unit spans of the text with this hash from the first donor that has them, else an empty list."""
        return next((spans for donor in self.donors if (spans := donor.spans(content_hash))), [])

    def content(self, content_hash: str) -> str | None:
        """Read the text with a hash from the first donor that has it; None if no donor has it."""
        found = (donor.content(content_hash) for donor in self.donors)
        return next((text for text in found if text is not None), None)


class DonorBases:
    """The readable bases of a source as donors. ``problems`` says, by base id, why others cannot be used."""

    def __init__(self, source: BaseSource, keep: ExitStack) -> None:
        """Prepare the bases of a source; opened indexes stay open until ``keep`` closes."""
        self._source = source
        self._keep = keep
        self.problems: dict[str, str] = {}
        self._paths: dict[str, Path | None] = {}

    def each(self, base: str, gives: Callable[[Donor], bool]) -> Iterator[Donor]:
        """Yield the bases of the source for which ``gives`` is true, as donors for ``base``.

        The base with the same id comes first. Yielded donors stay open, the others are closed.
        """
        own = [key for key in self._source.chosen if key == base]
        for key in (*own, *(key for key in self._source.chosen if key != base)):
            with ExitStack() as stack:
                donor = self._open_donor(key, base, stack)
                if donor is not None and self._is_useful(donor, gives):
                    self._keep.enter_context(stack.pop_all())
                    yield donor

    def migrated_items(self, base: str) -> set[str]:
        """Return the ids of the items of a base if v1 data were migrated to make the source; empty otherwise."""
        source = self._source
        if not source.is_migrated or base not in source.chosen:
            return set()
        return {str(item.get("id")) for item in source.catalog.items_of(base)}

    def exclude_damaged(self) -> bool:
        """Exclude the bases whose index SQLite finds to be damaged. Returns whether there were any."""
        found: dict[str, str] = {}
        for key, path in self._paths.items():
            try:
                with ExitStack() as stack:
                    damage = None if path is None else find_damage(stack.enter_context(sqlite.open_readonly(path)))
            except READ_ERRORS as error:
                damage = str(error)
            if damage is not None:
                found[key] = tr("its index cannot be read completely: {error}", error=damage)
        self.problems |= found
        self._paths |= dict.fromkeys(found)
        return bool(found)

    def _is_useful(self, donor: Donor, gives: Callable[[Donor], bool]) -> bool:
        """Return ``gives(donor)``. A donor that cannot be read is excluded, and its problem is recorded."""
        try:
            return gives(donor)
        except READ_ERRORS as error:
            self.problems[donor.base] = str(error)
            self._paths[donor.base] = None
            return False

    def _open_donor(self, key: str, base: str, stack: ExitStack) -> Donor | None:
        """Open the index of the source's base ``key`` as donor for the repaired base ``base``, until ``stack`` closes.

        None if it is damaged or missing; the problem is recorded.
        """
        if key not in self._paths:
            self._paths[key] = self._find_index_path(key)
        path = self._paths[key]
        if path is None:
            return None
        source = self._source
        try:
            return Donor.of(
                path,
                stack,
                base=key,
                row=source.bases[key],
                raw=source.folder(key) / RAW_FOLDER,
                is_same_base=key == base,
            )
        except READ_ERRORS as error:
            self.problems[key] = str(error)
            return None

    def _find_index_path(self, key: str) -> Path | None:
        """Return the path of the index of the source's base ``key``.

        None if the index is unusable; ``problems`` gets the reason.
        """
        source = self._source
        one = source.store.stores.get(key)
        findings = list(source.store.audit(Level.SHAPE, frozenset({key})).findings)
        problem = source.problem(key, findings)
        if problem is None and one is None:
            problem = next((found for found in findings if found.base == key and found.name == v2.BASE_FAILED), None)
        if problem is not None:
            self.problems[key] = dict(source.unread).get(key, problem.message)
        return None if one is None or problem is not None else source.store.root / one.name


# --- opening the source ----------------------------------------------------------------------------------------------

_LIBRARY = "library"


def open_source(path: Path, store: Store, keep: ExitStack, now_ms: int) -> BaseSource:
    """Open a source of texts and vectors for reading. Anything but v2 data is migrated into a temporary library first.

    Args:
        path: the source that the user named.
        store: the store to repair.
        keep: opened, extracted or migrated files stay until this closes.
        now_ms: the time of the run.

    Raises:
        WrongUsage: the source is the store itself.
        SourceNotMigratable: it has no bases with a known model.
        RegraftError: it cannot be recognized or read.
    """
    if is_parquet(path):
        library = keep.enter_context(scratch.temporary_folder()) / _LIBRARY
        migrators.import_parquet((path,), library, migrators.Options(now_ms=now_ms), SilentProgress())
        return keep.enter_context(open_base_source(library, None, (), "repair"))
    with open_store(path, None) as found:
        if not found.is_archive and (links.real_path(found.tree.path) == links.real_path(store.root)):
            raise WrongUsage(
                problem=tr("--from {path} is the store being repaired", path=printable(path)),
                hint=tr("use another copy of the data"),
            )
        has_v2 = any(one.look.layout is IndexLayout.CURRENT for one in found.stores.current)
        if found.kind in BASE_SOURCES and (has_v2 or not found.stores.has_preview):
            return keep.enter_context(open_base_source(path, None, (), "repair"))
        library, unread = _migrate(found, keep, now_ms)
        made = keep.enter_context(open_base_source(library, None, (), "repair"))
        return dataclasses.replace(made, unread=unread, is_migrated=found.kind in V1_SOURCES)


def _migrate(source: Located, keep: ExitStack, now_ms: int) -> tuple[Path, tuple[tuple[str, str], ...]]:
    """Migrate v1 data, or data of a preview build, into a temporary library that exists until ``keep`` closes.

    Returns:
        The library's path, and pairs of the id of a base and why its vector file could not be read.
    """
    if source.kind not in (*V1_SOURCES, *PREVIEW_SOURCES, *BASE_SOURCES):
        advice = tr("use a v1 backup or profile, a library, a pack, a v2 profile or backup, or a Parquet file")
        raise SourceNotMigratable(path=source.path, what=KIND_NAMES[source.kind], advice=advice)
    library = keep.enter_context(scratch.temporary_folder()) / _LIBRARY
    report = migrators.migrate(source, library, migrators.Options(now_ms=now_ms), SilentProgress()).report
    ids = {base.source_id: base.id for base in report.bases}
    unread = [one for one in report.warnings if one.code == notices.MISSING_STORE and one.base in ids]
    return library, tuple((ids[str(one.base)], one.message) for one in unread)


# --- vectors ---------------------------------------------------------------------------------------------------------

#: Texts that are looked up at once.
_PAGE_SIZE = 500
#: Texts whose vectors are compared before any is taken.
COMPARED = 8
#: Bodies of existing units. The plus signs keep SQLite from using indexes of the columns.
_IS_BODY = """t.embedding_text_hash > :after AND +t.target_type = 'search_unit' AND +t.kind = 'body'
   AND typeof(t.embedding_text_hash) = 'text'
   AND EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)"""
_MISSING_PAGE = f"""SELECT DISTINCT t.embedding_text_hash FROM search_text t
   LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
   WHERE {_IS_BODY} AND (e.embedding_text_hash IS NULL OR NOT {IS_USABLE_SQL}) ORDER BY 1 LIMIT {_PAGE_SIZE}"""
_READY_PAGE = f"""SELECT e.embedding_text_hash, e.vector_blob FROM embedding e
   WHERE e.embedding_text_hash > :after AND {IS_USABLE_SQL}
     AND EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = e.embedding_text_hash AND {_IS_BODY})
   ORDER BY 1 LIMIT {_PAGE_SIZE}"""
_INSERT_VECTOR = """INSERT INTO embedding (embedding_text_hash, vector_blob, created_at) VALUES (?, ?, ?)
   ON CONFLICT (embedding_text_hash) DO UPDATE SET vector_blob = excluded.vector_blob,
     created_at = excluded.created_at"""


class BaseModel(msgspec.Struct, frozen=True):
    """The model of a base and the number of dimensions of its vectors; None if the base has none."""

    id: str | None
    dimensions: int | None

    @classmethod
    def of(cls, row: Row | None) -> BaseModel:
        """Read the model from a catalog row."""
        known = row or {}
        model = known.get("embedding_model_id")
        return cls(model if isinstance(model, str) else None, stated_dimensions(known))

    @property
    def bytes(self) -> int:
        """Size of one vector in bytes."""
        return 4 * (self.dimensions or 0)


def read_missing_hashes(db: apsw.Connection, size: int) -> Iterator[list[str]]:
    """Yield pages of hashes of indexed texts without a usable vector of ``size`` bytes, ascending.

    Vectors may be written between two pages.
    """
    sqlite.load_vector_extension(db)
    after = ""
    while keys := [str(key) for (key,) in db.execute(_MISSING_PAGE, {"after": after, "length": size}).fetchall()]:
        yield keys
        after = keys[-1]


def find_hashes_without_vector(db: apsw.Connection, hashes: Collection[str], size: int) -> list[str]:
    """Return the text hashes for which an open index has no usable vector of ``size`` bytes."""
    sqlite.load_vector_extension(db)
    query = f"""SELECT e.embedding_text_hash FROM embedding e
       WHERE e.embedding_text_hash IN (SELECT value FROM json_each(:keys)) AND {IS_USABLE_SQL}"""
    wanted = {"keys": sqlite.json_array(hashes), "length": size}
    ready = {key for (key,) in db.execute(query, wanted)}
    return [key for key in hashes if key not in ready]


def find_disagreement(model: BaseModel, donor: Donor, index: Path | None) -> str | None:
    """Return why the vectors of a donor must not be used; None if model, dimensions and the compared vectors agree.

    Args:
        model: the model of the repaired base.
        donor: an index of the source.
        index: the index of the repaired base, or what was salvaged of it; None if it is missing. Without a usable
            vector in it, nothing can be compared.

    Raises:
        apsw.Error, OSError: one of the indexes cannot be read.
    """
    other = BaseModel.of(donor.row)
    if other.id != model.id:
        return tr("its model is {model}, but the copy has {other}", model=model.id, other=other.id or tr("none"))
    if other.dimensions != model.dimensions:
        return tr(
            "its vectors have {dimensions} dimensions, but those of the copy have {other}",
            dimensions=model.dimensions,
            other=other.dimensions,
        )
    return None if index is None else _find_vector_difference(model, donor, index)


def _find_vector_difference(model: BaseModel, donor: Donor, index: Path) -> str | None:
    """Compare vectors of texts that the donor and the base's own index both have.

    Returns:
        Why the donor cannot be used: a vector differs, or no text is in both. None if it can.
    """
    compared, has_any, after = 0, False, ""
    with sqlite.open_readonly(index, vectors=True) as db:
        while rows := db.execute(_READY_PAGE, {"after": after, "length": model.bytes}).fetchall():
            after, has_any = str(rows[-1][0]), True
            there = donor.vectors([str(key) for key, _ in rows], model.bytes)
            for key, vector in rows:
                if key in there and compared < COMPARED:
                    compared += 1
                    if there[key] != vector:
                        return tr("the vectors of a text in both differ ({key})", key=key)
            if compared == COMPARED:
                break
    if has_any and not compared:
        return tr("no text has a vector in both, so the vectors cannot be compared")
    return None


class MissingHashes:
    """Hashes of the texts of one base that lack a vector, stored in a temporary database."""

    def __init__(self, db: apsw.Connection) -> None:
        """Create the table of hashes in an empty temporary database."""
        self._db = db
        db.execute("CREATE TABLE wanted (hash TEXT PRIMARY KEY) WITHOUT ROWID")

    def add(self, hashes: Iterable[str]) -> None:
        """Add hashes; duplicates are ignored."""
        self._db.executemany("INSERT INTO wanted VALUES (?) ON CONFLICT DO NOTHING", ((key,) for key in hashes))

    def add_all(self, pages: Iterable[Collection[str]]) -> None:
        """Add pages of hashes."""
        for keys in pages:
            self.add(keys)

    @property
    def count(self) -> int:
        """Number of hashes."""
        return int(self._db.execute("SELECT count(*) FROM wanted").get)

    def pages(self) -> Iterator[list[str]]:
        """Yield the hashes in pages, ascending."""
        after = ""
        query = f"SELECT hash FROM wanted WHERE hash > ? ORDER BY 1 LIMIT {_PAGE_SIZE}"
        while keys := [str(key) for (key,) in self._db.execute(query, (after,)).fetchall()]:
            yield keys
            after = keys[-1]

    def is_known_to(self, donor: Donor) -> bool:
        """Whether a donor has a vector for any of the hashes."""
        return any(donor.has_any(keys) for keys in self.pages())

    def found_in(self, donors: Sequence[Donor], size: int) -> int:
        """Count the hashes for which any of the donors has a vector of ``size`` bytes."""
        return sum(len(collect_vectors(donors, keys, size)) for keys in self.pages())


def collect_vectors(donors: Sequence[Donor], hashes: Collection[str], size: int) -> dict[str, bytes]:
    """Read the vectors of ``size`` bytes by text hash, each from the first donor that has it."""
    vectors: dict[str, bytes] = {}
    for donor in donors:
        missing = [key for key in hashes if key not in vectors]
        if missing:
            vectors.update(donor.vectors(missing, size))
    return vectors


def write_missing_vectors(
    db: apsw.Connection, *, path: Path, donors: Sequence[Donor], model: BaseModel, count: int, now_ms: int
) -> None:
    """Write the vectors that an open index lacks and the donors have.

    Args:
        db: the index, open for writing.
        path: its path, for messages.
        donors: the donors, preferred ones first.
        model: the model of the base.
        count: the planned number of vectors.
        now_ms: time of the new rows.

    Raises:
        PlanOutdated: the number of vectors differs from the plan.
    """
    written = 0
    for keys in read_missing_hashes(db, model.bytes) if count else ():
        vectors = collect_vectors(donors, keys, model.bytes)
        db.executemany(_INSERT_VECTOR, ((key, vector, now_ms) for key, vector in vectors.items()))
        written += len(vectors)
    if written != count:
        raise PlanOutdated(path=path, reason=tr("it was changed in the meantime"))
