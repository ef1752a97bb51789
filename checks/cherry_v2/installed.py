"""Find the data of installed applications on this system, and copies and backups beside it (``regraft inspect``)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Literal

import apsw
import msgspec

from regraft.disk import file_paths, links, sqlite, untrusted_sqlite
from regraft.errors import RegraftError, SourceNotFound, SourceUnrecognised
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v1.layout import EXPORT_FOLDER
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, StoredCatalog, read_catalog
from regraft.kinds import KIND_NAMES, V1_SOURCES, Kind
from regraft.language import format_count, tr
from regraft.report.document import Report
from regraft.stores.locate import CATALOG_FILE, KNOWLEDGE_FOLDER, PROFILE_DATABASE, Located, open_store
from regraft.stores.write_checks import find_pending_change
from regraft.text import join_command, path_argument, printable

#: Files and folders with this in their name, beside a data folder, may be copies or backups of it.
_NAMED_LIKE = "cherry"
#: Maximum number of them that are opened.
_MOST_BESIDE = 100
_BACKUPS = (Kind.V1_BACKUP, Kind.V1_BACKUP_6, Kind.V2_BACKUP)
_TARGET = ("--to", "library")
_UNMIGRATED_FOLDER = "directory_not_migrated"


class NextStep(msgspec.Struct, frozen=True):
    """A command that the user can run next, and what it does."""

    command: str
    does: str


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """A data folder, copy or backup of the application; ``kind`` is a Kind, or None if it cannot be read.

    ``remedy`` is the command that brings back what the application's own upgrade left behind, or None.
    """

    path: str
    why: str
    kind: str | None
    facts: list[str]
    next: list[NextStep]
    remedy: Literal["rescue", "migrate"] | None = None


class InstallationsReport(Report, kw_only=True):
    """The data of the application on this system; ``searched`` lists the folders that were checked."""

    searched: list[str]
    found: list[Installation]


def find_installations() -> tuple[list[Path], list[Installation]]:
    """Return the folders where the application may keep data, and what was found there and beside them.

    The data never makes this raise, and nothing is written.
    """
    try:
        places = profile.list_data_folders()
    except RuntimeError:
        # The home directory cannot be determined.
        places = {}
    known: dict[Path, Installation] = {}
    for place, why in places.items():
        real = _resolve(place)
        found = None if real in known else _profile(place, why)
        if found is not None:
            known[real] = found
    for folder in dict.fromkeys(place.parent for place in places):
        for path in _find_similar_entries(folder):
            copy = None if _resolve(path) in known else _copy(path)
            if copy is not None:
                known[_resolve(path)] = copy
    return list(places), list(known.values())


def find_backups(folders: Iterable[Path]) -> list[Installation]:
    """Return the v1 backups directly in some folders, newest first. Nothing makes this raise."""
    found: dict[Path, float] = {}
    for folder in folders:
        with suppress(OSError):
            zips = [path for path in folder.iterdir() if path.suffix.lower() == ".zip" and path.is_file()]
            found |= {path: path.stat().st_mtime for path in zips}
    newest = sorted(found, key=lambda path: (-found[path], path))[:_MOST_BESIDE]
    copies = [copy for path in newest if (copy := _copy(path)) is not None]
    return [copy for copy in copies if copy.kind in (Kind.V1_BACKUP, Kind.V1_BACKUP_6)]


#: Folders of a person in which backups and libraries may be, as systems call them in several languages.
_USER_FOLDERS = (
    *("Downloads", "Desktop", "Documents"),
    *(
        "下载",
        "桌面",
        "文档",
        "下載",
        "文件",
        "ダウンロード",
        "デスクトップ",
        "ドキュメント",
        "다운로드",
        "바탕화면",
        "문서",
    ),
    *("Téléchargements", "Bureau", "Schreibtisch", "Dokumente", "Descargas", "Escritorio", "Documentos"),
    *(
        "Scaricati",
        "Scrivania",
        "Documenti",
        "Transferências",
        "Área de Trabalho",
        "Загрузки",
        "Рабочий стол",
        "Документы",
    ),
)
#: The file in which a Linux desktop names these folders, and the lines of it that count.
_USER_DIRS_FILE = ".config/user-dirs.dirs"
_USER_DIR = re.compile(r'XDG_(?:DOWNLOAD|DESKTOP|DOCUMENTS)_DIR="(?:\$HOME/)?([^"\n]+)"')
#: Maximum numbers of entries of such a folder that are listed, of archives and of folders that are opened.
_MOST_LISTED, _MOST_ARCHIVES, _MOST_FOLDERS = 20_000, 40, 60
#: Kinds that are listed, each with the command to run next and what it does.
_IN_USER_FOLDERS = {
    Kind.LIBRARY: (("install", "--profile", "PROFILE"), tr("Put its bases into a v2 profile")),
    Kind.PACK: (("install", "--profile", "PROFILE"), tr("Put its bases into a v2 profile")),
    Kind.V2_BACKUP: (("install", "--profile", "PROFILE"), tr("Put its bases into a v2 profile")),
    **{kind: (("migrate", *_TARGET), tr("Make a v2 library of it")) for kind in V1_SOURCES},
}


def find_in_user_folders() -> tuple[list[Path], list[Installation]]:
    """Return the folders for downloads, documents and the desktop, and the backups, libraries and packs in them.

    Only direct entries are looked at, a limited number of them, the latest first. Nothing is written.
    """
    folders = list_user_folders()
    found: dict[Path, Installation] = {}
    for folder in folders:
        for path in _candidates(folder):
            one = None if _resolve(path) in found else _user_file(path, folder)
            if one is not None:
                found[_resolve(path)] = one
    return folders, list(found.values())


def list_user_folders() -> list[Path]:
    """Return the existing folders of this person for downloads, documents and the desktop, in any language."""
    home = file_paths.home_folder()
    if home is None:
        return []
    named = []
    with suppress(OSError, ValueError):
        text = (home / _USER_DIRS_FILE).read_bytes()[:10_000].decode("utf-8", "replace")
        named = [home / name for name in _USER_DIR.findall(text)]
    usual = [home / name for name in _USER_FOLDERS]
    for cloud in sorted(home.glob("OneDrive*")):
        usual += [cloud / name for name in _USER_FOLDERS]
    there: dict[Path, Path] = {}
    for folder in (*named, *usual):
        with suppress(OSError):
            if folder.is_dir() and _resolve(folder) != _resolve(home):
                there.setdefault(_resolve(folder), folder)
    return list(there.values())


def _candidates(folder: Path) -> list[Path]:
    """Return the archives of a folder, the latest first, and the folders in it that may be libraries or profiles."""
    archives: list[tuple[float, Path]] = []
    folders: list[Path] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, _MOST_LISTED):
            path = Path(entry.path)
            with suppress(OSError):
                if entry.is_dir():
                    if not entry.name.startswith(".") and len(folders) < _MOST_FOLDERS and _may_be_store(path):
                        folders.append(path)
                elif path.suffix.lower() == ".zip":
                    archives.append((entry.stat().st_mtime, path))
    archives.sort(key=lambda one: -one[0])
    return [path for _, path in archives[:_MOST_ARCHIVES]] + sorted(folders)


def _may_be_store(folder: Path) -> bool:
    """Whether a folder may be a store, judged by its name and the names in it."""
    return _NAMED_LIKE in folder.name.lower() or any(
        (folder / name).is_file() for name in (CATALOG_FILE, PROFILE_DATABASE, "data.json", "redux.json")
    )


def _user_file(path: Path, folder: Path) -> Installation | None:
    """Describe a backup or library in a folder of the user; None if it is something else."""
    why = tr("in {folder}", folder=printable(folder.name))
    try:
        with open_store(path) as found:
            if found.kind in (Kind.V1_PROFILE, Kind.V2_PROFILE) and not found.is_archive:
                return _describe_installation(found, why)
            if found.kind not in _IN_USER_FOLDERS:
                return None
            words, does = _IN_USER_FOLDERS[found.kind]
            steps = [_step(words[0], path, *words[1:], does=does), _step("inspect", path, does=tr("See what is in it"))]
            facts = [tr("This is {names}.", names=KIND_NAMES[found.kind]), *_describe_contents(found)]
            return Installation(path=str(path), why=why, kind=found.kind, facts=facts, next=steps)
    except (RegraftError, apsw.Error, OSError, ValueError):
        return None


def _resolve(path: Path) -> Path:
    try:
        return links.real_path(path)
    except (OSError, RuntimeError, ValueError):
        return path


def _find_similar_entries(folder: Path) -> list[Path]:
    """Return the entries of a folder whose name contains that of the application."""
    try:
        inside = sorted(folder.iterdir())
        named = [path for path in inside if _NAMED_LIKE in path.name.lower() and not path.name.startswith(".")]
        return [path for path in named if path.suffix.lower() == ".zip" or path.is_dir()][:_MOST_BESIDE]
    except OSError:
        return []


def _profile(place: Path, why: str) -> Installation | None:
    """Describe the data in a folder; None if it has no data."""
    # This folder is meant, even if the settings name another folder for the data.
    for kind in (Kind.V2_PROFILE, Kind.V1_PROFILE):
        try:
            with open_store(place, kind) as found:
                return _describe_installation(found, why)
        except SourceNotFound:
            return None
        except SourceUnrecognised:
            continue
        except (RegraftError, apsw.Error, OSError) as error:
            return Installation(
                path=str(place), why=why, kind=None, facts=[tr("It cannot be read: {error}", error=error)], next=[]
            )
    return None


def _copy(path: Path) -> Installation | None:
    """Describe a backup or a copy of a profile; None if it is neither."""
    why = tr("beside it")
    try:
        with open_store(path) as found:
            if found.kind in _BACKUPS:
                return _backup(found, why)
            is_profile = found.kind in (Kind.V1_PROFILE, Kind.V2_PROFILE) and not found.is_archive
            return _describe_installation(found, why) if is_profile else None
    except (RegraftError, apsw.Error, OSError):
        return None


def _backup(found: Located, why: str) -> Installation:
    """Describe a backup, with the next steps."""
    inspect = _step("inspect", found.path, does=tr("See what is in it"))
    steps = [inspect]
    if found.kind is not Kind.V2_BACKUP:
        steps.insert(0, _step("migrate", found.path, *_TARGET, does=tr("Make a v2 library of it")))
    facts = [tr("This is {names}.", names=KIND_NAMES[found.kind]), *_describe_contents(found)]
    return Installation(path=str(found.path), why=why, kind=found.kind, facts=facts, next=steps)


def _describe_contents(found: Located) -> Iterator[str]:
    """Say how many bases a library, a pack or a v2 backup has, or how many vector files v1 data have."""
    if found.stores.catalog is not None:
        with suppress(CatalogProblem):
            bases = read_catalog(found.tree.path / found.stores.catalog, data=False).bases
            yield tr("v2 data, with {bases}.", bases=format_count(len(bases), "base"))
    elif found.kind in V1_SOURCES:
        for folder in (f"Data/{KNOWLEDGE_FOLDER}", KNOWLEDGE_FOLDER):
            names = found.tree.children(folder) if found.tree.kind(folder) == "folder" else []
            files = sum(found.tree.kind(f"{folder}/{name}") == "file" for name in names if "." not in name)
            if files:
                yield tr("v1 data, with {vector_files}.", vector_files=format_count(files, "vector file"))


def _describe_installation(found: Located, why: str) -> Installation:
    path = found.path
    facts, steps, remedy = _v2(found) if found.kind is Kind.V2_PROFILE else (*_v1(found), None)
    if profile.find_configured_folders(path):
        facts.append(tr("The application's settings name another folder: what is here is older, or a copy."))
    running = profile.detect_running_app(path)
    if running is not None:
        facts.append(tr("The application is running ({running}): end it before anything is changed.", running=running))
    return Installation(path=str(path), why=why, kind=found.kind, facts=facts, next=steps, remedy=remedy)


def _v1(found: Located) -> tuple[list[str], list[NextStep]]:
    """Return facts about a profile of v1, and the next steps."""
    path, kind = found.path, _kind_option(found)
    facts = [tr("v1 data, with {vector_files}.", vector_files=format_count(len(_vector_files(found)), "vector file"))]
    if found.tree.kind(EXPORT_FOLDER) == "folder":
        facts.append(tr("The application's own upgrade was started and did not finish."))
    migrate = _step("migrate", path, *_TARGET, *kind, does=tr("Make a v2 library of it; the v1 data stay as they are"))
    return facts, [migrate, _step("check", path, *kind, does=tr("See in advance what cannot be migrated"))]


def _v2(found: Located) -> tuple[list[str], list[NextStep], Literal["rescue", "migrate"] | None]:
    """Return facts about a profile of v2, the next steps, and the recommended command."""
    path, kind = found.path, _kind_option(found)
    check = _step("check", path, *kind, does=tr("See what is wrong and how to fix it"))
    pending = find_pending_change(found.tree.path)
    if pending is not None:
        facts = [tr("v2 data, and {pending}: start the application once before anything is changed.", pending=pending)]
        return facts, [_step("inspect", path, *kind, does=tr("See what is in it"))], None
    try:
        catalog = read_catalog(found.tree.path / str(found.stores.catalog), data=False)
    except CatalogProblem as error:
        return [tr("v2 data, whose database {error}.", error=error)], [check], None
    facts = [tr("v2 data, with {bases}.", bases=format_count(len(catalog.bases), "base"))]
    vector_files = _vector_files(found)
    failed = sum(base.get("status") == "failed" for base in catalog.bases)
    folders = _lost_folders(catalog)
    if failed or folders:
        # A failed base may also have been installed as it was; the catalog does not record who failed.
        if failed:
            facts.append(tr("Not usable: {bases} marked as failed.", bases=format_count(failed, "base")))
        if folders:
            facts.append(tr("Not migrated: {folders}.", folders=format_count(folders, "folder")))
        if not vector_files:
            return facts, [check], None
        rescue = _step("rescue", path, "--dry-run", *kind, does=tr("Preview what can be recovered"))
        return [*facts, *_leftover_lines(vector_files)], [rescue, check], "rescue"
    if vector_files and not catalog.bases:
        facts.append(tr("The application's own upgrade migrated no base."))
        migrate = _step("migrate", path, *_TARGET, "--kind", "v1-profile", does=tr("Make a v2 library of what v1 left"))
        return [*facts, *_leftover_lines(vector_files)], [migrate, check], "migrate"
    return [*facts, *_leftover_lines(vector_files)], [check], None


def _leftover_lines(vector_files: list[Path]) -> Iterator[str]:
    if vector_files:
        yield tr("{vector_files} of v1 still on disk.", vector_files=format_count(len(vector_files), "vector file"))


def _lost_folders(catalog: StoredCatalog) -> int:
    """Count the folders that the application's own upgrade did not migrate."""
    rows = [row for items in (catalog.items or {}).values() for row in items]
    return sum(row.get("type") == "directory" and row.get("error") == _UNMIGRATED_FOLDER for row in rows)


