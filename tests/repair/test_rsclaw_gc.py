"""``regraft gc`` of a KB of rsclaw: files that nothing names go to the trash, and nothing else is touched."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from faults import links, posix, said
from harness import NOW, Outcome, run, snapshot
from planted_rsclaw import PLANTINGS, planted
from rsclaw_checks import check, flipped, row_at, untouched
from rsclaw_store import RsclawStore
from whole_rsclaw import doc, entry, healthy

from regraft import api
from regraft.disk import writable
from regraft.errors import PlanOutdated
from regraft.formats.redb import RedbInUse

ORPHAN = "raw/lost.pdf"


@pytest.fixture
def store(tmp_path: Path) -> RsclawStore:
    """Return a healthy KB, not yet written, with a file that nothing names."""
    made = healthy(tmp_path / "kb")
    made.file(ORPHAN, b"lost")
    return made


#: What lets gc move files that nothing names.
NAMED = ("--only", "kb.file-orphan")


def gc(root: Path, *options: object) -> Outcome:
    return run("gc", root, "--json", "--now", NOW, *NAMED, *options)


def moved(done: Outcome) -> list[str]:
    found = [one for one in done.document["actions"] if one["action"] != "expire"]
    assert all((one["action"], one["finding"]) == ("trash-file", "kb.file-orphan") for one in found)
    return [one["subject"] for one in found]


def left(done: Outcome) -> list[tuple[str, str, int]]:
    return [(one["finding"], one["severity"], one["count"]) for one in done.document["left"]]


def files(root: Path) -> dict[str, Any]:
    """Return every file but regraft's own."""
    return {name: one for name, one in snapshot(root).items() if not name.startswith(".regraft") and one[0] >= 0}


def test_nothing_goes_where_all_is_named(tmp_path: Path) -> None:
    root = healthy(tmp_path / "kb").write()
    with untouched(root):
        done = gc(root)
    assert (done.status, done.document["actions"], done.document["left"], done.document["undo"]) == (0, [], [], None)


def test_what_nothing_names_goes_and_comes_back(store: RsclawStore) -> None:
    store.file("md/deep/er/lost.md", b"lost")
    root = store.write()
    before = files(root)
    with untouched(root):
        planned = gc(root, "--dry-run")
    done = gc(root)
    assert moved(planned) == moved(done) == ["md/deep/er/lost.md", ORPHAN]
    assert done.status == 0
    assert {name: one for name, one in before.items() if name not in moved(done)} == files(root)
    assert (root / "md/deep/er").is_dir()
    assert check(root) == []
    [kept] = (root / ".regraft" / "trash").iterdir()
    assert (kept / ORPHAN).read_bytes() == b"lost"
    assert moved(gc(root)) == []
    [recorded] = run("history", root, "--json").document["runs"]
    assert (recorded["command"], recorded["undo"]["changes"], recorded["undo"]["bytes"]) == ("gc", 2, 8)
    assert run("undo", root, "-y").status == 0
    assert files(root) == before


@pytest.mark.parametrize("command", ["gc", "fix"])
def test_what_is_not_named_stays(store: RsclawStore, command: str) -> None:
    """Its text may be nowhere else, and can be added again."""
    root = store.write()
    before = files(root)
    [finding] = check(root)
    assert finding["repair"] is None
    done = run(command, root, "--json", "--now", NOW, "--yes")
    assert (done.status, done.document["actions"]) == (1, [])
    assert {name: one for name, one in files(root).items() if not name.startswith(".regraft")} == before
    if command == "gc":
        assert "--only kb.file-orphan" in done.document["left"][0]["reason"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["a file that nothing names", "a file that was replaced"])
def test_a_file_goes_only_where_its_finding_is_named(tmp_path: Path, name: str) -> None:
    root = tmp_path / "kb"
    planted(root, name)
    before = files(root)
    [finding] = check(root)
    [path] = finding["samples"]
    assert run("gc", root, "--json", "--now", NOW).document["actions"] == []
    assert files(root) == before
    assert moved(gc(root)) == [path]
    assert files(root) == {name: one for name, one in before.items() if name != path}
    assert check(root) == []


