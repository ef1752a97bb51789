"""A small dose of the campaign: power cuts, I/O faults and kills, and that each would notice what it looks for."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import posix
from harness import REPO

# Last: it is the installed package that is tested.
if str(REPO) not in sys.path:
    sys.path.append(str(REPO))

if sys.platform != "linux":
    pytest.skip("a run is watched by what Linux tells of it", allow_module_level=True)

from campaign.__main__ import memory
from campaign.campaign import Campaign, Result, run
from campaign.io_faults import IoFaults
from campaign.kills import Kills
from campaign.power_loss import PowerLoss
from campaign.stores import SCENARIOS

SEED = 1


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """Give a folder in memory, where the system offers that."""
    with tempfile.TemporaryDirectory(prefix="regraft-campaign-", dir=memory() or tmp_path) as folder:
        yield Path(folder)


def dose(kind: type[Campaign], work: Path, count: int, names: tuple[str, ...], control: str | None = None) -> Result:
    """Run some cases of a campaign on some of its scenarios; with a control, until one was bad."""
    campaign = kind(SEED, work, control)
    campaign.scenarios = tuple(one for one in SCENARIOS if one.name in names)
    assert len(campaign.scenarios) == len(names)
    if isinstance(campaign, Kills):
        # What comes at a moment of its own comes at another one in each run.
        campaign.ways = ("SIGKILL",)
    found = run(campaign, Result(kind.name, SEED, control), count=count, stop_at_bad=1 if control else None)
    assert found.count == count or control
    return found


@pytest.mark.thorough
def test_a_power_cut_loses_nothing(work: Path) -> None:
    assert dose(PowerLoss, work, 12, ("gc",)).bad_cases == []


@pytest.mark.thorough
def test_a_power_cut_is_noticed_where_nothing_is_flushed(work: Path) -> None:
    assert dose(PowerLoss, work, 300, ("gc",), "no-sync").bad == 1


@pytest.mark.thorough
@posix
def test_an_operation_that_fails_leaves_nothing_half(work: Path) -> None:
    assert dose(IoFaults, work, 10, ("undo repair", "clear-failed")).bad_cases == []


@pytest.mark.slow
@posix
def test_it_is_noticed_where_a_failed_transaction_is_kept(work: Path) -> None:
    assert dose(IoFaults, work, 200, ("clear-failed",), "no-rollback").bad == 1


@pytest.mark.thorough
@posix
def test_a_kill_leaves_nothing_half(work: Path) -> None:
    assert dose(Kills, work, 6, ("migrate again", "undo install")).bad_cases == []


@pytest.mark.slow
@posix
def test_it_is_noticed_where_nothing_is_settled_after_a_kill(work: Path) -> None:
    assert dose(Kills, work, 100, ("gc of AngelMemory",), "no-recovery").bad == 1
