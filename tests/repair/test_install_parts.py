"""The parts of an installation, one function at a time; whole commands: ``test_install.py``."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from faults import STOPPED, fails
from harness import NOW_MS

from regraft import identity
from regraft.disk import durable, untrusted_sqlite, writable
from regraft.formats.cherry_v2 import catalog_generation
from regraft.formats.cherry_v2.index.store import IndexStore
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.ledger.ledger import RunRecord
from regraft.ledger.values import FileDetail, RecordedAction, RecordedChange
from repair.changes import files
from repair.cherry_v2.install import base_copy, made_library, profile_rows
from repair.cherry_v2.install.base_copy import CopyIds, FolderCopy, list_files
from repair.cherry_v2.install.profile_rows import ModelMissing, ProfileModels

BASE = "5b0f5be5-6c1b-4b6e-9a51-0c9b8f8a7d10"
INDEX = ".cherry/index.sqlite"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with writable.allow_writes(tmp_path):
        yield tmp_path


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def base_folder(folder: Path, name: str = "base") -> Path:
    """Make the folder of a base: two materials with an index, the path of one of which is its id, and two files."""
    made = folder / name
    (made / ".cherry").mkdir(parents=True)
    (made / "raw").mkdir()
    (made / "raw" / "a.txt").write_bytes(b"first")
    (made / "raw" / "b.txt").write_bytes(b"second")
    with IndexStore(made / INDEX, BASE, create=True) as store:
        for material, path in (("a", "a.txt"), ("b", "b")):
            text = f"text of {material}"
            vectors = {identity.text_hash(text): bytes((ord(material),)) * 16}
            store.rebuild_material(material, path, text, [(0, len(text))], vectors, NOW_MS)
    return made


# --- new ids ---------------------------------------------------------------------------------------------------------


def test_an_item_of_a_copy_has_new_ids_wherever_its_own_stands() -> None:
    ids = CopyIds(BASE, {"a": NOW_MS, "folder": None})
    new = identity.restored_item_id(identity.copied_base_id(BASE), "a", NOW_MS)
    folder = identity.restored_item_id(ids.base, "folder", None)
    assert (ids.base, ids.item("a"), ids.item("folder"), ids.item(None)) == (
        identity.copied_base_id(BASE),
        new,
        folder,
        None,
    )
    assert ids.row({"id": "a", "group_id": "folder", "data": None, "type": "file"}) == {
        "id": new,
        "base_id": ids.base,
        "group_id": folder,
        "data": None,
        "type": "file",
    }
    for data, expected in (
        ('{"relativePath": "a", "source": "ä"}', f'{{"relativePath":"{new}","source":"ä"}}'),
        ('{"indexedRelativePath": "a", "relativePath": "a"}', None),
        # Half a surrogate pair, which only JSON can hold, stays an escape.
        ('{"relativePath": "a", "source": "\\ud800ä"}', f'{{"relativePath":"{new}","source":"\\ud800\\u00e4"}}'),
        # Where it is a part of something else, nothing is written anew.
        *((same, same) for same in ('{"source": "a",  "relativePath": "a.txt"}', '["a"]', '"a"', '{"a', "5", 5)),
    ):
        told = ids.row({"id": "a", "data": data})["data"]
        assert told == (expected or f'{{"indexedRelativePath":"{new}","relativePath":"{new}"}}'), data


def test_an_index_of_a_copy_has_the_ids_that_follow_from_the_new_ones(place: Path) -> None:
    index, ids = base_folder(place) / INDEX, CopyIds(BASE, {"a": NOW_MS})
    before = rows(index, "SELECT * FROM embedding ORDER BY 1"), rows(index, "SELECT * FROM content ORDER BY 1")
    base_copy.rekey_index(index, ids)
    assert rows(index, "SELECT base_id FROM meta") == [(ids.base,)]
    new = {name: ids.item(name) for name in ("a", "b")}
    assert rows(index, "SELECT material_id, relative_path FROM material ORDER BY rowid") == [
        (new["a"], "a.txt"),
        (new["b"], new["b"]),
    ]
    units = rows(index, "SELECT unit_id, material_id, content_hash, unit_index, char_start, char_end FROM search_unit")
    assert [unit for unit, *_ in units] == [identity.unit_id(*fields) for _, *fields in units]
    assert {material for _, material, *_ in units} == set(new.values())
    bodies = rows(index, "SELECT target_id, search_text_id FROM search_text")
    assert sorted(bodies) == sorted((unit, identity.body_id(unit)) for unit, *_ in units)
    after = rows(index, "SELECT * FROM embedding ORDER BY 1"), rows(index, "SELECT * FROM content ORDER BY 1")
    assert after == before


# --- the copy of a folder --------------------------------------------------------------------------------------------


def copy_of(folder: Path, new_ids: CopyIds | None = None, **more: Any) -> FolderCopy:
    """Return what copies all files of a folder."""
    usual = {"folder": lambda _: folder, "archive": None, "crc32": lambda path: zlib.crc32(path.read_bytes())}
    source: Any = SimpleNamespace(**{**usual, **more})
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm")))
    return FolderCopy(source, BASE, list_files(tuple(found)), new_ids)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_copy_is_read_back_and_on_the_disk(is_new: bool, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, ids = base_folder(place), CopyIds(BASE, {})
    copy, flushed = copy_of(folder, ids if is_new else None), []
    for name in ("sync_tree", "sync_file", "sync_folder"):
        monkeypatch.setattr(durable, name, lambda path, name=name: flushed.append((name, path)))
    copy.make(place / "new")
    expected = [("sync_tree", place / "new")]
    if is_new:
        expected += [("sync_file", place / "new" / INDEX), ("sync_folder", place / "new" / ".cherry")]
    assert flushed == expected
    for name in ("raw/a.txt", "raw/b.txt", INDEX):
        is_same = (place / "new" / name).read_bytes() == (folder / name).read_bytes()
        assert is_same is (not is_new or name != INDEX)
    assert rows(place / "new" / INDEX, "SELECT base_id FROM meta") == [(ids.base if is_new else BASE,)]
    # Undo compares the folder with it.
    assert copy.mark(place / "new") == files.bytes_fingerprint(place / "new")
    with pytest.raises(FileExistsError):
        copy.make(place / "new")


def test_a_copy_of_another_base_is_refused(place: Path) -> None:
    folder = base_folder(place)
    change(folder / INDEX, f"UPDATE meta SET base_id = '{identity.base_id('x')}'")
    with fails("IndexForeign", match=identity.base_id("x")):
        copy_of(folder).make(place / "new")


@pytest.mark.parametrize("when", ["before", "gone", "meanwhile"])
def test_a_file_that_is_written_to_since_it_was_listed_is_not_copied(
    when: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = base_folder(place)
    copy, path, real = copy_of(folder), folder / "raw" / "b.txt", base_copy._copy_bytes

    def write_meanwhile(one: Path, target: Path) -> files.FileDigest:
        digest = real(one, target)
        if one == path:
            path.write_bytes(b"longer than before")
        return digest

    if when == "before":
        path.write_bytes(b"longer than before")
    elif when == "gone":
        path.unlink()
    else:
        monkeypatch.setattr(base_copy, "_copy_bytes", write_meanwhile)
    with fails("PlanOutdated", match=r"b\.txt.*it was changed in the meantime"):
        copy.make(place / "new")


@pytest.mark.parametrize("is_linked", [True, False])
def test_files_of_an_archive_are_moved_into_the_copy_where_links_can_be_made(
    is_linked: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = base_folder(place)
    if not is_linked:

        def refuse(*_: Path) -> None:
            raise OSError("no hard links")

        monkeypatch.setattr(durable, "link", refuse)
    copy_of(folder, archive=place / "library.zip").make(place / "new")
    for name in ("raw/a.txt", INDEX):
        assert (place / "new" / name).samefile(folder / name) is is_linked
        assert (place / "new" / name).read_bytes() == (folder / name).read_bytes()
    with fails("CopyDiffers", STOPPED, match=r"it differs from .*") if is_linked else pytest.MonkeyPatch.context():
        copy_of(folder, archive=place / "library.zip", crc32=lambda _: 0).make(place / "again")


def test_a_database_is_copied_with_its_log(place: Path) -> None:
    folder = base_folder(place)
    with closing(sqlite3.connect(folder / INDEX)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE material SET relative_path = 'in the log' WHERE material_id = 'a'")
        db.commit()
        copy_of(folder).make(place / "new")
    assert rows(place / "new" / INDEX, "SELECT relative_path FROM material ORDER BY 1") == [("b",), ("in the log",)]


@pytest.mark.parametrize("how", ["exact", "crc32", "rows"])
def test_what_was_copied_is_compared_with_what_it_was_copied_from(
    how: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_copy, "CHUNK_BYTES", 100)
    path = base_folder(place) / INDEX
    target = shutil.copyfile(path, place / "copy")
    change(target, "CREATE TABLE more (x)", "DROP TABLE more")
    known: dict[str, Any] = {
        "exact": {"exact": files.FileDigest.of(target).exact},
        "crc32": {"crc32": zlib.crc32(target.read_bytes())},
        "rows": {},
    }[how]
    copied = base_copy._CopiedFile(path=path, target=target, **known)
    assert copied.read_back().without_counters == files.FileDigest.of(target).without_counters
    change(target, "UPDATE material SET relative_path = 'another' WHERE rowid = 1")
    with fails("CopyDiffers", STOPPED, match=r"copy.*it differs from .*index\.sqlite"):
        copied.read_back()


def test_what_of_a_folder_is_the_same_base(place: Path) -> None:
    folder = base_folder(place)
    more = "INSERT INTO embedding SELECT 'x', vector_blob, created_at FROM embedding LIMIT 1"
    for number, (is_same, own, others) in enumerate(
        (
            (True, [], []),
            # Further vectors, of other stores or embedded since, are no difference; those that are gone are.
            (True, [], [more]),
            (False, [more], []),
            (False, [], ["UPDATE embedding SET vector_blob = zeroblob(16)"]),
            (True, [], ["UPDATE embedding SET created_at = 5", more]),
            (False, [], [more, "DELETE FROM search_text WHERE rowid = 1"]),
            (False, ["DELETE FROM search_text WHERE rowid = 1"], [more]),
            *(
                (False, [], [more, f"UPDATE {table} SET {column} = 'x' WHERE rowid = 1"])
                for table, column in TEXTS.items()
            ),
            (False, [], ["ALTER TABLE embedding RENAME TO other"]),
            (False, ["ALTER TABLE material RENAME TO other"], []),
        )
    ):
        one, other = (shutil.copytree(folder, place / f"{number}-{name}") for name in ("one", "other"))
        change(one / INDEX, "PRAGMA ignore_check_constraints = ON", *own)
        change(other / INDEX, "PRAGMA ignore_check_constraints = ON", *others)
        assert base_copy.is_same_base_folder(one, other) is is_same, (own, others)
    other = shutil.copytree(folder, place / "other")
    change(other / INDEX, more)
    (other / "raw" / "a.txt").write_bytes(b"edited")
    assert not base_copy.is_same_base_folder(folder, other)
    shutil.rmtree(other)
    shutil.copytree(folder, other)
    (other / INDEX).write_bytes(b"SQLite format 3\0" + b"\xa5" * 4096)
    assert not base_copy.is_same_base_folder(folder, other)
    (other / INDEX).unlink()
    assert not base_copy.is_same_base_folder(folder, other)


TEXTS = {"content": "text", "material": "relative_path", "search_unit": "unit_type", "search_text": "kind"}


# --- items -----------------------------------------------------------------------------------------------------------


def item(number: int, kind: str = "external", status: str = "completed", **data: object) -> dict[str, Any]:
    return {"id": f"item-{number}", "type": kind, "status": status, "data": json.dumps(data, ensure_ascii=False)}


def test_external_items_become_files_with_the_keys_that_files_have() -> None:
    items = [
        item(1, source="/a", relativePath="ä.txt", externalId="9"),
        item(2, status="deleting"),
        item(3, "note", source="s", content="c"),
    ]
    converted = [*profile_rows.convert_external_items(items)]
    assert [(one["id"], one["type"]) for one in converted] == [("item-1", "file"), ("item-3", "note")]
    assert converted[0]["data"] == '{"source":"/a","relativePath":"ä.txt"}'
    assert converted[1] == items[2]
    assert profile_rows.unfinished_external_items([*items, item(4, "note", "deleting")]) == [items[1]]


def test_items_are_named_by_their_titles_names_or_ids() -> None:
    named = [
        item(1, title="Report\n2"),
        item(2, "file", title="  ", source="/x/a.txt", relativePath="a.txt"),
        item(3),
        item(4, title=5),
    ]
    assert profile_rows.name_some_items(named[:1]) == "Report 2"
    assert profile_rows.name_some_items(named[:3]) == "Report 2, a.txt, item-3"
    assert profile_rows.name_some_items(named) == "Report 2, a.txt, item-3 and 1 more"
    said = profile_rows.describe_refused_items({"external": named[:1]})
    assert said == (
        "the profile's application does not support 1 item of type external (Report 2); use --external-as-files to"
        " install them as files"
    )
    both = profile_rows.describe_refused_items({"sitemap": named[2:], "external": named[:1]})
    assert both == (
        "the profile's application does not support 1 item of type external (Report 2); 2 items of type sitemap"
        " (item-3, item-4); install into a profile of a newer version of the application"
    )


# --- models ----------------------------------------------------------------------------------------------------------


def models(there: Mapping[str, tuple[str, str]], source: Mapping[str, Any], **more: Any) -> ProfileModels:
    """Return the models of a profile with the provider ``acme`` and, of the source, their rows."""
    library: Any = SimpleNamespace(models=source, base_of={"v1": BASE}.get)
    options = {"model_overrides": ModelOverrides(), "providers": {"acme"}, "recreated": frozenset(), **more}
    return ProfileModels(library=library, there=set(there), pairs=set(there.values()), **options)


SMALL = {"acme::small": ("acme", "small")}


def test_a_base_keeps_its_model_or_gets_the_one_that_is_chosen() -> None:
    chosen = models(SMALL, {}, model_overrides=ModelOverrides({"v1": "acme::small", "gone::x": "acme::small"}))
    assert chosen.embedding(BASE, None) is None
    assert chosen.unused() == ["the model v1", "the model gone::x"]
    assert chosen.embedding(BASE, "else::y") == "acme::small"
    assert chosen.unused() == ["the model gone::x"]
    assert chosen.embedding("another", "gone::x") == "acme::small"
    assert (chosen.unused(), chosen.new) == ([], {})
    assert (chosen.rerank(None), chosen.rerank("gone::x"), chosen.rerank("else::y")) == (None, "acme::small", None)


def test_a_model_is_made_where_its_provider_is_and_no_other_has_its_name() -> None:
    row = {"id": "acme::large", "provider_id": "acme", "model_id": "large-2", "name": "Large"}
    made = models(SMALL, {"acme::large": row, "acme::again": {**row, "model_id": "small"}})
    assert made.embedding(BASE, "acme::large") == "acme::large"
    assert {key: (one.provider_id, one.model_id, one.name) for key, one in made.new.items()} == {
        "acme::large": ("acme", "large-2", "Large")
    }
    # It is known from now on, and its name is taken.
    assert made.rerank("acme::large") == "acme::large"
    made.library.models["acme::other"] = row
    for taken in ("acme::again", "acme::other"):
        with pytest.raises(ModelMissing) as caught:
            made.embedding(BASE, taken)
        assert caught.value.model == taken
    assert list(made.new) == ["acme::large"]


def test_a_model_of_the_users_word_has_the_name_in_its_id() -> None:
    options = ModelOverrides({}, frozenset({"acme::large", "acme::unused", "other::x"}))
    made = models(SMALL, {"other::x": {"provider_id": "someone", "model_id": "y"}}, model_overrides=options)
    made.recreated = frozenset({"other", "nobody"})
    assert made.embedding(BASE, "acme::large") == "acme::large"
    assert (made.new["acme::large"].provider_id, made.new["acme::large"].model_id) == ("acme", "large")
    # The row of another provider says nothing of it.
    assert made.embedding(BASE, "other::x") == "other::x"
    assert made.new["other::x"].model_id == "x"
    assert made.unused() == ["the model acme::unused", "the provider nobody"]


@pytest.mark.parametrize("count", [0, 1, 8, 9, 1009])
@pytest.mark.parametrize("provider", ["acme", "other", "made"])
def test_a_model_that_is_nowhere_is_named_with_what_to_do(count: int, provider: str) -> None:
    there = {f"p::{number:04}": ("p", f"{number}") for number in range(count)}
    profile = models(there, {}, recreated=frozenset({"made"}))
    profile.there.add(5)
    with pytest.raises(ModelMissing) as caught:
        profile.embedding(BASE, f"{provider}::x")
    known = ", ".join(sorted(there)[:8])
    listed = {0: "", 1: " (p::0000)", 8: f" ({known})", 9: f" ({known}, 1 more)", 1009: f" ({known}, 1,001 more)"}
    chosen = f"or choose an existing one with --map-model {provider}::x=PROVIDER::MODEL{listed[count]}"
    if provider == "other":
        assert str(caught.value) == (
            "its model other::x and the provider other are not in the profile: create it as a custom provider,"
            f" disabled and without API keys, with --recreate-provider other, {chosen}"
        )
    else:
        assert str(caught.value) == (
            f"its model {provider}::x is neither in the profile nor in the library: --recreate-model"
            f" {provider}::x, {chosen}"
        )
    assert caught.value.model == f"{provider}::x"


def test_models_of_a_profile_are_read_without_keys(place: Path) -> None:
    with closing(apsw.Connection(":memory:")) as db:
        db.execute("CREATE TABLE user_model (id, provider_id, model_id); CREATE TABLE user_provider (provider_id)")
        db.execute("INSERT INTO user_model VALUES ('acme::a', 'acme', 'a'), ('b', 'other', 'c')")
        db.execute("INSERT INTO user_provider VALUES ('acme'), ('other')")
        library: Any = SimpleNamespace()
        found = profile_rows.read_models(db, library, ModelOverrides(), frozenset({"other", "new"}))
    assert (found.there, found.pairs) == ({"acme::a", "b"}, {("acme", "a"), ("other", "c")})
    assert (found.providers, found.recreated) == ({"acme", "other"}, {"new"})


# --- links of assistants ---------------------------------------------------------------------------------------------


def assistants(*tables: str) -> apsw.Connection:
    db = apsw.Connection(":memory:")
    for statement in (
        "CREATE TABLE assistant (id, settings, deleted_at, note)",
        "CREATE TABLE assistant_knowledge_base (assistant_id, knowledge_base_id)",
        *tables,
    ):
        db.execute(statement)
    return db


def links_of(db: apsw.Connection) -> list[tuple[str, str]]:
    store: Any = SimpleNamespace(root=Path("nowhere"))
    with closing(db), pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile_rows, "_links_in_v1", lambda _: iter(()))
        return profile_rows.find_assistant_links(store, db, {"old": "new", "older": "newer"}.get)


def test_assistants_are_linked_with_the_bases_that_they_name() -> None:
    settings = {
        "one": '{"knowledgeBaseIds": ["old", "unknown", {"id": "older"}, 5]}',
        "two": '{"a": [{"deep": {"Knowledge": "old"}}], "other": "older"}',
        "three": '{"knowledge": "old"',
        "gone": '{"knowledge": "old"}',
    }
    values = ", ".join(f"('{name}', '{text}', {1 if name == 'gone' else 'NULL'}, 5)" for name, text in settings.items())
    db = assistants(
        f"INSERT INTO assistant VALUES {values}",
        'INSERT INTO assistant VALUES (7, \'{"knowledge": "old"}\', NULL, 5)',
        # A row that has the base, one whose base is gone, and one of an assistant that is gone.
        "INSERT INTO assistant_knowledge_base VALUES ('one', 'new'), ('three', 'older'), ('nobody', 'old')",
    )
    assert links_of(db) == [("one", "newer"), ("three", "newer"), ("two", "new")]


def test_an_application_without_such_links_gets_none() -> None:
    row = "INSERT INTO assistant (id, settings) VALUES ('one', '{\"knowledge\": \"old\"}')"
    assert links_of(assistants(row)) == [("one", "new")]
    assert links_of(assistants(row, "ALTER TABLE assistant DROP COLUMN deleted_at")) == [("one", "new")]
    for statement in (
        "ALTER TABLE assistant RENAME id TO key",
        "ALTER TABLE assistant_knowledge_base DROP COLUMN knowledge_base_id",
        "ALTER TABLE assistant_knowledge_base DROP COLUMN assistant_id",
    ):
        assert links_of(assistants(row, statement)) == []


@pytest.mark.parametrize(("depth", "is_found"), [(12, True), (13, False)])
@pytest.mark.parametrize("kind", ["object", "list"])
def test_settings_are_searched_to_a_depth(kind: str, depth: int, is_found: bool) -> None:
    value: Any = {"knowledge": "old"}
    for _ in range(depth - 1):
        value = {"x": value} if kind == "object" else [value]
    text = json.dumps(value)
    assert links_of(assistants(f"INSERT INTO assistant (id, settings) VALUES ('one', '{text}')")) == (
        [("one", "new")] if is_found else []
    )


# --- the library of a migration into a profile -----------------------------------------------------------------------


def action(name: str, subject: str | None = None, size: int = 0) -> RecordedAction:
    return RecordedAction(name, None, subject, 1, size, None, name)


def past(run_id: str, *actions: RecordedAction, states: tuple[str, ...] = (), **more: Any) -> RunRecord:
    detail = FileDetail(new=True, mark=None, staged="work/x", made=None, actions=(0, 1))
    usual: dict[str, Any] = {
        "command": "install",
        "source": "/v1",
        "status": "stopped",
        "started_at": NOW_MS,
        "finished_at": None,
        "changes": tuple(
            RecordedChange(
                change_id=number,
                run_id=run_id,
                means="file",
                path="x",
                kept="undo/x",
                bytes=0,
                detail=detail,
                state=state,
            )
            for number, state in enumerate(states)
        ),
    }
    return RunRecord(run_id=run_id, actions=actions, **{**usual, **more})


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ([], None),
        ([past("a", action("write-library", "/l"), states=("done",))], "a"),
        ([past("a", action("read-library", "/l"), states=("done",))], "a"),
        ([past("a", action("insert-base"), states=("done",))], None),
        ([past("a", action("write-library", "/l"), states=("undone",))], None),
        ([past("a", action("write-library", "/l"), states=("done",), status="finished")], None),
        ([past("a", action("write-library", "/l"), states=("done",), command="repair")], None),
        (
            [
                past("a", action("write-library", "/l"), states=("done",)),
                past("b", action("write-library", "/l"), states=("done",)),
                past("c", action("write-library", "/l")),
            ],
            "b",
        ),
    ],
)
def test_which_installation_is_continued(
    runs: list[RunRecord], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made_library.ledgers, "read_runs", lambda _: runs)
    assert made_library.find_partial_run(Path("profile")) == found


def test_a_library_is_made_from_a_source_and_for_a_profile_by_all_of_its_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, profile = place / "v1", place / "profile"
    profile.mkdir()
    source.write_bytes(b"backup")
    known = made_library.library_actions(source, profile)
    assert [(one.action, one.subject, one.count, one.bytes) for one in known] == [
        (made_library.FOR_PROFILE, str(profile), 1, 0),
        (made_library.FROM_SOURCE, str(source), 1, 6),
    ]
    assert made_library.library_actions(profile, source)[1].bytes == 0
    own = past("a", *known, command="migrate", source=str(source))
    other = past("b", action("x"), command="migrate", source="/elsewhere")
    renamed = past("c", *known, command="import", source=str(source))
    for runs, is_from, is_for in (
        ([], False, False),
        ([own], True, True),
        ([own, own], True, True),
        ([own, other], False, False),
        ([renamed], False, True),
    ):
        monkeypatch.setattr(made_library.ledgers, "read_runs", lambda _, runs=runs: runs)
        assert made_library.is_made_from(place / "library", source) is is_from
        assert made_library.is_made_for(place / "library", profile) is is_for
        for wrote in (True, False):
            said = made_library.profile_action(place / "library", profile, 2, wrote=wrote)
            is_written = not runs or is_for
            assert (said.action, said.count, said.subject) == (
                "write-library" if is_written else "read-library",
                2,
                str(place / "library"),
            )
            assert said.message.startswith("write 2 bases" if is_written and wrote else "use the library")


@pytest.mark.parametrize(
    ("states", "is_removed"),
    [
        (("undone",), True),
        (("undone", "dropped"), True),
        ((), True),
        (("done", "undone"), False),
        (("undoing",), False),
    ],
)
def test_a_library_that_an_undo_moved_aside_goes_once_the_undo_is_complete(
    states: tuple[str, ...], is_removed: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, aside = place / "library", place / ".library.undo-abcdef"
    for folder in (library, aside):
        (folder / ".regraft").mkdir(parents=True)
        (folder / "catalog.sqlite").write_bytes(b"x")
    run = past("20261121T120000Z-abcdef", action("write-library", str(library)), states=states)
    monkeypatch.setattr(made_library.ledgers, "read_runs", lambda _: [run])
    monkeypatch.setattr(made_library, "is_made_for", lambda one, profile: (one, profile) == (aside, place / "profile"))
    made_library.remove_leftovers(place / "profile")
    assert sorted(path.name for path in place.iterdir()) == [
        *([] if is_removed else [".library.undo-abcdef"]),
        "library",
    ]
    assert (library / "catalog.sqlite").read_bytes() == b"x"


def test_a_folder_of_others_is_not_taken_for_a_library_that_was_moved_aside(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = base_folder(place, ".library.undo-abcdef")
    run = past("20261121T120000Z-abcdef", action("write-library", str(place / "library")), states=("undone",))
    monkeypatch.setattr(made_library.ledgers, "read_runs", lambda path: [run] if path == place / "profile" else [])
    made_library.remove_leftovers(place / "profile")
    assert (aside / "raw" / "a.txt").read_bytes() == b"first"


def test_the_ledger_of_a_library_is_removed_last(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed meanwhile leaves a folder that is still recognized."""
    library, removed, real = base_folder(place, "library"), [], durable.remove_tree
    (library / ".regraft").mkdir()
    monkeypatch.setattr(durable, "remove_tree", lambda path: (removed.append(path.name), real(path))[1])
    made_library._remove(library)
    assert removed == [".cherry", "raw", "library"]
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_library_is_put_back_if_its_undo_fails(is_stopped: bool, place: Path) -> None:
    library, aside = base_folder(place, "library"), place / ".library.undo-a"
    try:
        with made_library._removing(library, aside):
            assert not library.exists()
            assert (aside / "raw").is_dir()
            if is_stopped:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert is_stopped
    assert [path.name for path in place.iterdir()] == (["library"] if is_stopped else [])


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(
            (name, None)
            for name in ("catalog.sqlite", "report.json", ".regraft/ledger.sqlite", "KnowledgeBase/b/raw/a/b")
        ),
        *((f"KnowledgeBase/b/.cherry/index.sqlite{end}", None) for end in ("", "-wal", "-shm", "-journal")),
        ("KnowledgeBase/b/.DS_Store", None),
        ("mine.txt", "mine.txt"),
        ("KnowledgeBase/b/mine.txt", "KnowledgeBase/b/mine.txt"),
        ("KnowledgeBase/b/.cherry/mine", "KnowledgeBase/b/.cherry/mine"),
        ("KnowledgeBase/c/raw/a", "KnowledgeBase/c"),
        ("report.json/mine", "report.json/mine"),
    ],
)
def test_a_file_that_no_migration_writes_is_found(name: str, other: str | None, place: Path) -> None:
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(b"x")
    assert made_library._find_other_file(place, {"b"}) == other


