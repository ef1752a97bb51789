"""Indexes that texts and vectors are taken from, each matched by content with what a base lacks.

Rules: ``docs/repair-from.md``, "What is matched".
"""

from __future__ import annotations

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
from regraft.disk import durable, links, sqlite
from regraft.errors import PlanOutdated, SourceNotMigratable, WrongUsage
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.index.opening import READ_ERRORS
from regraft.formats.cherry_v2.index.schema import IS_USABLE_SQL
from regraft.formats.cherry_v2.layout import RAW_FOLDER
from regraft.kinds import BASE_SOURCES, KIND_NAMES, PREVIEW_SOURCES, V1_SOURCES
from regraft.language import tr
from regraft.report.progress import SilentProgress
from regraft.stores.locate import Located, open_store
from regraft.text import decode_utf8, printable
from repair.changes.store import Store
from repair.cherry_v2.indexing import DonatedText
from repair.cherry_v2.item_texts import NoText, Span, find_raw_file, read_item_text
from repair.cherry_v2.restore.source import OldIndex
from repair.cherry_v2.source import BaseSource, open_base_source

_PIECE = 1 << 20
_TEXT = "SELECT CAST(text AS BLOB) FROM content WHERE content_hash = ? AND typeof(text) = 'text'"
#: Vectors of hashes for which the file itself has a text; the text proves the hash.
_VECTORS = """SELECT e.embedding_text_hash, e.vector_blob, CAST(t.text AS BLOB) FROM embedding e
   CROSS JOIN search_text t ON t.embedding_text_hash = e.embedding_text_hash AND +t.kind = 'body'
   WHERE e.embedding_text_hash IN (SELECT value FROM json_each(:keys)) AND typeof(t.text) = 'text' AND {usable}
   GROUP BY e.embedding_text_hash"""


