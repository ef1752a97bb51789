"""Damage of chunks, files and caches of a KB of rsclaw: one finding at a time."""

from __future__ import annotations

from planting import planting
from rsclaw_store import DIMENSIONS, RsclawStore
from whole_rsclaw import CUSTOM, FULL_TEXT, SNAPSHOT, chunks, doc, drop, entry, full_text, rename_chunk

HOUR_MS = 3_600_000

# --- chunks ----------------------------------------------------------------------------------------------------------


@planting("kb.chunk-range", "error", "1 chunk whose range is outside the text", ": 0-999", unseen=("--quick",))
def a_range_that_is_too_long(store: RsclawStore) -> None:
    chunks(store, "New")[0]["byte_offset"] = [0, 999]


@planting("kb.chunk-range", "error", "whose range is outside the text", ": 5-4")
def a_range_that_ends_before_it_begins(store: RsclawStore) -> None:
    chunks(store, "New")[0]["byte_offset"] = [5, 4]


@planting(
    "kb.chunk-id", "warning", "1 chunk whose id is not the one made from its text", "New (", unseen=("--quick", "")
)
def an_id_of_another_text(store: RsclawStore) -> None:
    rename_chunk(store, chunks(store, "New")[0], "0" * 32)


@planting("kb.chunk-orphan", "warning", "with a different version or source than its document: New (")
def a_chunk_of_another_version(store: RsclawStore) -> None:
    chunks(store, "New")[0]["doc_version"] = 1


@planting("kb.chunk-orphan", "warning", "1 chunk belonging to a missing document: 01GONE")
def a_chunk_of_no_document(store: RsclawStore) -> None:
    gone = {**doc(store, "Handbook"), "id": "01GONE"}
    store.chunk(gone, 9, "Of nobody.", (0, 10))
    full_text(store)


@planting("kb.chunk-index", "error", "1 id listed under a source, but not existing as a chunk: ffff")
def a_listed_chunk_that_is_not_there(store: RsclawStore) -> None:
    store.put("kb_chunk_by_logical", f"{CUSTOM}\0{'f' * 32}")


@planting("kb.chunk-index", "error", "1 chunk not listed under the source: New (")
def a_chunk_that_is_not_listed(store: RsclawStore) -> None:
    drop(store, "kb_chunk_by_logical", f"{CUSTOM}\0{chunks(store, 'New')[0]['id']}")


@planting(
    "kb.dimensions", "error", "1 chunk whose vector has a different length than the 4 of most others: New (", ": 2;"
)
def a_vector_of_another_length(store: RsclawStore) -> None:
    chunks(store, "New")[0]["vector"] = [1.0, 0.5]


@planting("kb.dimensions", "error", "1 chunk without a vector: New (")
def an_empty_vector(store: RsclawStore) -> None:
    chunks(store, "New")[0]["vector"] = []


@planting("kb.dimensions", "error", "1 chunk with a vector of all zeros: New (")
def a_vector_of_zeros(store: RsclawStore) -> None:
    chunks(store, "New")[0]["vector"] = [0.0, -0.0, 0, 0.0]


@planting("kb.dimensions", "error", "1 chunk with a vector that is not finite: New (")
def a_vector_with_null(store: RsclawStore) -> None:
    chunks(store, "New")[0]["vector"] = [1.0, None, 1, 1]


@planting("kb.dimensions", "error", "1 chunk with a vector that is not numeric: New (")
def a_vector_of_words(store: RsclawStore) -> None:
    chunks(store, "New")[0]["vector"] = ["1", 2, 3, 4]


@planting(
    "kb.embedders",
    "warning",
    "embedded by a different embedder than stub-4, which embedded most others: New (",
    ": other",
)
def a_vector_of_another_embedder(store: RsclawStore) -> None:
    chunks(store, "New")[0]["embedder_id"] = "other"


