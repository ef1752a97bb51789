"""What ``regraft repair`` derives in an index file, what it leaves, and that no vector of a right text is lost."""

from __future__ import annotations

import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from faults import fails
from harness import NOW_MS, examples, run
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from planted_v2 import run_sql

from checks.audit.findings import RowNumbers
from checks.cherry_v2 import findings as v2
from regraft import identity
from regraft.formats.cherry_v2.index import IndexStore
from regraft.testing import MaterialInput, materials
from repair.changes import changesets, files
from repair.cherry_v2.rules import index, planner
from repair.cherry_v2.rules import rows as rows_module

BASE = "5b0f5be5-6c1b-4b6e-9a51-0c9b8f8a7d10"
HEAD = "The harbour 🎉"
BODIES = ("The lamp is lit at dusk.", "Who comes on Monday? 🎉", "Fog bell, fog bell.")
DIMENSIONS = 4


def vector(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def wide(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def place_of(folder: Path) -> Path:
    path = folder / BASE / ".cherry" / "index.sqlite"
    path.parent.mkdir(parents=True)
    return path


def put(store: IndexStore, material: str, head: str, bodies: Iterable[str]) -> None:
    """Store a material with a virtual path: a heading that is in no unit, then a paragraph for every unit."""
    content, units = head, []
    for body in bodies:
        start = wide(content) + 2
        content = f"{content}\n\n{body}"
        units.append((start, start + wide(body)))
    vectors = {identity.text_hash(body): vector(len(body), number, 1, 1) for number, body in enumerate(bodies)}
    store.rebuild_material(material, material, content, units, vectors, NOW_MS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = place_of(tmp_path)
    with IndexStore(path, BASE, create=True) as store:
        put(store, "a", HEAD, BODIES)
        put(store, "b", "Another", [*BODIES[:1], "Only here."])
    assert names(path) == set()
    return path


def check(path: Path) -> list[dict[str, Any]]:
    return list(run("check", path, "--json").document["findings"])


def names(path: Path) -> set[str]:
    return {finding["name"] for finding in check(path)}


def repair(path: Path, *options: object) -> dict[str, Any]:
    done = run("repair", path, "--json", *options)
    assert done.status in (0, 1), done
    return done.document


def mended(path: Path, *options: object) -> dict[str, int]:
    """Repair, check that undo takes all of it back, repair again, and return what was done."""
    before = files.fingerprint(path)
    done = repair(path, *options)
    if done["undo"] is not None:
        assert run("undo", path, "-q").status == 0
        assert files.fingerprint(path) == before
        assert repair(path, *options)["actions"] == done["actions"]
    return {action["action"]: action["count"] for action in done["actions"]}


def left(path: Path) -> dict[str, str]:
    return {one["finding"]: one["reason"] for one in repair(path, "--dry-run")["left"]}


def ask(path: Path, sql: str) -> Any:
    with closing(apsw.Connection(str(path))) as db:
        return db.execute(sql).get


CONTENT_A = "(SELECT current_content_hash FROM material WHERE material_id = 'a')"
LAST_OF_A = "material_id = 'a' AND unit_index = 2"
UNIT = f"(SELECT unit_id FROM search_unit WHERE {LAST_OF_A})"

# --- what is done, what is left, and what comes of it ----------------------------------------------------------------

REBUILT = ("rebuild-full-text", "rebuild 1 full-text index", 1, None)
GONE_VECTOR = "delete {} that can never be used, to be embedded again"
MISSING = "{} without a vector: to be embedded again"
FORGET_WORDS = """INSERT INTO search_text_fts (search_text_fts, rowid, text)
    SELECT 'delete', fts_rowid, text FROM search_text WHERE rowid = 1"""
OF_OTHER_TEXT = (
    "1 unit referring to a different text than the material, or to no material. To fix it: Index the item again in the "
    "application."
)
INCOMPLETE = (
    "missing or different: 1 part of the layout. To fix it: `regraft upgrade` rebuilds the layout and keeps all rows."
)


def set_vector(value: str, row: int) -> str:
    return f"UPDATE embedding SET vector_blob = {value} WHERE rowid = {row}"


class Repaired(NamedTuple):
    """Damage, and what a repair does, leaves, and makes of the rows: ``then`` is what is different from before."""

    damage: list[str]
    actions: list[tuple[str, str, int, str | None]]
    left: Sequence[tuple[str, str, int]] = ()
    then: Sequence[str] = ()


REPAIRS = {
    "no identity": Repaired(
        ["DELETE FROM meta"],
        [("write-identity", "write 1 identity row with the id of the base", 1, "meta.missing")],
    ),
    "another body": Repaired(
        ["UPDATE search_text SET text = 'x' WHERE rowid = 1"],
        [("restore-bodies", "restore 1 body to the text that was embedded", 1, "body.hash"), REBUILT],
    ),
    "no bodies": Repaired(
        ["DELETE FROM search_text WHERE rowid IN (1, 2)"],
        [("write-bodies", "write 2 bodies again from the text of the units", 2, "unit.no-body"), REBUILT],
    ),
    "wrong offsets": Repaired(
        ["UPDATE search_unit SET char_end = char_end - 1, char_start = char_start + 3 WHERE rowid IN (2, 3)"],
        [
            (
                "place-units",
                "correct the offsets of 2 units, from the place of each body in the text",
                2,
                "unit.offsets",
            )
        ],
    ),
    "a wrong unit id": Repaired(
        [
            "UPDATE search_text SET target_id = 'u' WHERE rowid = 2",
            "UPDATE search_unit SET unit_id = 'u' WHERE rowid = 2",
        ],
        [
            ("rekey-units", "recompute the id of 1 unit from the fields", 1, "unit.id"),
            ("rekey-bodies", "recompute the id of 1 body from the fields", 1, "body.id"),
        ],
    ),
    "a wrong body id": Repaired(
        ["UPDATE search_text SET search_text_id = 'x' WHERE rowid = 2"],
        [("rekey-bodies", "recompute the id of 1 body from the fields", 1, "body.id")],
    ),
    "a gap": Repaired(
        ["UPDATE search_unit SET unit_index = 9 WHERE rowid = 3"],
        [("number-units", "renumber 1 unit", 1, "unit.gap")],
    ),
    "another text": Repaired(
        ["UPDATE content SET text = replace(text, 'dusk', 'dawn') WHERE rowid = 1"],
        [("restore-contents", "restore 1 text from the chunks, as the hash proves", 1, "content.hash")],
    ),
    "a text of bad bytes": Repaired(
        ["UPDATE content SET text = CAST(x'ff' AS TEXT) WHERE rowid = 1"],
        [],
        [("content.hash", "the stored value is not text, and the stored texts of its units do not reproduce it", 1)],
        ["UPDATE content SET text = CAST(x'ff' AS TEXT) WHERE rowid = 1"],
    ),
    "no texts": Repaired(
        ["UPDATE material SET current_content_hash = NULL"],
        [("link-contents", "link 2 materials to the text that the units have", 2, "material.no-content")],
    ),
    "a wrong hash": Repaired(
        ["UPDATE search_text SET embedding_text_hash = 'x' WHERE rowid = 2"],
        [("rehash-bodies", "correct the hash of 1 body", 1, "body.hash")],
    ),
    "a text and a body of bad bytes": Repaired(
        [
            "UPDATE content SET text = CAST(x'ff' AS TEXT) WHERE rowid = 1",
            "UPDATE search_text SET text = CAST(x'ff' AS TEXT) WHERE rowid = 2",
        ],
        [],
        [
            ("content.hash", "the stored value is not text, and the stored texts of its units do not reproduce it", 1),
            ("body.hash", "the stored value is not text, and the text of its unit does not reproduce it", 1),
        ],
        [
            "UPDATE content SET text = CAST(x'ff' AS TEXT) WHERE rowid = 1",
            "UPDATE search_text SET text = CAST(x'ff' AS TEXT) WHERE rowid = 2",
        ],
    ),
    "a body without words": Repaired(
        [FORGET_WORDS],
        [("rebuild-full-text", "rebuild 1 full-text index", 1, "fts.desync")],
    ),
    "no number": Repaired(
        ["UPDATE search_text SET fts_rowid = NULL WHERE rowid = 1"],
        [
            ("number-bodies", "give 1 body a new row number in the full-text index", 1, "body.rowid"),
            ("rebuild-full-text", "rebuild 1 full-text index", 1, "fts.desync"),
        ],
    ),
    "another number": Repaired(
        ["UPDATE search_text SET fts_rowid = 99 WHERE rowid = 1"],
        [("rebuild-full-text", "rebuild 1 full-text index", 1, "body.rowid")],
    ),
    "a body of another unit": Repaired(
        ["UPDATE search_text SET target_id = 'gone' WHERE rowid = 4"],
        [
            ("link-bodies", "link 1 body to units again", 1, "unit.no-body"),
            ("rekey-bodies", "recompute the id of 1 body from the fields", 1, "body.id"),
        ],
    ),
    "bodies that changed places": Repaired(
        ["UPDATE search_text SET text = (SELECT text FROM search_text WHERE rowid = 5) WHERE rowid = 1"],
        [("restore-bodies", "restore 1 body to the text that was embedded", 1, "body.hash"), REBUILT],
    ),
    "units that bodies prove": Repaired(
        ["DELETE FROM search_unit WHERE rowid IN (2, 4)"],
        [("write-units", "restore 2 units, proven by the ids in their bodies", 2, "body.orphan")],
        [("unit.gap", "units are written again first; run regraft repair again for the rest", 2)],
    ),
    # Two bodies share the first vector.
    "vectors of zeros": Repaired(
        [set_vector("zeroblob(16)", 1), set_vector("zeroblob(16)", 3)],
        [("delete-embeddings", GONE_VECTOR.format("2 vectors"), 2, "embedding.zero")],
        [("embedding.missing", MISSING.format("3 bodies"), 3)],
        ["DELETE FROM embedding WHERE rowid IN (1, 3)"],
    ),
    "a vector with NaN": Repaired(
        [set_vector("x'0000c07f0000803f0000803f0000803f'", 2)],
        [("delete-embeddings", GONE_VECTOR.format("1 vector"), 1, "embedding.non-finite")],
        [("embedding.missing", MISSING.format("1 body"), 1)],
        ["DELETE FROM embedding WHERE rowid = 2"],
    ),
    "vectors of other lengths": Repaired(
        [set_vector("zeroblob(8)", 1), set_vector("x'00'", 2)],
        [("delete-embeddings", GONE_VECTOR.format("2 vectors"), 2, "embedding.length")],
        [("embedding.missing", MISSING.format("3 bodies"), 3)],
        ["DELETE FROM embedding WHERE rowid IN (1, 2)"],
    ),
    "vectors of which half have another length": Repaired(
        [set_vector("x'0000803f0000803f'", 1), set_vector("x'0000803f00000040'", 2)],
        [],
        [("embedding.length", "the right vector length of the base is unknown", 2)],
        [set_vector("x'0000803f0000803f'", 1), set_vector("x'0000803f00000040'", 2)],
    ),
    "unsafe paths": Repaired(
        [
            "UPDATE material SET relative_path = '../x' WHERE rowid = 1",
            "UPDATE material SET relative_path = 'y\\z' WHERE rowid = 2",
        ],
        [("rename-materials", "give 2 materials a path below raw/", 2, "material.path-unsafe")],
        [],
        [
            "UPDATE material SET relative_path = 'x' WHERE rowid = 1",
            "UPDATE material SET relative_path = 'y/z' WHERE rowid = 2",
        ],
    ),
    "an unused text with a wrong hash": Repaired(
        ["INSERT INTO content VALUES ('x', 'unused', 0)"],
        [("rekey-contents", "store 1 text under the right hash", 1, "content.hash")],
        [("content.orphan", "1 text not referenced by any material or unit", 1)],
        [f"INSERT INTO content VALUES ('{identity.text_hash('unused')}', 'unused', 0)"],
    ),
    "a unit of no material": Repaired(
        ["UPDATE search_unit SET material_id = 'gone' WHERE rowid = 5"],
        [],
        [
            (
                "unit.gap",
                "neither the numbers nor the offsets of its units show their order, or the material is missing",
                1,
            ),
            (
                "unit.id",
                "its id is kept, because its material, content or body is unknown and the id may show which it was",
                1,
            ),
            (
                "unit.content",
                OF_OTHER_TEXT,
                1,
            ),
        ],
        ["UPDATE search_unit SET material_id = 'gone' WHERE rowid = 5"],
    ),
    "a layout with a part missing": Repaired(
        ["DROP INDEX search_unit_content_idx", "UPDATE search_text SET search_text_id = 'x' WHERE rowid = 2"],
        [],
        [
            ("body.id", "the layout of the file is incomplete: fix that first", 1),
            (
                "schema.missing",
                INCOMPLETE,
                1,
            ),
        ],
        ["UPDATE search_text SET search_text_id = 'x' WHERE rowid = 2"],
    ),
}
#: What a repair must give back of each table: all but times, and numbers in the full-text index.
COLUMNS = {
    "meta": "schema_version, base_id",
    "content": "content_hash, text",
    "material": "material_id, relative_path, current_content_hash",
    "search_unit": "unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end",
    "search_text": "search_text_id, target_type, target_id, kind, text, embedding_text_hash",
    "embedding": "embedding_text_hash, vector_blob",
}


def tables(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(sqlite3.connect(path)) as db:
        db.text_factory = bytes
        return {name: sorted(db.execute(f"SELECT {of} FROM {name}"), key=repr) for name, of in COLUMNS.items()}


@pytest.mark.parametrize("name", REPAIRS)
def test_what_a_repair_does_and_leaves_and_makes_of_the_rows(name: str, path: Path, tmp_path: Path) -> None:
    case = REPAIRS[name]
    other = shutil.copyfile(path, tmp_path / "other.sqlite")
    run_sql(path, *case.damage)
    run_sql(other, *case.then)
    before = path.read_bytes()
    done = run("repair", path, "--json")
    document = done.document
    assert [
        (one["action"], one["message"], one["count"], one["finding"]) for one in document["actions"]
    ] == case.actions
    assert [(one["finding"], one["reason"], one["count"]) for one in document["left"]] == [*case.left]
    assert {one["base"] for one in (*document["actions"], *document["left"])} <= {BASE}
    assert done.status == int(bool(case.left))
    assert tables(path) == tables(other)
    assert (path.read_bytes() == before) is not bool(case.actions)


# --- the plan of one file --------------------------------------------------------------------------------------------


def plan_of(path: Path, *found: str, rows: dict[str, Iterable[int]] | None = None, **more: Any) -> tuple[Any, Any]:
    """Plan the repair of findings, of which the audit recorded these rows."""
    recorded: dict[str, list[RowNumbers]] = {}
    for name, numbers in (rows or {}).items():
        recorded[name] = [RowNumbers()]
        for number in numbers:
            recorded[name][0].append(number)
    usual = {
        "base": BASE,
        "path": f"{BASE}/.cherry/index.sqlite",
        "folder": BASE,
        "has_model": True,
        "dimensions": None,
        "found": dict.fromkeys(found, 1),
        "wanted": frozenset(found),
        "now_ms": NOW_MS,
        "rows": recorded,
    }
    return index.plan_index(path.parents[2], index.IndexRepair(**{**usual, **more}))


def done_of(change: Any) -> list[tuple[str, int, str | None, int]]:
    return [] if change is None else [(one.action, one.count, one.finding, one.bytes) for one in change.actions]


def left_of(left: Any) -> list[tuple[str, str, int]]:
    return [(one.finding, one.reason, one.count) for one in left]


def written(path: Path, change: Any) -> None:
    with closing(apsw.Connection(str(path))) as db, db:
        change.apply(db)


@pytest.mark.parametrize(
    "name",
    [
        *("another body", "wrong offsets", "another text", "a text of bad bytes", "a wrong hash"),
        *("bodies that changed places", "vectors of zeros", "a vector with NaN", "vectors of other lengths"),
    ],
)
def test_rows_that_the_audit_did_not_record_are_searched(name: str, path: Path) -> None:
    case = REPAIRS[name]
    run_sql(path, *case.damage)
    found = {one[3] for one in case.actions if one[3]} | {finding for finding, _, _ in case.left}
    change, _ = plan_of(path, *found - {v2.VECTOR_MISSING})
    actions = [] if change is None else change.actions
    assert [(one.action, one.message, one.count, one.finding) for one in actions] == case.actions


KEPT = (
    "most vectors do not have the {} dimensions of the catalog, so that all are kept; --only embedding.length removes"
    " those without"
)
UNKNOWN = "the right vector length of the base is unknown"
SHORT = "x'0000803f0000803f0000803f'"
HALVES = [set_vector(SHORT, 1), set_vector("x'0000803f0000803f00000040'", 2)]
BOTH = (v2.VECTOR_LENGTH, v2.BASE_DIMENSIONS)


@pytest.mark.parametrize(
    ("damage", "found", "rows", "more", "gone", "left"),
    [
        # The length of most vectors is right, unless the catalog says another that no vectors contradict.
        ([set_vector(SHORT, 1)], [v2.VECTOR_LENGTH], None, {}, 1, []),
        ([set_vector(SHORT, 1)], [v2.VECTOR_LENGTH], [1], {}, 1, []),
        ([set_vector(SHORT, 1)], [v2.VECTOR_LENGTH], None, {"dimensions": 4}, 1, []),
        ([set_vector(SHORT, 1)], [v2.VECTOR_LENGTH], None, {"dimensions": 3}, 0, [(KEPT.format(3), 3)]),
        ([set_vector(SHORT, 1)], [v2.VECTOR_LENGTH], None, {"dimensions": 3, "is_partial": True}, 3, []),
        (HALVES, [v2.VECTOR_LENGTH], None, {}, 0, [(UNKNOWN, 2)]),
        (HALVES, [v2.VECTOR_LENGTH], None, {"dimensions": 4}, 2, []),
        (HALVES, [v2.VECTOR_LENGTH], None, {"dimensions": 3}, 2, []),
        # What is no vector of any length goes.
        ([set_vector("x'000000'", 1), *HALVES[1:]], [v2.VECTOR_LENGTH], [1], {"dimensions": 9}, 1, []),
        ([set_vector("x''", 1)], [v2.VECTOR_LENGTH], [1], {"dimensions": 9}, 1, []),
        ([set_vector("'text'", 1)], [v2.VECTOR_LENGTH], [1], {"dimensions": 9}, 1, []),
        # The catalog gets the dimensions that all vectors have: then these are right.
        ([], BOTH, [1, 2, 3, 4], {"dimensions": 3}, 0, []),
        ([], [v2.VECTOR_LENGTH], None, {"dimensions": 3}, 0, [(KEPT.format(3), 4)]),
        ([set_vector(SHORT, 1)], BOTH, None, {"dimensions": 3}, 0, [(KEPT.format(3), 3)]),
    ],
)
def test_which_vectors_of_another_length_are_deleted(
    damage: list[str],
    found: list[str],
    rows: list[int] | None,
    more: dict[str, Any],
    gone: int,
    left: list[tuple[str, int]],
    path: Path,
) -> None:
    run_sql(path, *damage)
    size = ask(path, "SELECT ifnull(sum(length(CAST(vector_blob AS BLOB))), 0) FROM embedding")
    recorded = None if rows is None else {v2.VECTOR_LENGTH: rows}
    change, stays = plan_of(path, *found, rows=recorded, **more)
    assert [one for one in left_of(stays) if one[0] == v2.VECTOR_LENGTH] == [
        (v2.VECTOR_LENGTH, reason, count) for reason, count in left
    ]
    done = done_of(change)
    assert [one[:3] for one in done] == [("delete-embeddings", gone, v2.VECTOR_LENGTH)] * bool(gone)
    if gone:
        written(path, change)
        kept = ask(path, "SELECT sum(length(CAST(vector_blob AS BLOB))) FROM embedding")
        assert done[0][3] == size - kept
        assert change.bytes == size - kept
        assert (change.tables, change.bodies) == (("embedding",), False)
        assert ask(path, "SELECT count(*) FROM embedding") == 4 - gone


def test_only_the_flaws_that_are_meant_are_deleted(path: Path) -> None:
    run_sql(path, set_vector("zeroblob(16)", 1), set_vector("x'0000c07f0000803f0000803f0000803f'", 2))
    flaws = [v2.VECTOR_ZERO, v2.VECTOR_NON_FINITE]
    for rows in (None, {v2.VECTOR_ZERO: [1], v2.VECTOR_NON_FINITE: [2]}):
        change, _ = plan_of(path, *flaws, rows=rows, wanted=frozenset({v2.VECTOR_ZERO}))
        assert done_of(change) == [("delete-embeddings", 1, v2.VECTOR_ZERO, 16)]
        both, _ = plan_of(path, *flaws, rows=rows)
        assert done_of(both) == [
            ("delete-embeddings", 1, v2.VECTOR_NON_FINITE, 16),
            ("delete-embeddings", 1, v2.VECTOR_ZERO, 16),
        ]


def test_what_a_repair_causes_is_said_even_where_findings_are_named(path: Path) -> None:
    run_sql(path, set_vector("zeroblob(16)", 2))
    said = [(v2.VECTOR_MISSING, "1 body without a vector: to be embedded again", 1)]
    _, left = plan_of(path, v2.VECTOR_ZERO, is_partial=True)
    assert left_of(left) == said
    found = {v2.VECTOR_ZERO: 1, v2.VECTOR_MISSING: 1}
    assert left_of(plan_of(path, v2.VECTOR_ZERO, found=found)[1]) == said
    # What was there before, or what no vector belongs to, is nothing new.
    assert left_of(plan_of(path, v2.VECTOR_ZERO, found=found, is_partial=True)[1]) == []
    assert left_of(plan_of(path, v2.VECTOR_ZERO, has_model=False)[1]) == []
    assert left_of(plan_of(path, v2.VECTOR_ZERO, has_model=None)[1]) == said


@pytest.mark.parametrize(
    ("damage", "found", "size"),
    [
        # The text twice, for the row and the full-text index, and 400 bytes for the row.
        ("UPDATE search_text SET text = 'xyz' WHERE rowid = 1", v2.BODY_HASH, 2 * 3),
        ("UPDATE search_text SET search_text_id = 'x' WHERE rowid = 1", v2.BODY_ID, 2 * len(BODIES[0]) + 400),
        ("UPDATE search_unit SET char_end = char_end - 1 WHERE rowid = 1", v2.UNIT_OFFSETS, 400),
        (REPAIRS["another text"].damage[0], v2.CONTENT_HASH, 2 * len("\n\n".join([HEAD, *BODIES]).encode())),
    ],
)
def test_a_plan_knows_how_much_changes(damage: str, found: str, size: int, path: Path) -> None:
    run_sql(path, damage)
    change, _ = plan_of(path, found)
    assert change.bytes == size


def test_an_unfinished_transaction_is_settled_by_writing(path: Path) -> None:
    change, left = plan_of(path, v2.HOT_JOURNAL)
    assert (done_of(change), left) == ([("settle-journal", 1, v2.HOT_JOURNAL, 0)], ())
    assert change.actions[0].message == "roll back 1 unfinished transaction"
    assert change.tables == ()
    assert plan_of(path, v2.HOT_JOURNAL, wanted=frozenset({v2.BODY_ID})) == (None, ())


def test_an_index_of_pages_that_do_not_agree_is_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.table_integrity, "find_inconsistency", lambda *_: "row 3 missing from index x")
    found = {v2.BODY_ID: 2, v2.UNIT_ID: 3, v2.CORRUPT: 1}
    change, left = plan_of(path, found=found, wanted=frozenset({v2.BODY_ID, v2.UNIT_ID, v2.UNIT_GAP}))
    reason = "SQLite reports damage (row 3 missing from index x); restore the file from a backup"
    assert change is None
    assert left_of(left) == [(v2.BODY_ID, reason, 2), (v2.UNIT_ID, reason, 3)]


def test_rows_that_would_get_the_same_id_are_left(path: Path) -> None:
    run_sql(
        path,
        "CREATE TABLE loose AS SELECT * FROM search_text",
        "DROP TABLE search_text",
        "ALTER TABLE loose RENAME TO search_text",
        "UPDATE search_text SET search_text_id = 'x', target_id = (SELECT unit_id FROM search_unit WHERE rowid = 2)"
        " WHERE rowid = 1",
    )
    change, left = plan_of(path, v2.BODY_ID)
    reason = "two rows would get the same id; decide which one is right"
    assert (change, left_of(left)) == (None, [(v2.BODY_ID, reason, 1)])


def test_an_id_of_fields_that_are_missing_is_left(path: Path) -> None:
    run_sql(
        path,
        "CREATE TABLE loose AS SELECT * FROM search_text",
        "DROP TABLE search_text",
        "ALTER TABLE loose RENAME TO search_text",
        "UPDATE search_text SET kind = NULL WHERE rowid = 2",
    )
    change, left = plan_of(path, v2.BODY_ID)
    said = (v2.BODY_ID, "a field that its id is computed from is missing", 1)
    assert (change, left_of(left)) == (None, [said])


def test_a_text_that_is_stored_as_bytes_is_restored(path: Path) -> None:
    for text in ("unused", ""):
        run_sql(path, f"INSERT INTO content VALUES ('{identity.text_hash(text)}', CAST('{text}' AS BLOB), 0)")
    change, _ = plan_of(path, v2.CONTENT_HASH)
    assert done_of(change) == [("restore-contents", 2, v2.CONTENT_HASH, 0)]
    written(path, change)
    assert ask(path, "SELECT count(*) FROM content WHERE typeof(text) = 'text'") == 4


Piece = rows_module._BodyPiece


def piece(start: Any, end: Any, text: bytes | None) -> Any:
    return Piece(b"m", start, end, text, 1)


@pytest.mark.parametrize(
    ("raw", "pieces", "texts"),
    [
        (b"Hello", [], [b"Hello", b""]),
        (b"Hello", [(0, 2, b"Jo")], [b"Jollo", b"Jo"]),
        (b"Hello", [(3, 5, b"p!"), (0, 1, b"h")], [b"help!", b"help!"]),
        # A body at the end is appended, also after a paragraph break.
        (b"Hello", [(5, 8, b"you")], [b"Helloyou", b"Helloyou"]),
        (b"Hello", [(7, 10, b"you")], [b"Hello\n\nyou", b"Hello\n\nyou"]),
        (b"", [(2, 5, b"you"), (7, 8, b"!")], [b"\n\nyou\n\n!", b"\n\nyou\n\n!"]),
        # One that would leave a gap, or is of another length, or no text, is not.
        (b"Hello", [(6, 9, b"you")], [b"Hello", b""]),
        (b"Hello", [(8, 11, b"you")], [b"Hello", b""]),
        (b"Hello", [(0, 2, b"you"), (0, 4, b"you")], [b"Hello", b""]),
        (b"Hello", [(0, 1, None), (0, 1, b"\xff"), (None, 3, b"you"), (-1, 2, b"you")], [b"Hello", b""]),
        (None, [(0, 3, b"you")], [b"you", b"you"]),
        (b"\xff", [(0, 3, b"you")], [b"you", b"you"]),
        # Offsets count UTF-16 units.
        ("a🎉b".encode(), [(3, 4, b"c")], ["a🎉c".encode()] * 2),
        # Half a character is no text.
        ("a🎉b".encode(), [(2, 3, b"x"), (0, 1, b"y")], [None]),
        ("a🎉b".encode(), [(1, 2, b"x")], [None, b"ax"]),
    ],
)
def test_bodies_are_laid_over_a_text_at_their_offsets(
    raw: bytes | None, pieces: list[tuple[Any, ...]], texts: list[bytes]
) -> None:
    made = rows_module._TextAssembly(raw)
    made.overlay(piece(*one) for one in pieces)
    assert list(made.texts()) == [text for text in texts if text is not None]
    assert made.text() == texts[0]


def test_a_text_is_not_cut_where_a_body_splits_a_character(path: Path) -> None:
    damaged = "\n\n".join([HEAD, *BODIES]).replace("dusk.\n", "dusk🎉")
    run_sql(
        path,
        f"UPDATE content SET text = '{damaged}' WHERE rowid = 1",
        "DELETE FROM search_text WHERE rowid IN (2, 3)",
        "DELETE FROM search_unit WHERE rowid IN (2, 3)",
    )
    change, _ = plan_of(path, v2.CONTENT_HASH)
    assert done_of(change)[0][:3] == ("rekey-contents", 1, v2.CONTENT_HASH)
    written(path, change)
    # What no body holds is in the stored text alone.
    assert ask(path, f"SELECT text FROM content WHERE content_hash = {CONTENT_A}") == damaged


def test_a_text_is_cut_and_searched_in_utf16_units() -> None:
    plain, wider = (rows_module._ContentText(text.encode()) for text in ("one two one", "ä🎉b ä"))
    assert [plain.cut(0, 3), plain.cut(4, 11), plain.cut(0, 11), plain.cut(0, 12)] == [
        "one",
        "two one",
        "one two one",
        None,
    ]
    assert [wider.cut(0, 1), wider.cut(1, 3), wider.cut(3, 6), wider.cut(1, 2), wider.cut(3, 7)] == [
        "ä",
        "🎉",
        "b ä",
        None,
        None,
    ]
    for odd in ((2, 1), (-1, 2), (None, 2), (0, "2"), (0.0, 1.0)):
        assert (plain.cut(*odd), wider.cut(*odd)) == (None, None)
    assert [plain.find_offsets(text) for text in (b"two", b"one two", b"one", b"no")] == [(4, 7), (0, 7), None, None]
    found = [wider.find_offsets(text.encode()) for text in ("🎉b", "b ä", "ä", "ö")]
    assert found == [(1, 4), (3, 6), None, None]


def test_a_plan_is_made_only_of_the_rows_that_it_was_made_for(path: Path) -> None:
    run_sql(path, "UPDATE search_text SET search_text_id = 'x' WHERE rowid = 2")
    change, _ = plan_of(path, v2.BODY_ID)
    run_sql(path, "UPDATE search_text SET search_text_id = 'y' WHERE rowid = 3")
    before = tables(path)
    with fails("PlanOutdated", match="the rows to repair are no longer those of the plan"):
        written(path, change)
    assert tables(path) == before
    run_sql(path, "DELETE FROM search_unit WHERE rowid = 2")
    units, others = index.plan_lost_units(path.parents[2], f"{BASE}/.cherry/index.sqlite", BASE)
    assert (done_of(units), others) == ([("write-units", 1, v2.BODY_ORPHAN, 0)], 0)
    run_sql(path, "DELETE FROM search_unit WHERE rowid = 3")
    before = tables(path)
    with fails("PlanOutdated", match="the units to restore are no longer those of the plan"):
        written(path, units)
    assert tables(path) == before


def test_a_row_that_breaks_another_rule_of_the_layout_does_not_stop_a_repair(path: Path) -> None:
    run_sql(
        path,
        "PRAGMA ignore_check_constraints = ON",
        "UPDATE search_unit SET char_end = -5, unit_index = 7 WHERE rowid = 3",
    )
    change, _ = plan_of(path, v2.UNIT_GAP)
    assert done_of(change)[0] == ("number-units", 1, v2.UNIT_GAP, 0)
    with closing(apsw.Connection(str(path))) as db:
        with db:
            change.apply(db)
        assert db.execute("SELECT unit_index, char_end FROM search_unit WHERE rowid = 3").fetchall() == [(2, -5)]
        # Later writes are checked again.
        with pytest.raises(apsw.ConstraintError, match="CHECK"):
            db.execute("UPDATE search_unit SET char_end = -6 WHERE rowid = 3")


# --- contents --------------------------------------------------------------------------------------------------------


def test_a_text_whose_units_do_not_give_it_back_gets_its_true_hash(path: Path) -> None:
    run_sql(path, f"UPDATE content SET text = replace(text, 'harbour', 'Harbour') WHERE content_hash = {CONTENT_A}")
    assert mended(path) == {"rekey-contents": 1, "rekey-units": 3, "rekey-bodies": 3}
    assert names(path) == set()
    assert ask(path, "SELECT count(*) FROM embedding") == 4


def test_a_text_is_restored_from_its_bodies_though_their_offsets_are_lost(tmp_path: Path) -> None:
    """A text without a heading is its bodies, with a blank line between them; the hash proves it."""
    path, text = place_of(tmp_path), "\n\n".join(BODIES)
    with IndexStore(path, BASE, create=True) as store:
        starts = [wide(text[: text.index(body)]) for body in BODIES]
        units = [(start, start + wide(body)) for start, body in zip(starts, BODIES, strict=True)]
        vectors = {identity.text_hash(body): vector(1, 2, 3, number) for number, body in enumerate(BODIES)}
        store.rebuild_material("a", "a", text, units, vectors, NOW_MS)
    before = files.fingerprint(path)
    run_sql(path, "UPDATE content SET text = 'lost'", "UPDATE search_unit SET char_start = 0, char_end = 1")
    assert mended(path)["restore-contents"] == 1
    assert ask(path, "SELECT text FROM content") == text
    assert names(path) == set()
    assert files.fingerprint(path) == before


def test_bodies_without_a_vector_are_no_problem_in_a_base_without_a_model(tmp_path: Path) -> None:
    """No vector is missing there: ``repair`` names none as left."""
    path = place_of(tmp_path)
    with IndexStore(path, BASE, create=True) as store:
        store.rebuild_material("a", "a", BODIES[0], [(0, wide(BODIES[0]))], {}, NOW_MS, has_model=False)
    run_sql(path, "UPDATE search_text SET embedding_text_hash = 'x'")
    done = repair(path, "--dry-run")
    assert [one["action"] for one in done["actions"]] == ["rehash-bodies"]
    assert done["left"] == []
    # With a vector in the file it has a model, and the body lacks one.
    run_sql(path, f"INSERT INTO embedding VALUES ('{identity.text_hash('other')}', zeroblob(16), 0)")
    assert {one["finding"]: one["count"] for one in repair(path, "--dry-run")["left"]} == {"embedding.missing": 1}


def test_bodies_are_laid_over_a_damaged_text(path: Path) -> None:
    """A character too many shifts all that follows; the places of the units bring it back."""
    run_sql(path, f"UPDATE content SET text = replace(text, 'Fog bell', 'Fg bell') WHERE content_hash = {CONTENT_A}")
    assert mended(path) == {"restore-contents": 1}
    run_sql(path, f"UPDATE content SET text = '?' || text WHERE content_hash <> {CONTENT_A}")
    assert mended(path) == {"rekey-contents": 1, "rekey-units": 2, "rekey-bodies": 2}
    run_sql(path, f"UPDATE content SET text = '?' || text WHERE content_hash = {CONTENT_A}")
    assert mended(path)["place-units"] > 0
    assert names(path) == set()


def test_a_unit_that_lost_text_body_and_material_is_left(path: Path) -> None:
    run_sql(
        path,
        f"DELETE FROM search_text WHERE target_id = {UNIT}",
        f"UPDATE content SET text = 'another' WHERE content_hash = {CONTENT_A}",
        f"UPDATE search_unit SET material_id = 'gone' WHERE {LAST_OF_A}",
    )
    repair(path)
    assert {"unit.id", "unit.no-body"} <= set(left(path))
    assert repair(path)["actions"] == []


def test_a_damaged_hash_is_found_again(path: Path) -> None:
    run_sql(path, f"UPDATE content SET content_hash = 'lost' WHERE content_hash = {CONTENT_A}")
    assert mended(path) == {"rekey-contents": 1}
    assert names(path) == set()


def test_two_texts_that_changed_places(path: Path) -> None:
    run_sql(
        path,
        "CREATE TABLE kept AS SELECT rowid AS number, text FROM content",
        "UPDATE content SET text = (SELECT text FROM kept WHERE number <> content.rowid)",
        "DROP TABLE kept",
    )
    assert mended(path) == {"restore-contents": 2}
    assert names(path) == set()


def test_bytes_that_nothing_gives_back_stay(path: Path) -> None:
    run_sql(path, f"UPDATE content SET text = x'ff' WHERE content_hash = {CONTENT_A}")
    assert mended(path) == {}
    assert "is not text" in left(path)["content.hash"]
    assert run("repair", path).status == 1


def test_units_that_do_not_agree_on_a_text(path: Path) -> None:
    run_sql(
        path,
        "UPDATE material SET current_content_hash = NULL WHERE material_id = 'a'",
        "UPDATE search_unit SET content_hash = (SELECT current_content_hash FROM material WHERE material_id = 'b')"
        f" WHERE {LAST_OF_A}",
    )
    assert "link-contents" not in mended(path)
    assert "refer to different texts" in left(path)["material.no-content"]


# --- units ---------------------------------------------------------------------------------------------------------


def test_places_that_count_characters(path: Path) -> None:
    run_sql(path, f"UPDATE search_unit SET char_start = char_start - 2, char_end = char_end - 2 WHERE {LAST_OF_A}")
    assert mended(path) == {"place-units": 1}
    assert names(path) == set()


def test_a_body_that_is_there_twice_has_no_sure_place(tmp_path: Path) -> None:
    path = place_of(tmp_path)
    with IndexStore(path, BASE, create=True) as store:
        put(store, "a", "x", ["same", "same"])
    run_sql(path, "UPDATE search_unit SET char_start = 0, char_end = 1 WHERE unit_index = 0")
    assert "place-units" not in mended(path)
    assert "more than once" in left(path)["unit.offsets"]


def test_units_after_one_that_is_gone_are_numbered_anew(path: Path) -> None:
    run_sql(
        path,
        "DELETE FROM search_text WHERE target_id = (SELECT unit_id FROM search_unit WHERE unit_index = 0 AND"
        " material_id = 'a')",
        "DELETE FROM search_unit WHERE unit_index = 0 AND material_id = 'a'",
    )
    assert mended(path) == {"number-units": 2, "rekey-units": 2, "rekey-bodies": 2}
    assert names(path) == set()


def test_numbers_that_changed_places_follow_the_text(path: Path) -> None:
    run_sql(
        path,
        f"UPDATE search_unit SET unit_index = 9 WHERE {LAST_OF_A}",
        "UPDATE search_unit SET unit_index = 12 WHERE material_id = 'a' AND unit_index = 0",
    )
    assert mended(path) == {"number-units": 2}
    assert names(path) == set()


def test_units_are_not_numbered_anew_while_bodies_prove_those_in_between(path: Path) -> None:
    """A body proves the number that its unit had, and no other; another damage must not cost that proof."""
    before = files.fingerprint(path)
    run_sql(
        path,
        "DELETE FROM search_unit WHERE material_id = 'a' AND unit_index < 2",
        "UPDATE search_text SET target_id = 'x' WHERE text = 'Only here.'",
    )
    first = repair(path)
    assert [one["action"] for one in first["actions"]] == ["link-bodies", "rekey-bodies"]
    assert {one["finding"]: one["reason"] for one in first["left"]} == {
        "unit.gap": "bodies prove units that are missing in between: first run regraft repair --only body.orphan",
        "body.orphan": "2 bodies whose unit is missing",
    }
    assert ask(path, "SELECT unit_index FROM search_unit WHERE material_id = 'a'") == 2
    assert [(one["action"], one["count"]) for one in repair(path)["actions"]] == [("write-units", 2)]
    assert names(path) == set()
    assert files.fingerprint(path) == before


def test_a_material_that_waits_for_lost_units_is_left_once(path: Path) -> None:
    """Its units could not be numbered either, but the bodies come first."""
    run_sql(
        path,
        "DELETE FROM search_unit WHERE material_id = 'a' AND unit_index = 0",
        "UPDATE search_unit SET unit_index = 'x', char_start = 'y', char_end = 'z'"
        " WHERE material_id = 'a' AND unit_index = 2",
        "UPDATE search_text SET text = 'from nowhere' WHERE text = (SELECT text FROM search_text WHERE target_id = "
        "(SELECT unit_id FROM search_unit WHERE unit_index = 'x'))",
    )
    left = [one for one in repair(path)["left"] if one["finding"] == "unit.gap"]
    assert [(one["reason"].partition(":")[0], one["count"]) for one in left] == [
        ("bodies prove units that are missing in between", 1)
    ]


def test_units_that_bodies_prove_at_the_end_do_not_keep_others_from_being_numbered(path: Path) -> None:
    """They leave no gap in their material, and a material with a gap need not lack a unit that a body proves."""
    run_sql(
        path,
        f"DELETE FROM search_unit WHERE {LAST_OF_A}",
        "UPDATE search_unit SET unit_index = 5 WHERE material_id = 'b' AND unit_index = 1",
        "DELETE FROM search_text WHERE target_id = (SELECT unit_id FROM search_unit WHERE material_id = 'a'"
        " AND unit_index = 0)",
    )
    done = repair(path)
    assert [(one["action"], one["count"]) for one in done["actions"]] == [
        ("number-units", 1),
        ("write-bodies", 1),
        ("rebuild-full-text", 1),
    ]
    assert [(one["finding"], one["count"]) for one in done["left"]] == [("body.orphan", 1)]
    assert ask(path, "SELECT unit_index FROM search_unit WHERE rowid = 5") == 1
    assert [(one["action"], one["count"]) for one in repair(path)["actions"]] == [("write-units", 1)]
    assert names(path) == set()


def test_a_body_of_no_unit_is_said_though_nothing_is_repaired(path: Path) -> None:
    run_sql(path, f"UPDATE search_unit SET material_id = 'gone', unit_id = 'u' WHERE {LAST_OF_A}")
    before = files.fingerprint(path)
    done = repair(path)
    assert (done["actions"], done["undo"]) == ([], None)
    reasons = {one["finding"]: one["reason"] for one in done["left"]}
    assert reasons.keys() >= {"body.orphan", "unit.id", "unit.no-body"}
    assert reasons["body.orphan"] == (
        "1 body whose unit is missing. To fix it: `regraft repair --only body.orphan` restores the unit if the ids"
        " prove what it was; otherwise `regraft gc` removes the body."
    )
    assert files.fingerprint(path) == before


def test_a_damaged_text_does_not_keep_lost_units_of_another_from_being_written(path: Path) -> None:
    run_sql(
        path,
        f"UPDATE content SET text = x'ff' WHERE content_hash <> {CONTENT_A}",
        "DELETE FROM search_unit WHERE material_id = 'a' AND unit_index = 1",
    )
    assert [(one["action"], one["count"]) for one in repair(path)["actions"]] == [("write-units", 1)]
    repair(path)
    assert names(path) == {"content.hash"}


def test_units_of_a_text_that_is_gone_are_numbered(path: Path) -> None:
    """What they name is not there, before and after."""
    run_sql(
        path,
        f"DELETE FROM content WHERE content_hash = {CONTENT_A}",
        f"UPDATE search_unit SET unit_index = 9 WHERE {LAST_OF_A}",
    )
    assert mended(path) == {"number-units": 1}
    assert "unit.gap" not in names(path)


def test_a_right_number_proves_text_and_body(tmp_path: Path) -> None:
    path = place_of(tmp_path)
    with IndexStore(path, BASE, create=True) as store:
        vectors = {identity.text_hash(body): vector(1, 2, 3, 4) for body in ("one", "two")}
        store.rebuild_material("a", "a", "onetwo", [(0, 3), (3, 6)], vectors, NOW_MS)
    run_sql(
        path,
        "UPDATE content SET text = x'ff'",
        "UPDATE search_unit SET unit_index = 9, unit_id = 'x' WHERE unit_index = 0",
    )
    assert mended(path) == {"restore-contents": 1, "number-units": 1, "link-bodies": 1, "rekey-units": 1}
    assert names(path) == set()


def test_the_id_of_a_unit_that_may_still_tell_its_material_stays(path: Path) -> None:
    run_sql(path, f"UPDATE search_unit SET material_id = 'gone' WHERE {LAST_OF_A}")
    before = ask(path, "SELECT unit_id FROM search_unit WHERE material_id = 'gone'")
    assert "may show which it was" in left(path)["unit.id"]
    repair(path)
    assert ask(path, "SELECT unit_id FROM search_unit WHERE material_id = 'gone'") == before


# --- bodies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        f"UPDATE search_text SET target_id = 'x' WHERE target_id = {UNIT}",
        f"UPDATE search_text SET kind = 'title' WHERE target_id = {UNIT}",
        f"UPDATE search_unit SET unit_id = 'x' WHERE {LAST_OF_A}",
    ],
)
def test_a_body_that_lost_its_unit_finds_it(damage: str, path: Path) -> None:
    run_sql(path, damage)
    assert "link-bodies" in mended(path)
    assert names(path) == set()


def test_a_body_that_finds_its_unit_shows_its_place(path: Path) -> None:
    run_sql(
        path,
        f"UPDATE search_text SET target_id = 'x' WHERE target_id = {UNIT}",
        f"UPDATE search_unit SET char_end = 'end' WHERE {LAST_OF_A}",
    )
    assert mended(path) == {"link-bodies": 1, "place-units": 1, "rekey-bodies": 1}
    assert names(path) == set()


def test_a_lost_body_comes_from_the_text(path: Path) -> None:
    run_sql(path, f"DELETE FROM search_text WHERE target_id = {UNIT}")
    assert mended(path) == {"write-bodies": 1, "rebuild-full-text": 1}
    assert names(path) == set()


def test_a_lost_body_of_a_unit_whose_id_does_not_follow_stays_lost(path: Path) -> None:
    run_sql(
        path,
        f"DELETE FROM search_text WHERE target_id = {UNIT}",
        f"UPDATE search_unit SET char_end = char_end - 1 WHERE {LAST_OF_A}",
    )
    assert "write-bodies" not in mended(path)
    assert "does not prove" in left(path)["unit.no-body"]


def test_a_damaged_hash_of_a_body_brings_its_vector_back(path: Path) -> None:
    run_sql(path, f"UPDATE search_text SET embedding_text_hash = 'x' WHERE target_id = {UNIT}")
    assert mended(path) == {"rehash-bodies": 1}
    assert names(path) == set()


def test_a_body_of_another_text_waits_for_its_vector(path: Path) -> None:
    content = f"UPDATE content SET text = replace(text, 'Only', 'Alone') WHERE content_hash <> {CONTENT_A}"
    run_sql(path, content, "UPDATE search_text SET text = 'Alone here.' WHERE text = 'Only here.'")
    done = repair(path)
    assert {action["action"] for action in done["actions"]} >= {"rekey-contents", "rehash-bodies"}
    about = {one["finding"]: one["count"] for one in done["left"]}
    assert (about["embedding.missing"], about["embedding.orphan"]) == (1, 1)
    assert names(path) == {"embedding.missing", "embedding.orphan"}


# --- vectors -------------------------------------------------------------------------------------------------------


def test_of_two_lengths_neither_is_dropped(path: Path) -> None:
    run_sql(path, "UPDATE embedding SET vector_blob = substr(vector_blob, 1, 8) WHERE rowid <= 2")
    assert "embedding.length" not in mended(path)
    assert "is unknown" in left(path)["embedding.length"]
    assert ask(path, "SELECT count(*) FROM embedding WHERE length(vector_blob) = 8") == 2


def test_the_identity_of_a_file_in_no_folder_is_not_known(path: Path, tmp_path: Path) -> None:
    alone = tmp_path / "index.sqlite"
    alone.write_bytes(path.read_bytes())
    run_sql(alone, "DELETE FROM meta")
    assert mended(alone) == {}
    assert "not in the folder of a base" in left(alone)["meta.missing"]


def test_a_large_mend_is_made_on_a_copy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changesets, "LARGEST_CHANGESET", 1)
    run_sql(path, "UPDATE search_text SET text = 'x' WHERE rowid = 1", "UPDATE search_unit SET unit_id = 'y' || rowid")
    assert "restore-bodies" in mended(path)
    assert names(path) == set()


