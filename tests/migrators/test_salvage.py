"""Damaged v1 vector files: what proves itself comes along, nothing wrong does, and each row is accounted for."""

from __future__ import annotations

import errno
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import page_damages
import pytest
from harness import REPO, examples, run
from hypothesis import given, settings
from hypothesis import strategies as st
from page_damage import Layout, Made, make
from profiles import profile

from migrators.pipeline import losses
from regraft.formats.cherry_v1 import salvage
from regraft.formats.vector_survey import SalvageTally, StoreProblem, VectorSurvey
from regraft.identity import replace

#: So many bytes of a file are changed by one bit.
_FLIPS = 5
SAMPLE = REPO / "sample_v1" / "backup"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A vector file in all its pages, with long rows among short ones, and rows that were deleted."""
    return make(tmp_path_factory.mktemp("made") / "vectors", Layout(huge=(20, 90), deleted=(40, 41, 120)))


def _salvaged(path: Path, made: Made) -> tuple[dict[int, tuple[object, ...]], SalvageTally]:
    """Return the rows that came along, by number, and what was counted; none where it is no SQLite file at all."""
    known = {row[2] for row in (*made.rows.values(), *made.gone.values())}
    try:
        with salvage.salvage_file(path, path.parent, known=known, dimensions=made.layout.dimensions) as left:
            assert left.path is not None
            db = apsw.Connection(str(left.path), flags=apsw.SQLITE_OPEN_READONLY)
            rows = db.execute(
                "SELECT rowid, id, pageContent, uniqueLoaderId, source, vector, metadata, reason FROM vectors"
            )
            found = list(rows)
            db.close()
    except StoreProblem:
        return {}, SalvageTally(rows=0, about=0)
    assert len(found) == left.tally.rows + sum(left.tally.refused.values())
    return {int(str(number)): tuple(rest) for number, *rest, reason in found if reason is None}, left.tally


def _judged(path: Path, made: Made, raw: bytes) -> tuple[set[int], set[int], SalvageTally]:
    """Return which whole rows were missed, and which rows came along that the file never had."""
    path.write_bytes(raw)
    rows, tally = _salvaged(path, made)
    wrong = {number for number, row in rows.items() if row != made.rows.get(number)}
    return made.intact(raw) - rows.keys(), wrong, tally


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", page_damages.DAMAGES)
def test_whole_rows_come_along_and_no_others(made: Made, tmp_path: Path, name: str) -> None:
    raw, rng = bytearray(made.raw), random.Random(name)
    page_damages.DAMAGES[name](made, raw, rng)

    missed, wrong, tally = _judged(tmp_path / "vectors", made, bytes(raw))

    # A bit within a vector, or a long text, may flip so that nothing that is left tells.
    assert len(wrong) <= (_FLIPS if name == "single bytes" else 0)
    assert len(missed) <= len(made.rows) // 100
    assert tally.pages_read <= tally.pages


@pytest.mark.parametrize(
    "layout",
    [
        Layout(rows=60, page_size=512, dimensions=8),
        Layout(rows=60, page_size=1024, metadata="none"),
        Layout(rows=40, page_size=65536, dimensions=256),
        Layout(rows=60, encoding="UTF-16le", metadata="empty"),
        Layout(rows=60, reserved=32, is_unit=False),
        Layout(rows=60, auto_vacuum=True),
    ],
    ids=lambda layout: f"{layout.page_size} {layout.encoding} {layout.reserved} {layout.auto_vacuum}",
)
@pytest.mark.parametrize("name", ["the first half zeroed", "sectors zeroed"])
def test_files_of_every_layout_are_read(tmp_path: Path, layout: Layout, name: str) -> None:
    made = make(tmp_path / "made", layout)
    raw = bytearray(made.raw)
    page_damages.DAMAGES[name](made, raw, random.Random(name))

    missed, wrong, _ = _judged(tmp_path / "vectors", made, bytes(raw))

    assert not wrong
    assert len(missed) <= len(made.rows) // 100


_FOLDER: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    _FOLDER.append(str(tmp_path_factory.mktemp("any")))
    yield
    _FOLDER.clear()


@settings(max_examples=examples(60))
@given(data=st.data())
def test_any_overwritten_places_give_no_wrong_row(made: Made, data: st.DataObject) -> None:
    raw = bytearray(made.raw)
    places = st.tuples(
        st.integers(0, len(raw) - 1), st.sampled_from([b"\0" * 600, b"\xff" * 90, b"\x0d" * 8, b"#" * 5000])
    )
    for start, content in data.draw(st.lists(places, min_size=1, max_size=8)):
        raw[start : start + len(content)] = content[: len(raw) - start]
    path = Path(_FOLDER[0], "vectors")

    missed, wrong, _ = _judged(path, made, bytes(raw))

    assert not wrong
    assert len(missed) <= 1 + len(made.rows) // 100


# --- a file of any layout --------------------------------------------------------------------------------------------

DRAFT: Any = SimpleNamespace(id="a base")
TALLY = SalvageTally(rows=2, about=5)


class StandIn:
    """Salvages what it is told to, or fails."""

    def __init__(self, answer: SalvageTally | Exception, said: str | Exception | None = None) -> None:
        self.answer, self.said = answer, said
        self.asked: list[tuple[Any, ...]] = []
        self.ended = 0
        self.table: Any = SimpleNamespace(survey=self.survey)

    def __call__(self, path: Path, work: Path | None, draft: Any, *, keep: bool) -> AbstractContextManager[Any]:
        self.asked.append((path, work, draft, keep))
        return self.salvaged(keep)

    @contextmanager
    def salvaged(self, keep: bool) -> Iterator[tuple[Path | None, SalvageTally]]:
        if isinstance(self.answer, Exception):
            raise self.answer
        yield (Path("salvaged") if keep else None), self.answer
        self.ended += 1

    def survey(self, path: Path, work: Path | None, *, texts: bool) -> VectorSurvey:
        self.asked.append((path, work, texts))
        return VectorSurvey(rows=2)

    def doubt(self, path: Path, work: Path | None) -> str | None:
        self.asked.append((path, work))
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def salvage_with(
    salvager: StandIn | None, problem: StoreProblem, keep: ExitStack, *, is_wanted: bool = True
) -> losses.SalvageResult:
    wish = losses.SalvageRequest(is_wanted=is_wanted, work=Path("work"), texts=True)
    return losses.salvage_file(salvager, Path("damaged"), DRAFT, problem, wish, keep)


DAMAGE = StoreProblem("is damaged", 16, is_damage=True)
NO_ROOM = [apsw.FullError("disk full"), OSError(errno.ENOSPC, "No space left on device")]


def test_rows_that_are_salvaged_stay_until_the_run_is_done() -> None:
    salvager = StandIn(TALLY)
    with ExitStack() as keep:
        result = salvage_with(salvager, DAMAGE, keep)
        assert (result.vectors, result.table) == (Path("salvaged"), salvager.table)
        assert isinstance(result.found, VectorSurvey)
        assert result.found.salvage == SalvageTally(rows=2, about=5, problem="is damaged", is_carried=True)
        assert salvager.ended == 0
    assert salvager.ended == 1
    assert salvager.asked == [
        (Path("damaged"), Path("work"), DRAFT, True),
        (Path("salvaged"), Path("work"), True),
    ]


@pytest.mark.parametrize(
    ("tally", "is_wanted", "offer"),
    [
        (TALLY, False, "; --salvage can salvage 2 of about 5 rows"),
        (SalvageTally(rows=0, about=5), True, "; none of its rows (about 5) can be salvaged"),
        (SalvageTally(rows=0, about=5), False, "; none of its rows (about 5) can be salvaged"),
        (SalvageTally(rows=0, about=0), True, ""),
    ],
)
def test_rows_that_are_only_counted_are_offered(tally: SalvageTally, is_wanted: bool, offer: str) -> None:
    salvager = StandIn(tally)
    with ExitStack() as keep:
        result = salvage_with(salvager, DAMAGE, keep, is_wanted=is_wanted)
        assert salvager.ended == 1
    assert isinstance(result.found, StoreProblem)
    assert (str(result.found), result.found.vector_bytes, result.found.is_damage) == (f"is damaged{offer}", 16, True)
    assert result.found.salvage == replace(tally, problem="is damaged", is_carried=False)
    assert (result.vectors, result.table) == (None, None)


@pytest.mark.parametrize(
    ("salvager", "problem"),
    [
        (None, DAMAGE),
        (StandIn(TALLY), StoreProblem("does not exist")),
        (StandIn(SalvageTally(rows=0, about=5)), StoreProblem("has no table", may_be_damage=True)),
        (StandIn(StoreProblem("no such file")), DAMAGE),
        (StandIn(apsw.CorruptError("malformed")), DAMAGE),
        (StandIn(OSError(errno.EIO, "Input/output error")), DAMAGE),
    ],
    ids=["no salvage", "no damage", "no rows", "another file", "unreadable", "a failing disk"],
)
def test_where_nothing_can_be_salvaged_the_problem_stays(salvager: StandIn | None, problem: StoreProblem) -> None:
    with ExitStack() as keep:
        result = salvage_with(salvager, problem, keep)
    assert result.found is problem
    assert (result.vectors, result.table) == (None, None)


def test_what_may_be_damage_is_damage_if_it_has_rows() -> None:
    with ExitStack() as keep:
        result = salvage_with(StandIn(TALLY), StoreProblem("has no table", may_be_damage=True), keep)
    assert result.vectors == Path("salvaged")


@pytest.mark.parametrize("error", NO_ROOM)
def test_too_little_room_stops_a_salvage_and_says_nothing_of_the_file(error: Exception) -> None:
    with ExitStack() as keep, pytest.raises(type(error)):
        salvage_with(StandIn(error), DAMAGE, keep)
    with pytest.raises(type(error)):
        losses.check_for_damage(StandIn(TALLY, error), Path("vectors"), Path("work"), is_wanted=True)


def test_a_contradiction_is_looked_for_where_a_salvage_is_wanted() -> None:
    contradictory = StandIn(TALLY, "a row comes twice")
    losses.check_for_damage(contradictory, Path("vectors"), Path("work"), is_wanted=False)
    assert contradictory.asked == []
    losses.check_for_damage(None, Path("vectors"), Path("work"), is_wanted=True)
    sound = StandIn(TALLY)
    losses.check_for_damage(sound, Path("vectors"), Path("work"), is_wanted=True)
    assert sound.asked == [(Path("vectors"), Path("work"))]
    with pytest.raises(StoreProblem, match=r"^is damaged, although SQLite can read it: a row comes twice$") as raised:
        losses.check_for_damage(contradictory, Path("vectors"), Path("work"), is_wanted=True)
    assert raised.value.is_damage
    unreadable = StandIn(TALLY, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(StoreProblem, match=r"^cannot be read: .*Input/output error$") as raised:
        losses.check_for_damage(unreadable, Path("vectors"), Path("work"), is_wanted=True)
    assert not raised.value.is_damage


# --- as a user -------------------------------------------------------------------------------------------------------


def _damaged_base(document: dict[str, Any], *, carried: bool) -> dict[str, Any]:
    return next(base for base in document["bases"] if base.get("salvage", {}).get("carried") is carried)


def test_without_the_word_a_damaged_base_fails_and_says_what_is_left(tmp_path: Path) -> None:
    done = run("migrate", SAMPLE, "--to", tmp_path / "library", "--json")

    base = _damaged_base(done.document, carried=False)
    assert (base["status"], base["error"]) == ("failed", "missing_vector_store")
    said = next(one["message"] for one in done.document["warnings"] if one["code"] == "missing_vector_store")
    assert "--salvage can salvage" in said
    assert done.status == 1


def test_with_the_word_the_books_of_a_damaged_base_balance(tmp_path: Path) -> None:
    done = run("migrate", SAMPLE, "--to", tmp_path / "library", "--json", "--salvage")

    for base in done.document["bases"]:
        rows = base["rows"]
        assert rows["read"] == rows["carried"] + sum(rows["skipped"].values())
    assert done.status == 1


def test_an_item_without_a_salvaged_row_is_named_and_is_a_warning_of_check(tmp_path: Path) -> None:
    library = tmp_path / "library"
    done = run("migrate", SAMPLE, "--to", library, "--json", "--salvage")
    ids = {base["name"]: base["id"] for base in done.document["bases"]}
    lost = [one["message"] for one in done.document["warnings"] if one["code"] == "rows_lost"]
    assert lost == ["Brave Henrietta.txt: none of its rows were salvaged, if v1 had any"]

    checked = run("check", library, "--json")
    found = {one["base"]: one for one in checked.document["findings"] if one["name"] == "item.no-material"}
    about = "1 item completed but without a text in the index: "
    salvaged, read = found.pop(ids["Old clippings"]), found.pop(ids["Harbour museum"])
    lost = f"{about}the rows may have been among those that could not be salvaged"
    # The source that was salvaged does not have them either.
    copy = f"regraft repair {library} --from SOURCE --base {salvaged['base']}"
    message = f"{lost}; if you have another copy of the data: {copy}"
    assert (salvaged["severity"], salvaged["message"]) == ("warning", message)
    assert salvaged["repair"] == f"regraft backfill {library} --base {salvaged['base']}"
    assert (read["severity"], read["message"]) == ("note", f"{about}v1 had no rows")
    assert (found, checked.status) == ({}, 1)


def _units(library: Path, base: str) -> dict[str, int]:
    """Count the units of each material of a base."""
    with closing(sqlite3.connect(library / "KnowledgeBase" / base / ".cherry" / "index.sqlite")) as db:
        return dict(db.execute("SELECT material_id, count(*) FROM search_unit GROUP BY 1"))


def test_an_item_that_lost_some_of_its_rows_is_a_warning_of_check_until_it_is_indexed_again(tmp_path: Path) -> None:
    sound, library = tmp_path / "sound", tmp_path / "library"
    run("migrate", SAMPLE, "--to", sound, "--json")
    source = shutil.copytree(SAMPLE, tmp_path / "source")
    damaged = source / "Data" / "KnowledgeBase" / "GSI9AeE0DFjMMy8kHBcdh"
    raw = bytearray(damaged.read_bytes())
    leaves = [at for at in range(0, len(raw), 4096) if raw[at] == 13]
    # The rows at the end of the page are whole.
    raw[leaves[1] : leaves[1] + 2000] = b"U" * 2000
    damaged.write_bytes(raw)
    done = run("migrate", source, "--to", library, "--json", "--salvage")
    base = next(one["id"] for one in done.document["bases"] if one["legacy_id"] == damaged.name)

    before, after = _units(sound, base), _units(library, base)
    partial = {key for key, count in after.items() if count < before[key]}
    assert before.keys() == after.keys()
    assert len(partial) == 1
    checked = run("check", library, "--json")
    [found] = [one for one in checked.document["findings"] if one["name"] == "unit.missing"]
    message = "1 item with a part of the text missing, or perhaps missing: not all of the rows could be salvaged"
    copy = f"if you have another copy of the data: regraft repair {library} --from SOURCE --base {base}"
    assert (found["severity"], found["base"], found["message"]) == ("warning", base, f"{message}; {copy}")
    assert (set(found["samples"]), found["repair"], checked.status) == (partial, None, 1)
    assert _copied(library, base, tmp_path / "once") == [("unit.missing", f"{message}; only library records this")]

    with closing(sqlite3.connect(library / "KnowledgeBase" / base / ".cherry" / "index.sqlite")) as db, db:
        db.execute("UPDATE material SET updated_at = updated_at + 1 WHERE material_id = ?", [*partial])
    again = run("check", library, "--json")
    assert "unit.missing" not in {one["name"] for one in again.document["findings"]}
    assert _copied(library, base, tmp_path / "again") == []


def _copied(library: Path, base: str, folder: Path) -> list[tuple[str, str]]:
    """Copy a base by each command, and return what these say is missing in the copy."""
    into = profile(folder / "profile")
    chosen = ("--base", base, "--json")
    models = ("--recreate-provider", "openai", "--recreate-provider", "silicon", "--yes")
    told = []
    for copied in (
        run("pack", library, folder / "bases.zip", *chosen),
        run("install", library, "--profile", into, *chosen, *models),
    ):
        told.append([(one["finding"], one["reason"]) for one in copied.document["left"]])
        assert copied.status == bool(told[-1])
    [packed, installed] = told
    # A profile records it, a pack does not.
    assert packed == [(name, f"{reason}; only library records this") for name, reason in installed]
    return packed


def _damaged(folder: Path) -> Path:
    """Return a copy of the sample with a zeroed page in the midst of one of its files."""
    source = shutil.copytree(SAMPLE, folder / "source")
    largest = max((source / "Data" / "KnowledgeBase").iterdir(), key=lambda file: file.stat().st_size)
    raw = bytearray(largest.read_bytes())
    # The root of the table: SQLite finds no row at all, and all rows are whole.
    raw[4096:8192] = bytes(4096)
    largest.write_bytes(raw)
    return source


def test_check_names_the_command_that_salvages(tmp_path: Path) -> None:
    source = _damaged(tmp_path)

    done = run("check", source, "--json")

    repairs = [str(one["repair"]) for one in done.document["findings"] if one["name"] == "v1.unreadable"]
    assert any("--salvage" in repair for repair in repairs)


def test_a_salvaged_base_stays_when_a_later_run_does_not_ask(tmp_path: Path) -> None:
    source, library = _damaged(tmp_path), tmp_path / "library"
    failed = run("migrate", source, "--to", library, "--json", "--yes")
    assert "failed" in [base["status"] for base in failed.document["bases"]]

    salvaged = run("migrate", source, "--to", library, "--json", "--yes", "--salvage")
    again = run("migrate", source, "--to", library, "--json", "--yes")

    carried = _damaged_base(salvaged.document, carried=True)
    assert carried["status"] == "completed"
    assert carried["rows"]["carried"] > 0
    later = next(base for base in again.document["bases"] if base["id"] == carried["id"])
    assert (later["status"], later["rows"]["carried"]) == ("completed", carried["rows"]["carried"])
