"""One base is written to a folder: its index, its files, its progress, and what stops it."""

from __future__ import annotations

import errno
import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest
from faults import posix
from harness import NOW_MS
from v1 import CREATED, LLM, UPDATED, Row, base, file, floats, folder, note, page, vector_of, write_store

from migrators.cherry_v1.draft import draft_library
from migrators.pipeline import base_writer, source_files
from migrators.pipeline.base_writer import BaseSource, IndexingProgress, WrittenBase, planned_rows, write_base
from migrators.pipeline.plan import BasePlan, plan_base
from regraft.disk import durable
from regraft.disk.trees import FolderTree, SourceReadFailed
from regraft.errors import BooksDoNotBalance, VerificationFailed
from regraft.formats.cherry_v1.layout import VECTOR_TABLE
from regraft.formats.cherry_v1.state import V1State
from regraft.formats.cherry_v2 import index
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.large_text import LargeText
from regraft.formats.vector_survey import VectorSurvey
from regraft.identity import replace

INDEX = Path(".cherry", "index.sqlite")


@dataclass
class Writing:
    """A base that is about to be written, and what is reported meanwhile."""

    place: Path
    plan: BasePlan
    origin: BaseSource
    progress: list[tuple[float, int]] = field(default_factory=list)

    @property
    def staging(self) -> Path:
        return self.place / "staging" / "kb"

    def write(self, **more: Any) -> WrittenBase:
        return write_base(
            self.plan, self.origin, self.staging, NOW_MS, lambda *some: self.progress.append(some), **more
        )

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.staging / INDEX)) as db:
            return db.execute(query).fetchall()


def writing(place: Path, rows: list[Row], *items: Any, carry_text: bool = False, **fields: Any) -> Writing:
    """Return a base with these rows and items; its uploads are in ``Files``."""
    source = place / "source"
    (source / "Files").mkdir(parents=True)
    (place / "staging").mkdir()
    vectors = write_store(source / "vectors", rows)
    state = V1State((base("kb", *items, **fields),), LLM["providers"], {}, {}, frozenset(), ())
    [draft] = draft_library(state, ModelOverrides()).bases
    plan = plan_base(draft, VECTOR_TABLE.survey(vectors, texts=carry_text), carry_text=carry_text)
    origin = BaseSource(
        tree=FolderTree(source), uploads="Files", table=VECTOR_TABLE, vectors=vectors, earlier=place / "earlier"
    )
    return Writing(place, plan, origin)


def written_notices(done: WrittenBase) -> list[tuple[str, str | None, str]]:
    return [(one.code, one.item, one.message) for one in done.notices]


def test_the_index_has_what_the_source_has(tmp_path: Path) -> None:
    made = writing(tmp_path, [Row("L", "one"), Row("M", "two"), Row("L", "three")], note("n", "L"), page("p", "M"))
    done = made.write(verify=True)
    assert made.rows(
        "SELECT t.text, e.vector_blob FROM search_unit u JOIN search_text t ON t.target_id = u.unit_id"
        " JOIN embedding e USING (embedding_text_hash) ORDER BY u.rowid"
    ) == [(text, vector_of(text)) for text in ("one", "three", "two")]
    raw = sorted((made.staging / "raw").iterdir())
    assert sorted(done.paths.values()) == [path.name for path in raw]
    assert [path.read_text("utf-8").splitlines()[-1] for path in raw] == ["three", "two"]
    assert {path.read_text("utf-8").splitlines()[0] for path in raw} == {"---"}
    content = (made.staging / INDEX).read_bytes()
    assert (done.index_bytes, done.index_hash) == (len(content), hashlib.sha256(content).hexdigest())
    assert (done.has_files, done.notices, done.unread) == (True, (), frozenset())
    assert done.tallies is not None
    assert done.tallies.units == 3


def test_copied_rows_are_reported_with_their_bytes(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(300)]
    made = writing(tmp_path, [Row("L", text) for text in texts], note("n", "L"))
    made.write()
    size = sum(map(len, texts)) + 300 * 16
    # The rows are copied in steps, before their words are indexed, which is most of the work.
    first = sum(len(text) + 16 for text in texts[:256])
    assert made.progress[:2] == [(pytest.approx(256 * 0.3), first), (pytest.approx(44 * 0.3), size - first)]
    assert sum(count for _, count in made.progress) == size
    assert sum(rows for rows, _ in made.progress) <= 300


