"""Jobs, schedules and dead letters: search, actions on all that match, and what each of them needs."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import psycopg
import pytest
from tests.dashboard.conftest import Serve, act, log_in
from tests.dashboard.shop import HOSTILE, Mail, make_app

from outrider import Outrider
from outrider.dashboard import ACTIONS, User

MANY = """
insert into outrider.job (subscription, event_id, event_version, source, run_at, queue, job_key, workspace_id, payload)
select 'dash.mail', gen_random_uuid(), 1, 'sql', now() + interval '1 hour', 'bulk', 'k' || n % 2,
       case when n % 3 = 0 then 'acme' end,
       jsonb_build_object('order_id', 'o' || n, 'to', jsonb_build_object('country', 'DE'))
from generate_series(1, 300) as n
"""
BURY_JOB = """
update outrider.job set status = 'failed', waits_for = null, buried_at = now(), attempts = 3, last_error_code = 'smtp',
                        last_error = 'refused' where payload ->> 'order_id' = %s returning event_id
"""
PLACED = 'select outrider.publish(\'dash.placed\', \'{"order_id": "9", "total": "1"}\', key => \'9\')'
RUNNING = """
insert into outrider.job (subscription, event_id, event_type, seq, run_at, queue, status, waits_for, locked_by, locked_at,
                          lease_expires_at, lease_token, progress)
select 'dash.greet', o.id, o.event_type, o.seq, now(), 'default', 'in_flight', null, gen_random_uuid(), now(),
       now() + interval '1 h', 1, '{"greeted": "Ada"}' from outrider.outbox as o where o.id = %s
