"""``regraft reconcile`` of a KB of rsclaw: stale caches are set aside, and what only rsclaw mends is told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import links, posix, said
from harness import NOW, Outcome, run, snapshot
from planted_rsclaw import PLANTINGS, planted
from rsclaw_checks import check, untouched
from rsclaw_store import RsclawStore
from whole_rsclaw import FULL_TEXT, SNAPSHOT, full_text, healthy

from checks.audit.findings import FINDINGS

CACHES = ("hnsw/", "idx/")
STALE = [name for name, one in PLANTINGS.items() if one.command == "reconcile"]
#: What no command of regraft mends, and is worth a look.
#: Files that nothing names are for gc, where they are named: no command is recommended for them.
OF_RSCLAW = [
    name
    for name, one in PLANTINGS.items()
    if one.command is None and one.severity != "note" and one.finding != "kb.file-orphan"
]


def reconcile(root: Path, *options: object) -> Outcome:
    return run("reconcile", root, "--json", "--now", NOW, *options)


def moved(done: Outcome) -> list[str]:
    return [one["subject"] for one in done.document["actions"]]


def files(root: Path) -> dict[str, Any]:
    return {name: one for name, one in snapshot(root).items() if not name.startswith(".regraft") and one[0] >= 0}


def test_caches_that_are_in_step_stay(tmp_path: Path) -> None:
    root = healthy(tmp_path / "kb").write()
    with untouched(root):
        done = reconcile(root)
    assert (done.status, done.document["actions"], done.document["left"]) == (0, [], [])


@pytest.mark.thorough
@pytest.mark.parametrize("name", STALE)
def test_a_stale_cache_is_set_aside_and_comes_back(tmp_path: Path, name: str) -> None:
    root = planted(tmp_path / "kb", name).root
    before = files(root)
    with untouched(root):
        planned = reconcile(root, "--dry-run")
    done = reconcile(root)
    assert (done.status, moved(done)) == (0, moved(planned))
    finding = PLANTINGS[name].finding
    if finding == "kb.snapshot":
        assert set(moved(done)) == {one for one in before if one.startswith("hnsw/snapshot.")}
        assert {one["action"] for one in done.document["actions"]} == {"trash-file"}
    else:
        assert moved(done) == ["idx/tantivy"]
        assert done.document["actions"][0]["action"] == "trash-folder"
    assert {one["finding"] for one in done.document["actions"]} == {finding}
    assert check(root) == []
    kept = {one: value for one, value in files(root).items() if not one.startswith(CACHES)}
    assert kept == {one: value for one, value in before.items() if not one.startswith(CACHES)}
    assert run("undo", root, "-y").status == 0
    assert files(root) == before


def test_one_cache_does_not_go_for_the_other(tmp_path: Path) -> None:
    root = planted(tmp_path / "kb", "a full text index of more texts").root
    assert moved(reconcile(root)) == ["idx/tantivy"]
    assert (root / SNAPSHOT).is_file()


def test_other_files_of_the_folder_stay(tmp_path: Path) -> None:
    store = healthy(tmp_path / "kb")
    PLANTINGS["a snapshot of an unknown chunk"].plant(store)
    store.file("hnsw/notes.txt", b"mine")
    root = store.write()
    assert moved(reconcile(root)) == ["hnsw/snapshot.hnsw.data", SNAPSHOT]
    assert (root / "hnsw/notes.txt").read_bytes() == b"mine"


@pytest.mark.thorough
@pytest.mark.parametrize("name", OF_RSCLAW)
def test_what_needs_the_database_is_left_with_what_helps(tmp_path: Path, name: str) -> None:
    root = planted(tmp_path / "kb", name).root
    one = PLANTINGS[name]
    with untouched(root):
        done = reconcile(root)
    quick = "" in one.unseen
    assert (done.status, done.document["actions"]) == (0 if quick else 1, [])
    left = [(each["finding"], each["severity"], each["repair"]) for each in done.document["left"]]
    assert left == ([] if quick else [(one.finding, one.severity, None)])
    for each in done.document["left"]:
        assert FINDINGS[one.finding].remedy in each["reason"]


def test_files_that_nothing_names_are_for_another_command(tmp_path: Path) -> None:
    root = planted(tmp_path / "kb", "a file that nothing names").root
    with untouched(root):
        done = reconcile(root)
    assert (done.status, done.document["actions"], done.document["left"]) == (0, [], [])


@links
@pytest.mark.parametrize("name", ["idx", "hnsw"])
def test_a_cache_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    root = planted(tmp_path / "kb", "a snapshot of an unknown chunk", "a full text index of more texts").root
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")
    with untouched(tmp_path / "elsewhere"):
        said(reconcile(root), "LinkInStore", 2)


def _pipe(place: Path) -> None:
    os.mkfifo(place)


def _link(place: Path) -> None:
    outside = place.parent.parent.parent / "outside.data"
    outside.write_bytes(b"outside")
    place.symlink_to(outside)


@pytest.mark.parametrize("odd", [pytest.param(_pipe, marks=posix), pytest.param(_link, marks=links), Path.mkdir])
def test_what_is_no_plain_file_stays_and_is_named(tmp_path: Path, odd: Callable[[Path], None]) -> None:
    store = healthy(tmp_path / "kb")
    odd(store.root / "hnsw" / "snapshot.odd")
    PLANTINGS["a snapshot of an unknown chunk"].plant(store)
    root = store.write()
    done = reconcile(root)
    assert moved(done) == ["hnsw/snapshot.hnsw.data", SNAPSHOT]
    [left] = done.document["left"]
    assert (done.status, left["finding"], left["severity"], left["repair"]) == (0, "kb.snapshot", "note", None)
    assert "hnsw/snapshot.odd" in left["reason"]
    assert os.path.lexists(root / "hnsw" / "snapshot.odd")
    assert run("undo", root, "-y").status == 0
    assert (root / SNAPSHOT).is_file()


@pytest.mark.parametrize("odd", [pytest.param(_pipe, marks=posix), pytest.param(_link, marks=links), Path.mkdir])
def test_an_odd_description_of_a_snapshot_cannot_be_mended(tmp_path: Path, odd: Callable[[Path], None]) -> None:
    store = healthy(tmp_path / "kb")
    (store.root / SNAPSHOT).unlink()
    odd(store.root / SNAPSHOT)
    root = store.write()
    [found] = check(root)
    assert (found["name"], found["severity"], found["repair"]) == ("kb.snapshot", "warning", None)
    with untouched(root):
        done = reconcile(root)
    assert (done.status, moved(done)) == (1, [])
    assert SNAPSHOT in done.document["left"][0]["reason"]


@links
@pytest.mark.parametrize("folder", ["idx", "idx/tantivy", "hnsw"])
def test_a_cache_behind_a_link_is_not_looked_at(tmp_path: Path, folder: str) -> None:
    root = planted(tmp_path / "kb", "a full text index of more texts", "a snapshot of an unknown chunk").root
    assert {one["name"] for one in check(root)} == {"kb.full-text", "kb.snapshot"}
    (root / folder).rename(tmp_path / "elsewhere")
    (root / folder).symlink_to(tmp_path / "elsewhere")
    gone = "kb.snapshot" if folder == "hnsw" else "kb.full-text"
    assert gone not in {one["name"] for one in check(root)}


@pytest.mark.parametrize("option", [("--limit", "3"), ("--embedder", "x"), ("--provider", "x"), ("--no-probe",)])
def test_options_that_say_nothing_here(tmp_path: Path, option: tuple[str, ...]) -> None:
    root = healthy(tmp_path / "kb").write()
    with untouched(root):
        assert option[0] in said(reconcile(root, *option), "WrongUsage", 2)


def test_a_cache_that_rsclaw_made_anew_stays_and_the_rest_comes_back(tmp_path: Path) -> None:
    store = planted(tmp_path / "kb", "a full text index of more texts", "a snapshot of an unknown chunk")
    old = (store.root / SNAPSHOT).read_bytes()
    assert reconcile(store.root).status == 0
    full_text(store)
    with untouched(store.root):
        planned = run("undo", store.root, "--dry-run", "--json")
    done = run("undo", store.root, "-y", "--json")
    assert done.status == planned.status == 0
    assert {one["subject"] for one in done.document["actions"]} == {"hnsw/snapshot.hnsw.data", SNAPSHOT}
    left = [(one["finding"], one["severity"], one["subject"]) for one in done.document["left"]]
    assert left == [("kb.full-text", "warning", "idx/tantivy")]
    assert planned.document["left"] == done.document["left"]
    assert "has rebuilt the cache" in done.document["left"][0]["reason"]
    assert json.loads((store.root / FULL_TEXT).read_text("utf-8"))["opstamp"] == 3
    assert {one["name"] for one in check(store.root)} == {"kb.snapshot"}
    assert (store.root / SNAPSHOT).read_bytes() == old
    assert list((store.root / ".regraft").glob("trash/*")) == []
    said(run("undo", store.root, "-y", "--json"), "RunUnknown", 2)


def test_no_old_part_comes_beside_new_ones(tmp_path: Path) -> None:
    store = planted(tmp_path / "kb", "a snapshot of an unknown chunk")
    assert reconcile(store.root).status == 0
    store.snapshot()
    (store.root / "hnsw/snapshot.hnsw.data").unlink(missing_ok=True)
    assert run("undo", store.root, "-y").status == 0
    assert not (store.root / "hnsw/snapshot.hnsw.data").exists()


_NAMED = ("--only", "kb.file-orphan")
_BOTH = (*_NAMED, "--only", "kb.snapshot")


@pytest.mark.thorough
@pytest.mark.parametrize("commands", [(("fix", *_BOTH),), (("gc", *_NAMED), ("reconcile",))])
def test_documents_files_come_back_though_caches_were_made_anew(
    tmp_path: Path, commands: tuple[tuple[str, ...], ...]
) -> None:
    store = planted(tmp_path / "kb", "a file that nothing names", "a snapshot of an unknown chunk")
    for command, *options in commands:
        assert run(command, store.root, "--now", NOW, *options).status == 0
    assert not (store.root / "raw/lost.pdf").exists()
    store.snapshot()
    for _ in commands:
        undone = run("undo", store.root, "-y", "-v")
        assert undone.status == 0
    assert (store.root / "raw/lost.pdf").read_bytes() == b"lost"
    assert {one["name"] for one in check(store.root)} == {"kb.file-orphan"}


def test_a_person_is_told_of_a_cache_that_stays(tmp_path: Path) -> None:
    store = planted(tmp_path / "kb", "a full text index of more texts")
    assert reconcile(store.root).status == 0
    full_text(store)
    assert "the application has rebuilt the cache idx/tantivy" in run("undo", store.root, "-y").stdout


def test_a_person_is_told(tmp_path: Path) -> None:
    store = RsclawStore(tmp_path / "kb")
    store.doc("Poison", ["Never cut."], job="failed")
    store.snapshot(["a" * 32])
    root = store.write()
    text = run("reconcile", root, "--now", NOW).stdout
    assert "move hnsw/snapshot.meta.json of the vector index to the trash" in text
    assert "1 job given up by rsclaw: Poison (" in text
    assert f"To undo: regraft undo {root}" in text