class Donor:
    """One index with the raw files of its base.

    ``is_same_base`` tells whether it has the id of the base that is repaired, and ``is_own`` whether it is what is
    left of the damaged index of that base.
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
        self._db = db
        self._index = OldIndex(db, None)
        self.base = base
        self.row = row
        self._raw = raw
        self.is_same_base = is_same_base
        self.is_own = is_own

    @classmethod
    def of(cls, path: Path, keep: ExitStack, **about: Any) -> Donor:
        """Open an index file for as long as ``keep`` is open.

        Raises:
            apsw.Error, OSError: it cannot be read.
        """
        db = keep.enter_context(sqlite.open_readonly(path, vectors=True))
        db.execute(f"{_VECTORS.format(usable=IS_USABLE_SQL)} LIMIT 0", {"keys": "[]", "length": 4})
        return cls(db, **about)

    # --- vectors -----------------------------------------------------------------------------------------------------

    def vectors(self, keys: Sequence[str], size: int) -> dict[str, bytes]:
        """Return the vectors of ``size`` bytes of these text hashes, as they are stored."""
        wanted = {"keys": msgspec.json.encode(list(keys)).decode(), "length": size}
        rows = self._db.execute(_VECTORS.format(usable=IS_USABLE_SQL), wanted)
        return {str(key): vector for key, vector, text in rows if identity.text_hash(decode_utf8(text)) == key}

    def has_any(self, keys: Sequence[str]) -> bool:
        """Whether there is a vector of any length for one of these text hashes."""
        query = "SELECT 1 FROM embedding WHERE embedding_text_hash IN (SELECT value FROM json_each(?)) LIMIT 1"
        return self._db.execute(query, (msgspec.json.encode(list(keys)).decode(),)).get is not None

    # --- texts -------------------------------------------------------------------------------------------------------

    def content(self, content_hash: str) -> str | None:
        """Return the text with a hash; None where there is none."""
        raw: Any = self._db.execute(_TEXT, (content_hash,)).get
        text = None if raw is None else decode_utf8(raw)
        return text if text is not None and identity.text_hash(text) == content_hash else None

    def spans(self, content_hash: str) -> list[Span]:
        """Return the places of the units of a text; empty where there are none."""
        for (material,) in self._db.execute(
            "SELECT material_id FROM material WHERE current_content_hash = ? ORDER BY material_id", (content_hash,)
        ):
            old = self._index.text(str(material))
            if old is not None and old.is_right and old.spans:
                return old.spans
        return []

    def donated(self, material: str) -> DonatedText | None:
        """Return the text of a material with its units; None where one of both is not whole."""
        old = self._index.text(material)
        if old is None or not old.is_right or not old.spans:
            return None
        read: Callable[[apsw.Connection], str | None] = partial(self._again, identity.text_hash(old.text))
        return DonatedText(text=old.text, spans=old.spans, read=read)

    def materials(self) -> list[tuple[str, str]]:
        """Return the ids and paths of all materials."""
        query = "SELECT material_id, relative_path FROM material ORDER BY rowid"
        return [(str(material), str(path)) for material, path in self._db.execute(query)]

    def _again(self, content_hash: str, _index: apsw.Connection) -> str | None:
        return self.content(content_hash)

    # --- items -------------------------------------------------------------------------------------------------------

    def proven_material(self, item: Row, raw: Path) -> str | None:
        """Return the material that the file or the text of an item proves to be that of the item."""
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
        """Yield materials with their paths: that of the same id, that of the same path, those of files as long."""
        query = "SELECT material_id, relative_path FROM material WHERE material_id = ? OR relative_path = ? ORDER BY 1"
        yield from (
            (str(key), str(path)) for key, path in self._db.execute(query, (item.get("id"), get_indexed_path(item)))
        )
        yield from self._by_size.get(file.stat().st_size, ())

    @cached_property
    def _by_size(self) -> dict[int, list[tuple[str, str]]]:
        found = defaultdict(list)
        for material, path in self._db.execute("SELECT material_id, relative_path FROM material ORDER BY 1"):
            file = None if self._raw is None else find_raw_file(path, self._raw)
            if file is not None:
                found[file.stat().st_size].append((str(material), str(path)))
        return dict(found)

    def _is_same_file(self, file: Path, path: str) -> bool:
        other = None if self._raw is None else find_raw_file(path, self._raw)
        if other is None or other.stat().st_size != file.stat().st_size:
            return False
        with file.open("rb") as one, other.open("rb") as two:
            while piece := one.read(_PIECE):
                if two.read(_PIECE) != piece:
                    return False
        return True

    def listed_material(self, item: Row, raw: Path) -> str | None:
        """Return the material with the id of an item, in a copy of the very base, unless its file is another one."""
        if not self.is_same_base:
            return None
        found: Any = self._db.execute("SELECT relative_path FROM material WHERE material_id = ?", (item.get("id"),)).get
        if found is None:
            return None
        file = find_raw_file(get_indexed_path(item), raw)
        other = None if self._raw is None or self.is_own else find_raw_file(found, self._raw)
        is_other = file is not None and other is not None and not self._is_same_file(file, str(found))
        return None if is_other else str(item.get("id"))


class Donors:
    """The donors of one base, in the order in which they are asked; implements the donor of ``indexing``."""

    def __init__(self, donors: Sequence[Donor]) -> None:
        self.donors = donors
        #: Bases of the source that a file or a text of the repaired base proves, and those that gave a text at all.
        self.proven: set[str] = set()
        self.used: set[str] = set()

    def text(self, item: Row, raw: Path) -> DonatedText | None:
        """Return the text of an item, from the damaged index itself, else as proven, else as listed."""
        for donor in self.donors:
            material = donor.listed_material(item, raw) if donor.is_own else donor.proven_material(item, raw)
            donated = None if material is None else donor.donated(material)
            if donated is not None:
                self._take(donor, is_proven=not donor.is_own)
                return donated
        for donor in self.donors:
            material = donor.listed_material(item, raw)
            donated = None if material is None else donor.donated(material)
            if donated is not None:
                self._take(donor, is_proven=False)
                return donated
        return None

    def _take(self, donor: Donor, *, is_proven: bool) -> None:
        if not donor.is_own:
            self.used.add(donor.base)
        if is_proven:
            self.proven.add(donor.base)

    def spans(self, content_hash: str) -> list[Span]:
        """Return the places of the units of a text, as the first donor has them."""
        return next((spans for donor in self.donors if (spans := donor.spans(content_hash))), [])

    def content(self, content_hash: str) -> str | None:
        """Return the text with a hash, from the first donor that has it."""
        found = (donor.content(content_hash) for donor in self.donors)
        return next((text for text in found if text is not None), None)


# The bases of a source as donors: that with the id of the repaired base first, each opened when it is needed.


class DonorBases:
    """The bases of a source that can be read; what keeps one out is in ``problems``, by its id."""

    def __init__(self, source: BaseSource, keep: ExitStack) -> None:
        self._source = source
        self._keep = keep
        self.problems: dict[str, str] = {}
        self._paths: dict[str, Path | None] = {}

    def each(self, base: str, gives: Callable[[Donor], bool]) -> Iterator[Donor]:
        """Yield the donors that give something to a base; these stay open, the others are closed."""
        own = [key for key in self._source.chosen if key == base]
        for key in (*own, *(key for key in self._source.chosen if key != base)):
            with ExitStack() as stack:
                donor = self._opened(key, base, stack)
                if donor is not None and self._asked(donor, gives):
                    self._keep.enter_context(stack.pop_all())
                    yield donor

    def _asked(self, donor: Donor, gives: Callable[[Donor], bool]) -> bool:
        try:
            return gives(donor)
        except READ_ERRORS as error:
            self.problems[donor.base] = str(error)
            self._paths[donor.base] = None
            return False

    def _opened(self, key: str, base: str, stack: ExitStack) -> Donor | None:
        path = self._path(key)
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

    def _path(self, key: str) -> Path | None:
        """Return the index file of a base of the source; None where it is damaged, or none that may be opened."""
        if key not in self._paths:
            self._paths[key] = self._proven_path(key)
        return self._paths[key]

    def _proven_path(self, key: str) -> Path | None:
        source = self._source
        one = source.store.stores.get(key)
        findings = list(source.store.audit(Level.SHAPE, frozenset({key})).findings)
        problem = source.problem(key, findings)
        if problem is None and one is None:
            problem = next((found for found in findings if found.base == key and found.name == v2.BASE_FAILED), None)
        if problem is not None:
            self.problems[key] = problem.message
        return None if one is None or problem is not None else source.store.root / one.name


# Opening the other copy: v2 data are read where they are, anything else is migrated into a temporary library first.


_PARQUET = b"PAR1"
_LIBRARY = "library"


def open_source(path: Path, store: Store, keep: ExitStack, now_ms: int) -> BaseSource:
    """Open a source of texts and vectors; it is only read.

    Args:
        path: what the user named.
        store: the store that is repaired.
        keep: what is opened, extracted or migrated stays until this closes.
        now_ms: the time of the run.

    Raises:
        WrongUsage: the source is the store itself.
        SourceNotMigratable: it has no bases with a known model.
        RegraftError: it cannot be recognized or read.
    """
    if is_parquet(path):
        library = keep.enter_context(durable.temporary_folder()) / _LIBRARY
        migrators.import_parquet((path,), library, migrators.Options(now_ms=now_ms), SilentProgress())
        return keep.enter_context(open_base_source(library, None, (), "repair"))
    with open_store(path, None) as found:
        if not found.is_archive and _is_same(found.tree.path, store.root):
            raise WrongUsage(
                problem=tr("--from {path}: this is the store that is to be repaired", path=printable(path)),
                hint=tr("name another copy of its data"),
            )
        has_v2 = any(one.look.layout is IndexLayout.CURRENT for one in found.stores.current)
        if found.kind in BASE_SOURCES and (has_v2 or not found.stores.has_preview):
            return keep.enter_context(open_base_source(path, None, (), "repair"))
        return keep.enter_context(open_base_source(_migrated(found, keep, now_ms), None, (), "repair"))


def _migrated(found: Located, keep: ExitStack, now_ms: int) -> Path:
    """Migrate v1 data, or those of a preview build, into a temporary library: every text and vector as it is."""
    if found.kind not in (*V1_SOURCES, *PREVIEW_SOURCES, *BASE_SOURCES):
        advice = tr("give a v1 backup or profile, a library, a pack, a v2 profile or backup, or a Parquet file")
        raise SourceNotMigratable(path=found.path, what=KIND_NAMES[found.kind], advice=advice)
    library = keep.enter_context(durable.temporary_folder()) / _LIBRARY
    migrators.migrate(found, library, migrators.Options(now_ms=now_ms), SilentProgress())
    return library


def _is_same(one: Path, other: Path) -> bool:
    return links.real_path(one) == links.real_path(other)


def is_parquet(path: Path) -> bool:
    """Whether a file begins as a Parquet file does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_PARQUET)) == _PARQUET


