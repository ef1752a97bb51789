"""What v1 never stored: told by file, and whole files given the chunks of the file that they equal."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest
from harness import NOW, examples, run
from hypothesis import given, settings
from hypothesis import strategies as st
from v1 import CREATED, UPDATED, Library, Row, Source, base, check_index, file, folder, note, opened, pack, page

from migrators.cherry_v1 import file_matching
from regraft.report import migration

REPORT = b"# Report\n\nThe report."


def local(path: Path | str) -> str:
    return f"LocalPathLoader_{md5(str(path).encode()).hexdigest()}"


def moved(source: Path, target: Path, *options: str) -> Library:
    """Migrate, and hold the index, the books and the totals of every base against one another."""
    done = run("migrate", source, "--to", target, "--json", "--now", NOW, *options)
    assert done.status in (0, 1), done.stderr
    library = Library(target, done.status, done.document)
    restored = 0
    for entry in done.document["bases"]:
        rows = entry["rows"]
        assert rows["read"] == rows["carried"] + sum(rows["skipped"].values())
        assert entry["index"]["units"] == rows["carried"] + rows["restored_duplicate"]
        restored += rows["restored_duplicate"]
        with opened(library.index_path(entry["legacy_id"])) as db:
            units = {"carried": entry["index"]["units"], "restored_duplicate": 0}
            check_index(db, {**entry, "rows": {**rows, **units}}, library.items(entry["legacy_id"]))
    assert done.document["totals"]["rows"]["restored_duplicate"] == restored
    said = [json.dumps(warning, sort_keys=True) for warning in done.document["warnings"]]
    assert len(set(said)) == len(said), "a warning is said twice"
    return library


def migrated(tmp_path: Path, *items: Any, rows: Any, uploads: Any = (), options: Any = (), **fields: Any) -> Library:
    source = Source([base("kb", *items, **fields)], {"kb": rows}, uploads=dict(uploads)).write(tmp_path / "v1")
    return moved(source, tmp_path / "library", *options)


def messages(library: Library, code: str) -> list[tuple[str | None, str, int]]:
    return [(said["item"], said["message"], said["count"]) for said in library.warnings(code)]


def of_item(library: Library, legacy_id: str) -> list[tuple[str, bytes]]:
    return [(unit.body, unit.vector) for unit in library.units("kb") if unit.item == library.item_id(legacy_id)]


UPLOADS = {"up-report.md": REPORT, "up-copy.md": REPORT}
ITEMS = [file("report", "R", name="report.md"), file("copy", "C", name="copy.md"), note("n", "N")]
ROWS = [Row("R", "one"), Row("N", "a note"), Row("R", "two")]


# --- standalone files ----------------------------------------------------------------------------------------------


def test_a_file_without_rows_gets_those_of_the_file_that_it_equals(tmp_path: Path) -> None:
    library = migrated(tmp_path, *ITEMS, rows=ROWS, uploads=UPLOADS)
    assert library.bodies("kb") == ["one", "two", "a note", "one", "two"]
    assert of_item(library, "copy") == of_item(library, "report")
    assert library.item("copy")["status"] == "completed"
    assert library.rows("kb") == {
        "read": 3,
        "carried": 3,
        "without_vector": 0,
        "skipped": {},
        "v1_deduplicated": 0,
        "restored_duplicate": 2,
    }
    index = library.base("kb")["index"]
    assert (index["materials"], index["units"], index["embeddings"]) == (3, 5, 3)
    said = "copy.md: v1 stored no chunks of it, because report.md has the same bytes; it gets the same 2 chunks"
    assert messages(library, "restored_duplicate") == [("copy", said, 2)]
    assert library.status == 0
    assert library.raw("kb").keys() >= {"report.md", "copy.md"}


def test_everything_else_keeps_its_place(tmp_path: Path) -> None:
    """Restored texts come last, in item order, whatever the order of the files."""
    items = [
        file("b", "B", name="b.md"),
        note("n", "N"),
        file("c", "C", name="c.md"),
        file("a", "A", name="a.md"),
        file("d", "D", name="d.md"),
    ]
    rows = [Row("A", "from a"), Row("N", "a note"), Row("D", "from d")]
    uploads = {"up-b.md": b"same as d", "up-c.md": b"same as a", "up-a.md": b"same as a", "up-d.md": b"same as d"}
    library = migrated(tmp_path, *items, rows=rows, uploads=uploads)
    names = {library.item_id(item["id"]): item["id"] for item in items}
    assert [(names[unit.item], unit.body) for unit in library.units("kb")] == [
        ("a", "from a"),
        ("n", "a note"),
        ("d", "from d"),
        ("b", "from d"),
        ("c", "from a"),
    ]
    plain = moved(tmp_path / "v1", tmp_path / "plain", "--no-restore-duplicates")
    assert library.units("kb")[:3] == plain.units("kb")
    assert library.items("kb") == plain.items("kb")


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("copy.txt", REPORT),
        ("copy", REPORT),
        ("copy.md", REPORT + b"!"),
        ("copy.md", REPORT.swapcase()),
        ("copy.md", b""),
        ("copy.md", None),
    ],
    ids=["other extension", "no extension", "other size", "other bytes", "empty", "not there"],
)
def test_another_file_gets_nothing(tmp_path: Path, name: str, raw: bytes | None) -> None:
    copy = file("copy", "C", name=name)
    uploads = {"up-report.md": REPORT} | ({} if raw is None else {copy["content"]["name"]: raw})
    library = migrated(tmp_path, ITEMS[0], copy, rows=[Row("R", "one")], uploads=uploads)
    assert library.bodies("kb") == ["one"]
    assert library.rows("kb")["restored_duplicate"] == 0
    assert {"restored_duplicate", "lost_duplicate"}.isdisjoint(library.codes())


def test_the_case_of_an_extension_does_not_matter(tmp_path: Path) -> None:
    copy = file("copy", "C", name="COPY.MD")
    uploads = {"up-report.md": REPORT, "up-copy.MD": REPORT}
    library = migrated(tmp_path, ITEMS[0], copy, rows=[Row("R", "one")], uploads=uploads)
    assert library.bodies("kb") == ["one", "one"]


@pytest.mark.parametrize(
    "fields", [{"processingStatus": "failed"}, {"processingStatus": "pending"}, {"uniqueId": ""}, {"uniqueIds": [""]}]
)
def test_only_completed_files_that_name_a_loader_get_something(tmp_path: Path, fields: dict[str, Any]) -> None:
    copy = file("copy", "C", name="copy.md", **fields)
    library = migrated(tmp_path, ITEMS[0], copy, rows=[Row("R", "one")], uploads=UPLOADS)
    assert library.bodies("kb") == ["one"]


@pytest.mark.parametrize("loader", ["C", "R"], ids=["rows of its own", "the loader of its twin"])
def test_a_file_whose_loader_has_rows_is_not_lost(tmp_path: Path, loader: str) -> None:
    """The rows that two items share go to the later one, as the application has it."""
    copy = file("copy", loader, name="copy.md")
    rows = [Row("R", "one"), Row("C", "of its own", b"no vector")]
    library = migrated(tmp_path, ITEMS[0], copy, rows=rows, uploads=UPLOADS)
    assert library.bodies("kb") == ["one"]
    assert "restored_duplicate" not in library.codes()
    assert ("loader_shared" in library.codes()) == (loader == "R")


def test_a_twin_without_rows_to_carry_gives_nothing(tmp_path: Path) -> None:
    library = migrated(tmp_path, *ITEMS, rows=[Row("R", "one", b"odd"), Row("N", "a note")], uploads=UPLOADS)
    assert library.bodies("kb") == ["a note"]
    assert "restored_duplicate" not in library.codes()


def test_the_twin_with_the_most_rows_gives_and_of_equals_the_first(tmp_path: Path) -> None:
    items = [file(name, name.upper(), name=f"{name}.md") for name in ("first", "second", "third", "lost")]
    rows = [Row("FIRST", "1"), Row("THIRD", "3a"), Row("SECOND", "2a"), Row("SECOND", "2b"), Row("THIRD", "3b")]
    uploads = {item["content"]["name"]: REPORT for item in items}
    library = migrated(tmp_path, *items, rows=rows, uploads=uploads)
    assert [body for body, _ in of_item(library, "lost")] == ["2a", "2b"]


@pytest.mark.parametrize(
    "rows", [[Row("R", "one"), Row("R", "four", id="R_3")], [Row("R", "one"), Row("R", "two", b"odd")]]
)
def test_what_the_twin_itself_lacks_is_said(tmp_path: Path, rows: list[Row]) -> None:
    library = migrated(tmp_path, *ITEMS, rows=rows, uploads=UPLOADS)
    assert of_item(library, "copy") == of_item(library, "report")
    [(_, said, _)] = messages(library, "restored_duplicate")
    assert said.endswith("as far as v1 stored it")


def test_all_loaders_of_a_twin_count(tmp_path: Path) -> None:
    items = [file("report", "R1", "R2", name="report.md"), ITEMS[1]]
    library = migrated(tmp_path, *items, rows=[Row("R2", "two"), Row("R1", "one")], uploads=UPLOADS)
    assert library.bodies("kb") == ["two", "one", "two", "one"]


def test_an_upload_that_was_added_twice_and_lost_twice_is_given_back_once(tmp_path: Path) -> None:
    again = {**file("again", "C", name="again.md"), "content": ITEMS[1]["content"]}
    library = migrated(tmp_path, *ITEMS, again, rows=ROWS, uploads=UPLOADS)
    assert of_item(library, "again") == of_item(library, "report")
    assert of_item(library, "copy") == []
    assert [item for item, _, _ in messages(library, "loader_shared")] == ["copy"]
    assert [item for item, _, _ in messages(library, "restored_duplicate")] == ["again"]


def test_a_loader_that_a_note_has_too_is_left_alone(tmp_path: Path) -> None:
    library = migrated(tmp_path, *ITEMS, note("odd", "C"), rows=ROWS, uploads=UPLOADS)
    assert "restored_duplicate" not in library.codes()


def test_the_file_that_was_compared_must_be_the_one_that_has_the_rows(tmp_path: Path) -> None:
    """A later item of another text has the loader of the file that the copy equals: its text is not the copy's."""
    other = file("b", "R", "R2", name="b.md")
    rows = [Row("R", "one"), Row("R2", "text of b")]
    library = migrated(tmp_path, ITEMS[0], other, ITEMS[1], rows=rows, uploads={**UPLOADS, "up-b.md": b"other"})
    assert of_item(library, "copy") == []
    assert [body for body, _ in of_item(library, "b")] == ["one", "text of b"]
    assert "restored_duplicate" not in library.codes()


