"""A folder in which a first run was killed says so, and how to go on; nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from extras import needs
from faults import forked, said, small_source, untouched
from harness import NOW, run
from stand_ins import KILLED

from migrators.pipeline import session
from migrators.pipeline.publication import TargetLibrary


def killed(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, place: type, name: str) -> None:
    """Migrate in a process that ends at once when it comes to a method."""
    with monkeypatch.context() as patched:
        patched.setattr(place, name, lambda *_, **__: os._exit(KILLED))
        assert forked(lambda: run("migrate", source, "--to", target, "--now", NOW, "-q")) == KILLED


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return small_source(tmp_path / "v1").write()


_COMMANDS = [
    ("check",),
    ("inspect",),
    ("search", "boat"),
    ("repair", "--dry-run"),
    ("gc",),
    ("backfill", "--dry-run"),
    ("history",),
    ("fix",),
    ("export",),
]


def test_an_unfinished_migration_is_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "library"
    killed(source, target, monkeypatch, session.Session, "publish")
    with untouched(target):
        for name, *options in _COMMANDS:
            words = [target, tmp_path / "out.parquet"] if name == "export" else [target, *options]
            message = said(run(name, *words, "--json"), "MigrationUnfinished", 2)
            assert f"regraft migrate {source} --to {target}" in message
            assert message.startswith(f"{target}: an unfinished migration")
    assert run("migrate", source, "--to", target, "--now", NOW, "-q").status in (0, 1)
    assert run("inspect", target).status == 0


def test_one_that_was_killed_while_it_planned(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "library"
    killed(source, target, monkeypatch, session.Session, "with_room")
    message = said(run("check", target, "--json"), "MigrationUnfinished", 2)
    assert f"regraft migrate SOURCE --to {target}" in message


@needs("parquet")
def test_an_unfinished_import(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, units, target = tmp_path / "library", tmp_path / "units.parquet", tmp_path / "back"
    run("migrate", source, "--to", library, "--now", NOW, "-q")
    run("export", library, units)
    with monkeypatch.context() as patched:
        patched.setattr(session.Session, "publish", lambda *_, **__: os._exit(KILLED))
        assert forked(lambda: run("import", units, "--to", target, "-q")) == KILLED
    assert f"regraft import {units} --to {target}" in said(run("check", target, "--json"), "MigrationUnfinished", 2)


def test_a_base_that_is_in_its_place_makes_it_a_library(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "library"
    killed(source, target, monkeypatch, TargetLibrary, "publish_catalog")
    assert run("inspect", target, "--json").document["source"]["kind"] == "library"


def test_what_is_no_leftover_stays_unrecognised(tmp_path: Path) -> None:
    (tmp_path / "plain" / ".regraft").mkdir(parents=True)
    said(run("check", tmp_path / "plain", "--json"), "SourceUnrecognised", 2)
    (tmp_path / "plain" / ".regraft" / "ledger.sqlite").write_bytes(b"no ledger")
    said(run("check", tmp_path / "plain", "--json"), "SourceUnrecognised", 2)
