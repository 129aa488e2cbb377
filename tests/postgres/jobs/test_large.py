"""A claim of large jobs: the leases are committed before the payloads are read, so a frozen worker holds up no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import psycopg
import pytest
from tests.postgres.jobs.sqljobs import CLAIM, Conn, claim, register, sound

from outrider.postgres import jobs
from outrider.postgres.connection import connect
from outrider.postgres.jobs import ClaimRequest, Leased

LIMITED = "mail.limited"
OF_EVENTS = "mail.notify"
BYTES = 224_000


@pytest.fixture
def conn(database: str) -> Iterator[Conn]:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("set statement_timeout = '5s'")
        register(conn, LIMITED, concurrency=100)
        yield conn
        sound(conn)


def enqueue(conn: Conn, many: int, size: int) -> None:
    conn.execute(
        """select outrider.enqueue(%s, jsonb_build_object('n', n, 'text', repeat('x', %s)), trace_context => '{"a": "b"}')
           from generate_series(1, %s) as n""",
        [LIMITED, size, many],
    )


def asked(limit: int, name: str = LIMITED) -> ClaimRequest:
    return ClaimRequest(uuid4(), [name], limit, 0, None, suspect=True)


async def claimed(dsn: str, limit: int, name: str = LIMITED) -> list[Leased]:
    async with await connect(dsn, autocommit=True) as session:
        found = await jobs.claim(session, asked(limit, name), "outrider")
    return [Leased(row, 0, 0) for row in found.rows]


def test_a_worker_that_does_not_read_its_claim(conn: Conn, database: str) -> None:
    enqueue(conn, 25, BYTES)
    request = asked(20)
    with closing(psycopg.connect(database, autocommit=True)) as frozen:
        values = {name: getattr(request, name) for name in request.__slots__}
        query = psycopg.ClientCursor(frozen).mogrify(CLAIM, values)
        frozen.pgconn.send_query(query.encode())
        answered = """select query ~ 'claim' and (state = 'idle' or wait_event = 'ClientWrite')
                      from pg_stat_activity where pid = %s"""
        while conn.execute(answered, [frozen.info.backend_pid]).fetchone() != (True,):
            pass
        assert len(claim(conn, 5, [LIMITED]).jobs) == 5


@pytest.mark.parametrize(("many", "size"), [(3, BYTES), (1, BYTES), (3, 10)])
async def test_a_worker_gets_the_payloads(conn: Conn, database: str, many: int, size: int) -> None:
    enqueue(conn, many, size)
    found = await claimed(database, 9)
    assert [each.envelope.payload for each in found] == [{"n": n, "text": "x" * size} for n in range(1, many + 1)]
    assert [each.envelope.trace_context for each in found] == [{"a": "b"}] * many


async def test_a_worker_gets_the_payloads_of_events(conn: Conn, database: str) -> None:
    conn.execute("select outrider.register(%s, 'job', 'mail', '{order.placed}')", [OF_EVENTS])
    for n in range(3):
        conn.execute(
            "select outrider.publish('order.placed', jsonb_build_object('n', %s::int, 'text', repeat('x', %s)))",
            [n, BYTES],
        )
    conn.execute("select from outrider.route(%s, 100, 1000, null, 'default', 0)", [OF_EVENTS])
    found = await claimed(database, 9, OF_EVENTS)
    assert [each.envelope.payload for each in found] == [{"n": n, "text": "x" * BYTES} for n in range(3)]
