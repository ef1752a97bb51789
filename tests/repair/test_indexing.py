"""Texts that have no unit: how they are cut, where they come from, and what becomes of them in the index."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import semantic_text_splitter
from catalog_rows import item_of, put_file, put_item, raw, rows
from faults import fails, untouched
from harness import NOW_MS, run
from hypothesis import example, given
from hypothesis import strategies as st
from planted_v2 import KB, OTHER, index, plant, run_sql
from reconciled import state

from regraft import identity
from regraft.disk import links
from regraft.formats.cherry_v2.index.schema import cut_units as sliced
from regraft.formats.cherry_v2.settings import Settings
from regraft.report import progress
from regraft.report.document import encoded
from regraft.testing.strategies import texts
from regraft.text import is_blank, utf16_len
from repair.changes.run import run_command
from repair.cherry_v2 import indexing
from repair.cherry_v2.item_texts import LARGEST_FILE, NoText, cut_text, read_item_text

RUSSIAN = "Сегодня хорошая погода, а завтра дождь"
DELIMITER = Settings(chunk_size=20, chunk_overlap=3, chunk_strategy="delimiter", chunk_separator="---")


def filled(store: Path, *, dry_run: bool = False) -> dict[str, Any]:
    """Index what has no unit, and return the run's document."""
    planner = partial(indexing.plan, now_ms=NOW_MS)
    return encoded(run_command("backfill", store, planner, dry_run=dry_run, progress=progress.SilentProgress()))


def actions(document: dict[str, Any]) -> dict[str, int]:
    return {action["action"]: action["count"] for action in document["actions"]}


def left(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["finding"], one["reason"]) for one in document["left"]]


def findings(store: Path) -> set[str]:
    return {one["name"] for one in run("check", store, "--deep", "--json").document["findings"]}


def bodies(store: Path, material: str, base: str = KB) -> list[str]:
    query = (
        "SELECT t.text FROM search_unit u JOIN search_text t ON t.target_id = u.unit_id"
        " WHERE u.material_id = ? ORDER BY u.unit_index"
    )
    return [body for (body,) in rows(index(store, base), query, material)]


# --- cutting ---------------------------------------------------------------------------------------------------------


@given(
    st.lists(texts(), max_size=6).map("\n\n".join),
    st.integers(1, 60),
    st.integers(0, 80),
    st.sampled_from(["structured", "delimiter"]),
    st.sampled_from(["\\n\\n", "\\n", " ", "---", "\\\\n"]),
)
@example("\ufeff\x85\ufeff", 1, 0, "structured", "\\n\\n")
def test_units_are_slices_of_the_text_and_nothing_but_separators_is_lost(text, size, overlap, strategy, separator):
    settings = Settings(size, min(overlap, size - 1), chunk_strategy=strategy, chunk_separator=separator)
    spans = cut_text(text, settings)
    units = sliced("m", text, spans)
    assert all(not is_blank(unit.text) and len(unit.text) <= size for unit in units)
    assert [span[0] for span in spans] == sorted(span[0] for span in spans)
    wide = text.encode("utf-16-le")
    end, rest = 0, ""
    for start, stop in spans:
        rest += wide[2 * end : max(2 * start, 2 * end)].decode("utf-16-le")
        end = max(end, stop)
    rest += wide[2 * end :].decode("utf-16-le")
    written = {"\\n\\n": "\n\n", "\\n": "\n", "\\\\n": "\\n"}.get(separator, separator)
    # The splitter takes U+0085 for white space, wherever it is, which JavaScript does not.
    assert is_blank((rest.replace(written, "") if strategy == "delimiter" else rest).replace("\x85", ""))


#: A text at which the splitter fails.
FATAL = (
    '    BInstance   {"shape":"InvalidDBSecurityGroupStateFault"},\n        {"shape":"DBInstanceAlreadyExis\n'
    '        {"shape":"InsufficientDBInstanceCapacityFault"}      {"shape":"StorageQuotaExceededFault"},,\n'
    '        {"shape":"DBUpgradeDependencyFailureFault"},       {"shape":"StorageTypeNotSupportedFault"},'
    '        {"shape":"AuthorizationNotFoundFault"},\n        {"shape":"CertificateNotFoundFault"}\n      ],\n'
    '    documentation":"<p>Modifies settings for an instance. You can change one or more database configuration '
    "parameters by specifying these parameters and the new values in the request.</    },"
)


