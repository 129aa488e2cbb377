"""Every other way to publish, under the same exercise as psycopg's own connections (tests/test_publish.py)."""

from __future__ import annotations

import pytest
from tests.integrations.harness import KINDS, open_harness

from outrider.testing import exercise

pytestmark = pytest.mark.verify


@pytest.mark.parametrize("kind", KINDS)
async def test_exercise(kind: str, database: str) -> None:
    async with open_harness(kind, database) as harness:
        await exercise.run(harness)
