"""AngelMemory's data folder: notes, the database of their tags, and a collection of vectors for each provider.

What is where: ``docs/formats/angel_memory.md``.
"""

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

from regraft.disk import links, sqlite
from regraft.errors import GenerationUnknown
from regraft.formats import json_text
from regraft.formats.angel_memory import chroma
from regraft.language import join_list, tr

# From a file below AngelMemory's ``raw/`` to the records of it (``docs/formats/angel_memory.md``, "Records").


#: Levels of headings that a record has room for.
LEVELS = 6
#: Files that are read as notes, whatever the case of their ending.
NOTES = frozenset({".md", ".txt", ".pdf", ".docx", ".pptx", ".xlsx", ".html", ".csv", ".json", ".xml"})
#: Of a heading, so many characters are stored with a record; ids and tags are made of all of it.
LONGEST_HEADING = 500

_NO_HEADINGS = ("",) * LEVELS
_HEADING = re.compile(r"^(#{1,6})\s+(.+)$")
_BLANKS = re.compile(r"\s+")


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules make of a file, or of one leaf heading of it."""

    source_id: str
    #: One for each level, empty where there is none.
    headings: tuple[str, ...]
    total_lines: int
    #: In the order in which they are made, each once.
    tags: tuple[str, ...]


class NoteFile(msgspec.Struct, frozen=True):
    """A file below ``raw/``: its path there with ``/``, and its time of change in whole seconds."""

    path: str
    seconds: int


def files(raw: Path) -> Iterator[NoteFile]:
    """Return the files that are read as notes, in the order of paths; links to folders are not followed.

    Raises:
        OSError: a folder cannot be read.
    """

    def failed(error: OSError) -> None:
        raise error

    found = []
    for folder, _, inside in os.walk(raw, onerror=failed if raw.exists() else None):
        for name in inside:
            if Path(name).suffix.lower() in NOTES and _is_text(os.path.join(folder, name)):  # noqa: PTH118 - a str
                place = Path(folder) / name
                if place.is_file():
                    found.append(NoteFile(place.relative_to(raw).as_posix(), int(place.stat().st_mtime)))
    return iter(sorted(found, key=lambda one: one.path))


def _is_text(name: str) -> bool:
    """Tell whether a name can be stored: the system cannot make a record of any other one."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def inside(raw: Path, relative: str) -> Path | None:
    """Return where a record's file lies, None where its path leads out of ``raw/``."""
    if "\0" in relative:
        return None
    root = links.real_path(raw)
    place = links.real_path(root / relative.replace("\\", "/").strip().lstrip("/"))
    return place if root in place.parents else None


def notes_of(place: Path, relative: str) -> list[Note]:
    """Return the notes that the rules make of a file, in their order.

    Args:
        place: where it lies.
        relative: its path below ``raw/``, with ``/``.

    Raises:
        OSError: it cannot be read.
    """
    data = links.read_bytes(place)
    lines = len(lines_of(data))
    path = path_tags(relative)
    if Path(relative).suffix.lower() == ".md":
        leaves = list(leaf_headings(_strictly(data)))
        if leaves:
            return [
                Note(
                    source_id=_source_id(relative, leaf, number),
                    headings=_stored(leaf),
                    total_lines=lines,
                    tags=_each_once([*path, *leaf]),
                )
                for number, leaf in enumerate(leaves, 1)
            ]
    return [
        Note(
            source_id=_source_id(relative, _NO_HEADINGS, 0),
            headings=_NO_HEADINGS,
            total_lines=lines,
            tags=_each_once(path),
        )
    ]


def lines_of(data: bytes) -> list[str]:
    """Return the lines of a file: bytes that are no UTF-8 are left out, and all that Python takes for a line end is."""
    return _universal(data.decode("utf-8", "ignore")).splitlines()


def _strictly(data: bytes) -> str:
    """Return the text in which headings are looked for: none of a file that is not UTF-8 throughout."""
    try:
        return _universal(data.decode("utf-8"))
    except UnicodeDecodeError:
        return ""


