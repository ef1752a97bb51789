"""A KB of rsclaw as a source: what is carried, in which form, and why the rest is not."""

from __future__ import annotations

import json
import shutil
import struct
from itertools import islice
from pathlib import Path

import pytest
from harness import run, snapshot
from rsclaw_migrated import carried, items, library_of, migrate, only_base, rows, skipped
from rsclaw_store import SAMPLE, RsclawStore, embed, markdown_file, needs_samples

from regraft import identity
from regraft.formats.rsclaw import chunks as rsclaw_chunks


@pytest.fixture
def store(tmp_path: Path) -> RsclawStore:
    return RsclawStore(tmp_path / "kb")


def vector(text: str, dimensions: int = 4) -> bytes:
    return struct.pack(f"<{dimensions}f", *embed(text, dimensions))


# --- the sample ------------------------------------------------------------------------------------------------------


@needs_samples
def test_the_sample_is_carried_bit_for_bit(tmp_path):
    shutil.copytree(SAMPLE / "kb", tmp_path / "kb")
    before = snapshot(tmp_path / "kb")
    outcome = migrate(tmp_path / "kb")
    assert snapshot(tmp_path / "kb") == before
    assert outcome.status == 1, outcome.stderr
    assert skipped(outcome) == {"tombstoned": 1, "dimension_mismatch": 1, "not_visible": 2, "unmapped_loader": 1}

    stored = json.loads((SAMPLE / "rows.json").read_text("utf-8"))
    chunks = [json.loads(bytes.fromhex(value)) for value in stored["kb_chunks"].values()]
    expected = {chunk["indexed_text"]: struct.pack(f"<{len(chunk['vector'])}f", *chunk["vector"]) for chunk in chunks}
    found = carried(tmp_path / "kb")
    assert len(found) == 16
    for _, _, text, blob in found:
        assert blob == expected[text]
    assert [place for path, place, _, _ in found if path == "Handbook.md"] == list(range(11))


@needs_samples
def test_the_content_of_the_sample_is_its_chunks_in_order(tmp_path):
    shutil.copytree(SAMPLE / "kb", tmp_path / "kb")
    migrate(tmp_path / "kb")
    texts = [text for path, _, text, _ in carried(tmp_path / "kb") if path == "Handbook.md"]
    query = """SELECT c.text FROM material m JOIN content c ON c.content_hash = m.current_content_hash
                WHERE m.relative_path = 'Handbook.md'"""
    ((content,),) = rows(only_base(tmp_path / "kb") / ".cherry/index.sqlite", query)
    assert content == "\n\n".join(texts)
    (source,) = (tmp_path / "kb/md/doc").glob("handbook--*")
    assert (only_base(tmp_path / "kb") / "raw/Handbook.md").read_bytes() == source.read_bytes()
    found = items(tmp_path / "kb")
    assert found["Page.md"] == (
        "file",
        "completed",
        {"source": "https://example.com/x?a=1&b=2", "relativePath": "Page.md"},
    )
    assert {path for path, (_, status, _) in found.items() if status == "failed"} == {
        *("Poison.md", "Other embedder.md", "Stuck.md", "Queued.md")
    }


@needs_samples
def test_the_library_of_the_sample_audits_clean_but_for_the_file_that_is_gone(tmp_path):
    shutil.copytree(SAMPLE / "kb", tmp_path / "kb")
    migrate(tmp_path / "kb")
    report = run("check", library_of(tmp_path / "kb"), "--deep", "--json").document
    assert [(one["name"], one["count"]) for one in report["findings"]] == [("raw.missing", 1)]
    found = run("search", library_of(tmp_path / "kb"), "word1_1", "--json").document
    assert found["hits"][0]["relative_path"] == "Handbook.md"


# --- a store of one's own -----------------------------------------------------------------------------------------


