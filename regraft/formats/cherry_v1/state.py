"""Read v1's state: knowledge bases and models from Redux, uploads and notes from Dexie.

The state is read from a backup's ``data.json`` (versions 1 to 5), from an export's Redux state and table files, from a
single ``knowledge`` slice, or from Chromium's storage in a profile or a backup of version 6 (``docs/formats/v1.md``,
"State"). Only the needed parts are kept in memory.

A source may have a million Dexie rows or items. Rows are stored in a temporary database; items stay JSON text until
they are accessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from regraft.disk import scratch, sqlite, untrusted_sqlite
from regraft.disk.file_paths import vector_file_name
from regraft.disk.trees import Tree, ZipTree, join_path
from regraft.errors import BrokenJson, SourceNotMigratable, SourceUnreadable
from regraft.formats import json_text
from regraft.formats.cherry_v1.layout import RENAMED_SUFFIX, STATE_KEY, TABLES, VECTORS_FOLDER, StatePaths
from regraft.identity import replace
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import replace_surrogates

#: JavaScript's integers are exact up to this number; larger ones are not used.
_LARGEST_NUMBER = 1 << 53


class FileRow(msgspec.Struct):
    """A row of Dexie's ``files`` table: the fields that complete a file's metadata."""

    id: Any = None
    name: Any = None
    origin_name: Any = None
    path: Any = None
    ext: Any = None
    type: Any = None
    created_at: Any = None
    size: Any = None
    count: Any = None


class NoteRow(msgspec.Struct, rename={"source_url": "sourceUrl"}):
    """A row of Dexie's ``knowledge_notes`` table."""

    id: Any = None
    content: Any = None
    source_url: Any = None


class DexieTable(Mapping[str, dict[str, Any]]):
    """Rows of one table by id. If several rows have the same id, the last one is used."""

    def __init__(self, row_type: type[msgspec.Struct]) -> None:
        self._type = row_type
        self._scratch = sqlite.open_scratch()
        self._db = self._scratch.__enter__()
        self._db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16000")
        self._db.execute("CREATE TABLE row (id TEXT PRIMARY KEY, json BLOB NOT NULL)")
        #: Numbers of damaged rows in the table, from 1.
        self.damaged: list[int] = []

    def add(self, raws: Iterable[msgspec.Raw]) -> None:
        """Add rows given as JSON text. Rows that are not objects or have no id are skipped."""
        rows = (self._parse_row(number, raw) for number, raw in enumerate(raws, 1))
        self._put(row for row in rows if row is not None)

    def _parse_row(self, number: int, raw: msgspec.Raw) -> tuple[str, bytes] | None:
        """Return the id and the JSON of a row; None if it is not of the table's type or is damaged.

        The number of a damaged row is recorded.
        """
        try:
            row: Any = msgspec.json.decode(raw, type=self._type)
        except msgspec.ValidationError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.damaged.append(number)
            return None
        return (row.id, bytes(raw)) if isinstance(row.id, str) else None

    def add_values(self, values: Iterable[Any]) -> None:
        """Add rows given as Python values. Those that are not dictionaries or have no id are skipped."""
        names = [field.encode_name for field in msgspec.structs.fields(self._type)]
        objects = (value for value in values if isinstance(value, dict) and isinstance(value.get("id"), str))
        rows = ({name: _json_value(value.get(name)) for name in names} for value in objects)
        self._put((row["id"], msgspec.json.encode(row)) for row in rows)

    def _put(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Insert rows given by id and JSON; later ones replace earlier ones with the same id."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO row VALUES (?, ?)", rows)
        self._db.execute("COMMIT")

    def __getitem__(self, key: str) -> dict[str, Any]:
        found = self._db.execute("SELECT json FROM row WHERE id = ?", (key,)).fetchone()
        if found is None:
            raise KeyError(key)
        row: dict[str, Any] = msgspec.to_builtins(msgspec.json.decode(found[0], type=self._type))
        return row

    def __iter__(self) -> Iterator[str]:
        for (key,) in self._db.execute("SELECT id FROM row ORDER BY rowid"):
            yield str(key)

    def __len__(self) -> int:
        return int(str(self._db.execute("SELECT count(*) FROM row").get))


