"""The files of tests that take longest, which are started first so that no worker is left alone with one in the end."""

from __future__ import annotations

import pytest

#: Every file of make test and of make test-extras that takes more than about five seconds, the longest first: those of
#: the extras stand before the others, as make test has little of them.
LONGEST = (
    "tests/regraft/page/test_page_in_browser.py",
    "tests/repair/test_chroma_repair.py",
    "tests/regraft/fleet/test_ray_nodes.py",
    "tests/regraft/fleet/test_many.py",
    "tests/regraft/report/test_page_in_browser.py",
    "tests/regraft/formats/test_browser_profile.py",
    "tests/repair/test_chroma_export.py",
    "tests/regraft/test_outside.py",
    "tests/repair/backfill/test_chroma_backfill.py",
    "tests/regraft/fleet/test_object_storage.py",
    "tests/checks/test_chroma_check.py",
    "tests/regraft/fleet/test_ray.py",
    "tests/regraft/fleet/test_fleet_backfill.py",
    "tests/repair/test_angel_reconcile.py",
    "tests/regraft/page/test_page_journeys.py",
    "tests/regraft/test_safe_path.py",
    "tests/migrators/test_odd_sources.py",
    "tests/repair/test_install.py",
    "tests/repair/test_sync.py",
    "tests/repair/test_generations.py",
    "tests/repair/test_migrate_into_profile.py",
    "tests/project/test_architecture.py",
    "tests/repair/test_every_changing_command.py",
    "tests/migrators/test_preview.py",
    "tests/repair/test_rescue.py",
    "tests/repair/test_gc.py",
    "tests/repair/test_pack.py",
    "tests/repair/backfill/test_codex_mem_backfill.py",
    "tests/regraft/formats/test_index_salvage.py",
    "tests/repair/backfill/test_backfill.py",
    "tests/repair/test_restore.py",
    "tests/checks/test_certify.py",
    "tests/repair/test_mend_catalog.py",
    "tests/regraft/test_language.py",
    "tests/repair/test_repair.py",
    "tests/migrators/test_carry_text.py",
    "tests/regraft/page/test_page_jobs.py",
    "tests/migrators/test_resume.py",
    "tests/migrators/test_jobs.py",
    "tests/checks/test_rolling_check.py",
    "tests/repair/test_undo.py",
    "tests/regraft/test_faults.py",
    "tests/repair/backfill/test_reuse.py",
)


def put_longest_first(items: list[pytest.Item]) -> None:
    """Sort the files of tests by their place in the list, the others by name; the tests of a file keep their order."""
    places = {path: place for place, path in enumerate(LONGEST)}

    def place(item: pytest.Item) -> tuple[int, str]:
        path = item.nodeid.partition("::")[0]
        return places.get(path, len(LONGEST)), path

    items.sort(key=place)
