"""Golden migrations, compared field by field, from the export folder and from a backup zip made of it."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from golden_cases import CASES, Shape, as_dicts, expected_bases, migrate, source_of, v1_times
from harness import NOW_MS, snapshot

from regraft.disk import sqlite


@pytest.mark.parametrize("case", CASES)
def test_models_and_providers_are_written_in_full(case: str, golden, tmp_path: Path) -> None:
    folder = golden(case)
    migrate(folder / "v1", tmp_path / "library")
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    with sqlite.open_readonly(tmp_path / "library" / "catalog.sqlite") as db:
        models, providers = [list(as_dicts(db, f"SELECT * FROM {table}")) for table in ("user_model", "user_provider")]
    # The application writes what differs from its own list of models; a library has none to inherit from.
    model = {
        "id": "openai::text-embedding-3-small",
        "provider_id": "openai",
        "model_id": "text-embedding-3-small",
        "name": "text-embedding-3-small",
        "group": None,
        "capabilities": '["embedding"]',
        "supports_streaming": 1,
        "order_key": "a0",
        "created_at": NOW_MS,
        "updated_at": NOW_MS,
    }
    provider = {
        "provider_id": "openai",
        "name": "openai",
        "is_enabled": 1,
        "order_key": "a0",
        "created_at": NOW_MS,
        "updated_at": NOW_MS,
    }
    assert (models, providers) == ([model], [provider])
    same = ("id", "provider_id", "model_id", "order_key")
    assert [[row[key] for key in same] for row in expected["user_model"]] == [
        [row[key] for key in same] for row in models
    ]
    assert [row["provider_id"] for row in expected["user_provider"]] == ["openai"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["folder", "zip", "zip version 1", "export of 2.0"])
def test_every_field_is_as_expected(case: str, kind: str, golden, tmp_path: Path) -> None:
    folder = golden(case)
    before = snapshot(folder / "v1")
    report = migrate(source_of(kind, folder / "v1", tmp_path), tmp_path / "library")
    found = Shape(tmp_path / "library", report).bases()
    times = v1_times(folder)
    wanted = expected_bases(folder)
    for base in wanted:
        for item in base["items"]:
            # v1's time is kept where the application overwrites it.
            item["updated_at"] = times[item["key"].split("#")[0]]
    assert [base["legacyId"] for base in found] == [base["legacyId"] for base in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        for field in theirs:
            assert ours[field] == theirs[field], (theirs["legacyId"], field)
        assert ours.keys() == theirs.keys()
    assert snapshot(folder / "v1") == before


def test_the_loaders_of_children_are_told(golden, tmp_path: Path) -> None:
    folder = golden("directory")
    report = migrate(folder / "v1", tmp_path / "library")
    shape = Shape(tmp_path / "library", report)
    bases = shape.bases()
    owners = {
        shape.item_keys[child]: loader for base in report["ids"]["children"].values() for loader, child in base.items()
    }
    wanted = {
        item["key"]: item["loaderId"]
        for base in json.loads((folder / "expected.json").read_text("utf-8"))["bases"]
        for item in base["items"]
        # A loader that a standalone item owns is not the child's, whatever the application books.
        if "loaderId" in item and (item["status"] == "completed" or base["legacyId"] == "dirG")
    }
    assert owners == wanted
    assert bases


def test_where_ours_is_better_it_is_what_the_application_got_wrong(golden, tmp_path: Path) -> None:
    folder = golden("unicode")
    report = migrate(folder / "v1", tmp_path / "library")
    theirs = {base["legacyId"]: base for base in json.loads((folder / "expected.json").read_text("utf-8"))["bases"]}
    ours = {base["legacyId"]: base for base in Shape(tmp_path / "library", report).bases()}
    assert theirs["../up"]["status"] == "failed"
    assert ours["../up"]["status"] == "completed"
    assert ours["../up"]["index"]["materials"]
    names = [item["data"]["relativePath"] for item in ours["names"]["items"]]
    assert len({unicodedata.normalize("NFC", name).lower() for name in names}) == len(names)
    assert all(len(name.encode()) <= 255 for name in names)
    assert len(ours["names"]["raw"]) == len(names) > len(theirs["names"]["raw"])
    assert "�" not in "".join(file["path"] for file in ours["slugs"]["raw"])
    assert "�" in "".join(file["path"] for file in theirs["slugs"]["raw"])
