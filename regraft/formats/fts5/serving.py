"""The jobs that processes do (:mod:`regraft.crew`): NumPy is loaded there, and not where they are dealt out."""

from __future__ import annotations

import os

from regraft.formats.fts5.jobs import RangeJob, Run, SortJob


def make_ready() -> None:
    """Load what the other jobs need. NumPy's threads for linear algebra would only be waiting."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from regraft.formats.fts5 import making  # noqa: F401, PLC0415 - see above


def sort(job: SortJob) -> list[tuple[Run, list[int]]]:
    """See :func:`regraft.formats.fts5.making.sort`."""
    make_ready()
    from regraft.formats.fts5 import making  # noqa: PLC0415 - see above

    return making.sort(job)


def make_pages(job: RangeJob) -> int:
    """See :func:`regraft.formats.fts5.making.make_pages`."""
    from regraft.formats.fts5 import making  # noqa: PLC0415 - see above

    return making.make_pages(job)
