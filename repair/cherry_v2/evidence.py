"""Derive the correct values of catalog rows from a base's index and files.

What cannot be read, or is damaged itself, is no evidence. Rules: ``docs/formats/catalog.md``, "What follows from what".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import apsw
import msgspec

from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import MODES, find_base_problem
from checks.cherry_v2.raw_files import find_path_problem
from regraft import identity
from regraft.disk import file_paths, links, sqlite
from regraft.disk.file_paths import PROCESSED_EXTENSIONS
from regraft.formats import json_text, okf
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.catalog_reader import (
    DATA_FIELDS,
    Row,
    dump_item_data,
    find_data_problem,
    parse_item_data,
)
from regraft.formats.cherry_v2.index.schema import stated_dimensions
from regraft.language import tr
from regraft.report.notices import MISSING_MODEL, MISSING_STORE
from regraft.text import decode_utf8, is_blank, replace_surrogates, utf16_cut, utf16_len
from repair.changes.store import Store

Result = TypeVar("Result")
#: Findings with which an index is no evidence: it is damaged, or belongs to another base.
DAMAGE = {v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING, v2.SCHEMA_VERSION, v2.SCHEMA_PREVIEW, v2.META_BASE}
#: In bytes. The longest snapshot is a note of a million UTF-16 units with its front matter.
_LARGEST_SNAPSHOT = 64 << 20
#: The number of vectors by length in bytes; 0 counts values that cannot be vectors.
_LENGTHS = """SELECT iif(typeof(vector_blob) = 'blob' AND length(vector_blob) % 4 = 0, length(vector_blob), 0), count(*)
  FROM embedding GROUP BY 1"""
_UNREADABLE = (apsw.Error, OSError, UnicodeDecodeError, ValueError)


class Snapshot(msgspec.Struct, frozen=True):
    """The text of a note or web page below ``raw/``: body and string fields of the front matter of a Markdown file."""

    fields: dict[str, str]
    body: str


class Evidence:
    """What the index and the raw files of one base prove about its catalog rows. Opened by :func:`open_evidence`."""

    def __init__(
        self, db: apsw.Connection | None, raw: Path | None, *, is_missing: bool, drops_lengths: bool = False
    ) -> None:
        """Wrap an open index and a folder of raw files.

        Args:
            db: the index; None if it is missing or no evidence.
            raw: the folder of raw files, if known.
            is_missing: whether the base has no index file.
            drops_lengths: whether the same run deletes vectors of an unexpected length.
        """
        self._db = db
        self._raw = raw
        #: Whether the same run deletes vectors of an unexpected length.
        self._drops_lengths = drops_lengths
        #: Whether the base has no index file.
        self.is_missing = is_missing

    @property
    def is_readable(self) -> bool:
        """Whether the base has an index that can be read and counts as evidence."""
        return self._db is not None

    def has_material(self, item: str) -> bool | None:
        """Whether the index has a material for the item with this id; None if the index cannot be read."""
        if self.is_missing:
            return False
        return self._query(lambda db: db.execute("SELECT 1 FROM material WHERE material_id = ?", (item,)).get == 1)

    def path_of(self, item: str) -> str | None:
        """Return the path below ``raw/`` that the index has for the item with this id; None without a valid one."""
        raw = self._query(
            lambda db: db.execute("SELECT CAST(relative_path AS BLOB) FROM material WHERE material_id = ?", (item,)).get
        )
        return raw.decode() if raw is not None and find_path_problem(raw) is None else None

    def text_of(self, item: str) -> str | None:
        """Return the indexed text of the item with this id; None if it is missing or its hash does not match."""
        row = self._query(
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
        """Read the file at a path below ``raw/``; None if it does not exist, is too large, or is not UTF-8."""
        if self._raw is None or path is None or find_path_problem(path.encode("utf-8", "replace")) is not None:
            return None
        file = self._raw / path
        try:
            if not file_paths.is_file(file) or file_paths.stat(file).st_size > _LARGEST_SNAPSHOT:
                return None
            text = decode_utf8(links.read_bytes(file))
        except (OSError, ValueError):
            return None
        body = okf.strip_block(text)
        return Snapshot(dict(_parse_fields(text[: len(text) - len(body)])), body)

    def may_be_processed(self, path: str) -> bool:
        """Whether the file at a path below ``raw/`` can be the processed copy of a file beside it.

        For some types, the application indexes a Markdown file instead (``docs/formats/catalog.md``).
        """
        stem, dot, extension = path.rpartition(".")
        if self._raw is None or not dot or extension.lower() != "md":
            return False
        folder, _, name = stem.rpartition("/")
        try:
            beside = file_paths.names_in(self._raw / folder)
        except OSError:
            return False
        originals = {f"{name}{suffix}" for suffix in PROCESSED_EXTENSIONS}
        if PurePosixPath(name).suffix.lower() in PROCESSED_EXTENSIONS:
            originals.add(name)
        return any(one.lower() in {original.lower() for original in originals} for one in beside)

    def find_dimensions(self, *, by_majority: bool = True) -> int | None:
        """Return the number of dimensions of the base's vectors: 0 without vectors, None if they differ or are unknown.

        Vectors that the same run deletes do not count.

        Args:
            by_majority: whether the run deletes vectors of another length than most, as it does if the catalog states
                no dimensions.
        """
        lengths = self._query(lambda db: dict(db.execute(_LENGTHS)))
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

    def _query(self, query: Callable[[apsw.Connection], Result]) -> Result | None:
        """Return the result of a query on the index; None without a readable index."""
        if self._db is None:
            return None
        try:
            return query(self._db)
        except _UNREADABLE:
            return None


def _parse_fields(block: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of the string fields in the front matter of a snapshot."""
    for line in block.split("\n"):
        name, colon, value = line.partition(": ")
        try:
            found = json_text.loads(value) if colon else None
        except ValueError:
            continue
        if isinstance(found, str):
            yield name, found


