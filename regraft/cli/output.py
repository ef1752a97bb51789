"""What every command does with its result and its errors (``docs/commands.md``).

Everything that is printed goes through :func:`say` and :func:`note`, and by them through :func:`regraft.text.printable`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import click

from regraft.errors import (
    REFUSED,
    STOPPED,
    WORTH_READING,
    FaultOfRegraft,
    Interrupted,
    OutputLost,
    RegraftError,
    StoppedBySystem,
)
from regraft.language import tr
from regraft.processes import interrupts, streams
from regraft.text import printable, printable_lines, text_width

# How text is set on a terminal: wrapped at words with a hanging indent, and coloured; elsewhere it stays as it is.


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


def format_for_terminal(text: str, stream: TextIO) -> str:
    """Return text as it is written to a stream: wrapped and coloured as far as that is a terminal that can do it."""
    width = terminal_width(stream)
    if width is not None:
        text = "".join(wrap_line(line, width) for line in text.splitlines(keepends=True))
    return colorize(text) if supports_color(stream) else text


def terminal_width(stream: TextIO) -> int | None:
    """Return how many columns a terminal has; None: it is none, or so narrow that it is left to itself."""
    if not stream.isatty():
        return None
    try:
        stated = os.environ.get("COLUMNS", "")
        width = int(stated) if stated.isdecimal() and int(stated) else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None
    return width if width >= _LEAST_WIDTH else None


def supports_color(stream: TextIO) -> bool:
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
            return enable_escapes(msvcrt.get_osfhandle(stream.fileno()), ctypes.windll.kernel32)
        return False
    return os.environ.get("TERM") != "dumb"


def enable_escapes(handle: int, kernel: Any) -> bool:
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


def colorize(text: str) -> str:
    """Return text with its telling words in colour."""
    colours = _colours()
    return _coloured(*colours).sub(lambda word: click.style(word[0], fg=colours[word[1].lower()]), text)


@cache
def _colours() -> dict[str, str]:
    """Return the colours of the words that have one, in English and in the language of this process."""
    from regraft.report.labels import label_of, severity_label  # noqa: PLC0415 - only a terminal needs them

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


def wrap_line(line: str, width: int) -> str:
    """Return a line as lines of at most ``width`` columns; words, paths and commands stay whole, however long."""
    if text_width(line) <= width or _PATH_LINE.match(line):
        return line
    end = "\n" if line.endswith("\n") else ""
    body = line.rstrip()
    indent = " " * hanging_indent(body, width)
    start = len(body) - len(body.lstrip())
    lines, row = [], body[:start]
    for part in _parts(body[start:]):
        if row.strip() and text_width(row + part.rstrip()) > width:
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
    behind = text_width(line[: label.end()]) if label is not None and is_label else start + 2
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
    words = {_FOLDER_OF_MACOS, *map(printable, sys.argv[1:])}
    with contextlib.suppress(OSError, RuntimeError):
        words |= {printable(Path.cwd()), printable(Path.home())}
    return tuple(sorted((word for word in words if " " in word), key=len, reverse=True))


# What only an error or a document needs is loaded where one is: `regraft --version` and `--help` have neither.

F = TypeVar("F", bound=Callable[..., Any])
#: What a command's context has once its document begins to be printed.
_TOLD = f"{__name__}.told"


def report_errors(command: F) -> F:
    """Turn errors into one line on stderr and their exit status; with --json, into one document on stdout too."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        name, as_json, verbose = command.__name__, kwargs["as_json"], kwargs["verbose"]
        try:
            command(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            # What something else is said of is traced here, with what it was itself.
            message = _as_it_came(error)
            if verbose > 1 and message is not error:
                echo_traceback(error)
            fail(message, name, as_json=as_json, verbose=verbose if message is error else 0)

    return run  # type: ignore[return-value]


def _as_it_came(error: BaseException) -> RegraftError:
    """Return what to say of an error; where a stop tore what ended with it, the stop."""
    if isinstance(error, RegraftError) and error.exit_status not in (REFUSED, STOPPED):
        return error
    if interrupts.is_caused_by_stop(error):
        return Interrupted(finished=getattr(error, "facts", {}).get("finished", 0))
    if isinstance(error, RegraftError):
        return error
    from regraft.disk import sqlite  # noqa: PLC0415

    if isinstance(error, OSError) and error.strerror:
        path = f"{printable(os.fsdecode(error.filename))}: " if isinstance(error.filename, str | bytes) else ""
        return StoppedBySystem(reason=path + error.strerror)
    if isinstance(error, (OSError, *sqlite.SYSTEM_ERRORS)):
        return StoppedBySystem(reason=error)
    return FaultOfRegraft(kind=type(error).__name__, reason=error)


def fail(error: RegraftError, command: str, *, as_json: bool, verbose: int) -> NoReturn:
    """Say an error in one line (with ``as_json`` in a document too), what to write where it says that something has
    to be written, and end with its exit status.
    """
    from regraft.report.suggestion import Suggestion  # noqa: PLC0415

    interrupts.ignore_stops()
    found = error.facts.get("suggestion")
    suggestion = found if isinstance(found, Suggestion) else None
    if verbose > 1:
        echo_traceback(error)
    if as_json and not _is_told():
        import msgspec  # noqa: PLC0415

        from regraft.report.document import Run  # noqa: PLC0415

        head = {"regraft": Run(command=command).document()["regraft"]}
        message = {"code": error.code, "message": str(error), "exit_status": error.exit_status}
        advised = {} if suggestion is None else {"suggestion": msgspec.to_builtins(suggestion)}
        echo_json({**head, "error": {**message, **advised}})
    echo_error(tr("regraft: {error}", error=error))
    for line in suggestion.lines() if suggestion is not None and not as_json else ():
        echo_error(line)
    sys.exit(error.exit_status)


def echo_json(document: dict[str, Any]) -> None:
    """Print a document; a stdout that is not UTF-8 gets it in ASCII, so that no name is lost."""
    from regraft.report import migration  # noqa: PLC0415

    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = migration.as_json(document, ascii_only=not is_utf8)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[_TOLD] = True
    echo(text, as_it_is=True)
    # The run is over, and what it came to is known: who asks it to stop now comes too late.
    interrupts.ignore_stops()


def _is_told() -> bool:
    """Tell whether the one document has begun to be printed: a stop meanwhile must not print a second one."""
    context = click.get_current_context(silent=True)
    return context is not None and _TOLD in context.meta


def echo(text: str, *, as_it_is: bool = False) -> None:
    """Print ``text``, of whole lines; a terminal gets it wrapped and coloured, unless it is to stay ``as_it_is``.

    That it cannot be written decides nothing about the work.
    """
    _print(sys.stdout, printable(text, None, lines=True), as_it_is=as_it_is)


def echo_file(path: Path) -> None:
    """Write a file as it is to standard output. That it cannot be written decides nothing about the work."""
    import shutil  # noqa: PLC0415 - it brings every kind of compression along

    with path.open("rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def echo_error(line: str) -> None:
    """Print one line on stderr."""
    _print(sys.stderr, f"{printable(line, None)}\n")


def echo_traceback(error: BaseException) -> None:
    """Print where an error came from on stderr."""
    import traceback  # noqa: PLC0415

    _print(sys.stderr, printable("".join(traceback.format_exception(error)), None, lines=True))


def _print(stream: TextIO | None, text: str, *, as_it_is: bool = False) -> None:
    if stream is not None:
        stream.write(text if as_it_is else format_for_terminal(text, stream))
        stream.flush()


def ask(question: str) -> bool:
    """Ask a person a question whose usual answer is yes.

    Raises:
        StoppedBySystem: nobody would see it.
        KeyboardInterrupt: the person leaves instead of answering.
    """
    reason = streams.find_lost_output(with_reader=False)
    if reason is not None:
        raise StoppedBySystem(reason=tr("nothing was done, for the question cannot be shown ({reason})", reason=reason))
    try:
        return click.confirm(question, default=True)
    except click.Abort as error:
        raise KeyboardInterrupt from error


def final_status(status: int) -> int:
    """Return the exit status of a run that ends with ``status``: 3 where its result could not be written."""
    reason = streams.find_lost_output()
    if reason is None or status not in (0, WORTH_READING):
        return status
    lost = OutputLost(output=tr("Standard output"), reason=reason)
    echo_error(tr("regraft: {lost}", lost=lost))
    return lost.exit_status


def format_written(paths: Iterable[Path]) -> str:
    """Return the list of what a run has written, which stands at its end."""
    return tr("Written:") + "\n" + printable_lines(f"  {printable(path)}" for path in paths)


# What ``-vv`` shows besides: what was decided while a command ran, and why; one line on standard error each.
#
# Modules say it through :mod:`logging`, each under its own name, so that a program that uses them can hear it, too.


_PACKAGES = ("regraft", "migrators", "checks", "repair")


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        echo_error(f"{record.name}: {record.getMessage()}")


@contextmanager
def log_decisions() -> Iterator[None]:
    """Show decisions as long as this lasts."""
    loggers = [logging.getLogger(package) for package in _PACKAGES]
    lines = _Lines()
    for logger in loggers:
        logger.addHandler(lines)
        logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(lines)
            logger.setLevel(logging.NOTSET)