@planting("kb.entity", "warning", "1 mention referring to a missing chunk or entity: e2, ")
def a_mention_of_no_entity(store: RsclawStore) -> None:
    key = chunks(store, "New")[0]["id"]
    store.put("kb_entity_index", f"e2\0{key}", {"entity_id": "e2", "chunk_id": key})


@planting("kb.entity", "warning", "1 mention referring to a missing chunk or entity: e1, eeee")
def a_mention_in_no_chunk(store: RsclawStore) -> None:
    store.put("kb_entity_index", "e1\0eeee", {"entity_id": "e1", "chunk_id": "eeee"})


# --- rows ------------------------------------------------------------------------------------------------------------


@planting("kb.row", "error", "1 row not in the format that rsclaw writes: kb_entities, e2: ")
def a_row_that_is_no_json(store: RsclawStore) -> None:
    store.put("kb_entities", "e2", b"{")


@planting("kb.row", "error", "kb_collections, col_2: the key does not match the value")
def a_row_under_the_key_of_another(store: RsclawStore) -> None:
    store.put("kb_collections", "col_2", {"id": "col_1", "name": "x"})


# --- files -----------------------------------------------------------------------------------------------------------


@planting("kb.file-missing", "error", "1 file missing: md/doc/new--", "New (", "restore it from a backup")
def a_text_that_is_gone(store: RsclawStore) -> None:
    (store.root / doc(store, "New")["markdown_path"]).unlink()


@planting("kb.file-missing", "error", "1 file missing: raw/", "New (")
def a_raw_file_that_is_gone(store: RsclawStore) -> None:
    (store.root / doc(store, "New")["raw_path"]).unlink()


@planting("kb.file-missing", "note", "2 files missing for removed documents or older versions", count=2)
def files_of_a_removed_document_that_are_gone(store: RsclawStore) -> None:
    for key in ("markdown_path", "raw_path"):
        (store.root / doc(store, "Old")[key]).unlink()


@planting("kb.file-missing", "error", "that cannot be read: md/doc/new--", "New (", "Is a directory")
def a_folder_in_the_place_of_a_text(store: RsclawStore) -> None:
    place = store.root / doc(store, "New")["markdown_path"]
    place.unlink()
    place.mkdir()


@planting(
    "kb.file-changed", "error", "1 file whose text differs from the indexed text: md/doc/new--", unseen=("--quick",)
)
def a_text_that_was_edited(store: RsclawStore) -> None:
    place = store.root / doc(store, "New")["markdown_path"]
    store.file(doc(store, "New")["markdown_path"], place.read_bytes() + b" and more")


@planting(
    "kb.file-changed",
    "note",
    "of removed documents or older versions whose text differs from the indexed text: md/doc/old--",
    unseen=("--quick",),
)
def an_old_text_that_was_edited(store: RsclawStore) -> None:
    store.file(doc(store, "Old")["markdown_path"], b"other")


@planting(
    "kb.file-changed", "warning", "1 file changed since documents were made from it: raw/", unseen=("--quick", "")
)
def a_raw_file_that_was_edited(store: RsclawStore) -> None:
    store.file(doc(store, "New")["raw_path"], b"other")


@planting("kb.file-outside", "error", "1 path pointing outside md/ and raw/: md/../../x.md, Old (", "rsclaw kb rm DOC")
def a_path_that_leads_out(store: RsclawStore) -> None:
    (store.root / doc(store, "Old")["markdown_path"]).unlink()
    entry(store, "Old")["new_paths"] = []
    doc(store, "Old")["markdown_path"] = "md/../../x.md"


@planting("kb.file-outside", "error", "1 path of a ledger entry pointing outside md/ and raw/: /etc/passwd, Handbook (")
def an_entry_whose_path_leads_out(store: RsclawStore) -> None:
    entry(store, "Handbook")["old_paths"] = ["/etc/passwd"]


@planting("kb.file-orphan", "warning", "not referenced by any document or ledger entry: raw/lost.pdf")
def a_file_that_nothing_names(store: RsclawStore) -> None:
    store.file("raw/lost.pdf", b"lost", age_hours=1.01)