@contextmanager
def open_evidence(
    store: Store, base: str, findings: Iterable[Finding], *, drops_lengths: bool = False
) -> Iterator[Evidence]:
    """Open the index and raw files of a base. An index that the findings report as damaged is not used.

    Args:
        store: the store of the base.
        base: its id.
        findings: findings of the audit in the base.
        drops_lengths: whether the same run deletes vectors of an unexpected length.
    """
    one = store.stores.get(base)
    with ExitStack() as stack:
        db = None
        if one is not None and DAMAGE.isdisjoint(finding.name for finding in findings):
            try:
                db = stack.enter_context(sqlite.open_readonly(store.root / one.name))
            except _UNREADABLE:
                db = None
        yield Evidence(
            db, None if one is None else store.root / one.raw, is_missing=one is None, drops_lengths=drops_lengths
        )


# --- data of items --------------------------------------------------------------------------------------------------
#
# A missing field is derived from other fields, the material and the snapshot. It is never guessed.


ItemData = dict[str, Any]


def repair_item_data(item: Row, evidence: Evidence) -> str | None:
    """Complete the ``data`` of an item's row from what is known of it, as JSON; None if that does not suffice."""
    stored = item.get("data")
    readable = {**item, "data": stored.decode("utf-8", "replace")} if isinstance(stored, bytes) else item
    data = parse_item_data(readable)
    needed, more = DATA_FIELDS[str(item.get("type"))]
    for name in (*needed, *more):
        # Only the content of a note may be blank.
        if not isinstance(data.get(name), str) or (name != "content" and name in needed and is_blank(data[name])):
            data.pop(name, None)
    _REPAIR_BY_TYPE[str(item.get("type"))](data, str(item.get("id")), evidence)
    in_order = {name: data[name] for name in (*needed, *more) if name in data} | data
    text = dump_item_data(in_order)
    return text if find_data_problem({**item, "data": text}) is None else None


def _repair_file(data: ItemData, item: str, evidence: Evidence) -> None:
    """Complete the path fields and the source of a file in ``data``, from the path of its material.

    Like all functions of :data:`_REPAIR_BY_TYPE`: ``data`` is changed in place, ``item`` is the item's id.
    """
    path = evidence.path_of(item)
    if path is not None and path != data.get("indexedRelativePath"):
        if "relativePath" not in data:
            # The material may be a processed copy of the file; then its path is not that of the file.
            if evidence.may_be_processed(path):
                return
            data["relativePath"] = path
        elif path != data["relativePath"]:
            data.setdefault("indexedRelativePath", path)
    # A virtual path does not tell the source of the file.
    if data.get("relativePath") not in (None, item):
        data.setdefault("source", data["relativePath"])


def _repair_url(data: ItemData, item: str, evidence: Evidence) -> None:
    """Complete the fields ``source`` and ``url`` of a web page from each other, or from its snapshot."""
    _repair_snapshot_path(data, item, evidence)
    address = data.get("url", data.get("source"))
    if address is None:
        snapshot = evidence.snapshot(data.get("relativePath"))
        address = None if snapshot is None else snapshot.fields.get("resource")
    if address is not None:
        data.setdefault("source", address)
        data.setdefault("url", address)


def _repair_note(data: ItemData, item: str, evidence: Evidence) -> None:
    """Complete ``content`` and ``source`` of a note from its indexed text and its snapshot."""
    _repair_snapshot_path(data, item, evidence)
    snapshot = None
    if "source" not in data or "content" not in data:
        snapshot = evidence.snapshot(data.get("relativePath"))
    if "content" not in data:
        text = evidence.text_of(item)
        text = snapshot.body if text is None and snapshot is not None else text
        if text is None:
            return
        data["content"] = text
    if "source" not in data:
        title = None if snapshot is None else snapshot.fields.get("title")
        data["source"] = data["content"] if is_blank(title) else title
    _shorten_note(data, item, evidence)