# --- all together --------------------------------------------------------------------------------------------------

#: Damage to one row, which is chosen by its number.
DAMAGES: dict[str, str] = {
    "no identity": "DELETE FROM meta",
    "text": "UPDATE content SET text = text || '!' WHERE {}",
    "another text": "UPDATE content SET text = 'another' || rowid WHERE {}",
    "hash of a text": "UPDATE OR IGNORE content SET content_hash = 'x' || rowid WHERE {}",
    "bytes": "UPDATE content SET text = x'ff' WHERE {}",
    "no text": "UPDATE material SET current_content_hash = NULL WHERE {}",
    "path": "UPDATE OR IGNORE material SET relative_path = '../' || material_id WHERE {}",
    "place": "UPDATE search_unit SET char_start = char_start + 1 WHERE {}",
    "end": "UPDATE search_unit SET char_end = 'end' WHERE {}",
    "number": "UPDATE search_unit SET unit_index = unit_index + 70 WHERE {}",
    "unit id": "UPDATE search_unit SET unit_id = 'u' || rowid WHERE {}",
    "unit": "DELETE FROM search_unit WHERE {}",
    "material": "UPDATE search_unit SET material_id = 'gone' || rowid WHERE {}",
    "body": "DELETE FROM search_text WHERE {}",
    "body id": "UPDATE search_text SET search_text_id = 'b' || rowid WHERE {}",
    "target": "UPDATE search_text SET target_id = 't' || rowid WHERE {}",
    "body text": "UPDATE search_text SET text = 'another ' || rowid WHERE {}",
    "body bytes": "UPDATE search_text SET text = x'ff00' WHERE {}",
    "body hash": "UPDATE search_text SET embedding_text_hash = 'h' || rowid WHERE {}",
    "entry": "UPDATE search_text SET fts_rowid = NULL WHERE {}",
    "entries": "DELETE FROM search_text_fts_docsize WHERE {}",
    "vector": "UPDATE embedding SET vector_blob = zeroblob(16) WHERE {}",
    "half a vector": "UPDATE embedding SET vector_blob = x'0102' WHERE {}",
    "no vector": "DELETE FROM embedding WHERE {}",
}
_TABLES = ("content", "material", "search_unit", "search_text_fts_docsize", "search_text", "embedding", "meta")


