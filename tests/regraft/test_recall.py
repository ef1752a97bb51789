"""``regraft recall``: lines of a note of AngelMemory, by its short id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from angel_store import SAMPLES, AngelStore, build, double_short_id, needs_samples, untouched
from harness import Outcome, run

from regraft.embedders.protocol import estimate
from regraft.ranking.angel_memory import LineRange, recall

LINES = [f"line {number} of the log" for number in range(1, 11)]


@pytest.fixture
def store(tmp_path: Path) -> AngelStore:
    notes = {"a.txt": "\n".join(LINES) + "\n", "b/c.md": "# One\n## Two\nbody\n", "empty.txt": ""}
    return build(tmp_path / "data", notes)


def recalled(store: AngelStore, short_id: int, *options: object) -> dict[str, Any]:
    done = run("recall", store.root, short_id, "--json", *options)
    assert done.status == 0, done.stderr
    return done.document


def refused(code: str, done: Outcome) -> str:
    assert (done.status, done.document["error"]["code"]) == (2, code)
    return str(done.document["error"]["message"])


def span(found: dict[str, Any]) -> tuple[int, int, int]:
    return found["actual_start_line"], found["actual_end_line"], found["total_lines"]


def test_the_id_zero_is_as_good_as_any_other(store: AngelStore) -> None:
    with untouched(store.root):
        found = recalled(store, 0)
    (record,) = [one for one in store.records() if one.short_id == 0]
    assert found["note_short_id"] == 0
    assert (found["path"], found["source_id"]) == ("a.txt", record.source_id)
    assert found["content"].splitlines() == LINES
    assert span(found) == (1, 10, 10)
    assert found["truncated"] is False
    assert found["source"]["kind"] == "angel-memory"


def test_headings_and_tags_come_along(store: AngelStore) -> None:
    found = recalled(store, 1)
    assert found["headings"] == ["One", "Two"]
    assert found["tags"] == ["b", "c.md", "One", "Two"]


@pytest.mark.parametrize(
    ("lines", "first", "last"),
    [
        ("3:5", 3, 5),
        ("3:3", 3, 3),
        ("8:", 8, 10),
        (":2", 1, 2),
        ("9:99", 9, 10),
        ("0:2", 1, 2),
        ("50:", 10, 10),
        ("50:60", 10, 10),
        (":0", 1, 1),
    ],
)
def test_lines_are_clipped_to_what_there_is(store: AngelStore, lines: str, first: int, last: int) -> None:
    found = recalled(store, 0, "--lines", lines)
    assert span(found) == (first, last, 10)
    assert found["content"].splitlines() == LINES[first - 1 : last]


@pytest.mark.parametrize("lines", ["5:3", ":", "", "5", "a:b", "-1:2", "1:2:3", "1:2\n", "٣:٤"])
def test_what_is_no_range_is_refused(store: AngelStore, lines: str) -> None:
    assert "--lines" in refused("WrongUsage", run("recall", store.root, 0, "--json", "--lines", lines))


def test_an_empty_file_has_no_lines(store: AngelStore) -> None:
    found = recalled(store, 2, "--lines", "1:5")
    assert (span(found), found["content"], found["truncated"]) == ((0, 0, 0), "", False)


@pytest.mark.parametrize("budget", [5, 6, 11, 12, 25, 60, 10_000])
def test_a_budget_leaves_whole_lines_out_at_the_end(store: AngelStore, budget: int) -> None:
    found = recalled(store, 0, "--lines", "2:", "--token-budget", budget)
    kept = found["content"].splitlines()
    assert kept == LINES[1 : 1 + len(kept)]
    assert found["tokens"] == estimate(found["content"]) <= budget
    assert found["truncated"] is (len(kept) < 9)
    assert found["line_cut"] is False
    if found["truncated"]:
        assert estimate("\n".join(LINES[1 : 2 + len(kept)])) > budget
    assert span(found) == (2, 1 + len(kept), 10)


@pytest.mark.parametrize(("budget", "content"), [(1, "line"), (4, "line 2 of the lo")])
def test_a_budget_below_the_first_line_cuts_inside_it(store: AngelStore, budget: int, content: str) -> None:
    found = recalled(store, 0, "--lines", "2:", "--token-budget", budget)
    assert (span(found), found["content"]) == ((2, 2, 10), content)
    assert (found["truncated"], found["line_cut"], found["tokens"]) == (True, True, budget)
    said = run("recall", store.root, 0, "--lines", "2:", "--token-budget", budget)
    assert said.stdout.endswith(f"\n{content}\n")
    assert f"line 2 is longer than the budget of {budget} tokens" in said.stderr
    assert "--lines" not in said.stderr


def test_a_budget_without_room_for_a_character_gives_none(store: AngelStore) -> None:
    store.write("a.txt", "🌱🌱\nmore\n")
    found = recalled(store, 0, "--token-budget", 1)
    assert (span(found), found["content"]) == ((1, 0, 2), "")
    assert (found["truncated"], found["line_cut"]) == (True, True)
    assert recalled(store, 0, "--token-budget", 2)["content"] == "🌱"


def test_a_person_hears_how_to_go_on(store: AngelStore) -> None:
    done = run("recall", store.root, 0, "--token-budget", 12)
    assert done.stdout.startswith("Note 0: a.txt\nlines 1 to 2 of 10, about 9 tokens\n\nline 1 of the log\n")
    assert "continue with --lines 3:" in done.stderr
    quiet = run("recall", store.root, 0, "--lines", "2:2", "-q")
    assert (quiet.stdout, quiet.stderr) == ("line 2 of the log\n", "")
    assert "tags b, c.md, One, Two" in run("recall", store.root, 1, "-v").stdout


def test_the_file_is_read_as_it_is_now(store: AngelStore) -> None:
    store.write("a.txt", "other\r\nlines\n")
    found = recalled(store, 0)
    assert (found["content"], found["total_lines"]) == ("other\nlines", 2)


def test_bytes_that_are_no_text_are_left_out(store: AngelStore) -> None:
    store.write("a.txt", b"caf\xe9\nb\n")
    assert recalled(store, 0)["content"] == "caf\nb"


def test_an_unknown_id_gets_the_nearest(store: AngelStore) -> None:
    message = refused("NoteUnknown", run("recall", store.root, 7, "--json"))
    assert "the closest short ids are 0, 1, 2, the highest is 2" in message


def test_the_id_that_the_system_shows_for_zero_is_explained(store: AngelStore) -> None:
    assert "use 0" in refused("WrongUsage", run("recall", store.root, "-1", "--json"))


def test_numbers_may_be_of_any_size(store: AngelStore) -> None:
    refused("WrongUsage", run("recall", store.root, 2**63, "--json"))
    refused("NoteUnknown", run("recall", store.root, 2**63 - 1, "--json"))
    assert span(recalled(store, 0, "--lines", f"2:{10**20}")) == (2, 10, 10)


def test_without_notes_no_id_is_known(tmp_path: Path) -> None:
    empty = build(tmp_path / "empty", {})
    assert "there are no notes" in refused("NoteUnknown", run("recall", empty.root, 0, "--json"))


def test_an_id_of_several_notes_is_refused(tmp_path: Path) -> None:
    store = build(tmp_path / "other")
    double_short_id(store)
    assert "regraft repair" in refused("NoteAmbiguous", run("recall", store.root, 1, "--json"))


def test_a_file_that_is_gone_is_told(store: AngelStore) -> None:
    (store.raw / "a.txt").unlink()
    assert "raw/a.txt" in refused("NoteGone", run("recall", store.root, 0, "--json"))


@pytest.mark.parametrize("path", ["../secret.txt", "b/../../secret.txt", "link.txt", "", "."])
def test_nothing_outside_is_read(store: AngelStore, path: str) -> None:
    (store.root / "secret.txt").write_text("secret")
    (store.raw / "link.txt").symlink_to(store.root / "secret.txt")
    store.execute("UPDATE note_index_records SET source_file_path = ? WHERE note_short_id = 0", path)
    done = run("recall", store.root, 0, "--json")
    refused("NoteOutside", done)
    assert "secret" not in done.document["error"]["message"].replace("secret.txt", "")


def test_a_folder_is_no_note(store: AngelStore) -> None:
    store.execute("UPDATE note_index_records SET source_file_path = 'b' WHERE note_short_id = 0")
    refused("SourceUnreadable", run("recall", store.root, 0, "--json"))


def test_a_database_that_cannot_be_read_is_told(store: AngelStore) -> None:
    store.execute("DROP TABLE global_tags")
    assert "no table global_tags" in refused("SourceUnreadable", run("recall", store.root, 0, "--json"))


def test_only_a_data_folder_has_notes(tmp_path: Path) -> None:
    other = tmp_path / "v1"
    other.mkdir()
    (other / "data.json").write_text('{"version": 5, "localStorage": {}, "indexedDB": {}}')
    assert "a v1 backup" in refused("NotRecalled", run("recall", other, 0, "--json"))


def test_a_span_goes_forward() -> None:
    with pytest.raises(ValueError, match="first line 3 is after last line 2"):
        LineRange(3, 2)


@needs_samples
def test_notes_of_the_system_itself() -> None:
    found = recall(SAMPLES / "healthy", 8, LineRange(3, 5))
    assert (found.record.headings[:2], found.content, found.total_lines) == (
        ("Trip plan", "Hotels"),
        "## Hotels\n- a\n",
        12,
    )
