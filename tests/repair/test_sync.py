"""``regraft sync``: a base follows files that were changed, renamed, added or deleted, and pays for new texts only."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import lacking
import pytest
import synced
from fault_server import FaultServer, vector_of
from faults import fails, posix, state_of, untouched
from harness import Outcome, command_words, run
from lacking import KB
from planted_v2 import index, run_sql
from synced import place, text_of
from toys import killed_at_or_before, quick_disk, steps_of

import regraft
from regraft import identity
from regraft.errors import Declined
from regraft.formats.cherry_v2.index.store import IndexStore
from regraft.report.progress import SilentProgress
from regraft.testing import index_problems
from repair.cherry_v2.item_texts import NoText
from repair.cherry_v2.sync import base as sync_base
from repair.cherry_v2.sync import sources
from repair.cherry_v2.sync.base import has_same_letters
from repair.cherry_v2.sync.sources import parse_extractors, run_extractor


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library whose items have no file on this computer: their rows are made notes of."""
    store = lacking.library(tmp_path_factory.mktemp("plain"))
    run_sql(store / "catalog.sqlite", "UPDATE knowledge_item SET status = 'idle' WHERE type = 'file'")
    return store


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as found:
        yield found


@pytest.fixture
def store(plain: Path, tmp_path: Path) -> Path:
    return shutil.copytree(plain, tmp_path / "library")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return synced.write_files(tmp_path / "files", 6)


def sync(store: Path, *more: object, base: str = KB) -> Outcome:
    return run("sync", store, "--base", base, "--json", *more)


def followed(store: Path, files: Path) -> Path:
    """Let the base follow a folder, without vectors."""
    done = sync(store, "--source", files, "--no-embed")
    assert done.status == 1, done  # texts without a vector are left
    return store


def embedding(store: Path, server: FaultServer) -> tuple[object, ...]:
    return ("--config", lacking.configured(store.parent / "regraft.yaml", server), "--no-probe")


class Sent:
    """The texts that a server was sent since this was made."""

    def __init__(self, server: FaultServer) -> None:
        self._server, self._before = server, len(server.texts)

    @property
    def texts(self) -> list[str]:
        return self._server.texts[self._before :]


def actions(done: Outcome) -> dict[str, int]:
    counts: dict[str, int] = {}
    for action in done.document["actions"]:
        counts[action["action"]] = counts.get(action["action"], 0) + 1
    return counts


def left(done: Outcome) -> dict[str, str]:
    return {one["finding"]: one["reason"] for one in done.document["left"]}


def query(path: Path, sql: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql, values).fetchall()


def items(store: Path) -> dict[str, tuple[str, str]]:
    """Return id and path below raw/ of the followed files, by source."""
    rows = query(
        store / "catalog.sqlite", "SELECT id, data FROM knowledge_item WHERE type = 'file' AND group_id IS NOT NULL"
    )
    found = {key: json.loads(data) for key, data in rows}
    return {data["source"]: (key, data["relativePath"]) for key, data in found.items()}


def bodies(store: Path, material: str) -> list[str]:
    sql = (
        "SELECT t.text FROM search_unit u JOIN search_text t ON t.target_id = u.unit_id"
        " WHERE u.material_id = ? ORDER BY u.unit_index"
    )
    return [text for (text,) in query(index(store), sql, material)]


def raw(store: Path) -> Path:
    return store / "KnowledgeBase" / KB / "raw"


def copies(store: Path) -> dict[str, bytes]:
    """Return the copies of the files of the folder."""
    found = (raw(store) / "files").rglob("*.md")
    return {path.relative_to(raw(store)).as_posix(): path.read_bytes() for path in found}


def assert_whole(store: Path, folder: Path) -> None:
    """Compare items, copies and index with the files, and the index with its own rules, by plain SQL."""
    there = {str(path): path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in (".md", ".txt")}
    assert set(items(store)) == set(there)
    for source, (key, path) in items(store).items():
        content = there[source].read_bytes()
        assert (raw(store) / path).read_bytes() == content
        assert query(
            index(store),
            "SELECT m.relative_path, CAST(c.text AS BLOB) FROM material m"
            " JOIN content c ON c.content_hash = m.current_content_hash WHERE material_id = ?",
            key,
        ) == [(path, content)]
    # Texts without a vector wait for backfill.
    assert [one for one in index_problems(index(store), KB) if "without an embedding" not in one] == []
    with (
        closing(sqlite3.connect(f"file:{index(store)}?mode=ro", uri=True)) as db,
        closing(sqlite3.connect(":memory:")) as copy,
    ):
        db.backup(copy)
        copy.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES ('integrity-check', 1)")
        assert copy.execute("PRAGMA foreign_key_check").fetchall() == []
    found = {one["name"] for one in run("check", store, "--deep", "--json").document["findings"]}
    assert found <= {"embedding.missing", "item.source-missing"}