def test_a_fault_of_the_splitter_is_survived() -> None:
    with pytest.raises(BaseException, match="byte sequence"):
        semantic_text_splitter.MarkdownSplitter(200, 30).chunk_indices(FATAL)
    spans = cut_text(FATAL, Settings(chunk_size=200, chunk_overlap=30))
    assert all(0 < end - start <= 200 for start, end in spans)
    covered = {place for start, end in spans for place in range(start, end)}
    assert all(place in covered for place, char in enumerate(FATAL) if not char.isspace())


def test_a_separator_ends_every_unit_and_what_is_too_long_is_cut_further():
    text = "🎉 one---two🎉--- ---" + "x" * 30
    assert [unit.text for unit in sliced("m", text, cut_text(text, DELIMITER))] == [
        "🎉 one",
        "two🎉",
        "x" * 20,
        "x" * 13,
    ]


def test_a_blank_text_has_no_units():
    assert cut_text(" \n\u3000\ufeff\n", Settings()) == []


def test_headings_are_kept_with_what_follows():
    text = "\n\n".join(f"## Part {number}\n\n{'Some words. ' * 12}" for number in range(4))
    units = [unit.text for unit in sliced("m", text, cut_text(text, Settings(chunk_size=200, chunk_overlap=0)))]
    assert [unit[:9] for unit in units] == [f"## Part {number}" for number in range(4)]


@pytest.mark.thorough
def test_a_long_text_without_any_break_is_cut_in_windows():
    text = "知识" * 30_000
    units = sliced("m", text, cut_text(text, Settings(chunk_size=500, chunk_overlap=0)))
    assert "".join(unit.text for unit in units) == text
    assert utf16_len(text) == units[-1].char_end


def test_a_missing_splitter_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "semantic_text_splitter", None)
    with fails("WrongUsage", match=r"texts without units need semantic_text_splitter.*regraft\[indexing\]"):
        cut_text("text", Settings())


# --- where texts come from -------------------------------------------------------------------------------------------


def item(kind: str, **data: Any) -> dict[str, Any]:
    return {"id": "i", "type": kind, "data": json.dumps(data)}


