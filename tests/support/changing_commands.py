"""One case for every command that changes a store: its arguments and the store it needs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import angel_store
import apsw
import chroma_store
import codex_mem_store
import older
import planted_rsclaw
import planted_v2
import profiles
import stranded
import synced
from fault_server import FaultServer
from harness import NOW, Outcome, run
from index_damage import IndexFile, damaged
from lacking import configured

from regraft.disk import untrusted_sqlite

#: What a command line names instead of the configuration of an embedder.
CONFIG = Path("CONFIG")


@dataclass(frozen=True)
class Case:
    """A command with something to do.

    Attributes:
        make: builds a store below a folder, and returns what is changed, as the command line names it.
        command: the command line, without the store.
        source: a second store that is only read, built below a folder.
        finished: the exit status of the run: 1 where something is left for a person.
        again: what a second run comes to: "nothing", "refused", or "anew" where the command always makes all of it.
    """

    make: Callable[[Path], Path]
    command: tuple[object, ...]
    source: Callable[[Path], tuple[object, ...]] | None = None
    finished: int = 0
    again: str = "nothing"

    @property
    def embeds(self) -> bool:
        """Tell whether it writes as answers come, so that what stops it leaves what was written before."""
        return CONFIG in self.command


def library(*damages: str) -> Callable[[Path], Path]:
    """Return what builds a library with damage of these names."""

    def make(folder: Path) -> Path:
        target = planted_v2.library(folder)
        for name in damages:
            planted_v2.plant(name, target)
        return target

    return make


def unlisted(folder: Path) -> Path:
    target = planted_v2.library(folder)
    planted_v2.run_sql(target / "catalog.sqlite", "DELETE FROM knowledge_item", "DELETE FROM knowledge_base")
    return target


def older_library(folder: Path) -> Path:
    target = planted_v2.library(folder)
    older.make_version_1(planted_v2.index(target))
    return target


def damaged_library(folder: Path) -> Path:
    target = planted_v2.library(folder)
    path = planted_v2.index(target)
    path.write_bytes(damaged(IndexFile.made(path), "the header is zeros"))
    return target


def orphaned(folder: Path) -> Path:
    target = planted_v2.library(folder)
    planted_v2.run_sql(target / "catalog.sqlite", "DELETE FROM knowledge_item WHERE type = 'note'")
    return target


def stranded_profile(folder: Path) -> Path:
    return stranded.profile(folder, stranded.some_source(), ("kb",))


def empty_profile(folder: Path) -> Path:
    return profiles.profile(folder / "profile")


def taken_from(folder: Path) -> tuple[object, ...]:
    return (planted_v2.library(folder), "--profile")


def another_copy(folder: Path) -> tuple[object, ...]:
    return ("--from", planted_v2.library(folder))


def vectors_of_another_copy(folder: Path) -> tuple[object, ...]:
    return ("--reuse", planted_v2.library(folder))


def with_original(folder: Path) -> Path:
    target = planted_v2.library(folder)
    data = "json_set(data, '$.source', '/srv/docs/' || id || '.txt')"
    planted_v2.run_sql(target / "catalog.sqlite", f"UPDATE knowledge_item SET data = {data} WHERE type = 'file'")
    return target


def followed(folder: Path) -> Path:
    """Return a library that follows a folder, in which a file was edited, one renamed, one added and one deleted."""
    target = planted_v2.library(folder)
    files = synced.write_files(folder / "files", 4)
    assert run("sync", target, "--base", planted_v2.KB, "--source", files, "--no-embed", "--yes").status in (0, 1)
    synced.edit(files)
    shutil.rmtree(target / ".regraft")
    return target


def notes(*, change: Callable[[Path], object], embedded: bool = True) -> Callable[[Path], Path]:
    """Return what builds a database of codex-mem and changes it."""

    def make(folder: Path) -> Path:
        path = codex_mem_store.write(folder / "codex", notes=4, excluded=1)
        if embedded:
            codex_mem_store.embed(path)
        change(path)
        return path

    return make


def edited(path: Path) -> None:
    codex_mem_store.edit(path, codex_mem_store.note_id(0, 0))


def failed(path: Path) -> None:
    codex_mem_store.mark_failed(path, codex_mem_store.note_id(0, 0))


def memory(folder: Path) -> Path:
    store = angel_store.damaged(folder / "data")
    store.write("new.txt", "a note without a record")
    return store.root


def chroma(*damages: Callable[[chroma_store.ChromaStore], None]) -> Callable[[Path], Path]:
    """Return what builds a folder of Chroma with these damages."""

    def make(folder: Path) -> Path:
        store = chroma_store.extract("1.5", folder)
        for damage in damages:
            damage(store)
        return store.root

    return make


def kb(*damages: str) -> Callable[[Path], Path]:
    """Return what builds a KB of rsclaw with damage of these names."""
    return lambda folder: planted_rsclaw.planted(folder / "kb", *damages).root


_EMBEDDING = ("--config", CONFIG)
_LOOSE, _STALE = "a file that nothing names", "a snapshot that lacks a chunk"
CASES = {
    "repair of a library": Case(library("no body", "a gap"), ("repair",)),
    "adopting in a library": Case(
        unlisted, ("repair", "--only", "index.orphan", "--adopt", "--model", "acme::embed-3"), again="nothing"
    ),
    "listing materials again in a library": Case(
        orphaned, ("repair", "--only", "material.orphan", "--adopt"), again="nothing"
    ),
    "completing a failed base": Case(library("a failed base"), ("repair", "--only", "base.failed")),
    "salvage of a library": Case(damaged_library, ("repair", "--salvage")),
    "vectors from a copy": Case(library("no vector"), ("repair",), source=another_copy),
    "an index from a copy": Case(library("no index"), ("repair",), source=another_copy),
    "a damaged index from a copy": Case(damaged_library, ("repair",), source=another_copy),
    "repair of codex-mem": Case(notes(change=codex_mem_store.unindex), ("repair",)),
    "repair of AngelMemory": Case(memory, ("repair",), finished=1),
    "repair of Chroma": Case(chroma(chroma_store.mix_numbers), ("repair",)),
    "fix of Chroma": Case(chroma(chroma_store.cut_full_text), ("fix",)),
    "gc of a library": Case(library("a text of nobody", "a vector of nobody"), ("gc",)),
    "gc of AngelMemory": Case(memory, ("gc",)),
    "gc of rsclaw": Case(kb(_LOOSE, "a file that was replaced"), ("gc", "--only", "kb.file-orphan", "--now", NOW)),
    "reconcile of a library": Case(orphaned, ("reconcile", "--only", "material.orphan")),
    "reconcile of codex-mem": Case(notes(change=edited), ("reconcile",), finished=1),
    "reconcile of rsclaw": Case(
        kb(_STALE, "a full text index of more texts", "a job that failed"), ("reconcile", "--now", NOW), finished=1
    ),
    "fix of a library": Case(library("no body", "a gap", "a vector of nobody"), ("fix",)),
    "fix of an older library": Case(older_library, ("fix",)),
    "fix of codex-mem": Case(notes(change=edited), ("fix",), finished=1),
    "fix of AngelMemory": Case(memory, ("fix",), finished=1),
    "fix of rsclaw": Case(kb(_LOOSE, _STALE), ("fix", "--now", NOW), finished=1),
    "fix of a profile": Case(stranded_profile, ("fix",)),
    "clear-failed": Case(notes(change=failed), ("clear-failed",)),
    "upgrade": Case(older_library, ("upgrade",)),
    "rescue": Case(stranded_profile, ("rescue", "--now", NOW)),
    "install": Case(empty_profile, ("install", "--now", NOW), source=taken_from),
    "backfill of a library": Case(library("no vector"), ("backfill", "--no-probe", *_EMBEDDING)),
    "repair of moved originals": Case(with_original, ("repair", "--moved", "/srv/docs=/srv/archive")),
    "backfill from another copy": Case(
        library("no vector"), ("backfill", "--no-probe", *_EMBEDDING), source=vectors_of_another_copy
    ),
    "backfill of codex-mem": Case(
        notes(change=lambda path: None, embedded=False), ("backfill", "--all-projects", *_EMBEDDING)
    ),
    "rebuild": Case(notes(change=edited), ("rebuild", *_EMBEDDING), again="anew"),
    "sync": Case(followed, ("sync", "--base", planted_v2.KB, "--delete", "--no-embed", "--now", NOW), finished=1),
    "sync with an embedder": Case(
        followed, ("sync", "--base", planted_v2.KB, "--delete", "--no-probe", *_EMBEDDING), finished=1
    ),
    "restore": Case(
        library("no vector"),
        ("restore", "--base", planted_v2.KB, "--model", "acme::embed-9", "--dimensions", 4, *_EMBEDDING),
        again="refused",
    ),
}


@dataclass(frozen=True)
class Work:
    """A case that is built: the folder of what is changed, and the command line."""

    root: Path
    path: Path
    arguments: tuple[object, ...]

    def run(self, *more: object) -> Outcome:
        """Run the command for a program."""
        return run(*self.arguments, "--json", *more)

    def undo_all(self) -> None:
        """Take every run back that can be."""
        for recorded in self.history():
            if recorded["undo"]["state"] == "possible":
                assert run("undo", self.path, recorded["id"], "--yes", "--json").status == 0

    def history(self) -> list[dict[str, Any]]:
        """Return the runs that were recorded."""
        return list(run("history", self.path, "--json").document["runs"])

    def own(self) -> set[str]:
        """Return what lies in regraft's own folder."""
        own = self.root / ".regraft"
        return {path.name for path in own.rglob("*") if not path.name.startswith("ledger.sqlite")}

    def contents(self) -> dict[str, Any]:
        """Return what every file holds but regraft's own: rows of databases, and bytes."""
        files = (path for path in sorted(self.root.rglob("*")) if path.is_file() and ".regraft" not in path.parts)
        named = {
            path.relative_to(self.root).as_posix(): path
            for path in files
            if not path.name.endswith(untrusted_sqlite.COMPANION_SUFFIXES)
        }
        return {
            name: rows_of(path) if untrusted_sqlite.is_database(path) else path.read_bytes()
            for name, path in named.items()
        }


