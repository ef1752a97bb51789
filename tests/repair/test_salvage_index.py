"""``repair --salvage`` on the library that the sample becomes: each table and index loses its root in turn."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness import REPO, run

_PAGE = 4096
_BODIES = """SELECT m.material_id, u.unit_id, u.unit_index, u.char_start, u.char_end, t.text, t.embedding_text_hash,
                    e.vector_blob
               FROM search_text t JOIN search_unit u ON u.unit_id = t.target_id
               JOIN material m ON m.material_id = u.material_id
               LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash ORDER BY 1, 3"""


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that the sample becomes."""
    library = tmp_path_factory.mktemp("migrated") / "library"
    run("migrate", REPO / "sample_v1" / "backup", "--to", library, "--yes")
    return library


@pytest.fixture
def library(migrated: Path, tmp_path: Path) -> Path:
    return shutil.copytree(migrated, tmp_path / "library")


def _index(library: Path) -> Path:
    """Return the largest index of a library."""
    return max(library.glob("KnowledgeBase/*/.cherry/index.sqlite"), key=lambda path: path.stat().st_size)


def _rows(index: Path) -> set[tuple[Any, ...]]:
    with closing(apsw.Connection(str(index), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        return set(db.execute(_BODIES))


def _roots(index: Path) -> dict[str, int]:
    with closing(apsw.Connection(str(index), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        return {str(name): int(str(root)) for name, root in db.execute("SELECT name, rootpage FROM sqlite_schema")}


def _zero(index: Path, start: int, length: int) -> None:
    with index.open("r+b") as file:
        file.seek(start)
        file.write(bytes(length))


def _of_page(name: str) -> Callable[[Path], None]:
    """Return what zeroes the first page of a table or an index."""
    return lambda index: _zero(index, (_roots(index)[name] - 1) * _PAGE, _PAGE)


def _cut(index: Path) -> None:
    with index.open("r+b") as file:
        file.truncate(index.stat().st_size * 4 // 5)


#: What is damaged, and whether all rows are left.
_DAMAGES: dict[str, tuple[Callable[[Path], None], bool]] = {
    "the header": (lambda index: _zero(index, 0, 100), True),
    "the page size": (lambda index: _zero(index, 16, 2), True),
    "the schema": (lambda index: _zero(index, 0, _PAGE), True),
    "the end": (_cut, False),
    "the root of the contents": (_of_page("content"), False),
    "the root of the units": (_of_page("search_unit"), False),
    "the root of the bodies": (_of_page("search_text"), False),
    "the root of the vectors": (_of_page("embedding"), False),
    "the root of the materials": (_of_page("material"), False),
    "the identity": (_of_page("meta"), True),
    "the key of the units": (_of_page("sqlite_autoindex_search_unit_1"), True),
    "the key of the bodies": (_of_page("sqlite_autoindex_search_text_1"), True),
    "the key of the vectors": (_of_page("sqlite_autoindex_embedding_1"), True),
    "the numbers of the bodies": (_of_page("search_text_fts_rowid_uniq"), True),
    "the words": (_of_page("search_text_fts_data"), True),
    "the words' index": (_of_page("search_text_fts_idx"), True),
    "the words' sizes": (_of_page("search_text_fts_docsize"), True),
    "the words' settings": (_of_page("search_text_fts_config"), True),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", _DAMAGES)
def test_what_is_left_comes_back_as_it_was(library: Path, name: str) -> None:
    damage, is_whole = _DAMAGES[name]
    index = _index(library)
    before = _rows(index)
    damage(index)

    done = run("repair", library, "--salvage", "--yes", "--json")

    assert done.status in {0, 1}, done.stderr
    after = _rows(index)
    assert {row for row in after if row[7] is not None} <= before
    if is_whole:
        assert after == before
    with closing(apsw.Connection(str(index))) as db:
        assert db.execute("PRAGMA integrity_check").get == "ok"
        db.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES ('integrity-check', 1)")
