"""A session that receives notifications at all times, also during a query, and never waits longer than its deadline.

It reads the socket itself, for two reasons. A cancelled psycopg query first asks the server to cancel it, which takes up to
10 s on a dead connection. And before psycopg 3.2.4, `notifies()` loses what arrives during a query.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from outrider.errors import DatabaseUnavailable
from outrider.postgres import connection

T = TypeVar("T")


class Line:
    def __init__(
        self, conn: connection.AsyncSession, on_notification: Callable[[str, str], None], deadline: float
    ) -> None:
        self._pq = conn.pgconn
        self._fd = self._pq.socket
        self._on_notification = on_notification
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self.name = f"outrider_self_{secrets.token_hex(8)}"
        """A channel of this session only. A notification on it completes `called` and is not passed on."""
        self.called: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[DatabaseUnavailable] = self._loop.create_future()
        self._answer: asyncio.Future[list[PGresult]] | None = None
        self._results: list[PGresult] = []
        self._loop.add_reader(self._fd, self._read)

    def hang_up(self) -> None:
        """Stops reading, unless the session was lost: then the file descriptor may already be reused."""
        if not self._lost.done():
            self._loop.remove_reader(self._fd)

    async def ask(self, query: bytes) -> list[bytes | None]:
        """Sends the query and returns the first row of its last statement."""
        self._answer, self._results = self._loop.create_future(), []
        try:
            self._pq.send_query(query)
            results = await self.until(self._answer)
        except psycopg.Error as error:
            raise _loss(error) from error
        except TimeoutError:
            raise DatabaseUnavailable(
                f"the listener's session gave no answer within {self._deadline:g} s: the server or the network is down"
            ) from None
        for result in results:
            if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                message = result.error_message.decode(errors="replace")
                raise DatabaseUnavailable(f"the listener was refused: {_first_line(message)}")
        last = results[-1]
        return [last.get_value(0, column) for column in range(last.nfields)] if last.ntuples else []

    async def until(self, awaited: asyncio.Future[T]) -> T:
        """The result of a future within the deadline. One in time counts, even if a blocked event loop reads it late."""
        either: set[asyncio.Future[Any]] = {awaited, self._lost}
        await asyncio.wait(either, timeout=self._deadline, return_when=asyncio.FIRST_COMPLETED)
        if awaited.done():
            return awaited.result()
        if self._lost.done():
            raise self._lost.result()
        raise TimeoutError

    async def rest(self, seconds: float) -> None:
        await asyncio.wait({self._lost}, timeout=seconds)
        if self._lost.done():
            raise self._lost.result()

    def _read(self) -> None:
        try:
            self._pq.consume_input()
            while self._answer is not None and not self._pq.is_busy():
                if (result := self._pq.get_result()) is not None:
                    self._results.append(result)
                else:
                    self._answer.set_result(self._results)
                    self._answer = None
            # Last, because reading the answer also parses the notifications behind it, and nothing else would fetch them.
            while (found := self._pq.notifies()) is not None:
                self._received(found.relname.decode(errors="replace"), found.extra.decode(errors="replace"))
        except psycopg.Error as error:
            self._loop.remove_reader(self._fd)
            self._lost.set_result(_loss(error))

    def _received(self, channel: str, payload: str) -> None:
        if channel != self.name:
            call_safely(self._on_notification, channel, payload)
        elif not self.called.done():
            self.called.set_result(None)


def call_safely(callback: Callable[..., None], *args: str) -> None:
    """A callback that raises must not end the listener. asyncio's exception handler reports the error."""
    try:
        callback(*args)
    except Exception as error:
        context = {"message": f"the listener's callback {callback!r} raised", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


def _loss(error: psycopg.Error) -> DatabaseUnavailable:
    return DatabaseUnavailable(f"the listener lost its session: {_first_line(str(error))}")


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0]
