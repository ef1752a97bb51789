"""The caches of a KB, which rsclaw makes of the database: the snapshot of the vector index, and the full-text index."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

import msgspec

from checks.rsclaw import findings as kb
from checks.rsclaw.chunks import SEARCHED, usual_dimensions
from checks.rsclaw.seen import NAMED, Seen
from regraft import links
from regraft.formats.rsclaw import rows
from regraft.formats.rsclaw.database import FULL_TEXT, HNSW, SNAPSHOT
from regraft.language import tr
from regraft.report.notices import Severity
from regraft.report.progress import human_bytes
from regraft.text import counted

#: What is called so in the folder of the vector index is part of its snapshot.
SNAPSHOT_FILES = "snapshot."
_FULL_TEXT_META = f"{FULL_TEXT}/meta.json"
_SCHEMA_VERSION = 1
#: A description that is longer is none of a KB that anybody has.
_MOST_BYTES = 1 << 28
T = TypeVar("T")


class _Snapshot(msgspec.Struct):
    schema_version: rows.Whole
    dimension: rows.Whole
    id_to_chunk: list[str]


class _Deletes(msgspec.Struct):
    num_deleted_docs: rows.Count = 0


class _Segment(msgspec.Struct):
    max_doc: Annotated[int, msgspec.Meta(ge=0, le=(1 << 40))]
    deletes: _Deletes | None = None


class _FullText(msgspec.Struct):
    segments: list[_Segment]


def snapshot_files(root: Path) -> list[Path]:
    """Return what the snapshot of the vector index consists of: plain files, and nothing else.

    Raises:
        OSError: the folder cannot be read.
    """
    return [path for path, is_plain in _called_snapshot(root) if is_plain]


def odd_snapshot_files(root: Path) -> list[Path]:
    """Return what is called as the files of the snapshot and is a link, a folder or no plain file: it stays.

    Raises:
        OSError: the folder cannot be read.
    """
    return [path for path, is_plain in _called_snapshot(root) if not is_plain]


def has_full_text(root: Path) -> bool:
    """Tell whether there is a full-text index.

    Raises:
        OSError: the folder cannot be read.
    """
    return _is_plain_folder(root, FULL_TEXT) and any((root / FULL_TEXT).iterdir())


def _called_snapshot(root: Path) -> Iterator[tuple[Path, bool]]:
    if _is_plain_folder(root, HNSW):
        for path in sorted((root / HNSW).iterdir()):
            if path.name.startswith(SNAPSHOT_FILES):
                yield path, stat.S_ISREG(path.lstat().st_mode)


def _is_plain_folder(root: Path, name: str) -> bool:
    """Tell whether a folder of the KB is one, without a link on the way to it."""
    path = PurePosixPath(name)
    way = [root / part for part in (*reversed(path.parents), path) if part.parts]
    return not any(part.is_symlink() for part in way) and way[-1].is_dir()


def check(seen: Seen) -> None:
    """Look at both caches; one that is not there is made at the next start of rsclaw.

    Raises:
        OSError: a folder cannot be read.
    """
    if not seen.mirror.is_whole(rows.CHUNKS):
        return
    odd = [path.relative_to(seen.root).as_posix() for path in odd_snapshot_files(seen.root)]
    _tell_odd(seen, odd)
    if snapshot_files(seen.root) and SNAPSHOT not in odd:
        _check_snapshot(seen)
    if has_full_text(seen.root):
        _check_full_text(seen)


def _tell_odd(seen: Seen, odd: list[str]) -> None:
    message = tr("{n} called as files of the snapshot, links, folders or not plain files, which stay: {named}")
    severity: Severity = "warning" if SNAPSHOT in odd else "note"
    seen.say(kb.SNAPSHOT, message, noun="entry", samples=odd, severity=severity, is_beyond_repair=True)


def _described(seen: Seen, finding: str, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Return what a file says of a cache; None, with a finding, where it cannot be read."""
    found = _read(seen.root / name, decoder)
    if isinstance(found, str):
        seen.ledger.add(finding, tr("{name} cannot be read: {problem}", name=name, problem=found), sample=name)
        return None
    return found


def _read(path: Path, decoder: msgspec.json.Decoder[T]) -> T | str:
    """Return what a file says, or why it cannot be read."""
    try:
        with links.reading(path) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            return tr("it has more than {size}", size=human_bytes(_MOST_BYTES))
        return decoder.decode(content)
    except OSError as error:
        return error.strerror or str(error)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return str(error)


def _check_snapshot(seen: Seen) -> None:
    found = _described(seen, kb.SNAPSHOT, SNAPSHOT, msgspec.json.Decoder(_Snapshot))
    if found is None:
        return
    if found.schema_version != _SCHEMA_VERSION:
        message = tr("{name} is of version {version}, which is not known", name=SNAPSHOT, version=found.schema_version)
        seen.ledger.add(kb.SNAPSHOT, message, sample=SNAPSHOT)
        return
    usual = usual_dimensions(seen)
    if usual is not None and found.dimension != usual:
        message = tr(
            "the snapshot is of vectors of {found} dimensions, and most have {usual}",
            found=found.dimension,
            usual=usual,
        )
        seen.ledger.add(kb.SNAPSHOT, message, sample=SNAPSHOT)
    seen.db.execute("CREATE TEMP TABLE snapshot (chunk_id TEXT PRIMARY KEY) WITHOUT ROWID")
    seen.db.executemany("INSERT OR IGNORE INTO snapshot VALUES (?)", ((one,) for one in found.id_to_chunk))
    unknown = "SELECT chunk_id FROM snapshot WHERE chunk_id NOT IN (SELECT id FROM chunk) ORDER BY 1"
    seen.say(
        kb.SNAPSHOT,
        tr("{n} in the snapshot of no chunk that is there: {named}"),
        noun="id",
        samples=seen.texts(unknown),
    )
    # A vector of another length has no place in it.
    missing = f"""SELECT {NAMED.format(id="c.doc_id")} || ', ' || c.id FROM {SEARCHED}
                   WHERE c.flaw IS NULL AND c.dimensions = ? AND c.id NOT IN (SELECT chunk_id FROM snapshot)
                   ORDER BY d.id, c.seq, c.id"""
    lacking = seen.texts(missing, found.dimension)
    seen.say(kb.SNAPSHOT, tr("{n} that the snapshot does not have: {named}"), noun="chunk", samples=lacking)


def _check_full_text(seen: Seen) -> None:
    found = _described(seen, kb.FULL_TEXT, _FULL_TEXT_META, msgspec.json.Decoder(_FullText))
    if found is None:
        return
    deleted = sum(one.deletes.num_deleted_docs for one in found.segments if one.deletes is not None)
    texts = sum(one.max_doc for one in found.segments) - deleted
    chunks = int(str(seen.db.execute("SELECT count(*) FROM chunk").get))
    if texts != chunks:
        message = tr(
            "the full-text index has {texts}, and there are {chunks}",
            texts=counted(texts, "text"),
            chunks=counted(chunks, "chunk"),
        )
        seen.ledger.add(kb.FULL_TEXT, message, sample=_FULL_TEXT_META)
