"""Replaces and deletes materials in the caller's transaction (``docs/formats/index.md``, "How the store behaves")."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import apsw
import msgspec

from regraft import identity
from regraft.errors import CoverageGap, EmbeddingRefused, MaterialRefused
from regraft.formats.cherry_v2.index.units import Unit
from regraft.language import tr

#: How many vectors are looked at to know the length of the file's vectors.
_SAMPLE = 100


class Rebuild(msgspec.Struct, frozen=True, kw_only=True):
    """A material as it is to be: its content is cut already. ``embeddings`` are vector bytes by text hash."""

    material_id: str
    relative_path: str
    content_hash: str
    content: str
    units: list[Unit]
    embeddings: Mapping[str, bytes]
    now_ms: int
    has_model: bool


class _Named(msgspec.Struct, frozen=True):
    """What a material named before: hashes of embeddings and of contents that may be waste now."""

    embeddings: set[str]
    contents: set[str]


def rebuild(db: apsw.Connection, new: Rebuild) -> None:
    """Replace a material with all that hangs on it. The caller's transaction is to be rolled back on an error.

    Raises:
        MaterialRefused: another material has its path.
        EmbeddingRefused: a vector is not as long as those of the file.
        CoverageGap: a body has no vector, in a base with a model.
        apsw.Error: the file cannot be written.
    """
    _put_material(db, new)
    before = _named(db, new.material_id)
    _drop_units(db, new.material_id)
    _put_units(db, new)
    if new.has_model:
        _put_embeddings(db, new)
        _demand_coverage(db, new)
    db.execute(
        "UPDATE material SET current_content_hash = ? WHERE material_id = ?", (new.content_hash, new.material_id)
    )
    if before.embeddings - {unit.embedding_text_hash for unit in new.units}:
        _sweep_embeddings(db)
    if before.contents - {new.content_hash}:
        _sweep_contents(db)


def delete(db: apsw.Connection, material_ids: Iterable[str]) -> int:
    """Delete materials with their units and bodies, sweep what only they named, and return how many there were."""
    deleted = 0
    for material_id in material_ids:
        # Bodies have no foreign key: they go first, while their units still tell which they are.
        _drop_units(db, material_id)
        db.execute("DELETE FROM material WHERE material_id = ?", (material_id,))
        deleted += db.changes()
    if deleted:
        _sweep_embeddings(db)
        _sweep_contents(db)
    return deleted


def _put_material(db: apsw.Connection, new: Rebuild) -> None:
    owner = db.execute(
        "SELECT material_id FROM material WHERE relative_path = ? AND material_id <> ?",
        (new.relative_path, new.material_id),
    ).get
    if owner is not None:
        reason = tr(
            'its path "{relative_path}" is that of the material {owner}', relative_path=new.relative_path, owner=owner
        )
        raise MaterialRefused(material=new.material_id, reason=reason)
    # A text that no longer has the hash that it is stored under is mended: units are cut from the one given.
    db.execute(
        "INSERT INTO content (content_hash, text, created_at) VALUES (?, ?, ?)"
        " ON CONFLICT (content_hash) DO UPDATE SET text = excluded.text WHERE text IS NOT excluded.text",
        (new.content_hash, new.content, new.now_ms),
    )
    db.execute(
        "INSERT INTO material (material_id, relative_path, created_at, updated_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (material_id) DO UPDATE SET relative_path = excluded.relative_path,"
        " updated_at = excluded.updated_at",
        (new.material_id, new.relative_path, new.now_ms, new.now_ms),
    )


def _named(db: apsw.Connection, material_id: str) -> _Named:
    bodies = db.execute(
        # CROSS JOIN: the material's units first. Without statistics SQLite would begin with every body of the file.
        "SELECT DISTINCT t.embedding_text_hash FROM search_unit u"
        " CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id"
        " WHERE u.material_id = ?",
        (material_id,),
    )
    embeddings = {key for (key,) in bodies}
    contents = db.execute(
        "SELECT content_hash FROM search_unit WHERE material_id = ?1"
        " UNION SELECT current_content_hash FROM material"
        " WHERE material_id = ?1 AND current_content_hash IS NOT NULL",
        (material_id,),
    )
    return _Named(embeddings, {key for (key,) in contents})


def _drop_units(db: apsw.Connection, material_id: str) -> None:
    db.execute(
        "DELETE FROM search_text WHERE target_type = 'search_unit'"
        " AND target_id IN (SELECT unit_id FROM search_unit WHERE material_id = ?)",
        (material_id,),
    )
    db.execute("DELETE FROM search_unit WHERE material_id = ?", (material_id,))


def _put_units(db: apsw.Connection, new: Rebuild) -> None:
    db.executemany(
        "INSERT INTO search_unit (unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end,"
        " created_at) VALUES (?, ?, ?, 'chunk', ?, ?, ?, ?)",
        (
            (unit.unit_id, new.material_id, unit.content_hash, unit.unit_index, unit.char_start, unit.char_end, now)
            for now, unit in ((new.now_ms, unit) for unit in new.units)
        ),
    )
    # The file's own trigger numbers the row and adds it to the full-text index.
    db.executemany(
        "INSERT INTO search_text (search_text_id, target_type, target_id, kind, text, embedding_text_hash, created_at)"
        " VALUES (?, 'search_unit', ?, 'body', ?, ?, ?)",
        (
            (identity.body_id(unit.unit_id), unit.unit_id, unit.text, unit.embedding_text_hash, new.now_ms)
            for unit in new.units
        ),
    )


def _put_embeddings(db: apsw.Connection, new: Rebuild) -> None:
    """Insert those vectors that a body of the material names and the file does not have; the stored one stays."""
    vectors = _named_vectors(new)
    if not vectors:
        return
    expected = vector_bytes(db) or len(next(iter(vectors.values())))
    for key, vector in vectors.items():
        if not vector or len(vector) % 4 or len(vector) != expected:
            raise EmbeddingRefused(material=new.material_id, hash=key, found=len(vector), expected=expected)
    db.executemany(
        "INSERT INTO embedding (embedding_text_hash, vector_blob, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        ((key, vector, new.now_ms) for key, vector in vectors.items()),
    )


def _named_vectors(new: Rebuild) -> dict[str, bytes]:
    wanted = dict.fromkeys(unit.embedding_text_hash for unit in new.units)
    return {key: new.embeddings[key] for key in wanted if key in new.embeddings}


def vector_bytes(db: apsw.Connection) -> int | None:
    """Return the length of the file's vectors in bytes: what most of the first ones have. None where there is none."""
    length: int | None = db.execute(
        "SELECT size FROM (SELECT length(vector_blob) AS size FROM embedding LIMIT ?)"
        " GROUP BY size ORDER BY count(*) DESC, size LIMIT 1",
        (_SAMPLE,),
    ).get
    return length


