"""Giving notes of codex-mem their vectors: backfill, reconcile and rebuild, and that no search by words notices."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import codex_mem_store as notes
import pytest
from codex_mem_vectors import fill, held, right, state
from fault_server import FaultServer, poisoned
from fault_server import right as right_answer
from faults import forked, said, untouched
from harness import run
from lacking import configured, library
from stand_ins import KILLED, die

from regraft.disk import sqlite
from regraft.formats.codex_mem import database, sidecar
from repair.changes.changesets import IncrementalChange
from repair.codex_mem.note_vectors import NotesScope

pytest.importorskip("openai", reason="the client of embedding servers is not installed")

#: What a summary of the upstream draft has.
SUMMARY = {
    *("scope", "model_id", "eligible", "skipped_ready", "processed_pending", "processed_stale", "retried_failed"),
    *("newly_ready", "failed", "started_at", "completed_at"),
}
QUERIES = ("queue", "WAL mode", "note", "会话记忆", "again", "nothing-of-this")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A database of two projects with six notes each, and one more that is excluded."""
    return notes.write(tmp_path / "data", excluded=1)


def sent(server: FaultServer) -> list[str]:
    """Return the texts of notes that were sent, each as often as it was."""
    return [text for text in server.texts if text.startswith(("Note", "A new title"))]


def statuses(store: Path) -> dict[str, Any]:
    return dict(notes.rows(store, "SELECT id, embedding_status FROM memory_items"))


def lexical(store: Path) -> list[Any]:
    """Return all that a search by words goes by: its tables, byte for byte, and what some queries give."""
    shadows = ("data", "idx", "docsize", "config")
    tables = [notes.rows(store, f"SELECT * FROM memory_items_fts_{name} ORDER BY 1, 2") for name in shadows]
    query = "SELECT rowid, bm25(memory_items_fts) FROM memory_items_fts WHERE memory_items_fts MATCH ? ORDER BY 2, 1"
    return [*tables, *(notes.rows(store, query, f'"{word}"') for word in QUERIES)]


def findings(store: Path) -> dict[str, int]:
    document = run("check", store, "--json", "--deep").document
    return {one["name"]: one["count"] for one in document["findings"] if one["severity"] != "note"}


# --- backfill --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_notes_get_their_vectors_and_searches_by_words_are_as_they_were(
    store: Path, server: FaultServer, config: Path
) -> None:
    before = lexical(store)
    assert state(store) == "disabled"
    done = fill(store, config)
    assert done.status == 0, done
    assert held(store) == right(store)
    assert sorted(sent(server)) == sorted(
        database.note_source_text(*notes.parts_of(store, one)) for one in right(store)
    )
    excluded = {notes.note_id(project, 6) for project in range(2)}
    assert {note for note, status in statuses(store).items() if status is None} == excluded
    assert {status for note, status in statuses(store).items() if note not in excluded} == {"ready"}
    assert lexical(store) == before
    assert (findings(store), state(store)) == ({}, "ready")
    for scope in done.document["scopes"]:
        assert scope.keys() >= SUMMARY
        assert (scope["eligible"], scope["newly_ready"], scope["processed_pending"], scope["failed"]) == (6, 6, 6, 0)
        assert (scope["model_id"], scope["skipped_ready"]) == ("embed-small", 0)
    with sidecar.open_sidecar(database.sidecar_path(store)) as (_, meta):
        assert (meta.model_id, meta.dimensions, meta.state) == ("embed-small", 8, "ready")


@pytest.mark.thorough
def test_vectors_that_projects_share_are_compared_once(store: Path, server: FaultServer, config: Path) -> None:
    fill(store, config)
    for project in range(2):
        notes.edit(store, notes.note_id(project, 1), f"Note {project} that was edited")
    server.requests.clear()
    done = fill(store, config)
    [first, second] = (scope["probe"] for scope in done.document["scopes"])
    assert (first["texts"], first["requests"] > 0) == (second["texts"], True)
    assert (second["requests"], second["tokens"]) == (0, 0)
    assert len(server.texts) == len(set(server.texts))


@pytest.mark.thorough
def test_a_second_run_sends_and_writes_nothing(store: Path, server: FaultServer, config: Path) -> None:
    fill(store, config)
    server.requests.clear()
    with untouched(store.parent):
        again = fill(store, config)
    assert again.status == 0
    assert [scope["skipped_ready"] for scope in again.document["scopes"]] == [6, 6]
    assert server.requests == []


