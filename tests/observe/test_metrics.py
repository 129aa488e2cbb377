"""Every metric is seen to move, by real workers, jobs, brokers and rollups; Prometheus and OpenTelemetry say the same."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from prometheus_client import CollectorRegistry
from psycopg.conninfo import make_conninfo
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.cli.conftest import Run, Start
from tests.observe.shop import LATER, Bill, Mail, Paid, Placed, make_due, publish
from tests.processes import until as process_until
from tests.relay.test_relay import Refusing
from tests.rollup import archive

from outrider import Bury, Event, HandlerContext, Outrider
from outrider.cli.serve import ServeOptions
from outrider.errors import ConfigError
from outrider.observe import exposed, vocabulary
from outrider.observe.metrics import Metrics, PrometheusInstruments
from outrider.observe.otel_metrics import OtelMetrics
from outrider.observe.vocabulary import METRICS, STATE
from outrider.postgres.admin import status
from outrider.postgres.connection import AsyncSession
from outrider.signals import BrokerUp, LeasesRenewed, ListenerDown, ListenerUp, Relayed, Signals
from outrider.streams import EnvelopeCodec, RedisLease, RedisStreams
from outrider.testing import expect

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Arrived(Event, type="seen.arrived"):
    n: int = 0


def of_prometheus(registry: CollectorRegistry) -> Series:
    """Counters and gauges by their value, histograms by how much was counted."""
    found: Series = {}
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith(("_created", "_bucket", "_sum")):
                found[family.name, frozenset(sample.labels.items())] = sample.value
    return found


def of_otel(reader: InMemoryMetricReader) -> Series:
    found: Series = {}
    data: Any = reader.get_metrics_data()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            value = point.count if isinstance(point, HistogramDataPoint) else point.value
            found[metric.name, frozenset(point.attributes.items())] = value
    return found


def moved(registry: CollectorRegistry) -> set[str]:
    return {series for (series, _), value in of_prometheus(registry).items() if value}


async def until(app: Outrider, condition: Callable[[], object]) -> None:
    """Looks after each signal."""
    something = asyncio.Event()
    stop = app.signals.listen(lambda _: something.set())
    try:
        async with asyncio.timeout(60):
            while not condition():
                await something.wait()
                something.clear()
    finally:
        stop()


@pytest.mark.verify
async def test_each_of_them_moves(
    database: str, redis_server: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.worker.upkeep_loop.FIRST", 0.01)
    app, codec, end, broken = Outrider(context="shop", dsn=database, poll=0.3), Refusing(), asyncio.Event(), [True]
    codec.refused = {7}
    sink, lease = (
        RedisStreams(redis_server.url, stream=name, codec=codec),
        RedisLease(redis_server.url, f"lock:{name}", ttl=30),
    )
    app.relay("shop.out", sink, events=[Placed], publish_max_attempts=2, lease=lease)
    app.inbox("shop.in", RedisStreams(redis_server.url, stream=f"{name}-in"))
    app.reader(Placed, name="shop.unread")
    archive.declared(app, every=10)

    @app.handler(Placed, name="shop.pay", retry=LATER)
    async def pay(event: Placed, ctx: HandlerContext) -> None:
        match event.n:
            case 1 if broken:
                broken.clear()
                await ctx.tx.execute("select pg_terminate_backend(pg_backend_pid())")
            case 2:
                raise ValueError("later")
            case 3:
                raise Bury("never")

    @app.handler(Arrived, name="shop.in_hand")
    async def arrived(event: Arrived) -> None: ...

    @app.job(Mail, retry=LATER)
    async def mail(job: Mail) -> None:
        if job.to == "nobody":
            raise Bury("nobody")

    @app.job(Bill, lease=1, retry=LATER)
    async def bill(job: Bill) -> None:
        await end.wait()

    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    provider = MeterProvider([reader])
    own, other = Metrics(app.signals, registry), OtelMetrics(app.signals, provider.get_meter("outrider"))

    def value(metric: vocabulary.Metric, **labels: str) -> float:
        return registry.get_sample_value(metric.exposed, labels) or 0

    with archive.opened(database) as place:
        place.ask(archive.TABLES)
        place.install(app.rollups[0].spec())
        place.add("a", "a", "b", "c")
        place.ask("update outrider.rollup_pending set group_key = '' where group_key = 'c'")
        place.age()
        place.add("d")
        place.ask("insert into outrider.audit (at, by, action) values (now() - interval '2 years', 'ada', 'pause')")
        async with app, Redis.from_url(redis_server.url) as redis:
            await app.migrate()
            async with app.worker() as worker:
                await until(app, lambda: worker.listening)
                await publish(app, *(Placed(order=f"{n}", n=n) for n in (1, 2, 3, 7)), Paid(order="1"))
                born = Outrider(context="depot").envelope(Arrived(), occurred_at=datetime.now(UTC))
                await redis.xadd(f"{name}-in", {"event": EnvelopeCodec().encode(born, "0-1")})
                await redis.xadd(f"{name}-in", {"event": "nonsense"})
                async with app.connect() as conn:
                    await app.enqueue_many(conn, [Mail(to="ada"), Mail(to="nobody")])
                async with expect(app, LeasesRenewed, timeout=60), app.connect() as conn:
                    await app.enqueue(conn, Bill())
                    await conn.commit()
                place.ask("update outrider.subscription set paused_at = now() where name = 'seen.bill'")
                [holder] = place.column("select locked_by from outrider.job where subscription = 'seen.bill'")
                place.ask("select outrider.reap('{seen.bill}', %s)", holder)
                await until(app, lambda: {each.name for each in METRICS if each not in STATE} <= moved(registry))
                await until(app, lambda: value(vocabulary.renewals, result="lost"))
                rejections = {"relay": "shop.out", "topic": "seen.placed", "reason": "unencodable"}
                await until(app, lambda: value(vocabulary.publish_failures, **rejections) == 2)
                await until(app, lambda: value(vocabulary.completed, type="shop.pay", status="success") == 2)
                await until(app, lambda: value(vocabulary.completed, type="seen.mail", status="success") == 1)
                await until(app, lambda: value(vocabulary.ingest_refused, inbox="shop.in") == 1)
                for instruments in (own.instruments, other.instruments):
                    await exposed.sample(app, "outrider", instruments)
        provider.force_flush()
        seen, same = of_prometheus(registry), of_otel(reader)
        provider.shutdown()
    assert {series for series, _ in seen} == {each.name for each in METRICS}
    for each in METRICS:
        assert all({label for label, _ in labels} == set(each.labels) for series, labels in seen if series == each.name)
    assert seen.keys() == same.keys()
    state = {each.name for each in STATE}
    assert [key for key in seen if key[0] not in state and seen[key] != same[key]] == []
    told: dict[str, float] = {
        f"{series}{sorted(label for _, label in labels)}": found for (series, labels), found in seen.items()
    }
    expected = {
        "outrider_published['seen.placed']": 4,
        "outrider_published['seen.paid']": 1,
        "outrider_completed['failed', 'shop.pay']": 1,
        "outrider_completed['dead', 'shop.pay']": 1,
        "outrider_completed['shop.pay', 'success']": 2,
        "outrider_completed['seen.mail', 'success']": 1,
        "outrider_completed['dead', 'seen.mail']": 1,
        "outrider_settled_seconds['seen.placed', 'shop.pay']": 2,
        "outrider_handling_seconds['shop.pay']": 4,
        "outrider_handling_seconds['seen.mail']": 2,
        "outrider_troubled['shop.pay']": 1,
        "outrider_enqueued['seen.mail']": 2,
        "outrider_enqueued['seen.bill']": 1,
        "outrider_listener_up[]": 1,
        "outrider_relayed['seen.placed', 'shop.out']": 3,
        "outrider_publish_failures['seen.placed', 'shop.out', 'unencodable']": 2,
        "outrider_publish_retries['seen.placed', 'shop.out']": 1,
        "outrider_relay_lease['acquired', 'shop.out']": 1,
        "outrider_relay_depth['seen.placed', 'shop.out']": 0,
        "outrider_ingested['shop.in']": 1,
        "outrider_ingest_refused['shop.in']": 1,
        "outrider_broker_up['shop.out']": 1,
        "outrider_broker_up['shop.in']": 1,
        "outrider_rolled_up['archive.imports', 'rollup']": 1,
        "outrider_rolled_up['archive.imports', 'single']": 1,
        "outrider_rollup_errors['archive.imports']": 1,
        "outrider_upkept['expired']": 1,
        "outrider_dead_letters['shop.pay']": 1,
        "outrider_dead_letters['seen.mail']": 1,
        "outrider_workers[]": 1,
        "outrider_rollup_pending['archive.imports']": 1,
        "outrider_rollup_set_aside['archive.imports']": 1,
    }
    assert expected == {key: told.get(key) for key in expected}
    for key in (
        "outrider_depth['shop.unread']",
        "outrider_lag_seconds['shop.unread']",
        "outrider_oldest_owed_seconds[]",
    ):
        assert told[key] > 0
    for table in ("delivery", "job"):
        assert f"outrider_dead_tuples['{table}']" in told


def test_the_listener_and_what_is_not_known() -> None:
    """A gauge that nobody has set is not there: 0 would be a lie, and a page."""
    registry, signals = CollectorRegistry(), Signals()
    Metrics(signals, registry)

    def up() -> float | None:
        return registry.get_sample_value("outrider_listener_up")

    assert {series for series, _ in of_prometheus(registry)} == {"outrider_polls"}
    assert up() is None
    signals.emit(ListenerUp())
    assert up() == 1
    signals.emit(ListenerDown("gone"))
    assert up() == 0


async def test_overdue_is_what_could_be_handled_now(database: str) -> None:
    """By the rule of the doctor: a reader, a retry that is not due and a pause are nobody's fault."""
    app, registry = Outrider(context="shop", dsn=database), CollectorRegistry()
    to = PrometheusInstruments(registry)
    app.reader(Placed, name="shop.unread")

    @app.handler(Placed, name="shop.later", retry=LATER)
    async def later(event: Placed) -> None:
        raise ValueError("later")

    for name in ("shop.paused", "shop.unserved"):
        app.handler(Placed, name=name)(lambda _: None)

    async def overdue() -> dict[str, bool | None]:
        """Whether something has waited for an hour; None: nobody knows."""
        await exposed.sample(app, "outrider", to)
        found = {each.name: value("outrider_overdue_seconds", each.name) for each in app.subscriptions}
        return {name: None if seconds is None else seconds >= 3600 for name, seconds in found.items()}

    def value(series: str, name: str) -> float | None:
        return registry.get_sample_value(series, {"type": name})

    async with app:
        await app.migrate()
        await publish(app, Placed(order="1"))
        await app.drain(handlers=["shop.later"])
        await app.pause("shop.paused")
        async with app.connect() as conn:
            await conn.execute("update outrider.outbox set occurred_at = occurred_at - interval '1 day'")
        owed = {"shop.unread": False, "shop.later": False, "shop.paused": False, "shop.unserved": True}
        assert await overdue() == owed
        for name in owed:
            assert (value("outrider_lag_seconds", name) or 0) > 3600
            assert value("outrider_paused", name) == (name == "shop.paused")
            assert value("outrider_waiting_for_retry", name) == (name == "shop.later")
            assert value("outrider_depth", name) == (name != "shop.later")
        await make_due(app)
        assert await overdue() == owed | {"shop.later": True}
        await app.pause(None)
        assert not any((await overdue()).values())
        assert value("outrider_paused", "shop.later") == 1