def test_a_library_may_be_the_last_copy_of_its_source(place: Path) -> None:
    source = place / "v1.zip"
    source.write_bytes(b"backup")
    (place / "folder").mkdir()
    of_file, of_folder = (
        past("a", action(made_library.FROM_SOURCE, str(path), size))
        for path, size in ((source, 6), (place / "folder", 0))
    )

    def lost(*runs: RunRecord, has_all: bool = True) -> str | None:
        return made_library._lost_source(place, runs, lambda _, library: library == place and has_all)

    assert lost(of_folder, of_file, past("b", action("x", "/gone"))) is None
    gone = f"{source}, which it was migrated from, is gone or changed"
    assert lost(of_file, has_all=False) == gone
    source.write_bytes(b"another")
    assert lost(of_folder, of_file) == gone
    source.unlink()
    assert lost(of_folder, of_file) == gone


# --- rows ------------------------------------------------------------------------------------------------------------


def catalog(path: Path, bases: str = "", items: str = "") -> Path:
    """Make a catalog whose bases and items have one more rule."""
    with closing(sqlite3.connect(path)) as db:
        for table, columns in catalog_generation.INSERTED_COLUMNS.items():
            rules = {
                ("knowledge_base", "id"): " PRIMARY KEY",
                ("knowledge_item", "id"): " PRIMARY KEY",
                ("knowledge_item", "group_id"): " REFERENCES knowledge_item (id)",
                ("knowledge_base", "name"): bases,
                ("knowledge_item", "type"): items,
            }
            listed = ", ".join(f'"{name}"{rules.get((table, name), "")}' for name in columns)
            db.execute(f'CREATE TABLE "{table}" ({listed})')
    return path


