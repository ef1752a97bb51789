"""The v1 application's own state: knowledge bases and models from Redux, uploads and notes from Dexie.

It is read from a backup's ``data.json`` (versions 1-5), an export's Redux state and table files, one ``knowledge``
slice, or Chromium's storage in a profile or a backup of version 6 (``docs/formats/v1.md``, "State"). Only what is
needed is held.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from regraft.disk import durable, sqlite, untrusted_sqlite
from regraft.disk.file_paths import vector_file_name
from regraft.disk.trees import Tree, join_path
from regraft.errors import BrokenJson, SourceNotMigratable, SourceUnreadable
from regraft.formats import json_text
from regraft.formats.cherry_v1.layout import RENAMED_SUFFIX, STATE_KEY, TABLES, VECTORS_FOLDER, StatePaths
from regraft.formats.cherry_v2.layout import KNOWLEDGE_FOLDER
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import replace_surrogates

# Tables of Dexie and items of bases, read row by row: a source may have a million of either.
#
# What a table holds is kept in a database that lies in a temporary file where it is large; items stay JSON text until
# somebody asks for one (``docs/formats/v1.md``, "State").


#: No number of a row that is used is larger; JavaScript counts no further.
_LARGEST_NUMBER = 1 << 53


class FileRow(msgspec.Struct):
    """A row of Dexie's ``files`` table: only what completes a file's metadata."""

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
    """The rows of one table by id; of several rows of one id the last."""

    def __init__(self, row_type: type[msgspec.Struct]) -> None:
        self._type = row_type
        self._scratch = sqlite.open_scratch()
        self._db = self._scratch.__enter__()
        self._db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16000")
        self._db.execute("CREATE TABLE row (id TEXT PRIMARY KEY, json BLOB NOT NULL)")
        #: Rows that are damaged, each by its number in the table, from 1 on.
        self.damaged: list[int] = []

    def add(self, raws: Iterable[msgspec.Raw]) -> None:
        """Take rows of JSON text; those that are no objects or have no id are passed over."""
        rows = (self._parsed(number, raw) for number, raw in enumerate(raws, 1))
        self._put(row for row in rows if row is not None)

    def _parsed(self, number: int, raw: msgspec.Raw) -> tuple[str, bytes] | None:
        try:
            row: Any = msgspec.json.decode(raw, type=self._type)
        except msgspec.ValidationError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.damaged.append(number)
            return None
        return (row.id, bytes(raw)) if isinstance(row.id, str) else None

    def add_values(self, values: Iterable[Any]) -> None:
        """Take rows that are Python values already, with texts that can be stored."""
        self._put(row for row in map(self._plain_row, values) if row is not None)

    def _plain_row(self, value: Any) -> tuple[str, bytes] | None:
        if not isinstance(value, dict) or not isinstance(value.get("id"), str):
            return None
        names = [one.encode_name for one in msgspec.structs.fields(self._type)]
        row = {name: _plain(value.get(name)) for name in names}
        return row["id"], msgspec.json.encode(row)

    def _put(self, rows: Iterable[tuple[str, bytes]]) -> None:
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


def _plain(value: Any) -> Any:
    """Return a field of a row as it would come out of JSON; None for what it could not hold."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, bool) else None
    # A number that nobody counts to stays one, whatever it was.
    if not math.isfinite(value) or abs(value) > _LARGEST_NUMBER:
        return 0
    # Chromium keeps a whole number over 31 bits as a double; JSON has no such difference.
    return int(value) if isinstance(value, float) and value.is_integer() else value


class LazyItems(Sequence[Any]):
    """The items of one base: JSON text that is parsed whenever an item is asked for; None for a damaged one."""

    def __init__(self, raws: list[msgspec.Raw]) -> None:
        self._raws = raws

    def __len__(self) -> int:
        return len(self._raws)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [_item(raw) for raw in self._raws[place]]
        return _item(self._raws[place])

    def __iter__(self) -> Iterator[Any]:
        return map(_item, self._raws)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def _item(raw: msgspec.Raw) -> Any:
    try:
        return json_text.decode_any(raw)
    except json_text.JsonProblem:
        return None


def read_bases(text: bytearray) -> Any:
    """Return the ``bases`` of a ``knowledge`` slice, of any shape: of a list of objects their items are parsed late.

    ``text`` is the slice, or its bases alone; it must not change while items live. None where it has no bases.

    Raises:
        JsonProblem: it is no valid JSON.
    """
    if json_text.is_object(text):
        bases = json_text.read_fields(text, ("bases",)).get("bases")
        if bases is None or not json_text.is_list(bases):
            return None if bases is None else json_text.decode_any(bases)
    elif json_text.is_list(text):
        bases = json_text.decode(text, msgspec.Raw)
    else:
        return json_text.decode(text, object)
    return [_base(one) for one in json_text.decode_raw(bases, list[msgspec.Raw])]