def _universal(text: str) -> str:
    return io.IncrementalNewlineDecoder(None, translate=True).decode(text, final=True)


def path_tags(relative: str) -> list[str]:
    """Return the parts of a path, the file's name included, without blanks around them."""
    parts = (part.strip() for part in relative.replace("\\", "/").strip("/").split("/"))
    return [part for part in parts if part]


def leaf_headings(text: str) -> Iterator[tuple[str, ...]]:
    """Return the headings above and at each heading of a Markdown text that has none below it.

    Headings in code are headings, too.
    """
    matches = filter(None, map(_HEADING.match, text.split("\n")))
    found = [(len(match[1]), _BLANKS.sub(" ", match[2].strip())) for match in matches]
    current = list(_NO_HEADINGS)
    for place, (level, heading) in enumerate(found):
        current[level - 1 :] = [heading, *_NO_HEADINGS[level:]]
        if place + 1 == len(found) or found[place + 1][0] <= level:
            yield tuple(current)


def _source_id(relative: str, headings: tuple[str, ...], number: int) -> str:
    text = "|".join([relative, *headings, str(number)])
    return f"note_{hashlib.sha1(text.encode()).hexdigest()[:32]}"


def _stored(headings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(heading[:LONGEST_HEADING] for heading in headings)


def _each_once(tags: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tag for tag in tags if tag))


def vector_text(tags: Iterable[str]) -> str:
    """Return the text whose vector stands for a record, "" where none does.

    Args:
        tags: names of its tags, in the order of the tags' ids.
    """
    words = (word.strip() for word in " ".join(tags).split(" "))
    return " ".join(dict.fromkeys(word for word in words if word))


#: The truth about notes and tags, below the data folder.
DATABASE = "memory_center/index/simple_memory.db"
#: When which file was last read, in whole seconds.
FILE_INDEX = "memory_center/index/file_index_global.db"
#: What the system's maintenance remembers.
STATE = "memory_center/maintenance_state.json"
RAW = "raw"
#: Where all of these but the notes lie.
CENTER = "memory_center"
#: The collection of the notes' vectors, in each provider's folder.
COLLECTION = "notes_index"
#: Of an entry's metadata in it.
SOURCE_ID = "source_id"

RECORDS = "note_index_records"
TAGS = "global_tags"
NOTE_TAGS = "note_tag_rel"
MEMORY_TAGS = "memory_tag_rel"
MEMORIES = "memory_records"
SEQUENCE = "note_short_id_seq"
FILES = "file_index_global"

#: In the state file, the provider of the last synchronisation; where it is empty, the system looks at the next one.
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
#: The tables of :data:`DATABASE`.
TABLES = tuple(_READ)
_FILE_TABLES = {FILES: ("id", "relative_path", "file_timestamp")}

_PROVIDER_FOLDER = "memory_"
_CHROMA = "chromadb"
_UNSAFE = re.compile(r'[<>:"/\\|?*]')

#: Signs of later generations: what is there below the data folder, or below a provider's, and what to call it.
_CHUNKS = "memory_center/index/note_chunks.db"
_LATER = {"index/faiss": tr("FAISS indexes"), "index/sqlite": tr("a vector index of its own in SQLite")}
_KNOWN = tr("versions 0.99.1011 to 1.3.11, with a Chroma collection for each provider")


