"""``regraft restore``: a new base out of an old one's texts, in libraries and profiles, with kills and undo."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from catalog_rows import item_of, put_file, put_item, raw, rows
from fault_server import FaultServer, right, server_error
from fault_server import changed as changed_vectors
from faults import STOPPED, Tripwire, fails, files_of, forked, untouched
from harness import NOW, NOW_MS, run
from planted_v2 import KB, OTHER, index, plant, run_sql
from restored import MODEL, NEW, Embedder, restored_by
from stand_ins import KILLED, die
from stranded import base_of, profile, some_source

from regraft import identity
from regraft.report import progress
from regraft.report.document import encoded
from repair.changes.store import open_for_change
from repair.cherry_v2.base_models import model_change
from repair.cherry_v2.old_base import RestoredBase
from repair.cherry_v2.restore import RestoreOptions, restore


def made(store: Path, **more: Any) -> dict[str, Any]:
    return dict(restored_by(store, Embedder(), **more))


def actions(document: dict[str, Any]) -> dict[str, int]:
    return {action["action"]: action["count"] for action in document["actions"]}


def left(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["finding"], one["reason"]) for one in document["left"]]


def found(store: Path) -> list[tuple[str, str | None]]:
    return [(one["name"], one["base"]) for one in run("check", store, "--deep", "--json").document["findings"]]


def base_row(store: Path, base: str) -> dict[str, Any]:
    return _dicts(store, "SELECT * FROM knowledge_base WHERE id = ?", base)[0]


def items(store: Path, base: str) -> list[dict[str, Any]]:
    return _dicts(store, "SELECT * FROM knowledge_item WHERE base_id = ? ORDER BY rowid", base)


def _dicts(store: Path, sql: str, *values: Any) -> list[dict[str, Any]]:
    path = next(path for name in ("catalog.sqlite", "cherrystudio.sqlite") if (path := store / name).is_file())
    with closing(apsw.Connection(str(path))) as db:
        db.row_trace = lambda cursor, row: {name[0]: value for name, value in zip(cursor.description, row, strict=True)}
        return list(db.execute(sql, values))


def units(store: Path, base: str) -> list[tuple[str, int, int, str]]:
    """Return the units of a base by the texts that they are of, whatever the ids are."""
    query = (
        "SELECT u.content_hash, u.char_start, u.char_end, t.text FROM search_unit u JOIN search_text t"
        " ON t.target_id = u.unit_id ORDER BY 1, 2, 3"
    )
    return rows(index(store, base), query)


def new_id(store: Path, old: str) -> str:
    """Return the id that an item of the first base has in the new one."""
    places = [item["id"] for item in items(store, KB) if item["status"] != "deleting"]
    return str(items(store, NEW)[places.index(old)]["id"])


# --- what it makes ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_new_base_with_every_text_and_the_old_one_untouched(store):
    before = files_of(store / "KnowledgeBase"), base_row(store, KB), items(store, KB)
    embedder = Embedder()
    document = restored_by(store, embedder)
    assert actions(document) == {"write-base": 15, "insert-model": 1, "insert-base": 1 + len(items(store, KB))}
    assert document["left"] == []
    assert {base["id"]: base["name"] for base in document["bases"]} == {NEW: base_row(store, KB)["name"]}
    assert len(embedder.sent) == len(set(embedder.sent)) == 15
    assert units(store, NEW) == units(store, KB)
    after = {name: content for name, content in files_of(store / "KnowledgeBase").items() if not name.startswith(NEW)}
    assert (after, base_row(store, KB), items(store, KB)) == before
    assert files_of(raw(store, NEW)) == files_of(raw(store))
    assert found(store) == []
    assert not (store / ".regraft" / "restoring").exists()
    assert run("search", store, "text", "--base", NEW, "--mode", "bm25", "--json").document["hits"]


def test_the_row_of_the_base(store):
    changed = "chunk_size = 77, chunk_overlap = 7, threshold = 0.5"
    run_sql(store / "catalog.sqlite", f"UPDATE knowledge_base SET {changed} WHERE id = '{KB}'")
    wanted = RestoredBase("nova::embed", 3, "Again")
    made(store, wanted=wanted)
    old, new = base_row(store, KB), base_row(store, wanted.base_id(KB))
    assert {name for name in old if old[name] != new[name]} == {
        *("id", "name", "dimensions", "embedding_model_id", "created_at", "updated_at")
    }
    assert [new[name] for name in ("name", "dimensions", "embedding_model_id", "created_at")] == [
        *("Again", 3, "nova::embed", NOW_MS)
    ]
    [model] = _dicts(store, "SELECT name, provider_id FROM user_model WHERE id = 'nova::embed'")
    assert model == {"name": "embed", "provider_id": "nova"}
    assert _dicts(store, "SELECT name FROM user_provider WHERE provider_id = 'nova'") == [{"name": "nova"}]


def test_a_model_that_is_there_is_used(store):
    model = base_row(store, KB)["embedding_model_id"]
    assert actions(made(store, wanted=RestoredBase(model, 3))) == {
        "write-base": 15,
        "insert-base": 1 + len(items(store, KB)),
    }


def test_items_keep_their_order_folders_and_paths(store):
    made(store)
    old, new = items(store, KB), items(store, NEW)
    ids = {one["id"]: other["id"] for one, other in zip(old, new, strict=True)}
    assert len(set(ids.values()) | set(ids)) == 2 * len(ids)
    for one, other in zip(old, new, strict=True):
        assert other["group_id"] == ids.get(one["group_id"])
        same = ("type", "status", "error", "created_at", "updated_at")
        assert [other[name] for name in same] == [one[name] for name in same]
        data, now = json.loads(one["data"]), json.loads(other["data"])
        virtual = data.get("relativePath") == one["id"]
        assert now == ({**data, "relativePath": other["id"]} if virtual else data)
    assert sum(one["group_id"] is not None for one in new) == 2


def test_ids_follow_from_the_old_ones(store):
    assert NEW == "06b1d7f4-ae8e-4c88-956e-c9faf122cb31"
    made(store)
    before = items(store, NEW)
    assert before[0]["id"] == identity.restored_item_id(
        NEW, items(store, KB)[0]["id"], items(store, KB)[0]["created_at"]
    )
    others = {
        RestoredBase("acme::embed-9", 4).base_id(KB),
        RestoredBase("acme::embed", 3).base_id(KB),
        MODEL.base_id(OTHER),
    }
    assert len({NEW, *others, RestoredBase("acme::embed-9", 3, "").base_id(KB)}) == 5


def test_it_is_taken_back(store):
    before = files_of(store / "KnowledgeBase"), base_row(store, KB)
    rows_before = _dicts(store, "SELECT * FROM knowledge_item")
    made(store)
    assert run("undo", store, "-y").status == 0
    assert (files_of(store / "KnowledgeBase"), base_row(store, KB)) == before
    assert _dicts(store, "SELECT * FROM knowledge_item") == rows_before
    assert _dicts(store, "SELECT 1 FROM user_model WHERE id = 'acme::embed-9'") == []


def test_a_dry_run_writes_nothing(store):
    embedder = Embedder(most=0)
    seen: list[int] = []

    def look(path: Path) -> None:
        seen.append(len(rows(path, "SELECT 1 FROM search_text")))

    with untouched(store):
        options = RestoreOptions(base=KB, wanted=MODEL, now_ms=NOW_MS)
        document = encoded(restore(store, options, look, dry_run=True, progress=progress.SilentProgress()))
    assert (seen, embedder.sent) == ([15], [])
    assert actions(document) == {"write-base": 15, "insert-model": 1, "insert-base": 1 + len(items(store, KB))}
    assert left(document) == [("embedding.missing", "15 texts without a vector; run regraft backfill to embed them")]


# --- what a base can be like -----------------------------------------------------------------------------------------


def failed(store: Path, base: str = KB, *, keeps_index: bool = True) -> None:
    run_sql(
        store / "catalog.sqlite",
        "UPDATE knowledge_base SET status = 'failed', error = 'missing_embedding_model', dimensions = NULL,"
        f" embedding_model_id = NULL WHERE id = '{base}'",
    )
    if keeps_index:
        run_sql(index(store, base), "DELETE FROM embedding")
    else:
        shutil.rmtree(index(store, base).parent)


@pytest.mark.thorough
def test_a_failed_base_with_texts(store):
    failed(store)
    made(store)
    assert units(store, NEW) == units(store, KB)
    assert (base_row(store, NEW)["status"], base_row(store, NEW)["error"]) == ("completed", None)
    assert found(store) == [("base.failed", KB)]


def test_a_failed_base_without_an_index_is_made_of_its_files(store):
    """A PDF and the files of a migrated folder have no text but in an index."""
    put_file(store, "i1", "menu.txt", b"soup and bread")
    put_item(store, "i2", "note", source="Later", content="salt")
    failed(store, keeps_index=False)
    document = made(store)
    assert actions(document)["write-base"] == 4
    assert {reason for _, reason in left(document)} == {
        "its file is not in raw/: index it in the application",
        "report.pdf is not plain text: index it in the application",
    }
    statuses = {(item["type"], item["status"]) for item in items(store, NEW)}
    assert statuses == {
        ("file", "failed"),
        ("file", "completed"),
        ("url", "completed"),
        ("note", "completed"),
        ("directory", "completed"),
    }
    errors = {item["error"] for item in items(store, NEW) if item["status"] == "failed"}
    assert "Not restored: its file is not in raw/: index it in the application." in errors
    assert (raw(store, NEW) / "Later.md").read_text("utf-8").endswith("---\nsalt")
    [later] = [item for item in items(store, NEW) if "salt" in item["data"]]
    assert json.loads(later["data"])["relativePath"] == "Later.md"
    assert found(store) == [("base.failed", KB)]


@pytest.mark.thorough
def test_a_base_without_a_model_gets_one_by_the_way(store):
    run_sql(
        store / "catalog.sqlite",
        f"UPDATE knowledge_base SET dimensions = NULL, embedding_model_id = NULL WHERE id = '{KB}'",
    )
    run_sql(index(store), "DELETE FROM embedding")
    made(store)
    row = base_row(store, NEW)
    assert (row["status"], row["embedding_model_id"] is None, row["dimensions"] is None) == ("completed", False, False)


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["random bytes", "half a file", "an empty file"])
def test_an_index_that_nobody_can_read(damage, store):
    plant(damage, store)
    document = made(store)
    assert any(finding == "file.unreadable" for finding, _ in left(document))
    assert actions(document)["write-base"] == 2
    assert {base for name, base in found(store) if name != "index.orphan"} == {KB}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "damage",
    ["another text", "a text of bytes", "a place one off", "another unit id", "no body", "another body", "no number",
     "a gap", "version 1", "no identity", "another base", "no vector", "words of no body", "a long vector"],
)  # fmt: skip
def test_what_is_damaged_in_the_old_index_is_whole_in_the_new_one(damage, store):
    plant(damage, store)
    made(store)
    new = {name for name, base in found(store) if base != KB}
    # A unit without its body is not embedded: that part of the text is in no unit of the new base, which is said.
    assert new == ({"unit.missing"} if damage == "no body" else set())


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "damage",
    ["not JSON", "a type of bytes", "a folder at work", "a folder that is gone", "folders in a circle", "nobody works",
     "failed without an error", "a tombstone", "a material being deleted", "a material of no item", "another path"],
)  # fmt: skip
def test_what_is_damaged_in_the_catalog_is_whole_in_the_new_base(damage, store):
    plant(damage, store)
    made(store)
    assert {base for _, base in found(store) if base != KB} <= {NEW}
    assert {name for name, base in found(store) if base == NEW} <= {"item.tombstone", "raw.missing"}


@pytest.mark.thorough
def test_a_path_that_is_unsafe_or_taken_is_not_copied(store):
    key, _ = item_of(store, "note")
    _, of_url = item_of(store, "url")
    move = "UPDATE knowledge_item SET data = json_set(data, '$.relativePath', '{}') WHERE id = '{}'"
    run_sql(
        store / "catalog.sqlite",
        move.format(of_url["relativePath"], key),
        move.format("../x", item_of(store, "file")[0]),
    )
    made(store)
    new = [item for item in items(store, NEW) if item["group_id"] is None]
    paths = {item["type"]: json.loads(item["data"]).get("relativePath") for item in new}
    assert paths["file"] in {item["id"] for item in new}
    assert paths["url"] == of_url["relativePath"] != paths["note"]
    assert {base for _, base in found(store)} == {KB}, found(store)


@pytest.mark.thorough
def test_halves_of_pairs_are_written_nowhere(store):
    half = "half \ud83d a pair"
    put_item(store, "i1", "note", source=half, content=half)
    put_item(store, "i2", "note", source="s", content="text", relativePath=f"{half}.md")
    put_item(store, "i3", "file", source="s", relativePath=f"{half}.txt")
    made(store)
    paths = [json.loads(item["data"])["relativePath"] for item in items(store, NEW)[-3:]]
    assert paths == ["half \ufffd a pair_1.md", "s.md", items(store, NEW)[-1]["id"]]
    assert {base for _, base in found(store)} == {KB}, found(store)


@pytest.mark.thorough
def test_statuses_say_what_is_true(store):
    put_item(store, "i1", "url", source="u", url="u")
    put_item(store, "i2", "url", source="u", url="u")
    put_item(store, "i3", "directory", source="empty")
    put_item(store, "i4", "url", source="u", url="u")
    put_item(store, "i5", "note", source="n", content="idle text")
    run_sql(
        store / "catalog.sqlite",
        "UPDATE knowledge_item SET status = 'idle' WHERE id IN ('i1', 'i3', 'i5')",
        "UPDATE knowledge_item SET status = 'failed', error = 'the page is gone (404)' WHERE id = 'i2'",
        "UPDATE knowledge_item SET status = 'deleting' WHERE id = 'i4'",
    )
    document = made(store)
    new = [(item["status"], item["error"]) for item in items(store, NEW)][-4:]
    assert new == [("idle", None), ("failed", "the page is gone (404)"), ("idle", None), ("completed", None)]
    assert ("material.orphan", "items that are being deleted were not copied") in left(document)
    assert found(store) == []


@pytest.mark.thorough
def test_a_lost_snapshot_is_written_again(store):
    _, data = item_of(store, "url")
    (raw(store) / data["relativePath"]).unlink()
    made(store)
    assert (raw(store, NEW) / data["relativePath"]).read_text("utf-8").startswith('---\ntype: "URL"')
    assert found(store) == [("raw.missing", KB)]


def test_a_rerank_model_that_is_gone_is_not_named(store):
    run_sql(store / "catalog.sqlite", f"UPDATE knowledge_base SET rerank_model_id = 'gone::x' WHERE id = '{KB}'")
    made(store)
    assert base_row(store, NEW)["rerank_model_id"] is None


def test_an_encoding_that_was_guessed_is_said(store):
    put_file(store, "i1", "menu.txt", "Сегодня хорошая погода, а завтра дождь".encode("cp1251"))
    [guess] = [one for one in made(store)["actions"] if one["action"] == "guess-encoding"]
    assert guess["message"] == "read menu.txt as Windows-1251, guessed from its content"


# --- which base, and refusals ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("inside", [f"KnowledgeBase/{KB}", f"KnowledgeBase/{KB}/.cherry/index.sqlite"])
def test_a_base_by_its_folder_or_file(inside, store):
    assert actions(made(store / inside, base=None))["write-base"] == 15
    assert found(store) == []


def test_a_base_by_its_v1_id(store):
    assert actions(made(store, base="kb"))["write-base"] == 15


def test_what_is_refused_writes_nothing(store):
    alone = shutil.copytree(store / "KnowledgeBase" / KB, store.parent / "alone")
    nobody = Embedder(most=0)
    with untouched(store, alone):
        with fails("BaseUnknown"):
            restored_by(store, nobody, base="gone")
        with fails("WrongUsage", match="2 bases .*use --base"):
            restored_by(store, nobody, base=None)
        with fails("NotRestored", match="word is not a model id"):
            restored_by(store, nobody, wanted=RestoredBase("word", 3))
        with fails("NotChanged", match="without a catalog"):
            restored_by(alone, nobody, base=None)


@pytest.mark.thorough
def test_a_base_that_was_restored_is_not_restored_again(store):
    made(store)
    with untouched(store), fails("NotRestored", match="it was restored already"):
        restored_by(store, Embedder(most=0))
    again = RestoredBase("acme::embed-9", 3, "Another")
    assert actions(made(store, wanted=again))["write-base"] == 15


@pytest.mark.thorough
def test_a_base_without_any_text(store):
    run_sql(index(store, OTHER), "DELETE FROM search_text", "DELETE FROM search_unit", "DELETE FROM embedding",
            "DELETE FROM material", "DELETE FROM content")  # fmt: skip
    run_sql(store / "catalog.sqlite", f"DELETE FROM knowledge_item WHERE base_id = '{OTHER}'")
    put_item(store, "i1", "url", source="u", url="u")
    run_sql(store / "catalog.sqlite", f"UPDATE knowledge_item SET base_id = '{OTHER}' WHERE id = 'i1'")
    with (
        untouched(store),
        fails("NotRestored", match="none of its items has a readable text; for example, its snapshot does not exist"),
    ):
        restored_by(store, Embedder(most=0), base=OTHER)
    run_sql(store / "catalog.sqlite", f"DELETE FROM knowledge_item WHERE base_id = '{OTHER}'")
    put_item(store, "d1", "directory", source="/d")
    run_sql(store / "catalog.sqlite", f"UPDATE knowledge_item SET base_id = '{OTHER}' WHERE id = 'd1'")
    with untouched(store), fails("NotRestored", match="its folders are empty"):
        restored_by(store, Embedder(most=0), base=OTHER)
    run_sql(store / "catalog.sqlite", f"DELETE FROM knowledge_item WHERE base_id = '{OTHER}'")
    assert actions(made(store, base=OTHER))["write-base"] == 0


def test_a_preview_store_has_to_be_upgraded_first(store):
    planted = plant("a preview store", store)
    base = str(planted.base)
    run_sql(
        store / "catalog.sqlite",
        "INSERT INTO knowledge_base (id, name, status, error, chunk_size, chunk_overlap, created_at, updated_at)"
        f" VALUES ('{base}', 'p', 'failed', 'x', 9, 0, 0, 0)",
    )
    with untouched(store), fails("NotRestored", match="regraft upgrade"):
        restored_by(store, Embedder(most=0), base=base)


# --- never paying twice ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_what_was_embedded_stays_for_the_next_run(store):
    before = _dicts(store, "SELECT * FROM knowledge_base")
    first = Embedder(most=6)
    with pytest.raises(KeyboardInterrupt):
        restored_by(store, first)
    assert _dicts(store, "SELECT * FROM knowledge_base") == before
    assert not (store / "KnowledgeBase" / NEW).exists()
    second = Embedder()
    restored_by(store, second)
    assert (len(second.sent), len({*first.sent, *second.sent})) == (9, 15)
    assert found(store) == []


@pytest.mark.thorough
def test_what_was_embedded_stays_when_the_old_base_changes(store):
    first = Embedder(most=6)
    with pytest.raises(KeyboardInterrupt):
        restored_by(store, first)
    put_item(store, "i1", "note", source="New", content="a new note")
    second = Embedder()
    assert actions(restored_by(store, second))["write-base"] == 16
    assert len(second.sent) == 10
    assert found(store) == [("item.not-indexed", KB)]


@pytest.mark.thorough
def test_a_base_that_changes_while_it_is_embedded_is_not_put_in_place(store):
    embedder = Embedder()

    def fill(path: Path) -> None:
        embedder.fill(path)
        put_item(store, "i1", "note", source="New", content="a new note")

    with fails("PlanOutdated", match="changed while its texts were embedded"):
        restore(store, RestoreOptions(base=KB, wanted=MODEL, now_ms=NOW_MS), fill, progress=progress.SilentProgress())
    again = Embedder()
    restored_by(store, again)
    assert again.sent == ["a new note"]


@pytest.mark.thorough
def test_a_text_that_cannot_be_embedded_stops_nobody(store):
    document = restored_by(store, Embedder(refused=frozenset({"text 1 of P"})))
    assert left(document) == [("embedding.missing", "1 text without a vector; run regraft backfill to embed them")]
    assert found(store) == [("embedding.missing", NEW)]


def test_a_damaged_vector_is_not_put_in_place(store):
    def fill(path: Path) -> None:
        Embedder().fill(path)
        run_sql(path, "UPDATE embedding SET vector_blob = x'00' WHERE rowid = 1")

    with fails("VerificationFailed", STOPPED):
        restore(store, RestoreOptions(base=KB, wanted=MODEL, now_ms=NOW_MS), fill, progress=progress.SilentProgress())


@pytest.mark.thorough
def test_a_log_beside_the_filled_index_is_worked_in(store):
    """The one that fills it may leave it in WAL mode."""

    def fill(path: Path) -> None:
        with closing(apsw.Connection(str(path))) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("SELECT 1 FROM meta").fetchall()
            Embedder().fill(path)
            for suffix in ("", "-wal"):
                shutil.copyfile(f"{path}{suffix}", f"{path}.copy{suffix}")
        for suffix in ("", "-wal"):
            Path(f"{path}.copy{suffix}").replace(f"{path}{suffix}")

    restore(store, RestoreOptions(base=KB, wanted=MODEL, now_ms=NOW_MS), fill, progress=progress.SilentProgress())
    assert found(store) == []
    assert sorted(path.name for path in index(store, NEW).parent.iterdir()) == ["index.sqlite"]


@pytest.mark.thorough
def test_a_disk_without_hard_links(store, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    made(store)
    assert found(store) == []


@pytest.mark.slow
def test_kills_at_every_step_lose_nothing_that_was_paid(store, tmp_path, monkeypatch):
    """What is sent in all after a kill anywhere, and a run that goes on, is every text once."""
    with monkeypatch.context() as patch:
        trip = Tripwire(patch, lambda: None, 0).watch_files()
        made(shutil.copytree(store, tmp_path / "counted"))
        count = len(trip.steps)
    assert count > 30
    for at in range(1, count + 1, 8):
        place = shutil.copytree(store, tmp_path / f"killed-{at}")
        log = tmp_path / f"sent-{at}"

        def work(place: Path = place, log: Path = log, at: int = at) -> None:
            Tripwire(monkeypatch, die, at).watch_files()
            embedder = Embedder()

            def fill(path: Path) -> None:
                embedder.fill(path)
                log.write_text(str(len(embedder.sent)), "utf-8")

            restore(
                place, RestoreOptions(base=KB, wanted=MODEL, now_ms=NOW_MS), fill, progress=progress.SilentProgress()
            )

        status = forked(work)
        assert status in (KILLED, 0)
        paid = int(log.read_text("utf-8")) if log.exists() else 0
        again = Embedder()
        if NEW in [row["id"] for row in _dicts(place, "SELECT id FROM knowledge_base")]:
            with fails("NotRestored", match="it was restored already"):
                restored_by(place, again)
        else:
            restored_by(place, again)
        assert (paid, len(again.sent)) in ((15, 0), (0, 15)), at
        assert found(place) == [], at
        assert not (place / ".regraft" / "restoring").exists(), at
        shutil.rmtree(place)


# --- profiles --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stranded(tmp_path: Path) -> Path:
    """Return a profile whose first base could not be read at the upgrade."""
    return profile(tmp_path / "stranded", some_source(), lost=("kb",))


@pytest.mark.thorough
def test_a_base_of_a_profile(stranded):
    """What the profile's tables have besides comes along, and providers are left alone."""
    run_sql(stranded / "cherrystudio.sqlite", "UPDATE knowledge_base SET emoji = '🎉'")
    before = _dicts(stranded, "SELECT * FROM user_provider")
    base = base_of("other")
    provider = before[0]["provider_id"]
    wanted = RestoredBase(f"{provider}::embed-9", 3)
    assert actions(made(stranded, base=base, wanted=wanted))["insert-model"] == 1
    new = wanted.base_id(base)
    assert base_row(stranded, new)["emoji"] == "🎉"
    assert {item["priority"] for item in items(stranded, new)} == {7}
    assert _dicts(stranded, "SELECT * FROM user_provider") == before
    assert [one for one in found(stranded) if one[1] == new] == []
    assert (stranded / "Data" / "KnowledgeBase" / new / ".cherry" / "index.sqlite").is_file()
    assert run("undo", stranded, "-y").status == 0
    assert not (stranded / "Data" / "KnowledgeBase" / new).exists()