def _base(raw: msgspec.Raw) -> Any:
    try:
        parts = json_text.decode_raw(raw, dict[str, msgspec.Raw])
    except json_text.JsonProblem:
        return json_text.decode_any(raw)
    return {name: _field(name, part) for name, part in parts.items()}


def _field(name: str, raw: msgspec.Raw) -> Any:
    if name == "items":
        try:
            return LazyItems(json_text.decode_raw(raw, list[msgspec.Raw]))
        except json_text.JsonProblem:
            pass
    return json_text.decode_any(raw)


PENDING_DELETE_FILE = "knowledge_pending_delete.json"
#: Folders named in a notice.
_NAMED_FOLDERS = 3
#: What the definition of v1's table of vectors has and no other system's; it stands in the first pages of a file.
_OWN_COLUMN = b"uniqueLoaderId"
_START_BYTES = 64 << 10
#: So many files of a folder are looked at to tell what it is.
_MOST_FILES = 10_000
#: Versions of ``data.json`` that this module reads.
BACKUP_VERSIONS = range(1, 6)
_ROWS: dict[str, type[msgspec.Struct]] = {"files": FileRow, "knowledge_notes": NoteRow}
_RAWS = list[msgspec.Raw]
#: The slices of the Redux state that tell of knowledge bases.
SLICES = ("knowledge", "llm")


class V1State(msgspec.Struct, frozen=True):
    """What v1 knew. Rows and bases are as v1 wrote them, of any shape; nothing is validated yet."""

    bases: list[Any]
    #: ``llm.providers``, or None where the source has no ``llm`` slice at all.
    providers: list[Any] | None
    files: Mapping[str, dict[str, Any]]
    notes: Mapping[str, dict[str, Any]]
    pending_delete: frozenset[str]
    notices: tuple[Notice, ...]


def read_state(tree: Tree, places: StatePaths) -> V1State:
    """Read the state of a v1 source. Chromium's storage is copied to the system's temporary folder first.

    Raises:
        BrokenJson: the state is truncated or broken (a Dexie table alone is a notice instead).
        SourceUnreadable: a file cannot be read.
    """
    found_notices: list[Notice] = []
    of_tables: list[Notice] = []
    tables: _Tables
    if places.backup is not None:
        slices, tables = _from_backup(tree, places.backup, found_notices, of_tables)
    elif places.local_storage is not None:
        slices, tables = _from_chromium(tree, places.local_storage, places.indexed_db, found_notices)
    else:
        slices = _from_export(tree, places)
        tables = {name: _table(name, _loader(tree, member), of_tables) for name, member in places.tables.items()}
    # The smaller slice first: the text that both are parts of goes with the larger one.
    providers = _providers(tree, slices.pop("llm", None))
    bases = _bases(tree, slices, found_notices)
    pending = _pending(tree, places, found_notices)
    _say_what_data_lacks(tree, places, bases, pending, found_notices)
    if providers is None and bases:
        found_notices.append(Notice(code=notices.MODELS_UNKNOWN, message=notices.CODES[notices.MODELS_UNKNOWN].meaning))
    return V1State(
        bases=bases,
        providers=providers,
        files=tables.get("files", {}),
        notes=tables.get("knowledge_notes", {}),
        pending_delete=pending,
        notices=(*found_notices, *of_tables),
    )


def read_slice(tree: Tree, places: StatePaths, name: str) -> Any:
    """Read one slice of the Redux state, of any shape; None where there is none.

    Raises:
        SourceUnreadable, BrokenJson: it is damaged.
    """
    if places.backup is not None:
        slices, _ = _from_backup(tree, places.backup, [], None, (name,))
    elif places.local_storage is not None:
        slices, _ = _from_chromium(tree, places.local_storage, None, [], (name,))
    else:
        slices = _from_export(tree, places, (name,))
    return _slice(tree, name, slices[name]) if name in slices else None


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
#: What is known of each table's rows, by the table's name.
_Tables = dict[str, Mapping[str, dict[str, Any]]]


