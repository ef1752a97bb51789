"""What becomes of what an earlier run published: changed, damaged, copied, or whole."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from faults import REFUSED, said
from harness import NOW, Outcome, run
from planted_v1 import whole
from planted_v2 import KB, OTHER, index

from migrators.pipeline import publication
from regraft.ledger.ledger import LedgerEntry


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("migrated")
    assert run("migrate", whole(place / "v1"), "--to", place / "library", "--now", NOW, "-q").status == 0
    return place


@pytest.fixture
def place(migrated: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a folder with the source and its library, as they were written, times and all."""
    yield shutil.copytree(migrated, tmp_path / "place")


def again(place: Path, *more: object) -> Outcome:
    [source] = [path for path in (place / "v1").iterdir() if path.suffix == ".zip"] or [place / "v1"]
    return run("migrate", source, "--to", place / "library", "--now", NOW, "--json", "--fail-on", "never", *more)


def outcomes(done: Outcome) -> dict[str, str]:
    return {base["id"]: base["outcome"] for base in done.document["bases"]}


def said_codes(done: Outcome) -> list[tuple[str, str]]:
    return [(one["code"], one["base"]) for one in done.document["warnings"] if one["code"] == "base_changed_since"]


def noise(path: Path, *, keeps_time: bool = False) -> None:
    """Overwrite the middle of a file with bytes that are no page."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * 8192)
    if keeps_time:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def touch_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))


def test_noise_in_an_index_is_noticed_and_the_index_written_anew(place: Path) -> None:
    before = index(place / "library").read_bytes()
    noise(index(place / "library"))
    planned = again(place, "--dry-run")
    assert outcomes(planned) == {KB: "rewritten", OTHER: "unchanged"}
    done = again(place)
    assert outcomes(done) == {KB: "rewritten", OTHER: "unchanged"}
    assert index(place / "library").read_bytes() == before
    assert run("check", place / "library", "--json").document["summary"]["by_severity"]["error"] == 0
    assert outcomes(again(place)) == {KB: "unchanged", OTHER: "unchanged"}


def test_check_offers_to_take_it_from_the_source(tmp_path: Path) -> None:
    source, library = whole(tmp_path / "v1"), tmp_path / "library"
    run("migrate", source, "--to", library, "--now", NOW, "-q")
    noise(index(library))
    [line] = {one["repair"] for one in run("check", library, "--json").document["findings"] if one["base"] == KB}
    assert line == f"regraft repair {library} --from {source} --base {KB}"
    assert run(*line.split()[1:], "--json").status == 0
    assert run("check", library, "--json").document["summary"]["by_severity"]["error"] == 0


def test_check_does_not_look_whether_the_source_is_gone(tmp_path: Path) -> None:
    source, library = whole(tmp_path / "v1"), tmp_path / "library"
    run("migrate", source, "--to", library, "--now", NOW, "-q")
    noise(index(library))
    source.rename(tmp_path / "elsewhere")
    found = run("check", library, "--json").document["findings"]
    [line] = {one["repair"] for one in found if one["base"] == KB}
    assert line == f"regraft repair {library} --from {source} --base {KB}"
    done = run(*line.split()[1:], "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "SourceNotFound")
    [message] = {one["message"] for one in found if one["base"] == KB}
    assert message.endswith(f"if that copy no longer exists: regraft repair {library} --salvage --base {KB}")


def test_a_full_text_table_that_no_statement_can_read_is_written_anew(place: Path) -> None:
    before = index(place / "library").read_bytes()
    with closing(apsw.Connection(str(index(place / "library")))) as db:
        db.execute("UPDATE search_text_fts_config SET v = '1e+308' WHERE k = 'version'")
    assert outcomes(again(place)) == {KB: "rewritten", OTHER: "unchanged"}
    assert index(place / "library").read_bytes() == before


def test_noise_that_no_time_tells_of_is_found_where_all_is_verified(place: Path) -> None:
    noise(index(place / "library"), keeps_time=True)
    assert outcomes(again(place)) == {KB: "unchanged", OTHER: "unchanged"}
    assert outcomes(again(place, "--verify")) == {KB: "rewritten", OTHER: "unchanged"}
    assert outcomes(again(place, "--verify")) == {KB: "unchanged", OTHER: "unchanged"}


def test_what_somebody_changed_is_named_and_left(place: Path) -> None:
    with closing(apsw.Connection(str(index(place / "library")))) as db:
        db.execute("DELETE FROM embedding WHERE rowid = (SELECT min(rowid) FROM embedding)")
    changed = index(place / "library").read_bytes()
    done = again(place)
    assert outcomes(done) == {KB: "unchanged", OTHER: "unchanged"}
    assert said_codes(done) == [("base_changed_since", "kb")]
    text = run("migrate", place / "v1", "--to", place / "library", "--now", NOW, "--fail-on", "never").stdout
    assert "Nothing has changed" not in text
    assert "since they were migrated: Base kb" in text
    assert text.rstrip().endswith(f"Next: regraft check {place / 'library'}")
    assert index(place / "library").read_bytes() == changed


def test_what_somebody_changed_is_not_overwritten(place: Path) -> None:
    with closing(apsw.Connection(str(index(place / "library")))) as db:
        db.execute("DELETE FROM embedding WHERE rowid = (SELECT min(rowid) FROM embedding)")
    said(
        again(place, "--no-restore-duplicates", "--carry-text", "--map-model", "kb=acme::other"),
        "TargetBaseChanged",
        REFUSED,
    )


def test_other_times_of_the_same_bytes_are_no_change(place: Path) -> None:
    touch_all(place / "library")
    done = again(place)
    assert outcomes(done) == {KB: "unchanged", OTHER: "unchanged"}
    assert said_codes(done) == []
    raw = next(path for path in (place / "library" / "KnowledgeBase" / KB / "raw").rglob("*") if path.is_file())
    raw.write_bytes(b"something else")
    assert said_codes(again(place)) == [("base_changed_since", "kb")]


@pytest.mark.parametrize("name", ["Base kb", "kb", KB, KB[:8]])
def test_a_base_is_meant_by_its_name_or_an_id_or_its_beginning(place: Path, name: str) -> None:
    assert set(outcomes(again(place, "--base", name))) == {KB}


def test_a_base_that_is_not_there_is_refused_with_those_that_are(place: Path) -> None:
    message = said(again(place, "--base", "Base of nobody"), "BaseUnknown", REFUSED)
    assert "no base has this name or id; known bases: Base kb" in message


def test_a_source_that_is_damaged_now_and_gives_less_does_not_replace_the_base(place: Path) -> None:
    """``--salvage`` would migrate the rows that are left; those of the earlier run are more."""
    source = place / "v1" / "KnowledgeBase" / "kb"
    before = {path: path.read_bytes() for path in (place / "library" / "KnowledgeBase").rglob("*") if path.is_file()}
    [earlier] = [one for one in again(place).document["bases"] if one["id"] == KB]
    salvage_half(source)
    for more in (("--salvage", "--dry-run"), ("--salvage",), ("--salvage",)):
        done = again(place, *more)
        [base] = [one for one in done.document["bases"] if one["id"] == KB]
        assert (base["status"], base["outcome"]) == ("completed", "unchanged")
        assert base["rows"]["carried"] == earlier["rows"]["carried"]
        [notice] = [one for one in done.document["warnings"] if one["code"] == "completed_base_kept"]
        assert "its vector file is damaged now" in notice["message"]
        assert "rows can be salvaged); the base from an earlier run is kept" in notice["message"]
    after = {path: path.read_bytes() for path in (place / "library" / "KnowledgeBase").rglob("*") if path.is_file()}
    assert after == before
    # A library that is new gets what is left of the source: fewer rows.
    fresh = run(
        "migrate", place / "v1", "--to", place / "fresh", "--now", NOW, "--json", "--salvage", "--fail-on", "never"
    )
    [base] = [one for one in fresh.document["bases"] if one["id"] == KB]
    assert base["status"] == "completed"
    assert 0 < base["rows"]["carried"] < earlier["rows"]["carried"]


def salvage_half(path: Path) -> None:
    """Write a vector file anew with one row a page, and overwrite half of these pages."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA page_size = 512")
        db.execute("VACUUM")
    raw = bytearray(path.read_bytes())
    leaves = [at for at in range(512, len(raw), 512) if raw[at] == 13]
    for at in leaves[len(leaves) // 2 :]:
        raw[at : at + 512] = b"\xa5" * 512
    path.write_bytes(raw)


def test_fingerprints_that_earlier_versions_stored_stay_comparable() -> None:
    """A ledger holds them: with another digest, every base would count as changed."""
    entries = {
        "5b0f5be5": LedgerEntry("mark one", b'{"a":1}'),
        "0aaa": LedgerEntry("mark two", b""),
        publication.CATALOG_SUBJECT: LedgerEntry("of the catalog", b"x"),
        publication.REPORT_SUBJECT: LedgerEntry("of the report", b"y"),
    }
    text = b'0aaa mark two 0\n5b0f5be5 mark one 7\n{"a":1}'
    assert publication.catalog_fingerprint(entries) == hashlib.blake2b(text, digest_size=20).hexdigest()
    assert publication.catalog_fingerprint(entries) == "052d81ec3b9f20f91f62ffb2ddac43d281844a42"
    assert publication.catalog_fingerprint({}) == "3345524abf6bbe1809449224b5972c41790b6cf2"
