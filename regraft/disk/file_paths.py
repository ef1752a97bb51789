r"""Paths beyond Windows' length limit, names that are legal on every platform, and paths of migrated folders.

Windows refuses paths of 260 characters and more, and folders of 248, unless a setting of the machine allows them; with
the prefix ``\\?\`` it takes 32,767. Only paths passed to the system get that prefix: regraft stores, compares and shows
the plain form. Rules of names and folders: ``docs/rules.md``, "Names" and "Folders".
"""

from __future__ import annotations

import errno
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePath
from stat import S_ISLNK

from regraft.text import JS_WHITESPACE, utf8_cut, utf16_cut, utf16_len

_PREFIX, _UNC = "\\\\?\\", "\\\\?\\UNC\\"
#: Longest path, in characters, that the system takes without the prefix; None: no limit. A folder has to leave room for
#: a name of 12 characters.
MAX_PLAIN_LENGTH: int | None = 247 if os.name == "nt" else None
#: Longest plain path of a file on Windows.
_LONGEST = 259
#: ERROR_FILENAME_EXCED_RANGE of Windows.
_TOO_LONG = 206
#: IO_REPARSE_TAG_MOUNT_POINT of Windows: a junction, which looks like a folder.
_JUNCTION = 0xA0000003
_HAS_JUNCTIONS = os.name == "nt"


def home_folder() -> Path | None:
    """The user's home folder; None if the system does not name one, as for a service or in a container."""
    with suppress(RuntimeError):
        return Path.home()
    return None


def extended_path(path: str | PurePath) -> str:
    """Return a path in the form that the system accepts at any length."""
    text = os.fspath(path)
    return text if MAX_PLAIN_LENGTH is None or len(text) <= MAX_PLAIN_LENGTH else extended_root(text)


def extended_root(path: str | PurePath) -> str:
    """Return a folder's path such that paths joined to it are accepted at any length."""
    text = os.fspath(path)
    if MAX_PLAIN_LENGTH is None or text.startswith(_PREFIX):
        return text
    return extended_form(os.path.abspath(text))  # noqa: PTH100 - Path.absolute leaves ``..`` in it


def extended_form(absolute: str) -> str:
    r"""Add the prefix to an absolute path: ``\\?\C:\x``, or ``\\?\UNC\server\share\x`` for a share."""
    return f"{_UNC}{absolute[2:]}" if absolute.startswith("\\\\") else f"{_PREFIX}{absolute}"


def plain_path(path: str) -> str:
    """Remove the prefix that :func:`extended_path` added."""
    if path.startswith(_UNC):
        return f"\\\\{path.removeprefix(_UNC)}"
    return path.removeprefix(_PREFIX)


def is_too_long_error(error: OSError) -> bool:
    """Whether the system failed because a path, or a name in it, is too long."""
    return error.errno == errno.ENAMETOOLONG or getattr(error, "winerror", None) == _TOO_LONG


def is_too_long_write_error(error: OSError, path: PurePath) -> bool:
    """Whether a file could not be created because its path is too long; Windows may report it as missing."""
    return is_too_long_error(error) or (isinstance(error, FileNotFoundError) and len(str(path)) > _LONGEST)


def is_hidden_by_length(path: Path) -> bool:
    """Whether a file exists, as its folder lists it, at a path that is too long to examine."""
    try:
        lstat(path)
    except OSError as error:
        return is_too_long_write_error(error, path) and _is_listed(path)
    except ValueError:  # a NUL in the name
        pass
    return False


def _is_listed(path: Path) -> bool:
    """Whether the parent folder of a path lists it; if the parent cannot be opened either, whether that is listed."""
    try:
        return path.name in names_in(path.parent)
    except OSError:
        return path.parent != path and _is_listed(path.parent)


def fits_system(path: Path, folder: Path) -> bool:
    """Whether the system accepts a path below an existing folder; the path itself need not exist."""
    for one in (path, *(folder / name for name in path.relative_to(folder).parts)):
        try:
            lstat(one)
        except OSError as error:
            if is_too_long_error(error):
                return False
    return True


