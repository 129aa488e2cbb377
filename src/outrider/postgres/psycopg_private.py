"""All uses of psycopg beyond its documented interface.

A new release of psycopg may break any of them. So pyproject.toml has an upper bound, and
tests/postgres/test_psycopg_private.py says what to check before it is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg._pipeline_base import BasePipeline
from psycopg._preparing import Prepare, PrepareManager
from psycopg._queries import PostgresQuery
from psycopg.abc import AdaptContext, Params, PQGen, Query
from psycopg.adapt import AdaptersMap, Loader, PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.generators import execute, fetch_many, send
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq import Format as WireFormat
from psycopg.pq.abc import PGconn, PGresult

if TYPE_CHECKING:
    from psycopg._connection_base import BaseConnection
    from psycopg._cursor_base import BaseCursor

    _Connection = BaseConnection[Any]
    _Cursor = BaseCursor[Any, Any]
else:
    _Connection = _Cursor = object

AnyConnection = AsyncConnection[Any] | Connection[Any]
C = TypeVar("C", bound=_Connection)


def end_by_sync(pipeline: BasePipeline) -> None:
    """Makes a pipeline end by Sync alone; psycopg ends it by Sync and Flush.

    After a Flush, the server does not apply idle_in_transaction_session_timeout, and a stopped worker would keep its
    partition.
    """

    def end() -> PQGen[None]:
        try:
            pipeline._enqueue_sync()
            yield from pipeline._communicate_gen()
        finally:
            yield from pipeline._fetch_gen(flush=False)

    pipeline._exit_gen = end  # type: ignore[method-assign]


def in_pipeline_block(conn: AnyConnection) -> bool:
    return bool(conn._pipeline)


class RawStatements:
    """Statements in a raw pipeline, prepared under the names that psycopg keeps for the session."""

    def __init__(self, conn: AnyConnection) -> None:
        self._conn = conn
        self._transformer = Transformer(conn)

    def compile(self, query: Query, params: Params | None) -> PostgresQuery:
        compiled = PostgresQuery(self._transformer)
        compiled.convert(query, params)
        return compiled

    def begin(self) -> PQGen[None]:
        self._names: dict[object, tuple[Prepare, bytes]] = {}
        self._new: list[tuple[PostgresQuery, bytes]] = []
        yield from self._conn._prepared.maintain_gen(self._conn)
        self._conn.pgconn.enter_pipeline_mode()

    def send(self, each: PostgresQuery) -> int:
        """Returns how many answers follow."""
        pgconn, key = self._conn.pgconn, (each.query, each.types)
        if first := key not in self._names:
            self._names[key] = self._conn._prepared.get(each, prepare=True)
        how, name = self._names[key]
        if how is Prepare.NO:
            pgconn.send_query_params(each.query, each.params, each.types, each.formats)
            return 1
        if first := first and how is Prepare.SHOULD:
            pgconn.send_prepare(name, each.query, each.types)
            self._new.append((each, name))
        pgconn.send_query_prepared(name, each.params, each.formats)
        return 1 + first

    def keep(self, answers: Sequence[PGresult]) -> None:
        """Called after all have succeeded: what was prepared can be used again."""
        for each, name in self._new:
            self._conn._prepared.maybe_add_to_cache(each, Prepare.SHOULD, name)
        self._conn._prepared.validate((b"", ()), Prepare.YES, b"", answers)


def silence_unclosed(conn: AnyConnection) -> None:
    """psycopg warns of an unclosed connection unless it has the attribute of a pooled one."""
    conn._pool = None


def run(conn: AnyConnection, statements: bytes) -> PQGen[bytes]:
    """Sends statements without parameters in one message. Returns the command tag of the last one, as `COMMIT`.

    A cursor would do the same, but need more CPU.
    """
    conn.pgconn.send_query(statements)
    results = yield from execute(conn.pgconn)
    for each in results:
        if each.status == ExecStatus.FATAL_ERROR:
            raise error_from_result(each, encoding=conn.info.encoding)
    return results[-1].command_status or b""


class OwnBegin(_Connection):
    """A connection whose transactions begin with our own BEGIN, with SET LOCALs in the same round trip.

    psycopg sends both kinds of BEGIN by `_exec_command`: the implicit one, and that of `conn.transaction()`.
    """

    def begin_text(self, text: bytes) -> bytes:
        """Replaces psycopg's BEGIN."""
        return text

    def begin_settings(self) -> list[bytes]:
        """The statements to send with a BEGIN."""
        return []

    def _get_tx_start_command(self) -> bytes:
        return self.begin_text(super()._get_tx_start_command())

    def _exec_command(self, command: Any, *args: Any, **kwargs: Any) -> PQGen[Any]:
        begins = isinstance(command, bytes) and command.startswith(b"BEGIN") and not self._pipeline
        settings = self.begin_settings() if begins else []
        if not settings:
            return (yield from super()._exec_command(command, *args, **kwargs))
        self.pgconn.send_query(b";".join([command, *settings]))
        results = yield from execute(self.pgconn)
        for each in results:
            if each.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(each)
        return results[0]


class EndsBySync(_Connection):
    """A connection whose pipelines end by Sync alone: its own, and those that executemany() opens."""

    @property
    def _pipeline(self) -> Any:
        return self.__dict__["_pipeline"]

    @_pipeline.setter
    def _pipeline(self, pipeline: Any) -> None:
        if pipeline is not None:
            end_by_sync(pipeline)
        self.__dict__["_pipeline"] = pipeline


def twin(kind: type[C], of: AnyConnection) -> C:
    """Another connection object on the same session, of another class, with the same prepared statements and types.

    The constructor would copy the types, which takes longer than a short handler.
    """
    of.adapters  # noqa: B018 (psycopg makes it when it is first read; the twins share it)
    made = kind.__new__(kind)
    made.__dict__.update(of.__dict__)
    return made


