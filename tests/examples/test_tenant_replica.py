"""The two services as real processes, over either broker: killed on both sides, stitched in full traffic, tenants apart."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from examples.tenant_replica import accounts, billing, wire
from prometheus_client import CollectorRegistry
from tests.brokers import Broker, NatsServer, RedisServer
from tests.processes import DEADLINE, Begin, clean, processes, until

from outrider.config import Settings
from outrider.observe.metrics import Metrics
from outrider.signals import Buried, Ingested
from outrider.streams.codecs import EnvelopeCodec
from outrider.streams.replica import ReplicaCodec
from outrider.testing import expect

pytestmark = [pytest.mark.xdist_group("tenant_replica"), pytest.mark.verify]  # the role belongs to the server

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tenant_replica"
KINDS: dict[str, type[RedisServer] | type[NatsServer]] = {"redis": RedisServer, "nats": NatsServer}
KILLED = -9
TENANTS = ("acme", "globex")
OLD = """insert into customer (workspace_id, id, name, plan)
         select 'acme', gen_random_uuid(), 'old ' || n, 'free' from generate_series(1, 20) as n"""

Row = tuple[Any, ...]


class Services:
    """Both databases, and the processes of both services; they are looked at from outside."""

    def __init__(self, dsns: tuple[str, str], url: str, begin: Begin) -> None:
        self.url = url
        self._dsns = dict(zip(("accounts", "billing"), dsns, strict=True))
        self._begin = begin
        self._desks = {name: psycopg.connect(dsn, autocommit=True) for name, dsn in self._dsns.items()}
        self.turn = 0

    def close(self) -> None:
        for desk in self._desks.values():
            desk.close()

    def begin(self, command: str, service: str, fail: str = "") -> subprocess.Popen[str]:
        """`outrider relay` or `outrider worker`, as their README starts them."""
        module = f"examples.tenant_replica.{service}:app"
        environ = {"OUTRIDER_DSN": self._dsns[service], "TENANT_REPLICA_BROKER": self.url, "OUTRIDER_FAIL": fail}
        arguments = [sys.executable, "-m", "outrider", command, "--app", module, "--log-level", "warning"]
        return self._begin(arguments, ROOT, environ)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Both apps in this process, without a worker."""
        for app in (accounts.app, billing.app):
            context = app.settings.context
            app.relocate(Settings.load(context=context, dsn=self._dsns[context]))
        async with accounts.app, billing.app:
            await accounts.app.migrate()
            await billing.app.migrate()
            yield

    def accounts(self, query: LiteralString, params: Sequence[Any] = ()) -> list[Row]:
        return self._desks["accounts"].execute(query, params or None).fetchall()

    def billing(self, query: LiteralString, params: Sequence[Any] = ()) -> list[Row]:
        return self._desks["billing"].execute(query, params or None).fetchall()

    async def create(self, workspace_id: str, name: str, plan: str = "free") -> UUID:
        async with accounts.app.connect() as conn, conn.transaction():
            return await accounts.create(conn, workspace_id, name, plan)

    async def change(self, workspace_id: str, customer_id: UUID, version: int, name: str, plan: str = "team") -> int:
        async with accounts.app.connect() as conn, conn.transaction():
            return await accounts.change(conn, workspace_id, customer_id, version, name=name, plan=plan)

    async def change_all(self) -> None:
        """Every customer but the old ones, once, each in a transaction."""
        self.turn += 1
        query: LiteralString = "select workspace_id, id, version from customer where name not like 'old%'"
        for workspace_id, customer_id, version in self.accounts(query):
            await self.change(workspace_id, customer_id, version, f"turn {self.turn}")

    async def change_until_end_of(self, process: subprocess.Popen[str]) -> int:
        async with asyncio.timeout(DEADLINE):
            while (code := process.poll()) is None:
                await self.change_all()
                await asyncio.sleep(0.02)
        return code

    async def carry(self) -> None:
        await accounts.app.drain()
        await billing.app.drain()

    def published(self) -> list[Row]:
        return self.accounts("select id, workspace_id, aggregate_id from outrider.outbox order by seq")

    def count(self, table: LiteralString) -> int:
        return int(self.billing(f"select count(*) from {table}")[0][0])

    def invoiced(self) -> list[Row]:
        """Those of a tenant in the order in which billing has handled them."""
        return self.billing(
            "select event_id, workspace_id, customer_id::text from invoice_line order by workspace_id, number"
        )

    def customers_of_acme(self, which: LiteralString = "true") -> list[Row]:
        query: LiteralString = "select id::text, version, name from customer where workspace_id = 'acme'"
        return self.accounts(f"{query} and {which} order by 1")

    def copied(self) -> list[Row]:
        return self.billing("select aggregate_id, entity_version, payload->>'name' from customer_acme order by 1")

    def seen_by(self, workspace_id: str | None) -> list[Row]:
        """What a request of a tenant sees; None = one that does not say whose it is."""
        with self._desks["billing"].transaction(force_rollback=True):
            self._desks["billing"].execute("set local role billing_tenant")
            if workspace_id is not None:
                self.billing("select set_config('app.workspace_id', %s, true)", [workspace_id])
            return self.billing("select workspace_id, number, what from invoice_line order by 1, 2")


