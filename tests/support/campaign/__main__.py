"""``python -m campaign NAME --seed N --count N``: runs a campaign and writes its result.

The exit status is 0 when no case was bad; with ``--control`` it is 0 when some were: what was switched off was noticed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from campaign import CAMPAIGNS
from campaign.campaign import RESULTS, Campaign, Result, load, run

#: A control ends when so many bad cases were found.
ENOUGH_FOR_A_CONTROL = 10


def campaign_class(name: str) -> type[Campaign]:
    """Return the class of a campaign."""
    module, attribute = CAMPAIGNS[name]
    found: type[Campaign] = getattr(import_module(f"campaign.{module}"), attribute)
    return found


def memory() -> Path | None:
    """Return a folder in memory, where the system offers that."""
    place = Path("/dev/shm")
    return place if os.access(place, os.W_OK) else None


def arguments() -> argparse.ArgumentParser:
    """Return what the command line takes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("campaign", choices=sorted(CAMPAIGNS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="so many cases in all (default: what makes the campaign whole)")
    parser.add_argument("--hours", type=float, help="at most so long")
    parser.add_argument("--control", help="with something switched off, so that bad cases must be found")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run this one case again, and write nothing")
    parser.add_argument("--again", action="store_true", help="run the cases that were bad once more, and nothing else")
    parser.add_argument("--anew", action="store_true", help="forget what was counted with this seed before")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=memory(), help="where to make stores (default: in memory)")
    return parser


def gone_on(campaign: Campaign, asked: argparse.Namespace) -> Result:
    """Go on where the result of earlier runs ends, or begin anew."""
    old = Result(campaign.name, asked.seed, asked.control)
    result = old if asked.anew else load(asked.results, campaign.name, asked.seed, asked.control)
    result.off = campaign.controls[asked.control] if asked.control else ""
    if asked.again:
        result.take_up_again(campaign)
        result.save(asked.results)
        asked.count = result.count
    return run(
        campaign,
        result,
        count=asked.count or campaign.whole,
        seconds=None if asked.hours is None else asked.hours * 3600,
        stop_at_bad=ENOUGH_FOR_A_CONTROL if asked.control else None,
        save_to=asked.results,
    )


def main() -> int:
    """Run, count, report."""
    parser = arguments()
    asked = parser.parse_args()
    kind = campaign_class(asked.campaign)
    if asked.control is not None and asked.control not in kind.controls:
        parser.error(f"{kind.name} has these controls: {', '.join(kind.controls)}")
    with tempfile.TemporaryDirectory(prefix=f"campaign-{kind.name}-", dir=asked.work) as work:
        campaign = kind(asked.seed, Path(work), asked.control)
        if asked.only is not None:
            outcome = next(campaign.cases(asked.only))
            print(outcome)
            return 1 if outcome.problem else 0
        result = gone_on(campaign, asked)
    print(f"{kind.name}, seed {asked.seed}: {result.count} {kind.unit}, {result.bad} bad, {result.seconds:.0f} s")
    for what, count in result.kinds.most_common():
        print(f"{count:8}  {what}")
    return 0 if bool(result.bad) == bool(asked.control) else 1


if __name__ == "__main__":
    sys.exit(main())