def lstat(path: str | PurePath) -> os.stat_result:
    """Return the status of a file, folder or link, not following links, at any length.

    Raises:
        OSError: it is missing or cannot be examined.
    """
    return os.lstat(extended_path(path))


def stat(path: str | PurePath) -> os.stat_result:
    """Return the status of a file or folder, following links, at any length.

    Raises:
        OSError: it is missing or cannot be examined.
    """
    return os.stat(extended_path(path))  # noqa: PTH116 - a path object takes longer than to look


def exists(path: Path) -> bool:
    """Whether something exists at a path of any length."""
    return Path(extended_path(path)).exists()


def lexists(path: Path) -> bool:
    """Whether something exists at a path of any length, or a link whose target need not exist."""
    return os.path.lexists(extended_path(path))


def is_file(path: Path) -> bool:
    """Whether a path of any length is a file."""
    return Path(extended_path(path)).is_file()


def is_folder(path: Path) -> bool:
    """Whether a path of any length is a folder."""
    return Path(extended_path(path)).is_dir()


def is_link(path: Path) -> bool:
    """Whether a path of any length is a symbolic link or a Windows junction."""
    if _HAS_JUNCTIONS and is_folder(path):
        return is_link_stat(lstat(path))
    return Path(extended_path(path)).is_symlink()


def is_link_stat(status: os.stat_result) -> bool:
    """Whether a file's own status (``lstat``) is that of a symbolic link or a Windows junction."""
    return S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder at a path of any length.

    Raises:
        OSError: it cannot be listed.
    """
    return [entry.name for entry in Path(extended_path(folder)).iterdir()]


def walk(
    folder: Path, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk like :func:`os.walk`, at any depth, yielding plain paths.

    Folders that the caller removes from the yielded list are not descended into. Links to folders, and junctions of
    Windows, are not followed. ``onerror`` is called with each error of listing a folder; by default it is ignored.
    """
    waiting = [str(folder)]
    while waiting:
        current = waiting.pop()
        try:
            with os.scandir(extended_path(current)) as entries:
                found = list(entries)
        except OSError as error:
            if onerror is not None:
                error.filename = current
                onerror(error)
            continue
        folders: list[str] = []
        files: list[str] = []
        linked = {entry.name for entry in found if is_link_entry(entry)}
        for entry in found:
            names = files
            with suppress(OSError):
                names = folders if entry.is_dir() else files
            names.append(entry.name)
        yield current, folders, files
        waiting += [os.path.join(current, name) for name in reversed(folders) if name not in linked]  # noqa: PTH118


def is_link_entry(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a folder is a symbolic link or a Windows junction."""
    return entry.is_symlink() or (_HAS_JUNCTIONS and is_link_stat(entry.stat(follow_symlinks=False)))


def iterate_below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder, which need not exist; links are yielded, not followed."""
    for within, folders, names in walk(folder):
        yield from (Path(within, name) for name in (*folders, *names))


# File names. White space, trimming and extensions are JavaScript's (see :mod:`regraft.text`).


#: Longest name that every common file system takes, in UTF-8 bytes.
MAX_NAME_BYTES = 255
#: A longer extension, in bytes, counts as part of the stem.
MAX_EXTENSION_BYTES = 100
#: Longest sanitized base id, in UTF-16 units.
MAX_BASE_ID_UNITS = 255
#: For an upload of this type, ``<stem>.md`` is reserved for the text that a file processor extracts.
RESERVING_EXTENSION = ".pdf"
#: For uploads of these types a file processor wrote an ``.md`` file; releases up to 2.0.3 reserved its name for every
#: type.
PROCESSED_EXTENSIONS = frozenset({".pdf", ".doc", ".docx", ".pptx", ".xlsx", ".xls"})
#: Types of files that are not plain text: the application has its own loader for them, or none.
NO_TEXT_EXTENSIONS = frozenset(
    (
        *(".pdf", ".doc", ".docx", ".ppt", ".pptx", ".xls", ".xlsx", ".odt", ".ods", ".odp", ".epub"),
        *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".avif", ".heic", ".ico", ".tif", ".tiff", ".psd"),
        *(".mp3", ".wav", ".flac", ".aac", ".ogg", ".m4a", ".mp4", ".mov", ".avi", ".mkv", ".webm", ".wmv"),
        *(".zip", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".tar", ".iso", ".dmg", ".exe", ".dll", ".so"),
    )
)
#: The folder of a base that never holds the bytes of a material.
RESERVED_NAME = ".cherry"