def _demand_coverage(db: apsw.Connection, new: Rebuild) -> None:
    missing = missing_embeddings(db, [unit.embedding_text_hash for unit in new.units])
    if missing:
        first = min(unit.unit_index for unit in new.units if unit.embedding_text_hash in missing)
        raise CoverageGap(material=new.material_id, missing=len(missing), unit=first)


def missing_embeddings(db: apsw.Connection, hashes: Iterable[str]) -> set[str]:
    """Return which of ``hashes`` no embedding is stored under."""
    wanted = set(hashes)
    return wanted - existing_embeddings(db, wanted)


def existing_embeddings(db: apsw.Connection, hashes: Iterable[str]) -> set[str]:
    """Return which of ``hashes`` an embedding is stored under."""
    rows = db.execute(
        "SELECT embedding_text_hash FROM embedding WHERE embedding_text_hash IN (SELECT value FROM json_each(?))",
        (json.dumps(list(hashes)),),
    )
    return {key for (key,) in rows}


def _sweep_embeddings(db: apsw.Connection) -> None:
    db.execute(
        # Looked for in the index of the hashes, without a look at the vectors themselves.
        "DELETE FROM embedding WHERE embedding_text_hash IN (SELECT e.embedding_text_hash FROM embedding e"
        " WHERE NOT EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = e.embedding_text_hash))"
    )


def _sweep_contents(db: apsw.Connection) -> None:
    db.execute(
        "DELETE FROM content WHERE content_hash IN (SELECT c.content_hash FROM content c"
        " WHERE NOT EXISTS (SELECT 1 FROM material m WHERE m.current_content_hash = c.content_hash)"
        " AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.content_hash = c.content_hash))"
    )