@pytest.mark.parametrize(
    ("name", "content", "text", "guessed"),
    [
        ("a.txt", "plain 🎉".encode(), "plain 🎉", None),
        ("a.txt", b"\xef\xbb\xbfmarked", "marked", None),
        ("a.csv", "größer".encode("utf-16"), "größer", None),
        ("a.md", "x".encode("utf-32"), "x", None),
        ("a.txt", RUSSIAN.encode("cp1251"), RUSSIAN, "Windows-1251"),
        ("a.txt", "今天天气很好，我们去公园散步。".encode("gb18030"), "今天天气很好，我们去公园散步。", "GB18030"),
        ("a.HTML", b"<h1>Fog</h1><script>x()</script><p>A <b>bell</b></p>", "\n\n# Fog\n\nA **bell**\n\n", None),
        ("a.json", b'{"a": 1}', '{"a": 1}', None),
    ],
)  # fmt: skip
def test_a_file_is_read_as_text(name, content, text, guessed, tmp_path):
    (tmp_path / name).write_bytes(content)
    found = read_item_text(item("file", relativePath=name), tmp_path)
    assert (found.text.strip(), found.guessed) == (text.strip(), guessed)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.pdf", b"text", "a.pdf is not plain text"),
        ("a.bin", bytes(range(256)) * 9, "the encoding of .* is unknown"),
        ("a.txt", b"NUL \0 in it", "the encoding of .* is unknown"),
        ("a.txt", b" \n ", "its text is blank"),
        ("a.html", b"<div>" * 3000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_text_says_so(name, content, reason, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(NoText, match=reason):
        read_item_text(item("file", relativePath=name), tmp_path)


@pytest.mark.parametrize("path", ["gone.txt", "../outside.txt", "folder", None, "x" * 300])
def test_a_path_that_leads_to_no_file_is_followed_nowhere(path, tmp_path):
    inside = tmp_path / "raw"
    (inside / "folder").mkdir(parents=True)
    (tmp_path / "outside.txt").write_text("secret")
    with pytest.raises(NoText, match="its file is not in raw/"):
        read_item_text(item("file", relativePath=path), inside)


def test_a_link_that_leads_out_is_not_followed(tmp_path):
    inside = tmp_path / "raw"
    inside.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (inside / "a.txt").symlink_to(tmp_path / "secret.txt")
    (inside / "b.txt").symlink_to(inside / "b.txt")
    for name in ("a.txt", "b.txt", "half \ud83d a pair.txt"):
        with pytest.raises(NoText, match="its file is not in raw/"):
            read_item_text(item("file", relativePath=name), inside)


def test_a_file_that_is_too_large_or_may_not_be_read(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    with file.open("wb") as opened:
        opened.truncate(LARGEST_FILE + 1)
    with pytest.raises(NoText, match="is larger than 256 MiB"):
        read_item_text(item("file", relativePath="a.txt"), tmp_path)
    file.write_text("x")

    def refuse(_path: Path) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(links, "open_descriptor", refuse)
    with pytest.raises(NoText, match=r"cannot be read \(Permission denied\)"):
        read_item_text(item("file", relativePath="a.txt"), tmp_path)


def test_what_a_file_processor_made_goes_before_the_upload(tmp_path):
    (tmp_path / "a.txt").write_text("upload")
    processed = item("file", relativePath="a.txt", indexedRelativePath="a.md")
    assert read_item_text(processed, tmp_path).text == "upload"
    (tmp_path / "a.md").write_text("processed")
    assert read_item_text(processed, tmp_path).text == "processed"


def test_snapshots_go_before_what_a_note_holds(tmp_path):
    note = item("note", source="s", content="content", relativePath="n.md")
    assert read_item_text(note, tmp_path).text == "content"
    (tmp_path / "n.md").write_bytes(b'---\ntype: "Note"\n---\nsnapshot')
    assert read_item_text(note, tmp_path).text == "snapshot"
    assert read_item_text(item("url", url="u", relativePath="n.md"), tmp_path).text == "snapshot"
    assert read_item_text(item("note", content="half \ud83d a pair"), tmp_path).text == "half \ufffd a pair"
    for lacking, reason in (
        (item("url", url="u"), "its snapshot does not exist"),
        (item("directory"), "no text of its own"),
    ):
        with pytest.raises(NoText, match=reason):
            read_item_text(lacking, tmp_path)


# --- texts without units ---------------------------------------------------------------------------------------------


def test_nothing_is_done_where_every_text_has_units(store):
    with untouched(store):
        assert filled(store)["actions"] == []


def test_former_units_come_back_with_their_vectors(store):
    """Bodies that are left prove where their units were: nothing has to be embedded again."""
    before = state(store)
    run_sql(index(store), "DELETE FROM search_unit")
    assert findings(store) == {"material.no-units", "body.orphan"}
    document = filled(store)
    assert (actions(document), document["left"]) == ({"cut-texts": 15}, [])
    assert findings(store) == set()
    assert state(store) == before
    assert run("undo", store, "-y").status == 0
    assert findings(store) == {"material.no-units", "body.orphan"}


def test_a_text_whose_bodies_are_gone_is_cut_anew(store):
    material, _ = item_of(store, "note")
    run_sql(
        index(store),
        "CREATE TEMP TABLE gone AS SELECT target_id, embedding_text_hash FROM search_text JOIN search_unit"
        f" ON unit_id = target_id WHERE material_id = '{material}'",
        "DELETE FROM search_text WHERE target_id IN (SELECT target_id FROM gone)",
        f"DELETE FROM search_unit WHERE material_id = '{material}'",
        "DELETE FROM embedding WHERE embedding_text_hash IN (SELECT embedding_text_hash FROM gone)",
    )
    dry = filled(store, dry_run=True)
    assert actions(dry) == actions(filled(store)) == {"cut-texts": 1}
    assert bodies(store, material) == ["\n\n".join(f"text {number} of N" for number in range(3))]
    assert findings(store) == {"embedding.missing"}


def test_units_are_not_taken_for_all_of_them_where_a_body_is_gone(store):
    """Else the rest of the text would be lost in silence."""
    material, _ = item_of(store, "note")
    [(last,)] = rows(
        index(store), f"SELECT unit_id FROM search_unit WHERE material_id = '{material}' AND unit_index = 2"
    )
    run_sql(
        index(store),
        f"DELETE FROM search_text WHERE target_id = '{last}'",
        f"DELETE FROM search_unit WHERE material_id = '{material}'",
    )
    filled(store)
    assert "text 2 of N" in "".join(bodies(store, material))


def test_units_are_cut_by_the_settings_of_the_base(store):
    material, _ = item_of(store, "note")
    run_sql(store / "catalog.sqlite", "UPDATE knowledge_base SET chunk_size = 12, chunk_overlap = 0")
    run_sql(index(store), "DELETE FROM search_text", f"DELETE FROM search_unit WHERE material_id = '{material}'")
    run_sql(index(store), "INSERT INTO search_text_fts (search_text_fts) VALUES ('rebuild')")
    filled(store)
    assert bodies(store, material) == [f"text {number} of N" for number in range(3)]


def test_an_index_by_itself_is_cut_as_the_application_does_it(store):
    path = index(store, OTHER)
    run_sql(path, "DELETE FROM search_unit", "DELETE FROM search_text", "DELETE FROM embedding")
    alone = shutil.copyfile(path, store.parent / "alone.sqlite")
    assert actions(filled(alone)) == {"cut-texts": 1}
    assert rows(alone, "SELECT text FROM search_text") == [("text of O",)]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE content SET text = text || '!'", "its text does not match its hash; run regraft repair first"),
        ("UPDATE content SET text = x'00ff'", "its text does not match its hash; run regraft repair first"),
        ("UPDATE meta SET base_id = 'x'", "the index was not changed: the index belongs to base x"),
    ],
)
def test_what_is_damaged_stays(statement, reason, store):
    run_sql(index(store, OTHER), "DELETE FROM search_unit", statement)
    document = filled(store)
    assert (left(document), document["actions"]) == ([("material.no-units", reason)], [])


@pytest.mark.parametrize("blank", ["\u3000\u3000", "\ufeff", "\x85"])
def test_a_text_of_nothing_but_odd_blanks_stays(blank, store):
    run_sql(
        index(store, OTHER),
        "DELETE FROM search_unit",
        f"INSERT INTO content VALUES ('{identity.text_hash(blank)}', '{blank}', 0)",
        f"UPDATE material SET current_content_hash = '{identity.text_hash(blank)}'",
    )
    assert left(filled(store)) == [("material.no-units", "its text is blank")]


# --- items without a material ----------------------------------------------------------------------------------------


def lose_material(store: Path, key: str) -> None:
    run_sql(
        index(store),
        "DELETE FROM embedding WHERE embedding_text_hash IN (SELECT embedding_text_hash FROM search_text"
        f" JOIN search_unit ON unit_id = target_id WHERE material_id = '{key}')",
        f"DELETE FROM search_text WHERE target_id IN (SELECT unit_id FROM search_unit WHERE material_id = '{key}')",
        f"DELETE FROM search_unit WHERE material_id = '{key}'",
        f"DELETE FROM material WHERE material_id = '{key}'",
        "DELETE FROM content WHERE content_hash NOT IN (SELECT current_content_hash FROM material)",
    )


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["url", "note"])
def test_a_snapshot_is_indexed_again_under_the_same_ids(kind, store):
    key, data = item_of(store, kind)
    before = rows(index(store), "SELECT content_hash FROM content ORDER BY 1")
    lose_material(store, key)
    assert findings(store) == {"item.no-material"}
    document = filled(store)
    assert (actions(document), document["left"]) == ({"index-items": 1}, [])
    assert rows(index(store), "SELECT content_hash FROM content ORDER BY 1") == before
    query = "SELECT relative_path, created_at FROM material WHERE material_id = ?"
    assert rows(index(store), query, key) == [(data["relativePath"], NOW_MS)]
    assert findings(store) == {"embedding.missing"}


