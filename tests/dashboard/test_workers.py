"""The page of the workers, with a real one: what it runs, what fails there, and its generation beside the one before."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

import psycopg
import pytest
from tests.dashboard.conftest import Serve, log_in

from outrider import Event, Outrider, RetryPolicy
from outrider.dashboard import history
from outrider.postgres.admin import activity

PUBLISH = """
select outrider.publish('dash.printed', jsonb_build_object('order_id', n::text), key => n::text)
from generate_series(1, 10) as n
"""


class Printed(Event, type="dash.printed", key="order_id"):
    order_id: str


async def test_the_page_shows_a_worker_what_it_runs_and_what_fails_there(
    serve: Serve, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "EVERY", timedelta(0))
    begun, go = asyncio.Event(), asyncio.Event()
    app = Outrider(context="dash", dsn=dsn, generation=2)

    @app.handler(Printed, name="dash.slow")
    async def slow(event: Printed) -> None:
        begun.set()
        await go.wait()

    @app.handler(Printed, name="dash.broken", retry=RetryPolicy(base="1h", cap="1h"))
    async def broken(event: Printed) -> None:
        raise ConnectionError("the printer is <b>off</b>")

    async with app, serve() as client:
        await app.migrate()
        await log_in(client)
        poller = client.board.poller  # type: ignore[attr-defined]
        async with app.worker() as worker, asyncio.timeout(60):
            with psycopg.connect(dsn) as conn:
                conn.execute(PUBLISH)
            await begun.wait()
            row = ""
            with poller.watching():
                while "connection_error" not in row or "dash.slow, for" not in row:
                    await worker.presence.look()
                    await poller.after(poller.snapshot.number)
                    page = (await client.get("/workers")).text
                    row = page.partition("<tbody>")[2].partition("</tbody>")[0]
            assert '<span class="state ok">running</span>' in row
            assert re.search(r'data-label="Generation">2</td>', row)
            assert "<td>notifications</td>" in row
            assert 'title="dash.broken, dash.slow">2</span>' in row
            assert re.search(r"dash\.slow, for <time [^>]+data-age>", row)
            assert re.search(r"dash\.broken: connection_error, \d+ in a row, for <time", row)
            assert "the printer is &lt;b&gt;off" in row
            generations = page.partition("<h2>Generations</h2>")[2]
            assert re.search(r'<td>dash\.slow</td><td class="n">2</td><td class="n">2</td>', generations)
            assert re.search(r'<td>dash\.slow</td><td class="n">0</td>.*?</tr>', generations, re.DOTALL)
            go.set()
            with poller.watching():
                while (seen := poller.snapshot.status.workers[0]).handled < 10:
                    await worker.presence.look()
                    await poller.after(poller.snapshot.number)
            assert (seen.handled, seen.failed) == (10, 10)
            assert (poller.history._samples[-1].failed, activity.Sample.of(poller.snapshot.status).handled) == (10, 10)
        with poller.watching():
            number = poller.snapshot.number
            while poller.snapshot.number < number + 2:
                await poller.after(poller.snapshot.number)
        assert "No worker was seen within a day." in (await client.get("/workers")).text, "it has signed off"
