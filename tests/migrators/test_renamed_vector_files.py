"""Vector files that a preview build renamed to ``<id>.embedjs.bak`` are read where ``<id>`` is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import stranded
from extras import needs
from harness import run
from v1 import MODEL, Library, Row, Source, base, check_library, migrate, note, pack, vector_of, write_store

RENAMED = ".embedjs.bak"
ROWS = [Row("L1", "one"), Row("L1", "two")]


def source(folder: Path, *names: str, rows: list[Row] | None = None) -> Path:
    """Write an export folder whose vector file is called each of these names."""
    stores = dict.fromkeys(names, ROWS if rows is None else rows)
    return Source(bases=[base("kb", note("n", "L1"), model=MODEL)], stores=stores).write(folder)


def vectors(library: Library) -> list[tuple[str, bytes]]:
    return [(unit.body, unit.vector) for unit in library.units("kb")]


EXPECTED = [(text, vector_of(text)) for text in ("one", "two")]


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_a_renamed_vector_file_is_migrated(tmp_path: Path, packed: bool) -> None:
    place = source(tmp_path / "v1", f"kb{RENAMED}")
    if packed:
        place = pack(place, tmp_path / "backup.zip")
    library = migrate(place, tmp_path / "library")
    assert library.base("kb")["status"] == "completed"
    assert vectors(library) == EXPECTED
    # It is the file of the base, and no file without one.
    assert library.warnings("unnamed_vector_files") == []
    check_library(library)
    look = run("inspect", place, "--json").document["bases"]
    assert [(one["id"], one["store"]["rows"], one["problem"]) for one in look] == [("kb", 2, None)]
    assert run("check", place).status == 0


def test_the_vector_file_itself_goes_before_a_renamed_one(tmp_path: Path) -> None:
    place = source(tmp_path / "v1", "kb")
    write_store(place / "KnowledgeBase" / f"kb{RENAMED}", [Row("L1", "older")])
    library = migrate(place, tmp_path / "library")
    assert vectors(library) == EXPECTED
    found = run("check", place, "--json").document["findings"]
    assert found == []
    # Nor is it a vector file that no base names.
    adopted = run("migrate", place, "--to", tmp_path / "adopted", "--adopt-orphans", "--json").document
    assert [one["legacy_id"] for one in adopted["bases"]] == ["kb"]


def test_a_folder_in_the_place_of_the_vector_file_does_not_hide_a_renamed_one(tmp_path: Path) -> None:
    place = source(tmp_path / "v1", f"kb{RENAMED}")
    (place / "KnowledgeBase" / "kb").mkdir()
    library = migrate(place, tmp_path / "library")
    assert vectors(library) == EXPECTED


def test_a_missing_vector_file_is_named_by_its_own_name(tmp_path: Path) -> None:
    place = source(tmp_path / "v1")
    write_store(place / "KnowledgeBase" / "other.embedjs.bak", ROWS)
    library = migrate(place, tmp_path / "library")
    assert library.base("kb")["error"] == "missing_vector_store"
    (warning,) = library.warnings("missing_vector_store")
    assert "its vector file kb does not exist" in warning["message"]


@needs("parquet")
def test_a_renamed_file_is_exported_and_unchanged_runs_stay_unchanged(tmp_path: Path) -> None:
    place = source(tmp_path / "v1", f"kb{RENAMED}")
    done = run("export", place, tmp_path / "rows.parquet", "--v1", "--json")
    assert done.status == 0, done.stderr
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").num_rows == 2
    migrate(place, tmp_path / "library")
    again = migrate(place, tmp_path / "library")
    assert again.base("kb")["outcome"] == "unchanged"


@pytest.mark.thorough
def test_rescue_reads_a_renamed_vector_file(tmp_path: Path) -> None:
    profile = stranded.profile(tmp_path, stranded.some_source(), ("kb",))
    other = Path(shutil.copytree(profile, tmp_path / "other"))
    folder = other / "Data" / "KnowledgeBase"
    (folder / "kb").rename(folder / f"kb{RENAMED}")
    done, expected = (run("rescue", one, "--json", "--yes") for one in (other, profile))
    assert done.status == expected.status, done.stderr
    kinds = [[(one["action"], one["count"]) for one in each.document["actions"]] for each in (done, expected)]
    assert kinds[0] == kinds[1] != []
