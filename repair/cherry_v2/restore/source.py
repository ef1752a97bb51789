"""The base that is restored: its rows in the catalog, and the texts that its index and its files have."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import identity, links, long_paths, sqlite
from regraft.base_names import meant
from regraft.errors import NotChanged, NotRestored, UnitRefused, WrongUsage
from regraft.formats.cherry_preview.libsql import Layout
from regraft.formats.cherry_v2.catalog_reader import Row, base_key
from regraft.formats.cherry_v2.index.opening import UNREADABLE
from regraft.formats.cherry_v2.index.units import cut
from regraft.formats.cherry_v2.layout import DATA_FOLDER, INDEX_FILE, RAW_FOLDER
from regraft.kinds import NAMES
from regraft.language import joined, tr
from regraft.ledger import durable
from regraft.locate import KNOWLEDGE_FOLDER
from regraft.text import decode_utf8, is_blank, path_text, shown
from repair.changes.store import Store
from repair.cherry_v2.catalogs import catalog_of
from repair.cherry_v2.indexing.cutting import Span


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A base of a library or profile, with its items (without what they hold) in their order."""

    store: Store
    row: Row
    items: list[Row]
    #: Ids of all bases, of all models, and of those providers that are there; None where there is no such table.
    bases: frozenset[str]
    models: dict[Any, Row]
    providers: frozenset[Any]

    @property
    def key(self) -> str:
        """Return the base's id."""
        return base_key(self.row)

    @property
    def catalog(self) -> Path:
        """Return where the catalog is."""
        return self.store.root / str(self.store.catalog)

    def folder(self, base: str) -> str:
        """Return where the folder of a base is, below the store's root."""
        inside = f"{DATA_FOLDER}/{KNOWLEDGE_FOLDER}" if self.store.is_profile else KNOWLEDGE_FOLDER
        return f"{self.store.bases or inside}/{base}"

    @property
    def raw(self) -> Path:
        """Return the folder of its raw files."""
        return self.store.root / self.folder(self.key) / RAW_FOLDER

    @property
    def index(self) -> Path:
        """Return where its index is, if it has one."""
        one = self.store.stores.get(self.key)
        return self.store.root / (f"{self.folder(self.key)}/{INDEX_FILE}" if one is None else one.name)

    def mark(self) -> str:
        """Return what tells whether anything of it was changed since: a hash of its rows, and of its files' times."""
        digest = hashlib.sha256()
        with sqlite.reading(self.catalog) as db:
            for table, key in (("knowledge_base", "id"), ("knowledge_item", "base_id")):
                columns = [str(row[1]) for row in db.execute(f"PRAGMA table_info('{table}')")]
                for row in sqlite.lenient_rows(db, columns, f"{table} WHERE {key} = ? ORDER BY rowid", (self.key,)):
                    digest.update(repr(row).encode("utf-8", "replace"))
        files = [self.index, *(sqlite.companions(links.real_path(self.index)) if self.index.exists() else ())]
        for file in (*files, *_files(self.raw)):
            with suppress(OSError):
                status = file.stat()
                name = path_text(os.path.relpath(file, self.store.root))
                digest.update(repr((name, status.st_size, status.st_mtime_ns)).encode())
        return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in long_paths.walk(folder, durable.whole):
        folders.sort()
        yield from (Path(place) / name for name in sorted(names))


