"""Names and texts with half of a surrogate pair in them, as the application stores what it cut: read, never died of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import generations
import pytest
import stranded
from extras import needs
from harness import run
from planted_v2 import KB, index, library
from v1 import Row, Source, base, file, folder

from regraft import identity
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2.catalog_reader import read_catalog
from repair.cherry_v2.catalog_changes import CatalogStatements

HALF = b"half \xed\xa0\xbd"
READ = "half \ufffd"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "library"))


def a_path(store: Path) -> None:
    """Call a note's snapshot by a name that was cut; on the disk half a pair is U+FFFD."""
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        note, old = db.execute(
            "SELECT id, data ->> '$.relativePath' FROM knowledge_item WHERE type = 'note' AND base_id = ?", (KB,)
        ).fetchone()
        path = json.dumps("half \ud83d.md")
        db.execute(
            "UPDATE knowledge_item SET data = json_set(data, '$.relativePath', json(?)) WHERE id = ?", (path, note)
        )
    with closing(apsw.Connection(str(index(store)))) as db:
        db.execute("UPDATE material SET relative_path = CAST(? AS TEXT) WHERE material_id = ?", (HALF + b".md", note))
    raw = index(store).parent.parent / "raw"
    (raw / old).rename(raw / f"{READ}.md")


def a_body(store: Path) -> None:
    """Let a body and its text end in half a pair; JavaScript hashes U+FFFD in its place."""
    with closing(apsw.Connection(str(index(store)))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        unit, material = db.execute("SELECT unit_id, material_id FROM search_unit WHERE unit_index = 0").fetchone()
        new, length = identity.text_hash(READ), len(READ)
        new_unit = identity.unit_id(material, new, 0, 0, length)
        db.execute("DELETE FROM search_unit WHERE material_id = ? AND unit_id <> ?", (material, unit))
        db.execute("DELETE FROM search_text WHERE target_id NOT IN (SELECT unit_id FROM search_unit)")
        db.execute("INSERT INTO content VALUES (?, CAST(? AS TEXT), 0)", (new, HALF))
        db.execute("UPDATE material SET current_content_hash = ? WHERE material_id = ?", (new, material))
        db.execute(
            "UPDATE search_unit SET unit_id = ?, content_hash = ?, char_start = 0, char_end = ? WHERE unit_id = ?",
            (new_unit, new, length, unit),
        )
        db.execute(
            "UPDATE search_text SET search_text_id = ?, target_id = ?, text = CAST(? AS TEXT), embedding_text_hash = ?"
            " WHERE target_id = ?",
            (identity.body_id(new_unit), new_unit, HALF, new, unit),
        )
        db.execute("INSERT INTO embedding SELECT ?, vector_blob, 0 FROM embedding LIMIT 1", (new,))
        db.execute("DELETE FROM content WHERE content_hash NOT IN (SELECT current_content_hash FROM material)")
        db.execute(
            "DELETE FROM embedding WHERE embedding_text_hash NOT IN (SELECT embedding_text_hash FROM search_text)"
        )


def a_source(store: Path) -> None:
    """Put half a pair into what an item holds, not as an escape."""
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        db.execute(
            "UPDATE knowledge_item SET data = CAST(replace(CAST(data AS BLOB), ?, ?) AS TEXT)"
            " WHERE type = 'file' AND base_id = ?",
            (b'"source":"', b'"source":"' + HALF, KB),
        )


def a_name(store: Path) -> None:
    """Put half a pair into the name of a base."""
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        db.execute("UPDATE knowledge_base SET name = CAST(? AS TEXT) WHERE id = ?", (HALF, KB))


PLACES = (a_path, a_body, a_source, a_name)
COMMANDS = {
    "check": ("check", "{store}", "--deep"),
    "inspect": ("inspect", "{store}"),
    "inspect a base": ("inspect", "{store}/KnowledgeBase/{base}"),
    "gc": ("gc", "{store}"),
    "gc, vacuum": ("gc", "{store}", "--vacuum"),
    "reconcile": ("reconcile", "{store}"),
    "repair": ("repair", "{store}"),
    "upgrade": ("upgrade", "{store}"),
    "export": ("export", "{store}", "{store}/../units.parquet"),
    "search": ("search", "{store}", "half", "--base", "{base}"),
    "history": ("history", "{store}"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=needs("parquet")) if one == "export" else one for one in COMMANDS]
)
@pytest.mark.parametrize("plant", PLACES)
def test_every_command_reads_half_a_surrogate_pair(store: Path, plant: Callable[[Path], None], command: str) -> None:
    plant(store)
    done = run(*(word.format(store=store, base=KB) for word in COMMANDS[command]))
    # Of its own texts a changed snapshot is worth reading.
    assert done.status == 0 or (command == "check" and plant is a_body), done
    assert "codec" not in done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("plant", PLACES)