def test_rows_that_went_to_another_item_do_not_hide_a_twin_that_has_its_own(tmp_path: Path) -> None:
    items = [ITEMS[0], file("b", "R", "R2", name="b.md"), file("whole", "W", name="whole.md"), ITEMS[1]]
    rows = [Row("R", "one"), Row("R", "two"), Row("R2", "text of b"), Row("W", "whole")]
    uploads = {**UPLOADS, "up-b.md": b"other", "up-whole.md": REPORT}
    library = migrated(tmp_path, *items, rows=rows, uploads=uploads)
    assert [body for body, _ in of_item(library, "copy")] == ["whole"]


def test_an_item_that_has_rows_never_gets_those_of_a_twin(tmp_path: Path) -> None:
    """A later item has the loader of the lost file: what it equals was never looked at."""
    later = file("z", "C", "R2", name="z.md")
    uploads = {**UPLOADS, "up-z.md": b"other bytes"}
    library = migrated(tmp_path, *ITEMS, later, rows=[*ROWS, Row("R2", "text of z")], uploads=uploads)
    assert library.bodies("kb") == ["one", "two", "a note", "text of z"]
    assert [body for body, _ in of_item(library, "z")] == ["text of z"]
    assert library.rows("kb")["restored_duplicate"] == 0


def test_the_later_of_two_lost_items_has_to_be_a_duplicate_itself(tmp_path: Path) -> None:
    later = file("z", "C", name="z.md")
    library = migrated(tmp_path, *ITEMS, later, rows=ROWS, uploads={**UPLOADS, "up-z.md": b"other bytes"})
    assert library.bodies("kb") == ["one", "two", "a note"]
    [(item, said, count)] = messages(library, "file_without_rows")
    assert (item, said, count) == (None, "1 completed file without rows, and so without any text: z.md", 1)


