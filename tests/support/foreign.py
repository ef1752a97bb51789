"""What a stranger can put into the schema of an index file, by name, as statements."""

from __future__ import annotations

#: A query that never ends.
ENDLESS = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT "
COLUMNS = {
    "meta": "id, schema_version, base_id, created_at, updated_at",
    "content": "content_hash, text, created_at",
    "material": "material_id, relative_path, current_content_hash, created_at, updated_at",
    "search_unit": "unit_id, material_id, content_hash, unit_type, unit_index, title, char_start, char_end,"
    " locator_json, created_at",
    "search_text": "search_text_id, target_type, target_id, kind, text, embedding_text_hash, fts_rowid, created_at",
    "embedding": "embedding_text_hash, vector_blob, created_at",
}
#: What makes ``gc`` and ``repair`` change rows of most tables.
DIRT = (
    "INSERT INTO embedding VALUES ('orphan', x'0000803f0000803f0000803f0000803f', 1)",
    "UPDATE search_text SET search_text_id = 'odd' WHERE fts_rowid = (SELECT min(fts_rowid) FROM search_text)",
    (
        "UPDATE embedding SET vector_blob = zeroblob(16) WHERE embedding_text_hash ="
        " (SELECT min(embedding_text_hash) FROM search_text)"
    ),
)
_APART = ("PRAGMA legacy_alter_table = ON", "PRAGMA foreign_keys = OFF")
_EMPTY_ALL = "DELETE FROM embedding; DELETE FROM search_unit; DELETE FROM search_text;"


def _names(table: str) -> int:
    return COLUMNS[table].count(",") + 1


def _rewritten(old: str, new: str, table: str) -> tuple[str, ...]:
    return (
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_schema SET sql = replace(sql, '{old}', '{new}') WHERE name = '{table}'",
    )