_ILLEGAL = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
#: Most UTF-16 code units of a name on Windows.
_NAME_UNITS = 255
_DEVICE = re.compile(r"(con|prn|aux|nul|com[1-9]|lpt[1-9])(?=\.|$)", re.IGNORECASE)
#: Windows treats superscript digits as digits here; v1's own sanitizing does not.
_SUPERSCRIPT_DEVICE = re.compile(r"(com|lpt)[¹²³](?=\.|$)", re.IGNORECASE)
#: Characters that a name may not end with.
TRAILING_CHARACTERS = JS_WHITESPACE + "."


def sanitize_name(name: str) -> str:
    """Turn ``name`` into a file name that is legal on every platform.

    The empty string stays empty; a name of illegal characters only becomes ``untitled``.
    """
    if not name:
        return ""
    legal = _ILLEGAL.sub("_", name)
    legal = _DEVICE.sub("_", legal, count=1) if _DEVICE.match(legal) else legal
    return legal.rstrip(TRAILING_CHARACTERS) or "untitled"


def vector_file_name(base_id: str) -> str:
    """Return the name of a v1 base's vector file under ``Data/KnowledgeBase``."""
    return utf16_cut(sanitize_name(base_id), MAX_BASE_ID_UNITS)


def sanitize_material_name(name: str) -> str:
    """Make ``name`` legal for ``raw/`` in a repair: sanitize until nothing changes.

    Trimming blanks can expose a device name (``CON ``). :class:`FreeNames` reserves ``.cherry``.
    """
    legal = sanitize_name(sanitize_name(name))
    return _SUPERSCRIPT_DEVICE.sub("_", legal, count=1) if _SUPERSCRIPT_DEVICE.match(legal) else legal


def is_storable(name: str, *, windows: bool = os.name == "nt") -> bool:
    """Whether this system stores a file under exactly this name, which has no separator.

    Windows refuses some names, and those of more than 255 code units, reads others as devices or as streams of another
    file, and leaves dots and blanks at the end out.
    """
    device = name.partition(".")[0].rstrip(" ")
    return not windows or not (
        _ILLEGAL.search(name)
        or name.endswith((" ", "."))
        or _DEVICE.match(device)
        or _SUPERSCRIPT_DEVICE.match(device)
        or utf16_len(name) > _NAME_UNITS
    )


def is_folder_name(name: str) -> bool:
    """Whether ``name`` is one legal folder name on every platform, and thus cannot point anywhere else.

    This is the rule for base ids, which name their folders (``docs/formats/library.md``, "Values").
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= MAX_NAME_BYTES and sanitize_material_name(name) == name and fold_name(name) != RESERVED_NAME


def split_extension(name: str) -> tuple[str, str]:
    """Split ``name`` into stem and extension (with its dot) as JavaScript's ``path.extname`` does."""
    dot = name.rfind(".")
    return (name, "") if dot <= 0 else (name[:dot], name[dot:])


def fold_name(name: str) -> str:
    """Return the form in which names are compared (NFC, lower case): names of equal form count as one."""
    return unicodedata.normalize("NFC", name).lower()


def disk_name(name: str) -> str:
    """Return ``name`` as the file systems of this platform compare it."""
    return fold_name(name) if sys.platform in ("darwin", "win32") else name


