"""AngelMemory's data directory: notes, records, tags and provider directories (``docs/formats/angel_memory.md``)."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import file_paths, links, sqlite
from regraft.errors import GenerationUnknown
from regraft.formats import json_text
from regraft.formats.chroma import database as chroma
from regraft.language import join_list, tr

# Rules that derive records from a file below ``raw/`` (``docs/formats/angel_memory.md``, "Records").


#: Heading levels of a record.
LEVELS = 6
#: Suffixes of note files, in lower case.
NOTE_SUFFIXES = frozenset({".md", ".txt", ".pdf", ".docx", ".pptx", ".xlsx", ".html", ".csv", ".json", ".xml"})
#: Characters of a heading that are stored in a record; ids and tags use the complete heading.
MAX_HEADING_CHARACTERS = 500

_NO_HEADINGS = ("",) * LEVELS
_HEADING = re.compile(r"^(#{1,6})\s+(.+)$")
_BLANKS = re.compile(r"\s+")


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The record that AngelMemory derives from a file, or from one leaf heading of a file."""

    source_id: str
    #: One per level; empty if missing.
    headings: tuple[str, ...]
    total_lines: int
    #: Distinct tags in order of creation.
    tags: tuple[str, ...]


class NoteFile(msgspec.Struct, frozen=True):
    """A file below ``raw/``: relative path with ``/``, and modification time in whole seconds."""

    path: str
    seconds: int


def find_note_files(raw: Path) -> Iterator[NoteFile]:
    """Yield the note files below the directory ``raw/`` in path order. Links to directories are not followed.

    Raises:
        OSError: a folder cannot be read.
    """

    def failed(error: OSError) -> None:
        """Raise the error of a folder that cannot be read."""
        raise error

    found = []
    for folder, _, names in file_paths.walk(raw, failed if raw.exists() else None):
        for name in names:
            if Path(name).suffix.lower() in NOTE_SUFFIXES and _is_encodable(os.path.join(folder, name)):  # noqa: PTH118 - a str
                file = Path(folder) / name
                if file_paths.is_file(file):
                    found.append(NoteFile(file.relative_to(raw).as_posix(), int(file_paths.stat(file).st_mtime)))
    return iter(sorted(found, key=lambda one: one.path))


def _is_encodable(name: str) -> bool:
    """Whether a file name is valid Unicode; AngelMemory cannot store other names."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def resolve_note_path(raw: Path, relative: str) -> Path | None:
    """Return the path of the file that a record names, or None if it lies outside of ``raw/``.

    Args:
        raw: the directory ``raw/``.
        relative: path of the file below it, as stored in the record.
    """
    if "\0" in relative:
        return None
    root = links.real_path(raw)
    file = links.real_path(root / relative.replace("\\", "/").strip().lstrip("/"))
    return file if root in file.parents else None


def read_notes(file: Path, relative: str) -> list[Note]:
    """Derive the records that AngelMemory has for a note file, in order.

    Args:
        file: the file.
        relative: its path below ``raw/``, with ``/``.

    Raises:
        OSError: the file cannot be read.
    """
    data = links.read_bytes(file)
    lines = len(split_lines(data))
    parts = (part.strip() for part in relative.replace("\\", "/").strip("/").split("/"))
    path = [part for part in parts if part]
    if Path(relative).suffix.lower() == ".md":
        try:
            leaves = list(leaf_headings(_normalize_newlines(data.decode("utf-8"))))
        except UnicodeDecodeError:
            leaves = []
        if leaves:
            return [
                Note(
                    source_id=_source_id(relative, leaf, number),
                    headings=tuple(heading[:MAX_HEADING_CHARACTERS] for heading in leaf),
                    total_lines=lines,
                    tags=_distinct([*path, *leaf]),
                )
                for number, leaf in enumerate(leaves, 1)
            ]
    return [
        Note(
            source_id=_source_id(relative, _NO_HEADINGS, 0),
            headings=_NO_HEADINGS,
            total_lines=lines,
            tags=_distinct(path),
        )
    ]


def split_lines(data: bytes) -> list[str]:
    """Return the lines of a file's content. Invalid UTF-8 is skipped; all line ends that Python knows count."""
    return _normalize_newlines(data.decode("utf-8", "ignore")).splitlines()


def _normalize_newlines(text: str) -> str:
    """Replace all line ends of a text by line feeds."""
    return io.IncrementalNewlineDecoder(None, translate=True).decode(text, final=True)


