"""What is refused before a migration writes anything, and what it is estimated to need."""

from __future__ import annotations

import errno
import os
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults import fails, posix
from harness import NOW_MS
from planned_bases import entry_of, packed, planned
from v1 import note

from migrators.pipeline import preflight, publication
from migrators.pipeline.plan import BasePlan, PlannedRows
from migrators.pipeline.publication import TargetLibrary, pack_entry
from migrators.pipeline.source import Options
from regraft.disk import file_paths, writable
from regraft.disk.trees import FolderTree
from regraft.identity import replace
from regraft.kinds import Kind
from regraft.ledger.ledger import LedgerEntry

# --- the target ----------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source" / "inner").mkdir(parents=True)
    return tmp_path / "source"


def check(target: Path, source: Path) -> None:
    preflight.check_target(target, [source], source)


def test_a_new_folder_an_empty_one_and_a_library_will_do(source: Path, tmp_path: Path) -> None:
    check(tmp_path / "new" / "deep", source)
    (tmp_path / "empty").mkdir()
    for name in ("", ".DS_Store", "Thumbs.db", "desktop.ini"):
        if name:
            (tmp_path / "empty" / name).write_text("x")
        check(tmp_path / "empty", source)
    (tmp_path / "own" / ".regraft").mkdir(parents=True)
    check(tmp_path / "own", source)
    (tmp_path / "own" / "mine").write_text("x")
    (tmp_path / "own" / ".regraft" / "ledger.sqlite").write_text("x")
    check(tmp_path / "own", source)


@pytest.mark.parametrize("place", ["source", "source/inner/new", "."])
def test_a_target_in_the_source_or_around_it_is_refused(place: str, source: Path, tmp_path: Path) -> None:
    with fails("TargetOverlapsSource", match="source"):
        check(tmp_path / place, source)


def test_a_target_with_anything_else_in_it_is_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("x")
    with fails("TargetNotOurs", match="it is a file"):
        check(target, source)
    with fails("TargetNotWritable", match=r"target is a file"):
        check(target / "deeper", source)
    target.unlink()
    target.mkdir()
    for name in "dcba":
        (target / name).write_text("x")
    with fails("TargetNotOurs", match="it contains a, b, c"):
        check(target, source)
    # A folder of regraft's without a ledger makes no library.
    (target / ".regraft").mkdir()
    with fails("TargetNotOurs", match=r"it contains \.regraft, a, b"):
        check(target, source)


@pytest.mark.parametrize("name", ["what?", "aux", "con.v2", "a|b/library"])
def test_a_target_that_windows_does_not_allow_is_refused(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_paths, "is_storable", partial(file_paths.is_storable, windows=True))
    with fails("TargetNotWritable", match="Windows does not allow the name"):
        check(tmp_path / name, source)


