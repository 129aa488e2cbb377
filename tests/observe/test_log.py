"""The fields that log lines have, whoever reads them: docs/observability.md names them, and other people's queries do."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from threading import Thread
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID, uuid4

import pytest
from tests.brokers import RedisServer
from tests.observe.shop import LATER, Mail, Placed
from tests.relay.test_relay import Refusing

from outrider import Bury, Outrider
from outrider.cli.logs import Level, arrange
from outrider.envelope import Envelope
from outrider.job import JobRun
from outrider.observe.log import LogListener
from outrider.observe.log_lines import write_line
from outrider.signals import (
    BrokerDown,
    JobEnqueued,
    JobsClaimed,
    ListenerDown,
    Notified,
    Published,
    Settled,
    Signal,
    Woken,
    WorkerDown,
)
from outrider.streams import RedisStreams

TRACE = {"traceparent": f"00-{7:032x}-{9:016x}-01"}
TRACE_ID = f"{7:032x}"

ALWAYS = {"time", "level", "logger", "event"}
OF_EVENT = {"event_id", "event_type", "source", "target", "workspace_id", "trace_id"}
HANDLED = OF_EVENT | {"handler_name", "attempts"}
OF_JOB = {"job_id", "job_type", "handler_name", "key", "attempt", "attempts", "worker_id", "workspace_id", "trace_id"}
FAILED = {"duration_ms", "status_result", "error_code", "error", "traceback"}
FIELDS = {
    "published": OF_EVENT,
    "handled": HANDLED | {"duration_ms", "status_result"},
    "failed": HANDLED | FAILED,
    "retry_scheduled": HANDLED | {"status_result", "error_code", "retry_in_s"},
    "buried": HANDLED | {"status_result", "error_code", "error"},
    "enqueued": {"job_id", "job_type", "key", "outcome", "workspace_id", "trace_id"},
    "claimed": OF_JOB,
    "completed": OF_JOB | {"duration_ms", "status_result"},
    "failed (job)": OF_JOB | FAILED | {"will_retry", "outcome"},
    "relayed": {"subscription", "stream", "events", "position", "status_result"},
    "rejected": HANDLED | {"status_result", "error_code", "error", "buried", "severity"},
}
TOTALS = {
    frozenset({"event_type", "published"}),
    frozenset({"handler_name", "handled", "batches", "slowest_ms"}),
    frozenset({"job_type", "enqueued"}),
    frozenset({"handler_name", "completed", "slowest_ms"}),
    frozenset({"subscription", "stream", "relayed", "position"}),
}
"""The fields of summaries, beside over_s."""
LOUD = ("failed", "failed (job)", "retry_scheduled", "buried", "rejected")
"""What is written at info, too."""
BETWEEN = {"woken", "taken", "notified", "leases_renewed"}
"""Only at debug, and not the same each time."""


@contextmanager
def lines(*, as_json: bool, level: Level = Level.debug) -> Iterator[io.StringIO]:
    """What a command writes to stderr."""
    logger, text = logging.getLogger("outrider"), io.StringIO()
    before = (logger.handlers, logger.level, logger.propagate)
    logger.handlers = []
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stderr", text)
            arrange(level, as_json)
            yield text
    finally:
        logger.handlers, logger.level, logger.propagate = before


async def run(database: str, redis_url: str, stream: str) -> None:
    app, codec = Outrider(context="shop", dsn=database), Refusing()
    codec.refused = {3}
    app.relay("shop.out", RedisStreams(redis_url, stream=stream, codec=codec), publish_max_attempts=1)

    @app.handler(Placed, name="shop.pay", retry=LATER)
    async def pay(event: Placed) -> None:
        if event.n == 2:
            raise ValueError("later")
        if event.n == 3:
            raise Bury("never")

    @app.job(Mail, retry=LATER)
    async def mail(job: Mail) -> None:
        if job.to == "nobody":
            raise ValueError("nobody")

    async with app:
        await app.migrate()
        async with app.connect() as conn:
            made = [app.envelope(Placed(order=f"{n}", n=n), workspace_id="acme") for n in (1, 2, 3)]
            await app.publish_many(conn, [Envelope.of(vars(each) | {"trace_context": TRACE}) for each in made])
            await app.enqueue_many(conn, [Mail(to="ada"), Mail(to="nobody")], workspace_id="acme")
            await conn.execute("update outrider.job set trace_context = %s", [json.dumps(TRACE)])
        await app.drain()


def by_kind(text: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in text.splitlines():
        told = json.loads(line)
        kind = f"{told['event']} (job)" if told["event"] == "failed" and "job_id" in told else told["event"]
        if kind not in BETWEEN:
            found.setdefault(kind, []).append(told)
    return found


async def test_the_fields_of_json_lines(database: str, redis_server: RedisServer, name: str) -> None:
    with lines(as_json=True) as text:
        await run(database, redis_server.url, name)
    found = by_kind(text.getvalue())
    summaries = [{*each} - ALWAYS for each in found.pop("summary")]
    assert {frozenset(each - {"over_s"}) for each in summaries} == TOTALS
    assert all("over_s" in each for each in summaries)
    assert {kind: set(told[0]) - ALWAYS for kind, told in found.items()} == FIELDS
    assert all(set(each) >= ALWAYS for told in found.values() for each in told)
    for kind, told in found.items():
        if "workspace_id" in FIELDS[kind]:
            assert {each["workspace_id"] for each in told} == {"acme"}, kind
        if "trace_id" in FIELDS[kind] and kind != "enqueued":  # whose trace came later
            assert {each["trace_id"] for each in told} == {TRACE_ID}, kind
    results = {kind: {each.get("status_result") for each in told} for kind, told in found.items()}
    assert results == {
        "published": {None},
        "handled": {"success"},
        "failed": {"failed", "dead"},
        "retry_scheduled": {"failed"},
        "buried": {"dead"},
        "enqueued": {None},
        "claimed": {None},
        "completed": {"success"},
        "failed (job)": {"failed"},
        "relayed": {"success"},
        "rejected": {"dead"},
    }
    [buried] = [each for each in found["buried"] if each["handler_name"] == "shop.pay"]
    assert (buried["level"], buried["error_code"], buried["attempts"]) == ("error", "bury", 1)


async def test_at_info_failures_are_told_and_the_rest_is_summed_up(
    database: str, redis_server: RedisServer, name: str
) -> None:
    with lines(as_json=True, level=Level.info) as text:
        await run(database, redis_server.url, name)
    found = by_kind(text.getvalue())
    assert set(found) == {"summary", *LOUD}
    summed: dict[str, int] = {}
    for line in found["summary"]:
        for field in ("published", "handled", "enqueued", "completed", "relayed"):
            summed[field] = summed.get(field, 0) + line.get(field, 0)
    assert summed == {"published": 3, "handled": 1, "enqueued": 2, "completed": 1, "relayed": 2}


def settled(events: int, ms: float = 5) -> Settled:
    return Settled("shop.pay", 0, events, 0, ms, lambda: iter(()))


def test_a_summary_comes_at_once_then_once_a_minute_and_at_the_end() -> None:
    now = 100.0
    with lines(as_json=True, level=Level.info) as text:
        write = LogListener(clock=lambda: now)
        told = 0

        def said() -> list[tuple[int, float]]:
            nonlocal told
            before, told = told, len(text.getvalue())
            written = [json.loads(line) for line in text.getvalue()[before:].splitlines()]
            return [(each["handled"], each["over_s"]) for each in written if each["event"] == "summary"]

        write(settled(16))
        assert said() == [(16, 0.0)], "who has just started a worker wants to see that it works"
        for _ in range(1000):
            write(settled(300))
        assert said() == []
        now = 160.0
        write(Woken("shop.mail", "poll"))
        assert said() == [(300_000, 60.0)], "whatever happens next, in a worker every few seconds"
        write(settled(7))
        now = 170.0
        write(WorkerDown(uuid4(), True))
        assert said() == [(7, 10.0)]
        assert text.getvalue().splitlines()[-1].count("worker_down") == 1
        now = 1000.0
        write(settled(1))
        write(settled(2))
        assert said() == [(1, 0.0)]
        write.close()
        write.close()
        assert said() == [(2, 0.0)]


@pytest.mark.parametrize(("level", "wanted"), [(Level.warning, False), (Level.info, True), (Level.debug, True)])
def test_what_one_call_sends_by_the_thousand_is_wanted_only_where_it_is_counted(level: Level, wanted: bool) -> None:
    write = LogListener()
    with lines(as_json=True, level=level):
        assert [write.wants(kind) for kind in (Published, JobEnqueued, Settled)] == [wanted, wanted, True]


def test_threads_that_publish_lose_no_count() -> None:
    with lines(as_json=True, level=Level.info) as text:
        write = LogListener()

        def settle() -> None:
            for _ in range(500):
                write(settled(1))

        threads = [Thread(target=settle) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        write.close()
    assert sum(json.loads(line)["handled"] for line in text.getvalue().splitlines()) == 2000


async def test_the_same_for_people(database: str, redis_server: RedisServer, name: str) -> None:
    with lines(as_json=False) as text:
        await run(database, redis_server.url, name)
    [handled] = [line for line in text.getvalue().splitlines() if "event=handled" in line]
    _, _, _, said = handled.split(" ", 3)
    fields = dict(pair.split("=", 1) for pair in said.split(" "))
    assert (fields["handler_name"], fields["status_result"]) == ("shop.pay", "success")
    assert (fields["workspace_id"], fields["trace_id"]) == ("acme", TRACE_ID)
    assert 'ValueError: later"' in text.getvalue()
    assert "Traceback (most recent call last):" in text.getvalue()


HOSTILE = "k\x1b]0;PWN\x07\x9b31m\u202e\r\nevent=buried " + "x" * 100_000


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "signal",
    [
        Notified("outbox", HOSTILE),
        JobsClaimed(1, lambda: iter([JobRun("mail", uuid4(), HOSTILE, 1, HOSTILE, HOSTILE, HOSTILE)])),
        BrokerDown("shop.out", "os_error", HOSTILE, 1),
        ListenerDown("postgresql://u:hunter2@h/d " + HOSTILE),
    ],
    ids=lambda signal: type(signal).__name__,
)
def test_what_comes_from_elsewhere_cannot_forge_lines(signal: Signal, as_json: bool) -> None:
    with lines(as_json=as_json) as text:
        logging.getLogger("outrider").setLevel(logging.DEBUG)
        write_line(signal)
    [line] = text.getvalue().splitlines()
    assert line.isprintable()
    assert len(line) < 12_000
    assert "\\x1b]0;PWN\\x07\\x9b31m\\u202e\\x0d" in line.replace("\\\\", "\\")
    assert "hunter2" not in line


def test_a_record_has_the_same_fields_for_handlers_of_the_application(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "outrider"):
        write_line(Notified("outbox", HOSTILE))
    [record] = caplog.records
    kind = vars(record)["kind"]
    assert kind.startswith("k\\x1b]0;PWN")
    assert kind.isprintable()
    assert len(kind.encode()) <= 300


def example(hint: Any) -> Any:
    """A value of an annotated type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return example(args[0])
    if origin is Callable:
        return lambda: example(args[-1])
    if origin is Iterator:
        return iter([example(args[0])])
    if origin is tuple:
        return () if Ellipsis in args else tuple(example(each) for each in args)
    if origin in (Mapping, dict):
        return {}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{each.name: example(hints[each.name]) for each in dataclasses.fields(hint)})
    simple: dict[Any, Any] = {str: "a", int: 1, float: 1.0, bool: True, UUID: uuid4(), datetime: datetime.now(UTC)}
    others = {timedelta: timedelta(seconds=1), BaseException: RuntimeError(), Context: copy_context()}
    return (simple | others)[hint]


@pytest.mark.parametrize("kind", Signal.__subclasses__())
def test_every_signal_has_a_line(kind: type[Signal], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "outrider"):
        write_line(example(kind))
    assert len(caplog.records) == 1
