"""The work on one library: where it lies in object storage, on a copy on this machine's disk, which is published.

Rules: ``docs/fleet.md``, "Object storage".
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from regraft.disk import durable, writable
from regraft.disk.trees import require_free_space
from regraft.errors import WORTH_READING, LibraryHeld, RegraftError, SourceNotFound, StoppedBySystem
from regraft.fleet import versions
from regraft.fleet.engine import TaskResult
from regraft.fleet.storage import ObjectGone, is_url, storage_path
from regraft.fleet.versions import Version

# The commands that a fleet runs, and the command line of one library.


class CommandForm(msgspec.Struct, frozen=True, kw_only=True):
    """How the command line of one library is made: ``target`` stands before its target, if there is one.

    ``asks`` tells whether the command may ask a person, ``changes`` whether it changes the library itself, ``ending``
    how a target's name ends.
    """

    target: str | None = None
    has_target: bool = False
    asks: bool = False
    changes: bool = False
    ending: str = ""


COMMAND_FORMS = {
    "migrate": CommandForm(target="--to", has_target=True, asks=True),
    "check": CommandForm(),
    "repair": CommandForm(asks=True, changes=True),
    "upgrade": CommandForm(asks=True, changes=True),
    "export": CommandForm(has_target=True, ending=".parquet"),
    # What a library lacks is sent with that of all others, by a command of its own.
    "backfill": CommandForm(changes=True),
}


class LibraryJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with one library: a plain value, for another process.

    ``source`` and ``target`` are paths, or URLs of a store; ``fleet`` is the fleet's id, by which it knows its own
    leases, and ``cores`` how many of them the library has.
    """

    command: str
    options: tuple[str, ...]
    source: str
    target: str | None = None
    fleet: str = ""
    cores: int = 1

    @property
    def form(self) -> CommandForm:
        """Return how its command line is made."""
        return COMMAND_FORMS[self.command]

    @property
    def is_dry(self) -> bool:
        """Tell whether nothing is to be written."""
        return "--dry-run" in self.options

    def arguments(self, source: str, target: str | None) -> tuple[str, ...]:
        """Return its command line over these paths. Behind ``--`` stand names alone, whatever they begin with."""
        form = self.form
        targets: Sequence[str] = () if target is None else (target,)
        named = () if form.target is None else (form.target, *targets)
        return (
            self.command,
            *self.options,
            *(("--yes",) if form.asks else ()),
            "--json",
            *named,
            "--",
            source,
            *(targets if form.target is None else ()),
        )


#: Runs a command line.
RunCommand = Callable[[tuple[str, ...]], TaskResult]


def run_library_job(job: LibraryJob, run: RunCommand) -> TaskResult:
    """Do what is to be done with a library, wherever it lies, and return how it ended."""
    if not is_url(job.source) and not is_url(job.target):
        return run(job.arguments(job.source, job.target))
    begun = time.monotonic()
    try:
        with _folder(job) as folder, ExitStack() as stack:
            ended = _Staged(job, folder, stack).done(run)
    except RegraftError as error:
        ended = failed_result(error)
    except OSError as error:
        ended = failed_result(StoppedBySystem(reason=error))
    return msgspec.structs.replace(ended, seconds=time.monotonic() - begun)


@contextmanager
def _folder(job: LibraryJob) -> Iterator[Path]:
    """Give a folder for the copy of a library, and remove it; what an attempt left that was killed goes first."""
    place = _place_of_copies(job.fleet) / hashlib.sha256(f"{job.source}\n{job.target}".encode()).hexdigest()[:16]
    with writable.allow_writes(place):
        durable.remove_tree(place)
        try:
            with durable.temporary_folder(place) as folder:
                yield folder
        finally:
            durable.remove_tree(place)


def _place_of_copies(fleet: str) -> Path:
    return durable.temporary_root() / f"regraft-fleet-{fleet}"


def remove_copies(fleet: str) -> None:
    """Remove the copies on this machine that processes of a fleet have left which were killed.

    Raises:
        OSError, RegraftError: they cannot be removed.
    """
    place = _place_of_copies(fleet)
    with writable.allow_writes(place):
        durable.remove_tree(place)


def failed_result(error: RegraftError) -> TaskResult:
    """Return how a library ended whose command could not be run, or whose outcome could not be published."""
    document = {"error": {"code": error.code, "message": str(error)}}
    wait = float(str(error.facts["seconds"])) if isinstance(error, LibraryHeld) else 0.0
    return TaskResult(status=error.exit_status, document=document, seconds=0.0, wait_seconds=wait)


class _Staged:
    """One library on this machine's disk, for as long as it is worked on."""

    def __init__(self, job: LibraryJob, folder: Path, stack: ExitStack) -> None:
        self._job, self._folder, self._stack = job, folder, stack
        #: What stands in messages in the place of paths here.
        self._names: dict[str, str] = {}

    def done(self, run: RunCommand) -> TaskResult:
        """Fetch it, run the command, and publish what came of it."""
        job = self._job
        changed = job.source if job.form.changes else job.target
        written = None
        if changed is not None and is_url(changed) and not job.is_dry:
            written = storage_path(changed)
        is_file = bool(job.form.ending)
        if written is not None and not is_file:
            self._stack.enter_context(versions.hold_lease(written, job.fleet))
        source, before = self._here(job.source, "source")
        target, found = self._target(is_file=is_file)
        ended = run(job.arguments(str(source), None if target is None else str(target)))
        if written is not None and ended.status in (0, WORTH_READING) and "error" not in ended.document:
            if is_file:
                assert target is not None
                written.upload([(target, "")])
            else:
                versions.publish_version(written, target or source, found if target else before)
        return self._named(ended)

    def _here(self, name: str, kind: str) -> tuple[Path, Version]:
        """Return where a library or archive is on this machine, and its version."""
        if not is_url(name):
            return Path(name), versions.NO_VERSION
        place, here = storage_path(name), self._copy_of(name, kind)
        size = place.size()
        if size is None:
            return here, versions.fetch_library(place, here)
        require_free_space(self._folder, size)
        try:
            place.download([("", here)])
        except ObjectGone as error:
            raise SourceNotFound(path=name) from error
        return here, versions.NO_VERSION

    def _target(self, *, is_file: bool) -> tuple[Path | None, Version]:
        """Return where the target is on this machine, with what it has already."""
        name = self._job.target
        if name is None or not is_url(name):
            return None if name is None else Path(name), versions.NO_VERSION
        if is_file and storage_path(name).size() is None:
            return self._copy_of(name, "target"), versions.NO_VERSION
        try:
            return self._here(name, "target")
        except SourceNotFound:
            durable.remove_tree(self._copy_of(name, "target"))
            return self._copy_of(name, "target"), versions.NO_VERSION

    def _copy_of(self, name: str, kind: str) -> Path:
        """Return where something of a store is on this machine: in a folder of its own, which is there."""
        # As one name on every system.
        here = self._folder / kind / re.sub(r"[\\/:\0]", "_", storage_path(name).name)
        self._names[str(here)] = name
        durable.make_folders(here.parent, flush=False)
        return here

    def _named(self, ended: TaskResult) -> TaskResult:
        """Return how it ended, with URLs in the message where it names paths of the copy."""
        error = ended.document.get("error") or {}
        message = error.get("message")
        if not isinstance(message, str):
            return ended
        for here, name in self._names.items():
            message = message.replace(here, name)
        return msgspec.structs.replace(ended, document={**ended.document, "error": {**error, "message": message}})
