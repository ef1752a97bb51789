"""Plan changes of codex-mem: full-text index, metadata of notes, and vectors (``docs/codex-mem.md``)."""

from repair.codex_mem import note_changes, reconcile
from repair.codex_mem.note_vectors import NotesFiller
from repair.systems import Repairs

REPAIRS = Repairs(
    repair=note_changes.plan_full_text,
    repaired=note_changes.NAMES,
    reconcile=reconcile.plan,
    reconciled=reconcile.NAMES,
    filler=NotesFiller(),
)
