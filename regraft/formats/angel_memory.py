"""AngelMemory's data folder: notes, the database of their tags, and a collection of vectors for each provider.

What is where: ``docs/formats/angel_memory.md``.
"""

from __future__ import annotations

from pathlib import Path

#: The truth about notes and tags, below the data folder.
DATABASE = "memory_center/index/simple_memory.db"


def root_of(path: Path) -> Path | None:
    """Return the data folder that a path is, or is a part of by which people name it; None for anything else.

    Raises:
        GenerationUnknown: it is of a later generation than is known.
    """
    parts = path.absolute().parts
    below = tuple(DATABASE.split("/"))
    depths = (length for length in range(1, len(below) + 1) if parts[-length:] == below[:length])
    places = [path, *(path.absolute().parents[length - 1] for length in depths)]
    return next((place for place in places if (place / DATABASE).is_file()), None)