def test_a_profile_without_the_provider_is_refused_before_anything_is_paid(stranded):
    embedder = Embedder()
    with fails("NotRestored", match="no provider elsewhere; add it in the application first"):
        restored_by(stranded, embedder, base=base_of("other"), wanted=RestoredBase("elsewhere::embed-9", 3))
    assert embedder.sent == []


def test_a_model_that_the_provider_has_under_another_id(stranded):
    [row] = _dicts(stranded, "SELECT id, provider_id, model_id FROM user_model LIMIT 1")
    run_sql(stranded / "cherrystudio.sqlite", f"UPDATE user_model SET id = 'own' WHERE id = '{row['id']}'")
    with fails("NotRestored", match="use --model own"):
        restored_by(stranded, Embedder(), base=base_of("other"), wanted=RestoredBase(row["id"], 3))


def test_a_profile_of_another_time_is_refused(stranded):
    run_sql(stranded / "cherrystudio.sqlite", "ALTER TABLE user_model ADD COLUMN needed TEXT NOT NULL DEFAULT 'x'")
    run_sql(stranded / "cherrystudio.sqlite", "ALTER TABLE knowledge_base RENAME COLUMN error TO failure")
    with fails("ProfileUnknown", match="without error"):
        restored_by(stranded, Embedder(), base=base_of("other"))