def test_files_of_which_v1_kept_nothing_are_told(tmp_path: Path) -> None:
    items = [*ITEMS, file("csv", "T", name="table.csv"), file("empty", "E", name="empty.txt")]
    uploads = {**UPLOADS, "up-csv.csv": b"a,b", "up-empty.txt": b""}
    library = migrated(tmp_path, *items, rows=ROWS, uploads=uploads)
    said = "2 completed files without rows, and so without any text: table.csv, empty.txt"
    assert messages(library, "file_without_rows") == [(None, said, 2)]
    assert library.status == 0
    assert library.item("csv")["status"] == "completed"


# --- the user's word -----------------------------------------------------------------------------------------------


def test_nothing_is_given_back_against_the_users_word(tmp_path: Path) -> None:
    library = migrated(tmp_path, *ITEMS, rows=ROWS, uploads=UPLOADS, options=["--no-restore-duplicates"])
    assert library.bodies("kb") == ["one", "two", "a note"]
    assert library.rows("kb")["restored_duplicate"] == 0
    [(item, said, count)] = messages(library, "lost_duplicate")
    assert (item, count) == ("copy", 2)
    assert said.startswith("copy.md: v1 stored no chunks of it, because report.md has the same bytes")
    assert "--no-restore-duplicates" in said
    assert library.status == 0


