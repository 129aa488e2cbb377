"""The plainest SQL on psycopg: a table, COPY, a cursor over it, LISTEN and NOTIFY. It promises nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection

from benchmarks.peers.peer import BUSINESS, Entered, Peer, main, payload

BATCH = 500


class Bare(Peer):
    notifies = False

    async def open(self) -> None:
        self.conn: AsyncConnection[Any] = await AsyncConnection.connect("")

    async def close(self) -> None:
        await self.conn.close()

    async def install(self) -> None:
        async with self.conn.transaction():
            await self.conn.execute(
                "create table raw (seq bigint generated always as identity primary key, payload jsonb)"
            )
            await self.conn.execute(BUSINESS)

    async def send(self, number: int) -> None:
        async with self.conn.transaction():
            await self.conn.execute("insert into raw (payload) values (%s)", [json.dumps(payload(number))])
            if self.notifies:
                await self.conn.execute("notify raw")

    async def send_within(self, number: int) -> float:
        async with self.conn.transaction():
            await self.conn.execute("insert into business (note) values (%s)", [f"order {number}"])
            begun = time.perf_counter()
            await self.conn.execute("insert into raw (payload) values (%s)", [json.dumps(payload(number))])
            return time.perf_counter() - begun

    async def send_many(self, numbers: range) -> None:
        async with (
            self.conn.transaction(),
            self.conn.cursor() as cursor,
            cursor.copy("copy raw (payload) from stdin") as copy,
        ):
            for number in numbers:
                await copy.write_row((json.dumps(payload(number)),))

    async def drain(self, count: int) -> None:
        """Reads in batches; nothing is written, nothing is remembered."""
        seq = 0
        async with self.conn.cursor(binary=True) as cursor:
            while count:
                await cursor.execute(
                    "select seq, payload::text from raw where seq > %s order by seq limit %s", [seq, BATCH]
                )
                rows = await cursor.fetchall()
                for _, text in rows:
                    json.loads(text)
                seq, count = rows[-1][0], count - len(rows)
                await self.conn.commit()

    @asynccontextmanager
    async def working(self, entered: Entered) -> AsyncIterator[None]:
        self.notifies = True
        async with await AsyncConnection.connect("", autocommit=True) as listener:
            await listener.execute("listen raw")

            async def work() -> None:
                seq = 0
                async for _ in listener.notifies():
                    query = "select seq, payload::text from raw where seq > %s order by seq limit 500"
                    for row in await (await reader.execute(query, [seq])).fetchall():
                        seq = row[0]
                        entered(json.loads(row[1])["n"])

            async with await AsyncConnection.connect("", autocommit=True) as reader:
                working = asyncio.create_task(work())
                yield
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)


if __name__ == "__main__":
    main(Bare)
