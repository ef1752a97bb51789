"""Measures ``regraft search`` in KBs of rsclaw of few and many chunks: time, and that memory does not grow.

``python -m benchmarks.rsclaw_search`` (two minutes) makes KBs with chunks of 800 characters, in English and in Chinese,
and vectors of 384 numbers. Each search is a process of its own. Every search makes its index anew, of what the caller
may see. The exit status is 1 when a limit is broken: more than 150 MB at the peak, or 1.3 times as much with ten times
the chunks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from array import array
from pathlib import Path
from random import Random

from benchmarks.compare import ROOT, Run, run
from benchmarks.vocabulary import LANGUAGES, Writer

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "support"))

from rsclaw_store import RsclawStore

CHARACTERS, DIMENSIONS, PER_DOCUMENT = 800, 384, 50
SIZES = (2_000, 20_000)
QUERIES = {"en": "window harbour", "zh": "知识库搜索"}
MAX_PEAK_MB, MAX_GROWTH = 150, 1.3


def make(folder: Path, chunks: int, language: str) -> None:
    """Make a KB of so many chunks."""
    random = Random(1)
    writer, store = Writer(language, random), RsclawStore(folder)
    for number in range(chunks // PER_DOCUMENT):
        texts = [writer.chunk(CHARACTERS) for _ in range(PER_DOCUMENT)]
        store.doc(f"Doc {number}", texts, dimensions=0)
    for chunk in store.tables["kb_chunks"].values():
        chunk["vector"] = [number / 1000 for number in array("h", random.randbytes(2 * DIMENSIONS))]
    store.write()


def measured(chunks: int, language: str, folder: Path) -> dict[str, Run]:
    """Return what each search took."""
    kb, vector = folder / f"{language}-{chunks}", folder / "query.json"
    made = ["--make", str(kb), "--chunks", str(chunks), "--lang", language]
    run([sys.executable, "-m", "benchmarks.rsclaw_search", *made], folder)
    vector.write_text(json.dumps([0.1] * DIMENSIONS))
    ways = {"words": [], "short words": [], "words and meaning": ["--vector", str(vector)]}
    found = {}
    for way, options in ways.items():
        query = "中" if way == "short words" else QUERIES[language]
        words = ["search", str(kb), query, "--json", *options]
        found[way] = run([sys.executable, "-m", "regraft", *words], folder)
        json.loads(found[way].output)
    return found


def main() -> int:
    """Measure, print the table, and tell whether a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--make", type=Path)
    parser.add_argument("--chunks", type=int, default=SIZES[0])
    parser.add_argument("--lang", choices=LANGUAGES, default="en")
    asked = parser.parse_args()
    if asked.make:
        make(asked.make, asked.chunks, asked.lang)
        return 0
    peaks = dict.fromkeys(SIZES, 0.0)
    print("| chunks | words | short words | words and meaning | peak memory |\n| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for language in LANGUAGES:
            for chunks in SIZES:
                found = measured(chunks, language, Path(folder))
                peak = max(one.peak_mb for one in found.values())
                peaks[chunks] = max(peaks[chunks], peak)
                times = "".join(f" {one.seconds:.1f} s |" for one in found.values())
                print(f"| {chunks:,} {language} |{times} {peak:.0f} MB |", flush=True)
    return int(peaks[SIZES[-1]] > min(MAX_PEAK_MB, MAX_GROWTH * peaks[SIZES[0]]))


if __name__ == "__main__":
    sys.exit(main())