@pytest.fixture(params=KINDS)
def broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """One URL decides: the services are loaded anew with it."""
    with KINDS[request.param]() as server:
        monkeypatch.setenv("TENANT_REPLICA_BROKER", server.url)
        for module in (wire, accounts, billing):
            importlib.reload(module)
        yield server


@pytest.fixture
def role(other_database: str) -> Iterator[None]:
    """It outlives the database, unless somebody drops it."""
    yield
    with psycopg.connect(other_database) as conn:
        conn.execute("drop owned by billing_tenant")
        conn.execute("drop role billing_tenant")


@pytest.fixture
def services(database: str, other_database: str, broker: Broker, role: None) -> Iterator[Services]:
    with psycopg.connect(database) as conn:
        conn.execute(accounts.TABLES.encode())
        conn.execute(OLD)
    with psycopg.connect(other_database) as conn:
        conn.execute((billing.TABLES + billing.ROLE).encode())
    with processes() as begin:
        both = Services((database, other_database), broker.url, begin)
        try:
            yield both
        finally:
            both.close()


async def in_stream(name: str) -> Counter[UUID | None]:
    stream = wire.stream(name, EnvelopeCodec() if name == "accounts" else ReplicaCodec())
    await stream.open()
    try:
        return Counter([entry.id async for page in stream.tail(name, stream.start) for entry in page])
    finally:
        await stream.close()


def of_keys(events: Sequence[Row]) -> dict[tuple[str, str], list[UUID]]:
    """The events of each customer of each tenant, in their order."""
    found: dict[tuple[str, str], list[UUID]] = {}
    for event_id, workspace_id, customer_id in events:
        found.setdefault((workspace_id, customer_id), []).append(event_id)
    return found


# As its reader runs it


def test_it_runs_and_its_readme_is_true(tmp_path: Path) -> None:
    """On the embedded Postgres; over another broker with another URL."""
    for kind in KINDS.values():
        with kind() as server:
            assert played(tmp_path, server.url) == story()


@pytest.mark.usefixtures("role")
def test_it_runs_again_on_databases_of_yours(database: str, other_database: str, tmp_path: Path) -> None:
    with NatsServer() as server:
        for _ in range(2):
            assert played(tmp_path, server.url, database, other_database) == story()