# Vectors that a base lacks: which another index has, whether it may give them, and writing them.
#
# Rules: ``docs/repair-from.md``, "When vectors are taken".


#: Texts that are looked up at once.
_AT_ONCE = 500
#: Texts whose vectors are compared before any is taken.
COMPARED = 8
#: Bodies of units; others are waste. The signs before columns keep SQLite from the indexes of these.
_IS_BODY = """t.embedding_text_hash > :after AND +t.target_type = 'search_unit' AND +t.kind = 'body'
   AND typeof(t.embedding_text_hash) = 'text'
   AND EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)"""
_LACKING = f"""SELECT DISTINCT t.embedding_text_hash FROM search_text t
   LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
   WHERE {_IS_BODY} AND (e.embedding_text_hash IS NULL OR NOT {IS_USABLE_SQL}) ORDER BY 1 LIMIT {_AT_ONCE}"""
_READY = f"""SELECT e.embedding_text_hash, e.vector_blob FROM embedding e
   WHERE e.embedding_text_hash > :after AND {IS_USABLE_SQL}
     AND EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = e.embedding_text_hash AND {_IS_BODY})
   ORDER BY 1 LIMIT {_AT_ONCE}"""
_PUT = """INSERT INTO embedding (embedding_text_hash, vector_blob, created_at) VALUES (?, ?, ?)
   ON CONFLICT (embedding_text_hash) DO UPDATE SET vector_blob = excluded.vector_blob,
     created_at = excluded.created_at"""