TRIGGERS = {
    f"{when.lower()} {table}": (f"CREATE TRIGGER evil {when} ON {table} BEGIN {_EMPTY_ALL} END",)
    for table, when in zip(COLUMNS, 2 * ("BEFORE DELETE", "AFTER UPDATE", "AFTER INSERT"), strict=True)
} | {
    "after delete embedding": (f"CREATE TRIGGER evil AFTER DELETE ON embedding BEGIN {_EMPTY_ALL} END",),
    "raises": ("CREATE TRIGGER evil BEFORE DELETE ON embedding BEGIN SELECT RAISE(ROLLBACK, 'no'); END",),
    "ignores": ("CREATE TRIGGER evil BEFORE UPDATE ON search_unit BEGIN SELECT RAISE(IGNORE); END",),
    "never ends": (
        f"CREATE TRIGGER evil AFTER DELETE ON embedding BEGIN INSERT INTO meta {ENDLESS} n, n, n, n, n FROM c; END",
    ),
    "shadow": ("CREATE TRIGGER evil AFTER DELETE ON embedding BEGIN DELETE FROM search_text_fts_data; END",),
    "recursive": (
        "PRAGMA recursive_triggers = ON",
        "CREATE TRIGGER evil AFTER UPDATE ON search_unit BEGIN UPDATE search_unit SET title = title || 'x'; END",
    ),
    "one of the layout's": (
        "DROP TRIGGER search_text_ad",
        """CREATE TRIGGER search_text_ad AFTER DELETE ON search_text BEGIN
             INSERT INTO search_text_fts (search_text_fts, rowid, text) VALUES ('delete', old.fts_rowid, old.text);
             DELETE FROM embedding; END""",
    ),
}
VIEWS = (
    {
        f"instead of {table}": (
            *_APART,
            f"DROP TABLE {table}",
            f"CREATE VIEW {table} ({columns}) AS {ENDLESS}{', '.join(['n'] * _names(table))} FROM c",
        )
        for table, columns in COLUMNS.items()
    }
    | {
        f"before {table}": (
            *_APART,
            f"ALTER TABLE {table} RENAME TO {table}_real",
            f"CREATE VIEW {table} ({columns}) AS SELECT {columns} FROM {table}_real",
            f"CREATE TRIGGER evil INSTEAD OF DELETE ON {table} BEGIN DELETE FROM {table}_real; END",
        )
        for table, columns in COLUMNS.items()
    }
    | {
        "full text": (
            "DROP TABLE search_text_fts",
            f"CREATE VIEW search_text_fts (text, rank) AS {ENDLESS}n, n FROM c",
        ),
        "one more": (f"CREATE VIEW more AS {ENDLESS}n FROM c",),
    }
)
TABLES = (
    {
        f"{own} of {table}": (
            "PRAGMA writable_schema = ON",
            f"UPDATE sqlite_schema SET sql = substr(sql, 1, length(sql) - 1) || ', {own} TEXT)' WHERE name = '{table}'",
        )
        for table in COLUMNS
        for own in ("rowid", "_rowid_")
    }
    | {
        f"virtual {table}": (*_APART, f"DROP TABLE {table}", f"CREATE VIRTUAL TABLE {table} USING fts5 ({columns})")
        for table, columns in COLUMNS.items()
    }
    | {f"computed in {table}": (f"ALTER TABLE {table} ADD COLUMN made AS (zeroblob(900000000))",) for table in COLUMNS}
    | {
        "computed vectors": (
            *_APART,
            "DROP TABLE embedding",
            (
                "CREATE TABLE embedding (embedding_text_hash TEXT PRIMARY KEY,"
                " vector_blob BLOB AS (zeroblob(900000000)), created_at INTEGER NOT NULL)"
            ),
            "INSERT INTO embedding SELECT DISTINCT embedding_text_hash, 1 FROM search_text",
        ),
        "key that carries on": (
            "CREATE TABLE child (a TEXT REFERENCES embedding (embedding_text_hash) ON DELETE CASCADE)",
            "INSERT INTO child SELECT embedding_text_hash FROM embedding",
        ),
        "key without a number": (
            (
                "CREATE TABLE child (a TEXT PRIMARY KEY REFERENCES embedding (embedding_text_hash) ON DELETE CASCADE)"
                " WITHOUT ROWID"
            ),
            "INSERT INTO child SELECT embedding_text_hash FROM embedding",
        ),
        "key of its own": _rewritten(
            "created_at INTEGER NOT NULL",
            "created_at TEXT REFERENCES embedding (vector_blob) ON DELETE CASCADE",
            "embedding",
        ),
        "rule that replaces": (
            *_APART,
            "ALTER TABLE embedding RENAME TO old",
            (
                "CREATE TABLE embedding (embedding_text_hash TEXT PRIMARY KEY, vector_blob BLOB NOT NULL,"
                " created_at INTEGER NOT NULL UNIQUE ON/**/CONFLICT REPLACE)"
            ),
            "INSERT INTO embedding SELECT embedding_text_hash, vector_blob, rowid FROM old",
            "DROP TABLE old",
        ),
        "check that calls": _rewritten("BLOB NOT NULL", "BLOB NOT NULL CHECK (hex(vector_blob) <> ''a'')", "embedding"),
        "default that calls": _rewritten("BLOB NOT NULL", "BLOB NOT NULL DEFAULT (zeroblob(900000000))", "embedding"),
        "full text of another kind": (
            "DROP TABLE search_text_fts",
            "CREATE VIRTUAL TABLE search_text_fts USING dbstat",
        ),
    }
)
INDEXES = {
    "on an expression": ("CREATE INDEX more ON search_unit (length(zeroblob(100)) + created_at)",),
    "in part": ("CREATE UNIQUE INDEX more ON embedding (created_at > 9) WHERE created_at > 99999999999999",),
}
EVERY = {
    **{f"trigger {name}": one for name, one in TRIGGERS.items()},
    **{f"view {name}": one for name, one in VIEWS.items()},
    **{f"table {name}": one for name, one in TABLES.items()},
    **{f"index {name}": one for name, one in INDEXES.items()},
}