def test_half_a_surrogate_pair_is_no_damage(store: Path, plant: Callable[[Path], None]) -> None:
    plant(store)
    found = {one["name"] for one in run("check", store, "--deep", "--json").document["findings"]}
    assert found <= {"raw.changed", "embedding.duplicate"}


def test_half_a_surrogate_pair_is_shown_as_a_replacement(store: Path) -> None:
    for plant in PLACES:
        plant(store)
    seen = run("inspect", f"{store}/KnowledgeBase/{KB}", "--json").document["bases"][0]
    assert seen["name"] == READ
    assert f"{READ}.md" in {one["path"] for one in seen["materials"]}
    assert any(str(one["source"]).startswith(READ) for one in seen["materials"])


def test_a_path_with_half_a_surrogate_pair_follows_its_item(store: Path) -> None:
    a_path(store)
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        db.execute("DELETE FROM knowledge_item WHERE type = 'url' AND base_id = ?", (KB,))
    document = run("reconcile", store, "--only", "material.orphan", "--json").document
    assert {one["action"] for one in document["actions"]} >= {"delete-materials"}
    assert "material.path" not in run("check", store, "--json").document["summary"]["by_name"]


@pytest.mark.thorough
def test_profiles_with_halves_of_pairs_are_rescued(tmp_path: Path) -> None:
    rows = {"kb": [Row("A", "text of a", source="/x/a.md"), Row("F", "text of f")]}
    source = Source([base("kb", folder("d", "A", path="/x"), file("f", "F"))], rows, uploads={"up-f.pdf": b"x"})
    made = stranded.profile(tmp_path / "p", source, ("kb",), wal=False)

    def stored() -> list[tuple[object, ...]]:
        with closing(apsw.Connection(str(made / stranded.DATABASE))) as db:
            columns = "b.status, hex(b.file_processor_id), i.status, hex(i.data)"
            return list(db.execute(f"SELECT {columns} FROM knowledge_base b, knowledge_item i ORDER BY i.rowid"))

    with closing(apsw.Connection(str(made / stranded.DATABASE))) as db:
        db.execute("UPDATE knowledge_base SET file_processor_id = CAST(? AS TEXT)", (HALF,))
    before = stored()
    done = run("rescue", made, "--json")
    assert (done.status, done.document["undo"] is not None) == (0, True), done
    assert {(status, processor) for status, processor, *_ in stored()} == {("completed", HALF.hex().upper())}
    assert run("undo", made).status == 0
    assert stored() == before


@pytest.mark.thorough
@pytest.mark.parametrize("more", [(), ("--as-new",)])
def test_bases_with_halves_of_pairs_are_installed(store: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    a_source(store)
    a_name(store)
    empty = generations.profile(tmp_path / "p", "2.0.0")
    done = run("install", store, "--profile", empty, "--base", KB, "--json", *more)
    assert "codec" not in done.stdout + done.stderr
    with closing(apsw.Connection(str(generations.database(empty)))) as db:
        # Half a pair is written nowhere.
        assert db.execute("SELECT name FROM knowledge_base").fetchall() == [(READ,)]
        sources = [json.loads(data)["source"] for (data,) in db.execute("SELECT data FROM knowledge_item").fetchall()]
    assert any(one.startswith(READ) for one in sources)


def test_rows_with_halves_of_pairs_are_changed_where_they_are_what_was_read(store: Path) -> None:
    a_source(store)
    path = store / "catalog.sqlite"
    row = next(one for one in read_catalog(path).items[KB] if one["type"] == "file")
    statements = CatalogStatements(store, path.name)
    statements.set_path(KB, row, "new.txt")
    apply = statements.as_function()
    with closing(apsw.Connection(str(path))) as db:
        apply(db)
        ((data,),) = db.execute("SELECT CAST(data AS BLOB) FROM knowledge_item WHERE id = ?", (row["id"],)).fetchall()
        # All else stays as it is written.
        assert HALF in data
        assert b'"relativePath":"new.txt"' in data
        with pytest.raises(PlanOutdated, match="a row was changed since the plan was made"):
            apply(db)