"""
DONE = """
insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class, result)
select 'dash.greet', o.id::text, o.id, o.seq, 0, 'confidential', '{"said": "Hello, Ada"}'
from outrider.outbox as o where o.id = %s
"""


@pytest.fixture
def many(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(MANY)


@pytest.fixture
async def nightly(shop: Outrider, dsn: str) -> str:
    app = make_app(dsn)
    app.schedule("0 3 * * *", Mail(order_id="nightly"), name="dash.nightly", time_zone="Europe/Berlin")
    async with app:
        await app.migrate()
    return "dash.nightly"


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(query.encode()).fetchall()


@pytest.mark.usefixtures("many")
async def test_jobs_are_found_by_key_tenant_and_payload(serve: Serve) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        found = (await client.get("/jobs", params={"key": "k1", "tenant": "acme"})).text
        assert "Found 50 among the oldest 301 jobs." in found
        found = (await client.get("/jobs", params={"payload": "order_id=o7; to.country=DE"})).text
        assert "Found 1 among" in found
        found = (await client.get("/jobs", params={"payload": "order_id=none"})).text
        assert "No job matches." in found
        first = (await client.get("/jobs", params={"key": "k1"})).text
        assert "The first 100 that match; there may be more." in first
        following = first.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
        assert "Found 50 among the next" in (await client.get(following)).text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/jobs?payload=x", "is not like order_id=7"),
        ("/jobs?state=done&key=k1", "Finished jobs cannot be searched"),
        ("/jobs?state=odd", "state: one of"),
        ("/jobs?key=a&after=x", "is not a position"),
        ("/jobs/act?verb=drop", "a form says one of"),
        ("/jobs/act?verb=retry&state=pending", "retry is for failed jobs"),
        ("/dead-letters/waiting?after=x", "is not the place of a waiting event"),
    ],
)
async def test_a_wrong_filter_gets_a_sentence(serve: Serve, path: str, said: str) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        found = await client.get(path)
        assert found.status_code == 400
        assert said in found.text


@pytest.mark.usefixtures("many")
async def test_all_that_match_are_cancelled_after_a_preview(serve: Serve, dsn: str) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        preview = "/jobs/act?verb=cancel&type=dash.mail&queue=bulk"
        told = (await client.get(preview)).text
        assert "Cancel: 300 jobs?" in told
        form = {"verb": "cancel", "query": "type=dash.mail&queue=bulk", "jobs": "300"}
        assert (await act(client, "/jobs/act", preview, **form)).status_code == 400, "a reason is required"
        done = await act(client, "/jobs/act", preview, **form, reason="the wrong list")
        assert "300 cancelled" in done.text
    assert rows(dsn, "select status, count(*) from outrider.job group by 1 order by 1") == [
        ("discarded", 300), ("pending", 1),
    ]  # fmt: skip
    [(by, details)] = rows(dsn, "select by, details from outrider.audit where action = 'cancel'")
    assert (by, details["jobs"], details["reason"]) == ("ada", 300, "the wrong list")
    assert details["which"]["queue"] == "bulk"


@pytest.mark.usefixtures("many")
async def test_run_now_and_retry_of_all_that_match(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(BURY_JOB, ["o7"])
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        for verb, title, said in (
            ("retry", "Retry: 1 job?", "1 pending again"),
            ("run_now", "Run now: 300 jobs?", "299 made due"),
        ):
            preview = f"/jobs/act?verb={verb}&queue=bulk"
            assert title in (await client.get(preview)).text
            done = await act(client, "/jobs/act", preview, verb=verb, query="queue=bulk", reason="test")
            assert said in done.text
    assert rows(dsn, "select count(*) from outrider.job where run_at <= clock_timestamp() and queue = 'bulk'") == [
        (300,)
    ]


@pytest.mark.usefixtures("many", "nightly")
async def test_each_action_needs_its_permission(serve: Serve, dsn: str) -> None:
    def authorize(_: object) -> User:
        return User("eve", may=frozenset({"pause"}))

    async with serve(authorize=authorize, actions=ACTIONS) as client:
        assert "All that match" not in (await client.get("/jobs")).text
        for verb in ("cancel", "run_now", "retry"):
            assert (await client.get(f"/jobs/act?verb={verb}")).status_code == 403
            assert (await act(client, "/jobs/act", "/schedules", verb=verb, reason="x")).status_code == 403
        shown = (await client.get("/schedules")).text
        assert ">Pause</button>" in shown
        assert ">Run now</button>" not in shown
        assert (await act(client, "/schedules/dash.nightly/run-now", "/schedules", reason="x")).status_code == 403
        assert "Paused" in (await act(client, "/schedules/dash.nightly/pause", "/schedules", reason="x")).text
    async with serve(authorize=authorize) as client:
        shown = (await client.get("/schedules")).text
        assert "<button" not in shown
        for path in ("/jobs/act", "/schedules/dash.nightly/pause", "/schedules/dash.nightly/resume"):
            refused = await act(client, path, "/jobs", verb="cancel", reason="x")
            assert refused.status_code == 403
    assert rows(dsn, "select count(*) from outrider.job where queue = 'bulk' and status = 'pending'") == [(300,)]


async def test_a_schedule_is_run_paused_and_resumed(serve: Serve, dsn: str, nightly: str) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        shown = (await client.get("/schedules")).text
        for text in (nightly, "0 3 * * *", "Europe/Berlin", "once", "dash.mail"):
            assert text in shown
        done = await act(client, f"/schedules/{nightly}/run-now", "/schedules", reason="the boss asks")
        [(job,)] = rows(dsn, "select event_id from outrider.job where payload ->> 'order_id' = 'nightly'")
        assert f'href="/jobs/{job}"' in done.text
        await act(client, f"/schedules/{nightly}/pause", "/schedules", reason="holidays")
        assert '<span class="state warn">paused</span>' in (await client.get("/schedules")).text
        done = await act(client, f"/schedules/{nightly}/resume", "/schedules", reason="back")
        assert "it fires at its next time" in done.text
        refused = await act(client, "/schedules/no.such/pause", "/schedules", reason="x")
        assert "there is no schedule" in refused.text
    actions = rows(
        dsn, "select action, by, details ->> 'reason' from outrider.audit where action like '%schedule' order by id"
    )
    assert actions == [
        ("run_schedule", "ada", "the boss asks"), ("pause_schedule", "ada", "holidays"), ("resume_schedule", "ada", "back"),
    ]  # fmt: skip


async def test_what_waits_behind_what(serve: Serve, events: list[str]) -> None:
    async with serve() as client:
        await log_in(client)
        shown = (await client.get("/dead-letters")).text
        assert "Not dead yet: waiting for a retry" in shown
        assert f"/dead-letters/behind/{events[1]}?subscription=dash.invoice" in shown
        behind = (await client.get(f"/dead-letters/behind/{events[1]}?subscription=dash.invoice")).text
        assert f"/event/{events[2]}" in behind
        assert "Nothing waits behind it" in (await client.get(f"/dead-letters/behind/{events[0]}")).text
        assert events[1] in (await client.get("/dead-letters/waiting")).text
        assert "Dead before" in shown


@pytest.mark.usefixtures("many")
async def test_a_dead_job_is_edited_replayed_and_discarded(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        [(first,)] = conn.execute(BURY_JOB, ["o7"]).fetchall()
        [(second,)] = conn.execute(BURY_JOB, ["o8"]).fetchall()
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        page = f"/jobs/{first}"
        assert "Edit and replay" in (await client.get(page)).text
        done = await act(
            client,
            f"/event/{first}/replay",
            page,
            subscription="dash.mail",
            payload='{"order_id": "7b"}',
            reason="typo",
        )
        assert "dash.mail: replayed" in done.text
        done = await act(client, f"/event/{second}/discard", f"/jobs/{second}", reason="test")
        assert "1 discarded" in done.text
    assert rows(dsn, f"select status, payload from outrider.job where event_id = '{first}'") == [
        ("pending", {"order_id": "7b"})
    ]


async def test_of_two_jobs_of_an_event_the_dead_one_is_edited(serve: Serve, dsn: str, events: list[str]) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for name, status in (("dash.first", "pending"), ("dash.second", "failed")):
            conn.execute("select outrider.register(%s, 'job', 'dash', '{dash.placed}')", [name])
            conn.execute(
                """insert into outrider.job (subscription, event_id, event_type, seq, run_at, queue, status, waits_for,
                                             buried_at, last_error_code, last_error)
                   select %(name)s, o.id, o.event_type, o.seq, now() + interval '1 h', 'default', %(status)s,
                          case %(status)s when 'pending' then 'time' end, case %(status)s when 'failed' then now() end,
                          'smtp', 'refused'
                   from outrider.outbox as o where o.id = %(event)s""",
                {"name": name, "status": status, "event": events[0]},
            )
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        edit = (await client.get(f"/jobs/{events[0]}")).text.partition("Edit and replay")[2]
        assert 'name="subscription" value="dash.second"' in edit


async def test_confidential_values_are_hidden_in_jobs_of_events_too(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("select outrider.register('dash.greet', 'job', 'dash', '{dash.born}')")
        [(event,)] = conn.execute(
            "select outrider.publish('dash.born', '{\"name\": \"Ada\"}', content_class => 'confidential')"
        ).fetchall()
        conn.execute(
            """insert into outrider.job (subscription, event_id, event_type, seq, run_at, queue)
               select 'dash.greet', o.id, o.event_type, o.seq, now(), 'default' from outrider.outbox as o where o.id = %s""",
            [event],
        )
    async with serve() as client:
        await log_in(client)
        shown = (await client.get(f"/jobs/{event}")).text
        assert "&#34;name&#34;" in shown
        assert "Ada" not in shown
        assert "No job matches." in (await client.get("/jobs?payload=name%3DAda")).text
    async with serve(values_up_to="restricted") as client:
        await log_in(client)
        assert "Ada" in (await client.get(f"/jobs/{event}")).text
        assert "Found 1 among" in (await client.get("/jobs?payload=name%3DAda")).text


async def test_confidential_values_are_hidden_in_a_job_with_the_name_of_its_event_type(serve: Serve, dsn: str) -> None:
    """Also in the form that edits a dead letter, and when its event is gone."""
    with psycopg.connect(dsn) as conn:
        conn.execute("select outrider.register('dash.born', 'job', 'dash', '{dash.born}')")
        [(event,)] = conn.execute(
            "select outrider.publish('dash.born', '{\"name\": \"Ada\"}', content_class => 'confidential')"
        ).fetchall()
        conn.execute(
            """insert into outrider.job (subscription, event_id, event_type, seq, run_at, queue, status, buried_at, payload)
               select o.event_type, o.id, o.event_type, o.seq, now(), 'default', 'failed', now(), o.payload
               from outrider.outbox as o where o.id = %s""",
            [event],
        )
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        shown = (await client.get(f"/jobs/{event}")).text
        assert "&#34;name&#34;" in shown
        assert "<dt>Event type</dt><dd>dash.born</dd>" in shown
        assert "Ada" not in shown
        assert "Edit and replay" not in shown
    async with serve(actions=ACTIONS, values_up_to="confidential") as client:
        await log_in(client)
        shown = (await client.get(f"/jobs/{event}")).text
        assert "Ada" in shown
        assert "Edit and replay" in shown
        with psycopg.connect(dsn) as conn:
            conn.execute("delete from outrider.outbox where id = %s", [event])
        assert "Ada" not in (await client.get(f"/jobs/{event}")).text


@pytest.mark.usefixtures("many")
async def test_hostile_filters_and_texts_are_shown_and_not_obeyed(serve: Serve, dsn: str, events: list[str]) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("update outrider.job set job_key = %s, workspace_id = %s where id %% 2 = 0", [HOSTILE, HOSTILE])
        conn.execute("update outrider.delivery set last_error = %s, last_error_code = %s", [HOSTILE, HOSTILE])
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        for path, params in (
            ("/jobs", {"key": HOSTILE}),
            ("/jobs", {"payload": f"order_id={HOSTILE}"}),
            ("/jobs/act", {"verb": "cancel", "queue": HOSTILE, "tenant": HOSTILE}),
            ("/dead-letters", {}),
            ("/dead-letters/waiting", {}),
            (f"/dead-letters/behind/{events[1]}", {"subscription": HOSTILE}),
        ):
            found = await client.get(path, params=params)
            assert found.status_code == 200, found.text
            assert not re.search(r"<script(?! src=\"/static/dashboard\.js\" defer>)", found.text), path
            assert "<img src=x" not in found.text
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", found.text), path


DEAD = """
insert into outrider.delivery (subscription, partition, seq, event_id, event_type, ordering_key, status, head, reached,
                               run_at, attempts, buried_at, last_error_code, last_error)