def test_documents_become_items_and_chunks_their_units(store):
    url = {"type": "url", "url": "https://example.com/a", "fetched_at": 1}
    store.doc("Guide", ["First.", "Second 中文."], source=url, tags=["a"])
    store.doc("Plan: a/b", ["Only."], source={"type": "doc", "path": "/home/me/plan.pdf"})
    outcome = migrate(store.write())
    assert outcome.status == 0
    assert carried(store.root) == [
        ("Guide.md", 0, "Guide\n\nFirst.", vector("Guide\n\nFirst.")),
        ("Guide.md", 1, "Guide\n\nSecond 中文.", vector("Guide\n\nSecond 中文.")),
        ("Plan_ a_b.md", 0, "Plan: a/b\n\nOnly.", vector("Plan: a/b\n\nOnly.")),
    ]
    found = items(store.root)
    assert found["Guide.md"][2]["source"] == "https://example.com/a"
    assert found["Plan_ a_b.md"][2]["source"] == "/home/me/plan.pdf"
    (base,) = rows(
        library_of(store.root) / "catalog.sqlite",
        "SELECT id, name, dimensions, embedding_model_id, status FROM knowledge_base",
    )
    assert base == (identity.base_id("rsclaw"), "rsclaw", 4, "rsclaw::stub-4", "completed")
    assert rows(library_of(store.root) / "catalog.sqlite", "SELECT provider_id FROM user_provider") == [("rsclaw",)]


def test_chunks_come_in_the_order_of_their_numbers_with_gaps_and_twice(store):
    doc = store.doc("Doc", [], job="done")
    texts = {9: "nine", 2: "two", 300: "three hundred", 5: "five"}
    for seq, text in texts.items():
        store.chunk(doc, seq, text, (0, 0))
    store.chunk(doc, 5, "five again", (0, 0))
    migrate(store.write())
    found = [text.removeprefix("Doc\n\n") for _, _, text, _ in carried(store.root)]
    assert found[0] == "two"
    assert set(found[1:3]) == {"five", "five again"}
    assert found[3:] == ["nine", "three hundred"]


def test_documents_come_in_the_order_of_their_making(store):
    for title, age in (("C", 3), ("A", 9), ("B", 5)):
        store.doc(title, age_days=age)
    migrate(store.write())
    assert [path for path, *_ in carried(store.root)] == ["A.md", "B.md", "C.md"]


def test_a_second_run_changes_nothing_and_a_third_follows_the_source(store):
    store.doc("One", ["a"])
    migrate(store.write())
    before = snapshot(library_of(store.root))
    assert migrate(store.root).document["bases"][0]["outcome"] == "unchanged"
    assert {name: one for name, one in snapshot(library_of(store.root)).items() if ".regraft" not in name} == {
        name: one for name, one in before.items() if ".regraft" not in name
    }
    store.doc("Two", ["b"])
    store.write()
    assert migrate(store.root).document["bases"][0]["outcome"] == "written"
    assert [path for path, *_ in carried(store.root)] == ["One.md", "Two.md"]


def test_an_edited_file_is_carried_anew(store):
    doc = store.doc("One", ["a"])
    migrate(store.write())
    store.file(doc["markdown_path"], markdown_file(doc, "a, edited").encode())
    assert migrate(store.root).document["bases"][0]["outcome"] == "written"
    assert (only_base(store.root) / "raw/One.md").read_text("utf-8").endswith("a, edited")


def test_the_base_keeps_its_id_wherever_the_kb_lies(store, tmp_path):
    store.doc("One", ["a"])
    store.write()
    shutil.copytree(store.root, tmp_path / "elsewhere" / "copy")
    (tmp_path / "elsewhere/copy/kb.redb").rename(tmp_path / "elsewhere/copy/other.redb")
    first = migrate(store.root).document["bases"][0]
    other = tmp_path / "elsewhere/copy/other.redb"
    second = run("migrate", other, "--to", tmp_path / "two", "--json", "--yes").document["bases"][0]
    assert (first["id"], first["legacy_id"]) == (second["id"], second["legacy_id"])


@pytest.mark.parametrize("named", ["", "kb.redb", ".."])
def test_a_kb_is_recognised_by_any_path_to_it(store, named):
    store.doc("One", ["a"])
    store.write()
    outcome = run("migrate", store.root / named, "--to", store.root.parent.parent / "out", "--json", "--yes")
    assert outcome.document["source"]["kind"] == "rsclaw"
    shutil.rmtree(store.root.parent.parent / "out")


def test_a_kb_without_documents_has_no_base(store):
    outcome = migrate(store.write())
    assert (outcome.status, outcome.document["bases"]) == (0, [])


def test_a_document_without_chunks_is_an_item_that_can_be_indexed(store):
    store.doc("Waits", ["a"], job="ready")
    store.doc("There", ["b"])
    outcome = migrate(store.write())
    assert outcome.status == 1
    assert [one["code"] for one in outcome.document["warnings"] if one["count"] and one["item"]] == [
        "document_without_rows"
    ]
    assert items(store.root)["Waits.md"][:2] == ("file", "failed")
    assert (only_base(store.root) / "raw/Waits.md").is_file()
    report = run("check", library_of(store.root), "--json").document
    assert report["summary"]["by_severity"]["error"] == 0


