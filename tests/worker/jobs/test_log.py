"""The lines that jobs leave in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.worker.jobs.factory import SOON, Make, Paint, opened

from outrider import Bury, Outrider


async def test_the_lines_of_a_job(database: str, caplog: pytest.LogCaptureFixture) -> None:
    def declare(app: Outrider) -> None:
        @app.job(Paint, retry=SOON)
        async def paint(job: Paint) -> None:
            if job.n == 1:
                raise RuntimeError("no paint")
            if job.n == 2:
                raise Bury("no wall")

        @app.job(Make)
        async def make(job: Make) -> None:
            pass

    with caplog.at_level(logging.DEBUG, "outrider"):
        async with opened(database, declare) as factory:
            ids = await factory.enqueue(Paint(part="door"), Paint(part="door", n=1), Paint(part="door", n=2))
            await factory.app.drain()
    lines: dict[tuple[str, str], Any] = {
        (record.event, record.job_id): record  # type: ignore[attr-defined]
        for record in caplog.records
        if hasattr(record, "job_id")
    }
    for event in ("enqueued", "claimed"):
        assert {job_id for said, job_id in lines if said == event} == {str(each) for each in ids}
    claimed = lines["claimed", str(ids[0])]
    assert (claimed.key, claimed.attempt, claimed.job_type) == ("door", 1, "factory.paint")
    assert claimed.worker_id
    completed = lines["completed", str(ids[0])]
    assert (completed.key, completed.attempt, completed.worker_id) == ("door", 1, claimed.worker_id)
    assert completed.duration_ms >= 0
    failed = lines["failed", str(ids[1])]
    assert (failed.error_code, failed.will_retry, failed.levelname) == ("runtime_error", True, "WARNING")
    assert "no paint" in failed.traceback
    buried = lines["failed", str(ids[2])]
    assert (buried.error_code, buried.will_retry, buried.levelname) == ("bury", False, "ERROR")
