"""File names: what may be one on every platform, and which one is still free.

Rules: ``docs/rules.md``, "Names". White space, trimming and extensions are JavaScript's (see :mod:`regraft.text`).
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable

from regraft.text import JS_WHITESPACE, utf8_cut, utf16_cut

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
TRAILING = JS_WHITESPACE + "."


def sanitise(name: str) -> str:
    """Return ``name`` as a legal file name on every platform.

    The empty string stays empty; what becomes empty turns into ``untitled``.
    """
    if not name:
        return ""
    legal = _ILLEGAL.sub("_", name)
    legal = _DEVICE.sub("_", legal, count=1) if _DEVICE.match(legal) else legal
    return legal.rstrip(TRAILING) or "untitled"


def vector_file_name(base_id: str) -> str:
    """Return the name of a v1 base's vector file under ``Data/KnowledgeBase``."""
    return utf16_cut(sanitise(base_id), MAX_BASE_ID_UNITS)


def material_name(name: str) -> str:
    """Return ``name`` made legal for ``raw/`` where a repair gives it: sanitised until nothing is left to do.

    Cutting blanks can lay bare a device name (``CON ``). That ``.cherry`` is reserved, :class:`FreeNames` knows.
    """
    legal = sanitise(sanitise(name))
    return _SUPERSCRIPT_DEVICE.sub("_", legal, count=1) if _SUPERSCRIPT_DEVICE.match(legal) else legal


def is_folder_name(name: str) -> bool:
    """Tell whether a folder can be called so on every platform, so that it is one plain name and leads nowhere else.

    That is the rule for ids of bases, which are the names of their folders (``docs/formats/library.md``, "Values").
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= MAX_NAME_BYTES and material_name(name) == name and fold(name) != RESERVED_NAME


def split_extension(name: str) -> tuple[str, str]:
    """Split ``name`` into stem and extension (with its dot) as JavaScript's ``path.extname`` does."""
    dot = name.rfind(".")
    return (name, "") if dot <= 0 else (name[:dot], name[dot:])


def fold(name: str) -> str:
    """Return ``name`` for comparing only: two names with one fold count as one (NFC, then lower case)."""
    return unicodedata.normalize("NFC", name).lower()


def on_disk(name: str) -> str:
    """Return ``name`` as file systems of this kind of machine know it: two names of which that is equal are one."""
    return fold(name) if sys.platform in ("darwin", "win32") else name


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
            wanted = {fold(candidate)} | ({fold(beside)} if beside else set())
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
                short = short.rstrip(TRAILING) or "_"
        return f"{short}{suffix}{extension}", f"{short}{suffix}.md" if reserves else None