def played(cwd: Path, url: str, *dsns: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.tenant_replica", *dsns],
        cwd=cwd,
        env={**clean(), "PYTHONPATH": os.pathsep.join(sys.path), "TENANT_REPLICA_BROKER": url},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


def story() -> list[str]:
    shown = re.findall(r"^```\n(\d\..*?)^```", (EXAMPLE / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(shown) == 4
    return "".join(shown).splitlines()


def test_billing_imports_nothing_of_accounts() -> None:
    assert "accounts import" not in (EXAMPLE / "billing.py").read_text()
    assert "import accounts" not in (EXAMPLE / "billing.py").read_text()


# Exactly once


@pytest.mark.parametrize(
    ("relay_dies", "worker_dies"),
    [
        ("relay.appended:kill:2", "commit.before:kill:2"),
        pytest.param("relay.taken:kill:3", "inbox.settled:kill:3", marks=pytest.mark.long),
    ],
)
async def test_kills_on_both_sides(services: Services, relay_dies: str, worker_dies: str) -> None:
    """Whoever dies, and however far it was: every change is one line in the other database, a customer's in order."""
    async with services.opened():
        for tenant in TENANTS:
            for n in range(4):
                await services.create(tenant, f"customer {n}")
        relay, worker = (
            services.begin("relay", "accounts", relay_dies),
            services.begin("worker", "billing", worker_dies),
        )
        assert await services.change_until_end_of(relay) == KILLED
        relay = services.begin("relay", "accounts")
        assert await services.change_until_end_of(worker) == KILLED
        worker = services.begin("worker", "billing")
        await services.change_all()
        published = services.published()
        until(lambda: services.count("invoice_line") >= len(published), worker)
        until(lambda: services.copied() == services.customers_of_acme("version > 1"), worker)
        assert relay.poll() is None
        assert of_keys(services.invoiced()) == of_keys(published)
        assert services.count("invoice_line") == len(published) > 24
        assert await in_stream("accounts") == Counter(row[0] for row in published)
        assert await in_stream("customers_acme") == Counter(row[0] for row in published if row[1] == "acme")
        assert services.count("outrider.owed") == 0


async def test_a_change_that_comes_too_late_tells_nobody(services: Services) -> None:
    async with services.opened():
        bob = await services.create("acme", "Bob")
        await services.change("acme", bob, 1, "Robert")
        with pytest.raises(accounts.Stale):
            await services.change("acme", bob, 1, "Bobby")
        with pytest.raises(accounts.Stale):
            await services.change("globex", bob, 2, "Mine")
        await services.carry()
        assert services.copied() == [(str(bob), 2, "Robert")]
        assert len(services.invoiced()) == 2


# A snapshot, and what comes after it


async def test_a_snapshot_is_stitched_while_everything_moves(services: Services) -> None:
    """Both read the stream already; the old customers are in the snapshot only, the new ones perhaps in neither yet."""
    async with services.opened():
        await services.create("acme", "first")
        relay, worker = services.begin("relay", "accounts"), services.begin("worker", "billing")
        until(services.copied, worker)
        stitched = asyncio.Event()

        async def traffic() -> None:
            while not stitched.is_set():
                await services.create("acme", "new")
                await services.change_all()

        moving = asyncio.create_task(traffic())
        for _ in range(5):
            await billing.load(*await accounts.snapshot("acme"))
        stitched.set()
        await moving
        until(lambda: services.copied() == services.customers_of_acme(), worker)
        assert relay.poll() is None
        assert len(services.copied()) > 20


async def test_a_replica_that_begins_with_a_snapshot(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs nothing of the stream up to the mark, and everything after it; whatever moves while both are read."""
    marked = accounts.app.current_hwm

    async def relayed(*names: str) -> None:
        for name in names:
            await services.create("acme", name)
        await accounts.app.drain()

    async def in_the_middle(stream: str, **options: Any) -> str:
        await relayed("just before")
        hwm = await marked(stream, **options)
        await relayed("just after")
        return hwm

    monkeypatch.setattr(accounts.app, "current_hwm", in_the_middle)
    came: list[Ingested] = []
    billing.app.signals.listen(lambda each: came.append(each) if isinstance(each, Ingested) else None)
    async with services.opened():
        await relayed("long before")
        hwm, rows = await accounts.snapshot("acme")
        await services.change_all()
        await relayed("long after")
        assert await billing.load(hwm, rows) == len(rows) == 22
        assert services.billing("select position from outrider.stream") == [(hwm,)]
        await billing.app.drain()
        assert services.copied() == services.customers_of_acme()
        assert [(each.events, each.known) for each in came if each.inbox == "billing.acme"] == [(4, 1)]
        assert await billing.load(hwm, rows) == 0, "what is newer stays"
        assert services.copied() == services.customers_of_acme()


# A dead letter


async def test_a_dead_letter_and_its_replay(services: Services) -> None:
    async with services.opened():
        bob = await services.create("acme", "Bob")
        await services.create("globex", "Cleo")
        await services.change("acme", bob, 1, "Bob", "galactic")
        await services.change("acme", bob, 2, "Bob", "team")
        await services.carry()
        [letter] = [each async for each in billing.app.dead_letters.each()]
        assert (letter.subscription, letter.workspace_id, letter.key) == ("billing.invoice", "acme", str(bob))
        assert letter.message == "Bury: there is no price for the plan 'galactic'"
        assert letter.event_id == services.published()[2][0]
        lines = [("acme", 1, "free for Bob"), ("acme", 2, "team for Bob")]
        assert services.seen_by("acme") == lines
        assert services.seen_by("globex") == [("globex", 1, "free for Cleo")]

        services.billing("insert into price values ('galactic', 1) returning plan")
        assert (await billing.app.dead_letters.replay()).replayed == 1
        await services.carry()
        assert services.seen_by("acme") == [*lines, ("acme", 3, "galactic for Bob")]
        [again] = await billing.app.replay(letter.event_id, subscription="billing.invoice")
        assert again.outcome == "skipped_handled"
        await services.carry()
        assert services.count("invoice_line") == 4


async def test_a_dead_letter_of_a_relay(services: Services) -> None:
    """Its copy waits for the retries, then goes on without it; the other stream and the other tenant do not wait."""
    registry = CollectorRegistry()
    metrics, happened = Metrics(accounts.app.signals, registry), list[str]()
    stop = accounts.app.signals.listen(lambda each: happened.append(type(each).__name__))

    def counted(name: str) -> float:
        found = [each for family in registry.collect() for each in family.samples if each.name == f"outrider_{name}"]
        return sum(each.value for each in found)

    async with services.opened():
        bob, cleo = await services.create("acme", "Bob"), await services.create("globex", "Cleo")
        async with accounts.app.worker(), expect(accounts.app, Buried, timeout=60):
            await services.change("acme", bob, 1, "B" * 41)
            await services.change("acme", bob, 2, "Bo")
            await services.change("globex", cleo, 1, "Cleopatra")
        await services.carry()
        [letter] = [each async for each in accounts.app.dead_letters.each()]
        assert (letter.workspace_id, letter.key, letter.attempts) == ("acme", str(bob), 2)
        assert counted("publish_failures_total") == 2
        assert counted("publish_retries_total") == 1
        published = services.published()
        assert await in_stream("accounts") == Counter(row[0] for row in published)
        for tenant in TENANTS:
            sent = [row[0] for row in published if row[1] == tenant and row[0] != letter.event_id]
            assert await in_stream(f"customers_{tenant}") == Counter(sent)
        assert services.copied() == [(str(bob), 3, "Bo")]
        payload = json.dumps({"customer_id": str(bob), "name": "B", "plan": "team"})
        await accounts.app.replay(letter.event_id, subscription=letter.subscription, payload=payload)
        await services.carry()
        assert (await in_stream("customers_acme"))[letter.event_id] == 1
        assert services.copied() == [(str(bob), 3, "Bo")], "what is newer stays"
        assert happened.count("RelayLease") >= len(accounts.app.relays)
    stop()
    metrics.close()


# Tenants


async def test_tenants_are_kept_apart(services: Services) -> None:
    """Events of both in one batch. Each has lines of its own, numbered for itself, and sees no others."""
    async with services.opened():
        for n in range(3):
            for tenant in TENANTS:
                await services.create(tenant, f"{tenant} {n}")
        await services.carry()
        for tenant in TENANTS:
            assert services.seen_by(tenant) == [(tenant, n + 1, f"free for {tenant} {n}") for n in range(3)]
        assert services.seen_by("initech") == services.seen_by("") == services.seen_by(None) == []
        assert {name for _, _, name in services.copied()} == {f"acme {n}" for n in range(3)}
        for tenant in TENANTS:
            own = [row[0] for row in services.published() if row[1] == tenant]
            assert await in_stream(f"customers_{tenant}") == Counter(own), "each has a stream of its own"


async def test_an_event_of_nobody_leaves_no_line(services: Services) -> None:
    async with services.opened():
        async with accounts.app.connect() as conn, conn.transaction():
            event = accounts.CustomerChanged(customer_id=uuid4(), name="Nemo", plan="free")
            await accounts.app.publish(conn, event)
        await services.carry()
        assert services.count("invoice_line") == 0
        [(status, error)] = services.billing("select status, last_error from outrider.delivery")
        assert (status, "row-level security" in error) == ("pending", True)
