"""What a run does about a target that somebody has damaged or edited, and about odd paths and report pages."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from faults import line, said, untouched
from harness import REPO, run, snapshot
from planted_v1 import whole

from regraft.errors import REFUSED, STOPPED
from regraft.report import html as report_html

BACKUP = REPO / "sample_v1" / "backup"
ARCHIVE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
MUSEUM = "3ef4ee57-45e1-4471-a166-dcdcd2472839"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    target = tmp_path / "library"
    assert run("migrate", ARCHIVE, "--to", target).status == 1
    return target


def again(library: Path, *more: object):
    return run("migrate", ARCHIVE, "--to", library, "--json", *more)


def outcomes(done) -> dict[str, str]:
    return {base["legacy_id"]: base["outcome"] for base in done.document["bases"]}


# --- a damaged target ----------------------------------------------------------------------------------------------


def test_an_index_that_is_empty_is_carried_anew(library: Path) -> None:
    index = library / "KnowledgeBase" / MUSEUM / ".cherry" / "index.sqlite"
    index.write_bytes(b"")
    assert outcomes(again(library))["GSI9AeE0DFjMMy8kHBcdh"] == "written"
    assert index.stat().st_size > 100_000


def test_a_raw_folder_that_is_gone_is_written_anew(library: Path) -> None:
    raw = library / "KnowledgeBase" / MUSEUM / "raw"
    names = sorted(path.name for path in raw.iterdir())
    shutil.rmtree(raw)
    assert outcomes(again(library))["GSI9AeE0DFjMMy8kHBcdh"] == "written"
    assert sorted(path.name for path in raw.iterdir()) == names


def test_a_catalog_that_is_empty_is_written_anew(library: Path) -> None:
    catalog = library / "catalog.sqlite"
    whole = catalog.read_bytes()
    catalog.write_bytes(b"")
    assert set(outcomes(again(library)).values()) == {"unchanged", "failed"}
    assert catalog.read_bytes() == whole


# --- an edited catalog ---------------------------------------------------------------------------------------------


def rename_a_base(library: Path) -> None:
    with closing(sqlite3.connect(library / "catalog.sqlite")) as db, db:
        db.execute("UPDATE knowledge_base SET name = 'My own name' WHERE id = ?", (MUSEUM,))


def test_an_edited_catalog_is_left_alone_while_nothing_changes(library: Path) -> None:
    rename_a_base(library)
    before = snapshot(library)
    assert again(library).status == 1
    assert snapshot(library) == before


def test_an_edited_catalog_is_never_written_over(library: Path) -> None:
    rename_a_base(library)
    (library / "KnowledgeBase" / MUSEUM / ".cherry" / "index.sqlite").unlink()
    with untouched(library):
        message = said(again(library), "TargetCatalogChanged", REFUSED)
    assert message.startswith(f"{library / 'catalog.sqlite'}: changed after regraft wrote it")


# --- report pages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data.json", "Data/KnowledgeBase/GSI9AeE0DFjMMy8kHBcdh", "new.html"])
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_report_page_is_never_written_into_the_source(tmp_path: Path, name: str, more: tuple[str, ...]) -> None:
    source = shutil.copytree(BACKUP, tmp_path / "backup")
    before = snapshot(source)
    done = run("migrate", source, "--to", tmp_path / "library", "--report", source / name, "--json", *more)
    assert f"it is inside {source}, which" in said(done, "ReportNotWritable", REFUSED)
    assert snapshot(source) == before
    assert not (tmp_path / "library").exists()


def test_a_report_page_is_never_written_over_a_file_of_another_kind(library: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "thesis.html"
    theirs.write_text("<!doctype html><title>My thesis</title>")
    message = said(again(library, "--report", theirs), "ReportNotWritable", REFUSED)
    assert "is not a report page" in message
    assert theirs.read_text("utf-8") == "<!doctype html><title>My thesis</title>"
    message = said(again(library, "--report", library / "catalog.sqlite"), "ReportNotWritable", REFUSED)
    assert f"it is inside {library}, which" in message


def test_a_report_page_may_replace_an_earlier_one(library: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for _ in range(2):
        assert again(library, "--report", page).status == 1
        assert report_html.is_report_page("migrate", page.read_text("utf-8"))
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


# --- odd paths and numbers -----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has file names that are not UTF-8")
def test_paths_that_are_no_utf8(tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    source = shutil.copytree(BACKUP, place)
    target = place.with_name(place.name + "-library")
    done = run("migrate", source, "--to", target, "--json")
    assert done.status == 1
    assert "caf\ufffd" in done.document["source"]["path"]
    assert (target / "catalog.sqlite").is_file()
    gone = place.with_name(place.name + "-gone")
    assert "caf\\udce9-gone" in line(run("inspect", gone), REFUSED)


def with_state(tmp_path: Path, old: str, new: str) -> Path:
    """The sample's backup with one text of its nested state replaced."""
    source = shutil.copytree(BACKUP, tmp_path / "backup")
    data = json.loads((source / "data.json").read_text("utf-8"))
    state = json.loads(data["localStorage"]["persist:cherry-studio"])
    slices = {name: text.replace(old, new) for name, text in state.items()}
    assert slices != state
    data["localStorage"]["persist:cherry-studio"] = json.dumps(slices)
    (source / "data.json").write_text(json.dumps(data), "utf-8")
    return source


