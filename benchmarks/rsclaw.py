"""Measures looking into, auditing and migrating KBs of rsclaw, of few and many chunks: time, and flat memory.

``python -m benchmarks.rsclaw`` (two minutes) makes the KBs of :mod:`benchmarks.rsclaw_search`. Each command is a
process of its own; the database is read with all its checksums, and its vectors are made float32 from decimals. The
exit status is 1 when a limit is broken: more than 200 MB at the peak, or 1.3 times as much with ten times the chunks.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.compare import run
from benchmarks.rsclaw_search import SIZES
from benchmarks.vocabulary import LANGUAGES

MAX_PEAK_MB, MAX_GROWTH = 200, 1.3
COMMANDS = {
    "inspect": ["inspect", "{kb}", "-q"],
    "check": ["check", "{kb}", "-q", "--fail-on", "never"],
    "check --deep": ["check", "{kb}", "--deep", "-q", "--fail-on", "never"],
    "migrate": ["migrate", "{kb}", "--to", "{kb}-library", "--yes", "-q", "--fail-on", "never"],
    "export": ["export", "{kb}", "{kb}.parquet", "-q"],
}


def main() -> int:
    """Measure, print the table, and tell whether a limit is broken."""
    peaks = dict.fromkeys(SIZES, 0.0)
    print(f"| chunks | {' | '.join(COMMANDS)} | peak memory |\n| --- |{' ---: |' * (len(COMMANDS) + 1)}")
    with tempfile.TemporaryDirectory() as folder:
        for language in LANGUAGES:
            for chunks in SIZES:
                kb = Path(folder) / f"{language}-{chunks}"
                made = ["--make", str(kb), "--chunks", str(chunks), "--lang", language]
                run([sys.executable, "-m", "benchmarks.rsclaw_search", *made], Path(folder))
                lines = [[word.format(kb=kb) for word in words] for words in COMMANDS.values()]
                done = [run([sys.executable, "-m", "regraft", *line], Path(folder)) for line in lines]
                # pyarrow's own share is not ours to flatten.
                peak = max(one.peak_mb for one in done[:-1])
                peaks[chunks] = max(peaks[chunks], peak)
                times = "".join(f" {one.seconds:.1f} s |" for one in done)
                print(f"| {chunks:,} {language} |{times} {peak:.0f} MB |", flush=True)
    return int(peaks[SIZES[-1]] > min(MAX_PEAK_MB, MAX_GROWTH * peaks[SIZES[0]]))


if __name__ == "__main__":
    sys.exit(main())
