"""Runs the command line of one library in a worker process of a fleet (:mod:`regraft.fleet`)."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stderr, redirect_stdout

import msgspec

from regraft.cli import cli
from regraft.fleet import jobs
from regraft.fleet.engine import TaskResult, fault_result
from regraft.fleet.jobs import LibraryJob
from regraft.processes import pool


def run_job(job: LibraryJob) -> TaskResult:
    """Process one library of a fleet."""
    return run_job_safely(job, run_command_line)


def run_job_safely(job: LibraryJob, run: jobs.RunCommand) -> TaskResult:
    """Process one library; any exception becomes a result, so that the fleet continues."""
    begun = time.monotonic()
    pool.set_core_limit(job.cores)
    try:
        return jobs.run_library_job(job, run)
    except Exception as error:
        return fault_result(f"{type(error).__name__}: {error}", time.monotonic() - begun)


def run_command_line(arguments: tuple[str, ...], handed: object = None) -> TaskResult:
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
        return fault_result(f"{type(error).__name__}: {error}", time.monotonic() - begun)
    return TaskResult(status=status, document=document, seconds=time.monotonic() - begun)
