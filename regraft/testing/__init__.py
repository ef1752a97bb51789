"""Property-based tests for anybody who implements these layouts (``docs/testing.md``). Needs the extra ``testing``."""

from regraft.testing.damage import DAMAGES, Damage, DamagedCase, Planted, damaged_libraries, damages
from regraft.testing.library import BaseCase, LibraryCase, libraries
from regraft.testing.machine import BASE_ID, IndexStoreMachine
from regraft.testing.materials import MaterialInput, materials
from regraft.testing.stored import StoredState, index_problems, stored_state
from regraft.testing.texts import javascript_texts, texts, vectors
from regraft.testing.v1 import V1Case, V1Row, v1_cases

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