def _json_value(value: Any) -> Any:
    """Convert the value of a field to one that JSON can represent, else to None."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, bool) else None
    # Numbers that are never used keep their type but not their value.
    if not math.isfinite(value) or abs(value) > _LARGEST_NUMBER:
        return 0
    # Chromium stores integers over 31 bits as doubles; JSON does not distinguish them.
    return int(value) if isinstance(value, float) and value.is_integer() else value


class LazyItems(Sequence[Any]):
    """The items of one base as JSON text. An item is parsed on each access; a damaged one is None."""

    def __init__(self, raws: list[msgspec.Raw]) -> None:
        self._raws = raws

    def __len__(self) -> int:
        return len(self._raws)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [_parse_item(raw) for raw in self._raws[index]]
        return _parse_item(self._raws[index])

    def __iter__(self) -> Iterator[Any]:
        return map(_parse_item, self._raws)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def _parse_item(raw: msgspec.Raw) -> Any:
    """Decode the JSON of an item; None if it is not valid."""
    try:
        return json_text.decode_any(raw)
    except json_text.JsonProblem:
        return None


def read_bases(text: bytearray) -> Any:
    """Read the list of bases from the JSON of a ``knowledge`` slice, of any shape. None if there are no bases.

    ``text`` is the slice or its bases alone. The items of each base are parsed on access, so it must not change.

    Raises:
        JsonProblem: the text is not valid JSON.
    """
    if json_text.is_object(text):
        bases = json_text.read_fields(text, ("bases",)).get("bases")
        if bases is None or not json_text.is_list(bases):
            return None if bases is None else json_text.decode_any(bases)
    elif json_text.is_list(text):
        bases = json_text.decode(text, msgspec.Raw)
    else:
        return json_text.decode(text, object)
    return [_parse_base(one) for one in json_text.decode_raw(bases, list[msgspec.Raw])]


def _parse_base(raw: msgspec.Raw) -> Any:
    """Decode the JSON of a base, but not yet the items in it."""
    try:
        parts = json_text.decode_raw(raw, dict[str, msgspec.Raw])
    except json_text.JsonProblem:
        return json_text.decode_any(raw)
    base: dict[str, Any] = {}
    for name, part in parts.items():
        if name == "items":
            with suppress(json_text.JsonProblem):
                base[name] = LazyItems(json_text.decode_raw(part, list[msgspec.Raw]))
        if name not in base:
            base[name] = json_text.decode_any(part)
    return base


PENDING_DELETE_FILE = "knowledge_pending_delete.json"
#: Maximum number of names listed in a notice.
_MAX_NAMES = 3
#: A column of v1's vector table that no other system has; its name is in the first pages of a file.
_OWN_COLUMN = b"uniqueLoaderId"
_START_BYTES = 64 << 10
#: Maximum number of files examined to determine what a folder contains.
_MAX_FILES = 10_000
#: Versions of ``data.json`` that this module reads.
BACKUP_VERSIONS = range(1, 6)
_ROWS: dict[str, type[msgspec.Struct]] = {"files": FileRow, "knowledge_notes": NoteRow}
_RAWS = list[msgspec.Raw]
#: Slices of the Redux state that describe knowledge bases.
SLICES = ("knowledge", "llm")


class V1State(msgspec.Struct, frozen=True):
    """v1's state. Rows and bases are unvalidated and may have any shape."""

    bases: list[Any]
    #: ``llm.providers``, or None if the source has no ``llm`` slice.
    providers: list[Any] | None
    files: Mapping[str, dict[str, Any]]
    notes: Mapping[str, dict[str, Any]]
    pending_delete: frozenset[str]
    notices: tuple[Notice, ...]


