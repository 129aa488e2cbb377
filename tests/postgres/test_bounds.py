"""What no writer can store, however it writes; and what one batch holds at most."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from tests.mutants import SMALL_BATCHES
from tests.postgres.jobs import sqljobs

from outrider import Event, Outrider
from outrider.errors import PublishRefused
from outrider.postgres import log, statement

pytestmark = pytest.mark.also_on(15)

Conn = psycopg.Connection[Any]

ZEROS = "0" * 9000
LONG = {
    "a number of 131,072 digits": ('{"n": 1e131071}', "more than 8192 digits"),
    "a negative one": ('{"deep": [[{"n": -1e131071}]]}', "more than 8192 digits"),
    "one of 9,000 decimals": ('{"n": 1e-9000}', "more than 8192 digits"),
    "one of 9,000 decimals that are all zero": ('{"n": 1.' + ZEROS + "}", "more than 8192 digits"),
    "one behind much text": ('{"text": "' + "x" * 50_000 + '", "n": 1e9000}', "more than 8192 digits"),
    "one that is stored in full": ('{"n": 1' + "23456789" * 1100 + "}", "more than 8192 digits"),
    "a scalar": ("1e131071", "more than 8192 digits"),
    "many numbers of 1,000 digits": ('{"n": [' + "1e1000," * 50 + "0]}", "numbers with an exponent"),
    "10 kB that are 144 MB": (
        '{"n": [' + "1e131071," * 1100 + "0]}",
        "has 144181410 bytes as text, the limit is 134217728",
    ),
}
SHORT = {
    "the longest integer that Python publishes": '{"n": ' + "9" * 3900 + "}",
    "a number of 5,000 digits": '{"n": ' + "9" * 5000 + "}",
    "lists of the longest floats": '{"n": [' + "1.7976931348623157e308, 5e-324," * 2000 + "0]}",
    "a text of 20,000 digits": json.dumps({"n": ["1" * 20_000, "0" * 20_000]}),
    "control characters": json.dumps({"n": "\x01" * 100_000}),
    "nested 2,000 deep": '{"n": ' + "[" * 2000 + "]" * 2000 + "}",
    "a list of 100,000 zeros": '{"n": [' + "0," * 100_000 + "0]}",
    "an empty object": "{}",
    "a scalar": '"x"',
}
INSERT = "insert into outrider.outbox (event_type, source, payload) values ('a.b', 'a', %s::text::jsonb)"
JOB = """insert into outrider.job (subscription, event_id, run_at, queue, payload)
         values ('a.b', gen_random_uuid(), now(), 'default', %s::text::jsonb)"""


@pytest.fixture
def conn(database: str) -> Any:
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


def error_of(conn: Conn, query: str, *params: object) -> str:
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        conn.execute(query.encode(), params)
    return str(error.value)


@pytest.mark.parametrize("insert", [INSERT, JOB], ids=["event", "job"])
@pytest.mark.parametrize("name", LONG)
def test_no_writer_stores_what_readers_cannot_read(conn: Conn, name: str, insert: str) -> None:
    payload, why = LONG[name]
    assert why in error_of(conn, insert, payload)


@pytest.mark.parametrize("insert", [INSERT, JOB], ids=["event", "job"])
@pytest.mark.parametrize("name", SHORT)
def test_what_is_long_and_harmless_is_stored(conn: Conn, name: str, insert: str) -> None:
    conn.execute(insert.encode(), [SHORT[name]])


WRONG: dict[str, dict[str, Any]] = {
    "outbox_aggregate_id_check": {"aggregate_id": "x" * 513},
    "outbox_aggregate_kind_check": {"aggregate_kind": "x" * 201},
    "outbox_channel_check": {"channel": "x" * 64},
    "outbox_content_class_known": {"content_class": "secret"},
    "outbox_event_type_check": {"event_type": ""},
    "outbox_event_version_check": {"event_version": 0},
    "outbox_generation_check": {"generation": -1},
    "outbox_idempotency_key_check": {"idempotency_key": ""},
    "outbox_occurred_at_check": {"occurred_at": "infinity"},
    "outbox_origin_check": {"origin": "x" * 64},
    "outbox_source_check": {"source": "ä" * 32},
    "outbox_target_check": {"target": ""},
    "outbox_trace_context_bounded": {"trace_context": json.dumps({"traceparent": "x" * 16_384})},
    "outbox_workspace_id_check": {"workspace_id": "x" * 256},
}


@pytest.mark.parametrize("rule", WRONG)
def test_every_writer_meets_every_rule(conn: Conn, rule: str) -> None:
    """An update, too. Null breaks none of these rules."""
    columns = {"event_type": "a.b", "source": "a", "payload": "{}"} | WRONG[rule]
    insert = f"insert into outrider.outbox ({', '.join(columns)}) values ({', '.join(['%s'] * len(columns))})"
    [(column, value)] = WRONG[rule].items()
    conn.execute(INSERT.encode(), ["{}"])
    for query, params in (
        (insert, [*columns.values()]),
        (f"update outrider.outbox set {column} = %s", [value]),
    ):
        with pytest.raises(psycopg.errors.CheckViolation) as error:
            conn.execute(query.encode(), params)
        diag = error.value.diag
        assert diag.message_primary == f'new row for relation "outbox_s0" violates check constraint "{rule}"'
        assert (diag.schema_name, diag.table_name, diag.constraint_name) == ("outrider", "outbox_s0", rule)


def test_a_column_that_must_be_there_is_named(conn: Conn) -> None:
    with pytest.raises(psycopg.errors.NotNullViolation, match="event_type"):
        conn.execute("insert into outrider.outbox (source, payload) values ('a', '{}')")


def test_one_that_comes_compressed_from_a_table(conn: Conn) -> None:
    """It is measured by what it is, not by how it is kept."""
    conn.execute("create temp table kept (p jsonb)")
    conn.execute("insert into kept values (%s::text::jsonb)", [json.dumps({"text": "abc " * 50_000})])
    row = conn.execute("select pg_column_size(p) from kept").fetchone()
    assert row is not None
    assert row[0] < 5_000
    conn.execute("insert into outrider.outbox (event_type, source, payload) select 'a.b', 'a', p from kept")
    conn.execute("update kept set p = %s::text::jsonb", [LONG["many numbers of 1,000 digits"][0]])
    copy = "insert into outrider.outbox (event_type, source, payload) select 'a.b', 'a', p from kept"
    assert "numbers with an exponent" in error_of(conn, copy)


def test_the_functions_say_so_too(conn: Conn) -> None:
    for call in ("publish", "enqueue"):
        with pytest.raises(psycopg.Error, match="its payload has 262155 bytes, the limit is 262144"):
            conn.execute(f"select outrider.{call}('a.b', '{{\"n\": [1e131071, 1e131071]}}')".encode())
        with pytest.raises(psycopg.Error, match="its payload has more than 134217728 bytes, the limit is 262144"):
            conn.execute(
                f"select outrider.{call}('a.b', %s::text::jsonb)".encode(), ['{"n": [' + "1e131071," * 1100 + "0]}"]
            )
        assert "trace" in error_of(
            conn, f"select outrider.{call}('a.b', '{{}}', trace_context => jsonb_build_object('x', repeat('x', 20000)))"
        )
        assert "trace" in error_of(
            conn, f"select outrider.{call}('a.b', '{{}}', trace_context => '{{\"n\": 1e131071}}')"
        )


@pytest.mark.parametrize(
    "wrong",
    [
        "subscription = repeat('x', 600)", "event_type = repeat('x', 600)", "source = repeat('x', 600)",
        "workspace_id = repeat('x', 600)",
        "trace_context = jsonb_build_object('x', repeat('x', 20000))",
    ],
)  # fmt: skip
def test_columns_of_a_job_are_bounded(conn: Conn, wrong: str) -> None:
    column, value = wrong.split(" = ")
    names = {
        "subscription": "'a.b'", "event_id": "gen_random_uuid()", "run_at": "now()", "queue": "'default'", "payload": "'{}'",
    } | {column: value}  # fmt: skip
    error_of(conn, f"insert into outrider.job ({', '.join(names)}) values ({', '.join(names.values())})")


def test_an_enqueue_that_replaces_a_job_is_bounded(conn: Conn) -> None:
    replace = "select outrider.enqueue_one('a.b', %s::text::jsonb, p_unique_key => 'k', p_on_conflict => 'replace', {})"
    conn.execute(replace.format("p_source => 'a'").encode(), ["{}"])
    assert "8192 digits" in error_of(conn, replace.format("p_source => 'a'"), '{"n": 1e9000}')
    assert "source and workspace" in error_of(conn, replace.format("p_source => repeat('x', 600)"), "{}")


class Measured(Event, type="bounds.measured"):
    values: list[float]


def test_the_payload_limit_counts_numbers_in_full(database: str, conn: Conn) -> None:
    app = Outrider(context="bounds", dsn=database)
    with conn.transaction():
        app.publish_sync(conn, Measured(values=[1e308] * 800))
        with pytest.raises(PublishRefused, match="bytes with its numbers in full, the limit is 262,144"):
            app.publish_sync(conn, Measured(values=[1e308] * 900))
        app.publish_sync(conn, Measured(values=[1.5] * 900))


def published(conn: Conn, many: int, size: int, event_type: str = "a.b") -> None:
    conn.execute(
        """insert into outrider.outbox (event_type, source, payload)
           select %s, 'a', jsonb_build_object('n', n, 'text', repeat('x', %s)) from generate_series(1, %s) as n""",
        [event_type, size, many],
    )


def test_a_batch_is_bounded_by_its_bytes(database: str, conn: Conn) -> None:
    """By what is stored, uncompressed: at most 4 MiB, and the event that passes it. Nothing is skipped."""
    conn.execute("select outrider.register('a.reader', 'reader', 'a', null, 1, 'now')")
    published(conn, 12, 1_000_000)
    batches = []
    with psycopg.connect(database) as reading:
        while (batch := log.take_sync(reading, "a.reader", 0, 500, 10_000, "outrider")).events:
            batches.append([each.payload["n"] for each in batch.events])
            reading.commit()
    assert batches == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12]]


def test_a_claim_is_bounded_by_its_bytes(conn: Conn) -> None:
    conn.execute(SMALL_BATCHES)
    sqljobs.register(conn, "mail.send")
    for n in range(7):
        sqljobs.enqueue(conn, n=n, ago=60 - n)
    claims = [sqljobs.claim(conn, limit=5) for _ in range(4)]
    names = [claim.names for claim in claims]
    assert [n for batch in names for n in batch] == list(range(7))
    assert max(map(len, names)) < 5
    assert all(claim.due_in == 0 for claim, n in zip(claims, names, strict=True) if n and n[-1] != 6)
    sqljobs.sound(conn)


def test_parked_events_are_bounded_by_their_bytes(conn: Conn) -> None:
    """They come back in their order, a few at a time."""
    conn.execute("select outrider.register('a.handler', 'handler', 'a', null, 1, 'now')")
    published(conn, 5, 10)
    conn.execute(SMALL_BATCHES)
    with conn.transaction():
        rows = conn.execute("select seq from outrider.outbox order by seq").fetchall()
    conn.execute(
        """insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached, run_at)
           select 'a.handler', 0, o.seq, o.id, o.event_type, 'pending', true, true, now() from outrider.outbox as o""",
    )
    conn.execute("update outrider.cursor set seq = (select max(seq) from outrider.outbox)")
    taken = []
    for _ in range(5):
        with conn.transaction():
            batch = conn.execute("select seq, batch from outrider.take('a.handler', 0, 500)").fetchall()
            conn.execute("select outrider.settle(%s)", [batch[0][1]])
            taken.append([seq for seq, _ in batch if seq is not None])
    assert [seq for each in taken for seq in each] == [seq for (seq,) in rows]
    assert max(map(len, taken)) < 5


def test_a_page_of_an_export_is_bounded_by_its_bytes(conn: Conn) -> None:
    for n in range(5):
        conn.execute(
            "insert into outrider.outbox (event_type, source, workspace_id, payload) values ('a.b', 'a', 'acme', %s)",
            [json.dumps({"n": n})],
        )
    conn.execute(SMALL_BATCHES)
    after, found = 0, []
    while after is not None:
        head, *page = conn.execute(
            "select place, line from outrider.tenant_page('acme', null, null, false, 'events', %s, 1000)", [after]
        ).fetchall()
        assert len(page) <= 3
        found += [json.loads(line)["payload"]["n"] for _, line in page]
        after = head[0]
    assert found == list(range(5))


LARGE = """jsonb_build_object(
    'text', repeat('x', 940000) || (select string_agg(md5(i::text), '') from generate_series(1, 1900) as i))"""
"""A payload of 1 MB that is stored in 70 kB. Five of them fill a batch."""
MANY = 40
LEAVE_EIGHT = """
delete from outrider.delivery where seq > (select seq from outrider.outbox order by seq offset 7 limit 1);
delete from outrider.job where id > (select id from outrider.job order by id offset 7 limit 1);
delete from outrider.outbox where seq > (select seq from outrider.outbox order by seq offset 7 limit 1)
"""
PARKED = """
insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached, run_at)
select subscription, 0, o.seq, o.id, o.event_type, 'pending', true, true, now()
from outrider.outbox as o, (select name as subscription from outrider.subscription) as s;
update outrider.cursor set seq = (select max(seq) from outrider.outbox)
"""


def publish_large(conn: Conn, many: int) -> None:
    insert = f"insert into outrider.outbox (event_type, source, payload) select 'a.b', 'a', {LARGE}"
    conn.execute(f"{insert} from generate_series(1, %s)".encode(), [many])


def read_fresh(conn: Conn, many: int) -> str:
    conn.execute("select outrider.register('a.reader', 'reader', 'a', null, 1, 'now')")
    publish_large(conn, many)
    return "select seq from outrider.take('a.reader', 0, 500) where seq is not null"


def read_late(conn: Conn, many: int) -> str:
    """What is committed after later events were read."""
    conn.execute("select outrider.register('a.reader', 'reader', 'a', null, 1, 'now')")
    with psycopg.connect(conn.info.dsn) as late:
        publish_large(late, many)
        published(conn, 1, 1)
        while conn.execute("select outcome from outrider.take('a.reader', 0, 500)").fetchone() != ("idle",):
            pass
    return "select seq from outrider.take('a.reader', 0, 500) where seq is not null"


def read_owed(conn: Conn, many: int) -> str:
    """The same, after the first batch of it."""
    query = read_late(conn, many)
    conn.execute(query.encode())
    assert conn.execute("select owing is not null from outrider.cursor").fetchone() == (True,)
    return query


def read_parked(conn: Conn, many: int) -> str:
    conn.execute("select outrider.register('a.handler', 'handler', 'a', null, 1, 'now')")
    publish_large(conn, many)
    conn.execute(PARKED)
    return "select seq from outrider.take('a.handler', 0, 500, p_excused => 1) where seq is not null"


def read_replayed(conn: Conn, many: int) -> str:
    conn.execute("select outrider.register('a.relay', 'relay', 'a', null, 1, 'now')")
    publish_large(conn, many)
    conn.execute(PARKED)
    return (
        statement.statement("streams/relay_replayed", "outrider")
        .decode()
        .replace("%(subscription)s", "'a.relay'")
        .replace("%(limit)s", "500")
    )


def claim_jobs(conn: Conn, many: int) -> str:
    sqljobs.register(conn, "a.job")
    conn.execute(
        f"""insert into outrider.job (subscription, event_id, run_at, queue, payload)
            select 'a.job', gen_random_uuid(), now(), 'default', {LARGE} from generate_series(1, %s)""".encode(),
        [many],
    )
    return "select id from outrider.claim(gen_random_uuid(), '{a.job}', 500) where id is not null"


def claim_jobs_of_events(conn: Conn, many: int) -> str:
    conn.execute("select outrider.register('a.job', 'job', 'a', '{a.b}', 1, 'now')")
    publish_large(conn, many)
    route = "select outcome from outrider.route('a.job', 1000, 10000, '{a.b}', 'default', 0)"
    while conn.execute(route.encode()).fetchone() == ("more",):
        pass
    return "select id from outrider.claim(gen_random_uuid(), '{a.job}', 500) where id is not null"


def export_events(conn: Conn, many: int) -> str:
    publish_large(conn, many)
    conn.execute("update outrider.outbox set workspace_id = 'acme'")
    return "select place from outrider.tenant_page('acme', null, null, false, 'events', 0, 100) where line is not null"


def export_jobs(conn: Conn, many: int) -> str:
    claim_jobs(conn, many)
    conn.execute("update outrider.job set workspace_id = 'acme'")
    return "select place from outrider.tenant_page('acme', null, null, false, 'jobs', 0, 100) where line is not null"


PAYLOAD_BLOCKS = """
select sum(toast_blks_hit + toast_blks_read)::integer from pg_statio_user_tables where schemaname = 'outrider'
"""


def payload_blocks(conn: Conn, query: str) -> int:
    """The blocks of large payloads that a query reads. The fewest of three, because autovacuum reads them too."""
    found = []
    for _ in range(4):
        with conn.transaction(force_rollback=True):
            conn.execute(query.encode())
            conn.execute("select pg_stat_force_next_flush()")
        [(blocks,)] = conn.execute(PAYLOAD_BLOCKS)
        found.append(blocks)
    return int(min(after - before for before, after in pairwise(found)))


@pytest.mark.parametrize(
    "prepare",
    [
        read_fresh, read_late, read_owed, read_parked, read_replayed, claim_jobs, claim_jobs_of_events, export_events,
        export_jobs,
    ],
)  # fmt: skip
def test_what_does_not_fit_into_a_batch_is_not_unpacked(conn: Conn, prepare: Callable[[Conn, int], str]) -> None:
    """A producer's thousand events of 64 MB, stored in a few hundred kB each, were unpacked for every one that was taken."""
    query = prepare(conn, MANY)
    with conn.transaction(force_rollback=True):
        assert len(conn.execute(query.encode()).fetchall()) == 5
    of_many = payload_blocks(conn, query)
    conn.execute("analyze")
    of_many_analyzed = payload_blocks(conn, query)
    conn.execute(LEAVE_EIGHT)
    of_few = payload_blocks(conn, query)
    assert of_few > 0
    assert of_many < of_few + 2 * MANY, "to unpack one more event takes ten blocks"
    assert of_many_analyzed < of_few + 2 * MANY, "with the plan that ANALYZE leads to"
