"""Input that chance changed and that a command once stumbled over: each is refused, found or read, and named."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path

import angel_store
import apsw
import codex_mem_store
import profiles
import pytest
import stranded
from extras import needs
from faults import small_source
from harness import Outcome, run, snapshot
from lacking import configured
from planted_v1 import whole
from planted_v2 import index
from toys import change, contents
from toys import library as small_library

from checks.cherry_v2 import inspect as cherry_v2_inspect
from regraft.disk import links
from regraft.embedders import BrokenAnswer, ServerEmbedder, config, parse_vectors
from regraft.embedders.settings import ServerSettings
from regraft.errors import StoppedAtDamage, StoreDamaged, WrongUsage
from regraft.formats.cherry_v2.catalog_reader import find_data_problem
from regraft.formats.parquet import unit_file
from regraft.ledger import ledger
from repair.changes import files
from repair.embedding.filling import report_stops


def refused(*line: object) -> str:
    """Run a command that has to refuse, and return the name of the error."""
    done = run(*line, "--json")
    assert done.status == 2, done
    assert done.stderr.count("\n") == 1
    code = done.document["error"]["code"]
    assert isinstance(code, str)
    return code


def backfill_with(folder: Path, text: str) -> Outcome:
    """Run a backfill with a configuration of these words."""
    path = folder / "regraft.yaml"
    path.write_text(text, "utf-8")
    return run("backfill", small_library(folder), "--config", path, "--embedder", "mine")


# --- configurations --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        "embedders: " + "[" * 100_000,
        "embedders: " + "{a: " * 100_000,
        "embedders:\n" + "".join(f"{' ' * depth}a:\n" for depth in range(1, 400)),
    ],
)
def test_a_configuration_of_lists_in_lists_is_refused_at_once(tmp_path: Path, text: str) -> None:
    done = backfill_with(tmp_path, text)
    assert (done.status, "lists are nested too deeply" in done.stderr) == (2, True), done.stderr


def test_a_configuration_whose_aliases_stand_for_ever_more_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["l0: &l0 {a: b}", *(f"l{n}: &l{n} {{<<: [{', '.join([f'*l{n - 1}'] * 9)}]}}" for n in range(1, 12))]
    done = backfill_with(tmp_path, "\n".join(lines))
    assert (done.status, "too many values" in done.stderr) == (2, True), done.stderr


def test_a_part_of_a_configuration_may_be_used_twice(tmp_path: Path) -> None:
    path = configured(tmp_path / "regraft.yaml", "http://127.0.0.1:1/v1")
    path.write_text(path.read_text("utf-8").replace("mine:", "mine: &one") + "  other: *one\n", "utf-8")
    known = config.load_config(path).embedders
    assert known["other"].name == "other"
    assert known["mine"].model == known["other"].model


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"\\ud83d": 1, "data": 7}',
        b'{"data": [{"\\ud83d": [NaN], "embedding": 1}], "x": NaN',
        b'{"data": ' + b"[" * 100_000,
        b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_an_answer_that_no_reader_of_json_takes_is_broken(body: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        parse_vectors(body, 1, 4, embedder="mine")


# --- stores that are damaged where they have to be changed -----------------------------------------------------------


def test_undo_refuses_where_a_file_is_no_database_any_more(tmp_path: Path) -> None:
    store = small_library(tmp_path)
    change(store)
    index(store).write_bytes(b"x" * 5000)
    before = snapshot(store / "KnowledgeBase")
    assert refused("undo", store, "--yes") == "UndoRefused"
    assert snapshot(store / "KnowledgeBase") == before


def test_a_store_that_is_damaged_where_it_has_to_be_changed_is_refused(tmp_path: Path) -> None:
    path = codex_mem_store.write(tmp_path / "store", excluded=1, wal=False)
    codex_mem_store.unindex(path)
    codex_mem_store.run_sql(path, "UPDATE memory_items_fts_config SET v = 0 WHERE k = 'version'")
    before = snapshot(tmp_path / "store")
    assert refused("repair", path, "--yes") == "StoreDamaged"
    assert snapshot(tmp_path / "store") == before


@pytest.mark.parametrize(
    "error", [apsw.SQLError("cannot UPDATE a view"), UnicodeDecodeError("utf-8", b"\xb2", 0, 1, "invalid start byte")]
)
def test_a_backfill_of_a_damaged_store_is_refused_where_nothing_was_written_yet(error: Exception) -> None:
    with pytest.raises(StoreDamaged, match="nothing was changed"), report_stops(Path("store"), "mine", lambda: 0):
        raise error
    with (
        pytest.raises(StoppedAtDamage, match=r"Earlier changes are complete \(vectors: 3\)"),
        report_stops(Path("store"), "mine", lambda: 3),
    ):
        raise error


def test_a_backfill_that_is_refused_at_its_first_vector_leaves_nothing(tmp_path: Path, server) -> None:
    path = codex_mem_store.write(tmp_path / "store", wal=False)
    codex_mem_store.embed(path, [])
    codex_mem_store.run_sql(
        codex_mem_store.database.sidecar_path(path),
        "ALTER TABLE meta RENAME TO copied; CREATE VIEW meta AS SELECT * FROM copied",
    )
    before = snapshot(tmp_path / "store")
    settings = configured(tmp_path / "regraft.yaml", server)
    assert run("backfill", path, "--config", settings, "--all-projects", "--yes", "--json").status == 2
    assert snapshot(tmp_path / "store") == before


@pytest.mark.parametrize("number", ["x'0102030405060708090a0b0c'", "'x'", "1e300"])
def test_a_collection_with_an_impossible_number_is_a_finding(tmp_path: Path, number: str) -> None:
    store = angel_store.build(tmp_path / "angel")
    with apsw.Connection(str(store.chroma())) as db:
        db.execute(f"UPDATE max_seq_id SET seq_id = {number}")
    db.close()
    assert run("inspect", store.root, "--json").status in (0, 1)
    done = run("check", store.root, "--json")
    assert done.status == 1, done.stderr
    assert "max_seq_id has an invalid value" in json.dumps(done.document["findings"])


@pytest.mark.thorough
@pytest.mark.parametrize("dimension", ["x'9b19'", "'eight'", "0", "-8", "2.5"])
def test_a_collection_of_an_impossible_dimension_is_a_finding_and_not_embedded(
    tmp_path: Path, server, dimension: str
) -> None:
    store = angel_store.build(tmp_path / "angel")
    with apsw.Connection(str(store.chroma())) as db:
        db.execute(f"UPDATE collections SET dimension = {dimension}")
    db.close()
    done = run("check", store.root, "--json")
    assert done.status == 1, done.stderr
    assert "is not valid" in json.dumps(done.document["findings"])
    before = snapshot(store.root)
    settings = configured(tmp_path / "regraft.yaml", server)
    assert refused("reconcile", store.root, "--config", settings, "--yes") == "SourceUnreadable"
    assert (snapshot(store.root), server.requests) == (before, [])


# --- what is no file -------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("command", [["check"], ["inspect"], ["gc", "--yes"], ["repair", "--yes"], ["undo", "--yes"]])
def test_a_pipe_in_the_place_of_an_index_holds_nobody_up(tmp_path: Path, command: list[str]) -> None:
    store = small_library(tmp_path)
    change(store)
    index(store).unlink()
    os.mkfifo(index(store))
    done = run(command[0], store, *command[1:], "--json")
    assert done.status == {"inspect": 0, "check": 1}.get(command[0], done.status), done
    assert done.status in (0, 1, 2), done
    assert index(store).is_fifo()


def test_a_pipe_in_the_place_of_what_takes_rows_back_is_refused(tmp_path: Path) -> None:
    store = small_library(tmp_path)
    change(store)
    (kept,) = [path for path in (store / ".regraft" / "undo").rglob("*") if path.is_file() and path.stat().st_size][:1]
    for path in [path for path in (store / ".regraft" / "undo").rglob("*") if path.is_file()]:
        path.unlink()
        os.mkfifo(path)
    assert kept.is_fifo()
    before = contents(store)
    assert refused("undo", store, "--yes") == "LedgerUnreadable"
    assert contents(store) == before


@pytest.mark.thorough
def test_a_pipe_in_the_place_of_any_file_of_angel_memory_holds_nobody_up(tmp_path: Path) -> None:
    whole = angel_store.build(tmp_path / "whole").root
    for number, path in enumerate(sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())):
        copy = shutil.copytree(whole, tmp_path / str(number))
        (copy / path).unlink()
        os.mkfifo(copy / path)
        for command in (["inspect"], ["check"], ["repair", "--dry-run"]):
            assert run(command[0], copy, *command[1:], "--json").status in (0, 1, 2), (path, command)
        assert (copy / path).is_fifo()


@pytest.mark.thorough
def test_links_in_a_circle_hold_nobody_up(tmp_path: Path) -> None:
    store = angel_store.build(tmp_path / "angel")
    for path in [path for path in store.raw.rglob("*") if path.is_file()][:1]:
        path.unlink()
        path.symlink_to(path)
    assert run("check", store.root, "--json").status in (0, 1)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "in").symlink_to(folder)
    assert refused("inspect", folder) == "SourceUnrecognised"
    (tmp_path / "link").symlink_to(tmp_path / "link")
    assert refused("inspect", tmp_path / "link") in ("SourceNotFound", "SourceUnreadable")


def test_a_file_that_is_called_like_a_log_gets_no_index_of_a_log(tmp_path: Path) -> None:
    path = codex_mem_store.write(tmp_path / "store", wal=False)
    shutil.copy(path, f"{path}-wal")
    before = snapshot(tmp_path / "store")
    assert run("check", path, "--json").status in (0, 1)
    assert snapshot(tmp_path / "store") == before


def test_an_odd_thing_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    store = small_library(tmp_path)
    change(store)
    undo = store / ".regraft" / "undo"
    shutil.rmtree(undo)
    undo.write_bytes(b"")
    before = contents(store)
    assert run("undo", store, "--yes", "--json").status == 2
    assert contents(store) == before


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="base_url is not a valid URL"):
        ServerEmbedder(ServerSettings(name="mine", model="m", base_url="http://127.0.0.1\0:1/v1"))
    assert ServerEmbedder(ServerSettings(name="mine", model="m", base_url="http://127.0.0.1:1/v1"))


def test_what_a_step_before_has_changed_stays_where_a_backfill_cannot_go_on() -> None:
    error = apsw.CorruptError("database disk image is malformed")
    place = Path("store")
    with pytest.raises(StoppedAtDamage, match="malformed"), report_stops(place, "mine", lambda: 0, lambda: True):
        raise error


def test_rows_that_could_not_be_taken_back_are_not_changed(tmp_path: Path, server) -> None:
    path = codex_mem_store.write(tmp_path / "store", wal=False)
    codex_mem_store.embed(path, [])
    for statement in (
        "PRAGMA legacy_alter_table = ON; ALTER TABLE systems RENAME TO copied",
        "CREATE VIEW systems AS SELECT * FROM copied",
    ):
        codex_mem_store.run_sql(path, statement)
    before = path.read_bytes()
    settings = configured(tmp_path / "regraft.yaml", server)
    done = run("backfill", path, "--config", settings, "--all-projects", "--yes", "--json")
    # Vectors lie in the sidecar by then.
    assert (done.status, done.document["error"]["code"]) == (3, "StoppedAtDamage")
    assert path.read_bytes() == before
    assert run("undo", path, "--yes").status == 0
    assert codex_mem_store.rows(codex_mem_store.database.sidecar_path(path), "SELECT * FROM embedding") == []


def test_a_refused_change_leaves_nothing_that_was_being_made(tmp_path: Path) -> None:
    store = small_library(tmp_path)
    change(store)
    shutil.rmtree(store / ".regraft" / "undo")
    os.mkfifo(store / ".regraft" / "undo")
    planted = index(store).parent.parent / "raw" / "stray.bin"
    planted.write_bytes(b"stray")
    os.utime(planted, (1_600_000_000, 1_600_000_000))
    assert refused("gc", store, "--yes") in ("StoreDamaged", "LedgerUnreadable")
    assert not (store / ".regraft" / "work").exists()
    assert planted.exists()


def test_an_identity_that_is_no_text_is_shown(tmp_path: Path) -> None:
    store = small_library(tmp_path)
    with apsw.Connection(str(index(store))) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("UPDATE meta SET schema_version = CAST(x'78ff' AS TEXT), base_id = x'ff'")
        db.execute(
            "UPDATE material SET material_id = CAST(x'78ff' AS TEXT) WHERE rowid = (SELECT min(rowid) FROM material)"
        )
    db.close()
    done = run("inspect", store, "--json")
    assert done.status == 0, done.stderr
    assert "x\ufffd" in [base["store"]["schema_version"] for base in done.document["bases"]]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["report.json", "report.html", "catalog.sqlite", "KnowledgeBase"])
def test_a_target_with_something_else_in_the_place_of_its_own_files_is_refused(tmp_path: Path, name: str) -> None:
    source = whole(tmp_path / "v1")
    target = tmp_path / "library"
    assert run("migrate", source, "--to", target, "-q").status == 0
    place = target / name
    if place.is_dir():
        shutil.rmtree(place)
        place.write_bytes(b"")
    else:
        place.unlink()
        place.mkdir()
    before = contents(target)
    assert refused("migrate", source, "--to", target, "--yes") == "TargetNotWritable"
    assert contents(target) == before


def test_a_link_is_not_put_in_the_place_of_a_database(tmp_path: Path) -> None:
    path = codex_mem_store.write(tmp_path / "store", wal=False)
    codex_mem_store.migrate(path)
    codex_mem_store.unindex(path)
    assert run("repair", path, "--yes", "-q", "--fail-on", "never").status == 0
    root = tmp_path / "store"
    (made,) = [one for one in ledger.read_runs(root)[-1].changes if one.state == "done"]
    outside = tmp_path / "outside.db"
    shutil.copy(path, outside)
    kept = root / ".regraft" / str(made.kept)
    kept.unlink()
    kept.symlink_to(outside)
    detail = {"new": True, "mark": files.fingerprint(path), "staged": "work/x", "made": None, "actions": [0, 1]}
    codex_mem_store.run_sql(
        root / ".regraft" / "ledger.sqlite",
        "UPDATE change SET means = 'file', detail = ? WHERE change_id = ?",
        json.dumps(detail).encode(),
        made.change_id,
    )
    assert refused("undo", path, "--yes") == "LedgerUnreadable"
    assert not path.is_symlink()


@pytest.mark.parametrize("kind", [["file"], {}, None, 7, "folder"])
def test_an_item_whose_type_is_none_is_the_matter_of_others(kind: object) -> None:
    assert find_data_problem({"type": kind, "data": "{}"}) is None


# --- links -----------------------------------------------------------------------------------------------------------


def test_a_link_on_the_way_to_what_has_to_be_made_is_refused_before_anything_is_intended(tmp_path: Path) -> None:
    profile = stranded.profile(tmp_path, stranded.some_source(), lost=("other",))
    way = profile / "Data" / "KnowledgeBase" / stranded.base_of("other")
    shutil.rmtree(way, ignore_errors=True)
    way.symlink_to(tmp_path / "nowhere")
    assert refused("rescue", profile, "--yes") == "LinkInStore"
    assert not list(profile.rglob(".regraft"))
    assert not (tmp_path / "nowhere").exists()


def test_a_refused_run_leaves_no_ledger_in_a_folder_that_had_none(tmp_path: Path) -> None:
    profile = stranded.profile(tmp_path, stranded.some_source(), lost=("kb",))
    (profile / ".regraft").mkdir()
    (profile / ".regraft" / "mine").write_text("of somebody else")
    for path in profile.glob("redux.json"):
        path.unlink()
    before = snapshot(profile)
    assert refused("rescue", profile, "--v1", tmp_path / "nowhere", "--yes")
    assert refused("backfill", profile, "--yes")
    # The folder's own time tells that something was there meanwhile.
    assert {**snapshot(profile), ".regraft": before[".regraft"]} == before


def test_failed_notes_whose_project_is_no_text_are_pending_again(tmp_path: Path) -> None:
    path = codex_mem_store.write(tmp_path / "codex")
    codex_mem_store.embed(path)
    codex_mem_store.mark_failed(path, codex_mem_store.note_id(0, 0))
    codex_mem_store.run_sql(path, "UPDATE memory_items SET project_id = x'ff00'")
    done = run("clear-failed", path, "--yes", "--json")
    assert done.status == 0, done
    assert [(one["base"], one["count"]) for one in done.document["actions"]] == [(None, 1)]


def test_a_vector_whose_note_is_no_text_is_no_notes(tmp_path: Path) -> None:
    path = codex_mem_store.write(tmp_path / "codex")
    beside = codex_mem_store.embed(path)
    codex_mem_store.run_sql(
        beside, "UPDATE embedding SET note_id = x'8000' WHERE rowid = (SELECT min(rowid) FROM embedding)"
    )
    done = run("reconcile", path, "--yes", "--json")
    assert done.status in (0, 1), done
    assert sum(one["count"] for one in done.document["actions"] if one["finding"] == "codex.orphan") == 1
    assert codex_mem_store.rows(beside, "SELECT 1 FROM embedding WHERE typeof(note_id) <> 'text'") == []


def test_pages_of_materials_that_cannot_be_read_are_a_problem_of_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = index(small_library(tmp_path)).parent.parent

    def torn(*_: object) -> None:
        raise apsw.CorruptError("database disk image is malformed")

    monkeypatch.setattr(cherry_v2_inspect, "_summarize_materials", torn)
    (found,) = run("inspect", base, "--json").document["bases"]
    assert (found["materials"], found["problem"]) == (
        [],
        "its materials cannot be read: database disk image is malformed",
    )


def test_a_pipe_in_raw_does_not_hold_an_install_up(tmp_path: Path) -> None:
    library = small_library(tmp_path)
    profile = profiles.profile(tmp_path / "profile")
    shutil.copytree(library / "KnowledgeBase", profile / "Data" / "KnowledgeBase", dirs_exist_ok=True)
    raw = index(library).parent.parent / "raw"
    raw.mkdir(exist_ok=True)
    (raw / "a.md").write_text("text")
    place = profile / "Data" / raw.relative_to(library)
    place.mkdir(exist_ok=True)
    os.mkfifo(place / "a.md")
    assert run("install", library, "--profile", profile, "--yes", "--json").status in (0, 1, 2)
    assert (place / "a.md").is_fifo()


def test_a_link_to_nowhere_in_the_place_of_a_base_is_refused(tmp_path: Path) -> None:
    small_source(tmp_path / "v1")
    library = tmp_path / "library"
    assert run("migrate", tmp_path / "v1", "--to", library, "--yes").status in (0, 1)
    link = min(path for path in (library / "KnowledgeBase").iterdir())
    shutil.rmtree(link)
    link.symlink_to(tmp_path / "nowhere")
    before = contents(library)
    assert refused("migrate", tmp_path / "v1", "--to", library, "--yes") == "LinkInStore"
    assert contents(library) == before
    assert link.is_symlink()


def test_a_configuration_with_half_a_character_is_refused(tmp_path: Path) -> None:
    done = backfill_with(tmp_path, 'embedders:\n  mine:\n    encoding: "\\ud800\\udfff"\n')
    assert (done.status, done.stderr.count("\n")) == (2, 1)
    assert "a character that is not valid in text" in done.stderr


def test_a_pipe_in_the_place_of_what_was_installed_keeps_undo_away(tmp_path: Path) -> None:
    library = small_library(tmp_path)
    place = profiles.profile(tmp_path / "profile")
    assert run("install", library, "--profile", place, "--yes").status in (0, 1)
    installed = place / "Data" / index(library).relative_to(library)
    installed.unlink()
    os.mkfifo(installed)
    assert refused("undo", place, "--yes") == "UndoRefused"
    assert installed.is_fifo()


def test_a_report_that_the_disk_does_not_give_keeps_a_pack_from_being_poorer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = small_library(tmp_path)
    right = links.open_descriptor

    def failing(path: Path) -> int:
        if path.name == "report.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return right(path)

    monkeypatch.setattr(links, "open_descriptor", failing)
    assert refused("pack", library, tmp_path / "bases.zip", "--yes") == "SourceUnreadable"
    assert not (tmp_path / "bases.zip").exists()
    assert run("check", library).status == 0


@needs("parquet")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every name is text")
def test_a_base_in_a_folder_whose_name_is_no_text_is_exported(tmp_path: Path) -> None:
    library = small_library(tmp_path)
    folder = index(library).parent.parent
    folder.rename(folder.with_name(os.fsdecode(b"\xff\xfe")))
    done = run("export", library, tmp_path / "rows.parquet", "--json")
    assert done.status in (0, 1), done
    assert sum(base["rows"]["carried"] for base in done.document["bases"]) > 0


@needs("parquet")
def test_settings_of_another_base_in_a_parquet_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = small_library(tmp_path)
    assert run("export", library, tmp_path / "rows.parquet").status == 0
    read = unit_file.read_metadata

    def other(path: Path) -> unit_file.FileMetadata:
        about = read(path)
        about.bases[0].id = f".{about.bases[0].id}"
        return about

    monkeypatch.setattr(unit_file, "read_metadata", other)
    assert refused("import", tmp_path / "rows.parquet", "--to", tmp_path / "out", "--yes") == "SourceUnreadable"
