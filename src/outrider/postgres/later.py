"""Statements that handlers send later: they travel together, in one pipeline on the batch's session.

Each is known by its position: when one fails, the events whose handler asked for it are to blame, and no others. The tenant
is entered before the statements of each event, as for `ctx.tx`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection, InterfaceError, ProgrammingError
from psycopg.abc import Params, PQGen, Query
from psycopg.errors import error_from_result
from psycopg.generators import fetch_many, send
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus
from psycopg.pq.abc import PGresult

from outrider.postgres.psycopg_private import RawStatements
from outrider.postgres.tenant_context import TenantEntry

MANY = 100
"""So many waiting statements are sent when the handler returns, before the end of the batch."""
_GOOD = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.EMPTY_QUERY)
_REFUSED = re.compile(rb"\s*(abort|begin|commit|copy|end|prepare|release|rollback|savepoint|start)\b", re.IGNORECASE)
Rows = Sequence[tuple[Any, ...]]
Text = Query
Values = Params | None


class LaterStatements:
    """The waiting statements of one batch."""

    def __init__(self, conn: AsyncConnection[Any], batch: Rows) -> None:
        self._conn = conn
        self._batch = batch
        self._raw: RawStatements | None = None
        self.waiting: list[tuple[Rows, TenantEntry | None, Any]] = []
        self._closed = False
        self._blamed: Rows | None = None
        """The events of the statement that failed; while statements are being sent, of all of them."""
        self._error: BaseException | None = None

    def add(self, rows: Rows, entry: TenantEntry | None, query: Text, params: Values) -> None:
        if self._closed:
            raise InterfaceError("ctx.later was used after its handler had returned")
        self._raw = self._raw or RawStatements(self._conn)
        compiled = self._raw.compile(query, params)
        if _REFUSED.match(compiled.query):
            raise ProgrammingError("ctx.later takes no COPY and nothing that begins or ends a transaction or savepoint")
        if self._conn.pgconn.pipeline_status != PipelineStatus.OFF:
            raise ProgrammingError(
                "ctx.later was called inside of ctx.tx.pipeline(): call it before or after the block"
            )
        self.waiting.append((rows, entry, compiled))

    def close(self) -> None:
        self._closed = True

    def forget(self) -> None:
        """The transaction is usable: the handler has rolled back its own failed statement to a savepoint."""
        self._blamed = self._error = None

    def blame(self, rows: Rows, error: BaseException) -> tuple[Rows, BaseException]:
        """What failed: these rows by this error, unless a statement of others did."""
        if self._blamed is None or self._blamed is rows:
            return rows, error
        return self._blamed, self._error or error

    async def flush(self) -> None:
        await self._conn.wait(self.send())

    def send(self) -> PQGen[None]:
        """Sends all that wait and reads all answers, in one round trip. Raises the first error."""
        waiting, self.waiting = self.waiting, []
        pgconn, raw = self._conn.pgconn, self._raw
        assert raw is not None
        self._blamed = [row for rows in {id(rows): rows for rows, _, _ in waiting}.values() for row in rows]
        yield from raw.begin()
        owners: list[Rows] = []
        for rows, entry, each in waiting:
            if entry is not None and entry.pending:
                owners += [self._batch] * entry.send(pgconn)
            owners += [rows] * raw.send(each)
        pgconn.pipeline_sync()
        yield from send(pgconn)
        answers: list[PGresult] = []
        failed: BaseException | None = None
        for rows in owners:
            answers += yield from fetch_many(pgconn)
            if failed is None and answers[-1].status not in _GOOD:
                failed = self._error = error_from_result(answers[-1], encoding=self._conn.info.encoding)
                self._blamed = rows
        yield from fetch_many(pgconn)
        if pgconn.status == ConnStatus.OK:
            pgconn.exit_pipeline_mode()
        if failed is not None:
            raise failed
        raw.keep(answers)
        self._blamed = None