def read_state(tree: Tree, paths: StatePaths, *, ignores_damage: bool = False) -> V1State:
    """Read the state of a v1 source. Chromium's storage is first copied to the system's temporary folder.

    If the state is damaged and there are vector files, and the caller ``ignores_damage``, the result has no bases, and
    a notice.

    Raises:
        BrokenJson: the state is truncated or broken (a broken Dexie table only causes a notice).
        SourceUnreadable: a file cannot be read.
    """
    try:
        return _read_intact_state(tree, paths)
    except (BrokenJson, SourceUnreadable) as error:
        # A file in a folder may be unreadable for another reason, such as its permissions.
        is_damage = isinstance(error, BrokenJson) or isinstance(tree, ZipTree)
        count = len(list_vector_files(tree, paths)) if is_damage and paths.vectors is not None else 0
        if not count:
            raise
        if not ignores_damage:
            hint = tr(
                "{reason}; regraft migrate --adopt-orphans makes bases of its {files} without it",
                reason=error.facts["reason"],
                files=format_count(count, "vector file"),
            )
            raise type(error)(**{**error.facts, "reason": hint}) from error
        state = _read_intact_state(tree, StatePaths(vectors=paths.vectors, uploads=paths.uploads))
        message = tr(
            "the application's state is not used, because it is damaged ({reason})", reason=error.facts["reason"]
        )
        return replace(state, notices=(Notice(code=notices.DAMAGED_STATE, message=message), *state.notices))


def _read_intact_state(tree: Tree, paths: StatePaths) -> V1State:
    """Read the state of a v1 source; raises as :func:`read_state` does, if it is damaged."""
    state_notices: list[Notice] = []
    table_notices: list[Notice] = []
    tables: _Tables
    if paths.backup is not None:
        slices, tables = _read_backup(tree, paths.backup, state_notices, table_notices)
    elif paths.local_storage is not None:
        slices, tables = _read_chromium(tree, paths.local_storage, paths.indexed_db, state_notices)
    else:
        slices = _read_export(tree, paths)
        tables = {
            name: _read_table(name, partial(read_file, tree, member), table_notices)
            for name, member in paths.tables.items()
        }
    # Parse the smaller slice first: the text that contains both is released with the larger one.
    llm = _read_slice_value(tree, "llm", slices.pop("llm")) if "llm" in slices else None
    providers: list[Any] | None = None
    if isinstance(llm, dict):
        providers = llm["providers"] if isinstance(llm.get("providers"), list) else []
    bases = _read_knowledge(tree, slices, state_notices)
    pending = _read_pending(tree, paths, state_notices)
    state_notices.extend(_data_notices(tree, paths, bases, pending))
    if providers is None and bases:
        state_notices.append(Notice(code=notices.MODELS_UNKNOWN, message=notices.CODES[notices.MODELS_UNKNOWN].meaning))
    return V1State(
        bases=bases,
        providers=providers,
        files=tables.get("files", {}),
        notes=tables.get("knowledge_notes", {}),
        pending_delete=pending,
        notices=(*state_notices, *table_notices),
    )


def read_slice(tree: Tree, paths: StatePaths, name: str) -> Any:
    """Read the slice of the Redux state with this name, of any shape; None if it is missing.

    Raises:
        SourceUnreadable, BrokenJson: the state is damaged.
    """
    if paths.backup is not None:
        slices, _ = _read_backup(tree, paths.backup, [], None, (name,))
    elif paths.local_storage is not None:
        slices, _ = _read_chromium(tree, paths.local_storage, None, [], (name,))
    else:
        slices = _read_export(tree, paths, (name,))
    return _read_slice_value(tree, name, slices[name]) if name in slices else None


