"""From a file below AngelMemory's ``raw/`` to the records of it (``docs/formats/angel_memory.md``, "Records")."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from regraft import links

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
    data = links.content(place)
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
