"""Outrider's jobs, default settings."""

from __future__ import annotations

from benchmarks.peers.outrider_events import Events
from benchmarks.peers.peer import main, payload
from outrider import Job, Outrider
from outrider.signals import JobsCompleted

COLUMNS = """
select column_name::text, data_type = 'uuid' and is_nullable = 'NO' from information_schema.columns
where table_schema = 'outrider' and table_name = %s and is_generated = 'NEVER' and is_identity = 'NO'
  and column_default is distinct from 'now()' and coalesce(column_default, '') not like 'nextval%%'
"""


class Noop(Job, type="bench.noop"):
    customer: str
    n: int
    note: str


class Jobs(Events):
    def declare(self, app: Outrider) -> None:
        @app.job(Noop)
        async def noop(job: Noop) -> None:
            self.entered(job.n)

    async def _send(self, number: int) -> None:
        await self.app.enqueue(self.conn, Noop(**payload(number)))

    async def send_many(self, numbers: range) -> None:
        jobs = [Noop(**payload(number)) for number in numbers]
        async with self.conn.transaction():
            await self.app.enqueue_many(self.conn, jobs)

    async def send_later(self, count: int) -> None:
        """One through the API; the others are copies of its row, but for ids and the queue."""
        async with self.conn.transaction():
            await self.app.enqueue(self.conn, Noop(**payload(0)), delay="365d", queue="later")
            found = await (await self.conn.execute("select to_regclass('outrider.job') is not null")).fetchone()
            table = "job" if found and found[0] else "delivery"
            columns = await (await self.conn.execute(COLUMNS, [table])).fetchall()
            names = ", ".join(name for name, _ in columns)
            values = ", ".join(
                "'later-' || n" if name == "queue" else "gen_random_uuid()" if unique else name
                for name, unique in columns
            )
            await self.conn.execute(
                f"insert into outrider.{table} ({names}) select {values} from outrider.{table}, generate_series(2, %s) as n"
                " where queue = 'later'".encode(),
                [count],
            )

    async def drain(self, count: int) -> None:
        await self._work(JobsCompleted, "jobs", count)


if __name__ == "__main__":
    main(Jobs)