def test_a_person_is_told(store: RsclawStore) -> None:
    root = store.write()
    text = run("gc", root, *NAMED, "--now", NOW, "--dry-run").stdout
    assert text.startswith("move raw/lost.pdf to the trash: no document or ledger entry refers to it (4 bytes)")
    assert text.endswith("Dry run: nothing was written.\n")
    assert "To undo: regraft undo" in run("gc", root, *NAMED, "--now", NOW).stdout


def test_replaced_files_of_an_indexed_entry_go(store: RsclawStore) -> None:
    (store.root / ORPHAN).unlink()
    store.file("md/doc/former.md", b"former")
    entry(store, "Handbook").update(status="indexing_complete", old_paths=["md/doc/former.md"])
    root = store.write()
    assert moved(gc(root)) == ["md/doc/former.md"]
    assert "kb.file-orphan" not in {one["name"] for one in check(root)}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("title", "status", "is_new"),
    [
        *(("Handbook", status, True) for status in ("pending", "indexing_complete", "cleanup_pending", "done")),
        *(("Handbook", status, False) for status in ("pending", "cleanup_pending", "done")),
    ],
)
def test_what_an_entry_names_stays(store: RsclawStore, title: str, status: str, is_new: bool) -> None:
    entry(store, title).update(status=status)
    entry(store, title)["new_paths" if is_new else "old_paths"] = [ORPHAN]
    root = store.write()
    with untouched(root):
        assert moved(gc(root)) == []


@pytest.mark.parametrize("status", ["active", "tombstoned", "updating", "lost"])
def test_what_a_document_of_any_state_names_stays(store: RsclawStore, status: str) -> None:
    """Also where an indexed entry has it among the files that were replaced."""
    doc(store, "Old").update(status=status, raw_path=ORPHAN)
    entry(store, "Handbook").update(status="indexing_complete", old_paths=[ORPHAN, doc(store, "Old")["markdown_path"]])
    entry(store, "Old")["new_paths"] = []
    (store.root / f"raw/{doc(store, 'Old')['id']}.md").unlink()
    root = store.write()
    with untouched(root):
        assert moved(gc(root)) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "spelt",
    [
        *(
            "raw//lost.pdf",
            "./raw/lost.pdf",
            "md/../raw/lost.pdf",
            "raw\\lost.pdf",
            "RAW/Lost.PDF",
            "raw/x/../lost.pdf",
        ),
        *(
            "../kb/raw/lost.pdf",
            "md/../../kb/raw/lost.pdf",
            "none/../../kb/raw/lost.pdf",
            "md\\..\\..\\kb\\raw\\lost.pdf",
        ),
    ],
)
def test_what_is_named_in_other_words_stays(store: RsclawStore, spelt: str) -> None:
    entry(store, "Old")["old_paths"] = [spelt]
    root = store.write()
    with untouched(root):
        done = gc(root)
    assert (moved(done), left(done)) == ([], [("kb.file-orphan", "note", 1)])


@links
def test_what_is_named_by_its_whole_path_or_behind_a_link_stays(store: RsclawStore) -> None:
    (store.root / "md" / "link.pdf").symlink_to("../raw/lost.pdf")
    doc(store, "Old")["raw_path"] = "md/link.pdf"
    store.file("raw/other.pdf", b"other")
    entry(store, "Old")["old_paths"] = [str(store.root / "raw" / "other.pdf")]
    root = store.write()
    done = gc(root)
    assert moved(done) == []
    assert (root / ORPHAN).exists()
    assert (root / "raw/other.pdf").exists()


def test_an_accent_in_another_form_is_the_same_name(store: RsclawStore) -> None:
    store.file("raw/cafe\u0301.pdf", b"x")
    entry(store, "Old")["old_paths"] = ["raw/caf\u00e9.pdf"]
    assert moved(gc(store.write())) == [ORPHAN]


def test_ages_decide(store: RsclawStore) -> None:
    for name, hours in (("older", 1.001), ("younger", 0.999), ("future", -1_000)):
        store.file(f"raw/{name}.pdf", b"x", age_hours=hours)
    root = store.write()
    done = gc(root)
    assert moved(done) == [ORPHAN, "raw/older.pdf"]
    assert (done.status, left(done)) == (0, [("kb.file-orphan", "note", 2)])
    later = run("gc", root, "--json", *NAMED, "--now", "2027-06-01T00:00:00Z")
    assert moved(later) == ["raw/future.pdf", "raw/younger.pdf"]


