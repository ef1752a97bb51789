"""AngelMemory's data folder: what is recognised and read, and the audit of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import struct
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from angel_store import (
    COLLECTION_ID,
    FULL_TEXT,
    NOTES,
    OTHER_PROVIDER,
    PROVIDER,
    READ_AT,
    TOPIC,
    AngelStore,
    add_full_text,
    build,
    check,
    damaged,
    double_short_id,
    embed,
    needs_samples,
    never_read,
    sample,
    untouched,
)
from extras import needs
from harness import run

from checks.angel_memory import findings
from checks.angel_memory.detect import find_providers
from checks.audit.findings import FINDINGS
from regraft.formats.angel_memory import database
from regraft.formats.angel_memory import database as angel_memory_notes
from regraft.formats.angel_memory.database import AngelProblem
from regraft.formats.chroma import database as chroma
from regraft.formats.chroma.database import ChromaProblem

LEVELS = ("--quick", "", "--deep")
ANGEL = {value for value in vars(findings).values() if isinstance(value, str) and value in FINDINGS}


@pytest.fixture
def store(tmp_path: Path) -> AngelStore:
    return build(tmp_path / "data")


# --- recognising -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["", "memory_center", "memory_center/index", database.DATABASE])
def test_a_data_folder_is_recognised_by_its_parts(store: AngelStore, part: str) -> None:
    found = run("inspect", store.root / part, "--json").document
    assert found["kind"] == "angel-memory"
    assert (found["health"]["records"], found["health"]["vectors"], found["health"]["coverage"]) == (11, 11, 1.0)


@pytest.mark.parametrize(
    ("place", "called"),
    [
        ("memory_center/index/note_chunks.db", "notes cut into chunks"),
        (f"memory_{PROVIDER}/index/faiss/notes.index", "FAISS indexes"),
        (f"memory_{PROVIDER}/index/sqlite/notes.db", "a vector index in SQLite"),
    ],
)
def test_later_generations_are_refused_by_name(store: AngelStore, place: str, called: str) -> None:
    later = store.root / place
    later.parent.mkdir(parents=True, exist_ok=True)
    later.write_bytes(b"x")
    with untouched(store.root):
        answer = run("check", store.root, "--json")
    assert answer.status == 2
    assert answer.document["error"]["code"] == "GenerationUnknown"
    assert called in answer.document["error"]["message"]


def test_a_database_of_chunks_is_refused_by_its_tables(store: AngelStore) -> None:
    store.execute("DROP TABLE note_tag_rel")
    assert "notes without tags" in run("check", store.root).stderr


def test_the_folders_that_later_generations_make_empty_are_no_sign(store: AngelStore) -> None:
    (store.root / f"memory_{PROVIDER}/index/faiss").mkdir(parents=True)
    assert check(store) == {}


# --- from a file to records ------------------------------------------------------------------------------------------


def notes(text: str | bytes, path: str = "a/b.md", *, folder: Path) -> list[angel_memory_notes.Note]:
    place = folder / Path(path).name
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return angel_memory_notes.read_notes(place, path)


def test_only_leaf_headings_have_records(tmp_path: Path) -> None:
    text = "# A\n## B\n### C\n## D\n# E\n"
    leaves = [note.headings for note in notes(text, folder=tmp_path)]
    assert leaves == [("A", "B", "C", "", "", ""), ("A", "D", "", "", "", ""), ("E", "", "", "", "", "")]


def test_a_source_id_is_of_the_path_the_headings_and_a_number(tmp_path: Path) -> None:
    made = notes("# Same\n# Same\n", "notes/dup.md", folder=tmp_path)
    expected = [hashlib.sha1(f"notes/dup.md|Same||||||{number}".encode()).hexdigest()[:32] for number in (1, 2)]
    assert [note.source_id for note in made] == [f"note_{one}" for one in expected]
    (single,) = notes("no heading", "notes/x.md", folder=tmp_path)
    assert single.source_id == f"note_{hashlib.sha1(b'notes/x.md|||||||0').hexdigest()[:32]}"


def test_tags_are_the_parts_of_the_path_and_the_headings_each_once(tmp_path: Path) -> None:
    (note,) = notes("# b.md\n## Two   words\n", " a / a /b.md", folder=tmp_path)
    assert note.tags == ("a", "b.md", "Two words")


@pytest.mark.parametrize(
    ("line", "heading"),
    [
        ("# One", "One"),
        ("###### Six", "Six"),
        ("####### Seven", None),
        ("#None", None),
        (" # None", None),
        ("#\tTab \u00a0 and more ", "Tab and more"),
        ("\ufeff# None", None),
        ("# # Mark", "# Mark"),
    ],
)
def test_what_a_heading_is(tmp_path: Path, line: str, heading: str | None) -> None:
    found = {text for note in notes(line, folder=tmp_path) for text in note.headings if text}
    assert found == ({heading} if heading else set())


def test_headings_in_code_count(tmp_path: Path) -> None:
    assert notes("```\n# code\n```\n", folder=tmp_path)[0].headings[0] == "code"


def test_a_long_heading_is_cut_in_its_record_alone(tmp_path: Path) -> None:
    long = "x" * 600
    (note,) = notes(f"# {long}", "n.md", folder=tmp_path)
    assert note.headings[0] == "x" * 500
    assert note.tags == ("n.md", long)
    assert note.source_id == f"note_{hashlib.sha1(f'n.md|{long}||||||1'.encode()).hexdigest()[:32]}"


def test_a_blank_heading_is_a_leaf_without_a_tag(tmp_path: Path) -> None:
    (note,) = notes("#  \n", "n.md", folder=tmp_path)
    assert (note.headings, note.tags) == (("",) * 6, ("n.md",))
    assert note.source_id == f"note_{hashlib.sha1(b'n.md|||||||1').hexdigest()[:32]}"


@pytest.mark.parametrize(
    ("data", "lines"),
    [(b"", 0), (b"a\n", 1), (b"a\r\nb\rc", 3), (b"a\x0cb", 2), ("a\u2028b".encode(), 2), (b"\xff\n\n", 2)],
)
def test_what_a_line_is(tmp_path: Path, data: bytes, lines: int) -> None:
    assert notes(data, "n.txt", folder=tmp_path)[0].total_lines == lines


def test_a_markdown_file_that_is_not_utf8_has_no_headings(tmp_path: Path) -> None:
    (note,) = notes(b"# A\n\xff\n", "n.md", folder=tmp_path)
    assert (note.tags, note.total_lines) == (("n.md",), 2)


def test_other_files_have_their_path_alone(tmp_path: Path) -> None:
    (note,) = notes("# A\n", "x/n.txt", folder=tmp_path)
    assert note.tags == ("x", "n.txt")


def test_which_files_are_notes(tmp_path: Path) -> None:
    for name in ("a.md", "b.TXT", "c.pdf", "d.png", ".md", "e", "f/g.json"):
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text("x")
    if sys.platform == "linux":
        (tmp_path / os.fsdecode(b"h\xff.md")).write_text("x")
    (tmp_path / "link.md").symlink_to("nowhere")
    assert [one.path for one in angel_memory_notes.find_note_files(tmp_path)] == ["a.md", "b.TXT", "c.pdf", "f/g.json"]


@pytest.mark.parametrize(
    ("tags", "text"),
    [
        (("notes", "Project  X", "Project X overview"), "notes Project X overview"),
        (("a b", "b a", "c\td"), "a b c\td"),
        ((" ", ""), ""),
    ],
)
def test_the_text_of_a_vector_has_every_word_once(tags: tuple[str, ...], text: str) -> None:
    assert angel_memory_notes.vector_text(tags) == text


def test_records_have_their_tags_in_the_order_of_ids(store: AngelStore) -> None:
    for record in store.records():
        assert [number for number, _ in record.tags] == sorted(number for number, _ in record.tags)
    assert [record.short_id for record in store.records()] == list(range(11))
    assert store.texts()[store.records()[0].source_id] == "data.csv"


# --- collections -----------------------------------------------------------------------------------------------------


def collection(store: AngelStore) -> tuple[dict[str, chroma.ChromaEntry], dict[str, bytes], int]:
    with chroma.open_chroma(store.chroma()) as db:
        found = chroma.find_collection(db, "notes_index")
        assert found is not None
        entries = {entry.id: entry for entry in chroma.iterate_entries(db, found)}
        return entries, dict(chroma.iterate_queued_vectors(db, found)), chroma.count_entries(db, found)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=needs("chroma"))], ids=["sql", "chromadb"])
def test_a_collection_is_read_with_plain_sqlite(tmp_path: Path, real: bool) -> None:
    store = build(tmp_path / "data", real=real)
    with untouched(store.root):
        entries, vectors, count = collection(store)
    texts = store.texts()
    assert {key: entry.document for key, entry in entries.items()} == texts
    assert all(entry.metadata == {"source_id": key} for key, entry in entries.items())
    assert {key: list(struct.unpack("<8f", vector)) for key, vector in vectors.items()} == {
        key: embed(text) for key, text in texts.items()
    }
    assert count == len(texts)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=needs("chroma"))], ids=["sql", "chromadb"])
def test_the_latest_operation_on_an_id_counts(tmp_path: Path, real: bool) -> None:
    store = build(tmp_path / "data", {"a.txt": "x", "b.txt": "x"}, real=real)
    first, second = store.texts()
    store.put_vector(first, "other", source_id="elsewhere")
    store.drop_vectors(second)
    entries, vectors, count = collection(store)
    assert count == 1
    assert entries == {first: chroma.ChromaEntry(first, "other", {"source_id": "elsewhere"})}
    assert list(struct.unpack("<8f", vectors[first])) == embed("other")


def test_operations_that_the_tables_do_not_show_yet_count(store: AngelStore) -> None:
    """A writer was stopped between the queue and the tables: Chroma goes on where it was."""
    first, second, third, *_ = store.texts()

    def queue(operation: int, key: str, metadata: dict[str, Any]) -> None:
        values = (operation, TOPIC, key, struct.pack("<8f", *embed("new")), "FLOAT32", json.dumps(metadata))
        store.execute("INSERT INTO embeddings_queue VALUES (NULL, ?, ?, ?, ?, ?, ?)", *values, path=store.chroma())

    queue(chroma.DELETE, first, {})
    queue(chroma.UPSERT, second, {"chroma:document": "new"})
    queue(chroma.ADD, third, {"chroma:document": "ignored"})
    queue(chroma.ADD, "added", {"chroma:document": "added", "n": 1})
    queue(chroma.UPDATE, "unknown", {"chroma:document": "ignored"})
    entries, vectors, count = collection(store)
    assert count == len(entries) == 11
    assert first not in entries
    assert entries[second] == chroma.ChromaEntry(second, "new", {"source_id": second})
    assert entries[third].document == store.texts()[third]
    assert list(struct.unpack("<8f", vectors[third])) == embed(store.texts()[third])
    assert entries["added"] == chroma.ChromaEntry("added", "added", {"n": 1})


def test_vectors_of_whole_numbers_are_read(store: AngelStore) -> None:
    key = next(iter(store.texts()))
    numbers = struct.pack("<8i", *range(8))
    store.execute(
        "UPDATE embeddings_queue SET vector = ?, encoding = 'INT32' WHERE id = ?", numbers, key, path=store.chroma()
    )
    assert struct.unpack("<8f", collection(store)[1][key]) == tuple(range(8))


@pytest.mark.parametrize(("vector", "encoding"), [(b"abc", "FLOAT32"), (b"abcd", "FLOAT64"), (7, "FLOAT32")])
def test_what_is_no_vector_is_unusable(store: AngelStore, vector: object, encoding: str) -> None:
    key = next(iter(store.texts()))
    statement = "UPDATE embeddings_queue SET vector = ?, encoding = ? WHERE id = ?"
    store.execute(statement, vector, encoding, key, path=store.chroma())
    assert collection(store)[1][key] == b""
    assert {name: one["subject"] for name, one in check(store).items()} == {"angel.vector-unusable": key}


def test_what_an_operation_says_may_be_no_json(store: AngelStore) -> None:
    key = next(iter(store.texts()))
    for metadata in ("{", "[]", 7, "[" * 100_000):
        values = (chroma.UPDATE, TOPIC, key, None, None, metadata)
        store.execute("INSERT INTO embeddings_queue VALUES (NULL, ?, ?, ?, ?, ?, ?)", *values, path=store.chroma())
    assert check(store) == {}


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DROP TABLE embeddings_queue", "it has no table embeddings_queue"),
        ("ALTER TABLE embeddings RENAME COLUMN embedding_id TO uuid", "its table embeddings has no column"),
    ],
)
def test_another_layout_is_a_problem_and_no_traceback(store: AngelStore, statement: str, problem: str) -> None:
    store.execute(statement, path=store.chroma())
    found = check(store)
    assert problem in found["angel.unreadable"]["message"]


def test_what_is_no_database_is_a_problem(store: AngelStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), chroma.open_chroma(tmp_path / "none"):
        pass
    store.chroma().write_bytes(b"no database at all, but long enough to be one" * 99)
    with pytest.raises(ChromaProblem, match="damaged"), chroma.open_chroma(store.chroma()):
        pass


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    """Older versions of Chroma keep one beside the vectors: whatever it says, nobody here looks."""
    store = build(tmp_path / "data")
    folder = store.chroma().parent / "22222222-2222-4222-8222-222222222222"
    folder.mkdir()
    trap = tmp_path / "trap"
    (folder / "index_metadata.pickle").write_bytes(f"cos\nsystem\n(S'touch {trap}'\ntR.".encode())
    assert check(store, "--deep") == {}
    assert not trap.exists()


# --- the audit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_a_whole_folder_has_nothing_to_complain_about(store: AngelStore, level: str) -> None:
    store.remember("m1", "a tag of a memory alone")
    with untouched(store.root):
        assert check(store, level) == {}
    answer = run("check", store.root, "--json", *filter(None, [level]))
    assert answer.status == 0
    assert answer.document["checked"]["records"] == 11


def test_a_bit_of_everything_is_named_and_nothing_written(tmp_path: Path) -> None:
    store = damaged(tmp_path / "data")
    with untouched(store.root):
        found = check(store)
    counts = {name: one["count"] for name, one in found.items()}
    assert counts == {
        "angel.short-id-sequence": 1,
        "angel.vector-missing": 3,
        "angel.document-stale": 1,
        "angel.vector-orphan": 2,
        "angel.metadata": 1,
        "angel.relation-dangling": 1,
        "angel.relation-orphan": 1,
        "angel.tag-unused": 1,
    }
    path = str(store.root)
    assert found["angel.vector-missing"]["repair"] == f"regraft reconcile {path}"
    assert found["angel.tag-unused"]["repair"] == f"regraft gc {path} --only angel.tag-unused"
    assert found["angel.tag-unused"]["subject"] == "unused-tag"
    assert found["angel.relation-orphan"]["subject"] == "note_gone"


def changed(store: AngelStore, seconds: int) -> None:
    store.write("notes/plan.md", "# Other\n", seconds=seconds)


def lead_outside(store: AngelStore) -> None:
    store.execute("UPDATE note_index_records SET source_file_path = '../data.csv' WHERE note_short_id = 0")
    (store.raw / "data.csv").unlink()


def another_vector(store: AngelStore, *numbers: float) -> None:
    key, text = next(iter(store.texts().items()))
    store.put_vector(key, text, vector=numbers)


def leave_provider(store: AngelStore) -> None:
    store.fill(OTHER_PROVIDER)
    store.execute("INSERT INTO collections VALUES ('c', 'memories', 8, 'd')", path=store.chroma(OTHER_PROVIDER))
    store.execute("INSERT INTO segments VALUES ('s', 'urn', 'METADATA', 'c')", path=store.chroma(OTHER_PROVIDER))
    store.execute("INSERT INTO embeddings VALUES (99, 's', 'm', 1)", path=store.chroma(OTHER_PROVIDER))


def lose_a_text(store: AngelStore) -> None:
    """Give the collection the full-text index that Chroma has, without the text of one document."""
    add_full_text(store, store.chroma())
    assert check(store) == {}
    store.execute(f"DELETE FROM {FULL_TEXT}_content WHERE id = 1", path=store.chroma())


DAMAGE = {
    "changed": (lambda s: changed(s, READ_AT + 9), "angel.record-changed", "next scan would notice"),
    "unseen": (lambda s: changed(s, READ_AT - 9), "angel.record-changed", "scan would not notice"),
    "lines": (
        lambda s: s.execute("UPDATE note_index_records SET total_lines = 9 WHERE note_short_id = 0"),
        "angel.record-changed",
        "1 file",
    ),
    "new": (lambda s: s.write("new.md", "# New\n"), "angel.record-missing", "next scan would make"),
    "never read": (never_read, "angel.record-missing", "marked as read"),
    "gone": (
        lambda s: (s.raw / "notes/dup.md").unlink(),
        "angel.file-missing",
        "1 file recorded but missing",
    ),
    "outside": (lead_outside, "angel.file-outside", "1 path of records pointing outside raw/"),
    "state gone": (lambda s: s.state_file.unlink(), "angel.state", "it is missing"),
    "state broken": (lambda s: s.state_file.write_text("{"), "angel.state", "it cannot be read"),
    "state odd": (lambda s: s.state_file.write_text("[]"), "angel.state", "it is not a JSON object"),
    "raw gone": (lambda s: shutil.rmtree(s.raw), "angel.unreadable", "raw cannot be used: it is missing"),
    "no file index": (lambda s: s.file_index.unlink(), "angel.unreadable", "file_index_global.db cannot be used"),
    "no records": (lambda s: s.execute("DROP TABLE global_tags"), "angel.unreadable", "it has no table global_tags"),
    "old records": (
        lambda s: s.execute("ALTER TABLE note_index_records DROP COLUMN total_lines"),
        "angel.unreadable",
        "it has no column total_lines",
    ),
    "noise": (lambda s: s.database.write_bytes(os.urandom(9999)), "angel.unreadable", "it is damaged"),
    "short vector": (lambda s: another_vector(s, 1.0, 2.0), "angel.dimension", "from the 8 dimensions"),
    "zeros": (lambda s: another_vector(s, *[0.0] * 8), "angel.vector-unusable", "1 vector"),
    "not a number": (lambda s: another_vector(s, *[float("nan")] * 8), "angel.vector-unusable", "1 vector"),
    "lost vectors": (
        lambda s: s.execute("DELETE FROM embeddings_queue", path=s.chroma()),
        "angel.vector-unusable",
        "11 vectors",
    ),
    "no collection": (
        lambda s: s.execute("DELETE FROM collections", path=s.chroma()),
        "angel.vector-missing",
        "11 records",
    ),
    "provider gone": (lambda s: shutil.rmtree(s.chroma().parents[1]), "angel.vector-missing", "11 records"),
    "provider changed": (
        lambda s: s.fill(OTHER_PROVIDER, {}),
        "angel.provider-changed",
        "the next sync makes 11 vectors",
    ),
    "never synced": (
        lambda s: s.set_state(notes_vector_sync_last_provider=""),
        "angel.provider-changed",
        "no sync was ever made: the next sync makes 0 vectors",
    ),
    "provider left": (leave_provider, "angel.provider-leftover", "and in it the 1 collection memories"),
    "full text": (lose_a_text, "angel.full-text", "chroma.sqlite3 is damaged: "),
    "double": (double_short_id, "angel.short-id-double", "1 short id shared by several records"),
    "memory": (
        lambda s: s.execute("INSERT INTO memory_tag_rel VALUES ('m', 1)"),
        "angel.relation-orphan",
        "1 relation belonging to a missing memory",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(store: AngelStore, damage: str) -> None:
    plant, name, said = DAMAGE[damage]
    plant(store)
    found = check(store)
    assert set(found) == {name}
    assert said in found[name]["message"]
    assert found[name]["severity"] == FINDINGS[name].severity


def test_every_finding_is_planted(tmp_path: Path) -> None:
    planted = {name for _, name, _ in DAMAGE.values()} | set(check(damaged(tmp_path / "data")))
    assert planted | {findings.FILE_UNREADABLE} == ANGEL


def test_a_file_that_cannot_be_read_is_named(store: AngelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(place: Path, relative: str) -> list[angel_memory_notes.Note]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(angel_memory_notes, "read_notes", failing)
    found = check(store)
    assert set(found) == {"angel.file-unreadable"}
    assert (found["angel.file-unreadable"]["count"], found["angel.file-unreadable"]["repair"]) == (6, None)


def test_a_tag_that_was_renamed_makes_records_and_vectors_differ(store: AngelStore) -> None:
    store.execute("UPDATE global_tags SET name = 'Trips' WHERE name = 'Trip'")
    assert set(check(store)) == {"angel.record-changed", "angel.document-stale"}


def test_a_damaged_file_is_found_deep_inside(store: AngelStore) -> None:
    content = bytearray(store.file_index.read_bytes())
    content[-4096 + 2 : -4096 + 9] = b"\xff" * 7
    store.file_index.write_bytes(content)
    assert "angel.unreadable" in check(store, "--deep")


def test_a_page_has_numbers_and_no_names(tmp_path: Path) -> None:
    store = damaged(tmp_path / "data")
    page = tmp_path / "page.html"
    assert run("check", store.root, "--report", page).status == 1
    text = page.read_text("utf-8")
    assert "angel.vector-missing" in text
    assert "plan.md" not in text


def test_a_quick_look_reads_no_file(store: AngelStore) -> None:
    changed(store, READ_AT + 9)
    store.put_vector(next(iter(store.texts())), "old words")
    assert check(store, "--quick") == {}


def test_time_can_be_over(store: AngelStore) -> None:
    answer = run("check", store.root, "--json", "--max-duration", "0").document
    assert answer["not_checked"]


def test_commands_stand_in_an_order_in_which_they_mend_all(store: AngelStore) -> None:
    changed(store, READ_AT + 9)
    store.drop_vectors(next(iter(store.texts())))
    store.add_tag("unused")
    found = check(store)
    repairs = [one["repair"].split()[1] for one in reversed(found.values())]
    assert repairs == ["repair", "reconcile", "gc"]
    assert found["angel.tag-unused"]["repair"] == f"regraft gc {store.root} --only angel.tag-unused"


def test_memories_count_as_users_of_tags(store: AngelStore) -> None:
    store.remember("m1", "of a memory")
    assert check(store) == {}
    store.execute("DELETE FROM memory_records")
    assert set(check(store)) == {"angel.relation-orphan", "angel.tag-unused"}


def test_other_collections_are_left_alone(store: AngelStore) -> None:
    path = store.chroma()
    store.execute("INSERT INTO collections VALUES ('c', 'memories', 3, 'd')", path=path)
    store.execute("INSERT INTO segments VALUES ('s', 'urn', 'METADATA', 'c')", path=path)
    store.execute("INSERT INTO embeddings VALUES (99, 's', 'm', 1)", path=path)
    assert check(store) == {}


# --- providers -------------------------------------------------------------------------------------------------------


def test_no_provider_means_no_vectors(tmp_path: Path) -> None:
    store = build(tmp_path / "data", provider=None)
    assert check(store) == {}
    assert find_providers(store.root).in_use is None
    assert run("inspect", store.root).status == 0


def test_an_empty_collection_is_a_change_that_is_due(store: AngelStore) -> None:
    store.fill(OTHER_PROVIDER, {})
    used = find_providers(store.root)
    assert used.in_use is not None
    assert (used.in_use.name, used.stated, used.is_changed, used.leftovers) == (OTHER_PROVIDER, PROVIDER, True, ())


def test_an_empty_collection_of_long_ago_was_given_up(store: AngelStore) -> None:
    store.fill(OTHER_PROVIDER, {})
    now = time.time()
    store.set_state(last_updated_at=now)
    os.utime(store.chroma(OTHER_PROVIDER), (now - 2 * 86_400,) * 2)
    used = find_providers(store.root)
    assert used.in_use is not None
    assert used.in_use.name == PROVIDER
    assert [folder.name for folder in used.leftovers] == [OTHER_PROVIDER]
    assert set(check(store)) == {"angel.provider-leftover"}


@pytest.mark.parametrize("is_younger", [True, False])
def test_a_collection_that_a_stopped_sync_has_begun_is_a_change_that_is_due(
    store: AngelStore, is_younger: bool
) -> None:
    store.fill(OTHER_PROVIDER, dict(list(store.texts().items())[:2]))
    store.set_state(last_updated_at=READ_AT)
    with store.opened(store.chroma(OTHER_PROVIDER)) as db:
        db.execute("ALTER TABLE embeddings ADD COLUMN created_at TIMESTAMP")
        db.execute(
            "UPDATE embeddings SET created_at = datetime(?, 'unixepoch')", (READ_AT + (60 if is_younger else -60),)
        )
    used = find_providers(store.root)
    assert used.in_use is not None
    assert used.in_use.name == (OTHER_PROVIDER if is_younger else PROVIDER)
    assert ("angel.provider-changed" in check(store)) == is_younger
    assert ("angel.provider-leftover" in check(store)) != is_younger


def test_of_several_empty_collections_the_latest_counts(store: AngelStore) -> None:
    store.fill("one", {})
    store.fill("two", {})
    os.utime(store.chroma("two"), (READ_AT, READ_AT))
    os.utime(store.chroma("one"), (READ_AT + 1, READ_AT + 1))
    used = find_providers(store.root)
    assert used.in_use is not None
    assert used.in_use.name == "one"
    assert [folder.name for folder in used.leftovers] == ["two"]


def test_the_user_may_say_which_provider_it_is(store: AngelStore) -> None:
    used = find_providers(store.root, "a/b")
    assert used.in_use is not None
    assert (used.in_use.name, used.is_changed, used.leftovers) == ("a_b", True, ())


@pytest.mark.parametrize("key", database.PROVIDER_KEYS)
def test_the_provider_of_the_last_sync_may_stand_in_other_fields(store: AngelStore, key: str) -> None:
    store.set_state(**{**dict.fromkeys(database.PROVIDER_KEYS, ""), key: "openai-embed/v1"})
    assert database.last_provider(database.read_state(store.root)) == PROVIDER
    assert check(store) == {}


def test_without_a_state_file_the_folder_that_is_there_counts(store: AngelStore) -> None:
    store.state_file.unlink()
    with pytest.raises(AngelProblem, match="it is missing"):
        database.read_state(store.root)
    used = find_providers(store.root)
    assert used.in_use is not None
    assert (used.in_use.name, used.is_changed) == (PROVIDER, False)


def test_a_look_names_every_provider(store: AngelStore) -> None:
    store.fill(OTHER_PROVIDER, {})
    document = run("inspect", store.root, "--json").document
    folders = {one["provider"]: (one["use"], one["vectors"]) for one in document["health"]["providers"]}
    assert folders == {OTHER_PROVIDER: ("in use", 0), PROVIDER: ("of the last sync", 11)}
    assert document["health"]["problems"]
    text = run("inspect", store.root).stdout
    assert f"provider {OTHER_PROVIDER} (in use): 0 vectors" in text


def test_records_and_vectors_are_listed(store: AngelStore) -> None:
    keys = list(store.texts())
    store.drop_vectors(keys[0])
    store.put_vector(keys[1], "old words")
    store.put_vector(keys[2], store.texts()[keys[2]], vector=[0.0] * 8)
    store.put_vector("note_ghost", "a ghost", source_id="note_other")
    with untouched(store.root):
        health = run("inspect", store.root, "--items", "--json").document["health"]
    with closing(sqlite3.connect(store.database)) as db:
        rows = db.execute(
            "SELECT note_short_id, source_id, source_file_path, total_lines, updated_at FROM note_index_records"
            " ORDER BY note_short_id"
        ).fetchall()
        names = dict(
            db.execute(
                "SELECT source_id, group_concat(name, '|') FROM (SELECT n.source_id, t.name FROM note_tag_rel n"
                " JOIN global_tags t ON t.id = n.tag_id ORDER BY n.source_id, t.id) GROUP BY source_id"
            )
        )
    listed = health["record_list"]
    fields = ("note_short_id", "source_id", "path", "total_lines", "updated_at")
    assert [tuple(one[field] for field in fields) for one in listed] == rows
    assert {one["source_id"]: "|".join(one["tags"]) for one in listed} == names
    states = {keys[0]: "missing", keys[1]: "stale", keys[2]: "unusable"}
    assert {one["source_id"]: one["vector"] for one in listed} == {key: states.get(key, "current") for key in keys}
    with closing(sqlite3.connect(store.chroma())) as db:
        documents = dict(
            db.execute(
                "SELECT e.embedding_id, m.string_value FROM embeddings e JOIN embedding_metadata m ON m.id = e.id"
                " WHERE m.key = 'chroma:document'"
            )
        )
    vectors = health["vector_list"]
    assert {one["source_id"]: one["document"] for one in vectors} == documents
    states = {keys[1]: "stale", keys[2]: "unusable", "note_ghost": "orphan"}
    assert {one["source_id"]: one["state"] for one in vectors} == {key: states.get(key, "current") for key in documents}
    assert {(one["stored"], one["dimensions"]) for one in vectors} == {("queue", 8)}
    ghost = vectors[[one["source_id"] for one in vectors].index("note_ghost")]
    assert ghost["metadata"] == {"source_id": "note_other"}
    text = run("inspect", store.root, "--items").stdout
    assert f"       0  {rows[0][2]}" in text
    assert "note_ghost (orphan)  a ghost" in text
    assert "record_list" not in run("inspect", store.root, "--json").document["health"]


def test_lists_of_a_damaged_folder_say_what_cannot_be_read(store: AngelStore) -> None:
    store.chroma().write_bytes(b"no database" * 1000)
    health = run("inspect", store.root, "--items", "--json").document["health"]
    assert len(health["record_list"]) == len(store.records())
    assert {one["vector"] for one in health["record_list"]} == {None}
    assert health["vector_list"] == []
    assert any(PROVIDER in problem for problem in health["problems"])
    store.execute("DROP TABLE global_tags")
    health = run("inspect", store.root, "--items", "--json").document["health"]
    assert (health["record_list"], health["vector_list"]) == ([], [])


def test_a_look_says_what_cannot_be_read(store: AngelStore) -> None:
    store.execute("DROP TABLE global_tags")
    store.state_file.unlink()
    problems = run("inspect", store.root, "--json").document["health"]["problems"]
    assert any("global_tags" in problem for problem in problems)
    assert any("maintenance_state.json: it is missing" in problem for problem in problems)


# --- what the system itself wrote ------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@needs_samples
def test_nothing_is_wrong_with_the_healthy_sample(tmp_path: Path, level: str) -> None:
    root = sample("healthy", tmp_path).root
    with untouched(root):
        assert check(root, level) == {}


@needs_samples
def test_every_damage_of_the_damaged_sample_is_named(tmp_path: Path) -> None:
    root = sample("damaged", tmp_path).root
    with untouched(root):
        found = check(root)
    assert {name: one["count"] for name, one in found.items()} == {
        "angel.short-id-sequence": 1,
        "angel.file-missing": 1,
        "angel.record-changed": 1,
        "angel.vector-missing": 3,
        "angel.document-stale": 1,
        "angel.vector-orphan": 2,
        "angel.metadata": 1,
        "angel.relation-dangling": 1,
        "angel.relation-orphan": 1,
        "angel.tag-unused": 1,
    }
    assert found["angel.file-missing"]["subject"] == "notes/work/plain.txt"
    assert found["angel.record-changed"]["subject"] == "notes/family/travel/plan.md"


@needs_samples
def test_the_sample_whose_provider_changed_is_told(tmp_path: Path) -> None:
    root = sample("provider_changed_before_sync", tmp_path).root
    with untouched(root):
        found = check(root)
    assert set(found) == {"angel.provider-changed"}
    assert found["angel.provider-changed"]["subject"] == OTHER_PROVIDER
    assert found["angel.provider-changed"]["repair"] == f"regraft reconcile {root}"


def test_the_builder_makes_what_the_system_makes(store: AngelStore) -> None:
    """The ids of notes that the samples have, too."""
    ids = {record.path: record.source_id for record in store.records() if record.path == "data.csv"}
    assert ids == {"data.csv": "note_e774a73e1f029fb642b00e7fc74dc542"}
    assert COLLECTION_ID in TOPIC
    assert set(NOTES) - {record.path for record in store.records()} == {"skip.png"}


def test_apsw_is_what_reads(store: AngelStore) -> None:
    with database.open_records(store.root) as db, pytest.raises(apsw.ReadOnlyError):
        db.execute("DELETE FROM global_tags")