def read_file(tree: Tree, name: str) -> bytearray:
    """Read a whole file of the source into one buffer.

    Raises:
        SourceUnreadable: it cannot be read.
    """
    try:
        text = bytearray(tree.size(name))
        with tree.open(name) as file:
            view, filled = memoryview(text), 0
            while filled < len(text) and (count := file.readinto(view[filled:])):  # type: ignore[attr-defined]
                filled += count
            view.release()
        del text[filled:]
    except (OSError, MemoryError) as error:
        if isinstance(error, SourceUnreadable):
            raise
        raise SourceUnreadable(path=f"{tree.path}: {name}", reason=str(error) or tr("not enough memory")) from error
    return text


_Slices = dict[str, msgspec.Raw | bytearray]
#: Tables by name; each maps row ids to rows.
_Tables = dict[str, Mapping[str, dict[str, Any]]]


def _read_backup(
    tree: Tree,
    name: str,
    state_notices: list[Notice],
    table_notices: list[Notice] | None,
    wanted: tuple[str, ...] = SLICES,
) -> tuple[_Slices, _Tables]:
    """Read the ``wanted`` slices and the tables of a ``data.json``. Without ``table_notices`` its tables are skipped.

    Notices on problems are added to the two lists.
    """
    text = read_file(tree, name)
    if json_text.is_list(text):
        raise BrokenJson(path=tree.path, where=name, reason=tr("it is a list, not an object"))
    with raise_broken_json(tree.path, name):
        top = json_text.read_fields(text, ("version", "localStorage", "indexedDB"))
    with raise_broken_json(tree.path, tr("the version in {name}", name=name)):
        version = json_text.decode_any(top["version"]) if "version" in top else None
    if isinstance(version, int) and version not in BACKUP_VERSIONS:
        raise SourceNotMigratable(
            path=tree.path,
            what=tr("a backup of version {version}", version=version),
            advice=tr(
                "regraft reads data.json of versions {backup_versions} to {backup_versions2}",
                backup_versions=BACKUP_VERSIONS[0],
                backup_versions2=BACKUP_VERSIONS[-1],
            ),
        )
    tables = (
        {}
        if table_notices is None
        else _tables_of_backup(name, top.pop("indexedDB", None), state_notices, table_notices)
    )
    with raise_broken_json(tree.path, tr("localStorage in {name}", name=name)):
        storage = json_text.read_fields(top["localStorage"], (STATE_KEY,)) if _has(top, "localStorage") else {}
    if not _has(storage, STATE_KEY):
        return {}, tables
    with raise_broken_json(tree.path, tr("{state_key} in {name}", state_key=STATE_KEY, name=name)):
        state = json_text.unwrap_string(storage[STATE_KEY])
        # The text of the file is not needed any more: most of it is the state.
        del text, top, storage
        return dict(json_text.read_fields(state, wanted)), tables


def _tables_of_backup(
    name: str, raw: msgspec.Raw | None, state_notices: list[Notice], table_notices: list[Notice]
) -> _Tables:
    """Read the tables in ``raw``, the ``indexedDB`` part of the backup ``name``.

    A notice is added to ``state_notices`` if no table can be read, to ``table_notices`` if one is damaged.
    """
    try:
        found = {} if raw is None or json_text.is_null(raw) else json_text.read_fields(raw, TABLES)
    except json_text.JsonProblem as problem:
        state_notices.append(
            Notice(
                code=notices.TABLE_UNREADABLE,
                message=tr("indexedDB in {name} cannot be read: {problem}", name=name, problem=problem),
            )
        )
        return {}
    return {table: _read_table(table, partial(json_text.unwrap_string, found[table]), table_notices) for table in found}