BASES = "INSERT INTO knowledge_base (id, name, group_id, embedding_model_id, status) VALUES {}"
ITEMS = "INSERT INTO knowledge_item (id, base_id, group_id, type, data, status) VALUES {}"


@pytest.fixture
def source(place: Path) -> Path:
    """Make a catalog with a base of two items, one in the folder of the other, and one of an external item."""
    path = catalog(place / "library.sqlite")
    change(
        path,
        BASES.format("('b', 'Notes', 'a group', 'gone::x', 'completed'), ('c', 'Links', NULL, NULL, 'completed')"),
        ITEMS.format(
            "('folder', 'b', NULL, 'directory', '{\"source\": \"/a\"}', 'completed'),"
            " ('note', 'b', 'folder', 'note', '{\"source\": \"s\", \"content\": \"c\"}', 'completed'),"
            " ('link', 'c', NULL, 'external', '{\"source\": \"/x\", \"relativePath\": \"x\"}', 'failed')"
        ),
    )
    return path


def new_rows(source: Path, target: Path, db: apsw.Connection, *bases: profile_rows.NewBase) -> profile_rows.NewRows:
    times = {"created_at": 1, "updated_at": 1}
    return profile_rows.NewRows(
        tables=catalog_generation.read_tables(target, db),
        catalog=source,
        mark=untrusted_sqlite.database_mark(source),
        providers=({"provider_id": "acme", "name": "Acme", **times},),
        models=(),
        bases=bases,
        links=({"assistant_id": "one", "knowledge_base_id": "b", **times},),
    )


