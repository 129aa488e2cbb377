"""Handlers that do what they should not: it concerns their own event, and never another one or the worker."""

from __future__ import annotations

import asyncio
import ctypes
import re
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import psycopg
import pytest
from pydantic import field_validator
from tests.worker.shop import SOON, Placed, Shop, opened

from outrider import Event, HandlerContext, Outrider, RetryPolicy, SyncHandlerContext
from outrider.errors import DeclarationError
from outrider.signals import Failed, LoopHeld, Settled, Signal
from outrider.testing import expect
from outrider.worker import watchdog


class Awkward(Event, type="dispatch.awkward", key="customer"):
    customer: str
    n: int

    @field_validator("n")
    @classmethod
    def fits(cls, n: int) -> int:
        return {1: 1, 3: 3}[n]


class Panic(BaseException):
    pass


async def after(database: str, declare: Callable[[Shop], object], *names: str) -> Shop:
    """What a worker makes of these events: it must still be there afterwards, and have done all it can."""
    async with opened(database, declare, poll="100ms") as shop:
        await shop.publish(*names)
        async with shop.app.worker(grace="1s") as worker:
            query = """select (select count(*) from outrider.event_handled) + (select count(*) from outrider.delivery
                       where status = 'failed') as n"""
            async with asyncio.timeout(25):
                while (await shop.rows(query))[0]["n"] < len(names):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not worker.stopping
        return shop


def test_a_handler_that_would_never_run_is_refused() -> None:
    app = Outrider(context="shop")

    async def async_generator(event: Placed) -> Any:
        yield event

    def generator(event: Placed) -> Any:
        yield event

    for function in (async_generator, generator):
        with pytest.raises(DeclarationError, match="yield"):
            app.handler(Placed, name="a.b")(function)
    with pytest.raises(DeclarationError, match="with the class"):
        app.handler(generator)  # type: ignore[arg-type, call-arg]
    with pytest.raises(DeclarationError, match="not a policy"):
        app.handler(Placed, name="a.b", retry=5)(print)  # type: ignore[arg-type]


async def test_a_coroutine_that_nobody_runs_is_no_success(database: str) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect")(lambda event, ctx: shop.effect(event, ctx))

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        drained = await shop.app.drain()
        assert (drained.handled, drained.buried) == (0, 1)
        assert "async def" in (await shop.parked())["a1"]["last_error"]


async def test_a_list_without_a_type_is_a_batch_too(database: str) -> None:
    seen: list[Any] = []

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect")
        async def together(events: list) -> None:  # type: ignore[type-arg]
            seen.append(events)

    async with opened(database, declare) as shop:
        await shop.publish("a1", "a2")
        await shop.app.drain(raise_on_failure=True)
        assert [[each.n for each in batch] for batch in seen] == [[1, 2]]


@pytest.mark.parametrize("error", [Panic(), SystemExit(3), BaseExceptionGroup("g", [SystemExit()])], ids=repr)
async def test_whatever_it_raises_is_its_own_failure(database: str, error: BaseException) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=RetryPolicy(retries=0))
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            await shop.effect(event, ctx)
            if event.n == 2:
                raise error

    shop = await after(database, declare, "a1", "b2", "c3")
    assert sorted(await shop.effects()) == ["a1", "c3"]


async def test_a_timeout_that_is_turned_into_something_else(database: str) -> None:
    """And then a neighbour in which something was cancelled: neither is the end of the worker."""

    async def cancelled_inside() -> None:
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        task.cancel()
        await task

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=RetryPolicy(retries=0), timeout="2s")
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            if event.n == 1:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise ValueError("something else") from None
            if event.n == 2:
                await cancelled_inside()
            await shop.effect(event, ctx)

    shop = await after(database, declare, "a1", "b2", "c3")
    assert await shop.effects() == ["c3"]
    codes = {name: row["last_error_code"] for name, row in (await shop.parked()).items()}
    assert codes == {"a1": "timeout", "b2": "cancelled_error"}


@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "whole batches"])
async def test_a_validator_that_breaks_is_one_dead_letter(database: str, batch: bool) -> None:
    def declare(shop: Shop) -> None:
        async def one(event: Awkward) -> None:
            shop.calls.append(str(event.n))

        async def several(events: list[Awkward]) -> None:
            shop.calls.extend(str(event.n) for event in events)

        shop.app.handler(Awkward, name="shop.effect")(several if batch else one)

    async with opened(database, declare) as shop:
        await shop.rows(
            """select outrider.publish('dispatch.awkward', jsonb_build_object('customer', 'a', 'n', n))
               from generate_series(1, 3) as n"""
        )
        drained = await shop.app.drain()
        assert (drained.handled, drained.buried) == (2, 1)
        assert sorted(shop.calls[-2:]) == ["1", "3"]