def _read_chromium(
    tree: Tree,
    local_storage: str,
    indexed_db: str | None,
    state_notices: list[Notice],
    wanted: tuple[str, ...] = SLICES,
) -> tuple[_Slices, _Tables]:
    """Read the ``wanted`` slices and the tables in Chromium's storage, at two paths in the source.

    Without ``indexed_db`` (None) there are no tables.
    """
    from regraft.formats.cherry_v1.chromium_state import read_chromium_state  # noqa: PLC0415 - as slow to import as everything else

    with scratch.temporary_folder() as work:
        found = read_chromium_state(tree, local_storage, indexed_db, TABLES, work)
    state_notices.extend(found.notices)
    slices: _Slices = {}
    if found.redux is not None:
        with raise_broken_json(
            tree.path, tr("{state_key} in {local_storage}", state_key=STATE_KEY, local_storage=local_storage)
        ):
            slices.update(json_text.read_fields(found.redux, wanted))
    tables: _Tables = {}
    for name in list(found.tables):
        table = tables[name] = DexieTable(_ROWS[name])
        table.add_values(found.tables.pop(name))
    return slices, tables


def _read_export(tree: Tree, paths: StatePaths, wanted: tuple[str, ...] = SLICES) -> _Slices:
    """Return the ``wanted`` slices of an export folder or file as JSON text."""
    if paths.knowledge is not None:
        return {"knowledge": read_file(tree, paths.knowledge)} if "knowledge" in wanted else {}
    if paths.slices is not None:
        files = {name: join_path(paths.slices, f"{name}.json") for name in wanted}
        return {name: read_file(tree, file) for name, file in files.items() if tree.kind(file) == "file"}
    if paths.redux is None:
        return {}
    text = read_file(tree, paths.redux)
    with raise_broken_json(tree.path, paths.redux):
        return dict(json_text.read_fields(text, wanted))


def _has(values: dict[str, msgspec.Raw], name: str) -> bool:
    """Whether the fields of an object have a value for this name that is not null."""
    return name in values and not json_text.is_null(values[name])


@contextmanager
def raise_broken_json(path: Path, where: str) -> Iterator[None]:
    """Convert a :class:`json_text.JsonProblem` in the block into a :class:`BrokenJson`.

    ``path`` is the source; ``where`` says for a person which part of it is broken.
    """
    try:
        yield
    except json_text.JsonProblem as problem:
        raise BrokenJson(path=path, where=where, reason=problem) from problem


def _read_slice_value(tree: Tree, name: str, raw: msgspec.Raw | bytearray) -> Any:
    """Parse the JSON of the slice with this name."""
    with raise_broken_json(tree.path, tr("the `{name}` state", name=name)):
        return json_text.decode(_slice_text(raw), object)


def _slice_text(raw: msgspec.Raw | bytearray) -> bytearray:
    """Return the JSON text of a slice, which redux-persist stores as a JSON string."""
    if isinstance(raw, bytearray) and not json_text.is_string(raw):
        return raw
    return json_text.unwrap_string(msgspec.Raw(raw) if isinstance(raw, bytearray) else raw)


def _read_knowledge(tree: Tree, slices: _Slices, state_notices: list[Notice]) -> list[Any]:
    """Read the bases from the ``knowledge`` slice, with a notice if the slice is missing."""
    bases: Any = None
    is_there = "knowledge" in slices
    if is_there:
        with raise_broken_json(tree.path, tr("the `knowledge` state")):
            text = _slice_text(slices.pop("knowledge"))
            is_there = bytes(text[:16]).strip() != b"null"
            bases = read_bases(text) if is_there else None
    if not is_there:
        state_notices.append(Notice(code=notices.NO_KNOWLEDGE, message=notices.CODES[notices.NO_KNOWLEDGE].meaning))
    if bases is not None and not isinstance(bases, list):
        raise BrokenJson(path=tree.path, where=tr("the `knowledge` state"), reason=tr("`bases` is not a list"))
    return bases or []


