"""The v1 application's own state: knowledge bases and models from Redux, uploads and notes from Dexie.

It is read from a backup's ``data.json`` (versions 1-5), an export's Redux state and table files, one ``knowledge``
slice, or Chromium's storage in a profile or a backup of version 6 (``docs/formats/v1.md``, "State"). Only what is
needed is held.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from regraft import notices, sqlite
from regraft.errors import BrokenJson, SourceNotMigratable, SourceUnreadable
from regraft.formats import json_text
from regraft.formats.v1_places import STATE_KEY, TABLES, VECTORS_FOLDER, StatePlaces
from regraft.names import vector_file_name
from regraft.notices import Notice
from regraft.text import counted, whole
from regraft.tree import Tree, join

PENDING_DELETE_FILE = "knowledge_pending_delete.json"
#: Folders named in a notice.
_NAMED_FOLDERS = 3
#: Versions of ``data.json`` that this module reads.
BACKUP_VERSIONS = range(1, 6)
#: The slices of the Redux state that tell of knowledge bases.
SLICES = ("knowledge", "llm")


@dataclass(frozen=True)
class V1State:
    """What v1 knew. Rows and bases are as v1 wrote them, of any shape; nothing is validated yet."""

    bases: list[Any]
    #: ``llm.providers``, or None where the source has no ``llm`` slice at all.
    providers: list[Any] | None
    files: dict[str, dict[str, Any]]
    notes: dict[str, dict[str, Any]]
    pending_delete: frozenset[str]
    notices: tuple[Notice, ...]


class _FileRow(msgspec.Struct):
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


class _NoteRow(msgspec.Struct, rename={"source_url": "sourceUrl"}):
    """A row of Dexie's ``knowledge_notes`` table."""

    id: Any = None
    content: Any = None
    source_url: Any = None


def read_state(tree: Tree, places: StatePlaces) -> V1State:
    """Read the state of a v1 source. Chromium's storage is copied to the system's temporary folder first.

    Raises:
        BrokenJson: the state is truncated or broken (a Dexie table alone is a notice instead).
        SourceUnreadable: a file cannot be read.
    """
    said: list[Notice] = []
    tables: _Tables
    if places.backup is not None:
        slices, tables = _from_backup(tree, places.backup, said)
    elif places.local_storage is not None:
        slices, tables = _from_chromium(tree, places.local_storage, places.indexed_db, said)
    else:
        slices = _from_export(tree, places)
        tables = {name: _loader(tree, member) for name, member in places.tables.items()}
    bases = _bases(tree, slices.get("knowledge"), said)
    providers = _providers(tree, slices.get("llm"))
    pending = _pending(tree, places, said)
    _say_what_data_lacks(tree, places, bases, pending, said)
    if providers is None and bases:
        said.append(Notice(notices.MODELS_UNKNOWN, notices.CODES[notices.MODELS_UNKNOWN].meaning))
    return V1State(
        bases=bases,
        providers=providers,
        files=_table(tables, "files", _FileRow, said),
        notes=_table(tables, "knowledge_notes", _NoteRow, said),
        pending_delete=pending,
        notices=tuple(said),
    )


def read_slice(tree: Tree, places: StatePlaces, name: str) -> Any:
    """Read one slice of the Redux state, of any shape; None where there is none.

    Raises:
        SourceUnreadable, BrokenJson: it is damaged.
    """
    if places.backup is not None:
        slices, _ = _from_backup(tree, places.backup, [], (name,))
    elif places.local_storage is not None:
        slices, _ = _from_chromium(tree, places.local_storage, None, [], (name,))
    else:
        slices = _from_export(tree, places, (name,))
    return _slice(tree, name, slices[name]) if name in slices else None


def read_text(tree: Tree, name: str) -> bytearray:
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
        raise SourceUnreadable(path=f"{tree.path}: {name}", reason=str(error) or "not enough memory") from error
    return text


_Slices = dict[str, msgspec.Raw | bytearray]
#: A table's JSON text, read when it is asked for.
_Tables = dict[str, Callable[[], bytearray | msgspec.Raw | list[Any]]]


def _from_backup(
    tree: Tree, name: str, said: list[Notice], wanted: tuple[str, ...] = SLICES
) -> tuple[_Slices, _Tables]:
    text = read_text(tree, name)
    if json_text.is_list(text):
        raise BrokenJson(path=tree.path, where=name, reason="it is a list, not an object")
    with blame(tree.path, name):
        top = json_text.fields(text, ("version", "localStorage", "indexedDB"))
    _check_version(tree, top.get("version"))
    slices: _Slices = {}
    with blame(tree.path, f"localStorage in {name}"):
        storage = json_text.fields(top["localStorage"], (STATE_KEY,)) if _has(top, "localStorage") else {}
    if _has(storage, STATE_KEY):
        with blame(tree.path, f"{STATE_KEY} in {name}"):
            slices.update(json_text.fields(json_text.unwrapped(storage[STATE_KEY]), wanted))
    tables: _Tables = {}
    try:
        found = json_text.fields(top["indexedDB"], TABLES) if _has(top, "indexedDB") else {}
    except json_text.JsonProblem as problem:
        said.append(Notice(notices.TABLE_UNREADABLE, f"indexedDB in {name} cannot be read: {problem}"))
        found = {}
    for table, raw in found.items():
        tables[table] = lambda raw=raw: raw  # type: ignore[misc]
    return slices, tables


