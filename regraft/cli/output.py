"""What every command does with its result and its errors (``docs/commands.md``)."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from regraft import render
from regraft.envelope import Run
from regraft.errors import FaultOfRegraft, Interrupted, RegraftError, StoppedBySystem
from regraft.text import shown

F = TypeVar("F", bound=Callable[..., Any])


def reports_errors(command: F) -> F:
    """Turn errors into one line on stderr and their exit status; with --json, into one document on stdout too."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        name, as_json, verbose = command.__name__, kwargs["as_json"], kwargs["verbose"]
        try:
            command(*args, **kwargs)
        except RegraftError as error:
            fail(error, name, as_json=as_json, verbose=verbose)
        except KeyboardInterrupt:
            fail(Interrupted(finished=0), name, as_json=as_json, verbose=verbose)
        except OSError as error:
            fail(StoppedBySystem(reason=error), name, as_json=as_json, verbose=verbose)
        except Exception as error:
            if verbose > 1:
                traceback.print_exception(error)
            fault = FaultOfRegraft(kind=type(error).__name__, reason=error)
            fail(fault, name, as_json=as_json, verbose=0)

    return run  # type: ignore[return-value]


def fail(error: RegraftError, command: str, *, as_json: bool, verbose: int) -> None:
    """Say an error in one line (with ``as_json`` in a document too) and end with its exit status."""
    if verbose > 1:
        traceback.print_exception(error)
    if as_json:
        head = {"regraft": Run(command).document()["regraft"]}
        said = {"code": error.code, "message": str(error), "exit_status": error.exit_status}
        echo_json({**head, "error": said})
    click.echo(f"regraft: {error}", err=True)
    sys.exit(error.exit_status)


def echo_json(document: dict[str, Any]) -> None:
    """Print a document; a stdout that is not UTF-8 gets it in ASCII, so that no name is lost."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    say(render.as_json(document, ascii_only=not is_utf8))


def say(text: str) -> None:
    """Print ``text``; a reader that has gone away decides nothing about the work."""
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:
        # What follows, and what Python flushes at its end, goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def written_list(paths: Iterable[Path]) -> str:
    """Return the list of what a run has written, which stands at its end."""
    return "Written:\n" + "".join(f"  {shown(path)}\n" for path in paths)