@posix
def test_links_and_what_is_no_file_stay(store: RsclawStore, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.pdf").write_bytes(b"x")
    (store.root / "raw" / "out").symlink_to(tmp_path / "outside")
    (store.root / "raw" / "dangling").symlink_to("nowhere")
    os.mkfifo(store.root / "md" / "pipe")
    root = store.write()
    assert moved(gc(root)) == [ORPHAN]
    assert (tmp_path / "outside" / "x.pdf").exists()
    assert (root / "raw" / "dangling").is_symlink()
    assert (root / "md" / "pipe").exists()


@links
@pytest.mark.parametrize("name", ["md", "raw"])
def test_a_folder_that_is_a_link_is_refused(store: RsclawStore, tmp_path: Path, name: str) -> None:
    root = store.write()
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")
    with untouched(tmp_path / "elsewhere"):
        said(gc(root), "LinkInStore", 2)


def _behind_a_link(store: RsclawStore, tmp_path: Path, link: str) -> Path:
    """Return a folder of the user's in which a link leads to a KB elsewhere, or to its database."""
    root = store.write()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / link).symlink_to(root if link == "kb" else root / "kb.redb")
    return mine


@links
@pytest.mark.thorough
@pytest.mark.parametrize("command", ["gc", "reconcile", "fix", "undo", "check", "inspect"])
@pytest.mark.parametrize("link", ["kb.redb", "kb"])
def test_no_link_leads_out_of_the_folder_that_was_named(
    store: RsclawStore, tmp_path: Path, command: str, link: str
) -> None:
    mine = _behind_a_link(store, tmp_path, link)
    with untouched(store.root), untouched(mine):
        message = said(run(command, mine, "--json"), "SourceUnreadable", 2)
    assert f"it is a link to {(store.root / 'kb.redb').resolve()}" in message


@links
@pytest.mark.parametrize("command", ["gc", "reconcile", "fix"])
def test_a_database_that_is_a_link_is_never_changed(store: RsclawStore, tmp_path: Path, command: str) -> None:
    mine = _behind_a_link(store, tmp_path, "kb.redb")
    with untouched(store.root), untouched(mine):
        said(run(command, mine, "--json", "--now", NOW, "--follow-links"), "LinkInStore", 2)


@links
def test_a_link_that_was_named_is_followed(store: RsclawStore, tmp_path: Path) -> None:
    mine = _behind_a_link(store, tmp_path, "kb")
    assert moved(gc(mine / "kb", "--dry-run")) == [ORPHAN]
    assert moved(gc(mine / "kb" / "kb.redb", "--dry-run")) == [ORPHAN]


def test_a_database_that_nothing_names_moves_as_it_is(store: RsclawStore) -> None:
    """It may be a document of the user's: not even its log is worked into it."""
    path = store.root / "raw" / "user.sqlite"
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE t (x)")
    db.execute("INSERT INTO t VALUES (1)")
    db.commit()
    kept = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal")}
    db.close()
    for suffix, content in kept.items():
        store.file(f"raw/user.sqlite{suffix}", content)
    root = store.write()
    before = files(root)
    assert moved(gc(root)) == [ORPHAN, "raw/user.sqlite", "raw/user.sqlite-wal"]
    [trash] = (root / ".regraft" / "trash").iterdir()
    assert {suffix: (trash / f"raw/user.sqlite{suffix}").read_bytes() for suffix in ("", "-wal")} == kept
    assert run("undo", root, "-y").status == 0
    assert files(root) == before


# --- what is not certain ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["kb_docs", "kb_ledger"])
def test_nothing_goes_where_rows_are_lost(store: RsclawStore, table: str) -> None:
    root = store.write()
    key = next(iter(store.tables[table])).decode()
    flipped(root, row_at(root, f'"id":"{key}"'))
    with untouched(root):
        done = gc(root)
    assert (done.status, moved(done)) == (1, [])
    [one] = done.document["left"]
    assert one["severity"] == "warning"
    assert "rows that may refer to them are lost" in one["reason"]