def read_source(store: Store, wanted: str | None) -> Source:
    """Find the base that is meant; ``wanted`` is its id in v2, or the one that it had in v1.

    Raises:
        NotChanged: there is no catalog, which says what the base is.
        SourceUnreadable: the catalog cannot be read.
        BaseUnknown, WrongUsage: no base of the id is there, or it is not said which one of several is meant.
        NotRestored: its texts are in the table of a preview build.
    """
    if store.catalog is None:
        what, advice = (
            tr("{names} without a catalog", names=NAMES[store.found.kind]),
            tr("give the library or profile that it is of"),
        )
        raise NotChanged(path=store.path, what=what, command="restore", advice=advice)
    catalog = catalog_of(store, data=False)
    rows = {base_key(row): row for row in catalog.bases}
    key = _chosen(store, rows, wanted)
    one = store.stores.get(key)
    if one is not None and one.look.layout is Layout.PREVIEW:
        reason = tr(
            "its texts are in the table of a preview build; regraft upgrade brings them to the current layout first"
        )
        raise NotRestored(path=store.path, base=key, reason=reason)
    return Source(
        store=store,
        row=rows[key],
        items=(catalog.items or {}).get(key, []),
        bases=frozenset(rows),
        models={row.get("id"): row for row in catalog.models or ()},
        providers=frozenset(row.get("provider_id") for row in catalog.providers or ()),
    )


def _chosen(store: Store, rows: dict[str, Row], wanted: str | None) -> str:
    if wanted is None and len(rows) == 1:
        return next(iter(rows))
    if wanted is None:
        problem = tr("{path} has {rows} bases", path=shown(store.path), rows=len(rows))
        raise WrongUsage(problem=problem, hint=tr("give --base, one of {rows}", rows=joined(rows)))
    return meant(wanted, {base: str(row.get("name")) for base, row in rows.items()})


# --- texts -----------------------------------------------------------------------------------------------------------

#: Texts as bytes: the application stores halves of surrogate pairs, which are no UTF-8.
_UNITS = """SELECT u.char_start, u.char_end, CASE typeof(t.text) WHEN 'text' THEN CAST(t.text AS BLOB) END
  FROM search_unit u
  CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id AND t.kind = 'body'
 WHERE u.material_id = ? ORDER BY u.unit_index, u.unit_id"""
_CONTENT = """SELECT c.content_hash, CASE typeof(c.text) WHEN 'text' THEN CAST(c.text AS BLOB) END
  FROM material m JOIN content c ON c.content_hash = m.current_content_hash
 WHERE m.material_id = ?"""


class OldText(msgspec.Struct, frozen=True):
    """A text of an index, and where its units begin and end (None: not as they are stored)."""

    text: str
    spans: list[Span] | None
    #: Whether it is what its hash says.
    is_right: bool


class OldIndex:
    """The index of the base that is restored, as far as it can be read; what cannot is not there."""

    def __init__(self, db: apsw.Connection | None, problem: str | None) -> None:
        self._db = db
        #: Why it cannot be read, or not all of it; None where it can.
        self.problem = problem

    def text(self, item: str) -> OldText | None:
        """Return the text of an item; None where there is none."""
        if self._db is None:
            return None
        try:
            key, text = next(self._db.execute(_CONTENT, (item,)), (None, None))
            units = self._db.execute(_UNITS, (item,)).fetchall()
        except UNREADABLE as error:
            self.problem = str(error)
            return None
        text = None if text is None else decode_utf8(text)
        if text is None or is_blank(text):
            return None
        return OldText(text, _proven(text, units), identity.text_hash(text) == key)


def _proven(text: str, units: list[Any]) -> list[Span] | None:
    try:
        spans = [(int(start), int(end)) for start, end, _ in units]
        bodies = [unit.text for unit in cut("", text, spans)]
    except (UnitRefused, TypeError, ValueError):
        return None
    return spans if spans and bodies == [None if body is None else decode_utf8(body) for _, _, body in units] else None


@contextmanager
def opened_index(source: Source) -> Iterator[OldIndex]:
    """Open the index of the base that is restored, if it has one that can be read."""
    with ExitStack() as stack:
        db, problem = None, None
        if source.index.exists():
            try:
                db = stack.enter_context(sqlite.reading(source.index))
                db.execute(f"{_CONTENT} LIMIT 0", ("",))
                db.execute(f"{_UNITS} LIMIT 0", ("",))
            except UNREADABLE as error:
                db, problem = None, str(error)
        yield OldIndex(db, problem)
