"""Plan ``regraft repair --moved OLD=NEW``: correct the paths of originals in the catalog (``docs/reuse.md``).

The application indexes a file or folder again from its original, whose path the catalog has. If the folder of the
originals was moved or renamed, that path is corrected; nothing else of the item changes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import get_source, is_source_missing
from regraft.errors import NotChanged, WrongUsage
from regraft.formats.cherry_v2.catalog_reader import Row, base_id_text
from regraft.kinds import KIND_NAMES
from regraft.language import format_count, tr
from regraft.text import printable
from repair.changes.options import RepairOptions
from repair.changes.plan import Action, Plan, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import CatalogStatements, make_catalog_change, read_store_catalog

_WINDOWS = re.compile(r"[A-Za-z]:(?=[\\/]|$)|[\\/]{2}(?=[^\\/])")
_TABLES = ("knowledge_item",)


def is_windows_path(path: str) -> bool:
    """Whether a path has the form of an absolute path of Windows: a drive, or a share of a server."""
    return _WINDOWS.match(path) is not None and not path.startswith("//")


class MovedRoot(msgspec.Struct, frozen=True):
    """A folder or file that was moved: its old and its new absolute path, without a separator at the end."""

    old: str
    new: str

    @classmethod
    def of(cls, old: str, new: str) -> MovedRoot:
        """Check and trim two paths.

        Raises:
            WrongUsage: one of them is not absolute.
        """
        for path in (old, new):
            if not (is_windows_path(path) or path.startswith("/")) or "\0" in path:
                problem = tr("--moved {old}={new}: {path} is not an absolute path", old=old, new=new, path=path or "''")
                raise WrongUsage(problem=problem, hint=tr("write both paths in full"))
        return cls(_trim(old), _trim(new))

    def rewrite(self, source: str) -> str | None:
        """Return the new path of an original; None if it is neither at nor below the old path.

        On Windows, upper and lower case are the same, and so are both separators.
        """
        is_windows = is_windows_path(self.old)
        if is_windows_path(source) is not is_windows:
            return None
        old, own = (_fold(self.old), _fold(source)) if is_windows else (self.old, source)
        rest = source[len(self.old) :]
        separators = "\\/" if is_windows else "/"
        # The root of a disk ends with its separator, and so do all paths below it.
        is_below = self.old[-1:] in tuple(separators) or not rest or rest[0] in separators
        if len(own) != len(source) or not own.startswith(old) or not is_below:
            return None
        return _join(self.new, rest.lstrip(separators), is_windows)


def _fold(path: str) -> str:
    """Fold a path of Windows, character by character, so that positions stay the same."""
    return "".join(one if len(one) == 1 else char for char in path for one in (char.lower(),)).replace("/", "\\")


def _trim(path: str) -> str:
    """Remove separators at the end, but not that of the root of a disk."""
    if is_windows_path(path):
        trimmed = path.rstrip("\\/")
        return f"{trimmed}\\" if len(trimmed) == len("C:") and trimmed.endswith(":") else trimmed
    return path.rstrip("/") or "/"


def _join(new: str, rest: str, was_windows: bool) -> str:
    """Append the rest of an old path to the new one, with the separators of the new path's system."""
    separator = "\\" if is_windows_path(new) else "/"
    if not rest:
        return new
    if was_windows and separator == "/":
        rest = rest.replace("\\", "/")
    elif not was_windows and separator == "\\":
        rest = rest.replace("/", "\\")
    return f"{new}{rest}" if new.endswith(("\\", "/")) else f"{new}{separator}{rest}"


def rewrite_source(source: str, roots: Iterable[MovedRoot]) -> str | None:
    """Return the new path of an original by the longest old path that it is at or below; None if there is none."""
    found = ((len(root.old), new) for root in roots if (new := root.rewrite(source)) is not None)
    return max(found, default=(0, None), key=lambda one: one[0])[1]


# --- the plan --------------------------------------------------------------------------------------------------------


