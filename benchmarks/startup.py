"""How long a command takes to begin: CPU time of fresh processes on a warm file cache, against ``import click`` alone.

``python -m benchmarks.startup [SOURCE]`` runs each command some times in turn, the others between, and prints the least
seconds of CPU (user and system) of each as JSON. It ends with status 1 where one is over its limit: ``--version`` over
0.15 s or over 1.5 times ``python -c 'import click'``, ``inspect`` of SOURCE (the sample's backup) over 0.3 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "sample_v1" / "backup"
VERSION_SECONDS, INSPECT_SECONDS, VERSION_RATIO = 0.15, 0.3, 1.5


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The least CPU seconds of each command, and what is wrong with them."""

    click: float
    version: float
    inspect: float

    def exceeded(self) -> list[str]:
        """Return the limits that do not hold, in words."""
        over = {
            f"--version takes more than {VERSION_SECONDS} s": self.version > VERSION_SECONDS,
            f"--version takes more than {VERSION_RATIO} times import click": self.version > VERSION_RATIO * self.click,
            f"inspect takes more than {INSPECT_SECONDS} s": self.inspect > INSPECT_SECONDS,
        }
        return [said for said, is_over in over.items() if is_over]


def cpu_seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """Run Python with arguments and return the CPU seconds that it took, of user and system."""
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    # A source with a base that has a problem ends with 0 too: to look is no audit.
    if process.returncode:
        raise RuntimeError(f"python {' '.join(arguments)} ended with status {process.returncode}")
    return used.ru_utime + used.ru_stime


def measured(source: Path, rounds: int) -> Limits:
    """Return the least seconds of each command of ``rounds``; one more, before them, warms caches up."""
    commands = {
        "click": ["-c", "import click"],
        "version": ["-m", "regraft", "--version"],
        "inspect": ["-m", "regraft", "inspect", str(source)],
    }
    # What was compiled once is to be there the next time, as it is for a user.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, arguments in commands.items():
            seconds = cpu_seconds(arguments, environment)
            if turn:
                taken[name].append(seconds)
    return Limits(**{name: min(seconds) for name, seconds in taken.items()})


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, nargs="?", default=SAMPLE)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    found = measured(asked.source, asked.rounds)
    ratio = round(found.version / found.click, 2)
    seconds = {name: round(value, 3) for name, value in vars(found).items()}
    print(json.dumps({**seconds, "version / click": ratio, "exceeded": found.exceeded()}, indent=2))
    return int(bool(found.exceeded()))


if __name__ == "__main__":
    sys.exit(main())