class BaseModel(msgspec.Struct, frozen=True):
    """The model of a base and the number of dimensions of its vectors; None: the base has none."""

    id: str | None
    dimensions: int | None

    @classmethod
    def of(cls, row: Row | None) -> BaseModel:
        """Return the model that a row of the catalog names."""
        model, dimensions = (row or {}).get("embedding_model_id"), (row or {}).get("dimensions")
        is_length = isinstance(dimensions, int) and dimensions > 0
        return cls(model if isinstance(model, str) else None, dimensions if is_length else None)

    @property
    def bytes(self) -> int:
        """The size of a vector."""
        return 4 * (self.dimensions or 0)


def read_missing_hashes(db: apsw.Connection, size: int) -> Iterator[list[str]]:
    """Yield the hashes of the texts of an open index that have no usable vector, ascending, some at once.

    Rows may be written between two steps.
    """
    sqlite.load_vector_extension(db)
    after = ""
    while keys := [str(key) for (key,) in db.execute(_LACKING, {"after": after, "length": size}).fetchall()]:
        yield keys
        after = keys[-1]


def find_hashes_without_vector(db: apsw.Connection, keys: Collection[str], size: int) -> list[str]:
    """Return those of some text hashes for which an open index has no usable vector."""
    sqlite.load_vector_extension(db)
    query = f"""SELECT e.embedding_text_hash FROM embedding e
       WHERE e.embedding_text_hash IN (SELECT value FROM json_each(:keys)) AND {IS_USABLE_SQL}"""
    wanted = {"keys": msgspec.json.encode(list(keys)).decode(), "length": size}
    ready = {key for (key,) in db.execute(query, wanted)}
    return [key for key in keys if key not in ready]