async def test_a_lag_that_nobody_knows_is_not_told(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "SCAN", 2)
    app, registry = Outrider(context="shop", dsn=database), CollectorRegistry()
    app.handler(Paid, name="shop.paid")(lambda _: None)
    async with app:
        await app.migrate()
        await publish(app, *(Placed(order=f"{n}") for n in range(2)))
        await exposed.sample(app, "outrider", PrometheusInstruments(registry))
    told = {series for series, _ in of_prometheus(registry)}
    assert "outrider_depth" in told
    assert told & {"outrider_lag_seconds", "outrider_overdue_seconds", "outrider_oldest_owed_seconds"} == set()


async def test_rollups_that_others_tick(database: str) -> None:
    """pg_cron ticks without a signal: the database knows what came of it."""
    app, registry = Outrider(context="shop", dsn=database), CollectorRegistry()
    to = PrometheusInstruments(registry)

    def value(metric: vocabulary.Metric) -> float | None:
        return registry.get_sample_value(metric.name, {"rollup": archive.NAME})

    async with app:
        await app.migrate()
        with archive.opened(database) as place:
            place.ask(archive.TABLES)
            place.install(notify=archive.NOTE)
            place.add("a")
            await exposed.sample(app, "outrider", to)
            assert (value(vocabulary.rollup_failed), value(vocabulary.rollup_overdue)) == (0, 0)
            place.age("1 day")
            place.ask("drop table note")
            assert place.tick()["result"] == "error"
            await exposed.sample(app, "outrider", to)
            assert value(vocabulary.rollup_failed) == 1
            assert (value(vocabulary.rollup_overdue) or 0) > 3600
            place.ask("update outrider.rollup set uninstalled_at = now()")
            await exposed.sample(app, "outrider", to)
            assert value(vocabulary.rollup_failed) is None


