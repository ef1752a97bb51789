"""Indexes that texts and vectors are taken from, each matched by content with what a base lacks.

Rules: ``docs/repair-from.md``, "What is matched".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.cherry_v2.catalog_rows import path_of
from regraft import identity, sqlite
from regraft.errors import WrongUsage
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.index.vector_lengths import USABLE
from regraft.text import decode_utf8
from repair.cherry_v2.indexing.cutting import Span
from repair.cherry_v2.indexing.new_texts import Donated
from repair.cherry_v2.indexing.texts import NoText, file_of, text_of
from repair.cherry_v2.restore.source import OldIndex

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
        db = keep.enter_context(sqlite.reading(path, vectors=True))
        db.execute(f"{_VECTORS.format(usable=USABLE)} LIMIT 0", {"keys": "[]", "length": 4})
        return cls(db, **about)

    # --- vectors -----------------------------------------------------------------------------------------------------

    def vectors(self, keys: Sequence[str], size: int) -> dict[str, bytes]:
        """Return the vectors of ``size`` bytes of these text hashes, as they are stored."""
        wanted = {"keys": msgspec.json.encode(list(keys)).decode(), "length": size}
        rows = self._db.execute(_VECTORS.format(usable=USABLE), wanted)
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

    def donated(self, material: str) -> Donated | None:
        """Return the text of a material with its units; None where one of both is not whole."""
        old = self._index.text(material)
        if old is None or not old.is_right or not old.spans:
            return None
        read: Callable[[apsw.Connection], str | None] = partial(self._again, identity.text_hash(old.text))
        return Donated(text=old.text, spans=old.spans, read=read)

    def materials(self) -> list[tuple[str, str]]:
        """Return the ids and paths of all materials."""
        query = "SELECT material_id, relative_path FROM material ORDER BY rowid"
        return [(str(material), str(path)) for material, path in self._db.execute(query)]

    def _again(self, content_hash: str, _index: apsw.Connection) -> str | None:
        return self.content(content_hash)

    # --- items -------------------------------------------------------------------------------------------------------

    def proven_material(self, item: Row, raw: Path) -> str | None:
        """Return the material that the file or the text of an item proves to be that of the item."""
        file = file_of(path_of(item), raw)
        if file is not None:
            for material, path in self._candidates(item, file):
                if self._is_same_file(file, path):
                    return material
        try:
            key = identity.text_hash(text_of(item, raw).text)
        except (NoText, WrongUsage):
            return None
        found: Any = self._db.execute(
            "SELECT min(material_id) FROM material WHERE current_content_hash = ?", (key,)
        ).get
        return None if found is None else str(found)

    def _candidates(self, item: Row, file: Path) -> Iterator[tuple[str, str]]:
        """Yield materials with their paths: that of the same id, that of the same path, those of files as long."""
        query = "SELECT material_id, relative_path FROM material WHERE material_id = ? OR relative_path = ? ORDER BY 1"
        yield from ((str(key), str(path)) for key, path in self._db.execute(query, (item.get("id"), path_of(item))))
        yield from self._by_size.get(file.stat().st_size, ())

    @cached_property
    def _by_size(self) -> dict[int, list[tuple[str, str]]]:
        found = defaultdict(list)
        for material, path in self._db.execute("SELECT material_id, relative_path FROM material ORDER BY 1"):
            file = None if self._raw is None else file_of(path, self._raw)
            if file is not None:
                found[file.stat().st_size].append((str(material), str(path)))
        return dict(found)

    def _is_same_file(self, file: Path, path: str) -> bool:
        other = None if self._raw is None else file_of(path, self._raw)
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
        file = file_of(path_of(item), raw)
        other = None if self._raw is None or self.is_own else file_of(found, self._raw)
        is_other = file is not None and other is not None and not self._is_same_file(file, str(found))
        return None if is_other else str(item.get("id"))


class Donors:
    """The donors of one base, in the order in which they are asked; implements the donor of ``indexing``."""

    def __init__(self, donors: Sequence[Donor]) -> None:
        self.donors = donors
        #: Bases of the source that a file or a text of the repaired base proves, and those that gave a text at all.
        self.proven: set[str] = set()
        self.used: set[str] = set()

    def text(self, item: Row, raw: Path) -> Donated | None:
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
