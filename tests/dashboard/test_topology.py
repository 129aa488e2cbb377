"""The picture of everything: contexts, events, handlers, jobs, relays, inboxes, rollups, streams; with rates and lag."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import cast

import httpx
import psycopg
import pytest
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.dashboard.market import TABLES, Ordered, make_depot, make_market
from tests.dashboard.test_contracts import board
from tests.dashboard.test_verdict import NOW, OF_ONE, WELL
from tests.streams.conftest import name, redis_server

from outrider import Outrider
from outrider.dashboard.topology import DRAWN, HEIGHT, topology
from outrider.dashboard.traffic import OTHER, SOURCES, TYPES, Traffic
from outrider.doctor import doctor
from outrider.postgres import rollups
from outrider.postgres.admin.activity import Flow
from outrider.postgres.admin.status import Position, Status
from outrider.postgres.connection import connect
from outrider.postgres.statement import statement
from outrider.streams.redis import RedisStreams

__all__ = ["name", "redis_server"]
ANNOUNCE = """select depot.publish('depot.announced', '{"truck": "t", "weight": 7}', source => 'depot')"""


@dataclass
class Two:
    market: Outrider
    depot: Outrider
    dsn: str
    stream: str


@pytest.fixture
async def two(database: str, redis_server: RedisServer, name: str) -> AsyncIterator[Two]:
    """The depot's events come to the market through a stream; the market's go into another one."""
    market, depot = make_market(database), make_depot(database)
    market.relay("market.out", RedisStreams(redis_server.url, stream=f"{name}o"), events=[Ordered])
    market.inbox("market.in", RedisStreams(redis_server.url, stream=name))
    depot.relay("depot.out", RedisStreams(redis_server.url, stream=name))
    with psycopg.connect(database) as conn:
        conn.execute(TABLES)
    async with market, depot:
        await depot.migrate()
        await market.migrate()
        async with await connect(database, autocommit=True) as session:
            for each in market.rollups:
                await rollups.install(session, each.spec(), "outrider")
        async with market.connect() as own, own.transaction():
            await market.publish(own, Ordered(order_id="1", cents=700))
        with psycopg.connect(database) as conn:
            conn.execute(ANNOUNCE)
            conn.execute("insert into parcel (truck, name) select 't1', 'p' || n from generate_series(1, 3) as n")
        await depot.drain()
        await market.drain()
    yield Two(market, depot, database, name)
    async with Redis.from_url(redis_server.url) as redis:
        await redis.delete(name, f"{name}o")


@asynccontextmanager
async def shown(two: Two) -> AsyncIterator[httpx.AsyncClient]:
    async with board(two.market) as client:
        yield client


async def test_everything_is_in_the_picture_and_links_to_its_page(two: Two) -> None:
    async with shown(two) as client:
        page = (await client.get("/topology")).text
        nodes = dict(re.findall(r'<a [^>]*href="([^"]+)"><title>([^:<]+: [a-z]+)', page))
        assert nodes == {
            "/contracts?context=market": "market: context",
            "/subscriptions/market.in": "market.in: inbox",
            "/rollups/market.trucks": "market.trucks: rollup",
            "/log?type=depot.announced": "depot.announced: event",
            "/log?type=market.ordered": "market.ordered: event",
            "/log?type=market.packed": "market.packed: event",
            "/log?type=market.parcel_added": "market.parcel_added: event",
            "/log?type=market.truck_full": "market.truck_full: event",
            "/jobs?type=market.label": "market.label: job",
            "/subscriptions/market.dock": "market.dock: handler",
            "/subscriptions/market.pack": "market.pack: handler",
            "/subscriptions/market.out": "market.out: relay",
            "/streams": f"{two.stream}o: stream",
            "/streams?inbox=market.in": f"{two.stream}: stream",
        }
        for path in nodes:
            assert (await client.get(path)).status_code == 200, path
        edges = set(re.findall(r"<title>([^<]+ → [^:<]+)", page))
        assert {
            "market → market.ordered",
            "market → market.label",
            f"{two.stream} → market.in",
            "market.in → depot.announced",
            "market.trucks → market.truck_full",
            "market.ordered → market.pack",
            "market.ordered → market.out",
            f"market.out → {two.stream}o",
        } <= edges


async def test_edges_have_live_rates_and_lag(two: Two) -> None:
    async with shown(two) as client:
        poller = client.board.poller  # type: ignore[attr-defined]
        await client.get("/topology")
        with psycopg.connect(two.dsn) as conn:
            conn.execute(
                "select outrider.publish('market.ordered', '{}', source => 'till') from generate_series(1, 30)"
            )
        with poller.watching():
            while not poller.traffic.published("market.ordered"):
                await poller.after(poller.snapshot.number)
        found = poller.traffic
        assert found.published("market.ordered", "till") == found.published("market.ordered") == found.published()
        assert found.published("market.packed") == 0
        picture = topology(poller.snapshot.status, found)
        labels = {(edge.start.name, edge.end.name): edge.label for edge in picture.edges}
        assert labels["market.ordered", "market.pack"] == "0.0/s, lag 30", (
            "what a stopped handler reads, not what comes"
        )
        assert re.fullmatch(r"[\d.]+/s", labels["till", "market.ordered"])
        assert labels["market.out", f"{two.stream}o"] == "0.0/s"
        async with two.market:
            await two.market.drain()
        with poller.watching():
            while not found.read("market.pack", "market.ordered"):
                await poller.after(poller.snapshot.number)
        labels = {
            (edge.start.name, edge.end.name): edge.label for edge in topology(poller.snapshot.status, found).edges
        }
        assert re.fullmatch(r"[1-9][\d.]*/s|0\.[1-9]/s", labels["market.ordered", "market.pack"])


def test_a_type_has_its_share_of_what_a_subscription_reads() -> None:
    """A cursor passes all types. While nothing is published, the share is that of the newest events."""
    found, log = Traffic(), [replace(_flow("a.x", "a"), events=30), replace(_flow("a.y", "a"), events=10)]
    for second, (seq, cursor, flows) in enumerate([(40, 0, log), (40, 20, []), (40, 40, []), (120, 40, [*log, *log])]):
        found.add(with_cursor(seq, cursor, second), flows)
        if second == 2:
            assert (found.read("a.handler"), found.read("a.handler", "a.x"), found.read("a.handler", "a.y")) == (
                20,
                15,
                5,
            )
            assert found.read("a.handler", "a.z") == 0
    assert found.read("a.handler", "a.x") == pytest.approx(10)
    assert Traffic().read("a.handler", "a.x") is None


def with_cursor(seq: int, cursor: int, second: int) -> Status:
    assert WELL.status is not None
    place = Position(generation=0, served_by=0, seq=cursor, lag=seq - cursor, failures=0, open_until=None, workers=())
    standing = replace(OF_ONE, positions=(place,))
    return replace(WELL.status, seq=seq, read_at=NOW + timedelta(seconds=second), subscriptions=(standing,))


async def test_ever_new_types_and_sources_are_bounded(two: Two) -> None:
    async with shown(two) as client:
        await client.get("/topology")
        poller = client.board.poller  # type: ignore[attr-defined]
        status, found = poller.snapshot.status, Traffic()

        def look(flows: list[Flow]) -> None:
            nonlocal status
            status = replace(status, seq=status.seq + len(flows), read_at=status.read_at + timedelta(seconds=1))
            found.add(status, flows)

        look([])
        for n in range(200):
            look([_flow(f"new.t{n}_{m}", "till") for m in range(20)])
            look([_flow("new.t0_0", f"s{n}_{m}") for m in range(20)])
        assert len(found.publishers) <= TYPES + 1
        assert all(len(each) <= SOURCES + 1 for each in found.publishers.values())
        assert len(found._samples) <= 61
        assert found.published() == pytest.approx(20)
        assert found.published(OTHER)
        picture = topology(status, found)
        assert all(len(nodes) <= DRAWN + 5 for _, _, nodes in picture.columns)
        assert picture.left_out >= TYPES // 2
        real, poller.traffic = poller.traffic, found
        assert (
            f"{picture.left_out} more event types and contexts are not shown." in (await client.get("/topology")).text
        )
        poller.traffic = real
        for _ in range(61):
            look([])
        look([_flow("quiet.again", "till")])
        assert "quiet.again" in found.publishers, "types that were not seen for a minute make room"
        assert found.published("quiet.again", "till") == found.published()


def _flow(event_type: str, source: str) -> Flow:
    return Flow(event_type, 1, source, None, 1, datetime.now(UTC))


async def test_nothing_overlaps(two: Two) -> None:
    async with shown(two) as client:
        await client.get("/topology")
        poller = client.board.poller  # type: ignore[attr-defined]
        picture = topology(poller.snapshot.status, poller.traffic)
        for _, x, nodes in picture.columns:
            for above, below in pairwise(nodes):
                assert below.y >= above.y + above.height
            assert all(node.x == x and node.height >= HEIGHT for node in nodes)
        ends = [edge.line[2:] for edge in picture.edges]
        assert len(set(ends)) == len(ends), "each edge ends, and has its label, at a place of its own"


async def test_an_event_shows_its_cause_its_children_and_the_way_it_came(two: Two) -> None:
    with psycopg.connect(two.dsn) as conn:
        rows = conn.execute("select event_type, id::text from outrider.outbox").fetchall()
        ids: dict[str, str] = dict(rows)
    async with shown(two) as client:
        ordered = (await client.get(f"/event/{ids['market.ordered']}")).text
        assert "Events that it led to" in ordered
        assert f'href="/event/{ids["market.packed"]}"' in ordered
        assert "market.label" in ordered
        assert "led to market.packed" in ordered
        assert "<strong>market.out</strong> was in its stream by now" in ordered
        packed = (await client.get(f"/event/{ids['market.packed']}")).text
        assert f'Came of</dt><dd><a class="id" href="/event/{ids["market.ordered"]}"' in packed
        arrived = (await client.get(f"/event/{ids['depot.announced']}")).text
        assert "<strong>market.in</strong> came in through this inbox" in arrived


async def test_an_event_is_shown_when_its_children_cannot_be_found_in_time(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(name: str, schema: str) -> bytes:
        return b"select pg_sleep(600)" if name == "admin/children" else statement(name, schema)

    monkeypatch.setattr("outrider.postgres.statement.statement", slow)
    with psycopg.connect(two.dsn) as conn:
        [(event,)] = conn.execute("select id from outrider.outbox where event_type = 'market.ordered'").fetchall()
    async with shown(two) as client:
        page = (await client.get(f"/event/{event}")).text
        assert "<strong>Not searched.</strong>" in page
        assert "market.pack" in page


async def test_asking_for_the_ends_leaves_the_sinks_of_relays_open(two: Two, redis_server: RedisServer) -> None:
    """A relay may append at that time, in the same process. A read that waits stands for it."""
    [relay] = two.market.relays
    sink = cast(RedisStreams, relay.sink)
    async with Redis.from_url(redis_server.url) as redis, shown(two) as client:
        reading = asyncio.create_task(sink.read(await sink.end(f"{two.stream}o"), 1, 60))
        while not (await redis.info("clients"))["blocked_clients"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert '<span class="state ok">the same</span>' in (await client.get("/streams")).text
        await doctor._brokers(two.market)
        await redis.xadd(f"{two.stream}o", {"event": "{}"})
        assert len((await reading).entries) == 1
    await sink.close()


async def test_relays_show_ends_and_inboxes_refused_entries(two: Two, redis_server: RedisServer) -> None:
    async with Redis.from_url(redis_server.url) as redis:
        await redis.xadd(two.stream, {"event": "<b>not JSON</b>"})
    async with two.market:
        await two.market.drain()
    async with shown(two) as client:
        page = (await client.get("/streams")).text
        assert '<span class="state ok">the same</span>' in page
        assert "Refused entries" in page
        assert "&lt;b&gt;" not in page, "an entry may hold anything: it is not shown"
        async with Redis.from_url(redis_server.url) as redis:
            await redis.delete(f"{two.stream}o")
        client.board.stream_ends._asked_at = None  # type: ignore[attr-defined]
        assert "its end is lost" in (await client.get("/streams?after=1000")).text
    async with board(two.market, values_up_to="restricted") as client:
        assert "&lt;b&gt;not JSON" in (await client.get("/streams?inbox=market.in")).text


async def test_a_rollup_shows_pending_groups_and_its_runs(two: Two) -> None:
    async with shown(two) as client:
        assert 'href="/rollups/market.trucks"' in (await client.get("/rollups")).text
        page = (await client.get("/rollups/market.trucks")).text
        assert re.search(r">t1</td><td></td><td class=\"n\">3</td>", page)
        assert "None among the last 1,000" in page
        async with await connect(two.dsn, autocommit=True) as conn:
            await rollups.tick(conn, "market.trucks", "outrider", flush=True)
        page = (await client.get("/rollups/market.trucks")).text
        assert "No row waits." in page
        assert re.search(r'processed</span></td><td class="n">3</td><td class="n">0</td><td class="n">1</td>', page)
        assert (await client.get("/rollups/no.such")).status_code == 404
