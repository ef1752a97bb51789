"""``regraft pack``: which bases and files go into a pack, and what became of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import apsw
import msgspec

from checks.cherry_v2 import findings as v2
from regraft import links, long_paths, sqlite
from regraft.clock import iso_time
from regraft.errors import NotEnoughSpace, RegraftError, SourceUnreadable, TargetNotWritable, WrongUsage
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.pack import MANIFEST, Manifest, PackedBase, PackedFile, read_manifest
from regraft.kinds import Kind
from regraft.language import joined, tr
from regraft.ledger import durable
from regraft.locate import CATALOG_FILE, KNOWLEDGE_FOLDER
from regraft.move_errors import NothingToPack, PackThere, PackUnreadable
from regraft.report.document import Report, Run
from regraft.report.progress import Progress, human_bytes, stage
from regraft.text import counted, one_line
from regraft.tree import ZipTree
from regraft.zip_directory import LONGEST_NAME, MOST_PARTS
from repair.changes.copies import copy_database
from repair.changes.plan import Unresolved
from repair.changes.report import BaseName
from repair.cherry_v2.pack import archive, catalog
from repair.cherry_v2.pack.archive import Member
from repair.cherry_v2.source import BaseSource, opened

Outcome = Literal["planned", "written", "unchanged"]
#: What a zip file takes for each member, besides its bytes and its name, and for its end.
_MEMBER_BYTES, _END_BYTES = 512, 1 << 16


class PackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is packed, and where to.

    ``bases`` are names or ids (v1 or v2); empty: all. ``now_ms`` is the time that members carry.
    """

    source: Path
    target: Path
    now_ms: int
    kind: Kind | None = None
    bases: tuple[str, ...] = ()
    dry_run: bool = False


class PackedBaseReport(BaseName, frozen=True, kw_only=True):
    """A base of a pack: its v1 id where that is known, and how much of it there is."""

    legacy_id: str | None
    status: str
    model: str | None
    dimensions: int | None
    items: int
    files: int
    bytes: int


class PackReport(Report, kw_only=True):
    """What was packed: ``outcome`` is planned, written, or unchanged where the pack was there already."""

    outcome: Outcome
    bases: list[PackedBaseReport]
    left: list[Unresolved]
    files: int
    bytes: int


class _Contents(msgspec.Struct):
    """The files of a pack, and what stays out of it."""

    members: list[Member] = msgspec.field(default_factory=list)
    bases: list[PackedBase] = msgspec.field(default_factory=list)
    left: list[Unresolved] = msgspec.field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(member.size for member in self.members)


def pack(options: PackOptions, progress: Progress) -> PackReport:
    """Write chosen bases of a store to one file, and return what was done; the store is only read.

    Raises:
        WrongUsage, TargetNotWritable, PackThere: there is no place for it, or something else is there.
        NothingToPack: no base of it can be packed.
        NotEnoughSpace
        PlanOutdated: a file of the source was written to meanwhile.
        RegraftError: the source cannot be read.
        OSError: stopped by the system.
    """
    run = Run(command="pack", dry_run=options.dry_run, target_kind=Kind.PACK.value, target=options.target)
    _check_target(options.target)
    with opened(options.source, options.kind, options.bases, "pack") as source, durable.temporary_folder() as work:
        run.source_kind, run.source = source.store.found.kind.value, options.source
        _check_outside(source, options)
        _demand_early_room(source, options)
        contents = _contents(source, work)
        if not contents.bases:
            raise NothingToPack(path=options.source, reason=_reasons(contents))
        outcome = _carry_out(source, contents, options, progress)
    run.end()
    return PackReport(
        head=run.head(),
        outcome=outcome,
        bases=[PackedBaseReport(**msgspec.structs.asdict(base)) for base in contents.bases],
        left=contents.left,
        files=len(contents.members),
        bytes=contents.bytes,
    )


def _reasons(contents: _Contents) -> str:
    return joined(dict.fromkeys(left.reason for left in contents.left), between=tr("; ")) or tr("it has none")


# --- where to --------------------------------------------------------------------------------------------------------


def _check_target(target: Path) -> None:
    if target.suffix.lower() != ".zip":
        raise WrongUsage(
            problem=tr("{target} is not a name for a pack", target=one_line(str(target))), hint=tr("give FILE.zip")
        )
    if target.is_dir():
        raise PackThere(path=target, what="a folder")
    if not target.parent.is_dir():
        raise TargetNotWritable(path=target, reason=tr("its folder does not exist"))


def _check_outside(source: BaseSource, options: PackOptions) -> None:
    root = options.source if options.source.is_dir() else source.store.root
    if links.is_at_or_below(options.target, root):
        raise TargetNotWritable(path=options.target, reason=tr("it lies in the source"))


# --- what goes into it -----------------------------------------------------------------------------------------------


def _contents(source: BaseSource, work: Path) -> _Contents:
    source.demand_whole()
    contents = _Contents()
    findings = source.findings()
    chosen = []
    for base in source.chosen:
        problem = source.problem(base, findings)
        if problem is None:
            chosen.append(base)
        else:
            contents.left.append(
                Unresolved(
                    finding=problem.name, reason=tr("not packed: {message_}", message_=problem.message), base=base
                )
            )
    rows = work / CATALOG_FILE
    try:
        catalog.write(rows, source, chosen)
        contents.members.append(Member.of(CATALOG_FILE, rows))
        for base in chosen:
            _add_base(contents, source, base, work)
    except (apsw.Error, UnicodeDecodeError) as error:
        if sqlite.is_write_failure(error):
            raise
        raise SourceUnreadable(path=source.store.path, reason=error) from error
    return contents


