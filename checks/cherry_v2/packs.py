"""What an audit says of archives: slim backups, members that cannot be read, files that are not as they were packed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath

from checks.audit.collector import FindingCollector, Level, OutOfTime
from checks.audit.findings import register
from checks.cherry_v2 import findings as v2
from regraft.formats.cherry_v2 import pack
from regraft.formats.cherry_v2.pack import PackedFile
from regraft.language import tr
from regraft.locate import INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER, Located
from regraft.move_errors import PackUnreadable
from regraft.text import counted, path_text
from regraft.unpacking import is_pristine

BACKUP_SLIM = register(
    "note",
    "backup.slim",
    tr("A slim backup has the database alone: the rows of its bases, and neither their indexes nor their files."),
    tr("Nothing is wrong. A full backup, or the profile that it was made of, has the rest."),
)


def name_slim(bases: Collection[str], chosen: Collection[str] | None, ledger: FindingCollector) -> None:
    """Say that a backup is a slim one, and what that means for its bases."""
    count = len([base for base in bases if chosen is None or base in chosen])
    message = tr(
        "a slim backup: the rows of {bases} are in it, their indexes and files are not; "
        "restoring it leaves those of the profile as they are",
        bases=counted(count, "base"),
    )
    ledger.add(BACKUP_SLIM, message)


def name_damaged(found: Located, ledger: FindingCollector) -> None:
    """Name the members of an archive that could not be extracted."""
    for name, reason in found.damaged.items():
        base = _base_of(found, name)
        ledger.add(
            v2.CORRUPT, tr("a member of the archive cannot be read: {reason}", reason=reason), base=base, sample=name
        )


def check(found: Located, chosen: Collection[str] | None, ledger: FindingCollector) -> None:
    """Hold the files of a pack against their checksums; an unpacked one only while regraft has not changed it."""
    if not is_pristine(found.tree.path):
        return
    try:
        manifest = pack.read_manifest(found.tree)
    except PackUnreadable as error:
        ledger.add(
            v2.CORRUPT,
            tr("{manifest} cannot be read: {reason}", manifest=pack.MANIFEST, reason=error.facts["reason"]),
            sample=pack.MANIFEST,
        )
        return
    if manifest is None:
        return
    for packed in manifest.files:
        base = _base_of(found, packed.path)
        if packed.path in found.damaged or not _is_meant(base, chosen):
            continue
        try:
            ledger.check_time()
        except OutOfTime:
            ledger.not_checked.append("checksums")
            return
        _check_file(found, packed, base, ledger)
    _name_strangers(found, {packed.path for packed in manifest.files}, chosen, ledger)


def _is_meant(base: str | None, chosen: Collection[str] | None) -> bool:
    """Tell whether what is of a base is looked at; what is of none always is."""
    return chosen is None or base is None or base in chosen


def _name_strangers(
    found: Located, packed: Collection[str], chosen: Collection[str] | None, ledger: FindingCollector
) -> None:
    """Name files of bases that nobody packed: no base with one is installed."""
    root = found.tree.path
    for place in sorted((root / KNOWLEDGE_FOLDER).glob("*")):
        for path in (place / INDEX_FILE, *sorted((place / RAW_FOLDER).rglob("*"))):
            name = path.relative_to(root).as_posix()
            if _is_meant(place.name, chosen) and name not in packed and path.is_file() and not path.is_symlink():
                ledger.add(v2.CORRUPT, tr("no part of the pack"), base=place.name, sample=path_text(name))


def _check_file(found: Located, packed: PackedFile, base: str | None, ledger: FindingCollector) -> None:
    path = found.tree.path / packed.path
    if ".." in PurePosixPath(packed.path).parts or PurePosixPath(packed.path).is_absolute():
        ledger.add(
            v2.CORRUPT, tr("{manifest} names a file outside of the pack", manifest=pack.MANIFEST), sample=packed.path
        )
        return
    try:
        if ledger.level >= Level.DEFAULT:
            problem = pack.problem_of(path, packed, found.digests.get(packed.path))
        else:
            problem = None if path.is_file() and path.stat().st_size == packed.bytes else tr("its size is another")
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem is not None:
        ledger.add(v2.CORRUPT, tr("not what was packed: {problem}", problem=problem), base=base, sample=packed.path)


def _base_of(found: Located, name: str) -> str | None:
    """Return the id of the base whose folder a file lies in."""
    parts = PurePosixPath(name).parts
    above = PurePosixPath(found.stores.bases).parts
    return parts[len(above)] if parts[: len(above)] == above and len(parts) > len(above) + 1 else None
