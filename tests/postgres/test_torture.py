"""Every committed event exactly once and in order within its key, whatever publishers and readers do."""

from __future__ import annotations

import pytest
from tests.torture import Torture

pytestmark = [pytest.mark.verify, pytest.mark.also_on(15)]


@pytest.mark.parametrize("seed", [1])
async def test_cursor_is_exact_under_torture(database: str, seed: int) -> None:
    torture = Torture(database, seed)
    await torture.setup()
    report = await torture.run()
    assert report.exact, str(report)
    assert report.published > 50_000
