"""Plan changes of AngelMemory's data folder: records, vectors, and unused files (``docs/angel-memory.md``)."""

from repair.angel_memory import gc, records
from repair.systems import Repairs

REPAIRS = Repairs(repair=records.plan, repaired=records.NAMES, gc=gc.plan, collected=gc.NAMES)