def assert_indexes_again(store: Path) -> None:
    """Index every followed file again, as the application does, without any new vector."""
    with IndexStore(index(store), KB) as opened:
        for key, path in items(store).values():
            units = opened.list_units(key)
            text = (raw(store) / path).read_text(encoding="utf-8")
            assert opened.existing_embeddings(unit.embedding_text_hash for unit in units) == {
                unit.embedding_text_hash for unit in units
            }
            opened.rebuild_material(key, path, text, [(unit.char_start, unit.char_end) for unit in units], {}, 1)
            assert opened.list_units(key) == units


# --- what is sent ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("count", "edited", "renamed", "deleted"),
    [(40, 4, 6, 2), pytest.param(1000, 10, 20, 5, marks=pytest.mark.slow)],
)
def test_exactly_the_changed_units_are_sent(
    store: Path, server: FaultServer, tmp_path: Path, count: int, edited: int, renamed: int, deleted: int
) -> None:
    files = synced.write_files(tmp_path / "files", count)
    more = embedding(store, server)
    first = sync(store, "--source", files, *more)
    assert (first.status, first.document["scopes"][0]["newly_ready"]) == (0, count * synced.PARAGRAPHS)
    before, vectors = items(store), dict(query(index(store), "SELECT embedding_text_hash, vector_blob FROM embedding"))
    old_names, new_names = [], []
    for number in range(edited):
        place(files, number).write_text(text_of(number, "Clause"), encoding="utf-8", newline="\n")
    for number in range(edited, edited + renamed):
        old_names.append(str(place(files, number)))
        new_names.append(str(place(files, number).rename(files / f"renamed {number}.md")))
    gone = [place(files, number) for number in range(edited + renamed, edited + renamed + deleted)]
    for path in gone:
        path.unlink()

    sent = Sent(server)
    second = sync(store, *more)
    assert second.status == 1
    assert sorted(map(str.strip, sent.texts)) == sorted(
        text.strip() for number in range(edited) for text in text_of(number, "Clause").split("\n\n") if "Clause" in text
    )
    assert "--delete" in left(second)["source.gone"]
    assert [one["count"] for one in second.document["left"] if one["finding"] == "source.gone"] == [deleted]
    after = items(store)
    assert [after[name][0] for name in new_names] == [before[name][0] for name in old_names]
    assert {after[str(path)] for path in gone} == {before[str(path)] for path in gone}

    # A text that is still there has the bytes of its vector.
    now = dict(query(index(store), "SELECT embedding_text_hash, vector_blob FROM embedding"))
    assert len(now) == len(vectors)
    assert {key for key in now if key not in vectors} == {
        key for (key,) in query(index(store), "SELECT embedding_text_hash FROM search_text WHERE text LIKE '%Clause%'")
    }
    assert all(now[key] == vector for key, vector in vectors.items() if key in now)

    sent = Sent(server)
    third = sync(store, "--delete", *more)
    assert (third.status, sent.texts) == (0, [])
    with untouched(store, files):
        fourth = sync(store, *more)
    assert (fourth.status, fourth.document["actions"], fourth.document["undo"], sent.texts) == (0, [], None, [])
    assert_whole(store, files)
    assert_indexes_again(store)
    found = run("search", store, "Clause 2 of document 1.", "--mode", "bm25", "--base", KB, "--json").document["hits"]
    assert found[0]["text"].startswith("Clause 2 of document 1.")


@pytest.mark.thorough
def test_without_an_embedder_new_texts_are_left_to_backfill(store: Path, files: Path, server: FaultServer) -> None:
    done = sync(store, "--source", files)
    assert done.status == 1
    [lack] = [one for one in done.document["left"] if one["finding"] == "embedding.missing"]
    assert lack["count"] == 6 * synced.PARAGRAPHS
    assert command_words(lack["repair"]) == ["regraft", "backfill", str(store), "--base", KB]
    assert_whole(store, files)
    filled = run("backfill", store, "--base", KB, "--json", *embedding(store, server))
    assert filled.status == 0
    assert len(server.texts) == 6 * synced.PARAGRAPHS
    place(files, 0).write_text(text_of(0, "Clause"), encoding="utf-8", newline="\n")
    sent = Sent(server)
    assert sync(store, *embedding(store, server), "--no-embed").status == 1
    assert sent.texts == []


@pytest.mark.thorough
def test_vectors_of_another_store_are_taken_first(
    store: Path, files: Path, server: FaultServer, tmp_path: Path
) -> None:
    other = shutil.copytree(store, tmp_path / "other" / "library")
    assert sync(other, "--source", files, *embedding(other, server)).status == 0
    sent = Sent(server)
    done = sync(store, "--source", files, *embedding(store, server), "--reuse", other)
    assert (done.status, sent.texts) == (0, [])
    assert query(index(store), "SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY 1") == query(
        index(other), "SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY 1"
    )
    assert_whole(store, files)