def test_units_that_lost_their_material_are_cut_anew_and_their_vectors_are_kept(store):
    """The former vectors may be the only copy."""
    key, _ = item_of(store, "note")
    vectors = rows(index(store), "SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY 1")
    run_sql(index(store), "PRAGMA foreign_keys = OFF", f"DELETE FROM material WHERE material_id = '{key}'")
    assert len(bodies(store, key)) == 3
    document = filled(store)
    assert (actions(document), document["left"]) == ({"index-items": 1}, [])
    assert len(bodies(store, key)) == 1
    assert rows(index(store), "SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY 1") == vectors


def test_a_note_whose_snapshot_is_gone_too_gets_it_again(store):
    key, data = item_of(store, "note")
    lose_material(store, key)
    (raw(store) / data["relativePath"]).unlink()
    document = filled(store)
    assert actions(document) == {"write-snapshot": 1, "index-items": 1}
    assert "".join(bodies(store, key)) == data["content"]
    assert (raw(store) / data["relativePath"]).read_text("utf-8").endswith(f"---\n{data['content']}")
    assert findings(store) == {"embedding.missing"}


def test_files_of_every_kind(store):
    put_file(store, "i1", "plain.txt", b"plain text")
    put_file(store, "i2", "menu.txt", RUSSIAN.encode("cp1251"))
    put_file(store, "i3", "scan.pdf", b"%PDF")
    put_item(store, "i4", "file", source="s", relativePath="gone.txt")
    put_item(store, "i5", "url", source="u", url="u", relativePath="u.md")
    document = filled(store)
    assert actions(document) == {"index-items": 2, "guess-encoding": 1}
    [guess] = [one for one in document["actions"] if one["action"] == "guess-encoding"]
    assert guess["message"] == "read menu.txt as Windows-1251, guessed from its letters"
    assert sorted(left(document)) == [
        ("item.no-material", "its file is not in raw/: index it in the application"),
        ("item.no-material", "its snapshot does not exist: index it in the application"),
        ("item.no-material", "scan.pdf is not plain text: index it in the application"),
    ]
    assert bodies(store, "i2") == [RUSSIAN]
    assert findings(store) == {"embedding.missing", "item.no-material"}


