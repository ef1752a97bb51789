"""``regraft install``: a library in a profile, what is refused, taking it back, and kills at every step."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from faults import (
    REFUSED,
    STOPPED,
    Source,
    Tripwire,
    files_of,
    forked,
    item,
    migrate,
    posix,
    said,
    small_source,
    state_of,
    untouched,
    write_vectors,
)
from harness import GOLDEN, NOW, NOW_MS, REPO, Outcome, command_words, golden, run
from profiles import KEYS, changed, profile, rows, start_application, tables
from stand_ins import KILLED, Disk, FullDisk, die, on_disk

from regraft import api, identity
from regraft.disk import durable, sqlite
from regraft.ledger import ledger
from repair.changes import execution
from repair.cherry_v2.install import base_copy
from repair.cherry_v2.source import BaseSource

ALPHA, BETA, GAMMA = (identity.base_id(name) for name in ("alpha", "beta", "gamma"))
MODEL = "acme::embed-small"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate a small source once."""
    place = tmp_path_factory.mktemp("made")
    source = small_source(place / "v1").write()
    assert migrate(source, place / "library").status == 1
    return place / "library"


class Case(NamedTuple):
    library: Path
    profile: Path

    def install(self, *options: object) -> Outcome:
        return run("install", self.library, "--profile", self.profile, "--now", NOW, "--json", *options)

    def catalog(self, sql: str) -> None:
        with closing(apsw.Connection(str(self.library / "catalog.sqlite"))) as db:
            db.execute(sql)

    @property
    def database(self) -> Path:
        return self.profile / "cherrystudio.sqlite"

    def folder(self, base: str) -> Path:
        return self.profile / "Data" / "KnowledgeBase" / base