def without_autocommit(conn: AnyConnection) -> None:
    """Without sending anything: a transaction is open already."""
    conn._autocommit = False


def share_prepared(conn: AnyConnection, owner: AnyConnection) -> None:
    """The names of prepared statements belong to the session, which both use."""
    conn._prepared = owner._prepared


def own_types(conn: AnyConnection, types: AdaptContext) -> None:
    conn._adapters = AdaptersMap(types.adapters)


def own_unprepared(conn: AnyConnection) -> None:
    """This connection prepares nothing, and does not affect what others prepare on the session."""
    conn._prepared = PrepareManager()
    conn._prepared.prepare_threshold = None


def detach(conn: AnyConnection, pgconn: PGconn) -> None:
    """Replaces the libpq connection, which others still use, by `pgconn`, and removes the user's notice handlers."""
    conn._notice_handlers.clear()
    conn._notify_handlers.clear()
    conn.pgconn = pgconn


class BeginningStatement:
    """A statement of one session that is sent together with the BEGIN of its transaction, in one round trip.

    Its placeholders are $1, $2 …, its result is binary. psycopg's pipelines and cursors would do the same, but need 0.35 ms
    of CPU for a take of one event instead of 0.11. It ends by Sync alone (`end_by_sync`).
    """

    def __init__(self, conn: AsyncConnection[Any], query: bytes, loaders: Mapping[str, type[Loader]]) -> None:
        self._conn = conn
        self.query, self.types = query, ()  # psycopg's key of a prepared statement; no types: the server infers them
        cursor = AsyncCursor(conn)
        for kind, loader in loaders.items():
            cursor.adapters.register_loader(kind, loader)
        self._transformer = Transformer(cursor)

    async def fetch(self, begin: Sequence[bytes], params: Sequence[Any]) -> list[tuple[Any, ...]]:
        """`begin`: the BEGIN, and what else to send before the statement."""
        result = await self._conn.wait(self._send(begin, params))
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _send(self, begin: Sequence[bytes], params: Sequence[Any]) -> PQGen[PGresult]:
        pgconn, prepared = self._conn.pgconn, self._conn._prepared
        values = self._transformer.dump_sequence(params, [PyFormat.TEXT] * len(params))
        yield from prepared.maintain_gen(self._conn)
        how, name = prepared.get(self, prepare=True)  # type: ignore[arg-type]
        pgconn.enter_pipeline_mode()
        for each in begin:
            pgconn.send_query_params(each, None)
        if how is Prepare.SHOULD:
            pgconn.send_prepare(name, self.query)
        if how is Prepare.NO:
            pgconn.send_query_params(self.query, values, result_format=WireFormat.BINARY)
        else:
            pgconn.send_query_prepared(name, values, result_format=WireFormat.BINARY)
        pgconn.pipeline_sync()
        results: list[PGresult] = []
        try:
            yield from send(pgconn)
            for _ in range(len(begin) + (how is Prepare.SHOULD) + 1):
                results += yield from fetch_many(pgconn)
            yield from fetch_many(pgconn)
        finally:
            if pgconn.status == ConnStatus.OK:
                pgconn.exit_pipeline_mode()
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result, encoding=self._conn.info.encoding)
        prepared.maybe_add_to_cache(self, how, name)  # type: ignore[arg-type]
        return results[-1]


class Entering(Protocol):
    """The interface of tenant_context.TenantEntry."""

    pending: bool
    rider: object

    def enter(self, pgconn: PGconn) -> PQGen[None]: ...
    def board(self, pgconn: PGconn) -> None: ...
    def ride(self, pgconn: PGconn, statement: PQGen[Any]) -> PQGen[Any]: ...


class _Rider(_Cursor):
    """A cursor that sends the tenant's SET LOCALs with its first statement, as one pipeline.

    Its connection has `entry`. If a version of psycopg does not call these methods, the connection notices that the tenant
    was not entered.
    """

    __slots__ = ()

    def _execute_gen(self, *args: Any, **kwargs: Any) -> PQGen[None]:
        statement = super()._execute_gen(*args, **kwargs)
        if (entry := self._pending()) is not None:
            entry.rider = statement
        return statement

    def _maybe_prepare_gen(self, pgq: PostgresQuery, **kwargs: Any) -> PQGen[Any]:
        statement = super()._maybe_prepare_gen(pgq, **kwargs)
        if (entry := self._pending()) is None:
            return statement
        return entry.ride(self._pgconn, statement) if pgq.params else self._after(entry, statement)

    def _after(self, entry: Entering, statement: PQGen[Any]) -> PQGen[Any]:
        """A query without parameters may contain several statements, which a pipeline does not allow."""
        yield from entry.enter(self._pgconn)
        return (yield from statement)

    def _execute_send(self, query: PostgresQuery, **kwargs: Any) -> None:
        self._board(partial(super()._execute_send, query, **kwargs))

    def _send_query_prepared(self, name: bytes, pgq: PostgresQuery, **kwargs: Any) -> None:
        self._board(partial(super()._send_query_prepared, name, pgq, **kwargs))

    def _board(self, send_it: Callable[[], None]) -> None:
        if (entry := self._pending()) is None:
            send_it()
            return
        entry.board(self._pgconn)
        try:
            send_it()
        finally:
            self._pgconn.pipeline_sync()

    def _pending(self) -> Entering | None:
        entry: Entering | None = self._conn.entry
        return entry if entry is not None and entry.pending else None


class LentCursor(_Rider, AsyncCursor[Any]):
    __slots__ = ()


class LentSyncCursor(_Rider, Cursor[Any]):
    __slots__ = ()
