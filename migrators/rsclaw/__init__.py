"""A KB of rsclaw → v2: its latest documents become the items of one base (``docs/rsclaw.md``, "Migrating").

Rules: ``docs/formats/rsclaw.md``, "What is carried". :mod:`.draft` makes the draft; the chunks are laid out as a table
of rows (:mod:`regraft.formats.rsclaw.chunk_table`); the shared stages do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from migrators.pipeline.drafts import BaseDraft
from migrators.pipeline.options import Options
from migrators.pipeline.source import Hints, Pipeline
from migrators.rsclaw.draft import draft_library, scope_of
from regraft.formats.redb import RedbError
from regraft.formats.rsclaw import chunk_table
from regraft.formats.vector_survey import StoreProblem, Survey
from regraft.language import tr
from regraft.located import Located


def _hints(source: Located, draft: BaseDraft, survey: Survey, options: Options) -> Hints:  # noqa: ARG001 - a Pipeline's
    """Return nothing: the database and the documents tell all that there is."""
    return Hints()


@contextmanager
def _opened(path: Path, work: Path | None, options: Options) -> Iterator[Path]:
    try:
        with chunk_table.written(path, work, scope_of(options)) as chunks:
            yield chunks.path
    except RedbError as error:
        raise StoreProblem(tr("cannot be read: {error}", error=error)) from error


PIPELINE = Pipeline(
    table=chunk_table.TABLE, read=draft_library, hints=_hints, opened=_opened, has_visibility=True, shares_ids=True
)
