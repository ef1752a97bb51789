"""Putting a base that is built into its place, with all that it needs from the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from checks.audit.collector import FindingCollector, Level
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import is_tombstone
from checks.cherry_v2.index_file import Expected, audit_index
from regraft import kept_text, long_paths, sqlite
from regraft.errors import NotRestored, PlanOutdated, VerificationFailed
from regraft.language import tr
from regraft.ledger import durable
from regraft.locate import RAW_FOLDER
from regraft.report import notices
from regraft.text import counted
from repair.changes import files
from repair.changes.apply import RESTORING
from repair.changes.plan import Action, FileChange, Plan, Unresolved
from repair.cherry_v2.restore.build import Restored
from repair.cherry_v2.restore.options import RestoredBase
from repair.cherry_v2.restore.rows import new_rows
from repair.cherry_v2.restore.source import Source


def place_of(source: Source, wanted: RestoredBase) -> Path:
    """Return the folder where a base is built.

    Raises:
        NotRestored: the catalog has that base already.
    """
    base = wanted.base_id(source.key)
    if base in source.bases:
        reason = tr(
            "that was done: base {base} has {model_id}; regraft backfill makes vectors that it "
            "lacks, and --name or another model makes another base",
            base=base,
            model_id=wanted.model_id,
        )
        raise NotRestored(path=source.store.path, base=source.key, reason=reason)
    return source.store.own / RESTORING / base


def discard(staged: Path) -> None:
    """Remove what was built."""
    durable.remove_tree(staged)
    files.prune(staged.parent, staged.parent.parent)


def plan(source: Source, wanted: RestoredBase, restored: Restored, staged: Path, now_ms: int) -> Plan:
    """Return what puts a base that was built in ``staged`` into its place; nothing is written.

    Its vectors need not be there: then the plan is what a dry run shows.

    Raises:
        NotRestored: the catalog has it already, or cannot have its model.
        VerificationFailed: what was built is damaged.
        PlanOutdated: the old base was changed since.
        ProfileUnknown: the profile is of another time than this regraft.
    """
    place_of(source, wanted)
    made = Plan()
    base, index = restored.base, restored.index(staged)
    source.store.names[base] = wanted.name or str(source.row.get("name"))
    if source.mark() != restored.mark:
        raise PlanOutdated(
            path=source.index.parent.parent, reason=tr("the base was changed while its texts were embedded")
        )
    missing = _missing(index, base, wanted.dimensions)
    name = source.folder(base)
    copied = sum((source.raw / path).stat().st_size for path in restored.files)
    size = copied + files.size_of(restored.folder(staged))
    message = tr(
        "write the base: {texts} in {units}, and",
        texts=counted(restored.texts, "text"),
        units=counted(restored.units, "unit"),
    )
    message = tr("{message_} {files} of the old one", message_=message, files=counted(len(restored.files), "file"))
    action = Action(action="write-base", message=message, base=base, subject=name, count=restored.units, bytes=size)
    guesses = [
        Action(
            action="guess-encoding",
            message=tr("read {path} as {encoding}, by its letters", path=path, encoding=encoding),
            base=base,
            subject=path,
        )
        for path, encoding in restored.guessed.items()
    ]
    make = _make(restored.folder(staged), source.raw, restored.files)
    made.changes.append(FileChange(path=name, actions=(action, *guesses), make=make, bytes=size))
    made.changes.append(new_rows(source, wanted, restored.items, now_ms))
    made.left += _left(restored)
    made.left += _tombstones(source, restored)
    if missing:
        message = tr("{bodys} without a vector", bodys=counted(missing, "body"))
        made.left.append(
            Unresolved(
                finding=v2.VECTOR_MISSING, reason=message, base=base, subject=None, count=missing, severity="error"
            )
        )
    made.new_bases[base], made.lists_inherited = _of_copied_rows(source), True
    return made


def _tombstones(source: Source, restored: Restored) -> Iterator[Unresolved]:
    """Yield the folders that the application's upgrade left behind and that have no text to restore either."""
    rows = {row["id"]: row for row in source.items}
    for item in restored.items:
        if is_tombstone({**rows[item.old], "status": item.status, "error": item.error}):
            reason = tr("a folder that the upgrade left behind: its index has no texts of it")
            yield Unresolved(
                finding=v2.ITEM_TOMBSTONE, reason=reason, base=restored.base, subject=item.id, severity="warning"
            )


def _of_copied_rows(source: Source) -> frozenset[str]:
    """Return the names of the findings that the rows of the old base have and that copies of them may have, too."""
    found = source.store.audit(Level.QUICK, frozenset({source.key})).findings
    copied = (v2.CATALOG_VALUE, v2.BASE_STATUS)
    return frozenset(one.name for one in found if one.name.startswith("item.") or one.name in copied)


def _left(restored: Restored) -> Iterator[Unresolved]:
    """Yield what of the old base stays behind."""
    for one in restored.left:
        severity: notices.Severity = "note" if one.severity == "note" else "warning"
        # An earlier run may have built the base; what it kept is English.
        reason = kept_text.spoken(one.reason)
        yield Unresolved(
            finding=one.finding, reason=reason, base=restored.base, subject=one.item, count=1, severity=severity
        )


def _missing(index: Path, base: str, dimensions: int) -> int:
    """Return how many bodies have no vector.

    Raises:
        VerificationFailed: something else is wrong with the index.
    """
    ledger = FindingCollector()
    audit_index(index, Expected(base=base, folder=base, has_model=True, dimensions=dimensions), ledger)
    for finding in ledger.findings():
        if finding.severity == "error" and finding.name != v2.VECTOR_MISSING:
            raise VerificationFailed(base=base, reason=finding.message)
    return ledger.count(v2.VECTOR_MISSING, base)


def _make(built: Path, raw: Path, paths: tuple[str, ...]) -> Callable[[Path], None]:
    def make(new: Path) -> None:
        for place, _, names in long_paths.walk(built, durable.whole):
            for name in names:
                file = Path(place) / name
                if sqlite.is_database(file):
                    files.settle_log(file)
                if not name.endswith(sqlite.TRACES):
                    _put(file, new / file.relative_to(built))
        for path in paths:
            target = new / RAW_FOLDER / path
            durable.make_folders(target.parent, flush=False)
            try:
                durable.copy_file(raw / path, target)
            except FileNotFoundError as error:
                raise PlanOutdated(path=raw / path, reason=tr("it is gone")) from error

    return make


def _put(file: Path, target: Path) -> None:
    """Give a file that was built a second name: what was paid for stays where it is until the run is over."""
    durable.make_folders(target.parent, flush=False)
    if not durable.try_link(file, target):
        durable.copy_file(file, target)
