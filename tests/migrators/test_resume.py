"""Running again: what is done is left alone, what changed is carried anew, and the same input gives the same bytes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faults import (
    REFUSED,
    Source,
    changed_source,
    item,
    late_damage,
    left_over,
    library,
    marks,
    migrate,
    said,
    small_source,
    state_of,
    untouched,
    write_vectors,
)
from golden_cases import as_backup
from harness import NOW, run

from regraft.disk import durable, sqlite
from regraft.ledger import ledger


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return small_source(tmp_path / "source")


@pytest.fixture
def target(source: Source, tmp_path: Path) -> Path:
    """A library made of ``source``."""
    done = migrate(source.folder, tmp_path / "library")
    assert done.status == 1, done
    return tmp_path / "library"


def outcomes(document: dict[str, Any]) -> dict[str, str]:
    return {base["legacy_id"]: base["outcome"] for base in document["bases"]}


def ids(target: Path) -> dict[str, str]:
    """Return the v2 id of every base by its name, in the catalog's order."""
    with sqlite.open_readonly(target / "catalog.sqlite") as db:
        rows = db.execute("SELECT name, id FROM knowledge_base ORDER BY rowid").fetchall()
    return {str(name).removeprefix("Base "): str(base) for name, base in rows}


def fresh(source: Source, tmp_path: Path) -> dict[str, bytes]:
    """Return the library that a first run makes of the source as it is now."""
    target = tmp_path / "fresh"
    assert migrate(source.folder, target).status in (0, 1)
    return library(target)


# --- nothing to do -------------------------------------------------------------------------------------------------

UNCHANGED = {"alpha": "unchanged", "beta": "unchanged", "gamma": "failed"}


def test_a_second_run_writes_nothing_and_says_so(source: Source, target: Path) -> None:
    with untouched(target, source.folder):
        for_person = migrate(source.folder, target)
        for_program = migrate(source.folder, target, "--json")
    assert for_person.status == for_program.status == 1
    assert for_person.stdout.endswith("Nothing to do: the source has not changed since the last run.\n")
    assert outcomes(for_program.document) == UNCHANGED


def test_at_another_time_there_is_nothing_to_do_either(source: Source, target: Path) -> None:
    with untouched(target):
        done = run("migrate", source.folder, "--to", target, "--now", "2031-01-01T00:00:00Z", "--json")
    assert outcomes(done.document) == UNCHANGED


def test_a_backup_of_the_same_data_is_nothing_new(source: Source, target: Path, tmp_path: Path) -> None:
    for version in (5, 1):
        backup = as_backup(source.folder, tmp_path / f"{version}.zip", version)
        with untouched(target, backup):
            done = migrate(backup, target, "--json")
        assert done.status == 1
        assert outcomes(done.document) == UNCHANGED


def test_the_unpacked_backup_is_nothing_new(source: Source, tmp_path: Path) -> None:
    backup, target = as_backup(source.folder, tmp_path / "backup.zip"), tmp_path / "library"
    assert migrate(backup, target).status == 1
    shutil.unpack_archive(backup, tmp_path / "unpacked")
    with untouched(target):
        assert outcomes(migrate(tmp_path / "unpacked", target, "--json").document) == UNCHANGED


def test_the_report_of_a_second_run_is_that_of_the_first(source: Source, target: Path) -> None:
    first = json.loads((target / "report.json").read_text("utf-8"))
    second = migrate(source.folder, target, "--json").document
    for part in ("ids", "warnings", "skipped", "source", "target"):
        assert second[part] == first[part]
    for before, after in zip(first["bases"], second["bases"], strict=True):
        assert {**after, "outcome": before["outcome"]} == before


def test_without_complaints_the_exit_status_is_0_both_times(source: Source, tmp_path: Path) -> None:
    target = tmp_path / "library"
    for _ in range(2):
        done = migrate(source.folder, target, "--base", "alpha", "--json")
        assert (done.status, done.document["warnings"]) == (0, [])
    assert outcomes(done.document) == {"alpha": "unchanged"}


def test_a_source_without_bases_is_nothing_to_do_the_second_time(tmp_path: Path) -> None:
    source = Source(tmp_path / "source")
    source.write()
    target = tmp_path / "library"
    assert migrate(source.folder, target).status == 0
    with untouched(target):
        assert "Nothing to do" in migrate(source.folder, target).stdout


