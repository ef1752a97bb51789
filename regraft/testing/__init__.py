"""Property-based tests for implementations of the layouts (``docs/testing.md``). Needs the extra ``testing``."""

from regraft.testing.damage import DAMAGES, Damage, DamagedCase, Planted, damaged_libraries, damages
from regraft.testing.machine import BASE_ID, IndexStoreMachine
from regraft.testing.stored import StoredState, index_problems, stored_state
from regraft.testing.strategies import (
    BaseCase,
    LibraryCase,
    MaterialInput,
    V1Case,
    V1Row,
    javascript_texts,
    libraries,
    materials,
    texts,
    v1_cases,
    vectors,
)

__all__ = [
    "BASE_ID",
    "DAMAGES",
    "BaseCase",
    "Damage",
    "DamagedCase",
    "IndexStoreMachine",
    "LibraryCase",
    "MaterialInput",
    "Planted",
    "StoredState",
    "V1Case",
    "V1Row",
    "damaged_libraries",
    "damages",
    "index_problems",
    "javascript_texts",
    "libraries",
    "materials",
    "stored_state",
    "texts",
    "v1_cases",
    "vectors",
]
