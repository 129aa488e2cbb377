"""Every other way to publish, under the same exercise as psycopg's own connections (tests/test_publish.py)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integrations.harness import KINDS, open_harness

from outrider.testing import exercise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", exercise.CHECKS.values(), ids=exercise.CHECKS)
async def test_exercise(check: Any, kind: str, shared_database: str) -> None:
    async with open_harness(kind, shared_database) as harness:
        await check(harness)
