"""What every command does with its result and its errors (``docs/commands.md``).

Everything that is printed goes through :func:`say` and :func:`note`, and by them through :func:`regraft.text.shown`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import click

from regraft import streams
from regraft.cli import terminal
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
from regraft.ledger import interrupts
from regraft.text import shown, shown_lines

# What only an error or a document needs is loaded where one is: `regraft --version` and `--help` have neither.

F = TypeVar("F", bound=Callable[..., Any])
#: What a command's context has once its document begins to be printed.
_TOLD = f"{__name__}.told"


def reports_errors(command: F) -> F:
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
                note_traceback(error)
            fail(message, name, as_json=as_json, verbose=verbose if message is error else 0)

    return run  # type: ignore[return-value]


def _as_it_came(error: BaseException) -> RegraftError:
    """Return what to say of an error; where a stop tore what ended with it, the stop."""
    if isinstance(error, RegraftError) and error.exit_status not in (REFUSED, STOPPED):
        return error
    if interrupts.is_behind(error):
        return Interrupted(finished=getattr(error, "facts", {}).get("finished", 0))
    if isinstance(error, RegraftError):
        return error
    from regraft import sqlite  # noqa: PLC0415

    if isinstance(error, OSError) and error.strerror:
        path = f"{shown(os.fsdecode(error.filename))}: " if isinstance(error.filename, str | bytes) else ""
        return StoppedBySystem(reason=path + error.strerror)
    if isinstance(error, (OSError, *sqlite.SYSTEM_ERRORS)):
        return StoppedBySystem(reason=error)
    return FaultOfRegraft(kind=type(error).__name__, reason=error)


def fail(error: RegraftError, command: str, *, as_json: bool, verbose: int) -> NoReturn:
    """Say an error in one line (with ``as_json`` in a document too), what to write where it says that something has
    to be written, and end with its exit status.
    """
    from regraft.suggestion import Suggestion  # noqa: PLC0415

    interrupts.over()
    found = error.facts.get("suggestion")
    suggestion = found if isinstance(found, Suggestion) else None
    if verbose > 1:
        note_traceback(error)
    if as_json and not _is_told():
        import msgspec  # noqa: PLC0415

        from regraft.report.document import Run  # noqa: PLC0415

        head = {"regraft": Run(command=command).document()["regraft"]}
        message = {"code": error.code, "message": str(error), "exit_status": error.exit_status}
        advised = {} if suggestion is None else {"suggestion": msgspec.to_builtins(suggestion)}
        echo_json({**head, "error": {**message, **advised}})
    note(tr("regraft: {error}", error=error))
    for line in suggestion.lines() if suggestion is not None and not as_json else ():
        note(line)
    sys.exit(error.exit_status)


def echo_json(document: dict[str, Any]) -> None:
    """Print a document; a stdout that is not UTF-8 gets it in ASCII, so that no name is lost."""
    from regraft.report import render  # noqa: PLC0415

    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = render.as_json(document, ascii_only=not is_utf8)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[_TOLD] = True
    say(text, as_it_is=True)
    # The run is over, and what it came to is known: who asks it to stop now comes too late.
    interrupts.over()


def _is_told() -> bool:
    """Tell whether the one document has begun to be printed: a stop meanwhile must not print a second one."""
    context = click.get_current_context(silent=True)
    return context is not None and _TOLD in context.meta


def say(text: str, *, as_it_is: bool = False) -> None:
    """Print ``text``, of whole lines; a terminal gets it wrapped and coloured, unless it is to stay ``as_it_is``.

    That it cannot be written decides nothing about the work.
    """
    _print(sys.stdout, shown(text, None, lines=True), as_it_is=as_it_is)


def say_bytes(path: Path) -> None:
    """Write a file as it is to standard output. That it cannot be written decides nothing about the work."""
    import shutil  # noqa: PLC0415 - it brings every kind of compression along

    with path.open("rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def note(line: str) -> None:
    """Print one line on stderr."""
    _print(sys.stderr, f"{shown(line, None)}\n")


def note_traceback(error: BaseException) -> None:
    """Print where an error came from on stderr."""
    import traceback  # noqa: PLC0415

    _print(sys.stderr, shown("".join(traceback.format_exception(error)), None, lines=True))


def _print(stream: TextIO | None, text: str, *, as_it_is: bool = False) -> None:
    if stream is not None:
        stream.write(text if as_it_is else terminal.set_text(text, stream))
        stream.flush()


def confirmed(question: str) -> bool:
    """Ask a person a question whose usual answer is yes.

    Raises:
        StoppedBySystem: nobody would see it.
        KeyboardInterrupt: the person leaves instead of answering.
    """
    reason = streams.lost_output(with_reader=False)
    if reason is not None:
        raise StoppedBySystem(reason=tr("nothing was done, for the question cannot be shown ({reason})", reason=reason))
    try:
        return click.confirm(question, default=True)
    except click.Abort as error:
        raise KeyboardInterrupt from error


def finished(status: int) -> int:
    """Return the exit status of a run that ends with ``status``: 3 where its result could not be written."""
    reason = streams.lost_output()
    if reason is None or status not in (0, WORTH_READING):
        return status
    lost = OutputLost(output=tr("Standard output"), reason=reason)
    note(tr("regraft: {lost}", lost=lost))
    return lost.exit_status


def written_list(paths: Iterable[Path]) -> str:
    """Return the list of what a run has written, which stands at its end."""
    return tr("Written:") + "\n" + shown_lines(f"  {shown(path)}" for path in paths)