select 'dash.invoice', 0, o.seq, o.id, o.event_type, o.aggregate_id, 'failed', false, true, now(), 3, now(), 'late', 'late'
from outrider.outbox as o where o.id = %s
"""


def confirmed(page: str) -> dict[str, str]:
    """The hidden fields of the form that confirms."""
    form = page.partition("<h2>Confirm</h2>")[2]
    return {name: unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)}


@pytest.mark.usefixtures("many")
async def test_only_the_jobs_of_the_preview_are_acted_on(serve: Serve, dsn: str) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        page = (await client.get("/jobs/act?verb=cancel&queue=bulk")).text
        assert "Cancel: 300 jobs?" in page
        with psycopg.connect(dsn) as conn:
            conn.execute(MANY)
        headers = {"Origin": str(client.base_url).rstrip("/")}
        form = confirmed(page) | {"reason": "the wrong list"}
        done = await client.post("/jobs/act", data=form, headers=headers, follow_redirects=True)
        assert "300 cancelled" in done.text


async def test_only_the_dead_letters_of_the_preview_are_acted_on(serve: Serve, dsn: str) -> None:
    """Also those since 2 h are counted from the preview on."""
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        page = (await client.get("/dead-letters/act?verb=discard&since=2h")).text
        assert "Discard 1 dead letter?" in page
        with psycopg.connect(dsn) as conn:
            [(event,)] = conn.execute(PLACED).fetchall()
            conn.execute(DEAD, [event])
            conn.execute(
                "update outrider.delivery set buried_at = buried_at - interval '1 h' where event_id <> %s", [event]
            )
        headers = {"Origin": str(client.base_url).rstrip("/")}
        form = confirmed(page) | {"reason": "the wrong list"}
        done = await client.post("/dead-letters/act", data=form, headers=headers, follow_redirects=True)
        assert "1 discarded" in done.text
        refused = await client.post("/dead-letters/act", data=form | {"counted_at": "x"}, headers=headers)
        assert refused.status_code == 400
    assert rows(dsn, "select event_id from outrider.delivery where status = 'failed'") == [(event,)]


async def test_the_actions_of_a_group_keep_the_filter_of_the_page(serve: Serve, dsn: str) -> None:
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        page = (await client.get("/dead-letters?since=2h&event_type=dash.placed")).text
        links = re.findall(r'href="[^"]*(/dead-letters(?:/act)?\?[^"]*subscription=[^"]*)"', page)
        assert len(links) >= 3
        assert [each for each in links if "since=2h" not in each] == []


async def test_a_payload_whose_values_are_hidden_cannot_be_replaced(serve: Serve, dsn: str) -> None:
    """The page offers no form for it, but a form can be made by hand."""
    with psycopg.connect(dsn) as conn:
        [(event,)] = conn.execute(
            """select outrider.publish('dash.placed', '{"order_id": "9", "total": "4111"}', key => '9',
                                       content_class => 'confidential')"""
        ).fetchall()
        conn.execute(DEAD, [event])
    form = {"subscription": "dash.invoice", "payload": '{"order_id": "9", "total": "1"}', "reason": "x"}
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        refused = await act(client, f"/event/{event}/replay", "/", **form)
        assert refused.status_code == 403
        assert "cannot be edited here" in refused.text
    async with serve(actions=ACTIONS, values_up_to="confidential") as client:
        await log_in(client)
        assert "dash.invoice: replayed" in (await act(client, f"/event/{event}/replay", "/", **form)).text


async def test_what_a_job_of_a_confidential_event_reports_and_returns_is_hidden(serve: Serve, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("select outrider.register('dash.greet', 'job', 'dash', '{dash.born}')")
        [(running,)], [(done,)] = (
            conn.execute(
                "select outrider.publish('dash.born', '{\"name\": \"Ada\"}', content_class => 'confidential')"
            ).fetchall()
            for _ in range(2)
        )
        conn.execute(RUNNING, [running])
        conn.execute(DONE, [done])
    for level, seen in (("internal", False), ("confidential", True)):
        async with serve(values_up_to=level) as client:
            await log_in(client)
            for path, field in ((f"/jobs/{running}", "greeted"), (f"/jobs/{done}", "said"), ("/jobs", "greeted")):
                shown = (await client.get(path)).text
                assert field in shown, path
                assert ("Ada" in shown) == seen, path