async def test_a_lost_session_is_not_the_handlers_fault_even_if_it_hides_it(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=RetryPolicy(retries=0))
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            await shop.effect(event, ctx)
            if len(shop.calls) == 1:
                await shop.rows(f"select pg_terminate_backend({ctx.tx.info.backend_pid})")
                with pytest.raises(psycopg.OperationalError):
                    await ctx.tx.execute("select 1")

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        assert (await shop.app.drain()).handled == 1
        assert await shop.parked() == {}


async def test_the_trouble_of_another_database_is_the_handlers_own(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=RetryPolicy(retries=0))
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            await shop.effect(event, ctx)
            raise psycopg.OperationalError("some other server is away")

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        assert (await shop.app.drain()).buried == 1


async def test_what_it_sets_in_the_session_is_gone_for_the_next_handler(database: str) -> None:
    seen: list[Any] = []

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.setter")
        async def setter(event: Placed, ctx: HandlerContext) -> None:
            await ctx.tx.execute("select set_config('app.workspace_id', 'w1', false)")
            await ctx.tx.execute("set search_path = pg_catalog")

        @shop.app.handler(Placed, name="shop.teller")
        async def teller(event: Placed, ctx: HandlerContext) -> None:
            query = "select current_setting('app.workspace_id', true), current_setting('search_path')"
            seen.append(await (await ctx.tx.execute(query)).fetchone())

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        await shop.app.drain(raise_on_failure=True)
        [(workspace, path)] = seen
        assert not workspace
        assert "public" in path


async def test_a_pipeline_left_open_is_its_own_failure(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect")
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            await shop.effect(event, ctx)
            if event.n == 2:
                await ctx.tx.pipeline().__aenter__()

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b2", "c3")
        drained = await shop.app.drain()
        assert (drained.handled, drained.buried) == (2, 1)
        assert await shop.effects() == ["a1", "c3"]


async def test_a_blocking_handler_that_times_out_in_a_statement_frees_its_partition(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=SOON, timeout="2s")
        def handle(event: Placed, ctx: SyncHandlerContext) -> None:
            if event.n == 1:
                ctx.tx.execute("select pg_sleep(60)")

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b2")
        async with asyncio.timeout(25):
            drained = await shop.app.drain()
        assert (drained.handled, drained.to_retry) == (1, 1)
        assert (await shop.parked())["a1"]["attempts"] == 1


@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "whole batches"])
async def test_an_async_handler_that_blocks_past_its_timeout_has_failed(database: str, batch: bool) -> None:
    """It never awaits, so no timer can interrupt it; it returns late, and what it wrote is rolled back."""

    def declare(shop: Shop) -> None:
        async def one(event: Placed, ctx: HandlerContext) -> None:
            await shop.effect(event, ctx)
            if event.n == 1:
                time.sleep(2.2)  # noqa: ASYNC251

        async def several(events: list[Placed], ctx: HandlerContext) -> None:
            for event in events:
                await one(event, ctx)

        shop.app.handler(Placed, name="shop.effect", retry=SOON, timeout="2s")(several if batch else one)

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b2")
        drained = await shop.app.drain()
        assert (drained.handled, drained.to_retry) == (1, 1)
        assert await shop.effects() == ["b2"]
        parked = (await shop.parked())["a1"]
        assert (parked["attempts"], parked["last_error_code"]) == (1, "timeout")


async def test_a_late_error_of_a_handler_that_blocks_is_its_own(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=SOON, timeout="50ms")
        async def handle(event: Placed) -> None:
            time.sleep(0.1)  # noqa: ASYNC251
            raise ValueError("the account is closed")

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        await shop.app.drain()
        assert (await shop.parked())["a1"]["last_error_code"] == "value_error"