def test_a_repair_is_only_named_where_there_is_a_text(store):
    put_file(store, "i3", "scan.pdf", b"%PDF")
    put_item(store, "i4", "file", source="s", relativePath="gone.txt")
    put_item(store, "i5", "url", source="u", url="u")
    put_item(store, "i6", "note", source="s", content=" ")
    found = run("check", store, "--json").document["findings"]
    assert {one["message"].partition("; if you have another copy")[0]: one["repair"] for one in found} == {
        "1 item completed but without a text in the index, and with a file that is not plain text": None,
        "1 item completed but without a text in the index, and with no file to read it from": None,
        "1 item completed but never indexed, and with no file to read it from": None,
        "1 item completed but never indexed, and with no text in the note": None,
    }
    put_file(store, "i1", "plain.txt", b"plain text")
    put_item(store, "i7", "note", source="s", content="text")
    found = run("check", store, "--json").document["findings"]
    repairs = [one["repair"] for one in found if one["repair"] is not None]
    [copy, embedding] = repairs
    assert copy.startswith(f"regraft repair {store} --from ")
    assert embedding == f"regraft backfill {store} --base {KB}"


@pytest.mark.parametrize("path", ["../x.txt", "taken"])
def test_a_path_that_cannot_be_the_texts_stays(path, store):
    _, data = item_of(store, "note")
    wanted = data["relativePath"] if path == "taken" else path
    put_item(store, "i", "note", source="s", content="new", relativePath=wanted)
    [(finding, reason)] = left(filled(store))
    assert (finding, reason.startswith(f'its path, "{wanted}", is')) == ("item.no-material", True)