@posix
def test_a_target_that_leads_nowhere_or_cannot_be_listed_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with fails("TargetNotWritable", match="it is a broken link"):
        check(tmp_path / "link", source)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with fails("TargetNotWritable"):
        check(tmp_path / "loop", source)
    with fails("TargetNotWritable", match="File name too long"):
        check(tmp_path / ("x" * 256), source)
    check(tmp_path / ("x" * 255), source)
    with fails("TargetNotWritable", match="null"):
        check(tmp_path / "a\0b", source)
    (tmp_path / "closed").mkdir()

    def refuse(path: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", refuse)
        with fails("TargetNotWritable", match="closed.*Permission denied"):
            check(tmp_path / "closed", source)
    asked: list[tuple[Path, int]] = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
    with fails("TargetNotWritable", match=f"no permission to write to {tmp_path}"):
        check(tmp_path / "new" / "deep", source)
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


@pytest.mark.parametrize("name", ["catalog.sqlite", "report.json", "report.html"])
def test_a_folder_in_the_place_of_a_file_is_refused(name: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "library" / ".regraft").mkdir(parents=True)
    (tmp_path / "library" / ".regraft" / "ledger.sqlite").write_text("x")
    (tmp_path / "library" / name).mkdir()
    with fails("TargetNotWritable", match=f"{name}.*it is not a file"):
        check(tmp_path / "library", source)


@pytest.mark.parametrize("name", ["KnowledgeBase", ".regraft/staging", ".regraft/replaced", ".regraft/work"])
def test_a_file_in_the_place_of_a_folder_is_refused(name: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "library" / ".regraft").mkdir(parents=True)
    (tmp_path / "library" / ".regraft" / "ledger.sqlite").write_text("x")
    (tmp_path / "library" / name).write_text("x")
    with fails("TargetNotWritable", match=f"{re.escape(str(Path(name)))}.*it is not a folder"):
        check(tmp_path / "library", source)


def test_a_source_is_the_folders_that_it_is_read_from(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "vectors").write_text("x")

    def roots(path: str, kind: Kind, tree: Any = None, **places: Any) -> list[Path]:
        named = SimpleNamespace(**{"vectors": None, "uploads": None, **places})
        found: Any = SimpleNamespace(
            path=tmp_path / path, kind=kind, tree=FolderTree(tmp_path) if tree is None else tree, places=named
        )
        return preflight.source_roots(found)

    assert roots("v1", Kind.V1_EXPORT, FolderTree(tmp_path / "v1"), vectors="KB") == [tmp_path / "v1"]
    assert roots("backup.zip", Kind.V1_BACKUP, SimpleNamespace(), vectors="KB") == [tmp_path / "backup.zip"]
    assert roots("vectors", Kind.V1_VECTORS, vectors="KB") == [tmp_path / "vectors"]
    assert roots("vectors", Kind.PREVIEW, vectors="KB") == [tmp_path / "vectors"]
    assert roots("kb.redb", Kind.RSCLAW) == [tmp_path]
    beside = roots("data.json", Kind.V1_EXPORT, vectors="KnowledgeBase", uploads="Files")
    assert beside[0] == tmp_path / "data.json"
    assert set(beside[1:]) == {tmp_path / "KnowledgeBase", tmp_path / "Files"}
    assert roots("data.json", Kind.V1_EXPORT) == [tmp_path / "data.json"]
    assert roots("v1", Kind.V1_EXPORT, vectors="KnowledgeBase") == [tmp_path / "v1", tmp_path / "KnowledgeBase"]


# --- what is there already -----------------------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "library" / "KnowledgeBase").mkdir(parents=True)
    return tmp_path / "library"


def conflicts(library: Path, plan: BasePlan, entries: dict[str, LedgerEntry], *, changed: bool = True) -> None:
    with writable.allow_writes(library):
        preflight.check_conflicts(library, "migrate", [plan.draft.id], entries, {plan.draft.id} if changed else set())


def test_a_base_that_nothing_recorded_or_another_command_wrote_is_not_overwritten(library: Path) -> None:
    plan = planned()
    folder = library / "KnowledgeBase" / plan.draft.id
    conflicts(library, plan, {})
    with fails("TargetBaseForeign", match="My base.*regraft import"):
        conflicts(library, plan, packed(plan, command="import"), changed=False)
    folder.mkdir()
    conflicts(library, plan, packed(plan))
    with fails("TargetNotOurs", match="the ledger has no record of it"):
        conflicts(library, plan, {}, changed=False)


def test_a_base_that_somebody_changed_is_not_written_again(library: Path) -> None:
    plan = planned()
    raw = library / "KnowledgeBase" / plan.draft.id / "raw"
    raw.mkdir(parents=True)
    (raw / "a.txt").write_text("a")
    known = packed(plan, raw_mark=publication.raw_mark(raw.parent), raw_hash=publication.raw_hash(raw.parent))
    conflicts(library, plan, known)
    (raw / "a.txt").write_text("of somebody")
    conflicts(library, plan, known, changed=False)
    with fails("TargetBaseChanged", match="My base"):
        conflicts(library, plan, known)


@posix
def test_a_link_in_the_place_of_a_base_is_refused(library: Path, tmp_path: Path) -> None:
    plan = planned()
    (library / "KnowledgeBase" / plan.draft.id).symlink_to(tmp_path / "gone")
    for entries in ({}, packed(plan)):
        with fails("LinkInStore"):
            conflicts(library, plan, entries)


def test_a_base_of_another_source_has_no_item_in_common(library: Path) -> None:
    old, other = planned("kb", note("n", "L"), note("m")), planned("kb", note("x", "L"), note("y"))
    preflight.check_same_source(library, [old], packed(old))
    preflight.check_same_source(library, [other], {})
    preflight.check_same_source(library, [planned("kb", note("m", "L"), note("new"))], packed(old))
    # Without items nothing can be told.
    preflight.check_same_source(library, [replace(other, draft=replace(other.draft, items=()))], packed(old))
    nothing = {old.draft.id: pack_entry(replace(entry_of(old), items={}), "mark")}
    preflight.check_same_source(library, [other], nothing)
    with fails("TargetBaseOfAnother", match="My base"):
        preflight.check_same_source(library, [other], packed(old))


def test_an_item_that_another_base_has_is_refused(library: Path) -> None:
    there, new = planned("there", name="There"), planned("new", name="New")
    taken = there.items[0].id
    entries = packed(there)
    preflight.check_items(library, {new.draft.id: ("New", [new.items[0].id])}, entries)
    preflight.check_items(library, {there.draft.id: ("There", [taken])}, entries)
    preflight.check_items(library, {new.draft.id: ("New", [taken])}, {})
    with fails("TargetHasItem", match=f"There.*{taken}|{taken}.*There"):
        preflight.check_items(library, {new.draft.id: ("New", ["another", taken])}, entries)


def test_a_catalog_is_only_replaced_where_regraft_wrote_it(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = TargetLibrary(library, "run")
    for is_unchanged in (True, False):
        monkeypatch.setattr(TargetLibrary, "is_catalog_unchanged", lambda *_, known=is_unchanged: known)
        preflight.check_catalog(own, SimpleNamespace())
    (library / "catalog.sqlite").write_bytes(b"SQLite format 3\0" + bytes(84))
    with fails("TargetCatalogChanged", match=r"catalog\.sqlite"):
        preflight.check_catalog(own, SimpleNamespace())
    monkeypatch.setattr(TargetLibrary, "is_catalog_unchanged", lambda *_: True)
    preflight.check_catalog(own, SimpleNamespace())


def test_a_profile_in_use_is_read_only_if_the_user_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(now_ms=NOW_MS)
    assert preflight.check_running(None, options) == ()
    assert preflight.check_running(tmp_path, options) == ()
    monkeypatch.setattr(preflight.cherry_v1_profile, "detect_running_app", lambda path: f"a lock in {path.name}")
    assert preflight.check_running(None, options) == ()
    with fails("ApplicationRunning", match=f"a lock in {tmp_path.name}"):
        preflight.check_running(tmp_path, options)
    [notice] = preflight.check_running(tmp_path, replace(options, while_running=True))
    said = f"read while the application was running (a lock in {tmp_path.name})"
    assert (notice.code, notice.message) == ("application_running", said)


# --- space ---------------------------------------------------------------------------------------------------------


def test_a_disk_with_too_little_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def usage(path: Path) -> Any:
        asked.append(path)
        return SimpleNamespace(free=5000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert preflight.check_space(tmp_path / "new" / "deep", 5000) == 5000
    with fails("NotEnoughSpace"):
        preflight.check_space(tmp_path / "new" / "deep", 5001)
    assert asked == [tmp_path, tmp_path]


def test_what_an_index_takes_grows_with_rows_vectors_and_texts() -> None:
    # A page of 4,096 bytes holds one vector of 2,048 bytes with its row.
    assert preflight.estimate_index_bytes(0, 0, 0, 0) == 130_000
    assert preflight.estimate_index_bytes(3, 0, 0, 100) == 130_000 + 3 * 1_300 + 1_080
    assert preflight.estimate_index_bytes(3, 2, 2 * 2048, 0) == 130_000 + 3 * 1_300 + 2 * 4096
    assert preflight.estimate_index_bytes(1, 1, 2048, 0) == 130_000 + 1_300 + 4096
    assert preflight.estimate_library_bytes(2, 3) == 130_000 + 2 * 15_000 + 3 * 2_500
    plan = planned()
    assert preflight.estimate_base_bytes(plan) == preflight.estimate_index_bytes(2, 2, 32, 1000)
    texts = replace(plan, rows=PlannedRows(read=2, carried=2, without_vector=1))
    assert preflight.estimate_base_bytes(texts) == preflight.estimate_index_bytes(2, 1, 16, 1000)
    assert preflight.estimate_base_bytes(replace(plan, error="missing_vector_store", materials=())) == 0


def test_a_vector_that_is_longer_than_a_page_goes_on_in_others() -> None:
    # The largest cell on a leaf has 4,061 bytes; a longer one keeps 489 or what is left of whole overflow pages.
    assert preflight._bytes_on_pages(4061 - 96) == 4096
    assert preflight._bytes_on_pages(4062 - 96) == 4096 / (4084 // 489) + 4096
    assert preflight._bytes_on_pages(489 + 4092 - 96) == 4096 / (4084 // 489) + 4096
    assert preflight._bytes_on_pages(4061 + 4092 - 96) == 4096 + 4096
    assert preflight._bytes_on_pages(490 + 4092 - 96) == 4096 / (4084 // 490) + 4096


def test_what_an_unread_source_needs_is_told_by_its_vector_files(tmp_path: Path) -> None:
    (tmp_path / "kb").write_bytes(bytes(100))
    (tmp_path / "other").write_bytes(bytes(10))
    (tmp_path / "folder").mkdir()
    found: Any = SimpleNamespace(tree=FolderTree(tmp_path))
    assert preflight.estimate_unread_bytes(found, ["kb", "other", "", "folder", "gone"]) == 440


def test_the_nearest_folder_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight.existing_parent(tmp_path / "a" / "b") == tmp_path
    assert preflight.existing_parent(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    assert preflight.existing_parent(Path("x")) == tmp_path