# --- a model for a base without one ----------------------------------------------------------------------------------


def changed(store: Path, base: str, model: str = "acme::embed-9", dimensions: int = 3) -> Any:
    with open_for_change(store, None, "backfill") as there:
        return model_change(there, base, model, dimensions, NOW_MS)


def test_a_base_without_a_model_gets_one(store):
    run_sql(
        store / "catalog.sqlite",
        f"UPDATE knowledge_base SET dimensions = NULL, embedding_model_id = NULL WHERE id = '{KB}'",
    )
    run_sql(index(store), "DELETE FROM embedding")
    change = changed(store, KB)
    assert [action.action for action in change.actions] == ["insert-model", "update-base"]
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        db.execute("BEGIN")
        change.apply(db)
        db.execute("COMMIT")
    row = base_row(store, KB)
    assert [row[name] for name in ("embedding_model_id", "dimensions", "status", "updated_at")] == [
        *("acme::embed-9", 3, "completed", NOW_MS)
    ]
    assert found(store) == [("embedding.missing", KB)]
    assert changed(store, KB) is None


def test_a_base_with_a_model_keeps_it(store):
    for dimensions in (3, 4):
        with fails("ModelNotSet", match="regraft restore makes a new base of its texts with another one"):
            changed(store, KB, dimensions=dimensions)
    failed(store)
    with fails("ModelNotSet", match="it failed"):
        changed(store, KB)
    with fails("ModelNotSet", match="it failed"):
        changed(store, KB, model="word")


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serve vectors of three dimensions to an embedder of the working directory's configuration."""
    with FaultServer(dimensions=3) as server:
        (tmp_path / "regraft.yaml").write_text(
            f"embedders: {{acme: {{provider: openai, base_url: {server.url}, model: embed-9, retries: 0}}}}", "utf-8"
        )
        monkeypatch.chdir(tmp_path)
        yield server


