"""Every page shows real data; what it shows is never obeyed; actions do what they say, and the audit has them."""

from __future__ import annotations

import asyncio
import json
import re
from html import unescape

import psycopg
import pytest
from tests.dashboard.conftest import Serve, act, log_in
from tests.postgres.roles.house import opened

from outrider import Outrider
from outrider.dashboard import ACTIONS

EDITED = """
insert into outrider.delivery (subscription, partition, seq, event_id, event_type, ordering_key, status, head, reached,
                               run_at, payload)
select 'dash.invoice', 0, o.seq, o.id, o.event_type, o.aggregate_id, 'pending', false, true, now(), '{"card": "4111"}'
from outrider.outbox as o where o.id = %s
"""
BURIED = """
insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached, run_at, attempts,
                               buried_at, last_error_code, last_error)
select 'dash.search', 0, o.seq, o.id, o.event_type, 'failed', false, false, now(), 1, now(), 'slow', 'slow'
from outrider.outbox as o where o.id = %s
"""
PAGES = {
    "/": ["dash.invoice", "Longest wait", "What delays it"],
    "/topology": ["dash.placed", "dash.search", "lag 4", "dash.mail"],
    "/subscriptions": ["dash.search", "no worker serves it", "Open transactions"],
    "/subscriptions/dash.invoice": [
        "the bank does not answer",
        "Wait behind it",
        "connection_error",
    ],
    "/subscriptions/dash.search": ["2 partitions"],
    "/subscriptions/dash.mail": ["only enqueued", "it is paused"],
    "/log": ["dash.placed", "dead letter"],
    "/log?key=2": ["dash.invoice"],
    "/log?type=no.such": ["No event matches"],
    "/log?since=2h&until=2999-01-01 10:00": ["dash.placed"],
    "/log?until=2001-01-01T10:00:00%2B02:00": ["No event matches"],
    "/contracts": ["dash.placed", "dash.invoice"],
    "/contracts/dash.placed": ["Version 1", "total"],
    "/dead-letters": ["dash.invoice", "bury", "fingerprint"],
    "/dead-letters?subscription=dash.invoice": ["The first 1 of them"],
    "/dead-letters?code=nothing": ["No dead letter matches"],
    "/jobs": ["dash.mail", "its type is paused", "1 pending"],
    "/jobs?state=done": ["No job matches"],
    "/workers": ["No worker was seen"],
    "/schedules": ["No schedule is registered"],
    "/streams": ["no relay and no inbox"],
    "/rollups": ["There is no rollup"],
    "/audit": ["pause", "dash.mail"],
}


async def test_every_page_shows_what_there_is(serve: Serve, events: list[str]) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        for path, wanted in PAGES.items():
            found = await client.get(path)
            assert found.status_code == 200, (path, found.text)
            for text in wanted:
                assert text in found.text, path
        for event in events:
            found = await client.get(f"/event/{event}")
            assert found.status_code == 200
            assert "published by" in found.text


async def test_the_log_until_a_time_says_that_backdated_events_are_elsewhere(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(
            """update outrider.outbox set occurred_at = '2020-01-01', aggregate_id = 'imported'
               where seq = (select max(seq) from outrider.outbox)"""
        )
    async with serve() as client:
        await log_in(client)
        shown = (await client.get("/log?until=2020-01-02")).text
        assert "imported" not in shown
        link = re.search(r'href="([^"]+)">Search from the newest event on', shown)
        assert link is not None
        shown = (await client.get(unescape(link[1]))).text
        assert "imported" in shown
        assert "Search from the newest" not in shown
        assert "Search from the newest" not in (await client.get("/log?until=2999-01-01")).text


async def test_an_event_shows_its_life_at_every_subscriber(serve: Serve, events: list[str]) -> None:
    async with serve() as client:
        await log_in(client)
        second = (await client.get(f"/event/{events[2]}")).text
        assert "waits behind an event of its key" in second
        assert f"/event/{events[1]}" in second
        dead = (await client.get(f"/event/{events[3]}")).text
        order = [dead.index(text) for text in ("published by", "attempt 1 failed", "became a dead letter")]
        assert order == sorted(order)


async def test_hostile_texts_are_shown_and_not_obeyed(serve: Serve, events: list[str]) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client, "<script>name</script>")
        for path in (*PAGES, *(f"/event/{event}" for event in events), "/log?type=<script>x</script>"):
            text = (await client.get(path)).text
            assert not re.search(r"<script(?! src=\"/static/dashboard\.js\" defer>)", text), path
            assert "<img src=x" not in text
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text), path
        dead = (await client.get(f"/event/{events[3]}")).text
        assert "&lt;script&gt;window.owned" in dead
        assert "\\u202e" in dead


