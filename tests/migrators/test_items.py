"""What becomes of one v1 item, as far as v1's state tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrators.cherry_v1.draft import draft_library
from migrators.pipeline.source import BaseDraft, ItemDraft, LibraryDraft, SkippedItem
from regraft.disk.trees import FolderTree
from regraft.formats.cherry_v1.layout import StatePaths
from regraft.formats.cherry_v1.state import read_state
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.identity import item_id
from regraft.report import notices
from regraft.report.notices import CODES
from regraft.text import utf16_len

URL = "https://example.com/docs"
FILE = {
    "id": "f1",
    "name": "f1.md",
    "origin_name": "Lies mich.md",
    "path": "/home/alice/Lies mich.md",
    "size": 12,
    "ext": ".md",
    "type": "document",
    "created_at": "2025-03-14T09:39:05.000Z",
    "count": 1,
}
TEXT_FIELDS = ("id", "name", "origin_name", "path", "ext", "type", "created_at")
NUMBER_FIELDS = ("size", "count")

Draft = Callable[..., BaseDraft]


def item(kind: str = "url", content: Any = URL, **fields: Any) -> dict[str, Any]:
    return {"id": "i1", "type": kind, "content": content, "created_at": 5, "updated_at": 6, **fields}


def file(**metadata: Any) -> dict[str, Any]:
    return item("file", {**FILE, **metadata})


@pytest.fixture
def library(tmp_path: Path) -> Callable[..., LibraryDraft]:
    """Draft bases of the given items; the state goes through files, as it always does."""

    def draft(*bases: list[Any], files: list[Any] | None = None, notes: list[Any] | None = None) -> LibraryDraft:
        state = {
            "knowledge": {
                "bases": [
                    {"id": f"b{n}", "name": "Base", "model": {"id": "m", "provider": "p"}, "items": items}
                    for n, items in enumerate(bases, start=1)
                ]
            },
            "llm": {"providers": [{"id": "p", "models": [{"id": "m"}]}]},
        }
        for name, content in (("redux", state), ("files", files or []), ("notes", notes or [])):
            (tmp_path / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        places = StatePaths(redux="redux.json", tables={"files": "files.json", "knowledge_notes": "notes.json"})
        return draft_library(read_state(FolderTree(tmp_path), places), ModelOverrides())

    return draft


@pytest.fixture
def base(library: Callable[..., LibraryDraft]) -> Draft:
    return lambda *items, **tables: library(list(items), **tables).bases[0]


def only(draft: BaseDraft) -> ItemDraft:
    assert draft.skipped_items == ()
    (found,) = draft.items
    return found


def codes(draft: BaseDraft) -> list[str]:
    return [notice.code for notice in draft.notices]


def skipped(draft: BaseDraft) -> str:
    """Return why the only item was skipped; the reason is said once, with the item."""
    assert draft.items == ()
    (entry,) = draft.skipped_items
    (said,) = draft.notices
    assert (said.code, said.base, said.item) == (entry.reason, "b1", entry.legacy_id)
    assert said.message == CODES[entry.reason].meaning
    return entry.reason


# --- items that are not migrated -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "legacy_id"),
    [
        (None, None),
        (5, None),
        ("i1", None),
        ([], None),
        ({}, None),
        ({"type": "url", "content": URL}, None),
        (item(id=None), None),
        (item(id=""), ""),
        (item(id=7), None),
        ({"id": "i1", "content": URL}, "i1"),
        (item(type=None), "i1"),
        (item(type=""), "i1"),
        (item(type=7), "i1"),
    ],
)
def test_items_without_an_id_or_type(base: Draft, raw: Any, legacy_id: str | None) -> None:
    draft = base(raw)
    assert skipped(draft) == notices.NO_ID_OR_TYPE
    assert draft.skipped_items[0].legacy_id == legacy_id


@pytest.mark.parametrize("kind", ["memory", "video", "image", "URL", " url", "folder"])
def test_types_that_v2_has_no_place_for(base: Draft, kind: str) -> None:
    assert skipped(base(item(kind))) == notices.UNSUPPORTED_TYPE


VIDEO = {"id": "v", "name": "v.mp4", "origin_name": "talk.mp4", "path": "/x/talk.mp4", "ext": ".mp4", "type": "video"}
SUBTITLES = {**VIDEO, "id": "s", "name": "s.srt", "origin_name": "talk.srt", "path": "/x/talk.srt"}
SUBTITLES |= {"ext": ".srt", "type": "text"}


@pytest.mark.parametrize(
    "subtitles",
    [
        SUBTITLES,
        {**SUBTITLES, "type": "other"},
        {**SUBTITLES, "ext": ".SRT ", "type": None},
        {**SUBTITLES, "ext": ".vtt", "type": "document"},
        {**SUBTITLES, "ext": ".foo"},
    ],
)
def test_the_subtitles_of_a_video_become_a_file(base: Draft, subtitles: dict[str, Any]) -> None:
    draft = base(item("video", [VIDEO, subtitles], uniqueId="L", uniqueIds=["L"]))
    found = only(draft)
    assert (found.type, found.data) == ("file", {"source": "/x/talk.srt", "relativePath": "talk.srt"})
    assert (found.legacy_id, found.loader_ids, found.status) == ("i1", ("L",), "completed")
    assert found.upload is not None
    assert found.upload.name.startswith("s.")
    (said,) = draft.notices
    assert (said.code, said.item) == (notices.UNSUPPORTED_TYPE, "i1")
    assert said.message == "the video is not migrated; its subtitles talk.srt are migrated as a file"


def test_files_of_a_video_are_completed_from_the_table_of_files(base: Draft) -> None:
    draft = base(item("video", [{"id": "v"}, {"id": "s"}], uniqueId="L"), files=[VIDEO, SUBTITLES])
    assert only(draft).data["relativePath"] == "talk.srt"


@pytest.mark.parametrize(
    "content",
    [
        None,
        "talk.srt",
        [],
        [VIDEO],
        [None, 5, "s"],
        [{**SUBTITLES, "type": "video"}],
        [{**SUBTITLES, "id": 5}],
        [{**SUBTITLES, "ext": None}],
        [{**SUBTITLES, "name": "", "origin_name": None}],
        [{**SUBTITLES, "ext": ".pdf", "type": "document"}],
    ],
)
def test_a_video_without_subtitles_is_skipped(base: Draft, content: Any) -> None:
    draft = base(item("video", content, uniqueIds=["L1", "L2"]))
    assert skipped(draft) == notices.UNSUPPORTED_TYPE
    assert draft.skipped_items[0].loader_ids == ("L1", "L2")


def test_one_bad_item_never_stops_the_rest(base: Draft) -> None:
    draft = base(None, item(id="a"), item("video", id="b"), item("url", 5, id="c"), item(id="d"))
    assert [entry.legacy_id for entry in draft.items] == ["a", "d"]
    assert draft.skipped_items == (
        SkippedItem(None, notices.NO_ID_OR_TYPE),
        SkippedItem("b", notices.UNSUPPORTED_TYPE),
        SkippedItem("c", notices.INVALID_URL),
    )


def test_an_id_is_migrated_once_in_all_bases(library: Callable[..., LibraryDraft]) -> None:
    first, second = library([item(id="a"), item(id="a")], [item(id="a"), item(id="b")]).bases
    assert [entry.legacy_id for entry in (*first.items, *second.items)] == ["a", "b"]
    assert first.skipped_items == second.skipped_items == (SkippedItem("a", notices.DUPLICATE_ITEM),)


def test_an_item_that_was_skipped_does_not_use_its_id_up(base: Draft) -> None:
    draft = base(item("url", " "), item("video"), item("note", "text"))
    assert only_types(draft) == ["note"]
    assert [entry.reason for entry in draft.skipped_items] == [notices.INVALID_URL, notices.UNSUPPORTED_TYPE]


def only_types(draft: BaseDraft) -> list[str]:
    return [entry.type for entry in draft.items]


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_file(base: Draft) -> None:
    found = only(base(file()))
    assert found.type == "file"
    assert found.data == {"source": "/home/alice/Lies mich.md", "relativePath": "Lies mich.md"}
    assert found.upload is not None
    assert found.upload.name == "f1.md"


@pytest.mark.parametrize("field", [*TEXT_FIELDS, *NUMBER_FIELDS])
@pytest.mark.parametrize("value", [None, [], {}, True])
def test_a_file_without_one_of_its_fields(base: Draft, field: str, value: Any) -> None:
    assert skipped(base(file(**{field: value}))) == notices.INVALID_FILE
    gap = {name: entry for name, entry in FILE.items() if name != field}
    assert skipped(base(item("file", gap))) == notices.INVALID_FILE


@pytest.mark.parametrize("field", TEXT_FIELDS)
def test_texts_of_a_file_are_texts(base: Draft, field: str) -> None:
    assert skipped(base(file(**{field: 5}))) == notices.INVALID_FILE


@pytest.mark.parametrize("field", NUMBER_FIELDS)
def test_numbers_of_a_file_are_numbers(base: Draft, field: str) -> None:
    assert skipped(base(file(**{field: "5"}))) == notices.INVALID_FILE
    assert only(base(file(**{field: 0.5}))).type == "file"
    assert only(base(file(**{field: 0}))).type == "file"


@pytest.mark.parametrize("field", [*TEXT_FIELDS[1:], *NUMBER_FIELDS])
def test_dexie_completes_what_is_missing_or_null(base: Draft, field: str) -> None:
    gap = {name: value for name, value in FILE.items() if name != field}
    expected = only(base(file()))
    assert only(base(item("file", gap), files=[FILE])) == expected
    assert only(base(item("file", {**FILE, field: None}), files=[FILE])) == expected
    assert skipped(base(item("file", gap), files=[{**FILE, field: None}])) == notices.INVALID_FILE
    assert skipped(base(item("file", gap), files=[{**FILE, "id": "other"}])) == notices.INVALID_FILE


def test_what_the_item_says_itself_wins(base: Draft) -> None:
    stored = {**FILE, "origin_name": "dexie.md", "path": "/dexie", "ext": ".dexie"}
    found = only(base(file(), files=[stored]))
    assert found.data == {"source": "/home/alice/Lies mich.md", "relativePath": "Lies mich.md"}
    assert found.upload is not None
    assert found.upload.name == "f1.md"
    assert only(base(file(origin_name=""), files=[stored])).data["relativePath"] == "f1.md"


@pytest.mark.parametrize("content", ["f1", {"id": "f1"}])
def test_the_id_alone_is_enough_where_dexie_knows_the_file(base: Draft, content: Any) -> None:
    assert only(base(item("file", content), files=[FILE])) == only(base(file()))


@pytest.mark.parametrize("content", ["gone", "", None, 5, [], {}, {"id": None}, {"id": 5}, {"id": ["f1"]}])
def test_a_file_that_nobody_knows(base: Draft, content: Any) -> None:
    assert skipped(base(item("file", content), files=[FILE])) == notices.INVALID_FILE


@pytest.mark.parametrize(
    ("metadata", "source"),
    [
        ({}, "/home/alice/Lies mich.md"),
        ({"path": " padded "}, " padded "),
        ({"path": ""}, "f1.md"),
        ({"path": " \ufeff"}, "f1.md"),
        ({"path": "", "name": " "}, "Lies mich.md"),
        ({"path": "", "name": "", "origin_name": " "}, "i1"),
    ],
)
def test_source_of_a_file(base: Draft, metadata: dict[str, str], source: str) -> None:
    assert only(base(file(**metadata))).data["source"] == source


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({"origin_name": "a/b:c.md"}, "a_b_c.md"),
        ({"origin_name": "CON.txt"}, "_.txt"),
        ({"origin_name": ".cherry"}, ".cherry_1"),
        # Only the empty text falls back; what becomes empty is called `untitled`.
        ({"origin_name": " "}, "untitled"),
        ({"origin_name": "..."}, "untitled"),
        ({"origin_name": ""}, "f1.md"),
        ({"origin_name": "", "name": "x?.md"}, "x_.md"),
        ({"origin_name": "", "name": " "}, "untitled"),
        ({"origin_name": "", "name": ""}, "i1"),
    ],
)
def test_name_of_a_file(base: Draft, metadata: dict[str, str], name: str) -> None:
    assert only(base(file(**metadata))).data["relativePath"] == name


def test_names_are_taken_in_the_order_of_the_items_whatever_their_status(base: Draft) -> None:
    states = [{"processingStatus": "failed"}, {"uniqueId": "x"}, {}, {"processingStatus": "pending"}]
    draft = base(*({**file(), "id": f"i{n}", **state} for n, state in enumerate(states)), item("video", id="v"))
    names = [entry.data["relativePath"] for entry in draft.items]
    assert names == ["Lies mich.md", "Lies mich_1.md", "Lies mich_2.md", "Lies mich_3.md"]


def test_a_skipped_file_takes_no_name(base: Draft) -> None:
    draft = base(file(size=None), file())
    assert [entry.data["relativePath"] for entry in draft.items] == ["Lies mich.md"]


def test_bytes_are_found_by_id_and_extension_never_by_path(base: Draft) -> None:
    found = only(base(file(id="xyz", ext=".PDF", name="other.txt", path="/old/place.doc")))
    assert found.upload is not None
    assert found.upload.name == "xyz.PDF"


# --- urls and sitemaps ---------------------------------------------------------------------------------------------


def test_a_url_is_kept_as_it_is(base: Draft) -> None:
    found = only(base(item("url", f"  {URL}\n")))
    assert (found.type, found.data) == ("url", {"source": f"  {URL}\n", "url": f"  {URL}\n"})
    assert found.upload is None


def test_a_sitemap_becomes_a_url_with_its_address_trimmed(base: Draft) -> None:
    found = only(base(item("sitemap", f"\ufeff {URL}\n")))
    assert (found.type, found.data) == ("url", {"source": URL, "url": URL})


BLANKS = [None, "", " ", "\ufeff\u00a0", 5, True, [], [URL], {"url": URL}]


@pytest.mark.parametrize("content", BLANKS)
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("url", notices.INVALID_URL),
        ("sitemap", notices.INVALID_SITEMAP),
        ("directory", notices.INVALID_DIRECTORY),
        ("note", notices.INVALID_NOTE),
    ],
)
def test_blank_content(base: Draft, kind: str, reason: str, content: Any) -> None:
    assert skipped(base(item(kind, content))) == reason


# --- notes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("redux", "stored", "text"),
    [
        ("Redux's text", None, "Redux's text"),
        ("Redux's text", "Dexie's text", "Dexie's text"),
        ("", "Dexie's text", "Dexie's text"),
        (None, "Dexie's text", "Dexie's text"),
        # An empty note in Dexie does not hide the text in Redux.
        ("Redux's text", "", "Redux's text"),
        ("Redux's text", " \ufeff\n", "Redux's text"),
        ("Redux's text", 5, "Redux's text"),
        ("Redux's text", {"text": "x"}, "Redux's text"),
        (" padded ", None, " padded "),
        ("", "  padded\n", "  padded\n"),
    ],
)
def test_text_of_a_note(base: Draft, redux: Any, stored: Any, text: str) -> None:
    notes = [] if stored is None else [{"id": "i1", "content": stored}, {"id": "other", "content": "no"}]
    found = only(base(item("note", redux), notes=notes))
    assert (found.type, found.data) == ("note", {"source": text, "content": text})


@pytest.mark.parametrize(
    ("redux", "stored", "source"),
    [
        (None, None, "text"),
        (URL, None, URL),
        (None, URL, URL),
        ("https://redux.example", URL, URL),
        (URL, "", URL),
        (URL, " ", URL),
        (URL, 5, URL),
        ("", "", "text"),
        (" ", None, "text"),
        (5, None, "text"),
        (f" {URL} ", None, f" {URL} "),
    ],
)
def test_source_of_a_note(base: Draft, redux: Any, stored: Any, source: str) -> None:
    found = only(base(item("note", "text", sourceUrl=redux), notes=[{"id": "i1", "sourceUrl": stored}]))
    assert found.data == {"source": source, "content": "text"}


@pytest.mark.parametrize("in_dexie", [True, False])
def test_a_note_may_have_an_address_and_no_text(base: Draft, in_dexie: bool) -> None:
    notes = [{"id": "i1", "content": " ", "sourceUrl": URL if in_dexie else None}]
    found = only(base(item("note", " ", sourceUrl=None if in_dexie else URL), notes=notes))
    assert found.data == {"source": URL, "content": ""}


def test_blank_parts_of_a_note_are_none(base: Draft) -> None:
    notes = [{"id": "i1", "content": " ", "sourceUrl": "\ufeff"}]
    assert skipped(base(item("note", "\n", sourceUrl=" "), notes=notes)) == notices.INVALID_NOTE


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x" * 1_000_000, 1_000_000),
        ("x" * 1_000_001, 1_000_000),
        ("\U0001f600" * 500_000, 1_000_000),
        ("\U0001f600" * 600_000, 1_000_000),
        # Never half a character.
        ("x" + "\U0001f600" * 500_000, 999_999),
    ],
    ids=["fits", "one over", "pairs that fit", "pairs", "half a pair over"],
)
def test_a_note_is_cut_to_a_million_units(base: Draft, text: str, kept: int) -> None:
    draft = base(item("note", text))
    content = only(draft).data["content"]
    assert text.startswith(content)
    assert utf16_len(content) == kept
    assert only(draft).data["source"] == content
    cut = utf16_len(text) > 1_000_000
    assert codes(draft) == ([notices.NOTE_CUT] if cut else [])
    if cut:
        (said,) = draft.notices
        assert (said.severity, said.base, said.item) == ("warning", "b1", "i1")
        assert f"{utf16_len(text):,}" in said.message


# --- directories ---------------------------------------------------------------------------------------------------


def test_a_directory_is_its_path_alone(base: Draft) -> None:
    found = only(base(item("directory", " /srv/my docs ", uniqueId="D", uniqueIds=["a", "", " ", None, 5, "b", "a"])))
    assert (found.type, found.data) == ("directory", {"source": " /srv/my docs "})
    assert found.entries == ("a", "b", "a")
    assert found.upload is None


def test_only_directories_have_entries(base: Draft) -> None:
    assert only(base(item("url", uniqueIds=["a"]))).entries == ()


@pytest.mark.parametrize("entries", [None, "text", {}, 5])
def test_entries_that_are_no_list(base: Draft, entries: Any) -> None:
    assert only(base(item("directory", "/srv", uniqueIds=entries))).entries == ()


# --- status --------------------------------------------------------------------------------------------------------

FAILED = "Legacy knowledge item indexing failed."
INTERRUPTED = "Legacy knowledge item indexing was interrupted and needs to be retried."


@pytest.mark.parametrize(
    ("fields", "status", "error"),
    [
        ({}, "idle", None),
        ({"uniqueId": ""}, "idle", None),
        ({"uniqueId": " \ufeff"}, "idle", None),
        ({"uniqueId": 5}, "idle", None),
        ({"uniqueIds": ["a"]}, "idle", None),
        ({"uniqueId": "L"}, "completed", None),
        ({"uniqueId": "L", "processingStatus": "completed", "processingError": "left over"}, "completed", None),
        ({"uniqueId": "L", "processingStatus": None}, "completed", None),
        ({"uniqueId": "L", "processingStatus": "unheard of"}, "completed", None),
        ({"processingStatus": "completed"}, "idle", None),
        ({"processingStatus": "failed"}, "failed", FAILED),
        ({"processingStatus": "failed", "uniqueId": "L"}, "failed", FAILED),
        ({"processingStatus": "failed", "processingError": "  no key \n"}, "failed", "no key"),
        ({"processingStatus": "failed", "processingError": " "}, "failed", FAILED),
        ({"processingStatus": "failed", "processingError": {"message": "x"}}, "failed", FAILED),
        ({"processingStatus": "processing"}, "failed", INTERRUPTED),
        ({"processingStatus": "pending", "uniqueId": "L"}, "failed", INTERRUPTED),
        ({"processingStatus": "pending", "processingError": "stopped"}, "failed", "stopped"),
    ],
)
def test_status(base: Draft, fields: dict[str, Any], status: str, error: str | None) -> None:
    for kind, content in (("url", URL), ("note", "text"), ("directory", "/srv"), ("file", FILE)):
        found = only(base(item(kind, content, **fields)))
        assert (found.status, found.error) == (status, error)


@pytest.mark.parametrize("code", ["directory_not_migrated", "indexing_interrupted", " directory_not_migrated "])
@pytest.mark.parametrize("status", ["failed", "pending"])
def test_an_error_text_is_never_taken_for_a_code(base: Draft, code: str, status: str) -> None:
    found = only(base(item(processingStatus=status, processingError=code)))
    assert found.error is not None
    assert found.error != code.strip()
    assert code.strip() in found.error


# --- loader ids ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "loader_ids"),
    [
        ({}, ()),
        ({"uniqueId": "L"}, ("L",)),
        ({"uniqueId": " "}, ()),
        ({"uniqueId": 5}, ()),
        ({"uniqueId": "L", "uniqueIds": []}, ("L",)),
        ({"uniqueId": "L", "uniqueIds": None}, ("L",)),
        ({"uniqueId": "L", "uniqueIds": "a"}, ("L",)),
        ({"uniqueId": "L", "uniqueIds": {"0": "a"}}, ("L",)),
        ({"uniqueId": "L", "uniqueIds": ["a"]}, ("a",)),
        ({"uniqueId": "L", "uniqueIds": ["a", "", "b", None, 5, " "]}, ("a", "b")),
        # A list that has entries counts, even if all are blank.
        ({"uniqueId": "L", "uniqueIds": [""]}, ()),
        ({"uniqueId": "L", "uniqueIds": [None]}, ()),
        ({"uniqueIds": ["a"]}, ("a",)),
        ({"uniqueId": " L "}, (" L ",)),
    ],
)
def test_loader_ids(base: Draft, fields: dict[str, Any], loader_ids: tuple[str, ...]) -> None:
    for kind, content in (("url", URL), ("note", "text"), ("directory", "/srv"), ("file", FILE)):
        assert only(base(item(kind, content, **fields))).loader_ids == loader_ids


# --- times, ids, remarks, order ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("created", "updated", "times"),
    [
        (1741944657000, 1741944718000, (1741944657000, 1741944718000)),
        (1741944657000.9, -1.9, (1741944657000, -1)),
        (0, 0, (0, 0)),
        (None, "1741944718000", (None, None)),
        ("2025-03-14T09:39:05.000Z", True, (None, None)),
    ],
)
def test_times(base: Draft, created: Any, updated: Any, times: tuple[int | None, int | None]) -> None:
    found = only(base(item(created_at=created, updated_at=updated)))
    assert (found.created_at, found.updated_at) == times
    assert found.id == item_id("b1", "i1", times[0])


def test_missing_times(base: Draft) -> None:
    found = only(base({"id": "i1", "type": "url", "content": URL}))
    assert (found.created_at, found.updated_at) == (None, None)


@pytest.mark.parametrize(
    ("remark", "kept"), [("remember me", True), (" ", False), (None, False), (5, False), ("", False)]
)
def test_a_remark_is_kept_in_the_report(base: Draft, remark: Any, kept: bool) -> None:
    draft = base(item(remark=remark))
    assert codes(draft) == ([notices.DROPPED_FIELD] if kept else [])
    if kept:
        (said,) = draft.notices
        assert (said.base, said.item) == ("b1", "i1")
        assert "remember me" in said.message


def test_items_stay_in_the_order_of_v1(base: Draft) -> None:
    kinds = [("note", "text"), ("directory", "/srv"), ("url", URL), ("file", FILE), ("sitemap", URL), ("note", "more")]
    draft = base(*(item(kind, content, id=f"i{9 - n}") for n, (kind, content) in enumerate(kinds)))
    assert [entry.legacy_id for entry in draft.items] == ["i9", "i8", "i7", "i6", "i5", "i4"]
    assert only_types(draft) == ["note", "directory", "url", "file", "url", "note"]
    assert len({entry.id for entry in draft.items}) == 6