class AngelProblem(ValueError):
    """A part of a data folder that cannot be used; the message is what to say of it."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A note's record; ``short_id`` None: the system has given none yet."""

    source_id: str
    short_id: int | None
    file_id: str
    path: str
    #: One for each level, empty where there is none.
    headings: tuple[str, ...]
    total_lines: int
    #: The time of change of its file when it was read, in seconds.
    updated_at: float
    #: Ids and names of its tags in the order of ids; a name is None where no tag has the id.
    tags: tuple[tuple[int, str | None], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its tags."""
        return tuple(name for _, name in self.tags if name is not None)

    @property
    def vector_text(self) -> str:
        """Return the text whose vector stands for it, "" where none does."""
        return vector_text(self.names)


class IndexedFile(msgspec.Struct, frozen=True):
    """A file of ``raw/`` that was read: its id there, its path, and its time of change then, in whole seconds."""

    id: int
    path: str
    seconds: int


class ProviderFolder(msgspec.Struct, frozen=True):
    """The folder of an embedding provider; ``name`` is its id, as it can stand in a path."""

    name: str
    path: Path

    @property
    def chroma(self) -> Path:
        """Return the folder that is Chroma's."""
        return self.path / _CHROMA

    @property
    def database(self) -> Path:
        """Return Chroma's database."""
        return self.chroma / chroma.FILE


# --- where --------------------------------------------------------------------------------------------------------


def root_of(path: Path) -> Path | None:
    """Return the data folder that a path is, or is a part of by which people name it; None for anything else.

    Raises:
        GenerationUnknown: it is of a later generation than is known.
    """
    parts = path.absolute().parts
    below = tuple(DATABASE.split("/"))
    depths = (length for length in range(1, len(below) + 1) if parts[-length:] == below[:length])
    places = [path, *(path.absolute().parents[length - 1] for length in depths)]
    root = next((place for place in places if (place / DATABASE).is_file()), None)
    if root is not None:
        signs = _later_signs(root)
        if signs:
            what = tr("a data folder of AngelMemory with {signs}", signs=join_list(signs, tr(" and ")))
            raise GenerationUnknown(path=root, what=what, known=_KNOWN)
    return root


def _later_signs(root: Path) -> list[str]:
    """Return what a data folder has that only later generations have."""
    found = []
    if (root / _CHUNKS).exists():
        found.append(tr("notes cut into chunks ({chunks})", chunks=_CHUNKS))
    elif _has_records_without_tags(root / DATABASE):
        found.append(tr("notes without tags (no table {note_tags})", note_tags=NOTE_TAGS))
    for folder in _memory_folders(root):
        for place, called in _LATER.items():
            # The system makes the folders of both; the one that is used has files.
            inside = folder / place
            if inside.is_dir() and any(inside.iterdir()):
                found.append(f"{called} ({folder.name}/{place})")
    return found


def _has_records_without_tags(database: Path) -> bool:
    with contextlib.suppress(apsw.Error, UnicodeDecodeError), sqlite.open_readonly(database, beside_writers=True) as db:
        tables = {str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        return RECORDS in tables and NOTE_TAGS not in tables
    return False


def _memory_folders(root: Path) -> list[Path]:
    """Return the folders that are called like those of providers, in the order of names."""
    inside = (path for path in root.iterdir() if path.name.startswith(_PROVIDER_FOLDER) and path.name != CENTER)
    return sorted(path for path in inside if path.is_dir())


def provider_folders(root: Path) -> list[ProviderFolder]:
    """Return the folders of providers that have a database of Chroma's, in the order of names."""
    found = [ProviderFolder(path.name.removeprefix(_PROVIDER_FOLDER), path) for path in _memory_folders(root)]
    return [folder for folder in found if folder.database.is_file()]


def provider_folder(root: Path, provider: str) -> ProviderFolder:
    """Return the folder of a provider, whether it is there or not."""
    name = safe_name(provider)
    return ProviderFolder(name, root / f"{_PROVIDER_FOLDER}{name}")


def safe_name(provider: str) -> str:
    """Return a provider's id as it can stand in a path."""
    return _UNSAFE.sub("_", provider.strip())


# --- the truth ----------------------------------------------------------------------------------------------------


@contextmanager
def reading(root: Path) -> Iterator[apsw.Connection]:
    """Open the database of records and tags for reading without a trace.

    Raises:
        AngelProblem: it cannot be used; the message says why.
    """
    with _reading(root / DATABASE, _READ) as db:
        yield db


@contextmanager
def reading_files(root: Path) -> Iterator[apsw.Connection]:
    """Open the index of files for reading without a trace.

    Raises:
        AngelProblem: it is missing or cannot be used; the message says why.
    """
    with _reading(root / FILE_INDEX, _FILE_TABLES) as db:
        yield db


@contextmanager
def _reading(path: Path, tables: Mapping[str, tuple[str, ...]]) -> Iterator[apsw.Connection]:
    if not path.is_file():
        raise AngelProblem(tr("it is missing"))
    try:
        with sqlite.open_readonly(path, beside_writers=True) as db:
            for table, columns in tables.items():
                there = {str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")}
                missing = next((name for name in columns if name not in there), None)
                if missing is not None:
                    lacking = (
                        tr("column {missing} in its table {table}", missing=missing, table=table)
                        if there
                        else tr("table {table}", table=table)
                    )
                    raise AngelProblem(
                        tr("it has no {lacking}: written by a version before 0.99.1011, or damaged", lacking=lacking)
                    )
            yield db
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise AngelProblem(tr("it is damaged ({error})", error=error)) from error


def records(db: apsw.Connection, where: str = "", values: tuple[Any, ...] = ()) -> Iterator[Record]:
    """Return the records with their tags, in the order of source ids.

    Args:
        db: the open database.
        where: a condition on ``r``, the records; empty: all.
        values: of the condition.
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


def record_count(db: apsw.Connection) -> int:
    """Return how many records there are."""
    number: Any = db.execute(f"SELECT count(*) FROM {RECORDS}").get
    return int(number)


def tag_count(db: apsw.Connection) -> int:
    """Return how many tags there are, of notes and of memories."""
    number: Any = db.execute(f"SELECT count(*) FROM {TAGS}").get
    return int(number)


def vector_texts(db: apsw.Connection) -> Iterator[tuple[str, str]]:
    """Return the source id of each record that has a vector, with the text that it is of."""
    for record in records(db):
        text = record.vector_text
        if text and record.source_id:
            yield record.source_id, text


def next_short_id(db: apsw.Connection) -> int:
    """Return the short id that the system gives next."""
    number: Any = db.execute(f"SELECT next_id FROM {SEQUENCE} WHERE id = 1").get
    return number if isinstance(number, int) else 0


def highest_short_id(db: apsw.Connection) -> int | None:
    """Return the highest short id that a record has, None where none has one."""
    number: Any = db.execute(f"SELECT max(note_short_id) FROM {RECORDS} WHERE typeof(note_short_id) = 'integer'").get
    return None if number is None else int(number)


def indexed_files(db: apsw.Connection) -> Iterator[IndexedFile]:
    """Return the files that were read, in the order of paths, from the open index of files."""
    columns = "id, relative_path, CAST(file_timestamp AS INTEGER)"
    for number, path, seconds in db.execute(f"SELECT {columns} FROM {FILES} ORDER BY 2"):
        yield IndexedFile(number, str(path), seconds or 0)


# --- providers ----------------------------------------------------------------------------------------------------


def read_state(root: Path) -> dict[str, Any]:
    """Return the state file's fields.

    Raises:
        AngelProblem: it is missing or cannot be read; the message says why.
    """
    try:
        state = json_text.loads(links.read_bytes(root / STATE).decode("utf-8"))
    except FileNotFoundError as error:
        raise AngelProblem(tr("it is missing")) from error
    except (OSError, ValueError) as error:
        raise AngelProblem(tr("it cannot be read ({error})", error=error)) from error
    if not isinstance(state, dict):
        raise AngelProblem(tr("it holds no object"))
    return state


def stated_provider(state: dict[str, Any]) -> str:
    """Return the provider of the last synchronisation, as it stands in its folder's name, "" where there was none."""
    return next((safe_name(str(state[key])) for key in PROVIDER_KEYS if state.get(key)), "")
