"""The ids of rsclaw's chunks, compared with those of a real store."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import harness
import pytest

from regraft.formats.rsclaw.documents import chunk_id

SAMPLE = harness.SAMPLES / "rsclaw"


def test_the_id_of_a_chunk_is_of_source_place_and_text() -> None:
    ids = {
        chunk_id("file:custom:rotate", 0, "text"),
        chunk_id("file:custom:rotate", 1, "text"),
        chunk_id("file:custom:rotate", 256, "text"),
        chunk_id("file:custom:rotat", 0, "text"),
        chunk_id("file:custom:rotate", 0, "text "),
    }
    assert len(ids) == 5
    assert (
        chunk_id("file:custom:rotate", 258, "知识")
        == (hashlib.sha256(b"file:custom:rotate\0\0\0\x01\x02\0" + "知识".encode()).hexdigest()[:32])
    )
    with pytest.raises(OverflowError):
        chunk_id("file:custom:rotate", 1 << 32, "")


# --- what lies in a real store ----------------------------------------------------------------------------------------


def _rows(table: str) -> list[dict[str, Any]]:
    tables = json.loads((SAMPLE / "rows.json").read_text("utf-8"))
    return [json.loads(bytes.fromhex(value)) for value in tables[table].values()]


def _body(path: str) -> bytes | None:
    try:
        text = (SAMPLE / "kb" / path).read_bytes()
    except FileNotFoundError:
        return None
    return text.partition(b"\n---\n")[2].removeprefix(b"\n")


@harness.needs_samples
def test_the_ids_of_real_chunks_are_made() -> None:
    paths = {doc["id"]: str(doc["markdown_path"]) for doc in _rows("kb_docs")}
    others, from_text = {}, 0
    for chunk in _rows("kb_chunks"):
        source, seq = str(chunk["logical_source_id"]), chunk["seq"]
        first, last = chunk["byte_offset"]
        body = _body(paths.get(chunk["doc_id"], "md/none"))
        if body is None or chunk_id(source, seq, body[first:last].decode()) != chunk["id"]:
            others[str(chunk["id"])[:8]] = "no text" if body is None else "another text"
        # The text of its vector has the headings before the body.
        indexed = str(chunk["indexed_text"]).removeprefix(" > ".join(chunk["heading_path"]) + "\n\n")
        from_text += chunk_id(source, seq, indexed) == chunk["id"]
    # One was edited by hand; of two the file or the document is gone, and one of these has a made-up id.
    assert others == {"3082b56c": "another text", "bc4270f8": "no text", "00000000": "no text"}
    assert from_text == 20
