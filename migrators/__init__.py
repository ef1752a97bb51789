"""Migrates knowledge bases from other layouts to the current one: read, plan, write, verify, publish."""

from migrators.pipeline.session import Migration
from migrators.pipeline.source import Options
from migrators.registry import import_parquet, migrate, pipeline_of, plan_only
from regraft.formats.cherry_v2.models import ModelOverrides, is_model_id, tidy_model_id
from regraft.report.migration import MigrationReport, SourcePlan

__all__ = [
    "Migration",
    "MigrationReport",
    "ModelOverrides",
    "Options",
    "SourcePlan",
    "import_parquet",
    "is_model_id",
    "migrate",
    "pipeline_of",
    "plan_only",
    "tidy_model_id",
]