def _shorten_note(data: ItemData, item: str, evidence: Evidence) -> None:
    """Shorten a note that is too long for the application, if its index has the whole text."""
    content = replace_surrogates(data["content"])
    if utf16_len(content) > MAX_NOTE_UNITS:
        indexed = evidence.text_of(item)
        if indexed is not None and identity.text_hash(indexed) == identity.text_hash(content):
            data["content"] = utf16_cut(content, MAX_NOTE_UNITS)


def _repair_snapshot_path(data: ItemData, item: str, evidence: Evidence) -> None:
    """Set ``relativePath``, if missing, to the path of the item's material."""
    path = evidence.path_of(item)
    if path not in (None, item):
        data.setdefault("relativePath", path)


_REPAIR_BY_TYPE: dict[str, Callable[[ItemData, str, Evidence], None]] = {
    "file": _repair_file,
    "url": _repair_url,
    "note": _repair_note,
    # No data shows the path of a folder, because its files can come from folders below it.
    "directory": lambda *_: None,
}


# --- rows of bases --------------------------------------------------------------------------------------------------
#
# A completed base always has an index. A failed base has one only after ``migrate --carry-text``, without vectors.


Columns = dict[str, Any]


def repair_base(
    row: Row, models: Collection[Any] | None, evidence: Evidence, model: str | None = None
) -> Columns | str:
    """Return the columns of a base's row that must change with their new values, or why they cannot be derived.

    Args:
        row: the base.
        models: ids of the existing models; None: unknown.
        evidence: its index and files.
        model: the model that the user named for vectors of a base without one.
    """
    new = dict(row)
    reason = _repair_base_status(new, models, evidence)
    vectors = evidence.find_dimensions()
    if stated_dimensions(new) is None:
        new["dimensions"] = vectors or None
    if reason is None and new["status"] == "completed":
        reason = _repair_model(new, vectors, models, model) or _repair_search_mode(new, vectors)
    if reason is None:
        reason = find_base_problem(new)
    return reason if reason is not None else {name: new[name] for name in new if new[name] != row.get(name)}


def repair_dimensions(evidence: Evidence) -> Columns | str:
    """Return the column ``dimensions`` with the value that all vectors of the base have, or why it is unknown."""
    found = evidence.find_dimensions(by_majority=False)
    return {"dimensions": found} if found else tr("its vectors have different lengths")


def _repair_base_status(new: Row, models: Collection[Any] | None, evidence: Evidence) -> str | None:
    """Correct status and error in ``new``, the row of a base, from the state of its index.

    Args:
        new: the row, changed in place.
        models: ids of the existing models; None: unknown.
        evidence: the base's index and files.

    Returns:
        Why the status cannot be derived, or None.
    """
    status, error = new.get("status"), new.get("error")
    if (status == "completed" and error is None) or (status == "failed" and not is_blank(error)):
        return None
    if evidence.is_readable:
        new["status"], new["error"] = "completed", None
    elif not evidence.is_missing:
        return tr("its index cannot be read, so it is unknown whether it failed")
    else:
        new["status"] = "failed"
        new["error"] = _why_failed(new.get("embedding_model_id"), models) if is_blank(error) else error
    return None


def _why_failed(model: Any, models: Collection[Any] | None) -> str:
    """Return the error of a failed base without an index: its model is missing, or, if that exists, its store.

    ``models`` are the ids of the existing models; None: unknown.
    """
    is_gone = model is None or (models is not None and model not in models)
    return MISSING_MODEL if is_gone else MISSING_STORE


def _repair_model(new: Row, vectors: int | None, models: Collection[Any] | None, model: str | None) -> str | None:
    """Give ``new``, the row of a completed base with vectors and without a model, the model that the user named.

    Args:
        new: the row, changed in place.
        vectors: dimensions of its vectors; 0: there are no vectors; None: they differ.
        models: ids of the existing models; None: unknown.
        model: the named model, if any.

    Returns:
        Why that is not possible, or None.
    """
    if new.get("embedding_model_id") is not None or vectors == 0:
        return None
    if model is None:
        return tr(
            "it has no model, and the model of its vectors is unknown; if you know it, run regraft repair --model ID"
        )
    if models is not None and model not in models:
        return tr("the catalog has no model {model}: add it in the application first", model=model)
    if vectors is None:
        return tr("its vectors have different lengths")
    new["embedding_model_id"], new["dimensions"] = model, vectors
    return None


def _repair_search_mode(new: Row, vectors: int | None) -> str | None:
    """Make dimensions and search mode in ``new``, the row of a completed base, fit its model.

    ``vectors`` are the dimensions of its vectors (0: there are no vectors, None: they differ). Returns why that is not
    possible, or None.
    """
    if new.get("embedding_model_id") is None:
        new["dimensions"] = None
        if "search_mode" in new:
            new["search_mode"] = "bm25"
    elif new["dimensions"] is None:
        return (
            tr("its vectors have different lengths")
            if vectors is None
            else tr("it has no vectors that show its dimensions")
        )
    # Only the hybrid mode has the weight ``hybrid_alpha``.
    if "search_mode" in new and new["search_mode"] not in MODES and new.get("hybrid_alpha") is not None:
        new["search_mode"] = "hybrid"
    return None
