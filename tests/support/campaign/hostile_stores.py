"""Stores made by somebody who means harm, through every command that changes something.

A case is bad when anything outside of the store is touched, when a change cannot be taken back exactly, or when a
command ends with a fault, an undocumented status, or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar

import apsw

from campaign import children, contents, controls, corpus, hostile, specimens
from campaign.campaign import Campaign, Outcome
from campaign.judging import Ended
from campaign.workbench import Case, Workbench
from regraft import identity
from regraft.disk import writable
from regraft.errors import RegraftError
from regraft.testing import DAMAGES
from repair.changes import undo

from fault_server import FaultServer  # isort: skip
from lacking import configured  # isort: skip

_ONTO = (
    "migrate {v1} --to {in!} --yes --json --jobs 1",
    "import {parquet} --to {in!} --yes --json",
    "migrate {in} --to {out} --yes --json --jobs 1",
)
_FROM = (
    "install {in} --profile {fresh!} --yes --json",
    "pack {in} {out} --yes --json",
    "export {in} {out} --json",
)


@dataclass(frozen=True)
class Kind:
    """A kind of store: who makes it, its path, the commands, whether damage can be planted in it."""

    make: Callable[[Path], object]
    subject: str
    commands: tuple[str, ...]
    weight: int = 10
    base: str | None = None


def _used_profile(folder: Path) -> None:
    corpus.profile_of("2.1")(folder)
    done = corpus.run("install", _other(folder), "--profile", folder / "profile", "--yes", "-q", "--as-new")
    assert done.status in (0, 1), done


def _other(folder: Path) -> Path:
    return corpus.migrated(folder)


def _used_codex(folder: Path) -> None:
    corpus.codex_input(folder)
    done = corpus.run("repair", folder / "codex-mem.db", "--yes", "-q", "--fail-on", "never")
    assert done.status == 0, done


def _used_angel(folder: Path) -> None:
    corpus.angel_input(folder)
    done = corpus.run("repair", folder / "angel", "--yes", "-q", "--fail-on", "never")
    assert done.status == 0, done


_LIBRARY = (*specimens.CHANGES, *_ONTO, *_FROM)
_PROFILE = (*specimens.CHANGES, "install {library} --profile {in!} --yes --json", "rescue {in!} --yes --json", *_FROM)
_KB = identity.base_id("kb")
KINDS = {
    "library": Kind(corpus.used, "library", _LIBRARY, 40, _KB),
    "library, older": Kind(corpus.older_library, "library", _LIBRARY, 8),
    "profile": Kind(_used_profile, "profile", _PROFILE, 15),
    "profile with tombstones": Kind(corpus.tombstones, "profile", _PROFILE, 8),
    "codex-mem": Kind(_used_codex, "codex-mem.db", specimens.CODEX_CHANGES, 12),
    "AngelMemory": Kind(_used_angel, "angel", specimens.ANGEL_CHANGES, 8),
}
#: Damage that gives commands something to do.
_DAMAGES = sorted(DAMAGES)


class HostileStores(Campaign):
    """Stores with hostile features, and every command that changes something."""

    name = "hostile-stores"
    unit = "hostile stores"
    whole = 20_000
    controls: ClassVar[Mapping[str, str]] = {
        "links": "links inside a store are followed for writing",
        "undo": "undo says that it took a change back, and does not",
    }

    def __init__(self, seed: int, work: Path, control: str | None = None) -> None:
        super().__init__(seed, work, control)
        self._bench = Workbench(work, specimens.COMPANIONS)
        self._server: FaultServer | None = None
        #: Kinds of stores.
        self.names = tuple(KINDS)

    def prepare(self) -> None:
        """Make all whole input, with nothing switched off."""
        for name in self.names:
            self._bench.whole(name, KINDS[name].make)
        for name, (make, _) in specimens.COMPANIONS.items():
            self._bench.whole(f"with {name}", make)

    def cases(self, first: int = 1) -> Iterator[Outcome]:
        """Run case after case, for ever."""
        self.prepare()
        return children.each(self.case, first, self.figures)

    def case(self, number: int) -> Outcome:
        """Run one case in this process."""
        random = self.random(number)
        name = random.choices(self.names, [KINDS[one].weight for one in self.names])[0]
        kind = KINDS[name]
        case = self._bench.begin(self._bench.whole(name, kind.make), kind.subject)
        store = case.subject if case.subject.is_dir() else case.subject.parent
        done = [f"damage: {one}" for one in self._damaged(random, kind, store)]
        made, own_past = hostile.made(random, store, case.victim)
        if case.subject.is_symlink():
            # What the user names is followed, wherever it leads.
            case.subject.unlink()
            shutil.copy(self._bench.whole(name, kind.make) / kind.subject, case.subject)
        with controls.of(self.control):
            for at, command in enumerate(random.sample(kind.commands, 2)):
                self._change(random, case, command, at, own_past)
                if case.problems:
                    break
            else:
                self._take_back(case)
        return Outcome(name, "; ".join(case.problems)[:2000], f"{name}: {'; '.join([*done, *made])}")

    def _damaged(self, random: Random, kind: Kind, store: Path) -> Iterator[str]:
        if kind.base is None:
            return
        for name in random.sample(_DAMAGES, random.choice([0, 1, 2, 3])):
            with suppress(Exception), writable.allow_writes(store):
                DAMAGES[name].plant(store, kind.base)
                yield name

    def _run(self, case: Case, command: str, number: int) -> Ended:
        places = {}
        if "{config}" in command:
            folder = case.folder / "with" / "config"
            folder.mkdir(exist_ok=True)
            places["config"] = configured(folder / "regraft.yaml", self._url(), retries=0)
        return self._bench.run(case, command, number, more=places, stopped_is_fine="{config}" in command)

    def _change(self, random: Random, case: Case, command: str, number: int, own_past: bool) -> None:
        before, runs = contents.of(case.input), self._possible(case)
        ended = self._run(case, command, number)
        made = ended.document.get("undo") if isinstance(ended.document, dict) else None
        if case.problems or not made or not own_past or "{in!}" not in command or random.random() < 0.3:
            return
        self._undo_new(case, command, runs, number)
        # What was not taken back differs, and is a problem already.
        differing = [] if case.problems else contents.differences(before, contents.of(case.input))
        case.problems += [f"{command}, taken back: {what}" for what in differing[:3]]

    def _undo_new(self, case: Case, command: str, older: list[str], number: int) -> None:
        # Some commands take several steps, each of which is a run.
        for run in [run for run in self._possible(case) if run not in older]:
            back = self._run(case, f"undo {{in!}} {run} --yes --json", number)
            if back.status != 0:
                case.problems.append(f"{command}: not taken back: {back.stderr.strip()[-300:]}")

    def _possible(self, case: Case) -> list[str]:
        """Return the runs that can be taken back, latest first; none where the ledger cannot be read."""
        store = case.subject if case.subject.is_dir() else case.subject.parent
        try:
            runs = undo.list_past_runs(store)
        except (RegraftError, OSError, apsw.Error):
            return []
        return [run.id for run in runs if run.undo.state == "possible"]

    def _take_back(self, case: Case) -> None:
        """Take all runs back that can be."""
        for number in range(4):
            ended = self._run(case, "undo {in!} --yes --json", 10 + number)
            if case.problems or ended.status != 0:
                return

    def _url(self) -> str:
        if self._server is None or os.getpid() != self._server_of:
            self._server, self._server_of = FaultServer(), os.getpid()
            self._server.__enter__()
        return self._server.url

    _server_of = 0
