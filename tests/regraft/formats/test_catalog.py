"""The catalog: its constraints, the order of its rows, the models it holds, and that no key ever reaches it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness import NOW, NOW_MS, run
from hypothesis import example, given
from hypothesis import strategies as st
from v1 import LLM, MODEL, Library, Row, Source, base, carried, file, folder, migrate, note, opened, pack, page

from regraft.formats import order_keys
from regraft.formats.order_keys import key_after, order_key

# --- rows ----------------------------------------------------------------------------------------------------------

COLUMNS = {
    "user_provider": "provider_id name is_enabled order_key created_at updated_at",
    "user_model": "id provider_id model_id name group capabilities supports_streaming order_key created_at updated_at",
    "knowledge_base": "id name group_id dimensions embedding_model_id status error rerank_model_id file_processor_id"
    " chunk_size chunk_overlap chunk_strategy chunk_separator threshold document_count created_at updated_at",
    "knowledge_item": "id base_id group_id type data status error created_at updated_at",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    items = [file("f", "F"), page("p", "P"), note("n", "N"), folder("d", "D1", "D2"), note("idle")]
    rows = [Row(loader, f"text of {loader}") for loader in ("F", "P", "N", "D1", "D2")]
    bases = [
        base("kb", *items, rerankModel={"id": "rerank", "provider": "other"}, threshold=0.5, documentCount=6),
        base("failed", note("n2"), model={"id": "m", "provider": "gone"}),
        base("no store", model={"id": "second", "provider": "other"}),
    ]
    other = {"id": "other", "name": "Other one", "enabled": False, "models": [{"id": "rerank"}, {"id": "second"}]}
    unused = {"id": "unused", "models": [{"id": "nobody's"}]}
    llm = {"providers": [unused, *LLM["providers"], other]}
    return carried(tmp_path_factory.mktemp("catalog"), *bases, stores={"kb": rows}, llm=llm)


def test_tables_and_columns(library: Library) -> None:
    with opened(library.path / "catalog.sqlite") as db:
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables == set(COLUMNS)
        for table, wanted in COLUMNS.items():
            assert [row[1] for row in db.execute(f"PRAGMA table_info({table})")] == wanted.split()
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    # Closed, in rollback-journal mode, with nothing beside it.
    assert (library.path / "catalog.sqlite").read_bytes()[18:20] == b"\x01\x01"
    assert not [path for path in library.path.iterdir() if path.name.startswith("catalog.sqlite-")]


def test_every_column_of_a_base(library: Library) -> None:
    assert library.base_row("kb") == {
        "id": library.base_id("kb"),
        "name": "Base kb",
        "group_id": None,
        "dimensions": 4,
        "embedding_model_id": "acme::embed-3",
        "status": "completed",
        "error": None,
        "rerank_model_id": "other::rerank",
        "file_processor_id": None,
        "chunk_size": 1024,
        "chunk_overlap": 200,
        "chunk_strategy": "structured",
        "chunk_separator": "\\n\\n",
        "threshold": 0.5,
        "document_count": 6,
        "created_at": 1741944474000,
        "updated_at": 1741944535000,
    }


def test_only_models_that_bases_use_and_their_providers(library: Library) -> None:
    models = [{key: row[key] for key in row if key != "order_key"} for row in library.catalog("user_model")]
    times = {"created_at": NOW_MS, "updated_at": NOW_MS, "supports_streaming": 1}
    embeds, ranks = ({**times, "capabilities": f'["{can}"]'} for can in ("embedding", "rerank"))
    assert models == [
        {"id": "acme::embed-3", "provider_id": "acme", "model_id": "embed-3", "name": "Embed 3", "group": "embed"}
        | embeds,
        {"id": "other::rerank", "provider_id": "other", "model_id": "rerank", "name": "rerank", "group": None} | ranks,
        {"id": "other::second", "provider_id": "other", "model_id": "second", "name": "second", "group": None} | embeds,
    ]
    providers = library.catalog("user_provider")
    assert [(row["provider_id"], row["name"], row["is_enabled"]) for row in providers] == [
        ("acme", "Acme", 1),
        ("other", "Other one", 0),
    ]


def test_bases_and_items_stand_in_the_order_of_v1(library: Library) -> None:
    assert [row["id"] for row in library.catalog("knowledge_base")] == [
        library.base_id(legacy_id) for legacy_id in ("kb", "failed", "no store")
    ]
    children = [library.child_id("kb", loader) for loader in ("D1", "D2")]
    assert [row["id"] for row in library.items("kb")] == [
        *(library.item_id(item) for item in ("f", "p", "n", "d")),
        *children,
        library.item_id("idle"),
    ]


# --- constraints ---------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(library: Library, tmp_path: Path) -> Iterator[apsw.Connection]:
    path = tmp_path / "catalog.sqlite"
    shutil.copyfile(library.path / "catalog.sqlite", path)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA foreign_keys = ON")
        yield db


COMPLETED, BROKEN, ALL_BASES = "WHERE status = 'completed'", "WHERE status = 'failed'", ""


def changed(table: str, change: str, where: str) -> str:
    return f"UPDATE {table} SET {change} {where}"


REFUSED = [
    *(changed("knowledge_base", change, ALL_BASES) for change in (
        "id = NULL", "name = NULL", "name = ''", "name = '   '", "status = NULL", "status = 'idle'",
        "chunk_size = NULL", "chunk_overlap = NULL", "chunk_size = 0", "chunk_overlap = -1",
        "chunk_overlap = chunk_size", "chunk_strategy = 'other'", "chunk_separator = NULL", "threshold = 1.5",
        "threshold = -0.1", "document_count = 0", "created_at = NULL", "updated_at = NULL",
    )),
    *(changed("knowledge_base", change, COMPLETED) for change in (
        "error = 'x'", "dimensions = NULL", "embedding_model_id = NULL", "dimensions = 0", "dimensions = -4",
        "embedding_model_id = 'no::model'", "rerank_model_id = 'no::model'", "status = 'failed'",
    )),
    *(changed("knowledge_base", change, BROKEN) for change in (
        "error = NULL", "error = ''", "error = ' '", "status = 'completed'",
    )),
    *(changed("knowledge_item", change, ALL_BASES) for change in (
        "id = NULL", "base_id = NULL", "base_id = 'none'", "type = NULL", "type = 'sitemap'", "data = NULL",
        "status = NULL", "status = 'done'", "error = 'x'", "status = 'failed'", "status = 'failed', error = ' '",
        "created_at = NULL", "updated_at = NULL", "group_id = 'none'",
    )),
    changed("knowledge_item", "status = 'preparing'", "WHERE type = 'note'"),
    changed("knowledge_item", "status = 'reading'", "WHERE type = 'directory'"),
    changed("knowledge_item", "status = 'embedding'", "WHERE type = 'directory'"),
    changed("knowledge_item", "group_id = (SELECT id FROM knowledge_item WHERE type = 'directory')",
            f"WHERE base_id <> (SELECT id FROM knowledge_base {COMPLETED})"),
    *(changed("user_model", f"{name} = NULL", "") for name in
      ("id", "provider_id", "model_id", "name", "capabilities", "supports_streaming", "order_key", "created_at",
       "updated_at")),
    changed("user_model", "provider_id = 'none'", ""),
    *(changed("user_provider", f"{name} = NULL", "") for name in
      ("provider_id", "name", "is_enabled", "order_key", "created_at", "updated_at")),
    "DELETE FROM user_model WHERE id = 'acme::embed-3'",
    "DELETE FROM user_provider WHERE provider_id = 'acme'",
]  # fmt: skip
ALLOWED = [
    changed("knowledge_base", "dimensions = NULL, embedding_model_id = NULL", COMPLETED),
    changed("knowledge_base", "threshold = 1, document_count = 1", ALL_BASES),
    changed("knowledge_item", "status = 'preparing'", "WHERE type = 'directory'"),
    changed("knowledge_item", "status = 'reading'", "WHERE type = 'url'"),
    changed("knowledge_item", "status = 'deleting'", ""),
    changed("knowledge_item", "status = 'failed', error = 'why'", ""),
]


@pytest.mark.thorough
@pytest.mark.parametrize("sql", REFUSED)
def test_what_the_catalog_refuses(copy: apsw.Connection, sql: str) -> None:
    with pytest.raises(apsw.ConstraintError):
        copy.execute(sql)


@pytest.mark.parametrize("sql", ALLOWED)
def test_what_the_catalog_allows(copy: apsw.Connection, sql: str) -> None:
    copy.execute(sql)
    assert copy.changes() > 0


def count(db: apsw.Connection, table: str, where: str = "1") -> int:
    return db.execute(f"SELECT count(*) FROM {table} WHERE {where}").get


def test_children_go_with_their_container_and_items_with_their_base(copy: apsw.Connection) -> None:
    before = count(copy, "knowledge_item")
    copy.execute("DELETE FROM knowledge_item WHERE type = 'directory'")
    assert count(copy, "knowledge_item") == before - 3
    copy.execute("DELETE FROM knowledge_base WHERE name = 'Base kb'")
    assert count(copy, "knowledge_item") == 1


def test_a_rerank_model_that_goes_is_cleared(copy: apsw.Connection) -> None:
    copy.execute("DELETE FROM user_model WHERE id = 'other::rerank'")
    assert count(copy, "knowledge_base", "rerank_model_id IS NOT NULL") == 0
    assert count(copy, "knowledge_base") == 3


# --- order ---------------------------------------------------------------------------------------------------------

BORDERS = [0, 1, 61, 62, 63, 62 + 62**2 - 1, 62 + 62**2, 62 + 62**2 + 62**3 - 1, 62 + 62**2 + 62**3, 10**9]


def test_order_keys_sort_as_text_in_the_order_of_positions() -> None:
    positions = sorted({*range(5000), *BORDERS, *(border + 1 for border in BORDERS)})
    keys = [order_key(position) for position in positions]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert order_key(0) == "a0"


DIGITS = st.text(order_keys.DIGITS, max_size=30)


@given(st.one_of(DIGITS, st.text(max_size=6), st.builds("{}{}".format, st.sampled_from("azZAyB"), DIGITS)))
@example("Zz")
@example("a0V")
@example("zz")
@example("z" * 27)
@example("z" * 40)
@example("~")
@example("é")
def test_a_key_behind_any_other_sorts_behind_it_by_its_bytes(last: str) -> None:
    assert key_after(last).encode() > last.encode()
    assert key_after(key_after(last)) > key_after(last)


@given(st.integers(0, 10**9))
def test_a_key_behind_that_of_a_position_is_that_of_the_next(position: int) -> None:
    assert key_after(order_key(position)) == order_key(position + 1)
    # What stands between two rows gives way to the next whole number, too.
    assert key_after(f"{order_key(position)}V") == order_key(position + 1)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, "a0"), ("", "a0"), ("Zz", "a0"), ("Z0", "Z1"), ("Zzz", "a0"), ("Yzz", "Z0"), ("az", "b00"),
        ("bzz", "c000"), ("a1zzV", "a2"), ("z" * 27, "z" * 27 + "V"), ("z" * 27 + "V", "z" * 27 + "l"),
        ("z" * 27 + "y", "z" * 28), ("z" * 28, "z" * 28 + "V"), ("a", "b00"), ("b0", "c000"), ("zz", "zzV"),
        ("[", "a0"), ("9", "a0"), ("~", "~V"),
    ],
)  # fmt: skip
def test_the_key_behind_another(last: str | None, expected: str) -> None:
    assert key_after(last) == expected


@pytest.mark.thorough
def test_rows_of_many_models_keep_their_order(tmp_path: Path) -> None:
    models = [{"id": f"m{number}", "provider": f"p{number % 2}"} for number in range(140)]
    providers = [{"id": f"p{one}", "models": models[one::2]} for one in range(2)]
    bases = [base(f"b{number}", model=model) for number, model in enumerate(models)]
    library = carried(tmp_path, *bases, llm={"providers": providers})
    rows = sorted(library.catalog("user_model"), key=lambda row: row["order_key"])
    for one in range(2):
        own = [row for row in rows if row["provider_id"] == f"p{one}"]
        assert [row["model_id"] for row in own] == [f"m{number}" for number in range(one, 140, 2)]
        assert [row["order_key"] for row in own] == [order_key(place) for place in range(70)]
    assert [row["order_key"] for row in library.catalog("user_provider")] == ["a0", "a1"]


# --- keys ----------------------------------------------------------------------------------------------------------

SECRET = "sk-planted-0123456789abcdef"
NEEDLES = [SECRET.encode(), SECRET.encode("utf-16-le"), SECRET[3:].encode(), SECRET.encode().hex().encode()]


def keyed(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "apiKey": SECRET, "api_key": SECRET, "headers": {"authorization": SECRET}, "apiHost": SECRET}


def test_no_key_is_anywhere_in_what_a_run_writes_or_says(tmp_path: Path) -> None:
    model = keyed(MODEL)
    llm = keyed(
        {
            "providers": [
                keyed({"id": "acme", "name": "Acme", "models": [model]}),
                keyed({"id": "other", "models": [keyed({"id": "rerank"})]}),
            ],
            "settings": keyed({}),
        }
    )
    items = [keyed(note("n", "L")), keyed(file("f", "F")), keyed(folder("d", "D")), None]
    one = keyed(base(
        "kb", *items, model=model, rerankModel=keyed({"id": "rerank", "provider": "other"}),
        preprocessProvider=keyed({"provider": keyed({"id": "mineru"})}), chunkSize="odd",
    ))  # fmt: skip
    failed = keyed(base("failed", model=keyed({"id": "m", "provider": "gone"})))
    rows = [Row(loader, f"text of {loader}") for loader in ("L", "F", "D", "gone")]
    files = [keyed({"id": "up-f", "name": "x"})]
    source = Source([one, failed], {"kb": rows}, llm=llm, files=files).write(tmp_path / "v1")
    state = json.loads((source / "redux.json").read_text("utf-8"))
    (source / "redux.json").write_text(json.dumps({**state, "settings": keyed({}), "websearch": [keyed({})]}), "utf-8")
    assert SECRET in (source / "redux.json").read_text("utf-8")
    for place, options in ((source, ["--json"]), (pack(source, tmp_path / "backup.zip"), ["-vv"])):
        out = tmp_path / f"out {place.name}"
        done = run("migrate", place, "--to", out, "--now", NOW, "--report", tmp_path / "page.html", *options)
        assert done.status == 1
        written = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        written |= {Path("page"): (tmp_path / "page.html").read_bytes(), Path("stdout"): done.stdout.encode()}
        written[Path("stderr")] = done.stderr.encode()
        assert {"catalog.sqlite", "report.json", "ledger.sqlite", "index.sqlite"} <= {path.name for path in written}
        for path, content in written.items():
            assert not any(needle in content for needle in NEEDLES), path


def test_texts_of_the_catalog_are_json_as_javascript_reads_it(tmp_path: Path) -> None:
    text = 'a "quoted" text\n\twith \\ and 🎉 and \u2028 and \0'
    library = carried(tmp_path, base("kb", note("n", text=text)))
    [row] = library.catalog("knowledge_item")
    assert json.loads(row["data"]) == {"source": text, "content": text}
    with opened(library.path / "catalog.sqlite") as db:
        assert db.execute("SELECT data ->> 'content' = ?, json_valid(data) FROM knowledge_item", (text,)).get == (1, 1)


def test_a_later_run_with_another_base_keeps_what_stands(tmp_path: Path) -> None:
    source = Source([base("one", note("a")), base("two", note("b"))]).write(tmp_path / "v1")
    out = tmp_path / "out"
    run("migrate", source, "--to", out, "--base", "two", "--now", NOW)
    run("migrate", source, "--to", out, "--base", "one", "--now", NOW)
    library = migrate(source, out)
    assert [row["name"] for row in library.catalog("knowledge_base")] == ["Base one", "Base two"]
