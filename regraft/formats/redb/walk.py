"""Walks through the trees of a redb file, past what is damaged (``docs/formats/redb.md``, "Damage")."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from regraft.formats.redb.damage import Malformed, PageDamage, Report
from regraft.formats.redb.header import Root, checksum
from regraft.formats.redb.nodes import BRANCH, LEAF, Branch, Leaf, Shape, read_branch, read_leaf
from regraft.formats.redb.pages import Claim, Pages, Place, split_number
from regraft.language import tr

#: No tree is deeper: with two children for each branch it would have more leaves than a file has pages.
DEEPEST = 64
Rank = Callable[[bytes], Any] | None
#: The ranks that a leaf's keys are held against: of the last key before, and those that they lie between.
_Limits = tuple[Any, Any, Any]


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """A page that a walk is to come to."""

    number: int
    checksum: bytes
    depth: int
    #: The ranks of keys that its own lie between, the upper one included; None where none is known.
    above: Any = None
    up_to: Any = None
    #: Whether the page that names it is as it was written.
    is_trusted: bool = True


class Walk:
    """One walk through the trees of a table.

    Args:
        pages: the pages of the file.
        claim: what keeps it from coming to a page twice.
        table: the name of the table; None for the list of tables.
        report: is called with each damage.
    """

    def __init__(self, pages: Pages, claim: Claim, table: str | None, report: Report) -> None:
        self._pages = pages
        self._claim = claim
        self._table = table
        self._report = report

    def leaves(self, root: Root, shape: Shape, rank: Rank) -> Iterator[tuple[Place, Leaf]]:
        """Return the leaves of a tree whose bytes are those that were written, in the order of their keys.

        Args:
            root: where the tree begins.
            shape: how wide its keys and values are.
            rank: gives what the order of its keys follows.
        """
        steps = [_Step(number=root.page, checksum=root.checksum, depth=0)]
        last: Any = None
        while steps:
            step = steps.pop()
            found = self._visit(step, shape)
            if found is None:
                continue
            place, node, is_whole = found
            if isinstance(node, Branch):
                steps += _children(node, step, rank, is_whole)
                continue
            if rank is not None:
                ranks = self._ranks(place, node.keys(), rank, (last, step.above, step.up_to))
                if ranks is None:
                    continue
                last = ranks[-1]
            yield place, node

    def damage(self, place: Place, reason: str) -> None:
        """Report damage of a page."""
        self._report(
            PageDamage(table=self._table, page=place.words, offset=place.offset, length=place.length, reason=reason)
        )

    def keys(self, place: Place, data: bytes, shape: Shape, rank: Rank) -> list[bytes]:
        """Return the keys of a leaf that lies within a page; none where it is damaged."""
        try:
            keys = read_leaf(data, shape).keys()
        except Malformed as error:
            self.damage(place, str(error))
            return []
        if rank is not None and self._ranks(place, keys, rank, (None, None, None)) is None:
            return []
        return keys

    def _visit(self, step: _Step, shape: Shape) -> tuple[Place, Leaf | Branch, bool] | None:
        """Read a page; return it and whether its checksum is right, or None where it is of no use."""
        try:
            place = self._pages.place(step.number)
        except Malformed as error:
            self._report(self._nowhere(step.number, str(error)))
            return None
        try:
            _check_depth(step)
            self._claim.take(place)
            node = _node(self._pages.read(place), shape)
        except Malformed as error:
            self.damage(place, str(error))
            return None
        is_whole = node.end is not None and checksum(memoryview(node.page)[: node.end]) == step.checksum
        if not is_whole:
            self.damage(place, _why(node, step))
            if isinstance(node, Leaf) or not step.is_trusted:
                return None
        return place, node, is_whole

    def _ranks(self, place: Place, keys: list[bytes], rank: Callable[[bytes], Any], limits: _Limits) -> Any:
        """Return the ranks of keys; None, and damage, where they are not in order or not of their type."""
        last, above, up_to = limits
        try:
            ranks = [rank(key) for key in keys]
        except ValueError as error:
            self.damage(place, tr("a key is not of its type: {error}", error=error))
            return None
        is_within = (above is None or ranks[0] > above) and (up_to is None or ranks[-1] <= up_to)
        is_ordered = all(map(operator.lt, ranks, ranks[1:])) and (last is None or ranks[0] > last)
        if not is_within or not is_ordered:
            self.damage(place, tr("its keys are not in order"))
            return None
        return ranks

    def _nowhere(self, number: int, reason: str) -> PageDamage:
        """Return the damage of a page that is not in the file."""
        region, index, order = split_number(number)
        words = tr("region {region}, page {index}, order {order}", region=region, index=index, order=order)
        return PageDamage(table=self._table, page=words, offset=self._pages.offset(number), length=0, reason=reason)


def _check_depth(step: _Step) -> None:
    if step.depth > DEEPEST:
        raise Malformed(tr("the tree is deeper than any that redb makes"))


def _node(page: bytes, shape: Shape) -> Leaf | Branch:
    if page[0] == LEAF:
        return read_leaf(page, shape)
    if page[0] == BRANCH:
        return read_branch(page, shape.key_width)
    raise Malformed(tr("it is neither a leaf nor a branch"))


def _why(node: Leaf | Branch, step: _Step) -> str:
    """Return what is wrong with a page that is not as it was written."""
    if node.end is None:
        return tr("an entry lies outside of its page")
    if step.is_trusted:
        return tr("its checksum is wrong")
    return tr("it is not the page that a damaged one names")


def _children(branch: Branch, step: _Step, rank: Rank, is_whole: bool) -> list[_Step]:
    """Return the steps to the children of a branch, the first one last."""
    children = branch.children()
    bounds = _bounds(branch, rank) if is_whole else None
    if bounds is None:  # nothing is known but where the branch itself lies
        limits = [(step.above, step.up_to)] * len(children)
    else:
        limits = list(zip([step.above, *bounds], [*bounds, step.up_to], strict=True))
    return [
        _Step(number=number, checksum=stored, depth=step.depth + 1, above=above, up_to=up_to, is_trusted=is_whole)
        for (number, stored), (above, up_to) in zip(reversed(children), reversed(limits), strict=True)
    ]


def _bounds(branch: Branch, rank: Rank) -> list[Any] | None:
    """Return the ranks of the keys of a branch; None where they are not known."""
    if rank is None:
        return None
    try:
        return [rank(key) for key in branch.separators()]
    except ValueError:
        return None