def _from_backup(
    tree: Tree, name: str, found_notices: list[Notice], of_tables: list[Notice] | None, wanted: tuple[str, ...] = SLICES
) -> tuple[_Slices, _Tables]:
    """Read a ``data.json``; without ``of_tables`` its tables are left out."""
    text = read_file(tree, name)
    if json_text.is_list(text):
        raise BrokenJson(path=tree.path, where=name, reason=tr("it is a list, not an object"))
    with raise_broken_json(tree.path, name):
        top = json_text.read_fields(text, ("version", "localStorage", "indexedDB"))
    _check_version(tree, name, top.get("version"))
    tables = {} if of_tables is None else _tables_of_backup(name, top.pop("indexedDB", None), found_notices, of_tables)
    with raise_broken_json(tree.path, tr("localStorage in {name}", name=name)):
        storage = json_text.read_fields(top["localStorage"], (STATE_KEY,)) if _has(top, "localStorage") else {}
    if not _has(storage, STATE_KEY):
        return {}, tables
    with raise_broken_json(tree.path, tr("{state_key} in {name}", state_key=STATE_KEY, name=name)):
        state = json_text.unwrap_string(storage[STATE_KEY])
        # The file's own text is not needed any more: the state is the larger part of it.
        del text, top, storage
        return dict(json_text.read_fields(state, wanted)), tables


def _tables_of_backup(
    name: str, raw: msgspec.Raw | None, found_notices: list[Notice], of_tables: list[Notice]
) -> _Tables:
    try:
        found = {} if raw is None or json_text.is_null(raw) else json_text.read_fields(raw, TABLES)
    except json_text.JsonProblem as problem:
        found_notices.append(
            Notice(
                code=notices.TABLE_UNREADABLE,
                message=tr("indexedDB in {name} cannot be read: {problem}", name=name, problem=problem),
            )
        )
        return {}
    return {table: _table(table, partial(json_text.unwrap_string, found[table]), of_tables) for table in found}


def _from_chromium(
    tree: Tree,
    local_storage: str,
    indexed_db: str | None,
    found_notices: list[Notice],
    wanted: tuple[str, ...] = SLICES,
) -> tuple[_Slices, _Tables]:
    from regraft.formats.cherry_v1.chromium_state import read_chromium_state  # noqa: PLC0415 - loading it takes as long as the rest

    with durable.temporary_folder() as work:
        found = read_chromium_state(tree, local_storage, indexed_db, TABLES, work)
    found_notices.extend(found.notices)
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


def _check_version(tree: Tree, name: str, raw: msgspec.Raw | None) -> None:
    with raise_broken_json(tree.path, tr("the version in {name}", name=name)):
        version = None if raw is None else json_text.decode_any(raw)
    if isinstance(version, int) and version not in BACKUP_VERSIONS:
        raise SourceNotMigratable(
            path=tree.path,
            what=tr("a backup of version {version}", version=version),
            advice=tr(
                "regraft reads data.json of the versions {backup_versions} to {backup_versions2}",
                backup_versions=BACKUP_VERSIONS[0],
                backup_versions2=BACKUP_VERSIONS[-1],
            ),
        )


def _from_export(tree: Tree, places: StatePaths, wanted: tuple[str, ...] = SLICES) -> _Slices:
    if places.knowledge is not None:
        return {"knowledge": read_file(tree, places.knowledge)} if "knowledge" in wanted else {}
    if places.slices is not None:
        files = {name: join_path(places.slices, f"{name}.json") for name in wanted}
        return {name: read_file(tree, file) for name, file in files.items() if tree.kind(file) == "file"}
    if places.redux is None:
        return {}
    text = read_file(tree, places.redux)
    with raise_broken_json(tree.path, places.redux):
        return dict(json_text.read_fields(text, wanted))


def _loader(tree: Tree, name: str) -> Callable[[], bytearray]:
    return lambda: read_file(tree, name)


def _has(values: dict[str, msgspec.Raw], name: str) -> bool:
    return name in values and not json_text.is_null(values[name])


@contextmanager
def raise_broken_json(path: Path, where: str) -> Iterator[None]:
    """Turn a :class:`json_text.JsonProblem` into a :class:`BrokenJson` that says where."""
    try:
        yield
    except json_text.JsonProblem as problem:
        raise BrokenJson(path=path, where=where, reason=problem) from problem


def _slice(tree: Tree, name: str, raw: msgspec.Raw | bytearray) -> Any:
    with raise_broken_json(tree.path, tr("the `{name}` state", name=name)):
        return json_text.decode(_slice_text(raw), object)


def _slice_text(raw: msgspec.Raw | bytearray) -> bytearray:
    """Return a slice's JSON text: as redux-persist keeps it, it is JSON text in JSON."""
    if isinstance(raw, bytearray) and not json_text.is_string(raw):
        return raw
    return json_text.unwrap_string(msgspec.Raw(raw) if isinstance(raw, bytearray) else raw)