def test_bases_come_with_their_items_and_without_their_group(place: Path, source: Path) -> None:
    target, ids = catalog(place / "profile.sqlite"), CopyIds("c", {})
    copy = profile_rows.NewBase(ids.base, "c", new_ids=ids, external_as_files=True)
    with closing(apsw.Connection(str(target))) as db:
        wanted = new_rows(source, target, db, profile_rows.NewBase("b", "b", "acme::x", "acme::r", name="New"), copy)
        assert wanted.changed == ("knowledge_base", "knowledge_item", "user_provider", "assistant_knowledge_base")
        with db:
            wanted.apply(db)
    assert rows(target, "SELECT id, name, group_id, embedding_model_id, rerank_model_id FROM knowledge_base") == [
        ("b", "New", None, "acme::x", "acme::r"),
        (ids.base, "Links", None, None, None),
    ]
    assert rows(target, "SELECT id, base_id, group_id, type, data FROM knowledge_item") == [
        ("folder", "b", None, "directory", '{"source": "/a"}'),
        ("note", "b", "folder", "note", '{"source": "s", "content": "c"}'),
        (ids.item("link"), ids.base, None, "file", '{"source":"/x","relativePath":"x"}'),
    ]
    assert rows(target, "SELECT provider_id, name, created_at FROM user_provider") == [("acme", "Acme", 1)]
    assert rows(target, "SELECT assistant_id, knowledge_base_id FROM assistant_knowledge_base") == [("one", "b")]