def plant(path: Path, name: str, row: int) -> None:
    sql = DAMAGES[name]
    table = next(table for table in _TABLES if f" {table} " in f"{sql} ")
    key = "id" if table.endswith("docsize") else "rowid"
    chosen = f"{key} = (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1 OFFSET {row} % (SELECT count(*) FROM {table}))"
    if ask(path, f"SELECT count(*) FROM {table}"):
        run_sql(path, sql.format(chosen))


def right_vectors(path: Path) -> dict[str, bytes]:
    """Return the vectors of all bodies whose hash is that of their text."""
    with closing(apsw.Connection(str(path))) as db:
        found = db.execute(
            "SELECT CAST(t.text AS BLOB), t.embedding_text_hash, e.vector_blob FROM search_text t"
            " JOIN embedding e USING (embedding_text_hash) WHERE typeof(t.text) = 'text'"
        )
        return {key: blob for text, key, blob in found if identity.text_hash(text.decode()) == key}


def could_be_right(blob: bytes) -> bool:
    return len(blob) == 4 * DIMENSIONS and any(blob)


def waits_for_units(left: dict[str, Any]) -> bool:
    """Whether bodies without a unit may prove one: other repairs do not write it, ``--only body.orphan`` does."""
    return left["finding"] == "body.orphan" or "units are written again first" in left["reason"]


