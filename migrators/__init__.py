"""Journeys from other layouts to the current one, on shared stages: read → plan → carry → verify → publish."""

from migrators.pipeline.options import Options
from migrators.pipeline.report import exit_status
from migrators.pipeline.session import Migration
from migrators.registry import journey_of, migrate, plan_only
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