class FreeNames:
    """Chooses unused names for one folder, ignoring case and Unicode normalization.

    :data:`RESERVED_NAME` is always taken.

    Args:
        taken: names that are taken, as :func:`fold_name` returns them.
        reserve_processed: keep ``<stem>.md`` free beside every upload for which a file processor would write one.
    """

    def __init__(self, taken: Iterable[str] = (), *, reserve_processed: bool = False) -> None:
        self._taken = {RESERVED_NAME, *taken}
        self._next: dict[str, int] = {}
        self._reserve_processed = reserve_processed

    def taken(self) -> frozenset[str]:
        """Return the folded names taken so far, for a later :class:`FreeNames` of the same folder."""
        return frozenset(self._taken)

    def take(self, name: str) -> str:
        """Return the first unused name of ``stem.ext``, ``stem_1.ext``, ``stem_2.ext``…, and mark it as taken.

        ``name`` must be sanitized. A stem that is too long is cut between code points; the extension stays.
        """
        stem, extension = split_extension(name)
        if len(extension.encode()) > MAX_EXTENSION_BYTES:
            stem, extension = name, ""
        reserves = self._reserve_processed and extension.lower() == RESERVING_EXTENSION
        # Numbers of equal requests only grow, so continue after the last one. Another spelling is another request: its
        # stem may be cut elsewhere, so a lower number can be free.
        request = f"{name}\0{reserves}"
        number = self._next.get(request, 0)
        while True:
            candidate, beside = self._number_candidate(stem, extension, number, reserves)
            wanted = {fold_name(candidate)} | ({fold_name(beside)} if beside else set())
            if not wanted & self._taken:
                self._taken |= wanted
                self._next[request] = number + 1
                return candidate
            number += 1

    @staticmethod
    def _number_candidate(stem: str, extension: str, number: int, reserves: bool) -> tuple[str, str | None]:
        """Return ``stem_number.ext`` (0 adds no number) with the stem cut to fit, and the name to reserve beside it.

        That name is ``stem_number.md`` if ``reserves`` is true, otherwise None.
        """
        suffix = f"_{number}" if number else ""
        tail = max(len(extension.encode()), len(".md") if reserves else 0)
        room = MAX_NAME_BYTES - len(suffix) - tail
        short = stem
        if len(stem.encode()) > room:
            short = utf8_cut(stem, room)
            if not suffix and not extension:
                short = short.rstrip(TRAILING_CHARACTERS) or "_"
        return f"{short}{suffix}{extension}", f"{short}{suffix}.md" if reserves else None


# Paths of migrated folders: the folder's prefix below ``raw/`` and the path of each of its files.
# They follow from v1's strings alone, without looking at the file system. No file is stored at such a path, but the
# application deletes ``raw/<prefix>`` with its folder, so nothing else in ``raw/`` may have the name of a prefix.


#: Longest path segment, in UTF-16 units.
MAX_SEGMENT_UNITS = 255
#: The name of a folder without one: the root of a disk.
ROOT_PREFIX = "root"
#: The name of a file without one.
UNTITLED = "untitled"

_SEPARATORS = re.compile(r"[/\\]+")


def path_segments(path: str) -> list[str]:
    """Split a path of any system into its segments; ``..`` and drive letters are ordinary segments."""
    return [segment for segment in _SEPARATORS.split(path) if segment not in ("", ".")]


def safe_segment(segment: str) -> str:
    """Return a legal segment of at most 255 UTF-16 units."""
    return utf16_cut(sanitize_name(segment), MAX_SEGMENT_UNITS)