async def test_what_an_alert_counts_begins_with_zero(database: str) -> None:
    """increase() does not see the first value of a series."""
    app, registry = Outrider(context="shop", dsn=database), CollectorRegistry()
    app.inbox("shop.in", RedisStreams("redis://nobody.invalid", stream="in"))
    archive.declared(app)
    async with app, exposed.measured(app, "outrider", Metrics(app.signals, registry)):
        pass
    zeros = [("ingest_refused", "inbox", "shop.in"), ("rollup_errors", "rollup", archive.NAME)]
    for name, label, of in [*zeros, ("lease_renewals", "result", "lost")]:
        assert registry.get_sample_value(f"outrider_{name}_total", {label: of}) == 0


async def test_a_scrape_is_answered_among_clients_that_say_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposed._Request, "timeout", 3600)
    app = Outrider(context="shop", dsn=database)
    before = threading.active_count()
    async with app, exposed.exposed(app, "outrider", "127.0.0.1", 0) as url:
        where = urllib.parse.urlsplit(url)
        with ExitStack() as rude:
            for _ in range(200):
                wire = rude.enter_context(socket.create_connection((where.hostname or "", where.port or 0)))
                wire.sendall(b"GET /metrics HTT")
            with await asyncio.to_thread(urllib.request.urlopen, url, timeout=60) as answer:
                assert b"outrider_" in answer.read()
            assert threading.active_count() <= before + exposed.CONNECTIONS + 5


