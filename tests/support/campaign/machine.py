"""A state machine over all commands: a library is migrated to, edited, damaged, mended, filled, crashed and taken back.

A case is a walk of some steps from a fresh library. After each step the library is held against a model of what must be
there: every text of every base, with the very vector that its embedder makes, and after undo every file as it was.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from campaign import children, contents, controls, library_model, specimens
from campaign.campaign import Campaign, Outcome
from campaign.judging import Ended
from campaign.library_model import Model
from campaign.workbench import Case, Workbench
from regraft.disk import writable
from repair.changes import undo

from fault_server import FaultServer  # isort: skip
from lacking import configured  # isort: skip

STEPS = 14
#: Damage that takes no text and no vector away; what it leaves is mended or removed.
_DAMAGES = (
    *("a text of nobody", "words of no body", "a body without words"),
    *("a vector of nobody", "a stray file", "no index on hashes", "a number out of step", "no number"),
)
_COMMANDS = (
    *(
        "gc {in!} --yes --json",
        "gc {in!} --yes --vacuum --json",
        "repair {in!} --yes --json",
        "upgrade {in!} --yes --json",
    ),
    *("reconcile {in!} --yes --json", "backfill {in!} --config {config} --embedder mine --yes --json"),
    *("backfill {in!} --config {config} --embedder mine --limit 2 --yes --json", "repair {in!} --dry-run --json"),
    *(
        "history {in} --json",
        "check {in} --json",
        "search {in} lamp --mode bm25 --base kb --json",
        "export {in} {out} --json",
    ),
)


#: Those that change the store.
_WRITING = [one for one in _COMMANDS if "{in!}" in one and "--dry-run" not in one]


@dataclass
class Recorded:
    """A run that can be taken back: what the store held around it, where nothing else came in between."""

    before: dict[str, str] | None
    after: dict[str, str] | None
    #: Texts that had no vector before, by base.
    lacking: set[tuple[str, str]] = field(default_factory=set)
    #: As ``after``, to the last number: where that is other, undo may refuse.
    left: dict[str, str] | None = None


class Machine(Campaign):
    """Walks over all commands, against a model."""

    name = "machine"
    unit = "walks"
    whole = 1_000
    controls: ClassVar[Mapping[str, str]] = {
        "undo": "undo says that it took a change back, and does not",
        "vectors": "one bit of a vector is lost on the way",
    }

    def __init__(self, seed: int, work: Path, control: str | None = None) -> None:
        super().__init__(seed, work, control)
        self._bench = Workbench(work, specimens.COMPANIONS)

    def prepare(self) -> None:
        """Make the first library, with nothing switched off."""
        self._bench.whole("machine", library_model.first_library)

    def cases(self, first: int = 1) -> Iterator[Outcome]:
        """Run walk after walk, for ever."""
        self.prepare()
        return children.each(self.case, first, self.figures)

    def case(self, number: int) -> Outcome:
        """Walk once, in this process."""
        case = self._bench.begin(self._bench.whole("machine", library_model.first_library), "library")
        with controls.of(self.control):
            walk = Walk(self.random(number), self._bench, case)
            walk.go()
        self.figures["steps"] = self.figures.get("steps", 0) + len(walk.done)
        for name, count in walk.counted.items():
            self.figures[name] = self.figures.get(name, 0) + count
        return Outcome("walk", "; ".join(case.problems)[:2000], " → ".join(walk.done))


class Walk:
    """One walk; used once."""

    def __init__(self, random: Random, bench: Workbench, case: Case) -> None:
        self.random = random
        self.case = case
        self.store = case.subject
        self.model = Model.of_first_library()
        self.done: list[str] = []
        self.counted: dict[str, int] = {}
        self._bench = bench
        self._records: dict[str, Recorded] = {}
        self._server: FaultServer | None = None
        self._config: Path | None = None

    def go(self) -> None:
        """Take all steps, or so many as go well."""
        steps: dict[Callable[[], str], int] = {
            self._command: 10,
            self._undo: 6,
            self._crash: 3,
            self._migrate: 3,
            self._import: 2,
            self._edit: 5,
            self._lose: 4,
            self._damage: 4,
            self._age: 1,
        }
        try:
            for _ in range(STEPS):
                step = self.random.choices(list(steps), list(steps.values()))[0]
                self.done.append(step())
                self.case.problems += [f"{self.done[-1]}: {what}" for what in self.model.differences(self.store)]
                if self.case.problems:
                    return
        finally:
            if self._server is not None:
                self._server.__exit__(None, None, None)

    # --- commands ----------------------------------------------------------------------------------------------------

    def _run(self, command: str, **places: Path) -> Ended:
        if "{config}" in command:
            places["config"] = self._configuration()
        ended = self._bench.run(self.case, command, len(self.done), more=places)
        self._count(command, ended.status)
        return ended

    def _configuration(self) -> Path:
        if self._config is None:
            self._server = FaultServer()
            self._server.__enter__()
            folder = self.case.folder / "with" / "config"
            folder.mkdir()
            self._config = configured(folder / "regraft.yaml", self._server, retries=0, batch={"texts": 3})
        return self._config

    def _count(self, command: str, status: int) -> None:
        name = f"{command.partition(' ')[0]}: exit status {status}"
        self.counted[name] = self.counted.get(name, 0) + 1

    def _command(self) -> str:
        command = self.random.choice(_COMMANDS)
        before, lacking, runs = contents.of(self.store), self.model.lacking(), self._possible()
        ended = self._run(command)
        after = contents.of(self.store)
        if "{in!}" not in command or "--dry-run" in command or ended.status == 2:
            self._must_be(before, after)
        elif command.startswith("backfill") and ended.status in (0, 1):
            self._filled(lacking, all_of_them=ended.status == 0 and "--limit" not in command)
        self._remember(runs, before, after, lacking)
        return command

    def _filled(self, lacking: set[tuple[str, str]], *, all_of_them: bool) -> None:
        self.model.refresh(self.store, lacking)
        left = lacking & self.model.lacking()
        if all_of_them and left:
            self.case.problems.append(f"no vector for {sorted(left)[:2]}")

    def _possible(self) -> list[str]:
        """Return the runs that can be taken back, latest first."""
        return [run.id for run in undo.list_past_runs(self.store) if run.undo.state == "possible"]

    def _remember(
        self, runs: list[str], before: dict[str, str], after: dict[str, str], lacking: set[tuple[str, str]]
    ) -> None:
        """Remember the runs that were made since there were ``runs``; what was around each is known where it is one."""
        made = [run for run in self._possible() if run not in runs]
        for run in made:
            self._records[run] = Recorded(None, None, lacking)
        if len(made) == 1:
            self._records[made[0]] = Recorded(before, after, lacking, contents.of(self.store, numbers=True))

    def _must_be(self, expected: dict[str, str], found: dict[str, str]) -> None:
        self.case.problems += contents.differences(expected, found)[:3]

    # --- undo --------------------------------------------------------------------------------------------------------

    def _undo(self) -> str:
        runs = self._possible()
        if not runs:
            return "nothing to undo"
        run = runs[0] if self.random.random() < 0.6 else self.random.choice(runs)
        record = self._records.get(run, Recorded(None, None, self.model.all()))
        before, now = contents.of(self.store), contents.of(self.store, numbers=True)
        ended = self._run(f"undo {{in!}} {run} --yes --json")
        if ended.status == 2:
            self._must_be(before, contents.of(self.store))
            if record.left == now:
                self.case.problems.append("undo was refused, though nothing was changed since")
        else:
            self._taken_back(record, before, contents.of(self.store))
        if ended.status == 0:
            self._records.pop(run, None)
            self.model.refresh(self.store, record.lacking)
        return f"undo of {'the latest' if run == runs[0] else 'an earlier'} run: {ended.status}"

    def _taken_back(self, record: Recorded, before: dict[str, str], after: dict[str, str]) -> None:
        if record.before is None or record.after is None:
            return
        changed = _differing(record.before, record.after)
        is_as_left = all(before.get(name) == record.after.get(name) for name in changed)
        for name in sorted({*before, *after}):
            if name not in changed and before.get(name) != after.get(name):
                self.case.problems.append(f"undo changed {name}, which that run had not")
            if name in changed and is_as_left and after.get(name) != record.before.get(name):
                self.case.problems.append(f"undo did not bring {name} back")

    # --- crashes -----------------------------------------------------------------------------------------------------

    def _crash(self) -> str:
        command = self.random.choice(_WRITING)
        if "{config}" in command:
            self._configuration()
        lacking, at = self.model.lacking(), self.random.choice([1, 2, 3, 5, 8, 13, 21, 34, 55])
        runs = self._possible()
        died = self._killed(command, at)
        ended = self._run(command)
        if command.startswith("backfill") and ended.status in (0, 1):
            self._filled(lacking, all_of_them=ended.status == 0 and "--limit" not in command)
        else:
            # What the killed run had done stays, or was taken back.
            self.model.refresh(self.store, lacking)
        for run in self._possible():
            if run not in runs:
                self._records[run] = Recorded(None, None, lacking)
        return f"{command} {'killed' if died else 'not killed'} at step {at}, then again"

    def _killed(self, command: str, at: int) -> bool:
        """Run a command in a child that ends at its step number ``at``, and tell whether it came to that."""
        child = os.fork()
        if child == 0:
            try:
                _die_at(at)
                self._bench.run(self.case, command, 99, more={"config": self._config} if self._config else {})
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == _DEAD

    # --- the application, and what happens to files ------------------------------------------------------------------

    def _migrate(self) -> str:
        source, added = self.model.new_source(self.random, self.case.folder / "with" / f"source-{len(self.done)}")
        ended = self._run("migrate {source} --to {in!} --yes --json --jobs 1", source=source)
        if ended.status in (0, 1):
            self.model.add(added)
        return f"migrate: {ended.status}"

    def _import(self) -> str:
        folder = self.case.folder / "with" / f"exported-{len(self.done)}"
        source, added = self.model.new_source(self.random, folder / "v1")
        self._run("migrate {source} --to {other!} --yes --json --jobs 1", source=source, other=folder / "library")
        self._run("export {other} {rows!} --json", other=folder / "library", rows=folder / "rows.parquet")
        ended = self._run("import {rows} --to {in!} --yes --json", rows=folder / "rows.parquet")
        if ended.status in (0, 1):
            self.model.add(added)
        return f"import: {ended.status}"

    def _edit(self) -> str:
        with writable.allow_writes(self.store):
            return self.model.edit(self.random, self.store)

    def _lose(self) -> str:
        with writable.allow_writes(self.store):
            return self.model.lose_vectors(self.random, self.store)

    def _damage(self) -> str:
        with writable.allow_writes(self.store):
            return self.model.damage(self.random, self.store, self.random.choice(_DAMAGES))

    def _age(self) -> str:
        with writable.allow_writes(self.store):
            return self.model.make_older(self.random, self.store)


_DEAD = 77


def _differing(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def _die_at(step: int) -> None:
    """Let this process end at the given change of a file that Python makes."""
    left = step

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        opened_for_writing = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if opened_for_writing or event in _CHANGES:
            left -= 1
            if left <= 0:
                os._exit(_DEAD)

    sys.addaudithook(hook)


_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"})
