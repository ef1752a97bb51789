"""Cherry Studio v1 → v2: one flat vector table per base plus a Redux state become seven tables plus a catalog.

Rules: ``docs/rules.md``. Stages: :mod:`.work` reads, :mod:`.draft` and :mod:`.plan` plan, :mod:`.carry` carries and
verifies, :mod:`.publish` puts in place, :mod:`.run` runs them.
"""

from migrators.cherry_v1.models import ModelWord, is_model_id, tidy_model_id
from migrators.cherry_v1.options import Options
from migrators.cherry_v1.report import exit_status
from migrators.cherry_v1.run import migrate

__all__ = ["ModelWord", "Options", "exit_status", "is_model_id", "migrate", "tidy_model_id"]
