"""A soak, short here and as long as SOAK says in make faults: nothing is lost or doubled, and nothing keeps growing."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.clusters import migrated
from tests.faults.soak import HELD, SETTINGS, Record, Sample, Soak, wanted
from tests.oracle import check

from outrider.postgres.embedded import Embedded

pytestmark = pytest.mark.verify

MIB = 2.0**20
BOUNDED: dict[str, tuple[Callable[[Sample], float], float]] = {
    "depth": (lambda each: each.depth, 500),
    "lag, s": (lambda each: each.lag, 2),
    "publish p95, ms": (lambda each: each.publish_ms, 100),
    "log, MiB": (lambda each: each.bytes["log"] / MIB, 4),
    "receipts, MiB": (lambda each: each.bytes["receipts"] / MIB, 6),
    "delivery, MiB": (lambda each: each.bytes["delivery"] / MIB, 2),
    "cursor, MiB": (lambda each: each.bytes["cursor"] / MIB, 1),
    "dead rows": (lambda each: sum(each.dead.values()), 5_000),
    "segments": (lambda each: each.segments + each.detached, 4),
    "worker, MiB": (lambda each: each.workers / MIB, 4),
    "sessions, MiB": (lambda each: each.backends / MIB, 20),
}
"""And what each may be above its first value, whatever that was."""
SWELLING = {"receipts, MiB", "delivery, MiB", "cursor, MiB"}
"""An old snapshot keeps them from using their space again: they stay as large as at its end, and may not grow from there."""
OF_THE_MACHINE = {"depth", "lag, s", "publish p95, ms"}
"""Judged in the long run only: a busy machine is no fault of ours."""


def wal_of_an_event(record: Record, begin: float, end: float) -> float:
    """Bytes: of its publish, four receipts, a job, retries, and upkeep."""
    found = [each for each in record.samples if begin * record.seconds <= each.at <= end * record.seconds]
    return (found[-1].wal - found[0].wal) / max(1, found[-1].events - found[0].events)


@pytest.mark.alone
@pytest.mark.timeout(1200)
async def test_nothing_keeps_growing(tmp_path: Path, long: bool) -> None:
    """The time after the old snapshot is gone against the time before it came."""
    seconds = wanted("2m") if long else 15
    with Embedded.temporary(settings=SETTINGS) as server:
        await migrated(server, "soak")
        soak = Soak(server, tmp_path, seconds, rate=30 if long else 60)
        record = await soak.run()
        check(soak.dsn, soak.oracle, crashes=0)
    told = [f"{record.published:,} events, held back for {record.held_back:.0f} s; upkeep: {record.upkept}"]
    grown = []
    for name, (of, margin) in BOUNDED.items():
        before, after = (statistics.median(record.series(of, *part)) for part in ((0.15, 0.4), (0.75, 1)))
        highest = max(record.series(of, 0, 1))
        told.append(f"{name:16} {before:10.1f} {after:10.1f}   highest {highest:10.1f}")
        if name in SWELLING:
            before = max(before, *record.series(of, HELD[1], HELD[1] + 0.05))
        if after > 1.5 * before + margin and (long or name not in OF_THE_MACHINE):
            grown.append(name)
    before, after = wal_of_an_event(record, 0.15, 0.4), wal_of_an_event(record, 0.75, 1)
    told.append(f"{'WAL, B/event':16} {before:10.0f} {after:10.0f}")
    print("\n".join(told))
    if plot := os.environ.get("OUTRIDER_SOAK_PLOT"):
        from tests.faults.soak_plot import draw

        record.save(tmp_path / "samples.json")
        draw(record, Path(plot))
    assert not grown, "\n".join(told)
    assert after <= 2 * before + 4096, "\n".join(told)
    assert record.upkept.get("dropped", 0) >= 1, "no segment was dropped"
    assert record.upkept.get("expired", 0) >= 1, "no receipt expired"
    doubled = [each for each, times in soak.oracle.outside().items() if times > 1]
    assert not doubled, "a job ran twice, and no worker died"
    done = len(soak.oracle.outside())
    assert done == sum(outcome == "ok" for outcome in soak.oracle.attempts().values()), "a job was lost"
