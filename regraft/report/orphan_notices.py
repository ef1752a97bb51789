"""What a run can say about vector files that no state names: one code for each thing (``docs/codes.md``)."""

from __future__ import annotations

from regraft.language import tr
from regraft.report.registry import register

LOST_STATE = register(
    "run",
    "warning",
    "lost_state",
    "v1.state",
    tr(
        "Vector files are there, and the state names no base that they belong to: it is lost, or that of another "
        "place. `--adopt-orphans` makes bases of them."
    ),
)
UNNAMED_VECTORS = register(
    "run",
    "note",
    "unnamed_vector_files",
    "v1.unnamed-file",
    tr(
        "Vector files that belong to no base in v1's state, left over from bases that are gone. They are not read; "
        "`--adopt-orphans` makes bases of them."
    ),
)
ADOPTED = register(
    "base",
    "note",
    "adopted",
    "v1.unnamed-file",
    tr("The base was made of its vector file alone, as `--adopt-orphans` says: no base of v1's state names it."),
)
NOT_ADOPTED = register(
    "run",
    "warning",
    "not_adopted",
    "v1.unnamed-file",
    tr("A file among the vector files is none of v1's, or has no row: no base is made of it."),
)