ASKED = ("--model", "acme::embed-9", "--base", KB)


@pytest.mark.thorough
def test_the_command(store, server):
    done = run("restore", store, *ASKED, "--name", " Again ", "--now", NOW)
    new = RestoredBase("acme::embed-9", 3, "Again").base_id(KB)
    assert (done.status, done.stderr) == (0, "")
    assert f"Again  ({new})" in done.stdout
    assert "write the base: 5 texts in 15 units, and 3 files of the old one" in done.stdout
    assert f"To undo: regraft undo {store}" in done.stdout
    assert found(store) == []


@pytest.mark.thorough
def test_the_command_as_json(store, server):
    planned = run("restore", store, *ASKED, "--dimensions", "3", "--dry-run", "--json")
    assert (planned.status, server.requests) == (0, [])
    assert planned.document["left"] == []
    done = run("restore", store, *ASKED, "--json").document
    (before,), (scope,) = planned.document["scopes"], done["scopes"]
    assert scope["newly_ready"] == scope["eligible"] == before["planned"]["texts"] > 0
    assert scope["model_id"] == "acme::embed-9"
    assert done["undo"] is not None


def of_the_user(store: Path) -> dict[str, bytes]:
    return {name: content for name, content in files_of(store).items() if not name.startswith(".regraft")}


