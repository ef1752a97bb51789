"""The length that vectors of a base must have: the catalog's dimensions, or the majority where the catalog has none.

Every command that compares vectors with the dimensions of their base uses this rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import apsw

#: SQL that is true for a row of ``embedding`` whose value has the length ``:length`` in bytes.
HAS_LENGTH = "(typeof(vector_blob) = 'blob' AND octet_length(vector_blob) = :length)"
#: SQL that is 1 for a row ``e`` of ``embedding`` whose vector a search can use, by the rule of ``check``: it has
#: ``:length`` bytes, and a norm in single precision that is neither zero nor infinite. The norm of a vector with a NaN
#: is NULL. The connection needs :func:`regraft.sqlite.load_vectors`.
USABLE = """CASE WHEN typeof(e.vector_blob) = 'blob' AND length(e.vector_blob) = :length
  THEN ifnull(vec_distance_l2(e.vector_blob, zeroblob(:length)) BETWEEN 1e-46 AND 3.5e38, 0) ELSE 0 END"""
_BODIES_OF_OTHER_LENGTH = f"""SELECT count(*) FROM search_text t
  JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash WHERE NOT {HAS_LENGTH}"""
_HAS_ONE_OF_LENGTH = f"SELECT EXISTS (SELECT 1 FROM embedding WHERE {HAS_LENGTH})"
_LENGTHS = """SELECT octet_length(vector_blob), count(*) FROM embedding
  WHERE typeof(vector_blob) = 'blob' AND octet_length(vector_blob) > 0 AND octet_length(vector_blob) % 4 = 0
  GROUP BY 1 ORDER BY min(rowid)"""


def lengths_of(db: apsw.Connection) -> Counter[int]:
    """Count the vectors of an index by their length in bytes; values that cannot be vectors are left out.

    Lengths are in the order of their first rows.

    Raises:
        apsw.Error: the file is damaged.
    """
    return Counter({int(str(length)): int(str(count)) for length, count in db.execute(_LENGTHS)})


def stated_dimensions(row: Mapping[str, object] | None) -> int | None:
    """Return the dimensions that the catalog row of a completed base gives; None where it gives none.

    The dimensions of a base without a model, or of one that failed, are those that an earlier state had.
    """
    if row is None or row.get("status") != "completed" or row.get("embedding_model_id") is None:
        return None
    dimensions = row.get("dimensions")
    return dimensions if isinstance(dimensions, int) and dimensions > 0 else None


def expected_length(lengths: Counter[int], dimensions: int | None) -> int:
    """Return the length in bytes that vectors of a base must have.

    Args:
        lengths: the vectors by their length.
        dimensions: those of the catalog; None where it has none, so that the most common length counts.
    """
    if dimensions is not None:
        return 4 * dimensions
    return lengths.most_common(1)[0][0] if lengths else 4


def contradicts(lengths: Counter[int], dimensions: int | None) -> bool:
    """Whether most vectors have another length than the catalog's dimensions give."""
    return dimensions is not None and 2 * lengths[4 * dimensions] < lengths.total()


def dimensions_of(db: apsw.Connection, stated: int | None = None) -> int | None:
    """Return how many numbers the vectors of an index must have; None where it has no vectors.

    Args:
        db: the index.
        stated: the dimensions of the catalog; without them, or where no vector has them, the most common length counts.

    Raises:
        apsw.Error: the file is damaged.
    """
    if stated is not None and db.execute(_HAS_ONE_OF_LENGTH, {"length": 4 * stated}).get:
        return stated
    lengths = lengths_of(db)
    return expected_length(lengths, None) // 4 if lengths else None


def count_bodies_of_other_length(db: apsw.Connection, length: int) -> int:
    """Count the bodies whose vector has another length in bytes than ``length``: vector search never finds them.

    Raises:
        apsw.Error: the file is damaged.
    """
    return int(str(db.execute(_BODIES_OF_OTHER_LENGTH, {"length": length}).get))
