"""Publishing over psycopg: the exported exercise on both kinds of connection, and what is special to them."""

from __future__ import annotations

import pytest
from tests.publishing import open_harness

from outrider.testing import exercise


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("check", exercise.CHECKS, ids=str)
async def test_exercise(check: exercise.Check, kind: str, database: str) -> None:
    async with open_harness(kind, database) as harness:
        await check(harness)
