"""What an audit can say of any SQLite file: whether it can be read, and whether it has the schema of its layout.

``docs/findings.md`` lists them.
"""

from __future__ import annotations

from checks.audit.findings import register
from regraft.language import tr

#: What mends several of them, in a person's words.
PERSON = tr("A person has to decide; the message says about what.")

UNREADABLE = register(
    "error",
    "file.unreadable",
    tr("A catalog or an index is not a SQLite file, is cut off, holds none of the known tables, or may not be read."),
    tr(
        "A permission, or a backup of the file; of a v2 index, `regraft repair --from SOURCE`, where another copy of "
        "the data has its texts and vectors; else `regraft repair --salvage`, by what is left in it."
    ),
)
CORRUPT = register(
    "error",
    "file.corrupt",
    tr("SQLite itself finds the file damaged, or stops while reading it. What could not be read was not checked."),
    tr(
        "A backup of the file; of a v2 index, `regraft repair --from SOURCE`, where another copy of the data has its "
        "texts and vectors; else `regraft repair --salvage`, by what is left in it; or indexing the base again in the "
        "application."
    ),
)
HOT_JOURNAL = register(
    "warning",
    "file.hot-journal",
    tr("The journal of an unfinished transaction lies beside the file. It was checked as if that were taken back."),
    tr("`regraft repair`, or starting the application once: both take the transaction back."),
    "repair",
)
SCHEMA_MISSING = register(
    "error",
    "schema.missing",
    tr("A table, column, key, check, index or trigger of the layout is missing, or does something else."),
    tr("`regraft upgrade`, which builds the layout anew around the rows."),
    "upgrade",
)
SCHEMA_VERSION = register(
    "error",
    "schema.version",
    tr("The version in the file is not the layout's. The application would empty this file when it opens the base."),
    tr(
        "`regraft upgrade`, unless the version is newer than regraft knows. Until then, do not "
        "open the base with the application."
    ),
    "upgrade",
)
SCHEMA_PREVIEW = register(
    "error",
    "schema.preview",
    tr("The single table of a preview build is here; the application does not see its vectors."),
    tr("`regraft upgrade`, which makes the layout of the rows, with every vector."),
    "upgrade",
)
FOREIGN_TRIGGER = register(
    "error",
    "schema.foreign-trigger",
    tr(
        "A trigger that the layout does not have, or one of its own that does something else "
        "besides: the next program that changes a row runs it. regraft never does. In the "
        "application's catalog those on tables of knowledge count, and none of its others."
    ),
    tr("`regraft repair`, which drops it; of one of the layout's own it makes that anew."),
    "repair",
)
FOREIGN_VIEW = register(
    "error",
    "schema.foreign-view",
    tr(
        "A view, which the layout does not have. One in the place of a table is never read: "
        "what should be there cannot be checked."
    ),
    tr("`regraft repair`, which drops it; for one in the place of a table, a backup of the file."),
    "repair",
)
FOREIGN_COLUMN = register(
    "error",
    "schema.foreign-column",
    tr(
        "In a table of the layout: a column more, one that follows from others, a key that "
        "carries changes on to other rows, a rule that replaces rows or calls a function; or a "
        "virtual table in its place. Commands that would change such rows refuse."
    ),
    PERSON,
)
FOREIGN_INDEX = register(
    "note",
    "schema.foreign-index",
    tr("An index that the layout does not have, as newer releases may add one. It stays."),
    tr("Nothing has to be mended."),
)
FOREIGN_TEXT_INDEX = register(
    "error",
    "schema.foreign-text-index",
    tr(
        "An index on a table that SQLite keeps the full-text index in: where a text changes, "
        "SQLite calls itself without end. Commands that would change texts refuse."
    ),
    tr("`regraft repair`, which drops it."),
    "repair",
)