def _read_table(name: str, load: Callable[[], bytearray], state_notices: list[Notice]) -> Mapping[str, dict[str, Any]]:
    """Read the Dexie table with this name; ``load`` returns its JSON.

    Rows without an id are skipped; damaged rows cause a notice in ``state_notices``.
    """
    try:
        text = load()
        raws = json_text.decode(
            json_text.unwrap_string(msgspec.Raw(text)) if json_text.is_string(text) else text, _RAWS
        )
    except (json_text.JsonProblem, SourceUnreadable) as problem:
        state_notices.append(
            Notice(
                code=notices.TABLE_UNREADABLE,
                message=tr("table {name} cannot be read: {problem}", name=name, problem=problem),
            )
        )
        return {}
    table = DexieTable(_ROWS[name])
    table.add(raws)
    if table.damaged:
        count, first = len(table.damaged), table.damaged[0]
        lost = tr(
            "table {name}: skipped {rows} that cannot be read, the first is row {first:,}",
            name=name,
            rows=format_count(count, "row"),
            first=first,
        )
        state_notices.append(Notice(code=notices.TABLE_UNREADABLE, message=lost, count=count))
    return table


def _data_notices(tree: Tree, paths: StatePaths, bases: list[Any], pending: frozenset[str]) -> Iterator[Notice]:
    """Report a missing ``Data/``, vector files without a base, and folders of an older layout.

    ``pending`` are the ids of bases that v1 was about to delete.
    """
    vectors = [] if paths.vectors is None else tree.children(paths.vectors)
    uploads = [] if paths.uploads is None else tree.children(paths.uploads)
    has_data = bool(uploads) or any(name != PENDING_DELETE_FILE for name in vectors)
    if bases and not has_data and (paths.is_backup or paths.local_storage is not None):
        code = notices.SLIM_BACKUP if paths.is_backup else notices.DATA_MISSING
        yield Notice(code=code, message=notices.CODES[code].meaning)
    if paths.vectors is None:
        return
    is_own_folder = paths.vectors.rpartition("/")[2] == VECTORS_FOLDER
    if is_own_folder or not paths.has_state:
        # Files of bases that v1 was about to delete are expected.
        files = list_vector_files(tree, paths)
        unnamed = sorted(files - list_expected_names(bases, pending))
        if unnamed:
            message = tr(
                "{count} not read because v1's state has no base for them: {first_of}",
                count=format_count(len(unnamed), "vector file"),
                first_of=_shorten_list(unnamed),
            )
            code = notices.UNNAMED_VECTORS if len(unnamed) < len(files) else notices.LOST_STATE
            yield Notice(code=code, message=message, count=len(unnamed))
    if is_own_folder:
        yield from _older_folder_notices(tree, paths.vectors, vectors)


def _older_folder_notices(tree: Tree, folder: str, names: Iterable[str]) -> Iterator[Notice]:
    """Report those of a folder's members that are folders of a layout older than v1's, which are not read."""
    members = {name: join_path(folder, name) for name in names}
    # A folder of v2 contains `.cherry` or `raw`.
    older = [
        name
        for name, path in members.items()
        if tree.kind(path) == "folder" and not {".cherry", "raw"} & set(tree.children(path))
    ]
    if older:
        message = tr(
            "{folder} contains {count} of an older layout, which regraft does not read: {first_of}",
            count=format_count(len(older), "folder"),
            folder=folder,
            first_of=_shorten_list(older),
        )
        yield Notice(code=notices.OLDER_LAYOUT, message=message, count=len(older))


def _shorten_list(names: list[str]) -> str:
    """Join the first names for a message; an ellipsis shows that there are more."""
    more = "…" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


def list_vector_files(tree: Tree, paths: StatePaths) -> set[str]:
    """List the names in the source's folder of vector files that start like a SQLite database."""
    if paths.vectors is None:
        return set()
    names = tree.children(paths.vectors) if paths.vector_file is None else [paths.vector_file]
    return {name for name in names if _is_sqlite_file(tree, join_path(paths.vectors, name))}


def list_expected_names(bases: list[Any], pending: frozenset[str] = frozenset()) -> set[str]:
    """List the names of vector files for the given bases and for ids that v1 was about to delete.

    This includes the names that preview builds gave these files (:func:`.layout.find_vector_file`).
    """
    ids = [base.get("id") for base in bases if isinstance(base, dict)]
    names = {vector_file_name(one) for one in (*ids, *pending) if isinstance(one, str)}
    return names | {name + RENAMED_SUFFIX for name in names}


