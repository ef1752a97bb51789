"""Printing: results, questions and errors of all commands, and text layout on terminals (``docs/commands.md``).

Everything that is printed goes through :func:`echo` and :func:`echo_error`, which escape what could control a terminal.
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
    WORTH_READING,
    InputEnded,
    OutputLost,
    RegraftError,
    StoppedBySystem,
)
from regraft.language import tr
from regraft.processes import interrupts, startup
from regraft.text import printable, printable_lines, text_width

# On a terminal, text is wrapped at words with a hanging indent, and colored; elsewhere it stays as it is.

#: A command at the end of a line, after a colon or alone; it is not wrapped, so that it can be copied.
_COMMAND = re.compile(r"(?:(?<=: )|(?<=^)|(?<=  ))regraft [a-z-]+ .*$")
#: A line with a path alone, which may contain blanks; it is not wrapped.
_PATH_LINE = re.compile(r"\s+(?:/|~/|[A-Za-z]:\\|\\\\)")
#: The start of an entry before its text: a bullet, a rank, or a label followed by two blanks.
_LABEL = re.compile(r"[-…•] |\d+  |[\w.:-]+(?: [\w.:-]+)?  +(?=\S)")
#: ENABLE_VIRTUAL_TERMINAL_PROCESSING of a console of Windows.
_VT_MODE = 0x4
#: A narrower terminal breaks lines itself.
_LEAST_WIDTH = 40
#: Below it applications keep their data on macOS.
_FOLDER_OF_MACOS = "Application Support"
#: Chinese and Japanese have no blanks: a line may end behind these.
_BREAKS_BEHIND = re.compile("(?<=[\u3001\u3002\uff0c\uff1a\uff1b\uff01\uff1f])")
#: Replaces blanks at which no line may be broken; printable text has no such character.
_KEPT_BLANK = "\0"


def format_for_terminal(text: str, stream: TextIO) -> str:
    """Wrap and color text if the stream is a terminal that supports it."""
    width = terminal_width(stream)
    if width is not None:
        text = "".join(wrap_line(line, width) for line in text.splitlines(keepends=True))
    return colorize(text) if supports_color(stream) else text


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns of a terminal; None for other streams, and for terminals too narrow to wrap text."""
    if not stream.isatty():
        return None
    try:
        stated = os.environ.get("COLUMNS", "")
        width = int(stated) if stated.isdecimal() and int(stated) else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None
    return width if width >= _LEAST_WIDTH else None


