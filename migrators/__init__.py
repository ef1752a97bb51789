"""Journeys from other layouts to the current one, on shared stages: read → plan → carry → verify → publish."""

from migrators.journeys import journey_of, migrate, plan_only
from migrators.stages.options import Options
from migrators.stages.passage import Migration
from migrators.stages.report import exit_status
from regraft.formats.cherry_v2.models import ModelWord, is_model_id, tidy_model_id

__all__ = [
    "Migration",
    "ModelWord",
    "Options",
    "exit_status",
    "is_model_id",
    "journey_of",
    "migrate",
    "plan_only",
    "tidy_model_id",
]
