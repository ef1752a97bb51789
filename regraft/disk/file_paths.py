r"""Paths that are longer than Windows takes by default: they are given to the system in their extended form.

Windows refuses paths of 260 characters and more, folders even of 248, unless a setting of the machine allows them.
Behind ``\\?\`` it takes 32,767. Only what is handed to the system has that form: what regraft keeps, compares and
shows has not.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath

from regraft.text import JS_WHITESPACE, utf8_cut, utf16_cut, utf16_len

_PREFIX, _UNC = "\\\\?\\", "\\\\?\\UNC\\"
#: The longest path that the system takes as it is, in characters; None: it has no such limit. A folder has to leave
#: room for a name of twelve characters.
MAX_PLAIN_LENGTH: int | None = 247 if os.name == "nt" else None
#: The longest path of a file that Windows takes as it is.
_LONGEST = 259
#: ERROR_FILENAME_EXCED_RANGE of Windows.
_TOO_LONG = 206


def extended_path(path: str | PurePath) -> str:
    """Return a path as the system takes it, however long it is."""
    text = os.fspath(path)
    return text if MAX_PLAIN_LENGTH is None or len(text) <= MAX_PLAIN_LENGTH else extended_root(text)


def extended_root(path: str | PurePath) -> str:
    """Return the path of a folder such that the system also takes what is joined to it, however long that gets."""
    text = os.fspath(path)
    if MAX_PLAIN_LENGTH is None or text.startswith(_PREFIX):
        return text
    return extended_form(os.path.abspath(text))  # noqa: PTH100 - Path.absolute leaves ``..`` in it


def extended_form(absolute: str) -> str:
    r"""Return the extended form of a path: ``\\?\C:\x``, of a share ``\\?\UNC\server\share\x``."""
    return f"{_UNC}{absolute[2:]}" if absolute.startswith("\\\\") else f"{_PREFIX}{absolute}"


def plain_path(path: str) -> str:
    """Return a path without what :func:`extended` put before it."""
    if path.startswith(_UNC):
        return f"\\\\{path.removeprefix(_UNC)}"
    return path.removeprefix(_PREFIX)


def is_too_long_error(error: OSError) -> bool:
    """Whether the system failed because a path, or a name in it, is too long."""
    return error.errno == errno.ENAMETOOLONG or getattr(error, "winerror", None) == _TOO_LONG


def is_too_long_write_error(error: OSError, path: PurePath) -> bool:
    """Whether a file could not be made because its path is too long; Windows may say that it is not there."""
    return is_too_long_error(error) or (isinstance(error, FileNotFoundError) and len(str(path)) > _LONGEST)


def is_hidden_by_length(path: Path) -> bool:
    """Whether a file is there, as far as folders list it, at a path that is too long for the system to look at."""
    try:
        lstat(path)
    except OSError as error:
        return is_too_long_write_error(error, path) and _is_listed(path)
    except ValueError:  # a NUL in the name
        pass
    return False


def _is_listed(path: Path) -> bool:
    try:
        return path.name in names_in(path.parent)
    except OSError:
        return path.parent != path and _is_listed(path.parent)


def fits_system(path: Path, folder: Path) -> bool:
    """Whether the system takes a path below a folder that is there; the path itself need not exist."""
    for one in (path, *(folder / name for name in path.relative_to(folder).parts)):
        try:
            lstat(one)
        except OSError as error:
            if is_too_long_error(error):
                return False
    return True


def lstat(path: str | PurePath) -> os.stat_result:
    """Return the status of a file, folder or link at a path of any length.

    Raises:
        OSError: nothing is there, or the system cannot tell.
    """
    return Path(extended_path(path)).lstat()


def stat(path: str | PurePath) -> os.stat_result:
    """Return the status of what a path of any length leads to.

    Raises:
        OSError: nothing is there, or the system cannot tell.
    """
    return Path(extended_path(path)).stat()


def exists(path: Path) -> bool:
    """Whether something is at a path of any length."""
    return Path(extended_path(path)).exists()


def is_file(path: Path) -> bool:
    """Whether a file is at a path of any length."""
    return Path(extended_path(path)).is_file()


def is_folder(path: Path) -> bool:
    """Whether a folder is at a path of any length."""
    return Path(extended_path(path)).is_dir()


def is_link(path: Path) -> bool:
    """Whether a link is at a path of any length."""
    return Path(extended_path(path)).is_symlink()


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder at a path of any length.

    Raises:
        OSError: it cannot be listed.
    """
    return [entry.name for entry in Path(extended_path(folder)).iterdir()]