def _bases(tree: Tree, slices: _Slices, found_notices: list[Notice]) -> list[Any]:
    bases: Any = None
    is_there = "knowledge" in slices
    if is_there:
        with raise_broken_json(tree.path, tr("the `knowledge` state")):
            text = _slice_text(slices.pop("knowledge"))
            is_there = bytes(text[:16]).strip() != b"null"
            bases = read_bases(text) if is_there else None
    if not is_there:
        found_notices.append(Notice(code=notices.NO_KNOWLEDGE, message=notices.CODES[notices.NO_KNOWLEDGE].meaning))
    if bases is not None and not isinstance(bases, list):
        raise BrokenJson(path=tree.path, where=tr("the `knowledge` state"), reason=tr("`bases` is not a list"))
    return bases or []


def _providers(tree: Tree, raw: msgspec.Raw | bytearray | None) -> list[Any] | None:
    llm = None if raw is None else _slice(tree, "llm", raw)
    if not isinstance(llm, dict):
        return None
    providers = llm.get("providers")
    return providers if isinstance(providers, list) else []


def _table(name: str, load: Callable[[], bytearray], found_notices: list[Notice]) -> Mapping[str, dict[str, Any]]:
    """Return a Dexie table by id; rows that are no objects or have no id are passed over, damaged ones are named."""
    try:
        text = load()
        raws = json_text.decode(
            json_text.unwrap_string(msgspec.Raw(text)) if json_text.is_string(text) else text, _RAWS
        )
    except (json_text.JsonProblem, SourceUnreadable) as problem:
        found_notices.append(
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
            "table {name}: {rows} passed over that cannot be read, the first is row {first:,}",
            name=name,
            rows=format_count(count, "row"),
            first=first,
        )
        found_notices.append(Notice(code=notices.TABLE_UNREADABLE, message=lost, count=count))
    return table


def _say_what_data_lacks(
    tree: Tree, places: StatePaths, bases: list[Any], pending: frozenset[str], found_notices: list[Notice]
) -> None:
    """Say where ``Data/`` is missing, which vector files nobody names, and which folders among them nothing reads."""
    vectors = [] if places.vectors is None else tree.children(places.vectors)
    has_data = _has_data(tree, places, vectors)
    if bases and not has_data and (places.is_backup or places.local_storage is not None):
        code = notices.SLIM_BACKUP if places.is_backup else notices.DATA_MISSING
        found_notices.append(Notice(code=code, message=notices.CODES[code].meaning))
    if places.vectors is None:
        return
    is_theirs = places.vectors.rpartition("/")[2] == VECTORS_FOLDER
    if is_theirs or not places.has_state:
        found_notices.extend(_unnamed(tree, places, bases, pending))
    if is_theirs:
        found_notices.extend(_older_folders(tree, places.vectors, vectors))


def _older_folders(tree: Tree, folder: str, names: list[str]) -> Iterator[Notice]:
    folders = [name for name in names if _is_older_layout(tree, join_path(folder, name))]
    if folders:
        count = format_count(len(folders), "folder")
        text = tr(
            "{count} of a still older layout in {folder}, left alone: {first_of}",
            count=count,
            folder=folder,
            first_of=_first_of(folders),
        )
        yield Notice(code=notices.OLDER_LAYOUT, message=text, count=len(folders))


def _has_data(tree: Tree, places: StatePaths, vectors: list[str]) -> bool:
    """Tell whether there is anything of ``Data/``: an upload, or a vector file."""
    uploads = [] if places.uploads is None else tree.children(places.uploads)
    return bool(uploads) or any(name != PENDING_DELETE_FILE for name in vectors)


def _first_of(names: list[str]) -> str:
    more = "…" if len(names) > _NAMED_FOLDERS else ""
    return f"{', '.join(names[:_NAMED_FOLDERS])}{more}"


def list_vector_files(tree: Tree, places: StatePaths) -> set[str]:
    """Return the names, in the folder of the vector files, of those files that begin like a SQLite database."""
    if places.vectors is None:
        return set()
    names = tree.children(places.vectors) if places.vector_file is None else [places.vector_file]
    return {name for name in names if _is_vector_file(tree, join_path(places.vectors, name))}


def list_expected_names(bases: list[Any], pending: frozenset[str] = frozenset()) -> set[str]:
    """Return the names that the vector files of bases have, and those of ids that v1 was going to delete.

    Among them are the names that a preview build gave these files (:func:`.layout.vector_file_in`).
    """
    ids = [base.get("id") for base in bases if isinstance(base, dict)]
    names = {vector_file_name(one) for one in (*ids, *pending) if isinstance(one, str)}
    return names | {name + RENAMED_SUFFIX for name in names}