@pytest.mark.thorough
def test_texts_that_change_places_are_not_paid_for_again(store: Path, files: Path, server: FaultServer) -> None:
    more = embedding(store, server)
    assert sync(store, "--source", files, *more).status == 0
    one, other = place(files, 0).read_bytes(), place(files, 1).read_bytes()
    place(files, 0).write_bytes(other)
    place(files, 1).write_bytes(one)
    sent = Sent(server)
    done = sync(store, *more)
    assert (done.status, sent.texts, actions(done)["update-text"]) == (0, [], 2)
    assert_whole(store, files)


@posix
@pytest.mark.parametrize("share", [0.1, *(pytest.param(one / 10, marks=pytest.mark.slow) for one in range(2, 11))])
def test_after_a_kill_nothing_is_paid_for_again(plain: Path, tmp_path: Path, server: FaultServer, share: float) -> None:
    files = synced.write_files(tmp_path / "files", 4)
    ready = shutil.copytree(plain, tmp_path / "ready")
    more = embedding(ready, server)
    assert sync(ready, "--source", files, *more).status == 0
    synced.edit(files)
    store = tmp_path / "library"

    paid = 0

    def work(store: Path = store) -> Outcome:
        return sync(store, "--delete", *more, "--now", "2026-11-21T12:00:00.000Z")

    def fresh() -> Path:
        nonlocal paid
        shutil.rmtree(store, ignore_errors=True)
        paid = len(server.paid)
        return Path(shutil.copytree(ready, store))

    with quick_disk() as disk:
        fresh()
        steps = steps_of(disk, work)
        killed_at_or_before(disk, min(int(share * len(steps)), len(steps) - 2), fresh, work)
        again = work()
    assert again.status == 0, again
    sent = server.paid[paid:]
    # A request in flight at the moment of the kill may be lost: it is the only one.
    assert len(sent) <= len(set(sent)) + 1
    assert_whole(store, files)
    with untouched(store):
        assert work().document["actions"] == []


# --- what counts as changed ------------------------------------------------------------------------------------------


def test_files_without_a_copy_are_compared_with_the_index(store: Path, files: Path) -> None:
    """v1 never copied the files of folders, and joined their lines before it cut them."""
    followed(store, files)
    shutil.rmtree(raw(store) / "files")
    key, _ = items(store)[str(place(files, 0))]
    run_sql(
        index(store),
        f"UPDATE search_text SET text = replace(text, '. ', '.  ') WHERE target_id IN"
        f" (SELECT unit_id FROM search_unit WHERE material_id = '{key}')",
        f"UPDATE material SET current_content_hash = current_content_hash WHERE material_id = '{key}'",
    )
    with untouched(store):
        assert actions(sync(store, "--no-embed")) == {}
    place(files, 1).rename(files / "renamed.md")
    place(files, 2).write_text(text_of(2, "Clause"), encoding="utf-8", newline="\n")
    done = sync(store, "--no-embed")
    assert actions(done) == {
        "update-text": 1,
        "update-paths": 1,
        "copy-files": 1,
        "rename-item": 1,
        "update-items": 1,
    }
    assert list(copies(store)) == [f"files/{place(files, 2).name}"]


@pytest.mark.parametrize(
    ("text", "parts", "same"),
    [
        ("one two three", ["one two", "two three"], True),
        ("one\n\ntwo,  three!", ["one two three"], True),
        ("# one_two", ["one two"], True),
        ("one two three", ["one two"], False),
        ("one two three", ["two three"], False),
        ("one two three", ["one", "three"], False),
        ("one two three", ["three", "one two"], False),
        ("one two four", ["one two", "three"], False),
        ("菜园守则 一", ["菜园", "园守则一"], True),
        ("", [], True),
    ],
)
def test_overlapping_bodies_prove_the_letters_of_a_text(text: str, parts: list[str], same: bool) -> None:
    assert has_same_letters(text, parts) is same


def test_a_copy_of_other_bytes_and_the_same_text_only_replaces_the_copy(store: Path, files: Path) -> None:
    followed(store, files)
    place(files, 0).write_bytes(b"\xef\xbb\xbf" + place(files, 0).read_bytes())
    before = query(index(store), "SELECT * FROM search_unit")
    done = sync(store, "--no-embed")
    assert actions(done) == {"copy-files": 1, "update-items": 1}
    assert query(index(store), "SELECT * FROM search_unit") == before
    assert copies(store)[f"files/{place(files, 0).name}"].startswith(b"\xef\xbb\xbf")


# --- moved and missing folders ---------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_moved_folder_keeps_its_items(store: Path, files: Path, tmp_path: Path) -> None:
    followed(store, files)
    before = items(store)
    moved = tmp_path / "elsewhere" / "texts"
    moved.parent.mkdir()
    files.rename(moved)
    stays = sync(store, "--no-embed", "--delete")
    assert (stays.status, actions(stays)) == (1, {})
    assert "does not exist" in left(stays)["source.unreachable"]
    done = sync(store, "--no-embed", "--moved", f"{files}={moved}")
    assert (done.status, actions(done)) == (0, {"move-sources": 1})
    assert {Path(source).relative_to(moved): one for source, one in items(store).items()} == {
        Path(source).relative_to(files): one for source, one in before.items()
    }
    assert_whole(store, moved)
    with untouched(store):
        again = sync(store, "--no-embed", "--moved", f"{files}={moved}")
    assert (again.status, actions(again)) == (0, {})


