"""The lists that decide which tests run name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tiers import read_quarantine

ROOT = Path(__file__).parents[1]


def test_what_is_quarantined_exists() -> None:
    for name in read_quarantine():
        file, _, test = name.partition("::")
        assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), name