async def test_only_the_first_64_kib_of_a_payload_are_sent(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        [(event,)] = conn.execute(
            "select outrider.publish('dash.placed', jsonb_build_object('order_id', repeat('x', 200000), 'total', '1'))"
        ).fetchall()
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        found = await client.get(f"/event/{event}")
        assert found.status_code == 200
        assert found.text.count("x") < 70_000
        assert "… (cut)" in found.text


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("/nowhere", 404, "There is no such page"),
        ("/event/01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a", 404, "there is no event"),
        ("/event/x", 404, "not the id of an event"),
        ("/jobs/01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a", 404, "no trace of the job"),
        ("/jobs?type=no.such", 404, "there is no job type"),
        ("/jobs?state=odd", 400, "state: one of"),
        ("/log?before=x", 400, "is not a position"),
        ("/log?since=never", 400, "since: never is neither a time"),
        ("/log?id=x", 404, "not the id of an event"),
        ("/dead-letters?since=never", 400, "since:"),
        ("/subscriptions/no.such", 404, "There is no subscription"),
        ("/runs/none", 400, "the audit has it"),
        ("/static/../site.py", 404, ""),
        ("/log/", 404, ""),
        ("/log?key=a%00b", 400, "U+0000"),
        ("/subscriptions/a%00b", 400, "U+0000"),
    ],
)
async def test_a_wrong_address_gets_a_sentence(serve: Serve, path: str, code: int, said: str) -> None:
    async with serve() as client:
        await log_in(client)
        found = await client.get(path)
        assert found.status_code == code
        assert said in found.text


async def test_log_pages_continue_where_the_last_one_ended(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("select outrider.publish('dash.many', '{}') from generate_series(1, 120)")
    async with serve() as client:
        await log_in(client)
        seen: list[str] = []
        path: str | None = "/log?type=dash.many"
        while path is not None:
            page = (await client.get(path)).text
            seen += re.findall(r'/event/([0-9a-f-]{36})"', page)
            found = re.search(r'rel="next" href="([^"]+)"', page)
            path = found[1].replace("&amp;", "&") if found else None
        assert len(seen) == len(set(seen)) == 120


async def test_a_replay_heals_a_dead_letter_and_is_audited(
    serve: Serve, shop: Outrider, events: list[str], dsn: str
) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client, "ada")
        page = f"/event/{events[3]}"
        assert "Say why" in (await act(client, f"{page}/replay", page, subscription="dash.invoice", reason=" ")).text
        done = await act(client, f"{page}/replay", page, subscription="dash.invoice", reason="the card is valid")
        assert "dash.invoice: replayed" in done.text
        async with shop:
            await shop.drain()
        assert "replayed by ada" in (await client.get(page)).text
        assert "the card is valid" in (await client.get("/audit")).text
    with psycopg.connect(dsn) as conn:
        assert conn.execute("select count(*) from outrider.delivery where status = 'failed'").fetchone() == (0,)
        assert conn.execute("select by from outrider.audit where action = 'replay'").fetchall() == [("ada",)]


async def test_an_edited_payload_reaches_the_handler(serve: Serve, shop: Outrider, events: list[str], dsn: str) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        page = f"/event/{events[3]}"
        form = {"subscription": "dash.invoice", "reason": "wrong total"}
        refused = await act(client, f"{page}/replay", page, payload="{", **form)
        assert "is not JSON" in refused.text
        refused = await act(client, f"{page}/replay", page, payload='{"order_id": 1}', **form)
        assert "nothing was replayed" in refused.text
        done = await act(client, f"{page}/replay", page, payload='{"order_id": "3",\r\n "total": "1.00"}', **form)
        assert "dash.invoice: replayed" in done.text
        async with shop:
            await shop.drain()
        assert "with another payload" in (await client.get(page)).text