# --- changes -------------------------------------------------------------------------------------------------------


def vector_row(source: Source) -> None:
    changed_source(source)


def text_row(source: Source) -> None:
    with closing(sqlite3.connect(source.vectors("beta"))) as db, db:
        db.execute("UPDATE vectors SET pageContent = pageContent || '.' WHERE id = 'L_rota_0'")


def an_item(source: Source) -> None:
    source.bases[1]["items"][2]["content"] = "who comes on Tuesday"


def a_status(source: Source) -> None:
    source.bases[1]["items"][0].update(processingStatus="failed", processingError="too long")


def a_name(source: Source) -> None:
    source.bases[1]["name"] = "Base beta, renamed"


def an_upload(source: Source) -> None:
    (source.folder / "Files" / "f3.txt").write_bytes(b"other")


def a_new_item(source: Source) -> None:
    source.bases[1]["items"].append(item("late", "note", "one more"))


CHANGES = [vector_row, text_row, an_item, a_status, a_name, an_upload, a_new_item]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_base_is_carried_anew_and_only_that_one(
    change: Callable[[Source], None], source: Source, target: Path, tmp_path: Path
) -> None:
    before = marks(target)
    change(source)
    source.write()
    done = migrate(source.folder, target, "--json")
    assert outcomes(done.document) == {**UNCHANGED, "beta": "written"}
    beta = done.document["ids"]["bases"]["beta"]
    after = marks(target)
    assert after.pop(beta) != before.pop(beta)
    assert after == before
    assert left_over(target) == []
    assert library(target) == fresh(source, tmp_path)
    with untouched(target):
        assert "Nothing to do" in migrate(source.folder, target).stdout


def test_a_new_base_comes_in_its_place(source: Source, target: Path, tmp_path: Path) -> None:
    before = marks(target)
    source.base("first", [item("n", "note", "a note")])
    write_vectors(source.vectors("first"), {"n": 2})
    source.bases.insert(0, source.bases.pop())
    source.write()
    done = migrate(source.folder, target, "--json")
    assert outcomes(done.document) == {**UNCHANGED, "first": "written"}
    assert {base: mark for base, mark in marks(target).items() if base in before} == before
    assert list(ids(target)) == ["first", "alpha", "beta", "gamma"]
    assert library(target) == fresh(source, tmp_path)


def test_bases_in_another_order_are_listed_in_that_order(source: Source, target: Path, tmp_path: Path) -> None:
    source.bases.reverse()
    source.write()
    before = marks(target)
    migrate(source.folder, target)
    assert marks(target) == before
    assert list(ids(target)) == ["gamma", "beta", "alpha"]
    assert library(target) == fresh(source, tmp_path)


def test_a_base_that_v1_has_no_more_stays(source: Source, target: Path) -> None:
    del source.bases[1]
    source.write()
    with untouched(target / "KnowledgeBase"):
        done = migrate(source.folder, target, "--json")
    assert outcomes(done.document) == {"alpha": "unchanged", "gamma": "failed"}
    assert set(ids(target)) == {"alpha", "beta", "gamma"}


def test_a_failed_base_is_carried_once_its_vectors_are_there(source: Source, target: Path, tmp_path: Path) -> None:
    gamma = ids(target)["gamma"]
    assert gamma not in marks(target)
    write_vectors(source.vectors("gamma"), {"item-f4": 2, "lost": 1})
    done = migrate(source.folder, target, "--json")
    assert done.status == 0
    assert outcomes(done.document) == {**UNCHANGED, "gamma": "written"}
    assert gamma in marks(target)
    assert library(target) == fresh(source, tmp_path)


def test_a_failed_base_that_fails_for_another_reason_says_that_one(source: Source, target: Path) -> None:
    """It is no completed base: nothing of it could be lost, and no notice says that an earlier one is kept."""

    def said_of_gamma() -> dict[str, str]:
        warnings = migrate(source.folder, target, "--json").document["warnings"]
        return {one["code"]: one["message"] for one in warnings if one["base"] == "gamma"}

    before = said_of_gamma()
    source.vectors("gamma").write_bytes(b"no database")
    after = said_of_gamma()
    assert before.keys() == after.keys() == {"missing_vector_store"}
    assert before != after
    assert after["missing_vector_store"] == "its vector file gamma cannot be read: file is not a database"


