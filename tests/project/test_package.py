"""The package: built twice it is the same bytes, and it has what a user needs and nothing else."""

from __future__ import annotations

import email
import gettext
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import platform_trial
import pytest
from harness import REPO

PACKAGES = ("regraft", "migrators", "checks", "repair")
#: What the build reads.
BUILT_FROM = (
    *PACKAGES,
    "docs",
    "hatch_build.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    ".gitignore",
)
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]
EPOCH = "1700000000"


def checkout(folder: Path) -> Path:
    """Copy what the build reads, as another checkout has it: other times, other permissions, another order."""
    folder.mkdir()
    for name in reversed(BUILT_FROM):
        source = REPO / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.mo")
            shutil.copytree(source, folder / name, ignore=ignored, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, folder / name)
    return folder


def build(root: Path, *targets: str) -> dict[str, bytes]:
    """Build a source distribution and a wheel, or one of them, and return their bytes by kind."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hatchling", "build", "-d", str(root / "dist"), *targets],
        cwd=root,
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {"".join(path.suffixes[-1:]): path.read_bytes() for path in (root / "dist").iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both from a copy of this checkout."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: pip install 'regraft[release]'")
    root = checkout(tmp_path_factory.mktemp("built") / "one")
    build(root)
    return root


def one(root: Path, suffix: str) -> Path:
    [path] = (root / "dist").glob(f"*{suffix}")
    return path


@pytest.mark.thorough
def test_two_builds_are_the_same_bytes(built: Path, tmp_path: Path) -> None:
    other = checkout(tmp_path / "a checkout elsewhere")
    for path in other.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (1_600_000_000, 1_600_000_000))
    assert build(other) == {path.suffix: path.read_bytes() for path in (built / "dist").iterdir()}


@pytest.mark.thorough
def test_a_catalog_has_no_time_of_its_build(built: Path) -> None:
    with zipfile.ZipFile(one(built, ".whl")) as wheel:
        compiled = wheel.read("regraft/locale/zh/LC_MESSAGES/regraft.mo")
    assert gettext.GNUTranslations(io.BytesIO(compiled)).info()["pot-creation-date"] == "1970-01-01 00:00+0000"


@pytest.mark.thorough
def test_the_source_distribution_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    with tarfile.open(one(built, ".tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    [root] = tmp_path.iterdir()
    assert build(root, "-t", "wheel")[".whl"] == one(built, ".whl").read_bytes()


def test_the_wheel_has_what_a_user_needs_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(one(built, ".whl")) as wheel:
        names = wheel.namelist()
    roots = {name.partition("/")[0] for name in names}
    assert roots == {*PACKAGES, next(name for name in roots if name.endswith(".dist-info"))}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert "regraft/locale/zh/LC_MESSAGES/regraft.mo" in names
    assert "regraft/docs/commands.md" in names
    modules = {path.relative_to(REPO).as_posix() for package in PACKAGES for path in (REPO / package).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert not [name for name in names if name.endswith(".pyc") or "/tests/" in name]


def test_the_metadata_name_the_project(built: Path) -> None:
    with zipfile.ZipFile(one(built, ".whl")) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(wheel.read(name))
    assert (metadata["Name"], metadata["Author"]) == ("regraft", "regraft contributors")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == PROJECT["requires-python"] == ">=3.11"
    urls = dict(str(line).split(", ", 1) for line in metadata.get_all("Project-URL", []))
    assert urls == PROJECT["urls"]
    assert metadata.get_payload().startswith("# regraft")
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_links_of_the_description_lead_to_files_of_the_release(built: Path) -> None:
    """An index of packages shows it, and has no files beside it."""
    with zipfile.ZipFile(one(built, ".whl")) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(wheel.read(name))
    readme = (REPO / "README.md").read_text("utf-8")
    targets = re.findall(r"\]\(([^)]*)\)", metadata.get_payload(decode=True).decode())
    assert len(targets) == len(re.findall(r"\]\(", readme)) > 40
    own = f"{PROJECT['urls']['Homepage']}/"
    for target in targets:
        assert urlsplit(target).scheme == "https", target
        if target.startswith(own):
            view, release, path = target.removeprefix(own).partition("#")[0].split("/", 2)
            assert (view, release) == ("raw" if path.endswith(".png") else "blob", f"v{metadata['Version']}")
            assert (REPO / path).is_file(), target
    with tarfile.open(one(built, ".tar.gz")) as archive:
        [inside] = [name for name in archive.getnames() if name.endswith("/README.md") and name.count("/") == 1]
        assert archive.extractfile(inside).read().decode() == readme


def test_all_addresses_of_the_project_are_of_one_repository() -> None:
    homepage = PROJECT["urls"]["Homepage"]
    assert urlsplit(homepage).scheme == "https"
    assert all(url == homepage or url.startswith(f"{homepage}/") for url in PROJECT["urls"].values())


def test_every_dependency_has_a_floor() -> None:
    """``make test-lowest`` installs these, so that they are tried."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    free = [
        line
        for line in (*PROJECT["dependencies"], *extras)
        if not line.startswith("regraft[") and ">=" not in line and "<" not in line
    ]
    assert free == []


@pytest.mark.thorough
def test_the_trial_of_other_systems_succeeds_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The workflow runs it on shares, mapped drives and exFAT volumes."""
    monkeypatch.setattr(sys, "argv", ["platform_trial.py", str(tmp_path)])
    assert platform_trial.main() == 0
    assert '"migrated": 76, "installed": 76, "packed": 76' in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
