"""The torture finds every broken cursor by itself, without being told where to look.

The deterministic interleaving for each mutant is in tests/postgres/test_take.py, the rebase's in test_restore.py.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.mutants import MUTANTS
from tests.torture import Torture

SEEDS = range(6)


@pytest.mark.parametrize("name", [name for name in MUTANTS if name != "without the rebase"])
async def test_torture_catches(database: str, name: str) -> None:
    torture = Torture(database, 0, rounds=30, big=2_000)
    await torture.setup()
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(MUTANTS[name].encode())
    for seed in SEEDS:
        report = await Torture(database, seed, rounds=30, big=2_000).run()
        if not report.exact:
            print(f"{name}: {report}")
            assert report.lost, "each of these mutants loses events"
            return
    pytest.fail(f"{name}: not caught in {len(SEEDS)} runs")
