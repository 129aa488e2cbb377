"""Every committed event once, and in order within its key and generation, whoever opens and folds generations meanwhile."""

from __future__ import annotations

import pytest
from tests.postgres.test_generations import BROKEN, MUTANTS
from tests.turmoil import Turmoil, mutate

pytestmark = pytest.mark.verify

DETERMINISTIC_ONLY = {
    "an armed suspect is run by any cursor",
    "the floor of the catch-all stays",
    "folded_when_the_catch_all_has_passed: late events are not looked at",
    "lines without a head",
}
"""No worker dies here, and nothing is restored; what comes late for the catch-all alone is rare; and a generation that is
opened again sets its lines right."""


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_generations_are_exact_under_torture(database: str, seed: int, long: bool) -> None:
    turmoil = Turmoil(database, seed, rounds=400 if long else 40)
    await turmoil.setup()
    report = await turmoil.run()
    assert report.exact, f"{report} {turmoil.done}"
    assert report.published > 200
    assert min(turmoil.done["opened"], turmoil.done["folded"]) >= 3, "too little happened to prove anything"


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*MUTANTS, *BROKEN} - DETERMINISTIC_ONLY))
async def test_turmoil_catches(database: str, name: str) -> None:
    """The slow, blind search; the interleaving for each mutant is in test_generations.py."""
    mutant = MUTANTS[name][1] if name in MUTANTS else BROKEN[name][2]
    for seed in range(8):
        turmoil = Turmoil(database, seed)
        if not seed:
            await turmoil.setup()
            await mutate(database, mutant)
        try:
            report = await turmoil.run()
        except AssertionError as error:
            print(f"{name}: {error!r}")
            return
        if not report.exact:
            print(f"{name}: {report}")
            return
    pytest.fail(f"{name}: not caught")