def _is_sqlite_file(tree: Tree, name: str) -> bool:
    """Whether a file of the source starts like a SQLite database."""
    return _read_start(tree, name, len(untrusted_sqlite.MAGIC)) == untrusted_sqlite.MAGIC


def _read_start(tree: Tree, name: str, size: int) -> bytes:
    """Read the first bytes of a file of the source; empty if it cannot be read."""
    if tree.kind(name) != "file":
        return b""
    try:
        with tree.open(name) as file:
            return file.read(size)
    except OSError:
        return b""


def is_v1_vector_file(tree: Tree, name: str) -> bool:
    """Whether the first pages of a file of the source contain v1's vector table."""
    return _is_sqlite_file(tree, name) and _OWN_COLUMN in _read_start(tree, name, _START_BYTES)


def has_vector_files(tree: Tree, folder: str) -> bool:
    """Whether a folder contains a v1 vector file. Only the first 10,000 files are examined."""
    return any(is_v1_vector_file(tree, join_path(folder, name)) for name in tree.children(folder)[:_MAX_FILES])


def _read_pending(tree: Tree, paths: StatePaths, state_notices: list[Notice]) -> frozenset[str]:
    """Return the ids of bases that v1 was about to delete; with a notice if the list of them cannot be read."""
    name = f"{paths.vectors}/{PENDING_DELETE_FILE}" if paths.vectors else PENDING_DELETE_FILE
    if paths.vectors is None or tree.kind(name) != "file":
        return frozenset()
    try:
        ids = json_text.decode(read_file(tree, name), list[Any])
    except (json_text.JsonProblem, SourceUnreadable) as problem:
        state_notices.append(
            Notice(
                code=notices.PENDING_UNREADABLE,
                message=tr("{name} cannot be read: {problem}", name=name, problem=problem),
            )
        )
        return frozenset()
    return frozenset(value for value in ids if isinstance(value, str))


# Backup metadata (``metadata.json``, since version 6) and the root of an archive (``docs/formats/v1.md``).


#: Folders with a meaning of their own: the root of an archive is never inside them.
_CONTENT_FOLDERS = {"Data", "data", "Local Storage", "IndexedDB", VECTORS_FOLDER, ".cherry"}
#: Maximum nesting of packed folders; a folder may contain a link to itself.
_MAX_DEPTH = 16


class _Metadata(msgspec.Struct):
    version: Any = None
    resources: Any = None


class BackupMetadata(msgspec.Struct, frozen=True):
    """Version of a backup, and the parts of a profile that it contains."""

    version: int | None = None
    resources: Mapping[str, Any] = msgspec.field(default_factory=dict)


def read_backup_metadata(tree: Tree, name: str) -> BackupMetadata:
    """Read the metadata of a backup; empty if they cannot be read."""
    with suppress(json_text.JsonProblem, SourceUnreadable):
        stated = json_text.decode(read_file(tree, name), _Metadata)
        resources = stated.resources if isinstance(stated.resources, dict) else {}
        return BackupMetadata(stated.version if isinstance(stated.version, int) else None, resources)
    return BackupMetadata()


def find_inner_folder(tree: Tree) -> str:
    """Return the path of the folder in an archive that has its content, which may be packed inside nested folders."""
    folder = ""
    for _ in range(_MAX_DEPTH):
        # macOS adds a folder to every archive and hidden files to every folder.
        own = ("__MACOSX", ".DS_Store")
        inside = [name for name in tree.children(folder) if name not in own and not name.startswith("._")]
        if len(inside) != 1 or inside[0] in _CONTENT_FOLDERS or tree.kind(join_path(folder, inside[0])) != "folder":
            break
        folder = join_path(folder, inside[0])
    return folder