def gone(path: Path) -> None:
    path.unlink()


def unreadable(path: Path) -> None:
    path.write_bytes(b"no database")


@pytest.mark.parametrize("spoil", [gone, unreadable, late_damage], ids=lambda spoil: spoil.__name__)
def test_a_base_that_is_done_outlives_its_vectors_in_v1(
    spoil: Callable[[Path], None], source: Source, target: Path
) -> None:
    """Whenever the damage shows, a completed base is not given up for a failed one."""
    spoil(source.vectors("beta"))
    with untouched(target / "KnowledgeBase", target / "catalog.sqlite"):
        done = migrate(source.folder, target, "--json")
    assert outcomes(done.document) == UNCHANGED
    assert (done.status, done.stderr) == (1, "")
    (kept,) = [said for said in done.document["warnings"] if said["code"] == "completed_base_kept"]
    assert kept["base"] == "beta"


def test_an_upload_that_v1_has_no_more_stays(source: Source, target: Path) -> None:
    (source.folder / "Files" / "f3.txt").unlink()
    done = migrate(source.folder, target, "--json")
    assert outcomes(done.document)["beta"] in ("written", "unchanged")
    raw = target / "KnowledgeBase" / ids(target)["beta"] / "raw"
    assert (raw / "same_1.txt").read_bytes() == b"three"


def test_a_base_that_could_not_be_read_once_is_tried_again(source: Source, tmp_path: Path) -> None:
    """Something touches the vector file while it is read: that time it fails, the next time it must not."""
    from regraft.formats.cherry_v2 import index

    target, real = tmp_path / "library", index.build_index

    def touching(*arguments: Any, **named: Any) -> Any:
        done = real(*arguments)
        os.utime(source.vectors("beta"))
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "build_index", touching)
        done = migrate(source.folder, target, "--base", "beta", "--json")
    assert outcomes(done.document) == {"beta": "failed"}
    assert any("it changed while it was read" in warning["message"] for warning in done.document["warnings"])
    done = migrate(source.folder, target, "--base", "beta", "--json")
    assert (done.status, outcomes(done.document)) == (0, {"beta": "written"})


def test_what_earlier_versions_left_when_they_were_killed_is_removed(source: Source, tmp_path: Path) -> None:
    """They built bases in folders that no run's name stands over."""
    target = tmp_path / "library"
    migrate(source.folder, target, "--base", "alpha")
    own = target / ".regraft"
    for left in (own / "staging" / "11111111-2222-4333-8444-555555555555" / ".cherry", own / "work" / "regraft-abc"):
        left.mkdir(parents=True)
        (left / "index.sqlite").write_bytes(b"half of it")
    assert migrate(source.folder, target, "--base", "beta").status == 0
    assert left_over(target) == []