async def test_hidden_characters_survive_an_edit(serve: Serve, dsn: str) -> None:
    payload = {"order_id": "9\x7f\x85\u202e\U000e0041", "total": "1 \u20ac \U0001f600"}
    with psycopg.connect(dsn) as conn:
        [(event,)] = conn.execute("select outrider.publish('dash.placed', %s::jsonb)", [json.dumps(payload)]).fetchall()
        conn.execute(BURIED, [event])
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        page = f"/event/{event}"
        field = re.search("<textarea[^>]*>([^<]*)<", (await client.get(page)).text)
        assert field is not None
        text = unescape(field[1])
        assert "\U0001f600" in text
        assert not re.search("[\x7f-\x9f\u202e\U000e0041]", text)
        assert json.loads(text) == payload
        form = {"subscription": "dash.search", "reason": "x", "payload": text.replace("1 ", "2 ")}
        assert "dash.search: replayed" in (await act(client, f"{page}/replay", page, **form)).text
    with psycopg.connect(dsn) as conn:
        kept = conn.execute("select payload from outrider.delivery where event_id = %s", [event]).fetchone()
    assert kept == ({"order_id": payload["order_id"], "total": "2 \u20ac \U0001f600"},)


async def test_a_payload_that_is_not_shown_whole_cannot_be_edited(serve: Serve, dsn: str) -> None:
    """As text on many lines it is longer than in the database."""
    with psycopg.connect(dsn) as conn:
        [(event,)] = conn.execute(
            "select outrider.publish('dash.placed', (select jsonb_object_agg('k' || n, 1) from generate_series(1, 5000) n))"
        ).fetchall()
        conn.execute(BURIED, [event])
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        shown = (await client.get(f"/event/{event}")).text
        assert "… (cut)" in shown
        assert "Act on its dead letters" in shown
        assert "Edit and replay" not in shown


async def test_a_discard_of_all_that_match_shows_their_number_first(serve: Serve, dsn: str) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        preview = "/dead-letters/act?verb=discard&subscription=dash.invoice"
        assert "Discard 1 dead letter?" in (await client.get(preview)).text
        done = await act(
            client,
            "/dead-letters/act",
            preview,
            verb="discard",
            query="subscription=dash.invoice",
            letters="1",
            reason="a test",
        )
        assert "1 discarded" in done.text
        assert "There are no dead letters" in (await client.get("/dead-letters")).text
    with psycopg.connect(dsn) as conn:
        found = conn.execute("select by, details ->> 'reason' from outrider.audit where action = 'discard'").fetchall()
        assert found == [("ada", "a test")]