def plan(store: Store, options: RepairOptions) -> Plan:
    """Plan the new paths of originals in the catalog, as one change.

    Raises:
        WrongUsage: a path is not absolute, other options of ``repair`` are given as well, or no item has its original
            at or below one of the old paths, or the new one.
        NotChanged: the store has no catalog.
        RegraftError: the catalog cannot be read.
    """
    roots = [MovedRoot.of(old, new) for old, new in options.moved]
    _demand_alone(options)
    if store.catalog is None:
        what = tr("{names} without a catalog", names=KIND_NAMES[store.found.kind])
        advice = tr("use the library or profile that it belongs to")
        raise NotChanged(path=store.path, what=what, command="repair --moved", advice=advice)
    catalog = read_store_catalog(store)
    is_whole = store.found.stores.is_whole
    bases = [key for key in map(base_id_text, catalog.bases) if store.wants(key) and (is_whole or key in store.stores)]
    items = {base: (catalog.items or {}).get(base, []) for base in bases}
    _demand_known(roots, items)
    made, statements = Plan(), CatalogStatements(store.root / store.catalog)
    actions = []
    for base, rows in items.items():
        moved = list(_moved_items(rows, roots))
        fitting = [(row, new) for row, new in moved if _is_text(new)]
        for row, new in fitting:
            statements.set_source(base, row, new)
        actions += list(_actions(base, fitting, roots))
        made.left += list(_left(base, moved, fitting))
    if actions:
        made.changes.append(make_catalog_change(statements, store.catalog, actions, _TABLES))
    return made


def _moved_items(rows: Sequence[Row], roots: Sequence[MovedRoot]) -> Iterator[tuple[Row, str]]:
    """Yield the items whose original was moved, with its new path."""
    for row in rows:
        source = get_source(row)
        new = None if source is None else rewrite_source(source, roots)
        if new is not None and new != source:
            yield row, new


def _actions(base: str, moved: Sequence[tuple[Row, str]], roots: Sequence[MovedRoot]) -> Iterator[Action]:
    """Yield one action for each old path that items of a base had."""
    counts = Counter(
        max((root for root in roots if root.rewrite(str(get_source(row))) is not None), key=lambda root: len(root.old))
        for row, _ in moved
    )
    for root, count in counts.items():
        message = tr(
            "correct the path of the original of {items}: {old} is {new} now",
            items=format_count(count, "item"),
            old=printable(root.old),
            new=printable(root.new),
        )
        yield Action(action="set-source", message=message, base=base, count=count, finding=v2.ITEM_SOURCE_MISSING)


def _left(base: str, moved: Sequence[tuple[Row, str]], fitting: Sequence[tuple[Row, str]]) -> Iterator[Unresolved]:
    """Yield originals that are not at their new path either, and paths that cannot be written."""
    missing = [new for _, new in fitting if is_source_missing(new)]
    if missing:
        reason = tr(
            "{items} not found at the new path either, such as {path}",
            items=format_count(len(missing), "original"),
            path=printable(missing[0]),
        )
        yield Unresolved.registered(v2.ITEM_SOURCE_MISSING, reason, base=base, count=len(missing))
    if len(fitting) < len(moved):
        reason = tr("the path is not valid Unicode")
        yield Unresolved.registered(v2.ITEM_SOURCE_MISSING, reason, base=base, count=len(moved) - len(fitting))


def _is_text(path: str) -> bool:
    """Whether a path can be written as UTF-8: names on Windows may have half a surrogate pair."""
    return path == path.encode("utf-8", "replace").decode()


def _demand_known(roots: Sequence[MovedRoot], items: Mapping[str, Sequence[Row]]) -> None:
    """Refuse an old path that no item has, unless an earlier run corrected it.

    Raises:
        WrongUsage
    """
    sources = {source for rows in items.values() for row in rows if (source := get_source(row)) is not None}
    for root in roots:
        back = MovedRoot(root.new, root.old)
        if not any(root.rewrite(one) is not None or back.rewrite(one) is not None for one in sources):
            problem = tr("--moved {old}: no file or folder of the chosen bases is there", old=printable(root.old))
            raise WrongUsage(problem=problem, hint=tr("regraft inspect --items lists the sources"))


def _demand_alone(options: RepairOptions) -> None:
    """Refuse other options that select what to repair.

    Raises:
        WrongUsage
    """
    others = {
        "--only": bool(options.only),
        "--model": options.model is not None,
        "--adopt": options.adopt,
        "--salvage": options.salvage,
        "--from": options.source is not None,
    }
    for name, is_given in others.items():
        if is_given:
            raise WrongUsage(
                problem=tr("--moved cannot be combined with {name}", name=name),
                hint=tr("run --moved first, then {name}", name=name),
            )


__all__ = ["MovedRoot", "plan", "rewrite_source"]