@pytest.mark.thorough
def test_what_was_embedded_is_kept_for_the_next_run(store, server):
    settings = Path("regraft.yaml")
    settings.write_text(
        settings.read_text("utf-8").replace("retries: 0", "retries: 0, parallel: 1, batch: {texts: 4}"), "utf-8"
    )
    before = of_the_user(store)
    server.behave = [*[right] * 4, *[server_error()] * 50]
    stopped = run("restore", store, *ASKED, "--json")
    assert (stopped.status, stopped.document["error"]["code"]) == (STOPPED, "BackfillStopped")
    assert "Vectors written so far are kept (4)" in stopped.document["error"]["message"]
    assert of_the_user(store) == before
    server.behave = right
    assert run("restore", store, *ASKED).status == 0
    texts = {text for (text,) in rows(index(store), "SELECT text FROM search_text")}
    paid = [text for text in server.paid if text in texts]
    assert sorted(paid) == sorted(texts)


def test_vectors_of_another_model_are_not_added_to_those_of_a_stopped_run(store, server):
    settings = Path("regraft.yaml")
    plain = settings.read_text("utf-8")
    settings.write_text(plain.replace("retries: 0", "retries: 0, parallel: 1, batch: {texts: 4}"), "utf-8")
    server.behave = [*[right] * 4, *[server_error()] * 50]
    assert run("restore", store, *ASKED).status == STOPPED
    server.behave = changed_vectors(lambda vectors: [vector[4:] + vector[:4] for vector in vectors])
    settings.write_text(plain.replace("retries: 0", "retries: 0, encoding: float"), "utf-8")
    done = run("restore", store, *ASKED, "--json")
    # The others are those of the stopped run, which is an error of the run that goes on.
    assert done.document["error"]["code"] == "EmbedderDiffers", done


def test_another_model_than_the_embedder_is_refused(store, server):
    done = run("restore", store, "--model", "acme::other", "--base", KB)
    assert (done.status, "Embedder acme is model embed-9, but --model says acme::other" in done.stderr) == (2, True)
    done = run("restore", store, "--base", KB)
    assert (done.status, "give --model provider::model" in done.stderr) == (2, True)
    done = run("restore", store, "--base", KB, "--model", "acme")
    assert (done.status, "write it as provider::model" in done.stderr) == (2, True)
    assert server.requests == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--base", KB, "--base", OTHER], "only one base can be restored at a time"),
        (["--name", " "], "cannot be blank"),
    ],
)
def test_the_command_line_that_is_refused(options, reason, store):
    done = run("restore", store, *options)
    assert (done.status, reason in done.stderr) == (2, True)
