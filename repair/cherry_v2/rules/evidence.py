"""What a base's index and its files tell of its rows in the catalog: what a mended row is derived from.

Whatever cannot be read, or is damaged itself, tells nothing. Rules: ``docs/formats/catalog.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeVar

import apsw
import msgspec

from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.index_file import path_problem
from regraft import identity, links, sqlite
from regraft.formats import json_text
from regraft.formats.cherry_v2 import okf
from regraft.names import PROCESSED_EXTENSIONS
from regraft.text import decode_utf8
from repair.changes.store import Store

Result = TypeVar("Result")
#: Findings with which an index tells nothing, or tells of another base.
DAMAGE = {v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING, v2.SCHEMA_VERSION, v2.SCHEMA_PREVIEW, v2.META_BASE}
#: The longest snapshot is a note of a million units with its block.
_LARGEST_SNAPSHOT = 64 << 20
_UNREADABLE = (apsw.Error, OSError, UnicodeDecodeError, ValueError)


class Snapshot(msgspec.Struct, frozen=True):
    """A file of ``raw/``: its body, and the texts of its block."""

    fields: dict[str, str]
    body: str


class Evidence:
    """What there is of one base besides its rows; made by :func:`evidence_of`."""

    def __init__(
        self, db: apsw.Connection | None, raw: Path | None, *, is_missing: bool, drops_lengths: bool = False
    ) -> None:
        self._db = db
        self._raw = raw
        #: Whether vectors of another length than most are dropped by the same run.
        self._drops_lengths = drops_lengths
        #: Whether the base has no index file at all.
        self.is_missing = is_missing

    @property
    def is_readable(self) -> bool:
        """Tell whether the base has an index that tells something."""
        return self._db is not None

    def has_material(self, item: str) -> bool | None:
        """Tell whether an item is indexed; None where nobody knows."""
        if self.is_missing:
            return False
        return self._asked(lambda db: db.execute("SELECT 1 FROM material WHERE material_id = ?", (item,)).get == 1)

    def path_of(self, item: str) -> str | None:
        """Return the path of an item's material; None where there is none, or none that is one."""
        raw = self._asked(
            lambda db: db.execute("SELECT CAST(relative_path AS BLOB) FROM material WHERE material_id = ?", (item,)).get
        )
        return raw.decode() if raw is not None and path_problem(raw) is None else None

    def text_of(self, item: str) -> str | None:
        """Return the text that is indexed of an item; None where there is none, or not the one of its hash."""
        row = self._asked(
            lambda db: db.execute(
                "SELECT c.content_hash, c.text FROM material m JOIN content c ON c.content_hash ="
                " m.current_content_hash WHERE m.material_id = ?",
                (item,),
            ).fetchone()
        )
        if row is None or not isinstance(row[1], str) or identity.text_hash(row[1]) != row[0]:
            return None
        return row[1]

    def snapshot(self, path: str | None) -> Snapshot | None:
        """Return a file of ``raw/``; None where there is none."""
        if self._raw is None or path is None or path_problem(path.encode("utf-8", "replace")) is not None:
            return None
        file = self._raw / path
        try:
            if not file.is_file() or file.stat().st_size > _LARGEST_SNAPSHOT:
                return None
            text = decode_utf8(links.content(file))
        except (OSError, ValueError):
            return None
        body = okf.strip_block(text)
        return Snapshot(dict(_fields(text[: len(text) - len(body)])), body)

    def may_be_processed(self, path: str) -> bool:
        """Tell whether a file of ``raw/`` may be what was made of another one that lies beside it.

        The application indexes a Markdown file in place of some types (``docs/formats/catalog.md``).
        """
        stem, dot, extension = path.rpartition(".")
        if self._raw is None or not dot or extension.lower() != "md":
            return False
        folder, _, name = stem.rpartition("/")
        try:
            beside = [one.name for one in (self._raw / folder).iterdir()]
        except OSError:
            return False
        originals = {f"{name}{suffix}" for suffix in PROCESSED_EXTENSIONS}
        if PurePosixPath(name).suffix.lower() in PROCESSED_EXTENSIONS:
            originals.add(name)
        return any(one.lower() in {original.lower() for original in originals} for one in beside)

    def vectors(self, *, by_majority: bool = True) -> int | None:
        """Return the dimensions that all vectors have, 0 where there are no vectors; None where they differ.

        Vectors that the same run drops do not count.

        Args:
            by_majority: whether the run drops vectors of another length than most have. It does where the catalog has
                no dimensions to compare them with.
        """
        lengths = self._asked(_lengths)
        if lengths is None:
            return None
        if self._drops_lengths:
            lengths.pop(0, None)
        if self._drops_lengths and by_majority:
            usual, count = max(lengths.items(), key=lambda one: one[1], default=(0, 0))
            lengths = {usual: count} if 2 * count > sum(lengths.values()) else lengths
        if len(lengths) > 1:
            return None
        return next(((length // 4) or None for length in lengths), 0)

    def _asked(self, query: Callable[[apsw.Connection], Result]) -> Result | None:
        if self._db is None:
            return None
        try:
            return query(self._db)
        except _UNREADABLE:
            return None


def _lengths(db: apsw.Connection) -> dict[int, int]:
    """Return how many vectors there are of each length in bytes; 0: of one that no vector can have."""
    return dict(
        db.execute(
            "SELECT iif(typeof(vector_blob) = 'blob' AND length(vector_blob) % 4 = 0, length(vector_blob), 0), count(*)"
            " FROM embedding GROUP BY 1"
        )
    )


def _fields(block: str) -> Iterator[tuple[str, str]]:
    for line in block.split("\n"):
        name, colon, value = line.partition(": ")
        try:
            found = json_text.loads(value) if colon else None
        except ValueError:
            continue
        if isinstance(found, str):
            yield name, found


@contextmanager
def evidence_of(
    store: Store, base: str, findings: Iterable[Finding], *, drops_lengths: bool = False
) -> Iterator[Evidence]:
    """Open what there is of a base.

    Args:
        store: where it is.
        base: its id.
        findings: what the audit found in it.
        drops_lengths: whether vectors of another length than most are dropped by the same run.
    """
    one = store.stores.get(base)
    with ExitStack() as stack:
        db = None
        if one is not None and DAMAGE.isdisjoint(finding.name for finding in findings):
            try:
                db = stack.enter_context(sqlite.reading(store.root / one.name))
            except _UNREADABLE:
                db = None
        yield Evidence(
            db, None if one is None else store.root / one.raw, is_missing=one is None, drops_lengths=drops_lengths
        )
