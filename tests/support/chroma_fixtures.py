"""Write a small folder of Chroma with real chromadb, and what its API returns, to a zip archive.

Run it with the Python of an environment that has the wanted version of chromadb, and nothing else of ours:
``python chroma_fixtures.py tests/golden/chroma/chroma-1.5.zip``. Works with chromadb 0.4 to 1.x. ``benchmarks/
chroma_versions.py`` imports it for larger folders.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

COUNT, DIMENSION, BATCH, THRESHOLD = 90, 16, 7, 20


def write_folder(
    folder: Path, count: int = COUNT, batch: int = BATCH, threshold: int = THRESHOLD, links: int | None = None
) -> dict[str, Any]:
    """Write collections of each distance, with changes, and return what Chroma's API returns for each.

    ``links``: of an element on the upper levels; Chroma's default without.
    """
    import chromadb
    import numpy as np
    from chromadb.config import Settings

    client = chromadb.PersistentClient(path=str(folder), settings=Settings(anonymized_telemetry=False))
    numbers = np.random.default_rng(20261126)
    expected: dict[str, Any] = {}
    for name, space in (("plain", "l2"), ("angles", "cosine"), ("products", "ip")):
        settings = {"hnsw:space": space, "hnsw:sync_threshold": threshold, "hnsw:batch_size": 10}
        if links is not None:
            settings["hnsw:M"] = links
        collection = client.create_collection(name, embedding_function=None, metadata=settings)
        vectors = numbers.normal(size=(count, DIMENSION)).astype("<f4")
        for start in range(0, count, batch):
            rows = range(start, min(count, start + batch))
            collection.add(
                ids=[f"id{row}" for row in rows],
                embeddings=vectors[start : start + batch].tolist(),
                documents=[f"Text {row} of {name}: 知识 café" for row in rows],
                metadatas=[{"row": row, "third": row / 3, "name": str(row)} for row in rows],
            )
            if start == batch * 5:
                # Inside of the segment: deleted labels stay in its file, and a second label gets the id.
                collection.delete(ids=["id3", "id4"])
                collection.update(ids=["id9"], embeddings=numbers.normal(size=(1, DIMENSION)).tolist())
                collection.upsert(
                    ids=["id3"], embeddings=numbers.normal(size=(1, DIMENSION)).tolist(), documents=["Back again"]
                )
        # In the queue only.
        collection.delete(ids=["id11"])
        collection.update(ids=["id12"], metadatas=[{"row": -1}])
        collection.upsert(ids=["late"], embeddings=numbers.normal(size=(1, DIMENSION)).tolist(), documents=["Late"])
        expected[name] = read(collection)
    single = client.create_collection("single", embedding_function=None)
    single.add(ids=["only"], embeddings=numbers.normal(size=(1, DIMENSION)).tolist(), documents=["The only one"])
    expected["single"] = read(single)
    client.create_collection("empty", embedding_function=None)
    expected["empty"] = {}
    return expected


def read(collection: Any) -> dict[str, Any]:
    """Read a collection with Chroma's API: vector (hex of float32), document and metadata by id."""
    import numpy as np

    got = collection.get(include=["embeddings", "documents", "metadatas"])
    rows = zip(got["ids"], got["embeddings"], got["documents"], got["metadatas"], strict=True)
    return {
        key: {"vector": np.asarray(vector, dtype="<f4").tobytes().hex(), "document": document, "metadata": metadata}
        for key, vector, document, metadata in rows
    }


def main(target: Path) -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "chroma"
        expected = write_folder(folder)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as archive:
            archive.writestr("expected.json", json.dumps(expected, ensure_ascii=False))
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.write(path, f"chroma/{path.relative_to(folder).as_posix()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