# --- what is not carried ------------------------------------------------------------------------------------------


def test_only_the_latest_version_of_an_active_document_is_carried(store):
    store.doc("Old", ["old"], lsid="file:custom:a", version=1)
    store.doc("New", ["new"], lsid="file:custom:a", version=2)
    store.doc("Gone", ["gone"], status="tombstoned")
    store.doc("Half", ["half"], status="updating")
    outcome = migrate(store.write())
    assert skipped(outcome) == {"superseded": 1, "tombstoned": 1, "updating": 1}
    assert [path for path, *_ in carried(store.root)] == ["New.md"]
    assert outcome.document["bases"][0]["items"] == {"completed": 1}


def test_no_older_version_is_shown_where_both_rows_are_lost(store):
    store.doc("Was for all", ["old"], lsid="file:custom:a", version=1)
    newest = store.doc("Is not", ["new"], lsid="file:custom:a", version=2, visibility={"type": "private"}, owner="me")
    del store.tables["kb_doc_latest_version"][b"file:custom:a"]
    store.put("kb_docs", newest["id"], b"{")
    assert skipped(migrate(store.write())) == {"superseded": 1, "row_unreadable": 1}


@pytest.mark.parametrize("odd", ["no row", "not of its form", "of another source"])
def test_without_a_row_of_the_latest_version_the_highest_counts(store, odd):
    store.doc("Old", ["old"], lsid="file:custom:a", version=1)
    store.doc("New", ["new"], lsid="file:custom:a", version=2)
    other = store.doc("Other", [])
    del store.tables["kb_doc_latest_version"][b"file:custom:a"]
    if odd != "no row":
        store.put("kb_doc_latest_version", "file:custom:a", {"doc_id": other["id"], "version": 1})
    if odd == "not of its form":
        store.put("kb_doc_latest_version", "file:custom:a", b"{}")
    assert skipped(migrate(store.write())) == {"superseded": 1}
    assert [path for path, *_ in carried(store.root)] == ["New.md"]


def test_no_older_version_takes_the_place_of_one_that_cannot_be_read(store):
    store.doc("Was for all", ["old"], lsid="file:custom:a", version=1)
    store.put("kb_doc_latest_version", "file:custom:a", {"doc_id": "nobody", "version": 2})
    outcome = migrate(store.write())
    assert skipped(outcome) == {"superseded": 1}
    assert outcome.document["bases"][0]["items"] == {}


def test_the_row_of_the_latest_version_is_believed(store):
    first = store.doc("Back", ["old"], lsid="file:custom:a", version=1)
    store.doc("Away", ["new"], lsid="file:custom:a", version=2)
    store.put("kb_doc_latest_version", "file:custom:a", {"doc_id": first["id"], "version": 1})
    assert skipped(migrate(store.write())) == {"superseded": 1}
    assert [path for path, *_ in carried(store.root)] == ["Back.md"]


def test_the_embedder_of_most_chunks_decides(store):
    store.doc("Many", ["a", "b", "c"])
    store.doc("Same size", ["d"], embedder="other")
    store.doc("Other size", ["e"], embedder="third", dimensions=8)
    mixed = store.doc("Mixed", ["f"])
    store.chunk(mixed, 1, "g", (0, 1), dimensions=8)
    outcome = migrate(store.write())
    assert skipped(outcome) == {"other_embedder": 1, "dimension_mismatch": 2}
    assert [text.split("\n\n")[1] for _, _, text, _ in carried(store.root)] == ["a", "b", "c", "f"]
    assert {path for path, one in items(store.root).items() if one[1] == "failed"} == {"Same size.md", "Other size.md"}


def test_chunks_that_are_not_carried_have_no_say_in_the_embedder(store):
    store.doc("Hidden", ["a", "b", "c"], embedder="other", dimensions=8, visibility={"type": "private"}, owner="u")
    store.doc("Seen", ["d"])
    outcome = migrate(store.write())
    assert skipped(outcome) == {"not_visible": 3}
    assert outcome.document["bases"][0]["dimensions"] == 4