@pytest.mark.thorough
def test_a_dry_run_tells_what_would_be_done_and_touches_nothing(store: Path, server: FaultServer, config: Path) -> None:
    with untouched(store.parent):
        planned = fill(store, config, "--dry-run").document
    assert server.requests == []
    assert [action["action"] for action in planned["actions"]] == ["migrate-metadata", "make-sidecar", "embed", "embed"]
    assert [scope["planned"]["texts"] for scope in planned["scopes"]] == [6, 6]
    done = fill(store, config).document
    assert [action["action"] for action in done["actions"]] == [action["action"] for action in planned["actions"]]


@pytest.mark.thorough
@pytest.mark.parametrize("state_of_006", ["some columns", "no record", "no columns", "whole", "another type"])
def test_what_is_missing_of_migration_006_is_added(store: Path, config: Path, state_of_006: str) -> None:
    if state_of_006 == "another type":
        for name in ("embedding_content_version", "embedding_eligible"):
            notes.run_sql(store, f"ALTER TABLE memory_items ADD COLUMN {name} TEXT")
    if state_of_006 in ("some columns", "no record", "whole"):
        notes.add_columns(store, list(database.COLUMNS)[: 3 if state_of_006 == "some columns" else None])
    if state_of_006 in ("no columns", "whole"):
        notes.record(store)
    assert fill(store, config).status == 0
    with sqlite.open_readonly(store) as db:
        assert database.is_migrated(db)
    assert notes.rows(store, "SELECT name FROM schema_migrations WHERE version = 6") == [(database.MIGRATION[1],)]
    assert findings(store) == {}