async def test_who_says_nothing_for_long_is_sent_away(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposed._Request, "timeout", 0.05)
    app = Outrider(context="shop", dsn=database)
    async with app, exposed.exposed(app, "outrider", "127.0.0.1", 0) as url:
        where = urllib.parse.urlsplit(url)
        with socket.create_connection((where.hostname or "", where.port or 0), timeout=60) as wire:
            wire.sendall(b"GET /metrics HTT")
            assert await asyncio.to_thread(wire.recv, 100) == b""


def test_whoever_publishes_cannot_make_series_without_end() -> None:
    registry, reader, signals = CollectorRegistry(), InMemoryMetricReader(), Signals()
    provider = MeterProvider([reader])
    Metrics(signals, registry)
    OtelMetrics(signals, provider.get_meter("outrider"))
    for n in range(300):
        signals.emit(Relayed("shop.out", f"stream-{n}", 2, f"{n + 1}-0", {f"a.{n}": 1, "a.0": 1}))
        signals.emit(BrokerUp(f"shop.out{n}"))
    for seen in (of_prometheus(registry), of_otel(reader)):
        relayed = {
            dict(labels)["topic"]: amount for (series, labels), amount in seen.items() if series.endswith("relayed")
        }
        assert (len(relayed), relayed["a.0"], relayed["a.199"], relayed["other"]) == (201, 300, 1, 100)
        count = Counter(series for series, _ in seen)
        assert count["outrider_relay_hwm"] == 200
        assert count["outrider_broker_up"] == 301, "what an app declares is not cut off"
    provider.shutdown()