def _vector_files(found: Located) -> list[Path]:
    """Return the vector files of v1 in the folder of all bases."""
    for folder in (f"Data/{KNOWLEDGE_FOLDER}", KNOWLEDGE_FOLDER):
        try:
            inside = sorted((found.tree.path / folder).iterdir())
        except OSError:
            continue
        return [path for path in inside if path.is_file() and may_be_vector_file(path)]
    return []


def may_be_vector_file(path: Path) -> bool:
    """Whether a file beside the folders of bases is a vector file of v1: by its table, or by its name if damaged."""
    if not untrusted_sqlite.is_database(path):
        return False
    try:
        with sqlite.open_readonly(path) as db:
            return bool(db.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'vectors')").get)
    except (apsw.Error, OSError, UnicodeDecodeError):
        # v1 names its files by base id, without an extension.
        return path.suffix == ""


def _kind_option(found: Located) -> tuple[str, ...]:
    """Return ``--kind KIND`` for the suggested commands if they would otherwise read another folder.

    That is the folder which the settings of the application name.
    """
    return ("--kind", found.kind.value) if profile.find_configured_folders(found.path) else ()


def _step(command: str, path: Path, *options: str, does: str) -> NextStep:
    """Make a next step: a command line and what it does."""
    return NextStep(join_command(["regraft", command, path_argument(path), *options]), does)