@pytest.mark.parametrize(
    ("rules", "statements", "said"),
    [
        ({"items": " CHECK (type <> 'note')"}, [], r"profile\.sqlite.*a constraint refuses a row \(.*CHECK"),
        (
            {},
            ["DELETE FROM knowledge_item WHERE id = 'folder'"],
            "a row of knowledge_item would refer to a missing row",
        ),
    ],
)
def test_rows_that_the_profile_would_not_take_any_more_are_not_written(
    rules: dict[str, str], statements: list[str], said: str, place: Path, source: Path
) -> None:
    target = catalog(place / "profile.sqlite", **rules)
    # What dangled before is no matter of it.
    change(target, ITEMS.format("('old', 'x', 'nowhere', 'directory', '{}', 'completed')"))
    change(source, *statements)
    with closing(apsw.Connection(str(target))) as db:
        wanted = new_rows(source, target, db, profile_rows.NewBase("b", "b"))
        with fails("PlanOutdated", match=said), db:
            wanted.apply(db)
        change(source, 'UPDATE knowledge_item SET data = \'{"source": "/a longer path, so that the size differs"}\'')
        os.utime(source, (1, 1))
        with fails("PlanOutdated", match=r"library\.sqlite.*it was changed in the meantime"), db:
            wanted.apply(db)
    assert rows(target, "SELECT count(*) FROM knowledge_base") == [(0,)]
    assert rows(target, "SELECT id FROM knowledge_item") == [("old",)]


