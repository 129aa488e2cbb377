"""The session that listens for pokes: it tells its owner what it hears, and when it hears nothing any more.

A poke says "look now" and no more. Whoever is told "up" must look at everything once, because what was committed before
LISTEN was in force sent its poke to nobody.
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
from outrider.postgres.listener_session import Line, tell
from outrider.postgres.statement import statement

FIRST_BACKOFF = 0.1
_FULL = b"select pg_notification_queue_usage() >= 0.9"
"""From then on nobody is poked (notify)."""


class Listener:
    """Hears pokes on `channels` for as long as `run` runs. The callbacks are called on its event loop and must be quick.

    `on_down` is told the reason once per outage, `on_up` each time that pokes are heard from now on. With
    `watch_sequence`, the log's sequence is read every so many seconds, and `on_tick` is told when it moved: at once when
    a number is drawn, which is before its transaction commits. Times are in seconds.

    `follow` changes the channels while it runs.
    """

    def __init__(
        self,
        dsn: str,
        channels: Sequence[str],
        *,
        on_poke: Callable[[str, str], None],
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
        self._on_poke, self._on_up, self._on_down, self._on_tick = on_poke, on_up, on_down, on_tick
        self._pulse = statement("log/drawn", schema) if watch_sequence is not None else _FULL
        self._pause = heartbeat if watch_sequence is None else min(watch_sequence, heartbeat)
        self._heartbeat = heartbeat
        self._deadline = deadline
        self._longest_backoff = longest_backoff

    def follow(self, channels: Iterable[str]) -> None:
        """Hear these from the next heartbeat on; `on_up` tells when it is so, since pokes may have been missed before."""
        self._channels = frozenset(channels)

    async def run(self) -> NoReturn:
        """Until it is cancelled, which closes the session at once."""
        failures, told = 0, False
        while True:
            try:
                async with self._open() as line:
                    heard = await self._listen(line)
                    drawn = await line.ask(self._pulse)
                    failures, told = 0, False
                    tell(self._on_up)
                    await self._keep(line, drawn, heard)
            except DatabaseUnavailable as error:
                if not told:
                    told = True
                    tell(self._on_down, str(error))
            await asyncio.sleep(_backoff(failures, self._longest_backoff))
            failures += 1

    async def _listen(self, line: Line) -> frozenset[str]:
        """The test poke comes from a second session: a pooler would hand a session's own poke back with the answer."""
        channels = self._channels
        await line.ask(_commands("listen", channels | {line.name}))
        async with self._open() as other:
            # To ask how full the queue is gives its read part back: the poke of a full one fails, and so would every other.
            await other.ask(f"select pg_notification_queue_usage(); notify {line.name}".encode())
        try:
            await line.until(line.called)
        except TimeoutError:
            raise DatabaseUnavailable(
                f"the listener's own test poke did not arrive within {self._deadline:g} s: a transaction pooler probably "
                "sits in between, so let listen_dsn (OUTRIDER_LISTEN_DSN) name the server directly"
            ) from None
        return channels

    async def _keep(self, line: Line, drawn: list[bytes | None], heard: frozenset[str]) -> NoReturn:
        """Only an answer shows that the session lives: what a black hole swallowed gives no other sign."""
        clock = asyncio.get_running_loop().time
        looked = clock()
        while True:
            await line.rest(self._pause)
            before, drawn = drawn, await line.ask(self._pulse)
            *numbers, full = drawn
            if numbers != before[:-1]:
                tell(self._on_tick)
            if full == b"t" and clock() - looked >= self._heartbeat:
                looked = clock()
                await self._listen_again(line, heard)
            if (wanted := self._channels) != heard:
                changes = [_commands("unlisten", heard - wanted), _commands("listen", wanted - heard)]
                await line.ask(b"; ".join(filter(None, changes)))
                heard = wanted
                tell(self._on_up)

    async def _listen_again(self, line: Line, heard: frozenset[str]) -> None:
        """A transaction that found no room in the queue has filled it, and tells nobody who listens to read on."""
        await line.ask(b"unlisten *")
        await line.ask(_FULL)  # gives back what only this session had not read
        await line.ask(_commands("listen", heard | {line.name}))
        tell(self._on_up)

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
        line = Line(conn, self._on_poke, self._deadline)
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
