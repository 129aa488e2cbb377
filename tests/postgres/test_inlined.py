"""Rules of SQL that are functions cost nothing: the planner puts their expression in the place of the call."""

from __future__ import annotations

import psycopg
import pytest

CALLS = {
    "is_live": "select from outrider.worker as w where outrider.is_live(w.seen_at)",
    "generation_channel": "select outrider.generation_channel(c.generation) from outrider.cursor as c",
    "as_text": "select outrider.as_text(o.payload) from outrider.outbox as o",
    "claimable": "select from outrider.job as j where outrider.claimable(j)",
    "claim_at": "select outrider.claim_at(j) from outrider.job as j",
    "in_lane": "select from outrider.job as j where outrider.in_lane(j, row('a', 0, 'b', 0)::outrider.lane)",
    "in_turn": "select from outrider.job as j where outrider.in_turn(j, row('a', 0, 'b', 1)::outrider.lane)",
    "concerns": "select outrider.concerns(o, s) from outrider.outbox as o, outrider.subscription as s",
    "wanted": "select outrider.wanted(o, s, c, '{1}', true) from outrider.outbox as o, outrider.subscription as s, "
    "outrider.cursor as c",
    "receipt_key": "select outrider.receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id) "
    "from outrider.outbox as o",
    "in_workspace": "select outrider.in_workspace(o.workspace_id, o.aggregate_id) from outrider.outbox as o",
    "ordering_key": "select outrider.ordering_key('key', o.workspace_id, o.aggregate_id) from outrider.outbox as o",
    "stored_at_most": "select outrider.stored_at_most(o.payload) from outrider.outbox as o",
    "stored_bytes": "select outrider.stored_bytes(o.payload) from outrider.outbox as o",
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_inlined(database: str, name: str) -> None:
    with psycopg.connect(database) as conn:
        plan = "\n".join(line for (line,) in conn.execute(f"explain verbose {CALLS[name]}".encode()))
    assert f"{name}(" not in plan
