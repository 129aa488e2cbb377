"""Listens for notifications and reports them to its owner, and also when it starts and stops receiving them.

A notification only means "look now". After `on_up` the owner must look at everything once, because what was committed
before LISTEN took effect has notified nobody.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

from psycopg import sql

from outrider.errors import DatabaseUnavailable
from outrider.postgres import connection
from outrider.postgres.listener_session import Line, call_safely
from outrider.postgres.statement import statement

FIRST_BACKOFF = 0.1
_FULL = b"select pg_notification_queue_usage() >= 0.9"
"""From this usage of the queue on, the SQL function notify sends nothing."""


class Listener:
    """Listens on `channels` while `run` runs. The callbacks run on its event loop and must be quick. Times are in seconds.

    `on_up` is called when notifications arrive from now on, `on_down` once per outage, with the reason. With
    `watch_sequence`, it reads the log's sequence at this interval and calls `on_tick` when the sequence has advanced,
    which is before the publishing transaction commits. `follow` changes the channels.
    """

    def __init__(
        self,
        dsn: str,
        channels: Sequence[str],
        *,
        on_notification: Callable[[str, str], None],
        on_up: Callable[[], None],
        on_down: Callable[[str], None],
        on_tick: Callable[[], None] = lambda: None,
        watch_sequence: float | None = None,
        schema: str = "outrider",
        heartbeat: float = 10,
        deadline: float = 5,
        longest_backoff: float = 30,
    ) -> None:
        self._dsn = dsn
        self._channels = frozenset(channels)
        self._on_notification, self._on_up, self._on_down, self._on_tick = on_notification, on_up, on_down, on_tick
        self._pulse = statement("log/drawn", schema) if watch_sequence is not None else _FULL
        self._pause = heartbeat if watch_sequence is None else min(watch_sequence, heartbeat)
        self._heartbeat = heartbeat
        self._deadline = deadline
        self._longest_backoff = longest_backoff

    def follow(self, channels: Iterable[str]) -> None:
        """Changes the channels at the next heartbeat, then calls `on_up`: notifications may have been missed before."""
        self._channels = frozenset(channels)

    async def run(self) -> NoReturn:
        """Runs until it is cancelled, which closes the session at once."""
        failures, reported = 0, False
        while True:
            try:
                async with self._open() as line:
                    heard = await self._listen(line)
                    drawn = await line.ask(self._pulse)
                    failures, reported = 0, False
                    call_safely(self._on_up)
                    await self._keep(line, drawn, heard)
            except DatabaseUnavailable as error:
                if not reported:
                    reported = True
                    call_safely(self._on_down, str(error))
            await asyncio.sleep(_backoff(failures, self._longest_backoff))
            failures += 1

    async def _listen(self, line: Line) -> frozenset[str]:
        """The test notification comes from a second session: a pooler would return a session's own with the answer."""
        channels = self._channels
        await line.ask(_commands("listen", channels | {line.name}))
        async with self._open() as other:
            # Asking for the queue's usage frees the part that was read. While the queue is full, every NOTIFY fails.
            await other.ask(f"select pg_notification_queue_usage(); notify {line.name}".encode())
        try:
            await line.until(line.called)
        except TimeoutError:
            raise DatabaseUnavailable(
                f"the listener's own test notification did not arrive within {self._deadline:g} s: a transaction pooler "
                "probably sits in between, so let listen_dsn (OUTRIDER_LISTEN_DSN) name the server directly"
            ) from None
        return channels

    async def _keep(self, line: Line, drawn: list[bytes | None], heard: frozenset[str]) -> NoReturn:
        """Queries the server regularly: a connection that was cut without a reset shows no other sign."""
        clock = asyncio.get_running_loop().time
        looked = clock()
        while True:
            await line.rest(self._pause)
            before, drawn = drawn, await line.ask(self._pulse)
            *numbers, full = drawn
            if numbers != before[:-1]:
                call_safely(self._on_tick)
            if full == b"t" and clock() - looked >= self._heartbeat:
                looked = clock()
                await self._listen_again(line, heard)
            if (wanted := self._channels) != heard:
                changes = [_commands("unlisten", heard - wanted), _commands("listen", wanted - heard)]
                await line.ask(b"; ".join(filter(None, changes)))
                heard = wanted
                call_safely(self._on_up)

    async def _listen_again(self, line: Line, heard: frozenset[str]) -> None:
        """A transaction that filled the queue failed without signalling the listeners to read it, so it stays full."""
        await line.ask(b"unlisten *")
        await line.ask(_FULL)  # frees what only this session had not read
        await line.ask(_commands("listen", heard | {line.name}))
        call_safely(self._on_up)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Line]:
        try:
            async with asyncio.timeout(self._deadline):
                conn = await connection.connect(self._dsn, autocommit=True, name="outrider listener")
        except TimeoutError:
            raise DatabaseUnavailable(
                f"the listener got no connection within {self._deadline:g} s: "
                "check that the host is up and that no firewall drops the traffic"
            ) from None
        line = Line(conn, self._on_notification, self._deadline)
        try:
            yield line
        finally:
            line.hang_up()
            await conn.close()


def _commands(verb: str, channels: Iterable[str]) -> bytes:
    each = [sql.SQL(verb + " {}").format(sql.Identifier(channel)) for channel in sorted(channels)]
    return sql.SQL("; ").join(each).as_bytes(None)


def _backoff(failures: int, longest: float) -> float:
    ceiling = min(FIRST_BACKOFF * 2.0 ** min(failures, 30), longest)
    return ceiling * random.uniform(0.1, 1)  # noqa: S311 (spreads the workers, keeps no secret)
