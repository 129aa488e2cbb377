"""How the pages tell things: keys as they were published, spans of time, what an event waits for now, unexpected errors."""

from __future__ import annotations

import re

import psycopg
import pytest
from tests.dashboard.conftest import Serve, act, log_in

from outrider import Outrider
from outrider.dashboard import ACTIONS, text
from outrider.dashboard.text import age
from outrider.dashboard.topology import topology
from outrider.dashboard.traffic import Traffic
from outrider.postgres.admin import waiting
from outrider.postgres.admin.status import status
from outrider.postgres.connection import connect

OF_TENANT = """
select outrider.publish('dash.placed', '{"order_id": "7", "total": "9.90"}', key => '7', workspace_id => 'acme')
"""
CLAIMED = """
with worker as (insert into outrider.worker (id, host, pid, version, generation, subscriptions)
                values (gen_random_uuid(), 'here', 7, '1', 0, '{}') returning id)
insert into outrider.job (subscription, event_id, event_type, seq, run_at, queue, status, waits_for, locked_by, locked_at,
                          lease_expires_at, lease_token)
select 'dash.pack', o.id, o.event_type, o.seq, now(), 'default', 'in_flight', null, worker.id, now(),
       now() + interval '1 h', 1
from outrider.outbox as o, worker where o.id = %s
"""
UNABLE = """
insert into outrider.worker (id, host, pid, version, generation, subscriptions, unable, reported_at, report)
values (gen_random_uuid(), 'here', 7, '1', 0, '{dash.search}', '{dash.search}', now(),
        '{"doing": null, "troubles": [], "unknown": {"dash.search": ["dash.returned", "dash.placed"]}}')
"""
OTHERS = "select outrider.publish('dash.other', '{}') from generate_series(1, 7)"


