"""What ``regraft check`` looks at beside rows: packs and their checksums, folders, links, reports and statistics."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults import untouched
from harness import run
from planted_v2 import ITEM, KB, KB_ROW, OLD, OTHER, catalog, index, run_sql

from checks.audit.collector import CheckOptions, FindingCollector, Level
from checks.cherry_v2 import audit
from checks.cherry_v2.audit import collect_statistics
from checks.cherry_v2.index_file import ExpectedIndex, IndexFacts
from regraft.formats.cherry_v2.catalog_reader import StoredCatalog, read_catalog
from regraft.identity import replace
from regraft.kinds import Kind
from regraft.report.progress import SilentProgress
from regraft.stores.locate import INDEX_FILE, Located, open_store
from regraft.testing import DAMAGES

Found = list[tuple[Any, ...]]


def checked(path: Path, *options: object) -> Found:
    """Return name, base, message without advice on copies, and samples of each finding."""
    done = run("check", path, "--json", *options)
    assert done.stderr == ""
    document = done.document
    assert done.status == any(one["severity"] != "note" for one in document["findings"])
    return [
        (one["name"], one["base"], one["message"].partition("; if ")[0], tuple(one["samples"]))
        for one in document["findings"]
    ]


# --- packs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(healthy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("packed")
    assert run("pack", healthy, place / "pack.zip", "-q").status == 0
    with zipfile.ZipFile(place / "pack.zip") as archive:
        archive.extractall(place / "unpacked")
    return place / "unpacked"


@pytest.fixture
def pack(packed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(packed, tmp_path / "pack")


def raw_file(pack: Path, base: str = KB) -> Path:
    """Return the first file of a base."""
    return min(path for path in (pack / "KnowledgeBase" / base / "raw").rglob("*") if path.is_file())


def differs(pack: Path, path: Path, how: str) -> tuple[Any, ...]:
    name = path.relative_to(pack).as_posix()
    return ("file.corrupt", KB, f"differs from what was packed: {how}", (name,))


def change_manifest(pack: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((pack / "pack.json").read_text("utf-8"))
    change(manifest)
    (pack / "pack.json").write_text(json.dumps(manifest), "utf-8")


def test_a_whole_pack_has_no_finding(pack: Path) -> None:
    with untouched(pack):
        assert checked(pack, "--deep") == []


def test_a_file_of_a_pack_with_other_bytes(pack: Path) -> None:
    path = raw_file(pack)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert checked(pack) == [differs(pack, path, "its bytes do not match their checksum")]
    # Bytes are not read at this level.
    assert checked(pack, "--quick") == []
    assert checked(pack, "--base", OTHER) == []
    path.write_bytes(content + b"x")
    assert checked(pack) == [differs(pack, path, f"it has {len(content) + 1:,} bytes, not {len(content):,}")]
    assert checked(pack, "--quick", "--base", KB) == [differs(pack, path, "its size differs")]
    # A pack that was changed on purpose is a library.
    (pack / ".regraft").mkdir()
    assert checked(pack) == []


def test_a_file_of_a_pack_that_is_gone(pack: Path) -> None:
    path = raw_file(pack)
    path.unlink()
    for options, how in (((), "it is missing"), (("--quick",), "its size differs")):
        assert differs(pack, path, how) in checked(pack, *options)


def test_files_that_the_manifest_of_a_pack_does_not_list(pack: Path) -> None:
    folder = pack / "KnowledgeBase"
    (folder / KB / "raw" / "more").mkdir()
    for name in (f"{KB}/raw/more/x.md", f"{KB}/other.md", "beside.md"):
        (folder / name).write_text("x")
    expected = [
        ("file.corrupt", KB, "it is not listed in the manifest of the pack", (f"KnowledgeBase/{KB}/raw/more/x.md",))
    ]
    assert checked(pack, "--only", "file.corrupt") == expected
    assert checked(pack, "--only", "file.corrupt", "--base", OTHER) == []
    change_manifest(pack, lambda manifest: manifest["files"].pop())
    assert len(checked(pack, "--only", "file.corrupt")) > 0


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../outside", "pack.json names a file outside of the pack"),
        ("a/../../outside", "pack.json names a file outside of the pack"),
        ("/etc/hostname", "pack.json names a file outside of the pack"),
        ("gone", "differs from what was packed: it is missing"),
    ],
)
def test_a_manifest_names_a_file_that_is_not_there(path: str, message: str, pack: Path) -> None:
    change_manifest(pack, lambda one: one["files"].append({"path": path, "bytes": 1, "sha256": "0" * 64}))
    assert checked(pack) == [("file.corrupt", None, message, (path,))]
    # What belongs to no base is compared whatever bases are chosen.
    assert checked(pack, "--base", OTHER) == [("file.corrupt", None, message, (path,))]


def test_a_manifest_that_cannot_be_read(pack: Path) -> None:
    (pack / "pack.json").write_text("{")
    [(name, base, message, samples)] = checked(pack)
    assert (name, base, samples) == ("file.corrupt", None, ("pack.json",))
    assert message.startswith("pack.json cannot be read: ")


def test_checksums_that_there_was_no_time_for(pack: Path) -> None:
    document = run("check", pack, "--json", "--max-duration", "0").document
    assert "checksums" in document["not_checked"]


# --- folders and links -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="links need a right of their own there")
@pytest.mark.parametrize("what", ["raw", ".cherry"])
def test_files_behind_a_link_are_not_read(what: str, store: Path, tmp_path: Path) -> None:
    folder = store / "KnowledgeBase" / KB / what
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    found = checked(store)
    name, sample = ("raw.missing", (f"KnowledgeBase/{KB}/raw",)) if what == "raw" else ("base.no-index", ())
    [(_, base, message, samples)] = [one for one in found if one[0] == name]
    assert (base, samples) == (KB, sample)
    start = "its files are behind a link: " if what == "raw" else "completed, and its index file is behind a link: "
    place = (tmp_path / "elsewhere").resolve().joinpath(*(["index.sqlite"] if what == ".cherry" else []))
    assert message == f"{start}it is a link to {place}, outside of the source; use --follow-links to follow it"
    # Nothing is said of files that were not looked at.
    assert {one[0] for one in found} <= {name, "index.orphan"}


def test_a_base_without_its_index(store: Path) -> None:
    index(store).unlink()
    assert [one for one in checked(store) if one[0] != "index.orphan"] == [
        ("base.no-index", KB, "completed, and its index file is missing", ())
    ]
    catalog(KB_ROW.format("status = 'failed', error = 'missing_vector_store'"))(store)
    stray = store / "KnowledgeBase" / KB / "raw" / "stray.bin"
    stray.write_bytes(b"stray")
    os.utime(stray, (OLD, OLD))
    document = run("check", store, "--json").document
    found = {one["name"]: one["samples"] for one in document["findings"]}
    # Its files are compared with its items although nothing is indexed.
    assert found == {"base.failed": [], "raw.orphan": ["stray.bin"]}
    assert document["checked"]["raw_files"] == sum(path.is_file() for path in store.rglob("raw/**/*"))


def test_the_ids_of_bases_that_can_be_folders() -> None:
    names = {"b": True, "a b": True, "": False, ".": False, "..": False, "a/b": False, "../b": False, "a\0b": False}
    assert {name: audit.is_folder_name(name) for name in names} == names


def test_entries_beside_the_folders_of_bases(store: Path, tmp_path: Path) -> None:
    folder = store / "KnowledgeBase"
    uuid = "aaaaaaaa-0000-4000-8000-00000000000"
    for name in ("plain", f"{uuid}2", f"{uuid}3", "indexed"):
        (folder / name).mkdir()
    (folder / f"{uuid}3" / "x").write_text("x")
    (folder / "text").write_text("x")
    for name in ("v1", "other"):
        run_sql(folder / name, "CREATE TABLE vectors (id)" if name == "v1" else "CREATE TABLE mine (id)")
    strays = audit.find_strays(folder, {KB}, {OTHER, "indexed"})
    assert [(finding, path.name) for finding, path in strays] == [
        *[("index.orphan", name) for name in sorted({OTHER, f"{uuid}3"})],
        ("index.orphan", "indexed"),
        ("v1.leftover", "v1"),
    ]
    assert list(audit.find_strays(tmp_path / "gone", (), ())) == []


@pytest.mark.parametrize(("count", "noun"), [(1, "1 vector file"), (2, "2 vector files")])
def test_vector_files_that_v1_left(count: int, noun: str, store: Path) -> None:
    names = [f"v1-{number}" for number in range(count)]
    for name in names:
        run_sql(store / "KnowledgeBase" / name, "CREATE TABLE vectors (id)")
    size = sum((store / "KnowledgeBase" / name).stat().st_size for name in names)
    [(name, base, message, samples)] = checked(store)
    assert (name, base, samples) == ("v1.leftover", None, tuple(names))
    assert message == f"{noun} of v1 still on disk, {size / 1000:.1f} kB"


def test_bases_that_only_have_a_folder(store: Path) -> None:
    run_sql(store / "catalog.sqlite", f"DELETE FROM knowledge_base WHERE id = '{KB}'")
    found = [one for one in checked(store) if one[0] == "index.orphan"]
    message = (
        "1 folder not listed in the catalog: repair --only index.orphan --adopt lists such bases again; gc removes "
        "them only with --only index.orphan"
    )
    assert found == [("index.orphan", None, message, (KB,))]
    document = run("check", store, "--json", "--base", KB).document
    assert "index.orphan" not in {one["name"] for one in document["findings"]}
    assert [base["name"] for base in document["statistics"]["bases"]] == [KB]


def test_a_damaged_catalog_is_named(store: Path) -> None:
    (store / "catalog.sqlite").write_bytes(b"SQLite format 3\0" + bytes(500))
    [(base, message, samples)] = [one[1:] for one in checked(store) if one[0] == "file.unreadable"]
    assert (base, samples) == (None, ("catalog.sqlite",))
    assert message.startswith("the catalog cannot be read: ")


def query(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def test_the_numbers_of_what_was_checked(store: Path) -> None:
    document = run("check", store, "--json").document
    indexes = [index(store), index(store, OTHER)]

    def count(table: str) -> int:
        return sum(query(path, f"SELECT count(*) FROM {table}")[0][0] for path in indexes)

    assert document["checked"] == {
        "bases": 2,
        "items": query(store / "catalog.sqlite", "SELECT count(*) FROM knowledge_item")[0][0],
        "materials": count("material"),
        "units": count("search_unit"),
        "bodies": count("search_text"),
        "embeddings": count("embedding"),
        "raw_files": sum(path.is_file() for path in store.rglob("raw/**/*")),
        "bytes": sum(path.stat().st_size for path in indexes),
    }
    months = Counter[str]()
    for base in document["statistics"]["bases"]:
        months.update(base["ages"])
    assert months.total() == document["checked"]["items"]


def test_a_failed_base_of_a_library_failed_at_the_migration(store: Path) -> None:
    catalog(KB_ROW.format("status = 'failed', error = 'missing_vector_store'"))(store)
    found = {one[0]: one[1:3] for one in checked(store)}
    assert found["base.failed"] == (KB, "failed during the migration: missing_vector_store")


def test_models_that_bases_use(store: Path) -> None:
    [(model,)] = query(store / "catalog.sqlite", f"SELECT embedding_model_id FROM knowledge_base WHERE id = '{KB}'")
    lacking = ("ALTER TABLE user_model DROP COLUMN name", "ALTER TABLE user_model ADD COLUMN name TEXT")
    catalog(*lacking, f"DELETE FROM user_model WHERE id <> '{model}'")(store)
    found = [one for one in checked(store) if one[0] == "model.incomplete"]
    assert found == [("model.incomplete", None, "1 model that bases use, without name", (model,))]
    assert "model.incomplete" not in {one[0] for one in checked(store, "--base", KB)}
    catalog("DELETE FROM user_model")(store)
    assert ("base.model", KB, f"its model {model} does not exist", (model,)) in checked(store)
    # Without a table of models it is unknown which there are.
    catalog("DROP TABLE user_model")(store)
    assert checked(store) == []


@pytest.mark.parametrize("given", ["one model", "two models", "another base"])
def test_vectors_get_the_only_model_that_can_have_made_them(given: str, store: Path) -> None:
    [(model,)] = query(store / "catalog.sqlite", f"SELECT embedding_model_id FROM knowledge_base WHERE id = '{KB}'")
    statements = [KB_ROW.format("embedding_model_id = NULL, dimensions = NULL")]
    statements.append(f"DELETE FROM user_model WHERE id <> '{model}'")
    if given == "two models":
        statements += ["CREATE TABLE more AS SELECT * FROM user_model", "UPDATE more SET id = 'x::y', model_id = 'y'"]
        statements += ["INSERT INTO user_model SELECT * FROM more", "DROP TABLE more"]
    if given == "another base":
        # It has vectors of this model, with other dimensions.
        statements.append(
            f"UPDATE knowledge_base SET embedding_model_id = '{model}', dimensions = 9 WHERE id = '{OTHER}'"
        )
    catalog(*statements)(store)
    findings = run("check", store, "--json", "--quick").document["findings"]
    [one] = [one for one in findings if one["name"] == "embedding.unexpected"]
    attach = f"regraft repair {store} --only embedding.unexpected --model {model} --base {KB}"
    assert one["repair"] == (attach if given == "one model" else None)
    assert one["count"] == query(index(store), "SELECT count(*) FROM embedding")[0][0]


def test_triggers_and_views_of_the_catalog(store: Path) -> None:
    trigger = "CREATE TRIGGER mine AFTER DELETE ON knowledge_item BEGIN SELECT 1; END"
    catalog(trigger, "CREATE VIEW other AS SELECT 1 AS one")(store)
    message = "1 trigger not part of the layout, on a table that would be changed"
    assert checked(store) == [("schema.foreign-trigger", None, message, ("mine",))]


def test_a_database_of_a_beta_beside_the_live_one(store: Path) -> None:
    DAMAGES["a beta's database"].plant(store, KB)
    [(name, base, message, samples)] = [one for one in checked(store) if one[0] == "catalog.stale-copy"]
    assert (name, base, samples) == ("catalog.stale-copy", None, ("cherrystudio.sqlite",))
    live = "the live database is Data/cherrystudio.sqlite"
    assert message == f"cherrystudio.sqlite is a left-over of a beta, which nothing reads: {live}"


def test_rows_of_a_preview_build(store: Path) -> None:
    planted = DAMAGES["a preview store"].plant(store, KB)
    message = "its rows are in the table of a preview build, which the application does not read"
    found = [one for one in checked(store) if one[1] == planted.base]
    assert found == [("schema.preview", planted.base, message, (planted.subject,))]


# --- what the kind of a store decides --------------------------------------------------------------------------------


def said(found: Located, **options: Any) -> list[tuple[str, str | None, str]]:
    return [(one.name, one.base, one.message) for one in audit.audit(found, CheckOptions(**options)).findings]


def test_what_a_source_lacks_is_said_of_it_and_not_of_its_bases(store: Path) -> None:
    path = index(store)
    path.unlink()
    name = path.relative_to(store).as_posix()
    slim = (
        "a slim backup: the rows of 2 bases are in it, their indexes and files are not; restoring it leaves those of "
        "the profile as they are"
    )
    with open_store(store) as found:
        assert said(found) == [("base.no-index", KB, "completed, and its index file is missing")]
        assert said(replace(found, is_slim=True)) == [("backup.slim", None, slim)]
        damaged = replace(found, damaged={name: "bad checksum"})
        assert said(damaged) == [("file.corrupt", KB, "a member of the archive cannot be read: bad checksum")]


def test_checksums_are_compared_where_a_store_is_what_was_packed(pack: Path) -> None:
    raw_file(pack).write_bytes(b"other bytes")
    with open_store(pack) as found:
        copy = replace(found, stores=replace(found.stores, is_copy=True))
        is_compared = {
            (kind, one.stores.is_copy): any("differs from what was packed" in message for _, _, message in said(one))
            for kind in (Kind.PACK, Kind.LIBRARY, Kind.V2_PROFILE)
            for one in (replace(found, kind=kind), replace(copy, kind=kind))
        }
    assert [one for one, is_so in is_compared.items() if is_so] == [(Kind.PACK, False), (Kind.LIBRARY, False)]


def test_vector_files_in_a_backup_are_no_waste(store: Path) -> None:
    run_sql(store / "KnowledgeBase" / "v1", "CREATE TABLE vectors (id)")
    size = (store / "KnowledgeBase" / "v1").stat().st_size / 1000
    message = f"1 vector file of v1 still on disk, {size:.1f} kB"
    with open_store(store) as found:
        assert said(replace(found, kind=Kind.V2_BACKUP)) == []
        assert said(found) == [("v1.leftover", None, message)]
        hint = "; --kind v1-profile checks what v1 left"
        assert said(replace(found, kind=Kind.V2_PROFILE)) == [("v1.leftover", None, f"{message}{hint}")]


def test_changes_that_wait_for_the_next_start_are_said_of_what_the_application_starts_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "find_pending_change", lambda _: "a restore is pending")
    message = "a restore is pending. Changes made now are discarded at the next start, so start the application first"
    for kind, is_copy, is_said in (
        (Kind.V2_PROFILE, False, True),
        (Kind.LIBRARY, False, True),
        (Kind.V2_BACKUP, False, False),
        (Kind.V2_PROFILE, True, False),
    ):
        findings = FindingCollector()
        stores = SimpleNamespace(is_copy=is_copy, stale_copy=None)
        audit._check_profile(tmp_path, SimpleNamespace(kind=kind, stores=stores), findings)
        found = [(one.name, one.base, one.message) for one in findings.to_findings()]
        assert found == ([("catalog.pending", None, message)] if is_said else [])


def test_items_may_be_in_progress_while_the_application_runs(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog(ITEM.format("status = 'processing'", "note"))(store)
    with open_store(store) as found:
        for sign, names in ((None, ["item.status"]), ("a lock file", [])):
            monkeypatch.setattr(audit.profile, "detect_running_app", lambda _, sign=sign: sign)
            assert [one[0] for one in said(found)] == names


def test_originals_are_looked_for_unless_the_check_is_quick(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit.catalog_rows, "is_source_missing", lambda source: source.endswith(".md"))
    sources = query(store / "catalog.sqlite", "SELECT json_extract(data, '$.source') FROM knowledge_item")
    count = sum(str(source).endswith(".md") for (source,) in sources)
    with open_store(store) as found:
        assert said(found, level=Level.QUICK) == []
        findings = audit.audit(found, CheckOptions(level=Level.DEFAULT)).findings
    assert {one.name for one in findings} == {"item.source-missing"}
    assert sum(one.count for one in findings) == count > 0


def test_indexes_are_salvaged_in_stores_that_can_be_changed(store: Path) -> None:
    index(store).write_bytes(b"not a database" * 100)
    with open_store(store) as found:
        for kind, is_salvaged in ((Kind.LIBRARY, True), (Kind.V2_PROFILE, True), (Kind.V2_BACKUP, False)):
            findings = audit.audit(
                replace(found, kind=kind), CheckOptions(), lambda before, after: " ".join((*before, "PATH", *after))
            ).findings
            [one] = [one for one in findings if one.name == "file.unreadable"]
            assert one.repair == (f"repair PATH --salvage --base {KB}" if is_salvaged else None)


def test_models_are_missed_where_the_catalog_has_a_table_of_them(store: Path) -> None:
    known = read_catalog(store / "catalog.sqlite")
    for models, name in ((known.models, None), ([], "base.model"), (None, None)):
        state = audit._StoreAudit(FindingCollector(Level.QUICK))
        audit._check_rows(replace(known, models=models), None, False, state)
        assert {one.name for one in state.findings.to_findings()} == ({name} if name else set())


def test_the_progress_of_a_check_counts_indexes_and_names_every_base(store: Path) -> None:
    told: list[Any] = []

    class Shown(SilentProgress):
        def start(self, *some: Any) -> None:
            told.append(some)

        def at(self, label: str) -> None:
            told.append(label)

    names = [name for (name,) in query(store / "catalog.sqlite", "SELECT name FROM knowledge_base ORDER BY rowid")]
    for indexes in (2, 1):
        told.clear()
        with open_store(store) as found:
            audit.audit(found, CheckOptions(progress=Shown()))
        assert told == [("Checking", indexes, "bases"), *names]
        index(store).unlink(missing_ok=True)


def test_an_index_that_cannot_be_read_counts_no_rows(store: Path) -> None:
    counted = run("check", store, "--json", "--base", OTHER).document["checked"]
    index(store).write_bytes(b"not a database" * 100)
    document = run("check", store, "--json").document
    for what in ("materials", "units", "bodies", "embeddings"):
        assert document["checked"][what] == counted[what] > 0


def test_bases_that_the_catalog_does_not_list() -> None:
    listed = StoredCatalog(bases=[{"id": "a"}, {"id": "gone"}])
    for catalog_read, is_whole, unlisted in ((listed, True, {"b"}), (listed, False, set()), (None, True, set())):
        found = SimpleNamespace(stores=SimpleNamespace(is_whole=is_whole))
        assert set(audit._unlisted_bases(found, catalog_read, {"a": 1, "b": 2})) == unlisted


def test_what_an_index_has_to_agree_with() -> None:
    """A base that is not completed has no settings that its index must follow."""
    own, alone = (SimpleNamespace(name=f"KnowledgeBase/b/{name}", base_id="b") for name in (INDEX_FILE, "other.sqlite"))
    unnamed = SimpleNamespace(name=INDEX_FILE, base_id=None)
    row = {"embedding_model_id": "p::m", "dimensions": 4, "chunk_separator": "\\n\\n"}
    done = {**row, "status": "completed"}
    of_model = {"base": "b", "folder": "b", "model": "p::m"}
    for store_file, of_catalog, expected in (
        (own, None, ExpectedIndex(base="b", folder="b")),
        (alone, None, ExpectedIndex(base="b")),
        (unnamed, None, ExpectedIndex(base="b")),
        (own, {**row, "status": "failed"}, ExpectedIndex(**of_model)),
        (own, done, ExpectedIndex(**of_model, has_model=True, separator="\n\n", dimensions=4)),
        (
            own,
            {**done, "embedding_model_id": None},
            ExpectedIndex(base="b", folder="b", model="", has_model=False, separator="\n\n"),
        ),
    ):
        assert audit._expected_index("b", store_file, of_catalog) == expected


def test_an_index_that_other_commands_could_not_read_is_named(store: Path) -> None:
    look = SimpleNamespace(by_system=True, problem="Permission denied")
    state = audit._StoreAudit(FindingCollector())
    facts = audit._audit_index(index(store), ExpectedIndex(base="b"), SimpleNamespace(look=look), state)
    assert not facts.is_readable
    assert [(one.name, one.base, one.message) for one in state.findings.to_findings()] == [
        ("file.unreadable", "b", "index.sqlite could not be read when it was looked for: Permission denied")
    ]


def test_files_of_a_base_without_an_index_are_looked_for_in_its_folder_alone(tmp_path: Path) -> None:
    for name in ("b", "elsewhere/b"):
        (tmp_path / "KnowledgeBase" / name / "raw").mkdir(parents=True)
        (tmp_path / "KnowledgeBase" / name / "raw" / "a.txt").write_text("x")
    state = audit._StoreAudit(FindingCollector(), bases="KnowledgeBase")
    for key, items, files in (("b", [], 1), ("elsewhere/b", [], 0), ("b", None, 0)):
        state.raw_files = 0
        base = audit._Base(key=key, row={"status": "failed"}, items=items, store=None)
        audit._check_without_index(tmp_path, base, state)
        assert state.raw_files == files


def test_a_file_without_its_material(store: Path) -> None:
    [(key,)] = query(
        store / "catalog.sqlite", f"SELECT min(id) FROM knowledge_item WHERE type = 'file' AND base_id = '{KB}'"
    )
    run_sql(
        index(store),
        f"DELETE FROM search_text WHERE target_id IN (SELECT unit_id FROM search_unit WHERE material_id = '{key}')",
        f"DELETE FROM search_unit WHERE material_id = '{key}'",
        f"DELETE FROM material WHERE material_id = '{key}'",
    )
    message = "1 item completed but without a text in the index, and with a file that is not plain text"
    assert [one for one in checked(store) if ".orphan" not in one[0]] == [("item.no-material", KB, message, (key,))]


# --- slim backups, members and statistics ----------------------------------------------------------------------------


@pytest.mark.parametrize(("chosen", "bases"), [(None, "2 bases"), ({"a", "x"}, "1 base"), (set(), "0 bases")])
def test_a_slim_backup_says_of_how_many_bases_it_is(chosen: set[str] | None, bases: str) -> None:
    findings = FindingCollector()
    audit.report_slim_backup({"a", "b"}, chosen, findings)
    [one] = findings.to_findings()
    assert (one.name, one.base, one.severity) == ("backup.slim", None, "note")
    assert one.message == (
        f"a slim backup: the rows of {bases} are in it, their indexes and files are not; restoring it leaves those of "
        "the profile as they are"
    )


def test_members_of_an_archive_that_cannot_be_read_are_of_their_base() -> None:
    damaged = {
        "Data/KnowledgeBase/b/.cherry/index.sqlite": "bad checksum",
        "Data/KnowledgeBase/b/note.md": "none",
        "Data/KnowledgeBase/b": "one",
        "Data/KnowledgeBase": "two",
        "Data/Other/b/x": "three",
        "KnowledgeBase/b/x/y": "four",
    }
    findings = FindingCollector()
    audit.report_unreadable_members(
        SimpleNamespace(damaged=damaged, stores=SimpleNamespace(bases="Data/KnowledgeBase")), findings
    )
    found = {one.samples[0]: (one.name, one.base, one.message) for one in findings.to_findings()}
    assert found == {
        name: (
            "file.corrupt",
            "b" if name.startswith("Data/KnowledgeBase/b/") else None,
            f"a member of the archive cannot be read: {reason}",
        )
        for name, reason in damaged.items()
    }


def test_statistics_have_the_counts_of_each_base_and_the_rows_of_its_migration() -> None:
    counts = {"units": 5, "bodies": 4, "covered": 3, "duplicates": 1, "embeddings": 2}
    indexes = {"a": IndexFacts(counts=dict(counts), lengths=Counter({20: 1, 16: 2}), norms={"1.0": 3})}
    rows = {"read": 9, "carried": 7, "skipped": {"x": 2}}
    report = json.dumps({"bases": [{"id": "a", "rows": rows}, {"id": "b"}], "more": 1}).encode()
    found = collect_statistics(indexes, {"a": "A", "b": "B"}, {"a": {"2026-01": 2}}, report)
    one, other = found.bases
    assert {name: getattr(one, name) for name in counts} == counts
    assert (one.id, one.name, one.lengths, one.norms, one.ages) == (
        "a",
        "A",
        {"4": 2, "5": 1},
        {"1.0": 3},
        {"2026-01": 2},
    )
    assert list(one.lengths) == ["4", "5"]
    assert (one.rows.read, one.rows.carried, one.rows.without_vector, one.rows.skipped) == (9, 7, 0, {"x": 2})
    assert (other.id, other.name, other.units, other.lengths, other.norms, other.ages, other.rows) == (
        *("b", "B", None, {}, None, None, None),
    )
    for odd in (
        b"",
        b"{",
        b"[]",
        b'{"bases": 7}',
        b'{"bases": [{"id": "a", "rows": {"read": -1}}]}',
        b"\xff",
        b"[" * 9999,
    ):
        assert [base.rows for base in collect_statistics({}, {"a": "A"}, {}, odd).bases] == [None]


def test_items_are_counted_by_the_month_in_which_they_were_added() -> None:
    january, february = 1_767_225_600_000, 1_769_904_000_000
    times = [january, february - 1, february, 1, 0, -1, "2026", None, 253_402_300_800_000, 253_402_300_799_999]
    rows = [{"created_at": time} for time in reversed(times)]
    rows += [{"created_at": january, "deleted_at": january}, {}]
    ages = audit._count_ages(rows)
    assert list(ages.items()) == [("1970-01", 1), ("2026-01", 2), ("2026-02", 1), ("9999-12", 1)]


def test_rows_that_are_missing_are_in_the_report_of_a_library(tmp_path: Path) -> None:
    warning = {"code": "file_without_rows", "base": "v1", "item": None, "count": 2}
    lost = {"code": "rows_lost", "base": "v1", "item": "v1 item", "count": 3}
    ids = {"bases": {"v1": "b"}, "items": {"v1 item": "i"}}
    report = {"ids": ids, "warnings": [warning, lost, {"code": "other", "base": "v1", "item": "v1 item", "count": 1}]}

    def recorded(
        document: object, kind: Kind = Kind.LIBRARY, *, is_copy: bool = False
    ) -> tuple[dict[str, int], dict[str, int]]:
        (tmp_path / "report.json").write_text(document if isinstance(document, str) else json.dumps(document), "utf-8")
        return audit.recorded_losses(tmp_path, SimpleNamespace(kind=kind, stores=SimpleNamespace(is_copy=is_copy)))

    assert recorded(report) == ({"b": 2}, {"i": 3})
    assert recorded(report, Kind.V2_PROFILE) == recorded(report, is_copy=True) == ({}, {})
    for change in ({"code": "other"}, {"base": "gone", "item": "gone"}, {"base": None, "item": None}, {"count": "2"}):
        assert recorded({**report, "warnings": [warning | change, lost | change]}) == ({}, {})
    for odd in ("{", [], {}, {**report, "ids": 7}, {**report, "warnings": [warning, 7]}, "[" * 9999):
        assert recorded(odd) == ({}, {})