def test_the_users_word_is_part_of_what_a_base_is_made_from(tmp_path: Path) -> None:
    library = migrated(tmp_path, *ITEMS, rows=ROWS, uploads=UPLOADS)
    again = moved(tmp_path / "v1", library.path)
    assert again.base("kb") == {**library.base("kb"), "outcome": "unchanged"}
    assert messages(again, "restored_duplicate") == messages(library, "restored_duplicate")
    without = moved(tmp_path / "v1", library.path, "--no-restore-duplicates")
    assert without.base("kb")["outcome"] == "written"
    assert len(without.bodies("kb")) == 3


def test_the_users_word_changes_nothing_of_a_base_without_duplicates(tmp_path: Path) -> None:
    library = migrated(tmp_path, *ITEMS[::2], rows=ROWS, uploads=UPLOADS)
    for options in (["--no-restore-duplicates"], []):
        again = moved(tmp_path / "v1", library.path, *options)
        assert again.base("kb")["outcome"] == "unchanged"


def test_the_users_word_can_be_taken_back(tmp_path: Path) -> None:
    library = migrated(tmp_path, *ITEMS, rows=ROWS, uploads=UPLOADS, options=["--no-restore-duplicates"])
    again = moved(tmp_path / "v1", library.path, "--no-restore-duplicates")
    assert again.base("kb")["outcome"] == "unchanged"
    back = moved(tmp_path / "v1", library.path)
    assert back.base("kb")["outcome"] == "written"
    assert len(back.bodies("kb")) == 5
    assert moved(tmp_path / "v1", library.path).base("kb")["outcome"] == "unchanged"


def test_the_text_and_the_page_tell_it(tmp_path: Path) -> None:
    library = migrated(tmp_path, *ITEMS, rows=ROWS, uploads=UPLOADS)
    for shown in (migration.format_migration(library.report), migration.migration_page(library.report)):
        assert "2 chunks more, for files for which v1 stored none because another file has the same bytes" in shown
    plain = moved(tmp_path / "v1", tmp_path / "plain", "--no-restore-duplicates")
    for shown in (migration.format_migration(plain.report), migration.migration_page(plain.report)):
        assert "more for files" not in shown


# --- folders -------------------------------------------------------------------------------------------------------


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """Return a folder on disk with a file, a copy of it, one that v1 failed on and another one."""
    place = tmp_path / "docs"
    (place / "sub").mkdir(parents=True)
    for name, raw in (
        ("report.md", REPORT),
        ("sub/copy.MD", REPORT),
        ("table.csv", b"a,b\n"),
        ("z.md", b"another text"),
    ):
        (place / name).write_bytes(raw)
        changed(place / name, UPDATED)
    return place


def changed(path: Path, time_ms: int) -> None:
    """Give a file the time at which it was last changed."""
    os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))


def entries(place: Path, *names: str) -> list[str]:
    return [local(place / name) for name in names]


def rows_of(place: Path, *names: str) -> list[Row]:
    return [Row(local(place / name), f"text of {name}", source=str(place / name)) for name in names]


def test_a_file_of_a_folder_gets_an_item_and_the_rows_of_its_twin(tmp_path: Path, docs: Path) -> None:
    names = ("sub/copy.MD", "report.md", "table.csv", "z.md")
    items = [folder("d", *entries(docs, *names), path=str(docs))]
    library = migrated(tmp_path, *items, rows=rows_of(docs, "report.md", "z.md"))
    children = library.children("d")
    assert [child["data"]["source"] for child in children] == [str(docs / name) for name in names if name[-1] != "v"]
    assert {child["status"] for child in children} == {"completed"}
    copied = library.child_id("kb", local(docs / "sub" / "copy.MD"))
    assert children[0]["id"] == copied
    assert library.bodies("kb") == ["text of report.md", "text of z.md", "text of report.md"]
    assert library.bodies_of("kb", copied) == ["text of report.md"]
    assert library.base("kb")["directories"] == {"expanded": 1, "children": 3, "tombstones": 0}
    said = "copy.MD: v1 stored no chunks of it, because report.md has the same bytes; it gets the same 1 chunk"
    assert messages(library, "restored_duplicate") == [("d", said, 1)]
    said = f"1 of 4 files of the folder {docs} have no rows in v1 (table.csv)"
    assert messages(library, "directory_entries_without_rows") == [("d", said, 1)]
    plain = moved(tmp_path / "v1", tmp_path / "plain", "--no-restore-duplicates")
    assert plain.children("d") == children[1:], "other files of the folder are what they were"
    [(_, said, count)] = messages(plain, "directory_entries_without_rows")
    files = f"{Path('sub', 'copy.MD')}, table.csv"
    assert (count, said) == (2, f"2 of 4 files of the folder {docs} have no rows in v1 ({files})")
    assert [item for item, _, _ in messages(plain, "lost_duplicate")] == ["d"]