def test_a_folder_of_the_same_name_is_the_one_that_is_missing(store: Path, files: Path, tmp_path: Path) -> None:
    followed(store, files)
    moved = tmp_path / "elsewhere" / "files"
    shutil.copytree(files, moved)
    shutil.rmtree(files)
    done = sync(store, "--no-embed", "--source", moved)
    assert (done.status, actions(done)) == (0, {"move-sources": 1})
    assert_whole(store, moved)


@pytest.mark.skipif(os.name == "nt", reason="there, it is a path of this computer")
@pytest.mark.thorough
def test_a_path_of_windows_is_named_and_found_where_it_is_now(store: Path, files: Path) -> None:
    followed(store, files)
    rows = query(store / "catalog.sqlite", "SELECT id, data FROM knowledge_item WHERE data LIKE ?", f'%"{files}%')
    for key, data in rows:
        found = json.loads(data)
        found["source"] = "C:\\Texts" + found["source"].removeprefix(str(files)).replace("/", "\\")
        text = json.dumps(found).replace("'", "''")
        run_sql(store / "catalog.sqlite", f"UPDATE knowledge_item SET data = '{text}' WHERE id = '{key}'")
    with untouched(store):
        named = sync(store, "--no-embed", "--delete")
    assert (named.status, actions(named)) == (1, {})
    assert "another operating system" in left(named)["source.unreachable"]
    assert sync(store, "--no-embed", "--moved", f"c:\\texts={files}").status == 0
    assert_whole(store, files)


@pytest.mark.thorough
@pytest.mark.parametrize("is_there", [True, False])
def test_an_empty_or_missing_folder_deletes_nothing(store: Path, files: Path, is_there: bool) -> None:
    followed(store, files)
    shutil.rmtree(files)
    if is_there:
        files.mkdir()
    with untouched(store):
        done = sync(store, "--delete", "--no-embed")
    assert (done.status, actions(done)) == (1, {})
    assert ("may not be mounted" if is_there else "does not exist") in left(done)["source.unreachable"]


def test_a_folder_with_none_of_its_files_may_be_another_one(store: Path, files: Path) -> None:
    followed(store, files)
    shutil.rmtree(files)
    files.mkdir()
    (files / "other.png").write_bytes(b"no text")
    with untouched(store):
        done = sync(store, "--delete", "--no-embed")
    assert (done.status, actions(done)) == (1, {})
    assert "none of its 6 files exists" in left(done)["source.unreachable"]


@pytest.mark.thorough
def test_a_deleted_file_goes_to_the_trash_and_comes_back(store: Path, files: Path) -> None:
    followed(store, files)
    content = place(files, 0).read_bytes()
    place(files, 0).unlink()
    before = state_of(raw(store))
    named = sync(store, "--no-embed")
    assert (named.status, actions(named)) == (1, {})
    assert str(place(files, 0)) in left(named)["source.gone"]
    done = sync(store, "--no-embed", "--delete")
    assert (done.status, actions(done)) == (0, {"delete-texts": 1, "remove-copy": 1, "delete-items": 1})
    assert_whole(store, files)
    [trashed] = [path for path in (store / ".regraft" / "trash").rglob("*.md") if path.is_file()]
    assert trashed.read_bytes() == content
    assert run("undo", store, "--json").status == 0
    assert [(name, size, content) for name, size, _, content in state_of(raw(store))] == [
        (name, size, content) for name, size, _, content in before
    ]


# --- untrusted sources -----------------------------------------------------------------------------------------------


def put_source(store: Path, source: str) -> None:
    """Give the first item of the folder another source."""
    [(key, data), *_] = query(
        store / "catalog.sqlite", "SELECT id, data FROM knowledge_item WHERE type = 'file' AND status = 'completed'"
    )
    # Its content must not be found elsewhere.
    Path(json.loads(data)["source"]).unlink(missing_ok=True)
    text = json.dumps({**json.loads(data), "source": source}).replace("'", "''")
    run_sql(store / "catalog.sqlite", f"UPDATE knowledge_item SET data = '{text}', group_id = NULL WHERE id = '{key}'")