def leaf_headings(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the headings of levels 1 to 6 that apply at each Markdown heading without subheadings; empty if missing.

    Heading markers in code blocks count, too.
    """
    matches = filter(None, map(_HEADING.match, text.split("\n")))
    found = [(len(match[1]), _BLANKS.sub(" ", match[2].strip())) for match in matches]
    current = list(_NO_HEADINGS)
    for index, (level, heading) in enumerate(found):
        current[level - 1 :] = [heading, *_NO_HEADINGS[level:]]
        if index + 1 == len(found) or found[index + 1][0] <= level:
            yield tuple(current)


def _source_id(relative: str, headings: tuple[str, ...], number: int) -> str:
    """Return the id that AngelMemory gives a record.

    ``relative`` is the path of the file below ``raw/``, ``number`` counts the leaf headings of the file from 1; a file
    without headings has 0.
    """
    text = "|".join([relative, *headings, str(number)])
    return f"note_{hashlib.sha1(text.encode()).hexdigest()[:32]}"


def _distinct(tags: Iterable[str]) -> tuple[str, ...]:
    """Return each tag once, without blank ones."""
    return tuple(dict.fromkeys(tag for tag in tags if tag))


def vector_text(tags: Iterable[str]) -> str:
    """Return the text that is embedded for a record; empty if it has no vector.

    Args:
        tags: names of its tags, ordered by tag id.
    """
    words = (word.strip() for word in " ".join(tags).split(" "))
    return " ".join(dict.fromkeys(word for word in words if word))


#: Database of records and tags, relative to the data directory.
DATABASE = "memory_center/index/simple_memory.db"
#: Database of the files that were read, with modification times in whole seconds.
FILE_INDEX = "memory_center/index/file_index_global.db"
#: State of AngelMemory's maintenance.
STATE = "memory_center/maintenance_state.json"
RAW = "raw"
#: Directory of the files above.
CENTER = "memory_center"
#: Name of the collection of note vectors in each provider's directory.
COLLECTION = "notes_index"
#: Metadata key in that collection.
SOURCE_ID = "source_id"

RECORDS = "note_index_records"
TAGS = "global_tags"
NOTE_TAGS = "note_tag_rel"
MEMORY_TAGS = "memory_tag_rel"
MEMORIES = "memory_records"
SEQUENCE = "note_short_id_seq"
FILES = "file_index_global"

#: Keys in the state file that name the provider of the last synchronization; AngelMemory uses the first nonempty one.
PROVIDER_KEYS = (
    "notes_vector_sync_last_provider",
    "vector_to_center_migration_last_provider",
    "memory_vector_sync_last_provider",
)

_HEADINGS = tuple(f"heading_h{level}" for level in range(1, LEVELS + 1))
_READ = {
    RECORDS: ("source_id", "note_short_id", "file_id", "source_file_path", *_HEADINGS, "total_lines", "updated_at"),
    TAGS: ("id", "name"),
    NOTE_TAGS: ("source_id", "tag_id"),
    MEMORY_TAGS: ("memory_id", "tag_id"),
    MEMORIES: ("id",),
    SEQUENCE: ("id", "next_id"),
}
#: Tables of :data:`DATABASE`.
TABLES = tuple(_READ)
_FILE_TABLES = {FILES: ("id", "relative_path", "file_timestamp")}

_PROVIDER_FOLDER = "memory_"
_CHROMA = "chromadb"
_UNSAFE = re.compile(r'[<>:"/\\|?*]')

#: Paths that only later generations have, below the data directory or a provider's, with descriptions.
_CHUNKS = "memory_center/index/note_chunks.db"
_LATER = {"index/faiss": tr("FAISS indexes"), "index/sqlite": tr("a vector index in SQLite")}
_KNOWN = tr("versions 0.99.1011 to 1.3.11, with a Chroma collection for each provider")


class AngelProblem(ValueError):
    """A part of a data directory that cannot be used; the message gives the reason."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a note; ``short_id`` is None until AngelMemory assigns one."""

    source_id: str
    short_id: int | None
    file_id: str
    path: str
    #: One per level; empty if missing.
    headings: tuple[str, ...]
    total_lines: int
    #: Modification time of the file when it was read, in seconds.
    updated_at: float
    #: Tag ids and names, ordered by id; the name is None if the tag does not exist.
    tags: tuple[tuple[int, str | None], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the record's tags, without those that no longer exist."""
        return tuple(name for _, name in self.tags if name is not None)

    @property
    def vector_text(self) -> str:
        """The text that is embedded for the record; empty if it has no vector."""
        return vector_text(self.names)


class IndexedFile(msgspec.Struct, frozen=True):
    """A file of ``raw/`` as it was last read: id, path, and modification time in whole seconds."""

    id: int
    path: str
    seconds: int


class ProviderFolder(msgspec.Struct, frozen=True):
    """The directory of an embedding provider; ``name`` is the provider's id with unsafe characters replaced."""

    name: str
    path: Path

    @property
    def chroma(self) -> Path:
        """Directory of the Chroma store."""
        return self.path / _CHROMA

    @property
    def database(self) -> Path:
        """Path of the Chroma database."""
        return self.chroma / chroma.FILE


# --- paths -----------------------------------------------------------------------------------------------------------


def find_root(path: Path) -> Path | None:
    """Return the AngelMemory data directory that a path is or belongs to, or None.

    Accepted are the data directory itself and its subpaths up to :data:`DATABASE`.

    Raises:
        GenerationUnknown: the data directory belongs to a later, unsupported generation.
    """
    parts = path.absolute().parts
    subpath = tuple(DATABASE.split("/"))
    depths = (length for length in range(1, len(subpath) + 1) if parts[-length:] == subpath[:length])
    candidates = [path, *(path.absolute().parents[length - 1] for length in depths)]
    root = next((candidate for candidate in candidates if (candidate / DATABASE).is_file()), None)
    if root is not None:
        signs = _list_later_features(root)
        if signs:
            what = tr("an AngelMemory data directory with {signs}", signs=join_list(signs, tr(" and ")))
            raise GenerationUnknown(path=root, what=what, known=_KNOWN)
    return root


def _list_later_features(root: Path) -> list[str]:
    """Describe what a data directory contains that only unsupported later generations write."""
    found = []
    if (root / _CHUNKS).exists():
        found.append(tr("notes cut into chunks ({chunks})", chunks=_CHUNKS))
    elif _has_records_without_tags(root / DATABASE):
        found.append(tr("notes without tags (no table {note_tags})", note_tags=NOTE_TAGS))
    for folder in _memory_folders(root):
        for relative, description in _LATER.items():
            # AngelMemory creates both directories; only the one in use has files.
            directory = folder / relative
            if directory.is_dir() and any(directory.iterdir()):
                found.append(f"{description} ({folder.name}/{relative})")
    return found


def _has_records_without_tags(database: Path) -> bool:
    """Whether a database has the table of records but not that of tags; False if it cannot be read."""
    with contextlib.suppress(apsw.Error, UnicodeDecodeError), sqlite.open_readonly(database, beside_writers=True) as db:
        tables = sqlite.table_names(db)
        return RECORDS in tables and NOTE_TAGS not in tables
    return False


def _memory_folders(root: Path) -> list[Path]:
    """Return the subdirectories of the data directory that are named like those of providers, in ascending order."""
    inside = (path for path in root.iterdir() if path.name.startswith(_PROVIDER_FOLDER) and path.name != CENTER)
    return sorted(path for path in inside if path.is_dir())


def find_provider_folders(root: Path) -> list[ProviderFolder]:
    """Return the embedding providers' directories that have a Chroma database, in ascending order."""
    found = [ProviderFolder(path.name.removeprefix(_PROVIDER_FOLDER), path) for path in _memory_folders(root)]
    return [folder for folder in found if folder.database.is_file()]


def provider_folder(root: Path, provider: str) -> ProviderFolder:
    """Return the directory of an embedding provider with this id; it need not exist."""
    name = safe_name(provider)
    return ProviderFolder(name, root / f"{_PROVIDER_FOLDER}{name}")


def safe_name(provider: str) -> str:
    """Return a provider's id with unsafe characters replaced, for use in a path."""
    return _UNSAFE.sub("_", provider.strip())


# --- databases -------------------------------------------------------------------------------------------------------


@contextmanager
def open_records(root: Path) -> Iterator[apsw.Connection]:
    """Open the database of records and tags in a data directory for reading, leaving no files behind.

    Raises:
        AngelProblem: the database cannot be used; the message gives the reason.
    """
    with _open_database(root / DATABASE, _READ) as db:
        yield db


@contextmanager
def open_file_index(root: Path) -> Iterator[apsw.Connection]:
    """Open the index of note files in a data directory for reading, leaving no files behind.

    Raises:
        AngelProblem: the file index is missing or cannot be used; the message gives the reason.
    """
    with _open_database(root / FILE_INDEX, _FILE_TABLES) as db:
        yield db


@contextmanager
def _open_database(path: Path, tables: Mapping[str, tuple[str, ...]]) -> Iterator[apsw.Connection]:
    """Open a database that must have tables with certain columns; otherwise raise AngelProblem."""
    if not path.is_file():
        raise AngelProblem(tr("it is missing"))
    try:
        with sqlite.open_readonly(path, beside_writers=True) as db:
            for table, columns in tables.items():
                existing = {str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")}
                missing = next((name for name in columns if name not in existing), None)
                if missing is not None:
                    missing_object = (
                        tr("column {missing} in its table {table}", missing=missing, table=table)
                        if existing
                        else tr("table {table}", table=table)
                    )
                    raise AngelProblem(
                        tr(
                            "it has no {lacking}: written by a version before 0.99.1011, or damaged",
                            lacking=missing_object,
                        )
                    )
            yield db
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise AngelProblem(tr("it is damaged ({error})", error=error)) from error


def iterate_records(db: apsw.Connection, where: str = "", values: tuple[Any, ...] = ()) -> Iterator[Record]:
    """Yield the records of notes with their tags, ordered by source id.

    Args:
        db: the open database.
        where: SQL condition on the table of records, which is named ``r``; by default all.
        values: parameters of the condition.
    """
    columns = ", ".join(f"r.{name}" for name in _READ[RECORDS])
    rows = db.execute(
        f"SELECT {columns}, n.tag_id, CAST(t.name AS TEXT) FROM {RECORDS} r "
        f"LEFT JOIN {NOTE_TAGS} n ON n.source_id = r.source_id LEFT JOIN {TAGS} t ON t.id = n.tag_id "
        f"{f'WHERE {where} ' if where else ''}ORDER BY r.source_id, n.tag_id",
        values,
    )
    width = len(_READ[RECORDS])
    for row, group in groupby(rows, lambda row: row[:width]):
        tags = tuple((tag[width], tag[width + 1]) for tag in group if tag[width] is not None)
        yield _record(row, tags)


def _record(row: tuple[Any, ...], tags: tuple[tuple[int, str | None], ...]) -> Record:
    """Make a record from a row of its table and its tags, as (id, name) in the order of ids."""
    source_id, short_id, file_id, path = row[:4]
    headings = tuple(str(heading or "") for heading in row[4 : 4 + LEVELS])
    lines, updated = row[4 + LEVELS :]
    return Record(
        source_id=str(source_id),
        short_id=short_id,
        file_id=str(file_id),
        path=str(path),
        headings=headings,
        total_lines=lines or 0,
        updated_at=updated or 0.0,
        tags=tags,
    )


def count_records(db: apsw.Connection) -> int:
    """Return the number of records."""
    number: Any = db.execute(f"SELECT count(*) FROM {RECORDS}").get
    return int(number)


def count_tags(db: apsw.Connection) -> int:
    """Return the number of tags of notes and memories."""
    number: Any = db.execute(f"SELECT count(*) FROM {TAGS}").get
    return int(number)


def iterate_vector_texts(db: apsw.Connection) -> Iterator[tuple[str, str]]:
    """Yield source id and embedded text of each record that has a vector."""
    for record in iterate_records(db):
        text = record.vector_text
        if text and record.source_id:
            yield record.source_id, text


def read_next_short_id(db: apsw.Connection) -> int:
    """Return the short id that AngelMemory assigns next."""
    number: Any = db.execute(f"SELECT next_id FROM {SEQUENCE} WHERE id = 1").get
    return number if isinstance(number, int) else 0


def find_highest_short_id(db: apsw.Connection) -> int | None:
    """Return the highest short id of all records, or None."""
    number: Any = db.execute(f"SELECT max(note_short_id) FROM {RECORDS} WHERE typeof(note_short_id) = 'integer'").get
    return None if number is None else int(number)


def iterate_indexed_files(db: apsw.Connection) -> Iterator[IndexedFile]:
    """Yield the entries of the file index in path order."""
    columns = "id, relative_path, CAST(file_timestamp AS INTEGER)"
    for number, path, seconds in db.execute(f"SELECT {columns} FROM {FILES} ORDER BY 2"):
        yield IndexedFile(number, str(path), seconds or 0)


# --- providers -------------------------------------------------------------------------------------------------------


def read_state(root: Path) -> dict[str, Any]:
    """Read the state file in a data directory: the results of AngelMemory's maintenance, as a JSON object.

    Raises:
        AngelProblem: the file is missing or cannot be read; the message gives the reason.
    """
    try:
        state = json_text.loads(links.read_bytes(root / STATE).decode("utf-8"))
    except FileNotFoundError as error:
        raise AngelProblem(tr("it is missing")) from error
    except (OSError, ValueError) as error:
        raise AngelProblem(tr("it cannot be read ({error})", error=error)) from error
    if not isinstance(state, dict):
        raise AngelProblem(tr("it is not a JSON object"))
    return state


def last_provider(state: dict[str, Any]) -> str:
    """Return the embedding provider of the last synchronization, as in its directory's name, or "".

    ``state`` is the content of the state file.
    """
    return next((safe_name(str(state[key])) for key in PROVIDER_KEYS if state.get(key)), "")
