"""What a base's index and its files tell of its rows in the catalog: what a mended row is derived from.

Whatever cannot be read, or is damaged itself, tells nothing. Rules: ``docs/formats/catalog.md``.
"""

from __future__ import annotations

import json
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
from regraft.disk import links, sqlite
from regraft.disk.file_paths import PROCESSED_EXTENSIONS
from regraft.formats import json_text, okf
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.catalog_reader import DATA_FIELDS, Row, find_data_problem, parse_item_data
from regraft.language import tr
from regraft.report.notices import MISSING_MODEL, MISSING_STORE
from regraft.text import decode_utf8, is_blank, replace_surrogates, utf16_cut, utf16_len
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
        return raw.decode() if raw is not None and find_path_problem(raw) is None else None

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
        if self._raw is None or path is None or find_path_problem(path.encode("utf-8", "replace")) is not None:
            return None
        file = self._raw / path
        try:
            if not file.is_file() or file.stat().st_size > _LARGEST_SNAPSHOT:
                return None
            text = decode_utf8(links.read_bytes(file))
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
def open_evidence(
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
                db = stack.enter_context(sqlite.open_readonly(store.root / one.name))
            except _UNREADABLE:
                db = None
        yield Evidence(
            db, None if one is None else store.root / one.raw, is_missing=one is None, drops_lengths=drops_lengths
        )


# Mending what an item holds: a field that is missing, from those that are there, its material and its snapshot.
#
# Rules: ``docs/formats/catalog.md``, "What follows from what". A field that nothing tells is never made up.


ItemData = dict[str, Any]


def repair_item_data(item: Row, evidence: Evidence) -> str | None:
    """Return the data of an item as it has to be, as JSON; None where that cannot be derived."""
    stored = item.get("data")
    readable = {**item, "data": stored.decode("utf-8", "replace")} if isinstance(stored, bytes) else item
    data = parse_item_data(readable)
    needed, more = DATA_FIELDS[str(item.get("type"))]
    for name in (*needed, *more):
        # Only what a note holds may be empty.
        if not isinstance(data.get(name), str) or (name != "content" and name in needed and is_blank(data[name])):
            data.pop(name, None)
    _REPAIR_BY_TYPE[str(item.get("type"))](data, str(item.get("id")), evidence)
    in_order = {name: data[name] for name in (*needed, *more) if name in data} | data
    text = _as_json(in_order)
    return text if find_data_problem({**item, "data": text}) is None else None


def _as_json(data: ItemData) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which only JSON can hold
        return json.dumps(data, separators=(",", ":"))
    return text


def _repair_file(data: ItemData, item: str, evidence: Evidence) -> None:
    path = evidence.path_of(item)
    if path is not None and path != data.get("indexedRelativePath"):
        if "relativePath" not in data:
            # The material may be of what was made of the file: then its path is not the file's.
            if evidence.may_be_processed(path):
                return
            data["relativePath"] = path
        elif path != data["relativePath"]:
            data.setdefault("indexedRelativePath", path)
    # A virtual path tells nothing of where the file came from.
    if data.get("relativePath") not in (None, item):
        data.setdefault("source", data["relativePath"])


def _repair_url(data: ItemData, item: str, evidence: Evidence) -> None:
    _repair_snapshot_path(data, item, evidence)
    address = data.get("url", data.get("source"))
    if address is None:
        snapshot = evidence.snapshot(data.get("relativePath"))
        address = None if snapshot is None else snapshot.fields.get("resource")
    if address is not None:
        data.setdefault("source", address)
        data.setdefault("url", address)


def _repair_note(data: ItemData, item: str, evidence: Evidence) -> None:
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
    """Cut a note that is too long for the application, where its index has all of it."""
    content = replace_surrogates(data["content"])
    if utf16_len(content) > MAX_NOTE_UNITS:
        indexed = evidence.text_of(item)
        if indexed is not None and identity.text_hash(indexed) == identity.text_hash(content):
            data["content"] = utf16_cut(content, MAX_NOTE_UNITS)


def _repair_snapshot_path(data: ItemData, item: str, evidence: Evidence) -> None:
    path = evidence.path_of(item)
    if path not in (None, item):
        data.setdefault("relativePath", path)


def _repair_directory(_data: ItemData, _item: str, _evidence: Evidence) -> None:
    """Nothing tells where a folder lay: its files may come from folders below it."""


_REPAIR_BY_TYPE = {"file": _repair_file, "url": _repair_url, "note": _repair_note, "directory": _repair_directory}


# Mending rows of ``knowledge_base`` from what there is of the base: its index, its vectors, its model.
#
# Rules: ``docs/formats/catalog.md``, "What follows from what". A completed base always has an index; a failed one has one
# only where its texts were carried by themselves (``migrate --carry-text``), without a vector.


Columns = dict[str, Any]


def repair_base(
    row: Row, models: Collection[Any] | None, evidence: Evidence, model: str | None = None
) -> Columns | str:
    """Return the columns of a base that have to change, or why that cannot be told.

    Args:
        row: the base.
        models: ids of the models that there are; None where that is not known.
        evidence: what there is of it.
        model: the model of its vectors, as a person says, where it has none.
    """
    new = dict(row)
    reason = _repair_base_status(new, models, evidence)
    vectors = evidence.vectors()
    if not _is_length(new.get("dimensions")):
        new["dimensions"] = vectors or None
    if reason is None and new["status"] == "completed":
        reason = _repair_model(new, vectors, models, model) or _repair_search_mode(new, vectors)
    if reason is None and find_base_problem(new) is not None:
        reason = find_base_problem(new)
    return reason if reason is not None else {name: new[name] for name in new if new[name] != row.get(name)}


def repair_dimensions(evidence: Evidence) -> Columns | str:
    """Return the dimensions that the vectors of a base have, or why that cannot be told."""
    found = evidence.vectors(by_majority=False)
    return {"dimensions": found} if found else tr("its vectors are not all of one length")


def _is_length(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _repair_base_status(new: Row, models: Collection[Any] | None, evidence: Evidence) -> str | None:
    status, error = new.get("status"), new.get("error")
    if (status == "completed" and error is None) or (status == "failed" and not is_blank(error)):
        return None
    if evidence.is_readable:
        new["status"], new["error"] = "completed", None
    elif not evidence.is_missing:
        return tr("its index cannot be read, so that nobody knows whether it failed")
    else:
        new["status"] = "failed"
        new["error"] = _why_failed(new.get("embedding_model_id"), models) if is_blank(error) else error
    return None


def _why_failed(model: Any, models: Collection[Any] | None) -> str:
    """Return the error of a base without an index, by its model and those that there are."""
    is_gone = model is None or (models is not None and model not in models)
    return MISSING_MODEL if is_gone else MISSING_STORE


def _repair_model(new: Row, vectors: int | None, models: Collection[Any] | None, model: str | None) -> str | None:
    """Give a completed base with vectors the model that a person says they are of."""
    if new.get("embedding_model_id") is not None or vectors == 0:
        return None
    if model is None:
        return tr("it has no model, and which one made its vectors is not known; regraft repair --model ID says it")
    if models is not None and model not in models:
        return tr("the catalog has no model {model}: add it in the application first", model=model)
    if vectors is None:
        return tr("its vectors are not all of one length")
    new["embedding_model_id"], new["dimensions"] = model, vectors
    return None


def _repair_search_mode(new: Row, vectors: int | None) -> str | None:
    """Make model, dimensions and search mode of a completed base go together."""
    if new.get("embedding_model_id") is None:
        new["dimensions"] = None
        if "search_mode" in new:
            new["search_mode"] = "bm25"
    elif new["dimensions"] is None:
        return tr("its vectors are not all of one length") if vectors is None else tr("it has no vectors to tell by")
    # Only a base that is searched in this mode has the share of its two lanes.
    if "search_mode" in new and new["search_mode"] not in MODES and new.get("hybrid_alpha") is not None:
        new["search_mode"] = "hybrid"
    return None