def _add_base(contents: _Contents, source: BaseSource, base: str, work: Path) -> None:
    row = source.bases[base]
    found = source.files(base)
    named = [(path, path.relative_to(source.folder(base)).as_posix()) for path in found.files]
    unfit = [name for _, name in named if not _is_fit(name)]
    members = [_member(base, path, name, work) for path, name in named if _is_fit(name)]
    contents.members += members
    dimensions = row.get("dimensions")
    contents.bases.append(
        PackedBase(
            id=base,
            name=source.name_of(base),
            status=str(row.get("status")),
            legacy_id=source.legacy_id(base),
            model=_text(row.get("embedding_model_id")),
            dimensions=dimensions if isinstance(dimensions, int) else None,
            items=len((source.catalog.items or {}).get(base, ())),
            files=len(members),
            bytes=sum(member.size for member in members),
        )
    )
    contents.left += _left(base, row, found.links, unfit)


def _left(base: str, row: Row, links: Sequence[str], unfit: Sequence[str]) -> Iterator[Unresolved]:
    """Yield what of a base stays out of a pack, and what is odd about what comes into it."""
    if links:
        message = tr("{links} in its folder, not followed and not packed", links=counted(len(links), "link"))
        yield Unresolved(finding=v2.RAW_MISSING, reason=message, base=base, subject=links[0], count=len(links))
    if unfit:
        message = tr("{files} with a name that no zip file can hold, not packed", files=counted(len(unfit), "file"))
        yield Unresolved(
            finding=v2.RAW_MISSING, reason=message, base=base, subject=one_line(unfit[0]), count=len(unfit)
        )
    if row.get("status") == "failed":
        message = tr("it failed ({get}), and is packed as it is", get=one_line(str(row.get("error"))))
        yield Unresolved(finding=v2.BASE_FAILED, reason=message, base=base, severity="note")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _is_fit(name: str) -> bool:
    """Tell whether a name can stand in an archive: UTF-8, and no part that would lead out of it on any system."""
    try:
        whole = f"{KNOWLEDGE_FOLDER}/{name}"
        return (
            len(whole.encode()) < LONGEST_NAME
            and whole.count("/") < MOST_PARTS
            and ".." not in whole.replace("\\", "/").split("/")
        )
    except UnicodeEncodeError:
        return False


def _member(base: str, path: Path, name: str, work: Path) -> Member:
    """Return a file as it is packed: a database with a log beside it as its readers see it."""
    whole = f"{KNOWLEDGE_FOLDER}/{base}/{name}"
    if sqlite.companions(links.real_path(path)) and sqlite.is_database(path):
        copy = work / f"{base}.sqlite"
        copy_database(path, copy)
        return Member.of(whole, copy)
    return Member.of(whole, path)


# --- writing it ------------------------------------------------------------------------------------------------------


def _carry_out(source: BaseSource, contents: _Contents, options: PackOptions, progress: Progress) -> Outcome:
    manifest = Manifest(
        pack=1,
        created_at=iso_time(options.now_ms),
        source={"kind": source.store.found.kind.value},
        bases=tuple(contents.bases),
    )

    def with_files(files: tuple[PackedFile, ...]) -> Manifest:
        return msgspec.structs.replace(manifest, files=files)

    if os.path.lexists(options.target):
        with stage(progress, "Comparing", contents.bytes, "bytes"):
            _demand_identical(options.target, with_files(archive.hashed(contents.members, progress)))
        if not options.dry_run:
            archive.remove_remains(options.target)
        return "unchanged"
    if options.dry_run:
        return "planned"
    _check_space(options.target, contents)
    with stage(progress, "Packing", contents.bytes, "bytes"):
        try:
            archive.write(options.target, contents.members, with_files, options.now_ms, progress)
        except OSError as error:
            # A full disk or a limit on file sizes concerns the pack, not the file of the source that was being read.
            if error.errno in durable.NO_ROOM:
                raise OSError(error.errno, error.strerror, os.fspath(options.target)) from error
            raise
    return "written"


def _demand_identical(target: Path, wanted: Manifest) -> None:
    """Refuse to write over a file, unless it is the very pack that would be written.

    Raises:
        PackThere
    """
    try:
        tree = ZipTree(target)
        try:
            there = read_manifest(tree)
        finally:
            tree.close()
    except (PackUnreadable, RegraftError):
        there = None
    if there is None:
        raise PackThere(path=target, what=tr("another file"))
    if (there.files, [base.id for base in there.bases]) != (wanted.files, [base.id for base in wanted.bases]):
        raise PackThere(path=target, what=tr("a pack of something else"))
    problem = archive.problem_of(target, there)
    if problem is not None:
        raise PackThere(path=target, what=tr("the same pack, damaged ({problem}),", problem=problem))


def _demand_early_room(source: BaseSource, options: PackOptions) -> None:
    """Refuse before any base is read whole: all count that a look at their names does not keep out.

    Raises:
        NotEnoughSpace
    """
    if options.dry_run or os.path.lexists(options.target):
        return
    needed = 0
    for base in source.chosen:
        if source.problem(base, []) is None:
            needed += sum(long_paths.lstat(path).st_size for path in source.files(base).files)
    _demand_free(options.target, needed)


def _check_space(target: Path, contents: _Contents) -> None:
    names = sum(2 * len(os.fsencode(member.name)) + _MEMBER_BYTES for member in contents.members)
    _demand_free(target, contents.bytes + names + _END_BYTES + len(MANIFEST))


def _demand_free(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise NotEnoughSpace(path=target, needed=human_bytes(needed), free=human_bytes(free))