def test_texts_of_another_embedder_come_along_where_texts_are_asked_for(store):
    store.doc("Many", ["a", "b"])
    store.doc("Same size", ["d"], embedder="other")
    store.doc("Other size", ["e"], embedder="third", dimensions=8)
    store.doc("Gone", ["gone"], status="tombstoned")
    outcome = migrate(store.write(), "--carry-text")
    assert skipped(outcome) == {"tombstoned": 1}
    assert [(text.split("\n\n")[1], blob is None) for _, _, text, blob in carried(store.root)] == [
        *(("a", False), ("b", False), ("d", True), ("e", True))
    ]
    assert all(one[1] == "completed" for one in items(store.root).values())


def test_ranges_outside_the_body_are_left_out_where_the_body_is_the_one_they_are_of(store):
    doc = store.doc("Doc", ["abc", "def"])
    for seq, place in enumerate([(0, 9), (-1, 3), (5, 4), (8, 8)], 10):
        store.chunk(doc, seq, f"odd {seq}", place)
    edited = store.doc("Edited", ["abc"])
    store.chunk(edited, 5, "beyond", (0, 900))
    store.file(edited["markdown_path"], markdown_file(edited, "other").encode())
    gone = store.doc("Gone", ["abc"])
    store.chunk(gone, 5, "beyond", (0, 900))
    (store.root / gone["markdown_path"]).unlink()
    outcome = migrate(store.write())
    assert skipped(outcome) == {"range_outside": 3}
    assert len(carried(store.root)) == 2 + 1 + 2 + 2


def test_vectors_that_cannot_be_searched_have_their_reason(store):
    odd = {"null": [None, 1.0, 1.0, 1.0], "large": [1e39, 1.0, 1.0, 1.0], "empty": [], "text": "no", "words": ["a"] * 4}
    doc = store.doc("Doc", ["fine"])
    for seq, (text, numbers) in enumerate(odd.items(), 1):
        store.chunk(doc, seq, text, (0, 0), vector=numbers)
    store.chunk(doc, 9, "zero", (0, 0), vector=[0.0] * 4)
    outcome = migrate(store.write())
    assert skipped(outcome) == {
        "non_finite_vector": 2,
        "missing_vector_payload": 1,
        "unsupported_vector_encoding": 2,
    }
    assert carried(store.root)[-1][3] == b"\0" * 16
    assert "degenerate_vector" in {one["code"] for one in outcome.document["warnings"]}


def test_rows_that_are_not_of_their_form_are_counted(store):
    store.doc("Doc", ["fine"])
    store.put("kb_chunks", "x1", b"not json")
    store.put("kb_chunks", "x2", {"id": "x2"})
    store.put("kb_chunks", "x3", {**next(iter(store.tables["kb_chunks"].values())), "seq": -1, "id": "x3"})
    store.put("kb_docs", "d1", b"[]")
    outcome = migrate(store.write())
    assert outcome.status == 1
    assert skipped(outcome) == {"row_unreadable": 3}
    # Of the documents, one.
    assert outcome.document["skipped"] == {"row_unreadable": 1}


ODD_ROWS = {
    "no JSON": b"{",
    "a version of text": b'"version":"1"}',
    "nested": b'"meta":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "a half surrogate": b'"title":"\\ud800"}',
    "a huge number": b'"version":' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("odd", ODD_ROWS)
def test_a_document_that_cannot_be_read_is_no_quiet_loss(store, odd):
    doc = store.doc("Doc", ["lost"])
    store.doc("Fine", ["fine"])
    # Of two fields of one name, the last one counts.
    begin = b"" if odd == "no JSON" else json.dumps(doc).encode()[:-1] + b","
    store.put("kb_docs", doc["id"], begin + ODD_ROWS[odd])
    outcome = migrate(store.write())
    assert outcome.status == 1
    assert skipped(outcome) == {"row_unreadable": 1}
    assert outcome.document["skipped"] == {"row_unreadable": 1}
    told = [one["message"] for one in outcome.document["warnings"] if one["code"] == "row_unreadable"]
    assert sorted(told) == ["1 row not migrated (for example rowid 2)", "1 row of documents in an unknown form"]


@pytest.mark.parametrize("field", ["vector", "locator", "meta"])
def test_a_chunk_with_something_nested_too_deep(store, field):
    doc = store.doc("Doc", ["fine"])
    chunk = store.chunk(doc, 1, "odd", (0, 1))
    nested = b"[" * 200_000 + b"]" * 200_000
    store.put("kb_chunks", chunk["id"], json.dumps(chunk).encode()[:-1] + f',"{field}":'.encode() + nested + b"}")
    outcome = migrate(store.write())
    assert sum(skipped(outcome).values()) == 1
    assert len(carried(store.root)) == 1


