"""The files of a KB: those that documents name, and those that nothing names.

What :func:`loose` says is also what ``regraft gc`` goes by: it is stricter than the system's own compactor.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import unicodedata
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path

import apsw
import msgspec

from checks.rsclaw.seen import HOUR_MS
from regraft import links
from regraft.formats.rsclaw.carrying import inside
from regraft.formats.rsclaw.database import MARKDOWN, RAW, Mirror
from regraft.formats.rsclaw.rows import INDEXED, PENDING
from regraft.text import path_text

#: What is younger may be of a document that is being added: the system's own grace.
GRACE_MS = HOUR_MS
#: So many files that nothing names, if they are also most of all, are not garbage: the database is a new or older one.
_MANY = 10
_PIECE = 1 << 20


class Why(StrEnum):
    """Why a file is of no document, and what becomes of it; ``gc`` moves the first two."""

    #: No document, and no entry of the ledger, names it.
    ORPHAN = "orphan"
    #: Nothing names it, nor most of the files: the database may be a new or older one than they are.
    UNSURE = "unsure"
    #: Nothing but an entry whose document is indexed names it, as a file that was replaced.
    REPLACED = "replaced"
    YOUNG = "young"
    #: Only entries of the ledger that are settled name it.
    SETTLED = "settled"
    #: Something names it but for letter case or the form of its characters.
    SPELLING = "spelling"
    #: It is a link, or no plain file, or its name is no text.
    ODD = "odd"


#: Those that ``gc`` moves.
MOVED = (Why.ORPHAN, Why.REPLACED)
_SCHEMA = """
CREATE TEMP TABLE file (path TEXT PRIMARY KEY, folded TEXT, changed_at INTEGER, size INTEGER, is_odd INTEGER);
CREATE TEMP TABLE named (folded TEXT, path TEXT, how TEXT);
"""
#: How a path is named: by a document, by an open entry, as replaced by an indexed one, by a settled one.
_DOC, _OPEN, _REPLACED, _SETTLED = "doc", "open", "replaced", "settled"
_NAMED = f"""
    SELECT md_path, '{_DOC}' FROM doc UNION ALL SELECT raw_path, '{_DOC}' FROM doc WHERE raw_path IS NOT NULL
    UNION ALL
    SELECT p.path, CASE WHEN e.status = '{INDEXED}' AND NOT p.is_new THEN '{_REPLACED}'
                        WHEN e.status IN ('{PENDING}', '{INDEXED}') THEN '{_OPEN}' ELSE '{_SETTLED}' END
      FROM entry_path p JOIN entry e ON e.id = p.entry_id"""
#: Files that no document and no open entry names, each with why; ``{latest}`` is when those were written that count.
_LOOSE = f"""
    SELECT f.path, f.size,
           CASE WHEN f.is_odd THEN '{Why.ODD}'
                WHEN NOT EXISTS (SELECT 1 FROM named n WHERE n.folded = f.folded)
                THEN CASE WHEN f.changed_at > ?1 THEN '{Why.YOUNG}' ELSE '{Why.ORPHAN}' END
                WHEN EXISTS (SELECT 1 FROM named n WHERE n.folded = f.folded AND n.how IN ('{_DOC}', '{_OPEN}'))
                  OR NOT EXISTS (SELECT 1 FROM named n WHERE n.folded = f.folded AND n.path = f.path)
                THEN '{Why.SPELLING}'
                WHEN EXISTS (SELECT 1 FROM named n WHERE n.folded = f.folded AND n.how = '{_SETTLED}')
                THEN '{Why.SETTLED}'
                WHEN f.changed_at > ?1 THEN '{Why.YOUNG}' ELSE '{Why.REPLACED}' END
      FROM file f
     WHERE NOT EXISTS (SELECT 1 FROM named n
                        WHERE n.folded = f.folded AND n.path = f.path AND n.how IN ('{_DOC}', '{_OPEN}'))
     ORDER BY f.path"""

#: How many plain files there are, and how many of them nothing names.
_NAMELESS = """
    SELECT count(*), count(*) FILTER (WHERE folded NOT IN (SELECT folded FROM named)) FROM file WHERE NOT is_odd"""


class Loose(msgspec.Struct, frozen=True, kw_only=True):
    """A file that no document and no open entry names; ``path`` is below the KB's folder, as text."""

    path: str
    size: int
    why: Why


