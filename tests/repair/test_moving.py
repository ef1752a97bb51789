"""Sources that are written to while they are read: that is what is said, and never that regraft has lost a row."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from extras import needs
from faults import STOPPED, Source, changed_source, left_over, migrate, said, small_source
from harness import Outcome, run
from stranded import profile, some_source

from checks.cherry_v2 import index_file
from migrators.pipeline import survey, workers
from regraft.disk import sqlite
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_v2 import index
from regraft.formats.parquet import export, unit_file
from regraft.formats.vector_table import VectorTable
from regraft.identity import replace
from repair.cherry_v2.rescue import v1_files

MEANWHILE = "it changed while it was read"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return small_source(tmp_path / "source")


def then(patch: pytest.MonkeyPatch, owner: object, name: str, after: Callable[[], object]) -> None:
    """Let something happen whenever a function has returned."""
    real = getattr(owner, name)

    def followed(*arguments: Any, **named: Any) -> Any:
        done = real(*arguments, **named)
        after()
        return done

    patch.setattr(owner, name, followed)


def outcomes(done: Outcome) -> dict[str, str]:
    return {base["legacy_id"]: base["outcome"] for base in done.document["bases"]}


def is_told(done: Outcome) -> bool:
    return any(MEANWHILE in warning["message"] for warning in done.document["warnings"])


@pytest.mark.parametrize(
    ("owner", "name"),
    [(VectorTable, "survey"), (survey, "plan_base"), (index, "build_index"), (index, "verify")],
    ids=lambda one: str(getattr(one, "__name__", one)),
)
def test_a_migration_of_what_is_written_to(
    owner: object, name: str, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "library"
    with monkeypatch.context() as patch:
        then(patch, owner, name, lambda: changed_source(source))
        done = migrate(source.folder, target, "--base", "beta", "--jobs", 1, "--json")
    assert (done.status, done.stderr, outcomes(done), is_told(done)) == (1, "", {"beta": "failed"}, True)
    assert left_over(target) == []
    assert outcomes(migrate(source.folder, target, "--base", "beta", "--json")) == {"beta": "written"}


@pytest.mark.parametrize("moves", [True, False])
def test_rows_that_do_not_add_up_are_judged_after_that(
    moves: bool, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = workers.plan_base

    def lost(*arguments: Any, **named: Any) -> Any:
        plan = real(*arguments, **named)
        if moves:
            changed_source(source)
        return replace(plan, rows=replace(plan.rows, read=plan.rows.read + 1))

    monkeypatch.setattr(survey, "plan_base", lost)
    done = migrate(source.folder, tmp_path / "library", "--base", "beta", "--jobs", 1, "--json")
    if moves:
        assert (outcomes(done), is_told(done)) == ({"beta": "failed"}, True)
    else:
        assert (done.status, outcomes(done)) == (1, {"beta": "failed"})
        assert any("Please report this" in one["message"] for one in done.document["warnings"])


def test_a_look_at_what_is_written_to(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then(monkeypatch, VectorTable, "survey", lambda: os.utime(source.vectors("beta")))
    dry = migrate(source.folder, tmp_path / "library", "--base", "beta", "--dry-run", "--json")
    assert (outcomes(dry), is_told(dry)) == ({"beta": "failed"}, True)
    assert MEANWHILE in run("check", source.folder, "--base", "beta", "--json").stdout
    assert not (tmp_path / "library").exists()


@needs("parquet")
def test_an_export_and_an_audit_of_what_is_written_to(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "library"
    migrate(source.folder, target, "--base", "beta")
    (place,) = target.rglob("index.sqlite")
    with monkeypatch.context() as patch:
        then(patch, export, "summarize_index", lambda: os.utime(place))
        done = run("export", target, tmp_path / "units.parquet", "--json")
        assert (done.status, done.document["bases"][0]["problem"]) == (1, sqlite.CHANGED_DURING_READ)
    with monkeypatch.context() as patch:
        then(patch, index_file._IndexAudit, "run", lambda: os.utime(place))
        done = run("check", target, "--json")
    found = [one["message"] for one in done.document["findings"] if one["name"] == "file.unreadable"]
    assert (done.status, [MEANWHILE in message for message in found]) == (1, [True])
    assert run("export", target, tmp_path / "units.parquet").status == 0


@needs("parquet")
def test_an_import_of_what_is_written_to(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "units.parquet", unit_file.read_rows
    migrate(source.folder, tmp_path / "library", "--base", "beta")
    run("export", tmp_path / "library", path)

    def torn(*arguments: Any) -> Any:
        yield next(iter(real(*arguments)))
        os.utime(path, ns=(1, 1))
        raise SourceUnreadable(path=path, reason="damaged")

    monkeypatch.setattr(unit_file, "read_rows", torn)
    assert MEANWHILE in said(run("import", path, "--to", tmp_path / "back", "--json"), "StoppedMidway", STOPPED)
    assert left_over(tmp_path / "back") == []


@pytest.mark.parametrize("moment", ["it is planned", "it is carried"])
def test_a_rescue_of_what_is_written_to(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = profile(tmp_path / "profile", some_source(), lost=("kb",))
    files = [path for path in made.rglob("kb") if path.is_file()]

    def touched() -> None:
        for path in files:
            os.utime(path)

    with monkeypatch.context() as patch:
        owner, name = {"it is planned": (VectorTable, "survey"), "it is carried": (v1_files, "write_base")}[moment]
        then(patch, owner, name, touched)
        done = run("rescue", made, "--json", "--yes")
    if moment == "it is planned":
        assert [one["reason"] for one in done.document["left"] if MEANWHILE in one["reason"]]
    else:
        assert MEANWHILE in said(done, "ChangesStopped", STOPPED)
    done = run("rescue", made, "--json", "--yes")
    assert MEANWHILE not in done.stdout
    assert done.document["actions"]
