"""The catalogue of SQL: one statement or function per file, in folders by subject.

`sql/<subject>/functions/` holds functions, which a migration installs in the database. All other files of `sql/` are
statements, which Python sends. The files are valid SQL; the marker `/*schema*/` before a name becomes the quoted schema.
`fetch` sends a statement, `fetch_call` calls a function, and `looking` reads several statements in one snapshot.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import tuple_row

from outrider.postgres.errors import in_our_words
from outrider.postgres.worker_sessions import lacks_transaction

Params = dict[str, Any]
Rows = list[tuple[Any, ...]]
MARKER = "/*schema*/"
SUBJECTS = ("log", "handlers", "jobs", "streams", "rollups", "admin", "upkeep")
"""Those that have functions, in the order in which they are installed: a function comes after what an SQL body calls."""
_HERE = files("outrider.postgres")
_SQL = _HERE / "sql"

# With ordered index scans only, a LIMIT bounds what is read of the log, whatever the planner estimates. Without JIT: the
# estimated cost of small tables would start it.
ONE_MOMENT = """
set transaction isolation level repeatable read, read only;
set local enable_seqscan = off;
set local enable_bitmapscan = off;
set local enable_sort = off;
set local jit = off
"""


def render(text: str, schema: str) -> str:
    """Config.Settings has checked that `schema` is a lower-case word, so quoting it is enough."""
    return text.replace(MARKER, f'"{schema}".')


@cache
def statement(name: str, schema: str) -> bytes:
    """The statement of a file: `jobs/job_counts` is that of sql/jobs/job_counts.sql."""
    return render((_SQL / f"{name}.sql").read_text(), schema).encode()


@cache
def call(function: str, schema: str, parameters: tuple[str, ...]) -> bytes:
    """The text that calls a function of the database: its parameter `p_limit` gets the value `limit`.

    A parameter names its type, as in `results::jsonb[]`, where Postgres would not convert the value to it by itself.
    """
    arguments = []
    for each in parameters:
        name, cast, kind = each.partition("::")
        arguments.append(f"p_{name} => %({name})s{cast}{kind}")
    return f'select * from "{schema}".{function}({", ".join(arguments)})'.encode()


@cache
def numbered_call(function: str, schema: str, parameters: tuple[str, ...]) -> bytes:
    """Like `call`, with the placeholders of the protocol, $1, $2 …"""
    arguments = [f"p_{name} => ${number}" for number, name in enumerate(parameters, 1)]
    return f'select * from "{schema}".{function}({", ".join(arguments)})'.encode()


def functions() -> Iterator[tuple[str, str]]:
    """Name and text of the functions of all subjects, in the order in which they are installed."""
    return (each for subject in SUBJECTS for each in functions_of(subject))


def functions_of(subject: str) -> Iterator[tuple[str, str]]:
    """Name and text of the functions of a subject, by name."""
    return _sorted(_SQL / subject / "functions")


def migrations() -> Iterator[tuple[str, str]]:
    """Name and text of the migrations, in their order."""
    return _sorted(_HERE / "migrations")


async def fetch(conn: AsyncConnection[Any], name: str, schema: str, params: Params | None = None) -> Rows:
    """All rows of a statement."""
    return await _fetch(conn, statement(name, schema), schema, params)


async def fetch_call(conn: AsyncConnection[Any], function: str, schema: str, params: Params) -> Rows:
    """All rows that a function returns; `params` holds its arguments by name."""
    return await _fetch(conn, call(function, schema, tuple(params)), schema, params)


class Look:
    def __init__(self, cursor: AsyncCursor[Any], schema: str) -> None:
        self._cursor = cursor
        self._schema = schema

    async def rows(self, name: str, params: Params | None = None) -> Rows:
        """All rows of a statement."""
        await self._cursor.execute(statement(name, self._schema), params)
        return await self._cursor.fetchall()


@asynccontextmanager
async def looking(conn: AsyncConnection[Any], schema: str) -> AsyncIterator[Look]:
    """A read-only transaction, in which all statements see the same snapshot."""
    with in_our_words(schema):
        async with conn.transaction(), AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(ONE_MOMENT)
            yield Look(cursor, schema)


async def _fetch(conn: AsyncConnection[Any], query: bytes, schema: str, params: Params | None) -> Rows:
    with in_our_words(schema):
        # Not in one round trip: how psycopg reads an interval depends on what the server has reported by then.
        own = conn.transaction() if lacks_transaction(conn) else nullcontext()
        async with own, conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(query, params)
            return await cursor.fetchall()


def _sorted(folder: Traversable) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            yield file.name.removesuffix(".sql"), file.read_text()