@pytest.mark.thorough
def test_one_project_is_filled_unless_more_are_named(
    store: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes.run_sql(store, "UPDATE sessions SET started_at = '2026-03-21T08:00:00Z' WHERE id = 'sess_1'")
    document = run("backfill", store, "--config", config, "--json").document
    assert [scope["scope"] for scope in document["scopes"]] == [notes.project_id(1)]
    assert set(held(store)) == {notes.note_id(1, number) for number in range(6)}
    assert state(store) == "degraded_partial_coverage"
    place = tmp_path / "code" / "deeper"
    place.mkdir(parents=True)
    notes.run_sql(store, "UPDATE workspaces SET root_path = ? WHERE id = 'ws_0'", str(tmp_path / "code"))
    monkeypatch.chdir(place)
    document = run("backfill", store, "--config", config, "--json").document
    assert [scope["scope"] for scope in document["scopes"]] == [notes.project_id(0)]
    assert state(store) == "ready"


@pytest.mark.thorough
def test_projects_can_be_named(store: Path, config: Path) -> None:
    done = fill(store, config, "--base", notes.project_id(0))
    assert set(held(store)) == {notes.note_id(0, number) for number in range(6)}
    assert [base["id"] for base in done.document["bases"]] == [notes.project_id(0)]
    assert said(fill(store, config, "--base", "proj_9"), "ProjectUnknown", 2)
    both = fill(store, config, "--base", notes.project_id(0), "--all-projects")
    assert "--all-projects and --base exclude each other" in said(both, "WrongUsage", 2)


@pytest.mark.thorough
def test_an_edited_note_is_embedded_once_more(store: Path, server: FaultServer, config: Path) -> None:
    fill(store, config)
    server.requests.clear()
    edited = notes.note_id(1, 2)
    notes.edit(store, edited, "Note that was edited")
    before = lexical(store)
    assert (findings(store), state(store)) == ({"codex.stale": 1}, "degraded_stale_embeddings")
    done = fill(store, config)
    assert [scope["processed_stale"] for scope in done.document["scopes"]] == [0, 1]
    assert [text for text in server.texts if "that was edited" in text] == [
        database.note_source_text(*notes.parts_of(store, edited))
    ]
    assert held(store) == right(store)
    assert (findings(store), lexical(store)) == ({}, before)


def test_equal_notes_are_paid_for_once(store: Path, server: FaultServer, config: Path) -> None:
    title, kind, content = notes.parts_of(store, notes.note_id(0, 0))
    for note in (notes.note_id(0, 1), notes.note_id(1, 3)):
        query = "UPDATE memory_items SET title = ?, type = ?, content = ? WHERE id = ?"
        notes.run_sql(store, query, title, kind, f"{content} \n", note)
    assert fill(store, config, "--no-probe").status == 0
    assert len(server.texts) == len(set(server.texts)) == 12 - 2
    assert held(store) == right(store)


@pytest.mark.thorough
def test_what_was_excluded_meanwhile_is_neither_sent_nor_written(
    store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = notes.note_id(0, 0)
    real = NotesScope.write

    def write(self: NotesScope, *arguments: Any) -> Any:
        if note in notes.searchable(store):
            notes.exclude(store, note)
        return real(self, *arguments)

    monkeypatch.setattr(NotesScope, "write", write)
    fill(store, config)
    assert statuses(store)[note] is None
    assert findings(store) == {}
    assert note not in held(store)


@pytest.mark.thorough
def test_what_another_run_wrote_of_a_newer_text_stays(
    store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, real, others = notes.note_id(0, 0), NotesScope._writing, []

    def writing(self: NotesScope, *arguments: Any) -> Any:
        if not others:
            others.append(note)
            notes.edit(store, note)
            notes.put_vector(store, note)
            notes.mark_ready(store, note)
        return real(self, *arguments)

    monkeypatch.setattr(NotesScope, "_writing", writing)
    fill(store, config, "--no-probe")
    assert (held(store), findings(store)) == (right(store), {})


@pytest.mark.thorough
def test_a_text_that_another_run_embedded_meanwhile_did_not_fail(
    store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, fail, write = notes.note_id(0, 3), NotesScope.failed, NotesScope._writing
    notes.edit(store, note, "poison")
    server.behave = poisoned("poison")

    def writing(self: NotesScope, *arguments: Any) -> Any:
        notes.embed(store, [note])
        return write(self, *arguments)

    def failed(self: NotesScope, *arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(NotesScope, "_writing", writing)
            fail(self, *arguments)

    monkeypatch.setattr(NotesScope, "failed", failed)
    fill(store, config)
    assert set(statuses(store).values()) == {"ready", None}
    assert findings(store) == {}


@pytest.mark.thorough
def test_a_text_that_no_server_takes_is_remembered_and_can_be_cleared(
    store: Path, server: FaultServer, config: Path
) -> None:
    note = notes.note_id(0, 3)
    notes.edit(store, note, "poison")
    server.behave = poisoned("poison")
    done = fill(store, config)
    assert done.status == 1
    assert [scope["failed"] for scope in done.document["scopes"]] == [1, 0]
    row = "SELECT embedding_status, embedding_error_code, embedding_error_at IS NOT NULL FROM memory_items WHERE id = ?"
    assert notes.rows(store, row, note) == [("failed", "http_400", 1)]
    assert (state(store), set(findings(store))) == ("degraded_failed_embeddings", {"codex.failed"})
    again = fill(store, config)
    assert [scope["retried_failed"] for scope in again.document["scopes"]] == [1, 0]
    assert run("clear-failed", store, "--json").status == 0
    assert notes.rows(store, row, note) == [("pending", None, 0)]
    server.behave = right_answer
    assert fill(store, config).status == 0
    assert (state(store), findings(store)) == ("ready", {})


@pytest.mark.thorough
def test_an_embedder_of_another_model_is_refused(
    store: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    fill(store, config)
    other = configured(tmp_path / "other.yaml", server, model="another")
    with untouched(store.parent):
        assert "regraft rebuild" in said(fill(store, other), "ModelDiffers", 2)


@pytest.mark.parametrize("command", ["backfill", "rebuild"])
def test_a_damaged_database_is_refused(command: str, store: Path, server: FaultServer, config: Path) -> None:
    raw = store.read_bytes()[:9000]
    store.write_bytes(raw)
    said(fill(store, config, command=command), "SourceUnreadable", 2)
    assert (server.requests, store.read_bytes()) == ([], raw)


@pytest.mark.thorough
def test_a_link_leads_to_the_database(store: Path, config: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "codex-mem.db"
    link.parent.mkdir()
    link.symlink_to(store)
    assert fill(link, config).status == 0
    assert (link.is_symlink(), [*link.parent.iterdir()]) == (True, [link])
    assert (held(store), findings(link), state(store)) == (right(store), {}, "ready")
    assert run("undo", link, "--json").status == 0
    assert (link.is_symlink(), held(store)) == (True, {})


@pytest.mark.thorough
def test_a_sidecar_that_hides_its_rows_gives_no_sample(store: Path, server: FaultServer, config: Path) -> None:
    """Damage in a page above the rows: the highest number is there, and looking from there on finds nothing."""
    fill(store, config)
    with sqlite.open_readonly(database.sidecar_path(store)) as side:

        class Damaged:
            def execute(self, query: str, *values: Any) -> Any:
                return side.execute("SELECT 500, 900" if "min(rowid)" in query else query, *values)

        scope = object.__new__(NotesScope)
        scope._side = Damaged()
        assert scope.sample(8) == []


@pytest.mark.thorough
def test_a_sidecar_that_is_none_is_refused(store: Path, config: Path) -> None:
    database.sidecar_path(store).write_bytes(b"something else")
    with untouched(store.parent):
        assert "regraft rebuild" in said(fill(store, config), "SidecarUnfit", 2)
    assert fill(store, config, command="rebuild").status == 0
    assert (held(store), findings(store)) == (right(store), {})


# --- between the two writes ------------------------------------------------------------------------------------------


def killed_between_the_writes(store: Path, config: Path) -> None:
    """Run backfill in another process, which dies once vectors lie in the sidecar and no note tells of them."""

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(NotesScope, "_filter_unchanged", lambda *_: die())
            # Of several answers that are there at once all would be written before it dies.
            fill(store, config, "--no-probe", "--limit", 3)

    assert forked(work) == KILLED


@pytest.mark.thorough
def test_what_a_kill_between_the_two_writes_left_is_mended_and_not_paid_for_again(
    store: Path, server: FaultServer, config: Path
) -> None:
    killed_between_the_writes(store, config)
    assert len(held(store)) == 3
    assert "ready" not in statuses(store).values()
    assert findings(store)["codex.orphan"] == 3
    server.requests.clear()
    assert run("reconcile", store, "--json").status in (0, 1)
    assert list(statuses(store).values()).count("ready") == 3
    assert server.requests == []
    assert "codex.orphan" not in findings(store)
    fill(store, config, "--no-probe")
    assert len(server.texts) == 9
    assert (held(store), findings(store)) == (right(store), {})


@pytest.mark.thorough
def test_control_c_right_after_a_commit_loses_nothing_of_what_takes_it_back(
    store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed run left is taken over before anything is sent: no answer's own care keeps Ctrl-C back there."""
    killed_between_the_writes(store, config)
    real = IncrementalChange.note_commit

    def note_commit(self: IncrementalChange) -> None:
        monkeypatch.setattr(IncrementalChange, "note_commit", real)
        signal.raise_signal(signal.SIGINT)
        real(self)

    monkeypatch.setattr(IncrementalChange, "note_commit", note_commit)
    assert fill(store, config, "--no-probe").status == 130
    # Both files changed for one thing, and the other project was not come to.
    [stopped, _] = run("history", store, "--json").document["runs"][:2]
    assert [(action["action"], action["base"]) for action in stopped["actions"]] == [("embed", notes.project_id(0))]
    assert run("undo", store, "--json").status == 0
    assert "ready" not in statuses(store).values()


@pytest.mark.thorough
def test_backfill_itself_goes_on_after_such_a_kill(store: Path, server: FaultServer, config: Path) -> None:
    killed_between_the_writes(store, config)
    server.requests.clear()
    done = fill(store, config, "--no-probe")
    assert done.status == 0
    assert sum(scope["shared"] for scope in done.document["scopes"]) == 3
    assert len(server.texts) == 9
    assert (held(store), findings(store)) == (right(store), {})


@pytest.mark.thorough
def test_all_of_it_can_be_taken_back(store: Path, config: Path) -> None:
    before, words = notes.rows(store, "SELECT rowid, * FROM memory_items ORDER BY id"), lexical(store)
    fill(store, config)
    while run("undo", store, "--json").status == 0:
        assert lexical(store) == words
    assert notes.rows(store, "SELECT rowid, * FROM memory_items ORDER BY id") == before
    assert not database.sidecar_path(store).exists()
    assert (state(store), findings(store)) == ("disabled", {})


@pytest.mark.thorough
def test_nothing_is_taken_back_while_the_application_has_the_database_open(store: Path, config: Path) -> None:
    fill(store, config)
    assert run("undo", store, "--json").status == 0
    place = database.sidecar_path(store)
    with sqlite.open_writable(store) as app:
        app.execute("SELECT count(*) FROM memory_items").fetchall()
        assert said(run("undo", store, "--json"), "StoreBusy", 2)
        assert place.exists()
    assert run("undo", store, "--json").status == 0
    assert not place.exists()


@pytest.mark.thorough
def test_dropping_the_sidecar_leaves_searches_by_words(store: Path, config: Path) -> None:
    fill(store, config)
    before = [run("search", store, word, "--mode", "bm25", "--json").document["hits"] for word in QUERIES[:3]]
    database.sidecar_path(store).unlink()
    after = [run("search", store, word, "--json").document["hits"] for word in QUERIES[:3]]
    assert after == before
    assert state(store) == "degraded_missing_index"


# --- reconcile and rebuild -------------------------------------------------------------------------------------------


def test_reconcile_embeds_what_changed(store: Path, server: FaultServer, config: Path) -> None:
    fill(store, config)
    edited, gone, excluded = notes.note_id(0, 1), notes.note_id(0, 2), notes.note_id(1, 0)
    notes.edit(store, edited, "Note of another kind")
    notes.delete(store, gone)
    notes.exclude(store, excluded)
    server.requests.clear()
    before, kept = lexical(store), held(store)[excluded]
    done = fill(store, config, command="reconcile")
    # The vector of an excluded note stays, and is reported, until its finding is named.
    assert (done.status, [one["finding"] for one in done.document["left"]]) == (1, ["codex.excluded-vector"]), done
    assert len([text for text in server.texts if "another kind" in text]) == 1
    assert held(store) == {**right(store), excluded: kept}
    assert (lexical(store), findings(store)) == (before, {"codex.excluded-vector": 1})
    server.requests.clear()
    with untouched(store.parent):
        assert fill(store, config, command="reconcile").status == 1
    assert run("reconcile", store, "--only", "codex.excluded-vector", "--json").status == 0
    assert set(held(store)) == set(notes.searchable(store))
    assert (held(store), lexical(store), findings(store)) == (right(store), before, {})
    with untouched(store.parent):
        assert fill(store, config, command="reconcile").status == 0
    assert server.requests == []


@pytest.mark.thorough
def test_reconcile_without_an_embedder_does_what_needs_none(
    store: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.parent)
    fill(store, config)
    notes.edit(store, notes.note_id(0, 1))
    notes.delete(store, notes.note_id(0, 2))
    done = run("reconcile", store, "--json")
    assert done.status == 1
    assert set(findings(store)) == {"codex.stale"}
    assert "regraft backfill" in str(done.document["left"])


@pytest.mark.thorough
def test_a_rebuild_makes_all_vectors_anew_with_another_model(
    store: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    fill(store, config)
    words = lexical(store)
    other = configured(tmp_path / "other.yaml", server, model="another")
    server.requests.clear()
    done = fill(store, other, command="rebuild")
    assert done.status == 0, done
    assert len(sent(server)) == 12
    with sidecar.open_sidecar(database.sidecar_path(store)) as (_, meta):
        assert (meta.model_id, meta.state, meta.rebuilt_at is not None) == ("another", "ready", True)
    assert (held(store), findings(store), state(store), lexical(store)) == (right(store), {}, "ready", words)
    one = fill(store, other, "--base", notes.project_id(0), command="rebuild")
    assert "rebuild embeds the notes of every project" in said(one, "WrongUsage", 2)


@pytest.mark.thorough
def test_a_rebuild_that_was_stopped_goes_on(store: Path, server: FaultServer, config: Path, tmp_path: Path) -> None:
    fill(store, config)
    other = configured(tmp_path / "other.yaml", server, model="another")
    fill(store, other, "--limit", "5", command="rebuild")
    assert (state(store), len(held(store))) == ("rebuilding", 5)
    words = run("search", store, "queue", "--mode", "bm25", "--json").document["hits"]
    assert run("search", store, "queue", "--json").document["hits"] == words
    server.requests.clear()
    assert fill(store, other, "--no-probe", command="rebuild").status == 0
    assert (state(store), len(sent(server)), held(store)) == ("ready", 7, right(store))


def test_a_rebuild_without_a_sidecar_that_was_stopped_goes_on(store: Path, server: FaultServer, config: Path) -> None:
    fill(store, config, "--limit", "5", command="rebuild")
    assert (state(store), len(held(store))) == ("rebuilding", 5)
    paid = sent(server)
    assert fill(store, config, command="rebuild").status == 0
    assert (state(store), held(store)) == ("ready", right(store))
    assert len(sent(server)) == len(set(sent(server))) == 12
    assert len(paid) == 5


@pytest.mark.thorough
def test_a_rebuild_that_was_stopped_begins_again_with_another_model(
    store: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    fill(store, configured(tmp_path / "other.yaml", server, model="another"), "--limit", "5", command="rebuild")
    assert fill(store, config, command="rebuild").status == 0
    with sidecar.open_sidecar(database.sidecar_path(store)) as (_, meta):
        assert (meta.model_id, meta.state) == ("embed-small", "ready")
    assert (held(store), findings(store), state(store)) == (right(store), {}, "ready")


@pytest.mark.thorough
def test_a_rebuild_that_was_stopped_begins_again_where_its_file_is_damaged(store: Path, config: Path) -> None:
    fill(store, config)
    fill(store, config, "--limit", "5", command="rebuild")
    place = database.sidecar_path(store)
    raw = place.read_bytes()
    place.write_bytes(raw[: 2 * 4096] + bytes(len(raw) - 2 * 4096))
    assert fill(store, config, command="rebuild").status == 0
    assert (held(store), findings(store), state(store)) == (right(store), {}, "ready")


@pytest.mark.thorough
def test_a_vector_of_no_length_before_the_first_one_is_no_damage_of_the_file(store: Path, config: Path) -> None:
    notes.migrate(store)
    sidecar.create_sidecar(database.sidecar_path(store), "embed-small", None, notes.EMBEDDED)
    notes.put_vector(store, notes.note_id(0, 0), vector=b"")
    assert run("inspect", store, "--json").status == 0
    assert fill(store, config).status == 0
    assert (held(store), findings(store), state(store)) == (right(store), {}, "ready")


def test_reconcile_with_an_embedder_leaves_a_database_without_all_columns(
    store: Path, server: FaultServer, config: Path
) -> None:
    notes.add_columns(store, list(database.COLUMNS)[:3])
    sidecar.create_sidecar(database.sidecar_path(store), "embed-small", 8, notes.EMBEDDED)
    was = store.read_bytes()
    done = fill(store, config, command="reconcile")
    assert (done.status, [one["finding"] for one in done.document["left"]]) == (1, ["codex.migration"])
    assert (server.requests, store.read_bytes()) == ([], was)


def test_other_stores_are_not_rebuilt(tmp_path: Path, config: Path) -> None:
    place = library(tmp_path / "library")
    for command in ("rebuild", "clear-failed"):
        assert "the command is only for a database of codex-mem" in said(run(command, place, "--json"), "NotChanged", 2)


# --- the real thing --------------------------------------------------------------------------------------------------


@notes.needs_samples
@pytest.mark.parametrize("name", ["codex-mem.db", "codex-mem-excluded.db"])
def test_real_databases(name: str, server: FaultServer, config: Path, tmp_path: Path) -> None:
    store = Path(shutil.copyfile(notes.SAMPLES / name, tmp_path / name))  # the original may be read-only
    if name != "codex-mem.db":
        assert run("repair", store, "--json").status == 0
    words = lexical(store)
    assert fill(store, config).status == 0
    assert (held(store), findings(store), state(store), lexical(store)) == (right(store), {}, "ready", words)
    assert not any("zebra" in text or "okapi" in text for text in server.texts)


def test_with_a_real_server(real_url: str, store: Path, tmp_path: Path) -> None:
    config = configured(tmp_path / "real.yaml", real_url, model="e5", batch={"texts": 8}, parallel=2)
    assert fill(store, config).status == 0
    assert (state(store), findings(store), set(held(store))) == ("ready", {}, set(notes.searchable(store)))
    options = ("--mode", "hybrid", "--embedder", "mine", "--config", config, "--json")
    found = run("search", store, "import queue", *options).document
    assert found["mode"] == "hybrid"
    assert found["hits"]


@pytest.mark.thorough
def test_each_database_of_a_folder_has_its_own_history(store: Path, config: Path) -> None:
    other = notes.write(store.parent / "other", excluded=1).rename(store.with_name("other.db"))
    notes.skew(other)
    assert run("repair", other, "--json").status == 0
    assert run("history", store, "--json").document["runs"] == []
    assert said(run("undo", store, "--json"), "RunUnknown", 2)
    fill(store, config)
    [repaired] = run("history", other, "--json").document["runs"]
    assert repaired["command"] == "repair"
    assert run("undo", other, "--json").document["undone"] == repaired["id"]