def _from_chromium(
    tree: Tree, local_storage: str, indexed_db: str | None, said: list[Notice], wanted: tuple[str, ...] = SLICES
) -> tuple[_Slices, _Tables]:
    from regraft.formats.v1_chromium import read_chromium  # noqa: PLC0415 - loading it takes as long as the rest

    with tempfile.TemporaryDirectory(prefix="regraft-", ignore_cleanup_errors=True) as work:
        found = read_chromium(tree, local_storage, indexed_db, TABLES, Path(work))
    said.extend(found.notices)
    slices: _Slices = {}
    if found.redux is not None:
        with blame(tree.path, f"{STATE_KEY} in {local_storage}"):
            slices.update(json_text.fields(found.redux, wanted))
    return slices, {name: (lambda rows=rows: rows) for name, rows in found.tables.items()}  # type: ignore[misc]


def _check_version(tree: Tree, raw: msgspec.Raw | None) -> None:
    version: Any = None if raw is None else json_text.decode(bytearray(raw), object)
    if isinstance(version, int) and version not in BACKUP_VERSIONS:
        raise SourceNotMigratable(
            path=tree.path,
            what=f"a backup of version {version}",
            advice=f"regraft reads data.json of the versions {BACKUP_VERSIONS[0]} to {BACKUP_VERSIONS[-1]}",
        )


def _from_export(tree: Tree, places: StatePlaces, wanted: tuple[str, ...] = SLICES) -> _Slices:
    if places.knowledge is not None:
        return {"knowledge": read_text(tree, places.knowledge)} if "knowledge" in wanted else {}
    if places.slices is not None:
        files = {name: join(places.slices, f"{name}.json") for name in wanted}
        return {name: read_text(tree, file) for name, file in files.items() if tree.kind(file) == "file"}
    if places.redux is None:
        return {}
    text = read_text(tree, places.redux)
    with blame(tree.path, places.redux):
        return dict(json_text.fields(text, wanted))


def _loader(tree: Tree, name: str) -> Callable[[], bytearray]:
    return lambda: read_text(tree, name)


def _has(values: dict[str, msgspec.Raw], name: str) -> bool:
    return name in values and not json_text.is_null(values[name])


@contextmanager
def blame(path: Path, where: str) -> Iterator[None]:
    """Turn a :class:`json_text.JsonProblem` into a :class:`BrokenJson` that says where."""
    try:
        yield
    except json_text.JsonProblem as problem:
        raise BrokenJson(path=path, where=where, reason=problem) from problem


def _slice(tree: Tree, name: str, raw: msgspec.Raw | bytearray) -> Any:
    with blame(tree.path, f"the `{name}` state"):
        found = json_text.decode(raw if isinstance(raw, bytearray) else json_text.unwrapped(raw), Any)
        # A slice as redux-persist keeps it is JSON text in JSON.
        return json_text.decode(bytearray(found, "utf-8"), Any) if isinstance(found, str) else found


def _bases(tree: Tree, raw: msgspec.Raw | bytearray | None, said: list[Notice]) -> list[Any]:
    knowledge = None if raw is None else _slice(tree, "knowledge", raw)
    if knowledge is None:
        said.append(Notice(notices.NO_KNOWLEDGE, notices.CODES[notices.NO_KNOWLEDGE].meaning))
        return []
    bases = knowledge.get("bases") if isinstance(knowledge, dict) else knowledge
    if bases is None:
        return []
    if not isinstance(bases, list):
        raise BrokenJson(path=tree.path, where="the `knowledge` state", reason="`bases` is not a list")
    return bases


def _providers(tree: Tree, raw: msgspec.Raw | bytearray | None) -> list[Any] | None:
    llm = None if raw is None else _slice(tree, "llm", raw)
    if not isinstance(llm, dict):
        return None
    providers = llm.get("providers")
    return providers if isinstance(providers, list) else []


