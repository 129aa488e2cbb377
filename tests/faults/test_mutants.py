"""The torture finds every broken cursor by itself, without being told where to look.

The deterministic interleaving for each mutant is in tests/postgres/test_take.py, the rebase's in test_restore.py; this
is the slow, blind search, and runs with --long only (make faults).
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from tests.faults.test_restore import torture_across_restore
from tests.mutants import MUTANTS
from tests.torture import Torture

SEEDS = range(12)
pytestmark = pytest.mark.long


# The payloads of the torture are small: a batch is never cut by its bytes.
ELSEWHERE = {"without the rebase", "late cut by its bytes alone", "fresh cut by its bytes alone"}


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in ELSEWHERE])
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


@pytest.mark.timeout(400)
async def test_torture_catches_a_missing_rebase(tmp_path: Path) -> None:
    for seed in SEEDS:
        report = await torture_across_restore(tmp_path, seed=seed, above=False, mutant=MUTANTS["without the rebase"])
        if not report.exact:
            print(f"without the rebase: {report}")
            return
    pytest.fail(f"not caught in {len(SEEDS)} runs")
