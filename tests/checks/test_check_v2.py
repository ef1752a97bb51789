"""``regraft check`` of v2 data: every finding by damage that makes it, levels, the document; nothing is written."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import click
import pytest
import v1
from doc_text import keys, section, spans, text_of
from faults import said, untouched
from harness import GOLDEN, NOW_MS, REPO, command_words, golden, run
from planted_v2 import KB, OLD, OTHER, index, plant, run_sql

from checks.audit.findings import FINDINGS
from checks.cherry_v2 import findings
from regraft import identity
from regraft.cli import cli
from regraft.formats.cherry_v2.index import IndexStore
from regraft.testing import DAMAGES
from regraft.testing.damage import STRAY_BASE

LEVELS = ("quick", "default", "deep")
#: Graver where v1's files can bring it back, or where a salvage may have lost rows.
WITHOUT_V1 = {"item.tombstone": "warning", "base.failed": "warning", "item.not-indexed": "note"}
FINDING = {"name", "severity", "base", "subject", "message", "count", "samples", "repair"}


@pytest.fixture
def store(healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Copy the library, and see that the temporary folder of the run stays empty."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield shutil.copytree(healthy, tmp_path / "library")
    assert list(temporary.iterdir()) == []


def check(path: Path, *options: object) -> dict[str, Any]:
    done = run("check", path, "--json", *options)
    assert done.status in (0, 1), done.stderr
    assert done.stderr == ""
    return done.document


def found(path: Path, *options: object) -> list[dict[str, Any]]:
    return list(check(path, *options)["findings"])


def names(path: Path, *options: object) -> set[str]:
    return {finding["name"] for finding in found(path, *options)}


def option(level: str) -> list[str]:
    return [] if level == "default" else [f"--{level}"]


# --- findings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_a_whole_library_has_nothing_to_complain_about(level: str, store: Path) -> None:
    with untouched(store):
        document = check(store, *option(level))
    assert document["findings"] == []
    assert document["level"] == level
    checked = document["checked"]
    assert (checked["bases"], checked["units"], checked["bodies"], checked["embeddings"]) == (2, 16, 16, 16)


def demand_found(name: str, store: Path, levels: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Assert that damage is found at each of these levels that looks for it, and at no other, without a write."""
    level = DAMAGES[name].level
    planted = plant(name, store)
    with untouched(store):
        answers = {level: found(store, *option(level)) for level in levels}
    for answer in (answers[one] for one in LEVELS[LEVELS.index(level) :] if one in answers):
        about = [one for one in answer if (one["name"], one["base"]) == (planted.finding, planted.base)]
        assert about, [(one["name"], one["base"], one["message"]) for one in answer]
        assert all(set(one) - {"names"} == FINDING for one in about)
        assert about[0]["severity"] == WITHOUT_V1.get(planted.finding, FINDINGS[planted.finding].severity)
        assert about[0]["count"] >= 1
        if planted.subject is not None:
            assert planted.subject in {one["subject"] for one in about}
    for answer in (answers[one] for one in LEVELS[: LEVELS.index(level)] if one in answers):
        assert planted.finding not in {one["name"] for one in answer}
    return answers


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_with_a_repair_that_is_understood_and_nothing_written(name: str, store: Path) -> None:
    """The level that looks for it, and the one beside it: the default level is one of the two."""
    answers = demand_found(name, store, LEVELS[1:] if DAMAGES[name].level == "deep" else LEVELS[:2])
    for finding in answers["default"]:
        demand_understood(finding, store)


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_at_every_level(name: str, store: Path) -> None:
    demand_found(name, store, LEVELS)


def demand_understood(finding: dict[str, Any], store: Path) -> None:
    """Assert that the repair of a finding is a command line that the program takes."""
    if finding["repair"] is not None:
        program, command, *words = command_words(finding["repair"])
        # A migration is given where its result goes behind its source.
        assert (program, words[-1 if command == "migrate" else 0]) == ("regraft", str(store))
        parent = click.Context(cli, help_option_names=["-h", "--help"])
        context = cli.commands[command].make_context(command, words, parent=parent)
        if finding["name"] in context.params.get("only", ()):
            assert context.params["bases"] == ((finding["base"],) if finding["base"] else ())


