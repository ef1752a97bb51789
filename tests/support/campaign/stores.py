"""What is disturbed: every command that changes something, each with a small store that gives it something to do.

The stores are those of the tests, whose helpers lie in ``tests/``.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import angel_store
import codex_mem_store
import generations
import lacking
import older
import profiles
import stranded
import toys
import whole_rsclaw
from faults import changed_source, small_source
from harness import NOW, run
from planted_v2 import index

from regraft import identity
from regraft.testing import DAMAGES


@dataclass(frozen=True)
class Scenario:
    """One run to be disturbed.

    ``arguments``: of the command, ``{place}`` is the folder that :attr:`prepare` has filled. ``changed`` names what the
    run may change in that folder; all else is a source. ``store`` is what ``undo`` takes, empty where nothing is to be
    taken back. ``settled``: the next run may be refused, where there is nothing left to do. ``growing`` are parts of
    names of files that a run fills step by step, each of which stays. ``ignored`` are columns that count or tell when.
    ``is_one_file``: what is made is never made anew, also where a base could not be read and was left out.
    """

    name: str
    command: str
    arguments: tuple[str, ...]
    changed: tuple[str, ...]
    prepare: Callable[[Path], object]
    store: str = ""
    settled: bool = False
    growing: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    is_one_file: bool = False

    def line(self, place: Path) -> list[str]:
        """Return the command line."""
        return [self.command, *(part.replace("{place}", str(place)) for part in self.arguments)]


def _source(place: Path) -> None:
    small_source(place / "source")


def _again(place: Path) -> None:
    source = small_source(place / "source")
    _demand("migrate", place / "source", "--to", place / "library", "--now", NOW)
    changed_source(source)
    (place / "source" / "Files" / "f4.txt").write_bytes(b"another four")


def _demand(*arguments: object) -> None:
    done = run(*arguments)
    if done.status not in (0, 1):
        raise SystemExit(f"a store cannot be prepared: {done}")


def _parquet(place: Path) -> None:
    _library(place)
    _demand("export", place / "library", place / "rows.parquet")


def _library(place: Path) -> Path:
    small_source(place / "made")
    _demand("migrate", place / "made", "--to", place / "library", "--now", NOW)
    shutil.rmtree(place / "made")
    shutil.rmtree(place / "library" / ".regraft")
    return place / "library"


def _toy(place: Path) -> Path:
    made = toys.library(place / "made")
    shutil.move(made, place / "library")
    shutil.rmtree(place / "made")
    return place / "library"


def _planted(place: Path, damages: dict[str, tuple[str, ...]]) -> Path:
    store = _toy(place)
    for base, names in damages.items():
        for name in names:
            DAMAGES[name].plant(store, base)
    return store


def _damaged(place: Path) -> None:
    _planted(place, {toys.KB: ("other words", "another unit id", "nobody works"), toys.OTHER: ("a journal",)})


def _wasteful(place: Path) -> None:
    store = _toy(place)
    for base in (toys.KB, toys.OTHER):
        with closing(sqlite3.connect(index(store, base))) as db, db:
            db.execute("INSERT INTO embedding SELECT 'waste' || rowid, vector_blob, 0 FROM embedding")
            db.execute("INSERT INTO content VALUES (?, 'of nobody', 0)", (identity.text_hash("of nobody"),))
            db.execute("DELETE FROM search_unit WHERE rowid = 1")
    with closing(sqlite3.connect(index(store, toys.KB))) as db, db:
        db.execute("CREATE TABLE filler (bytes BLOB)")
        db.execute("INSERT INTO filler VALUES (zeroblob(200000))")
        db.execute("DROP TABLE filler")


def _out_of_step(place: Path) -> None:
    _planted(place, {toys.KB: ("a material of no item", "another path")})


def _old(place: Path) -> None:
    store = _toy(place)
    for base in (toys.KB, toys.OTHER):
        older.make_version_1(index(store, base))
    generations.earlier(store)


def _repaired(place: Path) -> None:
    _damaged(place)
    _demand("repair", place / "library", "-y")
    _demand("gc", place / "library", "-y")


def _profile(place: Path) -> None:
    _library(place)
    profiles.profile(place / "profile")


def _installed(place: Path) -> None:
    _profile(place)
    _demand("install", place / "library", "--profile", place / "profile", "--now", NOW, "-y")


def _lacking(place: Path) -> None:
    made = lacking.library(place / "made")
    shutil.move(lacking.taken_away(made), place / "library")
    shutil.rmtree(place / "made")
    _configured(place)


def _configured(place: Path) -> None:
    lacking.configured(place / "regraft.yaml", "http://127.0.0.1:9/v1")


def _stranded(place: Path) -> None:
    made = stranded.profile(place / "made", stranded.some_source(), ("kb",))
    shutil.move(made, place / "profile")
    shutil.rmtree(place / "made")


def _codex(place: Path) -> None:
    path = codex_mem_store.write(place / "codex", excluded=1)
    codex_mem_store.exclude(path, codex_mem_store.note_id(0, 1))
    _configured(place)


def _codex_failed(place: Path) -> None:
    _codex(place)
    path = place / "codex" / "codex-mem.db"
    codex_mem_store.embed(path)
    codex_mem_store.mark_failed(path, codex_mem_store.note_id(0, 0))


def _rsclaw(place: Path) -> None:
    whole_rsclaw.with_garbage(place / "kb").write()


def _angel(place: Path) -> None:
    store = angel_store.damaged(place / "data")
    first = min(store.raw.rglob("*.md"))
    store.write(first.relative_to(store.raw).as_posix(), "# Another\n\nwords", seconds=angel_store.READ_AT + 100)


_MODEL = ("--model", "acme::embed-small", "--dimensions", "8")

SCENARIOS = (
    Scenario(
        "migrate",
        "migrate",
        ("{place}/source", "--to", "{place}/library", "--now", NOW, "--jobs", "1", "-q"),
        ("library",),
        _source,
    ),
    Scenario(
        "migrate again",
        "migrate",
        ("{place}/source", "--to", "{place}/library", "--now", NOW, "--jobs", "1", "-q"),
        ("library",),
        _again,
    ),
    Scenario(
        "import", "import", ("{place}/rows.parquet", "--to", "{place}/out", "--now", NOW, "-q"), ("out",), _parquet
    ),
    Scenario(
        "export",
        "export",
        ("{place}/library", "{place}/rows.parquet", "-q"),
        ("rows.parquet", ".rows.parquet.part"),
        _library,
    ),
    Scenario(
        "pack",
        "pack",
        ("{place}/library", "{place}/bases.zip", "--now", NOW, "-q"),
        ("bases.zip", ".bases.zip.regraft-part"),
        _library,
        settled=True,
        is_one_file=True,
    ),
    Scenario("repair", "repair", ("{place}/library", "-y", "-q"), ("library",), _damaged, store="library"),
    Scenario("gc", "gc", ("{place}/library", "-y", "-q"), ("library",), _wasteful, store="library"),
    Scenario(
        "gc --vacuum", "gc", ("{place}/library", "--vacuum", "-y", "-q"), ("library",), _wasteful, store="library"
    ),
    Scenario("reconcile", "reconcile", ("{place}/library", "-y", "-q"), ("library",), _out_of_step, store="library"),
    Scenario("upgrade", "upgrade", ("{place}/library", "-y", "-q"), ("library",), _old, store="library"),
    Scenario("undo repair", "undo", ("{place}/library", "-y", "-q"), ("library",), _repaired, settled=True),
    Scenario("undo install", "undo", ("{place}/profile", "-y", "-q"), ("profile",), _installed, settled=True),
    Scenario(
        "install",
        "install",
        ("{place}/library", "--profile", "{place}/profile", "--now", NOW, "-y", "-q"),
        ("profile",),
        _profile,
        store="profile",
        # Which base came first, in a log that the profile keeps.
        ignored=("number",),
    ),
    Scenario(
        "restore",
        "restore",
        (
            "{place}/library",
            "--config",
            "{place}/regraft.yaml",
            "--base",
            lacking.KB,
            *_MODEL,
            "--now",
            NOW,
            "--yes",
            "-q",
        ),
        ("library",),
        _lacking,
        store="library",
        settled=True,
        is_one_file=True,
    ),
    Scenario(
        "backfill",
        "backfill",
        ("{place}/library", "--config", "{place}/regraft.yaml", "-y", "-q"),
        ("library",),
        _lacking,
        store="library",
        growing=("index.sqlite",),
    ),
    Scenario(
        "rescue", "rescue", ("{place}/profile", "--now", NOW, "-y", "-q"), ("profile",), _stranded, store="profile"
    ),
    Scenario(
        "backfill of codex-mem",
        "backfill",
        ("{place}/codex", "--config", "{place}/regraft.yaml", "--all-projects", "-y", "-q"),
        ("codex",),
        _codex,
        store="codex",
        growing=("codex-mem",),
        ignored=("backfilled_at", "rebuilt_at", "embedded_at"),
    ),
    Scenario("clear-failed", "clear-failed", ("{place}/codex", "-y", "-q"), ("codex",), _codex_failed, store="codex"),
    Scenario(
        "rebuild",
        "rebuild",
        ("{place}/codex", "--config", "{place}/regraft.yaml", "-y", "-q"),
        ("codex",),
        _codex_failed,
        store="codex",
        growing=("codex-mem",),
        ignored=("backfilled_at", "rebuilt_at", "embedded_at"),
    ),
    Scenario(
        "repair of AngelMemory",
        "repair",
        ("{place}/data", "-y", "-q"),
        ("data",),
        _angel,
        store="data",
        ignored=("id", "seq", "file_id"),
    ),
    Scenario(
        "gc of AngelMemory",
        "gc",
        ("{place}/data", "-y", "-q"),
        ("data",),
        _angel,
        store="data",
        ignored=("id", "seq", "file_id"),
    ),
    Scenario("gc of rsclaw", "gc", ("{place}/kb", "-y", "-q", "--now", NOW), ("kb",), _rsclaw, store="kb"),
    Scenario("reconcile of rsclaw", "reconcile", ("{place}/kb", "-y", "-q"), ("kb",), _rsclaw, store="kb"),
    Scenario(
        "migrate from rsclaw",
        "migrate",
        ("{place}/kb", "--to", "{place}/library", "--now", NOW, "-y", "-q", "--fail-on", "never"),
        ("library",),
        _rsclaw,
    ),
)