def find_disagreement(model: BaseModel, donor: Donor, index: Path | None) -> str | None:
    """Return why no vector of a donor may be taken; None where model, dimensions and compared vectors agree.

    Args:
        model: that of the base that is repaired.
        donor: an index of the source.
        index: the index of the base, or what is left of it; None: it is missing. Where it has no usable vector,
            nothing can be compared.

    Raises:
        apsw.Error, OSError: one of both cannot be read.
    """
    other = BaseModel.of(donor.row)
    if other.id != model.id:
        return tr("its model is {model}, and there it is {other}", model=model.id, other=other.id or tr("none"))
    if other.dimensions != model.dimensions:
        return tr(
            "its vectors have {dimensions} dimensions, and there they have {other}",
            dimensions=model.dimensions,
            other=other.dimensions,
        )
    return None if index is None else _differing(model, donor, index)


def _differing(model: BaseModel, donor: Donor, index: Path) -> str | None:
    compared, has_any, after = 0, False, ""
    with sqlite.open_readonly(index, vectors=True) as db:
        while rows := db.execute(_READY, {"after": after, "length": model.bytes}).fetchall():
            after, has_any = str(rows[-1][0]), True
            there = donor.vectors([str(key) for key, _ in rows], model.bytes)
            for key, vector in rows:
                if key in there and compared < COMPARED:
                    compared += 1
                    if there[key] != vector:
                        return tr("a text of both has another vector there ({key})", key=key)
            if compared == COMPARED:
                break
    if has_any and not compared:
        return tr("both have no text with a vector in common, so that no vectors can be compared")
    return None


class MissingHashes:
    """The hashes of texts of one base that lack a vector, in a temporary database."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        db.execute("CREATE TABLE wanted (hash TEXT PRIMARY KEY) WITHOUT ROWID")

    def add(self, keys: Iterable[str]) -> None:
        """Add hashes; each counts once."""
        self._db.executemany("INSERT INTO wanted VALUES (?) ON CONFLICT DO NOTHING", ((key,) for key in keys))

    def add_all(self, pages: Iterable[Collection[str]]) -> None:
        """Add hashes that come some at once."""
        for keys in pages:
            self.add(keys)

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._db.execute("SELECT count(*) FROM wanted").get)

    def pages(self) -> Iterator[list[str]]:
        """Yield the hashes, ascending, some at once."""
        after = ""
        query = f"SELECT hash FROM wanted WHERE hash > ? ORDER BY 1 LIMIT {_AT_ONCE}"
        while keys := [str(key) for (key,) in self._db.execute(query, (after,)).fetchall()]:
            yield keys
            after = keys[-1]

    def is_known_to(self, donor: Donor) -> bool:
        """Whether a donor has a vector for one of them."""
        return any(donor.has_any(keys) for keys in self.pages())

    def found_in(self, donors: Sequence[Donor], size: int) -> int:
        """Return how many have a vector of ``size`` bytes in one of the donors."""
        return sum(len(collect_vectors(donors, keys, size)) for keys in self.pages())


def collect_vectors(donors: Sequence[Donor], keys: Collection[str], size: int) -> dict[str, bytes]:
    """Return the vectors of text hashes, each from the first donor that has it."""
    vectors: dict[str, bytes] = {}
    for donor in donors:
        missing = [key for key in keys if key not in vectors]
        if missing:
            vectors.update(donor.vectors(missing, size))
    return vectors


def write_missing_vectors(
    db: apsw.Connection, *, path: Path, donors: Sequence[Donor], model: BaseModel, count: int, now_ms: int
) -> None:
    """Write the vectors that an open index lacks and the donors have.

    Raises:
        PlanOutdated: there are not as many as planned.
    """
    written = 0
    for keys in read_missing_hashes(db, model.bytes) if count else ():
        vectors = collect_vectors(donors, keys, model.bytes)
        db.executemany(_PUT, ((key, vector, now_ms) for key, vector in vectors.items()))
        written += len(vectors)
    if written != count:
        raise PlanOutdated(path=path, reason=tr("it was written to meanwhile"))
