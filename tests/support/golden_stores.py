"""Golden stores of the current layout."""

from __future__ import annotations

import pytest
from harness import GOLDEN

golden = pytest.mark.skipif(
    not (GOLDEN / "profile_upgraded").is_dir(),
    reason="no profiles of the application: REGRAFT_GOLDEN is not set, and no shared/golden beside the repository",
)