async def test_jobs_are_cancelled_and_run_now(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        [(late,)] = conn.execute(
            "select id from outrider.enqueue('dash.mail', '{\"order_id\": \"5\"}', run_at => now() + interval '1 day') as id"
        ).fetchall()
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        page = f"/jobs/{late}"
        assert "runs as soon as" in (await act(client, f"{page}/run-now", page, reason="a customer waits")).text
        assert "cancelled" in (await act(client, f"{page}/cancel", page, reason="a mistake")).text


async def test_an_event_is_withdrawn_and_a_subscription_resumed(serve: Serve, events: list[str]) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        page = f"/event/{events[1]}"
        assert "dash.invoice: withdrawn" in (await act(client, f"{page}/withdraw", page, reason="wrong price")).text
        assert "withdrawn by ada" in (await client.get(page)).text
        page = "/subscriptions/dash.mail"
        assert "Resumed" in (await act(client, f"{page}/resume", page, reason="mended")).text


async def test_it_reads_as_the_dashboard_and_acts_as_the_operator(serve: Serve, events: list[str], dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as owner, opened(owner) as house:
        logins = {name: house.dsn(name) for name in ("dashboard", "operator")}
        async with serve(actions=ACTIONS, dsn=logins["dashboard"], operator_dsn=logins["operator"]) as client:
            await log_in(client)
            for path in PAGES:
                assert (await client.get(path)).status_code == 200, path
            page = f"/event/{events[3]}"
            assert "dash.invoice: replayed" in (await act(client, f"{page}/replay", page, reason="x")).text
        async with serve(actions=ACTIONS, dsn=logins["dashboard"]) as client:
            await log_in(client)
            refused = await act(client, "/subscriptions/dash.search/pause", "/", reason="x")
            assert "only an operator may do this" in refused.text
        roles = owner.execute("select role from outrider.audit where action = 'replay'").fetchall()
        assert roles == [(house.login("operator"),)]


async def test_its_sessions_cannot_write_and_end_slow_statements(serve: Serve) -> None:
    async with serve(patient=False) as client, client.board.database.reading() as conn:  # type: ignore[attr-defined]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await conn.execute("create table public.x (y int)")
        [limit] = await (await conn.execute("show statement_timeout")).fetchone()
        assert limit == "3s"


@pytest.mark.parametrize("content_class", ["confidential", "legal_hold"])
@pytest.mark.parametrize(("level", "seen"), [("internal", False), ("confidential", True)])
async def test_values_of_a_confidential_payload_are_hidden(
    serve: Serve, dsn: str, level: str, seen: bool, content_class: str
) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("select outrider.allow_content_class('legal_hold', 'confidential')")
        [(event,)] = conn.execute(
            """select outrider.publish('dash.secret', '{"name": "Ada", "cards": [{"number": "4111"}, 7]}',
                                       content_class => %s)""",
            [content_class],
        ).fetchall()
    async with serve(values_up_to=level) as client:
        await log_in(client)
        found = (await client.get(f"/event/{event}")).text
        assert "cards" in found
        assert "number" in found
        assert ("4111" in found, "Ada" in found, "values are hidden" in found) == (seen, seen, not seen)


async def test_payloads_in_the_audit_are_without_values_too(serve: Serve, dsn: str) -> None:
    """Also in the rows that it keeps of what was withdrawn, and in receipts."""
    with psycopg.connect(dsn) as conn:
        conn.execute(
            """insert into outrider.audit (by, action, details)
               values ('ada', 'edit', '{"payload": {"card": "4111"}, "before": {"card": "4222"}, "reason": "typo"}'),
                      ('ada', 'force_replay', '{"receipt": {"seq": 77, "result": {"card": "4222"}}}')"""
        )
        [(event,)] = conn.execute(
            """select outrider.publish('dash.placed', '{"order_id": "9", "total": "1"}', key => '9',
                                       content_class => 'confidential')"""
        ).fetchall()
        conn.execute(EDITED, [event])
        conn.execute("select outrider.withdraw(%s, 'ada', 'a test')", [event])
        [(kept,)] = conn.execute("select details ->> 'owed' from outrider.audit where action = 'withdraw'").fetchall()
        assert "4111" in kept
    for level, seen in (("internal", False), ("restricted", True)):
        async with serve(values_up_to=level) as client:
            await log_in(client)
            found = (await client.get("/audit")).text
            assert "card" in found
            assert ("4111" in found, "4222" in found) == (seen, seen)


async def test_an_action_that_changes_nothing_is_not_called_done(serve: Serve, events: list[str], dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        [(job,)] = conn.execute("select event_id from outrider.job").fetchall()
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        handled = await act(client, f"/event/{events[0]}/replay", "/", reason="x", subscription="dash.search")
        cancelled = await act(client, f"/jobs/{job}/cancel", "/", reason="x")
        again = await act(client, f"/jobs/{job}/run-now", "/", reason="x")
        nothing = await act(
            client, "/dead-letters/act", "/", verb="discard", query="subscription=dash.search", reason="x"
        )
        jobs = await act(client, "/jobs/act", "/", verb="retry", query="type=dash.mail", reason="x")
        assert "Done." in cancelled.text
        for shown in (handled, again, nothing, jobs):
            assert "Nothing was done." in shown.text or "Not done: " in shown.text, shown.text
            assert "Done." not in shown.text


async def test_a_long_replay_can_be_stopped(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("select outrider.publish('dash.placed', '{}') from generate_series(1, 50)")
        conn.execute(
            """insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached,
                                              run_at, attempts, buried_at, last_error_code, last_error)
               select 'dash.search', 0, o.seq, o.id, o.event_type, 'failed', false, false, now(), 1, now(), 'slow', 'slow'
               from outrider.outbox as o where o.seq > 4"""
        )
    async with serve(actions=["replay"]) as client:
        await log_in(client)
        form = {"verb": "replay", "query": "subscription=dash.search", "letters": "50", "rate": "0.1", "reason": "x"}
        begun = await act(client, "/dead-letters/act", "/dead-letters/act?verb=replay", **form)
        assert "Under way" in begun.text
        assert "1 of 50" in begun.text
        page = begun.url.path
        await act(client, f"{page}/stop", page)
        while "Stopped before the last of them" not in (found := await client.get(page)).text:
            assert "Stopping" in found.text


async def test_the_statement_of_an_open_transaction_has_no_values(serve: Serve, dsn: str) -> None:
    """It may contain a payload."""
    async with serve() as client, asyncio.timeout(30):
        await log_in(client)
        with psycopg.connect(dsn) as other:
            other.execute(
                """select outrider.publish('dash.secret', '{"card": "4111"}', content_class => 'restricted')"""
            )
            watched = client.board.poller  # type: ignore[attr-defined]
            for path in ("/subscriptions", "/subscriptions/dash.audit"):
                shown = ""
                with watched.watching():
                    while "outrider.publish(…, …, content_class" not in shown:
                        await watched.after(watched.snapshot.number)
                        shown = (await client.get(path)).text
                        assert "4111" not in shown
            other.rollback()