def test_a_document_with_an_empty_id_takes_no_other_with_it(store):
    doc = store.doc("Odd", ["odd"])
    store.doc("Fine", ["fine"])
    store.put("kb_docs", "", {**doc, "id": ""})
    assert skipped(migrate(store.write())) == {}
    assert {path for path, *_ in carried(store.root)} == {"Odd.md", "Fine.md"}


def test_the_base_stays_one_when_its_first_document_goes(store):
    gone = store.doc("First", ["first"], status="tombstoned")
    store.doc("Second", ["second"])
    migrate(store.write())
    for chunk in [key for key, one in store.tables["kb_chunks"].items() if one["doc_id"] == gone["id"]]:
        del store.tables["kb_chunks"][chunk]
    del store.tables["kb_docs"][gone["id"].encode()]
    migrate(store.write())
    assert [path for path, *_ in carried(store.root)] == ["Second.md"]


def test_a_base_of_another_kb_is_not_written_over(store, tmp_path):
    store.doc("One", ["a"])
    migrate(store.write())
    before = snapshot(library_of(store.root))
    other = RsclawStore(tmp_path / "other" / "kb")
    other._count = 500
    other.doc("Two", ["b"])
    line = ("migrate", other.write(), "--to", library_of(store.root), "--yes")
    assert run(*line, "--json").document["error"]["code"] == "TargetBaseOfAnother"
    outcome = run(*line)
    assert outcome.status == 2
    assert outcome.stderr == (
        f"regraft: {library_of(store.root)}: its base rsclaw was migrated from another knowledge base, which has no "
        "document in common with this one; give another folder.\n"
    )
    after = snapshot(library_of(store.root))
    assert {name: one for name, one in after.items() if ".regraft" not in name} == {
        name: one for name, one in before.items() if ".regraft" not in name
    }


def test_a_document_of_which_no_vector_can_be_searched_is_marked_failed(store):
    store.doc("Fine", ["fine"])
    odd = store.doc("Odd", [])
    store.chunk(odd, 0, "null", (0, 0), vector=[None] * 4)
    outcome = migrate(store.write())
    assert items(store.root)["Odd.md"][1] == "failed"
    assert "document_without_rows" in {one["code"] for one in outcome.document["warnings"]}
    report = run("check", library_of(store.root), "--json").document
    assert "item.no-material" not in {one["name"] for one in report["findings"]}


def test_a_file_that_was_edited_is_told(store):
    doc = store.doc("One", ["a"])
    store.file(doc["markdown_path"], markdown_file(doc, "other").encode())
    outcome = migrate(store.write())
    assert [one["message"] for one in outcome.document["warnings"] if one["code"] == "document_changed"] == [
        "the file of One has changed since its chunks were made"
    ]


def test_rows_in_damaged_pages_are_told_and_the_others_carried(store):
    for number in range(40):
        store.doc(f"Doc {number}", [f"text {number} " + "word " * 100])
    root = store.write()
    file = root / "kb.redb"
    content = bytearray(file.read_bytes())
    # In a text of some chunk.
    place = content.index(b"text 20 word") + 40
    content[place] ^= 1
    file.write_bytes(content)
    outcome = migrate(root)
    assert outcome.status == 1
    (told,) = [one for one in outcome.document["warnings"] if one["code"] == "pages_damaged"]
    assert told["count"] >= 1
    texts = [text for _, _, text, _ in carried(root)]
    assert len(texts) + told["count"] == 40
    assert not any("text 20 " in text for text in texts)
    for text in texts:
        assert text == f"Doc {text.split()[3]}\n\ntext {text.split()[3]} " + "word " * 100


def test_a_chunk_that_only_the_first_reading_gives_is_named(store, monkeypatch):
    """The database is read twice: for what is decided, and for texts and vectors."""
    store.doc("Plan", ["One paragraph.", "Another one.", "A third one."])
    store.write()
    real = rsclaw_chunks._write
    monkeypatch.setattr(rsclaw_chunks, "_write", lambda db, chunks, mirror: real(db, islice(chunks, 1, None), mirror))
    done = migrate(store.root)
    (base,) = done.document["bases"]
    assert (base["rows"]["read"], base["rows"]["carried"]) == (3, 2)
    assert skipped(done) == {"row_unreadable": 1}
    assert len(carried(store.root)) == 2