@pytest.mark.parametrize("table", ["kb_docs", "kb_ledger"])
def test_nothing_goes_where_a_row_is_of_no_form_or_its_table_is_missing(store: RsclawStore, table: str) -> None:
    store.put(table, "x", b"{}")
    root = store.write()
    with untouched(root):
        assert (gc(root).status, moved(gc(root))) == (1, [])
    del store.tables[table]
    store.write()
    with untouched(root):
        assert (gc(root).status, moved(gc(root))) == (1, [])


def test_other_tables_may_be_damaged(store: RsclawStore) -> None:
    root = store.write()
    flipped(root, row_at(root, '"indexed_text"'))
    assert moved(gc(root)) == [ORPHAN]


def _forget(store: RsclawStore, *titles: str) -> None:
    """Let the database be one from before these documents were added; without a title, before all of them."""
    for key, one in list(store.tables["kb_docs"].items()):
        if not titles or one["title"] in titles:
            del store.tables["kb_docs"][key]
            ledger = store.tables["kb_ledger"]
            for number in [number for number, each in ledger.items() if each["doc_id"] == one["id"]]:
                del ledger[number]


MOST = ("Handbook", "Diary", "Page", "Agent", "Channel")


@pytest.mark.parametrize("titles", [(), MOST])
def test_nothing_goes_where_the_database_knows_few_of_the_files(store: RsclawStore, titles: tuple[str, ...]) -> None:
    _forget(store, *titles)
    root = store.write()
    with untouched(root):
        done = gc(root)
        fixed = run("fix", root, "--json", "--now", NOW)
    assert (done.status, moved(done)) == (1, [])
    [one] = done.document["left"]
    assert (one["finding"], one["severity"]) == ("kb.file-orphan", "warning")
    assert "the database may be new or older than the files" in one["reason"]
    assert [one for one in fixed.document["actions"] if one["finding"] == "kb.file-orphan"] == []
    [found] = [one for one in check(root) if one["name"] == "kb.file-orphan"]
    assert (found["severity"], found["repair"], found["count"]) == ("warning", None, one["count"])


def test_a_few_files_go_where_they_are_not_most(store: RsclawStore) -> None:
    _forget(store, "Page", "Agent")
    assert len(moved(gc(store.write()))) == 5


def test_one_document_and_some_files_of_nobody(tmp_path: Path) -> None:
    store = RsclawStore(tmp_path / "kb")
    store.doc("Only", ["A text."])
    for number in range(9):
        store.file(f"raw/{number}.pdf", b"x")
    assert moved(gc(store.write(), "--dry-run")) == [f"raw/{number}.pdf" for number in range(9)]
    store.file("raw/9.pdf", b"x")
    assert moved(gc(store.write())) == []


@pytest.mark.parametrize("command", ["gc", "reconcile", "fix"])
def test_a_database_under_another_name_changes_nothing(store: RsclawStore, command: str) -> None:
    """What lies beside a copy is that of another."""
    root = store.write()
    (root / "kb.redb").rename(root / "copy.redb")
    with untouched(root):
        message = said(run(command, root / "copy.redb", "--json", "--now", NOW), "WrongUsage", 2)
    assert "copy.redb is not named kb.redb" in message


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--vacuum", "--v1-leftovers"])
def test_options_that_say_nothing_here(store: RsclawStore, option: str) -> None:
    root = store.write()
    with untouched(root):
        assert option in said(gc(root, option), "WrongUsage", 2)


def test_names_that_it_takes(store: RsclawStore) -> None:
    root = store.write()
    with untouched(root):
        said(gc(root, "--only", "kb.page"), "WrongUsage", 2)
        assert moved(run("gc", root, "--json", "--now", NOW, "--only", "raw.orphan")) == []
    assert moved(gc(root)) == [ORPHAN]


@pytest.mark.parametrize("command", ["repair", "backfill", "upgrade", "rebuild"])
def test_commands_that_a_kb_does_not_take(store: RsclawStore, command: str) -> None:
    root = store.write()
    with untouched(root):
        answer = run(command, root, "--json")
    assert (answer.status, answer.document["error"]["code"]) == (2, "NotChanged")
    assert "fix, gc, history, reconcile, undo" in answer.document["error"]["message"]