def test_every_finding_is_planted() -> None:
    v2 = {name for name in vars(findings).values() if isinstance(name, str)} & FINDINGS.keys()
    # What stands in the way of an installation is not damage of a store: only install reports it. And whether an
    # original is gone depends on the computer.
    others = {findings.BASE_EXISTS, findings.BACKUP_SLIM, findings.ITEM_SOURCE_MISSING}
    others |= {name for name in v2 if name.startswith("source.")}
    # It takes two runs to see it (test_rolling_check.py).
    others |= {findings.VECTOR_CHANGED}
    assert {damage.finding for damage in DAMAGES.values()} == v2 - others


def test_every_finding_is_on_its_page() -> None:
    text = text_of("docs/findings.md")
    for damage in DAMAGES.values():
        definition = FINDINGS[damage.finding]
        assert f"| `{definition.name}` | {definition.severity} |" in text
        assert definition.meaning.endswith(".")
        assert definition.remedy.endswith(".")


def test_the_repair_is_the_command_that_mends_it(store: Path) -> None:
    plant("a preview store", store)
    plant("no vector", store)
    repairs = {finding["name"]: finding["repair"] for finding in found(store)}
    assert repairs["schema.preview"] == f"regraft upgrade {store} --base {STRAY_BASE}"
    assert repairs["embedding.missing"].startswith(f"regraft repair {store} --from ")
    messages = {finding["name"]: finding["message"] for finding in found(store)}
    assert messages["embedding.missing"].endswith(
        f"if that copy no longer exists: regraft backfill {store} --base {KB}"
    )


def test_vectors_that_nobody_needs_are_not_made_anew(store: Path) -> None:
    plant("a vector of nobody", store)
    assert {finding["name"]: finding["repair"] for finding in found(store)} == {
        "embedding.orphan": f"regraft gc {store} --only embedding.orphan --base {KB}",
        "embedding.zero": f"regraft gc {store} --only embedding.orphan --base {KB}",
    }


@pytest.mark.parametrize("level", LEVELS)
def test_a_reference_that_leads_nowhere_is_mended_whatever_the_level(level: str, store: Path) -> None:
    plant("a text that is gone", store)
    options = [] if level == "default" else [f"--{level}"]
    repairs = {finding["name"]: finding["repair"] for finding in found(store, *options)}
    assert repairs["material.no-content"] == f"regraft repair {store} --only material.no-content --base {KB}"
    assert "file.corrupt" not in repairs


def test_a_reference_that_no_other_finding_names(store: Path) -> None:
    run_sql(index(store), "INSERT INTO material VALUES ('m', 'm', 'gone', 0, 0)")
    assert "file.corrupt" in {finding["name"] for finding in found(store, "--deep")}


def test_wrong_units_and_bodies_are_found_where_the_text_is_wrong_too(store: Path) -> None:
    run_sql(
        index(store),
        "UPDATE content SET text = text || 'x'",
        "UPDATE search_unit SET unit_id = 'x' WHERE rowid = 2",
        "UPDATE search_text SET search_text_id = 'x' WHERE rowid = 3",
        "UPDATE search_text SET embedding_text_hash = 'x' WHERE rowid = 4",
    )
    assert {"content.hash", "unit.id", "body.id", "body.hash"} <= {finding["name"] for finding in found(store)}