SOUND = materials(DIMENSIONS)
damages = st.lists(st.tuples(st.sampled_from(sorted(DAMAGES)), st.integers(0, 9)), min_size=1, max_size=6)


@given(st.lists(SOUND, min_size=1, max_size=4), damages)
@settings(max_examples=examples(40), phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_damage_in_any_combination(given_materials: list[MaterialInput], planted: list[tuple[str, int]]) -> None:
    """What can be mended is gone afterwards or said; vectors of right texts stay; undo brings everything back."""
    with tempfile.TemporaryDirectory() as folder:
        path = place_of(Path(folder))
        with IndexStore(path, BASE, create=True) as store:
            for number, one in enumerate(given_materials):
                vectors = {key: vector(1, len(key), number, 2) for key in one.embeddings}
                store.rebuild_material(f"m{number}", f"m{number}", one.content, one.units, vectors, NOW_MS)
        for name, row in planted:
            plant(path, name, row)
        before, mark = right_vectors(path), files.fingerprint(path)
        planned = repair(path, "--dry-run")
        done = repair(path)
        assert done["actions"] == planned["actions"]
        said = {one["finding"] for one in done["left"]}
        assert names(path).intersection(planner.NAMES) <= said
        after = right_vectors(path)
        assert {key: blob for key, blob in before.items() if could_be_right(blob)}.items() <= after.items()
        undos = 0 if done["undo"] is None else 1
        # Units that have to be written again first are written by a run that asks for them; then the rest is done.
        for more in (("--only", "body.orphan"), ()) if any(map(waits_for_units, done["left"])) else ():
            undos += repair(path, *more)["undo"] is not None
        assert repair(path)["actions"] == []
        for _ in range(undos):
            assert run("undo", path, "-q").status == 0
        assert files.fingerprint(path) == mark
