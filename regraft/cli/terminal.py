"""How text is set on a terminal: wrapped at words with a hanging indent, and coloured; elsewhere it stays as it is."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import click

from regraft.columns import columns
from regraft.text import shown

#: A command stands at the end of a line, after a colon or alone: it is copied as a whole.
_COMMAND = re.compile(r"(?:(?<=: )|(?<=^)|(?<=  ))regraft [a-z-]+ .*$")
#: A path in a list of paths takes a line of its own, and may have blanks in it.
_PATH_LINE = re.compile(r"\s+(?:/|~/|[A-Za-z]:\\|\\\\)")
#: What stands before the text of an entry: a sign, a rank, or a label with two blanks behind it.
_LABEL = re.compile(r"[-…•] |\d+  |[\w.:-]+(?: [\w.:-]+)?  +(?=\S)")
#: ENABLE_VIRTUAL_TERMINAL_PROCESSING of a console of Windows.
_VT_MODE = 0x4
#: A narrower terminal breaks lines itself.
_LEAST_WIDTH = 40
#: Below it applications keep their data on macOS.
_FOLDER_OF_MACOS = "Application Support"
#: Chinese and Japanese have no blanks: a line may end behind these.
_BREAKS_BEHIND = re.compile("(?<=[\u3001\u3002\uff0c\uff1a\uff1b\uff01\uff1f])")
#: Stands for a blank at which no line is broken; what is shown has no such character.
_KEPT_BLANK = "\0"


def set_text(text: str, stream: TextIO) -> str:
    """Return text as it is written to a stream: wrapped and coloured as far as that is a terminal that can do it."""
    width = width_of(stream)
    if width is not None:
        text = "".join(wrapped(line, width) for line in text.splitlines(keepends=True))
    return coloured(text) if has_colour(stream) else text


def width_of(stream: TextIO) -> int | None:
    """Return how many columns a terminal has; None: it is none, or so narrow that it is left to itself."""
    if not stream.isatty():
        return None
    try:
        stated = os.environ.get("COLUMNS", "")
        width = int(stated) if stated.isdecimal() and int(stated) else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None
    return width if width >= _LEAST_WIDTH else None


def has_colour(stream: TextIO) -> bool:
    """Tell whether text on a stream has colours: ``NO_COLOR`` forbids them, ``FORCE_COLOR`` wants them everywhere."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    if not stream.isatty():
        return False
    return _understands_colour(stream)


def _understands_colour(stream: TextIO) -> bool:
    """Whether a terminal reads escape sequences; older consoles of Windows print them as they are."""
    if sys.platform == "win32":
        import ctypes  # noqa: PLC0415 - only there
        import msvcrt  # noqa: PLC0415

        with contextlib.suppress(OSError, ValueError):
            return reads_escapes(msvcrt.get_osfhandle(stream.fileno()), ctypes.windll.kernel32)
        return False
    return os.environ.get("TERM") != "dumb"


def reads_escapes(handle: int, kernel: Any) -> bool:
    """Whether a console reads escape sequences (VT mode), after asking for it where it is off.

    Args:
        handle: of the console.
        kernel: kernel32 of Windows.
    """
    import ctypes  # noqa: PLC0415 - only on Windows

    mode, console = ctypes.c_uint32(), ctypes.c_void_p(handle)
    if not kernel.GetConsoleMode(console, ctypes.byref(mode)):
        return False
    if mode.value & _VT_MODE:
        return True
    return bool(kernel.SetConsoleMode(console, mode.value | _VT_MODE))


def coloured(text: str) -> str:
    """Return text with its telling words in colour."""
    colours = _colours()
    return _coloured(*colours).sub(lambda word: click.style(word[0], fg=colours[word[1].lower()]), text)


@cache
def _colours() -> dict[str, str]:
    """Return the colours of the words that have one, in English and in the language of this process."""
    from regraft.labels import label_of, severity_label  # noqa: PLC0415 - only a terminal needs them

    return {
        "error": "red",
        "failed": "red",
        "warning": "yellow",
        "done": "green",
        severity_label("error"): "red",
        label_of("failed"): "red",
        severity_label("warning"): "yellow",
        label_of("done"): "green",
    }


@cache
def _coloured(*words: str) -> re.Pattern[str]:
    """Return what finds words where they tell something.

    That is where they begin a line or a column, or are counted; elsewhere they may be of a name or a text.
    """
    alternatives = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return re.compile(
        rf"(?im:(?:^|(?<=^ )|(?<=  )|(?<=\d )|(?<=\d 个))({alternatives})(?:(?<=[a-z])s)?)"
        r"(?=[\s:,;.)：，；。）]|$)(?!\.\w)"
    )


def wrapped(line: str, width: int) -> str:
    """Return a line as lines of at most ``width`` columns; words, paths and commands stay whole, however long."""
    if columns(line) <= width or _PATH_LINE.match(line):
        return line
    end = "\n" if line.endswith("\n") else ""
    body = line.rstrip()
    indent = " " * hanging_indent(body, width)
    start = len(body) - len(body.lstrip())
    lines, row = [], body[:start]
    for part in _parts(body[start:]):
        if row.strip() and columns(row + part.rstrip()) > width:
            lines.append(row.rstrip())
            row = indent
        row += part
    return "\n".join([*lines, row]).replace(_KEPT_BLANK, " ") + end


def hanging_indent(line: str, width: int) -> int:
    """Return the column at which what follows of a line begins: below its text, behind its sign or label."""
    start = len(line) - len(line.lstrip())
    label = _LABEL.match(line, start)
    # An id in brackets is no text behind a label.
    is_label = label is not None and line[label.end() : label.end() + 1] != "("
    behind = columns(line[: label.end()]) if label is not None and is_label else start + 2
    return behind if behind <= width // 2 else start + 2


def _parts(text: str) -> Iterator[str]:
    """Yield what may stand on a line of its own, each with the blanks behind it."""
    kept = text
    command = _COMMAND.search(kept)
    wholes = _words_with_blanks()
    if command is not None:
        wholes = (command[0], *wholes)
    for whole in wholes:
        kept = kept.replace(whole, whole.replace(" ", _KEPT_BLANK))
    for word in re.findall(r"\S+ *", kept):
        if "/" in word or "\\" in word:
            yield word
        else:
            yield from (part for part in _BREAKS_BEHIND.split(word) if part)


@cache
def _words_with_blanks() -> tuple[str, ...]:
    """Return the names and paths with blanks in them that are known, longest first: they are not broken."""
    words = {_FOLDER_OF_MACOS, *map(shown, sys.argv[1:])}
    with contextlib.suppress(OSError, RuntimeError):
        words |= {shown(Path.cwd()), shown(Path.home())}
    return tuple(sorted((word for word in words if " " in word), key=len, reverse=True))