def test_uploads_and_files_of_folders_are_twins_of_one_another(tmp_path: Path, docs: Path) -> None:
    items = [
        folder("d", *entries(docs, "report.md", "z.md"), path=str(docs)),
        file("up", "U", name="up.md"),
        file("lost", "L", name="lost.md"),
    ]
    uploads = {"up-up.md": REPORT, "up-lost.md": b"another text"}
    library = migrated(tmp_path, *items, rows=[*rows_of(docs, "z.md"), Row("U", "of the upload")], uploads=uploads)
    assert library.bodies_of("kb", library.child_id("kb", local(docs / "report.md"))) == ["of the upload"]
    assert library.bodies_of("kb", library.item_id("lost")) == ["text of z.md"]
    assert [item for item, _, _ in messages(library, "restored_duplicate")] == ["lost", "d"]


def test_a_folder_whose_files_are_all_duplicates_works(tmp_path: Path, docs: Path) -> None:
    items = [folder("d", *entries(docs, "report.md", "sub/copy.MD"), path=str(docs)), file("up", "U", name="up.md")]
    library = migrated(tmp_path, *items, rows=[Row("U", "text")], uploads={"up-up.md": REPORT})
    assert library.item("d")["status"] == "completed"
    assert [child["status"] for child in library.children("d")] == ["completed", "completed"]
    assert library.bodies("kb") == ["text"] * 3
    plain = moved(tmp_path / "v1", tmp_path / "plain", "--no-restore-duplicates")
    assert plain.item("d")["error"] == "directory_not_migrated"
    assert len(messages(plain, "lost_duplicate")) == 2


def test_a_file_that_two_folders_list_goes_to_the_later(tmp_path: Path, docs: Path) -> None:
    copy = local(docs / "sub" / "copy.MD")
    items = [
        folder("d", *entries(docs, "report.md", "sub/copy.MD"), path=str(docs)),
        folder("sub", copy, path=str(docs / "sub")),
    ]
    library = migrated(tmp_path, *items, rows=rows_of(docs, "report.md"))
    assert [child["status"] for child in library.children("d")] == ["completed", "failed"]
    assert [child["status"] for child in library.children("sub")] == ["completed"]
    assert library.bodies("kb") == ["text of report.md"] * 2
    assert [item for item, _, _ in messages(library, "restored_duplicate")] == ["sub"]
    assert sum(count for _, _, count in messages(library, "directory_child_loader_shared")) == 1
    assert [child["data"]["relativePath"] for child in library.children("sub")] == ["sub/copy.MD"]


def test_a_folder_that_is_not_there_gives_nothing(tmp_path: Path, docs: Path) -> None:
    items = [folder("d", *entries(docs, "report.md", "sub/copy.MD"), path=str(docs))]
    rows = rows_of(docs, "report.md")
    shutil.rmtree(docs)
    library = migrated(tmp_path, *items, rows=rows)
    assert len(library.children("d")) == 1
    said = f"1 of 2 files of the folder {docs} have no rows in v1"
    assert messages(library, "directory_entries_without_rows") == [("d", said, 1)]


@pytest.mark.parametrize("name", ["report.md", "sub/copy.MD"])
@pytest.mark.parametrize(
    ("fields", "time", "later"),
    [
        ({}, UPDATED, False),
        ({}, UPDATED + 1, True),
        ({"updated_at": None}, CREATED, False),
        ({"updated_at": None}, CREATED + 1, True),
        ({"updated_at": None, "created_at": None}, 0, True),
    ],
)
def test_a_file_that_was_changed_since_v1_read_it_is_named_as_such(
    tmp_path: Path, docs: Path, name: str, fields: dict[str, Any], time: int, later: bool
) -> None:
    """Files are compared as they are today; rows are of what they were."""
    for one in ("report.md", "sub/copy.MD"):
        changed(docs / one, min(time, CREATED))
    changed(docs / name, time)
    item = folder("d", *entries(docs, "report.md", "sub/copy.MD"), path=str(docs), **fields)
    library = migrated(tmp_path, item, rows=rows_of(docs, "report.md"))
    assert library.rows("kb")["restored_duplicate"] == 1
    [(_, said, _)] = messages(library, "restored_duplicate")
    assert ("has the same bytes now, but one of the two was changed after v1 read it" in said) is later


