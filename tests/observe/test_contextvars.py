"""What the application binds with structlog.contextvars is on the lines about the same call, and on no others."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from threading import Event
from typing import Any

import pytest
from structlog.contextvars import bind_contextvars, bound_contextvars, clear_contextvars
from tests.observe.shop import LATER, Mail, Placed
from tests.observe.test_log import lines

from outrider import Bury, Outrider
from outrider.observe.log_lines import write_line
from outrider.signals import Notified

own: ContextVar[str] = ContextVar("own", default="")


@pytest.fixture(autouse=True)
def nothing_bound() -> Iterator[None]:
    yield
    clear_contextvars()


def said(text: str, *kinds: str) -> list[dict[str, Any]]:
    return [told for told in map(json.loads, text.splitlines()) if told["event"] in kinds]


OF_CALLS = ("handled", "failed", "retry_scheduled", "buried")


def declare(app: Outrider, seen: list[tuple[str, str]], kind: str) -> None:
    """A handler that binds its order, and notes what it found of others."""

    def call(event: Placed) -> None:
        seen.append((own.get(), event.order))
        own.set(event.order)
        bind_contextvars(order=event.order, **{f"only_{event.order}": True})
        if event.n == 2:
            raise ValueError("later")
        if event.n == 3:
            raise Bury("never")

    async def pay(event: Placed) -> None:
        call(event)

    async def pay_all(events: list[Placed]) -> None:
        call(events[0])

    def pay_blocking(event: Placed) -> None:
        call(event)

    chosen: Any = {"async": pay, "batch": pay_all, "thread": pay_blocking}[kind]
    app.handler(Placed, name="shop.pay", retry=LATER)(chosen)


@pytest.mark.parametrize("kind", ["async", "batch", "thread"])
async def test_what_a_handler_binds_is_on_the_lines_about_its_call_only(database: str, kind: str) -> None:
    app, seen = Outrider(context="shop", dsn=database), list[tuple[str, str]]()
    declare(app, seen, kind)
    with lines(as_json=True) as text:
        async with app:
            await app.migrate()
            async with app.connect() as conn:
                for n, tenant in ((1, "acme"), (2, "other"), (3, "third"), (4, None)):
                    await app.publish(conn, Placed(order=f"o{n}", n=n), workspace_id=tenant)
            await app.drain()
    found = said(text.getvalue(), *OF_CALLS)
    orders = {"acme": "o1", "other": "o2", "third": "o3", None: "o4"}
    assert Counter(each["event"] for each in found) == {"handled": 2, "failed": 2, "retry_scheduled": 1, "buried": 1}
    for each in found:
        assert each["order"] == orders[each["workspace_id"]]
        assert [name for name in each if name.startswith("only_")] == [f"only_{each['order']}"]
    assert {before for before, _ in seen} == {""}, "another call left its variable"
    assert not [each for each in said(text.getvalue(), "summary", "taken", "published") if "order" in each]


@pytest.mark.parametrize("blocking", [False, True])
async def test_what_a_job_binds_is_on_the_lines_about_its_run_only(database: str, blocking: bool) -> None:
    app, seen = Outrider(context="shop", dsn=database), []

    def call(job: Mail) -> None:
        seen.append(own.get())
        own.set(job.to)
        bind_contextvars(to=job.to, **{f"only_{job.to}": True})
        if job.to == "nobody":
            raise ValueError("nobody")

    async def mail(job: Mail) -> None:
        call(job)

    def mail_blocking(job: Mail) -> None:
        call(job)

    app.job(Mail, retry=LATER)(mail_blocking if blocking else mail)
    with lines(as_json=True) as text:
        async with app:
            await app.migrate()
            async with app.connect() as conn:
                for to, tenant in (("ada", "acme"), ("nobody", "other"), ("bob", None)):
                    await app.enqueue(conn, Mail(to=to), workspace_id=tenant)
            await app.drain()
    found = said(text.getvalue(), "completed", "failed")
    assert sorted((each["event"], each["workspace_id"] or "", each["to"]) for each in found) == [
        ("completed", "", "bob"),
        ("completed", "acme", "ada"),
        ("failed", "other", "nobody"),
    ]
    assert all([name for name in each if name.startswith("only_")] == [f"only_{each['to']}"] for each in found)
    assert seen == ["", "", ""]
    assert not [each for each in said(text.getvalue(), "summary", "claimed", "enqueued") if "to" in each]


async def test_what_is_bound_around_publish_and_a_worker_is_on_their_lines(database: str) -> None:
    app, seen = Outrider(context="shop", dsn=database), list[tuple[str, str]]()
    declare(app, seen, "async")
    with lines(as_json=True) as text:
        async with app:
            await app.migrate()
            async with app.connect() as conn:
                with bound_contextvars(request="r1"):
                    await app.publish(conn, Placed(order="o1"))
                await app.publish(conn, Placed(order="o2"))
            with bound_contextvars(deploy="blue"):
                await app.drain()
    assert [each.get("request") for each in said(text.getvalue(), "published")] == ["r1", None]
    handled = said(text.getvalue(), "handled")
    assert [(each["deploy"], each["order"]) for each in handled] == [("blue", "o1"), ("blue", "o2")]
    assert not [each for each in said(text.getvalue(), "summary") if "request" in each]


async def test_a_blocking_handler_that_does_not_return_in_time(database: str) -> None:
    """Its thread is still in the context of its call when the lines about the call are written."""
    app, returns = Outrider(context="shop", dsn=database), Event()

    @app.handler(Placed, name="shop.pay", retry=LATER, timeout="2s")
    def pay(event: Placed) -> None:
        bind_contextvars(order=event.order)
        returns.wait(60)

    try:
        with lines(as_json=True) as text:
            async with app:
                await app.migrate()
                async with app.connect() as conn:
                    await app.publish(conn, Placed(order="o1"))
                await app.drain()
    finally:
        returns.set()
    found = said(text.getvalue(), *OF_CALLS)
    assert [(each["event"], each["order"]) for each in found] == [("failed", "o1"), ("retry_scheduled", "o1")]


async def test_listeners_of_the_application_are_called_with_what_the_handler_bound(database: str) -> None:
    app, seen = Outrider(context="shop", dsn=database), list[tuple[str, str]]()
    declare(app, seen, "async")
    heard: list[tuple[str, str]] = []
    app.signals.listen(lambda signal: heard.append((type(signal).__name__, own.get())))
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            await app.publish(conn, Placed(order="o2", n=2))
        await app.drain()
    assert [each for each in heard if each[1]] == [("Failed", "o2"), ("RetryScheduled", "o2")]


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_any_name_and_value_can_be_bound(caplog: pytest.LogCaptureFixture) -> None:
    bind_contextvars(**{"user id": 1, "": 2, "a=b\n": 3})
    bind_contextvars(name="x", message="m", args=(1,), traceback="t\nevent=forged", event="e", kind="mine")
    bind_contextvars(dsn="postgresql://u:hunter2@h/d", long="x" * 1000, odd=Unprintable(), lines="a\nb\x1b", n=7)
    with caplog.at_level(logging.DEBUG, "outrider"):
        write_line(Notified("outbox", "orders.placed"))
    [record] = caplog.records
    fields = vars(record)
    assert "\n" not in record.getMessage()
    assert "hunter2" not in record.getMessage()
    assert (fields["event"], fields["kind"]) == ("notified", "orders.placed"), "a line's own fields win"
    assert (fields["user_id"], fields["_"], fields["a_b_"]) == (1, 2, 3)
    assert (fields["name_"], fields["message_"], fields["args_"]) == ("x", "m", "(1,)")
    assert fields["traceback_"] == "t\\nevent=forged"
    assert fields["odd"] == "<Unprintable>"
    assert len(fields["long"].encode()) <= 300
    assert fields["lines"] == "a\\nb\\x1b"
    assert fields["n"] == 7
