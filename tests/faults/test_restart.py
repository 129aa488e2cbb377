"""The torture across crashes of the server: what was committed is read exactly once, what was not is never seen."""

from __future__ import annotations

import pytest
from tests.clusters import SETTINGS, migrated
from tests.torture import Torture

from outrider.postgres.embedded import Embedded


@pytest.mark.timeout(170)
async def test_cursor_is_exact_across_crashes_of_the_server(long: bool) -> None:
    with Embedded.temporary(settings=SETTINGS) as server:
        for seed in range(3 if long else 1):
            database = f"crash{seed}"
            await migrated(server, database)
            torture = Torture(server.dsn(database), seed, rounds=200 if long else 30, big=20_000 if long else 5_000)
            await torture.setup()
            report = await torture.run_with(server.restart, times=10 if long else 3)
            assert report.exact, f"seed {seed}: {report}"
            assert report.published > 300