def walk(
    folder: Path, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what :func:`os.walk` does, of folders at any depth, by paths that are not extended.

    What is taken from a list of folders is not descended into.
    """
    waiting = [str(folder)]
    while waiting:
        current = waiting.pop()
        try:
            with os.scandir(extended_path(current)) as entries:
                found = [(entry.name, _is_folder(entry), entry.is_symlink()) for entry in entries]
        except OSError as error:
            if onerror is not None:
                onerror(error)
            continue
        folders = [name for name, is_folder, _ in found if is_folder]
        yield current, folders, [name for name, is_folder, _ in found if not is_folder]
        linked = {name for name, _, is_linked in found if is_linked}
        waiting += [os.path.join(current, name) for name in reversed(folders) if name not in linked]  # noqa: PTH118


def iterate_below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder, which need not exist; links are yielded, not followed."""
    for within, folders, names in walk(folder):
        yield from (Path(within, name) for name in (*folders, *names))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


# File names: what may be one on every platform, and which one is still free.
#
# Rules: ``docs/rules.md``, "Names". White space, trimming and extensions are JavaScript's (see :mod:`regraft.text`).


#: The longest name that every common file system takes, in bytes of UTF-8.
MAX_NAME_BYTES = 255
#: An extension longer than this, in bytes, counts as part of the stem.
MAX_EXTENSION_BYTES = 100
#: The longest sanitised base id, in UTF-16 units.
MAX_BASE_ID_UNITS = 255
#: Uploads of this kind reserve ``<stem>.md`` for what a file processor makes of them.
RESERVING_EXTENSION = ".pdf"
#: Uploads of these kinds are what a file processor has made an ``.md`` of; releases up to 2.0.3 reserved it for all.
PROCESSED_EXTENSIONS = frozenset({".pdf", ".doc", ".docx", ".pptx", ".xlsx", ".xls"})
#: Extensions of files that hold no plain text: the application has a loader of their own for them, or none.
NO_TEXT_EXTENSIONS = frozenset(
    (
        *(".pdf", ".doc", ".docx", ".ppt", ".pptx", ".xls", ".xlsx", ".odt", ".ods", ".odp", ".epub"),
        *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".avif", ".heic", ".ico", ".tif", ".tiff", ".psd"),
        *(".mp3", ".wav", ".flac", ".aac", ".ogg", ".m4a", ".mp4", ".mov", ".avi", ".mkv", ".webm", ".wmv"),
        *(".zip", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".tar", ".iso", ".dmg", ".exe", ".dll", ".so"),
    )
)
#: The folder of a base that never holds material bytes.
RESERVED_NAME = ".cherry"

_ILLEGAL = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
_DEVICE = re.compile(r"(con|prn|aux|nul|com[1-9]|lpt[1-9])(?=\.|$)", re.IGNORECASE)
#: Windows takes superscript digits for digits here; v1's own sanitising does not.
_SUPERSCRIPT_DEVICE = re.compile(r"(com|lpt)[¹²³](?=\.|$)", re.IGNORECASE)
#: What no name may end with.
TRAILING_CHARACTERS = JS_WHITESPACE + "."


def sanitize_name(name: str) -> str:
    """Return ``name`` as a legal file name on every platform.

    The empty string stays empty; what becomes empty turns into ``untitled``.
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
    """Return ``name`` made legal for ``raw/`` where a repair gives it: sanitised until nothing is left to do.

    Cutting blanks can lay bare a device name (``CON ``). That ``.cherry`` is reserved, :class:`FreeNames` knows.
    """
    legal = sanitize_name(sanitize_name(name))
    return _SUPERSCRIPT_DEVICE.sub("_", legal, count=1) if _SUPERSCRIPT_DEVICE.match(legal) else legal


def is_folder_name(name: str) -> bool:
    """Tell whether a folder can be called so on every platform, so that it is one plain name and leads nowhere else.

    That is the rule for ids of bases, which are the names of their folders (``docs/formats/library.md``, "Values").
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
    """Return ``name`` for comparing only: two names with one fold count as one (NFC, then lower case)."""
    return unicodedata.normalize("NFC", name).lower()


def disk_name(name: str) -> str:
    """Return ``name`` as file systems of this kind of machine know it: two names of which that is equal are one."""
    return fold_name(name) if sys.platform in ("darwin", "win32") else name


class FreeNames:
    """Hands out names of one folder, each only once, ignoring case and Unicode normalisation.

    :data:`RESERVED_NAME` is taken from the start.

    Args:
        taken: keys of names that are taken (:func:`fold`).
        reserve_processed: whether ``<stem>.md`` is kept free beside every upload that a file processor would turn into
            one.
    """

    def __init__(self, taken: Iterable[str] = (), *, reserve_processed: bool = False) -> None:
        self._taken = {RESERVED_NAME, *taken}
        self._next: dict[str, int] = {}
        self._reserve_processed = reserve_processed

    def taken(self) -> frozenset[str]:
        """Return the keys of all names given out, for a later :class:`FreeNames` over the same folder."""
        return frozenset(self._taken)

    def take(self, name: str) -> str:
        """Return the first free one of ``stem.ext``, ``stem_1.ext``, ``stem_2.ext``… and keep it.

        ``name`` must be sanitised. Too long a stem is cut at a code point; the extension stays.
        """
        stem, extension = split_extension(name)
        if len(extension.encode()) > MAX_EXTENSION_BYTES:
            stem, extension = name, ""
        reserves = self._reserve_processed and extension.lower() == RESERVING_EXTENSION
        # Names of the same request are numbered upwards and never given back: start where the last one ended. Another
        # spelling is another request: its stem may be cut elsewhere, so that an earlier number can be free.
        request = f"{name}\0{reserves}"
        number = self._next.get(request, 0)
        while True:
            candidate, beside = self._numbered(stem, extension, number, reserves)
            wanted = {fold_name(candidate)} | ({fold_name(beside)} if beside else set())
            if not wanted & self._taken:
                self._taken |= wanted
                self._next[request] = number + 1
                return candidate
            number += 1

    @staticmethod
    def _numbered(stem: str, extension: str, number: int, reserves: bool) -> tuple[str, str | None]:
        """Return the candidate of that number and, where one is reserved beside it, that name."""
        suffix = f"_{number}" if number else ""
        tail = max(len(extension.encode()), len(".md") if reserves else 0)
        room = MAX_NAME_BYTES - len(suffix) - tail
        short = stem
        if len(stem.encode()) > room:
            short = utf8_cut(stem, room)
            if not suffix and not extension:
                short = short.rstrip(TRAILING_CHARACTERS) or "_"
        return f"{short}{suffix}{extension}", f"{short}{suffix}.md" if reserves else None