def test_a_payload_that_is_too_long_to_be_edited_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search calls a function for each hidden character, and a payload may have millions."""
    monkeypatch.setattr(text, "_UNUSUAL", None)
    assert text.editable("\u200b" * (text.LONGEST + 1)) is None
    monkeypatch.undo()
    assert text.editable("\u200b" * (text.LONGEST // 6)) == "\\u200b" * (text.LONGEST // 6)
    assert text.editable("\u200b" * (text.LONGEST // 6 + 1)) is None
    assert text.editable("") is text.editable(None) is None


async def test_a_key_that_waits_is_shown_as_it_was_published(serve: Serve, shop: Outrider, dsn: str) -> None:
    """The ordering key in the database has the tenant in front of it."""
    with psycopg.connect(dsn) as conn:
        conn.execute(OF_TENANT)
    async with shop:
        await shop.drain()
    async with serve() as client:
        await log_in(client)
        for path in ("/dead-letters", "/dead-letters/waiting", "/subscriptions/dash.invoice"):
            shown = (await client.get(path)).text
            assert "4:acme:7" not in shown, path
            assert '<td data-label="Key">7 <small>of acme</small></td>' in shown, path
    async with await connect(dsn, autocommit=True) as session:
        found = await waiting.events(session, "outrider", subscription="dash.invoice")
    assert {(each.key, each.workspace_id) for each in found} == {("2", None), ("7", "acme")}


async def test_what_an_event_waits_for_ends_its_timeline(serve: Serve, events: list[str]) -> None:
    async with serve() as client:
        await log_in(client)
        held = (await client.get(f"/event/{events[2]}")).text.partition("What happened")[2]
        waits = held.index('<span class="when">now</span><span class="what"><strong>dash.invoice</strong> waits behind')
        assert held.index("published by") < waits
        assert f'href="/event/{events[1]}"' in held[waits:]


async def test_the_history_of_a_job_says_what_was_done_by_whom(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        [(job,)] = conn.execute(
            """update outrider.job set status = 'failed', waits_for = null, buried_at = now(), attempts = 3,
                   last_error_code = 'smtp', last_error = 'refused' returning event_id"""
        ).fetchall()
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        await act(client, f"/event/{job}/replay", f"/jobs/{job}", subscription="dash.mail", reason="the server is back")
        told = (await client.get(f"/jobs/{job}")).text.partition("What happened")[2]
        assert told.index("enqueued by") < told.index("replayed by ada")


async def test_positions_of_other_events_are_no_backlog(shop: Outrider, dsn: str) -> None:
    """The cursor of an idle handler stays where it is. What it does not take is nothing that it owes."""
    with psycopg.connect(dsn) as conn:
        conn.execute("select outrider.register('dash.idle', 'reader', 'dash', array['dash.rare'])")
        conn.execute(OTHERS)
    async with await connect(dsn, autocommit=True) as session:
        found = await status(session, "outrider")
    standings = {each.name: each for each in found.subscriptions}
    assert standings["dash.idle"].lag > 0
    assert not standings["dash.idle"].is_behind
    assert standings["dash.audit"].is_behind
    edges = {edge.end.name: edge for edge in topology(found, Traffic()).edges}
    assert (edges["dash.idle"].label, edges["dash.idle"].tone) == ("", "")
    assert edges["dash.audit"].tone == "behind"


async def test_a_red_node_says_why(shop: Outrider, dsn: str) -> None:
    del shop
    async with await connect(dsn, autocommit=True) as session:
        found = await status(session, "outrider")
    nodes = {node.name: node for _, _, column in topology(found, Traffic()).columns for node in column}
    assert (nodes["dash.search"].tone, nodes["dash.search"].note) == ("bad", "no worker")
    assert (nodes["dash.mail"].tone, nodes["dash.mail"].note) == ("bad", "paused, no worker, 1 waiting")
    assert nodes["dash.audit"].tone == ""


async def test_an_unexpected_error_is_a_page(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise ValueError("secret details")

    monkeypatch.setattr("outrider.postgres.admin.schedules.listing", fails)
    async with serve() as client:
        await log_in(client)
        found = await client.get("/schedules")
    assert found.status_code == 500
    assert "The log of the dashboard has the error." in found.text
    assert "secret details" not in found.text
    assert "script-src 'self'" in found.headers["Content-Security-Policy"]


async def test_how_long_something_has_lasted_is_not_told_as_a_moment(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(
            "update outrider.subscription set paused_at = now() - interval '10 min 1 s' where name = 'dash.mail'"
        )
    async with serve() as client:
        await log_in(client)
        shown = (await client.get("/subscriptions")).text
    assert re.search(
        r"it is paused, for <time datetime=\"[^\"]+\" title=\"since [^\"]+\" data-age>10 min</time>", shown
    )
    assert "since <time" not in shown
    assert age(None) == "–"


async def test_a_retry_is_due_from_its_time_on(serve: Serve, dsn: str) -> None:
    async with serve() as client:
        await log_in(client)
        for path in ("/dead-letters", "/subscriptions/dash.invoice"):
            for run_at, told in (
                ("now() - interval '1 d'", "due now"),
                ("now() + interval '90 s'", "in 8[0-9] s|in 90 s"),
            ):
                with psycopg.connect(dsn) as conn:
                    conn.execute(f"update outrider.delivery set run_at = {run_at} where head".encode())
                page = (await client.get(path)).text
                [shown] = re.findall(r'data-label="Next try"><time [^>]*data-due>([^<]*)<', page)
                assert re.fullmatch(told, shown), path


async def test_types_that_no_worker_knows_are_named(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(UNABLE)
    async with serve() as client:
        await log_in(client)
        for path in ("/subscriptions", "/subscriptions/dash.search"):
            shown = (await client.get(path)).text
            assert "its workers do not all know dash.placed, dash.returned" in shown, path
            assert "unknown types" in shown


async def test_the_life_of_an_event_has_when_each_subscription_took_it(
    serve: Serve, events: list[str], dsn: str
) -> None:
    """A handler takes and handles it in one transaction. What it has not handled, it took when it failed or was held up."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select outrider.register('dash.pack', 'job', 'dash', '{dash.placed}')")
        conn.execute(CLAIMED, [events[2]])
        async with serve(actions=ACTIONS) as client:
            await log_in(client)
            assert "<strong>dash.search</strong> taken and handled" in (await client.get(f"/event/{events[0]}")).text
            failed = (await client.get(f"/event/{events[1]}")).text
            steps = ["published by", "<strong>dash.invoice</strong> taken<", "attempt 1 failed", "waits for a retry"]
            places = [failed.rindex(step) for step in steps]
            assert places == sorted(places)
            held = (await client.get(f"/event/{events[2]}")).text
            assert "<strong>dash.invoice</strong> taken<" in held
            assert "<strong>dash.pack</strong> taken: a job<" in held
            assert "<strong>dash.pack</strong> claimed by here:7<" in held
            page = f"/event/{events[0]}"
            conn.execute("select outrider.outbox_replay(%s, null, 'ada', 'dash.search', true)", [events[0]])
            again = (await client.get(page)).text.partition("What happened")[2]
            assert "replayed by ada" in again
            assert "<strong>dash.search</strong> taken<" not in again, "that it was replayed is not when it was taken"
