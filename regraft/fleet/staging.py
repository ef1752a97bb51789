"""The work on one library: where it lies in object storage, on a copy on this machine's disk, which is published.

Rules: ``docs/fleet.md``, "Object storage".
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from regraft import areas
from regraft.errors import WORTH_READING, RegraftError, SourceNotFound, StoppedBySystem
from regraft.fleet import leases, versions
from regraft.fleet.commands import Job
from regraft.fleet.engine import Ended
from regraft.fleet.errors import LibraryHeld
from regraft.fleet.storage import ObjectGone, is_url, place_of
from regraft.fleet.versions import Version
from regraft.ledger import durable
from regraft.room import demand_room

#: Runs a command line.
RunLine = Callable[[tuple[str, ...]], Ended]


def done(job: Job, run: RunLine) -> Ended:
    """Do what is to be done with a library, wherever it lies, and return how it ended."""
    if not is_url(job.source) and not is_url(job.target):
        return run(job.arguments(job.source, job.target))
    begun = time.monotonic()
    try:
        with _folder(job) as folder, ExitStack() as stack:
            ended = _Staged(job, folder, stack).done(run)
    except RegraftError as error:
        ended = failed(error)
    except OSError as error:
        ended = failed(StoppedBySystem(reason=error))
    return msgspec.structs.replace(ended, seconds=time.monotonic() - begun)


@contextmanager
def _folder(job: Job) -> Iterator[Path]:
    """Give a folder for the copy of a library, and remove it; what an attempt left that was killed goes first."""
    place = _place_of_copies(job.fleet) / hashlib.sha256(f"{job.source}\n{job.target}".encode()).hexdigest()[:16]
    with areas.opened(place):
        durable.remove_tree(place)
        try:
            with durable.temporary_folder(place) as folder:
                yield folder
        finally:
            durable.remove_tree(place)


def _place_of_copies(fleet: str) -> Path:
    return durable.temporary_place() / f"regraft-fleet-{fleet}"


def clear(fleet: str) -> None:
    """Remove the copies on this machine that processes of a fleet have left which were killed.

    Raises:
        OSError, RegraftError: they cannot be removed.
    """
    place = _place_of_copies(fleet)
    with areas.opened(place):
        durable.remove_tree(place)


def failed(error: RegraftError) -> Ended:
    """Return how a library ended whose command could not be run, or whose outcome could not be published."""
    document = {"error": {"code": error.code, "message": str(error)}}
    wait = float(str(error.facts["seconds"])) if isinstance(error, LibraryHeld) else 0.0
    return Ended(status=error.exit_status, document=document, seconds=0.0, wait_seconds=wait)


class _Staged:
    """One library on this machine's disk, for as long as it is worked on."""

    def __init__(self, job: Job, folder: Path, stack: ExitStack) -> None:
        self._job, self._folder, self._stack = job, folder, stack
        #: What stands in messages in the place of paths here.
        self._names: dict[str, str] = {}

    def done(self, run: RunLine) -> Ended:
        """Fetch it, run the command, and publish what came of it."""
        job = self._job
        changed = job.source if job.form.changes else job.target
        written = None
        if changed is not None and is_url(changed) and not job.is_dry:
            written = place_of(changed)
        is_file = bool(job.form.ending)
        if written is not None and not is_file:
            self._stack.enter_context(leases.held(written, job.fleet))
        source, before = self._here(job.source, "source")
        target, found = self._target(is_file=is_file)
        ended = run(job.arguments(str(source), None if target is None else str(target)))
        if written is not None and ended.status in (0, WORTH_READING) and "error" not in ended.document:
            if is_file:
                assert target is not None
                written.upload([(target, "")])
            else:
                versions.publish(written, target or source, found if target else before)
        return self._named(ended)

    def _here(self, name: str, kind: str) -> tuple[Path, Version]:
        """Return where a library or archive is on this machine, and its version."""
        if not is_url(name):
            return Path(name), versions.NONE
        place, here = place_of(name), self._copy_of(name, kind)
        size = place.size()
        if size is None:
            return here, versions.fetch(place, here)
        demand_room(self._folder, size)
        try:
            place.download([("", here)])
        except ObjectGone as error:
            raise SourceNotFound(path=name) from error
        return here, versions.NONE

    def _target(self, *, is_file: bool) -> tuple[Path | None, Version]:
        """Return where the target is on this machine, with what it has already."""
        name = self._job.target
        if name is None or not is_url(name):
            return None if name is None else Path(name), versions.NONE
        if is_file and place_of(name).size() is None:
            return self._copy_of(name, "target"), versions.NONE
        try:
            return self._here(name, "target")
        except SourceNotFound:
            durable.remove_tree(self._copy_of(name, "target"))
            return self._copy_of(name, "target"), versions.NONE

    def _copy_of(self, name: str, kind: str) -> Path:
        """Return where something of a store is on this machine: in a folder of its own, which is there."""
        # As one name on every system.
        here = self._folder / kind / re.sub(r"[\\/:\0]", "_", place_of(name).name)
        self._names[str(here)] = name
        durable.make_folders(here.parent, flush=False)
        return here

    def _named(self, ended: Ended) -> Ended:
        """Return how it ended, with URLs in the message where it names paths of the copy."""
        error = ended.document.get("error") or {}
        message = error.get("message")
        if not isinstance(message, str):
            return ended
        for here, name in self._names.items():
            message = message.replace(here, name)
        return msgspec.structs.replace(ended, document={**ended.document, "error": {**error, "message": message}})