def test_a_histogram_counts_what_was_at_most_so_long() -> None:
    registry = CollectorRegistry()
    Metrics(Signals(), registry).instruments.observe(vocabulary.handling, [0.001, 0.005, 0.3, 4000], "a.b")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"outrider_handling_seconds_{name}", {"type": "a.b"} | labels)

    assert [value("bucket", le=le) for le in ("0.005", "0.25", "0.5", "1800.0", "+Inf")] == [2, 2, 3, 3, 4]
    assert value("count") == 4
    assert value("sum") == pytest.approx(4000.306)


async def test_a_role_that_may_not_look_costs_one_warning(database: str, caplog: pytest.LogCaptureFixture) -> None:
    registry, role = CollectorRegistry(), f"poor_{uuid.uuid4().hex[:8]}"
    tried = 0

    class Poor(Outrider):
        @asynccontextmanager
        async def connect(self) -> AsyncIterator[AsyncSession]:
            nonlocal tried
            tried += 1
            async with super().connect() as conn:
                yield conn

    async def look(app: Outrider, times: int) -> None:
        nonlocal tried
        tried = 0
        looking = asyncio.create_task(exposed.keep_sampling(app, "outrider", metrics.instruments, 10, pause=0))
        async with asyncio.timeout(60):
            while tried < times:  # noqa: ASYNC110 (of the task beside it)
                await asyncio.sleep(0)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"create role {role} login; grant usage on schema outrider to {role}".encode())
        owner.execute(f"grant select on outrider.migration to {role}".encode())
        try:
            async with Poor(context="shop", dsn=database) as rich:
                metrics = Metrics(rich.signals, registry)
                await rich.migrate()
                await look(rich, 2)
            assert registry.get_sample_value("outrider_workers") == 0
            assert registry.get_sample_value("outrider_database_up") == 1
            async with Poor(context="shop", dsn=make_conninfo(database, user=role)) as poor:
                with caplog.at_level(logging.WARNING, "outrider"):
                    await look(poor, 4)
        finally:
            owner.execute(f"drop owned by {role}; drop role {role}".encode())
    assert moved(registry) == set()
    assert registry.get_sample_value("outrider_database_up") == 0
    assert registry.get_sample_value("outrider_workers") is None, "what it knew before is not told any more"
    [line] = [each.message for each in caplog.records]
    assert line.startswith("metrics of the database are missing: ")


# Served by a process

APP = """
from outrider import Event, Outrider

class Placed(Event, type="seen.served"):
    n: int

app = Outrider(context="shop", pool_size=2)

@app.handler(Placed, name="shop.count", start="beginning")
async def count(event): ...
"""


OTEL = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

def names(data):
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
    return " ".join(metric.name for scope in scopes for metric in scope.metrics) + "\\n"

