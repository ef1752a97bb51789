"""The bases of a source as donors: that with the id of the repaired base first, each opened when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from checks.audit.collector import Level
from checks.cherry_v2 import findings as v2
from regraft.formats.cherry_v2.index.opening import UNREADABLE
from regraft.formats.cherry_v2.layout import RAW_FOLDER
from repair.cherry_v2.from_source.donors import Donor
from repair.cherry_v2.source import BaseSource


class DonorBases:
    """The bases of a source that can be read; what keeps one out is in ``problems``, by its id."""

    def __init__(self, source: BaseSource, keep: ExitStack) -> None:
        self._source = source
        self._keep = keep
        self.problems: dict[str, str] = {}
        self._paths: dict[str, Path | None] = {}

    def each(self, base: str, gives: Callable[[Donor], bool]) -> Iterator[Donor]:
        """Yield the donors that give something to a base; these stay open, the others are closed."""
        own = [key for key in self._source.chosen if key == base]
        for key in (*own, *(key for key in self._source.chosen if key != base)):
            with ExitStack() as stack:
                donor = self._opened(key, base, stack)
                if donor is not None and self._asked(donor, gives):
                    self._keep.enter_context(stack.pop_all())
                    yield donor

    def _asked(self, donor: Donor, gives: Callable[[Donor], bool]) -> bool:
        try:
            return gives(donor)
        except UNREADABLE as error:
            self.problems[donor.base] = str(error)
            self._paths[donor.base] = None
            return False

    def _opened(self, key: str, base: str, stack: ExitStack) -> Donor | None:
        path = self._path(key)
        if path is None:
            return None
        source = self._source
        try:
            return Donor.of(
                path,
                stack,
                base=key,
                row=source.bases[key],
                raw=source.folder(key) / RAW_FOLDER,
                is_same_base=key == base,
            )
        except UNREADABLE as error:
            self.problems[key] = str(error)
            return None

    def _path(self, key: str) -> Path | None:
        """Return the index file of a base of the source; None where it is damaged, or none that may be opened."""
        if key not in self._paths:
            self._paths[key] = self._proven_path(key)
        return self._paths[key]

    def _proven_path(self, key: str) -> Path | None:
        source = self._source
        one = source.store.stores.get(key)
        findings = list(source.store.audit(Level.SHAPE, frozenset({key})).findings)
        problem = source.problem(key, findings)
        if problem is None and one is None:
            problem = next((found for found in findings if found.base == key and found.name == v2.BASE_FAILED), None)
        if problem is not None:
            self.problems[key] = problem.message
        return None if one is None or problem is not None else source.store.root / one.name