def test_a_number_beyond_all_floats_harms_only_itself(tmp_path: Path) -> None:
    data = json.loads((BACKUP / "data.json").read_text("utf-8"))
    knowledge = json.loads(data["localStorage"]["persist:cherry-studio"])["knowledge"]
    time = json.loads(knowledge)["bases"][0]["created_at"]
    source = with_state(tmp_path, f'"created_at":{time}', '"created_at":1e999')
    done = run("migrate", source, "--to", tmp_path / "library", "--json", "--now", "2026-01-01T00:00:00Z")
    assert done.status == 1
    with closing(sqlite3.connect(tmp_path / "library" / "catalog.sqlite")) as db:
        created = db.execute("SELECT created_at FROM knowledge_base WHERE id = ?", (MUSEUM,)).fetchone()
    assert created == (1767225600000,)


def test_a_time_before_all_times_is_wrong_usage(tmp_path: Path) -> None:
    done = run("migrate", ARCHIVE, "--to", tmp_path / "library", "--now", "0001-01-01T00:00:00+01:00", "--json")
    assert "is not a time like" in said(done, "WrongUsage", REFUSED)


def test_a_plan_does_not_claim_to_know_sizes(tmp_path: Path) -> None:
    planned = run("migrate", ARCHIVE, "--to", tmp_path / "library", "--dry-run", "--json").document
    assert (planned["totals"]["embeddings"], planned["totals"]["bytes"]) == (None, None)
    assert planned["totals"]["units"] == 76


def test_the_users_model_ids_are_trimmed_like_v1s(tmp_path: Path) -> None:
    words = ("--map-model", " openai :: text-embedding-3-small = azure :: small ")
    done = run("migrate", ARCHIVE, "--to", tmp_path / "library", "--json", *words)
    assert "model_option_unused" not in {warning["code"] for warning in done.document["warnings"]}
    with closing(sqlite3.connect(tmp_path / "library" / "catalog.sqlite")) as db:
        models = {row[0] for row in db.execute("SELECT embedding_model_id FROM knowledge_base")}
    assert "azure::small" in models


def test_a_look_survives_a_damaged_catalog_row(library: Path) -> None:
    with closing(sqlite3.connect(library / "catalog.sqlite")) as db, db:
        db.execute("UPDATE knowledge_item SET data = 'no json' WHERE base_id = ?", (MUSEUM,))
    done = run("inspect", library / "KnowledgeBase" / MUSEUM)
    assert done.status == 0
    assert "Pilot cutter Marigold.pdf" in done.stdout


def test_a_fault_of_ours_is_one_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("an assumption that did not hold")

    monkeypatch.setattr("migrators.pipeline.preflight.check_target", fault)
    done = run("migrate", ARCHIVE, "--to", tmp_path / "library", "--json")
    message = said(done, "FaultOfRegraft", STOPPED)
    assert message.startswith("ZeroDivisionError: an assumption that did not hold; this is a bug in regraft")
    assert not (tmp_path / "library").exists()


def test_without_a_command_the_help_is_shown() -> None:
    done = run()
    assert done.status == REFUSED
    assert done.stdout.startswith("Usage: regraft ")
    assert "migrate" in done.stdout


def test_a_refused_run_leaves_no_folder_that_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is checked when the plan is known, after the library is locked."""
    source = whole(tmp_path / "v1")
    (tmp_path / "mine").mkdir()
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    for target in (tmp_path / "mine" / "made" / "deep" / "library", tmp_path / "made"):
        refused = run("migrate", source, "--to", target, "--json")
        assert (refused.status, refused.document["error"]["code"]) == (2, "NotEnoughSpace")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "v1"]
        assert list((tmp_path / "mine").iterdir()) == []
