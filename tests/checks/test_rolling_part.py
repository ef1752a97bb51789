"""One run of a rolling check on rows of the tests' own: what it reads and records, and whose state it takes."""

from __future__ import annotations

import errno
import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness import snapshot

from checks.audit.rolling import PartReport, RollingPart, has_header, open_part
from regraft.disk import durable, sqlite
from regraft.errors import CheckStateLocked, CheckStateNotWritable, CheckStateUnusable

ALL = 1 << 62
CHANGED = "what it records about the progress of the check was changed by something other than regraft"
#: Key, vector and time of each row.
Row = tuple[bytes, bytes, bytes]
ROWS = [(b"key %d" % number, b"vector %d" % number, b"1") for number in range(12)]


def name_of(key: bytes, table: str = "embedding") -> bytes:
    return hashlib.blake2b(key, digest_size=16, person=table.encode()).digest()


def position(key: bytes) -> int:
    """Return the position of a row (``docs/rolling-check.md``): 62 bits of the hash of its table and key."""
    return int.from_bytes(name_of(key)[:8], "big") // 4


def digest(vector: bytes) -> bytes:
    return hashlib.blake2b(vector, digest_size=16).digest()


def own_state(store: Path) -> Path:
    return store / ".regraft" / "check.sqlite"


def query(path: Path, sql: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(sql, values).fetchall()


def read_rows(
    part: RollingPart,
    rows: Sequence[Row],
    base: str,
    model: str | None = "m",
    made: str | None = "1",
    *,
    is_dropped: bool = False,
) -> tuple[list[bytes], list[bytes]]:
    """Let a run read rows of a base; return the keys of those that it chose, and of those that have changed."""
    with part.open_base(base, model) as (kept, drop):
        kept.set_creation_time(made)
        with kept.choose("embedding", ((number, row[0]) for number, row in enumerate(rows))) as chosen:
            read = list(chosen)
            changed = list(kept.find_changed((number, digest(rows[number][1]), rows[number][2]) for number in read))
        if is_dropped:
            drop()
    return [rows[number][0] for number in read], [rows[number][0] for number in changed]


def run_part(
    store: Path,
    size: str,
    rows: Sequence[Row] = ROWS,
    *,
    base: str = "b",
    now: int = 1000,
    names: Sequence[str] = ("b",),
    **more: Any,
) -> tuple[PartReport, list[bytes], list[bytes]]:
    with open_part(store, own_state(store), None, Fraction(size), now) as part:
        read, changed = read_rows(part, rows, base, **more)
        return part.finish(names), read, changed


def counts(report: PartReport) -> tuple[int, ...]:
    return report.rows, report.read, report.covered, report.recorded, report.rewritten, report.changed


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


# --- which rows ------------------------------------------------------------------------------------------------------


def test_each_run_reads_the_rows_of_its_range(place: Path) -> None:
    begin = 0
    for number in range(1, 4):
        end = min(begin + -(-ALL // 3), ALL)
        expected = [key for key, *_ in ROWS if begin <= position(key) < end]
        covered = sum(position(key) < end for key, *_ in ROWS)
        report, read, changed = run_part(place, "1/3", now=1000 * number)
        assert (read, changed) == (expected, [])
        assert report == PartReport(
            state=str(own_state(place)),
            cycle=1,
            number=number,
            parts=3,
            rows=12,
            read=len(expected),
            covered=covered,
            coverage=round(covered / 12, 4),
            recorded=len(expected),
            rewritten=0,
            changed=0,
            is_complete=number == 3,
            cycle_started_at="1970-01-01T00:00:01.000Z",
            last_complete_at="1970-01-01T00:00:03.000Z" if number == 3 else None,
        )
        begin = end
    report, read, _ = run_part(place, "1/3", now=4000)
    assert (report.cycle, report.number, report.parts, report.recorded) == (2, 1, 3, 0)
    assert (report.cycle_started_at, report.last_complete_at) == (
        "1970-01-01T00:00:04.000Z",
        "1970-01-01T00:00:03.000Z",
    )
    assert read == [key for key, *_ in ROWS if position(key) < -(-ALL // 3)]


def test_what_is_recorded_of_a_row(place: Path) -> None:
    run_part(place, "1")
    ((version, store, cycle, end, parts, started, completed, check),) = query(own_state(place), "SELECT * FROM rolling")
    header = (version, store, cycle, end, parts, started, completed)
    assert header == (1, str(place), 1, ALL, 1, 1000, 1000)
    assert check == hashlib.blake2b(repr(header).encode(), digest_size=16).digest()
    assert query(own_state(place), "SELECT number, name, model, made FROM base") == [(1, "b", "m", "1")]
    entries = {name: (base, cycle, data) for base, name, cycle, data in query(own_state(place), "SELECT * FROM entry")}
    expected = {}
    for key, vector, time in ROWS:
        data = digest(vector) + hashlib.blake2b(time, digest_size=4).digest()
        check = hashlib.blake2b(b"1 " + name_of(key) + data, digest_size=4).digest()
        expected[name_of(key)] = (1, 1, data + check)
    assert entries == expected


def test_a_range_begins_at_its_first_row_and_ends_before_its_last(place: Path) -> None:
    first, *_, last = sorted((row[0] for row in ROWS), key=position)
    with open_part(place, own_state(place), None, Fraction(1), 1000) as part:
        part.start, part.end = position(first), position(last)
        # It has read them, and reads them again from its start on.
        for _ in range(2):
            read, _ = read_rows(part, ROWS, "b")
            assert set(read) == {key for key, *_ in ROWS} - {last}
        part.start = position(first) + 1
        assert first not in read_rows(part, ROWS, "b")[0]


def test_rows_are_chosen_in_pages(place: Path) -> None:
    many = [(b"%d" % number, b"v", b"1") for number in range(1100)]
    report, read, _ = run_part(place, "1", many)
    assert read == [key for key, *_ in many]
    assert counts(report) == (1100, 1100, 1100, 1100, 0, 0)


def test_a_share_of_all_rows_has_four_digits(place: Path) -> None:
    report, read, _ = run_part(place, "1/2", ROWS[:7])
    assert 0 < len(read) < 7
    assert report.coverage == float(f"{len(read) / 7:.4f}")


def test_a_store_without_rows(place: Path) -> None:
    assert [run_part(place, "1/2", [])[0].coverage for _ in range(2)] == [0, 1]


# --- changed vectors -------------------------------------------------------------------------------------------------


def test_a_vector_that_changed_is_found_until_it_is_as_it_was(place: Path) -> None:
    run_part(place, "1")
    flipped = [(ROWS[0][0], b"other", b"1"), (ROWS[1][0], b"other", b"2"), *ROWS[2:]]
    report, _, changed = run_part(place, "1", flipped)
    assert (counts(report), changed) == ((12, 12, 12, 0, 1, 1), [ROWS[0][0]])
    # The recorded digest of the first stays, and that of the second is the new one.
    report, _, changed = run_part(place, "1", flipped)
    assert (counts(report), changed) == ((12, 12, 12, 0, 0, 1), [ROWS[0][0]])
    report, _, changed = run_part(place, "1")
    assert (counts(report), changed) == ((12, 12, 12, 0, 1, 0), [])
    assert counts(run_part(place, "1", [(key, vector, b"9") for key, vector, _ in ROWS])[0]) == (12, 12, 12, 0, 0, 0)


def test_rows_of_one_key_are_not_compared(place: Path) -> None:
    run_part(place, "1")
    twice = [*ROWS, (ROWS[0][0], b"another", b"1")]
    report, _, changed = run_part(place, "1", twice)
    assert (counts(report), changed) == ((13, 13, 13, 0, 0, 0), [])


def test_a_damaged_entry_is_not_taken_for_a_damaged_vector(place: Path) -> None:
    run_part(place, "1")
    [(data,)] = query(own_state(place), "SELECT data FROM entry WHERE id = ?", name_of(ROWS[3][0]))
    query(own_state(place), "UPDATE entry SET data = ? WHERE id = ?", bytes(16) + data[16:], name_of(ROWS[3][0]))
    before = snapshot(place)
    with pytest.raises(CheckStateUnusable, match=r"an entry is damaged\); delete it to begin again"):
        run_part(place, "1")
    assert snapshot(place) == before


@pytest.mark.parametrize(
    ("more", "recorded"),
    [
        ({}, 0),
        ({"model": "other"}, 12),
        ({"made": "2"}, 12),
        ({"model": None, "made": None}, 0),
        ({"model": ""}, 12),
    ],
)
def test_digests_of_another_model_or_index_are_forgotten(place: Path, more: dict[str, Any], recorded: int) -> None:
    run_part(place, "1", model=None, made=None)
    # What becomes known is no other one.
    assert run_part(place, "1")[0].recorded == 0
    flipped = [(key, b"other", time) for key, _, time in ROWS]
    report, _, changed = run_part(place, "1", flipped, **more)
    assert (report.recorded, len(changed)) == (recorded, 12 - recorded)
    [(model, made)] = query(own_state(place), "SELECT model, made FROM base")
    assert (model, made) == tuple(
        "m1"[at] if more.get(key) is None else more[key] for at, key in enumerate(("model", "made"))
    )


def test_another_base_keeps_its_digests(place: Path) -> None:
    run_part(place, "1")
    run_part(place, "1", base="c", names=("b", "c"))
    assert run_part(place, "1", base="c", names=("b", "c"), model="other")[0].recorded == 12
    assert run_part(place, "1", names=("b", "c"))[0].recorded == 0


def test_what_is_recorded_of_a_base_can_be_dropped(place: Path) -> None:
    with open_part(place, own_state(place), None, Fraction(1), 1000) as part:
        read_rows(part, ROWS[:3], "a")
        read_rows(part, ROWS, "b", is_dropped=True)
        report = part.finish(("a", "b"))
    assert (report.read, report.covered, report.recorded) == (3, 3, 3)
    assert query(own_state(place), "SELECT name, count(*) FROM base JOIN entry ON base = number GROUP BY 1") == [
        ("a", 3)
    ]
    # The next cycle does not read it either, and forgets none of its entries.
    run_part(place, "1", names=("a", "b"))
    with open_part(place, own_state(place), None, Fraction(1), 1000) as part:
        read_rows(part, [(ROWS[0][0], b"other", b"1")], "b", is_dropped=True)
        assert part.finish(("a", "b")).changed == 0
    assert query(own_state(place), "SELECT name, count(*) FROM base JOIN entry ON base = number GROUP BY 1") == [
        ("a", 3),
        ("b", 12),
    ]


def test_a_complete_cycle_forgets_rows_and_bases_that_are_gone(place: Path) -> None:
    run_part(place, "1")
    run_part(place, "1", base="c", names=("b", "c"))
    kept = "SELECT name, count(id) FROM base LEFT JOIN entry ON base = number GROUP BY 1"
    run_part(place, "1/2", ROWS[:5], base="c", names=("c",))
    assert query(own_state(place), kept) == [("b", 12), ("c", 12)]
    run_part(place, "1/2", ROWS[:5], base="c", names=("c",))
    assert query(own_state(place), kept) == [("c", 5)]
    assert query(own_state(place), "SELECT count(*) FROM entry") == [(5,)]


# --- the file --------------------------------------------------------------------------------------------------------


def test_two_runs_of_one_process_exclude_each_other(place: Path) -> None:
    with open_part(place, own_state(place), None, Fraction(1), 1000) as part:
        with pytest.raises(CheckStateLocked) as refused, open_part(place, own_state(place), None, Fraction(1), 1000):
            pass
        assert str(own_state(place)) in str(refused.value)
        read_rows(part, ROWS, "b")
        part.finish(("b",))
    assert counts(run_part(place, "1")[0]) == (12, 12, 12, 0, 0, 0)


def test_a_run_that_fails_leaves_the_state_as_it_was(place: Path) -> None:
    before = snapshot(place)
    for number in range(2):
        with (
            pytest.raises(ValueError, match="stop"),
            open_part(place, own_state(place), None, Fraction(1), 1000) as part,
        ):
            read_rows(part, ROWS, "b")
            part.finish(("b",))
            raise ValueError("stop")
        if number == 0:
            assert {name: one[2] for name, one in snapshot(place).items()} == {
                name: one[2] for name, one in before.items()
            }
            run_part(place, "1/2", ROWS[:2])
            before = snapshot(place)
    assert {name: one[2] for name, one in snapshot(place).items()} == {name: one[2] for name, one in before.items()}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (apsw.FullError("database or disk is full"), "database or disk is full"),
        (OSError(errno.EIO, "Input/output error"), None),
        (apsw.IOError("disk I/O error"), None),
    ],
)
def test_only_errors_of_writing_are_those_of_the_state(place: Path, error: Exception, reason: str | None) -> None:
    if isinstance(error, apsw.FullError):
        error.extendedresult = apsw.SQLITE_FULL
    with (
        pytest.raises(CheckStateNotWritable if reason else type(error)) as raised,
        open_part(place, own_state(place), None, Fraction(1), 1000),
    ):
        raise error
    if reason is None:
        assert raised.value is error
    else:
        assert f"cannot be written ({reason});" in str(raised.value)


def test_a_folder_that_cannot_be_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(durable, "make_folders", refuse)
    with pytest.raises(CheckStateNotWritable, match=r"cannot be written \(Permission denied\)"):
        run_part(place, "1")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("fails", ["opening", "as it is read-only"])
def test_a_file_that_cannot_be_written_leaves_no_folder(
    place: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def open_readonly(path: Path, *, create: bool) -> Iterator[apsw.Connection]:
        assert create
        if fails == "opening":
            raise apsw.CantOpenError("unable to open database file")
        path.touch()
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            yield db

    monkeypatch.setattr(sqlite, "open_writable", open_readonly)
    reason = "unable to open database file" if fails == "opening" else "it is read-only"
    with pytest.raises(CheckStateNotWritable, match=rf"cannot be written \({reason}\)"):
        run_part(place, "1")
    assert list(place.iterdir()) == []


def test_a_state_that_another_connection_holds(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_part(place, "1")
    before = own_state(place).read_bytes()
    opened = sqlite.open_writable

    @contextmanager
    def open_held(path: Path, *, create: bool) -> Iterator[apsw.Connection]:
        with closing(apsw.Connection(str(path))) as other, opened(path, create=create) as db:
            other.execute("BEGIN IMMEDIATE")
            yield db

    monkeypatch.setattr(sqlite, "open_writable", open_held)
    with pytest.raises(CheckStateLocked):
        run_part(place, "1")
    assert own_state(place).read_bytes() == before


def database(path: Path, *statements: str) -> bytes:
    query(path, "PRAGMA page_size = 512")
    for statement in statements:
        query(path, statement)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("statements", "is_taken"),
    [
        # As a run leaves one that was killed before it recorded anything.
        (("CREATE TABLE t (x)", "DROP TABLE t", "VACUUM"), True),
        # This one has pages, in which something was.
        (("CREATE TABLE t (x)", "INSERT INTO t VALUES (zeroblob(3000))", "DROP TABLE t"), False),
        (("CREATE TABLE t (x)",), False),
        (("CREATE TABLE t (x)", "PRAGMA journal_mode = WAL", "DROP TABLE t", "VACUUM"), False),
    ],
)
def test_an_empty_database_is_taken_and_no_other(place: Path, statements: tuple[str, ...], *, is_taken: bool) -> None:
    state = place.parent / "state"
    before = database(state, *statements)
    assert has_header(state) == (before[18:20] == b"\1\1")
    if is_taken:
        with open_part(place, own_state(place), state, Fraction(1), 1000) as part:
            part.finish(())
        assert query(state, "SELECT store FROM rolling") == [(str(place),)]
    else:
        with pytest.raises(CheckStateUnusable, match=r"it is not the state of a rolling check\); use another file"):
            open_part(place, own_state(place), state, Fraction(1), 1000).__enter__()
        assert state.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "beside", "is_one"),
    [
        (b"SQLite format 3\0\2\0\1\1" + bytes(80), None, True),
        (b"SQLite format 3\0\2\0\2\2" + bytes(80), None, False),
        (b"SQLite format 4\0\2\0\1\1" + bytes(80), None, False),
        (b"SQLite format 3\0\2\0\1", None, False),
        # The pages of a killed run may lie in any order: its journal restores them.
        (bytes(512), "-journal", True),
        (bytes(512), "-wal", False),
    ],
)
def test_how_a_state_begins(tmp_path: Path, content: bytes, beside: str | None, *, is_one: bool) -> None:
    path = tmp_path / "state"
    path.write_bytes(content)
    if beside:
        start = {"-journal": b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", "-wal": b"\x37\x7f\x06\x82"}[beside]
        path.with_name(f"state{beside}").write_bytes(start + bytes(504))
    assert has_header(path) is is_one


def test_a_damaged_file_with_the_header_of_a_state(place: Path) -> None:
    state = place.parent / "state"
    state.write_bytes(b"SQLite format 3\0\2\0\1\1" + b"x" * 1000)
    before = state.read_bytes()
    with pytest.raises(CheckStateUnusable, match="it is not the state of a rolling check"):
        open_part(place, own_state(place), state, Fraction(1), 1000).__enter__()
    assert state.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE rolling SET version = 2", r"it was written by a newer version of regraft\); use another file"),
        ("UPDATE rolling SET version = 0", CHANGED),
        ("UPDATE rolling SET parts = parts + 1", CHANGED),
        ("INSERT INTO rolling SELECT * FROM rolling", CHANGED),
        (
            "INSERT INTO rolling SELECT 2, store, cycle, position, parts, started_at, NULL, digest FROM rolling",
            CHANGED,
        ),
        ("UPDATE entry SET base = 7", "it is damaged: it has values of unexpected types"),
    ],
)
def test_a_state_that_regraft_did_not_write(place: Path, statement: str, reason: str) -> None:
    run_part(place, "1")
    query(own_state(place), statement)
    before = own_state(place).read_bytes()
    with pytest.raises(CheckStateUnusable, match=reason):
        run_part(place, "1")
    assert own_state(place).read_bytes() == before


