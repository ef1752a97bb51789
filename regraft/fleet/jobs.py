"""Run one command on one library of a fleet; a library in object storage is copied to this machine's disk and
published.

Rules: ``docs/fleet.md``, "Object storage".
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec

from regraft.disk import durable, scratch
from regraft.disk.trees import require_free_space
from regraft.errors import WORTH_READING, LibraryHeld, RegraftError, SourceNotFound, StoppedBySystem, WorkFolderTooSmall
from regraft.fleet import versions
from regraft.fleet.engine import TaskError, TaskResult
from regraft.fleet.storage import ObjectGone, StoragePath, is_url, storage_path
from regraft.fleet.versions import Version
from regraft.options import FailOn


class CommandForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a command does with a library."""

    has_target: bool = False  # it writes to a target
    changes: bool = False  # it changes the source itself
    ending: str = ""  # the suffix of a target's name, which is a file then


COMMAND_FORMS = {
    "migrate": CommandForm(has_target=True),
    "check": CommandForm(),
    "repair": CommandForm(changes=True),
    "upgrade": CommandForm(changes=True),
    "export": CommandForm(has_target=True, ending=".parquet"),
    # Without the texts: the fleet's own backfill command sends those.
    "backfill": CommandForm(changes=True),
}


class CommandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed options of a library's command."""

    values: msgspec.Struct  # the struct of the command (:mod:`regraft.options`)
    fail_on: FailOn = "warning"  # the lowest severity that makes the exit status 1
    follows_links: bool = False  # whether links out of the source are followed

    @property
    def is_dry(self) -> bool:
        """Whether the command writes nothing to its source or target."""
        return bool(getattr(self.values, "dry_run", False))


#: Parses the options of a library, given the name of its command and the words.
ParseOptions = Callable[[str, tuple[str, ...]], CommandOptions]


class LibraryJob(msgspec.Struct, frozen=True, kw_only=True):
    """One command for one library, as plain values for another process."""

    command: str
    options: CommandOptions
    source: str  # a path or URL, as the target
    target: str | None = None
    fleet: str = ""  # the fleet's id, by which it recognizes its own leases
    cores: int = 1  # those that the library gets

    @property
    def form(self) -> CommandForm:
        """What the command does with the library."""
        return COMMAND_FORMS[self.command]

    @property
    def written(self) -> StoragePath | None:
        """The source or target that the command changes, if it is in object storage; otherwise None."""
        changed = self.source if self.form.changes else self.target
        return storage_path(changed) if changed and is_url(changed) and not self.options.is_dry else None


#: Seconds between two attempts to copy a library while copies of others fill the disk, and the most for all of them.
_FULL_PAUSE, _FULL_SECONDS = (1.0, 3.0), 3600.0

#: Runs the command of a job in this process; its source and target are paths.
RunCommand = Callable[[LibraryJob], TaskResult]


def run_library_job(job: LibraryJob, run: RunCommand) -> TaskResult:
    """Run a job with ``run``, on local copies of what is in object storage, and return its result."""
    if not is_url(job.source) and not is_url(job.target):
        return run(job)
    begun = time.monotonic()
    while True:
        # Of killed attempts: this process may have been there before them.
        scratch.remove_leftovers()
        urls: dict[str, str] = {}
        try:
            with scratch.temporary_folder() as folder:
                urls[str(folder)] = job.source
                ended = _run_with_copies(job, folder, urls, run)
        except (RegraftError, OSError) as error:
            ended = failed_result(error if isinstance(error, RegraftError) else StoppedBySystem(reason=error))
        seconds = time.monotonic() - begun
        is_full = ended.error is not None and ended.error.code == WorkFolderTooSmall.__name__
        if not (is_full and seconds < _FULL_SECONDS and scratch.is_used_by_others()):
            break
        # Copies of other libraries take the space; this one has been removed, and they end sooner or later.
        time.sleep(random.uniform(*_FULL_PAUSE))
    said = ended.error
    if said is not None:
        # Messages name URLs, not copies. The folder of the copies last: their paths begin with it.
        for copy in sorted(urls, key=len, reverse=True):
            said = msgspec.structs.replace(said, message=said.message.replace(copy, urls[copy]))
    return msgspec.structs.replace(ended, seconds=seconds, error=said)


def failed_result(error: RegraftError) -> TaskResult:
    """Return the result of a library whose command, or whose publication in object storage, failed with an error."""
    wait = float(str(error.facts["seconds"])) if isinstance(error, LibraryHeld) else 0.0
    said = TaskError(code=error.code, message=str(error))
    return TaskResult(status=error.exit_status, error=said, wait_seconds=wait)


def _run_with_copies(job: LibraryJob, folder: Path, urls: dict[str, str], run: RunCommand) -> TaskResult:
    """Copy source and target of a job into ``folder``, run its command with ``run``, and publish what that wrote.

    The path of each copy is added to ``urls`` with the URL that it was copied from.
    """
    is_file, written, version = bool(job.form.ending), job.written, versions.NO_VERSION
    paths = {"source": job.source, "target": job.target}
    with nullcontext() if written is None or is_file else versions.hold_lease(written, job.fleet):
        for kind, name in paths.items():
            if name is None or not is_url(name):
                continue
            # Without characters that are special in file names on any system.
            copy = folder / kind / re.sub(r"[\\/:\0]", "_", storage_path(name).name)
            paths[kind] = str(copy)
            urls.update({str(copy): name, str(copy.parent): name})
            durable.make_folders(copy.parent, flush=False)
            try:
                version = _fetch(storage_path(name), copy, is_file=is_file and kind == "target")
            except SourceNotFound:
                if kind == "source":
                    raise
                durable.remove_tree(copy)
                version = versions.NO_VERSION
        ended = run(msgspec.structs.replace(job, **paths))
        if written is not None and ended.error is None and ended.status in (0, WORTH_READING):
            library = Path(str(paths["target"] or paths["source"]))
            if is_file:
                written.upload([(library, "")])
            else:
                versions.publish_version(written, library, version)
    return ended


def _fetch(remote: StoragePath, copy: Path, *, is_file: bool) -> Version:
    """Copy a file or library from object storage to the path ``copy``, and return the version of a library.

    With ``is_file``, a library is not copied. SourceNotFound: there is nothing.
    """
    size = remote.size()
    if size is None:
        if is_file:
            raise SourceNotFound(path=remote.url)
        return versions.fetch_library(remote, copy)
    require_free_space(copy.parent, size)
    try:
        remote.download([("", copy)])
    except ObjectGone as error:
        raise SourceNotFound(path=remote.url) from error
    return versions.NO_VERSION