def supports_color(stream: TextIO) -> bool:
    """Whether text on a stream is colored: ``NO_COLOR`` forbids it, ``FORCE_COLOR`` forces it on every stream."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    if not stream.isatty():
        return False
    # Older consoles of Windows print escape sequences as they are.
    if sys.platform == "win32":
        import ctypes  # noqa: PLC0415 - only there
        import msvcrt  # noqa: PLC0415

        with contextlib.suppress(OSError, ValueError):
            return enable_escapes(msvcrt.get_osfhandle(stream.fileno()), ctypes.windll.kernel32)
        return False
    return os.environ.get("TERM") != "dumb"


def enable_escapes(handle: int, kernel: Any) -> bool:
    """Turn on escape sequences (VT mode) in a console of Windows; return whether they work.

    Args:
        handle: the handle of the console.
        kernel: the library kernel32 of Windows.
    """
    import ctypes  # noqa: PLC0415 - only on Windows

    mode, console = ctypes.c_uint32(), ctypes.c_void_p(handle)
    if not kernel.GetConsoleMode(console, ctypes.byref(mode)):
        return False
    if mode.value & _VT_MODE:
        return True
    return bool(kernel.SetConsoleMode(console, mode.value | _VT_MODE))


def colorize(text: str) -> str:
    """Color words like "error" and "done" in a text."""
    pattern, colors = _colored_words()
    return pattern.sub(lambda word: click.style(word[0], fg=colors[word[1].lower()]), text)


@cache
def _colored_words() -> tuple[re.Pattern[str], dict[str, str]]:
    """Return a pattern that finds words to color, and the color of each word in lower case.

    The words are in English and in the language of this process. The pattern finds them at the beginning of a line or a
    column, or after a number. Elsewhere they may be part of a name or a text.
    """
    from regraft.report.labels import label_of, severity_label  # noqa: PLC0415 - only a terminal needs them

    colors = {
        "error": "red",
        "failed": "red",
        "warning": "yellow",
        "done": "green",
        severity_label("error"): "red",
        label_of("failed"): "red",
        severity_label("warning"): "yellow",
        label_of("done"): "green",
    }
    alternatives = "|".join(map(re.escape, sorted(colors, key=len, reverse=True)))
    pattern = re.compile(
        rf"(?im:(?:^|(?<=^ )|(?<=  )|(?<=\d )|(?<=\d 个))({alternatives})(?:(?<=[a-z])s)?)"
        r"(?=[\s:,;.)：，；。）]|$)(?!\.\w)"
    )
    return pattern, colors


def wrap_line(line: str, width: int) -> str:
    """Wrap a line to at most ``width`` columns; words, paths and commands are not broken, however long."""
    if text_width(line) <= width or _PATH_LINE.match(line):
        return line
    end = "\n" if line.endswith("\n") else ""
    body = line.rstrip()
    indent = " " * hanging_indent(body, width)
    start = len(body) - len(body.lstrip())
    lines, row = [], body[:start]
    for part in _split_text(body[start:]):
        if row.strip() and text_width(row + part.rstrip()) > width:
            lines.append(row.rstrip())
            row = indent
        row += part
    return "\n".join([*lines, row]).replace(_KEPT_BLANK, " ") + end


def hanging_indent(line: str, width: int) -> int:
    """Return the column at which the wrapped rest of a line begins: below its text, after its bullet or label.

    A column in the right half of ``width`` is not used; the rest is then indented by two.
    """
    start = len(line) - len(line.lstrip())
    label = _LABEL.match(line, start)
    # An id in brackets is not the text of a label.
    is_label = label is not None and line[label.end() : label.end() + 1] != "("
    behind = text_width(line[: label.end()]) if label is not None and is_label else start + 2
    return behind if behind <= width // 2 else start + 2


def _split_text(text: str) -> Iterator[str]:
    """Split text where a line may be broken; each part keeps the blanks after it."""
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
    """List known names and paths that contain blanks, longest first; lines are not broken inside of them."""
    words = {_FOLDER_OF_MACOS, *map(printable, sys.argv[1:])}
    with contextlib.suppress(OSError, RuntimeError):
        words |= {printable(Path.cwd()), printable(Path.home())}
    return tuple(sorted((word for word in words if " " in word), key=len, reverse=True))


# What only an error or a document needs is loaded where one is: `regraft --version` and `--help` have neither.

F = TypeVar("F", bound=Callable[..., Any])
#: What a command's context has once its document begins to be printed.
_TOLD = f"{__name__}.told"


def report_errors(command: F) -> F:
    """Let a command report errors in one line on stderr and by its exit status; with ``--json`` also in a document."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        """Run the command; an exception is reported, and ends the process."""
        name, as_json, verbose = command.__name__, kwargs["as_json"], kwargs["verbose"]
        try:
            command(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            from regraft.api.outcome import as_regraft_error  # noqa: PLC0415 - see above

            # If another error is reported instead, the original traceback is printed here.
            reported = as_regraft_error(error)
            if verbose > 1 and reported is not error:
                echo_traceback(error)
            fail(reported, name, as_json=as_json, verbose=verbose if reported is error else 0)

    return run  # type: ignore[return-value]


def set_command_name(name: str) -> Callable[[F], F]:
    """Make a decorator that sets the name under which :func:`report_errors` reports a command."""

    def named(command: F) -> F:
        """Set the name of a command."""
        command.__name__ = name
        return command

    return named


def fail(error: RegraftError, command: str, *, as_json: bool, verbose: int) -> NoReturn:
    """Print an error of a command, and the configuration that it suggests, and exit with its status.

    ``verbose`` is how often ``-v`` was given.
    """
    from regraft.report.document import Suggestion  # noqa: PLC0415

    interrupts.ignore_stops()
    found = error.facts.get("suggestion")
    suggestion = found if isinstance(found, Suggestion) else None
    if verbose > 1:
        echo_traceback(error)
    if as_json and not _is_reported():
        import msgspec  # noqa: PLC0415

        from regraft.report.document import Run  # noqa: PLC0415

        head = {"regraft": Run(command=command).document()["regraft"]}
        fields = {"code": error.code, "message": str(error), "exit_status": error.exit_status}
        advised = {} if suggestion is None else {"suggestion": msgspec.to_builtins(suggestion)}
        echo_json({**head, "error": {**fields, **advised}})
    echo_error(tr("regraft: {error}", error=error))
    for line in suggestion.lines() if suggestion is not None and not as_json else ():
        echo_error(line)
    sys.exit(error.exit_status)


def echo_json(document: dict[str, Any]) -> None:
    """Print a JSON document; in ASCII if stdout is not UTF-8, so that every name can be printed."""
    from regraft.report import migration  # noqa: PLC0415

    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = migration.as_json(document, ascii_only=not is_utf8)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[_TOLD] = True
    echo(text, as_it_is=True)
    # The run is over: Ctrl-C no longer changes its result.
    interrupts.ignore_stops()


def _is_reported() -> bool:
    """Whether the command's JSON document was printed, at least in part: then an error must not print a second one."""
    context = click.get_current_context(silent=True)
    return context is not None and _TOLD in context.meta


