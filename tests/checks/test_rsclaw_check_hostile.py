"""The audit of a KB of rsclaw that is damaged, in use, or somebody's trap: it is read, and never followed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import NOW, examples, run
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_rsclaw import planted
from rsclaw_checks import check, flipped, row_at, untouched
from rsclaw_store import RsclawStore
from whole_rsclaw import doc, entry, healthy

from regraft.formats.rsclaw.database import TableCounts

fcntl = pytest.importorskip("fcntl", reason="Windows locks files in another way, and has no pipes in folders")
ESC = "\x1b]0;owned\x07"


@pytest.fixture
def store(tmp_path: Path) -> RsclawStore:
    return healthy(tmp_path / "kb")


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["--quick", "", "--deep"])
def test_a_damaged_page_of_documents(store: RsclawStore, level: str) -> None:
    """Its rows are counted as lost; nothing is said of what may hang on them, such as files that nothing names."""
    store.file("raw/lost.pdf", b"x")
    root = store.write()
    flipped(root, row_at(root, '"title":"Handbook"'))
    with untouched(root):
        found = {one["name"]: one for one in check(root, level)}
    assert found["kb.page"]["severity"] == "error"
    assert found["kb.page"]["message"].startswith("kb_docs: 1 damaged page, ")
    assert " lost (" in found["kb.page"]["message"]
    assert not found.keys() & {"kb.file-orphan", "kb.chunk-orphan", "kb.latest", "kb.superseded"}


@pytest.mark.parametrize("table", ["kb_chunks", "kb_ledger", "kb_jobs_by_id", "kb_chunk_by_logical", "kb_job_claims"])
def test_a_damaged_page_of_any_table_is_named_with_it(store: RsclawStore, table: str) -> None:
    key = next(iter(store.tables[table]))
    value = store.tables[table][key]
    root = store.write()
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")) if isinstance(value, dict) else key.decode()
    flipped(root, row_at(root, text))
    found = check(root, "--deep")
    assert {one["name"] for one in found} == {"kb.page"}
    assert any(one["message"].startswith(f"{table}: ") for one in found)


def test_a_page_is_named_once(store: RsclawStore) -> None:
    root = store.write()
    flipped(root, row_at(root, '"title":"Handbook"'))
    [page] = [one for one in check(root, "--deep") if one["name"] == "kb.page"]
    assert (page["count"], len(page["samples"])) == (1, 1)


def test_rows_that_a_table_is_said_to_have_and_does_not_are_missed(store: RsclawStore) -> None:
    """No page is damaged: somebody wrote another count, and what it would mean for other rows nobody knows."""
    store.file("raw/lost.pdf", b"x")
    root = store.write()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TableCounts, "lost", property(lambda read: 3 if read.stated == 9 else 0))
        found = check(root)
    assert {one["name"] for one in found} == {"kb.page"}
    assert "with fewer rows than recorded: kb_docs: 9" in found[0]["message"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "damage",
    [
        lambda root: flipped(root, 64 + 50, 192 + 50),
        lambda root: (root / "kb.redb").write_bytes((root / "kb.redb").read_bytes()[:100]),
        lambda root: (root / "kb.redb").write_bytes(b"no database at all, but long enough " * 99),
        lambda root: (root / "kb.redb").write_bytes(b""),
    ],
    ids=["both slots", "cut off", "another file", "empty"],
)
def test_a_database_that_is_damaged_as_a_whole(store: RsclawStore, damage: Callable[[Path], Any]) -> None:
    root = store.write()
    damage(root)
    with untouched(root):
        [finding] = check(root)
        whole = run("check", root, "--json", "--now", NOW).document
        text = run("check", root, "--now", NOW).stdout
        look = run("inspect", root, "--json", "--now", NOW).document["health"]
    assert (finding["name"], finding["severity"], finding["repair"]) == ("kb.unreadable", "error", None)
    parts = ["documents", "jobs", "files of documents", "chunks", "other files", "caches"]
    assert whole["not_checked"] == parts
    assert f"Not checked, because it cannot be read: {', '.join(parts)}." in text
    assert "Everything was checked" not in text
    assert "kb.redb" in finding["message"]
    [problem] = look["problems"]
    assert "kb.redb" in problem
    assert look["format_version"] is None
    for command in ("gc", "reconcile", "fix"):
        with untouched(root):
            done = run(command, root, "--json", "--now", NOW)
        assert done.status in (1, 2)
        assert done.document.get("actions", []) == []


@pytest.mark.parametrize("command", ["check", "inspect", "gc", "reconcile", "fix"])
def test_a_database_that_is_in_use_is_refused(store: RsclawStore, command: str) -> None:
    root = store.write()
    with untouched(root), (root / "kb.redb").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused = run(command, root, "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "RedbInUse")


@pytest.mark.parametrize(("version", "code"), [(1, "RedbTooOld"), (9, "RedbTooNew")])
def test_other_formats_are_refused_by_name(store: RsclawStore, version: int, code: str) -> None:
    root = store.write()
    path = root / "kb.redb"
    data = bytearray(path.read_bytes())
    data[64] = data[192] = version
    path.write_bytes(data)
    with untouched(root):
        refused = run("check", root, "--json")
    assert refused.status == 2
    assert refused.document["error"]["code"] in (code, "RedbSlotsDamaged")


def test_a_database_without_tables_is_empty_and_right(tmp_path: Path) -> None:
    store = RsclawStore(tmp_path / "kb")
    store.file("raw/some.pdf", b"x")
    store.tables = {"kb_docs": {}, "kb_chunks": {}}
    assert check(store.write()) == []


# --- traps -----------------------------------------------------------------------------------------------------------

PATHS = [
    *("", "/", ".", "..", "md", "md/", "raw/..", "md/../../../etc/passwd", "/etc/passwd", "md//x", "C:\\x", "md\\x.md"),
    *("md/./x.md", "~/x", "md/\0x", "kb.redb", "idx/tantivy/x", "md/" + "x" * 5_000, f"md/{ESC}", "hnsw/x", "MD/x.md"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("path", PATHS)
def test_paths_are_not_followed(store: RsclawStore, path: str) -> None:
    doc(store, "New")["markdown_path"] = path
    doc(store, "Handbook")["raw_path"] = path
    entry(store, "Diary")["old_paths"] = [path]
    root = store.write()
    with untouched(root.parent):
        names = {one["name"] for one in check(root, "--deep")}
    assert names & {"kb.file-outside", "kb.file-missing"}
    assert "kb.file-changed" not in names
    assert ESC not in run("check", root, "--now", NOW, "-v").stdout


@pytest.mark.parametrize("folder", [False, True])
def test_links_that_lead_out_are_not_followed(store: RsclawStore, tmp_path: Path, folder: bool) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "s.md").write_text("secret")
    (store.root / "md" / "out").symlink_to(secret if folder else secret / "s.md")
    doc(store, "New")["markdown_path"] = "md/out/s.md" if folder else "md/out"
    root = store.write()
    found = check(root, "--deep")
    assert ("kb.file-outside", 1) in {(one["name"], one["count"]) for one in found}
    assert "kb.file-changed" not in {one["name"] for one in found}


def test_links_in_a_circle_end(store: RsclawStore) -> None:
    (store.root / "md" / "loop").symlink_to(store.root / "md")
    (store.root / "raw" / "self").symlink_to(store.root / "raw" / "self")
    doc(store, "New")["raw_path"] = "raw/self"
    root = store.write()
    names = {one["name"] for one in check(root, "--deep")}
    assert names == {"kb.file-outside", "kb.file-orphan"}


def test_a_link_of_ones_own_is_followed_where_that_is_asked_for(store: RsclawStore, tmp_path: Path) -> None:
    one = doc(store, "New")
    moved = tmp_path / "elsewhere.md"
    (store.root / one["markdown_path"]).rename(moved)
    (store.root / one["markdown_path"]).symlink_to(moved)
    root = store.write()
    assert {one["name"] for one in check(root, "--deep")} == {"kb.file-outside"}
    assert check(root, "--deep", "--follow-links") == []


def test_a_file_that_a_link_leads_to_is_no_orphan(store: RsclawStore) -> None:
    one = doc(store, "New")
    (store.root / one["raw_path"]).rename(store.root / "raw" / "target.md")
    (store.root / one["raw_path"]).symlink_to("target.md")
    found = check(store.write())
    assert not [one for one in found if one["severity"] != "note"]


def test_pipes_are_not_waited_for(store: RsclawStore) -> None:
    place = store.root / doc(store, "New")["markdown_path"]
    place.unlink()
    os.mkfifo(place)
    os.mkfifo(store.root / "raw" / "pipe")
    root = store.write()
    names = sorted((one["name"], one["severity"]) for one in check(root, "--deep"))
    assert names == [("kb.file-missing", "error"), ("kb.file-orphan", "note")]


def test_names_that_write_to_a_terminal_are_shown_plainly(store: RsclawStore) -> None:
    doc(store, "Old").update(title=f"Old{ESC}\n[31m", status="active")
    store.file(f"raw/{ESC}\n.pdf", b"x")
    root = store.write()
    text = run("check", root, "--now", NOW, "-v").stdout
    assert "\x1b" not in text
    assert "Old\\x1b" in text
    assert "\\x1b]0;owned\\x07" in text


def test_names_that_are_no_text_stay(store: RsclawStore) -> None:
    root = store.write()
    (root / "raw" / os.fsdecode(b"\xff.pdf")).write_bytes(b"x")
    [finding] = check(root)
    assert (finding["name"], finding["severity"], finding["repair"]) == ("kb.file-orphan", "note", None)


@pytest.mark.thorough
@pytest.mark.parametrize("value", [b'"\\ud800"', b'"\xff"', b"1e999", b"9" * 5_000, b"[" * 100_000, b"null", b"{}"])
def test_values_that_nobody_can_hold_are_rows_of_no_form(store: RsclawStore, value: bytes) -> None:
    for table in ("kb_docs", "kb_chunks", "kb_ledger", "kb_jobs_by_id", "kb_job_claims", "kb_doc_latest_version"):
        store.put(table, "hostile", value)
    store.put("kb_docs", "field", b'{"id":"field","logical_source_id":' + value + b"}")
    root = store.write()
    with untouched(root):
        found = check(root, "--deep")
    assert {one["name"] for one in found} <= {"kb.row"}
    assert sum(one["count"] for one in found) == 7


@pytest.mark.thorough
@pytest.mark.parametrize("meta", [b"null", b'{"schema_version":1,"dimension":4,"id_to_chunk":[1]}', b"[" * 100_000])
@pytest.mark.parametrize("name", ["hnsw/snapshot.meta.json", "idx/tantivy/meta.json"])
def test_caches_of_no_form_cannot_be_read(store: RsclawStore, name: str, meta: bytes) -> None:
    store.file(name, meta)
    [finding] = check(store.write())
    assert finding["name"] in ("kb.snapshot", "kb.full-text")
    assert f"{name} cannot be read" in finding["message"]


def test_a_database_under_another_name_says_nothing_of_files_that_it_does_not_know(store: RsclawStore) -> None:
    """A copy of earlier, beside the one in use: what came since is not of nobody."""
    root = store.write("before.redb")
    store.doc("Later", ["Came later."])
    found = check(root / "before.redb", "--deep")
    assert "kb.file-orphan" not in {one["name"] for one in found}


# --- anything --------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["active", "tombstoned", "md/doc/x.md", "raw/..", "running", "url:http://[", "http://x/%", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.thorough
@settings(max_examples=examples(120))
@given(data=st.data())
def test_no_store_makes_the_audit_fail(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = healthy(Path(folder) / "kb")
        for _ in range(data.draw(st.integers(1, 6))):
            table = data.draw(st.sampled_from(sorted(store.tables)))
            key = data.draw(st.sampled_from(sorted(store.tables[table])) | st.binary(max_size=12))
            row = store.tables[table].get(key)
            if isinstance(row, dict) and data.draw(st.booleans()):
                row[data.draw(st.sampled_from(sorted(row)))] = data.draw(JSON)
            else:
                store.tables[table][key] = data.draw(
                    st.binary(max_size=20) | JSON.map(lambda one: json.dumps(one).encode())
                )
        root = store.write()
        with untouched(root):
            for command in (["check", "--quick"], ["check", "--deep"], ["gc", "--dry-run"], ["reconcile", "--dry-run"]):
                answer = run(command[0], root, "--json", "--now", NOW, *command[1:])
                assert answer.status in (0, 1)
                assert answer.document["regraft"]["command"] == command[0]
            answer = run("inspect", root, "--json", "--now", NOW)
            assert (answer.status, answer.document["source"]["kind"]) == (0, "rsclaw")


@settings(max_examples=examples(60))
@given(data=st.data())
def test_no_damage_of_bytes_makes_the_audit_fail(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = planted(Path(folder) / "kb", "a file that nothing names").root
        size = (root / "kb.redb").stat().st_size
        flipped(root, *data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=40)))
        before = (root / "kb.redb").read_bytes()
        answer = run("check", root, "--json", "--now", NOW, "--deep")
        assert answer.status in (0, 1, 2)
        planned = run("gc", root, "--json", "--now", NOW, "--dry-run").document.get("actions", [])
        assert {one["subject"] for one in planned} <= {"raw/lost.pdf"}
        assert (root / "kb.redb").read_bytes() == before