def test_a_kb_that_rsclaw_opens_after_the_plan_is_left_alone(store: RsclawStore) -> None:
    fcntl = pytest.importorskip("fcntl", reason="Windows locks files in another way")
    root = store.write()
    before = files(root)
    with (root / "kb.redb").open("rb") as held, writable.allow_writes(root):

        def opens(_: object) -> bool:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True

        with pytest.raises(RedbInUse):
            api.gc(root, only=["kb.file-orphan"], now_ms=store.now_ms, confirm=opens)
    assert files(root) == before
    assert not (root / ".regraft").exists()


def test_a_kb_that_was_written_to_after_the_plan_is_left_alone(store: RsclawStore) -> None:
    """rsclaw was started, added a document of the file, and quit."""
    root = store.write()

    def adds(_: object) -> bool:
        store.doc("Found", ["It was mine."], raw_path=ORPHAN)
        store.write()
        return True

    with writable.allow_writes(root), pytest.raises(PlanOutdated):
        api.gc(root, only=["kb.file-orphan"], now_ms=store.now_ms, confirm=adds)
    assert (root / ORPHAN).exists()


def test_a_file_that_was_written_to_after_the_plan_is_left_alone(store: RsclawStore) -> None:
    root = store.write()

    def writes(_: object) -> bool:
        (root / ORPHAN).write_bytes(b"more")
        return True

    with writable.allow_writes(root), pytest.raises(PlanOutdated):
        api.gc(root, only=["kb.file-orphan"], now_ms=store.now_ms, confirm=writes)
    assert (root / ORPHAN).read_bytes() == b"more"


def test_rsclaw_cannot_open_a_kb_that_is_being_changed(store: RsclawStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl", reason="Windows locks files in another way")
    root, refused = store.write(), []

    def make(executor: object, plan: object, progress: object) -> None:
        with (root / "kb.redb").open("rb") as held, pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        refused.append(True)

    monkeypatch.setattr("repair.changes.run.apply_changes", make)
    monkeypatch.setattr("repair.changes.run.check_resolved", lambda *_: [])
    assert gc(root).status == 0
    assert refused == [True]


def test_what_would_be_overwritten_is_not_taken_back(store: RsclawStore) -> None:
    root = store.write()
    assert gc(root).status == 0
    (root / ORPHAN).write_bytes(b"new")
    with untouched(root):
        assert run("undo", root, "-y", "--json").document["error"]["code"] == "UndoRefused"


@pytest.mark.thorough
def test_many_files_are_few_lines_for_a_person(store: RsclawStore) -> None:
    for number in range(300):
        store.file(f"raw/{number}.pdf", b"x")
        store.file(f"raw/former-{number}.pdf", b"x")
    entry(store, "Waiting")["new_paths"] += [f"raw/former-{number}.pdf" for number in range(300)]
    root = store.write()
    done = run("gc", root, *NAMED, "--now", NOW)
    assert done.status == 0
    assert len(done.stdout.splitlines()) < 15
    assert check(root) == []
    assert run("undo", root, "-y").status == 0
    assert [one["count"] for one in check(root)] == [301]


@pytest.mark.thorough
@pytest.mark.parametrize("is_named", [False, True])
def test_fix_does_it_too(store: RsclawStore, is_named: bool) -> None:
    for name in ("a snapshot of an unknown chunk", "a full text index of more texts"):
        PLANTINGS[name].plant(store)
    root = store.write()
    before = files(root)
    named = ("kb.file-orphan", "kb.snapshot", "kb.full-text")
    options = [word for name in named for word in ("--only", name)] if is_named else []
    done = run("fix", root, "--json", "--now", NOW, *options)
    assert done.status == (0 if is_named else 1)
    assert {one["finding"] for one in done.document["actions"]} == set(named[0 if is_named else 1 :])
    assert {one["name"] for one in check(root)} == (set() if is_named else {"kb.file-orphan"})
    assert run("undo", root, "-y").status == 0
    assert files(root) == before


def test_planted_damage_is_what_it_collects(tmp_path: Path) -> None:
    root = planted(tmp_path / "kb", "a file that nothing names", "a file that was replaced").root
    assert moved(gc(root)) == ["md/doc/former.md", ORPHAN]