def test_a_file_of_two_folders_counts_as_read_with_the_first(tmp_path: Path, docs: Path) -> None:
    items = [
        folder("d", *entries(docs, "report.md", "sub/copy.MD"), path=str(docs)),
        folder("e", *entries(docs, "sub/copy.MD"), path=str(docs / "sub"), created_at=CREATED - 5, updated_at=None),
    ]
    library = migrated(tmp_path, *items, rows=rows_of(docs, "report.md"))
    assert library.rows("kb")["restored_duplicate"] == 1
    assert "has the same bytes now" in messages(library, "restored_duplicate")[0][1]


# --- a second run --------------------------------------------------------------------------------------------------


def write_again(tmp_path: Path, *items: Any, rows: Any, uploads: Any = ()) -> Path:
    """Write the source anew, with one more note, so that its base is carried anew."""
    shutil.rmtree(tmp_path / "v1")
    more = note("more", "M")
    return Source([base("kb", *items, more)], {"kb": [*rows, Row("M", "more")]}, uploads=dict(uploads)).write(
        tmp_path / "v1"
    )


def test_what_was_found_on_disk_stays_known_when_the_folder_is_gone(tmp_path: Path, docs: Path) -> None:
    """A base that is carried anew is no poorer for it."""
    text = "A text of more than fifty units, which v1 kept as a snippet of it."
    (docs / "sub" / "plain.txt").write_text(text, "utf-8")
    loader = f"TextLoader_{md5(text.encode()).hexdigest()}"
    item = folder("d", loader, *entries(docs, "report.md", "sub/copy.MD"), path=str(docs))
    rows = [Row(loader, text, source=f"{text[:24]}...{text[-23:]}"), *rows_of(docs, "report.md")]
    first = migrated(tmp_path, item, rows=rows)
    shutil.rmtree(docs)
    source = write_again(tmp_path, item, rows=rows)
    for again in (moved(source, first.path), moved(write_again(tmp_path, item, note("x", "X"), rows=rows), first.path)):
        assert again.base("kb")["outcome"] == "written"
        assert again.children("d") == first.children("d")
        assert first.children("d")[0]["data"]["source"] == str(docs / "sub" / "plain.txt")
        assert of_child(again, docs) == ["text of report.md"]
    assert "found" not in again.base("kb")
    told = moved(source, first.path, "--no-restore-duplicates")
    assert [item for item, _, _ in messages(told, "lost_duplicate")] == ["d"]
    assert len(moved(source, first.path).children("d")) == 3


def of_child(library: Library, docs: Path) -> list[str]:
    return library.bodies_of("kb", library.child_id("kb", local(docs / "sub" / "copy.MD")))


def test_what_was_found_on_disk_counts_no_more_when_v1_read_the_folder_again(tmp_path: Path, docs: Path) -> None:
    names = entries(docs, "report.md", "sub/copy.MD")
    rows = rows_of(docs, "report.md")
    first = migrated(tmp_path, folder("d", *names, path=str(docs)), rows=rows)
    assert of_child(first, docs) == ["text of report.md"]
    shutil.rmtree(docs)
    later = folder("d", *names, path=str(docs), updated_at=UPDATED + 1)
    again = moved(write_again(tmp_path, later, rows=rows), first.path)
    assert again.rows("kb")["restored_duplicate"] == 0


def test_a_duplicate_whose_upload_is_gone_keeps_its_text(tmp_path: Path) -> None:
    first = migrated(tmp_path, *ITEMS, rows=ROWS, uploads=UPLOADS)
    again = moved(write_again(tmp_path, *ITEMS, rows=ROWS), first.path)
    assert of_item(again, "copy") == of_item(first, "copy") != []
    assert again.raw("kb")["copy.md"] == REPORT
    without = moved(write_again(tmp_path, *ITEMS, rows=ROWS[1:2]), first.path)
    assert without.bodies("kb") == ["a note", "more"], "the file that it equals has no rows any more"


