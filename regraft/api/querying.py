"""What asks a store a question and writes nothing, as functions (``docs/api.md``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import migrators
from migrators import compare as migrators_compare
from migrators.compare_report import CompareReport, Query, Question, summary
from regraft.api import searching
from regraft.api.given import kind_of, models_of, moment, path_of, watch_of
from regraft.api.searching import SearchRequest
from regraft.kinds import NAMES, Kind
from regraft.locate import located
from regraft.ranking import angel_memory, recall_report
from regraft.ranking.cherry_v2 import Mode
from regraft.ranking.chunks_report import ChunksReport
from regraft.ranking.notes_report import NotesReport
from regraft.ranking.records_report import RecordsReport
from regraft.ranking.search_report import SearchReport
from regraft.report.document import Run
from regraft.report.progress import Progress
from regraft.system_errors import NotRecalled


def search(
    path: str | Path,
    query: str,
    *,
    kind: Kind | str | None = None,
    base: str | None = None,
    mode: Mode | str | None = None,
    count: int | None = None,
    alpha: float | None = None,
    vector: Sequence[float] | None = None,
    embedder: str | None = None,
    config: str | Path | None = None,
    raw: bool = False,
    as_: Sequence[str] = (),
) -> SearchReport | NotesReport | ChunksReport | RecordsReport:
    """Return what the application would find in one base or in all, or what a search of another system's store finds.

    Options as of ``regraft search``.

    Raises:
        RegraftError: as ``docs/errors.md`` has them.
    """
    place = path_of(path)
    run = Run(command="search")
    request = SearchRequest(
        query=query,
        base=base,
        mode=None if mode is None else Mode(mode),
        count=count,
        alpha=alpha,
        vector=None if vector is None else tuple(vector),
        embedder=embedder,
        config=None if config is None else path_of(config),
        raw=raw,
        callers=tuple(as_),
    )
    with located(place, kind_of(kind)) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else place
        found = searching.search(source, request)
    run.end()
    return searching.report(run.head(), found)


def recall(
    path: str | Path,
    short_id: int,
    *,
    kind: Kind | str | None = None,
    first: int | None = None,
    last: int | None = None,
    token_budget: int | None = None,
) -> recall_report.RecallReport:
    """Return lines of a note of AngelMemory, from its file as it is now; as ``regraft recall``.

    Args:
        path: a data folder of AngelMemory.
        short_id: the note's.
        kind: what the path is, where that is not recognised rightly.
        first: the first line, from 1 on; None: from the beginning.
        last: the last line; None: to the end.
        token_budget: about how many tokens the lines may have.

    Raises:
        ValueError: there are no such lines.
        RegraftError: as ``docs/errors.md`` has them.
    """
    place, span = path_of(path), angel_memory.Span(first, last)
    run = Run(command="recall")
    with located(place, kind_of(kind)) as source:
        if source.kind is not Kind.ANGEL_MEMORY:
            raise NotRecalled(path=place, what=NAMES[source.kind])
        run.source_kind, run.source = source.kind.value, place
        found = angel_memory.recall(source.tree.path, short_id, span, token_budget)
    run.end()
    return recall_report.report(run.head(), found)


def compare(
    v1: str | Path,
    v2: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    queries: Iterable[Query] | None = None,
    sample: int = 20,
    count: int = 10,
    map_model: Mapping[str, str] | None = None,
    recreate_model: Iterable[str] = (),
    progress: Progress | None = None,
) -> CompareReport:
    """Ask the vectors of ``v1`` and the index of ``v2`` the same, and return where they part; as ``regraft compare``.

    Raises:
        RegraftError: as ``docs/errors.md`` has them.
    """
    run = Run(command="compare")
    asked = Question(count, sample, None if queries is None else tuple(queries))
    options = migrators.Options(
        now_ms=moment(None),
        model_overrides=models_of(map_model or {}, recreate_model),
        bases=tuple(bases),
        while_running=True,
    )
    first, second = path_of(v1), path_of(v2)
    with located(first, kind_of(kind)) as old, located(second) as new:
        run.source_kind, run.source = old.kind.value, first
        run.target_kind, run.target = new.kind.value, second
        told = migrators_compare.compare(old, new, options, asked, watch_of(progress))
    run.end()
    return CompareReport(head=run.head(), k=count, bases=told, summary=summary(told))
