"""A library that was copied, touched or moved is what regraft wrote as long as its bytes are; nothing else decides."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import stranded
from harness import NOW, run

CATALOG = "catalog.sqlite"


@pytest.fixture(scope="module")
def v1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stranded.some_source().write(tmp_path_factory.mktemp("v1"))


@pytest.fixture
def library(v1: Path, tmp_path: Path) -> Path:
    target = tmp_path / "library"
    assert run("migrate", v1, "--to", target, "--now", NOW, "-q", "--fail-on", "never").status in (0, 1)
    return target


def copied(library: Path) -> Path:
    target = library.parent / "Kopie 副本"
    shutil.copytree(library, target, copy_function=shutil.copyfile)
    return target


def touched(library: Path) -> Path:
    for path in library.rglob("*"):
        os.utime(path, ns=(1_600_000_000_000_000_000, 1_600_000_000_000_000_000))
    return library


def moved(library: Path) -> Path:
    return library.rename(library.with_name("moved"))


def as_an_older_version_recorded_it(library: Path) -> Path:
    """Take the hash out of the record, as versions that kept none have it."""
    with closing(sqlite3.connect(library / ".regraft" / "ledger.sqlite")) as db, db:
        (detail,) = db.execute("SELECT detail FROM entry WHERE subject = 'catalog'").fetchone()
        size, changed, digest = json.loads(detail)
        assert len(digest) == 64
        db.execute("UPDATE entry SET detail = ? WHERE subject = 'catalog'", (json.dumps([size, changed]).encode(),))
    return copied(library)


def damage(library: Path) -> Path:
    path = next(iter(sorted((library / "KnowledgeBase").glob("*/.cherry/index.sqlite"))))
    raw = bytearray(path.read_bytes())
    raw[4096 : 2 * 4096] = bytes(4096)
    path.write_bytes(raw)
    return path


def rows(path: Path) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return {
            table: db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            for table in ("content", "material", "search_unit", "embedding")
        }


@pytest.mark.parametrize("change", [copied, touched, moved, as_an_older_version_recorded_it])
def test_a_damaged_index_of_a_library_with_the_recorded_catalog_is_written_again(
    change: Callable[[Path], Path], library: Path, v1: Path
) -> None:
    before = {
        path.relative_to(library): rows(path) for path in (library / "KnowledgeBase").glob("*/.cherry/index.sqlite")
    }
    target = change(library)
    damage(target)
    done = run("migrate", v1, "--to", target, "--now", NOW, "--json", "--fail-on", "never")
    assert done.status in (0, 1), done
    assert {name: rows(target / name) for name in before} == before


def change_a_row(target: Path) -> None:
    with closing(sqlite3.connect(target / CATALOG)) as db, db:
        db.execute("UPDATE knowledge_base SET name = 'mine'")


def keep_the_times(target: Path) -> None:
    """Change a row so that neither the size nor the time of the catalog tells."""
    status = (target / CATALOG).stat()
    change_a_row(target)
    os.utime(target / CATALOG, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (target / CATALOG).stat().st_size == status.st_size


def leave_a_log(target: Path) -> None:
    """Leave a change of the catalog in a log beside it."""
    work = target.parent / "work.sqlite"
    shutil.copyfile(target / CATALOG, work)
    with closing(sqlite3.connect(work)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("UPDATE knowledge_base SET name = 'mine'")
        db.commit()
        shutil.copyfile(f"{work}-wal", target / f"{CATALOG}-wal")


@pytest.mark.parametrize("change", [change_a_row, keep_the_times, leave_a_log])
def test_a_catalog_with_other_content_is_still_refused(change: Callable[[Path], None], library: Path, v1: Path) -> None:
    target = copied(library)
    damaged = damage(target)
    change(target)
    files = {path: path.read_bytes() for path in (damaged, *target.glob(f"{CATALOG}*"))}
    refused = run("migrate", v1, "--to", target, "--now", NOW, "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "TargetCatalogChanged")
    assert {path: path.read_bytes() for path in files} == files