def test_progress_of_an_index_ends_at_its_units() -> None:
    reported: list[tuple[float, int]] = []
    progress = IndexingProgress(1000, lambda *some: reported.append(some))
    progress.rows(100)
    # A step of SQLite stands for the words of 250 rows, and the statement goes on.
    assert progress._step() is False
    progress.rows(2000)
    progress.rows(5)
    assert reported == [(pytest.approx(70), 0), (pytest.approx(175), 0), (pytest.approx(455), 0), (0, 0)]


def test_progress_is_reported_while_sqlite_builds_an_index() -> None:
    reported: list[tuple[float, int]] = []
    with closing(apsw.Connection(":memory:")) as db:
        IndexingProgress(10_000, lambda *some: reported.append(some)).watch(db)
        db.execute("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 9000) SELECT sum(i) FROM n")
    assert len(reported) > 1
    assert reported[:2] == [(pytest.approx(175), 0)] * 2


def test_all_that_was_written_is_on_the_disk_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(durable, "sync_tree", flushed.append)
    made = with_uploads(tmp_path / "made")
    made.write()
    assert flushed == [made.staging]
    nothing = writing(tmp_path / "nothing", [Row("L", "one")], note("n", "L"), model=None)
    nothing.write()
    assert flushed == [made.staging]

    def failing(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "sync_tree", failing)
    with pytest.raises(OSError, match="Input/output error"):
        with_uploads(tmp_path / "failing").write()


def test_a_large_index_is_flushed_while_its_words_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[str, Path]] = []

    def flush(name: str) -> Callable[[Path], None]:
        return lambda path: flushed.append((name, path))

    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_tree", flush("tree"))
        real = durable.sync_file
        patch.setattr(durable, "sync_file", lambda path: (flush("file")(path), real(path)))
        # Two texts of three bytes with vectors of 16: one byte more is not large.
        for limit in (39, 38):
            patch.setattr(base_writer, "_LARGE_INDEX_BYTES", limit)
            made = with_uploads(tmp_path / str(limit))
            assert made.plan.units * made.plan.vector_bytes + made.plan.body_bytes == 38
            made.write()
            index_file, raw = ("file", made.staging / INDEX), ("tree", made.staging / "raw")
            assert (index_file in flushed, raw in flushed) == (limit == 38, limit == 38)
            assert flushed.count(("tree", made.staging)) == 1

    def failing(path: Path) -> None:
        if path.name == "raw":
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "sync_tree", failing)
    monkeypatch.setattr(base_writer, "_LARGE_INDEX_BYTES", 1)
    with pytest.raises(OSError, match="Input/output error"):
        with_uploads(tmp_path / "failing").write()