@pytest.mark.parametrize(("number", "status"), [(errno.ENOTEMPTY, 0), (errno.EACCES, 3)])
def test_a_process_that_is_about_to_end_is_waited_for(
    number: int, status: int, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a killed run one may still have written into its folder while that was removed."""
    real, refusals = durable.remove_tree, [number, number]

    def written_to(path: Path) -> None:
        if path.name == "staging" and refusals:
            raise OSError(refusals.pop(), "still in use")
        real(path)

    monkeypatch.setattr(durable, "remove_tree", written_to)
    done = migrate(source.folder, tmp_path / "library", "--base", "beta", "--json")
    assert done.status == status
    if status == 0:
        assert outcomes(done.document) == {"beta": "written"}
        assert left_over(tmp_path / "library") == []
    else:
        assert "still in use" in done.document["error"]["message"]


def test_the_models_word_carries_a_base_that_failed_for_its_model(source: Source, tmp_path: Path) -> None:
    source.bases[1]["model"] = {"id": "old", "provider": "gone"}
    source.write()
    target = tmp_path / "library"
    assert outcomes(migrate(source.folder, target, "--json").document)["beta"] == "failed"
    done = migrate(source.folder, target, "--map-model", "gone::old=acme::embed-small", "--json")
    assert outcomes(done.document) == {**UNCHANGED, "beta": "written"}


# --- what was changed or taken away in the target ------------------------------------------------------------------


def test_a_removed_base_folder_is_carried_anew(source: Source, target: Path) -> None:
    whole, before = library(target), marks(target)
    beta = ids(target)["beta"]
    shutil.rmtree(target / "KnowledgeBase" / beta)
    done = migrate(source.folder, target, "--json")
    assert outcomes(done.document) == {**UNCHANGED, "beta": "written"}
    assert library(target) == whole
    assert {base for base in before if marks(target)[base] != before[base]} == {beta}


def test_a_removed_index_is_carried_anew(source: Source, target: Path) -> None:
    whole = library(target)
    (target / "KnowledgeBase" / ids(target)["beta"] / ".cherry" / "index.sqlite").unlink()
    done = migrate(source.folder, target, "--json")
    assert outcomes(done.document) == {**UNCHANGED, "beta": "written"}
    assert library(target) == whole


@pytest.mark.parametrize("name", ["catalog.sqlite", "report.json", "report.html"])
def test_a_removed_file_is_written_again(name: str, source: Source, target: Path) -> None:
    whole = library(target)
    (target / name).unlink()
    with untouched(target / "KnowledgeBase"):
        done = migrate(source.folder, target)
    assert done.status == 1
    assert (target / name).is_file()
    assert f"  {target / name}\n" in done.stdout.partition("Written:\n")[2]
    assert library(target) == whole
    with untouched(target):
        migrate(source.folder, target)


def change_copy(target: Path, base: str) -> Path:
    folder = target / "KnowledgeBase" / base
    with closing(sqlite3.connect(folder / ".cherry" / "index.sqlite")) as db, db:
        db.execute("DELETE FROM embedding WHERE rowid = 1")
    return folder


def test_a_changed_copy_is_left_alone(source: Source, target: Path) -> None:
    change_copy(target, ids(target)["beta"])
    with untouched(target):
        assert outcomes(migrate(source.folder, target, "--json").document) == UNCHANGED


def test_a_changed_copy_of_a_changed_base_is_refused(source: Source, target: Path) -> None:
    folder = change_copy(target, ids(target)["beta"])
    changed_source(source)
    with untouched(target, source.folder):
        message = said(migrate(source.folder, target, "--json"), "TargetBaseChanged", REFUSED)
    assert str(folder) in message
    # The others can still be migrated, and this one elsewhere or once its copy is out of the way.
    assert migrate(source.folder, target, "--base", "alpha").status == 0
    shutil.move(folder, target.parent / "aside")
    assert outcomes(migrate(source.folder, target, "--json").document) == {**UNCHANGED, "beta": "written"}


def add_file(raw: Path) -> None:
    (raw / "mine.txt").write_text("mine")


def edit_upload(raw: Path) -> None:
    (raw / "same.txt").write_text("edited by me")


def edit_snapshot(raw: Path) -> None:
    (raw / "who comes on Monday.md").write_text("edited by me")


@pytest.mark.parametrize("touch", [add_file, edit_upload, edit_snapshot], ids=lambda touch: touch.__name__)
def test_files_that_were_changed_in_a_copy_are_not_written_over(
    touch: Callable[[Path], None], source: Source, target: Path
) -> None:
    """A base is more than its index: what the user did to its files must outlive a run that carries it anew."""
    folder = target / "KnowledgeBase" / ids(target)["beta"]
    touch(folder / "raw")
    with untouched(target):
        assert outcomes(migrate(source.folder, target, "--json").document) == UNCHANGED
    changed_source(source)
    with untouched(target):
        message = said(migrate(source.folder, target, "--json"), "TargetBaseChanged", REFUSED)
    assert str(folder) in message


# --- some bases ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [("alpha", "beta"), ("beta", "alpha")])
def test_two_bases_in_one_run_or_two(chosen: tuple[str, str], source: Source, tmp_path: Path) -> None:
    together, apart = tmp_path / "together", tmp_path / "apart"
    assert migrate(source.folder, together, "--base", chosen[0], "--base", chosen[1]).status == 0
    for base in chosen:
        done = migrate(source.folder, apart, "--base", base, "--json")
        assert (done.status, outcomes(done.document)) == (0, {base: "written"})
    assert list(ids(apart)) == ["alpha", "beta"]
    assert library(apart) == library(together)


def test_a_base_by_its_new_id(source: Source, target: Path, tmp_path: Path) -> None:
    done = migrate(source.folder, tmp_path / "other", "--base", ids(target)["beta"], "--json")
    assert outcomes(done.document) == {"beta": "written"}


def test_the_rest_after_one_base(source: Source, tmp_path: Path) -> None:
    target = tmp_path / "library"
    migrate(source.folder, target, "--base", "beta")
    before = marks(target)
    done = migrate(source.folder, target, "--json")
    assert outcomes(done.document) == {"alpha": "written", "beta": "unchanged", "gamma": "failed"}
    assert marks(target).items() >= before.items()
    assert library(target) == fresh(source, tmp_path)


# --- dry runs ------------------------------------------------------------------------------------------------------


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """Return a report without what only a real run can know: its times, and how large its files became."""
    document = json.loads(json.dumps(document))
    for name in ("run", "preflight"):
        document.pop(name, None)
    for part in (document["totals"], *(base["index"] for base in document["bases"] if base["index"])):
        for name in ("bytes", "embeddings"):
            part.pop(name)
    return document


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_dry_run_says_what_a_real_one_does(kind: str, source: Source, tmp_path: Path) -> None:
    target = tmp_path / "library"
    # A file that is not there is worth a warning, before as after.
    (source.folder / "Files" / "f2.txt").unlink()
    path = source.folder if kind == "folder" else as_backup(source.folder, tmp_path / "backup.zip")
    with untouched(path):
        planned = migrate(path, target, "--dry-run", "--json")
        text = migrate(path, target, "--dry-run")
    assert not target.exists()
    assert text.stdout.endswith("Dry run: nothing was written.\n")
    real = migrate(path, target, "--json")
    assert planned.document["run"]["dry_run"] is True
    assert plain(planned.document) == plain(real.document)
    assert planned.status == text.status == real.status == 1


def test_the_exit_status_of_a_dry_run_is_that_of_a_real_one(source: Source, tmp_path: Path) -> None:
    (source.folder / "Files" / "f2.txt").unlink()
    arguments = ("--base", "beta", "--json")
    planned = migrate(source.folder, tmp_path / "library", "--dry-run", *arguments)
    assert not (tmp_path / "library").exists()
    done = migrate(source.folder, tmp_path / "library", *arguments)
    assert planned.status == done.status == 1
    for document in (planned.document, done.document):
        assert [one["code"] for one in document["warnings"]] == ["renamed_files", "missing_upload"]


@pytest.mark.parametrize("changed", [False, True])
def test_a_dry_run_in_an_old_target(changed: bool, source: Source, target: Path) -> None:
    if changed:
        changed_source(source)
    with untouched(target, source.folder):
        planned = migrate(source.folder, target, "--dry-run", "--json")
    assert outcomes(planned.document) == {**UNCHANGED, "beta": "written" if changed else "unchanged"}
    assert plain(planned.document) == plain(migrate(source.folder, target, "--json").document)


# --- the same bytes ------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", ["basic", "directory", "unicode"])
def test_the_same_source_gives_the_same_bytes(case: str, golden: Callable[[str], Path], tmp_path: Path) -> None:
    v1 = golden(case) / "v1"
    before = state_of(v1)
    assert migrate(v1, tmp_path / "one").status in (0, 1)
    whole = library(tmp_path / "one")
    assert migrate(v1, tmp_path / "two").status in (0, 1)
    assert library(tmp_path / "two") == whole
    assert migrate(as_backup(v1, tmp_path / "backup.zip"), tmp_path / "three").status in (0, 1)
    assert library(tmp_path / "three") == whole
    assert len(whole) > 3
    assert state_of(v1) == before


@pytest.mark.thorough
def test_another_process_gives_the_same_bytes(source: Source, target: Path, tmp_path: Path) -> None:
    """Neither the order of sets nor the folder that a process runs in shows."""
    other = tmp_path / "other"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = ["migrate", "source", "--to", "other", "--now", NOW, "--quiet"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "regraft", *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert library(other) == library(target)


def test_the_ledger_keeps_every_run(source: Source, target: Path) -> None:
    changed_source(source)
    migrate(source.folder, target)
    with sqlite.open_readonly(ledger.ledger_path(target)) as db:
        runs = db.execute(
            "SELECT command, source, status, finished_at >= started_at FROM run ORDER BY rowid"
        ).fetchall()
        states = db.execute("SELECT DISTINCT state FROM step").fetchall()
    assert runs == [("migrate", str(source.folder), "finished", 1)] * 2
    assert states == [("done",)]