# Paths of what is in a migrated folder: the folder's prefix below ``raw/``, and the path of each of its files.
#
# Rules: ``docs/rules.md``, "Folders". They follow from v1's strings alone; no file system is asked. No file is ever
# behind such a path, but the application removes ``raw/<prefix>`` whole with its folder, so that nothing else in
# ``raw/`` may be called like a prefix.


#: The longest segment of a path, in UTF-16 units.
MAX_SEGMENT_UNITS = 255
#: What a folder without a name is called: the root of a disk.
ROOT_PREFIX = "root"
#: What a file without a name is called.
UNTITLED = "untitled"

_SEPARATORS = re.compile(r"[/\\]+")


def path_segments(path: str) -> list[str]:
    """Return the segments of a path of any system; ``..`` and drive letters are segments like others."""
    return [segment for segment in _SEPARATORS.split(path) if segment not in ("", ".")]


def safe_segment(segment: str) -> str:
    """Return a segment that every system takes, of at most 255 UTF-16 units."""
    return utf16_cut(sanitize_name(segment), MAX_SEGMENT_UNITS)


class FolderPrefixes:
    """Hands out the prefixes of one base's folders, each only once by fold.

    Args:
        taken: names in the root of ``raw/`` that no prefix may have.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._free = _FreePaths({RESERVED_NAME, *map(fold_name, taken)})

    def take(self, folder: str) -> str:
        """Return the prefix of a folder, by its path: its last segment, else that with ``_1``, ``_2``… behind it."""
        return self._free.take("", safe_segment((path_segments(folder) or [ROOT_PREFIX])[-1]), "")


class ChildPaths:
    """Hands out the paths of one folder's files, each only once by fold.

    Args:
        folder: the folder's path as v1 has it.
        prefix: its prefix.
        taken: paths that files of the folder have already, with the prefix.
    """

    def __init__(self, folder: str, prefix: str, taken: Iterable[str] = ()) -> None:
        self._folder = [fold_name(segment) for segment in path_segments(folder)]
        self._prefix = prefix
        self._free = _FreePaths(set(map(fold_name, taken)))
        #: How many files so far do not lie in the folder, as far as their sources tell.
        self.outside = 0

    def take(self, source: str) -> str:
        """Return the path of a file, by its source: its place in the folder, else its last segment alone."""
        rest = self._rest(path_segments(source))
        *folders, name = [safe_segment(segment) for segment in rest] or [UNTITLED]
        return self._free.take("".join(f"{one}/" for one in (self._prefix, *folders)), *split_extension(name))

    def _rest(self, parts: list[str]) -> list[str]:
        depth = len(self._folder)
        if len(parts) > depth and [fold_name(part) for part in parts[:depth]] == self._folder:
            return parts[depth:]
        self.outside += 1
        return parts[-1:]


class _FreePaths:
    """Paths that are taken, by their folds, and where to go on for each request."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._next: dict[str, int] = {}

    def take(self, above: str, stem: str, extension: str) -> str:
        """Return the first free one of ``stem.ext``, ``stem_1.ext``… below ``above`` and keep it."""
        request = f"{above}{stem}{extension}"
        number = self._next.get(request, 0)
        while fold_name(path := f"{above}{_numbered_segment(stem, extension, number)}") in self._taken:
            number += 1
        # Nothing is ever given back: the next request of this name starts behind this one.
        self._next[request] = number + 1
        self._taken.add(fold_name(path))
        return path


def _numbered_segment(stem: str, extension: str, number: int) -> str:
    """Return a segment with a number before its extension, of at most 255 UTF-16 units: the stem is cut first."""
    if not number:
        return f"{stem}{extension}"
    suffix = f"_{number}"
    room = MAX_SEGMENT_UNITS - len(suffix)
    ending = extension if utf16_len(extension) <= room else utf16_cut(extension, room).rstrip(TRAILING_CHARACTERS)
    return f"{utf16_cut(stem, room - utf16_len(ending))}{suffix}{ending}"