def echo(text: str, *, as_it_is: bool = False) -> None:
    """Print whole lines on stdout; on a terminal wrapped and colored, unless ``as_it_is``.

    A failure to write does not stop the command (:func:`final_status`).
    """
    _print(sys.stdout, printable(text, None, lines=True), as_it_is=as_it_is)


def echo_file(path: Path) -> None:
    """Copy a file to standard output."""
    import shutil  # noqa: PLC0415 - it brings every kind of compression along

    with path.open("rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def echo_error(line: str) -> None:
    """Print one line on stderr."""
    _print(sys.stderr, f"{printable(line, None)}\n")


def echo_traceback(error: BaseException) -> None:
    """Print the traceback of an error on stderr."""
    import traceback  # noqa: PLC0415

    _print(sys.stderr, printable("".join(traceback.format_exception(error)), None, lines=True))


def _print(stream: TextIO | None, text: str, *, as_it_is: bool = False) -> None:
    """Write text to a stream, made safe for a terminal unless ``as_it_is``."""
    if stream is not None:
        stream.write(text if as_it_is else format_for_terminal(text, stream))
        stream.flush()


def ask(question: str) -> bool:
    """Ask a question whose default answer is yes; return whether the user agrees.

    Raises:
        StoppedBySystem: the question cannot be shown.
        KeyboardInterrupt: the user pressed Ctrl-C or closed the input.
    """
    reason = startup.find_lost_output(with_reader=False)
    if reason is not None:
        raise StoppedBySystem(
            reason=tr("nothing was done, because the question cannot be shown ({reason})", reason=reason)
        )
    shown = tr("{question} [Y/n]", question=question)
    while True:
        try:
            answer = str(click.prompt(shown, default="", show_default=False))
        except click.Abort as error:
            raise KeyboardInterrupt from error
        agrees = parse_agreement(answer)
        if agrees is not None:
            return agrees
        echo_error(tr("Please answer y or n."))


def parse_agreement(answer: str) -> bool | None:
    """Whether an answer to a question with the default yes agrees; None if it is neither yes nor no."""
    answer = answer.strip().lower()
    if answer in ("", "y", "yes", tr("yes")):
        return True
    return False if answer in ("n", "no", tr("no")) else None


def read_line(question: str) -> str:
    """Ask a question and return the answer, one line without blanks around it.

    Raises:
        InputEnded: the input has ended.
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    try:
        return str(click.prompt(question, default="", show_default=False, prompt_suffix=" ")).strip()
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            echo("\n")
            raise InputEnded from error
        raise KeyboardInterrupt from error


def final_status(status: int) -> int:
    """Return the exit status of the process: ``status``, or 3 if the result could not be written to stdout."""
    reason = startup.find_lost_output()
    if reason is None or status not in (0, WORTH_READING):
        return status
    lost = OutputLost(output=tr("Standard output"), reason=reason)
    echo_error(tr("regraft: {lost}", lost=lost))
    return lost.exit_status


def format_written(paths: Iterable[Path]) -> str:
    """Format the list of paths that a command has written."""
    return tr("Written:") + "\n" + printable_lines(f"  {printable(path)}" for path in paths)


_PACKAGES = ("regraft", "migrators", "checks", "repair")


class _LogLines(logging.Handler):
    """Prints log records on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record on stderr, after the name of its logger."""
        echo_error(f"{record.name}: {record.getMessage()}")


@contextmanager
def show_log() -> Iterator[None]:
    """Show the log of regraft's modules on standard error within the context, for ``-vv``.

    Each module logs its decisions under its own name, so that a program that imports regraft can handle them too.
    """
    loggers = [logging.getLogger(package) for package in _PACKAGES]
    with attach_handler(_PACKAGES, _LogLines()):
        for logger in loggers:
            logger.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            for logger in loggers:
                logger.setLevel(logging.NOTSET)


@contextmanager
def attach_handler(names: Iterable[str], handler: logging.Handler) -> Iterator[None]:
    """Pass the records of these loggers to a handler, too, within the context."""
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