async def test_a_handler_that_holds_the_event_loop_is_reported_while_it_does(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the loop until it was reported twice: so the report comes from another thread."""
    monkeypatch.setattr(watchdog, "HELD", 0.1)
    reports: list[LoopHeld] = []
    enough = threading.Event()

    def hear(signal: Signal) -> None:
        if isinstance(signal, LoopHeld):
            reports.append(signal)
            if len(reports) == 2:
                enough.set()

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect")
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            assert enough.wait(60)
            await shop.effect(event, ctx)

    async with opened(database, declare) as shop:
        shop.app.signals.listen(hear)
        async with shop.app.worker(), expect(shop.app, Settled, lambda signal: signal.events):
            await shop.publish("a1")
        first, second = reports[:2]
        assert (first.subscription, second.subscription) == ("shop.effect", "shop.effect")
        assert 0.1 <= first.seconds < second.seconds
        assert "test_misbehaviour.py" in first.where
        assert await shop.effects() == ["a1"]


def hold_interpreter(seconds: float) -> None:
    """A call in C that computes and never releases the interpreter lock, such as a regular expression that backtracks."""
    next(filter((time.monotonic() + seconds).__lt__, iter(time.monotonic, None)))


@pytest.mark.parametrize("seconds", [0.3, 1.5])
async def test_a_handler_that_holds_the_interpreter_lock_is_reported(
    database: str, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """The watchdog's thread cannot run either, so the report comes afterwards. The longer call could be taken for a
    process that was stopped."""
    monkeypatch.setattr(watchdog, "HELD", 0.1)
    reports: list[LoopHeld] = []

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect")
        async def handle(event: Placed) -> None:
            hold_interpreter(seconds)

    async with opened(database, declare) as shop:
        shop.app.signals.listen(lambda each: reports.append(each) if isinstance(each, LoopHeld) else None)
        async with shop.app.worker(), expect(shop.app, Settled, lambda signal: signal.events):
            await shop.publish("a1")
    ours = [each for each in reports if each.subscription == "shop.effect"]
    assert len(ours) == 1
    assert seconds - 0.2 < ours[0].seconds < seconds + 1
    assert "test_misbehaviour.py" in ours[0].where


async def test_a_process_that_was_stopped_has_not_held_its_loop(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleep that keeps the interpreter lock looks like a SIGSTOP: nothing runs, and no CPU is used. Only the failure tells
    how long the handler took."""
    monkeypatch.setattr(watchdog, "HELD", 0.1)
    reports: list[LoopHeld] = []

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=SOON, timeout="1s")
        async def handle(event: Placed) -> None:
            ctypes.PyDLL(None).usleep(1_500_000)

    async with opened(database, declare) as shop:
        shop.app.signals.listen(lambda each: reports.append(each) if isinstance(each, LoopHeld) else None)
        async with shop.app.worker(), expect(shop.app, Failed):
            await shop.publish("a1")
    assert [each for each in reports if each.subscription == "shop.effect"] == []
    assert re.search(
        r"returned after 1\.[5-9]\d* s, not within 1 s: .*blocked", str((await shop.parked())["a1"]["last_error"])
    )


@pytest.mark.parametrize("child", ["gather", "task group", "of a batch"])
async def test_a_child_task_that_holds_the_event_loop_is_reported_as_its_handler(
    database: str, monkeypatch: pytest.MonkeyPatch, child: str
) -> None:
    monkeypatch.setattr(watchdog, "HELD", 0.1)
    reports: list[LoopHeld] = []
    reported = threading.Event()

    def hear(signal: Signal) -> None:
        if isinstance(signal, LoopHeld):
            reports.append(signal)
            reported.set()

    async def block() -> None:
        assert reported.wait(60)

    async def one(event: Placed) -> None:
        if child == "gather":
            await asyncio.gather(block(), asyncio.sleep(0))
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(block())

    async def many(events: list[Placed]) -> None:
        await asyncio.gather(block(), asyncio.sleep(0))

    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect")(many if child == "of a batch" else one)

    async with opened(database, declare) as shop:
        shop.app.signals.listen(hear)
        async with shop.app.worker(), expect(shop.app, Settled, lambda signal: signal.events):
            await shop.publish("a1")
    assert reports[0].subscription == "shop.effect"


async def test_a_task_belongs_to_who_started_it_and_not_to_who_awaits_it() -> None:
    name, end, started = ContextVar("name", default=""), asyncio.Event(), list[asyncio.Task[object]]()

    async def start() -> None:
        name.set("starts")
        started.append(asyncio.create_task(end.wait()))
        await asyncio.sleep(0)

    async def wait() -> None:
        name.set("awaits")
        await started[0]

    await asyncio.create_task(start())
    waits = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert [watchdog.context_of(each).get(name) for each in (*started, waits)] == ["starts", "awaits"]
    end.set()
    await waits


@pytest.mark.verify
async def test_hundreds_that_fail_again_are_each_tried_once_and_kept(database: str) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect", retry=SOON, order="none")(shop.effect)

    async with opened(database, declare) as shop:
        names = [f"a{n}" for n in range(150)]

        def fail() -> None:
            raise ValueError

        shop.wrong = dict.fromkeys(names, fail)
        await shop.publish(*names)
        await shop.app.drain()
        await shop.make_due()
        shop.calls.clear()
        await shop.app.drain()
        assert sorted(shop.calls) == sorted(names)
        assert {row["attempts"] for row in (await shop.parked()).values()} == {2}


async def test_a_role_without_the_right_to_register_runs_handlers(database: str) -> None:
    """See tests/docs/test_docs.py for the rights; here only that nothing is registered when nothing has changed."""
    async with opened(database) as shop:
        await shop.rows("revoke all on function outrider.register from public; drop function outrider.register")
        await shop.publish("a1")
        async with shop.app.worker():
            pass
        assert await shop.effects() == ["a1"]