@pytest.fixture
def case(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """Return a library and a profile, and see that the temporary folder of the run stays empty."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield Case(shutil.copytree(made, tmp_path / "library"), profile(tmp_path / "profile"))
    assert list(temporary.iterdir()) == []


#: The last lines about a library in which a base has failed.
THREE = "Start the application: it has 3 of 3 bases; 2 can be used.\nCannot be used: Base gamma: missing_vector_store\n"


def errors(store: Path) -> set[tuple[str, str]]:
    return {
        (one["name"], one["base"])
        for one in run("check", store, "--json").document["findings"]
        if one["severity"] == "error"
    }


def actions(outcome: Outcome) -> list[str]:
    return [action["action"] for action in outcome.document["actions"]]


def refused(case: Case, code: str, *options: object, status: int = REFUSED) -> str:
    """Assert that an installation is refused, dry or not, and writes nothing."""
    with untouched(case.library, case.profile):
        message = said(case.install("--dry-run", *options), code, status)
    assert stopped(case, code, status, *options) == message
    return message


def stopped(case: Case, code: str, status: int = REFUSED, *options: object) -> str:
    """Assert that an installation is refused and leaves every file as it was, and nothing of its own."""
    before = files_of(case.profile)
    with untouched(case.library):
        message = said(case.install(*options), code, status)
    assert files_of(case.profile) == before
    return message


# --- what it does ----------------------------------------------------------------------------------------------------


def test_bases_come_into_the_profile_and_go_again(case):
    before = tables(case.profile)
    with untouched(case.library):
        done = case.install()
    assert done.status == 0, done.stderr
    assert actions(done) == ["copy-base"] * 3 + ["back-up-database", "insert-model"] + ["insert-base"] * 3
    for base in (ALPHA, BETA, GAMMA):
        assert files_of(case.folder(base)) == files_of(case.library / "KnowledgeBase" / base)
    assert errors(case.profile) == set()
    assert run("search", case.profile, "lamp", "--base", ALPHA, "--mode", "bm25", "--json").document["hits"]
    after = tables(case.profile)
    changed_tables = {name for name in after if after[name] != before.get(name)}
    assert changed_tables == {"knowledge_base", "knowledge_item", "user_model"}
    gone = run("undo", case.profile, "-y", "--json")
    assert gone.status == 0, gone.stderr
    assert tables(case.profile) == before
    assert not (case.profile / "Data" / "KnowledgeBase").exists()
    assert not (case.profile / ".regraft" / "undo").exists()


def test_rows_are_those_of_the_library_by_the_profiles_own_columns(case):
    case.catalog(f"UPDATE knowledge_base SET group_id = 'mine' WHERE id = '{ALPHA}'")
    assert case.install().status == 0
    query = (
        "SELECT id, name, dimensions, embedding_model_id, status, error, chunk_size, chunk_overlap, chunk_separator,"
        " created_at, updated_at FROM knowledge_base WHERE id <> 'own' ORDER BY rowid"
    )
    assert rows(case.database, query) == rows(case.library / "catalog.sqlite", query)
    own = "SELECT DISTINCT icon, group_id, search_mode, hybrid_alpha FROM knowledge_base WHERE dimensions NOT NULL"
    assert rows(case.database, own) == [("book", None, "hybrid", None)]
    query = "SELECT id, base_id, group_id, type, data, status, error, created_at, updated_at FROM knowledge_item"
    assert rows(case.database, query) == rows(case.library / "catalog.sqlite", query)
    assert rows(case.database, "SELECT DISTINCT pinned FROM knowledge_item") == [(0,)]
    assert rows(case.database, "PRAGMA foreign_key_check") == []


def test_a_dry_run_touches_nothing_and_says_the_same(case):
    with untouched(case.library, case.profile):
        planned = case.install("--dry-run")
    assert planned.status == 0
    assert not (case.profile / ".regraft").exists()
    assert planned.document["actions"] == case.install().document["actions"]


def test_a_second_run_has_nothing_to_do(case):
    case.install()
    state = tables(case.profile), state_of(case.profile / "Data")
    again = case.install()
    assert (again.status, again.document["actions"], again.document["undo"]) == (0, [], None)
    assert (tables(case.profile), state_of(case.profile / "Data")) == state
    assert "Nothing to do" in run("install", case.library, "--profile", case.profile).stdout


def test_a_base_that_is_there_already_counts_as_there(case):
    first = run("inspect", case.library, "--json").document["bases"][0]["id"]
    case.install("--base", first)
    text = run("install", case.library, "--profile", case.profile, "-y").stdout
    assert text.endswith(f"\n{THREE}")


def test_the_text_says_what_comes_next(case):
    text = run("install", case.library, "--profile", case.profile, "-y").stdout
    assert "Base alpha  (" in text
    assert text.endswith(f"To undo: regraft undo {case.profile}\n{THREE}")
    assert (
        "Start the application" not in run("install", case.library, "--profile", case.profile, "--dry-run", "-v").stdout
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["my profile", "-profile", "it's"])
def test_the_command_that_takes_it_back_can_be_pasted(case, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = tables(case.profile)
    case.profile.rename(tmp_path / name)
    text = run("install", case.library, "-y", f"--profile={name}").stdout
    words = command_words(next(line for line in text.splitlines() if line.startswith("To undo: ")).partition(": ")[2])
    assert words[:2] == ["regraft", "undo"]
    assert run(*words[1:], "-y").status == 0
    assert tables(tmp_path / name) == before


@pytest.mark.parametrize("name", ["beta", BETA])
def test_some_bases_by_v1_or_v2_ids(case, name):
    assert case.install("--base", name).status == 0
    assert [path.name for path in case.folder("").iterdir()] == [BETA]
    assert rows(case.database, "SELECT DISTINCT base_id FROM knowledge_item") == [(BETA,)]
    assert case.install().status == 0
    assert rows(case.database, "SELECT count(*) FROM knowledge_base") == [(4,)]


def test_the_database_is_backed_up_as_it_was(case):
    before = tables(case.profile)
    run_id = case.install().document["undo"]
    (backup,) = (case.profile / ".regraft" / "undo" / run_id).glob("*.backup")
    restored = case.profile.parent / "restored"
    restored.mkdir()
    shutil.copyfile(backup, restored / "cherrystudio.sqlite")
    assert tables(restored) == before
    (one,) = run("history", case.profile, "--json").document["runs"]
    assert one["undo"]["bytes"] > backup.stat().st_size


def test_a_file_in_the_trash_may_be_called_like_a_backup(tmp_path):
    trash = tmp_path / ".regraft" / "trash" / "2026-01-01-run" / "raw"
    trash.mkdir(parents=True)
    for name in ("a.md", "a.md.backup"):
        (trash / name).write_text(name, "utf-8")
    execution.delete_undo_data(tmp_path, trash / "a.md")
    assert [path.name for path in trash.iterdir()] == ["a.md.backup"]


def test_undo_keeps_what_the_application_wrote_elsewhere_since(case):
    case.install()
    changed(case.profile, "INSERT INTO message VALUES ('n', 'later')")
    assert run("undo", case.profile, "-y").status == 0
    assert rows(case.database, "SELECT id FROM message ORDER BY id") == [("m",), ("n",)]
    assert rows(case.database, "SELECT id FROM knowledge_base") == [("own",)]


def command_after(message, word):
    """Return the words of the command that follows ``word`` in a message."""
    return command_words(message.partition(word)[2].partition("; then")[0].removesuffix("."))


def test_undo_names_the_command_that_keeps_what_may_be_the_last_copy(case, tmp_path, monkeypatch):
    case.install()
    monkeypatch.chdir(tmp_path)
    held = {path.parents[1].name: vectors_in(path) for path in case.profile.rglob("index.sqlite")}
    assert held.keys() == {ALPHA, BETA}
    planned = run("undo", case.profile, "--dry-run").stdout
    (line,) = (line for line in planned.splitlines() if "If there is no other copy, pack them first: " in line)
    # The failed base has no vectors.
    assert line.startswith("The vectors that this run brought are removed from 2 bases. ")
    shutil.rmtree(case.library)
    before = files_of(case.profile)
    for option in ("--dry-run", "-y"):
        message = said(run("undo", case.profile, "--json", option), "UndoOfLastCopy", REFUSED)
        assert str(case.library) in message
    assert files_of(case.profile) == before
    pack, again = (command_after(message, word) for word in ("pack them first: ", "name the run: "))
    assert run(*pack[1:], "-y").status in (0, 1)
    done = run(*again[1:], "-y", "--json")
    assert (done.status, done.stderr, set(done.document["removed_vectors"])) == (0, f"{line}\n", {ALPHA, BETA})
    with zipfile.ZipFile(tmp_path / "packed.zip") as archive:
        archive.extractall(tmp_path / "packed")
    packed = {path.parents[1].name: vectors_in(path) for path in (tmp_path / "packed").rglob("index.sqlite")}
    assert packed == held


def test_an_undo_beside_a_journal_names_the_repair(case):
    case.install()
    before = tables(case.profile)
    path = case.folder(BETA) / ".cherry" / "index.sqlite"
    a_hot_journal(path)
    error = run("undo", case.profile, "-y", "--json").document["error"]
    assert (error["code"], error["exit_status"]) == ("UndoBesideJournal", REFUSED)
    message = error["message"]
    repair, again = (command_after(message, word) for word in ("the transaction first: ", "name the run: "))
    assert tables(case.profile) == before
    assert run(*repair[1:], "-y").status == 0
    assert run(*again[1:], "-y").status == 0
    assert rows(case.database, "SELECT id FROM knowledge_base") == [("own",)]
    assert not path.exists()


def a_hot_journal(path):
    """Leave an index and its journal as a power cut during a transaction does."""
    journal = path.with_name(f"{path.name}-journal")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in ("PRAGMA cache_size = 1", "BEGIN", "UPDATE meta SET updated_at = 9", "CREATE TABLE t (x)"):
            db.execute(statement)
        for _ in range(100):
            db.execute("INSERT INTO t VALUES (zeroblob(3000))")
        cut_off = {place: place.read_bytes() for place in (path, journal)}
        db.execute("ROLLBACK")
    for place, content in cut_off.items():
        place.write_bytes(content)


def vectors_in(path):
    """Return the vectors of an index by their key."""
    with closing(sqlite3.connect(path)) as db:
        return dict(db.execute("SELECT embedding_text_hash, vector_blob FROM embedding"))


def test_undo_is_refused_where_a_base_was_used_since(case):
    case.install()
    changed(case.profile, f"UPDATE knowledge_base SET name = 'Mine now' WHERE id = '{BETA}'")
    with untouched(case.folder("")):
        done = run("undo", case.profile, "--json")
    assert (done.status, done.document["error"]["code"]) == (REFUSED, "UndoRefused")


def test_an_index_with_a_log_is_copied_as_its_readers_see_it(case, tmp_path):
    path = case.library / "KnowledgeBase" / BETA / ".cherry" / "index.sqlite"
    copy = tmp_path / "copy.sqlite"
    shutil.copyfile(path, copy)
    with closing(apsw.Connection(str(copy))) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE meta SET updated_at = 77")
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{copy}{suffix}", f"{path}{suffix}")
    assert case.install().status == 0
    index = case.folder(BETA) / ".cherry" / "index.sqlite"
    assert sorted(one.name for one in index.parent.iterdir()) == ["index.sqlite"]
    assert rows(index, "SELECT updated_at FROM meta") == [(77,)]


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_model_is_re_created_after_the_last_of_its_provider(case):
    case.install()
    query = (
        "SELECT id, model_id, name, capabilities, is_hidden, order_key, created_at FROM user_model ORDER BY order_key"
    )
    assert rows(case.database, query) == [
        ("acme::other", "other", "Other", "[]", 0, "a0", 1),
        (MODEL, "embed-small", "Embed small", '["embedding"]', 0, "a1", NOW_MS),
    ]
    assert rows(case.database, "SELECT provider_id, api_keys FROM user_provider") == [("acme", KEYS)]


def test_a_model_that_is_there_is_taken(case):
    changed(case.profile, f"UPDATE user_model SET id = '{MODEL}', model_id = 'embed-small'")
    assert "insert-model" not in actions(case.install())
    assert rows(case.database, "SELECT count(*) FROM user_model") == [(1,)]


@pytest.mark.parametrize("old", [MODEL, "beta", BETA])
def test_a_model_is_mapped(case, old):
    done = case.install("--base", "beta", "--map-model", f"{old}=acme::other")
    assert (done.status, "insert-model" in actions(done)) == (0, False)
    query = "SELECT embedding_model_id FROM knowledge_base WHERE id <> 'own'"
    assert rows(case.database, query) == [("acme::other",)]


def test_a_base_whose_model_is_nowhere_stays_out(case):
    case.catalog(f"UPDATE knowledge_base SET embedding_model_id = 'gone::big' WHERE id = '{BETA}'")
    done = case.install()
    (left,) = done.document["left"]
    assert (done.status, left["finding"], left["base"]) == (1, "base.model", BETA)
    assert "--map-model gone::big=PROVIDER::MODEL" in left["reason"]
    assert rows(case.database, "SELECT id FROM knowledge_base ORDER BY rowid") == [("own",), (ALPHA,), (GAMMA,)]
    assert not case.folder(BETA).exists()


def test_a_model_of_nobody_is_re_created_by_the_users_word(case):
    word = ("--map-model", f"{MODEL}=acme::huge")
    left = case.install("--base", "beta", *word).document["left"]
    assert "--recreate-model acme::huge" in left[0]["reason"]
    assert case.install("--base", "beta", *word, "--recreate-model", "acme::huge").status == 0
    assert rows(case.database, "SELECT name FROM user_model WHERE id = 'acme::huge'") == [("huge",)]


def test_a_rerank_model_that_is_nowhere_is_said(case):
    case.catalog(f"UPDATE knowledge_base SET rerank_model_id = 'gone::rank' WHERE id = '{BETA}'")
    done = case.install()
    assert (done.status, done.document["left"][0]["base"]) == (1, BETA)
    assert rows(case.database, f"SELECT rerank_model_id FROM knowledge_base WHERE id = '{BETA}'") == [(None,)]


def test_a_copy_without_its_rerank_model_counts_as_installed(case):
    case.install()
    case.catalog(f"UPDATE knowledge_base SET rerank_model_id = 'gone::rank' WHERE id = '{BETA}'")
    changed(case.profile, f"DELETE FROM knowledge_item WHERE base_id = '{BETA}'")
    done = run("install", case.library, "--profile", case.profile, "--base", "beta", "--as-new", "-y")
    new = identity.copied_base_id(BETA)
    assert rows(case.database, f"SELECT rerank_model_id FROM knowledge_base WHERE id = '{new}'") == [(None,)]
    assert f"Installed with a difference:\nBase beta  ({new})\n  its rerank model gone::rank" in done.stdout
    assert "Not changed:" not in done.stdout
    assert done.stdout.endswith("Start the application: it has 1 of 1 base.\n")


def test_a_word_that_meets_no_base_is_said(case):
    done = case.install("--map-model", "typo::x=acme::other")
    assert (done.status, "typo::x" in done.document["left"][0]["reason"]) == (1, True)


# --- assistants ------------------------------------------------------------------------------------------------------


def v1_state(case: Case) -> None:
    bases = [{"id": "alpha", "name": "Base alpha"}, {"id": "unknown"}, None, "beta"]
    listed = [{"id": "cook", "knowledge_bases": bases}, {"id": "gone", "knowledge_bases": bases}, 7, {"id": "nobody"}]
    state = {"assistants": {"assistants": listed}, "knowledge": {"bases": []}}
    (case.profile / "redux.json").write_text(json.dumps(state), "utf-8")


def test_assistants_get_the_bases_that_v1s_state_still_gives_them(case):
    v1_state(case)
    before = tables(case.profile)
    assert actions(case.install()).count("link-assistant") == 2
    assert sorted(rows(case.database, "SELECT * FROM assistant_knowledge_base")) == sorted(
        [("cook", ALPHA, NOW_MS, NOW_MS), ("cook", BETA, NOW_MS, NOW_MS)]
    )
    assert case.install().document["actions"] == []
    assert run("undo", case.profile, "-y").status == 0
    assert tables(case.profile) == before


def test_assistants_get_the_bases_that_their_settings_name(case):
    settings = json.dumps({"deep": {"knowledgeBaseIds": ["beta", 5, {"id": "alpha"}]}, "name": "gamma"})
    changed(case.profile, f"UPDATE assistant SET settings = '{settings}' WHERE id = 'cook'")
    case.install("--base", "beta")
    assert rows(case.database, "SELECT assistant_id, knowledge_base_id FROM assistant_knowledge_base") == [
        ("cook", BETA)
    ]


def test_assistants_get_the_bases_that_a_row_without_one_names(case):
    row = "INSERT INTO assistant_knowledge_base VALUES ('cook', 'gamma', 1, 1)"
    changed(case.profile, row, foreign_keys=False)
    before = tables(case.profile)
    assert case.install().status == 0
    found = rows(case.database, "SELECT * FROM assistant_knowledge_base ORDER BY created_at")
    assert found == [("cook", "gamma", 1, 1), ("cook", GAMMA, NOW_MS, NOW_MS)]
    assert run("undo", case.profile, "-y").status == 0
    assert tables(case.profile) == before


@pytest.mark.parametrize("state", ["{", "[]", '{"assistants": "cut'])
def test_what_v1_left_may_be_anything(case, state):
    (case.profile / "redux.json").write_text(state, "utf-8")
    changed(case.profile, """UPDATE assistant SET settings = '{"knowledge": ' || x'ff' || '[' WHERE id = 'cook'""")
    assert case.install().status == 0
    assert rows(case.database, "SELECT count(*) FROM assistant_knowledge_base") == [(0,)]


# --- what is refused -------------------------------------------------------------------------------------------------


def stays_out(case: Case, what: str) -> None:
    """Assert that base beta stays out and is named, dry or not, that it is as it was, and that the others come."""
    before = rows(case.database, f"SELECT * FROM knowledge_base WHERE id = '{BETA}'"), state_of(case.folder(BETA))
    for options in (("--dry-run",), ()):
        done = case.install(*options)
        (left,) = done.document["left"]
        assert (done.status, left["base"]) == (1, BETA)
        assert what in left["reason"]
        assert "--as-new" in left["reason"]
    after = rows(case.database, f"SELECT * FROM knowledge_base WHERE id = '{BETA}'"), state_of(case.folder(BETA))
    assert after == before
    assert rows(case.database, f"SELECT count(*) FROM knowledge_base WHERE id IN ('{ALPHA}', '{GAMMA}')") == [(2,)]


def test_a_base_of_this_id_with_other_items(case):
    case.install("--base", "beta")
    changed(case.profile, "DELETE FROM knowledge_item WHERE rowid IN (SELECT max(rowid) FROM knowledge_item)")
    stays_out(case, f"base {BETA}")
    text = run("install", case.library, "--profile", case.profile, "-y", "--base", "beta").stdout
    assert "[base.exists]" in text


def test_a_base_of_this_id_with_another_index(case):
    case.install("--base", "beta")
    with closing(apsw.Connection(str(case.folder(BETA) / ".cherry" / "index.sqlite"))) as db:
        db.execute("UPDATE embedding SET vector_blob = zeroblob(32) WHERE rowid = 1")
    stays_out(case, f"folder of base {BETA}")


def test_an_item_of_this_id(case):
    row = (
        "INSERT INTO knowledge_item SELECT id, 'own', NULL, type, data, status, error, 0, 1, 1 FROM old.knowledge_item"
    )
    changed(case.profile, f"ATTACH '{case.library / 'catalog.sqlite'}' AS old", f"{row} WHERE base_id = '{BETA}'")
    stays_out(case, "item ")


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.write_text("mine")])
def test_a_folder_of_this_id(case, make: Callable[[Path], object]):
    case.folder(BETA).parent.mkdir()
    make(case.folder(BETA))
    stays_out(case, f"folder of base {BETA}")


# --- as a new base ---------------------------------------------------------------------------------------------------


def vectors_of(index: Path) -> list[tuple[str, bytes]]:
    return rows(index, "SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY 1")


@pytest.mark.thorough
@pytest.mark.parametrize("edited", [False, True])
def test_a_base_that_is_there_comes_as_a_new_one(case, edited):
    case.install("--base", "beta")
    if edited:
        changed(case.profile, f"DELETE FROM knowledge_item WHERE base_id = '{BETA}'")
    before = tables(case.profile)
    done = case.install("--base", "beta", "--as-new")
    new = identity.copied_base_id(BETA)
    # A copy of what is there already is said to be one.
    same = f"the profile already has the same base {BETA}; this is a copy of it, with the same texts"
    left = [] if edited else [("base.exists", new, same)]
    assert [(one["finding"], one["base"], one["reason"]) for one in done.document["left"]] == left
    assert done.status == 0, done.stderr
    assert [(one["base"], one["subject"]) for one in done.document["actions"] if one["action"] == "insert-base"] == [
        (new, BETA)
    ]
    query = "SELECT name, dimensions, embedding_model_id, created_at FROM knowledge_base WHERE id = ?"
    assert rows(case.database, query, (new,)) == rows(case.database, query, (BETA,))
    query = "SELECT type, data, status, created_at FROM knowledge_item WHERE base_id = ? ORDER BY rowid"
    assert rows(case.database, query, (new,)) == rows(case.library / "catalog.sqlite", query, (BETA,))
    query = "SELECT id FROM knowledge_item WHERE base_id = ? ORDER BY id"
    ids = [item for (item,) in rows(case.database, query, (new,))]
    assert not set(ids) & {item for (item,) in rows(case.library / "catalog.sqlite", query, (BETA,))}
    index, old = (case.folder(base) / ".cherry" / "index.sqlite" for base in (new, BETA))
    assert {item for (item,) in rows(index, "SELECT material_id FROM material")} <= set(ids)
    assert vectors_of(index) == vectors_of(old)
    assert files_of(case.folder(new) / "raw") == files_of(case.folder(BETA) / "raw")
    checked = run("check", case.profile, "--deep", "--base", new, "--json").document["findings"]
    assert [one for one in checked if one["severity"] != "note"] == []
    assert case.install("--base", "beta", "--as-new").document["actions"] == []
    assert run("undo", case.profile, "-y").status == 0
    assert tables(case.profile) == before
    assert not case.folder(new).exists()


def test_a_new_base_that_was_changed_stays_out(case):
    case.install("--base", "beta")
    case.install("--base", "beta", "--as-new")
    new = identity.copied_base_id(BETA)
    changed(case.profile, f"DELETE FROM knowledge_item WHERE base_id = '{new}'")
    done = case.install("--base", "beta", "--as-new")
    (left,) = done.document["left"]
    assert (done.status, left["base"], new in left["reason"]) == (1, BETA, True)


def test_a_path_that_is_an_items_own_id_becomes_the_new_one(case):
    index = case.library / "KnowledgeBase" / ALPHA / ".cherry" / "index.sqlite"
    (item,) = rows(index, "SELECT min(material_id) FROM material")[0]
    with closing(apsw.Connection(str(index))) as db:
        db.execute("UPDATE material SET relative_path = material_id WHERE material_id = ?", (item,))
    case.catalog(f"UPDATE knowledge_item SET data = json_set(data, '$.relativePath', id) WHERE id = '{item}'")
    case.install("--base", "alpha")
    assert case.install("--base", "alpha", "--as-new").status == 0
    new = identity.copied_base_id(ALPHA)
    found = rows(case.folder(new) / ".cherry" / "index.sqlite", "SELECT material_id, relative_path FROM material")
    own = [material for material, path in found if material == path]
    assert own
    query = "SELECT data ->> 'relativePath' FROM knowledge_item WHERE id = ?"
    assert [rows(case.database, query, (one,)) for one in own] == [[(one,)] for one in own]


# --- providers -------------------------------------------------------------------------------------------------------


def without_provider(case: Case) -> None:
    changed(case.profile, "DELETE FROM user_model", "DELETE FROM user_provider")


def test_a_base_whose_provider_is_missing_stays_out_and_both_ways_on_are_named(case):
    without_provider(case)
    done = case.install("--base", "beta")
    (left,) = done.document["left"]
    assert (done.status, left["base"], done.document["actions"]) == (1, BETA, [])
    assert "--recreate-provider acme" in left["reason"]
    assert f"--map-model {MODEL}=PROVIDER::MODEL" in left["reason"]


def test_a_provider_is_made_as_one_of_the_users_own(case):
    without_provider(case)
    before = tables(case.profile)
    done = case.install("--base", "beta", "--recreate-provider", "acme")
    assert (done.status, actions(done)) == (
        0,
        ["copy-base", "back-up-database", "insert-provider", "insert-model", "insert-base"],
    )
    query = "SELECT provider_id, preset, name, api_keys, is_enabled, order_key, created_at FROM user_provider"
    assert rows(case.database, query) == [("acme", None, "Acme", "[]", 0, "a0", NOW_MS)]
    assert rows(case.database, "SELECT id, provider_id FROM user_model") == [(MODEL, "acme")]
    assert errors(case.profile) == set()
    assert case.install("--base", "beta", "--recreate-provider", "acme").document["actions"] == []
    assert run("undo", case.profile, "-y").status == 0
    assert tables(case.profile) == before


def test_a_provider_that_nobody_needs_is_not_made_and_said(case):
    done = case.install("--recreate-provider", "typo")
    assert (done.status, "typo" in done.document["left"][0]["reason"]) == (1, True)
    assert rows(case.database, "SELECT provider_id FROM user_provider") == [("acme",)]


def test_an_equal_folder_of_no_base_is_taken(case):
    shutil.copytree(case.library / "KnowledgeBase" / BETA, case.folder(BETA))
    done = case.install("--base", "beta")
    assert (done.status, actions(done)) == (0, ["back-up-database", "insert-model", "insert-base"])
    assert errors(case.profile) == set()


def test_a_base_that_lost_its_folder_gets_it_again(case):
    case.install()
    shutil.rmtree(case.folder(BETA))
    assert actions(case.install()) == ["copy-base"]
    assert errors(case.profile) == set()


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("ALTER TABLE knowledge_base RENAME COLUMN chunk_strategy TO cutting", "without chunk_strategy"),
        ("DROP TABLE knowledge_item", "no table knowledge_item"),
        ("ALTER TABLE knowledge_item RENAME COLUMN pinned TO fixed", None),
        ("ALTER TABLE knowledge_base DROP COLUMN hybrid_alpha", None),
    ],
)
def test_a_profile_of_another_time(case, statement, what):
    changed(case.profile, statement)
    if what is None:
        assert case.install().status == 0
    else:
        assert what in refused(case, "ProfileUnknown")


def test_a_column_that_needs_a_value_is_refused_by_name(made, tmp_path):
    other = profile(tmp_path / "profile")
    changed(
        other,
        "ALTER TABLE knowledge_base RENAME TO old",
        "CREATE TABLE knowledge_base AS SELECT * FROM old WHERE FALSE",
        "ALTER TABLE knowledge_base ADD COLUMN color TEXT",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(sql, 'color TEXT', 'color TEXT NOT NULL')",
        foreign_keys=False,
    )
    assert "which also requires color" in refused(Case(made, other), "ProfileUnknown")


def test_an_application_with_another_layout(case):
    case.install("--base", "beta")
    with closing(apsw.Connection(str(case.folder(BETA) / ".cherry" / "index.sqlite"))) as db:
        db.execute("UPDATE meta SET schema_version = 3")
    assert "version 3" in refused(case, "ProfileUnknown", "--base", "alpha")


def test_a_rule_of_the_profile_keeps_only_its_base_out(case):
    changed(
        case.profile,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(sql, 'data TEXT NOT NULL',"
        " 'data TEXT NOT NULL CHECK (data NOT LIKE ''%Monday%'')') WHERE name = 'knowledge_item'",
    )
    done = case.install()
    (left,) = done.document["left"]
    assert (done.status, left["base"], left["finding"]) == (1, BETA, "base.status")
    assert errors(case.profile) == set()


def test_a_trigger_of_a_stranger_never_runs(case):
    changed(
        case.profile,
        "CREATE TRIGGER evil BEFORE INSERT ON knowledge_item BEGIN DELETE FROM message; SELECT RAISE(ABORT, 'no'); END",
    )
    before = tables(case.profile)
    assert case.install("--base", "beta").status == 0
    assert tables(case.profile)["message"] == before["message"]
    assert errors(case.profile) == {("schema.foreign-trigger", None)}


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "file"),
        (lambda path: path.unlink(), "base.no-index"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + b"x" * 4000), "file"),
    ],
)
def test_a_damaged_base_of_the_library_stays_out(case, damage: Callable[[Path], object], finding: str):
    damage(case.library / "KnowledgeBase" / BETA / ".cherry" / "index.sqlite")
    done = case.install()
    assert done.status == 1
    assert {(left["base"], left["finding"].startswith(finding)) for left in done.document["left"]} == {(BETA, True)}
    assert not case.folder(BETA).exists()
    assert errors(case.profile) == set()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE knowledge_base SET id = '../{BETA}' WHERE id = '{BETA}'",
        f"UPDATE knowledge_base SET id = x'00ff' WHERE id = '{BETA}'",
        f"UPDATE knowledge_item SET group_id = 'gone' WHERE base_id = '{BETA}'",
        f"UPDATE knowledge_item SET data = x'00' WHERE base_id = '{BETA}'",
        f"UPDATE knowledge_base SET name = CAST(x'ff' AS TEXT) WHERE id = '{BETA}'",
        f"UPDATE knowledge_item SET data = CAST(x'7bff' AS TEXT) WHERE base_id = '{BETA}'",
        "UPDATE knowledge_item SET id = CAST(x'ff' AS TEXT) WHERE rowid = (SELECT max(rowid) FROM knowledge_item)",
    ],
)
def test_damaged_rows_of_the_library_end_in_a_word(case, statement):
    with closing(apsw.Connection(str(case.library / "catalog.sqlite"))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(statement)
    before = tables(case.profile)
    done = case.install()
    if done.status == 1:
        assert done.document["left"]
        assert errors(case.profile) <= errors(case.library)
    else:
        said(done, "SourceUnreadable", REFUSED)
        assert tables(case.profile) == before


def test_a_damaged_profile(case):
    with case.database.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * 4096)
    (case.profile / "cherrystudio.sqlite-wal").unlink()
    refused(case, "SourceUnreadable")


def test_what_is_no_library_or_no_profile(case, tmp_path):
    v1 = small_source(tmp_path / "v1").write()
    assert (
        f"which regraft install does not take; it takes a library, which regraft migrate {v1} --to LIBRARY writes."
        in refused(Case(v1, case.profile), "NotChanged")
    )
    assert "profile folder" in refused(Case(case.library, case.library), "NotChanged")
    unknown = refused(case, "BaseUnknown", "--base", "nobody")
    assert unknown.startswith("nobody: no base has this name or id; known bases: ")
    assert BETA in unknown
    assert said(Case(tmp_path / "nothing", case.profile).install(), "SourceNotFound", REFUSED)
    assert run("install", case.library).status == REFUSED


def test_a_running_application(case):
    start_application(case.profile)
    with untouched(case.profile):
        said(case.install(), "ApplicationOpen", REFUSED)


def test_a_database_that_somebody_writes_to(case, monkeypatch):
    monkeypatch.setattr("regraft.disk.sqlite.BUSY_TIMEOUT_MS", 1)
    with closing(apsw.Connection(str(case.database))) as db:
        db.execute("BEGIN IMMEDIATE")
        said(case.install(), "StoreBusy", REFUSED)
    assert not case.folder("").exists()
    assert not (case.profile / ".regraft").exists() or not ledger.read_runs(case.profile)


def test_a_read_only_database(case, monkeypatch):
    real = sqlite.open_writable

    def writing(path: Path, **options: Any) -> Any:
        if path == case.database:
            raise apsw.ReadOnlyError("attempt to write a readonly database")
        return real(path, **options)

    monkeypatch.setattr(sqlite, "open_writable", writing)
    stopped(case, "StoreNotWritable")


def test_no_room(case, monkeypatch):
    usage = shutil.disk_usage(case.profile)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    stopped(case, "NotEnoughSpace")


def test_no_room_is_told_before_a_base_is_read_whole(case, monkeypatch):
    usage = shutil.disk_usage(case.profile)._replace(free=1 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(BaseSource, "demand_whole", None)
    monkeypatch.setattr(BaseSource, "findings", None)
    stopped(case, "NotEnoughSpace")


@posix
def test_links_in_the_folder_of_a_base_are_not_copied_and_that_is_said(case: Case, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (case.library / "KnowledgeBase" / ALPHA / "raw" / "link.txt").symlink_to(tmp_path / "mine.txt")
    done = case.install("--base", "alpha")
    assert done.status == 1
    assert [(one["base"], one["finding"], one["reason"], one["subject"]) for one in done.document["left"]] == [
        (ALPHA, "raw.missing", "1 link in its folder not copied", "raw/link.txt")
    ]
    there = {path.name for path in case.folder(ALPHA).rglob("*")}
    assert there == {path.name for path in (case.library / "KnowledgeBase" / ALPHA).rglob("*")} - {"link.txt"}


def test_a_library_that_is_written_to_meanwhile(case, monkeypatch):
    real = execution.back_up_database

    def write_too(path: Path, new: Path) -> None:
        real(path, new)
        case.catalog("UPDATE knowledge_item SET created_at = 1")

    monkeypatch.setattr(execution, "back_up_database", write_too)
    before = tables(case.profile)
    assert case.install().status in (REFUSED, STOPPED)
    assert tables(case.profile) == before
    monkeypatch.undo()
    assert case.install().status == 0


def test_a_copy_that_differs_is_not_used(case, monkeypatch):
    real = durable.sync_tree

    def flush(folder: Path) -> None:
        real(folder)
        for path in folder.rglob("*.sqlite"):
            path.write_bytes(path.read_bytes()[:-1] + b"?")

    monkeypatch.setattr(durable, "sync_tree", flush)
    before = tables(case.profile)
    said(case.install(), "CopyDiffers", STOPPED)
    assert tables(case.profile) == before
    assert not case.folder("").exists()


# --- kills -----------------------------------------------------------------------------------------------------------


def one_base(place: Path) -> Path:
    source = Source(place / "v1")
    source.base("beta", [source.upload("f2", "same.txt", b"two"), item("rota", "note", "who comes on Monday")])
    write_vectors(source.vectors("beta"), {"item-f2": 3, "rota": 2})
    assert migrate(source.write(), place / "library").status == 0
    return place / "library"


def wire(patch: pytest.MonkeyPatch, spring: Callable[[], object], at: int) -> Tripwire:
    found = Tripwire(patch, spring, at)
    found.watch(os, "mkdir", "replace", "rmdir", "unlink").watch(base_copy, "_copy_bytes").watch(
        execution, "back_up_database"
    )
    return found.watch(ledger.Ledger, "begin_run", "end_run").watch(ledger.ChangeLog, "intend", "set_state")


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_killed_at_every_step_it_leaves_old_or_new_and_the_next_run_finishes(tmp_path, monkeypatch, part):
    library = one_base(tmp_path)
    start = profile(tmp_path / "start")
    before, new = tables(start), files_of(library / "KnowledgeBase" / BETA)
    after: dict[str, Any] = {}

    def outcome(place: Path) -> tuple[bool, bool]:
        """Tell whether the folder and the rows are the new ones; each is whole."""
        found = tables(place)
        folder = place / "Data" / "KnowledgeBase" / BETA
        assert found in (before, after)
        assert not folder.exists() or files_of(folder) == new
        return folder.exists(), found == after

    # Counted the second time: what a process does once, such as trying whether a folder can be written, is not repeated
    # in the processes that are killed.
    for time in ("first", "second"):
        whole = shutil.copytree(start, tmp_path / time)
        with monkeypatch.context() as patch:
            counter = wire(patch, lambda: None, 10**9)
            assert Case(library, whole).install().status == 0
    after = tables(whole)
    steps = len(counter.steps)
    assert steps > 15
    for at in range(1 + part, steps + 1, 2):
        place = shutil.copytree(start, tmp_path / f"killed-{at}")
        case = Case(library, place)
        with monkeypatch.context() as patch:
            tripped = wire(patch, die, at)
            assert forked(case.install) == KILLED, tripped.where
        folder, inserted = outcome(place)
        assert folder or not inserted
        assert case.install().status == 0
        assert outcome(place) == (True, True)
        assert not (place / ".regraft" / "work").exists()
        # Taking it back costs as much as all of the rest.
        while at % 5 == 0 and any(
            one["undo"]["state"] == "possible" for one in run("history", place, "--json").document["runs"]
        ):
            assert run("undo", place, "-y").status == 0
            assert at % 5 or outcome(place) != (True, True)
        shutil.rmtree(place)


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_disk_that_fills_up(case, tmp_path, share):
    before = tables(case.profile)
    other = shutil.copytree(case.profile, tmp_path / "other")
    with on_disk(Disk()) as disk:
        assert Case(case.library, other).install("--dry-run").status == 0
        planned = disk.writes
    with on_disk(Disk()) as disk:
        assert Case(case.library, other).install().status == 0
    with on_disk(FullDisk(planned + int(share * (disk.writes - planned)))):
        done = case.install()
    assert done.status == STOPPED, done.stderr
    assert tables(case.profile) in (before, tables(other))
    assert case.install().status == 0
    assert tables(case.profile) == tables(other)


# --- the application's own profile -----------------------------------------------------------------------------------


@golden
def test_the_sample_in_the_applications_own_profile(tmp_path):
    library = tmp_path / "library"
    sample = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
    run("migrate", sample, "--to", library, "--now", NOW, "-q")
    place = tmp_path / "profile"
    shutil.copytree(GOLDEN / "profile_upgraded", place, copy_function=shutil.copyfile)
    for path in (place, *place.rglob("*")):
        path.chmod(0o700)
    before = tables(place)
    case = Case(library, place)
    mapped = ("--map-model", "silicon::BAAI/bge-m3=openai::text-embedding-3-small")
    done = case.install(*mapped)
    assert done.status == 1
    assert [left["reason"] for left in done.document["left"]] == [
        "its rerank model silicon::bge-reranker-v2-m3 does not exist in the profile, so it was removed from the base"
    ]
    assert rows(case.database, "SELECT count(*) FROM knowledge_base") == [(5,)]
    assert rows(case.database, "PRAGMA foreign_key_check") == []
    assert errors(place) <= errors(library) | {one for one in errors(place) if one[0] == "base.model"}
    assert case.install(*mapped).document["actions"] == []
    assert run("undo", place, "-y").status == 0
    assert tables(place) == before


# --- names -----------------------------------------------------------------------------------------------------


def names(case: Case) -> dict[str, str]:
    with closing(sqlite3.connect(f"file:{case.database}?mode=ro", uri=True)) as db:
        return dict(db.execute("SELECT id, name FROM knowledge_base"))


def test_a_base_is_installed_under_another_name(case: Case) -> None:
    done = case.install("--base", ALPHA, "--name", "  手册 2  ")
    assert (done.status, names(case)[ALPHA]) == (0, "手册 2")
    before = names(case)
    copy = case.install("--base", ALPHA, "--as-new", "--name", "手册 3")
    assert copy.status == 0
    new = names(case)
    assert sorted(new.values()) == sorted([*before.values(), "手册 3"])
    assert run("undo", case.profile).status == 0
    assert names(case) == before


def test_the_api_installs_under_another_name(case: Case) -> None:
    api.install(case.library, case.profile, bases=[BETA], name="Beta of Ann")
    assert names(case)[BETA] == "Beta of Ann"


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--name", "New"], "--name applies to a single base"), (["--base", ALPHA, "--name", " "], "cannot be blank")],
)
def test_a_name_that_cannot_be_given(words: list[str], message: str, case: Case) -> None:
    before = files_of(case.profile)
    done = run("install", case.library, "--profile", case.profile, *words)
    assert files_of(case.profile) == before
    assert (done.status, message in done.stderr) == (2, True)


def test_a_clash_of_ids_has_its_own_page(case: Case) -> None:
    case.install("--base", ALPHA)
    with closing(sqlite3.connect(case.database)) as db:
        db.execute("DELETE FROM knowledge_item WHERE rowid = (SELECT max(rowid) FROM knowledge_item)")
        db.commit()
    (left,) = case.install("--base", ALPHA).document["left"]
    assert (left["base"], left["finding"]) == (ALPHA, "base.exists")
    assert "--as-new" in run("explain", "base.exists").stdout