@pytest.mark.parametrize("carry_text", [False, True])
def test_large_texts_are_read_in_parts(carry_text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The items of more than ten bytes here, of which one has a text alone."""
    monkeypatch.setattr(base_writer, "LARGE_BYTES", 10)
    rows = [Row("L", "ten bytes!"), Row("M", "eleven byte"), Row("M", "of no vector", None)]
    made = writing(tmp_path, rows, note("l", "L"), note("m", "M"), carry_text=carry_text)
    large: list[Any] = []
    build = index.build_index

    def built(path: Path, base_id: str, now: int, materials: Any, *some: Any, **more: Any) -> Any:
        def each() -> Any:
            for material in materials:
                large.append(material.is_large)
                yield material

        return build(path, base_id, now, each(), *some, **more)

    monkeypatch.setattr(index, "build_index", built)
    made.write(verify=True)
    assert large == [False, True]
    texts = ["ten bytes!", "eleven byte", *(["of no vector"] if carry_text else [])]
    query = "SELECT t.text FROM search_unit u JOIN search_text t ON t.target_id = u.unit_id ORDER BY u.rowid"
    assert made.rows(query) == [(text,) for text in texts]


# --- rows that do not add up ---------------------------------------------------------------------------------------


def test_a_plan_that_does_not_add_up_is_not_written(tmp_path: Path) -> None:
    made = writing(tmp_path, [Row("L", "one"), Row("X", "two")], note("n", "L"))
    made.plan = replace(made.plan, rows=replace(made.plan.rows, read=9))
    with pytest.raises(BooksDoNotBalance, match="kb: 9 rows were read, but 1 migrated and 1 skipped"):
        made.write()
    assert list((tmp_path / "staging").iterdir()) == []


def test_an_index_with_another_number_of_rows_than_planned_is_refused(tmp_path: Path) -> None:
    made = writing(tmp_path, [Row("L", "one"), Row("L", "two"), Row("X", "three")], note("n", "L"))
    made.plan = replace(made.plan, rows=replace(made.plan.rows, carried=3, skipped={}))
    with pytest.raises(BooksDoNotBalance, match="kb: 3 rows were read, but 2 migrated and 0 skipped"):
        made.write()


def test_an_index_that_reads_back_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = writing(tmp_path, [Row("L", "one"), Row("L", "two")], note("n", "L"))
    build = index.build_index

    def spoiled(path: Path, *some: Any, **more: Any) -> Any:
        result = build(path, *some, **more)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE embedding SET vector_blob = zeroblob(16) WHERE rowid = 2")
        return result

    monkeypatch.setattr(index, "build_index", spoiled)
    with pytest.raises(VerificationFailed):
        made.write()


def test_words_that_the_index_lacks_are_found_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, str]] = []
    monkeypatch.setattr(index, "verify_full_text", lambda *some: asked.append(some))
    for name, verify in (("a", True), ("b", False)):
        made = writing(tmp_path / name, [Row("L", "one")], note("n", "L"))
        made.write(**({"verify": True} if verify else {}))
    assert asked == [(tmp_path / "a" / "staging" / "kb" / INDEX, made.plan.draft.id)]


def test_of_two_vectors_of_a_text_the_first_is_kept_and_that_is_said(tmp_path: Path) -> None:
    made = writing(
        tmp_path,
        [Row("L", "one", floats(1, 2, 3, 4)), Row("L", "two"), Row("L", "one ", floats(4, 3, 2, 1))],
        note("n", "L"),
    )
    # Blanks around a text make no other text.
    with closing(sqlite3.connect(made.origin.vectors or "")) as db, db:
        db.execute(
            "CREATE TABLE plain AS SELECT id, trim(pageContent) AS pageContent, uniqueLoaderId, source, vector,"
            " metadata FROM vectors"
        )
        db.execute("DROP TABLE vectors")
        db.execute("ALTER TABLE plain RENAME TO vectors")
    made.plan = plan_base(made.plan.draft, VECTOR_TABLE.survey(made.origin.vectors))
    done = made.write()
    assert [(one.code, one.item, one.message, one.count) for one in done.notices] == [
        ("differing_vector", None, "1 text with two different vectors; the first one was kept", 1)
    ]
    assert made.rows("SELECT vector_blob FROM embedding ORDER BY rowid")[0] == (floats(1, 2, 3, 4),)


# --- what the units keep of the source -----------------------------------------------------------------------------

#: A layout whose units keep the metadata of their rows.
LOCATING = replace(VECTOR_TABLE, locator="metadata")


def located(place: Path, **more: Any) -> Writing:
    rows = [Row("L", f"text {number}", metadata=f'{{"page":{number}}}') for number in range(3)]
    rows += [Row("M", "other", metadata=None), Row("L", "no vector", None, metadata='{"page":9}')]
    made = writing(place, rows, note("n", "L"), note("m", "M"), **more)
    made.origin = replace(made.origin, table=LOCATING)
    return made


@pytest.mark.parametrize("carry_text", [False, True])
def test_units_keep_the_locators_of_their_rows(carry_text: bool, tmp_path: Path) -> None:
    made = located(tmp_path, carry_text=carry_text)
    made.write()
    more = [("no vector", '{"page":9}')] if carry_text else []
    assert made.rows(
        "SELECT t.text, u.locator_json FROM search_unit u JOIN search_text t ON t.target_id = u.unit_id"
        " ORDER BY u.rowid"
    ) == [
        *((f"text {number}", f'{{"page":{number}}}') for number in range(3)),
        *more,
        ("other", None),
    ]


def test_texts_without_any_vector_keep_their_locators(tmp_path: Path) -> None:
    made = writing(tmp_path, [Row("L", "one", None, metadata='{"page":1}')], note("n", "L"), carry_text=True)
    made.origin = replace(made.origin, table=LOCATING)
    assert made.plan.error == "missing_vector_store"
    made.write()
    assert made.rows("SELECT locator_json FROM search_unit") == [('{"page":1}',)]


@pytest.mark.parametrize("again", [[1, 2, 4, None], [1, 2, 3], [1, 2, 3, None, None]])
def test_locators_that_read_back_otherwise_are_refused(again: list[int | None], tmp_path: Path) -> None:
    """One is another, or there is one less, or one more."""
    made = writing(tmp_path, [Row("L", f"text {number}") for number in range(4)], note("n", "L"))

    class Reading:
        locator = "metadata"
        rows = staticmethod(VECTOR_TABLE.rows)
        readings = iter(([1, 2, 3, None], again))

        def locators(self, *_: Any, **__: Any) -> Any:
            return (None if one is None else str(one) for one in next(self.readings))

    made.origin = replace(made.origin, table=Reading())
    with pytest.raises(VerificationFailed, match="the metadata of a unit reads back differently"):
        made.write()


# --- uploads -------------------------------------------------------------------------------------------------------


def with_uploads(place: Path) -> Writing:
    made = writing(
        place, [Row("A", "one"), Row("B", "two")], file("a", "A", name="a.txt"), file("b", "B", name="b.txt")
    )
    for name in "ab":
        (place / "source" / "Files" / f"up-{name}.txt").write_text(f"upload {name}", "utf-8")
    return made


def raw_files(made: Writing) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in (made.staging / "raw").iterdir()}


def test_uploads_are_copied_whether_or_not_the_base_has_an_index(tmp_path: Path) -> None:
    made = with_uploads(tmp_path)
    done = made.write()
    assert raw_files(made) == {"a.txt": "upload a", "b.txt": "upload b"}
    assert (done.paths, done.unread, done.has_files) == ({}, frozenset(), True)
    failed = with_uploads(tmp_path / "failed")
    failed.plan = plan_base(failed.plan.draft, VectorSurvey())
    done = failed.write()
    assert raw_files(failed) == {"a.txt": "upload a", "b.txt": "upload b"}
    assert (done.tallies, done.index_bytes, done.index_hash, done.has_files) == (None, 0, "", True)
    assert not (failed.staging / INDEX).exists()


def test_names_that_processed_files_get_are_free(tmp_path: Path) -> None:
    """A processor writes what it makes of a file beside it, under the name of the file with another ending."""
    items = [file("f", "F", name="Title.pdf"), note("n", "L", content="Title")]
    rows = [Row("F", "one"), Row("L", "two")]
    plain = writing(tmp_path / "plain", rows, *items)
    processed = writing(tmp_path / "processed", rows, *items, preprocessProvider={"provider": {"id": "p"}})
    for made, name in ((plain, "Title.md"), (processed, "Title_1.md")):
        assert list(made.write().paths.values()) == [name]


def test_uploads_are_copied_while_rows_are_written_and_words_are_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes get files before each material; their words are taken before each file of this process."""
    events: list[str] = []
    build, assign = index.build_index, source_files.UploadCopies.assign

    def built(*some: Any, meanwhile: Any, **more: Any) -> Any:
        return build(*some, meanwhile=lambda _: meanwhile(lambda: events.append("words")), **more)

    def assigned(copies: Any, *some: Any, **more: Any) -> None:
        if not more:
            events.append("files")
        assign(copies, *some, **more)

    monkeypatch.setattr(index, "build_index", built)
    monkeypatch.setattr(source_files.UploadCopies, "assign", assigned)
    with_uploads(tmp_path).write()
    assert events == ["files", "files", "words", "words"]


def test_files_that_other_processes_left_in_part_are_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = with_uploads(tmp_path)

    def remaining(_: object) -> Any:
        (made.staging / "raw").mkdir()
        (made.staging / "raw" / "a.txt").write_text("a part of an upload")
        yield from ((0, True), (1, True))

    monkeypatch.setattr(source_files.UploadCopies, "remaining", remaining)
    assert made.write().notices == ()
    assert raw_files(made) == {"a.txt": "upload a", "b.txt": "upload b"}


def test_a_base_without_index_and_files_writes_nothing(tmp_path: Path) -> None:
    made = writing(tmp_path, [Row("L", "one")], note("n", "L"), model=None)
    done = made.write()
    assert (done.has_files, done.index_hash, done.raw_hash, done.paths) == (False, "", "", {})
    assert not made.staging.exists()


@pytest.mark.parametrize("earlier", [False, True])
def test_an_upload_that_cannot_be_read_is_named_and_an_earlier_copy_kept(
    earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = with_uploads(tmp_path)
    if earlier:
        (tmp_path / "earlier" / "raw").mkdir(parents=True)
        (tmp_path / "earlier" / "raw" / "a.txt").write_text("an earlier copy")
    copy = source_files.copy_from_tree

    def failing(tree: Any, name: str, target: Path) -> None:
        if name.endswith("up-a.txt"):
            raise SourceReadFailed("Input/output error")
        copy(tree, name, target)

    monkeypatch.setattr(source_files, "copy_from_tree", failing)
    done = made.write()
    assert done.unread == {"Files/up-a.txt"}
    kept = {"a.txt": "an earlier copy"} if earlier else {}
    assert raw_files(made) == {**kept, "b.txt": "upload b"}
    why = "the uploaded file up-a.txt cannot be read (Input/output error)"
    said = [("missing_upload", "a", f"a.txt: {why}; the item can be searched but not reindexed without it")]
    assert written_notices(done) == ([] if earlier else said)


@posix
@pytest.mark.parametrize("failing", ["copy_upload", "open_text"])
def test_a_path_that_is_too_long_is_named_and_any_other_error_stops_the_base(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_with(error: OSError, name: str) -> tuple[Writing, WrittenBase]:
        made = (
            with_uploads(tmp_path / name)
            if failing == "copy_upload"
            else writing(tmp_path / name, [Row("A", "one")], note("a", "A", text="title"))
        )

        def fail(*_: Any, **__: Any) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(base_writer if failing == "copy_upload" else durable, failing, fail)
            return made, made.write()

    made, done = write_with(OSError(errno.ENAMETOOLONG, "File name too long"), "long")
    path = made.staging / "raw" / ("a.txt" if failing == "copy_upload" else "title.md")
    why = f"the system allows no path of {len(str(path))} characters"
    said = f"{path.name}: {why}; the item can be searched but not reindexed without its file"
    assert written_notices(done)[0] == ("path_too_long", "a", said)
    assert not path.exists()
    assert made.rows("SELECT count(*) FROM search_unit") != [(0,)]
    with pytest.raises(PermissionError):
        write_with(PermissionError(errno.EACCES, "Permission denied"), "other")


# --- errors of the source ------------------------------------------------------------------------------------------


def failing_open(error: Exception) -> Callable[..., Any]:
    class Context:
        def __enter__(self) -> Any:
            raise error

        def __exit__(self, *_: object) -> None:
            raise AssertionError("it was not entered")

    return lambda *_, **__: Context()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (apsw.CorruptError("malformed"), SourceReadFailed),
        (OSError(errno.EIO, "Input/output error"), SourceReadFailed),
        (OSError(errno.ENOSPC, "No space left on device"), OSError),
    ],
)
def test_what_cannot_be_opened_is_an_error_of_the_source_unless_room_is_lacking(
    error: Exception, raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writing(tmp_path, [Row("L", "one")], note("n", "L"))
    monkeypatch.setattr(base_writer.sqlite, "open_readonly", failing_open(error))
    with pytest.raises(raised, match=str(error.args[-1])):
        made.write()


def test_the_vector_file_is_closed_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = base_writer.sqlite.open_readonly
    closed: list[str] = []

    class Watched:
        def __init__(self, path: Path, **more: Any) -> None:
            self.name, self.inner = path.name, real(path, **more)

        def __enter__(self) -> Any:
            return self.inner.__enter__()

        def __exit__(self, *exception: Any) -> Any:
            closed.append(self.name)
            return self.inner.__exit__(*exception)

    made = writing(tmp_path, [Row("L", "one")], note("n", "L"))
    monkeypatch.setattr(base_writer.sqlite, "open_readonly", Watched)
    made.write()
    assert closed == ["vectors", "index.sqlite"]


def test_a_source_that_breaks_while_it_is_read_is_an_error_of_the_source(tmp_path: Path) -> None:
    made = writing(tmp_path, [Row("L", "one"), Row("L", "two")], note("n", "L"))

    class Breaking:
        locator = None

        def rows(self, *_: Any, **__: Any) -> Any:
            yield "one", vector_of("one")
            raise apsw.CorruptError("malformed")

    made.origin = replace(made.origin, table=Breaking())
    with pytest.raises(SourceReadFailed, match="malformed"):
        made.write()


def test_a_large_text_that_breaks_while_it_is_read_is_an_error_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_writer, "LARGE_BYTES", 1)
    made = writing(tmp_path, [Row("L", "one")], note("n", "L"))

    class Breaking:
        locator = None

        def large_rows(self, db: apsw.Connection, *_: Any, **__: Any) -> Any:
            yield LargeText(db=db, table="gone", column="pageContent", rowid=1), vector_of("one")

    made.origin = replace(made.origin, table=Breaking())
    with pytest.raises(SourceReadFailed, match="gone"):
        made.write()


def test_a_text_beyond_the_limit_of_sqlite_is_an_error_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writing(tmp_path, [Row("L", "one")], note("n", "L"))

    def too_big(*_: Any, **__: Any) -> Any:
        raise apsw.TooBigError("string or blob too big")

    monkeypatch.setattr(index, "build_index", too_big)
    with pytest.raises(SourceReadFailed, match=r"the text of one item exceeds SQLite's limit of 1 GB"):
        made.write()


# --- the catalog ---------------------------------------------------------------------------------------------------


def test_rows_of_the_catalog_have_the_times_of_the_source_or_of_the_run(tmp_path: Path) -> None:
    items = [note("n", "L"), note("m", created_at=None, updated_at="?"), folder("d", "F")]
    rows = [Row("L", "one"), Row("F", "two", source="/home/alice/docs/x.md")]
    made = writing(tmp_path, rows, *items, created_at=None, updated_at=None)
    done = made.write()
    assert (done.record.base.created_at, done.record.base.updated_at, done.record.now_ms) == (NOW_MS, NOW_MS, NOW_MS)
    assert (done.record.base.status, done.record.base.error, done.record.base.dimensions) == ("completed", None, 4)
    found = list(base_writer.catalog_rows(made.plan, done))
    assert [(one.type, one.created_at, one.updated_at) for one in found] == [
        ("note", CREATED, UPDATED),
        ("note", NOW_MS, NOW_MS),
        ("directory", CREATED, UPDATED),
        ("file", CREATED, UPDATED),
    ]
    assert {one.base_id for one in found} == {made.plan.draft.id}
    assert [one.data.get("relativePath") for one in found] == [done.paths[0], None, "docs", "docs/x.md"]
    known = writing(tmp_path / "known", rows, *items).write()
    assert (known.record.base.created_at, known.record.base.updated_at) == (CREATED, UPDATED)
    assert [(one.id, one.provider_id) for one in known.record.models] == [("acme::embed-3", "acme")]
    assert [one.provider_id for one in known.record.providers] == ["acme"]
    failed = writing(tmp_path / "failed", rows, *items, model=None).write()
    assert (failed.record.base.status, failed.record.base.error) == ("failed", "missing_embedding_model")
    assert (failed.record.models, failed.record.providers) == ((), ())


def test_halves_of_characters_are_replaced_in_the_catalog(tmp_path: Path) -> None:
    plan = writing(tmp_path, [Row("L", "one")], note("n", "L")).plan
    torn = replace(plan.items[0], data={"source": "torn \ud83d", "content": "whole"})
    [row] = planned_rows(replace(plan, items=(torn,)), {0: "n.md"}, NOW_MS)
    assert row.data == {"source": "torn \ufffd", "content": "whole", "relativePath": "n.md"}
    # Equal data are no copy.
    [row] = planned_rows(plan, {}, NOW_MS)
    assert row.data == plan.items[0].data
