"""What a kill leaves in every recorded state of a migration, and what the next run makes of it.

``docs/reliability.md``, "Crash semantics", has the table. ``test_crash_changes.py`` is about changes, and
``backfill/test_crash_claims.py`` about texts that are claimed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deaths import Patched, dies, killed
from doc_text import section, spans
from faults import (
    base_files,
    changed_source,
    files_of,
    left_over,
    library,
    marks,
    migrate,
    posix,
    small_source,
)
from harness import REPO
from toys import quick_disk

from migrators.pipeline.publication import TargetLibrary
from regraft import identity
from regraft.disk import durable, sqlite, writable
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import Ledger


@pytest.fixture(scope="module", autouse=True)
def nothing_is_flushed() -> Iterator[None]:
    """A killed process has written what it has written."""
    with quick_disk():
        yield


# --- a migration -----------------------------------------------------------------------------------------------------

BASE = identity.base_id("beta")


def _goes_to(name: str) -> Callable[..., bool]:
    return lambda _, target: target.name == name


def _leaves(_: Path, target: Path) -> bool:
    return target.name == BASE and target.parent.name == "replaced"


def _comes(_: Path, target: Path) -> bool:
    return target.name == BASE and target.parent.name == "KnowledgeBase"


def _intends(subject: str) -> Callable[..., bool]:
    return lambda _, intended, *__: intended == subject


def _is_done(subject: str) -> Callable[..., bool]:
    return lambda _, step: step.subject == subject


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment of a migration.

    Attributes:
        dies: lets the run die there.
        subject: what is looked at.
        state: what the ledger says of it then, and once the next run has settled it; None: nothing.
        settled: see ``state``.
        stands: which base stands in the target once that is settled: "old", "new", or None.
        again: it is the run that carries a changed base anew, over a library of an earlier one.
    """

    dies: Patched
    state: str | None
    settled: str | None
    stands: str | None
    subject: str = BASE
    again: bool = True


_DONE = {"state": "done", "settled": "done", "stands": "new"}
MOMENTS = {
    "nothing is recorded": Moment(dies=dies(Ledger, "begin_run"), state=None, settled=None, stands="old"),
    "the run is recorded": Moment(dies=dies(Ledger, "begin_run", after=True), state=None, settled=None, stands="old"),
    "it is staged": Moment(dies=dies(Ledger, "intend", _intends(BASE)), state=None, settled=None, stands="old"),
    "it is intended": Moment(
        dies=dies(Ledger, "intend", _intends(BASE), after=True), state="intended", settled="dropped", stands="old"
    ),
    "the old one is aside": Moment(
        dies=dies(durable, "replace", _leaves, after=True), state="intended", settled="dropped", stands="old"
    ),
    "it is in place": Moment(
        dies=dies(durable, "replace", _comes, after=True), state="intended", settled="done", stands="new"
    ),
    "it is done": Moment(dies=dies(Ledger, "done", _is_done(BASE), after=True), **_DONE),
    "it is staged, the first time": Moment(
        dies=dies(Ledger, "intend", _intends(BASE)), state=None, settled=None, stands=None, again=False
    ),
    "it is intended, the first time": Moment(
        dies=dies(durable, "replace", _comes), state="intended", settled="dropped", stands=None, again=False
    ),
    "it is in place, the first time": Moment(
        dies=dies(Ledger, "done", _is_done(BASE)), state="intended", settled="done", stands="new", again=False
    ),
    # The catalog of both runs has the same bytes, which is all that counts: it is in place.
    "the catalog is intended": Moment(
        dies=dies(durable, "replace", _goes_to("catalog.sqlite")),
        **{**_DONE, "state": "intended"},
        subject="catalog",
    ),
    "the catalog is in place": Moment(
        dies=dies(durable, "replace", _goes_to("catalog.sqlite"), after=True),
        **{**_DONE, "state": "intended"},
        subject="catalog",
    ),
    "the catalog is done": Moment(
        dies=dies(Ledger, "done", _is_done("catalog"), after=True), **_DONE, subject="catalog"
    ),
    "the report is in place": Moment(
        dies=dies(Ledger, "done", _is_done("report")),
        **{**_DONE, "state": "intended", "settled": "dropped"},
        subject="report",
    ),
    "all is done": Moment(dies=dies(Ledger, "end_run"), **_DONE, subject="report"),
}


@dataclass(frozen=True, kw_only=True)
class Journey:
    """A run that is killed: from where, over what, and what an undisturbed one leaves."""

    source: Path
    before: Path | None
    whole: Path

    def target(self, place: Path) -> Path:
        """Return the target as it is before the run."""
        if self.before is not None:
            shutil.copytree(self.before, place / "library")
        return place / "library"


@pytest.fixture(scope="module")
def journeys(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Journey]:
    """Return, by whether there was one before, the runs of a migration."""
    place = tmp_path_factory.mktemp("journeys")
    source, changed = small_source(place / "source").folder, small_source(place / "changed")
    changed_source(changed)
    first = place / "first"
    assert migrate(source, first).status == 1
    again = shutil.copytree(first, place / "again")
    assert migrate(changed.folder, again).status == 1
    return {
        False: Journey(source=source, before=None, whole=first),
        True: Journey(source=changed.folder, before=first, whole=again),
    }


def last_run(target: Path) -> tuple[str | None, dict[str, str]]:
    """Return how the last run ended, and the states of its steps by what they are about."""
    with sqlite.open_readonly(ledgers.ledger_path(target)) as db:
        run = db.execute("SELECT run_id, status FROM run ORDER BY rowid DESC LIMIT 1").fetchone()
        steps = (
            [] if run is None else db.execute("SELECT subject, state FROM step WHERE run_id = ?", run[:1]).fetchall()
        )
    return (None if run is None else str(run[1])), {str(subject): str(state) for subject, state in steps}