# --- notes that were never indexed -----------------------------------------------------------------------------------


def test_a_note_gets_a_snapshot_a_path_and_units(store):
    put_item(store, "i1", "note", source="Soup", content="Boil it. 🎉")
    put_item(store, "i2", "note", source="Soup", content="Salt it.")
    put_item(store, "i3", "note", source="Nothing", content="")
    before = state(store)
    document = filled(store)
    assert actions(document) == {"write-snapshot": 1, "update-items": 2, "index-items": 2}
    assert left(document) == [("item.not-indexed", "its text is blank")]
    assert (
        (raw(store) / "Soup.md")
        .read_text("utf-8")
        .endswith('title: "Soup"\ntimestamp: "2026-11-21T12:00:00.000Z"\n---\nBoil it. 🎉')
    )
    assert (raw(store) / "Soup_1.md").read_text("utf-8").endswith("---\nSalt it.")
    query = "SELECT data ->> 'relativePath' FROM knowledge_item WHERE id IN ('i1', 'i2') ORDER BY id"
    assert rows(store / "catalog.sqlite", query) == [("Soup.md",), ("Soup_1.md",)]
    assert bodies(store, "i1") == ["Boil it. 🎉"]
    assert findings(store) == {"embedding.missing", "item.not-indexed"}
    assert run("undo", store, "-y").status == 0
    assert state(store) == before


def test_halves_of_pairs_are_written_nowhere(store):
    half = "half \ud83d a pair"
    put_item(store, "i1", "note", source=half, content=half)
    put_item(store, "i2", "note", source="s", content="text", relativePath=f"{half}.md")
    document = filled(store)
    assert actions(document) == {"write-snapshot": 1, "update-items": 1, "index-items": 1}
    assert left(document) == [("item.no-material", f'its path, "{half}.md", is not UTF-8')]
    assert bodies(store, "i1") == ["half \ufffd a pair"]


def test_what_is_not_completed_is_left_alone(store):
    put_item(store, "i1", "note", source="Soup", content="Boil it.")
    run_sql(store / "catalog.sqlite", "UPDATE knowledge_item SET status = 'idle' WHERE id = 'i1'")
    run_sql(index(store, OTHER), "DELETE FROM search_unit")
    run_sql(
        store / "catalog.sqlite",
        f"UPDATE knowledge_base SET status = 'failed', error = 'x' WHERE id = '{OTHER}'",
    )
    assert filled(store)["actions"] == []


def test_another_base_is_left_alone(store):
    for base in (KB, OTHER):
        run_sql(index(store, base), "DELETE FROM search_unit")
    planner = partial(indexing.plan, now_ms=NOW_MS)
    report = run_command("backfill", store, planner, bases=(OTHER,), progress=progress.SilentProgress())
    assert {action.base for action in report.actions} == {OTHER}


def test_a_text_that_changes_meanwhile_stops_the_run(store):
    put_file(store, "i1", "plain.txt", b"plain text")
    before = state(store)

    def planner(found: Any) -> Any:
        made = indexing.plan(found, NOW_MS)
        (raw(store) / "plain.txt").write_text("other")
        return made

    with fails("PlanOutdated", match="the text of i1 changed in the meantime"):
        run_command("backfill", store, planner, progress=progress.SilentProgress())
    (raw(store) / "plain.txt").write_text("plain text")
    assert state(store) == before


def test_a_damaged_index_is_said(store, monkeypatch):
    plant("no units", store)
    monkeypatch.setattr("repair.cherry_v2.indexing._NO_UNITS", "SELECT nothing FROM nowhere")
    [(finding, reason)] = left(filled(store))
    assert finding == "material.no-units"
    assert reason.startswith("the index cannot be read as a whole")
