"""Copies of whole input for every case, beside a folder of the user's that nothing may touch."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from campaign import judging
from campaign.judging import Ended
from regraft.disk import writable

_PLACE = re.compile(r"\{(\w+)(!?)\}")


@dataclass
class Case:
    """The folders of one case: input, what is written, a victim, and where the command runs."""

    folder: Path
    #: Path of the input that commands are given.
    subject: Path
    problems: list[str] = field(default_factory=list)

    @property
    def input(self) -> Path:
        return self.folder / "in"

    @property
    def victim(self) -> Path:
        return self.folder / "victim"


class Workbench:
    """Makes whole input once, and a fresh copy of it for every case."""

    def __init__(self, work: Path, companions: dict[str, tuple[Callable[[Path], object], str]]) -> None:
        self._whole = work / "whole"
        self._case = work / f"case-{os.getpid()}"
        self._companions = companions
        self._home = Path.cwd()

    def whole(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the folder of whole input by its name; it is made when it is first asked for."""
        place = self._whole / re.sub(r"\W+", "-", name)
        if not place.exists():
            making = place.with_name(f"{place.name}-{os.getpid()}")
            making.mkdir(parents=True)
            with writable.allow_writes(making):
                make(making)
            making.rename(place)
        return place

    def begin(self, whole: Path | None, subject: str) -> Case:
        """Return the folders of a case, with a copy of whole input, or with none of it."""
        folder = self._whole.parent / f"case-{os.getpid()}"
        if folder.exists():
            os.chdir(self._home)
            _remove(folder)
        folder.mkdir()
        case = Case(folder, folder / "in" / subject)
        if whole is None:
            case.input.mkdir()
        else:
            copy(whole, case.input)
        judging.victim(case.victim)
        for name in ("cwd", "tmp", "with", "home"):
            (folder / name).mkdir()
        os.chdir(folder / "cwd")
        os.environ["HOME"] = str(folder / "home")
        tempfile.tempdir = str(folder / "tmp")
        return case

    def run(
        self,
        case: Case,
        command: str,
        number: int,
        *,
        more: dict[str, Path] | None = None,
        stopped_is_fine: bool = False,
    ) -> Ended:
        """Run one command on the input of a case, and add to its problems what is wrong.

        Args:
            case: where.
            command: its words, with places in braces; one with ``!`` may be changed by it.
            number: tells outputs of several commands apart.
            more: places by their names.
            stopped_is_fine: whether something outside, a server for one, may stop the run.
        """
        places = {"in": case.subject, "out": case.folder / f"out-{number}", **(more or {})}
        changed = {case.folder / f"out-{number}"}
        for name, mark in _PLACE.findall(command):
            if name not in places:
                places[name] = self._companion(case, name)
            if mark:
                changed.add(_free(case, name, places))
        words = [_PLACE.sub(lambda found: str(places[found[1]]), word) for word in command.split()]
        before = judging.state(case.folder)
        done = judging.ended(words, stopped_is_fine=stopped_is_fine)
        after = judging.state(case.folder)
        case.problems += [f"{command}: {problem}" for problem in done.problems]
        case.problems += [f"{command}: {what}" for what in touched(case.folder, before, after, changed, done.status)]
        return done

    def _companion(self, case: Case, name: str) -> Path:
        make, subject = self._companions[name]
        place = case.folder / "with" / name
        if not place.exists():
            copy(self.whole(f"with {name}", make), place)
        return place / subject


def _free(case: Case, name: str, places: dict[str, Path]) -> Path:
    """Return what a command may change that is given a place."""
    if name == "in":
        return case.input
    own = case.folder / "with" / name
    return own if own in (places[name], *places[name].parents) else places[name]


def touched(
    folder: Path, before: judging.State, after: judging.State, changed: Iterable[Path], status: int
) -> list[str]:
    """Return what was changed that is not to be: outside of ``changed``, or anywhere if the command refused."""
    free = [f"{path.relative_to(folder)}" for path in changed]
    found = judging.differences(before, after)
    if status == 2:
        # A store that has a ledger keeps the record of a run that was refused, and what was in its way may be gone.
        # What SQLite shares between processes, be it of one that is gone, is nobody's content.
        own = re.compile(r".*/\.regraft/(ledger\.sqlite was changed|.* is gone)|.*-shm (was changed|is gone)")
        return [f"refused, and {what}" for what in found if not own.fullmatch(what)]
    return [what for what in found if not any(what.startswith((f"{name}/", f"{name} ", f"{name}.")) for name in free)]


def copy(whole: Path, place: Path) -> None:
    """Copy a folder with its links, times and all."""
    shutil.copytree(whole, place, symlinks=True)


def _remove(folder: Path) -> None:
    def allow(_function: object, path: str, _error: object) -> None:
        Path(path).parent.chmod(0o700)
        Path(path).chmod(0o700)
        shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()

    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=allow)
    else:
        shutil.rmtree(folder, onerror=allow)
