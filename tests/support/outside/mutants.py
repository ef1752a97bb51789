"""Stores that break one rule of ``docs/formats/index.md`` each."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from plain_store import AFTER_DELETE, AFTER_INSERT, AFTER_UPDATE, Refused, Store, sha256


class LeavesWords(Store):
    triggers = (AFTER_INSERT, AFTER_UPDATE)


class LeavesWordsInANamedTrigger(Store):
    triggers = (
        AFTER_INSERT,
        "CREATE TRIGGER search_text_ad AFTER DELETE ON search_text BEGIN SELECT 1; END",
        AFTER_UPDATE,
    )


class IgnoresUpdates(Store):
    triggers = (
        AFTER_INSERT,
        AFTER_DELETE,
        "CREATE TRIGGER search_text_au AFTER UPDATE OF text ON search_text BEGIN SELECT 1; END",
    )


class SkipsIndexes(Store):
    def _index(self, index: int) -> int:
        return 2 * index


class CountsFromOne(Store):
    def _index(self, index: int) -> int:
        return index + 1


class OtherUnitIds(Store):
    def _unit_id(self, *of: object) -> str:
        return sha256("/".join(map(str, of)))


class RandomUnitIds(Store):
    def _unit_id(self, *of: object) -> str:
        return self.db.execute("SELECT lower(hex(randomblob(32)))").fetchone()[0]


class HashesTrimmedContent(Store):
    def _content_hash(self, content: str) -> str:
        return sha256(content.strip() + "\n")


class OtherVersion(Store):
    version = 1

    def _demand(self, base_id: str) -> None:
        pass


class NewerVersion(Store):
    version = 3

    def _demand(self, base_id: str) -> None:
        pass


class StoresOtherBase(Store):
    def _stored_base(self, base_id: str) -> str:
        return base_id.upper()

    def _demand(self, base_id: str) -> None:
        pass


class OpensAnyBase(Store):
    def _demand(self, base_id: str) -> None:
        found = self.db.execute("SELECT schema_version FROM meta").fetchone()
        if found != (2,):
            raise Refused(f"it is of {found}")


class TakesOverOtherBases(Store):
    def _demand(self, base_id: str) -> None:
        self.db.execute("UPDATE meta SET base_id = ?", (base_id,))


class EmptiesOtherVersions(Store):
    def _demand(self, base_id: str) -> None:
        if self.db.execute("SELECT schema_version FROM meta").fetchone() != (2,):
            for table in ("search_text", "search_unit", "material", "content", "embedding"):
                self.db.execute(f"DELETE FROM {table}")
            self.db.execute("UPDATE meta SET schema_version = 2")
        super()._demand(base_id)


class CountsCodePoints(Store):
    def _body(self, content: str, start: int, end: int) -> str:
        return content[start:end]


class Clamps(Store):
    def _spans(self, content: str, units: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        length = len(content.encode("utf-16-le")) // 2
        return [(start, min(end, length)) for start, end in units]


class TrimsBodies(Store):
    def _body(self, content: str, start: int, end: int) -> str:
        return super()._body(content, start, end).strip()


class CutsAtNul(Store):
    def _content(self, content: str) -> str:
        return content.partition("\0")[0]


class CutsBodiesAtNul(Store):
    def _body(self, content: str, start: int, end: int) -> str:
        return super()._body(content, start, end).partition("\0")[0]


class StripsNulAtTheEnd(Store):
    def _body(self, content: str, start: int, end: int) -> str:
        return super()._body(content, start, end).rstrip("\0")


class ReplacesHalves(Store):
    def _content(self, content: str) -> str:
        return content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def _body(self, content: str, start: int, end: int) -> str:
        wide = content.encode("utf-16-le", "surrogatepass")
        return wide[2 * start : 2 * end].decode("utf-16-le", "replace")

    def _spans(self, content: str, units: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        return super()._spans(self._content(content), units)


class RoundsVectors(Store):
    def _put_vector(self, key: str, vector: bytes) -> None:
        numbers = struct.unpack(f"<{len(vector) // 4}f", vector)
        rounded = (number if number != number or abs(number) > 1e6 else round(number, 5) for number in numbers)
        super()._put_vector(key, struct.pack(f"<{len(numbers)}f", *rounded))


class SwapsBytes(Store):
    def _put_vector(self, key: str, vector: bytes) -> None:
        count = len(vector) // 4
        super()._put_vector(key, struct.pack(f">{count}I", *struct.unpack(f"<{count}I", vector)))


class QuietsNan(Store):
    def _put_vector(self, key: str, vector: bytes) -> None:
        numbers = struct.unpack(f"<{len(vector) // 4}f", vector)
        super()._put_vector(key, struct.pack(f"<{len(numbers)}f", *(n if n == n else 0.0 for n in numbers)))


class OverwritesVectors(Store):
    def _put_vector(self, key: str, vector: bytes) -> None:
        self.db.execute("DELETE FROM embedding WHERE embedding_text_hash = ?", (key,))
        super()._put_vector(key, vector)


class LeavesVectors(Store):
    def _sweep_vectors(self) -> None:
        pass


class LeavesContents(Store):
    def _sweep(self) -> None:
        self._sweep_vectors()


class DeletesSharedVectors(Store):
    def _clear(self, material_id: str) -> None:
        self.db.execute(
            "DELETE FROM embedding WHERE embedding_text_hash IN (SELECT embedding_text_hash FROM search_text JOIN"
            " search_unit ON unit_id = target_id WHERE material_id = ?)",
            (material_id,),
        )
        super()._clear(material_id)


class NeedsEveryVector(Store):
    def replace(self, material_id: str, path: str, content: str, units: Any, embeddings: Mapping[str, bytes]) -> None:
        for span in self._spans(content, units):
            if sha256(self._body(content, *span)) not in embeddings:
                raise Refused("no vector")
        super().replace(material_id, path, content, units, embeddings)


class TakesGaps(Store):
    def _demand_coverage(self) -> None:
        pass


class CommitsInBetween(Store):
    def _clear(self, material_id: str) -> None:
        super()._clear(material_id)
        self.db.execute("COMMIT")
        self.db.execute("BEGIN")


class NeverRollsBack(Store):
    def _demand_coverage(self) -> None:
        try:
            super()._demand_coverage()
        except Refused:
            self.db.execute("COMMIT")
            raise


class LeavesBodies(Store):
    def _clear(self, material_id: str) -> None:
        self.db.execute("DELETE FROM search_unit WHERE material_id = ?", (material_id,))


class LeavesUnits(Store):
    def delete(self, material_ids: Iterable[str]) -> None:
        self.db.execute("PRAGMA foreign_keys = OFF")
        with self._transaction():
            for material_id in material_ids:
                self.db.execute("DELETE FROM material WHERE material_id = ?", (material_id,))
            self._sweep()


class KeepsOldUnits(Store):
    def _clear(self, material_id: str) -> None:
        pass


class DeletesNothing(Store):
    def delete(self, material_ids: Iterable[str]) -> None:
        pass


class MixesMaterials(Store):
    def _clear(self, material_id: str) -> None:
        same = "SELECT unit_id FROM search_unit WHERE content_hash = (SELECT current_content_hash FROM material m"
        self.db.execute(f"DELETE FROM search_text WHERE target_id IN ({same} WHERE m.material_id = ?))", (material_id,))
        super()._clear(material_id)


class FoldsPaths(Store):
    def _path(self, path: str) -> str:
        return path.lower()


class IgnoresNewPaths(Store):
    def _put_material(self, material_id: str, path: str, content_hash: str) -> None:
        there = self.db.execute("SELECT relative_path FROM material WHERE material_id = ?", (material_id,)).fetchone()
        super()._put_material(material_id, path if there is None else there[0], content_hash)


class TakesTakenPaths(Store):
    def _put_material(self, material_id: str, path: str, content_hash: str) -> None:
        self.db.execute("DELETE FROM material WHERE relative_path = ? AND material_id <> ?", (path, material_id))
        super()._put_material(material_id, path, content_hash)


class SkipsEmptyUnits(Store):
    def _spans(self, content: str, units: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        return [span for span in super()._spans(content, units) if span[0] < span[1]]


class SkipsRepeatedUnits(Store):
    def _put_unit(self, material_id: str, content_hash: str, index: int, start: int, end: int, body: str) -> None:
        there = "SELECT 1 FROM search_text JOIN search_unit ON unit_id = target_id WHERE material_id = ? AND text = ?"
        if not self.db.execute(there, (material_id, body)).fetchone():
            super()._put_unit(material_id, content_hash, index, start, end, body)


class SkipsEmptyMaterials(Store):
    def replace(self, material_id: str, path: str, content: str, units: Any, embeddings: Mapping[str, bytes]) -> None:
        if content:
            super().replace(material_id, path, content, units, embeddings)


class StartsEmpty(Store):
    def __init__(self, path: Path, base_id: str, *, create: bool = False) -> None:
        path.unlink(missing_ok=True)
        super().__init__(path, base_id, create=True)


class WritesAtTheEnd(Store):
    """All changes of a session are one transaction, which a crash loses."""

    def __init__(self, path: Path, base_id: str, *, create: bool = False) -> None:
        super().__init__(path, base_id, create=create)
        self.db.execute("BEGIN")

    def _transaction(self) -> Any:
        return nullcontext()

    def close(self) -> None:
        self.db.execute("COMMIT")
        super().close()


class FindsOneMore(Store):
    def words(self, word: str, count: int) -> list[str]:
        return super().words(word, count + 1)

    def nearest(self, vector: bytes, count: int) -> list[str]:
        return super().nearest(vector, count + 1)


class FindsOneLess(Store):
    def nearest(self, vector: bytes, count: int) -> list[str]:
        return super().nearest(vector, count - 1)


class RanksBackwards(Store):
    def _order(self) -> str:
        return "DESC"


class RanksVectorsBackwards(Store):
    def nearest(self, vector: bytes, count: int) -> list[str]:
        return super().nearest(
            bytes(byte ^ 128 if place % 4 == 3 else byte for place, byte in enumerate(vector)), count
        )


class FindsDeleted(Store):
    def __init__(self, path: Path, base_id: str, *, create: bool = False) -> None:
        super().__init__(path, base_id, create=create)
        self.found: dict[str, list[str]] = {}

    def words(self, word: str, count: int) -> list[str]:
        return self.found.setdefault(word, super().words(word, count))


class ReadsOutOfOrder(Store):
    def units(self, material_id: str) -> list[tuple[int, int, str]]:
        return sorted(super().units(material_id), key=lambda unit: unit[2])


#: Each mutant, with what the machine must say of it.
MUTANTS: dict[type[Store], str] = {
    LeavesWords: "the trigger search_text_ad is missing",
    LeavesWordsInANamedTrigger: "search_text_ad leaves deleted texts in the full-text index",
    IgnoresUpdates: "search_text_au does not replace the text",
    SkipsIndexes: r"unit_index of item-0 is \[0, 2, 4, 6\] instead of \[0, 1, 2, 3\]",
    CountsFromOne: r"unit_index of item-0 is \[1, 2, 3, 4\] instead of",
    OtherUnitIds: "the unit_id .* does not follow from its row",
    RandomUnitIds: "the unit_id .* does not follow from its row",
    HashesTrimmedContent: "content_hash .* is not the SHA-256 of its text",
    OtherVersion: "meta.schema_version is 1 instead of 2",
    NewerVersion: "meta.schema_version is 3 instead of 2",
    StoresOtherBase: "meta.base_id is '5E6F7A8B-.* instead of '5e6f7a8b-",
    OpensAnyBase: "it opens the index of another base",
    TakesOverOtherBases: "changes or empties a file that it must leave alone",
    EmptiesOtherVersions: "changes or empties a file that it must leave alone",
    CountsCodePoints: "after adding four units with emoji:\n- .*the bodies are .*🎉 one",
    Clamps: "takes what it must refuse .a unit beyond the text",
    TrimsBodies: r"the bodies are \[.*'  padded\\t\\n'",
    CutsAtNul: "ends beyond its text|content .* is missing",
    CutsBodiesAtNul: r"the bodies are \[.*'nul\\x00 inside'",
    StripsNulAtTheEnd: r"the bodies are \[.*'nul\\x00'",
    ReplacesHalves: "takes half of an emoji and stores another text",
    RoundsVectors: "embedding '.*' is .* instead of",
    SwapsBytes: "embedding '.*' is .* instead of",
    QuietsNan: "embedding '.*' is .* instead of",
    OverwritesVectors: "rebuilding a text with another vector.*\n.*embedding '.*' is",
    LeavesVectors: "embeddings that no body names",
    LeavesContents: "content rows that neither a material nor a unit names",
    DeletesSharedVectors: "embedding|refuses valid input: Refused: a body without a vector",
    NeedsEveryVector: "refuses valid input: Refused: no vector",
    TakesGaps: "takes what it must refuse .a body without a vector",
    CommitsInBetween: "after refusing a body without a vector",
    NeverRollsBack: "after refusing a body without a vector",
    LeavesBodies: "is of a unit that is not there|IntegrityError",
    LeavesUnits: "refers to a row of material that is not there",
    KeepsOldUnits: "is of a unit that is not there",
    DeletesNothing: "material 'item-0' is still there",
    MixesMaterials: "has 0 bodies instead of one",
    FoldsPaths: "refuses valid input|material 'item-1' is \\('a.md'",
    IgnoresNewPaths: "material 'item-1' is \\('A.md'",
    TakesTakenPaths: "takes what it must refuse .a path that is taken",
    SkipsEmptyUnits: "units of 'item-3' is",
    SkipsRepeatedUnits: "unit_index of item-3 is|units of 'item-3' is",
    SkipsEmptyMaterials: "material 'item-5' is missing",
    StartsEmpty: "material 'item-.' is missing",
    WritesAtTheEnd: "is missing",
    FindsOneMore: "finds 4 units instead of 3",
    FindsOneLess: "finds 2 units instead of 3",
    RanksBackwards: "ranks the unit",
    RanksVectorsBackwards: "ranks the unit",
    FindsDeleted: "finds a unit that is not there",
    ReadsOutOfOrder: "the store reads other units of item-",
}