@pytest.mark.thorough
@posix
@pytest.mark.parametrize("kind", ["link", "link to a folder", "pipe", "folder"])
def test_what_is_no_file_is_not_read(store: Path, files: Path, tmp_path: Path, kind: str) -> None:
    followed(store, files)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.md").write_text("the secret")
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "other.md").write_text("other")
    path = odd / "odd.md"
    match kind:
        case "link":
            path.symlink_to(secret / "key.md")
        case "link to a folder":
            path.symlink_to(secret)
        case "pipe":
            os.mkfifo(path)
        case _:
            path.mkdir()
    put_source(store, str(path))
    with untouched(store):
        done = sync(store, "--no-embed", "--delete")
    assert ("it is a link" if "link" in kind else "it is not a file") in left(done)["source.unreachable"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "finding", "reason"),
    [
        ("/tmp/a\0b.md", "source.unreachable", "NUL"),
        ("/tmp/../etc/passwd", "source.unreachable", "the path has .."),
        ("\ud800/a.md", "source.unreachable", "not valid Unicode"),
        ("~/a.md", "source.skipped", "no path of the file"),
        ("The keeper r...then rests.", "source.skipped", "no path of the file"),
        ("/nowhere/at all/a.md", "source.unreachable", "the folder does not exist"),
    ],
)
@posix
def test_paths_that_are_none_are_named(store: Path, files: Path, source: str, finding: str, reason: str) -> None:
    followed(store, files)
    put_source(store, source)
    done = sync(store, "--no-embed", "--delete", "--dry-run")
    assert reason in left(done)[finding]
    assert "delete-items" not in actions(done)