def test_what_is_in_a_folder_of_no_base_is_listed_with_the_folder(store: Path) -> None:
    plant("a folder of no base", store)
    run_sql(index(store, STRAY_BASE), f"UPDATE meta SET base_id = '{STRAY_BASE}'")
    run_sql(store / "catalog.sqlite", f"DELETE FROM knowledge_item WHERE base_id = '{KB}'")
    for folder in (store, *store.rglob("*")):
        os.utime(folder, (OLD, OLD))
    about = {finding["name"]: finding["repair"] for finding in found(store) if finding["base"] == STRAY_BASE}
    for name in ("material.orphan", "raw.orphan"):
        assert about[name] == f"regraft repair {store} --only index.orphan --adopt"
    assert run("gc", store, "--only", "index.orphan", "-q").status == 0
    assert STRAY_BASE not in {finding["base"] for finding in found(store)}


def test_waste_stays_while_nobody_can_read_the_catalog(store: Path) -> None:
    plant("a vector of nobody", store)
    plant("no catalog", store)
    repairs = {finding["name"]: finding["repair"] for finding in found(store)}
    assert repairs["embedding.orphan"] is None


def test_bodies_wait_for_the_units_of_their_material(store: Path) -> None:
    """Its units come back from them, with the vectors that are there."""
    plant("no units", store)
    backfill = f"regraft backfill {store} --base {KB}"
    assert {finding["name"]: finding["repair"] for finding in found(store)} == {
        "material.no-units": backfill,
        "body.orphan": backfill,
    }


def test_counts_and_samples(store: Path) -> None:
    run_sql(index(store), "DELETE FROM embedding WHERE rowid <= 4")
    [finding] = found(store)
    assert (finding["name"], finding["count"], len(finding["samples"])) == ("embedding.missing", 4, 3)
    assert finding["message"].startswith("4 bodies without a vector; if that copy no longer exists: regraft backfill ")
    assert finding["subject"] is None


def test_items_are_called_by_their_names(store: Path) -> None:
    """Whatever row a finding gives for an example, a person is told the item that it is of."""
    items = look(store)
    run_sql(index(store), "UPDATE embedding SET vector_blob = zeroblob(length(vector_blob)) WHERE rowid = 1")
    run_sql(index(store), "UPDATE material SET current_content_hash = NULL WHERE rowid = 1")
    told = {finding["name"]: finding for finding in found(store)}
    [zero], [material] = told["embedding.zero"]["samples"], told["material.no-content"]["samples"]
    assert told["embedding.zero"]["names"][zero] in items.values()
    assert told["material.no-content"]["names"] == {material: items[material]}
    shown = run("check", store, "-v").stdout
    assert f"for example: {items[material]} ({material})" in shown
    assert "for example:" not in run("check", store).stdout


def look(store: Path) -> dict[str, str]:
    """Return the names of all items by their ids."""
    bases = run("inspect", store, "--items", "--json").document["bases"]
    return {item["id"]: item["name"] for one in bases for item in one["item_list"]}


def test_a_material_with_text_and_no_unit(store: Path) -> None:
    with closing(apsw.Connection(str(index(store, OTHER)))) as db:
        for table in ("search_text", "search_unit", "embedding"):
            db.execute(f"DELETE FROM {table}")
    assert names(store) == {"material.no-units"}