class FolderPrefixes:
    """Chooses the prefixes of one base's folders, each unique when folded.

    Args:
        taken: names in the root of ``raw/`` that no prefix may use.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._free = _FreePaths({RESERVED_NAME, *map(fold_name, taken)})

    def take(self, folder: str) -> str:
        """Choose the prefix of a folder of v1, given by its path: the last segment, with ``_1``, ``_2``… if taken."""
        return self._free.take("", safe_segment((path_segments(folder) or [ROOT_PREFIX])[-1]), "")


class ChildPaths:
    """Chooses the paths of one folder's files, each unique when folded.

    Args:
        folder: the folder's path in v1.
        prefix: the folder's prefix.
        taken: paths, with the prefix, that files of the folder already have.
        raw: the ``raw/`` folder, if the files are stored there: then no path is that of a folder, or below a file.
    """

    def __init__(self, folder: str, prefix: str, taken: Iterable[str] = (), raw: Path | None = None) -> None:
        self._folder = [fold_name(segment) for segment in path_segments(folder)]
        self._prefix = prefix
        self._free = _FreePaths(set(map(fold_name, taken)), raw)
        #: number of files so far whose source path is not below the folder
        self.outside = 0

    def take(self, source: str) -> str:
        """Choose an unused path for a file, given by its path in v1: ``<prefix>/<path relative to the folder>``.

        A file outside of the folder gets ``<prefix>/<name>``. Numbers are appended to what is taken.
        """
        inner = self._segments_below(path_segments(source))
        *folders, name = [safe_segment(segment) for segment in inner] or [UNTITLED]
        above = f"{self._prefix}/"
        for folder in folders:
            above = f"{self._free.take_folder(above, folder)}/"
        return self._free.take(above, *split_extension(name))

    def _segments_below(self, segments: list[str]) -> list[str]:
        """Return the segments of a path that are below the folder; only the last one if the path is outside."""
        depth = len(self._folder)
        if len(segments) > depth and [fold_name(segment) for segment in segments[:depth]] == self._folder:
            return segments[depth:]
        self.outside += 1
        return segments[-1:]


class _FreePaths:
    """Paths that are taken, when folded, and the next number for each request.

    Args:
        taken: the paths of files.
        raw: the folder that the files are stored in; None: they are only names, and a file can be above another.
    """

    def __init__(self, taken: set[str], raw: Path | None = None) -> None:
        self._taken = taken
        self._raw = raw
        self._next: dict[str, int] = {}
        self._folders: set[str] = set()
        if raw is not None:
            self._folders = {path[: end.start()] for path in taken for end in re.finditer("/", path)}

    def take_folder(self, above: str, name: str) -> str:
        """Return the first path of ``name``, ``name_1``… that no file has, and reserve it for a folder.

        ``above`` is the path of its parent folder with a slash at the end; empty: the root.
        """
        number = 0
        while self._is_file(path := f"{above}{_numbered_segment(*split_extension(name), number)}"):
            number += 1
        if self._raw is not None:
            self._folders.add(fold_name(path))
        return path

    def _is_file(self, path: str) -> bool:
        """Whether a path is taken by a file, on disk or by an earlier choice."""
        if self._raw is None:
            return False
        is_there = os.path.lexists(self._raw / path) and not is_folder(self._raw / path)
        return is_there or fold_name(path) in self._taken

    def take(self, above: str, stem: str, extension: str) -> str:
        """Return the first unused path of ``stem.ext``, ``stem_1.ext``…, and mark it as taken.

        ``above`` is as for :meth:`take_folder`.
        """
        request = f"{above}{stem}{extension}"
        number = self._next.get(request, 0)
        while True:
            path = f"{above}{_numbered_segment(stem, extension, number)}"
            folded = fold_name(path)
            has_folder = self._raw is not None and (folded in self._folders or is_folder(self._raw / path))
            if folded not in self._taken and not has_folder:
                break
            number += 1
        # Paths are never released, so the next request of this name continues after this one.
        self._next[request] = number + 1
        self._taken.add(folded)
        return path


def _numbered_segment(stem: str, extension: str, number: int) -> str:
    """Return ``stem_number.ext`` (0 adds no number), cut to :data:`MAX_SEGMENT_UNITS`: the stem first."""
    if not number:
        return f"{stem}{extension}"
    suffix = f"_{number}"
    room = MAX_SEGMENT_UNITS - len(suffix)
    if utf16_len(extension) > room:
        extension = utf16_cut(extension, room).rstrip(TRAILING_CHARACTERS)
    return f"{utf16_cut(stem, room - utf16_len(extension))}{suffix}{extension}"
