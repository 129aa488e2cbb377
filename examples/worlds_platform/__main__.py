"""python -m examples.worlds_platform [DSN]: without a DSN on the embedded Postgres in .outrider/pg."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from decimal import Decimal
from uuid import NAMESPACE_DNS, UUID, uuid4, uuid5

from . import race
from .atlas.repository import SnapshotRepository
from .composition import Platform, compose, opened
from .worlds.events import Finding, Spot

KEPLER, GAIA, DUSK = (uuid5(NAMESPACE_DNS, f"{name}.worlds.example") for name in ("kepler", "gaia", "dusk"))
WORLDS = {KEPLER: "Kepler-22b", GAIA: "Gaïa", DUSK: "黄昏"}
REEF = Finding(
    title="récif vivant 🪸",
    kind="life",
    confidence=Decimal("0.930"),
    spot=Spot(latitude=Decimal("-12.5"), longitude=Decimal("130.25")),
)
RUIN = Finding(title='"the gate"', kind="ruin", confidence=Decimal("0.40"))
ORE = Finding(title="Erz", kind="mineral", confidence=Decimal("1"))


async def scan(platform: Platform, world_id: UUID, habitability: str, *findings: Finding) -> None:
    async with platform.worlds.connect() as conn, conn.transaction():
        await platform.survey.complete_scan(
            conn,
            world_id,
            uuid4(),
            completed_at=datetime.now(UTC),
            habitability=Decimal(habitability),
            findings=findings,
        )


async def survey_worlds(platform: Platform) -> None:
    async with platform.worlds.connect() as conn, conn.transaction():
        for world_id, name in WORLDS.items():
            await platform.survey.discover(conn, world_id, name)
    await scan(platform, KEPLER, "0.61", ORE)
    await scan(platform, GAIA, "0.98", REEF, RUIN)
    await scan(platform, KEPLER, "0.710", ORE, RUIN)
    await scan(platform, DUSK, "0.02")


async def main(dsn: str | None = None) -> None:
    async with opened(compose(dsn)) as platform:
        await survey_worlds(platform)
        print("atlas:", await platform.atlas.drain())
        async with platform.atlas.connect() as conn:
            for each in await SnapshotRepository(conn).all():
                found = ", ".join(each.titles) or "nothing"
                print(f"  {each.world_name}: scan {each.number}, habitability {each.habitability}, found {found}")
    print("race, receipts are the gate:   ", await race.with_receipts(dsn, KEPLER))
    print("race, look first, then insert: ", await race.with_a_look_first(dsn, KEPLER))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