def test_rows_are_tried_on_empty_copies_of_the_profiles_tables(place: Path, source: Path) -> None:
    rule = " CHECK (type IN ('note', 'directory', 'file'))"
    target = catalog(place / "profile.sqlite", " CHECK (name <> 'Forbidden')", rule)
    with closing(apsw.Connection(str(target))) as db, closing(apsw.Connection(str(source))) as library:
        tables = catalog_generation.read_tables(target, db)
        tried = profile_rows.RowsRehearsal(db, library, tables)
        with closing(tried):
            notes, links = (profile_rows.NewBase(name, name) for name in ("b", "c"))
            for _ in range(2):
                # Nothing stays of what was tried.
                assert tried.problem(notes) is None
            assert "Forbidden" in str(tried.problem(identity.replace(notes, name="Forbidden")))
            assert "type IN" in str(tried.problem(links))
            assert tried.problem(identity.replace(links, external_as_files=True)) is None
            assert tried.refused_items(notes) == {}
            assert {kind: [row["id"] for row in refused] for kind, refused in tried.refused_items(links).items()} == {
                "external": ["link"]
            }
            tried.demand("knowledge_base", [{"id": "x", "name": "Fine"}])
            with fails("ProfileUnknown", match=r"a database with additional constraints \(.*Forbidden"):
                tried.demand("knowledge_base", [{"id": "x", "name": "Forbidden"}])
            library.execute("UPDATE knowledge_item SET group_id = 'gone' WHERE id = 'note'")
            assert tried.problem(notes) == "the folder of an item is missing"
            # Of another type, it would be refused as well.
            library.execute("UPDATE knowledge_item SET type = 5 WHERE id = 'link'")
            assert tried.refused_items(links) == {}
            folder = tried._path.parent
            assert folder.is_dir()
        assert not folder.exists()
        assert db.execute("SELECT count(*) FROM knowledge_base").get == 0
        with closing(apsw.Connection(":memory:")) as other:
            other.execute(
                "CREATE TABLE knowledge_item (id, base_id, group_id, type CHECK (type = 'note'), data, status)"
            )
            other.execute("ALTER TABLE knowledge_item ADD error; ALTER TABLE knowledge_item ADD created_at")
            other.execute("ALTER TABLE knowledge_item ADD updated_at")
            library.execute("UPDATE knowledge_item SET type = 'external' WHERE id = 'link'")
            with closing(
                profile_rows.RowsRehearsal(other, library, catalog_generation.read_tables(target, other))
            ) as no:
                assert no.refused_items(links) == {}


def test_a_profile_needs_the_columns_that_any_row_uses(place: Path, source: Path) -> None:
    target = catalog(place / "profile.sqlite")
    change(target, "ALTER TABLE knowledge_base DROP COLUMN threshold", "ALTER TABLE knowledge_item DROP COLUMN error")
    with closing(apsw.Connection(str(target))) as db, closing(apsw.Connection(str(source))) as library:
        tables = catalog_generation.read_tables(target, db)
        profile_rows.demand_insertable(tables, library)
        library.execute("UPDATE knowledge_item SET error = 'odd' WHERE id = 'link'")
        with fails("ProfileUnknown", match="a table knowledge_item without error"):
            profile_rows.demand_insertable(tables, library)