def test_a_state_whose_index_does_not_fit_its_table(place: Path) -> None:
    run_part(place, "1", base="base-aaaa", names=("base-aaaa",))
    content = own_state(place).read_bytes()
    assert content.count(b"base-aaaa") == 2
    own_state(place).write_bytes(content.replace(b"base-aaaa", b"base-aaab", 1))
    with pytest.raises(CheckStateUnusable, match=r"it is damaged: .*\bindex\b.*delete it to begin again"):
        run_part(place, "1")


def test_whose_state_it_is(place: Path) -> None:
    state, other = place.parent / "state", place.parent / "other"
    with open_part(place, own_state(place), state, Fraction(1), 1000) as part:
        part.require_known_base(("x",))  # a new one is of any store
        read_rows(part, ROWS, "b")
        part.finish(("b",))
    other.mkdir()
    with pytest.raises(CheckStateUnusable, match=r"it belongs to .*store, not to .*other"):
        open_part(other, own_state(other), state, Fraction(1), 1000).__enter__()
    # It was moved: its bases say whether it is the same.
    place.rename(place.with_name("moved"))
    with open_part(other, own_state(other), state, Fraction(1), 1000) as part:
        part.require_known_base(("b", "c"))
        part.require_known_base(())
        with pytest.raises(CheckStateUnusable, match=r"it belongs to a store with other bases\); use another file"):
            part.require_known_base(("c",))
    # The state in a store moves with it.
    own_state(other).parent.mkdir()
    state.rename(own_state(other))
    assert run_part(other, "1")[0].cycle == 2