def loose(db: apsw.Connection, now_ms: int) -> Iterator[Loose]:
    """Yield the files that nothing needs, in the order of their paths, once :func:`listed` has listed them.

    Args:
        db: the tables.
        now_ms: the time that ages are relative to.
    """
    orphans = Why.UNSURE if _is_of_another_time(db) else Why.ORPHAN
    for path, size, why in db.execute(_LOOSE, (now_ms - GRACE_MS,)):
        yield Loose(path=str(path), size=int(str(size)), why=orphans if why == Why.ORPHAN else Why(str(why)))


def _is_of_another_time(db: apsw.Connection) -> bool:
    """Tell whether the database seems not to be that of the files: it has no document, or names few of them."""
    if db.execute("SELECT 1 FROM doc LIMIT 1").get is None:
        return True
    files, nameless = db.execute(_NAMELESS).fetchall()[0]
    return int(str(nameless)) >= _MANY and 2 * int(str(nameless)) > int(str(files))


def listed(mirror: Mirror, root: Path, go_on: Callable[[], None] = lambda: None) -> int:
    """List the files on disk and all that is named, in temporary tables; return how many files there are.

    Args:
        mirror: the tables.
        root: the folder of the KB.
        go_on: called for every file.

    Raises:
        OSError: a folder cannot be read.
    """
    db = mirror.db
    db.execute(_SCHEMA)
    db.executemany("INSERT OR IGNORE INTO file VALUES (?, ?, ?, ?, ?)", _rows_of_files(root, go_on))
    has_links = db.execute("SELECT 1 FROM file WHERE is_odd LIMIT 1").fetchone() is not None
    named = db.execute(_NAMED).fetchall() if has_links else db.execute(_NAMED)
    db.executemany(
        "INSERT INTO named VALUES (?, ?, ?)",
        ((spelt, path, how) for path, how in named for spelt in _spellings(root, str(path), follow=has_links)),
    )
    db.execute("CREATE INDEX temp.named_folded ON named (folded)")
    return int(str(db.execute("SELECT count(*) FROM file").get))


def _rows_of_files(root: Path, go_on: Callable[[], None]) -> Iterator[tuple[str, str, int, int, bool]]:
    for entry in _entries(root):
        go_on()
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        path = Path(entry.path).relative_to(root).as_posix()
        shown = path_text(path)
        is_odd = not stat.S_ISREG(status.st_mode) or shown != path
        yield shown, _folded(shown), status.st_mtime_ns // 1_000_000, status.st_size, is_odd


def _entries(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in the folders of files but for folders; links are yielded, and followed nowhere."""
    waiting = [root / name for name in (MARKDOWN, RAW) if (root / name).is_dir() and not (root / name).is_symlink()]
    while waiting:
        with os.scandir(waiting.pop()) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                else:
                    yield entry


def _folded(path: str) -> str:
    """Return what is the same of all spellings of a path, on any file system."""
    plain = posixpath.normpath(path.replace("\\", "/"))
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", plain).casefold())


def _spellings(root: Path, path: str, *, follow: bool) -> Iterator[str]:
    """Yield what a path that is named may stand for: as it is, below the KB's folder, and where links lead."""
    yield _folded(path)
    top = links.real_path(root)
    for spelt in dict.fromkeys((path, path.replace("\\", "/"))):
        plain = posixpath.normpath(spelt)
        if posixpath.isabs(plain) or plain.startswith("..") or follow:
            real = Path(os.path.realpath(root / spelt.replace("\0", "")))
            if real.is_relative_to(top):
                yield _folded(path_text(real.relative_to(top).as_posix()))


# --- what a file holds -----------------------------------------------------------------------------------------------


def place_of(root: Path, path: str) -> tuple[Path | None, str | None]:
    """Return where a file is that a document names, and what is wrong with it; the place is None where it leads out.

    Args:
        root: the folder of the KB.
        path: as the document has it.
    """
    place = inside(root, path)
    if place is None:
        return None, None
    try:
        links.demand_file(place.stat().st_mode)
    except FileNotFoundError:
        return place, ""
    except OSError as error:
        return place, error.strerror or str(error)
    return place, None


def sha256_of(path: Path, go_on: Callable[[], None]) -> str:
    """Return the SHA-256 of a file in hex.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with links.reading(path) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            go_on()
    return digest.hexdigest()