@planting("kb.file-orphan", "note", "replaced and waiting for the next compaction: md/doc/former.md")
def a_file_that_was_replaced(store: RsclawStore) -> None:
    store.file("md/doc/former.md", b"former")
    entry(store, "Handbook").update(
        status="indexing_complete", old_paths=["md/doc/former.md"], updated_at=store.now_ms - HOUR_MS
    )


@planting("kb.file-orphan", "note", "1 file belonging to no document, less than an hour old: raw/fresh.pdf")
def a_file_that_is_young(store: RsclawStore) -> None:
    store.file("raw/fresh.pdf", b"fresh", age_hours=0.99)


@planting("kb.file-orphan", "note", "less than an hour old: raw/future.pdf")
def a_file_of_the_future(store: RsclawStore) -> None:
    store.file("raw/future.pdf", b"future", age_hours=-24)


@planting("kb.file-orphan", "note", "named by a completed ledger entry: md/doc/former.md")
def a_file_that_a_settled_entry_names(store: RsclawStore) -> None:
    store.file("md/doc/former.md", b"former")
    entry(store, "Handbook")["old_paths"] = ["md/doc/former.md"]


@planting("kb.file-orphan", "note", "found only by a different letter case or Unicode form: md/doc/NEW--")
def a_file_in_another_letter_case(store: RsclawStore) -> None:
    store.file(doc(store, "New")["markdown_path"].replace("new--", "NEW--"), b"other")


@planting("kb.file-orphan", "note", "kept by gc (a link, a special file", "raw/link.md")
def a_link_that_nothing_names(store: RsclawStore) -> None:
    (store.root / "raw" / "link.md").symlink_to(f"{doc(store, 'New')['id']}.md")


# --- caches ----------------------------------------------------------------------------------------------------------


@planting("kb.snapshot", "warning", "1 chunk missing from the snapshot: New (", command="reconcile")
def a_snapshot_that_lacks_a_chunk(store: RsclawStore) -> None:
    missing = chunks(store, "New")[0]["id"].encode()
    store.snapshot([key.decode() for key in store.tables["kb_chunks"] if key != missing])


@planting("kb.snapshot", "warning", "1 id in the snapshot for a chunk that does not exist: aaaa", command="reconcile")
def a_snapshot_of_an_unknown_chunk(store: RsclawStore) -> None:
    store.snapshot([*(key.decode() for key in store.tables["kb_chunks"]), "a" * 32])


@planting("kb.snapshot", "warning", "of vectors of 8 dimensions, and most have 4", command="reconcile")
def a_snapshot_of_other_dimensions(store: RsclawStore) -> None:
    store.snapshot(dimension=2 * DIMENSIONS)


@planting("kb.snapshot", "warning", "is of version 2, which is not known", command="reconcile")
def a_snapshot_of_another_version(store: RsclawStore) -> None:
    store.file(SNAPSHOT, b'{"schema_version":2,"dimension":4,"id_to_chunk":[]}')


@planting("kb.snapshot", "warning", "hnsw/snapshot.meta.json cannot be read", command="reconcile")
def a_snapshot_that_cannot_be_read(store: RsclawStore) -> None:
    store.file(SNAPSHOT, b"\xff{")


@planting("kb.snapshot", "warning", "hnsw/snapshot.meta.json cannot be read", command="reconcile")
def a_snapshot_without_what_describes_it(store: RsclawStore) -> None:
    (store.root / SNAPSHOT).unlink()


@planting("kb.full-text", "warning", "the full-text index has 11 texts, the database 10 chunks", command="reconcile")
def a_full_text_index_of_more_texts(store: RsclawStore) -> None:
    full_text(store, more=1)


@planting("kb.full-text", "warning", "idx/tantivy/meta.json cannot be read", command="reconcile")
def a_full_text_index_that_cannot_be_read(store: RsclawStore) -> None:
    store.file(FULL_TEXT, b"[]")
