"""What the doctor and `status` read does not grow with the log, the receipts, what is parked, or jobs."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from tests.postgres.test_plans import nodes

from outrider.postgres import connection
from outrider.postgres import statement as catalogue
from outrider.postgres.admin import diagnostics
from outrider.postgres.statement import statement

pytestmark = [pytest.mark.xdist_group("doctor"), pytest.mark.verify]

STATEMENTS = sorted(
    file.stem for file in (Path(__file__).parents[2] / "src/outrider/postgres/sql/doctor").glob("*.sql")
)
OWNED = {"context": "shop", "contexts": ["shop"], "owns": ["shop"], "roles": ["shop"]}
PARAMS = {
    "late": diagnostics.LATE,
    **diagnostics.LIMITS,
    "names": ["a.h"],
    "job_types": ["a.h", "a.i"],
    "name": "no",
    "pid": 0,
    "scan": 1000,
    **OWNED,
}
SEQUENCE = "outbox_seq"
ROWS = 100_000
FILL = f"""
set session_replication_role = replica;
insert into outrider.subscription (name, kind, context) values ('a.h', 'handler', 'a');
insert into outrider.cursor (subscription, generation, partition, seq, floor, inflight, horizon, mark_seq, mark_xid, cluster)
values ('a.h', 0, 0, 0, 0, pg_current_snapshot(), pg_current_xact_id(), 0, '0', 0);
insert into outrider.worker (id, host, pid, version, generation, subscriptions, strict)
values (gen_random_uuid(), 'h', 1, 'test', 7, '{{a.h}}', true);
insert into outrider.outbox (event_type, source, payload) select 'a.b', 'a', '{{}}' from generate_series(1, {ROWS});
insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
select 'a.h', o.id::text, o.id, o.seq, 0, 'internal' from outrider.outbox as o;
insert into outrider.delivery
    (subscription, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at)
select 'a.h', 0, {ROWS} + n, gen_random_uuid(), 'a.b', 'k' || n, case n % 2 when 0 then 'failed' else 'pending' end,
       n = 1, true, now() - interval '1 day'
from generate_series(1, {ROWS}) as n;
insert into outrider.job (subscription, event_id, run_at, queue, status, waits_for)
select 'a.h', gen_random_uuid(), now() - interval '1 day', 'q', case n % 4 when 0 then 'failed' else 'pending' end,
       case n % 4 when 1 then 'time' when 2 then 'key' end
from generate_series(1, {ROWS}) as n
"""


async def test_no_look_reads_a_whole_table(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(FILL.encode())
        monkeypatch.setattr(catalogue, "statement", lambda *of: b"explain (analyze, format json) " + statement(*of))
        async with await connection.connect(database, autocommit=True) as conn:
            for analyzed in (False, True):
                if analyzed:
                    owner.execute("analyze outrider.outbox, outrider.event_handled, outrider.delivery, outrider.job")
                for name in (*STATEMENTS, "admin/standings", "admin/subscriptions"):
                    if "/" in name:
                        async with catalogue.looking(conn, "outrider") as look:
                            [[[plan]]] = await look.rows(name, {"most": 10, "name": None})
                    else:
                        given = b"%(" in statement(f"doctor/{name}", "outrider")
                        [[[plan]]] = await diagnostics.look(conn, name, "outrider", PARAMS if given else None)
                    for node in nodes(plan["Plan"]):
                        relation = node.get("Relation Name", "")
                        if (
                            relation.startswith(("outbox_s", "outbox_t", "event_handled", "delivery", "job"))
                            and relation != SEQUENCE
                        ):
                            assert node["Node Type"] in ("Index Scan", "Index Only Scan"), (name, analyzed, node)
                            read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
                            assert read * node["Actual Loops"] <= 10_000, (name, analyzed, node)