def recover(target: Path) -> None:
    """Settle what a killed run left, as the next run does before anything else."""
    with writable.allow_writes(target), ledgers.open_exclusive(target) as ledger:
        TargetLibrary(target, "the-next-run").recover(ledger)


@pytest.mark.one_in(3)
@posix
@pytest.mark.parametrize("name", MOMENTS)
def test_a_migration_that_is_killed_in_a_state_is_settled_by_it(
    name: str, journeys: dict[bool, Journey], tmp_path: Path
) -> None:
    moment = MOMENTS[name]
    journey = journeys[moment.again]
    target = journey.target(tmp_path)
    before = None if journey.before is None else last_run(target)
    killed(moment.dies, lambda: migrate(journey.source, target, "--jobs", 1))
    status, states = last_run(target)
    began = (status, states) != (before or (None, {}))
    assert began == (name != "nothing is recorded")
    if began:
        assert (status, states.get(moment.subject)) == ("running", moment.state)
    # What is settled is settled, however often that is tried.
    recover(target)
    settled = files_of(target)
    recover(target)
    assert files_of(target) == settled
    status, states = last_run(target)
    if began:
        assert (status, states.get(moment.subject)) == ("stopped", moment.settled)
    assert "intended" not in states.values()
    assert left_over(target) == []
    old = {} if journey.before is None else base_files(journey.before)
    new = base_files(journey.whole)
    assert base_files(target).get(BASE) == {"old": old.get(BASE), "new": new[BASE], None: None}[moment.stands]
    # The next run makes the rest, and nothing a second time.
    finished = {base: mark for base, mark in marks(target).items() if base_files(target)[base] == new[base]}
    assert (BASE in finished) == (moment.stands == "new")
    assert migrate(journey.source, target).status == 1
    assert library(target) == library(journey.whole)
    assert marks(target).items() >= finished.items()


# --- what is staged --------------------------------------------------------------------------------------------------


@posix
def test_what_a_killed_run_has_staged_is_never_taken_for_finished(
    journeys: dict[bool, Journey], tmp_path: Path
) -> None:
    journey = journeys[False]
    target = journey.target(tmp_path)
    killed(dies(Ledger, "intend", _intends(BASE)), lambda: migrate(journey.source, target, "--jobs", 1))
    [staged] = (target / ".regraft" / "staging").glob(f"*/{BASE}")
    # Whole, to the last byte, and not recorded.
    assert files_of(staged) == base_files(journey.whole)[BASE]
    assert BASE not in ledgers.read_entries(target)
    inode = (staged / ".cherry" / "index.sqlite").stat().st_ino
    held = tmp_path / "held"
    (held).hardlink_to(staged / ".cherry" / "index.sqlite")  # so that nothing else gets its number
    done = migrate(journey.source, target, "--json")
    assert [base["status"] for base in done.document["bases"] if base["id"] == BASE] == ["completed"]
    assert library(target) == library(journey.whole)
    assert marks(target)[BASE][0] != inode
    assert left_over(target) == []


def _interrupted() -> None:
    raise KeyboardInterrupt


def _refused() -> None:
    raise PermissionError(13, "Permission denied")


def _once(patch: pytest.MonkeyPatch, name: str, meant: Callable[..., bool], stop: Callable[[], None]) -> None:
    """Let the first record that is meant stop the run."""
    real, stops = getattr(Ledger, name), [stop]

    def record(*some: Any) -> Any:
        if meant(*some) and stops:
            stops.pop()()
        return real(*some)

    patch.setattr(Ledger, name, record)


@pytest.mark.parametrize("stop", [_interrupted, _refused])
def test_what_is_in_place_is_not_removed_by_the_run_that_made_it(
    stop: Callable[[], None], journeys: dict[bool, Journey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before it is recorded as done, nor once something else stops the run."""
    journey = journeys[True]
    for name, meant in (("done", _is_done(BASE)), ("intend", _intends("catalog"))):
        target = journey.target(tmp_path / name)
        with monkeypatch.context() as patch:
            _once(patch, name, meant, stop)
            assert migrate(journey.source, target).status in (3, 130)
        assert base_files(target)[BASE] == base_files(journey.whole)[BASE]
        assert last_run(target)[1][BASE] == "done"
        assert left_over(target) == []


def test_what_another_run_has_staged_is_its_own_until_the_next_one_settles_it(
    journeys: dict[bool, Journey], tmp_path: Path
) -> None:
    journey = journeys[True]
    target = journey.target(tmp_path)
    foreign = target / ".regraft" / "staging" / "20200101T000000Z-abcdef" / BASE
    shutil.copytree(target / "KnowledgeBase" / BASE, foreign)
    with ledgers.open_exclusive(target):
        refused = migrate(journey.source, target, "--json")
        assert refused.document["error"]["code"] == "TargetLocked"
        assert foreign.exists()
    assert migrate(journey.source, target).status == 1
    assert not foreign.exists()
    assert library(target) == library(journey.whole)


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_names_tests_that_there_are() -> None:
    page = (REPO / "docs" / "reliability.md").read_text("utf-8")
    named = {name for name in spans(section(page, "Crash semantics")) if name.startswith("test_")}
    every = "".join(path.read_text("utf-8") for path in (REPO / "tests").rglob("test_*.py"))
    assert named
    assert {name for name in named if f"def {name}(" not in every} == set()