def rows_of(path: Path) -> dict[str, list[str]]:
    """Return all rows of a database, in any order, without the numbers of full-text indexes."""
    with tempfile.TemporaryDirectory() as folder:
        # Reading must not leave a log beside it.
        for suffix in ("", "-wal"):
            if Path(f"{path}{suffix}").exists():
                shutil.copyfile(f"{path}{suffix}", Path(folder) / f"copy{suffix}")
        with closing(apsw.Connection(str(Path(folder) / "copy"))) as db:
            found = {}
            for name, statement in db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall():
                columns = [row[1] for row in db.execute(f"PRAGMA table_info({untrusted_sqlite.quote_name(name)})")]
                wanted = [untrusted_sqlite.quote_name(column) for column in columns if column != "fts_rowid"]
                if name.endswith("_fts_docsize"):
                    # How many texts are in it is all that does not hang on its numbers.
                    wanted = ["count(*)"]
                elif "_fts" in name or "VIRTUAL" in statement or name in ("note_short_id_seq", "sqlite_sequence"):
                    # Undo never lowers a counter of ids that were given out.
                    continue
                found[name] = sorted(
                    map(repr, db.execute(f"SELECT {', '.join(wanted)} FROM {untrusted_sqlite.quote_name(name)}"))
                )
            return found


def copied(name: str, server: FaultServer, built: dict[str, Any], tmp_path: Path) -> Work:
    """Build what a case is about, once, and copy it."""
    case = CASES[name]
    if name not in built:
        folder = Path(tempfile.mkdtemp(dir=tmp_path.parent))
        store = case.make(folder / "store")
        built[name] = folder, store.relative_to(folder), () if case.source is None else case.source(folder / "source")
    folder, store, source = built[name]
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "store", copy / "store")
    config = configured(tmp_path / "regraft.yaml", server, model_ids=["acme::embed-3", "acme::embed-9"])
    path = copy / store
    command, *more = (config if argument is CONFIG else argument for argument in case.command)
    root = path if path.is_dir() else path.parent
    return Work(root, path, (command, *source, path, *more))