exporter = ConsoleMetricExporter(formatter=names)
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=200)]))
"""


def served(process: subprocess.Popen[str], times: int = 1) -> list[str]:
    """Where it says that they are."""
    assert process.stderr is not None
    urls: list[str] = []
    for line in process.stderr:
        urls += re.findall(r"metrics at (\S+)", line)
        if len(urls) == times:
            return urls
    raise AssertionError("it said nothing of its metrics")


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.fixture
def folder(database: str, tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("select outrider.publish('seen.served', '{\"n\": 1}')")
    return tmp_path


@pytest.mark.verify
def test_a_worker_serves_them(database: str, folder: Path, start: Start) -> None:
    worker = start("worker", "--app", "shop:app", "--metrics-port", "0", env={"OUTRIDER_DSN": database})
    [url] = served(worker)
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*/metrics", url)
    handled = 'outrider_completed_total{status="success",type="shop.count"} 1.0'
    process_until(lambda: handled in (found := text_of(url)) and "\noutrider_workers " in found, worker)
    worker.terminate()
    worker.communicate(timeout=200)
    assert worker.returncode == 0


@pytest.mark.verify
def test_a_worker_gives_them_to_opentelemetry(database: str, folder: Path, start: Start) -> None:
    (folder / "shop.py").write_text(APP + OTEL)
    worker = start("worker", "--app", "shop:app", "--otel-metrics", env={"OUTRIDER_DSN": database})
    assert worker.stdout is not None
    wanted = {"outrider_completed", "outrider_workers"}
    for line in worker.stdout:
        wanted -= set(line.split())
        if not wanted:
            return
    raise AssertionError(worker.communicate())


@pytest.mark.verify
def test_each_process_has_a_port_of_its_own(database: str, folder: Path, start: Start) -> None:
    first = next(port for port in range(12000, 19000, 7) if all(map(free, (port, port + 1))))
    options = ("--app", "shop:app", "--processes", "2", "--metrics-port", str(first))
    worker = start("worker", *options, env={"OUTRIDER_DSN": database})
    urls = served(worker, 2)
    assert sorted(urls) == [f"http://127.0.0.1:{port}/metrics" for port in (first, first + 1)]
    assert all("outrider_polls_total" in text_of(url) for url in urls)


def free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def test_what_is_wrong_is_said(database: str, folder: Path, outrider: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = outrider("worker", "--app", "shop:app", "--metrics-port", port, env={"OUTRIDER_DSN": database})
    assert (done.returncode, done.stderr) == (
        1,
        f"outrider: --metrics-port: 127.0.0.1:{port} cannot be used: Address already in use\n",
    )
    done = outrider("worker", "--app", "shop:app", "--processes", "2", "--otel-metrics", env={})
    assert (done.returncode, done.stderr.partition(": set one")[0]) == (
        1,
        "outrider: --otel-metrics: no meter provider is set",
    )


def test_without_the_client_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.observe.metrics.find_spec", lambda _: None)
    options = ServeOptions(metrics_port=0)
    with pytest.raises(ConfigError, match=r"install outrider\[metrics\]"):
        options.check(2)


def test_without_opentelemetry_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.observe.otel_metrics.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"install outrider\[otel\]"):
        OtelMetrics(Signals())


@pytest.mark.parametrize(("port", "processes", "fits"), [(65535, 1, True), (65534, 3, False), (0, 99, True)])
def test_there_must_be_a_port_for_each_process(port: int, processes: int, fits: bool) -> None:
    options = ServeOptions(metrics_port=port)
    if fits:
        options.check(processes)
    else:
        with pytest.raises(ConfigError, match=f"{processes} processes need as many ports"):
            options.check(processes)


@pytest.mark.parametrize(("health", "processes", "fits"), [(29111, 2, False), (29112, 2, True), (29110, 1, False)])
def test_the_port_of_health_is_none_of_them(health: int, processes: int, fits: bool) -> None:
    options = ServeOptions(health_port=health, metrics_port=29110)
    if fits:
        options.check(processes)
    else:
        with pytest.raises(ConfigError, match=f"--health-port: {health} is a port of --metrics-port"):
            options.check(processes)
