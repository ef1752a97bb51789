"""Find the data of installed applications on this system, and copies and backups beside it (``regraft inspect``)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Literal

import apsw
import msgspec

from regraft.disk import file_paths, links, sqlite, untrusted_sqlite
from regraft.errors import RegraftError, SourceNotFound, SourceUnrecognised
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v1.layout import EXPORT_FOLDER
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, read_catalog
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
_TARGET = ("--to", "library")
#: The words of a command after ``regraft``, and what it does.
_Step = tuple[tuple[str, ...], str]
_MIGRATE: _Step = (("migrate", *_TARGET), tr("Make a v2 library of it"))
_INSTALL: _Step = (("install", "--profile", "PROFILE"), tr("Put its bases into a v2 profile"))
#: Kinds that are listed beside a data folder, and in the folders of the user, each with the command to run next.
_BESIDE: dict[Kind, _Step | None] = {Kind.V1_BACKUP: _MIGRATE, Kind.V1_BACKUP_6: _MIGRATE, Kind.V2_BACKUP: None}
_IN_USER_FOLDERS = {
    **dict.fromkeys((Kind.LIBRARY, Kind.PACK, Kind.V2_BACKUP), _INSTALL),
    **dict.fromkeys(V1_SOURCES, _MIGRATE),
}
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
    """Find the application's data folders on this system, and copies and backups beside them.

    The data never makes this raise, and nothing is written.

    Returns:
        The folders where the application may keep data, and the data, copies and backups that exist.
    """
    try:
        places = profile.list_data_folders()
    except RuntimeError:
        # The home directory cannot be determined.
        places = {}
    known: dict[Path, Installation] = {}
    for place, why in places.items():
        real = _resolve(place)
        found = None if real in known else _describe_data_folder(place, why)
        if found is not None:
            known[real] = found
    for folder in dict.fromkeys(place.parent for place in places):
        for path in _find_similar_entries(folder):
            copy = None if _resolve(path) in known else _describe_store(path, tr("beside it"), _BESIDE)
            if copy is not None:
                known[_resolve(path)] = copy
    return list(places), list(known.values())


def find_backups(folders: Iterable[Path]) -> list[Installation]:
    """Describe the v1 backups directly in some folders, newest first. Nothing makes this raise."""
    found: dict[Path, float] = {}
    for folder in folders:
        with suppress(OSError):
            zips = [path for path in folder.iterdir() if path.suffix.lower() == ".zip" and path.is_file()]
            found |= {path: path.stat().st_mtime for path in zips}
    newest = sorted(found, key=lambda path: (-found[path], path))[:_MOST_BESIDE]
    copies = [_describe_store(path, tr("beside it"), _BESIDE) for path in newest]
    return [copy for copy in copies if copy is not None and copy.kind in (Kind.V1_BACKUP, Kind.V1_BACKUP_6)]


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


def find_in_user_folders() -> tuple[list[Path], list[Installation]]:
    """Find backups, libraries and packs in the user's folders for downloads, documents and the desktop.

    Only direct entries are looked at, a limited number of them, the latest first. Nothing is written.

    Returns:
        The folders that were searched, and the stores that were found in them.
    """
    folders = list_user_folders()
    found: dict[Path, Installation] = {}
    for folder in folders:
        why = tr("in {folder}", folder=printable(folder.name))
        for path in _list_candidates(folder):
            one = None if _resolve(path) in found else _describe_store(path, why, _IN_USER_FOLDERS)
            if one is not None:
                found[_resolve(path)] = one
    return folders, list(found.values())


def list_user_folders() -> list[Path]:
    """Return the existing folders of the user for downloads, documents and the desktop, in any language."""
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


def _list_candidates(folder: Path) -> list[Path]:
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
    """Whether a folder may be a library or profile, judged by its name and the names of files in it."""
    return _NAMED_LIKE in folder.name.lower() or any(
        (folder / name).is_file() for name in (CATALOG_FILE, PROFILE_DATABASE, "data.json", "redux.json")
    )


def _resolve(path: Path) -> Path:
    """Return a path with links resolved, or unchanged if that is not possible."""
    try:
        return links.real_path(path)
    except (OSError, RuntimeError, ValueError):
        return path


def _find_similar_entries(folder: Path) -> list[Path]:
    """Return the archives and folders in a folder whose name contains that of the application."""
    try:
        inside = sorted(folder.iterdir())
        named = [path for path in inside if _NAMED_LIKE in path.name.lower() and not path.name.startswith(".")]
        return [path for path in named if path.suffix.lower() == ".zip" or path.is_dir()][:_MOST_BESIDE]
    except OSError:
        return []


def _describe_data_folder(folder: Path, why: str) -> Installation | None:
    """Describe the application's data in a folder; None if it has no data.

    ``why`` says why the folder was looked at.
    """
    # This folder is meant, even if the settings name another folder for the data.
    for kind in (Kind.V2_PROFILE, Kind.V1_PROFILE):
        try:
            with open_store(folder, kind) as found:
                return _describe_profile(found, why)
        except SourceNotFound:
            return None
        except SourceUnrecognised:
            continue
        except (RegraftError, apsw.Error, OSError) as error:
            return Installation(
                path=str(folder), why=why, kind=None, facts=[tr("It cannot be read: {error}", error=error)], next=[]
            )
    return None


def _describe_store(path: Path, why: str, steps: Mapping[Kind, _Step | None]) -> Installation | None:
    """Describe the backup, library or pack, or the copy of a profile, at a path; None if it is something else.

    Args:
        path: the path.
        why: why it was looked at.
        steps: the kinds that are described, and the command to run next for each, if there is one.
    """
    try:
        with open_store(path) as found:
            if found.kind in (Kind.V1_PROFILE, Kind.V2_PROFILE) and not found.is_archive:
                return _describe_profile(found, why)
            if found.kind not in steps:
                return None
            following, first = [], steps[found.kind]
            if first is not None:
                (command, *options), does = first
                following.append(_step(command, path, *options, does=does))
            following.append(_step("inspect", path, does=tr("See what is in it")))
            facts = [tr("This is {names}.", names=KIND_NAMES[found.kind]), *_describe_contents(found)]
            return Installation(path=str(path), why=why, kind=found.kind, facts=facts, next=following)
    except (RegraftError, apsw.Error, OSError, ValueError):
        return None


def _describe_contents(source: Located) -> Iterator[str]:
    """Yield a sentence that counts the bases of v2 data, or the vector files of v1 data."""
    if source.stores.catalog is not None:
        with suppress(CatalogProblem):
            bases = read_catalog(source.tree.path / source.stores.catalog, data=False).bases
            yield tr("v2 data, with {bases}.", bases=format_count(len(bases), "base"))
    elif source.kind in V1_SOURCES:
        for folder in (f"Data/{KNOWLEDGE_FOLDER}", KNOWLEDGE_FOLDER):
            names = source.tree.children(folder) if source.tree.kind(folder) == "folder" else []
            files = sum(source.tree.kind(f"{folder}/{name}") == "file" for name in names if "." not in name)
            if files:
                yield tr("v1 data, with {vector_files}.", vector_files=format_count(files, "vector file"))


def _describe_profile(source: Located, why: str) -> Installation:
    """Describe a profile, with facts and next steps; ``why`` says why it was looked at."""
    path = source.path
    facts, steps, remedy = _describe_v2(source) if source.kind is Kind.V2_PROFILE else (*_describe_v1(source), None)
    if profile.find_configured_folders(path):
        facts.append(tr("The application's settings name another folder: what is here is older, or a copy."))
    running = profile.detect_running_app(path)
    if running is not None:
        facts.append(tr("The application is running ({running}): end it before anything is changed.", running=running))
    return Installation(path=str(path), why=why, kind=source.kind, facts=facts, next=steps, remedy=remedy)


def _describe_v1(source: Located) -> tuple[list[str], list[NextStep]]:
    """Return facts about a profile of v1, as sentences, and the commands to run next."""
    path, kind = source.path, _kind_option(source)
    facts = [
        tr("v1 data, with {vector_files}.", vector_files=format_count(len(_find_vector_files(source)), "vector file"))
    ]
    if source.tree.kind(EXPORT_FOLDER) == "folder":
        facts.append(tr("The application's own upgrade was started and did not finish."))
    migrate = _step("migrate", path, *_TARGET, *kind, does=tr("Make a v2 library of it; the v1 data stay as they are"))
    return facts, [migrate, _step("check", path, *kind, does=tr("See in advance what cannot be migrated"))]


def _describe_v2(source: Located) -> tuple[list[str], list[NextStep], Literal["rescue", "migrate"] | None]:
    """Return facts about a profile of v2 as sentences, the commands to run next, and the recommended one or None."""
    path, kind = source.path, _kind_option(source)
    check = _step("check", path, *kind, does=tr("See what is wrong and how to fix it"))
    pending = find_pending_change(source.tree.path)
    if pending is not None:
        facts = [tr("v2 data, and {pending}: start the application once before anything is changed.", pending=pending)]
        return facts, [_step("inspect", path, *kind, does=tr("See what is in it"))], None
    try:
        catalog = read_catalog(source.tree.path / str(source.stores.catalog), data=False)
    except CatalogProblem as error:
        return [tr("v2 data, whose database {error}.", error=error)], [check], None
    facts = [tr("v2 data, with {bases}.", bases=format_count(len(catalog.bases), "base"))]
    vector_files = _find_vector_files(source)
    failed = sum(base.get("status") == "failed" for base in catalog.bases)
    items = chain.from_iterable((catalog.items or {}).values())
    folders = sum(row.get("type") == "directory" and row.get("error") == _UNMIGRATED_FOLDER for row in items)
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
    """Yield a sentence that counts the vector files that v1 left behind, if there are any."""
    if vector_files:
        yield tr("{vector_files} of v1 still on disk.", vector_files=format_count(len(vector_files), "vector file"))


def _find_vector_files(source: Located) -> list[Path]:
    """Return the vector files of v1 in the folder of all bases of a profile."""
    for folder in (f"Data/{KNOWLEDGE_FOLDER}", KNOWLEDGE_FOLDER):
        try:
            inside = sorted((source.tree.path / folder).iterdir())
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


def _kind_option(source: Located) -> tuple[str, ...]:
    """Return ``--kind KIND`` if a command would otherwise read the folder that the application's settings name."""
    return ("--kind", source.kind.value) if profile.find_configured_folders(source.path) else ()


def _step(command: str, path: Path, *options: str, does: str) -> NextStep:
    """Return a next step: the command line for ``path``, and ``does``, which says what the command does."""
    return NextStep(join_command(["regraft", command, path_argument(path), *options]), does)
