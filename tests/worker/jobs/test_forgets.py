"""A worker keeps nothing of a job that failed: the error holds its frames, and these the job."""

from __future__ import annotations

import gc
import weakref

import pytest
from tests.faults.subject import so

from outrider import Job, Outrider


class Errand(Job, type="forgets.errand"):
    n: int


class FailsError(Exception):
    pass


@pytest.mark.verify
async def test_a_worker_keeps_no_error_of_its_jobs(database: str) -> None:
    raised: list[weakref.ref[BaseException]] = []
    app = Outrider(context="forgets", dsn=database)

    @app.job(Errand)
    async def errand(job: Errand) -> None:
        error = FailsError(job.n)
        raised.append(weakref.ref(error))
        raise error

    def forgotten() -> bool:
        gc.collect()
        return all(each() is None for each in raised)

    async with app:
        await app.migrate()
        async with app.worker(), app.connect() as conn:
            await app.enqueue_many(conn, [Errand(n=n) for n in range(20)])
            await conn.commit()
            await so(lambda: len(raised) >= 20, seconds=30)
            await so(forgotten, seconds=30)