def _unnamed(tree: Tree, places: StatePaths, bases: list[Any], pending: frozenset[str]) -> Iterator[Notice]:
    """Say which vector files are those of no base; that v1 was going to delete some is no news."""
    files = list_vector_files(tree, places)
    unnamed = sorted(files - list_expected_names(bases, pending))
    if unnamed:
        code = notices.UNNAMED_VECTORS if len(unnamed) < len(files) else notices.LOST_STATE
        count = format_count(len(unnamed), "vector file")
        message = tr(
            "{count} without a base in v1's state, not read: {first_of}",
            count=count,
            first_of=_first_of(unnamed),
        )
        yield Notice(code=code, message=message, count=len(unnamed))


def _is_vector_file(tree: Tree, name: str) -> bool:
    """Tell whether a file begins like a SQLite database."""
    return _start(tree, name, len(untrusted_sqlite.MAGIC)) == untrusted_sqlite.MAGIC


def _start(tree: Tree, name: str, size: int) -> bytes:
    """Return the first bytes of a file, none where nothing can be read."""
    if tree.kind(name) != "file":
        return b""
    try:
        with tree.open(name) as file:
            return file.read(size)
    except OSError:
        return b""


def is_v1_vector_file(tree: Tree, name: str) -> bool:
    """Tell whether a file is a vector file of v1, as far as its first pages tell."""
    return _is_vector_file(tree, name) and _OWN_COLUMN in _start(tree, name, _START_BYTES)


def has_vector_files(tree: Tree, folder: str) -> bool:
    """Tell whether a folder holds a vector file of v1; of very many files only the first are asked."""
    return any(is_v1_vector_file(tree, join_path(folder, name)) for name in tree.children(folder)[:_MOST_FILES])


def _is_older_layout(tree: Tree, folder: str) -> bool:
    """Tell whether a folder among the vector files is none of v2's, which have ``.cherry`` or ``raw`` in them."""
    return tree.kind(folder) == "folder" and not {".cherry", "raw"} & set(tree.children(folder))


def _pending(tree: Tree, places: StatePaths, found_notices: list[Notice]) -> frozenset[str]:
    name = f"{places.vectors}/{PENDING_DELETE_FILE}" if places.vectors else PENDING_DELETE_FILE
    if places.vectors is None or tree.kind(name) != "file":
        return frozenset()
    try:
        ids = json_text.decode(read_file(tree, name), list[Any])
    except (json_text.JsonProblem, SourceUnreadable) as problem:
        found_notices.append(
            Notice(
                code=notices.PENDING_UNREADABLE,
                message=tr("{name} cannot be read: {problem}", name=name, problem=problem),
            )
        )
        return frozenset()
    return frozenset(value for value in ids if isinstance(value, str))


# What a backup states of itself (``metadata.json``, since version 6), and where in an archive it lies.
#
# The source of both is ``docs/formats/v1.md``.


#: Folders that mean something by their name: an archive is not read from inside them.
_CONTENT_FOLDERS = {"Data", "data", "Local Storage", "IndexedDB", KNOWLEDGE_FOLDER, ".cherry"}
#: In so many folders within one another what was packed may lie; a folder may have a link to itself in it.
_MOST_FOLDERS = 16


class _Metadata(msgspec.Struct):
    version: Any = None
    resources: Any = None


class BackupMetadata(msgspec.Struct, frozen=True):
    """What a backup states of itself: its version, and which parts of a profile it has."""

    version: int | None = None
    resources: Mapping[str, Any] = msgspec.field(default_factory=dict)


def read_backup_metadata(tree: Tree, name: str) -> BackupMetadata:
    """Return what the metadata at ``name`` state; nothing where they cannot be read."""
    with contextlib.suppress(json_text.JsonProblem, SourceUnreadable):
        stated = json_text.decode(read_file(tree, name), _Metadata)
        resources = stated.resources if isinstance(stated.resources, dict) else {}
        return BackupMetadata(stated.version if isinstance(stated.version, int) else None, resources)
    return BackupMetadata()


def find_inner_folder(tree: Tree) -> str:
    """Return the folder of an archive that holds everything, where things were packed together with their folder."""
    folder = ""
    for _ in range(_MOST_FOLDERS):
        # macOS adds a folder of its own to every archive, and files of its own beside what it shows.
        own = ("__MACOSX", ".DS_Store")
        inside = [name for name in tree.children(folder) if name not in own and not name.startswith("._")]
        if len(inside) != 1 or inside[0] in _CONTENT_FOLDERS or tree.kind(join_path(folder, inside[0])) != "folder":
            break
        folder = join_path(folder, inside[0])
    return folder
