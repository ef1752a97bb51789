"""A small dose of the campaign: changed inputs, stores of strangers, walks, and that each notices what it looks for."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from extras import needs
from harness import REPO

# Last: it is the installed package that is tested.
if str(REPO) not in sys.path:
    sys.path.append(str(REPO))

if sys.platform == "win32":
    pytest.skip("stores are made hostile by pipes, links and rights", allow_module_level=True)

from campaign.__main__ import memory
from campaign.hostile_stores import HostileStores
from campaign.machine import Machine
from campaign.mutations import Mutations

pytestmark = needs("parquet")

SEED = 1
#: Kinds of input that take little time.
INPUTS = ("v1 export", "v1 profile", "library", "codex-mem", "AngelMemory", "rsclaw", "configuration", "parquet")


@pytest.fixture(scope="module")
def memory_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a folder in memory, where the system offers that; whole input is made once for all tests."""
    place = memory() or tmp_path_factory.mktemp("campaign")
    with tempfile.TemporaryDirectory(prefix="regraft-campaign-", dir=place) as folder:
        yield Path(folder)


@pytest.fixture
def work(memory_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give that folder; what a case sets for its commands is set back."""
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    monkeypatch.setenv("HOME", os.environ.get("HOME", ""))
    monkeypatch.chdir(tmp_path)
    yield memory_folder
    os.chdir(tmp_path)


def bad(campaign: Mutations | HostileStores | Machine, numbers: range) -> list[str]:
    """Run cases in this process, and return what is wrong with them; with a control, until one is."""
    found = []
    for number in numbers:
        outcome = campaign.case(number)
        if outcome.problem:
            found.append(f"{number}: {outcome.problem} ({outcome.case})")
            if campaign.control is not None:
                break
    return found


def mutations(work: Path, control: str | None = None) -> Mutations:
    campaign = Mutations(SEED, work / "mutations", control)
    campaign.names = INPUTS
    campaign.prepare()
    return campaign


def stores(work: Path, control: str | None = None) -> HostileStores:
    campaign = HostileStores(SEED, work / "stores", control)
    campaign.names = ("library",)
    campaign.prepare()
    return campaign


def walks(work: Path, control: str | None = None) -> Machine:
    campaign = Machine(SEED, work / "walks", control)
    campaign.prepare()
    return campaign


def test_changed_inputs_are_read_refused_or_named(work: Path) -> None:
    assert bad(mutations(work), range(1, 25)) == []


@pytest.mark.parametrize(("control", "number"), [("text", 176), ("source", 2), ("books", 31)])
def test_a_changed_input_that_comes_to_harm_is_noticed(work: Path, control: str, number: int) -> None:
    assert bad(mutations(work, control), range(number, number + 1)) != []
    assert bad(mutations(work), range(number, number + 1)) == []


def test_a_store_of_a_stranger_harms_nobody(work: Path) -> None:
    assert bad(stores(work), range(1, 13)) == []


@pytest.mark.parametrize(("control", "numbers"), [("links", range(1, 50)), ("undo", range(150, 450))])
def test_a_store_that_does_harm_is_noticed(work: Path, control: str, numbers: range) -> None:
    """What a case is depends on the bytes of its store, so that nobody knows before which of them does harm."""
    [noticed] = bad(stores(work, control), numbers)
    number = int(noticed.partition(":")[0])
    assert bad(stores(work), range(number, number + 1)) == []


def test_a_walk_through_all_commands_loses_nothing(work: Path) -> None:
    assert bad(walks(work), range(1, 3)) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("control", "number"), [("undo", 8), ("vectors", 5)])
def test_a_walk_that_loses_something_is_noticed(work: Path, control: str, number: int) -> None:
    assert bad(walks(work, control), range(number, number + 1)) != []
    assert bad(walks(work), range(number, number + 1)) == []