def test_offsets_count_utf_16_units(store: Path) -> None:
    """Offsets that count characters are right in plain text and wrong behind the first emoji."""
    first, second = "🎉 a fête 🎉", "第二段 text"
    content = f"{first}\n\n{second}"
    starts = [0, len(f"{first}\n\n".encode("utf-16-le")) // 2]
    ends = [len(text.encode("utf-16-le")) // 2 + start for text, start in zip((first, second), starts, strict=True)]
    with IndexStore(index(store, OTHER), OTHER) as opened:
        [(material, path, length)] = opened._db.execute(
            "SELECT material_id, relative_path, length(vector_blob) FROM material, embedding LIMIT 1"
        )
        vectors = {identity.text_hash(text): b"\0\0\x80\x3f" * (length // 4) for text in (first, second)}
        opened.rebuild_material(material, path, content, zip(starts, ends, strict=True), vectors, NOW_MS)
    # The file in raw/ is the old one; only what the index says of itself is looked at here.
    assert names(store / "KnowledgeBase" / OTHER / ".cherry" / "index.sqlite") == set()
    with closing(apsw.Connection(str(index(store, OTHER)))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        content_hash = identity.text_hash(content)
        # As a program counts that takes an emoji for one: two before the first unit's end, so two less from there on.
        unit = identity.unit_id(material, content_hash, 1, starts[1] - 2, ends[1] - 2)
        db.execute("UPDATE search_text SET target_id = ?, search_text_id = ? WHERE text = ?",
                   (unit, identity.body_id(unit), second))  # fmt: skip
        db.execute("UPDATE search_unit SET unit_id = ?, char_start = char_start - 2, char_end = char_end - 2"
                   " WHERE unit_index = 1", (unit,))  # fmt: skip
    assert names(store / "KnowledgeBase" / OTHER / ".cherry" / "index.sqlite") == {"unit.offsets"}


# --- what is looked at ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inside", ["", "KnowledgeBase", f"KnowledgeBase/{KB}", f"KnowledgeBase/{KB}/.cherry/index.sqlite"]
)
def test_all_of_it_or_one_base(inside: str, store: Path) -> None:
    plant("no vector", store)
    document = check(store / inside)
    assert [(one["name"], one["base"]) for one in document["findings"]] == [("embedding.missing", KB)]
    assert document["checked"]["bases"] == (1 if KB in inside else 2)


def test_one_base_by_its_id(store: Path) -> None:
    plant("no vector", store)
    assert found(store, "--base", OTHER) == []
    assert names(store, "--base", KB) == {"embedding.missing"}
    assert "known bases: Base kb (" in said(run("check", store, "--base", "x", "--json"), "BaseUnknown", 2)


def test_only_some_findings_and_the_exit_status(store: Path) -> None:
    plant("no vector", store)
    plant("a stray file", store)
    assert names(store, "--only", "raw.orphan") == {"raw.orphan"}
    status = {
        line: run("check", store, "--only", "raw.orphan", "--fail-on", line).status for line in ("warning", "error")
    }
    assert status == {"warning": 1, "error": 0}


def test_a_note_is_no_complaint_but_for_who_asks(store: Path) -> None:
    plant("a note never indexed", store)
    status = {line: run("check", store, "--fail-on", line).status for line in ("note", "warning", "error", "never")}
    assert {finding["severity"] for finding in found(store)} == {"note"}
    assert status == {"note": 1, "warning": 0, "error": 0, "never": 0}


def test_time_that_is_over_is_said(store: Path) -> None:
    document = check(store, "--max-duration", "0")
    assert document["findings"] == []
    assert f"{KB}: structure" in document["not_checked"]
    assert "Time limit reached" in run("check", store, "--max-duration", "0").stdout
    assert check(store, "--max-duration", "600")["not_checked"] == []


def test_options_that_do_not_go_together(store: Path, tmp_path: Path) -> None:
    source = tmp_path.parent / store.parent.name / "v1"
    assert not source.exists()
    assert "--quick and --deep exclude each other" in said(
        run("check", store, "--quick", "--deep", "--json"), "WrongUsage", 2
    )
    assert "--map-model" in said(run("check", store, "--map-model", "a::b=c::d", "--json"), "WrongUsage", 2)


def test_levels_are_for_v2_data(healthy: Path) -> None:
    said_of = {
        name: run("check", healthy.parent / "v1", *name.split(), "--json") for name in ("--deep", "--max-duration 1")
    }
    for name, done in said_of.items():
        assert f"{name.split()[0]} can only be used for a check of v2 data" in said(done, "WrongUsage", 2)


def test_an_index_that_nobody_recognises_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    for content in (b"", b"noise", bytes(4096), b"SQLite format 3\0" + bytes(500)):
        path.write_bytes(content)
        with untouched(tmp_path):
            assert names(path) == {"file.unreadable"}


@pytest.mark.parametrize("level", ["quick", "default", "deep"])
def test_an_index_without_a_readable_schema_is_one_finding(level: str, store: Path) -> None:
    run_sql(
        index(store), "PRAGMA writable_schema = ON", "UPDATE sqlite_schema SET sql = 'CREATE' WHERE name = 'content'"
    )
    (one,) = (finding for finding in found(store, *option(level)) if finding["base"] == KB)
    assert one["name"] == "file.unreadable"
    assert one["message"].startswith("index.sqlite cannot be read: malformed database schema (content)")


def test_a_file_that_the_application_left_in_wal_mode(store: Path) -> None:
    """A log with content is read from a copy, and without one the file is read where it is: no trace either way."""
    path = index(store)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode = WAL")
    with untouched(store):
        assert found(store, "--deep") == []
    other = store.parent / "other"
    with closing(apsw.Connection(str(path))) as db:
        db.execute("DELETE FROM embedding WHERE rowid = 1")
        shutil.copytree(store, other)
    index(other).with_name("index.sqlite-shm").unlink(missing_ok=True)
    with untouched(other):
        assert names(other) == {"embedding.missing"}


def test_virtual_paths_have_no_file(store: Path) -> None:
    with closing(apsw.Connection(str(index(store)))) as db:
        virtual = db.execute("SELECT count(*) FROM material WHERE relative_path LIKE '%/%'").get
    assert virtual == 2
    assert found(store, "--deep") == []


def test_long_paths_are_compared_whole(tmp_path: Path) -> None:
    """Files of a folder far down, and names that are one only where ``ß`` is ``ss``: no two of them meet."""
    deep = f"/home/alice/docs/{'a long name of a folder/' * 12}"
    rows = [v1.Row(f"D{number}", f"text {number}", source=f"{deep}{number}.md") for number in range(3)]
    names = (v1.file("s", "S", name="Straße.md"), v1.file("t", "T", name="Strasse.md"))
    rows += [v1.Row("S", "one"), v1.Row("T", "two")]
    stores = {"kb": rows}
    uploads = {"up-s.md": b"one", "up-t.md": b"two"}
    v1_base = v1.base("kb", v1.folder("d", "D0", "D1", "D2"), *names)
    made = v1.carried(tmp_path, v1_base, stores=stores, uploads=uploads)
    assert [child["data"]["relativePath"][-5:] for child in made.children("d")] == ["/0.md", "/1.md", "/2.md"]
    done = run("check", made.path, "--json", "--deep")
    assert (done.status, done.document["findings"]) == (0, [])


def test_an_index_by_itself_has_no_files_to_miss(store: Path, tmp_path: Path) -> None:
    path = shutil.copyfile(index(store), tmp_path / "alone.sqlite")
    assert found(path, "--deep") == []


# --- the application's own profiles ----------------------------------------------------------------------------------


@golden
def test_an_upgraded_profile_has_no_error() -> None:
    assert names(GOLDEN / "profile_upgraded", "--deep") == {"item.not-indexed", "v1.leftover"}


@golden
def test_a_stranded_profile_has_its_failed_bases_and_tombstones() -> None:
    answer = found(GOLDEN / "profile_stranded", "--deep")
    counts = {
        name: sum(one["count"] for one in answer if one["name"] == name) for name in {one["name"] for one in answer}
    }
    assert counts == {"base.failed": 3, "item.tombstone": 10, "v1.leftover": 7, "item.path-is-id": 12}


@golden
def test_an_older_index_says_its_version() -> None:
    assert names(GOLDEN / "index_v1" / "index.sqlite", "--deep") == {"schema.version"}
    restored = names(GOLDEN / "index_v1" / "restored.sqlite", "--deep")
    assert restored == {"schema.version", "body.rowid", "fts.desync"}


# --- the document and the text -------------------------------------------------------------------------------------


def test_the_document(store: Path) -> None:
    plant("no vector", store)
    document = check(store)
    head = [
        "regraft",
        "source",
        "target",
        "run",
        "findings",
        "summary",
        "checked",
        "statistics",
        "level",
        "not_checked",
    ]
    assert list(document) == head
    assert document["source"] == {"kind": "library", "path": str(store)}
    [kb, other] = document["statistics"]["bases"]
    assert (kb["id"], kb["units"], kb["covered"], kb["embeddings"], kb["lengths"]) == (KB, 15, 14, 14, {"4": 14})
    assert sum(kb["norms"].values()) == 14
    assert kb["rows"]["read"] == kb["rows"]["carried"] == 15
    assert other["name"] == "Andere Küche 🎉"


def test_every_key_is_in_the_reference(store: Path) -> None:
    plant("no vector", store)
    document = check(store)
    document["summary"].pop("by_name")
    for finding in document["findings"]:
        finding["names"] = {}
    for base in document["statistics"]["bases"]:
        base.pop("norms")
        base.pop("lengths")
        assert sum(base.pop("ages").values()) > 0
    reference = section(text_of("docs/commands.md"), "JSON")
    words = set(re.findall(r"\w+", " ".join(spans(reference.partition("\n### ")[0] + section(reference, "check")))))
    assert {*keys(document), "norms", "lengths", "ages"} - words == set()


def test_the_text(store: Path) -> None:
    plant("a preview store", store)
    lines = run("check", store).stdout.splitlines()
    assert lines[0] == f"{store} is a v2 library."
    assert f"  {STRAY_BASE}  ({STRAY_BASE})" in lines
    assert f"      fix: regraft upgrade {store} --base {STRAY_BASE}" in lines
    assert lines[-1].startswith("3 bases, 7 items, 16 units: 1 error, 1 warning.")


def test_a_vector_file_alone_is_not_checked(tmp_path):
    path = tmp_path / "base"
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE vectors (id, pageContent, uniqueLoaderId, source, vector)")
    done = run("check", path, "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "NotChecked")
    assert "regraft inspect gives a first look" in done.stderr


def graver_than_notes(path: Path) -> list[tuple[str, str]]:
    """Return what is worth more than a note, each with the name of its base."""
    bases = {one["id"]: one["name"] for one in run("inspect", path, "--json").document["bases"]}
    return [(one["name"], bases[one["base"]]) for one in found(path) if one["severity"] != "note"]


def test_of_the_migrated_sample_only_the_base_that_was_cut_off_is_named(tmp_path: Path) -> None:
    run("migrate", REPO / "sample_v1" / "cherry-studio.202503141200.zip", "--to", tmp_path / "library", "--yes", "-q")
    assert graver_than_notes(tmp_path / "library") == [("base.failed", "Old clippings")]


def test_a_migration_of_a_golden_case_audits_clean(golden: Any, tmp_path: Path) -> None:
    assert run("migrate", golden("basic") / "v1", "--to", tmp_path / "library", "-q").status == 0
    assert graver_than_notes(tmp_path / "library") == []


def test_without_a_catalog_only_files_at_the_top_are_missed(store: Path, tmp_path: Path) -> None:
    """A path with a folder may be virtual: the items that would tell are in the catalog."""
    alone = tmp_path / "alone" / KB
    shutil.copytree(store / "KnowledgeBase" / KB, alone)
    shutil.rmtree(alone / "raw")
    place = alone / ".cherry" / "index.sqlite"
    with closing(apsw.Connection(str(place))) as db:
        paths = [
            str(path) for (path,) in db.execute("SELECT relative_path FROM material WHERE relative_path <> material_id")
        ]
    at_top = [path for path in paths if "/" not in path]
    assert at_top
    [missing] = [one for one in run("check", alone, "--json").document["findings"] if one["name"] == "raw.missing"]
    assert missing["count"] == len(at_top)
    run_sql(place, "UPDATE material SET relative_path = 'folder/' || relative_path WHERE relative_path <> material_id")
    assert "raw.missing" not in {one["name"] for one in run("check", alone, "--json").document["findings"]}
