"""Migrates v1 sources whose vector files have a damaged b-tree: ``python -m benchmarks.damaged_trees --count 20000``.

Each source has several damaged bases with a whole one before and behind. Every base must be migrated with the rows that
an independent reader finds on its leaf pages, or fail by name; the whole ones must always be migrated. The cases follow
from the seed. ``--salvage`` asks for the rows of damaged files; ``--quick`` does not count the rows that could be
salvaged, which takes most of the time; ``--only NUMBER`` runs one source again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import structs

SUPPORT = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(SUPPORT), str(SUPPORT / "support")]

import tree_damage  # noqa: E402
import v1  # noqa: E402
from page_damage import Layout, Made, make  # noqa: E402

from migrators import cherry_v1  # noqa: E402
from regraft import api  # noqa: E402
from regraft.errors import RegraftError  # noqa: E402
from regraft.stores.locate import INDEX_FILE  # noqa: E402

#: Damaged bases in one source.
DAMAGED = 10
NOW_MS = 1_767_225_600_000
LAYOUTS = (
    Layout(rows=24, page_size=512, dimensions=8, words=30),
    Layout(rows=60, page_size=512, dimensions=16, words=12),
    Layout(rows=40, page_size=512, dimensions=4, words=4, metadata="none"),
    Layout(rows=48, page_size=1024, dimensions=32, words=40, huge=(7,)),
    Layout(rows=60, page_size=1024, dimensions=8, words=6, deleted=(20, 40)),
    Layout(rows=20, page_size=4096, dimensions=64, words=60),
    Layout(rows=36, page_size=512, dimensions=8, words=20, auto_vacuum=True),
)


class Trees:
    """Sources with damaged vector files, by number, and what comes of migrating them."""

    def __init__(self, seed: int, work: Path) -> None:
        self._seed = seed
        self._work = work
        self._made = [make(work / "made", layout) for layout in LAYOUTS]
        self.outcomes: Counter[str] = Counter()

    def bad(self, number: int, *, salvage: bool) -> Iterator[str]:
        """Yield what is wrong after migrating one source."""
        rng = random.Random(f"{self._seed} {number}")
        bases: dict[str, tuple[Made, str, bytes]] = {}
        for position in range(DAMAGED + 2):
            made = rng.choice(self._made)
            is_whole = position in (0, DAMAGED + 1)
            name, raw = ("whole", made.raw) if is_whole else tree_damage.mutated(made, rng)
            bases[f"base-{position}"] = made, name, raw
        with tempfile.TemporaryDirectory(dir=self._work) as folder:
            source = _source(bases, Path(folder))
            library = Path(folder) / "library"
            try:
                report = api.migrate(source, library, jobs=1, salvage=salvage, now_ms=NOW_MS)
            except RegraftError as error:
                yield f"the run ended: {error} ({', '.join(name for _, name, _ in bases.values())})"
                return
            reports = {base["legacy_id"]: base for base in json.loads(msgspec.json.encode(report))["bases"]}
            for base, (made, name, raw) in bases.items():
                yield from self._judge(base, made, name, raw, reports[base], library, salvage=salvage)

    def _judge(
        self, base: str, made: Made, name: str, raw: bytes, report: dict[str, Any], library: Path, *, salvage: bool
    ) -> Iterator[str]:
        result = pairs_in(library / "KnowledgeBase" / report["id"] / INDEX_FILE)
        if name == "whole":
            if set(result) != tree_damage.original_pairs(made) or report["status"] != "completed":
                yield f"{base} whole: not migrated"
            return
        kind = report["status"] if "salvage" not in report else f"{report['status']}, salvage"
        is_same = set(result) == tree_damage.original_pairs(made)
        self.outcomes[f"{kind}, {'all rows' if is_same else 'not all rows'}"] += 1
        flips = name.count("single byte")
        for problem in tree_damage.problems(made, raw, result, report, salvaged=salvage, flips=flips):
            yield f"{base} {made.layout.page_size}/{made.layout.rows} {name}: {problem}"


def _source(bases: dict[str, tuple[Made, str, bytes]], folder: Path) -> Path:
    listed = []
    for base, (made, _, _) in bases.items():
        loaders = sorted({row[2] for row in made.rows.values()})
        items = [v1.file(f"{base}-{number}", loader) for number, loader in enumerate(loaders)]
        listed.append(v1.base(base, *items, dimensions=made.layout.dimensions))
    return v1.Source(listed, stores={base: raw for base, (_, _, raw) in bases.items()}).write(folder / "source")


def pairs_in(index: Path) -> Counter[tree_damage.Pair]:
    """Return the texts of an index with their vectors, each as often as it is there."""
    if not index.exists():
        return Counter()
    with closing(
        apsw.Connection(f"file:{index}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    ) as db:
        rows: Any = db.execute(
            "SELECT t.text, e.vector_blob FROM search_text t NOT INDEXED"
            " LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash"
        )
        return Counter((str(text), bytes(vector or b"")) for text, vector in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2_000, help="damaged files to try")
    parser.add_argument("--first", type=int, default=1, help="number of the first source")
    parser.add_argument("--only", type=int, help="one source alone")
    parser.add_argument("--salvage", action="store_true")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        cherry_v1.PIPELINE = structs.replace(cherry_v1.PIPELINE, salvager=None)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as work:
        tempfile.tempdir = work
        trees = Trees(args.seed, Path(work))
        sources = -(-args.count // DAMAGED)
        numbers = [args.only] if args.only else range(args.first, args.first + sources)
        bad, started = 0, time.monotonic()
        for done, number in enumerate(numbers, 1):
            for problem in trees.bad(number, salvage=args.salvage):
                bad += 1
                print(f"{number}: {problem}", flush=True)
            if done % 100 == 0:
                seconds = time.monotonic() - started
                print(f"  {done * DAMAGED} files, {bad} bad, {seconds:.0f} s", file=sys.stderr, flush=True)
        print(json.dumps({"files": len(numbers) * DAMAGED, "bad": bad, "outcomes": dict(trees.outcomes)}))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
