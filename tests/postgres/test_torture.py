"""Every committed event exactly once and in order within its key, whatever publishers and readers do."""

from __future__ import annotations

import pytest
from tests.torture import Torture

pytestmark = [pytest.mark.verify, pytest.mark.also_on(15, 16)]


@pytest.mark.parametrize("seed", [1])
async def test_cursor_is_exact_under_torture(database: str, seed: int) -> None:
    torture = Torture(database, seed)
    await torture.setup()
    report = await torture.run()
    assert report.exact, str(report)
    assert report.published > 50_000


async def test_cursor_is_exact_where_late_events_are_read_in_pages(database: str) -> None:
    torture = Torture(database, 1, rounds=20, big=300, limits=(1, 2))
    await torture.setup()
    report = await torture.run()
    assert report.exact, str(report)
    assert report.published > 300