# --- sources and bounds --------------------------------------------------------------------------------------------


def test_a_backup_gives_the_same_as_a_folder(tmp_path: Path) -> None:
    library = migrated(tmp_path, *ITEMS, rows=ROWS, uploads=UPLOADS)
    packed = moved(pack(tmp_path / "v1", tmp_path / "backup.zip"), tmp_path / "of the zip")
    assert packed.units("kb") == library.units("kb")
    assert packed.rows("kb") == library.rows("kb")
    assert packed.index_path("kb").read_bytes() == library.index_path("kb").read_bytes()


def test_what_is_read_to_compare_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one pair; a pair that is too large for what is left is passed over."""
    items = [file(name, name.upper(), name=f"{name}.md") for name in ("a", "lost_a", "b", "lost_b")]
    uploads = {"up-a.md": REPORT, "up-lost_a.md": REPORT, "up-b.md": REPORT * 2, "up-lost_b.md": REPORT * 2}
    rows = [Row("A", "of a"), Row("B", "of b")]
    monkeypatch.setattr(file_matching, "MAX_COMPARED_BYTES", 4 * len(REPORT))
    library = migrated(tmp_path, *items, rows=rows, uploads=uploads)
    assert library.bodies("kb") == ["of a", "of b", "of a"]


def test_files_that_differ_in_size_or_kind_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = file_matching._FileHashes.of

    def watching(digests: Any, one: Any) -> bytes | None:
        read.append(one.name)
        return real(digests, one)

    monkeypatch.setattr(file_matching._FileHashes, "of", watching)
    items = [
        file("a", "A", name="a.md"),
        file("b", "B", name="b.pdf"),
        file("c", "C", name="c.md"),
        file("d", "D", name="d.md"),
    ]
    uploads = {"up-a.md": REPORT, "up-b.pdf": REPORT, "up-c.md": REPORT, "up-d.md": REPORT * 2}
    library = migrated(tmp_path, *items, rows=[Row("A", "of a"), Row("B", "of b")], uploads=uploads)
    assert set(read) == {"a.md", "c.md"}
    assert len(library.bodies("kb")) == 3


# --- told ----------------------------------------------------------------------------------------------------------


def holey(loader: str, *numbers: int, source: str = "/home/alice/docs/file.md") -> list[Row]:
    return [Row(loader, f"{loader} {number}", id=f"{loader}_{number}", source=source) for number in numbers]


def test_chunks_that_v1_never_stored_are_told_by_file(tmp_path: Path) -> None:
    items = [
        file("f", "F", name="report.pdf"),
        page("p", "P", address="https://example.com/a"),
        folder("d", "D", path="/home/alice/docs"),
        note("n", "N", text="A note\n" + "that is long " * 20),
        note("whole", "W"),
    ]
    rows = [
        *holey("F", 0, 9),
        *holey("P", 2),
        *holey("D", 1, source="/home/alice/docs/sub/file.md"),
        *holey("N", 1),
        *holey("W", 0, 1),
        *holey("gone", 7),
    ]
    library = migrated(tmp_path, *items, rows=rows)
    assert library.rows("kb")["v1_deduplicated"] == 12
    [(item, said, count)] = messages(library, "v1_deduplicated")
    assert (item, count) == (None, 12)
    start = "12 chunks never stored by v1 because the same text was stored already: report.pdf (8), "
    assert said.startswith(f"{start}https://example.com/a (2), sub/file.md (1), A note that is long")
    by_item = {item: (said, count) for item, said, count in messages(library, "v1_deduplicated_item")}
    assert {item: count for item, (_, count) in by_item.items()} == {"f": 8, "p": 2, "d": 1, "n": 1}
    end = "never stored by v1 because the same text was stored already"
    assert by_item["f"][0] == f"report.pdf: at least 8 of its 10 chunks {end}"
    assert by_item["d"][0] == f"sub/file.md: at least 1 of its 2 chunks {end}"
    assert len(by_item["n"][0]) < 200


def test_a_few_files_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    items = [file(f"f{at}", f"F{at}", name=f"file {at}.md") for at in range(8)]
    library = migrated(tmp_path, *items, rows=[row for at in range(8) for row in holey(f"F{at}", at)])
    [(_, said, _)] = messages(library, "v1_deduplicated")
    assert said.endswith("file 7.md (7), file 6.md (6), file 5.md (5), file 4.md (4), file 3.md (3) and 2 more")
    assert len(messages(library, "v1_deduplicated_item")) == 7


# --- properties ----------------------------------------------------------------------------------------------------

FILES = st.lists(
    st.tuples(
        st.sampled_from([b"one", b"two", b"three"]),
        st.sampled_from([".md", ".MD", ".pdf"]),
        # Rows that can be carried, and rows that cannot.
        st.integers(0, 3),
        st.integers(0, 1),
        st.sampled_from(["completed", "completed", "failed"]),
    ),
    max_size=6,
)


@given(files=FILES)
@settings(max_examples=examples(25))
def test_what_is_restored_is_what_the_twin_has_and_nothing_else_changes(files: list[Any]) -> None:
    items, rows, uploads = [note("n", "N")], [Row("N", "a note")], {}
    best: dict[tuple[bytes, str], int] = {}
    for at, (raw, ext, good, bad, status) in enumerate(files):
        items.append(file(f"f{at}", f"L{at}", name=f"f{at}{ext}", processingStatus=status))
        uploads[f"up-f{at}{ext}"] = raw
        rows += [Row(f"L{at}", f"{at} {number}", source="/x") for number in range(good)]
        rows += [Row(f"L{at}", f"{at} bad", b"odd", source="/x")] * bad
        key = raw, ext.lower()
        if good and (key not in best or good > files[best[key]][2]):
            best[key] = at
    wanted = {}
    for at, (raw, ext, good, bad, status) in enumerate(files):
        if not good and not bad and status == "completed" and (raw, ext.lower()) in best:
            wanted[at] = best[raw, ext.lower()]
    with tempfile.TemporaryDirectory() as place:
        source = Source([base("kb", *items)], {"kb": rows}, uploads=uploads).write(Path(place) / "v1")
        plain = moved(source, Path(place) / "plain", "--no-restore-duplicates")
        library = moved(source, Path(place) / "library")
        own = plain.units("kb")
        assert library.units("kb")[: len(own)] == own
        for at, like in wanted.items():
            assert of_item(library, f"f{at}") == of_item(library, f"f{like}") != []
        given_back = [unit.item for unit in library.units("kb")[len(own) :]]
        assert [*dict.fromkeys(given_back)] == [library.item_id(f"f{at}") for at in wanted]
        assert library.rows("kb") == {**plain.rows("kb"), "restored_duplicate": len(given_back)}
        assert library.items("kb") == plain.items("kb")
        if not wanted:
            assert library.index_path("kb").read_bytes() == plain.index_path("kb").read_bytes()


SHARED = st.lists(
    st.tuples(
        st.sampled_from([b"one", b"two"]),
        st.lists(st.sampled_from("ABCDE"), min_size=1, max_size=2, unique=True),
        st.sampled_from(["completed", "completed", "failed"]),
    ),
    max_size=6,
)


@given(files=SHARED, filled=st.sets(st.sampled_from("ABCDE"), max_size=3))
@settings(max_examples=examples(40))
def test_whoever_shares_loaders_gets_only_the_text_of_equal_bytes(files: list[Any], filled: set[str]) -> None:
    """Items share loaders in any way: the run goes on, and nobody gets the text of other bytes."""
    items = [
        file(f"f{at}", *loaders, name=f"f{at}.md", processingStatus=status)
        for at, (_, loaders, status) in enumerate(files)
    ]
    uploads = {f"up-f{at}.md": raw for at, (raw, _, _) in enumerate(files)}
    rows = [Row(loader, f"{loader} {number}") for number in range(2) for loader in sorted(filled)]
    with tempfile.TemporaryDirectory() as place:
        source = Source([base("kb", note("n", "N"), *items)], {"kb": [*rows, Row("N", "a note")]}, uploads=uploads)
        source.write(Path(place) / "v1")
        plain = moved(Path(place) / "v1", Path(place) / "plain", "--no-restore-duplicates")
        library = moved(Path(place) / "v1", Path(place) / "library")
        own = plain.units("kb")
        assert library.units("kb")[: len(own)] == own
        texts = {at: of_item(plain, f"f{at}") for at in range(len(files))}
        for at, (raw, loaders, status) in enumerate(files):
            now = of_item(library, f"f{at}")
            equal = [text for other, text in texts.items() if text and files[other][0] == raw]
            if now != texts[at]:
                assert not texts[at]
                assert not filled & set(loaders)
                assert status == "completed"
                assert now in equal
            alone = all(not set(loaders) & set(others) for n, (_, others, _) in enumerate(files) if n != at)
            if alone and not filled & set(loaders) and status == "completed":
                assert bool(now) == bool(equal), "an equal file with a text gives it"