def _table(tables: _Tables, name: str, row_type: type[msgspec.Struct], said: list[Notice]) -> dict[str, dict[str, Any]]:
    """Return a Dexie table by id; rows that are no objects or have no id are passed over."""
    if name not in tables:
        return {}
    try:
        loaded = tables[name]()
        if isinstance(loaded, list):
            return _by_id(_plain_rows(loaded, row_type))
        text = loaded if isinstance(loaded, bytearray) else json_text.unwrapped(loaded)
        raws = json_text.decode(text, list[msgspec.Raw])
    except (json_text.JsonProblem, SourceUnreadable) as problem:
        said.append(Notice(notices.TABLE_UNREADABLE, f"table {name} cannot be read: {problem}"))
        return {}
    return _by_id(_parsed_rows(raws, row_type))


def _by_id(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in rows if isinstance(row["id"], str)}


def _parsed_rows(raws: list[msgspec.Raw], row_type: type[msgspec.Struct]) -> Iterator[dict[str, Any]]:
    for raw in raws:
        with contextlib.suppress(msgspec.DecodeError):
            yield msgspec.to_builtins(msgspec.json.decode(raw, type=row_type))


def _plain_rows(values: list[Any], row_type: type[msgspec.Struct]) -> Iterator[dict[str, Any]]:
    """Yield rows that are Python values already, with texts that can be stored, as they would come out of JSON."""
    names = [one.encode_name for one in msgspec.structs.fields(row_type)]
    for value in values:
        if isinstance(value, dict):
            yield {name: _plain(value.get(name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return whole(value)
    # Chromium keeps a whole number over 31 bits as a double; JSON has no such difference.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _say_what_data_lacks(
    tree: Tree, places: StatePlaces, bases: list[Any], pending: frozenset[str], said: list[Notice]
) -> None:
    """Say where ``Data/`` is missing, which vector files nobody names, and which folders among them nothing reads."""
    vectors = [] if places.vectors is None else tree.children(places.vectors)
    uploads = [] if places.uploads is None else tree.children(places.uploads)
    if bases and not uploads and not any(name != PENDING_DELETE_FILE for name in vectors):
        code = notices.SLIM_BACKUP if places.is_backup else notices.DATA_MISSING
        if places.is_backup or places.local_storage is not None:
            said.append(Notice(code, notices.CODES[code].meaning))
    if places.vectors is None or places.vectors.rpartition("/")[2] != VECTORS_FOLDER:
        return
    said.extend(_unnamed(tree, places.vectors, vectors, bases, pending))
    folders = [name for name in vectors if _is_older_layout(tree, join(places.vectors, name))]
    if folders:
        more = "…" if len(folders) > _NAMED_FOLDERS else ""
        named = f"{', '.join(folders[:_NAMED_FOLDERS])}{more}"
        text = f"{counted(len(folders), 'folder')} of a still older layout in {places.vectors}, left alone: {named}"
        said.append(Notice(notices.OLDER_LAYOUT, text, count=len(folders)))


def _unnamed(tree: Tree, folder: str, names: list[str], bases: list[Any], pending: frozenset[str]) -> Iterator[Notice]:
    """Say which vector files are those of no base; that v1 was going to delete some is no news."""
    ids = [base.get("id") for base in bases if isinstance(base, dict)]
    known = {vector_file_name(one) for one in (*ids, *pending) if isinstance(one, str)}
    files = [name for name in names if _is_vector_file(tree, join(folder, name))]
    unnamed = [name for name in files if name not in known]
    if unnamed:
        more = "…" if len(unnamed) > _NAMED_FOLDERS else ""
        listed = f"{', '.join(unnamed[:_NAMED_FOLDERS])}{more}"
        code = notices.UNNAMED_VECTORS if len(unnamed) < len(files) else notices.LOST_STATE
        said = f"{counted(len(unnamed), 'vector file')} of no base that the state names, not read: {listed}"
        yield Notice(code, said, count=len(unnamed))


def _is_vector_file(tree: Tree, name: str) -> bool:
    """Tell whether a file begins like a SQLite database."""
    if tree.kind(name) != "file":
        return False
    try:
        with tree.open(name) as file:
            return file.read(len(sqlite.MAGIC)) == sqlite.MAGIC
    except OSError:
        return False


def _is_older_layout(tree: Tree, folder: str) -> bool:
    """Tell whether a folder among the vector files is none of v2's, which have ``.cherry`` or ``raw`` in them."""
    return tree.kind(folder) == "folder" and not {".cherry", "raw"} & set(tree.children(folder))


def _pending(tree: Tree, places: StatePlaces, said: list[Notice]) -> frozenset[str]:
    name = f"{places.vectors}/{PENDING_DELETE_FILE}" if places.vectors else PENDING_DELETE_FILE
    if places.vectors is None or tree.kind(name) != "file":
        return frozenset()
    try:
        ids = json_text.decode(read_text(tree, name), list[Any])
    except (json_text.JsonProblem, SourceUnreadable) as problem:
        said.append(Notice(notices.PENDING_UNREADABLE, f"{name} cannot be read: {problem}"))
        return frozenset()
    return frozenset(value for value in ids if isinstance(value, str))
