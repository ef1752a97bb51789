"""Command lines that are run by another one, in a process of its own (:mod:`regraft.fleet`)."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stderr, redirect_stdout

import msgspec

from regraft import workers
from regraft.cli import cli
from regraft.fleet import staging
from regraft.fleet.commands import Job
from regraft.fleet.engine import Ended, fault


def run(job: Job) -> Ended:
    """Do what is to be done with one library of a fleet, and return how it ended."""
    return safely(job, run_line)


def safely(job: Job, run: staging.RunLine) -> Ended:
    """Do what is to be done with a library; whatever it does to this process, the others are worked on."""
    begun = time.monotonic()
    workers.be_given(job.cores)
    try:
        return staging.done(job, run)
    except Exception as error:
        return fault(f"{type(error).__name__}: {error}", time.monotonic() - begun)


def run_line(arguments: tuple[str, ...], handed: object = None) -> Ended:
    """Run a command line that prints a document (``--json``), and return how it ended.

    Args:
        arguments: the command line.
        handed: what the command finds in its context (``click.Context.find_object``).
    """
    begun, status = time.monotonic(), 0
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(io.StringIO()):
            try:
                cli.main(list(arguments), prog_name="regraft", obj=handed)
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 0
        document = msgspec.json.decode(said.getvalue(), type=dict)
    except Exception as error:  # whatever one library does to it, the others are worked on
        return fault(f"{type(error).__name__}: {error}", time.monotonic() - begun)
    return Ended(status=status, document=document, seconds=time.monotonic() - begun)