@pytest.mark.thorough
def test_hidden_files_and_the_store_itself_are_not_read(
    store: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed(store, files)
    secret = tmp_path / ".ssh" / "id"
    secret.parent.mkdir()
    secret.write_text("the secret")
    put_source(store, str(secret))
    done = sync(store, "--no-embed")
    assert "it is hidden" in left(done)["source.skipped"]
    put_source(store, str(store / "report.json"))
    assert "inside the store" in left(sync(store, "--no-embed"))["source.skipped"]
    refused = sync(store, "--no-embed", "--source", store / "KnowledgeBase")
    assert refused.status == 2
    assert "it is inside the store" in refused.document["error"]["message"]
    # A folder around the store is followed without it.
    (tmp_path / "beside.md").write_text("beside the store")
    done = sync(store, "--no-embed", "--source", tmp_path)
    assert str(tmp_path / "beside.md") in items(store)
    assert not [source for source in items(store) if source.startswith(str(store))]


@pytest.mark.thorough
@posix
def test_a_home_folder_of_a_catalog_is_not_followed(
    store: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed(store, files)
    (tmp_path / "private.md").write_text("private")
    monkeypatch.setenv("HOME", str(tmp_path))
    run_sql(
        store / "catalog.sqlite",
        f"UPDATE knowledge_item SET data = json_set(data, '$.source', '{tmp_path}') WHERE type = 'directory'",
    )
    with untouched(store):
        done = sync(store, "--no-embed")
    assert "whole disk or home folder" in left(done)["source.unreachable"]
    assert sync(store, "--no-embed", "--source", tmp_path).status == 1
    assert str(tmp_path / "private.md") in items(store)


@pytest.mark.thorough
@pytest.mark.parametrize("prefix", ["../.cherry", "/tmp/files", ".cherry", "", "a/../../b"])
def test_a_folder_with_an_unsafe_path_gets_no_new_files(store: Path, files: Path, prefix: str) -> None:
    followed(store, files)
    run_sql(
        store / "catalog.sqlite",
        f"UPDATE knowledge_item SET data = json_set(data, '$.relativePath', '{prefix}') WHERE type = 'directory'",
    )
    (files / "index.sqlite").write_text("new")
    place(files, 0).rename(files / "renamed.md")
    with untouched(store):
        done = sync(store, "--no-embed")
    assert "no valid path in raw/" in left(done)["source.unreachable"]


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["../.cherry/index.sqlite", "/etc/passwd", "files/../../x"])
def test_an_item_with_an_unsafe_path_is_left(store: Path, files: Path, path: str) -> None:
    followed(store, files)
    source = place(files, 0)
    run_sql(
        store / "catalog.sqlite",
        f"UPDATE knowledge_item SET data = json_set(data, '$.relativePath', '{path}')"
        f" WHERE data ->> '$.source' = '{source}'",
    )
    source.write_text("changed")
    with untouched(store):
        changed = sync(store, "--no-embed")
    assert "not valid" in left(changed)["source.skipped"]
    source.unlink()
    assert actions(sync(store, "--no-embed", "--delete")) == {"delete-texts": 1, "delete-items": 1}


@posix
def test_links_hidden_and_odd_files_of_a_folder_are_not_added(store: Path, files: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("the secret")
    (files / "link.md").symlink_to(outside / "secret.md")
    (files / "folder").symlink_to(outside)
    (files / "loop").symlink_to(files)
    (files / ".hidden.md").write_text("hidden")
    (files / ".git").mkdir()
    (files / ".git" / "config.md").write_text("hidden")
    os.mkfifo(files / "pipe.md")
    (files / "binary.dat").write_bytes(bytes(range(256)) * 4)
    (files / "blank.txt").write_text(" \n")
    os.close(os.open(os.fsencode(files) + b"/\xff.md", os.O_CREAT | os.O_WRONLY))
    followed(store, files)
    assert set(items(store)) == {str(place(files, number)) for number in range(6)}
    assert not [body for (body,) in query(index(store), "SELECT text FROM search_text") if "secret" in body]


@pytest.mark.skipif(os.name != "nt", reason="only Windows has an attribute of hidden files")
def test_files_and_folders_that_windows_hides_are_not_added(store: Path, files: Path) -> None:
    (files / "desktop.ini").write_text("[.ShellClassInfo]")
    (files / "$RECYCLE.BIN").mkdir()
    (files / "$RECYCLE.BIN" / "deleted.md").write_text("deleted")
    for name in ("desktop.ini", "$RECYCLE.BIN"):
        subprocess.run(["attrib", "+h", str(files / name)], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    followed(store, files)
    assert set(items(store)) == {str(place(files, number)) for number in range(6)}
    assert not [body for (body,) in query(index(store), "SELECT text FROM search_text") if "deleted" in body]


@pytest.mark.thorough
def test_a_guessed_encoding_is_named(store: Path, files: Path) -> None:
    text = "Сегодня хорошая погода, а завтра дождь. Смотритель маяка записывает её каждый день.\n"
    (files / "old.txt").write_bytes(text.encode("cp1251"))
    done = sync(store, "--source", files, "--no-embed")
    assert actions(done)["guess-encoding"] == 1
    key, _ = items(store)[str(files / "old.txt")]
    assert bodies(store, key) == [text.strip()]


def test_a_huge_file_is_named_and_not_read(store: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_base, "LARGEST_FILE", 20_000)
    with (files / "huge.md").open("wb") as file:
        file.truncate(30_000)
    done = sync(store, "--source", files, "--no-embed")
    assert any("larger than" in one["reason"] and "huge.md" in one["reason"] for one in done.document["left"])
    assert str(files / "huge.md") not in items(store)


def test_a_folder_of_too_many_files_adds_none(store: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed(store, files)
    (files / "new.md").write_text("new")
    place(files, 0).write_text(text_of(0, "Clause"), encoding="utf-8", newline="\n")
    monkeypatch.setattr(sources, "MOST_FILES", 3)
    done = sync(store, "--no-embed")
    assert "more than 3 files" in left(done)["source.unreachable"]
    assert actions(done) == {"update-text": 1, "copy-files": 1, "update-items": 1}


def test_a_new_folder_of_too_many_files_is_refused(store: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed(store, files)
    more = synced.write_files(files.with_name("more"), 6)
    monkeypatch.setattr(sources, "MOST_FILES", 3)
    with untouched(store, more):
        refused = sync(store, "--source", more, "--no-embed")
    assert (refused.status, refused.document["error"]["code"]) == (2, "WrongUsage")
    assert f"--source {more}: it has more than 3 files" in refused.document["error"]["message"]


@pytest.mark.thorough
def test_units_that_are_cut_at_other_places_are_explained(store: Path, files: Path) -> None:
    followed(store, files)
    path = place(files, 0)
    [(key, _)] = [one for source, one in items(store).items() if source == str(path)]
    content = path.read_text(encoding="utf-8")
    # As another program might have cut it: at every twentieth character.
    with IndexStore(index(store), KB) as opened:
        spans = [(start, min(start + 20, len(content))) for start in range(0, len(content), 20)]
        texts = {content[start:end] for start, end in spans}
        given = {identity.text_hash(text): vector_of(text) for text in texts}
        opened.rebuild_material(key, items(store)[str(path)][1], content, spans, given, 1)
    path.write_text(content + "\nOne more line.\n", encoding="utf-8", newline="\n")
    done = sync(store, "--no-embed", "--dry-run")
    [found] = [one for one in done.document["actions"] if one["action"] == "recut-text"]
    assert f"of {path} are still in the file, but were cut by another program" in found["message"]
    assert found["count"] > 1
    # What regraft has cut itself is not explained.
    assert sync(store, "--no-embed").status == 1
    path.write_text(content + "\nTwo more lines.\n", encoding="utf-8", newline="\n")
    assert "recut-text" not in actions(sync(store, "--no-embed", "--dry-run"))


def test_check_does_not_advise_the_migrated_backup_for_texts_that_were_added_since(store: Path, files: Path) -> None:
    followed(store, files)
    [finding] = [
        one for one in run("check", store, "--json").document["findings"] if one["name"] == "embedding.missing"
    ]
    assert finding["repair"] == f"regraft backfill {store} --base {KB}"
    assert "copy" not in finding["message"]


# --- documents -------------------------------------------------------------------------------------------------------


@pytest.fixture
def extractor(tmp_path: Path) -> str:
    """Return a command that prints what a file holds, and counts how often it runs."""
    script = tmp_path / "extract.py"
    script.write_text(
        "import pathlib, sys\n"
        "with open(pathlib.Path(__file__).with_name('runs'), 'a') as runs: runs.write('x')\n"
        "sys.stdout.buffer.write(b'text of ' + pathlib.Path(sys.argv[1]).read_bytes())\n"
    )
    words = [sys.executable, str(script), "{}"]
    return shlex.join(words) if os.name != "nt" else subprocess.list2cmdline(words)


@pytest.mark.thorough
def test_documents_are_read_with_the_command_of_the_user(
    store: Path, files: Path, tmp_path: Path, extractor: str
) -> None:
    (files / "report.pdf").write_bytes(b"the report")
    done = sync(store, "--source", files, "--no-embed")
    assert "--extractor" in left(done)["source.unread"]
    assert str(files / "report.pdf") not in items(store)
    assert sync(store, "--no-embed", "--extractor", extractor).status == 1
    key, path = items(store)[str(files / "report.pdf")]
    assert (bodies(store, key), (raw(store) / path).read_bytes()) == (["text of the report"], b"the report")
    assert (tmp_path / "runs").read_text("utf-8") == "x"
    with untouched(store):
        assert actions(sync(store, "--no-embed", "--extractor", extractor)) == {}
    (files / "report.pdf").write_bytes(b"the new report")
    with untouched(store):
        without = sync(store, "--no-embed")
    assert "changed, but only the application reads" in left(without)["source.unread"]
    assert actions(sync(store, "--no-embed", "--extractor", f".pdf={extractor}"))["update-text"] == 1
    assert bodies(store, key) == ["text of the new report"]
    (files / "report.pdf").rename(files / "renamed.pdf")
    assert "rename-item" in actions(sync(store, "--no-embed"))
    assert items(store)[str(files / "renamed.pdf")][0] == key


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit(3)", "failed with status 3"),
        ("import time; print('x', flush=True); time.sleep(600)", "takes longer than"),
        # A program that it starts, as batch files do, keeps its output open.
        (
            "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])",
            "takes longer",
        ),
        ("import sys; sys.stdout.write('x' * 100000)", "prints more than"),
    ],
)
def test_an_extractor_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    monkeypatch.setattr(sources, "EXTRACTOR_SECONDS", 2 if "sleep" in code else 60)
    monkeypatch.setattr(sources, "EXTRACTOR_BYTES", 1000)
    with pytest.raises(NoText, match=reason):
        run_extractor((sys.executable, "-c", code, "{}"), tmp_path / "a.pdf")


@pytest.mark.parametrize("program", ["tool.cmd", r"C:\tools\Tool.BAT", "tool.cmd."])
@pytest.mark.parametrize("name", ["a&calc.pdf", "%CMDCMDLINE:~-1%&calc.pdf", "a^b.pdf"])
def test_no_name_of_a_file_takes_effect_in_a_batch_file(tmp_path: Path, program: str, name: str) -> None:
    """Windows runs a batch file in cmd.exe, also if it is started without a shell."""
    with pytest.raises(NoText, match="is a batch file"):
        run_extractor((program, "{}"), tmp_path / name, windows=True)
    with pytest.raises(NoText, match="cannot be run"):
        run_extractor((program, "{}"), tmp_path / "年度 报告 (1).pdf", windows=True)
    with pytest.raises(NoText, match="cannot be run"):
        run_extractor(("no-such-program", "{}"), tmp_path / name, windows=True)


def test_an_extractor_that_is_not_there_is_named(store: Path, files: Path) -> None:
    (files / "a.pdf").write_bytes(b"a")
    done = sync(store, "--source", files, "--no-embed", "--extractor", "no-such-program {}")
    assert any("no-such-program cannot be run" in one["reason"] for one in done.document["left"])
    assert set(items(store)) == {str(place(files, number)) for number in range(6)}


@pytest.mark.parametrize("value", ["pdftotext", "{}", "'pdftotext {}", ".pdf=pdftotext", ""])
def test_a_command_line_without_the_file_is_refused(value: str) -> None:
    with fails("WrongUsage", match="--extractor"):
        parse_extractors([value])


def test_extractors_are_for_all_documents_or_for_one_type() -> None:
    found = parse_extractors(["pdftotext {} -", ".DOCX=pandoc -t plain {}", "./tool.sh {}"][:2])
    assert found == {"": ("pdftotext", "{}", "-"), ".docx": ("pandoc", "-t", "plain", "{}")}
    with fails("WrongUsage", match="two commands"):
        parse_extractors(["a {}", "./b {}"])


# --- refusals and the API --------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (("--source", "/no/such/folder"), "SourceNotFound", "no such file or folder"),
        (("--moved", "/a"), "WrongUsage", "has no new path"),
        (("--moved", "/nowhere=FILES"), "WrongUsage", "no file or folder of the chosen bases is there"),
        (("--moved", "/a=/no/such/folder"), "SourceNotFound", "no such file or folder"),
        (("--source", Path("/").absolute().anchor), "WrongUsage", "it is the disk of the system"),
        (("--extractor", "x"), "WrongUsage", "not a command line"),
        (("--embedder", "unknown"), "EmbedderUnnamed", ""),
    ],
)
def test_wrong_usage_is_refused(
    store: Path, files: Path, more: tuple[str, ...], code: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed(store, files)
    monkeypatch.chdir(files)
    with untouched(store):
        refused = sync(store, *(word.replace("FILES", str(store)) for word in more))
    assert refused.status == 2
    error = refused.document["error"]
    assert (error["code"] in (code, "EmbedderUnknown"), message in error["message"]) == (True, True), error


def test_a_folder_is_added_to_one_base_only(store: Path, files: Path) -> None:
    followed(store, files)
    with untouched(store):
        refused = run("sync", store, "--source", files, "--json")
    assert refused.status == 2
    assert "2 bases are chosen" in refused.document["error"]["message"]


@pytest.mark.thorough
def test_the_folder_of_a_base_is_synced_alone(store: Path, files: Path) -> None:
    done = run("sync", store / "KnowledgeBase" / KB, "--source", files, "--no-embed", "--json")
    assert done.status == 1, done
    assert done.document["left"]
    assert_whole(store, files)


def test_a_store_of_another_system_is_refused(tmp_path: Path) -> None:
    import codex_mem_store

    path = codex_mem_store.write(tmp_path / "codex", notes=1, excluded=0)
    refused = run("sync", path, "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "NotChanged")


def test_a_failed_base_is_left(store: Path, files: Path) -> None:
    followed(store, files)
    place(files, 0).write_text("changed")
    run_sql(
        store / "catalog.sqlite",
        "UPDATE knowledge_base SET status = 'failed', error = 'missing_embedding_model'",
    )
    with untouched(store):
        done = sync(store, "--no-embed")
    assert (done.status, actions(done)) == (1, {})
    assert "restore" in left(done)["base.failed"]


@pytest.mark.thorough
def test_a_source_that_changes_after_the_plan_stops_the_run(
    store: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed(store, files)
    place(files, 0).write_text(text_of(0, "Clause"), encoding="utf-8", newline="\n")

    def change(_: object) -> bool:
        place(files, 0).write_text("something else", encoding="utf-8")
        return True

    with untouched(raw(store)), fails("PlanOutdated", match="changed in the meantime"):
        regraft.sync(store, bases=(KB,), embed=False, confirm=change)
    assert sync(store, "--no-embed").status == 1
    assert_whole(store, files)


@pytest.mark.thorough
def test_the_function_takes_options_and_asks(store: Path, files: Path) -> None:
    plans: list[Any] = []
    with untouched(raw(store)), pytest.raises(Declined):
        regraft.sync(store, bases=[KB], sources=[files], embed=False, confirm=lambda plan: bool(plans.append(plan)))
    assert [one.action for one in plans[0].actions].count("add-text") == 6
    report = regraft.sync(store, bases=[KB], sources=[files], embed=False)
    assert report.head.regraft.command == "sync"
    moved = files.rename(files.with_name("moved"))
    report = regraft.sync(store, bases=[KB], moved={str(files): str(moved)}, embed=False)
    assert [one.action for one in report.actions] == ["move-sources"]


class Steps(SilentProgress):
    """Counts the stages and steps of a run."""

    def __init__(self) -> None:
        self.stages: dict[str, list[int]] = {}

    def start(self, what: str, rows: int, unit: str = "rows") -> None:
        self.stages[what] = [rows, 0]

    def step(self, rows: float, size: int) -> None:
        list(self.stages.values())[-1][1] += int(rows)


def test_a_long_comparison_shows_its_progress(store: Path, files: Path) -> None:
    seen = Steps()
    regraft.sync(store, bases=[KB], sources=[files], embed=False, progress=seen)
    assert seen.stages["Comparing"] == [6, 6]
    again = Steps()
    regraft.sync(store, bases=[KB], embed=False, progress=again)
    assert again.stages == {"Comparing": [6, 6]}


@pytest.mark.thorough
def test_a_file_that_became_a_folder_and_a_folder_that_became_a_file_keep_their_copies(
    store: Path, files: Path
) -> None:
    (files / "plan").write_text("a plan without an extension\n")
    (files / "old").mkdir()
    (files / "old" / "letter.md").write_bytes(b"the only letter\n")
    followed(store, files)
    before = copies(store)
    assert before["files/old/letter.md"] == b"the only letter\n"
    shutil.rmtree(files / "old")
    (files / "old.md").write_text("once a folder\n")
    assert sync(store, "--no-embed").status == 1
    (files / "old.md").rename(files / "old")
    (files / "plan").unlink()
    (files / "plan").mkdir()
    (files / "plan" / "part.md").write_text("a part of the plan\n")
    done = sync(store, "--no-embed")
    assert (done.status, left(done).keys()) == (1, {"source.unreachable", "source.gone", "embedding.missing"})
    # No copy of an item is replaced, and the new ones are beside them.
    assert before.items() <= copies(store).items()
    assert (raw(store) / "files/plan").read_text("utf-8") == "a plan without an extension\n"
    assert (raw(store) / "files/plan_1/part.md").read_text("utf-8") == "a part of the plan\n"
    assert (raw(store) / "files/old_1").read_text("utf-8") == "once a folder\n"
    assert items(store)[str(files / "old")][1] == "files/old_1"
    with untouched(store / "catalog.sqlite", index(store)):
        assert actions(sync(store, "--no-embed")) == {}
