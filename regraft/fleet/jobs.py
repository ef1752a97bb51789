"""Run one command on one library of a fleet; a library in object storage is copied to this machine's disk and
published.

Rules: ``docs/fleet.md``, "Object storage".
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from regraft.disk import durable, scratch
from regraft.disk.trees import require_free_space
from regraft.errors import (
    WORTH_READING,
    LibraryHeld,
    RegraftError,
    SourceNotFound,
    StoppedBySystem,
    WorkFolderTooSmall,
)
from regraft.fleet import versions
from regraft.fleet.engine import TaskError, TaskResult
from regraft.fleet.storage import ObjectGone, StoragePath, is_url, storage_path
from regraft.fleet.versions import Version
from regraft.options import FailOn


class CommandForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a command does with a library: ``has_target``: it writes to a target, a file if ``ending`` is set.

    ``changes``: it changes the source itself. ``ending``: the suffix of a target's name.
    """

    has_target: bool = False
    changes: bool = False
    ending: str = ""


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
    """The parsed options of a library's command.

    Args:
        values: the struct of the command (:mod:`regraft.options`).
        fail_on: the lowest severity that makes the exit status 1.
        follows_links: whether links out of the source are followed.
    """

    values: msgspec.Struct
    fail_on: FailOn = "warning"
    follows_links: bool = False

    @property
    def is_dry(self) -> bool:
        """Whether the command writes nothing to its source or target."""
        return bool(getattr(self.values, "dry_run", False))


#: Parses the options of a library, given the name of its command and the words.
ParseOptions = Callable[[str, tuple[str, ...]], CommandOptions]


class LibraryJob(msgspec.Struct, frozen=True, kw_only=True):
    """One command for one library, as plain values for another process.

    ``source`` and ``target`` are paths or URLs; ``fleet`` is the fleet's id, by which it recognizes its own leases;
    ``cores`` is the number of cores that the library gets.
    """

    command: str
    options: CommandOptions
    source: str
    target: str | None = None
    fleet: str = ""
    cores: int = 1

    @property
    def form(self) -> CommandForm:
        """What the command does with the library."""
        return COMMAND_FORMS[self.command]

    @property
    def written(self) -> StoragePath | None:
        """What the command changes in object storage, if anything."""
        changed = self.source if self.form.changes else self.target
        return storage_path(changed) if changed and is_url(changed) and not self.options.is_dry else None


#: Seconds between two attempts to copy a library while copies of others fill the disk, and the most for all of them.
_FULL_PAUSE, _FULL_SECONDS = (1.0, 3.0), 3600.0

#: Runs the command of a job in this process; its source and target are paths.
RunCommand = Callable[[LibraryJob], TaskResult]


def run_library_job(job: LibraryJob, run: RunCommand) -> TaskResult:
    """Run a job, with copies of what is in object storage, and return its result."""
    if not is_url(job.source) and not is_url(job.target):
        return run(job)
    begun = time.monotonic()
    while True:
        # Of killed attempts: this process may have been there before them.
        scratch.remove_leftovers()
        urls: dict[str, str] = {}
        try:
            with scratch.temporary_folder() as folder, ExitStack() as stack:
                urls[str(folder)] = job.source
                ended = _StagedJob(job, folder, urls).run(run, stack)
        except (RegraftError, OSError) as error:
            ended = failed_result(error if isinstance(error, RegraftError) else StoppedBySystem(reason=error))
        seconds = time.monotonic() - begun
        is_full = ended.error is not None and ended.error.code == WorkFolderTooSmall.__name__
        if not (is_full and seconds < _FULL_SECONDS and scratch.is_used_by_others()):
            return msgspec.structs.replace(ended, seconds=seconds, error=_name_urls(ended.error, urls))
        # Copies of other libraries take the space; this one has been removed, and they end sooner or later.
        time.sleep(random.uniform(*_FULL_PAUSE))


def failed_result(error: RegraftError, seconds: float = 0.0) -> TaskResult:
    """Return the result of a library whose command failed, or whose output could not be published."""
    wait = float(str(error.facts["seconds"])) if isinstance(error, LibraryHeld) else 0.0
    said = TaskError(code=error.code, message=str(error))
    return TaskResult(status=error.exit_status, error=said, seconds=seconds, wait_seconds=wait)


class _StagedJob(msgspec.Struct, frozen=True):
    """One job with a source or target in object storage; ``urls`` gets the URL of each copy in ``folder``."""

    job: LibraryJob
    folder: Path
    urls: dict[str, str]

    def run(self, run: RunCommand, stack: ExitStack) -> TaskResult:
        """Fetch the source and the target, run the command, and publish what it wrote."""
        job, is_file, written = self.job, bool(self.job.form.ending), self.job.written
        if written is not None and not is_file:
            stack.enter_context(versions.hold_lease(written, job.fleet))
        source, before = self._fetch(job.source, "source")
        target, found = (None, before) if job.target is None else self._fetch_target(job.target, is_file=is_file)
        ended = run(msgspec.structs.replace(job, source=str(source), target=None if target is None else str(target)))
        if written is not None and ended.error is None and ended.status in (0, WORTH_READING):
            library = target or source
            if is_file:
                written.upload([(library, "")])
            else:
                versions.publish_version(written, library, found)
        return ended

    def _fetch(self, name: str, kind: str) -> tuple[Path, Version]:
        """Return the path of a library or archive on this machine, and its version."""
        if not is_url(name):
            return Path(name), versions.NO_VERSION
        remote, copy = storage_path(name), self._copy_path(name, kind)
        size = remote.size()
        if size is None:
            return copy, versions.fetch_library(remote, copy)
        require_free_space(self.folder, size)
        try:
            remote.download([("", copy)])
        except ObjectGone as error:
            raise SourceNotFound(path=name) from error
        return copy, versions.NO_VERSION

    def _fetch_target(self, name: str, *, is_file: bool) -> tuple[Path, Version]:
        """Return the path of the target on this machine, with its present content, and its version."""
        if is_url(name) and is_file and storage_path(name).size() is None:
            return self._copy_path(name, "target"), versions.NO_VERSION
        try:
            return self._fetch(name, "target")
        except SourceNotFound:
            durable.remove_tree(self._copy_path(name, "target"))
            return self._copy_path(name, "target"), versions.NO_VERSION

    def _copy_path(self, name: str, kind: str) -> Path:
        """Return the path for the copy of a URL, in an existing folder of its own."""
        # Without characters that are special in file names on any system.
        copy = self.folder / kind / re.sub(r"[\\/:\0]", "_", storage_path(name).name)
        self.urls[str(copy)] = name
        durable.make_folders(copy.parent, flush=False)
        return copy


def _name_urls(error: TaskError | None, urls: dict[str, str]) -> TaskError | None:
    """Replace paths of copies by their URLs in an error message."""
    if error is None:
        return None
    message = error.message
    # The folder of the copies last: theirs begin with it.
    for copy in sorted(urls, key=len, reverse=True):
        message = message.replace(copy, urls[copy])
    return msgspec.structs.replace(error, message=message)
