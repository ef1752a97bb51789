"""Property-based tests for anybody who implements these layouts (``docs/testing.md``). Needs the extra ``testing``."""

from regraft.testing.machine import BASE_ID, IndexStoreMachine, StoredState, stored_state
from regraft.testing.materials import MaterialInput, materials
from regraft.testing.texts import javascript_texts, texts, vectors
from regraft.testing.v1 import V1Case, V1Row, v1_cases

__all__ = [
    "BASE_ID",
    "IndexStoreMachine",
    "MaterialInput",
    "StoredState",
    "V1Case",
    "V1Row",
    "javascript_texts",
    "materials",
    "stored_state",
    "texts",
    "v1_cases",
    "vectors",
]
