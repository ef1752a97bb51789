"""How rsclaw names sources, chunks and files of markdown, and that a real store has these names."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import harness
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.formats.rsclaw.database import (
    MarkdownName,
    SourceKind,
    chunk_id,
    markdown_name,
    parse_markdown_name,
    parse_source_id,
    source_id_of_chat,
    source_id_of_file,
    source_id_of_mail,
)

SAMPLE = harness.SAMPLES / "rsclaw"
CHARACTERS = st.characters(exclude_categories=())  # halves of surrogates, too
HASH = "f38be6b2e6502923f07af7697629bc50d20cf5615969c627d8a7988baf5d10ff"


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (f"file:sha256:{HASH}", SourceKind.FILE, HASH),
        ("url:https://example.com/?a=1", SourceKind.URL, "https://example.com/?a=1"),
        ("chat:feishu:pm:1795120603621", SourceKind.CHAT, "feishu:pm:1795120603621"),
        ("mail:<a:b@example.com>", SourceKind.MAIL, "<a:b@example.com>"),
        ("file:custom:rotate", SourceKind.OTHER, "file:custom:rotate"),
        (f"file:sha256:{HASH}\n", SourceKind.OTHER, f"file:sha256:{HASH}\n"),
        ("file:sha256:abc", SourceKind.OTHER, "file:sha256:abc"),
        ("img:1", SourceKind.OTHER, "img:1"),
        ("other:1", SourceKind.OTHER, "other:1"),
        ("url:", SourceKind.OTHER, "url:"),
        ("url", SourceKind.OTHER, "url"),
        ("", SourceKind.OTHER, ""),
    ],
)
def test_an_id_of_a_source_has_its_parts(text: str, kind: SourceKind, value: str) -> None:
    found = parse_source_id(text)
    assert (found.kind, found.value, str(found)) == (kind, value, text)


@given(st.text(CHARACTERS, max_size=20))
def test_whatever_the_id_of_a_source_is_it_comes_back(text: str) -> None:
    assert str(parse_source_id(text)) == text


def test_ids_of_sources_are_made() -> None:
    digest = hashlib.sha256(b"text").hexdigest()
    assert source_id_of_file(b"text") == source_id_of_file(digest) == source_id_of_file(digest.upper())
    assert source_id_of_file(b"text") == f"file:sha256:{digest}"
    assert source_id_of_chat("feishu:pm", 1795120603621) == "chat:feishu:pm:1795120603621"
    assert source_id_of_mail("<a@example.com>") == "mail:<a@example.com>"


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


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("handbook--5174f746--f38be6b2.md", ("handbook", "5174f746", "f38be6b2")),
        ("handbook--5174f746.md", ("handbook", "5174f746", None)),
        ("蒙牛-报告--5174f746--f38be6b2.md", ("蒙牛-报告", "5174f746", "f38be6b2")),
        ("--5174f746.md", ("", "5174f746", None)),
        ("a--00000000--5174f746--f38be6b2.md", ("a--00000000", "5174f746", "f38be6b2")),
    ],
)
def test_the_name_of_a_file_has_its_parts(name: str, parts: tuple[str, str, str | None]) -> None:
    slug, source_hash, body_hash = parts
    found = parse_markdown_name(name)
    assert found == MarkdownName(slug=slug, source_hash=source_hash, body_hash=body_hash)
    assert str(found) == name


@pytest.mark.parametrize(
    "name",
    ["handbook.md", "a--5174F746.md", "a--5174f74.md", "a-5174f746.md", "a--5174f746.txt", "a--5174f746.md\n", ""],
)
def test_another_name_is_of_no_file_of_the_system(name: str) -> None:
    assert parse_markdown_name(name) is None


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
def test_the_names_of_real_files_are_made() -> None:
    docs = _rows("kb_docs")
    assert len(docs) == 14
    for doc in docs:
        path = str(doc["markdown_path"])
        found = parse_markdown_name(path.rpartition("/")[2])
        assert found is not None
        assert found == markdown_name(found.slug, str(doc["logical_source_id"]), str(doc["markdown_sha256"]))


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
